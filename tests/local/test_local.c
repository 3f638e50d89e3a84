/* Tests the supervisor with small services made for the test, and what `motley up` reads and writes before it
 * starts anything. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/file.h"
#include "common/json.h"
#include "common/pg.h"
#include "common/process.h"
#include "common/yaml.h"
#include "local/config.h"
#include "local/home.h"
#include "local/local.h"
#include "local/postgres.h"
#include "local/state.h"
#include "support/scratch.h"

enum { DEADLINE_MS = 15000 };

static void write_text(const char *path, const char *text)
{
    struct err err = {0};
    if (file_write_atomic(path, text, strlen(text), 0600, &err) < 0)
        fail_msg("%s", err.text);
}

/* ---- configuration ---- */

static int config_read(const char *text, struct local_config *config, struct err *err)
{
    json_t *document = yaml_parse(text, strlen(text), err);
    assert_non_null(document);
    int status = local_config_parse(document, config, err);
    json_decref(document);
    return status;
}

/* Without a configuration the agent may lower the CPU's memory: an integrated card has the same. */
static void a_machine_without_a_configuration_gives_no_fixed_memory(void **state)
{
    (void)state;
    struct err err = {0};
    json_t *document = local_config_default(&err);
    const json_t *agent = json_array_get(json_object_get(document, "agents"), 0);
    const json_t *cpu = json_array_get(json_object_get(agent, "devices"), 0);
    assert_null(json_object_get(cpu, "memory"));
    assert_true(json_integer_value(json_object_get(cpu, "memory_at_most")) >= 64 << 20);
    json_decref(document);
}

static void a_configuration_is_filled_with_defaults(void **state)
{
    (void)state;
    struct err err = {0};
    struct local_config config;
    assert_int_equal(
        0,
        config_read("{agents: [{name: left, devices: [{kind: cpu, threads: 1, memory: 450MiB, isa: avx2}]}]}",
                    &config, &err));
    assert_string_equal("127.0.0.1", config.host);
    assert_false(config.tls);
    assert_int_equal(1, config.schedulers);
    assert_int_equal(1, json_array_size(config.agents));
    const json_t *agent = json_array_get(config.agents, 0);
    assert_string_equal(json_string_value(json_object_get(agent, "cards")), "named");
    local_config_fini(&config);
    /* An agent without a list of devices uses all that its machine has, as one without a configuration does.
     */
    assert_int_equal(0, config_read("{agents: [{name: whole}]}", &config, &err));
    agent = json_array_get(config.agents, 0);
    assert_string_equal(json_string_value(json_object_get(agent, "cards")), "all");
    assert_int_equal(json_array_size(json_object_get(agent, "devices")), 1);
    local_config_fini(&config);
    assert_int_equal(
        0, config_read("{listen: '10.0.0.1:7070', advertise: lab.example, agents: []}", &config, &err));
    assert_true(config.tls);
    assert_int_equal(7070, config.port);
    assert_string_equal("10.0.0.1", config.host);
    assert_string_equal("lab.example", config.advertise);
    struct local_config again;
    assert_int_equal(0, local_config_parse(config.document, &again, &err));
    assert_true(json_equal(config.document, again.document));
    local_config_fini(&again);
    local_config_fini(&config);
}

