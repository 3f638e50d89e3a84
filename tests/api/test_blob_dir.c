/* Tests that a file that was just uploaded outlives a sweep that looked before. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/request/blob_dir.h"
#include "common/clock.h"
#include "common/digest.h"
#include "support/must.h"
#include "support/scratch.h"

/* The last byte of an upload in parts came an hour ago, and hashing and syncing it took as long. A sweep
 * looked while it was hashed. */
static void an_upload_in_parts_is_as_new_as_its_end(void **state)
{
    (void)state;
    enum { OWNER = 3, HOUR_S = 3600 };
    struct scratch scratch;
    struct blob_dir *dir;
    struct blob_writer *writer;
    struct manifest manifest;
    struct err err;
    char sha256[DIGEST_HEX_SIZE], path[BLOB_PATH_MAX], part[120];
    uint64_t received;
    const int64_t now_s = clock_wall_us() / 1000000;
    assert_int_equal(scratch_make(&scratch), 0);
    must(digest_sha256_hex("rows", 4, sha256, &err), &err);
    must(blob_dir_open(scratch_path(&scratch, "blobs"), &dir, &err), &err);
    must(blob_writer_resume(dir, OWNER, sha256, &writer, &received, &err), &err);
    must(blob_writer_add(writer, "rows", 4, &err), &err);
    snprintf(part, sizeof(part), "blobs/tmp/part-%d-%.64s", OWNER, sha256);
    const struct timespec old[2] = {{.tv_sec = now_s - HOUR_S}, {.tv_sec = now_s - HOUR_S}};
    assert_int_equal(utimensat(AT_FDCWD, scratch_path(&scratch, part), old, 0), 0);
    must(blob_writer_finish(writer, sha256, &manifest, &err), &err);
    blob_writer_destroy(writer);
    blob_path(dir, sha256, path);
    assert_false(blob_remove(dir, sha256, now_s - HOUR_S / 2));
    assert_int_equal(access(path, R_OK), 0);
    assert_true(blob_remove(dir, sha256, now_s + HOUR_S));
    assert_int_equal(access(path, R_OK), -1);
    manifest_fini(&manifest);
    blob_dir_close(dir);
    scratch_remove(&scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_upload_in_parts_is_as_new_as_its_end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
