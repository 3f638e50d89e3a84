#include "common/confine.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/landlock.h"
#include "common/seccomp.h"

/* Calls that a worker and its drivers do without: they trace, start or signal processes, change the system,
 * open files past their paths, or are new and large parts of the kernel. */
static const int refused[] = {
#if !defined(__SANITIZE_ADDRESS__) /* LeakSanitizer clones a process at the end that traces this one */
    SYS_ptrace,
#endif
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_pidfd_getfd,
    SYS_pidfd_send_signal,
    SYS_kcmp,
    SYS_tkill,
    SYS_rt_sigqueueinfo,
    SYS_rt_tgsigqueueinfo,
    SYS_execve,
    SYS_execveat,
    SYS_setsid,
    SYS_setpgid,
    SYS_unshare,
    SYS_setns,
    SYS_chroot,
    SYS_pivot_root,
    SYS_mount,
    SYS_umount2,
    SYS_open_tree,
    SYS_move_mount,
    SYS_fsopen,
    SYS_fspick,
    SYS_fsmount,
    SYS_open_by_handle_at,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_io_uring_setup,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_kexec_load,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_acct,
    SYS_quotactl,
    SYS_syslog,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_fanotify_init,
#if defined(__x86_64__)
    SYS_fork,
    SYS_vfork,
    SYS_iopl,
    SYS_ioperm,
    SYS_modify_ldt,
    SYS_kexec_file_load,
#endif
};

/* All but those by which a file signals another process. */
static const uint32_t fcntl_commands[] = {F_DUPFD,      F_DUPFD_CLOEXEC, F_GETFD,     F_SETFD,
                                          F_GETFL,      F_SETFL,         F_GETLK,     F_SETLK,
                                          F_SETLKW,     F_OFD_GETLK,     F_OFD_SETLK, F_OFD_SETLKW,
                                          F_GETPIPE_SZ, F_SETPIPE_SZ,    F_ADD_SEALS, F_GET_SEALS};

/* Capabilities that root's worker keeps: to read files of models that are another user's, to lock memory for
 * a device, and to raise its own limits and priority. */
static const unsigned kept[] = {CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_IPC_LOCK, CAP_SYS_NICE,
                                CAP_SYS_RESOURCE};

static int capabilities_drop(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
    uint32_t keep = 0;
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
        keep |= 1u << kept[i];
    memset(data, 0, sizeof(data));
    if (syscall(SYS_capget, &head, data) < 0)
        return -1;
    data[0].permitted &= keep;
    data[0].effective &= keep;
    data[0].inheritable = 0;
    memset(&data[1], 0, sizeof(data[1]));
    return (int)syscall(SYS_capset, &head, data);
}

const char *confine_lacks(void)
{
    return landlock_version() == 0 ? "Landlock (Linux 5.13, with landlock among its security modules)"
           : !seccomp_available()  ? "filters of system calls (seccomp)"
                                   : NULL;
}

int confine_thread(int rules, struct err *err)
{
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 ||
        capabilities_drop() < 0)
        return err_errno(err, ERR_UNSUPPORTED, errno, "a worker could not give up its privileges");
    if (rules >= 0 && landlock_enter(rules) < 0)
        return err_errno(err, ERR_UNSUPPORTED, errno, "a worker could not limit its files with Landlock");
    return 0;
}

/* Allows sockets of the network and, of those of this machine, all or those for datagrams: servers of this
 * machine, such as a database, listen on streams. */
static void put_socket(struct seccomp_filter *f, bool unix_sockets)
{
    const unsigned equal = BPF_JMP | BPF_JEQ | BPF_K, answer = BPF_RET | BPF_K;
    seccomp_call(f, SYS_socket, 10);
    seccomp_argument(f, 0, false);
    seccomp_put(f, equal, AF_INET, 6, 0);
    seccomp_put(f, equal, AF_INET6, 5, 0);
    seccomp_put(f, equal, AF_NETLINK, 4, 0);
    seccomp_put(f, equal, AF_UNIX, 0, 4);
    seccomp_argument(f, 1, false);
    seccomp_put(f, BPF_ALU | BPF_AND | BPF_K, unix_sockets ? 0 : 0xf, 0, 0);
    seccomp_put(f, equal, unix_sockets ? 0 : SOCK_DGRAM, 0, 1);
    seccomp_put(f, answer, SECCOMP_RET_ALLOW, 0, 0);
    seccomp_put(f, answer, SECCOMP_REFUSED, 0, 0);
}

/* Refuses to make another process the one that is signalled for a socket. */
static void put_ioctl(struct seccomp_filter *f)
{
    const unsigned equal = BPF_JMP | BPF_JEQ | BPF_K, answer = BPF_RET | BPF_K;
    seccomp_call(f, SYS_ioctl, 5);
    seccomp_argument(f, 1, false);
    seccomp_put(f, equal, FIOSETOWN, 2, 0);
    seccomp_put(f, equal, SIOCSPGRP, 1, 0);
    seccomp_put(f, answer, SECCOMP_RET_ALLOW, 0, 0);
    seccomp_put(f, answer, SECCOMP_REFUSED, 0, 0);
}

int confine_calls(bool unix_sockets, struct err *err)
{
    struct seccomp_filter filter;
    const uint32_t self = (uint32_t)getpid(), own[] = {0, self};
    if (!seccomp_available())
        return 0;
    seccomp_begin(&filter, SECCOMP_REFUSED);
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
        seccomp_answer(&filter, refused[i], SECCOMP_REFUSED);
    seccomp_answer(&filter, SYS_clone3, SECCOMP_ABSENT); /* its flags stand behind a pointer */
#if !defined(__SANITIZE_ADDRESS__)
    seccomp_masked(&filter, SYS_clone, 0, SECCOMP_THREAD_MASK, CLONE_THREAD);
#endif
    seccomp_one_of(&filter, SYS_kill, 0, &self, 1, SECCOMP_REFUSED);
    seccomp_one_of(&filter, SYS_tgkill, 0, &self, 1, SECCOMP_REFUSED);
    seccomp_one_of(&filter, SYS_prlimit64, 0, own, 2,
                   SECCOMP_REFUSED); /* a limit of 0 s of CPU ends a process */
    seccomp_one_of(&filter, SYS_fcntl, 1, fcntl_commands, sizeof(fcntl_commands) / sizeof(fcntl_commands[0]),
                   SECCOMP_REFUSED);
    put_ioctl(&filter);
    put_socket(&filter, unix_sockets);
    if (seccomp_enter(&filter, SECCOMP_RET_ALLOW, true) < 0)
        return err_errno(err, ERR_UNSUPPORTED, errno, "a worker could not filter its calls with seccomp");
    return 0;
}
