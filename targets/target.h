/* Targets: what a compile is for. Data in targets/<name>.yaml, built into the compiler, or a file of the user's.
 * IR and passes read them; the runtime never sees them. */
#ifndef LATHE_TARGET_H
#define LATHE_TARGET_H

#include "lathe_status.h"

#include <stdbool.h>
#include <stdint.h>

#define LATHE_TARGET_MAX_BUCKETS 64

enum lathe_cpu_bit {
#define CPU_BIT(number, name, text, doc) LATHE_CPU_##name = number,
#include "cpu_bits.def"
#undef CPU_BIT
};
#define LATHE_CPU_MASK(bit) (UINT64_C(1) << (bit))

enum lathe_shapes_kind { LATHE_SHAPES_BOUNDED, LATHE_SHAPES_STATIC };
#ifndef LATHE_PLACEMENT_DEFINED
#define LATHE_PLACEMENT_DEFINED
enum lathe_placement {
    LATHE_PLACEMENT_DEFAULT = 0,
#define PLACEMENT(number, name, text, doc) LATHE_PLACEMENT_##name = number,
#include "placements.def"
#undef PLACEMENT
};
#endif
enum lathe_cast_policy { LATHE_CAST_NONE, LATHE_CAST_MATMUL, LATHE_CAST_ALL };
/* Bits of the activations and of the weights. Without dot products pairs of products are added in 16 bits, so one of
 * the two has 7, or the weights are chosen so that the sums fit. Cosine of MiniLM-L6 with f32, 1000 sentences (mean /
 * min / same nearest neighbour), and GOPS of the product of 128 rows by 3072 x 768 on AVX2, 2 cores of an EPYC of 2025:
 *   u8s8_sum4 0.9990 / 0.9970 / 0.937   728       u8s7 0.9990 / 0.9971 / 0.936   519
 *   u8s8_sum2 0.9993 / 0.9977 / 0.941   586       u7s8 0.9986 / 0.9947 / 0.92    519
 *   u8s8_sum1 0.9994 / 0.9981 / 0.941   519
 * With dot products bytes are multiplied as they are (u8s8 0.9995 / 0.9983 / 0.947), or two thirds of them by the fast
 * inner product (kernel_q8.h), which wants 7 bits on both sides: u8s8_fip 0.9990 / 0.9962 / 0.931, 1.2 to 1.4 times as
 * fast from 16 rows on where bytes are added twice as fast as multiplied. */
enum lathe_int8_scheme {
    LATHE_INT8_U8S8,
    LATHE_INT8_FIP,
    LATHE_INT8_U7S8,
    LATHE_INT8_U7S7_PAIRS,
    LATHE_INT8_U8S7,
    LATHE_INT8_SUM1, /* u8s8, weights chosen so that the sums of 1, 2 or 4 groups fit 16 bits (passes/bound_sums.h) */
    LATHE_INT8_SUM2,
    LATHE_INT8_SUM4
};

struct lathe_bucket {
    int64_t batch, seq;
};

/* The figures of targets/cost_keys.def. */
struct lathe_target_cost {
#define COST(name, key, most, doc) double name;
#include "cost_keys.def"
#undef COST
};

struct lathe_target {
    char name[64];
    char doc[160];
    char arch[32];                         /* "x86_64", "aarch64", "any", "device" */
    uint64_t features;                     /* LATHE_CPU_MASK of every bit that it has, implied ones included */
    unsigned vector_bytes;                 /* 0: plain C */
    uint64_t l1_bytes, l2_bytes, l3_bytes; /* a core's, a core's, shared */
    unsigned precisions;                   /* 1 f32, 2 bf16, 4 int8 */
    enum lathe_int8_scheme int8_scheme;
    enum lathe_shapes_kind shapes;
    struct lathe_bucket buckets[LATHE_TARGET_MAX_BUCKETS];
    unsigned bucket_count;
    int64_t max_batch, max_seq; /* 0: from the graph */
    unsigned cores;             /* 0: as many as the machine has */
    enum lathe_placement placement;
    uint64_t core_memory_bytes; /* on-chip, 0: no limit */
    enum lathe_cast_policy cast;
    bool all_operators;      /* else only those of `operators` */
    uint8_t operators[64];   /* bit set over operator numbers (ir_ops.def), 512 bits */
    double ghz, memory_gbps; /* for the cost model; 0 unknown */
    struct lathe_target_cost cost;
    char cost_from[64]; /* the shipped target whose ghz, memory_gbps and cost `native` borrows; "": its own */
};

#define LATHE_PRECISION_F32  1u
#define LATHE_PRECISION_BF16 2u
#define LATHE_PRECISION_INT8 4u

/* `name`: a built-in name, "native", or the path of a YAML file (it has a '/' or ends in .yaml or .yml). Errors are
 * LATHE_INVALID with file and line: unknown key, wrong type, unknown feature, cycle in `extends`, an unknown base. */
LATHE_NODISCARD enum lathe_status lathe_target_load(const char *name, struct lathe_target *out,
                                                    struct lathe_diag *diag);
/* From the CPU at hand: CPUID and XCR0, caches from CPUID or sysfs. Nothing is measured: figures for the cost model are
 * those of lathe_target_nearest. */
void lathe_target_native(struct lathe_target *out);
/* The shipped target, no device, whose instruction sets `t` has, and most of them; of equal ones the one whose second
 * cache is nearest in size. */
const char *lathe_target_nearest(const struct lathe_target *t);
unsigned lathe_target_builtin_count(void);
const char *lathe_target_builtin_name(unsigned index); /* sorted */
/* "avx2 fma f16c", in the order of cpu_bits.def, into `buffer`; the length like snprintf. */
int lathe_target_features_text(uint64_t features, char *buffer, int size);
#endif
