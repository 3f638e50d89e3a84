/* Adapters are read and written as peft does; features that Motley lacks are refused by their key. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/json.h"
#include "model/adapters/peft.h"
#include "support/must.h"
#include "support/scratch.h"

#define GOLDEN MOTLEY_TEST_DATA "/golden/"

static json_t *load(const char *path)
{
    json_error_t error;
    json_t *document = json_load_file(path, 0, &error);
    if (!document)
        fail_msg("%s: %s", path, error.text);
    return document;
}

enum { ITEMS = 32, VALUES_MAX = 16 * 64 }; /* 4 layers, 4 targets, A and B; the hidden width is 64 */

/* An adapter that peft wrote, with all its tensors. */
struct read {
    struct model_config model;
    struct peft *peft;
    struct safetensors_item items[ITEMS];
    char keys[ITEMS][128];
    float values[ITEMS][VALUES_MAX];
};

static void read_golden(struct read *r)
{
    struct err err;
    uint32_t n = 0;
    must(model_config_load(GOLDEN "llama", &r->model, &err), &err);
    must(peft_open(GOLDEN "llama/adapter_after_20", &r->model, &r->peft, &err), &err);
    for (uint32_t layer = 0; layer < 4; layer++)
        for (uint32_t bit = 1; bit <= LORA_O; bit <<= 1)
            for (int which = 'B'; which >= 'A'; which--, n++) {
                uint32_t rows, cols;
                lora_target_shape(&r->model, layer, bit, &rows, &cols);
                if (which == 'A')
                    rows = 16;
                else
                    cols = 16;
                assert_true(n < ITEMS && rows * cols <= VALUES_MAX);
                must(peft_read(r->peft, layer, bit, (char)which, r->values[n], rows * cols, &err), &err);
                peft_key(layer, bit, (char)which, r->keys[n]);
                r->items[n] = (struct safetensors_item){.name = r->keys[n],
                                                        .type = TENSOR_F32,
                                                        .rank = 2,
                                                        .shape = {rows, cols},
                                                        .data = r->values[n]};
            }
    assert_int_equal(n, ITEMS);
}

static void what_peft_wrote_is_read(void **state)
{
    (void)state;
    static struct read r;
    read_golden(&r);
    const struct peft_config *config = peft_get_config(r.peft);
    assert_int_equal(config->rank, 16);
    assert_true(config->alpha == 32 && config->dropout == 0);
    assert_int_equal(lora_sites_targets(peft_get_sites(r.peft)), LORA_Q | LORA_K | LORA_V | LORA_O);
    peft_close(r.peft);
}

/* transformers' Gemma3ForConditionalGeneration names its layers model.language_model.layers.N. */
static void adapters_of_a_language_model_inside_another_have_its_names(void **state)
{
    static const char key[] = "base_model.model.model.language_model.layers.3.self_attn.o_proj.lora_A.weight";
    static struct read r;
    static float values[VALUES_MAX];
    struct err err;
    struct peft *again;
    struct model_config nested;
    struct scratch scratch;
    char names[ITEMS][128];
    (void)state;
    must(model_config_load(MOTLEY_TEST_DATA "/folders/transformers4/gemma3-nested", &nested, &err), &err);
    assert_true(nested.nested);
    read_golden(&r);
    assert_false(r.model.nested);
    r.model.nested = true;
    for (uint32_t i = 0; i < ITEMS; i++) {
        assert_int_equal(0, peft_name(&r.model, r.keys[i] + strlen("base_model.model."), names[i], 128));
        r.items[i].name = names[i];
    }
    assert_string_equal(key, names[ITEMS - 1]);
    assert_int_equal(scratch_make(&scratch), 0);
    const char *dir = scratch_path(&scratch, "nested");
    must(peft_write(dir, peft_get_config(r.peft), "base", &r.model, r.items, ITEMS, &err), &err);
    must(peft_open(dir, &r.model, &again, &err), &err);
    assert_non_null(safetensors_find(peft_tensors(again), key));
    char config[600];
    snprintf(config, sizeof(config), "%s/adapter_config.json", dir);
    json_t *written = json_load_file(config, 0, NULL);
    const char *excluded = json_string_value(json_object_get(written, "exclude_modules"));
    assert_true(excluded && strstr(excluded, "vision_tower"));
    json_decref(written);
    uint64_t count = r.items[ITEMS - 1].shape[0] * r.items[ITEMS - 1].shape[1];
    must(peft_read(again, 3, LORA_O, 'A', values, count, &err), &err);
    assert_memory_equal(values, r.values[ITEMS - 1], count * sizeof(float));
    peft_close(again);
    peft_close(r.peft);
    scratch_remove(&scratch);
}

