/* Feeds the readers of GGUF files: header, config, tokenizer, and a model whose tensors are read. */
#include "fuzz/fuzz.h"

#include <stdlib.h>

#include "model/shape/gguf_config.h"
#include "model/shape/tensors.h"
#include "model/text/tokenizer.h"

static void header(const uint8_t *data, size_t size)
{
    struct err err;
    struct model_source *source = NULL;
    struct gguf *gguf = NULL;
    struct model_config config;
    struct tokenizer *tokenizer = NULL;
    if (model_source_open_memory("a.gguf", data, size, &source, &err) < 0)
        return;
    if (gguf_open(source, 0, &gguf, &err) == 0) {
        gguf_config(gguf, &config, &err);
        if (tokenizer_from_gguf(gguf, &tokenizer, &err) == 0) {
            struct ids ids = {0};
            struct buf back = {.limit = 1 << 20};
            if (tokenizer_encode(tokenizer, "a b\xe2\x82\xac", 6, TOKENIZER_ADD_SPECIAL, &ids, &err) == 0)
                tokenizer_decode(tokenizer, ids.data, ids.count, true, &back, &err);
            ids.count = 0; /* and the end of the file as a text */
            tokenizer_encode(tokenizer, (const char *)data + size - size / 4, size / 4, 0, &ids, &err);
            buf_fini(&back);
            ids_fini(&ids);
        }
        tokenizer_destroy(tokenizer);
    }
    gguf_close(gguf);
    model_source_close(source);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err;
    struct model_source *source = NULL;
    struct model *model = NULL;
    header(data, size);
    if (model_source_open_memory("a.gguf", data, size, &source, &err) < 0 ||
        model_open(source, &model, &err) < 0)
        return 0;
    for (uint32_t i = 0; i < model_tensor_count(model); i++) {
        const struct model_tensor *tensor = model_tensor_at(model, i);
        float *row = tensor->cols <= 1u << 20 ? malloc((size_t)tensor->cols * sizeof(float) + 1) : NULL;
        if (row && tensor->rows > 0)
            model_tensor_read_f32(model, tensor, tensor->rows - 1, tensor->rows, row, &err);
        free(row);
    }
    model_close(model);
    return 0;
}
