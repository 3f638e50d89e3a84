// All kernels, as clang compiles them for cards: CUDA C++ and HIP C++ alike (cmake/gpu_code.cmake).
#define GPU_KERNELS
#include "engine/gpu/kernels/dialect.h"
#include "engine/gpu/kernels/list.h"
