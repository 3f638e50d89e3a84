/* Passes that a device may record and replay as a whole. The ops that a stage queues for a micro-batch depend
 * only on the shape, the slot and the buffers; a shard always queues the same ops for its sums of squares.
 */
#include "engine/stage/recorded.h"

/* One step of a hash of 64-bit words (the finaliser of splitmix64; Steele et al. 2014). */
static uint64_t recorded_mix(uint64_t key, uint64_t word)
{
    uint64_t z = (key ^ word) + 0x9E3779B97F4A7C15ull;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

static uint64_t recorded_mix_double(uint64_t key, double value)
{
    union {
        double value;
        uint64_t bits;
    } same = {.value = value};
    return recorded_mix(key, same.bits);
}

static uint64_t mix_buffer(uint64_t key, const struct buffer *buffer, uint64_t at)
{
    return !buffer ? recorded_mix(key, 0) : recorded_mix(recorded_mix(key, buffer_serial(buffer)), at);
}

/* Hashes everything on which a pass's ops and operands depend. The stage's options are represented by the
 * serial number of its scalars' buffer. Whatever else ops come to depend on must be added here. What changes
 * in every step (ids, rows, the step's number) is in the micro-batch's description on the device. */
static uint64_t pass_key(const struct stage_pass *pass, const struct pass_range *range)
{
    const struct stage *stage = pass->stage;
    const struct saved *slot = pass->slot;
    uint64_t key = buffer_serial(stage->scalars);
    key = recorded_mix(recorded_mix(recorded_mix(key, range->kind), range->begin), range->end);
    if (pass->padded) /* boundary tensors are copied outside the pass */
        key = recorded_mix(recorded_mix(key, range->in != NULL), range->out != NULL);
    else
        key = mix_buffer(mix_buffer(key, range->in, 0), range->out, 0);
    key = recorded_mix_double(key, (double)stage->loss_scale);
    key = mix_buffer(key, slot->buffer, 0);
    if (range->kind == PASS_HEAD)
        key = recorded_mix(recorded_mix(key, slot->labelled_padded), pass->padded ? 0 : slot->tokens);
    else
        key = recorded_mix(recorded_mix(key, pass->rows), pass->tokens);
    key = recorded_mix_double(recorded_mix(key, pass->train), slot->router_scale);
    for (uint32_t b = stage->options.block_begin; b < stage->options.block_end; b++) {
        const struct block_state *block = stage_block(stage, b);
        key = mix_buffer(key, block->frozen, block->frozen_at);
        key = mix_buffer(key, block->trained, block->trained_at);
        key = mix_buffer(key, block->gradients, block->gradients_at);
    }
    return key;
}

static void recorded_run(struct op_queue *queue, uint64_t key, void (*queue_all)(void *context),
                         void *context)
{
    bool replayed, again;
    if (queue->failed)
        return;
    if (device_pass_begin(queue->device, key == 0 ? 1 : key, &replayed, queue->err) != 0) {
        queue->failed = true;
        return;
    }
    if (replayed)
        return;
    queue_all(context);
    if (device_pass_end(queue->device, !queue->failed, &again, queue->err) != 0)
        queue->failed = true;
    if (!again)
        return;
    queue->failed = false;
    queue_all(context);
}

struct pass_job {
    struct stage_pass *pass;
    const struct pass_range *range;
    void (*queue_all)(struct stage_pass *pass, const struct pass_range *range);
};

static void pass_job_queue(void *context)
{
    const struct pass_job *x = context;
    x->queue_all(x->pass, x->range);
}

void pass_run(struct stage_pass *pass, const struct pass_range *range,
              void (*queue_all)(struct stage_pass *pass, const struct pass_range *range))
{
    struct pass_job x = {.pass = pass, .range = range, .queue_all = queue_all};
    recorded_run(&pass->queue, pass_key(pass, range), pass_job_queue, &x);
}

void sums_run(struct op_queue *queue, struct area_view sums, bool of_gradients,
              void (*queue_all)(void *context), void *context)
{
    recorded_run(queue, recorded_mix(mix_buffer(0, sums.buffer, sums.at), of_gradients), queue_all, context);
}
