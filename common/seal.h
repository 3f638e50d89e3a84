/* Seals on messages between scheduler and agent: HMAC-SHA256 (RFC 2104, OpenSSL's) with the node's key.
 *
 * The HMAC covers direction ("events" or "messages"), node and body, each preceded by its 8-byte big-endian
 * length, so a message cannot be returned to its sender or taken for another node's. Redis carries the body
 * in field `m` and the seal in field `a`; it has no key, so forged messages are refused. Ids, epochs and
 * numbers in the body protect against repeating, reordering and dropping. Thread: one thread uses a seal.
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
/* Overwrites the key and frees it. NULL is a no-op. */
void seal_destroy(struct seal *seal);

/* Writes the seal of 'body' to 'out'; ERR_INTERNAL. */
int seal_make(struct seal *seal, enum seal_direction direction, const void *body, size_t size,
              uint8_t out[SEAL_SIZE], struct err *err);
/* Whether 'mac' is the seal of 'body', compared in constant time. Any 'mac_size' is allowed, also NULL with
 * 0. */
bool seal_holds(struct seal *seal, enum seal_direction direction, const void *body, size_t size,
                const void *mac, size_t mac_size);

#endif
