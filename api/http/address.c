#include "api/http/address.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>

struct address_count {
    uint8_t key[ADDRESS_BYTES]; /* must come first, since compare() reads only the key */
    int count;
};

void address_key(const uint8_t address[ADDRESS_BYTES], uint8_t key[ADDRESS_BYTES])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    memcpy(key, address, ADDRESS_BYTES);
    if (memcmp(address, mapped, sizeof(mapped)) != 0)
        memset(key + 8, 0, 8);
}

static int address_compare(const void *a, const void *b)
{
    return memcmp(a, b, ADDRESS_BYTES);
}

bool address_take(struct address_counts *counts, const uint8_t address[ADDRESS_BYTES], int most)
{
    struct address_count *fresh = calloc(1, sizeof(*fresh));
    if (!fresh)
        return false;
    address_key(address, fresh->key);
    struct address_count **node = tsearch(fresh, &counts->root, address_compare);
    struct address_count *found = node ? *node : NULL;
    if (found != fresh)
        free(fresh);
    if (!found || found->count >= most)
        return false;
    found->count++;
    return true;
}

void address_release(struct address_counts *counts, const uint8_t address[ADDRESS_BYTES])
{
    struct address_count wanted = {.count = 0};
    address_key(address, wanted.key);
    struct address_count **node = tfind(&wanted, &counts->root, address_compare),
                         *found = node ? *node : NULL;
    if (!found || --found->count > 0)
        return;
    tdelete(found, &counts->root, address_compare);
    free(found);
}
