/* The files beside tokenizer.json are read as transformers 5.24 reads them.
 *
 * tokenizer_config.json may name special tokens, add tokens, change the flags of tokens, and hold chat
 * templates. It does not decide which tokens are put around a text: tokenizer.json does, whatever
 * add_bos_token says. Where tokenizer_config.json has no `added_tokens_decoder`, the members of
 * special_tokens_map.json replace its own, and added_tokens.json adds tokens. Templates in files of their own
 * (chat_template.jinja, additional_chat_templates/NAME.jinja) replace all templates of tokenizer_config.json.
 * Some values of `tokenizer_class` make transformers build a pipeline of the class's own in place of the one
 * in tokenizer.json (tokenizer_class.h). What transformers refuses is refused by the key's name, and so is
 * what transformers does and Motley does not (split_special_tokens, fix_mistral_regex).
 *
 * The source of these rules is PreTrainedTokenizerBase._from_pretrained and TokenizersBackend.__init__ of
 * transformers 5.24.
 */
#ifndef MOTLEY_MODEL_TEXT_TOKENIZER_FILES_H
#define MOTLEY_MODEL_TEXT_TOKENIZER_FILES_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "model/files/source.h"

/* The bytes of one file; size 0 means that the file is absent. */
struct tokenizer_file {
    const char *text;
    size_t size;
};

/* The files beside a tokenizer. All pointers are borrowed. */
struct tokenizer_files {
    struct tokenizer_file config;      /* tokenizer_config.json */
    struct tokenizer_file special_map; /* special_tokens_map.json */
    struct tokenizer_file added;       /* added_tokens.json */
    const json_t *templates;           /* name -> Jinja text ("default" is chat_template.jinja); NULL: none */
    const char *model_type;            /* model_type of config.json, or NULL */
    const char *config_class;          /* tokenizer_class of config.json, or NULL */
};

/* The special tokens and chat templates that the files name. */
struct tokenizer_names {
    json_t *special;   /* name of a special token -> its text, as a chat template sees it */
    json_t *templates; /* name -> Jinja text */
};
void tokenizer_names_fini(struct tokenizer_names *names);

/* Read the files, fill 'names', and change 'root', the parsed tokenizer.json, as transformers does. With
 * 'root' NULL (a SentencePiece model) only 'names' is filled. Errors name file and key: ERR_INVALID,
 * ERR_UNSUPPORTED. tokenizer_names_fini() releases 'names', after an error too. */
int tokenizer_files_read(const struct tokenizer_files *files, json_t *root, struct tokenizer_names *names,
                         struct err *err);

struct tokenizer;
/* Make a tokenizer from the bytes of tokenizer.json and of the files beside it. Returns a new tokenizer:
 * tokenizer_destroy(). */
int tokenizer_from_files(const char *tokenizer_json, size_t size, const struct tokenizer_files *files,
                         struct tokenizer **tokenizer, struct err *err);
/* Make a tokenizer from the bytes of a SentencePiece tokenizer.model in the same way. Only BPE is read;
 * unigram and other kinds are refused by name. 'files' may be NULL. Ids are those of the sentencepiece
 * library, except that control pieces ("<s>") in a text become tokens, as in transformers. */
int tokenizer_from_pieces(const uint8_t *tokenizer_model, size_t size, const struct tokenizer_files *files,
                          struct tokenizer **tokenizer, struct err *err);
/* Open tokenizer.json or tokenizer.model of a source with the files beside it. ERR_NOT_FOUND when the source
 * has neither. Returns a new tokenizer: tokenizer_destroy(). */
int tokenizer_open_source(struct model_source *source, struct tokenizer **tokenizer, struct err *err);

#endif
