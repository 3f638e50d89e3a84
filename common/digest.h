/* SHA-256, hex, constant-time comparison and random bytes (OpenSSL). Thread: one thread uses a digest. */
#ifndef MOTLEY_COMMON_DIGEST_H
#define MOTLEY_COMMON_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

enum { DIGEST_SIZE = 32, DIGEST_HEX_SIZE = 65 /* 64 digits and the NUL */ };

struct digest; /* an incremental SHA-256 */

/* Returns a new digest; NULL with ERR_NOMEM. */
struct digest *digest_create(struct err *err);
void digest_destroy(struct digest *digest);
/* Adds 'size' bytes. */
int digest_update(struct digest *digest, const void *data, size_t size, struct err *err);
/* Writes the 32 bytes of the digest and resets it. */
int digest_final(struct digest *digest, uint8_t out[DIGEST_SIZE], struct err *err);

/* Writes the SHA-256 of 'size' bytes. */
int digest_sha256(const void *data, size_t size, uint8_t out[DIGEST_SIZE], struct err *err);
/* Writes the SHA-256 of 'size' bytes as 64 hex digits and a NUL. */
int digest_sha256_hex(const void *data, size_t size, char out[DIGEST_HEX_SIZE], struct err *err);

/* Writes the name that Git gives a file of this content, the SHA-1 of "blob SIZE", a NUL and the bytes, as 40
 * hex digits and a NUL. It tells damage, not forgery. */
int digest_git_blob_hex(const void *data, size_t size, char out[41], struct err *err);

/* Writes lower-case hex: 2*size characters and a NUL. */
void digest_hex(const uint8_t *data, size_t size, char *out);
/* Reads exactly 2*size hex digits (either case) and the terminating NUL into 'out'. Returns 0, or -1 for any
 * other text. */
int digest_unhex(const char *text, uint8_t *out, size_t size);

/* Whether the bytes are equal, in a time that depends only on the size. */
bool digest_equal(const void *a, const void *b, size_t size);

/* Writes cryptographic random bytes; ERR_INTERNAL when the system has none. */
int random_bytes(void *out, size_t size, struct err *err);
/* Writes 'bytes' (at most 64) random bytes as hex: 2*bytes characters and a NUL. */
int random_hex(char *out, size_t bytes, struct err *err);

#endif
