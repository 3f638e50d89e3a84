/* data with sharded state: uneven rows × uneven shards.
 *
 * For a set of devices and a number of gathered layers kept, the rows are split exactly (sharded_split.c)
 * under the estimate below; then the shards are chosen by what room is left (sharded_share.c). The estimate
 * is Cephalo's layer time with our tables: each block's forward hides the next one's gather, each block's
 * backward the next gather and the last reduction; the ring's time depends on the least share over its links,
 * so a few levels are tried: at a level each member must have room for the share that its link asks for.
 *
 * Devices are taken fastest first and left out from the slow end while that helps; a device may also keep
 * state and take no rows. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/ring.h"
#include "planner/sharded/sharded_search.h"

#define LEVELS 4u    /* of the ring's time, between the least and the most; two beyond SHARDED_FEW devices */
#define WORSE_MAX 3u /* sets of devices in turn that do not help, after which no smaller one is tried */
#define MACHINES_TRIED 8u
#define ALL_SETS 6u      /* devices up to which every set of them is tried */
#define CUTOFF 1.2       /* estimates this much above the best one are not looked for */
#define RINGS_DEVICES 6u /* devices up to which every order of the ring is looked at */
#define LEVEL_SAME 1e-9  /* rings this near ask for the same */

struct sharded_buffers sharded_buffers(const struct problem *p, uint32_t layers)
{
    int32_t last = p->block_count - 1;
    bool full = p->workload->method == METHOD_FULL, tied = p->blocks.tied;
    struct sharded_buffers b = {.ring_end = tied ? last + 1 : last};
    uint32_t ring = (uint32_t)b.ring_end - 1;
    b.layers = layers < ring ? layers : ring;
    b.wholes = full ? (ring < 2 ? ring : 2) : 0;
    for (int32_t k = 1; k < b.ring_end; k++) {
        uint64_t weights = memory_gathered_bytes(p, k, k + 1), whole = memory_gradient_bytes(p, k, k + 1);
        b.layer_weights = weights > b.layer_weights ? weights : b.layer_weights;
        b.layer_gradients = whole > b.layer_gradients ? whole : b.layer_gradients;
    }
    for (int32_t k = 0; k <= last; k += last ? last : 1) {
        if (k == last && tied)
            break;
        uint64_t weights = memory_gathered_bytes(p, k, k + 1), whole = memory_gradient_bytes(p, k, k + 1);
        b.edge_weights = weights > b.edge_weights ? weights : b.edge_weights;
        b.edge_gradients = full && whole > b.edge_gradients ? whole : b.edge_gradients;
    }
    b.total = b.layers * b.layer_weights + b.edge_weights + b.wholes * b.layer_gradients + b.edge_gradients;
    return b;
}

double sharded_state_bytes(const struct problem *p)
{
    if (p->workload->method == METHOD_LORA)
        return (double)memory_gathered_bytes(p, 0, p->block_count);
    return memory_state_bytes(p) * (double)memory_trained(p, 0, p->block_count);
}

void sharded_need(const struct problem *p, const struct sharded_buffers *buffers, uint32_t rows,
                  uint32_t count, bool recompute, double share, struct memory_need *need)
{
    bool full = p->workload->method == METHOD_FULL;
    struct memory_stage m = {.block_end = p->block_count,
                             .window = count,
                             .micro_batch_rows = rows ? rows : 1,
                             .recompute = recompute,
                             .boundary_buffers = 4 * count,
                             .state_share = full ? share : 1,
                             .tensor_share = 1,
                             .sharded = true,
                             .frozen_share = full ? 0 : share,
                             .buffer_bytes = buffers->total};
    memory_stage_need(p, &m, need);
    if (count > 0)
        return;
    /* it computes nothing: state, and a place for what comes in from the ring */
    need->purpose[PURPOSE_ACTIVATIONS] = 0;
    need->purpose[PURPOSE_BUFFERS] = buffers->layer_gradients > buffers->edge_gradients
                                         ? buffers->layer_gradients
                                         : buffers->edge_gradients;
    need->saved_bytes = need->cache_bytes = need->total = 0;
    for (int i = 0; i < PURPOSE_COUNT; i++)
        need->total += need->purpose[i];
}

struct sharded {
    struct sharded_search s;
    struct share_member shares[SHARDED_DEVICES_MAX];          /* of the devices taken, in ring order */
    double in[SHARDED_DEVICES_MAX], out[SHARDED_DEVICES_MAX]; /* bytes/s of the ring */
    double latency_s, best;                                   /* best: the least estimate so far */
};

