/* fuse_embedding and bound_positions: sums of look-ups, positions in every spelling, the length that a table serves. */
#include "pass_test.h"

#define TABLES                                                                                                         \
    "input %ids : i64[batch, seq]\ninput %types : i64[batch, seq]\n"                                                   \
    "const %word : f32[5, 2] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}\nconst %type : f32[2, 2] = {1, 2, 3, 4}\n"              \
    "const %pos : f32[4, 2] = {1, 2, 3, 4, 5, 6, 7, 8}\nconst %g : f32[2] = {1, 2}\nconst %b : f32[2] = {0, 1}\n"      \
    "%w : f32[batch, seq, 2] = gather(%word, %ids) {axis=0}\n%t : f32[batch, seq, 2] = gather(%type, %types) "         \
    "{axis=0}\n"
#define SUM(out, a, b) "%" out " : f32[batch, seq, 2] = add(%" a ", %" b ")\n"
#define NORM(in)       "%y : f32[batch, seq, 2] = layer_norm(%" in ", %g, %b) {axis=2, epsilon=1e-12}\n" OUTPUT
#define OUTPUT         "output %y as \"y\"\n"
#define RANGE          "%r : i64[seq] = range() {start=0, delta=1}\n"

static const struct pass_case cases[] = {
    {"word, type, position by range", "fuse_embedding",
     TABLES RANGE "%p : f32[seq, 2] = gather(%pos, %r) {axis=0}\n%p1 : f32[1, seq, 2] = reshape(%p)\n" SUM(
         "s", "w", "t") SUM("s2", "s", "p1") NORM("s2"),
     "embedding=1 gather=0 add=0 layer_norm=0 range=0\ntext:offsets=[0, 0, 0]"},
    {"position first, range plus 2", "fuse_embedding",
     TABLES RANGE
     "const %two : i64[] = {2}\n%r2 : i64[seq] = add(%r, %two)\n%p : f32[seq, 2] = gather(%pos, %r2) {axis=0}\n" SUM(
         "s", "p", "w") NORM("s"),
     "embedding=1 gather=1 add=0\ntext:offsets=[2, 0]"},
    {"slice of constant position ids", "bound_positions fuse_embedding",
     TABLES "const %ar : i64[1, 4] = {0, 1, 2, 3}\n%sl : i64[1, min(seq, 4)] = slice(%ar) {axes=[1], starts=[0], "
            "ends=<min(seq, 4)>, steps=[1]}\n%p : f32[1, min(seq, 4), 2] = gather(%pos, %sl) {axis=0}\n" SUM(
                "s", "w", "p") NORM("s"),
     "embedding=1 slice=0 add=0"},
    {"slice of the table", "bound_positions fuse_embedding",
     TABLES "%p : f32[min(seq, 3), 2] = slice(%pos) {axes=[0], starts=[1], ends=<min(seq, 3)+1>, steps=[1]}\n" SUM(
         "s", "w", "p") NORM("s"),
     "embedding=1 slice=0 add=0\ntext:offsets=[0, 1]"},
    {"token types of one number", "fuse_embedding",
     TABLES "const %one : i64[] = {1}\n%f : i64[batch, seq] = expand(%one)\n"
            "%u : f32[batch, seq, 2] = gather(%type, %f) {axis=0}\n" SUM("s", "w", "u") NORM("s"),
     "embedding=1 expand=0 add=0\ntext:offsets=[0, -1]\ntext:f32[1, 2] = {3.0, 4.0}"},
    {"token types that an exporter with fixed sizes looked up", "fuse_embedding",
     "const %word : f32[5, 2] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}\nconst %g : f32[2] = {1, 2}\nconst %b : f32[2] = {0, "
     "1}\n"
     "const %u : f32[2, 3, 2] = {3, 4, 3, 4, 3, 4, 3, 4, 3, 4, 3, 4}\n"
     "const %v : f32[2, 3, 2] = {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6}\ninput %ids : i64[2, 3]\n"
     "%w : f32[2, 3, 2] = gather(%word, %ids) {axis=0}\n%s : f32[2, 3, 2] = add(%w, %u)\n"
     "%t : f32[2, 3, 2] = add(%s, %v)\n%y : f32[2, 3, 2] = layer_norm(%t, %g, %b) {axis=2, epsilon=1e-12}\n" OUTPUT,
     "embedding=1 add=0\ntext:offsets=[0, -1, 0]\ntext:f32[1, 2] = {3.0, 4.0}\ntext:f32[3, 2] = {1.0, 2.0, 3.0, 4.0, "
     "5.0, 6.0}"},
    {"and of another sort for each sequence", "fuse_embedding",
     "const %word : f32[5, 2] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}\nconst %g : f32[2] = {1, 2}\nconst %b : f32[2] = {0, "
     "1}\n"
     "const %u : f32[2, 3, 2] = {3, 4, 3, 4, 3, 4, 3, 4, 3, 4, 3, 5}\ninput %ids : i64[2, 3]\n"
     "%w : f32[2, 3, 2] = gather(%word, %ids) {axis=0}\n%s : f32[2, 3, 2] = add(%w, %u)\n"
     "%y : f32[2, 3, 2] = layer_norm(%s, %g, %b) {axis=2, epsilon=1e-12}\n" OUTPUT,
     "embedding=0\nmissed:neither a row nor [S,H]"},
    {"the sum is used too", "fuse_embedding",
     TABLES SUM("s", "w", "t") NORM("s") "%e : f32[batch, seq, 2] = exp(%s)\noutput %e as \"e\"\n",
     "embedding=1 add=0 layer_norm=0 exp=1"},
    {"a difference is no sum", "fuse_embedding", TABLES "%s : f32[batch, seq, 2] = sub(%w, %t)\n" NORM("s"),
     "embedding=0 sub=1 gather=2"},
    {"a difference inside the sum", "fuse_embedding",
     TABLES RANGE "%p : f32[seq, 2] = gather(%pos, %r) {axis=0}\n%d : f32[batch, seq, 2] = sub(%t, %p)\n" SUM(
         "s", "w", "d") NORM("s"),
     "embedding=0 sub=1 gather=3\nmissed:a summand is no table look-up"},
    {"norm without gamma", "fuse_embedding",
     TABLES SUM("s", "w", "t") "%y : f32[batch, seq, 2] = layer_norm(%s) {axis=2, epsilon=1e-12}\n" OUTPUT,
     "embedding=1 layer_norm=0\ntext:f32[2] = {1.0, 1.0}"},
    {"a summand that is no table", "fuse_embedding",
     TABLES "input %z : f32[batch, seq, 2]\n" SUM("s", "w", "z") NORM("s"),
     "embedding=0 gather=2\nmissed:a summand is an input, not a table look-up"},
    {"a table that is computed", "fuse_embedding",
     TABLES "input %tab : f32[7, 2]\n%u : f32[batch, seq, 2] = gather(%tab, %ids) {axis=0}\n" SUM("s", "w", "u")
         NORM("s"),
     "embedding=0\nmissed:the table is not a constant"},
    {"look-ups along another axis", "fuse_embedding",
     "const %word : f32[2, 5] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}\nconst %g : f32[2] = {1, 2}\nconst %b : f32[2] = {0, "
     "1}\n"
     "input %ids : i64[seq, 2]\n%w : f32[2, seq, 2] = gather(%word, %ids) {axis=1}\n"
     "%y : f32[2, seq, 2] = layer_norm(%w, %g, %b) {axis=2, epsilon=1e-12}\noutput %y as \"y\"\n",
     "embedding=0 gather=1"},

    {"a table of 4 rows bounds the length", "bound_positions",
     TABLES RANGE "%p : f32[seq, 2] = gather(%pos, %r) {axis=0}\noutput %p as \"p\"\noutput %w as \"w\"\n",
     "gather=3\nmissed:\"max_length\":\"4"},
    {"positions from the ids, offset 1", "bound_positions",
     TABLES "const %pad : i64[] = {1}\n%eq : bool[batch, seq] = equal(%ids, %pad)\n%ne : bool[batch, seq] = not(%eq)\n"
            "%m : i32[batch, seq] = cast(%ne) {to=6}\n%cs : i32[batch, seq] = cumsum(%m) {axis=1}\n"
            "%cm : i32[batch, seq] = mul(%cs, %m)\n%l : i64[batch, seq] = cast(%cm) {to=7}\n"
            "%at : i64[batch, seq] = add(%l, %pad)\n%p : f32[batch, seq, 2] = gather(%pos, %at) {axis=0}\n"
            "output %p as \"p\"\n",
     "gather=3\nmissed:\"max_length\":\"2"},
};

int main(void) {
    return pass_cases_main("fuse_embedding", cases, sizeof cases / sizeof *cases);
}
