/* From a covered order to a choice: blocks, windows, who recomputes; then the pipeline is run once as it will
 * be emitted, and what its buffers turn out to need is checked against memory. */
#include "planner/many/many.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/ring.h"
#include "planner/hybrid/deal.h"
#include "planner/hybrid/group_state.h"
#include "planner/pipeline/chain.h"
#include "planner/pipeline/pipeline.h"

#define FIT_TURNS_PART 2 /* and this often while a part of the micro-batches is run */
#define CHAIN_TURNS 8
#define FIT_TURNS 5     /* windows are lowered this often before a layout is given up */
#define RUN_FLIGHTS 4.0 /* as many micro-batches as are under way at once, so many times: to see the pace */
#define WINDOW_LEAST 0.5
#define SPARE_VAST                                                                                           \
    2u /* boundary tensors a turn that vast numbers keep room for: with one window others move */
#define WINDOW_MOST 1.5
#define WIRES_NODES 128u      /* nodes up to which wires between them are looked at */
#define SHARDS_ROUNDED 8192.0 /* bytes of a member's needs, which are rounded up */

/* As many micro-batches as memory has room for, up to half as many again as means ask for: arrivals are
 * uneven, and who may not hold another one stands still. */
static uint32_t window_most(const struct many *m, double memory, uint32_t size, enum many_role role, int way,
                            int32_t layers, uint32_t wanted)
{
    double none = many_bytes(m, size, role, way, layers, 0);
    double one = many_bytes(m, size, role, way, layers, 1) - none;
    double room = one > 0 ? floor((memory - none) / one) : INFINITY;
    double most = fmin(fmin(room, WINDOW_MOST * wanted), m->micro_batches);
    return most > wanted ? (uint32_t)most : wanted;
}

int many_draft_init(struct many_draft *d, const struct many_cover *c, double period, struct err *err)
{
    const struct many *m = c->m;
    struct place_choice *choice = &d->choice;
    const struct many_tail *tail = &c->whole;
    struct many_member how[MANY_GROUP_MAX];
    *d = (struct many_draft){
        .m = m, .lean = c->lean, .period = period, .wait_s = tail->wait, .seconds = INFINITY};
    choice->placement = m->group_max == 1 ? PLACE_PIPELINE : PLACE_HYBRID;
    choice->micro_batch_rows = m->rows;
    choice->in_turn = c->in_turn && m->group_max > 1;
    choice->stages = calloc((size_t)tail->stages + 1, sizeof(*choice->stages));
    choice->members = calloc((size_t)c->count + 1, sizeof(*choice->members));
    d->wanted = calloc((size_t)c->count + 1, sizeof(*d->wanted));
    if (!choice->stages || !choice->members || !d->wanted)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    int32_t block = 0;
    for (bool first = true; tail->size; first = false) {
        const struct many_tail *next = &c->tails[tail->begin + tail->size];
        enum many_role role = first ? MANY_FIRST : next->size ? MANY_INNER : MANY_LAST;
        struct many_tail same;
        int32_t end = block + tail->own + (role != MANY_INNER);
        struct many_stage stage;
        many_stage_begin(&stage, tail->begin);
        while (stage.size < tail->size)
            many_stage_grow(c, &stage);
        many_stage_before(c, period, &stage, next);
        many_group_holds(c, period, &stage, role, tail->own, how, &same);
        choice->stages[choice->stage_count++] = (struct place_stage){.block_begin = block,
                                                                     .block_end = end,
                                                                     .member_first = choice->member_count,
                                                                     .member_count = tail->size};
        for (uint32_t i = 0; i < tail->size; i++) {
            const struct many_unit *unit = &m->units[c->order[tail->begin + i]];
            uint32_t window = how[i].window;
            d->wanted[choice->member_count] = window;
            if (!choice->in_turn)
                window = window_most(m, unit->memory, tail->size, role, how[i].way, tail->own, window);
            choice->members[choice->member_count++] = (struct place_member){.device = unit->device,
                                                                            .micro_rows = m->rows,
                                                                            .micro_count = how[i].turns,
                                                                            .state_share = 1,
                                                                            .window = window,
                                                                            .recompute = how[i].way};
        }
        uint32_t at = choice->member_count - tail->size;
        members_by_machine(m->p, &choice->members[at], &d->wanted[at], tail->size);
        block = end;
        tail = next;
    }
    return 0;
}

