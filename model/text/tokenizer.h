/* A BPE tokenizer is read from Hugging Face's tokenizer.json, a SentencePiece tokenizer.model or GGUF
 * metadata.
 *
 * Encoding cuts special and added tokens out of the text, normalises the rest, splits it by the
 * pre-tokeniser's pattern, and merges bytes or characters within each piece by rank (Sennrich et al., "Neural
 * Machine Translation of Rare Words with Subword Units", 2016). There are two kinds. Byte-level tokenizers
 * (GPT-2, Llama 3, Qwen, SmolLM, OLMo) begin merging with bytes. SentencePiece's tokenizers (Kudo &
 * Richardson, 2018; Llama 2, Mistral, Gemma, Phi-3) begin with characters, write a space as U+2581, and turn
 * a character without a token into the tokens of its bytes. Ids are exactly those of Hugging Face's
 * `tokenizers`; any other kind of model, normaliser, pre-tokeniser or decoder is refused by name
 * (ERR_UNSUPPORTED). A piece of n bytes costs O(n log n) time; without a pre-tokeniser (Gemma) a whole text
 * is one piece.
 *
 * A tokenizer is immutable once open and may be used by many threads at once: each call of an encoding
 * function takes a scratch of its own. Token ids are int32, 0 <= id < vocab.
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
    TOKENIZER_PLAIN = 0, /* encodes the text alone; special tokens inside it are recognised */
    /* puts the tokens before the text that the model's own tokenizer puts there */
    TOKENIZER_ADD_BEGIN = 1,
    /* puts the tokens behind the text that the model's own tokenizer puts there */
    TOKENIZER_ADD_END = 2,
    TOKENIZER_ADD_SPECIAL = 3, /* TOKENIZER_ADD_BEGIN and TOKENIZER_ADD_END */
    /* a special token such as "<|im_end|>" inside the text is read as plain text */
    TOKENIZER_IGNORE_SPECIAL = 4,
    /* Places of tokens are those of the tokenizers library: they leave out spaces where a post_processor's
     * trim_offsets does, and are too early behind characters that have no token and vanish. */
    TOKENIZER_LIBRARY_PLACES = 8
};

/* Open the tokenizer of an open model: tokenizer.json or tokenizer.model in its folder, else its GGUF
 * metadata. ERR_NOT_FOUND when the model has none; data that already are token ids need none. Returns a new
 * tokenizer: tokenizer_destroy(). */
int tokenizer_open(struct model *model, struct tokenizer **tokenizer, struct err *err);

/* Make a tokenizer from the bytes of tokenizer.json and of tokenizer_config.json (size 0: there is none),
 * which names bos, eos and the chat template. Both are borrowed for the call. */
int tokenizer_from_json(const char *tokenizer_json, size_t size, const char *config_json, size_t config_size,
                        struct tokenizer **tokenizer, struct err *err);

/* Make this text, which is copied, the tokenizer's only chat template. Call it before other threads use the
 * tokenizer. */
int tokenizer_give_template(struct tokenizer *tokenizer, const char *text, struct err *err);

/* Make a tokenizer from GGUF metadata (tokenizer.ggml.*), which is borrowed for the call. */
int tokenizer_from_gguf(const struct gguf *gguf, struct tokenizer **tokenizer, struct err *err);

void tokenizer_destroy(struct tokenizer *tokenizer);

/* Append the ids of 'text' (UTF-8, size bytes, NULs allowed) to 'ids'. Errors: ERR_INVALID with the byte
 * offset where the text is not UTF-8; ERR_TOO_BIG beyond 1 GiB; ERR_NOMEM. An error leaves 'ids' unchanged.
 */
int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t size, unsigned flags,
                     struct ids *ids, struct err *err);

/* Encode as tokenizer_encode() does, and append for each id the byte offsets of the part of 'text' that it
 * stands for to 'begins' and 'ends'. The places are the tokenizers library's offsets, which count characters
 * there: they hold whole characters, so the tokens of one character's bytes have the same place, and a prefix
 * that was put in has the place of the character behind it. */
int tokenizer_encode_placed(const struct tokenizer *tokenizer, const char *text, size_t size, unsigned flags,
                            struct ids *ids, struct ids *begins, struct ids *ends, struct err *err);

/* Append the text of 'ids' to 'text', as the model's own decoder makes it. Bytes that are not valid UTF-8
 * become U+FFFD: in a byte-level tokenizer as many as Python's and Rust's lossy decoding make; with byte
 * fallback, one for each byte of a run that is invalid as a whole. skip_special leaves out special tokens.
 * An id outside the vocabulary is left out, as in `tokenizers`. */
int tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t count, bool skip_special,
                     struct buf *text, struct err *err);

/* Returns the number of ids, which is the largest id + 1. */
uint32_t tokenizer_vocab(const struct tokenizer *tokenizer);
/* These functions return the id of the token that begins a text, and of the one that ends it; -1 when the
 * model names none. */
int32_t tokenizer_bos(const struct tokenizer *tokenizer);
int32_t tokenizer_eos(const struct tokenizer *tokenizer);
/* Returns the bytes of a token, raw ones in a byte-level tokenizer and not NUL-terminated; NULL for an id
 * outside the vocabulary. Borrowed until destroy. */
const char *tokenizer_token_text(const struct tokenizer *tokenizer, int32_t id, size_t *size);
/* Returns the id of a token by its exact text ("<|im_end|>"), or -1. */
int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *text, size_t size);
/* Returns true when the id is a special token. */
bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id);
/* Returns the chat template that came with the tokenizer (Jinja text), or NULL. Borrowed until destroy. */
const char *tokenizer_chat_template(const struct tokenizer *tokenizer);
/* Returns the chat template of that name ("default", "tool_use" …), or NULL. Borrowed until destroy. */
const char *tokenizer_template(const struct tokenizer *tokenizer, const char *name);
/* Returns the special tokens that a chat template may name (bos_token, pad_token …): name -> text, as
 * transformers' special_tokens_map has them. Borrowed until destroy. */
const json_t *tokenizer_special_tokens(const struct tokenizer *tokenizer);

#endif
