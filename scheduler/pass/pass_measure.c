/* Requests measurements: profiles of devices for a model's shape, and links between nodes.
 *
 * All free devices of a machine are measured at once, beginning at the same moment, so that each is measured
 * while its neighbours are busy.
 */
#include "scheduler/pass/job_class.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "model/job/spec.h"
#include "planner/given/catalogue.h"
#include "program/program.h"
#include "store/links.h"

enum { LINK_REQUESTS_MAX = 64, LAYER_WEIGHTS_MANY = 1000000 };

static const struct store_sched_request *find_request(const struct scheduler_pass *pass, bool profile,
                                                      const char *device, const char *key)
{
    for (size_t i = 0; i < pass->view->request_count; i++) {
        const struct store_sched_request *request = &pass->view->requests[i];
        if (request->profile == profile && strcmp(request->device, device) == 0 &&
            strcmp(request->key, key) == 0) {
            return request;
        }
    }
    return NULL;
}

static bool is_open(const struct scheduler_pass *pass, const struct store_sched_request *request)
{
    return !request->failed && pass->view->now_us < request->deadline_us;
}

bool pass_is_measured(const struct scheduler_pass *pass, const struct store_sched_device *device)
{
    for (size_t i = 0; i < pass->view->request_count; i++) {
        const struct store_sched_request *request = &pass->view->requests[i];
        if (request->profile && strcmp(request->device, device->name) == 0 && is_open(pass, request))
            return true;
    }
    return false;
}

/* Whether the request was tried limits.measure_tries times. Jobs wait for no further try: the planner
 * estimates the device or the link if it can. */
static bool is_given_up(const struct scheduler_pass *pass, const struct store_sched_request *request)
{
    return request->tries + (is_open(pass, request) ? 0 : 1) > pass->scheduler->config->limits.measure_tries;
}

/* Returns when a request that was not answered with a measurement may be repeated: soon at first, and with a
 * pause that doubles once it is given up. */
static int64_t repeat_us(const struct scheduler_pass *pass, const struct store_sched_request *request)
{
    const struct scheduler_limits *limits = &pass->scheduler->config->limits;
    if (request->tries < limits->measure_tries)
        return request->deadline_us;
    const uint32_t further = request->tries - limits->measure_tries;
    return request->deadline_us + ((int64_t)limits->remeasure_ms * 1000
                                   << (further < REMEASURE_DOUBLINGS ? further : REMEASURE_DOUBLINGS));
}

/* Whether the request has failed and is not to be repeated yet. digest: that of the device now, or NULL. */
static bool is_resting(const struct scheduler_pass *pass, const struct store_sched_request *request,
                       const char *digest)
{
    return request && !is_open(pass, request) && pass->view->now_us < repeat_us(pass, request) &&
           (!digest || strcmp(request->digest, digest) == 0);
}

/* Whether the database refused the measurements of the device or of the node's links a short time ago. */
static bool is_aside(const struct scheduler_pass *pass, const char *device)
{
    char unit[UNIT_BYTES];
    snprintf(unit, sizeof(unit), "measuring %s", device);
    return pass_is_aside(pass, unit);
}

/* ---- links ---- */

static int by_end(const void *node, const void *link)
{
    return strcmp(node, ((const struct store_sched_link *)link)->to);
}

/* Returns the link to the node among those that begin at one node, or NULL. */
static const struct store_sched_link *find_link(const struct store_sched_link *links, size_t count,
                                                const char *to)
{
    return count > 0 ? bsearch(to, links, count, sizeof(*links), by_end) : NULL;
}

/* Whether the link's record says that no connection could be opened. */
static bool is_unreachable(const struct store_sched_link *link)
{
    return link && json_is_true(json_object_get(link->document, "unreachable"));
}

static const struct store_sched_link *link_between(const struct scheduler_pass *pass, const char *from,
                                                   const char *to)
{
    size_t count;
    const struct store_sched_link *links = store_links_of(pass->view, from, &count);
    return find_link(links, count, to);
}

bool pass_reaches_alone(const struct scheduler_pass *pass, const char *node, const char *other)
{
    const struct store_sched_link *out = link_between(pass, node, other);
    return out && !is_unreachable(out) && is_unreachable(link_between(pass, other, node));
}

/* Hashes what tells which links must be measured: the nodes, the links, and the requests with how they ended
 * and whether they are to be repeated. */
