/* Filters of numbers. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/templates/jinja_filter.h"
#include "model/templates/jinja_print.h"

enum { DIGITS_MAX = 400 };

/* Copies a text's digits as Python's int() and float() accept them, without surrounding blanks and without
 * underscores. Returns false if the text contains other characters. */
static bool digits_of(const struct jv *text, char digits[DIGITS_MAX])
{
    const struct jv bare = jv_strip(*text, NULL, true, true);
    size_t count = 0;
    for (size_t i = 0; i < bare.size; i++) {
        const char c = bare.text[i];
        if (c == '\0' || (unsigned char)c >= 0x80 || count + 1 == DIGITS_MAX)
            return false;
        if (c != '_') {
            digits[count++] = c;
        } else if (i == 0 || i + 1 == bare.size || strchr("+-._", bare.text[i - 1]) ||
                   strchr("._eE", bare.text[i + 1])) {
            return false;
        }
    }
    digits[count] = '\0';
    return count > 0;
}

/* Computes Python's float(text); returns false if the text is no number. */
static bool real_of(const struct jv *text, double *real)
{
    char digits[DIGITS_MAX], *end;
    if (!digits_of(text, digits) || strpbrk(digits, "xXpP()") || strchr(" \t\n\v\f\r", digits[0]))
        return false;
    *real = strtod(digits, &end);
    return *end == '\0';
}

/* Computes Python's int(text, base). Returns 1, 0 if the text is no whole number, or -1 beyond 64 bits. */
static int jinja_number_whole_of(const struct jinja_call *c, const struct jv *text, int64_t base,
                                 int64_t *whole)
{
    char digits[DIGITS_MAX], *end;
    if (!digits_of(text, digits))
        return 0;
    const char *at = digits + (digits[0] == '+' || digits[0] == '-');
    const char letter = at[0] == '0' && at[1] != '\0' ? (char)(at[1] | 0x20) : '\0';
    const int prefix = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (at[0] == '\0' || strchr("+- \t\n\v\f\r", at[0]))
        return 0;
    if (prefix != 0 && (base == 0 || base == prefix) && at[2] != '\0' && !strchr("+-", at[2])) {
        memmove((char *)(uintptr_t)at, at + 2, strlen(at + 2) + 1);
        base = prefix;
    } else if (base == 0) {
        for (const char *zero = at; at[0] == '0' && *zero != '\0'; zero++)
            if (*zero != '0')
                return 0;
        base = 10;
    }
    errno = 0;
    if (base == 16 && at[0] == '0' && (at[1] | 0x20) == 'x')
        return 0;
    *whole = strtoll(digits, &end, (int)base);
    if (*end != '\0' || end == digits)
        return 0;
    return errno == ERANGE ? err_set(c->err, ERR_TOO_BIG, "int: a number beyond 64 bits") : 1;
}

static int undefined_number(const struct jinja_call *c)
{
    return err_set(c->err, ERR_INVALID, "undefined: \"%.*s\"", (int)(c->self->size < 60 ? c->self->size : 60),
                   c->self->text);
}

/* Implements the filter int(default, base). */
int jinja_do_int(const struct jinja_call *c)
{
    int64_t number = 0, base;
    double real = 0;
    if (c->self->kind == JV_UNDEFINED)
        return undefined_number(c);
    if (jinja_number_arg(c, 1, 10, &base) < 0)
        return -1;
    if (c->self->kind == JV_TEXT && (base < 0 || base == 1 || base > 36))
        base = -1; /* int() refuses this base; float() is tried */
    const int whole = c->self->kind == JV_TEXT
                          ? (base < 0 ? 0 : jinja_number_whole_of(c, c->self, base, &number))
                          : jv_number(c->self, &number);
    if (whole != 0) {
        *c->out = jv_int(number);
        return whole < 0 ? -1 : 0;
    }
    *c->out = c->args[0].kind != JV_ABSENT ? c->args[0] : jv_int(0);
    if (c->self->kind == JV_FLOAT ? jv_real(c->self, &real)
                                  : c->self->kind == JV_TEXT && real_of(c->self, &real)) {
        if (isinf(real) && c->self->kind == JV_FLOAT)
            return err_set(c->err, ERR_INVALID, "int of an infinite number");
        if (isfinite(real) && !(real > -9.2e18 && real < 9.2e18))
            return err_set(c->err, ERR_TOO_BIG, "int: a number beyond 64 bits");
        *c->out = isfinite(real) ? jv_int((int64_t)real) : *c->out;
    }
    return 0;
}

