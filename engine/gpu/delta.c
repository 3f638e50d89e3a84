/* Gates, the short convolution and the gated delta rule: the host's side of kernels/delta.k.h. */
#include "engine/gpu/gpu.h"

enum {
    CONV_CHUNKS_MAX = 64,
    CONV_CHUNK_TOKENS_MIN = 64,
    CONV_SUMS_MAX = GPU_SCRATCH_BYTES / 8 /* partial sums of weights' gradients */
};
_Static_assert((int)DELTA_SIDE == (int)DELTA_DIM_MAX, "a block's parts hold a state's longest side");
_Static_assert((int)CONV_KERNEL_TAPS == (int)CONV_TAPS, "kernels and op have the same taps");

static struct gate_rows_args gate_args(const struct op_gate *o)
{
    struct gate_rows_args args = {.x = gpu_at(&o->x),
                                  .z = gpu_at(&o->z),
                                  .y = gpu_at(&o->y),
                                  .count = o->rows * o->vectors,
                                  .vectors = o->vectors,
                                  .width = o->width,
                                  .ldz = o->ldz,
                                  .vz = o->vz,
                                  .silu = o->kind == GATE_SILU,
                                  .plain = o->kind == GATE_PLAIN};
    args.wide = gpu_fours(args.x, 4, o->width) && gpu_fours(args.z, 4, o->ldz) && gpu_fours(args.y, 4, o->vz);
    return args;
}

static bool gate_fits(const struct gpu *gpu, const struct op *op)
{
    const struct op_gate *o = op->kind == OP_GATE ? &op->gate : &op->gate_backward.forward;
    (void)gpu;
    return (uint64_t)o->rows * o->vectors <= UINT32_MAX;
}

static int run_gate(struct gpu_call *call, const struct op *op)
{
    const struct gate_rows_args args = gate_args(&op->gate);
    return gpu_launch(call, KERNEL_gate_rows, gpu_row_blocks(args.count, args.width, 4), 1, 1, &args,
                      sizeof(args));
}

static int run_gate_backward(struct gpu_call *call, const struct op *op)
{
    const struct op_gate_backward *o = &op->gate_backward;
    struct gate_rows_backward_args args = {.of = gate_args(&o->forward)};
    args.of.dy = gpu_at(&o->dy);
    args.of.dx = gpu_at(&o->dx);
    args.of.dz = gpu_at(&o->dz);
    args.of.wide = args.of.wide && gpu_fours(args.of.dy, 4, 0) && gpu_fours(args.of.dx, 4, 0) &&
                   gpu_fours(args.of.dz, 4, 0);
    return gpu_launch(call, KERNEL_gate_rows_backward, gpu_row_blocks(args.of.count, args.of.width, 4), 1, 1,
                      &args, sizeof(args));
}

static struct conv_rows_args conv_args(const struct op_conv *o)
{
    struct conv_rows_args args = {.x = gpu_at(&o->x),
                                  .weight = gpu_at(&o->weight),
                                  .bias = gpu_at(&o->bias),
                                  .positions = gpu_at(&o->positions),
                                  .past = gpu_at(&o->past),
                                  .y = gpu_at(&o->y),
                                  .tokens = o->tokens,
                                  .width = o->width,
                                  .ldx = o->ldx,
                                  .ldy = o->ldy,
                                  .taps = o->taps,
                                  .plain = o->plain};
    args.wide = gpu_fours(args.x, 4, o->ldx) && gpu_fours(args.y, 4, o->ldy);
    return args;
}

static int run_conv(struct gpu_call *call, const struct op *op)
{
    const struct conv_past_args args = {.of = conv_args(&op->conv)};
    if (gpu_launch(call, KERNEL_conv_rows, gpu_row_blocks(args.of.tokens, args.of.width, 4), 1, 1, &args.of,
                   sizeof(args.of)) != 0)
        return -1;
    return args.of.past == 0 || args.of.tokens == 0
               ? 0
               : gpu_launch(call, KERNEL_conv_past, gpu_blocks(args.of.width, 256), 1, 1, &args,
                            sizeof(args));
}

