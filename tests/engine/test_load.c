/* Tests loading by helper threads: items and the first error come in order, any number of threads gives the
 * same bits, and 16-bit files are read as they are. */
#include "engine/trainer.h"

#include <stdatomic.h>

#include "common/half.h"
#include "common/rand.h"
#include "engine/stage/ahead.h"

/* --- items --- */

enum { ITEMS = 1000 };

struct items {
    uint32_t described, used, fail_prepare, fail_use; /* fail_…: the item that fails; ITEMS: none */
    uint32_t slots[AHEAD_SLOTS_MAX];
    atomic_uint prepared[ITEMS];
};

static bool item_next(void *context, uint32_t slot)
{
    struct items *items = context;
    if (items->described == ITEMS)
        return false;
    items->slots[slot] = items->described++;
    return true;
}

static int item_prepare(void *context, uint32_t slot, struct err *err)
{
    struct items *items = context;
    uint32_t item = items->slots[slot];
    items->prepared[item]++;
    return item >= items->fail_prepare ? err_set(err, ERR_CORRUPT, "item %u", item) : 0;
}

static int item_use(void *context, uint32_t slot, struct err *err)
{
    struct items *items = context;
    assert_int_equal(items->slots[slot], items->used);
    assert_int_equal(items->prepared[items->used], 1);
    return items->used++ == items->fail_use ? err_set(err, ERR_IO, "used %u", items->used - 1) : 0;
}

static int items_run(struct items *items, uint32_t threads, uint32_t slots, struct err *err)
{
    struct ahead ahead = {.threads = threads,
                          .slots = slots,
                          .context = items,
                          .next = item_next,
                          .prepare = item_prepare,
                          .use = item_use};
    memset(items->prepared, 0, sizeof(items->prepared));
    items->described = items->used = 0;
    return ahead_run(&ahead, err);
}

static void items_are_used_in_order_and_the_first_failure_ends_them(void **state)
{
    (void)state;
    static struct items items;
    struct err err;
    for (uint32_t threads = 1; threads <= AHEAD_THREADS_MAX; threads++)
        for (uint32_t slots = 1; slots <= AHEAD_SLOTS_MAX; slots += 3) {
            items.fail_prepare = items.fail_use = ITEMS;
            check(items_run(&items, threads, slots, &err));
            assert_int_equal(items.used, ITEMS);
            items.fail_prepare = 500;
            assert_int_equal(items_run(&items, threads, slots, &err), -1);
            assert_string_equal(err.text, "item 500");
            assert_int_equal(items.used, 500);
            assert_in_range(items.described, 501, 500 + slots);
            items.fail_use = 20;
            assert_int_equal(items_run(&items, threads, slots, &err), -1);
            assert_string_equal(err.text, "used 20");
        }
}

/* --- stages --- */

/* The large matrices exceed one piece of loading (1 MiB of f32). Rows of 6016 values are whole NF4 blocks of
 * 64, rows of 100 are not. */
static const struct model_config model = {
    .arch = MODEL_LLAMA,
    .hidden = 100,
    .layers = 1,
    .heads = 5,
    .kv_heads = 5,
    .head_dim = 20,
    .ffn = 6016,
    .vocab = 5500,
    .max_positions = 64,
    .norm_eps = 1e-5,
    .rope = {.theta = 10000, .kind = ROPE_DEFAULT, .factor = 1},
    .tied = true,
};

struct values {
    enum pack_kind packing; /* the packing that the source reports for all matrices */
    const char *poisoned;
    uint64_t poisoned_row;
    uint16_t poison;
    atomic_uint packed_reads;
};

static uint64_t columns_of(const char *name)
{
    return strstr(name, "norm") ? 1 : strstr(name, "down_proj") ? model.ffn : model.hidden;
}

/* Returns values that bf16 and fp16 represent exactly. */
static float value_of(const char *name, uint64_t row, uint64_t column)
{
    uint64_t hash = (row * 6151 + column + 1) * 0x9E3779B97F4A7C15ull + (uint8_t)name[strlen(name) - 9];
    hash ^= hash >> 29;
    return (float)((int)(hash % 255) - 127) / 1024;
}

static int values_read(void *context, const char *name, uint64_t begin, uint64_t end, float *dst,
                       struct err *err)
{
    uint64_t columns = columns_of(name);
    (void)context;
    (void)err;
    for (uint64_t row = begin; row < end; row++)
        for (uint64_t i = 0; i < columns; i++)
            *dst++ = columns == 1 ? 1 : value_of(name, row, i);
    return 0;
}

static int values_read_packed(void *context, const char *name, enum pack_kind pack, uint64_t begin,
                              uint64_t end, uint32_t columns, uint8_t *dst, struct err *err)
{
    struct values *values = context;
    uint16_t *half = (uint16_t *)(void *)dst;
    (void)err;
    values->packed_reads++;
    assert_int_equal(pack, values->packing);
    assert_int_equal(columns, columns_of(name));
    for (uint64_t row = begin; row < end; row++)
        for (uint64_t i = 0; i < columns; i++, half++) {
            float value = value_of(name, row, i);
            *half = pack == PACK_BF16 ? bf16_from_f32(value) : f16_from_f32(value);
            if (values->poisoned && strcmp(name, values->poisoned) == 0 && row == values->poisoned_row &&
                i == columns - 1)
                *half = values->poison;
        }
    return 0;
}

