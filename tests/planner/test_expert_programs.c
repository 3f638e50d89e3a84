/* Executes expert plans' programs in random legal orders on buffers that record their contents. Correct
 * programs give correct results, and for every wrong result of a spoilt program, the checker had refused the
 * program by rank and instruction. The execution does not use the checker: it follows queues, `after` and
 * collectives, and sees whether an instruction finds its inputs. */
#include "expert_fixture.h"

enum content { NOTHING, STREAM, MIDDLE, ROUTED, CAME, MADE, BACK, WENT, RETURNED, PASSED, ADDED, KEPT };

struct cell {
    enum content what;
    int block, micro;
};

struct world {
    const struct plan *plan;
    struct rand_stream *random;
    struct cell *cells[8][32]; /* [rank][slot] the slot's ring of buffers */
    bool *done[8];
    uint32_t left;
    int stepped[8], summed[8];
    char why[160];
};

static int wrong(struct world *w, const char *why, uint32_t rank, uint32_t i)
{
    snprintf(w->why, sizeof(w->why), "%s (rank %u instruction %u)", why, rank, i);
    return -1;
}

static bool tracked(const struct world *w, uint32_t rank, int32_t slot)
{
    return slot >= 0 && w->plan->ranks[rank].slots[slot].lifetime == SLOT_FOR_INSTRUCTIONS;
}

static struct cell *cell_of(struct world *w, uint32_t rank, int32_t slot, const struct instr *x)
{
    return &w->cells[rank][slot]
                    [slot_instance(&w->plan->ranks[rank].slots[slot], x->micro_batch, x->block_begin)];
}

static int put(struct world *w, uint32_t rank, uint32_t i, int32_t slot, enum content what, int block)
{
    const struct instr *x = &w->plan->ranks[rank].programs[PROGRAM_TRAIN].instrs[i];
    if (!tracked(w, rank, slot))
        return wrong(w, "nowhere to leave it", rank, i);
    struct cell *c = cell_of(w, rank, slot, x);
    if (c->what != NOTHING)
        return wrong(w, "overwritten", rank, i);
    *c = (struct cell){what, block, x->micro_batch};
    return 0;
}

static int get(struct world *w, uint32_t rank, uint32_t i, int32_t slot, enum content what, int block,
               bool frees)
{
    const struct instr *x = &w->plan->ranks[rank].programs[PROGRAM_TRAIN].instrs[i];
    if (!tracked(w, rank, slot))
        return wrong(w, "nothing to take up", rank, i);
    struct cell *c = cell_of(w, rank, slot, x);
    if (c->what != what || c->block != block || c->micro != x->micro_batch)
        return wrong(w, "finds something else", rank, i);
    if (frees)
        *c = (struct cell){NOTHING, 0, 0};
    return 0;
}

/* Executes a compute instruction. Buffers are labelled by part: attention of block b is 4b, its router 4b +
 * 1, its experts 4b + 2, and other blocks are 4b + 3. */
