/* Linear steps: y = x W^T + bias + B (scale * A drop(x)) (Hu et al. 2021, section 4.1), for all members of a
 * step together (such as q, k and v). With experts, each routed row uses the matrices of its expert.
 * The A matrices of a step are stacked, so without dropout one product serves all members. With dropout each
 * member has its own mask (as each module in peft has), which backward draws again instead of saving it. A
 * packed matrix is multiplied in its stored form where the device can do so; otherwise it is unpacked piece
 * by piece into the workspace's panel, and backward adds the products of its pieces one after the other.
 */
#include "engine/stage/linear.h"

/* --- products with one matrix --- */

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

static struct operand linear_unpack(struct stage_pass *pass, const struct block_state *block,
                                    const struct layer_tensor *matrix, uint32_t copy, uint64_t begin,
                                    uint64_t count)
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
static uint32_t panel_rows(const struct stage_pass *pass, const struct layer_tensor *matrix)
{
    const struct footprint_workspace *w = &pass->stage->layout.workspace;
    uint64_t rows = (w->logits - w->panel) / (4ull * matrix->columns);
    return rows >= matrix->rows ? matrix->rows : (uint32_t)(rows / 64 * 64);
}

static float product_alpha(const struct matrix_product *p)
{
    return p->alpha != 0 ? p->alpha : 1;
}

/* Multiplies with a piece of the matrix: its rows [row, row + rows), which are in `piece`. Forward gives the
 * matching columns of c. With `back` the piece multiplies the matching columns of x, and pieces after the
 * first one add to c. */
static void linear_piece_multiply(struct stage_pass *pass, const struct matrix_product *p,
                                  struct operand piece, uint32_t row, uint32_t rows)
{
    uint32_t columns = p->matrix->columns;
    struct operand x = p->x.at, c = p->c.at;
    queue_gemm(&pass->queue, &(struct gemm){.order = p->back ? GEMM_NN : GEMM_NT,
                                            .m = p->rows,
                                            .n = p->back ? columns : rows,
                                            .k = p->back ? rows : columns,
                                            .alpha = product_alpha(p),
                                            .beta = p->back && row > 0 ? 1 : p->beta,
                                            .a = {p->back ? operand_skip(x, row) : x, p->x.ld},
                                            .b = {piece, columns},
                                            .c = {p->back ? c : operand_skip(c, row), p->c.ld}});
}

/* The product with a packed matrix in its stored form, for devices that unpack inside the product. */
static struct op packed_product(const struct stage_pass *pass, const struct matrix_product *p)
{
    const struct layer_tensor *matrix = p->matrix;
    struct packed packed = packed_at(p->block, matrix, 0);
    return (struct op){.kind = OP_GEMM,
                       .gemm = {.m = p->rows,
                                .n = p->back ? matrix->columns : matrix->rows,
                                .k = p->back ? matrix->rows : matrix->columns,
                                .transpose_b = !p->back,
                                .alpha = product_alpha(p),
                                .beta = p->beta,
                                .a = p->x.at,
                                .lda = p->x.ld,
                                .b = packed.x,
                                .ldb = matrix->columns,
                                .c = p->c.at,
                                .ldc = p->c.ld,
                                .pack = matrix->pack,
                                .absmax = packed.absmax,
                                .scales = packed.scales,
                                .compute = pass->queue.compute}};
}

void matrix_multiply(struct stage_pass *pass, const struct matrix_product *p)
{
    const struct layer_tensor *matrix = p->matrix;
    if (matrix->trained || matrix->pack == PACK_F32) {
        linear_piece_multiply(pass, p, tensor_at(p->block, matrix), 0, matrix->rows);
        return;
    }
    struct op whole = packed_product(pass, p);
    if (op_supports(pass->queue.device, &whole)) {
        queue_op(&pass->queue, &whole);
        return;
    }
    uint32_t step = panel_rows(pass, matrix);
    for (uint32_t row = 0; row < matrix->rows; row += step) {
        uint32_t rows = matrix->rows - row < step ? matrix->rows - row : step;
        struct operand piece = linear_unpack(pass, p->block, matrix, 0, (uint64_t)row * matrix->columns,
                                             (uint64_t)rows * matrix->columns);
        linear_piece_multiply(pass, p, piece, row, rows);
    }
}

