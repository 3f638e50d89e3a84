/* Linear steps: y = x W^T + bias + B (scale * A drop(x)) (Hu et al. 2021, section 4.1), for all members of a
 * step together (such as q, k and v). With experts, each routed row uses the matrices of its expert.
 * The A matrices of a step are stacked, so without dropout one product serves all members. With dropout each
 * member has its own mask (as each module in peft has), which backward draws again instead of saving it. A
 * packed matrix is multiplied in its stored form where the device can do so; otherwise it is unpacked piece
 * by piece into the workspace's panel, and backward adds the products of its pieces one after the other.
 */
#include "engine/stage/stage_private.h"

/* --- one matrix --- */

/* One stored copy of a matrix that is not fp32: its codes (or 16-bit values), and for NF4 its scales. */
struct packed {
    struct operand x, absmax, scales;
};

static struct packed packed_at(const struct block_state *block, const struct layer_tensor *matrix,
                               uint32_t copy)
{
    struct buffer *area = matrix->trained ? block->trained : block->frozen;
    uint64_t at =
        matrix->at + matrix->stride * copy + (matrix->trained ? block->trained_at : block->frozen_at);
    bool nested = matrix->pack == PACK_NF4_DOUBLE;
    struct packed packed = {.x = {.buffer = area, .at = at, .dtype = tensor_at(block, matrix).dtype}};
    if (nested || matrix->pack == PACK_NF4)
        packed.absmax = (struct operand){
            .buffer = area, .at = at + matrix->absmax, .dtype = nested ? DTYPE_U8 : DTYPE_F32};
    if (nested)
        packed.scales = f32_at(area, at + matrix->scales);
    return packed;
}

static struct operand unpack(struct pass *pass, const struct block_state *block,
                             const struct layer_tensor *matrix, uint32_t copy, uint64_t begin, uint64_t count)
{
    struct packed packed = packed_at(block, matrix, copy);
    struct op op = {.kind = OP_UNPACK,
                    .unpack = {.pack = matrix->pack,
                               .begin = begin,
                               .count = count,
                               .total = (uint64_t)matrix->rows * matrix->columns,
                               .x = packed.x,
                               .absmax = packed.absmax,
                               .scales = packed.scales,
                               .y = pass_workspace(pass, pass->stage->layout.workspace.panel)}};
    queue_op(&pass->queue, &op);
    return op.unpack.y;
}

/* How many rows of a packed matrix fit the panel: a multiple of 64, or all rows. */
static uint32_t panel_rows(const struct pass *pass, const struct layer_tensor *matrix)
{
    const struct footprint_workspace *w = &pass->stage->layout.workspace;
    uint64_t rows = (w->logits - w->panel) / (4ull * matrix->columns);
    return rows >= matrix->rows ? matrix->rows : (uint32_t)(rows / 64 * 64);
}

/* Product of x with rows [row, row + rows) of the matrix; with `back`, of the matching columns of x with
 * these rows. */
static void piece_multiply(struct pass *pass, bool back, uint32_t m, struct operand x, uint32_t ldx,
                           struct operand piece, uint32_t row, uint32_t rows, uint32_t columns, float beta,
                           struct operand c, uint32_t ldc)
{
    if (back)
        queue_gemm(&pass->queue, GEMM_NN, m, columns, rows, 1, operand_skip(x, row), ldx, piece, columns,
                   row == 0 ? beta : 1, c, ldc);
    else
        queue_gemm(&pass->queue, GEMM_NT, m, rows, columns, 1, x, ldx, piece, columns, beta,
                   operand_skip(c, row), ldc);
}

/* The product with a packed matrix in its stored form, for devices that unpack inside the product. */
static struct op packed_product(const struct pass *pass, const struct block_state *block,
                                const struct layer_tensor *matrix, bool back, uint32_t m, struct operand x,
                                uint32_t ldx, float beta, struct operand c, uint32_t ldc)
{
    struct packed packed = packed_at(block, matrix, 0);
    return (struct op){.kind = OP_GEMM,
                       .gemm = {.m = m,
                                .n = back ? matrix->columns : matrix->rows,
                                .k = back ? matrix->rows : matrix->columns,
                                .transpose_b = !back,
                                .alpha = 1,
                                .beta = beta,
                                .a = x,
                                .lda = ldx,
                                .b = packed.x,
                                .ldb = matrix->columns,
                                .c = c,
                                .ldc = ldc,
                                .pack = matrix->pack,
                                .absmax = packed.absmax,
                                .scales = packed.scales,
                                .compute = pass->queue.compute}};
}

