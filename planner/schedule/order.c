#include "planner/schedule/order.h"

/* How an interleaved pipeline takes its micro-batches: in `groups` groups of `each` micro-batches, of which
 * the first `larger` have one more. A group has at least as many micro-batches as there are ranks. */
struct rounds {
    uint32_t groups, each, larger;
};

static struct rounds rounds_of(uint32_t ranks, uint32_t micro_batches)
{
    struct rounds r = {.groups = micro_batches < ranks ? 1 : micro_batches / ranks};
    r.each = micro_batches / r.groups;
    r.larger = micro_batches % r.groups;
    return r;
}

uint32_t order_window_least(uint32_t ranks, uint32_t laps, uint32_t micro_batches, uint32_t rank)
{
    struct rounds r = rounds_of(ranks, micro_batches);
    return (laps - 1) * (r.each + (r.larger > 0)) + 2 * (ranks - 1 - rank) + 1;
}

/* Returns the n-th forward, or backward, of an interleaved rank that is alone in its stages: a group of
 * micro-batches passes one of the rank's ranges of blocks after the other, then the next group follows. */
static struct schedule_event interleaved_event(const struct order_of *o, uint32_t n, bool backward)
{
    struct rounds r = rounds_of(o->groups, o->micro_batches);
    uint32_t laps = o->stages / o->groups, large = r.larger * (r.each + 1) * laps;
    uint32_t size = n < large ? r.each + 1 : r.each;
    uint32_t group = n < large ? n / (size * laps) : r.larger + (n - large) / (size * laps);
    uint32_t first = group * r.each + (group < r.larger ? group : r.larger), inside = n - first * laps;
    uint32_t lap = backward ? laps - 1 - inside / size : inside / size;
    return (struct schedule_event){lap * o->groups + o->stage, first + inside % size,
                                   backward ? EVENT_BACKWARD : EVENT_FORWARD};
}

/* Returns the n-th forward, or backward, of an interleaved rank with others in its stages: all of the rank's
 * micro-batches pass one of its ranges of blocks, then the next. */
static struct schedule_event breadth_event(const struct order_of *o, uint32_t n, bool backward)
{
    uint32_t laps = o->stages / o->groups, each = o->count / laps;
    uint32_t lap = backward ? laps - 1 - n / each : n / each;
    return (struct schedule_event){lap * o->groups + o->stage, o->mine[n % each],
                                   backward ? EVENT_BACKWARD : EVENT_FORWARD};
}

static struct schedule_event order_event_at(const struct order_of *o, uint32_t n, enum schedule_kind kind)
{
    if (o->schedule == SCHEDULE_INTERLEAVED)
        return (o->alone ? interleaved_event : breadth_event)(o, n, kind != EVENT_FORWARD);
    return (struct schedule_event){o->stage, o->mine[n], kind};
}

void order_fill(const struct order_of *o, struct schedule_event *events)
{
    bool split = o->schedule == SCHEDULE_SPLIT;
    uint32_t window = o->window ? o->window : 1, at = 0;
    if (o->schedule == SCHEDULE_INTERLEAVED && o->alone) {
        uint32_t least = order_window_least(o->groups, o->stages / o->groups, o->micro_batches, o->stage);
        window = window < least ? least : window;
    } else if (o->schedule == SCHEDULE_INTERLEAVED) {
        window = o->count;
    }
    window = window < o->count ? window : o->count;
    for (uint32_t n = 0; n < window; n++)
        events[at++] = order_event_at(o, n, EVENT_FORWARD);
    for (uint32_t n = 0; n < o->count; n++) {
        events[at++] = order_event_at(o, n, split ? EVENT_INPUT : EVENT_BACKWARD);
        if (n + window < o->count)
            events[at++] = order_event_at(o, n + window, EVENT_FORWARD);
        if (split && n >= o->delay)
            events[at++] = order_event_at(o, n - o->delay, EVENT_WEIGHT);
    }
    for (uint32_t n = o->count > o->delay ? o->count - o->delay : 0; n < o->count && split; n++)
        events[at++] = order_event_at(o, n, EVENT_WEIGHT);
}
