/* Compares a real model, SmolLM2-135M from its GGUF, with PyTorch. It needs the model (MOTLEY_SMOLLM2, a
 * .gguf) and the golden files (MOTLEY_GOLDEN, or golden/smollm2 in ../shared), and skips visibly without
 * them. */
#include "engine/trainer.h"

static char golden[1024];
static const char *model_path;

static void path_of(char path[1200], const char *name)
{
    snprintf(path, 1200, "%s/%s", golden, name);
}

static bool available(void)
{
    const char *dir = getenv("MOTLEY_GOLDEN"), *source = getenv("MOTLEY_SOURCE");
    static char fetched[1200];
    char file[1200];
    if (dir)
        snprintf(golden, sizeof(golden), "%s/smollm2", dir);
    else
        snprintf(golden, sizeof(golden), "%s/../shared/golden/smollm2", !source ? "." : source);
    path_of(file, "train.json");
    model_path = getenv("MOTLEY_SMOLLM2");
    if (!model_path) {
        snprintf(fetched, sizeof(fetched), "%s/.cache/SmolLM2-135M-Instruct.Q4_1.gguf",
                 !source ? "." : source);
        model_path = fetched;
    }
    return model_path && access(model_path, R_OK) == 0 && access(file, R_OK) == 0;
}

