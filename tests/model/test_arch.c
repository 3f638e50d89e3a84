/* The name that an architecture gives a tensor is recognised again, and as that tensor alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/file.h"
#include "model/shape/arch.h"

static void every_name_is_recognised_as_itself(void **state)
{
    (void)state;
    for (int a = 0; a < MODEL_ARCH_COUNT; a++) {
        const struct arch *arch = arch_of((enum model_arch)a);
        for (int t = 0; t < (arch->sparse ? ARCH_EXPERTS_GATE_UP : ARCH_ROUTER); t++) {
            char name[ARCH_NAME_MAX], again[ARCH_NAME_MAX];
            struct arch_match match;
            if (!arch->sparse && t >= ARCH_SHARED_GATE && t <= ARCH_SHARED_DOWN)
                continue;
            arch_tensor_name((enum model_arch)a, (enum arch_tensor)t, 1023, 77, ".weight", name);
            if (strcmp(name, ".weight") == 0) /* the family lacks this norm */
                continue;
            if (!arch_match_hf((enum model_arch)a, name, &match))
                fail_msg("%s: %s is not recognised", arch->model_type, name);
            arch_tensor_name((enum model_arch)a, match.parts[0], match.layer, match.expert, match.suffix,
                             again);
            assert_string_equal(name, again);
            assert_false(match.stacked);
        }
    }
}

static void families_are_found_by_each_of_their_names(void **state)
{
    (void)state;
    for (int a = 0; a < MODEL_ARCH_COUNT; a++) {
        const struct arch *arch = arch_of((enum model_arch)a);
        assert_int_equal(arch_find(arch->model_type), a);
        int gguf = arch->gguf ? arch_find_gguf(arch->gguf, strlen(arch->gguf), arch->sparse) : -1;
        /* in GGUF Llama shares its name with Mistral, Ministral and InternLM 3, and OLMo 2 with OLMo 3 */
        bool llama = arch->gguf && !arch->sparse && strcmp(arch->gguf, "llama") == 0;
        assert_int_equal(gguf, !arch->gguf ? -1 : llama ? MODEL_LLAMA : arch->gguf_key ? MODEL_OLMO2 : a);
    }
    assert_int_equal(arch_outer_find("gemma3", NULL)->inner, MODEL_GEMMA3);
    assert_int_equal(arch_outer_find("mistral3", NULL)->inner, MODEL_MISTRAL);
    assert_int_equal(arch_outer_find("mistral3", "ministral3")->inner, MODEL_MINISTRAL3);
    assert_null(arch_outer_find("mistral3", "llama"));
    assert_null(arch_outer_find("llama", NULL));
    assert_int_equal(arch_find("gemma3"), -1);
    assert_int_equal(arch_find_gguf("llama", 5, true), MODEL_MIXTRAL);
}

/* Checks the column of GGUF, the fourth of a row that begins at `row`: whether a file is read as the family,
 * and whether an adapter is written for llama.cpp. */
static void check_gguf_column(const char *row, enum model_arch family)
{
    const struct arch *a = arch_of(family);
    bool first = a->gguf && arch_find_gguf(a->gguf, strlen(a->gguf), a->sparse) == (int)family;
    bool read = (first || a->gguf_key) && !a->query_beta, adapter = a->gguf && a->fused != ARCH_FUSED_TURNED;
    char want[40];
    for (int column = 1; column < 4; column++)
        row = strchr(row + 1, '|');
    int length = snprintf(want, sizeof(want), "| %s%s%s |", read ? "read" : "", read && adapter ? ", " : "",
                          adapter ? "adapter" : "");
    if (!read && !adapter)
        length = snprintf(want, sizeof(want), "| no |");
    if (strncmp(row, want, (size_t)length) != 0)
        fail_msg("docs/FAMILIES.md: %s: %.20s, not %s", a->model_type, row, want);
}

/* docs/FAMILIES.md has a row for each family. */
static void every_family_is_in_the_table_for_users(void **state)
{
    struct err err;
    struct buf page = {.limit = 1 << 20};
    (void)state;
    assert_int_equal(file_read_all(MOTLEY_TEST_DATA "/../../docs/FAMILIES.md", page.limit, &page, &err), 0);
    for (int a = 0; a < MODEL_ARCH_COUNT; a++) {
        char row[80];
        snprintf(row, sizeof(row), "\n| `%s` |", arch_of((enum model_arch)a)->model_type);
        const char *found = strstr(buf_str(&page), row);
        if (!found)
            fail_msg("docs/FAMILIES.md has no row of %s", arch_of((enum model_arch)a)->model_type);
        check_gguf_column(found + 1, (enum model_arch)a);
    }
    buf_fini(&page);
}

