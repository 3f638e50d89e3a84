/* A cluster's devices, nodes and links. Each is checked when it is added, and found through a hash index. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/array.h"
#include "common/json.h"
#include "planner/given/cluster.h"
#include "planner/given/cluster_private.h"

#define SECONDS_MAX 1e9
#define RATE_MAX 1e18

struct cluster *cluster_create(struct err *err)
{
    struct cluster *cluster = calloc(1, sizeof(*cluster));
    if (!cluster) {
        err_set(err, ERR_NOMEM, "cluster: out of memory");
        return NULL;
    }
    cluster->within =
        (struct cluster_link){.latency_s = 20e-6, .bytes_per_s = 1e9, .origin = ORIGIN_ESTIMATED};
    cluster->between =
        (struct cluster_link){.latency_s = 200e-6, .bytes_per_s = 110e6, .origin = ORIGIN_ESTIMATED};
    return cluster;
}

static void cluster_profile_fini(struct device_profile *profile)
{
    for (int b = 0; b < PROFILE_BLOCKS; b++)
        free(profile->points[b]);
    *profile = (struct device_profile){0};
}

void cluster_destroy(struct cluster *cluster)
{
    if (!cluster)
        return;
    for (uint32_t d = 0; d < cluster->device_count; d++) {
        free(cluster->devices[d].name);
        free(cluster->devices[d].kind);
        free(cluster->devices[d].lacks);
        free(cluster->devices[d].taught);
        cluster_profile_fini(&cluster->devices[d].profile);
    }
    for (uint32_t n = 0; n < cluster->node_count; n++)
        free(cluster->nodes[n].name);
    free(cluster->devices);
    free(cluster->nodes);
    free(cluster->links);
    cluster_index_fini(&cluster->device_index);
    cluster_index_fini(&cluster->node_index);
    cluster_index_fini(&cluster->link_index);
    free(cluster);
}

uint32_t cluster_node_find(const struct cluster *cluster, const char *name)
{
    uint32_t cursor = 0, n;
    uint64_t hash = cluster_hash_name(name);
    while ((n = cluster_index_next(&cluster->node_index, hash, &cursor)) != UINT32_MAX)
        if (strcmp(cluster->nodes[n].name, name) == 0)
            return n;
    return UINT32_MAX;
}

uint32_t cluster_device_find(const struct cluster *cluster, const char *name)
{
    uint32_t cursor = 0, d;
    uint64_t hash = cluster_hash_name(name);
    while ((d = cluster_index_next(&cluster->device_index, hash, &cursor)) != UINT32_MAX)
        if (strcmp(cluster->devices[d].name, name) == 0)
            return d;
    return UINT32_MAX;
}

static uint32_t node_intern(struct cluster *cluster, const char *name, struct err *err)
{
    uint32_t found = cluster_node_find(cluster, name);
    if (found != UINT32_MAX)
        return found;
    if (cluster->node_count >= CLUSTER_NODES_MAX) {
        err_set(err, ERR_TOO_BIG, "cluster: more than %u nodes", CLUSTER_NODES_MAX);
        return UINT32_MAX;
    }
    char *copy = strdup(name);
    if (!copy)
        err_set(err, ERR_NOMEM, "cluster: out of memory");
    if (!copy ||
        ARRAY_RESERVE(cluster->nodes, cluster->node_capacity, (size_t)cluster->node_count + 1, err) < 0 ||
        cluster_index_add(&cluster->node_index, cluster_hash_name(name), cluster->node_count, err) < 0) {
        free(copy);
        return UINT32_MAX;
    }
    cluster->nodes[cluster->node_count] = (struct node){.name = copy};
    return cluster->node_count++;
}

static bool positive(double value, double max)
{
    return isfinite(value) && value > 0 && value <= max;
}

static int cluster_device_check(const struct cluster *cluster, const struct cluster_device *device,
                                struct err *err)
{
    if (!device->name || !*device->name || !device->node || !*device->node)
        return err_set(err, ERR_INVALID, "cluster: a device without a name or node");
    if (cluster_device_find(cluster, device->name) != UINT32_MAX)
        return err_set(err, ERR_CONFLICT, "device %s: there is one of that name already", device->name);
    if (device->memory_limit_bytes == 0 || device->memory_limit_bytes > (uint64_t)1 << 50)
        return err_set(err, ERR_INVALID, "device %s: memory of %llu bytes", device->name,
                       (unsigned long long)device->memory_limit_bytes);
    if ((device->speed != 0 && !positive(device->speed, 1e6)) ||
        (device->heat != 0 && !positive(device->heat, 1)) || !isfinite(device->price_per_hour) ||
        device->price_per_hour < 0 || !isfinite(device->watts) || device->watts < 0 ||
        !isfinite(device->idle_watts) || device->idle_watts < 0)
        return err_set(err, ERR_INVALID, "device %s: speed, heat, price or power is not a sensible number",
                       device->name);
    if (device->like && !catalogue_find(device->like))
        return err_set(
            err, ERR_INVALID,
            "device %s: \"%s\" is not in the catalogue (motley devices --catalogue); nearest is %s",
            device->name, device->like, catalogue_near(device->like));
    return 0;
}

int cluster_add_device(struct cluster *cluster, const struct cluster_device *device, struct err *err)
{
    if (cluster_device_check(cluster, device, err) < 0)
        return -1;
    if (cluster->device_count >= CLUSTER_DEVICES_MAX)
        return err_set(err, ERR_TOO_BIG, "cluster: more than %u devices", CLUSTER_DEVICES_MAX);
    uint32_t node = node_intern(cluster, device->node, err);
    if (node == UINT32_MAX)
        return -1;
    if (ARRAY_RESERVE(cluster->devices, cluster->device_capacity, (size_t)cluster->device_count + 1, err) < 0)
        return -1;
    struct taught_run *taught;
    uint32_t taught_count;
    if (taught_read(device->taught, &taught, &taught_count, err) < 0)
        return err_wrap(err, "device %s", device->name);
    char *name = strdup(device->name), *kind = strdup(device->kind ? device->kind : "cpu");
    int result = name && kind ? cluster_index_add(&cluster->device_index, cluster_hash_name(name),
                                                  cluster->device_count, err)
                              : err_set(err, ERR_NOMEM, "cluster: out of memory");
    if (result < 0) {
        free(name);
        free(kind);
        free(taught);
        return -1;
    }
    cluster->devices[cluster->device_count++] =
        (struct planner_device){.name = name,
                                .kind = kind,
                                .node = node,
                                .memory_limit_bytes = device->memory_limit_bytes > device->base_bytes
                                                          ? device->memory_limit_bytes - device->base_bytes
                                                          : 1, /* 1 byte: nothing fits */
                                .base_bytes = device->base_bytes,
                                .threads = device->threads ? device->threads : 1,
                                .speed = device->speed > 0 ? device->speed : 1,
                                .heat = device->heat > 0 ? device->heat : 1,
                                .price_per_hour = device->price_per_hour,
                                .watts = device->watts,
                                .idle_watts = device->idle_watts,
                                .taught = taught,
                                .taught_count = taught_count,
                                .like = device->like ? catalogue_find(device->like) : NULL};
    return 0;
}

