/* The program executor. One mutex guards its state; ops are called without it. One thread at a time, the one
 * that set `beginning`, begins the instructions of transport queues. So an operation that completes at once
 * does not recurse, and instructions begin in order. */
#include "worker/program/exec.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/cond.h"

#define NONE UINT32_MAX

/* How often the host polls the device for completion: the first 200 polls follow one another, because many
 * waits are short; later polls are 1/32 of the time waited so far apart, between 20 µs and 500 µs. Any other
 * event ends the pause. */
enum { POLLS_WITHOUT_PAUSE = 200, PAUSE_NS_MIN = 20000, PAUSE_NS_MAX = 500000, PAUSE_PART = 32 };
/* After 10 s of polling the host blocks in compute_wait, which has a deadline. */
static const uint64_t POLLING_NS_MAX = 10ull * 1000 * 1000 * 1000;
static const uint64_t QUIET_NS = 5ull * 1000 * 1000 * 1000;

struct exec_queue {
    uint32_t first, count; /* its instructions are exec.order[first .. first + count) */
    uint32_t head;         /* number of its instructions that are complete */
};

enum instr_state { WAITING, READY, BEGUN, DONE };

struct exec {
    const struct plan *plan;
    const struct program *program;
    const struct exec_ops *ops;
    void *host;

    /* constant after exec_create */
    uint32_t queue_count;
    uint32_t *order;           /* instruction numbers, grouped by queue, in list order */
    uint32_t *queue_of;        /* number of each instruction's queue */
    uint32_t *dependent_first; /* [count + 1] start, in `dependents`, of the instructions that wait for each
                                  instruction */
    uint32_t *dependents;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool locks_made;

    /* guarded by lock */
    struct exec_queue *queues;
    uint32_t *remaining; /* number of each instruction's `after` entries that are not complete */
    uint8_t *state;      /* enum instr_state */
    struct exec_time *times;
    uint32_t *begin_list; /* ready transport instructions; never wraps, because each is added once a run */
    uint32_t begin_first, begin_count;
    bool beginning; /* a thread is taking instructions from begin_list */
    uint32_t done_count;
    uint32_t under_way; /* transport instructions that are begun and not complete */
    uint32_t sending;
    uint64_t sending_since_ns, progress_ns, run_begin_ns;
    struct exec_item *post_first, *post_last;
    bool failed;
    struct err failure;
    struct exec_totals totals;
    bool waits_told;   /* ops->waits was told what the run waits for */
    uint64_t quiet_ns; /* how long nothing must be complete before that */

    /* used by exec_run's thread alone */
    uint32_t submitted;       /* instruction submitted to the device and not yet waited for, or NONE */
    uint32_t polls;           /* number of polls that found it incomplete */
    uint64_t polled_since_ns; /* time of the first poll */
};

static bool runs_on_this_thread(const struct instr *instr)
{
    return instr->queue == QUEUE_COMPUTE;
}

/* --- preparation --- */

static int index_queues(struct exec *exec, struct err *err)
{
    const struct program *program = exec->program;
    for (uint32_t i = 0; i < program->instr_count; i++) {
        uint32_t queue = instr_queue_index(exec->plan, &program->instrs[i]);
        if (queue >= exec->queue_count)
            return err_set(err, ERR_INVALID, "instruction %u is on a queue that its rank does not have", i);
        exec->queue_of[i] = queue;
        exec->queues[queue].count++;
    }
    uint32_t first = 0;
    for (uint32_t q = 0; q < exec->queue_count; q++) {
        exec->queues[q].first = first;
        first += exec->queues[q].count;
        exec->queues[q].count = 0;
    }
    for (uint32_t i = 0; i < program->instr_count; i++) {
        struct exec_queue *queue = &exec->queues[exec->queue_of[i]];
        exec->order[queue->first + queue->count++] = i;
    }
    return 0;
}

