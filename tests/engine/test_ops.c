/* Every op but attention against double precision, and the backward ones against finite differences of that.
 */
#include "engine/ops.h"

static void gemm_case(struct bench *b, bool exact, uint32_t m, uint32_t n, uint32_t k, bool ta, bool tb,
                      float alpha, float beta)
{
    double *a = doubles(m * k), *w = doubles(n * k), *c = doubles(m * n);
    struct operand oa = normal(b, m * k, a), ob = normal(b, n * k, w), oc = normal(b, m * n, c);
    submit(b, (struct op){.kind = OP_GEMM,
                          .exact = exact,
                          .gemm = {.m = m,
                                   .n = n,
                                   .k = k,
                                   .transpose_a = ta,
                                   .transpose_b = tb,
                                   .alpha = alpha,
                                   .beta = beta,
                                   .a = oa,
                                   .b = ob,
                                   .c = oc,
                                   .lda = ta ? m : k,
                                   .ldb = tb ? k : n,
                                   .ldc = n}});
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t j = 0; j < n; j++) {
            double sum = 0;
            for (uint32_t p = 0; p < k; p++)
                sum += a[ta ? p * m + i : i * k + p] * w[tb ? j * k + p : p * n + j];
            c[i * n + j] = (double)alpha * sum + (double)beta * c[i * n + j];
        }
    /* k terms of unit variance: fp32 keeps 6e-8 of the sum of magnitudes, far below this. */
    expect(b, oc, c, m * n, exact ? 1.2e-7 : 2e-6, "gemm");
    free(a);
    free(w);
    free(c);
}

static void gemm_on(struct bench *b)
{
    for (int exact = 0; exact < 2; exact++) {
        gemm_case(b, exact, 37, 53, 71, false, true, 1, 0);
        gemm_case(b, exact, 65, 33, 19, false, false, 0.5f, 1);
        gemm_case(b, exact, 48, 600, 129, true, false, 2, 1);
    }
    gemm_case(b, false, 700, 40, 513, false, true, 1, 1);
    gemm_case(b, false, 1, 530, 64, false, true, 1, 0);
}

/* Adding to a large c must round once at its size, not once a term (a residual stream is a hundred times
 * larger than what a layer adds to it). */
static void gemm_onto_large_c_on(struct bench *b)
{
    enum { M = 60, N = 70, K = 1500 };
    double *a = doubles(M * K), *w = doubles(N * K), *c = doubles(M * N);
    struct operand oa = normal(b, M * K, a), ob = normal(b, N * K, w);
    float large[M * N], got[M * N];
    struct err err;
    for (uint32_t i = 0; i < M * N; i++)
        c[i] = large[i] = 30000;
    struct operand oc = bytes_in(b, large, sizeof large, DTYPE_F32);
    submit(b, (struct op){.kind = OP_GEMM,
                          .gemm = {.m = M,
                                   .n = N,
                                   .k = K,
                                   .transpose_b = true,
                                   .alpha = 1,
                                   .beta = 1,
                                   .a = oa,
                                   .b = ob,
                                   .c = oc,
                                   .lda = K,
                                   .ldb = K,
                                   .ldc = N}});
    check(buffer_read(oc.buffer, 0, got, sizeof got, &err));
    check(device_sync(b->device, &err));
    for (uint32_t i = 0; i < M; i++)
        for (uint32_t j = 0; j < N; j++) {
            for (uint32_t p = 0; p < K; p++)
                c[i * N + j] += a[i * K + p] * w[j * K + p];
            /* blocks of at least 128 terms: at most 12 roundings of half of 2^-9 */
            assert_true(fabs((double)got[i * N + j] - c[i * N + j]) <= 12 * 0.5 / 512);
        }
    free(a), free(w), free(c);
}

static void thin_gemm_on(struct bench *b)
{
    for (uint32_t m = 1; m <= 9; m += 2) {
        gemm_case(b, false, m, 77, 150, false, true, 2, 0);
        gemm_case(b, false, 20 + m, 139, 143, false, false, 1, 1);
    }
}

static void larger_gemm_on(struct bench *b)
{
    gemm_case(b, false, 500, 16, 150, false, true, 2, 0);
    gemm_case(b, false, 500, 90, 150, false, true, 1, 1);
    gemm_case(b, false, 270, 16, 300, true, false, 1, 1);
    gemm_case(b, false, 16, 270, 300, true, false, 1, 1);
}

static void gemv_on(struct bench *b)
{
    gemm_case(b, false, 1, 96, 530, false, false, 1, 1);
    gemm_case(b, false, 70, 1, 530, false, true, 1, 0);
}

