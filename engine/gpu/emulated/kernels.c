/* All kernels, compiled for the emulated device. */
#include "engine/gpu/emulated/emulated.h"

#define GPU_KERNELS
#include "engine/gpu/kernels/dialect.h"
#include "engine/gpu/kernels/list.h"

#define ENTRY(kernel, block) {.name = #kernel, .threads = (block), .run = emulated_##kernel},
const struct gpu_function emulated_functions[] = {GPU_KERNEL_LIST(ENTRY)};
const uint32_t emulated_function_count = sizeof emulated_functions / sizeof *emulated_functions;
