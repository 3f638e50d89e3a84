/* Pipelines over fully sharded groups of different GPUs: Zorse's layouts, its formula, and a better search in
 * consistent units.
 *
 * Formula and schema are in the fixtures' README (benson-guo/zorse, MIT). Zorse adds seconds of collectives
 * and latencies to milliseconds. zorse_formula_ms keeps that for comparison; everything else is in
 * milliseconds. Only the files of published/ include this header; all functions are pure. */
#ifndef MOTLEY_PUBLISHED_ZORSE_H
#define MOTLEY_PUBLISHED_ZORSE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

#define ZORSE_GPUS_MAX 64u
#define ZORSE_GROUPS_MAX (ZORSE_GPUS_MAX + 1) /* the highest index means "left out" */
#define ZORSE_STAGES_MAX 512u
#define ZORSE_MACHINES_MAX 64u
#define ZORSE_MICRO_SIZES 16u /* 1, 2, 4 … 2^15 rows */

struct zorse_problem {
    uint32_t gpu_count, machine_count, layers, batch;
    uint32_t machine_of[ZORSE_GPUS_MAX];
    double memory_bytes[ZORSE_GPUS_MAX];
    /* ms of one layer for a micro-batch of 2^k rows */
    double forward_ms[ZORSE_GPUS_MAX][ZORSE_MICRO_SIZES], backward_ms[ZORSE_GPUS_MAX][ZORSE_MICRO_SIZES];
    /* gather_bytes, scatter_bytes, message_bytes: bytes of one number that is gathered, scattered or sent */
    double params_per_layer, hidden, sequence, gather_bytes, scatter_bytes, message_bytes;
    double reserved_bytes;
    double within_gib_s[ZORSE_MACHINES_MAX], between_gib_s[ZORSE_MACHINES_MAX][ZORSE_MACHINES_MAX];
    /* Seconds of a message of 10 MB; the file's keys end in _ms. */
    double within_latency[ZORSE_MACHINES_MAX], between_latency[ZORSE_MACHINES_MAX][ZORSE_MACHINES_MAX];
};

struct zorse_group {
    uint32_t count, rank[ZORSE_GPUS_MAX], micro[ZORSE_GPUS_MAX];
    double gather_ms, scatter_ms; /* per layer, in milliseconds */
    double next_ms, previous_ms;  /* ms of one message to the next group, and to the previous one */
};

struct zorse_layout {
    uint32_t group_count, empty_groups, stage_count, micro_shift, micro_batches;
    struct zorse_group groups[ZORSE_GROUPS_MAX]; /* in pipeline order */
    struct {
        uint32_t group, layers;
    } stages[ZORSE_STAGES_MAX];
};

/* Returns the latency in ms that Zorse's formula predicts for a layout whose collectives and messages are
 * filled in. */
double zorse_formula_ms(const struct zorse_problem *problem, const struct zorse_layout *layout);
/* Fills the ms of the layout's collectives and messages from bandwidths and latencies. */
void zorse_links_fill(const struct zorse_problem *problem, struct zorse_layout *layout);
/* Simulates a step in ms: all forwards, then all backwards with recomputation; gathers run ahead of each
 * stage. */
double zorse_simulate_ms(const struct zorse_problem *problem, const struct zorse_layout *layout);
/* Returns the bytes on each GPU of a group of `gpus` by Zorse's memory formula: the group has `layers` in
 * all, at most `active` of them gathered at a time, and micro-batches of `rows`. */
double zorse_bytes(const struct zorse_problem *problem, double gpus, double layers, double active,
                   double rows);
/* Returns the most layers that fit, over all ways to group the GPUs and to cut the layers into chunks, with
 * one row per micro-batch. If that is below problem->layers, there is no plan. */
uint32_t zorse_capacity(const struct zorse_problem *problem);
/* Returns true if each group fits its smallest GPU by Zorse's memory formula. */
bool zorse_fits(const struct zorse_problem *problem, const struct zorse_layout *layout);

/* Searches within `evaluations`. `theirs` (with links filled, or NULL) is one of the starts; the result is
 * at least as good by formula and by simulation. Returns 1 with *best, 0 if nothing fits (exact:
 * zorse_capacity), −1 ERR_NOMEM. */
int zorse_search(const struct zorse_problem *problem, const struct zorse_layout *theirs, uint32_t evaluations,
                 struct zorse_layout *best, struct err *err);

#endif
