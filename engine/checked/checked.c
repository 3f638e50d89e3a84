/* A device for tests that runs the CPU's ops as late as possible and checks everything. A queue runs only
 * when somebody waits, and only up to the event that is waited for; other queues run only as far as that
 * queue's own waits demand. So work of another queue comes as late as its events allow, and a missing event
 * shows as a read of memory that nobody wrote.
 *
 * Buffers are inaccessible (PROT_NONE) except while the device works on them, so the use of a stray host
 * pointer faults. Fresh memory is filled with NaNs and has a shadow bit for every 4 bytes, so reading memory
 * that nobody wrote is an error. An op's written operands may not overlap its other operands. Indices are
 * compared with the size of what they index. The first error of a queued op is kept and returned by every
 * later wait.
 */
#include "engine/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { QUEUE_MAX = 1 << 14 }; /* most entries of a queue; a full queue runs them */

enum entry_kind { ENTRY_OP, ENTRY_WRITE, ENTRY_READ, ENTRY_COPY, ENTRY_ZERO, ENTRY_WAIT };

struct queue_entry {
    enum entry_kind kind;
    struct op op;
    struct buffer *buffer, *source;
    uint64_t at, source_at, bytes;
    void *host;
    enum device_queue other; /* ENTRY_WAIT: wait until this queue has run `until` entries */
    uint64_t until;
};

/* A ring buffer of entries. Counting from the first entry ever queued, [ran, queued) are pending. */
struct entries {
    struct queue_entry *ring;
    uint64_t ran, queued;
};

struct checked_device {
    struct device base;
    struct cpu_runner runner;
    pthread_mutex_t run; /* guards everything below: only one thread runs entries at a time */
    struct entries queues[DEVICE_QUEUES];
    bool failed;
    struct err error;
};

static void checked_free(struct checked_device *checked)
{
    for (int i = 0; i < DEVICE_QUEUES; i++)
        free(checked->queues[i].ring);
    free(checked);
}

static int checked_open(const struct device_options *options, struct device **out, struct err *err)
{
    struct checked_device *checked = calloc(1, sizeof(*checked));
    if (!checked)
        return err_set(err, ERR_NOMEM, "out of memory for a device");
    int status = cpu_runner_init(&checked->runner, options, err);
    for (int i = 0; i < DEVICE_QUEUES && status == 0; i++) {
        checked->queues[i].ring = calloc(QUEUE_MAX, sizeof(*checked->queues[i].ring));
        if (!checked->queues[i].ring)
            status = err_set(err, ERR_NOMEM, "out of memory for a queue");
    }
    if (status != 0) {
        cpu_runner_fini(&checked->runner);
        checked_free(checked);
        return -1;
    }
    pthread_mutex_init(&checked->run, NULL);
    checked->base.isa = checked->runner.kernels->isa;
    *out = &checked->base;
    return 0;
}

static void guard(struct buffer *buffer, int protection)
{
    if (buffer->memory)
        mprotect(buffer->memory, buffer->accounted, protection);
}

static void shadow_mark(struct buffer *buffer, uint64_t at, uint64_t bytes)
{
    uint8_t *shadow = buffer->extra;
    for (uint64_t word = at / 4; word < (at + bytes + 3) / 4; word++)
        shadow[word / 8] |= (uint8_t)(1u << (word % 8));
}

static bool shadow_marked(const struct buffer *buffer, uint64_t at, uint64_t bytes)
{
    const uint8_t *shadow = buffer->extra;
    for (uint64_t word = at / 4; word < (at + bytes + 3) / 4; word++)
        if ((shadow[word / 8] & (1u << (word % 8))) == 0)
            return false;
    return true;
}

static void use_span(const struct operand_use *use, uint64_t *begin, uint64_t *end)
{
    uint32_t size = dtype_bytes(use->operand.dtype);
    *begin = use->operand.at;
    *end = *begin + ((use->rows - 1) * use->ld + use->width) * size;
}

