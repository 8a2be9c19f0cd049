/* Keys and values of a head in 8 bits, in the words that products take; part of attention_q8_body.h, whose types it
 * takes. */
#ifndef LATHE_ATTENTION_Q8_PACK_BODY_H
#define LATHE_ATTENTION_Q8_PACK_BODY_H

/* Keys or values. */
struct aq8_side {
    const float *x;
    size_t ld, n;                         /* columns */
    float levels, *low, *scale, *inverse; /* of each column, padded to VN */
};

/* Range, scale and reciprocal of each column over the keys: of both sides together, as the rows of both often lie in
 * one page. */
static __attribute__((noinline)) void aq8_columns(const struct aq8 *s, const struct aq8_side side[2]) {
    for (size_t c = 0; c < side[0].n || c < side[1].n; c += VN) {
        vf lo[4], hi[4], bad[4];
        size_t at[2], n[2]; /* columns from `at` on; those of a side that has no more once again */
        LATHE_UNROLL
        for (size_t w = 0; w < 2; w++) {
            at[w] = c < side[w].n ? c : 0;
            n[w] = side[w].n - at[w] < VN ? side[w].n - at[w] : VN;
        }
        LATHE_UNROLL
        for (size_t u = 0; u < 4; u++) {
            lo[u] = v_set1(__builtin_inff());
            hi[u] = v_set1(-__builtin_inff());
            bad[u] = v_set1(0.0f);
        }
        for (size_t j = 0; j < s->keys; j += 2) {
            LATHE_UNROLL
            for (size_t u = 0; u < 4; u++) {
                const struct aq8_side *from = &side[u & 1];
                size_t row = aq8_row(s, j + u / 2 < s->keys ? j + u / 2 : j);
                vf v = v_load_n(from->x + row * from->ld + at[u & 1], n[u & 1]);
                lo[u] = v_min(v, lo[u]);
                hi[u] = v_max(v, hi[u]);
                bad[u] = v_fma(v, v_set1(0.0f), bad[u]);
            }
        }
        LATHE_UNROLL
        for (size_t w = 0; w < 2; w++) {
            vf least = v_min(lo[w], lo[w + 2]), most = v_max(hi[w], hi[w + 2]), by;
            v_store(side[w].scale + at[w], attention_q8_column(least, most, bad[w] + bad[w + 2], side[w].levels, &by));
            v_store(side[w].low + at[w], least);
            v_store(side[w].inverse + at[w], by);
        }
    }
}

/* Behind the last key come copies of it: they do not change which score is the largest. */
static void aq8_pack_keys(const struct aq8 *s) {
    const size_t keys = s->keys, steps = s->steps, n = s->args->d, ld = s->args->ldk;
    const int32_t *index = s->index;
    for (size_t c = 0; c < n; c += VN) {
        const float *x = s->args->k + c;
        const size_t left = n - c < VN ? n - c : VN;
        int32_t *out = s->k + c / AQ8_CPD;
        vf low = v_load(s->k_low + c), inverse = v_load(s->k_inverse + c);
        for (size_t j = 0; j < keys; j++, out += steps)
            aq8_store_key(out, (v_load_n(x + (index ? (size_t)index[j] : j) * ld, left) - low) * inverse);
    }
    const size_t padding = steps - aq8_padded(n, VN) / AQ8_CPD;
    for (size_t j = 0; aq8_by(s) && padding && j < keys; j++)
        memset(s->k + (j + 1) * steps - padding, 0, padding * sizeof *s->k);
    for (size_t j = keys; j < aq8_padded(keys, AQ8_GROUP); j++)
        memcpy(s->k + j * steps, s->k + (keys - 1) * steps, steps * sizeof *s->k);
}

/* Values of 16 words as they are for vectors, [word][VN columns], to [column][16 words]. */
static inline void aq8_turn_values(const int32_t *words, int32_t *out) {
#if AQ8_BY
    vf x[VN];
    LATHE_UNROLL
    for (size_t i = 0; i < VN; i++)
        x[i] = vi_as_float(vi_load(words + i * VN));
    v_transpose(x);
    LATHE_UNROLL
    for (size_t i = 0; i < VN; i++)
        vi_store(out + i * VN, vi_bits(x[i]));
#else
    (void)words;
    (void)out;
#endif
}

/* Behind the last key come zeros, and weights of zero. */
static void aq8_pack_values(const struct aq8 *s) {
    const size_t keys = s->keys, columns = s->columns, n = s->args->dv, ld = s->args->ldv;
    const int32_t *index = s->index;
    for (size_t c = 0; c < columns; c += VN) {
        const float *x = s->args->v + c;
        const size_t left = n - c < VN ? n - c : VN;
        int32_t *out = s->v + c, turned[16 * VN];
        vf low = v_load(s->v_low + c), inverse = v_load(s->v_inverse + c);
        vi sum = vi_set1(0);
        for (size_t j = 0; j < aq8_padded(keys, aq8_by(s) ? LATHE_Q8_GROUP : 4); j += AQ8_CPD, out += columns) {
            vi word[AQ8_CPD];
            LATHE_UNROLL
            for (size_t u = 0; u < AQ8_CPD; u++) {
                word[u] = vi_set1(0);
                if (j + u < keys) {
                    size_t row = index ? (size_t)index[j + u] : j + u;
                    word[u] = vi_sub(vi_round((v_load_n(x + row * ld, left) - low) * inverse), vi_set1(128));
                }
            }
            vi joined = aq8_join(word);
            vi_store(aq8_by(s) ? turned + j % LATHE_Q8_GROUP / AQ8_CPD * VN : out, joined);
            if (aq8_by(s) && (j + AQ8_CPD) % LATHE_Q8_GROUP == 0)
                aq8_turn_values(turned, s->v + (j / LATHE_Q8_GROUP * columns + c) * 16);
            if (AQ8_CPD == 2)
                sum = aq8_dot_value(sum, joined, vi_set1(0x00010001));
        }
        vi_store(s->v_sum + c, sum);
    }
}

/* Asks for the first rows at once: they often lie in another core's cache, and what follows takes them in small turns.
 */
static inline void aq8_fetch(const float *x, size_t ldx, size_t columns, size_t rows) {
    for (size_t j = 0; j < rows && j < 32; j++)
        for (size_t c = 0; c < columns; c += 16)
            __builtin_prefetch(x + j * ldx + c, 0, 3);
}

static void aq8_pack_head(struct aq8 *s) {
    const struct lathe_attention_f32_args *args = s->args;
    aq8_fetch(args->k, args->ldk, args->d, args->nk);
    aq8_fetch(args->v, args->ldv, args->dv, args->nk);
    aq8_fetch(args->q, args->ldq, args->d, args->nq);
    aq8_columns(
        s, (struct aq8_side[2]){{args->k, args->ldk, args->d, LATHE_Q8_KEY, s->k_low, s->k_scale, s->k_inverse},
                                {args->v, args->ldv, args->dv, LATHE_Q8_VALUE, s->v_low, s->v_scale, s->v_inverse}});
    s->factor = 1.0f;
    for (size_t c = 0; c < args->d; c++)
        s->factor += s->k_scale[c] * 0.0f;
    for (size_t c = 0; c < s->columns; c += VN)
        v_store(s->v_middle + c, v_load(s->v_low + c) + v_load(s->v_scale + c) * v_set1(128.0f));
    aq8_pack_keys(s);
    aq8_pack_values(s);
}
#endif
