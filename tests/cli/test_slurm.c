/* Tests what `motley slurm` reads of Slurm's commands, by lines as Slurm 22.05.8 printed them, and what it
 * decides. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>

#include "cli/slurm.h"

enum { IDLE_S = 300, BEGIN_S = 1000000 };

static void only_our_names_are_read(void **state)
{
    static struct slurm_allocation found[SLURM_ALLOCATIONS_MAX];
    struct err err = {0};
    size_t count;
    int64_t id;
    (void)state;
    assert_int_equal(slurm_queue_read("21|PENDING|slurm-3|motley slurm\n"
                                      "18|COMPLETING|slurm-2|motley slurm\n"
                                      "24|CONFIGURING|slurm-4|motley slurm\n"
                                      "1_2|RUNNING|slurm-5|motley slurm\n"
                                      "20|RUNNING|slurm-1|(null)\n"
                                      "4|RUNNING|others|(null)\n"
                                      "23|RUNNING|slurm-|motley slurm\n"
                                      "25|RUNNING|slurm-1|motley slurm",
                                      "slurm", found, &count, &err),
                     0);
    assert_int_equal(count, 5);
    static const struct slurm_allocation good[] = {{21, 3, SLURM_PENDING, true},
                                                   {18, 2, SLURM_OTHER, true},
                                                   {24, 4, SLURM_PENDING, true},
                                                   {20, 1, SLURM_RUNNING, false},
                                                   {25, 1, SLURM_RUNNING, true}};
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(found[i].id, good[i].id);
        assert_int_equal(found[i].slot, good[i].slot);
        assert_int_equal(found[i].state, good[i].state);
        assert_int_equal(found[i].ours, good[i].ours);
    }
    assert_int_equal(slurm_queue_read("", "slurm", found, &count, &err), 0);
    assert_int_equal(count, 0);
    assert_int_equal(slurm_submitted_read("26\n", &id, &err), 0);
    assert_int_equal(id, 26);
    assert_int_equal(slurm_submitted_read("27;scratch\n", &id, &err), 0);
    assert_int_equal(id, 27);
    assert_int_equal(slurm_submitted_read("Submitted batch job 28\n", &id, &err), -1);
    assert_non_null(strstr(err.text, "Submitted batch job 28"));
}

/* A Slurm and a server that are as the test says; what is decided is done to them at once. */
struct play {
    struct slurm_memory memory;
    struct slurm_allocation allocations[8];
    enum slurm_use nodes[SLURM_SLOTS_MAX + 1];
    int64_t waiting[8];
    size_t allocation_count, waiting_count, queued_count;
    int64_t now_s, next_id;
    uint32_t limit;
    struct slurm_action actions[SLURM_ACTIONS_MAX];
    size_t count;
};
static struct play play;

static void begin(uint32_t limit, size_t waiting)
{
    struct err err;
    doc_fini(&slurm_memory_doc, &play.memory);
    play = (struct play){.now_s = BEGIN_S, .next_id = 10, .limit = limit};
    assert_int_equal(doc_start(&slurm_memory_doc, &play.memory, &err), 0);
    play.waiting_count = play.queued_count = waiting;
    for (size_t i = 0; i < waiting; i++)
        play.waiting[i] = (int64_t)i + 1;
}

/* Looks after so many seconds. Returns how many of these deeds there were; all others must be FAILED. */
static size_t look(int64_t after_s, enum slurm_deed deed)
{
    struct err err;
    size_t found = 0;
    play.now_s += after_s;
    const struct slurm_situation now = {.allocations = play.allocations,
                                        .allocation_count = play.allocation_count,
                                        .nodes = play.nodes,
                                        .waiting = play.waiting,
                                        .waiting_count = play.waiting_count,
                                        .queued_count = play.queued_count,
                                        .now_s = play.now_s,
                                        .idle_s = IDLE_S,
                                        .limit = play.limit};
    assert_int_equal(slurm_decide(&now, &play.memory, play.actions, &play.count, &err), 0);
    for (size_t i = 0; i < play.count; i++) {
        const struct slurm_action *action = &play.actions[i];
        found += action->deed == deed;
        assert_true(action->deed == deed || action->deed == SLURM_FAILED);
        if (action->deed == SLURM_ASK) {
            assert_int_equal(slurm_keep(&play.memory, action->slot, play.next_id, play.now_s, &err), 0);
            play.allocations[play.allocation_count++] =
                (struct slurm_allocation){play.next_id++, action->slot, SLURM_PENDING, true};
        }
    }
    return found;
}

