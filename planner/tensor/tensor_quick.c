/* A stage runs its units in the order of 1F1B; within a unit every half of every block for all of its
 * micro-batches, as tensor_program.c writes them. */
#include "planner/tensor/tensor_quick.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/micro.h"
#include "planner/pipeline/pipe_order.h"

#define QUICK_STAGES 16u
#define QUICK_MEMBERS 16u  /* of all stages */
#define QUICK_CELLS 65536u /* devices · steps · micro-batches of one size */
#define STEADY 1e-9        /* of what a layer adds: as much as the one before added */

/* What a micro-batch is: the same on every device. */
struct quick_micro {
    double bytes, statistics; /* of a boundary tensor, and of what the head's softmax sums */
    double attention;         /* the part of a layer's time that attention is */
    bool empty;
};

/* Of one size of micro-batches. */
struct quick_size {
    uint32_t count;
    struct quick_micro *micro; /* [steps][count] */
    struct micro_cost *cost;   /* [devices][steps][count] */
};

/* Seconds of a micro-batch on a member: a layer's halves, and what stands at the ends of the model. */
struct quick_work {
    double half[2][2]; /* [first, second][forward, backward] */
    double embedding[2], head[2];
};

struct quick_stage {
    const struct place_stage *stage;
    uint32_t layers, members, units;
    bool embedding, head;
    double latency_s, rate; /* of its ring */
    double sync_s;          /* of gradients that its members keep alike */
    double compute[QUICK_MEMBERS], sums,
        out[2];    /* busy until then; the wires to the next and to the one before */
    uint32_t next; /* of its events */
};

/* Micro-batches [first, end) that go through a stage together. */
struct quick_unit {
    uint32_t first, end;
    bool backward;
    const struct quick_work *work;   /* of the stage's first member, [micro-batches] */
    const struct quick_micro *micro; /* [micro-batches] */
    size_t stride;                   /* bytes from a member's work to the next one's */
};

struct tensor_quick {
    const struct problem *p;
    uint32_t steps;
    struct quick_size *sizes; /* [batch_rows + 1] */
    struct err err;           /* nobody's: what fails is not known */
    /* of the choice in hand */
    const struct place_choice *c;
    const struct quick_size *size;
    struct quick_stage stages[QUICK_STAGES];
    struct quick_work *work; /* [members][micro-batches] */
    double *came[2];         /* [stages][micro-batches], forward and backward: below 0: not yet */
    double *ready, *before;  /* [micro-batches]; what ready was, a layer ago */
    size_t work_room, came_room;
};

struct tensor_quick *tensor_quick_create(const struct problem *problem, uint32_t steps_max, struct err *err)
{
    struct tensor_quick *q = calloc(1, sizeof(*q));
    if (q) {
        q->p = problem;
        q->steps = steps_max < problem->step_count ? steps_max : problem->step_count;
        q->sizes = calloc((size_t)problem->workload->batch_rows + 1, sizeof(*q->sizes));
    }
    if (!q || !q->sizes) {
        free(q);
        err_set(err, ERR_NOMEM, "planner: out of memory");
        return NULL;
    }
    return q;
}

void tensor_quick_destroy(struct tensor_quick *q)
{
    if (!q)
        return;
    for (uint32_t rows = 0; rows <= q->p->workload->batch_rows; rows++) {
        free(q->sizes[rows].micro);
        free(q->sizes[rows].cost);
    }
    free(q->sizes);
    free(q->work);
    free(q->came[0]);
    free(q->came[1]);
    free(q->ready);
    free(q->before);
    free(q);
}

/* --- what micro-batches cost --- */

