/* All kernels, compiled for any CPU. */
#define EMULATED_FUNCTIONS emulated_functions_any
#include "engine/gpu/emulated/kernels_body.h"

const uint32_t emulated_function_count = sizeof(emulated_functions_any) / sizeof(*emulated_functions_any);
