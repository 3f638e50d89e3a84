/* Finds the queued jobs about which a pass decides, and fills in what the policies must know of them.
 *
 * All jobs of a class have the same plans, so the time that a pass takes grows with the number of classes. If
 * more classes are queued than a pass decides about, it takes those of the first jobs of each user within
 * each account, and those of a window of the queue, which moves on with each pass until a job takes the
 * devices that are left.
 */
#include "scheduler/pass/job_class.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/array.h"
#include "scheduler/pass/pass_queue.h"
#include "scheduler/pass/shares.h"

/* Most classes that a pass decides about: the models, data sets and profiles of this many are kept at once
 * (placer/facts.c). */
enum { CLASSES_MAX = 128 };
#define RETRY_US 5000000

/* Values of class_at. Any other value is the index of the class in queue.classes, plus 1. */
enum { CLASS_LEFT_OUT = 0 };
#define CLASS_CHOSEN UINT32_MAX

/* ---- choosing the jobs ---- */

bool pass_somebody_waits(const struct scheduler_pass *pass)
{
    const struct store_queue *all = pass->scheduler->queue;
    for (size_t i = 0; i < store_queue_count(all); i++)
        if (pass_is_due(store_queue_at(all, i), pass->view->now_us))
            return true;
    return false;
}

static int pass_take_compare(int64_t a, int64_t b)
{
    return a < b ? -1 : a > b;
}

/* Compares jobs by user within account (leaf), then by the order of the jobs of one leaf. */
static int by_leaf(const void *a, const void *b)
{
    const struct store_sched_job *x = *(const struct store_sched_job *const *)a,
                                 *y = *(const struct store_sched_job *const *)b;
    const int orders[] = {pass_take_compare(x->leaf, y->leaf), pass_take_compare(x->service, y->service),
                          pass_take_compare(y->priority, x->priority),
                          pass_take_compare(x->eligible_us, y->eligible_us), pass_take_compare(x->id, y->id)};
    for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++)
        if (orders[i] != 0)
            return orders[i];
    return 0;
}

static int by_priority(const void *a, const void *b)
{
    const struct store_sched_job *x = *(const struct store_sched_job *const *)a,
                                 *y = *(const struct store_sched_job *const *)b;
    return x->priority != y->priority ? pass_take_compare(y->priority, x->priority)
                                      : pass_take_compare(x->id, y->id);
}

/* Marks the job's class as chosen. Returns how many classes that adds: 0 if it was marked before. */
static size_t pass_take_choose(struct queue *queue, const struct store_sched_job *job)
{
    const bool added = queue->class_at[job->class] == CLASS_LEFT_OUT;
    queue->class_at[job->class] = CLASS_CHOSEN;
    return added ? 1 : 0;
}

static void choose_heads(struct queue *queue, const struct store_sched_job **jobs, size_t count)
{
    size_t chosen = 0, of_leaf = 0;
    qsort(jobs, count, sizeof(const struct store_sched_job *), by_leaf);
    for (size_t i = 0; i < count && chosen < CLASSES_MAX / 2; i++) {
        of_leaf = i > 0 && jobs[i]->leaf == jobs[i - 1]->leaf ? of_leaf + 1 : 0;
        if (of_leaf < queue->shown_most)
            chosen += pass_take_choose(queue, jobs[i]);
    }
}

/* Chooses the classes of the jobs behind the mark in the queue, and sets the mark for the next pass. */
static void choose_window(struct queue *queue, const struct store_sched_job **jobs, size_t count)
{
    struct queue_mark *mark = &queue->pass->scheduler->queue_mark;
    size_t chosen = 0, i = 0;
    qsort(jobs, count, sizeof(const struct store_sched_job *), by_priority);
    while (mark->set && i < count &&
           (jobs[i]->priority > mark->priority ||
            (jobs[i]->priority == mark->priority && jobs[i]->id <= mark->id)))
        i++;
    for (; i < count && chosen < CLASSES_MAX / 2; i++)
        chosen += pass_take_choose(queue, jobs[i]);
    queue->further = (struct queue_mark){.set = i < count};
    if (i > 0 && i < count)
        queue->further = (struct queue_mark){true, jobs[i - 1]->priority, jobs[i - 1]->id};
}

static int choose_some(struct queue *queue)
{
    const struct store_queue *all = queue->pass->scheduler->queue;
    const struct store_sched_job **jobs =
        calloc(store_queue_count(all) + 1, sizeof(const struct store_sched_job *));
    size_t count = 0;
    for (size_t i = 0; jobs && i < store_queue_count(all); i++)
        if (pass_is_due(store_queue_at(all, i), queue->pass->view->now_us))
            jobs[count++] = store_queue_at(all, i);
    if (jobs) {
        choose_heads(queue, jobs, count);
        choose_window(queue, jobs, count);
    }
    free(jobs);
    return jobs ? 0 : -1;
}

