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

#define TWELVE "1,1,1.1,1.2,1.3,1.4,2,3,4.5,6,7,8"
#define FACTORS TWELVE "," TWELVE "," TWELVE "," TWELVE /* factors of 48 frequencies */

/* The config.json of openai/gpt-oss, but for layer_types, which are the class's own. */
#define GPT_OSS(layers, experts)                                                                             \
    "{'architectures':['GptOssForCausalLM'],'model_type':'gpt_oss','attention_bias':true,"                   \
    "'attention_dropout':0.0,'eos_token_id':200002,'experts_per_token':4,'head_dim':64,'hidden_act':'silu'," \
    "'hidden_size':2880,'initial_context_length':4096,'initializer_range':0.02,'intermediate_size':2880,"    \
    "'max_position_embeddings':131072,'num_attention_heads':64,'num_experts_per_tok':4,"                     \
    "'num_hidden_layers':" #layers ",'num_key_value_heads':8,'num_local_experts':" #experts                  \
    ",'output_router_logits':false,'pad_token_id':199999,'quantization_config':{'modules_to_not_convert':["  \
    "'model.layers.*.self_attn','model.layers.*.mlp.router','model.embed_tokens','lm_head'],"                \
    "'quant_method':'mxfp4'},'rms_norm_eps':1e-05,'rope_scaling':{'beta_fast':32.0,'beta_slow':1.0,"         \
    "'factor':32.0,'original_max_position_embeddings':4096,'rope_type':'yarn','truncate':false},"            \
    "'rope_theta':150000,'router_aux_loss_coef':0.9,'sliding_window':128,'swiglu_limit':7.0,"                \
    "'tie_word_embeddings':false,'use_cache':true,'vocab_size':201088}"

