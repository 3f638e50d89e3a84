/* Row kernels for sse42; compiled with its flags (engine/options.cmake), called only where the CPU has it. */
#include <immintrin.h>

#define VECTOR 4
#define KERNELS kernels_sse42
#define KERNELS_ISA "sse42"
#define WIDE_MULTIPLY(a, b) ((vl)_mm_mul_epu32((__m128i)(a), (__m128i)(b)))
#include "engine/cpu/kernels_body.h"
