/* Patterns are compiled by PCRE2 after a check for what Python would read otherwise. */
#include "model/shape/lora_match.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MATCH_LIMIT = 200000, HEAP_LIMIT_KB = 4096, PATTERN_BYTES = 2048, LAYER_DIGITS_MAX = 9 };

struct lora_matcher {
    enum lora_match_how how;
    char *pattern;    /* the pattern as given */
    pcre2_code *code; /* NULL: a plain name, which is compared without PCRE2 */
    pcre2_match_data *data;
    pcre2_match_context *context;
    uint32_t layer_group; /* number of the group (?P<idx>…) */
    uint64_t *steps;      /* steps left, set during a match */
};

/* Returns true if the pattern has no character of special meaning except the dot. */
static bool lora_match_is_plain(const char *pattern)
{
    for (const char *c = pattern; *c != '\0'; c++) {
        bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9');
        if (!letter && *c != '_' && *c != '.' && *c != '-')
            return false;
    }
    return true;
}

/* Returns whether Python knows the construct behind "(?"; 'at' is the first character behind it. */
static bool group_known(const char *at, bool first)
{
    if (strchr(":=!>#(", at[0]) && at[0] != '\0')
        return at[0] != '(' || strncmp(at, "(DEFINE", 7) != 0;
    if (at[0] == '<')
        return at[1] == '=' || at[1] == '!';
    if (at[0] == 'P')
        return at[1] == '<' || at[1] == '=';
    size_t flags = strspn(at, "aimsx-");
    return flags > 0 && (at[flags] == ':' || (first && at[flags] == ')'));
}

/* Returns the construct of the pattern that Python's re lacks or reads otherwise, or NULL. */
static const char *unlike_python(const char *pattern, enum lora_match_how how)
{
    for (const char *c = pattern; *c != '\0'; c++) {
        if ((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7f)
            return "has a character that no module's name has";
        if (c[0] == '\\') {
            bool letter = (c[1] >= 'a' && c[1] <= 'z') || (c[1] >= 'A' && c[1] <= 'Z');
            if (c[1] == '\0' || (letter && !strchr("AbBdDsSwWZafnrtx", c[1])))
                return "has a backslash before what means nothing there";
            c++;
        } else if (c[0] == '(' && c[1] == '*') {
            return "has \"(*\"";
        } else if (c[0] == '(' && c[1] == '?' &&
                   !group_known(c + 2, how == LORA_MATCH_WHOLE && c == pattern)) {
            return "has a group \"(?\" of a sort that is not known";
        } else if (c[0] == '[' && (c[1] == ':' || c[1] == '.' || c[1] == '=')) {
            return "has a class \"[:\", \"[.\" or \"[=\"";
        } else if (c[0] == '{' && c[1] == ',') {
            return "has \"{,\"; write the number";
        }
    }
    return NULL;
}

static int count_step(pcre2_callout_block *block, void *arg)
{
    struct lora_matcher *matcher = arg;
    (void)block;
    if (*matcher->steps == 0)
        return PCRE2_ERROR_CALLOUT;
    (*matcher->steps)--;
    return 0;
}

static int compile(struct lora_matcher *m, struct err *err)
{
    static const char *const frames[][2] = {[LORA_MATCH_WHOLE] = {"", ""},
                                            [LORA_MATCH_KEY] = {"(.*\\.)?(", ")$"},
                                            [LORA_MATCH_LAYER] = {"(?:^|.*?\\.)", "\\.(?P<idx>\\d+)\\."}};
    char text[PATTERN_BYTES];
    int error = 0, got;
    PCRE2_SIZE where = 0;
    uint32_t options = PCRE2_ANCHORED | PCRE2_DOLLAR_ENDONLY | PCRE2_AUTO_CALLOUT | PCRE2_NEVER_BACKSLASH_C;
    got = snprintf(text, sizeof(text), "%s%s%s", frames[m->how][0], m->pattern, frames[m->how][1]);
    if (got < 0 || got >= (int)sizeof(text))
        return err_set(err, ERR_INVALID, "the pattern \"%.64s…\" has %zu bytes; at most %d", m->pattern,
                       strlen(m->pattern), PATTERN_BYTES - 64);
    m->code =
        pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                      options | (m->how == LORA_MATCH_WHOLE ? PCRE2_ENDANCHORED : 0), &error, &where, NULL);
    if (!m->code) {
        PCRE2_UCHAR reason[128] = "";
        pcre2_get_error_message(error, reason, sizeof(reason));
        return err_set(err, ERR_INVALID, "\"%.200s\" is no regular expression: %s", m->pattern,
                       (const char *)reason);
    }
    got = m->how == LORA_MATCH_LAYER
              ? pcre2_substring_number_from_name(m->code, (PCRE2_SPTR)(const void *)"idx")
              : 0;
    if (got < 0)
        return err_set(err, ERR_INVALID, "\"%.200s\" has a group of the name idx", m->pattern);
    m->layer_group = (uint32_t)got;
    m->data = pcre2_match_data_create_from_pattern(m->code, NULL);
    m->context = pcre2_match_context_create(NULL);
    if (!m->data || !m->context)
        return err_set(err, ERR_NOMEM, "out of memory for a pattern");
    pcre2_set_match_limit(m->context, MATCH_LIMIT);
    pcre2_set_heap_limit(m->context, HEAP_LIMIT_KB);
    pcre2_set_callout(m->context, count_step, m);
    return 0;
}

