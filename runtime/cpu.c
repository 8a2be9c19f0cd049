/* What the CPU can do and the operating system enables. Levels count only when complete: a machine with AVX2 but
 * without BMI2 is no AVX2 machine for us. */
#include "cpu.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
#define CPU_BIT(number, name, text, doc) BIT_##name = number,
#include "cpu_bits.def"
#undef CPU_BIT
};

static const struct {
    unsigned bit;
    const char *text;
} bits[] = {
#define CPU_BIT(number, name, text, doc) {number, text},
#include "cpu_bits.def"
#undef CPU_BIT
};
#define BIT_COUNT (sizeof bits / sizeof *bits)
#define MASK(bit) (UINT64_C(1) << (bit))

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

struct leaf {
    unsigned a, b, c, d;
};

static struct leaf cpuid(unsigned number, unsigned sub) {
    struct leaf l = {0};
    __get_cpuid_count(number, sub, &l.a, &l.b, &l.c, &l.d); /* leaves zeros when the leaf is not there */
    return l;
}

static uint64_t xcr0(void) {
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool is_amd(void) {
    return cpuid(0, 0).b == 0x68747541u; /* "Auth" */
}

/* All of `want` set in `have`. */
static bool all(unsigned have, unsigned want) {
    return (have & want) == want;
}

/* Linux wants a process to ask before it uses tiles, whose 8 KiB then are part of each thread's saved state. */
static bool tiles_permitted(void) {
#if defined(__linux__)
    return syscall(SYS_arch_prctl, 0x1023L /* ARCH_REQ_XCOMP_PERM */, 18L /* tile data */) == 0;
#else
    return false;
#endif
}

uint64_t lathe_cpu_bits(void) {
    struct leaf one = cpuid(1, 0), seven = cpuid(7, 0), seven1 = seven.a >= 1 ? cpuid(7, 1) : (struct leaf){0};
    struct leaf ext = cpuid(0x80000001u, 0);
    uint64_t r = 0;
    /* SSE3, SSSE3, SSE4.1, SSE4.2, POPCNT */
    if (!all(one.c, 1u << 0 | 1u << 9 | 1u << 19 | 1u << 20 | 1u << 23))
        return 0;
    r |= MASK(BIT_SSE42);
    if (!all(one.c, 1u << 27)) /* OSXSAVE: XGETBV may be used */
        return r;
    uint64_t saved = xcr0();
    if ((saved & 0x6) != 0x6 || !all(one.c, 1u << 28)) /* SSE and AVX state, AVX */
        return r;
    /* FMA belongs to x86-64-v3 but keeps a bit of its own; MOVBE, BMI1, AVX2, BMI2, LZCNT */
    if (all(one.c, 1u << 22) && all(seven.b, 1u << 3 | 1u << 5 | 1u << 8) && all(ext.c, 1u << 5))
        r |= MASK(BIT_AVX2);
    else
        return r;
    if (all(one.c, 1u << 12))
        r |= MASK(BIT_FMA);
    if (all(one.c, 1u << 29))
        r |= MASK(BIT_F16C);
    if (all(seven1.a, 1u << 4))
        r |= MASK(BIT_AVX_VNNI);
    /* mask registers, upper halves, upper registers; F, DQ, CD, BW, VL. Our AVX-512 code uses FMA too. */
    if ((saved & 0xe6) == 0xe6 && all(seven.b, 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31) &&
        (r & MASK(BIT_FMA))) {
        r |= MASK(BIT_AVX512);
        if (all(seven.c, 1u << 11))
            r |= MASK(BIT_AVX512_VNNI) | (is_amd() ? MASK(BIT_FAST_ADDS) : 0);
        if (all(seven.c, 1u << 1 | 1u << 6))
            r |= MASK(BIT_AVX512_VBMI);
        if (all(seven1.a, 1u << 5))
            r |= MASK(BIT_AVX512_BF16);
        if (all(seven.d, 1u << 23))
            r |= MASK(BIT_AVX512_FP16);
    }
    if ((saved & 0x60000) == 0x60000 && all(seven.d, 1u << 24) && tiles_permitted()) {
        r |= MASK(BIT_AMX_TILE);
        if (all(seven.d, 1u << 25))
            r |= MASK(BIT_AMX_INT8);
        if (all(seven.d, 1u << 22))
            r |= MASK(BIT_AMX_BF16);
    }
    return r;
}

static void cache_add(struct lathe_cpu_caches *out, unsigned level, uint64_t bytes) {
    if (level == 1)
        out->l1 = bytes;
    else if (level == 2)
        out->l2 = bytes;
    else if (level == 3)
        out->l3 = bytes;
}

void lathe_cpu_caches(struct lathe_cpu_caches *out) {
    *out = (struct lathe_cpu_caches){0};
    unsigned leaf = is_amd() ? 0x8000001du : 4;
    for (unsigned i = 0; i < 16; i++) {
        struct leaf l = cpuid(leaf, i);
        unsigned type = l.a & 31;
        if (type == 0)
            break;
        if (type == 2) /* instructions only */
            continue;
        uint64_t ways = (l.b >> 22) + 1, parts = (l.b >> 12 & 0x3ff) + 1, line = (l.b & 0xfff) + 1;
        cache_add(out, l.a >> 5 & 7, ways * parts * line * ((uint64_t)l.c + 1));
    }
}

void lathe_cpu_brand(char out[49]) {
    memset(out, 0, 49);
    if (cpuid(0x80000000u, 0).a < 0x80000004u)
        return;
    char raw[49] = {0};
    for (unsigned i = 0; i < 3; i++) {
        struct leaf l = cpuid(0x80000002u + i, 0);
        memcpy(raw + 16 * i, &l, 16);
    }
    const char *p = raw;
    while (*p == ' ')
        p++;
    size_t n = strlen(p);
    while (n > 0 && p[n - 1] == ' ')
        n--;
    memcpy(out, p, n);
}

#else

uint64_t lathe_cpu_bits(void) {
    return 0;
}

void lathe_cpu_caches(struct lathe_cpu_caches *out) {
    *out = (struct lathe_cpu_caches){0};
}

void lathe_cpu_brand(char out[49]) {
    memset(out, 0, 49);
}
#endif

/* A level means everything a CPU of that level has: the bit, those it is built on, and the plain helpers of its time.
 */
static uint64_t level_mask(unsigned bit) {
    uint64_t v3 = MASK(BIT_SSE42) | MASK(BIT_AVX2) | MASK(BIT_FMA) | MASK(BIT_F16C);
    uint64_t v4 = v3 | MASK(BIT_AVX512);
    switch (bit) {
    case BIT_SSE42:
        return MASK(BIT_SSE42);
    case BIT_AVX2:
    case BIT_FMA:
    case BIT_F16C:
        return v3;
    case BIT_AVX_VNNI:
        return v3 | MASK(BIT_AVX_VNNI);
    case BIT_AVX512:
        return v4;
    case BIT_AVX512_VNNI:
        return v4 | MASK(BIT_AVX512_VNNI);
    case BIT_AVX512_VBMI:
        return v4 | MASK(BIT_AVX512_VNNI) | MASK(BIT_AVX512_VBMI);
    default: { /* bf16, fp16 and tiles: all before them in the table, which is in the order of appearance */
        uint64_t r = v4;
        for (size_t i = 0; i < BIT_COUNT && bits[i].bit <= bit; i++)
            r |= MASK(bits[i].bit);
        return r;
    }
    }
}

enum lathe_status lathe_cpu_mask_parse(const char *text, uint64_t *mask, struct lathe_diag *diag) {
    if (strcmp(text, "all") == 0) {
        *mask = UINT64_MAX;
        return LATHE_OK;
    }
    if (strcmp(text, "0") == 0) {
        *mask = 0;
        return LATHE_OK;
    }
    if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X') && text[2] &&
        strspn(text + 2, "0123456789abcdefABCDEF") == strlen(text + 2) && strlen(text + 2) <= 16) {
        *mask = strtoull(text + 2, NULL, 16);
        return LATHE_OK;
    }
    char known[512] = "";
    for (size_t i = 0; i < BIT_COUNT; i++) {
        if (strcmp(text, bits[i].text) == 0) {
            *mask = level_mask(bits[i].bit);
            return LATHE_OK;
        }
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, ", %s", bits[i].text);
    }
    return lathe_fail(diag, LATHE_MSG_SESSION_OPTION,
                      "cpumask '%.80s': expected 0, all, 0x followed by a mask, or one of %s", text, known + 2);
}
