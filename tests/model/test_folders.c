/* Folders as transformers 4 and 5 save them, and GGUF files with llama.cpp's names, of every family have the
 * config and tensors that transformers itself gives the model. tools/make_folders.py made them;
 * test_folders.py makes them again where transformers is installed (MOTLEY_FOLDERS). */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/shape/blocks.h"
#include "model/shape/tensors.h"

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!value)
        fail_msg("expected.json has no %s", key);
    return json_is_boolean(value) ? json_is_true(value) : json_number_value(value);
}

static void close_to(const char *where, const char *what, double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance * (1 + fabs(want))))
        fail_msg("%s: %s is %.9g, transformers says %.9g", where, what, got, want);
}

/* Compares a tensor with `want`: its rows, its columns, the sum of its values and the sum weighted by index.
 */
static void check_tensor(const char *where, struct model *model, const char *name, const json_t *want)
{
    const struct model_tensor *t = model_tensor_find(model, name);
    struct err err;
    if (!t)
        fail_msg("%s: no tensor %s", where, name);
    assert_int_equal(t->rows, json_integer_value(json_array_get(want, 0)));
    assert_int_equal(t->cols, json_integer_value(json_array_get(want, 1)));
    float *values = malloc(t->rows * t->cols * sizeof(float));
    if (model_tensor_read_f32(model, t, 0, t->rows, values, &err) < 0)
        fail_msg("%s: %s", where, err.text);
    double sum = 0, weighed = 0;
    for (uint64_t i = 0; i < t->rows * t->cols; i++) {
        sum += (double)values[i];
        weighed += (double)values[i] * (double)(i % 13 + 1);
    }
    free(values);
    close_to(where, name, sum, json_number_value(json_array_get(want, 2)), 1e-6);
    close_to(where, name, weighed, json_number_value(json_array_get(want, 3)), 1e-6);
}

static void check_layer(const char *where, const struct model_config *c, uint32_t layer, const json_t *want)
{
    const json_t *frequencies = json_object_get(want, "inv_freq");
    uint32_t dim = model_layer_rotary(c, layer);
    double got[512];
    struct err err;
    assert_int_equal(model_layer_window(c, layer), number(want, "window"));
    assert_int_equal(model_layer_rotates(c, layer), number(want, "rotates"));
    assert_int_equal(json_array_size(frequencies), dim / 2);
    assert_int_equal(model_rope_frequencies_of(model_layer_rope(c, layer), dim, 0, got, &err), 0);
    for (uint32_t i = 0; i < dim / 2; i++) {
        double frequency = json_number_value(json_array_get(frequencies, i));
        close_to(where, "a rotary frequency", frequency == 0 ? got[i] + 1 : got[i] / frequency, 1, 2e-6);
    }
    close_to(where, "the scores' scale", c->attn_scale > 0 ? c->attn_scale : 1 / sqrt((double)c->head_dim),
             number(want, "scale"), 1e-9);
}

static void check_folder(const char *folder)
{
    char path[1100];
    struct model *model;
    struct err err;
    json_error_t why;
    const char *name;
    json_t *value;
    snprintf(path, sizeof(path), "%s/expected.json", folder);
    json_t *want = json_load_file(path, 0, &why);
    if (!want)
        fail_msg("%s: %s", path, why.text);
    if (model_open_path(folder, &model, &err) < 0)
        fail_msg("%s", err.text);
    const struct model_config *c = model_get_config(model);
    struct block_list list;
    json_t *layers = json_object_get(want, "layers"), *tensors = json_object_get(want, "tensors");
    assert_int_equal(model_config_params(c), number(want, "parameters"));
    assert_int_equal(model_blocks(c, &(struct block_options){0}, &list, &err), 0);
    assert_int_equal(list.params, number(want, "parameters"));
    block_list_fini(&list);
    assert_int_equal(json_array_size(layers), c->layers);
    for (uint32_t i = 0; i < c->layers; i++)
        check_layer(folder, c, i, json_array_get(layers, i));
    close_to(folder, "the norms' epsilon", c->norm_eps, number(want, "norm_eps"), 1e-12);
    close_to(folder, "the scores' cap", c->attn_softcap, number(want, "attention_cap"), 0);
    close_to(folder, "the logits' cap", c->logit_softcap, number(want, "logit_cap"), 0);
    assert_int_equal(c->tied, number(want, "tied"));
    assert_int_equal(c->max_positions, number(want, "max_positions"));
    json_object_foreach (tensors, name, value)
        check_tensor(folder, model, name, value);

    json_t *written = model_config_to_json(c, &err);
    struct model_config again;
    if (model_config_parse(written, &again, &err) < 0)
        fail_msg("%s: written and read again: %s", folder, err.text);
    if (memcmp(c, &again, sizeof(again)) != 0)
        fail_msg("%s: the config is another one when written and read again", folder);
    json_decref(written);
    json_decref(want);
    model_close(model);
}

