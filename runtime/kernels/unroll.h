/* Full unrolling of loops with constant bounds, so that arrays of vectors become registers. */
#ifndef LATHE_UNROLL_H
#define LATHE_UNROLL_H

#if defined(__clang__)
#define LATHE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LATHE_UNROLL _Pragma("GCC unroll 16")
#endif
#endif
