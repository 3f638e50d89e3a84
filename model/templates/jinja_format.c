#include "model/templates/jinja_format.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/templates/jinja_print.h"

enum { WIDTH_MAX = 10000, NUMBER_BYTES_MAX = 1024 };

/* A format specification: the text behind '%', or behind ':' in braces. */
struct spec {
    char align; /* '<', '>', '^', '=', or 0 for the default of the value's kind */
    char fill;
    char sign; /* '+', ' ' or 0 */
    bool alternate, zero, commas;
    int width, precision; /* precision -1: none */
    char conversion;      /* 0: none */
};

static bool jinja_format_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int digits_read(const struct jv *format, size_t *at, int *number, struct err *err)
{
    *number = 0;
    while (*at < format->size && jinja_format_is_digit(format->text[*at])) {
        *number = *number * 10 + format->text[(*at)++] - '0';
        if (*number > WIDTH_MAX)
            return err_set(err, ERR_TOO_BIG, "a width beyond %d in a format", WIDTH_MAX);
    }
    return 0;
}

static int precision_read(const struct jv *format, size_t *at, struct spec *spec, struct err *err)
{
    spec->precision = -1;
    if (*at < format->size && format->text[*at] == '.') {
        ++*at;
        return digits_read(format, at, &spec->precision, err);
    }
    return 0;
}

/* Appends a text padded to the specification's width. A number's sign stands before zeros that pad it. */
static int put_padded(const struct spec *spec, const struct jv *text, char align, struct buf *out,
                      struct err *err)
{
    const size_t have = jv_characters(text);
    const size_t room = have < (size_t)spec->width ? (size_t)spec->width - have : 0;
    size_t sign = 0;
    if (align == '=') {
        sign = text->size > 0 && strchr("+- ", text->text[0]);
        sign +=
            text->size > sign + 1 && text->text[sign] == '0' && strchr("xXob", text->text[sign + 1]) ? 2 : 0;
    }
    const size_t before = align == '<' ? 0 : align == '^' ? room / 2 : room;
    int status = buf_append(out, text->text, sign, err);
    for (size_t i = 0; i < room && status == 0; i++) {
        if (i == before)
            status = buf_append(out, text->text + sign, text->size - sign, err);
        status = status < 0 ? -1 : buf_append(out, &spec->fill, 1, err);
    }
    return status < 0 || before < room ? status : buf_append(out, text->text + sign, text->size - sign, err);
}

static int put_string(const struct spec *spec, struct jv text, char align, struct buf *out, struct err *err)
{
    if (spec->precision >= 0)
        text.size = jv_character_at(&text, (size_t)spec->precision);
    return put_padded(spec, &text, spec->align != 0 ? spec->align : align, out, err);
}

/* Inserts commas between thousands and returns the new size. */
static size_t with_commas(char *digits, size_t size, size_t whole)
{
    for (size_t i = whole; i > 3;) {
        i -= 3;
        memmove(digits + i + 1, digits + i, size - i);
        digits[i] = ',';
        size++;
    }
    return size;
}

static int jinja_format_put_number(const struct spec *spec, bool negative, char *digits, size_t size,
                                   struct buf *out, struct err *err)
{
    char made[2 * NUMBER_BYTES_MAX];
    size_t whole = 0;
    while (whole < size && jinja_format_is_digit(digits[whole]))
        whole++;
    if (spec->commas) {
        if (spec->zero)
            return err_set(err, ERR_UNSUPPORTED, "a format with zeros and commas");
        size = with_commas(digits, size, whole);
    }
    const char *base = !spec->alternate          ? ""
                       : spec->conversion == 'x' ? "0x"
                       : spec->conversion == 'X' ? "0X"
                       : spec->conversion == 'o' ? "0o"
                       : spec->conversion == 'b' ? "0b"
                                                 : "";
    const int written = snprintf(made, sizeof(made), "%s%s%.*s",
                                 negative            ? "-"
                                 : spec->sign == '+' ? "+"
                                 : spec->sign == ' ' ? " "
                                                     : "",
                                 base, (int)size, digits);
    const struct jv text = jv_borrow(made, (size_t)written);
    return put_padded(spec, &text, spec->align != 0 ? spec->align : spec->zero ? '=' : '>', out, err);
}

