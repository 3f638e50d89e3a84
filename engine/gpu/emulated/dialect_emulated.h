/* The dialect on the emulated device: each thread of a block is a fiber (fibers.c), device addresses are
 * translated at every access (memory.c), and accesses are checked when checks are on. */
#ifndef MOTLEY_ENGINE_GPU_EMULATED_DIALECT_EMULATED_H
#define MOTLEY_ENGINE_GPU_EMULATED_DIALECT_EMULATED_H

#include <stdint.h>

enum emulated_access { EMULATED_READ, EMULATED_WRITE, EMULATED_ATOMIC };

/* Places where the fiber that runs now may go on without asking: an allocation that holds a page's address,
 * as `begin` and `bytes` from there; bytes 0: none. */
enum { EMULATED_NEAR = 16, EMULATED_UNIT = 16 };
struct emulated_near {
    uintptr_t begin;
    uint64_t bytes;
};

/* What a fiber knows of itself; one launch runs on one host thread. */
struct emulated_thread {
    uint32_t thread, block_x, block_y, block_z, blocks_x, warp_size;
    /* Where accesses are not checked by a shadow, what most of them need: by (address / 4096) %
     * EMULATED_NEAR, and the host's distance from addresses; of shared memory how many bytes of each unit are
     * an array's. All empty where they are checked. */
    struct emulated_near near[EMULATED_NEAR];
    uint8_t *pages;
    uintptr_t addresses;
    const uint8_t *block_memory, *block_units;
    uint64_t block_bytes;
};
extern _Thread_local struct emulated_thread emulated_now;

/* What the words of the dialect come to, for the fiber that runs now. Where the host finds an address of the
 * device, an access checked; a fault ends the launch, and the function does not return. */
void *emulated_global(uintptr_t address, uint32_t bytes, enum emulated_access access);
/* The array of the block that this place in a kernel declares, the same for all its threads. */
void *emulated_block_memory(const void *site, uint64_t bytes);
/* An access to it, checked. Returns `at`. */
void *emulated_shared(const void *at, uint32_t bytes, enum emulated_access access);
/* Wait for all threads of the block; */
void emulated_barrier(void);
/* for all lanes of the warp; */
void emulated_warp_barrier(void);
/* for them, with the value that lane `from` gave. */
float emulated_shuffle(float value, uint32_t from);
/* End the launch: `text` does not hold. */
void emulated_assert(const char *text);

#define FUNCTION static inline __attribute__((unused))
/* The same two, with a short way for what is known already. */
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
#define POINTER(type, address) ((type *)(uintptr_t)(address))
#define LOAD(p, i)                                                                                           \
    (*(const __typeof__(*(p)) *)emulated_global_near((uintptr_t)((p) + (i)), sizeof *(p), EMULATED_READ))
#define STORE(p, i, v)                                                                                       \
    do {                                                                                                     \
        const __typeof__(*(p)) emulated_value = (v);                                                         \
        *(__typeof__(p))emulated_global_near((uintptr_t)((p) + (i)), sizeof *(p), EMULATED_WRITE) =          \
            emulated_value;                                                                                  \
    } while (0)
#define ADD_ATOMIC_U32(p, i, v)                                                                              \
    __atomic_fetch_add((uint32_t *)emulated_global((uintptr_t)((p) + (i)), 4, EMULATED_ATOMIC),              \
                       (uint32_t)(v), __ATOMIC_RELAXED)
#define SHARED(type, name, count)                                                                            \
    static const char emulated_site_##name;                                                                  \
    type *const name = emulated_block_memory(&emulated_site_##name, sizeof(type) * (count))
#define GET(name, i)                                                                                         \
    (*(const __typeof__(*(name)) *)emulated_shared_near((name) + (i), sizeof *(name), EMULATED_READ))
#define PUT(name, i, v)                                                                                      \
    do {                                                                                                     \
        const __typeof__(*(name)) emulated_value = (v);                                                      \
        *(__typeof__(*(name)) *)emulated_shared_near((name) + (i), sizeof *(name), EMULATED_WRITE) =         \
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
