/* Tests scarce memory: a plan that fits is found, and otherwise the stated shortage is true. */
#include "planner/plan_fixture.h"

#include <math.h>

#define MIB ((uint64_t)1 << 20)

enum { CLUSTERS = 60, DEVICES_MAX = 5 };

static struct plan_answer *search(const struct workload *w, const uint64_t *memory, uint32_t count)
{
    struct err err = {0};
    struct plan_options options = {.evaluations = 200};
    struct plan_answer *answer = NULL;
    struct cluster *cluster = cluster_create(&err);
    for (uint32_t d = 0; d < count; d++) {
        char name[16], node[16];
        snprintf(name, sizeof(name), "n%u/0", d);
        snprintf(node, sizeof(node), "n%u", d);
        fixture_device(cluster, name, node, memory[d], 1 + d % 3);
    }
    if (plan_search((struct workload[]){*w}, cluster, &options, &answer, &err) < 0)
        fail_msg("%s", err.text);
    cluster_destroy(cluster);
    return answer;
}

static bool fits(const struct workload *w, const uint64_t *memory, uint32_t count)
{
    struct plan_answer *answer = search(w, memory, count);
    bool yes = answer->verdict == VERDICT_FITS;
    plan_answer_destroy(answer);
    return yes;
}

/* Returns the device that the answer names as too small. */
static uint32_t named(const char *words)
{
    const char *at = strstr(words, " on n");
    if (!at)
        fail_msg("no device is named: %s", words);
    return (uint32_t)strtoul(at + 5, NULL, 10);
}

/* The sentence "needs … on n1/0, which has …: 80 MiB too little" is a promise: with 80 MiB more memory on
 * that device the plan fits, and with 3 % less than these it does not. */
static void with_what_is_missing_a_pipeline_fits_and_with_less_it_does_not(void **state)
{
    (void)state;
    struct model_config config = fixture_config(12);
    config.tied = false;
    config.vocab = 4096; /* With a larger vocabulary embedding and head could each be too large for a device,
                            and no single device would be named. */
    struct workload w = fixture_workload(&config, 40, 8);
    struct rand_stream r;
    uint32_t told = 0;
    w.place = PLACE_PIPELINE;
    rand_stream_init(&r, 20261121, 1);
    for (int turn = 0; turn < CLUSTERS; turn++) {
        uint64_t memory[DEVICES_MAX];
        uint32_t count = 2 + rand_stream_below(&r, DEVICES_MAX - 1);
        for (uint32_t d = 0; d < count; d++)
            memory[d] = (40 + rand_stream_below(&r, 220 / count)) * MIB;
        struct plan_answer *answer = search(&w, memory, count);
        if (answer->verdict != VERDICT_FITS) {
            uint32_t device = named(answer->words);
            uint64_t lacks = answer->shortfall_bytes, has = memory[device];
            told++;
            memory[device] = has + lacks;
            if (!fits(&w, memory, count))
                fail_msg("cluster %d: not with %llu bytes more either: %s", turn, (unsigned long long)lacks,
                         answer->words);
            memory[device] = has + lacks - lacks / 32 - 1;
            if (fits(&w, memory, count))
                fail_msg("cluster %d: less than %llu bytes do: %s", turn, (unsigned long long)lacks,
                         answer->words);
        }
        plan_answer_destroy(answer);
    }
    assert_true(told >= CLUSTERS / 3);
    printf("%u of %d clusters are too small\n", told, CLUSTERS);
    workload_fini(&w);
}

