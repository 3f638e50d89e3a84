/* Lists all added tokens that transformers' tokenizer has (tokenizer_added.h), in the order in which
 * TokenizersBackend.__init__ adds them. */
#include <stdio.h>
#include <stdlib.h>

#include "model/text/tokenizer_added.h"

static const char tokenizer_json[] = "tokenizer.json";

static int tokenizer_added_tokens_no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "out of memory for added tokens");
}

static int compare_ids(const void *a, const void *b)
{
    const json_int_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Append the decoder's tokens to 'list' in the order of their ids. All of them are added anew, so that a
 * named token becomes special even if it was not. */
static int decoder_sort(const struct added_names *names, json_t *list, struct err *err)
{
    const size_t count = json_object_size(names->decoder);
    json_int_t *ids = calloc(count + 1, sizeof(*ids));
    const char *id;
    json_t *token;
    size_t n = 0;
    int status = !ids ? -1 : 0;
    json_object_foreach (names->decoder, id, token) {
        if (status == 0)
            ids[n++] = strtoll(id, NULL, 10);
    }
    if (n > 0)
        qsort(ids, n, sizeof(*ids), compare_ids);
    for (size_t i = 0; i < n && status == 0; i++) {
        char text[24];
        snprintf(text, sizeof(text), "%" JSON_INTEGER_FORMAT, ids[i]);
        status = json_array_append(list, json_object_get(names->decoder, text));
    }
    free(ids);
    return status < 0 ? tokenizer_added_tokens_no_memory(err) : 0;
}

/* Append a token to 'list', unless 'known' has its content or the list has the token. */
static int tokenizer_added_tokens_special_add(const json_t *known, json_t *token, json_t *list,
                                              struct err *err)
{
    const json_t *content = added_content(token);
    size_t i;
    json_t *item;
    if (json_object_getn(known, json_string_value(content), json_string_length(content)))
        return 0;
    json_array_foreach (list, i, item) {
        if (added_equal(item, token))
            return 0;
    }
    return json_array_append(list, token) < 0 ? tokenizer_added_tokens_no_memory(err) : 0;
}

static int specials_add(const struct added_names *names, const struct added_vocabulary *v, json_t *list,
                        struct err *err)
{
    const char *name;
    json_t *token, *known = json_copy(v->ids);
    size_t i;
    int status = !known ? tokenizer_added_tokens_no_memory(err) : 0;
    json_array_foreach (list, i, token) {
        const json_t *content = added_content(token);
        if (status == 0 && json_object_setn_new_nocheck(known, json_string_value(content),
                                                        json_string_length(content), json_true()) < 0) {
            status = tokenizer_added_tokens_no_memory(err);
        }
    }
    json_object_foreach (names->named, name, token) {
        status = status == 0 ? tokenizer_added_tokens_special_add(known, token, list, err) : -1;
    }
    json_array_foreach (names->extra, i, token) {
        status = status == 0 ? tokenizer_added_tokens_special_add(known, token, list, err) : -1;
    }
    json_decref(known);
    return status;
}

/* Returns a new list of tokens, or NULL: texts become special tokens, and so do tokens that have a name. */
static json_t *list_finish(const struct added_names *names, const json_t *list, struct err *err)
{
    size_t i;
    const char *name;
    json_t *token, *named;
    json_t *out = json_array();
    json_array_foreach (list, i, token) {
        int special = json_is_string(token) ? 1 : -1;
        json_object_foreach (names->named, name, named) {
            special = json_equal(added_content(named), added_content(token)) ? 1 : special;
        }
        json_t *made = added_token(token, special, tokenizer_json, "special tokens", err);
        if (!made || json_array_append_new(out, made) < 0) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

/* Add all special tokens once more, without flags, as Qwen2Tokenizer's constructor does at its end. */
static int specials_again(const struct added_names *names, struct added_vocabulary *v, struct err *err)
{
    const char *name;
    json_t *value;
    size_t i;
    json_t *list = json_array();
    int status = !list ? tokenizer_added_tokens_no_memory(err) : 0;
    json_object_foreach (names->named, name, value) {
        json_t *token = added_token(added_content(value), 1, tokenizer_json, name, err);
        status = !token || json_array_append_new(list, token) < 0 ? -1 : status;
    }
    json_array_foreach (names->extra, i, value) {
        json_t *token = added_token(added_content(value), 1, tokenizer_json, "extra_special_tokens", err);
        status = !token || json_array_append_new(list, token) < 0 ? -1 : status;
    }
    status = status == 0 ? added_vocabulary_put(v, list, err) : -1;
    json_decref(list);
    return status;
}

static int tokens_put(const struct added_names *names, bool repeats, struct added_vocabulary *v,
                      struct err *err)
{
    json_t *list = json_array(), *finished = NULL;
    int status = !list ? tokenizer_added_tokens_no_memory(err) : decoder_sort(names, list, err);
    if (status == 0)
        status = specials_add(names, v, list, err);
    if (status == 0) {
        finished = list_finish(names, list, err);
        status = !finished ? -1 : added_vocabulary_put(v, finished, err);
    }
    json_decref(list);
    json_decref(finished);
    return status == 0 && repeats ? specials_again(names, v, err) : status;
}

int added_tokens_apply(const struct added_names *names, json_t *root, struct err *err)
{
    struct added_vocabulary v;
    const json_t *list = json_object_get(root, "added_tokens");
    json_t *own = json_array(), *result = NULL;
    size_t i;
    json_t *item;
    int status = added_vocabulary_init(&v, json_object_get(json_object_get(root, "model"), "vocab"), err);
    if (status == 0 && list && !json_is_array(list))
        status = err_set(err, ERR_INVALID, "tokenizer.json: added_tokens is not a list");
    json_array_foreach (list, i, item) {
        json_t *token = added_token(item, -1, tokenizer_json, "added_tokens", err);
        status = !token || json_array_append_new(own, token) < 0 ? -1 : status;
    }
    if (status == 0 && names->keeps)
        status = added_vocabulary_put(&v, own, err);
    if (status == 0)
        status = tokens_put(names, names->repeats, &v, err);
    if (status == 0) {
        result = added_vocabulary_list(&v, err);
        status = !result                                             ? -1
                 : json_object_set(root, "added_tokens", result) < 0 ? tokenizer_added_tokens_no_memory(err)
                                                                     : 0;
    }
    json_decref(result);
    json_decref(own);
    added_vocabulary_fini(&v);
    return status;
}
