/* Adapters on tensors of all experts: peft's layout of values beside each expert's, both ways, and what is
 * refused. */
#include "model/adapters/peft_experts.h"

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
#include "model/adapters/peft.h"
#include "model/job/spec.h"
#include "support/formula_model.h"
#include "support/must.h"
#include "support/scratch.h"

struct adapter {
    char dir[600];
    struct model_config model;
    struct safetensors *stored; /* the file as peft has it */
    struct peft *peft;
};

static struct adapter adapter_of(const char *name)
{
    struct adapter a;
    char base[512], path[700];
    struct err err;
    golden_folder(name, base, sizeof(base));
    snprintf(a.dir, sizeof(a.dir), "%s/adapter_init", base);
    snprintf(path, sizeof(path), "%s/adapter_model.safetensors", a.dir);
    must(model_config_load(base, &a.model, &err), &err);
    must(safetensors_open_path(path, &a.stored, &err), &err);
    must(peft_open(a.dir, &a.model, &a.peft, &err), &err);
    return a;
}

static void adapter_close(struct adapter *a)
{
    peft_close(a->peft);
    safetensors_close(a->stored);
}

static float *values_of(struct safetensors *file, const char *key, uint64_t *rows, uint64_t *columns)
{
    struct err err;
    const struct safetensors_tensor *t = peft_find(file, key);
    if (!t)
        fail_msg("no %s", key);
    *rows = t->shape[0];
    *columns = t->shape[1];
    float *values = malloc(4 * *rows * *columns);
    must(safetensors_read_f32(file, t, values, *rows * *columns, &err), &err);
    return values;
}

/* Expert e's B A must be peft's: einsum("o r e, e r i -> e o i") of B and A in these shapes
 * (lora.ParamWrapper.get_delta_weight), with gate's and up's rows in turn in gpt-oss. */
static void expect_product(struct adapter *a, const char *own, const char *all, uint32_t experts, bool turned)
{
    uint64_t rank_all, in, out, columns, rank, rows;
    char key[160];
    snprintf(key, sizeof(key), "base_model.model.model.%s.lora_A.weight", all);
    float *a_all = values_of(a->stored, key, &rank_all, &in);
    snprintf(key, sizeof(key), "base_model.model.model.%s.lora_B.weight", all);
    float *b_all = values_of(a->stored, key, &out, &columns);
    assert_int_equal(rank_all, columns);
    for (uint32_t e = 0; e < experts; e++) {
        char module[96];
        snprintf(module, sizeof(module), own, e);
        snprintf(key, sizeof(key), "base_model.model.model.%s.lora_A.weight", module);
        float *a_own = values_of(peft_tensors(a->peft), key, &rank, &columns);
        assert_true(rank * experts == rank_all && columns == in);
        snprintf(key, sizeof(key), "base_model.model.model.%s.lora_B.weight", module);
        float *b_own = values_of(peft_tensors(a->peft), key, &rows, &columns);
        assert_true(rows == out && columns == rank);
        for (uint64_t o = 0; o < out; o++)
            for (uint64_t i = 0; i < in; i++) {
                uint64_t from = !turned ? o : o < out / 2 ? 2 * o : 2 * (o - out / 2) + 1;
                float want = 0, got = 0;
                for (uint64_t r = 0; r < rank; r++) {
                    want += b_all[from * rank_all + r * experts + e] * a_all[(e * rank + r) * in + i];
                    got += b_own[o * rank + r] * a_own[r * in + i];
                }
                assert_true(got == want);
            }
        free(a_own);
        free(b_own);
    }
    free(a_all);
    free(b_all);
}

static void each_experts_product_is_that_of_peft(void **state)
{
    (void)state;
    struct adapter a = adapter_of("gpt_oss-experts");
    expect_product(&a, "layers.2.mlp.experts.%u.gate_up_proj", "layers.2.mlp.experts.base_layer", 6, true);
    expect_product(&a, "layers.2.mlp.experts.%u.down_proj", "layers.2.mlp.experts", 6, false);
    assert_int_equal(lora_rank_at(peft_get_sites(a.peft), 0, (uint32_t)__builtin_ctz(LORA_EXPERT_DOWN)), 3);
    adapter_close(&a);
    a = adapter_of("mixtral-experts");
    expect_product(&a, "layers.1.block_sparse_moe.experts.%u.gate_up_proj", "layers.1.mlp.experts", 4, false);
    expect_product(&a, "layers.3.block_sparse_moe.experts.%u.gate_up_proj", "layers.3.mlp.experts.base_layer",
                   4, false);
    expect_product(&a, "layers.3.block_sparse_moe.experts.%u.w2", "layers.3.mlp.experts", 4, false);
    adapter_close(&a);
}

/* Gives the tensors of an open adapter as items. The caller frees items and data. */
static struct safetensors_item *items_of(struct safetensors *file, uint32_t *count)
{
    struct err err;
    *count = safetensors_count(file);
    struct safetensors_item *items = calloc(*count, sizeof(*items));
    for (uint32_t i = 0; i < *count; i++) {
        const struct safetensors_tensor *t = safetensors_at(file, i);
        void *data = malloc(t->size);
        must(safetensors_read(file, t, 0, (size_t)t->size, data, &err), &err);
        items[i] = (struct safetensors_item){.name = t->name, .type = t->type, .rank = t->rank, .data = data};
        memcpy(items[i].shape, t->shape, sizeof(items[i].shape));
    }
    return items;
}

static void items_free(struct safetensors_item *items, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        free((void *)(uintptr_t)items[i].data);
    free(items);
}

