/* Tests errors, buffers, arrays, digests, random numbers, files, clocks, processes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <math.h>

#include "common/array.h"
#include "common/buf.h"
#include "common/digest.h"
#include "common/rand.h"
#include "support/services.h"

static void errors_keep_code_and_errno_and_are_cut(void **state)
{
    (void)state;
    struct err err = {0};
    errno = ENOSPC;
    assert_int_equal(err_set(&err, ERR_NOFIT, "rank %d: %s", 3, "too small"), -1);
    assert_int_equal(err_wrap(&err, "plan of %s", "job 7"), -1);
    assert_int_equal(errno, ENOSPC);
    assert_int_equal(err.code, ERR_NOFIT);
    assert_string_equal(err.text, "plan of job 7: rank 3: too small");
    err_set(&err, ERR_IO, "again: %s", err.text); /* the error's own text is an argument */
    assert_string_equal(err.text, "again: plan of job 7: rank 3: too small");
    char lengthy[2000];
    memset(lengthy, 'x', sizeof(lengthy) - 1);
    lengthy[sizeof(lengthy) - 1] = '\0';
    err_set(&err, ERR_INTERNAL, "%s", lengthy);
    err_wrap(&err, "%s", lengthy);
    assert_int_equal(strlen(err.text), sizeof(err.text) - 1);
    err_set(&err, ERR_INVALID, "%.4s", "ab\xc3\xa9\xe4\xb8\xad");
    assert_string_equal(err.text, "ab\xc3\xa9");
    err_set(&err, ERR_INVALID, "%.6s and %.1s", "ab\xc3\xa9\xe4\xb8\xad", "\xf0\x9f\x98\x80");
    /* A character that is cut in two becomes '?', so the text is still UTF-8. */
    assert_string_equal(err.text, "ab\xc3\xa9?? and ?");
    for (int code = 0; code < ERR_CODE_COUNT; code++) {
        assert_int_equal(err_code_from_name(err_code_name((enum err_code)code)), code);
        assert_true(err_http_status((enum err_code)code) >= 200);
    }
    assert_int_equal(err_code_from_name("no such"), ERR_INTERNAL);
    assert_int_equal(err_code_from_http(404), ERR_NOT_FOUND);
    assert_int_equal(err_code_from_http(204), ERR_NONE);
}

static void buffers_grow_up_to_their_limit(void **state)
{
    (void)state;
    struct err err = {0};
    struct buf buf;
    buf_init(&buf, 1000);
    for (int i = 0; i < 100; i++)
        assert_int_equal(buf_printf(&buf, &err, "%09d\n", i), 0);
    assert_int_equal(buf.size, 1000);
    assert_int_equal(buf_append(&buf, "x", 1, &err), -1);
    assert_int_equal(err.code, ERR_TOO_BIG);
    assert_int_equal(buf.size, 1000);
    assert_int_equal(buf_reserve(&buf, SIZE_MAX, &err), -1);
    buf_consume(&buf, 990);
    assert_string_equal(buf_str(&buf), "000000099\n");
    buf_fini(&buf);
    assert_string_equal(buf_str(&buf), "");
}

static void arrays_grow_and_refuse_what_overflows(void **state)
{
    (void)state;
    struct err err = {0};
    uint32_t *items = NULL;
    size_t capacity = 0;
    size_t moves = 0;
    for (size_t count = 0; count < 5000; count++) {
        size_t before = capacity;
        assert_int_equal(ARRAY_RESERVE(items, capacity, count + 1, &err), 0);
        assert_true(capacity > count);
        moves += capacity != before;
        items[count] = (uint32_t)count;
    }
    assert_in_range(moves, 8, 12); /* the capacity doubles about log2(5000 / 8) times */
    assert_int_equal(ARRAY_RESERVE(items, capacity, 100000, &err), 0);
    assert_int_equal(capacity, 100000);

    uint32_t *same = items;
    /* The size in bytes, four times as much, wraps around. */
    assert_int_equal(ARRAY_RESERVE(items, capacity, SIZE_MAX, &err), -1);
    assert_int_equal(err.code, ERR_NOMEM);
    err = (struct err){0};
    /* No machine has that much memory. */
    assert_int_equal(ARRAY_RESERVE(items, capacity, SIZE_MAX / 4, &err), -1);
    assert_int_equal(err.code, ERR_NOMEM);
    assert_ptr_equal(items, same);
    assert_int_equal(capacity, 100000);
    for (size_t i = 0; i < 5000; i++)
        assert_int_equal(items[i], i);
    free(items);
}

