/* One entry per architecture. Names that an entry leaves out are Llama's, which most families reuse. The
 * values of absent keys are those of `transformers`; GGUF's names and switches are those of llama.cpp (its
 * gguf-py/gguf/constants.py and convert_hf_to_gguf.py). */
#include "model/shape/arch.h"

#include <math.h>
#include <string.h>

#define LAYER "model.layers.%u."

static const struct arch_name llama_names[ARCH_TENSOR_COUNT] = {
    [ARCH_EMBEDDING] = {"model.embed_tokens", "token_embd"},
    [ARCH_HEAD] = {"lm_head", "output"},
    [ARCH_NORM_FINAL] = {"model.norm", "output_norm"},
    [ARCH_NORM_INPUT] = {LAYER "input_layernorm", "blk.%u.attn_norm"},
    [ARCH_NORM_FFN] = {LAYER "post_attention_layernorm", "blk.%u.ffn_norm"},
    [ARCH_NORM_Q] = {LAYER "self_attn.q_norm", "blk.%u.attn_q_norm"},
    [ARCH_NORM_K] = {LAYER "self_attn.k_norm", "blk.%u.attn_k_norm"},
    [ARCH_Q] = {LAYER "self_attn.q_proj", "blk.%u.attn_q"},
    [ARCH_K] = {LAYER "self_attn.k_proj", "blk.%u.attn_k"},
    [ARCH_V] = {LAYER "self_attn.v_proj", "blk.%u.attn_v"},
    [ARCH_O] = {LAYER "self_attn.o_proj", "blk.%u.attn_output"},
    [ARCH_GATE] = {LAYER "mlp.gate_proj", "blk.%u.ffn_gate"},
    [ARCH_UP] = {LAYER "mlp.up_proj", "blk.%u.ffn_up"},
    [ARCH_DOWN] = {LAYER "mlp.down_proj", "blk.%u.ffn_down"},
    [ARCH_QKV] = {LAYER "self_attn.qkv_proj", "blk.%u.attn_qkv"},
    [ARCH_GATE_UP] = {LAYER "mlp.gate_up_proj", NULL},
    [ARCH_ROUTER] = {LAYER "mlp.gate", "blk.%u.ffn_gate_inp"},
    [ARCH_EXPERT_GATE] = {LAYER "mlp.experts.%u.gate_proj", "blk.%u.ffn_gate_exps"},
    [ARCH_EXPERT_UP] = {LAYER "mlp.experts.%u.up_proj", "blk.%u.ffn_up_exps"},
    [ARCH_EXPERT_DOWN] = {LAYER "mlp.experts.%u.down_proj", "blk.%u.ffn_down_exps"},
};

#define GEMMA_NORMS                                                                                          \
    [ARCH_NORM_ATTENTION_POST] = {LAYER "post_attention_layernorm", "blk.%u.post_attention_norm"},           \
    [ARCH_NORM_FFN] = {LAYER "pre_feedforward_layernorm", "blk.%u.ffn_norm"},                                \
    [ARCH_NORM_FFN_POST] = {LAYER "post_feedforward_layernorm", "blk.%u.post_ffw_norm"}

#define OLMO_NORMS                                                                                           \
    [ARCH_NORM_INPUT] = {"", NULL},                                                                          \
    [ARCH_NORM_ATTENTION_POST] = {LAYER "post_attention_layernorm", "blk.%u.post_attention_norm"},           \
    [ARCH_NORM_FFN] = {"", NULL},                                                                            \
    [ARCH_NORM_FFN_POST] = {LAYER "post_feedforward_layernorm", "blk.%u.post_ffw_norm"}

#define DELTA_NAMES                                                                                          \
    [ARCH_DELTA_QKV] = {LAYER "linear_attn.in_proj_qkv", NULL},                                              \
    [ARCH_DELTA_Z] = {LAYER "linear_attn.in_proj_z", NULL},                                                  \
    [ARCH_DELTA_B] = {LAYER "linear_attn.in_proj_b", NULL},                                                  \
    [ARCH_DELTA_A] = {LAYER "linear_attn.in_proj_a", NULL},                                                  \
    [ARCH_DELTA_OUT] = {LAYER "linear_attn.out_proj", NULL},                                                 \
    [ARCH_DELTA_CONV] = {LAYER "linear_attn.conv1d", NULL},                                                  \
    [ARCH_DELTA_DECAY] = {LAYER "linear_attn.A_log", NULL},                                                  \
    [ARCH_DELTA_DT_BIAS] = {LAYER "linear_attn.dt_bias", NULL},                                              \
    [ARCH_DELTA_NORM] = {LAYER "linear_attn.norm", NULL}

