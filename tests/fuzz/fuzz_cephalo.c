/* Feeds the importer of Cephalo's published cases and tables. */
#include "fuzz/fuzz_import.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *document = fuzz_parse(data, size), *cases = json_object_get(document, "cases");
    bool small = json_array_size(cases) <= 3;
    for (size_t i = 0; i < json_array_size(cases);
         i++) { /* large cases are left out, because they are slow */
        const json_t *inputs = json_object_get(json_array_get(cases, i), "inputs");
        small &= json_number_value(json_object_get(inputs, "batch_size")) <= 512 &&
                 json_array_size(json_object_get(inputs, "gpus")) <= 32;
    }
    if (document && small)
        fuzz_import("cephalo", document);
    json_decref(document);
    return 0;
}