static void runs(size_t allocation, enum slurm_use use)
{
    play.allocations[allocation].state = SLURM_RUNNING;
    play.nodes[play.allocations[allocation].slot] = use;
}

static void ends(size_t allocation)
{
    play.nodes[play.allocations[allocation].slot] = SLURM_AWAY;
    play.allocations[allocation] = play.allocations[--play.allocation_count];
}

static void never_more_than_the_limit_nor_than_jobs_wait(void **state)
{
    (void)state;
    begin(3, 5);
    assert_int_equal(look(0, SLURM_ASK), 3);
    assert_int_equal(look(30, SLURM_ASK), 0);
    begin(3, 2);
    assert_int_equal(look(0, SLURM_ASK), 2);
    assert_int_equal(look(30, SLURM_ASK), 0);
    runs(0, SLURM_BUSY);
    play.waiting_count = play.queued_count =
        1; /* the first job runs; the second one's machine is on its way */
    assert_int_equal(look(30, SLURM_ASK), 0);
    runs(1, SLURM_BUSY);
    assert_int_equal(look(30, SLURM_ASK), 1);
    assert_int_equal(play.actions[0].slot, 3);
    begin(3, 1); /* somebody has the first name in Slurm, and a machine has the second one */
    play.allocations[play.allocation_count++] = (struct slurm_allocation){5, 1, SLURM_RUNNING, false};
    play.nodes[1] = play.nodes[2] = SLURM_IDLE;
    assert_int_equal(look(0, SLURM_ASK), 1);
    assert_int_equal(play.actions[0].slot, 3);
}

static void a_job_that_needs_two_machines_gets_them(void **state)
{
    (void)state;
    begin(2, 1);
    assert_int_equal(look(0, SLURM_ASK), 1);
    runs(0, SLURM_IDLE);
    assert_int_equal(look(30, SLURM_ASK), 0); /* it may start at any moment */
    assert_int_equal(look(SLURM_SETTLE_S, SLURM_ASK), 1);
}

static void an_idle_machine_is_given_back_once(void **state)
{
    (void)state;
    begin(2, 1);
    assert_int_equal(look(0, SLURM_ASK), 1);
    runs(0, SLURM_BUSY);
    play.waiting_count = play.queued_count = 0;
    assert_int_equal(look(30, SLURM_GIVE_BACK), 0);
    runs(0, SLURM_IDLE);
    assert_int_equal(look(IDLE_S - 1, SLURM_GIVE_BACK), 0);
    assert_int_equal(look(1, SLURM_GIVE_BACK), 1);
    assert_int_equal(look(30, SLURM_GIVE_BACK), 0); /* a second signal would kill */
    slurm_not_done(&play.memory, &(struct slurm_action){.id = 10});
    assert_int_equal(look(30, SLURM_GIVE_BACK), 1);
    runs(0, SLURM_LEAVING);
    assert_int_equal(look(30, SLURM_GIVE_BACK), 0);
    ends(0);
    assert_int_equal(look(30, SLURM_ASK), 0);
    assert_int_equal(play.count, 0);
}

static void a_job_that_no_machine_helped_is_passed_over_for_an_hour(void **state)
{
    (void)state;
    begin(1, 1);
    assert_int_equal(look(0, SLURM_ASK), 1);
    runs(0, SLURM_IDLE);
    look(0, SLURM_ASK);
    assert_int_equal(look(IDLE_S, SLURM_GIVE_BACK), 1);
    ends(0);
    assert_int_equal(look(600, SLURM_ASK), 0);
    play.waiting[play.waiting_count++] = 2;
    play.queued_count++;
    assert_int_equal(look(30, SLURM_ASK), 1);
    begin(1, 1);
    assert_int_equal(look(0, SLURM_ASK), 1);
    runs(0, SLURM_IDLE);
    look(0, SLURM_ASK);
    assert_int_equal(look(IDLE_S, SLURM_GIVE_BACK), 1);
    ends(0);
    assert_int_equal(look(SLURM_PASSED_S, SLURM_ASK), 1);
}

