#include "agent/agent.h"

#include <event2/event.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/cards.h"
#include "agent/child.h"
#include "agent/config.h"
#include "agent/doctor.h"
#include "agent/enrol.h"
#include "agent/feed.h"
#include "agent/groups.h"
#include "agent/health.h"
#include "agent/inventory.h"
#include "agent/journal.h"
#include "agent/links.h"
#include "agent/history.h"
#include "agent/renew.h"
#include "agent/supervise.h"
#include "common/buf.h"
#include "common/clock.h"
#include "common/digest.h"
#include "common/file.h"
#include "common/frame.h"
#include "common/json.h"
#include "common/log.h"
#include "common/process.h"
#include "common/tls.h"
#include "common/release.h"

/* REMOVED_GRACE_MS: of workers of a removed node, which can store nothing any more. FLUSH_MS: for the last
 * events to be committed. HELLO_MS: for the last hello to be sent. UNTIL_TICK_S: between two looks at the
 * clock, which may be set meanwhile. */
enum {
    JOIN_WAIT_MS = 60000,
    REMOVED_GRACE_MS = 5000,
    SIGNALS = 3,
    QUIET_MS = 10000,
    FLUSH_MS = 3000,
    HELLO_MS = 300,
    UNTIL_TICK_S = 10,
    DOCTOR_S = 60 /* between two looks at the machine */
};

struct agent {
    struct agent_options options;
    struct agent_config config;
    struct agent_identity identity;
    char worker[4096];
    char boot[HISTORY_BOOT_SIZE];
    int lock;
    struct event_base *base;
    struct event *signals[SIGNALS];
    struct event *flush; /* timer that gives the last events time to be committed */
    struct event *until; /* timer that begins the leaving in time for config.until_us */
    struct node_history *history;
    char renewal[HISTORY_INCARNATION_SIZE]; /* incarnation (history.h) with which the agent starts again; "":
                                               none */
    struct journal *journal;
    struct groups *groups;
    struct worker_supervisor *supervisor;
    struct feed *feed;
    struct links *links;
    struct renewer *renewer;
    struct health *health;
    SSL_CTX *redis_tls;
    json_t *inventory;
    json_t *faults;       /* what doctor.h found last; NULL before the first look */
    uint64_t disk_free;   /* bytes, as the last hello said */
    struct event *doctor; /* timer of its next look */
    bool stopping;        /* the agent ends; its workers too, unless SIGUSR2 ends it */
    bool leaving;         /* the agent ends with its workers */
    bool signalled;       /* it was told so by a signal; the next one kills */
    bool flushing;        /* no worker is left; the last events are on their way */
    bool removed;         /* an administrator has removed this node from the cluster */
    bool replaced;        /* another agent has this node's identity, and began later */
    bool connected;
    uint64_t complained_ns;
};

/* ---- the scheduler ---- */

/* Returns the seconds until jobs are to leave this node, so that they have the grace to store a checkpoint;
 * negative: no end is known. */
static double leaves_in_s(const struct agent *agent)
{
    const double left_s = 1e-6 * (double)(agent->config.until_us - clock_wall_us()) - agent->config.grace_s;
    if (agent->leaving)
        return 0;
    if (agent->config.until_us == 0)
        return -1;
    return left_s > 0 ? left_s : 0;
}

static void hello_send(struct agent *agent)
{
    char address[320];
    const char *host = agent->config.host;
    snprintf(address, sizeof(address), strchr(host, ':') ? "[%s]:%u" : "%s:%u", host,
             links_port(agent->links));
    json_t *hello = json_deep_copy(agent->inventory);
    json_object_set_new(hello, "address", json_string(address));
    json_object_set_new(hello, "release", json_string(motley_version));
    json_object_set_new(hello, "protocol", json_integer(release_protocol()));
    json_object_set_new(hello, "workers", supervisor_workers(agent->supervisor));
    json_object_set_new(hello, "lacking", supervisor_lacking(agent->supervisor));
    if (agent->faults)
        json_object_set(hello, "faults", agent->faults);
    doctor_disk_say(agent->options.home, hello, &agent->disk_free);
    if (leaves_in_s(agent) >= 0)
        json_object_set_new(hello, "leaves_s", json_real(leaves_in_s(agent)));
    if (history_before(agent->history))
        json_object_set(hello, "before", history_before(agent->history));
    feed_note(agent->feed, "node_hello", hello);
    health_again(agent->health);
}

