#include "agent/config.h"

#include <ctype.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/cards.h"
#include "agent/machine.h"
#include "common/clock.h"
#include "common/json.h"

#define CACHE_LIMIT ((uint64_t)20 << 30)
#define JOURNAL_LIMIT ((uint64_t)128 << 20)
#define THROTTLE_WINDOW_S 60
#define GRACE_S 120

enum device_kind_rule { KIND_CPU, KIND_CUDA, KIND_HIP, KIND_EMULATED, KIND_PACED };
static const char *const kinds[] = {"cpu", "cuda", "hip", "emulated", "paced", NULL};
static const char *const isas[] = {"native", "amx", "avx512-bf16", "avx512", "avx2", "sse42", NULL};
static const char *const card_choices[] = {"all", "named", NULL};
static const char *const warps[] = {"warp32", "warp64", NULL};
const char *const agent_sandboxes[] = {"auto", "required", "off", NULL};
static const uint64_t IMITATED_MEMORY = (uint64_t)1 << 30;
static const uint64_t CPU_BYTES_LEAST = (uint64_t)1 << 30; /* of a CPU that shares its memory with a card */

static bool name_valid(const char *name)
{
    size_t length = strlen(name);
    for (size_t i = 0; i < length; i++) {
        char c = name[i];
        if (!(islower((unsigned char)c) || isdigit((unsigned char)c) || (c == '-' && i > 0)))
            return false;
    }
    return length > 0 && length < AGENT_NAME_SIZE;
}

/* Makes a node's name from the host's. */
static void name_default(char name[AGENT_NAME_SIZE])
{
    char host[256] = "node";
    gethostname(host, sizeof(host) - 1);
    size_t used = 0;
    for (const char *at = host; *at != '\0' && *at != '.' && used < AGENT_NAME_SIZE - 1; at++) {
        char c = (char)tolower((unsigned char)*at);
        if (islower((unsigned char)c) || isdigit((unsigned char)c) || (c == '-' && used > 0))
            name[used++] = c;
    }
    name[used] = '\0';
    if (used == 0)
        snprintf(name, AGENT_NAME_SIZE, "node");
}

static int isa_check(struct json_reader *reader, const char *isa)
{
    if (strcmp(isa, "native") != 0 && isa_rank(isa) > isa_rank(isa_native()))
        return jr_fail(reader, "isa", "this CPU has no %s, its best is %s", isa, isa_native());
    return 0;
}

/* Reads the rates of a paced device. */
static void config_pace_read(struct json_reader *reader, struct agent_pace *pace)
{
    struct json_reader rates;
    *pace = (struct agent_pace){.bus_bytes_per_s = 1e10};
    jr_sub(reader, "pace", JR_REQUIRED, &rates);
    jr_f64(&rates, "flops", JR_REQUIRED, 1, 1e18, &pace->flops);
    pace->flops_16 = pace->flops;
    jr_f64(&rates, "flops_16", JR_OPTIONAL, 1, 1e18, &pace->flops_16);
    jr_f64(&rates, "bytes_per_s", JR_REQUIRED, 1, 1e18, &pace->bytes_per_s);
    jr_f64(&rates, "bus_bytes_per_s", JR_OPTIONAL, 1, 1e18, &pace->bus_bytes_per_s);
    jr_f64(&rates, "launch_s", JR_OPTIONAL, 0, 1, &pace->launch_s);
    jr_finish(&rates);
}

/* Reads the keys of a card, or of what imitates one. `isa` is allowed only for an emulated one, `pace` for a
 * paced one. */
static void card_read(struct json_reader *reader, enum device_kind_rule kind, uint32_t index,
                      struct agent_device *device)
{
    const char *like = "";
    int warp = 0;
    const bool imitates = kind == KIND_EMULATED || kind == KIND_PACED;
    device->threads = 1;
    device->memory_limit_bytes = imitates ? IMITATED_MEMORY : 0;
    device->index = imitates ? index : 0;
    jr_u32(reader, "index", imitates ? JR_OPTIONAL : JR_REQUIRED, 0, 255, &device->index);
    if (kind != KIND_PACED)
        jr_str(reader, "like", JR_OPTIONAL, 1, sizeof(device->like) - 1, &like);
    if (kind == KIND_EMULATED)
        jr_choice(reader, "isa", JR_OPTIONAL, warps, &warp);
    if (kind == KIND_PACED)
        config_pace_read(reader, &device->pace);
    snprintf(device->like, sizeof(device->like), "%s", like);
    snprintf(device->isa, sizeof(device->isa), "%s", kind == KIND_EMULATED ? warps[warp] : "native");
}