#define GLM_SIZES                                                                                            \
    .hidden = 4096, .layers = 40, .heads = 32, .ffn = 13696, .vocab = 151552, .pad = 151329,                 \
    .max_positions = 131072, .kv_heads = 2, .head_dim = 128, .norm_eps = 1.5625e-7, .theta = 1e4,            \
    .bias = {.qkv = "attention_bias", .qkv_default = true}

#define BIASES_ATTENTION {.qkv = "attention_bias", .o = "attention_bias"}
#define BIASES_ALL {.qkv = "attention_bias", .o = "attention_bias", .ffn = "mlp_bias"}

static const struct arch archs[MODEL_ARCH_COUNT] = {
    [MODEL_LLAMA] = {.model_type = "llama",
                     .class_name = "LlamaForCausalLM",
                     .gguf = "llama",
                     .max_positions = 2048,
                     .norm_eps = 1e-6,
                     .theta = 1e4,
                     .bias = BIASES_ALL,
                     .whole_heads = true,
                     .gguf_permutes = true},
    [MODEL_MISTRAL] = {.model_type = "mistral",
                       .class_name = "MistralForCausalLM",
                       .gguf = "llama",
                       .max_positions = 131072,
                       .kv_heads = 8,
                       .window = 4096,
                       .norm_eps = 1e-6,
                       .theta = 1e4,
                       .windows = ARCH_WINDOW_EVERY,
                       .gguf_permutes = true},
    [MODEL_QWEN2] = {.model_type = "qwen2",
                     .class_name = "Qwen2ForCausalLM",
                     .gguf = "qwen2",
                     .max_positions = 32768,
                     .kv_heads = 32,
                     .window = 4096,
                     .max_window_layers = 28,
                     .norm_eps = 1e-6,
                     .theta = 1e4,
                     .bias = {.qkv_always = true},
                     .windows = ARCH_WINDOW_FROM},
    [MODEL_QWEN3] = {.model_type = "qwen3",
                     .class_name = "Qwen3ForCausalLM",
                     .gguf = "qwen3",
                     .max_positions = 32768,
                     .kv_heads = 32,
                     .head_dim = 128,
                     .window = 4096,
                     .max_window_layers = 28,
                     .norm_eps = 1e-6,
                     .theta = 1e4,
                     .bias = BIASES_ATTENTION,
                     .windows = ARCH_WINDOW_FROM,
                     .qk_norm = 1},
    [MODEL_GEMMA2] = {.model_type = "gemma2",
                      .class_name = "Gemma2ForCausalLM",
                      .gguf = "gemma2",
                      .names = {GEMMA_NORMS},
                      .hidden = 2304,
                      .layers = 26,
                      .heads = 8,
                      .ffn = 9216,
                      .vocab = 256000,
                      .max_positions = 8192,
                      .kv_heads = 4,
                      .head_dim = 256,
                      .window = 4096,
                      .window_period = 2,
                      .norm_eps = 1e-6,
                      .theta = 1e4,
                      .attention_cap = 50,
                      .logit_cap = 30,
                      .attention_scalar = 256,
                      .tied = true,
                      .bias = BIASES_ATTENTION,
                      .windows = ARCH_WINDOW_BUT_LAST,
                      .post_norms = true,
                      .gelu = true,
                      .embed_scaled = true,
                      .norm_offset = 1,
                      .whole_heads = true,
                      .gguf_scaled_layers = 46},
    [MODEL_GEMMA3] = {.model_type = "gemma3_text",
                      .class_name = "Gemma3ForCausalLM",
                      .gguf = "gemma3",
                      .names = {GEMMA_NORMS},
                      .hidden = 2304,
                      .layers = 26,
                      .heads = 8,
                      .ffn = 9216,
                      .vocab = 262208,
                      .max_positions = 131072,
                      .kv_heads = 4,
                      .head_dim = 256,
                      .window = 4096,
                      .window_period = 6,
                      .norm_eps = 1e-6,
                      .theta = 1e6,
                      .theta_local = 1e4,
                      .attention_scalar = 256,
                      .tied = true,
                      .bias = BIASES_ATTENTION,
                      .windows = ARCH_WINDOW_BUT_LAST,
                      .qk_norm = 1,
                      .post_norms = true,
                      .gelu = true,
                      .embed_scaled = true,
                      .norm_offset = 1,
                      .window_period_given = true,
                      .whole_heads = true,
                      .rope_by_type = true,
                      .theta_local_key = "rope_local_base_freq",
                      .gguf_scaled_layers = 62},
    [MODEL_PHI3] = {.model_type = "phi3",
                    .class_name = "Phi3ForCausalLM",
                    .gguf = "phi3",
                    .names = {[ARCH_GATE_UP] = {LAYER "mlp.gate_up_proj", "blk.%u.ffn_up"},
                              [ARCH_UP] = {LAYER "mlp.up_proj", NULL}},
                    .hidden = 3072,
                    .layers = 32,
                    .heads = 32,
                    .ffn = 8192,
                    .vocab = 32064,
                    .pad = 32000,
                    .max_positions = 4096,
                    .norm_eps = 1e-5,
                    .theta = 1e4,
                    .windows = ARCH_WINDOW_EVERY,
                    .packed_qkv = true,
                    .packed_gate_up = true,
                    .partial_rotary = 1},
    [MODEL_SMOLLM3] = {.model_type = "smollm3",
                       .class_name = "SmolLM3ForCausalLM",
                       .gguf = "smollm3",
                       .hidden = 2048,
                       .layers = 36,
                       .heads = 16,
                       .ffn = 11008,
                       .vocab = 128256,
                       .pad = 128004,
                       .max_positions = 32768,
                       .kv_heads = 4,
                       .norm_eps = 1e-6,
                       .theta = 2e6,
                       .tied = true,
                       .bias = BIASES_ALL,
                       .windows = ARCH_WINDOW_UNROTATED,
                       .no_rope_period = 4,
                       .gguf_permutes = true},
    [MODEL_GEMMA] = {.model_type = "gemma",
                     .class_name = "GemmaForCausalLM",
                     .gguf = "gemma",
                     .hidden = 3072,
                     .layers = 28,
                     .heads = 16,
                     .ffn = 24576,
                     .vocab = 256000,
                     .max_positions = 8192,
                     .kv_heads = 16,
                     .head_dim = 256,
                     .norm_eps = 1e-6,
                     .theta = 1e4,
                     .tied = true,
                     .bias = BIASES_ATTENTION,
                     .gelu = true,
                     .gelu_as_act = true,
                     .embed_scaled = true,
                     .norm_offset = 1},
    [MODEL_GRANITE] = {.model_type = "granite",
                       .class_name = "GraniteForCausalLM",
                       .gguf = "granite",
                       .hidden = 4096,
                       .layers = 32,
                       .heads = 32,
                       .ffn = 11008,
                       .vocab = 32000,
                       .max_positions = 2048,
                       .norm_eps = 1e-6,
                       .theta = 1e4,
                       .bias = BIASES_ALL,
                       .multipliers = true,
                       .gguf_permutes = true},
    [MODEL_OLMO2] = {.model_type = "olmo2",
                     .class_name = "Olmo2ForCausalLM",
                     .gguf = "olmo2",
                     .names = {OLMO_NORMS},
                     .hidden = 4096,
                     .layers = 32,
                     .heads = 32,
                     .ffn = 11008,
                     .vocab = 50304,
                     .pad = 1,
                     .max_positions = 2048,
                     .norm_eps = 1e-5,
                     .theta = 1e4,
                     .bias = BIASES_ATTENTION,
                     .qk_norm = 2,
                     .post_norms = true,
                     .no_pre_norms = true},
    [MODEL_OLMO3] = {.model_type = "olmo3",
                     .class_name = "Olmo3ForCausalLM",
                     .names = {OLMO_NORMS},
                     .hidden = 4096,
                     .layers = 32,
                     .heads = 32,
                     .ffn = 11008,
                     .vocab = 50304,
                     .pad = 1,
                     .max_positions = 2048,
                     .window = 4096,
                     .window_period = 4,
                     .norm_eps = 1e-5,
                     .theta = 5e5,
                     .theta_local = 5e5,
                     .bias = BIASES_ATTENTION,
                     .windows = ARCH_WINDOW_BUT_LAST,
                     .qk_norm = 2,
                     .post_norms = true,
                     .no_pre_norms = true,
                     .rope_by_type = true},
    [MODEL_HELIUM] = {.model_type = "helium",
                      .class_name = "HeliumForCausalLM",
                      .hidden = 2560,
                      .layers = 24,
                      .heads = 20,
                      .ffn = 7040,
                      .vocab = 48000,
                      .pad = 3,
                      .max_positions = 4096,
                      .kv_heads = 20,
                      .head_dim = 128,
                      .norm_eps = 1e-8,
                      .theta = 1e5,
                      .bias = {.qkv = "attention_bias", .ffn = "mlp_bias"},
                      .rope_adjacent = true,
                      .heads_fill_hidden = true},
    [MODEL_ERNIE] = {.model_type = "ernie4_5",
                     .class_name = "Ernie4_5ForCausalLM",
                     .gguf = "ernie4_5",
                     .hidden = 1024,
                     .layers = 18,
                     .heads = 16,
                     .ffn = 3072,
                     .vocab = 103424,
                     .max_positions = 131072,
                     .kv_heads = 2,
                     .head_dim = 128,
                     .norm_eps = 1e-5,
                     .theta = 5e5,
                     .tied = true,
                     .bias = {.qkv = "use_bias", .o = "use_bias", .ffn = "use_bias"},
                     .rope_adjacent = true},
    [MODEL_GLM] = {.model_type = "glm",
                   .class_name = "GlmForCausalLM",
                   .names = {[ARCH_GATE_UP] = {LAYER "mlp.gate_up_proj", "blk.%u.ffn_up"},
                             [ARCH_UP] = {LAYER "mlp.up_proj", NULL}},
                   GLM_SIZES,
                   .partial_rotary = 0.5,
                   .packed_gate_up = true,
                   .rope_adjacent = true},
    [MODEL_GLM4] = {.model_type = "glm4",
                    .class_name = "Glm4ForCausalLM",
                    .gguf = "glm4",
                    .names = {[ARCH_GATE_UP] = {LAYER "mlp.gate_up_proj", "blk.%u.ffn_up"},
                              [ARCH_UP] = {LAYER "mlp.up_proj", NULL},
                              [ARCH_NORM_ATTENTION_POST] = {LAYER "post_self_attn_layernorm",
                                                            "blk.%u.post_attention_norm"},
                              [ARCH_NORM_FFN_POST] = {LAYER "post_mlp_layernorm", "blk.%u.post_ffw_norm"}},
                    GLM_SIZES,
                    .partial_rotary = 0.5,
                    .post_norms = true,
                    .packed_gate_up = true,
                    .rope_adjacent = true},
    [MODEL_SEED_OSS] = {.model_type = "seed_oss",
                        .class_name = "SeedOssForCausalLM",
                        .gguf = "seed_oss",
                        .names = {[ARCH_NORM_FFN] = {LAYER "post_attention_layernorm",
                                                     "blk.%u.post_attention_norm"}},
                        .hidden = 4096,
                        .layers = 64,
                        .heads = 80,
                        .ffn = 27648,
                        .vocab = 155136,
                        .pad = 1,
                        .max_positions = 524288,
                        .kv_heads = 8,
                        .head_dim = 128,
                        .norm_eps = 1e-6,
                        .theta = 1e4,
                        .dropout = 0.1,
                        .bias = {.qkv = "attention_bias",
                                 .o = "attention_out_bias",
                                 .ffn = "mlp_bias",
                                 .qkv_default = true}},
    [MODEL_INTERNLM3] = {.model_type = "internlm3",
                         .class_name = "InternLM3ForCausalLM",
                         .class_too = "LlamaForCausalLM",
                         .gguf = "llama",
                         .hidden = 4096,
                         .layers = 48,
                         .heads = 32,
                         .ffn = 10240,
                         .vocab = 128512,
                         .pad = 2,
                         .max_positions = 32768,
                         .kv_heads = 2,
                         .head_dim = 128,
                         .norm_eps = 1e-5,
                         .theta = 1e4,
                         .bias = BIASES_ALL,
                         .bias_alike = true,
                         .whole_heads = true,
                         .gguf_permutes = true},
    [MODEL_MINISTRAL] = {.model_type = "ministral",
                         .class_name = "MinistralForCausalLM",
                         .gguf = "llama",
                         .hidden = 4096,
                         .layers = 32,
                         .heads = 32,
                         .ffn = 14336,
                         .vocab = 32000,
                         .max_positions = 131072,
                         .kv_heads = 8,
                         .window = 4096,
                         .norm_eps = 1e-6,
                         .theta = 1e4,
                         .windows = ARCH_WINDOW_ALL,
                         .gguf_permutes = true},
    [MODEL_MINISTRAL3] = {.model_type = "ministral3",
                          .class_name = "Ministral3ForCausalLM",
                          .gguf = "mistral3",
                          .hidden = 4096,
                          .layers = 34,
                          .heads = 32,
                          .ffn = 14336,
                          .vocab = 131072,
                          .pad = 11,
                          .max_positions = 262144,
                          .kv_heads = 8,
                          .head_dim = 128,
                          .norm_eps = 1e-5,
                          .theta = 1e4,
                          .windows = ARCH_WINDOW_EVERY,
                          .query_beta = true,
                          .rope_default =
                              "{\"rope_type\": \"yarn\", \"rope_theta\": 1000000.0, \"factor\": 16.0, "
                              "\"original_max_position_embeddings\": 16384, \"beta_fast\": 32.0, "
                              "\"beta_slow\": 1.0, \"mscale_all_dim\": 1.0, \"mscale\": 1.0, "
                              "\"llama_4_scaling_beta\": 0.1}",
                          .gguf_permutes = true},
    [MODEL_CWM] = {.model_type = "cwm",
                   .class_name = "CwmForCausalLM",
                   .hidden = 6144,
                   .layers = 64,
                   .heads = 48,
                   .ffn = 21504,
                   .vocab = 128256,
                   .max_positions = 131072,
                   .kv_heads = 8,
                   .head_dim = 128,
                   .window = 8192,
                   .window_period = 4,
                   .norm_eps = 1e-5,
                   .theta = 1e6,
                   .bias = {.ffn = "mlp_bias"},
                   .windows = ARCH_WINDOW_BUT_FIRST,
                   .whole_heads = true,
                   .rope_default = "{\"rope_type\": \"llama3\", \"rope_theta\": 1000000.0, \"factor\": 16.0, "
                                   "\"high_freq_factor\": 4.0, \"low_freq_factor\": 1.0, "
                                   "\"original_max_position_embeddings\": 8192}"},
    [MODEL_QWEN2_5_VL] = {.model_type = "qwen2_5_vl_text",
                          .class_name = "Qwen2_5_VLTextModel",
                          .hidden = 8192,
                          .layers = 80,
                          .heads = 64,
                          .ffn = 29568,
                          .vocab = 152064,
                          .max_positions = 32768,
                          .kv_heads = 8,
                          .window = 4096,
                          .max_window_layers = 80,
                          .norm_eps = 1e-5,
                          .theta = 1e6,
                          .bias = {.qkv_always = true},
                          .windows = ARCH_WINDOW_FROM,
                          .rope_sections = true},
    [MODEL_QWEN3_VL] = {.model_type = "qwen3_vl_text",
                        .class_name = "Qwen3VLTextModel",
                        .hidden = 4096,
                        .layers = 32,
                        .heads = 32,
                        .ffn = 22016,
                        .vocab = 151936,
                        .max_positions = 128000,
                        .kv_heads = 32,
                        .head_dim = 128,
                        .norm_eps = 1e-6,
                        .theta = 5e5,
                        .bias = BIASES_ATTENTION,
                        .qk_norm = 1,
                        .rope_sections = true},
    [MODEL_QWEN3_5] = {.model_type = "qwen3_5_text",
                       .class_name = "Qwen3_5ForCausalLM",
                       .names = {DELTA_NAMES},
                       .hidden = 4096,
                       .layers = 32,
                       .heads = 16,
                       .ffn = 12288,
                       .vocab = 248320,
                       .max_positions = 32768,
                       .kv_heads = 4,
                       .head_dim = 256,
                       .norm_eps = 1e-6,
                       .theta = 1e4,
                       .norm_offset = 1,
                       .partial_rotary = 0.25,
                       .bias = BIASES_ATTENTION,
                       .qk_norm = 1,
                       .attn_gate = true,
                       .delta = true,
                       .rope_sections = true},
    [MODEL_MIXTRAL] =
        {.model_type = "mixtral",
         .class_name = "MixtralForCausalLM",
         .w_names = true,
         .gguf = "llama",
         .names = {[ARCH_ROUTER] = {LAYER "block_sparse_moe.gate", "blk.%u.ffn_gate_inp"},
                   [ARCH_EXPERT_GATE] = {LAYER "block_sparse_moe.experts.%u.w1", "blk.%u.ffn_gate_exps"},
                   [ARCH_EXPERT_UP] = {LAYER "block_sparse_moe.experts.%u.w3", "blk.%u.ffn_up_exps"},
                   [ARCH_EXPERT_DOWN] = {LAYER "block_sparse_moe.experts.%u.w2", "blk.%u.ffn_down_exps"}},
         .router_too = LAYER "mlp.gate",
         .max_positions = 131072,
         .kv_heads = 8,
         .norm_eps = 1e-5,
         .theta = 1e6,
         .aux_coef = 0.001,
         .windows = ARCH_WINDOW_EVERY,
         .sparse = true,
         .experts_key = "num_local_experts",
         .renormalise = true,
         .gguf_permutes = true,
         .gguf_renormalise = true},
    [MODEL_QWEN3_MOE] = {.model_type = "qwen3_moe",
                         .class_name = "Qwen3MoeForCausalLM",
                         .gguf = "qwen3moe",
                         .max_positions = 32768,
                         .kv_heads = 4,
                         .window = 4096,
                         .norm_eps = 1e-6,
                         .theta = 1e4,
                         .aux_coef = 0.001,
                         .bias = BIASES_ATTENTION,
                         .windows = ARCH_WINDOW_SWITCHED,
                         .qk_norm = 1,
                         .sparse = true,
                         .experts_key = "num_experts",
                         .expert_ffn_key = "moe_intermediate_size",
                         .dense_layers = true,
                         .gguf_renormalise = true},
    [MODEL_OLMOE] = {.model_type = "olmoe",
                     .class_name = "OlmoeForCausalLM",
                     .gguf = "olmoe",
                     .max_positions = 4096,
                     .norm_eps = 1e-5,
                     .theta = 1e4,
                     .aux_coef = 0.01,
                     .bias = BIASES_ATTENTION,
                     .qk_norm = 2,
                     .heads_fill_hidden = true,
                     .sparse = true,
                     .experts_key = "num_experts"},
};

