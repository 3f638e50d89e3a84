/* Makes the programs of one rank with attention, experts or both. */
#include "planner/emit/expert_program.h"

#include <string.h>

#include "planner/emit/frame.h"

struct expert_writer {
    struct expert_plan *c;
    struct program_builder *b;
    const struct expert_slots *s;
    uint32_t rank;
    bool attends, expert, keeps; /* attends: the rank computes attention; expert: the rank has experts;
                                    keeps: forwards save activations for the backward */
    int32_t group_to, group_from, cache;
};

static int32_t *last_of(struct expert_writer *w, uint32_t k)
{
    return &w->c->last[(size_t)k * EXPERT_LASTS];
}

static struct instr expert_program_instr_of(const struct expert_writer *w, enum instr_op op,
                                            const struct expert_segment *g, uint32_t k, bool back)
{
    struct instr x = instr_at(op, (int32_t)k, g->begin, g->end);
    x.flags = back && op != INSTR_BACKWARD ? FLAG_BACKWARD : 0;
    if (x.queue == QUEUE_GROUP) {
        bool to = (op == INSTR_DISPATCH) != back;
        x.group = to ? w->group_to : w->group_from;
        x.tag = TAG_ROUTED;
    } else if (op != INSTR_EXPERTS && w->c->attending > 1 && w->cache < 0) {
        x.row_begin = w->c->row_first[w->rank];
        x.row_end = w->c->row_first[w->rank + 1];
    }
    bool again = w->c->plan->ranks[w->rank].recompute && op != INSTR_EXPERTS;
    if (w->keeps && again && x.queue == QUEUE_COMPUTE)
        x.flags |= FLAG_RECOMPUTE;
    return x;
}

/* --- parts of a layer, forward or backward --- */

static void dense_add(struct expert_writer *w, uint32_t i, uint32_t k, bool back)
{
    const struct expert_segment *g = &w->c->segments[i];
    const int32_t *slots = back ? w->s->gradient : w->s->stream;
    bool first = i == 0, last = i + 1 == w->c->segment_count, from = back ? last : first,
         to = back ? first : last;
    int at = back ? g->gradient : g->stream;
    struct instr x = expert_program_instr_of(w, back ? INSTR_BACKWARD : INSTR_FORWARD, g, k, back);
    x.slot_in = from ? PLAN_NONE : slots[at];
    x.slot_out = to ? PLAN_NONE : slots[from ? 0 : !at];
    x.slot_save = w->cache >= 0 ? w->cache : w->keeps ? w->s->saved : PLAN_NONE;
    x.flags |= (back ? FLAG_FREES_SAVE : 0) | (from ? 0 : FLAG_FREES_IN);
    last_of(w, k)[LAST_CHAIN] = program_add(w->b, &x, &last_of(w, k)[LAST_CHAIN], 1);
}

/* Appends the instruction that sends tokens, or gradients, of micro-batch k to the experts of segment i:
 * DISPATCH, or in backward (`back`) COMBINE. */
static void exchange_to(struct expert_writer *w, uint32_t i, uint32_t k, bool back)
{
    const struct expert_segment *g = &w->c->segments[i];
    int32_t *last = last_of(w, k);
    struct instr x = expert_program_instr_of(w, back ? INSTR_COMBINE : INSTR_DISPATCH, g, k, back);
    x.slot_in = !w->attends ? PLAN_NONE : back ? w->s->gradient[g->gradient] : w->s->routed;
    x.slot_out = !w->expert ? PLAN_NONE : back ? w->s->back_in : w->s->routed_in;
    x.flags |= w->attends && !back ? FLAG_FREES_IN : 0;
    const int32_t after[2] = {w->attends ? last[LAST_CHAIN] : PLAN_NONE,
                              w->expert ? last[LAST_EXPERTS] : PLAN_NONE};
    last[LAST_TO] = program_add(w->b, &x, after, 2);
}

