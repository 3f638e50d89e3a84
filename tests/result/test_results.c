/* Writes results and reads them back value by value: merged models, trained models, and adapters for
 * llama.cpp. With arguments the program only writes a result, for test_loads.py: `KIND MODEL ADAPTER OUT
 * [DTYPE [SHARD_BYTES]]`. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "common/file.h"
#include "common/half.h"
#include "result/files_state.h"
#include "result/gguf_adapter.h"
#include "result/model_folder.h"
#include "support/formula_model.h"
#include "support/must.h"
#include "support/scratch.h"

#define GOLDEN MOTLEY_TEST_DATA "/golden/"
enum { VALUES_MAX = 1 << 16 };

struct scene {
    struct model *base;
    struct peft *peft;
    struct safetensors *files[1];
    struct result_files parts;
    struct result_state state;
};

static void scene_open(struct scene *s, const char *model, const char *adapter)
{
    struct err err;
    memset(s, 0, sizeof(*s));
    must(model_open_path(model, &s->base, &err), &err);
    must(peft_open(adapter, model_get_config(s->base), &s->peft, &err), &err);
    s->files[0] = peft_tensors(s->peft);
    s->parts = (struct result_files){
        .files = s->files, .count = 1, .prefix = "base_model.model.", .sites = peft_get_sites(s->peft)};
    s->state = result_state_of_files(&s->parts);
}

static void scene_close(struct scene *s)
{
    peft_close(s->peft);
    model_close(s->base);
}

static const float *values_of(struct model *model, const char *name, uint64_t *count)
{
    static float values[2][VALUES_MAX];
    static unsigned next;
    struct err err;
    const struct model_tensor *t = model_tensor_find(model, name);
    assert_non_null(t);
    *count = t->rows * t->cols;
    assert_true(*count <= VALUES_MAX);
    float *dst = values[next++ % 2];
    must(model_tensor_read_f32(model, t, 0, t->rows, dst, &err), &err);
    return dst;
}

/* Adds scale · B · A to the values of matrix `name` in double, if the adapter changes that matrix. */
static void add_adapter(const struct scene *s, const char *name, double *values, uint64_t count)
{
    static float a[VALUES_MAX], b[VALUES_MAX];
    char key[160];
    uint64_t rank, columns, rows, ignored, begin = 0;
    struct err err;
    int stem = (int)strlen(name) - (int)strlen(".weight"), own = stem;
    const char *gate = strstr(name, ".gate_proj.weight"), *up = strstr(name, ".up_proj.weight");
    snprintf(key, sizeof(key), "%.*s.lora_A.weight", stem, name);
    if (!s->state.find(s->state.arg, key, &rank, &columns)) {
        if (!gate && !up)
            return;
        /* gate and up of an expert have one adapter, with gate's rows of B first */
        own = (int)((gate ? gate : up) - name);
        snprintf(key, sizeof(key), "%.*s.gate_up_proj.lora_A.weight", own, name);
        if (!s->state.find(s->state.arg, key, &rank, &columns))
            return;
    }
    must(s->state.read(s->state.arg, key, 0, rank, a, &err), &err);
    snprintf(key, sizeof(key), "%.*s%s.lora_B.weight", own, name, own < stem ? ".gate_up_proj" : "");
    assert_true(s->state.find(s->state.arg, key, &rows, &ignored));
    rows /= own < stem ? 2 : 1;
    begin = own < stem && up ? rows : 0;
    assert_true(rows * columns == count);
    must(s->state.read(s->state.arg, key, begin, begin + rows, b, &err), &err);
    snprintf(key, sizeof(key), "%.*s", stem, name);
    double scale = s->state.scale(s->state.arg, key);
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t j = 0; j < columns; j++)
            for (uint64_t k = 0; k < rank; k++)
                values[i * columns + j] += scale * (double)b[i * rank + k] * (double)a[k * columns + j];
}

struct compare {
    const struct scene *scene;
    struct model *written;
    double tolerance; /* relative to |value| + 0.02; 0.02 is about the size of the weights that were added */
    uint32_t changed;
};

