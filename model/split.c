/* See split.h. Stages are nested by recursion, at most SPLIT_STAGES_MAX deep. */
#include "model/split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"

const char split_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char split_llama3[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
                            " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char split_qwen2[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                           " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
/* Mistral's "tekken". */
const char split_tekken[] =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char split_digit[] = "\\p{N}";
const char split_digits[] = "\\p{N}+";

/* Unicode's White_Space, as the inside of a class. */
static const char white_space[] =
    "\\t-\\r\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";

enum { MATCH_LIMIT = 50000000, JIT_STACK_BYTES = 1 << 20 };

struct stage {
    pcre2_code *code;
    char *pattern;
    enum split_how how;
};

struct splitter {
    unsigned count;
    struct stage stages[SPLIT_STAGES_MAX];
};

struct split_scratch {
    pcre2_match_data *match[SPLIT_STAGES_MAX];
    pcre2_match_context *context;
    pcre2_jit_stack *jit_stack;
};

struct splitter *splitter_create(struct err *err)
{
    struct splitter *splitter = calloc(1, sizeof(*splitter));
    if (splitter == NULL) {
        err_set(err, ERR_NOMEM, "out of memory for a pre-tokeniser");
    }
    return splitter;
}

void splitter_destroy(struct splitter *splitter)
{
    if (splitter == NULL) {
        return;
    }
    for (unsigned i = 0; i < splitter->count; i++) {
        pcre2_code_free(splitter->stages[i].code);
        free(splitter->stages[i].pattern);
    }
    free(splitter);
}

/* Write \s and \S out, inside and outside classes; everything else is kept. */
static int pattern_translate(const char *pattern, size_t size, struct buf *out, struct err *err)
{
    bool in_class = false;
    for (size_t i = 0; i < size; i++) {
        char c = pattern[i];
        if (c == '\\' && i + 1 < size) {
            char next = pattern[++i];
            int status;
            if (next == 's') {
                status =
                    in_class ? buf_text(out, white_space, err) : buf_printf(out, err, "[%s]", white_space);
            } else if (next == 'S' && !in_class) {
                status = buf_printf(out, err, "[^%s]", white_space);
            } else if (next == 'S') {
                return err_set(err, ERR_UNSUPPORTED, "\\S inside a class of a pre-tokeniser's pattern");
            } else {
                status = buf_append(out, pattern + i - 1, 2, err);
            }
            if (status < 0) {
                return -1;
            }
            continue;
        }
        if (c == '[' && in_class && i + 1 < size && (pattern[i + 1] == '[' || pattern[i + 1] == '^')) {
            return err_set(err, ERR_UNSUPPORTED, "a class inside a class of a pre-tokeniser's pattern");
        }
        in_class = c == '[' ? true : c == ']' ? false : in_class;
        if (buf_append(out, &c, 1, err) < 0) {
            return -1;
        }
    }
    return 0;
}

int splitter_add(struct splitter *splitter, const char *pattern, size_t size, enum split_how how,
                 bool literal, struct err *err)
{
    if (splitter->count == SPLIT_STAGES_MAX || size > SPLIT_PATTERN_BYTES) {
        return err_set(err, ERR_TOO_BIG, "a pre-tokeniser of more than %d stages or %d bytes in a pattern",
                       SPLIT_STAGES_MAX, SPLIT_PATTERN_BYTES);
    }
    struct buf text = {.limit = 64 * SPLIT_PATTERN_BYTES};
    int status =
        literal ? buf_append(&text, pattern, size, err) : pattern_translate(pattern, size, &text, err);
    char *copy = status == 0 ? strndup(pattern, size) : NULL;
    if (copy == NULL) {
        buf_fini(&text);
        return status < 0 ? -1 : err_set(err, ERR_NOMEM, "out of memory for a pre-tokeniser");
    }
    int error = 0;
    PCRE2_SIZE where = 0;
    const uint32_t options =
        literal ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)buf_str(&text), text.size, options, &error, &where, NULL);
    buf_fini(&text);
    if (code == NULL) {
        PCRE2_UCHAR reason[128] = "";
        pcre2_get_error_message(error, reason, sizeof(reason));
        free(copy);
        return err_set(err, ERR_UNSUPPORTED, "the pre-tokeniser's pattern \"%.100s\" cannot be used: %s",
                       pattern, (const char *)reason);
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* without it matching is slower, not different */
    splitter->stages[splitter->count++] = (struct stage){.code = code, .pattern = copy, .how = how};
    return 0;
}

int splitter_digest(const struct splitter *splitter, struct digest *digest, struct err *err)
{
    for (unsigned i = 0; i < splitter->count; i++) {
        const char *pattern = splitter->stages[i].pattern;
        const uint8_t how = (uint8_t)splitter->stages[i].how;
        if (digest_update(digest, pattern, strlen(pattern) + 1, err) < 0 ||
            digest_update(digest, &how, 1, err) < 0) {
            return -1;
        }
    }
    return 0;
}

