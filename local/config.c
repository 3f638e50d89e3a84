#include "local/config.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "common/json.h"
#include "common/planners.h"

static const char *const card_choices[] = {"all", "named", NULL};
static const char *const device_kinds[] = {"cpu", "cuda", "hip", "emulated", NULL};
static const char *const device_isas[] = {"native", "avx512", "avx2", "sse42", "warp32", "warp64", NULL};

static bool is_loopback(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, host, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, host, &v6) == 1)
        return IN6_IS_ADDR_LOOPBACK(&v6);
    return strcmp(host, "localhost") == 0;
}

/* Checks a name, which becomes part of paths, certificates and Redis users. */
static bool name_good(const char *name)
{
    const size_t size = strlen(name);
    return size >= 1 && size < LOCAL_NAME_BYTES && name[0] != '-' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == size;
}

/* Checks a device and returns it as given; the agent chooses what is left out. */
static json_t *device_read(struct json_reader *r)
{
    int kind = 0;
    int isa = 0;
    uint32_t threads = 1;
    uint32_t index = 0;
    uint64_t memory = 0;
    const char *like = NULL;
    jr_choice(r, "kind", JR_OPTIONAL, device_kinds, &kind);
    jr_choice(r, "isa", JR_OPTIONAL, device_isas, &isa);
    jr_u32(r, "threads", JR_OPTIONAL, 1, 1024, &threads);
    jr_u32(r, "index", JR_OPTIONAL, 0, 255, &index);
    jr_str(r, "like", JR_OPTIONAL, 1, 127, &like);
    jr_bytes(r, "memory", JR_OPTIONAL, (uint64_t)1 << 20, (uint64_t)1 << 50, &memory);
    return jr_finish(r) < 0 ? NULL : json_deep_copy(r->object);
}

/* Returns a CPU device with all cores and 60 % of the free memory, at least 64 MiB. */
static json_t *whole_machine(struct err *err)
{
    struct sysinfo info;
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (sysinfo(&info) < 0) {
        err_set(err, ERR_INTERNAL, "this machine does not tell its memory");
        return NULL;
    }
    const uint64_t free_bytes = ((uint64_t)info.freeram + info.bufferram) * info.mem_unit;
    const uint64_t memory =
        free_bytes / 10 * 6 > ((uint64_t)64 << 20) ? free_bytes / 10 * 6 : (uint64_t)64 << 20;
    json_t *device =
        json_pack("{s:s, s:I, s:I, s:s}", "kind", "cpu", "threads", (json_int_t)(cores > 0 ? cores : 1),
                  "memory_at_most", (json_int_t)memory, "isa", "native");
    if (!device)
        err_set(err, ERR_NOMEM, "out of memory for a device");
    return device;
}

static const char *const sandboxes[] = {"auto", "required", "off", NULL};

static json_t *agent_read(struct json_reader *r)
{
    const char *name = NULL;
    const char *address = NULL;
    const json_t *devices = NULL;
    const json_t *exclude = NULL;
    double throttle_window_s = 0;
    int cards = -1;
    int sandbox = 0;
    if (jr_str(r, "name", JR_REQUIRED, 1, LOCAL_NAME_BYTES - 1, &name) > 0 && !name_good(name))
        jr_fail(r, "name", "\"%s\" may have lower-case letters, digits and '-' only", name);
    jr_str(r, "address", JR_OPTIONAL, 1, 255, &address);
    const bool says_cards = jr_choice(r, "cards", JR_OPTIONAL, card_choices, &cards) == 1;
    jr_array(r, "exclude", JR_OPTIONAL, 0, LOCAL_DEVICES_MAX, &exclude);
    jr_choice(r, "sandbox", JR_OPTIONAL, sandboxes, &sandbox);
    jr_seconds(r, "throttle_window", JR_OPTIONAL, 1, 3600, &throttle_window_s);
    const bool lists = jr_array(r, "devices", JR_OPTIONAL, 1, LOCAL_DEVICES_MAX, &devices) == 1;
    if (jr_finish(r) < 0)
        return NULL;
    if (!says_cards) /* as an agent does by itself: a list of devices is all that is used */
        cards = lists ? 1 : 0;
    json_t *whole = lists ? NULL : whole_machine(r->err);
    json_t *list = whole ? json_pack("[o]", whole) : json_array();
    if (!lists && !whole) {
        json_decref(list);
        return NULL;
    }
    for (size_t i = 0; i < json_array_size(devices); i++) {
        struct json_reader item;
        json_t *device = jr_item(r, "devices", devices, i, &item) < 0 ? NULL : device_read(&item);
        if (!device || json_array_append_new(list, device) < 0) {
            json_decref(list);
            return NULL;
        }
    }
    json_t *agent =
        json_pack("{s:s, s:o, s:s, s:s, s:O*}", "name", name, "devices", list, "cards", card_choices[cards],
                  "sandbox", sandboxes[sandbox], "exclude", (json_t *)(uintptr_t)exclude);
    if (address)
        json_object_set_new(agent, "address", json_string(address));
    if (throttle_window_s > 0)
        json_object_set_new(agent, "throttle_window", json_real(throttle_window_s));
    return agent;
}

