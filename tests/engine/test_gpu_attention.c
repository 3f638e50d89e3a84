/* Attention by matrix units, of both layouts, every access checked: heads that are whole pieces of 16 bytes,
 * which those kernels want, of every number of panels that they have. */
#define HARNESS_CANDIDATES                                                                                   \
    {.kind = "emulated", .group = 1, .isa = "warp32,checks"},                                                \
    {                                                                                                        \
        .kind = "emulated", .group = 2, .isa = "warp64,checks"                                               \
    }
#include "engine/cases_rounded.h"

/* `make emulated-check` draws more. */
static uint32_t trials(void)
{
    return getenv("MOTLEY_EMULATED_CHECK") == NULL ? 6 : 60;
}

static uint32_t head_dim_draw(struct trial *t)
{
    static const uint32_t dims[] = {8, 40, 64, 72, 128, 136, 200, 256};
    return dims[draw_below(t, sizeof dims / sizeof *dims)];
}

/* Up to three tiles of keys and queries, grouped heads. */
static void forward_draw(struct trial *t)
{
    struct op_attention *o = &t->op.attention;
    attention_rounded_draw(t);
    o->head_dim = head_dim_draw(t);
    o->kv_heads = 1;
    o->heads = 1 + draw_below(t, 2);
    o->ld = o->heads * o->head_dim + 8 * draw_below(t, 2);
    o->scale = 1 / sqrtf((float)o->head_dim);
}

static void backward_draw(struct trial *t)
{
    struct op_attention *o = &t->op.attention_backward.forward;
    attention_rounded_backward_draw(t);
    o->head_dim = head_dim_draw(t);
    o->kv_heads = 1;
    o->heads = 1 + draw_below(t, 2);
    o->ld = o->heads * o->head_dim + 8 * draw_below(t, 2);
    o->scale = 1 / sqrtf((float)o->head_dim);
}

static void cached_draw(struct trial *t)
{
    struct op_attention_cached *o = &t->op.attention_cached;
    attention_cached_rounded_draw(t);
    o->head_dim = head_dim_draw(t);
    o->kv_heads = 1;
    o->heads = 1 + draw_below(t, 2);
    o->ldq = o->heads * o->head_dim + 8 * draw_below(t, 2);
    o->scale = 1 / sqrtf((float)o->head_dim);
}

/* Tolerances as those of the cases they are made of. */
static const struct op_case cases[] = {
    {.name = "attention by units",
     .draw = forward_draw,
     .want = attention_want,
     .aligned = true,
     .tolerance = 4e-6,
     .flip = 0x1p-7},
    {.name = "attention_backward by units",
     .draw = backward_draw,
     .prepare = attention_rounded_prepare,
     .want = attention_rounded_backward_want,
     .aligned = true,
     .tolerance = 4e-6,
     .flip = 0x1p-7},
    {.name = "attention_cached by units",
     .draw = cached_draw,
     .want = attention_cached_want,
     .aligned = true,
     .tolerance = 4e-6,
     .flip = 0x1p-7},
};

static void attention_by_matrix_units_is_its_definition(void **state)
{
    (void)state;
    cases_run(cases, sizeof cases / sizeof *cases, trials());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_by_matrix_units_is_its_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
