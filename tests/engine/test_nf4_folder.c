/* Tests folders that transformers and bitsandbytes saved in NF4 (tools/make_nf4_folders.py): they give
 * bitsandbytes' dequantised values and transformers' loss, and an NF4 base has the file's own codes and
 * scales. So do a folder in MXFP4 (tools/make_folders.py) and a packed base. Deviations from the format are
 * refused by name. */
#include "engine/trainer.h"

#include "common/digest.h"
#include "engine/stage/stage_state.h"
#include "model/files/nf4.h"
#include "support/scratch.h"

static void folder_of(char path[512], const char *name)
{
    snprintf(path, 512, "%s/nf4/%s", MOTLEY_TEST_DATA, name);
}

static void values_are_those_that_bitsandbytes_dequantises(void **state)
{
    (void)state;
    static const char *const names[] = {"double", "single"};
    for (int i = 0; i < 2; i++) {
        char path[512], file[600];
        struct model *model;
        struct err err;
        const char *name;
        json_t *sha;
        folder_of(path, names[i]);
        snprintf(file, sizeof(file), "%s/expected.json", path);
        json_t *expected = json_of(file), *tensors = json_object_get(expected, "dequantised");
        assert_int_equal(json_object_size(tensors), i == 0 ? 7 : 6);
        check(model_open_path(path, &model, &err));
        json_object_foreach (tensors, name, sha) {
            const struct model_tensor *tensor = model_tensor_find(model, name);
            char hex[DIGEST_HEX_SIZE];
            assert_non_null(tensor->nf4);
            float *values = malloc(4 * tensor->rows * tensor->cols);
            /* The test reads pieces that begin and end within blocks. */
            for (uint64_t row = 0; row < tensor->rows; row += 5) {
                uint64_t end = row + 5 < tensor->rows ? row + 5 : tensor->rows;
                check(model_tensor_read_f32(model, tensor, row, end, values + row * tensor->cols, &err));
            }
            check(digest_sha256_hex(values, 4 * tensor->rows * tensor->cols, hex, &err));
            if (strcmp(hex, json_string_value(sha)) != 0)
                fail_msg("%s of %s: not what bitsandbytes dequantises", name, names[i]);
            free(values);
        }
        model_close(model);
        json_decref(expected);
    }
}

/* Returns the loss of the first step, and the norm of its gradients. */
static double step_of(const char *path, enum layer_base base, bool double_quant, double *want, double *norm)
{
    struct dataset data = {.count = 1};
    struct train_result result;
    struct trainer trainer;
    char file[600];
    snprintf(file, sizeof(file), "%s/expected.json", path);
    json_t *expected = json_of(file);
    snprintf(file, sizeof(file), "%s/model.gguf", path);
    *want = json_number_value(json_object_get(expected, "loss"));
    batch_parse(expected, &data.batches[0]);
    struct train_options o = {
        .model = path,
        .data = &data,
        .base = base,
        .double_quant = double_quant,
        .lora = {.rank = 4, .alpha = 8, .targets = LORA_ALL | LORA_TABLES | LORA_EXPERTS},
        .steps = 1,
        .warmup = 1,
        .peak_lr = 1e-3};
    struct device *device = device_make("cpu", 1);
    trainer_init(&trainer, device, &o);
    trainer_run(&trainer, &result);
    trainer_fini(&trainer);
    device_close(device);
    dataset_free(&data);
    json_decref(expected);
    *norm = result.norm[0];
    return result.loss[0];
}

static double loss_of(const char *path, enum layer_base base, bool double_quant, double *want)
{
    double norm;
    return step_of(path, base, double_quant, want, &norm);
}

static void losses_are_those_of_transformers(void **state)
{
    (void)state;
    char path[512];
    double want;
    folder_of(path, "double");
    double fp32 = loss_of(path, LAYER_BASE_F32, false, &want),
           nf4 = loss_of(path, LAYER_BASE_NF4, true, &want);
    print_message("double: %.8f as fp32, %.8f as NF4, %.8f by transformers\n", fp32, nf4, want);
    assert_true(fabs(fp32 - want) <= 1e-5 * want && fabs(nf4 - want) <= 1e-5 * want);
    /* A base with fp32 scales has the same values. */
    assert_true(fabs(loss_of(path, LAYER_BASE_NF4, false, &want) - nf4) <= 1e-7 * want);
    folder_of(path, "single");
    fp32 = loss_of(path, LAYER_BASE_F32, false, &want);
    nf4 = loss_of(path, LAYER_BASE_NF4, false, &want);
    print_message("single, o_proj unquantised: %.8f as fp32, %.8f as NF4, %.8f by transformers\n", fp32, nf4,
                  want);
    assert_true(fabs(fp32 - want) <= 1e-5 * want);
    assert_true(fabs(nf4 - want) <= 1e-5 * want); /* o_proj stays unquantised, as in the file. */
}