static const struct published {
    const char *name;
    uint64_t params;
    const char *json;
} published[] = {
    {"Llama-3.1-8B", 8030261248u,
     "{'architectures':['LlamaForCausalLM'],'model_type':'llama','hidden_size':4096,'intermediate_size':"
     "14336,"
     "'num_attention_heads':32,'num_hidden_layers':32,'num_key_value_heads':8,'vocab_size':128256,"
     "'max_position_embeddings':131072,'rms_norm_eps':1e-05,'hidden_act':'silu','attention_bias':false,"
     "'rope_theta':500000.0,'rope_scaling':{'factor':8.0,'low_freq_factor':1.0,'high_freq_factor':4.0,"
     "'original_max_position_embeddings':8192,'rope_type':'llama3'},'bos_token_id':128000,"
     "'eos_token_id':[128001,128008,128009],'tie_word_embeddings':false,'torch_dtype':'bfloat16'}"},
    {"Llama-3.1-70B", 70553706496u,
     "{'model_type':'llama','hidden_size':8192,'intermediate_size':28672,'num_attention_heads':64,"
     "'num_hidden_layers':80,'num_key_value_heads':8,'vocab_size':128256,'rope_theta':500000.0}"},
    {"Llama-3.1-405B", 405853388800u,
     "{'model_type':'llama','hidden_size':16384,'intermediate_size':53248,'num_attention_heads':128,"
     "'num_hidden_layers':126,'num_key_value_heads':8,'vocab_size':128256,'rope_theta':500000.0}"},
    {"Llama-3.2-1B", 1235814400u,
     "{'model_type':'llama','hidden_size':2048,'intermediate_size':8192,'num_attention_heads':32,'head_dim':"
     "64,"
     "'num_hidden_layers':16,'num_key_value_heads':8,'vocab_size':128256,'tie_word_embeddings':true}"},
    {"SmolLM2-135M", 134515008u,
     "{'model_type':'llama','hidden_size':576,'intermediate_size':1536,'num_attention_heads':9,"
     "'num_hidden_layers':30,'num_key_value_heads':3,'vocab_size':49152,'tie_word_embeddings':true}"},
    {"Mistral-7B-v0.1", 7241732096u,
     "{'model_type':'mistral','architectures':['MistralForCausalLM'],'hidden_size':4096,'intermediate_size':"
     "14336,"
     "'num_attention_heads':32,'num_hidden_layers':32,'num_key_value_heads':8,'vocab_size':32000,"
     "'sliding_window':4096}"},
    {"Mixtral-8x7B-v0.1", 46702792704u,
     "{'model_type':'mixtral','hidden_size':4096,'intermediate_size':14336,'num_attention_heads':32,"
     "'num_hidden_layers':32,'num_key_value_heads':8,'vocab_size':32000,'num_local_experts':8,"
     "'num_experts_per_tok':2,'sliding_window':null,'rope_theta':1000000.0}"},
    {"Qwen2.5-7B", 7615616512u,
     "{'model_type':'qwen2','hidden_size':3584,'intermediate_size':18944,'num_attention_heads':28,"
     "'num_hidden_layers':28,'num_key_value_heads':4,'vocab_size':152064,'use_sliding_window':false,"
     "'sliding_window':131072,'max_window_layers':28}"},
    {"Qwen2.5-0.5B", 494032768u,
     "{'model_type':'qwen2','hidden_size':896,'intermediate_size':4864,'num_attention_heads':14,"
     "'num_hidden_layers':24,'num_key_value_heads':2,'vocab_size':151936,'tie_word_embeddings':true}"},
    {"Qwen3-8B", 8190735360u,
     "{'model_type':'qwen3','hidden_size':4096,'intermediate_size':12288,'num_attention_heads':32,'head_dim':"
     "128,"
     "'num_hidden_layers':36,'num_key_value_heads':8,'vocab_size':151936}"},
    {"Qwen3-30B-A3B", 30532122624u,
     "{'model_type':'qwen3_moe','hidden_size':2048,'intermediate_size':6144,'moe_intermediate_size':768,"
     "'num_attention_heads':32,'head_dim':128,'num_hidden_layers':48,'num_key_value_heads':4,'vocab_size':"
     "151936,"
     "'num_experts':128,'num_experts_per_tok':8,'norm_topk_prob':true,'decoder_sparse_step':1,"
     "'mlp_only_layers':[]}"},
    {"Qwen3-235B-A22B", 235093634560u,
     "{'model_type':'qwen3_moe','hidden_size':4096,'intermediate_size':12288,'moe_intermediate_size':1536,"
     "'num_attention_heads':64,'head_dim':128,'num_hidden_layers':94,'num_key_value_heads':4,'vocab_size':"
     "151936,"
     "'num_experts':128,'num_experts_per_tok':8,'norm_topk_prob':true}"},
    {"OLMoE-1B-7B", 6919161856u,
     "{'model_type':'olmoe','hidden_size':2048,'intermediate_size':1024,'num_attention_heads':16,"
     "'num_hidden_layers':16,'num_key_value_heads':16,'vocab_size':50304,'num_experts':64,"
     "'num_experts_per_tok':8,'norm_topk_prob':false,'clip_qkv':null,'rope_theta':10000.0}"},
    {"Gemma-2-2B", 2614341888u,
     "{'architectures':['Gemma2ForCausalLM'],'model_type':'gemma2','hidden_size':2304,'intermediate_size':"
     "9216,"
     "'num_attention_heads':8,'num_hidden_layers':26,'num_key_value_heads':4,'head_dim':256,'vocab_size':"
     "256000,"
     "'hidden_act':'gelu_pytorch_tanh','hidden_activation':'gelu_pytorch_tanh','query_pre_attn_scalar':256,"
     "'attn_logit_softcapping':50.0,'final_logit_softcapping':30.0,'sliding_window':4096,"
     "'rope_theta':10000.0,'torch_dtype':'float32'}"},
    {"Gemma-2-27B", 27227128320u,
     "{'model_type':'gemma2','hidden_size':4608,'intermediate_size':36864,'num_attention_heads':32,"
     "'num_hidden_layers':46,'num_key_value_heads':16,'head_dim':128,'query_pre_attn_scalar':144}"},
    {"Gemma-3-1B", 999885952u,
     "{'architectures':['Gemma3ForCausalLM'],'model_type':'gemma3_text','hidden_size':1152,"
     "'intermediate_size':6912,'num_attention_heads':4,'num_hidden_layers':26,'num_key_value_heads':1,"
     "'head_dim':256,'vocab_size':262144,'rope_theta':1000000,'rope_local_base_freq':10000,'rope_scaling':"
     "null,"
     "'sliding_window':512,'sliding_window_pattern':6,'attn_logit_softcapping':null,"
     "'final_logit_softcapping':null,'cache_implementation':'hybrid','torch_dtype':'bfloat16'}"},
    {"Gemma-3-4B", 3880263168u,
     "{'architectures':['Gemma3ForConditionalGeneration'],'model_type':'gemma3','boi_token_index':255999,"
     "'eos_token_id':[1,106],'mm_tokens_per_image':256,'text_config':{'hidden_size':2560,"
     "'intermediate_size':10240,'model_type':'gemma3_text','num_hidden_layers':34,'rope_scaling':"
     "{'factor':8.0,'rope_type':'linear'},'sliding_window':1024},'torch_dtype':'bfloat16',"
     "'vision_config':{'hidden_size':1152}}"},
    {"Phi-3-mini-4k", 3821079552u,
     "{'architectures':['Phi3ForCausalLM'],'auto_map':{},'model_type':'phi3','hidden_size':3072,"
     "'intermediate_size':8192,'num_attention_heads':32,'num_hidden_layers':32,'num_key_value_heads':32,"
     "'vocab_size':32064,'max_position_embeddings':4096,'original_max_position_embeddings':4096,"
     "'resid_pdrop':0.0,'embd_pdrop':0.0,'rope_scaling':null,'sliding_window':2047,"
     "'eos_token_id':32000,'tie_word_embeddings':false}"},
    {"Phi-3-mini-128k", 3821079552u,
     "{'model_type':'phi3','hidden_size':3072,'intermediate_size':8192,'num_attention_heads':32,"
     "'num_hidden_layers':32,'vocab_size':32064,'max_position_embeddings':131072,'sliding_window':262144,"
     "'rope_scaling':{'long_factor':[" FACTORS "],'short_factor':[" FACTORS "],'type':'longrope'}}"},
    {"SmolLM3-3B", 3075098624u,
     "{'architectures':['SmolLM3ForCausalLM'],'model_type':'smollm3','hidden_size':2048,"
     "'intermediate_size':11008,'num_attention_heads':16,'num_hidden_layers':36,'num_key_value_heads':4,"
     "'vocab_size':128256,'max_position_embeddings':65536,'max_window_layers':28,'use_sliding_window':false,"
     "'sliding_window':null,'no_rope_layer_interval':4,'rope_theta':5000000.0,'pretraining_tp':2}"},
    {"Gemma-2B", 2506172416u,
     "{'architectures':['GemmaForCausalLM'],'model_type':'gemma','hidden_act':'gelu','hidden_size':2048,"
     "'intermediate_size':16384,'num_attention_heads':8,'num_hidden_layers':18,'num_key_value_heads':1}"},
    {"Granite-3.1-8B", 8170848256u,
     "{'architectures':['GraniteForCausalLM'],'model_type':'granite','hidden_size':4096,"
     "'intermediate_size':12800,'num_hidden_layers':40,'num_key_value_heads':8,'vocab_size':49155,"
     "'rope_theta':10000000.0,'rope_scaling':null,'tie_word_embeddings':true,'attention_dropout':0.0,"
     "'attention_multiplier':0.0078125,'embedding_multiplier':12.0,'logits_scaling':16.0,"
     "'residual_multiplier':0.22}"},
    {"OLMo-2-7B", 7298617344u,
     "{'architectures':['Olmo2ForCausalLM'],'model_type':'olmo2','num_key_value_heads':32,"
     "'vocab_size':100352,'max_position_embeddings':4096,'rms_norm_eps':1e-06,'rope_theta':500000}"},
    {"GLM-4-9B-0414", 9400279040u,
     "{'architectures':['Glm4ForCausalLM'],'model_type':'glm4','attention_bias':true,'head_dim':128,"
     "'partial_rotary_factor':0.5,'eos_token_id':[151329,151336,151338],'rms_norm_eps':1e-05}"},
    {"ERNIE-4.5-0.3B", 360748032u,
     "{'architectures':['Ernie4_5ForCausalLM'],'model_type':'ernie4_5','head_dim':128,'use_bias':false,"
     "'rope_theta':500000}"},
    {"Seed-OSS-36B", 36151104512u,
     "{'architectures':['SeedOssForCausalLM'],'model_type':'seed_oss','hidden_size':5120,"
     "'attention_dropout':0.0,'residual_dropout':0.0,'rope_theta':10000000.0,'mlp_bias':false}"},
    /* the report says 106 billion with the layer that predicts further tokens, which is not used */
    {"GLM-4.5-Air", 106852251264u,
     "{'architectures':['Glm4MoeForCausalLM'],'model_type':'glm4_moe','attention_bias':true,'head_dim':128,"
     "'hidden_size':4096,'intermediate_size':10944,'max_position_embeddings':131072,'moe_intermediate_size':"
     "1408,"
     "'norm_topk_prob':true,'num_attention_heads':96,'n_group':1,'topk_group':1,'n_routed_experts':128,"
     "'n_shared_experts':1,'routed_scaling_factor':1.0,'num_experts_per_tok':8,'first_k_dense_replace':1,"
     "'num_hidden_layers':46,'num_key_value_heads':8,'partial_rotary_factor':0.5,'rms_norm_eps':1e-05,"
     "'rope_theta':1000000,'num_nextn_predict_layers':1,'tie_word_embeddings':false,'use_qk_norm':false,"
     "'vocab_size':151552}"},
    {"Qwen1.5-MoE-A2.7B", 14315784192u,
     "{'architectures':['Qwen2MoeForCausalLM'],'model_type':'qwen2_moe','decoder_sparse_step':1,"
     "'hidden_size':2048,'intermediate_size':5632,'max_position_embeddings':8192,'max_window_layers':21,"
     "'moe_intermediate_size':1408,'norm_topk_prob':false,'num_attention_heads':16,'num_experts':60,"
     "'num_experts_per_tok':4,'num_hidden_layers':24,'num_key_value_heads':16,'rms_norm_eps':1e-06,"
     "'rope_theta':1000000.0,'shared_expert_intermediate_size':5632,'sliding_window':32768,"
     "'use_sliding_window':false,'vocab_size':151936}"},
    {"gpt-oss-20b", 20914757184u, GPT_OSS(24, 32)},
    {"gpt-oss-120b", 116829156672u, GPT_OSS(36, 128)},
};

