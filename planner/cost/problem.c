/* Prepares a problem: real batches in the order that the workers use, and bounds that hold for every order.
 */
#include "planner/cost/problem.h"

#include <stdlib.h>
#include <string.h>

#include "model/job/order.h"
#include "planner/cost/taught.h"
#include "planner/cost/tensor_parts.h"
#include "planner/given/kernels.h"

/* Most pairs of a device and a micro-batch size whose mean costs are computed in advance. */
#define MEANS_MAX 4096u
/* Most nodes for which links are kept in a table, which then takes 16 MiB. */
#define LINK_NODES_MAX 1024u

static int problem_names_known(const struct cluster *cluster, char *const *names, uint32_t count,
                               const char *path, struct err *err)
{
    for (uint32_t i = 0; i < count; i++)
        if (cluster_device_find(cluster, names[i]) == UINT32_MAX)
            return err_set(err, ERR_INVALID, "%s[%u]: there is no device %s", path, i, names[i]);
    return 0;
}

static int usable_init(struct problem *p, struct err *err)
{
    const struct workload *w = p->workload;
    uint32_t left = 0;
    /* A device that is excluded may be absent, as from a file of another cluster: it is left out anyway. */
    if (problem_names_known(p->cluster, w->devices, w->device_count, "placement.devices", err) < 0)
        return -1;
    for (uint32_t d = 0; d < p->device_count; d++) {
        const char *name = p->cluster->devices[d].name;
        p->usable[d] = (w->device_count == 0 || workload_names(w->devices, w->device_count, name)) &&
                       !workload_names(w->exclude, w->exclude_count, name);
        left += p->usable[d];
    }
    return left ? 0
                : err_set(err, ERR_INVALID, "placement: no device is left to choose from (%u in the cluster)",
                          p->device_count);
}

static struct workload_row problem_row_at(const struct workload *w, uint32_t row)
{
    if (w->row_count)
        return w->rows[row];
    return (struct workload_row){.tokens = w->sequence_tokens, .labelled = w->sequence_tokens - 1};
}

static int problem_no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "planner: out of memory");
}

static int step_init(struct problem *p, struct problem_step *step, const struct order *order, uint64_t number,
                     uint32_t *numbers, struct err *err)
{
    const struct workload *w = p->workload;
    step->rows = w->row_count ? order_step_rows(order, number, numbers) : w->batch_rows;
    ARENA_ARRAY(&p->arena, step->sum, (size_t)step->rows + 1);
    if (!step->sum)
        return problem_no_memory(err);
    for (uint32_t i = 0; i < step->rows; i++) {
        struct workload_row row = problem_row_at(w, w->row_count ? numbers[i] : i);
        double tokens = row.tokens;
        step->sum[i + 1] = (struct cost_load){.rows = step->sum[i].rows + 1,
                                              .tokens = step->sum[i].tokens + tokens,
                                              .sum_sq = step->sum[i].sum_sq + tokens * tokens,
                                              .labelled = step->sum[i].labelled + row.labelled};
    }
    return 0;
}

/* Picks steps evenly over the job, the first and the last included. */
static int steps_init(struct problem *p, struct err *err)
{
    const struct workload *w = p->workload;
    struct order order = {.seed = w->seed,
                          .shuffle = w->shuffle,
                          .row_count = w->row_count ? w->row_count : 1,
                          .batch_rows = w->batch_rows,
                          .steps = w->steps || w->epochs ? w->steps : 1,
                          .epochs = w->epochs};
    if (order_check(&order, err) < 0)
        return -1;
    uint64_t total = w->row_count ? order_step_count(&order) : 1;
    p->step_count = total < WORKLOAD_SAMPLE_STEPS ? (uint32_t)total : WORKLOAD_SAMPLE_STEPS;
    p->step_count = p->step_count ? p->step_count : 1;
    ARENA_ARRAY(&p->arena, p->steps, p->step_count);
    uint32_t *numbers = arena_get(&p->arena, w->batch_rows, sizeof(*numbers));
    double rows = 0;
    if (p->arena.failed)
        return problem_no_memory(err);
    for (uint32_t s = 0; s < p->step_count; s++) {
        uint64_t number = p->step_count > 1 ? s * (total - 1) / (p->step_count - 1) : 0;
        if (step_init(p, &p->steps[s], &order, number, numbers, err) < 0)
            return -1;
        const struct cost_load *all = &p->steps[s].sum[p->steps[s].rows];
        rows += all->rows;
        p->mean_step.rows += all->rows / p->step_count;
        p->mean_step.tokens += all->tokens / p->step_count;
        p->mean_step.sum_sq += all->sum_sq / p->step_count;
        p->mean_step.labelled += all->labelled / p->step_count;
    }
    double scale = rows > 0 ? p->step_count / rows : 0;
    p->mean_row = (struct cost_load){.rows = 1,
                                     .tokens = p->mean_step.tokens * scale,
                                     .sum_sq = p->mean_step.sum_sq * scale,
                                     .labelled = p->mean_step.labelled * scale};
    return 0;
}

