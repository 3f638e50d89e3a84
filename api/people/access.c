/* Checks the permissions described in access.h. */
#include "api/people/access.h"

#include <stdio.h>
#include <string.h>

static void name_scopes(unsigned scopes, char *text, size_t size)
{
    size_t at = 0;
    text[0] = '\0';
    for (unsigned bit = 1; bit <= SCOPE_LAST && at < size; bit <<= 1)
        if ((scopes & bit) && store_scope_name(bit))
            at += (size_t)snprintf(text + at, size - at, "%s%s", at ? " or " : "", store_scope_name(bit));
}

json_t *access_scope_names(unsigned scopes)
{
    json_t *names = json_array();
    for (unsigned bit = 1; names && bit <= SCOPE_LAST; bit <<= 1)
        if ((scopes & bit) && store_scope_name(bit))
            json_array_append_new(names, json_string(store_scope_name(bit)));
    return names;
}

/* Returns the scopes that count, whatever the token's row says: an agent's token opens no route for people,
 * and a person's token none for agents. */
static unsigned access_scopes_of(const struct principal *principal)
{
    switch (principal->kind) {
    case PRINCIPAL_USER:
        return principal->admin ? SCOPES_ALL_PEOPLE : principal->scopes & SCOPES_ALL_PEOPLE;
    case PRINCIPAL_AGENT:
        return principal->scopes & SCOPE_AGENT;
    default:
        return 0;
    }
}

int access_route(const struct principal *principal, unsigned scopes, struct err *err)
{
    char wanted[160];
    if (access_scopes_of(principal) & scopes)
        return 0;
    name_scopes(scopes, wanted, sizeof(wanted));
    return err_set(err, ERR_DENIED,
                   "this token lacks the scope %s: an administrator can make one that has it", wanted);
}

int access_admin(const struct principal *principal, const char *what, struct err *err)
{
    if (principal->admin)
        return 0;
    return err_set(err, ERR_DENIED, "%s (scope %s)", what, store_scope_name(SCOPE_ADMIN));
}

int access_token(const struct principal *maker, const char *user, unsigned *scopes, int64_t *expires_us,
                 struct err *err)
{
    char lacking[160];
    unsigned own = access_scopes_of(maker);
    if (strcmp(user, maker->name) != 0 &&
        access_admin(maker, "user: only an administrator may make a token of somebody else", err) < 0)
        return -1;
    if (!*scopes)
        *scopes = SCOPES_USER & own;
    if (*scopes & ~own) {
        name_scopes(*scopes & ~own, lacking, sizeof(lacking));
        return err_set(err, ERR_DENIED, "scopes: the token you ask with lacks %s itself", lacking);
    }
    if (!*expires_us)
        *expires_us = maker->expires_us;
    if (maker->expires_us && *expires_us > maker->expires_us)
        return err_set(err, ERR_DENIED, "expires_in: the token you ask with ends before that itself");
    return 0;
}

int access_priority(const struct principal *principal, int32_t priority, struct err *err)
{
    if (priority <= principal->priority_max)
        return 0;
    return err_set(err, ERR_DENIED, "priority: %d is above %s's ceiling, which is %d", priority,
                   principal->name, principal->priority_max);
}

int64_t access_owner(const struct principal *principal)
{
    return principal->kind == PRINCIPAL_USER ? principal->id : -principal->token;
}
