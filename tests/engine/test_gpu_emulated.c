/* Tests that the emulated GPU finds faults in kernels: each kind of fault is planted in a kernel and must be
 * named, and the same kernel without the fault must run, with warps of 32 and 64 threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "engine/gpu/emulated/emulated.h"
#include "engine/gpu/kernels/dialect.h"
#include "support/must.h"

enum { THREADS = 128, COUNT = 4 * THREADS }; /* COUNT: the words of each allocation */

/* data and other have COUNT words, of which only those of `data` are written before the kernel runs. freed is
 * a released allocation. planted says whether the fault is there. */
struct plant_args {
    uint64_t data, other, freed;
    uint32_t planted;
};

/* Defines a kernel of this file; its arguments are a struct plant_args. */
#define PLANT(name, threads)                                                                                 \
    struct name##_args {                                                                                     \
        struct plant_args of;                                                                                \
    };                                                                                                       \
    KERNEL(name, threads)
#define DATA POINTER(uint32_t, args.of.data)
#define OTHER POINTER(uint32_t, args.of.other)
#define PLANTED (args.of.planted != 0)

/* --- places that are not there */

PLANT(read_beyond, THREADS)
{
    STORE(OTHER, thread(), LOAD(DATA, thread() + (PLANTED ? COUNT - THREADS + 1 : COUNT - THREADS)));
}

PLANT(write_beyond, THREADS)
{
    STORE(DATA, thread() + (PLANTED ? COUNT - THREADS + 1 : COUNT - THREADS), 1u);
}

PLANT(read_before, THREADS)
{
    STORE(OTHER, thread(), LOAD(DATA - (PLANTED ? 1 : 0), thread()));
}

PLANT(read_freed, THREADS)
{
    STORE(OTHER, thread(), LOAD(POINTER(uint32_t, PLANTED ? args.of.freed : args.of.data), thread()));
}

PLANT(read_null, THREADS)
{
    STORE(OTHER, thread(), LOAD(POINTER(uint32_t, PLANTED ? 0 : args.of.data), thread()));
}

PLANT(misaligned, THREADS)
{
    STORE(OTHER, thread(), LOAD(POINTER(uint32_t, args.of.data + (PLANTED ? 2 : 0)), thread()));
}

PLANT(shared_beyond, THREADS)
{
    SHARED(uint32_t, first, THREADS);
    SHARED(uint32_t, second, THREADS);
    PUT(first, thread() + (PLANTED ? 1 : 0), 1u);
    PUT(second, thread(), 2u);
}

PLANT(shared_misaligned, THREADS)
{
    SHARED(uint32_t, cells, THREADS + 1);
    if (thread() < 64)
        PUT((uint64_t *)(cells + (PLANTED ? 1 : 0)), thread(), (uint64_t)1);
}

PLANT(shared_too_large, THREADS)
{
    SHARED(uint32_t, most, EMULATED_SHARED_BYTES / 4 - 4);
    SHARED(uint32_t, more, PLANTED ? 5 : 4);
    PUT(most, thread(), 1u);
    if (thread() < 4)
        PUT(more, thread(), 1u);
}

/* --- values that nobody wrote */

PLANT(uninitialised, THREADS)
{
    if (!PLANTED)
        STORE(OTHER, thread(), 1u);
    STORE(DATA, thread(), LOAD(OTHER, thread()));
}

PLANT(uninitialised_half, THREADS)
{
    STORE(POINTER(uint16_t, args.of.other), 2 * thread(), (uint16_t)1);
    if (!PLANTED)
        STORE(POINTER(uint16_t, args.of.other), 2 * thread() + 1, (uint16_t)1);
    STORE(DATA, thread(), LOAD(OTHER, thread()));
}

PLANT(uninitialised_shared, THREADS)
{
    SHARED(uint32_t, cells, THREADS);
    if (!PLANTED || thread() != 77)
        PUT(cells, thread(), thread());
    STORE(DATA, thread(), GET(cells, thread()));
}

