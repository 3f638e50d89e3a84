#include "common/seccomp.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NUMBERS_END 0x40000000u /* numbers of x32 calls begin here */

bool seccomp_available(void)
{
    const uint32_t action = SECCOMP_RET_ERRNO;
    return SECCOMP_MACHINE != 0u && syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0;
}

void seccomp_put(struct seccomp_filter *f, unsigned code, uint32_t k, uint8_t jump_true, uint8_t jump_false)
{
    if (f->count < SECCOMP_FILTER_MAX)
        f->code[f->count] = (struct sock_filter){(uint16_t)code, jump_true, jump_false, k};
    f->count++;
}

static void put_answer(struct seccomp_filter *f, uint32_t answer)
{
    seccomp_put(f, BPF_RET | BPF_K, answer, 0, 0);
}

static void put_load(struct seccomp_filter *f, size_t offset)
{
    seccomp_put(f, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0);
}

void seccomp_argument(struct seccomp_filter *f, unsigned number, bool high_half)
{
    /* the supported machines are little-endian */
    put_load(f, offsetof(struct seccomp_data, args) + number * sizeof(uint64_t) + (high_half ? 4 : 0));
}

void seccomp_call(struct seccomp_filter *f, int call, unsigned count)
{
    seccomp_put(f, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, (uint8_t)count);
}

void seccomp_begin(struct seccomp_filter *f, uint32_t foreign)
{
    f->count = 0;
    put_load(f, offsetof(struct seccomp_data, arch));
    seccomp_put(f, BPF_JMP | BPF_JEQ | BPF_K, SECCOMP_MACHINE, 1, 0);
    put_answer(f, foreign);
    put_load(f, offsetof(struct seccomp_data, nr));
    seccomp_put(f, BPF_JMP | BPF_JGE | BPF_K, NUMBERS_END, 0, 1);
    put_answer(f, SECCOMP_ABSENT);
}

void seccomp_answer(struct seccomp_filter *f, int call, uint32_t answer)
{
    seccomp_call(f, call, 1);
    put_answer(f, answer);
}

void seccomp_masked(struct seccomp_filter *f, int call, unsigned argument, uint32_t mask, uint32_t value)
{
    seccomp_call(f, call, 5);
    seccomp_argument(f, argument, false);
    seccomp_put(f, BPF_ALU | BPF_AND | BPF_K, mask, 0, 0);
    seccomp_put(f, BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
    put_answer(f, SECCOMP_RET_ALLOW);
    put_answer(f, SECCOMP_REFUSED);
}

void seccomp_one_of(struct seccomp_filter *f, int call, unsigned argument, const uint32_t *values,
                    size_t count, uint32_t otherwise)
{
    seccomp_call(f, call, (unsigned)(3 + count));
    seccomp_argument(f, argument, false);
    for (size_t i = 0; i < count; i++)
        seccomp_put(f, BPF_JMP | BPF_JEQ | BPF_K, values[i], (uint8_t)(count - i), 0);
    put_answer(f, otherwise);
    put_answer(f, SECCOMP_RET_ALLOW);
}

void seccomp_exactly(struct seccomp_filter *f, int call, unsigned argument, uint64_t value)
{
    seccomp_call(f, call, 6);
    seccomp_argument(f, argument, false);
    seccomp_put(f, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)value, 0, 3);
    seccomp_argument(f, argument, true);
    seccomp_put(f, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(value >> 32), 0, 1);
    put_answer(f, SECCOMP_RET_ALLOW);
    put_answer(f, SECCOMP_REFUSED);
}

int seccomp_enter(struct seccomp_filter *f, uint32_t otherwise, bool all_threads)
{
    put_answer(f, otherwise);
    if (f->count > SECCOMP_FILTER_MAX) {
        errno = E2BIG;
        return -1;
    }
    struct sock_fprog made = {.len = f->count, .filter = f->code};
    const long result =
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, all_threads ? SECCOMP_FILTER_FLAG_TSYNC : 0, &made);
    if (result > 0)
        errno = EBUSY; /* the number of a thread that has another filter */
    return result == 0 ? 0 : -1;
}
