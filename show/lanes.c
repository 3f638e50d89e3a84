/* Makes the lanes of a step (lanes.h). */
#include "show/lanes.h"

#include <stdlib.h>
#include <string.h>

#include "program/align.h"
#include "program/graph.h"

enum { DIFFERENCES_MAX = 40, STEPS_MAX = 10000, UNKNOWN = -1 };

/* The times of all instructions in one step, in nanoseconds; end below begin: unknown. */
struct lane_times {
    int64_t *begin, *end, *ready; /* [graph.total], one for each instruction */
    bool any;
};

struct lanes {
    const struct lanes_input *input;
    struct plan_graph graph;
    struct lane_times predicted, measured;
    struct trace_clock *clocks; /* [ranks] */
    int64_t slack_ns;
    int64_t step; /* number of the step that is shown; UNKNOWN: no step is recorded */
    uint32_t unmatched;
    json_t *steps;
};

static int times_init(struct lane_times *times, uint32_t total, struct err *err)
{
    times->begin = calloc((size_t)total + 1, sizeof(int64_t));
    times->end = malloc(((size_t)total + 1) * sizeof(int64_t));
    times->ready = calloc((size_t)total + 1, sizeof(int64_t));
    if (!times->begin || !times->end || !times->ready)
        return err_set(err, ERR_NOMEM, "out of memory for %u instructions", total);
    for (uint32_t n = 0; n < total; n++)
        times->end[n] = INT64_MIN;
    return 0;
}

static void times_fini(struct lane_times *times)
{
    free(times->begin);
    free(times->end);
    free(times->ready);
}

static bool lanes_is_known(const struct lane_times *times, uint32_t n)
{
    return times->end[n] >= times->begin[n];
}

/* Returns the number of an event's instruction, or UINT32_MAX when the plan has no such instruction. */
static uint32_t lanes_number_of(const struct plan_graph *graph, const struct trace_event *event)
{
    if (event->program != PROGRAM_TRAIN || event->rank >= graph->plan->rank_count ||
        event->instr >= graph->base[event->rank + 1] - graph->base[event->rank])
        return UINT32_MAX;
    return graph->base[event->rank] + event->instr;
}

/* Takes the events of a step. Returns how many belong to no instruction. */
static uint32_t times_read(const struct plan_graph *graph, const struct trace *trace, int64_t step,
                           struct lane_times *times)
{
    uint32_t unmatched = 0;
    for (uint32_t i = 0; trace && i < trace->count; i++) {
        const struct trace_event *event = &trace->events[i];
        if (step != UNKNOWN && event->step != step)
            continue;
        uint32_t n = lanes_number_of(graph, event);
        if (n == UINT32_MAX) {
            unmatched++;
            continue;
        }
        times->begin[n] = event->begin_ns;
        times->end[n] = event->end_ns;
        times->ready[n] = event->ready_ns;
        times->any = true;
    }
    return unmatched;
}

/* ---- which step ---- */