struct cluster_device cluster_device_at(const struct cluster *cluster, uint32_t device)
{
    const struct planner_device *d = &cluster->devices[device];
    return (struct cluster_device){.name = d->name,
                                   .node = cluster->nodes[d->node].name,
                                   .kind = d->kind,
                                   .like = d->like ? d->like->name : NULL,
                                   .memory_limit_bytes = d->memory_limit_bytes + d->base_bytes,
                                   .base_bytes = d->base_bytes,
                                   .threads = d->threads,
                                   .speed = d->speed,
                                   .heat = d->heat,
                                   .price_per_hour = d->price_per_hour,
                                   .watts = d->watts,
                                   .idle_watts = d->idle_watts};
}

static const struct doc_field device_fields[] = {
    DOC_TEXT("like", cluster_device, like, JR_OPTIONAL, 1, 64, "entry of the catalogue"),
    DOC_TEXT("kind", cluster_device, kind, JR_OPTIONAL, 1, 32, "cpu, cuda, hip …"),
    DOC_NUM("threads", cluster_device, threads, JR_OPTIONAL, 0, 1, 4096, "threads that compute"),
    DOC_NUM("base_bytes", cluster_device, base_bytes, JR_OPTIONAL, 0, 0, (uint64_t)1 << 50,
            "bytes that a worker takes for itself", .flags = DOC_BYTES),
    DOC_NUM("speed", cluster_device, speed, JR_OPTIONAL, 1, CLUSTER_SPEED_MIN, CLUSTER_SPEED_MAX,
            "factor on the speed that the tables say"),
    DOC_NUM("heat", cluster_device, heat, JR_OPTIONAL, 1, 1e-3, 1, "table time by measured time"),
    DOC_NUM("price_per_hour", cluster_device, price_per_hour, JR_OPTIONAL, 0, 0, 1e9, "in any currency"),
    DOC_NUM("watts", cluster_device, watts, JR_OPTIONAL, 0, 0, 1e6, "power while computing"),
    DOC_NUM("idle_watts", cluster_device, idle_watts, JR_OPTIONAL, 0, 0, 1e6, "power while waiting"),
    DOC_JSON("taught", cluster_device, taught, JR_OPTIONAL, "what earlier runs measured",
             .flags = DOC_ARRAY | DOC_SPARSE, .max = TAUGHT_RUNS_MAX),
};
const struct doc cluster_device_doc = DOC(cluster_device, device_fields);

