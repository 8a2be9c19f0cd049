/* Weight packings: sizes and the plain C packers that compiler and tests use. */
#include "kernel.h"

#include <string.h>

enum packing {
#define PACKING(number, name, text) PACKING_##name = number,
#include "packing.def"
#undef PACKING
};

static bool padded(size_t value, size_t to, size_t *out) {
    if (!lathe_add_size(value, to - 1, out))
        return false;
    *out = *out / to * to;
    return true;
}

size_t lathe_packed_bytes(unsigned packing, size_t k, size_t n) {
    size_t k_step = 1, element = 4, bytes;
    switch (packing) {
    case PACKING_ROWS:
        return lathe_mul_size(k, n, &bytes) && lathe_mul_size(bytes, 4, &bytes) ? bytes : 0;
    case PACKING_F32_N16:
        break;
    case PACKING_BF16_N16K2:
        k_step = 2;
        element = 2;
        break;
    case PACKING_S8_N16K4:
        k_step = 4;
        element = 1;
        break;
    case PACKING_S4_N16K8:
        return padded(k, 8, &k) && padded(n, 16, &n) && lathe_mul_size(k / 2, n, &bytes) ? bytes : 0;
    default:
        return 0;
    }
    if (!padded(k, k_step, &k) || !padded(n, 16, &n) || !lathe_mul_size(k, n, &bytes) ||
        !lathe_mul_size(bytes, element, &bytes))
        return 0;
    return bytes;
}

enum lathe_dtype lathe_packed_dtype(unsigned packing) {
    switch (packing) {
    case PACKING_F32_N16:
        return LATHE_F32;
    case PACKING_BF16_N16K2:
        return LATHE_BF16;
    case PACKING_S8_N16K4:
    case PACKING_S4_N16K8:
        return LATHE_I8;
    default:
        return LATHE_NO_DTYPE;
    }
}

void lathe_pack_f32_n16(const float *w, size_t k, size_t n, size_t ldw, bool transposed, size_t first_panel,
                        size_t last_panel, float *out) {
    for (size_t p = first_panel; p < last_panel; p++, out += k * 16) {
        size_t first = p * 16, cols = n - first < 16 ? n - first : 16;
        if (cols < 16)
            memset(out, 0, k * 16 * sizeof *out);
        if (!transposed) {
            for (size_t t = 0; t < k; t++)
                memcpy(out + t * 16, w + t * ldw + first, cols * sizeof *out);
            continue;
        }
        /* 16 steps of k at a time: a line of the source is used whole while it is in the first cache. */
        for (size_t t = 0; t < k; t += 16) {
            size_t steps = k - t < 16 ? k - t : 16;
            for (size_t j = 0; j < cols; j++) {
                const float *from = w + (first + j) * ldw + t;
                for (size_t i = 0; i < steps; i++)
                    out[(t + i) * 16 + j] = from[i];
            }
        }
    }
}

static uint16_t bf16_of(const void *w, enum lathe_dtype dtype, size_t at) {
    if (dtype == LATHE_BF16)
        return ((const uint16_t *)w)[at];
    return lathe_bf16_weight(((const float *)w)[at]);
}

void lathe_pack_bf16_n16k2(const void *w, enum lathe_dtype dtype, size_t k, size_t n, size_t ldw, bool transposed,
                           size_t first_panel, size_t last_panel, uint16_t *out) {
    size_t pairs = k / 2 + k % 2;
    for (size_t p = first_panel; p < last_panel; p++, out += pairs * 32) {
        size_t first = p * 16, cols = n - first < 16 ? n - first : 16;
        if (cols < 16 || k % 2)
            memset(out, 0, pairs * 32 * sizeof *out);
        if (!transposed) {
            for (size_t t = 0; t < k; t++)
                for (size_t j = 0; j < cols; j++)
                    out[t / 2 * 32 + j * 2 + t % 2] = bf16_of(w, dtype, t * ldw + first + j);
            continue;
        }
        for (size_t j = 0; j < cols; j++)
            for (size_t t = 0; t < k; t++)
                out[t / 2 * 32 + j * 2 + t % 2] = bf16_of(w, dtype, (first + j) * ldw + t);
    }
}

void lathe_pack_s8_n16k4(const int8_t *w, size_t k, size_t n, size_t ldw, bool transposed, size_t first_panel,
                         size_t last_panel, int8_t *out) {
    size_t groups = k / 4 + (k % 4 != 0);
    for (size_t p = first_panel; p < last_panel; p++, out += groups * 64) {
        size_t first = p * 16, cols = n - first < 16 ? n - first : 16;
        if (cols < 16 || k % 4)
            memset(out, 0, groups * 64);
        if (!transposed) {
            for (size_t t = 0; t < k; t++)
                for (size_t j = 0; j < cols; j++)
                    out[t / 4 * 64 + j * 4 + t % 4] = w[t * ldw + first + j];
            continue;
        }
        for (size_t g = 0; g < groups; g++) {
            size_t steps = k - g * 4 < 4 ? k - g * 4 : 4;
            for (size_t j = 0; j < cols; j++)
                memcpy(out + g * 64 + j * 4, w + (first + j) * ldw + g * 4, steps);
        }
    }
}

void lathe_pack_s4_n16k8(const int8_t *w, size_t k, size_t n, size_t ldw, bool transposed, size_t first_panel,
                         size_t last_panel, int8_t *out) {
    size_t groups = k / 8 + (k % 8 != 0);
    for (size_t p = first_panel; p < last_panel; p++, out += groups * 64) {
        size_t first = p * 16, cols = n - first < 16 ? n - first : 16;
        memset(out, 0, groups * 64);
        for (size_t j = 0; j < cols; j++)
            for (size_t t = 0; t < k; t++) {
                int number = transposed ? w[(first + j) * ldw + t] : w[t * ldw + first + j];
                int8_t *to = out + t / 8 * 64 + j * 4 + t % 4;
                *to = (int8_t)(*to | (number + 8) << (t % 8 / 4 * 4));
            }
    }
}