static int larger_first(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return a > b ? -1 : a < b;
}

/* Returns the largest sum over k consecutive rows of a batch in a job of steps, whose batches may begin in
 * one pass and end in another. sum[i] is the sum of the i largest of the training rows. Of the passes that k
 * rows touch, those between the first and the last are whole. Two shuffled passes can have the same rows next
 * to their common end, so the sum is largest if the first and the last pass give equally many. */
static uint64_t passes_top(const struct workload *w, const uint64_t *sum, uint32_t rows, uint32_t k)
{
    const uint64_t whole = k / rows;
    const uint32_t rest = k % rows, both = rest + rows;
    if (!w->shuffle || rows % w->batch_rows == 0) /* file order over and over, or no batch spans two passes */
        return whole * sum[rows] + sum[rest];
    uint64_t most = whole * sum[rows] + sum[rest / 2] + sum[rest - rest / 2];
    uint64_t apart = whole ? (whole - 1) * sum[rows] + sum[both / 2] + sum[both - both / 2] : 0;
    return most > apart ? most : apart;
}

/* Sorts the values of the first rows, the training rows, and adds them up, then those of all `count` rows. */
static int tops_fill(const struct workload *w, uint32_t *values, uint32_t train, uint32_t count,
                     uint64_t *tops)
{
    uint64_t *sum = calloc((size_t)count + 1, sizeof(*sum));
    if (!sum)
        return -1;
    qsort(values, train, sizeof(*values), larger_first);
    for (uint32_t i = 0; i < train; i++)
        sum[i + 1] = sum[i] + values[i];
    for (uint32_t k = 1; k <= w->batch_rows && !w->epochs; k++)
        tops[k] = passes_top(w, sum, train, k);
    qsort(values, count, sizeof(*values), larger_first);
    for (uint32_t i = 0; i < count; i++)
        sum[i + 1] = sum[i] + values[i];
    for (uint32_t k = 1; k <= w->batch_rows; k++) {
        uint64_t once = sum[k < count ? k : count];
        tops[k] = tops[k] > once ? tops[k] : once;
    }
    free(sum);
    return 0;
}

static int tops_init(struct problem *p, struct err *err)
{
    const struct workload *w = p->workload;
    uint32_t train = w->row_count ? w->row_count : w->batch_rows, count = train + w->eval_row_count;
    uint32_t *tokens = calloc(count, sizeof(*tokens)), *labelled = calloc(count, sizeof(*labelled));
    ARENA_ARRAY(&p->arena, p->top_tokens, (size_t)w->batch_rows + 1);
    ARENA_ARRAY(&p->arena, p->top_labelled, (size_t)w->batch_rows + 1);
    bool made = tokens && labelled && p->top_tokens && p->top_labelled;
    for (uint32_t i = 0; i < count && made; i++) {
        struct workload_row row = i < train ? problem_row_at(w, i) : w->eval_rows[i - train];
        tokens[i] = row.tokens;
        labelled[i] = row.labelled;
    }
    made = made && tops_fill(w, tokens, train, count, p->top_tokens) == 0 &&
           tops_fill(w, labelled, train, count, p->top_labelled) == 0;
    if (made) {
        p->longest = tokens[0];
        p->sequence_bound = w->sample_tokens > tokens[0] ? w->sample_tokens : tokens[0];
    }
    free(tokens);
    free(labelled);
    return made ? 0 : problem_no_memory(err);
}

/* Returns the layer's method, converted as the engine converts the same specification. */
static struct layer_method method_of(const struct workload *w, const struct block_options *options)
{
    static const enum layer_base bases[] = {[BASE_FP32] = LAYER_BASE_F32,
                                            [BASE_BF16] = LAYER_BASE_BF16,
                                            [BASE_FP16] = LAYER_BASE_F16,
                                            [BASE_NF4] = LAYER_BASE_NF4,
                                            [BASE_PACKED] = LAYER_BASE_PACKED};
    bool full = w->method == METHOD_FULL;
    struct layer_method method =
        !full && options->sites
            ? footprint_sites(options->sites, w->lora_dropout > 0)
            : footprint_lora(full ? 0 : w->lora_rank, options->lora_targets, w->lora_dropout > 0);
    method.full = full;
    method.base = full ? LAYER_BASE_F32 : bases[w->base];
    method.double_quant = !w->single_quant;
    method.moments8 = w->moments8;
    method.train_embedding = !full && w->saves_embedding;
    method.train_head = !full && w->saves_head;
    method.sixteen = w->compute != COMPUTE_FP32;
    return method;
}

