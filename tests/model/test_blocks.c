/* Tests models as lists of blocks: published parameter counts to the digit, the parameters that a token
 * passes, and the costs of parts by method, dtype, length and recomputation. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "model/shape/blocks.h"
#include "model/shape/config.h"
#include "model/shape/layer.h"

/* Parameters as the models' own pages state them (safetensors' counts), with tied heads counted once. The
 * shapes are from their config.json. All were counted once more from the models that transformers 5 builds
 * from these shapes (parameters on the meta device). */
static const struct published {
    const char *name, *arch;
    uint64_t params;
    uint32_t hidden, ffn, layers, heads, kv_heads, head_dim, vocab, tied, experts, active, expert_ffn;
} published[] = {
    {"Llama-2-7B", "llama", 6738415616, 4096, 11008, 32, 32, 32, 128, 32000, 0, 0, 0, 0},
    {"Llama-2-13B", "llama", 13015864320, 5120, 13824, 40, 40, 40, 128, 32000, 0, 0, 0, 0},
    {"Llama-2-70B", "llama", 68976648192, 8192, 28672, 80, 64, 8, 128, 32000, 0, 0, 0, 0},
    {"TinyLlama-1.1B", "llama", 1100048384, 2048, 5632, 22, 32, 4, 64, 32000, 0, 0, 0, 0},
    {"Meta-Llama-3-8B", "llama", 8030261248, 4096, 14336, 32, 32, 8, 128, 128256, 0, 0, 0, 0},
    {"Meta-Llama-3-70B", "llama", 70553706496, 8192, 28672, 80, 64, 8, 128, 128256, 0, 0, 0, 0},
    {"Llama-3.1-8B", "llama", 8030261248, 4096, 14336, 32, 32, 8, 128, 128256, 0, 0, 0, 0},
    {"Llama-3.1-70B", "llama", 70553706496, 8192, 28672, 80, 64, 8, 128, 128256, 0, 0, 0, 0},
    {"Llama-3.1-405B", "llama", 405853388800, 16384, 53248, 126, 128, 8, 128, 128256, 0, 0, 0, 0},
    {"Llama-3.2-1B", "llama", 1235814400, 2048, 8192, 16, 32, 8, 64, 128256, 1, 0, 0, 0},
    {"Llama-3.2-3B", "llama", 3212749824, 3072, 8192, 28, 24, 8, 128, 128256, 1, 0, 0, 0},
    {"SmolLM2-135M", "llama", 134515008, 576, 1536, 30, 9, 3, 64, 49152, 1, 0, 0, 0},
    {"SmolLM2-360M", "llama", 361821120, 960, 2560, 32, 15, 5, 64, 49152, 1, 0, 0, 0},
    {"SmolLM2-1.7B", "llama", 1711376384, 2048, 8192, 24, 32, 32, 64, 49152, 1, 0, 0, 0},
    {"Mistral-7B-v0.1", "mistral", 7241732096, 4096, 14336, 32, 32, 8, 128, 32000, 0, 0, 0, 0},
    {"Mistral-7B-v0.3", "mistral", 7248023552, 4096, 14336, 32, 32, 8, 128, 32768, 0, 0, 0, 0},
    {"Mistral-Nemo-12B", "mistral", 12247782400, 5120, 14336, 40, 32, 8, 128, 131072, 0, 0, 0, 0},
    {"Qwen2-0.5B", "qwen2", 494032768, 896, 4864, 24, 14, 2, 64, 151936, 1, 0, 0, 0},
    {"Qwen2-1.5B", "qwen2", 1543714304, 1536, 8960, 28, 12, 2, 128, 151936, 1, 0, 0, 0},
    {"Qwen2-7B", "qwen2", 7615616512, 3584, 18944, 28, 28, 4, 128, 152064, 0, 0, 0, 0},
    {"Qwen2-72B", "qwen2", 72706203648, 8192, 29568, 80, 64, 8, 128, 152064, 0, 0, 0, 0},
    {"Qwen2.5-0.5B", "qwen2", 494032768, 896, 4864, 24, 14, 2, 64, 151936, 1, 0, 0, 0},
    {"Qwen2.5-1.5B", "qwen2", 1543714304, 1536, 8960, 28, 12, 2, 128, 151936, 1, 0, 0, 0},
    {"Qwen2.5-3B", "qwen2", 3085938688, 2048, 11008, 36, 16, 2, 128, 151936, 1, 0, 0, 0},
    {"Qwen2.5-7B", "qwen2", 7615616512, 3584, 18944, 28, 28, 4, 128, 152064, 0, 0, 0, 0},
    {"Qwen2.5-14B", "qwen2", 14770033664, 5120, 13824, 48, 40, 8, 128, 152064, 0, 0, 0, 0},
    {"Qwen2.5-32B", "qwen2", 32763876352, 5120, 27648, 64, 40, 8, 128, 152064, 0, 0, 0, 0},
    {"Qwen2.5-72B", "qwen2", 72706203648, 8192, 29568, 80, 64, 8, 128, 152064, 0, 0, 0, 0},
    {"Qwen3-0.6B", "qwen3", 596049920, 1024, 3072, 28, 16, 8, 128, 151936, 1, 0, 0, 0},
    {"Qwen3-1.7B", "qwen3", 1720574976, 2048, 6144, 28, 16, 8, 128, 151936, 1, 0, 0, 0},
    {"Qwen3-4B", "qwen3", 4022468096, 2560, 9728, 36, 32, 8, 128, 151936, 1, 0, 0, 0},
    {"Qwen3-8B", "qwen3", 8190735360, 4096, 12288, 36, 32, 8, 128, 151936, 0, 0, 0, 0},
    {"Qwen3-14B", "qwen3", 14768307200, 5120, 17408, 40, 40, 8, 128, 151936, 0, 0, 0, 0},
    {"Qwen3-32B", "qwen3", 32762123264, 5120, 25600, 64, 64, 8, 128, 151936, 0, 0, 0, 0},
    {"Mixtral-8x7B-v0.1", "mixtral", 46702792704, 4096, 14336, 32, 32, 8, 128, 32000, 0, 8, 2, 14336},
    {"Mixtral-8x22B-v0.1", "mixtral", 140620634112, 6144, 16384, 56, 48, 8, 128, 32000, 0, 8, 2, 16384},
    {"Mixtral-8x22B-Instruct-v0.1", "mixtral", 140630071296, 6144, 16384, 56, 48, 8, 128, 32768, 0, 8, 2,
     16384},
    {"Qwen3-30B-A3B", "qwen3_moe", 30532122624, 2048, 6144, 48, 32, 4, 128, 151936, 0, 128, 8, 768},
    {"Qwen3-235B-A22B", "qwen3_moe", 235093634560, 4096, 12288, 94, 64, 4, 128, 151936, 0, 128, 8, 1536},
    {"Qwen3-Coder-480B-A35B", "qwen3_moe", 480154875392, 6144, 8192, 62, 96, 8, 128, 151936, 0, 160, 8, 2560},
    {"OLMoE-1B-7B", "olmoe", 6919161856, 2048, 1024, 16, 16, 16, 128, 50304, 0, 64, 8, 1024},
};

