/* Tracks which nodes and workers are alive. Silence counts only while signs of life could have been heard:
 * since this scheduler leads and Redis is connected. An unreachable node is not yet a failed one. */
#include "scheduler/leader/scheduler_private.h"
#include "common/array.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLOCK_APART_NS = 500000000, CLOCK_AGREES_US = 1000000 };

static struct node_life *life_of(const struct scheduler *scheduler, const char *node)
{
    for (size_t i = 0; i < scheduler->life_count; i++)
        if (strcmp(scheduler->lives[i].name, node) == 0)
            return &scheduler->lives[i];
    return NULL;
}

/* Takes how far a heartbeat's clock was ahead when it was read. Heartbeats that waited before they were read
 * make a clock look late, so a value counts once the next one, CLOCK_APART_NS later, agrees with it. */
static void hear_clock(struct node_life *life, int64_t ahead_us, uint64_t now_ns)
{
    if (now_ns - life->clock_ns < CLOCK_APART_NS)
        return;
    if (life->clock_ns != 0 && llabs(ahead_us - life->ahead_us) < CLOCK_AGREES_US) {
        life->clock_us = ahead_us;
        life->clock_is_known = true;
    }
    life->ahead_us = ahead_us;
    life->clock_ns = now_ns;
}

/* Returns the node's life, which it makes if there is none; NULL without memory. */
static struct node_life *life_make(struct scheduler *scheduler, const char *node)
{
    struct node_life *life = life_of(scheduler, node);
    struct err ignored; /* the next sign of life, a second later, tries again */
    if (life ||
        ARRAY_RESERVE(scheduler->lives, scheduler->life_capacity, scheduler->life_count + 1, &ignored) < 0)
        return life;
    life = &scheduler->lives[scheduler->life_count++];
    *life = (struct node_life){.noted_us = INT64_MAX / 2};
    snprintf(life->name, sizeof(life->name), "%s", node);
    return life;
}

void liveness_heard(struct scheduler *scheduler, const char *node, int64_t ahead_us, uint64_t now_ns)
{
    struct node_life *life = life_make(scheduler, node);
    if (!life)
        return;
    life->heard_ns = now_ns;
    if (ahead_us != 0)
        hear_clock(life, ahead_us, now_ns);
}

/* Returns the time up to which all signs of life have been read: now while an XREAD is waiting, otherwise the
 * end of the last XREAD. So a slow commit does not count as silence of nodes. */
static uint64_t heard_until(const struct scheduler *scheduler, uint64_t now_ns)
{
    return scheduler->reading ? now_ns : scheduler->read_ns;
}

uint64_t liveness_silent_ms(const struct scheduler *scheduler, const char *node, uint64_t now_ns)
{
    const struct node_life *life = life_of(scheduler, node);
    uint64_t since =
        life && life->heard_ns > scheduler->listening_ns ? life->heard_ns : scheduler->listening_ns;
    uint64_t until = heard_until(scheduler, now_ns);
    if (!scheduler->redis_up || until < since)
        return 0;
    return (until - since) / 1000000u;
}

static bool has_rank_on(const struct store_view *view, const char *node)
{
    for (size_t i = 0; i < view->run_count; i++) {
        for (uint32_t k = 0; k < view->runs[i].rank_count; k++) {
            if (strcmp(view->runs[i].ranks[k].node, node) == 0 &&
                !state_is_final(&assignment_machine, (int)view->runs[i].ranks[k].state)) {
                return true;
            }
        }
    }
    return false;
}

bool liveness_untold(const struct scheduler *scheduler, const struct store_sched_node *node, uint64_t now_ns)
{
    const struct node_life *life = life_of(scheduler, node->name);
    const uint64_t silent = liveness_silent_ms(scheduler, node->name, now_ns);
    if (silent <= scheduler->config->limits.unreachable_ms || node->reachable)
        return silent > scheduler->config->limits.unreachable_ms;
    return silent < scheduler->config->limits.lost_ms &&
           (!life || life->told_ns != scheduler->listening_ns) && has_rank_on(scheduler->view, node->name);
}

void liveness_told(struct scheduler *scheduler, const char *node)
{
    struct node_life *life = life_make(scheduler, node);
    if (life)
        life->told_ns = scheduler->listening_ns;
}

