/* All kernels, compiled for the emulated device. EMULATED_FUNCTIONS is the name of their table. */
#ifndef MOTLEY_ENGINE_GPU_EMULATED_KERNELS_BODY_H
#define MOTLEY_ENGINE_GPU_EMULATED_KERNELS_BODY_H

#include "engine/gpu/emulated/emulated.h"

#define GPU_KERNELS
#include "engine/gpu/kernels/dialect.h"
#include "engine/gpu/kernels/list.h"

#define ENTRY(kernel, block) {.name = #kernel, .threads = (block), .run = emulated_##kernel},
const struct gpu_function EMULATED_FUNCTIONS[] = {GPU_KERNEL_LIST(ENTRY)};

#endif
