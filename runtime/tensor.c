/* Element types and attribute look-up. */
#include "tensor.h"

static const struct {
    const char *name;
    unsigned bytes;
} dtypes[] = {
#define DTYPE(number, name, text, bytes, numpy) [number] = {text, bytes},
#include "dtypes.def"
#undef DTYPE
};

static bool known(enum lathe_dtype dtype) {
    return (unsigned)dtype < sizeof dtypes / sizeof *dtypes && dtypes[dtype].name;
}

size_t lathe_dtype_bytes(enum lathe_dtype dtype) {
    return known(dtype) ? dtypes[dtype].bytes : 0;
}

const char *lathe_dtype_name(enum lathe_dtype dtype) {
    return known(dtype) ? dtypes[dtype].name : "?";
}

bool lathe_dtype_is_float(enum lathe_dtype dtype) {
    return dtype == LATHE_F32 || dtype == LATHE_F16 || dtype == LATHE_BF16 || dtype == LATHE_F64;
}

bool lathe_dtype_is_integer(enum lathe_dtype dtype) {
    return known(dtype) && !lathe_dtype_is_float(dtype) && dtype != LATHE_BOOL;
}

const struct lathe_attr *lathe_attr_find(const struct lathe_attrs *attrs, enum lathe_attr_key key) {
    for (uint32_t i = 0; i < attrs->count; i++)
        if (attrs->list[i].key == key)
            return &attrs->list[i];
    return NULL;
}

int64_t lathe_attr_int(const struct lathe_attrs *attrs, enum lathe_attr_key key, int64_t absent) {
    const struct lathe_attr *a = lathe_attr_find(attrs, key);
    return !a                                            ? absent
           : a->type == LATHE_ATTR_INT                   ? a->i
           : a->type == LATHE_ATTR_INTS && a->count == 1 ? a->ints[0]
                                                         : absent;
}

double lathe_attr_float(const struct lathe_attrs *attrs, enum lathe_attr_key key, double absent) {
    const struct lathe_attr *a = lathe_attr_find(attrs, key);
    return !a ? absent : a->type == LATHE_ATTR_FLOAT ? a->f : a->type == LATHE_ATTR_INT ? (double)a->i : absent;
}

const int64_t *lathe_attr_ints(const struct lathe_attrs *attrs, enum lathe_attr_key key, uint32_t *count) {
    const struct lathe_attr *a = lathe_attr_find(attrs, key);
    if (!a || (a->type != LATHE_ATTR_INTS && a->type != LATHE_ATTR_DIMS)) {
        *count = 0;
        return NULL;
    }
    *count = a->count;
    return a->ints;
}

void lathe_team_split(const struct lathe_team *team, int64_t total, int64_t grain, int64_t *begin, int64_t *end) {
    if (grain < 1)
        grain = 1;
    int64_t units = total / grain + (total % grain != 0);
    int64_t each = units / team->count, more = units % team->count;
    int64_t first = each * team->index + (team->index < more ? team->index : more);
    int64_t last = first + each + (team->index < more);
    *begin = first * grain < total ? first * grain : total;
    *end = last * grain < total ? last * grain : total;
}