static int compare_tensor(const struct block_tensor *tensor, void *arg)
{
    struct compare *c = arg;
    static double wanted[VALUES_MAX];
    uint64_t count, there;
    const float *base = values_of(c->scene->base, tensor->name, &count);
    for (uint64_t i = 0; i < count; i++)
        wanted[i] = (double)base[i];
    add_adapter(c->scene, tensor->name, wanted, count);
    bool differs = false;
    for (uint64_t i = 0; i < count; i++)
        differs = differs || fabs(wanted[i] - (double)base[i]) > 0;
    const float *found = values_of(c->written, tensor->name, &there);
    assert_int_equal(count, there);
    for (uint64_t i = 0; i < count; i++)
        if (fabs((double)found[i] - wanted[i]) > c->tolerance * (fabs(wanted[i]) + 0.02))
            fail_msg("%s[%d]: %.9g, not %.9g", tensor->name, (int)i, (double)found[i], wanted[i]);
    c->changed += differs;
    return 0;
}

/* Checks the dtype and rope entries of the written config.json. Both golden models have a dtype: float32 in
 * llama, bfloat16 in llama3-rope. */
static void config_says(const char *dir, enum spec_result_dtype dtype)
{
    static const char *const names[] = {"float", "float32", "bfloat16", "float16"};
    char path[300];
    json_error_t error;
    snprintf(path, sizeof(path), "%s/config.json", dir);
    json_t *document = json_load_file(path, 0, &error);
    const char *found = json_string_value(json_object_get(document, "dtype"));
    assert_non_null(found);
    assert_non_null(strstr(found, names[dtype]));
    /* transformers 4 reads this key */
    assert_string_equal(found, json_string_value(json_object_get(document, "torch_dtype")));
    const json_t *rope = json_object_get(document, "rope_parameters");
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    if (type) {
        const json_t *scaling = json_object_get(document, "rope_scaling");
        assert_true(json_equal(json_object_get(rope, "rope_theta"), json_object_get(document, "rope_theta")));
        assert_true(strcmp(type, "default") == 0 ||
                    json_equal(json_object_get(rope, "factor"), json_object_get(scaling, "factor")));
    }
    json_decref(document);
}

static void merged_as(const char *name, enum spec_result_dtype dtype, uint64_t shard_bytes, double tolerance)
{
    struct scene s;
    struct scratch scratch;
    struct err err;
    char model[256], adapter[256];
    snprintf(model, sizeof(model), GOLDEN "%s", name);
    snprintf(adapter, sizeof(adapter), GOLDEN "%s/adapter_after_20", name);
    scene_open(&s, model, adapter);
    assert_int_equal(scratch_make(&scratch), 0);
    char *dir = strdup(scratch_path(&scratch, "merged"));
    struct result_folder_options options = {.dir = dir, .dtype = dtype, .shard_bytes = shard_bytes};
    must(result_model_folder(s.base, &s.state, &options, &err), &err);
    must(result_model_folder(s.base, &s.state, &options, &err), &err); /* replaces the folder just written */
    struct compare c = {.scene = &s, .tolerance = tolerance};
    must(model_open_path(dir, &c.written, &err), &err); /* also checks the index against the shards */
    const struct model_config *config = model_get_config(c.written);
    const struct model_config *before = model_get_config(s.base);
    assert_true(config->tied == before->tied && config->layers == before->layers);
    config_says(dir, dtype);
    model_block_tensors(config, 0, config->layers + 2, compare_tensor, &c);
    assert_int_equal(c.changed, 16); /* 4 layers, q k v o */
    assert_true(model_source_find(model_get_source(c.written), "generation_config.json") >= 0);
    if (config->tied) /* the head is the embedding's table and is not written again */
        assert_string_equal(model_tensor_find(c.written, "lm_head.weight")->name,
                            "model.embed_tokens.weight");
    bool sharded = model_source_find(model_get_source(c.written), "model.safetensors.index.json") >= 0;
    assert_int_equal(sharded, shard_bytes != 0);
    model_close(c.written);
    scene_close(&s);
    free(dir);
    scratch_remove(&scratch);
}

static void a_merged_model_holds_base_and_adapter(void **state)
{
    (void)state;
    merged_as("llama", SPEC_DTYPE_BASE, 0, 2e-6);
    merged_as("llama", SPEC_DTYPE_BF16, 60000, 1.0 / 255);
    merged_as("llama", SPEC_DTYPE_FP16, 0, 1.0 / 2047);
    merged_as("llama3-rope", SPEC_DTYPE_BASE, 0, 1.0 / 255);
    merged_as("llama3-rope", SPEC_DTYPE_FP32, 100000, 2e-6);
}

