/* Cluster files of present devices: they carry what was measured, so that a plan elsewhere costs the same. */
#include "planner/given/inputs.h"

#include <string.h>

/* Copies a member that the device lacks. */
static int inputs_file_fill(json_t *device, const char *key, const json_t *value)
{
    const json_t *given = json_object_get(device, key);
    bool missing = !given || json_is_null(given);
    return missing && value && !json_is_null(value) ? json_object_set(device, key, (json_t *)value) : 0;
}

/* Returns the `like` of a device of the document if a cluster file may have it, or NULL. */
static const json_t *inputs_file_like_of(const json_t *here)
{
    const json_t *like = json_object_get(here, "like");
    const char *kind = json_string_value(json_object_get(here, "kind"));
    const struct catalogue_entry *entry =
        json_is_string(like) ? catalogue_find(json_string_value(like)) : NULL;
    bool same = entry && kind && (strcmp(kind, entry->kind) == 0 || strcmp(kind, "emulated") == 0);
    return same ? like : NULL;
}

static int device_fill(const json_t *document, json_t *device)
{
    const char *name = json_string_value(json_object_get(device, "name"));
    const json_t *here = plan_inputs_find(json_object_get(document, "devices"), "name", name);
    const json_t *measured = plan_inputs_find(json_object_get(document, "profiles"), "device", name);
    const json_t *given = json_object_get(device, "profile");
    int bad = 0;
    if (!here)
        return 0;
    if (!json_is_number(json_object_get(device, "memory_bytes"))) {
        bad |= inputs_file_fill(device, "memory_bytes", json_object_get(here, "memory_limit_bytes"));
        bad |= inputs_file_fill(device, "base_bytes", json_object_get(here, "base_bytes"));
    }
    if (!json_is_string(json_object_get(device, "like")))
        bad |= inputs_file_fill(device, "kind", json_object_get(here, "kind"));
    if (!measured)
        bad |= inputs_file_fill(device, "like", inputs_file_like_of(here));
    bad |= inputs_file_fill(device, "threads", json_object_get(here, "threads"));
    bad |= inputs_file_fill(device, "speed", json_object_get(here, "speed"));
    bad |= inputs_file_fill(device, "heat", json_object_get(here, "heat"));
    bad |= inputs_file_fill(device, "taught", json_object_get(here, "taught"));
    if (measured && (!given || json_is_null(given))) {
        json_t *profile = json_copy((json_t *)measured);
        bad |= inputs_file_fill(profile, "key", json_object_get(document, "profile_key"));
        bad |= json_object_set_new(device, "profile", profile);
    }
    return bad;
}

/* Whether the cluster file says something of the link in this direction. */
static bool says_link(const json_t *links, const json_t *from, const json_t *to)
{
    size_t index;
    const json_t *item;
    json_array_foreach (json_object_get(links, "pairs"), index, item) {
        const json_t *a = json_object_get(item, "a"), *b = json_object_get(item, "b");
        if ((json_equal(a, from) && json_equal(b, to)) || (json_equal(a, to) && json_equal(b, from)))
            return true;
    }
    json_array_foreach (json_object_get(links, "directed"), index, item)
        if (json_equal(json_object_get(item, "from"), from) && json_equal(json_object_get(item, "to"), to))
            return true;
    return false;
}

/* Adds the measured links between the file's nodes that it does not mention. What is malformed in the file is
 * left to its reader. */
static int links_fill(const json_t *document, json_t *cluster_file)
{
    const json_t *nodes = json_object_get(cluster_file, "nodes"), *link;
    json_t *links = json_object_get(cluster_file, "links"), *directed;
    size_t index;
    int bad = 0;
    if (!links || json_is_null(links)) {
        links = json_object();
        bad |= json_object_set_new(cluster_file, "links", links);
    }
    directed = json_object_get(links, "directed");
    if (json_is_object(links) && (!directed || json_is_null(directed))) {
        directed = json_array();
        bad |= json_object_set_new(links, "directed", directed);
    }
    json_array_foreach (json_object_get(document, "links"), index, link) {
        const json_t *from = json_object_get(link, "from"), *to = json_object_get(link, "to");
        if (json_is_array(directed) && plan_inputs_find(nodes, "name", json_string_value(from)) &&
            plan_inputs_find(nodes, "name", json_string_value(to)) && !says_link(links, from, to))
            bad |= json_array_append(directed, (json_t *)link);
    }
    return bad;
}

int plan_inputs_fill(const json_t *document, json_t *cluster_file, struct err *err)
{
    size_t n, d;
    json_t *node, *device;
    int bad = 0;
    json_array_foreach (json_object_get(cluster_file, "nodes"), n, node)
        json_array_foreach (json_object_get(node, "devices"), d, device)
            bad |= json_is_object(device) && device_fill(document, device);
    bad |= links_fill(document, cluster_file);
    return bad ? err_set(err, ERR_NOMEM, "out of memory for a cluster file") : 0;
}

json_t *plan_inputs_cluster_file(const json_t *document, struct err *err)
{
    json_t *nodes = json_array(), *cluster = json_pack("{s:o}", "nodes", nodes);
    size_t index;
    const json_t *device;
    int bad = !cluster;
    json_array_foreach (json_object_get(document, "devices"), index, device) {
        const json_t *name = json_object_get(device, "node");
        json_t *node = plan_inputs_find(nodes, "name", json_string_value(name));
        struct cluster_device read = {0};
        struct err why = {0};
        bool usable;
        if (plan_inputs_device(device, "", &read, &usable, &why) < 0 || !usable)
            continue;
        if (!node) {
            node = json_pack("{s:O, s:[]}", "name", name, "devices");
            bad |= json_array_append_new(nodes, node);
        }
        bad |= json_array_append_new(json_object_get(node, "devices"),
                                     json_pack("{s:O}", "name", json_object_get(device, "name")));
    }
    if (!bad && plan_inputs_fill(document, cluster, err) == 0)
        return cluster;
    json_decref(cluster);
    if (bad)
        err_set(err, ERR_NOMEM, "out of memory for a cluster file");
    return NULL;
}
