/* Compares models of odd and larger shapes with PyTorch on the kernels that users' models run on: heads that
 * no vector width divides, rows of 1 to 1,000 tokens, hidden sizes of 264 to 576. A formula that
 * tools/golden_wide.py shares gives the weights. */
#include "engine/golden.h"

#include <sys/stat.h>

#include "common/file.h"
#include "common/json.h"
#include "model/files/safetensors.h"
#include "support/scratch.h"

enum { TENSORS_MAX = 128, JSON_BYTES_MAX = 1 << 20 };

/* Returns 24 bits of the number `index` of splitmix64 (Steele, Lea, Flood 2014) with the given seed. */
static uint64_t mix(uint64_t seed, uint64_t index)
{
    uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return (z ^ (z >> 31)) >> 40;
}

/* Returns the 64-bit FNV-1a hash of a name. */
static uint64_t hash_of(const char *name)
{
    uint64_t hash = 0xCBF29CE484222325ull;
    for (; *name != '\0'; name++)
        hash = (hash ^ (uint8_t)*name) * 0x100000001B3ull;
    return hash;
}

/* Writes a safetensors file of the shapes {name: [sizes]}. Values of names with "norm" are around
 * `norm_centre`. */
static void tensors_write(const char *path, json_t *shapes, double norm_centre)
{
    struct safetensors_item items[TENSORS_MAX];
    const struct safetensors_meta meta = {"format", "pt"};
    struct err err;
    uint32_t count = 0;
    const char *name;
    json_t *shape;
    assert_in_range(json_object_size(shapes), 1, TENSORS_MAX);
    json_object_foreach (shapes, name, shape) {
        struct safetensors_item *item = &items[count++];
        uint64_t size = 1;
        *item = (struct safetensors_item){
            .name = name, .type = TENSOR_F32, .rank = (uint32_t)json_array_size(shape)};
        for (uint32_t i = 0; i < item->rank; i++)
            size *= item->shape[i] = (uint64_t)json_integer_value(json_array_get(shape, i));
        float *values = malloc(size * sizeof(*values));
        double centre = strstr(name, "norm") ? norm_centre : 0, spread = item->rank == 1 ? 0.3 : 0.12;
        uint64_t seed = hash_of(name);
        assert_non_null(values);
        for (uint64_t i = 0; i < size; i++)
            values[i] = (float)(centre + spread * ((double)mix(seed, i) / (1 << 24) - 0.5));
        item->data = values;
    }
    check(safetensors_write(path, items, count, &meta, 1, &err));
    for (uint32_t i = 0; i < count; i++)
        free((void *)(uintptr_t)items[i].data);
}

static void json_write(const char *path, const json_t *document)
{
    struct buf written = {.limit = JSON_BYTES_MAX};
    struct err err;
    check(json_print(document, false, &written, &err));
    check(file_write_atomic(path, written.data, written.size, 0600, &err));
    buf_fini(&written);
}

/* Makes the case's batches from the rows' lengths: {"ids", "labels"}, with the first token outside the loss.
 */
static void dataset_make(json_t *lengths, uint32_t vocab, struct dataset *data)
{
    json_t *batches = json_array(), *rows, *length;
    size_t b, r;
    json_array_foreach (lengths, b, rows) {
        json_t *all_ids = json_array(), *all_labels = json_array();
        json_array_foreach (rows, r, length) {
            json_t *ids = json_array(), *labels = json_array();
            for (json_int_t i = 0; i < json_integer_value(length); i++) {
                json_int_t id = (json_int_t)(mix(1000 * b + r, (uint64_t)i) % (vocab - 3) + 3);
                json_array_append_new(ids, json_integer(id));
                json_array_append_new(labels, json_integer(i == 0 ? -100 : id));
            }
            json_array_append_new(all_ids, ids);
            json_array_append_new(all_labels, labels);
        }
        json_array_append_new(batches, json_pack("{s:o, s:o}", "ids", all_ids, "labels", all_labels));
    }
    dataset_parse(batches, data);
    json_decref(batches);
}

/* Bounds for fp32 sums of up to 1,000 terms compared with fp64: ten times the measured errors. */
static const double loss_bound = 1e-5, norm_bound = 1e-4;

static void case_run(json_t *one, const char *kind, const struct scratch *scratch, struct train_options o)
{
    char model[512], adapter[512];
    bool lora = strcmp(kind, "lora") == 0;
    json_t *want = json_object_get(one, kind), *target;
    struct dataset data;
    struct trainer trainer;
    struct train_result result;
    size_t i;
    snprintf(model, sizeof(model), "%s", scratch->dir);
    snprintf(adapter, sizeof(adapter), "%s/adapter", scratch->dir);
    json_t *vocab = json_object_get(json_object_get(one, "config"), "vocab_size");
    dataset_make(json_object_get(one, "rows"), (uint32_t)json_integer_value(vocab), &data);
    o.model = model;
    o.data = &data;
    o.steps = (uint32_t)json_integer_value(json_object_get(one, "steps"));
    o.warmup = 1;
    o.full = !lora;
    o.peak_lr = lora ? 5e-3 : 1e-3;
    o.weight_decay = lora ? 0 : 0.1;
    if (lora) {
        o.adapter = adapter;
        o.lora = (struct lora_options){.rank = 6, .alpha = 12};
        json_array_foreach (json_object_get(one, "targets"), i, target)
            o.lora.targets |= lora_target_from_name(json_string_value(target));
    }
    struct device *device = device_make("cpu", 1 + o.cut_count);
    trainer_init(&trainer, device, &o);
    trainer_run(&trainer, &result);
    double loss = worst_relative(result.loss, json_object_get(want, "loss"), o.steps);
    double norm = worst_relative(result.norm, json_object_get(want, "grad_norm"), o.steps);
    print_message("    %s %s, %u stages: loss %.1e, norm %.1e\n",
                  json_string_value(json_object_get(one, "name")), kind, trainer.count, loss, norm);
    if (!(loss <= loss_bound && norm <= norm_bound))
        fail_msg("beyond %g and %g", loss_bound, norm_bound);
    trainer_fini(&trainer);
    device_close(device);
    dataset_free(&data);
}

static void odd_and_larger_shapes_match_fp64(void **state)
{
    (void)state;
    json_t *cases = json_of(MOTLEY_TEST_DATA "/golden/wide.json"), *one;
    size_t i;
    json_array_foreach (cases, i, one) {
        struct scratch scratch;
        assert_int_equal(scratch_make(&scratch), 0);
        json_write(scratch_path(&scratch, "config.json"), json_object_get(one, "config"));
        tensors_write(scratch_path(&scratch, "model.safetensors"), json_object_get(one, "tensors"),
                      json_number_value(json_object_get(one, "norm_centre")));
        assert_int_equal(mkdir(scratch_path(&scratch, "adapter"), 0700), 0);
        json_write(scratch_path(&scratch, "adapter/adapter_config.json"),
                   json_object_get(one, "adapter_config"));
        tensors_write(scratch_path(&scratch, "adapter/adapter_model.safetensors"),
                      json_object_get(one, "adapter"), 0);
        case_run(one, "full", &scratch, (struct train_options){0});
        case_run(one, "lora", &scratch, (struct train_options){0});
        case_run(
            one, "lora", &scratch,
            (struct train_options){.cuts = {2}, .cut_count = 1, .micro_batch_rows = 1, .recompute = true});
        scratch_remove(&scratch);
    }
    json_decref(cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(odd_and_larger_shapes_match_fp64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
