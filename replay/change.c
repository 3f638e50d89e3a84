/* Changes the inputs document and not the cluster made from it, because devices cannot be removed from a
 * struct cluster. */
#include "replay/change.h"

#include <stdio.h>
#include <string.h>

#include "planner/given/inputs.h"
#include "program/program.h"

static json_t *device_find(const json_t *document, const char *name)
{
    return plan_inputs_find(json_object_get(document, "devices"), "name", name);
}

static int device_missing(const json_t *document, const char *name, struct err *err)
{
    char known[320] = "";
    size_t index, used = 0;
    json_t *device;
    json_array_foreach (json_object_get(document, "devices"), index, device) {
        const char *text = json_string_value(json_object_get(device, "name"));
        if (text && used < sizeof(known) - 80)
            used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%.60s", used ? ", " : "", text);
    }
    return err_set(err, ERR_INVALID, "there is no device \"%.100s\"; there are %s", name, known);
}

static void names_remove(json_t *list, const char *name)
{
    for (size_t i = json_array_size(list); i-- > 0;) {
        const char *text = json_string_value(json_array_get(list, i));
        if (text && strcmp(text, name) == 0)
            json_array_remove(list, i);
    }
}

int plan_inputs_without(json_t *document, const char *device, struct err *err)
{
    json_t *devices = json_object_get(document, "devices");
    json_t *placement = json_object_get(json_object_get(document, "spec"), "placement");
    const json_t *gone = device_find(document, device);
    if (!gone)
        return device_missing(document, device, err);
    if (json_array_size(devices) == 1)
        return err_set(err, ERR_INVALID, "without %s no device is left", device);
    for (size_t i = 0; i < json_array_size(devices); i++) {
        if (json_array_get(devices, i) == gone) {
            names_remove(json_object_get(placement, "devices"), device);
            /* If the removed device was the only one asked for, all other devices may be used. */
            if (json_array_size(json_object_get(placement, "devices")) == 0)
                json_object_set_new(placement, "devices", json_null());
            names_remove(json_object_get(placement, "exclude"), device);
            json_array_remove(devices, i);
            break;
        }
    }
    return 0;
}

/* Gives a new node the links of the node that it is modelled on; its link to that node is a copy of that
 * node's link to its first neighbour. */
static int links_copy(json_t *links, const char *like_node, const char *node)
{
    json_t *more = json_array(), *link;
    bool to_like = false;
    size_t index;
    int bad = !more;
    json_array_foreach (links, index, link) {
        const char *from = json_string_value(json_object_get(link, "from"));
        const char *to = json_string_value(json_object_get(link, "to"));
        bool out = from && strcmp(from, like_node) == 0, in = to && strcmp(to, like_node) == 0;
        if (out == in)
            continue;
        json_t *copy = json_copy(link);
        bad |= json_object_set_new(copy, out ? "from" : "to", json_string(node));
        bad |= json_array_append_new(more, copy);
        if (!to_like && out) {
            to_like = true;
            json_t *back = json_copy(link);
            bad |= json_object_set_new(back, "from", json_string(node));
            bad |= json_object_set_new(back, "to", json_string(like_node));
            bad |= json_array_append_new(more, back);
        }
    }
    bad |= json_array_extend(links, more);
    json_decref(more);
    return bad;
}