/* Compares what the language model does not use with the base, byte by byte; returns how many tensors. */
static uint32_t copied_bytes_equal(struct model *base, struct model *written)
{
    static uint8_t bytes[2][4 * VALUES_MAX];
    uint32_t count = 0;
    struct err err;
    for (uint32_t i = 0; i < model_tensor_count(base); i++) {
        const struct model_tensor *was = model_tensor_at(base, i), *is = model_tensor_at(written, i);
        const struct safetensors_tensor *a = model_tensor_stored(base, was),
                                        *b = model_tensor_stored(written, is);
        assert_string_equal(was->stored, is->stored);
        if (!was->unused)
            continue;
        assert_true(a->rank == b->rank && a->type == b->type && was->size == is->size);
        assert_memory_equal(a->shape, b->shape, sizeof(a->shape));
        assert_true(was->size <= sizeof(bytes[0]));
        must(model_tensor_read_bytes(base, was, 0, was->size, bytes[0], &err), &err);
        must(model_tensor_read_bytes(written, is, 0, is->size, bytes[1], &err), &err);
        assert_memory_equal(bytes[0], bytes[1], was->size);
        count++;
    }
    assert_int_equal(model_tensor_count(base), model_tensor_count(written));
    return count;
}

/* Returns how many matrices an adapter changes, by its keys. */
static size_t adapted_count(const json_t *adapter, uint32_t experts)
{
    const char *key;
    json_t *shape;
    size_t count = 0;
    json_object_foreach ((json_t *)(uintptr_t)adapter, key, shape)
        if (strstr(key, "lora_A"))
            count += strstr(key, ".experts.base_layer.") ? 2 * experts
                     : strstr(key, ".experts.lora_A")    ? experts
                                                         : 1;
    return count;
}

/* The merged folder of a model that also reads images has its names, its config and its other tensors; that
 * of a mixture whose files have one tensor of all experts has such tensors. */
static void a_merged_model_has_the_tensors_of_its_base(void **state)
{
    (void)state;
    json_t *cases = formula_cases(NULL), *one;
    uint32_t tried = 0;
    size_t i;
    json_array_foreach (cases, i, one) {
        const char *name = json_string_value(json_object_get(one, "name"));
        json_t *config = json_object_get(one, "config");
        struct scene s;
        struct scratch scratch;
        struct err err;
        char model[512], adapter[640];
        bool images = json_object_get(config, "vision_config"),
             of_block_0 = strstr(name, "gemma4_small"), /* an adapter outside the layers */
            joined = strstr(name, "granitemoe") || strstr(name, "gemma4_moe") || strstr(name, "gpt_oss-"),
             latent = strstr(name, "deepseek_v2") || strstr(name, "glm4_moe_lite-");
        if (!images && !joined && !of_block_0 && !latent)
            continue;
        golden_folder(name, model, sizeof(model));
        snprintf(adapter, sizeof(adapter), "%s/adapter_init", model);
        scene_open(&s, model, adapter);
        assert_int_equal(scratch_make(&scratch), 0);
        char *dir = strdup(scratch_path(&scratch, "merged"));
        struct result_folder_options options = {
            .dir = dir, .dtype = SPEC_DTYPE_FP32, .shard_bytes = tried % 2 ? 60000 : 0};
        must(result_model_folder(s.base, &s.state, &options, &err), &err);
        struct compare c = {.scene = &s, .tolerance = 2e-6};
        must(model_open_path(dir, &c.written, &err), &err);
        const struct model_config *text = model_get_config(c.written);
        assert_true(text->nested == images && text->tied == model_get_config(s.base)->tied);
        model_block_tensors(text, 0, text->layers + 2, compare_tensor, &c);
        assert_int_equal(c.changed, adapted_count(json_object_get(one, "adapter"), text->experts));
        uint32_t copied = copied_bytes_equal(s.base, c.written);
        assert_true(images ? copied > 5 : copied == 0);
        json_t *written = json_load_file(scratch_path(&scratch, "merged/config.json"), 0, NULL);
        assert_true(!images || json_equal(json_object_get(written, "vision_config"),
                                          json_object_get(config, "vision_config")));
        assert_true(
            json_equal(json_object_get(written, "architectures"), json_object_get(config, "architectures")));
        json_decref(written);
        model_close(c.written);
        scene_close(&s);
        free(dir);
        scratch_remove(&scratch);
        tried++;
    }
    json_decref(cases);
    assert_int_equal(tried, 21);
}

/* Tests the result of full fine-tuning, whose tensors have the model's own names. A file of gradients stands
 * for the trained weights, because it has the same names and shapes. */
