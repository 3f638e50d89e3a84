/* Tests users, tokens, enrolment, models, blobs, data sets, devices, and migrations. */
#include "store/migrations.h"
#include "store_fixture.h"

#include <pthread.h>

#include "common/digest.h"
#include "store/enrol.h"
#include "store/migrations.h"

static void a_token_is_known_by_its_hash_until_it_ends(void **state)
{
    struct fixture *fixture = *state;
    struct answer answer;
    uint8_t hash[32] = {1}, expired[32] = {2}, unknown[32] = {3};
    const struct store_token_new token = {.hash = hash, .scopes = SCOPES_USER, .note = "laptop"};
    AWAIT_OK(fixture, answer,
             store_token_put(fixture->store, &fixture->user, "ada", &token, on_id, &answer, E));
    int64_t id = answer.id;
    AWAIT_OK(fixture, answer, store_token_find(fixture->store, hash, on_principal, &answer, E));
    assert_int_equal(answer.principal.id, fixture->user.id);
    assert_string_equal(answer.principal.name, "ada");
    assert_int_equal(answer.principal.scopes, SCOPES_USER);
    const struct store_token_new old = {
        .hash = expired, .scopes = SCOPES_USER, .expires_us = clock_wall_us() - 1};
    AWAIT_OK(fixture, answer,
             store_token_put(fixture->store, &fixture->user, "ada", &old, on_id, &answer, E));
    AWAIT(fixture, answer, store_token_find(fixture->store, expired, on_principal, &answer, E));
    assert_int_equal(answer.err.code, ERR_AUTH);
    AWAIT(fixture, answer, store_token_find(fixture->store, unknown, on_principal, &answer, E));
    assert_int_equal(answer.err.code, ERR_AUTH);
    AWAIT_OK(fixture, answer, store_token_list(fixture->store, &fixture->user, on_doc, &answer, E));
    json_t *first = json_array_get(json_object_get(answer.doc, "tokens"), 0);
    assert_string_equal(json_string_value(json_array_get(json_object_get(first, "scopes"), 0)), "jobs:read");
    json_decref(answer.doc);
    AWAIT_OK(fixture, answer, store_token_revoke(fixture->store, &fixture->user, id, on_done, &answer, E));
    AWAIT(fixture, answer, store_token_find(fixture->store, hash, on_principal, &answer, E));
    assert_int_equal(answer.err.code, ERR_AUTH);
    AWAIT(fixture, answer,
          store_token_revoke(fixture->store, &principal_service, 12345, on_done, &answer, E));
    assert_int_equal(answer.err.code, ERR_NOT_FOUND);
}

static void scopes_have_names(void **state)
{
    (void)state;
    for (unsigned bit = 1; bit <= SCOPE_LAST; bit <<= 1) {
        assert_non_null(store_scope_name(bit));
        assert_int_equal(store_scope_from_name(store_scope_name(bit)), bit);
    }
    assert_null(store_scope_name(3));
    assert_int_equal(store_scope_from_name("root"), 0);
}

static void join_put(struct fixture *fixture, const struct store_join_token *token, int64_t lasts_us)
{
    struct answer answer;
    struct store_join_token made = *token;
    made.expires_us = clock_wall_us() + lasts_us;
    AWAIT_OK(fixture, answer,
             store_join_token_put(fixture->store, &principal_service, &made, on_done, &answer, E));
}

static const uint8_t some_key[32] = {77};

