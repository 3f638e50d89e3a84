/* See tokenizer_files.h. A token on its way is an object as tokenizer.json's added_tokens have them (content
 * and five flags); the list in tokenizer.json's document is changed as the library's add_tokens changes it.
 */
#include "model/tokenizer_files.h"

#include <stdlib.h>
#include <string.h>

#include "model/hub_json.h"
#include "model/tokenizer.h"
#include "model/tokenizer_class.h"

enum { FILE_JSON_DEPTH = 32 };

static const char config_name[] = "tokenizer_config.json";
static const char map_name[] = "special_tokens_map.json";
static const char added_name[] = "added_tokens.json";

/* Special tokens that every tokenizer of transformers has a name for. */
static const char *const standard[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};
static const char *const flags[] = {"lstrip", "rstrip", "single_word", "normalized", "special"};

/* What is known while the files are read. Values of 'named' and items of 'extra' are texts or tokens. */
struct reading {
    json_t *config; /* tokenizer_config.json, or an empty object */
    json_t *list;   /* added_tokens of tokenizer.json; NULL: there is no such file */
    json_t *named;  /* name -> text or token */
    json_t *extra;  /* further special tokens */
    json_t *
        decoder; /* list of tokens in the order of their ids: of added_tokens_decoder, or added_tokens.json */
};

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "out of memory for the files beside tokenizer.json");
}

void tokenizer_names_fini(struct tokenizer_names *names)
{
    json_decref(names->special);
    json_decref(names->templates);
    *names = (struct tokenizer_names){0};
}

static bool is_standard(const char *name)
{
    for (size_t i = 0; i < sizeof(standard) / sizeof(standard[0]); i++) {
        if (strcmp(standard[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static const char *content_of(const json_t *token)
{
    return json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
}

/* An AddedToken as Python's keyword arguments make it: flags that are not said are false, but normalized is
 * the opposite of special. special: 1 or 0, or -1: as the object says. New. */
static json_t *token_make(const json_t *object, int special, const char *file, const char *key,
                          struct err *err)
{
    const char *name;
    json_t *value;
    const json_t *content = json_is_object(object) ? json_object_get(object, "content") : object;
    if (!json_is_string(content)) {
        err_set(err, ERR_INVALID, "%s: %.60s: a token must be a text, or an object with a content", file,
                key);
        return NULL;
    }
    json_object_foreach((json_t *)object, name, value)
    {
        bool known = strcmp(name, "content") == 0 || strcmp(name, "__type") == 0 || strcmp(name, "id") == 0;
        for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]) && !known; i++) {
            known = strcmp(flags[i], name) == 0 && json_is_boolean(value);
        }
        if (!known) {
            err_set(err, ERR_INVALID, "%s: %.60s: a token's \"%.60s\" is not known, or not true or false",
                    file, key, name);
            return NULL;
        }
    }
    json_t *token = json_pack("{s:O, s:i}", "content", content, "id", 0);
    bool is_special = special < 0 ? json_is_true(json_object_get(object, "special")) : special;
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        const json_t *said = json_object_get(object, flags[i]);
        bool flag = strcmp(flags[i], "special") == 0      ? is_special
                    : strcmp(flags[i], "normalized") == 0 ? (said != NULL ? json_is_true(said) : !is_special)
                                                          : json_is_true(said);
        if (token != NULL && json_object_set_new(token, flags[i], json_boolean(flag)) < 0) {
            json_decref(token);
            token = NULL;
        }
    }
    if (token == NULL) {
        no_memory(err);
    }
    return token;
}

/* The entry of a list with that content, or NULL; the last counts. */
static json_t *token_find(const json_t *list, const char *content)
{
    for (size_t i = json_array_size(list); i > 0; i--) {
        const char *own = content_of(json_array_get(list, i - 1));
        if (own != NULL && strcmp(own, content) == 0) {
            return json_array_get(list, i - 1);
        }
    }
    return NULL;
}

/* As the library's add_tokens: a token that is there keeps its id and gets the new flags, and what was
 * special stays special; another is put at the end. */
static int token_put(struct reading *r, const json_t *token, bool special, struct err *err)
{
    json_t *entry = token_find(r->list, content_of(token));
    if (content_of(token)[0] == '\0') {
        return 0;
    }
    if (entry == NULL) {
        entry = json_deep_copy(token);
        if (entry == NULL || json_array_append_new(r->list, entry) < 0) {
            return no_memory(err);
        }
    }
    bool was_special = json_is_true(json_object_get(entry, "special"));
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        if (json_object_set(entry, flags[i], json_object_get(token, flags[i])) < 0) {
            return no_memory(err);
        }
    }
    return (special || was_special) && json_object_set_new(entry, "special", json_true()) < 0 ? no_memory(err)
                                                                                              : 0;
}

