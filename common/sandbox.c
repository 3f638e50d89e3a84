/* Enters the sandbox: limits, privileges, Landlock, seccomp. The filter comes last, because it forbids the
 * calls that the other steps need.
 *
 * The filter is an allowlist of calls that read, compute, wait and use existing descriptors. A few calls are
 * checked by argument: openat only for reading, clone only for threads, fcntl, ioctl and prctl by command,
 * kill only for the process itself. Arguments behind pointers cannot be checked, so openat2 and clone3 answer
 * ENOSYS and libraries fall back to openat and clone. setsid and setpgid are refused, so that a signal to the
 * process group reaches everything that was started.
 *
 * Only one execve is allowed. A filter has no memory, so it identifies that call by the address of the path:
 * the path is placed at a random address, the filter allows an execve that passes this address, and the new
 * program has neither that mapping nor a way to learn the address.
 */
#include "common/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- the processor's architecture ---- */

#if defined(__x86_64__)
#define MACHINE AUDIT_ARCH_X86_64
#define NUMBERS_END 0x40000000u /* numbers of x32 calls begin here */
#elif defined(__aarch64__)
#define MACHINE AUDIT_ARCH_AARCH64
#define NUMBERS_END 0x40000000u
#else
#define MACHINE 0u /* the calls of other machines were not reviewed: sandbox_enter refuses */
#define NUMBERS_END 0u
#endif

/* Constants that are newer than the headers of our build machines. */
#define LANDLOCK_REFER (1u << 13)
#define LANDLOCK_TRUNCATE (1u << 14)
#define LANDLOCK_IOCTL_DEV (1u << 15)
#define LANDLOCK_NET_ALL 3u
#define LANDLOCK_SCOPE_ALL 3u

struct landlock_rules { /* struct landlock_ruleset_attr of ABI 6 */
    uint64_t access_fs, access_net, scoped;
};

/* ---- the seccomp filter ---- */

static const int allowed[] = {
    SYS_read,
    SYS_readv,
    SYS_pread64,
    SYS_preadv,
    SYS_preadv2,
    SYS_write,
    SYS_writev,
    SYS_pwrite64,
    SYS_close,
    SYS_close_range,
    SYS_lseek,
    SYS_fstat,
    SYS_newfstatat,
    SYS_statx,
    SYS_statfs,
    SYS_fstatfs,
    SYS_faccessat,
    SYS_faccessat2,
    SYS_readlinkat,
    SYS_getdents64,
    SYS_getcwd,
    SYS_fadvise64,
    SYS_dup,
    SYS_dup3,
    SYS_pipe2,
    SYS_eventfd2,
    SYS_ppoll,
    SYS_pselect6,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_mmap,
    SYS_munmap,
    SYS_mprotect,
    SYS_mremap,
    SYS_madvise,
    SYS_brk,
    SYS_mincore,
    SYS_membarrier,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_rt_sigtimedwait,
    SYS_rt_sigpending,
    SYS_rt_sigsuspend,
    SYS_sigaltstack,
    SYS_restart_syscall,
    SYS_getitimer,
    SYS_setitimer,
    SYS_nanosleep,
    SYS_clock_nanosleep,
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_gettimeofday,
    SYS_times,
    SYS_getrusage,
    SYS_sysinfo,
    SYS_uname,
    SYS_getpid,
    SYS_getppid,
    SYS_gettid,
    SYS_getpgid,
    SYS_getsid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_getgroups,
    SYS_getresuid,
    SYS_getresgid,
    SYS_capget,
    SYS_getpriority,
    SYS_futex,
    SYS_set_robust_list,
    SYS_get_robust_list,
    SYS_set_tid_address,
    SYS_rseq,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_sched_getparam,
    SYS_sched_getscheduler,
    SYS_sched_get_priority_max,
    SYS_sched_get_priority_min,
    SYS_getcpu,
    SYS_getrandom,
    SYS_exit,
    SYS_exit_group,
    SYS_wait4,
    SYS_waitid,
#if defined(__x86_64__) /* older calls for the same purposes, which other machines do not have */
    SYS_stat,
    SYS_lstat,
    SYS_access,
    SYS_readlink,
    SYS_dup2,
    SYS_pipe,
    SYS_poll,
    SYS_select,
    SYS_epoll_create,
    SYS_epoll_wait,
    SYS_alarm,
    SYS_pause,
    SYS_time,
    SYS_getpgrp,
    SYS_arch_prctl,
#endif
};
#define NOT_READING ((uint32_t)(O_ACCMODE | O_CREAT | O_TRUNC | (O_TMPFILE & ~O_DIRECTORY)))
static const uint32_t fcntl_commands[] = {F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL, F_SETFL};
static const uint32_t ioctl_commands[] = {TCGETS, TIOCGWINSZ, FIOCLEX, FIONCLEX, FIONREAD};
static const uint32_t prctl_commands[] = {PR_SET_NAME, PR_GET_NAME, PR_GET_DUMPABLE};
/* Calls that answer ENOSYS, so that libraries use older ones. */
static const int absent[] = {SYS_clone3, SYS_openat2};

