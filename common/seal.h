/* A seal on a message between scheduler and agent: HMAC-SHA256 with the node's key (RFC 2104, OpenSSL's).
 *
 * What is sealed: an 8-byte big-endian length and the bytes of each of direction ("events" or "messages"),
 * node and body, so that a message cannot be sent back, or be taken for another node's. Redis carries the
 * body in field `m` and the seal in field `a`; it has no key, so whatever it makes up is refused. Repeating,
 * reordering and dropping is left to ids, epochs and numbers in the body. Thread: one seal, one thread.
 */
#ifndef MOTLEY_COMMON_SEAL_H
#define MOTLEY_COMMON_SEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

enum { SEAL_KEY_SIZE = 32, SEAL_SIZE = 32 };

enum seal_direction { SEAL_EVENTS /* agent to scheduler */, SEAL_MESSAGES /* scheduler to agent */ };

struct seal; /* one node's key */

/* The key is copied. Returns new; ERR_NOMEM, ERR_INTERNAL. */
struct seal *seal_create(const uint8_t key[SEAL_KEY_SIZE], const char *node, struct err *err);
/* The key is overwritten. NULL is fine. */
void seal_destroy(struct seal *seal);

/* Writes the seal of 'body' to 'out'; ERR_INTERNAL. */
int seal_make(struct seal *seal, enum seal_direction direction, const void *body, size_t size,
              uint8_t out[SEAL_SIZE], struct err *err);
/* Whether 'mac' is the seal of 'body', compared in constant time. Any 'mac_size', NULL with 0, is fine. */
bool seal_holds(struct seal *seal, enum seal_direction direction, const void *body, size_t size,
                const void *mac, size_t mac_size);

#endif
