/* Compares what real workers, stages and a real mesh compute with PyTorch in double precision. */
#include "worker/worker_fixture.h"

#include "model/files/safetensors.h"

/* Reads a value of the golden file. `kind` is lora_fp64, full_fp64 or full_aux_fp64. */
static double golden_of(const struct fixture *fix, const char *kind, const char *what, uint64_t step)
{
    return json_number_value(
        json_array_get(json_object_get(json_object_get(fix->expected, kind), what), step));
}

static void check_losses(const struct fixture *fix, const struct outcome *out, const char *kind,
                         const char *what)
{
    assert_int_equal(json_array_size(out->failures), 0);
    assert_int_equal(out->steps, json_integer_value(json_object_get(fix->expected, "steps")));
    for (uint64_t t = 0; t < out->steps; t++) {
        double loss = golden_of(fix, kind, "loss", t), norm = golden_of(fix, kind, "grad_norm", t);
        double rate = golden_of(fix, kind, "lr", t);
        if (!(fabs(out->loss[t] - loss) <= 1e-6 * loss) || !(fabs(out->norm[t] - norm) <= 1e-5 * norm) ||
            !(fabs(out->rate[t] - rate) <= 1e-12 * rate))
            fail_msg("%s, step %llu: loss %.9g and %.9g, norm %.9g and %.9g, rate %.9g and %.9g", what,
                     (unsigned long long)t, out->loss[t], loss, out->norm[t], norm, out->rate[t], rate);
    }
}

/* Checks ‖a − b‖/‖b‖ of each tensor of the stored adapter against the golden one. */
static void check_adapter(const struct fixture *fix, const struct outcome *out, const char *name)
{
    struct err err;
    char path[600];
    struct safetensors *ours = NULL, *golden = NULL;
    assert_non_null(out->artifacts);
    const char *sha256 = json_string_value(
        json_object_get(json_object_get(out->artifacts, "adapter/adapter_model.safetensors"), "sha256"));
    snprintf(path, sizeof(path), "%s/%s", fix->store.dir, sha256);
    must(safetensors_open_path(path, &ours, &err));
    snprintf(path, sizeof(path), "%s/golden/%s/adapter_after_20/adapter_model.safetensors", MOTLEY_TEST_DATA,
             name);
    must(safetensors_open_path(path, &golden, &err));
    assert_int_equal(safetensors_count(ours), safetensors_count(golden));
    for (uint32_t t = 0; t < safetensors_count(golden); t++) {
        const struct safetensors_tensor *want = safetensors_at(golden, t),
                                        *got = safetensors_find(ours, want->name);
        assert_non_null(got);
        assert_int_equal(got->shape[0], want->shape[0]);
        assert_int_equal(got->shape[1], want->shape[1]);
        uint64_t count = want->shape[0] * want->shape[1];
        float *a = calloc(count, sizeof(*a)), *b = calloc(count, sizeof(*b));
        must(safetensors_read_f32(ours, got, a, count, &err));
        must(safetensors_read_f32(golden, want, b, count, &err));
        double difference = 0, size = 0;
        for (uint64_t i = 0; i < count; i++) {
            difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
            size += (double)b[i] * b[i];
        }
        if (!(sqrt(difference) <= 1e-4 * sqrt(size)))
            fail_msg("%s: %s differs by %.3g", name, want->name, sqrt(difference / size));
        free(a);
        free(b);
    }
    safetensors_close(ours);
    safetensors_close(golden);
}

static void run_golden(const char *name, uint32_t stages, uint32_t micro_rows)
{
    struct fixture fix;
    struct outcome out;
    char what[64];
    fix_open(&fix, name);
    json_t *spec = fix_spec(&fix);
    struct plan *plan = fix_plan(&fix, stages, micro_rows);
    fix_run(&fix, plan, spec, NULL, NULL, NULL, &out);
    snprintf(what, sizeof(what), "%s, %u stages, micro-batches of %u", name, stages, micro_rows);
    if (json_array_size(out.failures))
        fail_msg("%s: %s", what, json_string_value(json_object_get(json_array_get(out.failures, 0), "text")));
    check_losses(&fix, &out, "lora_fp64", what);
    check_adapter(&fix, &out, name);
    assert_int_equal(out.done, stages);
    assert_int_equal(out.ranks, stages * out.steps);
    assert_int_equal(out.memories, stages);
    assert_true(out.traces >= stages);
    outcome_fini(&out);
    plan_destroy(plan);
    json_decref(spec);
    fix_close(&fix);
}

