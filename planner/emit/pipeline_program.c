/* Makes the instruction lists of pipelines of replica stages. Each rank computes in the order of its
 * schedule.
 *
 * A RECV may start as soon as its slot's ring has a free buffer; a SEND keeps its buffer until the transport
 * has taken the bytes. A rank receives from a peer in the order in which the peer sends. With several stages
 * per rank this is not the order in which the rank computes.
 */
#include <stdlib.h>
#include <string.h>

#include "planner/emit/pipeline_private.h"

enum instance { TAKEN = -2 }; /* the buffer is in use until an instruction that is not added yet */

struct pipeline_writer {
    struct pipeline_emitter *c;
    struct program_builder b;
    uint32_t rank, limit; /* limit: micro-batches [0, limit) are computed */
    bool train;           /* the program has backwards */
    bool broken;          /* an event found no free instance in a ring */
    int32_t last[2];      /* the last forward and the last backward that were added */
    int32_t came[3];      /* instructions that the next event waits for: gathers, and the freeing of gradient
                             buffers */
    int32_t reduced;      /* the last reduction of a range's gradients; PLAN_NONE: none */
    int32_t
        gave; /* the instruction that sends this rank's weights, for which STEP must wait; PLAN_NONE: none */
};

size_t pipeline_numbers(const struct pipeline_emitter *c, uint32_t stages)
{
    /* each ring_track has two arrays, received[] two more */
    return (2 * (size_t)BOUNDARIES + 2) * stages * c->micro_batches;
}

/* Reserves an instance for micro-batch k; after[2] are the instructions to wait for. Returns false if all
 * are in use. */
static bool track_take(struct ring_track *t, uint32_t k, int32_t after[2])
{
    int32_t *instance = &t->by_instance[k % t->ring];
    bool room = t->taken - t->given < t->held && *instance != TAKEN;
    after[0] = *instance;
    after[1] = t->by_turn[t->taken++ % t->held];
    *instance = TAKEN;
    return room;
}

static void track_give(struct ring_track *t, uint32_t k, int32_t number)
{
    t->by_instance[k % t->ring] = number;
    t->by_turn[t->given++ % t->held] = number;
}

static void cursors_reset(struct pipeline_writer *w, uint32_t stage)
{
    const struct candidate_stage *s = &w->c->candidate->stages[stage];
    for (uint32_t m = s->member_first; m < s->member_first + s->member_count; m++)
        w->c->cursor[m] = w->c->schedule.first[m];
}

static void writer_begin(struct pipeline_writer *w, uint32_t limit, bool train)
{
    struct pipeline_emitter *c = w->c;
    int32_t *at = c->numbers;
    w->limit = limit;
    w->train = train;
    w->last[0] = w->last[1] = w->reduced = PLAN_NONE;
    for (uint32_t s = c->first_stage[w->rank]; s < c->stages; s = c->next_stage[s]) {
        struct rank_stage *part = &c->parts[s];
        memset(at, 0xff, sizeof(*at) * pipeline_numbers(c, 1));
        for (int i = 0; i < BOUNDARIES; i++, at += 2 * c->micro_batches) {
            part->track[i].by_instance = at;
            part->track[i].by_turn = at + c->micro_batches;
            part->track[i].taken = part->track[i].given = 0;
        }
        for (int i = 0; i < 2; i++, at += c->micro_batches)
            part->received[i] = at;
        if (s > 0)
            cursors_reset(w, s - 1);
        if (s + 1 < c->stages)
            cursors_reset(w, s + 1);
    }
    memset(c->freed, 0xff, state_freed_count(c) * sizeof(*c->freed));
    state_fetch(c, &w->b, w->came, &w->gave);
    w->came[2] = PLAN_NONE;
}

static bool takes_part(const struct pipeline_writer *w, const struct schedule_event *e)
{
    return w->train || (e->kind == EVENT_FORWARD && e->micro_batch < w->limit);
}

/* Whether stage s runs, for micro-batch k, the layer that it shares with the next stage. When text is sampled
 * it runs that layer for every token, because the layer's keys and values are kept in one stage. */
