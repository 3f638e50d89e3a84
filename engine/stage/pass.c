/* Runs a micro-batch through a stage: the blocks forward, and backward in reverse. */
#include "engine/stage/beside.h"
#include "engine/stage/boundary.h"
#include "engine/stage/head.h"
#include "engine/stage/layer.h"
#include "engine/stage/outside.h"
#include "engine/stage/recorded.h"
#include "engine/stage/slot.h"
#include "engine/stage/table_adapter.h"

/* Does the stage have only a part of this layer? */
static bool layer_is_part(const struct stage *stage, uint32_t block)
{
    const struct layer_part *part = &stage->options.part;
    bool cut = part->follows || part->kv_head_end > 0 || part->column_end > 0 || part->expert_end > 0;
    bool apart = part->holds == HOLDS_EXPERTS ||
                 (part->holds == HOLDS_NO_EXPERTS && model_layer_is_sparse(&stage->config, block - 1));
    return cut || apart;
}

static int pass_range_check(const struct stage *stage, uint32_t begin, uint32_t end, struct err *err)
{
    const struct stage_options *o = &stage->options;
    for (uint32_t b = begin > 1 ? begin : 1; b < end && b <= stage->config.layers; b++)
        if (layer_is_part(stage, b))
            return err_set(err, ERR_INVALID,
                           "stage of blocks %u..%u: block %u is here in part, to be run in halves",
                           o->block_begin, o->block_end, b);
    if (begin >= o->block_begin && end <= o->block_end && begin < end)
        return 0;
    return err_set(err, ERR_INVALID, "stage of blocks %u..%u: blocks %u..%u are asked of it", o->block_begin,
                   o->block_end, begin, end);
}

/* The embedding of the tokens, with noise where the method asks for it. */
static void embed_tokens(struct stage_pass *pass, struct operand out)
{
    const struct stage *stage = pass->stage;
    const struct block_state *block = stage_block(stage, 0);
    const struct layer_tensor *table = &block->tensors->list[0];
    const struct footprint_slot *l = &stage->layout.slot;
    queue_op(&pass->queue, &(struct op){.kind = OP_EMBED,
                                        .embed = {.tokens = pass->tokens,
                                                  .hidden = stage->config.hidden,
                                                  .vocab = stage->config.vocab,
                                                  .pack = table->trained ? PACK_F32 : table->pack,
                                                  .scale = (float)stage->config.embed_scale,
                                                  .ids = pass_meta(pass, l->ids, DTYPE_I32),
                                                  .table = tensor_at(block, table),
                                                  .out = out}});
    embed_adapter_forward(pass, out);
    if (pass->train && stage->options.embed_noise > 0)
        queue_op(&pass->queue,
                 &(struct op){.kind = OP_EMBED_NOISE,
                              .embed_noise = {.rows = pass->rows,
                                              .tokens = pass->tokens,
                                              .width = stage->config.hidden,
                                              .alpha = (float)stage->options.embed_noise,
                                              .seed = stage->options.seed,
                                              .x = out,
                                              .row_start = pass_meta(pass, l->row_start, DTYPE_U32),
                                              .row_ids = pass_meta(pass, l->row_ids, DTYPE_U32),
                                              .step = pass_meta(pass, l->step, DTYPE_U32)}});
}

void pass_embed(struct stage_pass *pass, struct operand out)
{
    embed_tokens(pass, out);
    embedding_forward(pass, out);
}

/* Adds the embedding's gradient, from the gradient d of its output. */
static void embed_backward(struct stage_pass *pass, struct operand d)
{
    const struct stage *stage = pass->stage;
    const struct block_state *block = stage_block(stage, 0);
    const struct layer_tensor *table = &block->tensors->list[0];
    if (stage->layout.own_learns) {
        struct operand x = pass_workspace(pass, stage->layout.workspace.embedded);
        embed_tokens(pass, x);
        embedding_backward(pass, x, table->trained || block->tensors->adapter > 0);
    }
    embed_adapter_backward(pass, d);
    if (table->trained)
        queue_op(&pass->queue,
                 &(struct op){.kind = OP_EMBED_BACKWARD,
                              .embed_backward = {.tokens = pass->tokens,
                                                 .hidden = stage->config.hidden,
                                                 .vocab = stage->config.vocab,
                                                 .scale = (float)stage->config.embed_scale,
                                                 .ids = pass_meta(pass, stage->layout.slot.ids, DTYPE_I32),
                                                 .dout = d,
                                                 .dtable = tensor_gradient(block, table)}});
}

