/* One walk over a model's matrices looks each up among the targets, then among the patterns, in peft's order
 * (peft/tuners/tuners_utils.py, check_target_module_exists, and peft/utils/other.py, get_pattern_key). */
#include "model/shape/lora_sites.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/shape/lora_match.h"

enum { LIST_BYTES = 256, EXPERT_TARGETS = LORA_GATE | LORA_UP | LORA_DOWN };

/* Names that some families give their matrices (Mixtral, LFM2; StarCoder 2). */
static const struct {
    const char *name;
    uint32_t target;
} own_names[] = {{"w1", LORA_GATE},
                 {"w3", LORA_UP},
                 {"w2", LORA_DOWN},
                 {"c_fc", LORA_UP},
                 {"fc1", LORA_UP},
                 {"fc2", LORA_DOWN},
                 {"query_key_value", LORA_QKV},
                 {"dense", LORA_O},
                 {"dense_h_to_4h", LORA_UP},
                 {"dense_4h_to_h", LORA_DOWN}};

uint32_t lora_target_of(const char *module)
{
    const char *last = strrchr(module, '.');
    last = last ? last + 1 : module;
    for (size_t i = 0; i < sizeof(own_names) / sizeof(own_names[0]); i++)
        if (strcmp(last, own_names[i].name) == 0)
            return own_names[i].target;
    if (strcmp(last, "c_proj") == 0)
        return strstr(module, ".mlp.") ? LORA_DOWN : LORA_O;
    if (strcmp(last, "kv_a_proj_with_mqa") == 0 || strcmp(last, "kv_b_proj") == 0)
        return last[3] == 'a' ? LORA_K : LORA_V;
    uint32_t target = lora_target_from_name(last);
    if (target == LORA_DELTA_OUT && strstr(module, ".self_attn."))
        return LORA_O; /* LFM2's name of it */
    bool shared = strstr(module, ".shared_expert") && (target & EXPERT_TARGETS);
    return shared ? target * (LORA_SHARED_GATE / LORA_GATE) : target;
}

struct matchers {
    uint32_t count;
    struct lora_matcher **list;
    bool *used; /* [pattern]: whether it matched an adapted matrix */
};

struct site {
    uint32_t rank;
    double alpha;
};

struct resolver {
    const struct lora_rules *rules;
    const struct lora_defaults *defaults;
    const struct model_config *config;
    struct lora_matcher *target, *exclude;
    struct matchers layers, ranks, alphas;
    bool *named;        /* [name]: whether this name in targets matched */
    bool *parameters;   /* [name]: the same of target_parameters */
    struct site *sites; /* [layers][LORA_TARGET_COUNT]: rank and alpha of each matrix */
    uint64_t steps;
    uint32_t takes, matched; /* masks of the targets that take adapters, and of those found */
    struct err *err;
};

/* --- compiling patterns --- */

static int matchers_room(struct matchers *m, uint32_t count, struct err *err)
{
    m->list = calloc((size_t)count + 1, sizeof(*m->list));
    m->used = calloc((size_t)count + 1, sizeof(*m->used));
    return m->list && m->used ? 0 : err_set(err, ERR_NOMEM, "out of memory for patterns");
}

static int matchers_of(struct matchers *m, const struct lora_patterns *patterns, struct err *err)
{
    int status = matchers_room(m, patterns->count, err);
    for (uint32_t i = 0; status == 0 && i < patterns->count; i++, m->count += status == 0)
        status = lora_matcher_create(patterns->list[i].key, LORA_MATCH_KEY, &m->list[i], err);
    return status;
}

static void matchers_fini(struct matchers *m)
{
    for (uint32_t i = 0; i < m->count; i++)
        lora_matcher_destroy(m->list[i]);
    free(m->list);
    free(m->used);
}

