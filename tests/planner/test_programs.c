/* Tests that every generated program passes the checker, and that programs with a fault that a brute-force
 * execution finds do not. The execution does not use the checker: it runs the ranks' instructions in random
 * legal orders on buffers that record their contents, and sees whether any row is missed, repeated or
 * overtaken. */
#pragma GCC optimize("O1") /* it executes long (tests/CMakeLists.txt: tests are compiled at -O0) */
#include "planner/any_candidate.h"
#include "planner/expert_fixture.h"
#include "planner/spoil.h"
#include "program/host.h"

#include <time.h>

#define MIB ((uint64_t)1 << 20)
#define BUFFERS_MAX 64

struct made {
    struct model_config config;
    struct workload workload;
    struct cluster *cluster;
    struct plan *plan; /* NULL when nothing fits, or when the placement does not apply to this workload */
};

static uint64_t how_many(uint64_t usual, uint64_t longer)
{
    return getenv("MOTLEY_LONG") ? longer : usual;
}

static void scene_init(struct made *m, struct rand_stream *r, enum plan_placement kind, uint32_t devices_max)
{
    struct err err = {0};
    uint32_t layers = 2 + rand_stream_below(r, 7), devices = 1 + rand_stream_below(r, devices_max);
    bool mixture = kind == PLACE_EXPERT || rand_stream_below(r, 8) == 0;
    m->config = mixture ? expert_config(layers, 4 + rand_stream_below(r, 5), 2) : fixture_config(layers);
    m->config.vocab = mixture ? m->config.vocab : 2048;
    m->workload = fixture_workload(&m->config, 10 + rand_stream_below(r, 60), 1 + rand_stream_below(r, 24));
    m->workload.recompute = (enum workload_recompute)rand_stream_below(r, 3);
    m->workload.sample_tokens = rand_stream_below(r, 2) ? 96 : 0;
    m->workload.prompt_tokens = m->workload.sample_tokens / 2;
    m->workload.method = rand_stream_below(r, 4) ? METHOD_LORA : METHOD_FULL;
    m->cluster = cluster_create(&err);
    double roomy = m->workload.method == METHOD_FULL || mixture ? 4 : 1;
    for (uint32_t d = 0; d < devices; d++) {
        char name[40], node[16];
        snprintf(node, sizeof(node), "n%u", d / 2);
        snprintf(name, sizeof(name), "n%u/%u", d / 2, d);
        fixture_device(m->cluster, name, node,
                       (uint64_t)(roomy * (40 + rand_stream_below(r, 200)) * (double)MIB),
                       0.3 + rand_stream_unit(r));
    }
}

static void made_init(struct made *m, uint64_t seed, uint32_t devices_max)
{
    struct rand_stream r;
    struct err err = {0};
    struct problem problem;
    rand_stream_init(&r, seed, 1);
    enum plan_placement place = (enum plan_placement)rand_stream_below(&r, PLACE_COUNT);
    scene_init(m, &r, place, devices_max);
    m->plan = any_plan(&m->workload, m->cluster, (int)place, &r, seed);
    double seconds = 0;
    if (problem_init(&problem, &m->workload, m->cluster, &err) < 0 ||
        (m->plan && (price_plan(&problem, m->plan, 2, &seconds, &err) < 0 || plan_seal(m->plan, &err) < 0)))
        fail_msg("seed %llu: %s: %s", (unsigned long long)seed, plan_placement_name(place), err.text);
    assert_true(!m->plan || seconds > 0);
    problem_fini(&problem);
}

static void made_fini(struct made *m)
{
    plan_destroy(m->plan);
    cluster_destroy(m->cluster);
    workload_fini(&m->workload);
}

/* A rank's slice states the same as the whole plan: its peers, its host memory, what it counts, and which
 * state every rank updates. */
