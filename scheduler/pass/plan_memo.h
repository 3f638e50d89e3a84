/* Remembers what the planner answered about each class of jobs and set of devices, without the plans
 * themselves, so that a pass need not ask again while nothing has changed that the answers depend on.
 *
 * Everything is forgotten when a device, a link or a profile changes, or when PLAN_MEMO_MAX answers are
 * noted.
 */
#ifndef MOTLEY_SCHEDULER_PASS_PLAN_MEMO_H
#define MOTLEY_SCHEDULER_PASS_PLAN_MEMO_H

#include "common/digest.h"
#include "scheduler/policy/policy.h"
#include "store/sched.h"

enum { PLAN_MEMO_MAX = 8192 };

struct plan_memo;

struct plan_memo_key {
    uint8_t class[DIGEST_SIZE];
    struct device_set among;
    uint16_t most;
    bool any_kind;
};

struct plan_memo_answer {
    bool fits;
    struct policy_plan plan;
    enum err_code code; /* why nothing fits: the error code, and `words` for people, or NULL when it fits */
    const char *words;
};

/* Returns a new memo without answers, or NULL with ERR_NOMEM. */
struct plan_memo *plan_memo_create(struct err *err);
/* NULL is a no-op. */
void plan_memo_destroy(struct plan_memo *memo);
/* Begins a pass over `view`. `profiles` is a count that rises whenever profiles may have changed. */
void plan_memo_begin(struct plan_memo *memo, const struct store_view *view, uint64_t profiles);
/* Forgets all notes. */
void plan_memo_drop(struct plan_memo *memo);
/* Notes a copy of the answer; at most PLAN_MEMO_MAX of about 350 bytes and their words. Without memory
 * nothing is noted. */
void plan_memo_put(struct plan_memo *memo, const struct plan_memo_key *key,
                   const struct plan_memo_answer *answer);
/* Returns the remembered answer, borrowed until the next put or begin; NULL when there is none. */
const struct plan_memo_answer *plan_memo_get(const struct plan_memo *memo, const struct plan_memo_key *key);

#endif