double problem_boundary_width(const struct problem *p, int32_t begin, int32_t end, bool gradient)
{
    return (double)p->blocks.boundary_per_token * plan_dtype_bytes(p->workload->boundary) +
           4.0 * footprint_crossing_most(&p->footprint, (uint32_t)begin, (uint32_t)end, gradient);
}

static int blocks_init(struct problem *p, struct err *err)
{
    const struct workload *w = p->workload;
    struct block_options options = {.lora = w->method == METHOD_LORA,
                                    .lora_rank = w->lora_rank,
                                    .sites = w->lora.ways > 0 ? &w->lora : NULL,
                                    .saves_embedding = w->saves_embedding,
                                    .saves_head = w->saves_head};
    for (uint32_t i = 0; i < w->target_count && options.lora; i++) {
        uint32_t target = lora_target_from_name(w->targets[i]);
        if (target == 0)
            return err_set(err, ERR_INVALID, "method.targets[%u]: %s is no projection of this model", i,
                           w->targets[i]);
        options.lora_targets |= target;
    }
    if (model_blocks(w->config, &options, &p->blocks, err) < 0)
        return -1;
    p->block_count = (int32_t)p->blocks.count;
    p->bytes_per_row = w->router_loss ? 8.0 * w->config->experts : 0;
    ARENA_ARRAY(&p->arena, p->prefix, (size_t)p->block_count + 1);
    ARENA_ARRAY(&p->arena, p->params, (size_t)p->block_count + 1);
    if (p->arena.failed)
        return problem_no_memory(err);
    for (int32_t b = 0; b < p->block_count; b++) {
        memcpy(p->prefix[b + 1], p->prefix[b], sizeof(p->prefix[b]));
        const struct block *block = &p->blocks.blocks[b];
        p->prefix[b + 1][cost_class_of(block)]++;
        p->params[b + 1] = (struct problem_params){.all = p->params[b].all + block->params,
                                                   .matrices = p->params[b].matrices + block->matrix_params,
                                                   .adapters = p->params[b].adapters + block->lora_params};
    }
    struct layer_method method = method_of(w, &options);
    if (footprint_model_init(w->config, &method, &p->footprint, err) < 0)
        return -1;
    p->beside = 4ull * footprint_crossing_most(&p->footprint, 1, w->config->layers, false);
    p->bytes_per_token = problem_boundary_width(p, 1, (int32_t)w->config->layers, false);
    for (int32_t b = 0; b < p->block_count; b++) {
        const struct layer_tensors *tensors = problem_tensors(p, b);
        const struct problem_params *before = &p->params[b];
        struct problem_params *after = &p->params[b + 1];
        after->frozen_bytes = before->frozen_bytes + tensors->frozen_bytes;
        after->trained_bytes = before->trained_bytes + tensors->trained_bytes;
        after->moment_bytes = before->moment_bytes + tensors->moment_bytes;
    }
    return 0;
}

static int links_init(struct problem *p, struct err *err)
{
    const struct cluster *cluster = p->cluster;
    size_t nodes = cluster->node_count;
    if (nodes > LINK_NODES_MAX)
        return 0;
    /* for each node, 1 + the index of one of its devices; 0: it has none */
    uint32_t *device = arena_get(&p->arena, nodes, sizeof(*device));
    ARENA_ARRAY(&p->arena, p->links, nodes * nodes);
    if (p->arena.failed)
        return problem_no_memory(err);
    for (uint32_t d = 0; d < p->device_count; d++)
        device[cluster->devices[d].node] = d + 1;
    for (size_t i = 0; i < nodes * nodes; i++) {
        if (!device[i / nodes] || !device[i % nodes])
            continue;
        struct cluster_link link = cluster_link(cluster, device[i / nodes] - 1, device[i % nodes] - 1);
        p->links[i] = (struct problem_link){link.latency_s, link.bytes_per_s};
    }
    return 0;
}

/* --- mean micro-batches --- */

uint32_t micro_count(const struct problem *problem, uint32_t micro_batch_rows)
{
    return order_micro_batch_count(problem->workload->batch_rows, micro_batch_rows);
}

