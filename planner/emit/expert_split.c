#include "planner/emit/expert_split.h"

#include <math.h>
#include <stdlib.h>

#include "planner/cost/fill.h"

static struct expert_layer *layer_of(const struct expert_split *s, uint32_t m, uint32_t layer)
{
    return &s->layers[(size_t)m * s->sparse_count + layer];
}

static uint32_t neediest(const double *want, const struct member *members, uint32_t count)
{
    uint32_t best = count;
    for (uint32_t m = 0; m < count; m++)
        if (members[m].expert_share > 0 && (best == count || want[m] > want[best]))
            best = m;
    return best;
}

/* Divides a layer's experts under even routing: every member gets the integer part of its share, and the rest
 * goes to the largest fractions; the experts of a member are consecutive. `want` becomes the remainder for
 * the next layer. */
static void layer_even(struct expert_split *s, uint32_t layer, const struct member *members, double *want)
{
    uint32_t given = 0, next = 0;
    for (uint32_t m = 0; m < s->member_count; m++) {
        double whole = floor(want[m] + FILL_WHOLE_SLACK);
        uint32_t most = s->experts - given,
                 take = members[m].expert_share > 0 && whole > 0 ? (uint32_t)whole : 0;
        take = take < most ? take : most;
        layer_of(s, m, layer)->count = take;
        want[m] -= take;
        given += take;
    }
    for (; given < s->experts; given++) {
        uint32_t m = neediest(want, members, s->member_count);
        layer_of(s, m, layer)->count++;
        want[m] -= 1;
    }
    for (uint32_t m = 0; m < s->member_count; m++)
        for (uint32_t i = 0; i < layer_of(s, m, layer)->count; i++)
            s->owner[(size_t)layer * s->experts + next++] = (uint16_t)m;
}

/* Divides a layer's experts by measured routing. Every member takes consecutive experts until the sum of use,
 * counted to the middle of the next expert, exceeds what this member and the members before it want. */
static void layer_measured(struct expert_split *s, uint32_t layer, const struct member *members,
                           const double *share, double *want)
{
    double wanted = 0, dealt = 0;
    uint32_t e = 0, last = 0;
    for (uint32_t m = 0; m < s->member_count; m++)
        last = members[m].expert_share > 0 ? m : last;
    for (uint32_t m = 0; m <= last; m++) {
        if (members[m].expert_share <= 0)
            continue;
        wanted += want[m];
        for (; e < s->experts && (m == last || dealt + share[e] * s->experts / 2 <= wanted); e++) {
            s->owner[(size_t)layer * s->experts + e] = (uint16_t)m;
            layer_of(s, m, layer)->count++;
            want[m] -= share[e] * s->experts;
            dealt += share[e] * s->experts;
        }
    }
}

int expert_split_init(struct expert_split *split, const struct expert_model *model, const double *share,
                      const struct member *members, uint32_t member_count, struct err *err)
{
    uint32_t experts = model->experts, layers = model->sparse_count;
    *split = (struct expert_split){.experts = experts, .sparse_count = layers, .member_count = member_count};
    split->owner = calloc((size_t)layers * experts + 1, sizeof(*split->owner));
    split->layers = calloc((size_t)member_count * layers + 1, sizeof(*split->layers));
    double *want = calloc((size_t)member_count + 1, sizeof(*want));
    bool ready = split->owner && split->layers && want;
    for (uint32_t l = 0; l < layers && ready; l++) {
        const double *mine = share ? share + (size_t)(model->sparse[l] - 1) * experts : NULL;
        for (uint32_t m = 0; m < member_count; m++)
            want[m] += members[m].expert_share * experts;
        if (mine)
            layer_measured(split, l, members, mine, want);
        else
            layer_even(split, l, members, want);
        for (uint32_t e = 0; e < experts; e++) {
            uint32_t m = split->owner[(size_t)l * experts + e];
            layer_of(split, m, l)->load += mine ? mine[e] : 1.0 / experts;
        }
    }
    free(want);
    if (ready)
        return 0;
    expert_split_fini(split);
    return err_set(err, ERR_NOMEM, "planner: out of memory");
}

void expert_split_fini(struct expert_split *split)
{
    free(split->owner);
    free(split->layers);
    *split = (struct expert_split){0};
}
