/* Kinds of devices, and sets as how many they hold of each. */
#include "planner/few/few_sets.h"

#include <stdlib.h>
#include <string.h>

#include "planner/cost/alike.h"
#include "planner/cost/micro.h"

#define CELLS_WORTH 800u   /* devices · rows */
#define PAIRS_MOST 200000u /* eleven devices all unlike: 177,147 */

bool few_worth(const struct problem *p, uint32_t devices)
{
    return (uint64_t)devices * p->workload->batch_rows <= CELLS_WORTH;
}

bool few_size_worth(const struct problem *p, uint32_t rows)
{
    uint32_t micro_batches = micro_count(p, rows);
    return micro_batches >= 2 && micro_batches <= FEW_MICRO;
}

static void kinds_fill(struct few_sets *s)
{
    for (uint32_t d = 0; d < s->count; d++) {
        uint32_t k = 0;
        while (k < s->kinds && !devices_alike(s->p, s->device[s->kind[k][0]], s->device[d]))
            k++;
        s->kinds += k == s->kinds;
        s->kind[k][s->of_kind[k]++] = d;
    }
}

/* --- sets and pairs --- */

/* The next vector of counts up to `most`, the first kind fastest; false after the last. */
static bool counts_next(const struct few_sets *s, const uint32_t *most, uint32_t *counts)
{
    for (uint32_t k = 0; k < s->kinds; k++) {
        if (counts[k] < most[k]) {
            counts[k]++;
            return true;
        }
        counts[k] = 0;
    }
    return false;
}

static uint32_t counts_at(const struct few_sets *s, const uint32_t *counts)
{
    uint32_t at = 0;
    for (uint32_t k = s->kinds; k-- > 0;)
        at = at * (s->of_kind[k] + 1) + counts[k];
    return at;
}

/* Writes the pairs of a set; returns how many. */
static uint32_t set_pairs(const struct few_sets *s, const uint32_t *set, struct few_pair *pairs)
{
    uint32_t group[FEW_DEVICES] = {0}, left[FEW_DEVICES], count = 0;
    while (counts_next(s, set, group)) {
        struct few_pair *pair = &pairs[count];
        uint32_t members = 0;
        *pair = (struct few_pair){.group_at = counts_at(s, group)};
        for (uint32_t k = 0; k < s->kinds; k++) {
            members += group[k];
            left[k] = set[k] - group[k];
            for (uint32_t i = 0; i < set[k]; i++) {
                uint16_t device = (uint16_t)(1u << s->kind[k][i]);
                pair->group = (uint16_t)(pair->group | (i < left[k] ? 0 : device));
                pair->left = (uint16_t)(pair->left | (i < left[k] ? device : 0));
            }
        }
        pair->left_at = counts_at(s, left);
        count += members == 1 || !s->single;
    }
    return count;
}

static void sets_fill(struct few_sets *s)
{
    uint32_t counts[FEW_DEVICES] = {0}, pairs = 0;
    for (uint32_t at = 0; at < s->sets; at++) {
        s->set[at] = 0;
        s->first[at] = pairs;
        for (uint32_t k = 0; k < s->kinds; k++) {
            for (uint32_t i = 0; i < counts[k]; i++)
                s->set[at] = (uint16_t)(s->set[at] | 1u << s->kind[k][i]);
        }
        pairs += set_pairs(s, counts, &s->pairs[pairs]);
        counts_next(s, s->of_kind, counts);
    }
    s->first[s->sets] = pairs;
}

int few_sets_init(struct few_sets *s, const struct problem *p, bool single, struct err *err)
{
    uint32_t usable = 0;
    uint64_t pairs = 1;
    *s = (struct few_sets){.p = p, .single = single, .sets = 1};
    for (uint32_t d = 0; d < p->device_count; d++) {
        if (p->usable[d] && usable++ < FEW_DEVICES)
            s->device[s->count++] = d;
    }
    if (usable < 3 || usable > FEW_DEVICES)
        return 0;
    kinds_fill(s);
    for (uint32_t k = 0; k < s->kinds; k++) {
        s->sets *= s->of_kind[k] + 1;
        pairs *= (uint64_t)(s->of_kind[k] + 1) * (s->of_kind[k] + 2) / 2;
    }
    if (pairs > PAIRS_MOST)
        return 0;
    s->set = calloc(s->sets, sizeof(*s->set));
    s->first = calloc((size_t)s->sets + 1, sizeof(*s->first));
    s->pairs = calloc(pairs, sizeof(*s->pairs));
    if (!s->set || !s->first || !s->pairs)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    sets_fill(s);
    return 1;
}

void few_sets_fini(struct few_sets *s)
{
    free(s->set);
    free(s->first);
    free(s->pairs);
}
