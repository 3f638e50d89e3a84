/* The dialect on the emulated device. Each thread of a block is a fiber (fibers.c), device addresses are
 * translated at every access (memory.c), and accesses are checked if checks are on. */
#ifndef MOTLEY_ENGINE_GPU_EMULATED_DIALECT_EMULATED_H
#define MOTLEY_ENGINE_GPU_EMULATED_DIALECT_EMULATED_H

#include <stdint.h>

enum emulated_access { EMULATED_READ, EMULATED_WRITE, EMULATED_ATOMIC };

/* A small cache of allocations for fast accesses: the allocation that contains an address of a page, as its
 * first address and its length. bytes 0: empty. */
enum { EMULATED_NEAR = 16, EMULATED_UNIT = 16 };
struct emulated_near {
    uintptr_t begin;
    uint64_t bytes;
};

/* The running fiber's state. A launch runs on one host thread. */
struct emulated_thread {
    uint32_t thread, block_x, block_y, block_z, blocks_x, warp_size, rdna;
    /* Without a shadow, most accesses need only the following. `near` is indexed by (address / 4096) %
     * EMULATED_NEAR; pages and addresses translate an address to the host's; block_units has, for each unit
     * of shared memory, how many of its bytes belong to an array. All are empty if accesses are checked by a
     * shadow. */
    struct emulated_near near[EMULATED_NEAR];
    uint8_t *pages;
    uintptr_t addresses;
    const uint8_t *block_memory, *block_units;
    uint64_t block_bytes;
};
extern _Thread_local struct emulated_thread emulated_now;

/* The functions below implement the words of the kernels' dialect (kernels/dialect.h) for the running fiber.
 * emulated_global checks an access to device memory and returns its host address; after a fault the launch
 * ends and the function does not return. */
void *emulated_global(uintptr_t address, uint32_t bytes, enum emulated_access access);
/* The block's shared array that is declared at `site` in the kernel; all threads of a block get the same one.
 */
void *emulated_block_memory(const void *site, uint64_t bytes);
/* Checks an access to shared memory and returns `at`. */
void *emulated_shared(const void *at, uint32_t bytes, enum emulated_access access);
/* Waits for all threads of the block. */
void emulated_barrier(void);
/* Waits for all lanes of the warp. */
void emulated_warp_barrier(void);
/* Waits for all lanes of the warp and returns the value that lane `from` gave. */
float emulated_shuffle(float value, uint32_t from);
/* Ends the launch, because the condition `text` is false. */
void emulated_assert(const char *text);

#define FUNCTION static inline __attribute__((unused))
/* emulated_global and emulated_shared with a fast path, for accesses to allocations in `near` and to the
 * block's arrays. */
static inline __attribute__((unused)) void *emulated_global_near(uintptr_t address, uint32_t bytes,
                                                                 enum emulated_access access)
{
    const struct emulated_near *near = &emulated_now.near[address / 4096 % EMULATED_NEAR];
    uint64_t at = address - near->begin;
    if (at < near->bytes && bytes <= near->bytes - at && address % bytes == 0)
        return emulated_now.pages + (address - emulated_now.addresses);
    return emulated_global(address, bytes, access);
}
static inline __attribute__((unused)) void *emulated_shared_near(const void *address, uint32_t bytes,
                                                                 enum emulated_access access)
{
    uint64_t at = (uint64_t)((const uint8_t *)address - emulated_now.block_memory);
    if (at < emulated_now.block_bytes && at % bytes == 0 &&
        at % EMULATED_UNIT + bytes <= emulated_now.block_units[at / EMULATED_UNIT])
        return (void *)(uintptr_t)address;
    return emulated_shared(address, bytes, access);
}

#define KERNEL(name, threads)                                                                                \
    static void name##_body(const struct name##_args args);                                                  \
    static void emulated_##name(const void *args)                                                            \
    {                                                                                                        \
        name##_body(*(const struct name##_args *)args);                                                      \
    }                                                                                                        \
    static void name##_body(const struct name##_args args)
#define KERNEL_ALONE(name, threads) KERNEL(name, threads)
#define KERNEL_PAIR(name, threads) KERNEL(name, threads)
#define KERNEL_TWO(name, threads) KERNEL(name, threads)
#define POINTER(type, address) ((type *)(uintptr_t)(address))
#define VECTOR(type, name, count) __attribute__((vector_size(sizeof(type) * (count)))) type name
#define LOAD(p, i)                                                                                           \
    (*(const __typeof__(*(p)) *)emulated_global_near((uintptr_t)((p) + (i)), sizeof(*(p)), EMULATED_READ))
#define STORE(p, i, v)                                                                                       \
    do {                                                                                                     \
        const __typeof__(*(p)) emulated_value = (v);                                                         \
        *(__typeof__(p))emulated_global_near((uintptr_t)((p) + (i)), sizeof(*(p)), EMULATED_WRITE) =         \
            emulated_value;                                                                                  \
    } while (0)
#define ADD_ATOMIC_U32(p, i, v)                                                                              \
    __atomic_fetch_add((uint32_t *)emulated_global((uintptr_t)((p) + (i)), 4, EMULATED_ATOMIC),              \
                       (uint32_t)(v), __ATOMIC_RELAXED)
#define SHARED(type, name, count)                                                                            \
    static const char emulated_site_##name;                                                                  \
    type *const name = emulated_block_memory(&emulated_site_##name, sizeof(type) * (count))
#define GET(name, i)                                                                                         \
    (*(const __typeof__(*(name)) *)emulated_shared_near((name) + (i), sizeof(*(name)), EMULATED_READ))
#define PUT(name, i, v)                                                                                      \
    do {                                                                                                     \
        const __typeof__(*(name)) emulated_value = (v);                                                      \
        *(__typeof__(*(name)) *)emulated_shared_near((name) + (i), sizeof(*(name)), EMULATED_WRITE) =        \
            emulated_value;                                                                                  \
    } while (0)
#define assert_device(x) ((x) ? (void)0 : emulated_assert(#x))
#define UNROLL
#define ROLLED

FUNCTION uint32_t thread(void)
{
    return emulated_now.thread;
}
FUNCTION uint32_t block_x(void)
{
    return emulated_now.block_x;
}
FUNCTION uint32_t block_y(void)
{
    return emulated_now.block_y;
}
FUNCTION uint32_t block_z(void)
{
    return emulated_now.block_z;
}
FUNCTION uint32_t blocks_x(void)
{
    return emulated_now.blocks_x;
}
FUNCTION uint32_t warp_size(void)
{
    return emulated_now.warp_size;
}
FUNCTION uint32_t rdna(void)
{
    return emulated_now.rdna;
}
FUNCTION uint32_t lane(void)
{
    return emulated_now.thread % emulated_now.warp_size;
}
FUNCTION uint32_t warp(void)
{
    return emulated_now.thread / emulated_now.warp_size;
}
FUNCTION void barrier(void)
{
    emulated_barrier();
}
FUNCTION void warp_barrier(void)
{
    emulated_warp_barrier();
}
FUNCTION float shuffle_from(float value, uint32_t from)
{
    return emulated_shuffle(value, from);
}
FUNCTION float shuffle_xor(float value, uint32_t mask)
{
    return emulated_shuffle(value, lane() ^ mask);
}

#endif