static const char *const block_names[] = {"embedding", "layer",  "head",          "attention", "ffn",
                                          "router",    "expert", "attention_cut", "ffn_cut",   NULL};

static int point_read(struct json_reader *r, struct device_profile *profile, const char *device)
{
    struct profile_point p = {.rows = 1};
    int block = -1;
    jr_choice(r, "block", JR_REQUIRED, block_names, &block);
    jr_f64(r, "rows", JR_OPTIONAL, 0, 1e9, &p.rows);
    jr_f64(r, "tokens", JR_REQUIRED, 1, 1e12, &p.tokens);
    jr_f64(r, "labelled", JR_OPTIONAL, 0, 1e12, &p.labelled);
    p.sum_sq = p.tokens * p.tokens / (p.rows > 0 ? p.rows : 1);
    jr_f64(r, "sum_sq", JR_OPTIONAL, 0, 1e24, &p.sum_sq);
    jr_f64(r, "forward_s", JR_REQUIRED, 0, SECONDS_MAX, &p.forward_s);
    jr_f64(r, "backward_s", JR_OPTIONAL, 0, SECONDS_MAX, &p.backward_s);
    p.recompute_s = p.forward_s;
    jr_f64(r, "recompute_s", JR_OPTIONAL, 0, SECONDS_MAX, &p.recompute_s);
    if (jr_finish_loose(r) < 0)
        return -1;
    /* Recomputation is measured as a difference of two noisy times; a value below half of the forward time
     * is replaced by the forward time. */
    p.recompute_s = p.recompute_s < 0.5 * p.forward_s ? p.forward_s : p.recompute_s;
    bool whole = block == PROFILE_LAYER || block == PROFILE_HEAD;
    if (block != PROFILE_EMBEDDING && p.forward_s <= 0)
        return jr_fail(r, "forward_s", "device %s measured no time at all for a %s", device,
                       block_names[block]);
    if (whole && p.backward_s <= 0)
        return jr_fail(r, "backward_s", "device %s measured no time at all for a %s", device,
                       block_names[block]);
    if ((p.rows > 0 && p.rows < 1) || (block != PROFILE_EXPERT && p.rows > p.tokens))
        return jr_fail(r, "rows", "%g rows that hold %g tokens: rows are whole and hold at least one", p.rows,
                       p.tokens);
    if (p.labelled > p.tokens)
        return jr_fail(r, "labelled", "%g of %g tokens are learnt", p.labelled, p.tokens);
    if (block == PROFILE_LAYER && p.rows >= 1 &&
        (p.sum_sq > 1.001 * p.tokens * p.tokens || p.sum_sq < 0.999 * p.tokens * p.tokens / p.rows))
        return jr_fail(r, "sum_sq", "%g is no sum of squared lengths of %g rows that hold %g tokens",
                       p.sum_sq, p.rows, p.tokens);
    uint32_t count = profile->point_count[block];
    if (count >= CLUSTER_POINTS_MAX)
        return jr_fail(r, NULL, "more than %u points", CLUSTER_POINTS_MAX);
    struct profile_point *grown = realloc(profile->points[block], (count + 1) * sizeof(*grown));
    if (!grown)
        return err_set(r->err, ERR_NOMEM, "profile: out of memory");
    grown[count] = p;
    profile->points[block] = grown;
    profile->point_count[block] = count + 1;
    return 0;
}