static void experts_add(struct expert_writer *w, uint32_t i, uint32_t k, bool back)
{
    int32_t *last = last_of(w, k);
    struct instr x = expert_program_instr_of(w, INSTR_EXPERTS, &w->c->segments[i], k, back);
    x.slot_in = back ? w->s->back_in : w->s->routed_in;
    x.slot_out = back ? w->s->back_out : w->s->routed_out;
    x.slot_save = w->keeps ? w->s->saved_experts : PLAN_NONE;
    x.flags |= FLAG_FREES_IN | (back ? FLAG_FREES_SAVE : 0);
    const int32_t after[2] = {last[LAST_TO], last[LAST_FROM]};
    last[LAST_EXPERTS] = program_add(w->b, &x, after, 2);
}

/* Appends the instruction that sends results, or gradients, of micro-batch k back from the experts of segment
 * i: COMBINE, or in backward (`back`) DISPATCH. */
static void exchange_from(struct expert_writer *w, uint32_t i, uint32_t k, bool back)
{
    const struct expert_segment *g = &w->c->segments[i];
    int32_t *last = last_of(w, k);
    struct instr x = expert_program_instr_of(w, back ? INSTR_DISPATCH : INSTR_COMBINE, g, k, back);
    x.slot_in = !w->expert ? PLAN_NONE : back ? w->s->back_out : w->s->routed_out;
    x.slot_save = w->attends && !back ? w->s->stream[!g->stream] : PLAN_NONE;
    x.slot_out = !w->attends ? PLAN_NONE : back ? w->s->routed : w->s->stream[g->stream];
    x.flags |= (w->expert ? FLAG_FREES_IN : 0) | (w->attends && !back ? FLAG_FREES_SAVE : 0);
    const int32_t after[3] = {back         ? last[LAST_TO]
                              : w->attends ? last[LAST_CHAIN]
                                           : PLAN_NONE,
                              w->expert ? last[LAST_EXPERTS] : PLAN_NONE, back ? PLAN_NONE : last[LAST_TO]};
    last[LAST_FROM] = program_add(w->b, &x, after, 3);
    if (w->attends && !back)
        last[LAST_CHAIN] = last[LAST_FROM];
}

static void expert_program_attention_forward(struct expert_writer *w, uint32_t i, uint32_t k)
{
    const struct expert_segment *g = &w->c->segments[i];
    int32_t *last = last_of(w, k);
    struct instr x = expert_program_instr_of(w, INSTR_ATTENTION, g, k, false);
    x.slot_in = w->s->stream[g->stream];
    x.slot_out = w->s->stream[!g->stream];
    x.slot_save = w->cache >= 0 ? w->cache : w->keeps ? w->s->saved_attention : PLAN_NONE;
    x.flags |= FLAG_FREES_IN;
    program_add(w->b, &x, &last[LAST_CHAIN], 1);
    x = expert_program_instr_of(w, INSTR_ROUTE, g, k, false);
    x.slot_in = w->s->stream[!g->stream];
    x.slot_out = w->s->routed;
    x.slot_save = w->keeps ? w->s->saved_router : PLAN_NONE;
    last[LAST_CHAIN] = program_add(w->b, &x, NULL, 0);
}

static void expert_program_attention_backward(struct expert_writer *w, uint32_t i, uint32_t k)
{
    const struct expert_segment *g = &w->c->segments[i];
    int32_t *last = last_of(w, k);
    struct instr x = expert_program_instr_of(w, INSTR_ROUTE, g, k, true);
    x.slot_in = w->s->routed;
    x.slot_out = w->s->gradient[g->gradient];
    x.slot_save = w->s->saved_router;
    x.flags |= FLAG_ACCUMULATE | FLAG_FREES_IN | FLAG_FREES_SAVE;
    program_add(w->b, &x, &last[LAST_FROM], 1);
    x = expert_program_instr_of(w, INSTR_ATTENTION, g, k, true);
    x.slot_in = w->s->gradient[g->gradient];
    x.slot_out = w->s->gradient[!g->gradient];
    x.slot_save = w->s->saved_attention;
    x.flags |= FLAG_FREES_IN | FLAG_FREES_SAVE;
    last[LAST_CHAIN] = program_add(w->b, &x, NULL, 0);
}

