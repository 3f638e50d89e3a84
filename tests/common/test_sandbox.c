/* Tests what a program in the sandbox can and cannot do, as the tests' user and, if that is root, again as a
 * plain user. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/sockios.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/child_json.h"
#include "common/clock.h"
#include "common/confine.h"
#include "common/file.h"
#include "common/landlock.h"
#include "common/sandbox.h"
#include "support/must.h"
#include "support/scratch.h"

enum { OUTPUT_MAX = 1 << 16, DEADLINE_MS = 20000 };

/* Runs a Python program; *out is its output, which the caller frees. */
static int python(const char *text, uint32_t deadline_ms, struct buf *out, struct err *err)
{
    const char *const argv[] = {"python3", "-S", "-c", text, NULL};
    static const char *const none[] = {NULL};
    const struct sandbox_command command = {.argv = argv,
                                            .readable = none,
                                            .input = "a question",
                                            .input_bytes = 10,
                                            .output_bytes_max = OUTPUT_MAX,
                                            .deadline_ms = deadline_ms,
                                            .memory_bytes = (uint64_t)1 << 30};
    *out = (struct buf){.limit = 2 * OUTPUT_MAX};
    return sandbox_run(&command, out, err);
}

static void it_reads_its_input_and_writes_its_output(void **state)
{
    struct err err = {0};
    struct buf out;
    (void)state;
    must(python("import sys, json, threading\n"
                "t = threading.Thread(target=lambda: print(sys.stdin.read()[::-1]))\n"
                "t.start(); t.join()",
                DEADLINE_MS, &out, &err),
         &err);
    assert_string_equal(buf_str(&out), "noitseuq a\n");
    buf_fini(&out);
}

/* Tries lines that reach outside the sandbox, and reports the ones that work. */
static void nothing_that_reaches_out_works(void **state)
{
    struct err err = {0};
    struct buf out;
    (void)state;
    must(python("import os, sys, ctypes, signal, fcntl\n"
                "libc = ctypes.CDLL(None, use_errno=True)\n"
                "def call(*words):\n"
                "    if libc.syscall(*words) < 0: raise OSError(ctypes.get_errno(), 'refused')\n"
                "def attempt(name, f):\n"
                "    try: f()\n"
                "    except OSError as e: return\n"
                "    print(name)\n"
                "import socket\n"
                "attempt('socket', lambda: socket.socket())\n"
                "attempt('unix', lambda: socket.socket(socket.AF_UNIX))\n"
                "attempt('socketpair', lambda: socket.socketpair())\n"
                "attempt('write', lambda: open('/tmp/motley-sandbox-test', 'w'))\n"
                "attempt('append', lambda: open('/dev/null', 'a'))\n"
                "attempt('truncate by reading', lambda: os.open('/tmp/x', os.O_RDONLY | os.O_TRUNC))\n"
                "attempt('create by reading', lambda: os.open('/tmp/motley-sandbox-test', os.O_RDONLY | "
                "os.O_CREAT))\n"
                "attempt('unnamed', lambda: os.open('/tmp', os.O_RDWR | os.O_TMPFILE))\n"
                "attempt('mkdir', lambda: os.mkdir('/tmp/motley-sandbox-test'))\n"
                "attempt('unlink', lambda: os.unlink('/tmp/motley-sandbox-test'))\n"
                "attempt('chmod', lambda: os.chmod('/dev/stdin', 0))\n"
                "attempt('fork', lambda: os.fork())\n"
                "attempt('vfork', lambda: call(58))\n"
                "attempt('spawn', lambda: os.posix_spawn('/bin/true', ['true'], {}))\n"
                "attempt('exec', lambda: os.execv('/bin/true', ['true']))\n"
                "attempt('exec by descriptor', lambda: os.execve(os.open('/bin/true', os.O_RDONLY), "
                "['true'], {}))\n"
                "attempt('session', lambda: os.setsid())\n"
                "attempt('group', lambda: os.setpgid(0, 0))\n"
                "attempt('kill the parent', lambda: os.kill(os.getppid(), 0))\n"
                "attempt('kill the group', lambda: os.kill(0, 0))\n"
                "attempt('pidfd', lambda: os.pidfd_open(os.getppid()))\n"
                "attempt('ptrace', lambda: call(101, 16, os.getppid(), 0, 0))\n"
                "attempt('mount', lambda: call(165, b'none', b'/tmp', b'tmpfs', 0, 0))\n"
                "attempt('unshare', lambda: call(272, 0x10000000))\n"
                "attempt('memory of the parent', lambda: open(f'/proc/{os.getppid()}/mem', 'rb'))\n"
                "attempt('environment of the parent', lambda: open(f'/proc/{os.getppid()}/environ', 'rb'))\n"
                "attempt('shadow', lambda: open('/etc/shadow', 'rb'))\n"
                "attempt('root', lambda: os.listdir('/root'))\n"
                "attempt('tmp', lambda: os.listdir('/tmp'))\n"
                "attempt('owner', lambda: fcntl.fcntl(0, 8, os.getppid()))\n"
                "attempt('limits', lambda: call(160, 7, b'\\xff' * 16))\n"
                "attempt('user', lambda: os.setuid(12345))\n"
                "attempt('descriptors', lambda: [os.dup(0) for _ in range(100000)])\n"
                "attempt('x32', lambda: call(0x40000000 | 39))\n"
                "print('the end')",
                DEADLINE_MS, &out, &err),
         &err);
    assert_string_equal(buf_str(&out), "the end\n");
    buf_fini(&out);
    assert_false(file_exists("/tmp/motley-sandbox-test"));
}