/* Do two operands share a byte? Interleaved columns of one matrix (q, k, v) do not. */
static bool uses_overlap(const struct operand_use *a, const struct operand_use *b)
{
    uint64_t a_begin, a_end, b_begin, b_end;
    if (a->operand.buffer != b->operand.buffer || a->rows == 0 || a->width == 0 || b->rows == 0 ||
        b->width == 0)
        return false;
    use_span(a, &a_begin, &a_end);
    use_span(b, &b_begin, &b_end);
    if (a_end <= b_begin || b_end <= a_begin)
        return false;
    if (a->ld != b->ld || a->rows == 1 || b->rows == 1)
        return true;
    uint64_t row = a->ld * dtype_bytes(a->operand.dtype);
    uint64_t distance =
        a_begin > b_begin ? (a_begin - b_begin) % row : (row - (b_begin - a_begin) % row) % row;
    uint64_t a_width = a->width * dtype_bytes(a->operand.dtype),
             b_width = b->width * dtype_bytes(b->operand.dtype);
    /* modulo `row`, b's columns are [0, b_width) and a's are [distance, distance + a_width) */
    return distance < b_width || distance + a_width > row;
}

static int checked_overlap_check(const struct op *op, const struct operand_use *uses, uint32_t count,
                                 struct err *err)
{
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = 0; j < count; j++) {
            if (i == j || (uses[i].access & OPERAND_WRITE) == 0 || !uses_overlap(&uses[i], &uses[j]))
                continue;
            bool in_place =
                (op->kind == OP_RMSNORM || op->kind == OP_RMSNORM_BACKWARD || op->kind == OP_GATE_BACKWARD) &&
                uses[i].operand.at == uses[j].operand.at && uses[i].ld == uses[j].ld;
            if (!in_place)
                return err_set(err, ERR_INTERNAL, "op %s: operand %s is written and overlaps %s",
                               op_name(op->kind), uses[i].name, uses[j].name);
        }
    return 0;
}

static int read_check(const struct op *op, const struct operand_use *use, struct err *err)
{
    uint32_t size = dtype_bytes(use->operand.dtype);
    for (uint64_t row = 0; row < use->rows; row++)
        if (!shadow_marked(use->operand.buffer, use->operand.at + row * use->ld * size, use->width * size))
            return err_set(err, ERR_INTERNAL, "op %s: operand %s, row %llu, was never written",
                           op_name(op->kind), use->name, (unsigned long long)row);
    return 0;
}

/* A copy into vectors with gaps neither reads nor writes what lies between them. */
static bool has_gaps(const struct op *op, const struct operand_use *use)
{
    return op->kind == OP_COPY && use->access == OPERAND_UPDATE;
}

static void write_mark(const struct op *op, const struct operand_use *use)
{
    bool gaps = has_gaps(op, use);
    uint32_t size = dtype_bytes(use->operand.dtype), vectors = gaps ? op->copy.vectors : 1;
    uint64_t width = gaps ? op->copy.width : use->width, apart = gaps ? op->copy.vy : 0;
    for (uint64_t row = 0; row < use->rows; row++)
        for (uint32_t v = 0; v < vectors; v++)
            shadow_mark(use->operand.buffer, use->operand.at + (row * use->ld + v * apart) * size,
                        width * size);
}

static int checked_below_check(const struct op *op, const char *name, const struct operand *operand,
                               uint32_t count, uint64_t bound, struct err *err)
{
    const uint32_t *values = operand_at(operand);
    for (uint32_t i = 0; i < count; i++)
        if (values[i] >= bound && !(op->kind == OP_CROSS_ENTROPY && values[i] == UINT32_MAX))
            return err_set(err, ERR_INTERNAL, "op %s: %s[%u] is %lld, not in [0, %llu)", op_name(op->kind),
                           name, i, (long long)(int32_t)values[i], (unsigned long long)bound);
    return 0;
}

static int checked_starts_check(const struct op *op, const struct operand *operand, uint32_t rows,
                                uint32_t tokens, struct err *err)
{
    const uint32_t *start = operand_at(operand);
    for (uint32_t i = 0; i < rows; i++)
        if (start[i] > start[i + 1])
            return err_set(err, ERR_INTERNAL, "op %s: row %u ends before it begins", op_name(op->kind), i);
    if (start[0] != 0 || start[rows] != tokens)
        return err_set(err, ERR_INTERNAL, "op %s: rows cover [%u, %u) of %u tokens", op_name(op->kind),
                       start[0], start[rows], tokens);
    return 0;
}

