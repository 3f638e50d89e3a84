/* Tests the answers of a user's own planner: correct assignments and plans are accepted, and those with false
 * or impossible statements are refused with a reason. */
#include "planner/oracle_scene.h"
#include "planner/plan_fixture.h"

#include "planner/candidate/from_plan.h"
#include "planner/kind/kind.h"
#include "plug/document.h"
#include "plug/plug.h"
#include "planner/search/search.h"
#include "support/must.h"

static struct cluster *cluster_of(uint32_t devices, uint64_t memory)
{
    static const double speeds[] = {3, 1.5, 1, 2};
    struct err err;
    struct cluster *cluster = cluster_create(&err);
    for (uint32_t d = 0; d < devices; d++) {
        char name[16], node[16];
        snprintf(node, sizeof(node), "n%u", d);
        snprintf(name, sizeof(name), "n%u/0", d);
        fixture_device(cluster, name, node, memory, speeds[d]);
    }
    return cluster;
}

static struct plan_answer *search(const struct workload *w, const struct cluster *cluster)
{
    const struct plan_options options = {
        .evaluations = 5000, .programs = true, .runnable_only = true, .brief = true};
    struct plan_answer *answer = NULL;
    struct err err;
    must(plan_search((struct workload[]){*w}, cluster, &options, &answer, &err), &err);
    return answer;
}

static json_t *assignment(const char *left, const char *right, int cut, int blocks)
{
    return json_pack("{s:i, s:s, s:s, s:i, s:[{s:[i,i], s:[{s:s}]}, {s:[i,i], s:[{s:s}]}]}", "version", 1,
                     "placement", "pipeline", "schedule", "1f1b", "micro_batch_rows", 2, "stages", "blocks",
                     0, cut, "members", "device", left, "blocks", cut, blocks, "members", "device", right);
}

/* Sets the value at a path of keys and numbers, "stages/0/members/0/window". Takes value. */
static void set(json_t *document, const char *path, json_t *value)
{
    char text[200];
    snprintf(text, sizeof(text), "%s", path);
    json_t *at = document;
    char *last = text, *slash;
    while ((slash = strchr(last, '/'))) {
        *slash = '\0';
        at = json_is_array(at) ? json_array_get(at, (size_t)strtol(last, NULL, 10))
                               : json_object_get(at, last);
        last = slash + 1;
    }
    if (json_is_array(at))
        assert_int_equal(json_array_set_new(at, (size_t)strtol(last, NULL, 10), value), 0);
    else
        assert_int_equal(json_object_set_new(at, last, value), 0);
}

static void refused(const json_t *document, const struct workload *w, const struct cluster *cluster,
                    const char *says)
{
    struct plan *plan = NULL;
    struct err err = {0};
    double step_s;
    if (plug_accept(document, w, cluster, &plan, &step_s, &err) == 0)
        fail_msg("taken, where \"%s\" was to be said", says);
    if (!strstr(err.text, says))
        fail_msg("\"%s\", not \"%s\"", err.text, says);
    assert_null(plan);
}

static void an_assignment_becomes_a_plan_that_the_checker_passes(void **state)
{
    struct model_config config = fixture_config(8);
    struct workload w = fixture_workload(&config, 64, 8);
    struct cluster *cluster = cluster_of(2, 4096 * MIB);
    json_t *document = assignment("n0/0", "n1/0", 6, 10);
    struct plan *plan = NULL;
    struct err err = {0};
    double step_s = 0;
    (void)state;
    must(plug_accept(document, &w, cluster, &plan, &step_s, &err), &err);
    must(plan_check(plan, &err), &err);
    assert_true(step_s > 0);
    assert_int_equal(plan->rank_count, 2);
    assert_int_equal(plan->ranks[0].block_end, 6);
    assert_int_equal(plan->ranks[0].window, 2);
    assert_int_equal(plan->ranks[0].memory_limit_bytes, 4096 * MIB);
    json_t *sealed = plan_to_json(plan, &err);
    struct plan *read = plan_from_json(sealed, &err); /* A worker reads the plan from this text. */
    assert_non_null(read);
    plan_destroy(read);
    json_decref(sealed);
    plan_destroy(plan);
    json_decref(document);
    workload_fini(&w);
    cluster_destroy(cluster);
}

