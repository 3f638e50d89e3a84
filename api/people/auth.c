/* A direct-mapped cache of tokens in front of store_token_find. */
#include "api/people/auth.h"

#include "common/clock.h"
#include "common/digest.h"

#include <stdlib.h>
#include <string.h>

enum { AUTH_SLOTS = 1024, AUTH_KEEP_SECONDS = 5 };

struct auth_slot {
    uint8_t hash[32];
    uint64_t until_ns; /* 0: the slot is empty */
    bool known;
    struct principal principal;
};

struct auth {
    struct store *store;
    uint64_t forgotten; /* how often the cache was emptied */
    struct auth_slot slots[AUTH_SLOTS];
};

struct auth_query {
    struct auth *auth;
    uint64_t forgotten; /* auth->forgotten when the query began */
    uint8_t hash[32];
    store_principal_fn *done;
    void *arg;
};

struct auth *auth_create(struct store *store, struct err *err)
{
    struct auth *auth = calloc(1, sizeof(*auth));
    if (!auth)
        err_set(err, ERR_NOMEM, "out of memory for the token cache");
    else
        auth->store = store;
    return auth;
}

void auth_destroy(struct auth *auth)
{
    free(auth);
}

void auth_forget(struct auth *auth)
{
    auth->forgotten++;
    for (size_t i = 0; i < AUTH_SLOTS; i++)
        auth->slots[i].until_ns = 0;
}

static struct auth_slot *auth_slot_of(struct auth *auth, const uint8_t hash[32])
{
    return &auth->slots[(hash[0] | (unsigned)hash[1] << 8) % AUTH_SLOTS];
}

static void auth_found(void *arg, const struct err *err, const struct principal *principal)
{
    struct auth_query *query = arg;
    /* What was read before the cache was emptied may be what was revoked. */
    if ((!err || err->code == ERR_AUTH) && query->forgotten == query->auth->forgotten) {
        struct auth_slot *slot = auth_slot_of(query->auth, query->hash);
        bool wanted = principal || !slot->known || slot->until_ns <= clock_mono_ns();
        if (!wanted) { /* an unknown token does not replace a known one */
            query->done(query->arg, err, principal);
            free(query);
            return;
        }
        memcpy(slot->hash, query->hash, sizeof(slot->hash));
        slot->until_ns = clock_mono_ns() + AUTH_KEEP_SECONDS * UINT64_C(1000000000);
        slot->known = principal != NULL;
        if (principal)
            slot->principal = *principal;
    }
    query->done(query->arg, err, principal);
    free(query);
}

static const struct err nobody = {
    ERR_AUTH, "this token is not valid: unknown, expired or revoked, or its user is disabled"};

void auth_find(struct auth *auth, const uint8_t hash[32], store_principal_fn *done, void *arg)
{
    struct err err = {0};
    struct auth_slot *slot = auth_slot_of(auth, hash);
    if (slot->until_ns > clock_mono_ns() && digest_equal(slot->hash, hash, 32) &&
        !(slot->known && slot->principal.expires_us && slot->principal.expires_us <= clock_wall_us())) {
        if (slot->known)
            done(arg, NULL, &slot->principal);
        else
            done(arg, &nobody, NULL);
        return;
    }
    struct auth_query *query = calloc(1, sizeof(*query));
    if (!query) {
        err_set(&err, ERR_NOMEM, "out of memory for a token query");
        done(arg, &err, NULL);
        return;
    }
    query->auth = auth;
    query->forgotten = auth->forgotten;
    memcpy(query->hash, hash, sizeof(query->hash));
    query->done = done;
    query->arg = arg;
    if (store_token_find(auth->store, hash, auth_found, query, &err) < 0) {
        free(query);
        done(arg, &err, NULL);
    }
}

int auth_token_make(char token[65], uint8_t hash[32], struct err *err)
{
    if (random_hex(token, 32, err) < 0)
        return -1;
    return digest_sha256(token, strlen(token), hash, err);
}
