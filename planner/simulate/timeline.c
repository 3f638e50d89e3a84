/* Analysis of a run. An instruction began when the last thing it waited for ended, so causes are found by
 * comparing times, and the simulator records nothing extra. */
#include "planner/simulate/timeline.h"

#include <stdlib.h>
#include <string.h>

#include "common/array.h"
#include "planner/simulate/sim_private.h"

#define NONE UINT32_MAX

/* Returns the predecessor of instruction n on the same rank (by queue or `after`) that ended last; NONE:
 * there is none. */
static uint32_t sim_blocker(const struct sim *sim, uint32_t n)
{
    const struct plan_graph *g = &sim->graph;
    uint32_t rank = g->rank_of[n], first = g->base[rank], best = NONE;
    const struct program *p = &g->plan->ranks[rank].programs[g->kind];
    const struct instr *x = &p->instrs[n - first];
    for (uint32_t k = 0; k < x->after_count; k++) {
        uint32_t other = first + p->after[x->after_first + k];
        if (best == NONE || sim->end[other] > sim->end[best])
            best = other;
    }
    if (best != NONE && sim->end[best] >= sim->nodes[n].ready)
        return best;
    uint32_t queue = instr_queue_index(g->plan, x);
    for (uint32_t other = n; other-- > first;) {
        if (instr_queue_index(g->plan, &p->instrs[other - first]) != queue)
            continue;
        return best == NONE || sim->end[other] > sim->end[best] ? other : best;
    }
    return best;
}

/* Returns the instruction of a transfer or collective that became ready last. */
static uint32_t last_member(const struct sim *sim, uint32_t meeting)
{
    const struct plan_graph *g = &sim->graph;
    uint32_t last = g->members[g->member_first[meeting]];
    for (uint32_t k = g->member_first[meeting] + 1; k < g->member_first[meeting + 1]; k++) {
        uint32_t n = g->members[k];
        if (sim->nodes[n].ready + sim->lead[n] > sim->nodes[last].ready + sim->lead[last])
            last = n;
    }
    return last;
}

/* Returns the rank for which a rank waited until `blocker` ended: the peer of a transfer, or the rank that
 * became ready last for a collective; −1: the rank itself was the last, and it waited for the links. */
static int32_t waited_for(const struct sim *sim, uint32_t blocker)
{
    const struct plan_graph *g = &sim->graph;
    if (blocker == NONE)
        return -1;
    const struct instr *x = graph_instr(g, blocker);
    if (x->queue == QUEUE_SEND || x->queue == QUEUE_RECV)
        return x->peer;
    if (x->queue != QUEUE_GROUP)
        return -1;
    uint32_t last = g->rank_of[last_member(sim, g->meeting[blocker])];
    return last == g->rank_of[blocker] ? -1 : (int32_t)last;
}

/* Fills one rank's sums. waits[rank] is scratch: seconds waited for each rank. */
static void rank_time(const struct sim *sim, uint32_t rank, double step_s, double *waits,
                      struct sim_rank_time *sums)
{
    const struct plan_graph *g = &sim->graph;
    double now = 0;
    memset(waits, 0, g->plan->rank_count * sizeof(*waits));
    *sums = (struct sim_rank_time){.waits_on = -1};
    for (uint32_t n = g->base[rank]; n < g->base[rank + 1]; n++) {
        const struct instr *x = graph_instr_of(g, rank, n);
        double begin = sim->nodes[n].ready, end = sim->end[n];
        if (instr_sends(x))
            sums->send_s += end - sim->meeting_start[g->meeting[n]];
        if (x->queue != QUEUE_COMPUTE)
            continue;
        if (begin > now) {
            int32_t on = waited_for(sim, sim_blocker(sim, n));
            sums->wait_s += begin - now;
            if (on >= 0)
                waits[on] += begin - now;
        }
        sums->compute_s += end - begin;
        now = end;
    }
    sums->idle_s = step_s - now;
    for (uint32_t r = 0; r < g->plan->rank_count; r++) {
        if (waits[r] > sums->waits_on_s) {
            sums->waits_on_s = waits[r];
            sums->waits_on = (int32_t)r;
        }
    }
}

