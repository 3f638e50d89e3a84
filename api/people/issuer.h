/* An OpenID provider, asked as OpenID Connect Core 1.0 and Discovery 1.0 have it: the authorization code flow
 * (RFC 6749, section 4.1) with PKCE (RFC 7636), and the device flow (RFC 8628).
 *
 * Its document and its keys are fetched when they are first needed, kept for an hour, and its keys again when
 * a token names one that is not among them. Every answer is bounded in bytes and time, and an issuer that was
 * too slow is left alone for some seconds, so that nobody waits for another's turn; redirects are not
 * followed; whatever fails names the issuer. Addresses without TLS are this machine's alone.
 *
 * Blocking: everything but create, stop and destroy runs on the one thread of a pool, which owns the issuer.
 */
#ifndef MOTLEY_API_PEOPLE_ISSUER_H
#define MOTLEY_API_PEOPLE_ISSUER_H

#include <jansson.h>

#include "api/request/config.h"
#include "common/buf.h"
#include "common/err.h"

struct issuer;

/* `config` is borrowed until issuer_destroy. Returns new, or NULL with ERR_NOMEM. Asks nothing yet. */
struct issuer *issuer_create(const struct api_oidc *config, struct err *err);
void issuer_destroy(struct issuer *issuer);
/* Ends the request under way within a second or so with ERR_CANCELLED, and all later ones. Any thread; NULL
 * is a no-op. */
void issuer_stop(struct issuer *issuer);

/* What a sign-in is bound to. PKCE's challenge is made of the verifier (S256). */
struct issuer_sign_in {
    const char *redirect_uri, *state, *nonce, *verifier;
};
/* Appends the address at which a person's browser asks the issuer. */
int issuer_authorize(struct issuer *issuer, const struct issuer_sign_in *sign_in, struct buf *address,
                     struct err *err);

/* What is given for an ID token: the code that the browser brought, or that of a device. */
struct issuer_grant {
    const char *code, *iss; /* iss: the parameter of RFC 9207, or NULL */
    struct issuer_sign_in sign_in;
    const char *device_code; /* NULL: `code` counts */
};
enum issuer_outcome { ISSUER_FAILED = -1, ISSUER_DONE, ISSUER_PENDING, ISSUER_SLOW_DOWN };
/* Becomes ISSUER_DONE with *claims new: those of the ID token, which were checked, and where the claim of
 * names or of groups is not among them, those of the userinfo endpoint. ISSUER_PENDING and ISSUER_SLOW_DOWN:
 * the person has not answered for the device yet. ISSUER_FAILED: ERR_DENIED where the issuer or its token is
 * why, else ERR_NET, ERR_TIMEOUT or ERR_PEER. */
enum issuer_outcome issuer_redeem(struct issuer *issuer, const struct issuer_grant *grant, json_t **claims,
                                  struct err *err);

/* Begins a device flow. *answer becomes new: {"device_code","user_code","verification_uri",
 * "verification_uri_complete"?,"expires_in","interval"}. ERR_UNSUPPORTED: the issuer has none. */
int issuer_device(struct issuer *issuer, json_t **answer, struct err *err);

#endif
