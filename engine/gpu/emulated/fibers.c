/* Runs a launch: blocks one after the other, with a block's threads as fibers that yield at barriers and
 * shuffles. The lanes of a warp run until all have reached the same one, then all go on; the warps of a block
 * likewise. */
#include "engine/gpu/emulated/emulated.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

enum {
    STACK_BYTES = 64 << 10,
    SITES_MAX = 16,
    SITE_GAP = 1024, /* gap behind each array, so that an access just beyond an array hits no other */
    BLOCK_BYTES = EMULATED_SHARED_BYTES + SITES_MAX * SITE_GAP
};

enum fiber_state { FIBER_READY, FIBER_AT_BARRIER, FIBER_AT_WARP, FIBER_AT_SHUFFLE, FIBER_DONE };

struct fiber {
#if defined(__x86_64__)
    void *stack_pointer;
#else
    ucontext_t context;
#endif
    enum fiber_state state;
    float given[2]; /* the values given to the current shuffle and to the one before, which other lanes may
                       still read */
    uint32_t shuffles;
};

/* The state of the running block. Each host thread that launches keeps one. */
struct block_runner {
    struct fiber fibers[EMULATED_BLOCK_THREADS_MAX];
    struct fiber scheduler;
    uint8_t *stacks;
    uint8_t *block_memory;                      /* [BLOCK_BYTES] */
    uint8_t units[BLOCK_BYTES / EMULATED_UNIT]; /* for each unit of block_memory, how many of its bytes belong
                                                   to an array */
    struct emulated_shadow *block_shadow;
    struct {
        const void *site;
        uint32_t at, bytes;
    } sites[SITES_MAX];
    uint32_t site_count, block_used;
    uint32_t threads, current, block;
    uint32_t launch, epoch;
    uint32_t warp_epochs[EMULATED_BLOCK_THREADS_MAX / 32];
    const struct gpu_function *function;
    const void *args;
    struct emulated_memory *memory;
    bool failed;
    struct err error;
};

_Thread_local struct emulated_thread emulated_now;
static _Thread_local struct block_runner *runner;
static _Thread_local struct emulated_span
    last_span; /* the last allocation that was accessed, as addresses: the next access is mostly there, too */

/* Marks functions in which a finished fiber stays. ThreadSanitizer notes each call and return of a thread;
 * these calls never return, so after 65,536 of them its memory would be overwritten. */
#define UNSEEN __attribute__((no_sanitize_thread))

#if defined(__x86_64__)
/* Saves the callee-saved registers on this stack, stores the stack pointer in *from, and continues where `to`
 * stopped. */
void emulated_switch(void **from, void *to);
__asm__(".text\n"
        ".globl emulated_switch\n"
        ".hidden emulated_switch\n"
        ".type emulated_switch, @function\n"
        "emulated_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size emulated_switch, .-emulated_switch\n");

UNSEEN static void fiber_switch(struct fiber *from, struct fiber *to)
{
    emulated_switch(&from->stack_pointer, to->stack_pointer);
}
#else
UNSEEN static void fiber_switch(struct fiber *from, struct fiber *to)
{
    swapcontext(&from->context, &to->context);
}
#endif

UNSEEN static void fiber_yield(enum fiber_state state)
{
    struct fiber *self = &runner->fibers[runner->current];
    self->state = state;
    fiber_switch(self, &runner->scheduler);
}

UNSEEN static void fiber_main(void)
{
    runner->function->run(runner->args);
    for (;;) /* a finished fiber is never resumed */
        fiber_yield(FIBER_DONE);
}

static void fiber_begin(struct fiber *fiber, uint8_t *stack)
{
    fiber->state = FIBER_READY;
    fiber->shuffles = 0;
#if defined(__SANITIZE_ADDRESS__)
    /* If an earlier launch ended within a function, AddressSanitizer still has parts of the stack poisoned.
     */
    __asan_unpoison_memory_region(stack, STACK_BYTES);
#endif
#if defined(__x86_64__)
    /* The stack as emulated_switch leaves it: six registers, then the return address. The ABI requires rsp +
     * 8 to be a multiple of 16 at the start of a function. */
    uint64_t *top = (uint64_t *)(void *)(stack + STACK_BYTES);
    *--top = 0;
    *--top = (uint64_t)(uintptr_t)fiber_main;
    for (int i = 0; i < 6; i++)
        *--top = 0;
    fiber->stack_pointer = top;
#else
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = stack;
    fiber->context.uc_stack.ss_size = STACK_BYTES;
    fiber->context.uc_link = NULL;
    makecontext(&fiber->context, fiber_main, 0);
#endif
}