void pass_layers(const struct stage *stage, uint32_t begin, uint32_t end, uint32_t *first, uint32_t *after)
{
    uint32_t layers = stage->config.layers, offset = stage->layout.layer_begin + 1;
    begin = begin > 1 ? begin : 1;
    end = end <= layers + 1 ? end : layers + 1;
    *first = begin - offset;
    *after = end > begin ? end - offset : *first;
}

/* Where the input of blocks [begin, end) goes, whose output goes to `out`. */
static struct operand forward_entry(const struct stage_pass *pass, uint32_t begin, uint32_t end,
                                    struct operand out, bool keep)
{
    uint32_t first, after;
    pass_layers(pass->stage, begin, end, &first, &after);
    return first < after ? pass_x(pass, keep ? first : 0) : out;
}

/* Moves the boundary tensor in front of block `block`, and the values that lie behind it in the boundary's
 * buffer (beside.h), into the pass. tensors_write moves them out of it. */
static void tensors_read(struct stage_pass *pass, const struct boundary_tensor *in, uint32_t block,
                         bool gradient, struct operand x)
{
    boundary_read(pass, in, x);
    beside_move(pass, in, block, gradient, true);
}

static void tensors_write(struct stage_pass *pass, struct operand x, uint32_t block, bool gradient,
                          const struct boundary_tensor *out)
{
    boundary_write(pass, x, out);
    beside_move(pass, out, block, gradient, false);
}

/* Run embedding and layers; the result goes to `out` (boundary_end). keep: each layer's input is saved. */
static void blocks_forward(struct stage_pass *pass, uint32_t begin, uint32_t end,
                           const struct boundary_tensor *in, struct operand out, bool keep)
{
    uint32_t first, after;
    pass_layers(pass->stage, begin, end, &first, &after);
    struct operand entry = forward_entry(pass, begin, end, out, keep);
    if (begin == 0)
        pass_embed(pass, entry);
    else if (!pass->padded)
        tensors_read(pass, in, begin, false, entry);
    for (uint32_t i = first; i < after; i++) {
        struct operand x = pass_x(pass, keep ? i : 0);
        struct operand next = i + 1 == after ? out : pass_x(pass, keep ? i + 1 : 0);
        layer_forward(pass, i, x, HALF_BOTH, next);
    }
}

struct stage_pass pass_of(struct stage *stage, struct saved *slot, bool train, struct err *err)
{
    return (struct stage_pass){
        .stage = stage,
        .queue = {.device = stage->device, .err = err, .compute = stage->options.compute},
        .slot = slot,
        .tokens = slot->tokens,
        .rows = slot->rows,
        .train = train,
        .counting = train && slot->router_scale != 0,
        .dropout = train && stage->options.lora.dropout > 0,
    };
}

/* From here on the pass has its slot's padding. */
static void pass_pad(struct stage_pass *pass)
{
    pass->padded = pass->slot->padded;
    pass->tokens = pass->slot->tokens_padded;
    pass->rows = pass->slot->rows + pass->padded;
}

/* A padded pass begins behind the copy of the tensor that enters, and ends before that of the tensor that
 * leaves, so its ops do not depend on where those are. */
static void padded_enter(struct stage_pass *pass, const struct boundary_tensor *in, uint32_t block,
                         bool gradient, struct operand x)
{
    struct stage_pass own = *pass;
    const uint64_t hidden = pass->stage->config.hidden, tokens = pass->slot->tokens;
    own.tokens = pass->slot->tokens;
    tensors_read(&own, in, block, gradient, x);
    beside_pad(&own, gradient);
    if (pass->tokens > tokens)
        queue_zero(&own.queue, operand_skip(x, tokens * hidden), (pass->tokens - tokens) * hidden);
    pass->queue.failed = own.queue.failed;
}

static void padded_leave(struct stage_pass *pass, struct operand x, uint32_t block, bool gradient,
                         const struct boundary_tensor *out)
{
    struct stage_pass own = *pass;
    own.tokens = pass->slot->tokens;
    tensors_write(&own, x, block, gradient, out);
    pass->queue.failed = own.queue.failed;
}

/* Number of counts, or of sums, that a micro-batch's rows have for the load-balancing loss; 0 without that
 * loss. */
