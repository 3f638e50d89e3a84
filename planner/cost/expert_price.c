/* Costs of attention, of experts and of the exchange between them, from the parts' curves and the links. */
#include "planner/cost/expert_price.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct expert_price {
    const struct problem *problem; /* problem, plan and device are borrowed */
    const struct plan *plan;
    const uint32_t *device;
    struct expert_model model;
    struct arena arena; /* the arrays below */
    uint32_t ranks;
    /* [ranks] range of each micro-batch's rows whose attention the rank computes */
    uint32_t *row_begin, *row_end;
    int32_t *layer;              /* [block_count] index among the layers with experts, or −1 */
    struct expert_layer *layers; /* [ranks · sparse_count] each rank's part of each layer with experts */
    double *step_s;              /* [ranks] seconds of the optimiser step */
    struct expert_links links;
    double *tokens, *touched; /* [ranks] scratch memory */
};

int expert_model_init(struct expert_model *model, const struct problem *problem, struct err *err)
{
    *model = (struct expert_model){0};
    model->sparse = calloc((size_t)problem->block_count + 1, sizeof(*model->sparse));
    if (!model->sparse)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    for (int32_t b = 0; b < problem->block_count; b++) {
        const struct block *block = &problem->blocks.blocks[b];
        if (cost_class_of(block) != COST_LAYER_SPARSE)
            continue;
        model->sparse[model->sparse_count++] = b;
        for (uint32_t i = 0; i < block->part_count && model->sparse_count == 1; i++) {
            const struct block_part *part = &block->parts[i];
            if (part->kind == PART_ATTENTION)
                model->attention = part;
            else if (part->kind == PART_ROUTER)
                model->router = part;
            else if (part->kind == PART_EXPERT)
                model->expert = part;
        }
    }
    if (!model->attention || !model->router || !model->expert) {
        expert_model_fini(model);
        return err_set(err, ERR_UNSUPPORTED, "this model has no layer with experts");
    }
    model->experts = model->expert->copies;
    model->active = model->expert->active;
    model->hidden = problem->footprint.shape.hidden;
    model->routed_bytes = 4.0 * model->hidden + ROUTE_ENTRY_BYTES * model->active;
    model->attention_model = malloc(sizeof(*model->attention_model));
    model->experts_model = malloc(sizeof(*model->experts_model));
    struct layer_method method = problem->footprint.method;
    method.part.holds = HOLDS_NO_EXPERTS;
    int result = model->attention_model && model->experts_model
                     ? footprint_model_init(problem->workload->config, &method, model->attention_model, err)
                     : err_set(err, ERR_NOMEM, "planner: out of memory");
    if (result < 0)
        expert_model_fini(model);
    return result;
}

int expert_model_hold(struct expert_model *model, const struct problem *problem, uint32_t count,
                      struct err *err)
{
    struct layer_method method = problem->footprint.method;
    method.part = (struct layer_part){.holds = HOLDS_EXPERTS, .expert_end = count};
    if (count == model->held)
        return 0;
    model->held = count;
    return footprint_model_init(problem->workload->config, &method, model->experts_model, err);
}

void expert_model_fini(struct expert_model *model)
{
    free(model->sparse);
    free(model->attention_model);
    free(model->experts_model);
    *model = (struct expert_model){0};
}

double expert_touched(uint32_t experts, uint32_t active, double load)
{
    double none = 1;
    for (uint32_t j = 0; j < active && none > 0; j++) {
        double left = 1 - load * experts / (double)(experts - j);
        none *= left > 0 ? left : 0;
    }
    return 1 - none;
}

/* --- links --- */

