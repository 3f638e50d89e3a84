/* Keeps the vocabulary of added tokens (tokenizer_added.h) by the rules of AddedVocabulary::add_tokens in
 * `tokenizers`. */
#include "model/text/tokenizer_added.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FLAG_COUNT = 5, ID_TEXT = 24 };

static const char *const flags[FLAG_COUNT] = {"lstrip", "rstrip", "single_word", "normalized", "special"};
static const char mark[] = "is a token";
const char added_was_normalised[] = "was normalised";

static int tokenizer_added_no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "out of memory for added tokens");
}

json_t *added_token(const json_t *object, int special, const char *file, const char *key, struct err *err)
{
    json_t *content = json_is_object(object) ? json_object_get(object, "content") : (json_t *)object;
    if (!json_is_string(content)) {
        err_set(err, ERR_INVALID, "%s: %.60s: a token must be a text, or an object with a content", file,
                key);
        return NULL;
    }
    json_t *token = json_pack("{s:b, s:O}", mark, 1, "content", content);
    bool good = token != NULL;
    for (size_t i = 0; i < FLAG_COUNT && good; i++) {
        json_t *said = json_object_get(object, flags[i]);
        if (special >= 0 && i == FLAG_COUNT - 1)
            said = special ? json_true() : json_false();
        if (said && !json_is_boolean(said)) {
            err_set(err, ERR_INVALID, "%s: %.60s: a token's \"%s\" must be true or false", file, key,
                    flags[i]);
            json_decref(token);
            return NULL;
        }
        good = !said || json_object_set(token, flags[i], said) == 0;
    }
    if (!good) {
        json_decref(token);
        tokenizer_added_no_memory(err);
        return NULL;
    }
    return token;
}

bool added_is_token(const json_t *value)
{
    return json_object_get(value, mark) != NULL;
}

bool added_flag(const json_t *token, const char *flag)
{
    const json_t *said = json_object_get(token, flag);
    return !said && strcmp(flag, "normalized") == 0 ? !added_flag(token, "special") : json_is_true(said);
}

json_t *added_content(const json_t *value)
{
    json_t *content = added_is_token(value) ? json_object_get(value, "content") : (json_t *)value;
    return json_is_string(content) ? content : NULL;
}

bool added_equal(const json_t *a, const json_t *b)
{
    if (!added_is_token(a) || !added_is_token(b))
        return json_is_string(a) && json_equal(a, b);
    bool same = json_equal(added_content(a), added_content(b));
    for (size_t i = 0; i < FLAG_COUNT && same; i++)
        same = added_flag(a, flags[i]) == added_flag(b, flags[i]);
    return same;
}

int added_vocabulary_init(struct added_vocabulary *v, const json_t *vocab, struct err *err)
{
    *v = (struct added_vocabulary){.vocab = vocab,
                                   .ids = json_object(),
                                   .tokens = json_object(),
                                   .special = json_object(),
                                   .next = (json_int_t)json_object_size(vocab)};
    return v->ids && v->tokens && v->special ? 0 : tokenizer_added_no_memory(err);
}

void added_vocabulary_fini(struct added_vocabulary *v)
{
    json_decref(v->ids);
    json_decref(v->tokens);
    json_decref(v->special);
}

static json_t *by_content(const json_t *object, const json_t *content)
{
    return json_object_getn(object, json_string_value(content), json_string_length(content));
}

static int set_content(json_t *object, const json_t *content, json_t *value)
{
    return json_object_setn_new_nocheck(object, json_string_value(content), json_string_length(content),
                                        value);
}

static json_t *tokenizer_added_by_id(const struct added_vocabulary *v, const json_t *id)
{
    char text[ID_TEXT];
    snprintf(text, sizeof(text), "%" JSON_INTEGER_FORMAT, json_integer_value(id));
    return json_object_get(v->tokens, text);
}

const json_t *added_vocabulary_find(const struct added_vocabulary *v, const json_t *content)
{
    const json_t *id = by_content(v->ids, content);
    return !id ? NULL : tokenizer_added_by_id(v, id);
}

