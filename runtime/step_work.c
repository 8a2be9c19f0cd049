/* What a step costs, roughly: for the decision whether threads are worth waking, and for stages of artifacts whose
 * steps tell no cost. */
#include "partition_steps.h"

static double dim_at(const struct lathe_fmt_value *v, unsigned axis, const int64_t *dims) {
    int64_t d = dims[v->dims[axis]];
    return d > 0 ? (double)d : 0;
}

static double elements_of(const struct lathe_plan *p, uint32_t value, const int64_t *dims) {
    if (value == LATHE_FORMAT_ABSENT)
        return 0;
    const struct lathe_fmt_value *v = &p->values[value];
    double n = 1;
    for (unsigned i = 0; i < v->rank; i++)
        n *= dim_at(v, i, dims);
    return n;
}

static double bytes_of(const struct lathe_plan *p, uint32_t value, const int64_t *dims) {
    if (value == LATHE_FORMAT_ABSENT)
        return 0;
    return elements_of(p, value, dims) * (double)lathe_dtype_bytes((enum lathe_dtype)p->values[value].dtype);
}

/* The axis `back` from the last one, 1 when there is none. */
static double axis_of(const struct lathe_plan *p, uint32_t value, unsigned back, const int64_t *dims) {
    const struct lathe_fmt_value *v = &p->values[value];
    return v->rank >= back ? dim_at(v, v->rank - back, dims) : 1;
}

/* What a column of a linear layer multiplies. */
static double inner_of(const struct lathe_plan *p, const struct lathe_fmt_step *f, const int64_t *dims) {
    double k = axis_of(p, p->operands[f->first_operand], 1, dims);
    for (uint32_t i = 0; i < f->n_attrs; i++) {
        const struct lathe_fmt_attr *a = &p->attrs[f->first_attr + i];
        if (a->key == LATHE_ATTR_GROUP && a->type == LATHE_ATTR_INT && a->i > 1 && f->op != LATHE_OP_CONV)
            k /= (double)a->i;
    }
    return k;
}

/* A byte from the second cache or beyond counts as two multiply-adds. */
double lathe_step_work(const struct lathe_plan *p, uint32_t step, const int64_t *dims) {
    const struct lathe_fmt_step *f = &p->steps[step];
    const uint32_t *in = p->operands + f->first_operand, *out = in + f->n_in;
    double moved = 0, written = 0, elements = f->n_out ? elements_of(p, out[0], dims) : 0;
    for (unsigned i = 0; i < f->n_in; i++)
        moved += bytes_of(p, in[i], dims);
    for (unsigned i = 0; i < f->n_out; i++)
        written += bytes_of(p, out[i], dims);
    switch (f->op) {
    case LATHE_OP_LINEAR_Q8:
    case LATHE_OP_LINEAR_BF16:
        return elements * inner_of(p, f, dims) / 3 + 2 * (moved + written);
    case LATHE_OP_LINEAR:
    case LATHE_OP_MATMUL:
    case LATHE_OP_GEMM:
    case LATHE_OP_CONV:
    case LATHE_OP_MATMUL_INTEGER:
    case LATHE_OP_MATMUL_NBITS:
        return elements * inner_of(p, f, dims) + 2 * (moved + written);
    case LATHE_OP_ATTENTION:
    case LATHE_OP_ATTENTION_ROWS:
    case LATHE_OP_SDPA: {
        /* each row of the output sees at most all rows of keys, twice */
        uint32_t keys = f->n_in > 1 && in[1] != LATHE_FORMAT_ABSENT && p->values[in[1]].rank >= 2 ? in[1] : in[0];
        return elements * 2 * axis_of(p, keys, 2, dims) + 2 * (moved + written);
    }
    case LATHE_OP_GATHER: /* the table is not read whole */
    case LATHE_OP_EMBEDDING:
    case LATHE_OP_EMBEDDING_Q8:
        return 4 * written;
    default:
        return 2 * (moved + written);
    }
}