/* ---- what the files name ---- */

/* A special token of tokenizer_config.json: a text, or an object that says it is an AddedToken. */
static int named_read(struct reading *r, const char *name, const json_t *value, struct err *err)
{
    const char *type = json_string_value(json_object_get(value, "__type"));
    json_t *token = NULL;
    if (json_is_null(value)) {
        return 0;
    }
    if (json_is_string(value)) {
        token = json_incref((json_t *)value);
    } else if (type != NULL && strcmp(type, "AddedToken") == 0) {
        token = token_make(value, -1, config_name, name, err);
    } else {
        return err_set(err, ERR_INVALID,
                       "%s: %.60s must be a text or an object with \"__type\": \"AddedToken\"", config_name,
                       name);
    }
    return token == NULL ? -1 : json_object_set_new(r->named, name, token) < 0 ? no_memory(err) : 0;
}

static bool ends_with_token(const char *name)
{
    size_t size = strlen(name);
    return size > 6 && strcmp(name + size - 6, "_token") == 0;
}

/* The list of further special tokens, or an object of named ones. */
static int extra_read(struct reading *r, const json_t *value, const char *file, const char *key,
                      struct err *err)
{
    const char *name;
    json_t *item;
    size_t i;
    if (json_is_object(value)) {
        json_object_foreach((json_t *)value, name, item)
        {
            if (named_read(r, name, item, err) < 0) {
                return -1;
            }
        }
        return 0;
    }
    if (value == NULL || json_is_null(value)) {
        return 0;
    }
    if (!json_is_array(value)) {
        return err_set(err, ERR_INVALID, "%s: %s must be a list of tokens or an object", file, key);
    }
    json_array_foreach(value, i, item)
    {
        json_t *token = json_is_string(item) ? json_incref(item) : token_make(item, -1, file, key, err);
        if (token == NULL || json_array_append_new(r->extra, token) < 0) {
            return token == NULL ? -1 : no_memory(err);
        }
    }
    return 0;
}

static const json_t *extra_of(const json_t *document, const char **key)
{
    *key = json_object_get(document, "extra_special_tokens") != NULL ? "extra_special_tokens"
                                                                     : "additional_special_tokens";
    return json_object_get(document, *key);
}

/* tokenizer_config.json's names; 'defaults' are those of the tokenizer's class, or NULL. */
static int config_names(struct reading *r, json_t *defaults, struct err *err)
{
    const char *name;
    json_t *value;
    if (defaults != NULL && json_object_update(r->named, defaults) < 0) {
        return no_memory(err);
    }
    json_object_foreach(r->config, name, value)
    {
        bool other = ends_with_token(name) && (json_is_string(value) || json_is_object(value));
        if (is_standard(name) && json_is_null(value) && json_object_del(r->named, name) < 0) {
            continue;
        }
        if ((is_standard(name) || other) && named_read(r, name, value, err) < 0) {
            return -1;
        }
    }
    const json_t *extra = extra_of(r->config, &name);
    return extra_read(r, extra, config_name, name, err);
}

