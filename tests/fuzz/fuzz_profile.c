/* Feeds the profile document of a device, and plans with it. */
#include "fuzz/fuzz.h"

#include <math.h>

#include "planner/answer/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err;
    json_t *document = fuzz_parse(data, size);
    struct cluster *cluster = cluster_create(&err);
    struct cluster_device a = {.name = "a/0", .node = "a", .memory_limit_bytes = 1 << 28},
                          b = {.name = "b/0", .node = "b", .memory_limit_bytes = 1 << 28};
    struct plan_answer *answer = NULL;
    struct plan_options options = {.evaluations = 20};
    struct model_config config;
    struct workload workload = {.config = &config,
                                .method = METHOD_LORA,
                                .lora_rank = 8,
                                .target_count = 1,
                                .targets = {"q_proj"},
                                .sequence_tokens = 64,
                                .batch_rows = 4,
                                .steps = 2,
                                .place = -1};
    json_t *config_json = fuzz_config();
    if (!document || !cluster || model_config_parse(config_json, &config, &err) < 0 ||
        cluster_add_device(cluster, &a, &err) < 0 || cluster_add_device(cluster, &b, &err) < 0)
        goto out;
    if (cluster_add_profile(cluster, document, &err) < 0)
        goto out;
    if (plan_search(&workload, cluster, &options, &answer, &err) == 0) {
        if (answer->plan && !(answer->step_s >= 0 && isfinite(answer->step_s)))
            __builtin_trap();
        plan_answer_destroy(answer);
    }
out:
    cluster_destroy(cluster);
    json_decref(document);
    json_decref(config_json);
    return 0;
}
