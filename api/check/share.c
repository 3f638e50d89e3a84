/* Lets submits of one person and class (model/job/plan_class.h) share one search for devices. */
#include "api/check/check_private.h"

#include <string.h>

#include "common/clock.h"

static bool same_asker(const struct spec_check *a, const struct spec_check *b)
{
    return a->principal.id == b->principal.id && a->principal.admin == b->principal.admin;
}

bool check_share(struct spec_check *check)
{
    static const uint8_t none[DIGEST_SIZE];
    struct spec_check *other;
    if (check->depth != CHECK_SUBMIT || memcmp(check->plan_class, none, sizeof(none)) == 0 ||
        check->is_forgotten)
        return false;
    TAILQ_FOREACH (other, &check->submits->checks, link) {
        if (other == check || other->is_forgotten ||
            memcmp(other->plan_class, check->plan_class, sizeof(none)) != 0 || !same_asker(other, check))
            continue;
        if (other->searches) {
            check->app->counters.submit_cache_hits++;
            STAILQ_INSERT_TAIL(&other->followers, check, follows);
            return true;
        }
        if (other->result && other->until_ns > clock_mono_ns()) {
            check->app->counters.submit_cache_hits++;
            check->plan_json = json_incref(other->result->answer);
            check_finish(check);
            return true;
        }
    }
    check->searches = true;
    return false;
}

void check_searched(struct spec_check *check, json_t *more)
{
    struct spec_check *follower;
    const struct err err = check->err;
    json_t *plan = json_incref(check->plan_json);
    struct check_followers followers = check->followers;
    if (STAILQ_EMPTY(&check->followers))
        STAILQ_INIT(&followers);
    STAILQ_INIT(&check->followers);
    check->searches = false;
    if (err.code)
        check_fail(check, &err, more);
    else
        check_finish(check);
    while ((follower = STAILQ_FIRST(&followers))) {
        STAILQ_REMOVE_HEAD(&followers, follows);
        if (err.code) {
            check_fail(follower, &err, more);
        } else {
            follower->plan_json = json_incref(plan);
            check_finish(follower);
        }
    }
    json_decref(plan);
}
