/* This file searches the tables of unicode_properties.c and unicode_sets.c. */
#include <string.h>

#include "model/text/unicode_tables.h"

const struct unicode_property *unicode_property_find(const char *name)
{
    unsigned low = 0;
    unsigned high = unicode_property_count;
    while (low < high) {
        const unsigned middle = low + (high - low) / 2;
        const int order = strcmp(name, unicode_properties[middle].name);
        if (order == 0)
            return &unicode_properties[middle];
        if (order > 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

bool code_set_has(const struct code_set *set, uint32_t code)
{
    unsigned low = 0;
    unsigned high = set->count;
    while (low < high) {
        const unsigned middle = low + (high - low) / 2;
        if (code < set->ranges[middle].first)
            high = middle;
        else if (code > set->ranges[middle].last)
            low = middle + 1;
        else
            return true;
    }
    return false;
}

uint32_t code_map_find(const struct code_map *map, uint32_t code)
{
    unsigned low = 0;
    unsigned high = map->count;
    while (low < high) {
        const unsigned middle = low + (high - low) / 2;
        if (code == map->pairs[middle].from)
            return map->pairs[middle].to;
        if (code > map->pairs[middle].from)
            low = middle + 1;
        else
            high = middle;
    }
    return code;
}