static void lacking_changed(void *arg)
{
    hello_send(arg);
}

static pid_t health_pid(void *arg, const char *device)
{
    struct agent *agent = arg;
    return supervisor_pid(agent->supervisor, device);
}

static void health_note(void *arg, json_t *devices)
{
    struct agent *agent = arg;
    feed_note(agent->feed, "health", json_pack("{s:o}", "devices", devices));
}

static void feed_connected(void *arg)
{
    struct agent *agent = arg;
    agent->connected = true;
    log_event(LOG_LEVEL_INFO, "redis_connected", "node=%s boot=%s", agent->config.name, agent->boot);
    hello_send(agent);
}

static void replaced(struct agent *agent, const json_t *message);

static void feed_message(void *arg, const json_t *message)
{
    struct agent *agent = arg;
    const char *type = json_string_value(json_object_get(message, "type"));
    if (strcmp(type, "hello") == 0)
        hello_send(agent);
    else if (strcmp(type, "nodes") == 0)
        links_nodes(agent->links, agent->config.name, json_object_get(message, "nodes"));
    else if (strcmp(type, "removed") == 0)
        renewer_now(agent->renewer); /* ask the api, whose answer is decisive */
    else if (strcmp(type, "replaced") == 0)
        replaced(agent, message);
    supervisor_message(agent->supervisor, message); /* this also confirms a message that has an id */
}

static void workers_ended(void *arg);

/* Ends this agent where another one that began later has its identity, as in a copy of its home: the node's
 * messages are read by both, so that only one may act on them. */
static void replaced(struct agent *agent, const json_t *message)
{
    const char *boot = json_string_value(json_object_get(message, "boot"));
    if (!boot || strcmp(boot, agent->boot) <= 0 || agent->stopping)
        return;
    log_event(LOG_LEVEL_ERROR, "node_replaced", "node=%s boot=%s", agent->config.name, boot);
    agent->replaced = true;
    agent->stopping = true;
    supervisor_end(agent->supervisor, 0, workers_ended, agent);
}

/* Whether a message is of the present incarnation. Messages of an earlier one may still lie in Redis and are
 * void. The first message of a later one shows that the database was restored from a backup: it knows no run
 * that is executing here, so all workers end and the agent starts again. */
static bool feed_current(void *arg, const json_t *message)
{
    struct agent *agent = arg;
    struct err err;
    const char *told = json_string_value(json_object_get(message, "incarnation"));
    const char *mine = history_incarnation(agent->history);
    int order = !told ? 0 : strcmp(told, mine);
    if (order == 0)
        return agent->renewal[0] == '\0';
    if (strlen(told) >= HISTORY_INCARNATION_SIZE)
        return false;
    if (mine[0] == '\0') {
        if (history_adopt(agent->history, told, &err) < 0)
            log_event(LOG_LEVEL_WARN, "incarnation_not_noted", "why=\"%s\"", err.text);
        return true;
    }
    if (order > 0 && agent->renewal[0] == '\0' && !agent->stopping) {
        log_event(LOG_LEVEL_WARN, "cluster_restored", "incarnation=%s before=%s", told, mine);
        snprintf(agent->renewal, sizeof(agent->renewal), "%s", told);
        supervisor_end(agent->supervisor, 0, workers_ended, agent);
    }
    return false;
}

static void feed_acked(void *arg)
{
    struct agent *agent = arg;
    supervisor_acked(agent->supervisor);
    if (agent->flushing && !journal_holds_events(agent->journal))
        event_base_loopbreak(agent->base);
}

