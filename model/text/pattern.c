/* Compiles patterns for PCRE2 or Oniguruma, and finds their matches (pattern.h). */
#include "model/text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <oniguruma.h>
#include <pcre2.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "model/text/dialect.h"
#include "model/text/utf8.h"

enum {
    TRIES_MAX = 50000000,       /* PCRE2's match limit: steps of backtracking in one match */
    TRIES_ALL_MAX = 1000000000, /* Oniguruma's retries in one search, which take some ten seconds */
    STACK_MAX = 4 << 20,        /* entries of Oniguruma's stack, of about 40 bytes each: 160 MiB */
    JIT_STACK_BYTES = 1 << 20,
    EXPANDED_BYTES = 64 * PATTERN_BYTES
};

struct pattern {
    pcre2_code *code; /* PCRE2's code; NULL where 'regex' is used */
    /* faster code for texts without characters newer than PCRE2's Unicode; or NULL */
    pcre2_code *older;
    regex_t *regex;
    char *literal; /* [literal_size]: the text of a pattern that is a literal text; else NULL */
    size_t literal_size;
};

struct pattern_search {
    const struct pattern *pattern;
    const pcre2_code *code; /* the pattern's code to use for this text */
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *jit_stack;
    OnigRegion *region;
    OnigMatchParam *param;
    const char *text;
    size_t size, at;
    size_t last_end; /* where the match before ended; SIZE_MAX: there was none yet */
};

static void *pattern_no_memory(struct err *err)
{
    err_set(err, ERR_NOMEM, "out of memory for a pattern");
    return NULL;
}

/* Returns PCRE2's new code of a pattern, or NULL. */
static pcre2_code *pcre2_code_of(const char *text, size_t size, uint32_t options, struct err *err)
{
    int error = 0;
    PCRE2_SIZE where = 0;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)text, size, PCRE2_UTF | options, &error, &where, NULL);
    if (!code) {
        PCRE2_UCHAR reason[128] = "";
        pcre2_get_error_message(error, reason, sizeof(reason));
        err_set(err, ERR_UNSUPPORTED, "the pattern \"%.100s\" cannot be used: %s", text,
                (const char *)reason);
        return NULL;
    }
    /* A failure makes matching slower and changes no match. */
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    return code;
}

static struct pattern *compile_pcre2(const char *text, size_t size, uint32_t options, struct err *err)
{
    struct pattern *pattern = calloc(1, sizeof(*pattern));
    if (!pattern)
        return pattern_no_memory(err);
    pattern->code = pcre2_code_of(text, size, options, err);
    if (!pattern->code) {
        pattern_destroy(pattern);
        return NULL;
    }
    return pattern;
}

static void oniguruma_start(void)
{
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
}

/* Returns Oniguruma's new code of a pattern, or NULL with Oniguruma's reason. */
static regex_t *compile_oniguruma(const char *text, size_t size, struct err *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    regex_t *regex = NULL;
    OnigErrorInfo info = {0};
    pthread_once(&once, oniguruma_start);
    const int status = onig_new(&regex, (const OnigUChar *)text, (const OnigUChar *)text + size,
                                ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, ONIG_SYNTAX_RUBY, &info);
    if (status != ONIG_NORMAL) {
        OnigUChar reason[ONIG_MAX_ERROR_MESSAGE_LEN] = "";
        onig_error_code_to_str(reason, status, &info);
        err_set(err, ERR_INVALID, "the regular expression \"%.100s\" cannot be used: %s", text,
                (const char *)reason);
        return NULL;
    }
    return regex;
}

/* Returns a new pattern that Oniguruma matches, or NULL. The text must compile as it stands; then the text
 * that means the same with Unicode 16 is compiled. */
static struct pattern *oniguruma(const char *text, size_t size, struct err *err)
{
    regex_t *given = compile_oniguruma(text, size, err);
    if (!given)
        return NULL;
    onig_free(given);
    struct pattern *pattern = calloc(1, sizeof(*pattern));
    if (!pattern)
        return pattern_no_memory(err);
    struct buf expanded = {.limit = EXPANDED_BYTES};
    if (dialect_oniguruma(text, size, &expanded, err) < 0)
        err_wrap(err, "the regular expression \"%.100s\" cannot be used", text);
    else
        pattern->regex = compile_oniguruma(buf_str(&expanded), expanded.size, err);
    buf_fini(&expanded);
    if (!pattern->regex) {
        pattern_destroy(pattern);
        return NULL;
    }
    return pattern;
}