void micro_cost_load(struct micro_cost *cost, const struct problem *problem, uint32_t device,
                     const struct cost_load *load)
{
    for (int cls = 0; cls < COST_CLASSES; cls++)
        for (int way = 0; way < COST_WAYS; way++)
            cost->seconds[cls][way] =
                cost_class_seconds(&problem->costs[device], (enum cost_class)cls, (enum cost_way)way, load);
}

struct cost_load micro_load_mean(const struct problem *problem, uint32_t micro_batches)
{
    return (struct cost_load){.rows = problem->mean_step.rows / micro_batches,
                              .tokens = problem->mean_step.tokens / micro_batches,
                              .sum_sq = problem->mean_step.sum_sq / micro_batches,
                              .labelled = problem->mean_step.labelled / micro_batches};
}

static void mean_cost(struct micro_cost *cost, const struct problem *problem, uint32_t device, uint32_t count)
{
    struct cost_load load = micro_load_mean(problem, count);
    micro_cost_load(cost, problem, device, &load);
}

void micro_cost_init(struct micro_cost *cost, const struct problem *problem, uint32_t device,
                     uint32_t micro_batch_rows)
{
    if (problem->means && micro_batch_rows <= problem->workload->batch_rows)
        *cost = problem->means[(size_t)problem->mean_of[micro_batch_rows] * problem->device_count + device];
    else
        mean_cost(cost, problem, device, micro_count(problem, micro_batch_rows));
}

static int means_init(struct problem *p, struct err *err)
{
    uint32_t batch = p->workload->batch_rows, kinds = 0, last = 0;
    for (uint32_t rows = 1; rows <= batch && (uint64_t)kinds * p->device_count <= MEANS_MAX; rows++) {
        kinds += micro_count(p, rows) != last;
        last = micro_count(p, rows);
    }
    if ((uint64_t)kinds * p->device_count > MEANS_MAX)
        return 0;
    ARENA_ARRAY(&p->arena, p->mean_of, (size_t)batch + 1);
    ARENA_ARRAY(&p->arena, p->means, (size_t)kinds * p->device_count);
    if (p->arena.failed)
        return problem_no_memory(err);
    kinds = last = 0;
    for (uint32_t rows = 1; rows <= batch; rows++) {
        uint32_t count = micro_count(p, rows);
        for (uint32_t d = 0; d < p->device_count && count != last; d++)
            mean_cost(&p->means[(size_t)kinds * p->device_count + d], p, d, count);
        kinds += count != last;
        last = count;
        p->mean_of[rows] = kinds - 1;
    }
    return 0;
}

/* Makes the cost tables of the devices that are asked for. A device whose costs are unknown is not usable. */
static int costs_init(struct problem *p, struct err *err)
{
    uint32_t first = UINT32_MAX;
    for (uint32_t d = 0; d < p->device_count; d++) {
        const struct planner_device *device = &p->cluster->devices[d];
        struct err why = {0};
        if (!p->usable[d])
            continue;
        p->planned_only[d] = device->like && !device->profile.present &&
                             strcmp(device->kind, device->like->kind) == 0 &&
                             catalogue_runs(device->like) == RUNS_PLANNED;
        if (p->cluster->runnable_only && p->planned_only[d])
            err_set(&why, ERR_INVALID, "no worker of this release runs on %s (%s): planned only",
                    device->like->name, device->like->arch);
        else if (device->lacks)
            err_set(&why, ERR_INVALID, "%s", device->lacks);
        else if (cost_device_init(&p->costs[d], device, p->workload, &p->blocks, &why) == 0)
            continue;
        p->lacks[d] = arena_get(&p->arena, strlen(why.text) + 1, 1);
        if (why.code == ERR_NOMEM || !p->lacks[d])
            return problem_no_memory(err);
        memcpy(p->lacks[d], why.text, strlen(why.text));
        p->usable[d] = false;
        first = first == UINT32_MAX ? d : first;
    }
    return first == UINT32_MAX || problem_usable_count(p) > 0
               ? 0
               : err_set(err, ERR_NOFIT, "no device that may be used can be %s: %s: %s",
                         p->planned_only[first] ? "run on" : "priced", p->cluster->devices[first].name,
                         p->lacks[first]);
}

const char *problem_why_unusable(const struct problem *problem, uint32_t device)
{
    const struct workload *w = problem->workload;
    if (workload_names(w->exclude, w->exclude_count, problem->cluster->devices[device].name))
        return "excluded";
    return problem->lacks[device] ? problem->lacks[device] : "not asked for";
}

