/* A private PostgreSQL with Motley's schema, a store on an event loop, and macros that make a call and wait
 * for its answer. */
#ifndef MOTLEY_TESTS_STORE_FIXTURE_H
#define MOTLEY_TESTS_STORE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>

#include <cmocka.h>
#include <event2/event.h>

#include "store/jobs.h"
#include "store/models.h"
#include "store/nodes.h"
#include "store/sched.h"
#include "store/users.h"
#include "support/services.h"

struct fixture {
    struct test_dir dir;
    struct test_postgres postgres;
    struct event_base *base;
    struct store *store;
    struct principal user; /* ada */
};

/* Returns a principal for the user with this id, without an administrator's rights. */
static inline struct principal fixture_person(int64_t id, const char *name)
{
    struct principal person = {.kind = PRINCIPAL_USER, .id = id, .scopes = SCOPES_USER, .priority_max = 100};
    snprintf(person.name, sizeof(person.name), "%s", name);
    return person;
}

/* What a callback of the store was given. */
struct answer {
    bool come;
    struct err err; /* code ERR_NONE on success */
    json_t *doc;    /* new reference or NULL */
    int64_t id;
    struct store_job_made made;
    struct principal principal;
};

static inline void answer_take(struct answer *answer, const struct err *err)
{
    assert_false(answer->come);
    answer->come = true;
    err_clear(&answer->err);
    if (err)
        answer->err = *err;
}

static inline void on_done(void *arg, const struct err *err)
{
    answer_take(arg, err);
}

static inline void on_doc(void *arg, const struct err *err, json_t *doc)
{
    struct answer *answer = arg;
    answer_take(answer, err);
    answer->doc = json_incref(doc);
}

static inline void on_id(void *arg, const struct err *err, int64_t id)
{
    struct answer *answer = arg;
    answer_take(answer, err);
    answer->id = id;
}

static inline void on_made(void *arg, const struct err *err, const struct store_job_made *made)
{
    struct answer *answer = arg;
    answer_take(answer, err);
    if (made)
        answer->made = *made;
}

static inline void on_principal(void *arg, const struct err *err, const struct principal *principal)
{
    struct answer *answer = arg;
    answer_take(answer, err);
    if (principal)
        answer->principal = *principal;
}

/* Runs the loop until the answer has come; fails the test after 20 s. */
static inline void await_answer(struct fixture *fixture, struct answer *answer)
{
    uint64_t deadline = clock_mono_ns() + 20000000000u;
    while (!answer->come && clock_mono_ns() < deadline) {
        const struct timeval slice = {.tv_usec = 50000};
        event_base_loopexit(fixture->base, &slice);
        event_base_loop(fixture->base, EVLOOP_ONCE);
    }
    assert_true(answer->come);
}

#define AWAIT(fixture, answer, call)                                                                         \
    do {                                                                                                     \
        struct err await_err_;                                                                               \
        memset(&(answer), 0, sizeof(answer));                                                                \
        err_clear(&await_err_);                                                                              \
        int await_rc_ = (call);                                                                              \
        if (await_rc_ < 0) {                                                                                 \
            fail_msg("%s", await_err_.text);                                                                 \
        }                                                                                                    \
        await_answer((fixture), &(answer));                                                                  \
    } while (0)

/* Makes a call that must succeed, and waits for its answer. answer.doc is then a new reference. */
#define AWAIT_OK(fixture, answer, call)                                                                      \
    do {                                                                                                     \
        AWAIT(fixture, answer, call);                                                                        \
        if ((answer).err.code != ERR_NONE) {                                                                 \
            fail_msg("%s: %s", #call, (answer).err.text);                                                    \
        }                                                                                                    \
    } while (0)

#define E &await_err_

static inline int fixture_setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof(*fixture));
    struct answer answer;
    struct err err;
    unsigned applied = 0;
    test_dir_make(&fixture->dir);
    test_postgres_start(&fixture->postgres, fixture->dir.path);
    if (store_migrate(fixture->postgres.conninfo, 10000, &applied, &err) < 0)
        test_services_fail("migrations", err.text);
    fixture->base = event_base_new();
    const struct store_config config = {.conninfo = fixture->postgres.conninfo};
    if (store_create(fixture->base, &config, &fixture->store, &err) < 0)
        test_services_fail("store", err.text);
    AWAIT_OK(fixture, answer, store_user_put(fixture->store, "ada", on_id, &answer, E));
    fixture->user = fixture_person(answer.id, "ada");
    *state = fixture;
    return 0;
}

static inline int fixture_teardown(void **state)
{
    struct fixture *fixture = *state;
    store_destroy(fixture->store);
    event_base_free(fixture->base);
    test_postgres_stop(&fixture->postgres);
    test_dir_remove(&fixture->dir);
    free(fixture);
    return 0;
}

static const uint8_t fixture_digest[32] = {1, 2, 3};

/* Runs SQL on a connection of its own. */
static inline void fixture_sql(struct fixture *fixture, const char *text)
{
    struct err err;
    struct pg_conn *conn = pg_connect(fixture->postgres.conninfo, 5000, &err);
    assert_non_null(conn);
    if (pg_script(conn, text, &err) < 0)
        fail_msg("%s", err.text);
    pg_disconnect(conn);
}

static inline struct store_job_new fixture_job(const struct fixture *fixture, const char *name, json_t *spec,
                                               json_t *inputs)
{
    return (struct store_job_new){.owner = &fixture->user,
                                  .name = name,
                                  .request_digest = fixture_digest,
                                  .spec = spec,
                                  .inputs = inputs,
                                  .retries_max = 3,
                                  .service = 1,
                                  .steps = 100};
}

#endif
