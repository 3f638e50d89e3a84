/* Feeds the reader of safetensors. Every tensor of an accepted file must lie in the file and be readable. */
#include "fuzz/fuzz.h"

#include <stdlib.h>

#include "model/files/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err;
    struct safetensors *st = NULL;
    if (safetensors_open_memory(data, size, &st, &err) < 0)
        return 0;
    for (uint32_t i = 0; i < safetensors_count(st); i++) {
        const struct safetensors_tensor *tensor = safetensors_at(st, i);
        uint64_t count = 1;
        if (tensor->offset > size || tensor->size > size - tensor->offset)
            __builtin_trap();
        uint8_t *bytes = malloc((size_t)tensor->size + 1);
        if (bytes && safetensors_read(st, tensor, 0, (size_t)tensor->size, bytes, &err) < 0)
            __builtin_trap();
        free(bytes);
        for (uint32_t d = 0; d < tensor->rank; d++)
            count *= tensor->shape[d];
        float *values = count <= size ? malloc((size_t)count * sizeof(float) + 1) : NULL;
        if (values)
            safetensors_read_f32(st, tensor, values, count, &err);
        free(values);
    }
    safetensors_metadata(st, "format");
    safetensors_close(st);
    return 0;
}
