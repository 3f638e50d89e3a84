/* Starts and stops everything of one home. */
#include "local/local.h"

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/document.h"
#include "common/file.h"
#include "common/http.h"
#include "common/json.h"
#include "common/process.h"
#include "local/config.h"
#include "local/home.h"
#include "local/join.h"
#include "local/postgres.h"
#include "local/remains.h"
#include "local/services.h"
#include "local/state.h"

enum {
    TIMEOUT_DEFAULT_S = 60,
    DOWN_MS = 45000,
    POLL_MS = 20,
    API_SLOW_MS = 8000, /* from when on it is said for what is waited */
    RESTARTS_MAX = 6,   /* deaths of a service during the start after which the start is given up */
    CONFIG_BYTES = 1 << 20,
    ANSWER_BYTES = 4 << 20,
    NEWER_STATUS = 5 /* exit status of a service that finds the database of a newer release */
};
#define TRIED_US 20000000 /* how long a start waits for the trials of its agents' devices */

struct coming_up {
    const struct local_up_options *options;
    const char *home;
    struct local_config config;
    struct home_access access;
    uint64_t deadline;
    int64_t began_us; /* an agent that was heard of before this time is not ready; 0: it may be */
    pid_t supervisor; /* the supervisor, if this process started it */
    json_t
        *before; /* state.json before this start, or NULL; the deaths that it counts are not of this start */
    struct http *http;
    struct err *err;
};