enum { PUBLISHED = sizeof(published) / sizeof(published[0]) };

static void config_of(const struct published *p, struct model_config *config)
{
    char json[1024];
    struct err err;
    int used = snprintf(
        json, sizeof(json),
        "{\"model_type\":\"%s\",\"hidden_size\":%u,\"intermediate_size\":%u,\"num_hidden_layers\":%u,"
        "\"num_attention_heads\":%u,\"num_key_value_heads\":%u,\"head_dim\":%u,\"vocab_size\":%u,"
        "\"tie_word_embeddings\":%s",
        p->arch, p->hidden, p->ffn, p->layers, p->heads, p->kv_heads, p->head_dim, p->vocab,
        p->tied ? "true" : "false");
    if (p->experts)
        used += snprintf(json + used, sizeof(json) - (size_t)used,
                         ",\"%s\":%u,\"num_experts_per_tok\":%u,\"moe_intermediate_size\":%u",
                         strcmp(p->arch, "mixtral") == 0 ? "num_local_experts" : "num_experts", p->experts,
                         p->active, p->expert_ffn);
    used += snprintf(json + used, sizeof(json) - (size_t)used, "}");
    if (model_config_parse_text(json, (size_t)used, config, &err) < 0)
        fail_msg("%s: %s", p->name, err.text);
}

static const struct published *model_named(const char *name)
{
    for (int i = 0; i < PUBLISHED; i++)
        if (strcmp(published[i].name, name) == 0)
            return &published[i];
    fail_msg("no %s", name);
    return NULL;
}