/* Checks that the op's indices are within what they index. */
static int contents_check(const struct op *op, struct err *err)
{
    switch (op->kind) {
    case OP_EMBED:
        return checked_below_check(op, "ids", &op->embed.ids, op->embed.tokens, op->embed.vocab, err);
    case OP_EMBED_BACKWARD:
        return checked_below_check(op, "ids", &op->embed_backward.ids, op->embed_backward.tokens,
                                   op->embed_backward.vocab, err);
    case OP_EMBED_NOISE:
        return checked_starts_check(op, &op->embed_noise.row_start, op->embed_noise.rows,
                                    op->embed_noise.tokens, err);
    case OP_ROPE:
        return checked_below_check(op, "positions", &op->rope.positions, op->rope.tokens, op->rope.table_rows,
                                   err);
    case OP_GATHER_ROWS:
        return checked_below_check(op, "index", &op->gather_rows.index, op->gather_rows.rows,
                                   op->gather_rows.x_rows, err);
    case OP_SCATTER_ROWS:
        return checked_below_check(op, "index", &op->scatter_rows.index, op->scatter_rows.rows,
                                   op->scatter_rows.y_rows, err);
    case OP_CROSS_ENTROPY:
        return checked_below_check(op, "targets", &op->cross_entropy.targets, op->cross_entropy.rows,
                                   op->cross_entropy.vocab, err);
    case OP_ATTENTION:
        return checked_starts_check(op, &op->attention.row_start, op->attention.rows, op->attention.tokens,
                                    err);
    case OP_ATTENTION_BACKWARD:
        return checked_starts_check(op, &op->attention_backward.forward.row_start,
                                    op->attention_backward.forward.rows,
                                    op->attention_backward.forward.tokens, err);
    default:
        return 0;
    }
}

/* A grouped product touches only the rows of its groups; other rows may not have been written yet. Wrong
 * offsets are reported later, when the op itself reads them. */
static void groups_narrow(const struct op_gemm_grouped *op, struct operand_use *uses, uint32_t count)
{
    const struct operand *at = &op->offsets;
    if (op->groups == 0 || !shadow_marked(at->buffer, at->at, 4 * (op->groups_all + 1ull)))
        return;
    guard(at->buffer, PROT_READ);
    const uint32_t *offsets = operand_at(at);
    uint32_t begin = offsets[op->first], end = offsets[op->first + op->groups];
    guard(at->buffer, PROT_NONE);
    for (uint32_t i = 0; i < count && begin <= end && end <= op->rows; i++)
        if (strcmp(uses[i].name, "offsets") != 0 && strcmp(uses[i].name, op->transpose_a ? "c" : "b") != 0) {
            uses[i].operand.at += (uint64_t)dtype_bytes(uses[i].operand.dtype) * begin * uses[i].ld;
            uses[i].rows = end - begin;
        }
}

static int run_op(struct checked_device *checked, const struct op *op, struct err *err)
{
    struct operand_use uses[OP_OPERANDS_MAX];
    uint32_t count = op_operands(op, uses);
    if (op->kind == OP_GEMM_GROUPED)
        groups_narrow(&op->gemm_grouped, uses, count);
    int status = checked_overlap_check(op, uses, count, err);
    for (uint32_t i = 0; i < count && status == 0; i++)
        if ((uses[i].access & OPERAND_READ) != 0 && uses[i].rows != 0 && uses[i].width != 0 &&
            !has_gaps(op, &uses[i]))
            status = read_check(op, &uses[i], err);
    if (status != 0)
        return -1;
    for (uint32_t i = 0; i < count; i++)
        if (uses[i].operand.buffer)
            guard(uses[i].operand.buffer, PROT_READ | PROT_WRITE);
    status = contents_check(op, err);
    if (status == 0)
        status = cpu_run(&checked->runner, op, err);
    for (uint32_t i = 0; i < count; i++) {
        if (!uses[i].operand.buffer)
            continue;
        guard(uses[i].operand.buffer, PROT_NONE);
        if ((uses[i].access & OPERAND_WRITE) != 0 && uses[i].rows != 0 && uses[i].width != 0)
            write_mark(op, &uses[i]);
    }
    return status;
}

