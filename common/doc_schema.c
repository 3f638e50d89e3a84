/* Makes the JSON schema of a described document. */
#include "common/doc.h"

#include <math.h>

static json_t *number_json(double value)
{
    return fabs(value) <= 9007199254740992.0 && value == floor(value) ? json_integer((json_int_t)value)
                                                                      : json_real(value);
}

static json_t *words_json(const struct doc_field *field)
{
    json_t *words = json_array();
    for (const char *const *name = field->names + !field->names[0]; *name; name++)
        json_array_append_new(words, json_string(*name));
    if (!field->names[0])
        json_array_append_new(words, json_null());
    return words;
}

static const char *doc_schema_type_name(const struct doc_field *field)
{
    static const char *const types[] = {
        [DOC_INT] = "integer", [DOC_UINT] = "integer", [DOC_REAL] = "number", [DOC_BOOL] = "boolean",
        [DOC_WORD] = "string", [DOC_OWNED] = "string", [DOC_VIEW] = "string", [DOC_CHARS] = "string",
        [DOC_PART] = "object", [DOC_LIST] = "array",   [DOC_FORM] = NULL};
    if (field->kind != DOC_COPY && field->kind != DOC_LOOK)
        return types[field->kind];
    return field->flags & DOC_OBJECT ? "object" : field->flags & DOC_ARRAY ? "array" : NULL;
}

static int limits_add(const struct doc_field *field, json_t *schema)
{
    const bool text = field->kind >= DOC_OWNED && field->kind <= DOC_CHARS;
    const bool list = field->kind == DOC_LIST || field->flags & DOC_ARRAY;
    const bool number = field->kind <= DOC_REAL, bounds = text || list;
    const bool initial = number && field->start >= field->min && field->start <= field->max;
    const bool shown = field->need != JR_REQUIRED && !(field->flags & (DOC_AUTO | DOC_DEPENDS));
    int bad = 0;
    if (number && field->min > -1e18)
        bad |= json_object_set_new(schema, "minimum", number_json(field->min));
    if (number && field->max < 1e18)
        bad |= json_object_set_new(schema, "maximum", number_json(field->max));
    if (bounds && field->min > 0)
        bad |= json_object_set_new(schema, text ? "minLength" : "minItems",
                                   json_integer((json_int_t)field->min));
    if (bounds)
        bad |= json_object_set_new(schema, text ? "maxLength" : "maxItems",
                                   json_integer((json_int_t)field->max));
    if (field->flags & DOC_PLAIN)
        bad |= json_object_set_new(schema, "pattern", json_string("^[^\\x00-\\x1f\\x7f]*$"));
    if (field->kind == DOC_WORD)
        bad |= json_object_set_new(schema, "enum", words_json(field));
    if (shown && initial)
        bad |= json_object_set_new(schema, "default", number_json(field->start));
    else if (shown && field->kind == DOC_BOOL)
        bad |= json_object_set_new(schema, "default", json_boolean(field->start != 0));
    else if (shown && field->kind == DOC_WORD && field->names[(int)field->start])
        bad |= json_object_set_new(schema, "default", json_string(field->names[(int)field->start]));
    return bad;
}

/* Describes a whole number that may be "auto". */
static json_t *auto_schema(const struct doc_field *field)
{
    return json_pack("{s:[{s:s,s:I,s:I},{s:s,s:[s]}]}", "anyOf", "type", "integer", "minimum",
                     (json_int_t)field->min, "maximum", (json_int_t)field->max, "type", "string", "enum",
                     "auto");
}

static json_t *type_json(const struct doc_field *field)
{
    const bool nullable = field->flags & (DOC_NULL | DOC_NULLABLE) || (field->names && !field->names[0]);
    return nullable ? json_pack("[s,s]", doc_schema_type_name(field), "null")
                    : json_string(doc_schema_type_name(field));
}

/* What the row says itself goes before what its kind says; with "anyOf" or "$ref" it stands alone. */
static json_t *field_schema(const struct doc_field *field, struct err *err)
{
    json_t *said = field->schema ? json_loads(field->schema, 0, NULL) : json_object();
    const bool whole = json_object_get(said, "anyOf") || json_object_get(said, "$ref");
    json_t *schema = whole                     ? json_object()
                     : field->flags & DOC_AUTO ? auto_schema(field)
                     : field->kind == DOC_PART ? doc_schema(field->of, err)
                                               : json_object();
    int bad = !said || !schema;
    if (!bad && !whole && !(field->flags & DOC_AUTO) && doc_schema_type_name(field)) {
        bad |= json_object_set_new(schema, "type", type_json(field));
        bad |= limits_add(field, schema);
    }
    if (field->kind == DOC_LIST)
        bad |= json_object_set_new(schema, "items", doc_schema(field->of, err));
    bad |= json_object_update(schema, said);
    if (*field->help)
        bad |= json_object_set_new(schema, "description", json_string(field->help));
    json_decref(said);
    if (!bad)
        return schema;
    json_decref(schema);
    return NULL;
}

json_t *doc_schema(const struct doc *doc, struct err *err)
{
    json_t *properties = json_object(), *required = json_array();
    int bad = 0;
    for (unsigned i = 0; i < doc->count && !bad; i++) {
        const struct doc_field *field = &doc->fields[i];
        json_t *several = field->key      ? NULL
                          : field->of     ? doc_schema(field->of, err)
                          : field->schema ? json_loads(field->schema, 0, NULL)
                                          : NULL;
        if (!field->key && several)
            bad |=
                json_object_update(properties, field->of ? json_object_get(several, "properties") : several);
        else if (field->key)
            bad |= json_object_set_new(properties, field->key, field_schema(field, err));
        if (field->need == JR_REQUIRED)
            bad |= json_array_append_new(required, json_string(field->key));
        json_decref(several);
    }
    json_t *schema = json_pack("{s:s, s:s*}", "type", "object", "description", doc->help);
    if (json_array_size(required) > 0)
        bad |= json_object_set(schema, "required", required);
    if (!doc->loose)
        bad |= json_object_set_new(schema, "additionalProperties", json_false());
    bad |= json_object_set_new(schema, "properties", properties);
    json_decref(required);
    if (!bad)
        return schema;
    json_decref(schema);
    err_set(err, ERR_NOMEM, "out of memory for a schema");
    return NULL;
}
