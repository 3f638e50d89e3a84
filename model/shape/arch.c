/* Looks up architectures, and names of tensors, in the table of arch_table.c. */
#include <math.h>
#include <string.h>

#include "model/shape/arch_private.h"

#define LAYER ARCH_LAYER

/* Names of older GGUF files' tensors of experts, one for each expert, from ARCH_EXPERT_GATE on. */
static const char *const expert_names[] = {"blk.%u.ffn_gate.%u", "blk.%u.ffn_up.%u", "blk.%u.ffn_down.%u"};

const struct arch *arch_of(enum model_arch arch)
{
    return &archs[arch];
}

const char *arch_act_key(const struct arch *arch)
{
    return arch->gelu && !arch->gelu_as_act ? "hidden_activation" : "hidden_act";
}

static const struct {
    const char *name;
    enum model_act act;
} acts[] = {{"silu", ACT_SILU},          {"gelu_pytorch_tanh", ACT_GELU_TANH},
            {"gelu", ACT_GELU},          {"relu2", ACT_RELU2},
            {"swish", ACT_SILU},         {"gelu_new", ACT_GELU_TANH},
            {"gelu_fast", ACT_GELU_TANH}};

const char *arch_act_name(enum model_act act)
{
    size_t i = 0;
    while (acts[i].act != act)
        i++;
    return acts[i].name;
}

int arch_act_find(const char *name)
{
    for (size_t i = 0; i < sizeof(acts) / sizeof(acts[0]); i++)
        if (strcmp(acts[i].name, name) == 0)
            return (int)acts[i].act;
    return -1;
}

const char *arch_prefix(const struct arch *arch)
{
    return arch->prefix ? arch->prefix : "model.";
}

const char *arch_norm_eps_key(const struct arch *arch)
{
    return arch->norm_eps_key ? arch->norm_eps_key : "rms_norm_eps";
}

const char *arch_experts_key(const struct arch *arch)
{
    return strcmp(arch->experts_key, "num_local_experts") == 0 ? "num_experts" : arch->experts_key;
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
    {.type = "gemma4", .class_name = "Gemma4ForConditionalGeneration", .inner = MODEL_GEMMA4, .tied = true},
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
    {.type = "qwen3_5_moe", .class_name = "Qwen3_5MoeForConditionalGeneration", .inner = MODEL_QWEN3_5_MOE},
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

static size_t arch_list_add(char *text, size_t size, size_t used, const char *name)
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
            used = arch_list_add(text, size, used, archs[outers[i].inner].model_type);
}

int arch_find_gguf(const char *text, size_t size, bool sparse)
{
    for (int i = 0; i < MODEL_ARCH_COUNT; i++) {
        const char *name = archs[i].gguf;
        if (name && !archs[i].gguf_key && archs[i].sparse == sparse && strlen(name) == size &&
            memcmp(name, text, size) == 0)
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
            used = arch_list_add(text, size, used, name);
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
    c->act = a->gelu ? ACT_GELU_TANH : ACT_SILU;
    c->plain_ffn = a->act != NULL;
    c->qkv_by_head = a->qkv_by_head;
    c->parallel = a->parallel_key || a->one_norm;
    c->one_norm = a->one_norm;
    c->head_bias = a->head_bias;
    c->layer_norm = a->layer_norm;
    c->norm_bias = a->norm_bias;
    c->attn_gate = a->attn_gate;
    c->delta_packed = a->delta_packed;
    c->attn_sinks = a->attn_sinks;
    c->v_norm = a->v_norm;
    c->layer_scaled = a->layer_scaled;
    c->expert_bias = a->expert_bias;
    c->shared_packed = a->shared_packed;
    c->shared_scored = a->shared_scored;
    c->router_sigmoid = a->router_sigmoid;
    c->router_biased = a->router_biased;
    c->norm_offset = a->norm_offset;
    if (a->embed_scaled)
        c->embed_scale = sqrt((double)c->hidden);
}

/* --- names --- */

static const char *arch_name_of(enum model_arch arch, enum arch_tensor tensor, bool gguf)
{
    const struct arch_name *own = &archs[arch].names[tensor], *n = own->hf ? own : &arch_llama_names[tensor];
    return gguf ? n->gguf : n->hf;
}

static char *arch_append(char *at, const char *end, const char *text, size_t size)
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
        at = arch_append(at, end, p, next ? (size_t)(next - p) : strlen(p));
        if (!next)
            break;
        char digits[10];
        size_t n = 0;
        do
            digits[sizeof(digits) - ++n] = (char)('0' + number % 10);
        while ((number /= 10) > 0);
        at = arch_append(at, end, digits + sizeof(digits) - n, n);
        number = expert;
        p = next + 2;
    }
    *arch_append(at, end, suffix, strlen(suffix)) = 0;
}