static int by_step(const void *a, const void *b)
{
    const uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

/* Lists the recorded steps and chooses the requested step, else the last complete one, else the last. */
static int choose_step(struct lanes *lanes, struct err *err)
{
    const struct trace *trace = lanes->input->measured;
    const uint32_t count = trace ? trace->count : 0;
    uint64_t *steps = malloc(((size_t)count + 1) * sizeof(*steps));
    int64_t whole = UNKNOWN, last = UNKNOWN;
    bool found = lanes->input->step < 0;
    lanes->steps = json_array();
    if (!steps || !lanes->steps) {
        free(steps);
        return err_set(err, ERR_NOMEM, "out of memory for %u events", count);
    }
    for (uint32_t i = 0; i < count; i++)
        steps[i] = trace->events[i].step;
    qsort(steps, count, sizeof(*steps), by_step);
    for (uint32_t i = 0, end; i < count; i = end) {
        for (end = i; end < count && steps[end] == steps[i]; end++)
            ;
        last = (int64_t)steps[i];
        if (end - i >= lanes->graph.total)
            whole = last;
        found |= last == lanes->input->step;
        if (json_array_size(lanes->steps) < STEPS_MAX)
            json_array_append_new(lanes->steps, json_integer(last));
    }
    free(steps);
    if (!found)
        return err_set(err, ERR_NOT_FOUND, "step: %lld was not recorded", (long long)lanes->input->step);
    lanes->step = lanes->input->step >= 0 ? lanes->input->step : whole != UNKNOWN ? whole : last;
    return 0;
}

/* ---- clocks ---- */

/* Aligns the ranks' clocks in the measured times, and makes predicted and measured times relative to the
 * beginning of the step. */
static int align(struct lanes *lanes, struct err *err)
{
    const struct plan_graph *graph = &lanes->graph;
    struct lane_times *both[] = {&lanes->predicted, &lanes->measured};
    if (lanes->measured.any && trace_align(graph, lanes->measured.begin, lanes->measured.end, lanes->clocks,
                                           &lanes->slack_ns, err) < 0)
        return -1;
    for (size_t k = 0; k < 2; k++) {
        struct lane_times *times = both[k];
        int64_t first = INT64_MAX;
        for (uint32_t n = 0; n < graph->total; n++)
            if (lanes_is_known(times, n)) {
                const int64_t offset = k ? lanes->clocks[graph->rank_of[n]].offset_ns : 0;
                times->begin[n] += offset;
                times->end[n] += offset;
                times->ready[n] += offset;
                first = times->begin[n] < first ? times->begin[n] : first;
            }
        for (uint32_t n = 0; n < graph->total; n++)
            if (lanes_is_known(times, n)) {
                times->begin[n] -= first;
                times->end[n] -= first;
                times->ready[n] -= first;
            }
    }
    return 0;
}

static int64_t lanes_length_of(const struct lanes *lanes, const struct lane_times *times)
{
    int64_t last = 0;
    for (uint32_t n = 0; n < lanes->graph.total; n++)
        if (lanes_is_known(times, n) && times->end[n] > last)
            last = times->end[n];
    return last;
}

/* ---- boxes ---- */

struct lane_box {
    uint32_t instr; /* number, within the rank, of the box's longest instruction */
    int64_t begin, end, ready, longest;
    uint32_t count;
};

static void box_add(const struct lanes *lanes, uint32_t rank, const struct lane_box *box, json_t *boxes)
{
    const struct instr *x = graph_instr_of(&lanes->graph, rank, lanes->graph.base[rank] + box->instr);
    json_array_append_new(boxes,
                          json_pack("[i,i,I,i,i,I,I,I,I]", x->queue, x->op, (json_int_t)box->instr,
                                    x->micro_batch, x->peer, (json_int_t)box->begin, (json_int_t)box->end,
                                    (json_int_t)box->ready, (json_int_t)box->count));
}

/* Adds the boxes of one queue: events that end within a pixel of the box's beginning join it. */
static void queue_boxes(const struct lanes *lanes, const struct lane_times *times, uint32_t rank,
                        uint32_t queue, int64_t pixel_ns, json_t *boxes)
{
    const struct plan_graph *graph = &lanes->graph;
    struct lane_box box = {0};
    for (uint32_t n = graph->base[rank]; n < graph->base[rank + 1]; n++) {
        const int64_t begin = times->begin[n], end = times->end[n];
        if (graph_instr_of(graph, rank, n)->queue != queue || end < begin || end < lanes->input->from_ns ||
            begin > lanes->input->to_ns)
            continue;
        if (box.count && begin >= box.begin && end - box.begin <= pixel_ns) {
            if (end - begin > box.longest) {
                box.longest = end - begin;
                box.instr = n - graph->base[rank];
            }
            box.end = end > box.end ? end : box.end;
            box.count++;
            continue;
        }
        if (box.count)
            box_add(lanes, rank, &box, boxes);
        box = (struct lane_box){n - graph->base[rank], begin, end, times->ready[n], end - begin, 1};
    }
    if (box.count)
        box_add(lanes, rank, &box, boxes);
}

static json_t *rank_boxes(const struct lanes *lanes, const struct lane_times *times, uint32_t rank)
{
    json_t *boxes = json_array();
    const struct lanes_input *input = lanes->input;
    const int64_t span = input->to_ns - input->from_ns;
    const bool wanted =
        rank >= input->first_rank && (!input->ranks || rank - input->first_rank < input->ranks);
    for (uint32_t queue = 0; boxes && wanted && times->any && queue < QUEUE_KINDS; queue++)
        queue_boxes(lanes, times, rank, queue, span / input->px, boxes);
    return boxes;
}

/* Returns the nanoseconds that the rank computes; null when no times are known. */
static json_t *lanes_compute_of(const struct lanes *lanes, const struct lane_times *times, uint32_t rank)
{
    int64_t sum = 0;
    for (uint32_t n = lanes->graph.base[rank]; n < lanes->graph.base[rank + 1]; n++)
        if (graph_instr_of(&lanes->graph, rank, n)->queue == QUEUE_COMPUTE && lanes_is_known(times, n))
            sum += times->end[n] - times->begin[n];
    return times->any ? json_integer(sum) : json_null();
}

static json_t *lanes_rank_json(const struct lanes *lanes, uint32_t rank)
{
    const struct plan_rank *of = &lanes->graph.plan->ranks[rank];
    const struct trace_clock *clock = &lanes->clocks[rank];
    return json_pack("{s:I, s:s, s:s, s:I, s:o, s:o, s:o, s:o, s:o}", "rank", (json_int_t)rank, "device",
                     of->device, "node", of->node, "offset_ns", (json_int_t)clock->offset_ns, "residual_ns",
                     clock->residual_ns < 0 ? json_null() : json_integer(clock->residual_ns),
                     "compute_predicted_ns", lanes_compute_of(lanes, &lanes->predicted, rank),
                     "compute_measured_ns", lanes_compute_of(lanes, &lanes->measured, rank), "predicted",
                     rank_boxes(lanes, &lanes->predicted, rank), "measured",
                     rank_boxes(lanes, &lanes->measured, rank));
}

/* ---- the largest differences ---- */

static int64_t difference_of(const struct lanes *lanes, uint32_t n)
{
    const int64_t more = (lanes->measured.end[n] - lanes->measured.begin[n]) -
                         (lanes->predicted.end[n] - lanes->predicted.begin[n]);
    return more < 0 ? -more : more;
}

static json_t *differences_json(const struct lanes *lanes)
{
    const struct plan_graph *graph = &lanes->graph;
    uint32_t top[DIFFERENCES_MAX], count = 0;
    json_t *list = json_array();
    for (uint32_t n = 0; n < graph->total; n++) {
        if (!lanes_is_known(&lanes->predicted, n) || !lanes_is_known(&lanes->measured, n))
            continue;
        const int64_t difference = difference_of(lanes, n);
        uint32_t at = count < DIFFERENCES_MAX ? count++ : DIFFERENCES_MAX;
        for (; at > 0 && difference_of(lanes, top[at - 1]) < difference; at--)
            if (at < DIFFERENCES_MAX)
                top[at] = top[at - 1];
        if (at < DIFFERENCES_MAX)
            top[at] = n;
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t n = top[i], rank = graph->rank_of[n];
        const struct instr *x = graph_instr_of(graph, rank, n);
        json_array_append_new(
            list, json_pack("{s:I, s:I, s:s, s:i, s:i, s:i, s:I, s:I}", "rank", (json_int_t)rank, "instr",
                            (json_int_t)(n - graph->base[rank]), "op", instr_op_name(x->op), "queue",
                            x->queue, "micro_batch", x->micro_batch, "peer", x->peer, "predicted_ns",
                            (json_int_t)(lanes->predicted.end[n] - lanes->predicted.begin[n]), "measured_ns",
                            (json_int_t)(lanes->measured.end[n] - lanes->measured.begin[n])));
    }
    return list;
}

/* ---- the document ---- */

static json_t *lanes_names_of(const char *(*name)(int number), int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(list, json_string(name(i)));
    return list;
}

static const char *queue_name(int queue)
{
    static const char *const names[QUEUE_KINDS] = {"compute", "send", "receive", "group"};
    return names[queue];
}

/* Returns the largest clock residual of all ranks; null when some rank's clock is bounded on one side only,
 * or nothing is measured. */
static json_t *residual_of(const struct lanes *lanes)
{
    int64_t worst = 0;
    for (uint32_t rank = 0; rank < lanes->graph.plan->rank_count; rank++) {
        if (lanes->clocks[rank].residual_ns < 0)
            return json_null();
        worst = lanes->clocks[rank].residual_ns > worst ? lanes->clocks[rank].residual_ns : worst;
    }
    return lanes->measured.any ? json_integer(worst) : json_null();
}

static json_t *lanes_document_of(struct lanes *lanes, const struct lanes_input *whole)
{
    const int64_t predicted = lanes_length_of(lanes, &lanes->predicted),
                  measured = lanes_length_of(lanes, &lanes->measured);
    const int64_t end = predicted > measured ? predicted : measured;
    struct lanes_input input = *whole;
    if (input.to_ns <= input.from_ns) {
        input.from_ns = 0;
        input.to_ns = end;
    }
    lanes->input = &input;
    json_t *ranks = json_array();
    for (uint32_t rank = 0; rank < lanes->graph.plan->rank_count; rank++)
        json_array_append_new(ranks, lanes_rank_json(lanes, rank));
    json_t *columns = json_pack("[s,s,s,s,s,s,s,s,s]", "queue", "op", "instr", "micro_batch", "peer",
                                "begin_ns", "end_ns", "ready_ns", "count");
    json_t *made = json_pack(
        "{s:o, s:O, s:I, s:I, s:I, s:o, s:o, s:o, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "step",
        lanes->step == UNKNOWN ? json_null() : json_integer(lanes->step), "steps", lanes->steps, "from_ns",
        (json_int_t)input.from_ns, "to_ns", (json_int_t)input.to_ns, "end_ns", (json_int_t)end,
        "predicted_ns", lanes->predicted.any ? json_integer(predicted) : json_null(), "measured_ns",
        lanes->measured.any ? json_integer(measured) : json_null(), "residual_ns", residual_of(lanes),
        "slack_ns", (json_int_t)lanes->slack_ns, "unmatched", (json_int_t)lanes->unmatched, "columns",
        columns, "queues", lanes_names_of(queue_name, QUEUE_KINDS), "ops",
        lanes_names_of(instr_op_name, INSTR_COUNT), "ranks", ranks, "differences", differences_json(lanes));
    lanes->input = whole;
    return made;
}

json_t *lanes_to_json(const struct lanes_input *input, struct err *err)
{
    struct lanes lanes = {.input = input, .step = UNKNOWN};
    json_t *made = NULL;
    if (plan_graph_init(&lanes.graph, input->plan, PROGRAM_TRAIN, err) < 0)
        return NULL;
    lanes.clocks = calloc((size_t)input->plan->rank_count + 1, sizeof(*lanes.clocks));
    if (!lanes.clocks)
        err_set(err, ERR_NOMEM, "out of memory for lanes");
    else if (times_init(&lanes.predicted, lanes.graph.total, err) == 0 &&
             times_init(&lanes.measured, lanes.graph.total, err) == 0 && choose_step(&lanes, err) == 0) {
        times_read(&lanes.graph, input->predicted, UNKNOWN, &lanes.predicted);
        if (lanes.step != UNKNOWN)
            lanes.unmatched = times_read(&lanes.graph, input->measured, lanes.step, &lanes.measured);
        if (align(&lanes, err) == 0 && !(made = lanes_document_of(&lanes, input)))
            err_set(err, ERR_NOMEM, "out of memory for lanes");
    }
    times_fini(&lanes.predicted);
    times_fini(&lanes.measured);
    json_decref(lanes.steps);
    free(lanes.clocks);
    plan_graph_fini(&lanes.graph);
    return made;
}
