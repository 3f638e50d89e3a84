/* Searches for layouts: a few starts, then hill climbing over groups, order, layers, interleaving and
 * micro-batch size. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "published/zorse.h"

#define INTERLEAVE_MAX 8u

/* The choices that the search varies; layout_make() turns them into a layout. */
struct genome {
    uint32_t group_count, shift, interleave;
    uint32_t group_of[ZORSE_GPUS_MAX]; /* ZORSE_GROUPS_MAX: left out */
    uint32_t layers[ZORSE_GROUPS_MAX];
};

struct climb {
    const struct zorse_problem *p;
    /* the recorded layout's ms by formula and by simulation; 0: there is none */
    double formula_ms, events_ms;
    uint32_t left; /* evaluations that are left */
    struct genome best;
    double best_score;
    struct zorse_layout trial, best_layout;
};

/* Returns true if micro-batches of 2^shift rows divide the batch. No others are tried; their times are known
 * to be positive. */
static bool divides(const struct zorse_problem *p, uint32_t shift)
{
    return p->batch % (1u << shift) == 0;
}

/* Gives each micro-batch to the GPU that would finish it first, which makes the time of the group's slowest
 * GPU least. */
static void micro_share(const struct zorse_problem *p, struct zorse_group *g, uint32_t shift, uint32_t count)
{
    double each[ZORSE_GPUS_MAX], over[ZORSE_GPUS_MAX];
    for (uint32_t i = 0; i < g->count; i++) {
        over[i] = each[i] = 2 * p->forward_ms[g->rank[i]][shift] + p->backward_ms[g->rank[i]][shift];
        g->micro[i] = 0;
    }
    for (uint32_t m = 0; m < count; m++) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < g->count; i++)
            best = over[i] < over[best] ? i : best;
        g->micro[best]++;
        over[best] = (g->micro[best] + 1) * each[best];
    }
}

static bool layout_make(const struct zorse_problem *p, const struct genome *genome, struct zorse_layout *l)
{
    uint32_t total = 0;
    memset(l, 0, offsetof(struct zorse_layout, groups));
    if (!divides(p, genome->shift) || genome->group_count == 0)
        return false;
    l->group_count = genome->group_count;
    l->micro_shift = genome->shift;
    l->micro_batches = p->batch >> genome->shift;
    for (uint32_t g = 0; g < l->group_count; g++) {
        l->groups[g].count = 0;
        total += genome->layers[g];
        if (genome->layers[g] < genome->interleave)
            return false;
    }
    for (uint32_t r = 0; r < p->gpu_count; r++)
        if (genome->group_of[r] < l->group_count)
            l->groups[genome->group_of[r]].rank[l->groups[genome->group_of[r]].count++] = r;
    for (uint32_t g = 0; g < l->group_count; g++) {
        if (l->groups[g].count == 0)
            return false;
        micro_share(p, &l->groups[g], genome->shift, l->micro_batches);
    }
    for (uint32_t d = 0; d < genome->interleave; d++) {
        for (uint32_t g = 0; g < l->group_count; g++) {
            uint32_t chunk =
                genome->layers[g] / genome->interleave + (d < genome->layers[g] % genome->interleave);
            l->stages[l->stage_count].group = g;
            l->stages[l->stage_count++].layers = chunk;
        }
    }
    return total == p->layers;
}

static double layout_score(const struct climb *c, struct zorse_layout *l)
{
    zorse_links_fill(c->p, l);
    if (!zorse_fits(c->p, l))
        return INFINITY;
    double events = zorse_simulate_ms(c->p, l);
    if (c->events_ms <= 0)
        return events;
    double formula = zorse_formula_ms(c->p, l);
    return fmax(events / c->events_ms, formula / c->formula_ms);
}

static bool genome_try(struct climb *c, const struct genome *genome)
{
    if (c->left == 0 || !layout_make(c->p, genome, &c->trial))
        return false;
    c->left--;
    double score = layout_score(c, &c->trial);
    if (!(score < c->best_score * (1 - 1e-9)))
        return false;
    c->best_score = score;
    c->best = *genome;
    c->best_layout = c->trial;
    return true;
}