static void up_say(const struct coming_up *u, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void up_say(const struct coming_up *u, const char *fmt, ...)
{
    char text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (u->options->progress)
        u->options->progress(u->options->progress_arg, text);
}

/* Reads the configuration: the given file, the home's last one, or the default. */
static json_t *up_config_document(const struct coming_up *u)
{
    char stored[HOME_PATH_BYTES];
    snprintf(stored, sizeof(stored), "%s/run/up.json", u->home);
    const char *path = u->options->config_path ? u->options->config_path : stored;
    if (!u->options->config_path && !file_exists(stored))
        return local_config_default(u->err);
    return document_load(path, CONFIG_BYTES, u->err);
}

static int config_load(struct coming_up *u)
{
    json_t *document = up_config_document(u);
    if (!document)
        return -1;
    int status = local_config_parse(document, &u->config, u->err);
    json_decref(document);
    return status < 0 && u->options->config_path ? err_wrap(u->err, "%s", u->options->config_path) : status;
}

/* Writes the document to HOME/NAME. Takes nothing over. */
static int json_file_write(const struct coming_up *u, const char *name, const json_t *document)
{
    char path[HOME_PATH_BYTES];
    snprintf(path, sizeof(path), "%s/%s", u->home, name);
    return document_save(path, document, false, 0600, u->err);
}

static bool same_config(const struct coming_up *u)
{
    char path[HOME_PATH_BYTES];
    struct err err;
    snprintf(path, sizeof(path), "%s/run/up.json", u->home);
    json_t *stored = document_load(path, CONFIG_BYTES, &err);
    const bool same = stored && json_equal(stored, u->config.document);
    json_decref(stored);
    return same;
}

static int client_write(const struct coming_up *u)
{
    json_t *document = json_pack("{s:s, s:s, s:s?}", "address", u->access.url, "token", u->access.token, "ca",
                                 u->access.ca[0] != '\0' ? u->access.ca : NULL);
    int status = json_file_write(u, "client.json", document);
    json_decref(document);
    return status;
}

static int supervisor_start(struct coming_up *u)
{
    char program[HOME_PATH_BYTES];
    char log[HOME_PATH_BYTES];
    if (process_sibling("motley-supervisor", program, sizeof(program), u->err) < 0)
        return -1;
    snprintf(log, sizeof(log), "%s/logs/supervisor.log", u->home);
    const char *const argv[] = {program, u->home, NULL};
    const struct process_options options = {
        .argv = argv, .dir = "/", .stdout_path = log, .stderr_path = log, .own_session = true};
    return process_spawn(&options, &u->supervisor, u->err);
}

/* The address in HOME/agents/NAME/agent.json at which the agent looks for Redis; "" if it has not joined. */
static void agent_redis(const struct coming_up *u, const char *name, char out[HOME_PATH_BYTES])
{
    struct err err;
    snprintf(out, HOME_PATH_BYTES, "%s/agents/%s/agent.json", u->home, name);
    json_t *known = document_load(out, CONFIG_BYTES, &err);
    const char *address = json_string_value(json_object_get(json_object_get(known, "redis"), "address"));
    snprintf(out, HOME_PATH_BYTES, "%s", address ? address : "");
    json_decref(known);
}

/* Lets agents join again that look for Redis elsewhere: in the home that this one was copied or moved from,
 * or at an address that it had before. They keep what else they know. */
static void agents_rejoin(const struct coming_up *u, const char *redis)
{
    char known[HOME_PATH_BYTES];
    char path[HOME_PATH_BYTES];
    for (size_t i = 0; i < json_array_size(u->config.agents); i++) {
        const char *name = json_string_value(json_object_get(json_array_get(u->config.agents, i), "name"));
        agent_redis(u, name, known);
        snprintf(path, sizeof(path), "%s/agents/%s/agent.json", u->home, name);
        if (known[0] != '\0' && strcmp(known, redis) != 0 && unlink(path) == 0)
            up_say(u, "agent %s knew another Redis, %.160s: it joins again", name, known);
    }
}

/* Makes folders, secrets, certificates, the database cluster and every daemon's file. */
static int up_prepare(struct coming_up *u)
{
    char log[HOME_PATH_BYTES];
    char identity[HOME_SECRET_BYTES];
    struct postgres_place postgres;
    if (u->config.tls)
        snprintf(u->access.ca, sizeof(u->access.ca), "%s/ca/ca.crt", u->home);
    if (home_limits(u->err) < 0 || home_make(u->home, u->err) < 0 || home_space(u->home, u->err) < 0 ||
        home_secret(u->home, "admin.token", u->access.token, u->err) < 0 ||
        home_secret(u->home, "home.id", identity, u->err) < 0 ||
        home_certificates(u->home, u->config.advertise, u->err) < 0 ||
        postgres_find(u->home, &postgres, u->err) < 0) {
        return -1;
    }
    /* must precede initdb, so that a taken port or a missing program is reported at once */
    json_t *services = services_make(u->home, &u->config, &postgres, u->access.url, u->err);
    if (!services)
        return -1;
    snprintf(log, sizeof(log), "%s/logs/initdb.log", u->home);
    if (postgres_init(&postgres, u->home, identity, log, u->err) < 0) {
        json_decref(services);
        return -1;
    }
    for (size_t i = 0; i < json_array_size(services); i++) {
        const json_t *service = json_array_get(services, i);
        if (strcmp(json_string_value(json_object_get(service, "role")), "redis") == 0)
            agents_rejoin(u, json_string_value(json_object_get(service, "address")));
    }
    int status = json_file_write(u, "run/services.json", services);
    json_decref(services);
    if (status == 0)
        status = json_file_write(u, "run/up.json", u->config.document);
    return status == 0 ? client_write(u) : -1;
}

/* How often a service has died, by its index in the state's list. */
static int64_t restarts_of(const json_t *state, size_t index)
{
    return json_integer_value(
        json_object_get(json_array_get(json_object_get(state, "services"), index), "restarts"));
}

/* Says that the service died again and again: what the end of its log is, or what is wrong with keys of the
 * configuration that are checked by the api alone, which reads them in a file of its own. */
static int service_failed(const struct coming_up *u, const char *role, const char *name)
{
    static const char own[] = "/run/api.yaml: ";
    char tail[300], file[160];
    snprintf(file, sizeof(file), "%s%s", strcmp(role, "agent") == 0 ? "agent-" : "", name);
    log_tail(u->home, file, tail, sizeof(tail));
    const char *at = u->options->config_path ? strstr(tail, own) : NULL;
    if (!at)
        return err_set(u->err, ERR_IO, "the %s \"%s\" does not stay up; its log %s/logs/%s.log ends: %s",
                       role, name, u->home, file, tail);
    at += sizeof(own) - 1;
    const size_t size = strcspn(at, "\n");
    const bool quoted = size > 0 && at[size - 1] == '"'; /* a log's text ends so */
    return err_set(u->err, ERR_INVALID, "%.300s: %.*s", u->options->config_path, (int)(size - quoted), at);
}

static int check_services(const struct coming_up *u, const json_t *state)
{
    char tail[300];
    const json_t *services = json_object_get(state, "services");
    for (size_t i = 0; i < json_array_size(services); i++) {
        const json_t *service = json_array_get(services, i);
        const char *name = json_string_value(json_object_get(service, "name"));
        const char *role = json_string_value(json_object_get(service, "role"));
        const int status = (int)json_integer_value(json_object_get(service, "status"));
        if (name && WIFEXITED(status) && WEXITSTATUS(status) == NEWER_STATUS) {
            return err_set(u->err, ERR_RELEASE,
                           "the %s \"%s\" is of another release than the database; its log ends: %s",
                           role ? role : "", name, log_tail(u->home, name, tail, sizeof(tail)));
        }
        if (!name || !role || restarts_of(state, i) - restarts_of(u->before, i) < RESTARTS_MAX)
            continue;
        return service_failed(u, role, name);
    }
    return 0;
}

/* Checks, while waiting, whether the time is over, the supervisor has ended, or a service dies again and
 * again. */
static int check_progress(const struct coming_up *u, const char *what)
{
    char tail[300];
    uint64_t start;
    json_t *state = state_load(u->home);
    int status = check_services(u, state);
    const bool gone = (u->supervisor != 0 && waitpid(u->supervisor, NULL, WNOHANG) != 0) ||
                      (state && state_supervisor(state, &start) == 0);
    json_decref(state);
    if (status == 0 && gone) {
        status = err_set(u->err, ERR_IO, "the supervisor ended; its log ends: %s",
                         log_tail(u->home, "supervisor", tail, sizeof(tail)));
    }
    if (status == 0 && clock_left_ms(u->deadline, 1) == 0) {
        status = err_set(u->err, ERR_TIMEOUT, "%s within %u s; the logs are in %s/logs", what,
                         u->options->timeout_s > 0 ? u->options->timeout_s : TIMEOUT_DEFAULT_S, u->home);
    }
    return status;
}

static int wait_api(struct coming_up *u)
{
    const uint64_t slow_ns = clock_mono_ns() + (uint64_t)API_SLOW_MS * 1000000u;
    const bool named = strcmp(u->config.advertise, u->config.host) != 0;
    for (bool told = false;;) {
        struct err why = {0};
        if (api_is_ready(u->http, &why))
            return 0;
        if (!told && why.code != ERR_NONE && clock_mono_ns() > slow_ns) {
            told = true;
            up_say(u, "the api does not answer yet at %s%s: %.200s", u->access.url,
                   named ? ", as `advertise` of the configuration says" : "", why.text);
        }
        if (check_progress(u, "the api was not ready") < 0) {
            return u->err->code == ERR_TIMEOUT && why.code != ERR_NONE
                       ? err_set(u->err, ERR_TIMEOUT, "%.300s (last: %.180s)", u->err->text, why.text)
                       : -1;
        }
        poll(NULL, 0, POLL_MS);
    }
}

/* Waits until Redis's socket accepts a connection. */
static int wait_redis(struct coming_up *u)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%.90s/run/redis.sock", u->home);
    for (;;) {
        const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const bool there = fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0;
        if (fd >= 0)
            close(fd);
        if (there)
            return 0;
        if (check_progress(u, "Redis did not answer") < 0)
            return -1;
        poll(NULL, 0, POLL_MS);
    }
}

