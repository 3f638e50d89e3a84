/* Declarations that the files of store/ share: how a statement's results become the arguments of a typed
 * callback. */
#ifndef MOTLEY_STORE_STORE_PRIVATE_H
#define MOTLEY_STORE_STORE_PRIVATE_H

#include <assert.h>

#include "common/pg.h"
#include "store/principal.h"
#include "store/states.h"
#include "store/store.h"

struct event;
struct job_batcher;

struct store {
    struct event_base *base;
    struct pg *pg;
    struct store_config config;
    struct event *watch; /* store_watch_schema; or NULL */
    store_newer_fn *newer;
    void *newer_arg;
    struct job_batcher *batcher; /* collects submitted jobs for the next commit (jobs_insert.c) */
};

/* Converts the results of a successful call into the callback's arguments and calls the user's callback, so
 * that the arguments can live on its stack. */
struct store_call;
typedef void store_deliver_fn(struct store_call *call, const struct pg_result *const *results, int count);

struct store_call {
    store_deliver_fn *deliver;
    void (*fail)(struct store_call *call, const struct err *err);
    void (*done)(void); /* the user's callback, cast back to its type by deliver and fail */
    void *arg;
    int picked;        /* index of the result that holds the document or id */
    char missing[320]; /* text of ERR_NOT_FOUND when there is no row */
    char thing[160];   /* name of the object in the text of ERR_DENIED (store_one_change) */
};

/* A flag of store_run: the statements run as a transaction of their own, because they take the events lock or
 * may wait. */
enum { STORE_ALONE = 1 };

/* Run one or several statements as one transaction. Column 0 of row 0 of the last result is the document
 * (store_run_doc) or id (store_run_id) of the answer. `missing` is the text of ERR_NOT_FOUND when there is no
 * row. */
int store_run_doc(struct store *store, const struct pg_step *steps, int count, unsigned flags,
                  const char *missing, store_doc_fn *done, void *arg, struct err *err);
int store_run_id(struct store *store, const struct pg_step *steps, int count, unsigned flags,
                 const char *missing, store_id_fn *done, void *arg, struct err *err);
int store_run_done(struct store *store, const struct pg_step *steps, int count, unsigned flags,
                   store_done_fn *done, void *arg, struct err *err);
/* Run one statement with its parameters, which a typed call has filled (tools/sql.py) and which are released
 * in any case. store_one_touched answers ERR_NOT_FOUND with `missing` when the statement changed no row. */
int store_one_doc(struct store *store, struct pg_params *params, const char *missing, store_doc_fn *done,
                  void *arg, struct err *err);
int store_one_id(struct store *store, struct pg_params *params, const char *missing, store_id_fn *done,
                 void *arg, struct err *err);
int store_one_done(struct store *store, struct pg_params *params, store_done_fn *done, void *arg,
                   struct err *err);
int store_one_touched(struct store *store, struct pg_params *params, const char *missing, store_done_fn *done,
                      void *arg, struct err *err);

/* The step of a work that runs the statement for which a typed call has filled the parameters. */
static inline struct pg_step store_step(const struct pg_params *params)
{
    assert(params->statement);
    return (struct pg_step){params->statement, params};
}

/* One statement of a leader's transaction, by its typed call, with its rows (a JSON array of objects). */
struct store_part {
    void (*fill)(struct pg_params *params, const json_t *rows);
    const json_t *rows;
};
enum { STORE_PARTS_MAX = 32 };

/* A transaction of the leader: the fence of `leader` and the events lock, then the parts that have rows, in
 * their order. Release it with store_work_fini, even after a failure. */
struct store_work {
    struct pg_params params[STORE_PARTS_MAX + 1];
    /* the fence and the lock, all parts, and one further step of the caller */
    struct pg_step steps[STORE_PARTS_MAX + 2];
    int count;
};
_Static_assert(STORE_PARTS_MAX + 2 <= PG_STEPS_MAX, "one work holds the fence, all parts and one more");
void store_work_init(struct store_work *work, int64_t leader, const struct store_part *parts, int count);
void store_work_fini(struct store_work *work);

/* Runs statements with a call from store_call_create, which is freed here. The functions above call it. */
int store_run(struct store *store, const struct pg_step *steps, int count, unsigned flags,
              struct store_call *call, struct err *err);
struct store_call *store_call_create(store_deliver_fn *deliver,
                                     void (*fail)(struct store_call *, const struct err *),
                                     void (*done)(void), void *arg, const char *missing, struct err *err);

/* Copies the error `from`, and maps the SQLSTATEs that Motley's own SQL functions raise (migrations/) to
 * ERR_STALE, ERR_CONFLICT and ERR_INVALID. */
void store_map_err(const struct err *from, struct err *to);

/* Adds the machine's edges for `event` as two text[] parameters of equal length: states from, states to. */
void store_param_edges(struct pg_params *params, const struct state_machine *machine, int event);

/* Adds two parameters for the rules of migrations/0005_access.sql: the asker's users.id (0 if it is not a
 * person), and whether the asker is an administrator. */
void store_param_viewer(struct pg_params *params, const struct principal *principal);
/* Adds two parameters: the visibility, and the group's name or null. */
void store_param_sharing(struct pg_params *params, const struct sharing *sharing);
/* Adds one parameter for the fragment audit: who makes the change. */
void store_param_actor(struct pg_params *params, const struct principal *principal);

/* Runs one statement whose columns are: whether the change was made, the owner's name, the document (NULL:
 * none). Without a row it answers ERR_NOT_FOUND with `missing`; without a change ERR_DENIED with `thing` and
 * its owner. `params` is released. */
int store_one_change(struct store *store, struct pg_params *params, const char *missing, const char *thing,
                     store_doc_fn *done, void *arg, struct err *err);

/* jobs_command.c. Runs a change of one job, as store_one_change does. */
#define STORE_NO_JOB "there is no job %lld that you may see"
int store_job_update(struct store *store, int64_t id, struct pg_params *params, store_doc_fn *done, void *arg,
                     struct err *err);

/* Checks that a text is not empty and has at most `max` bytes. */
int store_check_text(const char *what, const char *text, size_t max, struct err *err);

/* The batcher collects submitted jobs (jobs_insert.c). When it is destroyed, the waiting submits are answered
 * with ERR_CANCELLED. */
int store_batcher_create(struct store *store, struct err *err);
void store_batcher_destroy(struct store *store);

#endif