static int checked_run_copy(const struct queue_entry *entry, struct err *err)
{
    if (!shadow_marked(entry->source, entry->source_at, entry->bytes))
        return err_set(err, ERR_INTERNAL, "a copy of %llu bytes reads what was never written",
                       (unsigned long long)entry->bytes);
    guard(entry->source, PROT_READ | PROT_WRITE);
    guard(entry->buffer, PROT_READ | PROT_WRITE);
    memmove((uint8_t *)entry->buffer->memory + entry->at, (uint8_t *)entry->source->memory + entry->source_at,
            entry->bytes);
    guard(entry->source, PROT_NONE);
    guard(entry->buffer, PROT_NONE);
    shadow_mark(entry->buffer, entry->at, entry->bytes);
    return 0;
}

static void queue_run(struct checked_device *checked, enum device_queue queue, uint64_t until);

static int run_entry(struct checked_device *checked, const struct queue_entry *entry, struct err *err)
{
    struct buffer *buffer = entry->buffer;
    switch (entry->kind) {
    case ENTRY_OP:
        return run_op(checked, &entry->op, err);
    case ENTRY_COPY:
        return checked_run_copy(entry, err);
    case ENTRY_WRITE:
    case ENTRY_ZERO:
        guard(buffer, PROT_READ | PROT_WRITE);
        if (entry->kind == ENTRY_WRITE)
            memcpy((uint8_t *)buffer->memory + entry->at, entry->host, entry->bytes);
        else
            memset((uint8_t *)buffer->memory + entry->at, 0, entry->bytes);
        guard(buffer, PROT_NONE);
        shadow_mark(buffer, entry->at, entry->bytes);
        return 0;
    case ENTRY_READ:
        if (!shadow_marked(buffer, entry->at, entry->bytes))
            return err_set(err, ERR_INTERNAL, "the host reads %llu bytes that were never written",
                           (unsigned long long)entry->bytes);
        guard(buffer, PROT_READ);
        memcpy(entry->host, (uint8_t *)buffer->memory + entry->at, entry->bytes);
        guard(buffer, PROT_NONE);
        return 0;
    case ENTRY_WAIT:
        queue_run(checked, entry->other, entry->until);
        return 0;
    }
    return 0;
}

/* Run a queue until it has run `until` entries. Called with the lock held. Entries behind an error are
 * dropped, and the error stays. The recursion ends because a wait is always for entries queued before it. */
static void queue_run(struct checked_device *checked, enum device_queue queue, uint64_t until)
{
    struct entries *entries = &checked->queues[queue];
    while (entries->ran < until) {
        const struct queue_entry *entry = &entries->ring[entries->ran % QUEUE_MAX];
        if (!checked->failed && run_entry(checked, entry, &checked->error) != 0)
            checked->failed = true;
        entries->ran++;
    }
}

static int queue_push(enum device_queue queue, struct device *device, const struct queue_entry *entry,
                      struct err *err)
{
    struct checked_device *checked = (struct checked_device *)device;
    struct entries *entries = &checked->queues[queue];
    pthread_mutex_lock(&checked->run);
    if (entries->queued - entries->ran == QUEUE_MAX)
        queue_run(checked, queue, entries->queued);
    bool failed = checked->failed;
    if (failed)
        *err = checked->error;
    else
        entries->ring[entries->queued++ % QUEUE_MAX] = *entry;
    pthread_mutex_unlock(&checked->run);
    return failed ? -1 : 0;
}

static int checked_sync(struct device *device, struct err *err)
{
    struct checked_device *checked = (struct checked_device *)device;
    pthread_mutex_lock(&checked->run);
    for (int i = 0; i < DEVICE_QUEUES; i++)
        queue_run(checked, (enum device_queue)i, checked->queues[i].queued);
    bool failed = checked->failed;
    if (failed)
        *err = checked->error;
    pthread_mutex_unlock(&checked->run);
    return failed ? -1 : 0;
}

static void checked_close(struct device *device)
{
    struct checked_device *checked = (struct checked_device *)device;
    struct err ignored;
    checked_sync(device, &ignored);
    cpu_runner_fini(&checked->runner);
    pthread_mutex_destroy(&checked->run);
    checked_free(checked);
}

static int checked_create(struct buffer *buffer, struct err *err)
{
    if (buffer->accounted == 0)
        return 0;
    buffer->extra = calloc(1, buffer->accounted / 32 + 1);
    buffer->memory = pages_alloc(buffer->accounted);
    if (!buffer->memory || !buffer->extra) {
        pages_free(buffer->memory, buffer->accounted);
        free(buffer->extra);
        return err_set(err, ERR_NOMEM, "no memory");
    }
    memset(buffer->memory, 0xFF, buffer->accounted);
    guard(buffer, PROT_NONE);
    return 0;
}

