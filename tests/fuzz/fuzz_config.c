/* Feeds the reader of config.json. An accepted config must survive being written and read again, and both
 * ways of counting its parameters must agree. */
#include "fuzz/fuzz.h"

#include <string.h>

#include "model/shape/blocks.h"
#include "model/shape/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err;
    struct model_config config, again;
    struct block_list blocks;
    struct block_options options = {.lora = true, .lora_rank = 16, .lora_targets = LORA_ALL};
    if (size > FUZZ_BYTES_MAX || model_config_parse_text((const char *)data, size, &config, &err) < 0)
        return 0;
    json_t *json = model_config_to_json(&config, &err);
    if (!json || model_config_parse(json, &again, &err) < 0 || again.hidden != config.hidden ||
        again.experts != config.experts || again.vocab != config.vocab || again.window != config.window)
        __builtin_trap();
    if (model_blocks(&config, &options, &blocks, &err) == 0) {
        if (blocks.count != config.layers + 2 || blocks.params != model_config_params(&config))
            __builtin_trap();
        block_list_fini(&blocks);
    }
    json_decref(json);
    return 0;
}
