/* What each opcode does. See ops.h. */
#include "worker/program/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "worker/program/exchange_private.h"
#include "worker/program/gather_private.h"

/* --- slots and instructions, made once --- */

static int op_compute(void *host, uint32_t number, const struct instr *instr, struct err *err);
static int op_compute_wait(void *host, uint32_t number, struct err *err);
static bool op_compute_done(void *host, uint32_t number);
static int op_begin(void *host, uint32_t number, const struct instr *instr, struct err *err);

/* An instruction that takes the device longer than this (600 s) hangs. */
static const uint64_t COMPUTE_TIMEOUT_NS = 600ull * 1000 * 1000 * 1000;

static void op_waits(void *host, const char *what)
{
    const struct ops *ops = host;
    if (ops->options.waits)
        ops->options.waits(ops->options.log_arg, what);
}

static const struct exec_ops exec_ops = {.waits = op_waits,
                                         .compute = op_compute,
                                         .compute_wait = op_compute_wait,
                                         .compute_done = op_compute_done,
                                         .begin = op_begin};

static bool is_collective(const struct instr *instr)
{
    return instr->op == INSTR_ALL_REDUCE || instr->op == INSTR_BROADCAST;
}

static int make_program(struct ops *ops, int kind, struct err *err)
{
    const struct program *program = &ops->me->programs[kind];
    if (program->instr_count == 0)
        return 0;
    size_t count = program->instr_count;
    ops->programs[kind].reduces = calloc(count, sizeof(*ops->programs[kind].reduces));
    if (!ops->programs[kind].reduces)
        return err_set(err, ERR_NOMEM, "no memory for a program of %u instructions", program->instr_count);
    for (uint32_t i = 0; i < program->instr_count; i++) {
        const struct instr *instr = &program->instrs[i];
        if (ops_check_instr(ops, kind, i, instr, err) < 0)
            return -1;
        if (is_collective(instr) && !stream_moves(ops, instr) &&
            reduce_create(ops, i, instr, &ops->programs[kind].reduces[i], err) < 0)
            return err_wrap(err, "%s, instruction %u", program_kind_name(kind), i);
    }
    if (transfer_make(ops, kind, err) < 0)
        return -1;
    return exec_create(ops->options.plan, program, &exec_ops, ops, &ops->programs[kind].exec, err);
}

/* Gives collectives their host memory, which all programs share, and returns the bytes that the program with
 * the largest collectives needs. memory NULL: it only returns the bytes. */
static size_t place_collectives(struct ops *ops, uint8_t *memory)
{
    size_t most = 0;
    for (int kind = 0; kind < PROGRAM_KINDS; kind++) {
        size_t at = 0;
        for (uint32_t i = 0; ops->programs[kind].reduces && i < ops->me->programs[kind].instr_count; i++) {
            struct reduce *reduce = ops->programs[kind].reduces[i];
            if (reduce && memory)
                reduce_place(reduce, memory + at);
            at += reduce ? reduce_bytes(reduce) : 0;
        }
        most = at > most ? at : most;
    }
    return most;
}

static int make_collectives(struct ops *ops, struct err *err)
{
    size_t bytes = place_collectives(ops, NULL);
    ops->collectives = malloc(bytes ? bytes : 1);
    if (!ops->collectives)
        return err_set(err, ERR_NOMEM, "no memory of %zu bytes for collectives", bytes);
    place_collectives(ops, ops->collectives);
    return 0;
}

int ops_create(const struct ops_options *options, struct ops **out, struct err *err)
{
    struct ops *ops = calloc(1, sizeof(*ops));
    if (!ops)
        return err_set(err, ERR_NOMEM, "no memory for a worker");
    ops->options = *options;
    ops->me = &options->plan->ranks[options->rank];
    ops->slots = calloc((size_t)ops->me->slot_count + 1, sizeof(*ops->slots));
    ops->saved =
        calloc((size_t)options->stages->count * options->plan->micro_batch_count + 1, sizeof(struct saved *));
    int result =
        ops->slots && ops->saved ? 0 : err_set(err, ERR_NOMEM, "no memory for %u slots", ops->me->slot_count);
    ops->works_when_waited = strcmp(device_kind(options->device), "checked") == 0;
    pthread_mutex_init(&ops->out_lock, NULL);
    if (options->mesh && result == 0)
        result = courier_create(COPY_TIMEOUT_NS, &ops->courier, err);
    for (int i = 0; i < 2 && result == 0; i++)
        result = event_create(options->device, &ops->queued[i], err);
    for (uint32_t s = 0; s < ops->me->slot_count && result == 0; s++)
        result = cells_make(ops, s, err);
    if (result == 0)
        result = halves_make(ops, err);
    if (result == 0)
        result = gather_make(ops, err);
    if (result == 0)
        result = streams_make(ops, err);
    if (result == 0)
        result = exchange_make(ops, err);
    for (int kind = 0; kind < PROGRAM_KINDS && result == 0; kind++)
        result = make_program(ops, kind, err);
    if (result == 0)
        result = make_collectives(ops, err);
    if (result < 0) {
        ops_destroy(ops);
        return -1;
    }
    *out = ops;
    return 0;
}

