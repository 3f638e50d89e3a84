/* Computes the use of users and accounts from the ledger's rows. */
#include "scheduler/pass/shares.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/array.h"

/* A user within an account: a leaf of the tree of accounts. */
struct leaf {
    int64_t user, account;
    double decayed; /* decayed charge of the ledger rows that have ended, as of use_shares.decayed_us */
    uint16_t index; /* index in the tree */
};

struct use_shares {
    struct leaf *leaves;
    size_t leaf_count, leaf_capacity;
    struct store_sched_use *month; /* rows that ended within the last 30 days */
    size_t month_count, month_capacity;
    int64_t closed, decayed_us;

    const struct store_view *view;
    struct policy_account *accounts;
    struct policy_user *users; /* in the order of the view's users */
    /* [account_count] index of each account's group in view->accounts, plus 1; 0: the root */
    size_t *groups;
    size_t account_count;
};

struct use_shares *shares_create(struct err *err)
{
    struct use_shares *shares = calloc(1, sizeof(*shares));
    if (!shares)
        err_set(err, ERR_NOMEM, "no memory for the shares");
    return shares;
}

static void tree_free(struct use_shares *shares)
{
    free(shares->accounts);
    free(shares->users);
    free(shares->groups);
    shares->accounts = NULL;
    shares->users = NULL;
    shares->groups = NULL;
    shares->account_count = 0;
    shares->view = NULL;
}

void shares_forget(struct use_shares *shares)
{
    tree_free(shares);
    free(shares->leaves);
    free(shares->month);
    *shares = (struct use_shares){0};
}

void shares_destroy(struct use_shares *shares)
{
    if (shares) {
        shares_forget(shares);
        free(shares);
    }
}

int64_t shares_closed(const struct use_shares *shares)
{
    return shares->closed;
}

static struct leaf *find_leaf(const struct use_shares *shares, int64_t user, int64_t account)
{
    for (size_t i = 0; i < shares->leaf_count; i++)
        if (shares->leaves[i].user == user && shares->leaves[i].account == account)
            return &shares->leaves[i];
    return NULL;
}

static struct leaf *add_leaf(struct use_shares *shares, int64_t user, int64_t account, struct err *err)
{
    struct leaf *leaf = find_leaf(shares, user, account);
    if (leaf)
        return leaf;
    if (ARRAY_RESERVE(shares->leaves, shares->leaf_capacity, shares->leaf_count + 1, err) < 0)
        return NULL;
    leaf = &shares->leaves[shares->leaf_count++];
    *leaf = (struct leaf){.user = user, .account = account, .index = POLICY_NONE};
    return leaf;
}

/* ---- use ---- */

/* Returns the charge of an interval, in which each second counts half for every half-life that has passed
 * since that second. */
static double decayed_charge(const struct store_sched_use *use, int64_t now_us, double half_life_s)
{
    const int64_t ends_us = use->ends_us > 0 && use->ends_us < now_us ? use->ends_us : now_us;
    const int64_t begins_us = use->begins_us < ends_us ? use->begins_us : ends_us;
    const double from = 1e-6 * (double)(now_us - begins_us) / half_life_s,
                 to = 1e-6 * (double)(now_us - ends_us) / half_life_s;
    return use->rate * half_life_s / M_LN2 * (exp2(-to) - exp2(-from));
}

static double month_charge(const struct store_sched_use *use, int64_t now_us)
{
    const int64_t ends_us = use->ends_us > 0 && use->ends_us < now_us ? use->ends_us : now_us;
    const int64_t from_us = now_us - SHARES_MONTH_US;
    const int64_t begins_us = use->begins_us > from_us ? use->begins_us : from_us;
    return ends_us > begins_us ? use->rate * 1e-6 * (double)(ends_us - begins_us) : 0;
}