/* --- products of a step, dense or of experts --- */

static uint32_t step_rows(const struct layer_run *run, const struct layer_step *step)
{
    return run->pass->tokens * (step->experts ? run->pass->stage->config.experts_active : 1);
}

/* A product with one matrix, or a grouped one with the matrices of all experts here, `stride` bytes apart.
 * This function fills in the number of rows, which is m, or k for GEMM_TN (a gradient, c += a^T b); the
 * caller gives the other two sizes. */
static void step_gemm(const struct layer_run *run, const struct layer_step *step, struct gemm g,
                      uint64_t stride)
{
    const struct layer_tensor *matrix = &run->plan->tensors.list[step->members[0].matrix];
    bool outer = g.order == GEMM_TN;
    if (!step->experts) {
        *(outer ? &g.k : &g.m) = run->pass->tokens;
        queue_gemm(&run->pass->queue, &g);
        return;
    }
    queue_op(&run->pass->queue, &(struct op){.kind = OP_GEMM_GROUPED,
                                             .gemm_grouped = {.first = matrix->copy_begin,
                                                              .groups = matrix->copies,
                                                              .groups_all = run->pass->stage->config.experts,
                                                              .rows = step_rows(run, step),
                                                              .m = outer ? g.m : 0,
                                                              .n = g.n,
                                                              .k = outer ? 0 : g.k,
                                                              .transpose_a = outer,
                                                              .transpose_b = g.order == GEMM_NT,
                                                              .alpha = g.alpha,
                                                              .beta = g.beta,
                                                              .stride = stride / 4,
                                                              .a = g.a.at,
                                                              .b = g.b.at,
                                                              .c = g.c.at,
                                                              .offsets = run_value(run, VALUE_OFFSETS),
                                                              .lda = g.a.ld,
                                                              .ldb = g.b.ld,
                                                              .ldc = g.c.ld,
                                                              .compute = run->pass->queue.compute}});
}

/* Adds left^T right, summed over the step's rows, to the gradient of a tensor [m, n]. With experts, each
 * expert's rows are added to the gradient of its own copy of the tensor. */
static void step_gradient(const struct layer_run *run, const struct layer_step *step,
                          const struct layer_tensor *tensor, uint32_t m, uint32_t n, struct matrix_at left,
                          struct matrix_at right)
{
    step_gemm(run, step,
              (struct gemm){.order = GEMM_TN,
                            .m = m,
                            .n = n,
                            .alpha = 1,
                            .beta = 1,
                            .a = left,
                            .b = right,
                            .c = {tensor_gradient(run->block, tensor), n}},
              tensor->stride);
}

/* Describes the grouped product with the matrices [rows, columns] of experts [first, first + groups). The
 * caller sets b and how it is stored. */
static struct op experts_product(const struct layer_run *run, const struct matrix_product *p, uint32_t first,
                                 uint32_t groups, uint32_t rows)
{
    uint32_t columns = p->matrix->columns;
    return (struct op){.kind = OP_GEMM_GROUPED,
                       .gemm_grouped = {.first = p->matrix->copy_begin + first,
                                        .groups = groups,
                                        .groups_all = run->pass->stage->config.experts,
                                        .rows = p->rows,
                                        .n = p->back ? columns : rows,
                                        .k = p->back ? rows : columns,
                                        .transpose_b = !p->back,
                                        .alpha = 1,
                                        .beta = p->beta,
                                        .a = p->x.at,
                                        .c = p->c.at,
                                        .offsets = run_value(run, VALUE_OFFSETS),
                                        .lda = p->x.ld,
                                        .ldb = columns,
                                        .ldc = p->c.ld,
                                        .compute = run->pass->queue.compute}};
}

