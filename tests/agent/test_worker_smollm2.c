/* SmolLM2-135M through worker processes, whole and split over unlike instruction sets, against PyTorch in
 * double precision. Needs the model (.cache/, or MOTLEY_SMOLLM2) and the golden files (MOTLEY_GOLDEN, or
 * golden/smollm2 in
 * ../shared); skips visibly without. */
#include "agent/worker_fixture.h"

#include "model/safetensors.h"

static char model_path[512], golden[512], program[512];

static bool find_files(void)
{
    const char *source = getenv("MOTLEY_SOURCE"), *bin = getenv("MOTLEY_BIN"), *dir = getenv("MOTLEY_GOLDEN");
    const char *model = getenv("MOTLEY_SMOLLM2");
    snprintf(model_path, sizeof model_path, "%s%s",
             model    ? model
             : source ? source
                      : ".",
             model ? "" : "/.cache/SmolLM2-135M-Instruct.Q4_1.gguf");
    snprintf(golden, sizeof golden, "%s%s",
             dir      ? dir
             : source ? source
                      : ".",
             dir ? "" : "/../shared/golden/smollm2");
    snprintf(program, sizeof program, "%s/motley-worker", bin ? bin : "bin");
    return file_exists(model_path) && file_exists(golden) && file_exists(program);
}

/* ‖ours − golden‖ / ‖golden‖ over all tensors. */
static double adapter_distance(const struct fixture *fix, const struct outcome *out)
{
    struct err err;
    char path[600];
    struct safetensors *ours = NULL, *theirs = NULL;
    const json_t *file = json_object_get(out->artifacts, "adapter/adapter_model.safetensors");
    double difference = 0, size = 0;
    snprintf(path, sizeof path, "%s/%s", fix->store.dir, json_string_value(json_object_get(file, "sha256")));
    must(safetensors_open_path(path, &ours, &err));
    snprintf(path, sizeof path, "%s/adapter_after_20/adapter_model.safetensors", golden);
    must(safetensors_open_path(path, &theirs, &err));
    assert_int_equal(safetensors_count(ours), safetensors_count(theirs));
    for (uint32_t t = 0; t < safetensors_count(theirs); t++) {
        const struct safetensors_tensor *want = safetensors_at(theirs, t),
                                        *got = safetensors_find(ours, want->name);
        assert_non_null(got);
        uint64_t count = want->shape[0] * want->shape[1];
        float *a = calloc(count, sizeof *a), *b = calloc(count, sizeof *b);
        must(safetensors_read_f32(ours, got, a, count, &err));
        must(safetensors_read_f32(theirs, want, b, count, &err));
        for (uint64_t i = 0; i < count; i++) {
            difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
            size += (double)b[i] * b[i];
        }
        free(a);
        free(b);
    }
    safetensors_close(ours);
    safetensors_close(theirs);
    return sqrt(difference / size);
}

static void run_split(uint32_t stages, uint32_t micro_rows, const char *first, const char *second)
{
    struct fixture fix;
    struct outcome out;
    char expected[600], adapter[600];
    snprintf(expected, sizeof expected, "%.500s/train.json", golden);
    snprintf(adapter, sizeof adapter, "%.500s/adapter_init", golden);
    fix_open_files(&fix, model_path, expected, adapter);
    fix.program = program;
    fix.isa[0] = first;
    fix.isa[1] = second;
    json_t *spec = fix_spec(&fix);
    struct plan *plan = fix_plan(&fix, stages, micro_rows);
    fix_run(&fix, plan, spec, NULL, NULL, NULL, &out);
    if (json_array_size(out.failures))
        fail_msg("%s", json_string_value(json_object_get(json_array_get(out.failures, 0), "text")));
    double worst_loss = 0, worst_norm = 0;
    assert_int_equal(out.steps, 20);
    for (uint64_t t = 0; t < out.steps; t++) {
        double loss = fix_golden(&fix, "loss", t), norm = fix_golden(&fix, "grad_norm", t);
        worst_loss = fmax(worst_loss, fabs(out.loss[t] - loss) / loss);
        worst_norm = fmax(worst_norm, fabs(out.norm[t] - norm) / norm);
    }
    double distance = adapter_distance(&fix, &out);
    print_message("%u stages, micro-batches of %u: loss %.2g, norm %.2g, adapter %.2g\n", stages, micro_rows,
                  worst_loss, worst_norm, distance);
    assert_true(worst_loss <= 1e-4);
    assert_true(worst_norm <= 2e-4);
    assert_true(distance <= 1e-3);
    outcome_fini(&out);
    plan_destroy(plan);
    json_decref(spec);
    fix_close(&fix);
}

static void two_unlike_devices_train_smollm2_as_pytorch_does(void **state)
{
    (void)state;
    if (!find_files()) {
        print_message("SKIP: no %s or no %s\n", model_path, golden);
        skip();
    }
    run_split(2, 1, "native", "avx2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_unlike_devices_train_smollm2_as_pytorch_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
