/* The target "native": the CPU at hand as CPUID, XCR0 and the operating system report it. */
#include "cpu.h"
#include "target_internal.h"

#include <stdio.h>
#include <string.h>

#define HAS(bit) ((out->features & LATHE_CPU_MASK(LATHE_CPU_##bit)) != 0)

static const char *arch_name(void) {
#if defined(__x86_64__)
    return "x86_64";
#elif defined(__aarch64__)
    return "aarch64";
#else
    return "any";
#endif
}

void lathe_target_native(struct lathe_target *out) {
    lathe_target_defaults(out);
    char brand[49] = "";
    lathe_cpu_brand(brand);
    snprintf(out->name, sizeof out->name, "native");
    snprintf(out->doc, sizeof out->doc, "this machine%s%s", brand[0] ? ": " : "", brand);
    snprintf(out->arch, sizeof out->arch, "%s", arch_name());
    out->features = lathe_target_imply(lathe_cpu_bits());
    out->vector_bytes = HAS(AVX512) ? 64 : HAS(AVX2) ? 32 : HAS(SSE42) ? 16 : 0;
    struct lathe_cpu_caches caches = {0};
    lathe_cpu_caches(&caches);
    out->l1_bytes = caches.l1 ? caches.l1 : 32 << 10;
    out->l2_bytes = caches.l2 ? caches.l2 : 256 << 10;
    out->l3_bytes = caches.l3;
    out->precisions = LATHE_PRECISION_F32 | LATHE_PRECISION_INT8;
    if (HAS(AVX512_BF16) || HAS(AMX_BF16))
        out->precisions |= LATHE_PRECISION_BF16;
    out->int8_scheme = HAS(AVX512_VNNI) || HAS(AVX_VNNI) || HAS(AMX_INT8) ? LATHE_INT8_U8S8 : LATHE_INT8_SUM4;
    struct lathe_target near;
    const char *name = lathe_target_nearest(out);
    if (lathe_target_load(name, &near, NULL) == LATHE_OK) {
        out->ghz = near.ghz;
        out->memory_gbps = near.memory_gbps;
        out->cost = near.cost;
        snprintf(out->cost_from, sizeof out->cost_from, "%s", name);
    }
}

const char *lathe_target_nearest(const struct lathe_target *t) {
    const char *best = "generic";
    int64_t most = INT64_MIN;
    for (unsigned i = 0; i < lathe_target_builtin_count(); i++) {
        struct lathe_target s;
        if (lathe_target_load(lathe_target_builtin_name(i), &s, NULL) || !strcmp(s.arch, "device"))
            continue;
        bool arch = !strcmp(s.arch, "any") || !strcmp(s.arch, t->arch);
        uint64_t gap = s.l2_bytes > t->l2_bytes ? s.l2_bytes - t->l2_bytes : t->l2_bytes - s.l2_bytes;
        int64_t score = (int64_t)__builtin_popcountll(s.features) * (INT64_C(1) << 40) - (int64_t)(gap >> 10);
        if (arch && !(s.features & ~t->features) && score > most) {
            most = score;
            best = lathe_target_builtin_name(i);
        }
    }
    return best;
}
