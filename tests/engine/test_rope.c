/* Rotary frequencies are transformers', in double and in single precision, from both spellings of a config.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/file.h"
#include "common/json.h"
#include "engine/stage/rope.h"
#include "model/shape/config.h"
#include "support/must.h"

/* tools/golden_rope.py recorded the frequencies, those in single precision with nine digits. */
static void every_setting_gives_the_frequencies_of_transformers(void **state)
{
    (void)state;
    struct err err = {0};
    struct buf text = {.limit = 1 << 20};
    must(file_read_all(MOTLEY_TEST_DATA "/golden/rope.json", 1 << 20, &text, &err), &err);
    json_t *cases = json_parse_limited(buf_str(&text), text.size, 8, &err), *one;
    double worst = 0;
    size_t c;
    assert_true(json_array_size(cases) > 50);
    json_array_foreach (cases, c, one) {
        static struct model_config config, again;
        const json_t *want = json_object_get(one, "inv_freq");
        uint32_t count = (uint32_t)json_array_size(want),
                 positions = (uint32_t)json_integer_value(json_object_get(one, "positions"));
        double exact[256], scale = json_number_value(json_object_get(one, "attention_scaling"));
        float single[256];
        must(model_config_parse(json_object_get(one, "config"), &config, &err), &err);
        must(model_config_runnable(&config, &err), &err);
        assert_int_equal(count, (config.rotary_dim ? config.rotary_dim : config.head_dim) / 2);
        must(model_rope_frequencies(&config, positions, exact, &err), &err);
        must(rope_frequencies(&config.rope, 2 * count, positions, single, &err), &err);
        assert_true(fabs((double)rope_scale(&config.rope) / scale - 1) < 1e-6);
        for (uint32_t i = 0; i < count; i++) {
            double theirs = json_number_value(json_array_get(want, i));
            worst = fmax(worst, fmax(fabs(exact[i] / theirs - 1), fabs((double)single[i] / theirs - 1)));
        }
        if (!(worst < 1e-6)) {
            char *config_text = json_dumps(json_object_get(one, "config"), 0);
            fail_msg("%s: %g apart", config_text, worst);
        }
        json_t *written = model_config_to_json(&config, &err);
        must(model_config_parse(written, &again, &err), &err);
        assert_memory_equal(&config, &again, sizeof(config));
        json_decref(written);
    }
    print_message("    frequencies %.1e apart at most\n", worst);
    json_decref(cases);
    buf_fini(&text);
}

static void a_row_is_multiplied_by_the_attention_factor(void **state)
{
    (void)state;
    const float inverse[] = {1.0f, 0.25f};
    float row[4];
    rope_row(inverse, 4, 3, 1.5f, row);
    for (int i = 0; i < 2; i++) {
        assert_true(fabs(row[i] - 1.5 * cos(3.0 * (double)inverse[i])) < 1e-6);
        assert_true(fabs(row[2 + i] - 1.5 * sin(3.0 * (double)inverse[i])) < 1e-6);
    }
}

static void what_is_wrong_or_not_computed_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *scaling, *says;
    } cases[] = {
        {"{'rope_type':'longrope','short_factor':[1,2],'long_factor':[1,2,3]}", "long_factor"},
        {"{'rope_type':'longrope','short_factor':[1,2],'long_factor':[1,2]}", "2 factors for the 8"},
        {"{'rope_type':'longrope','short_factor':[1,0],'long_factor':[1,2]}", "short_factor"},
        {"{'rope_type':'longrope'}", "short_factor"},
        {"{'rope_type':'yarn','factor':-1}", "factor"},
        {"{'rope_type':'yarn','factor':2,'beta_fast':'x'}", "beta_fast"},
        {"{'rope_type':'dynamic'}", "factor"},
        {"{'rope_type':'spiral','factor':2}", "\"spiral\" is not known"},
    };
    struct model_config config;
    double inverse[8];
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char text[512];
        struct err err = {0};
        snprintf(text, sizeof(text),
                 "{'model_type':'llama','hidden_size':64,'intermediate_size':176,'num_attention_heads':4,"
                 "'num_hidden_layers':4,'vocab_size':259,'rope_scaling':%s}",
                 cases[i].scaling);
        for (char *c = text; *c != '\0'; c++)
            *c = *c == '\'' ? '"' : *c;
        assert_int_equal(-1, model_config_parse_text(text, strlen(text), &config, &err));
        if (!strstr(err.text, cases[i].says))
            fail_msg("%s: %s", cases[i].scaling, err.text);
    }
    struct rope_config dynamic = {.theta = 1e4,
                                  .kind = ROPE_DYNAMIC,
                                  .kind_name = "dynamic",
                                  .factor = 2,
                                  .original_max_positions = 64};
    struct err err = {0};
    must(model_rope_frequencies_of(&dynamic, 16, 64, inverse, &err), &err);
    assert_int_equal(-1, model_rope_frequencies_of(&dynamic, 16, 65, inverse, &err));
    assert_int_equal(ERR_UNSUPPORTED, err.code);
    assert_non_null(strstr(err.text, "max_position_embeddings, 64"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_setting_gives_the_frequencies_of_transformers),
        cmocka_unit_test(a_row_is_multiplied_by_the_attention_factor),
        cmocka_unit_test(what_is_wrong_or_not_computed_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
