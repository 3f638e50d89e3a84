/* Every false claim in a safetensors header is found, written files read back, and a file is written whole or
 * not at all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/rand.h"
#include "model/files/safetensors.h"
#include "support/scratch.h"

/* Makes a file in memory: the header's length (or 'claimed'), the header with ' for ", and 'data'
 * zero bytes. */
static size_t make(uint8_t *out, const char *header, uint64_t claimed, size_t data)
{
    size_t n = strlen(header);
    uint64_t length = claimed ? claimed : n;
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(length >> (8 * i));
    for (size_t i = 0; i < n; i++)
        out[8 + i] = (uint8_t)(header[i] == '\'' ? '"' : header[i]);
    memset(out + 8 + n, 0, data);
    return 8 + n + data;
}

static void refused(const char *header, uint64_t claimed, size_t data, const char *word)
{
    uint8_t file[4096];
    struct safetensors *st;
    struct err err = {0};
    size_t size = make(file, header, claimed, data);
    if (safetensors_open_memory(file, size, &st, &err) == 0)
        fail_msg("accepted: %s", header);
    if (err.code != ERR_CORRUPT || !strstr(err.text, word))
        fail_msg("%s: %s (%s)", header, err.text, err_code_name(err.code));
    assert_null(st);
}

static void lies_of_the_header_are_refused_by_name(void **state)
{
    (void)state;
    refused("{'a':{'dtype':'F32','shape':[2],'data_offsets':[0,8]}}", 1ull << 40, 8, "header of");
    refused("{'a':{'dtype':'F32','shape':[2],'data_offsets':[0,8]}}", UINT64_MAX, 8, "header of");
    refused("{'a':{'dtype':'F32','shape':[2],'data_offsets':[0,8]}}", 1, 8, "header of");
    /* the data is truncated */
    refused("{'a':{'dtype':'F32','shape':[2],'data_offsets':[0,8]}}", 0, 4, "\"a\"");
    /* bytes are left over */
    refused("{'a':{'dtype':'F32','shape':[2],'data_offsets':[0,8]}}", 0, 12, "12");
    /* the shape contradicts the bytes */
    refused("{'a':{'dtype':'F32','shape':[3],'data_offsets':[0,8]}}", 0, 8, "\"a\"");
    /* the dtype contradicts the bytes */
    refused("{'a':{'dtype':'F16','shape':[2],'data_offsets':[0,8]}}", 0, 8, "\"a\"");
    refused("{'a':{'dtype':'Q4','shape':[2],'data_offsets':[0,8]}}", 0, 8, "Q4");
    refused("{'a':{'dtype':'F32','shape':[2],'data_offsets':[8,0]}}", 0, 8, "\"a\"");
    refused("{'a':{'dtype':'F32','shape':[2],'data_offsets':[-8,0]}}", 0, 8, "\"a\"");
    refused("{'a':{'dtype':'F32','shape':[-2],'data_offsets':[0,8]}}", 0, 8, "\"a\"");
    refused("{'a':{'dtype':'F32','shape':[2.0],'data_offsets':[0,8]}}", 0, 8, "\"a\"");
    refused("{'a':{'dtype':'F32','shape':2,'data_offsets':[0,8]}}", 0, 8, "\"a\"");
    refused("{'a':{'dtype':'F32','shape':[2],'data_offsets':[0,8,9]}}", 0, 8, "\"a\"");
    refused("{'a':{'dtype':'F32','shape':[2],'data_offsets':[0,8],'extra':1}}", 0, 8, "\"a\"");
    refused("{'a':{'dtype':'F32','shape':[2]}}", 0, 8, "\"a\"");
    refused("{'a':7}", 0, 8, "\"a\"");
    refused("{'a':{'dtype':'F32','shape':[4503599627370496,4503599627370496],'data_offsets':[0,8]}}", 0, 8,
            "overflows");
    refused("{'a':{'dtype':'F32','shape':[2],'data_offsets':[0,8]},"
            "'b':{'dtype':'F32','shape':[2],'data_offsets':[4,12]}}",
            0, 12, "overlaps");
    refused("{'a':{'dtype':'F32','shape':[2],'data_offsets':[0,8]},"
            "'b':{'dtype':'F32','shape':[2],'data_offsets':[12,20]}}",
            0, 20, "hole");
    refused("{'a':{'dtype':'F32','shape':[2],'data_offsets':[0,8]},"
            "'a':{'dtype':'F32','shape':[2],'data_offsets':[8,16]}}",
            0, 16, "header");
    refused("{'__metadata__':{'format':1}}", 0, 0, "__metadata__");
    refused("[1,2]", 0, 0, "header");
    refused("{'a':", 0, 0, "header");
    refused("", 0, 0, "header of 0");
}