/* Logs one line per QUIET_MS while Redis is unreachable, because the attempts never end. */
static void feed_trouble(void *arg, const struct err *why)
{
    struct agent *agent = arg;
    uint64_t now_ns = clock_mono_ns();
    if (agent->connected || agent->complained_ns == 0 ||
        now_ns - agent->complained_ns > (uint64_t)QUIET_MS * 1000000) {
        log_event(LOG_LEVEL_WARN, "redis_trouble", "why=\"%s\"", why->text);
        agent->complained_ns = now_ns;
    }
    agent->connected = false;
    if (why->code == ERR_AUTH || why->code == ERR_DENIED)
        renewer_now(agent->renewer); /* the node may have been removed */
}

static void link_measured(void *arg, const struct links_result *result)
{
    struct agent *agent = arg;
    supervisor_link(agent->supervisor, result);
}

/* ---- ending ---- */

static void flushed(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct agent *agent = arg;
    event_base_loopbreak(agent->base);
}

static void workers_ended(void *arg)
{
    struct agent *agent = arg;
    const struct timeval whole = {.tv_sec = FLUSH_MS / 1000}, brief = {.tv_usec = HELLO_MS * 1000};
    agent->flushing = true;
    if (agent->connected)
        event_add(agent->flush, journal_holds_events(agent->journal) ? &whole : &brief);
    else
        event_base_loopbreak(agent->base);
}

/* Leaves the cluster for now: says so, which keeps new work away and lets the scheduler move what runs here,
 * and asks the workers to stop after their step with a checkpoint. */
static void leave(struct agent *agent, const char *why)
{
    log_event(LOG_LEVEL_INFO, "agent_leaving", "why=%s grace_s=%.0f", why, agent->config.grace_s);
    agent->stopping = true;
    agent->leaving = true;
    hello_send(agent);
    supervisor_end(agent->supervisor, (uint32_t)(1e3 * agent->config.grace_s), workers_ended, agent);
}

/* Waits for the time at which the node has to leave, and leaves then. */
static void until_look(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct agent *agent = arg;
    const double left_s = leaves_in_s(agent);
    if (left_s < 0 || agent->stopping)
        return;
    if (left_s == 0) {
        leave(agent, "until");
        return;
    }
    const double wait_s = left_s < UNTIL_TICK_S ? left_s : UNTIL_TICK_S;
    struct timeval wait = {.tv_sec = (time_t)wait_s};
    wait.tv_usec = (suseconds_t)(1e6 * (wait_s - (double)wait.tv_sec));
    event_add(agent->until, &wait);
}

/* Looks whether something is wrong with this machine, and says so in a hello when that has changed, or the
 * room on its disk. */
static void doctor_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct agent *agent = arg;
    const struct timeval pause = {.tv_sec = DOCTOR_S};
    const struct doctor doctor = {
        .home = agent->options.home, .config = &agent->config, .identity = &agent->identity};
    json_t *faults = doctor_look(&doctor, false), *fault;
    const bool changed = faults && !json_equal(faults, agent->faults);
    size_t i;
    event_add(agent->doctor, &pause);
    if (!changed) {
        json_decref(faults);
        if (agent->connected && doctor_disk_changed(agent->options.home, agent->disk_free))
            hello_send(agent);
        return;
    }
    json_decref(agent->faults);
    agent->faults = faults;
    json_array_foreach (faults, i, fault)
        log_event(LOG_LEVEL_WARN, "machine_fault", "why=\"%s\"", json_string_value(fault));
    if (agent->connected)
        hello_send(agent);
}

static void signal_came(evutil_socket_t number, short what, void *arg)
{
    (void)what;
    struct agent *agent = arg;
    log_event(LOG_LEVEL_INFO, "agent_stopping", "signal=%d", (int)number);
    if (number == SIGUSR2) {
        agent->stopping = true;
        event_base_loopbreak(agent->base);
        return;
    }
    /* A batch system's signal before an allocation's end may find a node that leaves by itself. */
    const bool first = !agent->signalled && (agent->leaving || !agent->stopping);
    agent->signalled = true;
    if (!agent->stopping)
        leave(agent, "signal");
    else if (first)
        return;
    else if (!agent->flushing)
        supervisor_end(agent->supervisor, 0, workers_ended, agent);
    else
        event_base_loopbreak(agent->base);
}