static uint64_t links_world(const struct scheduler_pass *pass)
{
    const struct store_view *view = pass->view;
    uint64_t hash = hash_bytes(HASH_BEGIN, &view->links_version, sizeof(view->links_version));
    for (size_t i = 0; i < view->node_count; i++) {
        const struct store_sched_node *node = &view->nodes[i];
        const bool there = node->reachable && node->address[0] != '\0';
        hash = hash_bytes(hash_text(hash, node->name), &there, sizeof(there));
    }
    for (size_t i = 0; i < view->request_count; i++) {
        const struct store_sched_request *request = &view->requests[i];
        const bool is[] = {request->failed, request->unreachable, is_resting(pass, request, NULL)};
        hash = hash_bytes(hash_bytes(hash, &request->id, sizeof(request->id)), is, sizeof(is));
    }
    return hash;
}

static void request_link(struct scheduler_pass *pass, const struct store_sched_node *from,
                         const struct store_sched_node *to)
{
    json_t *message = json_pack("{s:[{s:s, s:s}]}", "to", "node", to->name, "address", to->address);
    pass_add(pass, pass->requests,
             message
                 ? json_pack("{s:s, s:s, s:s, s:I, s:s, s:o}", "kind", "links", "device", from->name, "key",
                             to->name, "deadline_ms", (json_int_t)pass->scheduler->config->limits.links_ms,
                             "node", from->name, "message", message)
                 : NULL);
}

/* Returns until when jobs wait for further tries to connect two nodes: a try that does not come, as where a
 * node is away, for as long as its answer may take. 0: they do not. */
static int64_t connected_by_us(const struct scheduler_pass *pass, const struct store_sched_request *request)
{
    if (request->profile || !request->unreachable || is_given_up(pass, request))
        return 0;
    return request->deadline_us + (int64_t)pass->scheduler->config->limits.links_ms * 1000;
}

/* Writes the emulated links of the configuration, which need no measurement. */
static void put_emulated(struct scheduler_pass *pass)
{
    size_t i;
    json_t *link;
    json_array_foreach (pass->scheduler->config->links, i, link) {
        const char *from = json_string_value(json_object_get(link, "from"));
        const char *to = json_string_value(json_object_get(link, "to"));
        const struct store_sched_link *have = link_between(pass, from, to);
        const bool known = have && json_equal(have->document, link);
        if (!known && pass_node(pass, from) && pass_node(pass, to)) {
            pass_add(pass, pass->links,
                     json_pack("{s:s, s:s, s:O}", "from", from, "to", to, "document", link));
        }
    }
}

/* Records as a link that no plan uses, in this direction, what could not be connected in limits.measure_tries
 * tries. */
static void put_unreachable(struct scheduler_pass *pass)
{
    for (size_t i = 0; i < pass->view->request_count; i++) {
        const struct store_sched_request *request = &pass->view->requests[i];
        if (!request->profile && request->failed && request->unreachable && is_given_up(pass, request) &&
            !is_unreachable(link_between(pass, request->device, request->key))) {
            pass_add(pass, pass->links,
                     json_pack("{s:s, s:s, s:{s:s, s:s, s:f, s:f, s:b, s:s}}", "from", request->device, "to",
                               request->key, "document", "from", request->device, "to", request->key,
                               "latency_s", 0.0, "bytes_per_s", 1.0, "unreachable", 1, "why",
                               request->why ? request->why : ""));
        }
    }
}

static bool is_emulated(const struct scheduler_pass *pass, const char *from, const char *to)
{
    size_t i;
    json_t *link;
    json_array_foreach (pass->scheduler->config->links, i, link) {
        if (strcmp(json_string_value(json_object_get(link, "from")), from) == 0 &&
            strcmp(json_string_value(json_object_get(link, "to")), to) == 0) {
            return true;
        }
    }
    return false;
}

/* Requests the links from a node that are not measured, while fewer than LINK_REQUESTS_MAX requests are open.
 * Returns false when one of them must be considered again although nothing else changes. */
