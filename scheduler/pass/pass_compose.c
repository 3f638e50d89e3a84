/* Composes new runs: their rows, and the `assign` message of each rank. */
#include "scheduler/pass/pass.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"
#include "model/job/spec.h"
#include "program/program.h"
#include "scheduler/pass/pauses.h"

/* Returns where the run begins: at the last complete checkpoint, or at step 0. */
static json_t *compose_start(const struct pass_start *of)
{
    bool resumes = of->checkpoint_step >= 0 && of->checkpoint_blobs;
    json_t *start =
        json_pack("{s:I, s:I, s:O?, s:O?}", "step", (json_int_t)(resumes ? of->checkpoint_step : 0),
                  "reported", (json_int_t)of->job->reported, "checkpoint",
                  resumes ? of->checkpoint_blobs : NULL, "adapter", json_object_get(of->inputs, "adapter"));
    if (start && resumes && isfinite(of->best_loss))
        json_object_set_new(start, "best_loss", json_real(of->best_loss));
    return start;
}

static json_t *compose_data(const struct pass_start *start)
{
    json_t *data = json_pack("{s:O?, s:O?}", "train", json_object_get(start->train, "blob"), "eval",
                             json_object_get(start->eval, "blob"));
    static const char *const keys[] = {"format", "said", "first"};
    for (size_t i = 0; data && i < sizeof(keys) / sizeof(keys[0]); i++) {
        json_t *text = json_object_get(json_object_get(start->train, "stats"), keys[i]);
        if (json_is_string(text))
            json_object_set(data, keys[i], text);
    }
    return data;
}

