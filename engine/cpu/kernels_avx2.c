/* Row kernels for avx2; compiled with its flags (engine/options.cmake), called only where the CPU has it. */
#include <immintrin.h>

#define VECTOR 8
#define KERNELS kernels_avx2
#define KERNELS_ISA "avx2"
#define WIDE_MULTIPLY(a, b) ((vl)_mm256_mul_epu32((__m256i)(a), (__m256i)(b)))
#include "engine/cpu/kernels_body.h"