static void a_wrong_configuration_is_refused_by_its_path(void **state)
{
    (void)state;
    static const struct {
        const char *text, *path;
    } cases[] = {
        {"{}", "agents"},
        {"{agents: [], agent: 1}", "agent"},
        {"{agents: [{devices: [{}]}]}", "agents[0].name"},
        {"{agents: [{name: A, devices: [{}]}]}", "agents[0].name"},
        {"{agents: [{name: ../x, devices: [{}]}]}", "agents[0].name"},
        {"{agents: [{name: a, devices: []}]}", "agents[0].devices"},
        {"{agents: [{name: a, devices: [{isa: neon}]}]}", "devices[0].isa"},
        {"{agents: [{name: a, devices: [{memory: lots}]}]}", "devices[0].memory"},
        {"{agents: [{name: a, devices: [{threads: 0}]}]}", "devices[0].threads"},
        {"{agents: [{name: a, devices: [{}]}, {name: a, devices: [{}]}]}", "agents"},
        {"{agents: [], schedulers: 0}", "schedulers"},
        {"{agents: [], links: [{between: [a, b], rate: 1Gbit/s}]}", "links[0].between"},
        {"{agents: [], listen: 10.0.0.1, tls: false}", "tls"},
        {"{agents: [], listen: '127.0.0.1:70000'}", "listen"},
        {"{agents: [], listen: ':80'}", "listen"},
        {"{agents: [], listen: '0.0.0.0:8443'}", "advertise"},
        {"{agents: [], listen: '[::]:8443'}", "advertise"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct err err = {0};
        struct local_config config;
        if (config_read(cases[i].text, &config, &err) == 0)
            fail_msg("accepted: %s", cases[i].text);
        if (err.code != ERR_INVALID || !strstr(err.text, cases[i].path))
            fail_msg("%s: %s", cases[i].text, err.text);
        local_config_fini(&config);
    }
}

/* ---- home ---- */

static void secrets_are_made_once_and_only_for_their_owner(void **state)
{
    (void)state;
    struct scratch scratch;
    struct err err = {0};
    struct stat info;
    char one[HOME_SECRET_BYTES];
    char two[HOME_SECRET_BYTES];
    char other[HOME_SECRET_BYTES];
    assert_int_equal(0, scratch_make(&scratch));
    assert_int_equal(0, home_make(scratch.dir, &err));
    assert_int_equal(0, home_secret(scratch.dir, "admin.token", one, &err));
    assert_int_equal(0, home_secret(scratch.dir, "admin.token", two, &err));
    assert_int_equal(0, home_secret(scratch.dir, "redis.password", other, &err));
    assert_string_equal(one, two);
    assert_string_not_equal(one, other);
    assert_int_equal(0, stat(scratch_path(&scratch, "run/admin.token"), &info));
    assert_int_equal(0600, info.st_mode & 0777);
    assert_int_equal(0, home_certificates(scratch.dir, "127.0.0.1", &err));
    assert_int_equal(0, stat(scratch_path(&scratch, "ca/ca.key"), &info));
    assert_int_equal(0600, info.st_mode & 0777);
    scratch_remove(&scratch);
}

static void a_home_longer_than_the_system_allows_is_refused(void **state)
{
    (void)state;
    char longest[5000];
    char home[LOCAL_HOME_BYTES];
    struct err err = {0};
    memset(longest, 'a', sizeof(longest));
    longest[0] = '/';
    longest[sizeof(longest) - 1] = '\0';
    assert_int_equal(-1, local_home(longest, home, &err));
    assert_int_equal(ERR_TOO_BIG, err.code);
    assert_int_equal(0, local_home("/tmp/x///", home, &err));
    assert_string_equal("/tmp/x", home);
}

static void an_odd_or_long_home_has_a_short_plain_place(void **state)
{
    (void)state;
    static const char *const names[] = {"a b", "\"q'\\", "#%s$(x)", "\xc3\xbc", "line\nbreak"};
    struct scratch scratch;
    struct err err = {0};
    char home[PATH_MAX];
    char place[HOME_PLACE_BYTES];
    char again[HOME_PLACE_BYTES];
    char real[PATH_MAX];
    assert_int_equal(0, scratch_make(&scratch));
    assert_int_equal(0, home_place(scratch.dir, true, place, &err));
    assert_string_equal(scratch.dir, place);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) + 1; i++) {
        int length = snprintf(home, sizeof(home), "%s/%s", scratch.dir, i < 5 ? names[i] : "long");
        while (i == 5 && length < 3800) /* folders with names of 200 bytes */
            length += snprintf(home + length, sizeof(home) - (size_t)length, "/%0200d", 7);
        assert_int_equal(-1, home_place(home, false, place, &err));
        assert_int_equal(ERR_NOT_FOUND, err.code);
        assert_int_equal(0, file_mkdirs(home, 0700, &err));
        assert_int_equal(0, home_place(home, true, place, &err));
        assert_true(strlen(place) < 64 && !strpbrk(place, " '\"\\#%$\n"));
        assert_non_null(realpath(place, real));
        assert_string_equal(home, real);
        assert_int_equal(0, home_place(home, false, again, &err));
        assert_string_equal(place, again);
        assert_int_equal(0, unlink(place)); /* programs that clean /tmp delete it */
        assert_int_equal(-1, home_place(home, false, again, &err));
        assert_int_equal(0, home_place(home, true, again, &err));
        assert_int_equal(0, unlink(place));
    }
    scratch_remove(&scratch);
}