static int resolver_init(struct resolver *r)
{
    const struct lora_rules *rules = r->rules;
    const struct spec_names *layers = &rules->layers_pattern;
    r->steps = LORA_MATCH_STEPS;
    r->sites = calloc((size_t)r->config->layers * LORA_TARGET_COUNT, sizeof(*r->sites));
    r->named = calloc((size_t)rules->targets.names.count + 1, sizeof(*r->named));
    r->parameters = calloc((size_t)rules->parameters.count + 1, sizeof(*r->parameters));
    if (!r->sites || !r->named || !r->parameters)
        return err_set(r->err, ERR_NOMEM, "out of memory for the places of adapters");
    int status = matchers_room(&r->layers, layers->count, r->err);
    for (uint32_t i = 0; status == 0 && i < layers->count; i++, r->layers.count += status == 0)
        status = lora_matcher_create(layers->names[i], LORA_MATCH_LAYER, &r->layers.list[i], r->err);
    if (status == 0 && rules->targets.expression)
        status = lora_matcher_create(rules->targets.expression, LORA_MATCH_WHOLE, &r->target, r->err);
    if (status == 0 && rules->exclude.expression)
        status = lora_matcher_create(rules->exclude.expression, LORA_MATCH_WHOLE, &r->exclude, r->err);
    if (status == 0)
        status = matchers_of(&r->ranks, &rules->ranks, r->err);
    return status == 0 ? matchers_of(&r->alphas, &rules->alphas, r->err) : status;
}

static void resolver_fini(struct resolver *r)
{
    matchers_fini(&r->layers);
    matchers_fini(&r->ranks);
    matchers_fini(&r->alphas);
    lora_matcher_destroy(r->target);
    lora_matcher_destroy(r->exclude);
    free(r->sites);
    free(r->named);
    free(r->parameters);
}

/* --- one matrix --- */

/* A matrix under the name that its file gives it, and under the usual last name; the two differ for Mixtral's
 * w1, w3, w2. */
struct module {
    uint32_t layer, target;
    bool expert;
    char name[ARCH_NAME_MAX], other[ARCH_NAME_MAX + 16];
};

static bool lora_sites_ends_with(const char *name, const char *end)
{
    size_t length = strlen(end), whole = strlen(name);
    return length <= whole && strcmp(name + whole - length, end) == 0 &&
           (length == whole || name[whole - length - 1] == '.');
}

/* Returns the index of the first name that the module's name equals or ends with, or names' count. */
static uint32_t named_by(const struct spec_names *names, const struct module *module)
{
    uint32_t i = 0;
    while (i < names->count && !lora_sites_ends_with(module->name, names->names[i]) &&
           !lora_sites_ends_with(module->other, names->names[i]))
        i++;
    return i;
}

/* Returns 1 when either name of the module matches, 0 when none does, -1 on error. */
static int either_matches(struct resolver *r, struct lora_matcher *matcher, const struct module *module)
{
    int got = lora_match(matcher, module->name, &r->steps, NULL, r->err);
    if (got == 0 && strcmp(module->name, module->other) != 0)
        got = lora_match(matcher, module->other, &r->steps, NULL, r->err);
    return got;
}

/* Returns 1 when the layer in the module's name is among layers_to_transform, 0 when not, -1 on error. */
static int layer_wanted(struct resolver *r, const struct module *module)
{
    uint32_t layer = module->layer;
    int got = r->rules->layer_count > 0 && r->layers.count > 0 ? 0 : 1;
    for (uint32_t i = 0; got == 0 && i < r->layers.count; i++)
        got = lora_match(r->layers.list[i], module->name, &r->steps, &layer, r->err);
    if (got <= 0 || r->rules->layer_count == 0)
        return got;
    for (uint32_t i = 0; i < r->rules->layer_count; i++)
        if (r->rules->layers[i] == layer)
            return 1;
    return 0;
}

/* Returns 1 when the module gets an adapter, 0 when not, -1 on error. */
static int is_target(struct resolver *r, const struct module *module)
{
    const struct lora_rules *rules = r->rules;
    const struct spec_names *names = &rules->targets.names;
    int excluded = r->exclude ? either_matches(r, r->exclude, module)
                              : named_by(&rules->exclude.names, module) < rules->exclude.names.count;
    if (excluded < 0)
        return -1;
    if (rules->all_linear)
        return !excluded && !(module->target & LORA_TABLES);
    if (r->target)
        return excluded ? 0 : either_matches(r, r->target, module);
    if (named_by(names, module) == names->count)
        return 0;
    int got = layer_wanted(r, module);
    for (uint32_t i = 0; got > 0 && i < names->count; i++)
        r->named[i] = r->named[i] || lora_sites_ends_with(module->name, names->names[i]) ||
                      lora_sites_ends_with(module->other, names->names[i]);
    return excluded && got > 0 ? 0 : got;
}

