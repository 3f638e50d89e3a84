/* BPE tokenizers, from Hugging Face's tokenizer.json, a SentencePiece tokenizer.model or GGUF metadata.
 *
 * Text -> special and added tokens are cut out first -> the rest is normalised, and split by the
 * pre-tokeniser's pattern -> within each piece, bytes or characters are merged by rank (Sennrich et al.,
 * "Neural Machine Translation of Rare Words with Subword Units", 2016). Two kinds: byte-level (as GPT-2,
 * Llama 3, Qwen, SmolLM, OLMo have it), where merging begins with bytes; and that of SentencePiece (Kudo &
 * Richardson, 2018; as Llama 2, Mistral, Gemma, Phi-3 have it), where it begins with characters, a space is
 * U+2581, and a character without a token becomes its bytes' tokens. Exact against Hugging Face's
 * `tokenizers`; any other kind of model, normaliser, pre-tokeniser or decoder is refused by name
 * (ERR_UNSUPPORTED). A piece of n bytes costs O(n log n): without a pre-tokeniser (Gemma) a text is one
 * piece.
 *
 * A tokenizer is immutable once open and may be used by many threads at once: encoding keeps its scratch on
 * the call. Token ids are int32, 0 <= id < vocab.
 */
#ifndef MOTLEY_MODEL_TEXT_TOKENIZER_H
#define MOTLEY_MODEL_TEXT_TOKENIZER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

struct model;
struct gguf;
struct tokenizer;

/* A growable list of token ids; zero it to begin, ids_fini() to release. */
struct ids {
    int32_t *data;
    size_t count, capacity;
};

void ids_fini(struct ids *ids);
int ids_append(struct ids *ids, const int32_t *values, size_t count, struct err *err);

enum tokenizer_flags {
    TOKENIZER_PLAIN = 0,          /* the text as it is; special tokens inside it are recognised */
    TOKENIZER_ADD_BEGIN = 1,      /* put the tokens before it that the model's own tokenizer puts there */
    TOKENIZER_ADD_END = 2,        /* and those behind it */
    TOKENIZER_ADD_SPECIAL = 3,    /* both */
    TOKENIZER_IGNORE_SPECIAL = 4, /* "<|im_end|>" inside the text is text, not a token */
    /* Places are the tokenizers library's: without spaces where a post_processor's trim_offsets leaves them
     * out, and too early behind characters that have no token and vanish. */
    TOKENIZER_LIBRARY_PLACES = 8
};

/* Open the tokenizer of an open model: tokenizer.json or tokenizer.model in its folder, else its GGUF
 * metadata. ERR_NOT_FOUND when it has none (token rows need none). Returns new: tokenizer_destroy(). */
int tokenizer_open(struct model *model, struct tokenizer **tokenizer, struct err *err);

/* From the bytes of tokenizer.json, and of tokenizer_config.json (size 0: none; it gives bos, eos and the
 * chat template). Both are borrowed for the call. */
int tokenizer_from_json(const char *tokenizer_json, size_t size, const char *config_json, size_t config_size,
                        struct tokenizer **tokenizer, struct err *err);

/* Give it this chat template as its own; copied. Before the tokenizer is shared. */
int tokenizer_give_template(struct tokenizer *tokenizer, const char *text, struct err *err);

/* From GGUF metadata (tokenizer.ggml.*). Borrowed for the call. */
int tokenizer_from_gguf(const struct gguf *gguf, struct tokenizer **tokenizer, struct err *err);

void tokenizer_destroy(struct tokenizer *tokenizer);

/* Append the ids of 'text' (UTF-8, size bytes, NULs allowed) to 'ids'. Errors: ERR_INVALID with the byte
 * offset where the text is not UTF-8; ERR_TOO_BIG beyond 1 GiB; ERR_NOMEM. On error 'ids' is as before. */
int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t size, unsigned flags,
                     struct ids *ids, struct err *err);

/* The same, and to 'begins' and 'ends', for each id, the bytes of 'text' that it stands for, as the
 * tokenizers library's offsets have them (there in characters): whole characters, so that the tokens of one
 * character's bytes have the same place; a prefix that was put in has the place of the character behind it.
 */
int tokenizer_encode_placed(const struct tokenizer *tokenizer, const char *text, size_t size, unsigned flags,
                            struct ids *ids, struct ids *begins, struct ids *ends, struct err *err);

/* Append the text of 'ids' to 'text', as the model's own decoder makes it. Bytes that are not valid UTF-8
 * become U+FFFD: byte-level, as many as Python's and Rust's lossy decoding make; with byte fallback, one for
 * each byte of the run of them. skip_special leaves out special tokens. ERR_INVALID names an id outside the
 * vocabulary. */
int tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t count, bool skip_special,
                     struct buf *text, struct err *err);

/* Number of ids (largest id + 1). */
uint32_t tokenizer_vocab(const struct tokenizer *tokenizer);
/* -1 when the model names none. */
int32_t tokenizer_bos(const struct tokenizer *tokenizer);
int32_t tokenizer_eos(const struct tokenizer *tokenizer);
/* The text of a token as the vocabulary has it, not NUL-terminated; NULL for an id outside. Borrowed until
 * destroy. */
const char *tokenizer_token_text(const struct tokenizer *tokenizer, int32_t id, size_t *size);
/* The id of a token by its exact text ("<|im_end|>"), or -1. */
int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *text, size_t size);
/* True when the id is a special token. */
bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id);
/* The chat template that came with the tokenizer (Jinja text), or NULL. Borrowed until destroy. */
const char *tokenizer_chat_template(const struct tokenizer *tokenizer);
/* The one of that name ("default", "tool_use" …) of several, or NULL. Borrowed until destroy. */
const char *tokenizer_template(const struct tokenizer *tokenizer, const char *name);
/* Name -> text of every special token that a chat template may name (bos_token, pad_token …), as
 * transformers' special_tokens_map has them. Borrowed until destroy. */
const json_t *tokenizer_special_tokens(const struct tokenizer *tokenizer);
/* SHA-256 over everything that decides the encoding (vocabulary, merges, patterns, special tokens): part of
 * the key under which encoded datasets are kept. */
void tokenizer_digest(const struct tokenizer *tokenizer, uint8_t digest[32]);

#endif
