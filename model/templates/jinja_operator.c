/* Operators, and the functions that make values. */
#include "model/templates/jinja_operator.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum { JOINED_BYTES_MAX = 16 << 20, RANGE_MAX = 100000, STEP_MAX = 100000, DAY_BYTES_MAX = 256 };

int jinja_joined(struct jinja_arena *arena, const struct jv *a, const struct jv *b, struct jv *out,
                 struct err *err)
{
    struct buf text = {.limit = JOINED_BYTES_MAX};
    int status = jv_print(a, &text, err) < 0 ? -1 : jv_print(b, &text, err);
    status = status < 0 ? -1 : jv_copy(arena, buf_str(&text), text.size, out, err);
    buf_fini(&text);
    return status < 0 ? -1 : 0;
}

static int lists_joined(struct jinja_arena *arena, const struct jv *a, const struct jv *b, struct jv *out,
                        struct err *err)
{
    struct jv made;
    if (jv_list_new(arena, a->list->count + b->list->count, &made, err) < 0) {
        return -1;
    }
    memcpy(made.list->items, a->list->items, a->list->count * sizeof(struct jv));
    memcpy(made.list->items + a->list->count, b->list->items, b->list->count * sizeof(struct jv));
    made.list->count = a->list->count + b->list->count;
    made.list->tuple = a->list->tuple;
    *out = made;
    return 0;
}

/* Whole numbers as Python counts: division and remainder are rounded down. */
static int whole(enum jinja_op op, int64_t a, int64_t b, struct jv *out, struct err *err)
{
    int64_t result = 0;
    bool over = false;
    if ((op == JO_FLOOR || op == JO_MOD || op == JO_DIV) && (b == 0 || b == -1)) {
        if (b == 0) {
            return err_set(err, ERR_INVALID, "division by zero");
        }
        over = a == INT64_MIN;
        result = over || op == JO_MOD ? 0 : -a;
        *out = op == JO_DIV ? (struct jv){.kind = JV_FLOAT, .real = (double)result} : jv_int(result);
        return over ? err_set(err, ERR_TOO_BIG, "a number beyond 64 bits") : 0;
    }
    if (op == JO_POWER && b < 0) {
        *out = (struct jv){.kind = JV_FLOAT, .real = pow((double)a, (double)b)};
        return a == 0 ? err_set(err, ERR_INVALID, "zero to a negative power") : 0;
    }
    switch (op) {
    case JO_POWER:
        result = b == 0 ? 1 : a == -1 && b % 2 == 0 ? 1 : a;
        for (; b > 1 && (a < -1 || a > 1) && !over; b--) { /* at most 63 times */
            over = __builtin_mul_overflow(result, a, &result);
        }
        break;
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
        result = a / b - (a % b != 0 && (a < 0) != (b < 0));
        break;
    case JO_MOD:
        result = a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
        break;
    default: /* JO_DIV */
        *out = (struct jv){.kind = JV_FLOAT, .real = (double)a / (double)b};
        return 0;
    }
    *out = jv_int(result);
    return over ? err_set(err, ERR_TOO_BIG, "a number beyond 64 bits") : 0;
}