/* ---- candidates as documents ---- */

static json_t *member_of(const struct problem *p, const struct member *m)
{
    const struct plan_tensor *t = &m->tensor;
    json_t *said =
        json_pack("{s:s, s:I, s:I, s:I, s:b, s:f, s:f}", "device", p->cluster->devices[m->device].name,
                  "count", (json_int_t)m->count, "window", (json_int_t)(m->window ? m->window : 1), "delay",
                  (json_int_t)m->delay, "recompute", m->recompute, "state_share", m->state_share,
                  "expert_share", m->expert_share);
    if (m->rows)
        json_object_set_new(said, "rows", json_integer((json_int_t)m->rows));
    if (t->kv_head_end)
        json_object_set_new(said, "tensor",
                            json_pack("{s:[I,I],s:[I,I]}", "kv_heads", (json_int_t)t->kv_head_begin,
                                      (json_int_t)t->kv_head_end, "columns", (json_int_t)t->column_begin,
                                      (json_int_t)t->column_end));
    return said;
}

/* Writes a candidate as an assignment: everything, or the devices of each stage only. Which member takes
 * which micro-batch is not written in either case. */
static json_t *document_of(const struct problem *p, const struct candidate *c, bool all)
{
    json_t *stages = json_array();
    for (uint32_t s = 0; s < c->stage_count; s++) {
        const struct candidate_stage *stage = &c->stages[s];
        json_t *members = json_array(), *said = json_pack("{s:o}", "members", members);
        if (all)
            json_object_set_new(said, "blocks", json_pack("[i,i]", stage->block_begin, stage->block_end));
        for (uint32_t m = stage->member_first; m < stage->member_first + stage->member_count; m++)
            json_array_append_new(
                members, all ? member_of(p, &c->members[m])
                             : json_pack("{s:s}", "device", p->cluster->devices[c->members[m].device].name));
        json_array_append_new(stages, said);
    }
    json_t *document = json_pack("{s:i, s:s, s:o}", "version", 1, "placement",
                                 plan_placement_name(c->placement), "stages", stages);
    if (c->gathered_layers)
        json_object_set_new(document, "gathered_layers", json_integer(c->gathered_layers));
    if (all)
        json_object_update_new(document, json_pack("{s:s, s:b, s:I}", "schedule",
                                                   plan_schedule_name(c->schedule), "eager", c->eager,
                                                   "micro_batch_rows", (json_int_t)c->micro_batch_rows));
    if (all && c->together)
        json_object_set_new(document, "together", json_integer(c->together));
    return document;
}

/* Writes what the search found for a placement as an assignment and reads it: the whole document must give
 * the same candidate, and its devices alone must give one that is at most half slower. */
static void candidate_said(int place, struct workload *w, const struct cluster *cluster)
{
    const struct search_options options = {.evaluations = 20000};
    struct search_found found;
    struct problem problem;
    struct candidate back = {0};
    struct err err = {0};
    w->place = place;
    must(problem_init(&problem, w, cluster, &err), &err);
    must(search_run(&problem, &options, &found, &err), &err);
    if (found.chosen != place)
        fail_msg("nothing fits as %s", plan_placement_name(place));
    struct candidate *c = &found.best[place];
    c->owner_count = 0;
    json_t *document = document_of(&problem, c, true);
    must(candidate_from_document(&problem, document, false, &back, &err), &err);
    for (uint32_t s = 0; s < c->stage_count; s++)
        c->stages[s].kind = back.stages[s].kind;
    if (!candidate_equal(c, &back))
        fail_msg("another %s: %s", plan_placement_name(place), json_dumps(document, 0));
    json_decref(document);
    candidate_fini(&back);
    document = document_of(&problem, c, false);
    must(candidate_from_document(&problem, document, false, &back, &err), &err);
    if (back.estimate_s > 1.5 * found.seconds[place])
        fail_msg("%s: %g s settled, %g s found", plan_placement_name(place), back.estimate_s,
                 found.seconds[place]);
    json_decref(document);
    candidate_fini(&back);
    search_found_fini(&found);
    problem_fini(&problem);
}

