/* The steps of a mixture: routers, the experts' rows and their sum. */
#include "engine/stage/experts.h"

void sum_begin(const struct layer_run *run, const struct layer_step *step)
{
    uint32_t hidden = run_shape(run)->hidden;
    if (step->add == step->out)
        return;
    /* with parts of layers, the first member adds the residual */
    if (step->add == VALUE_NONE || run->pass->stage->options.part.follows)
        queue_zero(&run->pass->queue, run_value(run, step->out), (uint64_t)run->pass->tokens * hidden);
    else
        queue_copy(&run->pass->queue, run->pass->tokens, hidden, run_value(run, step->add), hidden,
                   run_value(run, step->out), hidden);
}

/* The array of a row's expert counts (which = 0) or probability sums (1), for the load-balancing loss. */
static struct operand router_sums(const struct layer_run *run, uint32_t which)
{
    const struct stage *stage = run->pass->stage;
    uint64_t each = 4ull * stage->options.rows_max * stage->config.experts;
    if (stage->options.mode != STAGE_TRAIN || run->pass->slot->router_scale == 0)
        return (struct operand){0};
    return f32_at(run->pass->slot->buffer, stage->layout.slot.router + which * each);
}

/* The score of the shared expert becomes its weight: a router of one expert. */
static void score_forward(const struct layer_run *run, const struct layer_step *step)
{
    queue_step(run, &(struct op){.kind = OP_ROUTE,
                                 .route = {.tokens = run->pass->tokens,
                                           .experts = 1,
                                           .active = 1,
                                           .sigmoid = true,
                                           .scores = run_value(run, step->in),
                                           .chosen = run_value(run, VALUE_SHARED_CHOSEN),
                                           .weight = run_value(run, step->out)}});
}

static void score_backward(const struct layer_run *run, const struct layer_step *step)
{
    queue_step(run, &(struct op){.kind = OP_ROUTE_BACKWARD,
                                 .route_backward = {.tokens = run->pass->tokens,
                                                    .experts = 1,
                                                    .active = 1,
                                                    .sigmoid = true,
                                                    .probabilities = run_value(run, step->in),
                                                    .chosen = run_value(run, VALUE_SHARED_CHOSEN),
                                                    .dweight = run_gradient(run, step->out),
                                                    .dscores = run_gradient(run, step->in)}});
}

void route_forward(const struct layer_run *run, const struct layer_step *step)
{
    if (step->out == VALUE_SHARED_WEIGHT) {
        score_forward(run, step);
        return;
    }
    struct stage_pass *pass = run->pass;
    const struct model_config *config = &pass->stage->config;
    struct operand row_start = pass_meta(pass, pass->stage->layout.slot.row_start, DTYPE_U32);
    struct operand chosen = run_value(run, VALUE_CHOSEN);
    /* A stage with experts alone does not route: the router's choices came with the tokens. */
    if (run->plan->holds != HOLDS_EXPERTS)
        queue_step(
            run,
            &(struct op){.kind = OP_ROUTE,
                         .route = {.rows = pass->rows,
                                   .tokens = pass->tokens,
                                   .experts = config->experts,
                                   .active = config->experts_active,
                                   .renormalise = config->router_renormalise,
                                   .sigmoid = config->router_sigmoid,
                                   .scale = (float)config->router_scale,
                                   .bias = step->norm < 0
                                               ? (struct operand){0}
                                               : tensor_at(run->block, &run->plan->tensors.list[step->norm]),
                                   .scores = run_value(run, VALUE_PROBABILITIES),
                                   .chosen = chosen,
                                   .weight = run_value(run, step->out),
                                   .row_start = row_start,
                                   .counts = pass->counting ? router_sums(run, 0) : (struct operand){0},
                                   .sums = pass->counting ? router_sums(run, 1) : (struct operand){0}}});
    queue_step(run, &(struct op){.kind = OP_ROUTE_SORT,
                                 .route_sort = {.tokens = pass->tokens,
                                                .active = config->experts_active,
                                                .experts = config->experts,
                                                .chosen = chosen,
                                                .token = run_value(run, VALUE_ROUTED_TOKEN),
                                                .place = run_value(run, VALUE_ROUTED_PLACE),
                                                .offsets = run_value(run, VALUE_OFFSETS),
                                                .expert = run->plan->width[VALUE_ROUTED_EXPERT] > 0
                                                              ? run_value(run, VALUE_ROUTED_EXPERT)
                                                              : (struct operand){0}}});
}

void route_backward(const struct layer_run *run, const struct layer_step *step)
{
    if (step->out == VALUE_SHARED_WEIGHT)
        score_backward(run, step);
    if (step->out == VALUE_SHARED_WEIGHT || run->plan->holds == HOLDS_EXPERTS)
        return;
    struct stage_pass *pass = run->pass;
    const struct model_config *config = &pass->stage->config;
    double layers = pass->stage->model.sparse_before[config->layers];
    queue_step(run,
               &(struct op){.kind = OP_ROUTE_BACKWARD,
                            .route_backward = {
                                .rows = pass->rows,
                                .tokens = pass->tokens,
                                .experts = config->experts,
                                .active = config->experts_active,
                                .renormalise = config->router_renormalise,
                                .sigmoid = config->router_sigmoid,
                                .scale = (float)config->router_scale,
                                .aux = (float)(pass->slot->router_scale * (double)pass->stage->loss_scale *
                                               config->experts / (layers * layers)),
                                .probabilities = run_value(run, VALUE_PROBABILITIES),
                                .chosen = run_value(run, VALUE_CHOSEN),
                                .dweight = run_gradient(run, step->out),
                                .dscores = run_gradient(run, VALUE_PROBABILITIES),
                                .row_start = pass_meta(pass, pass->stage->layout.slot.row_start, DTYPE_U32),
                                .counts = router_sums(run, 0)}});
}

