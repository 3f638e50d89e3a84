/* Tests that pictures of plans are complete, bounded and well formed whatever Graphviz answers. */
#include "planner/plan_fixture.h"

#include "show/draw.h"
#include "profiles/profiles.h"

struct world {
    struct model_config config;
    struct workload workload;
    struct cluster *cluster;
    struct plan_answer *answer;
    struct trace timeline;
    double step_s;
};

static void world_init(struct world *w, uint32_t nodes, uint32_t batch, int place, const char *name)
{
    struct err err = {0};
    w->config = fixture_config(nodes < 6 ? 6 : nodes + 4);
    w->workload = fixture_workload(&w->config, 4 * batch, batch);
    w->workload.place = place;
    w->workload.micro_batch_rows = 1;
    w->cluster = cluster_create(&err);
    for (uint32_t n = 0; n < nodes; n++) {
        char node[64], device[64];
        snprintf(node, sizeof(node), "n%u", n);
        snprintf(device, sizeof(device), "n%u/%s", n, name);
        fixture_device(w->cluster, device, node, (uint64_t)1 << 30, 1 + n % 3);
    }
    const struct plan_options options = {.programs = true, .evaluations = 200};
    if (plan_search(&w->workload, w->cluster, &options, &w->answer, &err) < 0)
        fail_msg("%s", err.text);
    assert_non_null(w->answer->plan);
    trace_init(&w->timeline, 0);
    if (plan_simulate(w->answer->plan, &w->workload, w->cluster, &w->timeline, &w->step_s, &err) < 0)
        fail_msg("%s", err.text);
}

static void world_fini(struct world *w)
{
    plan_answer_destroy(w->answer);
    workload_fini(&w->workload);
    cluster_destroy(w->cluster);
    trace_fini(&w->timeline);
}

static struct draw_input input_of(const struct world *w)
{
    return (struct draw_input){.plan = w->answer->plan,
                               .timeline = &w->timeline,
                               .step_s = w->step_s,
                               .title = "a \"title\" & <more>",
                               .words = w->answer->words,
                               .cluster = w->cluster,
                               .answer = w->answer};
}

static uint32_t count_of(const char *text, const char *part)
{
    uint32_t count = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at += strlen(part))
        count++;
    return count;
}

/* Checks that every element is closed, attributes are quoted, and no text has a bare < or &. */
static void assert_well_formed(const char *text)
{
    int depth = 0;
    for (const char *at = text; (at = strchr(at, '<')) != NULL;) {
        const char *end = strchr(at, '>');
        assert_non_null(end);
        assert_true(!memchr(at + 1, '<', (size_t)(end - at - 1)));
        depth += at[1] == '/' ? -1 : end[-1] == '/' ? 0 : 1;
        assert_true(depth >= 0);
        at = end;
    }
    assert_int_equal(depth, 0);
    for (const char *at = text; (at = strchr(at, '&')) != NULL; at++)
        assert_true(strncmp(at, "&amp;", 5) == 0 || strncmp(at, "&lt;", 4) == 0 ||
                    strncmp(at, "&gt;", 4) == 0 || strncmp(at, "&quot;", 6) == 0);
}

static void each_rank_has_a_lane_and_names_are_escaped(void **state)
{
    struct world w;
    struct err err = {0};
    (void)state;
    world_init(&w, 3, 8, PLACE_PIPELINE, "a<b>&c");
    struct draw_input input = input_of(&w);
    struct buf out = {.limit = DRAW_BYTES_MAX};
    if (draw_svg(&input, &out, &err) < 0)
        fail_msg("%s", err.text);
    const char *text = buf_str(&out);
    assert_well_formed(text);
    /* one lane for each rank, and once in the text, for the fastest single device */
    assert_int_equal(count_of(text, "/a&lt;b&gt;&amp;c"), w.answer->plan->rank_count + 1);
    assert_true(count_of(text, "class=\"f\"") > 8 * w.answer->plan->rank_count);
    assert_int_equal(count_of(text, " of 1.00 GiB"), w.answer->plan->rank_count);
    buf_fini(&out);
    world_fini(&w);
}