static bool size_fill(struct tensor_quick *q, struct quick_size *size, uint32_t rows)
{
    const struct problem *p = q->p;
    uint32_t count = micro_count(p, rows);
    int32_t layer = p->block_count > 2 ? 1 : -1;
    size->micro = calloc((size_t)q->steps * count + 1, sizeof(*size->micro));
    size->cost = calloc((size_t)p->device_count * q->steps * count + 1, sizeof(*size->cost));
    if (!size->micro || !size->cost) {
        free(size->micro);
        free(size->cost);
        *size = (struct quick_size){0};
        return false;
    }
    size->count = count;
    for (uint32_t t = 0; t < q->steps; t++) {
        uint32_t step = problem_step_priced(p, t, q->steps);
        for (uint32_t k = 0; k < count; k++) {
            struct cost_load load = problem_load(p, step, k * rows, (k + 1) * rows);
            size_t at = (size_t)t * count + k;
            size->micro[at] =
                (struct quick_micro){.bytes = floor(p->bytes_per_token * load.tokens),
                                     .statistics = 12 * load.tokens,
                                     .attention = layer < 0 ? 0.5 : tensor_attention(p, layer, &load),
                                     .empty = load.rows <= 0};
            for (uint32_t d = 0; d < p->device_count && load.rows > 0; d++) {
                if (p->usable[d])
                    micro_cost_load(&size->cost[(size_t)d * q->steps * count + at], p, d, &load);
            }
        }
    }
    return true;
}

static const struct quick_size *size_of(struct tensor_quick *q, uint32_t rows)
{
    struct quick_size *size = &q->sizes[rows];
    if (!size->micro &&
        (q->p->device_count * q->steps * micro_count(q->p, rows) > QUICK_CELLS || !size_fill(q, size, rows)))
        return NULL;
    return size;
}

/* Of every member and micro-batch of a step. */
static void work_fill(struct tensor_quick *q, uint32_t t)
{
    const struct quick_size *size = q->size;
    for (uint32_t m = 0; m < q->c->member_count; m++) {
        const struct place_member *x = &q->c->members[m];
        struct tensor_shares shares = tensor_shares(q->p, &x->tensor);
        for (uint32_t k = 0; k < size->count; k++) {
            size_t at = (size_t)t * size->count + k;
            const struct micro_cost *cost = &size->cost[(size_t)x->device * q->steps * size->count + at];
            struct quick_work *w = &q->work[(size_t)m * size->count + k];
            double attention = size->micro[at].attention;
            memset(w, 0, sizeof(*w));
            for (int way = 0; way < (x->recompute ? COST_WAYS : COST_RECOMPUTE) && !size->micro[at].empty;
                 way++) {
                double layer = cost->seconds[COST_LAYER][way], head = cost->seconds[COST_HEAD][way];
                int to = way != COST_FORWARD;
                w->half[0][to] += tensor_shrink(layer * attention, shares.heads);
                w->half[1][to] += tensor_shrink(layer * (1 - attention), shares.columns);
                w->head[to] += tensor_shrink(head, shares.vocabulary);
                w->embedding[to] +=
                    cost->seconds[COST_EMBEDDING][way] * (way == COST_BACKWARD ? shares.vocabulary : 1);
            }
        }
    }
}

/* --- a step --- */

static double later(double a, double b)
{
    return a > b ? a : b;
}

/* `seconds` of a micro-batch on every member, and the sum behind it, of so many bytes (0: none). */
static void part_run(struct tensor_quick *q, struct quick_stage *g, uint32_t k, const double *seconds,
                     size_t stride, double bytes)
{
    double ready = q->ready[k], end = 0;
    for (uint32_t m = 0; m < g->members; m++) {
        g->compute[m] = later(g->compute[m], ready) + *(const double *)((const char *)seconds + m * stride);
        end = later(end, g->compute[m]);
    }
    if (g->members > 1 && bytes > 0)
        end = g->sums = later(g->sums, end) + tensor_sum_seconds(g->members, bytes, g->latency_s, g->rate);
    q->ready[k] = end;
}

/* A layer of a unit's micro-batches, there or back; nothing is summed behind the last half of a unit that
 * `ends`. */
static void layer_run(struct tensor_quick *q, struct quick_stage *g, const struct quick_unit *u, bool ends)
{
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t k = u->first; k < u->end; k++)
            part_run(q, g, k, &u->work[k].half[u->backward ? 1 - i : i][u->backward], u->stride,
                     ends && i == 1 ? 0 : u->micro[k].bytes);
    }
}

/* By how much everything is later than a layer ago, if that is the same for all of it: so much every further
 * layer adds, too. 0: it is not. */
