/* What one encoding at a time needs beside its tokenizer; kept by it between texts. */
#ifndef MOTLEY_MODEL_TEXT_TOKENIZER_SCRATCH_H
#define MOTLEY_MODEL_TEXT_TOKENIZER_SCRATCH_H

#include "model/text/split.h"
#include "model/text/text_steps.h"

enum {
    ENCODE_BYTES_MAX = 1 << 30,
    CACHE_SLOTS = 8192, /* pieces remembered by one scratch: 576 KiB */
    CACHE_PIECE = 28,   /* bytes of a piece worth remembering */
    CACHE_IDS = 8,
    SYMBOLS_KEPT = 65536 /* room for larger pieces is not kept between texts */
};

struct cached_piece {
    uint8_t size, count; /* size 0: free */
    char piece[CACHE_PIECE];
    uint8_t ends[CACHE_IDS]; /* where each id ends in the piece */
    int32_t ids[CACHE_IDS];
};

/* One byte or character or merged run of a piece, in a doubly linked list by index; id < 0: merged away. It
 * ends before byte 'end' of the piece. */
struct symbol {
    int32_t id, previous, next, end;
};

/* A possible merge: lowest rank first, then leftmost. */
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
    struct text_room normal; /* what normalisation makes */
};

/* NULL: ERR_NOMEM. */
struct encode_scratch *encode_scratch_create(const struct splitter *splitter, struct err *err);
void encode_scratch_destroy(struct encode_scratch *scratch);
/* Give back what an unusually large text has taken. */
void encode_scratch_trim(struct encode_scratch *scratch);

#endif
