/* Arrays: one specification for several jobs that differ in some values.
 *
 * The elements are numbered from 0, and the last key's values change fastest. The specification of an array
 * holds the values of its first element wherever those stand in a plain one, so that it is checked and
 * planned as that element.
 */
#include "model/job/spec_array.h"

#include <stdio.h>
#include <string.h>

/* The keys in which elements of an array may differ; keys of files and devices are not among them. */
static const struct {
    const char *part, *key;
} axes_known[] = {
    {"train", "learning_rate"},   {"train", "seed"},           {"train", "batch_rows"},
    {"train", "steps"},           {"train", "epochs"},         {"train", "schedule"},
    {"train", "warmup_steps"},    {"train", "final_fraction"}, {"train", "cycles"},
    {"train", "power"},           {"train", "decay_steps"},    {"train", "weight_decay"},
    {"train", "decay"},           {"train", "betas"},          {"train", "eps"},
    {"train", "clip_norm"},       {"train", "compute"},        {"train", "recompute"},
    {"train", "label_smoothing"}, {"train", "neftune_alpha"},  {"train", "router_aux"},
    {"method", "rank"},           {"method", "alpha"},         {"method", "dropout"},
    {"method", "targets"},        {"method", "rslora"},        {"method", "base"},
    {"method", "double_quant"},   {"method", "optimizer"},     {"method", "modules_to_save"},
};
enum { AXES_KNOWN = sizeof(axes_known) / sizeof(axes_known[0]) };

/* Returns the index in axes_known of a key such as "seed" or "train.seed", or -1. */
static int axis_of(const char *key)
{
    for (int i = 0; i < AXES_KNOWN; i++) {
        const size_t part = strlen(axes_known[i].part);
        if (strcmp(key, axes_known[i].key) == 0 ||
            (strncmp(key, axes_known[i].part, part) == 0 && key[part] == '.' &&
             strcmp(key + part + 1, axes_known[i].key) == 0))
            return i;
    }
    return -1;
}

static int refuse_axis(const char *key, struct err *err)
{
    char known[600] = "";
    size_t used = 0;
    for (int i = 0; i < AXES_KNOWN && used < sizeof(known); i++)
        used +=
            (size_t)snprintf(known + used, sizeof(known) - used, "%s%s", i ? ", " : "", axes_known[i].key);
    return err_set(err, ERR_INVALID, "array: \"%.60s\" may not differ between elements; what may: %s", key,
                   known);
}

static int check_axes(const json_t *array, uint32_t *size, struct err *err)
{
    const char *key;
    const json_t *values;
    bool seen[AXES_KNOWN] = {false};
    uint64_t count = 1;
    if (!json_is_object(array) || json_object_size(array) == 0)
        return err_set(err, ERR_INVALID,
                       "array: it must be a mapping of keys to lists of values, such as seed: [1, 2]");
    json_object_foreach ((json_t *)(uintptr_t)array, key, values) {
        const int axis = axis_of(key);
        if (axis < 0)
            return refuse_axis(key, err);
        if (seen[axis])
            return err_set(err, ERR_INVALID, "array.%.60s: it is there twice", key);
        seen[axis] = true;
        if (!json_is_array(values) || json_array_size(values) == 0)
            return err_set(err, ERR_INVALID, "array.%.60s: it must be a list of one value or more", key);
        count =
            json_array_size(values) > SPEC_ARRAY_MAX ? SPEC_ARRAY_MAX + 1 : count * json_array_size(values);
        if (count > SPEC_ARRAY_MAX)
            return err_set(err, ERR_INVALID, "array: it has more than %d elements", SPEC_ARRAY_MAX);
    }
    *size = (uint32_t)count;
    return 0;
}

/* Sets one value of an element. Steps and epochs replace each other. */
static int spec_array_set_value(json_t *document, int axis, json_t *value)
{
    json_t *part = json_object_get(document, axes_known[axis].part);
    json_t *changed = json_is_object(part) ? json_copy(part) : json_object();
    if (strcmp(axes_known[axis].key, "steps") == 0)
        json_object_del(changed, "epochs");
    else if (strcmp(axes_known[axis].key, "epochs") == 0)
        json_object_del(changed, "steps");
    if (json_object_set(changed, axes_known[axis].key, value) < 0) {
        json_decref(changed);
        return -1;
    }
    return json_object_set_new(document, axes_known[axis].part, changed);
}

/* Sets the values of element `index`. */
static int set_values(json_t *document, const json_t *array, uint32_t size, uint32_t index)
{
    const char *key;
    json_t *values;
    uint32_t block = size;
    json_object_foreach ((json_t *)(uintptr_t)array, key, values) {
        block /= (uint32_t)json_array_size(values);
        if (spec_array_set_value(document, axis_of(key),
                                 json_array_get(values, index / block % json_array_size(values))) < 0)
            return -1;
    }
    return 0;
}

