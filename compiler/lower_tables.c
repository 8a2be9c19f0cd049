/* Growing tables and string blocks of a plan, and the plan that they make. */
#include "lower.h"
#include "plan.h"

#include <stdlib.h>
#include <string.h>

uint32_t lathe_table_add(struct lathe_table *t, const void *from, uint32_t n) {
    if (n > UINT32_MAX - 1 - t->count)
        return UINT32_MAX;
    if (t->count + n > t->capacity || !t->data) {
        uint64_t want = (uint64_t)t->capacity * 2;
        if (want < (uint64_t)t->count + n + 16)
            want = (uint64_t)t->count + n + 16;
        if (want > UINT32_MAX)
            want = UINT32_MAX;
        size_t bytes;
        if (!lathe_mul_size((size_t)want, t->each, &bytes))
            return UINT32_MAX;
        void *more = realloc(t->data, bytes);
        if (!more)
            return UINT32_MAX;
        t->data = more;
        t->capacity = (uint32_t)want;
    }
    char *at = (char *)t->data + (size_t)t->count * t->each;
    if (from && n)
        memcpy(at, from, (size_t)n * t->each);
    else
        memset(at, 0, (size_t)n * t->each);
    t->count += n;
    return t->count - n;
}

void lathe_table_free(struct lathe_table *t) {
    free(t->data);
    t->data = NULL;
    t->count = t->capacity = 0;
}

static uint32_t hash_text(const char *text) {
    uint32_t h = 2166136261u;
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 16777619u;
    return h;
}

static bool grow_slots(struct lathe_strings *s) {
    uint32_t count = s->slot_count ? s->slot_count * 2 : 256;
    uint32_t *slots = calloc(count, sizeof *slots);
    if (!slots)
        return false;
    for (uint32_t i = 0; i < s->slot_count; i++) {
        if (!s->slots[i])
            continue;
        uint32_t at = hash_text((const char *)s->bytes.data + (s->slots[i] - 1)) & (count - 1);
        while (slots[at])
            at = (at + 1) & (count - 1);
        slots[at] = s->slots[i];
    }
    free(s->slots);
    s->slots = slots;
    s->slot_count = count;
    return true;
}

uint32_t lathe_strings_add(struct lathe_strings *s, const char *text) {
    s->bytes.each = 1;
    if (s->bytes.count == 0 && lathe_table_add(&s->bytes, "", 1) == UINT32_MAX)
        s->failed = true;
    if (!text || !*text || s->failed)
        return 0;
    if (s->used * 2 >= s->slot_count && !grow_slots(s)) {
        s->failed = true;
        return 0;
    }
    uint32_t at = hash_text(text) & (s->slot_count - 1);
    for (; s->slots[at]; at = (at + 1) & (s->slot_count - 1))
        if (strcmp((const char *)s->bytes.data + (s->slots[at] - 1), text) == 0)
            return s->slots[at] - 1;
    size_t n = strlen(text) + 1;
    uint32_t where = n < UINT32_MAX / 2 ? lathe_table_add(&s->bytes, text, (uint32_t)n) : UINT32_MAX;
    if (where == UINT32_MAX) {
        s->failed = true;
        return 0;
    }
    s->slots[at] = where + 1;
    s->used++;
    return where;
}

void lathe_strings_finish(struct lathe_strings *s) {
    lathe_strings_add(s, NULL);
    uint32_t pad = (8 - s->bytes.count % 8) % 8;
    if (lathe_table_add(&s->bytes, NULL, pad) == UINT32_MAX)
        s->failed = true;
}

void lathe_strings_free(struct lathe_strings *s) {
    lathe_table_free(&s->bytes);
    free(s->slots);
    *s = (struct lathe_strings){0};
}

void lathe_lowered_plan(const struct lathe_lowered *l, struct lathe_fmt_plan *head, struct lathe_plan *out) {
    *head = (struct lathe_fmt_plan){.symbol_count = l->symbols.count,
                                    .dim_count = l->dims.count,
                                    .value_count = l->values.count,
                                    .step_count = l->steps.count,
                                    .operand_count = l->operands.count,
                                    .attr_count = l->attrs.count,
                                    .int_count = l->ints.count,
                                    .string_bytes = l->strings.bytes.count,
                                    .prologue_steps = l->prologue_steps,
                                    .arena_bytes = l->arena_bytes,
                                    .alive_bytes = l->alive_bytes};
    *out = (struct lathe_plan){.head = head,
                               .symbols = l->symbols.data,
                               .dims = l->dims.data,
                               .values = l->values.data,
                               .steps = l->steps.data,
                               .attrs = l->attrs.data,
                               .ints = l->ints.data,
                               .operands = l->operands.data,
                               .strings = l->strings.bytes.data};
}
