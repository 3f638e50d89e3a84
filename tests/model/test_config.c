/* Configs are read as published, contradictions are refused, and parameter counts match the published ones to
 * the digit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/json.h"
#include "model/files/pack.h"
#include "model/shape/blocks.h"
#include "model/shape/config.h"

/* The text of Qwen 3.5's mixtures by hidden size, layers, heads, experts, their width, heads of v in a delta
 * net and experts of a token. */
#define QWEN3_5_MOE(hidden, layers, heads, experts, width, value_heads, active)                              \
    "{'architectures':['Qwen3_5MoeForConditionalGeneration'],'model_type':'qwen3_5_moe','image_token_id':"   \
    "248056,'tie_word_embeddings':false,'vision_config':{'depth':27,'model_type':'qwen3_5_moe'},"            \
    "'text_config':{'attention_bias':false,'attention_dropout':0.0,'attn_output_gate':true,'dtype':"         \
    "'bfloat16','eos_token_id':248044,'full_attention_interval':4,'head_dim':256,'hidden_act':'silu',"       \
    "'hidden_size':" #hidden ",'linear_conv_kernel_dim':4,'linear_key_head_dim':128,'linear_num_key_heads'"  \
    ":16,'linear_num_value_heads':" #value_heads ",'linear_value_head_dim':128,'mamba_ssm_dtype':'float32'," \
    "'max_position_embeddings':262144,'mlp_only_layers':[],'model_type':'qwen3_5_moe_text',"                 \
    "'moe_intermediate_size':" #width ",'mtp_num_hidden_layers':1,'num_attention_heads':" #heads             \
    ",'num_experts':" #experts ",'num_experts_per_tok':" #active ",'num_hidden_layers':" #layers             \
    ",'num_key_value_heads':2,'rms_norm_eps':1e-06,'rope_parameters':{'mrope_interleaved':true,"             \
    "'mrope_section':[11,11,10],'partial_rotary_factor':0.25,'rope_theta':10000000,'rope_type':'default'},"  \
    "'shared_expert_intermediate_size':" #width ",'vocab_size':248320}}"

/* Parses a JSON text in which ' stands for ". */
static int parse(const char *text, struct model_config *config, struct err *err)
{
    char json[4096];
    size_t n = strlen(text);
    assert_true(n < sizeof(json));
    for (size_t i = 0; i <= n; i++)
        json[i] = text[i] == '\'' ? '"' : text[i];
    return model_config_parse_text(json, n, config, err);
}

/* The catalogue of published models and of classes' defaults, which tools/catalogue.py compares with
 * transformers' classes at real size. New. */
static json_t *catalogue(void)
{
    json_error_t why;
    json_t *rows = json_load_file(MOTLEY_TEST_DATA "/configs/published.json", 0, &why);
    if (!rows)
        fail_msg("published.json: %s", why.text);
    return rows;
}

/* Returns the config of a row, until the next call. */
static const struct model_config *parsed(const char *name)
{
    static struct model_config config;
    json_t *rows = catalogue(), *row;
    struct err err;
    size_t i;
    bool found = false;
    json_array_foreach (rows, i, row)
        if (strcmp(json_string_value(json_object_get(row, "name")), name) == 0) {
            assert_int_equal(model_config_parse(json_object_get(row, "config"), &config, &err), 0);
            found = true;
        }
    json_decref(rows);
    if (!found)
        fail_msg("no published %s", name);
    return &config;
}

static void reads_back(const char *name, const json_t *given)
{
    struct model_config config, again;
    struct err err;
    if (model_config_parse(given, &config, &err) < 0)
        fail_msg("%s: %s", name, err.text);
    json_t *document = model_config_to_json(&config, &err);
    assert_non_null(document);
    if (model_config_parse(document, &again, &err) < 0)
        fail_msg("%s: %s", name, err.text);
    assert_memory_equal(&config, &again, sizeof(config));
    json_decref(document);
}

static int add_bf16_bytes(const struct block_tensor *tensor, void *arg)
{
    *(uint64_t *)arg += 2 * (uint64_t)tensor->shape[0] * tensor->shape[1];
    return 0;
}

/* Each row's parameters are those of transformers' class, and its config is written as it was read; a row may
 * name the key for which it is refused. `safetensors_bytes` is total_size of the published
 * model.safetensors.index.json, as public programs quote it. */