/* Divides layers in proportion to a group's speed, at least one per chunk. */
static void zorse_search_layers_share(const struct zorse_problem *p, struct genome *genome)
{
    double speed[ZORSE_GROUPS_MAX] = {0}, all = 0;
    uint32_t given = 0;
    for (uint32_t r = 0; r < p->gpu_count; r++) {
        double each = 2 * p->forward_ms[r][genome->shift] + p->backward_ms[r][genome->shift];
        if (genome->group_of[r] < genome->group_count) {
            speed[genome->group_of[r]] += 1 / each;
            all += 1 / each;
        }
    }
    for (uint32_t g = 0; g < genome->group_count; g++) {
        genome->layers[g] = (uint32_t)(p->layers * speed[g] / all);
        genome->layers[g] = genome->layers[g] < genome->interleave ? genome->interleave : genome->layers[g];
        given += genome->layers[g];
    }
    while (given !=
           p->layers) { /* the group with the most or least work for its speed gives or takes a layer */
        uint32_t pick = UINT32_MAX;
        double best = given > p->layers ? -INFINITY : INFINITY;
        for (uint32_t g = 0; g < genome->group_count; g++) {
            double load = (genome->layers[g] + (given < p->layers)) / speed[g];
            bool may = given < p->layers || genome->layers[g] > genome->interleave;
            if (may && (given > p->layers ? load > best : load < best)) {
                best = load;
                pick = g;
            }
        }
        if (pick == UINT32_MAX)
            return;
        genome->layers[pick] += given < p->layers ? 1 : -1u;
        given += given < p->layers ? 1 : -1u;
    }
}

static void genome_tidy(const struct zorse_problem *p, struct genome *genome)
{
    uint32_t map[ZORSE_GROUPS_MAX + 1], count = 0;
    for (uint32_t g = 0; g < genome->group_count; g++) {
        bool used = false;
        for (uint32_t r = 0; r < p->gpu_count; r++)
            used |= genome->group_of[r] == g;
        map[g] = used ? count : ZORSE_GROUPS_MAX;
        if (used)
            genome->layers[count++] = genome->layers[g];
    }
    for (uint32_t r = 0; r < p->gpu_count; r++)
        genome->group_of[r] =
            genome->group_of[r] < genome->group_count ? map[genome->group_of[r]] : ZORSE_GROUPS_MAX;
    genome->group_count = count;
}

static bool layers_move(struct climb *c)
{
    for (uint32_t a = 0; a < c->best.group_count; a++) {
        for (uint32_t b = 0; b < c->best.group_count; b++) {
            for (uint32_t many = 4; a != b && many > 0; many /= 2) {
                struct genome g = c->best;
                if (g.layers[a] <= many)
                    continue;
                g.layers[a] -= many;
                g.layers[b] += many;
                if (genome_try(c, &g))
                    return true;
            }
        }
    }
    return false;
}

static bool gpus_move(struct climb *c)
{
    for (uint32_t r = 0; r < c->p->gpu_count; r++) {
        uint32_t from = c->best.group_of[r];
        for (uint32_t to = 0; to <= c->best.group_count; to++) {
            struct genome g = c->best;
            uint32_t last = c->best.group_count;
            if (to == from || (to == last && last >= ZORSE_GROUPS_MAX - 1))
                continue;
            g.group_of[r] = to;
            if (to == last)
                g.group_count++;
            genome_tidy(c->p, &g);
            zorse_search_layers_share(c->p, &g);
            if (genome_try(c, &g))
                return true;
        }
        struct genome out = c->best;
        out.group_of[r] = ZORSE_GROUPS_MAX;
        genome_tidy(c->p, &out);
        zorse_search_layers_share(c->p, &out);
        if (genome_try(c, &out))
            return true;
    }
    return false;
}

static bool groups_change(struct climb *c)
{
    for (uint32_t a = 0; a < c->best.group_count; a++) {
        for (uint32_t b = a + 1; b < c->best.group_count; b++) {
            struct genome merged = c->best, swapped = c->best;
            for (uint32_t r = 0; r < c->p->gpu_count; r++) {
                uint32_t of = c->best.group_of[r];
                merged.group_of[r] = of == b ? a : of;
                swapped.group_of[r] = of == a ? b : of == b ? a : of;
            }
            swapped.layers[a] = c->best.layers[b];
            swapped.layers[b] = c->best.layers[a];
            genome_tidy(c->p, &merged);
            zorse_search_layers_share(c->p, &merged);
            if (genome_try(c, &swapped) || genome_try(c, &merged))
                return true;
        }
    }
    return false;
}