/* Whether a scheduler leads, according to the status document. */
static bool has_leader(const struct coming_up *u)
{
    struct err why;
    bool leads = false;
    json_t *status = local_status(u->home, &why);
    const json_t *list = json_object_get(status, "processes");
    for (size_t i = 0; i < json_array_size(list); i++)
        leads = leads || json_is_true(json_object_get(json_array_get(list, i), "leader"));
    json_decref(status);
    return leads;
}

static int wait_leader(struct coming_up *u)
{
    while (!has_leader(u)) {
        if (check_progress(u, "no scheduler took the lead") < 0)
            return -1;
        poll(NULL, 0, POLL_MS);
    }
    return 0;
}

/* How many agents of the configuration are alive according to the API, and have tried a worker on each device
 * (a card's first trial takes longer than we wait); -1 when it does not answer. */
static int agents_alive(const struct coming_up *u, const char **missing)
{
    struct err why;
    json_t *answer = NULL;
    if (http_json(u->http, "GET", "/v1/nodes", NULL, 5000, &answer, &why) < 0)
        return -1;
    int alive = 0;
    const json_t *nodes = json_object_get(answer, "nodes");
    for (size_t i = 0; i < json_array_size(u->config.agents); i++) {
        const char *name = json_string_value(json_object_get(json_array_get(u->config.agents, i), "name"));
        bool found = agent_is_removed(u->home, name);
        for (size_t j = 0; j < json_array_size(nodes); j++) {
            const char *other = json_string_value(json_object_get(json_array_get(nodes, j), "name"));
            const char *state = json_string_value(json_object_get(json_array_get(nodes, j), "state"));
            const char *seen = json_string_value(json_object_get(json_array_get(nodes, j), "last_seen"));
            const char *lacks = json_string_value(json_object_get(json_array_get(nodes, j), "lacking"));
            int64_t seen_us;
            if (lacks && strstr(lacks, "is being tried") && clock_wall_us() - u->began_us < TRIED_US)
                continue;
            found = found || (other && state && strcmp(other, name) == 0 && strcmp(state, "alive") == 0 &&
                              seen && clock_rfc3339_parse(seen, &seen_us) == 0 && seen_us >= u->began_us);
        }
        alive += found;
        *missing = found ? *missing : name;
    }
    json_decref(answer);
    return alive;
}