bool liveness_changed(const struct scheduler *scheduler, uint64_t now_ns)
{
    const struct store_view *view = scheduler->view;
    const struct scheduler_limits *limits = &scheduler->config->limits;
    for (size_t i = 0; view && i < view->node_count; i++) {
        uint64_t silent = liveness_silent_ms(scheduler, view->nodes[i].name, now_ns);
        if (liveness_untold(scheduler, &view->nodes[i], now_ns))
            return true;
        if (silent > limits->lost_ms && has_rank_on(view, view->nodes[i].name))
            return true;
    }
    for (size_t i = 0; i < scheduler->missing_count; i++)
        if (liveness_missing(scheduler, scheduler->missing[i].run, scheduler->missing[i].rank, now_ns))
            return true;
    return false;
}

static bool names_worker(const json_t *workers, int64_t run, uint32_t rank)
{
    size_t i;
    json_t *worker;
    json_array_foreach ((json_t *)workers, i, worker) {
        if (json_integer_value(json_object_get(worker, "run")) == run &&
            json_integer_value(json_object_get(worker, "rank")) == (json_int_t)rank) {
            return true;
        }
    }
    return false;
}

static void add_missing(struct scheduler *scheduler, int64_t run, uint32_t rank, uint64_t now_ns)
{
    for (size_t i = 0; i < scheduler->missing_count; i++)
        if (scheduler->missing[i].run == run && scheduler->missing[i].rank == rank)
            return;
    struct err ignored; /* without memory the worker does not count as missing yet */
    if (ARRAY_RESERVE(scheduler->missing, scheduler->missing_capacity, scheduler->missing_count + 1,
                      &ignored) == 0) {
        scheduler->missing[scheduler->missing_count++] =
            (struct missing_worker){.run = run, .rank = rank, .since_ns = now_ns};
    }
}

void liveness_hello(struct scheduler *scheduler, const char *node, const json_t *workers, uint64_t now_ns)
{
    const struct store_view *view = scheduler->view;
    if (!json_is_array(workers) || !view)
        return;
    for (size_t i = 0; i < view->run_count; i++) {
        const struct store_sched_run *run = &view->runs[i];
        for (uint32_t k = 0; k < run->rank_count; k++) {
            const struct store_sched_rank *rank = &run->ranks[k];
            if (strcmp(rank->node, node) != 0 || state_is_final(&assignment_machine, (int)rank->state))
                continue;
            if (names_worker(workers, run->id, rank->rank))
                liveness_alive(scheduler, run->id, rank->rank);
            else if (rank->state != ASSIGNMENT_SENT || !dispatch_has(scheduler->dispatch, run->id, node))
                add_missing(scheduler, run->id, rank->rank, now_ns);
        }
    }
}

void liveness_alive(struct scheduler *scheduler, int64_t run, uint32_t rank)
{
    for (size_t i = scheduler->missing_count; i-- > 0;)
        if (scheduler->missing[i].run == run && scheduler->missing[i].rank == rank)
            scheduler->missing[i] = scheduler->missing[--scheduler->missing_count];
}

bool liveness_missing(const struct scheduler *scheduler, int64_t run, uint32_t rank, uint64_t now_ns)
{
    for (size_t i = 0; i < scheduler->missing_count; i++) {
        const struct missing_worker *worker = &scheduler->missing[i];
        if (worker->run == run && worker->rank == rank)
            return (now_ns - worker->since_ns) / 1000000u > scheduler->config->limits.missing_ms;
    }
    return false;
}

static const char *liveness_node_of(const struct store_view *view, int64_t run, uint32_t rank)
{
    for (size_t i = 0; view && i < view->run_count; i++)
        if (view->runs[i].id == run && rank < view->runs[i].rank_count)
            return view->runs[i].ranks[rank].node;
    return NULL;
}

void liveness_ask_again(struct scheduler *scheduler, uint64_t now_ns)
{
    for (size_t i = 0; i < scheduler->missing_count; i++) {
        struct missing_worker *worker = &scheduler->missing[i];
        const char *node = liveness_node_of(scheduler->view, worker->run, worker->rank);
        if (!worker->asked && node &&
            (now_ns - worker->since_ns) / 1000000u > scheduler->config->limits.missing_ms / 2) {
            json_t *hello = json_pack("{s:s}", "type", "hello");
            worker->asked = true;
            dispatch_pass(scheduler->dispatch, node, hello);
            json_decref(hello);
        }
    }
}

void liveness_forget(struct scheduler *scheduler)
{
    free(scheduler->lives);
    free(scheduler->missing);
    scheduler->lives = NULL;
    scheduler->missing = NULL;
    scheduler->life_count = scheduler->life_capacity = 0;
    scheduler->missing_count = scheduler->missing_capacity = 0;
}