static void gemm_is_right_for_all_layouts(void **state)
{
    (void)state;
    each_device(gemm_on);
    each_device(gemv_on);
    each_device(thin_gemm_on);
    each_device(gemm_onto_large_c_on);
    each_device(larger_gemm_on);
}

static double norm_of(const double *x, const double *w, uint32_t n, uint32_t i, double eps)
{
    double sum = 0;
    for (uint32_t j = 0; j < n; j++)
        sum += x[j] * x[j];
    return x[i] * w[i] / sqrt(sum / n + eps);
}

static void rmsnorm_on(struct bench *b)
{
    enum { ROWS = 21, WIDTH = 83 };
    const double eps = 1e-5, h = 1e-6;
    double *x = doubles(ROWS * WIDTH), *w = doubles(WIDTH), *dy = doubles(ROWS * WIDTH),
           *y = doubles(ROWS * WIDTH);
    double *dx = doubles(ROWS * WIDTH);
    struct operand ox = normal(b, ROWS * WIDTH, x), ow = normal(b, WIDTH, w),
                   ody = normal(b, ROWS * WIDTH, dy);
    struct operand oy = empty(b, ROWS * WIDTH), odx = normal(b, ROWS * WIDTH, dx);
    submit(b,
           (struct op){
               .kind = OP_RMSNORM,
               .rmsnorm = {.rows = ROWS, .width = WIDTH, .eps = (float)eps, .x = ox, .weight = ow, .y = oy}});
    submit(b, (struct op){.kind = OP_RMSNORM_BACKWARD,
                          .rmsnorm_backward = {.rows = ROWS,
                                               .width = WIDTH,
                                               .eps = (float)eps,
                                               .accumulate = true,
                                               .x = ox,
                                               .weight = ow,
                                               .dy = ody,
                                               .dx = odx}});
    for (uint32_t row = 0; row < ROWS; row++)
        for (uint32_t i = 0; i < WIDTH; i++) {
            double *at = x + row * WIDTH, kept = at[i], slope = 0;
            y[row * WIDTH + i] = norm_of(at, w, WIDTH, i, eps);
            for (int sign = -1; sign <= 1; sign += 2) {
                at[i] = kept + sign * h;
                for (uint32_t j = 0; j < WIDTH; j++)
                    slope += sign * dy[row * WIDTH + j] * norm_of(at, w, WIDTH, j, eps) / (2 * h);
            }
            at[i] = kept;
            dx[row * WIDTH + i] += slope;
        }
    expect(b, oy, y, ROWS * WIDTH, 1e-6, "rmsnorm");
    expect(b, odx, dx, ROWS * WIDTH, 1e-6, "rmsnorm_backward");
    free(x), free(w), free(dy), free(y), free(dx);
}

static void rmsnorm_and_its_gradient_are_right(void **state)
{
    (void)state;
    each_device(rmsnorm_on);
}

static double silu_up(double g, double u)
{
    return g / (1 + exp(-g)) * u;
}

static void swiglu_on(struct bench *b)
{
    enum { ROWS = 18, WIDTH = 37 };
    const double h = 1e-6;
    double *gu = doubles(ROWS * 2 * WIDTH), *act = doubles(ROWS * WIDTH), *d = doubles(ROWS * WIDTH);
    struct operand ogu = normal(b, ROWS * 2 * WIDTH, gu), od = normal(b, ROWS * WIDTH, d),
                   oact = empty(b, ROWS * WIDTH);
    submit(b, (struct op){.kind = OP_GLU,
                          .glu = {.tokens = ROWS, .width = WIDTH, .gate_up = ogu, .act = oact}});
    submit(b, (struct op){.kind = OP_GLU_BACKWARD,
                          .glu_backward = {.tokens = ROWS, .width = WIDTH, .gate_up = ogu, .dact = od}});
    for (uint32_t row = 0; row < ROWS; row++)
        for (uint32_t i = 0; i < WIDTH; i++) {
            double *g = &gu[row * 2 * WIDTH + i], *u = g + WIDTH, gradient = d[row * WIDTH + i];
            act[row * WIDTH + i] = silu_up(*g, *u);
            double dg = (silu_up(*g + h, *u) - silu_up(*g - h, *u)) / (2 * h) * gradient;
            *u = silu_up(*g, 1) * gradient;
            *g = dg;
        }
    expect(b, oact, act, ROWS * WIDTH, 1e-6, "swiglu");
    expect(b, ogu, gu, ROWS * 2 * WIDTH, 1e-6, "swiglu_backward");
    free(gu), free(act), free(d);
}

