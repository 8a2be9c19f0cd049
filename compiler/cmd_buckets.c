/* lathe buckets: the static lengths that serve a distribution of lengths with the least padded work. */
#include "choose_buckets.h"
#include "cli.h"
#include "printable.h"
#include "target.h"

#include <string.h>

struct request {
    struct lathe_words args;
    const char *lengths;
    int64_t most, max_length, hidden;
    bool json;
};

struct proposal {
    struct lathe_lengths lengths;
    struct lathe_bucket_share buckets[LATHE_TARGET_MAX_BUCKETS];
    unsigned count, different;
    uint64_t tokens, padded; /* of all requests, without and with padding */
    uint64_t work, one;      /* of the buckets, of the largest alone */
};

static double share(uint64_t part, uint64_t all) {
    return all ? (double)part / (double)all : 0;
}

static double padding(const struct lathe_bucket_share *b) {
    return 1 - share(b->tokens, b->requests * (uint64_t)b->length);
}

static int64_t largest(const struct proposal *p) {
    return p->buckets[p->count - 1].length;
}

static double one_padding(const struct proposal *p) {
    return 1 - share(p->tokens, p->lengths.requests * (uint64_t)largest(p));
}

static void print_table(const struct proposal *p, struct lathe_text *out) {
    lathe_text_append(out, "  %8s  %12s  %7s  %11s  %7s\n", "length", "requests", "share", "mean length", "padding");
    for (unsigned i = 0; i < p->count; i++) {
        const struct lathe_bucket_share *b = &p->buckets[i];
        lathe_text_append(out, "  %8lld  %12llu  %5.1f %%", (long long)b->length, (unsigned long long)b->requests,
                          100 * share(b->requests, p->lengths.requests));
        if (b->requests)
            lathe_text_append(out, "  %11.1f  %5.1f %%\n", (double)b->tokens / (double)b->requests, 100 * padding(b));
        else
            lathe_text_append(out, "  %11s  %7s\n", "-", "-");
    }
}

static void print_arguments(const struct proposal *p, struct lathe_text *out) {
    for (unsigned i = 0; i < p->count; i++)
        lathe_text_append(out, " --bucket 1x%lld", (long long)p->buckets[i].length);
    lathe_text_append(out, "\n");
}

static enum lathe_status print_text(const struct request *q, const struct proposal *p, struct lathe_diag *diag) {
    struct lathe_text out = {0};
    const struct lathe_lengths *l = &p->lengths;
    lathe_text_append(&out, "%llu requests, %u different lengths up to %lld, mean %.1f\n",
                      (unsigned long long)l->requests, p->different, (long long)l->longest,
                      (double)p->tokens / (double)l->requests);
    if (l->cut)
        lathe_text_append(&out, "%llu requests are longer than %lld and count as that\n", (unsigned long long)l->cut,
                          (long long)q->max_length);
    print_table(p, &out);
    lathe_text_append(&out, "padding      %.1f %% of all tokens; one bucket of %lld: %.1f %%\n",
                      100 * (1 - share(p->tokens, p->padded)), (long long)largest(p), 100 * one_padding(p));
    lathe_text_append(&out, "saving       %.1f %% of the work of one bucket of %lld (%s)\n",
                      100 * (1 - share(p->work, p->one)), (long long)largest(p),
                      q->hidden ? "multiply-adds of an encoder layer" : "tokens");
    lathe_text_append(&out, "arguments   ");
    print_arguments(p, &out);
    return lathe_cli_print(&out, diag);
}

static json_t *bucket_json(const struct proposal *p, const struct lathe_bucket_share *b) {
    return json_pack("{sI, sI, sf, sI, so}", "length", (json_int_t)b->length, "requests", (json_int_t)b->requests,
                     "share", share(b->requests, p->lengths.requests), "tokens", (json_int_t)b->tokens, "padding",
                     b->requests ? json_real(padding(b)) : json_null());
}