static void models_of_the_catalogue_have_their_parameters_to_the_digit(void **state)
{
    (void)state;
    json_t *rows = catalogue(), *row;
    size_t i;
    json_array_foreach (rows, i, row) {
        const char *name = json_string_value(json_object_get(row, "name")),
                   *refused = json_string_value(json_object_get(row, "refused"));
        const json_t *given = json_object_get(row, "config");
        uint64_t params = (uint64_t)json_integer_value(json_object_get(row, "parameters"));
        struct model_config config;
        struct block_list list;
        struct err err;
        if ((model_config_parse(given, &config, &err) < 0) != !!refused ||
            (refused && !strstr(err.text, refused)))
            fail_msg("%s: %s", name, refused ? refused : err.text);
        if (refused)
            continue;
        if (model_config_params(&config) != params)
            fail_msg("%s: %llu parameters, transformers has %llu", name,
                     (unsigned long long)model_config_params(&config), (unsigned long long)params);
        assert_int_equal(model_blocks(&config, &(struct block_options){0}, &list, &err), 0);
        assert_int_equal(list.params, params);
        assert_int_equal(list.count, config.layers + 2);
        assert_int_equal(list.blocks[0].kind, BLOCK_EMBEDDING);
        assert_int_equal(list.blocks[list.count - 1].kind, BLOCK_HEAD);
        block_list_fini(&list);
        uint64_t bytes = 0;
        model_block_tensors(&config, 0, config.layers + 2, add_bf16_bytes, &bytes);
        if (json_object_get(row, "safetensors_bytes"))
            assert_int_equal(bytes, json_integer_value(json_object_get(row, "safetensors_bytes")));
        reads_back(name, given);
    }
    json_decref(rows);
}

static int add_stored_bytes(const struct block_tensor *tensor, void *arg)
{
    uint64_t values = (uint64_t)tensor->shape[0] * tensor->shape[1], *sum = arg;
    bool packed = tensor->what >= ARCH_EXPERT_GATE && tensor->what <= ARCH_EXPERT_DOWN && !tensor->bias;
    *sum += packed ? values / 32 * 17 : 2 * values;
    return 0;
}

/* Layers without a window have wider heads, fewer of k and v, and a table of their own. */
static void gemma_4_has_heads_of_two_shapes(void **state)
{
    (void)state;
    const struct model_config c = *parsed("gemma-4-31B");
    const struct model_heads local = model_layer_heads(&c, 4), full = model_layer_heads(&c, 5);
    assert_true(local.head_dim == 256 && local.kv_heads == 16 && local.qkv == 64 * 256 && !local.k_is_v);
    assert_true(full.head_dim == 512 && full.kv_heads == 4 && full.qkv == 40 * 512 && full.k_is_v);
    assert_true(model_layer_window(&c, 4) == 1024 && model_layer_window(&c, 5) == 0);
    assert_true(model_layer_window(&c, 59) == 0 && c.attn_scale == 1 && c.logit_softcap == 30);
    assert_true(model_rotary(&c, true) == 256 && model_rotary(&c, false) == 512);
    assert_int_equal(model_rope_rotated(&c.rope, 512), 64);
    assert_true(model_layer_targets(&c, 4) & LORA_V);
    assert_false(model_layer_targets(&c, 5) & LORA_V);
}

/* In E2B layers 15 to 34 read k and v of layers 13 and 14, and their FFNs are twice as wide. */
static void gemma_4_e2b_lends_keys_and_values(void **state)
{
    (void)state;
    const struct model_config c = *parsed("gemma-4-E2B");
    for (uint32_t i = 0; i < c.layers; i++) {
        uint32_t lender = i < 15 ? i : model_layer_window(&c, i) > 0 ? 13 : 14;
        assert_int_equal(model_layer_lender(&c, i), lender);
        assert_int_equal(model_layer_lends(&c, i), i == 13 || i == 14);
        assert_int_equal(model_layer_heads(&c, i).borrowed, i >= 15);
        assert_int_equal(model_layer_ffn(&c, i), i >= 15 ? 12288 : 6144);
        assert_int_equal(!(model_layer_targets(&c, i) & (LORA_K | LORA_V)), i >= 15);
    }
    assert_true(c.per_layer == 256 && model_layer_ffn(parsed("gemma-4-E4B"), 41) == 10240);
}

/* Experts in MXFP4, all else in bf16: the sums are those of transformers' parameters on its meta device. */
static void gpt_oss_has_the_published_bytes(void **state)
{
    (void)state;
    const uint64_t bytes[] = {13761264768u, 65248815744u};
    for (int i = 0; i < 2; i++) {
        const struct model_config c = *parsed(i == 0 ? "gpt-oss-20b" : "gpt-oss-120b");
        uint64_t sum = 0;
        model_block_tensors(&c, 0, c.layers + 2, add_stored_bytes, &sum);
        assert_int_equal(sum, bytes[i]);
        assert_int_equal(c.packing.ways, 1);
        assert_int_equal(c.packing.matrix[0][__builtin_ctz(LORA_DOWN)], PACK_MXFP4);
        assert_int_equal(c.packing.matrix[0][__builtin_ctz(LORA_Q)], PACK_BF16);
        assert_int_equal(c.packing.head, PACK_BF16);
        assert_true(c.attn_sinks && c.expert_bias && c.gate_limit == 7 && c.gate_alpha == 1.702);
        assert_int_equal(model_layer_window(&c, 0), 128);
        assert_int_equal(model_layer_window(&c, 1), 0);
    }
}