static void every_placement_can_be_said(void **state)
{
    struct model_config config = fixture_config(6);
    struct cluster *cluster = cluster_of(3, 4096 * MIB);
    (void)state;
    for (int full = 0; full < 2; full++) {
        struct workload w = fixture_workload(&config, 64, 8);
        w.method = full ? METHOD_FULL : METHOD_LORA;
        for (int place = 0; place < PLACE_COUNT; place++)
            if (place != PLACE_EXPERT)
                candidate_said(place, &w, cluster);
        workload_fini(&w);
    }
    struct model_config moe = config;
    moe.arch = MODEL_QWEN3_MOE;
    moe.experts = 8;
    moe.experts_active = 2;
    moe.expert_ffn = 192;
    moe.ffn = 0;
    moe.router_renormalise = true;
    struct workload w = fixture_workload(&moe, 64, 8);
    candidate_said(PLACE_EXPERT, &w, cluster);
    workload_fini(&w);
    cluster_destroy(cluster);
}

/* An assignment that has only devices becomes a plan that is at most 10 % slower than the planner's own plan
 * with the same devices in the same order. */
static void what_is_left_out_is_settled(void **state)
{
    static const int places[] = {PLACE_SINGLE, PLACE_PIPELINE, PLACE_DATA, PLACE_HYBRID};
    struct model_config config = fixture_config(8);
    struct workload w = fixture_workload(&config, 64, 16);
    struct cluster *cluster = cluster_of(3, 400 * MIB);
    struct err err = {0};
    (void)state;
    for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
        w.place = places[i];
        struct plan_answer *answer = search(&w, cluster);
        struct plan *plan = NULL;
        double step_s = 0;
        if (!answer->plan)
            fail_msg("%s: %s", plan_placement_name(places[i]), answer->words);
        json_t *stages = json_array();
        for (uint32_t r = 0; r < answer->plan->rank_count; r++) {
            const struct plan_rank *rank = &answer->plan->ranks[r];
            if (r == 0 || rank->stage != rank[-1].stage)
                json_array_append_new(stages, json_pack("{s:[]}", "members"));
            json_array_append_new(
                json_object_get(json_array_get(stages, json_array_size(stages) - 1), "members"),
                json_pack("{s:s}", "device", rank->device));
        }
        json_t *document = json_pack("{s:i, s:s, s:o}", "version", 1, "placement",
                                     plan_placement_name(places[i]), "stages", stages);
        must(plug_accept(document, &w, cluster, &plan, &step_s, &err), &err);
        if (step_s > 1.1 * answer->step_s)
            fail_msg("%s: %g s, ours %g s", plan_placement_name(places[i]), step_s, answer->step_s);
        plan_destroy(plan);
        json_decref(document);
        plan_answer_destroy(answer);
    }
    workload_fini(&w);
    cluster_destroy(cluster);
}

