/* Reads, writes and releases described documents, field by field. */
#include "common/doc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *doc_member_of(const struct doc_field *field, void *all)
{
    return (char *)all + field->at;
}

static int64_t doc_whole_of(double limit)
{
    return limit >= 9223372036854775807.0 ? INT64_MAX : (int64_t)limit;
}

static void whole_put(const struct doc_field *field, void *at, int64_t value)
{
    if (field->width == 1)
        *(uint8_t *)at = (uint8_t)value;
    else if (field->width == 2)
        *(uint16_t *)at = (uint16_t)value;
    else if (field->width == 4)
        *(uint32_t *)at = (uint32_t)value;
    else
        *(int64_t *)at = value;
}

static int64_t whole_get(const struct doc_field *field, const void *at)
{
    const bool negative = field->kind == DOC_INT;
    if (field->width == 1)
        return negative ? *(const int8_t *)at : *(const uint8_t *)at;
    if (field->width == 2)
        return negative ? *(const int16_t *)at : *(const uint16_t *)at;
    if (field->width == 4)
        return negative ? *(const int32_t *)at : (int64_t)*(const uint32_t *)at;
    return *(const int64_t *)at;
}

/* Sets the members of one description to their defaults. */
static int fields_start(const struct doc *doc, void *out, struct err *err)
{
    for (unsigned i = 0; i < doc->count; i++) {
        const struct doc_field *field = &doc->fields[i];
        void *at = doc_member_of(field, out);
        int result = 0;
        if (field->kind == DOC_PART)
            result = fields_start(field->of, at, err);
        else if (field->kind == DOC_REAL)
            *(double *)at = field->start;
        else if (field->kind == DOC_BOOL)
            *(bool *)at = field->start != 0;
        else if (field->kind <= DOC_WORD)
            whole_put(field, at, (int64_t)field->start);
        else if (field->kind == DOC_CHARS && field->text)
            snprintf(at, field->width, "%s", field->text);
        else if (field->kind == DOC_VIEW)
            *(const char **)at = field->text;
        else if (field->kind == DOC_FORM && field->form->start)
            result = field->form->start(at, err);
        else if (field->kind == DOC_OWNED && field->text && !(*(char **)at = strdup(field->text)))
            result = err_set(err, ERR_NOMEM, "out of memory for the default of %s", field->key);
        if (result < 0)
            return -1;
    }
    return 0;
}

int doc_start(const struct doc *doc, void *out, struct err *err)
{
    memset(out, 0, doc->size);
    return fields_start(doc, out, err);
}

/* --- reading --- */

static int doc_no_memory(struct json_reader *reader, const char *key)
{
    const bool first = !reader->failed;
    jr_fail(reader, key, "out of memory");
    if (first)
        reader->err->code = ERR_NOMEM;
    return -1;
}

/* Reads a number, or "auto", which is 0. */
static int auto_read(struct json_reader *r, const struct doc_field *field, void *at)
{
    const json_t *value = NULL;
    int got = jr_any(r, field->key, (enum jr_need)field->need, &value);
    if (got <= 0)
        return got;
    const bool automatic = json_is_string(value) && strcmp(json_string_value(value), "auto") == 0;
    if (!automatic && (!json_is_integer(value) || json_integer_value(value) < (int64_t)field->min ||
                       json_integer_value(value) > doc_whole_of(field->max)))
        return jr_fail(r, field->key, "must be \"auto\" or a whole number from %.0f to %.0f", field->min,
                       field->max);
    whole_put(field, at, automatic ? 0 : json_integer_value(value));
    return got;
}

static int bytes_read(struct json_reader *r, const struct doc_field *field, void *at)
{
    uint64_t value = (uint64_t)whole_get(field, at);
    int got = jr_bytes(r, field->key, (enum jr_need)field->need, (uint64_t)field->min,
                       (uint64_t)doc_whole_of(field->max), &value);
    whole_put(field, at, (int64_t)value);
    return got;
}