static int compute(struct world *w, uint32_t r, uint32_t i)
{
    const struct instr *x = &w->plan->ranks[r].programs[PROGRAM_TRAIN].instrs[i];
    bool in = x->flags & FLAG_FREES_IN, save = x->flags & FLAG_FREES_SAVE, back = x->flags & FLAG_BACKWARD;
    int b = x->block_begin, e = x->block_end, last = w->plan->block_count;
    switch (x->op) {
    case INSTR_FORWARD:
        return (b > 0 && get(w, r, i, x->slot_in, STREAM, b, in) < 0) ||
                       put(w, r, i, x->slot_save, KEPT, 4 * b + 3) < 0 ||
                       (e < last && put(w, r, i, x->slot_out, STREAM, e) < 0)
                   ? -1
                   : 0;
    case INSTR_BACKWARD:
        return (e < last && get(w, r, i, x->slot_in, BACK, e, in) < 0) ||
                       get(w, r, i, x->slot_save, KEPT, 4 * b + 3, save) < 0 ||
                       (b > 0 && put(w, r, i, x->slot_out, BACK, b) < 0)
                   ? -1
                   : 0;
    case INSTR_ATTENTION:
        if (back)
            return get(w, r, i, x->slot_in, ADDED, b, in) < 0 ||
                           get(w, r, i, x->slot_save, KEPT, 4 * b, save) < 0 ||
                           put(w, r, i, x->slot_out, BACK, b) < 0
                       ? -1
                       : 0;
        return get(w, r, i, x->slot_in, STREAM, b, in) < 0 || put(w, r, i, x->slot_save, KEPT, 4 * b) < 0 ||
                       put(w, r, i, x->slot_out, MIDDLE, b) < 0
                   ? -1
                   : 0;
    case INSTR_ROUTE:
        if (back) {
            if (get(w, r, i, x->slot_in, PASSED, b, in) < 0 ||
                get(w, r, i, x->slot_out, BACK, b + 1, false) < 0 ||
                get(w, r, i, x->slot_save, KEPT, 4 * b + 1, save) < 0)
                return -1;
            if (!(x->flags & FLAG_ACCUMULATE))
                return wrong(w, "replaces what it should add to", r, i);
            *cell_of(w, r, x->slot_out, x) = (struct cell){ADDED, b, x->micro_batch};
            return 0;
        }
        return get(w, r, i, x->slot_in, MIDDLE, b, in) < 0 ||
                       put(w, r, i, x->slot_save, KEPT, 4 * b + 1) < 0 ||
                       put(w, r, i, x->slot_out, ROUTED, b) < 0
                   ? -1
                   : 0;
    case INSTR_EXPERTS:
        if (back)
            return get(w, r, i, x->slot_in, WENT, b, in) < 0 ||
                           get(w, r, i, x->slot_save, KEPT, 4 * b + 2, save) < 0 ||
                           put(w, r, i, x->slot_out, RETURNED, b) < 0
                       ? -1
                       : 0;
        return get(w, r, i, x->slot_in, CAME, b, in) < 0 || put(w, r, i, x->slot_save, KEPT, 4 * b + 2) < 0 ||
                       put(w, r, i, x->slot_out, MADE, b) < 0
                   ? -1
                   : 0;
    case INSTR_STEP:
        w->stepped[r]++;
        for (uint32_t k = 0; k < w->plan->ranks[r].programs[PROGRAM_TRAIN].instr_count; k++)
            if (k != i && !w->done[r][k])
                return wrong(w, "steps before all is done", r, i);
        return 0;
    case INSTR_RELEASE:
        if (tracked(w, r, x->slot_in))
            *cell_of(w, r, x->slot_in, x) = (struct cell){NOTHING, 0, 0};
        return 0;
    default:
        return 0;
    }
}

/* Whether the rank runs experts of some layer. */
static bool holds(const struct world *w, uint32_t rank)
{
    for (uint32_t s = 0; s < w->plan->ranks[rank].slot_count; s++)
        if (w->plan->ranks[rank].slots[s].kind == SLOT_ROUTED_GRADIENT)
            return true;
    return false;
}

/* Executes one member's side of an exchange. */
static int exchange(struct world *w, uint32_t r, uint32_t i)
{
    const struct instr *x = &w->plan->ranks[r].programs[PROGRAM_TRAIN].instrs[i];
    bool in = x->flags & FLAG_FREES_IN, save = x->flags & FLAG_FREES_SAVE, back = x->flags & FLAG_BACKWARD;
    bool attends = w->plan->ranks[r].rows > 0;
    int b = x->block_begin;
    if (x->op == INSTR_DISPATCH && !back)
        return (attends && get(w, r, i, x->slot_in, ROUTED, b, in) < 0) ||
                       (holds(w, r) && put(w, r, i, x->slot_out, CAME, b) < 0)
                   ? -1
                   : 0;
    if (x->op == INSTR_DISPATCH)
        return (holds(w, r) && get(w, r, i, x->slot_in, RETURNED, b, in) < 0) ||
                       (attends && put(w, r, i, x->slot_out, PASSED, b) < 0)
                   ? -1
                   : 0;
    if (x->op == INSTR_COMBINE && !back)
        return (holds(w, r) && get(w, r, i, x->slot_in, MADE, b, in) < 0) ||
                       (attends && (get(w, r, i, x->slot_save, MIDDLE, b, save) < 0 ||
                                    put(w, r, i, x->slot_out, STREAM, b + 1) < 0))
                   ? -1
                   : 0;
    if (x->op == INSTR_COMBINE)
        return (attends && get(w, r, i, x->slot_in, BACK, b + 1, in) < 0) ||
                       (holds(w, r) && put(w, r, i, x->slot_out, WENT, b) < 0)
                   ? -1
                   : 0;
    if (x->tag == TAG_PARAMETER_GRADIENTS) {
        w->summed[r]++;
        for (uint32_t k = 0; k < w->plan->ranks[r].programs[PROGRAM_TRAIN].instr_count; k++) {
            const struct instr *y = &w->plan->ranks[r].programs[PROGRAM_TRAIN].instrs[k];
            bool gives = y->op == INSTR_BACKWARD || (y->op == INSTR_ATTENTION && (y->flags & FLAG_BACKWARD));
            if (gives && !w->done[r][k])
                return wrong(w, "sums gradients before they are all there", r, i);
        }
    }
    return 0;
}

