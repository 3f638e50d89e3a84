#include "local/config.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "common/doc.h"
#include "common/planners.h"

static const char *const card_choices[] = {"all", "named", NULL};
static const char *const device_kinds[] = {"cpu", "cuda", "hip", "emulated", "paced", NULL};
static const char *const device_isas[] = {"native", "amx",    "avx512-bf16", "avx512", "avx2",
                                          "sse42",  "warp32", "warp64",      NULL};

static bool config_is_loopback(const char *host)
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

/* A device is checked and passed on as it was given; the agent chooses what is left out. */
struct given_device {
    int kind, isa;
    uint32_t threads, index;
    uint64_t memory, memory_at_most;
    const char *like;
    const json_t *pace;
};
static const struct doc_field device_fields[] = {
    DOC_CHOICE("kind", given_device, kind, JR_OPTIONAL, 0, device_kinds, ""),
    DOC_CHOICE("isa", given_device, isa, JR_OPTIONAL, 0, device_isas, ""),
    DOC_NUM("threads", given_device, threads, JR_OPTIONAL, 1, 1, 1024, ""),
    DOC_NUM("index", given_device, index, JR_OPTIONAL, 0, 0, 255, ""),
    DOC_TEXT("like", given_device, like, JR_OPTIONAL, 1, 127, ""),
    DOC_JSON("pace", given_device, pace, JR_OPTIONAL, "", .flags = DOC_OBJECT),
    DOC_NUM("memory", given_device, memory, JR_OPTIONAL, 0, 1 << 20, INT64_C(1) << 50, "",
            .flags = DOC_BYTES),
    DOC_NUM("memory_at_most", given_device, memory_at_most, JR_OPTIONAL, 0, 1 << 20, INT64_C(1) << 50, "",
            .flags = DOC_BYTES),
};
static const struct doc device_doc = DOC(given_device, device_fields);

/* A service on one machine is stopped by a person who waits for it: jobs that need longer for a step go on
 * from their last checkpoint, unless the configuration gives them more. */
#define AGENT_GRACE_S 5

struct local_agent {
    char name[LOCAL_NAME_BYTES], address[256], listen[256], ports[12];
    json_t *devices, *exclude;
    int cards, sandbox; /* cards: -1: not given */
    double throttle_window_s, grace_s;
};

static void name_rule(struct json_reader *r, const struct doc_field *field, void *all)
{
    if (!name_good(all))
        jr_fail(r, field->key, "\"%s\" may have lower-case letters, digits and '-' only", (char *)all);
}

static void devices_rule(struct json_reader *r, const struct doc_field *field, void *all)
{
    const json_t *devices = ((struct local_agent *)all)->devices;
    for (size_t i = 0; i < json_array_size(devices) && !r->failed; i++) {
        struct json_reader item;
        struct given_device device;
        jr_item(r, field->key, devices, i, &item);
        if (doc_start(&device_doc, &device, r->err) == 0)
            doc_take(&device_doc, &item, &device);
    }
}

/* An agent without a list of devices uses all that its machine has; a list of devices is all that is used. */
static void agent_check(struct json_reader *r, void *all)
{
    struct local_agent *agent = all;
    if (agent->cards < 0)
        agent->cards = agent->devices ? 1 : 0;
    if (agent->devices)
        return;
    json_t *whole = whole_machine(r->err);
    if (!whole || !(agent->devices = json_pack("[o]", whole)))
        r->failed = r->parent->failed = true;
}