/* Names of tensors that hold all experts of a layer (transformers 5's own layout, and GGUF), and of older
 * GGUF files' tensors, one for each expert. */
static const struct {
    const char *hf, *gguf;
    enum arch_tensor parts[2];
    uint32_t part_count;
    bool stacked;
} expert_names[] = {
    {LAYER "mlp.experts.gate_up_proj",
     "blk.%u.ffn_gate_up_exps",
     {ARCH_EXPERT_GATE, ARCH_EXPERT_UP},
     2,
     true},
    {LAYER "mlp.experts.down_proj", NULL, {ARCH_EXPERT_DOWN}, 1, true},
    {NULL, "blk.%u.ffn_gate.%u", {ARCH_EXPERT_GATE}, 1, false},
    {NULL, "blk.%u.ffn_up.%u", {ARCH_EXPERT_UP}, 1, false},
    {NULL, "blk.%u.ffn_down.%u", {ARCH_EXPERT_DOWN}, 1, false},
};

const struct arch *arch_of(enum model_arch arch)
{
    return &archs[arch];
}

const char *arch_act_key(const struct arch *arch)
{
    return arch->gelu && !arch->gelu_as_act ? "hidden_activation" : "hidden_act";
}

const char *model_arch_name(enum model_arch arch)
{
    return (unsigned)arch < MODEL_ARCH_COUNT ? archs[arch].model_type : "unknown";
}

