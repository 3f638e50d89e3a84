/* Folders of tiny models whose weights come from a formula, which tools/golden_wide.py shares: the tests'
 * data have their configs, shapes and results only. A folder has config.json, model.safetensors, an adapter
 * and, for the cases of golden/families.json, expected.json as the folders of golden/ have it. */
#ifndef MOTLEY_TESTS_FORMULA_MODEL_H
#define MOTLEY_TESTS_FORMULA_MODEL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/file.h"
#include "common/json.h"
#include "model/files/safetensors.h"
#include "support/scratch.h"

enum { FORMULA_TENSORS_MAX = 160, FORMULA_JSON_BYTES_MAX = 1 << 20 };

/* Returns 24 bits of the number `index` of splitmix64 (Steele, Lea, Flood 2014) with the given seed. */
static inline uint64_t formula_mix(uint64_t seed, uint64_t index)
{
    uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return (z ^ (z >> 31)) >> 40;
}

/* Returns the 64-bit FNV-1a hash of a name. */
static inline uint64_t formula_hash(const char *name)
{
    uint64_t hash = 0xCBF29CE484222325ull;
    for (; *name != '\0'; name++)
        hash = (hash ^ (uint8_t)*name) * 0x100000001B3ull;
    return hash;
}

/* Writes a safetensors file of the shapes {name: [sizes]}. Values of vectors lie within 0.15 of their centre,
 * which is `norm_centre` where the name is of a norm's weights or has "scal" in it, or else 0; those of
 * matrices within spread / 2. */
static inline void formula_tensors(const char *path, json_t *shapes, double norm_centre, double spread)
{
    struct safetensors_item items[FORMULA_TENSORS_MAX];
    const struct safetensors_meta meta = {"format", "pt"};
    struct err err;
    uint32_t count = 0;
    const char *name;
    json_t *shape;
    assert_in_range(json_object_size(shapes), 1, FORMULA_TENSORS_MAX);
    json_object_foreach (shapes, name, shape) {
        struct safetensors_item *item = &items[count++];
        uint64_t size = 1;
        *item = (struct safetensors_item){
            .name = name, .type = TENSOR_F32, .rank = (uint32_t)json_array_size(shape)};
        for (uint32_t i = 0; i < item->rank; i++)
            size *= item->shape[i] = (uint64_t)json_integer_value(json_array_get(shape, i));
        float *values = malloc(size * sizeof(*values));
        bool bias = strlen(name) > 5 && strcmp(name + strlen(name) - 5, ".bias") == 0;
        bool norm = (strstr(name, "norm") || strstr(name, ".ln_")) && !bias;
        double centre = norm || strstr(name, "scal") ? norm_centre : 0,
               width = item->rank == 1 ? 0.3 : spread;
        uint64_t seed = formula_hash(name);
        assert_non_null(values);
        for (uint64_t i = 0; i < size; i++)
            values[i] = (float)(centre + width * ((double)formula_mix(seed, i) / (1 << 24) - 0.5));
        item->data = values;
    }
    assert_int_equal(safetensors_write(path, items, count, &meta, 1, &err), 0);
    for (uint32_t i = 0; i < count; i++)
        free((void *)(uintptr_t)items[i].data);
}

static inline void formula_json(const char *path, const json_t *document)
{
    struct buf written = {.limit = FORMULA_JSON_BYTES_MAX};
    struct err err;
    assert_int_equal(json_print(document, false, &written, &err), 0);
    assert_int_equal(file_write_atomic(path, written.data, written.size, 0600, &err), 0);
    buf_fini(&written);
}

/* Makes batches [{"ids", "labels"}] from the rows' lengths, with the first token outside the loss. */
static inline json_t *formula_batches(json_t *lengths, uint32_t vocab)
{
    json_t *batches = json_array(), *rows, *length;
    size_t b, r;
    json_array_foreach (lengths, b, rows) {
        json_t *all_ids = json_array(), *all_labels = json_array();
        json_array_foreach (rows, r, length) {
            json_t *ids = json_array(), *labels = json_array();
            for (json_int_t i = 0; i < json_integer_value(length); i++) {
                json_int_t id = (json_int_t)(formula_mix(1000 * b + r, (uint64_t)i) % (vocab - 3) + 3);
                json_array_append_new(ids, json_integer(id));
                json_array_append_new(labels, json_integer(i == 0 ? -100 : id));
            }
            json_array_append_new(all_ids, ids);
            json_array_append_new(all_labels, labels);
        }
        json_array_append_new(batches, json_pack("{s:o, s:o}", "ids", all_ids, "labels", all_labels));
    }
    return batches;
}

