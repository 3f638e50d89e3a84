/* Client addresses: the key under which an address is counted, and how many connections each address has
 * open. Loop thread. */
#ifndef MOTLEY_API_HTTP_ADDRESS_H
#define MOTLEY_API_HTTP_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>

enum { ADDRESS_BYTES = 16 };

/* Reads a numeric address, IPv4 mapped into IPv6. */
bool address_parse(const char *text, uint8_t address[ADDRESS_BYTES]);

/* Computes the key by which limits count an address: an IPv4 address (mapped into IPv6) as it is; of an IPv6
 * address the first 64 bits, since one host can choose any address within its /64. */
void address_key(const uint8_t address[ADDRESS_BYTES], uint8_t key[ADDRESS_BYTES]);

/* Open connections by address; initialise it with NULL. */
struct address_counts {
    void *root; /* root of a tree of tsearch(3) */
};

/* Counts a further connection from 'address'. Returns false when the address has 'most' connections already,
 * or without memory. */
bool address_take(struct address_counts *counts, const uint8_t address[ADDRESS_BYTES], int most);
/* Counts one connection less; call it once for each address_take that returned true. */
void address_release(struct address_counts *counts, const uint8_t address[ADDRESS_BYTES]);

#endif
