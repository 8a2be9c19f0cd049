/* row_map: which token rows of a padded batch are kept, and where (runtime/row_map.h). Runs on one thread: it touches
 * B * S small numbers once a run. */
#include "row_map.h"
#include "ops_enums.h"
#include "tensor.h"

#include <string.h>

enum lathe_status lathe_run_row_map(const struct lathe_op_call *call);

/* True when element i of an integer or bool tensor is not 0. */
static bool is_set(const struct lathe_tensor *t, int64_t i) {
    switch (lathe_dtype_bytes(t->dtype)) {
    case 1:
        return ((const uint8_t *)t->data)[i] != 0;
    case 2:
        return ((const uint16_t *)t->data)[i] != 0;
    case 4:
        return t->dtype == LATHE_F32 ? ((const float *)t->data)[i] != 0.0f : ((const uint32_t *)t->data)[i] != 0;
    default:
        return ((const uint64_t *)t->data)[i] != 0;
    }
}

/* The tokens that stay although they may be masked. */
struct stays {
    const int64_t *positions; /* the same in all sequences; negative from the end */
    uint32_t position_count;
    const struct lathe_op_call *call; /* operands from 1 on: one position a sequence [B], or a mask [B,S] */
};

static int64_t index_at(const struct lathe_tensor *t, int64_t i) {
    return t->dtype == LATHE_I32 ? ((const int32_t *)t->data)[i] : ((const int64_t *)t->data)[i];
}

static int64_t from_end(int64_t p, int64_t length) {
    return p < 0 ? p + length : p;
}

static bool stays(const struct stays *kept, int64_t b, int64_t p, int64_t length) {
    for (uint32_t i = 0; i < kept->position_count; i++)
        if (from_end(kept->positions[i], length) == p)
            return true;
    for (uint32_t i = 1; i < kept->call->n_in; i++) {
        const struct lathe_tensor *t = kept->call->in[i];
        if (t && (t->rank == 2 ? is_set(t, b * length + p) : from_end(index_at(t, b), length) == p))
            return true;
    }
    return false;
}

/* True when a token that stays is masked in sequence b. */
static bool keeps_masked(const struct lathe_tensor *keys, int64_t b, int64_t length, const struct stays *kept) {
    for (int64_t p = 0; p < length; p++)
        if (!is_set(keys, b * length + p) && stays(kept, b, p, length))
            return true;
    return false;
}

/* keys [B,S] -> map i32 [4 B + 2 B S]. `values`: positions that stay although they are masked (negative ones count from
 * the end), as do those in the operands behind the keys, integers [B] or masks [B,S]; `masked_row`: a sequence without
 * keys keeps all its rows unless its rule gives zeros anyway; `causal`: the same for a sequence with a masked position
 * that stays, whose query may have no key before it. */
enum lathe_status lathe_run_row_map(const struct lathe_op_call *call) {
    if (call->team.index != 0)
        return LATHE_OK;
    const struct lathe_tensor *keys = call->in[0];
    int64_t batch = keys->dims[0], length = keys->rank > 1 ? keys->dims[1] : 1;
    if (lathe_tensor_count(keys) != batch * length || batch * length > INT32_MAX ||
        lathe_tensor_count(call->out[0]) != 4 * batch + 2 * batch * length)
        return lathe_fail(call->diag, LATHE_MSG_RUN_SHAPE, "row_map: keys of %lld x %lld", (long long)batch,
                          (long long)length);
    struct stays kept = {.call = call};
    kept.positions = lathe_attr_ints(&call->attrs, LATHE_ATTR_VALUES, &kept.position_count);
    bool some_stay = kept.position_count > 0 || call->n_in > 1;
    for (unsigned i = 1; i < call->n_in; i++)
        if (call->in[i] && call->in[i]->rank == 2
                ? lathe_tensor_count(call->in[i]) != batch * length
                : call->in[i] && (lathe_tensor_count(call->in[i]) != batch ||
                                  (call->in[i]->dtype != LATHE_I32 && call->in[i]->dtype != LATHE_I64)))
            return lathe_fail(call->diag, LATHE_MSG_RUN_SHAPE, "row_map: operand %u is no index for %lld sequences", i,
                              (long long)batch);
    int64_t rule = lathe_attr_int(&call->attrs, LATHE_ATTR_MASKED_ROW, LATHE_MASKED_UNIFORM);
    bool empty_stays = rule == LATHE_MASKED_UNIFORM || rule == LATHE_MASKED_SOFTMAX;
    bool some_lose_keys = lathe_attr_int(&call->attrs, LATHE_ATTR_CAUSAL, 0) != 0;
    struct lathe_row_sequence *sequences = call->out[0]->data;
    struct lathe_row_place *places = (struct lathe_row_place *)((int32_t *)call->out[0]->data + 4 * batch);
    int32_t next = 0;
    for (int64_t b = 0; b < batch; b++) {
        struct lathe_row_sequence *s = &sequences[b];
        *s = (struct lathe_row_sequence){.start = next, .positions = (int32_t)length};
        for (int64_t p = 0; p < length; p++)
            if (is_set(keys, b * length + p))
                places[next++] = (struct lathe_row_place){(int32_t)b, (int32_t)p};
        s->keys = next - s->start;
        bool all = empty_stays && (s->keys == 0 || (some_lose_keys && keeps_masked(keys, b, length, &kept)));
        if (all || (some_stay && s->keys < length))
            for (int64_t p = 0; p < length; p++)
                if (!is_set(keys, b * length + p) && (all || stays(&kept, b, p, length)))
                    places[next++] = (struct lathe_row_place){(int32_t)b, (int32_t)p};
        s->rows = next - s->start;
    }
    /* entries past the kept rows are never read, but the map has the same bytes every time */
    memset(places + next, 0, (size_t)(batch * length - next) * sizeof *places);
    return LATHE_OK;
}
