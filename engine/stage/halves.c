/* Layers of which a stage has only a part: halves of layers, for groups whose members' outputs are summed,
 * and experts that are on other ranks than their router.
 */
#include "engine/stage/boundary.h"
#include "engine/stage/layer.h"
#include "engine/stage/outside.h"
#include "engine/stage/slot.h"

/* --- halves of layers --- */

/* Refuses a half (attention or FFN) of a block that this stage cannot run. Sets *layer to the block's layer,
 * counted from the stage's first layer. */
static int half_check(const struct stage *stage, const struct micro_batch *batch, uint32_t block,
                      enum stage_half half, uint32_t *layer, struct err *err)
{
    const struct stage_options *o = &stage->options;
    const struct layer_part *part = &o->part;
    if (block < o->block_begin || block >= o->block_end || block == 0 || block > stage->config.layers)
        return err_set(err, ERR_INVALID, "stage of blocks %u..%u: half of block %u is asked of it",
                       o->block_begin, o->block_end, block);
    bool sparse = model_layer_is_sparse(&stage->config, block - 1);
    bool cut = half == STAGE_HALF_ATTENTION ? part->kv_head_end > 0
               : sparse                     ? part->expert_end > 0
                                            : part->column_end > 0;
    if (part->holds == HOLDS_EXPERTS || (part->holds == HOLDS_NO_EXPERTS && sparse && half == STAGE_HALF_FFN))
        return err_set(err, ERR_INVALID, "block %u: its %s is elsewhere", block,
                       half == STAGE_HALF_ATTENTION ? "attention" : "FFN");
    if (part->follows && !cut)
        return err_set(err, ERR_INVALID, "block %u: its %s is whole on the first member, which runs it alone",
                       block, half == STAGE_HALF_ATTENTION ? "attention" : "FFN");
    if (o->split || (o->recompute && !layer_part_set(part)))
        return err_set(err, ERR_UNSUPPORTED,
                       "halves of blocks with backward in two parts, or of whole blocks with recompute");
    if (batch->router_scale != 0 && sparse)
        return err_set(err, ERR_UNSUPPORTED,
                       "router_aux: the load-balancing loss where layers run in halves");
    *layer = block - 1 - stage->layout.layer_begin;
    return 0;
}

int stage_half_forward(struct stage *stage, const struct micro_batch *batch, uint32_t block,
                       enum stage_half half, struct buffer *in, struct buffer *out, struct saved **saved,
                       struct err *err)
{
    uint32_t tokens = batch->row_start[batch->rows], hidden = stage->config.hidden, layer;
    struct saved *slot, *earlier = saved ? *saved : NULL;
    if (saved && stage->options.mode != STAGE_TRAIN)
        return err_set(err, ERR_INVALID, "a stage made for inference saves nothing for backward");
    if (half_check(stage, batch, block, half, &layer, err) != 0 ||
        boundary_check(stage, &(struct boundary_tensor){.buffer = in}, tokens, 0, true, "its input", err) !=
            0 ||
        boundary_check(stage, &(struct boundary_tensor){.buffer = out}, tokens, 0, true, "its output", err) !=
            0 ||
        blocks_bound(stage, block, block + 1, false, err) != 0 ||
        slot_of_batch(stage, batch, earlier, &slot, err) != 0)
        return -1;
    struct stage_pass pass = pass_of(stage, slot, saved != NULL, err);
    struct operand x = pass_x(&pass, saved ? layer : 0), middle = layer_value_at(&pass, layer, VALUE_MID);
    bool first = half == STAGE_HALF_ATTENTION;
    if (tokens > 0) {
        queue_copy(&pass.queue, tokens, hidden, f32_at(in, 0), hidden, first ? x : middle, hidden);
        if (!first && saved && stage->options.recompute)
            queue_copy(&pass.queue, tokens, hidden, middle, hidden, pass_middle(&pass, layer), hidden);
        layer_forward(&pass, layer, x, first ? HALF_FIRST : HALF_SECOND, f32_at(out, 0));
        if (first)
            queue_copy(&pass.queue, tokens, hidden, middle, hidden, f32_at(out, 0), hidden);
    }
    if (pass.queue.failed || !saved)
        slot_give(slot);
    if (saved)
        *saved = pass.queue.failed ? NULL : slot;
    return pass.queue.failed ? -1 : 0;
}

