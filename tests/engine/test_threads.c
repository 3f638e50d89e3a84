/* Products and attention give the same bits with any number of threads, for shapes around every limit at
 * which another kernel is chosen or work is divided, on every instruction set of this machine. There are also
 * enough parts for many threads, and a thread that has no CPU holds up no op. */
#include "engine/cpu/pool.h"
#include "engine/cpu/product.h"
#include "engine/ops.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { THREADS_MAX = 8, SIDE_MAX = 1025, DEPTH = 150 };

struct product {
    uint32_t m, n;
    bool ta, tb;
    float beta;
};

/* Devices with one to eight threads, each with the same matrices, large enough for the largest product. */
struct crowd {
    struct bench benches[THREADS_MAX];
    struct operand a[THREADS_MAX], w[THREADS_MAX], c[THREADS_MAX];
    float *start, *one, *more; /* c before the product, after it with one thread, and with more threads */
};

static void crowd_open(struct crowd *crowd)
{
    struct err err;
    double *copy = doubles(SIDE_MAX * SIDE_MAX);
    memset(crowd, 0, sizeof(*crowd));
    crowd->start = calloc(SIDE_MAX * SIDE_MAX, sizeof(float));
    crowd->one = calloc(SIDE_MAX * SIDE_MAX, sizeof(float));
    crowd->more = calloc(SIDE_MAX * SIDE_MAX, sizeof(float));
    for (uint32_t t = 0; t < THREADS_MAX; t++) {
        struct bench *b = &crowd->benches[t];
        struct device_options options = {.kind = "cpu", .name = "ops", .threads = t + 1, .isa = bench_isa};
        check(device_open(&options, &b->device, &err));
        rand_stream_init(&b->stream, 42, 0);
        crowd->a[t] = normal(b, SIDE_MAX * DEPTH, copy);
        crowd->w[t] = normal(b, SIDE_MAX * DEPTH, copy);
        for (uint32_t i = 0; i < SIDE_MAX * DEPTH; i++)
            crowd->start[i] = (float)copy[i];
        crowd->c[t] = empty(b, SIDE_MAX * SIDE_MAX);
    }
    free(copy);
}

static void crowd_close(struct crowd *crowd)
{
    for (uint32_t t = 0; t < THREADS_MAX; t++)
        bench_close(&crowd->benches[t]);
    free(crowd->start);
    free(crowd->one);
    free(crowd->more);
}

static void multiply(struct crowd *crowd, const struct product *p, uint32_t t, float *out)
{
    struct err err;
    uint64_t bytes = 4ull * p->m * p->n;
    if (p->beta != 0)
        check(buffer_write(crowd->c[t].buffer, 0, crowd->start, bytes, &err));
    submit(&crowd->benches[t], (struct op){.kind = OP_GEMM,
                                           .gemm = {.m = p->m,
                                                    .n = p->n,
                                                    .k = DEPTH,
                                                    .transpose_a = p->ta,
                                                    .transpose_b = p->tb,
                                                    .alpha = 1,
                                                    .beta = p->beta,
                                                    .a = crowd->a[t],
                                                    .b = crowd->w[t],
                                                    .c = crowd->c[t],
                                                    .lda = p->ta ? p->m : DEPTH,
                                                    .ldb = p->tb ? DEPTH : p->n,
                                                    .ldc = p->n}});
    check(buffer_read(crowd->c[t].buffer, 0, out, bytes, &err));
    check(device_sync(crowd->benches[t].device, &err));
}

static void all_give_the_same(struct crowd *crowd, const struct product *p)
{
    size_t count = (size_t)p->m * p->n;
    multiply(crowd, p, 0, crowd->one);
    for (uint32_t t = 1; t < THREADS_MAX; t++) {
        multiply(crowd, p, t, crowd->more);
        if (memcmp(crowd->one, crowd->more, count * sizeof(float)) == 0)
            continue;
        size_t i = 0;
        while (memcmp(&crowd->one[i], &crowd->more[i], sizeof(float)) == 0)
            i++;
        fail_msg("[%u,%u]%s%s: at [%zu,%zu] %u threads gave %.9g and one %.9g (%s)", p->m, p->n,
                 p->ta ? " a transposed" : "", p->tb ? " b transposed" : "", i / p->n, i % p->n, t + 1,
                 (double)crowd->more[i], (double)crowd->one[i], bench_isa);
    }
}

