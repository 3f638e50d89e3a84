/* A scratch is the memory that one call of an encoding function works in. A tokenizer keeps idle scratches
 * for later calls. */
#ifndef MOTLEY_MODEL_TEXT_TOKENIZER_SCRATCH_H
#define MOTLEY_MODEL_TEXT_TOKENIZER_SCRATCH_H

#include "model/text/split.h"
#include "model/text/text_steps.h"

enum {
    ENCODE_BYTES_MAX = 1 << 30,
    CACHE_SLOTS = 8192,  /* pieces whose ids a scratch remembers: 8192 entries of 72 bytes are 576 KiB */
    CACHE_PIECE = 28,    /* bytes of the longest piece that is remembered */
    CACHE_IDS = 8,       /* most ids of a piece that is remembered */
    SYMBOLS_KEPT = 65536 /* symbols; memory for more is released after the text that needed it */
};

struct cached_piece {
    uint8_t size, count; /* size 0 marks a free entry */
    char piece[CACHE_PIECE];
    uint8_t ends[CACHE_IDS]; /* byte offset in the piece at which each id ends */
    int32_t ids[CACHE_IDS];
};

/* A symbol is a byte, a character or a merged run of them in a piece. The symbols of a piece form a doubly
 * linked list by index; id < 0 marks a symbol that was merged into its left neighbour. 'end' is the byte
 * offset in the piece at which the symbol ends. */
struct symbol {
    int32_t id, previous, next, end;
};

/* A possible merge of the symbol 'left' and the one behind it. The merge of the lowest rank is done first,
 * and of equal ranks the leftmost. */
struct merge_candidate {
    uint32_t rank, merged;
    int32_t left;
};

struct encode_scratch {
    struct split_scratch *split;
    struct cached_piece *cache;
    struct symbol *symbols;
    size_t symbol_capacity;
    struct merge_candidate *heap;
    size_t heap_count, heap_capacity;
    struct text_room normal; /* the normalised text */
};

/* Returns a new scratch, or NULL with ERR_NOMEM. */
struct encode_scratch *encode_scratch_create(const struct splitter *splitter, struct err *err);
void encode_scratch_destroy(struct encode_scratch *scratch);
/* Release the memory that an unusually large text has needed. */
void encode_scratch_trim(struct encode_scratch *scratch);

#endif
