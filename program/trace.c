/* Makes traces: a bounded list of events, its compact document, and Chrome's format. */
#include "program/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void trace_init(struct trace *trace, uint32_t limit)
{
    *trace = (struct trace){.limit = limit && limit < TRACE_EVENTS_MAX ? limit : TRACE_EVENTS_MAX};
}

void trace_fini(struct trace *trace)
{
    free(trace->events);
    *trace = (struct trace){.limit = trace->limit};
}

void trace_add(struct trace *trace, const struct trace_event *event)
{
    if (trace->count == trace->capacity && trace->count < trace->limit) {
        uint32_t capacity = trace->capacity ? trace->capacity * 2 : 256;
        struct trace_event *grown = realloc(trace->events, (size_t)capacity * sizeof(*grown));
        if (grown) {
            trace->events = grown;
            trace->capacity = capacity;
        }
    }
    if (trace->count >= trace->limit || trace->count == trace->capacity) {
        trace->dropped++;
        return;
    }
    trace->events[trace->count++] = *event;
}

json_t *trace_to_json(const struct trace *trace, struct err *err)
{
    json_t *events = json_array();
    int bad = !events;
    for (uint32_t i = 0; !bad && i < trace->count; i++) {
        const struct trace_event *e = &trace->events[i];
        bad = json_array_append_new(events, json_pack("[I,I,I,I,I,I,I]", (json_int_t)e->rank,
                                                      (json_int_t)e->step, (json_int_t)e->program,
                                                      (json_int_t)e->instr, (json_int_t)e->begin_ns,
                                                      (json_int_t)e->end_ns, (json_int_t)e->ready_ns));
    }
    if (bad) {
        json_decref(events);
        err_set(err, ERR_NOMEM, "trace: out of memory at %u events", trace->count);
        return NULL;
    }
    return json_pack("{s:i,s:I,s:o}", "v", 1, "dropped", (json_int_t)trace->dropped, "events", events);
}

static int event_read(const json_t *item, size_t number, struct trace_event *event, struct err *err)
{
    json_int_t v[7] = {0};
    for (size_t k = 0; k < 7; k++) {
        const json_t *value = json_array_get(item, k);
        if (json_array_size(item) != 7 || !json_is_integer(value))
            return err_set(err, ERR_INVALID,
                           "trace.events[%zu]: not [rank, step, program, instruction, begin, end, ready]",
                           number);
        v[k] = json_integer_value(value);
    }
    if (v[0] < 0 || v[0] >= PLAN_RANKS_MAX || v[1] < 0 || v[1] > UINT32_MAX || v[2] < 0 ||
        v[2] >= PROGRAM_KINDS || v[3] < 0 || v[3] >= PROGRAM_INSTRS_MAX || v[5] < v[4])
        return err_set(err, ERR_INVALID, "trace.events[%zu]: a number is out of range", number);
    *event = (struct trace_event){.rank = (uint32_t)v[0],
                                  .step = (uint32_t)v[1],
                                  .program = (uint8_t)v[2],
                                  .instr = (uint32_t)v[3],
                                  .begin_ns = v[4],
                                  .end_ns = v[5],
                                  .ready_ns = v[6]};
    return 0;
}

int trace_from_json(const json_t *json, struct trace *trace, struct err *err)
{
    const json_t *events = json_object_get(json, "events"), *version = json_object_get(json, "v");
    if (!json_is_array(events) || json_integer_value(version) != 1)
        return err_set(err, ERR_INVALID, "trace: not a version 1 trace with events");
    size_t count = json_array_size(events);
    if (count > TRACE_EVENTS_MAX)
        return err_set(err, ERR_TOO_BIG, "trace.events: %zu; at most %u", count, TRACE_EVENTS_MAX);
    for (size_t i = 0; i < count; i++) {
        struct trace_event event;
        if (event_read(json_array_get(events, i), i, &event, err) < 0)
            return -1;
        trace_add(trace, &event);
    }
    return 0;
}

static const char *event_colour(const struct instr *instr)
{
    switch (instr->op) {
    case INSTR_FORWARD:
        return "thread_state_running";
    case INSTR_BACKWARD:
    case INSTR_BACKWARD_INPUT:
    case INSTR_BACKWARD_WEIGHT:
        return "thread_state_runnable";
    case INSTR_STEP:
        return "cq_build_passed";
    default:
        return instr->queue == QUEUE_COMPUTE ? "generic_work" : "thread_state_iowait";
    }
}

static json_t *trace_named(const char *what, uint32_t pid, int64_t tid, const char *name)
{
    return json_pack("{s:s,s:s,s:I,s:I,s:{s:s}}", "name", what, "ph", "M", "pid", (json_int_t)pid, "tid",
                     (json_int_t)tid, "args", "name", name);
}

static void queue_label(const struct plan *plan, uint32_t queue, char *text, size_t size)
{
    if (queue < 2)
        snprintf(text, size, "compute");
    else if (queue < 2 + 2 * plan->rank_count)
        snprintf(text, size, "%s %u", queue % 2 == 0 ? "send to" : "recv from", (queue - 2) / 2);
    else
        snprintf(text, size, "group %u", queue - 2 - 2 * plan->rank_count);
}