/* Marks the classes about which this pass decides: all, if there are few. */
static int choose_classes(struct queue *queue)
{
    const struct store_queue *all = queue->pass->scheduler->queue;
    size_t used = 0, count;
    queue->class_at = calloc(store_queue_class_count(all) + 1, sizeof(*queue->class_at));
    if (!queue->class_at)
        return -1;
    for (uint32_t c = 0; c < store_queue_class_count(all); c++)
        used += store_queue_class_at(all, c, &count) && count > 0 ? 1 : 0;
    if (used > CLASSES_MAX)
        return choose_some(queue);
    for (uint32_t c = 0; c < store_queue_class_count(all); c++)
        queue->class_at[c] = CLASS_CHOSEN;
    return 0;
}

/* ---- the jobs' classes ---- */

/* Finds the state of a class that has just been made. */
static void find_state(struct scheduler_pass *pass, struct job_class *class)
{
    const int there = class->known_count == 0 ? 1 : job_class_facts(pass, class, &class->err);
    class->state =
        class->known_count == 0 ? CLASS_NOWHERE
        : there < 0             ? CLASS_FAILED
        : there == 0            ? CLASS_PENDING
        : pass_is_measured_for(pass, class->allowed, class->usable, class->key, class->profiles.document)
            ? CLASS_READY
            : CLASS_UNMEASURED;
    if (there > 0 && class->known_count > 0)
        job_class_speeds(pass, class);
}

/* Returns the class of the job, and makes it if this is the class's first job; NULL while the specification
 * is being fetched. */
static struct job_class *class_of(struct queue *queue, const struct store_sched_job *job)
{
    struct scheduler_pass *pass = queue->pass;
    uint32_t *at = &queue->class_at[job->class];
    size_t count;
    const uint8_t *digest = store_queue_class_at(pass->scheduler->queue, job->class, &count);
    char hex[DIGEST_HEX_SIZE];
    struct fact fact;
    struct err err;
    if (*at != CLASS_CHOSEN)
        return &queue->classes[*at - 1];
    *at = CLASS_LEFT_OUT; /* stays so if the class cannot be made */
    digest_hex(digest, DIGEST_SIZE, hex);
    const int there = facts_get(pass->scheduler->facts, FACT_CLASS, hex, &fact, &err);
    if (there < 0)
        pass_check_at(pass, pass->view->now_us + RETRY_US);
    if (there <= 0)
        return NULL;
    if (ARRAY_RESERVE(queue->classes, queue->class_capacity, queue->class_count + 1, &err) < 0) {
        pass->failed = true;
        return NULL;
    }
    struct job_class *class = &queue->classes[queue->class_count];
    if (job_class_init(pass, json_object_get(fact.document, "spec"), json_object_get(fact.document, "inputs"),
                       digest, class) < 0)
        return NULL;
    const json_t *plan = json_object_get(fact.document, "plan");
    class->pinned = json_is_object(plan) ? plan : NULL;
    find_state(pass, class);
    *at = (uint32_t)++queue->class_count;
    return class;
}

/* Finds the job's class. Returns false for a job about which the policies cannot decide, after saying why it
 * waits or fails. */
static bool take_job(struct queue *queue, const struct store_sched_job *job, uint32_t *index)
{
    struct scheduler_pass *pass = queue->pass;
    if (queue->leaves[job->leaf].disabled) {
        pass_wait(pass, job, "disabled", -1, "waits: its owner is disabled");
        return false;
    }
    if (pass_wait_aside(pass, job))
        return false;
    struct job_class *class = class_of(queue, job);
    if (!class || class->state == CLASS_PENDING)
        pass_wait(pass, job, "planning", -1, "what its plan depends on is being read");
    if (!class)
        return false;
    *index = (uint32_t)(class - queue->classes);
    switch (class->state) {
    case CLASS_FAILED:
        pass_give_up(pass, job, &class->err);
        return false;
    case CLASS_NOWHERE:
        pass_wait(pass, job, "absent", -1, "%s",
                  pass->view->device_count == 0 ? "no device has joined the cluster yet"
                                                : "none of the devices it may use is there");
        return false;
    default:
        return class->state != CLASS_PENDING;
    }
}

/* Takes the jobs of the chosen classes: those that can be planned stand first, then those whose devices are
 * not measured. */
