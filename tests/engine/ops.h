/* Shared parts of the ops' tests: a device with buffers of random numbers and the same numbers in double.
 * Tests run on the CPU device and on the checked device (each_device), and on each instruction set of this
 * machine (run_each_isa): in a process each, because a process loads the matrix library once. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/rand.h"
#include "engine/device/op.h"
#include "support/must.h"

enum { ARRAYS_MAX = 120 };

/* A device and its buffers, each with a copy of its values in double. */
struct bench {
    struct device *device;
    struct buffer *buffers[ARRAYS_MAX];
    float *kept[ARRAYS_MAX]; /* host memory that queued copies read until the device has finished */
    uint32_t count;
    struct rand_stream stream;
};

static const char *bench_isa;

/* The function that opens devices. bench/gpu/gpu_check.c defines another one, which watches their launches.
 */
#ifndef DEVICE_OPEN
#define DEVICE_OPEN device_open
#endif

static inline void bench_open(struct bench *b, const char *kind)
{
    struct err err;
    memset(b, 0, sizeof(*b));
    struct device_options options = {.kind = kind, .name = "ops", .threads = 2, .isa = bench_isa};
    check(DEVICE_OPEN(&options, &b->device, &err));
    rand_stream_init(&b->stream, 42, 0);
}

static inline void bench_close(struct bench *b)
{
    struct err err;
    check(device_sync(b->device, &err));
    for (uint32_t i = 0; i < b->count; i++) {
        buffer_destroy(b->buffers[i]);
        free(b->kept[i]);
    }
    device_close(b->device);
}

static inline struct operand bytes_in(struct bench *b, const void *values, uint64_t bytes, enum dtype dtype)
{
    struct err err;
    assert_true(b->count < ARRAYS_MAX);
    struct buffer **buffer = &b->buffers[b->count];
    check(buffer_create(b->device, bytes, MEM_BUFFERS, "test", buffer, &err));
    b->kept[b->count] = malloc(bytes + 1);
    if (values) {
        memcpy(b->kept[b->count], values, bytes);
        check(buffer_write(*buffer, 0, b->kept[b->count], bytes, &err));
    }
    b->count++;
    return (struct operand){.buffer = *buffer, .dtype = dtype};
}

/* Fills a buffer with normally distributed numbers, and writes exactly the same numbers in double. */
static inline struct operand normal(struct bench *b, uint32_t count, double *copy)
{
    float *values = malloc(4ull * count);
    for (uint32_t i = 0; i < count; i++)
        copy[i] = values[i] = (float)rand_stream_normal(&b->stream);
    struct operand operand = bytes_in(b, values, 4ull * count, DTYPE_F32);
    free(values);
    return operand;
}

static inline struct operand empty(struct bench *b, uint32_t count)
{
    return bytes_in(b, NULL, 4ull * count, DTYPE_F32);
}

static inline void submit(struct bench *b, struct op op)
{
    struct err err;
    assert_true(op_supports(b->device, &op));
    check(op_submit(b->device, &op, &err));
}

/* Checks the largest error relative to the largest expected magnitude. */
static inline void expect(struct bench *b, struct operand got, const double *want, uint32_t count,
                          double tolerance, const char *what)
{
    struct err err;
    float *values = malloc(4ull * count);
    double worst = 0, scale = 1e-30;
    check(buffer_read(got.buffer, got.at, values, 4ull * count, &err));
    check(device_sync(b->device, &err));
    for (uint32_t i = 0; i < count; i++) {
        worst = fmax(worst, fabs((double)values[i] - want[i]));
        scale = fmax(scale, fabs(want[i]));
        if (isnan(values[i]))
            fail_msg("%s[%u] is not a number (%s, %s)", what, i, device_kind(b->device),
                     device_isa(b->device));
    }
    if (worst > tolerance * scale)
        fail_msg("%s is off by %.2e of %.2e (%s, %s)", what, worst, scale, device_kind(b->device),
                 device_isa(b->device));
    free(values);
}

static inline double *doubles(uint32_t count)
{
    return calloc(count, sizeof(double));
}

static inline void each_device(void (*test)(struct bench *b))
{
    const char *const kinds[] = {"cpu", "checked"};
    for (int i = 0; i < 2; i++) {
        struct bench b;
        bench_open(&b, kinds[i]);
        test(&b);
        bench_close(&b);
    }
}

static inline int run_each_isa(const struct CMUnitTest *tests, size_t count)
{
    const char *const isas[] = {"sse42", "avx2", "avx512", "avx512-bf16", "amx"};
    int failed = 0;
    for (int i = 0; i < 5; i++) {
        struct device *device;
        struct err err;
        pid_t child = fork();
        if (child == 0) {
            bench_isa = isas[i];
            if (device_open(&(struct device_options){.kind = "cpu", .name = "try", .isa = isas[i]}, &device,
                            &err) != 0)
                _exit(err.code == ERR_UNSUPPORTED ? 77 : 1);
            device_close(device);
            exit(_cmocka_run_group_tests(isas[i], tests, count, NULL, NULL) == 0 ? 0 : 1);
        }
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status))
            failed++;
        else if (WEXITSTATUS(status) == 77)
            printf("[  SKIPPED ] this CPU has no %s\n", isas[i]);
        else
            failed += WEXITSTATUS(status) != 0;
    }
    return failed != 0;
}
