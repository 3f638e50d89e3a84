/* Internal to model/shape: what several rows of the table of architectures (arch_table.c) have in common. */
#ifndef MOTLEY_MODEL_SHAPE_ARCH_ROWS_H
#define MOTLEY_MODEL_SHAPE_ARCH_ROWS_H

#include "model/shape/arch_private.h"

#define LAYER ARCH_LAYER

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

#define MAMBA_NAMES                                                                                          \
    [ARCH_CONV_IN] = {LAYER "mamba.in_proj", NULL}, [ARCH_DELTA_OUT] = {LAYER "mamba.out_proj", NULL},       \
    [ARCH_DELTA_CONV] = {LAYER "mamba.conv1d", NULL}, [ARCH_DELTA_DECAY] = {LAYER "mamba.A_log", NULL},      \
    [ARCH_DELTA_DT_BIAS] = {LAYER "mamba.dt_bias", NULL}, [ARCH_DELTA_SKIP] = {LAYER "mamba.D", NULL},       \
    [ARCH_DELTA_NORM] = {LAYER "mamba.norm", NULL}

#define DELTA_PACKED_NAMES                                                                                   \
    [ARCH_DELTA_QKVZ] = {LAYER "linear_attn.in_proj_qkvz", NULL}, [ARCH_DELTA_BA] = {                        \
                                                                      LAYER "linear_attn.in_proj_ba", NULL}

#define SHARED_EXPERT_NAMES                                                                                  \
    [ARCH_SHARED_GATE] = {LAYER "mlp.shared_expert.gate_proj", "blk.%u.ffn_gate_shexp"},                     \
    [ARCH_SHARED_UP] = {LAYER "mlp.shared_expert.up_proj", "blk.%u.ffn_up_shexp"},                           \
    [ARCH_SHARED_DOWN] = {LAYER "mlp.shared_expert.down_proj", "blk.%u.ffn_down_shexp"}

#define GLM_SIZES                                                                                            \
    .hidden = 4096, .layers = 40, .heads = 32, .ffn = 13696, .vocab = 151552, .pad = 151329,                 \
    .max_positions = 131072, .kv_heads = 2, .head_dim = 128, .norm_eps = 1.5625e-7, .theta = 1e4,            \
    .bias = {.qkv = "attention_bias", .qkv_default = true}

#define QWEN_SHARED                                                                                          \
    .aux_coef = 0.001, .sparse = true, .experts_key = "num_experts",                                         \
    .expert_ffn_key = "moe_intermediate_size", .shared_key = "shared_expert_intermediate_size",              \
    .shared_scored = true

#define SIGMOID_EXPERTS                                                                                      \
    .sparse = true, .experts_key = "n_routed_experts", .expert_ffn_key = "moe_intermediate_size",            \
    .shared_count_key = "n_shared_experts", .router_scaled = true, .router_sigmoid = true,                   \
    .router_biased = true

#define LATENT_NAMES                                                                                         \
    [ARCH_NORM_Q_LATENT] = {LAYER "self_attn.q_a_layernorm", NULL},                                          \
    [ARCH_NORM_KV_LATENT] = {LAYER "self_attn.kv_a_layernorm", NULL},                                        \
    [ARCH_Q_A] = {LAYER "self_attn.q_a_proj", NULL}, [ARCH_Q_B] = {LAYER "self_attn.q_b_proj", NULL},        \
    [ARCH_K] = {LAYER "self_attn.kv_a_proj_with_mqa", NULL}, [ARCH_V] = {LAYER "self_attn.kv_b_proj", NULL}

#define GPT_OSS_SIZES                                                                                        \
    .hidden = 2880, .layers = 36, .heads = 64, .ffn = 2880, .vocab = 201088, .max_positions = 131072,        \
    .kv_heads = 8, .head_dim = 64, .window = 128, .window_period = 2

#define GRANITE_EXPERT_NAMES                                                                                 \
    [ARCH_ROUTER] = {LAYER "block_sparse_moe.router.layer", "blk.%u.ffn_gate_inp"},                          \
    [ARCH_EXPERTS_GATE_UP] = {LAYER "block_sparse_moe.input_linear.weight", NULL},                           \
    [ARCH_EXPERTS_DOWN] = {LAYER "block_sparse_moe.output_linear.weight", NULL}

#define GRANITE_SHARED_NAMES                                                                                 \
    [ARCH_SHARED_GATE_UP] = {LAYER "shared_mlp.input_linear", NULL}, [ARCH_SHARED_DOWN] = {                  \
                                                                         LAYER "shared_mlp.output_linear",   \
                                                                         NULL}

#define GRANITE_MIXTURE                                                                                      \
    .hidden = 4096, .layers = 32, .heads = 32, .ffn = 11008, .vocab = 32000, .max_positions = 2048,          \
    .norm_eps = 1e-6, .theta = 1e4, .aux_coef = 0.001,                                                       \
    .bias = {.qkv = "attention_bias", .o = "attention_bias"}, .multipliers = true, .sparse = true,           \
    .experts_key = "num_local_experts", .renormalise = true, .fused = ARCH_FUSED_ROWS

#define BIASES_ATTENTION {.qkv = "attention_bias", .o = "attention_bias"}
#define BIASES_ALL {.qkv = "attention_bias", .o = "attention_bias", .ffn = "mlp_bias"}

#define QWEN_DELTA                                                                                           \
    .norm_offset = 1, .partial_rotary = 0.25, .bias = BIASES_ATTENTION, .qk_norm = 1, .attn_gate = true,     \
    .delta = true

#endif