static void adapters_of_llama_8b_have_the_published_size(void **state)
{
    (void)state;
    const struct model_config config = *parsed("Llama-3.1-8B");
    struct block_list list;
    struct err err;
    struct block_options options = {
        .lora = true, .lora_rank = 16, .lora_targets = LORA_Q | LORA_K | LORA_V | LORA_O};
    assert_int_equal(model_blocks(&config, &options, &list, &err), 0);
    assert_int_equal(list.lora_params, 13631488);
    assert_int_equal(list.boundary_per_token, 4096);
    /* a layer's matrices take 2 FLOPs per weight and token; attention takes 2 * 4096 per unit of squared
     * length */
    const struct block *b = &list.blocks[1];
    assert_true(b->flops_per_token == 2.0 * (double)(b->matrix_params + b->lora_params));
    assert_true(b->flops_per_square == 8192.0);
    block_list_fini(&list);
    options.lora_rank = 0;
    assert_int_equal(model_blocks(&config, &options, &list, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
}

static void experts_are_counted_by_copy_and_by_use(void **state)
{
    (void)state;
    const struct model_config config = *parsed("Mixtral-8x7B-v0.1");
    struct block_list list;
    struct err err;
    assert_int_equal(model_blocks(&config, &(struct block_options){0}, &list, &err), 0);
    const struct block *b = &list.blocks[3];
    assert_int_equal(b->part_count, 3);
    assert_int_equal(b->parts[1].kind, PART_ROUTER);
    assert_int_equal(b->parts[2].kind, PART_EXPERT);
    assert_int_equal(b->parts[2].copies, 8);
    assert_int_equal(b->parts[2].active, 2);
    assert_int_equal(b->parts[2].params, 3ull * 4096 * 14336);
    double active =
        b->parts[0].flops_per_token + b->parts[1].flops_per_token + 2 * b->parts[2].flops_per_token;
    assert_true(fabs(b->flops_per_token - active) < 1);
    block_list_fini(&list);
}

static void heads_of_layers_without_a_window_read_back(void **state)
{
    (void)state;
    json_t *given = json_pack("{s:s, s:i, s:i, s:{s:{s:i, s:i}}}", "model_type", "gemma4_text",
                              "hidden_size_per_layer_input", 0, "num_hidden_layers", 2, "per_layer_config",
                              "1", "head_dim", 8, "num_key_value_heads", 2);
    reads_back("heads of layers without a window, whose v is not k", given);
    json_decref(given);
}

static void what_differs_by_layer_is_asked_of_the_layer(void **state)
{
    (void)state;
    const struct model_config *c = parsed("Gemma-3-4B");
    assert_int_equal(model_layer_window(c, 4), 1024);
    assert_int_equal(model_layer_window(c, 5), 0);
    assert_int_equal(model_layer_window(c, 33), 1024);
    assert_true(model_layer_rope(c, 4)->theta == 1e4 && model_layer_rope(c, 4)->kind == ROPE_DEFAULT);
    assert_true(model_layer_rope(c, 5)->theta == 1e6 && model_layer_rope(c, 5)->kind == ROPE_LINEAR);
    assert_int_equal(c->dtype, MODEL_BF16);
    assert_int_equal(c->eos_count, 2);
    assert_true(c->tied && c->act == ACT_GELU_TANH && c->norm_offset == 1 && c->qk_norm == 1 &&
                c->attn_softcap == 0);
    c = parsed("Gemma-2-27B");
    assert_int_equal(model_layer_window(c, 0), 4096);
    assert_int_equal(model_layer_window(c, 1), 0);
    assert_true(c->attn_scale == 1.0 / 12 && c->attn_softcap == 50 && c->logit_softcap == 30);
    assert_true(model_layer_rope(c, 0) == &c->rope);
    c = parsed("SmolLM3-3B");
    assert_true(model_layer_rotates(c, 2) && !model_layer_rotates(c, 3) && !model_layer_rotates(c, 35));
    c = parsed("Phi-3-mini-4k");
    assert_int_equal(model_layer_window(c, 31), 2047);
    assert_int_equal(model_lora_targets(c), LORA_QKV | LORA_O | LORA_GATE_UP | LORA_DOWN);
    assert_int_equal(parsed("Phi-3-mini-128k")->rope.kind, ROPE_LONGROPE);
    c = parsed("Qwen3-8B");
    assert_int_equal(model_lora_targets(c),
                     LORA_Q | LORA_K | LORA_V | LORA_O | LORA_GATE | LORA_UP | LORA_DOWN);
    c = parsed("DeepSeek-V2-Lite");
    assert_true(c->q_latent == 0 && c->head_dim == 192 && c->rotary_dim == 64 && c->value_dim == 128);
    assert_true(fabs(c->attn_scale * sqrt(192) - 1.26080 * 1.26080) < 1e-4);
    assert_false(model_layer_is_sparse(c, 0));
    c = parsed("GLM-4.7-Flash");
    assert_true(c->head_dim == 256 && c->value_dim == 256 && c->attn_scale == 0 && c->rope_adjacent);
    assert_int_equal(model_layer_targets(c, 0) & LORA_ATTENTION,
                     LORA_Q_A | LORA_Q_B | LORA_K | LORA_V | LORA_O);
    assert_true(!model_layer_is_sparse(c, 0) && model_layer_is_sparse(c, 1));
}

static void old_and_new_rotary_settings_mean_the_same(void **state)
{
    (void)state;
    static const char old[] =
        "{'model_type':'llama','hidden_size':64,'intermediate_size':176,"
        "'num_attention_heads':4,'num_hidden_layers':4,'vocab_size':259,'rope_theta':500000.0,"
        "'rope_scaling':{'factor':8.0,'low_freq_factor':1.0,'high_freq_factor':4.0,"
        "'original_max_position_embeddings':32,'type':'llama3'}}";
    static const char new[] =
        "{'model_type':'llama','hidden_size':64,'intermediate_size':176,"
        "'num_attention_heads':4,'num_hidden_layers':4,'vocab_size':259,'rope_parameters':"
        "{'factor':8.0,'low_freq_factor':1.0,'high_freq_factor':4.0,'rope_theta':500000.0,"
        "'original_max_position_embeddings':32,'rope_type':'llama3'}}";
    struct model_config a, b;
    struct err err;
    double frequencies[8];
    assert_int_equal(parse(old, &a, &err), 0);
    assert_int_equal(parse(new, &b, &err), 0);
    assert_memory_equal(&a, &b, sizeof(a));
    assert_int_equal(a.rope.kind, ROPE_LLAMA3);
    assert_int_equal(model_rope_frequencies(&a, 0, frequencies, &err), 0);
    assert_true(frequencies[0] == 1.0); /* wavelength 6.3 is below 32/4, so it is kept */
    /* long wavelengths are divided by 8 */
    assert_true(fabs(frequencies[7] * 8 / pow(5e5, -14.0 / 16) - 1) < 1e-15);
}

static void the_tiny_architectures_are_told_apart(void **state)
{
    (void)state;
    static const struct {
        const char *file;
        enum model_arch arch;
        bool runnable;
    } cases[] = {{"golden/llama", MODEL_LLAMA, true},
                 {"golden/llama3-rope", MODEL_LLAMA, true},
                 {"configs/tiny-mistral.json", MODEL_MISTRAL, true},
                 {"configs/tiny-qwen2.json", MODEL_QWEN2, true},
                 {"configs/tiny-qwen3.json", MODEL_QWEN3, true},
                 {"configs/tiny-mixtral.json", MODEL_MIXTRAL, true},
                 {"configs/tiny-qwen3-moe.json", MODEL_QWEN3_MOE, true},
                 {"configs/tiny-olmoe.json", MODEL_OLMOE, true},
                 {"golden/gemma2", MODEL_GEMMA2, true},
                 {"golden/gemma3", MODEL_GEMMA3, true},
                 {"golden/phi3", MODEL_PHI3, true},
                 {"golden/smollm3", MODEL_SMOLLM3, true}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char path[512];
        struct model_config config;
        struct err err;
        snprintf(path, sizeof(path), "%s/%s", MOTLEY_TEST_DATA, cases[i].file);
        if (model_config_load(path, &config, &err) < 0)
            fail_msg("%s: %s", path, err.text);
        assert_int_equal(config.arch, cases[i].arch);
        assert_int_equal(model_config_runnable(&config, &err) == 0, cases[i].runnable);
        if (!cases[i].runnable)
            assert_int_equal(err.code, ERR_UNSUPPORTED);
        if (config.arch == MODEL_QWEN3_MOE) {
            assert_true(model_layer_is_sparse(&config, 0));
            assert_false(model_layer_is_sparse(&config, 1));
        }
        if (config.arch == MODEL_MISTRAL)
            assert_int_equal(config.window, 12);
    }
}

/* Replaces or adds one key of a good config and expects a refusal. */
static void refused(const char *key, const char *value, enum err_code code, const char *word)
{
    static const char *const base[][2] = {
        {"model_type", "'llama'"},    {"architectures", "['LlamaForCausalLM']"},
        {"hidden_size", "64"},        {"intermediate_size", "176"},
        {"num_attention_heads", "4"}, {"num_hidden_layers", "4"},
        {"num_key_value_heads", "2"}, {"vocab_size", "259"},
        {"hidden_act", "'silu'"},     {"rope_theta", "10000.0"},
        {"eos_token_id", "2"},
    };
    char text[2048] = "{";
    bool replaced = false;
    for (size_t i = 0; i < sizeof(base) / sizeof(base[0]); i++) {
        bool this = strcmp(base[i][0], key) == 0;
        const char *v = this ? value : base[i][1];
        replaced = replaced || this;
        if (v)
            snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s'%s':%s", text[1] ? "," : "",
                     base[i][0], v);
    }
    if (!replaced)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), ",'%s':%s", key, value);
    snprintf(text + strlen(text), sizeof(text) - strlen(text), "}");
    struct model_config config;
    struct err err = {0};
    if (parse(text, &config, &err) == 0)
        fail_msg("accepted: %s", text);
    if (err.code != code || !strstr(err.text, word))
        fail_msg("%s: %s (%s)", text, err.text, err_code_name(err.code));
    assert_int_equal(config.layers, 0);
}