static uint64_t router_values(const struct stage *stage, const struct micro_batch *batch, bool train)
{
    return train && batch->router_scale != 0 ? (uint64_t)batch->rows * stage->config.experts : 0;
}

/* The load-balancing loss is taken over all layers of a row together. Counts and sums travel forward behind
 * the boundary tensor, and each stage adds its own, so the last stage has those of all layers. The counts
 * travel back with the gradient, because every router's gradient needs the counts of all layers. */
static void router_copy(struct stage_pass *pass, const struct boundary_tensor *boundary, bool arrives,
                        uint32_t arrays)
{
    const struct stage *stage = pass->stage;
    uint32_t values = pass->rows * stage->config.experts;
    struct operand at = f32_at(boundary->buffer, boundary_bytes(stage, boundary, pass->tokens));
    for (uint32_t i = 0; i < arrays && values > 0 && pass->counting; i++) {
        uint64_t each = 4ull * stage->options.rows_max * stage->config.experts;
        struct operand kept = f32_at(pass->slot->buffer, stage->layout.slot.router + i * each);
        struct operand travels = operand_skip(at, (uint64_t)i * values);
        if (arrives)
            queue_copy(&pass->queue, 1, values, travels, values, kept, values);
        else
            queue_copy(&pass->queue, 1, values, kept, values, travels, values);
    }
}

enum { ROUTER_COUNTS = 1, ROUTER_BOTH = 2 };

/* Prepares the router's counts and sums for the load-balancing loss. A stage that begins behind block 0 takes
 * those that came with the boundary tensor; the first stage sets them to zero. */
static void router_begin(struct stage_pass *pass, const struct boundary_tensor *in)
{
    const struct stage *stage = pass->stage;
    if (stage->options.block_begin > 0)
        router_copy(pass, in, true, ROUTER_BOTH);
    else if (pass->counting && stage->config.experts > 0)
        queue_zero(&pass->queue, f32_at(pass->slot->buffer, stage->layout.slot.router),
                   2ull * stage->options.rows_max * stage->config.experts);
}

static void router_end(struct stage_pass *pass)
{
    const struct stage *stage = pass->stage;
    const struct footprint *l = &stage->layout;
    uint64_t sums = l->slot.router + 4ull * stage->options.rows_max * stage->config.experts;
    if (!pass->counting || stage->config.experts == 0)
        return;
    queue_op(&pass->queue,
             &(struct op){.kind = OP_ROUTER_LOSS,
                          .router_loss = {.rows = pass->rows,
                                          .experts = stage->config.experts,
                                          .layers = l->model->sparse_before[stage->config.layers],
                                          .row_start = pass_meta(pass, l->slot.row_start, DTYPE_U32),
                                          .counts = f32_at(pass->slot->buffer, l->slot.router),
                                          .sums = f32_at(pass->slot->buffer, sums),
                                          .loss = {.buffer = stage->scalars, .at = 8, .dtype = DTYPE_F64}}});
}

/* Checks that the areas which forward uses are bound. A forward that saves already adds to the head's
 * gradients, so with the head these must be bound, too. */
static int forward_bound(const struct stage *stage, uint32_t begin, uint32_t end, bool saves, struct err *err)
{
    uint32_t head = stage->config.layers + 1;
    if (blocks_bound(stage, begin, end, false, err) != 0)
        return -1;
    return saves && end == head + 1 ? blocks_bound(stage, head, end, true, err) : 0;
}

static void forward_queue(struct stage_pass *pass, const struct pass_range *range)
{
    const struct stage *stage = pass->stage;
    bool head = stage_has_head(stage, range->end), last = range->end == stage->options.block_end;
    struct boundary_tensor enters = boundary_in(stage, range->begin, range->in),
                           leaves = boundary_out(stage, range->end, range->out);
    struct operand end = boundary_end(pass, range->end, &leaves);
    if (range->begin == stage->options.block_begin)
        router_begin(pass, &enters);
    blocks_forward(pass, range->begin, range->end, &enters, end, pass->train);
    if (!head && leaves.dtype != DTYPE_F32 && !pass->padded)
        boundary_write(pass, end, &leaves);
    if (!head && !pass->padded)
        beside_move(pass, &leaves, range->end, false, false);
    if (last && !head)
        router_copy(pass, &leaves, false, ROUTER_BOTH);
    if (head)
        router_end(pass);
}