static json_t *compose_model(const struct pass_start *start)
{
    json_t *model = json_pack("{}");
    static const char *const keys[] = {"name", "content", "config", "files"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        json_object_set(model, keys[i], json_object_get(start->model, keys[i]));
    /* The model of this content may be registered by several people, each under a name of their own. */
    const char *base = json_string_value(json_object_get(json_object_get(start->inputs, "base"), "name"));
    const char *slash = base ? strrchr(base, '/') : NULL;
    if (base && *base)
        json_object_set_new(model, "name", json_string(slash && slash[1] ? slash + 1 : base));
    json_object_set(model, "base", json_object_get(start->inputs, "base"));
    return model;
}

/* Composes the rows of the run's ranks. `first` is the index of the run's first id in `assignments`. */
static json_t *compose_ranks(struct scheduler_pass *pass, const struct pass_start *start,
                             const json_t *assignments, size_t first)
{
    json_t *ranks = json_array();
    const json_t *planned = json_object_get(start->answer.plan, "ranks");
    char origin[192] = "";
    if (*start->reference)
        snprintf(origin, sizeof(origin), "profile, reference %s", start->reference);
    for (size_t i = 0; i < start->answer.rank_count; i++) {
        const struct store_sched_device *device = pass_device(pass, start->answer.ranks[i].device);
        const json_t *speed = device ? json_object_get(start->speeds, device->name) : NULL;
        pass_add(pass, ranks,
                 device ? json_pack("{s:I, s:s, s:s, s:O, s:O?, s:O?, s:s, s:f}", "rank", (json_int_t)i,
                                    "node", device->node, "device", device->name, "assignment",
                                    json_array_get(assignments, first + i), "busy_s",
                                    json_object_get(json_array_get(planned, i), "busy_s"), "speed", speed,
                                    "origin", speed ? origin : "", "factor", start->factor)
                        : NULL);
    }
    return ranks;
}

/* Returns how long the ranks wait for each other, derived from the plan's predicted step time. */
static json_t *compose_limits(const struct scheduler_pass *pass, const struct pass_start *start)
{
    const struct scheduler_limits *limits = &pass->scheduler->config->limits;
    double step_s =
        json_number_value(json_object_get(json_object_get(start->answer.plan, "costs"), "step_s"));
    uint32_t wait_ms = pause_wait_ms(step_s, limits->wait_steps, limits->wait_ms_min, limits->wait_ms_max);
    return json_pack("{s:f, s:f}", "wait", wait_ms / 1e3, "save", limits->save_wait_ms / 1e3);
}

/* Returns what the run is computed in: what its plan says. */
static const char *pass_compose_compute_of(const struct pass_start *start)
{
    const char *compute = json_string_value(json_object_get(start->answer.plan, "compute"));
    return compute ? compute : plan_dtype_name(PLAN_F32);
}

/* Returns the job's specification as the run is computed, and without its plan, because an assignment has the
 * plan anyway. */
static json_t *compose_spec(const struct pass_start *start)
{
    json_t *spec = spec_computed(start->spec, pass_compose_compute_of(start));
    json_t *placement = json_copy(json_object_get(spec, "placement"));
    if (placement) {
        json_object_del(placement, "plan");
        json_object_set_new(spec, "placement", placement);
    }
    return spec;
}

/* Returns the part of an assignment that is the same for every rank. */
static json_t *compose_common(struct scheduler_pass *pass, const struct pass_start *start,
                              const json_t *numbers, json_t *ranks)
{
    const struct store_sched_job *job = start->job;
    json_t *common =
        json_pack("{s:I, s:O, s:I, s:O, s:O, s:O, s:o, s:o, s:o, s:o, s:O, s:o}", "job", (json_int_t)job->id,
                  "run", json_object_get(numbers, "run"), "attempt", (json_int_t)job->attempt + 1, "epoch",
                  json_object_get(numbers, "epoch"), "ranks", ranks, "plan_digest",
                  json_object_get(start->answer.plan, "digest"), "spec", compose_spec(start), "model",
                  compose_model(start), "data", compose_data(start), "start", compose_start(start), "links",
                  pass->scheduler->config->links, "limits", compose_limits(pass, start));
    json_t *sample = json_object_get(start->inputs, "sample");
    if (common && json_is_object(sample))
        json_object_set(common, "sample", sample);
    return common;
}

/* Composes the `assign` message of a rank. It names the plan's digest; the rank's slice of the plan is added
 * when it is sent. */
static json_t *compose_assign(struct scheduler_pass *pass, const json_t *common, json_t *rank)
{
    json_t *assign = json_copy((json_t *)(uintptr_t)common);
    if (!assign || json_object_update(assign, rank) < 0)
        pass->failed = true;
    return assign;
}

/* Returns the bytes of a checkpoint as the plan predicts them: the adapters, plus 1.5 times the optimizer's
 * memory (its two moments, and the weights that they belong to). */
static json_int_t save_bytes(const json_t *plan)
{
    double bytes = 0;
    size_t i;
    json_t *rank;
    json_array_foreach (json_object_get(plan, "ranks"), i, rank) {
        const json_t *memory = json_object_get(rank, "memory");
        bytes += json_number_value(json_object_get(memory, "adapters")) +
                 1.5 * json_number_value(json_object_get(memory, "optimizer"));
    }
    return bytes < 1e18 ? (json_int_t)bytes : 0;
}

/* Returns the bytes of weights that the largest rank loads, as the plan predicts them. */
static json_int_t load_bytes(const json_t *plan)
{
    double most = 0;
    size_t i;
    json_t *rank;
    json_array_foreach (json_object_get(plan, "ranks"), i, rank)
        most = fmax(most, json_number_value(json_object_get(json_object_get(rank, "memory"), "weights")));
    return most < 1e18 ? (json_int_t)most : 0;
}

/* Composes one run with its ids {"run","epoch"}. */
static void compose_run(struct scheduler_pass *pass, const struct pass_start *start, const json_t *numbers,
                        const json_t *assignments, size_t first)
{
    const struct store_sched_job *job = start->job;
    int64_t run = json_integer_value(json_object_get(numbers, "run"));
    json_t *ranks = compose_ranks(pass, start, assignments, first);
    json_t *common = compose_common(pass, start, numbers, ranks);
    const json_t *planner = json_object_get(start->answer.answer, "planner");
    size_t i;
    json_t *rank;
    json_array_foreach (ranks, i, rank)
        pass_message(pass, json_string_value(json_object_get(rank, "node")), run, "assign",
                     compose_assign(pass, common, rank));
    pass_add(pass, pass->runs_new,
             json_pack("{s:I, s:I, s:I, s:O, s:O, s:O?, s:O?, s:I, s:f, s:I, s:I, s:O, s:s?, s:s}", "run",
                       (json_int_t)run, "job", (json_int_t)job->id, "attempt", (json_int_t)job->attempt + 1,
                       "epoch", json_object_get(numbers, "epoch"), "plan", start->answer.plan, "answer",
                       start->answer.answer, "timeline", start->answer.timeline, "start_step",
                       (json_int_t)(start->checkpoint_step > 0 ? start->checkpoint_step : 0), "step_s",
                       start->step_s, "save_bytes", save_bytes(start->answer.plan), "load_bytes",
                       load_bytes(start->answer.plan), "ranks", ranks, "compute",
                       spec_compute_is_open(start->spec) ? pass_compose_compute_of(start) : NULL, "key",
                       start->key));
    pass_add(pass, pass->jobs,
             json_pack("{s:I, s:s, s:s, s:I, s:O?}", "job", (json_int_t)job->id, "before", "queued", "state",
                       "starting", "run", (json_int_t)run, "why", json_object_get(planner, "why")));
    json_decref(common);
    json_decref(ranks);
    pass_note_run(pass, run, (uint32_t)start->answer.rank_count);
    pass_begin_trial(pass, start);
}

/* Adds to a starting job what was read together with its ids: {"spec","inputs","step","blobs","loss"}. */
static void complete_job(struct pass_start *start, json_t *read)
{
    const json_t *loss = json_object_get(read, "loss");
    json_t *blobs = json_object_get(read, "blobs");
    start->spec = json_object_get(read, "spec");
    start->inputs = json_object_get(read, "inputs");
    start->checkpoint_step = json_integer_value(json_object_get(read, "step"));
    start->checkpoint_blobs = json_is_object(blobs) ? blobs : NULL;
    start->best_loss = json_is_number(loss) ? json_number_value(loss) : NAN;
}

void pass_compose_runs(struct scheduler_pass *pass, const json_t *numbers)
{
    const bool whole = !pass->failed;
    size_t first = 0;
    char unit[UNIT_BYTES];
    for (size_t i = 0; i < pass->start_count; i++) {
        complete_job(&pass->starts[i], json_array_get(json_object_get(numbers, "jobs"), i));
        compose_run(pass, &pass->starts[i], json_array_get(json_object_get(numbers, "runs"), i),
                    json_object_get(numbers, "assignments"), first);
        if (pass->failed && whole) { /* the other jobs start all the same */
            snprintf(unit, sizeof(unit), "job %lld", (long long)pass->starts[i].job->id);
            pass_set_aside(pass, unit, "its assignment could not be composed");
            pass->failed = false;
        }
        first += pass->starts[i].answer.rank_count;
    }
}