static void contradictory_and_missing_sizes_are_refused_by_name(void **state)
{
    (void)state;
    refused("hidden_size", NULL, ERR_INVALID, "hidden_size");
    refused("hidden_size", "0", ERR_INVALID, "hidden_size");
    refused("hidden_size", "-64", ERR_INVALID, "hidden_size");
    refused("hidden_size", "64.5", ERR_INVALID, "hidden_size");
    refused("hidden_size", "'64'", ERR_INVALID, "hidden_size");
    refused("hidden_size", "66", ERR_INVALID, "hidden_size");
    refused("hidden_size", "99999999999", ERR_INVALID, "hidden_size");
    refused("num_hidden_layers", NULL, ERR_INVALID, "num_hidden_layers");
    refused("num_hidden_layers", "1000000", ERR_INVALID, "num_hidden_layers");
    refused("num_attention_heads", NULL, ERR_INVALID, "num_attention_heads");
    refused("num_key_value_heads", "3", ERR_INVALID, "num_key_value_heads");
    refused("intermediate_size", NULL, ERR_INVALID, "intermediate_size");
    refused("vocab_size", NULL, ERR_INVALID, "vocab_size");
    refused("head_dim", "15", ERR_INVALID, "head_dim");
    refused("eos_token_id", "['2']", ERR_INVALID, "eos_token_id");
    refused("bos_token_id", "1.5", ERR_INVALID, "bos_token_id");
    refused("rope_scaling", "{'rope_type':'llama3','factor':8.0}", ERR_INVALID, "low_freq_factor");
    refused("layer_types", "['full_attention']", ERR_INVALID, "layer_types");
}

