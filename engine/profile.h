/* Measures a device: seconds and bytes that blocks of a model take there under a method.
 *
 * It returns the Profile document of docs/CONTRACTS.md without the fields that only the worker knows
 * ("neighbours_busy", "measured_at"). Weights are random, because time does not depend on them. Blocks are
 * measured by driving real stages of a few layers, the embedding or the head, made one after the other;
 * nothing is left on the device. Attention and FFN are measured by running the same layers in halves, and
 * then layers with about half of the heads and columns; in a mixture of experts, routers by a stage of layers
 * without experts, and experts by a stage with some experts of one layer.
 *
 * A device with a clock of its own is timed by that clock, after it was kept busy until two windows agree, so
 * that it has the frequency of a long run. Other devices are timed by the host's clock.
 *
 * Thread: that of the device. A measurement takes about `seconds`, or up to twice as long where one pass over
 * all points is slow (there is always at least one), and stops early when asked.
 */
#ifndef MOTLEY_ENGINE_PROFILE_H
#define MOTLEY_ENGINE_PROFILE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "engine/stage/stage.h"

struct profile_request {
    const struct model_config *config;
    /* Of these options only the method is read: lora or full, base, double_quant, compute, moments8, trained
     * embedding and head, smoothing, noise, seed. A packed base is measured as NF4, and the document says so:
     * the blocks of a file cannot be made up at random, and both are unpacked before each product. */
    struct stage_options method;
    uint32_t sequence_tokens;    /* longest row of the job, ≥ 1 */
    uint32_t tokens_max;         /* most tokens of a micro-batch to measure; 0: twice sequence_tokens, or once
                                    where the memory is short */
    double seconds;              /* time for measuring; more passes give steadier figures */
    uint64_t (*now_ns)(void);    /* a monotonic clock, such as clock_mono_ns */
    uint64_t (*waited_ns)(void); /* how long the process's threads were ready and had no CPU; NULL: unknown */
    bool (*stop)(void *context); /* asked between points, may be NULL; true ends with ERR_CANCELLED */
    void *context;
};

/* Returns new in *document. A kind of block that does not fit the device's memory has no points in it. */
int profile_measure(struct device *device, const struct profile_request *request, json_t **document,
                    struct err *err);

#endif
