/* Measures how fast packed weights become fp32, for each kind: GB of fp32 written per second of CPU time.
 *
 *     bench_engine_unpack [THREADS [ISA]]
 *
 * It uses a matrix of 64 Ki values (whose output stays in a core's cache) and one of 16 Mi values, and also
 * measures quantisation to NF4. It prints the median of 9 runs and their spread.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/rand.h"
#include "engine/device/op.h"
#include "model/files/nf4.h"

enum { RUNS = 9, SMALL = 1 << 16, LARGE = 1 << 24 };

static const char *const names[PACK_KINDS] = {
    [PACK_F32] = "f32",
    [PACK_BF16] = "bf16",
    [PACK_F16] = "f16",
    [PACK_NF4] = "nf4",
    [PACK_NF4_DOUBLE] = "nf4 double",
    [PACK_Q4_0] = "q4_0",
    [PACK_Q4_1] = "q4_1",
    [PACK_Q8_0] = "q8_0",
    [PACK_Q4_K] = "q4_k",
    [PACK_Q5_K] = "q5_k",
    [PACK_Q6_K] = "q6_k",
};

static int fail(const struct err *err)
{
    fprintf(stderr, "bench_engine_unpack: %s\n", err->text);
    return 1;
}

/* Returns the CPU time of all threads, because others may use the machine, too. */
static uint64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(const char *what, double *seconds, double bytes)
{
    qsort(seconds, RUNS, sizeof(*seconds), compare);
    printf("%-24s %7.2f GB/s of fp32 (spread %.0f %%)\n", what, bytes / seconds[RUNS / 2] * 1e-9,
           100 * (seconds[RUNS - 1] - seconds[0]) / seconds[RUNS / 2]);
}

/* Makes an operand with `bytes` random bytes, or zeros. */
static int operand_make(struct device *device, uint64_t bytes, enum dtype dtype, bool random,
                        struct operand *out, struct err *err)
{
    struct buffer *buffer;
    if (buffer_create(device, bytes, MEM_BUFFERS, "bench", &buffer, err) != 0)
        return -1;
    *out = (struct operand){.buffer = buffer, .dtype = dtype};
    uint32_t *values = calloc(bytes / 4 + 1, 4);
    if (!values)
        return err_set(err, ERR_NOMEM, "out of memory");
    struct rand_stream stream;
    rand_stream_init(&stream, 1, 1);
    for (uint64_t i = 0; i < bytes / 4 && random; i++)
        values[i] = rand_stream_u32(&stream) & 0x3f3f3f3f; /* gives neither infinities nor NaNs */
    int status = buffer_write(buffer, 0, values, bytes, err);
    free(values);
    return status;
}

static int unpack_time(struct device *device, enum pack_kind pack, uint64_t count, struct err *err)
{
    const enum dtype plain[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    struct op op = {.kind = OP_UNPACK, .unpack = {.pack = pack, .count = count, .total = count}};
    struct op_unpack *o = &op.unpack;
    double seconds[RUNS];
    char what[64];
    uint64_t times = 1 + LARGE / count;
    if (operand_make(device, pack_bytes(pack, count), pack <= PACK_F16 ? plain[pack] : DTYPE_U8, true, &o->x,
                     err) != 0 ||
        operand_make(device, 4 * nf4_blocks(count), pack == PACK_NF4 ? DTYPE_F32 : DTYPE_U8, true, &o->absmax,
                     err) != 0 ||
        operand_make(device, 4 * nf4_scales(count), DTYPE_F32, true, &o->scales, err) != 0 ||
        operand_make(device, 4 * count, DTYPE_F32, false, &o->y, err) != 0)
        return -1;
    for (int run = 0; run < RUNS; run++) {
        uint64_t begin = cpu_ns();
        for (uint64_t i = 0; i < times; i++)
            if (op_submit(device, &op, err) != 0)
                return -1;
        seconds[run] = (double)(cpu_ns() - begin) * 1e-9 / (double)times;
    }
    snprintf(what, sizeof(what), "%s, %llu Ki", names[pack], (unsigned long long)count >> 10);
    print(what, seconds, 4.0 * (double)count);
    buffer_destroy(o->x.buffer);
    buffer_destroy(o->absmax.buffer);
    buffer_destroy(o->scales.buffer);
    buffer_destroy(o->y.buffer);
    return 0;
}

static int quantise_time(struct err *err)
{
    float *values = malloc(4ull * SMALL), *absmax = malloc(4 * nf4_blocks(SMALL));
    uint8_t *codes = malloc(nf4_code_bytes(SMALL));
    double seconds[RUNS];
    struct rand_stream stream;
    rand_stream_init(&stream, 1, 1);
    if (!values || !absmax || !codes) {
        free(values), free(absmax), free(codes);
        return err_set(err, ERR_NOMEM, "out of memory");
    }
    for (uint32_t i = 0; i < SMALL; i++)
        values[i] = (float)rand_stream_normal(&stream);
    for (int run = 0; run < RUNS; run++) {
        uint64_t begin = cpu_ns();
        for (int i = 0; i < 64; i++)
            nf4_quantise(values, SMALL, codes, absmax);
        seconds[run] = (double)(cpu_ns() - begin) * 1e-9 / 64;
    }
    print("nf4 made, one thread", seconds, 4.0 * SMALL);
    free(values), free(absmax), free(codes);
    return 0;
}

int main(int argc, char **argv)
{
    struct err err;
    struct device *device;
    struct device_options options = {.kind = "cpu",
                                     .name = "bench",
                                     .threads = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1,
                                     .isa = argc > 2 ? argv[2] : NULL};
    if (device_open(&options, &device, &err) != 0)
        return fail(&err);
    printf("%s, %u threads\n", device_isa(device), device_threads(device));
    for (int pack = 0; pack < PACK_KINDS; pack++)
        if (unpack_time(device, (enum pack_kind)pack, SMALL, &err) != 0 ||
            unpack_time(device, (enum pack_kind)pack, LARGE, &err) != 0)
            return fail(&err);
    device_close(device);
    return quantise_time(&err) == 0 ? 0 : fail(&err);
}