static void blocks_compare(const char *path)
{
    double want, norms[2], packed = step_of(path, LAYER_BASE_PACKED, false, &want, &norms[0]),
                           fp32 = step_of(path, LAYER_BASE_F32, false, &want, &norms[1]);
    print_message("blocks: %.8f packed, %.8f as fp32, %.8f by transformers\n", packed, fp32, want);
    assert_true(fabs(packed - want) <= 1e-6 * want && fabs(fp32 - want) <= 1e-6 * want);
    assert_true(norms[1] > 0 && fabs(norms[0] - norms[1]) <= 1e-6 * norms[1]);
    /* bf16 has the values of MXFP4, but not those of other blocks and of matrices in fp32 */
    assert_true(fabs(loss_of(path, LAYER_BASE_BF16, false, &want) - want) <= 1e-2 * want);
}

/* gguf-py's quantiser made the blocks of the last two, from values that they have: MXFP4, and Q8_0 with a
 * shared expert. */
static void a_packed_base_gives_transformers_loss(void **state)
{
    (void)state;
    blocks_compare(MOTLEY_TEST_DATA "/folders/transformers5/gpt-oss-mxfp4");
    blocks_compare(MOTLEY_TEST_DATA "/folders/transformers5/gpt-oss-gguf");
    blocks_compare(MOTLEY_TEST_DATA "/folders/transformers5/qwen2-moe-q8-gguf");
}

/* The config alone tells, too, which tensors are not quantised, and the model's description keeps it: the
 * description, once parsed, gives the same config. */
static void what_is_skipped_is_part_of_the_models_description(void **state)
{
    (void)state;
    static struct model_config config, again;
    const struct model_config *opened;
    char path[512], file[600];
    struct model *model;
    struct err err;
    folder_of(path, "single");
    snprintf(file, sizeof(file), "%s/config.json", path);
    check(model_open_path(path, &model, &err));
    opened = model_get_config(model);
    assert_int_equal(1, opened->packing.ways);
    for (uint32_t site = 0; site < 7; site++)
        assert_int_equal(1u << site == LORA_O ? PACK_F32 : PACK_NF4, opened->packing.matrix[0][site]);
    check(model_config_load(file, &config, &err));
    assert_memory_equal(&opened->packing, &config.packing, sizeof(config.packing));
    json_t *document = model_config_to_json(opened, &err);
    check(model_config_parse(document, &again, &err));
    assert_memory_equal(opened, &again, sizeof(again));
    json_decref(document);
    model_close(model);
    /* When all matrices are quantised, config.packing has no exceptions. */
    folder_of(path, "double");
    check(model_config_load(path, &config, &err));
    assert_int_equal(0, config.packing.ways);
}

/* Checks that a part of a tensor has the file's bytes. */
static void same_bytes(struct model *model, const struct nf4_place *place, const uint8_t *held)
{
    struct err err;
    uint8_t *file = malloc(place->size);
    check(model_source_read(model_get_source(model), place->file, place->offset, place->size, file, &err));
    assert_memory_equal(file, held, place->size);
    free(file);
}

static void a_base_holds_the_files_codes_and_scales(void **state)
{
    (void)state;
    static const char *const names[] = {"double", "single"};
    for (int i = 0; i < 2; i++) {
        char path[512], name[LAYER_NAME_MAX];
        struct device *device = device_make("cpu", 1);
        struct model *model;
        struct stage *stage;
        struct err err;
        uint32_t compared = 0;
        folder_of(path, names[i]);
        check(model_open_path(path, &model, &err));
        struct stage_options o = {.config = model_get_config(model),
                                  .block_end = 3,
                                  .base = LAYER_BASE_NF4,
                                  .double_quant = i == 0,
                                  .mode = STAGE_INFER,
                                  .tokens_max = 8};
        check(stage_create(device, model, &o, &stage, &err));
        const struct block_state *block = stage_block(stage, 1);
        uint8_t *area = malloc(block->tensors->frozen_bytes);
        check(buffer_read(block->frozen, 0, area, block->tensors->frozen_bytes, &err));
        check(device_sync(device, &err));
        for (uint32_t t = 0; t < block->tensors->count; t++) {
            const struct layer_tensor *tensor = &block->tensors->list[t];
            layer_tensor_name(o.config, 0, tensor, 0, name);
            const struct model_tensor *stored = model_tensor_find(model, name);
            if (!stored->nf4)
                continue;
            same_bytes(model, &stored->nf4->codes, area + tensor->at);
            same_bytes(model, &stored->nf4->parts[NF4_ABSMAX], area + tensor->at + tensor->absmax);
            if (i == 0)
                same_bytes(model, &stored->nf4->parts[NF4_NESTED], area + tensor->at + tensor->scales + 4);
            compared++;
        }
        assert_int_equal(compared, i == 0 ? 7 : 6);
        free(area);
        stage_destroy(stage);
        model_close(model);
        device_close(device);
    }
}