/* PostgreSQL believes whoever reaches its socket, and is believed by us: so a socket of another user's
 * process at its place is no server. */
static void what_another_user_listens_at_is_not_our_server(void **state)
{
    (void)state;
    struct scratch scratch;
    struct postgres_place place;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const struct passwd *somebody = getpwnam("nobody");
    const uid_t uid = somebody ? somebody->pw_uid : 0;
    struct err err = {0};
    assert_int_equal(0, scratch_make(&scratch));
    assert_int_equal(0, chmod(scratch.dir, 0755)); /* so that the server's user can pass through */
    if (geteuid() != 0 || uid == 0 || postgres_find(scratch.dir, &place, &err) < 0) {
        print_message("skipped: only root can play another user, beside an installed PostgreSQL. %s\n",
                      err.text);
        scratch_remove(&scratch);
        skip();
    }
    assert_int_equal(0, mkdir(place.dir, 0700));
    assert_int_equal(0, chown(place.dir, uid, (gid_t)-1));
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "%.80s/.s.PGSQL.5432", place.dir);
    assert_int_equal(0, seteuid(uid));
    const int bound = bind(fd, (const struct sockaddr *)&address, sizeof(address)), listens = listen(fd, 1);
    assert_int_equal(0, seteuid(0));
    assert_int_equal(0, bound | listens);
    assert_null(pg_connect(place.conninfo, 10000, &err));
    assert_non_null(strstr(err.text, "requirepeer"));
    close(fd);
    scratch_remove(&scratch);
}

static void a_port_is_kept_and_a_taken_one_is_named(void **state)
{
    (void)state;
    struct scratch scratch;
    struct err err = {0};
    uint16_t first = 0;
    uint16_t second = 0;
    assert_int_equal(0, scratch_make(&scratch));
    assert_int_equal(0, home_make(scratch.dir, &err));
    assert_int_equal(0, home_port(scratch.dir, "api", "127.0.0.1", 0, &first, &err));
    assert_int_equal(0, home_port(scratch.dir, "api", "127.0.0.1", 0, &second, &err));
    assert_int_equal(first, second);
    unsigned outgoing = 0; /* lowest port of outgoing connections */
    FILE *range = fopen("/proc/sys/net/ipv4/ip_local_port_range", "r");
    assert_true(!range || fscanf(range, "%u", &outgoing) == 1);
    assert_true(!range || (first >= 10240 && first < outgoing));
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(first), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(0, bind(fd, (const struct sockaddr *)&address, sizeof(address)));
    assert_int_equal(0, listen(fd, 1));
    /* Another free port is used. */
    assert_int_equal(0, home_port(scratch.dir, "api", "127.0.0.1", 0, &second, &err));
    assert_int_not_equal(first, second);
    /* A port that was asked for by number is not replaced. */
    assert_int_equal(-1, home_port(scratch.dir, "api", "127.0.0.1", first, &second, &err));
    assert_int_equal(ERR_CONFLICT, err.code);
    char number[8];
    snprintf(number, sizeof(number), "%u", first);
    assert_non_null(strstr(err.text, number));
    if (range)
        (void)fclose(range);
    close(fd);
    scratch_remove(&scratch);
}

/* ---- supervisor ---- */

struct supervised {
    struct scratch scratch;
    pid_t supervisor;
};

/* Starts a supervisor of these services; @ in the text stands for the folder. */
static void supervise(struct supervised *s, const char *services)
{
    struct err err = {0};
    char text[4096];
    assert_int_equal(0, scratch_make(&s->scratch));
    assert_int_equal(0, home_make(s->scratch.dir, &err));
    char *out = text;
    for (const char *c = services; *c != '\0'; c++) /* replaces @ by the folder */
        out += *c == '@' ? snprintf(out, 300, "%s", s->scratch.dir) : snprintf(out, 2, "%c", *c);
    write_text(scratch_path(&s->scratch, "run/services.json"), text);
    s->supervisor = fork();
    if (s->supervisor == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (!freopen("/dev/null", "w", stderr) || !freopen("/dev/null", "w", stdout))
            _exit(1);
        _exit(local_supervise(s->scratch.dir, &err) < 0);
    }
    assert_true(s->supervisor > 0);
}