static void checked_destroy(struct buffer *buffer)
{
    struct err ignored; /* the device keeps the error */
    checked_sync(buffer->device, &ignored);
    pages_free(buffer->memory, buffer->accounted);
    free(buffer->extra);
}

static int checked_write(enum device_queue queue, struct buffer *buffer, uint64_t at, const void *src,
                         uint64_t bytes, struct err *err)
{
    struct queue_entry entry = {.kind = ENTRY_WRITE, .buffer = buffer, .at = at, .bytes = bytes};
    memcpy(&entry.host, &src, sizeof(src)); /* a cast without const; the memory is only read */
    return queue_push(queue, buffer->device, &entry, err);
}

static int checked_read(enum device_queue queue, struct buffer *buffer, uint64_t at, void *dst,
                        uint64_t bytes, struct err *err)
{
    struct queue_entry entry = {.kind = ENTRY_READ, .buffer = buffer, .at = at, .bytes = bytes, .host = dst};
    return queue_push(queue, buffer->device, &entry, err);
}

static int checked_copy(enum device_queue queue, struct buffer *dst, uint64_t dst_at, struct buffer *src,
                        uint64_t src_at, uint64_t bytes, struct err *err)
{
    struct queue_entry entry = {
        .kind = ENTRY_COPY, .buffer = dst, .at = dst_at, .source = src, .source_at = src_at, .bytes = bytes};
    return queue_push(queue, dst->device, &entry, err);
}

static int checked_zero(enum device_queue queue, struct buffer *buffer, uint64_t at, uint64_t bytes,
                        struct err *err)
{
    struct queue_entry entry = {.kind = ENTRY_ZERO, .buffer = buffer, .at = at, .bytes = bytes};
    return queue_push(queue, buffer->device, &entry, err);
}

static bool checked_supports(const struct device *device, const struct op *op)
{
    (void)device;
    return cpu_runs(op);
}

static int checked_submit(enum device_queue queue, struct device *device, const struct op *op,
                          struct err *err)
{
    struct queue_entry entry = {.kind = ENTRY_OP, .op = *op};
    return queue_push(queue, device, &entry, err);
}

static int checked_record(enum device_queue queue, struct event *event, struct err *err)
{
    struct checked_device *checked = (struct checked_device *)event->device;
    (void)err;
    pthread_mutex_lock(&checked->run);
    event->ticket = checked->queues[queue].queued;
    pthread_mutex_unlock(&checked->run);
    return 0;
}

static int checked_wait(struct event *event, uint64_t timeout_ns, struct err *err)
{
    struct checked_device *checked = (struct checked_device *)event->device;
    (void)timeout_ns;
    pthread_mutex_lock(&checked->run);
    queue_run(checked, event->queue, event->ticket);
    bool failed = checked->failed;
    if (failed)
        *err = checked->error;
    pthread_mutex_unlock(&checked->run);
    return failed ? -1 : 0;
}

static bool checked_done(const struct event *event)
{
    struct checked_device *checked = (struct checked_device *)event->device;
    pthread_mutex_lock(&checked->run);
    bool done = checked->queues[event->queue].ran >= event->ticket;
    pthread_mutex_unlock(&checked->run);
    return done;
}

static int checked_queue_wait(enum device_queue queue, struct event *event, struct err *err)
{
    if (queue == event->queue)
        return 0;
    struct queue_entry entry = {.kind = ENTRY_WAIT, .other = event->queue, .until = event->ticket};
    return queue_push(queue, event->device, &entry, err);
}

const struct backend backend_checked = {
    .kind = "checked",
    .device = &(const struct device_ops){.open = checked_open, .close = checked_close, .sync = checked_sync},
    .buffer = &(const struct buffer_ops){.create = checked_create,
                                         .destroy = checked_destroy,
                                         .write = checked_write,
                                         .read = checked_read,
                                         .copy = checked_copy,
                                         .zero = checked_zero},
    .op = &(const struct op_ops){.supports = checked_supports, .submit = checked_submit},
    .event = &(const struct event_ops){.record = checked_record,
                                       .wait = checked_wait,
                                       .done = checked_done,
                                       .queue_wait = checked_queue_wait},
};
