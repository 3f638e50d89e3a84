/* Adapts the dialect to NVIDIA's own compiler in place of clang (cmake/gpu_code.cmake). nvcc has read its own
 * headers before the kernels, and has other names for what clang offers as builtins. */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_DIALECT_NVCC_H
#define MOTLEY_ENGINE_GPU_KERNELS_DIALECT_NVCC_H

#include <stdint.h>

#define int64_t kernel_int64_t /* the host's headers use this name for another type of the same size */
#define uint64_t kernel_uint64_t
#define __nvvm_read_ptx_sreg_tid_x() threadIdx.x
#define __nvvm_read_ptx_sreg_ctaid_x() blockIdx.x
#define __nvvm_read_ptx_sreg_ctaid_y() blockIdx.y
#define __nvvm_read_ptx_sreg_ctaid_z() blockIdx.z
#define __nvvm_read_ptx_sreg_nctaid_x() gridDim.x
#define __nvvm_bar_warp_sync(mask) __syncwarp(mask)
#define __nvvm_shfl_sync_idx_f32(mask, value, from, last) __shfl_sync(mask, value, from)
#define __nvvm_atom_add_gen_i(p, v) atomicAdd(p, v)
#define __builtin_trap() __trap()
#define __builtin_sqrtf(x) sqrtf(x)
#define __builtin_sqrt(x) sqrt(x)
#define __builtin_fmaf(x, y, z) fmaf(x, y, z)

#endif