int stage_half_backward(struct stage *stage, const struct micro_batch *batch, struct saved *saved,
                        uint32_t block, enum stage_half half, struct buffer *grad_in, struct buffer *grad_out,
                        struct err *err)
{
    uint32_t tokens = batch->row_start[batch->rows], hidden = stage->config.hidden, layer;
    if (pass_backward_check(stage, batch, saved, err) != 0)
        return -1;
    if (half_check(stage, batch, block, half, &layer, err) != 0 ||
        boundary_check(stage, &(struct boundary_tensor){.buffer = grad_in}, tokens, 0, true,
                       "the gradient of its output", err) != 0 ||
        boundary_check(stage, &(struct boundary_tensor){.buffer = grad_out}, tokens, 0, grad_out != NULL,
                       "the gradient of its input", err) != 0 ||
        blocks_bound(stage, block, block + 1, true, err) != 0) {
        slot_give(saved);
        return -1;
    }
    struct stage_pass pass = pass_of(stage, saved, true, err);
    struct operand d = pass_workspace(&pass, stage->layout.workspace.d);
    bool first = half == STAGE_HALF_ATTENTION;
    if (tokens > 0) {
        layer_recompute(&pass, layer, pass_x(&pass, layer), first ? HALF_FIRST : HALF_SECOND);
        queue_copy(&pass.queue, tokens, hidden, f32_at(grad_in, 0), hidden, d, hidden);
        layer_backward(&pass, layer, pass_x(&pass, layer), grad_out != NULL, BACKWARD_ALL,
                       first ? HALF_FIRST : HALF_SECOND);
        if (grad_out)
            queue_copy(&pass.queue, tokens, hidden, d, hidden, f32_at(grad_out, 0), hidden);
    }
    if (pass.queue.failed || (first && block == stage->options.block_begin))
        slot_give(saved);
    return pass.queue.failed ? -1 : 0;
}

/* --- experts on other ranks than their router --- */

/* Refuses a block whose router (for HOLDS_EXPERTS: whose experts) this stage cannot run. Sets *layer to the
 * block's layer, counted from the stage's first layer. */
static int apart_check(const struct stage *stage, const struct micro_batch *batch, uint32_t block,
                       enum layer_holds holds, uint32_t *layer, struct err *err)
{
    const struct stage_options *o = &stage->options;
    if (block < o->block_begin || block >= o->block_end || block == 0 || block > stage->config.layers ||
        !model_layer_is_sparse(&stage->config, block - 1) || o->part.holds != holds)
        return err_set(err, ERR_INVALID, "stage of blocks %u..%u: %s of block %u alone is asked of it",
                       o->block_begin, o->block_end, holds == HOLDS_EXPERTS ? "the experts" : "the router",
                       block);
    if (batch->router_scale != 0)
        return err_set(err, ERR_UNSUPPORTED, "router_aux: the load-balancing loss where experts are apart");
    *layer = block - 1 - stage->layout.layer_begin;
    return 0;
}

static int halves_view_check(const struct stage *stage, const struct area_view *view, uint64_t values,
                             const char *what, struct err *err)
{
    if (view->buffer && buffer_device(view->buffer) == stage->device && view->at % 64 == 0 &&
        view->at <= buffer_bytes(view->buffer) && 4 * values <= buffer_bytes(view->buffer) - view->at)
        return 0;
    return err_set(err, ERR_INVALID,
                   "stage of blocks %u..%u: the buffer for %s is too small, askew or elsewhere",
                   stage->options.block_begin, stage->options.block_end, what);
}

