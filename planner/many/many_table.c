/* Seconds and bytes of stages at one micro-batch size, as tables: pricing a group is then a few additions. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/hybrid/group_state.h"
#include "planner/many/many.h"

#define LINK_NODES_MAX 512u
#define KINDS_MOST 64u       /* of units that are told apart by looking at all of them */
#define ROUNDED_BYTES 8192.0 /* of a stage, by which tables may be off: what is emitted is summed anew */

/* Layers differ only in mixtures that are sparse in places: a mean one stands for all. */
static void unit_init(struct many_unit *unit, const struct problem *p, uint32_t device, uint32_t rows)
{
    int32_t last = p->block_count - 1;
    struct micro_cost cost;
    micro_cost_init(&cost, p, device, rows);
    *unit = (struct many_unit){.device = device,
                               .node = p->cluster->devices[device].node,
                               .memory = (double)p->cluster->devices[device].memory_limit_bytes};
    for (int way = 0; way < MANY_WAYS; way++) {
        unit->layer_s[way] =
            (micro_forward(p, &cost, 1, last) + micro_backward(p, &cost, 1, last, way)) / (last - 1);
        unit->extra_s[MANY_FIRST][way] = micro_forward(p, &cost, 0, 1) + micro_backward(p, &cost, 0, 1, way);
        unit->extra_s[MANY_LAST][way] =
            micro_forward(p, &cost, last, last + 1) + micro_backward(p, &cost, last, last + 1, way);
    }
}

static bool units_alike(const struct many_unit *a, const struct many_unit *b)
{
    return a->memory == b->memory && memcmp(a->layer_s, b->layer_s, sizeof(a->layer_s)) == 0 &&
           memcmp(a->extra_s, b->extra_s, sizeof(a->extra_s)) == 0;
}

/* Equal numbers for equal units: that of the first of them. Only among so many kinds: unlike ones beyond are
 * each of their own. */
static void kinds_fill(struct many *m)
{
    uint32_t first[KINDS_MOST], kinds = 0;
    for (uint32_t u = 0; u < m->count; u++) {
        uint32_t k = 0;
        while (k < kinds && !units_alike(&m->units[first[k]], &m->units[u]))
            k++;
        m->units[u].kind = k < kinds ? first[k] : u;
        if (k == kinds && kinds < KINDS_MOST)
            first[kinds++] = u;
    }
}

static int32_t role_begin(const struct many *m, enum many_role role, int32_t n)
{
    return role == MANY_FIRST ? 0 : role == MANY_LAST ? 1 + m->layers - n : 1;
}

static int32_t role_end(const struct many *m, enum many_role role, int32_t n)
{
    return role == MANY_LAST ? m->p->block_count : 1 + n;
}

/* Bytes of a stage of n layers. */
static void bytes_of(const struct many *m, enum many_role role, int way, int32_t n, double *fixed,
                     double *each)
{
    struct memory_need need;
    struct memory_stage stage = {.block_begin = role_begin(m, role, n),
                                 .block_end = role_end(m, role, n),
                                 .window = 1,
                                 .micro_batch_rows = m->rows,
                                 .recompute = way,
                                 .boundary_buffers = MANY_BOUNDARIES * (role == MANY_INNER ? 2 : 1),
                                 .state_share = 1,
                                 .tensor_share = 1};
    memory_stage_need(m->p, &stage, &need);
    *each = (double)need.saved_bytes;
    *fixed = (double)need.total - *each;
}

/* Layers that are all alike take as much each but for rounding: a line from the first to the last of them. */
static bool bytes_straight(const struct many *m, enum many_role role, int way, double *fixed, double *each)
{
    double last_fixed, last_each;
    bytes_of(m, role, way, m->layers, &last_fixed, &last_each);
    double step_fixed = (last_fixed - fixed[1]) / (m->layers - 1),
           step_each = (last_each - each[1]) / (m->layers - 1);
    if (fabs(fixed[1] + step_fixed - fixed[2]) > ROUNDED_BYTES ||
        fabs(each[1] + step_each - each[2]) > ROUNDED_BYTES)
        return false;
    for (int32_t n = 3; n <= m->layers; n++) {
        fixed[n] = fixed[1] + (n - 1) * step_fixed;
        each[n] = each[1] + (n - 1) * step_each;
    }
    return true;
}

static void bytes_fill(struct many *m)
{
    bool mixed = m->p->prefix[m->p->block_count][COST_LAYER_SPARSE] > 0;
    for (int role = 0; role < MANY_ROLES; role++) {
        for (int way = 0; way < MANY_WAYS; way++) {
            size_t at = ((size_t)role * MANY_WAYS + (size_t)way) * ((size_t)m->layers + 1);
            double *fixed = &m->fixed[at], *each = &m->each[at];
            int32_t n = 0;
            for (; n <= m->layers && n < 3; n++)
                bytes_of(m, (enum many_role)role, way, n, &fixed[n], &each[n]);
            if (n > m->layers || (!mixed && bytes_straight(m, (enum many_role)role, way, fixed, each)))
                continue;
            for (; n <= m->layers; n++)
                bytes_of(m, (enum many_role)role, way, n, &fixed[n], &each[n]);
        }
    }
}