/* Makes a copy of the test model folder nf4/double in which every `from` in `file` is replaced by `to`, a
 * text of the same length. Fails unless opening the copy, or reading one of its weights, is refused with an
 * error that contains `says`. */
static void altered(const char *file, const char *from, const char *to, const char *says)
{
    static const char *const files[] = {"config.json", "model.safetensors"};
    struct scratch scratch;
    struct model *model = NULL;
    struct err err = {0};
    float *values = malloc(4 * 72 * 288);
    bool found = false;
    assert_int_equal(strlen(from), strlen(to));
    assert_int_equal(scratch_make(&scratch), 0);
    for (int f = 0; f < 2; f++) {
        char path[600];
        struct buf bytes = {.limit = 1 << 22};
        snprintf(path, sizeof(path), "%s/nf4/double/%s", MOTLEY_TEST_DATA, files[f]);
        check(file_read_all(path, bytes.limit, &bytes, &err));
        for (size_t at = 0; strcmp(files[f], file) == 0 && at + strlen(from) <= bytes.size; at++)
            if (memcmp(bytes.data + at, from, strlen(from)) == 0) {
                memcpy(bytes.data + at, to, strlen(to));
                found = true;
            }
        check(file_write_atomic(scratch_path(&scratch, files[f]), bytes.data, bytes.size, 0600, &err));
        buf_fini(&bytes);
    }
    assert_true(found);
    int status = model_open_path(scratch.dir, &model, &err);
    if (status == 0) {
        const struct model_tensor *tensor = model_tensor_find(model, "model.layers.0.mlp.up_proj.weight");
        status = model_tensor_read_f32(model, tensor, 0, tensor->rows, values, &err);
    }
    if (status == 0 || !strstr(err.text, says))
        fail_msg("%s for %s: %s, not \"%s\"", to, from, status == 0 ? "accepted" : err.text, says);
    model_close(model);
    free(values);
    scratch_remove(&scratch);
}

static void other_ways_to_quantise_are_refused_by_name(void **state)
{
    (void)state;
    altered("config.json", "\"quant_method\": \"bitsandbytes\"", "\"quant_method\": \"gptq\"        ",
            "quantization_config.quant_method: weights quantised by \"gptq\"");
    altered("config.json", "\"quant_method\": \"bitsandbytes\"", "\"quant_method\": \"awq\"         ",
            "\"awq\"");
    altered("config.json", "\"quant_method\": \"bitsandbytes\"", "\"quant_method\": \"fp8\"         ",
            "\"fp8\"");
    altered("config.json", "\"bnb_4bit_quant_type\": \"nf4\"", "\"bnb_4bit_quant_type\": \"fp4\"",
            "bnb_4bit_quant_type: \"fp4\"");
    altered("config.json", "\"load_in_8bit\": false", "\"load_in_8bit\": true ", "load_in_8bit");
    altered("model.safetensors", "bitsandbytes__nf4", "bitsandbytes__fp4", "FP4 is not read");
    altered("model.safetensors", "\"blocksize\": 64,", "\"blocksize\": 32,",
            "quant_state says nf4 in blocks of 32");
    altered("model.safetensors", "\"shape\": [288, 72]", "\"shape\": [72, 288]", "quant_state.shape");
    altered("model.safetensors", "\"nested_offset\": 0.", "\"nested_offset\": x.", "up_proj.weight");
    altered("model.safetensors", "up_proj.weight.absmax", "up_proj.weight.absmay", "bytes of absmax");
    altered("model.safetensors", "up_proj.weight.nested_absmax", "up_proj.weight.nested_absmay", "bytes of");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_that_bitsandbytes_dequantises),
        cmocka_unit_test(losses_are_those_of_transformers),
        cmocka_unit_test(a_packed_base_gives_transformers_loss),
        cmocka_unit_test(what_is_skipped_is_part_of_the_models_description),
        cmocka_unit_test(a_base_holds_the_files_codes_and_scales),
        cmocka_unit_test(other_ways_to_quantise_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
