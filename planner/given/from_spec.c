#include "planner/given/from_spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/shape/blocks.h"

#define PROMPT_TOKENS_ASSUMED 256u /* tokens of a prompt that was not rendered yet. Rule of thumb */
#define ROUTED_MOST 1e18           /* most tokens of one expert that a document may state */

static int names_copy(const struct spec_names *names, uint32_t *count, char ***out, struct err *err)
{
    *count = 0;
    *out = calloc((size_t)names->count + 1, sizeof(**out));
    for (uint32_t i = 0; *out && i < names->count; i++) {
        (*out)[i] = strdup(names->names[i]);
        if (!(*out)[i])
            return err_set(err, ERR_NOMEM, "workload: out of memory");
        (*count)++;
    }
    return *out ? 0 : err_set(err, ERR_NOMEM, "workload: out of memory");
}

static int rows_copy(const struct row_size *sizes, uint32_t count, uint32_t longest,
                     struct workload_row **out, struct err *err)
{
    *out = calloc((size_t)count + 1, sizeof(**out));
    if (!*out)
        return err_set(err, ERR_NOMEM, "workload: out of memory for %u rows", count);
    for (uint32_t i = 0; sizes && i < count; i++) {
        uint32_t tokens = sizes[i].tokens < longest ? sizes[i].tokens : longest;
        (*out)[i] = (struct workload_row){
            .tokens = tokens, .labelled = sizes[i].labelled < tokens ? sizes[i].labelled : tokens};
    }
    return 0;
}

static int method_copy(const struct job_spec *spec, struct workload *w, struct err *err)
{
    static const enum workload_base bases[] = {[SPEC_BASE_FP32] = BASE_FP32,
                                               [SPEC_BASE_BF16] = BASE_BF16,
                                               [SPEC_BASE_FP16] = BASE_FP16,
                                               [SPEC_BASE_NF4] = BASE_NF4,
                                               [SPEC_BASE_PACKED] = BASE_PACKED};
    w->method = spec->method.kind == SPEC_METHOD_FULL ? METHOD_FULL : METHOD_LORA;
    w->lora_rank = spec->method.rank;
    w->lora_dropout = spec->method.dropout;
    w->base = bases[spec->method.base];
    model_packed_bytes(w->config, &w->packed_matrix_bytes, &w->packed_table_bytes);
    w->single_quant = !spec->method.double_quant;
    w->moments_on_host = spec->placement.moments == SPEC_MOMENTS_HOST;
    w->moments8 = spec->method.optimizer == SPEC_OPTIMIZER_ADAMW8BIT;
    for (uint32_t i = 0; i < spec->method.modules_to_save.count; i++) {
        bool embedding = strcmp(spec->method.modules_to_save.names[i], "embed_tokens") == 0;
        w->saves_embedding |= embedding;
        w->saves_head |= !embedding;
    }
    w->recompute = spec->train.recompute == SPEC_RECOMPUTE_YES  ? RECOMPUTE_YES
                   : spec->train.recompute == SPEC_RECOMPUTE_NO ? RECOMPUTE_NO
                                                                : RECOMPUTE_AUTO;
    if (spec_lora_sites(&spec->method, w->config, &w->lora, err) < 0)
        return -1;
    for (uint32_t bit = 1, mask = lora_sites_targets(&w->lora); bit <= LORA_EXPERT_DOWN; bit <<= 1)
        if (mask & bit)
            snprintf(w->targets[w->target_count++], sizeof(w->targets[0]), "%s", lora_target_name(bit));
    return 0;
}

/* Sets what is computed in: as the job asks, else as its last run did, else as the plan does that it repeats;
 * otherwise plan_search chooses. */
static int compute_copy(const struct job_spec *spec, const char *before, struct workload *w, struct err *err)
{
    static const enum workload_compute computes[] = {[SPEC_COMPUTE_FP32] = COMPUTE_FP32,
                                                     [SPEC_COMPUTE_BF16] = COMPUTE_BF16,
                                                     [SPEC_COMPUTE_FP16] = COMPUTE_FP16};
    const json_t *plan = spec->placement.plan, *inner = json_object_get(plan, "plan");
    const char *planned = json_string_value(json_object_get(inner ? inner : plan, "compute"));
    enum workload_compute compute = COMPUTE_FP32;
    w->compute_open = spec->train.compute == SPEC_COMPUTE_AUTO && !before && !plan;
    if (spec->train.compute != SPEC_COMPUTE_AUTO) {
        compute = computes[spec->train.compute];
    } else if ((before || planned) && workload_compute_read(before ? before : planned, &compute) < 0) {
        return err_set(err, ERR_INVALID, "%s: \"%s\" is none of fp32, bf16 and fp16",
                       before ? "inputs.compute" : "placement.plan: compute", before ? before : planned);
    }
    const bool open = w->compute_open;
    workload_compute_set(w, compute);
    w->compute_open = open;
    return 0;
}