static void digests_are_those_of_the_standard(void **state)
{
    (void)state;
    struct err err = {0};
    char hex[DIGEST_HEX_SIZE];
    assert_int_equal(digest_sha256_hex("abc", 3, hex, &err), 0);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_int_equal(digest_sha256_hex(NULL, 0, hex, &err), 0);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    struct digest *digest = digest_create(&err);
    uint8_t sum[DIGEST_SIZE], again[DIGEST_SIZE];
    for (int round = 0; round < 2; round++) {
        digest_update(digest, "a", 1, &err);
        digest_update(digest, "bc", 2, &err);
        assert_int_equal(digest_final(digest, sum, &err), 0);
    }
    assert_int_equal(
        digest_unhex("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", again, 32), 0);
    assert_true(digest_equal(sum, again, 32));
    assert_int_equal(digest_unhex("ba78", again, 32), -1);
    assert_int_equal(digest_unhex("zz", again, 1), -1);
    assert_int_equal(digest_unhex("aabb", again, 1), -1);
    digest_destroy(digest);
    char one[65], two[65];
    assert_int_equal(random_hex(one, 32, &err), 0);
    assert_int_equal(random_hex(two, 32, &err), 0);
    assert_string_not_equal(one, two);
}

static void philox_gives_the_published_numbers(void **state)
{
    (void)state;
    static const struct {
        uint32_t key[2], counter[4], want[4];
    } known[] = {
        /* These are Random123's kat_vectors of philox 4x32 with 10 rounds. */
        {{0, 0}, {0, 0, 0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0xa4093822, 0x299f31d0},
         {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < 3; i++) {
        uint32_t out[4];
        rand_u32x4(known[i].key, known[i].counter, out);
        assert_memory_equal(out, known[i].want, sizeof(out));
    }
}

static void streams_are_uniform(void **state)
{
    (void)state;
    struct rand_stream stream;
    rand_stream_init(&stream, 7, 1);
    unsigned counts[6] = {0};
    double sum = 0, squares = 0;
    for (int i = 0; i < 60000; i++) {
        counts[rand_stream_below(&stream, 6)]++;
        double normal = rand_stream_normal(&stream);
        sum += normal;
        squares += normal * normal;
    }
    for (int i = 0; i < 6; i++)
        assert_true(counts[i] > 9500 && counts[i] < 10500); /* 5.5 standard deviations on either side */
    assert_true(fabs(sum / 60000) < 0.03 && fabs(squares / 60000 - 1) < 0.04);
}

static void files_are_complete_or_absent(void **state)
{
    (void)state;
    struct err err = {0};
    struct test_dir dir;
    test_dir_make(&dir);
    char path[200], deep[200];
    snprintf(path, sizeof(path), "%s/a/b/c/file", dir.path);
    snprintf(deep, sizeof(deep), "%s/a/b/c", dir.path);
    assert_int_equal(file_write_atomic(path, "x", 1, 0600, &err), -1);
    assert_int_equal(err.code, ERR_NOT_FOUND);
    assert_int_equal(file_mkdirs(deep, 0700, &err), 0);
    assert_int_equal(file_mkdirs(deep, 0700, &err), 0);
    assert_int_equal(file_write_atomic(path, "hello", 5, 0640, &err), 0);
    struct stat status;
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0640);
    struct buf text;
    buf_init(&text, 100);
    assert_int_equal(file_read_all(path, 5, &text, &err), 0);
    assert_string_equal(buf_str(&text), "hello");
    assert_int_equal(file_read_all(path, 4, &text, &err), -1);
    assert_int_equal(err.code, ERR_TOO_BIG);
    assert_non_null(strstr(err.text, path));
    char hex[65];
    uint64_t bytes;
    assert_int_equal(file_sha256_hex(path, hex, &bytes, &err), 0);
    assert_int_equal(bytes, 5);
    assert_string_equal(hex, "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
    int fd = open(path, O_RDONLY);
    assert_int_equal(file_pread_all(fd, hex, 6, 0, path, &err), -1);
    assert_int_equal(err.code, ERR_CORRUPT);
    close(fd);
    assert_int_equal(file_mkdirs(path, 0700, &err), -1);
    char locks[200];
    snprintf(locks, sizeof(locks), "%s/lock", dir.path);
    int lock = file_lock(locks, &err);
    assert_true(lock >= 0);
    assert_int_equal(file_lock(locks, &err), -1);
    assert_int_equal(err.code, ERR_BUSY);
    close(lock);
    char outside[200], link[200];
    snprintf(outside, sizeof(outside), "%s/kept", dir.path);
    snprintf(link, sizeof(link), "%s/a/link", dir.path);
    assert_int_equal(file_mkdirs(outside, 0700, &err), 0);
    assert_int_equal(symlink(outside, link), 0);
    snprintf(path, sizeof(path), "%s/a", dir.path);
    assert_int_equal(file_remove_tree(path, &err), 0);
    assert_false(file_exists(path));
    assert_true(file_exists(outside)); /* the link was not followed */
    assert_int_equal(file_remove_tree(path, &err), 0);
    char small[8];
    assert_int_equal(file_path(small, sizeof(small), &err, "%s", "longer than that"), -1);
    buf_fini(&text);
    test_dir_remove(&dir);
}

static void times_are_printed(void **state)
{
    (void)state;
    char text[32], words[24];
    assert_string_equal(clock_rfc3339(0, text), "1970-01-01T00:00:00.000000Z");
    assert_string_equal(clock_rfc3339(1767323045678901, text), "2026-01-02T03:04:05.678901Z");
    assert_string_equal(clock_words("2026-01-02T03:04:05.678901+02:00", words), "2026-01-02 01:04:05Z");
    assert_string_equal(clock_words("after jobs", words), "after jobs");
    assert_int_equal(clock_left_ms(clock_mono_ns() - 1, 100), 0);
    assert_int_equal(clock_left_ms(clock_mono_ns() + 10000000000u, 100), 100);
}

/* ---- processes ---- */

struct exit_note {
    struct event_base *base;
    int status;
    int count;
};

static void note_exit(void *arg, pid_t pid, int status)
{
    (void)pid;
    struct exit_note *note = arg;
    note->status = status;
    note->count++;
    event_base_loopbreak(note->base);
}

static void processes_are_started_watched_and_recognised(void **state)
{
    (void)state;
    struct err err = {0};
    struct test_dir dir;
    test_dir_make(&dir);
    char log[200];
    snprintf(log, sizeof(log), "%s/log", dir.path);
    const char *argv[] = {"sh", "-c", "echo $GREETING; ls /proc/self/fd | wc -l; pwd; exit 7", NULL};
    const char *env[] = {"GREETING=hello", "HOME", NULL};
    struct process_options options = {
        .argv = argv, .env = env, .dir = dir.path, .stdout_path = log, .stderr_path = log, .own_group = true};
    struct exit_note note = {.base = event_base_new()};
    pid_t pid = 0;
    assert_int_equal(process_spawn(&options, &pid, &err), 0);
    struct process_watch *watch = process_watch_create(note.base, pid, note_exit, &note, &err);
    assert_non_null(watch);
    event_base_dispatch(note.base);
    process_watch_destroy(watch);
    char status[64];
    assert_string_equal(process_status_text(note.status, status), "exited with status 7");
    struct buf text;
    buf_init(&text, 4096);
    assert_int_equal(file_read_all(log, 4096, &text, &err), 0);
    char want[200];
    /* The program has descriptors 0, 1, 2 and the one that ls opens. */
    snprintf(want, sizeof(want), "hello\n4\n%s\n", dir.path);
    assert_string_equal(buf_str(&text), want);
    assert_int_equal(process_start_time(pid), 0);
    argv[0] = "/nowhere/program";
    assert_int_equal(process_spawn(&options, &pid, &err), -1);
    assert_int_equal(err.code, ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "/nowhere/program"));
    buf_fini(&text);
    event_base_free(note.base);
    test_dir_remove(&dir);
}

static void stopping_kills_a_group_that_does_not_listen(void **state)
{
    (void)state;
    struct err err = {0};
    const char *argv[] = {"sh", "-c", "trap '' TERM; sleep 60 & echo $! ; wait; sleep 60", NULL};
    int out[2];
    assert_int_equal(pipe(out), 0);
    char log[64];
    snprintf(log, sizeof(log), "/proc/self/fd/%d", out[1]);
    struct process_options options = {
        .argv = argv, .stdout_path = log, .own_group = true, .die_with_parent = true};
    pid_t pid = 0;
    assert_int_equal(process_spawn(&options, &pid, &err), 0);
    char number[32] = "";
    /* The process and its child are running. */
    assert_true(read(out[0], number, sizeof(number) - 1) > 0);
    pid_t grandchild = (pid_t)strtol(number, NULL, 10);
    uint64_t start = process_start_time(pid);
    assert_true(start != 0);
    assert_true(process_is(pid, start));
    assert_false(process_is(pid, start + 1));
    /* With another start time it is another process, which is not touched. */
    assert_int_equal(process_stop(pid, start + 1, SIGTERM, 10, &err), 0);
    assert_int_equal(process_signal(pid, start + 1, SIGKILL, &err), 0);
    assert_int_equal(process_signal(pid, start, SIGTERM, &err), 0); /* it is deaf to this one */
    assert_true(process_is(pid, start));
    assert_int_equal(process_stop(pid, start, SIGTERM, 100, &err), 0);
    assert_false(process_is(pid, start));
    uint64_t deadline_ns = clock_mono_ns() + 5000000000u;
    while (process_start_time(grandchild) != 0 && clock_left_ms(deadline_ns, 1) > 0)
        poll(NULL, 0, 2);
    assert_int_equal(process_start_time(grandchild), 0);
    close(out[0]);
    close(out[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_keep_code_and_errno_and_are_cut),
        cmocka_unit_test(buffers_grow_up_to_their_limit),
        cmocka_unit_test(arrays_grow_and_refuse_what_overflows),
        cmocka_unit_test(digests_are_those_of_the_standard),
        cmocka_unit_test(philox_gives_the_published_numbers),
        cmocka_unit_test(streams_are_uniform),
        cmocka_unit_test(files_are_complete_or_absent),
        cmocka_unit_test(times_are_printed),
        cmocka_unit_test(processes_are_started_watched_and_recognised),
        cmocka_unit_test(stopping_kills_a_group_that_does_not_listen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
