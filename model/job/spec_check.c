/* Checks that the model has what a specification asks of it. */
#include <string.h>

#include "model/shape/arch.h"
#include "model/shape/blocks.h"
#include "model/shape/packing.h"
#include "model/job/spec.h"

struct lora_rules spec_lora_rules(const struct spec_method_part *method, const struct model_config *config)
{
    static char qkv[] = "qkv_proj", o[] = "o_proj", *joined[] = {qkv, o};
    static char q_a[] = "q_a_proj", q_b[] = "q_b_proj", q[] = "q_proj", kv_a[] = "kv_a_proj_with_mqa",
                kv_b[] = "kv_b_proj", *latent[] = {q_a, q_b, kv_a, kv_b, o, q};
    struct lora_rules rules = method->lora;
    const struct spec_names *names = &rules.targets.names;
    if (names->count > 0 && !names->given && config->packed_qkv)
        rules.targets.names = (struct spec_names){.count = 2, .names = joined};
    if (names->count > 0 && !names->given && config->kv_latent > 0)
        rules.targets.names = config->q_latent > 0 ? (struct spec_names){.count = 5, .names = latent}
                                                   : (struct spec_names){.count = 4, .names = latent + 2};
    return rules;
}

int spec_lora_sites(const struct spec_method_part *method, const struct model_config *config,
                    struct lora_sites *sites, struct err *err)
{
    const struct lora_defaults defaults = {.rank = method->rank,
                                           .alpha = method->alpha,
                                           .rslora = method->rslora,
                                           .where = "method",
                                           .targets = "targets",
                                           .strict = true};
    const struct lora_rules rules = spec_lora_rules(method, config);
    memset(sites, 0, sizeof(*sites));
    return method->kind == SPEC_METHOD_LORA ? lora_sites_of(&rules, &defaults, config, sites, err) : 0;
}

/* Refuses adapters on only one of the experts' gate and up: transformers 5 keeps gate and up of all experts
 * as one tensor. */
static int spec_check_experts(const struct lora_sites *sites, const struct model_config *config,
                              struct err *err)
{
    uint32_t layer = 0, asked = 0;
    while (layer < config->layers && !model_layer_is_sparse(config, layer))
        layer++;
    for (uint32_t i = 0; i < LORA_TARGET_COUNT && layer < config->layers; i++)
        asked |= lora_rank_at(sites, layer, i) > 0 ? 1u << i : 0;
    if (!(asked & LORA_GATE) != !(asked & LORA_UP) && !arch_of(config->arch)->fused)
        return err_set(
            err, ERR_INVALID,
            "method.targets: gate_proj and up_proj of experts are one tensor to those who load the "
            "adapter; name both or neither");
    return 0;
}

/* Refuses adapters on the FFN of a mixture's dense layers: peft 0.21 takes these matrices' names for those of
 * experts and ignores the adapters of layers without experts. */
static int check_dense_layers(const struct lora_sites *sites, const struct model_config *config,
                              struct err *err)
{
    for (uint32_t i = 0; i < config->layers * LORA_TARGET_COUNT; i++) {
        uint32_t layer = i / LORA_TARGET_COUNT, site = i % LORA_TARGET_COUNT;
        if (1u << site & (LORA_ATTENTION | LORA_TABLES) || model_layer_is_sparse(config, layer) ||
            lora_rank_at(sites, layer, site) == 0)
            continue;
        return err_set(err, ERR_INVALID,
                       "method.targets: %s of layer %u, which has no experts: peft does not load adapters of "
                       "such layers of a mixture; leave them out with method.exclude_modules "
                       "(\".*layers\\.%u\\.mlp\\..*\"), or ask for result: {kind: merged}",
                       lora_target_name(1u << site), layer, layer);
    }
    return 0;
}

/* Refuses of adapters on tensors of all experts what peft refuses, and what is not written. */
static int check_parameters(const struct job_spec *spec, uint32_t targets, struct err *err)
{
    if (!(targets & LORA_EXPERTS))
        return 0;
    if (spec->method.dropout > 0)
        return err_set(
            err, ERR_INVALID,
            "method.dropout: is %g; adapters on tensors of all experts (method.target_parameters) have "
            "none in peft, so set it to 0",
            spec->method.dropout);
    return spec->result.kind != SPEC_RESULT_GGUF
               ? 0
               : err_set(err, ERR_UNSUPPORTED,
                         "result.kind: gguf: adapters on tensors of all experts (method.target_parameters) "
                         "are not "
                         "written for llama.cpp; ask for adapter or merged");
}

/* Refuses of adapters on tables what would not be theirs: merged into a tied table, which is two tables then,
 * they would change the other one, too (as peft's merge does); a table that is trained whole has no adapter.
 */
