/* Addresses of clients: what counts as one, and how many connections each has open. Loop thread. */
#ifndef MOTLEY_API_HTTP_ADDRESS_H
#define MOTLEY_API_HTTP_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>

enum { ADDRESS_BYTES = 16 };

/* What a limit per address counts: an IPv4 address (mapped into IPv6) itself; of IPv6 the first 64 bits, for
 * one host has a whole /64 to choose addresses from. */
void address_key(const uint8_t address[ADDRESS_BYTES], uint8_t key[ADDRESS_BYTES]);

/* Connections open by address; begin with NULL. */
struct address_counts {
    void *root; /* of a tree of tsearch(3) */
};

/* One more from 'address', unless it has 'most' already or memory is short: then false. */
bool address_take(struct address_counts *counts, const uint8_t address[ADDRESS_BYTES], int most);
/* One less: exactly once for each that was taken. The last leaves nothing behind. */
void address_release(struct address_counts *counts, const uint8_t address[ADDRESS_BYTES]);

#endif
