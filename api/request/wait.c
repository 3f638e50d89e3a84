/* Functions with stacks of their own (coroutines), and what they wait for. */
#include "api/request/wait.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

/* STACK_BYTES: as large as a thread's, for which tools/stack_usage.py bounds all recursion; memory is taken
 * as it is touched, and below lies a page that nobody may touch. SPARE_MAX: stacks that are kept for the next
 * requests. */
enum { STACK_BYTES = 8 << 20, SPARE_MAX = 64 };

struct stack {
    ucontext_t own, outer; /* where the function goes on, and where the one that let it go on does */
    struct stack
        *before; /* the function that ran before; NULL: the loop. In a list of spares: the next one */
    void *memory;
    void (*body)(void *arg);
    void *arg;
    bool ended;
    void *tsan_own, *tsan_outer;
};

struct pause {
    LIST_ENTRY(pause) link;
    struct wait wait;
    struct event *timer;
};

struct waits {
    struct app *app;
    struct stack *running, *spare;
    unsigned spare_count;
    LIST_HEAD(, pause) pauses;
    bool stopped;
};

/* ---- stacks ---- */

/* Before a switch to another stack; `to` is what __tsan_get_current_fiber gave there. */
static void tell_tsan(void *to)
{
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(to, 0);
#else
    (void)to;
#endif
}

static void stack_leave(struct stack *stack)
{
    tell_tsan(stack->tsan_outer);
    swapcontext(&stack->own, &stack->outer);
}

/* The first function on a stack; makecontext passes numbers of 32 bits. */
static void stack_main(unsigned high, unsigned low)
{
    struct stack *stack = (struct stack *)((uintptr_t)high << 32 | low);
    for (;;) {
        stack->body(stack->arg);
        stack->ended = true;
        stack_leave(stack);
    }
}

static void stack_free(struct stack *stack)
{
#if defined(__SANITIZE_THREAD__)
    if (stack->tsan_own)
        __tsan_destroy_fiber(stack->tsan_own);
#endif
    if (stack->memory != MAP_FAILED)
        munmap(stack->memory, STACK_BYTES);
    free(stack);
}

static struct stack *stack_create(struct err *err)
{
    /* volatile: gcc takes getcontext for a function that may return twice */
    struct stack *volatile stack = calloc(1, sizeof(*stack));
    if (!stack) {
        err_set(err, ERR_NOMEM, "out of memory for a request");
        return NULL;
    }
    stack->memory = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
    if (stack->memory == MAP_FAILED ||
        mprotect(stack->memory, (size_t)sysconf(_SC_PAGESIZE), PROT_NONE) < 0 ||
        getcontext(&stack->own) < 0) {
        err_set(err, ERR_NOMEM, "out of memory for a request");
        stack_free(stack);
        return NULL;
    }
    madvise(stack->memory, STACK_BYTES, MADV_NOHUGEPAGE); /* else the first touch may take 2 MiB */
#if defined(__SANITIZE_THREAD__)
    stack->tsan_own = __tsan_create_fiber(0);
#endif
    stack->own.uc_stack.ss_sp = stack->memory;
    stack->own.uc_stack.ss_size = STACK_BYTES;
    makecontext(&stack->own, (void (*)(void))stack_main, 2, (unsigned)((uintptr_t)stack >> 32),
                (unsigned)(uintptr_t)stack);
    return stack;
}

/* Lets a function go on until it waits or ends. */
static void stack_go_on(struct waits *waits, struct stack *stack)
{
    stack->before = waits->running;
    waits->running = stack;
#if defined(__SANITIZE_THREAD__)
    stack->tsan_outer = __tsan_get_current_fiber();
#endif
    tell_tsan(stack->tsan_own);
    swapcontext(&stack->outer, &stack->own);
    waits->running = stack->before;
    if (!stack->ended)
        return;
    if (waits->spare_count == SPARE_MAX) {
        stack_free(stack);
        return;
    }
    stack->before = waits->spare;
    waits->spare = stack;
    waits->spare_count++;
}

int wait_run(struct app *app, void (*body)(void *arg), void *arg, struct err *err)
{
    struct waits *waits = app->waits;
    struct stack *stack = waits->spare;
    if (stack) {
        waits->spare = stack->before;
        waits->spare_count--;
    } else if (!(stack = stack_create(err))) {
        return -1;
    }
    stack->body = body;
    stack->arg = arg;
    stack->ended = false;
    stack_go_on(waits, stack);
    return 0;
}