/* Implements the filter float(default). */
int jinja_do_float(const struct jinja_call *c)
{
    double real = 0;
    if (c->self->kind == JV_UNDEFINED)
        return undefined_number(c);
    const bool is = c->self->kind == JV_TEXT ? real_of(c->self, &real) : jv_real(c->self, &real);
    *c->out = is ? jv_float(real) : c->args[0].kind != JV_ABSENT ? c->args[0] : jv_float(0);
    return 0;
}

int jinja_do_abs(const struct jinja_call *c)
{
    int64_t number;
    if (c->self->kind == JV_FLOAT) {
        *c->out = jv_float(fabs(c->self->real));
        return 0;
    }
    if (!jv_number(c->self, &number) || number == INT64_MIN)
        return err_set(c->err, ERR_INVALID, "abs of %s", jv_kind_name(c->self));
    *c->out = jv_int(number < 0 ? -number : number);
    return 0;
}

/* Implements the filter round(precision, method). With method "common" a whole number stays whole. */
int jinja_do_round(const struct jinja_call *c)
{
    int64_t number, precision;
    double value;
    const bool common = c->args[1].kind == JV_ABSENT || jv_is_text(&c->args[1], "common");
    if (jinja_number_arg(c, 0, 0, &precision) < 0)
        return -1;
    if (!jv_real(c->self, &value))
        return err_set(c->err, ERR_INVALID, "round of %s", jv_kind_name(c->self));
    if (precision < 0 || precision > 15)
        return err_set(c->err, ERR_UNSUPPORTED, "round to %lld places, not 0 to 15", (long long)precision);
    if (common && jv_number(c->self, &number)) {
        *c->out = jv_int(number);
        return 0;
    }
    if (common) { /* printing rounds to the nearest decimal of this precision */
        char digits[DIGITS_MAX];
        snprintf(digits, sizeof(digits), "%.*f", (int)precision, value);
        *c->out = jv_float(strtod(digits, NULL));
        return 0;
    }
    const bool up = jv_is_text(&c->args[1], "ceil");
    if (!up && !jv_is_text(&c->args[1], "floor"))
        return err_set(c->err, ERR_INVALID, "round by a method that is not common, ceil or floor");
    if (!isfinite(value))
        return err_set(c->err, ERR_INVALID, "round of a number that is not finite");
    const double scale = pow(10, (double)precision);
    const double whole = up ? ceil(value * scale) : floor(value * scale);
    *c->out = jv_float(
        whole == 0 ? 0 : whole / scale); /* jinja2's intermediate result is an integer, which has no -0 */
    return 0;
}

/* Implements the filter filesizeformat(binary). */
int jinja_do_filesizeformat(const struct jinja_call *c)
{
    static const char letters[] = "kMGTPEZY";
    struct buf text = {.limit = JINJA_TEXT_MAX};
    const bool binary = jv_true(&c->args[0]);
    const double base = binary ? 1024 : 1000;
    double bytes = 0;
    if (c->self->kind == JV_TEXT ? !real_of(c->self, &bytes) : !jv_real(c->self, &bytes))
        return err_set(c->err, ERR_INVALID, "filesizeformat of %s", jv_kind_name(c->self));
    if (isnan(bytes) || (isinf(bytes) && bytes < 0))
        return err_set(c->err, ERR_INVALID, "filesizeformat of a number that is not finite");
    if (bytes < base) {
        const int status = bytes == 1 ? buf_text(&text, "1 Byte", c->err)
                                      : buf_printf(&text, c->err, "%.0f Bytes", trunc(bytes) + 0.0);
        return jv_take(c->arena, &text, status, c->out, c->err);
    }
    size_t i = 0;
    double unit = base * base;
    for (; i + 1 < sizeof(letters) - 1 && bytes >= unit; i++)
        unit *= base;
    const int status = buf_printf(&text, c->err, "%.1f %c%sB", base * bytes / unit,
                                  binary && i == 0 ? 'K' : letters[i], binary ? "i" : "");
    return jv_take(c->arena, &text, status, c->out, c->err);
}
