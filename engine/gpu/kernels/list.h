/* Every kernel of the project with its threads per block: one list for the host (engine/gpu/gpu.h), the
 * emulated device and the code objects. A family of kernels is one file. It declares the kernels' arguments
 * for the host, and the kernels themselves if GPU_KERNELS is defined. */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_LIST_H
#define MOTLEY_ENGINE_GPU_KERNELS_LIST_H

#include "engine/gpu/kernels/attention.k.h"
#include "engine/gpu/kernels/delta.k.h"
#include "engine/gpu/kernels/experts.k.h"
#include "engine/gpu/kernels/flat.k.h"
#include "engine/gpu/kernels/loss.k.h"
#include "engine/gpu/kernels/optimizer.k.h"
#include "engine/gpu/kernels/product.k.h"
#include "engine/gpu/kernels/random.k.h"
#include "engine/gpu/kernels/rows.k.h"
#include "engine/gpu/kernels/tables.k.h"
#include "engine/gpu/kernels/unpack.k.h"

#define GPU_KERNEL_LIST(X)                                                                                   \
    FLAT_KERNELS(X)                                                                                          \
    ROWS_KERNELS(X)                                                                                          \
    TABLES_KERNELS(X)                                                                                        \
    RANDOM_KERNELS(X)                                                                                        \
    LOSS_KERNELS(X)                                                                                          \
    OPTIMIZER_KERNELS(X)                                                                                     \
    UNPACK_KERNELS(X)                                                                                        \
    PRODUCT_KERNELS(X)                                                                                       \
    EXPERTS_KERNELS(X)                                                                                       \
    ATTENTION_KERNELS(X)                                                                                     \
    DELTA_KERNELS(X)

#endif
