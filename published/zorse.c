#include "published/zorse.h"

#include <math.h>
#include <string.h>

#define COLLECTIVE_SLOWNESS 1.15 /* factor by which collectives take longer than their bytes, as in Zorse */
#define MESSAGE_REFERENCE 1e7    /* bytes of the message whose seconds are stored as latency */
#define GIB 1073741824.0

static double zorse_larger(double a, double b)
{
    return a > b ? a : b;
}

struct group_times {
    double forward, both; /* of the slowest GPU, ms per layer */
};

static struct group_times group_times(const struct zorse_problem *p, const struct zorse_layout *l,
                                      uint32_t group)
{
    const struct zorse_group *g = &l->groups[group];
    struct group_times t = {0};
    for (uint32_t i = 0; i < g->count; i++) {
        double f = p->forward_ms[g->rank[i]][l->micro_shift], b = p->backward_ms[g->rank[i]][l->micro_shift];
        t.forward = zorse_larger(t.forward, f);
        t.both = zorse_larger(t.both, f + b);
    }
    return t;
}

static double stage_core(const struct zorse_problem *p, const struct zorse_layout *l, uint32_t stage,
                         bool first)
{
    const struct zorse_group *g = &l->groups[l->stages[stage].group];
    double layers = l->stages[stage].layers, message = zorse_larger(g->next_ms, g->previous_ms), forward = 0,
           both = 0;
    for (uint32_t i = 0; i < g->count; i++) {
        double f = p->forward_ms[g->rank[i]][l->micro_shift], b = p->backward_ms[g->rank[i]][l->micro_shift];
        double n = g->micro[i];
        forward = i ? zorse_larger(forward, zorse_larger(f * layers, message) * (n - first))
                    : zorse_larger(f * layers, message) * (n - first);
        both = zorse_larger(both, zorse_larger((f + b) * layers, message) * n);
    }
    return zorse_larger(forward, g->gather_ms * layers) +
           zorse_larger(both, (g->gather_ms + g->scatter_ms) * layers);
}

double zorse_formula_ms(const struct zorse_problem *p, const struct zorse_layout *l)
{
    uint32_t groups = l->group_count + l->empty_groups;
    double start = 0, end = 0, core = 0;
    for (uint32_t i = 0; i < l->stage_count; i++) {
        uint32_t g = l->stages[i].group;
        double t = group_times(p, l, g).forward;
        start += (i ? t : zorse_larger(t, l->groups[g].gather_ms)) * l->stages[i].layers;
        if (i == groups)
            break;
        start += l->groups[g].next_ms;
    }
    for (uint32_t i = 0; i < l->stage_count; i++) {
        uint32_t stage = l->stage_count - 1 - i, g = l->stages[stage].group;
        double t = group_times(p, l, g).both;
        end += (i ? t : zorse_larger(t, l->groups[g].scatter_ms)) * l->stages[stage].layers;
        if (i == groups)
            break;
        end += l->groups[g].previous_ms;
    }
    for (uint32_t g = 0; g < l->group_count; g++) {
        double sum = 0;
        bool first = true;
        for (uint32_t s = 0; s < l->stage_count; s++) {
            if (l->stages[s].group != g)
                continue;
            sum += stage_core(p, l, s, first);
            first = false;
        }
        core = zorse_larger(core, sum);
    }
    return start + core + end;
}

static double zorse_bandwidth(const struct zorse_problem *p, uint32_t a, uint32_t b)
{
    uint32_t x = p->machine_of[a], y = p->machine_of[b];
    return x == y ? p->within_gib_s[x] : p->between_gib_s[x][y];
}

static double latency(const struct zorse_problem *p, uint32_t a, uint32_t b)
{
    uint32_t x = p->machine_of[a], y = p->machine_of[b];
    return x == y ? p->within_latency[x] : p->between_latency[x][y];
}