/* Sets 'value' to that of the first pattern that matches, or leaves it when none does. */
static int pattern_value(struct resolver *r, struct matchers *matchers, const struct lora_patterns *patterns,
                         const struct module *module, double *value)
{
    bool found = false;
    for (uint32_t i = 0; i < matchers->count; i++) {
        /* later patterns are only tested until each has matched some matrix */
        int got = found && matchers->used[i] ? 0 : either_matches(r, matchers->list[i], module);
        if (got < 0)
            return -1;
        matchers->used[i] = matchers->used[i] || got > 0;
        *value = got > 0 && !found ? patterns->list[i].value : *value;
        found = found || got > 0;
    }
    return 0;
}

static int site_of(struct resolver *r, const struct module *module, struct site *site)
{
    double rank = r->defaults->rank, alpha = r->defaults->alpha;
    int got = is_target(r, module);
    *site = (struct site){0};
    if (got <= 0)
        return got;
    if (pattern_value(r, &r->ranks, &r->rules->ranks, module, &rank) < 0 ||
        pattern_value(r, &r->alphas, &r->rules->alphas, module, &alpha) < 0)
        return -1;
    *site = (struct site){.rank = (uint32_t)rank, .alpha = alpha};
    r->matched |= module->target;
    return 0;
}

/* Refuses an expression that also matches a matrix that takes no adapter here: peft would give it one, or
 * refuse it. */
static int check_untaken(struct resolver *r, struct module *module)
{
    snprintf(module->other, sizeof(module->other), "%s", module->name);
    int got = is_target(r, module);
    return got <= 0 ? got
                    : err_set(r->err, ERR_UNSUPPORTED,
                              "%s.%s: \"%s\" also matches %s, which takes no adapter; name it in "
                              "exclude_modules",
                              r->defaults->where, r->defaults->targets, r->rules->targets.expression,
                              module->name);
}

/* Looks up one tensor. Of a layer's experts only the first and the last are looked up, and both must have the
 * same adapters. */
static int lora_sites_visit(const struct block_tensor *tensor, void *arg)
{
    struct resolver *r = arg;
    uint32_t begin, end;
    struct module module = {.layer = tensor->block - 1};
    int length = (int)strlen(tensor->name) - (int)strlen(".weight");
    if (tensor->rank != 2 || tensor->bias || length <= 0)
        return 0;
    snprintf(module.name, sizeof(module.name), "%.*s", length, tensor->name);
    module.target = lora_target_of(module.name);
    if (tensor->block == 0 || tensor->block > r->config->layers)
        module.layer = UINT32_MAX; /* no layer's number */
    module.expert = tensor->what >= ARCH_EXPERT_GATE && tensor->what <= ARCH_EXPERT_DOWN;
    if (module.target == 0 && r->target && !tensor->fused)
        return check_untaken(r, &module);
    if (module.target == 0 || tensor->fused ||
        (module.expert && tensor->expert != 0 && tensor->expert + 1 != r->config->experts))
        return 0;
    r->takes |= module.target;
    const char *last = strrchr(module.name, '.');
    snprintf(module.other, sizeof(module.other), "%.*s.%s", last ? (int)(last - module.name) : 0, module.name,
             lora_target_name_in(r->config, module.target));
    block_tensor_layers(r->config, tensor, &begin, &end);
    struct site *site = &r->sites[(size_t)begin * LORA_TARGET_COUNT + (uint32_t)__builtin_ctz(module.target)];
    struct site before = *site;
    if (site_of(r, &module, site) < 0)
        return -1;
    for (uint32_t i = 1; i < end - begin; i++)
        site[(size_t)i * LORA_TARGET_COUNT] = *site;
    if (module.expert && tensor->expert > 0 && (before.rank != site->rank || before.alpha != site->alpha))
        return err_set(r->err, ERR_UNSUPPORTED,
                       "%s.%s: experts of a layer share one adapter's rank and alpha, and \"%s\" would have "
                       "others than the first",
                       r->defaults->where, r->defaults->targets, module.name);
    return 0;
}