/* A block must not read what an earlier block left in shared memory. */
PLANT(uninitialised_later_block, THREADS)
{
    SHARED(uint32_t, cells, THREADS);
    if (!PLANTED || block_x() == 0)
        PUT(cells, thread(), thread());
    STORE(DATA, block_x() * THREADS + thread(), GET(cells, thread()));
}

/* --- races */

PLANT(race_in_block, THREADS)
{
    STORE(DATA, thread(), thread());
    if (!PLANTED)
        barrier();
    STORE(OTHER, thread(), LOAD(DATA, (thread() + 64) % THREADS));
}

PLANT(race_shared, THREADS)
{
    SHARED(uint32_t, cells, THREADS);
    PUT(cells, thread(), thread());
    if (!PLANTED)
        barrier();
    STORE(OTHER, thread(), GET(cells, thread() % 64));
}

/* The barrier after reading is the one most often forgotten in loops. */
PLANT(race_write_after_read, THREADS)
{
    SHARED(uint32_t, cells, THREADS);
    for (uint32_t turn = 0; turn < 2; turn++) {
        PUT(cells, thread(), turn);
        barrier();
        STORE(OTHER, thread(), GET(cells, THREADS - 1 - thread()));
        if (!PLANTED)
            barrier();
    }
}

PLANT(race_of_lanes, THREADS)
{
    SHARED(uint32_t, cells, THREADS);
    PUT(cells, thread(), thread());
    if (!PLANTED)
        warp_barrier();
    STORE(OTHER, thread(), GET(cells, thread() & ~1u));
}

/* A shuffle does not order memory accesses. */
PLANT(race_despite_shuffle, THREADS)
{
    SHARED(float, cells, THREADS);
    PUT(cells, thread(), 1.0f);
    float sum = shuffle_xor(1.0f, 1);
    if (!PLANTED)
        warp_barrier();
    STORE(POINTER(float, args.of.other), thread(), sum + GET(cells, thread() & ~1u));
}

/* A barrier of the warp does not order other warps. */
PLANT(race_of_warps, THREADS)
{
    SHARED(uint32_t, cells, THREADS);
    PUT(cells, thread(), thread());
    warp_barrier();
    STORE(OTHER, thread(), GET(cells, PLANTED ? thread() % 64 : thread() & ~1u));
}

PLANT(race_of_blocks, THREADS)
{
    uint32_t block = PLANTED ? 0 : block_x();
    STORE(DATA, block * THREADS + thread(), thread());
}

PLANT(race_of_blocks_reading, THREADS)
{
    barrier();
    if (block_x() == 1)
        STORE(DATA, thread(), 1u);
    else
        STORE(OTHER, thread(), LOAD(DATA, thread() + (PLANTED ? 0 : THREADS)));
}

PLANT(race_unatomic, THREADS)
{
    if (PLANTED && thread() == 5)
        STORE(DATA, 0, LOAD(DATA, 0) + 1);
    else
        ADD_ATOMIC_U32(DATA, 0, 1);
}

PLANT(race_of_bytes, THREADS)
{
    STORE(POINTER(uint8_t, args.of.data), PLANTED ? thread() / 2 : thread(), (uint8_t)1);
}

/* --- barriers and shuffles that not all meet */

PLANT(barrier_left_out, THREADS)
{
    if (PLANTED && thread() >= 64)
        return;
    barrier();
}

PLANT(barrier_in_a_branch, THREADS)
{
    if (!PLANTED || thread() % 2 == 0)
        barrier();
    warp_barrier();
}

PLANT(shuffle_in_a_branch, THREADS)
{
    float value = 0.0f;
    if (!PLANTED || thread() < 40)
        value = shuffle_xor(1.0f, 1);
    STORE(POINTER(float, args.of.other), thread(), value);
}

PLANT(shuffle_and_warp_barrier, THREADS)
{
    if (PLANTED && thread() == 3)
        warp_barrier();
    else
        (void)shuffle_xor(1.0f, 1);
}

