/* server: one holder of the trained state, and workers that keep none: the parameter server of the seeds.
 *
 * Full fine-tuning: workers pull each block before they compute it and push its gradients after (layered.c).
 * LoRA: workers keep the frozen base, pull the adapters at the start of a step and push their gradients at
 * its end. The holder may work as well. All that moves crosses the holder's card, in one direction all
 * weights, in the other all gradients, so a step gets longer with every worker: worth it where one machine
 * has the memory and the others only speed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/micro.h"
#include "planner/sharded/sharded_search.h"

#define HOLDERS_MAX 8u     /* tried as holder: those with the most memory */
#define ALL_SETS 6u        /* devices up to which every set of workers is tried */
#define WORKERS_ORDERED 4u /* workers up to which all orders of them are looked at, */
#define ROWS_ORDERED 64u   /* and rows */
#define ORDER_SAME 1e-9    /* orders this near are as good */
#define CUTOFF 1.2         /* estimates this much above the best one are not looked for */

struct sharded_buffers server_buffers(const struct problem *p)
{
    uint64_t adapters = memory_gradient_bytes(p, 0, p->block_count);
    return (struct sharded_buffers){
        .ring_end = 1, .edge_weights = adapters, .edge_gradients = adapters, .total = 2 * adapters};
}

static void idle_clear(struct memory_need *need, uint64_t buffers)
{
    need->purpose[PURPOSE_ACTIVATIONS] = 0;
    need->purpose[PURPOSE_BUFFERS] = buffers;
    need->saved_bytes = need->cache_bytes = need->total = 0;
    for (int i = 0; i < PURPOSE_COUNT; i++)
        need->total += need->purpose[i];
}

void server_worker_need(const struct problem *p, uint32_t rows, uint32_t count, bool recompute,
                        struct memory_need *need)
{
    struct memory_stage m = {.block_end = p->block_count,
                             .window = 1,
                             .micro_batch_rows = rows ? rows : 1,
                             .recompute = recompute,
                             .tensor_share = 1,
                             .sharded = true,
                             .frozen_share = 1,
                             .buffer_bytes = server_buffers(p).total};
    memory_stage_need(p, &m, need);
    if (count == 0) {
        need->purpose[PURPOSE_WEIGHTS] = 0;
        idle_clear(need, 0);
    }
}

void server_holder_need(const struct problem *p, uint32_t rows, uint32_t count, bool recompute,
                        struct memory_need *need)
{
    bool full = p->workload->method == METHOD_FULL;
    struct sharded_buffers in = full ? sharded_buffers(p, 1) : server_buffers(p);
    uint64_t arrives = in.layer_gradients > in.edge_gradients ? in.layer_gradients : in.edge_gradients;
    struct memory_stage m = {.block_end = p->block_count,
                             .window = full ? count : 1,
                             .micro_batch_rows = rows ? rows : 1,
                             .recompute = recompute,
                             .boundary_buffers = full ? 4 * count : 0,
                             .state_share = 1,
                             .tensor_share = 1,
                             .sharded = true,
                             .frozen_share = count > 0,
                             .buffer_bytes = arrives};
    memory_stage_need(p, &m, need);
    if (count == 0)
        idle_clear(need, arrives);
}

static bool server_supports(const struct problem *problem, struct err *err)
{
    return placement_stages(problem, 1, 1, err) &&
           placement_devices(problem, 2, "a holder and workers take", err);
}

struct server {
    struct sharded_search s;
    const struct candidate *holder;
    struct split_option holds; /* the holder's way */
    double best;
};

/* LoRA: is there a worker that holds the base and one row? */
static bool worker_fits(const struct problem *p)
{
    for (int recompute = 0; recompute < 2; recompute++) {
        struct memory_need need;
        server_worker_need(p, 1, 1, recompute, &need);
        for (uint32_t d = 0; d < p->device_count && micro_recompute_allowed(p, recompute); d++) {
            if (p->usable[d] && need.total <= p->cluster->devices[d].memory_limit_bytes)
                return true;
        }
    }
    return false;
}

/* What one block costs to send to all workers, and to get from them: each link carries it once, and the
 * holder's card as often as there are workers on other nodes. */
static struct moving star(const struct server *s)
{
    const struct cluster *cluster = s->s.p->cluster;
    const struct device *holder = &cluster->devices[s->holder->device];
    struct moving moving = {.beside = true};
    uint32_t away = 0;
    for (uint32_t m = 1; m < s->s.count; m++) {
        double latency, rate;
        bool emulated;
        cluster_link(cluster, s->holder->device, s->s.taken[m]->device, &latency, &rate, &emulated);
        moving.gather_s = fmax(moving.gather_s, 1 / rate);
        moving.hop_s = fmax(moving.hop_s, latency);
        cluster_link(cluster, s->s.taken[m]->device, s->holder->device, &latency, &rate, &emulated);
        moving.reduce_s = fmax(moving.reduce_s, 1 / rate);
        moving.hop_s = fmax(moving.hop_s, latency);
        away += cluster->devices[s->s.taken[m]->device].node != holder->node;
    }
    double card = cluster->nodes[holder->node].nic_bytes_per_s;
    if (card > 0) {
        moving.gather_s = fmax(moving.gather_s, away / card);
        moving.reduce_s = fmax(moving.reduce_s, away / card);
    }
    return moving;
}