static void slice_tells_the_same(const struct plan *plan, uint32_t rank, const json_t *json, uint64_t seed)
{
    struct err err = {0};
    struct plan *slice = plan_slice_from_json(json, &err);
    if (!slice || plan_check(slice, &err) < 0)
        fail_msg("seed %llu: slice %u: %s", (unsigned long long)seed, rank, err.text);
    bool peers[2][64];
    assert_true(plan->rank_count <= 64);
    plan_rank_peers(plan, rank, peers[0]);
    plan_rank_peers(slice, rank, peers[1]);
    assert_memory_equal(peers[0], peers[1], plan->rank_count * sizeof(peers[0][0]));
    struct plan_host host = plan_host_bytes(plan, rank), own = plan_host_bytes(slice, rank);
    assert_memory_equal(&host, &own, sizeof(host));
    for (int32_t b = 0; b < plan->block_count; b++)
        assert_int_equal(plan_counts_alike(plan, rank, b), plan_counts_alike(slice, rank, b));
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        const struct plan_rank *a = &plan->ranks[r], *b = &slice->ranks[r];
        assert_int_equal(a->update_count, b->update_count);
        if (a->update_count > 0)
            assert_memory_equal(a->updates, b->updates, a->update_count * sizeof(*a->updates));
    }
    plan_destroy(slice);
}

static void generated_programs_pass(void **state)
{
    (void)state;
    uint32_t plans = 0, by_place[PLACE_COUNT] = {0};
    uint64_t wanted = how_many(600, 10000);
    clock_t began = clock();
    for (uint64_t seed = 0; plans < wanted; seed++) {
        struct made m;
        struct err err = {0};
        made_init(&m, seed, 6);
        if (m.plan) {
            plans++;
            by_place[m.plan->placement]++;
            if (plan_check(m.plan, &err) < 0)
                fail_msg("seed %llu: %s: %s", (unsigned long long)seed,
                         plan_placement_name(m.plan->placement), err.text);
            json_t *json = plan_to_json(m.plan, &err);
            struct plan *again = plan_from_json(json, &err);
            if (!again)
                fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
            json_t *slices = plan_slices(json, &err);
            for (uint32_t r = 0; r < m.plan->rank_count; r++)
                slice_tells_the_same(again, r, json_array_get(slices, r), seed);
            json_decref(slices);
            plan_destroy(again);
            json_decref(json);
        }
        made_fini(&m);
        assert_true(seed < 100 * wanted);
    }
    print_message("%u plans in %.1f s:", plans, (double)(clock() - began) / CLOCKS_PER_SEC);
    for (int place = 0; place < PLACE_COUNT; place++) {
        print_message(" %u %s", by_place[place], plan_placement_name((enum plan_placement)place));
        assert_true(by_place[place] >= wanted / 100);
    }
    print_message("\n");
}

/* --- brute force --- */

struct cell {                  /* the contents of a buffer */
    int full, micro, boundary; /* whether it holds a tensor, of which micro-batch, and the half block that
                                  this tensor enters, as the instruction says that wrote it */
    int part;                  /* the member's part of a tensor group's sum before the all-reduce */
};

struct world {
    const struct plan *plan;
    struct rand_stream *random;
    struct cell *cells[8][BUFFERS_MAX]; /* [rank][slot] → ring */
    bool *done[8];
    int forward[64][128], backward[64][128],
        weights[64][128]; /* [micro-batch][half block] how often it was computed */
    uint64_t live[8];     /* bytes of live instances */
    char why[128];
};

static int wrong(struct world *w, const char *why)
{
    snprintf(w->why, sizeof(w->why), "%s", why);
    return -1;
}

static struct cell *cell_of(struct world *w, uint32_t rank, int32_t slot, const struct instr *x)
{
    return &w->cells[rank][slot]
                    [slot_instance(&w->plan->ranks[rank].slots[slot], x->micro_batch, x->block_begin)];
}

static bool tracked(const struct plan *plan, uint32_t rank, int32_t slot)
{
    return slot >= 0 && plan->ranks[rank].slots[slot].lifetime == SLOT_FOR_INSTRUCTIONS;
}

static int fill(struct world *w, uint32_t rank, int32_t slot, const struct instr *x, int boundary)
{
    if (!tracked(w->plan, rank, slot))
        return 0;
    struct cell *c = cell_of(w, rank, slot, x);
    if (c->full)
        return wrong(w, "overwritten");
    bool part = w->plan->ranks[rank].slots[slot].kind == SLOT_PARTIAL && x->queue == QUEUE_COMPUTE &&
                (x->flags & (FLAG_FIRST_HALF | FLAG_SECOND_HALF));
    *c = (struct cell){1, x->micro_batch, boundary, part};
    return 0;
}