static void config_device_name(struct agent_config *config, struct agent_device *device, uint32_t number)
{
    char node[AGENT_NAME_SIZE],
        kind[sizeof(device->kind)]; /* copied because 'config' may hold all three strings */
    memcpy(node, config->name, sizeof(node));
    memcpy(kind, device->kind, sizeof(kind));
    snprintf(device->name, sizeof(device->name), "%s/%s%u", node, kind, number);
}

static int config_device_read(struct json_reader *reader, struct agent_config *config, uint32_t index)
{
    struct agent_device *device = &config->devices[index];
    int kind = 0;
    int isa = 0;
    jr_choice(reader, "kind", JR_OPTIONAL, kinds, &kind);
    snprintf(device->kind, sizeof(device->kind), "%s", kinds[kind]);
    if (kind == KIND_CPU) {
        device->threads = cpu_count();
        device->memory_limit_bytes = memory_total_bytes() / 10 * 8;
        jr_choice(reader, "isa", JR_OPTIONAL, isas, &isa);
        jr_u32(reader, "threads", JR_OPTIONAL, 1, 1024, &device->threads);
        jr_bytes(reader, "memory_at_most", JR_OPTIONAL, 1u << 20, (uint64_t)1 << 50,
                 &device->memory_limit_bytes);
        snprintf(device->isa, sizeof(device->isa), "%s", isas[isa]);
        if (!reader->failed)
            isa_check(reader, isas[isa]);
    } else {
        card_read(reader, (enum device_kind_rule)kind, index, device);
    }
    device->configured = jr_bytes(reader, "memory", JR_OPTIONAL, 1u << 20, (uint64_t)1 << 50,
                                  &device->memory_limit_bytes) == 1;
    config_device_name(config, device, kind == KIND_CPU ? index : device->index);
    for (uint32_t i = 0; i < index && !reader->failed; i++)
        if (strcmp(config->devices[i].name, device->name) == 0)
            jr_fail(reader, "index", "card %s stands there twice", device->name);
    return jr_finish(reader);
}

static int devices_read(struct json_reader *reader, struct agent_config *config)
{
    const json_t *devices = NULL;
    int found = jr_array(reader, "devices", JR_OPTIONAL, 1, AGENT_DEVICES_MAX, &devices);
    if (found < 0)
        return -1;
    config->all_cards = found == 0;
    config->device_count = found == 1 ? (uint32_t)json_array_size(devices) : 1;
    json_t *none = found == 1 ? NULL : json_pack("[{}]");
    int result = 0;
    for (uint32_t i = 0; result == 0 && i < config->device_count; i++) {
        struct json_reader device;
        result = jr_item(reader, "devices", found == 1 ? devices : none, i, &device);
        result = result < 0 ? -1 : config_device_read(&device, config, i);
    }
    json_decref(none);
    return result;
}

/* Reads "host", "host:port", "[v6]:port" or a bare IPv6 address. */
static int config_address_read(struct json_reader *reader, const char *address, struct agent_config *config)
{
    const char *colon = strrchr(address, ':');
    bool bracket = address[0] == '[';
    bool has_port = colon && (bracket ? colon[-1] == ']' : strchr(address, ':') == colon);
    size_t length = has_port ? (size_t)(colon - address) : strlen(address);
    if (has_port) {
        char *end;
        long port = strtol(colon + 1, &end, 10);
        if (!isdigit((unsigned char)colon[1]) || *end != '\0' || port < 1 || port > 65535)
            return jr_fail(reader, "address", "\"%s\" is no host or host:port", address);
        config->port = (uint16_t)port;
    }
    if (bracket && length > 2 && address[length - 1] == ']') {
        address++;
        length -= 2;
    }
    if (length == 0 || length >= sizeof(config->host))
        return jr_fail(reader, "address", "a host has 1 to %zu characters", sizeof(config->host) - 1);
    snprintf(config->host, sizeof(config->host), "%.*s", (int)length, address);
    return 0;
}