enum { FILTER_MAX = 2 * sizeof(allowed) / sizeof(allowed[0]) + 96 };

struct filter {
    struct sock_filter code[FILTER_MAX];
    unsigned short count;
};

static void put(struct filter *f, unsigned code, uint32_t k, uint8_t jump_true, uint8_t jump_false)
{
    f->code[f->count++] = (struct sock_filter){(uint16_t)code, jump_true, jump_false, k};
}

static void put_answer(struct filter *f, uint32_t answer)
{
    put(f, BPF_RET | BPF_K, answer, 0, 0);
}

static void put_load(struct filter *f, size_t offset)
{
    put(f, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0);
}

/* Loads the low half of an argument, which holds an int or flags, or the high half. The supported machines
 * are little-endian. */
static void put_argument(struct filter *f, unsigned number, bool high_half)
{
    put_load(f, offsetof(struct seccomp_data, args) + number * sizeof(uint64_t) + (high_half ? 4 : 0));
}

/* Begins the instructions for one call: the next `count` instructions apply to that call only, and the last
 * of them answers. */
static void put_call(struct filter *f, int call, unsigned count)
{
    put(f, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, (uint8_t)count);
}

static const uint32_t refused = SECCOMP_RET_ERRNO | EPERM;

/* Allows the call if argument & mask == value, else refuses it. */
static void put_masked(struct filter *f, int call, unsigned argument, uint32_t mask, uint32_t value)
{
    put_call(f, call, 5);
    put_argument(f, argument, false);
    put(f, BPF_ALU | BPF_AND | BPF_K, mask, 0, 0);
    put(f, BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
    put_answer(f, SECCOMP_RET_ALLOW);
    put_answer(f, refused);
}

/* Allows the call if the argument is one of the values, else answers `otherwise`. */
static void put_one_of(struct filter *f, int call, unsigned argument, const uint32_t *values, size_t count,
                       uint32_t otherwise)
{
    put_call(f, call, (unsigned)(3 + count));
    put_argument(f, argument, false);
    for (size_t i = 0; i < count; i++)
        put(f, BPF_JMP | BPF_JEQ | BPF_K, values[i], (uint8_t)(count - i), 0);
    put_answer(f, otherwise);
    put_answer(f, SECCOMP_RET_ALLOW);
}

/* Allows the call if both halves of the argument equal the value's, else refuses it. */
static void put_exactly(struct filter *f, int call, unsigned argument, uint64_t value)
{
    put_call(f, call, 6);
    put_argument(f, argument, false);
    put(f, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)value, 0, 3);
    put_argument(f, argument, true);
    put(f, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(value >> 32), 0, 1);
    put_answer(f, SECCOMP_RET_ALLOW);
    put_answer(f, refused);
}

/* Allows prlimit64 only to read the limits of the process itself: pid 0 and no new limits. */
static void put_prlimit(struct filter *f)
{
    put_call(f, SYS_prlimit64, 8);
    put_argument(f, 0, false);
    put(f, BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 5);
    put_argument(f, 2, false);
    put(f, BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 3);
    put_argument(f, 2, true);
    put(f, BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1);
    put_answer(f, SECCOMP_RET_ALLOW);
    put_answer(f, refused);
}