static void decay(struct use_shares *shares, int64_t now_us, double half_life_s)
{
    /* If the clock was set back, use does not decay; it must not grow. */
    const double factor =
        now_us > shares->decayed_us ? exp2(-1e-6 * (double)(now_us - shares->decayed_us) / half_life_s) : 1;
    for (size_t i = 0; i < shares->leaf_count; i++)
        shares->leaves[i].decayed *= factor;
    shares->decayed_us = now_us;
    size_t kept = 0;
    for (size_t i = 0; i < shares->month_count; i++)
        if (shares->month[i].ends_us > now_us - SHARES_MONTH_US)
            shares->month[kept++] = shares->month[i];
    shares->month_count = kept;
}

/* Remembers the ledger's rows that have ended since the last view. */
static int take_rows(struct use_shares *shares, const struct store_view *view, double half_life_s,
                     struct err *err)
{
    for (size_t i = 0; i < view->use_count; i++) {
        const struct store_sched_use *use = &view->uses[i];
        struct leaf *leaf = add_leaf(shares, use->user, use->account, err);
        if (!leaf)
            return -1;
        if (use->closed <= shares->closed)
            continue;
        if (ARRAY_RESERVE(shares->month, shares->month_capacity, shares->month_count + 1, err) < 0)
            return -1;
        shares->closed = use->closed;
        leaf->decayed += decayed_charge(use, view->now_us, half_life_s);
        if (use->ends_us > view->now_us - SHARES_MONTH_US)
            shares->month[shares->month_count++] = *use;
    }
    for (size_t i = 0; i < view->job_count; i++)
        if (!add_leaf(shares, view->jobs[i].owner, view->jobs[i].account, err))
            return -1;
    return 0;
}

/* ---- the tree ---- */

static struct policy_limits shares_limits_of(const struct store_limits *from)
{
    return (struct policy_limits){from->devices_max, from->running_max, from->month_seconds_max};
}

/* Adds the view's groups, each after its parent. */
static void add_groups(struct use_shares *shares, const struct store_view *view)
{
    size_t before;
    shares->accounts[0] = (struct policy_account){.parent = POLICY_NONE, .weight = 1};
    shares->account_count = 1;
    do {
        before = shares->account_count;
        for (size_t g = 0; g < view->account_count; g++) {
            const struct store_sched_account *group = &view->accounts[g];
            uint16_t parent = POLICY_NONE;
            bool placed = false;
            for (size_t i = 0; i < shares->account_count; i++) {
                placed = placed || shares->groups[i] == g + 1;
                if (group->parent == (shares->groups[i] ? view->accounts[shares->groups[i] - 1].id : 0))
                    parent = (uint16_t)i;
            }
            if (placed || parent == POLICY_NONE || shares->account_count >= POLICY_NONE)
                continue;
            shares->groups[shares->account_count] = g + 1;
            shares->accounts[shares->account_count++] = (struct policy_account){
                .parent = parent, .weight = group->weight, .limits = shares_limits_of(&group->limits)};
        }
    } while (shares->account_count > before);
}

static void add_leaves(struct use_shares *shares)
{
    const struct store_view *view = shares->view;
    const size_t groups = shares->account_count;
    for (size_t l = 0; l < shares->leaf_count; l++) {
        struct leaf *leaf = &shares->leaves[l];
        size_t parent = 0;
        for (size_t i = 1; i < groups; i++)
            if (view->accounts[shares->groups[i] - 1].id == leaf->account)
                parent = i;
        leaf->index = POLICY_NONE;
        if (shares->account_count >= POLICY_NONE)
            continue;
        leaf->index = (uint16_t)shares->account_count;
        shares->groups[shares->account_count] = shares->groups[parent];
        shares->accounts[shares->account_count++] =
            (struct policy_account){.parent = (uint16_t)parent, .weight = 1, .decayed = leaf->decayed};
    }
}

static void add_use(struct use_shares *shares, const struct store_sched_use *use, uint32_t devices,
                    uint32_t running)
{
    const uint16_t leaf = shares_leaf(shares, use->user, use->account), user = shares_user(shares, use->user);
    const double month = month_charge(use, shares->view->now_us);
    struct policy_use *const to[] = {leaf == POLICY_NONE ? NULL : &shares->accounts[leaf].use,
                                     user == POLICY_NONE ? NULL : &shares->users[user].use};
    for (size_t i = 0; i < 2; i++) {
        if (to[i]) {
            to[i]->devices += devices;
            to[i]->running += running;
            to[i]->month_seconds += month;
        }
    }
}

