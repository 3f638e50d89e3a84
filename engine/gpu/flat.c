/* Ops on flat arrays and plain rows: the host's side of kernels/flat.k.h. */
#include "engine/gpu/gpu.h"

static int run_add(struct gpu_call *call, const struct op *op)
{
    const struct op_add *o = &op->add;
    struct add_rows_args args = {.x = gpu_at(&o->x),
                                 .y = gpu_at(&o->y),
                                 .rows = o->rows,
                                 .width = o->width,
                                 .ldx = o->ldx,
                                 .ldy = o->ldy,
                                 .alpha = o->alpha};
    args.wide = gpu_fours(args.x, 4, o->ldx) && gpu_fours(args.y, 4, o->ldy);
    return gpu_launch(call, KERNEL_add_rows, gpu_row_blocks(o->rows, o->width, 4), 1, 1, &args, sizeof(args));
}

static int flat_run_copy(struct gpu_call *call, const struct op *op)
{
    const struct op_copy *o = &op->copy;
    struct copy_rows_args args = {.x = gpu_at(&o->x),
                                  .y = gpu_at(&o->y),
                                  .rows = o->rows,
                                  .width = o->width,
                                  .ldx = o->ldx,
                                  .ldy = o->ldy,
                                  .vectors = o->vectors,
                                  .vx = o->vx,
                                  .vy = o->vy};
    args.wide = gpu_fours(args.x, 4, o->ldx) && gpu_fours(args.y, 4, o->ldy);
    if (o->vectors > 1)
        args.wide = args.wide && gpu_fours(0, 4, o->vx) && gpu_fours(0, 4, o->vy);
    return gpu_launch(call, KERNEL_copy_rows, gpu_row_blocks((uint64_t)o->rows * o->vectors, o->width, 4), 1,
                      1, &args, sizeof(args));
}

static int run_bias(struct gpu_call *call, const struct op *op)
{
    const struct op_bias *o = &op->bias;
    struct bias_rows_args args = {
        .x = gpu_at(&o->x), .bias = gpu_at(&o->bias), .rows = o->rows, .width = o->width, .ldx = o->ldx};
    args.wide = gpu_fours(args.x, 4, o->ldx) && gpu_fours(args.bias, 4, 0);
    return gpu_launch(call, KERNEL_bias_rows, gpu_row_blocks(o->rows, o->width, 4), 1, 1, &args,
                      sizeof(args));
}

static int run_scale(struct gpu_call *call, const struct op *op)
{
    const struct op_scale *o = &op->scale;
    struct scale_args args = {
        .x = gpu_at(&o->x), .factor = gpu_at(&o->factor), .count = (uint64_t)o->rows * o->width};
    args.wide = gpu_fours(args.x, 4, 0);
    return gpu_launch(call, KERNEL_scale, gpu_blocks(args.count, 4 * 256), 1, 1, &args, sizeof(args));
}

static bool softcap_fits(const struct gpu *gpu, const struct op *op)
{
    (void)gpu;
    return op->softcap.cap > 0.0f;
}

static int run_softcap(struct gpu_call *call, const struct op *op)
{
    const struct op_softcap *o = &op->softcap;
    struct softcap_args args = {
        .x = gpu_at(&o->x), .count = (uint64_t)o->rows * o->width, .cap = o->cap, .wide = 0};
    args.wide = gpu_fours(args.x, 4, 0);
    return gpu_launch(call, KERNEL_softcap, gpu_blocks(args.count, 4 * 256), 1, 1, &args, sizeof(args));
}

/* The kernels' description of a gate: all are x * sigmoid(z(x)) of clamped values. */
static struct glu_gate flat_gate_of(const struct glu_form *form)
{
    bool clamped = form->kind == GLU_CLAMPED;
    return (struct glu_gate){.gelu = form->kind == GLU_GELU_TANH,
                             .normal = form->kind == GLU_GELU,
                             .square = form->kind == GLU_RELU2,
                             .plain = form->plain,
                             .clamped = clamped,
                             .limit = form->limit,
                             .alpha = clamped ? form->alpha : 1};
}

static bool glu_fits(const struct gpu *gpu, const struct op *op)
{
    (void)gpu;
    return (op->kind == OP_GLU ? op->glu.form.kind : op->glu_backward.form.kind) < GLU_KINDS;
}

static int run_glu(struct gpu_call *call, const struct op *op)
{
    const struct op_glu *o = &op->glu;
    struct glu_args args = {.gate_up = gpu_at(&o->gate_up),
                            .act = gpu_at(&o->act),
                            .tokens = o->tokens,
                            .width = o->width,
                            .gate = flat_gate_of(&o->form),
                            .gate_up_as = gpu_element(o->gate_up.dtype),
                            .act_as = gpu_element(o->act.dtype)};
    args.wide = gpu_fours(args.gate_up, dtype_bytes(o->gate_up.dtype), o->width) &&
                gpu_fours(args.act, dtype_bytes(o->act.dtype), o->width);
    return gpu_launch(call, KERNEL_glu, gpu_row_blocks(o->tokens, o->width, 4), 1, 1, &args, sizeof(args));
}

static int run_glu_backward(struct gpu_call *call, const struct op *op)
{
    const struct op_glu_backward *o = &op->glu_backward;
    struct glu_backward_args args = {.gate_up = gpu_at(&o->gate_up),
                                     .dact = gpu_at(&o->dact),
                                     .tokens = o->tokens,
                                     .width = o->width,
                                     .gate = flat_gate_of(&o->form),
                                     .gate_up_as = gpu_element(o->gate_up.dtype),
                                     .dact_as = gpu_element(o->dact.dtype)};
    args.wide = gpu_fours(args.gate_up, dtype_bytes(o->gate_up.dtype), o->width) &&
                gpu_fours(args.dact, dtype_bytes(o->dact.dtype), o->width);
    return gpu_launch(call, KERNEL_glu_backward, gpu_row_blocks(o->tokens, o->width, 4), 1, 1, &args,
                      sizeof(args));
}

static int run_cast(struct gpu_call *call, const struct op *op)
{
    const struct op_cast *o = &op->cast;
    return gpu_cast(call, gpu_at(&o->x), o->x.dtype, gpu_at(&o->y), o->y.dtype, o->count);
}

int gpu_cast(struct gpu_call *call, gpu_address x, enum dtype from, gpu_address y, enum dtype to,
             uint64_t count)
{
    struct cast_args args = {
        .x = x, .y = y, .count = count, .x_as = gpu_element(from), .y_as = gpu_element(to)};
    args.wide = gpu_fours(x, dtype_bytes(from), 0) && gpu_fours(y, dtype_bytes(to), 0);
    return gpu_launch(call, KERNEL_cast, gpu_blocks(count, 4 * 256), 1, 1, &args, sizeof(args));
}

const struct gpu_op gpu_flat_ops[] = {{.kind = OP_ADD, .run = run_add},
                                      {.kind = OP_COPY, .run = flat_run_copy},
                                      {.kind = OP_BIAS, .run = run_bias},
                                      {.kind = OP_SCALE, .run = run_scale},
                                      {.kind = OP_SOFTCAP, .fits = softcap_fits, .run = run_softcap},
                                      {.kind = OP_GLU, .fits = glu_fits, .run = run_glu},
                                      {.kind = OP_GLU_BACKWARD, .fits = glu_fits, .run = run_glu_backward},
                                      {.kind = OP_CAST, .run = run_cast},
                                      {.run = NULL}};
