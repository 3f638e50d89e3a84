/* Tests the execution model of docs/PROGRAM.md (queues, `after`, failures) on programs whose instructions do
 * nothing. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/cond.h"
#include "common/rand.h"
#include "worker/program/exec.h"

enum { PENDING_MAX = 4096 };

/* A transport that completes instructions from another thread, in a seeded random order. */
struct transport {
    struct exec *exec;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t pending[PENDING_MAX], count;
    bool stop, at_once, hold;
    struct rand_stream random;
    uint32_t begun[PENDING_MAX], begun_count; /* instructions in the order in which they began */
    uint32_t fail_at;                         /* instruction that fails, or UINT32_MAX */
    uint32_t posted;
    bool device;                 /* the device works asynchronously: submitted instructions are waited for */
    uint32_t given[PENDING_MAX]; /* instructions submitted to the device, in order */
    uint32_t given_count, waited,
        ahead; /* ahead: how often two submitted instructions were incomplete at once */
    uint32_t looks, looks_before_done; /* number of polls that found the instruction incomplete, and number
                                          after which it completes */
    char waits[200];                   /* what the run said that it waits for */
    uint32_t goes_on;                  /* how often the run said that it goes on */
    uint32_t all;                      /* once this many instructions have begun the device may complete */
    struct exec_item item;             /* posted when instruction 1 is submitted, if it has a function */
    uint32_t stick_at; /* beginning this instruction takes until `stuck` ends, 2 s at most; 0: none */
    bool stuck;
};

static void note_begun(struct transport *t, uint32_t number)
{
    pthread_mutex_lock(&t->lock);
    t->begun[t->begun_count++] = number;
    pthread_mutex_unlock(&t->lock);
}

static int compute(void *host, uint32_t number, const struct instr *instr, struct err *err)
{
    struct transport *t = host;
    (void)instr;
    note_begun(t, number);
    if (number == t->fail_at && !t->device)
        return err_set(err, ERR_NOMEM, "instruction %u ran out", number);
    if (!t->device || number % 5 == 0)
        return 0; /* complete at once, as some instructions are on any device */
    if (number == 1 && t->item.fn)
        exec_post(t->exec, &t->item);
    t->given[t->given_count++] = number;
    t->ahead += t->given_count - t->waited == 2;
    return 1;
}

static int compute_wait(void *host, uint32_t number, struct err *err)
{
    struct transport *t = host;
    if (t->given_count - t->waited > 2 || t->given[t->waited] != number)
        return err_set(err, ERR_INTERNAL, "instruction %u is waited for, %u of %u before it", number,
                       t->waited, t->given_count);
    t->waited++;
    return number == t->fail_at ? err_set(err, ERR_DEVICE_LOST, "instruction %u is lost", number) : 0;
}

static bool compute_done(void *host, uint32_t number)
{
    struct transport *t = host;
    (void)number;
    pthread_mutex_lock(&t->lock); /* `begun` grows in the transport's thread, too */
    const bool all = t->begun_count == t->all;
    pthread_mutex_unlock(&t->lock);
    return t->given_count - t->waited == 2 || t->looks++ >= t->looks_before_done || all;
}

static int begin(void *host, uint32_t number, const struct instr *instr, struct err *err)
{
    struct transport *t = host;
    (void)instr;
    (void)err;
    note_begun(t, number);
    if (t->stick_at && number == t->stick_at) {
        const uint64_t deadline_ns = clock_mono_ns() + 2000000000u;
        pthread_mutex_lock(&t->lock);
        t->stuck = true;
        while (t->stuck && cond_wait_until(&t->changed, &t->lock, deadline_ns))
            continue;
        t->stuck = false;
        pthread_mutex_unlock(&t->lock);
    }
    if (t->at_once) {
        exec_done(t->exec, number, NULL);
        return 0;
    }
    pthread_mutex_lock(&t->lock);
    t->pending[t->count++] = number;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
    return 0;
}

