/* Row kernels for avx2; compiled with its flags (engine/options.cmake), called only where the CPU has it. */
#define VECTOR 8
#define KERNELS kernels_avx2
#define KERNELS_ISA "avx2"
#include "engine/cpu/kernels_body.h"