void ops_forget_caches(struct ops *ops)
{
    for (uint32_t s = 0; s < ops->me->slot_count; s++)
        for (uint32_t c = 0; c < ops->slots[s].count; c++)
            cell_forget_caches(ops, &ops->slots[s].cells[c]);
}

int ops_connect(struct ops *ops, uint64_t deadline_ns, struct err *err)
{
    return ops->options.mesh ? local_connect(ops, deadline_ns, err) : 0;
}

void ops_stop(struct ops *ops)
{
    if (!ops)
        return;
    if (ops->courier)
        courier_stop(ops->courier);
    streams_stop(ops->streams);
    exchange_stop(ops->exchange);
    local_unmap(ops->local);
}

uint64_t ops_local_bytes(const struct ops *ops)
{
    return atomic_load(&ops->local_bytes);
}

void ops_destroy(struct ops *ops)
{
    if (!ops)
        return;
    ops_stop(ops);
    courier_destroy(ops->courier);
    streams_destroy(ops->streams);
    exchange_destroy(ops->exchange);
    local_destroy(ops->local);
    for (int kind = 0; kind < PROGRAM_KINDS; kind++) {
        exec_destroy(ops->programs[kind].exec);
        for (uint32_t i = 0; ops->programs[kind].reduces && i < ops->me->programs[kind].instr_count; i++)
            reduce_destroy(ops->programs[kind].reduces[i]);
        free(ops->programs[kind].reduces);
        free(ops->programs[kind].transfer_at);
        free(ops->programs[kind].transfers);
    }
    for (uint32_t s = 0; ops->slots && s < ops->me->slot_count; s++)
        cells_free(ops, s);
    size_t saved = (size_t)ops->options.stages->count * ops->options.plan->micro_batch_count;
    for (size_t i = 0; ops->saved && i < saved; i++)
        stage_saved_release(ops->saved[i]);
    gather_destroy(ops->gather);
    for (int i = 0; i < 2; i++)
        event_destroy(ops->queued[i]);
    pthread_mutex_destroy(&ops->out_lock);
    free(ops->own_micro);
    free(ops->own_starts);
    free(ops->came_starts);
    free(ops->saved);
    free(ops->slots);
    free(ops->logits);
    free(ops->collectives);
    free(ops->parts);
    free(ops);
}

/* --- compute queue --- */

/* Returns the index of the stage that holds an instruction's blocks. */
static int ops_stage_of(const struct ops *ops, const struct instr *instr)
{
    return stages_find(ops->options.stages, instr->block_begin, instr->block_end);
}

/* Whether an instruction is the program's first FORWARD in the stage's blocks, at which the KV cache is
 * cleared. */
static bool is_first_forward(const struct ops *ops, const struct instr *instr,
                             const struct stage_options *stage)
{
    const struct instr *x = ops->me->programs[ops->kind].instrs;
    while (x->op != INSTR_FORWARD || x->block_begin < (int32_t)stage->block_begin ||
           x->block_end > (int32_t)stage->block_end)
        x++;
    return x == instr;
}

static int infer(struct ops *ops, const struct instr *instr, const struct micro_batch *micro, uint32_t tokens,
                 struct buffer *in, struct buffer *out, struct err *err)
{
    int stage = ops_stage_of(ops, instr);
    struct kv_cache *cache = NULL;
    struct stage_options has;
    if (cell_need_cache(ops, instr, stage, &cache, err) < 0)
        return -1;
    stage_options_get(ops->options.stages->list[stage], &has);
    if (ops->kind == PROGRAM_PREFILL && is_first_forward(ops, instr, &has))
        kv_cache_clear(cache);
    bool head = instr->block_end == ops->options.plan->block_count;
    if (head && !ops->logits && !(ops->logits = malloc(sizeof(float) * ops->options.vocab)))
        return err_set(err, ERR_NOMEM, "no memory for the logits of %u tokens", ops->options.vocab);
    struct infer_pass pass = {.block_begin = (uint32_t)instr->block_begin,
                              .block_end = (uint32_t)instr->block_end,
                              .ids = micro->ids,
                              .tokens = tokens,
                              .in = in,
                              .out = out,
                              .logits = head ? ops->logits : NULL};
    struct stage *runs = ops->options.stages->list[stage];
    return ops_is_half(instr) ? stage_half_infer(runs, cache, &pass, (enum stage_half)ops_half(instr), err)
                              : stage_infer_blocks(runs, cache, &pass, err);
}

