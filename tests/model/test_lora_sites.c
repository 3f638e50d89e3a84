/* Adapters have the positions, ranks and factors that peft gives them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/json.h"
#include "common/yaml.h"
#include "model/shape/lora_match.h"
#include "model/shape/lora_sites.h"
#include "model/adapters/peft.h"
#include "model/job/spec.h"
#include "support/must.h"

#define DATA MOTLEY_TEST_DATA "/"

/* Compares the sites with `modules` ({name: [rank, factor]}), fails where they differ, and returns the number
 * of adapters. */
static size_t modules_alike(const struct lora_sites *sites, const struct model_config *config,
                            const json_t *modules)
{
    size_t found = 0;
    for (uint32_t layer = 0; layer < config->layers; layer++)
        for (uint32_t site = 0; site < LORA_TARGET_COUNT; site++) {
            char name[128];
            if (LORA_SHARED >> site & 1) /* of no model of this test */
                continue;
            snprintf(name, sizeof(name), "model.layers.%u.%s.%s", layer,
                     LORA_ATTENTION >> site & 1 ? "self_attn" : "mlp", lora_target_name(1u << site));
            const json_t *theirs = json_object_get(modules, name);
            uint32_t rank = lora_rank_at(sites, layer, site);
            double scale = lora_scale_at(sites, layer, site);
            if (rank != (uint32_t)json_integer_value(json_array_get(theirs, 0)) ||
                (rank > 0 && (scale < 0.9999999999 * json_number_value(json_array_get(theirs, 1)) ||
                              scale > 1.0000000001 * json_number_value(json_array_get(theirs, 1)))))
                fail_msg("%s has rank %u and factor %g, peft: %u and %g", name, rank, scale,
                         (unsigned)json_integer_value(json_array_get(theirs, 0)),
                         json_number_value(json_array_get(theirs, 1)));
            found += rank > 0;
        }
    return found;
}

/* Reads the config from adapter_config.json's form, then writes it and reads it again. */
static int sites_as_peft(const json_t *given, const struct model_config *model, struct lora_sites *sites)
{
    struct peft_config config, again;
    struct err err = {0};
    json_t *document = json_deep_copy(given);
    json_object_set_new(document, "peft_type", json_string("LORA"));
    must(peft_config_parse(document, &config, &err), &err);
    json_t *written = peft_config_to_json(&config, model, "tiny", &err);
    if (!written) {
        json_decref(document);
        peft_config_fini(&config);
        return -1;
    }
    must(peft_config_parse(written, &again, &err), &err);
    int status = peft_sites(&again, model, sites, &err);
    json_decref(written);
    json_decref(document);
    peft_config_fini(&config);
    peft_config_fini(&again);
    return status;
}

/* Reads the config as a specification. Returns -1 where that refuses, for example names that match nothing,
 * which peft ignores. */
static int sites_as_spec(const json_t *given, const struct model_config *model, struct lora_sites *sites,
                         struct err *err)
{
    static const char *const names[][2] = {{"r", "rank"},
                                           {"lora_alpha", "alpha"},
                                           {"target_modules", "targets"},
                                           {"use_rslora", "rslora"},
                                           {"exclude_modules", "exclude_modules"},
                                           {"layers_to_transform", "layers_to_transform"},
                                           {"layers_pattern", "layers_pattern"},
                                           {"rank_pattern", "rank_pattern"},
                                           {"alpha_pattern", "alpha_pattern"}};
    json_t *method = json_object(),
           *document = json_pack("{s:s, s:{s:s}}", "model", "m", "data", "train", "t");
    struct job_spec spec, again;
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        json_object_set(method, names[i][1], json_object_get(given, names[i][0]));
    json_object_set_new(document, "method", method);
    must(spec_parse(document, &spec, err), err);
    json_t *written = spec_to_json(&spec, err);
    must(spec_parse(written, &again, err), err);
    int status = spec_lora_sites(&again.method, model, sites, err);
    spec_fini(&spec);
    spec_fini(&again);
    json_decref(written);
    json_decref(document);
    return status;
}

