/* Full unrolling of loops with constant bounds, so that arrays of vectors become registers; or none, of a loop that
 * seldom runs. */
#ifndef LATHE_UNROLL_H
#define LATHE_UNROLL_H

#if defined(__clang__)
#define LATHE_UNROLL    _Pragma("clang loop unroll(full)")
#define LATHE_NO_UNROLL _Pragma("clang loop unroll(disable)")
#else
#define LATHE_UNROLL    _Pragma("GCC unroll 16")
#define LATHE_NO_UNROLL _Pragma("GCC unroll 1")
#endif
#endif