int arch_find(const char *model_type)
{
    for (int i = 0; i < MODEL_ARCH_COUNT; i++)
        if (strcmp(model_type, archs[i].model_type) == 0)
            return i;
    return -1;
}

static const struct arch_outer outers[] = {
    {.type = "gemma3", .class_name = "Gemma3ForConditionalGeneration", .inner = MODEL_GEMMA3, .tied = true},
    {.type = "mistral3",
     .class_name = "Mistral3ForConditionalGeneration",
     .inner = MODEL_MISTRAL,
     .tied = true},
    {.type = "mistral3",
     .class_name = "Mistral3ForConditionalGeneration",
     .inner = MODEL_MINISTRAL3,
     .tied = true},
    {.type = "qwen2_5_vl",
     .class_name = "Qwen2_5_VLForConditionalGeneration",
     .inner = MODEL_QWEN2_5_VL,
     .flat = true,
     .inner_ties = true},
    {.type = "qwen3_5", .class_name = "Qwen3_5ForConditionalGeneration", .inner = MODEL_QWEN3_5},
    {.type = "qwen3_vl", .class_name = "Qwen3VLForConditionalGeneration", .inner = MODEL_QWEN3_VL},
};
enum { OUTERS = sizeof(outers) / sizeof(outers[0]) };