/* Reports a fault of the running thread and ends the launch. */
static _Noreturn void fault(const char *what)
{
    struct block_runner *r = runner;
    if (!r->failed)
        err_set(&r->error, ERR_DEVICE_FAULT, "kernel %s, block (%u, %u, %u), thread %u: %s",
                r->function->name, emulated_now.block_x, emulated_now.block_y, emulated_now.block_z,
                emulated_now.thread, what);
    r->failed = true;
    for (;;)
        fiber_yield(FIBER_DONE);
}

void emulated_assert(const char *text)
{
    char what[256];
    snprintf(what, sizeof(what), "assertion failed: %s", text);
    fault(what);
}

static struct emulated_who current_thread(void)
{
    return (struct emulated_who){.launch = runner->launch,
                                 .block = runner->block,
                                 .thread = emulated_now.thread,
                                 .warp = emulated_now.thread / emulated_now.warp_size,
                                 .epoch = runner->epoch,
                                 .warp_epoch =
                                     runner->warp_epochs[emulated_now.thread / emulated_now.warp_size]};
}

static _Noreturn void access_fault(const char *wrong, const char *where, uint64_t at, uint32_t bytes,
                                   enum emulated_access access, const struct emulated_who *other)
{
    static const char *const names[] = {"reads", "writes", "updates"};
    char what[256], with[64] = "";
    if (other->launch != 0)
        snprintf(with, sizeof(with), " (block %u, thread %u)", other->block, other->thread);
    snprintf(what, sizeof(what), "%s %u bytes at %s + %llu: %s%s", names[access], bytes, where,
             (unsigned long long)at, wrong, with);
    fault(what);
}

void *emulated_global(uintptr_t address, uint32_t bytes, enum emulated_access access)
{
    struct emulated_memory *memory = runner->memory;
    struct emulated_who other = {0};
    if (address < last_span.begin || address - last_span.begin > last_span.bytes ||
        bytes > last_span.bytes - (address - last_span.begin)) {
        if (!emulated_memory_find(memory, address, bytes, &last_span))
            access_fault("outside of what is allocated", "address", address, bytes, access, &other);
    }
    if (!memory->shadow)
        emulated_now.near[address / 4096 % EMULATED_NEAR] =
            (struct emulated_near){.begin = last_span.begin, .bytes = last_span.bytes};
    uint64_t at = address - (uintptr_t)memory->addresses;
    if (address % bytes != 0)
        access_fault("not a multiple of its size", "address", address, bytes, access, &other);
    if (memory->shadow) {
        struct emulated_who me = current_thread();
        const char *wrong = emulated_shadow_access(memory->shadow, at, bytes, access, &me, &other);
        if (wrong)
            access_fault(wrong, "an allocation's byte", address - last_span.begin, bytes, access, &other);
    }
    return memory->pages + at;
}

void *emulated_block_memory(const void *site, uint64_t bytes)
{
    struct block_runner *r = runner;
    for (uint32_t i = 0; i < r->site_count; i++)
        if (r->sites[i].site == site)
            return r->block_memory + r->sites[i].at;
    if (r->site_count == SITES_MAX || bytes > EMULATED_SHARED_BYTES - r->block_used)
        fault("more shared memory than a block has");
    r->sites[r->site_count].site = site;
    uint32_t at = r->block_used + r->site_count * SITE_GAP;
    r->sites[r->site_count].at = at;
    r->sites[r->site_count].bytes = (uint32_t)bytes;
    r->site_count++;
    r->block_used += ((uint32_t)bytes + 15) / 16 * 16;
    memset(r->block_memory + at, 0xff, bytes); /* reads before a write give NaN */
    for (uint32_t i = 0; !r->memory->shadow && i < bytes; i += EMULATED_UNIT)
        r->units[(at + i) / EMULATED_UNIT] = (uint8_t)(bytes - i < EMULATED_UNIT ? bytes - i : EMULATED_UNIT);
    if (r->block_shadow)
        emulated_shadow_forget(r->block_shadow, at, bytes);
    return r->block_memory + at;
}