static int per_block(struct json_reader *parent, const char *key, uint64_t *bytes, double *seconds)
{
    struct json_reader r;
    if (jr_sub(parent, key, JR_OPTIONAL, &r) < 0)
        return -1;
    for (int b = 0; b < PROFILE_BLOCKS; b++) {
        double value = 0;
        jr_f64(&r, block_names[b], JR_OPTIONAL, 0, 1e18, &value);
        if (bytes)
            bytes[b] = (uint64_t)value;
        if (seconds)
            seconds[b] = value;
    }
    return jr_finish_loose(&r);
}

static int profile_read(struct json_reader *r, struct device_profile *profile, const char *device)
{
    const json_t *points = NULL;
    int origin = ORIGIN_MEASURED;
    double base = 0;
    const char *word = NULL;
    enum workload_compute compute;
    struct json_reader compared;
    profile->heat = 1;
    jr_f64(r, "heat", JR_OPTIONAL, 1e-3, 1, &profile->heat);
    jr_array(r, "points", JR_REQUIRED, 1, CLUSTER_POINTS_MAX, &points);
    jr_choice(r, "origin", JR_OPTIONAL, cost_origin_names, &origin);
    jr_str(r, "compute", JR_OPTIONAL, 0, 255, &word);
    jr_f64(r, "waited_share", JR_OPTIONAL, 0, 1, &profile->waited_share);
    jr_f64(r, "spread", JR_OPTIONAL, 0, 1e12, &profile->spread);
    jr_f64(r, "wire_s_per_byte", JR_OPTIONAL, 0, 1, &profile->wire_s_per_byte);
    jr_f64(r, "base_process_bytes", JR_OPTIONAL, 0, 1e15, &base);
    if (per_block(r, "weights_bytes", profile->weights_bytes, NULL) < 0 ||
        per_block(r, "adapter_bytes", profile->adapter_bytes, NULL) < 0 ||
        per_block(r, "optimizer_bytes", profile->optimizer_bytes, NULL) < 0 ||
        per_block(r, "step_s", NULL, profile->step_s) < 0 ||
        per_block(r, "cut_share", NULL, profile->cut_share) < 0 ||
        jr_sub(r, "catalogue", JR_OPTIONAL, &compared) < 0)
        return -1;
    jr_f64(&compared, "ratio", JR_OPTIONAL, 0, 1e12, &profile->catalogue_ratio);
    if (jr_finish_loose(&compared) < 0 || jr_finish_loose(r) < 0)
        return -1;
    for (size_t i = 0; i < json_array_size(points); i++) {
        struct json_reader item;
        if (jr_item(r, "points", points, i, &item) < 0 || point_read(&item, profile, device) < 0)
            return -1;
    }
    if (profile->point_count[PROFILE_LAYER] == 0 && profile->point_count[PROFILE_ATTENTION] == 0)
        return jr_fail(r, "points", "none is of a layer");
    if (profile->point_count[PROFILE_HEAD] == 0)
        return jr_fail(r, "points", "none is of a head");
    profile->present = true;
    profile->origin = (enum cost_origin)origin;
    profile->compute = workload_compute_read(word, &compute) == 0 ? (int)compute : -1;
    profile->process_base_bytes = (uint64_t)base;
    return 0;
}

int cluster_add_profile(struct cluster *cluster, const json_t *document, struct err *err)
{
    struct json_reader r;
    const char *name = "";
    jr_init(&r, document, "profile", err);
    if (jr_str(&r, "device", JR_REQUIRED, 1, 255, &name) < 0)
        return -1;
    uint32_t index = cluster_device_find(cluster, name);
    if (index == UINT32_MAX)
        return err_set(err, ERR_NOT_FOUND, "profile.device: no device %s", name);
    struct device_profile profile = {0};
    if (profile_read(&r, &profile, name) < 0) {
        cluster_profile_fini(&profile);
        return -1;
    }
    cluster_profile_fini(&cluster->devices[index].profile);
    cluster->devices[index].profile = profile;
    return 0;
}