static bool sizes_change(struct climb *c)
{
    for (uint32_t shift = 0; shift < ZORSE_MICRO_SIZES && divides(c->p, shift); shift++) {
        for (uint32_t d = 1; d <= INTERLEAVE_MAX; d++) {
            struct genome g = c->best;
            if (shift == g.shift && d == g.interleave)
                continue;
            g.shift = shift;
            g.interleave = d;
            if (genome_try(c, &g))
                return true;
            zorse_search_layers_share(c->p, &g);
            if (genome_try(c, &g))
                return true;
        }
    }
    return false;
}

static void climb_run(struct climb *c)
{
    while (c->left > 0 && c->best_score < INFINITY)
        if (!layers_move(c) && !groups_change(c) && !sizes_change(c) && !gpus_move(c))
            return;
}

/* The number of starts: all GPUs in one group, a group per machine, per kind of GPU, per kind and machine,
 * each GPU alone, and the groups that hold the most layers. Kinds are told apart by their times. */
#define STARTS 6

static void start_groups(const struct zorse_problem *p, int kind, struct genome *g)
{
    g->group_count = 0;
    for (uint32_t r = 0; r < p->gpu_count; r++) {
        uint32_t same = UINT32_MAX;
        for (uint32_t o = 0; o < r && same == UINT32_MAX; o++) {
            bool machine = p->machine_of[o] == p->machine_of[r];
            bool times =
                p->forward_ms[o][1] == p->forward_ms[r][1] && p->memory_bytes[o] == p->memory_bytes[r];
            bool join = kind == 0 || (kind == 1 && machine) || (kind == 2 && times) ||
                        (kind == 3 && machine && times);
            same = join ? g->group_of[o] : UINT32_MAX;
        }
        g->group_of[r] = same != UINT32_MAX ? same : g->group_count++;
    }
}

/* Returns the most layers that `count` GPUs, the smallest with `memory` bytes, hold in `interleave` chunks; 0
 * if not even one per chunk. */
static uint32_t group_capacity(const struct zorse_problem *p, uint32_t count, double memory,
                               uint32_t interleave, double rows)
{
    uint32_t low = interleave - 1, high = p->layers;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2, rest = middle % interleave;
        uint32_t chunk = middle / interleave + (rest > 0), next = middle / interleave + (rest > 1);
        uint32_t active = interleave > 1 ? chunk + next : chunk;
        if (zorse_bytes(p, count, middle, active, rows) <= memory)
            low = middle;
        else
            high = middle - 1;
    }
    return low >= interleave ? low : 0;
}