/* Multiplies each routed row with its expert's packed matrix: for all experts at once where the device
 * unpacks inside the product, else expert by expert, with the matrix unpacked piece by piece. */
static void experts_multiply(const struct layer_run *run, const struct matrix_product *p)
{
    struct stage_pass *pass = run->pass;
    const struct layer_tensor *matrix = p->matrix;
    struct packed packed = packed_at(p->block, matrix, 0);
    struct op whole = experts_product(run, p, 0, matrix->copies, matrix->rows);
    whole.gemm_grouped.b = packed.x;
    whole.gemm_grouped.stride = matrix->stride;
    whole.gemm_grouped.pack = matrix->pack;
    whole.gemm_grouped.absmax = packed.absmax;
    whole.gemm_grouped.scales = packed.scales;
    if (matrix->pack != PACK_F32 && op_supports(pass->queue.device, &whole)) {
        queue_op(&pass->queue, &whole);
        return;
    }
    uint32_t step = panel_rows(pass, matrix), columns = matrix->columns;
    for (uint32_t expert = 0; expert < matrix->copies; expert++)
        for (uint32_t row = 0; row < matrix->rows; row += step) {
            uint32_t rows = matrix->rows - row < step ? matrix->rows - row : step;
            struct op op = experts_product(run, p, expert, 1, rows);
            struct op_gemm_grouped *piece = &op.gemm_grouped;
            *(p->back ? &piece->a : &piece->c) = operand_skip(p->back ? p->x.at : p->c.at, row);
            piece->beta = p->back && row > 0 ? 1 : p->beta;
            piece->b = linear_unpack(pass, p->block, matrix, expert, (uint64_t)row * columns,
                                     (uint64_t)rows * columns);
            queue_op(&pass->queue, &op);
        }
}

/* Where the stage has only a range of the experts, rows routed to other experts get no product; they are set
 * to zero. */
static void other_experts_zero(const struct layer_run *run, const struct layer_step *step, struct operand x,
                               uint32_t width)
{
    const struct layer_tensor *matrix = &run->plan->tensors.list[step->members[0].matrix];
    if (step->experts && matrix->copies < run->pass->stage->config.experts)
        queue_zero(&run->pass->queue, x, (uint64_t)step_rows(run, step) * width);
}

/* Does another member of the group add what only one member may add, such as biases of outputs? */
static bool is_follower(const struct layer_run *run)
{
    return run->pass->stage->options.part.follows;
}

/* Does this stage add the bias? With parts of layers, every member of the group holds the whole bias of an
 * output that the members sum, so only the first member may add it. */
static bool adds_bias(const struct layer_run *run, const struct layer_step *step)
{
    bool output = step->out == VALUE_MID || step->out == VALUE_OUT;
    return step->members[0].bias >= 0 && !(output && is_follower(run));
}

/* out = x W^T + beta out, or with `back` dx = dout W + beta dx. */
static void base_multiply(struct layer_run *run, const struct layer_step *step, bool back, struct operand x,
                          float beta, struct operand c)
{
    const struct layer_tensor *list = run->plan->tensors.list, *first = &list[step->members[0].matrix];
    uint32_t ldx = back ? step->outputs : step->inputs, ldc = back ? step->inputs : step->outputs;
    if (step->stacked) {
        step_gemm(run, step,
                  (struct gemm){.order = back ? GEMM_NN : GEMM_NT,
                                .n = ldc,
                                .k = ldx,
                                .alpha = 1,
                                .beta = beta,
                                .a = {x, ldx},
                                .b = {tensor_at(run->block, first), step->inputs},
                                .c = {c, ldc}},
                  first->stride);
        return;
    }
    for (uint32_t m = 0; m < step->member_count; m++) {
        const struct layer_member *member = &step->members[m];
        struct matrix_product product = {.block = run->block,
                                         .matrix = &list[member->matrix],
                                         .back = back,
                                         .rows = step_rows(run, step),
                                         .beta = back && m > 0 ? 1 : beta,
                                         .x = {back ? operand_skip(x, member->column) : x, ldx},
                                         .c = {back ? c : operand_skip(c, member->column), ldc}};
        if (step->experts)
            experts_multiply(run, &product);
        else
            matrix_multiply(run->pass, &product);
    }
}

