/* The list of all queued jobs with their places and why they wait, which a pass makes now and then for
 * people. While pass->list is NULL the pass makes none, and these functions do nothing. The first place and
 * the first reason of a job count. Thread: the scheduler's.
 */
#ifndef MOTLEY_SCHEDULER_PASS_PASS_LIST_H
#define MOTLEY_SCHEDULER_PASS_PASS_LIST_H

#include "scheduler/pass/pass.h"

/* Begins a list if the last one is old enough. */
void pass_list_begin(struct scheduler_pass *pass);
/* Gives the next place to the job, which is one of the queue in memory. */
void pass_list_place(struct scheduler_pass *pass, const struct store_sched_job *job);
/* Says why the job waits: code, the job that the reason names (-1: none), and a sentence. */
void pass_list_why(struct scheduler_pass *pass, const struct store_sched_job *job, const char *code,
                   int64_t subject, const char *why);
/* Leaves the job out, because it starts. */
void pass_list_leave(struct scheduler_pass *pass, const struct store_sched_job *job);
/* Returns the number of the job's reason, for other jobs that wait for the same; 0: none yet. */
uint32_t pass_list_reason(const struct scheduler_pass *pass, const struct store_sched_job *job);
void pass_list_alike(struct scheduler_pass *pass, const struct store_sched_job *job, uint32_t reason);
/* Adds the list to what the pass writes, if it differs from the last one. */
void pass_list_end(struct scheduler_pass *pass);
/* NULL is a no-op. */
void pass_list_destroy(struct pass_list *list);

#endif
