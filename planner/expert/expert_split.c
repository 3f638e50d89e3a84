/* Dividing a model with experts: who holds which expert, by water-filling and whole numbers. */
#include "planner/expert/expert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FILL_TURNS 100   /* halvings of the level: beyond a double's digits */
#define WHOLE_SLACK 1e-6 /* a share this near to a whole expert is one */

int expert_model_init(struct expert_model *model, const struct problem *problem, struct err *err)
{
    *model = (struct expert_model){0};
    model->sparse = calloc((size_t)problem->block_count + 1, sizeof(*model->sparse));
    if (!model->sparse)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    for (int32_t b = 0; b < problem->block_count; b++) {
        const struct block *block = &problem->blocks.blocks[b];
        if (cost_class_of(block) != COST_LAYER_SPARSE)
            continue;
        model->sparse[model->sparse_count++] = b;
        for (uint32_t i = 0; i < block->part_count && model->sparse_count == 1; i++) {
            const struct block_part *part = &block->parts[i];
            if (part->kind == PART_ATTENTION)
                model->attention = part;
            else if (part->kind == PART_ROUTER)
                model->router = part;
            else if (part->kind == PART_EXPERT)
                model->expert = part;
        }
    }
    if (!model->attention || !model->router || !model->expert) {
        expert_model_fini(model);
        return err_set(err, ERR_UNSUPPORTED, "this model has no layer with experts");
    }
    model->experts = model->expert->copies;
    model->active = model->expert->active;
    model->routed_bytes = problem->bytes_per_token + ROUTE_ENTRY_BYTES * model->active;
    return 0;
}

void expert_model_fini(struct expert_model *model)
{
    free(model->sparse);
    *model = (struct expert_model){0};
}

double expert_touched(uint32_t experts, uint32_t active, double load)
{
    double none = 1;
    for (uint32_t j = 0; j < active && none > 0; j++) {
        double left = 1 - load * experts / (double)(experts - j);
        none *= left > 0 ? left : 0;
    }
    return 1 - none;
}

/* --- shares --- */

static double filled(uint32_t n, const double *base, const double *each, const double *cap, double level,
                     double *x)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        double room = each[i] > 0 ? (level - base[i]) / each[i] : level >= base[i] ? cap[i] : 0;
        x[i] = room < 0 ? 0 : room < cap[i] ? room : cap[i];
        sum += x[i];
    }
    return sum;
}

bool expert_fill(uint32_t n, const double *base, const double *each, const double *cap, double *x)
{
    double low = INFINITY, high = 0, held = 0;
    for (uint32_t i = 0; i < n; i++) {
        low = base[i] < low ? base[i] : low;
        high = base[i] + each[i] > high ? base[i] + each[i] : high;
        held += cap[i] < 1 ? cap[i] : 1;
    }
    if (n == 0 || held < 1)
        return false;
    for (int turn = 0; turn < FILL_TURNS && low < high; turn++) {
        double middle = low + (high - low) / 2;
        if (filled(n, base, each, cap, middle, x) >= 1)
            high = middle;
        else
            low = middle;
    }
    double sum = filled(n, base, each, cap, high, x);
    for (uint32_t i = 0; i < n && sum > 0; i++)
        x[i] /= sum;
    return sum > 0;
}

bool expert_fill_whole(uint32_t n, uint32_t experts, const double *base, const double *each,
                       const double *cap, uint32_t *count)
{
    memset(count, 0, n * sizeof(*count));
    for (uint32_t given = 0; given < experts; given++) {
        uint32_t best = n;
        double least = INFINITY;
        for (uint32_t i = 0; i < n; i++) {
            double then = base[i] + (count[i] + 1) * each[i] / experts;
            if (count[i] + 1 <= cap[i] * experts + WHOLE_SLACK && then < least) {
                least = then;
                best = i;
            }
        }
        if (best == n)
            return false;
        count[best]++;
    }
    return true;
}

/* What a share has beyond whole units. */
static double beyond(const struct place_member *member, uint32_t units)
{
    double all = member->expert_share * units;
    return all - floor(all + WHOLE_SLACK);
}

void expert_shares_whole(struct place_member *members, uint32_t count, uint32_t units)
{
    uint32_t given = 0;
    for (uint32_t m = 0; m < count; m++)
        given += (uint32_t)floor(members[m].expert_share * units + WHOLE_SLACK);
    for (; given < units && count > 0; given++) {
        uint32_t best = 0;
        for (uint32_t m = 1; m < count; m++)
            best = beyond(&members[m], units) > beyond(&members[best], units) ? m : best;
        members[best].expert_share = (floor(members[best].expert_share * units + WHOLE_SLACK) + 1) / units;
    }
    for (uint32_t m = 0; m < count; m++)
        members[m].expert_share = floor(members[m].expert_share * units + WHOLE_SLACK) / units;
}