/* Adds the step and the micro-batch to an error's text. */
static int wrap_step(const struct ops *ops, const struct instr *instr, struct err *err)
{
    return err_wrap(err, "step %llu, micro-batch %d", (unsigned long long)ops->step->step,
                    (int)instr->micro_batch);
}

static int op_forward(struct ops *ops, const struct instr *instr, struct err *err)
{
    const struct micro_batch *micro = ops_micro(ops, instr->micro_batch);
    uint32_t tokens = micro->row_start[micro->rows];
    int stage = ops_stage_of(ops, instr);
    struct buffer *in, *out;
    if (micro->rows == 0)
        return 0;
    if (cells_take_in(ops, instr, &in, err) < 0 || cells_take_out(ops, instr, &out, err) < 0 ||
        gather_bind(ops, instr, ops->options.stages->list[stage], err) < 0)
        return -1;
    bool caches = instr->slot_save != PLAN_NONE && ops->slots[instr->slot_save].slot->kind == SLOT_KV_CACHE;
    struct saved **saved = instr->slot_save != PLAN_NONE ? ops_saved(ops, stage, instr->micro_batch) : NULL;
    struct stage *runs = ops->options.stages->list[stage];
    int result = caches               ? infer(ops, instr, micro, tokens, in, out, err)
                 : ops_is_half(instr) ? halves_forward(ops, instr, runs, in, out, err)
                                      : stage_forward_blocks(runs, micro, (uint32_t)instr->block_begin,
                                                             (uint32_t)instr->block_end, in, out, saved, err);
    if (result < 0)
        return wrap_step(ops, instr, err);
    return 0;
}

/* Runs both halves of a backward pass, or the half that the instruction names. */
static int ops_run_backward(struct ops *ops, const struct instr *instr, struct stage *stage,
                            struct saved **place, struct buffer *in, struct buffer *out, struct err *err)
{
    const struct micro_batch *micro = ops_micro(ops, instr->micro_batch);
    uint32_t begin = (uint32_t)instr->block_begin, end = (uint32_t)instr->block_end;
    struct stage_options has;
    int result = 0;
    if (ops_is_half(instr))
        return halves_backward(ops, instr, stage, place, in, out, err);
    stage_options_get(stage, &has);
    if (instr->op != INSTR_BACKWARD_WEIGHT)
        result = stage_backward_blocks(stage, micro, *place, begin, end, in, out, err);
    if (result == 0 && has.split && instr->op != INSTR_BACKWARD_INPUT)
        result = stage_backward_weights(stage, micro, *place, begin, end, err);
    if (result < 0 || !stage_saved_taken(*place))
        *place = NULL; /* the stage has released the saved activations, also on error */
    return result;
}

static int op_backward(struct ops *ops, const struct instr *instr, struct err *err)
{
    const struct micro_batch *micro = ops_micro(ops, instr->micro_batch);
    int stage = ops_stage_of(ops, instr);
    struct saved **place = ops_saved(ops, stage, instr->micro_batch);
    struct buffer *in, *out;
    if (micro->rows == 0)
        return 0;
    if (!*place)
        return err_set(
            err, ERR_INVALID,
            "%s of micro-batch %d in blocks %d..%d comes without its FORWARD, or after that of the "
            "first block that it passed",
            instr_op_name(instr->op), (int)instr->micro_batch, (int)instr->block_begin,
            (int)instr->block_end);
    if (cells_take_in(ops, instr, &in, err) < 0 || cells_take_out(ops, instr, &out, err) < 0 ||
        gather_bind(ops, instr, ops->options.stages->list[stage], err) < 0)
        return -1;
    if (ops_run_backward(ops, instr, ops->options.stages->list[stage], place, in, out, err) < 0)
        return wrap_step(ops, instr, err);
    return 0;
}

/* Concludes the step from the reduced sums, alike on every rank: computes the norm and decides whether
 * parameters are updated. Returns 1 if they are, 0 if the step is skipped. */