/* --- waves --- */

struct program_wave {
    uint32_t first, count, lag;
    bool drains;
};

/* Adds this rank's instructions of segment i for micro-batch k that come before the experts: dense blocks, or
 * attention, router and the exchange to the experts. `turns`: in the last segment the backward of the
 * micro-batch follows at once. */
static void forward_front(struct expert_writer *w, uint32_t i, uint32_t k, bool turns)
{
    bool sparse = w->c->segments[i].sparse;
    if (!sparse && w->attends) {
        dense_add(w, i, k, false);
        if (turns && i + 1 == w->c->segment_count)
            dense_add(w, i, k, true);
    } else if (sparse) {
        if (w->attends)
            expert_program_attention_forward(w, i, k);
        exchange_to(w, i, k, false);
    }
}

/* Adds EXPERTS of segment i for micro-batch k and the exchange back; in the backward also the exchange to the
 * experts. */
static void experts_side(struct expert_writer *w, uint32_t i, uint32_t k, bool back)
{
    if (!w->c->segments[i].sparse)
        return;
    if (back)
        exchange_to(w, i, k, true);
    if (w->expert)
        experts_add(w, i, k, back);
    exchange_from(w, i, k, back);
}

static void backward_back(struct expert_writer *w, uint32_t i, uint32_t k)
{
    if (!w->attends)
        return;
    if (w->c->segments[i].sparse)
        expert_program_attention_backward(w, i, k);
    else
        dense_add(w, i, k, true);
}

/* Adds the forwards of all micro-batches of a wave through `count` segments, or their backwards from the last
 * segment on. A rank with both attention and experts runs the experts of micro-batch k − v->lag after
 * attention of micro-batch k, which hides the exchange. v->drains: a rank finishes its experts of a layer
 * before it starts the next layer. That layer's attention waits for the slowest experts of all ranks; placed
 * earlier in the list, it would delay the rank's own experts. */
static void expert_program_wave_pass(struct expert_writer *w, const struct program_wave *v, uint32_t count,
                                     bool back, bool turns)
{
    uint32_t places = count * v->count, span = v->drains ? v->count : places;
    for (uint32_t from = 0; from < places; from += span) {
        for (uint32_t p = from; p < from + span + v->lag; p++) {
            uint32_t front = p / v->count, behind = (p - (p < v->lag ? p : v->lag)) / v->count;
            uint32_t k = v->first + p % v->count, j = v->first + (p - (p < v->lag ? p : v->lag)) % v->count;
            if (p < from + span && back)
                experts_side(w, count - 1 - front, k, true);
            else if (p < from + span)
                forward_front(w, front, k, turns);
            if (p >= from + v->lag && back)
                backward_back(w, count - 1 - behind, j);
            else if (p >= from + v->lag)
                experts_side(w, behind, j, false);
        }
    }
}

static void waves_write(struct expert_writer *w, uint32_t micro_batches, bool train)
{
    memset(w->c->last, 0xff, (size_t)w->c->micro_batches * EXPERT_LASTS * sizeof(*w->c->last));
    for (uint32_t first = 0; first < micro_batches; first += w->c->wave) {
        uint32_t left = micro_batches - first;
        struct program_wave v = {.first = first, .count = left < w->c->wave ? left : w->c->wave};
        uint32_t delay = w->c->candidate->members[0].delay;
        v.drains = delay == 0;
        v.lag = delay ? delay : 1;
        v.lag = v.lag < v.count ? v.lag : v.count - 1;
        /* a wave reuses the previous wave's buffers, so its first instructions wait for that wave's last ones
         */
        for (uint32_t k = first; k < first + v.count && first > 0; k++)
            memcpy(last_of(w, k), last_of(w, k - w->c->wave), EXPERT_LASTS * sizeof(int32_t));
        expert_program_wave_pass(w, &v, w->c->segment_count, false, train);
        if (train)
            expert_program_wave_pass(w, &v, w->c->segment_count - 1, true, false);
    }
}

/* --- programs --- */