static int chrome_names(json_t *out, const struct trace *trace, const struct plan *plan, const char *label,
                        uint32_t pid_base)
{
    uint32_t queues = plan_queue_count(plan);
    uint8_t *seen = calloc((size_t)queues * plan->rank_count, 1);
    int bad = !seen;
    for (uint32_t r = 0; !bad && r < plan->rank_count; r++) {
        char text[400];
        snprintf(text, sizeof(text), "%s%srank %u %s", label ? label : "", label ? " " : "", r,
                 plan->ranks[r].device ? plan->ranks[r].device : "");
        bad |= json_array_append_new(out, trace_named("process_name", pid_base + r, 0, text));
    }
    for (uint32_t i = 0; !bad && i < trace->count; i++) {
        const struct trace_event *e = &trace->events[i];
        if (e->rank >= plan->rank_count || e->instr >= plan->ranks[e->rank].programs[e->program].instr_count)
            continue;
        uint32_t queue = instr_queue_index(plan, &plan->ranks[e->rank].programs[e->program].instrs[e->instr]);
        if (seen[(size_t)e->rank * queues + queue])
            continue;
        seen[(size_t)e->rank * queues + queue] = 1;
        char text[48];
        queue_label(plan, queue, text, sizeof(text));
        bad |= json_array_append_new(out, trace_named("thread_name", pid_base + e->rank, queue, text));
    }
    free(seen);
    return bad;
}

json_t *trace_to_chrome(const struct trace *trace, const struct plan *plan, const char *label,
                        uint32_t pid_base, struct err *err)
{
    json_t *out = json_array();
    int bad = !out || chrome_names(out, trace, plan, label, pid_base);
    for (uint32_t i = 0; !bad && i < trace->count; i++) {
        const struct trace_event *e = &trace->events[i];
        if (e->rank >= plan->rank_count || e->instr >= plan->ranks[e->rank].programs[e->program].instr_count)
            continue;
        const struct instr *instr = &plan->ranks[e->rank].programs[e->program].instrs[e->instr];
        char text[160];
        instr_describe(instr, text, sizeof(text));
        double wait_us = e->ready_ns < e->begin_ns ? (double)(e->begin_ns - e->ready_ns) / 1e3 : 0;
        bad |= json_array_append_new(
            out,
            json_pack("{s:s,s:s,s:s,s:I,s:I,s:f,s:f,s:s,s:{s:I,s:I,s:f}}", "name", text, "cat",
                      program_kind_name(e->program), "ph", "X", "pid", (json_int_t)(pid_base + e->rank),
                      "tid", (json_int_t)instr_queue_index(plan, instr), "ts", (double)e->begin_ns / 1e3,
                      "dur", (double)(e->end_ns - e->begin_ns) / 1e3, "cname", event_colour(instr), "args",
                      "step", (json_int_t)e->step, "instr", (json_int_t)e->instr, "waited_us", wait_us));
    }
    if (bad) {
        json_decref(out);
        err_set(err, ERR_NOMEM, "trace: out of memory at %u events", trace->count);
        return NULL;
    }
    return json_pack("{s:o,s:s}", "traceEvents", out, "displayTimeUnit", "ms");
}

int trace_from_chrome(const json_t *chrome, struct trace *trace, struct err *err)
{
    const json_t *events = json_object_get(chrome, "traceEvents");
    if (!json_is_array(events) || json_array_size(events) > 2 * (size_t)TRACE_EVENTS_MAX)
        return err_set(err, ERR_INVALID, "trace: no traceEvents, or more than %u", 2 * TRACE_EVENTS_MAX);
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *item = json_array_get(events, i), *args = json_object_get(item, "args");
        const char *phase = json_string_value(json_object_get(item, "ph"));
        const char *cat = json_string_value(json_object_get(item, "cat"));
        int kind = cat ? program_kind_from_name(cat) : -1;
        json_int_t rank = json_integer_value(json_object_get(item, "pid"));
        json_int_t step = json_integer_value(json_object_get(args, "step"));
        json_int_t instr = json_integer_value(json_object_get(args, "instr"));
        double begin_us = json_number_value(json_object_get(item, "ts"));
        double length_us = json_number_value(json_object_get(item, "dur"));
        if (!phase || strcmp(phase, "X") != 0 || kind < 0)
            continue;
        if (rank < 0 || rank >= PLAN_RANKS_MAX || step < 0 || step > UINT32_MAX || instr < 0 ||
            instr >= PROGRAM_INSTRS_MAX || !(length_us >= 0) || length_us > 1e12 ||
            !(begin_us > -9e15 && begin_us < 9e15))
            return err_set(err, ERR_INVALID, "trace.traceEvents[%zu]: a number is out of range", i);
        int64_t begin_ns = (int64_t)(begin_us * 1e3);
        trace_add(trace, &(struct trace_event){.rank = (uint32_t)rank,
                                               .step = (uint32_t)step,
                                               .instr = (uint32_t)instr,
                                               .program = (uint8_t)kind,
                                               .begin_ns = begin_ns,
                                               .end_ns = begin_ns + (int64_t)(length_us * 1e3),
                                               .ready_ns = begin_ns});
    }
    return 0;
}