static int index_dependents(struct exec *exec, struct err *err)
{
    const struct program *program = exec->program;
    for (uint32_t i = 0; i < program->instr_count; i++) {
        const struct instr *instr = &program->instrs[i];
        if ((uint64_t)instr->after_first + instr->after_count > program->after_total)
            return err_set(err, ERR_INVALID, "instruction %u has an `after` list out of range", i);
        for (uint32_t a = 0; a < instr->after_count; a++) {
            uint32_t before = program->after[instr->after_first + a];
            if (before >= i)
                return err_set(err, ERR_INVALID, "instruction %u waits for %u, which does not come before it",
                               i, before);
            exec->dependent_first[before + 1]++;
        }
    }
    for (uint32_t i = 0; i < program->instr_count; i++)
        exec->dependent_first[i + 1] += exec->dependent_first[i];
    uint32_t *fill = exec->remaining; /* used as a counter here; every run sets it anew */
    memset(fill, 0, program->instr_count * sizeof(*fill));
    for (uint32_t i = 0; i < program->instr_count; i++) {
        const struct instr *instr = &program->instrs[i];
        for (uint32_t a = 0; a < instr->after_count; a++) {
            uint32_t before = program->after[instr->after_first + a];
            exec->dependents[exec->dependent_first[before] + fill[before]++] = i;
        }
    }
    return 0;
}

static int make_locks(struct exec *exec, struct err *err)
{
    if (pthread_mutex_init(&exec->lock, NULL) != 0)
        return err_set(err, ERR_NOMEM, "could not make a lock");
    if (cond_init(&exec->changed) != 0) {
        pthread_mutex_destroy(&exec->lock);
        return err_set(err, ERR_NOMEM, "could not make a condition");
    }
    exec->locks_made = true;
    return 0;
}

int exec_create(const struct plan *plan, const struct program *program, const struct exec_ops *ops,
                void *host, struct exec **out, struct err *err)
{
    struct exec *exec = calloc(1, sizeof(*exec));
    if (!exec)
        return err_set(err, ERR_NOMEM, "no memory for a program of %u instructions", program->instr_count);
    size_t count = (size_t)program->instr_count + 1;
    exec->plan = plan;
    exec->program = program;
    exec->ops = ops;
    exec->host = host;
    exec->queue_count = plan_queue_count(plan);
    exec->queues = calloc(exec->queue_count + 1, sizeof(*exec->queues));
    exec->order = calloc(count, sizeof(*exec->order));
    exec->queue_of = calloc(count, sizeof(*exec->queue_of));
    exec->dependent_first = calloc(count, sizeof(*exec->dependent_first));
    exec->dependents = calloc((size_t)program->after_total + 1, sizeof(*exec->dependents));
    exec->remaining = calloc(count, sizeof(*exec->remaining));
    exec->state = calloc(count, sizeof(*exec->state));
    exec->times = calloc(count, sizeof(*exec->times));
    exec->begin_list = calloc(count, sizeof(*exec->begin_list));
    if (!exec->queues || !exec->order || !exec->queue_of || !exec->dependent_first || !exec->dependents ||
        !exec->remaining || !exec->state || !exec->times || !exec->begin_list) {
        exec_destroy(exec);
        return err_set(err, ERR_NOMEM, "no memory for a program of %u instructions", program->instr_count);
    }
    if (index_queues(exec, err) < 0 || index_dependents(exec, err) < 0 || make_locks(exec, err) < 0) {
        exec_destroy(exec);
        return -1;
    }
    *out = exec;
    return 0;
}

void exec_destroy(struct exec *exec)
{
    if (!exec)
        return;
    if (exec->locks_made) {
        pthread_cond_destroy(&exec->changed);
        pthread_mutex_destroy(&exec->lock);
    }
    free(exec->queues);
    free(exec->order);
    free(exec->queue_of);
    free(exec->dependent_first);
    free(exec->dependents);
    free(exec->remaining);
    free(exec->state);
    free(exec->times);
    free(exec->begin_list);
    free(exec);
}

/* --- with the lock held --- */

static uint32_t queue_head(const struct exec *exec, uint32_t queue)
{
    const struct exec_queue *q = &exec->queues[queue];
    return q->head < q->count ? exec->order[q->first + q->head] : NONE;
}

/* Marks the queue's next instruction as ready if it may start. */
static void wake_queue(struct exec *exec, uint32_t queue, uint64_t now_ns)
{
    uint32_t next = queue_head(exec, queue);
    if (next == NONE || exec->state[next] != WAITING || exec->remaining[next] > 0)
        return;
    exec->state[next] = READY;
    exec->times[next].ready_ns = now_ns;
    if (!runs_on_this_thread(&exec->program->instrs[next]))
        exec->begin_list[exec->begin_first + exec->begin_count++] = next;
}