static int check_tables(const struct job_spec *spec, const struct model_config *config, uint32_t targets,
                        struct err *err)
{
    const struct spec_names *saved = &spec->method.modules_to_save;
    if (!(targets & LORA_TABLES))
        return 0;
    for (uint32_t i = 0; i < saved->count; i++)
        if (config->tied || targets & lora_target_from_name(saved->names[i]))
            return err_set(
                err, ERR_INVALID,
                "method.modules_to_save: %s is trained whole, and method.targets puts an adapter on "
                "%s; name it in one of them",
                saved->names[i], config->tied ? "the same tied table" : "it");
    if (spec->result.kind == SPEC_RESULT_GGUF)
        return err_set(
            err, ERR_UNSUPPORTED,
            "result.kind: gguf: adapters on embed_tokens and lm_head are not written for llama.cpp; "
            "ask for adapter%s",
            config->tied ? "" : " or merged");
    return !config->tied || spec->result.kind != SPEC_RESULT_MERGED
               ? 0
               : err_set(
                     err, ERR_UNSUPPORTED,
                     "result.kind: merged: this model's head is its embedding, and an adapter on one of them "
                     "cannot be merged without changing the other; ask for adapter, or start from a base "
                     "whose config.json says tie_word_embeddings: false and that has both tables");
}

/* Checks that the file has quantised blocks when the base is to be kept packed. */
static int check_packed(const struct model_packing *packing, struct err *err)
{
    if (packing->ways == 0 || packing_is_nf4(packing))
        return err_set(
            err, ERR_INVALID,
            "method.base: packed keeps the quantised blocks of a GGUF, or MXFP4, and this model's file has "
            "none");
    if (packing->ways > MODEL_PACKINGS_MAX)
        return err_set(err, ERR_UNSUPPORTED,
                       "method.base: packed: the file's layers are quantised in more than %d ways",
                       MODEL_PACKINGS_MAX);
    return 0;
}

/* Checks that the rotary setting covers rows of this length. */
static int spec_check_rows(const struct model_config *config, uint32_t sequence_tokens, struct err *err)
{
    bool bounded = config->rope.kind == ROPE_DYNAMIC || config->rope.query_beta > 0;
    if (bounded && model_rope_check(&config->rope, sequence_tokens, err) < 0)
        return err_wrap(err, "data.sequence_tokens");
    return 0;
}

int spec_check_model(const struct job_spec *spec, const struct model_config *config, struct err *err)
{
    const struct spec_method_part *method = &spec->method;
    struct lora_sites sites;
    if (spec->train.router_aux != 0 && config->experts == 0)
        return err_set(
            err, ERR_INVALID,
            "train.router_aux: this model has no experts, and so no router whose loss could count");
    if (spec->train.router_aux != 0 && config->router_biased)
        return err_set(
            err, ERR_UNSUPPORTED,
            "train.router_aux: a model of type \"%s\" chooses experts by a bias beside their scores, "
            "for which the load-balancing loss is not computed",
            model_arch_name(config->arch));
    if (spec->train.router_aux != 0 && arch_of(config->arch)->router_greedy)
        return err_set(err, ERR_UNSUPPORTED,
                       "train.router_aux: transformers has no load-balancing loss of a model of type \"%s\"",
                       model_arch_name(config->arch));
    const uint32_t stages = spec->placement.stages;
    if (stages > config->layers + 2)
        return err_set(
            err, ERR_INVALID,
            "placement.stages: is %u, and this model has %u layer%s, which with embedding and head "
            "make at most %u stages",
            stages, config->layers, config->layers == 1 ? "" : "s", config->layers + 2);
    if (spec_check_rows(config, spec->data.sequence_tokens, err) < 0)
        return -1;
    /* gpt-oss's is read alone: nothing was compared with llama.cpp */
    const struct arch *arch = arch_of(config->arch);
    if (spec->result.kind == SPEC_RESULT_GGUF && (!arch->gguf || arch->fused == ARCH_FUSED_TURNED))
        return err_set(
            err, ERR_UNSUPPORTED,
            "result.kind: gguf: models of type \"%s\" are not written as GGUF; ask for adapter or merged",
            model_arch_name(config->arch));
    if (method->kind != SPEC_METHOD_LORA)
        return 0;
    if (spec_lora_sites(method, config, &sites, err) < 0)
        return -1;
    if (check_tables(spec, config, lora_sites_targets(&sites), err) < 0)
        return -1;
    if (check_parameters(spec, lora_sites_targets(&sites), err) < 0)
        return -1;
    if ((arch->own_tables || config->head_bias) && method->modules_to_save.count > 0)
        return err_set(err, ERR_UNSUPPORTED,
                       "method.modules_to_save: the tables of a model of type \"%s\" are not trained beside "
                       "adapters; leave it out, or train everything (kind: full)",
                       arch->model_type);
    if (method->base == SPEC_BASE_PACKED && check_packed(&config->packing, err) < 0)
        return -1;
    if (config->experts > 0 && spec_check_experts(&sites, config, err) < 0)
        return -1;
    if (config->experts > 0 && spec->result.kind == SPEC_RESULT_ADAPTER &&
        check_dense_layers(&sites, config, err) < 0)
        return -1;
    if (config->tied && method->modules_to_save.count == 1 &&
        strcmp(method->modules_to_save.names[0], "lm_head") == 0)
        return err_set(err, ERR_INVALID,
                       "method.modules_to_save: this model's head is its embedding: name embed_tokens");
    return 0;
}
