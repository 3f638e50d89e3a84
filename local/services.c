#include "local/services.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/document.h"
#include "common/buf.h"
#include "common/digest.h"
#include "common/file.h"
#include "common/json.h"
#include "common/process.h"
#include "local/home.h"

/* MiB of Redis. Redis never evicts, so there must be room for the 64 MiB that each agent can write before its
 * node is barred. */
/* AGENT_END_MS: what an agent needs to end beyond the time that its workers have. */
enum { REDIS_MB = 1024, REDIS_AGENT_MB = 64, AGENT_END_MS = 5000, SERVICES_BYTES = 1 << 20 };

/* The list of services that is being made. */
struct making {
    const char *home;
    const struct local_config *config;
    const struct postgres_place *postgres;
    json_t *list;
    struct err *err;
    char password[HOME_SECRET_BYTES];
    char redis_address[2 * HOME_PATH_BYTES]; /* the unix socket, for our own daemons */
    char agents_address[300];                /* for agents */
    char api_address[300];                   /* host:port */
    char url[300];
};

/* Returns "HOME/…" as a JSON text, new. */
static json_t *path_json(const struct making *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static json_t *path_json(const struct making *m, const char *fmt, ...)
{
    char rest[HOME_PATH_BYTES];
    char path[2 * HOME_PATH_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(rest, sizeof(rest), fmt, args);
    va_end(args);
    snprintf(path, sizeof(path), "%s/%s", m->home, rest);
    return json_string(path);
}

/* Writes "host:port" or "[v6]:port". */
static void address_print(char out[300], const char *host, uint16_t port)
{
    snprintf(out, 300, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, port);
}

/* Writes the document to HOME/name. Takes 'document' over. */
static int document_write(const struct making *m, const char *name, json_t *document)
{
    char path[2 * HOME_PATH_BYTES];
    snprintf(path, sizeof(path), "%s/%s", m->home, name);
    int status = document_save(path, document, false, 0600, m->err);
    json_decref(document);
    return status;
}

/* Takes 'service' over. */
static int service_add(const struct making *m, json_t *service)
{
    if (!service || json_array_append_new(m->list, service) < 0)
        return err_set(m->err, ERR_NOMEM, "out of memory for a list of services");
    return 0;
}

/* The path of one of our own programs as a JSON text, new. */
static json_t *services_program_json(const struct making *m, const char *name)
{
    char path[HOME_PATH_BYTES];
    if (process_sibling(name, path, sizeof(path), m->err) < 0)
        return NULL;
    return json_string(path);
}

static int postgres_add(const struct making *m)
{
    char program[320];
    char data[320];
    snprintf(program, sizeof(program), "%s/postgres", m->postgres->bin);
    snprintf(data, sizeof(data), "%s/data", m->postgres->dir);
    return service_add(
        m, json_pack("{s:s, s:s, s:[s,s,s,s,s,s,s,s,s,s,s,s,s,s,s], s:I, s:I, s:s, s:i, s:i, s:s}", "role",
                     "postgres", "name", "postgres", "argv", program, "-D", data, "-k", m->postgres->dir,
                     "-c", "listen_addresses=", "-c", "unix_socket_permissions=0700", "-c",
                     "max_connections=100", "-c", "shared_buffers=64MB", "-c", "logging_collector=off", "uid",
                     (json_int_t)m->postgres->uid, "gid", (json_int_t)m->postgres->gid, "address",
                     m->postgres->dir, "phase", 0, "stop_signal", SIGINT, "dir", m->postgres->dir));
}

static int redis_find(char *out, size_t size, struct err *err)
{
    static const char *const folders[] = {"/usr/bin", "/usr/local/bin", "/opt/redis/bin"};
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        snprintf(out, size, "%s/redis-server", folders[i]);
        if (access(out, X_OK) == 0)
            return 0;
    }
    if (process_sibling("redis-server", out, size, err) == 0)
        return 0;
    return err_set(err, ERR_NOT_FOUND,
                   "Redis is not installed (no redis-server): apt-get install redis-server");
}

static int redis_add(struct making *m)
{
    char program[HOME_PATH_BYTES];
    char path[2 * HOME_PATH_BYTES];
    char digest[DIGEST_HEX_SIZE];
    struct buf text = {.limit = 65536};
    uint16_t port = 0;
    if (redis_find(program, sizeof(program), m->err) < 0 ||
        digest_sha256_hex(m->password, strlen(m->password), digest, m->err) < 0) {
        return -1;
    }
    snprintf(m->redis_address, sizeof(m->redis_address), "unix:%s/run/redis.sock", m->home);
    snprintf(m->agents_address, sizeof(m->agents_address), "%.299s", m->redis_address);
    int status = 0;
    if (m->config->tls) {
        status = home_port(m->home, "redis", m->config->host, m->config->redis_port, &port, m->err);
        address_print(m->agents_address, m->config->advertise, port);
    }
    if (status == 0) {
        status = buf_printf(
            &text, m->err,
            "port 0\nunixsocket %s/run/redis.sock\nunixsocketperm 700\nsave \"\"\nappendonly no\n"
            "dir %s/redis\ndaemonize no\nuser default off\nuser admin on #%s ~* &* +@all\n"
            "maxmemory %zumb\nmaxmemory-policy noeviction\nmaxmemory-clients 256mb\n"
            "proto-max-bulk-len 64mb\nclient-query-buffer-limit 128mb\nmaxclients 4096\n",
            m->home, m->home, digest, REDIS_MB + REDIS_AGENT_MB * json_array_size(m->config->agents));
    }
    if (status == 0 && m->config->tls) {
        status =
            buf_printf(&text, m->err,
                       "bind %s\ntls-port %u\ntls-cert-file %s/ca/server.crt\ntls-key-file %s/ca/server.key\n"
                       "tls-ca-cert-file %s/ca/ca.crt\ntls-auth-clients yes\ntls-protocols \"TLSv1.3\"\n",
                       m->config->host, port, m->home, m->home, m->home);
    }
    snprintf(path, sizeof(path), "%s/run/redis.conf", m->home);
    if (status == 0)
        status = file_write_atomic(path, text.data, text.size, 0600, m->err);
    buf_fini(&text);
    if (status < 0)
        return -1;
    return service_add(m, json_pack("{s:s, s:s, s:[s,s], s:s, s:i, s:i, s:o}", "role", "redis", "name",
                                    "redis", "argv", program, path, "address",
                                    m->config->tls ? m->agents_address : m->redis_address, "phase", 0,
                                    "stop_signal", SIGTERM, "dir", path_json(m, "redis")));
}

static json_t *tls_json(const struct making *m)
{
    return json_pack("{s:o, s:o, s:o}", "ca", path_json(m, "ca/ca.crt"), "cert",
                     path_json(m, "ca/server.crt"), "key", path_json(m, "ca/server.key"));
}

static json_t *redis_json(const struct making *m)
{
    return json_pack("{s:s, s:s, s:s}", "address", m->redis_address, "user", "admin", "password",
                     m->password);
}

static int api_add(struct making *m)
{
    uint16_t port = 0;
    if (home_port(m->home, "api", m->config->host, m->config->port, &port, m->err) < 0)
        return -1;
    address_print(m->api_address, m->config->host, port);
    char shown[300];
    address_print(shown, m->config->advertise, port);
    snprintf(m->url, sizeof(m->url), "%s://%.280s", m->config->tls ? "https" : "http", shown);
    json_t *redis = json_pack("{s:s, s:b}", "address", m->agents_address, "tls", m->config->tls);
    /* Who started this service administers it and could fetch models as this user, too; others may not fill
     * its disk, or use its token, unless the configuration says so. */
    json_t *hub =
        m->config->hub ? json_incref(m->config->hub) : json_pack("{s:s}", "fetch", "administrators");
    json_t *document = json_pack(
        "{s:s, s:o, s:s, s:o, s:o, s:{s:o, s:o}, s:o, s:o, s:O*, s:O*, s:s*, s:O*, s:O*}", "listen",
        m->api_address, "address_file", path_json(m, "run/api.address"), "postgres", m->postgres->conninfo,
        "redis", redis, "blobs", path_json(m, "blobs"), "ca", "cert", path_json(m, "ca/ca.crt"), "signer",
        path_json(m, "run/signer.sock"), "tls", m->config->tls ? tls_json(m) : json_null(), "hub", hub,
        "notify", m->config->notify, "proxies", m->config->proxies, "proxy_user",
        m->config->proxy_user[0] != '\0' ? m->config->proxy_user : NULL, "oidc", m->config->oidc,
        "unix_socket", m->config->unix_socket);
    if (document_write(m, "run/api.yaml", document) < 0)
        return -1;
    json_t *program = services_program_json(m, "motley-api");
    json_t *config = path_json(m, "run/api.yaml");
    if (!program) {
        json_decref(config);
        return -1;
    }
    if (service_add(m, json_pack("{s:s, s:s, s:[O,s,O,s,s,o], s:i, s:b}", "role", "api", "name", "migrate",
                                 "argv", program, "--config", config, "--migrate", "--admin-token-file",
                                 path_json(m, "run/admin.token"), "phase", 1, "once", 1)) < 0) {
        return -1;
    }
    return service_add(m, json_pack("{s:s, s:s, s:[o,s,o], s:s, s:i}", "role", "api", "name", "api", "argv",
                                    program, "--config", config, "address", m->api_address, "phase", 2));
}

/* The signer is the only service that is told where the CA's key is. */
static int signer_add(const struct making *m)
{
    char lifetime[32];
    snprintf(lifetime, sizeof(lifetime), "%.0fs", m->config->certificate_seconds);
    json_t *program = services_program_json(m, "motley-signer");
    if (!program)
        return -1;
    return service_add(m, json_pack("{s:s, s:s, s:[o,s,o,s,o,s,o,s,s], s:i}", "role", "signer", "name",
                                    "signer", "argv", program, "--ca", path_json(m, "ca/ca.crt"), "--key",
                                    path_json(m, "ca/ca.key"), "--socket", path_json(m, "run/signer.sock"),
                                    "--lifetime", lifetime, "phase", 0));
}

static int scheduler_add(const struct making *m, unsigned number)
{
    char name[32];
    char file[64];
    snprintf(name, sizeof(name), "scheduler-%u", number);
    snprintf(file, sizeof(file), "run/%s.yaml", name);
    json_t *document = json_pack("{s:s, s:s, s:o, s:O*, s:O*, s:O*, s:O*, s:o}", "name", name, "postgres",
                                 m->postgres->conninfo, "redis", redis_json(m), "links", m->config->links,
                                 "planner", m->config->planner, "planners", m->config->planners, "sharing",
                                 m->config->sharing, "leader_file", path_json(m, "run/%s.leader", name));
    if (document_write(m, file, document) < 0)
        return -1;
    json_t *program = services_program_json(m, "motley-scheduler");
    if (!program)
        return -1;
    return service_add(m, json_pack("{s:s, s:s, s:[o,s,o], s:i, s:o}", "role", "scheduler", "name", name,
                                    "argv", program, "--config", path_json(m, "%s", file), "phase", 2,
                                    "leader_file", path_json(m, "run/%s.leader", name)));
}

static int agent_add(const struct making *m, const json_t *agent)
{
    char path[2 * HOME_PATH_BYTES];
    char file[128];
    const char *name = json_string_value(json_object_get(agent, "name"));
    snprintf(path, sizeof(path), "%s/agents/%s", m->home, name);
    snprintf(file, sizeof(file), "agents/%s/config.yaml", name);
    if (file_mkdirs(path, 0700, m->err) < 0)
        return -1;
    json_t *document = json_deep_copy(agent);
    if (document && !json_object_get(document, "address"))
        json_object_set_new(document, "address", json_string(m->config->advertise));
    if (document) /* the CA's key, Redis' password and other agents' homes lie there */
        json_object_set_new(document, "private", json_string(m->home));
    if (document_write(m, file, document) < 0)
        return -1;
    json_t *program = services_program_json(m, "motley-agent");
    if (!program)
        return -1;
    const double grace_s = json_number_value(json_object_get(agent, "grace"));
    return service_add(m, json_pack("{s:s, s:s, s:[o,s,s,s,s,s,o], s:i, s:I, s:o, s:o}", "role", "agent",
                                    "name", name, "argv", program, "--api", m->url, "--home", path,
                                    "--config", path_json(m, "%s", file), "phase", 2, "stop_ms",
                                    (json_int_t)(1e3 * grace_s) + AGENT_END_MS, "join_file",
                                    path_json(m, "run/join/%s", name), "enrolled_file",
                                    path_json(m, "agents/%s/agent.json", name)));
}

/* Offers agents their join tokens, whenever one waits for its own. */
static int join_add(const struct making *m)
{
    json_t *program = services_program_json(m, "motley-supervisor");
    if (!program)
        return -1;
    return service_add(m, json_pack("{s:s, s:s, s:[o,s,s], s:i, s:b}", "role", "helper", "name", "join",
                                    "argv", program, m->home, "--join", "phase", 2, "once", 1));
}

uint32_t services_stop_ms(const char *home)
{
    char path[HOME_PATH_BYTES];
    struct err err;
    uint32_t longest_ms = 0;
    size_t i;
    json_t *service;
    snprintf(path, sizeof(path), "%s/run/services.json", home);
    json_t *list = document_load(path, SERVICES_BYTES, &err);
    json_array_foreach (list, i, service) {
        const json_int_t ms = json_integer_value(json_object_get(service, "stop_ms"));
        longest_ms = ms > longest_ms ? (uint32_t)ms : longest_ms;
    }
    json_decref(list);
    return longest_ms;
}

json_t *services_make(const char *home, const struct local_config *config,
                      const struct postgres_place *postgres, char url[300], struct err *err)
{
    struct making m = {
        .home = home, .config = config, .postgres = postgres, .list = json_array(), .err = err};
    if (!m.list) {
        err_set(err, ERR_NOMEM, "out of memory for a list of services");
        return NULL;
    }
    int status = home_secret(home, "redis.password", m.password, err);
    if (status == 0)
        status = postgres_add(&m);
    if (status == 0)
        status = redis_add(&m);
    if (status == 0)
        status = signer_add(&m);
    if (status == 0)
        status = api_add(&m);
    for (unsigned i = 1; status == 0 && i <= config->schedulers; i++)
        status = scheduler_add(&m, i);
    for (size_t i = 0; status == 0 && i < json_array_size(config->agents); i++)
        status = agent_add(&m, json_array_get(config->agents, i));
    if (status == 0)
        status = join_add(&m);
    memset(m.password, 0, sizeof(m.password));
    if (status < 0) {
        json_decref(m.list);
        return NULL;
    }
    snprintf(url, 300, "%s", m.url);
    return m.list;
}
