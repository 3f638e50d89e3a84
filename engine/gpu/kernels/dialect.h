/* The language of our kernels: what C, CUDA's C++ and HIP's C++ have in common, and a handful of words for
 * the rest. A kernel is compiled unchanged by clang or nvcc to PTX, by hipcc to AMD's code objects, and by
 * the C compiler for the emulated device, where each GPU thread is a fiber and every access can be checked.
 *
 *   KERNEL(name, threads) { … args.x … }  a kernel over blocks of `threads`, args being a struct name_args;
 *   KERNEL_ALONE(name, threads)  the same, where one block a multiprocessor is enough: registers for spills
 *   thread(), block_x(), block_y(), block_z(), blocks_x(), lane(), warp(), warp_size()
 *   barrier()          all threads of the block; memory written before is seen after
 *   warp_barrier()     all lanes of the warp, likewise
 *   shuffle_xor(v, m), shuffle_from(v, lane)  float values between lanes; all lanes must be there; orders no
 *                      memory
 *   POINTER(type, args.x)  an address of device memory as a pointer, used only through
 *   LOAD(p, i), STORE(p, i, v); ADD_ATOMIC_U32(p, i, v) returns what was there
 *   SHARED(type, name, count)  memory of the block, uninitialised, used only through
 *   GET(name, i), PUT(name, i, v)
 *   FUNCTION           before a function that kernels call
 *   assert_device(x)   ends the launch with ERR_DEVICE_FAULT when false
 *   UNROLL             before a loop whose count is constant: arrays that it indexes stay in registers
 *   ROLLED             before a loop that stays one, where many registers are in use
 *
 * Barriers and shuffles must be met by all threads of the block (warp). Nothing is contracted to fused
 * multiply-add unless written as math_fma(), and the functions of math.h are our own: so a kernel gives the
 * same bits on every device of one warp size, the emulated ones included. The order of sums is fixed by the
 * shape alone: no floating-point atomics.
 */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_DIALECT_H
#define MOTLEY_ENGINE_GPU_KERNELS_DIALECT_H

#if defined(__CUDA__) || defined(__CUDACC__) || defined(__HIP__)
#include "engine/gpu/kernels/dialect_device.h"
#else
#include "engine/gpu/emulated/dialect_emulated.h"
#endif

#include "engine/gpu/kernels/math.h"

#endif
