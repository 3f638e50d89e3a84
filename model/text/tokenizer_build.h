/* The tables of a tokenizer and the functions that build them. tokenizer_json.c, tokenizer_gguf.c and
 * tokenizer_pieces.c build a tokenizer; tokenizer.c encodes and tokenizer_text.c decodes with it. Only
 * model/text/tokenizer*.c include this header.
 *
 * A builder calls builder_create(), builder_token() for every id, builder_index(), builder_merge() in the
 * order of ranks and builder_added() for each token that is cut out of texts, sets the plain fields, and ends
 * with builder_finish(). After an error it calls tokenizer_destroy(), which releases everything.
 */
#ifndef MOTLEY_MODEL_TEXT_TOKENIZER_BUILD_H
#define MOTLEY_MODEL_TEXT_TOKENIZER_BUILD_H

#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "model/text/decode_steps.h"
#include "model/text/split.h"
#include "model/text/text_steps.h"
#include "model/text/tokenizer.h"

enum {
    TOKENIZER_VOCAB_MAX = 4 << 20,
    TOKENIZER_MERGES_MAX = 8 << 20,
    TOKENIZER_ADDED_MAX = 65536,
    TOKENIZER_TOKEN_BYTES = 65535, /* bytes of one token's text: what the 16 bits of token.size hold */
    TOKENIZER_AFFIX_BYTES = 256,
    TOKENIZER_AROUND_MAX = 64, /* tokens put before a text, and as many behind it */
    TOKENIZER_SCRATCH_MAX = 16 /* idle scratches that a tokenizer keeps */
};

struct token {
    uint32_t offset; /* offset of the token's bytes in the tokenizer's arena */
    uint16_t size;
    uint8_t there; /* 0: the vocabulary has no token of this id */
    uint8_t special;
    uint8_t bpe;     /* 1: tokenizer_lookup() finds the token, so it takes part in merging */
    uint8_t renamed; /* 1: the token is decoded as its added_token's shown text, not as its own bytes */
};

/* A token that is cut out of the text before the text is split and merged. The encoder looks for the token's
 * own text, or with 'normalized' for the text that the normaliser makes of it; builder_finish() fills in
 * where that text lies in the arena. */
struct added_token {
    uint32_t id;
    uint32_t offset, size;
    /* the text that the token is decoded as; normalised if 'shown_normalized' */
    uint32_t shown_offset, shown_size;
    uint8_t shown_normalized, normalized, lstrip, rstrip, single_word, special;
};

/* A merge of two neighbouring tokens: their ids (left, right), its rank and the id of the merged token. The
 * table uses open addressing; rank UINT32_MAX marks a free slot. */
struct merge_slot {
    uint32_t left, right, rank, merged;
};

struct encode_scratch; /* defined in tokenizer_scratch.h */

struct tokenizer {
    struct token *tokens; /* [vocab] */
    uint32_t vocab, vocab_capacity;
    uint8_t *arena;
    size_t arena_size, arena_capacity;
    uint32_t *text_slots; /* hash table from a token's bytes to its id + 1; 0 marks a free slot */
    uint32_t text_mask;
    struct merge_slot *merges;
    uint32_t merge_count, merge_mask;
    bool bytes; /* true: merging begins with single bytes (byte-level BPE); false: with characters */
    int32_t byte_id[256]; /* token of each byte (its own, or "<0x0A>" and alike unless 'bytes'), or -1 */
    /* token that merging begins with for each ASCII character, or -1 where it must be looked up */
    int32_t ascii_id[128];
    struct added_token *added; /* sorted by the text that the encoder looks for */
    uint32_t added_count, added_capacity;
    /* the tokens added[added_first[b] .. added_first[b + 1]) begin with byte b */
    uint32_t added_first[257];
    struct splitter *splitter;
    struct text_steps normal;   /* the normaliser of the text between added tokens */
    struct decode_steps decode; /* the decoder; unused if 'bytes', as the tokens then are raw bytes */
    char inner_prefix[TOKENIZER_AFFIX_BYTES]; /* put before each symbol of a piece but the first */
    char end_suffix[TOKENIZER_AFFIX_BYTES];   /* put behind the last symbol of a piece */
    bool ignore_merges, byte_fallback, fuse_unknown, has_normalized;
    /* the file names an unknown token that has no id: a text that needs it is an error */
    bool unknown_absent;
    int32_t unknown; /* token of characters without a token; -1: they vanish */
    int32_t bos, eos;
    int32_t before[TOKENIZER_AROUND_MAX], after[TOKENIZER_AROUND_MAX];
    uint32_t before_count, after_count;
    /* true: the post_processor leaves spaces at a token's sides out of the token's place */
    bool trims_offsets;
    bool in_parts;        /* a TemplateProcessing has put tokens into 'before' or 'after' */
    json_t *special;      /* name of a special token -> its text */
    json_t *templates;    /* name -> Jinja text */
    pthread_mutex_t lock; /* guards 'idle' and 'idle_count' */
    bool lock_ready;
    struct encode_scratch *idle[TOKENIZER_SCRATCH_MAX];
    unsigned idle_count;
};

