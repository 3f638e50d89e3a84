/* The principal: who makes a request. Every function that reads or changes owned objects takes a principal,
 * and the SQL statement itself applies the rules of migrations/0005_access.sql. A principal without a user's
 * id (id 0) sees no object of a user, unless it is an administrator or a service.
 * api/people/access.h says how a token becomes a principal and which routes it may use.
 */
#ifndef MOTLEY_STORE_PRINCIPAL_H
#define MOTLEY_STORE_PRINCIPAL_H

#include <stdbool.h>
#include <stdint.h>

enum principal_kind {
    PRINCIPAL_NOBODY, /* a request without a token: sees nothing that has an owner */
    PRINCIPAL_USER,
    PRINCIPAL_AGENT,   /* an enrolled node */
    PRINCIPAL_SERVICE, /* one of Motley's own processes: sees everything, owns nothing */
};

enum { PRINCIPAL_NAME_BYTES = 201, PRINCIPAL_ADDRESS_BYTES = 48 };

struct principal {
    enum principal_kind kind;
    bool admin;                      /* a user who sees and may change what others own */
    int64_t id;                      /* users.id of a user, else 0 */
    int64_t token;                   /* tokens.id; 0 without a token */
    unsigned scopes;                 /* enum store_scope bits of the principal's token */
    int32_t priority_max;            /* highest priority that the user's jobs may have */
    int64_t expires_us;              /* end of the token in wall-clock µs; 0 = never */
    char name[PRINCIPAL_NAME_BYTES]; /* the user's or the node's name */
    /* address that the request came from, as text; "" when unknown */
    char address[PRINCIPAL_ADDRESS_BYTES];
};

extern const struct principal principal_service;

/* Who may see an object beside its owner and administrators. */
enum visibility { VISIBLE_MINE, VISIBLE_GROUP, VISIBLE_EVERYONE };
const char *visibility_name(enum visibility visibility);
/* Returns the visibility of this name, or -1 for an unknown name. */
int visibility_from_name(const char *name);

struct sharing {
    enum visibility visibility;
    const char *group; /* a group's name with VISIBLE_GROUP, else NULL; borrowed */
};

#endif