/* Reads "7000-7015". */
static int ports_read(struct json_reader *reader, struct agent_config *config)
{
    const char *ports = NULL;
    unsigned first = 0, last = 0;
    char end[6] = "";
    int used = 0;
    if (jr_str(reader, "ports", JR_OPTIONAL, 1, 11, &ports) != 1)
        return 0;
    if (!isdigit((unsigned char)ports[0]) || sscanf(ports, "%5u-%5[0-9]%n", &first, end, &used) != 2 ||
        ports[used] != '\0')
        first = 0;
    last = (unsigned)strtoul(end, NULL, 10);
    if (first < 1 || last < first || last > UINT16_MAX)
        return jr_fail(reader, "ports", "\"%s\" is no range of ports such as 7000-7015", ports);
    config->port_first = (uint16_t)first;
    config->port_last = (uint16_t)last;
    return 0;
}

static int until_read(struct json_reader *reader, struct agent_config *config)
{
    const char *until = NULL;
    if (jr_str(reader, "until", JR_OPTIONAL, 1, 64, &until) == 1 &&
        clock_rfc3339_parse(until, &config->until_us) < 0)
        return jr_fail(reader, "until", "\"%s\" is no time such as 2026-12-24T18:00:00Z", until);
    return 0;
}

int agent_config_read(const json_t *document, const char *fallback_host, struct agent_config *config,
                      struct err *err)
{
    *config = (struct agent_config){.cache_limit_bytes = CACHE_LIMIT, .journal_limit_bytes = JOURNAL_LIMIT};
    name_default(config->name);
    snprintf(config->host, sizeof(config->host), "%s", fallback_host);
    json_t *empty = !document ? json_object() : NULL;
    struct json_reader reader;
    jr_init(&reader, !document ? empty : document, "", err);
    const char *name = config->name;
    const char *address = NULL;
    jr_str(&reader, "name", JR_OPTIONAL, 1, AGENT_NAME_SIZE - 1, &name);
    if (!reader.failed && !name_valid(name))
        jr_fail(&reader, "name", "\"%s\" is not 1 to 64 of a-z, 0-9 and -", name);
    if (name != config->name)
        snprintf(config->name, sizeof(config->name), "%s", name);
    if (jr_str(&reader, "address", JR_OPTIONAL, 1, 300, &address) == 1)
        config_address_read(&reader, address, config);
    const char *local = config->host;
    jr_str(&reader, "listen", JR_OPTIONAL, 1, sizeof(config->listen) - 1, &local);
    snprintf(config->listen, sizeof(config->listen), "%s", local);
    ports_read(&reader, config);
    jr_bytes(&reader, "cache", JR_OPTIONAL, 0, (uint64_t)1 << 50, &config->cache_limit_bytes);
    jr_bytes(&reader, "journal", JR_OPTIONAL, 1u << 20, (uint64_t)1 << 40, &config->journal_limit_bytes);
    jr_array(&reader, "exclude", JR_OPTIONAL, 0, AGENT_DEVICES_MAX, &config->exclude);
    config->throttle_window_s = THROTTLE_WINDOW_S;
    jr_seconds(&reader, "throttle_window", JR_OPTIONAL, 1, 3600, &config->throttle_window_s);
    config->grace_s = GRACE_S;
    jr_seconds(&reader, "grace", JR_OPTIONAL, 1, 86400, &config->grace_s);
    until_read(&reader, config);
    jr_str(&reader, "private", JR_OPTIONAL, 1, 4095, &config->private);
    jr_choice(&reader, "sandbox", JR_OPTIONAL, agent_sandboxes, &config->sandbox);
    devices_read(&reader, config);
    int cards = config->all_cards ? 0 : 1;
    jr_choice(&reader, "cards", JR_OPTIONAL, card_choices, &cards);
    config->all_cards = cards == 0;
    int result = jr_finish(&reader);
    json_decref(empty);
    return result;
}

/* ---- cards ---- */

