/* Tests attention by matrix units in all layouts, with every access checked, and in launches of a row each.
 */
#define HARNESS_CANDIDATES                                                                                   \
    {.kind = "emulated", .group = 1, .isa = "warp32,checks"},                                                \
        {.kind = "emulated", .group = 2, .isa = "warp64,checks"},                                            \
        {.kind = "emulated", .group = 3, .isa = "rdna3,checks"},                                             \
        {.kind = "emulated", .group = 3, .isa = "rdna4,checks"},                                             \
        {.kind = "emulated", .group = 1, .isa = "warp32,watchdog"}
#include "engine/cases_units.h"
#include "engine/gpu/gpu.h"
#include "engine/stage/op_queue.h"

/* Returns the number of trials; `make emulated-check` runs more. */
static uint32_t trials(void)
{
    return !getenv("MOTLEY_EMULATED_CHECK") ? 6 : 60;
}

static void attention_by_matrix_units_is_its_definition(void **state)
{
    (void)state;
    cases_run(units_cases, sizeof(units_cases) / sizeof(*units_cases), trials());
}

/* A card that drives a display ends kernels that run for seconds: attention over several rows comes in
 * launches of some of them. The card is as slow as two launches, or one a row, need. */
static void attention_over_many_rows_comes_in_parts_where_a_watchdog_runs(void **state)
{
    enum { ROWS = 4, TOKENS = 160, HEADS = 2, DIM = 8, LD = (HEADS + 2) * DIM };
    static const uint32_t starts[ROWS + 1] = {0, 36, 80, 121, TOKENS};
    static const struct {
        uint32_t clock_khz, forward, backward; /* 0: there is no watchdog; launches of the two ops */
    } cards[] = {{0, 1, 1 + 2}, {12, 2, 1 + 2 * 2}, {1, ROWS, 1 + 2 * ROWS}};
    double qkv[TOKENS * LD], dout[TOKENS * HEADS * DIM];
    (void)state;
    for (size_t i = 0; i < sizeof(cards) / sizeof(*cards); i++) {
        struct bench b;
        struct pass_counts counts;
        bench_open(&b, "emulated");
        struct gpu *gpu = (struct gpu *)b.device;
        gpu->info.units = 1;
        gpu->info.watchdog = cards[i].clock_khz > 0;
        gpu->info.clock_khz = cards[i].clock_khz;
        struct operand x = normal(&b, TOKENS * LD, qkv);
        struct op op = {.kind = OP_ATTENTION,
                        .attention = {.rows = ROWS,
                                      .tokens = TOKENS,
                                      .heads = HEADS,
                                      .kv_heads = 1,
                                      .head_dim = DIM,
                                      .ld = LD,
                                      .scale = 0.3f,
                                      .q = x,
                                      .k = operand_skip(x, HEADS * DIM),
                                      .v = operand_skip(x, (HEADS + 1) * DIM),
                                      .row_start = bytes_in(&b, starts, sizeof(starts), DTYPE_U32),
                                      .out = empty(&b, TOKENS * HEADS * DIM),
                                      .lse = empty(&b, TOKENS * HEADS)}};
        submit(&b, op);
        device_pass_counts(b.device, &counts);
        assert_int_equal(counts.launches, cards[i].forward);
        struct operand d = empty(&b, TOKENS * LD);
        submit(&b, (struct op){.kind = OP_ATTENTION_BACKWARD,
                               .attention_backward = {.forward = op.attention,
                                                      .dout = normal(&b, TOKENS * HEADS * DIM, dout),
                                                      .delta = empty(&b, TOKENS * HEADS),
                                                      .dq = d,
                                                      .dk = operand_skip(d, HEADS * DIM),
                                                      .dv = operand_skip(d, (HEADS + 1) * DIM)}});
        device_pass_counts(b.device, &counts);
        assert_int_equal(counts.launches, cards[i].forward + cards[i].backward);
        bench_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_by_matrix_units_is_its_definition),
        cmocka_unit_test(attention_over_many_rows_comes_in_parts_where_a_watchdog_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