static int doc_whole_read(struct json_reader *r, const struct doc_field *field, void *at)
{
    int64_t value = whole_get(field, at);
    const enum jr_need need = (enum jr_need)field->need;
    if (field->flags & DOC_AUTO)
        return auto_read(r, field, at);
    if (field->flags & DOC_BYTES)
        return bytes_read(r, field, at);
    int got = jr_i64(r, field->key, need, (int64_t)field->min, doc_whole_of(field->max), &value);
    whole_put(field, at, value);
    return got;
}

static int real_read(struct json_reader *r, const struct doc_field *field, double *at)
{
    const enum jr_need need = (enum jr_need)field->need;
    return (field->flags & DOC_SECONDS ? jr_seconds
            : field->flags & DOC_RATE  ? jr_rate
                                       : jr_f64)(r, field->key, need, field->min, field->max, at);
}

static int word_read(struct json_reader *r, const struct doc_field *field, void *at)
{
    const int first = field->names[0] ? 0 : 1;
    int word = (int)whole_get(field, at) - first;
    int got = jr_choice(r, field->key, (enum jr_need)field->need, field->names + first, &word);
    whole_put(field, at, word + first);
    return got;
}

static int doc_text_read(struct json_reader *r, const struct doc_field *field, void *at)
{
    const char *text = NULL;
    int got = jr_str(r, field->key, (enum jr_need)field->need, (size_t)field->min, (size_t)field->max, &text);
    if (got <= 0)
        return got;
    for (const char *c = text; (field->flags & DOC_PLAIN) && *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return jr_fail(r, field->key, "a control character (byte %d) is not allowed here",
                           (int)(c - text) + 1);
    if (field->kind == DOC_VIEW) {
        *(const char **)at = text;
    } else if (field->kind == DOC_CHARS) {
        snprintf(at, field->width, "%s", text);
    } else {
        free(*(char **)at);
        if (!(*(char **)at = strdup(text)))
            return doc_no_memory(r, field->key);
    }
    return got;
}

static int json_read(struct json_reader *r, const struct doc_field *field, void *at)
{
    const json_t *value = NULL;
    const enum jr_need need = (enum jr_need)field->need;
    int got = field->flags & DOC_OBJECT ? jr_object(r, field->key, need, &value)
              : field->flags & DOC_ARRAY
                  ? jr_array(r, field->key, need, (size_t)field->min, (size_t)field->max, &value)
                  : jr_any(r, field->key, need, &value);
    if (got > 0 && field->kind == DOC_LOOK)
        *(const json_t **)at = value;
    else if (got > 0 && !(*(json_t **)at = json_deep_copy(value)))
        return doc_no_memory(r, field->key);
    return got;
}

static int doc_list_read(struct json_reader *r, const struct doc_field *field, void *at, uint32_t *count)
{
    const json_t *array = NULL;
    int got =
        jr_array(r, field->key, (enum jr_need)field->need, (size_t)field->min, (size_t)field->max, &array);
    if (!array) /* got is -1 where an earlier key is wrong and all errors are told */
        return got;
    const size_t size = json_array_size(array);
    char *items = calloc(size + 1, field->of->size);
    if (!items)
        return doc_no_memory(r, field->key);
    *(void **)at = items;
    for (size_t i = 0; i < size; i++) {
        struct json_reader item;
        void *into = items + i * field->of->size;
        *count = (uint32_t)i + 1;
        if (fields_start(field->of, into, r->err) < 0)
            return doc_no_memory(r, field->key);
        jr_item(r, field->key, array, i, &item);
        if (doc_take(field->of, &item, into) < 0 && !r->all)
            return -1;
    }
    return got;
}

static int doc_part_read(struct json_reader *r, const struct doc_field *field, void *at, bool *given)
{
    struct json_reader part;
    if (!field->key)
        return doc_fields(field->of, r, at);
    int got = jr_sub(r, field->key, (enum jr_need)field->need, &part);
    if (given)
        *given = got > 0;
    else if (got == 0 && field->of->check)
        field->of->check(&part, at);
    return got <= 0 ? got : doc_take(field->of, &part, at) < 0 ? -1 : 1;
}

static int doc_field_read(struct json_reader *r, const struct doc_field *field, void *all)
{
    void *at = doc_member_of(field, all), *beside = field->count_at ? (char *)all + field->count_at : NULL;
    switch ((enum doc_kind)field->kind) {
    case DOC_INT:
    case DOC_UINT:
        return doc_whole_read(r, field, at);
    case DOC_REAL:
        return real_read(r, field, at);
    case DOC_BOOL:
        return jr_bool(r, field->key, (enum jr_need)field->need, at);
    case DOC_WORD:
        return word_read(r, field, at);
    case DOC_OWNED:
    case DOC_VIEW:
    case DOC_CHARS:
        return doc_text_read(r, field, at);
    case DOC_COPY:
    case DOC_LOOK:
        return json_read(r, field, at);
    case DOC_PART:
        return doc_part_read(r, field, at, beside);
    case DOC_LIST:
        return doc_list_read(r, field, at, beside);
    case DOC_FORM:
        return field->form->read(r, field, at);
    }
    return -1;
}

int doc_fields(const struct doc *doc, struct json_reader *reader, void *out)
{
    for (unsigned i = 0; i < doc->count && (!reader->failed || reader->all); i++) {
        const struct doc_field *field = &doc->fields[i];
        const int got = doc_field_read(reader, field, out);
        for (struct json_reader *failed = reader; got < 0 && failed; failed = failed->parent)
            failed->failed = true; /* whoever set the error alone */
        if (field->rule && got > 0)
            field->rule(reader, field, out);
    }
    if (doc->check && (!reader->failed || reader->all))
        doc->check(reader, out);
    return reader->failed ? -1 : 0;
}

int doc_take(const struct doc *doc, struct json_reader *reader, void *out)
{
    doc_fields(doc, reader, out);
    return doc->loose ? jr_finish_loose(reader) : jr_finish(reader);
}

int doc_read(const struct doc *doc, const json_t *document, const char *path, void *out, struct err *err)
{
    struct json_reader reader;
    jr_init(&reader, document, path, err);
    if (doc_start(doc, out, err) == 0 && doc_take(doc, &reader, out) == 0)
        return 0;
    doc_fini(doc, out);
    return -1;
}

/* --- writing --- */

static const char *doc_text_of(const struct doc_field *field, const void *at)
{
    return field->kind == DOC_CHARS ? at : *(const char *const *)at;
}

/* Whether the member holds what an absent key means. */
static bool is_default(const struct doc_field *field, const void *at)
{
    switch ((enum doc_kind)field->kind) {
    case DOC_INT:
    case DOC_UINT:
    case DOC_WORD:
        return whole_get(field, at) == (int64_t)field->start;
    case DOC_REAL:
        return *(const double *)at == field->start;
    case DOC_BOOL:
        return *(const bool *)at == (field->start != 0);
    case DOC_COPY:
    case DOC_LOOK:
        return !*(const json_t *const *)at;
    case DOC_OWNED:
    case DOC_VIEW:
        return !doc_text_of(field, at);
    case DOC_CHARS:
        return doc_text_of(field, at)[0] == '\0';
    default:
        return false;
    }
}

static json_t *list_write(const struct doc_field *field, const char *items, uint32_t count)
{
    struct err ignored; /* only memory can be short */
    json_t *array = json_array();
    for (uint32_t i = 0; array && i < count; i++)
        if (json_array_append_new(array, doc_write(field->of, items + i * field->of->size, &ignored)) < 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

static json_t *value_write(const struct doc_field *field, const void *at, const void *beside)
{
    struct err ignored; /* only memory can be short */
    switch ((enum doc_kind)field->kind) {
    case DOC_INT:
    case DOC_UINT:
        return field->flags & DOC_AUTO && whole_get(field, at) == 0
                   ? json_string("auto")
                   : json_integer((json_int_t)whole_get(field, at));
    case DOC_REAL:
        return json_real(*(const double *)at);
    case DOC_BOOL:
        return json_boolean(*(const bool *)at);
    case DOC_WORD:
        return field->names[whole_get(field, at)] ? json_string(field->names[whole_get(field, at)])
                                                  : json_null();
    case DOC_OWNED:
    case DOC_VIEW:
    case DOC_CHARS:
        return json_string(doc_text_of(field, at) ? doc_text_of(field, at) : field->text);
    case DOC_COPY:
    case DOC_LOOK:
        return json_deep_copy(*(const json_t *const *)at);
    case DOC_PART:
        return doc_write(field->of, at, &ignored);
    case DOC_LIST:
        return list_write(field, *(const char *const *)at, *(const uint32_t *)beside);
    case DOC_FORM:
        break;
    }
    return NULL;
}

/* Whether a field is left out, because it is absent or because its default says so. */
static bool is_left_out(const struct doc_field *field, const void *at, const void *beside)
{
    const bool pointer = field->kind >= DOC_OWNED && field->kind <= DOC_LOOK && field->kind != DOC_CHARS;
    if (field->kind == DOC_FORM)
        return !field->form->write;
    if (field->kind == DOC_PART)
        return beside && !*(const bool *)beside;
    if (field->kind == DOC_LIST)
        return field->flags & DOC_SPARSE && *(const uint32_t *)beside == 0;
    return ((pointer && !field->text) || field->flags & DOC_SPARSE) && is_default(field, at);
}

static int field_write(const struct doc_field *field, const void *all, json_t *object)
{
    const void *at = (const char *)all + field->at;
    const void *beside = field->count_at ? (const char *)all + field->count_at : NULL;
    if (field->flags & DOC_NULL && is_default(field, at))
        return json_object_set_new(object, field->key, json_null());
    if (is_left_out(field, at, beside))
        return 0;
    if (field->kind == DOC_FORM)
        return field->form->write(field, at, object);
    struct err ignored; /* only memory can be short */
    if (!field->key)
        return doc_add(field->of, at, object, &ignored);
    json_t *value = value_write(field, at, beside);
    if (value && field->kind == DOC_PART && field->flags & DOC_SPARSE && json_object_size(value) == 0) {
        json_decref(value);
        return 0;
    }
    return json_object_set_new(object, field->key, value);
}

int doc_add(const struct doc *doc, const void *from, json_t *object, struct err *err)
{
    int bad = object ? 0 : -1;
    for (unsigned i = 0; !bad && i < doc->count; i++)
        bad = field_write(&doc->fields[i], from, object);
    return bad ? err_set(err, ERR_NOMEM, "out of memory for a document") : 0;
}

json_t *doc_write(const struct doc *doc, const void *from, struct err *err)
{
    json_t *object = json_object();
    if (doc_add(doc, from, object, err) == 0)
        return object;
    json_decref(object);
    return NULL;
}

/* --- changing --- */

static bool values_differ(const json_t *one, const json_t *other, const char *key)
{
    const json_t *a = json_object_get(one, key), *b = json_object_get(other, key);
    return a != b && !json_equal(a, b);
}

static const struct doc_field *field_find(const struct doc *doc, const char *key)
{
    for (unsigned i = 0; i < doc->count; i++)
        if (doc->fields[i].key && strcmp(doc->fields[i].key, key) == 0)
            return &doc->fields[i];
    return NULL;
}

/* Returns a key that no row names (a form reads it) and whose values differ, or NULL. */
static const char *unnamed_differs(const struct doc *doc, const json_t *one, const json_t *other)
{
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)one, key, value)
        if (!field_find(doc, key) && values_differ(one, other, key))
            return key;
    return NULL;
}

/* Two readings of one object: as they are written, with their defaults, and as they were read. */
struct doc_change {
    const json_t *now, *fresh, *was, *is;
};

static struct doc_change change_part(const struct doc_change *change, const char *key)
{
    return (struct doc_change){json_object_get(change->now, key), json_object_get(change->fresh, key),
                               json_object_get(change->was, key), json_object_get(change->is, key)};
}

/* Finds a key whose value is fixed and differs; *path becomes "limits.key". */
static bool fixed_differs(const struct doc *doc, const struct doc_change *change, const char *above,
                          char path[160])
{
    const char *key = NULL;
    for (unsigned i = 0; i < doc->count && !key; i++) {
        const struct doc_field *field = &doc->fields[i];
        const bool form = field->kind == DOC_FORM, written = !form || field->form->write;
        if (field->flags & DOC_LIVE)
            continue;
        if (field->kind == DOC_PART) {
            const struct doc_change part = field->key ? change_part(change, field->key) : *change;
            char name[160];
            snprintf(name, sizeof(name), "%s%s%s", above, field->key ? field->key : "",
                     field->key ? "." : "");
            if (fixed_differs(field->of, &part, name, path))
                return true;
        } else if (field->key) {
            key = written && values_differ(change->now, change->fresh, field->key) ? field->key
                  : !written && values_differ(change->was, change->is, field->key) ? field->key
                                                                                   : NULL;
        } else {
            key = unnamed_differs(doc, change->was, change->is);
            key = key ? key : unnamed_differs(doc, change->is, change->was);
        }
    }
    if (key)
        snprintf(path, 160, "%s%s", above, key);
    return key != NULL;
}

static void live_exchange(const struct doc *doc, char *now, char *fresh)
{
    for (unsigned i = 0; i < doc->count; i++) {
        const struct doc_field *field = &doc->fields[i];
        char *a = now + field->at, *b = fresh + field->at;
        if (field->kind == DOC_PART && !(field->flags & DOC_LIVE))
            live_exchange(field->of, a, b);
        for (size_t k = 0; k < field->width && field->flags & DOC_LIVE; k++) {
            const char kept = a[k];
            a[k] = b[k];
            b[k] = kept;
        }
    }
}

int doc_adopt(const struct doc *doc, void *now, const json_t *was, void *fresh, const json_t *is,
              struct err *err)
{
    char path[160];
    json_t *a = doc_write(doc, now, err), *b = a ? doc_write(doc, fresh, err) : NULL;
    const struct doc_change change = {a, b, was, is};
    int result = b ? 0 : -1;
    if (b && fixed_differs(doc, &change, "", path))
        result = err_set(err, ERR_CONFLICT, "%s: another value takes a restart", path);
    if (result == 0)
        live_exchange(doc, now, fresh);
    json_decref(a);
    json_decref(b);
    return result;
}

/* --- releasing --- */

static void fields_fini(const struct doc *doc, void *out)
{
    for (unsigned i = 0; i < doc->count; i++) {
        const struct doc_field *field = &doc->fields[i];
        void *at = doc_member_of(field, out);
        if (field->kind == DOC_OWNED)
            free(*(char **)at);
        else if (field->kind == DOC_COPY)
            json_decref(*(json_t **)at);
        else if (field->kind == DOC_PART)
            fields_fini(field->of, at);
        else if (field->kind == DOC_FORM && field->form->fini)
            field->form->fini(at);
        if (field->kind != DOC_LIST)
            continue;
        const uint32_t count = *(const uint32_t *)((const char *)out + field->count_at);
        for (uint32_t k = 0; k < count; k++)
            fields_fini(field->of, *(char **)at + k * field->of->size);
        free(*(char **)at);
    }
}

void doc_fini(const struct doc *doc, void *out)
{
    fields_fini(doc, out);
    memset(out, 0, doc->size);
}
