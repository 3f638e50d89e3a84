/* Blocks over devices in a given order by dynamic programming: can the devices so far hold blocks [0, b), and
 * if not, what is the least that one of them lacks? What a stage needs depends on its blocks alone, so it is
 * summed up once. */
#include "planner/search/tight.h"

#include <stdlib.h>

#include "planner/cost/memory.h"
#include "planner/cost/micro.h"
#include "planner/pipeline/chain.h"

enum { ALL_ORDERS = 6 }; /* devices of which every order is tried */

/* The devices so far and blocks [0, b). */
struct cover {
    bool fits;       /* all of them as they are */
    uint32_t stages; /* that fit */
    uint64_t lacks,
        needs;       /* with one that has more memory: the least more, UINT64_MAX: none; what it needs */
    uint32_t device; /* that one */
    uint64_t all;    /* the least more of all together, UINT64_MAX: none */
};

struct stage_need {
    uint64_t bytes;
    bool recompute; /* takes less so */
};

struct tight {
    const struct problem *p;
    struct choice_list *list;
    struct err *err;
    int32_t blocks;
    uint32_t rows;
    struct stage_need *needs;    /* [blocks + 1][blocks + 1]: of a stage of blocks [begin, end) */
    struct cover *covers, *next; /* [blocks + 1] */
    int32_t
        *from; /* [devices][blocks + 1]: where the stage begins that ends there; −1: the device is not used */
    uint32_t *devices; /* largest memory first */
    uint32_t *order;   /* of the devices */
    uint32_t count;
    struct place_stage *stages; /* [count] */
    struct place_member *members;
    bool add, fits;
    struct cover found; /* where one device lacks least */
    uint64_t least_all;
};

static struct stage_need *stage_need(const struct tight *t, int32_t begin, int32_t end)
{
    return &t->needs[(size_t)begin * ((size_t)t->blocks + 1) + (size_t)end];
}

static void needs_fill(struct tight *t)
{
    const uint32_t windows[3] = {1, 1, 1};
    uint32_t micro_batches = micro_count(t->p, t->rows);
    for (int32_t begin = 0; begin < t->blocks; begin++) {
        for (int32_t end = begin + 1; end <= t->blocks; end++) {
            uint32_t before = begin > 0, after = end < t->blocks;
            struct stage_need *least = stage_need(t, begin, end);
            *least = (struct stage_need){.bytes = UINT64_MAX};
            for (int again = 0; again < 2; again++) {
                struct memory_need need;
                struct memory_stage stage = {.block_begin = begin,
                                             .block_end = end,
                                             .window = 1,
                                             .micro_batch_rows = t->rows,
                                             .recompute = again,
                                             .boundary_buffers = chain_boundary_buffers(
                                                 before, before + 1 + after, windows, micro_batches),
                                             .state_share = 1,
                                             .tensor_share = 1};
                if (!micro_recompute_allowed(t->p, again))
                    continue;
                memory_stage_need(t->p, &stage, &need);
                if (need.total < least->bytes)
                    *least = (struct stage_need){.bytes = need.total, .recompute = again};
            }
        }
    }
}

static void stage_add(struct tight *t, uint32_t i, int32_t begin, int32_t end)
{
    const struct cover *before = &t->covers[begin];
    struct cover *cover = &t->next[end];
    uint32_t device = t->order[i];
    uint64_t needs = stage_need(t, begin, end)->bytes,
             limit = t->p->cluster->devices[device].memory_limit_bytes;
    if (needs > limit && before->fits && needs - limit < cover->lacks) {
        cover->lacks = needs - limit;
        cover->needs = needs;
        cover->device = device;
    }
    uint64_t over = needs > limit ? needs - limit : 0;
    if (before->all < UINT64_MAX - over && before->all + over < cover->all)
        cover->all = before->all + over;
    if (over)
        return;
    if (before->fits && (!cover->fits || before->stages + 1 < cover->stages)) {
        cover->fits = true;
        cover->stages = before->stages + 1;
        t->from[(size_t)i * ((size_t)t->blocks + 1) + (size_t)end] = begin;
    }
    if (before->lacks < cover->lacks) {
        cover->lacks = before->lacks;
        cover->needs = before->needs;
        cover->device = before->device;
    }
}