/* The order of the ring: by node, so that each node is entered once. */
static bool comes_before(const struct sharded *s, const struct candidate *a, const struct candidate *b)
{
    const struct device *devices = s->s.p->cluster->devices;
    uint32_t x = devices[a->device].node, y = devices[b->device].node;
    return x != y ? x < y : a->device < b->device;
}

static void ring_add(struct sharded *s, const struct candidate *c)
{
    uint32_t at = s->s.count++;
    for (; at > 0 && comes_before(s, c, s->s.taken[at - 1]); at--)
        s->s.taken[at] = s->s.taken[at - 1];
    s->s.taken[at] = c;
}

/* Of LoRA's frozen base nothing is reduced: what comes in is all there is. */
static void ring_links(struct sharded *s)
{
    uint32_t device[SHARDED_DEVICES_MAX];
    bool lora = s->s.p->workload->method == METHOD_LORA;
    for (uint32_t i = 0; i < s->s.count; i++)
        device[i] = s->s.taken[i]->device;
    ring_rates(s->s.p->cluster, device, s->s.count, s->in, s->out, &s->latency_s);
    for (uint32_t i = 0; i < s->s.count; i++)
        s->shares[i] = (struct share_member){.bytes_per_s = lora ? s->in[i] : fmin(s->in[i], s->out[i]),
                                             .step_s = s->s.taken[i]->step_s};
}

static struct moving ring_at(const struct sharded *s, double level)
{
    return (struct moving){
        .gather_s = level, .reduce_s = level, .hop_s = (s->s.count - 1) * s->latency_s, .beside = false};
}

double sharded_busiest(const struct problem *p, const struct place_member *members, uint32_t count,
                       uint32_t first)
{
    double sum = 0;
    for (uint32_t t = 0; t < p->step_count; t++) {
        double most = 0;
        for (uint32_t m = 0, row = 0; m < count; m++) {
            const struct place_member *x = &members[(first + m) % count];
            double seconds = 0;
            for (uint32_t k = 0; k < x->micro_count; k++, row += x->micro_rows) {
                struct cost_load load = problem_load(p, t, row, row + x->micro_rows);
                for (int way = 0; way < (x->recompute ? COST_WAYS : COST_RECOMPUTE); way++)
                    seconds += problem_seconds(p, x->device, 0, p->block_count, (enum cost_way)way, &load);
            }
            most = fmax(most, seconds);
        }
        sum += most / p->step_count;
    }
    return sum;
}

/* Rows differ in length, and a ring may start anywhere: where its busiest member has least to do. */
static void ring_start(const struct problem *p, struct place_member *members, uint32_t count)
{
    struct place_member turned[RINGS_DEVICES];
    double least = INFINITY;
    uint32_t best = 0;
    for (uint32_t first = 0; first < count && count <= RINGS_DEVICES; first++) {
        double seconds = sharded_busiest(p, members, count, first);
        if (seconds < least * (1 - LEVEL_SAME)) {
            least = seconds;
            best = first;
        }
    }
    for (uint32_t m = 0; m < count && best > 0; m++)
        turned[m] = members[(best + m) % count];
    if (best > 0)
        memcpy(members, turned, count * sizeof(*members));
}