/* The cases were recorded by tools/golden_patterns.py. */
static void adapters_are_where_peft_puts_them(void **state)
{
    (void)state;
    struct err err = {0};
    struct buf text = {.limit = 1 << 20};
    must(file_read_all(DATA "golden/patterns.json", 1 << 20, &text, &err), &err);
    json_t *cases = json_parse_limited(buf_str(&text), text.size, 8, &err), *one;
    size_t c, good = 0, strict = 0, refused = 0;
    json_array_foreach (cases, c, one) {
        const json_t *modules = json_object_get(one, "modules"), *config = json_object_get(one, "config");
        static struct lora_sites sites, own;
        struct model_config model;
        char path[512];
        snprintf(path, sizeof(path), DATA "%s", json_string_value(json_object_get(one, "model")));
        must(model_config_load(path, &model, &err), &err);
        if (json_is_null(modules)) {
            assert_int_equal(-1, sites_as_peft(config, &model, &sites));
            assert_int_equal(-1, sites_as_spec(config, &model, &sites, &err));
            refused++;
            continue;
        }
        assert_int_equal(0, sites_as_peft(config, &model, &sites));
        assert_int_equal(json_object_size(modules), modules_alike(&sites, &model, modules));
        good++;
        if (sites_as_spec(config, &model, &own, &err) == 0) {
            assert_memory_equal(&sites, &own, sizeof(sites));
            strict++;
        } else if (!strstr(err.text, " matches no ")) {
            fail_msg("%s", err.text);
        }
    }
    assert_true(good > 80 && strict > 30 && refused > 20);
    json_decref(cases);
    buf_fini(&text);
}

static int spec_sites(const char *config, const char *method, struct err *err)
{
    char text[512], path[256];
    struct job_spec spec;
    struct model_config model;
    struct lora_sites sites;
    snprintf(path, sizeof(path), DATA "%s", config);
    snprintf(text, sizeof(text), "{model: m, data: {train: t}, method: %s}", method);
    must(model_config_load(path, &model, err), err);
    json_t *document = yaml_parse(text, strlen(text), err);
    int status = document ? spec_parse(document, &spec, err) : -1;
    json_decref(document);
    if (status < 0)
        return -1;
    status = spec_lora_sites(&spec.method, &model, &sites, err);
    spec_fini(&spec);
    return status;
}

static void what_matches_nothing_or_is_no_pattern_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *config, *method, *says;
    } cases[] = {
        {"golden/llama", "{rank_pattern: {up_proj: 4}}",
         "method.rank_pattern: \"up_proj\" matches no matrix that method.targets names; those are, of "
         "model.layers.0 to model.layers.3: q_proj, k_proj, v_proj, o_proj"},
        {"golden/llama", "{alpha_pattern: {'layers\\.4\\..*': 4}}", "method.alpha_pattern: \"layers"},
        {"golden/llama", "{targets: [q_proj, lm_heads]}",
         "method.targets: \"lm_heads\" matches no layer of this model; those that do: q_proj, k_proj, "
         "v_proj, "
         "o_proj, gate_proj, up_proj, down_proj, embed_tokens, lm_head"},
        {"golden/llama", "{targets: '.*\\.9\\..*'}", "method.targets: \".*\\.9\\..*\" matches no layer"},
        {"golden/llama", "{layers_to_transform: [7]}", "method.targets: \"q_proj\" matches no layer"},
        {"golden/llama", "{targets: all-linear, layers_to_transform: [1]}",
         "method.layers_to_transform: goes"},
        {"golden/llama", "{layers_pattern: layers}", "method.layers_pattern: says where"},
        {"golden/llama", "{layers_to_transform: [-1]}", "method.layers_to_transform: item 0"},
        {"golden/llama", "{rank_pattern: {'q_proj(': 4}}",
         "method.rank_pattern: \"q_proj(\" is no regular expression: missing closing parenthesis"},
        {"golden/llama", "{rank_pattern: {'(?R)': 4}}", "method.rank_pattern: \"(?R)\" has a group"},
        {"golden/llama", "{rank_pattern: {'(?i)q_PROJ': 4}}",
         "method.rank_pattern: \"(?i)q_PROJ\" has a group"},
        {"golden/llama", "{rank_pattern: {'(*ACCEPT)x': 4}}", "method.rank_pattern: \"(*ACCEPT)x\" has"},
        {"golden/llama", "{rank_pattern: {'\\Qq\\E': 4}}",
         "method.rank_pattern: \"\\Qq\\E\" has a backslash"},
        {"golden/llama", "{rank_pattern: {'[[:alpha:]]': 4}}", "method.rank_pattern: \"[[:alpha:]]\" has"},
        {"golden/llama", "{exclude_modules: 'a{,3}'}", "method.exclude_modules: \"a{,3}\" has"},
        {"golden/llama", "{targets: '(?:(?:(?:a{999}){999}){999})'}", "method.targets: "},
        {"golden/mixtral", "{targets: all-linear}", "method.targets: all-linear takes a mixture's routers"},
        {"golden/mixtral", "{targets: [o_proj, w2], rank_pattern: {down_proj: 4}}",
         "method.rank_pattern: down_proj of experts"},
        {"golden/mixtral", "{targets: [o_proj, experts.0.w2]}", "method.targets: experts of a layer share"},
        {"golden/mixtral", "{targets: [q_proj, w2], layers_to_transform: [1]}",
         "method.targets: down_proj of experts has an adapter in every layer"},
        {"golden/mixtral", "{targets: [q_proj, w2, gate_proj, up_proj]}", NULL},
        {"golden/qwen3-moe", "{targets: '.*(q_proj|mlp\\.gate)'}",
         "method.targets: \".*(q_proj|mlp\\.gate)\" also matches model.layers.0.mlp.gate, which takes no "
         "adapter; name it in exclude_modules"},
        {"golden/qwen3-moe", "{targets: '.*(q_proj|mlp\\.gate)', exclude_modules: '.*gate'}", NULL},
        {"golden/llama", "{targets: '(?i).*Q_PROJ'}", NULL},
        {"golden/llama", "{targets: ALL-linear, rank_pattern: {'layers\\.0\\..*': 2}}", NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct err err = {0};
        int status = spec_sites(cases[i].config, cases[i].method, &err);
        if (status != (cases[i].says ? -1 : 0) ||
            (cases[i].says && strncmp(err.text, cases[i].says, strlen(cases[i].says)) != 0))
            fail_msg("%s: %d %s", cases[i].method, status, err.text);
    }
}