const struct arch_outer *arch_outer_find(const char *type, const char *inner_type)
{
    for (size_t i = 0; i < OUTERS; i++)
        if (strcmp(type, outers[i].type) == 0 &&
            (!inner_type || strcmp(inner_type, archs[outers[i].inner].model_type) == 0))
            return &outers[i];
    return NULL;
}

static size_t list_add(char *text, size_t size, size_t used, const char *name)
{
    size_t length = strlen(name), comma = used ? 2 : 0;
    if (used + comma + length + 1 > size)
        return used;
    memcpy(text + used, ", ", comma);
    memcpy(text + used + comma, name, length + 1);
    return used + comma + length;
}

void arch_outer_list(const char *type, char *text, size_t size)
{
    size_t used = 0;
    text[0] = 0;
    for (size_t i = 0; i < OUTERS; i++)
        if (strcmp(type, outers[i].type) == 0)
            used = list_add(text, size, used, archs[outers[i].inner].model_type);
}

int arch_find_gguf(const char *text, size_t size, bool sparse)
{
    for (int i = 0; i < MODEL_ARCH_COUNT; i++) {
        const char *name = archs[i].gguf;
        if (name && archs[i].sparse == sparse && strlen(name) == size && memcmp(name, text, size) == 0)
            return i;
    }
    return -1;
}