static void it_reads_what_is_named_to_it_and_nothing_beside(void **state)
{
    struct err err = {0};
    struct scratch dir;
    struct buf out = {.limit = OUTPUT_MAX};
    char named[300], other[300], script[300];
    (void)state;
    assert_int_equal(scratch_make(&dir), 0);
    snprintf(named, sizeof(named), "%s/named", dir.dir);
    snprintf(other, sizeof(other), "%s/other", dir.dir);
    snprintf(script, sizeof(script), "%s/script", dir.dir);
    static const char text[] = "#!/usr/bin/env python3\n"
                               "import sys\n"
                               "for path in sys.argv[1], sys.argv[1][:-5] + 'other':\n"
                               "    try: print(open(path).read())\n"
                               "    except OSError: print('refused')\n";
    must(file_write_atomic(named, "named", 5, 0644, &err), &err);
    must(file_write_atomic(other, "other", 5, 0644, &err), &err);
    must(file_write_atomic(script, text, sizeof(text) - 1, 0755, &err), &err);
    const char *const argv[] = {script, named, NULL};
    const struct sandbox_command command = {
        .argv = argv, .output_bytes_max = OUTPUT_MAX, .deadline_ms = DEADLINE_MS, .memory_bytes = 1u << 30};
    must(sandbox_run(&command, &out, &err), &err);
    assert_string_equal(buf_str(&out), "named\nrefused\n");
    buf_fini(&out);
    scratch_remove(&dir);
}

