/* The steps of a run: which program runs when, what is reported, when a checkpoint is saved. Every decision
 * depends only on what all ranks know alike (the specification, the step, the reduced scalars), so all ranks
 * take it in the same step. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "worker/session/method.h"
#include "worker/checkpoint/saver.h"
#include "worker/checkpoint/state.h"
#include "worker/result.h"
#include "worker/session/report.h"
#include "worker/train.h"

enum { TRACED_FIRST = 4, TRACED_MAX = 32 };

static uint32_t requested_controls(struct stop_request *stop)
{
    uint32_t control = atomic_exchange(&stop->save, false) ? CONTROL_SAVE : 0;
    if (atomic_load(&stop->asked))
        control |= CONTROL_STOP;
    if (atomic_load(&stop->yield))
        control |= CONTROL_YIELD;
    if ((control & (CONTROL_STOP | CONTROL_YIELD)) && atomic_load(&stop->checkpoint))
        control |= CONTROL_SAVE;
    return control;
}

/* Whether a step is traced: the first few are, and then evenly spread ones. */
static bool is_traced(const struct session *session, uint64_t step)
{
    uint64_t since = step - session->assignment->start_step;
    uint64_t total = session->progress.steps > session->assignment->start_step
                         ? session->progress.steps - session->assignment->start_step
                         : 1;
    uint64_t every = total / TRACED_MAX + 1;
    return since < TRACED_FIRST || since % every == 0;
}

static int not_finite_error(const struct session *session, const struct ops_step *step, struct err *err)
{
    unsigned long long number = step->step;
    if (step->not_finite.code == ERR_NOT_FINITE)
        return err_set(err, ERR_NOT_FINITE, "step %llu, rank %u: %s", number, session->assignment->rank,
                       step->not_finite.text);
    return err_set(err, ERR_NOT_FINITE, "step %llu: another rank found a value that is not finite", number);
}

/* Updates the loss scale after a step, alike on every rank. ERR_NOT_FINITE when the run ends. */
static int update_loss_scale(struct session *session, const struct ops_step *step, struct err *err)
{
    double was = session->scale.value;
    char text[256];
    if (!(step->sum.control & CONTROL_NOT_FINITE)) {
        loss_scale_good(&session->scale);
        return 0;
    }
    if (!session->scale.on)
        return not_finite_error(session, step, err);
    if (loss_scale_bad(&session->scale, step->loss_lost, err) < 0)
        return err_wrap(err, "step %llu", (unsigned long long)step->step);
    if (!session_reports(session))
        return 0;
    snprintf(text, sizeof(text),
             "step %llu: the %s not finite: it is skipped, the loss scale goes from %g to %g",
             (unsigned long long)step->step, step->loss_lost ? "loss is" : "gradients are", was,
             session->scale.value);
    return report_log(session->link, "warning", text, err);
}

/* --- programs --- */

static int run_program(struct session *session, enum program_kind kind, struct ops_step *step,
                       struct err *err)
{
    if (session->progress.just_saved || kind == PROGRAM_SAVE)
        step->wait_ns = session->assignment->save_wait_ns;
    session->progress.just_saved = false;
    return ops_run(session->ops, kind, &session->data.batch, step, err);
}

static int run_step(struct session *session, uint64_t number, struct ops_step *step, struct err *err)
{
    const struct spec_train_part *train = &session->assignment->spec.train;
    uint64_t begin_ns = clock_mono_ns();
    uint32_t rows = order_step_rows(&session->data.order, number, session->data.numbers);
    if (batch_fill(&session->data.batch, session->assignment->plan, session->data.train,
                   session->data.numbers, rows, number, err) < 0)
        return err_wrap(err, "step %llu", (unsigned long long)number);
    double router = method_router_scale(&session->assignment->spec, &session->config,
                                        session->data.batch.labelled, session->data.batch.tokens);
    for (uint32_t m = 0; m < session->data.batch.micro_batch_count; m++)
        session->data.batch.micro[m].router_scale = router;
    *step = (struct ops_step){.step = number,
                              .control = requested_controls(session->stop),
                              .learning_rate = spec_learning_rate(train, session->progress.steps, number),
                              .beta1 = train->betas[0],
                              .beta2 = train->betas[1],
                              .eps = train->eps,
                              .weight_decay = train->weight_decay,
                              .vector_decay = train->decay == SPEC_DECAY_ALL ? train->weight_decay : 0,
                              .router_scale = router,
                              .loss_scale = loss_scale_of_sums(&session->scale, session->data.batch.labelled),
                              .clip_norm = train->clip_norm};
    if (run_program(session, PROGRAM_TRAIN, step, err) < 0)
        return -1;
    double scale = session->scale.value; /* the scale of this step, before it changes */
    if (update_loss_scale(session, step, err) < 0)
        return -1;
    double seconds = (double)(clock_mono_ns() - begin_ns) * 1e-9;
    struct exec_totals totals = ops_totals(session->ops, PROGRAM_TRAIN);
    if (session_reports(session) && report_step(session, step, scale, seconds, err) < 0)
        return -1;
    if (report_ranks(session, number, &totals, err) < 0)
        return -1;
    return is_traced(session, number) ? report_trace(session, number, err) : 0;
}