static int take(struct world *w, uint32_t rank, int32_t slot, const struct instr *x, int boundary, bool frees)
{
    if (!tracked(w->plan, rank, slot))
        return 0;
    struct cell *c = cell_of(w, rank, slot, x);
    if (!c->full || c->part || c->micro != x->micro_batch || (boundary >= 0 && c->boundary != boundary))
        return wrong(w, "read what is not there");
    if (frees)
        c->full = 0;
    return 0;
}

static int execute(struct world *w, uint32_t rank, const struct instr *x)
{
    bool in = x->flags & FLAG_FREES_IN, save = x->flags & FLAG_FREES_SAVE;
    int begin = 2 * x->block_begin + !!(x->flags & FLAG_SECOND_HALF);
    int end = 2 * x->block_end - !!(x->flags & FLAG_FIRST_HALF);
    switch (x->op) {
    case INSTR_FORWARD:
        for (int b = begin; b < end; b++)
            w->forward[x->micro_batch][b]++;
        if (x->block_begin > 0 && x->slot_in < 0)
            return wrong(w, "no input");
        return take(w, rank, x->slot_in, x, begin, in) || fill(w, rank, x->slot_save, x, begin) ||
                       fill(w, rank, x->slot_out, x, end)
                   ? -1
                   : 0;
    case INSTR_BACKWARD_WEIGHT:
        for (int b = begin; b < end; b++)
            if (++w->weights[x->micro_batch][b] > w->backward[x->micro_batch][b])
                return wrong(w, "weights before the input");
        return take(w, rank, x->slot_save, x, -1, save);
    case INSTR_BACKWARD:
    case INSTR_BACKWARD_INPUT:
        for (int b = begin; b < end; b++) {
            w->backward[x->micro_batch][b]++;
            w->weights[x->micro_batch][b] += x->op == INSTR_BACKWARD;
        }
        if (x->block_end < w->plan->block_count && x->slot_in < 0 &&
            (x->block_end > 1 || w->plan->trains_embedding)) /* A frozen embedding needs no gradient. */
            return wrong(w, "no gradient");
        return take(w, rank, x->slot_in, x, end, in) || take(w, rank, x->slot_save, x, -1, save) ||
                       fill(w, rank, x->slot_out, x, begin)
                   ? -1
                   : 0;
    case INSTR_RELEASE:
        return take(w, rank, x->slot_in, x, -1, true);
    default:
        return 0;
    }
}

static uint32_t head_of(const struct world *w, uint32_t rank, int queue, int peer)
{
    const struct program *p = &w->plan->ranks[rank].programs[PROGRAM_TRAIN];
    for (uint32_t i = 0; i < p->instr_count; i++)
        if (!w->done[rank][i] && p->instrs[i].queue == queue && p->instrs[i].peer == peer)
            return fixture_ready(w->plan, rank, i, w->done[rank]) ? i : UINT32_MAX;
    return UINT32_MAX;
}

static int transfer(struct world *w, uint32_t from, uint32_t i, uint32_t to, uint32_t k)
{
    const struct instr *a = &w->plan->ranks[from].programs[PROGRAM_TRAIN].instrs[i];
    const struct instr *b = &w->plan->ranks[to].programs[PROGRAM_TRAIN].instrs[k];
    if (a->tag != b->tag || a->micro_batch != b->micro_batch || a->row_begin != b->row_begin ||
        a->row_end != b->row_end || a->slot_in < 0 || b->slot_out < 0)
        return wrong(w, "messages cross");
    struct cell held = {1, a->micro_batch, 2 * a->block_begin, 0};
    if (tracked(w->plan, from, a->slot_in))
        held = *cell_of(w, from, a->slot_in, a);
    if (take(w, from, a->slot_in, a, -1, a->flags & FLAG_FREES_IN) < 0 ||
        fill(w, to, b->slot_out, b, held.boundary) < 0)
        return -1;
    return 0;
}

