/* This file opens the tokenizer of a model from the files of its folder, or from its GGUF metadata. */
#include <string.h>

#include "model/files/gguf.h"
#include "model/files/hub_json.h"
#include "model/shape/tensors.h"
#include "model/text/tokenizer.h"
#include "model/text/tokenizer_files.h"

enum { TOKENIZER_FILE_BYTES = 256 << 20, SIDE_FILE_BYTES = 16 << 20, TEMPLATE_BYTES = 1 << 20 };

/* The contents of the files beside a tokenizer. */
struct side_files {
    struct buf config, special_map, added, model_config;
    json_t *templates, *model_document;
};

static void side_files_fini(struct side_files *side)
{
    buf_fini(&side->config);
    buf_fini(&side->special_map);
    buf_fini(&side->added);
    buf_fini(&side->model_config);
    json_decref(side->templates);
    json_decref(side->model_document);
}

/* Read a file that may be absent; 'out' then stays empty. */
static int optional_file(struct model_source *source, const char *name, struct buf *out, struct err *err)
{
    out->limit = SIDE_FILE_BYTES;
    return model_source_find(source, name) < 0 ? 0
                                               : model_source_read_file(source, name, out->limit, out, err);
}

/* Put the text of a template's file into 'templates' under 'name'. */
static int template_file(struct model_source *source, const char *file, const char *name, size_t name_size,
                         json_t *templates, struct err *err)
{
    struct buf text = {.limit = TEMPLATE_BYTES};
    int status = model_source_read_file(source, file, text.limit, &text, err);
    json_t *value = status == 0 ? json_stringn(buf_str(&text), text.size) : NULL;
    if (status == 0 && !value)
        status = err_set(err, ERR_INVALID, "%s is not valid UTF-8", file);
    else if (status == 0 && json_object_setn_new_nocheck(templates, name, name_size, value) < 0)
        status = err_set(err, ERR_NOMEM, "out of memory for a chat template");
    buf_fini(&text);
    return status;
}

/* Read chat_template.jinja and the templates of additional_chat_templates/, whose names in a source are those
 * of source.h (MODEL_TEMPLATES_PREFIX). */
static int template_files(struct model_source *source, json_t *templates, struct err *err)
{
    static const char prefix[] = MODEL_TEMPLATES_PREFIX, ending[] = ".jinja";
    if (model_source_find(source, "chat_template.jinja") >= 0 &&
        template_file(source, "chat_template.jinja", "default", 7, templates, err) < 0) {
        return -1;
    }
    for (uint32_t i = 0; i < model_source_file_count(source); i++) {
        const char *name = model_source_file(source, i)->name;
        const size_t size = strlen(name), around = sizeof(prefix) + sizeof(ending) - 2;
        if (size > around && memcmp(name, prefix, sizeof(prefix) - 1) == 0 &&
            strcmp(name + size - sizeof(ending) + 1, ending) == 0 &&
            template_file(source, name, name + sizeof(prefix) - 1, size - around, templates, err) < 0) {
            return -1;
        }
    }
    return 0;
}

static int side_files_read(struct model_source *source, struct side_files *side,
                           struct tokenizer_files *files, struct err *err)
{
    side->templates = json_object();
    if (!side->templates)
        return err_set(err, ERR_NOMEM, "out of memory for a tokenizer's files");
    if (optional_file(source, "tokenizer_config.json", &side->config, err) < 0 ||
        optional_file(source, "special_tokens_map.json", &side->special_map, err) < 0 ||
        optional_file(source, "added_tokens.json", &side->added, err) < 0 ||
        optional_file(source, "config.json", &side->model_config, err) < 0 ||
        template_files(source, side->templates, err) < 0) {
        return -1;
    }
    if (side->model_config.size > 0) {
        side->model_document = hub_json_parse(buf_str(&side->model_config), side->model_config.size, 64, err);
        if (!side->model_document)
            return err_wrap(err, "config.json");
    }
    *files = (struct tokenizer_files){
        .config = {buf_str(&side->config), side->config.size},
        .special_map = {buf_str(&side->special_map), side->special_map.size},
        .added = {buf_str(&side->added), side->added.size},
        .templates = side->templates,
        .model_type = json_string_value(json_object_get(side->model_document, "model_type")),
        .config_class = json_string_value(json_object_get(side->model_document, "tokenizer_class"))};
    return 0;
}

/* Refuse an added_tokens.json that adds tokens to tokenizer.model, which is read alone. */
static int check_nothing_added(const struct tokenizer_files *files, struct err *err)
{
    json_t *added =
        files->added.size > 0 ? hub_json_parse(files->added.text, files->added.size, 8, err) : NULL;
    if (files->added.size > 0 && !added)
        return err_wrap(err, "added_tokens.json");
    const size_t count = json_object_size(added);
    json_decref(added);
    return count == 0
               ? 0
               : err_set(err, ERR_UNSUPPORTED,
                         "added_tokens.json adds tokens to tokenizer.model, which is read alone: make a "
                         "tokenizer.json with transformers, "
                         "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)");
}

int tokenizer_open_source(struct model_source *source, struct tokenizer **tokenizer, struct err *err)
{
    const bool json = model_source_find(source, "tokenizer.json") >= 0;
    struct buf text = {.limit = TOKENIZER_FILE_BYTES};
    struct side_files side = {.templates = NULL};
    struct tokenizer_files files;
    if (!json && model_source_find(source, "tokenizer.model") < 0) {
        return err_set(err, ERR_NOT_FOUND,
                       "the model has no tokenizer.json and no tokenizer.model, and a vocab.json alone is "
                       "not read: make "
                       "one with transformers, AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)");
    }
    int status =
        model_source_read_file(source, json ? "tokenizer.json" : "tokenizer.model", text.limit, &text, err);
    if (status == 0)
        status = side_files_read(source, &side, &files, err);
    if (status == 0 && json) {
        status = tokenizer_from_files(buf_str(&text), text.size, &files, tokenizer, err);
    } else if (status == 0) { /* Llama 2, Mistral and Gemma were first published without tokenizer.json */
        status = check_nothing_added(&files, err);
        status = status < 0 ? -1 : tokenizer_from_pieces(text.data, text.size, &files, tokenizer, err);
    }
    buf_fini(&text);
    side_files_fini(&side);
    return status;
}

int tokenizer_open(struct model *model, struct tokenizer **tokenizer, struct err *err)
{
    const struct gguf *gguf = model_get_gguf(model);
    if (tokenizer_open_source(model_get_source(model), tokenizer, err) == 0)
        return 0;
    if (err->code != ERR_NOT_FOUND || !gguf)
        return -1;
    err_clear(err);
    return tokenizer_from_gguf(gguf, tokenizer, err);
}
