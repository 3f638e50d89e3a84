/* Tests that plans of a mixture of experts use measured routing. */
#include <math.h>

#include "planner/expert_fixture.h"
#include "planner/given/inputs.h"

static const char DOCUMENT[] =
    "{\"version\": 1, \"spec\": {\"model\": \"m\", \"data\": {\"train\": \"rows\"},"
    "  \"placement\": {\"kind\": \"expert\"}},"
    " \"config\": {\"model_type\": \"qwen3_moe\", \"hidden_size\": 256, \"intermediate_size\": 512, "
    "  \"moe_intermediate_size\": 192, \"num_hidden_layers\": 3, \"num_attention_heads\": 8,"
    "  \"num_key_value_heads\": 2, \"head_dim\": 32, \"vocab_size\": 1000, \"num_experts\": 4,"
    "  \"num_experts_per_tok\": 2, \"mlp_only_layers\": [1]},"
    " \"devices\": [{\"name\": \"a/0\", \"node\": \"a\", \"kind\": \"cuda\", \"like\": \"t4\","
    "  \"memory_limit_bytes\": 8000000000}, {\"name\": \"a/1\", \"node\": \"a\", \"kind\": \"cuda\","
    "  \"like\": \"t4\", \"memory_limit_bytes\": 8000000000}]}";

static json_t *parsed(const char *text)
{
    json_error_t why;
    json_t *made = json_loads(text, JSON_DECODE_ANY, &why);
    if (!made)
        fail_msg("%s", why.text);
    return made;
}

static int inputs_of(const char *routing, struct plan_inputs *inputs, struct err *err)
{
    json_t *document = parsed(DOCUMENT);
    if (routing)
        json_object_set_new(document, "expert_share", parsed(routing));
    int result = plan_inputs_read(document, inputs, err);
    json_decref(document);
    return result;
}

static double predicted_s(const char *routing)
{
    struct plan_inputs inputs;
    struct err err = {0};
    if (inputs_of(routing, &inputs, &err) < 0)
        fail_msg("%s", err.text);
    struct plan_answer *answer = fixture_search(&inputs.workload, inputs.cluster);
    assert_non_null(answer->plan);
    double seconds = answer->step_s;
    plan_answer_destroy(answer);
    plan_inputs_fini(&inputs);
    return seconds;
}

/* Tokens become shares of each layer; layers without an entry are routed evenly. */
static void routing_that_was_measured_is_planned_with(void **state)
{
    (void)state;
    struct plan_inputs inputs;
    struct err err = {0};
    const double want[] = {0.5, 0.25, 0.25, 0, 0.25, 0.25, 0.25, 0.25, 0.1, 0.2, 0.3, 0.4};
    if (inputs_of("[[200, 100, 100, 0], null, [0.1, 0.2, 0.3, 0.4]]", &inputs, &err) < 0)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++)
        assert_true(fabs(inputs.workload.expert_share[i] - want[i]) < 1e-12);
    plan_inputs_fini(&inputs);
    if (inputs_of(NULL, &inputs, &err) < 0)
        fail_msg("%s", err.text);
    assert_null(inputs.workload.expert_share);
    plan_inputs_fini(&inputs);
    double even = predicted_s(NULL), told = predicted_s("[[1, 1, 1, 1], null, [5, 5, 5, 5]]");
    assert_true(fabs(told / even - 1) < 1e-9);
    /* One expert gets nearly all tokens, and a single expert cannot be divided among devices. */
    double skewed = predicted_s("[[97, 1, 1, 1], null, [97, 1, 1, 1]]");
    if (fabs(skewed / even - 1) < 1e-3)
        fail_msg("%g s a step, whatever the routing (%g s)", even, skewed);
}

static void routing_that_is_none_is_refused_by_name(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"[]", "expert_share: not a list of 3 layers"},
        {"[null, null]", "expert_share: not a list of 3 layers"},
        {"[[1, 2, 3], null, null]", "expert_share[0]: not a list of 4 numbers"},
        {"[null, null, 7]", "expert_share[2]: not a list of 4 numbers"},
        {"[null, null, [1, 2, -1, 0]]", "expert_share[2][2]: not a number of tokens"},
        {"[null, null, [1, 2, \"3\", 0]]", "expert_share[2][2]: not a number of tokens"},
        {"[null, null, [0, 0, 0, 0]]", "expert_share[2]: no expert got any token"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct plan_inputs inputs;
        struct err err = {0};
        assert_int_equal(inputs_of(cases[i][0], &inputs, &err), -1);
        assert_int_equal(err.code, ERR_INVALID);
        if (!strstr(err.text, cases[i][1]))
            fail_msg("%s: %s", cases[i][0], err.text);
        plan_inputs_fini(&inputs);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routing_that_was_measured_is_planned_with),
        cmocka_unit_test(routing_that_is_none_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