/* Applies a collective on boundary tensors to one member's buffer. */
static int exchanged(struct world *w, uint32_t rank, uint32_t i)
{
    const struct instr *x = &w->plan->ranks[rank].programs[PROGRAM_TRAIN].instrs[i];
    int32_t slot = x->slot_in >= 0 ? x->slot_in : x->slot_out;
    if (slot < 0 || w->plan->ranks[rank].slots[slot].kind != SLOT_PARTIAL)
        return 0;
    struct cell *c = cell_of(w, rank, slot, x);
    if (x->op == INSTR_BROADCAST)
        return x->slot_in >= 0 ? take(w, rank, slot, x, 2 * x->block_begin, false)
                               : fill(w, rank, slot, x, 2 * x->block_begin);
    if (!c->full || !c->part || c->micro != x->micro_batch)
        return wrong(w, "summed what is no part");
    c->part = 0;
    c->full = !(x->flags & FLAG_FREES_IN);
    return 0;
}

static int collective(struct world *w, uint32_t rank, uint32_t i)
{
    const struct instr *x = &w->plan->ranks[rank].programs[PROGRAM_TRAIN].instrs[i];
    const struct plan_group *group = &w->plan->groups[x->group];
    uint32_t at[8];
    for (uint32_t m = 0; m < group->rank_count; m++) {
        const struct program *p = &w->plan->ranks[group->ranks[m]].programs[PROGRAM_TRAIN];
        at[m] = UINT32_MAX;
        for (uint32_t k = 0; k < p->instr_count && at[m] == UINT32_MAX; k++)
            if (!w->done[group->ranks[m]][k] && p->instrs[k].queue == QUEUE_GROUP &&
                p->instrs[k].group == x->group)
                at[m] =
                    fixture_ready(w->plan, group->ranks[m], k, w->done[group->ranks[m]]) ? k : UINT32_MAX - 1;
        if (at[m] >= UINT32_MAX - 1)
            return 0;
        if (p->instrs[at[m]].op != x->op || p->instrs[at[m]].tag != x->tag)
            return wrong(w, "collectives cross");
    }
    for (uint32_t m = 0; m < group->rank_count; m++) {
        if (exchanged(w, group->ranks[m], at[m]) < 0)
            return -1;
        w->done[group->ranks[m]][at[m]] = true;
    }
    return 1;
}

/* Executes one instruction of the rank that may start. Returns 1 when one ran. */
static int advance(struct world *w, uint32_t rank, uint32_t i)
{
    const struct instr *x = &w->plan->ranks[rank].programs[PROGRAM_TRAIN].instrs[i];
    if (!fixture_ready(w->plan, rank, i, w->done[rank]))
        return 0;
    if (x->queue == QUEUE_GROUP)
        return collective(w, rank, i);
    if (x->queue == QUEUE_SEND) {
        uint32_t k = x->peer < 0 || x->peer >= (int32_t)w->plan->rank_count
                         ? UINT32_MAX
                         : head_of(w, (uint32_t)x->peer, QUEUE_RECV, (int32_t)rank);
        if (k == UINT32_MAX)
            return 0;
        if (transfer(w, rank, i, (uint32_t)x->peer, k) < 0)
            return -1;
        w->done[x->peer][k] = w->done[rank][i] = true;
        return 1;
    }
    if (x->queue == QUEUE_RECV)
        return 0;
    if (execute(w, rank, x) < 0)
        return -1;
    w->done[rank][i] = true;
    return 1;
}