int waits_create(struct app *app, struct waits **waits, struct err *err)
{
    *waits = calloc(1, sizeof(**waits));
    if (!*waits)
        return err_set(err, ERR_NOMEM, "out of memory for requests");
    (*waits)->app = app;
    LIST_INIT(&(*waits)->pauses);
    return 0;
}

void waits_destroy(struct waits *waits)
{
    while (waits && waits->spare) {
        struct stack *stack = waits->spare;
        waits->spare = stack->before;
        stack_free(stack);
    }
    free(waits);
}

/* ---- waiting ---- */

struct wait wait_of(struct app *app)
{
    return (struct wait){.app = app};
}

void wait_done(void *arg, const struct err *err)
{
    struct wait *wait = arg;
    if (err)
        wait->err = *err;
    wait->ended = true;
    if (wait->sleeper)
        stack_go_on(wait->app->waits, wait->sleeper);
}

void wait_doc(void *arg, const struct err *err, json_t *doc)
{
    struct wait *wait = arg;
    wait->doc = json_incref(doc);
    wait_done(wait, err);
}

int wait_end(struct wait *wait, int called, struct err *err)
{
    if (called < 0)
        return -1;
    wait->sleeper = wait->app->waits->running;
    assert(wait->sleeper); /* only a function that wait_run began may wait */
    if (!wait->ended)
        stack_leave(wait->sleeper);
    if (!wait->err.code)
        return 0;
    *err = wait->err;
    return -1;
}

/* ---- threads, time, others ---- */

struct pool_work {
    struct pool_task task; /* must come first: a pointer to the task is cast to the work */
    struct wait wait;
    int (*work)(void *arg, struct err *err);
    void *arg;
    struct err err;
};

static void work_run(struct pool_task *task)
{
    struct pool_work *work = (struct pool_work *)task;
    if (work->work(work->arg, &work->err) == 0)
        err_clear(&work->err);
}

static void work_ended(struct pool_task *task)
{
    struct pool_work *work = (struct pool_work *)task;
    pool_ran(task, &work->err);
    wait_done(&work->wait, work->err.code ? &work->err : NULL);
}

int wait_work(struct app *app, struct pool *pool, int (*run)(void *arg, struct err *err), void *arg,
              struct err *err)
{
    struct pool_work work = {
        .task = {.work = work_run, .done = work_ended}, .wait = wait_of(app), .work = run, .arg = arg};
    return wait_end(&work.wait, pool_run(pool, &work.task, err), err);
}

static void pause_over(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    wait_done(&((struct pause *)arg)->wait, NULL);
}

int wait_pause(struct app *app, unsigned ms, struct err *err)
{
    const struct timeval time = {ms / 1000, (suseconds_t)(ms % 1000) * 1000};
    struct pause pause = {.wait = wait_of(app)};
    if (app->waits->stopped)
        return err_set(err, ERR_CANCELLED, "the server is stopping");
    pause.timer = event_new(app->base, -1, 0, pause_over, &pause);
    if (!pause.timer || event_add(pause.timer, &time) < 0) {
        if (pause.timer)
            event_free(pause.timer);
        return err_set(err, ERR_NOMEM, "out of memory for a pause");
    }
    LIST_INSERT_HEAD(&app->waits->pauses, &pause, link);
    const int rc = wait_end(&pause.wait, 0, err);
    LIST_REMOVE(&pause, link);
    event_free(pause.timer);
    return rc;
}

void waits_stop(struct waits *waits)
{
    const struct err stopping = {.code = ERR_CANCELLED, .text = "the server is stopping"};
    if (!waits)
        return;
    waits->stopped = true;
    while (!LIST_EMPTY(&waits->pauses))
        wait_done(&LIST_FIRST(&waits->pauses)->wait, &stopping);
}

int wait_in(struct app *app, struct wait_list *list, struct err *err)
{
    struct wait wait = wait_of(app);
    TAILQ_INSERT_TAIL(list, &wait, link);
    return wait_end(&wait, 0, err);
}

void wait_wake(struct wait_list *list, const struct err *err)
{
    struct wait *wait;
    while ((wait = TAILQ_FIRST(list))) {
        TAILQ_REMOVE(list, wait, link);
        wait_done(wait, err);
    }
}
