/* Counts wrong tokens in a set-associative table of addresses. An entry holds the time at which its wrong
 * tokens are forgotten. */
#include "api/http/wrong.h"

#include <stdlib.h>
#include <string.h>

enum { SETS = 512, WAYS = 4 };
#define EACH_NS (WRONG_SECONDS_EACH * UINT64_C(1000000000))

struct wrong_entry {
    uint8_t address[WRONG_ADDRESS_BYTES];
    /* time at which no wrong token counts any more; an entry whose time has passed is free */
    uint64_t paid_ns;
    bool over;
};

struct wrong {
    struct wrong_entry entries[SETS][WAYS];
};

struct wrong *wrong_create(struct err *err)
{
    struct wrong *wrong = calloc(1, sizeof(*wrong));
    if (!wrong)
        err_set(err, ERR_NOMEM, "out of memory for the table of wrong tokens");
    return wrong;
}

void wrong_destroy(struct wrong *wrong)
{
    free(wrong);
}

/* Returns the entry of an address: the existing one, or a new one that replaces the entry with the earliest
 * time in the address's set. */
static struct wrong_entry *wrong_entry_of(struct wrong *wrong, const uint8_t key[WRONG_ADDRESS_BYTES],
                                          uint64_t now_ns)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (int i = 0; i < WRONG_ADDRESS_BYTES; i++)
        hash = (hash ^ key[i]) * UINT64_C(0x100000001b3);
    struct wrong_entry *set = wrong->entries[hash % SETS], *least = &set[0];
    for (int way = 0; way < WAYS; way++) {
        if (set[way].paid_ns > now_ns && memcmp(set[way].address, key, WRONG_ADDRESS_BYTES) == 0)
            return &set[way];
        if (set[way].paid_ns < least->paid_ns)
            least = &set[way];
    }
    *least = (struct wrong_entry){.paid_ns = now_ns};
    memcpy(least->address, key, WRONG_ADDRESS_BYTES);
    return least;
}

unsigned wrong_note(struct wrong *wrong, const uint8_t address[WRONG_ADDRESS_BYTES], uint64_t now_ns,
                    bool *first)
{
    uint8_t key[WRONG_ADDRESS_BYTES];
    address_key(address, key);
    struct wrong_entry *entry = wrong_entry_of(wrong, key, now_ns);
    uint64_t owed_ns = entry->paid_ns - now_ns + EACH_NS;
    *first = false;
    if (owed_ns <= WRONG_BURST * EACH_NS) {
        entry->paid_ns += EACH_NS;
        entry->over = false;
        return 0;
    }
    *first = !entry->over;
    entry->over = true;
    uint64_t wait_ns = owed_ns - WRONG_BURST * EACH_NS;
    return (unsigned)((wait_ns + 999999999u) / 1000000000u);
}