static bool conv_fits(const struct gpu *gpu, const struct op *op)
{
    (void)gpu;
    return op_conv_fits(&op->conv);
}

static bool conv_backward_fits(const struct gpu *gpu, const struct op *op)
{
    const struct op_conv *forward = &op->conv_backward.forward;
    (void)gpu;
    return op_conv_fits(forward) && forward->width <= CONV_SUMS_MAX / (CONV_TAPS + 1);
}

/* The weights' gradient: sums over chunks of tokens, which are then added in order. */
static int conv_weights(struct gpu_call *call, const struct op_conv_backward *o, struct conv_rows_args of)
{
    const uint32_t tokens = device_pass_size(of.tokens), sums = of.width * of.taps,
                   all = sums + (o->dbias.buffer ? of.width : 0);
    uint32_t chunks = (uint32_t)gpu_blocks(tokens, CONV_CHUNK_TOKENS_MIN);
    chunks = chunks < CONV_CHUNKS_MAX ? chunks : CONV_CHUNKS_MAX;
    chunks = chunks < CONV_SUMS_MAX / all ? chunks : CONV_SUMS_MAX / all;
    struct conv_weights_args args = {.of = of};
    args.of.chunk_tokens = (uint32_t)gpu_blocks(tokens, chunks);
    args.of.partial = gpu_scratch(call);
    chunks = (uint32_t)gpu_blocks(of.tokens, args.of.chunk_tokens);
    struct column_sums_add_args add = {
        .partial = args.of.partial, .y = gpu_at(&o->dweight), .width = sums, .chunks = chunks};
    args.of.partial_bias = o->dbias.buffer ? args.of.partial + 8ull * chunks * sums : 0;
    if (gpu_launch(call, KERNEL_conv_weights, gpu_blocks(of.width, 256), chunks, 1, &args, sizeof(args)) != 0)
        return -1;
    int status = gpu_launch(call, KERNEL_column_sums_add, gpu_blocks(sums, 256), 1, 1, &add, sizeof(add));
    if (status != 0 || !o->dbias.buffer)
        return status;
    add.partial = args.of.partial_bias;
    add.y = gpu_at(&o->dbias);
    add.width = of.width;
    return gpu_launch(call, KERNEL_column_sums_add, gpu_blocks(of.width, 256), 1, 1, &add, sizeof(add));
}

static int run_conv_backward(struct gpu_call *call, const struct op *op)
{
    const struct op_conv_backward *o = &op->conv_backward;
    struct conv_rows_backward_args args = {.of = conv_args(&o->forward)};
    args.of.dy = gpu_at(&o->dy);
    args.of.dx = gpu_at(&o->dx);
    args.of.lddx = o->lddx;
    args.of.wide = gpu_fours(args.of.x, 4, args.of.ldx) && gpu_fours(args.of.dy, 4, args.of.ldy) &&
                   gpu_fours(args.of.dx, 4, o->lddx);
    if (args.of.tokens == 0 || args.of.width == 0)
        return 0;
    if (o->dweight.buffer && conv_weights(call, o, args.of) != 0)
        return -1;
    return gpu_launch(call, KERNEL_conv_rows_backward, gpu_row_blocks(args.of.tokens, args.of.width, 4), 1, 1,
                      &args, sizeof(args));
}

