/* Tests texts for people: ranges in words, comparisons, the names of cards, amounts in other units. */
#include "planner/plan_fixture.h"

#include "show/words.h"
#include "planner/given/cluster_private.h"

static void blocks_are_told_as_layers(void **state)
{
    static const struct {
        int32_t begin, end;
        const char *words;
    } of_34[] = {{0, 34, "everything"},           {0, 1, "embedding"},        {0, 2, "embedding, layer 1"},
                 {0, 9, "embedding, layers 1-8"}, {9, 10, "layer 9"},         {9, 33, "layers 9-32"},
                 {30, 34, "layers 30-32, head"},  {32, 34, "layer 32, head"}, {33, 34, "head"}};
    (void)state;
    char out[64];
    for (size_t i = 0; i < sizeof(of_34) / sizeof(of_34[0]); i++)
        assert_string_equal(words_range(out, sizeof(out), of_34[i].begin, of_34[i].end, 34), of_34[i].words);
}

static void times_are_compared_in_the_fewest_words(void **state)
{
    (void)state;
    char out[48];
    assert_string_equal(words_ratio(out, 1.0001, 1), "the same");
    assert_string_equal(words_ratio(out, 1.013, 1), "1.3 % more");
    assert_string_equal(words_ratio(out, 1.54, 1), "1.54 times as long");
    assert_string_equal(words_ratio(out, 24.6, 1), "25 times as long");
    assert_string_equal(words_ratio(out, 0.98, 1), "2.0 % less");
    assert_string_equal(words_ratio(out, 0.8, 1), "0.80 times as long");
}

static void cards_are_known_by_what_drivers_call_them(void **state)
{
    static const char *const names[][2] = {
        {"NVIDIA GeForce RTX 4090", "rtx-4090"},
        {"NVIDIA GeForce RTX 2080 Ti", "rtx-2080ti"},
        {"GeForce GTX 1080 Ti", "gtx-1080ti"},
        {"GeForce GTX TITAN X", "titan-x"},
        {"NVIDIA TITAN RTX", "titan-rtx"},
        {"Tesla P40", "p40"},
        {"Tesla P100-PCIE-16GB", "p100x16"},
        {"Tesla V100-SXM2-32GB", "v100x32"},
        {"Tesla T4", "t4"},
        {"Quadro RTX 8000", "rtx-8000"},
        {"NVIDIA RTX A6000", "a6000"},
        {"NVIDIA A100-SXM4-40GB", "a100x40"},
        {"NVIDIA A100 80GB PCIe", "a100x80"},
        {"NVIDIA H100 80GB HBM3", "h100"},
        {"NVIDIA H100 PCIe", "h100-pcie"},
        {"NVIDIA L40S", "l40s"},
        {"NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"},
        {"NVIDIA RTX 4000 Ada Generation", "rtx-4000-ada"},
        {"Quadro RTX 6000", "rtx-6000"},
        {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000"},
        {"NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"},
        {"NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx-pro-6000-max-q"},
        {"NVIDIA GeForce RTX 5060 Ti", "rtx-5060ti"},
        {"NVIDIA B300 SXM6 AC", "b300"},
        {"NVIDIA TITAN X (Pascal)", "titan-x-pascal"},
        {"NVIDIA GB10", "gb10"},
        {"AMD Instinct MI210", "mi210"},
        {"AMD Instinct MI355X", "mi355x"},
        {"AMD Radeon PRO W7900", "w7900"},
        {"AMD Radeon AI PRO R9700", "r9700"},
        {"AMD Radeon RX 9070 XT", "rx-9070xt"},
        {"AMD Radeon 8060S Graphics", "strix-halo"},
        {"Intel(R) Arc(TM) Pro B60 Graphics", "arc-pro-b60"},
        {"AMD Radeon RX 7900 XTX", "rx-7900xtx"},
        {"Intel(R) Arc(TM) A770 Graphics", "arc-a770"},
        {"rtx_3090", "rtx-3090"},
        {"v100x16", "v100"}};
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const struct catalogue_entry *entry = catalogue_find(names[i][0]);
        if (!entry || strcmp(entry->name, names[i][1]) != 0)
            fail_msg("%s is %s, not %s", names[i][0], entry ? entry->name : "not known", names[i][1]);
    }
    assert_null(catalogue_find("RTX 9999"));
    assert_null(catalogue_find("NVIDIA"));
    assert_null(catalogue_find(""));
    assert_string_equal(catalogue_near("rtx-3091"), "rtx-3090");
}

/* Of a catalogue card the planner uses 92 % of the memory less 0.5 GB, unless the file has a limit; of a CPU,
 * what the host's memory allows. */