int sim_rank_times(const struct sim *sim, struct sim_rank_time *ranks, struct err *err)
{
    const struct plan_graph *g = &sim->graph;
    double step_s = 0, *waits = calloc((size_t)g->plan->rank_count + 1, sizeof(*waits));
    if (!waits)
        return err_set(err, ERR_NOMEM, "timeline: out of memory");
    for (uint32_t n = 0; n < g->total; n++)
        step_s = sim->end[n] > step_s ? sim->end[n] : step_s;
    for (uint32_t r = 0; r < g->plan->rank_count; r++)
        rank_time(sim, r, step_s, waits, &ranks[r]);
    free(waits);
    return 0;
}

/* --- the critical path --- */

struct path_walk {
    const struct sim *sim;
    struct sim_path *path;
    struct err *err;
    size_t capacity;
    double now; /* the critical path is known from this time to the step's end */
};

static int timeline_part_add(struct path_walk *w, uint32_t kind, uint32_t number, int32_t peer, double begin)
{
    struct sim_path *path = w->path;
    if (begin >= w->now)
        return 0;
    if (ARRAY_RESERVE(path->parts, w->capacity, path->count + 1, w->err) < 0)
        return -1;
    path->parts[path->count++] = (struct sim_path_part){.kind = kind,
                                                        .number = number,
                                                        .rank = w->sim->graph.rank_of[number],
                                                        .peer = peer,
                                                        .begin_s = begin,
                                                        .end_s = w->now};
    w->now = begin;
    return 0;
}

/* Adds the part of the critical path that a transfer or collective explains; *next receives the instruction
 * to look at next. */
static int meeting_walk(struct path_walk *w, uint32_t n, uint32_t *next)
{
    const struct sim *sim = w->sim;
    const struct plan_graph *g = &sim->graph;
    uint32_t meeting = g->meeting[n], number = g->members[g->member_first[meeting]];
    const struct instr *x = graph_instr(g, n);
    bool group = x->queue == QUEUE_GROUP;
    int32_t peer = group ? -1 : graph_instr(g, number)->peer;
    if (timeline_part_add(w, group ? PATH_COLLECTIVE : PATH_TRANSFER, number, peer,
                          sim->meeting_start[meeting]) < 0)
        return -1;
    uint32_t holder = sim->holder[meeting];
    if (holder != NONE && sim->meeting_start[meeting] > sim->meeting_ready[meeting]) {
        /* Another transfer or collective occupied the wire or network card, so the path goes on with what the
         * other one waited for. */
        *next = g->members[g->member_first[holder]];
        return timeline_part_add(w, PATH_SHARED, number, peer, sim->meeting_start[holder]);
    }
    uint32_t last = last_member(sim, meeting);
    *next = sim_blocker(sim, last);
    /* The collective's messages take the time from the moment at which its last member was ready. */
    return timeline_part_add(w, PATH_COLLECTIVE, last, -1, sim->nodes[last].ready);
}

int sim_path(const struct sim *sim, struct sim_path *path, struct err *err)
{
    const struct plan_graph *g = &sim->graph;
    struct path_walk w = {.sim = sim, .path = path, .err = err};
    uint32_t n = NONE, steps = 0;
    int result = 0;
    *path = (struct sim_path){0};
    for (uint32_t i = 0; i < g->total; i++)
        if (n == NONE || sim->end[i] > sim->end[n])
            n = i;
    w.now = n == NONE ? 0 : sim->end[n];
    while (n != NONE && w.now > 0 && result == 0 && steps++ <= 2 * g->total) {
        if (g->meeting[n] == NONE) {
            result = timeline_part_add(&w, PATH_COMPUTE, n, -1, sim->nodes[n].ready);
            n = sim_blocker(sim, n);
        } else {
            result = meeting_walk(&w, n, &n);
        }
    }
    if (result < 0) {
        sim_path_fini(path);
        return -1;
    }
    for (uint32_t a = 0, b = path->count; a + 1 < b; a++) {
        struct sim_path_part swap = path->parts[a];
        path->parts[a] = path->parts[--b];
        path->parts[b] = swap;
    }
    return 0;
}

void sim_path_fini(struct sim_path *path)
{
    free(path->parts);
    *path = (struct sim_path){0};
}

/* --- memory --- */

struct change { /* a change of the bytes in use */
    double at_s, bytes;
    uint32_t order;
};

