#include "hub/refusal.h"

#include <stdio.h>
#include <string.h>

/* The repository's page. */
static char *page_of(const struct hub_place *place, const struct hub_name *name, char out[1024])
{
    snprintf(out, 1024, "%s/%s%s", place->endpoint, name->dataset ? "datasets/" : "", name->id);
    return out;
}

static int say_gated(const struct hub_place *place, const struct hub_name *name, struct err *err)
{
    char page[1024];
    page_of(place, name, page);
    return *place->token
               ? err_set(
                     err, ERR_DENIED,
                     "%s is gated, and the account of the token in %.200s has no access: accept its terms at "
                     "%s, and wait where its owner grants access by hand",
                     name->id, place->token_from, page)
               : err_set(err, ERR_AUTH,
                         "%s is gated: accept its terms at %s, and set HF_TOKEN to a token of that account "
                         "(%s/settings/tokens)",
                         name->id, page, place->endpoint);
}

/* The Hub answers 401 for what is private, and also for what is not there. */
static int say_unknown(const struct hub_place *place, const struct hub_name *name, struct err *err)
{
    const char *kind = name->dataset ? "data set" : "model";
    return *place->token ? err_set(err, ERR_NOT_FOUND,
                                   "the Hub (%s) has no %s %s, or the token in %.200s may not see it: check "
                                   "the spelling and "
                                   "that token's rights",
                                   place->endpoint, kind, name->id, place->token_from)
                         : err_set(err, ERR_NOT_FOUND,
                                   "the Hub (%s) has no public %s %s: check the spelling; if it is private, "
                                   "set HF_TOKEN to a "
                                   "token that may read it",
                                   place->endpoint, kind, name->id);
}

int refusal_say(const struct hub_place *place, const struct hub_name *name, const struct http_answer *answer,
                const char *file, struct err *err)
{
    const char *code = answer->error_code;
    const struct err before = *err;
    if (strcmp(code, "GatedRepo") == 0)
        return say_gated(place, name, err);
    if (strcmp(code, "RepoNotFound") == 0)
        return say_unknown(place, name, err);
    if (strcmp(code, "RevisionNotFound") == 0)
        return err_set(err, ERR_NOT_FOUND, "%s has no revision %s: give a branch, a tag or a commit of it",
                       name->id, name->revision);
    if (strcmp(code, "EntryNotFound") == 0)
        return err_set(err, ERR_NOT_FOUND, "%s@%s has no file %s", name->id, name->revision,
                       file ? file : "");
    switch (answer->status) {
    case 401:
        return *place->token
                   ? err_set(err, ERR_AUTH,
                             "the Hub (%s) does not know the token in %.200s: put a new one there, or "
                             "remove it, since public ones need none",
                             place->endpoint, place->token_from)
                   : say_unknown(place, name, err);
    case 403:
        return err_set(err, ERR_DENIED, "the Hub (%s) forbids %s: %.200s", place->endpoint, name->id,
                       before.text);
    case 404:
        return say_unknown(place, name, err);
    case 429:
        return err_set(
            err, ERR_BUSY,
            "the Hub (%s) was asked too often from this address (429): try again in some minutes%s",
            place->endpoint, *place->token ? "" : ", or set HF_TOKEN, with which one may ask more often");
    case 0:
        return err_set(
            err, before.code,
            "could not reach the Hub for %s: %.250s; without a network here, fetch it on a machine that "
            "has one (motley model get) and give the folder",
            name->id, before.text);
    default:
        return err_set(err, before.code, "fetching %s%s%s: %.300s", name->id, file ? ": " : "",
                       file ? file : "", before.text);
    }
}
