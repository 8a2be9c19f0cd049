#include "built_graph.h"

#include "bucket_choice.h"
#include "bucket_graphs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct lathe_emit_options plain = {.jobs = 1};

void build_graph(struct built *out, const char *text, const struct lathe_emit_options *options) {
    static struct lathe_diag why;
    lathe_diag_reset(&why);
    *out = (struct built){0};
    if (lathe_graph_parse(text, &out->graph, &why) != LATHE_OK)
        fail_msg("parse: %s", why.text);
    if (lathe_emit_memory(out->graph, options ? options : &plain, &out->bytes, &out->size, NULL, &why) != LATHE_OK)
        fail_msg("emit: %s", why.text);
    if (lathe_artifact_open_memory(out->bytes, out->size, NULL, &out->artifact, &why) != LATHE_OK)
        fail_msg("open: %s", why.text);
}

enum lathe_status build_buckets(struct built *out, const char *text, const struct lathe_bucket *sizes, unsigned count,
                                struct lathe_diag *diag) {
    static struct lathe_diag own;
    struct lathe_diag *why = diag ? diag : &own;
    struct lathe_target target;
    struct lathe_bucket list[LATHE_MAX_BUCKETS];
    struct lathe_graph *graphs[LATHE_MAX_BUCKETS] = {NULL};
    const struct lathe_pipeline_options options = {.pass = {.buckets = list, .bucket_count = count}, .check = true};
    lathe_diag_reset(why);
    *out = (struct built){0};
    memcpy(list, sizes, count * sizeof *list);
    enum lathe_status status = lathe_target_load("generic", &target, why);
    if (status == LATHE_OK)
        status = lathe_graph_parse(text, &out->graph, why);
    if (status == LATHE_OK)
        status = lathe_pipeline_run(out->graph, &target, &options, NULL, why);
    if (status == LATHE_OK)
        status = lathe_bucket_graphs_make(out->graph, &target, &options, list, &count, graphs, why);
    const struct lathe_emit_buckets buckets = {list, graphs, count, lathe_graph_hides_rows(out->graph)};
    const struct lathe_emit_options emit = {.buckets = &buckets, .target = &target, .jobs = 1, .known_answer = true};
    if (status == LATHE_OK)
        status = lathe_emit_memory(out->graph, &emit, &out->bytes, &out->size, NULL, why);
    if (status == LATHE_OK)
        status = lathe_artifact_open_memory(out->bytes, out->size, NULL, &out->artifact, why);
    for (unsigned i = 0; i < LATHE_MAX_BUCKETS; i++)
        lathe_graph_free(&graphs[i]);
    if (status != LATHE_OK && !diag)
        fail_msg("%s", why->text);
    return status;
}

enum lathe_status try_build(const char *text, const struct lathe_emit_options *options, struct lathe_diag *diag) {
    struct lathe_graph *g = NULL;
    void *bytes = NULL;
    size_t size;
    lathe_diag_reset(diag);
    enum lathe_status status = lathe_graph_parse(text, &g, diag);
    if (status == LATHE_OK)
        status = lathe_emit_memory(g, options ? options : &plain, &bytes, &size, NULL, diag);
    free(bytes);
    lathe_graph_free(&g);
    return status;
}

void free_built(struct built *b) {
    lathe_artifact_close(&b->artifact);
    free(b->bytes);
    lathe_graph_free(&b->graph);
}

const char *const small_encoder =
    "input %input_ids : i64[batch, seq]\n"
    "input %attention_mask : i64[batch, seq]\n"
    "input %token_type_ids : i64[batch, seq]\n"
    "const %table : f32[7, 4] = {0.1, -0.2, 0.3, 0.4, 1, 2, -3, 4, 0.5, 0.25, 0.125, -1, 2, 1, 0, -1, 0.7, 0.6, 0.5, "
    "0.4, -0.1, -0.2, 0.9, 1.1, 0, 0, 1, 0}\n"
    "const %types : f32[2, 4] = {0, 0, 0, 0, 1, -1, 0.5, 0.25}\n"
    "const %w : f32[4, 20] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, "
    "-1, 2, -3, 4, -5, 6, -7, 8, -9, 10, -11, 12, -13, 14, -15, 16, -17, 18, -19, 20, "
    "1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, "
    "0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1}\n"
    "const %w2 : f32[4, 20] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, "
    "-1, 2, -3, 4, -5, 6, -7, 8, -9, 10, -11, 12, -13, 14, -15, 16, -17, 18, -19, 20, "
    "1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, "
    "0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1}\n"
    "const %b : f32[20] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19}\n"
    "%words : f32[batch, seq, 4] = gather(%table, %input_ids) {axis=0}\n"
    "%segments : f32[batch, seq, 4] = gather(%types, %token_type_ids) {axis=0}\n"
    "%sum : f32[batch, seq, 4] = add(%words, %segments)\n"
    "%flat : f32[batch*seq, 4] = reshape(%sum)\n"
    "%act : f32[batch*seq, 4] = tanh(%flat)\n"
    "%hidden : f32[batch*seq, 20] = linear(%act, %w, %b)\n"
    "%again : f32[batch*seq, 20] = linear(%act, %w2, _, %hidden) {activation=1}\n"
    "%tokens : f32[batch, seq, 20] = reshape(%again)\n"
    "%mask : f32[batch, seq] = cast(%attention_mask) {to=1}\n"
    "%mask3 : f32[batch, seq, 1] = reshape(%mask)\n"
    "%kept : f32[batch, seq, 20] = mul(%tokens, %mask3)\n"
    "%pooled : f32[batch, 20] = reduce_sum(%kept) {axes=[1], keepdims=0}\n"
    "output %tokens as \"last_hidden_state\"\n"
    "output %pooled as \"pooled\"\n"
    "output %attention_mask as \"mask\"\n";