static int change_compare(const void *left, const void *right)
{
    const struct change *a = left, *b = right;
    if (a->at_s != b->at_s)
        return a->at_s < b->at_s ? -1 : 1;
    if ((a->bytes < 0) != (b->bytes < 0)) /* at equal times, frees come before allocations */
        return a->bytes < 0 ? -1 : 1;
    return a->order < b->order ? -1 : a->order > b->order;
}

struct memory_walk {
    const struct plan_rank *rank;
    struct arena arena; /* the arrays below */
    double **held;      /* per slot: bytes of each instance, 0: free */
    struct change *changes;
    uint32_t count;
};

static void timeline_slot_take(struct memory_walk *w, const struct instr *x, int32_t slot, double at_s,
                               double bytes)
{
    if (slot < 0 || w->rank->slots[slot].lifetime == SLOT_FOR_RUN)
        return;
    double *held = &w->held[slot][slot_instance(&w->rank->slots[slot], x->micro_batch, x->block_begin)];
    if (*held > 0 || bytes <= 0)
        return;
    *held = bytes;
    w->changes[w->count] = (struct change){at_s, bytes, w->count};
    w->count++;
}

static void timeline_slot_free(struct memory_walk *w, const struct instr *x, int32_t slot, double at_s)
{
    if (slot < 0 || w->rank->slots[slot].lifetime == SLOT_FOR_RUN)
        return;
    double *held = &w->held[slot][slot_instance(&w->rank->slots[slot], x->micro_batch, x->block_begin)];
    if (*held <= 0)
        return;
    w->changes[w->count] = (struct change){at_s, -*held, w->count};
    w->count++;
    *held = 0;
}

int sim_memory_peak(const struct sim *sim, uint32_t rank,
                    double (*bytes)(void *context, uint32_t rank, uint32_t slot, int32_t micro_batch),
                    void *context, double *peak_bytes, struct err *err)
{
    const struct plan_graph *g = &sim->graph;
    struct memory_walk w = {.rank = &g->plan->ranks[rank]};
    uint32_t count = g->base[rank + 1] - g->base[rank];
    double base = (double)w.rank->memory_bytes;
    /* an instruction writes at most two buffers and frees three */
    ARENA_ARRAY(&w.arena, w.changes, 5 * (size_t)count);
    ARENA_ARRAY(&w.arena, w.held, w.rank->slot_count);
    for (uint32_t s = 0; s < w.rank->slot_count && w.held; s++) {
        const struct plan_slot *slot = &w.rank->slots[s];
        ARENA_ARRAY(&w.arena, w.held[s], (size_t)slot->ring_micro_batches * slot->ring_blocks);
        base -= slot->lifetime != SLOT_FOR_RUN ? (double)slot->bytes_total : 0;
    }
    bool failed = w.arena.failed;
    for (uint32_t n = g->base[rank]; n < g->base[rank + 1] && !failed; n++) {
        const struct instr *x = graph_instr_of(g, rank, n);
        double from = sim->nodes[n].ready, to = sim->end[n];
        if (x->slot_out >= 0)
            timeline_slot_take(&w, x, x->slot_out, from,
                               bytes(context, rank, (uint32_t)x->slot_out, x->micro_batch));
        if (x->slot_save >= 0 && !(x->flags & FLAG_FREES_SAVE))
            timeline_slot_take(&w, x, x->slot_save, from,
                               bytes(context, rank, (uint32_t)x->slot_save, x->micro_batch));
        if ((x->flags & FLAG_FREES_IN) || x->op == INSTR_RELEASE)
            timeline_slot_free(&w, x, x->slot_in, to);
        if (x->flags & FLAG_FREES_OUT)
            timeline_slot_free(&w, x, x->slot_out, to);
        if (x->flags & FLAG_FREES_SAVE)
            timeline_slot_free(&w, x, x->slot_save, to);
    }
    if (!failed)
        qsort(w.changes, w.count, sizeof(*w.changes), change_compare);
    *peak_bytes = base = base > 0 ? base : 0;
    for (uint32_t i = 0; i < w.count; i++) {
        base += w.changes[i].bytes;
        *peak_bytes = base > *peak_bytes ? base : *peak_bytes;
    }
    arena_fini(&w.arena);
    return failed ? err_set(err, ERR_NOMEM, "memory over time: out of memory") : 0;
}