/* --- adapters --- */

static struct op_dropout dropout_of(const struct layer_run *run, const struct layer_step *step,
                                    const struct layer_member *member, struct operand x, struct operand y)
{
    const struct stage_pass *pass = run->pass;
    const struct stage *stage = pass->stage;
    return (struct op_dropout){.tokens = pass->tokens,
                               .width = step->inputs,
                               .p = (float)stage->options.lora.dropout,
                               .seed = stage->options.seed,
                               .layer = run->layer,
                               .target = member->site,
                               .first = run->block->tensors->list[member->a].column_begin,
                               .x = x,
                               .positions = pass_meta(pass, stage->layout.slot.positions, DTYPE_U32),
                               .row_ids = pass_meta(pass, stage->layout.slot.row_ids, DTYPE_U32),
                               .step = pass_meta(pass, stage->layout.slot.step, DTYPE_U32),
                               .y = y};
}

static void linear_drop(struct layer_run *run, const struct layer_step *step,
                        const struct layer_member *member, struct operand x, struct operand y)
{
    queue_op(&run->pass->queue,
             &(struct op){.kind = OP_DROPOUT, .dropout = dropout_of(run, step, member, x, y)});
}

static void drop_backward(struct layer_run *run, const struct layer_step *step,
                          const struct layer_member *member, struct operand x, struct operand y,
                          struct operand dx)
{
    queue_op(&run->pass->queue,
             &(struct op){.kind = OP_DROPOUT_BACKWARD,
                          .dropout_backward = {.forward = dropout_of(run, step, member, x, y), .dx = dx}});
}

/* The factor of the adapter that has this A. */
static float linear_scale_of(const struct layer_run *run, const struct layer_tensor *a)
{
    return (float)lora_scale(&run->pass->stage->options.lora, run->layer, (uint32_t)__builtin_ctz(a->target));
}

static float adapter_scale(const struct layer_run *run, const struct layer_member *member)
{
    return linear_scale_of(run, &run->plan->tensors.list[member->a]);
}

static const struct layer_tensor *first_adapter(const struct layer_run *run, const struct layer_step *step)
{
    for (uint32_t m = 0; m < step->member_count; m++)
        if (step->members[m].rank > 0)
            return &run->plan->tensors.list[step->members[m].a];
    return NULL;
}

/* Do the adapters of all members of the step have the same scale? Then one product serves them all. */
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
    const struct layer_tensor *list = run->plan->tensors.list, *first = first_adapter(run, step);
    uint32_t width = step->inputs;
    if (!run->pass->dropout && scales_alike(run, step)) {
        float scale = linear_scale_of(run, first);
        step_gemm(run, step,
                  (struct gemm){.order = GEMM_NT,
                                .n = step->ranks,
                                .k = width,
                                .alpha = scale,
                                .a = {x, width},
                                .b = {tensor_at(run->block, first), width},
                                .c = {z, step->ranks}},
                  first->stride);
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
            linear_drop(run, step, member, x, from);
        }
        step_gemm(run, step,
                  (struct gemm){.order = GEMM_NT,
                                .n = member->rank,
                                .k = width,
                                .alpha = adapter_scale(run, member),
                                .a = {from, width},
                                .b = {tensor_at(run->block, &list[member->a]), width},
                                .c = {operand_skip(z, member->z), step->ranks}},
                  list[member->a].stride);
    }
}

/* What the products of adapters are added to, beta times: the output, or `add` if that is present. */
struct adapters_sum {
    float beta;
    struct operand add;
};

