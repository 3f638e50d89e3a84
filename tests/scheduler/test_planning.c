/* Tests that plans are made on threads beside the event loop, remembered by their question, and returned as
 * often as they are asked for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <event2/event.h>
#include <malloc.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/pass/plan_memo.h"
#include "scheduler/placer/planning.h"

static sem_t gate; /* each plan waits for one sem_post(&gate) … */
static sem_t slow; /* … or, if its specification is named "slow", for one sem_post(&slow) */
static atomic_int planned;

static int gated_plan(const struct placer_request *request, struct placer_answer *answer, struct err *err)
{
    const char *name = json_string_value(json_object_get(request->spec, "name"));
    sem_wait(strcmp(name, "slow") == 0 ? &slow : &gate);
    atomic_fetch_add(&planned, 1);
    *answer = (struct placer_answer){0};
    if (strcmp(name, "nonsense") == 0)
        return err_set(err, ERR_INVALID, "nonsense on %s", request->devices[0].device->name);
    if (strcmp(name, "no memory") == 0)
        return err_set(err, ERR_NOMEM, "no memory");
    answer->fits = true;
    answer->plan = json_pack("{s:s}", "for", name);
    answer->answer = json_object();
    answer->ranks = calloc(1, sizeof(*answer->ranks));
    answer->ranks[0].device = strdup(request->devices[0].device->name);
    answer->rank_count = 1;
    return 0;
}

static const struct placer gated = {.plan = gated_plan};

struct world {
    struct event_base *base;
    struct planning *planning;
    struct event *patience;
    unsigned arrived;
    struct store_sched_device row;
    struct placer_device device;
    json_t *spec, *inventory;
    struct placer_request request;
};

static void arrived(void *arg)
{
    struct world *world = arg;
    world->arrived++;
    event_base_loopbreak(world->base);
}

static void too_long(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what, (void)arg;
    fail_msg("no answer within 10 s");
}

static void world_open(struct world *world)
{
    struct err err;
    *world = (struct world){.base = event_base_new()};
    sem_init(&gate, 0, 0);
    sem_init(&slow, 0, 0);
    atomic_store(&planned, 0);
    world->planning = planning_create(world->base, &gated, NULL, arrived, world, &err);
    assert_non_null(world->planning);
    world->patience = evtimer_new(world->base, too_long, world);
    world->inventory = json_pack("{s:i}", "threads", 1);
    static char name[] = "n/cpu0", node[] = "n", kind[] = "cpu";
    world->row = (struct store_sched_device){
        .name = name, .node = node, .kind = kind, .inventory = world->inventory, .memory_limit_bytes = 5};
    world->device = (struct placer_device){.device = &world->row, .memory_bytes = 5, .heat = 1};
    world->request = (struct placer_request){.devices = &world->device, .device_count = 1};
}

static void world_close(struct world *world)
{
    planning_destroy(world->planning);
    event_free(world->patience);
    event_base_free(world->base);
    json_decref(world->spec);
    json_decref(world->inventory);
    sem_destroy(&gate);
    sem_destroy(&slow);
}

static int ask(struct world *world, const char *name, struct placer_answer *answer, struct err *err)
{
    json_decref(world->spec);
    world->spec = json_pack("{s:s}", "name", name);
    world->request.spec = world->spec;
    return planning_get(world->planning, &world->request, answer, err);
}

static void wait_for_arrival(struct world *world)
{
    const struct timeval most = {10, 0};
    unsigned before = world->arrived;
    event_add(world->patience, &most);
    while (world->arrived == before)
        event_base_dispatch(world->base);
    event_del(world->patience);
}

/* Asks a new question and waits until it is answered. */
static void ask_and_wait(struct world *world, const char *name)
{
    struct placer_answer answer;
    struct err err;
    assert_int_equal(ask(world, name, &answer, &err), 0);
    wait_for_arrival(world);
}

static void the_loop_runs_while_a_plan_is_made(void **state)
{
    (void)state;
    struct world world;
    struct placer_answer answer;
    struct err err;
    world_open(&world);
    assert_int_equal(ask(&world, "first", &answer, &err), 0);
    /* A second question does not start a second plan. */
    assert_int_equal(ask(&world, "first", &answer, &err), 0);
    assert_int_equal(event_base_loop(world.base, EVLOOP_NONBLOCK), 0);
    assert_int_equal(world.arrived, 0);
    sem_post(&gate);
    wait_for_arrival(&world);
    for (int turn = 0; turn < 3; turn++) {
        assert_int_equal(ask(&world, "first", &answer, &err), 1);
        assert_true(answer.fits);
        assert_string_equal(json_string_value(json_object_get(answer.plan, "for")), "first");
        assert_string_equal(answer.ranks[0].device, "n/cpu0");
        placer_answer_fini(&answer);
    }
    assert_int_equal(atomic_load(&planned), 1);
    world_close(&world);
}