static double layer_steady(const struct tensor_quick *q, const struct quick_stage *g,
                           const struct quick_stage *was, const struct quick_unit *u)
{
    double each = q->ready[u->first] - q->before[u->first];
    bool same = g->members == 1 || fabs(g->sums - was->sums - each) <= each * STEADY;
    for (uint32_t k = u->first; k < u->end && same; k++)
        same = fabs(q->ready[k] - q->before[k] - each) <= each * STEADY;
    for (uint32_t m = 0; m < g->members && same; m++)
        same = fabs(g->compute[m] - was->compute[m] - each) <= each * STEADY;
    return same ? each : 0;
}

/* All layers but the last, which may end otherwise, as soon as one takes what the one before took at once. */
static void layers_run(struct tensor_quick *q, struct quick_stage *g, const struct quick_unit *u, bool ends)
{
    for (uint32_t layer = 0; layer < g->layers; layer++) {
        struct quick_stage was = *g;
        uint32_t more = g->layers - layer;
        memcpy(&q->before[u->first], &q->ready[u->first], (u->end - u->first) * sizeof(*q->before));
        layer_run(q, g, u, ends && more == 1);
        double skipped = more > 2 && layer > 0 ? (more - 2) * layer_steady(q, g, &was, u) : 0;
        if (skipped <= 0)
            continue;
        layer = g->layers - 2;
        g->sums += skipped;
        for (uint32_t k = u->first; k < u->end; k++)
            q->ready[k] += skipped;
        for (uint32_t m = 0; m < g->members; m++)
            g->compute[m] += skipped;
    }
}

static void unit_run(struct tensor_quick *q, uint32_t s, uint32_t t, uint32_t first, uint32_t end,
                     bool backward)
{
    struct quick_stage *g = &q->stages[s];
    uint32_t count = q->size->count;
    size_t stride = (size_t)count * sizeof(struct quick_work);
    const struct quick_work *work = &q->work[(size_t)g->stage->member_first * count];
    const struct quick_micro *micro = &q->size->micro[(size_t)t * count];
    struct quick_unit unit = {first, end, backward, work, micro, stride};
    bool trains = q->p->workload->method == METHOD_FULL;
    for (uint32_t k = first; k < end; k++) {
        bool there = backward ? s + 1 < q->c->stage_count : s > 0;
        q->ready[k] = there ? q->came[backward][(size_t)s * count + k] : 0;
        if (there && g->members > 1)
            q->ready[k] = g->sums =
                later(g->sums, q->ready[k]) + micro[k].bytes / g->rate + (g->members - 1) * g->latency_s;
    }
    for (uint32_t k = first; k < end && (backward ? g->head : g->embedding); k++)
        part_run(q, g, k, backward ? &work[k].head[1] : &work[k].embedding[0], stride, micro[k].bytes);
    layers_run(q, g, &unit, backward && g->embedding && !trains);
    for (uint32_t k = first; k < end && (backward ? g->embedding : g->head); k++)
        part_run(q, g, k, backward ? &work[k].embedding[1] : &work[k].head[0], stride,
                 backward ? 0 : micro[k].statistics);
    for (uint32_t k = first; k < end && (backward ? s > 0 : s + 1 < q->c->stage_count); k++) {
        uint32_t to = backward ? s - 1 : s + 1;
        double latency, rate;
        bool emulated;
        cluster_link(q->p->cluster, q->c->members[g->stage->member_first].device,
                     q->c->members[q->c->stages[to].member_first].device, &latency, &rate, &emulated);
        double *wire = &g->out[backward];
        *wire = later(*wire, q->ready[k]) + micro[k].bytes / rate;
        q->came[backward][(size_t)to * count + k] = *wire + latency;
    }
}

/* May the next event of a stage run? What it waits for is there. */
static bool event_ready(const struct tensor_quick *q, uint32_t s, uint32_t end, bool backward)
{
    bool there = backward ? s + 1 < q->c->stage_count : s > 0;
    return !there || q->came[backward][(size_t)s * q->size->count + end - 1] >= 0;
}