int expert_links_init(struct expert_links *links, const struct cluster *cluster, const uint32_t *device,
                      uint32_t n, struct err *err)
{
    size_t pairs = (size_t)n * n;
    *links = (struct expert_links){.n = n};
    ARENA_ARRAY(&links->arena, links->latency_s, pairs);
    ARENA_ARRAY(&links->arena, links->byte_s, pairs);
    ARENA_ARRAY(&links->arena, links->wire_byte_s, pairs);
    ARENA_ARRAY(&links->arena, links->pair, pairs);
    ARENA_ARRAY(&links->arena, links->nic, n);
    ARENA_ARRAY(&links->arena, links->in_s, n);
    ARENA_ARRAY(&links->arena, links->node, n);
    if (links->arena.failed)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t i = 0; i < n; i++) {
        uint32_t node = cluster->devices[device[i]].node, k = 0;
        while (k < i && cluster->devices[device[k]].node != node)
            k++;
        links->node[i] = k < i ? links->node[k] : links->node_count++;
        links->nic[links->node[i]] = cluster->nodes[node].nic_bytes_per_s;
    }
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < n; j++) {
            if (i == j)
                continue;
            struct cluster_link link = cluster_link(cluster, device[i], device[j]);
            links->latency_s[i * n + j] = link.latency_s;
            links->byte_s[i * n + j] = 1 / link.bytes_per_s;
            links->wire_byte_s[links->node[i] * links->node_count + links->node[j]] = 1 / link.bytes_per_s;
        }
    }
    return 0;
}

void expert_links_fini(struct expert_links *links)
{
    arena_fini(&links->arena);
    *links = (struct expert_links){0};
}

/* Returns the seconds for which the busiest wire or network card is occupied. All traffic from one node to
 * another uses one wire; all traffic out of or into a node passes its network card. */
static double shared_seconds(const struct expert_links *links)
{
    uint32_t nodes = links->node_count;
    double worst = 0;
    for (uint32_t a = 0; a < nodes; a++) {
        double out = 0, in = 0;
        for (uint32_t b = 0; b < nodes; b++) {
            if (a == b)
                continue;
            out += links->pair[a * nodes + b];
            in += links->pair[b * nodes + a];
            worst = fmax(worst, links->pair[a * nodes + b] * links->wire_byte_s[a * nodes + b]);
        }
        if (links->nic[a] > 0)
            worst = fmax(worst, fmax(out, in) / links->nic[a]);
    }
    return worst;
}

bool expert_links_shared(const struct expert_links *links)
{
    uint32_t nodes = links->node_count;
    for (uint32_t a = 0; a < nodes; a++) {
        bool out = false, in = false;
        for (uint32_t b = 0; b < nodes; b++) {
            if (a == b)
                continue;
            out |= links->pair[a * nodes + b] > 0;
            in |= links->pair[b * nodes + a] > 0;
            if (links->pair[a * nodes + b] > 0 && links->pair[b * nodes + a] > 0)
                return true;
        }
        if (out && in && links->nic[a] > 0)
            return true;
    }
    return false;
}

double expert_exchange_seconds(struct expert_links *links, const double *tokens, const double *touched,
                               double token_bytes)
{
    uint32_t n = links->n, nodes = links->node_count;
    double worst = 0, latency = 0;
    memset(links->pair, 0, (size_t)nodes * nodes * sizeof(double));
    memset(links->in_s, 0, n * sizeof(double));
    for (uint32_t i = 0; i < n; i++) {
        double out = 0;
        for (uint32_t j = 0; j < n && tokens[i] > 0; j++) {
            double bytes = i == j ? 0 : tokens[i] * touched[j] * token_bytes;
            if (bytes <= 0)
                continue;
            out += bytes * links->byte_s[i * n + j];
            links->in_s[j] += bytes * links->byte_s[i * n + j];
            latency = fmax(latency, links->latency_s[i * n + j]);
            links->pair[links->node[i] * nodes + links->node[j]] += bytes;
        }
        worst = fmax(worst, out);
    }
    for (uint32_t j = 0; j < n; j++)
        worst = fmax(worst, links->in_s[j]);
    return latency + fmax(worst, shared_seconds(links));
}