void arch_tensor_name(enum model_arch arch, enum arch_tensor tensor, uint32_t layer, uint32_t expert,
                      const char *suffix, char name[ARCH_NAME_MAX])
{
    const char *pattern = arch_name_of(arch, tensor, false);
    expand(pattern ? pattern : "", layer, expert, suffix, name);
}

bool arch_gguf_name(enum model_arch arch, enum arch_tensor tensor, uint32_t layer, const char *suffix,
                    char name[ARCH_NAME_MAX])
{
    const char *pattern = arch_name_of(arch, tensor, true);
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

/* Matches the name of a tensor of all experts with the suffixes that gpt-oss's have. */
static bool match_fused(const char *pattern, const char *name, struct arch_match *match)
{
    static const char *const suffixes[] = {"", "_bias", "_blocks", "_scales"};
    uint32_t numbers[2] = {0, 0};
    const char *suffix = pattern ? match_pattern(pattern, name, numbers) : NULL;
    for (size_t i = 0; suffix && i < sizeof(suffixes) / sizeof(suffixes[0]); i++)
        if (strcmp(suffix, suffixes[i]) == 0 && numbers[0] < MODEL_LAYERS_MAX) {
            match->suffix = suffix;
            match->layer = numbers[0];
            return true;
        }
    return false;
}

/* Returns true for tensors whose names have no suffix. */
static bool is_bare(enum arch_tensor tensor)
{
    return tensor == ARCH_DELTA_DECAY || tensor == ARCH_DELTA_DT_BIAS || tensor == ARCH_DELTA_SKIP ||
           tensor == ARCH_SINKS || tensor == ARCH_ROUTER_BIAS || tensor == ARCH_LAYER_SCALE ||
           tensor == ARCH_ROUTER_SCALE || tensor == ARCH_EXPERT_SCALE || tensor >= ARCH_EXPERTS_GATE_UP;
}

static bool match_any(enum model_arch arch, const char *name, bool gguf, struct arch_match *match)
{
    const struct arch *a = &archs[arch];
    int count = a->sparse ? ARCH_TENSOR_COUNT : ARCH_ROUTER;
    *match = (struct arch_match){.part_count = 1};
    for (int t = 0; t < count; t++) {
        const char *pattern = arch_name_of(arch, (enum arch_tensor)t, gguf);
        bool all = t >= ARCH_EXPERTS_GATE_UP, shared = t >= ARCH_SHARED_GATE && t <= ARCH_SHARED_DOWN;
        if ((shared && !a->sparse) || !(all && a->fused == ARCH_FUSED_TURNED && !gguf
                                            ? match_fused(pattern, name, match)
                                            : match_name(pattern, name, is_bare((enum arch_tensor)t), match)))
            continue;
        match->parts[0] = t == ARCH_EXPERTS_GATE_UP ? ARCH_EXPERT_GATE
                          : t == ARCH_EXPERTS_DOWN  ? ARCH_EXPERT_DOWN
                                                    : (enum arch_tensor)t;
        match->parts[1] = ARCH_EXPERT_UP;
        match->part_count = t == ARCH_EXPERTS_GATE_UP ? 2 : 1;
        if (gguf && is_bare((enum arch_tensor)t))
            match->suffix = ""; /* there all names have one */
        match->stacked = all || (gguf && t >= ARCH_EXPERT_GATE && t <= ARCH_EXPERT_DOWN);
        return true;
    }
    for (int i = 0; a->sparse && gguf && i < 3; i++)
        if (match_name(expert_names[i], name, false, match)) {
            match->parts[0] = (enum arch_tensor)(ARCH_EXPERT_GATE + i);
            return true;
        }
    match->parts[0] = a->name_too_of;
    return !gguf && match_name(a->name_too, name, is_bare(a->name_too_of), match);
}

/* Matches the name with "model." or what stands for it put before it, for files that leave it out; the suffix
 * points into 'name'. */
static bool match_body(enum model_arch arch, const char *name, struct arch_match *match)
{
    char full[ARCH_NAME_MAX];
    const char *prefix = arch_prefix(&archs[arch]);
    size_t length = strlen(name), front = strlen(prefix);
    if (length >= sizeof(full) - front)
        return false;
    memcpy(full, prefix, front);
    memcpy(full + front, name, length + 1);
    if (!match_any(arch, full, false, match))
        return false;
    match->suffix = name + (match->suffix - full - front);
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