static json_t *agents_read(struct json_reader *r)
{
    const json_t *agents = NULL;
    if (jr_array(r, "agents", JR_REQUIRED, 0, LOCAL_AGENTS_MAX, &agents) < 0)
        return NULL;
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(agents); i++) {
        struct json_reader item;
        json_t *agent = jr_item(r, "agents", agents, i, &item) < 0 ? NULL : agent_read(&item);
        for (size_t j = 0; agent && j < json_array_size(list); j++) {
            const char *other = json_string_value(json_object_get(json_array_get(list, j), "name"));
            if (strcmp(other, json_string_value(json_object_get(agent, "name"))) == 0) {
                jr_fail(r, "agents", "the name \"%s\" stands there twice", other);
                json_decref(agent);
                agent = NULL;
            }
        }
        if (!agent || json_array_append_new(list, agent) < 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static bool agent_known(const json_t *agents, const char *name)
{
    for (size_t i = 0; i < json_array_size(agents); i++)
        if (strcmp(json_string_value(json_object_get(json_array_get(agents, i), "name")), name) == 0)
            return true;
    return false;
}

/* Checks the links, which are passed on unchanged. */
static int links_check(struct json_reader *r, const json_t *links, const json_t *agents)
{
    for (size_t i = 0; i < json_array_size(links); i++) {
        struct json_reader item;
        const json_t *between = NULL;
        double rate = 0;
        double latency = 0;
        if (jr_item(r, "links", links, i, &item) < 0)
            return -1;
        jr_array(&item, "between", JR_REQUIRED, 2, 2, &between);
        jr_rate(&item, "rate", JR_REQUIRED, 1000, 1e15, &rate);
        jr_seconds(&item, "latency", JR_OPTIONAL, 0, 60, &latency);
        for (size_t side = 0; side < json_array_size(between); side++) {
            const char *name = json_string_value(json_array_get(between, side));
            if (!name || !agent_known(agents, name)) {
                return jr_fail(&item, "between", "\"%.64s\" is not the name of an agent here",
                               name ? name : "");
            }
        }
        if (jr_finish(&item) < 0)
            return -1;
    }
    return 0;
}

/* Checks the planners, which are passed on unchanged. */
static int planners_check(struct json_reader *r, struct local_config *config)
{
    struct planners planners;
    const int status = planners_read(r, &planners);
    planners_fini(&planners);
    config->planner = json_object_get(r->object, "planner");
    config->planners = json_object_get(r->object, "planners");
    return status;
}

/* Parses "HOST", "HOST:PORT" or "[V6]:PORT" into config->host and port. */
static int listen_read(struct json_reader *r, struct local_config *config)
{
    const char *text = "127.0.0.1";
    if (jr_str(r, "listen", JR_OPTIONAL, 1, sizeof(config->host) - 1, &text) < 0)
        return -1;
    const char *colon = strrchr(text, ':');
    const bool bracket = text[0] == '[';
    const bool has_port = colon && (bracket ? colon > text && colon[-1] == ']' : strchr(text, ':') == colon);
    size_t size = has_port ? (size_t)(colon - text) : strlen(text);
    if (has_port) {
        char *end;
        const unsigned long port = strtoul(colon + 1, &end, 10);
        if (colon[1] < '0' || colon[1] > '9' || *end != '\0' || port > 65535)
            return jr_fail(r, "listen", "\"%s\" is not HOST or HOST:PORT", text);
        config->port = (uint16_t)port;
    }
    if (bracket) {
        text++;
        size -= size > 1 ? 2 : 1;
    }
    snprintf(config->host, sizeof(config->host), "%.*s", (int)size, text);
    return config->host[0] != '\0' ? 0 : jr_fail(r, "listen", "there is no host in it");
}

/* Reads everything except the agents. */
static int service_read(struct json_reader *r, struct local_config *config)
{
    uint32_t redis_port = 0;
    if (listen_read(r, config) < 0)
        return -1;
    const char *advertise = config->host;
    jr_str(r, "advertise", JR_OPTIONAL, 1, sizeof(config->advertise) - 1, &advertise);
    snprintf(config->advertise, sizeof(config->advertise), "%s", advertise);
    if (strcmp(advertise, "0.0.0.0") == 0 || strcmp(advertise, "::") == 0)
        return jr_fail(
            r, "advertise",
            "%s is every address of this machine: give the name or address by which others reach it",
            advertise);
    jr_u32(r, "redis_port", JR_OPTIONAL, 0, 65535, &redis_port);
    config->redis_port = (uint16_t)redis_port;
    config->schedulers = 1;
    jr_u32(r, "schedulers", JR_OPTIONAL, 1, LOCAL_SCHEDULERS_MAX, &config->schedulers);
    config->certificate_seconds = 30 * 86400;
    jr_seconds(r, "certificates", JR_OPTIONAL, 10, 90 * 86400, &config->certificate_seconds);
    config->tls = !is_loopback(config->host);
    jr_bool(r, "tls", JR_OPTIONAL, &config->tls);
    jr_object(r, "sharing", JR_OPTIONAL, &config->sharing);
    jr_object(r, "hub", JR_OPTIONAL, &config->hub);
    jr_array(r, "links", JR_OPTIONAL, 0, LOCAL_AGENTS_MAX * LOCAL_AGENTS_MAX, &config->links);
    if (!r->failed && !config->tls && !is_loopback(config->host))
        jr_fail(r, "tls", "can be off on a loopback address only, not on %s", config->host);
    return r->failed ? -1 : 0;
}

int local_config_parse(const json_t *document, struct local_config *config, struct err *err)
{
    struct json_reader r;
    json_t *agents = NULL;
    *config = (struct local_config){0};
    jr_init(&r, document, "", err);
    if (service_read(&r, config) < 0)
        goto fail;
    agents = agents_read(&r);
    if (!agents || links_check(&r, config->links, agents) < 0 || planners_check(&r, config) < 0 ||
        jr_finish(&r) < 0) {
        goto fail;
    }
    char listen[300];
    snprintf(listen, sizeof(listen), strchr(config->host, ':') ? "[%s]:%u" : "%s:%u", config->host,
             config->port);
    config->document = json_pack(
        "{s:s, s:s, s:I, s:b, s:I, s:f, s:o, s:O*, s:O*, s:O*, s:O*, s:O*}", "listen", listen, "advertise",
        config->advertise, "redis_port", (json_int_t)config->redis_port, "tls", config->tls ? 1 : 0,
        "schedulers", (json_int_t)config->schedulers, "certificates", config->certificate_seconds, "agents",
        agents, "links", (json_t *)config->links, "planner", (json_t *)config->planner, "planners",
        (json_t *)config->planners, "sharing", (json_t *)config->sharing, "hub", (json_t *)config->hub);
    agents = NULL;
    if (!config->document) {
        err_set(err, ERR_NOMEM, "out of memory for a configuration");
        goto fail;
    }
    config->agents = json_object_get(config->document, "agents");
    config->links = json_object_get(config->document, "links");
    config->planner = json_object_get(config->document, "planner");
    config->planners = json_object_get(config->document, "planners");
    config->sharing = json_object_get(config->document, "sharing");
    config->hub = json_object_get(config->document, "hub");
    return 0;
fail:
    json_decref(agents);
    *config = (struct local_config){0};
    return -1;
}

void local_config_fini(struct local_config *config)
{
    json_decref(config->document);
    *config = (struct local_config){0};
}

json_t *local_config_default(struct err *err)
{
    json_t *device = whole_machine(err);
    json_t *document = device ? json_pack("{s:[{s:s, s:s, s:[o]}]}", "agents", "name", "local", "cards",
                                          "all", "devices", device)
                              : NULL;
    if (device && !document)
        err_set(err, ERR_NOMEM, "out of memory for a configuration");
    return document;
}
