/* Tests what the worker's program can reach: a model's files lie on its node, and are links to secrets. */
#include "worker/worker_fixture.h"

#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "common/landlock.h"
#include "common/seccomp.h"

enum { SECRET_KEY, SECRET_OTHER, BESIDE, HONEST, WATCHED };

/* Names of what is watched, in the scratch folder. The model's folder has the agent's home inside it. */
static const char *const watched[WATCHED] = {"model/home/tls/node.key", "model/home/run/1-0/files/result",
                                             "model/beside", "model/honest"};

static void worker_path(char path[400])
{
    const char *programs = getenv("MOTLEY_BIN");
    snprintf(path, 400, "%s/motley-worker", programs ? programs : "bin");
}

/* Says that the model's files lie on this node: for rank 0 links to secrets, for rank 1 a file and a link to
 * another file, which lies beside it in the same folder and is not the model's. */
static void give_links(void *arg, json_t *assign)
{
    static const char *const names[2][2] = {{"model/a", "model/b"}, {"model/honest", "model/c"}};
    const struct fixture *fix = arg;
    json_t *files = json_object_get(json_object_get(assign, "model"), "files");
    for (size_t f = 0; f < 2; f++)
        json_object_set_new(
            json_array_get(files, f), "path",
            json_string(
                scratch_path(&fix->scratch, names[json_integer_value(json_object_get(assign, "rank"))][f])));
    json_object_set_new(json_object_get(assign, "local"), "home",
                        json_string(scratch_path(&fix->scratch, "model/home")));
}

/* Makes the files, and returns an inotify descriptor that tells who opens them. */
static int links_make(const struct fixture *fix, int watches[WATCHED])
{
    struct err err;
    const int opened = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    must(file_mkdirs(scratch_path(&fix->scratch, "model/home/tls"), 0700, &err));
    must(file_mkdirs(scratch_path(&fix->scratch, "model/home/run/1-0/files"), 0700, &err));
    for (size_t i = 0; i < WATCHED; i++) {
        must(file_write_atomic(scratch_path(&fix->scratch, watched[i]), "secret", 6, 0600, &err));
        watches[i] = inotify_add_watch(opened, scratch_path(&fix->scratch, watched[i]), IN_OPEN);
        assert_true(watches[i] >= 0);
    }
    assert_int_equal(symlink("home/tls/node.key", scratch_path(&fix->scratch, "model/a")), 0);
    assert_int_equal(symlink("home/run/1-0/files/result", scratch_path(&fix->scratch, "model/b")), 0);
    assert_int_equal(symlink("beside", scratch_path(&fix->scratch, "model/c")), 0);
    return opened;
}

/* The program opens the model's file, and neither what lies beside it nor the agent's key nor another run's
 * folder, which the other files are links to. What it cannot open it fetches, so the run succeeds. */
static void a_model_leads_a_worker_to_no_secret(void **state)
{
    (void)state;
    struct fixture fix;
    struct outcome out;
    char program[400], events[4096] __attribute__((aligned(__alignof__(struct inotify_event))));
    unsigned opens[WATCHED] = {0};
    int watches[WATCHED];
    if (landlock_version() == 0) {
        print_message("skipped: this kernel has no Landlock\n");
        skip();
    }
    fix_open(&fix, "llama");
    json_t *spec = fix_spec(&fix);
    struct plan *plan = fix_plan(&fix, 2, 2);
    worker_path(program);
    fix.program = program;
    const int opened = links_make(&fix, watches);
    fix_run(&fix, plan, spec, give_links, NULL, &fix, &out);
    assert_int_equal(json_array_size(out.failures), 0);
    assert_int_equal(out.done, 2);
    for (ssize_t size; (size = read(opened, events, sizeof(events))) > 0;)
        for (char *at = events; at < events + size;) {
            const struct inotify_event *event = (const struct inotify_event *)(const void *)at;
            for (size_t i = 0; i < WATCHED; i++)
                opens[i] += event->wd == watches[i];
            at += sizeof(*event) + event->len;
        }
    assert_true(opens[HONEST] > 0); /* the watch sees what a worker opens */
    assert_int_equal(opens[SECRET_KEY], 0);
    assert_int_equal(opens[SECRET_OTHER], 0);
    assert_int_equal(opens[BESIDE], 0);
    close(opened);
    outcome_fini(&out);
    plan_destroy(plan);
    json_decref(spec);
    fix_close(&fix);
}

/* --- a kernel without Landlock --- */

/* Becomes the worker's program, for which the kernel has no Landlock. */
static int run_without_landlock(char **argv)
{
    struct seccomp_filter filter;
    char program[400];
    worker_path(program);
    seccomp_begin(&filter, SECCOMP_RET_ALLOW);
    seccomp_answer(&filter, SYS_landlock_create_ruleset, SECCOMP_ABSENT);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && seccomp_enter(&filter, SECCOMP_RET_ALLOW, false) == 0)
        execv(program, argv);
    return 1;
}

static void require(void *arg, json_t *assign)
{
    (void)arg;
    json_object_set_new(json_object_get(assign, "local"), "sandbox", json_string("required"));
}

/* This program takes the worker's place and calls it (main). Jobs run, unless the agent requires a sandbox.
 */
static void without_landlock_jobs_run_unless_it_is_required(void **state)
{
    (void)state;
    struct fixture fix;
    struct outcome out;
    fix_open(&fix, "llama");
    fix.program = "/proc/self/exe";
    json_t *spec = fix_spec(&fix);
    struct plan *plan = fix_plan(&fix, 1, 4);
    fix_run(&fix, plan, spec, NULL, NULL, NULL, &out);
    assert_int_equal(out.done, 1);
    outcome_fini(&out);
    fix_run(&fix, plan, spec, require, NULL, NULL, &out);
    const json_t *failed = json_array_get(out.failures, 0);
    assert_int_equal(out.done, 0);
    assert_string_equal(json_string_value(json_object_get(failed, "code")), "node-fault");
    assert_true(json_is_false(json_object_get(failed, "own_fault")));
    assert_non_null(
        strstr(json_string_value(json_object_get(failed, "text")), "this kernel has no Landlock"));
    outcome_fini(&out);
    plan_destroy(plan);
    json_decref(spec);
    fix_close(&fix);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_leads_a_worker_to_no_secret),
        cmocka_unit_test(without_landlock_jobs_run_unless_it_is_required),
    };
    if (argc > 1 && strcmp(argv[1], "--socket") == 0)
        return run_without_landlock(argv);
    return cmocka_run_group_tests_name("reach", tests, NULL, NULL);
}