static void a_join_token_is_good_once_however_many_ask_at_once(void **state)
{
    struct fixture *fixture = *state;
    struct answer answers[8], answer;
    struct err err;
    uint8_t join[32] = {10}, agents[8][32];
    char names[8][16];
    join_put(fixture, &(struct store_join_token){.hash = join}, 60000000);
    memset(answers, 0, sizeof(answers));
    memset(agents, 0, sizeof(agents));
    for (int i = 0; i < 8; i++) {
        snprintf(names[i], sizeof(names[i]), "racer-%d", i);
        agents[i][0] = 20;
        agents[i][1] = (uint8_t)i;
        const struct store_enrol enrol = {.join_hash = join,
                                          .node = names[i],
                                          .address = "10.0.0.1",
                                          .agent_hash = agents[i],
                                          .key_hash = some_key,
                                          .generation = 1,
                                          .certified_until_s = INT32_MAX};
        assert_int_equal(store_enrol(fixture->store, &enrol, on_id, &answers[i], &err), 0);
    }
    int won = 0, winner = -1;
    for (int i = 0; i < 8; i++) {
        await_answer(fixture, &answers[i]);
        if (answers[i].err.code == ERR_NONE) {
            won++;
            winner = i;
        } else {
            assert_int_equal(answers[i].err.code, ERR_AUTH);
        }
    }
    assert_int_equal(won, 1);
    for (int i = 0; i < 8; i++) {
        AWAIT(fixture, answer, store_token_find(fixture->store, agents[i], on_principal, &answer, E));
        assert_int_equal(answer.err.code, i == winner ? ERR_NONE : ERR_AUTH);
        if (i == winner) {
            assert_int_equal(answer.principal.scopes, SCOPE_AGENT);
            assert_int_equal(answer.principal.id, 0);
        }
    }
    AWAIT_OK(fixture, answer, store_node_list(fixture->store, on_doc, &answer, E));
    assert_int_equal(json_array_size(json_object_get(answer.doc, "nodes")), 1);
    json_decref(answer.doc);
}

static void joining_refuses_bad_names_old_tokens_and_living_namesakes(void **state)
{
    struct fixture *fixture = *state;
    struct answer answer;
    struct err err;
    uint8_t late[32] = {30}, good[32] = {31}, agent[32] = {32}, again[32] = {33};
    static const char *const bad[] = {
        "", "Left", "a/b", "-a", "x x", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const struct store_enrol enrol = {
            .join_hash = good, .node = bad[i], .agent_hash = agent, .key_hash = some_key};
        assert_int_equal(store_enrol(fixture->store, &enrol, on_id, &answer, &err), -1);
        assert_int_equal(err.code, ERR_INVALID);
    }
    join_put(fixture, &(struct store_join_token){.hash = late}, -1);
    const struct store_enrol with_late = {.join_hash = late,
                                          .node = "late",
                                          .agent_hash = agent,
                                          .key_hash = some_key,
                                          .generation = 1,
                                          .certified_until_s = INT32_MAX};
    AWAIT(fixture, answer, store_enrol(fixture->store, &with_late, on_id, &answer, E));
    assert_int_equal(answer.err.code, ERR_AUTH);

    join_put(fixture, &(struct store_join_token){.hash = good}, 60000000);
    const struct store_enrol first = {.join_hash = good,
                                      .node = "left",
                                      .agent_hash = agent,
                                      .key_hash = some_key,
                                      .generation = 1,
                                      .certified_until_s = INT32_MAX};
    AWAIT_OK(fixture, answer, store_enrol(fixture->store, &first, on_id, &answer, E));
    assert_int_equal(answer.id, 1);
    /* The node has said hello and is alive. Its name cannot be taken, and the token of a refused attempt can
     * still enrol another node. */
    json_t *nodes = json_pack("[{s:s, s:s, s:i, s:b}]", "node", "left", "boot", "b1", "seq", 0, "hello", 1);
    const struct store_ingest hello = {.leader = 0, .nodes = nodes};
    AWAIT_OK(fixture, answer, store_ingest(fixture->store, &hello, on_done, &answer, E));
    json_decref(nodes);
    join_put(fixture, &(struct store_join_token){.hash = again}, 60000000);
    const uint8_t other[32] = {34};
    struct store_enrol second = {
        .join_hash = again, .node = "left", .agent_hash = other, .key_hash = some_key, .generation = 2};
    AWAIT(fixture, answer, store_enrol(fixture->store, &second, on_id, &answer, E));
    assert_int_equal(answer.err.code, ERR_CONFLICT);
    second.node = "right";
    second.generation = 1;
    AWAIT_OK(fixture, answer, store_enrol(fixture->store, &second, on_id, &answer, E));
}

