/* Tests profile mode through the worker's socket. */
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

#include "worker/worker_fixture.h"

static json_t *profile_message(const struct fixture *fix, const json_t *method, const char *compute)
{
    struct err err;
    json_t *config = model_config_to_json(&fix->config, &err);
    return json_pack(
        "{s:s, s:i, s:s, s:{s:o, s:O}, s:O, s:s, s:s, s:i, s:f, s:{s:{s:s, s:s, s:i, s:I}, s:s, s:I}}",
        "type", "profile", "request", 41, "device", "node0/cpu0", "model", "config", config, "files",
        json_object_get(fix->model, "files"), "method", method, "base", "fp32", "compute", compute,
        "sequence_tokens", 32, "seconds", 0.2, "local", "device", "name", "node0/cpu0", "kind", "cpu",
        "threads", 1, "memory_limit_bytes", (json_int_t)1 << 28, "api", fix->store.url, "start_ns",
        (json_int_t)clock_mono_ns() + 20000000);
}

/* Sends a message and returns the first event that is not a worker_hello; then acknowledges and joins the
 * worker. */
static json_t *ask(const struct fixture *fix, json_t *message)
{
    struct fix_worker w;
    json_t *event;
    fix_start_worker(fix, &w, 0);
    fix_send(&w, message);
    while (strcmp(json_string_value(json_object_get(event = fix_receive(&w), "type")), "worker_hello") == 0)
        json_decref(event);
    fix_send(&w, json_pack("{s:s, s:n, s:O}", "type", "ack", "run", "seq", json_object_get(event, "seq")));
    fix_join(&w, 1);
    return event;
}

static void a_profile_answers_with_the_document_of_the_contract(void **state)
{
    (void)state;
    struct fixture fix;
    fix_open(&fix, "llama");
    json_t *spec = fix_spec(&fix);
    json_t *event = ask(&fix, profile_message(&fix, json_object_get(spec, "method"), "bf16"));
    assert_string_equal(json_string_value(json_object_get(event, "type")), "profile");
    assert_int_equal(json_integer_value(json_object_get(event, "request")), 41);
    const json_t *document = json_object_get(event, "document"),
                 *points = json_object_get(document, "points");
    assert_string_equal(json_string_value(json_object_get(document, "device")), "node0/cpu0");
    assert_string_equal(json_string_value(json_object_get(document, "compute")), "bf16");
    assert_true(json_is_true(json_object_get(document, "neighbours_busy")));
    assert_true(json_integer_value(json_object_get(document, "base_process_bytes")) > 1 << 20);
    assert_true(json_number_value(json_object_get(json_object_get(document, "layer_flops"), "token")) > 0);
    bool seen[3] = {false};
    for (size_t p = 0; p < json_array_size(points); p++) {
        const json_t *point = json_array_get(points, p);
        const char *block = json_string_value(json_object_get(point, "block"));
        assert_true(json_number_value(json_object_get(point, "forward_s")) >= 0);
        seen[0] |= strcmp(block, "embedding") == 0;
        seen[1] |= strcmp(block, "layer") == 0 && json_number_value(json_object_get(point, "backward_s")) > 0;
        seen[2] |= strcmp(block, "head") == 0;
    }
    assert_true(seen[0] && seen[1] && seen[2]);
    json_decref(event);
    json_decref(spec);
    fix_close(&fix);
}

/* A request that names neither a specification nor targets is measured with adapters on attention's matrices.
 */
static void a_profile_without_targets_adapts_attention(void **state)
{
    (void)state;
    static const char *const models[] = {"llama", "phi3"};
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        struct fixture fix;
        fix_open(&fix, models[i]);
        json_t *method = json_string("lora"), *event = ask(&fix, profile_message(&fix, method, "fp32"));
        if (strcmp(json_string_value(json_object_get(event, "type")), "profile") != 0)
            fail_msg("%s: %s", models[i], json_dumps(event, 0));
        json_decref(event);
        json_decref(method);
        fix_close(&fix);
    }
}