static const struct {
    enum model_arch arch;
    bool gguf;
    const char *name;
    enum arch_tensor what;
    uint32_t layer, expert;
    bool stacked;
} other_names[] = {
    {MODEL_GEMMA3, false, "language_model.model.layers.3.mlp.up_proj.weight", ARCH_UP, 3, 0, false},
    {MODEL_GEMMA3, false, "model.language_model.norm.weight", ARCH_NORM_FINAL, 0, 0, false},
    {MODEL_GEMMA3, false, "model.language_model.layers.3.pre_feedforward_layernorm.weight", ARCH_NORM_FFN, 3,
     0, false},
    {MODEL_MIXTRAL, false, "model.layers.2.mlp.gate.weight", ARCH_ROUTER, 2, 0, false},
    {MODEL_MIXTRAL, false, "model.layers.2.mlp.experts.gate_up_proj", ARCH_EXPERT_GATE, 2, 0, true},
    {MODEL_OLMOE, false, "model.layers.2.mlp.experts.down_proj", ARCH_EXPERT_DOWN, 2, 0, true},
    {MODEL_GRANITE_MOE, false, "model.layers.2.block_sparse_moe.output_linear.weight", ARCH_EXPERT_DOWN, 2, 0,
     true},
    {MODEL_MIXTRAL, true, "blk.4.ffn_up_exps.weight", ARCH_EXPERT_UP, 4, 0, true},
    /* this is the form of files from 2023 */
    {MODEL_MIXTRAL, true, "blk.4.ffn_down.6.weight", ARCH_EXPERT_DOWN, 4, 6, false},
    {MODEL_PHI3, true, "blk.4.ffn_up.weight", ARCH_GATE_UP, 4, 0, false},
    {MODEL_QWEN2, true, "blk.4.attn_k.bias", ARCH_K, 4, 0, false},
};

static void names_of_other_layouts_are_recognised(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(other_names) / sizeof(other_names[0]); i++) {
        struct arch_match match;
        bool known = other_names[i].gguf ? arch_match_gguf(other_names[i].arch, other_names[i].name, &match)
                                         : arch_match_hf(other_names[i].arch, other_names[i].name, &match);
        if (!known)
            fail_msg("%s is not recognised", other_names[i].name);
        assert_int_equal(match.parts[0], other_names[i].what);
        assert_int_equal(match.layer, other_names[i].layer);
        assert_int_equal(match.expert, other_names[i].expert);
        assert_int_equal(match.stacked, other_names[i].stacked);
    }
}

static void what_is_no_tensor_of_the_family_is_left_alone(void **state)
{
    static const char *const none[] = {"model.layers.0.self_attn.rotary_emb.inv_freq",
                                       "model.layers.0.self_attn.q_proj.weight.absmax",
                                       "model.layers.9999999999.self_attn.q_proj.weight",
                                       "model.layers.1024.self_attn.q_proj.weight",
                                       "model.layers.x.self_attn.q_proj.weight",
                                       "model.layers..self_attn.q_proj.weight",
                                       "model.layers.0.mlp.experts.0.gate_proj.weight",
                                       "model.layers.0.mlp.experts.gate_up_proj",
                                       "language_model.model.norm.weight",
                                       "vision_tower.norm.weight",
                                       "model.layers.0",
                                       "",
                                       "%u"};
    struct arch_match match;
    (void)state;
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        assert_false(arch_match_hf(MODEL_LLAMA, none[i], &match));
        assert_false(arch_match_gguf(MODEL_LLAMA, none[i], &match));
    }
    assert_false(arch_match_gguf(MODEL_LLAMA, "rope_freqs.weight", &match));
    assert_false(arch_match_gguf(MODEL_LLAMA, "blk.0.ffn_gate_exps.weight", &match));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_name_is_recognised_as_itself),
        cmocka_unit_test(families_are_found_by_each_of_their_names),
        cmocka_unit_test(every_family_is_in_the_table_for_users),
        cmocka_unit_test(names_of_other_layouts_are_recognised),
        cmocka_unit_test(what_is_no_tensor_of_the_family_is_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
