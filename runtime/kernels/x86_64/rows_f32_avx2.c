/* The row kernels for AVX2 with FMA. */
#include "vec_avx2.h"

#include <string.h>

#define ROWS_NAME(x) lathe_##x##__avx2
#include "rows_body.h"