/* ---- the certificate ---- */

static struct tls_files tls_files_of(const struct agent_identity *identity)
{
    return (struct tls_files){
        .ca_file = identity->ca_file, .cert_file = identity->cert_file, .key_file = identity->key_file};
}

/* Uses a new certificate for new connections and workers, and the place of Redis that came with it. */
static void certificate_use(struct agent *agent, const struct agent_certificate *certificate)
{
    struct err err = {0};
    const struct tls_files files = tls_files_of(&agent->identity);
    agent->identity.certificate = *certificate;
    if ((agent->redis_tls && tls_context_reload(agent->redis_tls, &files, TLS_ROLE_CLIENT, &err) < 0) ||
        links_reload(agent->links, &err) < 0 ||
        (agent_redis_moved(agent->options.home, &agent->identity, &err) &&
         feed_move(agent->feed, agent->identity.redis, &err) < 0)) {
        log_event(LOG_LEVEL_ERROR, "certificate_unusable", "why=\"%s\"", err.text);
        return;
    }
    log_event(LOG_LEVEL_INFO, "certificate_renewed", "identity=%s ends_s=%lld", certificate->identity,
              (long long)certificate->ends_s);
}

/* Ends the workers of this removed node and puts its credentials aside; it does not join again by itself. */
static void node_removed(struct agent *agent)
{
    struct err err = {0};
    agent->removed = true;
    log_event(LOG_LEVEL_ERROR, "node_removed", "node=%s api=%s why=\"the cluster knows this node no more\"",
              agent->identity.node, agent->identity.api);
    if (agent_leave(agent->options.home, &agent->identity, &err) < 0)
        log_event(LOG_LEVEL_ERROR, "node_removed", "why=\"%s\"", err.text);
    if (!agent->stopping) {
        agent->stopping = true;
        supervisor_end(agent->supervisor, REMOVED_GRACE_MS, workers_ended, agent);
    }
}

static void certificate_asked(void *arg, const struct err *err, const struct agent_certificate *certificate)
{
    struct agent *agent = arg;
    if (!err) {
        certificate_use(agent, certificate);
    } else if (err->code == ERR_AUTH) {
        node_removed(agent);
    } else {
        log_event(LOG_LEVEL_WARN, "certificate_not_renewed", "ends_s=%lld why=\"%s\"",
                  (long long)certificate->ends_s, err->text);
    }
}

/* ---- beginning ---- */

static int worker_find(struct agent *agent, struct err *err)
{
    if (!agent->options.worker)
        return process_sibling("motley-worker", agent->worker, sizeof(agent->worker), err);
    if (access(agent->options.worker, X_OK) < 0)
        return err_set(err, ERR_NOT_FOUND, "\"%s\" is no program to run as worker", agent->options.worker);
    return file_path(agent->worker, sizeof(agent->worker), err, "%s", agent->options.worker);
}

static void unused_cards_log(const struct agent_config *config)
{
    const json_t *card;
    size_t i;
    json_array_foreach (json_object_get(config->cards, "cards"), i, card)
        if (!json_is_true(json_object_get(card, "usable")))
            log_event(LOG_LEVEL_WARN, "card_not_used", "kind=%s name=\"%s\" why=\"%s\"",
                      json_text_of(card, "kind"), json_text_of(card, "name"), json_text_of(card, "why"));
}

