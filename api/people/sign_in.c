/* The rules of a sign-in (sign_in.h) that need no database. */
#include "api/people/sign_in.h"

#include "api/people/session.h"

#include <stdlib.h>
#include <string.h>

enum { GROUPS_MAX = 4096, NAME_BYTES_MAX = 200 };

/* Reads the groups of a word into texts[GROUPS_MAX]. Returns their number; what is no text counts for
 * nothing. */
static size_t groups_read(const json_t *groups, const char **texts)
{
    size_t count = 0, i;
    json_t *one;
    if (json_is_string(groups))
        texts[count++] = json_string_value(groups);
    json_array_foreach (groups, i, one)
        if (json_is_string(one) && count < GROUPS_MAX)
            texts[count++] = json_string_value(one);
    return count;
}

static bool is_in(const char *const *groups, size_t count, const char *name)
{
    for (size_t i = 0; name && i < count; i++)
        if (strcmp(groups[i], name) == 0)
            return true;
    return false;
}

static bool is_allowed(const struct api_sign_in *rules, const char *const *groups, size_t count)
{
    size_t i;
    json_t *one;
    if (!rules->allowed_groups || is_in(groups, count, rules->admin_group))
        return true;
    json_array_foreach (rules->allowed_groups, i, one)
        if (is_in(groups, count, json_string_value(one)))
            return true;
    return false;
}

/* The same characters that a name may have which an administrator gives. */
static bool is_name(const char *name)
{
    const size_t size = strlen(name);
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)name[i] <= ' ' || name[i] == 0x7f || name[i] == '/')
            return false;
    return size > 0 && size <= NAME_BYTES_MAX;
}

void sign_in(struct call *call, const struct api_sign_in *rules, const struct sign_in_word *word)
{
    char address[PRINCIPAL_ADDRESS_BYTES];
    const char **groups = calloc(GROUPS_MAX, sizeof(*groups));
    const size_t count = groups ? groups_read(word->groups, groups) : 0;
    call_address(call, address);
    struct store_signed_in who = {
        .user = word->name,
        .address = address,
        .scopes = is_in(groups, count, rules->admin_group) ? SCOPES_ALL_PEOPLE : SCOPES_USER,
        .seconds = word->session ? 0 : (unsigned)rules->token_s,
        .session = word->session,
        .issuer = word->issuer,
        .subject = word->subject,
        .may_make = rules->allow_sign_up,
        .may_link = rules->linking == API_LINK_NAMES,
        .groups = rules->manage_groups ? groups : NULL,
        .group_count = count,
    };
    if (!groups)
        call_problem(call, 503, "no-memory", NULL, "out of memory for a sign-in");
    else if (!is_name(word->name))
        call_problem(
            call, 403, "denied", NULL,
            "%.200s calls you \"%.80s\", which is no name of a user: 1 to %d bytes without spaces and '/'",
            word->issuer, word->name, NAME_BYTES_MAX);
    else if (!is_allowed(rules, groups, count))
        call_problem(call, 403, "denied", NULL,
                     "%.200s is in none of the groups that may sign in here (allowed_groups in the server's "
                     "configuration)",
                     word->name);
    else
        session_sign_in(call, &who);
    free(groups);
}