struct split_scratch *split_scratch_create(const struct splitter *splitter, struct err *err)
{
    struct split_scratch *scratch = calloc(1, sizeof(*scratch));
    if (scratch == NULL) {
        err_set(err, ERR_NOMEM, "out of memory for a pre-tokeniser");
        return NULL;
    }
    scratch->context = pcre2_match_context_create(NULL);
    bool good = scratch->context != NULL;
    for (unsigned i = 0; i < splitter->count; i++) {
        scratch->match[i] = pcre2_match_data_create(1, NULL);
        good = good && scratch->match[i] != NULL;
    }
    if (!good) {
        split_scratch_destroy(scratch);
        err_set(err, ERR_NOMEM, "out of memory for a pre-tokeniser");
        return NULL;
    }
    pcre2_set_match_limit(scratch->context, MATCH_LIMIT);
    scratch->jit_stack = pcre2_jit_stack_create(32 * 1024, JIT_STACK_BYTES, NULL);
    if (scratch->jit_stack != NULL) {
        pcre2_jit_stack_assign(scratch->context, NULL, scratch->jit_stack);
    }
    return scratch;
}

void split_scratch_destroy(struct split_scratch *scratch)
{
    if (scratch == NULL) {
        return;
    }
    for (unsigned i = 0; i < SPLIT_STAGES_MAX; i++) {
        pcre2_match_data_free(scratch->match[i]);
    }
    pcre2_match_context_free(scratch->context);
    pcre2_jit_stack_free(scratch->jit_stack);
    free(scratch);
}

struct walk {
    const struct splitter *splitter;
    struct split_scratch *scratch;
    split_piece_fn *piece;
    void *arg;
};

static int walk_stage(const struct walk *walk, unsigned stage, const char *text, size_t size,
                      struct err *err);

static int walk_piece(const struct walk *walk, unsigned stage, const char *text, size_t begin, size_t end,
                      struct err *err)
{
    return begin == end ? 0 : walk_stage(walk, stage + 1, text + begin, end - begin, err);
}

/* The next match of 'stage' from 'at': 1 with its bounds, 0 if none, -1. An interpreter run is the fallback
 * when the just-in-time code has not enough stack. */
static int stage_match(const struct walk *walk, unsigned stage, const char *text, size_t size, size_t at,
                       size_t *begin, size_t *end, struct err *err)
{
    pcre2_match_data *match = walk->scratch->match[stage];
    const pcre2_code *code = walk->splitter->stages[stage].code;
    int got =
        pcre2_match(code, (PCRE2_SPTR)text, size, at, PCRE2_NO_UTF_CHECK, match, walk->scratch->context);
    if (got == PCRE2_ERROR_JIT_STACKLIMIT) {
        got = pcre2_match(code, (PCRE2_SPTR)text, size, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match,
                          walk->scratch->context);
    }
    if (got == PCRE2_ERROR_NOMATCH) {
        return 0;
    }
    if (got < 0) {
        PCRE2_UCHAR reason[128] = "";
        pcre2_get_error_message(got, reason, sizeof(reason));
        return err_set(err, ERR_TOO_BIG, "the pre-tokeniser gave up at byte %zu of %zu: %s", at, size,
                       (const char *)reason);
    }
    const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(match);
    *begin = bounds[0];
    *end = bounds[1];
    if (*end < *begin || *begin < at) {
        return err_set(err, ERR_UNSUPPORTED, "the pre-tokeniser's pattern matches backwards");
    }
    return 1;
}

static size_t next_character(const char *text, size_t size, size_t at)
{
    at++;
    while (at < size && ((unsigned char)text[at] & 0xc0) == 0x80) {
        at++;
    }
    return at;
}

static int walk_stage(const struct walk *walk, unsigned stage, const char *text, size_t size, struct err *err)
{
    if (stage == walk->splitter->count) {
        return walk->piece(walk->arg, text, size, err);
    }
    size_t done = 0; /* pieces are out up to here */
    size_t at = 0;
    while (at < size) {
        size_t begin = 0;
        size_t end = 0;
        int got = stage_match(walk, stage, text, size, at, &begin, &end, err);
        if (got < 0) {
            return -1;
        }
        if (got == 0) {
            break;
        }
        if (begin == end) { /* an empty match cuts nothing */
            at = next_character(text, size, end);
            continue;
        }
        const enum split_how how = walk->splitter->stages[stage].how;
        const size_t cut = how == SPLIT_WITH_PREVIOUS ? end : begin;
        if (walk_piece(walk, stage, text, done, cut, err) < 0 ||
            (how == SPLIT_ISOLATED && walk_piece(walk, stage, text, begin, end, err) < 0)) {
            return -1;
        }
        done = how == SPLIT_WITH_NEXT ? begin : end;
        at = end;
    }
    return walk_piece(walk, stage, text, done, size, err);
}

int split_text(const struct splitter *splitter, struct split_scratch *scratch, const char *text, size_t size,
               split_piece_fn *piece, void *arg, struct err *err)
{
    const struct walk walk = {.splitter = splitter, .scratch = scratch, .piece = piece, .arg = arg};
    return size == 0 ? 0 : walk_stage(&walk, 0, text, size, err);
}