enum { PUBLISHED = sizeof(published) / sizeof(published[0]) };

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

static void published_parameter_counts_match_to_the_digit(void **state)
{
    (void)state;
    for (int i = 0; i < PUBLISHED; i++) {
        struct model_config config;
        struct block_list list;
        struct err err;
        if (parse(published[i].json, &config, &err) < 0)
            fail_msg("%s: %s", published[i].name, err.text);
        assert_int_equal(model_config_params(&config), published[i].params);
        assert_int_equal(model_blocks(&config, &(struct block_options){0}, &list, &err), 0);
        assert_int_equal(list.params, published[i].params);
        assert_int_equal(list.count, config.layers + 2);
        assert_int_equal(list.blocks[0].kind, BLOCK_EMBEDDING);
        assert_int_equal(list.blocks[list.count - 1].kind, BLOCK_HEAD);
        block_list_fini(&list);
    }
}

static int add_stored_bytes(const struct block_tensor *tensor, void *arg)
{
    uint64_t values = (uint64_t)tensor->shape[0] * tensor->shape[1], *sum = arg;
    bool packed = tensor->what >= ARCH_EXPERT_GATE && tensor->what <= ARCH_EXPERT_DOWN && !tensor->bias;
    *sum += packed ? values / 32 * 17 : 2 * values;
    return 0;
}