/* The head reads the labelled positions alone, so its pass is the same one for any number of tokens. */
static void head_queue(struct stage_pass *pass, const struct pass_range *range)
{
    const struct boundary_tensor none = {0};
    struct stage_pass head = *pass;
    if (pass->padded)
        head.tokens = pass->stage->layout.tokens;
    head_forward(&head, boundary_end(pass, range->end, &none), pass->train);
    pass->queue.failed = head.queue.failed;
}

static void forward_run(struct stage_pass *pass, const struct pass_range *range)
{
    const bool head = stage_has_head(pass->stage, range->end);
    struct boundary_tensor enters = boundary_in(pass->stage, range->begin, range->in),
                           leaves = boundary_out(pass->stage, range->end, range->out);
    pass_pad(pass);
    const struct operand end = boundary_end(pass, range->end, &leaves);
    if (pass->padded && range->begin > 0)
        padded_enter(pass, &enters, range->begin, false,
                     forward_entry(pass, range->begin, range->end, end, pass->train));
    pass_run(pass, range, forward_queue);
    if (pass->padded && !head)
        padded_leave(pass, end, range->end, false, &leaves);
    if (head && pass->slot->labelled > 0)
        pass_run(pass, &(struct pass_range){.kind = PASS_HEAD, .end = range->end}, head_queue);
}

int stage_forward_blocks(struct stage *stage, const struct micro_batch *batch, uint32_t block_begin,
                         uint32_t block_end, struct buffer *in, struct buffer *out, struct saved **saved,
                         struct err *err)
{
    uint32_t tokens = batch->row_start[batch->rows];
    bool head = stage_has_head(stage, block_end), first = block_begin == stage->options.block_begin,
         last = block_end == stage->options.block_end;
    uint64_t tail = ROUTER_BOTH * router_values(stage, batch, saved != NULL);
    struct boundary_tensor enters = boundary_in(stage, block_begin, in),
                           leaves = boundary_out(stage, block_end, out);
    struct saved *slot, *earlier = saved ? *saved : NULL;
    if (saved && stage->options.mode != STAGE_TRAIN)
        return err_set(err, ERR_INVALID, "a stage made for inference saves nothing for backward");
    if (!earlier && !first && tail > 0)
        return err_set(
            err, ERR_UNSUPPORTED,
            "stage of blocks %u..%u: the load-balancing loss of a micro-batch that enters at block %u",
            stage->options.block_begin, stage->options.block_end, block_begin);
    if (pass_range_check(stage, block_begin, block_end, err) != 0 ||
        boundary_check(stage, &enters, tokens,
                       (first ? tail : 0) + beside_values(stage, block_begin, tokens, false), block_begin > 0,
                       "its input", err) != 0 ||
        boundary_check(stage, &leaves, tokens,
                       (last ? tail : 0) + beside_values(stage, block_end, tokens, false), !head,
                       "its output", err) != 0 ||
        forward_bound(stage, block_begin, block_end, saved != NULL, err) != 0 ||
        slot_of_batch(stage, batch, earlier, &slot, err) != 0)
        return -1;
    slot->entry = earlier ? slot->entry : block_begin;
    struct stage_pass pass = pass_of(stage, slot, saved != NULL, err);
    if (tokens > 0)
        forward_run(&pass,
                    &(struct pass_range){
                        .kind = PASS_FORWARD, .begin = block_begin, .end = block_end, .in = in, .out = out});
    if (pass.queue.failed || !saved)
        slot_give(slot);
    if (saved)
        *saved = pass.queue.failed ? NULL : slot;
    if (pass.queue.failed)
        return -1;
    stage->labelled += head ? slot->labelled : 0;
    return 0;
}

int stage_forward(struct stage *stage, const struct micro_batch *batch, struct buffer *in, struct buffer *out,
                  struct saved **saved, struct err *err)
{
    if (saved)
        *saved = NULL;
    return stage_forward_blocks(stage, batch, stage->options.block_begin, stage->options.block_end, in, out,
                                saved, err);
}

static bool embedding_learns(const struct stage *stage)
{
    return stage_block(stage, 0)->tensors->parameters > 0;
}