/* Tests how each way of failing is reported. */
static void bad_ends_are_told_apart(void **state)
{
    static const struct {
        const char *text;
        uint32_t deadline_ms;
        enum err_code code;
        const char *says;
    } cases[] = {
        {"while True: pass", 300, ERR_TIMEOUT, "not done within 0.3 s"},
        {"import time; time.sleep(60)", 300, ERR_TIMEOUT, "not done within 0.3 s"},
        {"import os; os.close(1); os.close(2)\nwhile True: pass", 300, ERR_TIMEOUT, "not done within 0.3 s"},
        {"import threading, time\nfor _ in range(20): threading.Thread(target=time.sleep, "
         "args=(60,)).start()",
         500, ERR_TIMEOUT, "not done within"},
        {"while True: print('x' * 65536)", DEADLINE_MS, ERR_TOO_BIG, "more than 65536 bytes"},
        {"import sys; print('first', file=sys.stderr); print('last \\x01\\xe4 word', file=sys.stderr); "
         "sys.exit(3)",
         DEADLINE_MS, ERR_PEER, "exited with status 3: last ??? word"},
        {"import sys; sys.stderr.write('y' * 100000); sys.exit(1)", DEADLINE_MS, ERR_PEER, "status 1: yyyyy"},
        {"import os; os.abort()", DEADLINE_MS, ERR_PEER, "was killed by signal 6"},
        {"import ctypes; ctypes.string_at(0)", DEADLINE_MS, ERR_PEER, "was killed by signal 11"},
        {"x = bytearray(2 << 30)", DEADLINE_MS, ERR_PEER, "MemoryError"},
        {"import os\nwhile True: os.fork()", DEADLINE_MS, ERR_PEER, "PermissionError"},
        {"import socket; socket.create_connection(('127.0.0.1', 1))", DEADLINE_MS, ERR_PEER,
         "PermissionError"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct err err = {0};
        struct buf out;
        const uint64_t begin_ns = clock_mono_ns();
        assert_int_equal(python(cases[i].text, cases[i].deadline_ms, &out, &err), -1);
        if (err.code != cases[i].code || !strstr(err.text, cases[i].says))
            fail_msg("%s\n  %s: %s", cases[i].text, err_code_name(err.code), err.text);
        assert_true(clock_mono_ns() - begin_ns < (uint64_t)(cases[i].deadline_ms + 5000) * 1000000u);
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left to reap */
        buf_fini(&out);
    }
}

static void what_is_no_program_is_said(void **state)
{
    const char *const names[] = {"no-such-program", "/nowhere/program", "relative/path", "/etc/passwd"};
    const enum err_code codes[] = {ERR_NOT_FOUND, ERR_NOT_FOUND, ERR_INVALID, ERR_IO};
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        struct err err = {0};
        struct buf out = {.limit = 100};
        const char *const argv[] = {names[i], NULL};
        const struct sandbox_command command = {.argv = argv, .output_bytes_max = 10, .deadline_ms = 1000};
        assert_int_equal(sandbox_run(&command, &out, &err), -1);
        assert_int_equal(err.code, codes[i]);
        assert_non_null(strstr(err.text, names[i]));
        buf_fini(&out);
    }
}

static void *cancel_soon(void *arg)
{
    uint64_t one = 1;
    ssize_t wrote = write(*(int *)arg, &one, sizeof(one));
    return wrote == sizeof(one) ? arg : NULL;
}

static void who_waits_no_longer_ends_it(void **state)
{
    struct err err = {0};
    struct buf out = {.limit = 100};
    pthread_t thread;
    int fd = eventfd(0, EFD_CLOEXEC);
    (void)state;
    const char *const argv[] = {"sleep", "60", NULL};
    const struct sandbox_command command = {
        .argv = argv, .output_bytes_max = 10, .deadline_ms = DEADLINE_MS, .cancel_fd = fd};
    assert_int_equal(pthread_create(&thread, NULL, cancel_soon, &fd), 0);
    assert_int_equal(sandbox_run(&command, &out, &err), -1);
    assert_int_equal(err.code, ERR_CANCELLED);
    pthread_join(thread, NULL);
    buf_fini(&out);
    close(fd);
}

