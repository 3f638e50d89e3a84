/* Computes the order of the queue. */
#include <stdlib.h>

#include "scheduler/policy/policy_private.h"

enum { SERVICES = SERVICE_SCAVENGER + 1 };

/* The fields of a job by which the queue is sorted. */
struct order_key {
    int64_t eligible_us, id;
    double charge; /* charged device-seconds */
    int32_t priority;
    uint32_t job;
};

static int order_compare_keys(const void *a, const void *b)
{
    const struct order_key *x = a, *y = b;
    if (x->priority != y->priority)
        return x->priority > y->priority ? -1 : 1;
    if (x->eligible_us != y->eligible_us)
        return x->eligible_us < y->eligible_us ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static void sort_keys(struct order_key *keys, size_t count)
{
    size_t sorted = 1;
    while (sorted < count && order_compare_keys(&keys[sorted - 1], &keys[sorted]) <= 0)
        sorted++;
    if (sorted < count)
        qsort(keys, count, sizeof(*keys), order_compare_keys);
}

/* Jobs sorted by service and by leaf of the tree of accounts. Without shares all jobs belong to leaf 0. */
struct order_lists {
    struct order_key *keys;
    /* [service * leaves + leaf] where a list begins in keys[]; one further entry for the end */
    size_t *begins;
    size_t leaves;
    const struct policy_settings *settings;
    const double *step_charge;
    size_t shape_count;
    double charge_mean; /* mean charge of a job, used for jobs whose shape has no known plan */
};

/* Returns the predicted charged device-seconds of a job; 0 when its shape has no known plan. */
static double charge_of(const struct order_lists *lists, const struct policy_job *job)
{
    const double step = job->shape < lists->shape_count ? lists->step_charge[job->shape] : 0;
    return step > 0 && job->steps_left > 0 ? step * (double)job->steps_left : 0;
}

static void fill_lists(struct order_lists *lists, const struct policy_snapshot *snapshot)
{
    const size_t count = SERVICES * lists->leaves;
    for (int filling = 0; filling <= 1; filling++) {
        for (size_t i = 0; i < snapshot->job_count; i++) {
            const struct policy_job *job = &snapshot->jobs[i];
            const size_t leaf = lists->leaves > 1 ? job->account : 0;
            const size_t list = (size_t)job->service * lists->leaves + leaf;
            if (!filling) {
                lists->begins[list + 1]++;
                continue;
            }
            double charge = charge_of(lists, job);
            charge = charge > 0 ? charge : lists->charge_mean;
            if (job->service == SERVICE_SCAVENGER)
                charge *= lists->settings->scavenger_charge;
            lists->keys[lists->begins[list]++] = (struct order_key){.eligible_us = job->eligible_us,
                                                                    .id = job->id,
                                                                    .charge = charge,
                                                                    .priority = job->priority,
                                                                    .job = (uint32_t)i};
        }
        for (size_t i = count; filling && i > 0; i--)
            lists->begins[i] = lists->begins[i - 1];
        if (filling)
            lists->begins[0] = 0;
        for (size_t i = 0; !filling && i < count; i++)
            lists->begins[i + 1] += lists->begins[i];
    }
    for (size_t i = 0; i < count; i++)
        sort_keys(lists->keys + lists->begins[i], lists->begins[i + 1] - lists->begins[i]);
}

static double find_mean(const struct order_lists *lists, const struct policy_snapshot *snapshot)
{
    double sum = 0;
    size_t known = 0;
    for (size_t i = 0; i < snapshot->job_count; i++) {
        const double charge = charge_of(lists, &snapshot->jobs[i]);
        sum += charge;
        known += charge > 0 ? 1 : 0;
    }
    return known > 0 ? sum / (double)known : 1;
}

static void charge_runs(struct share_tree *tree, const struct policy_snapshot *snapshot, int64_t now_us)
{
    for (size_t i = 0; i < snapshot->run_count; i++) {
        const struct policy_run *run = &snapshot->runs[i];
        if (run->ends_us > now_us && run->ends_us != INT64_MAX)
            share_tree_charge(tree, run->account, run->rate * 1e-6 * (double)(run->ends_us - now_us));
    }
}

/* Takes the jobs of one service from the leaves in the order of the shares. next[leaf] and has_jobs[leaf] are
 * scratch memory. */
static size_t merge(const struct order_lists *lists, struct share_tree *tree, size_t service, bool *has_jobs,
                    size_t *next, uint32_t *order)
{
    const size_t *begins = lists->begins + service * lists->leaves;
    size_t count = 0;
    uint16_t leaf;
    for (size_t i = 0; i < lists->leaves; i++) {
        next[i] = begins[i];
        has_jobs[i] = begins[i] < begins[i + 1];
        tree->front_us[i] = has_jobs[i] ? lists->keys[begins[i]].eligible_us : 0;
    }
    share_tree_fill(tree, has_jobs);
    while ((leaf = share_tree_top(tree)) != POLICY_NONE) {
        const struct order_key *key = &lists->keys[next[leaf]++];
        const bool more = next[leaf] < begins[leaf + 1];
        order[count++] = key->job;
        share_tree_take(tree, key->charge, more, more ? lists->keys[next[leaf]].eligible_us : 0);
    }
    return count;
}

static int order_check_jobs(const struct policy_snapshot *snapshot, struct err *err)
{
    bool *inner = calloc(snapshot->account_count + 1, sizeof(*inner));
    int rc = 0;
    if (!inner)
        return err_set(err, ERR_NOMEM, "no memory for the queue");
    for (size_t i = 1; i < snapshot->account_count; i++)
        inner[snapshot->accounts[i].parent] = true;
    for (size_t i = 0; i < snapshot->job_count && rc == 0; i++) {
        const struct policy_job *job = &snapshot->jobs[i];
        if (job->account >= snapshot->account_count || inner[job->account])
            rc = err_set(err, ERR_INVALID, "job %lld: account %u is not a leaf", (long long)job->id,
                         (unsigned)job->account);
    }
    free(inner);
    return rc;
}

int policy_order(const struct policy_snapshot *snapshot, const struct policy_settings *settings,
                 const double *step_charge, size_t shape_count, int64_t now_us, uint32_t *order,
                 struct err *err)
{
    const size_t jobs = snapshot->job_count;
    const bool share = settings->share && snapshot->account_count > 1;
    struct order_lists lists = {.leaves = share ? snapshot->account_count : 1,
                                .settings = settings,
                                .step_charge = step_charge,
                                .shape_count = shape_count};
    struct share_tree tree = {0};
    lists.keys = malloc((jobs + 1) * sizeof(*lists.keys));
    lists.begins = calloc(SERVICES * lists.leaves + 1, sizeof(*lists.begins));
    bool *has_jobs = calloc(lists.leaves, sizeof(*has_jobs));
    size_t *next = calloc(lists.leaves, sizeof(*next));
    int rc = -1;
    size_t count = 0;
    if (!lists.keys || !lists.begins || !has_jobs || !next) {
        err_set(err, ERR_NOMEM, "no memory for the order of %zu jobs", jobs);
        goto out;
    }
    if (share_tree_init(&tree, snapshot->accounts, snapshot->account_count, err) < 0 ||
        order_check_jobs(snapshot, err) < 0)
        goto out;
    lists.charge_mean = find_mean(&lists, snapshot);
    fill_lists(&lists, snapshot);
    if (share) {
        charge_runs(&tree, snapshot, now_us);
        for (size_t service = 0; service < SERVICES; service++)
            count += merge(&lists, &tree, service, has_jobs, next, order + count);
    } else {
        for (size_t i = 0; i < jobs; i++)
            order[i] = lists.keys[i].job;
    }
    rc = 0;
out:
    share_tree_fini(&tree);
    free(lists.keys);
    free(lists.begins);
    free(has_jobs);
    free(next);
    return rc;
}