static uint32_t ids_of(json_t *list, int32_t *ids, uint32_t max)
{
    uint32_t count = (uint32_t)json_array_size(list);
    assert_in_range(count, 1, max);
    for (uint32_t i = 0; i < count; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return count;
}

struct split_model {
    struct device *device;
    struct model *model;
    struct stage *stages[2];
    struct kv_cache *caches[2];
    struct buffer *between;
    uint32_t count;
};

static void split_open(struct split_model *m, uint32_t cut)
{
    struct err err;
    memset(m, 0, sizeof(*m));
    m->device = device_make("cpu", 2);
    check(model_open_path(model_path, &m->model, &err));
    const struct model_config *config = model_get_config(m->model);
    m->count = cut == 0 ? 1 : 2;
    for (uint32_t s = 0; s < m->count; s++) {
        struct stage_options o = {.config = config,
                                  .mode = STAGE_INFER,
                                  .tokens_max = 64,
                                  .positions_max = 128,
                                  .block_begin = s == 0 ? 0 : cut,
                                  .block_end = s + 1 < m->count ? cut : config->layers + 2};
        check(stage_create(m->device, m->model, &o, &m->stages[s], &err));
        check(kv_cache_create(m->stages[s], 128, &m->caches[s], &err));
    }
    check(buffer_create(m->device, 4ull * 64 * config->hidden, MEM_BUFFERS, "hidden states", &m->between,
                        &err));
}

static void split_close(struct split_model *m)
{
    for (uint32_t s = 0; s < m->count; s++) {
        kv_cache_destroy(m->caches[s]);
        stage_destroy(m->stages[s]);
    }
    buffer_destroy(m->between);
    model_close(m->model);
    device_close(m->device);
}

static void split_infer(struct split_model *m, const int32_t *ids, uint32_t tokens, float *logits)
{
    struct err err;
    if (m->count == 2)
        check(stage_infer(m->stages[0], m->caches[0], ids, tokens, NULL, m->between, NULL, &err));
    check(stage_infer(m->stages[m->count - 1], m->caches[m->count - 1], ids, tokens, m->between, NULL, logits,
                      &err));
}

static void greedy_matches(uint32_t cut)
{
    char path[1200];
    path_of(path, "forward.json");
    json_t *document = json_of(path), *greedy = json_object_get(document, "greedy");
    int32_t prompt[64], want[64];
    uint32_t tokens = ids_of(json_object_get(greedy, "prompt_ids"), prompt, 64);
    json_t *continuation = json_object_get(greedy, "new_ids") ? json_object_get(greedy, "new_ids")
                                                              : json_object_get(greedy, "ids");
    uint32_t count = ids_of(continuation, want, 64);
    struct split_model m;
    split_open(&m, cut);
    float *logits = malloc(4ull * model_get_config(m.model)->vocab);
    split_infer(&m, prompt, tokens, logits);
    for (uint32_t i = 0; i < count; i++) {
        int32_t next = sample_greedy(logits, model_get_config(m.model)->vocab);
        assert_int_equal(next, want[i]);
        split_infer(&m, &next, 1, logits);
    }
    print_message("    %u greedy tokens as PyTorch's, %u stages\n", count, m.count);
    free(logits);
    split_close(&m);
    json_decref(document);
}

static void greedy_tokens_match_whole_and_split(void **state)
{
    (void)state;
    if (!available())
        skip();
    greedy_matches(0);
    greedy_matches(11);
}

static void logits_and_top_tokens_match(void **state)
{
    (void)state;
    struct err err;
    char path[1200];
    if (!available())
        skip();
    path_of(path, "forward.json");
    json_t *document = json_of(path), *texts = json_object_get(document, "forward");
    struct safetensors *st;
    path_of(path, "logits.safetensors");
    check(safetensors_open_path(path, &st, &err));
    struct split_model m;
    split_open(&m, 0);
    uint32_t vocab = model_get_config(m.model)->vocab;
    float *got = malloc(4ull * vocab), *want = malloc(4ull * vocab);
    for (uint32_t k = 0; k < json_array_size(texts); k++) {
        int32_t ids[64], top[8];
        char name[32];
        uint32_t tokens = ids_of(json_object_get(json_array_get(texts, k), "ids"), ids, 64);
        ids_of(json_object_get(json_array_get(texts, k), "top_ids"), top, 8);
        kv_cache_clear(m.caches[0]);
        split_infer(&m, ids, tokens, got);
        snprintf(name, sizeof(name), "logits_last.%u", k);
        check(safetensors_read_f32(st, safetensors_find(st, name), want, vocab, &err));
        double worst = 0;
        for (uint32_t i = 0; i < vocab; i++)
            worst = fmax(worst, fabs((double)got[i] - (double)want[i]));
        print_message("    text %u: logits off by at most %.1e\n", k, worst);
        assert_true(worst <= 1e-3);
        for (int i = 0; i < 8; i++) {
            int32_t best = sample_greedy(got, vocab);
            assert_int_equal(best, top[i]);
            got[best] = -INFINITY;
        }
    }
    free(got);
    free(want);
    safetensors_close(st);
    split_close(&m);
    json_decref(document);
}

static void train(struct train_options *o, struct dataset *data, uint32_t threads,
                  struct train_result *result, double *adapter)
{
    char init[1200], after[1200];
    struct trainer trainer;
    path_of(init, "adapter_init");
    path_of(after, "adapter_after_20");
    o->model = model_path;
    o->adapter = init;
    o->data = data;
    o->lora = (struct lora_options){.rank = 16, .alpha = 32, .targets = LORA_Q | LORA_K | LORA_V | LORA_O};
    o->warmup = 4;
    o->peak_lr = 1e-3;
    struct device *device = device_make("cpu", threads);
    trainer_init(&trainer, device, o);
    trainer_run(&trainer, result);
    if (adapter)
        *adapter = adapter_distance(&trainer, after, init, false, 0);
    trainer_fini(&trainer);
    device_close(device);
}

/* Returns how many steps are run: `make equality` (MOTLEY_EQUALITY) runs all of PyTorch's run, and so does
 * tests/system/test_golden_smollm2.py there, through the service. */
static uint32_t steps_of(uint32_t everything, uint32_t sample)
{
    return getenv("MOTLEY_EQUALITY") ? everything : sample;
}

/* Compares the first `steps` of PyTorch's run and, when `gradients` names a file, the first step's gradients.
 */
static void steps_match(const char *kind, const char *gradients, struct train_options o, double bound)
{
    char path[1200], gradient_path[1200];
    path_of(path, "train.json");
    path_of(gradient_path, gradients ? gradients : "");
    json_t *document = json_of(path), *want = json_object_get(document, kind);
    struct dataset data;
    struct train_result result;
    double adapter, loss = 0, norm = 0;
    dataset_parse(json_object_get(document, "batches"), &data);
    o.gradients = gradients ? gradient_path : NULL;
    o.gradient_tolerance = 1e-3;
    train(&o, &data, 2, &result, &adapter);
    for (uint32_t i = 0; i < o.steps; i++) {
        double l = json_real_value(json_array_get(json_object_get(want, "loss"), i));
        double g = json_real_value(json_array_get(json_object_get(want, "grad_norm"), i));
        loss = fmax(loss, fabs(result.loss[i] - l) / l);
        norm = fmax(norm, fabs(result.norm[i] - g) / g);
    }
    print_message("    %s, %u steps: loss %.1e, norm %.1e, adapter %.1e\n", kind, o.steps, loss, norm,
                  adapter);
    assert_true(loss <= bound);
    assert_true(norm <= 2 * bound);
    assert_true(o.steps < 20 || adapter <= 10 * bound);
    dataset_free(&data);
    json_decref(document);
}

static void steps_match_pytorchs(void **state)
{
    (void)state;
    if (!available())
        skip();
    steps_match("lora_fp64", "grads_lora_step0.safetensors", (struct train_options){.steps = steps_of(20, 2)},
                1e-4);
}

static void steps_on_an_nf4_base_match(void **state)
{
    (void)state;
    if (!available())
        skip();
    steps_match("lora_nf4", NULL,
                (struct train_options){.steps = steps_of(6, 2), .base = LAYER_BASE_NF4, .double_quant = true},
                3e-4);
}

static void splits_agree_to_1e7(void **state)
{
    (void)state;
    char path[1200];
    if (!available())
        skip();
    path_of(path, "train.json");
    json_t *document = json_of(path);
    struct dataset data;
    struct train_result whole, split;
    dataset_parse(json_object_get(document, "batches"), &data);
    const uint32_t steps = steps_of(3, 2), rows = steps_of(4, 2);
    for (uint32_t b = 0; b < data.count; b++)
        data.batches[b].rows = rows;
    struct train_options o = {.steps = steps, .micro_batch_rows = rows / 2};
    train(&o, &data, 1, &whole, NULL);
    o = (struct train_options){
        .steps = steps, .micro_batch_rows = rows / 2, .cuts = {9, 20, 31}, .cut_count = 3, .recompute = true};
    train(&o, &data, 1, &split, NULL);
    for (uint32_t i = 0; i < steps; i++) {
        print_message("    step %u: %.9f, %.9f in four stages\n", i, whole.loss[i], split.loss[i]);
        assert_true(fabs(split.loss[i] - whole.loss[i]) <= 1e-7 * whole.loss[i]);
    }
    dataset_free(&data);
    json_decref(document);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_and_top_tokens_match), cmocka_unit_test(greedy_tokens_match_whole_and_split),
        cmocka_unit_test(splits_agree_to_1e7),         cmocka_unit_test(steps_match_pytorchs),
        cmocka_unit_test(steps_on_an_nf4_base_match),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
