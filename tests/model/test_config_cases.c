/* A config.json of every family with each key absent, null, of another type and at odd values is read as
 * transformers reads it (tools/golden_configs.py recorded that), or refused by the key. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/file.h"
#include "common/json.h"
#include "model/shape/blocks.h"
#include "model/shape/config.h"

struct counts {
    unsigned equal, refused, both, wrong;
};

static const json_t *of(const json_t *what, const json_t *first, const char *key)
{
    const json_t *value = json_object_get(what, key);
    return value ? value : json_object_get(first, key);
}

static bool close_to(double got, const json_t *want)
{
    return fabs(got - json_number_value(want)) <= 2e-6 * (1e-3 + fabs(json_number_value(want)));
}

static bool frequencies_are(const struct rope_config *rope, const struct model_config *c, const json_t *want)
{
    uint32_t dim = c->rotary_dim ? c->rotary_dim : c->head_dim;
    double got[512];
    struct err err;
    if (model_rope_frequencies_of(rope, dim, 0, got, &err) < 0)
        return false;
    for (size_t i = 0; i < json_array_size(want); i++)
        if (!close_to(got[i], json_array_get(want, i)))
            return false;
    return true;
}

static bool rotary_is(const struct model_config *c, const json_t *want)
{
    const json_t *one = json_object_get(want, "inv_freq");
    if (one)
        return frequencies_are(&c->rope, c, one);
    return frequencies_are(&c->rope, c, json_object_get(want, "full_attention_inv_freq")) &&
           frequencies_are(c->rope_local_set ? &c->rope_local : &c->rope, c,
                           json_object_get(want, "sliding_attention_inv_freq"));
}

static bool layers_are(const struct model_config *c, const json_t *windows, const json_t *rotates)
{
    if (json_array_size(windows) != c->layers)
        return false;
    for (uint32_t i = 0; i < c->layers; i++)
        if (model_layer_window(c, i) != json_integer_value(json_array_get(windows, i)) ||
            (rotates && model_layer_rotates(c, i) != json_is_true(json_array_get(rotates, i))))
            return false;
    return true;
}

/* Returns the name of the first difference, or NULL. */
static const char *difference(const struct model_config *c, const json_t *what, const json_t *first)
{
    const json_t *active = of(what, first, "active"), *caps = of(what, first, "caps");
    uint64_t rows = c->heads * (uint64_t)c->head_dim;
    if (c->packed_qkv)
        rows += 2 * (uint64_t)c->kv_heads * c->head_dim;
    if ((json_int_t)model_config_params(c) != json_integer_value(of(what, first, "parameters")))
        return "parameters";
    if (c->tied != json_is_true(of(what, first, "tied")))
        return "tied";
    if ((json_int_t)rows != json_integer_value(of(what, first, "rows")))
        return "rows";
    if (c->max_positions != json_integer_value(of(what, first, "max")))
        return "max";
    if (fabs(c->norm_eps - json_number_value(of(what, first, "eps"))) > 1e-12)
        return "eps";
    if (!layers_are(c, of(what, first, "windows"), of(what, first, "rotates")))
        return "windows";
    if (!rotary_is(c, of(what, first, "freq")))
        return "freq";
    if (!close_to(c->attn_scale > 0 ? c->attn_scale : 1 / sqrt((double)c->head_dim),
                  of(what, first, "scale")))
        return "scale";
    if (active && (c->experts_active != json_integer_value(active) ||
                   c->router_renormalise != json_is_true(of(what, first, "normed"))))
        return "experts";
    if (caps && (!close_to(c->attn_softcap, json_array_get(caps, 0)) ||
                 !close_to(c->logit_softcap, json_array_get(caps, 1))))
        return "caps";
    return NULL;
}

static bool names_a_key(const char *text, const json_t *patch)
{
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)patch, key, value)
        if (strstr(text, key[0] == '-' ? key + 1 : key))
            return true;
    return false;
}

static void patch_apply(json_t *document, const json_t *patch)
{
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)patch, key, value)
        if (key[0] == '-')
            json_object_del(document, key + 1);
        else
            json_object_set(document, key, value);
}

static void check_case(const json_t *head, const json_t *item, const json_t *first, struct counts *counts)
{
    const char *family = json_string_value(json_array_get(item, 0)), *wrong = NULL;
    const json_t *patch = json_array_get(item, 1), *what = json_array_get(item, 2);
    json_t *document = json_deep_copy(json_object_get(head, "base"));
    struct model_config config;
    struct err err = {0};
    json_object_update(document, json_object_get(json_object_get(head, "families"), family));
    json_object_set_new(document, "model_type", json_string(family));
    patch_apply(document, patch);
    int status = model_config_parse(document, &config, &err);
    if (status < 0) {
        counts->both += json_is_null(what);
        counts->refused += !json_is_null(what);
        if (!names_a_key(err.text, patch))
            wrong = err.text;
    } else if (json_is_null(what)) {
        wrong = "transformers refuses it";
    } else {
        wrong = difference(&config, what, first);
        counts->equal += !wrong;
    }
    if (wrong || (status < 0 && !json_is_null(what) && getenv("MOTLEY_SHOW"))) {
        char *text = json_dumps(patch, JSON_COMPACT);
        print_error("    %s %s: %s\n", family, text, wrong ? wrong : err.text);
        free(text);
    }
    counts->wrong += wrong != NULL;
    json_decref(document);
}

static void every_config_is_what_transformers_makes_of_it_or_refused(void **state)
{
    struct buf text = {.limit = 1 << 20};
    struct err err;
    struct counts counts = {0};
    json_t *head = NULL, *first = NULL;
    char family[32] = "";
    (void)state;
    assert_int_equal(file_read_all(MOTLEY_TEST_DATA "/configs/cases.json", text.limit, &text, &err), 0);
    for (char *line = (char *)text.data, *end; (end = strchr(line, '\n')); line = end + 1) {
        json_t *item = json_loadb(line, (size_t)(end - line), 0, NULL);
        assert_non_null(item);
        if (!head) {
            head = item;
            continue;
        }
        const char *name = json_string_value(json_array_get(item, 0));
        if (strcmp(name, family) != 0) {
            snprintf(family, sizeof(family), "%s", name);
            json_decref(first);
            first = json_incref(json_array_get(item, 2));
        }
        check_case(head, item, first, &counts);
        json_decref(item);
    }
    print_message("    %u equal, %u refused here, %u refused by both, %u wrong\n", counts.equal,
                  counts.refused, counts.both, counts.wrong);
    assert_int_equal(counts.wrong, 0);
    assert_true(counts.equal > 500);
    json_decref(first);
    json_decref(head);
    buf_fini(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_config_is_what_transformers_makes_of_it_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