/* Asks for the cards of the machine if the configuration names one or names no devices. */
static int agent_cards_look(struct agent *agent, struct err *err)
{
    bool wanted = agent->config.all_cards;
    for (uint32_t i = 0; i < agent->config.device_count; i++) {
        wanted |= strcmp(agent->config.devices[i].kind, "cuda") == 0 ||
                  strcmp(agent->config.devices[i].kind, "hip") == 0;
    }
    if (!wanted) {
        agent->config.cards = agent_config_no_cards();
        unused_cards_log(&agent->config);
        return agent_config_ports(&agent->config, err);
    }
    char workers[4096];
    if (file_path(workers, sizeof(workers), err, "%s/run", agent->options.home) == 0)
        agent->config.held = child_limits(workers);
    json_t *cards = cards_ask(agent->worker, err);
    if (!cards || agent_config_cards(&agent->config, cards, err) < 0)
        return -1;
    unused_cards_log(&agent->config);
    return agent->config.device_count > 0
               ? 0
               : err_set(err, ERR_NOT_FOUND,
                         "none of the devices named can be used: motley-worker --devices says why");
}

/* Takes the time that the caller knows where the configuration has none. A node whose time is over joins
 * nothing. */
static int until_check(struct agent *agent, struct err *err)
{
    char shown[24];
    if (agent->config.until_us == 0)
        agent->config.until_us = agent->options.until_us;
    return agent->config.until_us == 0 || leaves_in_s(agent) > 0
               ? 0
               : err_set(
                     err, ERR_DENIED,
                     "this machine is here until %s, and its jobs would have to leave it %.0f s (`grace`) "
                     "before that: give a later `until`",
                     clock_words_us(agent->config.until_us, shown), agent->config.grace_s);
}

/* Reads the configuration and loads the identity, or joins the cluster. */
static int identity_make(struct agent *agent, struct err *err)
{
    const struct agent_options *options = &agent->options;
    int enrolled = agent_identity_load(options->home, &agent->identity, err);
    if (enrolled < 0)
        return -1;
    bool ended = enrolled == 1 && agent->identity.certificate.ends_s <= clock_wall_us() / 1000000;
    if (ended && !options->join) {
        char now[24];
        return err_set(
            err, ERR_AUTH,
            "node %s was away for so long that its certificate has ended (this machine's clock says "
            "%s): it comes back with a token made by motley join-token --node %s",
            agent->identity.node, clock_words_us(clock_wall_us(), now), agent->identity.node);
    }
    enrolled = ended ? 0 : enrolled;
    if (enrolled == 0 && (!options->api || !options->join)) {
        return options->join_missing
                   ? err_set(err, ERR_INVALID,
                             "this node has not joined a cluster, and --join-file %s is not there",
                             options->join_missing)
                   : err_set(err, ERR_INVALID,
                             "this node has not joined a cluster: give --api URL and a join token "
                             "(MOTLEY_JOIN or --join-file)");
    }
    const char *api = options->api ? options->api : agent->identity.api;
    char host[256];
    if (agent_own_host(api, host, err) < 0 && (!options->config || enrolled == 0))
        return -1;
    if (agent_config_read(options->config, host, &agent->config, err) < 0)
        return err_wrap(err, "configuration");
    if (until_check(agent, err) < 0)
        return -1;
    if (enrolled == 0) {
        uint32_t wait_ms = options->join_wait_ms != 0 ? options->join_wait_ms : JOIN_WAIT_MS;
        if (agent_enrol(options->home, api, options->join, agent->config.name, agent->config.host, wait_ms,
                        &agent->identity, err) < 0) {
            return -1;
        }
        log_event(LOG_LEVEL_INFO, "node_joined", "node=%s api=%s", agent->identity.node, api);
    }
    if (strcmp(agent->identity.node, agent->config.name) != 0) {
        return err_set(err, ERR_CONFLICT, "this home joined as node \"%s\", its configuration says \"%s\"",
                       agent->identity.node, agent->config.name);
    }
    /* Where the server's address has changed, its Redis may have moved, too. */
    const bool moved = options->api && strcmp(options->api, agent->identity.api) != 0;
    struct err why = {0};
    if (options->api)
        snprintf(agent->identity.api, sizeof(agent->identity.api), "%s", options->api);
    if (enrolled == 1 && moved && agent_renew(&agent->identity, &why) == 0)
        log_event(LOG_LEVEL_INFO, "server_moved", "api=%s redis=%s", agent->identity.api,
                  agent->identity.redis);
    else if (enrolled == 1 && !moved)
        agent_server_ask(&agent->identity, NULL, &why);
    if (why.code == ERR_RELEASE) {
        *err = why; /* any other fault of the api's passes: jobs here go on without it */
        return -1;
    }
    if (why.code != ERR_NONE)
        log_event(LOG_LEVEL_WARN, "api_not_asked", "why=\"%s\"", why.text);
    return agent->identity.redis[0] != '\0'
               ? 0
               : err_set(err, ERR_INVALID, "the cluster told no Redis to work with");
}

