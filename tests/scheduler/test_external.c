/* Tests external planners, which the scheduler runs as programs. A good planner's plan is used. Whatever else
 * a planner does, the job soon has the built-in plan, and the answer says why. */
#include "scheduler/ask.h"

#include <stdio.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/file.h"
#include "program/codec.h"
#include "scheduler/leader/config.h"
#include "support/must.h"

static struct planners planners; /* the planners that the configuration below names */

/* The programs of bad planners. PLAN names a file with the built-in planner's answer to the same question, so
 * that a planner can return a plan that is nearly right. */
static const struct {
    const char *name, *text, *says;
} bad[] = {
    {"hangs", "import time; time.sleep(60)", "was not done within 0.5 s"},
    {"spins", "while True: pass", "was not done within 0.5 s"},
    {"crashes", "import os; os.abort()", "was killed by signal 6"},
    {"fails", "raise ValueError('no idea')", "exited with status 1: ValueError: no idea"},
    {"silent", "pass", "its answer: no valid JSON"},
    {"garbage", "print('{]')", "its answer: no valid JSON"},
    {"other", "print('[1, 2]')", "the answer is no object"},
    {"huge", "import sys\nfor _ in range(100): sys.stdout.write('x' * (1 << 20))",
     "wrote more than 8388608 bytes"},
    {"forks", "import os\nwhile True: os.fork()", "PermissionError"},
    {"threads", "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()",
     ""}, /* any error will do: the machine decides whether threads, memory or time run out first */
    {"calls", "import socket; socket.create_connection(('127.0.0.1', 22))", "PermissionError"},
    {"writes", "open('/tmp/motley-planner-was-here', 'w')", "PermissionError"},
    {"eats", "x = bytearray(1 << 31)", "MemoryError"},
    {"lies",
     "import json; p = json.load(open(PLAN)); r = p['ranks'][0]\n"
     "r['memory']['weights'] //= 2; r['memory_bytes'] -= r['memory']['weights']\n"
     "del p['digest']; print(json.dumps(p))",
     "bytes of weights, it needs"},
    {"forges", "import json; p = json.load(open(PLAN)); p['ranks'][0]['window'] += 1; print(json.dumps(p))",
     "digest"},
    {"elsewhere",
     "import json; p = json.load(open(PLAN)); p['ranks'][0]['device'] = 'mars/0'; del p['digest']\n"
     "print(json.dumps(p))",
     "mars/0"},
};

static const char good[] =
    "import json, sys\n"
    "problem = json.load(sys.stdin)\n"
    "blocks = problem['config']['num_hidden_layers'] + 2\n"
    "names = [d['name'] for d in problem['devices']]\n"
    "assert len(problem['rows']) == 4 and problem['rows'][0] == [20, 9], problem['rows']\n"
    "print(json.dumps({'version': 1, 'placement': 'pipeline', 'micro_batch_rows': 1, 'stages': [\n"
    "    {'blocks': [0, 2], 'members': [{'device': names[1]}]},\n"
    "    {'blocks': [2, blocks], 'members': [{'device': names[0], 'window': 1}]}]}))\n";

/* Asks for a plan as the scheduler does. `planner` is placement.planner, or NULL. */
static struct placer_answer ask_planner(const char *kind, const char *planner)
{
    struct ask ask;
    struct placer_answer answer;
    struct err err = {0};
    ask_make(&ask, kind, (uint64_t)400 << 20);
    ask.request.planners = &planners;
    if (planner)
        json_object_set_new(json_object_get(ask.spec, "placement"), "planner", json_string(planner));
    must(placer_planner.plan(&ask.request, &answer, &err), &err);
    ask_fini(&ask);
    return answer;
}

static const char *told(const struct placer_answer *answer, const char *key)
{
    const char *text = json_string_value(json_object_get(json_object_get(answer->answer, "planner"), key));
    return text ? text : "";
}

static void a_good_one_is_used(void **state)
{
    struct err err = {0};
    (void)state;
    struct placer_answer answer = ask_planner("auto", "good");
    assert_true(answer.fits);
    if (strcmp(told(&answer, "verdict"), "used") != 0)
        fail_msg("%s", told(&answer, "why"));
    assert_int_equal(answer.rank_count, 2);
    assert_string_equal(answer.ranks[0].device, "right/cpu0");
    struct plan *plan = plan_from_json(answer.plan, &err);
    assert_non_null(plan); /* workers refuse a plan without its digest */
    assert_int_equal(plan->ranks[0].block_end, 2);
    plan_destroy(plan);
    placer_answer_fini(&answer);
}

static void a_slower_one_than_agreed_is_not(void **state)
{
    (void)state;
    struct placer_answer answer = ask_planner("auto", "slow");
    assert_string_equal(told(&answer, "verdict"), "slower");
    assert_non_null(
        strstr(told(&answer, "why"), "at most 0.5 is allowed; the built-in planner's plan is used"));
    assert_true(answer.fits);
    placer_answer_fini(&answer);
}