/* In transformers 5.24's Gemma3Config only the key beside text_config counts; absent means true, null means
 * false. */
static void a_nested_config_is_tied_as_the_whole_says(void **state)
{
    static const struct {
        const char *outer, *inner;
        bool tied;
    } cases[] = {{"", "", true},
                 {",'tie_word_embeddings':false", "", false},
                 {"", ",'tie_word_embeddings':false", true},
                 {",'tie_word_embeddings':false", ",'tie_word_embeddings':true", false},
                 {",'tie_word_embeddings':true", ",'tie_word_embeddings':false", true},
                 {",'tie_word_embeddings':null", "", false}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct model_config config;
        struct err err;
        char text[512];
        snprintf(text, sizeof(text),
                 "{'model_type':'gemma3','text_config':{'model_type':'gemma3_text','hidden_size':32,"
                 "'num_attention_heads':4,'head_dim':8,'vocab_size':64%s}%s}",
                 cases[i].inner, cases[i].outer);
        if (parse(text, &config, &err) < 0)
            fail_msg("%s: %s", text, err.text);
        assert_int_equal(config.tied, cases[i].tied);
    }
}

/* A text_config has only what is no default of its class. */
static void sizes_that_a_file_lacks_are_doubted(void **state)
{
    struct model_config config, again;
    struct err err;
    char text[MODEL_DOUBT_BYTES];
    (void)state;
    assert_int_equal(parse("{'model_type':'gemma2','num_hidden_layers':2,'num_attention_heads':4,"
                           "'intermediate_size':64}",
                           &config, &err),
                     0);
    assert_true(model_config_doubt(&config, text));
    assert_string_equal(text,
                        "config.json lacks hidden_size (2304), vocab_size (256000), which every file that "
                        "transformers saves has: as there the defaults of Gemma2ForCausalLM stand for them");
    json_t *written = model_config_to_json(&config, &err);
    assert_int_equal(model_config_parse(written, &again, &err), 0);
    assert_memory_equal(&config, &again, sizeof(again));
    json_decref(written);
    assert_int_equal(
        parse("{'model_type':'gemma3','text_config':{'model_type':'gemma3_text'}}", &config, &err), 0);
    assert_false(model_config_doubt(&config, text));
    assert_int_equal(parse("{'model_type':'lfm2','hidden_size':64,'num_hidden_layers':2,'vocab_size':64,"
                           "'num_attention_heads':2,'num_key_value_heads':2,'block_ff_dim':96}",
                           &config, &err),
                     0);
    assert_false(model_config_doubt(&config, text));
}

static void refused_whole(const char *text, const char *says)
{
    struct model_config config;
    struct err err = {0};
    if (parse(text, &config, &err) == 0 || !strstr(err.text, says))
        fail_msg("%s: %s", text, err.text);
}

