/* Tests that invalid cluster files, model descriptions, tables and specifications are refused with a sentence
 * that names the place, and give no plan. Doubtful input is used for planning, and the answer says so. */
#include "planner/plan_fixture.h"

#include <math.h>

#include "common/json.h"
#include "model/shape/config.h"
#include "planner/given/from_spec.h"
#include "show/print.h"

#define MIB ((uint64_t)1 << 20)
#define SPEC "{\"model\": \"m\", \"data\": {\"train\": \"d\"}}"
#define NODE(device) "{\"nodes\": [{\"name\": \"n1\", \"devices\": [" device "]}]}"
#define CARD "{\"name\": \"n1/0\", \"like\": \"a100x40\"}"
#define LINKED(links)                                                                                        \
    "{\"nodes\": [{\"name\": \"n1\", \"devices\": [" CARD "]}, {\"name\": \"n2\", \"devices\": [{\"name\": " \
    "\"n2/0\", \"like\": \"t4\"}]}], \"links\": {" links "}}"

static json_t *parsed(const char *text)
{
    struct err err = {0};
    json_t *json = json_parse_limited(text, strlen(text), JSON_DEPTH_MAX, &err);
    if (!json)
        fail_msg("%s: %s", text, err.text);
    return json;
}

static json_t *model_json(uint32_t layers)
{
    struct err err = {0};
    struct model_config config = fixture_config(layers);
    json_t *json = model_config_to_json(&config, &err);
    if (!json)
        fail_msg("%s", err.text);
    return json;
}

/* Plans and releases all three documents. Returns NULL with *err on failure. */
static struct plan_answer *plan(json_t *spec, json_t *cluster, json_t *model, struct err *err)
{
    struct plan_answer *answer = NULL;
    struct plan_options options = {.evaluations = 2000};
    *err = (struct err){0};
    if (plan_from_cluster(spec, cluster, model, &options, &answer, err) < 0)
        answer = NULL;
    json_decref(spec);
    json_decref(cluster);
    json_decref(model);
    return answer;
}

static void refused(json_t *spec, json_t *cluster, json_t *model, const char *what, const char *part)
{
    struct err err;
    struct plan_answer *answer = plan(spec, cluster, model, &err);
    if (answer)
        fail_msg("accepted: %s", what);
    if (!strstr(err.text, part))
        fail_msg("%s: \"%s\" does not say \"%s\"", what, err.text, part);
}

