/* Tests changes of a plan's input document for what-if questions: every number keeps its origin. */
#include "planner/plan_fixture.h"

#include "planner/given/cluster_private.h"
#include "planner/given/inputs.h"
#include "replay/change.h"

static const char DOCUMENT[] =
    "{\"version\": 1, \"spec\": {\"model\": \"m\", \"data\": {\"train\": \"rows\"}},"
    " \"config\": {\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": 128,"
    "  \"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"vocab_size\": 100},"
    " \"devices\": [{\"name\": \"a/0\", \"node\": \"a\", \"kind\": \"cpu\", \"memory_limit_bytes\": "
    "1000000000},"
    "  {\"name\": \"b/0\", \"node\": \"b\", \"kind\": \"cpu\", \"memory_limit_bytes\": 1000000000}],"
    " \"links\": [{\"from\": \"a\", \"to\": \"b\", \"latency_s\": 1e-3, \"bytes_per_s\": 1e8}]}";

static json_t *document(void)
{
    json_error_t why;
    json_t *made = json_loads(DOCUMENT, 0, &why);
    if (!made)
        fail_msg("%s", why.text);
    return made;
}

/* Returns the origin of the link from the first device to the second. */
static enum cost_origin link_origin(const json_t *inputs_document)
{
    struct plan_inputs inputs;
    struct err err = {0};
    if (plan_inputs_read(inputs_document, &inputs, &err) < 0)
        fail_msg("%s", err.text);
    enum cost_origin origin = cluster_link(inputs.cluster, 0, 1).origin;
    plan_inputs_fini(&inputs);
    return origin;
}

static void a_link_that_is_only_supposed_is_not_called_measured(void **state)
{
    (void)state;
    struct err err = {0};
    json_t *inputs = document();
    assert_int_equal(link_origin(inputs), ORIGIN_MEASURED);
    assert_int_equal(plan_inputs_link(inputs, "a", "b", 1e9, 1e-4, &err), 0);
    assert_int_equal(link_origin(inputs), ORIGIN_IMPORTED);
    json_decref(inputs);
}

static void links_of_another_cluster_say_where_they_come_from(void **state)
{
    static const char *const says[] = {"", ", \"origin\": \"measured\"", ", \"origin\": \"estimated\""};
    static const enum cost_origin is[] = {ORIGIN_IMPORTED, ORIGIN_MEASURED, ORIGIN_ESTIMATED};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct err err = {0};
        char text[640];
        json_error_t why;
        snprintf(text, sizeof(text),
                 "{\"nodes\": [{\"name\": \"x\", \"devices\": [{\"name\": \"x/0\", \"like\": \"t4\"}]},"
                 " {\"name\": \"y\", \"devices\": [{\"name\": \"y/0\", \"like\": \"t4\"}]}],"
                 " \"links\": {\"pairs\": [{\"a\": \"x\", \"b\": \"y\", \"latency_s\": 1e-4, "
                 "\"bytes_per_s\": 1e8%s}]}}",
                 says[i]);
        json_t *inputs = document(), *cluster = json_loads(text, 0, &why);
        if (plan_inputs_cluster(inputs, cluster, &err) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(link_origin(inputs), is[i]);
        json_decref(inputs);
        json_decref(cluster);
    }
}

/* Two added devices are on two nodes, whether they are of one kind or not. */
static void each_added_device_is_on_a_node_of_its_own(void **state)
{
    static const char *const likes[] = {"rtx-3090", "t4", "t4", "a/0"};
    (void)state;
    struct err err = {0};
    struct plan_inputs read;
    json_t *inputs = document();
    for (size_t i = 0; i < 4; i++) {
        char name[256];
        if (plan_inputs_add(inputs, likes[i], name, &err) < 0)
            fail_msg("%s", err.text);
        print_message("%s\n", name);
    }
    if (plan_inputs_read(inputs, &read, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(read.cluster->device_count, 6);
    assert_int_equal(read.cluster->node_count, 6);
    plan_inputs_fini(&read);
    json_decref(inputs);
}

/* When the only device that the job asks for is removed, the plan may use the others. */
static void without_the_only_device_asked_for_the_others_are_planned_on(void **state)
{
    (void)state;
    struct err err = {0};
    struct plan_inputs read;
    json_t *inputs = document();
    json_object_set_new(json_object_get(inputs, "spec"), "placement", json_pack("{s:[s]}", "devices", "a/0"));
    assert_int_equal(plan_inputs_without(inputs, "a/0", &err), 0);
    if (plan_inputs_read(inputs, &read, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(read.cluster->device_count, 1);
    plan_inputs_fini(&read);
    json_decref(inputs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_link_that_is_only_supposed_is_not_called_measured),
        cmocka_unit_test(each_added_device_is_on_a_node_of_its_own),
        cmocka_unit_test(without_the_only_device_asked_for_the_others_are_planned_on),
        cmocka_unit_test(links_of_another_cluster_say_where_they_come_from),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
