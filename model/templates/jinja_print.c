#include "model/templates/jinja_print.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "model/templates/jinja_args.h"
#include "model/templates/jinja_node.h"

enum { PRINT_DEPTH_MAX = 32 };

/* Appends the fewest digits from which the same number is read again, as Python does. */
int jv_print_real(double real, struct buf *out, struct err *err)
{
    char text[64];
    if (isnan(real) || isinf(real))
        return buf_text(out, isnan(real) ? "nan" : real > 0 ? "inf" : "-inf", err);
    if (real == floor(real) && fabs(real) < 1e16)
        return buf_printf(out, err, "%.1f", real);
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, real);
        if (strtod(text, NULL) == real)
            break;
    }
    return buf_text(out, text, err);
}

/* Returns true if repr() does not escape the character. */
static bool is_printable(uint32_t code)
{
    const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)code);
    return code == ' ' ||
           !(c == UTF8PROC_CATEGORY_CN || (c >= UTF8PROC_CATEGORY_ZS && c <= UTF8PROC_CATEGORY_CO));
}

static int put_escape(uint32_t code, bool json, struct buf *out, struct err *err)
{
    if (json && code > 0xffff) { /* as a surrogate pair */
        return buf_printf(out, err, "\\u%04x\\u%04x", 0xd800 + ((code - 0x10000) >> 10),
                          0xdc00 + (code & 0x3ff));
    }
    return code < 0x100 && !json ? buf_printf(out, err, "\\x%02x", code)
           : code < 0x10000      ? buf_printf(out, err, "\\u%04x", code)
                                 : buf_printf(out, err, "\\U%08x", code);
}

/* Appends a text in quotes, with the escapes of Python's repr() or of JSON. */
static int jinja_print_put_quoted(const struct jv *value, bool json, bool ascii, struct buf *out,
                                  struct err *err)
{
    const bool has_single = value->size > 0 && memchr(value->text, '\'', value->size);
    const bool has_double = value->size > 0 && memchr(value->text, '"', value->size);
    const char quote = json || (has_single && !has_double) ? '"' : '\'';
    int status = buf_append(out, &quote, 1, err);
    for (size_t at = 0, next; at < value->size && status == 0; at = next) {
        uint32_t code;
        next = jv_next(value, at, &code);
        const char *short_form = code != 0 && code < 0x80 ? strchr("\nn\tt\rr\bb\ff", (int)code) : NULL;
        if (code == '\\' || code == (unsigned char)quote)
            status = buf_printf(out, err, "\\%c", (int)code);
        else if (short_form && code < ' ' && (json || strchr("\n\t\r", (int)code)))
            status = buf_printf(out, err, "\\%c", short_form[1]);
        else if (json ? code < ' ' || (ascii && code > '~') : !is_printable(code))
            status = put_escape(code, json, out, err);
        else
            status = buf_append(out, value->text + at, next - at, err);
    }
    return status < 0 ? -1 : buf_append(out, &quote, 1, err);
}

/* The state of printing one value. */
struct printing {
    const struct jv_json_style *json;
    bool sorted;
    struct buf *out;
    struct err *err;
};

static int put_value(const struct printing *p, const struct jv *value, int depth);

static int put_line(const struct printing *p, int depth)
{
    if (!p->json || !p->json->lines)
        return 0;
    int status = buf_text(p->out, "\n", p->err);
    for (int i = 0; i < depth && status == 0; i++)
        status = buf_append(p->out, p->json->indent.text, p->json->indent.size, p->err);
    return status;
}

static int put_between(const struct printing *p, bool member)
{
    if (!p->json)
        return buf_text(p->out, member ? ": " : ", ", p->err);
    const struct jv *text = member ? &p->json->member : &p->json->item;
    return buf_append(p->out, text->text, text->size, p->err);
}

/* Appends a mapping's key. JSON's keys are texts; as in Python, numbers, booleans and None are converted. */
static int put_key(const struct printing *p, const struct jv *key, int depth)
{
    if (!p->json || key->kind == JV_TEXT)
        return put_value(p, key, depth);
    if (key->kind < JV_NONE || key->kind > JV_FLOAT)
        return err_set(p->err, ERR_INVALID, "tojson of a mapping with %s as a key", jv_kind_name(key));
    return buf_text(p->out, "\"", p->err) < 0 || put_value(p, key, depth) < 0
               ? -1
               : buf_text(p->out, "\"", p->err);
}