/* special_tokens_map.json: its names replace those of tokenizer_config.json. */
static int map_names(struct reading *r, const struct tokenizer_file *file, struct err *err)
{
    const char *name;
    json_t *value;
    if (file->size == 0) {
        return 0;
    }
    json_t *map = hub_json_parse(file->text, file->size, FILE_JSON_DEPTH, err);
    int status = map == NULL ? err_wrap(err, "%s", map_name) : 0;
    if (status == 0 && !json_is_object(map)) {
        status = err_set(err, ERR_INVALID, "%s: must be an object", map_name);
    }
    json_object_foreach(map, name, value)
    {
        if (status == 0 && ends_with_token(name) && (json_is_string(value) || json_is_object(value))) {
            json_t *token =
                json_is_string(value) ? json_incref(value) : token_make(value, 1, map_name, name, err);
            status = token == NULL ? -1 : json_object_set_new(r->named, name, token) < 0 ? no_memory(err) : 0;
        } else if (status == 0 && ends_with_token(name) && json_is_null(value)) {
            json_object_del(r->named, name);
        } else if (status == 0 && ends_with_token(name)) {
            status = err_set(err, ERR_INVALID, "%s: %.60s must be a text or an object", map_name, name);
        }
    }
    const char *key;
    const json_t *extra = extra_of(map, &key);
    if (status == 0) {
        status = extra_read(r, extra, map_name, key, err);
    }
    json_decref(map);
    return status;
}

/* ---- tokens that are added ---- */

static int compare_ids(const void *a, const void *b)
{
    json_int_t x = json_integer_value(json_object_get(*(json_t *const *)a, "id"));
    json_int_t y = json_integer_value(json_object_get(*(json_t *const *)b, "id"));
    return (x > y) - (x < y);
}

/* 'tokens' (borrowed, with their ids) into r->decoder, in the order of their ids. */
static int decoder_sort(struct reading *r, json_t *tokens, struct err *err)
{
    size_t count = json_array_size(tokens);
    json_t **order = calloc(count + 1, sizeof(*order));
    int status = order == NULL ? no_memory(err) : 0;
    for (size_t i = 0; i < count && status == 0; i++) {
        order[i] = json_array_get(tokens, i);
    }
    if (status == 0 && count > 0) {
        qsort(order, count, sizeof(*order), compare_ids);
    }
    for (size_t i = 0; i < count && status == 0; i++) {
        status = json_array_append(r->decoder, order[i]) < 0 ? no_memory(err) : 0;
    }
    free(order);
    return status;
}

static int decoder_read(struct reading *r, const json_t *decoder, struct err *err)
{
    const char *id;
    json_t *value;
    json_t *tokens = json_array();
    int status = tokens == NULL ? no_memory(err) : 0;
    if (!json_is_object(decoder)) {
        status = err_set(err, ERR_INVALID, "%s: added_tokens_decoder must be an object", config_name);
    }
    json_object_foreach((json_t *)decoder, id, value)
    {
        char *end = NULL;
        long number = strtol(id, &end, 10);
        if (status == 0 && (*id == '\0' || *end != '\0' || number < 0 || number > INT32_MAX)) {
            status = err_set(err, ERR_INVALID, "%s: added_tokens_decoder: \"%.40s\" is no token id",
                             config_name, id);
        }
        if (status == 0 && !json_is_object(value)) {
            status = err_set(err, ERR_INVALID, "%s: added_tokens_decoder: \"%.40s\" must be an object",
                             config_name, id);
        }
        json_t *token = status == 0 ? token_make(value, -1, config_name, "added_tokens_decoder", err) : NULL;
        if (token == NULL || json_object_set_new(token, "id", json_integer(number)) < 0 ||
            json_array_append_new(tokens, token) < 0) {
            status = status < 0 || token == NULL ? -1 : no_memory(err);
        }
    }
    if (status == 0) {
        status = decoder_sort(r, tokens, err);
    }
    json_decref(tokens);
    return status;
}