/* Sizes on both sides of the limits 4 (dot products), 24 (copied panels), 48 and 64 (parts), 192 (the
 * library), 240 (strips), and 512 and 1024 (the library's pieces), also when eight threads divide them. */
static const uint32_t around[] = {1,   4,   5,   23,  24,  47,  48,  49,  52,  64,  65,  97,
                                  129, 192, 193, 240, 241, 289, 385, 433, 511, 512, 577, 1025};

static void a_product_does_not_depend_on_the_number_of_threads(void **state)
{
    (void)state;
    static const uint32_t other[] = {1, 4, 20, 64, 100, 289};
    struct crowd crowd;
    crowd_open(&crowd);
    for (size_t i = 0; i < sizeof(around) / sizeof(*around); i++)
        for (size_t j = 0; j < 2 * (sizeof(other) / sizeof(*other)); j++) {
            struct product p = {.m = around[i], .n = other[j / 2], .beta = (float)(i % 2)};
            if (j % 2)
                p = (struct product){.m = p.n, .n = p.m, .beta = p.beta};
            for (int layout = 0; layout < 3; layout++) {
                p.ta = layout == 2;
                p.tb = layout == 0;
                all_give_the_same(&crowd, &p);
            }
        }
    crowd_close(&crowd);
}

/* --- attention --- */

/* An attention case with heads of 20 values; q, k and v are stored side by side. */
struct attention_case {
    uint32_t rows, heads, kv_heads, window;
    float cap;
    uint32_t row_start[6];
};

enum { HEAD = 20, TOKENS_MAX = 700 };

struct attention_bench {
    struct operand row_start, qkv, out, lse, dout, delta, dqkv;
};

static void attention_submit(struct bench *b, const struct attention_case *c, struct attention_bench *a)
{
    uint32_t tokens = c->row_start[c->rows], ld = (c->heads + 2 * c->kv_heads) * HEAD;
    struct operand k = a->qkv, v = a->qkv, dk = a->dqkv, dv = a->dqkv;
    k.at += 4ull * c->heads * HEAD;
    v.at += 4ull * (c->heads + c->kv_heads) * HEAD;
    dk.at += 4ull * c->heads * HEAD;
    dv.at += 4ull * (c->heads + c->kv_heads) * HEAD;
    const struct op_attention forward = {.rows = c->rows,
                                         .tokens = tokens,
                                         .heads = c->heads,
                                         .kv_heads = c->kv_heads,
                                         .head_dim = HEAD,
                                         .ld = ld,
                                         .window = c->window,
                                         .scale = 0.2f,
                                         .cap = c->cap,
                                         .q = a->qkv,
                                         .k = k,
                                         .v = v,
                                         .row_start = a->row_start,
                                         .out = a->out,
                                         .lse = a->lse};
    submit(b, (struct op){.kind = OP_ATTENTION, .attention = forward});
    submit(
        b,
        (struct op){
            .kind = OP_ATTENTION_BACKWARD,
            .attention_backward = {
                .forward = forward, .dout = a->dout, .delta = a->delta, .dq = a->dqkv, .dk = dk, .dv = dv}});
}

/* Computes out and lse, then dqkv, on one device. */
static void attention_run(const struct attention_case *c, uint32_t threads, float *results)
{
    struct err err;
    struct bench b = {0};
    uint32_t tokens = c->row_start[c->rows], width = c->heads * HEAD, ld = width + 2 * c->kv_heads * HEAD;
    double *copy = doubles(TOKENS_MAX * ld);
    struct device_options options = {.kind = "cpu", .name = "ops", .threads = threads, .isa = bench_isa};
    check(device_open(&options, &b.device, &err));
    rand_stream_init(&b.stream, 9, 0);
    struct attention_bench a = {.row_start = bytes_in(&b, c->row_start, sizeof(c->row_start), DTYPE_U32),
                                .qkv = normal(&b, tokens * ld, copy),
                                .dout = normal(&b, tokens * width, copy),
                                .out = empty(&b, tokens * width),
                                .lse = empty(&b, tokens * c->heads),
                                .delta = empty(&b, tokens * c->heads),
                                .dqkv = empty(&b, tokens * ld)};
    attention_submit(&b, c, &a);
    check(buffer_read(a.out.buffer, 0, results, 4ull * tokens * width, &err));
    results += (size_t)tokens * width;
    check(buffer_read(a.lse.buffer, 0, results, 4ull * tokens * c->heads, &err));
    results += (size_t)tokens * c->heads;
    check(buffer_read(a.dqkv.buffer, 0, results, 4ull * tokens * ld, &err));
    check(device_sync(b.device, &err));
    bench_close(&b);
    free(copy);
}

