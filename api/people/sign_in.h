/* Signing in by another's word: an OpenID provider's (oidc.c), or the kernel's about an account of this
 * machine (peer.c). docs/run-a-lab/people.md has the rules. */
#ifndef MOTLEY_API_PEOPLE_SIGN_IN_H
#define MOTLEY_API_PEOPLE_SIGN_IN_H

#include "api/request/app.h"

struct sign_in_word {
    const char *issuer, *subject; /* who says it, and whom that one means, for good */
    const char *name;             /* what it calls them now; "" is refused */
    const json_t *groups;         /* a text, or a list of which the texts count; NULL: none */
    bool session;                 /* for the page; else a token for programs */
};

/* Signs the person in and answers the call, if the rules let it. */
void sign_in(struct call *call, const struct api_sign_in *rules, const struct sign_in_word *word);

#endif