/* out = B z + beta times what `sum` says, unless only z is asked for. */
static void adapters_forward(struct layer_run *run, const struct layer_step *step, struct operand x,
                             const struct adapters_sum *sum, struct operand out, bool only_z)
{
    struct operand z = run_kept(run, step->z);
    if (step->ranks == 0)
        return;
    other_experts_zero(run, step, z, step->ranks);
    inner_forward(run, step, x, z);
    for (uint32_t m = 0; m < step->member_count && !only_z; m++) {
        const struct layer_member *member = &step->members[m];
        if (member->rank == 0)
            continue;
        const struct layer_tensor *b = &run->plan->tensors.list[member->b];
        step_gemm(run, step,
                  (struct gemm){.order = GEMM_NT,
                                .n = b->rows,
                                .k = member->rank,
                                .alpha = 1,
                                .beta = sum->beta,
                                .add = operand_skip(sum->add, member->column),
                                .a = {operand_skip(z, member->z), step->ranks},
                                .b = {tensor_at(run->block, b), member->rank},
                                .c = {operand_skip(out, member->column), step->outputs}},
                  b->stride);
    }
}

/* Operands of a linear step's backward. */
struct linear_gradient {
    struct operand in, dout, din;     /* din is absent if nobody needs it */
    struct operand dz, dropped, wide; /* wide: memory for dout or a dropped input in fp32 */
    bool weights, first;              /* first: the adapters' part of din comes before the base's */
};

/* With dropout, for one member: dA += dz^T drop(x), dx += mask * (dz A). */
static void dropped_backward(struct layer_run *run, const struct layer_step *step,
                             const struct layer_member *member, const struct linear_gradient *g)
{
    struct op_queue *queue = &run->pass->queue;
    uint32_t width = step->inputs;
    const struct layer_tensor *a = &run->plan->tensors.list[member->a];
    struct operand dz = operand_skip(g->dz, member->z);
    /* `dropped` first has the gradient dz A. drop_backward draws the mask once: it adds the masked gradient
     * to din and then overwrites `dropped` with the dropped input. */
    if (g->din.buffer)
        queue_gemm(queue, &(struct gemm){.order = GEMM_NN,
                                         .m = run->pass->tokens,
                                         .n = width,
                                         .k = member->rank,
                                         .alpha = 1,
                                         .a = {dz, step->ranks},
                                         .b = {tensor_at(run->block, a), width},
                                         .c = {g->dropped, width}});
    drop_backward(run, step, member, g->in, g->dropped, g->din);
    if (g->weights)
        step_gradient(run, step, a, member->rank, width, (struct matrix_at){dz, step->ranks},
                      (struct matrix_at){g->dropped, width});
}

static void adapters_backward(struct layer_run *run, const struct layer_step *step,
                              const struct linear_gradient *g)
{
    const struct layer_tensor *list = run->plan->tensors.list, *a = first_adapter(run, step);
    struct operand z = run_kept(run, step->z);
    for (uint32_t m = 0; m < step->member_count; m++) {
        const struct layer_member *member = &step->members[m];
        if (member->rank == 0)
            continue;
        const struct layer_tensor *b = &list[member->b];
        struct operand dout = operand_skip(g->dout, member->column);
        if (g->weights)
            step_gradient(run, step, b, b->rows, member->rank, (struct matrix_at){dout, step->outputs},
                          (struct matrix_at){operand_skip(z, member->z), step->ranks});
        step_gemm(run, step,
                  (struct gemm){.order = GEMM_NN,
                                .n = member->rank,
                                .k = b->rows,
                                .alpha = adapter_scale(run, member),
                                .a = {dout, step->outputs},
                                .b = {tensor_at(run->block, b), member->rank},
                                .c = {operand_skip(g->dz, member->z), step->ranks}},
                  b->stride);
        if (run->pass->dropout)
            dropped_backward(run, step, member, g);
    }
    if (!a || run->pass->dropout)
        return;
    uint32_t width = step->inputs;
    if (g->weights)
        step_gradient(run, step, a, step->ranks, width, (struct matrix_at){g->dz, step->ranks},
                      (struct matrix_at){g->in, width});
    if (g->din.buffer)
        step_gemm(run, step,
                  (struct gemm){.order = GEMM_NN,
                                .n = width,
                                .k = step->ranks,
                                .alpha = 1,
                                .beta = g->first ? 0 : 1,
                                .a = {g->dz, step->ranks},
                                .b = {tensor_at(run->block, a), width},
                                .c = {g->din, width}},
                  a->stride);
}