static void swiglu_and_its_gradient_are_right(void **state)
{
    (void)state;
    each_device(swiglu_on);
}

static void rope_on(struct bench *b)
{
    enum { TOKENS = 40, HEADS = 3, DIM = 24, LD = HEADS * DIM + 5 };
    double *x = doubles(TOKENS * LD), *table = doubles(TOKENS * DIM), *turned = doubles(TOKENS * LD);
    uint32_t positions[TOKENS];
    struct operand ox = normal(b, TOKENS * LD, x), ot = normal(b, TOKENS * DIM, table);
    for (uint32_t t = 0; t < TOKENS; t++)
        positions[t] = (t * 7) % TOKENS;
    struct operand op = bytes_in(b, positions, sizeof positions, DTYPE_U32);
    struct op_rope rope = {.tokens = TOKENS,
                           .heads = HEADS,
                           .head_dim = DIM,
                           .ldx = LD,
                           .table_rows = TOKENS,
                           .x = ox,
                           .positions = op,
                           .table = ot};
    submit(b, (struct op){.kind = OP_ROPE, .rope = rope});
    memcpy(turned, x, sizeof(double) * TOKENS * LD);
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t i = 0; i < HEADS * DIM; i++) {
            uint32_t head = i / DIM * DIM, d = i % DIM, other = d < DIM / 2 ? d + DIM / 2 : d - DIM / 2;
            const double *cosines = table + positions[t] * DIM, *sines = cosines + DIM / 2;
            double sign = d < DIM / 2 ? -1 : 1;
            turned[t * LD + i] = x[t * LD + i] * cosines[d % (DIM / 2)] +
                                 sign * x[t * LD + head + other] * sines[d % (DIM / 2)];
        }
    expect(b, ox, turned, TOKENS * LD, 1e-6, "rope");
    /* The inverse is the transpose: x·R(y) = R⁻¹(x)·y for the linear map R. */
    double *y = doubles(TOKENS * LD), left = 0, right = 0;
    rope.x = normal(b, TOKENS * LD, y);
    rope.inverse = true;
    submit(b, (struct op){.kind = OP_ROPE, .rope = rope});
    struct err err;
    float *back = malloc(4ull * TOKENS * LD);
    check(buffer_read(rope.x.buffer, 0, back, 4ull * TOKENS * LD, &err));
    check(device_sync(b->device, &err));
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t i = 0; i < HEADS * DIM; i++) {
            left += y[t * LD + i] * turned[t * LD + i];
            right += (double)back[t * LD + i] * x[t * LD + i];
        }
    assert_true(fabs(left - right) <= 1e-5 * fabs(left));
    free(back), free(x), free(table), free(turned), free(y);
}

static void rope_turns_and_its_inverse_is_its_transpose(void **state)
{
    (void)state;
    each_device(rope_on);
}

static void cross_entropy_on(struct bench *b)
{
    enum { ROWS = 300, VOCAB = 61 };
    double *x = doubles(ROWS * VOCAB), loss = 3.5;
    int32_t targets[ROWS];
    struct operand ox = normal(b, ROWS * VOCAB, x);
    for (uint32_t i = 0; i < ROWS; i++)
        targets[i] = (int32_t)rand_stream_below(&b->stream, VOCAB);
    struct operand ot = bytes_in(b, targets, sizeof targets, DTYPE_I32),
                   ol = bytes_in(b, &loss, 8, DTYPE_F64);
    submit(b,
           (struct op){
               .kind = OP_CROSS_ENTROPY,
               .cross_entropy = {
                   .rows = ROWS, .vocab = VOCAB, .gradient = true, .logits = ox, .targets = ot, .loss = ol}});
    double want = loss, got;
    for (uint32_t i = 0; i < ROWS; i++) {
        double sum = 0, *row = x + i * VOCAB;
        for (uint32_t j = 0; j < VOCAB; j++)
            sum += exp(row[j]);
        want += log(sum) - row[targets[i]];
        for (uint32_t j = 0; j < VOCAB; j++)
            row[j] = exp(row[j]) / sum - (j == (uint32_t)targets[i] ? 1 : 0);
    }
    struct err err;
    check(buffer_read(ol.buffer, 0, &got, 8, &err));
    expect(b, ox, x, ROWS * VOCAB, 5e-7, "cross_entropy's gradient");
    assert_true(fabs(got - want) <= 1e-7 * want);
    free(x);
}

static void cross_entropy_and_its_gradient_are_right(void **state)
{
    (void)state;
    each_device(cross_entropy_on);
}

