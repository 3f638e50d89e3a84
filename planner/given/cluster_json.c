/* Reading cluster files (INTERFACES.md, "A cluster file, for `motley plan --cluster`"). */
#include <string.h>

#include "common/json.h"
#include "planner/given/cluster.h"
#include "planner/given/cluster_private.h"

/* Reads a name and refuses characters that would break tables, pictures or messages. */
static int name_read(struct json_reader *r, const char **name)
{
    if (jr_str(r, "name", JR_REQUIRED, 1, 255, name) < 0 || r->failed)
        return -1;
    size_t length = strlen(*name);
    bool spaces = (*name)[0] == ' ' || (*name)[length - 1] == ' ';
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)(*name)[i];
        if (byte < 0x20 || byte == 0x7f)
            return jr_fail(r, "name", "byte %zu of it is a control character", i);
    }
    return spaces ? jr_fail(r, "name", "\"%s\" begins or ends with a space", *name) : 0;
}

static int file_device(struct json_reader *r, struct cluster *cluster, const char *node)
{
    struct cluster_device device = {.node = node, .speed = 1, .heat = 1};
    const struct catalogue_entry *like = NULL;
    const json_t *profile = NULL;
    if (name_read(r, &device.name) < 0)
        return -1;
    doc_fields(&cluster_device_doc, r, &device);
    jr_object(r, "profile", JR_OPTIONAL, &profile);
    if (device.like && !(like = catalogue_find(device.like)))
        return jr_fail(r, "like",
                       "\"%s\" is not in the catalogue (motley devices --catalogue); nearest is %s",
                       device.like, catalogue_near(device.like));
    const bool imitates = device.kind && strcmp(device.kind, "emulated") == 0; /* a card of any kind */
    if (like && device.kind && !imitates && strcmp(device.kind, like->kind) != 0)
        return jr_fail(r, "kind", "\"%s\", and %s is of kind %s", device.kind, like->name, like->kind);
    if (like) {
        device.memory_limit_bytes = catalogue_usable(like);
        device.kind = device.kind ? device.kind : like->kind;
    }
    const int has_memory =
        jr_bytes(r, "memory_bytes", JR_OPTIONAL, 1, (uint64_t)1 << 50, &device.memory_limit_bytes);
    if (jr_finish(r) < 0) /* first, since it names a misspelt `like` */
        return -1;
    if (has_memory == 0 && !like)
        return jr_fail(r, "memory_bytes", "is required where `like` names no kind of the catalogue");
    if (cluster_add_device(cluster, &device, r->err) < 0) {
        r->failed = true;
        return err_wrap(r->err, "%s", r->path);
    }
    return profile && cluster_add_profile(cluster, profile, r->err) < 0 ? err_wrap(r->err, "%s", r->path) : 0;
}

static int file_node(struct json_reader *r, struct cluster *cluster)
{
    const char *name = "";
    const json_t *devices = NULL;
    double nic = 0;
    if (name_read(r, &name) < 0)
        return -1;
    int has_nic = jr_rate(r, "nic_bytes_per_s", JR_OPTIONAL, 1, 1e18, &nic);
    jr_array(r, "devices", JR_REQUIRED, 1, CLUSTER_DEVICES_MAX, &devices);
    if (jr_finish(r) < 0)
        return -1;
    if (cluster_node_find(cluster, name) != UINT32_MAX)
        return jr_fail(r, "name", "there is a node %s already", name);
    for (size_t i = 0; i < json_array_size(devices); i++) {
        struct json_reader item;
        if (jr_item(r, "devices", devices, i, &item) < 0 || file_device(&item, cluster, name) < 0)
            return -1;
    }
    return has_nic == 1 ? cluster_set_nic(cluster, name, nic, r->err) : 0;
}

/* Reads the last keys of a link and finishes its reader. A key that is misspelt is named before one that is
 * missed. */
static int link_values(struct json_reader *r, double *latency_s, double *bytes_per_s)
{
    const int has_latency = jr_seconds(r, "latency_s", JR_OPTIONAL, 0, 1e6, latency_s);
    const int has_rate = jr_rate(r, "bytes_per_s", JR_OPTIONAL, 1, 1e18, bytes_per_s);
    if (jr_finish(r) < 0)
        return -1;
    if (has_latency == 0 || has_rate == 0)
        return jr_fail(r, has_latency == 0 ? "latency_s" : "bytes_per_s", "is required");
    return 0;
}