static void add_uses(struct use_shares *shares, double half_life_s)
{
    const struct store_view *view = shares->view;
    for (size_t i = 0; i < shares->month_count; i++)
        add_use(shares, &shares->month[i], 0, 0);
    for (size_t i = 0; i < view->use_count; i++) {
        const struct store_sched_use *use = &view->uses[i];
        if (use->closed > 0)
            continue;
        bool first = true; /* this row is the first one of its job, which may hold several devices */
        for (size_t k = 0; k < i && first; k++)
            first = view->uses[k].closed > 0 || view->uses[k].job != use->job;
        add_use(shares, use, 1, first ? 1 : 0);
        const uint16_t leaf = shares_leaf(shares, use->user, use->account);
        if (leaf != POLICY_NONE)
            shares->accounts[leaf].decayed += decayed_charge(use, view->now_us, half_life_s);
    }
}

int shares_begin(struct use_shares *shares, const struct store_view *view, const struct store_queue *queue,
                 double half_life_s, struct err *err)
{
    tree_free(shares);
    decay(shares, view->now_us, half_life_s);
    if (take_rows(shares, view, half_life_s, err) < 0)
        return -1;
    for (uint32_t l = 0; l < store_queue_leaf_count(queue); l++) {
        const struct store_queue_leaf leaf = store_queue_leaf_at(queue, l);
        if (leaf.count > 0 && !add_leaf(shares, leaf.owner, leaf.account, err))
            return -1;
    }
    const size_t most = 1 + view->account_count + shares->leaf_count;
    shares->view = view;
    shares->accounts = calloc(most, sizeof(*shares->accounts));
    shares->groups = calloc(most, sizeof(*shares->groups));
    shares->users = calloc(view->user_count + 1, sizeof(*shares->users));
    if (!shares->accounts || !shares->groups || !shares->users)
        return err_set(err, ERR_NOMEM, "no memory for the shares");
    add_groups(shares, view);
    add_leaves(shares);
    for (size_t i = 0; i < view->user_count; i++)
        shares->users[i].limits = shares_limits_of(&view->users[i].limits);
    add_uses(shares, half_life_s);
    return 0;
}

void shares_fill(const struct use_shares *shares, struct policy_snapshot *snapshot)
{
    snapshot->accounts = shares->accounts;
    snapshot->account_count = shares->account_count;
    snapshot->users = shares->users;
    snapshot->user_count = shares->view->user_count;
}

uint16_t shares_leaf(const struct use_shares *shares, int64_t user, int64_t account)
{
    const struct leaf *leaf = find_leaf(shares, user, account);
    return leaf ? leaf->index : POLICY_NONE;
}

uint16_t shares_user(const struct use_shares *shares, int64_t user)
{
    for (size_t i = 0; i < shares->view->user_count && i < POLICY_NONE; i++)
        if (shares->view->users[i].id == user)
            return (uint16_t)i;
    return POLICY_NONE;
}

uint16_t shares_group(const struct use_shares *shares, int64_t group)
{
    for (size_t i = 1; i < shares->account_count; i++) /* leaves stand behind all groups */
        if (shares->groups[i] > 0 && shares->view->accounts[shares->groups[i] - 1].id == group)
            return (uint16_t)i;
    return POLICY_NONE;
}

double shares_rate(const struct use_shares *shares, int64_t job)
{
    double rate = 0;
    for (size_t i = 0; i < shares->view->use_count; i++)
        if (shares->view->uses[i].closed == 0 && shares->view->uses[i].job == job)
            rate += shares->view->uses[i].rate;
    return rate;
}

const char *shares_name(const struct use_shares *shares, uint16_t account)
{
    const size_t group = account < shares->account_count ? shares->groups[account] : 0;
    return group ? shares->view->accounts[group - 1].name : "";
}
