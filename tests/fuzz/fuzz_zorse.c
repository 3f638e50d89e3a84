/* Feeds the importer of Zorse's published cases and tables. */
#include "fuzz/fuzz_import.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *document = fuzz_parse(data, size), *cases = json_object_get(document, "cases");
    bool small = json_array_size(cases) <= 2;
    for (size_t i = 0; i < json_array_size(cases);
         i++) { /* large cases are left out, because they are slow */
        const json_t *inputs = json_object_get(json_array_get(cases, i), "inputs");
        const json_t *machines = json_object_get(inputs, "machines");
        size_t gpus = 0;
        for (size_t m = 0; m < json_array_size(machines); m++)
            gpus += json_array_size(json_array_get(machines, m));
        small &= gpus <= 6 && json_number_value(json_object_get(inputs, "global_batch_size")) <= 64 &&
                 json_number_value(json_object_get(inputs, "num_layers")) <= 64;
    }
    if (document && small)
        fuzz_import("zorse", document);
    json_decref(document);
    return 0;
}
