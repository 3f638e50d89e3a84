/* Published adapters, key by key, are loaded as peft 0.21.2 was observed to load them, or refused. */
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

enum { ITEMS_MAX = 48, VALUES_MAX = 256 * 64 };

/* An adapter of the golden model that can be changed before it is opened. */
struct files {
    struct model_config model;
    json_t *config;
    struct peft *golden;
    struct safetensors_item items[ITEMS_MAX];
    char names[ITEMS_MAX][200];
    float *values[ITEMS_MAX];
    uint32_t count;
    struct buf bytes;
    char text[8192];
};

static struct files files_init(void)
{
    static char path[] = GOLDEN "llama/adapter_after_20/adapter_config.json";
    struct files f = {.count = 0};
    struct err err;
    must(model_config_load(GOLDEN "llama", &f.model, &err), &err);
    must(peft_open(GOLDEN "llama/adapter_after_20", &f.model, &f.golden, &err), &err);
    f.config = json_load_file(path, 0, NULL);
    assert_non_null(f.config);
    return f;
}

static void add(struct files *f, const char *name, uint32_t rows, uint32_t columns, float *values)
{
    assert_true(f->count < ITEMS_MAX);
    snprintf(f->names[f->count], sizeof(f->names[0]), "%s", name);
    f->values[f->count] = values;
    f->items[f->count] = (struct safetensors_item){.type = TENSOR_F32, .rank = 2, .shape = {rows, columns}};
    f->count++;
}

static void add_adapter(struct files *f)
{
    struct safetensors *weights = peft_tensors(f->golden);
    struct err err;
    for (uint32_t i = 0; i < safetensors_count(weights); i++) {
        const struct safetensors_tensor *t = safetensors_at(weights, i);
        float *values = malloc(t->shape[0] * t->shape[1] * sizeof(*values));
        must(safetensors_read_f32(weights, t, values, t->shape[0] * t->shape[1], &err), &err);
        add(f, t->name, (uint32_t)t->shape[0], (uint32_t)t->shape[1], values);
    }
}

static void add_table(struct files *f, const char *name, float value)
{
    size_t count = (size_t)f->model.vocab * f->model.hidden;
    float *values = malloc(count * sizeof(*values));
    for (size_t i = 0; i < count; i++)
        values[i] = value + (float)i;
    add(f, name, f->model.vocab, f->model.hidden, values);
}

/* Renames "….lora_A.weight" to "….lora_A.NAME.weight". */
static void call(struct files *f, uint32_t item, const char *name)
{
    char *end = strstr(f->names[item], ".weight"), tail[64];
    snprintf(tail, sizeof(tail), ".%s.weight", name);
    snprintf(end, 64, "%s", tail);
}

static int open_it(struct files *f, struct peft **peft, struct err *err)
{
    char *text = json_dumps(f->config, 0);
    snprintf(f->text, sizeof(f->text), "%s", text);
    free(text);
    for (uint32_t i = 0; i < f->count; i++) {
        f->items[i].name = f->names[i];
        f->items[i].data = f->values[i];
    }
    buf_init(&f->bytes, 64 << 20);
    must(safetensors_encode(f->items, f->count, NULL, 0, &f->bytes, err), err);
    return peft_open_memory(f->text, strlen(f->text), f->bytes.data, f->bytes.size, &f->model, peft, err);
}

static void files_fini(struct files *f)
{
    for (uint32_t i = 0; i < f->count; i++)
        free(f->values[i]);
    buf_fini(&f->bytes);
    peft_close(f->golden);
    json_decref(f->config);
}

static void keys_with_the_adapters_name_are_read(void **state)
{
    (void)state;
    struct files f = files_init();
    struct peft *peft;
    struct err err = {0};
    float theirs[16 * 64], ours[16 * 64];
    add_adapter(&f);
    for (uint32_t i = 0; i < f.count; i += 3)
        call(&f, i, "default");
    must(open_it(&f, &peft, &err), &err);
    for (uint32_t layer = 0; layer < 4; layer++) {
        must(peft_read(f.golden, layer, LORA_Q, 'A', theirs, 16 * 64, &err), &err);
        must(peft_read(peft, layer, LORA_Q, 'A', ours, 16 * 64, &err), &err);
        assert_memory_equal(theirs, ours, sizeof(ours));
    }
    peft_close(peft);
    files_fini(&f);
}

