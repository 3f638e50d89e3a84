/* All kernels, compiled for CPUs with a fused multiply-add instruction: the same bits, but faster. */
#define EMULATED_FUNCTIONS emulated_functions_fma
#include "engine/gpu/emulated/kernels_body.h"
