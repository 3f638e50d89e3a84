/* Files are recognised by their first bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "model/files/file_kind.h"

#define HEAD(text) text, sizeof(text) - 1

static const struct head {
    const char *bytes;
    size_t size;
    enum file_kind kind;
} heads[] = {
    {HEAD("\x1f\x8b\x08"), FILE_KIND_GZIP},
    {HEAD("\x28\xb5\x2f\xfd\x24"), FILE_KIND_ZSTD},
    {HEAD("\xfd"
          "7zXZ\0\0"),
     FILE_KIND_XZ},
    {HEAD("BZh91AY"), FILE_KIND_BZIP2},
    {HEAD("PK\x03\x04\x14\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x08\0\0\0rows.csv"), FILE_KIND_ZIP},
    {HEAD("PK\x03\x04\0\0\x08\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\x12\0archive/data.pkl"),
     FILE_KIND_TORCH},
    {HEAD("\x80\x02}q\0"), FILE_KIND_PICKLE},
    {HEAD("PAR1\x15\x04"), FILE_KIND_PARQUET},
    {HEAD("ARROW1\0\0"), FILE_KIND_ARROW},
    {HEAD("\xff\xfe{\0"), FILE_KIND_UTF16},
    {HEAD("{\0\"\0"), FILE_KIND_UTF16},
    {HEAD("\0{\0\""), FILE_KIND_UTF16},
    {HEAD("version https://git-lfs.github.com/spec/v1\noid sha256:00\n"), FILE_KIND_LFS},
    {HEAD("\n<!DOCTYPE html><html>"), FILE_KIND_HTML},
    {HEAD("<HTML>"), FILE_KIND_HTML},
    {HEAD("GGUF\x03\0\0\0"), FILE_KIND_GGUF},
    {HEAD("\x40\0\0\0\0\0\0\0{\"a\":"), FILE_KIND_SAFETENSORS},
    {HEAD("\xef\xbb\xbf {\"a\":1}"), FILE_KIND_JSON_OBJECT},
    {HEAD(" [1"), FILE_KIND_JSON_ARRAY},
    {HEAD("a,b\n"), FILE_KIND_OTHER},
    {HEAD(""), FILE_KIND_OTHER},
};

static void every_kind_is_known_by_its_first_bytes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        const enum file_kind kind = file_kind_of(heads[i].bytes, heads[i].size);
        if (kind != heads[i].kind)
            fail_msg("head %zu is %s, not %s", i, file_kind_name(kind), file_kind_name(heads[i].kind));
        assert_true(strlen(file_kind_name(kind)) > 3);
    }
    char tar[512] = "rows.jsonl";
    memcpy(tar + 257, "ustar", 5);
    assert_int_equal(FILE_KIND_TAR, file_kind_of(tar, sizeof(tar)));
}

/* Each head is given in memory of exactly its size, so that the address sanitizer finds a read beyond it. */
static void no_head_is_read_beyond_its_end(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        for (size_t size = 0; size <= heads[i].size; size++) {
            char *copy = malloc(size > 0 ? size : 1);
            assert_non_null(copy);
            memcpy(copy, heads[i].bytes, size);
            (void)file_kind_of(copy, size);
            free(copy);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_is_known_by_its_first_bytes),
        cmocka_unit_test(no_head_is_read_beyond_its_end),
    };
    return cmocka_run_group_tests_name("file_kind", tests, NULL, NULL);
}