void arch_list(bool gguf, char *text, size_t size)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < MODEL_ARCH_COUNT; i++) {
        const char *name = gguf ? archs[i].gguf : archs[i].model_type;
        bool again = !name;
        for (int k = 0; k < i && !again; k++)
            again = gguf && archs[k].gguf && strcmp(archs[k].gguf, name) == 0;
        if (!again)
            used = list_add(text, size, used, name);
    }
}

void arch_fill(struct model_config *c)
{
    const struct arch *a = &archs[c->arch];
    c->qk_norm = a->qk_norm;
    c->packed_qkv = a->packed_qkv;
    c->packed_gate_up = a->packed_gate_up;
    c->post_norms = a->post_norms;
    c->no_pre_norms = a->no_pre_norms;
    c->rope_adjacent = a->rope_adjacent;
    c->gelu = a->gelu;
    c->attn_gate = a->attn_gate;
    c->norm_offset = a->norm_offset;
    if (a->embed_scaled)
        c->embed_scale = sqrt((double)c->hidden);
}

/* --- names --- */

static const char *name_of(enum model_arch arch, enum arch_tensor tensor, bool gguf)
{
    const struct arch_name *own = &archs[arch].names[tensor], *n = own->hf ? own : &llama_names[tensor];
    return gguf ? n->gguf : n->hf;
}