/* Writes the model's folder, and its adapter in the folder's subfolder `adapter`. */
static inline void formula_folder(const struct scratch *scratch, json_t *one, const char *adapter)
{
    char name[64];
    double spread = json_object_get(one, "spread") ? json_number_value(json_object_get(one, "spread")) : 0.12;
    formula_json(scratch_path(scratch, "config.json"), json_object_get(one, "config"));
    formula_tensors(scratch_path(scratch, "model.safetensors"), json_object_get(one, "tensors"),
                    json_number_value(json_object_get(one, "norm_centre")), spread);
    assert_int_equal(mkdir(scratch_path(scratch, adapter), 0700), 0);
    snprintf(name, sizeof(name), "%s/adapter_config.json", adapter);
    formula_json(scratch_path(scratch, name), json_object_get(one, "adapter_config"));
    snprintf(name, sizeof(name), "%s/adapter_model.safetensors", adapter);
    formula_tensors(scratch_path(scratch, name), json_object_get(one, "adapter"), 0, 0.12);
}

/* The folders that this process has made. */
static struct formula_made {
    char name[48];
    struct scratch scratch;
} formula_made[64];
static size_t formula_count;
static pid_t formula_process; /* forked children leave the folders alone */

static inline void formula_remove(void)
{
    for (size_t i = 0; i < formula_count && getpid() == formula_process; i++)
        scratch_remove(&formula_made[i].scratch);
}

/* Returns the cases of golden/families.json, or the one of that name; NULL: there is none. New. */
static inline json_t *formula_cases(const char *name)
{
    json_error_t why;
    json_t *cases = json_load_file(MOTLEY_TEST_DATA "/golden/families.json", 0, &why), *one, *found = NULL;
    size_t i;
    if (!cases)
        fail_msg("families.json: %s", why.text);
    if (!name)
        return cases;
    json_array_foreach (cases, i, one)
        if (strcmp(json_string_value(json_object_get(one, "name")), name) == 0)
            found = json_incref(one);
    json_decref(cases);
    return found;
}

/* Writes to dir[size] the folder of a golden model: that of tests/data, or one that is made of a case of
 * families.json and removed when the test ends. */
static inline void golden_folder(const char *name, char *dir, size_t size)
{
    struct stat there;
    assert_true(snprintf(dir, size, "%s/golden/%s", MOTLEY_TEST_DATA, name) < (int)size);
    if (stat(dir, &there) == 0)
        return;
    for (size_t i = 0; i < formula_count; i++)
        if (strcmp(formula_made[i].name, name) == 0) {
            snprintf(dir, size, "%s", formula_made[i].scratch.dir);
            return;
        }
    json_t *one = formula_cases(name);
    if (!one)
        fail_msg("no golden model is called %s", name);
    assert_true(formula_count < sizeof(formula_made) / sizeof(*formula_made));
    struct scratch *scratch = &formula_made[formula_count].scratch;
    snprintf(formula_made[formula_count].name, sizeof(formula_made[0].name), "%s", name);
    assert_int_equal(scratch_make(scratch), 0);
    formula_process = getpid();
    if (formula_count++ == 0)
        atexit(formula_remove);
    formula_folder(scratch, one, "adapter_init");
    json_t *vocab = json_object_get(json_object_get(one, "config"), "vocab_size");
    if (!vocab)
        vocab = json_object_get(json_object_get(json_object_get(one, "config"), "text_config"), "vocab_size");
    json_t *expected = json_object_get(one, "expected");
    json_object_set_new(expected, "batches",
                        formula_batches(json_object_get(one, "rows"), (uint32_t)json_integer_value(vocab)));
    formula_json(scratch_path(scratch, "expected.json"), expected);
    assert_true(snprintf(dir, size, "%s", scratch->dir) < (int)size);
    json_decref(one);
}

#endif