/* Expects a refusal with both words in its text, or success when 'word' is NULL. */
static void expect(struct files *f, const char *word, const char *other)
{
    struct peft *peft = NULL;
    struct err err = {0};
    int status = open_it(f, &peft, &err);
    if ((status == 0) != (!word) || (word && (!strstr(err.text, word) || !strstr(err.text, other))))
        fail_msg("%s, %s: %s", word ? word : "opened", other ? other : "", err.text);
    peft_close(peft);
    files_fini(f);
}

static void keys_that_peft_passes_over_are_refused_by_name(void **state)
{
    (void)state;
    struct files f = files_init();
    add_adapter(&f);
    call(&f, 0, "mine");
    expect(&f, "lora_A.mine.weight", "another name than default");

    f = files_init();
    add_adapter(&f);
    for (uint32_t i = 0; i < f.count; i++)
        memmove(f.names[i], f.names[i] + strlen("base_model.model."),
                strlen(f.names[i] + strlen("base_model.model.")) + 1);
    expect(&f, "\"model.layers.", "begin with base_model.model.");

    f = files_init();
    add_adapter(&f);
    float *copy = malloc(f.items[0].shape[0] * f.items[0].shape[1] * sizeof(*copy));
    memcpy(copy, f.values[0], f.items[0].shape[0] * f.items[0].shape[1] * sizeof(*copy));
    add(&f, f.names[0], (uint32_t)f.items[0].shape[0], (uint32_t)f.items[0].shape[1], copy);
    call(&f, f.count - 1, "default");
    expect(&f, "is there twice", "default.weight");

    f = files_init();
    add_adapter(&f);
    json_object_set_new(f.config, "modules_to_save", json_pack("[s]", "lm_head"));
    add_table(&f, "base_model.model.lm_head.modules_to_save.default.weight", 0);
    expect(&f, "modules_to_save.default.weight", "name it so");

    f = files_init();
    add_adapter(&f);
    f.items[0].shape[0] /= 2;
    expect(&f, "is not", "another base model");
}

static void tables_beside_are_known_and_compared_with_the_base(void **state)
{
    (void)state;
    struct files f = files_init();
    struct peft *peft;
    struct model *base;
    struct err err = {0};
    must(model_open_path(GOLDEN "llama", &base, &err), &err);
    add_adapter(&f);
    add_table(&f, PEFT_EMBEDDING, 0);
    const struct model_tensor *own = model_tensor_find(base, "model.embed_tokens.weight");
    must(model_tensor_read_f32(base, own, 0, own->rows, f.values[f.count - 1], &err), &err);
    must(open_it(&f, &peft, &err), &err);
    must(peft_check_base(peft, base, &err), &err);
    peft_close(peft);
    buf_fini(&f.bytes);
    f.values[f.count - 1][own->rows * own->cols - 1] += 1;
    must(open_it(&f, &peft, &err), &err);
    assert_int_equal(peft_check_base(peft, base, &err), -1);
    assert_non_null(strstr(err.text, "embed_tokens.weight"));
    peft_close(peft);
    model_close(base);
    files_fini(&f);

    f = files_init();
    add_adapter(&f);
    json_object_set_new(f.config, "modules_to_save", json_pack("[s]", "lm_head"));
    add_table(&f, PEFT_HEAD, 0);
    add_table(&f, "base_model.model.lm_head.original_module.weight", 1);
    expect(&f, NULL, NULL);
}