static bool runs_next(const struct pipeline_writer *w, uint32_t s, uint32_t k)
{
    const struct pipeline_emitter *c = w->c;
    bool tokens = w->limit < c->micro_batches;
    return candidate_next_count(c->candidate, (int32_t)s) > 0 &&
           (tokens || candidate_runs_next(c->candidate, s, k, c->micro_batches));
}

/* Returns the blocks that a stage runs for micro-batch k. */
static struct plan_range pipeline_program_blocks_of(const struct pipeline_writer *w, uint32_t stage,
                                                    uint32_t k)
{
    const struct candidate_stage *s = &w->c->candidate->stages[stage];
    return (struct plan_range){s->block_begin + (stage > 0 && runs_next(w, stage - 1, k)),
                               s->block_end + runs_next(w, stage, k)};
}

static int32_t transfer_add(struct pipeline_writer *w, uint32_t stage, enum boundary at, uint32_t k,
                            const int32_t *after, size_t count)
{
    struct plan_range blocks = pipeline_program_blocks_of(w, stage, k);
    bool sends = at == ACT_OUT || at == GRAD_OUT, behind = at == ACT_OUT || at == GRAD_IN;
    int32_t boundary = behind ? blocks.end : blocks.begin;
    struct instr x = instr_at(sends ? INSTR_SEND : INSTR_RECV, (int32_t)k, boundary, boundary);
    x.peer = (int32_t)owner_of(w->c, behind ? stage + 1 : stage - 1, k);
    x.tag = at == ACT_IN || at == ACT_OUT ? TAG_ACTIVATION : TAG_GRADIENT;
    *(sends ? &x.slot_in : &x.slot_out) = w->c->parts[stage].slot[at];
    x.flags = sends ? FLAG_FREES_IN : 0;
    return program_add(&w->b, &x, after, count);
}

/* Returns the receive of the tensor that a stage needs for micro-batch k. All receives of tensors that the
 * peer sends earlier are added first. */
static int32_t received(struct pipeline_writer *w, uint32_t stage, bool gradient, uint32_t k)
{
    struct pipeline_emitter *c = w->c;
    uint32_t peer = owner_of(c, gradient ? stage + 1 : stage - 1, k);
    int32_t *number = &c->parts[stage].received[gradient][k];
    while (*number < 0 && c->cursor[peer] < c->schedule.first[peer + 1]) {
        const struct schedule_event *e = &c->schedule.events[c->cursor[peer]++];
        bool back = e->kind != EVENT_FORWARD;
        if (!takes_part(w, e) || e->kind == EVENT_WEIGHT ||
            (back ? e->stage == 0 : e->stage + 1 == c->stages))
            continue;
        uint32_t to = back ? e->stage - 1 : e->stage + 1;
        if (owner_of(c, to, e->micro_batch) != w->rank)
            continue;
        struct rank_stage *part = &c->parts[to];
        enum boundary in = back ? GRAD_IN : ACT_IN;
        int32_t after[2];
        w->broken |= !track_take(&part->track[in], e->micro_batch, after);
        part->received[back][e->micro_batch] = transfer_add(w, to, in, e->micro_batch, after, 2);
    }
    return *number;
}

/* Adds receive, compute and send of an event. `save`: the slot for what the backward needs, or the KV
 * cache, or none. */