/* Adapters' gradients over the members of a stage, once a step. */
static double sync_seconds(const struct many_draft *d, const struct place_stage *stage)
{
    const struct problem *p = d->m->p;
    double bytes = 0;
    uint32_t ring[MANY_GROUP_MAX];
    for (uint32_t i = 0; i < stage->member_count; i++)
        ring[i] = d->choice.members[stage->member_first + i].device;
    for (int32_t b = stage->block_begin; b < stage->block_end; b++)
        bytes += 4 * (double)p->blocks.blocks[b].lora_params;
    double latency, rate = ring_slowest(p->cluster, ring, stage->member_count, &latency);
    return 2 * bytes / rate + 2 * (stage->member_count - 1.0) * latency;
}

/* What a member needs with so many boundary tensors; of a stage's state in shards nothing. */
static void member_need(const struct many_draft *d, const struct place_stage *stage,
                        const struct place_member *member, uint32_t window, uint32_t boundary,
                        struct memory_need *need)
{
    if (d->m->shards && stage->member_count > 1) {
        struct group_stage shards = {.block_begin = stage->block_begin,
                                     .block_end = stage->block_end,
                                     .members = stage->member_count,
                                     .window = window,
                                     .micro_batch_rows = d->m->rows,
                                     .boundary_buffers = boundary,
                                     .recompute = member->recompute};
        group_need(d->m->p, &shards, 0, need);
        return;
    }
    struct memory_stage whole = {.block_begin = stage->block_begin,
                                 .block_end = stage->block_end,
                                 .window = window,
                                 .micro_batch_rows = d->m->rows,
                                 .recompute = member->recompute,
                                 .boundary_buffers = boundary,
                                 .state_share = member->state_share,
                                 .tensor_share = 1};
    memory_stage_need(d->m->p, &whole, need);
}

/* Of each member of a stage in shards, by how much its stage's state does not fit into what all have left;
 * needs[members]. */
static double shards_over(const struct many_draft *d, const struct place_stage *stage, const double *needs)
{
    double left = 0;
    if (!d->m->shards || stage->member_count < 2)
        return 0;
    for (uint32_t i = stage->member_first; i < stage->member_first + stage->member_count; i++)
        left += fmax(0, (double)d->m->p->cluster->devices[d->choice.members[i].device].memory_limit_bytes -
                            needs[i] - SHARDS_ROUNDED);
    double over = group_state_bytes(d->m->p, stage->block_begin, stage->block_end) - left;
    return over > 0 ? over / stage->member_count : 0;
}

/* Buffers as group.c and, without a deal, chain.c count them. Lowers windows, or makes members recompute,
 * where they do not fit; returns how many it touched, −1 when one cannot. spare: with so many boundary
 * tensors more than were needed, and then windows alone. */