/* Renumbers measurements in the journal that an earlier start made, because their numbers belong to that
 * start's boot id. */
static int node_stream_renew(struct agent *agent, struct err *err)
{
    struct journal_stream *old = journal_find(agent->journal, "node");
    json_t *events = json_array();
    for (struct journal_event *event = !old ? NULL : old->first; event != NULL; event = event->next) {
        struct err ignored;
        json_array_append_new(events,
                              frame_decode(event->bytes, event->size, &frame_limits_default, &ignored));
    }
    if (old)
        journal_stream_drop(old);
    struct journal_stream *stream = journal_stream(agent->journal, "node", err);
    int result = !stream ? -1 : 0;
    size_t index;
    json_t *event;
    json_array_foreach (events, index, event) {
        json_object_set_new(event, "boot", json_string(agent->boot));
        if (result == 0)
            result = journal_append(stream, event, false, err);
    }
    json_decref(events);
    return result;
}

static int feed_make(struct agent *agent, struct err *err)
{
    const struct agent_identity *identity = &agent->identity;
    if (identity->redis_tls) {
        const struct tls_files files = tls_files_of(identity);
        agent->redis_tls = tls_context_create(&files, TLS_ROLE_CLIENT, err);
        if (!agent->redis_tls)
            return -1;
    }
    struct feed_config config = {
        .address = identity->redis,
        .user = identity->user[0] != '\0' ? identity->user : NULL,
        .password = identity->password[0] != '\0' ? identity->password : NULL,
        .tls = agent->redis_tls,
        .node = agent->config.name,
        .boot = agent->boot,
        .seal_key = identity->seal_key,
    };
    static const struct feed_events events = {.current = feed_current,
                                              .message = feed_message,
                                              .connected = feed_connected,
                                              .acked = feed_acked,
                                              .trouble = feed_trouble};
    agent->feed = feed_create(agent->base, &config, agent->journal, &events, agent, err);
    return !agent->feed ? -1 : 0;
}

/* Opens the control groups. Runs once in the agent's lifetime, because the agent moves itself into a group
 * below the one that it divides. */
static int groups_make(struct agent *agent, struct err *err)
{
    char procs[4096];
    struct err why = {0};
    agent->groups = groups_open(&why);
    if (!agent->groups)
        log_event(LOG_LEVEL_INFO, "workers_without_group", "why=\"%s\"", why.text);
    for (uint32_t i = 0; agent->groups && i < agent->config.device_count; i++)
        if (groups_worker(agent->groups, i, agent->config.devices[i].memory_limit_bytes, procs, err) < 0)
            return -1;
    return 0;
}