/* A, D, E, C are the seconds of attention, dispatch, experts, combine; R are micro-batches, L layers. Λ =
 * max(R·max(A, D, E, C), A + D + E + C); T = (L − 1)·Λ + A + D + E + C + (R − 1)·max(A, D, E, C). */
double zebra_seconds(const struct zebra *z, uint32_t layers, uint32_t micro_batches)
{
    double once = z->attention_s + z->dispatch_s + z->experts_s + z->combine_s;
    double slowest = fmax(fmax(z->attention_s, z->experts_s), fmax(z->dispatch_s, z->combine_s));
    slowest = fmax(slowest, fmax(z->shared_s, z->wire_s));
    if (layers == 0 || micro_batches == 0)
        return 0;
    return (layers - 1) * fmax(micro_batches * slowest, once) + once + (micro_batches - 1) * slowest;
}

/* --- prices of a plan --- */

static void expert_price_rows_read(struct expert_price *price)
{
    for (uint32_t r = 0; r < price->ranks; r++) {
        const struct program *program = &price->plan->ranks[r].programs[PROGRAM_TRAIN];
        for (uint32_t i = 0; i < program->instr_count; i++) {
            const struct instr *x = &program->instrs[i];
            if (x->op == INSTR_ATTENTION) {
                price->row_begin[r] = x->row_begin;
                price->row_end[r] = x->row_end;
                break;
            }
        }
    }
}

static void expert_price_experts_read(struct expert_price *price)
{
    const double *share = price->problem->workload->expert_share;
    uint32_t sparse = price->model.sparse_count, experts = price->model.experts;
    for (uint32_t r = 0; r < price->ranks; r++) {
        const struct plan_rank *rank = &price->plan->ranks[r];
        for (uint32_t i = 0; i < rank->expert_count; i++) {
            const struct plan_experts *e = &rank->experts[i];
            int32_t layer =
                e->block >= 0 && e->block < price->problem->block_count ? price->layer[e->block] : -1;
            for (int32_t x = e->begin; layer >= 0 && x < e->end && x < (int32_t)experts; x++) {
                struct expert_layer *held = &price->layers[(size_t)r * sparse + (uint32_t)layer];
                held->count++;
                held->load += share ? share[(size_t)(e->block - 1) * experts + (uint32_t)x] : 1.0 / experts;
            }
        }
    }
}

/* Sums the optimiser's seconds per rank: a rank with attention steps all shared parameters, and every rank
 * steps its own experts. */
static void steps_read(struct expert_price *price)
{
    for (uint32_t r = 0; r < price->ranks; r++) {
        const struct cost_device *cost = &price->problem->costs[price->device[r]];
        double attention = cost->part_step_s[COST_PART_ATTENTION] + cost->part_step_s[COST_PART_ROUTER];
        for (int32_t b = 0; b < price->problem->block_count; b++) {
            int32_t layer = price->layer[b];
            if (price->row_end[r] > price->row_begin[r])
                price->step_s[r] +=
                    layer >= 0 ? attention : problem_step_seconds(price->problem, price->device[r], b, b + 1);
            if (layer >= 0)
                price->step_s[r] +=
                    price->layers[(size_t)r * price->model.sparse_count + (uint32_t)layer].count *
                    cost->part_step_s[COST_PART_EXPERT];
        }
    }
}