static int conclude_step(struct ops *ops, struct err *err)
{
    struct ops_step *step = ops->step;
    if (!ops->scalars_reduced && ops_own_scalars(ops, &step->sum, err) < 0)
        return -1;
    if (!ops->norm_reduced && ops_own_norm(ops, &ops->norm_square, err) < 0)
        return -1;
    ops->scalars_reduced = ops->norm_reduced = ops->concluded = true;
    double labelled = (double)step->sum.labelled;
    step->loss_lost = (step->sum.control & CONTROL_NOT_FINITE) || !isfinite(step->sum.loss_sum);
    if (!isfinite(ops->norm_square) || !isfinite(step->sum.loss_sum))
        step->sum.control |= CONTROL_NOT_FINITE;
    if ((step->sum.control & CONTROL_NOT_FINITE) || step->sum.labelled == 0)
        return 0;
    step->norm = sqrt(ops->norm_square) / labelled;
    step->stepped = true;
    return 1;
}

static int op_step(struct ops *ops, struct err *err)
{
    struct ops_step *step = ops->step;
    int goes_on = conclude_step(ops, err);
    if (goes_on <= 0)
        return goes_on;
    double labelled = (double)step->sum.labelled;
    /* the rule of torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6)) */
    double clip = step->clip_norm > 0 ? fmin(1.0, step->clip_norm / (step->norm + 1e-6)) : 1.0;
    struct step_update update = {.learning_rate = step->learning_rate,
                                 .beta1 = step->beta1,
                                 .beta2 = step->beta2,
                                 .eps = step->eps,
                                 .weight_decay = step->weight_decay,
                                 .vector_decay = step->vector_decay,
                                 .grad_scale = clip / labelled};
    ops->table_current = false;
    if (stages_update(ops->options.stages, &update, err) < 0 || device_sync(ops->options.device, err) < 0)
        return err_wrap(err, "step %llu", (unsigned long long)step->step);
    return 0;
}

static int op_sample(struct ops *ops, const struct instr *instr, struct err *err)
{
    if (!ops->logits)
        return err_set(err, ERR_INTERNAL, "SAMPLE without a FORWARD of the head");
    int32_t token;
    if (ops->step->temperature > 0)
        token = sample_seeded(ops->logits, ops->options.vocab, ops->step->temperature, 0, ops->step->seed,
                              ops->step->position);
    else
        token = sample_greedy(ops->logits, ops->options.vocab);
    ops->step->token = token;
    if (instr->slot_out != PLAN_NONE)
        ops_cell(ops, instr->slot_out, instr->micro_batch, instr->block_begin)->token = token;
    return 0;
}

static void op_release(struct ops *ops, const struct instr *instr)
{
    if (instr->slot_in == PLAN_NONE)
        return;
    struct slot_cell *cell = ops_cell(ops, instr->slot_in, instr->micro_batch, instr->block_begin);
    int stage = ops_stage_of(ops, instr);
    if (ops->slots[instr->slot_in].slot->kind == SLOT_SAVED && stage >= 0) {
        stage_saved_release(*ops_saved(ops, stage, instr->micro_batch));
        *ops_saved(ops, stage, instr->micro_batch) = NULL;
    }
    gather_release(ops, instr);
    cell->in_use = false;
    cell_forget_caches(ops, cell);
}

/* Begins the copy of an instruction's output to the host, behind the work that the instruction submitted to
 * the device. Returns 1 while the work is under way, 0 when it is complete. */
static int op_publish(struct ops *ops, uint32_t number, const struct instr *instr, struct err *err)
{
    uint32_t index = ops->queued_count++ % 2;
    ops->queued_number[index] = number;
    if (event_record(ops->queued[index], err) < 0 || cells_publish(ops, instr, ops->queued[index], err) < 0)
        return -1;
    return event_done(ops->queued[index]) ? event_wait(ops->queued[index], COMPUTE_TIMEOUT_NS, err) : 1;
}

/* A device of kind "checked" works only while the host waits for it, so polling it would never end. */
static bool op_compute_done(void *host, uint32_t number)
{
    const struct ops *ops = host;
    return ops->works_when_waited || event_done(ops->queued[ops->queued_number[0] == number ? 0 : 1]);
}

static int op_compute_wait(void *host, uint32_t number, struct err *err)
{
    struct ops *ops = host;
    uint32_t index = ops->queued_number[0] == number ? 0 : 1;
    if (event_wait(ops->queued[index], COMPUTE_TIMEOUT_NS, err) < 0)
        return err_wrap(err, "step %llu", (unsigned long long)ops->step->step);
    return 0;
}