static void list_of(const char *name, const struct block_options *options, struct model_config *config,
                    struct block_list *list)
{
    struct err err;
    config_of(model_named(name), config);
    if (model_blocks(config, options, list, &err) < 0)
        fail_msg("%s", err.text);
}

static int tensor_add(const struct block_tensor *tensor, void *arg)
{
    uint64_t *sums = arg;
    sums[tensor->block] += (uint64_t)tensor->shape[0] * tensor->shape[1];
    return 0;
}

static void published_counts_match_to_the_digit_by_parts_and_by_tensors(void **state)
{
    (void)state;
    for (int i = 0; i < PUBLISHED; i++) {
        struct model_config config;
        struct block_list list;
        static uint64_t sums[MODEL_LAYERS_MAX + 2];
        list_of(published[i].name, &(struct block_options){0}, &config, &list);
        if (list.params != published[i].params)
            fail_msg("%s: %llu parameters, published %llu", published[i].name,
                     (unsigned long long)list.params, (unsigned long long)published[i].params);
        memset(sums, 0, sizeof(sums));
        model_block_tensors(&config, 0, list.count, tensor_add, sums);
        for (uint32_t b = 0; b < list.count; b++) {
            uint64_t parts = 0;
            for (uint32_t k = 0; k < list.blocks[b].part_count; k++)
                parts += list.blocks[b].parts[k].params * list.blocks[b].parts[k].copies;
            assert_int_equal(parts, list.blocks[b].params);
            assert_int_equal(parts, sums[b]);
        }
        block_list_fini(&list);
    }
}

/* To a token the embedding's adapter costs its product with B alone. */
static void adapters_on_tables_count_where_their_tables_are(void **state)
{
    (void)state;
    const struct block_options tables = {.lora = true, .lora_rank = 8, .lora_targets = LORA_TABLES};
    for (int i = 0; i < PUBLISHED; i++) {
        struct model_config config;
        struct block_list list;
        list_of(published[i].name, &tables, &config, &list);
        uint64_t each = 8ull * (config.hidden + config.vocab);
        const struct block *head = &list.blocks[list.count - 1];
        assert_int_equal(list.lora_params, 2 * each);
        assert_int_equal(list.blocks[0].lora_params, each);
        assert_true(list.blocks[0].flops_per_token == 16.0 * config.hidden);
        assert_true(head->parts[0].lora_flops_per_token == 2.0 * (double)each);
        block_list_fini(&list);
        list_of(published[i].name,
                &(struct block_options){.lora = true, .lora_rank = 8, .lora_targets = LORA_Q}, &config,
                &list);
        assert_int_equal(list.blocks[0].lora_params + list.blocks[list.count - 1].lora_params, 0);
        block_list_fini(&list);
    }
}

/* Each expert has an A that gate and up share and their B, and those of down; the blocks' parameters are
 * those of the layers' tensors. */
static void adapters_on_tensors_of_experts_count_each_expert(void **state)
{
    (void)state;
    const struct block_options experts = {.lora = true, .lora_rank = 8, .lora_targets = LORA_EXPERTS};
    const struct layer_method method = {.lora = lora_sites_alike(8, 1, LORA_EXPERTS)};
    for (int i = 0; i < PUBLISHED; i++) {
        struct model_config config;
        struct block_list list;
        static struct layer_plan plan;
        struct err err;
        if (published[i].experts == 0) {
            config_of(&published[i], &config);
            assert_int_equal(-1, model_blocks(&config, &experts, &list, &err));
            continue;
        }
        list_of(published[i].name, &experts, &config, &list);
        uint64_t each = 8ull * (config.hidden + 2ull * config.expert_ffn + config.expert_ffn + config.hidden);
        layer_plan_init(&config, &method, 0, &plan);
        assert_int_equal(list.lora_params, each * config.experts * config.layers);
        assert_int_equal(plan.tensors.trained_bytes, 4 * each * config.experts);
        block_list_fini(&list);
    }
}

/* The names of a layer's tensors, collected in order. */
struct names {
    char names[64][ARCH_NAME_MAX];
    uint32_t count;
};

static int add_name(const struct block_tensor *tensor, void *arg)
{
    struct names *names = arg;
    assert_true(names->count < 64);
    memcpy(names->names[names->count++], tensor->name, sizeof(names->names[0]));
    return 0;
}

/* The engine and the file readers make names in different functions; a model with a single expert still names
 * it as an expert. */
