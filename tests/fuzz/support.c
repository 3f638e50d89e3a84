/* Documents that several targets need. */
#include "fuzz/fuzz.h"

#include "common/json.h"

json_t *fuzz_parse(const uint8_t *data, size_t size)
{
    struct err err;
    return size > FUZZ_BYTES_MAX ? NULL : json_parse_limited((const char *)data, size, JSON_DEPTH_MAX, &err);
}

json_t *fuzz_config(void)
{
    return json_pack("{s:s,s:i,s:i,s:i,s:i,s:i,s:i}", "model_type", "llama", "hidden_size", 64,
                     "intermediate_size", 128, "num_hidden_layers", 2, "num_attention_heads", 4,
                     "num_key_value_heads", 2, "vocab_size", 256);
}

json_t *fuzz_spec(void)
{
    return json_pack("{s:s,s:{s:s,s:i},s:{s:i,s:i}}", "model", "m", "data", "train", "d", "sequence_tokens",
                     64, "train", "batch_rows", 4, "steps", 4);
}