void *emulated_shared(const void *address, uint32_t bytes, enum emulated_access access)
{
    struct block_runner *r = runner;
    uint64_t at = (uint64_t)((const uint8_t *)address - r->block_memory);
    struct emulated_who other = {0};
    for (uint32_t i = 0; i < r->site_count; i++)
        if (at >= r->sites[i].at && at + bytes <= (uint64_t)r->sites[i].at + r->sites[i].bytes) {
            if (at % bytes != 0)
                access_fault("not a multiple of its size", "shared byte", at - r->sites[i].at, bytes, access,
                             &other);
            if (r->memory->shadow) {
                struct emulated_who me = current_thread();
                const char *wrong = emulated_shadow_access(r->block_shadow, at, bytes, access, &me, &other);
                if (wrong)
                    access_fault(wrong, "shared byte", at - r->sites[i].at, bytes, access, &other);
            }
            return r->block_memory + at;
        }
    access_fault("outside of its array", "shared byte", at, bytes, access, &other);
}

void emulated_barrier(void)
{
    fiber_yield(FIBER_AT_BARRIER);
}

void emulated_warp_barrier(void)
{
    fiber_yield(FIBER_AT_WARP);
}

float emulated_shuffle(float value, uint32_t from)
{
    struct block_runner *r = runner;
    uint32_t size = emulated_now.warp_size, first = emulated_now.thread / size * size;
    struct fiber *self = &r->fibers[emulated_now.thread];
    uint32_t turn = self->shuffles++ % 2;
    self->given[turn] = value;
    fiber_yield(FIBER_AT_SHUFFLE);
    if (first + from % size >= r->threads)
        fault("a shuffle from a lane that the block does not have");
    return r->fibers[first + from % size].given[turn];
}

/* Runs threads [begin, end), a warp, until all wait for the block or are done. */
static void warp_run(struct block_runner *r, uint32_t begin, uint32_t end)
{
    while (!r->failed) {
        uint32_t waiting = 0, shuffling = 0, blocked = 0, done = 0;
        for (uint32_t t = begin; t < end && !r->failed; t++) {
            struct fiber *fiber = &r->fibers[t];
            if (fiber->state == FIBER_READY) {
                r->current = t;
                emulated_now.thread = t;
                fiber_switch(&r->scheduler, fiber);
            }
            waiting += fiber->state == FIBER_AT_WARP;
            shuffling += fiber->state == FIBER_AT_SHUFFLE;
            blocked += fiber->state == FIBER_AT_BARRIER;
            done += fiber->state == FIBER_DONE;
        }
        if (r->failed || waiting + shuffling == 0)
            return;
        if (waiting != end - begin && shuffling != end - begin) {
            r->failed = true;
            err_set(&r->error, ERR_DEVICE_FAULT,
                    "kernel %s, block %u, warp %u: %u lanes wait for the warp, %u for a shuffle, %u for the "
                    "block, %u are done",
                    r->function->name, r->block, begin / emulated_now.warp_size, waiting, shuffling, blocked,
                    done);
            return;
        }
        r->warp_epochs[begin / emulated_now.warp_size] +=
            waiting > 0; /* only warp barriers order memory, not shuffles */
        for (uint32_t t = begin; t < end; t++)
            r->fibers[t].state = FIBER_READY;
    }
}

