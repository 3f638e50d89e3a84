/* Tests the ops that GPUs compute with the same bits as CPUs, and the paths of kernels that the harness's
 * shapes seldom take: four values in one access, one block for a row, sums cut into chunks. */
#define HARNESS_CANDIDATES                                                                                   \
    {.kind = "cpu", .threads = 2, .group = 1}, {.kind = "emulated", .group = 1, .isa = "warp32,checks"},     \
        {.kind = "emulated", .group = 1, .isa = "warp64,checks"}
#include "engine/cases_basic.h"
#include "engine/cases_bits.h"

static const char *const warps[] = {"warp32,checks", "warp64,checks"};

static const struct op_case *case_named(const char *name)
{
    for (size_t i = 0; i < sizeof(basic_cases) / sizeof(*basic_cases); i++)
        if (strcmp(basic_cases[i].name, name) == 0)
            return &basic_cases[i];
    fail_msg("no case is named %s", name);
    return NULL;
}

/* AdamW is one of these ops, because a GPU fuses a product and a sum where a CPU with FMA does. */
static void ops_without_sums_have_the_bits_of_cpus(void **state)
{
    const char *const names[] = {"copy",        "gather_rows", "scatter_rows",     "embed", "cast",
                                 "embed_noise", "dropout",     "dropout_backward", "adamw", "adamw8"};
    (void)state;
    if (!__builtin_cpu_supports("fma")) {
        print_message("this CPU has no FMA\n");
        skip();
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        cases_run(case_named(names[i]), 1, 6);
}

static void many_blocks_draw(struct trial *t)
{
    case_named("adamw8")->draw(t);
    t->op.adamw8.count = 1100 * ADAMW8_BLOCK + 17;
}

/* Runs 8-bit AdamW on more than 1,024 blocks of values, so that a block of GPU threads works on several
 * blocks of values. */
static void many_blocks_have_the_bits_of_cpus(void **state)
{
    struct op_case c = *case_named("adamw8");
    (void)state;
    if (!__builtin_cpu_supports("fma")) {
        print_message("this CPU has no FMA\n");
        skip();
    }
    c.draw = many_blocks_draw;
    cases_run(&c, 1, 1);
}

/* --- aligned shapes */

static const struct op_case *base;
static bool
    large; /* whether rows are long enough for one block of threads each, and sums for several chunks */

static void norm_shape(struct op *op)
{
    uint32_t width = large ? 1100 : 52, vectors = large ? 1 : 3, ld = width * vectors + 4;
    struct op_rmsnorm *f = &op->rmsnorm;
    struct op_rmsnorm_backward *b = &op->rmsnorm_backward;
    if (op->kind == OP_RMSNORM) {
        f->rows = 11, f->width = width, f->vectors = vectors;
        f->ldx = f->ldy = ld;
    } else {
        b->rows = large ? 70 : 11, b->width = width, b->vectors = vectors;
        b->ldx = b->lddy = b->lddx = ld;
    }
}

static void plain_shape(struct op *op)
{
    uint32_t rows = large ? 200 : 9, width = large ? 64 : 40;
    switch (op->kind) {
    case OP_COPY:
        op->copy.rows = rows, op->copy.width = width, op->copy.ldx = op->copy.ldy = width + 4;
        op->copy.vectors = 1;
        break;
    case OP_ADD:
        op->add.rows = rows, op->add.width = width, op->add.ldx = op->add.ldy = width + 4;
        break;
    case OP_BIAS:
        op->bias.rows = rows, op->bias.width = width, op->bias.ldx = width + 8;
        break;
    case OP_COLUMN_SUM:
        op->column_sum.rows = rows, op->column_sum.width = width, op->column_sum.ldx = width;
        break;
    case OP_SOFTCAP:
        op->softcap.rows = rows, op->softcap.width = width;
        break;
    case OP_GLU:
        op->glu.tokens = rows, op->glu.width = width;
        break;
    case OP_GLU_BACKWARD:
        op->glu_backward.tokens = rows, op->glu_backward.width = width;
        break;
    default:
        break;
    }
}

static void table_shape(struct op *op)
{
    uint32_t tokens = large ? 300 : 20, width = large ? 24 : 64;
    switch (op->kind) {
    case OP_EMBED:
        op->embed.tokens = tokens, op->embed.hidden = width;
        break;
    case OP_EMBED_BACKWARD:
        op->embed_backward.tokens = tokens, op->embed_backward.hidden = width;
        break;
    case OP_EMBED_NOISE:
        op->embed_noise.width = width;
        break;
    case OP_GATHER_ROWS:
        op->gather_rows.rows = tokens, op->gather_rows.width = width;
        break;
    case OP_SCATTER_ROWS:
        op->scatter_rows.width = width;
        break;
    case OP_DROPOUT:
        op->dropout.tokens = tokens, op->dropout.width = width;
        break;
    case OP_DROPOUT_BACKWARD:
        op->dropout_backward.forward.tokens = tokens, op->dropout_backward.forward.width = width;
        break;
    case OP_ROPE:
        op->rope.tokens = tokens, op->rope.head_dim = 24, op->rope.rotary_dim = large ? 0 : 16;
        op->rope.ldx = op->rope.heads * 24;
        break;
    default:
        break;
    }
}

static void flat_shape(struct op *op)
{
    /* 2002 is not a multiple of four, the number of values in one access. */
    uint32_t count = large ? 34000 : 2002;
    switch (op->kind) {
    case OP_CROSS_ENTROPY:
        op->cross_entropy.rows = large ? 40 : 300, op->cross_entropy.vocab = large ? 1300 : 92;
        break;
    case OP_CAST:
        op->cast.count = count;
        break;
    case OP_SQUARE_SUM:
        op->square_sum.count = count;
        break;
    case OP_ADAMW:
        op->adamw.count = count;
        break;
    default:
        break;
    }
}

static void aligned_draw(struct trial *t)
{
    base->draw(t);
    plain_shape(&t->op);
    table_shape(&t->op);
    flat_shape(&t->op);
    if (t->op.kind == OP_RMSNORM || t->op.kind == OP_RMSNORM_BACKWARD) {
        struct operand *weight =
            t->op.kind == OP_RMSNORM ? &t->op.rmsnorm.weight : &t->op.rmsnorm_backward.weight;
        if (!weight->buffer) /* vectors beyond NORM_ALONE_MAX have one */
            bind(t, weight);
        norm_shape(&t->op);
    }
}

/* Moves every operand `lead` elements into its buffer. */
static void trial_shift(struct trial *t, uint64_t lead)
{
    for (uint32_t i = 0; i < t->count; i++) {
        struct array *a = &t->arrays[i];
        uint32_t size = dtype_bytes(a->use.operand.dtype);
        uint8_t *bytes = malloc((lead + a->count + PAD_MAX) * size);
        memset(bytes, 0x7F, (lead + a->count + PAD_MAX) * size);
        memcpy(bytes + lead * size, a->bytes + a->lead * size, a->count * size);
        free(a->bytes);
        a->bytes = bytes;
        a->lead = lead;
    }
}

static void shifted_check(struct trial *t, struct device *device, const struct op_case *c)
{
    uint8_t *after[2][OP_OPERANDS_MAX];
    for (uint64_t lead = 0; lead < 2; lead++) {
        trial_shift(t, lead);
        assert_true(trial_run(t, device, false, after[lead]));
        trial_check(t, c, after[lead]);
    }
    for (uint32_t i = 0; i < t->count; i++) {
        const struct array *a = &t->arrays[i];
        uint32_t size = dtype_bytes(a->use.operand.dtype);
        if (memcmp(after[0][i], after[1][i] + size, a->count * size) != 0)
            fail_msg("%s: %s depends on where it lies (%s)", c->name, a->use.name, device_isa(device));
        free(after[0][i]);
        free(after[1][i]);
    }
}

static struct device *emulated(const char *isa)
{
    struct device *device;
    struct err err;
    check(device_open(
        &(struct device_options){
            .kind = "emulated", .name = "emulated", .isa = isa, .memory_limit_bytes = 64 << 20},
        &device, &err));
    return device;
}

static void aligned_shapes_are_right_and_give_the_bits_of_others(void **state)
{
    const char *const names[] = {"add",
                                 "copy",
                                 "bias",
                                 "softcap",
                                 "column_sum",
                                 "embed",
                                 "embed_backward",
                                 "gather_rows",
                                 "scatter_rows",
                                 "rmsnorm",
                                 "rope",
                                 "rmsnorm_backward",
                                 "glu",
                                 "glu_backward",
                                 "dropout",
                                 "embed_noise",
                                 "cast",
                                 "dropout_backward",
                                 "cross_entropy",
                                 "square_sum",
                                 "adamw"};
    (void)state;
    for (int w = 0; w < 2; w++) {
        struct device *device = emulated(warps[w]);
        for (size_t i = 0; i < 2 * sizeof(names) / sizeof(*names); i++) {
            struct trial t;
            struct op_case c = *case_named(names[i / 2]);
            base = case_named(names[i / 2]);
            large = i % 2;
            c.draw = aligned_draw;
            trial_create(&t, &c, 2 + i);
            shifted_check(&t, device, &c);
            trial_destroy(&t);
        }
        device_close(device);
    }
}

/* --- tests that are no cases of the harness */

static void each_warp(void (*test)(struct bench *b))
{
    for (int w = 0; w < 2; w++) {
        struct bench b;
        bench_isa = warps[w];
        bench_open(&b, "emulated");
        test(&b);
        bench_close(&b);
        bench_isa = NULL;
    }
}

static void packed_weights_unpack_to_the_bits_of_the_model(void **state)
{
    (void)state;
    each_warp(each_kind_on);
    each_warp(ragged_on);
    each_warp(looked_up_on);
}

static void a_norms_gradient_may_replace_the_one_it_is_made_of(void **state)
{
    (void)state;
    each_warp(norm_backward_in_place_on);
}

static void ids_beyond_their_table_are_told(void **state)
{
    const int32_t ids[] = {0, 9};
    struct err err;
    struct bench b;
    double table[40];
    (void)state;
    bench_isa = warps[0];
    bench_open(&b, "emulated");
    struct op op = {.kind = OP_EMBED,
                    .embed = {.tokens = 2,
                              .hidden = 4,
                              .vocab = 9,
                              .ids = bytes_in(&b, ids, sizeof(ids), DTYPE_I32),
                              .table = normal(&b, 40, table),
                              .out = empty(&b, 8)}};
    int status = op_submit(b.device, &op, &err);
    if (status == 0)
        status = device_sync(b.device, &err);
    assert_int_equal(status, -1);
    assert_int_equal(err.code, ERR_DEVICE_FAULT);
    assert_non_null(strstr(err.text, "id < args.vocab"));
    for (uint32_t i = 0; i < b.count; i++) {
        buffer_destroy(b.buffers[i]);
        free(b.kept[i]);
    }
    device_close(b.device);
    bench_isa = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ops_without_sums_have_the_bits_of_cpus),
        cmocka_unit_test(many_blocks_have_the_bits_of_cpus),
        cmocka_unit_test(aligned_shapes_are_right_and_give_the_bits_of_others),
        cmocka_unit_test(packed_weights_unpack_to_the_bits_of_the_model),
        cmocka_unit_test(a_norms_gradient_may_replace_the_one_it_is_made_of),
        cmocka_unit_test(ids_beyond_their_table_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
