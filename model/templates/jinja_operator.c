#include "model/templates/jinja_operator.h"

#include <math.h>
#include <string.h>

#include "model/templates/jinja_format.h"
#include "model/templates/jinja_print.h"
#include "model/templates/jinja_text.h"

enum { JOINED_BYTES_MAX = 16 << 20, REPEATED_MAX = 100000, RANGE_MAX = 100000 };

static const char *const signs[] = {
    [JO_ADD] = "+",    [JO_SUB] = "-", [JO_MUL] = "*",    [JO_DIV] = "/",
    [JO_FLOOR] = "//", [JO_MOD] = "%", [JO_POWER] = "**", [JO_CONCAT] = "~",
    [JO_EQ] = "==",    [JO_NE] = "!=", [JO_LT] = "<",     [JO_LE] = "<=",
    [JO_GT] = ">",     [JO_GE] = ">=", [JO_IN] = "in",    [JO_NOT_IN] = "not in"};

static int beyond(enum jinja_op op, struct err *err)
{
    return err_set(err, ERR_TOO_BIG, "%s: a number beyond 64 bits", signs[op]);
}

int jinja_joined(struct jinja_arena *arena, const struct jv *a, const struct jv *b, struct jv *out,
                 struct err *err)
{
    struct buf text = {.limit = JOINED_BYTES_MAX};
    return jv_take(arena, &text, jv_print(a, &text, err) < 0 ? -1 : jv_print(b, &text, err), out, err);
}

static int lists_joined(struct jinja_arena *arena, const struct jv *a, const struct jv *b, struct jv *out,
                        struct err *err)
{
    struct jv made;
    if (jv_list_new(arena, a->list->count + b->list->count, &made, err) < 0)
        return -1;
    memcpy(made.list->items, a->list->items, a->list->count * sizeof(struct jv));
    memcpy(made.list->items + a->list->count, b->list->items, b->list->count * sizeof(struct jv));
    made.list->count = a->list->count + b->list->count;
    made.list->form = a->list->form;
    *out = made;
    return 0;
}

static int power(int64_t a, int64_t b, struct jv *out, struct err *err)
{
    if (b < 0) {
        *out = jv_float(pow((double)a, (double)b));
        return a == 0 ? err_set(err, ERR_INVALID, "**: zero to a negative power") : 0;
    }
    int64_t result = b == 0 ? 1 : a == -1 && b % 2 == 0 ? 1 : a;
    bool over = false;
    for (; b > 1 && (a < -1 || a > 1) && !over; b--) /* at most 63 rounds before an overflow */
        over = __builtin_mul_overflow(result, a, &result);
    *out = jv_int(result);
    return over ? beyond(JO_POWER, err) : 0;
}

/* Computes with whole numbers as Python does: a quotient is rounded down, and a remainder has the divisor's
 * sign. */
static int whole(enum jinja_op op, int64_t a, int64_t b, struct jv *out, struct err *err)
{
    int64_t result = 0;
    bool over = false;
    if (b == 0 && (op == JO_FLOOR || op == JO_MOD || op == JO_DIV))
        return err_set(err, ERR_INVALID, "%s: division by zero", signs[op]);
    switch (op) {
    case JO_POWER:
        return power(a, b, out, err);
    case JO_ADD:
        over = __builtin_add_overflow(a, b, &result);
        break;
    case JO_SUB:
        over = __builtin_sub_overflow(a, b, &result);
        break;
    case JO_MUL:
        over = __builtin_mul_overflow(a, b, &result);
        break;
    case JO_FLOOR:
        over = a == INT64_MIN && b == -1;
        result = over ? 0 : a / b - (a % b != 0 && (a < 0) != (b < 0));
        break;
    case JO_MOD:
        result = b == -1 ? 0 : a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
        break;
    default: /* JO_DIV */
        *out = jv_float((double)((long double)a / (long double)b));
        return 0;
    }
    *out = jv_int(result);
    return over ? beyond(op, err) : 0;
}