static int routed_check(const struct stage *stage, const struct routed_tokens *routed, uint64_t tokens,
                        bool chosen, struct err *err)
{
    uint64_t choices = tokens * stage->config.experts_active;
    if (halves_view_check(stage, &routed->x, tokens * stage->config.hidden, "routed tokens", err) != 0 ||
        halves_view_check(stage, &routed->weight, choices, "the experts' weights", err) != 0)
        return -1;
    return chosen ? halves_view_check(stage, &routed->chosen, choices, "the experts' numbers", err) : 0;
}

/* Copies `width` values of 4 bytes of each token, whatever their type. */
static void tokens_copy(struct stage_pass *pass, uint32_t width, struct operand from, struct operand to)
{
    if (!pass->queue.failed && buffer_copy(to.buffer, to.at, from.buffer, from.at,
                                           4ull * pass->tokens * width, pass->queue.err) != 0)
        pass->queue.failed = true;
}

static struct operand view_operand(struct area_view view)
{
    return f32_at(view.buffer, view.at);
}

int stage_route_forward(struct stage *stage, const struct micro_batch *batch, uint32_t block,
                        struct buffer *in, const struct routed_tokens *out, struct saved **saved,
                        struct err *err)
{
    uint32_t tokens = batch->row_start[batch->rows], hidden = stage->config.hidden, layer;
    uint32_t active = stage->config.experts_active;
    struct saved *slot, *earlier = saved ? *saved : NULL;
    if (apart_check(stage, batch, block, HOLDS_NO_EXPERTS, &layer, err) != 0 ||
        boundary_check(stage, &(struct boundary_tensor){.buffer = in}, tokens, 0, true, "its input", err) !=
            0 ||
        routed_check(stage, out, tokens, true, err) != 0 ||
        blocks_bound(stage, block, block + 1, false, err) != 0 ||
        slot_of_batch(stage, batch, earlier, &slot, err) != 0)
        return -1;
    struct stage_pass pass = pass_of(stage, slot, saved != NULL, err);
    struct operand middle = layer_value_at(&pass, layer, VALUE_MID);
    if (tokens > 0) {
        tokens_copy(&pass, hidden, f32_at(in, 0), middle);
        if (saved && stage->options.recompute)
            tokens_copy(&pass, hidden, middle, pass_middle(&pass, layer));
        layer_forward(&pass, layer, pass_x(&pass, saved ? layer : 0), HALF_SECOND, (struct operand){0});
        tokens_copy(&pass, hidden, layer_value_at(&pass, layer, VALUE_FFN_NORM), view_operand(out->x));
        tokens_copy(&pass, active, layer_value_at(&pass, layer, VALUE_CHOSEN), view_operand(out->chosen));
        tokens_copy(&pass, active, layer_value_at(&pass, layer, VALUE_CHOSEN_WEIGHT),
                    view_operand(out->weight));
    }
    if (pass.queue.failed || !saved)
        slot_give(slot);
    if (saved)
        *saved = pass.queue.failed ? NULL : slot;
    return pass.queue.failed ? -1 : 0;
}

int stage_route_backward(struct stage *stage, const struct micro_batch *batch, struct saved *saved,
                         uint32_t block, const struct routed_tokens *gradient, struct buffer *stream,
                         struct err *err)
{
    uint32_t tokens = batch->row_start[batch->rows], hidden = stage->config.hidden, layer;
    if (pass_backward_check(stage, batch, saved, err) != 0)
        return -1;
    if (apart_check(stage, batch, block, HOLDS_NO_EXPERTS, &layer, err) != 0 ||
        boundary_check(stage, &(struct boundary_tensor){.buffer = stream}, tokens, 0, true,
                       "the stream's gradient", err) != 0 ||
        routed_check(stage, gradient, tokens, false, err) != 0 ||
        blocks_bound(stage, block, block + 1, true, err) != 0) {
        slot_give(saved);
        return -1;
    }
    struct stage_pass pass = pass_of(stage, saved, true, err);
    struct operand d = pass_workspace(&pass, stage->layout.workspace.d);
    if (tokens > 0) {
        layer_recompute(&pass, layer, pass_x(&pass, layer), HALF_SECOND);
        tokens_copy(&pass, hidden, f32_at(stream, 0), d);
        tokens_copy(&pass, hidden, view_operand(gradient->x),
                    layer_gradient_at(&pass, layer, VALUE_FFN_NORM));
        tokens_copy(&pass, stage->config.experts_active, view_operand(gradient->weight),
                    layer_gradient_at(&pass, layer, VALUE_CHOSEN_WEIGHT));
        layer_backward(&pass, layer, pass_x(&pass, layer), true, BACKWARD_ALL, HALF_SECOND);
        tokens_copy(&pass, hidden, d, f32_at(stream, 0));
    }
    if (pass.queue.failed)
        slot_give(saved);
    return pass.queue.failed ? -1 : 0;
}

