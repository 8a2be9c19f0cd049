/* Target files: strict YAML. One mapping of known keys, each at most once, plain scalars or flat lists; every error
 * names file and line. */
#include "target_internal.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <yaml.h>

struct reader {
    const char *file;
    yaml_document_t *document;
    const struct lathe_target_chain *chain;
    struct lathe_target *target;
    struct lathe_diag *diag;
};

static unsigned line_of(const yaml_node_t *node) {
    return (unsigned)node->start_mark.line + 1;
}

#define FAIL(r, node, message, ...) fail_at(r, node, LATHE_MSG_##message, __VA_ARGS__)

static enum lathe_status fail_at(const struct reader *r, const yaml_node_t *node, enum lathe_message message,
                                 const char *format, ...) LATHE_PRINTF(4, 5);
static enum lathe_status fail_at(const struct reader *r, const yaml_node_t *node, enum lathe_message message,
                                 const char *format, ...) {
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return lathe_fail(r->diag, message, "%s:%u: %s", r->file, line_of(node), text);
}

static yaml_node_t *node_at(const struct reader *r, int id) {
    return yaml_document_get_node(r->document, id);
}

static const char *kind_of(const yaml_node_t *node) {
    switch (node->type) {
    case YAML_SCALAR_NODE:
        return "a single value";
    case YAML_SEQUENCE_NODE:
        return "a list";
    case YAML_MAPPING_NODE:
        return "a mapping";
    default:
        return "nothing";
    }
}

/* ---- scalars */

static enum lathe_status scalar(const struct reader *r, const char *key, const yaml_node_t *node, const char **out) {
    if (node->type != YAML_SCALAR_NODE)
        return FAIL(r, node, TARGET_VALUE, "%s: expected a single value, found %s", key, kind_of(node));
    const char *text = (const char *)node->data.scalar.value;
    if (strlen(text) != node->data.scalar.length)
        return FAIL(r, node, TARGET_VALUE, "%s: the value holds a zero byte", key);
    if (strcmp((const char *)node->tag, YAML_STR_TAG))
        return FAIL(r, node, TARGET_VALUE, "%s: a tag (%s) is not allowed", key, (const char *)node->tag);
    *out = text;
    return LATHE_OK;
}

/* A number may not be quoted: "4" is a text. */
static enum lathe_status number_text(const struct reader *r, const char *key, const yaml_node_t *node,
                                     const char **out) {
    LATHE_TRY(scalar(r, key, node, out));
    if (node->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        return FAIL(r, node, TARGET_VALUE, "%s: expected a number, found the text '%s'", key, *out);
    return LATHE_OK;
}

static bool digits(const char *text, const char **end, uint64_t *out) {
    uint64_t n = 0;
    const char *p = text;
    for (; isdigit((unsigned char)*p); p++)
        if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, (uint64_t)(*p - '0'), &n))
            return false;
    *end = p;
    *out = n;
    return p != text;
}

static enum lathe_status whole(const struct reader *r, const char *key, const yaml_node_t *node, uint64_t max,
                               uint64_t *out) {
    const char *text = "", *end = "";
    LATHE_TRY(number_text(r, key, node, &text));
    if (!digits(text, &end, out) || *end || *out > max)
        return FAIL(r, node, TARGET_VALUE, "%s: expected a whole number from 0 to %llu, found '%s'", key,
                    (unsigned long long)max, text);
    return LATHE_OK;
}

