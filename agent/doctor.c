#include "agent/doctor.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/cards.h"
#include "agent/machine.h"
#include "common/clock.h"
#include "common/faults.h"
#include "common/file.h"
#include "common/json.h"
#include "common/process.h"
#include "common/units.h"

enum {
    OPEN_FILES_MIN = 4096, /* of an agent: workers' sockets, its links and the files of the cache */
    CLOCK_OFF_S = 30,      /* `motley nodes` names a clock that is further off */
    MTU_MIN = 1280,        /* the least that IPv6 allows; smaller packets cost more than they carry */
    CONNECT_MS = 3000
};

/* ---- checks that wait for nothing ---- */

static void limits_look(const struct doctor *doctor, json_t *faults)
{
    struct rlimit limit;
    (void)doctor;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < OPEN_FILES_MIN)
        fault_add(
            faults,
            "the limit of open files is %llu and at least %d are needed: set LimitNOFILE= of the agent's "
            "unit, or ulimit "
            "-n before it starts",
            (unsigned long long)limit.rlim_cur, OPEN_FILES_MIN);
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        fault_add(
            faults,
            "a process may have only %llu MiB of addresses, and drivers of cards reserve more than they "
            "use: remove "
            "LimitAS= of the agent's unit, or ulimit -v before it starts",
            (unsigned long long)(limit.rlim_cur >> 20));
}

/* Asks how large the home's disk is, and how much of it its user may still take. False: errno says why not.
 */
static bool disk_ask(const char *home, uint64_t *bytes, uint64_t *free_bytes)
{
    struct statvfs info;
    if (statvfs(home, &info) < 0)
        return false;
    *bytes = (uint64_t)info.f_blocks * info.f_frsize;
    *free_bytes = (uint64_t)info.f_bavail * info.f_frsize;
    return true;
}

void doctor_disk_say(const char *home, json_t *hello, uint64_t *told)
{
    uint64_t bytes;
    if (!disk_ask(home, &bytes, told))
        return;
    json_object_set_new(hello, "disk_bytes", json_integer((json_int_t)bytes));
    json_object_set_new(hello, "disk_free_bytes", json_integer((json_int_t)*told));
}

bool doctor_disk_changed(const char *home, uint64_t told)
{
    uint64_t bytes, now;
    return disk_ask(home, &bytes, &now) && (now > told ? now - told : told - now) > bytes / 100;
}

static void doctor_disk_look(const struct doctor *doctor, json_t *faults)
{
    uint64_t bytes, free_bytes;
    char has[32], needs[32];
    if (!disk_ask(doctor->home, &bytes, &free_bytes)) {
        if (errno != ENOENT) /* the agent makes the folder */
            fault_add(faults, "the folder \"%.200s\" cannot be looked at (%s): give it to the agent's user",
                      doctor->home, strerror(errno));
    } else if (free_bytes < FILE_SPACE_MIN) {
        fault_add(faults,
                  "the disk of \"%.200s\" has %s free; at least %s are needed: free some, or give a smaller "
                  "`cache` in the "
                  "agent's configuration and restart it",
                  doctor->home, units_bytes(has, free_bytes), units_bytes(needs, FILE_SPACE_MIN));
    }
}

static void memory_look(const struct doctor *doctor, json_t *faults)
{
    char all[32], there[32];
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < doctor->config->device_count; i++)
        if (strcmp(doctor->config->devices[i].kind, "cpu") == 0)
            bytes += doctor->config->devices[i].memory_limit_bytes;
    if (bytes > memory_total_bytes())
        fault_add(faults,
                  "its CPU devices may take %s together and this machine has %s: lower their `memory` in the "
                  "agent's "
                  "configuration",
                  units_bytes(all, bytes), units_bytes(there, memory_total_bytes()));
}