/* Returns a new tokenizer without tokens, or NULL with ERR_NOMEM; tokenizer_destroy() releases it. */
struct tokenizer *builder_create(struct err *err);

/* Add token 'id' with its raw bytes. An id that is taken or beyond the limit, or a text that is too long, is
 * an error. 'bpe' becomes the token's field 'bpe'. */
int builder_token(struct tokenizer *t, uint32_t id, const char *bytes, size_t size, bool bpe,
                  struct err *err);

/* Add token 'id' of a vocabulary. In a byte-level tokenizer its text is in GPT-2's byte-level alphabet
 * ("Ġthe") and is turned into raw bytes; a text with a character outside the alphabet is kept as it is and
 * takes no part in merging. */
int builder_token_vocab(struct tokenizer *t, uint32_t id, const char *text, size_t size, struct err *err);

/* Set the bytes of added token 'id' to its text, in place of another text that the vocabulary gave the id. */
int builder_token_raw(struct tokenizer *t, uint32_t id, const char *text, size_t size, struct err *err);

/* Build the index of tokens by text. Call it once, after the last token and before the first merge. */
int builder_index(struct tokenizer *t, struct err *err);

/* builder_merges_reserve() makes room for 'count' merges. builder_merge() adds the merge of a rank (0, 1, …);
 * both sides are written as in the vocabulary. */
int builder_merges_reserve(struct tokenizer *t, uint64_t count, struct err *err);
int builder_merge(struct tokenizer *t, uint32_t rank, const char *left, size_t left_size, const char *right,
                  size_t right_size, struct err *err);

/* Make the merges of a SentencePiece vocabulary: any two tokens whose texts joined are a third token merge
 * into it, and the higher the score of that token, the earlier they merge (Kudo & Richardson,
 * "SentencePiece", 2018). score[0..vocab) is indexed by token id. */
int builder_merges_by_score(struct tokenizer *t, const float *score, struct err *err);

/* Add what SentencePiece does around its merges: a space becomes U+2581, 'prefix' puts one U+2581 before the
 * text, and a character without a token becomes the tokens of its bytes with 'fallback', else the unknown
 * token, one for several in a row. */
int builder_spaces(struct tokenizer *t, bool prefix, bool fallback, struct err *err);

/* Give the tokenizer the special tokens and chat templates of 'names', whose objects it shares by reference
 * count. ERR_UNSUPPORTED names a special token that the vocabulary lacks. */
struct tokenizer_names;
int builder_names(struct tokenizer *t, const struct tokenizer_names *names, struct err *err);

/* Name the token of this id as a special token. A name that is taken stays as it is; an id without a token,
 * such as -1, changes nothing. */
int builder_special(struct tokenizer *t, const char *name, int32_t id, struct err *err);

/* Makes a token of the vocabulary an added token: wherever its text occurs it becomes this token, before the
 * rest of the text is encoded. */
int builder_added(struct tokenizer *t, const struct added_token *added, struct err *err);

/* Index the added tokens, and check that the unknown, bos and eos tokens exist. This is a builder's last
 * call. */
int builder_finish(struct tokenizer *t, struct err *err);

/* Returns the id of the token with these raw bytes among the tokens that take part in merging, or -1. */
int32_t tokenizer_lookup(const struct tokenizer *t, const uint8_t *bytes, size_t size);
/* Returns the merge of a pair of token ids, or NULL. */
const struct merge_slot *tokenizer_merge(const struct tokenizer *t, uint32_t left, uint32_t right);

#endif
