/* What many_search.c shares with many_orders.c. For these only. */
#ifndef MOTLEY_PLANNER_MANY_MANY_PRIVATE_H
#define MOTLEY_PLANNER_MANY_MANY_PRIVATE_H

#include "planner/many/many.h"

#define MANY_ORDERS_KEPT 5u
#define MANY_VARIANTS 10u /* of groups and windows; what pays depends on how scarce memory is */
#define MANY_HUGE 1024u   /* devices beyond which less is looked at */

/* Small groups arrive more evenly and need smaller windows; large ones divide layers more finely. Who leans
 * holds more at its head. */
struct many_variant {
    uint32_t group_max; /* 0: as many as looked at */
    double slack;       /* windows beyond what means say */
    double lean;        /* of periods (many_cover.c), in parts of what fills the pipeline */
    bool in_turn;       /* many_turns.c; not of single devices */
};
extern const struct many_variant many_variants[MANY_VARIANTS];

struct many_key;
struct many_seed {
    uint32_t rows;  /* 0: none yet */
    uint32_t count; /* of order: the slowest devices may be left out */
    uint32_t *order;
    double period, estimate, moved_most;
};

struct many_search {
    const struct problem *p;
    struct choice_list *list;
    uint32_t group_max, count;
    struct many_seed orders[MANY_ORDERS_KEPT], seeds[MANY_VARIANTS];
    uint32_t *order;
    struct many_key *keys;
    bool *fast;
    double *node_key;
    uint32_t *node_count;
    struct many_tail *tails;
    struct many_room room;
    uint64_t cells;    /* stages * micro-batches that were run */
    uint32_t begin;    /* of the order last covered: where the first stage begins */
    bool joins;        /* a trained table's two ends are put on one node, and what it costs is counted */
    double moved_most; /* seconds that shards may take where an order is tried */
};

/* Room for an order's keys. ERR_NOMEM: NULL. */
struct many_key *many_keys_new(uint32_t count);
/* Members of a stage that are looked at. */
uint32_t many_group_max(const struct many_search *search, const struct many *many);
/* Single devices have only the windows of a variant. */
uint32_t many_variant_group(const struct many_search *search, const struct many *many, uint32_t variant);
/* Not single devices, which do anyway, nor thousands, whose covers take a second each. */
bool many_takes_turns(const struct many_search *search);
struct many_cover many_cover_of(const struct many_search *search, const struct many *many, uint32_t variant,
                                const uint32_t *order, uint32_t count);
/* An order's least period as a variant has it, and its estimate; INFINITY when it cannot be below `limit`. */
double many_variant_estimate(struct many_search *search, struct many *many, uint32_t variant,
                             const uint32_t *order, uint32_t count, double limit, double within,
                             double *period);
/* Puts the best orders at a micro-batch size among search->orders. */
void many_orders_try(struct many_search *search, struct many *many);

#endif