/* --- whole experts of every layer --- */

struct order_item {
    double load;
    uint32_t expert;
};

static int heavier_first(const void *left, const void *right)
{
    const struct order_item *a = left, *b = right;
    if (a->load != b->load)
        return a->load > b->load ? -1 : 1;
    return a->expert < b->expert ? -1 : 1;
}

static uint32_t neediest(const double *want, const struct place_member *members, uint32_t count)
{
    uint32_t best = count;
    for (uint32_t m = 0; m < count; m++) {
        if (members[m].expert_share > 0 && (best == count || want[m] > want[best]))
            best = m;
    }
    return best;
}

/* Even routing: whole numbers first, then one each to those with the largest part of one left; the experts of
 * a member are neighbours. `want` becomes what is carried over. */
static void layer_even(struct expert_split *s, uint32_t layer, const struct place_member *members,
                       double *want)
{
    uint32_t given = 0, next = 0;
    for (uint32_t m = 0; m < s->member_count; m++) {
        double whole = floor(want[m] + WHOLE_SLACK);
        uint32_t most = s->experts - given,
                 take = members[m].expert_share > 0 && whole > 0 ? (uint32_t)whole : 0;
        take = take < most ? take : most;
        s->count[m * s->sparse_count + layer] = take;
        want[m] -= take;
        given += take;
    }
    for (; given < s->experts; given++) {
        uint32_t m = neediest(want, members, s->member_count);
        s->count[m * s->sparse_count + layer]++;
        want[m] -= 1;
    }
    for (uint32_t m = 0; m < s->member_count; m++) {
        for (uint32_t i = 0; i < s->count[m * s->sparse_count + layer]; i++)
            s->owner[(size_t)layer * s->experts + next++] = (uint16_t)m;
    }
}

/* Measured routing: the most used expert first, each to whoever is furthest below its share. */
static void layer_measured(struct expert_split *s, uint32_t layer, const struct place_member *members,
                           const double *share, struct order_item *order, double *want)
{
    for (uint32_t e = 0; e < s->experts; e++)
        order[e] = (struct order_item){share[e] * s->experts, e};
    qsort(order, s->experts, sizeof(*order), heavier_first);
    for (uint32_t i = 0; i < s->experts; i++) {
        uint32_t m = neediest(want, members, s->member_count);
        s->owner[(size_t)layer * s->experts + order[i].expert] = (uint16_t)m;
        s->count[m * s->sparse_count + layer]++;
        want[m] -= order[i].load;
    }
}

int expert_split_init(struct expert_split *split, const struct expert_model *model, const double *share,
                      const struct place_member *members, uint32_t member_count, struct err *err)
{
    uint32_t experts = model->experts, layers = model->sparse_count;
    *split = (struct expert_split){.experts = experts, .sparse_count = layers, .member_count = member_count};
    split->owner = calloc((size_t)layers * experts + 1, sizeof(*split->owner));
    split->count = calloc((size_t)member_count * layers + 1, sizeof(*split->count));
    split->load = calloc((size_t)member_count * layers + 1, sizeof(*split->load));
    split->total = calloc((size_t)member_count + 1, sizeof(*split->total));
    double *want = calloc((size_t)member_count + 1, sizeof(*want));
    struct order_item *order = calloc((size_t)experts + 1, sizeof(*order));
    bool ready = split->owner && split->count && split->load && split->total && want && order;
    for (uint32_t l = 0; l < layers && ready; l++) {
        const double *mine = share ? share + (size_t)(model->sparse[l] - 1) * experts : NULL;
        for (uint32_t m = 0; m < member_count; m++)
            want[m] += members[m].expert_share * experts;
        if (mine)
            layer_measured(split, l, members, mine, order, want);
        else
            layer_even(split, l, members, want);
        for (uint32_t e = 0; e < experts; e++) {
            uint32_t m = split->owner[(size_t)l * experts + e];
            split->load[(size_t)m * layers + l] += mine ? mine[e] : 1.0 / experts;
            split->total[m]++;
        }
    }
    free(want);
    free(order);
    if (ready)
        return 0;
    expert_split_fini(split);
    return err_set(err, ERR_NOMEM, "planner: out of memory");
}

void expert_split_fini(struct expert_split *split)
{
    free(split->owner);
    free(split->count);
    free(split->load);
    free(split->total);
    *split = (struct expert_split){0};
}
