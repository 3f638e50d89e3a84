/* The CPU device. An op runs when it is submitted, on the submitting thread, so every event is done when it
 * is recorded. Queues other than DEVICE_COMPUTE have no helper threads, because moving tensors needs little
 * computation. */
#include "engine/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/shape/footprint.h"

struct cpu {
    struct device base;
    struct cpu_runner runner;
    struct thread_pool *alone; /* a pool of one thread, for the other queues */
};

int cpu_runner_init(struct cpu_runner *runner, const struct device_options *options, struct err *err)
{
    uint32_t threads = options->threads == 0 ? 1 : options->threads;
    memset(runner, 0, sizeof(*runner));
    runner->kernels = isa_kernels(options->isa, err);
    if (!runner->kernels || blas_open(runner->kernels->isa, &runner->blas, err) != 0)
        return -1;
    size_t floats = attention_scratch_floats();
    floats = floats < ROUNDED_SCRATCH ? ROUNDED_SCRATCH : floats;
    runner->scratch_floats = (floats + 1023) / 1024 * 1024;
    runner->scratch_bytes = footprint_counted(threads * runner->scratch_floats * sizeof(float));
    runner->scratch = pages_alloc(runner->scratch_bytes);
    if (!runner->scratch)
        return err_set(err, ERR_NOMEM, "out of memory for %u threads' scratch", threads);
    if (pool_create(threads, &runner->pool, err) != 0) {
        cpu_runner_fini(runner);
        return -1;
    }
    return 0;
}

void cpu_runner_fini(struct cpu_runner *runner)
{
    pool_destroy(runner->pool);
    pages_free(runner->scratch, runner->scratch_bytes);
    memset(runner, 0, sizeof(*runner));
}

static uint64_t largest_cache(void)
{
    long third = sysconf(_SC_LEVEL3_CACHE_SIZE), second = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return third > 0 ? (uint64_t)third : second > 0 ? (uint64_t)second : 0;
}

static int cpu_open(const struct device_options *options, struct device **out, struct err *err)
{
    struct cpu *cpu = calloc(1, sizeof(*cpu));
    if (!cpu)
        return err_set(err, ERR_NOMEM, "out of memory for a device");
    if (pool_create(1, &cpu->alone, err) != 0 || cpu_runner_init(&cpu->runner, options, err) != 0) {
        pool_destroy(cpu->alone);
        free(cpu);
        return -1;
    }
    cpu->base.isa = cpu->runner.kernels->isa;
    cpu->base.cache_bytes = largest_cache();
    *out = &cpu->base;
    return 0;
}

static void cpu_close(struct device *device)
{
    struct cpu *cpu = (struct cpu *)device;
    cpu_runner_fini(&cpu->runner);
    pool_destroy(cpu->alone);
    free(cpu);
}

static int cpu_sync(struct device *device, struct err *err)
{
    (void)device;
    (void)err;
    return 0;
}

int cpu_buffer_create(struct buffer *buffer, struct err *err)
{
    if (buffer->accounted == 0)
        return 0;
    if (buffer->shared) {
        buffer->extra = calloc(1, 64);
        if (buffer->extra)
            buffer->memory = pages_alloc_shared(buffer->device, buffer->accounted, buffer->extra);
    } else {
        buffer->memory = pages_alloc(buffer->accounted);
    }
    if (buffer->memory)
        return 0;
    free(buffer->extra);
    return err_set(err, ERR_NOMEM, "no memory");
}

void cpu_buffer_destroy(struct buffer *buffer)
{
    pages_free(buffer->memory, buffer->imported ? footprint_counted(buffer->bytes) : buffer->accounted);
    if (buffer->extra)
        pages_release_shared(buffer->extra);
    free(buffer->extra);
}

int cpu_buffer_export(struct buffer *buffer, uint8_t handle[64], struct err *err)
{
    (void)err;
    memcpy(handle, buffer->extra, 64);
    return 0;
}

int cpu_buffer_import(struct buffer *buffer, const uint8_t handle[64], struct err *err)
{
    buffer->memory = pages_import(handle, footprint_counted(buffer->bytes));
    return buffer->memory ? 0
                          : err_set(err, ERR_NOT_FOUND, "who shared these %llu bytes is gone",
                                    (unsigned long long)buffer->bytes);
}

static int cpu_write(enum device_queue queue, struct buffer *buffer, uint64_t at, const void *src,
                     uint64_t bytes, struct err *err)
{
    (void)queue;
    (void)err;
    memcpy((uint8_t *)buffer->memory + at, src, bytes);
    return 0;
}

static int cpu_read(enum device_queue queue, struct buffer *buffer, uint64_t at, void *dst, uint64_t bytes,
                    struct err *err)
{
    (void)queue;
    (void)err;
    memcpy(dst, (const uint8_t *)buffer->memory + at, bytes);
    return 0;
}

static int engine_cpu_copy(enum device_queue queue, struct buffer *dst, uint64_t dst_at, struct buffer *src,
                           uint64_t src_at, uint64_t bytes, struct err *err)
{
    (void)queue;
    (void)err;
    memmove((uint8_t *)dst->memory + dst_at, (const uint8_t *)src->memory + src_at, bytes);
    return 0;
}

static int cpu_zero(enum device_queue queue, struct buffer *buffer, uint64_t at, uint64_t bytes,
                    struct err *err)
{
    (void)queue;
    (void)err;
    memset((uint8_t *)buffer->memory + at, 0, bytes);
    return 0;
}

static bool cpu_supports(const struct device *device, const struct op *op)
{
    (void)device;
    return cpu_runs(op);
}

static int cpu_submit(enum device_queue queue, struct device *device, const struct op *op, struct err *err)
{
    struct cpu *cpu = (struct cpu *)device;
    if (queue == DEVICE_COMPUTE)
        return cpu_run(&cpu->runner, op, err);
    struct cpu_runner alone = cpu->runner;
    alone.pool = cpu->alone;
    return cpu_run(&alone, op, err);
}

static int cpu_event_record(enum device_queue queue, struct event *event, struct err *err)
{
    (void)queue;
    (void)err;
    event->ticket++;
    return 0;
}

static int cpu_event_wait(struct event *event, uint64_t timeout_ns, struct err *err)
{
    (void)event;
    (void)timeout_ns;
    (void)err;
    return 0;
}

static bool cpu_event_done(const struct event *event)
{
    (void)event;
    return true;
}

static int cpu_queue_wait(enum device_queue queue, struct event *event, struct err *err)
{
    (void)queue;
    (void)event;
    (void)err;
    return 0;
}

const struct backend backend_cpu = {
    .kind = "cpu",
    .device = &(const struct device_ops){.open = cpu_open, .close = cpu_close, .sync = cpu_sync},
    .buffer = &(const struct buffer_ops){.create = cpu_buffer_create,
                                         .destroy = cpu_buffer_destroy,
                                         .write = cpu_write,
                                         .read = cpu_read,
                                         .copy = engine_cpu_copy,
                                         .zero = cpu_zero,
                                         .export_handle = cpu_buffer_export,
                                         .import_handle = cpu_buffer_import},
    .op = &(const struct op_ops){.supports = cpu_supports, .submit = cpu_submit},
    .event = &(const struct event_ops){.record = cpu_event_record,
                                       .wait = cpu_event_wait,
                                       .done = cpu_event_done,
                                       .queue_wait = cpu_queue_wait},
};