static enum pack_kind values_packing(void *context, const char *name)
{
    return columns_of(name) == 1 ? PACK_F32 : ((const struct values *)context)->packing;
}

static struct stage_options options_of(enum layer_base base)
{
    return (struct stage_options){
        .config = &model,
        .block_end = 3,
        .mode = STAGE_TRAIN,
        .lora = {.rank = 2, .alpha = 4, .targets = LORA_Q | LORA_DOWN},
        .base = base,
        .double_quant = true,
        .seed = 1,
        .micro_batches_in_flight = 1,
        .tokens_max = 32,
    };
}

/* Returns a hash of one step's gradients, which every weight influences. */
static uint64_t step_of(struct device *device, const struct weight_source *source, enum layer_base base,
                        float *gradients)
{
    struct err err;
    struct stage *stage;
    struct saved *saved;
    struct stage_options options = options_of(base);
    int32_t ids[32];
    for (int i = 0; i < 32; i++)
        ids[i] = (i * 1181) % (int)model.vocab;
    const uint32_t row_ids[] = {0}, row_start[] = {0, 32};
    struct micro_batch batch = {
        .rows = 1, .row_ids = row_ids, .row_start = row_start, .ids = ids, .labels = ids};
    check(stage_create_from(device, source, &options, &stage, &err));
    check(stage_step_begin(stage, &err));
    check(stage_forward(stage, &batch, NULL, NULL, &saved, &err));
    check(stage_backward(stage, &batch, saved, NULL, NULL, &err));
    uint64_t count = 0;
    for (uint32_t i = 0; i < stage_parameter_count(stage); i++) {
        struct parameter p = stage_parameter_at(stage, i);
        check(stage_state_read(stage, i, STATE_GRADIENT, gradients + count, &err));
        count += (uint64_t)p.rows * p.columns;
    }
    stage_destroy(stage);
    return count;
}

static struct device *device_of(uint32_t threads)
{
    struct err err;
    struct device *device;
    struct device_options options = {.kind = "cpu", .name = "load", .threads = threads};
    check(device_open(&options, &device, &err));
    return device;
}

static void threads_and_16_bit_files_change_no_bit(void **state)
{
    (void)state;
    static const enum layer_base bases[] = {LAYER_BASE_F32, LAYER_BASE_BF16, LAYER_BASE_F16, LAYER_BASE_NF4};
    static const enum pack_kind packings[] = {PACK_F32, PACK_BF16, PACK_F16, PACK_F32};
    float *one = calloc(1 << 16, 4), *other = calloc(1 << 16, 4);
    for (size_t b = 0; b < sizeof(bases) / sizeof(*bases); b++)
        for (uint32_t threads = 1; threads <= 4; threads *= 4) {
            struct device *device = device_of(threads);
            struct weight_source plain = {.read = values_read};
            uint64_t count = step_of(device, &plain, bases[b], threads == 1 ? one : other);
            assert_in_range(count, 1, 1 << 16);
            if (threads > 1)
                assert_memory_equal(one, other, count * 4);
            struct values values = {.packing = packings[b]};
            struct weight_source packed = {.read = values_read,
                                           .read_packed = values_read_packed,
                                           .packing = values_packing,
                                           .context = &values};
            step_of(device, &packed, bases[b], other);
            assert_memory_equal(one, other, count * 4);
            assert_int_equal(values.packed_reads > 0, packings[b] != PACK_F32);
            device_close(device);
        }
    free(one);
    free(other);
}

static void a_16_bit_value_that_is_not_finite_is_named(void **state)
{
    (void)state;
    static const struct {
        enum layer_base base;
        enum pack_kind packing;
        uint16_t poison;
    } cases[] = {{LAYER_BASE_BF16, PACK_BF16, 0xff80},
                 {LAYER_BASE_BF16, PACK_BF16, 0x7fc1},
                 {LAYER_BASE_F16, PACK_F16, 0xfc00},
                 {LAYER_BASE_F16, PACK_F16, 0x7e01}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct err err;
        struct stage *stage;
        struct device *device = device_of(2);
        struct stage_options options = options_of(cases[i].base);
        struct values values = {.packing = cases[i].packing,
                                .poisoned = "model.layers.0.mlp.gate_proj.weight",
                                .poisoned_row = model.ffn - 1,
                                .poison = cases[i].poison};
        struct weight_source source = {.read = values_read,
                                       .read_packed = values_read_packed,
                                       .packing = values_packing,
                                       .context = &values};
        assert_int_equal(stage_create_from(device, &source, &options, &stage, &err), -1);
        assert_int_equal(err.code, ERR_NOT_FINITE);
        assert_non_null(strstr(err.text, values.poisoned));
        device_close(device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_are_used_in_order_and_the_first_failure_ends_them),
        cmocka_unit_test(threads_and_16_bit_files_change_no_bit),
        cmocka_unit_test(a_16_bit_value_that_is_not_finite_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
