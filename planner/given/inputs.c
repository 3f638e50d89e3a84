/* Reads and writes planning inputs as a document, and replaces the document's cluster. */
#include "planner/given/inputs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "planner/given/cluster_private.h"

json_t *plan_inputs_find(const json_t *list, const char *key, const char *text)
{
    for (size_t i = json_array_size(list); text && i-- > 0;) {
        const char *has = json_string_value(json_object_get(json_array_get(list, i), key));
        if (has && strcmp(has, text) == 0)
            return json_array_get(list, i);
    }
    return NULL;
}

int plan_inputs_device(const json_t *document, const char *path, struct cluster_device *device, bool *usable,
                       struct err *err)
{
    struct json_reader r;
    *usable = true;
    jr_init(&r, document, path, err);
    jr_bool(&r, "usable", JR_OPTIONAL, usable);
    jr_bytes(&r, "memory_limit_bytes", JR_REQUIRED, 1, (uint64_t)1 << 50, &device->memory_limit_bytes);
    doc_fields(&cluster_device_doc, &r, device);
    /* An agent names every card, and the catalogue lacks some. */
    if (device->like && !catalogue_find(device->like))
        device->like = NULL;
    return jr_finish_loose(&r);
}

static int device_add(struct cluster *cluster, const json_t *document, const char *path, struct err *err)
{
    struct json_reader names;
    struct err why = {0};
    struct cluster_device device = {.speed = 1, .heat = 1};
    bool usable;
    jr_init(&names, document, path, err);
    jr_str(&names, "name", JR_REQUIRED, 1, 255, &device.name);
    jr_str(&names, "node", JR_REQUIRED, 1, 255, &device.node);
    if (jr_finish_loose(&names) < 0)
        return -1;
    const bool wrong = plan_inputs_device(document, path, &device, &usable, &why) < 0;
    if (!usable)
        return 0;
    const struct cluster_device unknown = {.name = device.name, .node = device.node, .memory_limit_bytes = 1};
    if (cluster_add_device(cluster, wrong ? &unknown : &device, err) < 0)
        return err_wrap(err, "%s", path);
    return wrong ? cluster_leave_out(cluster, device.name, why.text, err) : 0;
}

static int profile_add(struct cluster *cluster, const json_t *profile, struct err *err)
{
    const char *device = json_string_value(json_object_get(profile, "device"));
    struct err why = {0};
    if (cluster_add_profile(cluster, profile, &why) == 0)
        return 0;
    return why.code == ERR_NOMEM ? err_set(err, ERR_NOMEM, "%s", why.text)
                                 : cluster_leave_out(cluster, device, why.text, err);
}

static bool inputs_has_device(const struct cluster *cluster, const json_t *profile)
{
    const char *name = json_string_value(json_object_get(profile, "device"));
    return name && cluster_device_find(cluster, name) != UINT32_MAX;
}

static bool has_nodes(const struct cluster *cluster, const json_t *link)
{
    const char *from = json_string_value(json_object_get(link, "from"));
    const char *to = json_string_value(json_object_get(link, "to"));
    return from && to && cluster_node_find(cluster, from) != UINT32_MAX &&
           cluster_node_find(cluster, to) != UINT32_MAX;
}

static int defaults_read(struct json_reader *root, struct cluster *cluster, struct err *err)
{
    struct json_reader all, part;
    static const char *const keys[2] = {"within", "between"};
    struct cluster_link links[2] = {cluster->within, cluster->between};
    if (jr_sub(root, "defaults", JR_OPTIONAL, &all) < 0)
        return -1;
    for (int k = 0; k < 2; k++) {
        if (jr_sub(&all, keys[k], JR_OPTIONAL, &part) < 0)
            return -1;
        jr_seconds(&part, "latency_s", JR_OPTIONAL, 0, 1e6, &links[k].latency_s);
        jr_rate(&part, "bytes_per_s", JR_OPTIONAL, 1, 1e18, &links[k].bytes_per_s);
        if (jr_finish_loose(&part) < 0)
            return -1;
    }
    return cluster_set_defaults(cluster, links[0].latency_s, links[0].bytes_per_s, links[1].latency_s,
                                links[1].bytes_per_s, err);
}

