/* The language of our kernels: the common subset of C, CUDA's C++ and HIP's C++, and a few words for
 * everything else. The same source is compiled by clang or nvcc to PTX, by clang to AMD's code objects, and
 * by the C compiler for the emulated device, where each GPU thread is a fiber and every access can be
 * checked.
 *
 *   KERNEL(name, threads) { … args.x … }  a kernel over blocks of `threads`; args is a struct name_args
 *   KERNEL_ALONE(name, threads)  the same, with all registers for one block per multiprocessor
 *   KERNEL_PAIR(name, threads)   the same, with so few registers that AMD's compute units hold two blocks
 *   KERNEL_TWO(name, threads)    the same, and NVIDIA's multiprocessors do so, too
 *   thread(), block_x(), block_y(), block_z(), blocks_x(), lane(), warp(), warp_size()
 *   rdna()             3 or 4 if the card has the matrix instructions of RDNA 3 or of RDNA 4, else 0
 *   barrier()          waits for all threads of the block; they then see memory written before
 *   warp_barrier()     the same for all lanes of the warp
 *   shuffle_xor(v, m), shuffle_from(v, lane)  exchange floats between lanes, all of which must take part;
 *                      they do not order memory
 *   POINTER(type, args.x)  an address of device memory as a pointer, to be used only through LOAD(p, i),
 *                      STORE(p, i, v), and ADD_ATOMIC_U32(p, i, v), which returns the old value
 *   SHARED(type, name, count)  uninitialised memory of the block, to be used only through GET(name, i) and
 *                      PUT(name, i, v)
 *   VECTOR(type, name, count)  a struct's member whose values move in one access: name[i] are its values
 *   FUNCTION           before a function that kernels call
 *   assert_device(x)   ends the launch with ERR_DEVICE_FAULT if false
 *   UNROLL             before a loop with a constant count: arrays that it indexes stay in registers
 *   ROLLED             before a loop that must stay a loop, because many registers are in use
 *
 * All threads of the block (or warp) must meet a barrier or shuffle. Nothing is contracted to fused
 * multiply-add unless written as math_fma(), and the functions of math.h are our own, so a kernel gives the
 * same bits on every device with the same warp size, also on emulated ones. Only the shape decides the order
 * of sums; there are no floating-point atomics.
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