/* --- linear steps --- */

/* Selects the dtype to which the operands of a step's products are rounded. Routers stay in fp32 (Fedus et
 * al. 2021, section 2.4). */
static void compute_begin(struct stage_pass *pass, const struct layer_step *step)
{
    if (step->members[0].target == 0)
        pass->queue.compute = DTYPE_F32;
}

static void compute_end(struct stage_pass *pass)
{
    pass->queue.compute = pass->stage->options.compute;
}

/* The memory in which forward sums the step's output (product, bias, adapters). If the output has 16 bits,
 * that is fp32 memory of its own, and the sum is rounded once; but see writes_rounded. */
static struct operand sums_of(const struct layer_run *run, const struct layer_step *step)
{
    return step->forward_sum == LAYER_ABSENT ? run_value(run, step->out)
                                             : run_scratch(run, step->forward_sum);
}

/* Do all of the step's members have adapters (or, if !ranks, none)? */
static bool members_alike(const struct layer_step *step, bool ranks)
{
    for (uint32_t m = 0; m < step->member_count; m++)
        if ((step->members[m].rank > 0) != ranks)
            return false;
    return true;
}

/* Does the device write the step's 16-bit output without fp32 sums? The adapters' products then come first,
 * rounded, and the base's product is added to them in fp32 and rounded. */
static bool writes_rounded(const struct layer_run *run, const struct layer_step *step)
{
    return step->forward_sum != LAYER_ABSENT && step->add == VALUE_NONE && !step->experts &&
           !adds_bias(run, step) && members_alike(step, step->ranks > 0) &&
           run_rounds_products(run, step->members[0].outputs) && run_rounds_products(run, step->outputs);
}

/* Do the adapters' products add the residual, so that it need not be copied? */
static bool adapters_add(const struct layer_run *run, const struct layer_step *step)
{
    const struct operand x = run->inner;
    const struct op op = {
        .kind = OP_GEMM,
        .gemm = {
            .m = 1, .n = 1, .k = 1, .a = x, .b = x, .c = x, .add = x, .compute = run->pass->queue.compute}};
    return step->add != VALUE_NONE && !step->experts && !is_follower(run) && members_alike(step, true) &&
           op_supports(run->pass->queue.device, &op);
}

/* The biases of the experts as a table, and the number of each routed row's expert as its row's id. */
static struct operand expert_ids(const struct layer_run *run)
{
    struct operand ids = run_value(run, VALUE_ROUTED_EXPERT);
    ids.dtype = DTYPE_I32;
    return ids;
}

static void base_forward(struct layer_run *run, const struct layer_step *step, struct operand in, float beta,
                         struct operand out)
{
    int32_t bias = step->members[0].bias;
    if (step->experts && bias >= 0) {
        const struct layer_tensor *tensor = &run->plan->tensors.list[bias];
        queue_op(&run->pass->queue, &(struct op){.kind = OP_EMBED,
                                                 .embed = {.tokens = step_rows(run, step),
                                                           .hidden = step->outputs,
                                                           .vocab = tensor->copies,
                                                           .ids = expert_ids(run),
                                                           .table = tensor_at(run->block, tensor),
                                                           .out = out}});
        base_multiply(run, step, false, in, 1, out);
        return;
    }
    base_multiply(run, step, false, in, beta, out);
    if (adds_bias(run, step))
        queue_op(&run->pass->queue,
                 &(struct op){.kind = OP_BIAS,
                              .bias = {.rows = run->pass->tokens,
                                       .width = step->outputs,
                                       .ldx = step->outputs,
                                       .x = out,
                                       .bias = tensor_at(run->block, &run->plan->tensors.list[bias])}});
}