/* Each of these changes is made alone, to an assignment that would be accepted without it. */
static void what_is_wrong_in_an_assignment_is_named_by_its_path(void **state)
{
    struct model_config config = fixture_config(8);
    struct workload w = fixture_workload(&config, 64, 8);
    struct cluster *cluster = cluster_of(2, 4096 * MIB);
    const struct {
        const char *path, *value, *says;
    } wrong[] = {
        {"version", "2", "version"},
        {"placement", "\"magic\"", "placement"},
        {"placement", "\"tensor\"", "these stages do not fit"}, /* no stage has two members */
        {"placement", "\"single\"", "single has one"},
        {"placement", "\"hybrid\"", "take 3 devices at least"},
        {"schedule", "\"interleaved\"", "interleaved is not said"},
        {"micro_batch_rows", "0", "micro_batch_rows"},
        {"micro_batch_rows", "9", "micro_batch_rows"},
        {"micro_batch_rows", "1e300", "micro_batch_rows"},
        {"stages", "[]", "stages"},
        {"stages", "7", "stages"},
        {"stages/0/blocks", "[0, 5]", "stages[1].blocks"},
        {"stages/0/blocks", "[1, 6]", "stages[0].blocks"},
        {"stages/0/blocks", "[0, 0]", "stages[0].blocks"},
        {"stages/0/blocks", "null", "either all stages say theirs"},
        {"stages/1/blocks", "null", "either all stages say theirs"},
        {"stages/1/kind", "\"tensor\"", "stages of this placement are replicas"},
        {"stages/1/blocks", "[6, 9]", "they end at block 9 of 10"},
        {"stages/1/blocks", "[6, 11]", "stages[1].blocks"},
        {"stages/1/blocks", "[6, 4294967306]", "stages[1].blocks"},
        {"stages/1/members", "[]", "stages[1].members"},
        {"stages/1/members", "[{\"device\": \"n1/0\"}, {\"device\": \"n0/0\"}]",
         "stages[1].members: 2; stages of this placement have 1"},
        {"stages/1/members/0/device", "\"n0/0\"", "n0/0 is there twice"},
        {"stages/1/members/0/device", "\"gone\"", "there is no device \"gone\""},
        {"stages/1/members/0/window", "0", "stages[1].members[0].window"},
        {"stages/1/members/0/window", "3", "more than the 2 of the stage before"},
        {"stages/1/members/0/rows", "4", "n1/0 takes 4 rows of micro-batches of 2"},
        {"stages/1/members/0/count", "4", "stages[1].members[0].count"},
        {"stages/1/members/0/state_share", "-1", "stages[1].members[0].state_share"},
        {"stages/1/members/0/tensor", "{\"columns\": [2, 1]}", "stages[1].members[0].tensor.kv_heads"},
        {"stages/1/members/0/recompute", "\"yes\"", "stages[1].members[0].recompute"},
        {"stages/1/members/0/speed", "4", "speed"},
        {"colour", "1", "colour"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        json_t *document = assignment("n0/0", "n1/0", 6, 10);
        set(document, wrong[i].path, json_loads(wrong[i].value, JSON_DECODE_ANY, NULL));
        refused(document, &w, cluster, wrong[i].says);
        json_decref(document);
    }
    static const char *const garbage[] = {
        "null", "[]", "3", "\"plan\"", "{}", "{\"ranks\": 1}", "{\"plan\": {\"ranks\": []}}"};
    for (size_t i = 0; i < sizeof(garbage) / sizeof(garbage[0]); i++) {
        json_t *document = json_loads(garbage[i], JSON_DECODE_ANY, NULL);
        refused(document, &w, cluster, "");
        json_decref(document);
    }
    workload_fini(&w);
    cluster_destroy(cluster);
}

static void what_the_specification_and_the_devices_forbid_is_refused(void **state)
{
    struct model_config config = fixture_config(8);
    struct workload w = fixture_workload(&config, 64, 8);
    struct cluster *large = cluster_of(3, 4096 * MIB), *small = cluster_of(2, 120 * MIB);
    json_t *document = assignment("n0/0", "n1/0", 6, 10);
    char *names[] = {(char *)"n1/0"};
    (void)state;
    refused(document, &w, small, "n1/0 needs");
    w.place = PLACE_SINGLE;
    refused(document, &w, large, "single is asked for");
    w.place = -1;
    w.micro_batch_rows = 4;
    refused(document, &w, large, "4 are asked for");
    w.micro_batch_rows = 0;
    w.stages = 3;
    refused(document, &w, large, "3 are asked for");
    w.stages = 0;
    w.exclude = names;
    w.exclude_count = 1;
    refused(document, &w, large, "n1/0 is not to be used");
    w.exclude = NULL;
    w.exclude_count = 0;
    w.recompute = RECOMPUTE_YES;
    set(document, "stages/0/members/0/recompute", json_false());
    refused(document, &w, large, "asks for the other");
    json_decref(document);
    workload_fini(&w);
    cluster_destroy(large);
    cluster_destroy(small);
}

/* A plan of each kind that the planner makes for workers of this release is accepted, with its digest and
 * without, and its step time is the one that the planner gave. */
static void our_own_plans_are_taken_at_the_same_time(void **state)
{
    static const int places[] = {PLACE_SINGLE, PLACE_PIPELINE, PLACE_DATA, PLACE_HYBRID};
    (void)state;
    for (size_t k = 0; k < sizeof(places) / sizeof(*places); k++) {
        struct model_config config = fixture_config(6);
        struct workload w = fixture_workload(&config, 64, 8);
        struct cluster *cluster = cluster_of(places[k] == PLACE_HYBRID ? 3 : 2, 4096 * MIB);
        w.place = places[k];
        struct plan_answer *answer = search(&w, cluster);
        struct err err = {0};
        if (answer->verdict != VERDICT_FITS)
            fail_msg("%s: %s", plan_placement_name(places[k]), answer->words);
        json_t *document = plan_to_json(answer->plan, &err);
        for (int sealed = 1; sealed >= 0; sealed--) {
            struct plan *plan = NULL;
            double step_s = 0;
            if (!sealed)
                json_object_del(document, "digest");
            must(plug_accept(document, &w, cluster, &plan, &step_s, &err), &err);
            assert_true(step_s > answer->step_s * (1 - 1e-9) && step_s < answer->step_s * (1 + 1e-9));
            plan_destroy(plan);
        }
        json_decref(document);
        plan_answer_destroy(answer);
        workload_fini(&w);
        cluster_destroy(cluster);
    }
}

/* Asks for a plan of a placement and order, and repeats it. Returns 1 if that is possible, 0 if there is no
 * such plan, -1 with the reason if it is refused. */
static int repeats(uint64_t seed, int place, uint32_t order, bool full, struct err *err)
{
    const struct plan_options options = {
        .programs = true, .brief = true, .evaluations = 2000, .runnable_only = true};
    struct plan_answer *answer = NULL, *again = NULL;
    struct scene s;
    scene_init(&s, seed, false);
    s.workload.place = place;
    s.workload.order = order;
    if (full)
        s.workload.method = METHOD_FULL;
    int result = plan_search(&s.workload, s.cluster, &options, &answer, err) == 0 && answer->plan;
    if (result) {
        json_t *document = plan_to_json(answer->plan, err);
        result = plug_repeat(document, &s.workload, s.cluster, &again, err) < 0 ? -1 : 1;
        if (result > 0 &&
            (again->step_s > answer->step_s * (1 + 1e-9) || again->step_s < answer->step_s * (1 - 1e-9)))
            fail_msg("seed %llu, %s: %.9g s, repeated %.9g s", (unsigned long long)seed,
                     plan_placement_name((enum plan_placement)place), answer->step_s, again->step_s);
        json_decref(document);
    }
    plan_answer_destroy(again);
    plan_answer_destroy(answer);
    scene_fini(&s);
    return result;
}

/* Whatever the planner answers for workers of this release can be repeated (placement.plan): plans of every
 * placement and order on random clusters of 2 to 5 devices. MOTLEY_LONG takes 100 clusters, of which one plan
 * in 200 may be refused by name: a plan does not tell its candidate in full. */
static void every_answer_can_be_repeated(void **state)
{
    const uint64_t count = getenv("MOTLEY_LONG") ? 100 : 12;
    uint32_t done = 0, refused_count = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= count; seed++) {
        for (int place = 0; place < PLACE_COUNT; place++) {
            const bool orders = place == PLACE_PIPELINE || place == PLACE_HYBRID;
            for (uint32_t order = 0; order <= (orders ? SCHEDULE_COUNT : 0u); order++) {
                struct err err = {0};
                const int result = repeats(seed, place, order, seed % 3 == 0, &err);
                done += result > 0;
                refused_count += result < 0;
                if (result < 0)
                    print_message("seed %llu, %s, order %u: %s\n", (unsigned long long)seed,
                                  plan_placement_name((enum plan_placement)place), order, err.text);
            }
        }
    }
    print_message("%u plans repeated, %u refused\n", done, refused_count);
    assert_true(done > 8 * count && refused_count <= done / 200);
}

