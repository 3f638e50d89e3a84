#include "agent/config.h"

#include <ctype.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/machine.h"
#include "common/json.h"

#define CACHE_LIMIT ((uint64_t)20 << 30)
#define JOURNAL_LIMIT ((uint64_t)128 << 20)

static const char *const kinds[] = {"cpu", NULL};
static const char *const isas[] = {"native", "avx512", "avx2", "sse42", NULL};

static bool name_valid(const char *name)
{
    size_t length = strlen(name);
    for (size_t i = 0; i < length; i++) {
        char c = name[i];
        if (!(islower((unsigned char)c) || isdigit((unsigned char)c) || (c == '-' && i > 0))) {
            return false;
        }
    }
    return length > 0 && length < AGENT_NAME_SIZE;
}

/* The host's name made into a node's. */
static void name_default(char name[AGENT_NAME_SIZE])
{
    char host[256] = "node";
    gethostname(host, sizeof(host) - 1);
    size_t used = 0;
    for (const char *at = host; *at != '\0' && *at != '.' && used < AGENT_NAME_SIZE - 1; at++) {
        char c = (char)tolower((unsigned char)*at);
        if (islower((unsigned char)c) || isdigit((unsigned char)c) || (c == '-' && used > 0)) {
            name[used++] = c;
        }
    }
    name[used] = '\0';
    if (used == 0) {
        snprintf(name, AGENT_NAME_SIZE, "node");
    }
}

static int isa_check(struct json_reader *reader, const char *isa)
{
    if (strcmp(isa, "native") != 0 && isa_rank(isa) > isa_rank(isa_native())) {
        return jr_fail(reader, "isa", "this CPU has no %s, its best is %s", isa, isa_native());
    }
    return 0;
}

static int device_read(struct json_reader *reader, struct agent_config *config, uint32_t index)
{
    struct agent_device *device = &config->devices[index];
    int kind = 0;
    int isa = 0;
    device->threads = cpu_count();
    device->memory_limit_bytes = memory_total_bytes() / 10 * 8;
    jr_choice(reader, "kind", JR_OPTIONAL, kinds, &kind);
    jr_choice(reader, "isa", JR_OPTIONAL, isas, &isa);
    jr_u32(reader, "threads", JR_OPTIONAL, 1, 1024, &device->threads);
    jr_bytes(reader, "memory", JR_OPTIONAL, 1u << 20, (uint64_t)1 << 50, &device->memory_limit_bytes);
    if (!reader->failed) {
        isa_check(reader, isas[isa]);
    }
    snprintf(device->kind, sizeof(device->kind), "%s", kinds[kind]);
    snprintf(device->isa, sizeof(device->isa), "%s", isas[isa]);
    char node[AGENT_NAME_SIZE]; /* 'config' holds both */
    memcpy(node, config->name, sizeof(node));
    snprintf(device->name, sizeof(device->name), "%s/%s%u", node, kinds[kind], index);
    return jr_finish(reader);
}

static int devices_read(struct json_reader *reader, struct agent_config *config)
{
    const json_t *devices = NULL;
    int found = jr_array(reader, "devices", JR_OPTIONAL, 1, AGENT_DEVICES_MAX, &devices);
    if (found < 0) {
        return -1;
    }
    config->device_count = found == 1 ? (uint32_t)json_array_size(devices) : 1;
    json_t *none = found == 1 ? NULL : json_pack("[{}]");
    int result = 0;
    for (uint32_t i = 0; result == 0 && i < config->device_count; i++) {
        struct json_reader device;
        result = jr_item(reader, "devices", found == 1 ? devices : none, i, &device);
        result = result < 0 ? -1 : device_read(&device, config, i);
    }
    json_decref(none);
    return result;
}

/* "host", "host:port", "[v6]:port", or a bare v6 address. */
static int address_read(struct json_reader *reader, const char *address, struct agent_config *config)
{
    const char *colon = strrchr(address, ':');
    bool bracket = address[0] == '[';
    bool has_port = colon != NULL && (bracket ? colon[-1] == ']' : strchr(address, ':') == colon);
    size_t length = has_port ? (size_t)(colon - address) : strlen(address);
    if (has_port) {
        char *end;
        long port = strtol(colon + 1, &end, 10);
        if (!isdigit((unsigned char)colon[1]) || *end != '\0' || port < 1 || port > 65535) {
            return jr_fail(reader, "address", "\"%s\" is no host or host:port", address);
        }
        config->port = (uint16_t)port;
    }
    if (bracket && length > 2 && address[length - 1] == ']') {
        address++;
        length -= 2;
    }
    if (length == 0 || length >= sizeof(config->host)) {
        return jr_fail(reader, "address", "a host has 1 to %zu characters", sizeof(config->host) - 1);
    }
    snprintf(config->host, sizeof(config->host), "%.*s", (int)length, address);
    return 0;
}

int agent_config_read(const json_t *document, const char *fallback_host, struct agent_config *config,
                      struct err *err)
{
    *config = (struct agent_config){.cache_limit_bytes = CACHE_LIMIT, .journal_limit_bytes = JOURNAL_LIMIT};
    name_default(config->name);
    snprintf(config->host, sizeof(config->host), "%s", fallback_host);
    json_t *empty = document == NULL ? json_object() : NULL;
    struct json_reader reader;
    jr_init(&reader, document == NULL ? empty : document, "", err);
    const char *name = config->name;
    const char *address = NULL;
    jr_str(&reader, "name", JR_OPTIONAL, 1, AGENT_NAME_SIZE - 1, &name);
    if (!reader.failed && !name_valid(name)) {
        jr_fail(&reader, "name", "\"%s\" is not 1 to 64 of a-z, 0-9 and -", name);
    }
    if (name != config->name) {
        snprintf(config->name, sizeof(config->name), "%s", name);
    }
    if (jr_str(&reader, "address", JR_OPTIONAL, 1, 300, &address) == 1) {
        address_read(&reader, address, config);
    }
    jr_bytes(&reader, "cache", JR_OPTIONAL, 0, (uint64_t)1 << 50, &config->cache_limit_bytes);
    jr_bytes(&reader, "journal", JR_OPTIONAL, 1u << 20, (uint64_t)1 << 40, &config->journal_limit_bytes);
    devices_read(&reader, config);
    int result = jr_finish(&reader);
    json_decref(empty);
    return result;
}

int agent_own_host(const char *url, char host[256], struct err *err)
{
    const char *at = strstr(url, "://");
    at = at == NULL ? url : at + 3;
    bool bracket = *at == '[';
    size_t length = bracket ? strcspn(++at, "]") : strcspn(at, ":/");
    char server[256];
    snprintf(server, sizeof(server), "%.*s", (int)(length < 255 ? length : 255), at);
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM};
    struct addrinfo *found = NULL;
    int failed = getaddrinfo(server, "9", &hints, &found);
    if (failed != 0) {
        return err_set(err, ERR_NET, "the host of \"%s\" is not known: %s", url, gai_strerror(failed));
    }
    /* Connecting a datagram socket sends nothing; it only picks the route. */
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
    if (fd >= 0) {
        close(fd);
    }
    freeaddrinfo(found);
    return result;
}