static void layers_name_their_tensors_as_files_do(void **state)
{
    (void)state;
    static const char *const tiny[] = {"mistral", "mixtral", "olmoe", "qwen2", "qwen3-moe", "qwen3"};
    for (size_t i = 0; i < 2 * sizeof(tiny) / sizeof(tiny[0]); i++) {
        struct layer_method method = {.full = true};
        struct names names = {.count = 0};
        struct model_config config;
        struct layer_plan plan;
        struct err err;
        char path[256];
        snprintf(path, sizeof(path), MOTLEY_TEST_DATA "/configs/tiny-%s.json", tiny[i / 2]);
        assert_int_equal(model_config_load(path, &config, &err), 0);
        if (config.experts > 0 && i % 2)
            config.experts = config.experts_active = 1;
        layer_plan_init(&config, &method, 1, &plan);
        assert_int_equal(model_block_tensors(&config, 2, 3, add_name, &names), 0);
        for (uint32_t t = 0; t < plan.tensors.count; t++)
            for (uint32_t copy = 0; copy < plan.tensors.list[t].copies; copy++) {
                char name[LAYER_NAME_MAX];
                uint32_t at = 0;
                layer_tensor_name(&config, 1, &plan.tensors.list[t], copy, name);
                while (at < names.count && strcmp(names.names[at], name) != 0)
                    at++;
                if (at == names.count)
                    fail_msg("tiny-%s of %u experts: no file has %s", tiny[i / 2], config.experts, name);
                names.names[at][0] = '\0';
            }
        for (uint32_t at = 0; at < names.count; at++)
            assert_string_equal(names.names[at], "");
    }
}

static void active_parameters_are_what_the_names_say(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double billions;
    } cases[] = {{"Mixtral-8x7B-v0.1", 12.9}, {"Mixtral-8x22B-v0.1", 39.1},  {"Qwen3-30B-A3B", 3.3},
                 {"Qwen3-235B-A22B", 22},     {"Qwen3-Coder-480B-A35B", 35}, {"OLMoE-1B-7B", 1.3},
                 {"Llama-3.1-8B", 8.03}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct model_config config;
        struct block_list list;
        const struct published *p = model_named(cases[i].name);
        list_of(cases[i].name, &(struct block_options){0}, &config, &list);
        uint64_t idle = (uint64_t)p->layers * (p->experts - p->active) * 3 * p->hidden * p->expert_ffn;
        assert_int_equal(list.active_params, p->params - idle);
        if (fabs((double)list.active_params / 1e9 / cases[i].billions - 1) > 0.025)
            fail_msg("%s: %llu active", cases[i].name, (unsigned long long)list.active_params);
        block_list_fini(&list);
    }
}

/* Full fine-tuning takes 6 FLOPs per parameter and token, a frozen base 4 (Kaplan et al. 2020, section 2.1),
 * without the embedding's table; recomputation adds 2. */
static void flops_follow_the_rules_of_thumb(void **state)
{
    (void)state;
    for (int i = 0; i < PUBLISHED; i++) {
        for (int full = 0; full < 2; full++) {
            struct model_config config;
            struct block_list list;
            struct block_options lora = {
                .lora = !full, .lora_rank = 8, .lora_targets = LORA_Q | LORA_K | LORA_V | LORA_O};
            list_of(published[i].name, &lora, &config, &list);
            struct block_use use = {.full = full, .tokens = 100, .recompute = true};
            double forward = 0, back = 0, again = 0;
            for (uint32_t b = 0; b < list.count; b++) {
                struct block_cost cost;
                block_cost(&list, b, &use, &cost);
                forward += cost.forward_flops;
                back += cost.input_flops + cost.weight_flops;
                again += cost.recompute_flops;
            }
            double matrices = (double)(list.active_params - (config.tied ? 0 : list.blocks[0].params)) +
                              (double)list.lora_params;
            double expected = full ? 4 : 2 * (1 + (double)list.lora_params / matrices);
            assert_true(fabs(forward / (2 * 100 * matrices) - 1) < 0.002);
            assert_true(fabs(back / (expected * 100 * matrices) - 1) < 0.002);
            assert_true(fabs(again - forward) <= 1e-9 * forward);
            block_list_fini(&list);
        }
    }
}

