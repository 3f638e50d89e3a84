/* Reads and writes adapter_config.json. A feature of peft that Motley lacks is refused by its key, so that
 * nobody continues to train an adapter that means something else here. */
#include "model/adapters/peft.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/shape/arch.h"

enum { RANK_MAX = 65536 };

static const char config_name[] = "adapter_config.json";

/* The values of a key with which peft 0.21 treats the feature as off. They differ from key to key, because
 * peft takes any text for true, makes an object of the key's class from {}, and fails on null where it
 * expects a value. */
enum {
    OFF_NULL = 1,
    OFF_FALSE = 2,
    OFF_LIST = 4,   /* the value [] */
    OFF_OBJECT = 8, /* the value {} */
    OFF_ANY = OFF_NULL | OFF_FALSE | OFF_LIST | OFF_OBJECT,
    READ = 16, /* another function of this file reads the key */
    FREE = 32  /* the key does not change what is computed */
};

static const struct {
    const char *key;
    unsigned off;
} known_keys[] = {
    {"alora_invocation_tokens", OFF_NULL},
    {"alpha_pattern", READ},
    {"arrow_config", OFF_NULL},
    {"auto_mapping", FREE},
    {"base_model_name_or_path", FREE},
    {"bias", READ},
    {"corda_config", OFF_NULL},
    {"ensure_weight_tying", READ},
    {"eva_config", OFF_NULL},
    {"exclude_modules", READ},
    {"fan_in_fan_out", OFF_NULL | OFF_FALSE},
    {"inference_mode", FREE},
    {"init_lora_weights", READ},
    {"kasa_config", OFF_NULL},
    {"layer_replication", OFF_NULL | OFF_LIST},
    {"layers_pattern", READ},
    {"layers_to_transform", READ},
    {"loftq_config", OFF_NULL | OFF_OBJECT},
    {"lora_alpha", READ},
    {"lora_bias", OFF_NULL | OFF_FALSE},
    {"lora_dropout", READ},
    {"lora_ga_config", OFF_NULL},
    {"megatron_config", OFF_NULL | OFF_OBJECT},
    {"megatron_core", FREE},
    {"modules_to_save", READ},
    {"monteclora_config", OFF_NULL},
    {"peft_type", READ},
    {"peft_version", FREE},
    {"qalora_group_size", FREE},
    {"r", READ},
    {"rank_pattern", READ},
    {"revision", FREE},
    {"runtime_config", FREE},
    {"target_modules", READ},
    {"target_parameters", READ},
    {"task_type", READ},
    {"trainable_token_indices", OFF_NULL},
    {"use_bdlora", OFF_NULL},
    {"use_dora", OFF_NULL | OFF_FALSE},
    {"use_qalora", OFF_NULL | OFF_FALSE},
    {"use_rslora", READ},
    {"velora_config", OFF_NULL},
};

/* Returns the values that switch a key off. peft ignores a key that it does not know; it may belong to a
 * later version, so it must be switched off. */
static unsigned off_of(const char *key)
{
    for (size_t i = 0; i < sizeof(known_keys) / sizeof(known_keys[0]); i++)
        if (strcmp(key, known_keys[i].key) == 0)
            return known_keys[i].off;
    return OFF_ANY;
}

static int check_keys(const json_t *document, struct err *err)
{
    static const char *const not_null[] = {"bias",         "r", "lora_alpha", "lora_dropout", "rank_pattern",
                                           "alpha_pattern"};
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)document, key, value) {
        unsigned off = off_of(key);
        bool is_off = (off & (READ | FREE)) || (json_is_null(value) && (off & OFF_NULL)) ||
                      (json_is_false(value) && (off & OFF_FALSE)) ||
                      (json_is_array(value) && json_array_size(value) == 0 && (off & OFF_LIST)) ||
                      (json_is_object(value) && json_object_size(value) == 0 && (off & OFF_OBJECT));
        if (!is_off)
            return err_set(err, ERR_UNSUPPORTED, "%s: %.64s: not supported, and not switched off",
                           config_name, key);
    }
    for (size_t i = 0; i < sizeof(not_null) / sizeof(not_null[0]); i++)
        if (json_is_null(json_object_get(document, not_null[i])))
            return err_set(err, ERR_INVALID, "%s: %s: is null, which peft does not load; leave it out",
                           config_name, not_null[i]);
    return 0;
}