static int file_pair(struct json_reader *r, struct cluster *cluster)
{
    const char *a = "", *b = "";
    int origin = ORIGIN_IMPORTED; /* a cluster file's numbers were written by hand */
    struct cluster_link link = {0};
    jr_str(r, "a", JR_REQUIRED, 1, 255, &a);
    jr_str(r, "b", JR_REQUIRED, 1, 255, &b);
    jr_choice(r, "origin", JR_OPTIONAL, cost_origin_names, &origin);
    if (link_values(r, &link.latency_s, &link.bytes_per_s) < 0)
        return -1;
    link.origin = (enum cost_origin)origin;
    const uint32_t ends[2] = {cluster_node_find(cluster, a), cluster_node_find(cluster, b)};
    for (int k = 0; k < 2; k++)
        if (ends[k] == UINT32_MAX)
            return jr_fail(r, k ? "b" : "a", "no node %s in this file", k ? b : a);
    if (strcmp(a, b) == 0)
        return jr_fail(r, "b", "a link of %s to itself; what is within a node is links.within", b);
    if (cluster_link_known(cluster, ends[0], ends[1]))
        return jr_fail(r, "b", "the link between %s and %s is given twice", a, b);
    return cluster_put_link(cluster, &(struct link_pair){ends[0], ends[1], link}, r->err) < 0
               ? -1
               : cluster_put_link(cluster, &(struct link_pair){ends[1], ends[0], link}, r->err);
}

/* Reads one direction of a measured link. A link from a node to itself describes the links between the
 * node's devices. */
static int file_directed(struct cluster *cluster, const json_t *link, struct err *err)
{
    const char *from = json_string_value(json_object_get(link, "from")),
               *to = json_string_value(json_object_get(link, "to"));
    uint32_t a = from ? cluster_node_find(cluster, from) : UINT32_MAX,
             b = to ? cluster_node_find(cluster, to) : UINT32_MAX;
    if (a != UINT32_MAX && b != UINT32_MAX && cluster_link_known(cluster, a, b))
        return err_set(err, ERR_INVALID, "the link from %s to %s is given twice", from, to);
    return cluster_add_link(cluster, link, err);
}

static bool cluster_json_is_there(const struct json_reader *r, const char *key)
{
    const json_t *value = json_object_get(r->object, key);
    return value && !json_is_null(value);
}

static int file_links(struct json_reader *root, struct cluster *cluster)
{
    struct json_reader links, part;
    const json_t *pairs = NULL,
                 *directed = NULL; /* directed: link documents, each one direction as measured */
    static const char *const keys[2] = {"within", "between"};
    struct cluster_link values[2] = {cluster->within, cluster->between};
    if (jr_sub(root, "links", JR_OPTIONAL, &links) < 0)
        return -1;
    for (int k = 0; k < 2; k++)
        if (!cluster_json_is_there(&links, keys[k]))
            jr_any(&links, keys[k], JR_OPTIONAL, &pairs);
        else if (jr_sub(&links, keys[k], JR_REQUIRED, &part) < 0 ||
                 link_values(&part, &values[k].latency_s, &values[k].bytes_per_s) < 0)
            return -1;
    pairs = NULL;
    jr_array(&links, "pairs", JR_OPTIONAL, 0, 1000000, &pairs);
    jr_array(&links, "directed", JR_OPTIONAL, 0, 1000000, &directed);
    if (jr_finish(&links) < 0 ||
        cluster_set_defaults(cluster, values[0].latency_s, values[0].bytes_per_s, values[1].latency_s,
                             values[1].bytes_per_s, root->err) < 0)
        return -1;
    for (size_t i = 0; i < json_array_size(pairs); i++) {
        struct json_reader item;
        if (jr_item(&links, "pairs", pairs, i, &item) < 0 || file_pair(&item, cluster) < 0)
            return -1;
    }
    for (size_t i = 0; i < json_array_size(directed); i++)
        if (file_directed(cluster, json_array_get(directed, i), root->err) < 0)
            return err_wrap(root->err, "links.directed[%zu]", i);
    return 0;
}

struct cluster *cluster_from_json(const json_t *document, struct err *err)
{
    struct json_reader root;
    const json_t *nodes = NULL;
    struct cluster *cluster = cluster_create(err);
    if (!cluster)
        return NULL;
    jr_init(&root, document, "", err);
    if (jr_array(&root, "nodes", JR_REQUIRED, 1, CLUSTER_NODES_MAX, &nodes) < 0)
        goto fail;
    for (size_t i = 0; i < json_array_size(nodes); i++) {
        struct json_reader item;
        if (jr_item(&root, "nodes", nodes, i, &item) < 0 || file_node(&item, cluster) < 0)
            goto fail;
    }
    if (file_links(&root, cluster) < 0 || jr_finish(&root) < 0)
        goto fail;
    return cluster;
fail:
    cluster_destroy(cluster);
    return NULL;
}