/* Stores the token and enrols a node with it. Returns the error code of the answer. */
static enum err_code enrol_as(struct fixture *fixture, const struct store_join_token *token, const char *node,
                              const uint8_t key[32], int64_t generation, const uint8_t bearer[32])
{
    struct answer checked, answer;
    const struct store_enrol enrol = {.join_hash = token->hash,
                                      .node = node,
                                      .address = "",
                                      .agent_hash = bearer,
                                      .key_hash = key,
                                      .generation = generation,
                                      .certified_until_s = clock_wall_us() / 1000000 + 600};
    join_put(fixture, token, 60000000);
    AWAIT(fixture, checked, store_join_check(fixture->store, token->hash, node, on_id, &checked, E));
    AWAIT(fixture, answer, store_enrol(fixture->store, &enrol, on_id, &answer, E));
    if (answer.err.code == ERR_NONE) {
        assert_int_equal(checked.err.code, ERR_NONE);
        assert_int_equal(checked.id, generation);
        assert_int_equal(answer.id, generation);
    }
    return answer.err.code;
}

static void age_node(struct fixture *fixture, const char *name)
{
    struct err err;
    char text[200];
    snprintf(text, sizeof(text), "UPDATE nodes SET last_seen = now() - interval '40 days' WHERE name = '%s'",
             name);
    struct pg_conn *conn = pg_connect(fixture->postgres.conninfo, 5000, &err);
    assert_non_null(conn);
    if (pg_script(conn, text, &err) < 0)
        fail_msg("%s", err.text);
    pg_disconnect(conn);
}

/* The name of a node that has enrolled once stays taken, also when the node was last seen 40 days ago or was
 * removed. */
static void a_name_that_was_seen_is_had_by_its_key_or_an_administrator_alone(void **state)
{
    struct fixture *fixture = *state;
    struct answer answer;
    const uint8_t key[32] = {80}, other[32] = {81},
                  bearers[8][32] = {{90}, {91}, {92}, {93}, {94}, {95}, {96}, {97}};
    const uint8_t hashes[8][32] = {{100}, {101}, {102}, {103}, {104}, {105}, {106}, {107}};
    const int64_t now_s = clock_wall_us() / 1000000;
    struct store_join_token plain = {.hash = hashes[0]}, bound = {.hash = hashes[1], .node = "old"};
    assert_int_equal(enrol_as(fixture, &plain, "old", key, 1, bearers[0]), ERR_NONE);
    age_node(fixture, "old");
    plain.hash = hashes[2];
    assert_int_equal(enrol_as(fixture, &plain, "old", key, 2, bearers[1]), ERR_CONFLICT);
    assert_int_equal(enrol_as(fixture, &bound, "other-name", key, 1, bearers[1]), ERR_AUTH);
    bound.hash = hashes[3];
    assert_int_equal(enrol_as(fixture, &bound, "old", other, 2, bearers[1]), ERR_CONFLICT);
    bound.hash = hashes[4];
    assert_int_equal(enrol_as(fixture, &bound, "old", key, 3, bearers[1]),
                     ERR_CONFLICT); /* the generation is not the next one */
    bound.hash = hashes[5];
    assert_int_equal(enrol_as(fixture, &bound, "old", key, 2, bearers[1]),
                     ERR_NONE); /* the same key and a token for this name */
    AWAIT(fixture, answer, store_token_find(fixture->store, bearers[0], on_principal, &answer, E));
    assert_int_equal(answer.err.code, ERR_AUTH);
    AWAIT_OK(fixture, answer, store_renew_check(fixture->store, "old", key, on_id, &answer, E));
    assert_int_equal(answer.id, 2);
    AWAIT(fixture, answer, store_renew_check(fixture->store, "old", other, on_id, &answer, E));
    assert_int_equal(answer.err.code, ERR_NOT_FOUND);
    AWAIT(fixture, answer, store_node_renew(fixture->store, "old", key, 1, now_s, on_id, &answer, E));
    assert_int_equal(answer.err.code, ERR_NOT_FOUND); /* the certificate is of an earlier generation */
    AWAIT_OK(fixture, answer, store_node_renew(fixture->store, "old", key, 2, now_s - 1, on_id, &answer, E));
    AWAIT(fixture, answer, store_renew_check(fixture->store, "old", key, on_id, &answer, E));
    assert_int_equal(answer.err.code, ERR_NOT_FOUND); /* its certificate has expired */

    AWAIT_OK(fixture, answer,
             store_node_remove(fixture->store, &principal_service, "old", on_doc, &answer, E));
    assert_int_equal(json_integer_value(json_object_get(answer.doc, "generation")), 3);
    json_decref(answer.doc);
    AWAIT(fixture, answer, store_node_remove(fixture->store, &principal_service, "old", on_doc, &answer, E));
    assert_int_equal(answer.err.code, ERR_NOT_FOUND);
    AWAIT(fixture, answer, store_token_find(fixture->store, bearers[1], on_principal, &answer, E));
    assert_int_equal(answer.err.code, ERR_AUTH);
    AWAIT(fixture, answer, store_renew_check(fixture->store, "old", key, on_id, &answer, E));
    assert_int_equal(answer.err.code, ERR_NOT_FOUND);
    bound.hash = hashes[6];
    assert_int_equal(enrol_as(fixture, &bound, "old", key, 4, bearers[2]),
                     ERR_CONFLICT); /* once removed, the name is refused even to its own key */
    AWAIT(fixture, answer, store_join_check(fixture->store, hashes[6], "old", on_id, &answer, E));
    assert_non_null(strstr(answer.err.text, "Unless it was removed, its own machine comes back"));
    const struct store_join_token replace = {.hash = hashes[7], .node = "old", .replace = true};
    assert_int_equal(enrol_as(fixture, &replace, "old", other, 4, bearers[3]), ERR_NONE);
}