int lora_matcher_create(const char *pattern, enum lora_match_how how, struct lora_matcher **out,
                        struct err *err)
{
    const char *unlike = unlike_python(pattern, how);
    struct lora_matcher *m = calloc(1, sizeof(*m));
    *out = NULL;
    if (!m || !(m->pattern = strdup(pattern))) {
        free(m);
        return err_set(err, ERR_NOMEM, "out of memory for a pattern");
    }
    m->how = how;
    int status = unlike ? err_set(err, ERR_INVALID, "\"%.200s\" %s", pattern, unlike) : 0;
    if (status == 0 && !(how == LORA_MATCH_KEY && lora_match_is_plain(pattern)))
        status = compile(m, err);
    if (status < 0) {
        lora_matcher_destroy(m);
        return -1;
    }
    *out = m;
    return 0;
}

void lora_matcher_destroy(struct lora_matcher *m)
{
    if (!m)
        return;
    pcre2_match_context_free(m->context);
    pcre2_match_data_free(m->data);
    pcre2_code_free(m->code);
    free(m->pattern);
    free(m);
}

/* Matches a plain name as (.*\.)?(pattern)$ would: the pattern matches the whole name or its end behind a
 * dot; the pattern's own dots match any character. */
static bool plain_match(const char *pattern, const char *name)
{
    size_t length = strlen(pattern), whole = strlen(name);
    if (length > whole || (length < whole && name[whole - length - 1] != '.'))
        return false;
    for (size_t i = length; i-- > 0;)
        if (pattern[i] != '.' && pattern[i] != name[whole - length + i])
            return false;
    return true;
}

/* Returns the layer's number that the group (?P<idx>…) captured. */
static uint32_t layer_found(const struct lora_matcher *m, const char *name)
{
    const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(m->data) + 2 * (size_t)m->layer_group;
    size_t digits = bounds[1] - bounds[0];
    return digits > LAYER_DIGITS_MAX ? UINT32_MAX : (uint32_t)strtoul(name + bounds[0], NULL, 10);
}

int lora_match(struct lora_matcher *m, const char *name, uint64_t *steps, uint32_t *layer, struct err *err)
{
    if (!m->code)
        return plain_match(m->pattern, name);
    m->steps = steps;
    int got = pcre2_match(m->code, (PCRE2_SPTR)name, strlen(name), 0, 0, m->data, m->context);
    m->steps = NULL;
    if (got == PCRE2_ERROR_NOMATCH)
        return 0;
    if (got < 0)
        return err_set(
            err, ERR_TOO_BIG,
            "the pattern \"%.120s\" takes too long on \"%s\": more than %llu steps in all, or %d on "
            "this name",
            m->pattern, name, LORA_MATCH_STEPS, MATCH_LIMIT);
    if (layer && m->how == LORA_MATCH_LAYER)
        *layer = layer_found(m, name);
    return 1;
}
