/* Feeds the file of `motley profile export`, and makes a profile and a cluster from it. */
#include "fuzz/fuzz.h"

#include "profiles/profiles.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err;
    json_t *document = fuzz_parse(data, size);
    if (document && profiles_is(document) && profiles_check(document, &err) == 0) {
        json_decref(profiles_pick(document, "a/0", false, "00", &err));
        json_decref(profiles_cluster(document, "00", &err));
    }
    json_decref(document);
    return 0;
}
