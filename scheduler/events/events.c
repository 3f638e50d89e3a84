/* Checks the events of agents, puts them in order and turns them into rows. */
#include "scheduler/events/events_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/array.h"
#include "common/buf.h"
#include "common/digest.h"
#include "common/json.h"
#include "common/release.h"
#include "planner/cost/profile_noise.h"
#include "planner/given/catalogue.h"

static const int64_t DISK_BYTES_MAX = (int64_t)1 << 60;
enum { LACKING_MAX = 500, PROTOCOL_MAX = 1000000, FAULTS_MAX = 256 };
#define LEAVES_S_MAX 1e9 /* 31 years */

/* ---- looking up ---- */

static struct store_sched_node *find_node(struct store_view *view, const char *name)
{
    for (size_t i = 0; i < view->node_count; i++)
        if (strcmp(view->nodes[i].name, name) == 0)
            return &view->nodes[i];
    return NULL;
}

static struct node_move *node_move_of(struct event_batch *batch, struct store_sched_node *node,
                                      struct err *err)
{
    for (size_t i = 0; i < batch->node_count; i++)
        if (batch->nodes[i].node == node)
            return &batch->nodes[i];
    if (ARRAY_RESERVE(batch->nodes, batch->node_capacity, batch->node_count + 1, err) < 0)
        return NULL;
    struct node_move *move = &batch->nodes[batch->node_count++];
    *move = (struct node_move){.node = node, .seq = node->last_seq};
    snprintf(move->boot, sizeof(move->boot), "%s", node->boot ? node->boot : "");
    return move;
}

/* ---- events of a node ---- */

/* Checks a name that a node gives: others see it in terminals, logs and metrics. NULL is none. */
static int events_check_name(const char *what, const char *name, struct err *err)
{
    for (const char *at = name; at && *at; at++)
        if (*at <= ' ' || *at > '~' || *at == '"' || *at == '\\')
            return err_set(err, ERR_INVALID,
                           "%s may hold only characters of ASCII without blanks, quotes and \\", what);
    return 0;
}

/* Returns a row of `devices`, or NULL with the error. A node may name only devices of its own. */
static json_t *events_device_row(const char *node, const json_t *device, struct err *err)
{
    struct json_reader reader;
    const char *name = NULL, *kind = "cpu";
    char digest[DIGEST_HEX_SIZE];
    int64_t memory = 0;
    struct buf text;
    size_t size = strlen(node);
    jr_init(&reader, device, "devices[]", err);
    jr_str(&reader, "name", JR_REQUIRED, 1, 200, &name);
    jr_str(&reader, "kind", JR_OPTIONAL, 1, 40, &kind);
    jr_i64(&reader, "memory_limit_bytes", JR_REQUIRED, 1, INT64_MAX, &memory);
    if (jr_finish_loose(&reader) < 0 || events_check_name("a device's name", name, err) < 0 ||
        events_check_name("a device's kind", kind, err) < 0)
        return NULL;
    if (strncmp(name, node, size) != 0 || name[size] != '/') {
        err_set(err, ERR_DENIED, "device \"%.100s\" is not one of node %s", name, node);
        return NULL;
    }
    buf_init(&text, 1u << 20);
    int rc = json_print(device, true, &text, err);
    if (rc == 0)
        rc = digest_sha256_hex(text.data, text.size, digest, err);
    buf_fini(&text);
    return rc < 0
               ? NULL
               : json_pack("{s:s, s:s, s:s, s:s, s:I, s:O}", "name", name, "node", node, "kind", kind,
                           "digest", digest, "memory_limit_bytes", (json_int_t)memory, "inventory", device);
}

static int node_change(struct event_batch *batch, struct node_move *move, struct err *err)
{
    if (!move->change) {
        json_t *change =
            json_pack("{s:s, s:s, s:b}", "node", move->node->name, "boot", move->boot, "hello", 0);
        if (event_append(batch->owned[E_NODES], change, err) < 0)
            return -1;
        move->change = change;
    }
    return 0;
}

/* Reads what an agent remembers of runs from before the database was restored from a backup: {"incarnation",
 * "runs": [{"job", "run"}]}. The database stores those of the runs that it does not know (unknown_jobs). */