/* The base's product, and then the adapters'. */
static void sums_forward(struct layer_run *run, const struct layer_step *step, struct operand in)
{
    struct stage_pass *pass = run->pass;
    struct operand out = sums_of(run, step);
    bool adds = step->add != VALUE_NONE && !is_follower(run);
    other_experts_zero(run, step, out, step->outputs);
    if (adds)
        queue_copy(&pass->queue, pass->tokens, step->outputs, run_value(run, step->add), step->outputs, out,
                   step->outputs);
    base_forward(run, step, in, adds ? 1 : 0, out);
    adapters_forward(run, step, in, &(struct adapters_sum){.beta = 1}, out, false);
    if (step->forward_sum != LAYER_ABSENT)
        queue_cast(&pass->queue, (uint64_t)step_rows(run, step) * step->outputs, out,
                   run_value(run, step->out));
}

void linear_forward(struct layer_run *run, const struct layer_step *step, bool only_z)
{
    struct operand in = run_value(run, step->in);
    compute_begin(run->pass, step);
    bool residual = !only_z && adapters_add(run, step);
    if (only_z)
        adapters_forward(run, step, in, &(struct adapters_sum){0}, (struct operand){0}, true);
    else if (!residual && !writes_rounded(run, step))
        sums_forward(run, step, in);
    else {
        struct adapters_sum sum = {0};
        struct operand out = run_value(run, step->out);
        if (residual)
            sum = (struct adapters_sum){1, run_value(run, step->add)};
        adapters_forward(run, step, in, &sum, out, false);
        base_forward(run, step, in, step->ranks > 0 ? 1 : 0, out);
    }
    compute_end(run->pass);
}

/* Adds to the gradients of base matrices and biases, if these are trained. */
static void base_weights_backward(struct layer_run *run, const struct layer_step *step,
                                  const struct linear_gradient *g)
{
    const struct layer_tensor *list = run->plan->tensors.list, *matrix = &list[step->members[0].matrix];
    int32_t bias = step->members[0].bias;
    if (!matrix->trained)
        return;
    step_gradient(run, step, matrix, step->outputs, step->inputs, (struct matrix_at){g->dout, step->outputs},
                  (struct matrix_at){g->in, step->inputs});
    if (!adds_bias(run, step))
        return;
    struct operand dout = g->dout;
    if (dout.dtype != DTYPE_F32) {
        queue_cast(&run->pass->queue, (uint64_t)step_rows(run, step) * step->outputs, dout, g->wide);
        dout = g->wide;
    }
    if (step->experts) {
        queue_op(&run->pass->queue,
                 &(struct op){.kind = OP_EMBED_BACKWARD,
                              .embed_backward = {.tokens = step_rows(run, step),
                                                 .hidden = step->outputs,
                                                 .vocab = list[bias].copies,
                                                 .ids = expert_ids(run),
                                                 .dout = dout,
                                                 .dtable = tensor_gradient(run->block, &list[bias])}});
        return;
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
        /* As writes_rounded says; with dropout all gradients are f32. */
        g.first = g.din.dtype != DTYPE_F32 && step->ranks > 0;
        if (!entry->accumulate)
            other_experts_zero(run, step, g.din, step->inputs);
        if (!g.first)
            base_multiply(run, step, true, g.dout, entry->accumulate ? 1 : 0, g.din);
    }
    if (weights)
        base_weights_backward(run, step, &g);
    if (step->ranks > 0 && (weights || input)) {
        other_experts_zero(run, step, g.dz, step->ranks);
        adapters_backward(run, step, &g);
    }
    if (g.first)
        base_multiply(run, step, true, g.dout, 1, g.din);
    compute_end(run->pass);
}