/* Checks that ranks are whole: peft makes matrices of these sizes, and torch refuses a real number such as
 * 8.0. */
static int check_ranks(const json_t *document, struct err *err)
{
    const char *key;
    json_t *value;
    if (json_is_real(json_object_get(document, "r")))
        return err_set(err, ERR_INVALID, "%s: r: must be a whole number, without a point", config_name);
    json_object_foreach (json_object_get(document, "rank_pattern"), key, value) {
        if (json_is_real(value))
            return err_set(err, ERR_INVALID,
                           "%s: rank_pattern: %.120s must be a whole number, without a point", config_name,
                           key);
    }
    return 0;
}

/* Checks bias and task_type, which take only a few words. */
static int check_words(const json_t *document, struct err *err)
{
    const json_t *bias = json_object_get(document, "bias"), *task = json_object_get(document, "task_type");
    const char *text = json_string_value(bias);
    if (bias && (!text || strcmp(text, "none") != 0))
        return err_set(err, ERR_UNSUPPORTED, "%s: bias: only \"none\" is supported", config_name);
    text = json_string_value(task);
    if (task && !json_is_null(task) && (!text || strcmp(text, "CAUSAL_LM") != 0))
        return err_set(err, ERR_UNSUPPORTED, "%s: task_type: only \"CAUSAL_LM\" (or null) is supported",
                       config_name);
    return 0;
}

/* Refuses the name "NaN": hub_json_parse() reads Python's NaN as this text, which names no module. */
static int peft_config_check_names(const json_t *document, struct err *err)
{
    static const char *const keys[] = {"target_modules", "target_parameters", "exclude_modules"};
    for (size_t k = 0; k < sizeof(keys) / sizeof(*keys); k++) {
        const json_t *names = json_object_get(document, keys[k]);
        for (size_t i = 0; i < (json_is_array(names) ? json_array_size(names) : 1); i++) {
            const char *name = json_string_value(json_is_array(names) ? json_array_get(names, i) : names);
            if (name && strcmp(name, "NaN") == 0)
                return err_set(err, ERR_INVALID, "%s: %s: NaN is no name of a module", config_name, keys[k]);
        }
    }
    return 0;
}

static int check_targets(const struct peft_config *config, struct err *err)
{
    const struct lora_rules *rules = &config->lora;
    const struct spec_names *names = &rules->targets.names;
    if (rules->parameters.count > 0 && config->dropout > 0)
        return err_set(err, ERR_INVALID, "%s: lora_dropout: must be 0 with target_parameters, as peft says",
                       config_name);
    if (names->count + rules->parameters.count == 0 && !rules->targets.expression && !rules->all_linear)
        return err_set(err, ERR_INVALID, "%s: target_modules: is missing", config_name);
    return 0;
}

static int parse_saved(const json_t *value, struct peft_config *config, struct err *err)
{
    if (value && !json_is_null(value) && !json_is_array(value))
        return err_set(err, ERR_INVALID, "%s: modules_to_save: must be a list of modules' names, or null",
                       config_name);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const char *name = json_string_value(json_array_get(value, i));
        bool embedding =
            name && (strcmp(name, "embed_tokens") == 0 || strcmp(name, "model.embed_tokens") == 0);
        bool head = name && strcmp(name, "lm_head") == 0;
        if (!embedding && !head)
            return err_set(err, ERR_UNSUPPORTED,
                           "%s: modules_to_save: \"%.64s\" is not supported; embed_tokens and lm_head are",
                           config_name, name ? name : "(no text)");
        config->saves_embedding = config->saves_embedding || embedding;
        config->saves_head = config->saves_head || head;
    }
    return 0;
}

