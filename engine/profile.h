/* Measure a device: what blocks of a model take there, in time and bytes.
 *
 * Answers the Profile document of docs/CONTRACTS.md, less what only the worker knows ("neighbours_busy",
 * "measured_at"). Weights are random: time does not depend on them. Blocks are measured by driving real
 * stages of a few layers, the embedding or the head, made one after the other; nothing is left on the device.
 *
 * Thread: the device's. Takes about `seconds`, up to twice as long where a pass over all points takes long
 * (at least one), stopping early when asked.
 */
#ifndef MOTLEY_ENGINE_PROFILE_H
#define MOTLEY_ENGINE_PROFILE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "engine/stage.h"

struct profile_request {
    const struct model_config *config;
    struct lora_options lora;
    enum dtype compute;          /* of products, as stage_options has it */
    uint32_t sequence_tokens;    /* longest row that will be seen, ≥ 1 */
    uint32_t tokens_max;         /* most tokens of a micro-batch to measure; 0: sequence_tokens */
    double seconds;              /* how long to go on measuring; more passes give steadier figures */
    uint64_t (*now_ns)(void);    /* a monotonic clock, such as clock_mono_ns */
    bool (*stop)(void *context); /* or NULL: asked between points; true ends with ERR_CANCELLED */
    void *context;
};

/* Returns new in *document. A block kind that does not fit the device's memory has no points. */
int profile_measure(struct device *device, const struct profile_request *request, json_t **document,
                    struct err *err);

#endif