/* Micro-batches one after the other: longer than any schedule takes. */
static double choice_seconds(const struct tight *t, uint32_t stages)
{
    double seconds = 0;
    for (uint32_t s = 0; s < stages; s++) {
        struct micro_cost cost;
        micro_cost_init(&cost, t->p, t->members[s].device, t->rows);
        seconds += micro_forward(t->p, &cost, t->stages[s].block_begin, t->stages[s].block_end) +
                   micro_backward(t->p, &cost, t->stages[s].block_begin, t->stages[s].block_end,
                                  t->members[s].recompute);
    }
    return seconds * micro_count(t->p, t->rows);
}

static int choice_add(struct tight *t)
{
    uint32_t stages = t->covers[t->blocks].stages, s = stages, micro_batches = micro_count(t->p, t->rows);
    int32_t end = t->blocks;
    if (!t->add || stages < 2 || (t->p->workload->stages && t->p->workload->stages != stages))
        return 0;
    for (uint32_t i = t->count; i-- > 0 && end > 0;) {
        int32_t begin = t->from[(size_t)i * ((size_t)t->blocks + 1) + (size_t)end];
        if (begin < 0)
            continue;
        s--;
        t->stages[s] = (struct place_stage){
            .block_begin = begin, .block_end = end, .member_first = s, .member_count = 1};
        t->members[s] = (struct place_member){.device = t->order[i],
                                              .micro_rows = t->rows,
                                              .micro_count = micro_batches,
                                              .state_share = 1,
                                              .window = 1,
                                              .recompute = stage_need(t, begin, end)->recompute};
        end = begin;
    }
    struct place_choice choice = {.placement = PLACE_PIPELINE,
                                  .schedule = SCHEDULE_1F1B,
                                  .micro_batch_rows = t->rows,
                                  .stage_count = stages,
                                  .member_count = stages,
                                  .stages = t->stages,
                                  .members = t->members,
                                  .estimate_s = choice_seconds(t, stages)};
    return choice_list_add(t->list, &choice, t->err);
}

static int order_try(struct tight *t)
{
    for (int32_t b = 0; b <= t->blocks; b++)
        t->covers[b] = (struct cover){.fits = b == 0, .lacks = UINT64_MAX, .all = b ? UINT64_MAX : 0};
    for (uint32_t i = 0; i < t->count; i++) {
        for (int32_t end = 0; end <= t->blocks; end++) {
            t->next[end] = t->covers[end];
            t->from[(size_t)i * ((size_t)t->blocks + 1) + (size_t)end] = -1;
            for (int32_t begin = end == t->blocks; begin < end; begin++) /* all on one is no pipeline */
                stage_add(t, i, begin, end);
        }
        struct cover *covers = t->covers;
        t->covers = t->next;
        t->next = covers;
    }
    const struct cover *all = &t->covers[t->blocks];
    t->fits = t->fits || all->fits;
    t->least_all = all->all < t->least_all ? all->all : t->least_all;
    if (all->lacks < t->found.lacks)
        t->found = *all;
    return all->fits ? choice_add(t) : 0;
}

/* Every order of the devices from `at` on. */
static int orders_all(struct tight *t, uint32_t at)
{
    int result = 0;
    if (at + 1 >= t->count)
        return order_try(t);
    for (uint32_t i = at; i < t->count && result == 0; i++) {
        uint32_t first = t->order[at];
        t->order[at] = t->order[i];
        t->order[i] = first;
        result = orders_all(t, at + 1);
        t->order[i] = t->order[at];
        t->order[at] = first;
    }
    return result;
}