/* Sets *loss to the mean loss over the held-out rows, which every rank learns. */
static int evaluate(struct session *session, uint64_t done, double *loss, struct err *err)
{
    const struct plan *plan = session->assignment->plan;
    uint64_t begin_ns = clock_mono_ns(), labelled = 0;
    double sum = 0;
    for (uint32_t first = 0; first < session->data.eval->count; first += plan->batch_rows) {
        uint32_t count = session->data.eval->count - first;
        if (count > plan->batch_rows)
            count = plan->batch_rows;
        for (uint32_t r = 0; r < count; r++)
            session->data.numbers[r] = first + r;
        struct ops_step step = {.step = done};
        if (batch_fill(&session->data.batch, plan, session->data.eval, session->data.numbers, count, done,
                       err) < 0 ||
            run_program(session, PROGRAM_EVALUATE, &step, err) < 0)
            return err_wrap(err, "evaluation after %llu steps", (unsigned long long)done);
        if (step.sum.control & CONTROL_NOT_FINITE)
            return not_finite_error(session, &step, err);
        sum += step.sum.loss_sum;
        labelled += step.sum.labelled;
    }
    *loss = labelled ? sum / (double)labelled : INFINITY;
    if (!session_reports(session) || !labelled)
        return 0;
    return report_eval(session, done, *loss, labelled, (double)(clock_mono_ns() - begin_ns) * 1e-9, err);
}

static bool train_is_end(const struct session *session, int32_t token)
{
    for (uint32_t e = 0; e < session->config.eos_count; e++)
        if (session->config.eos[e] == token)
            return true;
    return false;
}

/* All ranks generate as many tokens as were asked for. Tokens behind an end token are not reported. */
static int sample(struct session *session, uint64_t done, struct err *err)
{
    const struct job_spec *spec = &session->assignment->spec;
    uint32_t count = spec->sample.tokens, kept = 0;
    int32_t *ids = calloc((size_t)count + 1, sizeof(*ids));
    if (!ids)
        return err_set(err, ERR_NOMEM, "no memory for a sample of %u tokens", count);
    int result = batch_fill_ids(&session->data.batch, session->assignment->plan, session->sample.prompt,
                                session->sample.prompt_count, err);
    for (uint32_t t = 0; t < count && result == 0; t++) {
        struct ops_step step = {.step = done,
                                .temperature = spec->sample.temperature,
                                .seed = spec->sample.seed,
                                .position = session->sample.prompt_count + t};
        result = run_program(session, t == 0 ? PROGRAM_PREFILL : PROGRAM_GENERATE, &step, err);
        ids[t] = step.token >= 0 ? step.token : 0;
        if (result == 0)
            result = batch_fill_ids(&session->data.batch, session->assignment->plan, &ids[t], 1, err);
    }
    ops_forget_caches(session->ops);
    while (kept < count && !train_is_end(session, ids[kept]))
        kept++;
    if (result == 0 && session_reports(session))
        result = report_sample(session, done, ids, kept, err);
    free(ids);
    return result < 0 ? err_wrap(err, "sample after %llu steps", (unsigned long long)done) : 0;
}

/* --- saving --- */

/* Copies the state with the plan's save program, which may synchronise ranks, or directly if the plan has
 * none. The copy is then stored while the next steps run. */
static int train_save(struct session *session, const struct save_request *request, struct err *err)
{
    const struct plan *plan = session->assignment->plan;
    if (saver_prepare(session->saver, request, err) < 0)
        return -1;
    if (plan->ranks[session->assignment->rank].programs[PROGRAM_SAVE].instr_count == 0) {
        saver_copy(session->saver);
    } else {
        struct ops_step step = {.step = request->step};
        if (run_program(session, PROGRAM_SAVE, &step, err) < 0)
            return -1;
    }
    session->progress.just_saved = true;
    return saver_start(session->saver, err);
}

static bool is_best(struct session *session, double loss)
{
    if (!(loss < session->progress.best_loss))
        return false;
    session->progress.best_loss = loss;
    return true;
}

/* Does what is due after step `done` − 1: evaluation and checkpoint. A checkpoint that cannot be written is
 * reported and the run goes on, because the next one may succeed; only the last one must. Before a stop the
 * function waits for the checkpoint; *saved tells whether it is stored. */