static void exec_complete(struct exec *exec, uint32_t number, uint64_t now_ns)
{
    const struct instr *instr = &exec->program->instrs[number];
    exec->state[number] = DONE;
    exec->times[number].end_ns = now_ns;
    exec->progress_ns = now_ns;
    exec->done_count++;
    if (instr->queue == QUEUE_SEND && --exec->sending == 0)
        exec->totals.send_ns += now_ns - exec->sending_since_ns;
    uint32_t queue = exec->queue_of[number];
    exec->queues[queue].head++;
    for (uint32_t d = exec->dependent_first[number]; d < exec->dependent_first[number + 1]; d++)
        exec->remaining[exec->dependents[d]]--;
    wake_queue(exec, queue, now_ns);
    for (uint32_t d = exec->dependent_first[number]; d < exec->dependent_first[number + 1]; d++)
        wake_queue(exec, exec->queue_of[exec->dependents[d]], now_ns);
    pthread_cond_signal(&exec->changed);
}

static void fail_locked(struct exec *exec, const struct err *failure)
{
    if (!exec->failed)
        exec->failure = *failure;
    exec->failed = true;
    pthread_cond_signal(&exec->changed);
}

/* Begins the ready instructions of transport queues, unless another thread is doing so. The lock is released
 * around each call. */
static void begin_ready(struct exec *exec)
{
    if (exec->beginning)
        return;
    exec->beginning = true;
    while (exec->begin_count > 0 && !exec->failed) {
        uint32_t number = exec->begin_list[exec->begin_first++];
        exec->begin_count--;
        const struct instr *instr = &exec->program->instrs[number];
        exec->state[number] = BEGUN;
        exec->under_way++;
        uint64_t now_ns = clock_mono_ns();
        exec->times[number].begin_ns = now_ns;
        if (instr->queue == QUEUE_SEND && exec->sending++ == 0)
            exec->sending_since_ns = now_ns;
        pthread_mutex_unlock(&exec->lock);
        struct err failure = {.code = ERR_NONE};
        int result = exec->ops->begin(exec->host, number, instr, &failure);
        pthread_mutex_lock(&exec->lock);
        if (result < 0) {
            exec->under_way--;
            fail_locked(exec, &failure);
        }
    }
    exec->beginning = false;
    pthread_cond_signal(&exec->changed);
}

/* --- from any thread --- */

void exec_done(struct exec *exec, uint32_t number, const struct err *failure)
{
    pthread_mutex_lock(&exec->lock);
    if (number < exec->program->instr_count && exec->state[number] == BEGUN) {
        exec->under_way--;
        if (failure) {
            exec->state[number] = DONE;
            fail_locked(exec, failure);
        } else {
            exec_complete(exec, number, clock_mono_ns());
            begin_ready(exec);
        }
    }
    pthread_mutex_unlock(&exec->lock);
}

void exec_post(struct exec *exec, struct exec_item *item)
{
    item->next = NULL;
    pthread_mutex_lock(&exec->lock);
    if (exec->post_last)
        exec->post_last->next = item;
    else
        exec->post_first = item;
    exec->post_last = item;
    pthread_cond_signal(&exec->changed);
    pthread_mutex_unlock(&exec->lock);
}

void exec_fail(struct exec *exec, const struct err *failure)
{
    pthread_mutex_lock(&exec->lock);
    fail_locked(exec, failure);
    pthread_mutex_unlock(&exec->lock);
}

/* --- the run --- */

static void exec_reset(struct exec *exec)
{
    const struct program *program = exec->program;
    for (uint32_t i = 0; i < program->instr_count; i++)
        exec->remaining[i] = program->instrs[i].after_count;
    memset(exec->state, WAITING, program->instr_count);
    memset(exec->times, 0, program->instr_count * sizeof(*exec->times));
    for (uint32_t q = 0; q < exec->queue_count; q++)
        exec->queues[q].head = 0;
    exec->begin_first = exec->begin_count = 0;
    exec->done_count = exec->under_way = exec->sending = 0;
    exec->post_first = exec->post_last = NULL;
    exec->waits_told = false; /* `failed` stays: a run that was ended is the last one */
    exec->quiet_ns = exec->ops->quiet_ns > 0 ? exec->ops->quiet_ns : QUIET_NS;
    exec->submitted = NONE;
    memset(&exec->totals, 0, sizeof(exec->totals));
    exec->run_begin_ns = exec->progress_ns = clock_mono_ns();
    for (uint32_t q = 0; q < exec->queue_count; q++)
        wake_queue(exec, q, exec->run_begin_ns);
}

