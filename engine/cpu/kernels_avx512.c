/* Row kernels for avx512; compiled with its flags (engine/options.cmake), called only where the CPU has it.
 */
#define VECTOR 16
#define KERNELS kernels_avx512
#define KERNELS_ISA "avx512"
#include "engine/cpu/kernels_body.h"