static int take_jobs(struct queue *queue)
{
    const struct store_queue *all = queue->pass->scheduler->queue;
    struct queue_job *unmeasured = calloc(store_queue_count(all) + 1, sizeof(*unmeasured));
    size_t unmeasured_count = 0;
    for (size_t i = 0; unmeasured && i < store_queue_count(all) && !queue->pass->failed; i++) {
        struct queue_job of = {.job = store_queue_at(all, i)};
        if (!pass_is_due(of.job, queue->pass->view->now_us)) {
            pass_check_at(queue->pass, of.job->not_before_us > of.job->begin_us ? of.job->not_before_us
                                                                                : of.job->begin_us);
            continue;
        }
        if (queue->class_at[of.job->class] == CLASS_LEFT_OUT || !take_job(queue, of.job, &of.class))
            continue;
        if (queue->classes[of.class].state == CLASS_READY)
            queue->jobs[queue->job_count++] = of;
        else
            unmeasured[unmeasured_count++] = of;
    }
    queue->ready_count = queue->job_count;
    for (size_t i = 0; i < unmeasured_count; i++)
        queue->jobs[queue->job_count++] = unmeasured[i];
    const int rc = unmeasured && !queue->pass->failed ? 0 : -1;
    free(unmeasured);
    return rc;
}

/* ---- the jobs in the policies' form ---- */

/* Returns the devices that the job uses only if it fits on no others, because its last attempt died there; or
 * NULL. */
static const struct device_set *avoided(struct queue *queue, size_t i)
{
    const struct store_view *view = queue->pass->view;
    char word[80]; /* a node's name has at most 64 bytes */
    if (!queue->jobs[i].job->avoid)
        return NULL;
    for (size_t d = 0; d < view->device_count && d < POLICY_DEVICES_MAX; d++)
        if (snprintf(word, sizeof(word), " %s ", view->devices[d].node) > 0 &&
            strstr(queue->jobs[i].job->avoid, word))
            device_set_add(&queue->avoid[i], d);
    return device_set_is_empty(&queue->avoid[i]) ? NULL : &queue->avoid[i];
}

/* Tells each job that moves where to. */
static void fill_moves(struct queue *queue)
{
    size_t used = 0;
    for (size_t i = 0; i < queue->job_count; i++)
        if (pass_moves_to(queue->pass, queue->facts[i].id, &queue->moves_to[used]))
            queue->facts[i].moves_to = &queue->moves_to[used++];
}

static void fill_jobs(struct queue *queue)
{
    for (size_t i = 0; i < queue->job_count; i++) {
        const struct store_sched_job *job = queue->jobs[i].job;
        const struct job_class *class = &queue->classes[queue->jobs[i].class];
        const int64_t done = job->checkpoint_step > 0 ? job->checkpoint_step : 0;
        const int64_t left_ms = job->time_limit_ms - job->used_ms;
        queue->facts[i] = (struct policy_job){
            .id = job->id,
            .eligible_us = job->begin_us > job->eligible_us ? job->begin_us : job->eligible_us,
            .steps_left = job->steps - done,
            .limit_us = job->time_limit_ms > 0 ? (left_ms > 1 ? left_ms : 1) * 1000 : 0,
            .priority = job->priority,
            .shape = queue->jobs[i].class,
            .user = queue->leaves[job->leaf].user,
            .account = queue->leaves[job->leaf].account,
            .devices_least = class->devices_least,
            .devices_most = class->devices_most,
            .service = (enum policy_service)job->service,
            .avoid = avoided(queue, i)};
    }
}

static int fill_leaves(struct queue *queue)
{
    const struct store_queue *all = queue->pass->scheduler->queue;
    const struct use_shares *shares = queue->pass->scheduler->shares;
    size_t used = 0;
    queue->leaves = calloc(store_queue_leaf_count(all) + 1, sizeof(*queue->leaves));
    for (uint32_t l = 0; queue->leaves && l < store_queue_leaf_count(all); l++) {
        const struct store_queue_leaf leaf = store_queue_leaf_at(all, l);
        if (leaf.count == 0)
            continue;
        const uint16_t user = shares_user(shares, leaf.owner);
        queue->leaves[l] =
            (struct queue_leaf){.user = user,
                                .account = shares_leaf(shares, leaf.owner, leaf.account),
                                .disabled = user != POLICY_NONE && queue->pass->view->users[user].disabled};
        used++;
    }
    const size_t each = queue->pass->scheduler->config->limits.queue_max / (used > 0 ? used : 1);
    queue->shown_most = each > 2 ? (uint32_t)each : 2;
    return queue->leaves ? 0 : -1;
}

int pass_take(struct queue *queue)
{
    const size_t count = store_queue_count(queue->pass->scheduler->queue) + 1;
    queue->jobs = calloc(count, sizeof(*queue->jobs));
    if (!queue->jobs || fill_leaves(queue) < 0 || choose_classes(queue) < 0 || take_jobs(queue) < 0)
        return -1;
    queue->facts = calloc(queue->job_count + 1, sizeof(*queue->facts));
    queue->avoid = calloc(queue->job_count + 1, sizeof(*queue->avoid));
    queue->moves_to = calloc(json_object_size(queue->pass->scheduler->moving) + 1, sizeof(*queue->moves_to));
    if (!queue->facts || !queue->avoid || !queue->moves_to)
        return -1;
    fill_jobs(queue);
    if (json_object_size(queue->pass->scheduler->moving) > 0)
        fill_moves(queue);
    return 0;
}