/* A request with a specification is measured as the specification says. */
static void a_profile_is_that_of_the_specification(void **state)
{
    (void)state;
    static const struct {
        const char *kind, *base, *compute, *as;
    } cases[] = {
        {"lora", "nf4", "bf16", "nf4"}, {"full", "fp32", "fp32", "fp32"}, {"lora", "packed", "fp32", "nf4"}};
    struct fixture fix;
    fix_open(&fix, "llama");
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        json_t *spec = fix_spec(&fix), *method = json_object_get(spec, "method");
        if (strcmp(cases[i].kind, "full") == 0)
            json_object_clear(method);
        json_object_set_new(method, "kind", json_string(cases[i].kind));
        if (strcmp(cases[i].kind, "lora") == 0)
            json_object_set_new(method, "base", json_string(cases[i].base));
        json_object_set_new(json_object_get(spec, "train"), "compute", json_string(cases[i].compute));
        json_t *message = profile_message(&fix, method, "fp32");
        json_object_set(message, "spec", spec);
        json_t *event = ask(&fix, message);
        if (strcmp(json_string_value(json_object_get(event, "type")), "profile") != 0)
            fail_msg("%s: %s", cases[i].base, json_string_value(json_object_get(event, "text")));
        const json_t *document = json_object_get(event, "document");
        assert_string_equal(json_string_value(json_object_get(document, "method")), cases[i].kind);
        assert_string_equal(json_string_value(json_object_get(document, "base")), cases[i].as);
        assert_string_equal(json_string_value(json_object_get(document, "compute")), cases[i].compute);
        assert_true(json_array_size(json_object_get(document, "points")) > 4);
        json_decref(event);
        json_decref(spec);
    }
    fix_close(&fix);
}

/* A device that multiplies, with a store that answers, is proved. What is lacking is named. */
static void a_node_proves_itself_or_says_what_is_lacking(void **state)
{
    (void)state;
    struct fixture fix;
    char taken[600];
    fix_open(&fix, "llama");
    snprintf(taken, sizeof(taken), "%s/proof", fix.scratch.dir); /* each process has a file of its own */
    assert_int_equal(mkdir(taken, 0700), 0);
    static const struct {
        const char *api, *kind, *says;
    } cases[] = {{NULL, "cpu", NULL},
                 {"http://127.0.0.1:1", "cpu", "it cannot fetch files from http://127.0.0.1:1: "},
                 {"", "cpu", "api"},
                 {NULL, "abacus", "it cannot compute: device node0/cpu0: no kind 'abacus'"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        json_t *event =
            ask(&fix, json_pack("{s:s, s:i, s:{s:{s:s, s:s, s:I}, s:s, s:s}}", "type", "prove", "request", 0,
                                "local", "device", "name", "node0/cpu0", "kind", cases[i].kind,
                                "memory_limit_bytes", (json_int_t)1 << 20, "api",
                                cases[i].api ? cases[i].api : fix.store.url, "cache", fix.scratch.dir));
        const char *type = json_string_value(json_object_get(event, "type")),
                   *text = json_string_value(json_object_get(event, "text"));
        if (strcmp(type, cases[i].says ? "failed" : "proved") != 0 ||
            (cases[i].says && !strstr(text, cases[i].says)))
            fail_msg("case %zu: %s: %s", i, type, text ? text : "");
        json_decref(event);
    }
    fix_close(&fix);
}

/* Pins the process to its first CPU; *before receives the CPUs that it had. */
static void pin(cpu_set_t *before)
{
    cpu_set_t one;
    assert_int_equal(sched_getaffinity(0, sizeof(*before), before), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, before))
            CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
}

/* While another program computes on the device's CPU, the profile's document says so. */
static void a_busy_neighbour_is_seen(void **state)
{
    (void)state;
    if (access("/proc/self/schedstat", R_OK) != 0) {
        print_message("skipped: this kernel does not count how long threads wait\n");
        skip();
    }
    cpu_set_t before;
    pin(&before);
    pid_t neighbour = fork();
    if (neighbour == 0)
        for (volatile uint64_t turns = 0;; turns++)
            ;
    assert_true(neighbour > 0);
    struct fixture fix;
    fix_open(&fix, "llama");
    json_t *spec = fix_spec(&fix);
    json_t *event = ask(&fix, profile_message(&fix, json_object_get(spec, "method"), "fp32"));
    kill(neighbour, SIGKILL);
    waitpid(neighbour, NULL, 0);
    assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
    double waited = json_number_value(json_object_get(json_object_get(event, "document"), "waited_share"));
    if (!(waited > 0.2)) /* two programs on one CPU each wait for half of the time */
        fail_msg("beside a busy program threads waited for %.3f of the time", waited);
    json_decref(event);
    json_decref(spec);
    fix_close(&fix);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_profile_answers_with_the_document_of_the_contract),
        cmocka_unit_test(a_profile_without_targets_adapts_attention),
        cmocka_unit_test(a_profile_is_that_of_the_specification),
        cmocka_unit_test(a_node_proves_itself_or_says_what_is_lacking),
        cmocka_unit_test(a_busy_neighbour_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