static int buffers_fit(struct many_draft *d, const struct deal *deal, uint32_t spare)
{
    int touched = 0;
    struct place_choice *c = &d->choice;
    bool chain = c->placement == PLACE_PIPELINE, never = false;
    double *needs = calloc((size_t)c->member_count + 1, sizeof(*needs));
    uint32_t *windows = calloc(2 * (size_t)c->member_count + 1, sizeof(*windows)), *held;
    uint64_t *saved = calloc((size_t)c->member_count + 1, sizeof(*saved));
    held = windows ? windows + c->member_count : NULL;
    for (uint32_t r = 0; r < c->member_count && windows; r++)
        windows[r] = c->members[r].window;
    for (uint32_t r = 0; r < c->member_count && needs && windows && saved; r++) {
        uint32_t boundary = 0, window = chain ? windows[r] : deal_window(deal, r, NULL);
        struct memory_need need;
        struct deal_rings rings;
        if (chain)
            boundary = chain_boundary_buffers(r, c->stage_count, windows, d->m->micro_batches);
        else
            boundary = deal_boundaries(deal, r, &rings) + spare;
        if (spare)
            window = window < c->members[r].window ? window : c->members[r].window;
        member_need(d, &c->stages[chain ? r : deal->stage_of[r]], &c->members[r], window, boundary, &need);
        needs[r] = (double)need.total;
        saved[r] = need.saved_bytes;
        held[r] = window;
    }
    for (uint32_t r = 0; r < c->member_count && needs && windows && saved; r++) {
        struct place_member *member = &c->members[r];
        double over = needs[r] - (double)d->m->p->cluster->devices[member->device].memory_limit_bytes;
        over = fmax(over, 0) + shards_over(d, &c->stages[chain ? r : deal->stage_of[r]], needs);
        if (over <= 0)
            continue;
        uint32_t window = held[r], fewer = (uint32_t)ceil(over / (double)(saved[r] + 1));
        if (window > fewer &&
            (window - fewer >= d->wanted[r] * WINDOW_LEAST || member->recompute || !d->m->allowed[1]))
            member->window = window - fewer;
        else if (spare)
            continue;
        else if (!member->recompute && d->m->allowed[1])
            member->recompute = true;
        else
            never = true;
        touched++;
    }
    never = never || !needs || !windows || !saved;
    free(needs);
    free(windows);
    free(saved);
    return never ? -1 : touched;
}

/* Members that never had a micro-batch are left out. Returns whether there were any. */
static bool idle_drop(struct many_draft *d, const struct deal *deal)
{
    struct place_choice *c = &d->choice;
    uint32_t kept = 0;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        struct place_stage *stage = &c->stages[s];
        uint32_t first = kept;
        for (uint32_t r = stage->member_first; r < stage->member_first + stage->member_count; r++) {
            if (deal->first[r + 1] > deal->first[r]) {
                d->wanted[kept] = d->wanted[r];
                c->members[kept++] = c->members[r];
            }
        }
        stage->member_first = first;
        stage->member_count = kept - first;
    }
    bool any = kept < c->member_count;
    c->member_count = kept;
    return any;
}

static int double_compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

/* How much longer the whole takes than the first `ran` micro-batches: the rest goes at the pace of the middle
 * third, read where they leave the pipeline. */
static double rest_seconds(const struct many_draft *d, const struct deal *deal, double *scratch)
{
    uint32_t ran = deal->micro_batches, third = ran / 3;
    if (ran == d->m->micro_batches || third == 0)
        return 0;
    memcpy(scratch, deal->backward_end, ran * sizeof(*scratch));
    qsort(scratch, ran, sizeof(*scratch), double_compare);
    double each = (scratch[2 * third] - scratch[third]) / third;
    return each * (d->m->micro_batches - ran);
}

/* What a stage does once its last gradient is there: gradients summed, the update. */
static double ending(const struct many_draft *d, uint32_t s)
{
    const struct place_stage *stage = &d->choice.stages[s];
    double update = 0, before, after = 0;
    for (uint32_t i = 0; i < stage->member_count; i++)
        update = fmax(update, problem_step_seconds(d->m->p, d->choice.members[stage->member_first + i].device,
                                                   stage->block_begin, stage->block_end));
    if (d->m->shards)
        group_state_moves(d->m->p, &d->choice, s, &before, &after);
    return d->m->shards ? update / stage->member_count + after : update + sync_seconds(d, stage);
}

/* Gathering the first stage's shards; later ones gather while the pipeline fills. */
static double beginning(const struct many_draft *d)
{
    double before = 0, after;
    if (d->m->shards && d->choice.stages[0].member_count > 1)
        group_state_moves(d->m->p, &d->choice, 0, &before, &after);
    return before;
}

