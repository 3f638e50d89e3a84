/* Profile documents are checked before they are used, and their tables are marked as imported. */
#include "profiles/profiles.h"

#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "planner/given/cluster.h"

#define LINKS_MAX 1000000u
#define DEVICE_BYTES_MAX ((uint64_t)1 << 50)

bool profiles_is(const json_t *document)
{
    const char *format = json_string_value(json_object_get(document, "format"));
    return format && strcmp(format, PROFILES_FORMAT) == 0;
}

/* --- checking --- */

struct device_names {
    const char *name, *node, *kind;
    uint64_t memory_bytes;
};

static int profiles_device_check(struct json_reader *r, struct cluster *cluster, struct device_names *device,
                                 struct err *err)
{
    *device = (struct device_names){.kind = "cpu"};
    jr_str(r, "name", JR_REQUIRED, 1, 255, &device->name);
    jr_str(r, "node", JR_REQUIRED, 1, 255, &device->node);
    jr_str(r, "kind", JR_OPTIONAL, 1, 32, &device->kind);
    jr_bytes(r, "memory_limit_bytes", JR_REQUIRED, 1, DEVICE_BYTES_MAX, &device->memory_bytes);
    if (jr_finish_loose(r) < 0)
        return -1;
    const struct cluster_device add = {.name = device->name,
                                       .node = device->node,
                                       .kind = device->kind,
                                       .memory_limit_bytes = device->memory_bytes};
    return cluster_add_device(cluster, &add, err) < 0 ? err_wrap(err, "%s", r->path) : 0;
}

/* Returns the profile's origin; "measured" if it has none. */
static const char *origin_of(const json_t *profile)
{
    const char *origin = json_string_value(json_object_get(profile, "origin"));
    return origin ? origin : "measured";
}

static bool known_device(const struct cluster *cluster, const char *name)
{
    for (uint32_t d = 0; d < cluster_device_count(cluster); d++)
        if (strcmp(cluster_device_name(cluster, d), name) == 0)
            return true;
    return false;
}

/* seen: the keys found so far for each device. */
static int profile_check(struct json_reader *r, const json_t *profile, struct cluster *cluster, json_t *seen,
                         struct err *err)
{
    char which[512];
    const char *device = "", *key = "", *when = NULL;
    jr_str(r, "device", JR_REQUIRED, 1, 255, &device);
    jr_str(r, "key", JR_REQUIRED, 64, 64, &key);
    jr_str(r, "measured_at", JR_OPTIONAL, 1, 64, &when);
    if (jr_finish_loose(r) < 0)
        return -1;
    if (strspn(key, "0123456789abcdef") != 64)
        return jr_fail(r, "key", "it is not 64 lower-case hex digits");
    if (!known_device(cluster, device))
        return jr_fail(r, "device", "%s is not among the document's devices", device);
    snprintf(which, sizeof(which), "%s %s %s", device, key, origin_of(profile));
    if (json_object_get(seen, which))
        return jr_fail(r, "device", "%s has another profile under this key already", device);
    if (json_object_set_new(seen, which, json_true()) < 0)
        return err_set(err, ERR_NOMEM, "out of memory for profiles");
    return cluster_add_profile(cluster, profile, err) < 0 ? err_wrap(err, "%s", r->path) : 0;
}

static int lists_check(struct json_reader *root, struct cluster *cluster, struct err *err)
{
    const json_t *devices = NULL, *profiles = NULL, *links = NULL;
    struct json_reader item;
    jr_array(root, "devices", JR_REQUIRED, 1, CLUSTER_DEVICES_MAX, &devices);
    jr_array(root, "profiles", JR_REQUIRED, 0, PROFILES_MAX, &profiles);
    jr_array(root, "links", JR_OPTIONAL, 0, LINKS_MAX, &links);
    if (jr_finish_loose(root) < 0)
        return -1;
    for (size_t i = 0; i < json_array_size(devices); i++) {
        struct device_names device;
        if (jr_item(root, "devices", devices, i, &item) < 0 ||
            profiles_device_check(&item, cluster, &device, err) < 0)
            return -1;
    }
    json_t *seen = json_object();
    int result = seen ? 0 : err_set(err, ERR_NOMEM, "out of memory for profiles");
    for (size_t i = 0; i < json_array_size(profiles) && result == 0; i++)
        if (jr_item(root, "profiles", profiles, i, &item) < 0 ||
            profile_check(&item, json_array_get(profiles, i), cluster, seen, err) < 0)
            result = -1;
    json_decref(seen);
    if (result < 0)
        return -1;
    for (size_t i = 0; i < json_array_size(links); i++)
        if (cluster_add_link(cluster, json_array_get(links, i), err) < 0)
            return err_wrap(err, "links[%zu]", i);
    return 0;
}

