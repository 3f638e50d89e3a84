/* Measures how long a submitted job waits for its decision under a real scheduler process with PostgreSQL,
 * Redis and eight agents: with an empty queue, with a thousand jobs queued, and while the planner searches
 * for seconds for another class of jobs. Then how much CPU time two hundred idle agents take of the scheduler
 * and of Redis. With MOTLEY_LONG also with a hundred thousand queued: how long a freed device is idle, and
 * how long after the leader's death the next one decides. The figures are printed; only what no load of the
 * machine explains fails the test.
 */
#include "scheduler/world.h"

/* Beside the world's two agents, six more are there from the start and MANY when idle agents are measured. */
enum { QUEUED = 1000, QUEUED_LONG = 100000, ASKED = 20, ASKED_LONG = 200, MORE = 6, MANY = 198 };
enum { IDLE_S = 5, IDLE_LONG_S = 60, BEAT_MS = 1000 };

static struct world world;
static struct principal bob;
static struct fake_agent *more[MANY];
static size_t more_count;

static void sql(const char *text)
{
    struct err err;
    struct pg_conn *conn = pg_connect(world.fixture->postgres.conninfo, 60000, &err);
    assert_non_null(conn);
    must(pg_script(conn, text, &err), &err);
    pg_disconnect(conn);
}

/* Returns the number that a query selects. A connection recognises a prepared statement by the address of its
 * struct pg_statement, which is on the stack here, so each call opens a connection of its own. */
static int64_t number(const char *query)
{
    struct err err;
    struct pg_result *result = NULL;
    const struct pg_statement statement = {query, query, PG_READ};
    struct pg_conn *conn = pg_connect(world.fixture->postgres.conninfo, 5000, &err);
    assert_non_null(conn);
    must(pg_exec(conn, &statement, NULL, &result, &err), &err);
    int64_t value = pg_i64(result, 0, 0);
    pg_result_free(result);
    pg_disconnect(conn);
    return value;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Submits short jobs for right/cpu0 one after the other. All are of one class; with `fresh` each is of a
 * class of its own, which must be planned first. Prints how long jobs take from submission to the row of
 * their run, in milliseconds of the database's clock, and returns the longest time. */
static double measure(const char *what, const struct principal *owner, bool fresh)
{
    double ms[ASKED_LONG];
    const int asked = getenv("MOTLEY_LONG") ? ASKED_LONG : ASKED;
    for (int i = 0; i < asked; i++) {
        char query[200], name[16];
        if (!fake_living(world.agents[1])) /* another job may be running here, once its plan was found */
            fake_forget(world.agents[1]);
        snprintf(name, sizeof(name), fresh ? "fresh-%d" : "quick", i);
        const struct world_job job = {
            .name = name, .devices = "right/cpu0", .steps = 2, .every = 2, .owner = owner};
        const int64_t id = world_submit(&world, &job);
        WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
        snprintf(query, sizeof(query),
                 "SELECT (extract(epoch FROM r.created_at - j.created_at) * 1e6)::bigint FROM jobs j JOIN "
                 "runs r ON r.job = "
                 "j.id WHERE j.id = %lld",
                 (long long)id);
        ms[i] = 1e-3 * (double)number(query);
    }
    qsort(ms, (size_t)asked, sizeof(*ms), compare_doubles);
    printf("%s: from submission to decision %.1f ms at the median, %.1f ms at the 90th percentile, %.1f ms "
           "at the 99th, %.1f ms at most, of %d jobs\n",
           what, ms[asked / 2], ms[asked * 9 / 10], ms[asked * 99 / 100], ms[asked - 1], asked);
    fflush(stdout);
    return ms[asked - 1];
}

/* Queues `count` copies of job `of`. */
static void queue_like(int64_t of, int count)
{
    char text[400];
    snprintf(text, sizeof(text),
             "INSERT INTO jobs (owner, name, spec, inputs, priority, state, retries_max, time_limit_ms, "
             "steps) SELECT owner, 'waits', spec, inputs, 0, 'queued', 0, 0, 6 + n %% 7 FROM jobs, "
             "generate_series(1, %d) n WHERE id = %lld; NOTIFY motley_jobs",
             count, (long long)of);
    sql(text);
}

/* Waits until every queued job has a place of its own and a reason. */
static void await_places(const char *what)
{
    const uint64_t began_ns = clock_mono_ns();
    WORLD_UNTIL(
        &world,
        number(
            "SELECT (count(*) = count(DISTINCT q.place) AND count(*) = max(q.place) AND "
            "bool_and(coalesce(q.why, '') <> ''))::int FROM jobs j LEFT JOIN (SELECT u.job, u.place, r.why "
            "FROM queue_places p, unnest(p.jobs, p.places, p.reasons) AS u(job, place, reason) "
            "JOIN queue_reasons r ON r.id = u.reason) q ON q.job = j.id WHERE state = 'queued'"));
    printf("%-50s all have places and reasons after %.1f s\n", what,
           1e-9 * (double)(clock_mono_ns() - began_ns));
}

static long resident_mib(pid_t pid)
{
    char path[64], text[64] = "";
    long pages = 0;
    snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
    FILE *file = fopen(path, "r");
    if (file && fgets(text, sizeof(text), file) && strchr(text, ' '))
        pages = strtol(strchr(text, ' '), NULL, 10);
    if (file)
        fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024) / 1024;
}