static enum lathe_status print_json(const struct request *q, const struct proposal *p, struct lathe_diag *diag) {
    json_t *buckets = json_array(), *arguments = json_array();
    for (unsigned i = 0; i < p->count; i++) {
        json_array_append_new(buckets, bucket_json(p, &p->buckets[i]));
        json_array_append_new(arguments, json_string("--bucket"));
        json_array_append_new(arguments, json_sprintf("1x%lld", (long long)p->buckets[i].length));
    }
    json_t *o =
        json_pack("{sI, si, sI, sI, sI, sI}", "requests", (json_int_t)p->lengths.requests, "different_lengths",
                  (int)p->different, "longest", (json_int_t)p->lengths.longest, "cut", (json_int_t)p->lengths.cut,
                  "tokens", (json_int_t)p->tokens, "padded_tokens", (json_int_t)p->padded);
    json_object_set_new(o, "buckets", buckets);
    json_object_set_new(o, "padding", json_real(1 - share(p->tokens, p->padded)));
    json_object_set_new(o, "padding_one_bucket", json_real(one_padding(p)));
    json_object_set_new(o, "work_unit", json_string(q->hidden ? "multiply-adds / (2 hidden)" : "tokens"));
    json_object_set_new(o, "work", json_integer((json_int_t)p->work));
    json_object_set_new(o, "work_one_bucket", json_integer((json_int_t)p->one));
    json_object_set_new(o, "saving", json_real(1 - share(p->work, p->one)));
    json_object_set_new(o, "arguments", arguments);
    return lathe_cli_print_json(o, diag);
}

static enum lathe_status buckets(void *request, struct lathe_diag *diag) {
    struct request *q = request;
    struct proposal p = {0};
    if (!q->lengths)
        return lathe_fail(diag, LATHE_MSG_ARGUMENTS, "lathe buckets: --lengths FILE is missing");
    if (!q->most)
        return lathe_fail(diag, LATHE_MSG_ARGUMENTS, "lathe buckets: --max N is missing");
    LATHE_TRY(lathe_lengths_read(q->lengths, q->max_length, &p.lengths, diag));
    enum lathe_status status = lathe_buckets_choose(&p.lengths, (unsigned)q->most, q->max_length, q->hidden, p.buckets,
                                                    &p.count, &p.work, &p.one, diag);
    for (int64_t length = 1; length <= p.lengths.longest; length++)
        p.different += p.lengths.counts[length] > 0;
    for (unsigned i = 0; i < p.count; i++) {
        p.tokens += p.buckets[i].tokens;
        p.padded += p.buckets[i].requests * (uint64_t)p.buckets[i].length;
    }
    if (status == LATHE_OK)
        status = q->json ? print_json(q, &p, diag) : print_text(q, &p, diag);
    lathe_lengths_free(&p.lengths);
    return status;
}

static const char details[] =
    "FILE has a line for each request: its length in tokens, special tokens included; or a length and how many\n"
    "requests have it. The lengths printed are the best there are for that distribution: no other set of N lengths\n"
    "has less work when each request is padded to the smallest that holds it.\n";

int lathe_cmd_buckets(int argc, char **argv) {
    static struct request q;
    const struct lathe_option options[] = {
        {.name = "lengths",
         .kind = LATHE_OPTION_TEXT,
         .into = &q.lengths,
         .value = "FILE",
         .help = "the lengths; - is standard input"},
        {.name = "max",
         .kind = LATHE_OPTION_COUNT,
         .into = &q.most,
         .value = "N",
         .min = 1,
         .max = LATHE_TARGET_MAX_BUCKETS,
         .help = "how many lengths to propose (fewer where there are no more)"},
        {.name = "max-length",
         .kind = LATHE_OPTION_COUNT,
         .into = &q.max_length,
         .value = "L",
         .min = 1,
         .max = LATHE_LENGTH_MAX,
         .help = "the largest length is L, whether a request needs it or not; longer requests count as L"},
        {.name = "hidden",
         .kind = LATHE_OPTION_COUNT,
         .into = &q.hidden,
         .value = "H",
         .min = 1,
         .max = 1 << 20,
         .help =
             "count attention too: a request of S tokens is S (6 H + S), the multiply-adds of an encoder layer with "
             "hidden size H and a feed-forward of 4 H, not S"},
        {.name = "json", .kind = LATHE_OPTION_FLAG, .into = &q.json, .help = "JSON instead of text"},
    };
    const struct lathe_syntax syntax = {.command = "buckets",
                                        .arguments = "--lengths FILE --max N [options]",
                                        .summary = "the static lengths with the least padding for your requests",
                                        .details = details,
                                        .options = options,
                                        .option_count = sizeof options / sizeof *options};
    return lathe_cli_run(&syntax, argc, argv, &q.args, buckets, &q);
}