/* The model has many layers, so that each matching step counts often. */
static void a_hostile_pattern_ends_with_an_error_that_names_it(void **state)
{
    (void)state;
    /* PCRE2 rejects a name at once when it lacks a required character, so these patterns end with one of two
     * alternatives. */
    static const char *const hostile[] = {"(([a-z_.0-9]+)+)+[!?]", "(.*)*(.*)*(.*)*(.*)*[!?]",
                                          "(?:a|.|[a-z]|_)*[!?]", "(?=(.*.*.*.*.*.*[!?]))[xy]"};
    for (size_t i = 0; i < sizeof(hostile) / sizeof(*hostile); i++) {
        struct lora_patterns patterns = {
            .count = 1, .list = &(struct lora_pattern){.key = (char *)(uintptr_t)hostile[i], .value = 4}};
        struct lora_rules rules = {.all_linear = true, .ranks = patterns};
        struct lora_defaults defaults = {.rank = 8, .alpha = 8, .where = "method", .targets = "targets"};
        struct lora_sites sites;
        struct model_config model;
        struct err err = {0};
        must(model_config_load(DATA "golden/llama", &model, &err), &err);
        model.layers = 1000;
        uint64_t begin_ns = clock_mono_ns();
        assert_int_equal(-1, lora_sites_of(&rules, &defaults, &model, &sites, &err));
        assert_int_equal(ERR_TOO_BIG, err.code);
        assert_non_null(strstr(err.text, hostile[i]));
        assert_int_equal(0, sites.ways);
        if (clock_mono_ns() - begin_ns > 5000000000ull)
            fail_msg("\"%s\" took %.1f s", hostile[i], (double)(clock_mono_ns() - begin_ns) * 1e-9);
    }
}