/* Measures with a hundred thousand queued jobs, also after the leading scheduler was killed. */
static void measure_long(int64_t holder)
{
    const long before = resident_mib(world.schedulers[0]);
    for (int i = 0; i < QUEUED_LONG / QUEUED; i++)
        queue_like(holder, QUEUED);
    await_places("100000 jobs queued");
    measure("100000 jobs queued", NULL, false);
    measure("100000 jobs of another queued", &bob, false);
    printf("the scheduler takes %ld MiB, before %ld MiB\n", resident_mib(world.schedulers[0]), before);
    world.agents[0]->steps_max = 0;
    for (int64_t done = 0; done < ASKED; done++) { /* a fake agent has room for few workers */
        WORLD_UNTIL(&world, number("SELECT count(*) FROM assignments WHERE device = 'left/cpu0' AND state = "
                                   "'done'") > done);
        if (!fake_living(world.agents[0]))
            fake_forget(world.agents[0]);
    }
    world.agents[0]->steps_max = 2;
    printf("a freed device waits %.1f ms at the median\n",
           1e-3 * (double)number("SELECT (percentile_cont(0.5) WITHIN GROUP (ORDER BY idle) * 1e6)::bigint "
                                 "FROM (SELECT extract(epoch FROM begins - lag(ends) OVER (ORDER BY "
                                 "assignment)) AS idle FROM ledger WHERE device = 'left/cpu0') t"));
    world_kill(&world, 0, SIGKILL);
    const int64_t dead_us = clock_wall_us();
    const struct world_job job = {
        .name = "quick", .devices = "right/cpu0", .steps = 2, .every = 2, .owner = &bob};
    const int64_t id = world_submit(&world, &job);
    world_spawn(&world, 0);
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
    printf("from the leader's death to the next decision %.0f ms\n",
           1e-3 * (double)(number("SELECT (extract(epoch FROM max(created_at)) * 1e6)::bigint FROM runs "
                                  "WHERE job = (SELECT "
                                  "max(id) FROM jobs WHERE name = 'quick')") -
                           dead_us));
}

/* Adds agents until there are `count` beside the world's two. Each has one device. */
static void add_agents(size_t count)
{
    for (; more_count < count; more_count++) {
        char node[32];
        snprintf(node, sizeof(node), "more-%zu", more_count);
        world_enrol(&world, node, (uint8_t)(more_count + 10));
        more[more_count] =
            fake_agent_start(world.fixture->base, world.redis.address, node, 1, 1000 + more_count);
        more[more_count]->beat_ms = BEAT_MS;
    }
    WORLD_UNTIL(&world,
                number("SELECT count(*) FROM nodes WHERE state = 'alive'") == (int64_t)count + WORLD_AGENTS);
}