static int wait_agents(struct coming_up *u)
{
    const int wanted = (int)json_array_size(u->config.agents);
    const char *missing = "";
    while (agents_alive(u, &missing) < wanted) {
        char what[160];
        snprintf(what, sizeof(what), "agent \"%s\" did not join", missing);
        if (check_progress(u, what) < 0)
            return -1;
        poll(NULL, 0, POLL_MS);
    }
    return 0;
}

static int up_wait_ready(struct coming_up *u)
{
    u->http = home_http(&u->access, u->err);
    if (!u->http || wait_redis(u) < 0 || wait_api(u) < 0)
        return -1;
    up_say(u, "the api answers at %s", u->access.url);
    if (wait_leader(u) < 0)
        return -1;
    up_say(u, "a scheduler leads");
    if (wait_agents(u) < 0)
        return -1;
    size_t agents = 0;
    for (size_t i = 0; i < json_array_size(u->config.agents); i++) {
        const char *name = json_string_value(json_object_get(json_array_get(u->config.agents, i), "name"));
        agents += !agent_is_removed(u->home, name);
        if (agent_is_removed(u->home, name))
            up_say(u, "node %s was removed from the cluster: to have it again, delete %s/agents/%s", name,
                   u->home, name);
    }
    up_say(u, agents == 1 ? "%zu agent is ready" : "%zu agents are ready", agents);
    return 0;
}

/* Waits until a supervisor that already runs has everything ready. */
static int join_running(struct coming_up *u)
{
    if (!same_config(u)) {
        return err_set(u->err, ERR_CONFLICT, "\"%s\" is up with another configuration; motley down first",
                       u->home);
    }
    u->before = state_load(u->home);
    return home_access_read(u->home, &u->access, u->err) == 0 ? up_wait_ready(u) : -1;
}

/* Stops what a supervisor that was killed left behind: processes that name the home, and its PostgreSQL,
 * which may have its files elsewhere. */
static int left_stop(const char *home, struct err *err)
{
    struct postgres_place postgres;
    struct err why;
    if (remains_stop(home, "", err) < 0)
        return -1;
    return postgres_find(home, &postgres, &why) < 0 ? 0 : remains_stop(postgres.dir, "postgres", err);
}

static int start_fresh(struct coming_up *u)
{
    char path[HOME_PATH_BYTES];
    if (left_stop(u->home, u->err) < 0)
        return -1;
    snprintf(path, sizeof(path), "%s/run/state.json", u->home);
    unlink(path);
    if (up_prepare(u) < 0)
        return -1;
    u->began_us = clock_wall_us();
    int status = supervisor_start(u);
    if (status == 0) {
        up_say(u, "starting under %s", u->home);
        status = up_wait_ready(u);
    }
    if (status < 0) {
        struct err why;
        local_down(u->home, &why);
    }
    return status;
}

/* Whether services of this home run that know it by the path it had before. */
static bool moved_while_up(const struct coming_up *u)
{
    uint64_t start;
    json_t *state = state_load(u->home);
    const char *of = json_string_value(json_object_get(state, "home"));
    const bool moved = of && strcmp(of, u->home) != 0 && state_supervisor(state, &start) != 0;
    json_decref(state);
    return moved;
}