/* Plans that state too little memory are refused, although their own sums agree and their digest is right. */
static void a_plan_that_lies_about_memory_is_refused(void **state)
{
    struct model_config config = fixture_config(8);
    struct workload w = fixture_workload(&config, 64, 8);
    struct cluster *cluster = cluster_of(2, 450 * MIB);
    struct plan_answer *answer;
    struct err err = {0};
    (void)state;
    w.place = PLACE_PIPELINE;
    answer = search(&w, cluster);
    assert_int_equal(answer->verdict, VERDICT_FITS);
    struct plan *plan = answer->plan;
    /* Too little is stated for weights. Nothing else in the plan contradicts it, so plan_check() passes. */
    plan->ranks[0].memory_peak[PURPOSE_WEIGHTS] -= 50 * MIB;
    plan->ranks[0].memory_bytes -= 50 * MIB;
    must(plan_seal(plan, &err), &err);
    must(plan_check(plan, &err), &err);
    json_t *document = plan_to_json(plan, &err);
    refused(document, &w, cluster, "bytes of weights, it needs");
    json_decref(document);
    plan->ranks[0].memory_peak[PURPOSE_WEIGHTS] += 50 * MIB;
    plan->ranks[0].memory_bytes += 50 * MIB;
    /* Half the bytes are stated for what forward keeps for backward, in both of the slot's numbers. */
    for (uint32_t s = 0; s < plan->ranks[0].slot_count; s++) {
        struct plan_slot *slot = &plan->ranks[0].slots[s];
        if (slot->kind != SLOT_SAVED)
            continue;
        const struct plan_slot before = *slot;
        slot->bytes_total /= 2;
        slot->bytes_bound /= 2;
        must(plan_seal(plan, &err), &err);
        document = plan_to_json(plan, &err);
        refused(document, &w, cluster, "it needs");
        json_decref(document);
        *slot = before;
        /* Half the bytes are stated for all buffers together. */
        slot->bytes_total =
            slot->bytes_total / 2 > slot->bytes_bound ? slot->bytes_total / 2 : slot->bytes_bound;
        must(plan_seal(plan, &err), &err);
        document = plan_to_json(plan, &err);
        refused(document, &w, cluster, "it needs");
        json_decref(document);
        *slot = before;
    }
    /* The plan is changed and keeps its old digest. */
    must(plan_seal(plan, &err), &err);
    document = plan_to_json(plan, &err);
    set(document, "tokens_bound", json_integer((json_int_t)plan->tokens_bound + 1));
    refused(document, &w, cluster, "digest");
    json_decref(document);
    plan_answer_destroy(answer);
    workload_fini(&w);
    cluster_destroy(cluster);
}