/* Sorts GPUs by memory, the largest first. */
static void gpus_order(const struct zorse_problem *p, uint32_t *order)
{
    for (uint32_t i = 0; i < p->gpu_count; i++) {
        uint32_t at = i;
        for (; at > 0 && p->memory_bytes[order[at - 1]] < p->memory_bytes[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

/* Finds the groups that together hold the most layers, few enough that no chunk is empty, and returns the
 * layers held. Only a group's size and its smallest memory count, so some best division is contiguous once
 * GPUs are sorted by memory: exchanging two GPUs between groups towards that order lowers no minimum. A table
 * over numbers of groups and the sorted GPUs, each of which may be left out, gives the exact answer. */
static uint32_t groups_holding_most(const struct zorse_problem *p, struct genome *g)
{
    uint32_t order[ZORSE_GPUS_MAX], most[ZORSE_GPUS_MAX + 1][ZORSE_GPUS_MAX + 1];
    uint16_t held[ZORSE_GPUS_MAX + 1][ZORSE_GPUS_MAX + 1];
    uint8_t size[ZORSE_GPUS_MAX + 1][ZORSE_GPUS_MAX + 1];
    double rows = ldexp(1, (int)g->shift);
    uint32_t groups = p->layers / g->interleave < p->gpu_count ? p->layers / g->interleave : p->gpu_count;
    gpus_order(p, order);
    for (uint32_t i = 0; i <= p->gpu_count; i++) {
        most[0][i] = 0;
        for (uint32_t n = 1; n <= i; n++)
            held[i][n] = (uint16_t)group_capacity(p, n, p->memory_bytes[order[i - 1]], g->interleave, rows);
    }
    for (uint32_t k = 1; k <= groups; k++) {
        most[k][0] = 0;
        for (uint32_t i = 1; i <= p->gpu_count; i++) {
            most[k][i] = most[k][i - 1];
            size[k][i] = 0;
            for (uint32_t n = 1; n <= i; n++) {
                if (held[i][n] > 0 && most[k - 1][i - n] + held[i][n] > most[k][i]) {
                    most[k][i] = most[k - 1][i - n] + held[i][n];
                    size[k][i] = (uint8_t)n;
                }
            }
        }
    }
    g->group_count = 0;
    for (uint32_t i = p->gpu_count, k = groups; i > 0;) {
        uint32_t n = k > 0 ? size[k][i] : 0;
        g->group_of[order[i - 1]] = ZORSE_GROUPS_MAX;
        for (uint32_t o = 0; o < n; o++)
            g->group_of[order[i - 1 - o]] = g->group_count;
        if (n)
            g->layers[g->group_count++] = held[i][n];
        k -= n > 0;
        i -= n ? n : 1;
    }
    return most[groups][p->gpu_count];
}

/* Removes layers beyond the model's; every chunk keeps one layer. */
static void layers_trim(const struct zorse_problem *p, struct genome *g, uint32_t held)
{
    for (uint32_t k = 0; k < g->group_count && held > p->layers; k++) {
        uint32_t spare = g->layers[k] - g->interleave, more = held - p->layers;
        g->layers[k] -= more < spare ? more : spare;
        held -= more < spare ? more : spare;
    }
}

uint32_t zorse_capacity(const struct zorse_problem *p)
{
    uint32_t best = 0;
    for (uint32_t d = 1; d <= p->layers; d++) {
        struct genome g = {.interleave = d};
        uint32_t held = groups_holding_most(p, &g);
        best = held > best ? held : best;
    }
    return best;
}

/* Tries a few interleavings first, and all of them if none of those has a plan. */
static void start_holding_most(struct climb *c, uint32_t shift)
{
    for (int all = 0; all < 2; all++) {
        for (uint32_t d = 1; d <= c->p->layers; d += all || d < INTERLEAVE_MAX ? 1 : d / 4) {
            struct genome g = {.shift = shift, .interleave = d};
            uint32_t held = groups_holding_most(c->p, &g);
            c->left = c->left ? c->left : 1;
            if (held < c->p->layers)
                continue;
            layers_trim(c->p, &g, held);
            genome_try(c, &g);
            if (all && c->best_score < INFINITY)
                return;
        }
        if (c->best_score < INFINITY)
            return;
    }
}

int zorse_search(const struct zorse_problem *p, const struct zorse_layout *theirs, uint32_t evaluations,
                 struct zorse_layout *best, struct err *err)
{
    struct climb *c = calloc(1, sizeof(*c));
    if (!c)
        return err_set(err, ERR_NOMEM, "zorse: out of memory");
    double best_score = INFINITY;
    c->p = p;
    if (theirs) {
        c->events_ms = zorse_simulate_ms(p, theirs);
        c->formula_ms = zorse_formula_ms(p, theirs);
        *best = *theirs;
        best_score = 1;
    }
    for (int kind = 0; kind < STARTS; kind++) {
        c->best_score = INFINITY;
        for (uint32_t shift = 0; shift < 8 && divides(p, shift); shift++) {
            struct genome g = {.shift = shift, .interleave = 1};
            if (kind == STARTS - 1) {
                start_holding_most(c, shift);
                continue;
            }
            start_groups(p, kind, &g);
            if (g.group_count > p->layers || g.group_count >= ZORSE_GROUPS_MAX)
                continue;
            zorse_search_layers_share(p, &g);
            c->left = c->left ? c->left : 1;
            genome_try(c, &g);
        }
        c->left = evaluations / STARTS;
        climb_run(c);
        if (c->best_score < best_score) {
            best_score = c->best_score;
            *best = c->best_layout;
        }
    }
    free(c);
    return best_score < INFINITY;
}