static json_t *device_like(json_t *document, const char *like, const char *node, const char *name,
                           struct err *err)
{
    const json_t *model = device_find(document, like);
    const struct catalogue_entry *entry = model ? NULL : catalogue_find(like);
    if (entry)
        return json_pack("{s:s,s:s,s:s,s:s,s:I}", "name", name, "node", node, "kind", entry->kind, "like",
                         like, "memory_limit_bytes", (json_int_t)catalogue_usable(entry));
    if (!model) {
        struct err why = {0};
        device_missing(document, like, &why);
        err_set(err, ERR_INVALID,
                "%.400s; nor is it in the catalogue (motley devices --catalogue; nearest is %s)", why.text,
                catalogue_near(like));
        return NULL;
    }
    json_t *device = json_deep_copy(model), *profiles = json_object_get(document, "profiles");
    json_t *had = plan_inputs_find(profiles, "device", like), *profile = json_copy(had);
    int bad = !device || json_object_set_new(device, "name", json_string(name)) ||
              json_object_set_new(device, "node", json_string(node)) ||
              json_object_set_new(device, "usable", json_true());
    if (had)
        bad |= json_object_set_new(profile, "device", json_string(name)) ||
               json_array_append_new(profiles, profile);
    const char *like_node = json_string_value(json_object_get(model, "node"));
    bad |= links_copy(json_object_get(document, "links"), like_node ? like_node : "", node);
    if (bad) {
        json_decref(device);
        err_set(err, ERR_NOMEM, "out of memory for another device");
        return NULL;
    }
    return device;
}

static bool node_known(const json_t *document, const char *node)
{
    return plan_inputs_find(json_object_get(document, "devices"), "node", node) != NULL;
}

int plan_inputs_add(json_t *document, const char *like, char name[256], struct err *err)
{
    char node[32];
    const char *part = strrchr(like, '/');
    unsigned number = 0;
    do {
        snprintf(node, sizeof(node), "added%u", ++number);
        snprintf(name, 256, "%s/%.200s", node, part ? part + 1 : like);
    } while (node_known(document, node) && number < CLUSTER_DEVICES_MAX);
    json_t *device = device_like(document, like, node, name, err);
    if (!device)
        return -1;
    json_t *asked =
        json_object_get(json_object_get(json_object_get(document, "spec"), "placement"), "devices");
    if ((json_is_array(asked) && json_array_append_new(asked, json_string(name)) < 0) ||
        json_array_append_new(json_object_get(document, "devices"), device) < 0)
        return err_set(err, ERR_NOMEM, "out of memory for another device");
    return 0;
}

int plan_inputs_speed(json_t *document, const char *device, double factor, struct err *err)
{
    json_t *found = device_find(document, device);
    const json_t *speed = json_object_get(found, "speed");
    if (!found)
        return device_missing(document, device, err);
    json_object_set_new(found, "speed",
                        json_real(factor * (json_is_number(speed) ? json_number_value(speed) : 1)));
    return 0;
}

int plan_inputs_link(json_t *document, const char *a, const char *b, double bytes_per_s, double latency_s,
                     struct err *err)
{
    const char *const ends[2] = {a, b};
    json_t *links = json_object_get(document, "links");
    for (int k = 0; k < 2; k++)
        if (!node_known(document, ends[k]))
            return err_set(err, ERR_INVALID, "there is no node \"%.100s\"", ends[k]);
    if (!links) {
        links = json_array();
        json_object_set_new(document, "links", links);
    }
    for (int k = 0; k < 2; k++) { /* a later link document replaces an earlier one */
        json_t *link = json_pack("{s:s,s:s,s:f,s:f,s:s}", "from", ends[k], "to", ends[1 - k], "latency_s",
                                 latency_s, "bytes_per_s", bytes_per_s, "origin",
                                 cost_origin_name(ORIGIN_IMPORTED)); /* the value was stated, not measured */
        if (json_array_append_new(links, link) < 0)
            return err_set(err, ERR_NOMEM, "out of memory for a link");
    }
    return 0;
}

int plan_inputs_place(json_t *document, const char *placement, struct err *err)
{
    json_t *part = json_object_get(json_object_get(document, "spec"), "placement");
    if (strcmp(placement, "auto") != 0 && plan_placement_from_name(placement) < 0)
        return err_set(err, ERR_INVALID,
                       "\"%.40s\" is none of auto, single, pipeline, data, hybrid, expert, tensor, server",
                       placement);
    if (json_object_set_new(part, "kind", json_string(placement)) < 0 ||
        json_object_set_new(part, "stages", json_string("auto")) < 0 ||
        json_object_set_new(part, "micro_batch_rows", json_string("auto")) < 0)
        return err_set(err, ERR_NOMEM, "out of memory for another placement");
    return 0;
}