/* A short document whose repeat count makes 4 million instructions of it is refused. */
static void what_unfolds_without_end_is_refused(void **state)
{
    struct model_config config = fixture_config(8);
    struct workload w = fixture_workload(&config, 64, 8);
    struct cluster *cluster = cluster_of(2, 4096 * MIB);
    struct plan_answer *answer = search(&w, cluster);
    struct err err = {0};
    (void)state;
    json_t *document = plan_to_json(answer->plan, &err);
    json_t *programs = json_object_get(json_array_get(json_object_get(document, "ranks"), 0), "programs");
    json_t *train = json_object_get(programs, "train");
    json_t *bomb = json_pack("[{s:i, s:[O]}]", "repeat", 1 << 22, "body", json_array_get(train, 0));
    json_object_set_new(programs, "train", bomb);
    refused(document, &w, cluster, "more instructions than are allowed");
    json_decref(document);
    plan_answer_destroy(answer);
    workload_fini(&w);
    cluster_destroy(cluster);
}

/* Finds the *n-th value in `at` that is no object or array, at any depth, and counts *n down. *holder is the
 * object or array that holds it, and *name its key or *index its position there. */
static bool leaf_find(json_t *at, uint32_t *n, json_t **holder, size_t *index, const char **name)
{
    size_t i;
    const char *key;
    json_t *value;
    json_array_foreach (at, i, value) {
        if (!json_is_object(value) && !json_is_array(value) && (*n)-- == 0) {
            *holder = at;
            *index = i;
            return true;
        }
        if (leaf_find(value, n, holder, index, name))
            return true;
    }
    json_object_foreach (at, key, value) {
        if (!json_is_object(value) && !json_is_array(value) && (*n)-- == 0) {
            *holder = at;
            *name = key;
            return true;
        }
        if (leaf_find(value, n, holder, index, name))
            return true;
    }
    return false;
}