static void a_trained_model_holds_what_was_trained(void **state)
{
    (void)state;
    struct model *base, *written;
    struct safetensors *trained;
    struct scratch scratch;
    struct err err;
    must(model_open_path(GOLDEN "llama", &base, &err), &err);
    must(safetensors_open_path(GOLDEN "llama/grads_full_step0.safetensors", &trained, &err), &err);
    struct result_files files = {.files = &trained, .count = 1, .prefix = ""};
    struct result_state s = result_state_of_files(&files);
    assert_int_equal(scratch_make(&scratch), 0);
    char *dir = strdup(scratch_path(&scratch, "model"));
    struct result_folder_options options = {.dir = dir, .dtype = SPEC_DTYPE_FP32};
    must(result_model_folder(base, &s, &options, &err), &err);
    must(model_open_path(dir, &written, &err), &err);
    assert_int_equal(model_tensor_count(written), safetensors_count(trained));
    for (uint32_t i = 0; i < model_tensor_count(written); i++) {
        static float wanted[VALUES_MAX];
        const char *name = model_tensor_at(written, i)->name;
        uint64_t count;
        const float *found = values_of(written, name, &count);
        must(safetensors_read_f32(trained, safetensors_find(trained, name), wanted, count, &err), &err);
        assert_memory_equal(found, wanted, count * sizeof(float));
    }
    model_close(written);
    safetensors_close(trained);
    model_close(base);
    free(dir);
    scratch_remove(&scratch);
}

/* A state with a single tensor, all of whose elements are `value`. */
struct one {
    const char *name;
    uint64_t rows, columns;
    float value;
};

static bool one_find(void *arg, const char *name, uint64_t *rows, uint64_t *columns)
{
    const struct one *one = arg;
    *rows = one->rows;
    *columns = one->columns;
    return strcmp(name, one->name) == 0;
}

static int one_read(void *arg, const char *name, uint64_t row_begin, uint64_t row_end, float *dst,
                    struct err *err)
{
    (void)name;
    (void)err;
    const struct one *one = arg;
    for (uint64_t i = 0; i < (row_end - row_begin) * one->columns; i++)
        dst[i] = one->value;
    return 0;
}

static void what_cannot_be_written_leaves_nothing(void **state)
{
    (void)state;
    static const struct {
        struct one one;
        const char *says;
    } cases[] = {
        {{"model.norm.weight", 64, 1, 1e6f}, "\"model.norm.weight\" holds 1e+06, which fp16 cannot"},
        {{"model.norm.weight", 64, 1, NAN}, "\"model.norm.weight\" holds a value that is not finite"},
        {{"model.norm.weight", 63, 1, 1}, "\"model.norm.weight\" was trained as 63 x 1"},
        {{"model.layers.1.mlp.up_proj.lora_A.weight", 4, 64, 1}, "model.layers.1.mlp.up_proj.lora_B.weight"},
    };
    struct model *base;
    struct scratch scratch;
    struct err err;
    must(model_open_path(GOLDEN "llama", &base, &err), &err);
    assert_int_equal(scratch_make(&scratch), 0);
    char *dir = strdup(scratch_path(&scratch, "model"));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct one one = cases[i].one;
        struct result_state s = {.arg = &one, .find = one_find, .read = one_read};
        struct result_folder_options options = {.dir = dir, .dtype = SPEC_DTYPE_FP16};
        assert_int_equal(result_model_folder(base, &s, &options, &err), -1);
        if (!strstr(err.text, cases[i].says))
            fail_msg("%s", err.text);
        assert_false(file_exists(dir));
    }
    model_close(base);
    free(dir);
    scratch_remove(&scratch);
}

static void read_gguf(struct model_source *source, const struct gguf_tensor *t, float *dst)
{
    struct err err;
    uint8_t bytes[1 << 16];
    assert_true(t->size <= sizeof(bytes));
    must(model_source_read(source, 0, t->offset, t->size, bytes, &err), &err);
    must(tensor_dequantise(t->type, bytes, t->shape[0] * t->shape[1], dst, &err), &err);
}