static void a_file_shorter_than_its_length_is_refused(void **state)
{
    (void)state;
    struct safetensors *st;
    struct err err;
    uint8_t bytes[7] = {0};
    for (size_t n = 0; n <= sizeof(bytes); n++) {
        assert_int_equal(safetensors_open_memory(bytes, n, &st, &err), -1);
        assert_int_equal(err.code, ERR_CORRUPT);
    }
}

static int fill_bytes(void *arg, uint64_t offset, size_t size, void *dst, struct err *err)
{
    (void)arg;
    (void)err;
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)dst)[i] = (uint8_t)((offset + i) * 7);
    return 0;
}

static int fill_fails(void *arg, uint64_t offset, size_t size, void *dst, struct err *err)
{
    (void)arg;
    (void)offset;
    memset(dst, 0, size);
    return err_set(err, ERR_CANCELLED, "no more");
}

static void what_is_written_reads_back(void **state)
{
    (void)state;
    struct scratch scratch;
    struct err err;
    static const float a[6] = {1, -2, 3.5f, 0, 1e-30f, 6};
    static const uint16_t b[2] = {0x3f80, 0xc000}; /* 1 and -2 in bf16 */
    struct safetensors_item items[] = {
        {.name = "a", .type = TENSOR_F32, .rank = 2, .shape = {2, 3}, .data = a},
        {.name = "b.weight", .type = TENSOR_BF16, .rank = 1, .shape = {2}, .data = b},
        {.name = "big", .type = TENSOR_U8, .rank = 1, .shape = {3000001}, .fill = fill_bytes},
        {.name = "none", .type = TENSOR_F32, .rank = 2, .shape = {0, 4}},
        {.name = "scalar", .type = TENSOR_F32, .rank = 0, .data = a},
    };
    struct safetensors_meta meta = {"format", "pt"};
    assert_int_equal(scratch_make(&scratch), 0);
    const char *path = scratch_path(&scratch, "x.safetensors");
    assert_int_equal(safetensors_write(path, items, 5, &meta, 1, &err), 0);
    struct safetensors *st;
    if (safetensors_open_path(path, &st, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(safetensors_count(st), 5);
    assert_string_equal(safetensors_metadata(st, "format"), "pt");
    const struct safetensors_tensor *t = safetensors_find(st, "a");
    float read[6];
    assert_int_equal(safetensors_read_f32(st, t, read, 6, &err), 0);
    assert_memory_equal(read, a, sizeof(a));
    assert_int_equal(t->offset % 8, 0);
    assert_int_equal(safetensors_read_f32(st, safetensors_find(st, "b.weight"), read, 2, &err), 0);
    assert_true(read[0] == 1 && read[1] == -2);
    assert_int_equal(safetensors_read_f32(st, t, read, 5, &err), -1);
    uint8_t byte;
    assert_int_equal(safetensors_read(st, safetensors_find(st, "big"), 2999999, 1, &byte, &err), 0);
    assert_int_equal(byte, (uint8_t)(2999999 * 7));
    assert_int_equal(safetensors_read(st, t, 20, 5, read, &err), -1);
    assert_null(safetensors_find(st, "c"));
    safetensors_close(st);

    struct buf once = {.limit = 4 << 20}, whole = {.limit = 4 << 20};
    assert_int_equal(safetensors_encode(items, 5, &meta, 1, &once, &err), 0);
    assert_int_equal(file_read_all(path, 4 << 20, &whole, &err), 0);
    assert_int_equal(once.size, whole.size);
    assert_memory_equal(once.data, whole.data, once.size);
    buf_fini(&once);
    buf_fini(&whole);
    scratch_remove(&scratch);
}

static void a_failed_write_leaves_the_old_file_and_nothing_else(void **state)
{
    (void)state;
    struct scratch scratch;
    struct err err;
    struct buf text = {.limit = 100};
    struct safetensors_item item = {
        .name = "a", .type = TENSOR_F32, .rank = 1, .shape = {100}, .fill = fill_fails};
    assert_int_equal(scratch_make(&scratch), 0);
    const char *path = scratch_path(&scratch, "x");
    assert_int_equal(file_write_atomic(path, "old", 3, 0600, &err), 0);
    assert_int_equal(safetensors_write(path, &item, 1, NULL, 0, &err), -1);
    assert_int_equal(err.code, ERR_CANCELLED);
    assert_int_equal(file_read_all(path, 100, &text, &err), 0);
    assert_string_equal(buf_str(&text), "old");
    unlink(path);
    assert_int_equal(rmdir(scratch.dir), 0); /* no temporary file was left beside it */
    struct safetensors_item twice[2] = {{.name = "a", .type = TENSOR_F32, .data = "abcd"},
                                        {.name = "a", .type = TENSOR_F32, .data = "abcd"}};
    assert_int_equal(safetensors_encode(twice, 2, NULL, 0, &text, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    buf_fini(&text);
}

/* After any change of the bytes, opening ends in an error or in a file all of whose tensors can be read. */
static void mutated_files_never_read_out_of_bounds(void **state)
{
    (void)state;
    struct rand_stream rand;
    struct err err;
    rand_stream_init(&rand, 20240601, 1);
    uint8_t good[512];
    size_t size =
        make(good,
             "{'__metadata__':{'format':'pt'},'a':{'dtype':'F32','shape':[2,3],'data_offsets':[0,24]},"
             "'b':{'dtype':'BF16','shape':[5],'data_offsets':[24,34]}}",
             0, 34);
    int opened = 0;
    for (int round = 0; round < 20000; round++) {
        size_t n = rand_stream_below(&rand, 8) == 0 ? rand_stream_below(&rand, (uint32_t)size + 1) : size;
        /* the buffer has the exact size, so that a sanitizer finds one byte too many */
        uint8_t *bytes = malloc(n ? n : 1);
        memcpy(bytes, good, n);
        for (uint32_t k = 1 + rand_stream_below(&rand, 4); n && k > 0; k--) {
            static const char useful[] = "0123456789[]{},\":-eF";
            size_t at = rand_stream_below(&rand, (uint32_t)n);
            bytes[at] = rand_stream_below(&rand, 2) ? (uint8_t)useful[rand_stream_below(&rand, 20)]
                                                    : (uint8_t)rand_stream_u32(&rand);
        }
        struct safetensors *st;
        if (safetensors_open_memory(bytes, n, &st, &err) == 0) {
            opened++;
            for (uint32_t i = 0; i < safetensors_count(st); i++) {
                const struct safetensors_tensor *t = safetensors_at(st, i);
                uint8_t copy[64];
                assert_true(t->size <= sizeof(copy));
                assert_int_equal(safetensors_read(st, t, 0, (size_t)t->size, copy, &err), 0);
            }
            safetensors_close(st);
        } else {
            assert_true(err.code == ERR_CORRUPT && err.text[0]);
        }
        free(bytes);
    }
    assert_true(opened > 100); /* enough mutated files must still open */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lies_of_the_header_are_refused_by_name),
        cmocka_unit_test(a_file_shorter_than_its_length_is_refused),
        cmocka_unit_test(what_is_written_reads_back),
        cmocka_unit_test(a_failed_write_leaves_the_old_file_and_nothing_else),
        cmocka_unit_test(mutated_files_never_read_out_of_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
