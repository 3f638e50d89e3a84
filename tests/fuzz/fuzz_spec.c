/* Feeds job specifications in JSON or YAML. An accepted one must survive being written and read again. */
#include "fuzz/fuzz.h"

#include "common/yaml.h"
#include "model/job/spec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err;
    struct job_spec spec, again;
    json_t *document = fuzz_parse(data, size);
    if (!document && size <= FUZZ_BYTES_MAX)
        document = yaml_parse((const char *)data, size, &err);
    if (document && spec_parse(document, &spec, &err) == 0) {
        json_t *json = spec_to_json(&spec, &err), *twice = NULL;
        if (!json || spec_parse(json, &again, &err) < 0 || !(twice = spec_to_json(&again, &err)) ||
            !json_equal(json, twice))
            __builtin_trap();
        json_decref(json);
        json_decref(twice);
        spec_fini(&spec);
        spec_fini(&again);
    }
    json_t *all = json_array();
    struct err one = {0};
    spec_errors(document, all);
    /* The list has what one alone is refused for, and nothing of what is accepted. */
    if (document && !json_object_get(document, "array")) {
        const bool good = spec_parse(document, &spec, &one) == 0;
        if (good ? json_array_size(all) > 0 : json_is_object(document) && json_array_size(all) == 0)
            __builtin_trap();
        spec_fini(&spec);
    }
    json_decref(all);
    json_decref(document);
    return 0;
}
