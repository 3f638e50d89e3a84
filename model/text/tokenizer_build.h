/* Making a tokenizer: what tokenizer_json.c, tokenizer_gguf.c and tokenizer_pieces.c fill and tokenizer.c
 * uses. Private to model/tokenizer*.c.
 *
 * Order of use: builder_init, builder_token for every id, builder_merge in rank order, builder_added for
 * tokens that are cut out of the text, the plain fields, builder_finish. On any error builder_fini releases
 * everything.
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
    TOKENIZER_TOKEN_BYTES = 65535, /* of one token's text */
    TOKENIZER_AFFIX_BYTES = 256,
    TOKENIZER_AROUND_MAX = 64, /* tokens put before or after a text */
    TOKENIZER_SCRATCH_MAX = 16 /* idle scratches kept */
};

struct token {
    uint32_t offset; /* of its bytes in the arena */
    uint16_t size;
    uint8_t there; /* 0: no such id */
    uint8_t special;
    uint8_t bpe;     /* its bytes may come out of merges */
    uint8_t renamed; /* it is decoded as the text of its added_token, not as its own */
};

/* A token that is cut out of the text before anything else. What is looked for is its text, normalised as the
 * text is if 'normalized'; builder_finish fills offset and size of that in the arena. */
struct added_token {
    uint32_t id;
    uint32_t offset, size;
    uint32_t shown_offset, shown_size; /* what it is decoded as: normalised if 'shown_normalized' */
    uint8_t shown_normalized, normalized, lstrip, rstrip, single_word, special;
};

/* (left, right) -> rank and merged id; open addressing, rank UINT32_MAX: free. */
struct merge_slot {
    uint32_t left, right, rank, merged;
};

struct encode_scratch; /* tokenizer_scratch.h */

struct tokenizer {
    struct token *tokens; /* [vocab] */
    uint32_t vocab, vocab_capacity;
    uint8_t *arena;
    size_t arena_size, arena_capacity;
    uint32_t *text_slots; /* id + 1 by hash of a token's bytes; 0: free */
    uint32_t text_mask;
    struct merge_slot *merges;
    uint32_t merge_count, merge_mask;
    bool bytes;                /* byte-level: merges begin with bytes; else with characters */
    int32_t byte_id[256];      /* token of a single byte, of "<0x0A>" where not byte-level, or -1 */
    int32_t ascii_id[128];     /* token that a piece's symbol of one ASCII character begins as, or -1 */
    struct added_token *added; /* sorted by text */
    uint32_t added_count, added_capacity;
    uint32_t added_first[257]; /* added[added_first[b] .. added_first[b + 1]) begin with byte b */
    struct splitter *splitter;
    struct text_steps normal;   /* over what lies between added tokens */
    struct decode_steps decode; /* of texts of tokens; not of byte-level ones, which are raw bytes */
    char inner_prefix[TOKENIZER_AFFIX_BYTES]; /* put before the symbols of a piece but the first */
    char end_suffix[TOKENIZER_AFFIX_BYTES];   /* and behind the last */
    bool ignore_merges, byte_fallback, fuse_unknown, has_normalized;
    bool unknown_absent; /* an unknown token is named, and has no id */
    int32_t unknown;     /* for what has no token; -1: it vanishes */
    int32_t bos, eos;
    int32_t before[TOKENIZER_AROUND_MAX], after[TOKENIZER_AROUND_MAX];
    uint32_t before_count, after_count;
    bool trims_offsets; /* by its post_processor */
    bool in_parts;      /* a TemplateProcessing put some of them there */
    json_t *special;    /* name of a special token -> its text */
    json_t *templates;  /* name -> Jinja text */
    uint8_t digest[32];
    pthread_mutex_t lock; /* guards the idle list */
    bool lock_ready;
    struct encode_scratch *idle[TOKENIZER_SCRATCH_MAX];
    unsigned idle_count;
};

/* Returns new, or NULL. */
struct tokenizer *builder_create(struct err *err);

/* Token 'id' has these raw bytes. Errors: an id twice or beyond the limit, a text too long. */
int builder_token(struct tokenizer *t, uint32_t id, const char *bytes, size_t size, bool bpe,
                  struct err *err);

/* Token 'id' of a vocabulary. Byte-level: the text is in the byte-level alphabet of GPT-2 ("Ġthe") and turned
 * into raw bytes; one with characters outside the alphabet is kept as it is and takes no part in merging. */
int builder_token_vocab(struct tokenizer *t, uint32_t id, const char *text, size_t size, struct err *err);

/* The text of an added token: sets the token's bytes, over those it had in the vocabulary if they differ. */
int builder_token_raw(struct tokenizer *t, uint32_t id, const char *text, size_t size, struct err *err);

/* Build the index by text; call once between tokens and merges. */
int builder_index(struct tokenizer *t, struct err *err);

/* Merge of the given rank (0, 1, …): both sides as in the vocabulary. */
int builder_merges_reserve(struct tokenizer *t, uint64_t count, struct err *err);
int builder_merge(struct tokenizer *t, uint32_t rank, const char *left, size_t left_size, const char *right,
                  size_t right_size, struct err *err);

/* Merges of a SentencePiece vocabulary: any two tokens whose texts together are a third, in order of falling
 * score of the third (Kudo & Richardson, "SentencePiece", 2018). score[0..vocab). */
int builder_merges_by_score(struct tokenizer *t, const float *score, struct err *err);

/* What SentencePiece does around its merges: U+2581 for spaces, with 'prefix' one before the text, and what
 * has no token becomes its bytes' with 'fallback', else one unknown token. */
int builder_spaces(struct tokenizer *t, bool prefix, bool fallback, struct err *err);

/* Special tokens and templates as the files beside it say; shares what 'names' holds. */
struct tokenizer_names;
int builder_names(struct tokenizer *t, const struct tokenizer_names *names, struct err *err);

/* Name a special token by its id; -1: none. One that has a name keeps it. */
int builder_special(struct tokenizer *t, const char *name, int32_t id, struct err *err);

/* Token 'id', already there, is cut out of texts. */
int builder_added(struct tokenizer *t, const struct added_token *added, struct err *err);

/* Sort, check, digest. */
int builder_finish(struct tokenizer *t, struct err *err);

/* Id of a token by its raw bytes among those that take part in merging, or -1. */
int32_t tokenizer_lookup(const struct tokenizer *t, const uint8_t *bytes, size_t size);
/* Merge of a pair, or NULL. */
const struct merge_slot *tokenizer_merge(const struct tokenizer *t, uint32_t left, uint32_t right);

#endif