static bool card_excluded(const struct agent_config *config, const json_t *card)
{
    char number[48];
    const json_t *item;
    size_t i;
    snprintf(number, sizeof(number), "%s:%lld", json_text_of(card, "kind"),
             (long long)json_integer_value(json_object_get(card, "index")));
    json_array_foreach ((json_t *)config->exclude, i, item) {
        const char *name = json_string_value(item);
        if (name && *name != '\0' &&
            (strcmp(name, number) == 0 || strcmp(name, json_text_of(card, "uuid")) == 0 ||
             strcmp(name, json_text_of(card, "pci")) == 0)) {
            return true;
        }
    }
    return false;
}

/* Marks a card of the list as not used, with the reason. */
static void card_refuse(json_t *card, const char *why)
{
    json_object_set_new(card, "usable", json_false());
    json_object_set_new(card, "why", json_string(why));
}

/* The same where the owner of the machine chose so: doctor_look names it as no fault. */
static void card_leave_out(json_t *card, const char *why)
{
    card_refuse(card, why);
    json_object_set_new(card, "left_out", json_true());
}

/* Uses a card as `device`. False when it is not used; `card` then has the reason. */
static bool card_take(const struct agent_config *config, json_t *card, struct agent_device *device)
{
    struct err err;
    /* A worker of our own that runs there from before this start takes memory, and alone may take the card,
     * if that admits one process. */
    const json_int_t held = json_integer_value(json_object_get(config->held, device->name));
    if (held > 0 && json_is_true(json_object_get(card, "exclusive"))) {
        json_object_set_new(card, "usable", json_true());
        json_object_set_new(card, "why", json_null());
    }
    if (card_excluded(config, card))
        card_leave_out(card, "the configuration excludes it");
    if (!json_is_true(json_object_get(card, "usable")))
        return false;
    json_int_t available = json_integer_value(json_object_get(card, "free_bytes"));
    uint64_t usable = held > 0 ? (uint64_t)held : card_memory_share(available > 0 ? (uint64_t)available : 0);
    if (device->memory_limit_bytes == 0)
        device->memory_limit_bytes = usable;
    if (device->memory_limit_bytes > (uint64_t)json_integer_value(json_object_get(card, "memory_bytes")) ||
        device->memory_limit_bytes < 1u << 20) {
        char why[160];
        snprintf(why, sizeof(why), "%lld of its %lld bytes are free, %llu were asked for",
                 (long long)json_integer_value(json_object_get(card, "free_bytes")),
                 (long long)json_integer_value(json_object_get(card, "memory_bytes")),
                 (unsigned long long)device->memory_limit_bytes);
        card_refuse(card, why);
        return false;
    }
    if (card_lock(card, &device->lock, &err) < 0) {
        card_refuse(card, err.text);
        return false;
    }
    device->locked = device->lock >= 0;
    if (device->like[0] == '\0')
        snprintf(device->like, sizeof(device->like), "%s", json_text_of(card, "name"));
    snprintf(device->arch, sizeof(device->arch), "%s", json_text_of(card, "arch"));
    snprintf(device->visible, sizeof(device->visible), "%s", json_text_of(card, "visible"));
    json_int_t base = json_integer_value(json_object_get(card, "base_bytes"));
    device->base_bytes = base > 0 ? (uint64_t)base : 0;
    json_object_set_new(card, "device", json_string(device->name));
    return true;
}

/* Returns why a named card is not in the list: the driver's own reason if it reports no cards. */
static const char *card_missing(const struct agent_config *config, const char *kind)
{
    const json_t *driver;
    size_t i;
    json_array_foreach (json_object_get(config->cards, "drivers"), i, driver) {
        if (strcmp(json_text_of(driver, "kind"), kind) == 0 && json_text_of(driver, "why")[0] != '\0')
            return json_text_of(driver, "why");
    }
    return "the driver shows no such card";
}