static void documents_go_in_and_come_out(void **state)
{
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"print('{\"half\": ')", "its answer: "},
        {"pass", "its answer: "},
        {"print('[' * 1000 + ']' * 1000)", "its answer: "},
        {"import sys\nfor _ in range(100): sys.stdout.write(' ' * (1 << 20))", "more than 8388608 bytes"}};
    struct err err = {0};
    json_t *config = json_pack("{s:[s,s,s,s], s:s, s:i}", "command", "python3", "-S", "-c",
                               "import json, sys; print(json.dumps({'got': json.load(sys.stdin)}))",
                               "seconds", "20s", "memory_mb", 512);
    json_t *question = json_pack("{s:[i,i]}", "rows", 1, 2), *answer = NULL;
    struct child_program program;
    struct json_reader reader;
    (void)state;
    jr_init(&reader, config, "planner", &err);
    must(child_program_read(&reader, &program), &err);
    must(jr_finish(&reader), &err);
    must(child_json(&program, question, 0, &answer, &err), &err);
    assert_true(json_equal(json_object_get(answer, "got"), question));
    json_decref(answer);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        free(program.command[3]);
        program.command[3] = strdup(wrong[i].text);
        assert_int_equal(child_json(&program, question, 0, &answer, &err), -1);
        assert_null(answer);
        assert_non_null(strstr(err.text, wrong[i].says));
    }
    child_program_fini(&program);
    json_decref(config);
    json_decref(question);
}

static void a_configuration_that_is_wrong_is_refused_by_its_path(void **state)
{
    static const struct {
        const char *text, *says;
    } wrong[] = {{"{}", "planner.command"},
                 {"{\"command\": []}", "planner.command"},
                 {"{\"command\": [\"a\", 3]}", "planner.command: entry 1"},
                 {"{\"command\": [\"bin/a\"]}", "neither an absolute path nor a name"},
                 {"{\"command\": [\"a\"], \"seconds\": 0}", "planner.seconds"},
                 {"{\"command\": [\"a\"], \"memory_mb\": 1}", "planner.memory_mb"},
                 {"{\"command\": [\"a\"], \"read\": [\"b\"]}", "planner.read"},
                 {"{\"command\": [\"a\"], \"more\": 1}", "more"}};
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct err err = {0};
        struct child_program program;
        struct json_reader reader;
        json_t *config = json_loads(wrong[i].text, 0, NULL);
        jr_init(&reader, config, "planner", &err);
        int result = child_program_read(&reader, &program);
        assert_true(jr_finish(&reader) < 0 || result < 0);
        if (!strstr(err.text, wrong[i].says))
            fail_msg("%s: %s", wrong[i].text, err.text);
        child_program_fini(&program);
        json_decref(config);
    }
}

/* A parser that the tests bring: a child of this program that enters the sandbox itself and answers by its
 * exit status. */
static void parse(int answer)
{
    /* There is no memory limit, because sanitizers reserve terabytes. */
    const struct sandbox_limits limits = {.cpu_s = 10};
    struct err err = {0};
    char seen = 'n';
    if (sandbox_enter(&limits, &err) < 0)
        _exit(2);
    if (open("/etc/passwd", O_RDONLY) < 0 && socket(AF_UNIX, SOCK_STREAM, 0) < 0 && fork() < 0)
        seen = 'y';
    ssize_t wrote = write(answer, &seen, 1);
    _exit(wrote == 1 ? 0 : 3);
}