bool local_is_elsewhere(const char *home)
{
    char client[PATH_MAX], made[PATH_MAX];
    struct err why;
    return file_path(client, sizeof(client), &why, "%s/client.json", home) == 0 &&
           file_path(made, sizeof(made), &why, "%s/run/home.id", home) == 0 && file_exists(client) &&
           !file_exists(made);
}

/* Refuses a folder that is somebody's way to a server elsewhere: its client.json has a token that nobody
 * shows again. */
static int client_check(const char *home, struct err *err)
{
    char client[PATH_MAX];
    struct err why;
    if (file_path(client, sizeof(client), err, "%s/client.json", home) < 0)
        return -1;
    if (!local_is_elsewhere(home))
        return 0;
    json_t *document = document_load(client, CONFIG_BYTES, &why);
    const char *address = json_string_value(json_object_get(document, "address"));
    err_set(err, ERR_CONFLICT,
            "%s names a server elsewhere, %.200s, for this user: motley up would lose its token. A server of "
            "one's own needs another folder: --home DIR",
            client, address ? address : "of no address");
    json_decref(document);
    return -1;
}

int local_up(const struct local_up_options *options, struct err *err)
{
    char place[HOME_PLACE_BYTES];
    if (client_check(options->home, err) < 0)
        return -1;
    if (file_mkdirs(options->home, geteuid() == 0 ? 0711 : 0700, err) < 0)
        return err_wrap(err, "the home cannot be used; give another folder with --home");
    if (home_place(options->home, true, place, err) < 0)
        return -1;
    struct coming_up u = {.options = options, .home = place, .err = err};
    const unsigned seconds = options->timeout_s > 0 ? options->timeout_s : TIMEOUT_DEFAULT_S;
    u.deadline = clock_mono_ns() + (uint64_t)seconds * 1000000000u;
    if (config_load(&u) < 0)
        return -1;
    int status = -1;
    char path[HOME_PATH_BYTES];
    snprintf(path, sizeof(path), "%s/run", u.home);
    if (file_mkdirs(path, 0700, err) < 0) {
        err_wrap(err, "the home cannot be used; give another folder with --home");
    } else {
        /* A second `motley up` waits for the first one and then finds it running. */
        snprintf(path, sizeof(path), "%s/run/up.lock", u.home);
        int lock = file_lock(path, err);
        while (lock < 0 && err->code == ERR_BUSY && clock_left_ms(u.deadline, 1) > 0) {
            poll(NULL, 0, POLL_MS);
            lock = file_lock(path, err);
        }
        if (lock >= 0) {
            const bool moved = moved_while_up(&u);
            if (moved)
                up_say(&u, "the home was moved while it was up: stopping what runs of it");
            if (moved && local_down(u.home, err) < 0)
                status = -1;
            else
                status = local_is_up(u.home) ? join_running(&u) : start_fresh(&u);
            close(lock);
        }
    }
    http_destroy(u.http);
    json_decref(u.before);
    memset(u.access.token, 0, sizeof(u.access.token));
    local_config_fini(&u.config);
    return status;
}

int local_down(const char *home_given, struct err *err)
{
    char home[HOME_PLACE_BYTES];
    if (!file_exists(home_given))
        return 0;
    if (home_place(home_given, true, home, err) < 0)
        return -1;
    uint64_t start = 0;
    json_t *state = state_load(home);
    const pid_t supervisor = state ? state_supervisor(state, &start) : 0;
    const char *of =
        json_string_value(json_object_get(state, "home")); /* of a home that was moved: where it was */
    char before[HOME_PLACE_BYTES];
    snprintf(before, sizeof(before), "%s", of ? of : home);
    json_decref(state);
    if (supervisor != 0) {
        if (process_signal(supervisor, start, SIGTERM, err) < 0)
            return err_wrap(err, "could not stop the supervisor");
        const uint64_t deadline = clock_mono_ns() + ((uint64_t)DOWN_MS + services_stop_ms(home)) * 1000000u;
        while (process_is(supervisor, start) && clock_left_ms(deadline, 1) > 0)
            poll(NULL, 0, POLL_MS);
        if (process_signal(supervisor, start, SIGKILL, err) < 0)
            return -1;
    }
    if (remains_stop(before, "", err) < 0 || left_stop(home, err) < 0)
        return -1;
    char path[HOME_PATH_BYTES];
    snprintf(path, sizeof(path), "%s/run/state.json", home);
    unlink(path);
    return 0;
}
