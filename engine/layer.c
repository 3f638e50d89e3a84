/* One transformer layer of the Llama family: x + attention(norm(x)), then that + swiglu(norm(that)).
 *
 * Names: n = norm(x); qkv = n Wqkv^T, rotated; att = attention(qkv); mid = x + att Wo^T; gate_up = norm(mid)
 * Wgu^T; out = mid + act Wd^T. Saved: x, qkv (rotated), att, lse, mid, gate_up and the adapters' z.
 */
#include "engine/stage_private.h"

#include <math.h>

/* kv_cache, as far as layers see it. */
#include "engine/kv_cache.h"

static float attention_scale(const struct footprint_shape *s)
{
    return (float)(1.0 / sqrt((double)s->head_dim));
}

static void rotate(struct pass *pass, struct operand qkv, bool inverse)
{
    const struct footprint *l = &pass->stage->layout;
    queue_op(&pass->queue, &(struct op){.kind = OP_ROPE,
                                        .rope = {.tokens = pass->tokens,
                                                 .heads = l->model->shape.heads + l->model->shape.kv_heads,
                                                 .head_dim = l->model->shape.head_dim,
                                                 .ldx = l->model->shape.qkv_width,
                                                 .table_rows = pass->stage->options.positions_max,
                                                 .inverse = inverse,
                                                 .x = qkv,
                                                 .positions = pass_meta(pass, l->slot.positions, DTYPE_U32),
                                                 .table = f32_at(pass->stage->rope, 0)}});
}

static void attend(struct pass *pass, const struct layer_save *save)
{
    const struct footprint *l = &pass->stage->layout;
    const struct footprint_shape *s = &l->model->shape;
    queue_op(&pass->queue,
             &(struct op){.kind = OP_ATTENTION,
                          .attention = {.rows = pass->rows,
                                        .tokens = pass->tokens,
                                        .heads = s->heads,
                                        .kv_heads = s->kv_heads,
                                        .head_dim = s->head_dim,
                                        .ld = s->qkv_width,
                                        .scale = attention_scale(s),
                                        .q = save->qkv,
                                        .k = operand_skip(save->qkv, s->q_width),
                                        .v = operand_skip(save->qkv, s->q_width + s->kv_width),
                                        .row_start = pass_meta(pass, l->slot.row_start, DTYPE_U32),
                                        .out = save->att,
                                        .lse = save->lse}});
}

/* Append this call's keys and values to the cache, then attend to all of it. */
static void attend_cached(struct pass *pass, uint32_t layer, const struct layer_save *save)
{
    const struct footprint_shape *s = &pass->stage->layout.model->shape;
    struct operand k = kv_cache_keys(pass->cache, layer), v = kv_cache_values(pass->cache, layer);
    uint64_t begin = (uint64_t)pass->cache_begin * s->kv_width;
    queue_copy(&pass->queue, pass->tokens, s->kv_width, operand_skip(save->qkv, s->q_width), s->qkv_width,
               operand_skip(k, begin), s->kv_width);
    queue_copy(&pass->queue, pass->tokens, s->kv_width, operand_skip(save->qkv, s->q_width + s->kv_width),
               s->qkv_width, operand_skip(v, begin), s->kv_width);
    queue_op(&pass->queue, &(struct op){.kind = OP_ATTENTION_CACHED,
                                        .attention_cached = {.tokens = pass->tokens,
                                                             .begin = pass->cache_begin,
                                                             .heads = s->heads,
                                                             .kv_heads = s->kv_heads,
                                                             .head_dim = s->head_dim,
                                                             .ldq = s->qkv_width,
                                                             .scale = attention_scale(s),
                                                             .q = save->qkv,
                                                             .k = k,
                                                             .v = v,
                                                             .out = save->att}});
}

static void swiglu(struct pass *pass, struct operand gate_up, struct operand act)
{
    queue_op(&pass->queue, &(struct op){.kind = OP_GLU,
                                        .glu = {.tokens = pass->tokens,
                                                   .width = pass->stage->layout.model->shape.ffn,
                                                   .gate_up = gate_up,
                                                   .act = act}});
}

