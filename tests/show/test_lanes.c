/* Tests that lanes show what was simulated to the nanosecond, align clocks, lose no event, and stay small. */
#include "planner/plan_fixture.h"

#include "program/align.h"
#include "program/graph.h"
#include "show/lanes.h"

enum { RANKS_MAX = 8 };

struct world {
    struct model_config config;
    struct workload workload;
    struct cluster *cluster;
    struct plan_answer *answer;
    struct trace timeline;
};

static void world_init(struct world *w, int place)
{
    struct err err = {0};
    double step_s;
    w->config = fixture_config(10);
    w->workload = fixture_workload(&w->config, 64, 16);
    w->workload.place = place;
    w->workload.micro_batch_rows = 1;
    w->cluster = cluster_create(&err);
    for (uint32_t n = 0; n < 3; n++) {
        char node[64], device[64];
        snprintf(node, sizeof(node), "n%u", n);
        snprintf(device, sizeof(device), "n%u/cpu0", n);
        fixture_device(w->cluster, device, node, (uint64_t)1 << 30, 1 + n);
    }
    const struct plan_options options = {.programs = true, .evaluations = 200};
    if (plan_search(&w->workload, w->cluster, &options, &w->answer, &err) < 0)
        fail_msg("%s", err.text);
    assert_non_null(w->answer->plan);
    assert_true(w->answer->plan->rank_count > 1);
    trace_init(&w->timeline, 0);
    if (plan_simulate(w->answer->plan, &w->workload, w->cluster, &w->timeline, &step_s, &err) < 0)
        fail_msg("%s", err.text);
}

static void world_fini(struct world *w)
{
    plan_answer_destroy(w->answer);
    workload_fini(&w->workload);
    cluster_destroy(w->cluster);
    trace_fini(&w->timeline);
}

/* Adds the simulated step to a trace as step `step`, recorded by ranks with these clocks and `slow` times as
 * long. */
static void record(const struct world *w, uint32_t step, const int64_t *clocks, int64_t slow,
                   struct trace *out)
{
    for (uint32_t i = 0; i < w->timeline.count; i++) {
        struct trace_event event = w->timeline.events[i];
        const int64_t clock = INT64_C(1700000000000000000) + clocks[event.rank];
        event.step = step;
        event.begin_ns = event.begin_ns * slow + clock;
        event.end_ns = event.end_ns * slow + clock;
        event.ready_ns = event.ready_ns * slow + clock;
        trace_add(out, &event);
    }
}

static json_t *lanes_of(const struct lanes_input *input)
{
    struct err err = {0};
    json_t *lanes = lanes_to_json(input, &err);
    if (!lanes)
        fail_msg("%s", err.text);
    return lanes;
}

static int64_t number(const json_t *object, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(object, key));
}

static int64_t cell(const json_t *box, size_t column)
{
    return (int64_t)json_integer_value(json_array_get(box, column));
}

static void a_timeline_comes_back_as_it_was_stored(void **state)
{
    (void)state;
    struct world w;
    struct err err = {0};
    world_init(&w, PLACE_PIPELINE);
    char *text = trace_pack(&w.timeline, &err);
    struct trace back;
    trace_init(&back, 0);
    assert_non_null(text);
    assert_true(strlen(text) < (size_t)w.timeline.count * 40);
    assert_int_equal(trace_unpack(text, &back, &err), 0);
    assert_int_equal(back.count, w.timeline.count);
    for (uint32_t i = 0; i < back.count; i++) {
        const struct trace_event *a = &back.events[i], *b = &w.timeline.events[i];
        assert_true(a->rank == b->rank && a->instr == b->instr && a->begin_ns == b->begin_ns &&
                    a->end_ns == b->end_ns && a->ready_ns == b->ready_ns && a->program == b->program);
    }
    trace_fini(&back);
    for (size_t cut = 1; cut < 12; cut += 2) { /* each cut leaves half a byte */
        char *bad = strdup(text);
        bad[cut] = '\0';
        trace_init(&back, 0);
        assert_int_equal(trace_unpack(bad, &back, &err), -1);
        assert_int_equal(err.code, ERR_CORRUPT);
        trace_fini(&back);
        free(bad);
    }
    free(text);
    world_fini(&w);
}