/* Looks up the tensors of a layer's experts in target_parameters, as peft does: by the end of their names,
 * whatever exclude_modules and layers_to_transform say. */
static int visit_parameters(struct resolver *r, uint32_t layer)
{
    const struct spec_names *names = &r->rules->parameters;
    struct site *sites = &r->sites[(size_t)layer * LORA_TARGET_COUNT];
    for (uint32_t target = LORA_EXPERT_GATE_UP; target & LORA_EXPERTS; target <<= 1) {
        struct module module = {.layer = layer, .target = target};
        lora_parameter_name(r->config, layer, target, module.name);
        snprintf(module.other, sizeof(module.other), "%s", module.name);
        double rank = r->defaults->rank, alpha = r->defaults->alpha;
        bool found = false;
        for (uint32_t i = 0; i < names->count; i++) {
            bool ends = lora_sites_ends_with(module.name, names->names[i]);
            r->parameters[i] = r->parameters[i] || ends;
            found = found || ends;
        }
        if (!found)
            continue;
        if (pattern_value(r, &r->ranks, &r->rules->ranks, &module, &rank) < 0 ||
            pattern_value(r, &r->alphas, &r->rules->alphas, &module, &alpha) < 0)
            return -1;
        sites[__builtin_ctz(target)] = (struct site){.rank = (uint32_t)rank, .alpha = alpha};
        r->matched |= target;
    }
    return 0;
}

/* --- errors --- */

/* Refuses a name in target_parameters that no tensor of experts has. */
static int lora_sites_check_parameters(const struct resolver *r)
{
    const struct spec_names *names = &r->rules->parameters;
    char first[ARCH_NAME_MAX] = "";
    uint32_t layer = 0;
    while (layer + 1 < r->config->layers && !model_layer_is_sparse(r->config, layer))
        layer++;
    lora_parameter_name(r->config, layer, LORA_EXPERT_GATE_UP, first);
    for (uint32_t i = 0; i < names->count; i++)
        if (!r->parameters[i] && (r->defaults->strict || !(r->matched & LORA_EXPERTS)))
            return r->config->experts == 0
                       ? err_set(r->err, ERR_INVALID, "%s.target_parameters: this model has no experts",
                                 r->defaults->where)
                       : err_set(
                             r->err, ERR_INVALID,
                             "%s.target_parameters: \"%s\" is no tensor of all experts of this model, which "
                             "are %s and likewise down_proj, or ends of their names",
                             r->defaults->where, names->names[i], first);
    return 0;
}

static void lora_sites_list_add(char list[LIST_BYTES], const char *name)
{
    size_t used = strlen(list);
    snprintf(list + used, LIST_BYTES - used, "%s%s", used > 0 ? ", " : "", name);
}

static void list_targets(const struct model_config *config, uint32_t mask, char list[LIST_BYTES])
{
    list[0] = '\0';
    for (uint32_t bit = 1; bit <= LORA_EXPERT_DOWN; bit <<= 1)
        if (mask & bit)
            lora_sites_list_add(list, lora_target_name_in(config, bit));
}