static void what_has_not_begun_is_cancelled_when_nobody_waits(void **state)
{
    (void)state;
    begin(2, 2);
    assert_int_equal(look(0, SLURM_ASK), 2);
    runs(0, SLURM_BUSY);
    play.waiting_count = 0; /* they wait for something else */
    assert_int_equal(look(30, SLURM_CANCEL), 0);
    play.queued_count = 0;
    assert_int_equal(look(30, SLURM_CANCEL), 1);
    assert_int_equal(play.actions[0].id, 11);
    ends(1);
    play.queued_count = play.waiting_count = 1;
    assert_int_equal(look(30, SLURM_ASK), 1); /* and that was no failure */
}

static void allocations_that_fail_are_asked_for_ever_less_often(void **state)
{
    int64_t pause_s = SLURM_PAUSE_S;
    (void)state;
    begin(1, 1);
    assert_int_equal(look(0, SLURM_ASK), 1);
    for (int i = 0; i < 8; i++) {
        ends(0);
        assert_int_equal(look(10, SLURM_FAILED), 1);
        assert_int_equal(look(pause_s - 1, SLURM_ASK), 0);
        assert_int_equal(look(1, SLURM_ASK), 1);
        pause_s = 2 * pause_s < SLURM_PAUSE_MAX_S ? 2 * pause_s : SLURM_PAUSE_MAX_S;
    }
    runs(0, SLURM_AWAY); /* an agent that never joins, and sleeps */
    look(0, SLURM_ASK);
    assert_int_equal(look(IDLE_S, SLURM_GIVE_BACK), 1);
    ends(0);
    assert_int_equal(look(10, SLURM_ASK), 0);
    assert_int_equal(play.count, 0); /* counted already */
    assert_int_equal(look(SLURM_PASSED_S, SLURM_ASK), 1);
    runs(0, SLURM_BUSY);
    look(10, SLURM_ASK);
    assert_int_equal(play.memory.failures, 0);
}

/* As after a crash between sbatch and the file, or with a file that was lost. */
static void allocations_of_an_earlier_run_are_known_again(void **state)
{
    struct err err;
    (void)state;
    begin(2, 2);
    play.allocations[play.allocation_count++] = (struct slurm_allocation){7, 1, SLURM_PENDING, true};
    assert_int_equal(look(0, SLURM_ASK), 1);
    json_t *kept = doc_write(&slurm_memory_doc, &play.memory, &err);
    assert_non_null(kept);
    doc_fini(&slurm_memory_doc, &play.memory);
    assert_int_equal(doc_read(&slurm_memory_doc, kept, "", &play.memory, &err), 0);
    json_decref(kept);
    assert_int_equal(play.memory.kept_count, 2);
    assert_int_equal(play.memory.kept[1].id, 10);
    assert_int_equal(look(0, SLURM_ASK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_our_names_are_read),
        cmocka_unit_test(never_more_than_the_limit_nor_than_jobs_wait),
        cmocka_unit_test(a_job_that_needs_two_machines_gets_them),
        cmocka_unit_test(an_idle_machine_is_given_back_once),
        cmocka_unit_test(a_job_that_no_machine_helped_is_passed_over_for_an_hour),
        cmocka_unit_test(what_has_not_begun_is_cancelled_when_nobody_waits),
        cmocka_unit_test(allocations_that_fail_are_asked_for_ever_less_often),
        cmocka_unit_test(allocations_of_an_earlier_run_are_known_again),
    };
    const int status = cmocka_run_group_tests(tests, NULL, NULL);
    doc_fini(&slurm_memory_doc, &play.memory);
    return status;
}
