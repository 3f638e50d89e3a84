/* Open addressing with linear probing; the table is at most half full. */
#include "planner/given/cluster_index.h"

#include <stdlib.h>
#include <string.h>

#include "common/hash.h"

uint64_t cluster_hash_name(const char *name)
{
    const uint64_t hash = hash_bytes(HASH_BEGIN, name, strlen(name));
    return hash ^ hash >> 29;
}

uint64_t cluster_hash_pair(uint32_t a, uint32_t b)
{
    uint64_t x = ((uint64_t)a << 32 | b) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

static void cluster_index_put(struct cluster_index *index, uint64_t hash, uint32_t item)
{
    uint32_t at = (uint32_t)hash & (index->capacity - 1);
    while (index->slots[at].item)
        at = (at + 1) & (index->capacity - 1);
    index->slots[at] = (struct cluster_slot){.hash = hash, .item = item};
}

int cluster_index_add(struct cluster_index *index, uint64_t hash, uint32_t item, struct err *err)
{
    if (index->count >= index->capacity / 2) {
        struct cluster_index grown = {.capacity = index->capacity ? 2 * index->capacity : 32,
                                      .count = index->count};
        grown.slots = calloc(grown.capacity, sizeof(*grown.slots));
        if (!grown.slots)
            return err_set(err, ERR_NOMEM, "cluster: out of memory");
        for (uint32_t i = 0; i < index->capacity; i++)
            if (index->slots[i].item)
                cluster_index_put(&grown, index->slots[i].hash, index->slots[i].item);
        free(index->slots);
        *index = grown;
    }
    cluster_index_put(index, hash, item + 1);
    index->count++;
    return 0;
}

uint32_t cluster_index_next(const struct cluster_index *index, uint64_t hash, uint32_t *cursor)
{
    while (*cursor < index->capacity) {
        const struct cluster_slot *slot = &index->slots[((uint32_t)hash + *cursor) & (index->capacity - 1)];
        if (!slot->item)
            return UINT32_MAX;
        ++*cursor;
        if (slot->hash == hash)
            return slot->item - 1;
    }
    return UINT32_MAX;
}

void cluster_index_fini(struct cluster_index *index)
{
    free(index->slots);
    *index = (struct cluster_index){0};
}