static struct delta_forward_args delta_args(const struct op_delta *o)
{
    const uint32_t values = o->heads * o->value_dim;
    return (struct delta_forward_args){.q = gpu_at(&o->q),
                                       .k = gpu_at(&o->k),
                                       .v = gpu_at(&o->v),
                                       .a = gpu_at(&o->a),
                                       .b = gpu_at(&o->b),
                                       .decay = gpu_at(&o->decay),
                                       .dt_bias = gpu_at(&o->dt_bias),
                                       .row_start = gpu_at(&o->row_start),
                                       .state = gpu_at(&o->state),
                                       .error = gpu_at(o->scan ? &o->v : &o->error),
                                       .out = gpu_at(&o->out),
                                       .skip = gpu_at(&o->skip),
                                       .scan = o->scan,
                                       .lde = o->scan ? o->ld : values,
                                       .rows = o->rows,
                                       .tokens = o->tokens,
                                       .heads = o->heads,
                                       .key_heads = o->key_heads,
                                       .key_dim = o->key_dim,
                                       .value_dim = o->value_dim,
                                       .ld = o->ld,
                                       .ldg = o->ldg,
                                       .begin = o->begin,
                                       .blocks = (uint32_t)gpu_blocks(o->key_dim, DELTA_LANES)};
}

static bool delta_fits(const struct gpu *gpu, const struct op *op)
{
    (void)gpu;
    return op_delta_fits(op->kind == OP_DELTA ? &op->delta : &op->delta_backward.forward);
}

static int run_delta(struct gpu_call *call, const struct op *op)
{
    const struct delta_forward_args args = delta_args(&op->delta);
    if (args.tokens == 0)
        return 0;
    return gpu_launch(call, KERNEL_delta_forward, gpu_blocks(args.value_dim, DELTA_LANES), args.heads,
                      args.rows, &args, sizeof(args));
}

static int run_delta_backward(struct gpu_call *call, const struct op *op)
{
    const struct op_delta_backward *o = &op->delta_backward;
    struct delta_values_args args = {.of = delta_args(&o->forward)};
    struct delta_forward_args *of = &args.of;
    uint64_t pairs = (uint64_t)of->tokens * of->heads;
    of->ldd = o->ldd;
    of->dout = gpu_at(&o->dout);
    of->eq = gpu_at(&o->work);
    of->ek = of->eq + 4 * pairs * of->key_dim;
    of->flow = of->ek + 4 * pairs * of->key_dim;
    of->dq = gpu_at(&o->dq);
    of->dk = gpu_at(&o->dk);
    of->dv = gpu_at(&o->dv);
    of->da = gpu_at(&o->da);
    of->db = gpu_at(&o->db);
    of->rates = gpu_at(&o->rates);
    of->skips = gpu_at(&o->skips);
    if (of->tokens == 0)
        return 0;
    /* the kernels take the same arguments */
    if (gpu_launch(call, KERNEL_delta_values, gpu_blocks(of->value_dim, DELTA_LANES), of->heads, of->rows,
                   &args, sizeof(args)) != 0 ||
        gpu_launch(call, KERNEL_delta_reads, of->blocks, of->heads, of->rows, &args, sizeof(args)) != 0 ||
        gpu_launch(call, KERNEL_delta_writes, of->blocks, of->heads, of->rows, &args, sizeof(args)) != 0 ||
        gpu_launch(call, KERNEL_delta_join, gpu_blocks((uint64_t)of->tokens * of->key_heads, 256 / 32), 1, 1,
                   &args, sizeof(args)) != 0)
        return -1;
    return gpu_launch(call, KERNEL_delta_decay, gpu_blocks(of->heads, 128), of->rows, 1, &args, sizeof(args));
}

const struct gpu_op gpu_delta_ops[] = {
    {.kind = OP_GATE, .fits = gate_fits, .run = run_gate},
    {.kind = OP_GATE_BACKWARD, .fits = gate_fits, .run = run_gate_backward},
    {.kind = OP_CONV, .fits = conv_fits, .run = run_conv},
    {.kind = OP_CONV_BACKWARD, .fits = conv_backward_fits, .run = run_conv_backward},
    {.kind = OP_DELTA, .fits = delta_fits, .run = run_delta},
    {.kind = OP_DELTA_BACKWARD, .fits = delta_fits, .run = run_delta_backward},
    {.run = NULL}};