/* Returns the pid of a service once it runs and is not 'not_this'. */
static pid_t service_wait(const struct supervised *s, const char *name, pid_t not_this)
{
    const uint64_t deadline = clock_mono_ns() + (uint64_t)DEADLINE_MS * 1000000u;
    while (clock_left_ms(deadline, 1) > 0) {
        json_t *state = state_load(s->scratch.dir);
        const json_t *services = json_object_get(state, "services");
        for (size_t i = 0; i < json_array_size(services); i++) {
            const json_t *service = json_array_get(services, i);
            const char *other = json_string_value(json_object_get(service, "name"));
            const pid_t pid = (pid_t)json_integer_value(json_object_get(service, "pid"));
            if (strcmp(other, name) == 0 && pid != 0 && pid != not_this) {
                json_decref(state);
                return pid;
            }
        }
        json_decref(state);
        poll(NULL, 0, 5);
    }
    fail_msg("service %s does not run", name);
    return 0;
}

static bool file_wait(const char *path)
{
    const uint64_t deadline = clock_mono_ns() + (uint64_t)DEADLINE_MS * 1000000u;
    while (!file_exists(path) && clock_left_ms(deadline, 1) > 0)
        poll(NULL, 0, 5);
    return file_exists(path);
}

static void supervise_end(struct supervised *s)
{
    int status = -1;
    kill(s->supervisor, SIGTERM);
    assert_int_equal(s->supervisor, waitpid(s->supervisor, &status, 0));
    assert_int_equal(0, status);
    scratch_remove(&s->scratch);
}

static void what_dies_is_started_again_and_all_is_stopped_at_the_end(void **state)
{
    (void)state;
    struct supervised s;
    supervise(&s, "[{\"role\":\"api\",\"name\":\"one\",\"argv\":[\"/bin/sleep\",\"1000\"],\"phase\":0},"
                  "{\"role\":\"api\",\"name\":\"two\",\"argv\":[\"/bin/sh\",\"-c\",\"trap '' TERM; while :; "
                  "do sleep 1; done\"],\"stop_signal\":9},"
                  "{\"role\":\"signer\",\"name\":\"signer\",\"argv\":[\"/bin/sleep\",\"1000\"]}]");
    const pid_t signer = service_wait(&s, "signer", 0);
    const uint64_t signer_start = process_start_time(signer);
    assert_true(signer_start != 0);
    const pid_t first = service_wait(&s, "one", 0);
    const pid_t stubborn = service_wait(&s, "two", 0);
    kill(first, SIGKILL);
    const pid_t second = service_wait(&s, "one", first);
    const uint64_t start = process_start_time(second);
    kill(stubborn, SIGKILL);
    kill(second, SIGKILL);
    const pid_t third = service_wait(&s, "one", second);
    assert_false(process_is(second, start));
    const uint64_t third_start = process_start_time(third);
    assert_true(third_start != 0);
    service_wait(&s, "two", stubborn);
    write_text(scratch_path(&s.scratch, "run/marker"), "");
    kill(s.supervisor, SIGTERM);
    assert_int_equal(s.supervisor, waitpid(s.supervisor, NULL, 0));
    assert_false(process_is(third, third_start));
    const bool signs = process_is(signer, signer_start);
    if (signs)
        kill(signer, SIGKILL);
    assert_false(signs); /* it holds the CA's key */
    assert_false(file_exists(scratch_path(&s.scratch, "run/state.json")));
    scratch_remove(&s.scratch);
}

static void later_phases_wait_for_what_runs_once(void **state)
{
    (void)state;
    struct supervised s;
    /* The first attempt fails and is repeated, and only then the last phase starts. */
    supervise(&s,
              "[{\"role\":\"redis\",\"name\":\"base\",\"argv\":[\"/bin/sleep\",\"1000\"],\"phase\":0},"
              "{\"role\":\"api\",\"name\":\"prepare\",\"argv\":[\"/bin/sh\",\"-c\","
              "\"test -e @/tried && touch @/done || { touch @/tried; exit 1; }\"],\"phase\":1,\"once\":true},"
              "{\"role\":\"api\",\"name\":\"after\",\"argv\":[\"/bin/sh\",\"-c\","
              "\"test -e @/done && touch @/good; exec sleep 1000\"],\"phase\":2}]");
    service_wait(&s, "after", 0);
    assert_true(file_wait(scratch_path(&s.scratch, "good")));
    assert_true(file_exists(scratch_path(&s.scratch, "tried")));
    supervise_end(&s);
}

