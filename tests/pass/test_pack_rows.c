/* pack_rows: what runs on packed rows, what reads them, and what forbids packing. */
#include "pass_test.h"

#define MODEL                                                                                                          \
    "input %ids : i64[batch, seq]\ninput %mask : i64[batch, seq]\n"                                                    \
    "const %word : f32[5, 2] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}\nconst %pos : f32[4, 2] = {1, 2, 3, 4, 5, 6, 7, 8}\n"   \
    "const %g : f32[2] = {1, 2}\nconst %b : f32[2] = {0, 1}\n"                                                         \
    "const %wq : f32[2, 6] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}\nconst %wo : f32[2, 2] = {1, 2, 3, 4}\n"          \
    "%e : f32[batch, seq, 2] = embedding(%g, %b, %word, %ids, %pos, _) {epsilon=1e-12, offsets=[0, 0]}\n"              \
    "%qkv : f32[batch, seq, 6] = linear(%e, %wq)\n"                                                                    \
    "%att : f32[batch, seq, 2] = attention(%qkv, %qkv, %qkv, %mask) {heads=1, head_dim=2, v_head_dim=2, kv_heads=1, "  \
    "q_offset=0, k_offset=2, v_offset=4, scale=0.7, masked_row=1}\n"                                                   \
    "%o : f32[batch, seq, 2] = linear(%att, %wo)\n"                                                                    \
    "%h : f32[batch, seq, 2] = skip_layer_norm(%o, %e, %g, %b) {epsilon=1e-12}\n"
#define PACKED "row_map=1 attention_rows=1 attention=0"