int problem_init(struct problem *problem, const struct workload *workload, const struct cluster *cluster,
                 struct err *err)
{
    *problem =
        (struct problem){.workload = workload, .cluster = cluster, .device_count = cluster->device_count};
    if (workload_check(workload, err) < 0)
        return -1;
    if (cluster->device_count == 0)
        return err_set(err, ERR_INVALID, "cluster: there is no device");
    ARENA_ARRAY(&problem->arena, problem->costs, cluster->device_count);
    ARENA_ARRAY(&problem->arena, problem->usable, cluster->device_count);
    ARENA_ARRAY(&problem->arena, problem->lacks, cluster->device_count);
    ARENA_ARRAY(&problem->arena, problem->planned_only, cluster->device_count);
    int result = problem->arena.failed ? problem_no_memory(err) : 0;
    if (result == 0 &&
        (blocks_init(problem, err) < 0 || usable_init(problem, err) < 0 || steps_init(problem, err) < 0 ||
         tops_init(problem, err) < 0 || costs_init(problem, err) < 0 || means_init(problem, err) < 0 ||
         links_init(problem, err) < 0 || tensor_parts_init(problem, err) < 0 ||
         taught_init(problem, err) < 0))
        result = -1;
    if (result < 0)
        problem_fini(problem);
    return result;
}

void problem_fini(struct problem *problem)
{
    for (uint32_t d = 0; problem->costs && d < problem->device_count; d++)
        cost_device_fini(&problem->costs[d]);
    block_list_fini(&problem->blocks);
    arena_fini(&problem->arena);
    free(problem->part_least);
    free(problem->part_heads);
    free(problem->part_columns);
    *problem = (struct problem){0};
}

struct cost_load problem_mean_rows(const struct problem *problem, double rows)
{
    const struct cost_load *row = &problem->mean_row;
    return (struct cost_load){row->rows * rows, row->tokens * rows, row->sum_sq * rows, row->labelled * rows};
}

struct cost_load problem_load(const struct problem *problem, uint32_t step, uint32_t begin, uint32_t end)
{
    const struct problem_step *s = &problem->steps[step];
    const struct cost_load *a = &s->sum[begin < s->rows ? begin : s->rows],
                           *b = &s->sum[end < s->rows ? end : s->rows];
    return (struct cost_load){.rows = b->rows - a->rows,
                              .tokens = b->tokens - a->tokens,
                              .sum_sq = b->sum_sq - a->sum_sq,
                              .labelled = b->labelled - a->labelled};
}

double problem_seconds(const struct problem *problem, uint32_t device, int32_t begin, int32_t end,
                       enum cost_way way, const struct cost_load *load)
{
    const struct cost_device *cost = &problem->costs[device];
    double seconds = 0;
    for (int cls = 0; cls < COST_CLASSES; cls++) {
        uint32_t count = problem->prefix[end][cls] - problem->prefix[begin][cls];
        if (count)
            seconds += count * cost_class_seconds(cost, (enum cost_class)cls, way, load);
    }
    return seconds;
}

/* Rate at which optimiser moments kept on the host are copied to the device and back in every step. Rule of
 * thumb: half the rate of 16 lanes of PCIe 3.0, which ordinary memory reaches, too, where page-locked memory
 * is refused; not measured yet. */
#define HOST_BYTES_PER_S 8e9

double problem_step_seconds(const struct problem *problem, uint32_t device, int32_t begin, int32_t end)
{
    const struct cost_device *cost = &problem->costs[device];
    const struct workload *w = problem->workload;
    const struct problem_params *first = &problem->params[begin], *last = &problem->params[end];
    double seconds = 0;
    for (int cls = 0; cls < COST_CLASSES; cls++)
        seconds += (problem->prefix[end][cls] - problem->prefix[begin][cls]) * cost->step_s[cls];
    if (!w->moments_on_host)
        return seconds;
    uint64_t trained = w->method == METHOD_FULL ? last->all - first->all : last->adapters - first->adapters;
    return seconds + 2 * workload_moment_bytes(w) * (double)trained / HOST_BYTES_PER_S;
}

static uint32_t problem_bound(uint64_t value)
{
    return value < UINT32_MAX ? (uint32_t)value : UINT32_MAX;
}

uint32_t problem_tokens_bound(const struct problem *problem, uint32_t micro_batch_rows)
{
    uint64_t tokens = problem->top_tokens[micro_batch_rows];
    return problem_bound(tokens > problem->workload->prompt_tokens ? tokens
                                                                   : problem->workload->prompt_tokens);
}

uint32_t problem_labelled_bound(const struct problem *problem, uint32_t micro_batch_rows)
{
    uint64_t labelled = problem->top_labelled[micro_batch_rows];
    return problem_bound(labelled ? labelled : 1);
}