static char *append(char *at, const char *end, const char *text, size_t size)
{
    size_t room = (size_t)(end - at);
    size = size < room ? size : room;
    memcpy(at, text, size);
    return at + size;
}

/* Writes the pattern with layer and expert in place of its %u, then the suffix. */
static void expand(const char *pattern, uint32_t layer, uint32_t expert, const char *suffix,
                   char name[ARCH_NAME_MAX])
{
    char *at = name, *end = name + ARCH_NAME_MAX - 1;
    uint32_t number = layer;
    for (const char *p = pattern; *p;) {
        const char *next = strstr(p, "%u");
        at = append(at, end, p, next ? (size_t)(next - p) : strlen(p));
        if (!next)
            break;
        char digits[10];
        size_t n = 0;
        do
            digits[sizeof(digits) - ++n] = (char)('0' + number % 10);
        while ((number /= 10) > 0);
        at = append(at, end, digits + sizeof(digits) - n, n);
        number = expert;
        p = next + 2;
    }
    *append(at, end, suffix, strlen(suffix)) = 0;
}

void arch_tensor_name(enum model_arch arch, enum arch_tensor tensor, uint32_t layer, uint32_t expert,
                      const char *suffix, char name[ARCH_NAME_MAX])
{
    const char *pattern = name_of(arch, tensor, false);
    expand(pattern ? pattern : "", layer, expert, suffix, name);
}