PLANT(shuffle_and_barrier, THREADS)
{
    if (PLANTED && thread() == 3)
        barrier();
    else
        (void)shuffle_xor(1.0f, 1);
}

/* The block has half a warp, and the shuffle reads from lanes that do not exist. */
PLANT(shuffle_from_nobody, 16)
{
    STORE(POINTER(float, args.of.other), thread(), shuffle_from(1.0f, PLANTED ? 16 : 15));
}

PLANT(assertion, THREADS)
{
    assert_device(!PLANTED || thread() != 100);
}

/* --- of one warp size alone */

PLANT(warp_of_64_only, THREADS)
{
    SHARED(uint32_t, cells, THREADS);
    PUT(cells, thread(), thread());
    warp_barrier();
    STORE(OTHER, thread(), GET(cells, thread() & ~32u));
}

#define KERNEL_OF(kernel, threads_of_block) {#kernel, threads_of_block, emulated_##kernel}

/* The kernels, and the error that each must give when its fault is planted. */
static const struct plant {
    struct gpu_function function;
    const char *says;
    uint32_t blocks; /* number of blocks; 0: one */
} plants[] = {
    {.function = KERNEL_OF(read_beyond, THREADS), .says = "thread 127: reads 4 bytes at address"},
    {.function = KERNEL_OF(write_beyond, THREADS), .says = "thread 127: writes 4 bytes at address"},
    {.function = KERNEL_OF(read_before, THREADS), .says = "thread 0: reads 4 bytes at address"},
    {.function = KERNEL_OF(read_freed, THREADS), .says = "outside of what is allocated"},
    {.function = KERNEL_OF(read_null, THREADS), .says = "outside of what is allocated"},
    {.function = KERNEL_OF(misaligned, THREADS), .says = "not a multiple of its size"},
    {.function = KERNEL_OF(shared_beyond, THREADS),
     .says = "thread 127: writes 4 bytes at shared byte + 512: outside of its array"},
    {.function = KERNEL_OF(shared_misaligned, THREADS),
     .says = "shared byte + 4: not a multiple of its size"},
    {.function = KERNEL_OF(shared_too_large, THREADS), .says = "more shared memory than a block has"},
    {.function = KERNEL_OF(uninitialised, THREADS), .says = "nobody wrote it"},
    {.function = KERNEL_OF(uninitialised_half, THREADS), .says = "nobody wrote it"},
    {.function = KERNEL_OF(uninitialised_shared, THREADS),
     .says = "thread 77: reads 4 bytes at shared byte + 308: nobody wrote it"},
    {.function = KERNEL_OF(uninitialised_later_block, THREADS),
     .says = "block (1, 0, 0), thread 0: reads 4 bytes at shared byte",
     .blocks = 2},
    {.function = KERNEL_OF(race_in_block, THREADS), .says = "no barrier between them (block 0, thread "},
    {.function = KERNEL_OF(race_shared, THREADS), .says = "no barrier between them (block 0, thread "},
    {.function = KERNEL_OF(race_write_after_read, THREADS),
     .says = "no barrier between them (block 0, thread "},
    {.function = KERNEL_OF(race_of_lanes, THREADS), .says = "no barrier between them (block 0, thread "},
    {.function = KERNEL_OF(race_despite_shuffle, THREADS),
     .says = "no barrier between them (block 0, thread "},
    {.function = KERNEL_OF(race_of_warps, THREADS), .says = "no barrier between them (block 0, thread "},
    {.function = KERNEL_OF(race_of_blocks, THREADS),
     .says = "block (1, 0, 0), thread 0: writes 4 bytes at an allocation's byte + 0",
     .blocks = 2},
    {.function = KERNEL_OF(race_of_blocks_reading, THREADS),
     .says = "another thread reads it with no barrier between them (block 0",
     .blocks = 2},
    {.function = KERNEL_OF(race_unatomic, THREADS),
     .says = "thread 5: reads 4 bytes at an allocation's byte + 0: another thread"},
    {.function = KERNEL_OF(race_of_bytes, THREADS),
     .says = "thread 1: writes 1 bytes at an allocation's byte + 0: another thread"},
    {.function = KERNEL_OF(barrier_left_out, THREADS),
     .says = "64 of 128 threads wait at a barrier, the others are done"},
    {.function = KERNEL_OF(barrier_in_a_branch, THREADS), .says = "lanes wait for the warp, "},
    {.function = KERNEL_OF(shuffle_in_a_branch, THREADS), .says = "for a shuffle, 0 for the block, "},
    {.function = KERNEL_OF(shuffle_and_warp_barrier, THREADS), .says = "1 lanes wait for the warp, "},
    {.function = KERNEL_OF(shuffle_and_barrier, THREADS),
     .says = "for a shuffle, 1 for the block, 0 are done"},
    {.function = KERNEL_OF(shuffle_from_nobody, 16),
     .says = "a shuffle from a lane that the block does not have"},
    {.function = KERNEL_OF(assertion, THREADS), .says = "thread 100: assertion failed: !"},
};
enum { PLANTS = sizeof(plants) / sizeof(*plants) };