static const char *const sandboxes[] = {"auto", "required", "off", NULL};
static const struct doc_field agent_fields[] = {
    DOC_CHARS("name", local_agent, name, JR_REQUIRED, 1, "", .rule = name_rule),
    DOC_JSON("devices", local_agent, devices, JR_OPTIONAL, "", .flags = DOC_ARRAY, .min = 1,
             .max = LOCAL_DEVICES_MAX, .rule = devices_rule),
    DOC_CHOICE("cards", local_agent, cards, JR_OPTIONAL, -1, card_choices, ""),
    DOC_CHOICE("sandbox", local_agent, sandbox, JR_OPTIONAL, 0, sandboxes, ""),
    DOC_JSON("exclude", local_agent, exclude, JR_OPTIONAL, "", .flags = DOC_ARRAY, .max = LOCAL_DEVICES_MAX),
    DOC_CHARS("address", local_agent, address, JR_OPTIONAL, 1, "", .flags = DOC_SPARSE),
    DOC_CHARS("listen", local_agent, listen, JR_OPTIONAL, 1, "", .flags = DOC_SPARSE),
    DOC_CHARS("ports", local_agent, ports, JR_OPTIONAL, 1, "", .flags = DOC_SPARSE),
    DOC_NUM("throttle_window", local_agent, throttle_window_s, JR_OPTIONAL, 0, 1, 3600, "",
            .flags = DOC_SECONDS | DOC_SPARSE),
    DOC_NUM("grace", local_agent, grace_s, JR_OPTIONAL, AGENT_GRACE_S, 1, 3600, "", .flags = DOC_SECONDS),
};
static const struct doc agent_doc = DOC(local_agent, agent_fields, .check = agent_check);

static bool agent_known(const struct local_config *config, const char *name, uint32_t before)
{
    for (uint32_t i = 0; i < before; i++)
        if (strcmp(config->listed[i].name, name) == 0)
            return true;
    return false;
}

struct given_link {
    const json_t *between;
    double rate, latency;
};
static const struct doc_field link_fields[] = {
    DOC_JSON("between", given_link, between, JR_REQUIRED, "", .flags = DOC_ARRAY, .min = 2, .max = 2),
    DOC_NUM("rate", given_link, rate, JR_REQUIRED, 0, 1000, 1e15, "", .flags = DOC_RATE),
    DOC_NUM("latency", given_link, latency, JR_OPTIONAL, 0, 0, 60, "", .flags = DOC_SECONDS),
};
static const struct doc link_doc = DOC(given_link, link_fields);

static void links_rule(struct json_reader *r, const struct doc_field *field, void *all)
{
    const struct local_config *config = all;
    for (size_t i = 0; i < json_array_size(config->links) && !r->failed; i++) {
        struct json_reader item;
        struct given_link link = {0};
        jr_item(r, field->key, config->links, i, &item);
        doc_take(&link_doc, &item, &link);
        for (size_t side = 0; side < json_array_size(link.between); side++) {
            const char *name = json_string_value(json_array_get(link.between, side));
            if (!name || !agent_known(config, name, config->agent_count))
                jr_fail(&item, "between", "\"%.64s\" is not the name of an agent here", name ? name : "");
        }
    }
}

/* Parses "HOST", "HOST:PORT" or "[V6]:PORT" into host and port. */
static int listen_read(struct json_reader *r, const struct doc_field *field, void *at)
{
    struct local_config *config = at;
    const char *text = "127.0.0.1";
    if (jr_str(r, field->key, JR_OPTIONAL, 1, sizeof(config->host) - 1, &text) < 0)
        return -1;
    const char *colon = strrchr(text, ':');
    const bool bracket = text[0] == '[';
    const bool has_port = colon && (bracket ? colon > text && colon[-1] == ']' : strchr(text, ':') == colon);
    size_t size = has_port ? (size_t)(colon - text) : strlen(text);
    if (has_port) {
        char *end;
        const unsigned long port = strtoul(colon + 1, &end, 10);
        if (colon[1] < '0' || colon[1] > '9' || *end != '\0' || port > 65535)
            return jr_fail(r, field->key, "\"%s\" is not HOST or HOST:PORT", text);
        config->port = (uint16_t)port;
    }
    if (bracket) {
        text++;
        size -= size > 1 ? 2 : 1;
    }
    snprintf(config->host, sizeof(config->host), "%.*s", (int)size, text);
    config->tls = !config_is_loopback(config->host);
    return config->host[0] != '\0' ? 1 : jr_fail(r, field->key, "there is no host in it");
}

