/* NF4 equals bitsandbytes' result for the same values, bit for bit. tests/data/golden/nf4 is an excerpt of
 * ../shared/golden/nf4 without its large inputs; added are the unsigned dynamic map, and means of 1 to 40 and
 * of 30001 values, recorded with PyTorch 2.15 and bitsandbytes 0.50.2. Where the whole file is present, all
 * of it is tested. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/files/dynamic_map.h"
#include "model/files/nf4.h"
#define LANES 4
#include "model/files/nf4_blocks.h"
#include "model/files/safetensors.h"
#include "support/must.h"

struct golden {
    struct safetensors *file;
    const char *name; /* name of the case */
};

/* Returns the bytes of the case's tensor `what`, to be freed, or NULL when the file lacks it. */
static void *tensor(const struct golden *golden, const char *what, uint64_t *bytes)
{
    char name[64];
    struct err err;
    snprintf(name, sizeof(name), "%s.%s", golden->name, what);
    const struct safetensors_tensor *found = safetensors_find(golden->file, name);
    if (!found)
        return NULL;
    void *data = malloc(found->size + 1);
    check(safetensors_read(golden->file, found, 0, found->size, data, &err));
    *bytes = found->size;
    return data;
}

static void same(const struct golden *golden, const char *what, const void *got)
{
    uint64_t bytes = 0;
    void *want = tensor(golden, what, &bytes);
    if (!want)
        fail_msg("%s.%s is missing", golden->name, what);
    for (uint64_t i = 0; i < bytes; i++)
        if (((const uint8_t *)want)[i] != ((const uint8_t *)got)[i])
            fail_msg("%s.%s differs at byte %llu of %llu", golden->name, what, (unsigned long long)i,
                     (unsigned long long)bytes);
    free(want);
}

/* Quantising in pieces of a few blocks each gives the same as quantising the whole. */
static void quantised_is_golden(const struct golden *golden, uint64_t piece)
{
    uint64_t bytes = 0, count;
    float *input = tensor(golden, "input", &bytes);
    if (!input)
        return;
    count = bytes / 4;
    uint8_t *codes = malloc(nf4_code_bytes(count));
    float *absmax = malloc(4 * nf4_blocks(count)), *values = malloc(4 * count);
    for (uint64_t at = 0; at < count; at += piece)
        nf4_quantise(input + at, count - at < piece ? count - at : piece, codes + at / 2,
                     absmax + at / NF4_BLOCK);
    same(golden, "single.codes", codes);
    same(golden, "single.absmax", absmax);
    nf4_dequantise(codes, absmax, count, values);
    same(golden, "single.dequantised", values);
    free(input), free(codes), free(absmax), free(values);
}

static void nested_is_golden(const struct golden *golden)
{
    uint64_t bytes = 0, blocks, code_bytes = 0;
    float *absmax = tensor(golden, "single.absmax", &bytes);
    blocks = bytes / 4;
    uint8_t *nested = malloc(blocks), *codes = tensor(golden, "double.codes", &code_bytes);
    float *scales = malloc(4 * (2 + blocks / NF4_NESTED_BLOCK)), map[DYNAMIC_MAP_SIZE];
    dynamic_map(true, map);
    nf4_nest(absmax, blocks, nested, scales);
    same(golden, "double.offset", scales);
    same(golden, "double.absmax2", scales + 1);
    same(golden, "double.absmax", nested);
    /* blocks are restored one by one, because the result must not depend on where a range begins */
    for (uint64_t i = 0; i < blocks; i++)
        nf4_unnest(map, nested, scales, i, 1, absmax + i);
    if (codes) {
        uint64_t count = 0;
        float *values = malloc(8 * code_bytes);
        free(tensor(golden, "double.dequantised", &count));
        nf4_dequantise(codes, absmax, count / 4, values);
        same(golden, "double.dequantised", values);
        free(values);
    }
    free(absmax), free(nested), free(codes), free(scales);
}

static void cases_are_golden(const char *path)
{
    static const char *const names[] = {"normal", "heavy", "zeros", "ragged", "large"};
    struct golden golden;
    struct err err;
    check(safetensors_open_path(path, &golden.file, &err));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        golden.name = names[i];
        quantised_is_golden(&golden, UINT64_MAX / 2);
        quantised_is_golden(&golden, 192);
        nested_is_golden(&golden);
    }
    safetensors_close(golden.file);
}

static void nf4_is_bitsandbytes_to_the_bit(void **state)
{
    (void)state;
    cases_are_golden(MOTLEY_TEST_DATA "/golden/nf4/nf4.safetensors");
}