/* Returns a member's first unfinished instruction of the group's queue if it may start. */
static uint32_t group_head(const struct world *w, uint32_t rank, int32_t group)
{
    const struct program *p = &w->plan->ranks[rank].programs[PROGRAM_TRAIN];
    for (uint32_t i = 0; i < p->instr_count; i++)
        if (!w->done[rank][i] && p->instrs[i].queue == QUEUE_GROUP && p->instrs[i].group == group)
            return fixture_ready(w->plan, rank, i, w->done[rank]) ? i : UINT32_MAX;
    return UINT32_MAX;
}

static int meet(struct world *w, uint32_t rank, uint32_t i)
{
    const struct instr *x = &w->plan->ranks[rank].programs[PROGRAM_TRAIN].instrs[i];
    const struct plan_group *group = &w->plan->groups[x->group];
    uint32_t at[8];
    for (uint32_t m = 0; m < group->rank_count; m++) {
        at[m] = group_head(w, group->ranks[m], x->group);
        if (at[m] == UINT32_MAX)
            return 0;
    }
    for (uint32_t m = 0; m < group->rank_count; m++) {
        const struct instr *y = &w->plan->ranks[group->ranks[m]].programs[PROGRAM_TRAIN].instrs[at[m]];
        bool turned = x->tag == TAG_ROUTED && ((y->flags ^ x->flags) & FLAG_BACKWARD);
        if (y->op != x->op || y->tag != x->tag || y->micro_batch != x->micro_batch ||
            y->block_begin != x->block_begin || turned)
            return wrong(w, "meets another collective", group->ranks[m], at[m]);
        if (exchange(w, group->ranks[m], at[m]) < 0)
            return -1;
    }
    for (uint32_t m = 0; m < group->rank_count; m++)
        w->done[group->ranks[m]][at[m]] = true;
    w->left -= group->rank_count;
    return 1;
}

/* Executes one instruction of the rank that may start. Returns 1 when one ran, 0 when none could, and −1 when
 * it failed. */
static int advance(struct world *w, uint32_t rank)
{
    const struct program *p = &w->plan->ranks[rank].programs[PROGRAM_TRAIN];
    uint32_t start = rand_stream_below(w->random, p->instr_count);
    for (uint32_t n = 0; n < p->instr_count; n++) {
        uint32_t i = (start + n) % p->instr_count;
        if (w->done[rank][i] || !fixture_ready(w->plan, rank, i, w->done[rank]))
            continue;
        int went = p->instrs[i].queue == QUEUE_GROUP ? meet(w, rank, i) : compute(w, rank, i) < 0 ? -1 : 1;
        if (went > 0 && p->instrs[i].queue != QUEUE_GROUP) {
            w->done[rank][i] = true;
            w->left--;
        }
        if (went)
            return went;
    }
    return 0;
}

static bool run(struct world *w)
{
    const struct plan *plan = w->plan;
    while (w->left > 0) {
        uint32_t first = rand_stream_below(w->random, plan->rank_count), stuck = 0;
        for (uint32_t n = 0; n < plan->rank_count; n++) {
            int went = advance(w, (first + n) % plan->rank_count);
            if (went < 0)
                return false;
            stuck += went == 0;
            if (went)
                break;
        }
        if (stuck == plan->rank_count) {
            snprintf(w->why, sizeof(w->why), "stuck");
            return false;
        }
    }
    uint32_t attending = 0;
    for (uint32_t r = 0; r < plan->rank_count; r++)
        attending += plan->ranks[r].rows > 0;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        bool sums = plan->ranks[r].rows > 0 && attending > 1;
        bool steps = w->stepped[r] == 1 || (w->stepped[r] == 0 && plan->ranks[r].state_share == 0);
        if (!steps || w->summed[r] != sums) {
            snprintf(w->why, sizeof(w->why), "rank %u steps %d times, sums %d times", r, w->stepped[r],
                     w->summed[r]);
            return false;
        }
    }
    return true;
}