/* What is read and written again is peft's file, and so is its config. */
static void what_is_written_is_what_was_read(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt_oss-experts", "gemma4_moe-experts", "granitemoe-experts",
                                        "qwen3_moe-experts", "mixtral-experts"};
    for (size_t n = 0; n < sizeof(names) / sizeof(*names); n++) {
        struct adapter a = adapter_of(names[n]);
        struct scratch scratch;
        struct err err;
        uint32_t count;
        char dir[300], path[400];
        struct safetensors *again;
        struct safetensors_item *items = items_of(peft_tensors(a.peft), &count);
        scratch_make(&scratch);
        snprintf(dir, sizeof(dir), "%s/a", scratch.dir);
        must(peft_write(dir, peft_get_config(a.peft), NULL, &a.model, items, count, &err), &err);
        snprintf(path, sizeof(path), "%s/adapter_model.safetensors", dir);
        must(safetensors_open_path(path, &again, &err), &err);
        assert_int_equal(safetensors_count(again), safetensors_count(a.stored));
        for (uint32_t i = 0; i < safetensors_count(again); i++) {
            uint64_t rows[2], columns[2];
            const char *key = safetensors_at(again, i)->name;
            assert_non_null(safetensors_find(a.stored, key));
            float *one = values_of(again, key, &rows[0], &columns[0]),
                  *other = values_of(a.stored, key, &rows[1], &columns[1]);
            assert_true(rows[0] == rows[1] && columns[0] == columns[1]);
            assert_memory_equal(one, other, 4 * rows[0] * columns[0]);
            free(one);
            free(other);
        }
        snprintf(path, sizeof(path), "%s/adapter_config.json", dir);
        json_t *document = json_load_file(path, 0, NULL);
        assert_true(json_array_size(json_object_get(document, "target_parameters")) > 0);
        assert_true(
            json_is_array(json_object_get(document, "target_modules"))); /* null would mean a default */
        json_decref(document);
        struct peft *reopened;
        must(peft_open(dir, &a.model, &reopened, &err), &err);
        assert_memory_equal(peft_get_sites(reopened), peft_get_sites(a.peft), sizeof(struct lora_sites));
        peft_close(reopened);
        /* without one expert's tensor nothing is written */
        uint32_t at = 0;
        while (!strstr(items[at].name, ".experts.1."))
            at++;
        free((void *)(uintptr_t)items[at].data);
        items[at] = items[--count];
        snprintf(dir, sizeof(dir), "%s/b", scratch.dir);
        assert_int_equal(peft_write(dir, peft_get_config(a.peft), NULL, &a.model, items, count, &err), -1);
        assert_non_null(strstr(err.text, ".experts.1."));
        safetensors_close(again);
        items_free(items, count);
        scratch_remove(&scratch);
        adapter_close(&a);
    }
}

/* Writes the adapter again with one key of its config changed, or with a tensor's rows left out, and opens
 * that; the error says `says`. */
static void expect_refused(const struct adapter *a, const char *key, json_t *value, const char *lacks,
                           const char *says)
{
    struct err err;
    struct peft *peft;
    struct buf text = {.limit = 1 << 16}, bytes = {.limit = 1 << 26};
    uint32_t count;
    char path[700];
    snprintf(path, sizeof(path), "%s/adapter_config.json", a->dir);
    json_t *document = json_load_file(path, 0, NULL);
    json_object_set_new(document, key, value);
    struct safetensors_item *items = items_of(a->stored, &count);
    for (uint32_t i = 0; lacks && i < count; i++)
        if (strstr(items[i].name, lacks))
            items[i].shape[0]--;
    must(json_print(document, false, &text, &err), &err);
    must(safetensors_encode(items, count, NULL, 0, &bytes, &err), &err);
    assert_int_equal(peft_open_memory(text.data, text.size, bytes.data, bytes.size, &a->model, &peft, &err),
                     -1);
    if (!strstr(err.text, says))
        fail_msg("'%s' does not say '%s'", err.text, says);
    items_free(items, count);
    buf_fini(&text);
    buf_fini(&bytes);
    json_decref(document);
}

static void what_peft_would_not_load_is_refused_by_name(void **state)
{
    (void)state;
    struct adapter a = adapter_of("gpt_oss-experts");
    expect_refused(&a, "lora_dropout", json_real(0.1), NULL,
                   "lora_dropout: must be 0 with target_parameters");
    expect_refused(&a, "target_parameters", json_string("mlp.experts.down_proj"), NULL, "target_parameters");
    expect_refused(&a, "target_parameters", json_pack("[s]", "self_attn.q_proj.weight"), NULL,
                   "\"self_attn.q_proj.weight\" is no tensor of all experts of this model, which are "
                   "model.layers.0.mlp.experts.gate_up_proj");
    /* with one parameter its key is that of the outer wrapper, whose shape is down_proj's here */
    expect_refused(&a, "target_parameters", json_pack("[s]", "experts.gate_up_proj"), NULL,
                   "mlp.experts.lora_A.weight\" is not 48 x 32");
    expect_refused(&a, "revision", json_null(), "layers.1.mlp.experts.base_layer.lora_B",
                   "layers.1.mlp.experts.base_layer.lora_B.weight\" is not 48 x 48");
    expect_refused(&a, "target_parameters", json_null(), NULL, "has no place");
    adapter_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_experts_product_is_that_of_peft),
        cmocka_unit_test(what_is_written_is_what_was_read),
        cmocka_unit_test(what_peft_would_not_load_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
