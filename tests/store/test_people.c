/* Users, tokens, joining, models, blobs, data sets, devices; migrations. */
#include "store/migrations.h"
#include "store_fixture.h"

#include <pthread.h>

#include "common/digest.h"
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
    for (unsigned bit = 1; bit <= SCOPE_AGENT; bit <<= 1) {
        assert_non_null(store_scope_name(bit));
        assert_int_equal(store_scope_from_name(store_scope_name(bit)), bit);
    }
    assert_null(store_scope_name(3));
    assert_int_equal(store_scope_from_name("root"), 0);
}

static void a_join_token_is_good_once_however_many_ask_at_once(void **state)
{
    struct fixture *fixture = *state;
    struct answer answers[8], answer;
    struct err err;
    uint8_t join[32] = {10}, agents[8][32];
    char names[8][16];
    AWAIT_OK(fixture, answer,
             store_join_token_put(fixture->store, &fixture->user, join, clock_wall_us() + 60000000, on_done,
                                  &answer, E));
    memset(answers, 0, sizeof(answers));
    memset(agents, 0, sizeof(agents));
    for (int i = 0; i < 8; i++) {
        snprintf(names[i], sizeof(names[i]), "racer-%d", i);
        agents[i][0] = 20;
        agents[i][1] = (uint8_t)i;
        const struct store_enrol enrol = {
            .join_hash = join, .node = names[i], .address = "10.0.0.1", .agent_hash = agents[i]};
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
        const struct store_enrol enrol = {.join_hash = good, .node = bad[i], .agent_hash = agent};
        assert_int_equal(store_enrol(fixture->store, &enrol, on_id, &answer, &err), -1);
        assert_int_equal(err.code, ERR_INVALID);
    }
    AWAIT_OK(fixture, answer,
             store_join_token_put(fixture->store, &principal_service, late, clock_wall_us() - 1, on_done,
                                  &answer, E));
    const struct store_enrol with_late = {.join_hash = late, .node = "late", .agent_hash = agent};
    AWAIT(fixture, answer, store_enrol(fixture->store, &with_late, on_id, &answer, E));
    assert_int_equal(answer.err.code, ERR_AUTH);

    AWAIT_OK(fixture, answer,
             store_join_token_put(fixture->store, &principal_service, good, clock_wall_us() + 60000000,
                                  on_done, &answer, E));
    const struct store_enrol first = {.join_hash = good, .node = "left", .agent_hash = agent};
    AWAIT_OK(fixture, answer, store_enrol(fixture->store, &first, on_id, &answer, E));
    assert_int_equal(answer.id, 1);
    /* It says hello: alive. Its name cannot be taken, and the second token stays good for another. */
    json_t *nodes = json_pack("[{s:s, s:s, s:i, s:b}]", "node", "left", "boot", "b1", "seq", 0, "hello", 1);
    const struct store_ingest hello = {.leader = 0, .nodes = nodes};
    AWAIT_OK(fixture, answer, store_ingest(fixture->store, &hello, on_done, &answer, E));
    json_decref(nodes);
    AWAIT_OK(fixture, answer,
             store_join_token_put(fixture->store, &principal_service, again, clock_wall_us() + 60000000,
                                  on_done, &answer, E));
    const uint8_t other[32] = {34};
    struct store_enrol second = {.join_hash = again, .node = "left", .agent_hash = other};
    AWAIT(fixture, answer, store_enrol(fixture->store, &second, on_id, &answer, E));
    assert_int_equal(answer.err.code, ERR_CONFLICT);
    second.node = "right";
    AWAIT_OK(fixture, answer, store_enrol(fixture->store, &second, on_id, &answer, E));
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
    AWAIT_OK(
        fixture, answer,
        store_model_get(fixture->store, &principal_service, "c1", on_doc, &answer, E)); /* jobs keep it */
    json_decref(answer.doc);
    AWAIT(fixture, answer, store_model_get(fixture->store, &fixture->user, "none", on_doc, &answer, E));
    assert_int_equal(answer.err.code, ERR_NOT_FOUND);
    assert_non_null(strstr(answer.err.text, "none"));
    AWAIT_OK(fixture, answer, store_model_remove(fixture->store, &fixture->user, "tiny", on_doc, &answer, E));
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
    if (dataset != NULL) {
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
          store_device_drain(fixture->store, &principal_service, "left/cpu9", true, on_doc, &answer, E));
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
        if (migrations[i].rc != 0) {
            fail_msg("%s", migrations[i].err.text);
        }
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
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "9999_future"));
    AWAIT(fixture, answer, store_ping(fixture->store, on_done, &answer, E));
    assert_int_equal(answer.err.code, ERR_UNSUPPORTED);
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
        cmocka_unit_test(models_blobs_and_data_sets_come_back),
        cmocka_unit_test(row_sizes_come_back_as_they_were),
        cmocka_unit_test(draining_names_an_unknown_device),
        cmocka_unit_test(a_bootstrap_token_works),
        cmocka_unit_test(concurrent_migrations_apply_each_once),
        cmocka_unit_test(an_edited_or_newer_migration_is_refused),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