/* The expected bytes are those of docs/PLANNER.md, Memory. */
static void bytes_follow_method_dtype_length_and_recomputation(void **state)
{
    (void)state;
    struct model_config config;
    struct block_list list;
    struct block_cost cost;
    struct block_options lora = {
        .lora = true, .lora_rank = 16, .lora_targets = LORA_Q | LORA_K | LORA_V | LORA_O};
    list_of("Llama-3.1-8B", &lora, &config, &list);
    const struct block *layer = &list.blocks[1];
    double params = (double)layer->params, packed = (double)layer->matrix_params,
           adapters = (double)layer->lora_params;
    struct block_use use = {
        .base = BLOCK_BASE_NF4, .compute_bf16 = true, .tokens = 1000, .sum_sq = 1000 * 500};
    block_cost(&list, 1, &use, &cost);
    assert_true(fabs(cost.weight_bytes - (packed * 0.516 + (params - packed) * 2)) < 1);
    assert_true(cost.adapter_bytes + cost.gradient_bytes + cost.optimizer_bytes == 16 * adapters);
    assert_true(cost.boundary_bytes == 1000 * 4096 * 2);
    /* about 2sb(4h + 2kv + 3f) bytes of activations in bf16, within a sixth */
    assert_true(fabs(cost.saved_bytes / (2 * 1000.0 * (4 * 4096 + 2 * 1024 + 3 * 14336)) - 1) < 0.17);
    use.recompute = true;
    block_cost(&list, 1, &use, &cost);
    assert_true(cost.saved_bytes == cost.boundary_bytes);
    use = (struct block_use){.base = BLOCK_BASE_FP32, .tokens = 2000, .sum_sq = 2000 * 500};
    block_cost(&list, 1, &use, &cost);
    assert_true(cost.weight_bytes == 4 * params && cost.boundary_bytes == 2000 * 4096 * 4);
    for (int half = 0; half < 2; half++) { /* full fine-tuning with AdamW takes 16 bytes per parameter */
        use = (struct block_use){.full = true, .base = half ? BLOCK_BASE_BF16 : BLOCK_BASE_FP32, .tokens = 1};
        block_cost(&list, 1, &use, &cost);
        assert_true(cost.weight_bytes + cost.gradient_bytes + cost.optimizer_bytes == 16 * params);
        assert_true(cost.adapter_bytes == 0);
    }
    block_list_fini(&list);
    list_of("Qwen3-30B-A3B", &lora, &config,
            &list); /* weights of all experts, but activations only of those that a token passes */
    block_cost(&list, 5, &use, &cost);
    use = (struct block_use){.base = BLOCK_BASE_BF16, .compute_bf16 = true, .tokens = 10};
    block_cost(&list, 5, &use, &cost);
    assert_true(cost.weight_bytes == 2 * (double)list.blocks[5].params);
    assert_true(cost.saved_bytes == 20 * (double)list.blocks[5].saved_per_token);
    block_list_fini(&list);
}

static void squares_grow_with_length_and_linear_parts_do_not(void **state)
{
    (void)state;
    struct model_config config;
    struct block_list list;
    list_of("Mixtral-8x7B-v0.1", &(struct block_options){0}, &config, &list);
    const struct block *layer = &list.blocks[7];
    for (uint32_t part = 0; part < layer->part_count; part++) {
        struct block_cost brief, lengthy;
        struct block_use use = {.full = true, .tokens = 4096, .sum_sq = 8.0 * 512 * 512};
        block_part_cost(&list, layer, part, &use, &brief);
        use.sum_sq = 4096.0 * 4096;
        block_part_cost(&list, layer, part, &use, &lengthy);
        double more = lengthy.forward_flops - brief.forward_flops;
        if (layer->parts[part].kind == PART_ATTENTION)
            assert_true(fabs(more - 2.0 * 4096 * (4096.0 * 4096 - 8.0 * 512 * 512)) < 1);
        else
            assert_true(more == 0);
        assert_true(lengthy.weight_flops == brief.weight_flops && lengthy.saved_bytes == brief.saved_bytes);
    }
    block_list_fini(&list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_counts_match_to_the_digit_by_parts_and_by_tensors),
        cmocka_unit_test(adapters_on_tables_count_where_their_tables_are),
        cmocka_unit_test(adapters_on_tensors_of_experts_count_each_expert),
        cmocka_unit_test(layers_name_their_tensors_as_files_do),
        cmocka_unit_test(active_parameters_are_what_the_names_say),
        cmocka_unit_test(flops_follow_the_rules_of_thumb),
        cmocka_unit_test(bytes_follow_method_dtype_length_and_recomputation),
        cmocka_unit_test(squares_grow_with_length_and_linear_parts_do_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