static void event_add(struct pipeline_writer *w, const struct schedule_event *e, int32_t save)
{
    static const enum instr_op ops[] = {[EVENT_FORWARD] = INSTR_FORWARD,
                                        [EVENT_BACKWARD] = INSTR_BACKWARD,
                                        [EVENT_INPUT] = INSTR_BACKWARD_INPUT,
                                        [EVENT_WEIGHT] = INSTR_BACKWARD_WEIGHT};
    struct rank_stage *part = &w->c->parts[e->stage];
    bool back = e->kind != EVENT_FORWARD, weight = e->kind == EVENT_WEIGHT;
    enum boundary in = back ? GRAD_IN : ACT_IN, out = back ? GRAD_OUT : ACT_OUT;
    int32_t after[6] = {PLAN_NONE, PLAN_NONE, PLAN_NONE, w->came[0], w->came[1], w->came[2]};
    uint32_t k = e->micro_batch;
    struct plan_range blocks = pipeline_program_blocks_of(w, e->stage, k);
    struct instr x = instr_at(ops[e->kind], (int32_t)k, blocks.begin, blocks.end);
    x.slot_in = weight ? PLAN_NONE : part->slot[in];
    x.slot_out = weight ? PLAN_NONE : part->slot[out];
    x.slot_save = save;
    bool again = !weight && save == part->saved && w->c->plan->ranks[w->rank].recompute;
    x.flags = (uint16_t)((x.slot_in >= 0 ? FLAG_FREES_IN : 0) |
                         (e->kind == EVENT_BACKWARD || weight ? FLAG_FREES_SAVE : 0) |
                         (again ? FLAG_RECOMPUTE : 0));
    if (x.slot_in >= 0)
        after[0] = received(w, e->stage, back, k);
    if (x.slot_out >= 0)
        w->broken |= !track_take(&part->track[out], k, &after[1]);
    int32_t done = w->last[back] = program_add(&w->b, &x, after, 6);
    w->came[0] = w->came[1] = w->came[2] = PLAN_NONE;
    if (x.slot_in >= 0)
        track_give(&part->track[in], k, done);
    if (x.slot_out >= 0)
        track_give(&part->track[out], k, transfer_add(w, e->stage, out, k, &done, 1));
}

enum save { SAVE_ALL, SAVE_NOTHING, SAVE_CACHE };

static void event_save(struct pipeline_writer *w, const struct schedule_event *e, enum save save)
{
    if (takes_part(w, e))
        event_add(w, e,
                  save == SAVE_ALL     ? w->c->parts[e->stage].saved
                  : save == SAVE_CACHE ? w->c->cache
                                       : PLAN_NONE);
}

/* Adds the events of one range in one direction, in the order of the schedule. */
static void pipeline_program_range_add(struct pipeline_writer *w, uint32_t stage, bool back, enum save save)
{
    const struct schedule *s = &w->c->schedule;
    for (uint32_t i = s->first[w->rank]; i < s->first[w->rank + 1]; i++)
        if (s->events[i].stage == stage && (s->events[i].kind != EVENT_FORWARD) == back)
            event_save(w, &s->events[i], save);
}

/* Adds the events of a rank that gathers one range of blocks after another. A range's weights are released
 * after its last forward, except those of the last range, with which backward begins, and are gathered again
 * for the range's backward, after which its gradients are reduced. The next range's gather comes before that
 * reduction, so both overlap with computing. Ranks without events take part in the gathers. */
static void ranges_add(struct pipeline_writer *w, enum save save)
{
    struct pipeline_emitter *c = w->c;
    uint32_t s = c->first_stage[w->rank], first = s;
    int32_t came = PLAN_NONE;
    for (; s < c->stages; s += c->groups) {
        came = w->came[1] = state_ring_fetch(c, &w->b, s);
        pipeline_program_range_add(w, s, false, save);
        if (!w->train || s + c->groups < c->stages)
            state_ring_release(c, &w->b, s, came);
    }
    for (s -= c->groups; w->train; s -= c->groups) {
        w->came[2] = state_ring_room(c, s);
        pipeline_program_range_add(w, s, true, save);
        state_ring_release(c, &w->b, s, came);
        if (s > first)
            came = w->came[1] = state_ring_fetch(c, &w->b, s - c->groups);
        int32_t reduced = state_ring_reduce(c, &w->b, s, w->last[1]);
        w->reduced = reduced >= 0 ? reduced : w->reduced;
        if (s == first)
            break;
    }
}

static void events_add(struct pipeline_writer *w, enum save save)
{
    const struct schedule *s = &w->c->schedule;
    if (rank_gathers(w->c, w->rank)) {
        ranges_add(w, save);
        return;
    }
    for (uint32_t i = s->first[w->rank]; i < s->first[w->rank + 1]; i++)
        event_save(w, &s->events[i], save);
}

