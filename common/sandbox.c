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
#include <linux/capability.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/landlock.h"
#include "common/seccomp.h"

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

/* Allows prlimit64 only to read the limits of the process itself: pid 0 and no new limits. */
static void put_prlimit(struct seccomp_filter *f)
{
    const unsigned low = BPF_JMP | BPF_JEQ | BPF_K, answer = BPF_RET | BPF_K;
    seccomp_call(f, SYS_prlimit64, 8);
    seccomp_argument(f, 0, false);
    seccomp_put(f, low, 0, 0, 5);
    seccomp_argument(f, 2, false);
    seccomp_put(f, low, 0, 0, 3);
    seccomp_argument(f, 2, true);
    seccomp_put(f, low, 0, 0, 1);
    seccomp_put(f, answer, SECCOMP_RET_ALLOW, 0, 0);
    seccomp_put(f, answer, SECCOMP_REFUSED, 0, 0);
}

#define ALL(list) (list), sizeof(list) / sizeof((list)[0])

static void filter_fill(struct seccomp_filter *f, const struct sandbox_limits *limits, const char *program)
{
    const uint32_t self = (uint32_t)getpid();
    seccomp_begin(f, SECCOMP_RET_KILL_PROCESS);
    for (size_t i = 0; i < sizeof(allowed) / sizeof(allowed[0]); i++)
        seccomp_answer(f, allowed[i], SECCOMP_RET_ALLOW);
    for (size_t i = 0; i < sizeof(absent) / sizeof(absent[0]); i++)
        seccomp_answer(f, absent[i], SECCOMP_ABSENT);
    if (limits->readable) {
        seccomp_masked(f, SYS_openat, 2, NOT_READING, O_RDONLY);
#if defined(__x86_64__)
        seccomp_masked(f, SYS_open, 1, NOT_READING, O_RDONLY);
#endif
    }
    if (limits->threads)
        seccomp_masked(f, SYS_clone, 0, SECCOMP_THREAD_MASK, CLONE_THREAD);
    seccomp_one_of(f, SYS_fcntl, 1, ALL(fcntl_commands), SECCOMP_REFUSED);
    seccomp_one_of(f, SYS_ioctl, 1, ALL(ioctl_commands), SECCOMP_RET_ERRNO | ENOTTY);
    seccomp_one_of(f, SYS_prctl, 0, ALL(prctl_commands), SECCOMP_REFUSED);
    seccomp_one_of(f, SYS_kill, 0, &self, 1, SECCOMP_REFUSED);
    seccomp_one_of(f, SYS_tgkill, 0, &self, 1, SECCOMP_REFUSED);
    put_prlimit(f);
    if (program)
        seccomp_exactly(f, SYS_execve, 0, (uint64_t)(uintptr_t)program);
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

/* Forbids everything that this kernel's Landlock can, except reading where that is allowed. */
static int files_limit(const struct sandbox_limits *limits)
{
    if (landlock_version() ==
        0) { /* without Landlock only reading stays unrestricted, which is enough if everything may be read */
        return !limits->readable || reads_all(limits) ? 0 : -1;
    }
    int rules = landlock_rules(true);
    int result = rules < 0 ? -1 : 0;
    for (size_t i = 0; result == 0 && limits->readable && limits->readable[i]; i++)
        result = landlock_allow(rules, limits->readable[i], LANDLOCK_MAY_RUN);
    if (result == 0)
        result = landlock_enter(rules);
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
    struct seccomp_filter filter;
    if (SECCOMP_MACHINE == 0u) {
        errno = ENOSYS;
        return "filter the system calls of this kind of machine";
    }
    if (privileges_drop() < 0)
        return "give up its privileges";
    if (files_limit(limits) < 0)
        return "limit what it reads with Landlock";
    if (limits_set(limits) < 0)
        return "limit its resources";
    filter_fill(&filter, limits, program);
    if (seccomp_enter(&filter, SECCOMP_REFUSED, false) < 0)
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
