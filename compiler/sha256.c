#include "sha256.h"

#include <string.h>

static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static inline uint32_t rotate_right(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

static inline uint32_t load_be(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void compress_plain(uint32_t state[8], const uint8_t *p) {
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = load_be(p + 4 * i);
    for (int i = 16; i < 64; i++) {
        uint32_t a = rotate_right(w[i - 15], 7) ^ rotate_right(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t b = rotate_right(w[i - 2], 17) ^ rotate_right(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t e = rotate_right(s[4], 6) ^ rotate_right(s[4], 11) ^ rotate_right(s[4], 25);
        uint32_t t1 = s[7] + e + ((s[4] & s[5]) ^ (~s[4] & s[6])) + round_constants[i] + w[i];
        uint32_t a = rotate_right(s[0], 2) ^ rotate_right(s[0], 13) ^ rotate_right(s[0], 22);
        uint32_t t2 = a + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        s[7] = s[6];
        s[6] = s[5];
        s[5] = s[4];
        s[4] = s[3] + t1;
        s[3] = s[2];
        s[2] = s[1];
        s[1] = s[0];
        s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        state[i] += s[i];
}

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

/* The CPU's own rounds: two a step on the halves ABEF and CDGH of the state. */
__attribute__((target("sha,sse4.1,ssse3"))) static void compress_sha_ni(uint32_t state[8], const uint8_t *p,
                                                                        size_t blocks) {
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
    __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xb1);
    __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1b);
    __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xf0), w[4];
    for (; blocks; blocks--, p += 64) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        for (int i = 0; i < 4; i++)
            w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(p + 16 * i)), big_endian);
        for (int i = 0; i < 16; i++) {
            __m128i sum = _mm_add_epi32(w[i & 3], _mm_loadu_si128((const __m128i *)(round_constants + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
            if (i < 12) {
                __m128i seven_back = _mm_alignr_epi8(w[(i + 3) & 3], w[(i + 2) & 3], 4);
                __m128i next = _mm_add_epi32(_mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]), seven_back);
                w[i & 3] = _mm_sha256msg2_epu32(next, w[(i + 3) & 3]);
            }
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

static bool has_sha_ni(void) {
    unsigned a, b, c, d, leaf7;
    if (!__get_cpuid_count(7, 0, &a, &leaf7, &c, &d) || !__get_cpuid(1, &a, &b, &c, &d))
        return false;
    return (leaf7 >> 29 & 1) && (c >> 19 & 1) && (c >> 9 & 1); /* SHA, SSE4.1, SSSE3 */
}
#else
static void compress_sha_ni(uint32_t state[8], const uint8_t *p, size_t blocks) {
    for (; blocks; blocks--, p += 64)
        compress_plain(state, p);
}
static bool has_sha_ni(void) {
    return false;
}
#endif

static void compress(struct lathe_sha256 *h, const uint8_t *p, size_t blocks) {
    if (!h->plain) {
        compress_sha_ni(h->state, p, blocks);
        return;
    }
    for (; blocks; blocks--, p += 64)
        compress_plain(h->state, p);
}

void lathe_sha256_init(struct lathe_sha256 *h) {
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(h->state, start, sizeof start);
    h->length = 0;
    h->plain = !has_sha_ni();
}

void lathe_sha256_add(struct lathe_sha256 *h, const void *data, size_t bytes) {
    const uint8_t *p = data;
    size_t have = h->length % 64;
    h->length += bytes;
    if (have) {
        size_t take = 64 - have < bytes ? 64 - have : bytes;
        memcpy(h->block + have, p, take);
        p += take;
        bytes -= take;
        if (have + take < 64)
            return;
        compress(h, h->block, 1);
    }
    compress(h, p, bytes / 64);
    p += bytes / 64 * 64;
    bytes %= 64;
    if (bytes)
        memcpy(h->block, p, bytes);
}

void lathe_sha256_hex(struct lathe_sha256 *h, char text[65]) {
    static const uint8_t padding[64] = {0x80};
    uint64_t bits = h->length * 8;
    uint8_t tail[8];
    for (int i = 0; i < 8; i++)
        tail[i] = (uint8_t)(bits >> (56 - 8 * i));
    lathe_sha256_add(h, padding, 1 + (119 - h->length % 64) % 64);
    lathe_sha256_add(h, tail, 8);
    for (int i = 0; i < 32; i++) {
        uint8_t byte = (uint8_t)(h->state[i / 4] >> (24 - 8 * (i % 4)));
        text[2 * i] = "0123456789abcdef"[byte >> 4];
        text[2 * i + 1] = "0123456789abcdef"[byte & 15];
    }
    text[64] = 0;
}