/* The message that is waited for comes now. */
static void waits(void *host, const char *what)
{
    struct transport *t = host;
    if (what)
        snprintf(t->waits, sizeof(t->waits), "%s", what);
    t->goes_on += what ? 0 : 1;
    pthread_mutex_lock(&t->lock);
    t->hold = false;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

static const struct exec_ops telling_ops = {
    .compute = compute, .begin = begin, .waits = waits, .quiet_ns = 20000000u};
static const struct exec_ops ops = {
    .compute = compute, .compute_wait = compute_wait, .compute_done = compute_done, .begin = begin};

static void *transport_main(void *arg)
{
    struct transport *t = arg;
    pthread_mutex_lock(&t->lock);
    while (!t->stop) {
        if (t->count == 0 || t->hold) {
            pthread_cond_wait(&t->changed, &t->lock);
            continue;
        }
        uint32_t at = rand_stream_below(&t->random, t->count), number = t->pending[at];
        t->pending[at] = t->pending[--t->count];
        pthread_mutex_unlock(&t->lock);
        struct err failure;
        err_set(&failure, ERR_PEER, "rank 1 went away");
        exec_done(t->exec, number, number == t->fail_at ? &failure : NULL);
        pthread_mutex_lock(&t->lock);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static void transport_start(struct transport *t, uint64_t seed)
{
    memset(t, 0, sizeof(*t));
    t->fail_at = UINT32_MAX;
    pthread_mutex_init(&t->lock, NULL);
    assert_int_equal(cond_init(&t->changed), 0);
    rand_stream_init(&t->random, seed, 1);
    assert_int_equal(pthread_create(&t->thread, NULL, transport_main, t), 0);
}

static void transport_stop(struct transport *t)
{
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    t->hold = false;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->changed);
}

/* Makes a program of random instructions on random queues of a plan of 4 ranks; `after` names any earlier
 * ones. */
static void random_program(struct program *program, uint64_t seed, uint32_t count)
{
    struct program_builder b = {0};
    struct rand_stream random;
    struct err err;
    rand_stream_init(&random, seed, 2);
    for (uint32_t i = 0; i < count; i++) {
        static const enum queue_kind kinds[] = {QUEUE_COMPUTE, QUEUE_SEND, QUEUE_RECV, QUEUE_GROUP};
        enum queue_kind kind = kinds[rand_stream_below(&random, 4)];
        struct instr instr = instr_init(kind == QUEUE_SEND ? INSTR_SEND : INSTR_FORWARD, kind);
        instr.peer =
            kind == QUEUE_SEND || kind == QUEUE_RECV ? 1 + (int32_t)rand_stream_below(&random, 3) : PLAN_NONE;
        instr.group = kind == QUEUE_GROUP ? 0 : PLAN_NONE;
        int32_t after[3];
        uint32_t afters = i ? rand_stream_below(&random, 4) : 0;
        for (uint32_t a = 0; a < afters; a++)
            after[a] = (int32_t)rand_stream_below(&random, i);
        program_add(&b, &instr, after, afters);
    }
    assert_int_equal(program_builder_take(&b, program, &err), 0);
}

/* Checks that begin times respect queues and `after`, and that every instruction began once. */
static void check_order(const struct plan *plan, const struct program *program, const struct exec *exec,
                        const struct transport *t)
{
    const struct exec_time *times = exec_times(exec);
    bool seen[PENDING_MAX] = {false};
    assert_int_equal(t->begun_count, program->instr_count);
    for (uint32_t i = 0; i < t->begun_count; i++) {
        assert_false(seen[t->begun[i]]);
        seen[t->begun[i]] = true;
    }
    for (uint32_t i = 0; i < program->instr_count; i++) {
        const struct instr *instr = &program->instrs[i];
        assert_true(times[i].ready_ns <= times[i].begin_ns && times[i].begin_ns <= times[i].end_ns);
        for (uint32_t a = 0; a < instr->after_count; a++)
            assert_true(times[program->after[instr->after_first + a]].end_ns <= times[i].begin_ns);
        for (uint32_t j = i + 1; j < program->instr_count; j++)
            if (instr_queue_index(plan, instr) == instr_queue_index(plan, &program->instrs[j])) {
                assert_true(times[i].end_ns <= times[j].begin_ns);
                break;
            }
    }
}

static void random_programs_run_in_the_order_of_queues_and_after(void **state)
{
    (void)state;
    struct err err;
    struct plan *plan = plan_create(4, 1, 4, 1, &err);
    uint32_t ahead = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct program program = {0};
        struct transport t;
        struct exec *exec = NULL;
        random_program(&program, seed, 20 + (uint32_t)seed * 3);
        transport_start(&t, seed);
        t.at_once = seed % 3 == 0;
        t.device = seed % 2 == 0;
        t.looks_before_done = seed % 4 == 0 ? 8 : 0; /* polls until an instruction is complete */
        assert_int_equal(exec_create(plan, &program, &ops, &t, &exec, &err), 0);
        t.exec = exec;
        for (int turn = 0; turn < 3; turn++) {
            t.begun_count = t.given_count = t.waited = t.looks = 0;
            if (exec_run(exec, 20000000000u, &err) < 0)
                fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
            check_order(plan, &program, exec, &t);
            assert_int_equal(t.waited, t.given_count);
        }
        ahead += t.ahead;
        transport_stop(&t);
        exec_destroy(exec);
        program_fini(&program);
    }
    assert_true(ahead > 100); /* the device often had two instructions at once */
    plan_destroy(plan);
}

static int sleeping_item(void *arg, struct err *err)
{
    (void)arg;
    (void)err;
    nanosleep(&(const struct timespec){.tv_nsec = 20000000}, NULL);
    return 0;
}

/* An instruction whose receive completes while the device is busy is submitted at once, not when the device
 * is idle. What the thread does meanwhile does not count twice as computing. */
static void what_comes_meanwhile_is_queued_behind(void **state)
{
    (void)state;
    struct err err;
    struct plan *plan = plan_create(2, 1, 4, 1, &err);
    struct program_builder b = {0};
    struct program program = {0};
    struct transport t;
    struct exec *exec = NULL;
    struct instr recv = instr_init(INSTR_RECV, QUEUE_RECV), work = instr_init(INSTR_FORWARD, QUEUE_COMPUTE);
    recv.peer = 1;
    program_add(&b, &recv, NULL, 0); /* instruction 0 completes at once */
    program_add(&b, &work, NULL, 0);
    program_add(&b, &recv, NULL, 0);
    int32_t after[] = {0, 2};
    program_add(&b, &work, after, 2);
    assert_int_equal(program_builder_take(&b, &program, &err), 0);
    transport_start(&t, 1);
    t.device = true;
    t.looks_before_done = 1000000; /* completion by polling would take hours */
    t.all = program.instr_count;
    t.item.fn = sleeping_item;
    assert_int_equal(exec_create(plan, &program, &ops, &t, &exec, &err), 0);
    t.exec = exec;
    assert_int_equal(exec_run(exec, 20000000000u, &err), 0);
    assert_int_equal(t.ahead, 1);
    assert_true(exec_totals(exec).compute_ns >= 20000000u);
    assert_true(exec_totals(exec).compute_ns <= exec_totals(exec).wall_ns);
    assert_true(exec_times(exec)[3].begin_ns >= exec_times(exec)[1].end_ns);
    transport_stop(&t);
    exec_destroy(exec);
    program_fini(&program);
    plan_destroy(plan);
}

/* A receive whose message does not arrive blocks only its own queue. */
static void a_late_receive_holds_up_only_its_queue(void **state)
{
    (void)state;
    struct err err;
    struct plan *plan = plan_create(2, 1, 4, 1, &err);
    struct program_builder b = {0};
    struct program program = {0};
    struct transport t;
    struct exec *exec = NULL;
    struct instr recv = instr_init(INSTR_RECV, QUEUE_RECV), work = instr_init(INSTR_FORWARD, QUEUE_COMPUTE);
    recv.peer = 1;
    program_add(&b, &recv, NULL, 0);
    program_add(&b, &work, NULL, 0);
    program_add(&b, &work, NULL, 0);
    assert_int_equal(program_builder_take(&b, &program, &err), 0);
    transport_start(&t, 1);
    t.hold = true;
    assert_int_equal(exec_create(plan, &program, &ops, &t, &exec, &err), 0);
    t.exec = exec;
    assert_int_equal(exec_run(exec, 50000000u, &err), -1);
    assert_int_equal(err.code, ERR_TIMEOUT);
    assert_non_null(strstr(err.text, "rank 1"));
    assert_non_null(strstr(err.text, "instruction 0"));
    assert_int_equal(t.begun_count, 3);
    pthread_mutex_lock(&t.lock);
    t.hold = false;
    pthread_cond_signal(&t.changed);
    pthread_mutex_unlock(&t.lock);
    transport_stop(&t);
    exec_destroy(exec);
    transport_start(&t, 1);
    t.hold = true;
    assert_int_equal(exec_create(plan, &program, &telling_ops, &t, &exec, &err), 0);
    t.exec = exec;
    assert_int_equal(exec_run(exec, 10000000000u, &err), 0);
    assert_non_null(strstr(t.waits, "waits for rank 1")); /* said long before the run would fail */
    assert_int_equal(t.goes_on, 1);
    transport_stop(&t);
    exec_destroy(exec);
    program_fini(&program);
    plan_destroy(plan);
}

static void a_failure_of_any_instruction_ends_the_run_with_its_error(void **state)
{
    (void)state;
    struct err err;
    struct plan *plan = plan_create(4, 1, 4, 1, &err);
    for (uint32_t fail_at = 0; fail_at < 40; fail_at++) {
        struct program program = {0};
        struct transport t;
        struct exec *exec = NULL;
        random_program(&program, 7, 40);
        transport_start(&t, fail_at);
        t.fail_at = fail_at;
        t.device = fail_at % 2 == 1 && fail_at % 5 != 0;
        assert_int_equal(exec_create(plan, &program, &ops, &t, &exec, &err), 0);
        t.exec = exec;
        assert_int_equal(exec_run(exec, 20000000000u, &err), -1);
        assert_true(err.code == ERR_NOMEM || err.code == ERR_PEER || err.code == ERR_DEVICE_LOST);
        transport_stop(&t);
        exec_destroy(exec);
        program_fini(&program);
    }
    plan_destroy(plan);
}

/* A kill may come before a program or between two of them. */
static void a_run_that_was_ended_before_it_began_does_nothing(void **state)
{
    (void)state;
    struct err err, killed;
    struct plan *plan = plan_create(4, 1, 4, 1, &err);
    struct program program = {0};
    struct transport t;
    struct exec *exec = NULL;
    random_program(&program, 7, 40);
    transport_start(&t, 1);
    assert_int_equal(exec_create(plan, &program, &ops, &t, &exec, &err), 0);
    t.exec = exec;
    assert_int_equal(exec_run(exec, 20000000000u, &err), 0);
    t.begun_count = 0;
    err_set(&killed, ERR_CANCELLED, "told to end at once");
    exec_fail(exec, &killed);
    for (int turn = 0; turn < 2; turn++) {
        assert_int_equal(exec_run(exec, 20000000000u, &err), -1);
        assert_int_equal(err.code, ERR_CANCELLED);
        assert_int_equal(t.begun_count, 0);
    }
    transport_stop(&t);
    exec_destroy(exec);
    program_fini(&program);
    plan_destroy(plan);
}

/* The transport's thread completes a receive, and hangs while it begins the next one. */
static void a_run_does_not_wait_for_ever_for_an_instruction_to_begin(void **state)
{
    (void)state;
    struct err err;
    struct plan *plan = plan_create(2, 1, 4, 1, &err);
    struct program_builder b = {0};
    struct program program = {0};
    struct transport t;
    struct exec *exec = NULL;
    struct instr recv = instr_init(INSTR_RECV, QUEUE_RECV);
    recv.peer = 1;
    program_add(&b, &recv, NULL, 0);
    program_add(&b, &recv, NULL, 0);
    assert_int_equal(program_builder_take(&b, &program, &err), 0);
    transport_start(&t, 1);
    t.stick_at = 1;
    assert_int_equal(exec_create(plan, &program, &ops, &t, &exec, &err), 0);
    t.exec = exec;
    assert_int_equal(exec_run(exec, 50000000u, &err), -1);
    assert_int_equal(err.code, ERR_TIMEOUT);
    assert_non_null(strstr(err.text, "instruction 1"));
    pthread_mutex_lock(&t.lock);
    assert_true(t.stuck);
    t.stuck = false;
    pthread_cond_signal(&t.changed);
    pthread_mutex_unlock(&t.lock);
    transport_stop(&t);
    exec_destroy(exec);
    program_fini(&program);
    plan_destroy(plan);
}

static void an_after_that_points_forward_is_refused(void **state)
{
    (void)state;
    struct err err;
    struct plan *plan = plan_create(1, 1, 4, 1, &err);
    struct instr instrs[2] = {instr_init(INSTR_FORWARD, QUEUE_COMPUTE),
                              instr_init(INSTR_FORWARD, QUEUE_COMPUTE)};
    uint32_t after[1] = {1};
    struct program program = {.instr_count = 2, .instrs = instrs, .after_total = 1, .after = after};
    struct exec *exec = NULL;
    instrs[0].after_count = 1;
    assert_int_equal(exec_create(plan, &program, &ops, NULL, &exec, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    instrs[0].after_count = 2;
    assert_int_equal(exec_create(plan, &program, &ops, NULL, &exec, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_programs_run_in_the_order_of_queues_and_after),
        cmocka_unit_test(what_comes_meanwhile_is_queued_behind),
        cmocka_unit_test(a_late_receive_holds_up_only_its_queue),
        cmocka_unit_test(a_failure_of_any_instruction_ends_the_run_with_its_error),
        cmocka_unit_test(a_run_that_was_ended_before_it_began_does_nothing),
        cmocka_unit_test(a_run_does_not_wait_for_ever_for_an_instruction_to_begin),
        cmocka_unit_test(an_after_that_points_forward_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