static double ring_ms(const struct zorse_problem *p, const struct zorse_group *g, double bytes)
{
    double worst = 0, n = g->count;
    if (g->count < 2)
        return 0;
    for (uint32_t i = 0; i < g->count; i++) {
        double rate = zorse_bandwidth(p, g->rank[i], g->rank[(i + 1) % g->count]);
        worst = zorse_larger(worst, rate > 0 ? bytes / GIB / n / rate : INFINITY);
    }
    return (n - 1) * worst * 1000 * COLLECTIVE_SLOWNESS;
}

/* Returns the ms of a message between two groups, by their slowest pair of machines. A stored latency is the
 * seconds of a message of 10 MB. */
static double message_ms(const struct zorse_problem *p, const struct zorse_group *a,
                         const struct zorse_group *b, double bytes)
{
    double slowest = INFINITY, reference = 0;
    for (uint32_t i = 0; i < a->count; i++) {
        for (uint32_t k = 0; k < b->count; k++) {
            double rate = zorse_bandwidth(p, a->rank[i], b->rank[k]);
            slowest = rate < slowest ? rate : slowest;
            reference = zorse_larger(reference, latency(p, a->rank[i], b->rank[k]));
        }
    }
    double base = reference * 1000;
    if (bytes <= MESSAGE_REFERENCE)
        return base * (0.8 + 0.2 * bytes / MESSAGE_REFERENCE);
    return base + (slowest > 0 ? (bytes - MESSAGE_REFERENCE) / GIB * 1000 / slowest : INFINITY);
}

void zorse_links_fill(const struct zorse_problem *p, struct zorse_layout *l)
{
    double message = ldexp(1, (int)l->micro_shift) * p->sequence * p->hidden * p->message_bytes;
    for (uint32_t g = 0; g < l->group_count; g++) {
        struct zorse_group *group = &l->groups[g];
        group->gather_ms = ring_ms(p, group, p->params_per_layer * p->gather_bytes);
        group->scatter_ms = ring_ms(p, group, p->params_per_layer * p->scatter_bytes);
        group->next_ms = group->previous_ms = 0;
    }
    for (uint32_t g = 0; g + 1 < l->group_count; g++) {
        double ms = message_ms(p, &l->groups[g], &l->groups[g + 1], message);
        l->groups[g].next_ms = l->groups[g + 1].previous_ms = ms;
    }
    if (l->group_count > 1 &&
        l->stage_count > l->group_count) { /* interleaved: from the last group back to the first */
        double ms = message_ms(p, &l->groups[l->group_count - 1], &l->groups[0], message);
        l->groups[l->group_count - 1].next_ms = zorse_larger(l->groups[l->group_count - 1].next_ms, ms);
        l->groups[0].previous_ms = zorse_larger(l->groups[0].previous_ms, ms);
    }
}

#define EVENTS_MICRO_MAX 4096u

/* gpu[g][m]: the GPU of group g that takes micro-batch m. */
struct takers {
    uint8_t gpu[ZORSE_GROUPS_MAX][EVENTS_MICRO_MAX];
};

/* Distributes micro-batches so that every prefix is as close to the shares as possible. */
static void takers_fill(const struct zorse_group *g, uint32_t micro_batches, uint8_t *gpu)
{
    uint32_t given[ZORSE_GPUS_MAX] = {0};
    double due[ZORSE_GPUS_MAX];
    for (uint32_t i = 0; i < g->count; i++)
        due[i] = g->micro[i] ? 0.5 / g->micro[i] : INFINITY;
    for (uint32_t m = 0; m < micro_batches; m++) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < g->count; i++)
            best = due[i] < due[best] ? i : best;
        given[best]++;
        due[best] = given[best] < g->micro[best] ? (given[best] + 0.5) / g->micro[best] : INFINITY;
        gpu[m] = (uint8_t)best;
    }
}

/* Simulates one direction through the stages; ready[m] is when micro-batch m is ready, and afterwards when
 * it is done. */
