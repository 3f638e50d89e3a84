/* What all users and accounts have used, as the policies' tree of accounts.
 *
 * The rows of the ledger that have ended are read once and remembered: their sum decays with the half-life,
 * and rows of the last 30 days are kept singly. Rows that have not ended come with each view. Only the loop's
 * thread calls these functions.
 */
#ifndef MOTLEY_SCHEDULER_PASS_SHARES_H
#define MOTLEY_SCHEDULER_PASS_SHARES_H

#include "scheduler/policy/policy.h"
#include "store/queue.h"

#define SHARES_MONTH_US (30 * 86400 * (int64_t)1000000)

struct use_shares;

/* Returns new, or NULL with ERR_NOMEM. */
struct use_shares *shares_create(struct err *err);
/* NULL is a no-op. */
void shares_destroy(struct use_shares *shares);
/* Forgets all rows: the next load reads them again. */
void shares_forget(struct use_shares *shares);

/* Returns the number of the newest ended row of the ledger that was read, for store_sched_want.closed. */
int64_t shares_closed(const struct use_shares *shares);

/* Takes the view's rows of the ledger and builds the tree anew: the root, the view's groups, and a leaf for
 * each user within an account who has used anything or has a job in the view or in the queue. Borrows the
 * view until the next call. */
int shares_begin(struct use_shares *shares, const struct store_view *view, const struct store_queue *queue,
                 double half_life_s, struct err *err);

/* Fills the snapshot's accounts and users. */
void shares_fill(const struct use_shares *shares, struct policy_snapshot *snapshot);
/* Return the leaf of a user within an account, and the user's index; POLICY_NONE if shares_begin did not see
 * the user. */
uint16_t shares_leaf(const struct use_shares *shares, int64_t user, int64_t account);
uint16_t shares_user(const struct use_shares *shares, int64_t user);
/* Returns the tree's index of a group, given by its id; POLICY_NONE when the tree has no such group. */
uint16_t shares_group(const struct use_shares *shares, int64_t group);
/* Returns the device-seconds that are charged per second for all devices that the job holds. */
double shares_rate(const struct use_shares *shares, int64_t job);
/* Returns the name of the group at this index of the tree, or of the group that a leaf belongs to; "" for the
 * root. */
const char *shares_name(const struct use_shares *shares, uint16_t account);

#endif
