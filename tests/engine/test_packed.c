/* Training on a base of a GGUF's quantised blocks equals training on the fp32 base that the file unpacks to,
 * for matrices of every kind beside 16-bit and 32-bit ones, with rows of q and k permuted as llama.cpp does.
 * Memory is exact. Files whose blocks cannot be kept are refused by name. */
#include "engine/trainer.h"

#include "common/rand.h"
#include "model/packed_model.h"
#include "support/scratch.h"

enum { STEPS = 3, ROWS = 4 };

static const struct packed_model shapes[] = {
    /* A tied model: the embedding is also the head. */
    {.hidden = 256, .ffn = 512, .heads = 4, .kv_heads = 2, .tied = true},
    {.hidden = 512, .ffn = 768, .heads = 8, .kv_heads = 4, .tied = false},
    {.hidden = 256, .ffn = 256, .heads = 4, .kv_heads = 4, .tied = false, .experts = true},
};

static void data_make(struct dataset *data)
{
    struct rand_stream stream;
    rand_stream_init(&stream, 5, 0);
    memset(data, 0, sizeof(*data));
    data->count = STEPS;
    for (uint32_t i = 0; i < STEPS; i++) {
        struct batch *b = &data->batches[i];
        b->rows = ROWS;
        for (uint32_t row = 0; row < ROWS; row++)
            b->row_start[row + 1] = b->row_start[row] + 3 + rand_stream_below(&stream, 20);
        b->ids = calloc(b->row_start[ROWS], sizeof(*b->ids));
        b->labels = calloc(b->row_start[ROWS], sizeof(*b->labels));
        for (uint32_t t = 0; t < b->row_start[ROWS]; t++)
            b->labels[t] = b->ids[t] = (int32_t)rand_stream_below(&stream, PACKED_VOCAB);
    }
}

static struct train_options options_of(const char *path, const struct dataset *data, enum layer_base base)
{
    return (struct train_options){
        .model = path,
        .data = data,
        .base = base,
        .lora = {.rank = 4, .alpha = 8, .targets = LORA_ALL | LORA_TABLES | LORA_EXPERTS},
        .steps = STEPS,
        .warmup = 1,
        .peak_lr = 1e-3,
        .seed = 3};
}

static void train(const struct train_options *o, struct train_result *result)
{
    struct trainer t;
    struct device *device =
        device_make(getenv("MOTLEY_TEST_DEVICE") ? getenv("MOTLEY_TEST_DEVICE") : "cpu", 2);
    trainer_init(&t, device, o);
    trainer_run(&t, result);
    trainer_fini(&t);
    device_close(device);
}

static void a_packed_base_trains_as_the_fp32_base_that_it_unpacks_to(void **state)
{
    (void)state;
    struct scratch scratch;
    struct dataset data;
    struct err err;
    assert_int_equal(scratch_make(&scratch), 0);
    data_make(&data);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const char *path = scratch_path(&scratch, "packed.gguf");
        struct train_result want, got, cut;
        double worst = 0;
        check(packed_model_write(&shapes[i], 11 + i, path, &err));
        struct train_options fp32 = options_of(path, &data, LAYER_BASE_F32),
                             packed = options_of(path, &data, LAYER_BASE_PACKED), split = packed;
        split.cut_count = 1;
        split.cuts[0] = 2;
        split.split = true;
        split.part_blocks = 1;
        split.micro_batch_rows = 2;
        train(&fp32, &want);
        train(&packed, &got);
        train(&split, &cut);
        assert_true(want.loss[0] > 3 && want.loss[0] < 12);
        assert_true(fabs(want.loss[2] - want.loss[0]) > 1e-4);
        for (uint32_t t = 0; t < STEPS; t++) {
            worst = fmax(worst, fabs(got.loss[t] - want.loss[t]) / want.loss[t]);
            worst = fmax(worst, fabs(got.norm[t] - want.norm[t]) / want.norm[t]);
            assert_true(fabs(cut.loss[t] - want.loss[t]) <= 2e-5 * want.loss[t]);
        }
        print_message("hidden %u%s: losses %.6f … %.6f, packed beside fp32 %.2g relative\n", shapes[i].hidden,
                      shapes[i].experts ? ", experts" : "", want.loss[0], want.loss[STEPS - 1], worst);
        assert_true(worst <= 1e-6);
    }
    dataset_free(&data);
    scratch_remove(&scratch);
}

/* Returns the file's bytes of the tensors in blocks [begin, end); each copy begins at a multiple of 64 bytes.
 */
static uint64_t file_bytes(const struct model *model, uint32_t begin, uint32_t end)
{
    struct model_range *ranges;
    struct err err;
    uint32_t count;
    uint64_t bytes = 0;
    check(model_block_ranges(model, begin, end, &ranges, &count, &err));
    for (uint32_t i = 0; i < count; i++)
        bytes += ranges[i].size;
    free(ranges);
    return bytes;
}