static void threads_look(const struct doctor *doctor, json_t *faults)
{
    for (uint32_t i = 0; i < doctor->config->device_count; i++)
        if (doctor->config->devices[i].threads > cpu_count())
            fault_add(faults,
                      "%s computes with %u threads on %u processors, which wait for each other: lower its "
                      "`threads` in the agent's configuration",
                      doctor->config->devices[i].name, doctor->config->devices[i].threads, cpu_count());
}

/* Cards, and drivers of cards that are there, which cannot be used. What the configuration itself leaves out
 * is no fault. */
static void doctor_cards_look(const struct doctor *doctor, json_t *faults)
{
    size_t i;
    json_t *entry;
    json_array_foreach (json_object_get(doctor->config->cards, "cards"), i, entry)
        if (json_is_false(json_object_get(entry, "usable")) &&
            !json_is_true(json_object_get(entry, "left_out")))
            fault_add(faults, "%s %s is not used: %s", json_text_of(entry, "kind"),
                      json_text_of(entry, "name"), json_text_of(entry, "why"));
}

static void doctor_certificate_look(const struct doctor *doctor, json_t *faults)
{
    char ends[24];
    if (!doctor->identity) {
        fault_add(faults, "this machine has not joined a cluster: make a token by motley join-token on the "
                          "server, and start "
                          "the agent with it");
        return;
    }
    const struct agent_certificate *certificate = &doctor->identity->certificate;
    const int64_t now_s = clock_wall_us() / 1000000;
    clock_words_us(certificate->ends_s * 1000000, ends);
    if (now_s >= certificate->ends_s)
        fault_add(faults,
                  "its certificate ended at %s: it comes back with a token of motley join-token --node %s",
                  ends, doctor->identity->node);
    else if (now_s - certificate->issued_s > (certificate->ends_s - certificate->issued_s) / 10 * 9)
        fault_add(
            faults,
            "its certificate ends at %s and was not renewed in time: the agent has to run, and reach the "
            "api at %.200s",
            ends, doctor->identity->api);
}

/* ---- checks that ask others ---- */

static void api_look(const struct doctor *doctor, json_t *faults)
{
    struct err err = {0};
    int64_t server_s = 0;
    if (!doctor->identity)
        return;
    if (agent_server_ask(doctor->identity, &server_s, &err) < 0) {
        fault_add(faults, "the api does not take this node: %.300s", err.text);
        return;
    }
    const int64_t ahead_s = clock_wall_us() / 1000000 - server_s;
    if (server_s > 0 && llabs(ahead_s) >= CLOCK_OFF_S)
        fault_add(
            faults,
            "this machine's clock is %lld s %s the server's: let both keep the time of one server (chrony, "
            "NTP)",
            (long long)llabs(ahead_s), ahead_s > 0 ? "ahead of" : "behind");
}

/* Connects to host:port or unix:PATH. Returns the socket, or -1 with errno. */
static int way_open(const struct sockaddr *address, socklen_t size)
{
    const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct pollfd entry = {.fd = fd, .events = POLLOUT};
    int failed = 0;
    socklen_t length = sizeof(failed);
    if (fd >= 0 && connect(fd, address, size) < 0 && errno != EINPROGRESS)
        failed = errno;
    else if (fd >= 0 && poll(&entry, 1, CONNECT_MS) <= 0)
        failed = ETIMEDOUT;
    else if (fd >= 0)
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &length);
    if (fd < 0 || failed == 0)
        return fd;
    close(fd);
    errno = failed;
    return -1;
}

/* Connects to one address of Redis; -1 with errno. */
static int redis_open(const char *address)
{
    char host[256];
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    const char *colon = strrchr(address, ':');
    int fd = -1;
    errno = EINVAL;
    if (strncmp(address, "unix:", 5) == 0) {
        snprintf(local.sun_path, sizeof(local.sun_path), "%.100s", address + 5);
        return way_open((const struct sockaddr *)&local, sizeof(local));
    }
    if (!colon)
        return -1;
    const bool bracket = address[0] == '[';
    snprintf(host, sizeof(host), "%.*s", (int)(colon - address) - 2 * bracket, address + bracket);
    if (getaddrinfo(host, colon + 1, &hints, &found) == 0)
        fd = way_open(found->ai_addr, found->ai_addrlen);
    else
        errno = EHOSTUNREACH;
    const int failed = errno;
    if (found)
        freeaddrinfo(found);
    errno = failed;
    return fd;
}