static int32_t newest(const struct expert_writer *w, int what)
{
    int32_t most = PLAN_NONE;
    for (uint32_t k = 0; k < w->c->micro_batches; k++) {
        int32_t at = w->c->last[(size_t)k * EXPERT_LASTS + (size_t)what];
        most = at > most ? at : most;
    }
    return most;
}

/* Returns the last forward that contributes to the loss. */
static int32_t loss_last(const struct program *program, int32_t block_count)
{
    for (uint32_t i = program->instr_count; i-- > 0;)
        if (program->instrs[i].op == INSTR_FORWARD && program->instrs[i].block_end == block_count)
            return (int32_t)i;
    return PLAN_NONE;
}

/* Adds the end of a training step. Gradients of attention are all-reduced over its ranks, and the first of
 * these counts them in the norm. An expert's gradients are on one rank, which counts them. */
static void tail_write(struct expert_writer *w, int32_t scalars)
{
    int32_t done[3] = {w->attends ? newest(w, LAST_CHAIN) : PLAN_NONE,
                       w->expert ? newest(w, LAST_EXPERTS) : PLAN_NONE, PLAN_NONE};
    if (w->attends && w->c->attending > 1)
        done[2] = program_add_collective(w->b, INSTR_ALL_REDUCE, EXPERT_GROUP_ATTENTION, PLAN_NONE,
                                         w->s->gradients, TAG_PARAMETER_GRADIENTS, done, 1);
    int32_t norm = program_add_collective(w->b, INSTR_ALL_REDUCE, EXPERT_GROUP_ALL, PLAN_NONE, w->s->norm,
                                          TAG_NORM, done, 3);
    int32_t after[3] = {scalars, norm, done[2]};
    program_add_step(w->b, &w->c->plan->ranks[w->rank], PLAN_NONE, after, 3);
}

static void program_write(struct expert_writer *w, int kind)
{
    if (kind == PROGRAM_SAVE) {
        program_add_save(w->b, w->s->barrier);
    } else if (kind == PROGRAM_PREFILL || kind == PROGRAM_GENERATE) {
        bool several = w->c->attending > 1;
        int32_t ready = PLAN_NONE;
        w->attends = w->rank == 0;
        w->group_to = several ? EXPERT_GROUP_SAMPLE_TO : EXPERT_GROUP_TO;
        w->group_from = several ? EXPERT_GROUP_SAMPLE_FROM : EXPERT_GROUP_FROM;
        w->cache = w->s->cache;
        if (w->attends || w->expert) {
            waves_write(w, 1, false);
            ready = last_of(w, 0)[w->attends ? LAST_CHAIN : LAST_FROM];
        }
        program_add_choice(w->b, w->rank, 0, w->s->token, ready);
    } else {
        w->keeps = kind == PROGRAM_TRAIN;
        waves_write(w, w->c->micro_batches, w->keeps);
        int32_t scalars =
            program_add_loss(w->b, w->s->scalars, loss_last(&w->b->program, w->c->plan->block_count));
        if (w->keeps)
            tail_write(w, scalars);
    }
}

int expert_programs(struct expert_plan *c, uint32_t r, const struct expert_slots *slots)
{
    struct plan_rank *rank = &c->plan->ranks[r];
    for (int kind = 0; kind < PROGRAM_KINDS; kind++) {
        struct program_builder b = {0};
        struct expert_writer w = {.c = c,
                                  .b = &b,
                                  .s = slots,
                                  .rank = r,
                                  .attends = c->candidate->members[r].rows > 0,
                                  .expert = c->candidate->members[r].expert_share > 0,
                                  .group_to = EXPERT_GROUP_TO,
                                  .group_from = EXPERT_GROUP_FROM,
                                  .cache = PLAN_NONE};
        if ((kind == PROGRAM_PREFILL || kind == PROGRAM_GENERATE) && slots->cache < 0)
            continue;
        program_write(&w, kind);
        if (program_builder_take(&b, &rank->programs[kind], c->err) < 0)
            return -1;
    }
    return 0;
}
