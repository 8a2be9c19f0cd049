/* The row kernels for AVX-512. */
#include "vec_avx512.h"

#include <string.h>

#define ROWS_NAME(x) lathe_##x##__avx512
#include "rows_body.h"
