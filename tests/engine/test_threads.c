/* A product's numbers are the same bits whatever the number of threads: for shapes around every threshold at
 * which another kernel is chosen or work is cut, on every instruction set this machine has. */
#include "engine/ops.h"

enum { THREADS_MAX = 8, SIDE_MAX = 1025, DEPTH = 150 };

struct product {
    uint32_t m, n;
    bool ta, tb;
    float beta;
};

/* Devices of one to eight threads, each with the same matrices, as large as the largest product. */
struct crowd {
    struct bench benches[THREADS_MAX];
    struct operand a[THREADS_MAX], w[THREADS_MAX], c[THREADS_MAX];
    float *start, *one, *more; /* c before, and after */
};

static void crowd_open(struct crowd *crowd)
{
    struct err err;
    double *copy = doubles(SIDE_MAX * SIDE_MAX);
    memset(crowd, 0, sizeof *crowd);
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

/* On both sides of 4 (dot products), 24 (copied panels), 48 and 64 (parts), 192 (the library), 240 (strips)
 * and 512 and 1024 (the library's pieces), and of what eight threads make of them. */
static const uint32_t around[] = {1,   4,   5,   23,  24,  47,  48,  49,  52,  64,  65,  97,
                                  129, 192, 193, 240, 241, 289, 385, 433, 511, 512, 577, 1025};

static void a_product_does_not_depend_on_the_number_of_threads(void **state)
{
    (void)state;
    static const uint32_t other[] = {1, 4, 20, 64, 100, 289};
    struct crowd crowd;
    crowd_open(&crowd);
    for (size_t i = 0; i < sizeof around / sizeof *around; i++)
        for (size_t j = 0; j < 2 * (sizeof other / sizeof *other); j++) {
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_product_does_not_depend_on_the_number_of_threads),
    };
    return run_each_isa(tests, sizeof tests / sizeof *tests);
}