static void tensors_are_written_as_peft_does(const char *dir)
{
    struct err err;
    char path[600];
    struct safetensors *ours, *theirs;
    snprintf(path, sizeof(path), "%s/adapter_model.safetensors", dir);
    must(safetensors_open_path(path, &ours, &err), &err);
    must(safetensors_open_path(GOLDEN "llama/adapter_after_20/adapter_model.safetensors", &theirs, &err),
         &err);
    assert_int_equal(safetensors_count(ours), safetensors_count(theirs));
    for (uint32_t i = 0; i < safetensors_count(theirs); i++) {
        const struct safetensors_tensor *t = safetensors_at(theirs, i), *o = safetensors_find(ours, t->name);
        uint8_t x[16384], y[16384];
        assert_non_null(o);
        assert_int_equal(o->size, t->size);
        assert_true(t->size <= sizeof(x));
        assert_memory_equal(o->shape, t->shape, sizeof(t->shape[0]) * 2);
        must(safetensors_read(ours, o, 0, o->size, x, &err), &err);
        must(safetensors_read(theirs, t, 0, t->size, y, &err), &err);
        assert_memory_equal(x, y, t->size);
    }
    safetensors_close(ours);
    safetensors_close(theirs);
}

/* Compares the configs key by key, for the keys that Motley writes. */
static void the_config_says_what_pefts_says(const char *dir)
{
    char path[600];
    snprintf(path, sizeof(path), "%s/adapter_config.json", dir);
    json_t *mine = load(path), *golden = load(GOLDEN "llama/adapter_after_20/adapter_config.json"), *value;
    const char *key;
    json_object_foreach (mine, key, value) {
        json_t *other = json_object_get(golden, key);
        if (!other)
            fail_msg("peft writes no key %s", key);
        if (strcmp(key, "target_modules") && strcmp(key, "base_model_name_or_path") &&
            !json_equal(value, other))
            fail_msg("%s differs from peft's", key);
    }
    assert_int_equal(json_array_size(json_object_get(mine, "target_modules")), 4);
    json_decref(mine);
    json_decref(golden);
}

static void what_is_written_has_the_keys_shapes_and_bytes_of_pefts(void **state)
{
    (void)state;
    static struct read r;
    struct scratch scratch;
    struct peft *again;
    struct err err;
    read_golden(&r);
    const struct peft_config *config = peft_get_config(r.peft);
    assert_int_equal(scratch_make(&scratch), 0);
    const char *dir = scratch_path(&scratch, "adapter");
    must(peft_write(dir, config, "tiny", &r.model, r.items, ITEMS, &err), &err);
    /* the adapter is written again, over the old one */
    must(peft_write(dir, config, "tiny", &r.model, r.items, ITEMS, &err), &err);
    must(peft_open(dir, &r.model, &again, &err), &err);
    tensors_are_written_as_peft_does(dir);
    the_config_says_what_pefts_says(dir);
    peft_close(again);
    peft_close(r.peft);
    scratch_remove(&scratch);
}