/* Experts in MXFP4, all else in bf16: the sums are those of transformers' parameters on its meta device. */
static void gpt_oss_has_the_published_bytes(void **state)
{
    (void)state;
    const uint64_t bytes[] = {13761264768u, 65248815744u};
    for (int i = 0; i < 2; i++) {
        struct model_config c;
        struct err err;
        uint64_t sum = 0;
        assert_int_equal(parse(published[PUBLISHED - 2 + i].json, &c, &err), 0);
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
    struct model_config config;
    struct block_list list;
    struct err err;
    assert_int_equal(parse(published[0].json, &config, &err), 0);
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
    struct model_config config;
    struct block_list list;
    struct err err;
    assert_int_equal(parse(published[6].json, &config, &err), 0);
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

static void a_config_written_out_reads_back_the_same(void **state)
{
    (void)state;
    for (int i = 0; i < PUBLISHED; i++) {
        struct model_config config, again;
        struct err err;
        assert_int_equal(parse(published[i].json, &config, &err), 0);
        json_t *document = model_config_to_json(&config, &err);
        assert_non_null(document);
        if (model_config_parse(document, &again, &err) < 0)
            fail_msg("%s: %s", published[i].name, err.text);
        assert_memory_equal(&config, &again, sizeof(config));
        json_decref(document);
    }
}

static const struct model_config *parsed(const char *name)
{
    static struct model_config config;
    struct err err;
    for (int i = 0; i < PUBLISHED; i++)
        if (strcmp(published[i].name, name) == 0) {
            assert_int_equal(parse(published[i].json, &config, &err), 0);
            return &config;
        }
    fail_msg("no published %s", name);
    return NULL;
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
    assert_true(c->tied && c->gelu && c->norm_offset == 1 && c->qk_norm == 1 && c->attn_softcap == 0);
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
    assert_int_equal(model_lora_targets(c), LORA_ALL & ~(LORA_QKV | LORA_GATE_UP | LORA_DELTA | LORA_SHARED));
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

static void what_is_not_known_is_refused_by_name(void **state)
{
#define MIXTURE                                                                                              \
    "{'model_type':'glm4_moe','hidden_size':32,'intermediate_size':64,'vocab_size':64,'num_attention_heads'" \
    ":8,"                                                                                                    \
    "'num_hidden_layers':2,'n_routed_experts':8,'n_shared_experts':1,'num_experts_per_tok':2,"               \
    "'moe_intermediate_size':16,"
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
    refused_whole("{'model_type':'qwen3_5_text','linear_conv_kernel_dim':3}", "linear_conv_kernel_dim: 3");
    refused_whole("{'model_type':'qwen3_5_text','linear_key_head_dim':256}", "linear_key_head_dim");
    refused_whole("{'model_type':'qwen3_5_text','linear_num_key_heads':3}", "linear_num_value_heads: 32 is");
    refused_whole("{'model_type':'qwen3_5_text','num_hidden_layers':1,'layer_types':['sliding_attention']}",
                  "layer_types[0]: only linear_attention");
    refused_whole(MIXTURE "'n_group':8,'topk_group':4}", "n_group: 8 is not supported; only 1 is");
    refused_whole(MIXTURE "'first_k_dense_replace':2}",
                  "first_k_dense_replace: leaves no layer with experts");
    refused_whole("{'model_type':'ernie4_5_moe','use_bias':true}", "use_bias: not supported in a mixture");
    refused_whole("{'model_type':'gpt_oss','num_local_experts':4,'num_experts_per_tok':2,'swiglu_limit':0.0}",
                  "swiglu_limit");
    refused_whole("{'model_type':'olmoe','quantization_config':{'quant_method':'mxfp4'}}",
                  "weights quantised by \"mxfp4\" are not read");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_parameter_counts_match_to_the_digit),
        cmocka_unit_test(gpt_oss_has_the_published_bytes),
        cmocka_unit_test(adapters_of_llama_8b_have_the_published_size),
        cmocka_unit_test(experts_are_counted_by_copy_and_by_use),
        cmocka_unit_test(a_config_written_out_reads_back_the_same),
        cmocka_unit_test(what_differs_by_layer_is_asked_of_the_layer),
        cmocka_unit_test(old_and_new_rotary_settings_mean_the_same),
        cmocka_unit_test(the_tiny_architectures_are_told_apart),
        cmocka_unit_test(contradictory_and_missing_sizes_are_refused_by_name),
        cmocka_unit_test(a_nested_config_is_tied_as_the_whole_says),
        cmocka_unit_test(language_models_inside_others_are_found),
        cmocka_unit_test(what_is_not_known_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
