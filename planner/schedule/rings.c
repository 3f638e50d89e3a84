/* The number of buffers that a stage needs for each kind of tensor, from the times of a schedule. */
#include "planner/schedule/schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The times for which the tensors of one stage are in their buffers: micro-batch k's from begin[k] to end[k],
 * in seconds. */
struct buffer_span {
    const double *begin, *end;
    bool backward; /* the buffers are filled in the order of the rank's backwards; false: of its forwards */
};

struct ring_scratch {
    double *soonest; /* [events]: the earliest begin[k] of this and all later events */
    /* [micro_batches] held: the micro-batches whose tensor is in a buffer; held_turn: the position of each of
     * them in the order in which the rank takes its micro-batches */
    uint32_t *held, *held_turn;
    uint8_t *apart; /* [micro_batches + 1]: 1 at d if some micro-batches k and k + d are in buffers at the
                       same time */
};

static bool of(const struct schedule_event *e, uint32_t stage, bool backward)
{
    return e->stage == stage && e->kind != EVENT_WEIGHT && (e->kind != EVENT_FORWARD) == backward;
}

/* Returns the smallest ring of at least `least` buffers in which micro-batches that are in buffers at the
 * same time have different ones: no difference of their numbers may be a multiple of the ring's length. The
 * result's `held` counts from the oldest micro-batch that is still in a buffer to the newest. */
static struct schedule_ring ring_search(const struct schedule *s, uint32_t stage, uint32_t rank,
                                        const struct buffer_span *span, uint32_t least,
                                        struct ring_scratch *x)
{
    const struct schedule_event *events = &s->events[s->first[rank]];
    uint32_t count = s->first[rank + 1] - s->first[rank], held = 0, furthest = 0, turn = 0;
    struct schedule_ring result = {least, least};
    double soonest = INFINITY;
    for (uint32_t i = count; i-- > 0;) {
        if (of(&events[i], stage, span->backward))
            soonest = fmin(soonest, span->begin[events[i].micro_batch]);
        x->soonest[i] = soonest;
    }
    memset(x->apart, 0, s->micro_batches + 1);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t kept = 0, k = events[i].micro_batch, oldest = turn;
        if (!of(&events[i], stage, span->backward))
            continue;
        for (uint32_t h = 0; h < held; h++) {
            uint32_t before = x->held[h], distance = k > before ? k - before : before - k;
            if (span->end[before] > span->begin[k]) {
                x->apart[distance] = 1;
                furthest = distance > furthest ? distance : furthest;
                oldest = x->held_turn[h] < oldest ? x->held_turn[h] : oldest;
            }
            if (span->end[before] > x->soonest[i]) {
                x->held_turn[kept] = x->held_turn[h];
                x->held[kept++] = before;
            }
        }
        result.held = turn - oldest + 1 > result.held ? turn - oldest + 1 : result.held;
        x->held_turn[kept] = turn++;
        x->held[kept++] = k;
        held = kept;
    }
    for (bool collides = true; collides && result.ring < s->micro_batches;) {
        collides = false;
        for (uint32_t at = result.ring; at <= furthest && !collides; at += result.ring)
            collides = x->apart[at];
        result.ring += collides;
    }
    result.ring = result.ring < s->micro_batches ? result.ring : s->micro_batches;
    result.held = result.held < result.ring ? result.held : result.ring;
    return result;
}

/* Returns the most micro-batches in flight in a stage: after their forward, and before the last event that
 * needs the activations saved by it. */
static uint32_t live_most(const struct schedule *s, uint32_t stage, uint32_t rank, bool split)
{
    uint32_t live = 0, most = 1;
    for (uint32_t i = s->first[rank]; i < s->first[rank + 1]; i++) {
        const struct schedule_event *e = &s->events[i];
        if (e->stage != stage)
            continue;
        live += e->kind == EVENT_FORWARD;
        most = live > most ? live : most;
        live -= e->kind == (split ? EVENT_WEIGHT : EVENT_BACKWARD);
    }
    return most;
}

/* Returns the number of buffers between two stages of one member each, in the strict order: the difference of
 * their micro-batches in flight, and one for the micro-batch that is being computed. */
static uint32_t ring_between(const struct schedule *s, const struct candidate *c, uint32_t stage)
{
    uint32_t w = c->members[c->stages[stage].member_first].window;
    uint32_t v = c->members[c->stages[stage + 1].member_first].window;
    w = w ? w : s->micro_batches;
    v = v ? v : s->micro_batches;
    uint32_t depth = w > v ? w - v + 1 : 2;
    depth = depth < 2 ? 2 : depth;
    return depth < s->micro_batches ? depth : s->micro_batches;
}

static struct schedule_ring even(uint32_t depth)
{
    return (struct schedule_ring){depth, depth};
}

static void rings_chain(const struct schedule *s, const struct candidate *c, uint32_t stage,
                        struct schedule_rings *rings)
{
    uint32_t out = s->micro_batches < 2 ? s->micro_batches : 2;
    if (stage > 0) {
        rings->activations = even(ring_between(s, c, stage - 1));
        rings->returning = even(out);
    }
    if (stage + 1 < s->stages) {
        rings->gradients = even(ring_between(s, c, stage));
        rings->leaving = even(out);
    }
}

/* Whether the schedule is a plain pipeline in strict order, where the micro-batches in flight decide the
 * number of buffers. */
static bool is_chain(const struct schedule *s, const struct candidate *c)
{
    return !c->eager && s->stages == s->ranks && c->schedule != SCHEDULE_INTERLEAVED;
}

int schedule_rings(struct schedule *s, const struct candidate *c, uint32_t stage, uint32_t rank,
                   struct schedule_rings *rings, struct err *err)
{
    size_t row = (size_t)stage * s->micro_batches, next = row + s->micro_batches;
    uint32_t count = s->first[rank + 1] - s->first[rank],
             live = live_most(s, stage, rank, c->schedule == SCHEDULE_SPLIT);
    *rings = (struct schedule_rings){.saved = even(live)};
    if (is_chain(s, c)) {
        rings_chain(s, c, stage, rings);
        return 0;
    }
    size_t doubles = (size_t)count + 1, numbers = (size_t)s->micro_batches + 1;
    struct ring_scratch x = {.soonest =
                                 malloc(doubles * sizeof(double) + 2 * numbers * sizeof(uint32_t) + numbers)};
    if (!x.soonest)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    x.held = (uint32_t *)(x.soonest + doubles);
    x.held_turn = x.held + numbers;
    x.apart = (uint8_t *)(x.held_turn + numbers);
    struct buffer_span saved = {&s->forward_begin[row], &s->backward_end[row], false};
    rings->saved = ring_search(s, stage, rank, &saved, live, &x);
    rings->saved.held = live;
    if (stage + 1 < s->stages) {
        struct buffer_span leaving = {&s->forward_begin[row], &s->forward_left[row], false};
        struct buffer_span gradients = {&s->backward_end[next], &s->backward_end[row], true};
        rings->leaving = ring_search(s, stage, rank, &leaving, 2, &x);
        rings->gradients = ring_search(s, stage, rank, &gradients, 2, &x);
    }
    if (stage > 0) {
        struct buffer_span activations = {&s->forward_end[row - s->micro_batches], &s->forward_end[row],
                                          false};
        struct buffer_span returning = {&s->backward_begin[row], &s->backward_left[row], true};
        rings->activations = ring_search(s, stage, rank, &activations, 2, &x);
        rings->returning = ring_search(s, stage, rank, &returning, 2, &x);
    }
    free(x.soonest);
    return 0;
}