/* Repeats a text or a list. */
static int repeated(struct jinja_arena *arena, const struct jv *a, int64_t times, struct jv *out,
                    struct err *err)
{
    const size_t size = a->kind == JV_TEXT ? a->size : a->list->count;
    const size_t most = a->kind == JV_TEXT ? JOINED_BYTES_MAX : REPEATED_MAX;
    const size_t count = times > 0 ? (size_t)times : 0;
    if (size > 0 && count > most / size)
        return err_set(err, ERR_TOO_BIG, "*: %s repeated %zu times", jv_kind_name(a), count);
    if (a->kind == JV_TEXT) {
        char *text = jinja_alloc(arena, size * count + 1, err);
        for (size_t i = 0; i < count && text && size > 0; i++)
            memcpy(text + i * size, a->text, size);
        *out = jv_borrow(text, size * count);
        out->safe = a->safe;
        return text ? 0 : -1;
    }
    struct jv made;
    if (jv_list_new(arena, size * count, &made, err) < 0)
        return -1;
    for (size_t i = 0; i < count && size > 0; i++)
        memcpy(made.list->items + i * size, a->list->items, size * sizeof(struct jv));
    made.list->count = size * count;
    made.list->form = a->list->form;
    *out = made;
    return 0;
}

/* Divides as CPython does: the quotient is rounded down, and the remainder, also a zero, has the divisor's
 * sign. */
static void divided(double a, double b, double *quotient, double *rest)
{
    *rest = fmod(a, b);
    double count = (a - *rest) / b;
    if (*rest != 0) {
        if ((b < 0) != (*rest < 0)) {
            *rest += b;
            count -= 1;
        }
    } else {
        *rest = copysign(0, b);
    }
    *quotient = floor(count);
    *quotient = count == 0 ? copysign(0, a / b) : *quotient + (count - *quotient > 0.5);
}

static int reals(enum jinja_op op, double a, double b, struct jv *out, struct err *err)
{
    double quotient = 0, rest = 0;
    if (b == 0 && (op == JO_DIV || op == JO_FLOOR || op == JO_MOD))
        return err_set(err, ERR_INVALID, "%s: division by zero", signs[op]);
    if (op == JO_FLOOR || op == JO_MOD)
        divided(a, b, &quotient, &rest);
    if (op == JO_POWER &&
        ((a == 0 && b < 0) || (a < 0 && b != floor(b)) || (isfinite(a) && isfinite(b) && isinf(pow(a, b))))) {
        return err_set(err, ERR_INVALID, "**: no finite real number");
    }
    *out = jv_float(op == JO_ADD     ? a + b
                    : op == JO_SUB   ? a - b
                    : op == JO_MUL   ? a * b
                    : op == JO_DIV   ? a / b
                    : op == JO_FLOOR ? quotient
                    : op == JO_POWER ? pow(a, b)
                                     : rest);
    return 0;
}

static bool is_repeatable(const struct jv *value)
{
    return value->kind == JV_TEXT || (value->kind == JV_LIST && value->list->form <= JF_TUPLE);
}

/* Concatenates texts. If one is a Markup, the other is escaped. */
static int texts_joined(struct jinja_arena *arena, const struct jv *a, const struct jv *b, struct jv *out,
                        struct err *err)
{
    struct jv left = *a, right = *b;
    const bool safe = a->safe || b->safe;
    if (safe && (jinja_escaped(arena, a, &left, err) < 0 || jinja_escaped(arena, b, &right, err) < 0))
        return -1;
    const int status = jinja_joined(arena, &left, &right, out, err);
    out->safe = status == 0 && safe;
    return status;
}

int jinja_arithmetic(struct jinja_arena *arena, enum jinja_op op, const struct jv *a, const struct jv *b,
                     struct jv *out, struct err *err)
{
    int64_t x, y;
    double u, v;
    if (op == JO_ADD && a->kind == JV_TEXT && b->kind == JV_TEXT)
        return texts_joined(arena, a, b, out, err);
    if (op == JO_ADD && a->kind == JV_LIST && b->kind == JV_LIST && a->list->form == b->list->form &&
        is_repeatable(a)) {
        return lists_joined(arena, a, b, out, err);
    }
    if (op == JO_MUL && is_repeatable(a) && jv_number(b, &y))
        return repeated(arena, a, y, out, err);
    if (op == JO_MUL && is_repeatable(b) && jv_number(a, &x))
        return repeated(arena, b, x, out, err);
    if (op == JO_MOD && a->kind == JV_TEXT)
        return jinja_percent(arena, a, b, out, err);
    if (jv_number(a, &x) && jv_number(b, &y))
        return whole(op, x, y, out, err);
    if (jv_real(a, &u) && jv_real(b, &v))
        return reals(op, u, v, out, err);
    const struct jv *wrong = a->kind == JV_UNDEFINED ? a : b;
    if (wrong->kind == JV_UNDEFINED) {
        return err_set(err, ERR_INVALID, "undefined: \"%.*s\"", (int)(wrong->size < 60 ? wrong->size : 60),
                       wrong->text);
    }
    return err_set(err, ERR_INVALID, "%s and %s do not go together with %s", jv_kind_name(a), jv_kind_name(b),
                   signs[op]);
}