/* Put a token under the id that its content has already, or else under the next id. */
static int put_one(struct added_vocabulary *v, json_t *token)
{
    const json_t *before = added_vocabulary_find(v, added_content(token));
    if (before && (added_flag(before, "normalized") || json_object_get(before, added_was_normalised)) &&
        json_object_set_new(token, added_was_normalised, json_true()) < 0) {
        return -1;
    }
    const json_t *content = added_content(token);
    json_t *id = by_content(v->ids, content);
    id = json_incref(id ? id : by_content(v->vocab, content));
    if (!json_is_integer(id)) {
        json_decref(id);
        id = json_integer(v->next);
    }
    if (json_integer_value(id) >= v->next)
        v->next = json_integer_value(id) + 1;
    char text[ID_TEXT];
    snprintf(text, sizeof(text), "%" JSON_INTEGER_FORMAT, json_integer_value(id));
    int status = !id ? -1 : set_content(v->ids, content, json_incref(id));
    json_decref(id);
    return status < 0 || json_object_set(v->tokens, text, token) < 0 ? -1 : 0;
}

int added_vocabulary_put(struct added_vocabulary *v, const json_t *list, struct err *err)
{
    size_t i;
    json_t *token;
    json_array_foreach (list, i, token) {
        const json_t *content = added_content(token);
        if (json_string_length(content) == 0 || added_equal(added_vocabulary_find(v, content), token))
            continue;
        if (put_one(v, token) < 0)
            return tokenizer_added_no_memory(err);
    }
    json_array_foreach (list, i, token) {
        const json_t *content = added_content(token);
        if (json_string_length(content) > 0 && added_flag(token, "special") &&
            set_content(v->special, content, json_true()) < 0) {
            return tokenizer_added_no_memory(err);
        }
    }
    return 0;
}

/* Returns a token's new entry in the form of tokenizer.json's added_tokens, or NULL. */
static json_t *tokenizer_added_entry_of(const struct added_vocabulary *v, const char *id, const json_t *token)
{
    json_t *content = added_content(token);
    json_t *entry = json_pack("{s:I, s:O}", "id", (json_int_t)strtoll(id, NULL, 10), "content", content);
    for (size_t i = 0; i < FLAG_COUNT && entry; i++) {
        bool value = strcmp(flags[i], "special") == 0 ? by_content(v->special, content) != NULL
                                                      : added_flag(token, flags[i]);
        if (json_object_set_new(entry, flags[i], json_boolean(value)) < 0) {
            json_decref(entry);
            entry = NULL;
        }
    }
    if (entry && json_object_get(token, added_was_normalised) &&
        json_object_set_new(entry, added_was_normalised, json_true()) < 0) {
        json_decref(entry);
        entry = NULL;
    }
    return entry;
}

static int compare_entries(const void *a, const void *b)
{
    json_int_t x = json_integer_value(json_object_get(*(json_t *const *)a, "id"));
    json_int_t y = json_integer_value(json_object_get(*(json_t *const *)b, "id"));
    return (x > y) - (x < y);
}

json_t *added_vocabulary_list(const struct added_vocabulary *v, struct err *err)
{
    const size_t count = json_object_size(v->tokens);
    json_t *list = json_array(), **entries = calloc(count + 1, sizeof(*entries)), *token;
    const char *id;
    size_t n = 0;
    int status = !list || !entries ? -1 : 0;
    json_object_foreach (v->tokens, id, token) {
        if (status == 0) {
            entries[n] = tokenizer_added_entry_of(v, id, token);
            status = !entries[n++] ? -1 : 0;
        }
    }
    if (status == 0 && n > 0)
        qsort(entries, n, sizeof(*entries), compare_entries);
    for (size_t i = 0; i < n; i++) /* the list takes over each entry */
        status = json_array_append_new(list, entries[i]) < 0 ? -1 : status;
    free(entries);
    if (status < 0) {
        json_decref(list);
        tokenizer_added_no_memory(err);
        return NULL;
    }
    return list;
}
