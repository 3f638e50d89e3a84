/* Who asks. Whatever reads or changes what people own takes one, and the statement itself decides by the
 * rules of migrations/0007_access.sql: there is no id that means everybody. How a token becomes a principal,
 * and which routes it may use, is api/people/access.h's.
 */
#ifndef MOTLEY_STORE_PRINCIPAL_H
#define MOTLEY_STORE_PRINCIPAL_H

#include <stdbool.h>
#include <stdint.h>

enum principal_kind {
    PRINCIPAL_NOBODY, /* without a token: sees nothing that has an owner */
    PRINCIPAL_USER,
    PRINCIPAL_AGENT,   /* an enrolled node */
    PRINCIPAL_SERVICE, /* one of Motley's own processes: sees everything, owns nothing */
};

enum { PRINCIPAL_NAME_BYTES = 201, PRINCIPAL_ADDRESS_BYTES = 48 };

struct principal {
    enum principal_kind kind;
    bool admin;                            /* of a user: sees and may change what others own */
    int64_t id;                            /* users.id of a user, else 0 */
    int64_t token;                         /* tokens.id, 0 without one */
    unsigned scopes;                       /* enum store_scope bits of the token */
    int32_t priority_max;                  /* of a user's jobs */
    int64_t expires_us;                    /* of the token, wall µs; 0 = never */
    char name[PRINCIPAL_NAME_BYTES];       /* the user's or the node's */
    char address[PRINCIPAL_ADDRESS_BYTES]; /* where the request came from, as text; "" unknown */
};

extern const struct principal principal_service;

/* Who may see an object beside its owner and administrators. */
enum visibility { VISIBLE_MINE, VISIBLE_GROUP, VISIBLE_EVERYONE };
const char *visibility_name(enum visibility visibility);
/* -1 where there is none of that name. */
int visibility_from_name(const char *name);

struct sharing {
    enum visibility visibility;
    const char *group; /* a group's name with VISIBLE_GROUP, else NULL; borrowed */
};

#endif