static void a_catalogue_card_is_not_filled_to_the_brim(void **state)
{
    (void)state;
    struct err err = {0};
    json_t *file =
        json_loads("{\"nodes\": [{\"name\": \"n\", \"devices\": [{\"name\": \"a\", \"like\": \"rtx-4090\"}, "
                   "{\"name\": \"b\", \"like\": \"rtx-4090\", \"memory_bytes\": \"24GiB\"}, "
                   "{\"name\": \"c\", \"like\": \"cpu-avx2\"}]}]}",
                   0, NULL);
    struct cluster *cluster = cluster_from_json(file, &err);
    if (!cluster)
        fail_msg("%s", err.text);
    uint64_t gib = (uint64_t)1 << 30;
    assert_int_equal(cluster->devices[0].memory_limit_bytes,
                     (uint64_t)(0.92 * (double)(24 * gib)) - 500000000);
    assert_int_equal(cluster->devices[1].memory_limit_bytes, 24 * gib);
    assert_int_equal(cluster->devices[2].memory_limit_bytes, 8 * gib);
    cluster_destroy(cluster);
    json_decref(file);
}

static struct plan_answer *planned(const char *text, enum workload_compute compute)
{
    struct err err = {0};
    struct plan_answer *answer = NULL;
    struct plan_options options = {.evaluations = 500};
    json_t *file = json_loads(text, 0, NULL);
    struct cluster *cluster = cluster_from_json(file, &err);
    struct model_config config = fixture_config(4);
    struct workload w = fixture_workload(&config, 40, 8);
    w.compute = compute;
    if (!cluster || plan_search(&w, cluster, &options, &answer, &err) < 0)
        fail_msg("%s", err.text);
    workload_fini(&w);
    cluster_destroy(cluster);
    json_decref(file);
    return answer;
}

static void one_warning(const char *file, enum workload_compute compute, const char *part)
{
    struct plan_answer *answer = planned(file, compute);
    assert_int_equal(answer->warning_count, part ? 1 : 0);
    if (part && !strstr(answer->warnings[0], part))
        fail_msg("\"%s\" does not say \"%s\"", answer->warnings[0], part);
    plan_answer_destroy(answer);
}

#define TWO(more)                                                                                            \
    "{\"nodes\": [{\"name\": \"m\", \"devices\": [{\"name\": \"a\", \"like\": \"rtx-3090\"}]}, {\"name\": "  \
    "\"n\", "                                                                                                \
    "\"devices\": [{\"name\": \"b\", \"like\": \"v100\"}]}], \"links\": {" more "}}"

static void amounts_in_other_units_and_missing_formats_are_doubted(void **state)
{
    (void)state;
    one_warning(TWO("\"between\": {\"latency_s\": 1e-4, \"bytes_per_s\": 1e9}"), COMPUTE_FP32, NULL);
    one_warning(TWO("\"between\": {\"latency_s\": 1e-4, \"bytes_per_s\": 10}"), COMPUTE_FP32,
                "links.between: 10 bytes/s");
    one_warning(TWO("\"between\": {\"latency_s\": 100, \"bytes_per_s\": 1e9}"), COMPUTE_FP32,
                "links.between: a latency");
    one_warning(TWO("\"within\": {\"latency_s\": 1e-6, \"bytes_per_s\": 1e17}"), COMPUTE_FP32,
                "links.within: ");
    one_warning("{\"nodes\": [{\"name\": \"m\", \"devices\": [{\"name\": \"a\", \"like\": \"rtx-3090\"}, "
                "{\"name\": \"b\", "
                "\"like\": \"t4\", \"memory_bytes\": 24}]}]}",
                COMPUTE_FP32, "memory_bytes of b: 24 B");
    one_warning(TWO(""), COMPUTE_BF16, "v100 has no bfloat16 products");
}

/* The second sentence says whether several devices are faster than the best single one; with insight, what
 * each contributes. */
static void the_verdict_compares_with_the_fastest_alone(void **state)
{
    (void)state;
    struct plan_answer *answer = planned(
        "{\"nodes\": [{\"name\": \"m\", \"devices\": [{\"name\": \"a\", \"like\": \"rtx-3090\"}, {\"name\": "
        "\"b\", \"like\": \"rtx-3090\"}]}]}",
        COMPUTE_FP32);
    assert_int_equal(answer->plan->rank_count, 2);
    assert_non_null(strstr(answer->words, "times as fast as a (rtx-3090) alone"));
    assert_string_equal(answer->rank_like[0], "rtx-3090");
    plan_answer_destroy(answer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_told_as_layers),
        cmocka_unit_test(times_are_compared_in_the_fewest_words),
        cmocka_unit_test(cards_are_known_by_what_drivers_call_them),
        cmocka_unit_test(a_catalogue_card_is_not_filled_to_the_brim),
        cmocka_unit_test(amounts_in_other_units_and_missing_formats_are_doubted),
        cmocka_unit_test(the_verdict_compares_with_the_fastest_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