static void an_adapter_that_is_not_whole_is_not_written_at_all(void **state)
{
    (void)state;
    static struct read r;
    struct scratch scratch;
    struct err err;
    read_golden(&r);
    const struct peft_config *config = peft_get_config(r.peft);
    assert_int_equal(scratch_make(&scratch), 0);
    const char *half = scratch_path(&scratch, "half");
    assert_int_equal(peft_write(half, config, NULL, &r.model, r.items, ITEMS - 1, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    assert_false(file_exists(half));
    r.items[3].shape[0] /= 2;
    r.items[3].shape[1] *= 2;
    assert_int_equal(peft_write(half, config, NULL, &r.model, r.items, ITEMS, &err), -1);
    assert_false(file_exists(half));
    peft_close(r.peft);
    scratch_remove(&scratch);
}

static void what_is_not_computed_is_refused_by_its_key(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value;
    } cases[] = {
        {"use_dora", "true"},
        {"bias", "\"all\""},
        {"bias", "\"lora_only\""},
        {"modules_to_save", "[\"score\"]"},
        {"layer_replication", "[[0, 2]]"},
        {"fan_in_fan_out", "true"},
        {"trainable_token_indices", "[1]"},
        {"lora_bias", "true"},
        {"use_qalora", "true"},
        {"init_lora_weights", "\"pissa\""},
        {"something_of_tomorrow", "3"},
        {"peft_type", "\"IA3\""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *document = load(GOLDEN "llama/adapter_init/adapter_config.json");
        struct peft_config config;
        struct err err = {0};
        must(peft_config_parse(document, &config, &err), &err);
        peft_config_fini(&config);
        json_object_set_new(document, cases[i].key, json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        if (peft_config_parse(document, &config, &err) == 0)
            fail_msg("accepted: %s %s", cases[i].key, cases[i].value);
        if (err.code != ERR_UNSUPPORTED || !strstr(err.text, cases[i].key))
            fail_msg("%s: %s (%s)", cases[i].key, err.text, err_code_name(err.code));
        json_decref(document);
    }
}

static void what_targets_have_of_their_own_is_kept(void **state)
{
    (void)state;
    struct err err;
    json_t *document = load(GOLDEN "llama/adapter_init/adapter_config.json");
    struct peft_config config;
    struct model_config model;
    struct lora_sites sites;
    must(model_config_load(GOLDEN "llama", &model, &err), &err);
    json_object_set_new(document, "rank_pattern", json_pack("{s:i}", "q_proj", 4));
    json_object_set_new(document, "alpha_pattern", json_pack("{s:f}", "v_proj", 2.5));
    json_object_set_new(document, "modules_to_save", json_pack("[s]", "lm_head"));
    must(peft_config_parse(document, &config, &err), &err);
    must(peft_sites(&config, &model, &sites, &err), &err);
    assert_true(lora_scale_at(&sites, 1, 0) == 8 && lora_scale_at(&sites, 3, 2) == 2.5 / 16);
    peft_config_fini(&config);
    json_object_set_new(document, "use_rslora", json_true());
    must(peft_config_parse(document, &config, &err), &err);
    must(peft_sites(&config, &model, &sites, &err), &err);
    assert_true(lora_rank_at(&sites, 0, 0) == 4 && lora_rank_at(&sites, 0, 1) == 16);
    assert_true(lora_scale_at(&sites, 0, 0) == 16 && lora_scale_at(&sites, 0, 1) == 8);
    assert_true(config.saves_head && !config.saves_embedding);
    peft_config_fini(&config);
    json_decref(document);
}

static void an_adapter_of_another_model_is_refused(void **state)
{
    (void)state;
    struct model_config model;
    struct peft *peft;
    struct err err;
    must(model_config_load(GOLDEN "llama", &model, &err), &err);
    model.layers = 3;
    assert_int_equal(peft_open(GOLDEN "llama/adapter_init", &model, &peft, &err), -1);
    assert_non_null(strstr(err.text, "layers.3"));
    model.layers = 5;
    assert_int_equal(peft_open(GOLDEN "llama/adapter_init", &model, &peft, &err), -1);
    assert_non_null(strstr(err.text, "layers.4"));
    model.layers = 4;
    model.hidden = 128;
    assert_int_equal(peft_open(GOLDEN "llama/adapter_init", &model, &peft, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    assert_int_equal(peft_open(GOLDEN "nowhere", &model, &peft, &err), -1);
    assert_int_equal(err.code, ERR_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_peft_wrote_is_read),
        cmocka_unit_test(what_is_written_has_the_keys_shapes_and_bytes_of_pefts),
        cmocka_unit_test(adapters_of_a_language_model_inside_another_have_its_names),
        cmocka_unit_test(an_adapter_that_is_not_whole_is_not_written_at_all),
        cmocka_unit_test(what_is_not_computed_is_refused_by_its_key),
        cmocka_unit_test(what_targets_have_of_their_own_is_kept),
        cmocka_unit_test(an_adapter_of_another_model_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
