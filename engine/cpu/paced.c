/* A CPU device that takes the time of another device: it computes each op at once, as `cpu` does, and then
 * says by its own clock when the op would have ended. For tests and what-ifs alone.
 *
 * Each queue has a clock that stands at the end of its last work. An op begins when it is submitted, or when
 * the work before it ends if that is later, and takes a launch plus the longer of its arithmetic and its
 * memory traffic (the roofline of Williams et al. 2009). Nobody sleeps for an op. Who waits for an event
 * sleeps until the time at which it was recorded. As long as the given rates are well below what the CPU
 * does, the times do not depend on the CPU, so an error of a predicted time is the prediction's, and a few
 * cores carry many devices.
 */
#include "engine/cpu/cpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NS_PER_S = 1000000000 };

struct paced {
    struct device base;
    struct cpu_runner runner;
    struct thread_pool *alone; /* a pool of one thread, for the queues that move tensors */
    struct device_pace pace;
    _Atomic uint64_t end_ns[DEVICE_QUEUES]; /* CLOCK_MONOTONIC; each is written by its queue's thread */
};

static uint64_t clock_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static void sleep_until(uint64_t ns)
{
    const struct timespec at = {.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
    while (clock_now() < ns && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
        continue;
}

static struct paced *paced_of(struct device *device)
{
    return (struct paced *)device;
}

/* Lengthens a queue by `seconds` of work that was submitted at `submitted`. */
static void queue_extend(struct paced *paced, enum device_queue queue, uint64_t submitted, double seconds)
{
    uint64_t end = paced->end_ns[queue];
    paced->end_ns[queue] = (end > submitted ? end : submitted) + (uint64_t)(seconds * NS_PER_S);
}

static int paced_open(const struct device_options *options, struct device **out, struct err *err)
{
    const struct device_pace *pace = options->pace;
    if (!pace || !(pace->flops > 0) || !(pace->flops_16 > 0) || !(pace->bytes_per_s > 0) ||
        !(pace->bus_bytes_per_s > 0) || !(pace->launch_s >= 0))
        return err_set(err, ERR_INVALID, "a paced device needs its rates, all above 0");
    struct paced *paced = calloc(1, sizeof(*paced));
    if (!paced)
        return err_set(err, ERR_NOMEM, "out of memory for a device");
    if (pool_create(1, &paced->alone, err) != 0 || cpu_runner_init(&paced->runner, options, err) != 0) {
        pool_destroy(paced->alone);
        free(paced);
        return -1;
    }
    paced->pace = *pace;
    paced->base.isa = paced->runner.kernels->isa;
    *out = &paced->base;
    return 0;
}

static void paced_close(struct device *device)
{
    struct paced *paced = paced_of(device);
    cpu_runner_fini(&paced->runner);
    pool_destroy(paced->alone);
    free(paced);
}

static int paced_sync(struct device *device, struct err *err)
{
    (void)err;
    for (int i = 0; i < DEVICE_QUEUES; i++)
        sleep_until(paced_of(device)->end_ns[i]);
    return 0;
}

/* Pairs of query and key that an attention looks at. */
static double pairs(const struct op_attention *op)
{
    const uint32_t *start = operand_at(&op->row_start);
    double sum = 0;
    for (uint32_t i = 0; i < op->rows; i++) {
        double length = (double)start[i + 1] - start[i];
        double seen = op->window > 0 && op->window < length ? op->window : length;
        sum += seen * (length - seen) + seen * seen / 2; /* causal: half of the square */
    }
    return sum;
}

/* What op_flops must be told: it stands in the op's buffers. */
static double paced_counted(const struct op *op)
{
    switch (op->kind) {
    case OP_GEMM_GROUPED: {
        const uint32_t *offsets = operand_at(&op->gemm_grouped.offsets);
        return (double)offsets[op->gemm_grouped.first + op->gemm_grouped.groups] -
               offsets[op->gemm_grouped.first];
    }
    case OP_ATTENTION:
        return pairs(&op->attention);
    case OP_ATTENTION_BACKWARD:
        return pairs(&op->attention_backward.forward);
    default:
        return 0;
    }
}

static double op_seconds(const struct device_pace *pace, const struct op *op)
{
    const double arithmetic =
        op_flops(op, paced_counted(op)) / (op_in_16_bits(op) ? pace->flops_16 : pace->flops);
    const double traffic = op_bytes(op) / pace->bytes_per_s;
    return pace->launch_s + (arithmetic > traffic ? arithmetic : traffic);
}

static bool paced_supports(const struct device *device, const struct op *op)
{
    (void)device;
    return cpu_runs(op);
}

static int paced_submit(enum device_queue queue, struct device *device, const struct op *op, struct err *err)
{
    struct paced *paced = paced_of(device);
    const uint64_t submitted = clock_now();
    struct cpu_runner runner = paced->runner;
    if (queue != DEVICE_COMPUTE)
        runner.pool = paced->alone;
    if (cpu_run(&runner, op, err) != 0)
        return -1;
    queue_extend(paced, queue, submitted, op_seconds(&paced->pace, op));
    return 0;
}

static int paced_write(enum device_queue queue, struct buffer *buffer, uint64_t at, const void *src,
                       uint64_t bytes, struct err *err)
{
    (void)err;
    struct paced *paced = paced_of(buffer->device);
    queue_extend(paced, queue, clock_now(), (double)bytes / paced->pace.bus_bytes_per_s);
    memcpy((uint8_t *)buffer->memory + at, src, bytes);
    return 0;
}

static int paced_read(enum device_queue queue, struct buffer *buffer, uint64_t at, void *dst, uint64_t bytes,
                      struct err *err)
{
    (void)err;
    struct paced *paced = paced_of(buffer->device);
    queue_extend(paced, queue, clock_now(), (double)bytes / paced->pace.bus_bytes_per_s);
    memcpy(dst, (const uint8_t *)buffer->memory + at, bytes);
    return 0;
}

static int paced_copy(enum device_queue queue, struct buffer *dst, uint64_t dst_at, struct buffer *src,
                      uint64_t src_at, uint64_t bytes, struct err *err)
{
    (void)err;
    struct paced *paced = paced_of(dst->device);
    queue_extend(paced, queue, clock_now(), 2.0 * (double)bytes / paced->pace.bytes_per_s);
    memmove((uint8_t *)dst->memory + dst_at, (const uint8_t *)src->memory + src_at, bytes);
    return 0;
}

static int paced_zero(enum device_queue queue, struct buffer *buffer, uint64_t at, uint64_t bytes,
                      struct err *err)
{
    (void)err;
    struct paced *paced = paced_of(buffer->device);
    queue_extend(paced, queue, clock_now(), (double)bytes / paced->pace.bytes_per_s);
    memset((uint8_t *)buffer->memory + at, 0, bytes);
    return 0;
}

/* An event's ticket is the time at which it is done, 0 before it was recorded. */
static int paced_record(enum device_queue queue, struct event *event, struct err *err)
{
    (void)err;
    uint64_t now = clock_now(), end = paced_of(event->device)->end_ns[queue];
    event->ticket = end > now ? end : now;
    return 0;
}

static int paced_wait(struct event *event, uint64_t timeout_ns, struct err *err)
{
    uint64_t now = clock_now();
    if (event->ticket > now && event->ticket - now > timeout_ns) {
        sleep_until(now + timeout_ns);
        return err_set(err, ERR_TIMEOUT, "device %s: not done after %.3f s", event->device->name,
                       (double)timeout_ns / NS_PER_S);
    }
    sleep_until(event->ticket);
    return 0;
}

static bool paced_done(const struct event *event)
{
    return event->ticket <= clock_now();
}

static int paced_queue_wait(enum device_queue queue, struct event *event, struct err *err)
{
    (void)err;
    struct paced *paced = paced_of(event->device);
    if (event->ticket > paced->end_ns[queue])
        paced->end_ns[queue] = event->ticket;
    return 0;
}

static int paced_elapsed(const struct event *from, const struct event *to, double *seconds, struct err *err)
{
    (void)err;
    *seconds = ((double)to->ticket - (double)from->ticket) / NS_PER_S;
    return 0;
}

const struct backend backend_paced = {
    .kind = "paced",
    .device = &(const struct device_ops){.open = paced_open, .close = paced_close, .sync = paced_sync},
    .buffer = &(const struct buffer_ops){.create = cpu_buffer_create,
                                         .destroy = cpu_buffer_destroy,
                                         .write = paced_write,
                                         .read = paced_read,
                                         .copy = paced_copy,
                                         .zero = paced_zero,
                                         .export_handle = cpu_buffer_export,
                                         .import_handle = cpu_buffer_import},
    .op = &(const struct op_ops){.supports = paced_supports, .submit = paced_submit},
    .event = &(const struct event_ops){.record = paced_record,
                                       .wait = paced_wait,
                                       .done = paced_done,
                                       .queue_wait = paced_queue_wait,
                                       .elapsed = paced_elapsed},
};