static void whatever_they_do_the_job_has_the_built_in_plan(void **state)
{
    struct placer_answer ours = ask_planner("pipeline", "built-in");
    (void)state;
    assert_null(json_object_get(ours.answer, "planner"));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const uint64_t begin_ns = clock_mono_ns();
        struct placer_answer answer = ask_planner("pipeline", bad[i].name);
        if (strcmp(told(&answer, "verdict"), "refused") != 0 || !strstr(told(&answer, "why"), bad[i].says))
            fail_msg("%s: %s: %s", bad[i].name, told(&answer, "verdict"), told(&answer, "why"));
        assert_non_null(strstr(told(&answer, "why"), bad[i].name));
        assert_true(json_equal(answer.plan, ours.plan));
        assert_true(clock_mono_ns() - begin_ns < 20000000000u);
        placer_answer_fini(&answer);
    }
    placer_answer_fini(&ours);
    assert_false(file_exists("/tmp/motley-planner-was-here"));
}

static void the_default_is_asked_and_a_name_that_is_not_there_is_said(void **state)
{
    (void)state;
    struct placer_answer answer = ask_planner("pipeline", NULL);
    assert_string_equal(told(&answer, "name"), "default");
    placer_answer_fini(&answer);
    answer = ask_planner("pipeline", "nobody");
    assert_non_null(strstr(told(&answer, "why"), "no planner of this name"));
    assert_true(answer.fits);
    placer_answer_fini(&answer);
}

static void a_configuration_with_wrong_planners_is_refused(void **state)
{
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"{\"planner\": {\"command\": [\"a\"], \"slower_at_most\": 0}}", "planner.slower_at_most"},
        {"{\"planner\": {\"seconds\": 1}}", "planner.command"},
        {"{\"planners\": {\"built-in\": {\"command\": [\"a\"]}}}", "built-in"},
        {"{\"planners\": {\"A b\": {\"command\": [\"a\"]}}}", "A b"},
        {"{\"planners\": {\"x\": {\"command\": [\"a\"], \"seconds\": 1000}}}", "planners.x.seconds"}};
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct scheduler_config config;
        struct err err = {0};
        json_t *document = json_loads(wrong[i].text, 0, NULL);
        json_object_update_new(document, json_pack("{s:s, s:s, s:{s:s}}", "name", "s", "postgres", "x",
                                                   "redis", "address", "unix:/x"));
        assert_int_equal(scheduler_config_parse(document, &config, &err), -1);
        if (!strstr(err.text, wrong[i].says))
            fail_msg("%s: %s", wrong[i].text, err.text);
        json_decref(document);
    }
}

/* ---- the configuration ---- */

static char plan_file[] = "/tmp/motley-test-plan-XXXXXX";

/* Returns a planner's entry of the configuration: {command: [python3, -S, -c, TEXT], read: [PLAN], …}. */
static json_t *entry(const char *text, double seconds, double slower_at_most)
{
    char whole[2000];
    snprintf(whole, sizeof(whole), "PLAN = '%s'\n%s", plan_file, text);
    return json_pack("{s:[s,s,s,s], s:[s], s:f, s:i, s:f}", "command", "python3", "-S", "-c", whole, "read",
                     plan_file, "seconds", seconds, "memory_mb", 512, "slower_at_most", slower_at_most);
}

static int setup(void **state)
{
    struct err err = {0};
    struct buf text = {.limit = 1 << 24};
    struct json_reader reader;
    json_t *named = json_object(),
           *document = json_pack("{s:o, s:o}", "planner", entry(good, 20, 1000), "planners", named);
    (void)state;
    const int fd = mkstemp(plan_file);
    if (fd < 0)
        return -1;
    close(fd);
    json_object_set_new(named, "good", entry(good, 20, 1000));
    json_object_set_new(named, "slow", entry(good, 20, 0.5));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const bool late = *bad[i].says == '\0' || strstr(bad[i].says, "within");
        json_object_set_new(named, bad[i].name, entry(bad[i].text, late ? 0.5 : 5, 1.1));
    }
    jr_init(&reader, document, "", &err);
    must(planners_read(&reader, &planners), &err);
    must(jr_finish(&reader), &err);
    json_decref(document);
    struct placer_answer ours = ask_planner("pipeline", "built-in");
    must(json_print(ours.plan, false, &text, &err), &err);
    must(file_write_atomic(plan_file, text.data, text.size, 0644, &err), &err);
    buf_fini(&text);
    placer_answer_fini(&ours);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    planners_fini(&planners);
    return unlink(plan_file);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_one_is_used),
        cmocka_unit_test(a_slower_one_than_agreed_is_not),
        cmocka_unit_test(whatever_they_do_the_job_has_the_built_in_plan),
        cmocka_unit_test(the_default_is_asked_and_a_name_that_is_not_there_is_said),
        cmocka_unit_test(a_configuration_with_wrong_planners_is_refused),
    };
    return cmocka_run_group_tests_name("planners of others", tests, setup, teardown);
}
