/* Feeds the reader of tokenizer.model. An accepted tokenizer must encode any text and decode the result. */
#include "fuzz/fuzz.h"

#include <string.h>

#include "model/text/tokenizer.h"
#include "model/text/tokenizer_files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "A na\xc3\xafve <s> don't\n 12345 \xe4\xbd\xa0";
    struct err err;
    struct tokenizer *tokenizer = NULL;
    if (size > FUZZ_BYTES_MAX || tokenizer_from_pieces(data, size, NULL, &tokenizer, &err) < 0)
        return 0;
    struct ids ids = {0}, begins = {0}, ends = {0};
    struct buf back = {.limit = 1 << 20};
    if (tokenizer_encode_placed(tokenizer, text, sizeof(text) - 1, TOKENIZER_ADD_SPECIAL, &ids, &begins,
                                &ends, &err) == 0)
        tokenizer_decode(tokenizer, ids.data, ids.count, false, &back, &err);
    for (size_t i = 0; i < ids.count; i++)
        if (ids.data[i] < 0 || (uint32_t)ids.data[i] >= tokenizer_vocab(tokenizer) || ends.data[i] < 0 ||
            (size_t)ends.data[i] > sizeof(text) - 1)
            __builtin_trap();
    buf_fini(&back);
    ids_fini(&ids);
    ids_fini(&begins);
    ids_fini(&ends);
    tokenizer_destroy(tokenizer);
    return 0;
}