/* A device with an allocation `data` that is written and `other` that is not. */
struct bed {
    struct emulated_memory memory;
    struct plant_args args;
};

static void bed_init(struct bed *bed, bool checks)
{
    struct err err;
    memset(bed, 0, sizeof(*bed));
    check(emulated_memory_init(&bed->memory, 1 << 20, checks, &err));
    check(emulated_memory_take(&bed->memory, 4096, &bed->args.freed, &err));
    check(emulated_memory_take(&bed->memory, sizeof(uint32_t[COUNT]), &bed->args.data, &err));
    check(emulated_memory_take(&bed->memory, sizeof(uint32_t[COUNT]), &bed->args.other, &err));
    check(emulated_memory_give(&bed->memory, bed->args.freed, &err));
    void *data = emulated_memory_at(&bed->memory, bed->args.data, sizeof(uint32_t[COUNT]), true);
    assert_non_null(data);
    memset(data, 0, sizeof(uint32_t[COUNT]));
}

static int bed_launch(struct bed *bed, const struct plant *plant, uint32_t warp_size, bool planted,
                      struct err *err)
{
    const struct gpu_dims blocks = {plant->blocks == 0 ? 1 : plant->blocks, 1, 1};
    bed->args.planted = planted;
    return emulated_launch(&bed->memory, &plant->function, warp_size, 0, blocks, plant->function.threads,
                           &bed->args, err);
}

static void plant_check(const struct plant *plant, uint32_t warp_size, bool planted)
{
    struct bed bed;
    struct err err = {0};
    bed_init(&bed, true);
    int status = bed_launch(&bed, plant, warp_size, planted, &err);
    const char *name = plant->function.name;
    if (!planted && status != 0)
        fail_msg("%s, warps of %u, without its fault: %s", name, warp_size, err.text);
    if (planted && status == 0)
        fail_msg("%s, warps of %u: nobody found the fault", name, warp_size);
    if (planted &&
        (err.code != ERR_DEVICE_FAULT || !strstr(err.text, plant->says) || !strstr(err.text, name)))
        fail_msg("%s, warps of %u: '%s' does not say '%s'", name, warp_size, err.text, plant->says);
    emulated_memory_fini(&bed.memory);
}

static void every_planted_fault_is_found_and_named(void **state)
{
    (void)state;
    for (int i = 0; i < PLANTS; i++)
        for (uint32_t warp_size = 32; warp_size <= 64; warp_size *= 2)
            plant_check(&plants[i], warp_size, true);
}

static void the_same_kernels_run_without_their_faults(void **state)
{
    (void)state;
    for (int i = 0; i < PLANTS; i++)
        for (uint32_t warp_size = 32; warp_size <= 64; warp_size *= 2)
            plant_check(&plants[i], warp_size, false);
}