static int finished(struct world *w)
{
    const struct plan *plan = w->plan;
    for (uint32_t k = 0; k < plan->micro_batch_count; k++) {
        for (int b = 0; b < 2 * plan->block_count; b++) {
            int times =
                0; /* the number of ranks that compute the block: all members of a tensor group, or one */
            for (uint32_t r = 0; r < plan->rank_count; r++)
                times += plan_rank_holds(&plan->ranks[r], b / 2, b / 2 + 1);
            times = plan->placement == PLACE_TENSOR ? times : 1;
            if (w->forward[k][b] != times || w->backward[k][b] != times || w->weights[k][b] != times)
                return wrong(w, "a row passes a block not exactly once");
        }
    }
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        uint32_t steps = 0, scalars = 0, norms = 0, sums = 0, replicas = 0, layers = 0;
        for (uint32_t i = 0; i < plan->ranks[r].programs[PROGRAM_TRAIN].instr_count; i++) {
            const struct instr *x = &plan->ranks[r].programs[PROGRAM_TRAIN].instrs[i];
            steps += x->op == INSTR_STEP;
            scalars += x->op == INSTR_ALL_REDUCE && x->tag == TAG_STEP_SCALARS;
            norms += x->tag == TAG_NORM && (x->op == INSTR_ALL_REDUCE || x->peer != (int32_t)r);
            sums += x->op == INSTR_ALL_REDUCE && x->tag == TAG_PARAMETER_GRADIENTS;
        }
        for (uint32_t o = 0; o < plan->rank_count; o++) {
            const struct plan_rank *a = &plan->ranks[r], *b = &plan->ranks[o];
            replicas += a->stage == b->stage;
            layers += plan->placement == PLACE_PIPELINE && r != o && !a->range_count &&
                      a->block_begin < b->block_end && b->block_begin < a->block_end;
        }
        bool updates = plan->ranks[r].state_share > 0; /* A rank that has only the head trains nothing. */
        if (steps > 1 || (steps == 0 && updates) || scalars != 1 || norms != 1 ||
            sums != (replicas > 1 && updates) + layers)
            return wrong(w, "steps or reductions");
        for (uint32_t s = 0; s < plan->ranks[r].slot_count; s++) {
            const struct plan_slot *slot = &plan->ranks[r].slots[s];
            for (uint32_t n = 0; n < slot->ring_micro_batches * slot->ring_blocks; n++)
                if (w->cells[r][s][n].full)
                    return wrong(w, "something is left");
        }
    }
    return 0;
}

static int run_once(struct world *w)
{
    for (;;) {
        uint32_t ranks = w->plan->rank_count, first = rand_stream_below(w->random, ranks);
        bool any = false, all = true;
        for (uint32_t n = 0; n < ranks && !any; n++) {
            uint32_t rank = (first + n) % ranks,
                     count = w->plan->ranks[rank].programs[PROGRAM_TRAIN].instr_count;
            bool forwards = rand_stream_below(w->random, 2);
            for (uint32_t k = 0; k < count && !any; k++) {
                uint32_t i = forwards ? k : count - 1 - k;
                if (w->done[rank][i])
                    continue;
                int result = advance(w, rank, i);
                if (result < 0)
                    return -1;
                any = result > 0;
            }
        }
        for (uint32_t r = 0; r < ranks && !any; r++)
            for (uint32_t i = 0; i < w->plan->ranks[r].programs[PROGRAM_TRAIN].instr_count; i++)
                all = all && w->done[r][i];
        if (!any)
            return all ? finished(w) : wrong(w, "stuck");
    }
}

static uint64_t memory_held(const struct plan *plan, uint32_t rank)
{
    uint64_t bytes = 0;
    const struct plan_rank *r = &plan->ranks[rank];
    for (uint32_t s = 0; s < r->slot_count; s++) {
        const struct plan_slot *slot = &r->slots[s];
        bool counted = slot->purpose == PURPOSE_ACTIVATIONS || slot->purpose == PURPOSE_BUFFERS;
        bytes += slot->place == SLOT_ON_DEVICE && counted ? slot->bytes_total : 0;
    }
    return bytes + r->memory_peak[PURPOSE_WEIGHTS] + r->memory_peak[PURPOSE_ADAPTERS] +
           r->memory_peak[PURPOSE_OPTIMIZER];
}