static void filter_fill(struct filter *f, const struct sandbox_limits *limits, const char *program)
{
    const uint32_t self = (uint32_t)getpid();
    const uint32_t thread_mask = CLONE_THREAD | CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
                                 CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
    f->count = 0;
    put_load(f, offsetof(struct seccomp_data, arch));
    put(f, BPF_JMP | BPF_JEQ | BPF_K, MACHINE, 1, 0);
    put_answer(f, SECCOMP_RET_KILL_PROCESS);
    put_load(f, offsetof(struct seccomp_data, nr));
    put(f, BPF_JMP | BPF_JGE | BPF_K, NUMBERS_END, 0, 1);
    put_answer(f, SECCOMP_RET_ERRNO | ENOSYS);
    for (size_t i = 0; i < sizeof(allowed) / sizeof(allowed[0]); i++) {
        put_call(f, allowed[i], 1);
        put_answer(f, SECCOMP_RET_ALLOW);
    }
    for (size_t i = 0; i < sizeof(absent) / sizeof(absent[0]); i++) {
        put_call(f, absent[i], 1);
        put_answer(f, SECCOMP_RET_ERRNO | ENOSYS);
    }
    if (limits->readable) {
        put_masked(f, SYS_openat, 2, NOT_READING, O_RDONLY);
#if defined(__x86_64__)
        put_masked(f, SYS_open, 1, NOT_READING, O_RDONLY);
#endif
    }
    if (limits->threads)
        put_masked(f, SYS_clone, 0, thread_mask, CLONE_THREAD);
    put_one_of(f, SYS_fcntl, 1, fcntl_commands, sizeof(fcntl_commands) / sizeof(fcntl_commands[0]), refused);
    put_one_of(f, SYS_ioctl, 1, ioctl_commands, sizeof(ioctl_commands) / sizeof(ioctl_commands[0]),
               SECCOMP_RET_ERRNO | ENOTTY);
    put_one_of(f, SYS_prctl, 0, prctl_commands, sizeof(prctl_commands) / sizeof(prctl_commands[0]), refused);
    put_one_of(f, SYS_kill, 0, &self, 1, refused);
    put_one_of(f, SYS_tgkill, 0, &self, 1, refused);
    put_prlimit(f);
    if (program)
        put_exactly(f, SYS_execve, 0, (uint64_t)(uintptr_t)program);
    put_answer(f, refused);
}

/* ---- the steps of entering the sandbox ---- */

static int limit_set(int resource, uint64_t soft, uint64_t hard)
{
    struct rlimit have;
    if (getrlimit((__rlimit_resource_t)resource, &have) < 0)
        return -1;
    const rlim_t most = have.rlim_max;
    const struct rlimit want = {.rlim_cur = soft < most ? soft : most, .rlim_max = hard < most ? hard : most};
    return setrlimit((__rlimit_resource_t)resource, &want);
}

static int limits_set(const struct sandbox_limits *limits)
{
    const uint64_t files = limits->files != 0 ? limits->files : SANDBOX_FILES;
    const uint64_t memory = limits->memory_bytes;
    const uint64_t threads = limits->threads ? SANDBOX_THREADS : 0;
    if (limit_set(RLIMIT_CPU, limits->cpu_s, (uint64_t)limits->cpu_s + 1) < 0 ||
        limit_set(RLIMIT_FSIZE, 0, 0) < 0 || limit_set(RLIMIT_CORE, 0, 0) < 0 ||
        limit_set(RLIMIT_NOFILE, files, files) < 0 || limit_set(RLIMIT_NPROC, threads, threads) < 0) {
        return -1;
    }
    return memory != 0 ? limit_set(RLIMIT_AS, memory, memory) : 0;
}

/* Drops all capabilities and sets no_new_privs, so that execve cannot return them. Root without capabilities
 * is a user that owns root's files. */
static int privileges_drop(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3];
    memset(none, 0, sizeof(none));
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || syscall(SYS_capset, &head, none) < 0 ? -1 : 0;
}

static bool reads_all(const struct sandbox_limits *limits)
{
    for (size_t i = 0; limits->readable && limits->readable[i]; i++)
        if (strcmp(limits->readable[i], "/") == 0)
            return true;
    return false;
}

static int readable_add(int rules, const char *path)
{
    const uint64_t of_file = LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE;
    struct landlock_path_beneath_attr beneath = {.allowed_access = of_file | LANDLOCK_ACCESS_FS_READ_DIR};
    beneath.parent_fd = open(path, O_PATH | O_CLOEXEC);
    if (beneath.parent_fd < 0) /* a path that is absent or not accessible needs no rule */
        return errno == ENOENT || errno == ENOTDIR || errno == EACCES ? 0 : -1;
    long added = syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &beneath, 0);
    if (added < 0 && errno == EINVAL) { /* a file does not accept the rights of a folder */
        beneath.allowed_access = of_file;
        added = syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &beneath, 0);
    }
    const int number = errno;
    close(beneath.parent_fd);
    errno = number;
    return added < 0 ? -1 : 0;
}