int jinja_signed(const struct jv *a, bool minus, struct jv *out, struct err *err)
{
    int64_t number;
    if (a->kind == JV_FLOAT) {
        *out = jv_float(minus ? -a->real : a->real);
        return 0;
    }
    if (!jv_number(a, &number))
        return err_set(err, ERR_INVALID, "a sign before %s", jv_kind_name(a));
    *out = jv_int(minus && number != INT64_MIN ? -number : number);
    return minus && number == INT64_MIN ? beyond(JO_SUB, err) : 0;
}

/* Takes items from an iterator until one equals 'item'; returns false if none does. */
static bool taken_up_to(struct jv_list *list, const struct jv *item)
{
    while (list->taken < list->count)
        if (jv_equal(&list->items[list->taken++], item))
            return true;
    return false;
}

int jinja_contains(struct jinja_arena *arena, const struct jv *all, const struct jv *item, bool *in,
                   struct err *err)
{
    *in = false;
    if (jinja_work(arena, 1 + jv_weight(all), err) < 0)
        return -1;
    switch (all->kind) {
    case JV_UNDEFINED:
        return 0;
    case JV_TEXT:
        if (item->kind != JV_TEXT)
            return err_set(err, ERR_INVALID, "%s in a string", jv_kind_name(item));
        *in = item->size == 0 || (all->size > 0 && memmem(all->text, all->size, item->text, item->size));
        return 0;
    case JV_LIST:
        if (all->list->form == JF_ITERATOR) {
            *in = taken_up_to(all->list, item);
            return 0;
        }
        if (all->list->form == JF_KEYS && !jv_hashable(item))
            return err_set(err, ERR_INVALID, "%s in keys", jv_kind_name(item));
        for (size_t i = 0; i < all->list->count && !*in; i++)
            *in = jv_equal(&all->list->items[i], item);
        return 0;
    case JV_MAP:
        if (!jv_hashable(item))
            return err_set(err, ERR_INVALID, "%s in a mapping", jv_kind_name(item));
        *in = jv_map_get(all->map, item) != NULL;
        return 0;
    default:
        return err_set(err, ERR_INVALID, "in: nothing can be in %s", jv_kind_name(all));
    }
}

int jinja_compared(struct jinja_arena *arena, enum jinja_op op, const struct jv *a, const struct jv *b,
                   bool *is, struct err *err)
{
    int order = 0;
    if (jinja_work(arena, 1 + jv_weight(a) + jv_weight(b), err) < 0)
        return -1;
    switch (op) {
    case JO_EQ:
    case JO_NE:
        *is = jv_equal(a, b) == (op == JO_EQ);
        return 0;
    case JO_IN:
    case JO_NOT_IN:
        if (jinja_contains(arena, b, a, is, err) < 0)
            return -1;
        *is = *is == (op == JO_IN);
        return 0;
    default:
        break;
    }
    if (!jv_order(a, b, &order)) {
        return err_set(err, a->kind == JV_LIST && a->list->form >= JF_KEYS ? ERR_UNSUPPORTED : ERR_INVALID,
                       "%s: %s and %s have no order", signs[op], jv_kind_name(a), jv_kind_name(b));
    }
    *is = order == 2    ? false
          : op == JO_LT ? order < 0
          : op == JO_LE ? order <= 0
          : op == JO_GT ? order > 0
                        : order >= 0;
    return 0;
}