static void a_function_of_ours_can_enter_by_itself(void **state)
{
    int pipes[2], status = 0;
    char seen = 0;
    (void)state;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0)
        parse(pipes[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(read(pipes[0], &seen, 1), 1);
    assert_int_equal(seen, 'y');
    close(pipes[0]);
    close(pipes[1]);
}

/* --- confined, as workers are --- */

struct confined {
    struct scratch dir;
    int rules;
    sem_t confined;
};

/* A thread that ran before the process was confined, and confines itself. */
static void *thread_confine(void *arg)
{
    struct confined *c = arg;
    struct err err;
    const bool done = confine_thread(c->rules, &err) == 0;
    sem_post(&c->confined);
    return done && open(scratch_path(&c->dir, "home/key"), O_RDONLY) < 0 && errno == EACCES ? c : NULL;
}

/* Opens a file of the scratch folder. */
static int reach(const struct confined *c, const char *name, int flags)
{
    return open(scratch_path(&c->dir, name), flags | O_CLOEXEC, 0600);
}

/* Each row: whether a call had the result that is due. Prints those that had not. */
static int attempts(const struct confined *c, pthread_t before)
{
    void *refused = NULL;
    char path[64];
    struct iovec part = {path, 8};
    const pid_t parent = getppid();
    struct rlimit limit;
    const int end = socket(AF_INET, SOCK_STREAM, 0);
    snprintf(path, sizeof(path), "/proc/%d/environ", (int)parent);
    pthread_join(before, &refused);
    const struct {
        const char *what;
        bool as_due;
    } rows[] = {
        {"reads what it was given", reach(c, "model/weights", O_RDONLY) >= 0},
        {"follows a link inside it", reach(c, "model/inside", O_RDONLY) >= 0},
        {"reads a library", open("/lib64/ld-linux-x86-64.so.2", O_RDONLY) >= 0 || errno == ENOENT},
        {"writes and renames in its folder",
         reach(c, "own/new", O_WRONLY | O_CREAT) >= 0 &&
             rename(scratch_path(&c->dir, "own/new"), scratch_path(&c->dir, "own/newer")) == 0},
        {"uses a device", open("/dev/null", O_WRONLY) >= 0},
        {"has the network", socket(AF_INET, SOCK_STREAM, 0) >= 0},
        {"lends by datagrams", socket(AF_UNIX, SOCK_DGRAM, 0) >= 0},
        {"signals itself", raise(SIGURG) == 0},
        {"no key", reach(c, "home/key", O_RDONLY) < 0},
        {"no key by a link", reach(c, "model/key", O_RDONLY) < 0},
        {"no key of another thread", refused == c},
        {"no other folder", reach(c, "home", O_RDONLY | O_DIRECTORY) < 0},
        {"no write to the model", reach(c, "model/weights", O_WRONLY) < 0},
        {"no file beside it", reach(c, "model/new", O_WRONLY | O_CREAT) < 0},
        {"no link to the key", link(scratch_path(&c->dir, "home/key"), scratch_path(&c->dir, "own/key")) < 0},
        {"no shadow", open("/etc/shadow", O_RDONLY) < 0},
        {"no home of root", open("/root", O_RDONLY | O_DIRECTORY) < 0},
        {"no environment of the parent", open(path, O_RDONLY) < 0},
        {"no memory of the parent", process_vm_readv(parent, &part, 1, &part, 1, 0) < 0},
        {"no trace", ptrace(PTRACE_ATTACH, parent, 0, 0) < 0},
        {"no signal to the parent", kill(parent, 0) < 0},
#if !defined(__SANITIZE_ADDRESS__) /* LeakSanitizer clones one at the end (common/confine.c) */
        {"no process", fork() < 0},
#endif
        {"no program", execv("/bin/false", (char *[]){path, NULL}) < 0},
        {"no session", setsid() < 0},
        {"no server of this machine", socket(AF_UNIX, SOCK_STREAM, 0) < 0},
        {"no raw packets", socket(AF_PACKET, SOCK_RAW, 0) < 0},
        {"no names of its own", unshare(CLONE_NEWUSER) < 0},
        {"no mount", mount("none", "/tmp", "tmpfs", 0, NULL) < 0},
        {"no user faults", syscall(SYS_userfaultfd, 0) < 0},
        {"its own limits", getrlimit(RLIMIT_CPU, &limit) == 0},
        {"no limits of others", prlimit(parent, RLIMIT_CPU, NULL, &limit) < 0 && errno == EPERM},
        {"no signals to others by a file", fcntl(end, F_SETOWN, parent) < 0 && errno == EPERM},
        {"nor by a socket", ioctl(end, FIOSETOWN, &parent) < 0 && errno == EPERM},
        {"no rings", syscall(SYS_io_uring_setup, 1, NULL) < 0 && errno == EPERM},
        {"no events of the processor", syscall(SYS_perf_event_open, NULL, 0, -1, -1, 0) < 0},
        {"no keys of the kernel", syscall(SYS_keyctl, 0, 0, 0, 0, 0) < 0 && errno == EPERM},
        {"no programs of the kernel", syscall(SYS_bpf, 0, NULL, 0) < 0 && errno == EPERM},
        {"no core", prctl(PR_GET_DUMPABLE) == 0},
    };
    int wrong = 0;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (!rows[i].as_due)
            wrong += fprintf(stderr, "not so: %s\n", rows[i].what) > 0;
    return wrong;
}

static void confine_and_try(struct confined *c)
{
    struct err err;
    pthread_t before;
    sem_init(&c->confined, 0, 0);
    c->rules = landlock_rules(false);
    if (c->rules < 0 || landlock_allow(c->rules, "/usr", LANDLOCK_MAY_READ) < 0 ||
        landlock_allow(c->rules, "/lib64", LANDLOCK_MAY_READ) < 0 ||
        landlock_allow(c->rules, "/proc", LANDLOCK_MAY_READ) < 0 ||
        landlock_allow(c->rules, "/dev/null", LANDLOCK_MAY_USE) < 0 ||
        landlock_allow(c->rules, scratch_path(&c->dir, "model"), LANDLOCK_MAY_READ) < 0 ||
        landlock_allow(c->rules, scratch_path(&c->dir, "own"), LANDLOCK_MAY_WRITE) < 0 ||
        pthread_create(&before, NULL, thread_confine, c) != 0)
        _exit(2);
    sem_wait(&c->confined);
    if (confine_thread(c->rules, &err) < 0 || confine_calls(false, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        _exit(3);
    }
    _exit(attempts(c, before) == 0 ? 0 : 1);
}

static void a_confined_process_reaches_what_it_was_given_and_nothing_else(void **state)
{
    static const char *const folders[] = {"home", "model", "own"};
    struct confined c;
    struct err err;
    int status = 0;
    (void)state;
    if (landlock_version() == 0) {
        print_message("skipped: this kernel has no Landlock\n");
        skip();
    }
    assert_int_equal(scratch_make(&c.dir), 0);
    for (int i = 0; i < 3; i++)
        must(file_mkdirs(scratch_path(&c.dir, folders[i]), 0700, &err), &err);
    must(file_write_atomic(scratch_path(&c.dir, "home/key"), "key", 3, 0600, &err), &err);
    must(file_write_atomic(scratch_path(&c.dir, "model/weights"), "1", 1, 0600, &err), &err);
    assert_int_equal(symlink("../home/key", scratch_path(&c.dir, "model/key")), 0);
    assert_int_equal(symlink("weights", scratch_path(&c.dir, "model/inside")), 0);
    const pid_t child = fork();
    if (child == 0)
        confine_and_try(&c);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    scratch_remove(&c.dir);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(it_reads_its_input_and_writes_its_output),
    cmocka_unit_test(nothing_that_reaches_out_works),
    cmocka_unit_test(it_reads_what_is_named_to_it_and_nothing_beside),
    cmocka_unit_test(bad_ends_are_told_apart),
    cmocka_unit_test(what_is_no_program_is_said),
    cmocka_unit_test(who_waits_no_longer_ends_it),
    cmocka_unit_test(documents_go_in_and_come_out),
    cmocka_unit_test(a_configuration_that_is_wrong_is_refused_by_its_path),
    cmocka_unit_test(a_function_of_ours_can_enter_by_itself),
    cmocka_unit_test(a_confined_process_reaches_what_it_was_given_and_nothing_else),
};

int main(void)
{
    int failed = cmocka_run_group_tests_name("sandbox", tests, NULL, NULL);
    if (geteuid() != 0)
        return failed;
    if (setgid(65534) < 0 || setuid(65534) < 0) {
        printf("as a plain user: skipped, this root may not become another\n");
        return failed;
    }
    return failed | cmocka_run_group_tests_name("sandbox, as a plain user", tests, NULL, NULL);
}