void matrix_multiply(struct pass *pass, const struct block_state *block, const struct layer_tensor *matrix,
                     bool back, uint32_t m, struct operand x, uint32_t ldx, float beta, struct operand c,
                     uint32_t ldc)
{
    if (matrix->trained || matrix->pack == PACK_F32) {
        piece_multiply(pass, back, m, x, ldx, tensor_at(block, matrix), 0, matrix->rows, matrix->columns,
                       beta, c, ldc);
        return;
    }
    struct op whole = packed_product(pass, block, matrix, back, m, x, ldx, beta, c, ldc);
    if (op_supports(pass->queue.device, &whole)) {
        queue_op(&pass->queue, &whole);
        return;
    }
    uint32_t step = panel_rows(pass, matrix);
    for (uint32_t row = 0; row < matrix->rows; row += step) {
        uint32_t rows = matrix->rows - row < step ? matrix->rows - row : step;
        struct operand piece =
            unpack(pass, block, matrix, 0, (uint64_t)row * matrix->columns, (uint64_t)rows * matrix->columns);
        piece_multiply(pass, back, m, x, ldx, piece, row, rows, matrix->columns, beta, c, ldc);
    }
}

/* --- products of a step, dense or of experts --- */

static uint32_t step_rows(const struct layer_run *run, const struct layer_step *step)
{
    return run->pass->tokens * (step->experts ? run->pass->stage->config.experts_active : 1);
}

/* A product with one matrix, or with those of all experts, `stride` bytes apart. GEMM_TN adds c_g += a^T b.
 */
