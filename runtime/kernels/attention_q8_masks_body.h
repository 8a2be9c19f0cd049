/* What masks and biases do to the scores of attention_q8; part of attention_q8_body.h, whose types it takes. */
#ifndef LATHE_ATTENTION_Q8_MASKS_BODY_H
#define LATHE_ATTENTION_Q8_MASKS_BODY_H

/* What the mask operands add to the scores of VN keys from j on, -inf where they forbid: [key][query]. */
static __attribute__((noinline)) void aq8_turn(const struct aq8 *s, size_t q0, size_t count, size_t j, float *out) {
    const struct lathe_attention_f32_args *args = s->args;
    vf x[VN];
    size_t n = s->keys - j < VN ? s->keys - j : VN;
    LATHE_NO_UNROLL
    for (size_t r = 0; r < VN; r++) {
        size_t i = q0 + (r < count ? r : count - 1);
        const float *bias = args->bias ? args->bias + i * args->ldb : NULL;
        const uint8_t *allow = args->allow ? args->allow + i * args->ld_allow : NULL;
        float line[VN];
        uint8_t bytes[VN] = {0};
        if (s->index) {
            LATHE_NO_UNROLL
            for (size_t u = 0; u < n; u++) {
                line[u] = bias ? bias[s->index[j + u]] : 0;
                bytes[u] = !allow || allow[s->index[j + u]];
            }
            bias = bias ? line : NULL;
            allow = allow ? bytes : NULL;
        } else {
            bias = bias ? bias + j : NULL;
            allow = allow ? allow + j : NULL;
        }
        vf v = v_set1(0.0f);
        if (bias) {
            v = v_load_n(bias, n);
            __builtin_prefetch(bias + 64, 0, 3); /* of rows this far apart no hardware does */
        }
        if (allow) {
            if (n < VN) /* nothing is read behind the row */
                allow = memcpy(bytes, allow, n);
            v = v_select(v_bytes_set(allow), v, v_set1(-__builtin_inff()));
        }
        v_store(out + r * VN, v);
    }
    LATHE_UNROLL
    for (size_t r = 0; r < VN; r++)
        x[r] = v_load(out + r * VN);
    v_transpose(x);
    LATHE_UNROLL
    for (size_t r = 0; r < VN; r++)
        v_store(out + r * VN, x[r]);
}

/* The item's scores for the queries of vector g: none where a mask says so, with a bias all of other units. Returns the
 * largest of them and of those before. */
static __attribute__((noinline)) vi aq8_mask(const struct aq8 *s, const struct aq8_item *item, size_t g) {
    const struct lathe_attention_f32_args *args = s->args;
    struct aq8_lanes *lanes = &item->lanes[g];
    size_t q0 = item->q0 + g * VN, count = aq8_count(item->count, g);
    float bounds[2][VN], added[VN * VN];
    vf none = v_set1(-__builtin_inff());
    vi top = lanes->top;
    LATHE_NO_UNROLL
    for (size_t r = 0; r < VN; r++) {
        size_t i = q0 + (r < count ? r : count - 1);
        bounds[0][r] = args->first ? (float)args->first[i] : 0.0f;
        bounds[1][r] = args->last ? (float)args->last[i] : (float)args->nk;
    }
    vf low = v_load(bounds[0]), high = v_load(bounds[1]);
    LATHE_NO_UNROLL
    for (size_t j = 0; j < item->n; j++) {
        int32_t *at = s->strip + (j * item->vectors + g) * VN;
        float *add = added + j % VN * VN;
        vi score = vi_load(at);
        vf x = v_set1(0.0f), key = v_set1((float)aq8_row(s, item->from + j));
        if (add == added && (args->bias || args->allow))
            aq8_turn(s, q0, count, item->from + j, added);
        if (args->bias) {
            x = v_from_i32(score) * lanes->a + v_load(add) * v_set1(LATHE_Q8_LOG2_E);
            vf z = v_max(x * v_set1((float)(1 << (s->steep + LATHE_Q8_BIAS))), v_set1(-LATHE_Q8_FARTHEST));
            score = vi_round(v_min(z, v_set1(LATHE_Q8_FARTHEST)));
        } else if (args->allow) {
            x = v_load(add);
        }
        x = v_select(v_lt(key, low), none, v_select(v_lt(key, high), x, none));
        lanes->odd = v_select(v_lt(x, v_set1(__builtin_inff())), lanes->odd, v_set1(__builtin_nanf("")));
        score = vi_bits(v_select(v_lt(none, x), vi_as_float(score), vi_as_float(vi_set1(LATHE_Q8_NONE))));
        vi_store(at, score);
        top = vi_max(score, top);
    }
    return top;
}

