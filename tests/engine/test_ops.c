/* Runs the cases of cases_basic.h on every CPU device, and tests that no case covers. */
#include "engine/cases_basic.h"
#include "engine/cases_delta.h"
#include "engine/cases_bits.h"
#include "engine/cases_rounded.h"

static void every_op_is_its_definition_on_every_device(void **state)
{
    (void)state;
    cases_run(basic_cases, sizeof(basic_cases) / sizeof(*basic_cases), 24);
}

static void delta_ops_are_their_definition_on_every_device(void **state)
{
    (void)state;
    cases_run(delta_cases, sizeof(delta_cases) / sizeof(*delta_cases), 40);
}

static void packed_rows_on(struct bench *b)
{
    packed_rows_are_single_rows_on(b, true);
}

static void packed_rows_are_single_rows(void **state)
{
    (void)state;
    each_device(packed_rows_on);
}

static void products_round_their_operands_to_16_bits(void **state)
{
    (void)state;
    cases_run(rounded_cases, sizeof(rounded_cases) / sizeof(*rounded_cases), 40);
}

/* A product that is added to a large c must be rounded at c's size once a block of terms, not once a term: a
 * residual stream is a hundred times larger than what a layer adds to it. */
static void gemm_onto_large_c(struct bench *b, enum dtype compute)
{
    enum { M = 60, N = 70, K = 1500 };
    double *a = doubles(M * K), *w = doubles(N * K), *c = doubles(M * N);
    struct operand oa = normal(b, M * K, a), ob = normal(b, N * K, w);
    float large[M * N], got[M * N];
    struct err err;
    for (uint32_t i = 0; i < M * N; i++)
        c[i] = large[i] = 30000;
    struct operand oc = bytes_in(b, large, sizeof(large), DTYPE_F32);
    submit(b, (struct op){.kind = OP_GEMM,
                          .gemm = {.m = M,
                                   .n = N,
                                   .k = K,
                                   .transpose_b = true,
                                   .compute = compute,
                                   .alpha = 1,
                                   .beta = 1,
                                   .a = oa,
                                   .b = ob,
                                   .c = oc,
                                   .lda = K,
                                   .ldb = K,
                                   .ldc = N}});
    check(buffer_read(oc.buffer, 0, got, sizeof(got), &err));
    check(device_sync(b->device, &err));
    for (uint32_t i = 0; i < M; i++)
        for (uint32_t j = 0; j < N; j++) {
            for (uint32_t p = 0; p < K; p++)
                c[i * N + j] += compute == DTYPE_F32
                                    ? a[i * K + p] * w[j * K + p]
                                    : rounded(compute, a[i * K + p]) * rounded(compute, w[j * K + p]);
            /* 1,500 terms in blocks of at least 128 are at most 12 roundings, each by at most half of 2^-9,
             * the unit in the last place of 30,000. */
            assert_true(fabs((double)got[i * N + j] - c[i * N + j]) <= 12 * 0.5 / 512);
        }
    free(a), free(w), free(c);
}

static void gemm_onto_large_c_on(struct bench *b)
{
    gemm_onto_large_c(b, DTYPE_F32);
    gemm_onto_large_c(b, DTYPE_BF16);
    gemm_onto_large_c(b, DTYPE_F16);
}

static void adding_to_a_large_matrix_rounds_once(void **state)
{
    (void)state;
    each_device(gemm_onto_large_c_on);
}

static void a_norms_gradient_may_replace_the_one_it_is_made_of(void **state)
{
    (void)state;
    each_device(norm_backward_in_place_on);
}