static json_t *odd_value(struct rand_stream *r)
{
    static const json_int_t numbers[] = {-1,  0,     1,       2,         3,          7,
                                         255, 65536, 1 << 22, INT32_MAX, UINT32_MAX, INT64_MAX};
    uint32_t which = rand_stream_below(r, 16);
    if (which == 12)
        return json_true();
    if (which == 13)
        return json_real(0.5);
    if (which == 14)
        return json_string("n1/0");
    return which == 15 ? json_null() : json_integer(numbers[which]);
}

/* Returns the assignment (new) that makes this plan. */
static json_t *said_of(const struct workload *w, const struct cluster *cluster, const struct plan *plan)
{
    const struct placement_kind *kind = kinds[plan->placement];
    struct problem problem;
    struct candidate c = {0};
    struct err err = {0};
    must(problem_init(&problem, w, cluster, &err), &err);
    must((kind->from_plan ? kind->from_plan : candidate_from_plan)(&problem, plan, &c, &err), &err);
    json_t *document = document_of(&problem, &c, true);
    candidate_fini(&c);
    problem_fini(&problem);
    return document;
}

/* Answers with one to three values changed at random are refused or accepted; the sanitizers must not find
 * anything. */
static void random_changes_are_survived(void **state)
{
    struct model_config config = fixture_config(4);
    struct workload w = fixture_workload(&config, 16, 4);
    struct cluster *cluster = cluster_of(3, 4096 * MIB);
    struct rand_stream r;
    struct err err = {0};
    uint32_t taken = 0;
    (void)state;
    rand_stream_init(&r, 11, 3);
    for (int form = 0; form < 5; form++) {
        static const int places[] = {-1, PLACE_HYBRID, PLACE_DATA, PLACE_PIPELINE, PLACE_DATA};
        json_t *good = form == 0 ? assignment("n0/0", "n1/0", 3, 6) : NULL;
        if (!good) {
            w.place = places[form];
            struct plan_answer *answer = search(&w, cluster);
            good = form < 3 ? said_of(&w, cluster, answer->plan) : plan_to_json(answer->plan, &err);
            json_object_del(good, "digest");
            plan_answer_destroy(answer);
        }
        w.place = -1;
        for (uint32_t round = 0; round < 250; round++) {
            json_t *document = json_deep_copy(good), *holder = NULL;
            struct plan *plan = NULL;
            double step_s;
            for (uint32_t k = rand_stream_below(&r, 3) + 1; k > 0; k--) {
                const char *name = NULL;
                size_t index = 0;
                uint32_t n = rand_stream_below(&r, form == 0 ? 12 : form < 3 ? 40 : 600);
                if (!leaf_find(document, &n, &holder, &index, &name))
                    continue;
                if (name)
                    json_object_set_new(holder, name, odd_value(&r));
                else
                    json_array_set_new(holder, index, odd_value(&r));
            }
            taken += plug_accept(document, &w, cluster, &plan, &step_s, &err) == 0;
            plan_destroy(plan);
            json_decref(document);
        }
        json_decref(good);
    }
    assert_true(taken < 5 * 250);
    workload_fini(&w);
    cluster_destroy(cluster);
}