/* As peft saves an adapter on both tables: with the base's own beside it. */
static void adapters_on_tables_are_read_as_peft_writes_them(void **state)
{
    (void)state;
    static const char *const names[] = {"lm_head.lora_A.weight", "lm_head.lora_B.weight",
                                        "model.embed_tokens.lora_embedding_A",
                                        "model.embed_tokens.lora_embedding_B"};
    for (uint32_t lacks = 0; lacks <= 4; lacks++) {
        struct files f = files_init();
        struct peft *peft;
        struct model *base;
        struct err err = {0};
        uint32_t vocab = f.model.vocab, hidden = f.model.hidden,
                 shapes[][2] = {{16, hidden}, {vocab, 16}, {16, vocab}, {hidden, 16}};
        char key[96];
        add_adapter(&f);
        json_array_append_new(json_object_get(f.config, "target_modules"), json_string("lm_head"));
        json_array_append_new(json_object_get(f.config, "target_modules"), json_string("embed_tokens"));
        for (uint32_t i = 0; i < 4; i++) {
            snprintf(key, sizeof(key), "base_model.model.%s", names[i]);
            if (i != lacks)
                add(&f, key, shapes[i][0], shapes[i][1],
                    calloc((size_t)shapes[i][0] * shapes[i][1], sizeof(float)));
        }
        if (lacks < 4) {
            expect(&f, "is missing", names[lacks]);
            continue;
        }
        must(model_open_path(GOLDEN "llama", &base, &err), &err);
        add_table(&f, "base_model.model.lm_head.base_layer.weight", 0);
        const struct model_tensor *own = model_tensor_find(base, "lm_head.weight");
        must(model_tensor_read_f32(base, own, 0, own->rows, f.values[f.count - 1], &err), &err);
        must(open_it(&f, &peft, &err), &err);
        assert_int_equal(lora_rank_at(peft_get_sites(peft), 0, (uint32_t)__builtin_ctz(LORA_EMBEDDING)), 16);
        must(peft_check_base(peft, base, &err), &err);
        peft_close(peft);
        buf_fini(&f.bytes);
        f.values[f.count - 1][0] += 1;
        must(open_it(&f, &peft, &err), &err);
        assert_int_equal(peft_check_base(peft, base, &err), -1);
        peft_close(peft);
        model_close(base);
        files_fini(&f);
    }
}

/* The cases of a tied model differ in modules_to_save, in ensure_weight_tying, and in whether both tables are
 * the same. */
