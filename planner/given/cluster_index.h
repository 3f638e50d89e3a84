/* A hash index from keys to item numbers, with open addressing. It makes ten thousand names and a million
 * links cheap to look up. The caller keeps the items and compares the keys. For this room only. */
#ifndef MOTLEY_PLANNER_GIVEN_CLUSTER_INDEX_H
#define MOTLEY_PLANNER_GIVEN_CLUSTER_INDEX_H

#include <stdint.h>

#include "common/err.h"

struct cluster_index { /* a struct of zeros is an empty index */
    uint32_t capacity, count;
    struct cluster_slot {
        uint64_t hash;
        uint32_t item; /* the item's number plus 1; 0: the slot is free */
    } *slots;
};

uint64_t cluster_hash_name(const char *name);
uint64_t cluster_hash_pair(uint32_t a, uint32_t b);
/* Adds an item; duplicates are not looked for. ERR_NOMEM. */
int cluster_index_add(struct cluster_index *index, uint64_t hash, uint32_t item, struct err *err);
/* Returns the next item whose hash is equal, or UINT32_MAX. *cursor starts at 0. */
uint32_t cluster_index_next(const struct cluster_index *index, uint64_t hash, uint32_t *cursor);
void cluster_index_fini(struct cluster_index *index);

#endif
