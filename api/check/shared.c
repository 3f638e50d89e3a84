/* Shares checks among requests: the newest checks are kept in a short list and found by a digest of the
 * specification without its name, or by their class (model/job/plan_class.h). Begin with check_spec at the
 * end.
 */
#include "api/check/check_private.h"

#include "common/clock.h"
#include "common/json.h"

#include <stdlib.h>
#include <string.h>

enum { CHECKS_MAX = 256, CHECK_KEEP_SECONDS = 5 };

int submits_create(struct app *app, struct submits **submits, struct err *err)
{
    *submits = calloc(1, sizeof(**submits));
    if (!*submits)
        return err_set(err, ERR_NOMEM, "out of memory for submits");
    (*submits)->app = app;
    TAILQ_INIT(&(*submits)->checks);
    return 0;
}

void checked_release(struct checked *checked)
{
    if (!checked || --checked->holders)
        return;
    json_decref(checked->spec);
    json_decref(checked->inputs);
    free(checked->unnamed_text);
    free(checked->inputs_text);
    json_decref(checked->answer);
    json_decref(checked->data);
    json_decref(checked->warnings);
    free(checked);
}

/* Frees what was needed only to reach the result. */
static void check_clear(struct spec_check *check)
{
    json_t **const documents[] = {&check->spec_json, &check->model,   &check->adapter,  &check->sample_ids,
                                  &check->inputs,    &check->cluster, &check->profiles, &check->plan};
    spec_fini(&check->spec);
    dataset_fini(&check->train);
    dataset_fini(&check->eval);
    for (size_t i = 0; i < sizeof(documents) / sizeof(*documents); i++) {
        json_decref(*documents[i]);
        *documents[i] = NULL;
    }
}

static void check_free(struct spec_check *check)
{
    TAILQ_REMOVE(&check->submits->checks, check, link);
    check->submits->count--;
    check_clear(check);
    checked_release(check->result);
    json_decref(check->more);
    free(check);
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
static int shared_make_key(const struct principal *principal, json_t *document, enum check_depth depth,
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

static struct spec_check *check_find(struct submits *submits, const uint8_t key[32])
{
    struct spec_check *check;
    TAILQ_FOREACH (check, &submits->checks, link)
        if (memcmp(check->key, key, 32) == 0)
            return check;
    return NULL;
}

static int shared_make_room(struct submits *submits, struct err *err)
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
    if (shared_make_room(submits, err) < 0)
        return NULL;
    struct spec_check *check = calloc(1, sizeof(*check));
    if (!check) {
        err_set(err, ERR_NOMEM, "out of memory for a check");
        return NULL;
    }
    TAILQ_INIT(&check->waiters);
    TAILQ_INIT(&check->followers);
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
static int shared_check_name(json_t *document, struct err *err)
{
    json_t *name = json_object_get(document, "name");
    if (!name)
        return 0;
    if (!json_is_string(name) || json_string_length(name) < 1 || json_string_length(name) >= SPEC_NAME_BYTES)
        return err_set(err, ERR_INVALID, "name: it is not a text of 1 to %d bytes", SPEC_NAME_BYTES - 1);
    return 0;
}

/* Carries out a new check, and keeps it for those that come soon after if it has a result. */
static int check_begin(struct spec_check *check, struct checked **checked, json_t **more, struct err *err)
{
    const int rc = check_run(check, err);
    /* With estimates for devices that are not measured, the next plan may be better. */
    const bool estimated = json_array_size(json_object_get(check->plan, "unmeasured")) > 0;
    check->until_ns = estimated ? 0 : clock_mono_ns() + CHECK_KEEP_SECONDS * UINT64_C(1000000000);
    check_clear(check);
    wait_wake(&check->waiters, rc < 0 ? err : NULL);
    check->under_way = false;
    *more = json_incref(check->more);
    if (rc < 0) {
        check_free(check);
        return -1;
    }
    check->result->holders++;
    *checked = check->result;
    return 0;
}

int check_spec(struct submits *submits, const struct principal *principal, json_t *document,
               enum check_depth depth, struct checked **checked, json_t **more, struct err *err)
{
    uint8_t key[32];
    *checked = NULL;
    *more = NULL;
    if (shared_check_name(document, err) < 0 || shared_make_key(principal, document, depth, key, err) < 0)
        return -1;
    struct spec_check *check = check_find(submits, key);
    if (check && check->under_way) {
        if (wait_in(submits->app, &check->waiters, err) < 0) {
            *more = json_incref(check->more);
            return -1;
        }
    } else if (check && check->until_ns > clock_mono_ns()) {
        submits->app->counters.submit_cache_hits++;
    } else {
        if (check)
            check_free(check);
        check = check_create(submits, principal, document, depth, key, err);
        return check ? check_begin(check, checked, more, err) : -1;
    }
    check->result->holders++;
    *checked = check->result;
    return 0;
}