/* The cases have one long row, rows of very unlike lengths (one is empty), and rows as long as one or two
 * tiles or one token more. The key heads are 1 to 3, so the tests' 2, 3 and 8 threads are sometimes more and
 * sometimes fewer. */
static const struct attention_case attention_cases[] = {
    {.rows = 1, .heads = 4, .kv_heads = 1, .row_start = {0, 333}},
    {.rows = 1, .heads = 2, .kv_heads = 2, .cap = 2, .row_start = {0, 640}},
    {.rows = 1, .heads = 6, .kv_heads = 2, .window = 100, .row_start = {0, 450}},
    {.rows = 5, .heads = 3, .kv_heads = 1, .window = 70, .row_start = {0, 1, 401, 401, 464, 530}},
    {.rows = 3, .heads = 3, .kv_heads = 3, .row_start = {0, 64, 192, 257}},
    {.rows = 2, .heads = 9, .kv_heads = 3, .row_start = {0, 500, 510}},
};

static void attention_does_not_depend_on_the_number_of_threads(void **state)
{
    (void)state;
    static const uint32_t threads[] = {2, 3, 8};
    const size_t most = (size_t)TOKENS_MAX * 15 * HEAD * 3;
    float *one = malloc(most * sizeof(*one)), *more = malloc(most * sizeof(*more));
    for (size_t i = 0; i < sizeof(attention_cases) / sizeof(*attention_cases); i++) {
        const struct attention_case *c = &attention_cases[i];
        size_t count = (size_t)c->row_start[c->rows] * (2 * (c->heads + c->kv_heads) * HEAD + c->heads);
        attention_run(c, 1, one);
        for (size_t t = 0; t < sizeof(threads) / sizeof(*threads); t++) {
            memset(more, 0, count * sizeof(*more));
            attention_run(c, threads[t], more);
            for (size_t v = 0; v < count; v++)
                if (memcmp(&one[v], &more[v], sizeof(*one)) != 0)
                    fail_msg("case %zu, value %zu: %u threads gave %.9g and one %.9g (%s)", i, v, threads[t],
                             (double)more[v], (double)one[v], bench_isa);
        }
    }
    free(one);
    free(more);
}

/* Counts the parts that have work, and checks that parts lie within their rows and that their queries are, by
 * number, all queries of all rows once for each key head. */
static uint32_t parts_count(const struct attention_cut *cut)
{
    uint32_t count = 0, queries = 0;
    struct attention_part part;
    for (uint32_t i = 0; i < attention_parts(cut); i++)
        if (attention_part_at(cut, i, &part)) {
            assert_true(part.row < cut->rows && part.kv < cut->kv_heads);
            assert_in_range(part.end - part.begin, 1, cut->step);
            assert_int_equal(part.begin % cut->step, 0);
            assert_in_range(part.end, 1, cut->row_start[part.row + 1] - cut->row_start[part.row]);
            queries += part.end - part.begin;
            count++;
        }
    assert_int_equal(queries, cut->row_start[cut->rows] * cut->kv_heads);
    return count;
}

static void sixteen_threads_have_work_for_one_long_row(void **state)
{
    (void)state;
    const uint32_t one[] = {0, 2048}, four[] = {0, 57, 128, 128, 246};
    struct attention_cut cut = attention_forward_cut(1, one, 9, 3);
    assert_int_equal(parts_count(&cut), 3 * 2048 / 64);
    /* Each query head has its own key head, and a part has 3 tiles of queries. */
    cut = attention_forward_cut(1, one, 16, 16);
    assert_int_equal(parts_count(&cut), 16 * 11);
    cut = attention_backward_cut(16, 1, one, 3);
    assert_int_equal(cut.step, ATTENTION_TILE);
    assert_int_equal(parts_count(&cut), 3 * 2048 / ATTENTION_TILE);
    cut = attention_backward_cut(2, 1, one, 3); /* For two threads the heads alone are enough parts. */
    assert_int_equal(parts_count(&cut), 3);
    cut = attention_backward_cut(4, 4, four, 3); /* For four threads short rows and heads are enough parts. */
    assert_int_equal(parts_count(&cut), 9);
    cut = attention_backward_cut(2, 1, one, 1);
    assert_int_equal(parts_count(&cut), 2048 / ATTENTION_TILE);
}