static void one_stage_gives_pytorchs_losses_norms_and_adapter(void **state)
{
    (void)state;
    for (uint32_t rows = 1; rows <= 4; rows *= 2)
        run_golden("llama", 1, rows);
    run_golden("llama3-rope", 1, 2);
}

static void splits_give_pytorchs_losses_norms_and_adapter(void **state)
{
    (void)state;
    for (uint32_t stages = 2; stages <= 4; stages++)
        for (uint32_t rows = 1; rows <= 4; rows *= 2)
            run_golden("llama", stages, rows);
    run_golden("llama3-rope", 2, 2);
    run_golden("llama3-rope", 3, 1);
}

/* With equal instruction sets and micro-batches only the rounding of Σ g² differs. */
static void splits_give_one_devices_losses_to_1e_7(void **state)
{
    (void)state;
    struct fixture fix;
    struct outcome out[4];
    fix_open(&fix, "llama");
    json_t *spec = fix_spec(&fix);
    json_object_set_new(json_object_get(spec, "method"), "dropout", json_real(0.2));
    json_object_clear(fix.adapter);
    for (uint32_t stages = 1; stages <= 4; stages++) {
        struct plan *plan = fix_plan(&fix, stages, 2);
        fix_run(&fix, plan, spec, NULL, NULL, NULL, &out[stages - 1]);
        plan_destroy(plan);
        assert_int_equal(out[stages - 1].steps, 20);
        for (uint64_t t = 0; t < 20; t++)
            if (!(fabs(out[stages - 1].loss[t] - out[0].loss[t]) <= 1e-7 * out[0].loss[t]))
                fail_msg("%u stages, step %llu: %.12g and %.12g", stages, (unsigned long long)t,
                         out[stages - 1].loss[t], out[0].loss[t]);
    }
    for (int s = 0; s < 4; s++)
        outcome_fini(&out[s]);
    json_decref(spec);
    fix_close(&fix);
}

/* Trains every parameter, with the load-balancing loss where there are experts, by one worker or by a
 * pipeline. The result is a model that the next run starts from. */
static void run_full(const char *name, uint32_t stages, bool aux)
{
    struct fixture fix;
    struct outcome out;
    fix_open(&fix, name);
    json_t *spec = fix_spec(&fix), *train = json_object_get(spec, "train");
    json_object_set_new(spec, "method", json_pack("{s:s}", "kind", "full"));
    json_object_set(train, "learning_rate",
                    json_object_get(json_object_get(fix.expected, "full"), "peak_lr"));
    json_object_set(train, "weight_decay",
                    json_object_get(json_object_get(fix.expected, "full"), "weight_decay"));
    json_object_set_new(train, "router_aux", json_boolean(aux));
    json_object_clear(fix.adapter);
    struct plan *plan = fix_plan(&fix, stages, 2);
    fix_run(&fix, plan, spec, NULL, NULL, NULL, &out);
    if (json_array_size(out.failures))
        fail_msg("%s: %s", name, json_string_value(json_object_get(json_array_get(out.failures, 0), "text")));
    check_losses(&fix, &out, aux ? "full_aux_fp64" : "full_fp64", name);
    assert_non_null(json_object_get(out.artifacts, "model/config.json"));
    assert_non_null(json_object_get(out.artifacts, "model/model.safetensors"));
    outcome_fini(&out);
    plan_destroy(plan);
    json_decref(spec);
    fix_close(&fix);
}

static void everything_is_trained_as_pytorch_does(void **state)
{
    (void)state;
    run_full("llama", 1, false);
    run_full("llama", 3, false);
    run_full("qwen3", 2, false);
    run_full("mixtral", 1, true);
    run_full("olmoe", 2, false);
    run_full("gemma2", 1, false);
}

static void other_families_give_pytorchs_losses_norms_and_adapter(void **state)
{
    (void)state;
    run_golden("qwen2", 2, 2);
    run_golden("mixtral", 3, 1);
    run_golden("gemma3", 2, 2);
    run_golden("smollm3", 2, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_stage_gives_pytorchs_losses_norms_and_adapter),
        cmocka_unit_test(splits_give_one_devices_losses_to_1e_7),
        cmocka_unit_test(splits_give_pytorchs_losses_norms_and_adapter),
        cmocka_unit_test(other_families_give_pytorchs_losses_norms_and_adapter),
        cmocka_unit_test(everything_is_trained_as_pytorch_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