/* EVA and AdaLoRA leave such patterns: a name and rank for each matrix. */
static void a_pattern_for_each_of_many_matrices_costs_little(void **state)
{
    (void)state;
    enum { LAYERS = 126, TARGETS = 7 };
    static struct lora_pattern list[LAYERS * TARGETS];
    static char keys[LAYERS * TARGETS][80];
    struct lora_rules rules = {.all_linear = true, .ranks = {.count = LAYERS * TARGETS, .list = list}};
    struct lora_defaults defaults = {
        .rank = 8, .alpha = 8, .where = "method", .targets = "targets", .strict = true};
    static struct lora_sites sites;
    struct model_config model;
    struct err err = {0};
    for (uint32_t i = 0; i < LAYERS * TARGETS; i++) {
        uint32_t layer = i / TARGETS, site = i % TARGETS;
        snprintf(keys[i], sizeof(keys[i]), "model.layers.%u.%s.%s", layer, site < 4 ? "self_attn" : "mlp",
                 lora_target_name(1u << site));
        list[i] = (struct lora_pattern){.key = keys[i], .value = 1 + (layer * TARGETS + site) % 5};
    }
    must(model_config_load(DATA "golden/llama", &model, &err), &err);
    model.layers = LAYERS;
    must(lora_sites_of(&rules, &defaults, &model, &sites, &err), &err);
    for (uint32_t i = 0; i < LAYERS * TARGETS; i++)
        assert_int_equal(1 + i % 5, lora_rank_at(&sites, i / TARGETS, i % TARGETS));
    assert_int_equal(5, sites.ways);
    for (uint32_t i = 0; i < LAYERS; i++)
        list[i * TARGETS].value = 1 + i;
    assert_int_equal(-1, lora_sites_of(&rules, &defaults, &model, &sites, &err));
    assert_non_null(strstr(err.text, "method.rank_pattern: layers differ in more than 64 ways"));
}

/* In Mixtral's modules the FFN's matrices are w1, w3 and w2, in LFM2's those of attention and of convolutions
 * have one name, too, and peft reads a job's adapter under the modules' names. */
static void targets_of_a_job_are_written_as_the_models_modules_are_called(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"mixtral", "[q_proj, gate_proj, up_proj, down_proj]", "[\"q_proj\",\"w1\",\"w3\",\"w2\"]"},
        {"mixtral", "'.*(q|gate|up)_proj'", "[\"q_proj\",\"w1\",\"w3\"]"},
        {"qwen3-moe", "[q_proj, gate_proj]", "[\"q_proj\",\"gate_proj\"]"},
        {"../folders/transformers5/lfm2", "[o_proj, in_proj, w2]",
         "[\"self_attn.out_proj\",\"feed_forward.w2\",\"conv.in_proj\"]"},
        {"../folders/transformers5/lfm2", "[out_proj, gate_proj]",
         "[\"self_attn.out_proj\",\"feed_forward.w1\",\"conv.out_proj\"]"},
        {"../folders/transformers5/glm4-moe-lite", "[q_b_proj, kv_b_proj, kv_a_proj_with_mqa]",
         "[\"q_b_proj\",\"kv_b_proj\",\"kv_a_proj_with_mqa\"]"},
        {"../folders/transformers5/deepseek-v2",
         "'.*(q|kv_b)_proj', exclude_modules: [layers.1.self_attn.q_proj]",
         "[\"layers.0.self_attn.q_proj\",\"kv_b_proj\"]"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char text[256];
        struct err err = {0};
        struct job_spec spec;
        struct model_config model;
        snprintf(text, sizeof(text), DATA "golden/%s", cases[i][0]);
        must(model_config_load(text, &model, &err), &err);
        snprintf(text, sizeof(text), "{model: m, data: {train: t}, method: {targets: %s}}", cases[i][1]);
        json_t *document = yaml_parse(text, strlen(text), &err);
        must(spec_parse(document, &spec, &err), &err);
        struct peft_config config = peft_config_of(&spec, &model);
        json_t *written = peft_config_to_json(&config, &model, NULL, &err);
        char *targets = json_dumps(json_object_get(written, "target_modules"), JSON_COMPACT);
        assert_non_null(targets);
        assert_string_equal(cases[i][2], targets);
        free(targets);
        json_decref(written);
        json_decref(document);
        spec_fini(&spec);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adapters_are_where_peft_puts_them),
        cmocka_unit_test(what_matches_nothing_or_is_no_pattern_is_named),
        cmocka_unit_test(a_hostile_pattern_ends_with_an_error_that_names_it),
        cmocka_unit_test(targets_of_a_job_are_written_as_the_models_modules_are_called),
        cmocka_unit_test(a_pattern_for_each_of_many_matrices_costs_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