static void many_ranks_and_micro_batches_are_cut_and_said_to_be(void **state)
{
    struct world w;
    struct err err = {0};
    (void)state;
    world_init(&w, 80, 256, PLACE_PIPELINE, "0");
    struct draw_input input = input_of(&w);
    struct buf out = {.limit = DRAW_BYTES_MAX};
    if (draw_svg(&input, &out, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(out.size < DRAW_BYTES_MAX);
    assert_well_formed(buf_str(&out));
    assert_true(strstr(buf_str(&out), "is not drawn") != NULL);
    if (w.answer->plan->rank_count > 72)
        assert_true(strstr(buf_str(&out), " ranks are drawn") != NULL);
    buf_fini(&out);
    world_fini(&w);
}

static void graphviz_places_boxes_and_nonsense_from_it_does_not(void **state)
{
    struct world w;
    struct err err = {0};
    static const char *const layouts[] = {
        "graph 1 9 2\nnode n0 1 1 2 1\nnode n1 7 1 2 1\nedge n0 n1 4 2 1 3 1 5 1 6 1 solid black\nstop\n",
        "",
        "graph 1 9",
        "graph 1 1e9 2\nstop\n",
        "graph 1 9 2\nnode n7 1 1 2 1\nstop\n",
        "graph 1 9 2\nnode n0 nan inf\nstop\n",
        "graph 1 9 2\nnode n0 1 1\nnode n1 7 1\nedge n0 n1 99999999 1 1\nstop\n",
        "\xff\xfe not text",
    };
    (void)state;
    world_init(&w, 2, 4, PLACE_PIPELINE, "0");
    struct draw_input input = input_of(&w);
    struct buf dot = {.limit = 1 << 20};
    assert_int_equal(draw_dot(&input, &dot, &err), 0);
    assert_int_equal(count_of(buf_str(&dot), " -- "), 1);
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        struct buf out = {.limit = DRAW_BYTES_MAX};
        input.layout = layouts[i];
        if (draw_svg(&input, &out, &err) < 0)
            fail_msg("%s", err.text);
        assert_well_formed(buf_str(&out));
        assert_int_equal(count_of(buf_str(&out), "class=\"box\""), 2);
        bool placed = strstr(buf_str(&out), "x=\"420.0\"") !=
                      NULL; /* the left edge of n1's box: its centre at 7 inches less half the box's width */
        assert_true(i > 0 || placed || strstr(buf_str(&out), "x=\"440.0\""));
        buf_fini(&out);
    }
    buf_fini(&dot);
    world_fini(&w);
}

static void a_timeline_of_another_plan_is_refused(void **state)
{
    struct world w;
    struct err err = {0};
    (void)state;
    world_init(&w, 2, 4, PLACE_PIPELINE, "0");
    struct draw_input input = input_of(&w);
    struct buf out = {.limit = DRAW_BYTES_MAX};
    w.timeline.events[0].instr = 1u << 20;
    assert_int_equal(draw_svg(&input, &out, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    buf_fini(&out);
    world_fini(&w);
}

/* --- tables that travel --- */

static json_t *tables(void)
{
    static const char *const blocks[] = {"embedding", "layer", "head"};
    json_t *points = json_array();
    for (int tokens = 64; tokens <= 1024; tokens *= 4)
        for (int b = 0; b < 3; b++)
            json_array_append_new(points, json_pack("{s:s,s:i,s:i,s:f,s:f}", "block", blocks[b], "tokens",
                                                    tokens, "labelled", tokens, "forward_s", 1e-5 * tokens,
                                                    "backward_s", 2e-5 * tokens));
    char key[65];
    memset(key, 'a', 64);
    key[64] = 0;
    return json_pack("{s:s,s:i,s:[{s:s,s:s,s:s,s:I}],s:[{s:s,s:s,s:o}],s:[]}", "format", PROFILES_FORMAT,
                     "version", PROFILES_VERSION, "devices", "name", "lab/0", "node", "lab", "kind", "cpu",
                     "memory_limit_bytes", (json_int_t)1 << 30, "profiles", "device", "lab/0", "key", key,
                     "points", points, "links");
}

static void tables_are_found_by_device_and_key_and_come_out_as_imported(void **state)
{
    struct err err = {0};
    char key[65], other[65];
    (void)state;
    memset(key, 'a', 64);
    memset(other, 'b', 64);
    key[64] = other[64] = 0;
    json_t *document = tables();
    if (profiles_check(document, &err) < 0)
        fail_msg("%s", err.text);
    json_t *profile = profiles_pick(document, "mine/0", false, key,
                                    &err); /* the name matches no table, but there is only one */
    assert_non_null(profile);
    assert_string_equal(json_string_value(json_object_get(profile, "origin")), "imported");
    json_decref(profile);
    assert_null(profiles_pick(document, "mine/0", true, key, &err)); /* true: the name must match */
    assert_non_null(strstr(err.text, "mine/0"));
    assert_null(profiles_pick(document, "lab/0", false, other, &err));
    assert_non_null(strstr(err.text, "1 others"));
    json_t *cluster_file = profiles_cluster(document, key, &err);
    assert_non_null(cluster_file);
    struct cluster *cluster = cluster_from_json(cluster_file, &err);
    if (!cluster)
        fail_msg("%s", err.text);
    assert_true(cluster_device_has_profile(cluster, 0));
    cluster_destroy(cluster);
    json_decref(cluster_file);
    assert_null(profiles_cluster(document, other, &err));
    json_decref(document);
}

static void spoilt_tables_are_refused_by_their_path(void **state)
{
    static const struct {
        const char *text, *path;
    } cases[] = {
        {"{\"format\":\"motley-profiles\",\"version\":2,\"devices\":[],\"profiles\":[]}", "version"},
        {"{\"format\":\"other\",\"version\":1}", "format"},
        {"{\"format\":\"motley-profiles\",\"version\":1,\"devices\":[],\"profiles\":[]}", "devices"},
        {"{\"format\":\"motley-profiles\",\"version\":1,\"devices\":[{\"name\":\"a\",\"node\":\"n\",\"memory_"
         "limit_"
         "bytes\":-1}],\"profiles\":[]}",
         "devices[0].memory_limit_bytes"},
        {"{\"format\":\"motley-profiles\",\"version\":1,\"devices\":[{\"name\":\"a\",\"node\":\"n\",\"memory_"
         "limit_"
         "bytes\":9},{\"name\":\"a\",\"node\":\"n\",\"memory_limit_bytes\":9}],\"profiles\":[]}",
         "devices[1]"},
        {"{\"format\":\"motley-profiles\",\"version\":1,\"devices\":[{\"name\":\"a\",\"node\":\"n\",\"memory_"
         "limit_"
         "bytes\":9}],\"profiles\":[{\"device\":\"a\",\"key\":\"zz\"}]}",
         "profiles[0].key"},
        {"{\"format\":\"motley-profiles\",\"version\":1,\"devices\":[{\"name\":\"a\",\"node\":\"n\",\"memory_"
         "limit_"
         "bytes\":9}],\"profiles\":[{}]}",
         "profiles[0].device"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct err err = {0};
        json_t *document = json_loads(cases[i].text, 0, NULL);
        assert_non_null(document);
        assert_int_equal(profiles_check(document, &err), -1);
        if (strncmp(err.text, cases[i].path, strlen(cases[i].path)) != 0)
            fail_msg("\"%s\" does not begin with %s", err.text, cases[i].path);
        json_decref(document);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_rank_has_a_lane_and_names_are_escaped),
        cmocka_unit_test(many_ranks_and_micro_batches_are_cut_and_said_to_be),
        cmocka_unit_test(graphviz_places_boxes_and_nonsense_from_it_does_not),
        cmocka_unit_test(a_timeline_of_another_plan_is_refused),
        cmocka_unit_test(tables_are_found_by_device_and_key_and_come_out_as_imported),
        cmocka_unit_test(spoilt_tables_are_refused_by_their_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
