/* SHA-256, hex, constant-time comparison and random bytes (OpenSSL). Thread: one digest, one thread. */
#ifndef MOTLEY_COMMON_DIGEST_H
#define MOTLEY_COMMON_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

enum { DIGEST_SIZE = 32, DIGEST_HEX_SIZE = 65 /* with the NUL */ };

struct digest; /* an incremental SHA-256 */

/* Returns new; ERR_NOMEM. */
struct digest *digest_create(struct err *err);
void digest_destroy(struct digest *digest);
/* Take 'size' more bytes. */
int digest_update(struct digest *digest, const void *data, size_t size, struct err *err);
/* Writes the 32 bytes and starts anew. */
int digest_final(struct digest *digest, uint8_t out[DIGEST_SIZE], struct err *err);

/* Of 'size' bytes at once, as bytes or as hex. */
int digest_sha256(const void *data, size_t size, uint8_t out[DIGEST_SIZE], struct err *err);
/* The same as 64 hex digits and a NUL. */
int digest_sha256_hex(const void *data, size_t size, char out[DIGEST_HEX_SIZE], struct err *err);

/* Lower-case hex: writes 2*size characters and a NUL. */
void digest_hex(const uint8_t *data, size_t size, char *out);
/* Exactly 2*size hex digits (either case) and then a NUL, into 'out'. Returns 0, or -1 if 'text' is anything
 * else. */
int digest_unhex(const char *text, uint8_t *out, size_t size);

/* Equal, in time that depends on size alone. */
bool digest_equal(const void *a, const void *b, size_t size);

/* Cryptographic random bytes; ERR_INTERNAL when the system has none. */
int random_bytes(void *out, size_t size, struct err *err);
/* 'bytes' (at most 64) random bytes as hex: writes 2*bytes characters and a NUL. */
int random_hex(char *out, size_t bytes, struct err *err);

#endif