/* added_tokens.json: {text: id}. A text that is named is special. */
static int added_read(struct reading *r, const struct tokenizer_file *file, struct err *err)
{
    const char *text;
    json_t *value;
    json_t *special = json_array();
    json_t *tokens = json_array();
    json_t *added =
        file->size > 0 ? hub_json_parse(file->text, file->size, FILE_JSON_DEPTH, err) : json_object();
    int status = added == NULL                       ? err_wrap(err, "%s", added_name)
                 : special == NULL || tokens == NULL ? no_memory(err)
                                                     : 0;
    if (status == 0 && !json_is_object(added)) {
        status = err_set(err, ERR_INVALID, "%s: must be an object of token ids", added_name);
    }
    json_object_foreach(r->named, text, value)
    {
        status = status == 0 && is_standard(text) && json_array_append(special, value) < 0 ? no_memory(err)
                                                                                           : status;
    }
    json_object_foreach(added, text, value)
    {
        if (status == 0 && !json_is_integer(value)) {
            status = err_set(err, ERR_INVALID, "%s: \"%.60s\" has no token id", added_name, text);
        }
        json_t *content = json_string(text);
        bool named = token_find(special, text) != NULL || token_find(r->extra, text) != NULL;
        json_t *token =
            status == 0 && content != NULL ? token_make(content, named, added_name, text, err) : NULL;
        if (token == NULL || json_object_set(token, "id", value) < 0 ||
            json_array_append_new(tokens, token) < 0) {
            status = status < 0 || token == NULL ? -1 : no_memory(err);
        }
        json_decref(content);
    }
    if (status == 0) {
        status = decoder_sort(r, tokens, err);
    }
    json_decref(added);
    json_decref(special);
    json_decref(tokens);
    return status;
}

/* A named or further token that the files hold with flags stands with these. */
static json_t *token_known(const struct reading *r, json_t *token)
{
    const char *content = content_of(token);
    json_t *known = token_find(r->decoder, content);
    if (known == NULL && json_object_get(r->config, "added_tokens_decoder") == NULL) {
        known = token_find(r->list, content);
    }
    return known != NULL ? known : token;
}

/* Put a token that is special where it is not there yet ('again': whether or not), as special. */
static int special_put(struct reading *r, json_t *token, bool again, struct err *err)
{
    if (!again && token_find(r->list, content_of(token)) != NULL) {
        return 0;
    }
    json_t *made =
        json_is_string(token) ? token_make(token, 1, config_name, "special tokens", err) : json_incref(token);
    int status = made == NULL ? -1 : token_put(r, made, true, err);
    json_decref(made);
    return status;
}

static int tokens_add(struct reading *r, struct err *err)
{
    const char *name;
    json_t *token;
    size_t i;
    json_array_foreach(r->decoder, i, token)
    {
        if (token_put(r, token, false, err) < 0) {
            return -1;
        }
    }
    for (int again = 0; again < 2; again++) {
        json_object_foreach(r->named, name, token)
        {
            if (special_put(r, token_known(r, token), again, err) < 0) {
                return -1;
            }
        }
        json_array_foreach(r->extra, i, token)
        {
            if (special_put(r, token, again, err) < 0) {
                return -1;
            }
        }
    }
    return 0;
}

/* ---- templates and switches ---- */

static int template_put(json_t *templates, const char *name, const json_t *text, struct err *err)
{
    if (name == NULL || !json_is_string(text)) {
        return err_set(err, ERR_INVALID,
                       "%s: chat_template: each template of several needs a name and a text", config_name);
    }
    return json_object_set(templates, name, (json_t *)text) < 0 ? no_memory(err) : 0;
}

static int templates_read(const struct reading *r, const struct tokenizer_files *files, json_t *templates,
                          struct err *err)
{
    const char *name;
    json_t *value;
    size_t i;
    json_t *own = json_object_get(r->config, "chat_template");
    if (files->templates != NULL && json_object_size(files->templates) > 0) {
        return json_object_update(templates, (json_t *)files->templates) < 0 ? no_memory(err) : 0;
    }
    if (json_is_string(own)) {
        return template_put(templates, "default", own, err);
    }
    json_array_foreach(own, i, value)
    {
        if (template_put(templates, json_string_value(json_object_get(value, "name")),
                         json_object_get(value, "template"), err) < 0) {
            return -1;
        }
    }
    json_object_foreach(own, name, value)
    {
        if (template_put(templates, name, value, err) < 0) {
            return -1;
        }
    }
    return own == NULL || json_is_null(own) || json_is_array(own) || json_is_object(own)
               ? 0
               : err_set(err, ERR_INVALID, "%s: chat_template must be a text, a list or an object",
                         config_name);
}