/* A text or a list so many times. */
static int repeated(struct jinja_arena *arena, const struct jv *a, int64_t times, struct jv *out,
                    struct err *err)
{
    const size_t size = a->kind == JV_TEXT ? a->size : a->list->count;
    const size_t most = a->kind == JV_TEXT ? JOINED_BYTES_MAX : RANGE_MAX;
    const size_t count = times > 0 ? (size_t)times : 0;
    if (size > 0 && count > most / size) {
        return err_set(err, ERR_TOO_BIG, "%s repeated %zu times", jv_kind_name(a), count);
    }
    if (a->kind == JV_TEXT) {
        char *text = jinja_alloc(arena, size * count + 1, err);
        for (size_t i = 0; i < count && text != NULL && size > 0; i++) {
            memcpy(text + i * size, a->text, size);
        }
        *out = jv_borrow(text, size * count);
        return text != NULL ? 0 : -1;
    }
    struct jv made;
    if (jv_list_new(arena, size * count, &made, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < count && size > 0; i++) {
        memcpy(made.list->items + i * size, a->list->items, size * sizeof(struct jv));
    }
    made.list->count = size * count;
    made.list->tuple = a->list->tuple;
    *out = made;
    return 0;
}

int jinja_arithmetic(struct jinja_arena *arena, enum jinja_op op, const struct jv *a, const struct jv *b,
                     struct jv *out, struct err *err)
{
    int64_t x, y;
    if (op == JO_ADD && a->kind == JV_TEXT && b->kind == JV_TEXT) {
        return jinja_joined(arena, a, b, out, err);
    }
    if (op == JO_ADD && a->kind == JV_LIST && b->kind == JV_LIST && a->list->tuple == b->list->tuple) {
        return lists_joined(arena, a, b, out, err);
    }
    if (op == JO_MUL && (a->kind == JV_TEXT || a->kind == JV_LIST) && jv_number(b, &y)) {
        return repeated(arena, a, y, out, err);
    }
    if (op == JO_MUL && (b->kind == JV_TEXT || b->kind == JV_LIST) && jv_number(a, &x)) {
        return repeated(arena, b, x, out, err);
    }
    if (op == JO_MOD && a->kind == JV_TEXT) {
        return err_set(err, ERR_UNSUPPORTED, "formatting a text by %% is not done here");
    }
    if (jv_number(a, &x) && jv_number(b, &y)) {
        return whole(op, x, y, out, err);
    }
    const struct jv *wrong = a->kind == JV_UNDEFINED ? a : b;
    if (wrong->kind == JV_UNDEFINED) {
        return err_set(err, ERR_INVALID, "undefined: \"%.*s\"", (int)(wrong->size < 60 ? wrong->size : 60),
                       wrong->text);
    }
    if ((a->kind != JV_FLOAT && !jv_number(a, &x)) || (b->kind != JV_FLOAT && !jv_number(b, &y))) {
        err_set(err, ERR_INVALID, "%s and %s do not go together", jv_kind_name(a), jv_kind_name(b));
        return -1;
    }
    if (op != JO_ADD && op != JO_SUB && op != JO_MUL && op != JO_POWER &&
        (b->kind == JV_FLOAT ? b->real == 0 : y == 0)) {
        return err_set(err, ERR_INVALID, "division by zero");
    }
    const double u = a->kind == JV_FLOAT ? a->real : (double)x;
    const double v = b->kind == JV_FLOAT ? b->real : (double)y;
    double rest = v != 0 ? fmod(u, v) : 0; /* of v's sign, as Python's */
    rest += rest != 0 && (v < 0) != (rest < 0) ? v : 0;
    *out = (struct jv){.kind = JV_FLOAT,
                       .real = op == JO_ADD     ? u + v
                               : op == JO_SUB   ? u - v
                               : op == JO_MUL   ? u * v
                               : op == JO_DIV   ? u / v
                               : op == JO_FLOOR ? floor((u - rest) / v + 0.5)
                               : op == JO_POWER ? pow(u, v)
                                                : rest};
    return 0;
}

int jinja_compared(struct jinja_arena *arena, enum jinja_op op, const struct jv *a, const struct jv *b,
                   bool *is, struct err *err)
{
    int order = 0;
    if (jinja_work(arena, 1 + jv_weight(a) + jv_weight(b), err) < 0) {
        return -1;
    }
    switch (op) {
    case JO_EQ:
    case JO_NE:
        *is = jv_equal(a, b) == (op == JO_EQ);
        return 0;
    case JO_IN:
    case JO_NOT_IN:
        if (jinja_contains(b, a, is, err) < 0) {
            return -1;
        }
        *is = *is == (op == JO_IN);
        return 0;
    default:
        break;
    }
    if (!jv_order(a, b, &order)) {
        err_set(err, ERR_INVALID, "%s and %s have no order", jv_kind_name(a), jv_kind_name(b));
        return -1;
    }
    *is = op == JO_LT ? order < 0 : op == JO_LE ? order <= 0 : op == JO_GT ? order > 0 : order >= 0;
    return 0;
}

int jinja_range(struct jinja_arena *arena, const struct jinja_args *args, struct jv *out, struct err *err)
{
    int64_t bounds[3] = {0, 0, 1};
    for (size_t i = 0; i < args->count && i < 3; i++) {
        if (!jv_number(&args->items[i], &bounds[args->count == 1 ? 1 : i])) {
            return err_set(err, ERR_INVALID, "range of what is no number");
        }
    }
    const int64_t step = bounds[2];
    if (args->count == 0 || args->count > 3 || step == 0) {
        return err_set(err, ERR_INVALID, "range takes one to three numbers, and no step of 0");
    }
    struct jv made = {0};
    size_t count = 0;
    for (int64_t i = bounds[0]; (step > 0 ? i < bounds[1] : i > bounds[1]) && count <= RANGE_MAX;) {
        count++;
        if (__builtin_add_overflow(i, step, &i)) {
            break;
        }
    }
    if (count > RANGE_MAX || jv_list_new(arena, count, &made, err) < 0) {
        return count > RANGE_MAX ? err_set(err, ERR_TOO_BIG, "a range of too many numbers") : -1;
    }
    for (size_t i = 0; i < count; i++) {
        made.list->items[made.list->count++] = jv_int(bounds[0] + (int64_t)i * step);
    }
    *out = made;
    return 0;
}

/* namespace(a=1), dict(a=1): of names, or of a mapping. */
int jinja_map(struct jinja_arena *arena, const struct jinja_args *args, bool changes, struct jv *out,
              struct err *err)
{
    if (args->count > 1 || (args->count == 1 && args->items[0].kind != JV_MAP)) {
        return err_set(err, ERR_INVALID, "namespace or dict of what is no mapping");
    }
    if (jv_map_new(arena, out, err) < 0) {
        return -1;
    }
    for (size_t i = 0; args->count == 1 && i < args->items[0].map->count; i++) {
        if (jv_map_put(arena, out->map, args->items[0].map->keys[i], args->items[0].map->values[i], err) <
            0) {
            return -1;
        }
    }
    for (size_t i = 0; i < args->named_count; i++) {
        if (jv_map_put(arena, out->map, args->names[i], args->named[i], err) < 0) {
            return -1;
        }
    }
    out->kind = changes ? JV_NAMESPACE : JV_MAP;
    return 0;
}

int jinja_day(struct jinja_arena *arena, int64_t now_s, const struct jv *format, struct jv *out,
              struct err *err)
{
    char pattern[DAY_BYTES_MAX];
    char text[DAY_BYTES_MAX];
    struct tm broken;
    const time_t now = (time_t)now_s;
    if (format == NULL || format->kind != JV_TEXT || format->size >= sizeof(pattern) ||
        gmtime_r(&now, &broken) == NULL) {
        return err_set(err, ERR_INVALID, "strftime_now needs a format");
    }
    memcpy(pattern, format->text, format->size);
    pattern[format->size] = '\0';
    return jv_copy(arena, text, strftime(text, sizeof(text), pattern, &broken), out, err);
}

/* A slice's bound as Python settles it, within low..high. */
static int64_t bound(const struct jv *value, int64_t count, int64_t otherwise, int64_t low, int64_t high)
{
    int64_t index;
    if (value == NULL || !jv_number(value, &index)) {
        return otherwise;
    }
    index = index < 0 ? (index < -count ? -1 - count : index) + count : index;
    return index < low ? low : index > high ? high : index;
}

int jinja_sliced(struct jinja_arena *arena, const struct jv *of, const struct jv *const given[3],
                 struct jv *out, struct err *err)
{
    struct jv_list list;
    int64_t step = 1;
    if ((of->kind != JV_LIST && of->kind != JV_TEXT) ||
        (given[2] != NULL &&
         (!jv_number(given[2], &step) || step == 0 || step < -STEP_MAX || step > STEP_MAX))) {
        return err_set(err, ERR_INVALID,
                       "a slice of what is neither a list nor a text, or with a wrong step");
    }
    if (jv_items(arena, of, &list, err) < 0 || jinja_work(arena, list.count, err) < 0) {
        return -1;
    }
    const int64_t count = (int64_t)list.count;
    const int64_t low = step > 0 ? 0 : -1;
    const int64_t high = step > 0 ? count : count - 1;
    const int64_t from = bound(given[0], count, step > 0 ? 0 : count - 1, low, high);
    const int64_t to = bound(given[1], count, step > 0 ? count : -1, low, high);
    if (of->kind == JV_TEXT && step == 1) {
        const size_t begin = jv_character_at(of, (size_t)from);
        *out = jv_borrow(of->text + begin, to > from ? jv_character_at(of, (size_t)to) - begin : 0);
        return 0;
    }
    struct jv made;
    if (jv_list_new(arena, list.count, &made, err) < 0) {
        return -1;
    }
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step) {
        made.list->items[made.list->count++] = list.items[i];
    }
    made.list->tuple = of->kind == JV_LIST && of->list->tuple;
    *out = made;
    if (of->kind == JV_TEXT) {
        const struct jv nothing = jv_borrow("", 0);
        struct jinja_args args = {.count = 1};
        args.items[0] = made;
        const struct jv join = jv_borrow("join", 4);
        return jinja_builtin_call(jinja_method_find(&join, JV_TEXT), arena, &nothing, &args, out, err);
    }
    return 0;
}

int jinja_loop(struct jinja_arena *arena, const struct jv_list *list, size_t i, struct jv *out,
               struct err *err)
{
    const int64_t index = (int64_t)i;
    const int64_t count = (int64_t)list->count;
    const struct {
        const char *name;
        struct jv value;
        bool there;
    } members[] = {{"index", jv_int(index + 1), true},
                   {"index0", jv_int(index), true},
                   {"revindex", jv_int(count - index), true},
                   {"revindex0", jv_int(count - index - 1), true},
                   {"first", jv_bool(i == 0), true},
                   {"last", jv_bool(index + 1 == count), true},
                   {"length", jv_int(count), true},
                   {"previtem", list->items[i > 0 ? i - 1 : 0], i > 0},
                   {"nextitem", list->items[index + 1 < count ? i + 1 : i], index + 1 < count}};
    if (jv_map_new(arena, out, err) < 0) {
        return -1;
    }
    for (size_t m = 0; m < sizeof(members) / sizeof(members[0]); m++) {
        if (members[m].there &&
            jv_map_put(arena, out->map, jv_borrow(members[m].name, strlen(members[m].name)), members[m].value,
                       err) < 0) {
            return -1;
        }
    }
    return 0;
}