/* Adds the end of a training step: reduction of gradients, norm, optimiser step. Replicas: all members of
 * a stage have equal gradients, so that one of them counts in the norm and sends the result to the others.
 * Shards: every rank counts its own. */
static void train_tail(struct pipeline_writer *w, int32_t scalars)
{
    struct pipeline_emitter *c = w->c;
    const struct plan_rank *rank = &c->plan->ranks[w->rank];
    const struct candidate_stage *stage = stage_of(c, w->rank);
    bool shared = stage->member_count > 1;
    int32_t group = 1 + rank->stage, all = c->grouped && !c->shards ? 1 + (int32_t)c->groups : 0;
    state_release(c, &w->b, w->came);
    int32_t summed[2] = {w->last[1], w->reduced}, norm = PLAN_NONE;
    state_reduce(c, &w->b, w->rank, summed);
    if (c->shards || w->rank == stage->member_first)
        norm = program_add_collective(&w->b, INSTR_ALL_REDUCE, all, PLAN_NONE, c->norm, TAG_NORM, summed, 2);
    if (shared && !c->shards)
        norm = program_add_collective(&w->b, INSTR_BROADCAST, group, (int32_t)stage->member_first, c->norm,
                                      TAG_NORM, norm >= 0 ? &norm : summed, 1);
    int32_t after[3] = {scalars, norm, w->gave};
    program_add_step(&w->b, rank, c->shards && shared ? group : PLAN_NONE, after, 3);
}

/* Adds a program for a batch. Evaluation ends with the loss of its forwards; in training the loss is
 * all-reduced while the backwards drain. */
static void batch_build(struct pipeline_writer *w, bool train)
{
    struct pipeline_emitter *c = w->c;
    const struct rank_stage *part = &c->parts[c->first_stage[w->rank]];
    uint64_t events = (c->schedule.first[w->rank + 1] - c->schedule.first[w->rank]) / (train ? 1 : 2);
    uint64_t sides = (part->slot[ACT_IN] >= 0 ? 1u : 0u) + (part->slot[ACT_OUT] >= 0 ? 1u : 0u);
    program_builder_expect(&w->b, (1 + sides) * events, 3 * sides * events);
    writer_begin(w, c->micro_batches, train);
    events_add(w, train ? SAVE_ALL : SAVE_NOTHING);
    if (!train)
        state_release(c, &w->b, w->came);
    int32_t scalars = program_add_loss(&w->b, c->scalars, w->last[0]);
    if (train)
        train_tail(w, scalars);
}

/* Adds prefill or generate, which are alike: the prompt, or the last token, passes all stages as
 * micro-batch 0, and the rank with the last stage chooses the token. */
static void pipeline_program_token_build(struct pipeline_writer *w)
{
    struct pipeline_emitter *c = w->c;
    writer_begin(w, 1, false);
    events_add(w, SAVE_CACHE);
    state_release(c, &w->b, w->came);
    program_add_choice(&w->b, w->rank, owner_of(c, c->stages - 1, 0), c->token, w->last[0]);
}

int pipeline_programs(struct pipeline_emitter *c, uint32_t r)
{
    for (int kind = 0; kind < PROGRAM_KINDS; kind++) {
        struct pipeline_writer w = {.c = c, .rank = r};
        if (c->programs == EMIT_TRAIN && kind != PROGRAM_TRAIN)
            continue;
        if (kind == PROGRAM_SAVE)
            program_add_save(&w.b, c->barrier); /* Of a parameter that several ranks keep, only one rank
                                                   writes its copy (worker/checkpoint/keeper.h). */
        else if (kind == PROGRAM_TRAIN || kind == PROGRAM_EVALUATE)
            batch_build(&w, kind == PROGRAM_TRAIN);
        else if (c->cache >= 0)
            pipeline_program_token_build(&w);
        else
            continue;
        if (program_builder_take(&w.b, &c->plan->ranks[r].programs[kind], c->err) < 0)
            return -1;
        if (w.broken)
            return err_set(c->err, ERR_INTERNAL, "planner: rank %u has too few buffers for what arrives", r);
    }
    return 0;
}
