/* The files that stand beside tokenizer.json, read as transformers 5.24 reads them.
 *
 * tokenizer_config.json may name special tokens, add tokens, change the flags of tokens, and hold chat
 * templates (which tokens are put around a text tokenizer.json says, whatever add_bos_token says here). Where
 * it has no `added_tokens_decoder`, special_tokens_map.json comes before it, and added_tokens.json adds
 * tokens. Templates in files of their own (chat_template.jinja, additional_chat_templates/NAME.jinja) replace
 * all of those in tokenizer_config.json. Some values of `tokenizer_class` make transformers build a pipeline
 * of the class's own in place of the one in tokenizer.json; tokenizer_class.h has them. What transformers
 * refuses is refused by the key's name, and so is what it does and Motley does not (split_special_tokens,
 * fix_mistral_regex).
 *
 * The source of these rules: PreTrainedTokenizerBase._from_pretrained and TokenizersBackend.__init__ of
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

/* The bytes of one file; size 0: there is none. */
struct tokenizer_file {
    const char *text;
    size_t size;
};

/* All is borrowed. */
struct tokenizer_files {
    struct tokenizer_file config;      /* tokenizer_config.json */
    struct tokenizer_file special_map; /* special_tokens_map.json */
    struct tokenizer_file added;       /* added_tokens.json */
    const json_t *templates;           /* name ("default" is chat_template.jinja) -> Jinja text; NULL: none */
    const char *model_type;            /* of config.json, or NULL */
    const char *config_class;          /* tokenizer_class of config.json, or NULL */
};

/* What the files say beside what they change in tokenizer.json. */
struct tokenizer_names {
    json_t *special;   /* name of a special token -> its text, as a chat template sees them */
    json_t *templates; /* name -> Jinja text */
};
void tokenizer_names_fini(struct tokenizer_names *names);

/* Read the files and make of 'root', tokenizer.json parsed, what transformers makes of both. 'root' NULL: a
 * SentencePiece model, of which names are told alone, and a token to be added is refused. Errors name file
 * and key: ERR_INVALID, ERR_UNSUPPORTED. 'names' is released by tokenizer_names_fini(), after errors, too. */
int tokenizer_files_read(const struct tokenizer_files *files, json_t *root, struct tokenizer_names *names,
                         struct err *err);

struct tokenizer;
/* From the bytes of tokenizer.json and of what stands beside it. Returns new: tokenizer_destroy(). */
int tokenizer_from_files(const char *tokenizer_json, size_t size, const struct tokenizer_files *files,
                         struct tokenizer **tokenizer, struct err *err);
/* From the bytes of a SentencePiece tokenizer.model (BPE; unigram and others are refused by name), likewise;
 * 'files' may be NULL. Ids are the sentencepiece library's, but that control pieces ("<s>") in a text are
 * tokens, as transformers has it. */
int tokenizer_from_pieces(const uint8_t *tokenizer_model, size_t size, const struct tokenizer_files *files,
                          struct tokenizer **tokenizer, struct err *err);
/* Open tokenizer.json or tokenizer.model of a source with all that stands beside it. ERR_NOT_FOUND when there
 * is neither. Returns new: tokenizer_destroy(). */
int tokenizer_open_source(struct model_source *source, struct tokenizer **tokenizer, struct err *err);

#endif