/* When the last stage is done: those towards the tail end earlier. */
static double end_seconds(const struct many_draft *d, const struct deal *deal)
{
    double latest = 0;
    for (uint32_t s = 0; s < deal->stages; s++) {
        const double *end = &deal->backward_end[(size_t)s * deal->micro_batches];
        double last = 0;
        for (uint32_t k = 0; k < deal->micro_batches; k++)
            last = fmax(last, end[k]);
        latest = fmax(latest, last + ending(d, s));
    }
    return beginning(d) + latest;
}

/* Seconds of single devices' micro-batches in the order that chain.c emits: as many forwards as the window,
 * then backward and forward in turn. There a stage whose window is its neighbour's waits for it every time,
 * so windows are what means ask for, rising towards the head, and not what memory has room for. Negative: out
 * of memory. */
static double chain_seconds(const struct many_draft *d)
{
    const struct problem *p = d->m->p;
    const struct place_choice *c = &d->choice;
    uint32_t stages = c->stage_count, count = d->m->micro_batches;
    size_t cells = (size_t)stages * count;
    double *f = malloc((4 * cells + 4 * (size_t)stages) * sizeof(*f)), *b, *link_s, seconds;
    uint32_t *windows = calloc((size_t)stages + 1, sizeof(*windows));
    if (!f || !windows) {
        free(f);
        free(windows);
        return -1;
    }
    b = f + cells;
    link_s = b + cells;
    for (uint32_t s = 0; s < stages; s++) {
        const struct place_stage *stage = &c->stages[s];
        struct micro_cost cost;
        micro_cost_init(&cost, p, c->members[s].device, d->m->rows);
        double forward = micro_forward(p, &cost, stage->block_begin, stage->block_end);
        double back = micro_backward(p, &cost, stage->block_begin, stage->block_end, c->members[s].recompute);
        for (uint32_t k = 0; k < count; k++) {
            f[(size_t)s * count + k] = forward;
            b[(size_t)s * count + k] = back;
        }
        double latency, rate;
        bool emulated;
        cluster_link(p->cluster, c->members[s].device, c->members[s + 1 < stages ? s + 1 : s].device,
                     &latency, &rate, &emulated);
        link_s[s] = latency + d->m->boundary_bytes / rate;
        windows[s] = c->members[s].window;
    }
    seconds = pipe_recurrence(stages, count, f, b, link_s, windows, link_s + stages);
    free(f);
    free(windows);
    return seconds;
}

/* Boundaries between two stages' members, each way once a micro-batch: seconds of it on each wire between
 * nodes, or card of a node. */
static void boundary_wires(const struct many_draft *d, uint32_t s, double *wires)
{
    const struct cluster *cluster = d->m->p->cluster;
    const struct place_stage *here = &d->choice.stages[s], *there = here + 1;
    double ours = 0, theirs = 0;
    for (uint32_t i = 0; i < here->member_count; i++)
        ours += fmax(1, d->choice.members[here->member_first + i].micro_count);
    for (uint32_t j = 0; j < there->member_count; j++)
        theirs += fmax(1, d->choice.members[there->member_first + j].micro_count);
    for (uint32_t i = 0; i < here->member_count; i++) {
        for (uint32_t j = 0; j < there->member_count; j++) {
            const struct place_member *a = &d->choice.members[here->member_first + i],
                                      *b = &d->choice.members[there->member_first + j];
            uint32_t from = cluster->devices[a->device].node, to = cluster->devices[b->device].node;
            double latency, rate, share = fmax(1, a->micro_count) / ours * fmax(1, b->micro_count) / theirs;
            bool emulated;
            cluster_link(cluster, a->device, b->device, &latency, &rate, &emulated);
            many_wire_add(d->m, from, to, share * d->m->boundary_bytes / rate, wires);
            many_wire_add(d->m, to, from, share * d->m->boundary_bytes / rate, wires);
        }
    }
}

