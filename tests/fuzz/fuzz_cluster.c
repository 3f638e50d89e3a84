/* Feeds the reader of cluster files, and plans on clusters of at most three devices. */
#include "fuzz/fuzz.h"

#include <math.h>

#include "planner/answer/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err;
    json_t *document = fuzz_parse(data, size), *spec = fuzz_spec(), *config = fuzz_config();
    struct cluster *cluster = document ? cluster_from_json(document, &err) : NULL;
    struct plan_answer *answer = NULL;
    struct plan_options options = {.evaluations = 20, .programs = true};
    if (cluster && cluster_device_count(cluster) <= 3 &&
        plan_from_cluster(spec, document, config, &options, &answer, &err) == 0) {
        if (answer->plan && !(answer->step_s > 0 && isfinite(answer->step_s)))
            __builtin_trap();
        json_t *json = answer_to_json(answer, &err);
        if (!json)
            __builtin_trap();
        json_decref(json);
        plan_answer_destroy(answer);
    }
    cluster_destroy(cluster);
    json_decref(document);
    json_decref(spec);
    json_decref(config);
    return 0;
}
