/* attention_f32 and attention_bf16 in plain C. */
#include "vec_plain.h"

#define ATTENTION_NAME      lathe_attention_f32__c
#define ATTENTION_BF16_NAME lathe_attention_bf16__c
#define ATTENTION_GEMM      lathe_gemm_f32_4x16__c
#define ATTENTION_PACK_A    lathe_gemm_f32_pack_a__c
#define ATTENTION_MR        4
#include "attention_body.h"

size_t lathe_attention_f32_scratch(size_t nq, size_t nk, size_t d, size_t dv) {
    size_t groups = nq / AQ + 1, both, total, block;
    (void)nk; /* blocks of keys have one size */
    if (!lathe_add_size(d, dv, &both) || !lathe_add_size(both, 3, &total) || !lathe_mul_size(total, AQ, &total) ||
        !lathe_mul_size(total, groups, &total) || !lathe_add_size(both, AQ, &block) ||
        !lathe_mul_size(block, AK, &block) || !lathe_add_size(total, block + 64, &total) ||
        !lathe_mul_size(total, sizeof(float), &total))
        return SIZE_MAX;
    return total;
}
