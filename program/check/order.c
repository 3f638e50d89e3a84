/* Computes which instructions are certainly done before an instruction starts, with one vector clock entry
 * per queue. */
#include <stdlib.h>

#include "program/check/check_private.h"

#define CLOCK_ENTRIES_MAX ((size_t)1 << 28)

int check_order_init(struct check_order *order, const struct plan *plan, uint32_t rank, int kind,
                     struct err *err)
{
    const struct program *program = &plan->ranks[rank].programs[kind];
    uint32_t count = program->instr_count, queues = plan_queue_count(plan);
    *order = (struct check_order){.count = count};
    uint32_t *dense =
        calloc(queues, sizeof(*dense)); /* 1 + the dense number of each queue that the program uses */
    uint32_t *last = calloc(queues, sizeof(*last)); /* [dense queue] 1 + the queue's last instruction so
                                                       far */
    uint32_t *length = calloc(queues, sizeof(*length));
    order->queue = calloc((size_t)count + 1, sizeof(uint32_t));
    order->position = calloc((size_t)count + 1, sizeof(uint32_t));
    int result = -1;
    if (!dense || !last || !length || !order->queue || !order->position)
        goto out;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t queue = instr_queue_index(plan, &program->instrs[i]);
        if (dense[queue] == 0)
            dense[queue] = ++order->queue_count;
        order->queue[i] = dense[queue] - 1;
        order->position[i] = length[dense[queue] - 1]++;
    }
    uint32_t width = order->queue_count;
    if ((size_t)count * width > CLOCK_ENTRIES_MAX)
        goto out;
    order->clock = calloc((size_t)count * width + 1, sizeof(uint32_t));
    if (!order->clock)
        goto out;
    for (uint32_t i = 0; i < count; i++) {
        const struct instr *x = &program->instrs[i];
        uint32_t *own = &order->clock[(size_t)i * width];
        for (uint32_t k = 0; k <= x->after_count; k++) {
            uint32_t before =
                k < x->after_count ? program->after[x->after_first + k] + 1 : last[order->queue[i]];
            if (before == 0)
                continue;
            const uint32_t *theirs = &order->clock[(size_t)(before - 1) * width];
            for (uint32_t q = 0; q < width; q++)
                own[q] = theirs[q] > own[q] ? theirs[q] : own[q];
            uint32_t queue = order->queue[before - 1], position = order->position[before - 1] + 1;
            own[queue] = position > own[queue] ? position : own[queue];
        }
        last[order->queue[i]] = i + 1;
    }
    result = 0;
out:
    free(dense);
    free(last);
    free(length);
    if (result < 0) {
        check_order_fini(order);
        err_set(err, ERR_NOMEM, "rank %u %s: %u instructions on %u queues are too many to check", rank,
                program_kind_name(kind), count, queues);
    }
    return result;
}

void check_order_fini(struct check_order *order)
{
    free(order->queue);
    free(order->position);
    free(order->clock);
    *order = (struct check_order){0};
}

bool check_order_before(const struct check_order *order, uint32_t a, uint32_t b)
{
    return order->clock[(size_t)b * order->queue_count + order->queue[a]] > order->position[a];
}