/* The stated shortage is never less than the amount by which the weights alone exceed all memory. */
static void a_model_of_ten_times_the_memory_lacks_nine_tenths(void **state)
{
    (void)state;
    struct model_config config = fixture_config(30);
    struct workload w = fixture_workload(&config, 40, 8);
    for (uint32_t count = 1; count <= 4; count++) {
        uint64_t memory[4], weights = 4ull * 134515008, all = count * 60 * MIB;
        for (uint32_t d = 0; d < count; d++)
            memory[d] = 60 * MIB;
        struct plan_answer *answer = search(&w, memory, count);
        assert_int_equal(answer->verdict, VERDICT_DOES_NOT_FIT);
        if (answer->shortfall_bytes < weights - all)
            fail_msg("%u devices: %s", count, answer->words);
        for (uint32_t i = 0; i < answer->alternative_count; i++) {
            const struct plan_alternative *line = &answer->alternatives[i];
            if (line->needs_bytes < line->has_bytes + weights - all)
                fail_msg("%u devices: alternative %u needs %llu bytes of %llu", count, i,
                         (unsigned long long)line->needs_bytes, (unsigned long long)line->has_bytes);
        }
        plan_answer_destroy(answer);
    }
    workload_fini(&w);
}

/* What a job of shards lacks counts all micro-batches of a step, which layered accumulation keeps: with so
 * much more memory in all, and a tenth more, it fits, and with half of it not. */
static void what_shards_lack_is_what_makes_them_fit(void **state)
{
    (void)state;
    struct model_config config = fixture_config(6);
    struct workload w = fixture_workload(&config, 200, 64);
    w.method = METHOD_FULL;
    w.place = PLACE_DATA;
    uint64_t memory[3] = {40 * MIB, 40 * MIB, 40 * MIB};
    struct plan_answer *answer = search(&w, memory, 3);
    assert_int_equal(answer->verdict, VERDICT_DOES_NOT_FIT);
    const uint64_t lacks = answer->shortfall_bytes;
    plan_answer_destroy(answer);
    for (int enough = 0; enough < 2; enough++) {
        for (int i = 0; i < 3; i++)
            memory[i] = 40 * MIB + lacks * (enough ? 11 : 5) / 30;
        answer = search(&w, memory, 3);
        print_message("%.1f MiB lacked: %.1f MiB a device %s\n", (double)lacks / MIB, (double)memory[0] / MIB,
                      answer->plan ? "fit" : "do not fit");
        assert_int_equal(answer->verdict, enough ? VERDICT_FITS : VERDICT_DOES_NOT_FIT);
        plan_answer_destroy(answer);
    }
    workload_fini(&w);
}

/* Gives the device that is named as too small exactly the bytes that it is said to lack: then the plan fits,
 * and no rank takes more than its limit. */
static void a_plan_that_just_fits_is_found(void **state)
{
    (void)state;
    struct model_config config = fixture_config(12);
    config.tied = false;
    config.vocab = 4096; /* With a larger vocabulary embedding and head could each be too large for a device,
                            and no single device would be named. */
    struct workload w = fixture_workload(&config, 40, 8);
    uint64_t memory[3] = {60 * MIB, 60 * MIB, 60 * MIB};
    w.place = PLACE_PIPELINE;
    struct plan_answer *answer = search(&w, memory, 3);
    assert_int_equal(answer->verdict, VERDICT_DOES_NOT_FIT);
    memory[named(answer->words)] += answer->shortfall_bytes;
    plan_answer_destroy(answer);
    answer = search(&w, memory, 3);
    assert_int_equal(answer->verdict, VERDICT_FITS);
    for (uint32_t i = 0; i < answer->plan->rank_count; i++)
        assert_true(answer->plan->ranks[i].memory_bytes <= answer->plan->ranks[i].memory_limit_bytes);
    plan_answer_destroy(answer);
    workload_fini(&w);
}

/* A fast device lacks memory for the layers that its speed would give it; two slow devices can share layers
 * over a fast link. Cuts by time alone do not fit, and groups over the slow link take many times as long. */