static void what_only_a_warp_of_64_orders_is_a_race_in_one_of_32(void **state)
{
    (void)state;
    static const struct plant plant = {.function = KERNEL_OF(warp_of_64_only, THREADS)};
    for (uint32_t warp_size = 32; warp_size <= 64; warp_size *= 2) {
        struct bed bed;
        struct err err = {0};
        bed_init(&bed, true);
        int status = bed_launch(&bed, &plant, warp_size, true, &err);
        assert_int_equal(status, warp_size == 64 ? 0 : -1);
        if (warp_size == 32)
            assert_non_null(strstr(err.text, "no barrier between them"));
        emulated_memory_fini(&bed.memory);
    }
}

/* Without the option `checks`, the emulated GPU still finds accesses out of bounds, misalignment, barrier
 * faults and failed assertions. */
static void bounds_and_barriers_are_kept_without_checks(void **state)
{
    (void)state;
    for (int i = 0; i < PLANTS; i++) {
        struct bed bed;
        struct err err = {0};
        const char *says = plants[i].says;
        bool shadow = strstr(says, "nobody wrote") || strstr(says, "another thread") ||
                      strstr(says, "no barrier between") ||
                      strstr(plants[i].function.name, "uninitialised") ||
                      strstr(plants[i].function.name, "race");
        bed_init(&bed, false);
        int status = bed_launch(&bed, &plants[i], 32, true, &err);
        if ((status == 0) != shadow)
            fail_msg("%s without checks: %s", plants[i].function.name, status == 0 ? "no fault" : err.text);
        emulated_memory_fini(&bed.memory);
    }
}

/* A fault ends only its own launch; the next launch runs on the same memory. */
static void a_launch_after_a_fault_is_its_own(void **state)
{
    (void)state;
    struct bed bed;
    struct err err = {0};
    bed_init(&bed, true);
    for (int i = 0; i < PLANTS; i++) {
        if (strstr(plants[i].function.name, "uninitialised"))
            continue; /* Other kernels have already written what this one reads. */
        if (bed_launch(&bed, &plants[i], 32, true, &err) == 0)
            fail_msg("%s: nobody found the fault", plants[i].function.name);
        check(bed_launch(&bed, &plants[i], 32, false, &err));
    }
    emulated_memory_fini(&bed.memory);
}

static void allocations_are_counted_and_refused_by_name(void **state)
{
    (void)state;
    struct emulated_memory memory;
    struct emulated_span span;
    struct err err = {0};
    gpu_address a, b, c;
    check(emulated_memory_init(&memory, 1 << 20, true, &err));
    assert_int_equal(emulated_memory_take(&memory, 0, &a, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    check(emulated_memory_take(&memory, 1, &a, &err));
    check(emulated_memory_take(&memory, (1 << 20) - 512, &b, &err));
    assert_int_equal(emulated_memory_take(&memory, 257, &c, &err), -1);
    assert_int_equal(err.code, ERR_NOMEM);
    assert_non_null(strstr(err.text, "has 1048576 bytes, 1048320 are held, 257 were asked for"));
    check(emulated_memory_take(&memory, 256, &c, &err));
    assert_int_equal(emulated_memory_take(&memory, UINT64_MAX - 100, &c, &err), -1);
    assert_int_equal(err.code, ERR_NOMEM);
    assert_true(emulated_memory_find(&memory, a, 1, &span) && span.bytes == 1);
    assert_false(emulated_memory_find(&memory, a, 2, &span));
    assert_false(emulated_memory_find(&memory, b, UINT64_MAX, &span));
    assert_int_equal(emulated_memory_give(&memory, a + 1, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    check(emulated_memory_give(&memory, a, &err));
    assert_false(emulated_memory_find(&memory, a, 1, &span));
    emulated_memory_fini(&memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_planted_fault_is_found_and_named),
        cmocka_unit_test(the_same_kernels_run_without_their_faults),
        cmocka_unit_test(what_only_a_warp_of_64_orders_is_a_race_in_one_of_32),
        cmocka_unit_test(bounds_and_barriers_are_kept_without_checks),
        cmocka_unit_test(a_launch_after_a_fault_is_its_own),
        cmocka_unit_test(allocations_are_counted_and_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