/* Refuses a name in targets that no module has, or a pattern that matches no adapted matrix. */
static int check_used(const struct resolver *r)
{
    const struct lora_rules *rules = r->rules;
    const char *where = r->defaults->where, *targets = r->defaults->targets;
    char list[LIST_BYTES];
    uint32_t hidden = arch_of(r->config->arch)->fused ? 0 : LORA_SHARED;
    /* beside target_parameters no module need match to those who load an adapter */
    bool none = (r->matched & ~(r->defaults->strict ? LORA_EXPERTS : 0)) == 0;
    bool pattern = rules->all_linear || rules->targets.expression || !(r->matched & LORA_EXPERTS);
    list_targets(r->config, r->takes & ~hidden, list);
    for (uint32_t i = 0; i < rules->targets.names.count; i++)
        if (!r->named[i] && (r->defaults->strict || none))
            return err_set(r->err, ERR_INVALID,
                           "%s.%s: \"%s\" matches no layer of this model; those that do: %s", where, targets,
                           rules->targets.names.names[i], list);
    if (none && rules->targets.names.count > 0)
        return err_set(r->err, ERR_INVALID, "%s.%s: exclude_modules leaves none of them", where, targets);
    list_targets(r->config, r->takes & ~hidden & LORA_ALL, list);
    if (none && pattern)
        return err_set(r->err, ERR_INVALID,
                       "%s.%s: \"%.120s\" matches no layer of this model; there are model.layers.0 to "
                       "model.layers.%u, each with %s",
                       where, targets, rules->targets.expression ? rules->targets.expression : "all-linear",
                       r->config->layers - 1, list);
    list_targets(r->config, r->matched, list);
    for (int k = 0; k < 2 && r->defaults->strict; k++) {
        const struct matchers *m = k == 0 ? &r->ranks : &r->alphas;
        const struct lora_patterns *patterns = k == 0 ? &rules->ranks : &rules->alphas;
        for (uint32_t i = 0; i < m->count; i++)
            if (!m->used[i])
                return err_set(r->err, ERR_INVALID,
                               "%s.%s: \"%.120s\" matches no matrix that %s.%s names; those are, of "
                               "model.layers.0 to model.layers.%u: %s",
                               where, k == 0 ? "rank_pattern" : "alpha_pattern", patterns->list[i].key, where,
                               targets, r->config->layers - 1, list);
    }
    return 0;
}

/* Checks that the shared expert has no adapters where experts may have some, and that experts have them in
 * every sparse layer or in none, and with the method's own rank and alpha, because transformers keeps the
 * experts of a layer as one tensor. */
static int lora_sites_check_experts(const struct resolver *r)
{
    const struct site *first = NULL;
    for (uint32_t layer = 0; layer < r->config->layers; layer++) {
        const struct site *sites = &r->sites[(size_t)layer * LORA_TARGET_COUNT];
        for (uint32_t i = 0; i < LORA_TARGET_COUNT; i++)
            if (!arch_of(r->config->arch)->fused && LORA_SHARED >> i & 1 && sites[i].rank > 0)
                return err_set(r->err, ERR_UNSUPPORTED,
                               "%s.%s: the shared expert: peft takes its matrices' names for those of "
                               "the other experts; leave them out with %s.exclude_modules "
                               "(\".*shared_expert.*\")",
                               r->defaults->where, r->defaults->targets, r->defaults->where);
        if (!model_layer_is_sparse(r->config, layer) || arch_of(r->config->arch)->fused)
            continue;
        first = first ? first : sites;
        for (uint32_t i = 0; i < LORA_TARGET_COUNT; i++) {
            const char *name = lora_target_name(1u << i);
            if (!(EXPERT_TARGETS >> i & 1))
                continue;
            if (sites[i].rank > 0 && r->matched & LORA_EXPERTS)
                return err_set(
                    r->err, ERR_UNSUPPORTED,
                    "%s.target_parameters: %s of experts is named in %s, too; peft makes both adapters "
                    "on one tensor of all experts, so name them in one of the two",
                    r->defaults->where, name, r->defaults->targets);
            if ((sites[i].rank > 0) != (first[i].rank > 0))
                return err_set(r->err, ERR_UNSUPPORTED,
                               "%s.%s: %s of experts has an adapter in every layer with experts or in none",
                               r->defaults->where, r->defaults->targets, name);
            if (sites[i].rank > 0 &&
                (sites[i].rank != r->defaults->rank || sites[i].alpha != r->defaults->alpha))
                return err_set(r->err, ERR_UNSUPPORTED, "%s.%s: %s of experts has the rank and alpha of %s",
                               r->defaults->where,
                               sites[i].rank != r->defaults->rank ? "rank_pattern" : "alpha_pattern", name,
                               r->defaults->where);
        }
    }
    return 0;
}