int profiles_check(const json_t *document, struct err *err)
{
    struct json_reader root;
    const char *format = "", *origin = NULL, *when = NULL;
    uint32_t version = 0;
    jr_init(&root, document, "", err);
    jr_str(&root, "format", JR_REQUIRED, 1, 64, &format);
    if (!root.failed && strcmp(format, PROFILES_FORMAT) != 0)
        return jr_fail(&root, "format", "\"%.40s\" is not " PROFILES_FORMAT, format);
    jr_u32(&root, "version", JR_REQUIRED, PROFILES_VERSION, PROFILES_VERSION, &version);
    jr_str(&root, "origin", JR_OPTIONAL, 1, 255, &origin);
    jr_str(&root, "exported_at", JR_OPTIONAL, 1, 64, &when);
    if (root.failed)
        return -1;
    struct cluster *cluster = cluster_create(err);
    int result = cluster ? lists_check(&root, cluster, err) : -1;
    cluster_destroy(cluster);
    return result;
}

/* --- making --- */

static const json_t *profiles_named(const json_t *list, const char *name)
{
    for (size_t i = 0; name && i < json_array_size(list); i++) {
        const char *text = json_string_value(json_object_get(json_array_get(list, i), "name"));
        if (text && strcmp(text, name) == 0)
            return json_array_get(list, i);
    }
    return NULL;
}

static bool asked_for(const char *device, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (device && strcmp(device, names[i]) == 0)
            return true;
    return count == 0;
}

static const char *const device_keys[] = {"name", "node", "kind", "threads", "isa", "memory_limit_bytes",
                                          NULL};

static json_t *device_made(const json_t *from)
{
    json_t *to = json_object();
    for (size_t k = 0; to && device_keys[k]; k++) {
        json_t *value = json_object_get(from, device_keys[k]);
        if (value && !json_is_null(value))
            json_object_set(to, device_keys[k], value);
    }
    return to;
}

/* Whether a profile is an imported copy of one that was measured here. */
static bool measured_too(const json_t *profiles, const json_t *profile)
{
    if (strcmp(origin_of(profile), "measured") == 0)
        return false;
    for (size_t i = 0; i < json_array_size(profiles); i++) {
        const json_t *other = json_array_get(profiles, i);
        if (strcmp(origin_of(other), "measured") == 0 &&
            json_equal(json_object_get(other, "device"), json_object_get(profile, "device")) &&
            json_equal(json_object_get(other, "key"), json_object_get(profile, "key")))
            return true;
    }
    return false;
}

json_t *profiles_make(const json_t *devices, const json_t *profiles, const json_t *links, const char *origin,
                      const char *exported_at, const char *const *names, size_t name_count, struct err *err)
{
    for (size_t i = 0; i < name_count; i++) {
        if (!profiles_named(devices, names[i])) {
            err_set(err, ERR_NOT_FOUND, "there is no device \"%.100s\" (motley devices)", names[i]);
            return NULL;
        }
    }
    json_t *some_devices = json_array(), *some_profiles = json_array(), *some_links = json_array();
    int bad = !some_devices || !some_profiles || !some_links;
    for (size_t i = 0; i < json_array_size(devices); i++) {
        const json_t *device = json_array_get(devices, i);
        if (asked_for(json_string_value(json_object_get(device, "name")), names, name_count))
            bad |= json_array_append_new(some_devices, device_made(device));
    }
    for (size_t i = 0; i < json_array_size(profiles); i++) {
        json_t *profile = json_array_get(profiles, i);
        if (profiles_named(some_devices, json_string_value(json_object_get(profile, "device"))) &&
            !measured_too(profiles, profile))
            bad |= json_array_append(some_profiles, profile);
    }
    /* A link is kept if both of its nodes have a device of the document. */
    for (size_t i = 0; i < json_array_size(links); i++) {
        json_t *link = json_array_get(links, i);
        const char *from = json_string_value(json_object_get(link, "from"));
        const char *to = json_string_value(json_object_get(link, "to"));
        bool both[2] = {false, false};
        for (size_t d = 0; d < json_array_size(some_devices); d++) {
            const char *node = json_string_value(json_object_get(json_array_get(some_devices, d), "node"));
            both[0] |= node && from && strcmp(node, from) == 0;
            both[1] |= node && to && strcmp(node, to) == 0;
        }
        if (both[0] && both[1])
            bad |= json_array_append(some_links, link);
    }
    json_t *document = json_pack("{s:s,s:i,s:s,s:s,s:o,s:o,s:o}", "format", PROFILES_FORMAT, "version",
                                 PROFILES_VERSION, "exported_at", exported_at, "origin", origin, "devices",
                                 some_devices, "profiles", some_profiles, "links", some_links);
    if (bad || !document) {
        json_decref(document);
        err_set(err, ERR_NOMEM, "out of memory for a profile document");
        return NULL;
    }
    return document;
}

/* --- using --- */

