/* Appends copies of names to a list, and refuses duplicates when a list is read. */
#include "model/shape/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void names_fini(struct spec_names *names)
{
    for (uint32_t i = 0; i < names->count; i++)
        free(names->names[i]);
    free(names->names);
    *names = (struct spec_names){0};
}

int names_add(struct spec_names *names, const char *name, struct err *err)
{
    char **grown = realloc(names->names, (names->count + 1) * sizeof(*grown));
    if (!grown)
        return err_set(err, ERR_NOMEM, "out of memory for a list of names");
    names->names = grown;
    char *copy = strdup(name);
    if (!copy)
        return err_set(err, ERR_NOMEM, "out of memory for a list of names");
    names->names[names->count++] = copy;
    return 0;
}

static bool name_known(const char *name, const char *const *known)
{
    for (size_t i = 0; known[i] != NULL; i++)
        if (strcmp(known[i], name) == 0)
            return true;
    return false;
}

static const char *known_text(const char *const *known, char text[256])
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; known[i] && used < 256; i++)
        used += (size_t)snprintf(text + used, 256 - used, "%s%s", i == 0 ? "" : ", ", known[i]);
    return text;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sorts a copy to find duplicates, so that a hostile list of thousands costs n log n. */
static int names_check_distinct(struct json_reader *reader, const char *key, const struct spec_names *names)
{
    if (names->count < 2)
        return 0;
    char **sorted = malloc(names->count * sizeof(*sorted));
    if (!sorted)
        return err_set(reader->err, ERR_NOMEM, "out of memory for a list of names");
    memcpy(sorted, names->names, names->count * sizeof(*sorted));
    qsort(sorted, names->count, sizeof(*sorted), compare_texts);
    int status = 0;
    for (uint32_t i = 1; i < names->count && status == 0; i++)
        if (strcmp(sorted[i - 1], sorted[i]) == 0)
            status = jr_fail(reader, key, "\"%s\" stands there twice", sorted[i]);
    free(sorted);
    return status;
}

int names_read(struct json_reader *reader, const char *key, size_t count_min, size_t count_max,
               const char *const *known, struct spec_names *out)
{
    const json_t *array = NULL;
    int got = jr_array(reader, key, JR_OPTIONAL, count_min, count_max, &array);
    if (got <= 0)
        return got;
    names_fini(out);
    out->given = true;
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *item = json_array_get(array, i);
        const char *name = json_string_value(item);
        if (!name || json_string_length(item) != strlen(name))
            return jr_fail(reader, key, "item %zu must be a text", i);
        if (name[0] == '\0' || strlen(name) >= NAMES_BYTES_MAX)
            return jr_fail(reader, key, "item %zu must have 1 to %d bytes", i, NAMES_BYTES_MAX - 1);
        if (known && !name_known(name, known)) {
            char all[256];
            return jr_fail(reader, key, "\"%s\" is not one of %s", name, known_text(known, all));
        }
        if (names_add(out, name, reader->err) < 0) {
            reader->failed = true;
            return -1;
        }
    }
    return names_check_distinct(reader, key, out);
}

json_t *names_json(const struct spec_names *names, const char *(*rename)(const char *))
{
    json_t *array = json_array();
    for (uint32_t i = 0; array && i < names->count; i++) {
        const char *other = rename ? rename(names->names[i]) : NULL;
        if (json_array_append_new(array, json_string(other ? other : names->names[i])) < 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

static int names_form_read(struct json_reader *reader, const struct doc_field *field, void *at)
{
    return names_read(reader, field->key, (size_t)field->min, (size_t)field->max, field->names, at);
}

static int form_write(const struct doc_field *field, const void *at, json_t *object)
{
    const struct spec_names *names = at;
    const bool none = field->flags & DOC_NULL && !names->given;
    return json_object_set_new(object, field->key, none ? json_null() : names_json(names, NULL));
}

static void names_form_fini(void *at)
{
    names_fini(at);
}

const struct doc_form names_form = {.read = names_form_read, .write = form_write, .fini = names_form_fini};