static const struct pass_case cases[] = {
    {"token output", "pack_rows", MODEL "output %h as \"h\"\n",
     PACKED " unpack_rows=1 take_rows=0 pack_rows=2\ntext:f32[rows, 6] = linear\n"
            "text:%h : f32[rows, 2] = skip_layer_norm\ntext:masked_row=1"},
    {"first token", "pack_rows",
     MODEL "const %zero : i64[] = {0}\n%c : f32[batch, 2] = gather(%h, %zero) {axis=1}\noutput %c as \"c\"\n",
     PACKED " unpack_rows=0 take_rows=1 gather=0\ntext:values=[0]\ntext:start=0"},
    {"first token by slice", "pack_rows",
     MODEL "%s : f32[batch, 1, 2] = slice(%h) {axes=[1], starts=[0], ends=[1], steps=[1]}\n"
           "%c : f32[batch, 2] = reshape(%s)\noutput %c as \"c\"\n",
     PACKED " unpack_rows=0 take_rows=1 slice=0"},
    {"masked mean", "pack_rows",
     MODEL "const %tiny : f32[] = {1e-09}\n%m1 : i64[batch, seq, 1] = reshape(%mask)\n"
           "%m2 : i64[batch, seq, 2] = expand(%m1)\n%mf : f32[batch, seq, 2] = cast(%m2) {to=1}\n"
           "%hm : f32[batch, seq, 2] = mul(%h, %mf)\n%sum : f32[batch, 2] = reduce_sum(%hm) {axes=[1], keepdims=0}\n"
           "%n : f32[batch, 2] = reduce_sum(%mf) {axes=[1], keepdims=0}\n%c : f32[batch, 2] = clip(%n, %tiny)\n"
           "%y : f32[batch, 2] = div(%sum, %c)\noutput %y as \"y\"\n",
     PACKED " mean_rows=1 unpack_rows=0 reduce_sum=0 clip=0\ntext:mean_rows(%h, %row_map)"},
    {"masked sum", "pack_rows",
     MODEL "%m1 : i64[batch, seq, 1] = reshape(%mask)\n%mb : bool[batch, seq, 1] = cast(%m1) {to=9}\n"
           "%nb : bool[batch, seq, 1] = not(%mb)\nconst %zero : f32[] = {0}\n"
           "%hm : f32[batch, seq, 2] = where(%nb, %zero, %h)\n"
           "%sum : f32[batch, 2] = reduce_sum(%hm) {axes=[1], keepdims=0}\noutput %sum as \"y\"\n",
     PACKED " unpack_rows=1 reduce_sum=1"},
    {"logits by token, split", "pack_rows",
     MODEL "%a : f32[batch, seq, 1] = slice(%h) {axes=[2], starts=[0], ends=[1], steps=[1]}\n"
           "%s : f32[batch, seq] = reshape(%a)\noutput %s as \"s\"\n",
     PACKED " unpack_rows=1 slice=1\ntext:axes=[1]\ntext:f32[rows] = reshape"},
    {"rows merged", "pack_rows",
     MODEL "%f : f32[batch*seq, 2] = reshape(%h)\n%l : f32[batch*seq, 2] = linear(%f, %wo)\n"
           "%s : f32[batch, seq, 2] = reshape(%l)\noutput %s as \"s\"\n",
     PACKED " unpack_rows=1 linear=3"},
    {"rows merged in an output", "pack_rows", MODEL "%f : f32[batch*seq, 2] = reshape(%h)\noutput %f as \"f\"\n",
     "row_map=0 attention=1\nmissed:does not show its tokens"},
    {"a padding mask: token outputs as the source has them", "pack_rows",
     "input %attention_mask : i64[batch, seq]\n%b : bool[batch, seq] = cast(%attention_mask) {to=9}\n"
     "%not : bool[batch, seq] = not(%b)\ninput %e : f32[batch, seq, 2]\n"
     "%h : f32[batch, seq, 2] = attention(%e, %e, %e, %not) {heads=1, head_dim=2, v_head_dim=2, kv_heads=1, "
     "scale=0.7}\noutput %h as \"h\"\n",
     "row_map=0 attention=1 where=0\nmissed:no attention_mask input marks"},
    {"a mask made of the ids: token outputs as the source has them", "pack_rows",
     "input %ids : i64[batch, seq]\nconst %pad : i64[] = {1}\n%p : bool[batch, seq] = equal(%ids, %pad)\n"
     "%mask : bool[batch, seq] = not(%p)\nconst %word : f32[5, 2] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}\n"
     "%e : f32[batch, seq, 2] = gather(%word, %ids) {axis=0}\n"
     "%h : f32[batch, seq, 2] = attention(%e, %e, %e, %mask) {heads=1, head_dim=2, v_head_dim=2, kv_heads=1, "
     "scale=0.7}\noutput %h as \"h\"\n",
     "row_map=0 attention=1 where=0\nmissed:no attention_mask input marks"},
    {"a mask made of the ids: first token", "pack_rows",
     "input %ids : i64[batch, seq]\nconst %pad : i64[] = {1}\n%p : bool[batch, seq] = equal(%ids, %pad)\n"
     "%mask : bool[batch, seq] = not(%p)\nconst %word : f32[5, 2] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}\n"
     "%e : f32[batch, seq, 2] = gather(%word, %ids) {axis=0}\n"
     "%h : f32[batch, seq, 2] = attention(%e, %e, %e, %mask) {heads=1, head_dim=2, v_head_dim=2, kv_heads=1, "
     "scale=0.7}\nconst %zero : i64[] = {0}\n%c : f32[batch, 2] = gather(%h, %zero) {axis=1}\noutput %c as \"c\"\n",
     PACKED " take_rows=1"},
    {"two outputs", "pack_rows",
     MODEL "const %zero : i64[] = {0}\n%c : f32[batch, 2] = gather(%h, %zero) {axis=1}\noutput %h as \"h\"\n"
           "output %c as \"c\"\n",
     PACKED " unpack_rows=1 take_rows=1"},
    {"plain mean reads padding", "pack_rows",
     MODEL "%m : f32[batch, 2] = reduce_mean(%h) {axes=[1], keepdims=0}\noutput %m as \"m\"\n",
     "row_map=0 attention=1\nmissed:reads rows of masked tokens"},
    {"not packed: token outputs are zeroed", "pack_rows",
     MODEL "%m : f32[batch, 2] = reduce_mean(%h) {axes=[1], keepdims=0}\noutput %m as \"m\"\noutput %h as \"h\"\n",
     "row_map=0 attention=1 where=1"},
    {"no mask", "pack_rows",
     "input %e : f32[batch, seq, 2]\n%h : f32[batch, seq, 2] = attention(%e, %e, %e) {heads=1, head_dim=2, "
     "v_head_dim=2, "
     "kv_heads=1, scale=0.7}\noutput %h as \"h\"\n",
     "row_map=0 attention=1 where=0"},
    {"hidden states as input", "pack_rows",
     "input %e : f32[batch, seq, 2]\ninput %attention_mask : i64[batch, seq]\n"
     "%h : f32[batch, seq, 2] = attention(%e, %e, %e, %attention_mask) {heads=1, head_dim=2, v_head_dim=2, "
     "kv_heads=1, scale=0.7}\noutput %h as \"h\"\n",
     PACKED " pack_rows=1 unpack_rows=1"},
    {"a bare attention is no token model", "pack_rows",
     "input %e : f32[batch, seq, 2]\ninput %mask : i64[batch, seq]\n"
     "%h : f32[batch, seq, 2] = attention(%e, %e, %e, %mask) {heads=1, head_dim=2, v_head_dim=2, "
     "kv_heads=1, scale=0.7}\noutput %h as \"h\"\n",
     "row_map=0 attention=1 where=0"},
    {"position embeddings that are summed", "pack_rows",
     "input %e : f32[batch, seq, 2]\ninput %p : f32[1, seq, 2]\ninput %attention_mask : i64[batch, seq]\n"
     "%s : f32[batch, seq, 2] = add(%e, %p)\n"
     "%h : f32[batch, seq, 2] = attention(%s, %s, %s, %attention_mask) {heads=1, head_dim=2, v_head_dim=2, "
     "kv_heads=1, scale=0.7}\noutput %h as \"h\"\n",
     PACKED " pack_rows=2 unpack_rows=1 expand=1"},
    {"mask on the embeddings", "pack_rows",
     "input %e : f32[batch, seq, 2]\ninput %attention_mask : i64[batch, seq]\n%m1 : i64[batch, seq, 1] = "
     "reshape(%attention_mask)\n"
     "%mf : f32[batch, seq, 1] = cast(%m1) {to=1}\n%s : f32[batch, seq, 2] = mul(%e, %mf)\n"
     "%h : f32[batch, seq, 2] = attention(%s, %s, %s, %attention_mask) {heads=1, head_dim=2, v_head_dim=2, "
     "kv_heads=1, scale=0.7}\noutput %h as \"h\"\n",
     PACKED " pack_rows=2 unpack_rows=1"},
};

