/* Reads and writes the keys of lora_rules.h as JSON. */
#include "model/shape/lora_rules.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/shape/lora_match.h"

static void modules_fini(struct lora_modules *modules)
{
    names_fini(&modules->names);
    free(modules->expression);
    modules->expression = NULL;
}

static void patterns_fini(struct lora_patterns *patterns)
{
    for (uint32_t i = 0; i < patterns->count; i++)
        free(patterns->list[i].key);
    free(patterns->list);
    *patterns = (struct lora_patterns){0};
}

void lora_rules_fini(struct lora_rules *rules)
{
    modules_fini(&rules->targets);
    names_fini(&rules->parameters);
    modules_fini(&rules->exclude);
    free(rules->layers);
    names_fini(&rules->layers_pattern);
    patterns_fini(&rules->ranks);
    patterns_fini(&rules->alphas);
    *rules = (struct lora_rules){0};
}

/* --- reading --- */

static char *lora_rules_copy_text(struct json_reader *r, const char *text)
{
    char *copy = strdup(text);
    if (!copy) {
        err_set(r->err, ERR_NOMEM, "out of memory for a pattern");
        r->failed = true;
    }
    return copy;
}

/* Refuses a text that is not a regular expression. */
static int expression_check(struct json_reader *r, const char *key, const char *text, enum lora_match_how how)
{
    struct lora_matcher *matcher = NULL;
    struct err why = {0};
    if (strlen(text) >= LORA_EXPRESSION_BYTES)
        return jr_fail(r, key, "a pattern has %zu bytes; at most %d", strlen(text),
                       LORA_EXPRESSION_BYTES - 1);
    int status = lora_matcher_create(text, how, &matcher, &why);
    lora_matcher_destroy(matcher);
    return status < 0 ? jr_fail(r, key, "%s", why.text) : 0;
}

/* Reads a list of names, or one expression. Returns 1 when the key was present. */
static int modules_read(struct json_reader *r, const char *key, size_t count_min, struct lora_modules *out)
{
    const json_t *value = NULL;
    int got = jr_any(r, key, JR_OPTIONAL, &value);
    if (got <= 0)
        return got;
    modules_fini(out);
    if (!json_is_string(value))
        return names_read(r, key, count_min, LORA_NAMES_MAX, NULL, &out->names);
    const char *text = json_string_value(value);
    if (text[0] == '\0' || json_string_length(value) != strlen(text))
        return jr_fail(r, key, "must be a list of names, or one regular expression");
    if (expression_check(r, key, text, LORA_MATCH_WHOLE) < 0)
        return -1;
    out->expression = lora_rules_copy_text(r, text);
    return 1;
}

static bool says_all_linear(const char *text)
{
    static const char word[] = "all-linear";
    size_t i = 0;
    while (text[i] != '\0' && (text[i] == word[i] || (text[i] | 0x20) == word[i]))
        i++;
    return text[i] == '\0' && i == sizeof(word) - 1;
}

static void targets_read(struct json_reader *r, const char *key, struct lora_rules *rules)
{
    names_read(r, "target_parameters", 0, LORA_NAMES_MAX, NULL, &rules->parameters);
    if (modules_read(r, key, rules->parameters.count > 0 ? 0 : 1, &rules->targets) <= 0)
        return;
    rules->all_linear = rules->targets.expression && says_all_linear(rules->targets.expression);
    if (rules->all_linear)
        modules_fini(&rules->targets);
}

static void layers_read(struct json_reader *r, const char *key, struct lora_rules *rules)
{
    const json_t *value = NULL, *item;
    if (jr_any(r, key, JR_OPTIONAL, &value) <= 0)
        return;
    size_t count = json_is_array(value) ? json_array_size(value) : 1;
    if (count > LORA_NAMES_MAX || (!json_is_array(value) && !json_is_integer(value))) {
        jr_fail(r, key, "must be a layer's number (from 0), or a list of at most %d", LORA_NAMES_MAX);
        return;
    }
    free(rules->layers);
    rules->layer_count = 0;
    rules->layers_one = !json_is_array(value);
    rules->layers = calloc(count + 1, sizeof(*rules->layers));
    if (!rules->layers) {
        err_set(r->err, ERR_NOMEM, "out of memory for a list of layers");
        r->failed = true;
        return;
    }
    for (size_t i = 0; i < count; i++) {
        item = rules->layers_one ? value : json_array_get(value, i);
        if (!json_is_integer(item) || json_integer_value(item) < 0 || json_integer_value(item) > INT32_MAX) {
            jr_fail(r, key, "item %zu must be a layer's number, from 0", i);
            return;
        }
        rules->layers[rules->layer_count++] = (uint32_t)json_integer_value(item);
    }
}

static void layers_pattern_read(struct json_reader *r, const char *key, struct lora_rules *rules)
{
    const json_t *value = NULL;
    if (jr_any(r, key, JR_OPTIONAL, &value) <= 0)
        return;
    if (json_is_string(value)) {
        names_fini(&rules->layers_pattern);
        rules->layers_pattern.given = true;
        const char *text = json_string_value(value);
        if (text[0] != '\0' && names_add(&rules->layers_pattern, text, r->err) < 0)
            r->failed = true;
    } else {
        names_read(r, key, 0, 64, NULL, &rules->layers_pattern);
    }
    for (uint32_t i = 0; i < rules->layers_pattern.count && !r->failed; i++)
        expression_check(r, key, rules->layers_pattern.names[i], LORA_MATCH_LAYER);
    if (!r->failed && rules->layers_pattern.count > 0 && rules->layer_count == 0)
        jr_fail(r, key, "says where layers_to_transform counts, which is not given");
}

