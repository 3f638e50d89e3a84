/* This file gives a tokenizer its special tokens by name, and its chat templates. */
#include <string.h>

#include "model/text/tokenizer_build.h"
#include "model/text/tokenizer_files.h"
#include "model/text/utf8.h"

int builder_special(struct tokenizer *t, const char *name, int32_t id, struct err *err)
{
    size_t size;
    const char *text = tokenizer_token_text(t, id, &size);
    if (!text || json_object_get(t->special, name) || utf8_check(text, size) != size)
        return 0;
    t->special = t->special ? t->special : json_object();
    return json_object_set_new(t->special, name, json_stringn(text, size)) < 0
               ? err_set(err, ERR_NOMEM, "out of memory for a special token")
               : 0;
}

static int32_t named_id(const struct tokenizer *t, const struct tokenizer_names *names, const char *name)
{
    const json_t *text = json_object_get(names->special, name);
    return json_string_length(text) > 0 ? tokenizer_find(t, json_string_value(text), json_string_length(text))
                                        : -1;
}

int builder_names(struct tokenizer *t, const struct tokenizer_names *names, struct err *err)
{
    const char *name;
    json_t *text;
    json_object_foreach (names->special, name, text) {
        if (json_string_length(text) > 0 && named_id(t, names, name) < 0) {
            return err_set(
                err, ERR_UNSUPPORTED,
                "%.60s \"%.60s\" is not in the vocabulary of tokenizer.model: make a tokenizer.json "
                "with transformers, AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
                name, json_string_value(text));
        }
    }
    t->bos = named_id(t, names, "bos_token");
    t->eos = named_id(t, names, "eos_token");
    json_decref(t->special);
    json_decref(t->templates);
    t->special = json_incref(names->special);
    t->templates = json_incref(names->templates);
    return 0;
}
