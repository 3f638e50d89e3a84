/* Building blocks of kernels on rows and flat arrays: each thread handles four neighbouring values. If the
 * host knows that all addresses and row distances are multiples of four values (`wide`), the four move in one
 * access; otherwise one by one, with the same bits.
 */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_FOUR_H
#define MOTLEY_ENGINE_GPU_KERNELS_FOUR_H

/* Types of values, for host and kernels. */
enum { ELEMENT_F32, ELEMENT_BF16, ELEMENT_F16 };

#ifdef GPU_KERNELS

/* A vector and not an array: compilers split an array's load into single values. */
struct four {
    VECTOR(float, v, 4);
};

struct four_halves {
    uint16_t v[4];
} __attribute__((aligned(8)));

/* The position of a thread's n ≤ 4 values; n = 0: it has none. */
struct four_position {
    uint64_t row, column;
    uint32_t n;
};

/* Position of the i-th group of per_thread values in rows of `width` values. A 32-bit division is used where
 * it suffices, because it is faster. */
FUNCTION struct four_position place_of(uint64_t i, uint64_t rows, uint32_t width, uint32_t per_thread)
{
    struct four_position place;
    uint32_t groups = (width + per_thread - 1) / per_thread, group;
    place.row = i <= 0xffffffffu ? (uint32_t)i / groups : i / groups;
    group = (uint32_t)(i - place.row * groups);
    place.column = (uint64_t)group * per_thread;
    place.n = place.row >= rows ? 0 : width - (uint32_t)place.column;
    place.n = place.n < per_thread ? place.n : per_thread;
    return place;
}

/* Position of this thread's values, counting threads over all blocks of `threads`. */
FUNCTION struct four_position place_of_group(uint64_t rows, uint32_t width, uint32_t per_thread,
                                             uint32_t threads)
{
    return place_of((uint64_t)block_x() * threads + thread(), rows, width, per_thread);
}

/* Position of this thread's four values in rows of `width` values, with blocks of 256 threads. */
FUNCTION struct four_position place_in_rows(uint64_t rows, uint32_t width)
{
    return place_of_group(rows, width, 4, 256);
}

/* Position of this thread's four values in a flat array, with blocks of 256 threads; row is 0. */
FUNCTION struct four_position place_in_array(uint64_t count)
{
    struct four_position place;
    place.row = 0;
    place.column = ((uint64_t)block_x() * 256 + thread()) * 4;
    place.n = 0;
    if (place.column < count)
        place.n = count - place.column < 4 ? (uint32_t)(count - place.column) : 4;
    return place;
}

/* Loads p[at..at+n), with 0 beyond. */
FUNCTION struct four four_load(const float *p, uint64_t at, uint32_t n, uint32_t wide)
{
    struct four x;
    if (wide && n == 4)
        return LOAD((const struct four *)(const void *)(p + at), 0);
    UNROLL
    for (uint32_t j = 0; j < 4; j++) {
        x.v[j] = 0.0f;
        if (j < n)
            x.v[j] = LOAD(p, at + j);
    }
    return x;
}

FUNCTION void four_store(float *p, uint64_t at, uint32_t n, uint32_t wide, struct four x)
{
    if (wide && n == 4) {
        struct four *to = (struct four *)(void *)(p + at);
        STORE(to, 0, x);
        return;
    }
    UNROLL
    for (uint32_t j = 0; j < 4; j++)
        if (j < n)
            STORE(p, at + j, x.v[j]);
}

FUNCTION uint32_t element_bytes(uint32_t element)
{
    return element == ELEMENT_F32 ? 4 : 2;
}

FUNCTION float element_of(uint32_t element, uint16_t x)
{
    return element == ELEMENT_BF16 ? math_of_bf16(x) : math_of_f16(x);
}

/* Four 16-bit values as stored, two in each word. */
struct four_words {
    uint32_t w[2];
} __attribute__((aligned(8)));

FUNCTION struct four_words words_load(uint64_t address, uint64_t at, uint32_t n, uint32_t wide)
{
    const uint16_t *p = POINTER(const uint16_t, address);
    struct four_words words;
    uint32_t x[4];
    if (wide && n == 4)
        return LOAD((const struct four_words *)(const void *)(p + at), 0);
    UNROLL
    for (uint32_t j = 0; j < 4; j++)
        x[j] = j < n ? LOAD(p, at + j) : 0u;
    words.w[0] = x[1] << 16 | x[0];
    words.w[1] = x[3] << 16 | x[2];
    return words;
}

/* four_load for values of any element type. */
FUNCTION struct four four_load_as(uint32_t element, uint64_t address, uint64_t at, uint32_t n, uint32_t wide)
{
    struct four x;
    if (element == ELEMENT_F32)
        return four_load(POINTER(const float, address), at, n, wide);
    struct four_words words = words_load(address, at, n, wide);
    UNROLL
    for (uint32_t j = 0; j < 4; j++)
        x.v[j] = element_of(element, (uint16_t)(words.w[j / 2] >> 16 * (j % 2)));
    return x;
}

FUNCTION void four_store_as(uint32_t element, uint64_t address, uint64_t at, uint32_t n, uint32_t wide,
                            struct four x)
{
    struct four_halves h;
    uint16_t *p = POINTER(uint16_t, address);
    if (element == ELEMENT_F32) {
        four_store(POINTER(float, address), at, n, wide, x);
        return;
    }
    UNROLL
    for (uint32_t j = 0; j < 4; j++)
        h.v[j] = element == ELEMENT_BF16 ? math_to_bf16(x.v[j]) : math_to_f16(x.v[j]);
    if (wide && n == 4) {
        struct four_halves *to = (struct four_halves *)(void *)(p + at);
        STORE(to, 0, h);
        return;
    }
    UNROLL
    for (uint32_t j = 0; j < 4; j++)
        if (j < n)
            STORE(p, at + j, h.v[j]);
}

#endif
#endif