int expert_price_init(struct expert_price **out, const struct problem *problem, const struct plan *plan,
                      const uint32_t *device, struct err *err)
{
    struct expert_price *price = calloc(1, sizeof(*price));
    uint32_t ranks = plan->rank_count;
    *out = price;
    if (!price)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    price->problem = problem;
    price->plan = plan;
    price->device = device;
    price->ranks = ranks;
    if (expert_model_init(&price->model, problem, err) < 0 ||
        expert_links_init(&price->links, problem->cluster, device, ranks, err) < 0)
        goto fail;
    ARENA_ARRAY(&price->arena, price->row_begin, ranks);
    ARENA_ARRAY(&price->arena, price->row_end, ranks);
    ARENA_ARRAY(&price->arena, price->layer, (size_t)problem->block_count + 1);
    ARENA_ARRAY(&price->arena, price->layers, (size_t)ranks * price->model.sparse_count);
    ARENA_ARRAY(&price->arena, price->step_s, ranks);
    ARENA_ARRAY(&price->arena, price->tokens, ranks);
    ARENA_ARRAY(&price->arena, price->touched, ranks);
    if (price->arena.failed) {
        err_set(err, ERR_NOMEM, "planner: out of memory");
        goto fail;
    }
    memset(price->layer, 0xff, ((size_t)problem->block_count + 1) * sizeof(int32_t));
    for (uint32_t l = 0; l < price->model.sparse_count; l++)
        price->layer[price->model.sparse[l]] = (int32_t)l;
    expert_price_rows_read(price);
    expert_price_experts_read(price);
    steps_read(price);
    return 0;
fail:
    expert_price_fini(price);
    *out = NULL;
    return -1;
}

void expert_price_fini(struct expert_price *price)
{
    if (!price)
        return;
    expert_model_fini(&price->model);
    expert_links_fini(&price->links);
    arena_fini(&price->arena);
    free(price);
}

static double experts_seconds(const struct expert_price *price, uint32_t rank, const struct instr *x,
                              enum cost_way way, const struct cost_load *load)
{
    const struct cost_device *cost = &price->problem->costs[price->device[rank]];
    int32_t layer = price->layer[x->block_begin];
    if (layer < 0 || load->tokens <= 0)
        return 0;
    const struct expert_layer *held =
        &price->layers[(size_t)rank * price->model.sparse_count + (uint32_t)layer];
    double pairs = load->tokens * price->model.active * held->load;
    return held->count > 0 ? cost_experts_seconds(cost, way, held->count, pairs / held->count) : 0;
}

double expert_compute_seconds(const struct expert_price *price, uint32_t rank, const struct instr *x,
                              const struct cost_load *load)
{
    const struct cost_device *cost = &price->problem->costs[price->device[rank]];
    bool back = x->flags & FLAG_BACKWARD, again = back && (x->flags & FLAG_RECOMPUTE);
    double seconds = 0;
    if (x->op == INSTR_STEP)
        return price->step_s[rank];
    for (int way = 0; way < COST_WAYS; way++) {
        if (way == COST_RECOMPUTE ? !again : back != (way == COST_BACKWARD))
            continue;
        if (x->op == INSTR_EXPERTS)
            seconds += experts_seconds(price, rank, x, (enum cost_way)way, load);
        else if (x->op == INSTR_ATTENTION || x->op == INSTR_ROUTE)
            seconds += cost_part_seconds(cost, x->op == INSTR_ROUTE ? COST_PART_ROUTER : COST_PART_ATTENTION,
                                         (enum cost_way)way, load);
    }
    return seconds;
}

double expert_group_seconds(struct expert_price *price, const struct instr *x, uint32_t step)
{
    int32_t layer = x->block_begin < price->problem->block_count ? price->layer[x->block_begin] : -1;
    uint32_t begin, end;
    if (layer < 0 || x->micro_batch < 0)
        return 0;
    plan_micro_batch_rows(price->plan, (uint32_t)x->micro_batch, price->problem->steps[step].rows, &begin,
                          &end);
    if (begin == end)
        return 0;
    for (uint32_t r = 0; r < price->ranks; r++) {
        uint32_t first = begin + price->row_begin[r],
                 last = price->row_end[r] < end - begin ? begin + price->row_end[r] : end;
        bool rows = price->row_end[r] > price->row_begin[r] && first < last;
        price->tokens[r] = rows ? problem_load(price->problem, step, first, last).tokens : 0;
        price->touched[r] =
            expert_touched(price->model.experts, price->model.active,
                           price->layers[(size_t)r * price->model.sparse_count + (uint32_t)layer].load);
    }
    return expert_exchange_seconds(&price->links, price->tokens, price->touched, price->model.routed_bytes);
}