/* The bounds of a pattern's numbers; ranks must be whole. */
struct bounds {
    double min, max;
    bool whole;
};

static int pattern_add(struct json_reader *r, const char *key, const char *name, const json_t *value,
                       struct bounds bounds, struct lora_patterns *out)
{
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= bounds.min && number <= bounds.max) ||
        (bounds.whole && number != floor(number)))
        return jr_fail(r, key, "%.120s must be a %snumber from %g to %g", name, bounds.whole ? "whole " : "",
                       bounds.min, bounds.max);
    if (name[0] == '\0')
        return jr_fail(r, key, "an empty name matches nothing");
    if (expression_check(r, key, name, LORA_MATCH_KEY) < 0)
        return -1;
    char *copy = lora_rules_copy_text(r, name);
    if (!copy)
        return -1;
    out->list[out->count++] = (struct lora_pattern){.key = copy, .value = number};
    return 0;
}

static void pattern_read(struct json_reader *r, const char *key, struct bounds bounds,
                         struct lora_patterns *out)
{
    const json_t *object = NULL;
    const char *name;
    json_t *value;
    if (jr_object(r, key, JR_OPTIONAL, &object) <= 0)
        return;
    if (json_object_size(object) > LORA_NAMES_MAX) {
        jr_fail(r, key, "%zu patterns; at most %d", json_object_size(object), LORA_NAMES_MAX);
        return;
    }
    patterns_fini(out);
    out->list = calloc(json_object_size(object) + 1, sizeof(*out->list));
    if (!out->list) {
        err_set(r->err, ERR_NOMEM, "out of memory for patterns");
        r->failed = true;
        return;
    }
    json_object_foreach ((json_t *)(uintptr_t)object, name, value) {
        if (pattern_add(r, key, name, value, bounds, out) < 0)
            return;
    }
}

void lora_rules_read(struct json_reader *r, const char *targets, uint32_t rank_max, double alpha_min,
                     double alpha_max, struct lora_rules *rules)
{
    targets_read(r, targets, rules);
    modules_read(r, "exclude_modules", 0, &rules->exclude);
    layers_read(r, "layers_to_transform", rules);
    layers_pattern_read(r, "layers_pattern", rules);
    pattern_read(r, "rank_pattern", (struct bounds){.min = 1, .max = rank_max, .whole = true}, &rules->ranks);
    pattern_read(r, "alpha_pattern", (struct bounds){.min = alpha_min, .max = alpha_max}, &rules->alphas);
    bool by_name = !rules->targets.expression && !rules->all_linear;
    bool layers = rules->layers || rules->layers_pattern.given;
    if (!r->failed && !by_name && layers)
        jr_fail(r, rules->layers ? "layers_to_transform" : "layers_pattern",
                "goes with %s as a list of names; an expression says the layers itself", targets);
}

/* --- writing --- */

static const char *renamed(const char *(*rename)(const char *), const char *name)
{
    const char *other = rename ? rename(name) : NULL;
    return other ? other : name;
}

static json_t *modules_json(const struct lora_modules *modules, const char *(*rename)(const char *))
{
    if (modules->expression)
        return json_string(modules->expression);
    return modules->names.count > 0 ? names_json(&modules->names, rename) : json_null();
}

static json_t *layers_json(const struct lora_rules *rules)
{
    if (rules->layer_count == 0)
        return json_null();
    if (rules->layers_one)
        return json_integer((json_int_t)rules->layers[0]);
    json_t *array = json_array();
    for (uint32_t i = 0; array && i < rules->layer_count; i++)
        if (json_array_append_new(array, json_integer((json_int_t)rules->layers[i])) < 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

static json_t *pattern_json(const struct lora_patterns *patterns, bool whole,
                            const char *(*rename)(const char *))
{
    json_t *object = json_object();
    for (uint32_t i = 0; object && i < patterns->count; i++) {
        const struct lora_pattern *p = &patterns->list[i];
        json_t *value = whole ? json_integer((json_int_t)p->value) : json_real(p->value);
        if (json_object_set_new(object, renamed(rename, p->key), value) < 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

int lora_rules_write(const struct lora_rules *rules, const char *targets, const char *(*rename)(const char *),
                     json_t *object, struct err *err)
{
    json_t *which = rules->all_linear ? json_string("all-linear") : modules_json(&rules->targets, rename);
    json_t *pattern =
        rules->layers_pattern.count > 0 ? names_json(&rules->layers_pattern, NULL) : json_null();
    if (rules->parameters.count > 0 && json_is_null(which))
        which = json_array(); /* peft takes null for a default */
    int status = json_object_set_new(object, targets, which);
    if (rules->parameters.count > 0)
        status |= json_object_set_new(object, "target_parameters", names_json(&rules->parameters, NULL));
    status |= json_object_set_new(object, "exclude_modules", modules_json(&rules->exclude, NULL));
    status |= json_object_set_new(object, "layers_to_transform", layers_json(rules));
    status |= json_object_set_new(object, "layers_pattern", pattern);
    status |= json_object_set_new(object, "rank_pattern", pattern_json(&rules->ranks, true, rename));
    status |= json_object_set_new(object, "alpha_pattern", pattern_json(&rules->alphas, false, rename));
    return status == 0 ? 0 : err_set(err, ERR_NOMEM, "out of memory for the names of an adapter's modules");
}