/* Shards for the chosen rows; adds the choice. */
static int chosen_add(struct sharded *s, enum share_aim aim, struct err *err)
{
    double shares[SHARDED_DEVICES_MAX], seconds = 0, update = 0;
    double state = sharded_state_bytes(s->s.p);
    struct place_member members[SHARDED_DEVICES_MAX];
    bool full = s->s.p->workload->method == METHOD_FULL;
    uint32_t rows = 1, count = s->s.count;
    for (uint32_t m = 0; m < count; m++)
        s->shares[m].room = (double)s->s.chosen[m].room / state;
    if (!share_state(s->shares, count, aim, shares))
        return 0;
    struct moving moving = ring_at(s, 0);
    for (uint32_t m = 0; m < count; m++) {
        moving.gather_s = fmax(moving.gather_s, (1 - shares[m]) / s->in[m]);
        moving.reduce_s = fmax(moving.reduce_s, (1 - shares[m]) / s->out[m]);
    }
    for (uint32_t m = 0; m < count; m++) {
        const struct split_option *o = &s->s.chosen[m];
        seconds = fmax(seconds, sharded_search_seconds(&s->s, s->s.taken[m], o, &moving));
        update = fmax(update, (full ? shares[m] : 1) * s->s.taken[m]->step_s);
        rows = o->rows > rows ? o->rows : rows;
        members[m] = (struct place_member){.device = s->s.taken[m]->device,
                                           .micro_rows = o->count ? o->rows : 1,
                                           .micro_count = o->count,
                                           .state_share = shares[m],
                                           .window = o->count ? o->count : 1,
                                           .recompute = o->recompute};
    }
    ring_start(s->s.p, members, count);
    struct place_stage stage = {.block_end = s->s.p->block_count, .member_count = count};
    struct place_choice choice = {.placement = PLACE_DATA,
                                  .micro_batch_rows = rows,
                                  .stage_count = 1,
                                  .member_count = count,
                                  .stages = &stage,
                                  .members = members,
                                  .gathered_layers = s->s.buffers.layers,
                                  .estimate_s = seconds + update};
    s->best = fmin(s->best, choice.estimate_s);
    return choice_list_add(s->s.list, &choice, err);
}

/* The devices in the ring, at every level. */
static int set_try(struct sharded *s, struct err *err)
{
    uint32_t count = s->s.count, levels = count > SHARDED_FEW ? 2 : LEVELS;
    /* of LoRA every member keeps the adapters, so none stands by */
    uint32_t idle = count <= SHARDED_FEW && s->s.p->workload->method == METHOD_FULL ? count : 0;
    int64_t least_room[SHARDED_DEVICES_MAX];
    double state = sharded_state_bytes(s->s.p), most = 0;
    ring_links(s);
    double least = share_level_least(s->shares, count);
    for (uint32_t m = 0; m < count; m++)
        most = fmax(most, 1 / s->shares[m].bytes_per_s);
    for (uint32_t l = 0; l < levels; l++) {
        double level = least + (most - least) * l / (levels - 1);
        struct moving moving = ring_at(s, level);
        for (uint32_t m = 0; m < count; m++) {
            double floor = 1 - level * (1 + 1e-12) * s->shares[m].bytes_per_s;
            least_room[m] = floor > 0 ? (int64_t)(floor * state) : 0;
        }
        int result = sharded_search_split(&s->s, &moving, least_room, state, idle, CUTOFF * s->best, err);
        for (int aim = 0; aim <= SHARE_FOR_STEP && result > 0; aim++) {
            if (chosen_add(s, (enum share_aim)aim, err) < 0)
                return -1;
        }
        if (result < 0)
            return -1;
        if (result > 0 && !(most > least))
            break;
    }
    return 0;
}

static void need_of(const struct sharded_search *s, uint32_t rows, uint32_t count, bool recompute,
                    struct memory_need *need)
{
    sharded_need(s->p, &s->buffers, rows, count, recompute, 0, need);
}

/* Puts the devices taken in the order of the ring whose links ask for least, of all there are; false when
 * they stand so. */
static bool ring_turn(struct sharded *s)
{
    const struct candidate *best[RINGS_DEVICES];
    uint32_t n = s->s.count, turns[RINGS_DEVICES] = {0};
    ring_links(s);
    double least = share_level_least(s->shares, n) * (1 - LEVEL_SAME);
    bool found = false;
    for (uint32_t k = 1;
         k < n;) { /* Heap's way through all orders, the last in its place: rings have no start */
        if (turns[k] >= k) {
            turns[k++] = 0;
            continue;
        }
        uint32_t other = k % 2 ? turns[k] : 0;
        const struct candidate *held = s->s.taken[other];
        s->s.taken[other] = s->s.taken[k];
        s->s.taken[k] = held;
        ring_links(s);
        double level = share_level_least(s->shares, n);
        if (level < least) {
            least = level * (1 - LEVEL_SAME);
            memcpy(best, s->s.taken, n * sizeof(*best));
            found = true;
        }
        turns[k]++;
        k = 1;
    }
    if (found)
        memcpy(s->s.taken, best, n * sizeof(*best));
    return found;
}

