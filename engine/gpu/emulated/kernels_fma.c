/* All kernels for CPUs that have fused multiply-add as an instruction: the same bits, sooner. */
#define EMULATED_FUNCTIONS emulated_functions_fma
#include "engine/gpu/emulated/kernels_body.h"