/* Of several addresses one is enough. */
static void redis_look(const struct doctor *doctor, json_t *faults)
{
    char addresses[sizeof(doctor->identity->redis)], *rest = NULL;
    int fd = -1, mtu = 0;
    if (!doctor->identity || doctor->identity->redis[0] == '\0')
        return;
    snprintf(addresses, sizeof(addresses), "%s", doctor->identity->redis);
    for (char *address = strtok_r(addresses, ",", &rest); address && fd < 0;
         address = strtok_r(NULL, ",", &rest))
        fd = redis_open(address);
    socklen_t size = sizeof(mtu);
    if (fd < 0)
        fault_add(
            faults,
            "Redis at %.200s is not reached (%s): open that port of the server for this machine, or join "
            "again where the "
            "server has moved",
            doctor->identity->redis, strerror(errno));
    else if (getsockopt(fd, IPPROTO_IP, IP_MTU, &mtu, &size) == 0 && mtu < MTU_MIN)
        fault_add(faults,
                  "packets on the way to Redis at %.200s hold at most %d bytes: raise the MTU to %d or more",
                  doctor->identity->redis, mtu, MTU_MIN);
    if (fd >= 0)
        close(fd);
}

static const struct {
    void (*look)(const struct doctor *doctor, json_t *faults);
    bool asks; /* it waits for another program's answer */
} checks[] = {{limits_look, false},  {doctor_disk_look, false},  {memory_look, false},
              {threads_look, false}, {doctor_cards_look, false}, {doctor_certificate_look, false},
              {api_look, true},      {redis_look, true}};

json_t *doctor_look(const struct doctor *doctor, bool all)
{
    json_t *faults = json_array();
    for (size_t i = 0; faults && i < sizeof(checks) / sizeof(checks[0]); i++)
        if (all || !checks[i].asks)
            checks[i].look(doctor, faults);
    return faults;
}

/* Whether an agent of this home runs. It holds its cards, which nobody else can try then. */
static bool agent_runs(const char *home)
{
    char path[4096];
    struct err why = {0};
    if (file_path(path, sizeof(path), &why, "%s/agent.lock", home) < 0 || !file_exists(path))
        return false;
    const int lock = file_lock(path, &why);
    if (lock >= 0)
        close(lock);
    return lock < 0 && why.code == ERR_BUSY;
}

json_t *doctor_machine(const struct doctor_place *place, struct err *err)
{
    char worker[4096], host[256] = "127.0.0.1";
    struct err why;
    struct agent_config config;
    struct agent_identity identity;
    json_t *faults = NULL;
    const int joined = agent_identity_load(place->home, &identity, err);
    if (joined < 0)
        return NULL;
    if (joined == 1 && place->api)
        snprintf(identity.api, sizeof(identity.api), "%s", place->api);
    if (joined == 1)
        agent_own_host(identity.api, host,
                       &why); /* a host that is not known is the check's of the api to say */
    if (agent_config_read(place->config, host, &config, err) < 0) {
        err_wrap(err, "configuration");
    } else {
        const int found = place->worker ? snprintf(worker, sizeof(worker), "%s", place->worker)
                                        : process_sibling("motley-worker", worker, sizeof(worker), err);
        json_t *cards = found < 0 ? NULL : cards_ask(worker, err);
        const struct doctor doctor = {
            .home = place->home, .config = &config, .identity = joined == 1 ? &identity : NULL};
        const bool runs = agent_runs(place->home);
        if (cards && (runs || agent_config_cards(&config, cards, err) == 0))
            faults = doctor_look(&doctor, true);
        if (runs)
            json_decref(cards);
        agent_config_fini(&config);
    }
    explicit_bzero(&identity, sizeof(identity));
    return faults;
}