/* What members in turn and single devices do not wait for when they are run, and then do: micro-batches on
 * the busiest wire for longer than a period. Negative: out of memory. */
static double wires_wait(const struct many_draft *d)
{
    size_t nodes = d->m->p->cluster->node_count;
    double *wires = nodes <= WIRES_NODES ? calloc(nodes * nodes + 1, sizeof(*wires)) : NULL, most = 0;
    if (!wires)
        return nodes <= WIRES_NODES ? -1 : 0;
    for (uint32_t s = 0; s + 1 < d->choice.stage_count; s++)
        boundary_wires(d, s, wires);
    for (size_t i = 0; i < nodes * nodes; i++)
        most = fmax(most, wires[i]);
    free(wires);
    return most > d->period ? (d->m->micro_batches - 1) * (most - d->period) : 0;
}

/* Windows that fall towards the tail: those behind a narrow one are narrowed. */
static int chain_run(struct many_draft *d, struct err *err)
{
    struct place_choice *c = &d->choice;
    int touched = 1;
    for (uint32_t s = 0; s < c->stage_count; s++)
        c->members[s].window = d->wanted[s];
    for (int turn = 0; turn < CHAIN_TURNS && touched > 0; turn++) {
        for (uint32_t s = 1; s < c->stage_count; s++) {
            uint32_t most = c->members[s - 1].window;
            c->members[s].window = c->members[s].window < most ? c->members[s].window : most;
        }
        touched = buffers_fit(d, NULL, 0);
    }
    d->seconds = touched == 0 ? chain_seconds(d) : INFINITY;
    if (d->seconds < 0)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    double update = 0;
    for (uint32_t s = 0; s < c->stage_count; s++)
        update = fmax(update, ending(d, s));
    double wait = wires_wait(d);
    if (wait < 0)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    d->seconds += update + wait;
    d->choice.estimate_s = d->seconds;
    return 0;
}

int many_draft_run(struct many_draft *d, uint32_t micro_batches, struct err *err)
{
    if (d->choice.placement == PLACE_PIPELINE)
        return chain_run(d, err);
    double flight = d->wait_s / d->period * RUN_FLIGHTS;
    uint32_t run = flight > micro_batches ? (uint32_t)flight : micro_batches;
    run = run * 2 > d->m->micro_batches ? d->m->micro_batches : run;
    double *scratch = malloc(((size_t)run + 1) * sizeof(*scratch));
    double wait = d->choice.in_turn ? wires_wait(d) : 0;
    d->seconds = INFINITY;
    d->cells = 0;
    if (!scratch || wait < 0) {
        free(scratch);
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    }
    bool whole = run == d->m->micro_batches;
    int turns = whole ? FIT_TURNS : FIT_TURNS_PART;
    for (int turn = 0; turn < turns; turn++) {
        struct deal deal;
        if (deal_init(&deal, d->m->p, &d->choice, run, err) < 0) {
            free(scratch);
            return err->code == ERR_NOFIT ? 0 : -1;
        }
        double seconds = end_seconds(d, &deal) + rest_seconds(d, &deal, scratch) + wait;
        d->cells += (uint64_t)run * d->choice.stage_count;
        bool dropped = whole && idle_drop(d, &deal);
        int touched = dropped ? 1 : buffers_fit(d, &deal, 0);
        if (touched > 0 && whole && !dropped && d->m->count > MANY_VAST)
            buffers_fit(d, &deal, SPARE_VAST * ((uint32_t)turn + 1));
        deal_fini(&deal);
        if (touched == 0 ||
            (touched > 0 && !whole && turn + 1 == turns)) /* nearly: the whole run settles it */
            d->seconds = seconds;
        if (touched <= 0)
            break;
    }
    d->choice.estimate_s = d->seconds;
    free(scratch);
    return 0;
}

void many_draft_fini(struct many_draft *d)
{
    choice_fini(&d->choice);
    free(d->wanted);
    d->wanted = NULL;
}