int jinja_range_of(struct jinja_arena *arena, int64_t start, int64_t stop, int64_t step, struct jv *out,
                   struct err *err)
{
    size_t count = 0;
    for (int64_t i = start; (step > 0 ? i < stop : i > stop) && count <= RANGE_MAX;) {
        count++;
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    struct jv made = {0};
    if (count > RANGE_MAX || jv_list_new(arena, count, &made, err) < 0)
        return count > RANGE_MAX ? err_set(err, ERR_TOO_BIG, "range of more than %d numbers", RANGE_MAX) : -1;
    for (size_t i = 0; i < count; i++)
        made.list->items[made.list->count++] = jv_int((int64_t)((uint64_t)start + i * (uint64_t)step));
    made.list->form = JF_RANGE;
    made.list->range[0] = start;
    made.list->range[1] = stop;
    made.list->range[2] = step;
    *out = made;
    return 0;
}

/* Computes a slice's bound as Python does, within low..high. */
static int jinja_operator_bound(const struct jv *value, int64_t count, int64_t low, int64_t high,
                                int64_t *out, struct err *err)
{
    int64_t index;
    if (!value)
        return 0;
    if (!jv_number(value, &index))
        return err_set(err, ERR_INVALID, "a slice by %s", jv_kind_name(value));
    index = index < 0 ? (index < -count ? -1 - count : index) + count : index;
    *out = index < low ? low : index > high ? high : index;
    return 0;
}

/* Joins a list of characters into one text. */
static int text_again(struct jinja_arena *arena, const struct jv_list *list, struct jv *out, struct err *err)
{
    struct buf text = {.limit = JINJA_TEXT_MAX};
    int status = 0;
    for (size_t i = 0; i < list->count && status == 0; i++)
        status = buf_append(&text, list->items[i].text, list->items[i].size, err);
    return jv_take(arena, &text, status, out, err);
}

int jinja_sliced(struct jinja_arena *arena, const struct jv *of, const struct jv *const given[3],
                 struct jv *out, struct err *err)
{
    struct jv_list list;
    int64_t step = 1;
    if (of->kind != JV_TEXT && (of->kind != JV_LIST || of->list->form > JF_RANGE))
        return err_set(err, ERR_INVALID, "a slice of %s", jv_kind_name(of));
    if (given[2] && (!jv_number(given[2], &step) || step == 0))
        return err_set(err, ERR_INVALID, "a slice by a step that is no integer, or zero");
    const int64_t count = of->kind == JV_TEXT ? (int64_t)jv_characters(of) : (int64_t)of->list->count;
    if (jinja_work(arena, (uint64_t)count, err) < 0)
        return -1;
    step = step > count + 1 ? count + 1 : step < -count - 1 ? -count - 1 : step;
    const int64_t low = step > 0 ? 0 : -1;
    const int64_t high = step > 0 ? count : count - 1;
    int64_t from = step > 0 ? 0 : count - 1, to = step > 0 ? count : -1;
    if (jinja_operator_bound(given[0], count, low, high, &from, err) < 0 ||
        jinja_operator_bound(given[1], count, low, high, &to, err) < 0)
        return -1;
    if (jv_is_list(of, JF_RANGE)) {
        const int64_t *r = of->list->range;
        int64_t begin, end, by;
        if (__builtin_mul_overflow(from, r[2], &begin) || __builtin_add_overflow(begin, r[0], &begin) ||
            __builtin_mul_overflow(to, r[2], &end) || __builtin_add_overflow(end, r[0], &end) ||
            __builtin_mul_overflow(step, r[2], &by))
            return err_set(err, ERR_TOO_BIG, "a slice of a range: a number beyond 64 bits");
        return jinja_range_of(arena, begin, end, by, out, err);
    }
    if (of->kind == JV_TEXT && step == 1) {
        const size_t begin = jv_character_at(of, (size_t)from);
        *out = jv_borrow(of->text + begin, to > from ? jv_character_at(of, (size_t)to) - begin : 0);
        out->safe = of->safe;
        return 0;
    }
    struct jv made;
    if (jv_items(arena, of, &list, err) < 0 || jv_list_new(arena, list.count, &made, err) < 0)
        return -1;
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step)
        made.list->items[made.list->count++] = list.items[i];
    if (of->kind == JV_LIST) {
        made.list->form = of->list->form;
        *out = made;
        return 0;
    }
    const int status = text_again(arena, made.list, out, err);
    out->safe = status == 0 && of->safe;
    return status;
}