static void blocks_backward(struct stage_pass *pass, const struct pass_range *range,
                            const struct boundary_tensor *grad_in, const struct boundary_tensor *grad_out)
{
    const struct stage *stage = pass->stage;
    uint32_t begin = range->begin, end = range->end, first, after;
    struct operand d = pass_workspace(pass, stage->layout.workspace.d);
    bool learns = begin == 0 && embedding_learns(stage);
    enum backward_part part = stage->options.split ? BACKWARD_OF_INPUT : BACKWARD_ALL;
    if (stage_has_head(stage, end))
        beside_move(pass, grad_in, end - 1, true, true);
    else if (grad_in->buffer && !pass->padded)
        tensors_read(pass, grad_in, end, true, d);
    pass_layers(stage, begin, end, &first, &after);
    for (uint32_t i = after; i-- > first;) {
        layer_recompute(pass, i, pass_x(pass, i), HALF_BOTH);
        layer_backward(pass, i, pass_x(pass, i), i > first || grad_out->buffer || learns, part, HALF_BOTH);
    }
    if (learns)
        embed_backward(pass, d);
    if (grad_out->buffer && !pass->padded)
        tensors_write(pass, d, begin, true, grad_out);
}

static void backward_queue(struct stage_pass *pass, const struct pass_range *range)
{
    const struct stage *stage = pass->stage;
    bool head = stage_has_head(stage, range->end);
    struct boundary_tensor enters = boundary_out(stage, range->end, range->in),
                           leaves = boundary_in(stage, range->begin, range->out);
    if (range->end == stage->options.block_end && !head)
        router_copy(pass, &enters, true, ROUTER_COUNTS);
    blocks_backward(pass, range, &enters, &leaves);
    if (range->begin == stage->options.block_begin && range->out)
        router_copy(pass, &leaves, false, ROUTER_COUNTS);
}

static void backward_run(struct stage_pass *pass, const struct pass_range *range)
{
    const struct stage *stage = pass->stage;
    struct boundary_tensor enters = boundary_out(stage, range->end, range->in),
                           leaves = boundary_in(stage, range->begin, range->out);
    struct operand d = pass_workspace(pass, stage->layout.workspace.d);
    pass_pad(pass);
    if (stage_has_head(stage, range->end))
        head_backward(pass);
    else if (pass->padded && range->in)
        padded_enter(pass, &enters, range->end, true, d);
    pass_run(pass, range, backward_queue);
    if (pass->padded && range->out)
        padded_leave(pass, d, range->begin, true, &leaves);
}

static void weights_queue(struct stage_pass *pass, const struct pass_range *range)
{
    uint32_t first, after;
    pass_layers(pass->stage, range->begin, range->end, &first, &after);
    for (uint32_t i = after; i-- > first;)
        layer_backward(pass, i, pass_x(pass, i), true, BACKWARD_OF_WEIGHT, HALF_BOTH);
}

int pass_backward_check(const struct stage *stage, const struct micro_batch *batch, struct saved *saved,
                        struct err *err)
{
    if (!saved || !saved->taken || saved->stage != stage)
        return err_set(err, ERR_INVALID, "micro-batch %u: backward without its forward", batch->index);
    if (batch->row_start[batch->rows] == saved->tokens && batch->rows == saved->rows &&
        batch->step == saved->step)
        return 0;
    slot_give(saved);
    return err_set(err, ERR_INVALID, "micro-batch %u: backward of another micro-batch than forward's",
                   batch->index);
}

int stage_backward_blocks(struct stage *stage, const struct micro_batch *batch, struct saved *saved,
                          uint32_t block_begin, uint32_t block_end, struct buffer *grad_in,
                          struct buffer *grad_out, struct err *err)
{
    bool head = stage_has_head(stage, block_end), first = block_begin == stage->options.block_begin,
         last = block_end == stage->options.block_end;
    bool needs = !head && !(block_end == 1 && !grad_in && !embedding_learns(stage));
    uint32_t tokens = batch->row_start[batch->rows];
    uint64_t tail = ROUTER_COUNTS * router_values(stage, batch, true);
    struct boundary_tensor enters = boundary_out(stage, block_end, grad_in),
                           leaves = boundary_in(stage, block_begin, grad_out);
    if (pass_backward_check(stage, batch, saved, err) != 0)
        return -1;
    if (pass_range_check(stage, block_begin, block_end, err) != 0 ||
        boundary_check(stage, &enters, tokens,
                       (last ? tail : 0) + beside_values(stage, block_end, tokens, true), needs,
                       "the gradient of its output", err) != 0 ||
        boundary_check(stage, &leaves, tokens,
                       (first ? tail : 0) + beside_values(stage, block_begin, tokens, true), grad_out != NULL,
                       "the gradient of its input", err) != 0 ||
        blocks_bound(stage, block_begin, block_end, true, err) != 0) {
        slot_give(saved);
        return -1;
    }
    struct stage_pass pass = pass_of(stage, saved, true, err);
    if (tokens > 0)
        backward_run(&pass, &(struct pass_range){.kind = PASS_BACKWARD,
                                                 .begin = block_begin,
                                                 .end = block_end,
                                                 .in = grad_in,
                                                 .out = grad_out});
    if (pass.queue.failed || (block_begin == saved->entry && !stage->options.split))
        slot_give(saved);
    return pass.queue.failed ? -1 : 0;
}