/* The product of the chosen experts' weights with the experts' factors. */
static struct op_gate weigh_of(const struct layer_run *run, const struct layer_step *step)
{
    uint32_t active = run->pass->stage->config.experts_active;
    return (struct op_gate){.rows = run->pass->tokens,
                            .vectors = 1,
                            .width = active,
                            .ldz = active,
                            .vz = active,
                            .kind = GATE_PLAIN,
                            .x = run_value(run, step->in),
                            .z = run_value(run, VALUE_EXPERT_SCALE),
                            .y = run_value(run, step->out)};
}

/* The numbers of the chosen experts, as ids of the rows of the table of their factors. */
static struct operand chosen_ids(const struct layer_run *run)
{
    struct operand ids = run_value(run, VALUE_CHOSEN);
    ids.dtype = DTYPE_I32;
    return ids;
}

void weigh_forward(const struct layer_run *run, const struct layer_step *step)
{
    const struct layer_tensor *table = &run->plan->tensors.list[step->norm];
    const struct op_gate gate = weigh_of(run, step);
    queue_step(run, &(struct op){.kind = OP_EMBED,
                                 .embed = {.tokens = gate.rows * gate.width,
                                           .hidden = 1,
                                           .vocab = table->rows,
                                           .ids = chosen_ids(run),
                                           .table = tensor_at(run->block, table),
                                           .out = gate.z}});
    queue_step(run, &(struct op){.kind = OP_GATE, .gate = gate});
}

void weigh_backward(const struct layer_run *run, const struct layer_step *step)
{
    const struct layer_tensor *table = &run->plan->tensors.list[step->norm];
    const struct op_gate gate = weigh_of(run, step);
    struct operand dscale = run_gradient(run, VALUE_EXPERT_SCALE);
    queue_step(run, &(struct op){.kind = OP_GATE_BACKWARD,
                                 .gate_backward = {.forward = gate,
                                                   .dy = run_gradient(run, step->out),
                                                   .dx = run_gradient(run, step->in),
                                                   .dz = dscale}});
    if (!table->trained)
        return;
    queue_step(run, &(struct op){.kind = OP_EMBED_BACKWARD,
                                 .embed_backward = {.tokens = gate.rows * gate.width,
                                                    .hidden = 1,
                                                    .vocab = table->rows,
                                                    .ids = chosen_ids(run),
                                                    .dout = dscale,
                                                    .dtable = tensor_gradient(run->block, table)}});
}

void dispatch_forward(const struct layer_run *run, const struct layer_step *step)
{
    uint32_t active = run->pass->stage->config.experts_active;
    queue_step(run, &(struct op){.kind = OP_GATHER_ROWS,
                                 .gather_rows = {.rows = run->pass->tokens * active,
                                                 .width = run_shape(run)->hidden,
                                                 .x_rows = run->pass->tokens,
                                                 .x = run_value(run, step->in),
                                                 .index = run_value(run, VALUE_ROUTED_TOKEN),
                                                 .y = run_value(run, step->out)}});
}

/* Sums rows of x for each token: those of its experts, or the one of the shared expert. */
static struct op_combine combine_of(const struct layer_run *run, const struct layer_step *step,
                                    struct operand x, struct operand y)
{
    bool shared = step->in == VALUE_SHARED_OUT;
    return (struct op_combine){.tokens = run->pass->tokens,
                               .active = shared ? 1 : run->pass->stage->config.experts_active,
                               .width = run_shape(run)->hidden,
                               .x = x,
                               .place = shared ? (struct operand){0} : run_value(run, VALUE_ROUTED_PLACE),
                               .y = y};
}

/* Backward of the dispatch to experts: a token's gradient is the sum of the gradients of its copies, one for
 * each expert that it chose. */
void dispatch_backward(const struct layer_run *run, const struct layer_step *step, bool accumulate)
{
    struct operand d = run_gradient(run, step->in);
    if (!accumulate)
        queue_zero(&run->pass->queue, d, (uint64_t)run->pass->tokens * run_shape(run)->hidden);
    queue_step(run, &(struct op){.kind = OP_COMBINE,
                                 .combine = combine_of(run, step, run_gradient(run, step->out), d)});
}

void combine_forward(const struct layer_run *run, const struct layer_step *step)
{
    struct op op = {.kind = OP_COMBINE,
                    .combine = combine_of(run, step, run_value(run, step->in), run_value(run, step->out))};
    sum_begin(run, step);
    op.combine.weight = run_value(run, layer_combine_weight(step));
    queue_step(run, &op);
}

void combine_backward(const struct layer_run *run, const struct layer_step *step)
{
    const struct op_combine c = combine_of(run, step, run_value(run, step->in), run_gradient(run, step->out));
    queue_step(run,
               &(struct op){.kind = OP_COMBINE_BACKWARD,
                            .combine_backward = {.tokens = c.tokens,
                                                 .active = c.active,
                                                 .width = c.width,
                                                 .x = c.x,
                                                 .place = c.place,
                                                 .weight = run_value(run, layer_combine_weight(step)),
                                                 .dy = c.y,
                                                 .dweight = run_gradient(run, layer_combine_weight(step))}});
}