/* Falling memory with device k moved to the front or the back. */
static int order_moved(struct tight *t, uint32_t k, bool back)
{
    uint32_t at = back ? 0 : 1;
    for (uint32_t i = 0; i < t->count; i++) {
        if (i != k)
            t->order[at++] = t->devices[i];
    }
    t->order[back ? t->count - 1 : 0] = t->devices[k];
    return order_try(t);
}

static int orders_some(struct tight *t)
{
    for (uint32_t k = 0; k < ALL_ORDERS; k++) {
        if (order_moved(t, k, false) < 0 || order_moved(t, k, true) < 0)
            return -1;
    }
    if (order_moved(t, t->count - 1, false) < 0)
        return -1;
    for (uint32_t i = 0; i < t->count; i++)
        t->order[i] = t->devices[t->count - 1 - i];
    return order_try(t);
}

/* The usable devices, largest first (of equal ones the first), no more than there may be stages. */
static void devices_sort(struct tight *t)
{
    const struct problem *p = t->p;
    uint32_t most = p->workload->stages && p->workload->stages < (uint32_t)t->blocks ? p->workload->stages
                                                                                     : (uint32_t)t->blocks;
    for (uint32_t d = 0; d < p->device_count; d++) {
        uint64_t memory = p->cluster->devices[d].memory_limit_bytes;
        if (!p->usable[d])
            continue;
        uint32_t at = t->count;
        while (at > 0 && p->cluster->devices[t->devices[at - 1]].memory_limit_bytes < memory)
            at--;
        if (at >= most)
            continue;
        t->count += t->count < most;
        for (uint32_t i = t->count - 1; i > at; i--)
            t->devices[i] = t->devices[i - 1];
        t->devices[at] = d;
    }
    for (uint32_t i = 0; i < t->count; i++)
        t->order[i] = t->devices[i];
}

/* One device that would do with more memory is worth more than the least sum: it says where to put it. */
static void lacks_note(const struct tight *t)
{
    uint64_t has = 0;
    for (uint32_t i = 0; i < t->count; i++)
        has += t->p->cluster->devices[t->devices[i]].memory_limit_bytes;
    if (t->found.lacks < UINT64_MAX)
        choice_list_short(t->list, t->found.device, t->found.needs, t->found.needs - t->found.lacks);
    else if (t->least_all < UINT64_MAX)
        choice_list_lacks(t->list, has, t->least_all);
}

int tight_pipeline(const struct problem *problem, bool add, struct choice_list *list, struct err *err)
{
    size_t cells = (size_t)problem->block_count + 1;
    struct tight t = {.p = problem,
                      .list = list,
                      .err = err,
                      .blocks = problem->block_count,
                      .rows = problem->workload->micro_batch_rows ? problem->workload->micro_batch_rows : 1,
                      .needs = calloc(cells * cells, sizeof(*t.needs)),
                      .covers = calloc(cells, sizeof(*t.covers)),
                      .next = calloc(cells, sizeof(*t.next)),
                      .from = calloc(cells * cells, sizeof(*t.from)),
                      .devices = calloc(cells, sizeof(*t.devices)),
                      .order = calloc(cells, sizeof(*t.order)),
                      .stages = calloc(cells, sizeof(*t.stages)),
                      .members = calloc(cells, sizeof(*t.members)),
                      .add = add,
                      .found = {.lacks = UINT64_MAX},
                      .least_all = UINT64_MAX};
    int result = 0;
    if (!t.needs || !t.covers || !t.next || !t.from || !t.devices || !t.order || !t.stages || !t.members) {
        result = err_set(err, ERR_NOMEM, "planner: out of memory");
    } else {
        devices_sort(&t);
        needs_fill(&t);
        if (t.count >= 2)
            result = t.count <= ALL_ORDERS ? orders_all(&t, 0) : orders_some(&t);
        if (result == 0 && !t.fits)
            lacks_note(&t);
    }
    free(t.needs);
    free(t.covers);
    free(t.next);
    free(t.from);
    free(t.devices);
    free(t.order);
    free(t.stages);
    free(t.members);
    return result;
}
