/* ID tokens: what an issuer signed (JWS compact serialization, RFC 7515, with the algorithms of RFC 7518) is
 * compared with its keys (JWK set, RFC 7517), and its claims with what was asked (RFC 7519; OpenID Connect
 * Core 1.0, section 3.1.3.7).
 *
 * RS256, RS384, RS512, PS256, ES256 and ES384 are known. "none" and all that is signed by a shared secret
 * (HS256 …) are refused, whatever the keys say. Pure: the time is passed in. Any thread.
 */
#ifndef MOTLEY_API_PEOPLE_JWT_H
#define MOTLEY_API_PEOPLE_JWT_H

#include <jansson.h>
#include <stdint.h>

#include "common/err.h"

enum { JWT_BYTES_MAX = 65536, JWT_SKEW_S = 60 /* by which clocks may differ */ };

struct jwt_asked {
    const char *issuer, *client_id;
    const char *nonce; /* NULL: none was sent (device flow) */
    int64_t now_s;     /* seconds since 1970 */
};

/* Checks the token's signature by the key of `keys` ({"keys": [JWK]}) that its header names. *claims becomes
 * new. ERR_NOT_FOUND: no key of the set is meant, so it may have changed since; ERR_DENIED: any other fault,
 * named. */
int jwt_verify(const char *token, const json_t *keys, json_t **claims, struct err *err);

/* Checks iss, aud, azp, exp, nbf, iat, nonce and sub. ERR_DENIED names the first that is wrong. */
int jwt_check(const json_t *claims, const struct jwt_asked *asked, struct err *err);

#endif
