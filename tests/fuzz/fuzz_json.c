/* Feeds the readers of JSON and YAML. An accepted document must survive being printed and read again. */
#include "fuzz/fuzz.h"

#include "common/json.h"
#include "common/yaml.h"

static void there_and_back(json_t *document)
{
    struct err err;
    struct buf text = {.limit = 1 << 22};
    if (document && json_print(document, true, &text, &err) == 0) {
        json_t *again = json_parse_limited(buf_str(&text), text.size, JSON_DEPTH_MAX, &err);
        if ((json_is_object(document) || json_is_array(document)) && (!again || !json_equal(document, again)))
            __builtin_trap();
        json_decref(again);
    }
    buf_fini(&text);
    json_decref(document);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err;
    if (size > FUZZ_BYTES_MAX)
        return 0;
    there_and_back(fuzz_parse(data, size));
    there_and_back(yaml_parse((const char *)data, size, &err));
    return 0;
}