static void adamw_on(struct bench *b)
{
    enum { COUNT = 1003 };
    double *p = doubles(COUNT), *g = doubles(COUNT), *m = doubles(COUNT), *v = doubles(COUNT), squares = 0,
           got;
    struct operand op = normal(b, COUNT, p), og = normal(b, COUNT, g), om = normal(b, COUNT, m);
    float *second = malloc(4 * COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        v[i] = second[i] = (float)fabs(rand_stream_normal(&b->stream));
        squares += g[i] * g[i];
    }
    struct operand ov = bytes_in(b, second, 4 * COUNT, DTYPE_F32), os = bytes_in(b, NULL, 8, DTYPE_F64);
    const struct op_adamw update = {.count = COUNT,
                                    .learning_rate = 0.01,
                                    .beta1 = 0.9,
                                    .beta2 = 0.95,
                                    .eps = 1e-8,
                                    .weight_decay = 0.1,
                                    .grad_scale = 0.5,
                                    .bias_correction1 = 0.271,
                                    .bias_correction2 = 0.142625,
                                    .value = op,
                                    .gradient = og,
                                    .moment1 = om,
                                    .moment2 = ov};
    submit(b, (struct op){.kind = OP_SQUARE_SUM, .square_sum = {.count = COUNT, .x = og, .out = os}});
    submit(b, (struct op){.kind = OP_ADAMW, .adamw = update});
    for (uint32_t i = 0; i < COUNT; i++) {
        double gradient = g[i] * update.grad_scale;
        p[i] *= 1 - update.learning_rate * update.weight_decay;
        m[i] = update.beta1 * m[i] + (1 - update.beta1) * gradient;
        v[i] = update.beta2 * v[i] + (1 - update.beta2) * gradient * gradient;
        p[i] -= update.learning_rate / update.bias_correction1 * m[i] /
                (sqrt(v[i]) / sqrt(update.bias_correction2) + update.eps);
    }
    struct err err;
    check(buffer_read(os.buffer, 0, &got, 8, &err));
    expect(b, op, p, COUNT, 1e-6, "adamw's value");
    expect(b, om, m, COUNT, 1e-6, "adamw's first moment");
    expect(b, ov, v, COUNT, 1e-6, "adamw's second moment");
    assert_true(fabs(got - squares) <= 1e-12 * squares);
    free(p), free(g), free(m), free(v), free(second);
}

static void adamw_is_pytorchs(void **state)
{
    (void)state;
    each_device(adamw_on);
}

static void dropout_on(struct bench *b)
{
    enum { TOKENS = 29, WIDTH = 301, COUNT = TOKENS * WIDTH };
    double *x = doubles(COUNT), *y = doubles(COUNT), *t = doubles(COUNT), *dx = doubles(COUNT);
    uint32_t positions[TOKENS], rows[TOKENS], kept = 0;
    struct operand ox = normal(b, COUNT, x), oy = empty(b, COUNT), ot = normal(b, COUNT, t),
                   odx = normal(b, COUNT, dx);
    for (uint32_t i = 0; i < TOKENS; i++) {
        positions[i] = i % 10;
        rows[i] = 1000 + i / 10;
    }
    struct operand op = bytes_in(b, positions, sizeof positions, DTYPE_U32);
    struct operand orow = bytes_in(b, rows, sizeof rows, DTYPE_U32);
    submit(b, (struct op){.kind = OP_DROPOUT,
                          .dropout = {.tokens = TOKENS,
                                      .width = WIDTH,
                                      .p = 0.3f,
                                      .seed = 0x123456789abcull,
                                      .step = 17,
                                      .layer = 5,
                                      .target = 3,
                                      .x = ox,
                                      .positions = op,
                                      .row_ids = orow,
                                      .y = oy}});
    submit(b, (struct op){.kind = OP_DROPOUT_BACKWARD,
                          .dropout_backward = {.tokens = TOKENS,
                                               .width = WIDTH,
                                               .p = 0.3f,
                                               .seed = 0x123456789abcull,
                                               .step = 17,
                                               .layer = 5,
                                               .target = 3,
                                               .x = ox,
                                               .positions = op,
                                               .row_ids = orow,
                                               .t = ot,
                                               .dx = odx}});
    for (uint32_t token = 0; token < TOKENS; token++)
        for (uint32_t i = 0; i < WIDTH; i++) {
            const uint32_t key[2] = {0x56789abcu, 0x1234u};
            const uint32_t counter[4] = {positions[token], rows[token], 17, (5u << 20 | 3u << 16) + i / 8};
            uint32_t out[4], at = token * WIDTH + i;
            rand_u32x4(key, counter, out);
            bool keep = (out[i / 2 % 4] >> (i % 2 * 16) & 0xFFFF) < 0.7 * 65536;
            double factor = keep ? 1 / (1 - (double)0.3f) : 0;
            kept += keep;
            y[at] = x[at] * factor;
            dx[at] += t[at] * factor;
        }
    expect(b, oy, y, COUNT, 1e-6, "dropout");
    expect(b, ot, y, COUNT, 1e-6, "dropout_backward's t");
    expect(b, odx, dx, COUNT, 1e-6, "dropout_backward's dx");
    assert_in_range(kept, COUNT * 68 / 100, COUNT * 72 / 100);
    free(x), free(y), free(t), free(dx);
}