static const char *member(const json_t *told, const char *key)
{
    const char *text = json_string_value(json_object_get(told, key));
    return text ? text : "";
}

static void the_better_plan_is_taken_and_the_words_say_which(void **state)
{
    struct model_config config = fixture_config(8);
    struct workload w = fixture_workload(&config, 64, 8);
    struct cluster *cluster = cluster_of(2, 450 * MIB);
    struct plan_answer *answer = search(&w, cluster);
    json_t *bad = assignment("n1/0", "n0/0", 5, 10), *told = NULL;
    struct err err = {0}, late = {0};
    (void)state;
    const double ours = answer->step_s;
    struct plug_answer theirs = {.name = "mine", .document = bad, .plan_s = 0.5, .slower_at_most = 1.05};
    must(plug_choose(&theirs, &w, cluster, answer, &told, &err), &err);
    assert_string_equal(member(told, "verdict"), "slower");
    assert_true(json_real_value(json_object_get(told, "ratio")) > 1.05);
    assert_true(answer->step_s == ours);
    assert_non_null(strstr(answer->words, "Planner \"mine\": its plan takes"));
    assert_non_null(strstr(member(told, "why"), "the built-in planner's plan is used"));
    json_decref(told);

    theirs.slower_at_most = 100;
    must(plug_choose(&theirs, &w, cluster, answer, &told, &err), &err);
    assert_string_equal(member(told, "verdict"), "used");
    assert_true(json_is_null(json_object_get(told, "why")));
    assert_true(answer->step_s > ours);
    assert_string_equal(answer->plan->ranks[0].device, "n1/0");
    assert_non_null(strstr(answer->words, "Planned by \"mine\"."));
    json_t *document = answer_to_json(answer, &err);
    assert_true(json_real_value(json_object_get(document, "step_s")) == answer->step_s);
    json_decref(document);
    json_decref(told);

    theirs.document = NULL;
    theirs.why = &late;
    err_set(&late, ERR_TIMEOUT, "was not done within 10 s");
    must(plug_choose(&theirs, &w, cluster, answer, &told, &err), &err);
    assert_string_equal(member(told, "verdict"), "refused");
    assert_non_null(strstr(member(told, "why"), "\"mine\": was not done within 10 s; the built-in"));
    json_decref(told);
    json_decref(bad);
    plan_answer_destroy(answer);
    workload_fini(&w);
    cluster_destroy(cluster);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(an_assignment_becomes_a_plan_that_the_checker_passes),
    cmocka_unit_test(every_placement_can_be_said),
    cmocka_unit_test(what_is_left_out_is_settled),
    cmocka_unit_test(what_is_wrong_in_an_assignment_is_named_by_its_path),
    cmocka_unit_test(what_the_specification_and_the_devices_forbid_is_refused),
    cmocka_unit_test(our_own_plans_are_taken_at_the_same_time),
    cmocka_unit_test(every_answer_can_be_repeated),
    cmocka_unit_test(a_plan_that_lies_about_memory_is_refused),
    cmocka_unit_test(what_unfolds_without_end_is_refused),
    cmocka_unit_test(random_changes_are_survived),
    cmocka_unit_test(the_better_plan_is_taken_and_the_words_say_which),
};

int main(void)
{
    return cmocka_run_group_tests_name("plug", tests, NULL, NULL);
}