static bool request_links(struct scheduler_pass *pass, const struct store_sched_node *from, size_t *open)
{
    const struct store_view *view = pass->view;
    size_t count;
    const struct store_sched_link *links = store_links_of(view, from->name, &count);
    bool settled = true;
    for (size_t b = 0; b < view->node_count; b++) {
        const struct store_sched_node *to = &view->nodes[b];
        if (to == from || !to->reachable || to->address[0] == '\0')
            continue;
        const struct store_sched_link *have = find_link(links, count, to->name);
        const struct store_sched_request *request = find_request(pass, false, from->name, to->name);
        /* the records of an emulated link and of one that could not be opened do not count as measured */
        if ((have && !json_is_true(json_object_get(have->document, "emulated")) && !is_unreachable(have) &&
             !(request && request->unreachable)) ||
            is_emulated(pass, from->name, to->name))
            continue;
        const bool rests = is_resting(pass, request, NULL);
        if (is_aside(pass, from->name) || (rests && is_given_up(pass, request)))
            continue;
        settled = false;
        if (*open >= LINK_REQUESTS_MAX)
            break;
        if (!request || (!is_open(pass, request) && !rests)) {
            request_link(pass, from, to);
            (*open)++;
        }
    }
    return settled;
}

void pass_links(struct scheduler_pass *pass)
{
    const struct store_view *view = pass->view;
    const uint64_t world = links_world(pass);
    bool settled = true;
    size_t open = 0;
    put_emulated(pass);
    put_unreachable(pass);
    for (size_t i = 0; i < view->request_count; i++) {
        if (is_resting(pass, &view->requests[i], NULL))
            pass_check_at(pass, repeat_us(pass, &view->requests[i]));
        if (view->now_us < connected_by_us(pass, &view->requests[i]))
            pass_check_at(pass, connected_by_us(pass, &view->requests[i]));
        if (is_open(pass, &view->requests[i])) {
            open += view->requests[i].profile ? 0 : 1;
            pass_check_at(pass, view->requests[i].deadline_us);
        }
    }
    if (world == pass->scheduler->links_settled)
        return;
    for (size_t a = 0; a < view->node_count && (settled || open < LINK_REQUESTS_MAX); a++)
        if (view->nodes[a].reachable)
            settled = request_links(pass, &view->nodes[a], &open) && settled;
    if (settled)
        pass->scheduler->links_settled = world;
}

/* The node of a rank, or NULL if a lower rank is on it, too. */
static const struct store_sched_node *new_node(const struct scheduler_pass *pass,
                                               const struct store_sched_run *run, uint32_t rank)
{
    for (uint32_t i = 0; i < rank; i++)
        if (strcmp(run->ranks[i].node, run->ranks[rank].node) == 0)
            return NULL;
    return pass_node(pass, run->ranks[rank].node);
}

void pass_measure_again(struct scheduler_pass *pass, const struct store_sched_run *run)
{
    for (uint32_t a = 0; a < run->rank_count; a++) {
        const struct store_sched_node *from = new_node(pass, run, a);
        for (uint32_t b = 0; from && b < run->rank_count; b++) {
            const struct store_sched_node *to = new_node(pass, run, b);
            if (to && from != to && from->reachable && to->reachable && to->address[0] != '\0' &&
                !is_emulated(pass, from->name, to->name) && !find_request(pass, false, from->name, to->name))
                request_link(pass, from, to);
        }
    }
}

/* ---- profiles ---- */

/* Whether there is a profile of the device that is not stale. */
static bool pass_measure_has_profile(const json_t *profiles, const char *device)
{
    size_t i;
    json_t *row;
    json_array_foreach ((json_t *)profiles, i, row) {
        if (strcmp(json_string_value(json_object_get(row, "device")), device) == 0)
            return !json_is_true(json_object_get(row, "stale"));
    }
    return false;
}

static const char *machine_of(const struct scheduler_pass *pass, const struct store_sched_device *device)
{
    const struct store_sched_node *node = pass_node(pass, device->node);
    return node && node->machine_id[0] != '\0' ? node->machine_id : device->node;
}

static bool lacks(const struct scheduler_pass *pass, const struct store_sched_device *device, const char *key,
                  const json_t *profiles)
{
    return !pass_measure_has_profile(profiles, device->name) && !is_aside(pass, device->name) &&
           !is_resting(pass, find_request(pass, true, device->name, key), device->digest);
}

/* Returns how long devices are measured: profile_ms for layers of a million weights or more, and
 * proportionally less, but at least a quarter, for smaller layers, whose samples take less time. */
static uint32_t measure_ms(const struct scheduler_pass *pass, const json_t *model)
{
    const json_t *config = json_object_get(model, "config");
    double hidden = json_number_value(json_object_get(config, "hidden_size"));
    double ffn = json_number_value(json_object_get(config, "intermediate_size"));
    double share = hidden * (4 * hidden + 3 * ffn) / LAYER_WEIGHTS_MANY;
    share = !config || share > 1 ? 1 : share < 0.25 ? 0.25 : share;
    return (uint32_t)(share * pass->scheduler->config->limits.profile_ms);
}

