/* A trained state that is read from safetensors files: from an adapter's file (prefix "base_model.model.") or
 * from those of a model (prefix ""). */
#ifndef MOTLEY_TESTS_FILES_STATE_H
#define MOTLEY_TESTS_FILES_STATE_H

#include <stdio.h>

#include "model/adapters/peft.h"
#include "model/files/gguf.h"
#include "result/state.h"

enum { NAME_BYTES = 256, PIECE_BYTES = 64 << 10 };

struct result_files {
    struct safetensors **files; /* [count], borrowed */
    uint32_t count;
    const char *prefix;
    const struct lora_sites *sites; /* gives the scales; NULL without adapters */
};

static inline struct safetensors *file_of(const struct result_files *files, const char *name,
                                          const struct safetensors_tensor **tensor)
{
    char full[NAME_BYTES];
    *tensor = NULL;
    if (snprintf(full, sizeof(full), "%s%s", files->prefix, name) >= (int)sizeof(full))
        return NULL;
    for (uint32_t i = 0; i < files->count; i++) {
        *tensor = peft_find(files->files[i], full);
        if (*tensor)
            return files->files[i];
    }
    return NULL;
}

static inline bool files_find(void *arg, const char *name, uint64_t *rows, uint64_t *columns)
{
    const struct safetensors_tensor *t;
    if (!file_of(arg, name, &t) || t->rank < 1 || t->rank > 2)
        return false;
    *rows = t->shape[0];
    *columns = t->rank == 2 ? t->shape[1] : 1;
    return true;
}

static inline int files_read(void *arg, const char *name, uint64_t row_begin, uint64_t row_end, float *dst,
                             struct err *err)
{
    const struct safetensors_tensor *t;
    struct safetensors *file = file_of(arg, name, &t);
    uint64_t rows, columns;
    if (!file || !files_find(arg, name, &rows, &columns) || row_begin > row_end || row_end > rows)
        return err_set(err, ERR_INTERNAL, "no rows %llu..%llu of \"%.200s\"", (unsigned long long)row_begin,
                       (unsigned long long)row_end, name);
    uint64_t bytes = tensor_type_block_bytes(t->type), at = row_begin * columns, end = row_end * columns;
    uint8_t piece[PIECE_BYTES];
    while (at < end) {
        uint64_t n = sizeof(piece) / bytes < end - at ? sizeof(piece) / bytes : end - at;
        if (safetensors_read(file, t, at * bytes, (size_t)(n * bytes), piece, err) < 0 ||
            tensor_dequantise(t->type, piece, n, dst, err) < 0)
            return err_wrap(err, "\"%.200s\"", name);
        dst += n;
        at += n;
    }
    return 0;
}

static inline double files_scale(void *arg, const char *module)
{
    const struct result_files *files = arg;
    return files->sites ? result_lora_scale(files->sites, module) : 0;
}

/* Makes a state. 'files' is borrowed for the state's lifetime. */
static inline struct result_state result_state_of_files(struct result_files *files)
{
    return (struct result_state){.arg = files, .find = files_find, .read = files_read, .scale = files_scale};
}

#endif