static int put_whole(const struct spec *spec, int64_t number, struct buf *out, struct err *err)
{
    char digits[NUMBER_BYTES_MAX];
    size_t size = 0;
    uint64_t value = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    const unsigned base = spec->conversion == 'o'                              ? 8
                          : spec->conversion == 'b'                            ? 2
                          : spec->conversion == 'x' || spec->conversion == 'X' ? 16
                                                                               : 10;
    char turned[80];
    do {
        turned[size++] = (spec->conversion == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[value % base];
        value /= base;
    } while (value > 0);
    size_t zeros = spec->precision > (int)size ? (size_t)spec->precision - size : 0;
    if (zeros + size >= sizeof(digits) / 2)
        return err_set(err, ERR_UNSUPPORTED, "a format of an integer with so many digits");
    memset(digits, '0', zeros);
    for (size_t i = 0; i < size; i++)
        digits[zeros + i] = turned[size - 1 - i];
    return jinja_format_put_number(spec, number < 0, digits, zeros + size, out, err);
}

static int jinja_format_put_real(const struct spec *spec, double real, struct buf *out, struct err *err)
{
    char digits[NUMBER_BYTES_MAX];
    char pattern[16];
    const char conversion = spec->conversion == '%' ? 'f' : spec->conversion;
    const int precision = spec->precision < 0 ? 6 : spec->precision;
    if (precision > 100)
        return err_set(err, ERR_UNSUPPORTED, "a format of a float with more than 100 digits");
    snprintf(pattern, sizeof(pattern), "%%%s.*%c", spec->alternate ? "#" : "", conversion);
    int size = snprintf(digits, sizeof(digits) - 400, pattern, precision,
                        fabs(spec->conversion == '%' ? real * 100 : real));
    if (spec->conversion == '%')
        digits[size++] = '%';
    return jinja_format_put_number(spec, signbit(real) && !isnan(real), digits, (size_t)size, out, err);
}

/* ---- % ---- */

static int percent_read(const struct jv *format, size_t *at, struct spec *spec, struct jv *name,
                        struct err *err)
{
    *spec = (struct spec){.precision = -1, .fill = ' '};
    *name = (struct jv){0};
    if (*at < format->size && format->text[*at] == '(') {
        const size_t begin = *at + 1;
        const char *end = memchr(format->text + begin, ')', format->size - begin);
        if (!end)
            return err_set(err, ERR_INVALID, "%% with a name that does not end");
        *name = jv_borrow(format->text + begin, (size_t)(end - format->text) - begin);
        if (name->size > 0 && memchr(name->text, '(', name->size) != NULL)
            return err_set(err, ERR_UNSUPPORTED, "%% with a parenthesis in a name");
        *at = (size_t)(end - format->text) + 1;
    }
    for (; *at < format->size && memchr("-+ #0", format->text[*at], 5); ++*at) {
        const char c = format->text[*at];
        spec->align = c == '-' ? '<' : spec->align;
        spec->zero = spec->zero || c == '0';
        spec->alternate = spec->alternate || c == '#';
        spec->sign = c == '+' || (c == ' ' && spec->sign == 0) ? c : spec->sign;
    }
    if (digits_read(format, at, &spec->width, err) < 0 || precision_read(format, at, spec, err) < 0)
        return -1;
    while (*at < format->size && memchr("lhL", format->text[*at], 3))
        ++*at;
    if (*at >= format->size)
        return err_set(err, ERR_INVALID, "%% with a format that does not end");
    spec->conversion = format->text[(*at)++];
    return 0;
}

static int percent_put(struct jinja_arena *arena, struct spec *spec, const struct jv *value, struct buf *out,
                       struct err *err)
{
    struct jv text;
    int64_t number;
    double real;
    const char c = spec->conversion;
    if (c == 's' || c == 'r') {
        return (c == 's' ? jv_text_of(arena, value, &text, err) : jv_repr_of(arena, value, &text, err)) < 0
                   ? -1
                   : put_string(spec, text, '>', out, err);
    }
    spec->fill = spec->zero && spec->align == 0 ? '0' : ' ';
    spec->zero = spec->fill == '0';
    if (memchr("diuxXo", c, 6)) {
        const bool decimal = memchr("diu", c, 3) != NULL;
        if (value->kind == JV_FLOAT && decimal && fabs(value->real) < 9e18)
            number = (int64_t)value->real;
        else if (!jv_number(value, &number))
            return err_set(err, ERR_INVALID, "%% with %%%c of %s", c, jv_kind_name(value));
        return put_whole(spec, number, out, err);
    }
    if (memchr("eEfFgG", c, 6)) {
        return jv_real(value, &real)
                   ? jinja_format_put_real(spec, real, out, err)
                   : err_set(err, ERR_INVALID, "%% with %%%c of %s", c, jv_kind_name(value));
    }
    return err_set(err, memchr("ca*", c, 3) ? ERR_UNSUPPORTED : ERR_INVALID, "%% with the conversion \"%c\"",
                   c >= ' ' && c < 0x7f ? c : '?');
}

static int percent_into(struct jinja_arena *arena, const struct jv *format, const struct jv *values,
                        struct buf *out, struct err *err)
{
    const bool tuple = jv_is_list(values, JF_TUPLE);
    const size_t count = tuple ? values->list->count : 1;
    const struct jv *items = tuple ? values->list->items : values;
    size_t used = 0;
    for (size_t at = 0; at < format->size;) {
        const char *sign = memchr(format->text + at, '%', format->size - at);
        const size_t end = sign ? (size_t)(sign - format->text) : format->size;
        struct spec spec;
        struct jv name;
        if (buf_append(out, format->text + at, end - at, err) < 0)
            return -1;
        at = end + 1;
        if (!sign)
            break;
        if (percent_read(format, &at, &spec, &name, err) < 0)
            return -1;
        if (spec.conversion == '%') {
            if (buf_text(out, "%", err) < 0)
                return -1;
            continue;
        }
        const struct jv *value = NULL;
        if (name.kind == JV_TEXT) {
            value = values->kind == JV_MAP ? jv_map_get(values->map, &name) : NULL;
            used = values->kind == JV_MAP ? count : used;
        } else if (used < count) {
            value = &items[used++];
        }
        if (!value)
            return err_set(err, ERR_INVALID, "%% with more than it is given");
        if (percent_put(arena, &spec, value, out, err) < 0)
            return -1;
    }
    /* As in Python, values that can be indexed need not be used up. */
    const bool looked_into = values->kind == JV_MAP ||
                             (values->kind == JV_LIST && values->list->form <= JF_RANGE && !tuple) ||
                             values->kind == JV_UNDEFINED;
    return used < count && !looked_into ? err_set(err, ERR_INVALID, "%% with less than it is given") : 0;
}

int jinja_percent(struct jinja_arena *arena, const struct jv *format, const struct jv *values, struct jv *out,
                  struct err *err)
{
    struct buf text = {.limit = JINJA_TEXT_MAX};
    if (format->safe)
        return err_set(err, ERR_UNSUPPORTED, "%% of a string that escape or safe marked");
    return jv_take(arena, &text, percent_into(arena, format, values, &text, err), out, err);
}

/* ---- str.format ---- */

/* Evaluates the field name [begin, end) in braces. */
static int field_value(const struct jinja_call *c, const struct jv *name, size_t *next, struct jv *out)
{
    size_t at = 0;
    int index;
    if (name->size > 0 && !memchr(name->text, '.', name->size) && !memchr(name->text, '[', name->size)) {
        if (digits_read(name, &at, &index, c->err) < 0)
            return -1;
    } else if (name->size > 0) {
        return err_set(c->err, ERR_UNSUPPORTED, "format with an attribute or an index in a field");
    }
    if (name->size == 0 || at == name->size) {
        const bool automatic = name->size == 0;
        if (automatic ? *next == SIZE_MAX : *next > 0 && *next != SIZE_MAX) {
            return err_set(c->err, ERR_INVALID,
                           "format with fields that are numbered and fields that are not");
        }
        const size_t place = automatic ? *next : (size_t)index;
        *next = automatic ? *next + 1 : SIZE_MAX;
        if (place >= c->extra->count)
            return err_set(c->err, ERR_INVALID, "format with more fields than it is given");
        *out = c->extra->items[place];
        return 0;
    }
    for (size_t n = 0; n < c->extra->named_count; n++) {
        if (jv_equal(&c->extra->names[n], name)) {
            *out = c->extra->named[n];
            return 0;
        }
    }
    return err_set(c->err, ERR_INVALID, "format with a field that it is not given");
}

static bool is_align(char c)
{
    return c != '\0' && strchr("<>^=", c);
}

static int spec_read(const struct jv *text, struct spec *spec, struct err *err)
{
    size_t at = 0;
    *spec = (struct spec){.precision = -1, .fill = ' '};
    if (text->size > 1 && is_align(text->text[1])) {
        spec->fill = text->text[0];
        spec->align = text->text[1];
        at = 2;
    } else if (text->size > 0 && is_align(text->text[0])) {
        spec->align = text->text[at++];
    }
    if (at < text->size && memchr("+- ", text->text[at], 3)) {
        spec->sign = text->text[at] == '-' ? '\0' : text->text[at];
        at++;
    }
    spec->alternate = at < text->size && text->text[at] == '#';
    at += spec->alternate;
    if (at < text->size && text->text[at] == '0' && spec->align == 0) {
        spec->zero = true;
        spec->fill = '0';
        at++;
    }
    if (digits_read(text, &at, &spec->width, err) < 0)
        return -1;
    spec->commas = at < text->size && text->text[at] == ',';
    at += spec->commas;
    if (precision_read(text, &at, spec, err) < 0)
        return -1;
    spec->conversion = at < text->size ? text->text[at++] : '\0';
    return at == text->size && (unsigned char)spec->fill < 0x80
               ? 0
               : err_set(err, ERR_UNSUPPORTED, "format with \"%.*s\" behind a colon",
                         (int)(text->size < 40 ? text->size : 40), text->text);
}

static int field_put(const struct jinja_call *c, const struct jv *value, const struct jv *how,
                     struct buf *out)
{
    struct spec spec;
    int64_t number = 0;
    double real;
    if (how->size == 0)
        return jv_print(value, out, c->err);
    if (spec_read(how, &spec, c->err) < 0)
        return -1;
    if (value->kind == JV_TEXT && (spec.conversion == 's' || spec.conversion == 0) && spec.align != '=' &&
        !spec.zero && spec.sign == 0 && !spec.commas && !spec.alternate) {
        return put_string(&spec, *value, '<', out, c->err);
    }
    const bool whole = jv_number(value, &number) && value->kind == JV_INT;
    if (whole && spec.precision < 0 && memchr("\0dxXob", spec.conversion, 6))
        return put_whole(&spec, number, out, c->err);
    if ((whole || value->kind == JV_FLOAT) && jv_real(value, &real) && spec.conversion != 0 &&
        memchr("eEfFgG%", spec.conversion, 7)) {
        return jinja_format_put_real(&spec, real, out, c->err);
    }
    return err_set(c->err, ERR_UNSUPPORTED, "format of %s with \"%.*s\" behind a colon", jv_kind_name(value),
                   (int)(how->size < 40 ? how->size : 40), how->text);
}

/* Reads the field that begins at *at, behind its opening brace. */
static int jinja_format_field_read(const struct jinja_call *c, size_t *at, size_t *next, struct buf *out)
{
    const struct jv *format = c->self;
    const char *end = memchr(format->text + *at, '}', format->size - *at);
    const char *nested = memchr(format->text + *at, '{', format->size - *at);
    if (!end || (nested && nested < end)) {
        return !end ? err_set(c->err, ERR_INVALID, "format with a field that does not end")
                    : err_set(c->err, ERR_UNSUPPORTED, "format with a field in a field");
    }
    struct jv name = jv_borrow(format->text + *at, (size_t)(end - format->text) - *at),
              how = jv_borrow("", 0), value;
    *at += name.size + 1;
    const char *colon = name.size > 0 ? memchr(name.text, ':', name.size) : NULL;
    if (colon) {
        how = jv_borrow(colon + 1, name.size - (size_t)(colon - name.text) - 1);
        name.size = (size_t)(colon - name.text);
    }
    const char *bang = name.size > 0 ? memchr(name.text, '!', name.size) : NULL;
    const char turn = bang && bang + 2 == name.text + name.size ? bang[1] : '\0';
    if (bang)
        name.size = (size_t)(bang - name.text);
    if (field_value(c, &name, next, &value) < 0 ||
        (turn == 'r' && jv_repr_of(c->arena, &value, &value, c->err) < 0) ||
        (turn == 's' && jv_text_of(c->arena, &value, &value, c->err) < 0)) {
        return -1;
    }
    return bang && turn != 'r' && turn != 's'
               ? err_set(c->err, ERR_UNSUPPORTED, "format with such a conversion")
               : field_put(c, &value, &how, out);
}

int jinja_do_format_method(const struct jinja_call *c)
{
    const struct jv *format = c->self;
    struct buf out = {.limit = JINJA_TEXT_MAX};
    size_t next = 0;
    int status =
        format->safe ? err_set(c->err, ERR_UNSUPPORTED, "format of a string that escape or safe marked") : 0;
    for (size_t at = 0; at < format->size && status == 0;) {
        const char brace = format->text[at++];
        const bool twice = at < format->size && format->text[at] == brace;
        if (brace != '{' && brace != '}') {
            status = buf_append(&out, &brace, 1, c->err);
        } else if (twice) {
            at++;
            status = buf_append(&out, &brace, 1, c->err);
        } else if (brace == '}') {
            status = err_set(c->err, ERR_INVALID, "format with a brace alone");
        } else {
            status = jinja_format_field_read(c, &at, &next, &out);
        }
    }
    return jv_take(c->arena, &out, status, c->out, c->err);
}