static json_t *without_array(const json_t *document)
{
    static const char *const of_arrays[] = {"array", "at_most", "after", "after_any", "hold"};
    json_t *element = json_copy((json_t *)(uintptr_t)document);
    for (size_t i = 0; element && i < sizeof(of_arrays) / sizeof(of_arrays[0]); i++)
        json_object_del(element, of_arrays[i]);
    return element;
}

json_t *spec_array_element(const json_t *document, uint32_t index, struct err *err)
{
    const json_t *array = json_object_get(document, "array");
    uint32_t size;
    char name[SPEC_NAME_BYTES + 16];
    if (check_axes(array, &size, err) < 0)
        return NULL;
    if (index >= size) {
        err_set(err, ERR_INVALID, "array: it has no element %u", index);
        return NULL;
    }
    const char *given = json_string_value(json_object_get(document, "name"));
    snprintf(name, sizeof(name), "%.*s[%u]", SPEC_NAME_BYTES - 1, given ? given : "job", index);
    json_t *element = without_array(document);
    if (!element || set_values(element, array, size, index) < 0 ||
        json_object_set_new(element, "name", json_string(name)) < 0) {
        json_decref(element);
        err_set(err, ERR_NOMEM, "out of memory for an array's element");
        return NULL;
    }
    return element;
}

/* Checks the specification of one element, which it takes over, and with a `config` whether a model of that
 * config can do it. */
static int check_element(json_t *element, const struct model_config *config, struct err *err)
{
    struct job_spec spec;
    if (!element)
        return err_set(err, ERR_NOMEM, "out of memory for an array");
    int rc = spec_parse_job(element, &spec, err);
    json_decref(element);
    if (rc < 0)
        return -1;
    if (config)
        rc = spec_check_model(&spec, config, err);
    spec_fini(&spec);
    return rc;
}

/* Checks each value alone, so that the wrong one is named. */
static int check_values(const json_t *first, const struct model_config *config, struct err *err)
{
    const char *key;
    json_t *values, *value;
    size_t i;
    json_object_foreach (json_object_get(first, "array"), key, values) {
        json_array_foreach (values, i, value) {
            json_t *element = without_array(first);
            if (element && spec_array_set_value(element, axis_of(key), value) < 0)
                return err_set(err, ERR_NOMEM, "out of memory for an array");
            if (check_element(element, config, err) < 0)
                return err_wrap(err, "array.%s[%zu]", key, i);
        }
    }
    return 0;
}

/* Checks the document without its array, so that errors outside the array are named as such; then each value
 * alone, and each element with its values together. */
static int check_elements(const json_t *document, const json_t *first, uint32_t size, struct err *err)
{
    struct err ignored;
    if (check_element(without_array(document), NULL, err) < 0 &&
        check_element(without_array(first), NULL, &ignored) < 0)
        return -1;
    if (check_values(first, NULL, err) < 0)
        return -1;
    for (uint32_t index = 0; index < size; index++)
        if (check_element(spec_array_element(first, index, err), NULL, err) < 0)
            return err_wrap(err, "array: element %u", index);
    return 0;
}

int spec_array_check_model(const json_t *document, const struct model_config *config, struct err *err)
{
    return check_values(document, config, err);
}

/* Checks the array of a specification and each of its elements. *first becomes a new document that holds the
 * values of element 0 at their places, and `array` with whole paths as keys. */
static int array_first(const json_t *document, uint32_t *size, json_t **first, struct err *err)
{
    const char *key;
    json_t *values;
    json_t *given = json_object_get(document, "array");
    json_t *array = json_object(), *base = json_copy((json_t *)(uintptr_t)document);
    *first = NULL;
    if (check_axes(given, size, err) < 0)
        goto fail;
    json_object_foreach (given, key, values) {
        char path[64];
        const int axis = axis_of(key);
        snprintf(path, sizeof(path), "%s.%s", axes_known[axis].part, axes_known[axis].key);
        if (json_object_set(array, path, values) < 0)
            goto memory;
        if (strcmp(axes_known[axis].part, "method") == 0 &&
            json_is_string(json_object_get(json_object_get(document, "method"), "start_from"))) {
            err_set(err, ERR_INVALID, "array.%s: method.start_from has its own", key);
            goto fail;
        }
    }
    if (!base || set_values(base, array, *size, 0) < 0)
        goto memory;
    if (check_elements(document, base, *size, err) < 0)
        goto fail;
    if (json_object_set_new(base, "array", array) < 0) {
        array = NULL;
        goto memory;
    }
    *first = base;
    return 0;
memory:
    err_set(err, ERR_NOMEM, "out of memory for an array");
fail:
    json_decref(array);
    json_decref(base);
    return -1;
}

int spec_parse(const json_t *document, struct job_spec *spec, struct err *err)
{
    const json_t *array = json_object_get(document, "array");
    json_t *first = NULL;
    uint32_t size = 0;
    *spec = (struct job_spec){0};
    if (array && !json_is_null(array) && array_first(document, &size, &first, err) < 0)
        return -1;
    const int rc = spec_parse_job(first ? first : document, spec, err);
    spec->array_size = rc == 0 ? size : 0;
    json_decref(first);
    return rc;
}
