/* Row order is a random-access permutation per pass, so that nothing is stored and any step can
 * be computed. */
#include "model/job/order.h"

#include "common/rand.h"

enum { ORDER_ROUNDS = 8 };

/* Applies one Feistel permutation of [0, 2^(2*half_bits)), keyed by (seed, pass). */
static uint64_t feistel(uint64_t seed, uint64_t pass, unsigned half_bits, uint64_t value)
{
    const uint32_t mask = (uint32_t)(((uint64_t)1 << half_bits) - 1);
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t left = (uint32_t)(value >> half_bits);
    uint32_t right = (uint32_t)value & mask;
    for (uint32_t round = 0; round < ORDER_ROUNDS; round++) {
        const uint32_t counter[4] = {right, round, (uint32_t)pass, (uint32_t)(pass >> 32)};
        uint32_t random[4];
        rand_u32x4(key, counter, random);
        uint32_t next = (left ^ random[0]) & mask;
        left = right;
        right = next;
    }
    return ((uint64_t)left << half_bits) | right;
}

/* Returns the row at 'position' of the pass. Applying the permutation until the value is below 'count' keeps
 * the result a permutation; the domain is less than four times 'count', so that takes below 4 turns on
 * average. */
static uint32_t order_row(const struct order *order, uint64_t pass, uint32_t position)
{
    if (!order->shuffle || order->row_count < 2)
        return position;
    unsigned half_bits = 1;
    while (((uint64_t)1 << (2 * half_bits)) < order->row_count)
        half_bits++;
    uint64_t value = position;
    do {
        value = feistel(order->seed, pass, half_bits, value);
    } while (value >= order->row_count);
    return (uint32_t)value;
}

static uint64_t steps_per_epoch(const struct order *order)
{
    return ((uint64_t)order->row_count + order->batch_rows - 1) / order->batch_rows;
}

int order_check(const struct order *order, struct err *err)
{
    if (order->row_count == 0)
        return err_set(err, ERR_INVALID, "there are no rows to take");
    if (order->batch_rows == 0)
        return err_set(err, ERR_INVALID, "train.batch_rows: must be at least 1");
    if (order->steps == 0 && order->epochs == 0)
        return err_set(err, ERR_INVALID, "train.steps: give steps or epochs");
    return 0;
}

uint64_t order_step_count(const struct order *order)
{
    return order->steps > 0 ? order->steps : steps_per_epoch(order) * order->epochs;
}

uint32_t order_step_row_count(const struct order *order, uint64_t step)
{
    if (order->epochs == 0)
        return order->batch_rows;
    const uint64_t begin = step % steps_per_epoch(order) * order->batch_rows;
    const uint64_t left = order->row_count - begin;
    return left < order->batch_rows ? (uint32_t)left : order->batch_rows;
}

uint32_t order_step_rows(const struct order *order, uint64_t step, uint32_t *rows_out)
{
    const uint32_t count = order_step_row_count(order, step);
    uint64_t pass;
    uint64_t position;
    if (order->epochs > 0) {
        pass = step / steps_per_epoch(order);
        position = step % steps_per_epoch(order) * order->batch_rows;
    } else {
        /* step * batch_rows is computed in two parts, so that it cannot overflow. */
        const uint64_t whole = step / order->row_count * order->batch_rows;
        const uint64_t rest = step % order->row_count * order->batch_rows;
        pass = whole + rest / order->row_count;
        position = rest % order->row_count;
    }
    for (uint32_t i = 0; i < count; i++) {
        rows_out[i] = order_row(order, pass, (uint32_t)position);
        if (++position == order->row_count) {
            position = 0;
            pass++;
        }
    }
    return count;
}

uint32_t order_micro_batch_count(uint32_t rows, uint32_t micro_batch_rows)
{
    return rows / micro_batch_rows + (rows % micro_batch_rows != 0);
}
