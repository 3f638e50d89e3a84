/* Row kernels for sse42; compiled with its flags (engine/options.cmake), called only where the CPU has it. */
#define VECTOR 4
#define KERNELS kernels_sse42
#define KERNELS_ISA "sse42"
#include "engine/cpu/kernels_body.h"