/* Creates the parts of the agent that are created anew when the cluster's incarnation (history.h) changes. */
static int parts_make(struct agent *agent, struct err *err)
{
    static const int numbers[SIGNALS] = {SIGTERM, SIGINT, SIGUSR2};
    char path[4096];
    agent->base = event_base_new();
    agent->flush = !agent->base ? NULL : evtimer_new(agent->base, flushed, agent);
    agent->until = !agent->flush ? NULL : evtimer_new(agent->base, until_look, agent);
    agent->doctor = !agent->until ? NULL : evtimer_new(agent->base, doctor_timer, agent);
    if (!agent->doctor)
        return err_set(err, ERR_NOMEM, "no memory for the event loop");
    for (int i = 0; i < SIGNALS; i++) {
        agent->signals[i] = evsignal_new(agent->base, numbers[i], signal_came, agent);
        if (!agent->signals[i] || event_add(agent->signals[i], NULL) < 0)
            return err_set(err, ERR_NOMEM, "signal %d cannot be handled", numbers[i]);
    }
    if (file_path(path, sizeof(path), err, "%s/journal", agent->options.home) < 0 ||
        !(agent->journal = journal_open(path, agent->config.journal_limit_bytes, err)) ||
        node_stream_renew(agent, err) < 0 || !(agent->inventory = inventory_make(&agent->config, err))) {
        return -1;
    }
    const uint16_t port = agent->config.port;
    struct links_config links = {.host = agent->config.listen,
                                 .port = port ? port : agent->config.port_first,
                                 .port_last = port ? port : agent->config.port_last,
                                 .ca_file = agent->identity.ca_file,
                                 .cert_file = agent->identity.cert_file,
                                 .key_file = agent->identity.key_file};
    struct supervisor_options supervisor = {.config = &agent->config,
                                            .identity = &agent->identity,
                                            .home = agent->options.home,
                                            .worker = agent->worker,
                                            .journal = agent->journal,
                                            .groups = agent->groups,
                                            .history = agent->history,
                                            .lacking_changed = lacking_changed,
                                            .arg = agent};
    agent->links = links_create(agent->base, &links, link_measured, agent, err);
    agent->supervisor = !agent->links ? NULL : supervisor_create(agent->base, &supervisor, err);
    agent->renewer = !agent->supervisor
                         ? NULL
                         : renewer_create(agent->base, &agent->identity, certificate_asked, agent, err);
    const struct health_options health = {.config = &agent->config,
                                          .worker = agent->worker,
                                          .pid = health_pid,
                                          .note = health_note,
                                          .arg = agent};
    agent->health = !agent->renewer ? NULL : health_create(agent->base, &health, err);
    if (!agent->health || feed_make(agent, err) < 0)
        return -1;
    if (supervisor_connect(agent->supervisor, agent->feed, agent->links, err) < 0)
        return -1;
    until_look(-1, 0, agent);
    doctor_timer(-1, 0, agent);
    return 0;
}

static void parts_fini(struct agent *agent)
{
    renewer_destroy(agent->renewer);
    health_destroy(agent->health);
    supervisor_destroy(agent->supervisor);
    feed_destroy(agent->feed);
    links_destroy(agent->links);
    journal_close(agent->journal);
    json_decref(agent->inventory);
    for (int i = 0; i < SIGNALS; i++) {
        if (agent->signals[i]) {
            event_free(agent->signals[i]);
            agent->signals[i] = NULL;
        }
    }
    if (agent->flush)
        event_free(agent->flush);
    if (agent->until)
        event_free(agent->until);
    if (agent->doctor)
        event_free(agent->doctor);
    if (agent->base) {
        event_base_loop(agent->base, EVLOOP_NONBLOCK); /* libevent frees sockets in its next turn */
        event_base_free(agent->base);
    }
    tls_context_free(agent->redis_tls);
    agent->renewer = NULL;
    agent->health = NULL;
    agent->supervisor = NULL;
    agent->feed = NULL;
    agent->links = NULL;
    agent->journal = NULL;
    agent->inventory = NULL;
    agent->flush = NULL;
    agent->until = NULL;
    agent->doctor = NULL;
    agent->flushing = false;
    agent->base = NULL;
    agent->redis_tls = NULL;
    agent->connected = false;
}

static void agent_fini(struct agent *agent)
{
    parts_fini(agent);
    groups_close(agent->groups);
    history_close(agent->history);
    if (agent->lock >= 0)
        close(agent->lock);
    explicit_bzero(&agent->identity, sizeof(agent->identity));
    agent_config_fini(&agent->config);
    json_decref(agent->faults);
    free(agent);
}

