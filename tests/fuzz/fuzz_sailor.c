/* Feeds the importer of Sailor's published plans, profiles and fitted link speeds. */
#include "fuzz/fuzz_import.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *document = fuzz_parse(data, size);
    if (document && json_array_size(json_object_get(document, "cases")) <= 8)
        fuzz_import("sailor", document);
    json_decref(document);
    return 0;
}