/* The same of stages whose state is in shards. */
static void shards_fill(struct many *m)
{
    for (int role = 0; role < MANY_ROLES; role++) {
        for (int32_t n = 0; n <= m->layers; n++) {
            int32_t begin = role_begin(m, (enum many_role)role, n),
                    end = role_end(m, (enum many_role)role, n);
            size_t at = many_state_at(m, (enum many_role)role, n);
            m->state[at] = group_state_bytes(m->p, begin, end);
            m->moved[at] = (double)memory_gathered_bytes(m->p, begin, end) +
                           (double)memory_gradient_bytes(m->p, begin, end);
            for (int way = 0; way < MANY_WAYS; way++) {
                struct memory_need need;
                struct group_stage stage = {.block_begin = begin,
                                            .block_end = end,
                                            .members = 2,
                                            .window = 1,
                                            .micro_batch_rows = m->rows,
                                            .recompute = way,
                                            .boundary_buffers =
                                                MANY_BOUNDARIES * (role == MANY_INNER ? 2 : 1)};
                group_need(m->p, &stage, 0, &need);
                m->shared[many_bytes_at(m, (enum many_role)role, way, n)] =
                    (double)need.total - (double)need.saved_bytes;
            }
        }
    }
}

double many_byte_far(const struct many *m, uint32_t a, uint32_t b)
{
    double latency, rate;
    bool emulated;
    cluster_link(m->p->cluster, m->units[a].device, m->units[b].device, &latency, &rate, &emulated);
    return 1 / rate;
}

double many_link_far(const struct many *m, uint32_t a, uint32_t b)
{
    double latency, rate;
    bool emulated;
    cluster_link(m->p->cluster, m->units[a].device, m->units[b].device, &latency, &rate, &emulated);
    return latency + m->boundary_bytes / rate;
}

/* Links are between nodes: one device of each stands for the others. */
static int links_fill(struct many *m, struct err *err)
{
    uint32_t nodes = m->nodes = m->p->cluster->node_count;
    if (nodes > LINK_NODES_MAX)
        return 0;
    uint32_t *sample = malloc(((size_t)nodes + 1) * sizeof(*sample));
    double *link_s = calloc((size_t)nodes * nodes + 1, sizeof(*link_s));
    m->byte_s = m->shards ? calloc((size_t)nodes * nodes + 1, sizeof(*m->byte_s)) : NULL;
    if (!sample || !link_s || (m->shards && !m->byte_s)) {
        free(sample);
        free(link_s);
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    }
    memset(sample, 0xff, nodes * sizeof(*sample));
    for (uint32_t u = m->count; u-- > 0;)
        sample[m->units[u].node] = u;
    for (uint32_t a = 0; a < nodes; a++) {
        for (uint32_t b = 0; b < nodes && sample[a] != UINT32_MAX; b++) {
            if (sample[b] == UINT32_MAX)
                continue;
            link_s[(size_t)a * nodes + b] = many_link_far(m, sample[a], sample[b]);
            if (m->shards)
                m->byte_s[(size_t)a * nodes + b] = many_byte_far(m, sample[a], sample[b]);
        }
    }
    m->link_s = link_s;
    free(sample);
    return 0;
}

int many_init(struct many *m, const struct problem *problem, uint32_t micro_batch_rows, struct err *err)
{
    uint32_t usable = problem_usable_count(problem);
    size_t cells;
    *m = (struct many){.p = problem,
                       .rows = micro_batch_rows,
                       .micro_batches = micro_count(problem, micro_batch_rows),
                       .layers = problem->block_count - 2,
                       .shards = problem->workload->method == METHOD_FULL};
    cells = (size_t)MANY_ROLES * MANY_WAYS * ((size_t)m->layers + 1);
    m->boundary_bytes = problem->bytes_per_token * problem->mean_step.tokens / m->micro_batches;
    for (int way = 0; way < MANY_WAYS; way++)
        m->allowed[way] = micro_recompute_allowed(problem, way);
    m->units = calloc((size_t)usable + 1, sizeof(*m->units));
    m->fixed = calloc(cells, sizeof(*m->fixed));
    m->each = calloc(cells, sizeof(*m->each));
    if (m->shards) {
        m->shared = calloc(cells, sizeof(*m->shared));
        m->state = calloc(cells, sizeof(*m->state));
        m->moved = calloc(cells, sizeof(*m->moved));
    }
    if (!m->units || !m->fixed || !m->each || (m->shards && (!m->shared || !m->state || !m->moved))) {
        many_fini(m);
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    }
    for (uint32_t d = 0; d < problem->device_count; d++) {
        if (problem->usable[d])
            unit_init(&m->units[m->count++], problem, d, micro_batch_rows);
    }
    for (uint32_t u = 0; u < m->count; u++)
        m->units[u].rate = 1 / m->units[u].layer_s[!m->allowed[0]];
    kinds_fill(m);
    bytes_fill(m);
    if (m->shards)
        shards_fill(m);
    if (links_fill(m, err) < 0) {
        many_fini(m);
        return -1;
    }
    return 0;
}

void many_fini(struct many *m)
{
    free(m->units);
    free(m->fixed);
    free(m->each);
    free(m->link_s);
    free(m->byte_s);
    free(m->shared);
    free(m->state);
    free(m->moved);
    *m = (struct many){0};
}