/* Bytes: a number with KiB, MiB, GiB or nothing behind it, at most 1 TiB. */
static enum lathe_status size_value(const struct reader *r, const char *key, const yaml_node_t *node, uint64_t *out) {
    static const struct {
        const char *unit;
        unsigned shift;
    } units[] = {{"", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
    const char *text = "", *end = "";
    uint64_t n;
    LATHE_TRY(number_text(r, key, node, &text));
    if (digits(text, &end, &n))
        for (size_t i = 0; i < sizeof units / sizeof *units; i++)
            if (!strcmp(end, units[i].unit) && n <= UINT64_C(1) << (40 - units[i].shift)) {
                *out = n << units[i].shift;
                return LATHE_OK;
            }
    return FAIL(r, node, TARGET_VALUE, "%s: expected a size such as 32KiB, 1MiB or 65536 (at most 1024GiB), found '%s'",
                key, text);
}

static enum lathe_status real(const struct reader *r, const char *key, const yaml_node_t *node, double *out) {
    const char *text = "";
    LATHE_TRY(number_text(r, key, node, &text));
    size_t n = strlen(text), allowed = strspn(text, "0123456789."), points = 0;
    for (const char *p = text; *p; p++)
        points += *p == '.';
    if (!n || n > 16 || allowed != n || points > 1 || !isdigit((unsigned char)text[0]) ||
        !isdigit((unsigned char)text[n - 1]))
        return FAIL(r, node, TARGET_VALUE, "%s: expected a number such as 2.7, found '%s'", key, text);
    uint64_t before, after = 0;
    const char *end;
    if (!digits(text, &end, &before) || before > 1000000)
        return FAIL(r, node, TARGET_VALUE, "%s: at most 1000000, found '%s'", key, text);
    /* By hand, because strtod would follow the locale. */
    double scale = 1;
    if (*end == '.') {
        const char *p = end + 1;
        for (; *p; p++)
            scale *= 10;
        if (!digits(end + 1, &end, &after))
            return FAIL(r, node, TARGET_VALUE, "%s: expected a number such as 2.7, found '%s'", key, text);
    }
    *out = (double)before + (double)after / scale;
    return LATHE_OK;
}

/* A text that is no number, truth value or null. */
static enum lathe_status word(const struct reader *r, const char *key, const yaml_node_t *node, size_t max,
                              const char **out) {
    static const char *const not_text[] = {"true", "false", "yes", "no", "null", "~", ""};
    LATHE_TRY(scalar(r, key, node, out));
    if (node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE) {
        for (size_t i = 0; i < sizeof not_text / sizeof *not_text; i++)
            if (!strcasecmp(*out, not_text[i]))
                return FAIL(r, node, TARGET_VALUE, "%s: expected a text, found '%s'", key, *out);
        if (strspn(*out, "0123456789.+-") == strlen(*out))
            return FAIL(r, node, TARGET_VALUE, "%s: expected a text, found the number %s", key, *out);
    }
    if (strlen(*out) > max)
        return FAIL(r, node, TARGET_VALUE, "%s: longer than %zu characters", key, max);
    return LATHE_OK;
}

struct choice {
    const char *text;
    int value;
};

static enum lathe_status choose(const struct reader *r, const char *key, const yaml_node_t *node,
                                const struct choice *choices, size_t count, int *out) {
    const char *text = "";
    LATHE_TRY(scalar(r, key, node, &text));
    char known[512] = "";
    for (size_t i = 0; i < count; i++) {
        if (!strcmp(text, choices[i].text)) {
            *out = choices[i].value;
            return LATHE_OK;
        }
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", choices[i].text);
    }
    return FAIL(r, node, TARGET_VALUE, "%s: '%s' is not known (known: %s)", key, text, known);
}
#define CHOOSE(r, key, node, list, out) choose(r, key, node, list, sizeof list / sizeof *list, out)

/* Calls `one` for each entry of a list. */
static enum lathe_status each(const struct reader *r, const char *key, const yaml_node_t *node, size_t max,
                              enum lathe_status (*one)(const struct reader *, const char *, const yaml_node_t *)) {
    if (node->type != YAML_SEQUENCE_NODE)
        return FAIL(r, node, TARGET_VALUE, "%s: expected a list, found %s", key, kind_of(node));
    const yaml_node_item_t *begin = node->data.sequence.items.start, *end = node->data.sequence.items.top;
    if ((size_t)(end - begin) > max)
        return FAIL(r, node, TARGET_VALUE, "%s: at most %zu entries", key, max);
    for (const yaml_node_item_t *i = begin; i < end; i++)
        LATHE_TRY(one(r, key, node_at(r, *i)));
    return LATHE_OK;
}

/* ---- the keys, each a function (reader, key, node) */

static enum lathe_status set_name(const struct reader *r, const char *key, const yaml_node_t *node) {
    const char *text = "";
    LATHE_TRY(word(r, key, node, sizeof r->target->name - 1, &text));
    if (strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != strlen(text))
        return FAIL(r, node, TARGET_VALUE, "%s: only letters, digits, '.', '_' and '-', found '%s'", key, text);
    snprintf(r->target->name, sizeof r->target->name, "%s", text);
    return LATHE_OK;
}

static enum lathe_status set_doc(const struct reader *r, const char *key, const yaml_node_t *node) {
    const char *text = "";
    LATHE_TRY(word(r, key, node, sizeof r->target->doc - 1, &text));
    snprintf(r->target->doc, sizeof r->target->doc, "%s", text);
    return LATHE_OK;
}

static enum lathe_status set_arch(const struct reader *r, const char *key, const yaml_node_t *node) {
    static const struct choice list[] = {{"any", 0}, {"x86_64", 1}, {"aarch64", 2}, {"device", 3}};
    int i;
    LATHE_TRY(CHOOSE(r, key, node, list, &i));
    snprintf(r->target->arch, sizeof r->target->arch, "%s", list[i].text);
    return LATHE_OK;
}

static enum lathe_status add_feature(const struct reader *r, const char *key, const yaml_node_t *node) {
    static const struct choice list[] = {
#define CPU_BIT(number, name, text, doc) {text, number},
#include "cpu_bits.def"
#undef CPU_BIT
    };
    int bit;
    LATHE_TRY(CHOOSE(r, key, node, list, &bit));
    r->target->features = lathe_target_imply(r->target->features | LATHE_CPU_MASK(bit));
    return LATHE_OK;
}

/* What the file names is added to what it extends. */
static enum lathe_status set_features(const struct reader *r, const char *key, const yaml_node_t *node) {
    return each(r, key, node, 64, add_feature);
}

static enum lathe_status set_vector(const struct reader *r, const char *key, const yaml_node_t *node) {
    uint64_t n;
    LATHE_TRY(whole(r, key, node, 256, &n));
    if (n && (n < 16 || (n & (n - 1))))
        return FAIL(r, node, TARGET_VALUE, "%s: 0, 16, 32, 64, 128 or 256, found %llu", key, (unsigned long long)n);
    r->target->vector_bytes = (unsigned)n;
    return LATHE_OK;
}

static enum lathe_status set_caches(const struct reader *r, const char *key, const yaml_node_t *node) {
    if (node->type != YAML_MAPPING_NODE)
        return FAIL(r, node, TARGET_VALUE, "%s: expected a mapping of l1, l2, l3, found %s", key, kind_of(node));
    uint64_t *const slots[] = {&r->target->l1_bytes, &r->target->l2_bytes, &r->target->l3_bytes};
    static const struct choice levels[] = {{"l1", 0}, {"l2", 1}, {"l3", 2}};
    bool seen[3] = {false, false, false};
    for (const yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top; p++) {
        const yaml_node_t *name = node_at(r, p->key);
        int level;
        LATHE_TRY(CHOOSE(r, key, name, levels, &level));
        if (seen[level])
            return FAIL(r, name, TARGET_KEY, "%s: '%s' is written twice", key, levels[level].text);
        seen[level] = true;
        LATHE_TRY(size_value(r, key, node_at(r, p->value), slots[level]));
    }
    return LATHE_OK;
}

static const struct choice precision_list[] = {
    {"f32", LATHE_PRECISION_F32}, {"bf16", LATHE_PRECISION_BF16}, {"int8", LATHE_PRECISION_INT8}};

static enum lathe_status add_precision(const struct reader *r, const char *key, const yaml_node_t *node) {
    int bit;
    LATHE_TRY(CHOOSE(r, key, node, precision_list, &bit));
    r->target->precisions |= (unsigned)bit;
    return LATHE_OK;
}

static enum lathe_status set_precisions(const struct reader *r, const char *key, const yaml_node_t *node) {
    r->target->precisions = 0;
    LATHE_TRY(each(r, key, node, 8, add_precision));
    if (!r->target->precisions)
        return FAIL(r, node, TARGET_VALUE, "%s: at least one of f32, bf16, int8", key);
    return LATHE_OK;
}

static enum lathe_status set_int8(const struct reader *r, const char *key, const yaml_node_t *node) {
    static const struct choice list[] = {{"u8s8", LATHE_INT8_U8S8},      {"u8s7", LATHE_INT8_U8S7},
                                         {"u7s8", LATHE_INT8_U7S8},      {"u7s7_pairs", LATHE_INT8_U7S7_PAIRS},
                                         {"u8s8_sum1", LATHE_INT8_SUM1}, {"u8s8_sum2", LATHE_INT8_SUM2},
                                         {"u8s8_sum4", LATHE_INT8_SUM4}, {"u8s8_fip", LATHE_INT8_FIP}};
    int value;
    LATHE_TRY(CHOOSE(r, key, node, list, &value));
    r->target->int8_scheme = (enum lathe_int8_scheme)value;
    return LATHE_OK;
}

static enum lathe_status set_shapes(const struct reader *r, const char *key, const yaml_node_t *node) {
    static const struct choice list[] = {{"bounded", LATHE_SHAPES_BOUNDED}, {"static", LATHE_SHAPES_STATIC}};
    int value;
    LATHE_TRY(CHOOSE(r, key, node, list, &value));
    r->target->shapes = (enum lathe_shapes_kind)value;
    return LATHE_OK;
}

#define MAX_BATCH 65536
#define MAX_SEQ   1048576

static enum lathe_status add_bucket(const struct reader *r, const char *key, const yaml_node_t *node) {
    const char *text = "", *end = "";
    uint64_t batch = 0, seq = 0;
    LATHE_TRY(scalar(r, key, node, &text));
    if (!digits(text, &end, &batch) || *end != 'x' || !digits(end + 1, &end, &seq) || *end || !batch || !seq ||
        batch > MAX_BATCH || seq > MAX_SEQ)
        return FAIL(r, node, TARGET_VALUE, "%s: expected BATCHxSEQ such as 4x128 (at most %dx%d), found '%s'", key,
                    MAX_BATCH, MAX_SEQ, text);
    struct lathe_target *t = r->target;
    for (unsigned i = 0; i < t->bucket_count; i++)
        if (t->buckets[i].batch == (int64_t)batch && t->buckets[i].seq == (int64_t)seq)
            return FAIL(r, node, TARGET_VALUE, "%s: '%s' is written twice", key, text);
    t->buckets[t->bucket_count++] = (struct lathe_bucket){(int64_t)batch, (int64_t)seq};
    return LATHE_OK;
}

static enum lathe_status set_buckets(const struct reader *r, const char *key, const yaml_node_t *node) {
    r->target->bucket_count = 0;
    return each(r, key, node, LATHE_TARGET_MAX_BUCKETS, add_bucket);
}

static enum lathe_status set_max_batch(const struct reader *r, const char *key, const yaml_node_t *node) {
    uint64_t n;
    LATHE_TRY(whole(r, key, node, MAX_BATCH, &n));
    r->target->max_batch = (int64_t)n;
    return LATHE_OK;
}

static enum lathe_status set_max_seq(const struct reader *r, const char *key, const yaml_node_t *node) {
    uint64_t n;
    LATHE_TRY(whole(r, key, node, MAX_SEQ, &n));
    r->target->max_seq = (int64_t)n;
    return LATHE_OK;
}

static enum lathe_status set_cores(const struct reader *r, const char *key, const yaml_node_t *node) {
    uint64_t n;
    LATHE_TRY(whole(r, key, node, 4096, &n));
    r->target->cores = (unsigned)n;
    return LATHE_OK;
}

static enum lathe_status set_placement(const struct reader *r, const char *key, const yaml_node_t *node) {
    static const struct choice list[] = {
#define PLACEMENT(number, name, text, doc) {text, LATHE_PLACEMENT_##name},
#include "placements.def"
#undef PLACEMENT
    };
    int value;
    LATHE_TRY(CHOOSE(r, key, node, list, &value));
    r->target->placement = (enum lathe_placement)value;
    return LATHE_OK;
}

static enum lathe_status set_core_memory(const struct reader *r, const char *key, const yaml_node_t *node) {
    return size_value(r, key, node, &r->target->core_memory_bytes);
}

static enum lathe_status set_cast(const struct reader *r, const char *key, const yaml_node_t *node) {
    static const struct choice list[] = {
        {"none", LATHE_CAST_NONE}, {"matmul", LATHE_CAST_MATMUL}, {"all", LATHE_CAST_ALL}};
    int value;
    LATHE_TRY(CHOOSE(r, key, node, list, &value));
    r->target->cast = (enum lathe_cast_policy)value;
    return LATHE_OK;
}

static enum lathe_status add_operator(const struct reader *r, const char *key, const yaml_node_t *node) {
    static const struct choice list[] = {
#define OP(number, name, text, min_in, max_in, n_out, flags) {text, number},
#include "ir_ops.def"
#undef OP
    };
    const char *text = "";
    LATHE_TRY(scalar(r, key, node, &text));
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (!strcmp(list[i].text, text)) {
            r->target->operators[list[i].value / 8] |= (uint8_t)(1u << (list[i].value % 8));
            return LATHE_OK;
        }
    return FAIL(r, node, TARGET_VALUE, "%s: no operator is named '%s' (`lathe ops` lists them)", key, text);
}

static enum lathe_status set_operators(const struct reader *r, const char *key, const yaml_node_t *node) {
    memset(r->target->operators, 0, sizeof r->target->operators);
    r->target->all_operators = node->type == YAML_SCALAR_NODE && !strcmp((const char *)node->data.scalar.value, "all");
    if (r->target->all_operators)
        return LATHE_OK;
    if (node->type != YAML_SEQUENCE_NODE)
        return FAIL(r, node, TARGET_VALUE, "%s: expected 'all' or a list of operators", key);
    return each(r, key, node, 512, add_operator);
}

static enum lathe_status set_ghz(const struct reader *r, const char *key, const yaml_node_t *node) {
    return real(r, key, node, &r->target->ghz);
}

static enum lathe_status set_memory(const struct reader *r, const char *key, const yaml_node_t *node) {
    return real(r, key, node, &r->target->memory_gbps);
}

static const struct {
    const char *key;
    size_t at;
    double most;
} cost_keys[] = {
#define COST(name, key, most, doc) {key, offsetof(struct lathe_target_cost, name), most},
#include "cost_keys.def"
#undef COST
};
#define COST_COUNT (sizeof cost_keys / sizeof *cost_keys)

/* Keys that the file leaves out stay as what it extends has them. */
static enum lathe_status set_cost(const struct reader *r, const char *key, const yaml_node_t *node) {
    struct choice names[COST_COUNT];
    bool seen[COST_COUNT] = {false};
    if (node->type != YAML_MAPPING_NODE)
        return FAIL(r, node, TARGET_VALUE, "%s: expected a mapping of figures, found %s", key, kind_of(node));
    for (size_t i = 0; i < COST_COUNT; i++)
        names[i] = (struct choice){cost_keys[i].key, (int)i};
    for (const yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top; p++) {
        const yaml_node_t *name = node_at(r, p->key), *value = node_at(r, p->value);
        int i = 0;
        LATHE_TRY(choose(r, key, name, names, COST_COUNT, &i));
        if (seen[i])
            return FAIL(r, name, TARGET_KEY, "%s: '%s' is written twice", key, cost_keys[i].key);
        seen[i] = true;
        double *into = (double *)(void *)((char *)&r->target->cost + cost_keys[i].at);
        LATHE_TRY(real(r, cost_keys[i].key, value, into));
        if (*into > cost_keys[i].most)
            return FAIL(r, value, TARGET_VALUE, "%s: at most %g, found %g", cost_keys[i].key, cost_keys[i].most, *into);
    }
    r->target->cost_from[0] = 0;
    return LATHE_OK;
}

static enum lathe_status set_extends(const struct reader *r, const char *key, const yaml_node_t *node) {
    const char *text = "";
    LATHE_TRY(word(r, key, node, 4000, &text));
    unsigned depth = 0;
    for (const struct lathe_target_chain *c = r->chain; c; c = c->up)
        depth++;
    if (depth > 16)
        return FAIL(r, node, TARGET_EXTENDS, "extends: more than 16 files deep");
    return lathe_target_resolve(text, r->file, line_of(node), r->chain, r->target, r->diag);
}

static const struct {
    const char *key;
    enum lathe_status (*set)(const struct reader *, const char *, const yaml_node_t *);
} keys[] = {
    {"extends", set_extends}, /* first: the others change what it brings */
    {"name", set_name},
    {"doc", set_doc},
    {"arch", set_arch},
    {"features", set_features},
    {"vector_bytes", set_vector},
    {"caches", set_caches},
    {"precisions", set_precisions},
    {"int8_scheme", set_int8},
    {"shapes", set_shapes},
    {"buckets", set_buckets},
    {"max_batch", set_max_batch},
    {"max_seq", set_max_seq},
    {"cores", set_cores},
    {"placement", set_placement},
    {"core_memory", set_core_memory},
    {"cast", set_cast},
    {"operators", set_operators},
    {"clock_ghz", set_ghz},
    {"memory_gbps", set_memory},
    {"cost", set_cost},
};
#define KEY_COUNT (sizeof keys / sizeof *keys)

static enum lathe_status unknown_key(const struct reader *r, const yaml_node_t *node, const char *text) {
    char known[512] = "";
    for (size_t i = 0; i < KEY_COUNT; i++) {
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", keys[i].key);
    }
    return FAIL(r, node, TARGET_KEY, "unknown key '%s' (known: %s)", text, known);
}

static enum lathe_status consistent(const struct reader *r, const yaml_node_t *root) {
    const struct lathe_target *t = r->target;
    if (t->features && strcmp(t->arch, "x86_64"))
        return FAIL(r, root, TARGET_VALUE, "features: instruction sets need arch: x86_64, found arch: %s", t->arch);
    if (t->bucket_count && t->shapes != LATHE_SHAPES_STATIC)
        return FAIL(r, root, TARGET_VALUE, "buckets: they need shapes: static, found shapes: bounded");
    return LATHE_OK;
}

static enum lathe_status read_root(const struct reader *r) {
    yaml_node_t *root = yaml_document_get_root_node(r->document);
    if (!root)
        return lathe_fail(r->diag, LATHE_MSG_TARGET_FILE, "%s:1: the file is empty", r->file);
    if (root->type != YAML_MAPPING_NODE)
        return FAIL(r, root, TARGET_FILE, "expected a mapping of keys, found %s", kind_of(root));
    const yaml_node_t *values[KEY_COUNT] = {NULL};
    for (const yaml_node_pair_t *p = root->data.mapping.pairs.start; p < root->data.mapping.pairs.top; p++) {
        const yaml_node_t *name = node_at(r, p->key);
        const char *text = "";
        size_t i = 0;
        LATHE_TRY(scalar(r, "key", name, &text));
        while (i < KEY_COUNT && strcmp(keys[i].key, text))
            i++;
        if (i == KEY_COUNT)
            return unknown_key(r, name, text);
        if (values[i])
            return FAIL(r, name, TARGET_KEY, "'%s' is written twice", text);
        values[i] = node_at(r, p->value);
    }
    for (size_t i = 0; i < KEY_COUNT; i++)
        if (values[i])
            LATHE_TRY(keys[i].set(r, keys[i].key, values[i]));
        else if (!strcmp(keys[i].key, "name"))
            return FAIL(r, root, TARGET_KEY, "the key 'name' is missing");
    return consistent(r, root);
}

static enum lathe_status syntax_error(const struct reader *r, const yaml_parser_t *parser, const char *text,
                                      size_t size) {
    if (parser->error == YAML_MEMORY_ERROR)
        return lathe_fail(r->diag, LATHE_MSG_NO_MEMORY, "%s: no memory to parse it", r->file);
    size_t line = parser->problem_mark.line + 1;
    if (parser->error == YAML_READER_ERROR) { /* bytes that are no text: only their offset is known */
        line = 1;
        for (size_t i = 0; i < size && i < parser->problem_offset; i++)
            line += text[i] == '\n';
    }
    return lathe_fail(r->diag, LATHE_MSG_TARGET_FILE, "%s:%zu: not valid YAML: %s", r->file, line,
                      parser->problem ? parser->problem : "cannot be parsed");
}

enum lathe_status lathe_target_parse(const char *shown, const char *text, size_t size,
                                     const struct lathe_target_chain *chain, struct lathe_target *out,
                                     struct lathe_diag *diag) {
    yaml_parser_t parser;
    yaml_document_t document, more;
    struct reader r = {shown, &document, chain, out, diag};
    if (!yaml_parser_initialize(&parser))
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: no memory to parse it", shown);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, size);
    enum lathe_status status;
    if (!yaml_parser_load(&parser, &document)) {
        status = syntax_error(&r, &parser, text, size);
    } else {
        status = read_root(&r);
        if (status == LATHE_OK) {
            if (!yaml_parser_load(&parser, &more)) {
                status = syntax_error(&r, &parser, text, size);
            } else {
                const yaml_node_t *second = yaml_document_get_root_node(&more);
                if (second)
                    status = FAIL(&r, second, TARGET_FILE, "a target file holds one document, found another");
                yaml_document_delete(&more);
            }
        }
        yaml_document_delete(&document);
    }
    yaml_parser_delete(&parser);
    return status;
}