static void a_tied_models_tables_are_one(void **state)
{
    (void)state;
    static const struct {
        const char *saved[2];
        bool ensure, embedding, head, same, good;
    } cases[] = {
        {{"embed_tokens", "lm_head"}, false, true, true, true, true},
        {{"embed_tokens", "lm_head"}, false, true, true, false, false},
        /* peft 0.21 writes this form */
        {{"embed_tokens", "model.embed_tokens"}, true, true, true, true, true},
        {{"model.embed_tokens", NULL}, true, true, true, false, false},
        {{"embed_tokens", NULL}, true, true, false, false, true},
        {{"embed_tokens", NULL}, false, true, false, false, false}, /* the head stays untrained */
        {{"lm_head", NULL}, false, false, true, false, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct files f = files_init();
        f.model.tied = true;
        json_t *saved = json_array();
        for (int k = 0; k < 2 && cases[i].saved[k]; k++)
            json_array_append_new(saved, json_string(cases[i].saved[k]));
        json_object_set_new(f.config, "modules_to_save", saved);
        json_object_set_new(f.config, "ensure_weight_tying", json_boolean(cases[i].ensure));
        add_adapter(&f);
        if (cases[i].embedding)
            add_table(&f, PEFT_EMBEDDING, 1);
        if (cases[i].head)
            add_table(&f, PEFT_HEAD, cases[i].same ? 1 : 2);
        expect(&f, cases[i].good ? NULL : "modules_to_save", "ensure_weight_tying");
    }
}

static void a_tied_table_is_written_under_both_names(void **state)
{
    (void)state;
    struct files f = files_init();
    struct scratch scratch;
    struct peft *peft, *again;
    struct err err = {0};
    f.model.tied = true;
    json_object_set_new(f.config, "modules_to_save", json_pack("[s]", "embed_tokens"));
    json_object_set_new(f.config, "ensure_weight_tying", json_true());
    add_adapter(&f);
    add_table(&f, PEFT_EMBEDDING, 1);
    must(open_it(&f, &peft, &err), &err);
    scratch_make(&scratch);
    char dir[300], path[400];
    snprintf(dir, sizeof(dir), "%s/a", scratch.dir);
    must(peft_write(dir, peft_get_config(peft), "tiny", &f.model, f.items, f.count, &err), &err);
    must(peft_open(dir, &f.model, &again, &err), &err);
    const struct safetensors_tensor *head = safetensors_find(peft_tensors(again), PEFT_HEAD);
    assert_non_null(head);
    assert_true(head->shape[0] == f.model.vocab && head->shape[1] == f.model.hidden);
    assert_true(peft_get_config(again)->tied && !peft_get_config(again)->saves_head);
    snprintf(path, sizeof(path), "%s/adapter_config.json", dir);
    json_t *document = json_load_file(path, 0, NULL), *want = json_pack("[s,s]", "embed_tokens", "lm_head");
    assert_true(json_equal(json_object_get(document, "modules_to_save"), want));
    assert_null(json_object_get(document, "ensure_weight_tying"));
    json_decref(want);
    json_decref(document);
    peft_close(again);
    peft_close(peft);
    files_fini(&f);
    scratch_remove(&scratch);
}

/* The keys of LoraConfig in peft 0.13, which accepts no others. */
static bool peft_knew_two_years_ago(const char *key)
{
    static const char *const known[] = {"alpha_pattern",
                                        "auto_mapping",
                                        "base_model_name_or_path",
                                        "bias",
                                        "fan_in_fan_out",
                                        "inference_mode",
                                        "init_lora_weights",
                                        "layer_replication",
                                        "layers_pattern",
                                        "layers_to_transform",
                                        "loftq_config",
                                        "lora_alpha",
                                        "lora_dropout",
                                        "megatron_config",
                                        "megatron_core",
                                        "modules_to_save",
                                        "peft_type",
                                        "r",
                                        "rank_pattern",
                                        "revision",
                                        "target_modules",
                                        "task_type",
                                        "use_dora",
                                        "use_rslora"};
    size_t i = 0;
    while (i < sizeof(known) / sizeof(known[0]) && strcmp(known[i], key) != 0)
        i++;
    return i < sizeof(known) / sizeof(known[0]);
}

static void what_is_written_has_keys_that_peft_knew_two_years_ago(void **state)
{
    (void)state;
    static const struct {
        const char *given, *written; /* JSON of keys in adapter_config.json */
    } cases[] = {
        {"{\"target_modules\": [\"q_proj\", \"v_proj\"], \"exclude_modules\": [\"v_proj\"]}",
         "{\"target_modules\": [\"q_proj\"]}"},
        {"{\"target_modules\": \"all-linear\", \"exclude_modules\": \".*\\\\.(k|v|o|gate|up|down)_proj\"}",
         "{\"target_modules\": [\"q_proj\"]}"},
        {"{\"target_modules\": [\"q_proj\"], \"exclude_modules\": [\"layers.0.self_attn.q_proj\"]}",
         "{\"target_modules\": [\"layers.1.self_attn.q_proj\", \"layers.2.self_attn.q_proj\", "
         "\"layers.3.self_attn.q_proj\"]}"},
        {"{\"target_modules\": [\"q_proj\"], \"layers_to_transform\": [0, 1], \"exclude_modules\": "
         "[\"layers.0.self_attn.q_proj\"]}",
         "{\"target_modules\": [\"layers.1.self_attn.q_proj\"], \"layers_to_transform\": null}"},
        {"{\"target_modules\": [\"q_proj\", \"v_proj\"], \"rank_pattern\": {\"v_proj\": 4}}",
         "{\"target_modules\": [\"q_proj\", \"v_proj\"], \"rank_pattern\": {\"v_proj\": 4}}"},
        {"{\"target_modules\": [\"q_proj\", \"v_proj\"], \"rank_pattern\": {\"^model.*v_proj\": 4}, "
         "\"alpha_pattern\": {\"model.layers.2.self_attn.v_proj\": 3}}",
         "{\"rank_pattern\": {\"layers.0.self_attn.v_proj\": 4, \"layers.1.self_attn.v_proj\": 4, "
         "\"layers.2.self_attn.v_proj\": 4, \"layers.3.self_attn.v_proj\": 4}, "
         "\"alpha_pattern\": {\"layers.2.self_attn.v_proj\": 3.0}}"},
        {"{\"target_modules\": [\"q_proj\"], \"use_rslora\": true, \"alpha_pattern\": {\"q_proj\": 7.3}}",
         "{\"alpha_pattern\": {\"q_proj\": 7.3}, \"use_rslora\": true}"},
    };
    struct model_config model;
    struct err err = {0};
    must(model_config_load(GOLDEN "llama", &model, &err), &err);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct peft_config config;
        json_t *given = json_loads(cases[i].given, 0, NULL), *want = json_loads(cases[i].written, 0, NULL),
               *value;
        const char *key;
        json_object_set_new(given, "peft_type", json_string("LORA"));
        must(peft_config_parse(given, &config, &err), &err);
        json_t *written = peft_config_to_json(&config, &model, NULL, &err);
        if (!written)
            fail_msg("%s", err.text);
        json_object_foreach (written, key, value)
            if (!peft_knew_two_years_ago(key))
                fail_msg("%s is newer", key);
        json_object_foreach (want, key, value)
            if (!json_equal(json_object_get(written, key), value))
                fail_msg("%s: %s became %s", cases[i].given, key,
                         json_dumps(json_object_get(written, key), JSON_ENCODE_ANY));
        json_decref(given);
        json_decref(want);
        json_decref(written);
        peft_config_fini(&config);
    }
}

