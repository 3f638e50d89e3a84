/* Makes and releases the memory that one call of an encoding function works in. */
#include "model/text/tokenizer_scratch.h"

#include <stdlib.h>

struct encode_scratch *encode_scratch_create(const struct splitter *splitter, struct err *err)
{
    struct encode_scratch *scratch = calloc(1, sizeof(*scratch));
    if (scratch) {
        scratch->cache = calloc(CACHE_SLOTS, sizeof(*scratch->cache));
        for (int side = 0; side < 2; side++)
            scratch->normal.text[side].limit = ENCODE_BYTES_MAX;
        scratch->split = split_scratch_create(splitter, err);
        if (scratch->cache && scratch->split)
            return scratch;
        encode_scratch_destroy(scratch);
    }
    err_set(err, ERR_NOMEM, "out of memory for encoding text");
    return NULL;
}

void encode_scratch_destroy(struct encode_scratch *scratch)
{
    if (!scratch)
        return;
    split_scratch_destroy(scratch->split);
    free(scratch->cache);
    free(scratch->symbols);
    free(scratch->heap);
    text_room_fini(&scratch->normal);
    free(scratch);
}

void encode_scratch_trim(struct encode_scratch *scratch)
{
    split_scratch_trim(scratch->split);
    if (scratch->symbol_capacity > SYMBOLS_KEPT) {
        free(scratch->symbols);
        free(scratch->heap);
        scratch->symbols = NULL;
        scratch->heap = NULL;
        scratch->symbol_capacity = 0;
        text_room_fini(&scratch->normal);
    }
}