static void block_run(struct block_runner *r)
{
    uint32_t warp_size = emulated_now.warp_size;
    memset(r->units, 0, (r->block_used + r->site_count * SITE_GAP) / EMULATED_UNIT);
    r->site_count = 0;
    r->block_used = 0;
    r->epoch = 1;
    memset(r->warp_epochs, 0, sizeof(r->warp_epochs));
    for (uint32_t t = 0; t < r->threads; t++)
        fiber_begin(&r->fibers[t], r->stacks + (uint64_t)t * STACK_BYTES);
    for (;;) {
        uint32_t blocked = 0;
        for (uint32_t t = 0; t < r->threads && !r->failed; t += warp_size)
            warp_run(r, t, t + warp_size < r->threads ? t + warp_size : r->threads);
        if (r->failed)
            return;
        for (uint32_t t = 0; t < r->threads; t++)
            blocked += r->fibers[t].state == FIBER_AT_BARRIER;
        if (blocked == 0)
            return;
        if (blocked < r->threads) {
            r->failed = true;
            err_set(&r->error, ERR_DEVICE_FAULT,
                    "kernel %s, block %u: %u of %u threads wait at a barrier, the others are done",
                    r->function->name, r->block, blocked, r->threads);
            return;
        }
        r->epoch++;
        for (uint32_t t = 0; t < r->threads; t++)
            r->fibers[t].state = FIBER_READY;
    }
}

/* Frees a host thread's runner when the thread ends. */
static pthread_key_t runner_key;
static pthread_once_t runner_once = PTHREAD_ONCE_INIT;

static void runner_free(void *memory)
{
    struct block_runner *r = memory;
    munmap(r->stacks, (uint64_t)EMULATED_BLOCK_THREADS_MAX * STACK_BYTES);
    emulated_shadow_destroy(r->block_shadow);
    free(r->block_memory);
    free(r);
}

static void runner_key_make(void)
{
    pthread_key_create(&runner_key, runner_free);
}

static int runner_get(bool checks, struct err *err)
{
    pthread_once(&runner_once, runner_key_make);
    if (!runner) {
        struct block_runner *r = calloc(1, sizeof(*r));
        uint8_t *memory = aligned_alloc(64, BLOCK_BYTES);
        void *stacks = mmap(NULL, (uint64_t)EMULATED_BLOCK_THREADS_MAX * STACK_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (!r || !memory || stacks == MAP_FAILED) {
            free(r);
            free(memory);
            if (stacks != MAP_FAILED)
                munmap(stacks, (uint64_t)EMULATED_BLOCK_THREADS_MAX * STACK_BYTES);
            return err_set(err, ERR_NOMEM, "out of memory for the fibers of an emulated block");
        }
        r->block_memory = memory;
        r->stacks = stacks;
        runner = r;
        pthread_setspecific(runner_key, r);
    }
    if (checks && !runner->block_shadow)
        return emulated_shadow_create(BLOCK_BYTES, &runner->block_shadow, err);
    return 0;
}

int emulated_launch(struct emulated_memory *memory, const struct gpu_function *function, uint32_t warp_size,
                    uint32_t rdna, struct gpu_dims blocks, uint32_t threads, const void *args,
                    struct err *err)
{
    static _Atomic uint32_t launches;
    if (threads == 0 || threads > EMULATED_BLOCK_THREADS_MAX || threads != function->threads)
        return err_set(err, ERR_INVALID, "kernel %s: %u threads a block, it is made for %u", function->name,
                       threads, function->threads);
    if (runner_get(memory->shadow != NULL, err) != 0)
        return -1;
    runner->launch = ++launches;
    runner->threads = threads;
    runner->function = function;
    runner->args = args;
    runner->memory = memory;
    runner->failed = false;
    last_span = (struct emulated_span){0};
    emulated_now = (struct emulated_thread){.blocks_x = blocks.x,
                                            .warp_size = warp_size,
                                            .rdna = rdna,
                                            .pages = memory->pages,
                                            .addresses = (uintptr_t)memory->addresses,
                                            .block_memory = runner->block_memory,
                                            .block_units = runner->units,
                                            .block_bytes = !memory->shadow ? BLOCK_BYTES : 0};
    for (uint32_t z = 0; z < blocks.z && !runner->failed; z++)
        for (uint32_t y = 0; y < blocks.y && !runner->failed; y++)
            for (uint32_t x = 0; x < blocks.x && !runner->failed; x++) {
                emulated_now.block_x = x;
                emulated_now.block_y = y;
                emulated_now.block_z = z;
                runner->block = (z * blocks.y + y) * blocks.x + x;
                block_run(runner);
            }
    if (runner->failed) {
        *err = runner->error;
        return -1;
    }
    return 0;
}