static void dropout_is_philox_by_row_position_and_feature(void **state)
{
    (void)state;
    each_device(dropout_on);
}

static void rows_on(struct bench *b)
{
    enum { ROWS = 9, WIDTH = 33, SOURCE = 20 };
    double *x = doubles(SOURCE * WIDTH), *y = doubles(ROWS * WIDTH), *back = doubles(SOURCE * WIDTH);
    uint32_t index[ROWS];
    struct operand ox = normal(b, SOURCE * WIDTH, x), oy = empty(b, ROWS * WIDTH),
                   oback = empty(b, SOURCE * WIDTH);
    struct operand oe = empty(b, ROWS * WIDTH);
    for (uint32_t i = 0; i < ROWS; i++)
        index[i] = 2 * i + 1;
    struct operand oi = bytes_in(b, index, sizeof index, DTYPE_U32), ids = oi;
    ids.dtype = DTYPE_I32;
    submit(b,
           (struct op){.kind = OP_GATHER_ROWS,
                       .gather_rows = {
                           .rows = ROWS, .width = WIDTH, .x_rows = SOURCE, .x = ox, .index = oi, .y = oy}});
    submit(b, (struct op){.kind = OP_SCATTER_ROWS,
                          .scatter_rows = {.rows = ROWS,
                                           .width = WIDTH,
                                           .y_rows = SOURCE,
                                           .scale = 2,
                                           .x = oy,
                                           .index = oi,
                                           .y = oback}});
    submit(b, (struct op){
                  .kind = OP_EMBED,
                  .embed = {
                      .tokens = ROWS, .hidden = WIDTH, .vocab = SOURCE, .ids = ids, .table = ox, .out = oe}});
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t j = 0; j < WIDTH; j++) {
            y[i * WIDTH + j] = x[index[i] * WIDTH + j];
            back[index[i] * WIDTH + j] = 2 * x[index[i] * WIDTH + j];
        }
    expect(b, oy, y, ROWS * WIDTH, 0, "gather_rows");
    expect(b, oback, back, SOURCE * WIDTH, 0, "scatter_rows");
    expect(b, oe, y, ROWS * WIDTH, 0, "embed");
    free(x), free(y), free(back);
}

static void rows_are_gathered_scattered_and_embedded(void **state)
{
    (void)state;
    each_device(rows_on);
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
    bench_close(&b);
}

static void told_at_the_wait(struct bench *b, const struct op *op, const char *word)
{
    struct err err;
    check(op_submit(b->device, op, &err));
    assert_int_equal(device_sync(b->device, &err), -1);
    assert_int_equal(err.code, ERR_INTERNAL);
    if (strstr(err.text, word) == NULL)
        fail_msg("'%s' does not say '%s'", err.text, word);
}

/* Each mistake on a device of its own: the first error stays. */
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
                       index = bytes_in(&b, far, sizeof far, DTYPE_U32);
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
        assert_false(event_done(event)); /* nothing runs before somebody waits */
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
        cmocka_unit_test(gemm_is_right_for_all_layouts),
        cmocka_unit_test(rmsnorm_and_its_gradient_are_right),
        cmocka_unit_test(swiglu_and_its_gradient_are_right),
        cmocka_unit_test(rope_turns_and_its_inverse_is_its_transpose),
        cmocka_unit_test(cross_entropy_and_its_gradient_are_right),
        cmocka_unit_test(adamw_is_pytorchs),
        cmocka_unit_test(dropout_is_philox_by_row_position_and_feature),
        cmocka_unit_test(rows_are_gathered_scattered_and_embedded),
        cmocka_unit_test(the_checked_device_tells_what_the_cpu_lets_pass),
        cmocka_unit_test(operands_are_checked_before_an_op_is_queued),
    };
    return run_each_isa(tests, sizeof tests / sizeof tests[0]);
}