/* The forward products of one row of a model with hidden size 576, like SmolLM2, and of one with 2048: rows
 * by outputs. */
static void sixteen_threads_have_work_for_the_products_of_one_row(void **state)
{
    (void)state;
    static const uint32_t shapes[][2] = {{2048, 576}, {2048, 1536}, {4096, 192},  {2048, 16}, {192, 576},
                                         {128, 2048}, {1024, 2048}, {1024, 8192}, {64, 49152}};
    struct cpu_runner runner;
    struct err err;
    struct device_options options = {.kind = "cpu", .name = "parts", .threads = 16, .isa = bench_isa};
    check(cpu_runner_init(&runner, &options, &err));
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
        struct op_gemm op = {.m = shapes[i][0], .n = shapes[i][1], .k = 576, .transpose_b = true, .alpha = 1};
        uint32_t parts = product_parts(&runner, &op);
        if (parts < 16)
            fail_msg("[%u,%u] falls into %u parts", op.m, op.n, parts);
    }
    cpu_runner_fini(&runner);
}

/* --- threads without a CPU --- */

enum { FROZEN_SECONDS_MAX = 30 };

static atomic_int helper_id;
static int frozen[2], thawed[2]; /* pipes: a byte when the helper is frozen, and one that lets it go on */

static void helper_seen(void *context, uint32_t index, uint32_t thread)
{
    (void)context;
    (void)index;
    if (thread == 1)
        atomic_store(&helper_id, (int)syscall(SYS_gettid));
    for (int turn = 0; thread == 0 && turn < 1000000 && atomic_load(&helper_id) == 0; turn++)
        sched_yield(); /* leaves the other part to the helper */
}

/* Whether the helper sleeps, and so holds no lock. */
static bool helper_sleeps(void)
{
    char path[64], state = 0;
    snprintf(path, sizeof(path), "/proc/self/task/%d/stat", atomic_load(&helper_id));
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*d (%*[^)]) %c", &state), 1);
    fclose(file);
    return state == 'S';
}

static void part_counted(void *context, uint32_t index, uint32_t thread)
{
    (void)thread;
    atomic_fetch_add((atomic_int *)context, 1 << 8 * (int)index);
}

/* Keeps the helper in this handler, as a scheduler does that gives it no CPU. */
static void freeze(int signal)
{
    char byte = (char)signal;
    if (write(frozen[1], &byte, 1) != 1 || read(thawed[0], &byte, 1) != 1)
        abort();
}

static void a_thread_without_a_cpu_holds_up_no_op(void **state)
{
    (void)state;
    struct thread_pool *pool;
    struct err err;
    atomic_int done = 0;
    check(pool_create(2, &pool, &err));
    for (int turn = 0; turn < 1000 && atomic_load(&helper_id) == 0; turn++)
        pool_run(pool, 2, helper_seen, NULL);
    assert_int_not_equal(atomic_load(&helper_id), 0);
    assert_int_equal(pipe(frozen) | pipe(thawed), 0);
    while (!helper_sleeps())
        sched_yield();
    signal(SIGUSR1, freeze);
    assert_int_equal(syscall(SYS_tgkill, getpid(), atomic_load(&helper_id), SIGUSR1), 0);
    char byte;
    assert_int_equal(read(frozen[0], &byte, 1), 1);
    alarm(FROZEN_SECONDS_MAX); /* a pool that waits for the helper never comes back */
    for (int op = 0; op < 100; op++)
        pool_run(pool, 2, part_counted, &done);
    alarm(0);
    assert_int_equal(atomic_load(&done), 100 << 8 | 100);
    assert_int_equal(write(thawed[1], &byte, 1), 1);
    for (int op = 0; op < 100; op++)
        pool_run(pool, 2, part_counted, &done);
    assert_int_equal(atomic_load(&done), 200 << 8 | 200);
    pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_product_does_not_depend_on_the_number_of_threads),
        cmocka_unit_test(attention_does_not_depend_on_the_number_of_threads),
        cmocka_unit_test(sixteen_threads_have_work_for_one_long_row),
        cmocka_unit_test(sixteen_threads_have_work_for_the_products_of_one_row),
        cmocka_unit_test(a_thread_without_a_cpu_holds_up_no_op),
    };
    return run_each_isa(tests, sizeof(tests) / sizeof(*tests));
}