/* Qwen2.5-VL's published files have no text_config; a text_config that ties counts there, too. */
static void language_models_inside_others_are_found(void **state)
{
    static const struct {
        const char *text;
        enum model_arch arch;
        bool tied;
    } cases[] = {
        {"{'model_type':'qwen2_5_vl','vision_config':{},'rope_scaling':{'type':'mrope','mrope_section':[16,"
         "24,24]}}",
         MODEL_QWEN2_5_VL, false},
        {"{'model_type':'qwen2_5_vl','tie_word_embeddings':true}", MODEL_QWEN2_5_VL, true},
        {"{'model_type':'qwen2_5_vl','text_config':{'tie_word_embeddings':true}}", MODEL_QWEN2_5_VL, true},
        {"{'model_type':'qwen3_vl','text_config':{'tie_word_embeddings':true}}", MODEL_QWEN3_VL, false},
        {"{'model_type':'qwen3_5','text_config':{'model_type':'qwen3_5_text'}}", MODEL_QWEN3_5, false},
        {QWEN3_5_MOE(2048, 40, 16, 256, 512, 32, 8), MODEL_QWEN3_5_MOE, false},
        {"{'model_type':'mistral3','tie_word_embeddings':false,'text_config':{'model_type':'ministral3'}}",
         MODEL_MINISTRAL3, false},
        {"{'model_type':'mistral3','text_config':{'hidden_size':32,'intermediate_size':64,'vocab_size':64,"
         "'num_attention_heads':8,'num_hidden_layers':2}}",
         MODEL_MISTRAL, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct model_config config, again;
        struct err err;
        if (parse(cases[i].text, &config, &err) < 0)
            fail_msg("%s: %s", cases[i].text, err.text);
        assert_true(config.nested && config.arch == cases[i].arch && config.tied == cases[i].tied);
        json_t *written = model_config_to_json(&config, &err);
        assert_int_equal(model_config_parse(written, &again, &err), 0);
        assert_memory_equal(&config, &again, sizeof(again));
        json_decref(written);
    }
    refused_whole("{'model_type':'mistral3','text_config':{'model_type':'mistral4'}}",
                  "text_config.model_type: \"mistral4\" is not known inside \"mistral3\"; known are mistral, "
                  "ministral3");
}

#define LATENT                                                                                               \
    "{'model_type':'deepseek_v2','n_routed_experts':8,'n_shared_experts':1,'num_experts_per_tok':2,"         \
    "'moe_intermediate_size':16,"
#define MIXTURE                                                                                              \
    "{'model_type':'glm4_moe','hidden_size':32,'intermediate_size':64,'vocab_size':64,'num_attention_heads'" \
    ":8,"                                                                                                    \
    "'num_hidden_layers':2,'n_routed_experts':8,'n_shared_experts':1,'num_experts_per_tok':2,"               \
    "'moe_intermediate_size':16,"
static void what_is_not_known_is_refused_by_name(void **state)
{
    (void)state;
    refused("model_type", "'falcon'", ERR_UNSUPPORTED, "falcon");
    refused("model_type", "'falcon'", ERR_UNSUPPORTED,
            "llama, mistral, qwen2, qwen3, mixtral, qwen3_moe, olmoe");
    refused("architectures", "['LlamaForSequenceClassification']", ERR_UNSUPPORTED,
            "LlamaForSequenceClassification");
    refused("architectures", "['MistralForCausalLM']", ERR_UNSUPPORTED, "MistralForCausalLM");
    refused("hidden_act", "'gelu'", ERR_UNSUPPORTED, "gelu");
    refused("rope_scaling", "{'rope_type':'spiral','factor':8.0}", ERR_UNSUPPORTED, "spiral");
    refused("quantization_config", "{'bits':4}", ERR_UNSUPPORTED, "quantization_config");
    refused("attention_dropout", "0.1", ERR_UNSUPPORTED, "attention_dropout");
    refused("rope_interleaved", "true", ERR_UNSUPPORTED, "rope_interleaved");
    refused("partial_rotary_factor", "0.5", ERR_UNSUPPORTED, "partial_rotary_factor");
    refused("rope_parameters", "{'full_attention':{'rope_theta':1.0}}", ERR_UNSUPPORTED, "full_attention");
    refused("use_bidirectional_attention", "true", ERR_UNSUPPORTED, "use_bidirectional_attention");
    refused("text_config", "{'model_type':'llama'}", ERR_UNSUPPORTED, "llama");
}

static void settings_that_no_step_has_are_refused_by_name(void **state)
{
    (void)state;
    refused_whole(
        "{'model_type':'gemma4'}",
        "text_config: missing; a model of type \"gemma4\" has one, whose model_type is gemma4_text");
    refused_whole("{'model_type':'gemma4_text','use_bidirectional_attention':'all'}",
                  "use_bidirectional_attention: \"all\" is not supported; only vision is");
    refused_whole("{'model_type':'seed_oss'}", "attention_dropout: 0.1 is not supported");
    refused_whole("{'model_type':'seed_oss','attention_dropout':0.0}", "residual_dropout: 0.1");
    refused_whole("{'model_type':'internlm3','attention_bias':true}",
                  "mlp_bias: differs from attention_bias");
    refused_whole("{'model_type':'ministral3','rope_parameters':{'rope_type':'default','rope_theta':1e6,"
                  "'llama_4_scaling_beta':0.1}}",
                  "\"default\" is not known beside llama_4_scaling_beta");
    refused_whole("{'model_type':'ministral3','rope_parameters':{'rope_type':'yarn','factor':4.0,"
                  "'original_max_position_embeddings':64}}",
                  "llama_4_scaling_beta");
    refused_whole("{'model_type':'granite','residual_multiplier':0.0}", "residual_multiplier");
    refused_whole("{'model_type':'helium','head_dim':64}", "head_dim");
}

static void layer_norms_and_plain_mlps_are_refused_by_name(void **state)
{
    (void)state;
    refused_whole("{'model_type':'starcoder2','embedding_dropout':0.1}",
                  "embedding_dropout: 0.1 is not supported");
    refused_whole("{'model_type':'gpt_neox','hidden_dropout':0.1}", "hidden_dropout: 0.1 is not supported");
    refused_whole("{'model_type':'gpt_neox','hidden_size':6145}", "hidden_size");
    refused_whole("{'model_type':'gpt_neox','num_key_value_heads':8}",
                  "num_key_value_heads: 8 is not supported; only 64 is");
    refused_whole("{'model_type':'phi','qk_layernorm':true}", "qk_layernorm: not supported");
    refused_whole("{'model_type':'cohere','use_qk_norm':true}", "use_qk_norm: not supported");
    refused_whole("{'model_type':'cohere','logit_scale':null}", "logit_scale");
    refused_whole("{'model_type':'starcoder2','hidden_act':'relu'}", "hidden_act: \"relu\" is not supported");
}

static void convolutions_and_states_are_refused_by_name(void **state)
{
    (void)state;
    refused_whole("{'model_type':'qwen3_5_text','linear_conv_kernel_dim':3}", "linear_conv_kernel_dim: 3");
    refused_whole("{'model_type':'qwen3_5_text','linear_key_head_dim':256}", "linear_key_head_dim");
    refused_whole("{'model_type':'qwen3_5_text','linear_num_key_heads':3}", "linear_num_value_heads: 32 is");
    refused_whole("{'model_type':'qwen3_5_text','num_hidden_layers':1,'layer_types':['sliding_attention']}",
                  "layer_types[0]: only linear_attention");
    refused_whole("{'model_type':'lfm2','conv_bias':true}", "conv_bias: not supported; it must be false");
    refused_whole("{'model_type':'lfm2','conv_L_cache':5}", "conv_L_cache: 5 is not supported; 2 to 4 are");
    refused_whole("{'model_type':'lfm2','block_ffn_dim_multiplier':1e-06}",
                  "block_ffn_dim_multiplier: makes");
    refused_whole("{'model_type':'lfm2','num_hidden_layers':1,'layer_types':['linear_attention']}",
                  "layer_types[0]: only conv and full_attention are known");
    refused_whole("{'model_type':'granitemoehybrid'}", "mamba_d_state: 256 is not supported; at most 128 is");
    refused_whole("{'model_type':'granitemoehybrid','mamba_n_groups':2}",
                  "mamba_n_groups: 2 is not supported; only 1 is");
    refused_whole("{'model_type':'granitemoehybrid','mamba_d_conv':3}",
                  "mamba_d_conv: 3 is not supported; only 4 is");
    refused_whole("{'model_type':'granitemoehybrid','mamba_n_heads':64,'mamba_d_head':64}",
                  "mamba_n_heads: 64 heads of 64 are not mamba_expand, 2, times hidden_size, 4096");
    refused_whole("{'model_type':'granitemoehybrid','mamba_conv_bias':false}",
                  "mamba_conv_bias: not supported");
    refused_whole("{'model_type':'granitemoehybrid','mamba_proj_bias':true}",
                  "mamba_proj_bias: not supported");
    refused_whole("{'model_type':'granitemoehybrid','time_step_limit':[0.001,0.1]}",
                  "time_step_limit: not supported");
}

static void experts_and_latent_attention_are_refused_by_name(void **state)
{
    (void)state;
    refused_whole(MIXTURE "'n_group':8,'topk_group':4}", "n_group: 8 is not supported; only 1 is");
    refused_whole(MIXTURE "'first_k_dense_replace':2}",
                  "first_k_dense_replace: leaves no layer with experts");
    refused_whole("{'model_type':'ernie4_5_moe','use_bias':true}", "use_bias: not supported in a mixture");
    refused_whole("{'model_type':'deepseek_v2','attention_bias':true}",
                  "attention_bias: not supported with latent attention; it must be false");
    refused_whole("{'model_type':'deepseek_v2','mlp_bias':true}", "mlp_bias: not supported");
    refused_whole("{'model_type':'deepseek_v2','v_head_dim':256}",
                  "v_head_dim: 256 is not supported; at most 192, the width of q, is");
    refused_whole("{'model_type':'deepseek_v2','num_key_value_heads':8}",
                  "num_key_value_heads: 8 is not supported; only 32 is");
    refused_whole("{'model_type':'deepseek_v2','head_dim':128}",
                  "head_dim: 128 is not supported; only 64 is");
    refused_whole("{'model_type':'deepseek_v2','qk_rope_head_dim':63}", "qk_rope_head_dim: 63 is not even");
    refused_whole("{'model_type':'deepseek_v2','q_lora_rank':0}", "q_lora_rank");
    refused_whole("{'model_type':'deepseek_v3','rope_parameters':{'rope_type':'linear','factor':4.0}}",
                  "rope_parameters: \"linear\" is not known for deepseek_v3; default and yarn are");
    refused_whole(LATENT "'topk_method':'group_limited_greedy','n_group':8,'topk_group':3}",
                  "topk_method: \"group_limited_greedy\" is not supported; only greedy is");
    refused_whole(LATENT "'scoring_func':'sigmoid'}",
                  "scoring_func: \"sigmoid\" is not supported; only softmax is");
    refused_whole(LATENT "'moe_layer_freq':2}", "moe_layer_freq");
    refused_whole(LATENT "'norm_topk_prob':true}", "norm_topk_prob: not supported; it must be false");
    refused_whole(
        "{'model_type':'glm4_moe_lite','num_hidden_layers':2,'n_routed_experts':8,'n_shared_experts':1,"
        "'num_experts_per_tok':2,'moe_intermediate_size':16,'mlp_layer_types':['dense']}",
        "mlp_layer_types: has 1 entries for num_hidden_layers, 2");
}

static void gemma_4_and_gpt_oss_are_refused_by_name(void **state)
{
    (void)state;
    refused_whole("{'model_type':'gemma4_text','vocab_size_per_layer_input':7}",
                  "vocab_size_per_layer_input: 7 is not supported; only vocab_size, 262144, is");
    refused_whole("{'model_type':'gemma4_text','num_kv_shared_layers':30}",
                  "num_kv_shared_layers: 30 of 30 layers leave none with keys and values");
    refused_whole("{'model_type':'gemma4_text','num_kv_shared_layers':25}",
                  "num_kv_shared_layers: no layer in front of the last 25 is like layer 5");
    refused_whole("{'model_type':'gemma4_text','hidden_size_per_layer_input':5000}",
                  "hidden_size_per_layer_input: 5000 for each of 30 layers are more than 131072");
    refused_whole("{'model_type':'gemma4_text','enable_moe_block':true,'num_experts':4,'top_k_experts':2,"
                  "'moe_intermediate_size':8}",
                  "enable_moe_block: true is not supported where hidden_size_per_layer_input is not 0");
    refused_whole("{'model_type':'gemma4_text','hidden_size_per_layer_input':0,"
                  "'per_layer_config':{'05':{'head_dim':8}}}",
                  "per_layer_config: names 1 of the 5 layers without a window, which must be alike");
    refused_whole("{'model_type':'gpt_oss','num_local_experts':4,'num_experts_per_tok':2,'swiglu_limit':0.0}",
                  "swiglu_limit");
    refused_whole("{'model_type':'olmoe','quantization_config':{'quant_method':'mxfp4'}}",
                  "weights quantised by \"mxfp4\" are not read");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_of_the_catalogue_have_their_parameters_to_the_digit),
        cmocka_unit_test(gemma_4_has_heads_of_two_shapes),
        cmocka_unit_test(gemma_4_e2b_lends_keys_and_values),
        cmocka_unit_test(gpt_oss_has_the_published_bytes),
        cmocka_unit_test(adapters_of_llama_8b_have_the_published_size),
        cmocka_unit_test(experts_are_counted_by_copy_and_by_use),
        cmocka_unit_test(heads_of_layers_without_a_window_read_back),
        cmocka_unit_test(what_differs_by_layer_is_asked_of_the_layer),
        cmocka_unit_test(old_and_new_rotary_settings_mean_the_same),
        cmocka_unit_test(the_tiny_architectures_are_told_apart),
        cmocka_unit_test(contradictory_and_missing_sizes_are_refused_by_name),
        cmocka_unit_test(a_nested_config_is_tied_as_the_whole_says),
        cmocka_unit_test(sizes_that_a_file_lacks_are_doubted),
        cmocka_unit_test(language_models_inside_others_are_found),
        cmocka_unit_test(what_is_not_known_is_refused_by_name),
        cmocka_unit_test(settings_that_no_step_has_are_refused_by_name),
        cmocka_unit_test(layer_norms_and_plain_mlps_are_refused_by_name),
        cmocka_unit_test(convolutions_and_states_are_refused_by_name),
        cmocka_unit_test(experts_and_latent_attention_are_refused_by_name),
        cmocka_unit_test(gemma_4_and_gpt_oss_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