void layer_forward(struct pass *pass, uint32_t layer, struct operand x, struct operand out, bool inner)
{
    const struct stage *stage = pass->stage;
    const struct footprint *l = &stage->layout;
    const struct footprint_shape *s = &l->model->shape;
    struct queue *queue = &pass->queue;
    struct layer_save save = pass_save(pass, layer);
    struct operand norm = pass_workspace(pass, l->workspace.norm),
                   act = pass_workspace(pass, l->workspace.act);
    uint32_t tokens = pass->tokens, hidden = s->hidden;

    queue_norm(queue, stage, tokens, x, layer_weight(stage, layer, l->model->layer.norm1), norm);
    queue_gemm(queue, GEMM_NT, tokens, s->qkv_width, hidden, 1, norm, hidden,
               layer_weight(stage, layer, l->model->layer.qkv), hidden, 0, save.qkv, s->qkv_width);
    lora_forward(pass, layer, GROUP_QKV, norm, save.z[GROUP_QKV], save.qkv, s->qkv_width);
    rotate(pass, save.qkv, false);
    if (pass->cache != NULL)
        attend_cached(pass, layer, &save);
    else
        attend(pass, &save);

    queue_copy(queue, tokens, hidden, x, hidden, save.mid, hidden);
    queue_gemm(queue, GEMM_NT, tokens, hidden, s->q_width, 1, save.att, s->q_width,
               layer_weight(stage, layer, l->model->layer.o), s->q_width, 1, save.mid, hidden);
    lora_forward(pass, layer, GROUP_O, save.att, save.z[GROUP_O], save.mid, hidden);

    queue_norm(queue, stage, tokens, save.mid, layer_weight(stage, layer, l->model->layer.norm2), norm);
    queue_gemm(queue, GEMM_NT, tokens, 2 * s->ffn, hidden, 1, norm, hidden,
               layer_weight(stage, layer, l->model->layer.gate_up), hidden, 0, save.gate_up, 2 * s->ffn);
    lora_forward(pass, layer, GROUP_GATE_UP, norm, save.z[GROUP_GATE_UP], save.gate_up, 2 * s->ffn);
    /* The adapter of `down` keeps z, which needs act: so much is done even for what is saved only. */
    if (inner && l->model->groups[GROUP_DOWN].count == 0)
        return;
    swiglu(pass, save.gate_up, act);
    if (!inner) {
        queue_copy(queue, tokens, hidden, save.mid, hidden, out, hidden);
        queue_gemm(queue, GEMM_NT, tokens, hidden, s->ffn, 1, act, s->ffn,
                   layer_weight(stage, layer, l->model->layer.down), s->ffn, 1, out, hidden);
    }
    lora_forward(pass, layer, GROUP_DOWN, act, save.z[GROUP_DOWN], out, hidden);
}

static void norm_backward(struct pass *pass, struct operand x, struct operand weight, struct operand dy,
                          struct operand dx)
{
    const struct footprint_shape *s = &pass->stage->layout.model->shape;
    queue_op(&pass->queue, &(struct op){.kind = OP_RMSNORM_BACKWARD,
                                        .rmsnorm_backward = {.rows = pass->tokens,
                                                             .width = s->hidden,
                                                             .eps = (float)pass->stage->config.norm_eps,
                                                             .accumulate = true,
                                                             .x = x,
                                                             .weight = weight,
                                                             .dy = dy,
                                                             .dx = dx}});
}

/* d: gradient of out → gradient of mid. */
static void ffn_backward(struct pass *pass, uint32_t layer, const struct layer_save *save, struct operand d)
{
    const struct stage *stage = pass->stage;
    const struct footprint *l = &stage->layout;
    const struct footprint_shape *s = &l->model->shape;
    struct queue *queue = &pass->queue;
    struct operand norm = pass_workspace(pass, l->workspace.norm),
                   dact = pass_workspace(pass, l->workspace.act);
    struct operand weight = layer_weight(stage, layer, l->model->layer.norm2);
    uint32_t tokens = pass->tokens, hidden = s->hidden;

    queue_gemm(queue, GEMM_NN, tokens, s->ffn, hidden, 1, d, hidden,
               layer_weight(stage, layer, l->model->layer.down), s->ffn, 0, dact, s->ffn);
    if (l->model->groups[GROUP_DOWN].count > 0) {
        struct operand act = pass_workspace(pass, l->workspace.act2);
        swiglu(pass, save->gate_up, act);
        lora_backward(pass, layer, GROUP_DOWN, act, save->z[GROUP_DOWN], d, hidden, dact);
    }
    queue_op(queue,
             &(struct op){.kind = OP_GLU_BACKWARD,
                          .glu_backward = {
                              .tokens = tokens, .width = s->ffn, .gate_up = save->gate_up, .dact = dact}});
    /* norm(mid) is needed by the adapters' gradients only; its place then takes its own gradient. */
    struct operand input = norm;
    if (l->model->groups[GROUP_GATE_UP].count > 0) {
        input = dact;
        queue_norm(queue, stage, tokens, save->mid, weight, input);
    }
    queue_gemm(queue, GEMM_NN, tokens, hidden, 2 * s->ffn, 1, save->gate_up, 2 * s->ffn,
               layer_weight(stage, layer, l->model->layer.gate_up), hidden, 0, norm, hidden);
    lora_backward(pass, layer, GROUP_GATE_UP, input, save->z[GROUP_GATE_UP], save->gate_up, 2 * s->ffn, norm);
    norm_backward(pass, save->mid, weight, norm, d);
}