static void members_swap(struct place_member *a, struct place_member *b)
{
    struct place_member held = *a;
    *a = *b;
    *b = held;
}

/* Rows differ in length, and workers are alike to the holder: the order of a few in which the busiest has
 * least to do. */
static void workers_order(const struct problem *p, struct place_member *members, uint32_t count)
{
    struct place_member best[1 + WORKERS_ORDERED], *workers = members + 1;
    uint32_t turns[WORKERS_ORDERED] = {0}, n = count - 1;
    if (n < 2 || n > WORKERS_ORDERED || p->workload->batch_rows > ROWS_ORDERED)
        return;
    double least = sharded_busiest(p, members, count, 0);
    memcpy(best, members, count * sizeof(*best));
    for (uint32_t k = 1; k < n;) { /* Heap's way through all orders */
        if (turns[k] >= k) {
            turns[k++] = 0;
            continue;
        }
        members_swap(&workers[k % 2 ? turns[k] : 0], &workers[k]);
        double seconds = sharded_busiest(p, members, count, 0);
        if (seconds < least * (1 - ORDER_SAME)) {
            least = seconds;
            memcpy(best, members, count * sizeof(*best));
        }
        turns[k]++;
        k = 1;
    }
    memcpy(members, best, count * sizeof(*best));
}

static int chosen_add(struct server *s, const struct moving *moving, struct err *err)
{
    struct place_member members[SHARDED_DEVICES_MAX];
    bool full = s->s.p->workload->method == METHOD_FULL;
    uint32_t rows = 1, count = s->s.count;
    double seconds = 0;
    for (uint32_t m = 0; m < count; m++) {
        const struct split_option *o = &s->s.chosen[m];
        seconds = fmax(seconds, sharded_search_seconds(&s->s, s->s.taken[m], o, moving));
        rows = o->rows > rows ? o->rows : rows;
        members[m] = (struct place_member){.device = s->s.taken[m]->device,
                                           .micro_rows = o->count ? o->rows : 1,
                                           .micro_count = o->count,
                                           .state_share = m == 0,
                                           .window = full && o->count ? o->count : 1,
                                           .recompute = o->recompute};
    }
    workers_order(s->s.p, members, count);
    struct place_stage stage = {.block_end = s->s.p->block_count, .member_count = count};
    struct place_choice choice = {.placement = PLACE_SERVER,
                                  .micro_batch_rows = rows,
                                  .stage_count = 1,
                                  .member_count = count,
                                  .stages = &stage,
                                  .members = members,
                                  .gathered_layers = full ? s->s.buffers.layers : 1,
                                  .estimate_s = seconds + s->holder->step_s};
    s->best = fmin(s->best, choice.estimate_s);
    return choice_list_add(s->s.list, &choice, err);
}

static void worker_need(const struct sharded_search *s, uint32_t rows, uint32_t count, bool recompute,
                        struct memory_need *need)
{
    if (s->p->workload->method == METHOD_FULL)
        sharded_need(s->p, &s->buffers, rows, count, recompute, 0, need);
    else
        server_worker_need(s->p, rows, count, recompute, need);
}

static void holder_need(const struct sharded_search *s, uint32_t rows, uint32_t count, bool recompute,
                        struct memory_need *need)
{
    server_holder_need(s->p, rows, count, recompute, need);
}

/* The holder and the workers taken. */
static int workers_try(struct server *s, const int64_t *least_room, struct err *err)
{
    struct moving moving = star(s);
    int result = sharded_search_split(&s->s, &moving, least_room, 0, 1, CUTOFF * s->best, err);
    return result < 0 || (result > 0 && chosen_add(s, &moving, err) < 0) ? -1 : 0;
}

/* A holder that is too small: what it lacks, and what the nearest worker beside it does. */
static void short_note(const struct server *s, uint32_t holder, uint64_t needs)
{
    const struct problem *p = s->s.p;
    const struct device *devices = p->cluster->devices;
    struct memory_need need;
    uint64_t least = UINT64_MAX, has = 0;
    uint32_t count =
        (p->workload->batch_rows + s->s.unit - 1) / s->s.unit; /* it takes all: the holder idles */
    worker_need(&s->s, s->s.unit, count, p->workload->recompute != RECOMPUTE_NO, &need);
    for (uint32_t d = 0; d < p->device_count; d++) {
        uint64_t limit = devices[d].memory_limit_bytes, lacks = need.total > limit ? need.total - limit : 0;
        if (!p->usable[d] || d == holder || lacks >= least)
            continue;
        least = lacks;
        has = limit;
    }
    if (least == 0)
        choice_list_short(s->s.list, holder, needs, devices[holder].memory_limit_bytes);
    else if (least < UINT64_MAX)
        choice_list_lacks(s->s.list, has + devices[holder].memory_limit_bytes,
                          least + needs - devices[holder].memory_limit_bytes);
}

