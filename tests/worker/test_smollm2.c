/* Runs SmolLM2-135M through worker processes, whole and split over different instruction sets, and compares
 * with PyTorch in double precision. Needs the model (.cache/, or MOTLEY_SMOLLM2) and the golden files
 * (MOTLEY_GOLDEN, or golden/smollm2 in ../shared); prints a skip without them. */
#include "worker/worker_fixture.h"

static char model_path[512], golden[512], program[512];

static bool find_files(void)
{
    const char *source = getenv("MOTLEY_SOURCE"), *bin = getenv("MOTLEY_BIN"), *dir = getenv("MOTLEY_GOLDEN");
    const char *model = getenv("MOTLEY_SMOLLM2");
    snprintf(model_path, sizeof(model_path), "%s%s",
             model    ? model
             : source ? source
                      : ".",
             model ? "" : "/.cache/SmolLM2-135M-Instruct.Q4_1.gguf");
    snprintf(golden, sizeof(golden), "%s%s",
             dir      ? dir
             : source ? source
                      : ".",
             dir ? "" : "/../shared/golden/smollm2");
    snprintf(program, sizeof(program), "%s/motley-worker", bin ? bin : "bin");
    return file_exists(model_path) && file_exists(golden) && file_exists(program);
}

/* tests/system/test_golden_smollm2.py checks the other steps of the 20, and the adapter. */
enum { STEPS = 5 };

static void stop_after_steps(void *arg, struct fix_worker *workers, uint32_t rank, const json_t *event)
{
    bool *sent = arg;
    const char *type = json_string_value(json_object_get(event, "type"));
    if (*sent || strcmp(type, "step") != 0 || json_integer_value(json_object_get(event, "step")) < STEPS - 1)
        return;
    *sent = true;
    fix_send(&workers[rank], json_pack("{s:s, s:i, s:i, s:s, s:b}", "type", "stop", "run", 70, "epoch", 1,
                                       "why", "cancel", "checkpoint", 0));
}

static void run_split(uint32_t stages, uint32_t micro_rows, const char *first, const char *second)
{
    struct fixture fix;
    struct outcome out;
    char expected[600], adapter[600];
    snprintf(expected, sizeof(expected), "%.500s/train.json", golden);
    snprintf(adapter, sizeof(adapter), "%.500s/adapter_init", golden);
    fix_open_files(&fix, model_path, expected, adapter);
    fix.program = program;
    fix.isa[0] = first;
    fix.isa[1] = second;
    json_t *spec = fix_spec(&fix);
    struct plan *plan = fix_plan(&fix, stages, micro_rows);
    bool sent = false;
    fix_run(&fix, plan, spec, NULL, stop_after_steps, &sent, &out);
    if (json_array_size(out.failures))
        fail_msg("%s", json_string_value(json_object_get(json_array_get(out.failures, 0), "text")));
    double worst_loss = 0, worst_norm = 0;
    assert_true(out.steps >= STEPS);
    assert_int_equal(json_array_size(out.stopped), stages);
    for (uint64_t t = 0; t < out.steps; t++) {
        double loss = fix_golden(&fix, "loss", t), norm = fix_golden(&fix, "grad_norm", t);
        worst_loss = fmax(worst_loss, fabs(out.loss[t] - loss) / loss);
        worst_norm = fmax(worst_norm, fabs(out.norm[t] - norm) / norm);
    }
    print_message("%u stages, micro-batches of %u, %u steps: loss %.2g, norm %.2g\n", stages, micro_rows,
                  out.steps, worst_loss, worst_norm);
    assert_true(worst_loss <= 1e-4);
    assert_true(worst_norm <= 2e-4);
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
