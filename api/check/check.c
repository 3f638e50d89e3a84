/* Shares checks among requests: the newest checks are kept in a short list and found by a digest of the
 * specification without its name. */
#include "api/check/check_private.h"

#include "common/clock.h"
#include "common/digest.h"
#include "common/json.h"

#include <stdlib.h>
#include <string.h>

enum { CHECKS_MAX = 256 };

int submits_create(struct app *app, struct submits **submits, struct err *err)
{
    *submits = calloc(1, sizeof(**submits));
    if (!*submits)
        return err_set(err, ERR_NOMEM, "out of memory for submits");
    (*submits)->app = app;
    TAILQ_INIT(&(*submits)->checks);
    return 0;
}

void submits_forget(struct submits *submits)
{
    struct spec_check *next;
    for (struct spec_check *check = TAILQ_FIRST(&submits->checks); check; check = next) {
        next = TAILQ_NEXT(check, link);
        if (!check->under_way) {
            check_free(check);
        } else {
            /* The running check answers those who wait for it. Without a key, and marked as forgotten, later
             * requests do not find it. Its class stays: it becomes that of its jobs. */
            memset(check->key, 0, sizeof(check->key));
            check->is_forgotten = true;
        }
    }
}

void submits_destroy(struct submits *submits)
{
    if (!submits)
        return;
    while (!TAILQ_EMPTY(&submits->checks))
        check_free(TAILQ_FIRST(&submits->checks));
    free(submits);
}

/* Computes the key of a check: a digest of the document without its name, of the depth, and of the asker. */
static int make_key(const struct principal *principal, json_t *document, enum check_depth depth,
                    uint8_t key[32], struct err *err)
{
    static const char letters[] = "SPXIG"; /* by enum check_depth */
    struct buf text;
    buf_init(&text, 4u << 20);
    json_t *name = json_incref(json_object_get(document, "name"));
    if (name)
        json_object_del(document, "name");
    int rc = json_print(document, true, &text, err);
    if (name)
        json_object_set_new(document, "name", name);
    if (rc == 0)
        rc = buf_printf(&text, err, "%c%lld%c", letters[depth], (long long)principal->id,
                        principal->admin ? '+' : '-');
    if (rc == 0)
        rc = digest_sha256(text.data, text.size, key, err);
    buf_fini(&text);
    return rc;
}

static struct spec_check *find(struct submits *submits, const uint8_t key[32])
{
    struct spec_check *check;
    TAILQ_FOREACH (check, &submits->checks, link)
        if (memcmp(check->key, key, 32) == 0)
            return check;
    return NULL;
}

static int make_room(struct submits *submits, struct err *err)
{
    if (submits->count < CHECKS_MAX)
        return 0;
    struct spec_check *oldest;
    TAILQ_FOREACH_REVERSE (oldest, &submits->checks, checks, link)
        if (!oldest->under_way) {
            check_free(oldest);
            return 0;
        }
    return err_set(err, ERR_BUSY, "the server has %d specifications in work, its limit", CHECKS_MAX);
}

static struct spec_check *check_create(struct submits *submits, const struct principal *principal,
                                       json_t *document, enum check_depth depth, const uint8_t key[32],
                                       struct err *err)
{
    if (make_room(submits, err) < 0)
        return NULL;
    struct spec_check *check = calloc(1, sizeof(*check));
    if (!check) {
        err_set(err, ERR_NOMEM, "out of memory for a check");
        return NULL;
    }
    STAILQ_INIT(&check->waiters);
    STAILQ_INIT(&check->followers);
    check->submits = submits;
    check->app = submits->app;
    check->principal = *principal;
    check->depth = depth;
    check->under_way = true;
    memcpy(check->key, key, 32);
    TAILQ_INSERT_HEAD(&submits->checks, check, link);
    submits->count++;
    if (spec_parse(document, &check->spec, err) < 0) {
        check_free(check);
        return NULL;
    }
    return check;
}

/* Checks the name separately, since specifications that share a check may differ in it. */
static int check_name(json_t *document, struct err *err)
{
    json_t *name = json_object_get(document, "name");
    if (!name)
        return 0;
    if (!json_is_string(name) || json_string_length(name) < 1 || json_string_length(name) >= SPEC_NAME_BYTES)
        return err_set(err, ERR_INVALID, "name: it is not a text of 1 to %d bytes", SPEC_NAME_BYTES - 1);
    return 0;
}

void check_spec(struct submits *submits, const struct principal *principal, json_t *document,
                enum check_depth depth, check_done_fn *done, void *arg)
{
    uint8_t key[32];
    struct err err = {0};
    struct check_waiter *waiter = NULL;
    if (check_name(document, &err) < 0 || make_key(principal, document, depth, key, &err) < 0) {
        done(arg, &err, NULL, NULL);
        return;
    }
    struct spec_check *check = find(submits, key);
    if (check && !check->under_way && check->until_ns > clock_mono_ns()) {
        submits->app->counters.submit_cache_hits++;
        done(arg, NULL, check->result, NULL);
        return;
    }
    if (check && !check->under_way) {
        check_free(check);
        check = NULL;
    }
    bool begin = !check;
    waiter = calloc(1, sizeof(*waiter));
    if (!waiter)
        err_set(&err, ERR_NOMEM, "out of memory for a check");
    else if (begin)
        check = check_create(submits, principal, document, depth, key, &err);
    if (!waiter || !check) {
        free(waiter);
        done(arg, &err, NULL, NULL);
        return;
    }
    waiter->done = done;
    waiter->arg = arg;
    STAILQ_INSERT_TAIL(&check->waiters, waiter, link);
    if (begin)
        check_next(check);
}
