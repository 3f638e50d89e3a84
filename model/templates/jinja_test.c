#include "model/templates/jinja_test.h"

#include "model/templates/jinja_case.h"
#include "model/templates/jinja_operator.h"

#define TEST(name, expression)                                                                               \
    static int name(const struct jinja_call *c)                                                              \
    {                                                                                                        \
        *c->out = jv_bool(expression);                                                                       \
        return 0;                                                                                            \
    }

static bool jinja_test_is_one_of(const struct jv *value, bool iterators)
{
    const bool list = value->kind == JV_LIST && (iterators || value->list->form <= JF_RANGE);
    return list || value->kind == JV_TEXT || value->kind == JV_MAP || value->kind == JV_UNDEFINED;
}

TEST(is_defined, c->self->kind != JV_UNDEFINED)
TEST(is_undefined, c->self->kind == JV_UNDEFINED)
TEST(is_none, c->self->kind == JV_NONE)
TEST(is_string, c->self->kind == JV_TEXT)
TEST(is_mapping, c->self->kind == JV_MAP)
TEST(is_iterable, jinja_test_is_one_of(c->self, true) || c->self->kind == JV_LOOP)
TEST(is_sequence, jinja_test_is_one_of(c->self, false))
TEST(is_true, c->self->kind == JV_BOOL && c->self->truth)
TEST(is_false, c->self->kind == JV_BOOL && !c->self->truth)
TEST(is_boolean, c->self->kind == JV_BOOL)
TEST(is_number, c->self->kind == JV_INT || c->self->kind == JV_FLOAT || c->self->kind == JV_BOOL)
TEST(is_integer, c->self->kind == JV_INT)
TEST(is_float, c->self->kind == JV_FLOAT)
TEST(is_callable, c->self->kind == JV_MACRO || c->self->kind == JV_FUNCTION || c->self->kind == JV_METHOD ||
                      c->self->kind == JV_LOOP || c->self->kind == JV_JOINER || c->self->kind == JV_UNDEFINED)
TEST(is_escaped, c->self->kind == JV_TEXT && c->self->safe)

/* Tests value % divisor == remainder. */
static int remains(const struct jinja_call *c, const struct jv *divisor, int64_t remainder)
{
    struct jv rest;
    const struct jv wanted = jv_int(remainder);
    if (jinja_arithmetic(c->arena, JO_MOD, c->self, divisor, &rest, c->err) < 0) {
        err_wrap(c->err, "%s", c->name);
        return -1;
    }
    *c->out = jv_bool(jv_equal(&rest, &wanted));
    return 0;
}

static int is_odd(const struct jinja_call *c)
{
    const struct jv two = jv_int(2);
    return remains(c, &two, 1);
}

static int is_even(const struct jinja_call *c)
{
    const struct jv two = jv_int(2);
    return remains(c, &two, 0);
}

static int is_divisible(const struct jinja_call *c)
{
    return remains(c, &c->args[0], 0);
}

static int jinja_test_compared(const struct jinja_call *c, enum jinja_op op)
{
    bool is = false;
    if (jinja_compared(c->arena, op, c->self, &c->args[0], &is, c->err) < 0) {
        err_wrap(c->err, "%s", c->name);
        return -1;
    }
    *c->out = jv_bool(is);
    return 0;
}

#define COMPARED(name, op)                                                                                   \
    static int name(const struct jinja_call *c)                                                              \
    {                                                                                                        \
        return jinja_test_compared(c, op);                                                                   \
    }

COMPARED(is_equal, JO_EQ)
COMPARED(is_unequal, JO_NE)
COMPARED(is_less, JO_LT)
COMPARED(is_less_equal, JO_LE)
COMPARED(is_greater, JO_GT)
COMPARED(is_greater_equal, JO_GE)
COMPARED(is_in, JO_IN)

/* Implements the test sameas. Python's identity is known for None, booleans, and lists and maps that are
 * shared; other equal values are refused. */
static int jinja_test_is_same(const struct jinja_call *c)
{
    const struct jv *a = c->self, *b = &c->args[0];
    const bool single = a->kind == JV_NONE || a->kind == JV_BOOL || b->kind == JV_NONE || b->kind == JV_BOOL;
    const bool shared = (a->kind == JV_LIST && b->kind == JV_LIST && a->list == b->list) ||
                        (a->kind == JV_MAP && b->kind == JV_MAP && a->map == b->map);
    if (a->kind == b->kind && !single && !shared && jv_equal(a, b))
        return err_set(c->err, ERR_UNSUPPORTED, "sameas of two equal values");
    *c->out = jv_bool(shared || (single && a->kind == b->kind && jv_equal(a, b)));
    return 0;
}

static const struct jinja_builtin tests[] = {
    {.name = "defined", .call = is_defined},
    {.name = "undefined", .call = is_undefined},
    {.name = "none", .call = is_none},
    {.name = "string", .call = is_string},
    {.name = "mapping", .call = is_mapping},
    {.name = "iterable", .call = is_iterable},
    {.name = "sequence", .call = is_sequence},
    {.name = "true", .call = is_true},
    {.name = "false", .call = is_false},
    {.name = "boolean", .call = is_boolean},
    {.name = "number", .call = is_number},
    {.name = "integer", .call = is_integer},
    {.name = "float", .call = is_float},
    {.name = "callable", .call = is_callable},
    {.name = "escaped", .call = is_escaped},
    {.name = "odd", .call = is_odd},
    {.name = "even", .call = is_even},
    {.name = "divisibleby", .call = is_divisible, .params = {"num"}, .required = 1},
    {.name = "sameas", .call = jinja_test_is_same, .params = {"other"}, .required = 1},
    {.name = "in", .call = is_in, .params = {"seq"}, .required = 1},
    {.name = "eq", .call = is_equal, .params = {""}, .required = 1},
    {.name = "equalto", .call = is_equal, .params = {""}, .required = 1},
    {.name = "==", .call = is_equal, .params = {""}, .required = 1},
    {.name = "ne", .call = is_unequal, .params = {""}, .required = 1},
    {.name = "!=", .call = is_unequal, .params = {""}, .required = 1},
    {.name = "lt", .call = is_less, .params = {""}, .required = 1},
    {.name = "lessthan", .call = is_less, .params = {""}, .required = 1},
    {.name = "<", .call = is_less, .params = {""}, .required = 1},
    {.name = "le", .call = is_less_equal, .params = {""}, .required = 1},
    {.name = "<=", .call = is_less_equal, .params = {""}, .required = 1},
    {.name = "gt", .call = is_greater, .params = {""}, .required = 1},
    {.name = "greaterthan", .call = is_greater, .params = {""}, .required = 1},
    {.name = ">", .call = is_greater, .params = {""}, .required = 1},
    {.name = "ge", .call = is_greater_equal, .params = {""}, .required = 1},
    {.name = ">=", .call = is_greater_equal, .params = {""}, .required = 1},
    {.name = "lower", .call = jinja_is_lower},
    {.name = "upper", .call = jinja_is_upper},
    {.name = "filter",
     .call = jinja_not_done}, /* jinja_builtin.c, which has the tables, implements these two tests */
    {.name = "test", .call = jinja_not_done},
};

const struct jinja_builtin *jinja_test_find(const struct jv *name)
{
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
        if (jv_is_text(name, tests[i].name))
            return &tests[i];
    return NULL;
}