static int jinja_print_compare_keys(const void *a, const void *b, void *arg)
{
    int order = 0;
    if (!jv_order(*(const struct jv *const *)a, *(const struct jv *const *)b, &order) || order == 2)
        *(bool *)arg = true;
    return order;
}

static int put_map(const struct printing *p, const struct jv_map *map, int depth)
{
    const struct jv **keys = calloc(map->count + 1, sizeof(const struct jv *));
    bool failed = !keys;
    for (size_t i = 0; i < map->count && !failed; i++)
        keys[i] = &map->keys[i];
    if (!failed && (p->json ? p->json->sorted : p->sorted))
        qsort_r(keys, map->count, sizeof(const struct jv *), jinja_print_compare_keys, &failed);
    int status =
        failed ? err_set(p->err, ERR_INVALID, "keys of several kinds have no order to sort_keys or pprint by")
               : buf_text(p->out, "{", p->err);
    for (size_t i = 0; i < map->count && status == 0; i++) {
        status = (i > 0 && put_between(p, false) < 0) || put_line(p, depth + 1) < 0 ||
                         put_key(p, keys[i], depth + 1) < 0 || put_between(p, true) < 0
                     ? -1
                     : put_value(p, &map->values[keys[i] - map->keys], depth + 1);
    }
    free(keys);
    return status < 0 || (map->count > 0 && put_line(p, depth) < 0) ? -1 : buf_text(p->out, "}", p->err);
}

static int put_list(const struct printing *p, const struct jv_list *list, int depth)
{
    static const struct {
        const char *begin, *end;
    } rows[] = {[JF_LIST] = {"[", "]"},
                [JF_TUPLE] = {"(", ")"},
                [JF_KEYS] = {"dict_keys([", "])"},
                [JF_VALUES] = {"dict_values([", "])"},
                [JF_PAIRS] = {"dict_items([", "])"}};
    if (p->json ? list->form > JF_TUPLE : list->form == JF_ITERATOR) {
        return err_set(p->err, ERR_INVALID, "%s%s%s cannot be written as a text",
                       jv_kind_name(&(struct jv){.kind = JV_LIST, .list = (struct jv_list *)(uintptr_t)list}),
                       list->made_by ? " of " : "", list->made_by ? list->made_by : "");
    }
    if (list->form == JF_RANGE) {
        const int64_t *r = list->range;
        return r[2] == 1 ? buf_printf(p->out, p->err, "range(%lld, %lld)", (long long)r[0], (long long)r[1])
                         : buf_printf(p->out, p->err, "range(%lld, %lld, %lld)", (long long)r[0],
                                      (long long)r[1], (long long)r[2]);
    }
    const bool tuple = list->form == JF_TUPLE && !p->json;
    const char *end = tuple && list->count == 1 ? ",)" : p->json ? "]" : rows[list->form].end;
    int status = buf_text(p->out, p->json ? "[" : rows[list->form].begin, p->err);
    for (size_t i = 0; i < list->count && status == 0; i++) {
        status = (i > 0 && put_between(p, false) < 0) || put_line(p, depth + 1) < 0
                     ? -1
                     : put_value(p, &list->items[i], depth + 1);
    }
    return status < 0 || (list->count > 0 && put_line(p, depth) < 0) ? -1 : buf_text(p->out, end, p->err);
}

