/* The row kernels in plain C: what every other row is checked against. */
#include "vec_plain.h"

#define ROWS_NAME(x) lathe_##x##__c
#include "rows_body.h"