/* Runs the plan's training program in `turns` random orders. Returns whether all of them were correct. */
static bool right(const struct plan *plan, struct rand_stream *random, int turns, char why[128])
{
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        if (memory_held(plan, r) > plan->ranks[r].memory_limit_bytes) {
            snprintf(why, 128, "memory");
            return false;
        }
    }
    bool good = true;
    for (int turn = 0; turn < turns && good; turn++) {
        struct world *w = calloc(1, sizeof(*w));
        w->plan = plan;
        w->random = random;
        for (uint32_t r = 0; r < plan->rank_count; r++) {
            w->done[r] = calloc(plan->ranks[r].programs[PROGRAM_TRAIN].instr_count + 1, 1);
            for (uint32_t s = 0; s < plan->ranks[r].slot_count; s++)
                w->cells[r][s] = calloc((size_t)plan->ranks[r].slots[s].ring_micro_batches *
                                            plan->ranks[r].slots[s].ring_blocks,
                                        sizeof(struct cell));
        }
        good = run_once(w) == 0;
        snprintf(why, 128, "%s", w->why);
        for (uint32_t r = 0; r < plan->rank_count; r++) {
            free(w->done[r]);
            for (uint32_t s = 0; s < plan->ranks[r].slot_count; s++)
                free(w->cells[r][s]);
        }
        free(w);
    }
    return good;
}

/* Whether the execution supports the plan. It does not support gathered weights, experts and pulls. */
static bool known(const struct plan *plan)
{
    const uint32_t ops = 1u << INSTR_FORWARD | 1u << INSTR_BACKWARD | 1u << INSTR_BACKWARD_INPUT |
                         1u << INSTR_BACKWARD_WEIGHT | 1u << INSTR_SEND | 1u << INSTR_RECV |
                         1u << INSTR_ALL_REDUCE | 1u << INSTR_BROADCAST | 1u << INSTR_STEP |
                         1u << INSTR_RELEASE;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        const struct program *p = &plan->ranks[r].programs[PROGRAM_TRAIN];
        for (uint32_t i = 0; i < p->instr_count; i++)
            if (!(ops >> p->instrs[i].op & 1))
                return false;
    }
    return true;
}

/* Doubles instruction i; the second one depends on the first, and all later positions move by one. */
static void doubled(struct program *p, uint32_t i)
{
    p->instrs = realloc(p->instrs, (p->instr_count + 1) * sizeof(*p->instrs));
    p->after = realloc(p->after, ((size_t)p->after_total + 1) * sizeof(*p->after));
    memmove(&p->instrs[i + 1], &p->instrs[i], (p->instr_count - i) * sizeof(*p->instrs));
    p->instr_count++;
    for (uint32_t a = 0; a < p->after_total; a++)
        p->after[a] += p->after[a] >= i;
    p->after[p->after_total] = i;
    p->instrs[i + 1].after_first = p->after_total++;
    p->instrs[i + 1].after_count = 1;
}

/* Doubles a collective on all members of its group, so that no member waits forever. */
static bool reduced_twice(struct plan *plan, const struct instr *x)
{
    if (x->op != INSTR_ALL_REDUCE || x->group < 0)
        return false;
    const struct instr what = *x;
    const struct plan_group *group = &plan->groups[what.group];
    for (uint32_t g = 0; g < group->rank_count; g++) {
        struct program *p = &plan->ranks[group->ranks[g]].programs[PROGRAM_TRAIN];
        for (uint32_t i = 0; i < p->instr_count; i++) {
            const struct instr *y = &p->instrs[i];
            if (y->op == what.op && y->group == what.group && y->tag == what.tag &&
                y->micro_batch == what.micro_batch && y->block_begin == what.block_begin) {
                doubled(p, i);
                break;
            }
        }
    }
    return true;
}

/* Removes a message from both its sender and its receiver. */
static bool message_lost(struct plan *plan, struct instr *x)
{
    if (x->op != INSTR_SEND)
        return false;
    struct program *p = &plan->ranks[x->peer].programs[PROGRAM_TRAIN];
    for (uint32_t i = 0; i < p->instr_count; i++) {
        if (p->instrs[i].op == INSTR_RECV && p->instrs[i].tag == x->tag &&
            p->instrs[i].micro_batch == x->micro_batch && p->instrs[i].block_begin == x->block_begin) {
            spoil_drop(&p->instrs[i]);
            spoil_drop(x);
            return true;
        }
    }
    return false;
}