/* Checks init_lora_weights. How an adapter was initialised no longer matters when it is read, except for
 * pissa, olora, eva, corda, loftq and lora_ga, which change the base's weights, too. */
static int check_init(const json_t *value, struct err *err)
{
    const char *text = json_string_value(value);
    if (!value || json_is_null(value) || json_is_boolean(value) ||
        (text && (strcmp(text, "gaussian") == 0 || strcmp(text, "orthogonal") == 0)))
        return 0;
    return err_set(err, ERR_UNSUPPORTED, "%s: init_lora_weights: \"%.64s\" is not supported", config_name,
                   text ? text : "what stands there");
}

int peft_config_parse(const json_t *document, struct peft_config *config, struct err *err)
{
    struct json_reader r;
    const char *type = NULL;
    memset(config, 0, sizeof(*config));
    jr_init(&r, document, config_name, err);
    jr_str(&r, "peft_type", JR_REQUIRED, 1, 64, &type);
    if (r.failed)
        return -1;
    if (strcmp(type, "LORA") != 0)
        return err_set(err, ERR_UNSUPPORTED, "%s: peft_type: \"%s\" is not supported; only LORA is",
                       config_name, type);
    if (check_keys(document, err) < 0 || check_words(document, err) < 0 || check_ranks(document, err) < 0 ||
        peft_config_check_names(document, err) < 0)
        return -1;
    config->rank = 8; /* these are peft's defaults */
    config->alpha = 8;
    jr_u32(&r, "r", JR_OPTIONAL, 1, RANK_MAX, &config->rank);
    jr_f64(&r, "lora_alpha", JR_OPTIONAL, 1e-9, 1e9, &config->alpha);
    jr_f64(&r, "lora_dropout", JR_OPTIONAL, 0, 1, &config->dropout);
    jr_bool(&r, "use_rslora", JR_OPTIONAL, &config->rslora);
    jr_bool(&r, "ensure_weight_tying", JR_OPTIONAL, &config->tied);
    lora_rules_read(&r, "target_modules", RANK_MAX, 1e-9, 1e9, &config->lora);
    if (jr_finish_loose(&r) < 0 || check_init(json_object_get(document, "init_lora_weights"), err) < 0 ||
        check_targets(config, err) < 0 ||
        parse_saved(json_object_get(document, "modules_to_save"), config, err) < 0) {
        peft_config_fini(config);
        return -1;
    }
    return 0;
}

void peft_config_fini(struct peft_config *config)
{
    lora_rules_fini(&config->lora);
}

int peft_sites(const struct peft_config *config, const struct model_config *model, struct lora_sites *sites,
               struct err *err)
{
    const struct lora_defaults defaults = {.rank = config->rank,
                                           .alpha = config->alpha,
                                           .rslora = config->rslora,
                                           .where = config_name,
                                           .targets = "target_modules"};
    return lora_sites_of(&config->lora, &defaults, model, sites, err);
}

