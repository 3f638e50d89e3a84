/* Tests control groups for workers on folders laid out like the kernel's: a group of our own with the memory
 * controller is divided, any other is left alone with a reason. A real group is not available in a test,
 * because it must be delegated. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/groups.h"
#include "common/file.h"

static char folder[64];

static void file_put(const char *name, const char *text)
{
    char path[256];
    struct err err;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    assert_int_equal(file_write_atomic(path, text, strlen(text), 0600, &err), 0);
}

static void file_holds(const char *name, const char *text)
{
    char path[256];
    struct err err;
    struct buf got = {.limit = 4096};
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    assert_int_equal(file_read_all(path, 4096, &got, &err), 0);
    assert_string_equal(buf_str(&got), text);
    buf_fini(&got);
}

static int group_make(void **state)
{
    char own[32], path[128];
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/motley-groups-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(own, sizeof(own), "%d\n", (int)getpid());
    file_put("cgroup.controllers", "cpu memory pids\n");
    file_put("cgroup.subtree_control", "");
    file_put("cgroup.procs", own);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, i == 0 ? "agent" : "device-1");
        assert_int_equal(mkdir(path, 0700), 0);
    }
    file_put("agent/cgroup.procs", "");
    file_put("device-1/memory.max", "");
    return 0;
}

static int group_remove(void **state)
{
    struct err err;
    (void)state;
    return file_remove_tree(folder, &err);
}

static void an_own_group_is_divided(void **state)
{
    struct err err = {0};
    char procs[4096], own[32], wanted[128];
    (void)state;
    struct groups *groups = groups_open_at(folder, &err);
    assert_non_null(groups);
    snprintf(own, sizeof(own), "%d", (int)getpid());
    file_holds("agent/cgroup.procs", own);
    file_holds("cgroup.subtree_control", "+memory");
    assert_int_equal(groups_worker(groups, 1, (uint64_t)1 << 30, procs, &err), 0);
    file_holds("device-1/memory.max", "2415919104");
    snprintf(wanted, sizeof(wanted), "%s/device-1/cgroup.procs", folder);
    assert_string_equal(procs, wanted);
    groups_close(groups);
}

static void refused(const char *why)
{
    struct err err = {0};
    assert_null(groups_open_at(folder, &err));
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, why));
    file_holds("cgroup.subtree_control", "");
}

static void a_shared_one_is_left_alone(void **state)
{
    char both[64];
    (void)state;
    snprintf(both, sizeof(both), "%d\n1\n", (int)getpid());
    file_put("cgroup.procs", both);
    refused("others share");
}

static void without_the_memory_controller_it_is_said(void **state)
{
    (void)state;
    file_put("cgroup.controllers", "cpu memory2\n");
    refused("no memory controller");
}

static void this_process_s_own_group_is_found_or_there_is_a_reason(void **state)
{
    struct err err = {0};
    (void)state;
    struct groups *groups = groups_open(&err);
    assert_true(groups || (err.code == ERR_UNSUPPORTED && err.text[0] != '\0'));
    print_message("%s\n", groups ? "a group of our own" : err.text);
    groups_close(groups);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_own_group_is_divided, group_make, group_remove),
        cmocka_unit_test_setup_teardown(a_shared_one_is_left_alone, group_make, group_remove),
        cmocka_unit_test_setup_teardown(without_the_memory_controller_it_is_said, group_make, group_remove),
        cmocka_unit_test(this_process_s_own_group_is_found_or_there_is_a_reason),
    };
    return cmocka_run_group_tests_name("groups", tests, NULL, NULL);
}