static void tensor_groups_are_cut_by_memory_where_time_asks_too_much(void **state)
{
    (void)state;
    struct err err = {0};
    struct model_config config = fixture_config(24);
    config.tied = false;
    config.vocab = 4096;
    config.kv_heads = 9; /* With fewer key heads two members could not share a layer about evenly. */
    struct workload w = fixture_workload(&config, 40, 8);
    double seconds[2] = {0};
    for (int k = 0; k < 2; k++) {
        struct plan_options options = {.evaluations = 400};
        struct plan_answer *answer = NULL;
        struct cluster *cluster = cluster_create(&err);
        fixture_device(cluster, "a/0", "a", 240 * MIB, 12);
        fixture_device(cluster, "b/0", "b", 190 * MIB, 1);
        fixture_device(cluster, "b/1", "b", 190 * MIB, 1);
        fixture_link(cluster, "a", "b", 1e-3, 2e6);
        fixture_link(cluster, "b", "a", 1e-3, 2e6);
        fixture_link(cluster, "b", "b", 1e-6, 5e10);
        w.place = k ? PLACE_TENSOR : PLACE_PIPELINE;
        if (plan_search(&w, cluster, &options, &answer, &err) < 0)
            fail_msg("%s", err.text);
        if (answer->verdict != VERDICT_FITS)
            fail_msg("%s", answer->words);
        seconds[k] = answer->step_s;
        plan_answer_destroy(answer);
        cluster_destroy(cluster);
    }
    if (seconds[1] > 1.2 * seconds[0])
        fail_msg("a tensor group takes %g s, a pipeline %g s", seconds[1], seconds[0]);
    printf("pipeline %.3g s, with a tensor group %.3g s\n", seconds[0], seconds[1]);
    workload_fini(&w);
}

/* If memory suffices for a plan that recomputes everything but not for one that recomputes nothing, the plan
 * recomputes some blocks: a step is never longer with more memory, and somewhere shorter than with everything
 * recomputed. */
static void memory_in_between_keeps_what_some_blocks_save(void **state)
{
    (void)state;
    struct model_config config = fixture_config(12);
    config.tied = false;
    config.vocab = 4096;
    struct workload w = fixture_workload(&config, 40, 8);
    uint32_t partly = 0, whole = 0, none = 0;
    double before_s = INFINITY;
    w.place = PLACE_SINGLE;
    w.micro_batch_rows = 8;
    for (uint64_t memory = 240 * MIB; memory < 1024 * MIB; memory += 16 * MIB) {
        w.recompute = RECOMPUTE_AUTO;
        struct plan_answer *answer = search(&w, &memory, 1);
        if (answer->verdict != VERDICT_FITS) {
            plan_answer_destroy(answer);
            continue;
        }
        const struct plan_rank *rank = &answer->plan->ranks[0];
        w.recompute = RECOMPUTE_YES;
        struct plan_answer *again = search(&w, &memory, 1);
        assert_int_equal(again->verdict, VERDICT_FITS);
        assert_true(rank->memory_bytes <= memory);
        assert_true(answer->plan->costs.step_s <= before_s * (1 + 1e-9));
        if (rank->recompute_end > 0)
            assert_true(answer->plan->costs.step_s < again->plan->costs.step_s);
        before_s = answer->plan->costs.step_s;
        partly += rank->recompute_end > 0;
        whole += rank->recompute && rank->recompute_end == 0;
        none += !rank->recompute;
        plan_answer_destroy(answer);
        plan_answer_destroy(again);
    }
    print_message("recomputed: all %u, some %u, nothing %u\n", whole, partly, none);
    assert_true(partly > 3 && none > 0);
    workload_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_what_is_missing_a_pipeline_fits_and_with_less_it_does_not),
        cmocka_unit_test(a_model_of_ten_times_the_memory_lacks_nine_tenths),
        cmocka_unit_test(what_shards_lack_is_what_makes_them_fit),
        cmocka_unit_test(a_plan_that_just_fits_is_found),
        cmocka_unit_test(tensor_groups_are_cut_by_memory_where_time_asks_too_much),
        cmocka_unit_test(memory_in_between_keeps_what_some_blocks_save),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