static void all_of_the_golden_file_is_matched(void **state)
{
    char path[4096];
    const char *source = getenv("MOTLEY_SOURCE");
    (void)state;
    snprintf(path, sizeof(path), "%s/../shared/golden/nf4/nf4.safetensors", !source ? "." : source);
    if (access(path, R_OK) != 0) {
        print_message("[  SKIPPED ] no %s\n", path);
        skip();
    }
    cases_are_golden(path);
}

static void tables_are_bitsandbytes(void **state)
{
    float map[DYNAMIC_MAP_SIZE];
    struct golden golden = {.name = "heavy"};
    struct err err;
    (void)state;
    check(safetensors_open_path(MOTLEY_TEST_DATA "/golden/nf4/nf4.safetensors", &golden.file, &err));
    dynamic_map(true, map);
    same(&golden, "double.code2", map);
    golden.name = "map";
    dynamic_map(false, map);
    same(&golden, "unsigned", map);
    safetensors_close(golden.file);
}

static void the_mean_is_summed_in_pytorchs_order(void **state)
{
    enum { COUNT = 30001, FEW = 40 };
    struct golden golden = {.name = "mean"};
    struct err err;
    float *absmax = malloc(4 * COUNT), *scales = malloc(4 * (2 + COUNT / NF4_NESTED_BLOCK)), few[FEW];
    uint8_t *nested = malloc(COUNT);
    (void)state;
    for (uint64_t i = 0; i < COUNT; i++)
        absmax[i] =
            (float)((1 + (double)(i * 2654435761u % (1u << 24)) / (1 << 24)) * (i % 7 == 3 ? 1000 : 1));
    check(safetensors_open_path(MOTLEY_TEST_DATA "/golden/nf4/nf4.safetensors", &golden.file, &err));
    for (uint64_t n = 1; n <= FEW; n++) { /* mean of the first n values */
        nf4_nest(absmax, n, nested, scales);
        few[n - 1] = scales[0];
    }
    same(&golden, "few", few);
    nf4_nest(absmax, COUNT, nested, scales);
    same(&golden, "30001", scales);
    safetensors_close(golden.file);
    free(absmax), free(scales), free(nested);
}

/* Values that are not finite must not lead outside an array. */
static void what_is_no_number_does_no_harm(void **state)
{
    float values[130], absmax[3], scales[2], map[DYNAMIC_MAP_SIZE];
    uint8_t codes[65], nested[3];
    (void)state;
    dynamic_map(true, map);
    for (int i = 0; i < 130; i++)
        values[i] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -1e-40f;
    nf4_quantise(values, 130, codes, absmax);
    nf4_nest(absmax, 3, nested, scales);
    nf4_unnest(map, nested, scales, 0, 3, absmax);
    nf4_dequantise(codes, absmax, 130, values);
    assert_true(nf4_code_bytes(129) == 65 && nf4_blocks(129) == 3 && nf4_scales(129) == 2);
}

/* The test covers whichever vector width this machine uses. */
static void blocks_are_the_same_by_vectors_of_any_width(void **state)
{
    (void)state;
    enum { BLOCKS = 500 };
    static float values[BLOCKS * NF4_BLOCK], absmax[2][BLOCKS];
    static uint8_t codes[2][BLOCKS * NF4_BLOCK / 2];
    float bounds[BOUNDS];
    uint64_t noise = 88172645463325252ull;
    for (int c = 0; c < BOUNDS; c++)
        bounds[c] = (nf4_table[c] + nf4_table[c + 1]) / 2.0f;
    for (int i = 0; i < BLOCKS * NF4_BLOCK; i++) {
        noise ^= noise << 13, noise ^= noise >> 7, noise ^= noise << 17;
        values[i] = ldexpf((float)(int32_t)(noise & 0xFFFFFFFFu), -(int)(i / NF4_BLOCK) % 140 - 20);
        if (noise >> 32 < 0x10000000u) /* the scaled value lies exactly on a bound */
            values[i] = bounds[(noise >> 60) % BOUNDS];
    }
    memset(values + NF4_BLOCK, 0, NF4_BLOCK * sizeof(*values));
    if (!__builtin_cpu_supports("avx2")) {
        print_message("SKIP: this machine has no AVX2\n");
        skip();
    }
    quantise_blocks(bounds, values, BLOCKS, codes[0], absmax[0]);
    nf4_blocks_avx2(bounds, values, BLOCKS, codes[1], absmax[1]);
    assert_memory_equal(codes[0], codes[1], sizeof(codes[0]));
    assert_memory_equal(absmax[0], absmax[1], sizeof(absmax[0]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nf4_is_bitsandbytes_to_the_bit),
        cmocka_unit_test(all_of_the_golden_file_is_matched),
        cmocka_unit_test(tables_are_bitsandbytes),
        cmocka_unit_test(the_mean_is_summed_in_pytorchs_order),
        cmocka_unit_test(what_is_no_number_does_no_harm),
        cmocka_unit_test(blocks_are_the_same_by_vectors_of_any_width),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