/* Introduces one random fault. Returns false when it does not apply to the plan. */
static bool spoil(struct plan *plan, struct rand_stream *random)
{
    uint32_t rank = rand_stream_below(random, plan->rank_count);
    struct plan_rank *r = &plan->ranks[rank];
    struct program *p = &r->programs[PROGRAM_TRAIN];
    uint32_t i = rand_stream_below(random, p->instr_count);
    struct instr *x = &p->instrs[i];
    switch (rand_stream_below(random, 13)) {
    case 0: /* The instruction is dropped. */
        return spoil_drop(x);
    case 10:
        return reduced_twice(plan, x);
    case 11:
        return message_lost(plan, x);
    case 12: /* The message goes to, or comes from, another rank. */
        if ((x->queue != QUEUE_SEND && x->queue != QUEUE_RECV) || plan->rank_count < 3)
            return false;
        x->peer = (int32_t)((uint32_t)(x->peer + 1) % plan->rank_count);
        return true;
    case 1: /* The instruction is swapped with the next one on its queue. */
        return spoil_swap_next(plan, p, i);
    case 2: /* The instruction names another micro-batch. */
        return spoil_micro_batch(plan, x);
    case 3: /* The all-reduce becomes that of the norm or of the step's scalars, which then runs twice. */
        if (x->op != INSTR_ALL_REDUCE)
            return false;
        p->instrs[i].tag = x->tag == TAG_NORM ? TAG_STEP_SCALARS : TAG_NORM;
        for (uint32_t s = 0; s < r->slot_count; s++)
            if (r->slots[s].kind == (x->tag == TAG_NORM ? SLOT_NORM_SCALAR : SLOT_STEP_SCALARS))
                x->slot_in = x->slot_out = (int32_t)s;
        return true;
    case 4: /* The instruction has the wrong rows. */
        if (x->queue != QUEUE_SEND && x->queue != QUEUE_RECV)
            return false;
        x->row_end = 0;
        return true;
    case 5: /* The rank's memory limit is one byte less than its buffers take. */
        if (r->slot_count == 0)
            return false;
        r->memory_limit_bytes = memory_held(plan, rank) - 1;
        return true;
    case 6: /* The instruction no longer waits for others. */
        return spoil_wait(x);
    case 7: /* The slot is not freed. */
        return spoil_flags(x);
    case 8: /* The instruction covers fewer blocks. */
        if (x->block_end - x->block_begin < 2)
            return false;
        x->block_end--;
        return true;
    default: /* The instruction uses another slot. */
        return spoil_slot_out(r, x, random);
    }
}

static void what_an_execution_finds_wrong_the_checker_refuses(void **state)
{
    (void)state;
    uint32_t found = 0, refused_only = 0;
    struct rand_stream random;
    rand_stream_init(&random, 99, 0);
    uint32_t wanted = (uint32_t)how_many(500, 3000);
    for (uint64_t seed = 0; found < wanted && seed < 40 * wanted; seed++) {
        struct made m;
        struct err err = {0};
        char why[128] = "";
        made_init(&m, seed, 3);
        if (m.plan && m.plan->micro_batch_count <= 12 && known(m.plan)) {
            if (!right(m.plan, &random, 2, why))
                fail_msg("seed %llu: an unspoilt plan goes wrong: %s", (unsigned long long)seed, why);
            if (spoil(m.plan, &random)) {
                bool good = right(m.plan, &random, 6, why), accepted = plan_check(m.plan, &err) == 0;
                if (!good && accepted)
                    fail_msg("seed %llu: accepted, but %s", (unsigned long long)seed, why);
                if (!good && (!strstr(err.text, "rank") || !strstr(err.text, "instruction")))
                    fail_msg("seed %llu: \"%s\" names no rank and instruction", (unsigned long long)seed,
                             err.text);
                found += !good;
                refused_only += good && !accepted;
            }
        }
        made_fini(&m);
    }
    print_message("%u spoilt programs found wrong, all refused; %u more refused\n", found, refused_only);
    assert_true(found >= wanted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generated_programs_pass),
        cmocka_unit_test(what_an_execution_finds_wrong_the_checker_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