static void clusters_are_refused_by_path(void **state)
{
    static const struct {
        const char *file, *part;
    } bad[] = {
        {"[]", "cluster"},
        {"{}", "nodes"},
        {"{\"nodes\": 3}", "nodes"},
        {"{\"nodes\": []}", "nodes"},
        {"{\"nodes\": [{\"devices\": [" CARD "]}]}", "nodes[0].name"},
        {"{\"nodes\": [{\"name\": \"\", \"devices\": [" CARD "]}]}", "nodes[0].name"},
        {"{\"nodes\": [{\"name\": \"n1\"}]}", "nodes[0].devices"},
        {"{\"nodes\": [{\"name\": \"n1\", \"devices\": []}]}", "nodes[0].devices"},
        {"{\"nodes\": [{\"name\": \"n1\", \"devices\": [7]}]}", "nodes[0].devices[0]"},
        {NODE("{\"like\": \"t4\"}"), "nodes[0].devices[0].name"},
        {NODE("{\"name\": \"n1/0\"}"), "nodes[0].devices[0].memory_bytes"},
        {NODE("{\"name\": \"n1/0\", \"like\": \"t4\", \"kind\": \"cpu\"}"), "nodes[0].devices[0].kind"},
        {NODE("{\"name\": \"n1/0\", \"like\": \"rtx-3091\"}"), "nearest is rtx-3090"},
        {NODE("{\"name\": \"n1/0\", \"like\": \"abacus\"}"), "nodes[0].devices[0].like"},
        {NODE("{\"name\": \"n1/0\", \"like\": \"t4\", \"memory_bytes\": 0}"),
         "nodes[0].devices[0].memory_bytes"},
        {NODE("{\"name\": \"n1/0\", \"like\": \"t4\", \"memory_bytes\": -5}"),
         "nodes[0].devices[0].memory_bytes"},
        {NODE("{\"name\": \"n1/0\", \"like\": \"t4\", \"memory_bytes\": \"much\"}"),
         "nodes[0].devices[0].memory_bytes"},
        {NODE("{\"name\": \"n1/0\", \"like\": \"t4\", \"memory_bytes\": 1e30}"),
         "nodes[0].devices[0].memory_bytes"},
        {NODE("{\"name\": \"n1/0\", \"like\": \"t4\", \"speed\": 0}"), "nodes[0].devices[0].speed"},
        {NODE("{\"name\": \"n1/0\", \"like\": \"t4\", \"speed\": -1}"), "nodes[0].devices[0].speed"},
        {NODE("{\"name\": \"n1/0\", \"like\": \"t4\", \"heat\": 1.5}"), "nodes[0].devices[0].heat"},
        {NODE("{\"name\": \"n1/0\", \"like\": \"t4\", \"watts\": -30}"), "nodes[0].devices[0].watts"},
        {NODE("{\"name\": \"n1/0\", \"like\": \"t4\", \"price_per_hour\": -1}"),
         "nodes[0].devices[0].price_per_hour"},
        {NODE("{\"name\": \"n1/0\", \"like\": \"t4\", \"threads\": 0}"), "nodes[0].devices[0].threads"},
        {NODE(CARD ", " CARD), "nodes[0].devices[1]"},
        {"{\"nodes\": [{\"name\": \"n1\", \"devices\": [" CARD "]}, {\"name\": \"n1\", \"devices\": [" CARD
         "]}]}",
         "nodes[1].name"},
        {"{\"nodes\": [{\"name\": \"n1\", \"devices\": [" CARD "]}, {\"name\": \"n2\", \"devices\": [" CARD
         "]}]}",
         "nodes[1].devices[0]"},
        {"{\"nodes\": [{\"name\": \"n1\", \"nic_bytes_per_s\": 0, \"devices\": [" CARD "]}]}",
         "nodes[0].nic_bytes_per_s"},
        {LINKED("\"between\": {\"latency_s\": -1e-3, \"bytes_per_s\": 1e9}"), "links.between.latency_s"},
        {LINKED("\"between\": {\"latency_s\": 1e-3, \"bytes_per_s\": 0}"), "links.between.bytes_per_s"},
        {LINKED("\"between\": {\"latency_s\": 1e-3}"), "links.between.bytes_per_s"},
        {LINKED("\"within\": {\"bytes_per_s\": 1e9}"), "links.within.latency_s"},
        {LINKED("\"pairs\": [{\"a\": \"n1\", \"b\": \"n9\", \"latency_s\": 0, \"bytes_per_s\": 1}]"),
         "links.pairs[0].b"},
        {LINKED("\"pairs\": [{\"a\": \"n9\", \"b\": \"n1\", \"latency_s\": 0, \"bytes_per_s\": 1}]"),
         "links.pairs[0].a"},
        {LINKED("\"pairs\": [{\"a\": \"n1\", \"b\": \"n1\", \"latency_s\": 0, \"bytes_per_s\": 1}]"),
         "links.pairs[0].b"},
        {LINKED("\"pairs\": [{\"a\": \"n1\", \"b\": \"n2\", \"latency_s\": 0, \"bytes_per_s\": -1}]"),
         "links.pairs[0].bytes_per_s"},
        {LINKED("\"pairs\": [{\"a\": \"n1\", \"b\": \"n2\", \"latency_s\": 0, \"bytes_per_s\": 1e8}, {\"a\": "
                "\"n2\", "
                "\"b\": \"n1\", \"latency_s\": 0, \"bytes_per_s\": 1e9}]"),
         "links.pairs[1].b"},
        {LINKED("\"directed\": [{\"from\": \"n1\", \"to\": \"n7\", \"latency_s\": 0, \"bytes_per_s\": 1e8}]"),
         "links.directed[0]"},
        {LINKED("\"sideways\": 1"), "sideways"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        refused(parsed(SPEC), parsed(bad[i].file), model_json(4), bad[i].file, bad[i].part);
    struct err err = {0};
    static const char not_a_number[] = NODE("{\"name\": \"n1/0\", \"like\": \"t4\", \"speed\": NaN}");
    assert_null(json_parse_limited(not_a_number, strlen(not_a_number), JSON_DEPTH_MAX, &err));
    assert_non_null(strstr(err.text, "line 1"));
}

static void devices_that_are_added_are_checked_too(void **state)
{
    (void)state;
    struct err err = {0};
    struct cluster *cluster = cluster_create(&err);
    struct cluster_device good = {.name = "a/0", .node = "a", .memory_limit_bytes = 1 << 30}, bad[9];
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        bad[i] = good;
    bad[0].speed = NAN;
    bad[1].speed = -1;
    bad[2].heat = 2;
    bad[3].watts = INFINITY;
    bad[4].price_per_hour = NAN;
    bad[5].memory_limit_bytes = 0;
    bad[6].name = "";
    bad[7].node = NULL;
    bad[8].like = "abacus";
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(cluster_add_device(cluster, &bad[i], &err), -1);
    assert_int_equal(cluster_add_device(cluster, &good, &err), 0);
    assert_int_equal(cluster_add_device(cluster, &good, &err), -1);
    assert_int_equal(err.code, ERR_CONFLICT);
    assert_int_equal(cluster_set_defaults(cluster, NAN, 1, 0, 1, &err), -1);
    assert_int_equal(cluster_set_defaults(cluster, 0, 1, 0, 0, &err), -1);
    assert_int_equal(cluster_set_nic(cluster, "a", -1, &err), -1);
    assert_int_equal(cluster_set_nic(cluster, "b", 1, &err), -1);
    assert_int_equal(cluster_device_count(cluster), 1);
    cluster_destroy(cluster);
}

/* --- tables --- */

#define POINT(block, tokens, labelled, forward, backward)                                                    \
    "{\"block\": \"" block "\", \"rows\": 1, \"tokens\": " tokens ", \"labelled\": " labelled                \
    ", \"forward_s\": " forward ", \"backward_s\": " backward "}"
#define HEAD POINT("head", "64", "32", "1e-2", "1e-2")
#define TABLE(points) "{\"device\": \"a/0\", \"points\": [" points "]}"

static void tables_with_holes_and_zeros_are_refused_by_path(void **state)
{
    static const struct {
        const char *table, *part;
    } bad[] = {
        {"[]", "profile"},
        {"{\"points\": []}", "profile.device"},
        {"{\"device\": \"z/9\", \"points\": []}", "z/9"},
        {"{\"device\": \"a/0\"}", "profile.points"},
        {TABLE(""), "profile.points"},
        {TABLE(HEAD), "none is of a layer"},
        {TABLE(POINT("layer", "64", "0", "1e-3", "1e-3")), "none is of a head"},
        {TABLE("null"), "profile.points[0]"},
        {TABLE(HEAD ", {\"block\": \"layer\", \"tokens\": 64}"), "profile.points[1].forward_s"},
        {TABLE(HEAD ", {\"block\": \"layer\", \"forward_s\": 1}"), "profile.points[1].tokens"},
        {TABLE(HEAD ", {\"tokens\": 64, \"forward_s\": 1}"), "profile.points[1].block"},
        {TABLE(HEAD ", " POINT("sofa", "64", "0", "1", "1")), "profile.points[1].block"},
        {TABLE(HEAD ", " POINT("layer", "64", "0", "0", "1e-3")), "profile.points[1].forward_s"},
        {TABLE(HEAD ", " POINT("layer", "64", "0", "1e-3", "0")), "profile.points[1].backward_s"},
        {TABLE(HEAD ", " POINT("layer", "64", "0", "-1e-3", "1e-3")), "profile.points[1].forward_s"},
        {TABLE(HEAD ", " POINT("layer", "64", "0", "null", "1e-3")), "profile.points[1].forward_s"},
        {TABLE(HEAD ", " POINT("layer", "0", "0", "1e-3", "1e-3")), "profile.points[1].tokens"},
        {TABLE(HEAD ", " POINT("layer", "64", "65", "1e-3", "1e-3")), "profile.points[1].labelled"},
        {TABLE(HEAD
               ", {\"block\": \"layer\", \"rows\": 2, \"tokens\": 64, \"sum_sq\": 9e9, \"forward_s\": 1, "
               "\"backward_s\": 1}"),
         "profile.points[1].sum_sq"},
        {TABLE(HEAD ", {\"block\": \"layer\", \"rows\": 1e-300, \"tokens\": 64, \"forward_s\": 1, "
                    "\"backward_s\": 1}"),
         "profile.points[1].rows"},
        {TABLE(HEAD ", {\"block\": \"layer\", \"rows\": 65, \"tokens\": 64, \"forward_s\": 1, "
                    "\"backward_s\": 1}"),
         "profile.points[1].rows"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct err err = {0};
        struct cluster *cluster = cluster_create(&err);
        struct cluster_device device = {.name = "a/0", .node = "a", .memory_limit_bytes = 1 << 30};
        json_t *table = parsed(bad[i].table);
        assert_int_equal(cluster_add_device(cluster, &device, &err), 0);
        if (cluster_add_profile(cluster, table, &err) == 0)
            fail_msg("accepted: %s", bad[i].table);
        if (!strstr(err.text, bad[i].part))
            fail_msg("%s: \"%s\" does not say \"%s\"", bad[i].table, err.text, bad[i].part);
        assert_false(cluster_device_has_profile(cluster, 0));
        json_decref(table);
        cluster_destroy(cluster);
    }
    refused(parsed(SPEC),
            parsed(NODE("{\"name\": \"n1/0\", \"memory_bytes\": 1e9, \"profile\": {\"device\": \"n1/0\", "
                        "\"points\": [" HEAD "]}}")),
            model_json(4), "a table in a cluster file", "nodes[0].devices[0]");
}

/* Plans with a table of a layer and a head whose times are `scale` times those of 5e10 FLOP/s. The time of
 * one point is multiplied by `spoil`. */
static struct plan_answer *with_table(double scale, double spoil, uint32_t batch_rows)
{
    struct err err = {0};
    struct model_config config = fixture_config(8);
    struct workload w = fixture_workload(&config, 5 * batch_rows, batch_rows);
    struct cluster *cluster = cluster_create(&err);
    struct plan_answer *answer = NULL;
    struct cluster_device device = {.name = "a/0", .node = "a", .memory_limit_bytes = 2000 * MIB};
    json_t *points = json_array();
    assert_int_equal(cluster_add_device(cluster, &device, &err), 0);
    for (int tokens = 32; tokens <= 2048; tokens *= 2) {
        double layer = scale * tokens * 7.1e6 / 5e10 * (tokens == 1024 ? spoil : 1);
        double head = scale * tokens * 5.7e7 / 5e10;
        json_array_append_new(points, json_pack("{s:s,s:i,s:i,s:f,s:f}", "block", "layer", "rows", 1,
                                                "tokens", tokens, "forward_s", layer, "backward_s", layer));
        json_array_append_new(points,
                              json_pack("{s:s,s:i,s:i,s:i,s:f,s:f}", "block", "head", "rows", 1, "tokens",
                                        tokens, "labelled", tokens, "forward_s", head, "backward_s", head));
    }
    json_t *table = json_pack("{s:s,s:o}", "device", "a/0", "points", points);
    struct plan_options options = {.evaluations = 500};
    if (cluster_add_profile(cluster, table, &err) < 0 ||
        plan_search(&w, cluster, &options, &answer, &err) < 0)
        fail_msg("%s", err.text);
    json_decref(table);
    cluster_destroy(cluster);
    workload_fini(&w);
    return answer;
}

static bool warned(const struct plan_answer *answer, const char *part)
{
    for (uint32_t i = 0; i < answer->warning_count; i++)
        if (strstr(answer->warnings[i], part))
            return true;
    return false;
}

static void doubtful_tables_are_planned_with_and_said(void **state)
{
    (void)state;
    struct err err = {0};
    struct plan_answer *good = with_table(1, 1, 8), *fast = with_table(1e-3, 1, 8),
                       *falls = with_table(1, 0.3, 8);
    struct plan_answer *slow = with_table(1e3, 1, 8);
    assert_int_equal(good->warning_count, 0);
    assert_true(warned(fast, "profile of a/0: a layer") && warned(fast, "times the peak of") &&
                warned(fast, "in seconds"));
    assert_true(warned(falls, "levelled out"));
    assert_true(warned(slow, "profile of a/0: a layer") && warned(slow, "are its times in seconds?"));
    plan_answer_destroy(slow);
    assert_int_equal(falls->verdict, VERDICT_FITS);
    json_t *json = answer_to_json(fast, &err);
    assert_int_equal(json_array_size(json_object_get(json, "warnings")), fast->warning_count);
    struct buf text;
    buf_init(&text, 1 << 20);
    assert_int_equal(answer_print(fast, &text, &err), 0);
    assert_non_null(strstr(buf_str(&text), "warning: profile of a/0"));
    buf_fini(&text);
    json_decref(json);
    plan_answer_destroy(good);
    plan_answer_destroy(fast);
    plan_answer_destroy(falls);
}

/* A table whose longest shapes were levelled to one time does not let larger micro-batches cost nothing. */
static void a_batch_beyond_a_levelled_table_is_not_free(void **state)
{
    (void)state;
    struct plan_answer *good = with_table(1, 1, 400), *flat = with_table(1, 3, 400);
    assert_true(warned(flat, "levelled out"));
    assert_int_equal(flat->verdict, VERDICT_FITS);
    assert_true(flat->plan->costs.step_s > good->plan->costs.step_s / 2);
    plan_answer_destroy(good);
    plan_answer_destroy(flat);
}

/* --- models --- */

static void models_are_refused_by_key(void **state)
{
    static const struct {
        const char *key, *value, *part;
    } bad[] = {
        {"hidden_size", NULL, "hidden_size"},
        {"hidden_size", "0", "hidden_size"},
        {"hidden_size", "-576", "hidden_size"},
        {"hidden_size", "576.5", "hidden_size"},
        {"hidden_size", "\"576\"", "hidden_size"},
        {"hidden_size", "1e18", "hidden_size"},
        {"num_hidden_layers", NULL, "num_hidden_layers"},
        {"num_hidden_layers", "0", "num_hidden_layers"},
        {"num_hidden_layers", "100000", "num_hidden_layers"},
        {"intermediate_size", NULL, "intermediate_size"},
        {"intermediate_size", "0", "intermediate_size"},
        {"num_attention_heads", NULL, "num_attention_heads"},
        {"num_attention_heads", "0", "num_attention_heads"},
        {"num_attention_heads", "10", "num_key_value_heads"},
        {"num_key_value_heads", "0", "num_key_value_heads"},
        {"num_key_value_heads", "2", "num_key_value_heads"},
        {"num_key_value_heads", "18", "num_key_value_heads"},
        {"head_dim", "63", "head_dim"},
        {"head_dim", "0", "head_dim"},
        {"head_dim", "100000", "head_dim"},
        {"vocab_size", NULL, "vocab_size"},
        {"vocab_size", "0", "vocab_size"},
        {"vocab_size", "-1", "vocab_size"},
        {"rms_norm_eps", "0", "rms_norm_eps"},
        {"bos_token_id", "\"first\"", "bos_token_id"},
        {"eos_token_id", "[1, \"last\"]", "eos_token_id"},
        {"model_type", "\"abacus\"", "model_type"},
        {"architectures", "[\"MixtralForCausalLM\"]", "architectures"},
        {"rope_parameters", "{\"rope_type\": \"llama3\", \"factor\": 8}", "rope_parameters"},
        {"rope_parameters", "{\"rope_type\": \"linear\", \"factor\": 0}", "rope_parameters.factor"},
        {"hidden_act", "\"gelu\"", "hidden_act"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        json_t *model = model_json(4);
        if (bad[i].value) {
            json_error_t why;
            json_object_set_new(model, bad[i].key, json_loads(bad[i].value, JSON_DECODE_ANY, &why));
        } else {
            json_object_del(model, bad[i].key);
        }
        refused(parsed(SPEC), parsed(NODE(CARD)), model, bad[i].key, bad[i].part);
    }
    json_t *narrow =
        model_json(4); /* The number of heads does not divide the width, and head_dim is not given. */
    json_object_del(narrow, "head_dim");
    json_object_set_new(narrow, "hidden_size", json_integer(577));
    refused(parsed(SPEC), parsed(NODE(CARD)), narrow, "hidden_size", "hidden_size");
}

static json_t *sparse_json(const char *key, const char *value)
{
    json_error_t why;
    json_t *model =
        parsed("{\"model_type\": \"qwen3_moe\", \"hidden_size\": 64, \"intermediate_size\": 128, "
               "\"moe_intermediate_size\": 32, \"num_hidden_layers\": 4, \"num_attention_heads\": 4, "
               "\"num_key_value_heads\": 2, \"head_dim\": 16, \"vocab_size\": 256, \"num_experts\": 8, "
               "\"num_experts_per_tok\": 2}");
    if (value)
        json_object_set_new(model, key, json_loads(value, JSON_DECODE_ANY, &why));
    else if (key)
        json_object_del(model, key);
    return model;
}

static void mixtures_are_refused_by_key(void **state)
{
    static const struct {
        const char *key, *value, *part;
    } bad[] = {
        {"num_experts", NULL, "num_experts"},
        {"num_experts", "0", "num_experts"},
        {"num_experts", "-8", "num_experts"},
        {"num_experts_per_tok", "9", "num_experts_per_tok"},
        {"num_experts_per_tok", "0", "num_experts_per_tok"},
        {"num_experts_per_tok", NULL, "num_experts_per_tok"},
        {"num_local_experts", "4", "num_experts"},
        {"moe_intermediate_size", NULL, "moe_intermediate_size"},
        {"moe_intermediate_size", "0", "moe_intermediate_size"},
        {"mlp_only_layers", "[0, 1, 2, 3]", "mlp_only_layers"},
        {"mlp_only_layers", "[4]", "mlp_only_layers"},
        {"decoder_sparse_step", "0", "decoder_sparse_step"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct err err = {0};
        struct model_config config;
        json_t *model = sparse_json(bad[i].key, bad[i].value);
        if (model_config_parse(model, &config, &err) == 0)
            fail_msg("accepted: %s %s", bad[i].key, bad[i].value ? bad[i].value : "absent");
        if (!strstr(err.text, bad[i].part))
            fail_msg("%s: \"%s\" does not say \"%s\"", bad[i].key, err.text, bad[i].part);
        json_decref(model);
    }
    struct err err = {0};
    struct model_config config;
    json_t *good = sparse_json(NULL, NULL);
    assert_int_equal(model_config_parse(good, &config, &err), 0);
    json_decref(good);
}

/* --- specifications and sizes --- */

static void specifications_that_ask_the_impossible_are_refused_by_path(void **state)
{
    static const struct {
        const char *spec, *part;
    } bad[] = {
        {"{\"model\": \"m\", \"data\": {\"train\": \"d\"}, \"train\": {\"batch_rows\": 0}}",
         "train.batch_rows"},
        {"{\"model\": \"m\", \"data\": {\"train\": \"d\", \"sequence_tokens\": 0}}", "data.sequence_tokens"},
        {"{\"model\": \"m\", \"data\": {\"train\": \"d\"}, \"train\": {\"batch_rows\": 4}, \"placement\": "
         "{\"micro_batch_rows\": 8}}",
         "placement.micro_batch_rows"},
        {"{\"model\": \"m\", \"data\": {\"train\": \"d\"}, \"placement\": {\"devices\": [\"n7/3\"]}}",
         "n7/3"},
        {"{\"model\": \"m\", \"data\": {\"train\": \"d\"}, \"placement\": {\"exclude\": [\"n1/0\"]}}",
         "placement"},
        {"{\"model\": \"m\", \"data\": {\"train\": \"d\"}, \"placement\": {\"kind\": \"sideways\"}}",
         "placement.kind"},
        {"{\"model\": \"m\", \"data\": {\"train\": \"d\"}, \"method\": {\"rank\": 0}}", "method.rank"},
        {"{\"model\": \"m\", \"data\": {\"train\": \"d\"}, \"method\": {\"targets\": [\"sofa\"]}}",
         "method.targets"},
        {"{\"data\": {\"train\": \"d\"}}", "model"},
        {"{\"model\": \"m\", \"data\": {\"train\": \"d\", \"sequence_tokens\": 1048576}, \"train\": "
         "{\"batch_rows\": 65536}}",
         "tokens a step"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        refused(parsed(bad[i].spec), parsed(NODE(CARD)), model_json(4), bad[i].spec, bad[i].part);
}

/* The engine packs two values of 16 bits into a word, so boundary tensors of an odd width travel in fp32:
 * they are planned so where the dtype follows from the compute dtype, and refused where 16 bits are asked
 * for. */
static void boundaries_of_odd_width_are_fp32_or_refused(void **state)
{
    (void)state;
    static const char *const asked[] = {"auto", "fp32", "bf16", "fp16"};
    for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++) {
        struct err err = {0};
        json_t *model = model_json(4), *spec = parsed(SPEC);
        json_object_set_new(model, "hidden_size", json_integer(9 * 65));
        json_object_set_new(spec, "train", json_pack("{s:s}", "compute", "bf16"));
        json_object_set_new(spec, "placement", json_pack("{s:s}", "boundary", asked[i]));
        if (i >= 2) {
            refused(spec, parsed(NODE(CARD)), model, asked[i], "placement.boundary");
            continue;
        }
        struct plan_answer *answer = plan(spec, parsed(NODE(CARD)), model, &err);
        if (!answer)
            fail_msg("%s: %s", asked[i], err.text);
        for (uint32_t r = 0; r < answer->plan->rank_count; r++)
            for (uint32_t s = 0; s < answer->plan->ranks[r].slot_count; s++)
                assert_int_equal(answer->plan->ranks[r].slots[s].dtype, PLAN_F32);
        plan_answer_destroy(answer);
    }
}

/* A batch of one row cannot be split over replicas. The answer uses the devices that it can use, or says why
 * it leaves one out. */
static void a_batch_smaller_than_any_split_is_still_answered(void **state)
{
    static const char *const kinds[] = {"auto", "single", "pipeline", "data", "hybrid"};
    (void)state;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct err err;
        char spec[256], nodes[1024];
        snprintf(spec, sizeof(spec),
                 "{\"model\": \"m\", \"data\": {\"train\": \"d\"}, \"train\": {\"batch_rows\": 1}, "
                 "\"placement\": {\"kind\": "
                 "\"%s\"}}",
                 kinds[i]);
        snprintf(
            nodes, sizeof(nodes), NODE("%s"),
            CARD
            ", {\"name\": \"n1/1\", \"like\": \"a100x40\"}, {\"name\": \"n1/2\", \"like\": \"a100x40\"}, "
            "{\"name\": \"n1/3\", \"like\": \"a100x40\"}");
        struct plan_answer *answer = plan(parsed(spec), parsed(nodes), model_json(2), &err);
        if (!answer) {
            assert_true(strlen(err.text) > 10);
            print_message("%s of one row: %s\n", kinds[i], err.text);
            continue;
        }
        print_message("%s of one row: %s\n", kinds[i], answer->words);
        assert_true(strlen(answer->words) > 10);
        if (strcmp(kinds[i], "data") == 0)
            assert_non_null(strstr(answer->words, "train.batch_rows"));
        if (answer->plan) {
            assert_int_equal(answer->plan->micro_batch_count, 1);
            assert_true(answer->step_s > 0 && isfinite(answer->step_s));
        }
        plan_answer_destroy(answer);
    }
}

static json_t *many(uint32_t devices, uint32_t a_node)
{
    static const char *const likes[] = {"a100x40", "t4", "l4", "v100x16", "rtx-3090", "mi210"};
    json_t *nodes = json_array();
    char name[48];
    for (uint32_t d = 0; d < devices;) {
        uint32_t node = (uint32_t)json_array_size(nodes);
        json_t *list = json_array();
        for (uint32_t i = 0; i < a_node && d < devices; i++, d++) {
            snprintf(name, sizeof(name), "n%u/%u", node, i);
            json_array_append_new(list, json_pack("{s:s,s:s}", "name", name, "like", likes[node % 6]));
        }
        snprintf(name, sizeof(name), "n%u", node);
        json_array_append_new(nodes, json_pack("{s:s,s:o}", "name", name, "devices", list));
    }
    return json_pack("{s:o}", "nodes", nodes);
}

static void ten_thousand_devices_are_planned_and_one_more_is_refused(void **state)
{
    (void)state;
    struct err err;
    uint32_t devices = getenv("MOTLEY_LONG") ? 10000 : 300;
    struct plan_answer *answer =
        plan(parsed("{\"model\": \"m\", \"data\": {\"train\": \"d\"}, \"train\": {\"batch_rows\": 64}}"),
             many(devices, 8), model_json(30), &err);
    if (!answer)
        fail_msg("%s", err.text);
    assert_int_equal(answer->verdict, VERDICT_FITS);
    print_message("%u devices: %s\n", devices, answer->words);
    plan_answer_destroy(answer);
    refused(parsed(SPEC), many(10001, 8), model_json(4), "10,001 devices", "10000");
    refused(parsed(SPEC), many(10001, 1), model_json(4), "10,001 nodes", "10000");
    refused(parsed(SPEC), many(10001, 10001), model_json(4), "10,001 devices of a node", "10000");
}

static void many_links_are_read_in_moments(void **state)
{
    (void)state;
    struct err err = {0};
    json_t *file = many(400, 1), *pairs = json_array();
    char a[16], b[16];
    for (uint32_t i = 0; i < 400; i++) {
        for (uint32_t k = i + 1; k < 400; k++) {
            snprintf(a, sizeof(a), "n%u", i);
            snprintf(b, sizeof(b), "n%u", k);
            json_array_append_new(pairs, json_pack("{s:s,s:s,s:f,s:f}", "a", a, "b", b, "latency_s", 1e-4,
                                                   "bytes_per_s", 1e8 + i));
        }
    }
    json_object_set_new(file, "links", json_pack("{s:o}", "pairs", pairs));
    struct cluster *cluster = cluster_from_json(file, &err);
    if (!cluster)
        fail_msg("%s", err.text);
    assert_int_equal(cluster_device_count(cluster), 400);
    cluster_destroy(cluster);
    json_decref(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clusters_are_refused_by_path),
        cmocka_unit_test(devices_that_are_added_are_checked_too),
        cmocka_unit_test(tables_with_holes_and_zeros_are_refused_by_path),
        cmocka_unit_test(doubtful_tables_are_planned_with_and_said),
        cmocka_unit_test(a_batch_beyond_a_levelled_table_is_not_free),
        cmocka_unit_test(models_are_refused_by_key),
        cmocka_unit_test(mixtures_are_refused_by_key),
        cmocka_unit_test(specifications_that_ask_the_impossible_are_refused_by_path),
        cmocka_unit_test(boundaries_of_odd_width_are_fp32_or_refused),
        cmocka_unit_test(a_batch_smaller_than_any_split_is_still_answered),
        cmocka_unit_test(ten_thousand_devices_are_planned_and_one_more_is_refused),
        cmocka_unit_test(many_links_are_read_in_moments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
