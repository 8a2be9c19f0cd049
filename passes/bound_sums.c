#include "bound_sums.h"

#include <stdbool.h>
#include <string.h>

#define LANES LATHE_SUM16_LANES
#define MOST  (2 * LATHE_SUM16_MOST) /* weights of a sum */

static bool column_fits(const int8_t *w, int64_t k, unsigned groups, int limit) {
    for (int64_t first = 0; first < k; first += 4 * (int64_t)groups) {
        int sums[2][2] = {{0}}; /* of each half, by sign */
        int64_t end = first + 4 * (int64_t)groups < k ? first + 4 * (int64_t)groups : k;
        for (int64_t i = first; i < end; i++)
            sums[i % 4 / 2][w[i] < 0] += w[i];
        if (sums[0][0] > limit || sums[1][0] > limit || -sums[0][1] > limit || -sums[1][1] > limit)
            return false;
    }
    return true;
}

unsigned lathe_sum16_groups(const int8_t *w, int64_t n, int64_t k, unsigned bits) {
    unsigned groups = LATHE_SUM16_MOST;
    for (int64_t c = 0; c < n; c++)
        while (groups && !column_fits(w + c * k, k, groups, lathe_sum16_limit(bits)))
            groups /= 2;
    return groups;
}

/* Takes as much from each number of `sign` as brings their sum down to `limit`; numbers that would change sign are 0.
 */
static void project_sum(float *v, int count, float sign, float limit) {
    float cut = 0;
    for (int turn = 0; turn < count; turn++) {
        float sum = 0;
        int above = 0;
        for (int i = 0; i < count; i++)
            if (sign * v[i] > cut) {
                sum += sign * v[i];
                above++;
            }
        float next = above ? (sum - limit) / (float)above : 0;
        if (!(next > cut))
            break;
        cut = next;
    }
    for (int i = 0; i < count; i++)
        if (sign * v[i] > 0)
            v[i] = sign * v[i] > cut ? v[i] - sign * cut : 0;
}

void lathe_sum16_project(const float *w, int64_t k, unsigned groups, float limit, float *q, float *sums) {
    int64_t all = lathe_sum16_count(k, groups);
    for (int64_t s = 0; s < all; s++) {
        int64_t at[MOST], first = s / 2 * 4 * (int64_t)groups + s % 2 * 2;
        int count = 0;
        for (int64_t i = first; i < k && i < first + 4 * (int64_t)groups; i += i % 4 % 2 ? 3 : 1)
            at[count++] = i;
        float up[LANES] = {0}, down[LANES] = {0};
        for (int t = 0; t < count; t++)
            for (int c = 0; c < LANES; c++) {
                float v = w[at[t] * LANES + c];
                q[at[t] * LANES + c] = v;
                up[c] += v > 0 ? v : 0;
                down[c] += v < 0 ? -v : 0;
            }
        for (int c = 0; c < LANES; c++) {
            float v[MOST];
            if (up[c] <= limit && down[c] <= limit)
                continue;
            for (int t = 0; t < count; t++)
                v[t] = q[at[t] * LANES + c];
            if (up[c] > limit)
                project_sum(v, count, 1, limit);
            if (down[c] > limit)
                project_sum(v, count, -1, limit);
            up[c] = down[c] = 0;
            for (int t = 0; t < count; t++) {
                q[at[t] * LANES + c] = v[t];
                up[c] += v[t] > 0 ? v[t] : 0;
                down[c] += v[t] < 0 ? -v[t] : 0;
            }
        }
        if (sums) {
            memcpy(sums + s * LANES, up, sizeof up);
            memcpy(sums + (all + s) * LANES, down, sizeof down);
        }
    }
}
