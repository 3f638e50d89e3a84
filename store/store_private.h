/* What the files of store/ share: how a statement becomes a typed callback. */
#ifndef MOTLEY_STORE_STORE_PRIVATE_H
#define MOTLEY_STORE_STORE_PRIVATE_H

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
    struct job_batcher *batcher; /* jobs that wait for the next commit */
};

/* How a call's result becomes the callback's arguments. Runs on success only;
 * calls the user's function itself (so that its results can live on its stack). */
struct store_call;
typedef void store_deliver_fn(struct store_call *call, const struct pg_result *const *results, int count);

struct store_call {
    store_deliver_fn *deliver;
    void (*fail)(struct store_call *call, const struct err *err);
    void (*done)(void); /* the user's callback, cast back by deliver and fail */
    void *arg;
    int picked;        /* which result a doc or id is taken from */
    char missing[320]; /* what ERR_NOT_FOUND says when there is no row */
    char thing[160];   /* what ERR_DENIED calls it (store_one_change) */
};

enum { STORE_ALONE = 1 }; /* own transaction: the work takes the events lock or may wait */

/* One statement or several as one work; answers with the (0,0) column of the
 * last result as document or id, or with nothing. `missing` as above (NULL: an
 * absent row is a null document). */
int store_run_doc(struct store *store, const struct pg_step *steps, int count, unsigned flags,
                  const char *missing, store_doc_fn *done, void *arg, struct err *err);
int store_run_id(struct store *store, const struct pg_step *steps, int count, unsigned flags,
                 const char *missing, store_id_fn *done, void *arg, struct err *err);
int store_run_done(struct store *store, const struct pg_step *steps, int count, unsigned flags,
                   store_done_fn *done, void *arg, struct err *err);
/* One statement alone. `params` (NULL: none) is ended in any case. `touched`: ERR_NOT_FOUND with `missing`
 * where the statement changed no row. */
int store_one_doc(struct store *store, const struct pg_statement *statement, struct pg_params *params,
                  const char *missing, store_doc_fn *done, void *arg, struct err *err);
int store_one_id(struct store *store, const struct pg_statement *statement, struct pg_params *params,
                 const char *missing, store_id_fn *done, void *arg, struct err *err);
int store_one_done(struct store *store, const struct pg_statement *statement, struct pg_params *params,
                   store_done_fn *done, void *arg, struct err *err);
int store_one_touched(struct store *store, const struct pg_statement *statement, struct pg_params *params,
                      const char *missing, store_done_fn *done, void *arg, struct err *err);

/* Rows (a JSON array of objects) for one statement. */
struct store_part {
    const struct pg_statement *statement;
    const json_t *rows;
};
enum { STORE_PARTS_MAX = 20 };

/* A leader's work: the fence of `leader`, the lock of everybody who writes events, then the parts that have
 * rows, in their order. End it with store_work_fini, also after a failure. */
struct store_work {
    struct pg_params params[STORE_PARTS_MAX + 1];
    struct pg_step steps[STORE_PARTS_MAX + 2]; /* room for one more step of the caller's */
    int count;
};
_Static_assert(STORE_PARTS_MAX + 2 <= PG_STEPS_MAX, "one work holds the fence, all parts and one more");
void store_work_init(struct store_work *work, int64_t leader, const struct store_part *parts, int count);
void store_work_fini(struct store_work *work);
extern const struct pg_statement store_fence; /* $1: the leader's epoch */

/* The rows of a part, as a table. */
#define RECORDS(columns) "json_to_recordset($1::json) AS c(" columns ")"

/* The general form: `call` is heap memory made by store_call_create and is freed here. */
int store_run(struct store *store, const struct pg_step *steps, int count, unsigned flags,
              struct store_call *call, struct err *err);
struct store_call *store_call_create(store_deliver_fn *deliver,
                                     void (*fail)(struct store_call *, const struct err *),
                                     void (*done)(void), void *arg, const char *missing, struct err *err);

/* The statement every writer of events runs first: ids become visible in order. */
extern const struct pg_statement store_events_lock;

/* SQLSTATEs of our own functions (migrations) become ERR_STALE and ERR_CONFLICT. */
void store_map_err(const struct err *from, struct err *to);

/* The edges of `event` as two equally long text[] parameters: from, to. */
void store_param_edges(struct pg_params *params, const struct state_machine *machine, int event);

/* Two parameters, as the rules of migrations/0007_access.sql take them: who sees (users.id, 0 for who is no
 * person) and whether as an administrator. */
void store_param_viewer(struct pg_params *params, const struct principal *principal);
/* Two more: visibility and the group's name or null. */
void store_param_sharing(struct pg_params *params, const struct sharing *sharing);
/* One: who did it, for AUDIT. */
void store_param_actor(struct pg_params *params, const struct principal *principal);

/* Conditions over a row `o` of what people own; `viewer` and `admin` are the two parameters above. */
#define VISIBLE(o, viewer, admin)                                                                            \
    "motley_visible(" o ".owner, " o ".visibility, " o ".grp, " viewer                                       \
    "::bigint, (SELECT motley_groups(" viewer "::bigint)), " admin "::boolean)"
#define OWNED(o, viewer, admin) "motley_owns(" o ".owner, " viewer "::bigint, " admin "::boolean)"

/* The body of a CTE that leaves a row of the audit for every row of `from`: in the statement that changes it,
 * so that neither is there without the other. `actor`: the parameter above; the others are SQL. */
#define AUDIT(actor, what, object, before, after, from)                                                      \
    "INSERT INTO audit (who, user_id, token, address, what, object, before, after) "                         \
    "SELECT a.who, a.user_id, a.token, a.address, " what ", " object ", " before ", " after " FROM " from    \
    ", json_to_record(" actor "::json) AS a(who text, user_id bigint, token bigint, address text)"

/* One statement with the columns: whether it was done, the owner's name, the document (NULL: none). No row:
 * ERR_NOT_FOUND with `missing`; not done: ERR_DENIED with `thing` and its owner. `params` is ended. */
int store_one_change(struct store *store, const struct pg_statement *statement, struct pg_params *params,
                     const char *missing, const char *thing, store_doc_fn *done, void *arg, struct err *err);

/* Text arguments: non-empty, at most `max` bytes. */
int store_check_text(const char *what, const char *text, size_t max, struct err *err);

/* The collector of submits (jobs_insert.c). Destroying it answers what waits with ERR_CANCELLED. */
int store_batcher_create(struct store *store, struct err *err);
void store_batcher_destroy(struct store *store);

#endif
