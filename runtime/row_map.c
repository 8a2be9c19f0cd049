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

/* True when one of the positions that stay is masked in sequence b. */
static bool keeps_masked(const struct lathe_tensor *keys, int64_t b, int64_t length, const int64_t *kept,
                         uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        int64_t p = kept[i] < 0 ? kept[i] + length : kept[i];
        if (p >= 0 && p < length && !is_set(keys, b * length + p))
            return true;
    }
    return false;
}

/* keys [B,S] -> map i32 [4 B + 2 B S]. `values`: positions that stay although they are masked (negative ones count from
 * the end); `masked_row`: a sequence without keys keeps all its rows unless its rule gives zeros anyway; `causal`: the
 * same for a sequence with a masked position that stays, whose query may have no key before it. */
enum lathe_status lathe_run_row_map(const struct lathe_op_call *call) {
    if (call->team.index != 0)
        return LATHE_OK;
    const struct lathe_tensor *keys = call->in[0];
    int64_t batch = keys->dims[0], length = keys->rank > 1 ? keys->dims[1] : 1;
    if (lathe_tensor_count(keys) != batch * length || batch * length > INT32_MAX ||
        lathe_tensor_count(call->out[0]) != 4 * batch + 2 * batch * length)
        return lathe_fail(call->diag, LATHE_MSG_RUN_SHAPE, "row_map: keys of %lld x %lld", (long long)batch,
                          (long long)length);
    uint32_t kept_count;
    const int64_t *kept = lathe_attr_ints(&call->attrs, LATHE_ATTR_VALUES, &kept_count);
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
        bool all = empty_stays && (s->keys == 0 || (some_lose_keys && keeps_masked(keys, b, length, kept, kept_count)));
        if (all || (kept_count > 0 && s->keys < length)) {
            for (int64_t p = 0; p < length; p++) {
                bool stays = all;
                for (uint32_t i = 0; i < kept_count && !stays; i++)
                    stays = (kept[i] < 0 ? kept[i] + length : kept[i]) == p;
                if (stays && !is_set(keys, b * length + p))
                    places[next++] = (struct lathe_row_place){(int32_t)b, (int32_t)p};
            }
        }
        s->rows = next - s->start;
    }
    /* entries past the kept rows are never read, but the map has the same bytes every time */
    memset(places + next, 0, (size_t)(batch * length - next) * sizeof *places);
    return LATHE_OK;
}
