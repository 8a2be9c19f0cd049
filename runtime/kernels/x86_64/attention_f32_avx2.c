/* attention_f32 and attention_bf16 for AVX2 with FMA. */
#include "vec_avx2.h"

#define ATTENTION_NAME      lathe_attention_f32__avx2
#define ATTENTION_BF16_NAME lathe_attention_bf16__avx2
#define ATTENTION_GEMM      lathe_gemm_f32_6x16__avx2
#define ATTENTION_PACK_A    lathe_gemm_f32_pack_a__avx2
#define ATTENTION_MR        6
#include "attention_body.h"

#define FEW_NAME lathe_few_f32__avx2
#include "few_body.h"