/* Appends the repr() of values that JSON does not have, such as functions. */
static int put_object(const struct printing *p, const struct jv *value, int depth)
{
    switch (value->kind) {
    case JV_UNDEFINED:
        return buf_text(p->out, "Undefined", p->err);
    case JV_NAMESPACE:
        return buf_text(p->out, "<Namespace ", p->err) < 0 || put_map(p, value->map, depth + 1) < 0
                   ? -1
                   : buf_text(p->out, ">", p->err);
    case JV_LOOP:
        return buf_printf(p->out, p->err, "<LoopContext %zu/%zu>", value->loop->at + 1,
                          value->loop->items.count);
    case JV_TEMPLATE:
        return buf_text(p->out, "<TemplateReference None>", p->err);
    case JV_MACRO:
        if (value->macro->negated)
            return buf_text(p->out, "<Macro anonymous>", p->err);
        return buf_text(p->out, "<Macro ", p->err) < 0 || put_value(p, &value->macro->value, depth) < 0
                   ? -1
                   : buf_text(p->out, ">", p->err);
    case JV_FUNCTION:
    case JV_METHOD:
        return err_set(p->err, ERR_INVALID, "%s %s cannot be written as a text", jv_kind_name(value),
                       value->kind == JV_METHOD ? value->method->row->name : value->function->name);
    default:
        return err_set(p->err, ERR_INVALID, "%s cannot be written as a text", jv_kind_name(value));
    }
}

static int jinja_print_put_real(const struct printing *p, double real)
{
    if (p->json && !isfinite(real))
        return buf_text(p->out, isnan(real) ? "NaN" : real > 0 ? "Infinity" : "-Infinity", p->err);
    return jv_print_real(real, p->out, p->err);
}

static int put_value(const struct printing *p, const struct jv *value, int depth)
{
    const bool json = p->json != NULL;
    if (depth > PRINT_DEPTH_MAX)
        return err_set(p->err, ERR_TOO_BIG, "a value nested more than %d deep", PRINT_DEPTH_MAX);
    switch (value->kind) {
    case JV_TEXT:
        return (value->safe && !json && buf_text(p->out, "Markup(", p->err) < 0) ||
                       jinja_print_put_quoted(value, json, json && p->json->ascii, p->out, p->err) < 0
                   ? -1
               : value->safe && !json ? buf_text(p->out, ")", p->err)
                                      : 0;
    case JV_LIST:
        return put_list(p, value->list, depth);
    case JV_MAP:
        return put_map(p, value->map, depth);
    case JV_NONE:
        return buf_text(p->out, json ? "null" : "None", p->err);
    case JV_BOOL:
        return buf_text(p->out,
                        json           ? (value->truth ? "true" : "false")
                        : value->truth ? "True"
                                       : "False",
                        p->err);
    case JV_INT:
        return buf_printf(p->out, p->err, "%lld", (long long)value->number);
    case JV_FLOAT:
        return jinja_print_put_real(p, value->real);
    default:
        return !json ? put_object(p, value, depth)
                     : err_set(p->err, ERR_INVALID, "tojson of %s", jv_kind_name(value));
    }
}

int jv_print(const struct jv *value, struct buf *out, struct err *err)
{
    return value->kind == JV_TEXT        ? buf_append(out, value->text, value->size, err)
           : value->kind == JV_UNDEFINED ? 0
                                         : jv_repr(value, out, err);
}

int jv_repr(const struct jv *value, struct buf *out, struct err *err)
{
    return put_value(&(struct printing){.out = out, .err = err}, value, 0);
}

int jv_repr_sorted(const struct jv *value, struct buf *out, struct err *err)
{
    return put_value(&(struct printing){.out = out, .err = err, .sorted = true}, value, 0);
}

int jv_json(const struct jv *value, const struct jv_json_style *style, struct buf *out, struct err *err)
{
    return put_value(&(struct printing){.json = style, .out = out, .err = err}, value, 0);
}

int jv_take(struct jinja_arena *arena, struct buf *text, int status, struct jv *out, struct err *err)
{
    status = status < 0 ? -1 : jv_copy(arena, buf_str(text), text->size, out, err);
    buf_fini(text);
    return status;
}

int jv_text_of(struct jinja_arena *arena, const struct jv *value, struct jv *out, struct err *err)
{
    struct buf text = {.limit = JINJA_TEXT_MAX};
    if (value->kind == JV_TEXT) {
        *out = *value;
        return 0;
    }
    return jv_take(arena, &text, jv_print(value, &text, err), out, err);
}

int jv_repr_of(struct jinja_arena *arena, const struct jv *value, struct jv *out, struct err *err)
{
    struct buf text = {.limit = JINJA_TEXT_MAX};
    return jv_take(arena, &text, jv_repr(value, &text, err), out, err);
}