/* Keeps the named devices that exist and can be used. */
static void named_cards(struct agent_config *config, json_t *list)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < config->device_count; i++) {
        struct agent_device device = config->devices[i];
        bool real = strcmp(device.kind, "cuda") == 0 || strcmp(device.kind, "hip") == 0;
        json_t *card = real ? (json_t *)cards_find(config->cards, device.kind, device.index) : NULL;
        if (real && !card) {
            json_array_append_new(list, json_pack("{s:s, s:i, s:s, s:b, s:s}", "kind", device.kind, "index",
                                                  (int)device.index, "device", device.name, "usable", 0,
                                                  "why", card_missing(config, device.kind)));
        } else if (!real || card_take(config, card, &device)) {
            config->devices[kept++] = device;
        }
    }
    config->device_count = kept;
}

/* Adds a line for a driver that cannot be used, or is missing although its vendor's cards are present,
 * because such a driver has no cards to carry the reason. */
static void refused_drivers(const struct agent_config *config, json_t *list)
{
    json_t *driver, *gpu, *gpus = machine_gpus();
    size_t i, k;
    json_array_foreach (json_object_get(config->cards, "drivers"), i, driver) {
        const char *kind = json_text_of(driver, "kind");
        bool wanted =
            json_text_of(driver, "why")[0] != '\0' && !json_is_true(json_object_get(driver, "missing"));
        json_array_foreach (gpus, k, gpu) {
            const char *vendor = json_text_of(gpu, "vendor");
            wanted = wanted || (json_text_of(driver, "why")[0] != '\0' &&
                                strcmp(kind, strcmp(vendor, "nvidia") == 0 ? "cuda"
                                             : strcmp(vendor, "amd") == 0  ? "hip"
                                                                           : "none") == 0);
        }
        json_array_foreach (list, k, gpu) {
            wanted = wanted && strcmp(json_text_of(gpu, "kind"), kind) != 0;
        }
        if (wanted) {
            json_array_append_new(list, json_pack("{s:s, s:b, s:O}", "kind", *kind != '\0' ? kind : "cards",
                                                  "usable", 0, "why", json_object_get(driver, "why")));
        }
    }
    json_decref(gpus);
}

/* Says of cards that could be used why they are not: the configuration lists devices, and not these. */
static void unnamed_cards(json_t *list)
{
    json_t *card;
    size_t i;
    json_array_foreach (list, i, card)
        if (!json_object_get(card, "device") && json_is_true(json_object_get(card, "usable")))
            card_leave_out(card,
                           "the configuration lists devices, and not this card: add {kind: KIND, index: N}, "
                           "or `cards: all`");
}

/* The same of cards that no driver was asked for. */
json_t *agent_config_no_cards(void)
{
    int count = 0;
    size_t i;
    json_t *gpu, *gpus = machine_gpus();
    json_array_foreach (gpus, i, gpu)
        count += strcmp(json_text_of(gpu, "vendor"), "nvidia") == 0 ||
                 strcmp(json_text_of(gpu, "vendor"), "amd") == 0;
    json_decref(gpus);
    char why[200];
    snprintf(
        why, sizeof(why),
        "the configuration lists devices, and none of this machine's %d cards: add {kind: cuda, index: 0} "
        "(or hip), or `cards: all`",
        count);
    return count == 0 ? NULL
                      : json_pack("{s:[], s:[{s:s, s:b, s:b, s:s}]}", "drivers", "cards", "kind", "cards",
                                  "usable", 0, "left_out", 1, "why", why);
}

static void found_cards(struct agent_config *config, json_t *list)
{
    json_t *card;
    size_t i;
    json_array_foreach (list, i, card) {
        struct agent_device device = {.threads = 1, .isa = "native"};
        if (json_object_get(card, "device"))
            continue; /* already used, because the configuration names this card */
        snprintf(device.kind, sizeof(device.kind), "%s", json_text_of(card, "kind"));
        device.index = (uint32_t)json_integer_value(json_object_get(card, "index"));
        if (strcmp(device.kind, "emulated") == 0)
            snprintf(device.isa, sizeof(device.isa), "%s", warps[0]);
        config_device_name(config, &device, device.index);
        if (config->device_count == AGENT_DEVICES_MAX)
            card_refuse(card, "an agent has at most 64 devices");
        else if (card_take(config, card, &device))
            config->devices[config->device_count++] = device;
    }
}

/* Divides the host's memory between the integrated cards that are used and the CPU: a plan takes them for two
 * memories. A CPU that has no memory left is not used. */