/* Boundary tensors have the dtype that was asked for, else the compute dtype. */
static int boundary_copy(const struct job_spec *spec, struct workload *w, struct err *err)
{
    static const enum plan_dtype asked[] = {
        [SPEC_BOUNDARY_FP32] = PLAN_F32, [SPEC_BOUNDARY_BF16] = PLAN_BF16, [SPEC_BOUNDARY_FP16] = PLAN_F16};
    const enum spec_boundary boundary = spec->placement.boundary;
    w->boundary_open = boundary == SPEC_BOUNDARY_AUTO;
    if (w->boundary_open)
        return 0;
    w->boundary = asked[boundary];
    return w->boundary == PLAN_F32 || w->config->hidden % 2 == 0
               ? 0
               : err_set(err, ERR_UNSUPPORTED,
                         "placement.boundary: %s, of a model whose width, %u, is odd: only fp32",
                         spec_boundary_name(boundary), w->config->hidden);
}

/* Reads the tokens (or shares) that each expert of one layer received, in any unit, as shares of their sum.
 */
static int layer_routing(const json_t *list, size_t layer, uint32_t experts, double *share, struct err *err)
{
    double sum = 0;
    if (json_array_size(list) != experts)
        return err_set(err, ERR_INVALID, "expert_share[%zu]: not a list of %u numbers, one an expert", layer,
                       experts);
    for (uint32_t x = 0; x < experts; x++) {
        const json_t *value = json_array_get(list, x);
        share[x] = json_number_value(value);
        if (!json_is_number(value) || !(share[x] >= 0 && share[x] <= ROUTED_MOST))
            return err_set(err, ERR_INVALID, "expert_share[%zu][%u]: not a number of tokens or a share",
                           layer, x);
        sum += share[x];
    }
    if (!(sum > 0))
        return err_set(err, ERR_INVALID, "expert_share[%zu]: no expert got any token", layer);
    for (uint32_t x = 0; x < experts; x++)
        share[x] /= sum;
    return 0;
}

/* Reads all layers' routing. A layer whose entry is null (as a dense layer's may be) counts as evenly routed.
 */
static int routing_copy(const json_t *routing, struct workload *w, struct err *err)
{
    const struct model_config *config = w->config;
    uint32_t experts = config->experts;
    if (!routing || json_is_null(routing))
        return 0;
    if (experts == 0)
        return err_set(err, ERR_INVALID, "expert_share: the model has no experts");
    if (json_array_size(routing) != config->layers)
        return err_set(err, ERR_INVALID, "expert_share: not a list of %u layers", config->layers);
    w->routing = calloc((size_t)config->layers * experts, sizeof(*w->routing));
    if (!w->routing)
        return err_set(err, ERR_NOMEM, "workload: out of memory for the routing of %u layers",
                       config->layers);
    for (uint32_t layer = 0; layer < config->layers; layer++) {
        const json_t *list = json_array_get(routing, layer);
        double *share = w->routing + (size_t)layer * experts;
        for (uint32_t x = 0; x < experts; x++)
            share[x] = 1.0 / experts;
        if (!json_is_null(list) && layer_routing(list, layer, experts, share, err) < 0)
            return -1;
    }
    w->expert_share = w->routing;
    return 0;
}

int workload_from_spec(const struct job_spec *spec, const struct model_config *config,
                       const struct plan_rows *rows, struct workload *workload, struct err *err)
{
    struct workload w = {.config = config};
    w.sequence_tokens = spec->data.sequence_tokens;
    w.batch_rows = spec->train.batch_rows;
    double balance = spec->train.router_aux;
    w.router_loss =
        config->experts > 0 && (balance == SPEC_ROUTER_AUX_MODEL ? config->router_aux_coef : balance) != 0;
    w.seed = spec->train.seed;
    w.shuffle = spec->data.shuffle;
    w.steps = spec->train.steps;
    w.epochs = spec->train.epochs;
    w.place = (int)spec->placement.kind - 1;
    w.micro_batch_rows = spec->placement.micro_batch_rows;
    w.stages = spec->placement.stages;
    w.devices_least = spec->placement.count_least;
    w.devices_most = spec->placement.count_most;
    w.order = (uint32_t)spec->placement.order; /* both enumerations list the schedules in the same order */
    w.objective = (enum workload_objective)spec->placement.objective;
    if (spec->sample.prompt) {
        w.prompt_tokens = rows->prompt_tokens ? rows->prompt_tokens : PROMPT_TOKENS_ASSUMED;
        w.sample_tokens = w.prompt_tokens + spec->sample.tokens;
    }
    w.row_count = rows->train ? rows->train_count : 0;
    w.eval_row_count = rows->eval ? rows->eval_count : 0;
    if (spec_check_model(spec, config, err) < 0 || method_copy(spec, &w, err) < 0 ||
        boundary_copy(spec, &w, err) < 0 || compute_copy(spec, rows->compute, &w, err) < 0 ||
        names_copy(&spec->placement.devices, &w.device_count, &w.devices, err) < 0 ||
        names_copy(&spec->placement.exclude, &w.exclude_count, &w.exclude, err) < 0 ||
        rows_copy(rows->train, w.row_count, w.sequence_tokens, &w.rows, err) < 0 ||
        rows_copy(rows->eval, w.eval_row_count, w.sequence_tokens, &w.eval_rows, err) < 0 ||
        routing_copy(rows->expert_share, &w, err) < 0 || workload_check(&w, err) < 0) {
        workload_fini(&w);
        return -1;
    }
    *workload = w;
    return 0;
}
