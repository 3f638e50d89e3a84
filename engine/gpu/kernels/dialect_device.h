/* The dialect on real devices. It needs no SDK's headers, only the compilers' builtins. */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_DIALECT_DEVICE_H
#define MOTLEY_ENGINE_GPU_KERNELS_DIALECT_DEVICE_H

typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

#define FUNCTION static __attribute__((device)) __attribute__((always_inline)) inline
#if defined(__HIP__)
#define LAUNCH_BOUNDS(threads) __attribute__((amdgpu_flat_work_group_size(threads, threads)))
#else
#define LAUNCH_BOUNDS(threads) __attribute__((launch_bounds(threads)))
#endif
#define KERNEL(name, threads)                                                                                \
    extern "C" __attribute__((global)) LAUNCH_BOUNDS(threads) void name(const struct name##_args args)
#if defined(__HIP__)
#define KERNEL_ALONE(name, threads) KERNEL(name, threads)
#define KERNEL_TWO(name, threads) KERNEL_PAIR(name, threads)
#if defined(__gfx908__) /* its 512 registers are two files of 256, of which a half would spill */
#define KERNEL_PAIR(name, threads) KERNEL(name, threads)
#else
#define KERNEL_PAIR(name, threads)                                                                           \
    extern "C" __attribute__((global)) LAUNCH_BOUNDS(threads)                                                \
        __attribute__((amdgpu_waves_per_eu(2))) void name(const struct name##_args args)
#endif
#else
#define KERNEL_PAIR(name, threads) KERNEL(name, threads)
#define KERNEL_TWO(name, threads)                                                                            \
    extern "C" __attribute__((global)) __attribute__((launch_bounds(threads, 2))) void name(                 \
        const struct name##_args args)
#define KERNEL_ALONE(name, threads)                                                                          \
    extern "C" __attribute__((global)) __attribute__((launch_bounds(threads, 1))) void name(                 \
        const struct name##_args args)
#endif
#if defined(__clang__)
/* Device memory is global memory (address space 1 of NVPTX and AMDGPU). Through a pointer that could as well
 * be one to shared or private memory, every access would be a generic one. */
#define POINTER(type, address) ((type *)(__attribute__((address_space(1))) type *)(address))
#define VECTOR(type, name, count) __attribute__((vector_size(sizeof(type) * (count)))) type name
#else
#define POINTER(type, address)                                                                               \
    ((type *)(address)) /* With a conversion to the global address space, nvcc would compile for minutes. */
/* nvcc loads and stores an aligned array in one access. */
#define VECTOR(type, name, count) __align__(sizeof(type) * (count)) type name[count]
#endif
#define LOAD(p, i) ((p)[i])
#define STORE(p, i, v) ((void)((p)[i] = (v)))
#define SHARED(type, name, count) static __attribute__((shared)) type name[count]
#define GET(name, i) ((name)[i])
#define PUT(name, i, v) ((void)((name)[i] = (v)))
#define assert_device(x) ((x) ? (void)0 : __builtin_trap())
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)") /* a plain unroll pragma stops at nested loops */
#define ROLLED _Pragma("clang loop unroll(disable)")
#else
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
#endif

#if defined(__HIP__) || defined(__AMDGCN__)
FUNCTION uint32_t thread(void)
{
    return __builtin_amdgcn_workitem_id_x();
}
FUNCTION uint32_t block_x(void)
{
    return __builtin_amdgcn_workgroup_id_x();
}
FUNCTION uint32_t block_y(void)
{
    return __builtin_amdgcn_workgroup_id_y();
}
FUNCTION uint32_t block_z(void)
{
    return __builtin_amdgcn_workgroup_id_z();
}
FUNCTION uint32_t blocks_x(void)
{
    return __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x();
}
FUNCTION constexpr uint32_t warp_size(void)
{
#if defined(__GFX10__) || defined(__GFX11__) || defined(__GFX12__)
    return 32; /* what clang compiles for unless told otherwise; later ones lack __AMDGCN_WAVEFRONT_SIZE */
#else
    return 64;
#endif
}
FUNCTION constexpr uint32_t rdna(void)
{
#if defined(__GFX11__)
    return 3;
#elif defined(__GFX12__)
    return 4;
#else
    return 0;
#endif
}
FUNCTION void barrier(void)
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
FUNCTION void warp_barrier(void)
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
FUNCTION float shuffle_from(float value, uint32_t from)
{
    return __builtin_bit_cast(float,
                              __builtin_amdgcn_ds_bpermute((int)(from << 2), __builtin_bit_cast(int, value)));
}
#define ADD_ATOMIC_U32(p, i, v) __atomic_fetch_add((p) + (i), (uint32_t)(v), __ATOMIC_RELAXED)
#else
FUNCTION uint32_t thread(void)
{
    return __nvvm_read_ptx_sreg_tid_x();
}
FUNCTION uint32_t block_x(void)
{
    return __nvvm_read_ptx_sreg_ctaid_x();
}
FUNCTION uint32_t block_y(void)
{
    return __nvvm_read_ptx_sreg_ctaid_y();
}
FUNCTION uint32_t block_z(void)
{
    return __nvvm_read_ptx_sreg_ctaid_z();
}
FUNCTION uint32_t blocks_x(void)
{
    return __nvvm_read_ptx_sreg_nctaid_x();
}
FUNCTION constexpr uint32_t warp_size(void)
{
    return 32;
}
FUNCTION constexpr uint32_t rdna(void)
{
    return 0;
}
FUNCTION void barrier(void)
{
    __syncthreads();
}
FUNCTION void warp_barrier(void)
{
    __nvvm_bar_warp_sync(0xffffffffu);
}
FUNCTION float shuffle_from(float value, uint32_t from)
{
    return __nvvm_shfl_sync_idx_f32(0xffffffffu, value, (int)from, 31);
}
#define ADD_ATOMIC_U32(p, i, v) __nvvm_atom_add_gen_i((int *)(p) + (i), (int)(v))
#endif

FUNCTION uint32_t lane(void)
{
    return thread() % warp_size();
}
FUNCTION uint32_t warp(void)
{
    return thread() / warp_size();
}
FUNCTION float shuffle_xor(float value, uint32_t mask)
{
    return shuffle_from(value, lane() ^ mask);
}

#endif