static double sweep(const struct zorse_problem *p, const struct zorse_layout *l, struct takers *takers,
                    bool backward, double begin, double *ready,
                    double gpu_free[ZORSE_GROUPS_MAX][ZORSE_GPUS_MAX])
{
    double wire_free[ZORSE_GROUPS_MAX] = {0}, last = begin;
    for (uint32_t g = 0; g < l->group_count; g++)
        wire_free[g] = begin;
    for (uint32_t m = 0; m < l->micro_batches; m++)
        ready[m] = begin;
    for (uint32_t i = 0; i < l->stage_count; i++) {
        uint32_t stage = backward ? l->stage_count - 1 - i : i, g = l->stages[stage].group;
        const struct zorse_group *group = &l->groups[g];
        double layers = l->stages[stage].layers, gathered = wire_free[g] + group->gather_ms * layers,
               over = 0;
        /* The first layer's weights are enough to begin; all are needed to end. */
        double first = wire_free[g] + group->gather_ms;
        uint32_t neighbour = backward ? (stage ? l->stages[stage - 1].group : g)
                                      : (stage + 1 < l->stage_count ? l->stages[stage + 1].group : g);
        double message = neighbour == g ? 0 : backward ? group->previous_ms : group->next_ms;
        for (uint32_t m = 0; m < l->micro_batches; m++) {
            uint32_t x = takers->gpu[g][m];
            double each = p->forward_ms[group->rank[x]][l->micro_shift];
            each += backward ? p->backward_ms[group->rank[x]][l->micro_shift] : 0;
            double start = zorse_larger(zorse_larger(ready[m], gpu_free[g][x]), first);
            double end = zorse_larger(start + each * layers, gathered);
            gpu_free[g][x] = zorse_larger(end, start + message);
            over = zorse_larger(over, end);
            ready[m] = end + message;
            last = zorse_larger(last, end);
        }
        /* Gathers for the next visit overlap; scatters follow the last backward. */
        wire_free[g] = backward ? zorse_larger(gathered, over - group->scatter_ms * (layers - 1)) +
                                      group->scatter_ms * layers
                                : gathered;
        if (backward)
            last = zorse_larger(last, wire_free[g]);
    }
    return last;
}

double zorse_simulate_ms(const struct zorse_problem *p, const struct zorse_layout *l)
{
    static const double never = INFINITY;
    double ready[EVENTS_MICRO_MAX];
    double gpu_free[ZORSE_GROUPS_MAX][ZORSE_GPUS_MAX];
    struct takers takers; /* 260 KiB */
    if (l->micro_batches > EVENTS_MICRO_MAX)
        return never;
    memset(gpu_free, 0, sizeof(gpu_free[0]) * l->group_count);
    for (uint32_t g = 0; g < l->group_count; g++)
        takers_fill(&l->groups[g], l->micro_batches, takers.gpu[g]);
    double forward = sweep(p, l, &takers, false, 0, ready, gpu_free);
    for (uint32_t g = 0; g < l->group_count; g++)
        for (uint32_t i = 0; i < l->groups[g].count; i++)
            gpu_free[g][i] = forward;
    return sweep(p, l, &takers, true, forward, ready, gpu_free);
}

double zorse_bytes(const struct zorse_problem *p, double gpus, double layers, double active, double rows)
{
    return (active + (layers - active) / gpus) * p->params_per_layer * 2 +
           3 * rows * p->sequence * p->hidden * 2 + layers * p->params_per_layer * 12 / gpus +
           p->reserved_bytes;
}

bool zorse_fits(const struct zorse_problem *p, const struct zorse_layout *l)
{
    double rows = ldexp(1, (int)l->micro_shift);
    for (uint32_t g = 0; g < l->group_count; g++) {
        const struct zorse_group *group = &l->groups[g];
        double total = 0, active = 0, before = -1, smallest = INFINITY;
        for (uint32_t s = 0; s < l->stage_count; s++) {
            if (l->stages[s].group != g)
                continue;
            total += l->stages[s].layers;
            active = zorse_larger(active, before < 0 ? l->stages[s].layers : before + l->stages[s].layers);
            before = l->stages[s].layers;
        }
        for (uint32_t i = 0; i < group->count; i++)
            smallest =
                p->memory_bytes[group->rank[i]] < smallest ? p->memory_bytes[group->rank[i]] : smallest;
        if (zorse_bytes(p, group->count, total, active, rows) > smallest)
            return false;
    }
    return true;
}