static int listen_write(const struct doc_field *field, const void *at, json_t *object)
{
    const struct local_config *config = at;
    return json_object_set_new(
        object, field->key,
        json_sprintf(strchr(config->host, ':') ? "[%s]:%u" : "%s:%u", config->host, config->port));
}

static const struct doc_form listen_form = {.read = listen_read, .write = listen_write};
_Static_assert(offsetof(struct local_config, host) == 0, "its form is given the whole configuration");

static void config_check(struct json_reader *r, void *all)
{
    struct local_config *config = all;
    struct planners planners;
    struct json_reader own;
    if (*config->advertise == '\0')
        snprintf(config->advertise, sizeof(config->advertise), "%s", config->host);
    if (strcmp(config->advertise, "0.0.0.0") == 0 || strcmp(config->advertise, "::") == 0)
        jr_fail(r, "advertise",
                "%s is every address of this machine: give the name or address by which others reach it",
                config->advertise);
    if (!config->tls && !config_is_loopback(config->host))
        jr_fail(r, "tls", "can be off on a loopback address only, not on %s", config->host);
    for (uint32_t i = 1; i < config->agent_count; i++)
        if (agent_known(config, config->listed[i].name, i))
            jr_fail(r, "agents", "the name \"%s\" stands there twice", config->listed[i].name);
    if (r->failed)
        return;
    jr_init(&own, r->object, "", r->err); /* planners are checked, and passed on unchanged */
    r->failed = planners_read(&own, &planners) < 0;
    planners_fini(&planners);
}

#define PASSED(key, member, kind, ...)                                                                       \
    DOC_JSON(key, local_config, member, JR_OPTIONAL, "", .flags = kind, __VA_ARGS__)
static const struct doc_field config_fields[] = {
    DOC_OTHER("listen", local_config, host, &listen_form, ""),
    DOC_CHARS("advertise", local_config, advertise, JR_OPTIONAL, 1, ""),
    DOC_NUM("redis_port", local_config, redis_port, JR_OPTIONAL, 0, 0, 65535, ""),
    DOC_FLAG("tls", local_config, tls, JR_OPTIONAL, false, ""),
    DOC_NUM("schedulers", local_config, schedulers, JR_OPTIONAL, 1, 1, LOCAL_SCHEDULERS_MAX, ""),
    DOC_NUM("certificates", local_config, certificate_seconds, JR_OPTIONAL, 30 * 86400, 10, 90 * 86400, "",
            .flags = DOC_SECONDS),
    DOC_STRUCTS("agents", local_config, listed, agent_count, JR_REQUIRED, 0, LOCAL_AGENTS_MAX, &agent_doc,
                ""),
    PASSED("links", links, DOC_ARRAY, .max = LOCAL_AGENTS_MAX * LOCAL_AGENTS_MAX, .rule = links_rule),
    PASSED("planner", planner, DOC_OBJECT),
    PASSED("planners", planners, DOC_OBJECT),
    PASSED("sharing", sharing, DOC_OBJECT),
    PASSED("hub", hub, DOC_OBJECT),
    PASSED("notify", notify, DOC_OBJECT),
    PASSED("oidc", oidc, DOC_OBJECT),
    PASSED("unix_socket", unix_socket, DOC_OBJECT),
    PASSED("proxies", proxies, DOC_ARRAY, .max = LOCAL_AGENTS_MAX),
    DOC_CHARS("proxy_user", local_config, proxy_user, JR_OPTIONAL, 1, "", .flags = DOC_SPARSE),
};
static const struct doc config_doc = DOC(local_config, config_fields, .check = config_check);

int local_config_parse(const json_t *document, struct local_config *config, struct err *err)
{
    if (doc_read(&config_doc, document, "", config, err) < 0)
        return -1;
    config->document = doc_write(&config_doc, config, err);
    config->agents = json_object_get(config->document, "agents");
    if (config->document)
        return 0;
    local_config_fini(config);
    return -1;
}

void local_config_fini(struct local_config *config)
{
    json_decref(config->document);
    doc_fini(&config_doc, config);
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