/* Removes this home's state of the previous incarnation, except which jobs it had. The new incarnation is
 * stored last, so that after a crash in between the next start removes everything again. */
static int renew(struct agent *agent, struct err *err)
{
    static const char *const names[] = {"run", "journal/seen"};
    char path[4096];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (file_path(path, sizeof(path), err, "%s/%s", agent->options.home, names[i]) < 0 ||
            file_remove_tree(path, err) < 0) {
            return -1;
        }
    }
    if (file_path(path, sizeof(path), err, "%s/journal", agent->options.home) < 0 ||
        !(agent->journal = journal_open(path, agent->config.journal_limit_bytes, err))) {
        return -1;
    }
    while (journal_first(agent->journal))
        journal_stream_drop(journal_first(agent->journal));
    journal_close(agent->journal);
    agent->journal = NULL;
    int result = history_renew(agent->history, agent->renewal, err);
    agent->renewal[0] = '\0';
    return result < 0 ? -1 : history_boot(agent->options.home, agent->boot, err);
}

/* Writes the absolute path of the home, because workers may have other working folders. An absolute path is
 * not changed: `motley up` gives a short name for a long path and finds workers by it. */
static int agent_home_make(const char *home, char out[4096], struct err *err)
{
    if (file_mkdirs(home, 0700, err) < 0)
        return -1;
    if (home[0] == '/')
        return file_path(out, 4096, err, "%s", home);
    char *real = realpath(home, NULL);
    int result = !real ? err_set(err, ERR_IO, "the folder \"%s\" cannot be used", home)
                       : file_path(out, 4096, err, "%s", real);
    free(real);
    return result;
}

int agent_run(const struct agent_options *options, struct err *err)
{
    struct agent *agent = calloc(1, sizeof(*agent));
    char home[4096];
    char path[4096];
    if (!agent)
        return err_set(err, ERR_NOMEM, "no memory for an agent");
    agent->options = *options;
    agent->lock = -1;
    int result = -1;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* exceeding the file size limit then fails the write, as a full disk does */
    if (agent_home_make(options->home, home, err) < 0 ||
        file_path(path, sizeof(path), err, "%s/agent.lock", home) < 0) {
        goto out;
    }
    if ((agent->lock = file_lock(path, err)) < 0) {
        if (err->code == ERR_BUSY)
            err_set(err, ERR_BUSY,
                    "another motley-agent uses the home %.200s, perhaps one that was told to stop and still "
                    "ends its workers: give each its own --home, or try again in a while",
                    home);
        goto out;
    }
    agent->options.home = home;
    if (worker_find(agent, err) < 0 || history_boot(agent->options.home, agent->boot, err) < 0 ||
        identity_make(agent, err) < 0 || agent_cards_look(agent, err) < 0 ||
        !(agent->history = history_open(home, err)) || groups_make(agent, err) < 0) {
        goto out;
    }
    for (bool again = true; again;) {
        if (parts_make(agent, err) < 0)
            goto out;
        log_event(LOG_LEVEL_INFO, "agent_started", "node=%s devices=%u boot=%s", agent->config.name,
                  agent->config.device_count, agent->boot);
        event_base_dispatch(agent->base);
        again = agent->renewal[0] != '\0' && !agent->stopping;
        if (again) {
            parts_fini(agent);
            if (renew(agent, err) < 0)
                goto out;
        }
    }
    log_event(LOG_LEVEL_INFO, "agent_stopped", "node=%s", agent->config.name);
    result = agent->removed
                 ? err_set(err, ERR_DENIED,
                           "node %s was removed from the cluster; it joins again with a token made "
                           "by motley join-token --node %s --replace",
                           agent->identity.node, agent->identity.node)
             : agent->replaced
                 ? err_set(err, ERR_CONFLICT,
                           "another agent serves node %s since a later time (motley nodes shows where), as "
                           "from a copy of %.200s: each machine joins under a name of its own",
                           agent->identity.node, home)
                 : 0;
out:
    agent_fini(agent);
    return result;
}