static void an_adapter_for_llama_cpp_has_its_names_orders_and_scale(void **state)
{
    (void)state;
    static float ours[VALUES_MAX], theirs[VALUES_MAX];
    struct scene s;
    struct scratch scratch;
    struct err err;
    struct gguf *gguf;
    struct model_source *source;
    double alpha;
    const char *text;
    size_t size;
    scene_open(&s, GOLDEN "llama", GOLDEN "llama/adapter_after_20");
    assert_int_equal(scratch_make(&scratch), 0);
    const char *path = scratch_path(&scratch, "adapter.gguf");
    must(result_gguf_adapter(path, s.base, &s.state, SPEC_DTYPE_BASE, &err), &err);
    must(model_source_open_local(path, &source, &err), &err);
    must(gguf_open(source, 0, &gguf, &err), &err);
    assert_int_equal(gguf_tensor_count(gguf), 32);
    assert_true(gguf_string(gguf, "general.type", &text, &size) && size == 7 && !memcmp(text, "adapter", 7));
    assert_true(gguf_string(gguf, "adapter.type", &text, &size) && size == 4 && !memcmp(text, "lora", 4));
    assert_true(gguf_f64(gguf, "adapter.lora.alpha", &alpha) && alpha == 32);
    const struct gguf_tensor *a = gguf_tensor_find(gguf, "blk.2.attn_k.weight.lora_a");
    const struct gguf_tensor *b = gguf_tensor_find(gguf, "blk.2.attn_k.weight.lora_b");
    assert_true(a && b && a->shape[0] == 16 && a->shape[1] == 64 && b->shape[1] == 16);
    read_gguf(source, a, ours);
    must(peft_read(s.peft, 2, LORA_K, 'A', theirs, 16 * 64, &err), &err);
    assert_memory_equal(ours, theirs, 16 * 64 * sizeof(float));
    read_gguf(source, b, ours);
    must(peft_read(s.peft, 2, LORA_K, 'B', theirs, b->shape[0] * 16, &err), &err);
    uint64_t dim = model_get_config(s.base)->head_dim;
    for (uint64_t r = 0; r < b->shape[0];
         r++) { /* llama.cpp's rows 2i and 2i + 1 of a head are row i of its first and of its second half */
        uint64_t head = r / dim * dim, hub = head + r % dim / 2 + (r % 2) * (dim / 2);
        assert_memory_equal(ours + r * 16, theirs + hub * 16, 16 * sizeof(float));
    }
    gguf_close(gguf);
    model_source_close(source);
    scene_close(&s);
    scratch_remove(&scratch);
}

/* Writes the scene's adapter again, as Motley writes adapters. */
static int write_peft(const struct scene *s, const char *dir, struct err *err)
{
    uint32_t count = safetensors_count(s->files[0]);
    struct safetensors_item *items = calloc(count, sizeof(*items));
    int status = items ? 0 : err_set(err, ERR_NOMEM, "no memory");
    for (uint32_t i = 0; status == 0 && i < count; i++) {
        const struct safetensors_tensor *t = safetensors_at(s->files[0], i);
        uint64_t values = t->shape[0] * t->shape[1];
        float *data = malloc(values * sizeof(*data));
        items[i] = (struct safetensors_item){.name = t->name, .type = TENSOR_F32, .rank = 2, .data = data};
        memcpy(items[i].shape, t->shape, sizeof(t->shape[0]) * 2);
        status = safetensors_read_f32(s->files[0], t, data, values, err);
    }
    if (status == 0)
        status =
            peft_write(dir, peft_get_config(s->peft), "tiny", model_get_config(s->base), items, count, err);
    for (uint32_t i = 0; items && i < count; i++)
        free((void *)(uintptr_t)items[i].data);
    free(items);
    return status;
}

static int write_for(int argc, char **argv)
{
    struct scene s;
    struct err err = {0};
    enum spec_result_dtype dtype = SPEC_DTYPE_BASE;
    scene_open(&s, argv[2], argv[3]);
    for (int d = SPEC_DTYPE_FP32; argc > 5 && d <= SPEC_DTYPE_FP16; d++)
        if (strcmp(argv[5], spec_result_dtype_name((enum spec_result_dtype)d)) == 0)
            dtype = (enum spec_result_dtype)d;
    struct result_folder_options options = {
        .dir = argv[4], .dtype = dtype, .shard_bytes = argc > 6 ? strtoull(argv[6], NULL, 10) : 0};
    int status = strcmp(argv[1], "peft") == 0   ? write_peft(&s, argv[4], &err)
                 : strcmp(argv[1], "gguf") == 0 ? result_gguf_adapter(argv[4], s.base, &s.state, dtype, &err)
                                                : result_model_folder(s.base, &s.state, &options, &err);
    if (status < 0)
        fprintf(stderr, "%s\n", err.text);
    scene_close(&s);
    return status < 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_merged_model_holds_base_and_adapter),
        cmocka_unit_test(a_merged_model_has_the_tensors_of_its_base),
        cmocka_unit_test(a_trained_model_holds_what_was_trained),
        cmocka_unit_test(what_cannot_be_written_leaves_nothing),
        cmocka_unit_test(an_adapter_for_llama_cpp_has_its_names_orders_and_scale),
    };
    return argc > 4 ? write_for(argc, argv) : cmocka_run_group_tests(tests, NULL, NULL);
}