int cluster_leave_out(struct cluster *cluster, const char *device, const char *why, struct err *err)
{
    uint32_t index = cluster_device_find(cluster, device);
    char *copy = index != UINT32_MAX ? strdup(why) : NULL;
    if (index == UINT32_MAX)
        return err_set(err, ERR_NOT_FOUND, "cluster: no device %s", device);
    if (!copy)
        return err_set(err, ERR_NOMEM, "cluster: out of memory");
    free(cluster->devices[index].lacks);
    cluster->devices[index].lacks = copy;
    return 0;
}

/* Returns the index of the link from one node to another, or UINT32_MAX. */
static uint32_t link_at(const struct cluster *cluster, uint32_t from, uint32_t to)
{
    uint32_t cursor = 0, i;
    uint64_t hash = cluster_hash_pair(from, to);
    while ((i = cluster_index_next(&cluster->link_index, hash, &cursor)) != UINT32_MAX)
        if (cluster->links[i].from == from && cluster->links[i].to == to)
            return i;
    return UINT32_MAX;
}

int cluster_put_link(struct cluster *cluster, const struct link_pair *pair, struct err *err)
{
    uint32_t known = link_at(cluster, pair->from, pair->to);
    cluster->some_unreachable |= pair->link.unreachable;
    if (known != UINT32_MAX) {
        cluster->links[known] = *pair;
        return 0;
    }
    if (ARRAY_RESERVE(cluster->links, cluster->link_capacity, (size_t)cluster->link_count + 1, err) < 0 ||
        cluster_index_add(&cluster->link_index, cluster_hash_pair(pair->from, pair->to), cluster->link_count,
                          err) < 0)
        return -1;
    cluster->links[cluster->link_count++] = *pair;
    return 0;
}

/* A link's document (docs/CONTRACTS.md). */
struct link_document {
    const char *from, *to; /* nodes */
    struct cluster_link link;
};
static const struct doc_field link_fields[] = {
    DOC_TEXT("from", link_document, from, JR_REQUIRED, 1, 255, "node"),
    DOC_TEXT("to", link_document, to, JR_REQUIRED, 1, 255, "node"),
    DOC_NUM("latency_s", link_document, link.latency_s, JR_REQUIRED, 0, 0, SECONDS_MAX, "seconds"),
    DOC_NUM("bytes_per_s", link_document, link.bytes_per_s, JR_REQUIRED, 0, 1, RATE_MAX, "one way"),
    DOC_NUM("duplex_bytes_per_s", link_document, link.duplex_bytes_per_s, JR_OPTIONAL, 0, 0, RATE_MAX,
            "each way, both ways at once", .flags = DOC_SPARSE),
    DOC_FLAG("emulated", link_document, link.emulated, JR_OPTIONAL, false, "slowed on purpose"),
    DOC_FLAG("unreachable", link_document, link.unreachable, JR_OPTIONAL, false,
             "no connection can be opened this way", .flags = DOC_SPARSE),
    DOC_CHOICE("origin", link_document, link.origin, JR_OPTIONAL, ORIGIN_MEASURED, cost_origin_names,
               "of latency and rates"),
};
static const struct doc link_doc = DOC(link_document, link_fields, .loose = true);

json_t *cluster_link_json(const struct cluster *cluster, const struct link_pair *pair, struct err *err)
{
    const struct link_document document = {cluster->nodes[pair->from].name, cluster->nodes[pair->to].name,
                                           pair->link};
    return doc_write(&link_doc, &document, err);
}

int cluster_add_link(struct cluster *cluster, const json_t *document, struct err *err)
{
    struct link_document link;
    if (doc_read(&link_doc, document, "link", &link, err) < 0)
        return -1;
    const struct link_pair pair = {cluster_node_find(cluster, link.from), cluster_node_find(cluster, link.to),
                                   link.link};
    if (pair.from == UINT32_MAX || pair.to == UINT32_MAX)
        return err_set(err, ERR_NOT_FOUND, "link %s to %s: no node %s", link.from, link.to,
                       pair.from == UINT32_MAX ? link.from : link.to);
    return cluster_put_link(cluster, &pair, err);
}