static int nodes_read(const json_t *nodes, struct cluster *cluster, struct err *err)
{
    size_t index;
    const json_t *node;
    json_array_foreach (nodes, index, node) {
        const char *name = json_string_value(json_object_get(node, "name"));
        const json_t *nic = json_object_get(node, "nic_bytes_per_s");
        if (!name || cluster_node_find(cluster, name) == UINT32_MAX || !json_is_number(nic))
            continue;
        if (cluster_set_nic(cluster, name, json_number_value(nic), err) < 0)
            return err_wrap(err, "nodes[%zu]", index);
    }
    return 0;
}

struct cluster *plan_inputs_devices(const json_t *document, struct err *err)
{
    const json_t *devices = json_object_get(document, "devices"),
                 *profiles = json_object_get(document, "profiles"),
                 *links = json_object_get(document, "links");
    struct json_reader root;
    struct cluster *cluster = cluster_create(err);
    jr_init(&root, document, "", err);
    int result = cluster ? defaults_read(&root, cluster, err) : -1;
    for (size_t i = 0; i < json_array_size(devices) && result == 0; i++) {
        char path[32];
        snprintf(path, sizeof(path), "devices[%zu]", i);
        result = device_add(cluster, json_array_get(devices, i), path, err);
    }
    for (size_t i = 0; i < json_array_size(profiles) && result == 0; i++)
        if (inputs_has_device(cluster, json_array_get(profiles, i)))
            result = profile_add(cluster, json_array_get(profiles, i), err);
    for (size_t i = 0; i < json_array_size(links) && result == 0; i++) {
        struct err why = {0};
        if (has_nodes(cluster, json_array_get(links, i)) &&
            cluster_add_link(cluster, json_array_get(links, i), &why) < 0 && why.code == ERR_NOMEM)
            result = err_set(err, ERR_NOMEM, "%s", why.text);
    }
    if (result == 0)
        result = nodes_read(json_object_get(document, "nodes"), cluster, err);
    if (result == 0)
        return cluster;
    cluster_destroy(cluster);
    return NULL;
}

/* Reads [[tokens, labelled], …] into *sizes, newly allocated; a null list gives NULL and count 0. */
static int inputs_rows_read(const json_t *list, const char *key, struct row_size **sizes, uint32_t *count,
                            struct err *err)
{
    size_t size = json_array_size(list);
    *sizes = NULL;
    *count = 0;
    if (size == 0)
        return 0;
    *sizes = calloc(size, sizeof(**sizes));
    if (!*sizes)
        return err_set(err, ERR_NOMEM, "%s: out of memory for %zu rows", key, size);
    for (size_t i = 0; i < size; i++) {
        const json_t *row = json_array_get(list, i);
        json_int_t tokens = json_integer_value(json_array_get(row, 0));
        json_int_t labelled = json_integer_value(json_array_get(row, 1));
        if (json_array_size(row) != 2 || tokens < 2 || tokens > 1 << 24 || labelled < 0 || labelled >= tokens)
            return err_set(err, ERR_INVALID, "%s[%zu]: not [tokens, labelled] with labelled below tokens",
                           key, i);
        (*sizes)[i] = (struct row_size){(uint32_t)tokens, (uint32_t)labelled};
    }
    *count = (uint32_t)size;
    return 0;
}

