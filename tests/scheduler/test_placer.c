/* The scheduler's rows through the real planner and back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "model/spec.h"
#include "program/codec.h"
#include "scheduler/placer.h"

struct ask {
    json_t *spec, *inputs, *model, *links;
    struct store_sched_device devices[2];
    struct placer_device placed[2];
    const json_t *link_list[2];
    struct placer_request request;
};

static json_t *full_spec(const char *placement)
{
    struct job_spec spec;
    struct err err;
    json_t *given = json_pack("{s:s, s:s, s:{s:s, s:s, s:i}, s:{s:i, s:i}, s:{s:s}}", "name", "tiny", "model",
                              "m", "data", "train", "rows", "format", "tokens", "sequence_tokens", 64,
                              "train", "batch_rows", 4, "steps", 3, "placement", "kind", placement);
    if (spec_parse(given, &spec, &err) < 0) {
        fail_msg("%s", err.text);
    }
    json_t *full = spec_to_json(&spec, &err);
    spec_fini(&spec);
    json_decref(given);
    return full;
}

static void ask_make(struct ask *ask, const char *placement, uint64_t memory)
{
    static const uint8_t sizes[32] = {20, 0, 0, 0, 9,  0, 0, 0, 33, 0, 0, 0, 12, 0, 0, 0,
                                      64, 0, 0, 0, 50, 0, 0, 0, 11, 0, 0, 0, 3,  0, 0, 0};
    static char left[] = "left", right[] = "right", left0[] = "left/cpu0", right0[] = "right/cpu0",
                kind[] = "cpu";
    static char digest[] = "d";
    *ask = (struct ask){.spec = full_spec(placement), .inputs = json_object()};
    ask->model =
        json_pack("{s:{s:[s], s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:b, s:s}}", "config",
                  "architectures", "LlamaForCausalLM", "model_type", "llama", "hidden_size", 64,
                  "intermediate_size", 176, "num_attention_heads", 4, "num_hidden_layers", 4,
                  "num_key_value_heads", 2, "head_dim", 16, "vocab_size", 259, "max_position_embeddings", 256,
                  "rms_norm_eps", 1e-5, "tie_word_embeddings", 0, "hidden_act", "silu");
    ask->links = json_pack("[{s:s, s:s, s:f, s:f}, {s:s, s:s, s:f, s:f}]", "from", "left", "to", "right",
                           "latency_s", 1e-4, "bytes_per_s", 1e9, "from", "right", "to", "left", "latency_s",
                           1e-4, "bytes_per_s", 1e9);
    assert_non_null(ask->model);
    for (int i = 0; i < 2; i++) {
        ask->devices[i] = (struct store_sched_device){.name = i == 0 ? left0 : right0,
                                                      .node = i == 0 ? left : right,
                                                      .kind = kind,
                                                      .digest = digest,
                                                      .inventory = json_pack("{s:i}", "threads", 1),
                                                      .memory_limit_bytes = memory,
                                                      .present = true};
        ask->placed[i].device = &ask->devices[i];
        ask->link_list[i] = json_array_get(ask->links, (size_t)i);
    }
    ask->request = (struct placer_request){.spec = ask->spec,
                                           .inputs = ask->inputs,
                                           .model = ask->model,
                                           .train_sizes = sizes,
                                           .train_bytes = sizeof(sizes),
                                           .devices = ask->placed,
                                           .device_count = 2,
                                           .links = ask->link_list,
                                           .link_count = 2};
}

static void ask_fini(struct ask *ask)
{
    json_decref(ask->spec);
    json_decref(ask->inputs);
    json_decref(ask->model);
    json_decref(ask->links);
    json_decref(ask->devices[0].inventory);
    json_decref(ask->devices[1].inventory);
}

static void a_plan_comes_back_sealed_with_a_device_a_rank(void **state)
{
    struct ask ask;
    struct placer_answer answer;
    struct err err;
    (void)state;
    ask_make(&ask, "pipeline", (uint64_t)400 << 20);
    if (placer_planner.plan(&ask.request, &answer, &err) < 0) {
        fail_msg("%s", err.text);
    }
    assert_true(answer.fits);
    assert_int_equal(answer.rank_count, 2);
    struct plan *plan = plan_from_json(answer.plan, &err);
    assert_non_null(plan); /* what a worker will do with it */
    for (size_t i = 0; i < answer.rank_count; i++) {
        assert_string_equal(plan->ranks[i].device, answer.ranks[i].device);
    }
    assert_string_equal(json_string_value(json_object_get(answer.answer, "verdict")), "fits");
    plan_destroy(plan);
    placer_answer_fini(&answer);
    ask_fini(&ask);
}

static void links_to_absent_nodes_do_not_matter(void **state)
{
    struct ask ask;
    struct placer_answer answer;
    struct err err;
    (void)state;
    ask_make(&ask, "auto", (uint64_t)400 << 20);
    ask.request.device_count = 1;
    if (placer_planner.plan(&ask.request, &answer, &err) < 0) {
        fail_msg("%s", err.text);
    }
    assert_true(answer.fits);
    assert_int_equal(answer.rank_count, 1);
    assert_string_equal(answer.ranks[0].device, "left/cpu0");
    placer_answer_fini(&answer);
    ask_fini(&ask);
}

static void what_does_not_fit_is_said_with_numbers(void **state)
{
    struct ask ask;
    struct placer_answer answer;
    struct err err;
    (void)state;
    ask_make(&ask, "auto", 100000); /* 100 kB */
    if (placer_planner.plan(&ask.request, &answer, &err) < 0) {
        fail_msg("%s", err.text);
    }
    assert_false(answer.fits);
    assert_null(answer.plan);
    assert_non_null(strpbrk(answer.words, "0123456789"));
    placer_answer_fini(&answer);
    ask_fini(&ask);
}

static void a_wrong_specification_is_the_jobs_fault(void **state)
{
    struct ask ask;
    struct placer_answer answer;
    struct err err;
    (void)state;
    ask_make(&ask, "auto", (uint64_t)400 << 20);
    json_object_set_new(ask.spec, "no_such_key", json_true());
    assert_int_equal(placer_planner.plan(&ask.request, &answer, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    ask_fini(&ask);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_comes_back_sealed_with_a_device_a_rank),
        cmocka_unit_test(links_to_absent_nodes_do_not_matter),
        cmocka_unit_test(what_does_not_fit_is_said_with_numbers),
        cmocka_unit_test(a_wrong_specification_is_the_jobs_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
