/* What the catalogue holds (catalogue_entries.c); all but catalogue.c ask by name (catalogue.h). */
#ifndef MOTLEY_PLANNER_GIVEN_CATALOGUE_ENTRIES_H
#define MOTLEY_PLANNER_GIVEN_CATALOGUE_ENTRIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where a number came from. */
enum cost_origin { ORIGIN_MEASURED, ORIGIN_IMPORTED, ORIGIN_ESTIMATED, ORIGIN_COUNT };

/* An entry of the catalogue: rates of a device that nobody here has measured. */
struct catalogue_entry {
    const char *name, *kind;
    uint64_t memory_bytes;
    double flops_fp32, flops_16; /* peak of dense matrix products, FLOP/s */
    bool bf16;                   /* the 16-bit rate is of bfloat16 too; else of float16 alone */
    double memory_bytes_per_s;
    double efficiency, efficiency_16; /* of either peak that training reaches */
    double board_watts;               /* the most that its maker says it draws; 0: not known */
    double uncertainty;               /* relative, of a time estimated from these */
    enum cost_origin origin;          /* of the efficiencies: imported where others measured them */
    const char *source;
};

/* All entries, older before newer within a maker. */
const struct catalogue_entry *catalogue_entries(size_t *count);
/* The entry's name that drivers or people mean by this one: lower-case letters and digits without makers and
 * makes. NULL: none. */
const char *catalogue_alias(const char *plain);

#endif