/* Returns the seconds of CPU time that the process and its threads have used. */
static double cpu_s(pid_t pid)
{
    char path[64], text[512] = "";
    unsigned long user = 0, system = 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    const char *after = file && fgets(text, sizeof(text), file) ? strrchr(text, ')') : NULL;
    assert_non_null(after);
    assert_int_equal(
        sscanf(after + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system), 2);
    fclose(file);
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

static void idle_agents_take_little(void **state)
{
    (void)state;
    add_agents(MANY);
    for (int i = 0; i < WORLD_AGENTS; i++)
        world.agents[i]->beat_ms = BEAT_MS;
    /* Their links are given to the database: 64 at a time, measuring all takes minutes. */
    sql("INSERT INTO links (from_node, to_node, document) SELECT a.name, b.name, json_build_object('from', "
        "a.name, "
        "'to', b.name, 'latency_s', 1e-4, 'bytes_per_s', 1e9) FROM nodes a, nodes b WHERE a.name <> b.name "
        "ON "
        "CONFLICT DO NOTHING; NOTIFY motley_jobs");
    WORLD_UNTIL(&world, number("SELECT count(*) FROM requests") == 0);
    const double seconds = getenv("MOTLEY_LONG") ? IDLE_LONG_S : IDLE_S;
    const pid_t scheduler = world.schedulers[0], redis = world.redis.pid;
    const uint64_t from_ns = clock_mono_ns();
    const double scheduler_s = cpu_s(scheduler), redis_s = cpu_s(redis);
    while (clock_mono_ns() - from_ns < (uint64_t)(seconds * 1e9))
        world_turn(&world);
    const double taken_s = 1e-9 * (double)(clock_mono_ns() - from_ns);
    const double share = (cpu_s(scheduler) - scheduler_s) / taken_s;
    printf("%d idle agents: %.1f %% of a core for the scheduler, %.1f %% for Redis, over %.0f s\n",
           MANY + WORLD_AGENTS, 100 * share, 100 * (cpu_s(redis) - redis_s) / taken_s, taken_s);
    assert_true(share < 0.3); /* 5 % is asked; sanitizers multiply it */
}

static void decisions_are_quick_whatever_waits(void **state)
{
    (void)state;
    char text[600];
    measure("nothing queued", NULL, false);
    world.agents[0]->steps_max = 2;
    const struct world_job holds = {.name = "holder", .devices = "left/cpu0", .steps = 6, .every = 3};
    const int64_t holder = world_submit(&world, &holds);
    WORLD_UNTIL(&world, world_is(&world, holder, "running"));
    queue_like(holder, QUEUED);
    snprintf(text, sizeof(text), "%d jobs queued", QUEUED);
    measure(text, NULL, false);
    snprintf(text, sizeof(text), "%d jobs of another queued", QUEUED);
    measure(text, &bob, false);
    const struct world_job searches = {
        .name = "long-search", .devices = "right/cpu0", .steps = 2, .every = 2};
    const int64_t searched = world_submit(&world, &searches);
    const double searching_ms = measure("a search of 5 s under way, each of a class of its own", &bob, true);
    assert_true(searching_ms < 3000);
    WORLD_UNTIL(&world, world_is(&world, searched, "succeeded"));
    if (getenv("MOTLEY_LONG"))
        measure_long(holder);
    queue_like(holder, QUEUED); /* of more kinds than one decision takes */
    sql("UPDATE jobs SET spec = jsonb_set(spec::jsonb, '{train,steps}', to_jsonb(id % 300))::json WHERE name "
        "= 'waits' AND "
        "state = 'queued' AND id % 2 = 0; NOTIFY motley_jobs");
    await_places("jobs of 151 kinds queued");
    sql("UPDATE jobs SET state = 'cancelled', ended_at = now() WHERE name = 'waits'");
    world.agents[0]->steps_max = 0;
    WORLD_UNTIL(&world, world_is(&world, holder, "succeeded"));
}

static int make(void **state)
{
    struct answer answer;
    world.unchecked = true;
    world.lost_ms = WORLD_PATIENT_MS;
    world_make(&world, state);
    AWAIT_OK(world.fixture, answer, store_user_put(world.fixture->store, "bob", on_id, &answer, E));
    bob = fixture_person(answer.id, "bob");
    add_agents(MORE);
    return 0;
}

static int end(void **state)
{
    (void)state;
    for (size_t i = 0; i < more_count; i++)
        fake_agent_end(more[i]);
    world_end(&world);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--scheduler") == 0)
        return world_scheduler_main(argv[2]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(decisions_are_quick_whatever_waits),
                                       cmocka_unit_test(idle_agents_take_little)};
    return cmocka_run_group_tests(tests, make, end);
}