static void anything_else_asked_is_planned_anew(void **state)
{
    (void)state;
    struct world world;
    struct placer_answer answer;
    struct err err;
    world_open(&world);
    for (int i = 0; i < 8; i++)
        sem_post(&gate);
    ask_and_wait(&world, "same");
    world.device.memory_bytes++;
    ask_and_wait(&world, "same");
    world.device.heat = 0.5;
    ask_and_wait(&world, "same");
    const struct placer_move move = {.plan = world.inventory, .steps_left = 7};
    world.request.move = &move;
    ask_and_wait(&world, "same");
    world.request.move = NULL;
    json_object_set_new(world.inventory, "threads", json_integer(2));
    ask_and_wait(&world, "same");
    json_t *profile = json_pack("{s:f}", "x", 1.5);
    world.device.profile = profile;
    ask_and_wait(&world, "same");
    assert_int_equal(ask(&world, "same", &answer, &err), 1);
    placer_answer_fini(&answer);
    world.device.profile = NULL;
    assert_int_equal(ask(&world, "same", &answer, &err), 1);
    placer_answer_fini(&answer);
    json_decref(profile);
    assert_int_equal(atomic_load(&planned), 6);
    world_close(&world);
}

static void refusals_are_remembered_and_lack_of_memory_is_not(void **state)
{
    (void)state;
    struct world world;
    struct placer_answer answer;
    struct err err;
    world_open(&world);
    for (int i = 0; i < 8; i++)
        sem_post(&gate);
    ask_and_wait(&world, "nonsense");
    for (int turn = 0; turn < 2; turn++) {
        assert_int_equal(ask(&world, "nonsense", &answer, &err), -1);
        assert_int_equal(err.code, ERR_INVALID);
        assert_string_equal(err.text, "nonsense on n/cpu0");
    }
    ask_and_wait(&world, "no memory");
    assert_int_equal(ask(&world, "no memory", &answer, &err), -1);
    assert_int_equal(err.code, ERR_NOMEM);
    ask_and_wait(&world, "no memory");
    assert_int_equal(atomic_load(&planned), 3);
    world_close(&world);
}

static void many_answers_are_kept_within_bounds(void **state)
{
    (void)state;
    struct world world;
    struct placer_answer answer;
    struct err err;
    char name[32];
    world_open(&world);
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof(name), "job %d", i);
        sem_post(&gate);
        ask_and_wait(&world, name);
    }
    assert_int_equal(ask(&world, "job 99", &answer, &err), 1);
    placer_answer_fini(&answer);
    sem_post(&gate);
    ask_and_wait(&world, "job 0"); /* this answer was forgotten, so the question is new */
    world_close(&world);
}

/* Many questions of one class, each of which takes a long search, do not delay the answers to other
 * questions, and are all answered in the end. */
static void a_long_search_holds_up_its_own_class_alone(void **state)
{
    (void)state;
    struct world world;
    struct placer_answer answer;
    struct err err;
    world_open(&world);
    /* These are more questions than are planned at a time; the rest is asked again later. */
    for (uint64_t bytes = 1; bytes <= 20; bytes++) {
        world.device.memory_bytes = bytes;
        assert_int_equal(ask(&world, "slow", &answer, &err), 0);
    }
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof(name), "quick %d", i);
        sem_post(&gate);
        ask_and_wait(&world, name);
        assert_int_equal(ask(&world, name, &answer, &err), 1);
        placer_answer_fini(&answer);
    }
    assert_int_equal(atomic_load(&planned), 3);
    for (uint64_t bytes = 1; bytes <= 20; bytes++) {
        world.device.memory_bytes = bytes;
        sem_post(&slow);
        while (ask(&world, "slow", &answer, &err) == 0)
            wait_for_arrival(&world);
        placer_answer_fini(&answer);
    }
    assert_int_equal(atomic_load(&planned), 23);
    world_close(&world);
}

static void it_can_end_with_a_question_open(void **state)
{
    (void)state;
    struct world world;
    struct placer_answer answer;
    struct err err;
    world_open(&world);
    assert_int_equal(ask(&world, "last", &answer, &err), 0);
    sem_post(&gate);
    world_close(&world);
}

/* The memory of answers keeps to its limit, however many are noted. */
static void remembered_answers_keep_to_their_limit(void **state)
{
    struct err err;
    struct plan_memo *memo = plan_memo_create(&err);
    const size_t before = mallinfo2().uordblks;
    (void)state;
    for (uint32_t i = 0; i < 3 * PLAN_MEMO_MAX - 1; i++) {
        const struct plan_memo_answer answer = {.fits = true}, none = {.words = "no device is large enough"};
        struct plan_memo_key key = {.most = 1};
        memcpy(key.class, &i, sizeof(i));
        plan_memo_put(memo, &key, i % 2 ? &answer : &none);
        plan_memo_put(memo, &key, i % 2 ? &answer : &none); /* is noted once */
        const struct plan_memo_answer *found = plan_memo_get(memo, &key);
        assert_true(found && found->fits == (i % 2 != 0) && (found->fits || strstr(found->words, "large")));
    }
    const size_t held = mallinfo2().uordblks - before;
    if (held > (size_t)PLAN_MEMO_MAX * 512)
        fail_msg("%zu bytes for %d answers", held, PLAN_MEMO_MAX);
    plan_memo_destroy(memo);
    /* The allocator keeps some freed pieces of each size for the thread, seven in glibc, and counts them as
     * used. The answers with and without words are of two sizes. */
    assert_true(mallinfo2().uordblks <= before + (size_t)16 * 512);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_loop_runs_while_a_plan_is_made),
        cmocka_unit_test(anything_else_asked_is_planned_anew),
        cmocka_unit_test(refusals_are_remembered_and_lack_of_memory_is_not),
        cmocka_unit_test(many_answers_are_kept_within_bounds),
        cmocka_unit_test(a_long_search_holds_up_its_own_class_alone),
        cmocka_unit_test(it_can_end_with_a_question_open),
        cmocka_unit_test(remembered_answers_keep_to_their_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