/* A machine's devices together, whose links no others share: of the machines that do most. */
static int machines_try(struct sharded *s, struct err *err)
{
    const struct cluster *cluster = s->s.p->cluster;
    double *rate = calloc((size_t)cluster->node_count + 1, sizeof(*rate));
    int result = rate ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t m = 0; m < s->s.candidate_count && result == 0; m++)
        rate[cluster->devices[s->s.candidates[m].device].node] += 1 / s->s.candidates[m].per_row;
    for (uint32_t turn = 0; turn < MACHINES_TRIED && result == 0; turn++) {
        uint32_t best = machine_take(rate, cluster->node_count);
        if (best == UINT32_MAX || s->s.list->evaluations >= s->s.list->evaluations_max)
            break;
        s->s.count = 0;
        for (uint32_t m = 0; m < s->s.candidate_count && s->s.count < SHARDED_DEVICES_MAX; m++) {
            if (cluster->devices[s->s.candidates[m].device].node == best)
                ring_add(s, &s->s.candidates[m]);
        }
        if (s->s.count >= 2 && s->s.count < s->s.candidate_count)
            result = set_try(s, err);
    }
    free(rate);
    return result;
}

/* Every set of a few devices; of more, machines and the fastest of them. */
static int sets_try(struct sharded *s, struct err *err)
{
    uint32_t most = s->s.candidate_count, worse = 0;
    most = most < SHARDED_DEVICES_MAX ? most : SHARDED_DEVICES_MAX;
    for (uint32_t mask = (1u << ALL_SETS) - 1; mask > 0 && most <= ALL_SETS; mask--) {
        s->s.count = 0;
        for (uint32_t m = 0; m < ALL_SETS; m++) {
            if (mask >> m & 1 && m < most)
                ring_add(s, &s->s.candidates[m]);
        }
        if (mask >> most == 0 && s->s.count >= 2 && s->s.list->evaluations < s->s.list->evaluations_max &&
            (set_try(s, err) < 0 ||
             (s->s.count > 2 && s->s.count <= RINGS_DEVICES && ring_turn(s) && set_try(s, err) < 0)))
            return -1;
    }
    if (most > ALL_SETS && machines_try(s, err) < 0)
        return -1;
    for (uint32_t n = most;
         n >= 2 && most > ALL_SETS && worse<WORSE_MAX; n = n> SHARDED_FEW ? n - n / 8 : n - 1) {
        double before = s->best;
        s->s.count = 0;
        for (uint32_t m = 0; m < n; m++)
            ring_add(s, &s->s.candidates[m]);
        if (s->s.list->evaluations >= s->s.list->evaluations_max)
            break;
        if (set_try(s, err) < 0)
            return -1;
        worse = s->best < before || isinf(s->best) ? 0 : worse + 1;
    }
    return 0;
}

/* When nothing fitted: what all devices together lack. */
static void short_note(struct sharded *s)
{
    struct memory_need need;
    double room = 0;
    uint64_t has = 0;
    const struct device *devices = s->s.p->cluster->devices;
    s->s.buffers = sharded_buffers(s->s.p, 2);
    need_of(&s->s, s->s.unit, 1, s->s.p->workload->recompute != RECOMPUTE_NO, &need);
    for (uint32_t i = 0; i < s->s.candidate_count; i++) {
        uint32_t d = s->s.candidates[i].device;
        room += fmax(0, (double)devices[d].memory_limit_bytes - (double)need.total);
        has += devices[d].memory_limit_bytes;
    }
    choice_list_lacks(s->s.list, has, (uint64_t)fmax(1, sharded_state_bytes(s->s.p) - room));
}

int sharded_propose(const struct problem *p, struct choice_list *list, struct err *err)
{
    struct sharded *s = calloc(1, sizeof(*s));
    if (!s)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    s->best = INFINITY;
    int result = sharded_search_init(&s->s, p, list, err);
    if (result > 0) {
        uint32_t ring = sharded_ring(&(struct sharded_buffers){.ring_end = p->block_count - !p->blocks.tied});
        const uint32_t layers[] = {2, ring / 2, ring};
        bool more = p->workload->method == METHOD_FULL || s->s.candidate_count <= ALL_SETS;
        for (uint32_t i = 0; i < (more ? 3u : 1u) && result >= 0; i++) {
            if (i > 0 && layers[i] <= layers[i - 1])
                continue;
            result = sharded_search_layers(&s->s, layers[i], need_of, err);
            result = result == 0 ? sets_try(s, err) : result;
        }
        if (result == 0 && list->count == 0)
            short_note(s);
    }
    sharded_search_fini(&s->s);
    free(s);
    return result < 0 ? -1 : 0;
}