static void an_agent_starts_with_its_token_and_without_once_enrolled(void **state)
{
    (void)state;
    struct supervised s;
    supervise(&s, "[{\"role\":\"agent\",\"name\":\"left\",\"argv\":[\"/bin/sh\",\"-c\","
                  "\"read token; echo \\\"$* $token\\\" >>@/said; touch @/enrolled; exec sleep "
                  "1000\",\"x\"],\"phase\":2,"
                  "\"join_file\":\"@/run/join/left\",\"enrolled_file\":\"@/enrolled\"}]");
    assert_true(file_wait(scratch_path(&s.scratch, "run/state.json")));
    write_text(scratch_path(&s.scratch, "run/join/left"), "secret-token");
    const pid_t first = service_wait(&s, "left", 0);
    assert_true(file_wait(scratch_path(&s.scratch, "enrolled")));
    assert_false(file_exists(scratch_path(&s.scratch, "run/join/left")));
    kill(first, SIGKILL);
    service_wait(&s, "left", first);
    struct err err = {0};
    struct buf text = {.limit = 4096};
    const uint64_t deadline = clock_mono_ns() + (uint64_t)DEADLINE_MS * 1000000u;
    do {
        buf_clear(&text);
        assert_int_equal(0, file_read_all(scratch_path(&s.scratch, "said"), 4096, &text, &err));
        poll(NULL, 0, 5);
    } while (strcmp(buf_str(&text), "--join-file /dev/stdin secret-token\n \n") != 0 &&
             clock_left_ms(deadline, 1) > 0);
    assert_string_equal("--join-file /dev/stdin secret-token\n \n", buf_str(&text));
    buf_fini(&text);
    supervise_end(&s);
}

static void a_home_has_one_supervisor(void **state)
{
    (void)state;
    struct supervised s;
    struct err err = {0};
    supervise(&s, "[{\"role\":\"api\",\"name\":\"one\",\"argv\":[\"/bin/sleep\",\"1000\"]}]");
    service_wait(&s, "one", 0);
    assert_int_equal(-1, local_supervise(s.scratch.dir, &err));
    assert_int_equal(ERR_BUSY, err.code);
    json_t *status = local_status(s.scratch.dir, &err);
    assert_true(json_is_true(json_object_get(status, "up")));
    assert_int_equal(2, json_array_size(json_object_get(status, "processes")));
    json_decref(status);
    /* A copy of the home has a copy of its record, and nothing that runs. */
    struct scratch copy;
    struct buf text = {.limit = 65536};
    assert_int_equal(0, scratch_make(&copy));
    assert_int_equal(0, home_make(copy.dir, &err));
    assert_int_equal(0, file_read_all(scratch_path(&s.scratch, "run/state.json"), 65536, &text, &err));
    write_text(scratch_path(&copy, "run/state.json"), buf_str(&text));
    buf_fini(&text);
    assert_true(local_is_up(s.scratch.dir));
    assert_false(local_is_up(copy.dir));
    scratch_remove(&copy);
    supervise_end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_machine_without_a_configuration_gives_no_fixed_memory),
        cmocka_unit_test(a_configuration_is_filled_with_defaults),
        cmocka_unit_test(a_wrong_configuration_is_refused_by_its_path),
        cmocka_unit_test(secrets_are_made_once_and_only_for_their_owner),
        cmocka_unit_test(a_home_longer_than_the_system_allows_is_refused),
        cmocka_unit_test(an_odd_or_long_home_has_a_short_plain_place),
        cmocka_unit_test(what_another_user_listens_at_is_not_our_server),
        cmocka_unit_test(a_port_is_kept_and_a_taken_one_is_named),
        cmocka_unit_test(what_dies_is_started_again_and_all_is_stopped_at_the_end),
        cmocka_unit_test(later_phases_wait_for_what_runs_once),
        cmocka_unit_test(an_agent_starts_with_its_token_and_without_once_enrolled),
        cmocka_unit_test(a_home_has_one_supervisor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