static void memory_divide(struct agent_config *config, json_t *list)
{
    uint64_t shared = 0, kept = 0;
    for (uint32_t i = 0; i < config->device_count; i++) {
        const struct agent_device *device = &config->devices[i];
        const json_t *card = cards_find(config->cards, device->kind, device->index);
        if (json_is_true(json_object_get(card, "integrated")))
            shared += device->memory_limit_bytes + device->base_bytes;
    }
    for (uint32_t i = 0; i < config->device_count; i++) {
        struct agent_device *device = &config->devices[i];
        const uint64_t limit = device->memory_limit_bytes;
        if (strcmp(device->kind, "cpu") == 0 && !device->configured)
            device->memory_limit_bytes = limit > shared ? limit - shared : 0;
        if (device->memory_limit_bytes >= CPU_BYTES_LEAST || device->memory_limit_bytes == limit)
            config->devices[kept++] = *device;
        else
            json_array_append_new(list,
                                  json_pack("{s:s, s:s, s:b, s:s}", "kind", "cpu", "device", device->name,
                                            "usable", 0, "why",
                                            "the card has the same memory and takes most of it: give both "
                                            "a `memory` in `devices` to use both"));
    }
    config->device_count = (uint32_t)kept;
}

/* Each worker needs a port while it runs, and the agent one for as long as it does. */
int agent_config_ports(const struct agent_config *config, struct err *err)
{
    const uint32_t has = config->port_last - config->port_first + 1u;
    const uint32_t needs = config->device_count + (config->port == 0);
    if (config->port_first == 0 || has >= needs)
        return 0;
    return err_set(err, ERR_INVALID, "ports: %u-%u has %u, and %u are needed: one for each device%s",
                   config->port_first, config->port_last, has, needs,
                   config->port == 0 ? ", and one for measuring links" : "");
}

int agent_config_cards(struct agent_config *config, json_t *cards, struct err *err)
{
    json_t *list = json_object_get(cards, "cards");
    config->cards = cards;
    if (!list)
        return err_set(err, ERR_INTERNAL, "a list of cards without cards");
    named_cards(config, list);
    if (config->all_cards)
        found_cards(config, list);
    else
        unnamed_cards(list);
    memory_divide(config, list);
    refused_drivers(config, list);
    json_t *card;
    size_t i;
    json_array_foreach (list, i, card) {
        json_object_del(card, "free_bytes"); /* an inventory has stable properties only */
        json_object_del(card, "exclusive");
    }
    return agent_config_ports(config, err);
}

void agent_config_fini(struct agent_config *config)
{
    for (uint32_t i = 0; i < config->device_count; i++) {
        if (config->devices[i].locked)
            close(config->devices[i].lock);
        config->devices[i].locked = false;
    }
    json_decref(config->cards);
    json_decref(config->held);
    config->cards = config->held = NULL;
}

int agent_own_host(const char *url, char host[256], struct err *err)
{
    const char *at = strstr(url, "://");
    at = !at ? url : at + 3;
    bool bracket = *at == '[';
    size_t length = bracket ? strcspn(++at, "]") : strcspn(at, ":/");
    char server[256];
    snprintf(server, sizeof(server), "%.*s", (int)(length < 255 ? length : 255), at);
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM};
    struct addrinfo *found = NULL;
    int failed = getaddrinfo(server, "9", &hints, &found);
    if (failed != 0)
        return err_set(err, ERR_NET, "the host of \"%s\" is not known: %s", url, gai_strerror(failed));
    /* Connecting a datagram socket sends nothing; it only chooses the route. */
    struct sockaddr_storage own;
    socklen_t size = sizeof(own);
    int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int result = -1;
    if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
        getsockname(fd, (struct sockaddr *)&own, &size) == 0 &&
        getnameinfo((struct sockaddr *)&own, size, host, 256, NULL, 0, NI_NUMERICHOST) == 0) {
        result = 0;
    } else {
        err_set(err, ERR_NET, "no route to the host of \"%s\"; give this node's address in its configuration",
                url);
    }
    if (fd >= 0)
        close(fd);
    freeaddrinfo(found);
    return result;
}