static void predicted_lanes_are_the_simulation_to_the_nanosecond(void **state)
{
    (void)state;
    struct world w;
    world_init(&w, PLACE_PIPELINE);
    const struct lanes_input input = {
        .plan = w.answer->plan, .predicted = &w.timeline, .step = -1, .to_ns = 100000, .px = 100000};
    json_t *lanes = lanes_of(&input), *rank, *box;
    size_t r, b;
    int64_t last = 0;
    for (uint32_t i = 0; i < w.timeline.count; i++)
        last = w.timeline.events[i].end_ns > last ? w.timeline.events[i].end_ns : last;
    assert_int_equal(number(lanes, "predicted_ns"), last);
    assert_true(json_is_null(json_object_get(lanes, "measured_ns")));
    assert_true(json_is_null(json_object_get(lanes, "step")));
    json_decref(lanes);
    const struct lanes_input fine = {.plan = w.answer->plan,
                                     .predicted = &w.timeline,
                                     .step = -1,
                                     .to_ns = last + 1,
                                     .px = UINT32_MAX}; /* every nanosecond has a pixel */
    uint32_t found = 0;
    lanes = lanes_of(&fine);
    json_array_foreach (json_object_get(lanes, "ranks"), r, rank)
        json_array_foreach (json_object_get(rank, "predicted"), b, box)
            for (uint32_t i = 0; i < w.timeline.count; i++) {
                const struct trace_event *e = &w.timeline.events[i];
                if (e->rank == r && e->instr == cell(box, 2) && cell(box, 8) == 1) {
                    assert_int_equal(cell(box, 5), e->begin_ns);
                    assert_int_equal(cell(box, 6), e->end_ns);
                    assert_int_equal(cell(box, 7), e->ready_ns);
                    found++;
                }
            }
    assert_true(found > w.timeline.count / 2);
    json_decref(lanes);
    world_fini(&w);
}

/* Checks, on boxes of single events, that in aligned time no receive ends before its send begins. */
static void check_order(const struct world *w, const struct trace *measured, const json_t *lanes,
                        uint32_t step)
{
    struct plan_graph graph;
    struct err err = {0};
    assert_int_equal(plan_graph_init(&graph, w->answer->plan, PROGRAM_TRAIN, &err), 0);
    int64_t *begin = calloc(graph.total, sizeof(*begin)), *end = calloc(graph.total, sizeof(*end));
    for (uint32_t i = 0; i < measured->count; i++) {
        const struct trace_event *e = &measured->events[i];
        const int64_t offset = number(json_array_get(json_object_get(lanes, "ranks"), e->rank), "offset_ns");
        if (e->step == step) {
            begin[graph.base[e->rank] + e->instr] = e->begin_ns + offset;
            end[graph.base[e->rank] + e->instr] = e->end_ns + offset;
        }
    }
    for (uint32_t m = 0; m < graph.meeting_count; m++)
        for (uint32_t i = graph.member_first[m]; i < graph.member_first[m + 1]; i++)
            for (uint32_t k = graph.member_first[m]; k < graph.member_first[m + 1]; k++) {
                const uint32_t a = graph.members[i], b = graph.members[k];
                if (!instr_receives(graph_instr(&graph, a)))
                    assert_true(end[b] >= begin[a]);
            }
    free(begin);
    free(end);
    plan_graph_fini(&graph);
}

static void clocks_are_aligned_by_messages(void **state)
{
    (void)state;
    static const int places[] = {PLACE_PIPELINE, PLACE_DATA};
    static const int64_t clocks[][RANKS_MAX] = {
        {0}, {0, 5000000000, -7000000000}, {0, -3600000000000, 250000}, {0, 40, -20}};
    for (size_t p = 0; p < 2; p++)
        for (size_t c = 0; c < 4; c++) {
            struct world w;
            struct trace measured;
            world_init(&w, places[p]);
            trace_init(&measured, 0);
            record(&w, 4, clocks[1], 1, &measured);
            record(&w, 9, clocks[c], 2, &measured);
            const struct lanes_input input = {.plan = w.answer->plan,
                                              .predicted = &w.timeline,
                                              .measured = &measured,
                                              .step = -1,
                                              .px = 1000};
            json_t *lanes = lanes_of(&input), *rank;
            size_t r;
            assert_int_equal(number(lanes, "step"), 9);
            assert_int_equal(number(lanes, "unmatched"), 0);
            assert_int_equal(number(lanes, "slack_ns"), 0);
            assert_int_equal(json_array_size(json_object_get(lanes, "steps")), 2);
            const int64_t residual = number(lanes, "residual_ns");
            assert_true(json_is_integer(json_object_get(lanes, "residual_ns")));
            json_array_foreach (json_object_get(lanes, "ranks"), r, rank) {
                const int64_t wrong = number(rank, "offset_ns") + clocks[c][r];
                assert_true(number(rank, "residual_ns") <= residual);
                assert_true(wrong <= number(rank, "residual_ns") && -wrong <= number(rank, "residual_ns"));
                if (c == 0) /* clocks that agree stay as they are */
                    assert_int_equal(number(rank, "offset_ns"), 0);
                const int64_t more =
                    number(rank, "compute_measured_ns") - 2 * number(rank, "compute_predicted_ns");
                assert_int_equal(more, 0);
            }
            check_order(&w, &measured, lanes, 9);
            json_decref(lanes);
            trace_fini(&measured);
            world_fini(&w);
        }
}