/* Switches that change ids in transformers and are not done here. */
static int switches_read(const struct reading *r, struct err *err)
{
    static const char *const undone[] = {"split_special_tokens", "fix_mistral_regex"};
    for (size_t i = 0; i < sizeof(undone) / sizeof(undone[0]); i++) {
        const json_t *value = json_object_get(r->config, undone[i]);
        if (value != NULL && !json_is_false(value)) {
            return err_set(err, ERR_UNSUPPORTED, "%s: %s is not done here but as false", config_name,
                           undone[i]);
        }
    }
    return 0;
}

static int special_tell(const struct reading *r, struct tokenizer_names *names, struct err *err)
{
    const char *name;
    json_t *token;
    json_object_foreach(r->named, name, token)
    {
        json_t *text = json_is_object(token) ? json_object_get(token, "content") : token;
        if (json_object_set(names->special, name, text) < 0) {
            return no_memory(err);
        }
    }
    return 0;
}

/* tokenizer_class, which decides before all else. */
static int class_apply(struct reading *r, const struct tokenizer_files *files, json_t *root,
                       json_t **defaults, struct err *err)
{
    const json_t *said = json_object_get(r->config, "tokenizer_class");
    const struct tokenizer_class *class;
    if (said != NULL && !json_is_null(said) && !json_is_string(said)) {
        return err_set(err, ERR_INVALID, "%s: tokenizer_class must be a text", config_name);
    }
    const char *declared = json_is_string(said) ? json_string_value(said) : files->config_class;
    if (tokenizer_class_find(declared, files->model_type, root, &class, err) < 0) {
        return -1;
    }
    if (class == NULL) {
        return 0;
    }
    *defaults = tokenizer_class_defaults(class);
    return *defaults == NULL ? no_memory(err) : tokenizer_class_build(class, r->config, root, err);
}

static int reading_run(struct reading *r, const struct tokenizer_files *files, json_t *root,
                       struct tokenizer_names *names, struct err *err)
{
    const json_t *decoder = json_object_get(r->config, "added_tokens_decoder");
    json_t *defaults = NULL;
    if (root != NULL && class_apply(r, files, root, &defaults, err) < 0) {
        return -1;
    }
    int status = config_names(r, defaults, err);
    json_decref(defaults);
    if (status == 0 && decoder == NULL) {
        status = map_names(r, &files->special_map, err);
    }
    if (status == 0) {
        status = decoder != NULL ? decoder_read(r, decoder, err) : added_read(r, &files->added, err);
    }
    if (status < 0 || switches_read(r, err) < 0 || special_tell(r, names, err) < 0 ||
        templates_read(r, files, names->templates, err) < 0) {
        return -1;
    }
    return root != NULL ? tokens_add(r, err) : 0;
}

int tokenizer_files_read(const struct tokenizer_files *files, json_t *root, struct tokenizer_names *names,
                         struct err *err)
{
    *names = (struct tokenizer_names){.special = json_object(), .templates = json_object()};
    struct reading r = {.named = json_object(), .extra = json_array(), .decoder = json_array()};
    r.config = files->config.size > 0
                   ? hub_json_parse(files->config.text, files->config.size, FILE_JSON_DEPTH, err)
                   : json_object();
    int status = 0;
    if (r.config == NULL) {
        status = err_wrap(err, "%s", config_name);
    } else if (!json_is_object(r.config)) {
        status = err_set(err, ERR_INVALID, "%s: must be an object", config_name);
    } else if (names->special == NULL || names->templates == NULL || r.named == NULL || r.extra == NULL ||
               r.decoder == NULL) {
        status = no_memory(err);
    }
    if (status == 0 && root != NULL) {
        r.list = json_object_get(root, "added_tokens");
        if (r.list == NULL || json_is_null(r.list)) {
            r.list = json_array();
            status = json_object_set_new(root, "added_tokens", r.list) < 0 ? no_memory(err) : 0;
        }
    }
    if (status == 0) {
        status = reading_run(&r, files, root, names, err);
    }
    json_decref(r.config);
    json_decref(r.named);
    json_decref(r.extra);
    json_decref(r.decoder);
    return status;
}