/* Runs the first posted item. The lock is held on entry and released while the item runs. */
static void run_posted(struct exec *exec)
{
    struct exec_item *item = exec->post_first;
    exec->post_first = item->next;
    if (!exec->post_first)
        exec->post_last = NULL;
    pthread_mutex_unlock(&exec->lock);
    struct err failure = {.code = ERR_NONE};
    uint64_t begin_ns = clock_mono_ns();
    int result = item->fn(item->arg, &failure);
    uint64_t spent_ns = clock_mono_ns() - begin_ns;
    pthread_mutex_lock(&exec->lock);
    if (exec->submitted == NONE) /* else the submitted instruction's own time has it */
        exec->totals.compute_ns += spent_ns;
    exec->progress_ns = clock_mono_ns();
    if (result < 0)
        fail_locked(exec, &failure);
}

/* Returns the compute queue's next instruction if it is ready, else NONE. */
static uint32_t next_ready(const struct exec *exec)
{
    uint32_t next = queue_head(exec, 0);
    return next != NONE && exec->state[next] == READY ? next : NONE;
}

/* Records the end of an instruction of the compute queue: its time, and its failure or completion.
 * The lock is held. */
static void end_compute(struct exec *exec, uint32_t number, int result, const struct err *failure)
{
    uint64_t now_ns = clock_mono_ns();
    exec->totals.compute_ns += now_ns - exec->times[number].begin_ns;
    if (result < 0) {
        fail_locked(exec, failure);
        return;
    }
    exec_complete(exec, number, now_ns);
    begin_ready(exec);
}

/* Waits for the submitted instruction, if any, and completes it. The lock is held on entry and released
 * during the wait. */
static void wait_submitted(struct exec *exec)
{
    uint32_t number = exec->submitted;
    if (number == NONE)
        return;
    exec->submitted = NONE;
    pthread_mutex_unlock(&exec->lock);
    struct err failure = {.code = ERR_NONE};
    int result = exec->ops->compute_wait(exec->host, number, &failure);
    pthread_mutex_lock(&exec->lock);
    end_compute(exec, number, result, &failure);
}

/* Runs or submits an instruction. The lock is held on entry and released meanwhile. The instruction submitted
 * before is waited for only after this one was submitted, so the device goes from one to the next without a
 * pause. */
static void run_instruction(struct exec *exec, uint32_t number)
{
    exec->state[number] = BEGUN;
    exec->times[number].begin_ns = clock_mono_ns();
    pthread_mutex_unlock(&exec->lock);
    struct err failure = {.code = ERR_NONE};
    int result = exec->ops->compute(exec->host, number, &exec->program->instrs[number], &failure);
    pthread_mutex_lock(&exec->lock);
    if (exec->submitted != NONE) {
        wait_submitted(exec);
        /* The device began this instruction when the previous one ended. */
        exec->times[number].ready_ns = exec->times[number].begin_ns = clock_mono_ns();
    }
    if (result > 0) {
        exec->submitted = number;
        exec->polls = 0;
        return;
    }
    end_compute(exec, number, result, &failure);
}

/* Returns the compute queue's next instruction behind the submitted one if it waits for nothing else, else
 * NONE. */
static uint32_t next_behind_submitted(const struct exec *exec)
{
    uint32_t queue = exec->queue_of[exec->submitted], waits = 0;
    const struct exec_queue *queue_state = &exec->queues[queue];
    if (queue_state->head + 1 >= queue_state->count)
        return NONE;
    uint32_t next = exec->order[queue_state->first + queue_state->head + 1];
    const struct instr *instr = &exec->program->instrs[next];
    for (uint32_t a = 0; a < instr->after_count; a++)
        waits += exec->program->after[instr->after_first + a] == exec->submitted;
    return exec->state[next] == WAITING && exec->remaining[next] == waits ? next : NONE;
}

/* Polls the submitted instruction once and pauses if it is not complete. The lock is held on entry and
 * released meanwhile. Called when the thread has no other work. */
static void poll_submitted(struct exec *exec)
{
    uint32_t number = exec->submitted;
    uint64_t now_ns = clock_mono_ns();
    if (exec->polls == 0)
        exec->polled_since_ns = now_ns;
    uint64_t waited_ns = now_ns - exec->polled_since_ns;
    pthread_mutex_unlock(&exec->lock);
    bool done = waited_ns > POLLING_NS_MAX || exec->ops->compute_done(exec->host, number);
    pthread_mutex_lock(&exec->lock);
    if (done) {
        wait_submitted(exec);
        return;
    }
    if (exec->polls++ < POLLS_WITHOUT_PAUSE || exec->failed || exec->post_first ||
        next_behind_submitted(exec) != NONE)
        return;
    uint64_t pause_ns = waited_ns / PAUSE_PART;
    pause_ns = pause_ns < PAUSE_NS_MIN ? PAUSE_NS_MIN : pause_ns > PAUSE_NS_MAX ? PAUSE_NS_MAX : pause_ns;
    (void)cond_wait_until(&exec->changed, &exec->lock, clock_mono_ns() + pause_ns);
}

