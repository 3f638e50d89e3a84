/* Tests how an agent joins a cluster, returns, and leaves. */
#include "agent/daemon_world.h"

static void a_server_of_another_cluster_is_refused(void **state)
{
    (void)state;
    struct world *world = world_make("right");
    struct err err;
    uint8_t other[TLS_FINGERPRINT_SIZE] = {1, 2, 3};
    assert_int_equal(tls_join_token_format("secret", other, world->token, &err), 0);
    agent_start(world);
    int status = 0;
    assert_int_equal(waitpid(world->agent, &status, 0), world->agent);
    world->agent = 0;
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    char path[256];
    struct buf text;
    buf_init(&text, 65536);
    snprintf(path, sizeof(path), "%s/agent.log", world->dir.path);
    assert_int_equal(file_read_all(path, 65535, &text, &err), 0);
    assert_non_null(strstr(buf_str(&text), "another cluster"));
    snprintf(path, sizeof(path), "%s/agent.json", world->home);
    assert_int_not_equal(access(path, F_OK), 0);
    buf_fini(&text);
    void *done = world;
    world_down(&done);
}

static atomic_llong clock_behind_s; /* of the api, whose certificates bear its dates */

/* Stands in for the C library's time() in this program, where OpenSSL dates the api's certificates by it. */
__attribute__((visibility("default"))) time_t time(time_t *out)
{
    const time_t now = (time_t)(clock_wall_us() / 1000000 - clock_behind_s);
    if (out)
        *out = now;
    return now;
}

/* A certificate's lifetime counts from when it came, whatever the two clocks say. */
static void an_agent_whose_clock_is_years_ahead_renews_as_rarely_as_others(void **state)
{
    (void)state;
    struct world *world = world_make("left");
    clock_behind_s = 5LL * 365 * 86400;
    agent_start(world);
    await_lacking(world, NULL);
    for (int beat = 0; beat < 3; beat++)
        json_decref(await(world, "heartbeat", -1));
    assert_int_equal(world->api.renewals, 0);
    clock_behind_s = 0;
    void *done = world;
    assert_int_equal(world_down(&done), 0);
}

/* The files of a copied home may be younger than its certificate, whose own end counts too. */
static void a_copy_of_a_home_renews_when_its_certificate_is_due(void **state)
{
    (void)state;
    struct world *world = world_make("left");
    clock_behind_s = 450; /* of a lifetime of 600 s */
    agent_start(world);
    await_lacking(world, NULL);
    assert_int_equal(world->api.renewals, 0);
    clock_behind_s = 0;
    agent_kill(world, SIGTERM);
    events_forget(world);
    agent_start(world);
    uint64_t deadline_ns = clock_mono_ns() + 15000000000u;
    while (world->api.renewals == 0) {
        assert_true(clock_left_ms(deadline_ns, 1) > 0);
        poll(NULL, 0, 2);
    }
    void *done = world;
    assert_int_equal(world_down(&done), 0);
}

static char *log_of(const struct world *world)
{
    char path[256];
    struct buf text;
    struct err err;
    buf_init(&text, 1 << 20);
    snprintf(path, sizeof(path), "%s/agent.log", world->dir.path);
    assert_int_equal(file_read_all(path, 1 << 20, &text, &err), 0);
    char *copy = strdup(buf_str(&text));
    buf_fini(&text);
    return copy;
}

static void await_end(struct world *world, int wanted)
{
    int status = 0;
    uint64_t deadline_ns = clock_mono_ns() + 15000000000u;
    while (waitpid(world->agent, &status, WNOHANG) != world->agent) {
        assert_true(clock_left_ms(deadline_ns, 1) > 0);
        poll(NULL, 0, 2);
    }
    world->agent = 0;
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), wanted);
}

static bool has_ended(void *arg)
{
    const int64_t *ends_s = arg;
    return clock_wall_us() / 1000000 > *ends_s;
}

/* A machine that was off for longer than its certificate's lifetime needs a token, and returns with the key
 * that it had. */