/* Returns what the device is measured in for the class: what it computes fastest where the class leaves that
 * open, as the planner converts the times to other precisions by the catalogue. */
static const char *measured_in(const struct job_class *class, const struct store_sched_device *device)
{
    const char *like = json_string_value(json_object_get(device->inventory, "like"));
    const char *asked = json_string_value(json_object_get(json_object_get(class->asked, "train"), "compute"));
    if (!spec_compute_is_open(class->asked))
        return asked;
    return plan_dtype_name((enum plan_dtype)catalogue_fastest(like ? catalogue_find(like) : NULL));
}

static void request_profile(struct scheduler_pass *pass, const struct job_class *class,
                            const struct store_sched_device *device)
{
    const json_t *model = class->model.document;
    const struct scheduler_limits *limits = &pass->scheduler->config->limits;
    json_t *slim = json_pack("{s:O?, s:O?, s:O?, s:O?}", "name", json_object_get(model, "name"), "content",
                             json_object_get(model, "content"), "config", json_object_get(model, "config"),
                             "files", json_object_get(model, "files"));
    json_t *method = json_object_get(class->asked, "method");
    json_t *message = json_pack("{s:s, s:o, s:O, s:O?, s:s?, s:O?, s:O, s:I, s:f}", "device", device->name,
                                "model", slim, "method", method, "base", json_object_get(method, "base"),
                                "compute", measured_in(class, device), "sequence_tokens",
                                json_object_get(json_object_get(class->asked, "data"), "sequence_tokens"),
                                "spec", class->asked, "start_in_ms", (json_int_t)limits->profile_start_ms,
                                "seconds", measure_ms(pass, model) / 1000.0);
    json_int_t deadline =
        (json_int_t)limits->profile_start_ms + limits->profile_ms * (json_int_t)3 + limits->profile_grace_ms;
    pass_add(pass, pass->requests,
             message ? json_pack("{s:s, s:s, s:s, s:O?, s:s, s:I, s:s, s:o}", "kind", "profile", "device",
                                 device->name, "key", class->key, "content",
                                 json_object_get(model, "content"), "digest", device->digest, "deadline_ms",
                                 deadline, "node", device->node, "message", message)
                     : NULL);
}

static bool is_reachable(const struct scheduler_pass *pass, const struct store_sched_device *device)
{
    const struct store_sched_node *node = pass_node(pass, device->node);
    return node && node->reachable;
}

static bool pass_measure_has_device(const struct scheduler_pass *pass, const bool *mask, const char *node)
{
    for (size_t i = 0; i < pass->view->device_count; i++)
        if (mask[i] && strcmp(pass->view->devices[i].node, node) == 0)
            return true;
    return false;
}

/* Whether it is still tried to connect two nodes on which the job may run. */
static bool awaits_connection(const struct scheduler_pass *pass, const bool *allowed,
                              const struct store_sched_request *request)
{
    return pass->view->now_us < connected_by_us(pass, request) &&
           pass_measure_has_device(pass, allowed, request->device) &&
           pass_measure_has_device(pass, allowed, request->key);
}

/* Whether a measurement that this job needs is still under way. One on a node that left answers nothing. */
static bool awaits(const struct scheduler_pass *pass, const bool *allowed, const char *key)
{
    const struct store_view *view = pass->view;
    for (size_t i = 0; i < view->device_count; i++) {
        const struct store_sched_request *request = allowed[i] && is_reachable(pass, &view->devices[i])
                                                        ? find_request(pass, true, view->devices[i].name, key)
                                                        : NULL;
        if (request && !is_given_up(pass, request) &&
            (is_open(pass, request) || is_resting(pass, request, NULL)))
            return true;
    }
    for (size_t i = 0; i < view->request_count; i++) {
        const struct store_sched_request *request = &view->requests[i];
        if (!request->profile &&
            ((request->tries == 1 && is_open(pass, request)) || awaits_connection(pass, allowed, request)))
            return true;
    }
    return false;
}

