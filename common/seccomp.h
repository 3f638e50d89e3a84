/* Builds seccomp filters: programs by which the kernel answers system calls by their number and the values of
 * their arguments. What stands behind a pointer cannot be compared. Every call of a filter has its own short
 * block of instructions, and the last instruction answers for all other calls. Async-signal-safe. */
#ifndef MOTLEY_COMMON_SECCOMP_H
#define MOTLEY_COMMON_SECCOMP_H

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
#define SECCOMP_MACHINE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define SECCOMP_MACHINE AUDIT_ARCH_AARCH64
#else
#define SECCOMP_MACHINE 0u /* the calls of other machines were not reviewed: nothing is filtered there */
#endif

enum { SECCOMP_FILTER_MAX = 384 };

/* Answers. */
#define SECCOMP_REFUSED ((uint32_t)(SECCOMP_RET_ERRNO | EPERM))
#define SECCOMP_ABSENT ((uint32_t)(SECCOMP_RET_ERRNO | ENOSYS))

/* Of clone's flags: equal to CLONE_THREAD if the call starts a thread in the namespaces of its process. */
#define SECCOMP_THREAD_MASK                                                                                  \
    (CLONE_THREAD | CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER |            \
     CLONE_NEWPID | CLONE_NEWNET)

struct seccomp_filter {
    struct sock_filter code[SECCOMP_FILTER_MAX];
    unsigned short count;
};

/* Whether the kernel filters calls, and this kind of machine's were reviewed. */
bool seccomp_available(void);

/* Begins a filter: calls of another kind of machine get `foreign`, x32's are absent. */
void seccomp_begin(struct seccomp_filter *filter, uint32_t foreign);
/* Answers the call whatever its arguments are. */
void seccomp_answer(struct seccomp_filter *filter, int call, uint32_t answer);
/* Allows the call if argument & mask == value, else refuses it. */
void seccomp_masked(struct seccomp_filter *filter, int call, unsigned argument, uint32_t mask,
                    uint32_t value);
/* Allows the call if the argument is one of the values, else answers `otherwise`. */
void seccomp_one_of(struct seccomp_filter *filter, int call, unsigned argument, const uint32_t *values,
                    size_t count, uint32_t otherwise);
/* Allows the call if both halves of the argument equal the value's, else refuses it. */
void seccomp_exactly(struct seccomp_filter *filter, int call, unsigned argument, uint64_t value);
/* Ends the filter and puts the calling thread under it, or with all_threads every thread of the process. It
 * needs no_new_privs. -1 with errno. */
int seccomp_enter(struct seccomp_filter *filter, uint32_t otherwise, bool all_threads);

/* For blocks of a shape of their own: they begin with seccomp_call, whose `count` instructions follow and
 * must answer. */
void seccomp_call(struct seccomp_filter *filter, int call, unsigned count);
void seccomp_put(struct seccomp_filter *filter, unsigned code, uint32_t k, uint8_t jump_true,
                 uint8_t jump_false);
/* Loads the low half of an argument, which holds an int or flags, or the high half. */
void seccomp_argument(struct seccomp_filter *filter, unsigned number, bool high_half);

#endif