/* Messages that a removed node still sends change nothing, and no list shows the node. */
static void a_removed_node_is_gone_from_every_list(void **state)
{
    struct fixture *fixture = *state;
    struct answer answer;
    const uint8_t hash[32] = {110}, bearer[32] = {111};
    const struct store_join_token token = {.hash = hash};
    assert_int_equal(enrol_as(fixture, &token, "leaver", some_key, 1, bearer), ERR_NONE);
    AWAIT_OK(fixture, answer,
             store_node_remove(fixture->store, &principal_service, "leaver", on_doc, &answer, E));
    json_decref(answer.doc);
    json_t *nodes = json_pack("[{s:s, s:s, s:i, s:b}]", "node", "leaver", "boot", "b1", "seq", 0, "hello", 1);
    const struct store_ingest hello = {.leader = 0, .nodes = nodes};
    AWAIT_OK(fixture, answer, store_ingest(fixture->store, &hello, on_done, &answer, E));
    json_decref(nodes);
    AWAIT_OK(fixture, answer, store_node_list(fixture->store, on_doc, &answer, E));
    char *text = json_dumps(answer.doc, 0);
    assert_null(strstr(text, "leaver"));
    free(text);
    json_decref(answer.doc);
}

static void models_blobs_and_data_sets_come_back(void **state)
{
    struct fixture *fixture = *state;
    struct answer answer;
    struct err err;
    static const char hash[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    json_t *config = json_pack("{s:i, s:f}", "layers", 2, "eps", 1e-5);
    json_t *files = json_pack("[{s:s, s:i, s:s}]", "name", "model.safetensors", "size", 5, "sha256", hash);
    struct store_model_new model = {.name = "tiny", .content = "c1", .config = config, .files = files};
    AWAIT_OK(fixture, answer, store_model_put(fixture->store, &fixture->user, &model, on_done, &answer, E));
    model.content = "c2";
    AWAIT_OK(fixture, answer, store_model_put(fixture->store, &fixture->user, &model, on_done, &answer, E));
    AWAIT_OK(fixture, answer, store_model_get(fixture->store, &fixture->user, "tiny", on_doc, &answer, E));
    assert_string_equal(json_string_value(json_object_get(answer.doc, "content")), "c2");
    assert_true(json_equal(json_object_get(answer.doc, "config"), config));
    json_decref(answer.doc);
    AWAIT_OK(fixture, answer,
             store_model_get(fixture->store, &principal_service, "c1", on_doc, &answer,
                             E)); /* jobs may use the earlier content */
    json_decref(answer.doc);
    AWAIT(fixture, answer, store_model_get(fixture->store, &fixture->user, "none", on_doc, &answer, E));
    assert_int_equal(answer.err.code, ERR_NOT_FOUND);
    assert_non_null(strstr(answer.err.text, "none"));
    AWAIT_OK(fixture, answer, store_model_remove(fixture->store, &fixture->user, "tiny", on_doc, &answer, E));
    json_decref(answer.doc);
    AWAIT(fixture, answer, store_model_remove(fixture->store, &fixture->user, "tiny", on_doc, &answer, E));
    assert_int_equal(answer.err.code, ERR_NOT_FOUND);
    json_decref(config);
    json_decref(files);

    const struct store_blob blob = {.sha256 = hash, .size = 5};
    AWAIT_OK(fixture, answer, store_blob_put(fixture->store, &fixture->user, &blob, on_done, &answer, E));
    AWAIT_OK(fixture, answer, store_blob_put(fixture->store, &fixture->user, &blob, on_done, &answer, E));
    AWAIT_OK(fixture, answer, store_blob_get(fixture->store, &fixture->user, hash, on_doc, &answer, E));
    assert_int_equal(json_integer_value(json_object_get(answer.doc, "size")), 5);
    json_decref(answer.doc);
    const struct store_blob wrong = {.sha256 = "../../etc/passwd", .size = 5};
    assert_int_equal(store_blob_put(fixture->store, &fixture->user, &wrong, on_done, &answer, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
}

struct seen_dataset {
    struct answer answer;
    uint8_t sizes[16];
    size_t bytes;
};

static void on_dataset(void *arg, const struct err *err, const struct store_dataset *dataset)
{
    struct seen_dataset *seen = arg;
    answer_take(&seen->answer, err);
    if (dataset) {
        seen->bytes = dataset->sizes_bytes;
        memcpy(seen->sizes, dataset->sizes, sizeof(seen->sizes));
    }
}

static void row_sizes_come_back_as_they_were(void **state)
{
    struct fixture *fixture = *state;
    struct answer answer;
    struct seen_dataset seen = {0};
    struct err err;
    static const char key[] = "ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    const uint8_t sizes[16] = {0, 1, 2, 0xff, 0x5c, 0, 0, 0, 7};
    json_t *stats = json_pack("{s:i}", "rows", 2);
    const struct store_dataset_new dataset = {
        .key = key, .blob = key, .sizes = sizes, .sizes_bytes = sizeof(sizes), .stats = stats};
    AWAIT_OK(fixture, answer, store_dataset_put(fixture->store, &dataset, on_done, &answer, E));
    assert_int_equal(store_dataset_get(fixture->store, key, on_dataset, &seen, &err), 0);
    await_answer(fixture, &seen.answer);
    assert_int_equal(seen.bytes, sizeof(sizes));
    assert_memory_equal(seen.sizes, sizes, sizeof(sizes));
    json_decref(stats);
}

static void draining_names_an_unknown_device(void **state)
{
    struct fixture *fixture = *state;
    struct answer answer;
    AWAIT(fixture, answer,
          store_device_drain(fixture->store, &principal_service,
                             &(struct store_drain){.name = "left/cpu9", .drained = true}, on_doc, &answer,
                             E));
    assert_int_equal(answer.err.code, ERR_NOT_FOUND);
    assert_non_null(strstr(answer.err.text, "left/cpu9"));
}

/* ---- migrations ---- */

struct migration {
    const char *conninfo;
    unsigned applied;
    int rc;
    struct err err;
};

static void *migrate_thread(void *arg)
{
    struct migration *migration = arg;
    migration->rc = store_migrate(migration->conninfo, 5000, &migration->applied, &migration->err);
    return NULL;
}

static void script(struct fixture *fixture, const char *sql)
{
    struct err err;
    struct pg_conn *conn = pg_connect(fixture->postgres.conninfo, 5000, &err);
    assert_non_null(conn);
    assert_int_equal(pg_script(conn, sql, &err), 0);
    pg_disconnect(conn);
}

static void concurrent_migrations_apply_each_once(void **state)
{
    struct fixture *fixture = *state;
    char conninfo[300];
    struct migration migrations[4];
    pthread_t threads[4];
    unsigned applied = 0;
    script(fixture, "CREATE DATABASE fresh");
    snprintf(conninfo, sizeof(conninfo), "host=%s dbname=fresh user=motley", fixture->postgres.dir);
    for (int i = 0; i < 4; i++) {
        migrations[i] = (struct migration){.conninfo = conninfo};
        assert_int_equal(pthread_create(&threads[i], NULL, migrate_thread, &migrations[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        if (migrations[i].rc != 0)
            fail_msg("%s", migrations[i].err.text);
        applied += migrations[i].applied;
    }
    assert_int_equal(applied, store_migration_count);
}

static void an_edited_or_newer_migration_is_refused(void **state)
{
    struct fixture *fixture = *state;
    struct answer answer;
    struct err err;
    unsigned applied = 0;
    script(fixture, "INSERT INTO motley_migrations (number, name, digest) VALUES (9999, '9999_future', 'x')");
    assert_int_equal(store_migrate(fixture->postgres.conninfo, 0, &applied, &err), -1);
    assert_int_equal(err.code, ERR_RELEASE);
    assert_non_null(strstr(err.text, "9999_future"));
    AWAIT(fixture, answer, store_ping(fixture->store, on_done, &answer, E));
    assert_int_equal(answer.err.code, ERR_RELEASE);
    script(fixture, "DELETE FROM motley_migrations WHERE number = 9999; "
                    "UPDATE motley_migrations SET digest = 'edited' WHERE number = 1");
    assert_int_equal(store_migrate(fixture->postgres.conninfo, 0, &applied, &err), -1);
    assert_int_equal(err.code, ERR_CONFLICT);
    AWAIT_OK(fixture, answer, store_ping(fixture->store, on_done, &answer, E));
    assert_int_equal(store_migrate("host=/nowhere/at/all dbname=x", 50, &applied, &err), -1);
    assert_int_equal(err.code, ERR_NET);
}

static void a_bootstrap_token_works(void **state)
{
    struct fixture *fixture = *state;
    struct answer answer;
    struct err err;
    uint8_t hash[32] = {77};
    const struct store_token_new token = {.hash = hash, .scopes = SCOPES_ALL_PEOPLE};
    assert_int_equal(store_bootstrap_token(fixture->postgres.conninfo, "root", &token, &err), 0);
    assert_int_equal(store_bootstrap_token(fixture->postgres.conninfo, "root", &token, &err), 0);
    AWAIT_OK(fixture, answer, store_token_find(fixture->store, hash, on_principal, &answer, E));
    assert_int_equal(answer.principal.scopes, SCOPES_ALL_PEOPLE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_is_known_by_its_hash_until_it_ends),
        cmocka_unit_test(scopes_have_names),
        cmocka_unit_test(a_join_token_is_good_once_however_many_ask_at_once),
        cmocka_unit_test(joining_refuses_bad_names_old_tokens_and_living_namesakes),
        cmocka_unit_test(a_name_that_was_seen_is_had_by_its_key_or_an_administrator_alone),
        cmocka_unit_test(a_removed_node_is_gone_from_every_list),
        cmocka_unit_test(models_blobs_and_data_sets_come_back),
        cmocka_unit_test(row_sizes_come_back_as_they_were),
        cmocka_unit_test(draining_names_an_unknown_device),
        cmocka_unit_test(a_bootstrap_token_works),
        cmocka_unit_test(concurrent_migrations_apply_each_once),
        cmocka_unit_test(an_edited_or_newer_migration_is_refused),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