int plan_inputs_read(const json_t *document, struct plan_inputs *inputs, struct err *err)
{
    struct json_reader root;
    const json_t *spec = NULL, *config = NULL, *rows = NULL, *eval = NULL, *devices = NULL, *profiles = NULL,
                 *links = NULL, *routing = NULL;
    struct row_size *train_sizes = NULL, *eval_sizes = NULL;
    uint32_t version = 0, prompt_tokens = 0, train_rows = 0, eval_rows = 0;
    *inputs = (struct plan_inputs){0};
    jr_init(&root, document, "", err);
    jr_u32(&root, "version", JR_REQUIRED, INPUTS_VERSION, INPUTS_VERSION, &version);
    jr_object(&root, "spec", JR_REQUIRED, &spec);
    jr_object(&root, "config", JR_REQUIRED, &config);
    jr_array(&root, "rows", JR_OPTIONAL, 1, INPUTS_ROWS_MAX, &rows);
    jr_array(&root, "eval_rows", JR_OPTIONAL, 1, INPUTS_ROWS_MAX, &eval);
    jr_array(&root, "expert_share", JR_OPTIONAL, 0, MODEL_LAYERS_MAX, &routing);
    jr_u32(&root, "prompt_tokens", JR_OPTIONAL, 0, 1u << 24, &prompt_tokens);
    jr_array(&root, "devices", JR_REQUIRED, 1, CLUSTER_DEVICES_MAX, &devices);
    jr_array(&root, "profiles", JR_OPTIONAL, 0, 1000000, &profiles);
    jr_array(&root, "links", JR_OPTIONAL, 0, 1000000, &links);
    if (jr_finish_loose(&root) < 0)
        return -1;
    int result = spec_parse(spec, &inputs->spec, err);
    if (result == 0 && model_config_parse(config, &inputs->config, err) < 0)
        result = err_wrap(err, "config");
    if (result == 0)
        result = (inputs->cluster = plan_inputs_devices(document, err)) ? 0 : -1;
    if (result == 0 && cluster_device_count(inputs->cluster) == 0)
        result = err_set(err, ERR_NOFIT, "devices: there is none to plan for");
    if (result == 0)
        result = inputs_rows_read(rows, "rows", &train_sizes, &train_rows, err);
    if (result == 0)
        result = inputs_rows_read(eval, "eval_rows", &eval_sizes, &eval_rows, err);
    if (result == 0)
        result = workload_from_spec(&inputs->spec, &inputs->config,
                                    &(struct plan_rows){.train = train_sizes,
                                                        .eval = eval_sizes,
                                                        .train_count = train_rows,
                                                        .eval_count = eval_rows,
                                                        .prompt_tokens = prompt_tokens,
                                                        .expert_share = routing},
                                    &inputs->workload, err);
    free(train_sizes);
    free(eval_sizes);
    return result;
}

int plan_inputs_from_files(const json_t *spec, const json_t *cluster, const json_t *config,
                           const struct plan_rows *rows, struct plan_inputs *inputs, struct err *err)
{
    *inputs = (struct plan_inputs){0};
    if (spec_parse(spec, &inputs->spec, err) < 0)
        return -1;
    if (model_config_parse(config, &inputs->config, err) < 0)
        return err_wrap(err, "config.json");
    if (!(inputs->cluster = cluster_from_json(cluster, err)))
        return err_wrap(err, "cluster");
    return workload_from_spec(&inputs->spec, &inputs->config, rows, &inputs->workload, err);
}

void plan_inputs_fini(struct plan_inputs *inputs)
{
    workload_fini(&inputs->workload);
    cluster_destroy(inputs->cluster);
    spec_fini(&inputs->spec);
    *inputs = (struct plan_inputs){0};
}

/* --- replacing the cluster --- */

static json_t *inputs_devices_of(const struct cluster *cluster)
{
    json_t *devices = json_array();
    int bad = !devices;
    for (uint32_t d = 0; d < cluster->device_count; d++) {
        const struct cluster_device from = cluster_device_at(cluster, d);
        struct err ignored; /* only memory can be short */
        json_t *to = json_pack("{s:s,s:s,s:I}", "name", from.name, "node", from.node, "memory_limit_bytes",
                               (json_int_t)from.memory_limit_bytes);
        bad |= doc_add(&cluster_device_doc, &from, to, &ignored);
        bad |= json_array_append_new(devices, to);
    }
    if (bad)
        json_decref(devices);
    return bad ? NULL : devices;
}

static json_t *links_of(const struct cluster *cluster)
{
    json_t *links = json_array();
    int bad = !links;
    for (uint32_t i = 0; i < cluster->link_count; i++) {
        struct err ignored; /* only memory can be short */
        bad |= json_array_append_new(links, cluster_link_json(cluster, &cluster->links[i], &ignored));
    }
    if (bad)
        json_decref(links);
    return bad ? NULL : links;
}