/* Gives layers with the same ranks and factors one entry of out->way. */
static int ways_make(const struct resolver *r, struct lora_sites *out)
{
    for (uint32_t layer = 0; layer < r->config->layers; layer++) {
        struct lora_way way;
        uint32_t at = 0;
        memset(&way, 0, sizeof(way)); /* clears the padding, too, because entries are compared by bytes */
        for (uint32_t i = 0; i < LORA_TARGET_COUNT; i++) {
            const struct site *site = &r->sites[(size_t)layer * LORA_TARGET_COUNT + i];
            way.rank[i] = site->rank;
            if (site->rank > 0)
                way.scale[i] = site->alpha / (r->defaults->rslora ? sqrt(site->rank) : site->rank);
        }
        while (at < out->ways && memcmp(&out->way[at], &way, sizeof(way)) != 0)
            at++;
        if (at == LORA_WAYS_MAX)
            return err_set(r->err, ERR_UNSUPPORTED,
                           "%s.rank_pattern: layers differ in more than %d ways; give more of them the same",
                           r->defaults->where, LORA_WAYS_MAX);
        if (at == out->ways)
            out->way[out->ways++] = way;
        out->layer[layer] = (uint8_t)at;
    }
    return 0;
}

int lora_sites_of(const struct lora_rules *rules, const struct lora_defaults *defaults,
                  const struct model_config *config, struct lora_sites *sites, struct err *err)
{
    struct resolver r = {.rules = rules, .defaults = defaults, .config = config, .err = err};
    memset(sites, 0, sizeof(*sites));
    if (rules->all_linear && config->experts > 0)
        return err_set(
            err, ERR_UNSUPPORTED,
            "%s.%s: all-linear takes a mixture's routers, too, which are not adapted here; name the "
            "matrices",
            defaults->where, defaults->targets);
    int status = resolver_init(&r);
    if (status == 0)
        status = model_adapted_tensors(config, lora_sites_visit, &r);
    for (uint32_t layer = 0; layer < config->layers && status == 0; layer++)
        if (model_layer_is_sparse(config, layer))
            status = visit_parameters(&r, layer);
    if (status == 0)
        status = lora_sites_check_parameters(&r);
    if (status == 0)
        status = check_used(&r);
    if (status == 0)
        status = lora_sites_check_experts(&r);
    if (status == 0)
        status = ways_make(&r, sites);
    resolver_fini(&r);
    if (status < 0)
        sites->ways = 0;
    return status;
}

/* --- queries --- */

struct lora_sites lora_sites_alike(uint32_t rank, double scale, uint32_t targets)
{
    struct lora_sites sites = {.ways = rank > 0 && targets != 0};
    for (uint32_t i = 0; i < LORA_TARGET_COUNT && sites.ways > 0; i++)
        if (targets >> i & 1)
            sites.way[0].rank[i] = rank, sites.way[0].scale[i] = scale;
    return sites;
}

uint32_t lora_sites_targets(const struct lora_sites *sites)
{
    uint32_t mask = 0;
    for (uint32_t w = 0; w < sites->ways; w++)
        for (uint32_t i = 0; i < LORA_TARGET_COUNT; i++)
            mask |= sites->way[w].rank[i] > 0 ? 1u << i : 0;
    return mask;
}

void lora_sites_ranks(const struct lora_sites *sites, uint32_t *least, uint32_t *most)
{
    *least = *most = 0;
    for (uint32_t w = 0; w < sites->ways; w++)
        for (uint32_t i = 0; i < LORA_TARGET_COUNT; i++) {
            uint32_t rank = sites->way[w].rank[i];
            *least = rank > 0 && (*least == 0 || rank < *least) ? rank : *least;
            *most = rank > *most ? rank : *most;
        }
}

void lora_sites_mean(const struct lora_sites *sites, uint32_t layers, uint32_t rank[LORA_TARGET_COUNT])
{
    for (uint32_t i = 0; i < LORA_TARGET_COUNT; i++) {
        uint64_t sum = 0;
        for (uint32_t layer = 0; layer < layers; layer++)
            sum += lora_rank_at(sites, layer, i);
        rank[i] = layers > 0 ? (uint32_t)((sum + layers - 1) / layers) : 0;
    }
}