static int after_step(struct session *session, uint64_t done, uint32_t control, bool *saved, struct err *err)
{
    const struct job_spec *spec = &session->assignment->spec;
    bool stopping = control & (CONTROL_STOP | CONTROL_YIELD);
    bool periodic = spec->checkpoint.every_steps && done % spec->checkpoint.every_steps == 0;
    struct save_request request = {.step = done, .loss = INFINITY};
    if (!stopping && session->data.eval && spec->eval.every_steps && done % spec->eval.every_steps == 0) {
        if (evaluate(session, done, &request.loss, err) < 0)
            return -1;
        request.best = is_best(session, request.loss);
    }
    bool due = request.best || (periodic && !stopping) || (control & CONTROL_SAVE);
    if (stopping && saver_wait(session->saver, NULL, NULL, err) < 0)
        return -1;
    if (due && train_save(session, &request, err) < 0)
        return -1;
    return stopping ? saver_wait(session->saver, saved, NULL, err) : 0;
}

/* Turns a failure after the last step into a warning: the state is stored by then. A run that was told to end
 * fails nevertheless. */
static int spare(struct session *session, int result, struct err *err)
{
    char *warnings = session->progress.warnings;
    const size_t used = strlen(warnings);
    if (result == 0 || atomic_load(&session->stop->kill))
        return result;
    snprintf(warnings + used, sizeof(session->progress.warnings) - used, "%s%s", used ? "; " : "", err->text);
    return report_log(session->link, "warning", err->text, err);
}

/* Evaluates after the last step. All ranks learn alike of a value that is not finite; with any other failure
 * the mesh ends, so that no rank waits for this one. */
static int evaluate_last(struct session *session, double *loss, struct err *err)
{
    if (!session->data.eval)
        return 0;
    int result = evaluate(session, session->progress.steps, loss, err);
    session->progress.programs_failed = result < 0 && err->code != ERR_NOT_FINITE;
    if (session->progress.programs_failed && session->mesh)
        mesh_abort(session->mesh);
    return spare(session, result, err);
}

static int sample_last(struct session *session, struct err *err)
{
    if (!session->sample.prompt || session->progress.programs_failed)
        return 0;
    int result = sample(session, session->progress.steps, err);
    session->progress.programs_failed = result < 0;
    if (result < 0 && session->mesh)
        mesh_abort(session->mesh);
    return spare(session, result, err);
}

/* Stores the state of the last step before anything that may fail for another reason. */
static int train_finish(struct session *session, json_t **artifacts, struct err *err)
{
    struct save_request request = {.step = session->progress.steps, .loss = INFINITY, .must = true};
    json_t *blobs = NULL;
    if (train_save(session, &request, err) < 0 || saver_wait(session->saver, NULL, &blobs, err) < 0)
        return -1;
    int result = evaluate_last(session, &request.loss, err);
    request.best = result == 0 && is_best(session, request.loss);
    if (result == 0 && request.best && blobs)
        result = report_checkpoint(session, request.step, blobs, true, request.loss, NULL, err);
    if (result == 0)
        result = sample_last(session, err);
    if (result == 0 && blobs)
        result = result_store(session, blobs, artifacts, err);
    if (result < 0 && blobs && *artifacts)
        result = spare(session, result, err);
    json_decref(blobs);
    return result;
}

int session_train(struct session *session, uint64_t *stopped_at, bool *saved, json_t **artifacts,
                  struct err *err)
{
    uint64_t start = session->assignment->start_step;
    double loss;
    *stopped_at = UINT64_MAX;
    *saved = false;
    *artifacts = NULL;
    if (start == 0 && session->progress.steps > 0) {
        if (session->data.eval && evaluate(session, 0, &loss, err) < 0)
            return -1;
        if (session->sample.prompt && sample(session, 0, err) < 0)
            return -1;
    }
    for (uint64_t number = start; number < session->progress.steps; number++) {
        struct ops_step step;
        if (run_step(session, number, &step, err) < 0)
            return -1;
        if (worker_link_alone(session->link) > session->alone_ns)
            return err_set(err, ERR_TIMEOUT, "no agent for %.0f s", (double)session->alone_ns * 1e-9);
        uint64_t done = session->progress.steps_done = number + 1;
        bool stopping = step.sum.control & (CONTROL_STOP | CONTROL_YIELD);
        if ((done < session->progress.steps || stopping) &&
            after_step(session, done, step.sum.control, saved, err) < 0)
            return -1;
        if (stopping && done < session->progress.steps) {
            *stopped_at = done;
            return 0;
        }
    }
    return train_finish(session, artifacts, err);
}