/* Rounds numbers to the 32 bits that a GGUF has for them. */
static void narrow(json_t *object)
{
    const char *key;
    json_t *value;
    json_object_foreach (object, key, value)
        if (json_is_object(value))
            narrow(value);
        else if (json_is_real(value))
            json_real_set(value, (double)(float)json_real_value(value));
}

/* The config as JSON, without what a GGUF does not say of a model. */
static json_t *config_json(const struct model *model)
{
    static const char *const unsaid[] = {"bos_token_id", "eos_token_id", "pad_token_id", "torch_dtype",
                                         "router_aux_loss_coef"};
    struct err err;
    json_t *config = model_config_to_json(model_get_config(model), &err);
    for (size_t i = 0; i < sizeof(unsaid) / sizeof(unsaid[0]); i++)
        json_object_del(config, unsaid[i]);
    narrow(config);
    return config;
}

/* A GGUF whose folder lies beside it gives the same config and, to the bit, the same tensors. Files of
 * quantised blocks have values of their own, which expected.json has. */
static void check_gguf(const char *gguf)
{
    char folder[1024];
    struct model *models[2];
    struct err err;
    int length = (int)strlen(gguf) - (int)strlen("-gguf");
    if (length < 0 || strcmp(gguf + length, "-gguf") != 0 || strstr(gguf, "gpt-oss") || strstr(gguf, "-q8-"))
        return;
    snprintf(folder, sizeof(folder), "%.*s", length, gguf);
    if (model_open_path(gguf, &models[0], &err) < 0 || model_open_path(folder, &models[1], &err) < 0)
        fail_msg("%s", err.text);
    json_t *one = config_json(models[0]), *other = config_json(models[1]);
    if (!json_equal(one, other))
        fail_msg("%s: %s\nbut the folder has\n%s", gguf, json_dumps(one, JSON_SORT_KEYS),
                 json_dumps(other, JSON_SORT_KEYS));
    for (uint32_t i = 0; i < model_tensor_count(models[1]); i++) {
        const struct model_tensor *b = model_tensor_at(models[1], i),
                                  *a = model_tensor_find(models[0], b->name);
        if (b->unused)
            continue;
        if (!a || a->rank != b->rank || a->rows != b->rows || a->cols != b->cols)
            fail_msg("%s: %s is not there, or of another shape", gguf, b->name);
        size_t bytes = b->rows * b->cols * sizeof(float);
        float *values[2] = {malloc(bytes), malloc(bytes)};
        assert_int_equal(model_tensor_read_f32(models[0], a, 0, a->rows, values[0], &err), 0);
        assert_int_equal(model_tensor_read_f32(models[1], b, 0, b->rows, values[1], &err), 0);
        if (memcmp(values[0], values[1], bytes) != 0)
            fail_msg("%s: %s has other values", gguf, b->name);
        free(values[0]);
        free(values[1]);
    }
    json_decref(one);
    json_decref(other);
    model_close(models[0]);
    model_close(models[1]);
}

static void every_folder_is_what_transformers_says(void **state)
{
    const char *root = getenv("MOTLEY_FOLDERS") ? getenv("MOTLEY_FOLDERS") : MOTLEY_TEST_DATA "/folders";
    const char *versions[] = {"transformers5", "transformers4", "transformers4.31"};
    int count = 0;
    (void)state;
    for (int v = 0; v < 3; v++) {
        char path[1024];
        snprintf(path, sizeof(path), "%s/%s", root, versions[v]);
        DIR *dir = opendir(path);
        for (struct dirent *e; dir && (e = readdir(dir));) {
            if (e->d_name[0] == '.')
                continue;
            snprintf(path, sizeof(path), "%s/%s/%s", root, versions[v], e->d_name);
            check_folder(path);
            check_gguf(path);
            count++;
        }
        if (dir)
            closedir(dir);
    }
    print_message("    %d folders under %s\n", count, root);
    assert_true(count > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_folder_is_what_transformers_says)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