/* trim_unused_rows, behind pack_rows */
#define FIRST "const %zero : i64[] = {0}\n%c : f32[batch, 2] = gather(%h, %zero) {axis=1}\n"
static const struct pass_case trim_cases[] = {
    {"one token is read", "pack_rows trim_unused_rows drop_dead_nodes", MODEL FIRST "output %c as \"c\"\n",
     "take_rows=2 attention_rows=1 linear=2\ntext:%att : f32[batch, 2] = attention_rows\ntext:start=0\n"
     "text:%o : f32[batch, 2] = linear\ntext:%h : f32[batch, 2] = skip_layer_norm"},
    {"all tokens are read too", "pack_rows trim_unused_rows drop_dead_nodes",
     MODEL FIRST "output %c as \"c\"\noutput %h as \"h\"\n", "take_rows=1 unpack_rows=1\ntext:%att : f32[rows, 2]"},
    {"the product of Q leaves that of K and V", "pack_rows trim_unused_rows drop_dead_nodes",
     "input %e : f32[batch, seq, 2]\ninput %attention_mask : i64[batch, seq]\n"
     "const %q : f32[2, 2] = {1, 2, 3, 4}\nconst %k : f32[2, 2] = {5, 6, 7, 8}\nconst %v : f32[2, 2] = {9, 1, 2, 3}\n"
     "const %b : f32[6] = {1, 2, 3, 4, 5, 6}\n%w : f32[2, 6] = concat(%q, %k, %v) {axis=1}\n"
     "%qkv : f32[batch, seq, 6] = linear(%e, %w, %b)\n"
     "%h : f32[batch, seq, 2] = attention(%qkv, %qkv, %qkv, %attention_mask) {heads=1, head_dim=2, v_head_dim=2, "
     "kv_heads=1, q_offset=0, k_offset=2, v_offset=4, scale=0.7}\n" FIRST "output %c as \"c\"\n",
     "linear=2 concat=1 take_rows=1\ntext:f32[2, 4] = concat(%k, %v)\ntext:k_offset=0, v_offset=2"},
};

int main(void) {
    return pass_cases_main("pack_rows", cases, sizeof cases / sizeof *cases) +
           pass_cases_main("trim_unused_rows", trim_cases, sizeof trim_cases / sizeof *trim_cases);
}