/* Values of keys that peft 0.21.2 loads to the same model (good), or refuses, or loads to another model. */
static void values_mean_what_they_mean_to_peft(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value; /* NULL: the key is absent */
        bool good;
    } cases[] = {
        {"alora_invocation_tokens", "null", true},
        {"alora_invocation_tokens", "[]", false},
        {"alpha_pattern", "null", false},
        {"alpha_pattern", "{}", true},
        {"alpha_pattern", NULL, true},
        {"arrow_config", "{}", false},
        {"auto_mapping", "3", true},
        {"bias", "null", false},
        {"bias", NULL, true},
        {"corda_config", "false", false},
        {"eva_config", "null", true},
        {"exclude_modules", "[]", true},
        {"fan_in_fan_out", "false", true},
        {"init_lora_weights", "\"true\"", false},
        {"init_lora_weights", "\"gaussian\"", true},
        {"init_lora_weights", "\"orthogonal\"", true},
        {"init_lora_weights", "null", true},
        {"init_lora_weights", "1", false},
        {"kasa_config", "{}", false},
        {"kasa_config", "null", true},
        {"layer_replication", "[]", true},
        {"loftq_config", "null", true},
        {"loftq_config", "{}", true},
        {"lora_alpha", "null", false},
        {"lora_dropout", "null", false},
        {"lora_dropout", NULL, true},
        {"megatron_config", "null", true},
        {"modules_to_save", "[]", true},
        {"modules_to_save", "\"lm_head\"", false},
        {"modules_to_save", "{\"a\": 1}", false},
        {"r", "null", false},
        {"r", "8.0", false},
        {"rank_pattern", "null", false},
        {"task_type", "null", true},
        {"task_type", "\"x\"", false},
        {"target_parameters", "[]", true},
        {"target_modules", "null", false},
        {"trainable_token_indices", "[]", false},
        {"use_bdlora", "{}", false},
        {"use_bdlora", "false", false},
        {"use_dora", "\"none\"", false},
        {"use_dora", "null", true},
        {"use_rslora", "null", true},
        {"velora_config", "null", true},
        {"of_tomorrow", "{}", true},
        {"of_tomorrow", "0", false},
        {"runtime_config", "{\"a\": 1}", true},
        {"layers_to_transform", "[]", true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct files f = files_init();
        if (cases[i].value)
            json_object_set_new(f.config, cases[i].key, json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        else
            json_object_del(f.config, cases[i].key);
        add_adapter(&f);
        expect(&f, cases[i].good ? NULL : cases[i].key, "");
    }
    struct files f = files_init();
    json_object_set_new(f.config, "target_modules", json_string(".*_proj"));
    json_object_set_new(f.config, "layers_to_transform", json_array());
    add_adapter(&f);
    expect(&f, "layers_to_transform", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_with_the_adapters_name_are_read),
        cmocka_unit_test(keys_that_peft_passes_over_are_refused_by_name),
        cmocka_unit_test(tables_beside_are_known_and_compared_with_the_base),
        cmocka_unit_test(adapters_on_tables_are_read_as_peft_writes_them),
        cmocka_unit_test(a_tied_models_tables_are_one),
        cmocka_unit_test(a_tied_table_is_written_under_both_names),
        cmocka_unit_test(what_is_written_has_keys_that_peft_knew_two_years_ago),
        cmocka_unit_test(values_mean_what_they_mean_to_peft),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