bool arch_gguf_name(enum model_arch arch, enum arch_tensor tensor, uint32_t layer, const char *suffix,
                    char name[ARCH_NAME_MAX])
{
    const char *pattern = name_of(arch, tensor, true);
    expand(pattern ? pattern : "", layer, 0, suffix, name);
    return pattern != NULL;
}

/* Returns the rest of 'name' behind the pattern, or NULL when it does not match. The numbers that 'name' has
 * in place of the pattern's %u go to numbers[2]. */
static const char *match_pattern(const char *pattern, const char *name, uint32_t numbers[2])
{
    const char *p = pattern;
    size_t at = 0; /* in the name */
    for (uint32_t found = 0; *p;) {
        if (p[0] != '%') {
            if (*p++ != name[at++])
                return NULL;
            continue;
        }
        uint32_t value = 0, digits = 0;
        for (; name[at] >= '0' && name[at] <= '9' && digits < 6; digits++)
            value = 10 * value + (uint32_t)(name[at++] - '0');
        if (digits == 0 || found == 2)
            return NULL;
        numbers[found++] = value;
        p += 2;
    }
    return name + at;
}

static bool match_name(const char *pattern, const char *name, bool bare, struct arch_match *match)
{
    uint32_t numbers[2] = {0, 0};
    const char *suffix = pattern ? match_pattern(pattern, name, numbers) : NULL;
    if (!suffix || !(strcmp(suffix, ".weight") == 0 || strcmp(suffix, ".bias") == 0 || (bare && !*suffix)) ||
        numbers[0] >= MODEL_LAYERS_MAX || numbers[1] >= MODEL_EXPERTS_MAX)
        return false;
    match->suffix = suffix;
    match->layer = numbers[0];
    match->expert = numbers[1];
    return true;
}

static bool match_any(enum model_arch arch, const char *name, bool gguf, struct arch_match *match)
{
    int count = archs[arch].sparse ? ARCH_TENSOR_COUNT : ARCH_ROUTER;
    *match = (struct arch_match){.part_count = 1};
    for (int t = 0; t < count; t++)
        if (match_name(name_of(arch, (enum arch_tensor)t, gguf), name,
                       t == ARCH_DELTA_DECAY || t == ARCH_DELTA_DT_BIAS, match)) {
            match->parts[0] = (enum arch_tensor)t;
            match->stacked = gguf && t >= ARCH_EXPERT_GATE;
            return true;
        }
    for (size_t i = 0; archs[arch].sparse && i < sizeof(expert_names) / sizeof(expert_names[0]); i++)
        if (match_name(gguf ? expert_names[i].gguf : expert_names[i].hf, name, !gguf, match)) {
            memcpy(match->parts, expert_names[i].parts, sizeof(match->parts));
            match->part_count = expert_names[i].part_count;
            match->stacked = expert_names[i].stacked;
            return true;
        }
    match->parts[0] = ARCH_ROUTER;
    return !gguf && match_name(archs[arch].router_too, name, false, match);
}

/* Matches the name with "model." put before it, for files that leave it out; the suffix points into
 * 'name'. */
static bool match_body(enum model_arch arch, const char *name, struct arch_match *match)
{
    char full[ARCH_NAME_MAX] = "model.";
    size_t length = strlen(name);
    if (length >= sizeof(full) - 6)
        return false;
    memcpy(full + 6, name, length + 1);
    if (!match_any(arch, full, false, match))
        return false;
    match->suffix = name + (match->suffix - full - 6);
    return true;
}

bool arch_match_hf(enum model_arch arch, const char *name, struct arch_match *match)
{
    static const char outer[] = "language_model.", inner[] = "model.language_model.";
    bool inside = false;
    for (size_t i = 0; i < OUTERS; i++)
        inside = inside || outers[i].inner == arch;
    if (inside && strncmp(name, outer, sizeof(outer) - 1) == 0)
        name += sizeof(outer) - 1;
    if (inside && strncmp(name, inner, sizeof(inner) - 1) == 0)
        return match_body(arch, name + sizeof(inner) - 1, match);
    return match_any(arch, name, false, match) || match_body(arch, name, match);
}

bool arch_match_gguf(enum model_arch arch, const char *name, struct arch_match *match)
{
    return match_any(arch, name, true, match);
}