int stage_experts_forward(struct stage *stage, const struct micro_batch *batch, uint32_t block,
                          const struct routed_tokens *in, struct buffer *out, struct saved **saved,
                          struct err *err)
{
    uint32_t tokens = batch->row_start[batch->rows], hidden = stage->config.hidden, layer;
    uint32_t active = stage->config.experts_active;
    struct saved *slot;
    if (apart_check(stage, batch, block, HOLDS_EXPERTS, &layer, err) != 0 ||
        routed_check(stage, in, tokens, true, err) != 0 ||
        boundary_check(stage, &(struct boundary_tensor){.buffer = out}, tokens, 0, true, "its output", err) !=
            0 ||
        blocks_bound(stage, block, block + 1, false, err) != 0 ||
        slot_of_batch(stage, batch, NULL, &slot, err) != 0)
        return -1;
    struct stage_pass pass = pass_of(stage, slot, saved != NULL, err);
    struct operand x = pass_x(&pass, 0);
    if (tokens > 0) {
        tokens_copy(&pass, hidden, view_operand(in->x), x);
        tokens_copy(&pass, active, view_operand(in->chosen), layer_value_at(&pass, layer, VALUE_CHOSEN));
        tokens_copy(&pass, active, view_operand(in->weight),
                    layer_value_at(&pass, layer, VALUE_CHOSEN_WEIGHT));
        layer_forward(&pass, layer, x, HALF_BOTH, f32_at(out, 0));
    }
    if (pass.queue.failed || !saved)
        slot_give(slot);
    if (saved)
        *saved = pass.queue.failed ? NULL : slot;
    return pass.queue.failed ? -1 : 0;
}

int stage_experts_backward(struct stage *stage, const struct micro_batch *batch, struct saved *saved,
                           uint32_t block, struct buffer *grad_in, const struct routed_tokens *gradient,
                           struct err *err)
{
    uint32_t tokens = batch->row_start[batch->rows], hidden = stage->config.hidden, layer;
    if (pass_backward_check(stage, batch, saved, err) != 0)
        return -1;
    int status = 0;
    if (apart_check(stage, batch, block, HOLDS_EXPERTS, &layer, err) != 0 ||
        boundary_check(stage, &(struct boundary_tensor){.buffer = grad_in}, tokens, 0, true,
                       "the gradient of its output", err) != 0 ||
        routed_check(stage, gradient, tokens, false, err) != 0 ||
        blocks_bound(stage, block, block + 1, true, err) != 0)
        status = -1;
    struct stage_pass pass = pass_of(stage, saved, true, err);
    if (status == 0 && tokens > 0) {
        struct operand d = pass_workspace(&pass, stage->layout.workspace.d);
        tokens_copy(&pass, hidden, f32_at(grad_in, 0), d);
        layer_backward(&pass, layer, pass_x(&pass, layer), true, BACKWARD_ALL, HALF_BOTH);
        tokens_copy(&pass, hidden, d, view_operand(gradient->x));
        tokens_copy(&pass, stage->config.experts_active, layer_gradient_at(&pass, layer, VALUE_CHOSEN_WEIGHT),
                    view_operand(gradient->weight));
    }
    slot_give(saved);
    return status != 0 || pass.queue.failed ? -1 : 0;
}