int stage_backward_weights(struct stage *stage, const struct micro_batch *batch, struct saved *saved,
                           uint32_t block_begin, uint32_t block_end, struct err *err)
{
    if (!stage->options.split)
        return err_set(err, ERR_INVALID, "a stage that was not made for backward in two halves");
    if (pass_backward_check(stage, batch, saved, err) != 0)
        return -1;
    if (pass_range_check(stage, block_begin, block_end, err) != 0 ||
        blocks_bound(stage, block_begin, block_end, true, err) != 0) {
        slot_give(saved);
        return -1;
    }
    struct stage_pass pass = pass_of(stage, saved, true, err);
    pass_pad(&pass);
    if (saved->tokens > 0)
        pass_run(&pass,
                 &(struct pass_range){.kind = PASS_BACKWARD_WEIGHTS, .begin = block_begin, .end = block_end},
                 weights_queue);
    if (pass.queue.failed || block_begin == saved->entry)
        slot_give(saved);
    return pass.queue.failed ? -1 : 0;
}

int stage_backward(struct stage *stage, const struct micro_batch *batch, struct saved *saved,
                   struct buffer *grad_in, struct buffer *grad_out, struct err *err)
{
    const struct stage_options *o = &stage->options;
    if (stage_backward_blocks(stage, batch, saved, o->block_begin, o->block_end, grad_in, grad_out, err) != 0)
        return -1;
    return o->split ? stage_backward_weights(stage, batch, saved, o->block_begin, o->block_end, err) : 0;
}

bool stage_saved_taken(const struct saved *saved)
{
    return saved->taken;
}

void stage_saved_release(struct saved *saved)
{
    if (saved)
        slot_give(saved);
}

int stage_logits(struct stage *stage, const struct micro_batch *batch, struct buffer *in, float *logits,
                 struct err *err)
{
    const struct footprint *l = &stage->layout;
    uint32_t tokens = batch->row_start[batch->rows], vocab = l->model->shape.vocab;
    struct boundary_tensor enters = boundary_in(stage, stage->options.block_begin, in);
    struct saved *slot;
    uint64_t beside = beside_values(stage, stage->options.block_begin, tokens, false);
    if (!l->has_head)
        return err_set(err, ERR_INVALID, "logits are asked of a stage without the head");
    if (boundary_check(stage, &enters, tokens, beside, !l->has_embedding, "its input", err) != 0 ||
        blocks_bound(stage, stage->options.block_begin, stage->options.block_end, false, err) != 0 ||
        slot_take(stage, batch, &slot, err) != 0)
        return -1;
    struct stage_pass pass = pass_of(stage, slot, false, err);
    struct operand end = pass_workspace(&pass, l->workspace.d);
    if (tokens > 0)
        blocks_forward(&pass, stage->options.block_begin, stage->options.block_end, &enters, end, false);
    slot_give(slot);
    for (uint32_t at = 0; at < tokens && !pass.queue.failed; at += l->head_rows) {
        uint32_t rows = tokens - at < l->head_rows ? tokens - at : l->head_rows;
        head_logits(&pass, operand_skip(end, (uint64_t)at * l->model->shape.hidden), rows);
        if (pass.queue.failed ||
            buffer_read(stage->workspace, l->workspace.logits, logits + (size_t)at * vocab,
                        4ull * rows * vocab, err) != 0 ||
            device_sync(stage->device, err) != 0)
            return -1;
    }
    return pass.queue.failed ? -1 : 0;
}
