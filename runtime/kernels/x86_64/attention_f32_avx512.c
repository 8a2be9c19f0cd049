/* attention_f32 and attention_bf16 for AVX-512. */
#include "vec_avx512.h"

#define ATTENTION_NAME      lathe_attention_f32__avx512
#define ATTENTION_BF16_NAME lathe_attention_bf16__avx512
#define ATTENTION_GEMM      lathe_gemm_f32_14x32__avx512
#define ATTENTION_PACK_A    lathe_gemm_f32_pack_a__avx512
#define ATTENTION_MR        14

#define ATTENTION_SHARED(name) lathe_##name##__avx512
#include "attention_body.h"

#define FEW_NAME lathe_few_f32__avx512
#include "few_body.h"