/* Whether every layer of every micro-batch ran forward and backward on every rank that has a part in it. A
 * rank without rows in the last, short micro-batch has nothing to do there. */
static bool complete(const struct plan *plan, const struct candidate *candidate, char *why, size_t size)
{
    uint32_t first = 0;
    for (uint32_t r = 0; r < plan->rank_count; first += candidate->members[r].rows, r++) {
        const struct program *p = &plan->ranks[r].programs[PROGRAM_TRAIN];
        uint32_t passes[2] = {0, 0}, experts[2] = {0, 0}, layers = 0, micro_batches = 0;
        for (uint32_t k = 0; k < plan->micro_batch_count; k++)
            micro_batches += plan->micro_batch_start[k + 1] - plan->micro_batch_start[k] > first;
        for (uint32_t i = 0; i < plan->ranks[r].expert_count; i++)
            layers += i == 0 || plan->ranks[r].experts[i].block != plan->ranks[r].experts[i - 1].block;
        for (uint32_t i = 0; i < p->instr_count; i++) {
            const struct instr *x = &p->instrs[i];
            bool back = x->op == INSTR_BACKWARD || (x->op != INSTR_FORWARD && (x->flags & FLAG_BACKWARD));
            uint32_t rows = x->micro_batch < 0 ? 0
                                               : plan->micro_batch_start[x->micro_batch + 1] -
                                                     plan->micro_batch_start[x->micro_batch];
            if ((x->op == INSTR_FORWARD || x->op == INSTR_BACKWARD || x->op == INSTR_ATTENTION) &&
                rows > first)
                passes[back] += (uint32_t)(x->block_end - x->block_begin);
            experts[back] += x->op == INSTR_EXPERTS;
        }
        uint32_t wanted = candidate->members[r].rows ? (uint32_t)plan->block_count * micro_batches : 0;
        if (passes[0] != wanted || passes[1] != wanted || experts[0] < layers * plan->micro_batch_count ||
            experts[1] < layers * plan->micro_batch_count) {
            snprintf(why, size, "rank %u passes %u and %u blocks, its experts %u and %u", r, passes[0],
                     passes[1], experts[0], experts[1]);
            return false;
        }
    }
    return true;
}

static bool right(const struct plan *plan, const struct candidate *candidate, struct rand_stream *random,
                  uint32_t orders, char why[160])
{
    bool good = complete(plan, candidate, why, 160);
    for (uint32_t turn = 0; turn < orders && good; turn++) {
        struct world w = {.plan = plan, .random = random};
        for (uint32_t r = 0; r < plan->rank_count; r++) {
            w.left += plan->ranks[r].programs[PROGRAM_TRAIN].instr_count;
            w.done[r] = calloc(plan->ranks[r].programs[PROGRAM_TRAIN].instr_count + 1, sizeof(bool));
            for (uint32_t s = 0; s < plan->ranks[r].slot_count; s++) {
                const struct plan_slot *slot = &plan->ranks[r].slots[s];
                w.cells[r][s] =
                    calloc((size_t)slot->ring_micro_batches * slot->ring_blocks, sizeof(struct cell));
            }
        }
        good = run(&w);
        for (uint32_t r = 0; r < plan->rank_count; r++) {
            free(w.done[r]);
            for (uint32_t s = 0; s < plan->ranks[r].slot_count; s++)
                free(w.cells[r][s]);
        }
        if (!good)
            snprintf(why, 160, "%s", w.why);
    }
    return good;
}