/* Returns Mixtral's name of a matrix of the FFN. */
static const char *w_name(const char *name)
{
    static const char *const names[][2] = {{"gate_proj", "w1"}, {"up_proj", "w3"}, {"down_proj", "w2"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(name, names[i][0]) == 0)
            return names[i][1];
    return NULL;
}

/* --- writing --- */

/* A config that readers from peft 0.13 (2024) to 0.21 understand alike. The older ones fail at keys that they
 * do not know (exclude_modules, ensure_weight_tying …), look for the keys of both patterns at once and count
 * the first match, and never let a key match a name from its beginning. So a module that deviates is named
 * once in both patterns, and excluded modules are left out of the targets. */
struct portable {
    const struct peft_config *config;
    const struct model_config *model;
    struct lora_sites sites;
    /* [layers][LORA_TARGET_COUNT]: 1 if the layer has the matrix, 2 if each expert has one */
    uint8_t *exists;
    struct lora_rules rules;
    bool listed; /* targets are listed module by module, without the excluded ones */
    struct err *err;
};

static int portable_visit(const struct block_tensor *tensor, void *arg)
{
    struct portable *p = arg;
    char module[ARCH_NAME_MAX];
    int length = (int)strlen(tensor->name) - (int)strlen(".weight");
    if (tensor->what == ARCH_EXPERT_GATE)
        for (uint32_t target = LORA_EXPERT_GATE_UP; target & LORA_EXPERTS; target <<= 1)
            p->exists[(tensor->block - 1) * LORA_TARGET_COUNT + (uint32_t)__builtin_ctz(target)] = 1;
    if (tensor->rank != 2 || tensor->bias || length <= 0 || tensor->fused)
        return 0;
    snprintf(module, sizeof(module), "%.*s", length, tensor->name);
    uint32_t target = lora_target_of(module);
    uint32_t begin, end;
    block_tensor_layers(p->model, tensor, &begin, &end);
    for (uint32_t layer = begin; layer < end && target; layer++)
        p->exists[layer * LORA_TARGET_COUNT + (uint32_t)__builtin_ctz(target)] =
            tensor->what >= ARCH_EXPERT_GATE && tensor->what <= ARCH_EXPERT_DOWN ? 2 : 1;
    return 0;
}

/* Returns the alpha, among those in the config, that gives this scale. */
static double alpha_of(const struct portable *p, uint32_t rank, double scale)
{
    const struct lora_patterns *alphas = &p->config->lora.alphas;
    double by = p->config->rslora ? sqrt(rank) : rank;
    for (uint32_t i = 0; i < alphas->count; i++)
        if (alphas->list[i].value / by == scale)
            return alphas->list[i].value;
    return p->config->alpha;
}

/* Writes "layers.L." and the names of the module around a matrix and of the matrix; with `last` without the
 * layer's. */
static void site_name(const struct portable *p, uint32_t layer, uint32_t site, bool last, char name[64])
{
    const char *front = arch_prefix(arch_of(p->model->arch));
    uint32_t target = 1u << site;
    char own[ARCH_NAME_MAX];
    snprintf(own, sizeof(own), "%slayers.%u.%s.%s", front, layer, lora_target_module(target),
             lora_target_name_in(p->model, target));
    if (target & LORA_TABLES || (target & LORA_EXPERTS && last)) {
        snprintf(name, 64, "%s", lora_target_name(target));
        return;
    }
    if (target & LORA_EXPERTS)
        lora_parameter_name(p->model, layer, target, own);
    else if (arch_of(p->model->arch)->own_modules || target & LORA_PER_LAYER)
        arch_tensor_name(p->model->arch, (enum arch_tensor)(ARCH_Q + (int)site), layer, 0, "", own);
    const char *number = strpbrk(own, "0123456789");
    bool skips = last && number;
    snprintf(name, 64, "%.63s", skips ? number + strspn(number, "0123456789") + 1 : own + strlen(front));
}

static int add_pattern(struct lora_patterns *patterns, const char *key, double value, struct err *err)
{
    struct lora_pattern *grown = realloc(patterns->list, (patterns->count + 1) * sizeof(*grown));
    char *copy = strdup(key);
    patterns->list = grown ? grown : patterns->list;
    if (!grown || !copy) {
        free(copy);
        return err_set(err, ERR_NOMEM, "no memory for an adapter's patterns");
    }
    patterns->list[patterns->count++] = (struct lora_pattern){.key = copy, .value = value};
    return 0;
}

static int add_site(struct portable *p, const char *name, uint32_t layer, uint32_t site)
{
    uint32_t rank = lora_rank_at(&p->sites, layer, site);
    double alpha = alpha_of(p, rank, lora_scale_at(&p->sites, layer, site));
    if (rank != p->config->rank && add_pattern(&p->rules.ranks, name, rank, p->err) < 0)
        return -1;
    return alpha != p->config->alpha ? add_pattern(&p->rules.alphas, name, alpha, p->err) : 0;
}

/* Writes the patterns of one kind of matrix: under the matrix's name where all layers have the same rank and
 * alpha, else layer by layer. */
static int portable_site(struct portable *p, uint32_t site)
{
    uint32_t layers = p->model->layers, adapted = 0, bare = 0, first = 0;
    bool alike = true, experts = false;
    char name[64];
    for (uint32_t layer = layers; layer-- > 0;) {
        uint8_t exists = p->exists[layer * LORA_TARGET_COUNT + site];
        bool has = lora_rank_at(&p->sites, layer, site) > 0;
        experts = experts || exists == 2;
        adapted += has;
        bare += exists && !has;
        if (has && adapted > 1)
            alike = alike && lora_rank_at(&p->sites, layer, site) == lora_rank_at(&p->sites, first, site) &&
                    lora_scale_at(&p->sites, layer, site) == lora_scale_at(&p->sites, first, site);
        first = has ? layer : first;
    }
    char own[64];
    const char *last = lora_target_name_in(p->model, 1u << site);
    if (arch_of(p->model->arch)->own_modules) {
        site_name(p, 0, site, true, own);
        last = own;
    }
    bool module = !(1u << site & LORA_EXPERTS); /* parameters are listed as they were */
    p->listed = p->listed && !(experts && adapted && bare);
    if (adapted && !bare && module && names_add(&p->rules.targets.names, last, p->err) < 0)
        return -1;
    if (adapted && alike && add_site(p, last, first, site) < 0)
        return -1;
    for (uint32_t layer = 0; layer < layers; layer++) {
        site_name(p, layer, site, false, name);
        if (lora_rank_at(&p->sites, layer, site) == 0)
            continue;
        if ((bare && module && names_add(&p->rules.targets.names, name, p->err) < 0) ||
            (!alike && add_site(p, name, layer, site) < 0))
            return -1;
    }
    return 0;
}

static int portable_make(struct portable *p)
{
    p->exists = calloc((size_t)p->model->layers * LORA_TARGET_COUNT, 1);
    if (!p->exists)
        return err_set(p->err, ERR_NOMEM, "no memory for an adapter's config");
    if (peft_sites(p->config, p->model, &p->sites, p->err) < 0)
        return -1;
    model_adapted_tensors(p->model, portable_visit, p);
    int status = 0;
    for (uint32_t site = 0; site < LORA_TARGET_COUNT && status == 0; site++)
        status = portable_site(p, site);
    return status;
}

/* Makes the rules to write: the config's own, with patterns that all readers understand. The targets are
 * listed module by module where modules are excluded, where an expression may name Mixtral's w1, w2 and w3,
 * where names are not Llama's, and for a model inside another; the last two unless they are all-linear.
 * *shown borrows from config and *p. */
static int portable_rules(struct portable *p, struct lora_rules *shown)
{
    const struct lora_rules *own = &p->config->lora;
    bool excludes = own->exclude.names.count > 0 || own->exclude.expression;
    bool patterns = own->ranks.count > 0 || own->alphas.count > 0;
    *shown = *own;
    p->listed = excludes || (p->config->w_names && own->targets.expression) ||
                (p->model && (p->model->nested || arch_of(p->model->arch)->own_modules) && !own->all_linear);
    if (!p->model || (!p->listed && !patterns))
        return 0;
    if (portable_make(p) < 0)
        return -1;
    if (p->listed && p->rules.targets.names.count <= LORA_NAMES_MAX)
        *shown = (struct lora_rules){.targets = p->rules.targets, .parameters = own->parameters};
    shown->ranks = p->rules.ranks;
    shown->alphas = p->rules.alphas;
    return 0;
}

bool peft_saves_twice(const struct peft_config *config)
{
    return config->tied && config->saves_embedding;
}

/* Makes modules_to_save. For peft a tied table gets both names, since its older versions do not know
 * ensure_weight_tying. */
static json_t *saved_json(const struct peft_config *config, bool for_peft)
{
    if (!config->saves_embedding && !config->saves_head)
        return json_null();
    json_t *out = json_array();
    if (out && config->saves_embedding)
        json_array_append_new(out, json_string("embed_tokens"));
    if (out && (config->saves_head || (for_peft && peft_saves_twice(config))))
        json_array_append_new(out, json_string("lm_head"));
    return out;
}

static int set_fixed(json_t *out)
{
    static const char *const nulls[] = {"auto_mapping", "layer_replication", "megatron_config", "revision"};
    static const char *const falses[] = {"fan_in_fan_out", "use_dora"};
    static const struct {
        const char *key, *text;
    } texts[] = {{"bias", "none"},
                 {"megatron_core", "megatron.core"},
                 {"peft_type", "LORA"},
                 {"task_type", "CAUSAL_LM"}};
    int status = 0;
    for (size_t i = 0; i < sizeof(nulls) / sizeof(nulls[0]); i++)
        status |= json_object_set_new(out, nulls[i], json_null());
    for (size_t i = 0; i < sizeof(falses) / sizeof(falses[0]); i++)
        status |= json_object_set_new(out, falses[i], json_false());
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        status |= json_object_set_new(out, texts[i].key, json_string(texts[i].text));
    status |= json_object_set_new(out, "loftq_config", json_object());
    status |= json_object_set_new(out, "inference_mode", json_true());
    status |= json_object_set_new(out, "init_lora_weights", json_true());
    return status;
}

static const char image_modules[] =
    ".*(visual|vision_tower|vision_model|audio_tower|multi_modal_projector)\\..*";

static int set_own(const struct peft_config *config, const struct portable *p, const struct lora_rules *rules,
                   json_t *out)
{
    bool whole = floor(config->alpha) == config->alpha && config->alpha < 1e9;
    json_t *alpha = whole ? json_integer((json_int_t)config->alpha) : json_real(config->alpha);
    int status = lora_rules_write(rules, "target_modules", config->w_names ? w_name : NULL, out, p->err);
    bool excludes = rules->exclude.expression || rules->exclude.names.count > 0;
    if (p->model && !excludes)
        json_object_del(out, "exclude_modules");
    /* modules that read images have names of the language model's, too */
    if (p->model && p->model->nested && !excludes)
        status |= json_object_set_new(out, "exclude_modules", json_string(image_modules));
    if (!p->model)
        status |= json_object_set_new(out, "ensure_weight_tying", json_boolean(config->tied));
    status |= json_object_set_new(out, "lora_alpha", alpha);
    status |= json_object_set_new(out, "use_rslora", json_boolean(config->rslora));
    status |= json_object_set_new(out, "modules_to_save", saved_json(config, p->model != NULL));
    status |= json_object_set_new(out, "lora_dropout", json_real(config->dropout));
    return status | json_object_set_new(out, "r", json_integer(config->rank));
}

json_t *peft_config_to_json(const struct peft_config *config, const struct model_config *model,
                            const char *base_model, struct err *err)
{
    struct portable p = {.config = config, .model = model, .err = err};
    struct lora_rules rules;
    json_t *out = json_object(), *base = base_model ? json_string(base_model) : json_null();
    int status = portable_rules(&p, &rules);
    if (status == 0 && (set_fixed(out) | set_own(config, &p, &rules, out) |
                        json_object_set(out, "base_model_name_or_path", base)) != 0)
        status = err_set(err, ERR_NOMEM, "no memory for an adapter's config");
    json_decref(base);
    lora_rules_fini(&p.rules);
    free(p.exists);
    if (status == 0)
        return out;
    json_decref(out);
    return NULL;
}