bool pass_is_measured_for(const struct scheduler_pass *pass, const bool *allowed, const bool *usable,
                          const char *key, const json_t *profiles)
{
    for (size_t i = 0; i < pass->view->device_count; i++)
        if (usable[i] && lacks(pass, &pass->view->devices[i], key, profiles))
            return false;
    return !awaits(pass, allowed, key) && json_array_size(pass->requests) == 0;
}

bool pass_profiles(struct scheduler_pass *pass, const struct store_sched_job *job,
                   const struct job_class *class)
{
    const struct store_view *view = pass->view;
    const bool *usable = class->usable;
    const json_t *profiles = class->profiles.document;
    const char *key = class->key;
    size_t asked = 0;
    for (size_t i = 0; i < view->device_count; i++) {
        if (!usable[i] || !lacks(pass, &view->devices[i], key, profiles))
            continue;
        /* The first device of a machine without a profile asks for all devices of that machine, unless it was
         * given up. */
        const struct store_sched_request *before = find_request(pass, true, view->devices[i].name, key);
        const bool alone = before && is_given_up(pass, before);
        const char *machine = machine_of(pass, &view->devices[i]);
        bool first = true;
        for (size_t k = 0; k < i && first; k++) {
            first = !usable[k] || strcmp(machine_of(pass, &view->devices[k]), machine) != 0 ||
                    !lacks(pass, &view->devices[k], key, profiles);
        }
        for (size_t k = 0; first && k < view->device_count; k++) {
            if (usable[k] && strcmp(machine_of(pass, &view->devices[k]), machine) == 0 &&
                (!alone || lacks(pass, &view->devices[k], key, profiles))) {
                request_profile(pass, class, &view->devices[k]);
                pass->free_devices[k] = false;
                asked++;
            }
        }
    }
    if (asked > 0) {
        pass_wait(pass, job, "measuring", -1, "%zu device%s being measured for this model", asked,
                  asked == 1 ? " is" : "s are");
        return false;
    }
    if (awaits(pass, class->allowed, key) || json_array_size(pass->requests) > 0) {
        pass_wait(pass, job, "measuring", -1, "devices or links are being measured");
        for (size_t i = 0; i < view->device_count; i++)
            pass->reserved[i] = pass->reserved[i] || usable[i];
        return false;
    }
    return true;
}

bool pass_wait_unmeasured(struct scheduler_pass *pass, const struct store_sched_job *job,
                          const struct job_class *class)
{
    for (size_t i = 0; i < pass->view->device_count; i++) {
        const char *name = pass->view->devices[i].name;
        const struct store_sched_request *request =
            class->allowed[i] ? find_request(pass, true, name, class->key) : NULL;
        const bool open = request && is_open(pass, request);
        char again[240] = "now", at[24];
        if (!request || !is_given_up(pass, request) ||
            pass_measure_has_profile(class->profiles.document, name))
            continue;
        if (is_resting(pass, request, NULL))
            snprintf(again, sizeof(again), "at %s, or at once after `motley undrain %s`",
                     clock_words_us(repeat_us(pass, request), at), name);
        else if (!open)
            snprintf(again, sizeof(again), "once it is free");
        pass_wait(
            pass, job, "measuring", -1,
            "%s could not be measured for its model in %u tries (the last: %.200s); it is tried again %s",
            name, request->tries - (open ? 1 : 0),
            request->why && (open || request->failed) ? request->why : "no answer came in time", again);
        return true;
    }
    return false;
}

void pass_want_measures(struct scheduler_pass *pass, const struct job_class *class)
{
    pass_add(pass, pass->measures,
             json_pack("{s:s, s:O, s:O}", "key", class->key, "spec", class->spec, "inputs", class->inputs));
}

bool pass_is_doubtful(const struct job_class *class)
{
    size_t i;
    json_t *row;
    json_array_foreach ((json_t *)class->profiles.document, i, row)
        if (json_object_get(json_object_get(row, "document"), "noise"))
            return true;
    return false;
}

void pass_number_requests(struct scheduler_pass *pass, const json_t *numbers)
{
    size_t i;
    json_t *request;
    json_array_foreach (pass->requests, i, request) {
        json_t *id = json_array_get(numbers, i);
        json_t *message = json_incref(json_object_get(request, "message"));
        if (!id || json_object_set(request, "id", id) < 0 || json_object_set(message, "request", id) < 0)
            pass->failed = true;
        pass_message(pass, json_string_value(json_object_get(request, "node")), 0,
                     json_string_value(json_object_get(request, "kind")), message);
        json_object_del(request, "message");
    }
}