static int on_before(struct event_batch *batch, const char *node, const json_t *before, struct err *err)
{
    struct json_reader reader, item;
    const char *incarnation = NULL;
    const json_t *runs = NULL;
    jr_init(&reader, before, "node_hello.before", err);
    jr_str(&reader, "incarnation", JR_REQUIRED, 0, 39, &incarnation);
    jr_array(&reader, "runs", JR_REQUIRED, 0, 512, &runs);
    if (jr_finish_loose(&reader) < 0)
        return -1;
    for (size_t i = 0; i < json_array_size(runs); i++) {
        int64_t job = 0, run = 0;
        jr_item(&reader, "runs", runs, i, &item);
        jr_i64(&item, "job", JR_REQUIRED, 1, EVENT_SEQ_MAX, &job);
        jr_i64(&item, "run", JR_REQUIRED, 1, EVENT_SEQ_MAX, &run);
        if (jr_finish_loose(&item) < 0 ||
            event_append(batch->owned[E_UNKNOWN],
                         json_pack("{s:I, s:s, s:I, s:s}", "job", (json_int_t)job, "node", node, "run",
                                   (json_int_t)run, "incarnation", incarnation),
                         err) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Reads {device: sentence}: what the node's devices lack in order to run a worker. */
static int check_lacking(const json_t *lacking, struct err *err)
{
    const char *device;
    json_t *why;
    json_object_foreach ((json_t *)lacking, device, why) {
        if (!json_is_string(why) || json_string_length(why) > LACKING_MAX)
            return err_set(err, ERR_INVALID, "node_hello.lacking.%.80s is no text of at most %d bytes",
                           device, LACKING_MAX);
    }
    return 0;
}

/* A node whose agent does not work with this release gets no work: that is what its devices lack. */
static void protocol_judge(const char *node, int64_t protocol, const json_t *devices, json_t *inventory)
{
    char who[96];
    struct err err;
    size_t i;
    json_t *device;
    const char *release = json_string_value(json_object_get(inventory, "release"));
    snprintf(who, sizeof(who), "the agent of node %s", node);
    if (release_check(who, release ? release : "unknown", (unsigned)protocol, &err) == 0)
        return;
    json_t *lacking = json_object();
    json_array_foreach (devices, i, device)
        json_object_set_new(lacking, json_string_value(json_object_get(device, "name")),
                            json_string(err.text));
    json_object_set_new(inventory, "lacking", lacking);
}

/* Checks what the node's agent found wrong with its machine. */
static int check_faults(const json_t *faults, struct err *err)
{
    size_t i;
    json_t *fault;
    json_array_foreach ((json_t *)faults, i, fault)
        if (!json_is_string(fault) || json_string_length(fault) > LACKING_MAX)
            return err_set(err, ERR_INVALID, "node_hello.faults[%zu] is no text of at most %d bytes", i,
                           LACKING_MAX);
    return 0;
}

/* Checks what the inventory has of the disk of the agent's home. */
static void check_disk(struct json_reader *reader)
{
    int64_t bytes;
    jr_i64(reader, "disk_bytes", JR_OPTIONAL, 0, DISK_BYTES_MAX, &bytes);
    jr_i64(reader, "disk_free_bytes", JR_OPTIONAL, 0, DISK_BYTES_MAX, &bytes);
}

static int on_hello(struct event_batch *batch, struct store_sched_node *node, const json_t *event,
                    struct err *err)
{
    struct json_reader reader;
    const char *boot = NULL, *machine = NULL, *address = NULL;
    double leaves_s = 0;
    int64_t protocol = 0;
    const json_t *devices = NULL, *workers = NULL, *before = NULL, *lacking = NULL, *faults = NULL;
    json_t *device;
    size_t i;
    jr_init(&reader, event, "node_hello", err);
    jr_str(&reader, "boot", JR_REQUIRED, 1, 79, &boot);
    jr_str(&reader, "machine_id", JR_OPTIONAL, 1, 200, &machine);
    jr_str(&reader, "address", JR_OPTIONAL, 1, 300, &address);
    jr_array(&reader, "devices", JR_REQUIRED, 0, 4096, &devices);
    jr_array(&reader, "workers", JR_OPTIONAL, 0, 4096, &workers);
    const bool leaves = jr_f64(&reader, "leaves_s", JR_OPTIONAL, 0, LEAVES_S_MAX, &leaves_s) == 1;
    jr_i64(&reader, "protocol", JR_OPTIONAL, 0, PROTOCOL_MAX, &protocol);
    jr_object(&reader, "before", JR_OPTIONAL, &before);
    jr_object(&reader, "lacking", JR_OPTIONAL, &lacking);
    jr_array(&reader, "faults", JR_OPTIONAL, 0, FAULTS_MAX, &faults);
    check_disk(&reader);
    if (jr_finish_loose(&reader) < 0 || check_faults(faults, err) < 0 || check_lacking(lacking, err) < 0 ||
        events_check_name("boot", boot, err) < 0 || events_check_name("address", address, err) < 0 ||
        (before && on_before(batch, node->name, before, err) < 0))
        return -1;
    json_t *rows = json_array();
    json_array_foreach (devices, i, device) {
        json_t *row = events_device_row(node->name, device, err);
        if (!row || event_append(rows, row, err) < 0) {
            json_decref(rows);
            return -1;
        }
    }
    struct node_move *move = node_move_of(batch, node, err);
    if (!move) {
        json_decref(rows);
        return -1;
    }
    if (strcmp(move->boot, boot) != 0) {
        snprintf(move->boot, sizeof(move->boot), "%s", boot);
        move->seq = 0;
    }
    /* A later hello in the batch replaces the devices of an earlier one. */
    for (size_t k = json_array_size(batch->owned[E_DEVICES]); k-- > 0;) {
        const json_t *row = json_array_get(batch->owned[E_DEVICES], k);
        if (strcmp(json_string_value(json_object_get(row, "node")), node->name) == 0)
            json_array_remove(batch->owned[E_DEVICES], k);
    }
    json_array_extend(batch->owned[E_DEVICES], rows);
    json_decref(rows);
    if (node_change(batch, move, err) < 0)
        return -1;
    json_t *inventory = event_body(event);
    json_object_del(inventory, "workers");
    json_object_del(inventory, "before");
    json_object_del(inventory, "leaves_s");
    protocol_judge(node->name, protocol, devices, inventory);
    json_object_set_new(move->change, "hello", json_true());
    json_object_set_new(move->change, "boot", json_string(boot));
    json_object_set_new(move->change, "inventory", inventory);
    json_object_set_new(move->change, "leaves_s", leaves ? json_real(leaves_s) : json_null());
    if (machine)
        json_object_set_new(move->change, "machine_id", json_string(machine));
    if (address)
        json_object_set_new(move->change, "address", json_string(address));
    json_object_set(batch->hellos, node->name, workers ? (json_t *)workers : json_null());
    event_accept(batch, node->name);
    return 0;
}

static int on_heartbeat(struct event_batch *batch, struct store_sched_node *node, const json_t *event,
                        struct err *err)
{
    const char *boot = json_string_value(json_object_get(event, "boot"));
    const char *known = node->boot;
    for (size_t i = 0; i < batch->node_count; i++)
        if (batch->nodes[i].node == node)
            known = batch->nodes[i].boot;
    if (!boot)
        return err_set(err, ERR_INVALID, "a heartbeat of node %s without its boot", node->name);
    json_object_set_new(batch->heard, node->name,
                        json_integer(json_integer_value(json_object_get(event, "at"))));
    if (!known || strcmp(known, boot) != 0)
        return event_reply(batch, node->name, json_pack("{s:s}", "type", "hello"), err);
    if (!node->reachable)
        return event_append(batch->owned[E_SEEN], json_pack("{s:s}", "node", node->name), err);
    return 0;
}

static int on_received(struct event_batch *batch, const struct store_sched_node *node, const json_t *event,
                       struct err *err)
{
    const json_t *message = json_object_get(event, "message");
    if (!json_is_integer(message))
        return err_set(err, ERR_INVALID, "received without the message's id");
    batch->accepted++;
    return event_append(batch->owned[E_RECEIVED],
                        json_pack("{s:I, s:s}", "id", json_integer_value(message), "node", node->name), err);
}

/* Sets the fields of a profile that the agent must not set itself: by how much its noise makes it doubtful,
 * how hot the device was during the measurement, and how far the catalogue's figures are off, if it knows a
 * device of that name. ERR_INVALID: the planner cannot read the profile. */
static int profile_annotate(const struct event_batch *batch, const char *node, json_t *document,
                            struct err *err)
{
    const char *name = json_string_value(json_object_get(document, "device"));
    const struct store_sched_device *device = name ? event_device(batch->view, name) : NULL;
    json_object_del(document, "heat");
    json_object_del(document, "catalogue");
    json_object_del(document, "noise");
    const double noise = profile_noise(document, err);
    if (noise < 0)
        return -1;
    if (noise > 0)
        json_object_set_new(document, "noise", json_real(noise));
    if (!device || strcmp(device->node, node) != 0)
        return 0;
    if (device->heat < 1) /* The profile's tables were measured while the device was throttled to this factor
                             of its speed. */
        json_object_set_new(document, "heat", json_real(device->heat));
    const char *like = json_string_value(json_object_get(device->inventory, "like"));
    json_t *difference = catalogue_difference(like, document);
    if (difference)
        json_object_set_new(document, "catalogue", difference);
    return 0;
}

/* A measurement that has failed, by its node's word or because its answer cannot be used. */
static int measurement_failed(struct event_batch *batch, const char *node, const json_t *request,
                              const char *why, bool unreachable, struct err *err)
{
    return event_append(batch->owned[E_FAILURES],
                        json_pack("{s:I, s:s, s:s, s:b}", "request", json_integer_value(request), "node",
                                  node, "why", why, "unreachable", (int)unreachable),
                        err);
}

/* Takes answers to measurements: `profile` and `link` with a document, `failed` with a reason. Other events
 * of a measuring worker (log lines, memory) change nothing here: only their sequence number is recorded. */
static int on_measured(struct event_batch *batch, const struct event_head *head, const json_t *event,
                       struct err *err)
{
    const json_t *request = json_object_get(event, "request");
    json_t *document = json_object_get(event, "document");
    bool profile = strcmp(head->type, "profile") == 0, link = strcmp(head->type, "link") == 0;
    bool failed = strcmp(head->type, "failed") == 0;
    if (!profile && !link && !failed)
        return 0;
    if (!json_is_integer(request))
        return err_set(err, ERR_INVALID, "%s of node %s without its request", head->type, head->node);
    if (failed || !json_is_object(document)) {
        const char *why = json_string_value(json_object_get(event, failed ? "text" : "error"));
        return measurement_failed(batch, head->node, request, why ? why : "the answer has no document",
                                  json_is_true(json_object_get(event, "unreachable")), err);
    }
    if (profile) {
        struct err unreadable;
        if (profile_annotate(batch, head->node, document, &unreadable) < 0)
            return measurement_failed(batch, head->node, request, unreadable.text, false, err);
        return event_append(batch->owned[E_PROFILES],
                            json_pack("{s:I, s:s, s:O}", "request", json_integer_value(request), "node",
                                      head->node, "document", document),
                            err);
    }
    const char *to = json_string_value(json_object_get(document, "to"));
    if (!to)
        return err_set(err, ERR_INVALID, "a link document of node %s without `to`", head->node);
    return event_append(batch->owned[E_LINKS],
                        json_pack("{s:s, s:s, s:I, s:O}", "from", head->node, "to", to, "request",
                                  json_integer_value(request), "document", document),
                        err);
}

/* Adds a journaled event of a node. Sequence numbers are contiguous within one start of the node's agent,
 * which `boot` names. */
static int add_node_event(struct event_batch *batch, struct store_sched_node *node,
                          const struct event_head *head, const json_t *event, struct err *err)
{
    const char *boot = json_string_value(json_object_get(event, "boot"));
    struct node_move *move = node_move_of(batch, node, err);
    if (!move)
        return -1;
    if (boot && strcmp(boot, move->boot) != 0) {
        batch->dropped++;
        return event_reply(batch, node->name, json_pack("{s:s}", "type", "hello"), err);
    }
    if (node_change(batch, move, err) < 0)
        return -1;
    if (head->seq != move->seq + 1) {
        batch->dropped++;
        return 0;
    }
    move->seq = head->seq;
    event_accept(batch, node->name);
    return on_measured(batch, head, event, err);
}

int event_batch_add(struct event_batch *batch, const json_t *event, struct err *err)
{
    struct json_reader reader;
    struct event_head head = {0};
    jr_init(&reader, event, "event", err);
    jr_str(&reader, "type", JR_REQUIRED, 1, 40, &head.type);
    jr_str(&reader, "node", JR_REQUIRED, 1, 64, &head.node);
    jr_i64(&reader, "seq", JR_OPTIONAL, 0, EVENT_SEQ_MAX, &head.seq);
    if (jr_finish_loose(&reader) < 0)
        return -1;
    struct store_sched_node *node = find_node(batch->view, head.node);
    if (!node)
        return err_set(err, ERR_NOT_FOUND, "%s of node \"%s\", which is not enrolled", head.type, head.node);
    if (strcmp(head.type, "node_hello") == 0)
        return on_hello(batch, node, event, err);
    if (strcmp(head.type, "heartbeat") == 0)
        return on_heartbeat(batch, node, event, err);
    if (strcmp(head.type, "health") == 0)
        return event_on_health(batch, node, event, err);
    if (strcmp(head.type, "received") == 0)
        return on_received(batch, node, event, err);
    if (json_is_string(json_object_get(event, "boot")) && !json_is_integer(json_object_get(event, "run")))
        return add_node_event(batch, node, &head, event, err);
    return event_add_of_run(batch, &head, event, err);
}

int event_batch_close(struct event_batch *batch, struct err *err)
{
    for (size_t i = 0; i < batch->move_count; i++) {
        struct rank_move *move = &batch->moves[i];
        if (move->change) {
            json_object_set_new(move->change, "seq", json_integer(move->seq));
            json_object_set_new(move->change, "state",
                                json_string(state_name(&assignment_machine, (int)move->state)));
        }
        if (event_reply(batch, move->rank->node,
                        json_pack("{s:s, s:I, s:I, s:I, s:I}", "type", "ack", "run",
                                  (json_int_t)move->run->id, "epoch", (json_int_t)move->run->epoch, "rank",
                                  (json_int_t)move->rank->rank, "seq", (json_int_t)move->seq),
                        err) < 0) {
            return -1;
        }
    }
    for (size_t i = 0; i < batch->node_count; i++) {
        struct node_move *move = &batch->nodes[i];
        if (move->change)
            json_object_set_new(move->change, "seq", json_integer(move->seq));
        if (event_reply(batch, move->node->name,
                        json_pack("{s:s, s:n, s:s, s:I}", "type", "ack", "run", "boot", move->boot, "seq",
                                  (json_int_t)move->seq),
                        err) < 0) {
            return -1;
        }
    }
    return 0;
}

bool event_batch_is_empty(const struct event_batch *batch)
{
    for (int i = 0; i < E_COUNT; i++)
        if (json_array_size(batch->owned[i]) > 0)
            return false;
    return true;
}

void event_batch_apply(struct event_batch *batch)
{
    event_health_apply(batch);
    for (size_t i = 0; i < batch->move_count; i++) {
        batch->moves[i].rank->last_seq = batch->moves[i].seq;
        batch->moves[i].rank->state = batch->moves[i].state;
        batch->moves[i].rank->compute_s = batch->moves[i].compute_s;
        batch->moves[i].rank->measured = batch->moves[i].measured;
    }
    for (size_t i = 0; i < batch->node_count; i++) {
        struct node_move *move = &batch->nodes[i];
        if (!move->node->boot || strcmp(move->node->boot, move->boot) != 0) {
            char *boot = store_view_text(batch->view, move->boot);
            move->node->boot = boot ? boot : move->node->boot;
        }
        move->node->last_seq = move->seq;
        move->node->reachable = true;
    }
}