/* Fills *err with the first instruction that has begun and not completed. */
static int stall_error(struct exec *exec, uint64_t stall_ns, struct err *err)
{
    for (uint32_t i = 0; i < exec->program->instr_count; i++) {
        if (exec->state[i] != BEGUN)
            continue;
        const struct instr *instr = &exec->program->instrs[i];
        char text[128];
        instr_describe(instr, text, sizeof(text));
        return err_set(err, ERR_TIMEOUT,
                       "nothing was complete for %.0f s: instruction %u (%s) waits for %s %d",
                       (double)stall_ns * 1e-9, i, text, instr->peer >= 0 ? "rank" : "group",
                       instr->peer >= 0 ? (int)instr->peer : (int)instr->group);
    }
    return err_set(err, ERR_TIMEOUT,
                   "nothing was complete for %.0f s and no instruction can start (%u of %u done)",
                   (double)stall_ns * 1e-9, exec->done_count, exec->program->instr_count);
}

/* Tells what the run waits for, once nothing was complete for a few seconds, and that it goes on once
 * something is. The lock is released meanwhile. Returns whether it told something. */
static bool tell_waits(struct exec *exec, uint64_t now_ns)
{
    const bool quiet = now_ns >= exec->progress_ns + exec->quiet_ns;
    struct err what = {0};
    if (!exec->ops->waits || quiet == exec->waits_told)
        return false;
    if (quiet)
        (void)stall_error(exec, now_ns - exec->progress_ns, &what);
    exec->waits_told = quiet;
    pthread_mutex_unlock(&exec->lock);
    exec->ops->waits(exec->host, quiet ? what.text : NULL);
    pthread_mutex_lock(&exec->lock);
    return true;
}

int exec_run(struct exec *exec, uint64_t stall_ns, struct err *err)
{
    int result = 0;
    pthread_mutex_lock(&exec->lock);
    exec_reset(exec);
    begin_ready(exec);
    while (result == 0) {
        if (exec->failed) {
            *err = exec->failure;
            result = -1;
            break;
        }
        if (exec->post_first) {
            run_posted(exec);
            continue;
        }
        if (exec->done_count == exec->program->instr_count)
            break;
        uint32_t next = exec->submitted != NONE ? next_behind_submitted(exec) : next_ready(exec);
        if (next == NONE && exec->submitted != NONE) {
            poll_submitted(exec);
            continue;
        }
        if (next != NONE) {
            run_instruction(exec, next);
            continue;
        }
        uint64_t before_ns = clock_mono_ns();
        if (before_ns >= exec->progress_ns + stall_ns) {
            result = stall_error(exec, stall_ns, err);
            fail_locked(exec, err);
            break;
        }
        if (tell_waits(exec, before_ns))
            continue;
        const bool told = exec->waits_told || exec->quiet_ns > stall_ns;
        (void)cond_wait_until(&exec->changed, &exec->lock,
                              exec->progress_ns + (told ? stall_ns : exec->quiet_ns));
        exec->totals.wait_ns += clock_mono_ns() - before_ns;
    }
    if (result == 0)
        (void)tell_waits(exec, exec->progress_ns);
    wait_submitted(exec); /* also after an error, so that the device no longer uses the host's memory */
    exec->totals.wall_ns = clock_mono_ns() - exec->run_begin_ns;
    /* A transport thread may still be between its last exec_done and clearing `beginning`. */
    const uint64_t deadline_ns = clock_mono_ns() + stall_ns;
    while (exec->beginning && cond_wait_until(&exec->changed, &exec->lock, deadline_ns))
        continue;
    if (exec->beginning && result == 0) {
        result = stall_error(exec, stall_ns, err);
        fail_locked(exec, err);
    }
    pthread_mutex_unlock(&exec->lock);
    return result;
}

const struct exec_time *exec_times(const struct exec *exec)
{
    return exec->times;
}

struct exec_totals exec_totals(const struct exec *exec)
{
    return exec->totals;
}
