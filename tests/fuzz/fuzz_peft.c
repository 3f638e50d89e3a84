/* Feeds an adapter's two files: the input is JSON up to its first NUL byte, and safetensors behind it. */
#include "fuzz/fuzz.h"

#include <string.h>

#include "model/shape/config.h"
#include "model/adapters/peft.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err;
    struct model_config model;
    struct peft_config config;
    struct peft *peft = NULL;
    const uint8_t *end = memchr(data, 0, size);
    const size_t json = end ? (size_t)(end - data) : size, rest = end ? json + 1 : size;
    json_t *shape = fuzz_config(), *document = fuzz_parse(data, json);
    if (document && peft_config_parse(document, &config, &err) == 0)
        peft_config_fini(&config);
    if (model_config_parse(shape, &model, &err) < 0)
        __builtin_trap();
    if (peft_open_memory(data, json, data + rest, size - rest, &model, &peft, &err) == 0) {
        float value[1];
        peft_read(peft, 0, 0, 'A', value, 1, &err);
    }
    peft_close(peft);
    json_decref(document);
    json_decref(shape);
    return 0;
}
