/* Feeds an external planner's assignment (plug/document.h) for a small problem. */
#include "fuzz/fuzz.h"

#include "planner/given/inputs.h"
#include "plug/document.h"

#include <stdio.h>
#include <stdlib.h>

static struct plan_inputs inputs;
static struct problem problem;

/* Makes the problem: two devices and batches of six rows. It is made once. */
static void problem_make(void)
{
    static const char text[] =
        "{\"version\":1,\"spec\":{\"model\":\"m\",\"data\":{\"train\":\"d\",\"sequence_tokens\":64},"
        "\"train\":{\"batch_rows\":6,\"steps\":2}},\"profile_key\":\"00\",\"rows\":[[30,10],[40,20]],"
        "\"eval_rows\":null,\"prompt_tokens\":0,\"devices\":[{\"name\":\"a/"
        "0\",\"node\":\"a\",\"kind\":\"cpu\","
        "\"memory_limit_bytes\":1073741824,\"threads\":1,\"like\":\"t4\"},{\"name\":\"b/"
        "0\",\"node\":\"b\",\"kind\":"
        "\"cpu\",\"memory_limit_bytes\":1073741824,\"threads\":1,\"like\":\"t4\"}],\"profiles\":[],\"links\":"
        "[],"
        "\"nodes\":[],\"defaults\":{\"within\":{\"latency_s\":1e-5,\"bytes_per_s\":1e10},\"between\":"
        "{\"latency_s\":1e-4,\"bytes_per_s\":1e8}}}";
    struct err err = {0};
    json_t *document = json_loads(text, 0, NULL);
    if (!document || json_object_set_new(document, "config", fuzz_config()) < 0 ||
        plan_inputs_read(document, &inputs, &err) < 0 ||
        problem_init(&problem, &inputs.workload, inputs.cluster, &err) < 0) {
        fprintf(stderr, "the problem: %s\n", err.text);
        abort();
    }
    json_decref(document);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err = {0};
    if (!problem.cluster)
        problem_make();
    json_t *document = fuzz_parse(data, size);
    for (int runnable = 0; document && runnable < 2; runnable++) {
        struct candidate candidate = {0};
        if (candidate_from_document(&problem, document, runnable, &candidate, &err) == 0)
            candidate_run_check(&problem, &candidate, &err);
        else if (err.code == ERR_NONE)
            __builtin_trap();
        candidate_fini(&candidate);
    }
    json_decref(document);
    return 0;
}