static struct pattern *common(const char *text, size_t size, struct err *err)
{
    const uint32_t options = PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
    struct buf expanded = {.limit = EXPANDED_BYTES};
    struct pattern *pattern = NULL;
    if (dialect_pcre2(text, size, true, &expanded, err) == 0)
        pattern = compile_pcre2(buf_str(&expanded), expanded.size, options, err);
    buf_clear(&expanded);
    if (pattern && dialect_pcre2(text, size, false, &expanded, err) == 0)
        pattern->older = pcre2_code_of(buf_str(&expanded), expanded.size, options, err);
    buf_fini(&expanded);
    if (pattern && !pattern->older) {
        pattern_destroy(pattern);
        return NULL;
    }
    return pattern;
}

struct pattern *pattern_regex(const char *text, size_t size, struct err *err)
{
    if (size > PATTERN_BYTES) {
        err_set(err, ERR_TOO_BIG, "a regular expression of %zu bytes is longer than %d", size, PATTERN_BYTES);
        return NULL;
    }
    if (dialect_targets_check(text, size, err) < 0) {
        err_wrap(err, "the regular expression \"%.100s\" cannot be used", text);
        return NULL;
    }
    if (!dialect_is_common(text, size))
        return oniguruma(text, size, err);
    return common(text, size, err);
}

struct pattern *pattern_literal(const char *text, size_t size, struct err *err)
{
    struct pattern *pattern = compile_pcre2(text, size, PCRE2_LITERAL, err);
    if (!pattern)
        return NULL;
    pattern->literal = malloc(size + 1);
    if (!pattern->literal) {
        pattern_destroy(pattern);
        return pattern_no_memory(err);
    }
    memcpy(pattern->literal, text, size);
    pattern->literal_size = size;
    return pattern;
}

static struct pattern *compile_and_free(struct buf *text, int status, struct err *err)
{
    struct pattern *pattern =
        status == 0 ? compile_pcre2(buf_str(text), text->size, PCRE2_DOTALL, err) : NULL;
    buf_fini(text);
    return pattern;
}

/* Unicode's White_Space property as the inside of a character class. */
static const char white_space[] =
    "\\t-\\r\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";

struct pattern *pattern_set(const struct code_set *set, bool runs, struct err *err)
{
    struct buf text = {.limit = EXPANDED_BYTES};
    int status = buf_text(&text, "[", err);
    status = status < 0 ? -1 : dialect_ranges(set, &text, err);
    if (status == 0 && runs) {
        status = buf_printf(&text, err, "]+|[^%s", white_space);
        status = status < 0 ? -1 : dialect_ranges(set, &text, err);
    }
    status = status < 0 ? -1 : buf_text(&text, runs ? "]+" : "]", err);
    return compile_and_free(&text, status, err);
}

struct pattern *pattern_space(struct err *err)
{
    struct buf text = {.limit = EXPANDED_BYTES};
    return compile_and_free(&text, buf_printf(&text, err, "[%s]", white_space), err);
}

struct pattern *pattern_characters(unsigned count, struct err *err)
{
    struct buf text = {.limit = EXPANDED_BYTES};
    return compile_and_free(&text, buf_printf(&text, err, ".{1,%u}", count), err);
}

void pattern_destroy(struct pattern *pattern)
{
    if (!pattern)
        return;
    pcre2_code_free(pattern->code);
    pcre2_code_free(pattern->older);
    if (pattern->regex)
        onig_free(pattern->regex);
    free(pattern->literal);
    free(pattern);
}

static bool pattern_search_init(struct pattern_search *s)
{
    if (!s->pattern->code) {
        s->region = onig_region_new();
        s->param = onig_new_match_param();
        if (!s->region || !s->param)
            return false;
        onig_initialize_match_param(s->param);
        onig_set_match_stack_limit_size_of_match_param(s->param, STACK_MAX);
        onig_set_retry_limit_in_search_of_match_param(s->param, TRIES_ALL_MAX);
        return true;
    }
    s->match = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);
    if (!s->match || !s->context)
        return false;
    pcre2_set_match_limit(s->context, TRIES_MAX);
    s->jit_stack = pcre2_jit_stack_create(32 * 1024, JIT_STACK_BYTES, NULL);
    if (s->jit_stack)
        pcre2_jit_stack_assign(s->context, NULL, s->jit_stack);
    return true;
}

struct pattern_search *pattern_search_create(const struct pattern *pattern, struct err *err)
{
    struct pattern_search *s = calloc(1, sizeof(*s));
    if (!s)
        return pattern_no_memory(err);
    s->pattern = pattern;
    if (!pattern_search_init(s)) {
        pattern_search_destroy(s);
        return pattern_no_memory(err);
    }
    return s;
}

