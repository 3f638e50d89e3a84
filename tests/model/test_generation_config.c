/* A generation_config.json beside config.json replaces its end tokens, and values that transformers refuses
 * are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/file.h"
#include "model/shape/tensors.h"
#include "support/must.h"
#include "support/scratch.h"

static const char llama[] = MOTLEY_TEST_DATA "/golden/llama";

/* Opens the golden Llama with another generation_config.json. Returns model_open_path()'s status. */
static int open_with(const struct scratch *scratch, const char *text, struct model **model, struct err *out)
{
    struct err err;
    static const char *const files[] = {"config.json", "model.safetensors"};
    for (size_t i = 0; i < 2; i++) {
        struct buf data = {.limit = 1 << 22};
        char path[600];
        snprintf(path, sizeof(path), "%s/%s", llama, files[i]);
        check(file_read_all(path, data.limit, &data, &err));
        check(file_write_atomic(scratch_path(scratch, files[i]), data.data, data.size, 0600, &err));
        buf_fini(&data);
    }
    check(file_write_atomic(scratch_path(scratch, "generation_config.json"), text, strlen(text), 0600, &err));
    return model_open_path(scratch->dir, model, out);
}

static void its_end_tokens_replace_those_of_config_json(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t count;
        int32_t ends[2];
        const char *note;
    } cases[] = {
        {"{\"eos_token_id\": 2}", 1, {2}, NULL},
        {"{\"eos_token_id\": [5, 6]}", 2, {5, 6}, "other eos_token_id"},
        {"{\"eos_token_id\": []}", 0, {0}, "other eos_token_id"},
        {"{}", 0, {0}, "other eos_token_id"},
        {"{\"eos_token_id\": null}", 0, {0}, "other eos_token_id"},
        {"{", 1, {2}, "is no JSON"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct scratch scratch;
        struct model *model;
        struct err err;
        assert_int_equal(scratch_make(&scratch), 0);
        check(open_with(&scratch, cases[i].text, &model, &err));
        const struct model_config *config = model_get_config(model);
        assert_int_equal(config->eos_count, cases[i].count);
        assert_memory_equal(config->eos, cases[i].ends, cases[i].count * sizeof(int32_t));
        if (!cases[i].note)
            assert_string_equal(model_get_note(model), "");
        else if (!strstr(model_get_note(model), cases[i].note))
            fail_msg("%s: the note is \"%s\"", cases[i].text, model_get_note(model));
        model_close(model);
        scratch_remove(&scratch);
    }
}

/* Each of these values keeps transformers 5.24 from loading the folder. */
static void values_that_transformers_refuses_are_refused_by_key(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"{\"assistant_ensemble_weight\": 1.0}", "assistant_ensemble_weight"},
        {"{\"cache_implementation\": \"x\"}", "cache_implementation"},
        {"{\"compile_config\": {}}", "compile_config"},
        {"{\"early_stopping\": \"always\"}", "early_stopping"},
        {"{\"max_new_tokens\": 0}", "max_new_tokens"},
        {"{\"num_return_sequences\": 2}", "num_return_sequences"},
        {"{\"pad_token_id\": \"x\"}", "pad_token_id"},
        {"{\"suppress_tokens\": 3}", "suppress_tokens"},
        {"{\"watermarking_config\": 3}", "watermarking_config"},
        {"[]", "must be an object"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct scratch scratch;
        struct model *model;
        struct err err;
        assert_int_equal(scratch_make(&scratch), 0);
        assert_int_equal(open_with(&scratch, cases[i][0], &model, &err), -1);
        if (!strstr(err.text, cases[i][1]) || !strstr(err.text, "generation_config.json"))
            fail_msg("%s: %s", cases[i][0], err.text);
        scratch_remove(&scratch);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_end_tokens_replace_those_of_config_json),
        cmocka_unit_test(values_that_transformers_refuses_are_refused_by_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