/* The same where all keys up to the last take part, with a bias for each: VN x VN of it turned in registers. What is
 * not allowed, and what is behind the last key, becomes a bias of -inf. 3 layers of MPNet (12 heads of 64), 384 tokens,
 * 2 threads, Zen 5: with numbers taken one by one 5.4 ms in attention, by whole lines that are asked for beforehand
 * 2.3, turned in registers 1.9. */
static __attribute__((noinline)) vi aq8_bias(const struct aq8 *s, const struct aq8_item *item, size_t g) {
    const struct lathe_attention_f32_args *args = s->args;
    struct aq8_lanes *lanes = &item->lanes[g];
    const size_t q0 = item->q0 + g * VN, count = aq8_count(item->count, g), stride = item->vectors * VN;
    const float *bias[VN];
    float numbers[VN], added[VN * VN];
    LATHE_NO_UNROLL
    for (size_t r = 0; r < VN; r++) {
        bias[r] = args->bias + (q0 + (r < count ? r : count - 1)) * args->ldb + item->from;
        numbers[r] = (float)r;
    }
    const vf none = v_set1(-__builtin_inff()), inf = v_set1(__builtin_inff()), nan = v_set1(__builtin_nanf("")),
             unit = v_set1((float)(1 << (s->steep + LATHE_Q8_BIAS))), least = v_set1(-LATHE_Q8_FARTHEST),
             most = v_set1(LATHE_Q8_FARTHEST), masked = vi_as_float(vi_set1(LATHE_Q8_NONE)), a = lanes->a;
    vf odd = lanes->odd;
    vi top = lanes->top;
    int32_t *at = s->strip + g * VN;
    for (size_t j = 0; j < item->n; j += VN, at += VN * stride) {
        const size_t n = item->n - j < VN ? item->n - j : VN;
        vf x[VN];
        if (n == VN) {
            LATHE_UNROLL
            for (size_t r = 0; r < VN; r++) {
                x[r] = v_load(bias[r] + j);
                __builtin_prefetch(bias[r] + j + 64, 0, 3); /* of rows this far apart no hardware does */
            }
        } else {
            const vm some = v_lt(v_load(numbers), v_set1((float)n));
            LATHE_UNROLL
            for (size_t r = 0; r < VN; r++)
                x[r] = v_select(some, v_load_n(bias[r] + j, n), none);
        }
        if (args->allow)
            LATHE_NO_UNROLL
        for (size_t r = 0; r < VN; r++) {
            const uint8_t *allow = args->allow + (q0 + (r < count ? r : count - 1)) * args->ld_allow + item->from + j;
            uint8_t bytes[VN] = {0};
            if (n < VN) /* nothing is read behind the row */
                allow = memcpy(bytes, allow, n);
            x[r] = v_select(v_bytes_set(allow), x[r], none);
        }
        v_transpose(x);
        LATHE_UNROLL
        for (size_t u = 0; u < VN; u++)
            v_store(added + u * VN, x[u] * v_set1(LATHE_Q8_LOG2_E));
        LATHE_NO_UNROLL
        for (size_t u = 0; u < VN; u++) {
            vf y = v_from_i32(vi_load(at + u * stride)) * a + v_load(added + u * VN);
            vi score = vi_round(v_min(v_max(y * unit, least), most));
            odd = v_select(v_lt(y, inf), odd, nan);
            score = vi_bits(v_select(v_lt(none, y), vi_as_float(score), masked));
            vi_store(at + u * stride, score);
            top = vi_max(score, top);
        }
    }
    lanes->odd = odd;
    return top;
}

#endif