static void a_picture_is_bounded_by_its_pixels_and_loses_no_event(void **state)
{
    (void)state;
    static const int64_t clocks[RANKS_MAX] = {0};
    struct world w;
    struct trace measured;
    world_init(&w, PLACE_PIPELINE);
    trace_init(&measured, 0);
    record(&w, 3, clocks, 1, &measured);
    for (uint32_t px = 1; px <= 1000; px *= 10) {
        const struct lanes_input input = {
            .plan = w.answer->plan, .predicted = &w.timeline, .measured = &measured, .step = 3, .px = px};
        json_t *lanes = lanes_of(&input), *rank, *box;
        size_t r, b;
        int64_t count = 0;
        json_array_foreach (json_object_get(lanes, "ranks"), r, rank) {
            assert_true(json_equal(json_object_get(rank, "predicted"), json_object_get(rank, "measured")));
            assert_true(json_array_size(json_object_get(rank, "predicted")) <=
                        (size_t)QUEUE_KINDS * 2 * (px + 1));
            json_array_foreach (json_object_get(rank, "predicted"), b, box)
                count += cell(box, 8);
        }
        assert_int_equal(count, w.timeline.count);
        json_decref(lanes);
    }
    trace_fini(&measured);
    world_fini(&w);
}

static void boxes_come_of_the_wanted_ranks_alone(void **state)
{
    (void)state;
    struct world w;
    world_init(&w, PLACE_PIPELINE);
    struct lanes_input input = {.plan = w.answer->plan, .predicted = &w.timeline, .step = -1, .px = 100};
    json_t *all = lanes_of(&input), *some, *rank;
    const size_t count = json_array_size(json_object_get(all, "ranks"));
    size_t r;
    for (input.first_rank = 0; input.first_rank <= count; input.first_rank++)
        for (input.ranks = 0; input.ranks <= 2; input.ranks++) {
            some = lanes_of(&input);
            assert_int_equal(json_array_size(json_object_get(some, "ranks")), count);
            json_array_foreach (json_object_get(some, "ranks"), r, rank) {
                json_t *whole = json_array_get(json_object_get(all, "ranks"), r);
                const bool wanted =
                    r >= input.first_rank && (!input.ranks || r < input.first_rank + input.ranks);
                if (wanted)
                    assert_true(json_equal(rank, whole));
                else
                    assert_int_equal(json_array_size(json_object_get(rank, "predicted")), 0);
                assert_true(json_equal(json_object_get(rank, "compute_predicted_ns"),
                                       json_object_get(whole, "compute_predicted_ns")));
            }
            json_decref(some);
        }
    json_decref(all);
    world_fini(&w);
}

static void what_took_longer_than_predicted_comes_first(void **state)
{
    (void)state;
    static const int64_t clocks[RANKS_MAX] = {0};
    struct world w;
    struct err err = {0};
    struct trace measured;
    world_init(&w, PLACE_PIPELINE);
    trace_init(&measured, 0);
    record(&w, 3, clocks, 1, &measured);
    struct trace_event *slow = &measured.events[measured.count / 2];
    slow->end_ns += 5000000000;
    struct trace_event strange = *slow;
    strange.instr = 1u << 30;
    trace_add(&measured, &strange);
    struct lanes_input input = {
        .plan = w.answer->plan, .predicted = &w.timeline, .measured = &measured, .step = 3, .px = 100};
    json_t *lanes = lanes_of(&input);
    const json_t *first = json_array_get(json_object_get(lanes, "differences"), 0);
    assert_int_equal(number(first, "rank"), slow->rank);
    assert_int_equal(number(first, "instr"), slow->instr);
    assert_int_equal(number(first, "measured_ns") - number(first, "predicted_ns"), 5000000000);
    assert_int_equal(number(json_array_get(json_object_get(lanes, "differences"), 1), "measured_ns"),
                     number(json_array_get(json_object_get(lanes, "differences"), 1), "predicted_ns"));
    assert_int_equal(number(lanes, "unmatched"), 1);
    json_decref(lanes);
    input.step = 8;
    assert_null(lanes_to_json(&input, &err));
    assert_int_equal(err.code, ERR_NOT_FOUND);
    trace_fini(&measured);
    world_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_timeline_comes_back_as_it_was_stored),
        cmocka_unit_test(predicted_lanes_are_the_simulation_to_the_nanosecond),
        cmocka_unit_test(clocks_are_aligned_by_messages),
        cmocka_unit_test(a_picture_is_bounded_by_its_pixels_and_loses_no_event),
        cmocka_unit_test(boxes_come_of_the_wanted_ranks_alone),
        cmocka_unit_test(what_took_longer_than_predicted_comes_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