static void step_gemm(const struct layer_run *run, const struct layer_step *step, enum gemm_order order,
                      uint32_t n, uint32_t k, float alpha, struct operand a, uint32_t lda, struct operand b,
                      uint32_t ldb, float beta, struct operand c, uint32_t ldc, uint64_t stride)
{
    const struct layer_tensor *matrix = &run->plan->tensors.list[step->members[0].matrix];
    uint32_t rows = step_rows(run, step), experts = run->pass->stage->config.experts;
    if (!step->experts && order == GEMM_TN) {
        queue_gemm(&run->pass->queue, order, n, k, rows, alpha, a, lda, b, ldb, beta, c, ldc);
        return;
    }
    if (!step->experts) {
        queue_gemm(&run->pass->queue, order, rows, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
        return;
    }
    bool outer = order == GEMM_TN;
    queue_op(&run->pass->queue, &(struct op){.kind = OP_GEMM_GROUPED,
                                             .gemm_grouped = {.first = matrix->copy_begin,
                                                              .groups = matrix->copies,
                                                              .groups_all = experts,
                                                              .rows = rows,
                                                              .m = outer ? n : 0,
                                                              .n = outer ? k : n,
                                                              .k = outer ? 0 : k,
                                                              .transpose_a = outer,
                                                              .transpose_b = order == GEMM_NT,
                                                              .alpha = alpha,
                                                              .beta = beta,
                                                              .stride = stride / 4,
                                                              .a = a,
                                                              .b = b,
                                                              .c = c,
                                                              .offsets = run_value(run, VALUE_OFFSETS),
                                                              .lda = lda,
                                                              .ldb = ldb,
                                                              .ldc = ldc,
                                                              .compute = run->pass->queue.compute}});
}

/* The grouped product with one member's packed matrices in stored form, for devices that unpack inside the
 * product. */
static struct op experts_product(const struct layer_run *run, const struct layer_step *step,
                                 const struct layer_tensor *matrix, bool back, struct operand x, uint32_t ldx,
                                 float beta, struct operand c, uint32_t ldc)
{
    struct packed packed = packed_at(run->block, matrix, 0);
    return (struct op){.kind = OP_GEMM_GROUPED,
                       .gemm_grouped = {.first = matrix->copy_begin,
                                        .groups = matrix->copies,
                                        .groups_all = run->pass->stage->config.experts,
                                        .rows = step_rows(run, step),
                                        .n = back ? matrix->columns : matrix->rows,
                                        .k = back ? matrix->rows : matrix->columns,
                                        .transpose_b = !back,
                                        .alpha = 1,
                                        .beta = beta,
                                        .stride = matrix->stride,
                                        .a = x,
                                        .b = packed.x,
                                        .c = c,
                                        .offsets = run_value(run, VALUE_OFFSETS),
                                        .lda = ldx,
                                        .ldb = matrix->columns,
                                        .ldc = ldc,
                                        .compute = run->pass->queue.compute,
                                        .pack = matrix->pack,
                                        .absmax = packed.absmax,
                                        .scales = packed.scales}};
}

/* The same for other devices: unpacks each expert's matrix piece by piece. */
static void experts_unpacked(const struct layer_run *run, const struct layer_step *step,
                             const struct layer_tensor *matrix, bool back, struct operand x, uint32_t ldx,
                             float beta, struct operand c, uint32_t ldc)
{
    struct pass *pass = run->pass;
    uint32_t step_size = panel_rows(pass, matrix), columns = matrix->columns;
    uint32_t experts = pass->stage->config.experts;
    for (uint32_t expert = 0; expert < matrix->copies; expert++)
        for (uint32_t row = 0; row < matrix->rows; row += step_size) {
            uint32_t rows = matrix->rows - row < step_size ? matrix->rows - row : step_size;
            struct operand piece =
                unpack(pass, run->block, matrix, expert, (uint64_t)row * columns, (uint64_t)rows * columns);
            queue_op(&pass->queue, &(struct op){.kind = OP_GEMM_GROUPED,
                                                .gemm_grouped = {.first = matrix->copy_begin + expert,
                                                                 .groups = 1,
                                                                 .groups_all = experts,
                                                                 .rows = step_rows(run, step),
                                                                 .n = back ? columns : rows,
                                                                 .k = back ? rows : columns,
                                                                 .transpose_b = !back,
                                                                 .alpha = 1,
                                                                 .beta = back && row > 0 ? 1 : beta,
                                                                 .a = back ? operand_skip(x, row) : x,
                                                                 .b = piece,
                                                                 .c = back ? c : operand_skip(c, row),
                                                                 .offsets = run_value(run, VALUE_OFFSETS),
                                                                 .lda = ldx,
                                                                 .ldb = columns,
                                                                 .ldc = ldc,
                                                                 .compute = pass->queue.compute}});
        }
}

static void experts_multiply(const struct layer_run *run, const struct layer_step *step,
                             const struct layer_tensor *matrix, bool back, struct operand x, uint32_t ldx,
                             float beta, struct operand c, uint32_t ldc)
{
    struct op whole = experts_product(run, step, matrix, back, x, ldx, beta, c, ldc);
    if (matrix->pack != PACK_F32 && op_supports(run->pass->queue.device, &whole))
        queue_op(&run->pass->queue, &whole);
    else
        experts_unpacked(run, step, matrix, back, x, ldx, beta, c, ldc);
}

/* With a range of the experts here, rows of the other experts get no product and must be zero. */
static void others_zero(const struct layer_run *run, const struct layer_step *step, struct operand x,
                        uint32_t width)
{
    const struct layer_tensor *matrix = &run->plan->tensors.list[step->members[0].matrix];
    if (step->experts && matrix->copies < run->pass->stage->config.experts)
        queue_zero(&run->pass->queue, x, (uint64_t)step_rows(run, step) * width);
}

/* Does another member of the group add what all members hold? */
static bool follows(const struct layer_run *run)
{
    return run->pass->stage->options.part.follows;
}

/* Does this stage add the bias? A bias of the layer's output is complete on every member, but only one may
 * add it. */
static bool bias_here(const struct layer_run *run, const struct layer_step *step)
{
    bool output = step->out == VALUE_MID || step->out == VALUE_OUT;
    return step->members[0].bias >= 0 && !(output && follows(run));
}

/* out = x W^T + beta out, or with `back` dx = dout W + beta dx. */
static void base_multiply(struct layer_run *run, const struct layer_step *step, bool back, struct operand x,
                          float beta, struct operand c)
{
    const struct layer_tensor *list = run->plan->tensors.list, *first = &list[step->members[0].matrix];
    uint32_t ldx = back ? step->outputs : step->inputs, ldc = back ? step->inputs : step->outputs;
    if (step->stacked) {
        step_gemm(run, step, back ? GEMM_NN : GEMM_NT, ldc, ldx, 1, x, ldx, tensor_at(run->block, first),
                  step->inputs, beta, c, ldc, first->stride);
        return;
    }
    for (uint32_t m = 0; m < step->member_count; m++) {
        const struct layer_member *member = &step->members[m];
        const struct layer_tensor *matrix = &list[member->matrix];
        struct operand from = back ? operand_skip(x, member->column) : x;
        struct operand to = back ? c : operand_skip(c, member->column);
        float scale = back && m > 0 ? 1 : beta;
        if (step->experts)
            experts_multiply(run, step, matrix, back, from, ldx, scale, to, ldc);
        else
            matrix_multiply(run->pass, run->block, matrix, back, run->pass->tokens, from, ldx, scale, to,
                            ldc);
    }
}

/* --- adapters --- */

static void drop(struct layer_run *run, const struct layer_step *step, const struct layer_member *member,
                 struct operand x, struct operand y)
{
    struct pass *pass = run->pass;
    const struct stage *stage = pass->stage;
    queue_op(&pass->queue,
             &(struct op){.kind = OP_DROPOUT,
                          .dropout = {.tokens = pass->tokens,
                                      .width = step->inputs,
                                      .p = (float)stage->options.lora.dropout,
                                      .seed = stage->options.seed,
                                      .layer = run->layer,
                                      .target = member->site,
                                      .x = x,
                                      .positions = pass_meta(pass, stage->layout.slot.positions, DTYPE_U32),
                                      .row_ids = pass_meta(pass, stage->layout.slot.row_ids, DTYPE_U32),
                                      .step = pass_meta(pass, stage->layout.slot.step, DTYPE_U32),
                                      .y = y}});
}

static void drop_backward(struct layer_run *run, const struct layer_step *step,
                          const struct layer_member *member, struct operand x, struct operand t,
                          struct operand dx)
{
    struct pass *pass = run->pass;
    const struct stage *stage = pass->stage;
    queue_op(&pass->queue,
             &(struct op){
                 .kind = OP_DROPOUT_BACKWARD,
                 .dropout_backward = {.tokens = pass->tokens,
                                      .width = step->inputs,
                                      .p = (float)stage->options.lora.dropout,
                                      .seed = stage->options.seed,
                                      .layer = run->layer,
                                      .target = member->site,
                                      .x = x,
                                      .positions = pass_meta(pass, stage->layout.slot.positions, DTYPE_U32),
                                      .row_ids = pass_meta(pass, stage->layout.slot.row_ids, DTYPE_U32),
                                      .step = pass_meta(pass, stage->layout.slot.step, DTYPE_U32),
                                      .t = t,
                                      .dx = dx}});
}

static float adapter_scale(const struct layer_run *run, const struct layer_member *member)
{
    return (float)lora_scale(&run->pass->stage->options.lora, run->layer, member->site);
}

static uint32_t site_of(const struct layer_tensor *tensor)
{
    uint32_t site = 0;
    while (tensor->target >> site > 1)
        site++;
    return site;
}

static const struct layer_tensor *first_a(const struct layer_run *run, const struct layer_step *step)
{
    for (uint32_t m = 0; m < step->member_count; m++)
        if (step->members[m].rank > 0)
            return &run->plan->tensors.list[step->members[m].a];
    return NULL;
}

/* Do all members have the same scale? Then one product serves them all. */
static bool scales_alike(const struct layer_run *run, const struct layer_step *step)
{
    float scale = 0;
    for (uint32_t m = 0; m < step->member_count; m++) {
        float own = step->members[m].rank > 0 ? adapter_scale(run, &step->members[m]) : scale;
        if (scale != 0 && own != scale)
            return false;
        scale = own;
    }
    return true;
}

/* The input of a step in fp32: x itself, or a copy of it in `room`. */
static struct operand input_in_f32(const struct layer_run *run, const struct layer_step *step,
                                   struct operand x, struct operand room)
{
    if (x.dtype == DTYPE_F32)
        return x;
    queue_cast(&run->pass->queue, (uint64_t)step_rows(run, step) * step->inputs, x, room);
    return room;
}

/* z = scale * A drop(x), for all members. */
static void inner_forward(struct layer_run *run, const struct layer_step *step, struct operand x,
                          struct operand z)
{
    const struct layer_tensor *list = run->plan->tensors.list, *first = first_a(run, step);
    uint32_t width = step->inputs;
    if (!run->pass->dropout && scales_alike(run, step)) {
        float scale = (float)lora_scale(&run->pass->stage->options.lora, run->layer, site_of(first));
        step_gemm(run, step, GEMM_NT, step->ranks, width, scale, x, width, tensor_at(run->block, first),
                  width, 0, z, step->ranks, first->stride);
        return;
    }
    struct operand dropped = {0};
    if (run->pass->dropout) {
        dropped = run_scratch(run, step->forward_scratch);
        x = input_in_f32(run, step, x,
                         operand_skip(dropped, (uint64_t)run->pass->stage->layout.tokens * width));
    }
    for (uint32_t m = 0; m < step->member_count; m++) {
        const struct layer_member *member = &step->members[m];
        struct operand from = x;
        if (member->rank == 0)
            continue;
        if (run->pass->dropout) {
            from = dropped;
            drop(run, step, member, x, from);
        }
        step_gemm(run, step, GEMM_NT, member->rank, width, adapter_scale(run, member), from, width,
                  tensor_at(run->block, &list[member->a]), width, 0, operand_skip(z, member->z), step->ranks,
                  list[member->a].stride);
    }
}

static void adapters_forward(struct layer_run *run, const struct layer_step *step, struct operand x,
                             struct operand out, bool only_z)
{
    struct operand z = run_kept(run, step->z);
    if (step->ranks == 0)
        return;
    others_zero(run, step, z, step->ranks);
    inner_forward(run, step, x, z);
    for (uint32_t m = 0; m < step->member_count && !only_z; m++) {
        const struct layer_member *member = &step->members[m];
        if (member->rank == 0)
            continue;
        const struct layer_tensor *b = &run->plan->tensors.list[member->b];
        step_gemm(run, step, GEMM_NT, member->outputs, member->rank, 1, operand_skip(z, member->z),
                  step->ranks, tensor_at(run->block, b), member->rank, 1, operand_skip(out, member->column),
                  step->outputs, b->stride);
    }
}

/* Operands of a linear step's backward. */
struct linear_gradient {
    struct operand in, dout, din;     /* din is absent if nobody needs it */
    struct operand dz, dropped, wide; /* wide: memory for dout or a dropped input in fp32 */
    bool weights;
};

/* With dropout, for one member: dA += dz^T drop(x), dx += mask * (dz A). */
static void dropped_backward(struct layer_run *run, const struct layer_step *step,
                             const struct layer_member *member, const struct linear_gradient *g)
{
    struct queue *queue = &run->pass->queue;
    uint32_t width = step->inputs;
    const struct layer_tensor *a = &run->plan->tensors.list[member->a];
    struct operand dz = operand_skip(g->dz, member->z);
    /* The mask is drawn once: the gradient passes through it, and its buffer then takes the dropped input. */
    if (g->din.buffer != NULL)
        queue_gemm(queue, GEMM_NN, run->pass->tokens, width, member->rank, 1, dz, step->ranks,
                   tensor_at(run->block, a), width, 0, g->dropped, width);
    drop_backward(run, step, member, g->in, g->dropped, g->din);
    if (g->weights)
        queue_gemm(queue, GEMM_TN, member->rank, width, run->pass->tokens, 1, dz, step->ranks, g->dropped,
                   width, 1, tensor_gradient(run->block, a), width);
}

static void adapters_backward(struct layer_run *run, const struct layer_step *step,
                              const struct linear_gradient *g)
{
    const struct layer_tensor *list = run->plan->tensors.list, *a = first_a(run, step);
    struct operand z = run_kept(run, step->z);
    for (uint32_t m = 0; m < step->member_count; m++) {
        const struct layer_member *member = &step->members[m];
        if (member->rank == 0)
            continue;
        const struct layer_tensor *b = &list[member->b];
        struct operand dout = operand_skip(g->dout, member->column);
        float scale = adapter_scale(run, member);
        if (g->weights)
            step_gemm(run, step, GEMM_TN, member->outputs, member->rank, 1, dout, step->outputs,
                      operand_skip(z, member->z), step->ranks, 1, tensor_gradient(run->block, b),
                      member->rank, b->stride);
        step_gemm(run, step, GEMM_NN, member->rank, member->outputs, scale, dout, step->outputs,
                  tensor_at(run->block, b), member->rank, 0, operand_skip(g->dz, member->z), step->ranks,
                  b->stride);
        if (run->pass->dropout)
            dropped_backward(run, step, member, g);
    }
    if (a == NULL || run->pass->dropout)
        return;
    uint32_t width = step->inputs;
    if (g->weights)
        step_gemm(run, step, GEMM_TN, step->ranks, width, 1, g->dz, step->ranks, g->in, width, 1,
                  tensor_gradient(run->block, a), width, a->stride);
    if (g->din.buffer != NULL)
        step_gemm(run, step, GEMM_NN, width, step->ranks, 1, g->dz, step->ranks, tensor_at(run->block, a),
                  width, 1, g->din, width, a->stride);
}

/* --- a step --- */

/* Selects the dtype to which the operands of a step's products are rounded. Routers stay in fp32 (Fedus et
 * al. 2021, section 2.4). */
static void compute_begin(struct pass *pass, const struct layer_step *step)
{
    if (step->members[0].target == 0)
        pass->queue.compute = DTYPE_F32;
}

static void compute_end(struct pass *pass)
{
    pass->queue.compute = pass->stage->options.compute;
}

/* The buffer in which forward makes its sums. If the output has 16 bits, sums are made in fp32 elsewhere and
 * rounded once. */
static struct operand sums_of(const struct layer_run *run, const struct layer_step *step)
{
    return step->forward_sum == LAYER_ABSENT ? run_value(run, step->out)
                                             : run_scratch(run, step->forward_sum);
}

void linear_forward(struct layer_run *run, const struct layer_step *step, bool only_z)
{
    struct pass *pass = run->pass;
    compute_begin(pass, step);
    struct operand in = run_value(run, step->in), out = {0};
    int32_t bias = step->members[0].bias;
    bool adds = step->add != VALUE_NONE && !follows(run);
    if (!only_z) {
        out = sums_of(run, step);
        others_zero(run, step, out, step->outputs);
        if (adds)
            queue_copy(&pass->queue, pass->tokens, step->outputs, run_value(run, step->add), step->outputs,
                       out, step->outputs);
        base_multiply(run, step, false, in, adds ? 1 : 0, out);
    }
    if (!only_z && bias_here(run, step))
        queue_op(&pass->queue,
                 &(struct op){.kind = OP_BIAS,
                              .bias = {.rows = pass->tokens,
                                       .width = step->outputs,
                                       .ldx = step->outputs,
                                       .x = out,
                                       .bias = tensor_at(run->block, &run->plan->tensors.list[bias])}});
    adapters_forward(run, step, in, out, only_z);
    if (!only_z && step->forward_sum != LAYER_ABSENT)
        queue_cast(&pass->queue, (uint64_t)step_rows(run, step) * step->outputs, out,
                   run_value(run, step->out));
    compute_end(pass);
}

/* Gradients of base matrices and biases that are trained. */
static void base_weights_backward(struct layer_run *run, const struct layer_step *step,
                                  const struct linear_gradient *g)
{
    const struct layer_tensor *list = run->plan->tensors.list, *matrix = &list[step->members[0].matrix];
    int32_t bias = step->members[0].bias;
    if (!matrix->trained)
        return;
    step_gemm(run, step, GEMM_TN, step->outputs, step->inputs, 1, g->dout, step->outputs, g->in, step->inputs,
              1, tensor_gradient(run->block, matrix), step->inputs, matrix->stride);
    if (!bias_here(run, step))
        return;
    struct operand dout = g->dout;
    if (dout.dtype != DTYPE_F32) {
        queue_cast(&run->pass->queue, (uint64_t)run->pass->tokens * step->outputs, dout, g->wide);
        dout = g->wide;
    }
    queue_op(&run->pass->queue, &(struct op){.kind = OP_COLUMN_SUM,
                                             .column_sum = {.rows = run->pass->tokens,
                                                            .width = step->outputs,
                                                            .ldx = step->outputs,
                                                            .x = dout,
                                                            .y = tensor_gradient(run->block, &list[bias])}});
}

/* The gradient of the step's output. If backward is split, the first half saves it in the micro-batch's slot
 * for the second half. */
static struct operand output_gradient(struct layer_run *run, const struct layer_step *step,
                                      enum tape_kind kind)
{
    if (kind == TAPE_BACKWARD || step->dout == LAYER_ABSENT)
        return run_gradient(run, step->out);
    struct operand place = run_kept(run, step->dout);
    if (kind == TAPE_BACKWARD_INPUT)
        queue_copy(&run->pass->queue, run->pass->tokens, run->plan->width[step->out],
                   run_gradient(run, step->out), run->plan->width[step->out], place,
                   run->plan->width[step->out]);
    return place;
}

void linear_backward(struct layer_run *run, const struct layer_step *step, const struct tape_entry *entry,
                     bool need_input)
{
    uint64_t dz = 4ull * step->ranks * (step->experts ? run->pass->stage->config.experts_active : 1);
    uint64_t dropped = run->pass->dropout && step->ranks > 0 ? 4ull * step->inputs : 0;
    bool weights = entry->kind != TAPE_BACKWARD_INPUT && step->trains;
    bool input = entry->kind != TAPE_BACKWARD_WEIGHT && need_input;
    struct linear_gradient g = {.dout = output_gradient(run, step, entry->kind),
                                .dz = run_scratch(run, entry->scratch),
                                .dropped = run_scratch(run, entry->scratch + dz),
                                .wide = run_scratch(run, entry->scratch + dz + dropped),
                                .weights = weights};
    struct operand split = {0};
    bool apart = step->split_in != LAYER_ABSENT && entry->kind != TAPE_BACKWARD;
    compute_begin(run->pass, step);
    if (apart) {
        split = run_kept(run, step->split_in);
        split.dtype = run->plan->sixteen[step->in] ? run->pass->stage->options.compute : DTYPE_F32;
    }
    if (apart && entry->kind == TAPE_BACKWARD_WEIGHT)
        g.in = split;
    else if (weights || run->pass->dropout || apart)
        g.in = run_value(run, step->in);
    if (apart && entry->kind == TAPE_BACKWARD_INPUT)
        queue_cast(&run->pass->queue, (uint64_t)run->pass->tokens * run->plan->width[step->in], g.in, split);
    if (dropped > 0)
        g.in = input_in_f32(run, step, g.in, g.wide);
    if (input) {
        g.din = run_gradient(run, step->in);
        if (!entry->accumulate)
            others_zero(run, step, g.din, step->inputs);
        base_multiply(run, step, true, g.dout, entry->accumulate ? 1 : 0, g.din);
    }
    if (weights)
        base_weights_backward(run, step, &g);
    if (step->ranks > 0 && (weights || input)) {
        others_zero(run, step, g.dz, step->ranks);
        adapters_backward(run, step, &g);
    }
    compute_end(run->pass);
}