/* Changes one instruction at random; false when the change does not apply. */
static bool spoil(struct plan *plan, struct rand_stream *r)
{
    uint32_t rank = rand_stream_below(r, plan->rank_count);
    struct plan_rank *k = &plan->ranks[rank];
    struct program *p = &k->programs[PROGRAM_TRAIN];
    uint32_t i = rand_stream_below(r, p->instr_count);
    struct instr *x = &p->instrs[i];
    int32_t *slots[3] = {&x->slot_in, &x->slot_out, &x->slot_save}, *slot = slots[rand_stream_below(r, 3)];
    const uint16_t flags[5] = {FLAG_FREES_IN, FLAG_FREES_SAVE, FLAG_ACCUMULATE, FLAG_BACKWARD,
                               FLAG_FREES_OUT};
    switch (rand_stream_below(r, 9)) {
    case 0: /* The instruction is dropped. */
        x->op = INSTR_RELEASE;
        x->queue = QUEUE_COMPUTE;
        x->flags = 0;
        x->slot_out = x->slot_save = PLAN_NONE;
        return true;
    case 1: /* The instruction is swapped with the next one of its queue. */
        for (uint32_t n = i + 1; n < p->instr_count; n++) {
            if (instr_queue_index(plan, &p->instrs[n]) != instr_queue_index(plan, x))
                continue;
            struct instr other = p->instrs[n];
            uint32_t first = x->after_first, count = x->after_count;
            p->instrs[n] = *x;
            p->instrs[n].after_first = other.after_first;
            p->instrs[n].after_count = other.after_count;
            *x = other;
            x->after_first = first;
            x->after_count = count;
            return true;
        }
        return false;
    case 2:
        if (x->micro_batch < 0 || plan->micro_batch_count < 2)
            return false;
        x->micro_batch = (int32_t)rand_stream_below(r, plan->micro_batch_count);
        return true;
    case 3:
        if (x->block_end <= x->block_begin)
            return false;
        x->block_begin = (int32_t)rand_stream_below(r, (uint32_t)plan->block_count);
        x->block_end = x->block_begin + 1;
        return true;
    case 4:
        if (x->after_count == 0)
            return false;
        x->after_count = rand_stream_below(r, x->after_count);
        return true;
    case 5:
        x->flags ^= flags[rand_stream_below(r, 5)];
        return true;
    case 6:
        *slot = (int32_t)rand_stream_below(r, k->slot_count + 1) - 1;
        return true;
    case 7:
        if (x->queue != QUEUE_GROUP)
            return false;
        x->group = (int32_t)rand_stream_below(r, plan->group_count);
        return true;
    default:
        if (x->op != INSTR_STEP && x->op != INSTR_ALL_REDUCE)
            return false;
        if (x->op == INSTR_STEP)
            x->op = INSTR_RELEASE;
        else
            x->tag = x->tag == TAG_NORM ? TAG_PARAMETER_GRADIENTS : TAG_NORM;
        return true;
    }
}

static void divided_programs_run_right_in_any_order(void **state)
{
    (void)state;
    struct rand_stream random;
    rand_stream_init(&random, 31, 0);
    for (uint64_t seed = 0; seed < 150; seed++) {
        struct expert_case c;
        struct err err = {0};
        char why[160] = "";
        expert_case_init(&c, seed);
        struct plan *plan = expert_emit(&c.problem, &c.candidate, true, &err);
        assert_non_null(plan);
        if (!right(plan, &c.candidate, &random, 2, why))
            fail_msg("seed %llu: %s", (unsigned long long)seed, why);
        plan_destroy(plan);
        expert_case_fini(&c);
    }
}

static void what_goes_wrong_in_any_order_was_refused(void **state)
{
    (void)state;
    struct rand_stream random;
    uint32_t found = 0, refused_only = 0, accepted_right = 0, wanted = getenv("MOTLEY_LONG") ? 5000 : 800;
    rand_stream_init(&random, 37, 0);
    for (uint64_t seed = 0; found < wanted && seed < 20 * (uint64_t)wanted; seed++) {
        struct expert_case c;
        struct err err = {0};
        char why[160] = "";
        expert_case_init(&c, seed % 173);
        struct plan *plan = expert_emit(&c.problem, &c.candidate, true, &err);
        assert_non_null(plan);
        if (plan->micro_batch_count <= 8 && spoil(plan, &random)) {
            bool accepted = plan_check(plan, &err) == 0;
            bool good = right(plan, &c.candidate, &random, accepted ? 6 : 2, why);
            if (accepted && !good)
                fail_msg("seed %llu: accepted, but %s", (unsigned long long)seed, why);
            if (!accepted && !strstr(err.text, "rank") && !strstr(err.text, "micro-batch"))
                fail_msg("seed %llu: \"%s\" names no rank", (unsigned long long)seed, err.text);
            found += !good;
            refused_only += good && !accepted;
            accepted_right += accepted;
        }
        plan_destroy(plan);
        expert_case_fini(&c);
    }
    print_message(
        "%u spoilt programs found wrong, all refused; %u more refused; %u accepted, which run right\n", found,
        refused_only, accepted_right);
    assert_true(found >= wanted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(divided_programs_run_right_in_any_order),
        cmocka_unit_test(what_goes_wrong_in_any_order_was_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