static double step_run(struct tensor_quick *q, uint32_t t, const struct pipe_order *order)
{
    uint32_t count = q->size->count, together = tensor_together(q->c, count);
    bool moved = true;
    double end = 0;
    for (size_t i = 0; i < (size_t)q->c->stage_count * count; i++)
        q->came[0][i] = q->came[1][i] = -1;
    for (uint32_t s = 0; s < q->c->stage_count; s++) {
        struct quick_stage *g = &q->stages[s];
        g->next = order->first[s];
        g->sums = g->out[0] = g->out[1] = 0;
        memset(g->compute, 0, sizeof(g->compute));
    }
    work_fill(q, t);
    while (moved) {
        moved = false;
        for (uint32_t s = 0; s < q->c->stage_count; s++) {
            struct quick_stage *g = &q->stages[s];
            for (; g->next < order->first[s + 1]; g->next++) {
                const struct order_event *e = &order->events[g->next];
                uint32_t from = e->micro_batch * together,
                         to = from + together < count ? from + together : count;
                bool backward = e->kind != ORDER_FORWARD;
                if (!event_ready(q, s, to, backward))
                    break;
                unit_run(q, s, t, from, to, backward);
                moved = true;
            }
        }
    }
    for (uint32_t s = 0; s < q->c->stage_count; s++) {
        const struct quick_stage *g = &q->stages[s];
        if (g->next < order->first[s + 1])
            return -1;
        for (uint32_t m = 0; m < g->members; m++)
            end = later(end, g->compute[m] + g->sync_s);
    }
    return end;
}

/* --- a choice --- */

static void stage_fill(struct tensor_quick *q, uint32_t s)
{
    const struct problem *p = q->p;
    const struct place_stage *stage = &q->c->stages[s];
    struct quick_stage *g = &q->stages[s];
    uint32_t devices[QUICK_MEMBERS];
    int32_t begin = stage->block_begin > 1 ? stage->block_begin : 1;
    int32_t end = stage->block_end < p->block_count ? stage->block_end : p->block_count - 1;
    *g = (struct quick_stage){.stage = stage,
                              .layers = end > begin ? (uint32_t)(end - begin) : 0,
                              .members = stage->member_count,
                              .embedding = stage->block_begin == 0,
                              .head = stage->block_end == p->block_count};
    for (uint32_t m = 0; m < g->members; m++)
        devices[m] = q->c->members[stage->member_first + m].device;
    tensor_ring_links(p, devices, g->members, &g->latency_s, &g->rate);
    double bytes = (double)tensor_shared_bytes(p, g->layers), n = g->members;
    g->sync_s = n > 1 ? 2 * ((n - 1) / n * bytes / g->rate + (n - 1) * g->latency_s) : 0;
}

static bool room_make(struct tensor_quick *q)
{
    size_t work = (size_t)q->c->member_count * q->size->count,
           came = (size_t)q->c->stage_count * q->size->count;
    if (work > q->work_room) {
        free(q->work);
        q->work = calloc(work, sizeof(*q->work));
        q->work_room = q->work ? work : 0;
    }
    if (came > q->came_room) {
        double **rooms[] = {&q->came[0], &q->came[1], &q->ready, &q->before};
        for (size_t i = 0; i < sizeof(rooms) / sizeof(rooms[0]); i++) {
            free(*rooms[i]);
            *rooms[i] = calloc(came, sizeof(double));
        }
        q->came_room = q->came[0] && q->came[1] && q->ready && q->before ? came : 0;
    }
    return work <= q->work_room && came <= q->came_room;
}

double tensor_quick_seconds(struct tensor_quick *q, const struct place_choice *c)
{
    uint32_t windows[QUICK_STAGES];
    struct pipe_order order;
    double sum = 0;
    if (c->placement != PLACE_TENSOR || c->stage_count > QUICK_STAGES || c->member_count > QUICK_MEMBERS)
        return -1;
    q->c = c;
    q->size = size_of(q, c->micro_batch_rows);
    if (!q->size || !room_make(q))
        return -1;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        uint32_t window = c->members[c->stages[s].member_first].window;
        windows[s] = window ? window : 1;
        stage_fill(q, s);
    }
    uint32_t units = (q->size->count - 1) / tensor_together(c, q->size->count) + 1;
    if (pipe_order_init(&order, SCHEDULE_1F1B, c->stage_count, c->stage_count, units, windows, NULL, false,
                        &q->err) < 0)
        return -1;
    for (uint32_t t = 0; t < q->steps && sum >= 0; t++) {
        double seconds = step_run(q, t, &order);
        sum = seconds < 0 ? -1 : sum + seconds / q->steps;
    }
    pipe_order_fini(&order);
    return sum;
}