/* Every set of workers of a few devices; of more, the fastest of them. */
static int holder_try(struct server *s, const struct candidate *holder, struct err *err)
{
    const struct device *devices = s->s.p->cluster->devices;
    const int64_t least_room[SHARDED_DEVICES_MAX] = {0};
    struct memory_need idle;
    uint32_t all = s->s.candidate_count, most = all < SHARDED_DEVICES_MAX ? all : SHARDED_DEVICES_MAX;
    server_holder_need(s->s.p, 0, 0, false, &idle);
    if (devices[holder->device].memory_limit_bytes < idle.total) {
        short_note(s, holder->device, idle.total + SHARDED_ROUNDING_BYTES);
        return 0;
    }
    s->holder = holder;
    bool few = all <= ALL_SETS;
    uint32_t mask = few ? (1u << all) - 1 : 0, self = (uint32_t)(holder - s->s.candidates);
    for (uint32_t n = few ? 2 : most; few ? mask > 0 : n >= 2;) {
        s->s.count = 0;
        s->s.taken[s->s.count++] = holder;
        for (uint32_t i = 0; i < all && s->s.count < (few ? all : n); i++) {
            if (i != self && (!few || mask >> i & 1))
                s->s.taken[s->s.count++] = &s->s.candidates[i];
        }
        if (s->s.list->evaluations >= s->s.list->evaluations_max)
            return 0;
        if (s->s.count >= 2 && (!few || mask >> self & 1) && workers_try(s, least_room, err) < 0)
            return -1;
        mask -= few;
        n = n > SHARDED_FEW ? n - n / 8 : n - !few;
    }
    return 0;
}

/* LoRA: no device holds the base and one row beside a holder; what the largest of them lacks. */
static void worker_note(const struct problem *p, struct choice_list *list)
{
    const struct device *devices = p->cluster->devices;
    uint32_t rows = p->workload->micro_batch_rows ? p->workload->micro_batch_rows : 1, largest = UINT32_MAX,
             holders = 0;
    uint64_t least = UINT64_MAX;
    struct memory_need need, idle;
    server_holder_need(p, 0, 0, false, &idle);
    for (int recompute = 0; recompute < 2; recompute++) {
        server_worker_need(p, rows, 1, recompute, &need);
        if (micro_recompute_allowed(p, recompute) && need.total < least)
            least = need.total;
    }
    for (uint32_t d = 0; d < p->device_count; d++) {
        if (!p->usable[d])
            continue;
        holders += devices[d].memory_limit_bytes >= idle.total + SHARDED_ROUNDING_BYTES;
        if (largest == UINT32_MAX || devices[d].memory_limit_bytes > devices[largest].memory_limit_bytes)
            largest = d;
    }
    if (holders >= 2 && least < UINT64_MAX)
        choice_list_short(list, largest, least + SHARDED_ROUNDING_BYTES, devices[largest].memory_limit_bytes);
}

static int server_propose(const struct problem *p, struct choice_list *list, struct err *err)
{
    struct server *s = calloc(1, sizeof(*s));
    bool full = p->workload->method == METHOD_FULL;
    if (!s)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    if (!full && p->device_count > ALL_SETS && !worker_fits(p)) {
        worker_note(p, list);
        free(s);
        return 0;
    }
    s->best = INFINITY;
    int result = sharded_search_init(&s->s, p, list, err);
    uint32_t ring = (uint32_t)p->block_count - 1 - !p->blocks.tied;
    const uint32_t layers[] = {full ? 2 : 0, ring};
    for (uint32_t i = 0; i < (full ? 2u : 1u) && result > 0; i++) {
        if (sharded_search_layers(&s->s, layers[i], worker_need, err) < 0 ||
            sharded_search_first(&s->s, holder_need, err) < 0)
            result = -1;
        bool tried[SHARDED_DEVICES_MAX] = {0};
        uint32_t most =
            s->s.candidate_count < SHARDED_DEVICES_MAX ? s->s.candidate_count : SHARDED_DEVICES_MAX;
        for (uint32_t h = 0; h < HOLDERS_MAX && h < most && result > 0; h++) {
            uint32_t best = most;
            for (uint32_t c = 0; c < most; c++) {
                const struct device *devices = p->cluster->devices;
                if (!tried[c] &&
                    (best == most || devices[s->s.candidates[c].device].memory_limit_bytes >
                                         devices[s->s.candidates[best].device].memory_limit_bytes))
                    best = c;
            }
            tried[best] = true;
            if (holder_try(s, &s->s.candidates[best], err) < 0)
                result = -1;
        }
    }
    if (result > 0 && !full && list->count == 0 && !worker_fits(p))
        worker_note(p, list);
    sharded_search_fini(&s->s);
    free(s);
    return result < 0 ? -1 : 0;
}

/* No worker of this release pulls and pushes. */
static bool server_runnable(const struct problem *problem, const struct place_choice *choice)
{
    (void)problem;
    (void)choice;
    return false;
}

const struct placement place_server = {.kind = PLACE_SERVER,
                                       .supports = server_supports,
                                       .propose = server_propose,
                                       .emit = layered_emit,
                                       .runnable = server_runnable,
                                       .from_plan = layered_from_plan};
