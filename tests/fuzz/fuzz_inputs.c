/* Feeds the reader of inputs documents (planner/given/inputs.h), also after the changes of `motley replay`.
 */
#include "fuzz/fuzz.h"

#include "planner/given/inputs.h"
#include "replay/change.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err;
    char name[256];
    struct plan_inputs inputs = {0};
    json_t *document = fuzz_parse(data, size);
    if (document) {
        plan_inputs_read(document, &inputs, &err);
        plan_inputs_fini(&inputs);
        plan_inputs_speed(document, "a/0", 2, &err);
        plan_inputs_link(document, "a", "b", 1e8, 1e-4, &err);
        plan_inputs_without(document, "a/0", &err);
        plan_inputs_add(document, "t4", name, &err);
        plan_inputs_add(document, "b/0", name, &err);
        inputs = (struct plan_inputs){0};
        plan_inputs_read(document, &inputs, &err);
        plan_inputs_fini(&inputs);
    }
    json_decref(document);
    return 0;
}
