/* The events of a run, one function each. docs/CONTRACTS.md defines their fields. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/units.h"
#include "model/text/tokenizer.h"
#include "program/host.h"
#include "worker/session/report.h"

enum { STATUS_BYTES_MAX = 1 << 16 };

static bool owns_head(const struct plan *plan, uint32_t rank)
{
    return plan->ranks[rank].block_end == plan->block_count;
}

bool session_reports(const struct session *session)
{
    const struct plan *plan = session->assignment->plan;
    for (uint32_t r = 0; r < session->assignment->rank; r++)
        if (owns_head(plan, r))
            return false;
    return owns_head(plan, session->assignment->rank);
}

static int emit(struct session *session, const char *type, json_t *event, struct err *err)
{
    return worker_link_emit(session->link, type, event, err);
}

/* JSON has no infinities and NaNs: they become null. */
static json_t *finite_json(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

int report_step(struct session *session, const struct ops_step *step, double scale, double seconds,
                struct err *err)
{
    double loss = step->sum.labelled ? step->sum.loss_sum / (double)step->sum.labelled : 0;
    bool skipped = step->sum.control & CONTROL_NOT_FINITE;
    json_t *event =
        json_pack("{s:I, s:o, s:o, s:f, s:I, s:I, s:I, s:f}", "step", (json_int_t)step->step, "loss",
                  finite_json(step->loss_lost ? NAN : loss), "grad_norm",
                  finite_json(skipped ? NAN : step->norm), "learning_rate", step->learning_rate, "rows",
                  (json_int_t)session->data.batch.rows, "tokens", (json_int_t)session->data.batch.tokens,
                  "labelled_tokens", (json_int_t)step->sum.labelled, "seconds", seconds);
    if (event && scale > 0)
        json_object_set_new(event, "loss_scale", json_integer((json_int_t)scale));
    if (event && skipped)
        json_object_set_new(event, "skipped", json_true());
    if (event && step->step < session->assignment->reported_steps)
        json_object_set_new(event, "again", json_true());
    return emit(session, "step", event, err);
}

int report_ranks(struct session *session, uint64_t step, const struct exec_totals *totals, struct err *err)
{
    return emit(session, "ranks",
                json_pack("{s:I, s:f, s:f, s:f, s:f}", "step", (json_int_t)step, "compute_s",
                          (double)totals->compute_ns * 1e-9, "wait_s", (double)totals->wait_ns * 1e-9,
                          "send_s", (double)totals->send_ns * 1e-9, "wall_s", (double)totals->wall_ns * 1e-9),
                err);
}

/* Emits the step's begin and end times, in nanoseconds of the wall clock. */
int report_trace(struct session *session, uint64_t step, struct err *err)
{
    const struct plan_rank *me = &session->assignment->plan->ranks[session->assignment->rank];
    const struct program *program = &me->programs[PROGRAM_TRAIN];
    const struct exec_time *times = ops_times(session->ops, PROGRAM_TRAIN);
    int64_t offset_ns = clock_wall_us() * 1000 - (int64_t)clock_mono_ns();
    session->trace.count = 0;
    for (uint32_t i = 0; i < program->instr_count; i++) {
        struct trace_event event = {.rank = session->assignment->rank,
                                    .step = (uint32_t)step,
                                    .instr = i,
                                    .program = PROGRAM_TRAIN,
                                    .begin_ns = (int64_t)times[i].begin_ns + offset_ns,
                                    .end_ns = (int64_t)times[i].end_ns + offset_ns,
                                    .ready_ns = (int64_t)times[i].ready_ns + offset_ns};
        trace_add(&session->trace, &event);
    }
    json_t *event = trace_to_json(&session->trace, err);
    if (!event)
        return -1;
    json_object_set_new(event, "step", json_integer((json_int_t)step));
    return emit(session, "trace", event, err);
}

int report_checkpoint(struct session *session, uint64_t step, json_t *blobs, bool best, double loss,
                      json_t *routing, struct err *err)
{
    json_t *event = json_pack("{s:I, s:O, s:b}", "step", (json_int_t)step, "blobs", blobs, "best", (int)best);
    if (event && isfinite(loss))
        json_object_set_new(event, "loss", json_real(loss));
    if (event && routing)
        json_object_set(event, "expert_share", routing);
    return emit(session, "checkpoint", event, err);
}

int report_eval(struct session *session, uint64_t step, double loss, uint64_t labelled, double seconds,
                struct err *err)
{
    json_t *event = json_pack("{s:s, s:I, s:f, s:I, s:f}", "eval", "held-out", "step", (json_int_t)step,
                              "loss", loss, "labelled_tokens", (json_int_t)labelled, "seconds", seconds);
    return emit(session, "eval", event, err);
}

/* Adds the text of the ids to the event if there is a tokenizer. */
static int add_text(const struct session *session, json_t *event, const char *key, const int32_t *ids,
                    uint32_t count, struct err *err)
{
    struct buf text;
    if (!session->sample.tokenizer)
        return 0;
    buf_init(&text, 1 << 20);
    int result = tokenizer_decode(session->sample.tokenizer, ids, count, true, &text, err);
    if (result == 0)
        json_object_set_new(event, key, json_stringn(buf_str(&text), text.size));
    buf_fini(&text);
    return result;
}

int report_sample(struct session *session, uint64_t step, const int32_t *ids, uint32_t count, struct err *err)
{
    const char *prompt = session->assignment->spec.sample.prompt;
    json_t *list = json_array();
    json_t *event =
        json_pack("{s:I, s:s, s:o}", "step", (json_int_t)step, "prompt", prompt ? prompt : "", "ids", list);
    if (!event)
        return err_set(err, ERR_NOMEM, "no memory for an event");
    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(list, json_integer(ids[i]));
    if (add_text(session, event, "text", ids, count, err) < 0 && /* the ids are the sample all the same */
        report_log(session->link, "warning", err->text, err) < 0) {
        json_decref(event);
        return -1;
    }
    return emit(session, "sample", event, err);
}

static uint64_t status_bytes(const char *field)
{
    struct buf text;
    struct err err;
    uint64_t kib = 0;
    buf_init(&text, STATUS_BYTES_MAX);
    if (file_read_all("/proc/self/status", STATUS_BYTES_MAX, &text, &err) == 0) {
        const char *line = strstr(buf_str(&text), field);
        if (line)
            kib = strtoull(line + strlen(field), NULL, 10);
    }
    buf_fini(&text);
    return kib * 1024;
}

uint64_t process_peak_bytes(void)
{
    return status_bytes("\nVmHWM:");
}

uint64_t process_resident_bytes(void)
{
    return status_bytes("\nVmRSS:");
}

static uint64_t rows_bytes(const struct rows *rows)
{
    uint64_t tokens = rows ? rows->offset[rows->count] : 0;
    return rows ? tokens * (sizeof(*rows->ids) + sizeof(*rows->labels)) +
                      ((uint64_t)rows->count + 1) * sizeof(*rows->offset)
                : 0;
}

/* Returns by how much the process's peak while it reads its rows exceeds what it holds later, `later` bytes.
 * A file of rows and the rows out of it are there at the same time; device and peers are not in use yet. */
static uint64_t reading_bytes(const struct session *session, uint64_t later)
{
    const uint64_t train = rows_bytes(session->data.train), eval = rows_bytes(session->data.eval);
    const uint64_t reading = train > 2 * eval ? 2 * train : train + 2 * eval;
    return reading > later ? reading - later : 0;
}

_Static_assert((int)HOST_WINDOW_BYTES == (int)MESH_WINDOW_BYTES &&
                   (int)HOST_MESSAGE_BYTES == (int)MESH_MESSAGE_COST,
               "plans count what the mesh holds");

int report_memory(struct session *session, struct err *err)
{
    struct mesh_stats mesh = {0};
    if (session->mesh && mesh_stats(session->mesh, MESH_RANK_NONE, &mesh, err) < 0)
        return -1;
    const struct plan_rank *me = &session->assignment->plan->ranks[session->assignment->rank];
    struct mem_account account;
    device_memory(session->device, &account);
    struct plan_host host = plan_host_bytes(session->assignment->plan, session->assignment->rank);
    uint64_t data = rows_bytes(session->data.train) + rows_bytes(session->data.eval);
    uint64_t base = me->process_base_bytes ? me->process_base_bytes : session->process_base_bytes;
    uint64_t held = plan_host_total(&host) + data;
    uint64_t reading = reading_bytes(session, held + me->memory_bytes);
    json_t *peak = json_object(), *predicted = json_object();
    json_t *event = json_pack(
        "{s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:{s:I, s:I, s:I, s:I, s:I, s:I}}", "peak", peak,
        "predicted", predicted, "peak_bytes", (json_int_t)account.peak_total, "limit_bytes",
        (json_int_t)account.limit, "predicted_bytes", (json_int_t)me->memory_bytes, "device_base_bytes",
        (json_int_t)device_base_bytes(session->device), "vm_hwm_bytes", (json_int_t)process_peak_bytes(),
        "process_base_bytes", (json_int_t)session->process_base_bytes, "predicted_base_bytes",
        (json_int_t)(base + held + reading), "early_bytes", (json_int_t)mesh.early_bytes_held_max, "host",
        "cells", (json_int_t)host.cells, "collectives", (json_int_t)host.collectives, "checkpoint",
        (json_int_t)host.checkpoint, "moments", (json_int_t)host.moments, "early", (json_int_t)host.early,
        "data", (json_int_t)data);
    if (!event)
        return err_set(err, ERR_NOMEM, "no memory for an event");
    for (int p = 0; p < MEM_PURPOSES; p++)
        json_object_set_new(peak, mem_purpose_name(p), json_integer((json_int_t)account.peak[p]));
    for (int p = 0; p < PURPOSE_COUNT; p++)
        json_object_set_new(predicted, plan_purpose_name(p), json_integer((json_int_t)me->memory_peak[p]));
    return emit(session, "memory", event, err);
}

int report_links(struct session *session, struct err *err)
{
    struct mesh_stats stats;
    char text[160], within[64] = "", bytes[32];
    if (!session->mesh)
        return 0;
    if (mesh_stats(session->mesh, MESH_RANK_NONE, &stats, err) < 0)
        return -1;
    if (ops_local_bytes(session->ops) > 0)
        snprintf(within, sizeof(within), " and %s within the node",
                 units_bytes(bytes, ops_local_bytes(session->ops)));
    snprintf(text, sizeof(text), "sent %s over the mesh%s", units_bytes(bytes, stats.sent_bytes), within);
    return report_log(session->link, "info", text, err);
}

int report_log(struct worker_link *link, const char *level, const char *text, struct err *err)
{
    return worker_link_emit(link, "log", json_pack("{s:s, s:s}", "level", level, "text", text), err);
}