/* Replaces the document's profiles by those of the cluster file, and takes what it says that earlier runs
 * measured. */
static int measured_take(json_t *document, const json_t *cluster_file)
{
    json_t *had = json_object_get(document, "profiles"); /* other documents may have it, too */
    json_t *profiles = had ? json_copy(had) : json_array();
    size_t n, d;
    const json_t *node, *device, *taught;
    int bad = json_object_set_new(document, "profiles", profiles);
    json_array_foreach (json_object_get(cluster_file, "nodes"), n, node) {
        json_array_foreach (json_object_get(node, "devices"), d, device) {
            json_t *profile = json_copy(json_object_get(device, "profile"));
            const char *name = json_string_value(json_object_get(device, "name"));
            if ((taught = json_object_get(device, "taught")))
                bad |= json_object_set(plan_inputs_find(json_object_get(document, "devices"), "name", name),
                                       "taught", (json_t *)(uintptr_t)taught);
            if (!profile)
                continue;
            bad |= json_object_set(profile, "device", json_object_get(device, "name"));
            bad |= json_array_append_new(profiles, profile); /* the last profile of a device counts */
        }
    }
    return bad;
}

int plan_inputs_keep_names(json_t *document, struct err *err)
{
    static const char *const keys[2] = {"devices", "exclude"};
    json_t *placement = json_object_get(json_object_get(document, "spec"), "placement");
    const json_t *devices = json_object_get(document, "devices");
    int bad = 0;
    for (int k = 0; k < 2 && json_is_object(placement); k++) {
        json_t *left = json_array(), *name;
        size_t index;
        json_array_foreach (json_object_get(placement, keys[k]), index, name)
            if (plan_inputs_find(devices, "name", json_string_value(name)))
                bad |= json_array_append(left, name);
        bool any = k == 0 && json_array_size(left) == 0; /* without a name any device may be used */
        bad |= json_object_set_new(placement, keys[k], any ? json_null() : json_incref(left));
        json_decref(left);
    }
    return bad ? err_set(err, ERR_NOMEM, "out of memory for a placement") : 0;
}

int plan_inputs_cluster(json_t *document, const json_t *cluster_file, struct err *err)
{
    struct cluster *cluster = cluster_from_json(cluster_file, err);
    if (!cluster)
        return -1;
    json_t *nodes = json_array();
    int bad = !nodes;
    for (uint32_t n = 0; n < cluster->node_count; n++)
        if (cluster->nodes[n].nic_bytes_per_s > 0)
            bad |=
                json_array_append_new(nodes, json_pack("{s:s,s:f}", "name", cluster->nodes[n].name,
                                                       "nic_bytes_per_s", cluster->nodes[n].nic_bytes_per_s));
    bad |= json_object_set_new(document, "nodes", nodes);
    bad |= json_object_set_new(document, "devices", inputs_devices_of(cluster));
    bad |= json_object_set_new(document, "links", links_of(cluster));
    bad |= json_object_set_new(
        document, "defaults",
        json_pack("{s:{s:f,s:f},s:{s:f,s:f}}", "within", "latency_s", cluster->within.latency_s,
                  "bytes_per_s", cluster->within.bytes_per_s, "between", "latency_s",
                  cluster->between.latency_s, "bytes_per_s", cluster->between.bytes_per_s));
    bad |= measured_take(document, cluster_file);
    cluster_destroy(cluster);
    return bad ? err_set(err, ERR_NOMEM, "out of memory for another cluster") : 0;
}

json_t *plan_rows_to_json(const struct row_size *sizes, uint32_t count)
{
    if (!sizes)
        return json_null();
    json_t *list = json_array();
    for (uint32_t i = 0; list && i < count; i++)
        json_array_append_new(list,
                              json_pack("[I,I]", (json_int_t)sizes[i].tokens, (json_int_t)sizes[i].labelled));
    return list;
}
