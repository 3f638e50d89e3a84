/* The entries of the catalogue. Only catalogue.c includes this for lookups; other files ask by name
 * (catalogue.h). */
#ifndef MOTLEY_PLANNER_GIVEN_CATALOGUE_ENTRIES_H
#define MOTLEY_PLANNER_GIVEN_CATALOGUE_ENTRIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The source of a number: measured here, imported from published measurements, or estimated. */
enum cost_origin { ORIGIN_MEASURED, ORIGIN_IMPORTED, ORIGIN_ESTIMATED, ORIGIN_COUNT };

/* An entry of the catalogue: rates of a device, published by its maker and not measured by the user. */
struct catalogue_entry {
    const char *name, *kind;
    const char *arch; /* what code is compiled for: sm_86, gfx1030, x86-64 */
    uint64_t memory_bytes;
    double flops_fp32, flops_16; /* peaks of dense matrix products, FLOP/s */
    bool bf16;                   /* flops_16 holds for bfloat16 as well as float16; false: for float16 only */
    double memory_bytes_per_s;
    double efficiency, efficiency_16; /* share of each peak that training reaches, 0..1 */
    double board_watts;               /* the highest power draw that the maker states, W; 0: unknown */
    double uncertainty;               /* relative error of a time estimated from this entry */
    enum cost_origin
        origin; /* origin of the efficiencies: ORIGIN_IMPORTED where they were published as measurements */
    const char *source;
};

/* Returns all entries; the entries of one maker are sorted by age. */
const struct catalogue_entry *catalogue_entries(size_t *count);
/* Maps a nickname to an entry's name. `plain` is the nickname in lower-case letters and digits, without
 * makers and brands. NULL: the nickname is unknown. */
const char *catalogue_alias(const char *plain);

#endif