/* Forbids everything that this kernel's Landlock can, except reading where that is allowed. */
static int landlock_enter(const struct sandbox_limits *limits)
{
    long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    if (abi <
        0) { /* without Landlock only reading stays unrestricted, which is enough if everything may be read */
        return !limits->readable || reads_all(limits) ? 0 : -1;
    }
    struct landlock_rules want = {.access_fs = (1u << 13) - 1};
    want.access_fs |= abi >= 2 ? LANDLOCK_REFER : 0;
    want.access_fs |= abi >= 3 ? LANDLOCK_TRUNCATE : 0;
    want.access_fs |= abi >= 5 ? LANDLOCK_IOCTL_DEV : 0;
    want.access_net = abi >= 4 ? LANDLOCK_NET_ALL : 0;
    want.scoped = abi >= 6 ? LANDLOCK_SCOPE_ALL : 0;
    const size_t size = abi >= 6 ? sizeof(want) : abi >= 4 ? 16 : 8;
    int rules = (int)syscall(SYS_landlock_create_ruleset, &want, size, 0);
    int result = rules < 0 ? -1 : 0;
    for (size_t i = 0; result == 0 && limits->readable && limits->readable[i]; i++)
        result = readable_add(rules, limits->readable[i]);
    if (result == 0)
        result = (int)syscall(SYS_landlock_restrict_self, rules, 0);
    const int number = errno;
    if (rules >= 0)
        close(rules);
    errno = number;
    return result < 0 ? -1 : 0;
}

/* Copies the path to an address that cannot be guessed; NULL with errno. */
static const char *path_hide(const char *path)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), length = strlen(path) + 1;
    uint64_t drawn = 0;
    /* programs have the addresses below a power of two (2^47, or as little as 2^39), and the stack is near
     * the end */
    const uint64_t span = (uint64_t)1 << (63 - __builtin_clzll((uint64_t)(uintptr_t)&drawn));
    for (int tries = 0; tries < 64; tries++) {
        if (syscall(SYS_getrandom, &drawn, sizeof(drawn), 0) != (long)sizeof(drawn))
            return NULL;
        const uint64_t address = (drawn % span | 1ull << 32) / page * page;
        const size_t inside = (size_t)(drawn >> 52); /* offset within the first 4096 bytes */
        char *at = mmap((void *)(uintptr_t)address, (inside + length + page - 1) / page * page,
                        PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (at == (char *)(uintptr_t)address)
            return memcpy(at + inside, path, length);
        if (at != MAP_FAILED) { /* the kernel treats the address as a hint only */
            errno = ENOSYS;
            return NULL;
        }
    } /* the address is taken or too high: try another */
    return NULL;
}

/* Returns the failed action, with errno; NULL on success. */
static const char *enter(const struct sandbox_limits *limits, const char *program)
{
    struct filter filter;
    if (MACHINE == 0u) {
        errno = ENOSYS;
        return "filter the system calls of this kind of machine";
    }
    if (privileges_drop() < 0)
        return "give up its privileges";
    if (landlock_enter(limits) < 0)
        return "limit what it reads with Landlock";
    if (limits_set(limits) < 0)
        return "limit its resources";
    filter_fill(&filter, limits, program);
    struct sock_fprog made = {.len = filter.count, .filter = filter.code};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &made, 0, 0) < 0)
        return "filter its system calls with seccomp";
    return NULL;
}

int sandbox_enter(const struct sandbox_limits *limits, struct err *err)
{
    const char *failed = enter(limits, NULL);
    if (!failed)
        return 0;
    const int number = errno;
    const bool missing = number == ENOSYS || number == EOPNOTSUPP || number == EPERM || number == EINVAL;
    return err_errno(err, missing ? ERR_UNSUPPORTED : ERR_IO, number, "the sandbox could not %s", failed);
}

const char *sandbox_enter_program(const struct sandbox_limits *limits, const char *path, const char **failed)
{
    const char *hidden = path_hide(path);
    *failed = hidden != NULL ? enter(limits, hidden) : "hide its path";
    return !*failed ? hidden : NULL;
}