void pattern_search_destroy(struct pattern_search *s)
{
    if (!s)
        return;
    pcre2_match_data_free(s->match);
    pcre2_match_context_free(s->context);
    pcre2_jit_stack_free(s->jit_stack);
    if (s->region)
        onig_region_free(s->region, 1);
    if (s->param)
        onig_free_match_param(s->param);
    free(s);
}

/* Returns true when the text has a character whose general category in Unicode 16 is not the one PCRE2 has
 * for it. */
static bool has_newer(const char *text, size_t size)
{
    for (size_t at = 0; at < size;) {
        uint64_t eight;
        if (size - at >= sizeof(eight)) {
            memcpy(&eight, text + at, sizeof(eight));
            if ((eight & 0x8080808080808080u) == 0) {
                at += sizeof(eight);
                continue;
            }
        }
        uint32_t code;
        if ((unsigned char)text[at] < 0xe0) { /* a character below U+0800, or a byte inside one */
            at++;
            continue;
        }
        at = utf8_next(text, size, at, &code);
        if (code_set_has(&unicode_newer, code))
            return true;
    }
    return false;
}

void pattern_begin(struct pattern_search *s, const char *text, size_t size)
{
    s->text = text;
    s->size = size;
    s->code = s->pattern->older && !has_newer(text, size) ? s->pattern->older : s->pattern->code;
    s->at = 0;
    s->last_end = SIZE_MAX;
}

static int gave_up(const struct pattern_search *s, const char *reason, struct err *err)
{
    return err_set(
        err, ERR_TOO_BIG,
        "the tokenizer's pattern takes too much time or memory at byte %zu of a text of %zu bytes (%s): "
        "shorten the text",
        s->at, s->size, reason);
}

static int next_oniguruma(struct pattern_search *s, size_t *begin, size_t *end, struct err *err)
{
    const OnigUChar *text = (const OnigUChar *)s->text;
    const int got = onig_search_with_param(s->pattern->regex, text, text + s->size, text + s->at,
                                           text + s->size, s->region, ONIG_OPTION_NONE, s->param);
    if (got == ONIG_MISMATCH)
        return 0;
    if (got < 0) {
        OnigUChar reason[ONIG_MAX_ERROR_MESSAGE_LEN] = "";
        onig_error_code_to_str(reason, got);
        return gave_up(s, (const char *)reason, err);
    }
    *begin = (size_t)s->region->beg[0];
    *end = (size_t)s->region->end[0];
    return 1;
}

/* Find the next match with PCRE2's just-in-time code, or with PCRE2's interpreter where there is no
 * just-in-time code or its stack does not suffice. */
static int next_pcre2(struct pattern_search *s, size_t *begin, size_t *end, struct err *err)
{
    const PCRE2_SPTR text = (PCRE2_SPTR)s->text;
    int got = pcre2_jit_match(s->code, text, s->size, s->at, 0, s->match, s->context);
    if (got == PCRE2_ERROR_JIT_STACKLIMIT || got == PCRE2_ERROR_JIT_BADOPTION) {
        got = pcre2_match(s->code, text, s->size, s->at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s->match,
                          s->context);
    }
    if (got == PCRE2_ERROR_NOMATCH)
        return 0;
    if (got < 0) {
        PCRE2_UCHAR reason[128] = "";
        pcre2_get_error_message(got, reason, sizeof(reason));
        return gave_up(s, (const char *)reason, err);
    }
    const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(s->match);
    *begin = bounds[0];
    *end = bounds[1];
    return 1;
}

/* Find the next occurrence of a literal text. On short texts memmem() is several times as fast as an engine.
 */
static int next_literal(const struct pattern_search *s, size_t *begin, size_t *end)
{
    const struct pattern *p = s->pattern;
    const char *found = memmem(s->text + s->at, s->size - s->at, p->literal, p->literal_size);
    if (!found)
        return 0;
    *begin = (size_t)(found - s->text);
    *end = *begin + p->literal_size;
    return 1;
}

int pattern_next(struct pattern_search *s, size_t *begin, size_t *end, struct err *err)
{
    while (s->at <= s->size) {
        const struct pattern *p = s->pattern;
        const int got = p->literal_size > 0 ? next_literal(s, begin, end)
                        : p->code           ? next_pcre2(s, begin, end, err)
                                            : next_oniguruma(s, begin, end, err);
        if (got <= 0)
            return got;
        if (*begin != *end || s->last_end != *end) {
            s->at = *end;
            s->last_end = *end;
            return 1;
        }
        s->at++;
        while (s->at < s->size && ((unsigned char)s->text[s->at] & 0xc0) == 0x80)
            s->at++;
    }
    return 0;
}