static void memory_is_the_files_blocks_to_the_byte(void **state)
{
    (void)state;
    struct scratch scratch;
    struct err err;
    assert_int_equal(scratch_make(&scratch), 0);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const char *path = scratch_path(&scratch, "packed.gguf");
        struct model *model;
        check(packed_model_write(&shapes[i], 21 + i, path, &err));
        check(model_open_path(path, &model, &err));
        const struct model_config *config = model_get_config(model);
        assert_int_equal(config->packing.ways, PACKED_LAYERS);
        for (uint32_t cut = 1; cut <= PACKED_LAYERS + 1; cut++) {
            struct device *device = device_make("cpu", 1);
            struct stage_memory predicted;
            struct mem_account account;
            struct stage *stage;
            struct stage_options o = {
                .config = config,
                .block_begin = cut % 2 ? 0 : cut,
                .block_end = cut % 2 ? cut : PACKED_LAYERS + 2,
                .lora = {.rank = 4, .alpha = 8, .targets = LORA_ALL | LORA_TABLES | LORA_EXPERTS},
                .base = LAYER_BASE_PACKED,
                .micro_batches_in_flight = 2,
                .tokens_max = 50};
            check(stage_memory_predict(&o, &predicted, &err));
            check(stage_create(device, model, &o, &stage, &err));
            device_memory(device, &account);
            for (int p = 0; p < MEM_PURPOSES; p++)
                assert_int_equal(account.held[p], predicted.bytes[p]);
            /* Beside the file's bytes there are rotary tables, and for alignment at most 64 bytes a tensor
             * and a page a buffer. */
            uint64_t rotary = 4ull * 50 * 64, blocks = o.block_end - o.block_begin;
            uint64_t file = file_bytes(model, o.block_begin, o.block_end);
            assert_in_range(account.held[MEM_WEIGHTS], file,
                            file + rotary + blocks * (64 * 9 * PACKED_EXPERTS + 4096) + 4096);
            stage_destroy(stage);
            device_close(device);
        }
        model_close(model);
    }
    scratch_remove(&scratch);
}

static void refused(const struct model_config *config, struct model *model, enum err_code code,
                    const char *word)
{
    struct err err;
    struct stage *stage;
    struct device *device = device_make("cpu", 1);
    struct stage_options o = {
        .config = config,
        .block_end = config->layers + 2,
        .lora = {.rank = 4, .alpha = 8, .targets = LORA_ALL | LORA_TABLES | LORA_EXPERTS},
        .base = LAYER_BASE_PACKED,
        .tokens_max = 8};
    assert_int_equal(stage_create(device, model, &o, &stage, &err), -1);
    if (err.code != code || !strstr(err.text, word))
        fail_msg("\"%s\" (%d), not \"%s\" (%d)", err.text, err.code, word, code);
    device_close(device);
}

static void what_cannot_be_kept_packed_is_refused_by_name(void **state)
{
    (void)state;
    struct scratch scratch;
    struct err err;
    struct model *model;
    struct packed_model plain = shapes[0];
    assert_int_equal(scratch_make(&scratch), 0);
    const char *path = scratch_path(&scratch, "packed.gguf");
    plain.plain = true;
    check(packed_model_write(&plain, 1, path, &err));
    check(model_open_path(path, &model, &err));
    refused(model_get_config(model), model, ERR_UNSUPPORTED, "method.base");
    model_close(model);
    /* This is the description of another file. */
    check(packed_model_write(&shapes[0], 1, path, &err));
    check(model_open_path(path, &model, &err));
    struct model_config other = *model_get_config(model);
    other.packing.matrix[0][0] = PACK_Q5_K;
    refused(&other, model, ERR_INVALID, "model.layers.0.self_attn.q_proj.weight is Q4_K");
    model_close(model);
    /* Puts an infinite scale into the last block of the last layer's up_proj (Q5_K). */
    struct buf bytes = {.limit = 1 << 24};
    check(file_read_all(path, bytes.limit, &bytes, &err));
    check(model_open_path(path, &model, &err));
    const struct model_tensor *tensor = model_tensor_find(model, "model.layers.2.mlp.up_proj.weight");
    assert_non_null(tensor);
    uint64_t last = tensor->offset + tensor->size - tensor_type_block_bytes(tensor->type);
    model_close(model);
    bytes.data[last + 1] = 0x7c;
    check(file_write_atomic(path, bytes.data, bytes.size, 0600, &err));
    check(model_open_path(path, &model, &err));
    refused(model_get_config(model), model, ERR_NOT_FINITE, "model.layers.2.mlp.up_proj.weight");
    model_close(model);
    buf_fini(&bytes);
    scratch_remove(&scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_packed_base_trains_as_the_fp32_base_that_it_unpacks_to),
        cmocka_unit_test(memory_is_the_files_blocks_to_the_byte),
        cmocka_unit_test(what_cannot_be_kept_packed_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