static void a_machine_that_was_away_for_long_comes_back_with_its_old_key(void **state)
{
    (void)state;
    struct world *world = world_make("left");
    char token[TLS_JOIN_TOKEN_SIZE];
    world->api.lifetime_s = 2;
    int64_t ends_s = clock_wall_us() / 1000000 + 60;
    agent_start(world);
    await_lacking(world, NULL);
    assert_true(world->api.enrolments == 1);
    agent_kill(world, SIGTERM);
    ends_s = clock_wall_us() / 1000000 + 2;
    assert_true(test_wait_until(has_ended, &ends_s, 10000));
    world->api.lifetime_s = 600;
    memcpy(token, world->token, sizeof(token));
    world->token[0] = '\0';
    agent_start(world);
    await_end(world, 4);
    char *log = log_of(world);
    assert_non_null(strstr(log, "motley join-token --node left"));
    free(log);
    memcpy(world->token, token, sizeof(token));
    events_forget(world);
    agent_start(world);
    await_lacking(world, NULL);
    assert_true(world->api.enrolments == 2);
    assert_memory_equal(world->api.keys[0], world->api.keys[1], TLS_FINGERPRINT_SIZE);
    void *done = world;
    assert_int_equal(world_down(&done), 0);
}

/* Fewer ports than devices and one more are refused, on a machine of CPUs alone, too. */
static void an_agent_with_too_few_ports_says_how_many_it_needs(void **state)
{
    (void)state;
    struct world *world = world_make("left");
    world_configure(world, "ports: 7000-7000");
    agent_start(world);
    await_end(world, 2);
    char *log = log_of(world);
    assert_non_null(strstr(log, "ports: 7000-7000 has 1, and "));
    free(log);
    void *done = world;
    assert_int_equal(world_down(&done), 0);
}

/* A `removed` message makes the agent ask the api. It acts only when the api refuses it twice. */
static void an_agent_that_was_removed_says_so_and_ends_with_its_workers(void **state)
{
    (void)state;
    struct world *world = world_make("left");
    char path[256];
    agent_start(world);
    await_lacking(world, NULL);
    say(world, assign(1, 1, "left/cpu0", "wait"));
    json_decref(await(world, "worker_ready", 1));
    char certificate[256];
    struct buf before, after;
    struct err err = {0};
    buf_init(&before, 65536);
    buf_init(&after, 65536);
    snprintf(certificate, sizeof(certificate), "%s/tls/node.crt", world->home);
    assert_int_equal(file_read_all(certificate, 65536, &before, &err), 0);
    world->api.other_ca = true; /* the certificate of another CA does not replace a good one */
    say_quietly(world, json_pack("{s:s}", "type", "removed")); /* untrue: the api still knows the node */
    uint64_t deadline_ns = clock_mono_ns() + 15000000000u;
    for (bool renewed = false; !renewed;) {
        char *said = log_of(world);
        renewed = strstr(said, "another CA") || strstr(said, "certificate_renewed");
        free(said);
        assert_true(clock_left_ms(deadline_ns, 1) > 0);
        poll(NULL, 0, 2);
    }
    assert_int_equal(kill(world->agent, 0), 0);
    agent_kill(world, SIGUSR2); /* a new agent may ask at once; this one only every 20 s */
    assert_int_equal(file_read_all(certificate, 65536, &after, &err), 0);
    assert_string_equal(buf_str(&before), buf_str(&after));
    buf_fini(&before);
    buf_fini(&after);
    world->api.forgot = true;
    agent_start(world);
    await_lacking(world, NULL);
    say_quietly(world, json_pack("{s:s}", "type", "removed"));
    await_end(world, 4);
    char *log = log_of(world);
    assert_non_null(strstr(log, "node_removed node=left"));
    free(log);
    snprintf(path, sizeof(path), "%s/agent.json.removed", world->home);
    assert_true(file_exists(path));
    snprintf(path, sizeof(path), "%s/tls/node.key", world->home);
    assert_false(file_exists(path));
    void *done = world;
    assert_int_equal(world_down(&done), 0);
}

int main(int argc, char **argv)
{
    world_begin(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_server_of_another_cluster_is_refused),
        cmocka_unit_test(an_agent_whose_clock_is_years_ahead_renews_as_rarely_as_others),
        cmocka_unit_test(a_copy_of_a_home_renews_when_its_certificate_is_due),
        cmocka_unit_test(a_machine_that_was_away_for_long_comes_back_with_its_old_key),
        cmocka_unit_test(an_agent_with_too_few_ports_says_how_many_it_needs),
        cmocka_unit_test(an_agent_that_was_removed_says_so_and_ends_with_its_workers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
