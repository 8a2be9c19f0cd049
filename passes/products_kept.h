/* What a change of precision leaves alone beside the linear layers, told in the report. */
#ifndef LATHE_PRODUCTS_KEPT_H
#define LATHE_PRODUCTS_KEPT_H

#include "pass.h"

/* A line of the report's `quantization` for each product with constant weights that is no linear layer, with the
 * reason: weights in the source's own quantized form, or a product that was not fused. */
void lathe_tell_products_kept(struct lathe_pass_ctx *ctx);
#endif