static void operands_are_checked_before_an_op_is_queued(void **state)
{
    struct bench b;
    struct err err;
    double x[12];
    (void)state;
    bench_open(&b, "cpu");
    struct operand a = normal(&b, 12, x), beyond = a, other = a;
    struct op op = {.kind = OP_COPY,
                    .copy = {.rows = 3, .width = 4, .ldx = 4, .ldy = 4, .x = a, .y = empty(&b, 12)}};
    check(op_submit(b.device, &op, &err));
    beyond.at = 8;
    op.copy.x = beyond;
    assert_int_equal(op_submit(b.device, &op, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    assert_non_null(strstr(err.text, "operand x"));
    op.copy.x = (struct operand){.dtype = DTYPE_F32};
    assert_int_equal(op_submit(b.device, &op, &err), -1);
    other.dtype = DTYPE_BF16;
    op.copy.x = other;
    assert_false(op_supports(b.device, &op));
    assert_int_equal(op_submit(b.device, &op, &err), -1);
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    const uint32_t at[] = {0, 0};
    struct op rope = {.kind = OP_ROPE,
                      .rope = {.tokens = 1,
                               .heads = 1,
                               .head_dim = 6,
                               .ldx = 6,
                               .table_rows = 1,
                               .x = a,
                               .positions = bytes_in(&b, at, sizeof(at), DTYPE_U32),
                               .table = empty(&b, 8)}};
    assert_true(op_supports(b.device, &rope));
    rope.rope.rotary_dim = 3;
    assert_false(op_supports(b.device, &rope));
    rope.rope.rotary_dim = 8;
    assert_false(op_supports(b.device, &rope));
    bench_close(&b);
}

static void told_at_the_wait(struct bench *b, const struct op *op, const char *word)
{
    struct err err;
    check(op_submit(b->device, op, &err));
    assert_int_equal(device_sync(b->device, &err), -1);
    assert_int_equal(err.code, ERR_INTERNAL);
    if (!strstr(err.text, word))
        fail_msg("'%s' does not say '%s'", err.text, word);
}

/* Each mistake runs on its own device, because a device keeps its first error. */
static void the_checked_device_tells_what_the_cpu_lets_pass(void **state)
{
    (void)state;
    for (int mistake = 0; mistake < 4; mistake++) {
        struct bench b;
        struct event *event;
        struct err err;
        double x[60];
        const uint32_t far[] = {0, 7};
        bench_open(&b, "checked");
        struct operand a = normal(&b, 60, x), fresh = empty(&b, 60),
                       index = bytes_in(&b, far, sizeof(far), DTYPE_U32);
        struct operand ids = index, within = a;
        ids.dtype = DTYPE_I32;
        within.at = 40;
        const struct op ops[] = {
            {.kind = OP_COPY, .copy = {.rows = 2, .width = 10, .ldx = 10, .ldy = 10, .x = fresh, .y = a}},
            {.kind = OP_COPY, .copy = {.rows = 2, .width = 10, .ldx = 10, .ldy = 10, .x = a, .y = within}},
            {.kind = OP_EMBED,
             .embed = {.tokens = 2, .hidden = 10, .vocab = 6, .ids = ids, .table = a, .out = fresh}},
            {.kind = OP_GATHER_ROWS,
             .gather_rows = {.rows = 2, .width = 10, .x_rows = 6, .x = a, .index = index, .y = fresh}},
        };
        const char *const words[] = {"never written", "overlaps", "ids[1] is 7", "index[1] is 7"};
        check(event_create(b.device, &event, &err));
        check(event_record(event, &err));
        assert_false(event_done(event)); /* Nothing runs before somebody waits. */
        check(event_wait(event, 1000000000, &err));
        assert_true(event_done(event));
        told_at_the_wait(&b, &ops[mistake], words[mistake]);
        event_destroy(event);
        for (uint32_t i = 0; i < b.count; i++) {
            buffer_destroy(b.buffers[i]);
            free(b.kept[i]);
        }
        device_close(b.device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_is_its_definition_on_every_device),
        cmocka_unit_test(delta_ops_are_their_definition_on_every_device),
        cmocka_unit_test(packed_rows_are_single_rows),
        cmocka_unit_test(products_round_their_operands_to_16_bits),
        cmocka_unit_test(adding_to_a_large_matrix_rounds_once),
        cmocka_unit_test(a_norms_gradient_may_replace_the_one_it_is_made_of),
        cmocka_unit_test(the_checked_device_tells_what_the_cpu_lets_pass),
        cmocka_unit_test(operands_are_checked_before_an_op_is_queued),
    };
    return run_each_isa(tests, sizeof(tests) / sizeof(tests[0]));
}