static void attend_backward(struct pass *pass, const struct layer_save *save, struct operand datt,
                            struct operand dqkv)
{
    const struct footprint *l = &pass->stage->layout;
    const struct footprint_shape *s = &l->model->shape;
    struct op op = {.kind = OP_ATTENTION_BACKWARD,
                    .attention_backward = {.rows = pass->rows,
                                           .tokens = pass->tokens,
                                           .heads = s->heads,
                                           .kv_heads = s->kv_heads,
                                           .head_dim = s->head_dim,
                                           .ld = s->qkv_width,
                                           .scale = attention_scale(s),
                                           .q = save->qkv,
                                           .k = operand_skip(save->qkv, s->q_width),
                                           .v = operand_skip(save->qkv, s->q_width + s->kv_width),
                                           .row_start = pass_meta(pass, l->slot.row_start, DTYPE_U32),
                                           .out = save->att,
                                           .lse = save->lse,
                                           .dout = datt,
                                           .delta = pass_workspace(pass, l->workspace.delta),
                                           .dq = dqkv,
                                           .dk = operand_skip(dqkv, s->q_width),
                                           .dv = operand_skip(dqkv, s->q_width + s->kv_width)}};
    queue_op(&pass->queue, &op);
}

/* d: gradient of mid → gradient of x. */
static void attention_backward(struct pass *pass, uint32_t layer, const struct layer_save *save,
                               struct operand x, struct operand d, bool need_input)
{
    const struct stage *stage = pass->stage;
    const struct footprint *l = &stage->layout;
    const struct footprint_shape *s = &l->model->shape;
    struct queue *queue = &pass->queue;
    struct operand norm = pass_workspace(pass, l->workspace.norm),
                   datt = pass_workspace(pass, l->workspace.datt);
    struct operand dqkv = pass_workspace(pass, l->workspace.dqkv);
    struct operand weight = layer_weight(stage, layer, l->model->layer.norm1);
    uint32_t tokens = pass->tokens, hidden = s->hidden;

    queue_gemm(queue, GEMM_NN, tokens, s->q_width, hidden, 1, d, hidden,
               layer_weight(stage, layer, l->model->layer.o), s->q_width, 0, datt, s->q_width);
    lora_backward(pass, layer, GROUP_O, save->att, save->z[GROUP_O], d, hidden, datt);
    attend_backward(pass, save, datt, dqkv);
    rotate(pass, dqkv, true);
    /* gate_up is spent: its place serves for norm(x) and then for the gradient of norm(x). */
    struct operand dnorm = save->gate_up;
    if (l->model->groups[GROUP_QKV].count > 0)
        queue_norm(queue, stage, tokens, x, weight, norm);
    if (need_input)
        queue_gemm(queue, GEMM_NN, tokens, hidden, s->qkv_width, 1, dqkv, s->qkv_width,
                   layer_weight(stage, layer, l->model->layer.qkv), hidden, 0, dnorm, hidden);
    lora_backward(pass, layer, GROUP_QKV, norm, save->z[GROUP_QKV], dqkv, s->qkv_width,
                  need_input ? dnorm : (struct operand){0});
    if (need_input)
        norm_backward(pass, x, weight, dnorm, d);
}

void layer_backward(struct pass *pass, uint32_t layer, struct operand x, bool need_input)
{
    struct layer_save save = pass_save(pass, layer);
    struct operand d = pass_workspace(pass, pass->stage->layout.workspace.d);
    if (pass->stage->options.recompute)
        layer_forward(pass, layer, x, (struct operand){0}, true);
    ffn_backward(pass, layer, &save, d);
    attention_backward(pass, layer, &save, x, d, need_input);
}