static int op_compute(void *host, uint32_t number, const struct instr *instr, struct err *err)
{
    struct ops *ops = host;
    switch (instr->op) {
    case INSTR_FORWARD:
        return op_forward(ops, instr, err) < 0 ? -1 : op_publish(ops, number, instr, err);
    case INSTR_BACKWARD:
    case INSTR_BACKWARD_INPUT:
    case INSTR_BACKWARD_WEIGHT:
        return op_backward(ops, instr, err) < 0 ? -1 : op_publish(ops, number, instr, err);
    case INSTR_ATTENTION:
    case INSTR_ROUTE:
    case INSTR_EXPERTS:
        return apart_compute(ops, instr, err) < 0 ? wrap_step(ops, instr, err)
                                                  : op_publish(ops, number, instr, err);
    case INSTR_STEP:
        return op_step(ops, err);
    case INSTR_SAMPLE:
        return op_sample(ops, instr, err);
    case INSTR_RELEASE:
        op_release(ops, instr);
        return 0;
    case INSTR_SAVE:
        return ops->options.save ? ops->options.save(ops->options.save_arg, err) : 0;
    default:
        return err_set(err, ERR_UNSUPPORTED, "%s is not done on the compute queue", instr_op_name(instr->op));
    }
}

/* --- peer and group queues --- */

static int op_begin(void *host, uint32_t number, const struct instr *instr, struct err *err)
{
    struct ops *ops = host;
    if (ops->streams && stream_moves(ops, instr))
        return stream_begin(ops, number, instr, err);
    switch (instr->op) {
    case INSTR_SEND:
    case INSTR_RECV:
        return transfer_begin(ops, number, instr, err);
    case INSTR_ALL_REDUCE:
    case INSTR_BROADCAST:
        return reduce_begin(ops->programs[ops->kind].reduces[number], err);
    case INSTR_DISPATCH:
    case INSTR_COMBINE:
        return exchange_begin(ops, number, instr, err);
    default:
        return err_set(err, ERR_UNSUPPORTED, "%s is not done on a queue of the transport",
                       instr_op_name(instr->op));
    }
}

/* --- a run --- */

int ops_run(struct ops *ops, enum program_kind kind, const struct batch *batch, struct ops_step *step,
            struct err *err)
{
    if (!ops->programs[kind].exec)
        return err_set(err, ERR_UNSUPPORTED, "the plan has no program to %s", program_kind_name(kind));
    ops->kind = kind;
    ops->batch = batch;
    ops->step = step;
    ops->wait_ns = step->wait_ns ? step->wait_ns : ops->options.wait_ns;
    ops->run_number++;
    ops->scalars_reduced = ops->norm_reduced = ops->concluded = false;
    ops->norm_square = 0;
    memset(&step->sum, 0, sizeof(step->sum));
    step->norm = 0;
    step->stepped = step->loss_lost = false;
    step->token = -1;
    err_clear(&step->not_finite);
    double scale = step->loss_scale > 0 ? step->loss_scale : 1;
    if (kind == PROGRAM_TRAIN && stages_loss_scale_set(ops->options.stages, scale, err) < 0)
        return -1;
    if ((kind == PROGRAM_TRAIN || kind == PROGRAM_EVALUATE) &&
        stages_step_begin(ops->options.stages, err) < 0)
        return -1;
    /* Other ranks' gradients may arrive before this rank computes anything, so the device must have zeroed
     * the previous step's gradients by now. */
    if (ops->streams && device_sync(ops->options.device, err) < 0)
        return -1;
    gather_run_begin(ops);
    apart_run_begin(ops);
    if (exec_run(ops->programs[kind].exec, ops->wait_ns, err) < 0)
        return -1;
    /* A rank without state has no STEP, and learns the step's outcome from the reductions. */
    if (kind == PROGRAM_TRAIN && ops->norm_reduced && !ops->concluded && conclude_step(ops, err) < 0)
        return -1;
    if (kind == PROGRAM_EVALUATE && !ops->scalars_reduced)
        return ops_own_scalars(ops, &step->sum, err);
    return 0;
}

void ops_fail(struct ops *ops, const struct err *failure)
{
    for (int kind = 0; kind < PROGRAM_KINDS; kind++)
        if (ops->programs[kind].exec)
            exec_fail(ops->programs[kind].exec, failure);
}

const struct exec_time *ops_times(const struct ops *ops, enum program_kind kind)
{
    return exec_times(ops->programs[kind].exec);
}

struct exec_totals ops_totals(const struct ops *ops, enum program_kind kind)
{
    return exec_totals(ops->programs[kind].exec);
}