static json_t *profiles_profile_of(const json_t *document, const char *device, const char *key,
                                   size_t *others)
{
    const json_t *profiles = json_object_get(document, "profiles");
    *others = 0;
    for (size_t i = 0; i < json_array_size(profiles); i++) {
        const json_t *profile = json_array_get(profiles, i);
        const char *of = json_string_value(json_object_get(profile, "device"));
        const char *under = json_string_value(json_object_get(profile, "key"));
        if (!of || strcmp(of, device) != 0)
            continue;
        if (under && strcmp(under, key) == 0) {
            json_t *copy = json_copy(json_array_get(profiles, i));
            if (copy)
                json_object_set_new(copy, "origin", json_string(cost_origin_name(ORIGIN_IMPORTED)));
            return copy;
        }
        ++*others;
    }
    return NULL;
}

json_t *profiles_pick(const json_t *document, const char *device, bool is_named, const char *key,
                      struct err *err)
{
    size_t others = 0;
    if (profiles_check(document, err) < 0)
        return NULL;
    const json_t *devices = json_object_get(document, "devices");
    if (!is_named && !profiles_named(devices, device) && json_array_size(devices) == 1)
        device = json_string_value(json_object_get(json_array_get(devices, 0), "name"));
    if (!profiles_named(devices, device)) {
        err_set(err, ERR_INVALID,
                "it holds %zu devices and none is called \"%.100s\"; say which with \"FILE#DEVICE\"",
                json_array_size(devices), device);
        return NULL;
    }
    json_t *profile = profiles_profile_of(document, device, key, &others);
    if (!profile)
        err_set(err, ERR_INVALID,
                "%.100s was not measured for this model, method, dtype and sequence length (for %zu others)",
                device, others);
    return profile;
}

void profiles_describe(const json_t *document, const char *device, json_t *cluster_device)
{
    const json_t *devices = json_object_get(document, "devices"), *from = profiles_named(devices, device);
    static const char *const pairs[][2] = {
        {"memory_limit_bytes", "memory_bytes"}, {"kind", "kind"}, {"threads", "threads"}};
    if (!from && json_array_size(devices) == 1)
        from = json_array_get(devices, 0);
    for (size_t k = 0; from && k < sizeof(pairs) / sizeof(pairs[0]); k++) {
        json_t *value = json_object_get(from, pairs[k][0]);
        if (value && !json_is_null(value) && !json_object_get(cluster_device, pairs[k][1]))
            json_object_set(cluster_device, pairs[k][1], value);
    }
}

/* Returns the node of that name in a cluster file under construction, and makes it if necessary. */
static json_t *profiles_node_of(json_t *nodes, const char *name)
{
    json_t *found = (json_t *)profiles_named(nodes, name);
    if (!found) {
        found = json_pack("{s:s,s:[]}", "name", name, "devices");
        if (json_array_append_new(nodes, found) < 0)
            return NULL;
    }
    return found;
}

json_t *profiles_cluster(const json_t *document, const char *key, struct err *err)
{
    if (profiles_check(document, err) < 0)
        return NULL;
    const json_t *devices = json_object_get(document, "devices");
    const json_t *links = json_object_get(document, "links");
    json_t *nodes = json_array();
    size_t with = 0, others;
    int bad = !nodes;
    for (size_t i = 0; !bad && i < json_array_size(devices); i++) {
        const json_t *from = json_array_get(devices, i);
        const char *name = json_string_value(json_object_get(from, "name"));
        const char *kind = json_string_value(json_object_get(from, "kind"));
        json_t *profile = profiles_profile_of(document, name, key, &others);
        if (!profile && kind && strcmp(kind, "cpu") != 0)
            continue;
        json_t *device = json_pack("{s:s}", "name", name);
        profiles_describe(document, name, device);
        if (profile)
            bad |= json_object_set_new(device, "profile", profile);
        with += profile != NULL;
        json_t *node = profiles_node_of(nodes, json_string_value(json_object_get(from, "node")));
        bad |= json_array_append_new(json_object_get(node, "devices"), device);
    }
    json_t *imported = json_array();
    for (size_t i = 0; !bad && i < json_array_size(links); i++) {
        json_t *link = json_copy(json_array_get(links, i));
        bad |= json_object_set_new(link, "origin", json_string(cost_origin_name(ORIGIN_IMPORTED)));
        bad |= json_array_append_new(imported, link);
    }
    json_t *cluster = json_pack("{s:o,s:{s:o}}", "nodes", nodes, "links", "directed", imported);
    if (bad || !cluster) {
        err_set(err, ERR_NOMEM, "out of memory for a cluster");
    } else if (with == 0) {
        bad =
            err_set(err, ERR_INVALID,
                    "none of its %zu devices was measured for this model, method, dtype and sequence length",
                    json_array_size(devices));
    }
    if (bad) {
        json_decref(cluster);
        return NULL;
    }
    return cluster;
}