static void default_set(struct cluster_link *link, double latency_s, double bytes_per_s)
{
    if (latency_s != link->latency_s || bytes_per_s != link->bytes_per_s)
        link->origin = ORIGIN_IMPORTED;
    link->latency_s = latency_s;
    link->bytes_per_s = bytes_per_s;
}

int cluster_set_defaults(struct cluster *cluster, double within_latency_s, double within_bytes_per_s,
                         double between_latency_s, double between_bytes_per_s, struct err *err)
{
    if (!isfinite(within_latency_s) || within_latency_s < 0 || !isfinite(between_latency_s) ||
        between_latency_s < 0 || !positive(within_bytes_per_s, RATE_MAX) ||
        !positive(between_bytes_per_s, RATE_MAX))
        return err_set(err, ERR_INVALID, "links: latency must be at least 0 s and rate above 0 bytes/s");
    default_set(&cluster->within, within_latency_s, within_bytes_per_s);
    default_set(&cluster->between, between_latency_s, between_bytes_per_s);
    return 0;
}

int cluster_set_nic(struct cluster *cluster, const char *node, double bytes_per_s, struct err *err)
{
    uint32_t index = cluster_node_find(cluster, node);
    if (index == UINT32_MAX)
        return err_set(err, ERR_NOT_FOUND, "node %s: no device is on it", node);
    if (!positive(bytes_per_s, RATE_MAX))
        return err_set(err, ERR_INVALID, "node %s: a network card of %g bytes/s", node, bytes_per_s);
    cluster->nodes[index].nic_bytes_per_s = bytes_per_s;
    return 0;
}

/* Returns the index of the link from one node to another, or of the other direction where that direction is
 * not stated or no connection can be opened that way; UINT32_MAX: neither is stated. */
static uint32_t link_best(const struct cluster *cluster, uint32_t from, uint32_t to)
{
    uint32_t at = link_at(cluster, from, to);
    if (at != UINT32_MAX && !cluster->links[at].link.unreachable)
        return at;
    uint32_t back = link_at(cluster, to, from);
    return back != UINT32_MAX ? back : at;
}

bool cluster_apart(const struct cluster *cluster, uint32_t from_node, uint32_t to_node)
{
    uint32_t at = cluster->some_unreachable ? link_best(cluster, from_node, to_node) : UINT32_MAX;
    return at != UINT32_MAX && cluster->links[at].link.unreachable;
}

bool cluster_link_known(const struct cluster *cluster, uint32_t from_node, uint32_t to_node)
{
    return link_at(cluster, from_node, to_node) != UINT32_MAX;
}

struct cluster_link cluster_link(const struct cluster *cluster, uint32_t from_device, uint32_t to_device)
{
    uint32_t from = cluster->devices[from_device].node, to = cluster->devices[to_device].node;
    uint32_t at = link_best(cluster, from, to);
    struct cluster_link link = at != UINT32_MAX ? cluster->links[at].link
                               : from == to     ? cluster->within
                                                : cluster->between;
    link.duplex_bytes_per_s =
        link.duplex_bytes_per_s > 0 ? fmin(link.bytes_per_s, link.duplex_bytes_per_s) : link.bytes_per_s;
    for (int end = 0; end < 2 && from != to; end++) {
        double card = cluster->nodes[end ? to : from].nic_bytes_per_s;
        link.bytes_per_s = card > 0 ? fmin(link.bytes_per_s, card) : link.bytes_per_s;
        link.duplex_bytes_per_s = card > 0 ? fmin(link.duplex_bytes_per_s, card) : link.duplex_bytes_per_s;
    }
    return link;
}

uint32_t cluster_device_count(const struct cluster *cluster)
{
    return cluster->device_count;
}

const char *cluster_device_name(const struct cluster *cluster, uint32_t index)
{
    return index < cluster->device_count ? cluster->devices[index].name : NULL;
}

uint32_t cluster_node_count(const struct cluster *cluster)
{
    return cluster->node_count;
}

const char *cluster_device_node(const struct cluster *cluster, uint32_t index)
{
    return index < cluster->device_count ? cluster->nodes[cluster->devices[index].node].name : "";
}

bool cluster_device_has_profile(const struct cluster *cluster, uint32_t index)
{
    return index < cluster->device_count && cluster->devices[index].profile.present;
}
