/* Reads motley-api's configuration. */
#include "api/request/config.h"

#include "common/document.h"
#include "common/file.h"
#include "common/json.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_BYTES_MAX = 1 << 20 };

static int take(struct json_reader *reader, const char *key, enum jr_need need, char **out)
{
    const char *text = NULL;
    int rc = jr_str(reader, key, need, 1, 4096, &text);
    if (rc == 1 && !(*out = strdup(text)))
        return jr_fail(reader, key, "out of memory");
    return rc;
}

bool api_config_is_loopback(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (strcmp(host, "localhost") == 0)
        return true;
    if (inet_pton(AF_INET, host, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

static int read_listen(struct json_reader *reader, struct api_config *config)
{
    const char *listen = NULL;
    if (jr_str(reader, "listen", JR_REQUIRED, 1, 300, &listen) < 0)
        return -1;
    const char *colon = strrchr(listen, ':');
    char *end = NULL;
    unsigned long port = colon ? strtoul(colon + 1, &end, 10) : 0;
    if (!colon || end == colon + 1 || *end || port > 65535)
        return jr_fail(reader, "listen", "\"%s\" is not HOST:PORT", listen);
    size_t size = (size_t)(colon - listen);
    if (size >= 2 && listen[0] == '[' && listen[size - 1] == ']') {
        listen++;
        size -= 2;
    }
    config->host = strndup(listen, size);
    config->port = (uint16_t)port;
    return config->host && *config->host ? 0 : jr_fail(reader, "listen", "there is no host before the port");
}

/* Reads {cert, key, ca} under 'key'. Returns 1 when it is present, 0 when it is absent. */
static int read_tls(struct json_reader *reader, const char *key, bool server, struct tls_paths *paths)
{
    struct json_reader sub;
    int rc = jr_sub(reader, key, JR_OPTIONAL, &sub);
    if (rc != 1)
        return rc;
    take(&sub, "ca", JR_REQUIRED, &paths->ca);
    take(&sub, "cert", server ? JR_REQUIRED : JR_OPTIONAL, &paths->cert);
    take(&sub, "key", server ? JR_REQUIRED : JR_OPTIONAL, &paths->key);
    return jr_finish(&sub) < 0 ? -1 : 1;
}

/* Reads the Redis address and TLS setting that agents are told; the API itself does not use Redis. */
static int read_redis(struct json_reader *reader, struct api_config *config)
{
    struct json_reader sub;
    int rc = jr_sub(reader, "redis", JR_OPTIONAL, &sub);
    if (rc != 1)
        return rc;
    config->has_redis = true;
    take(&sub, "address", JR_REQUIRED, &config->redis.address);
    jr_bool(&sub, "tls", JR_OPTIONAL, &config->redis.tls);
    return jr_finish(&sub);
}

/* Reads who may have models fetched, and where to. */
static int read_hub(struct json_reader *reader, struct api_config *config)
{
    static const char *const names[] = {[API_HUB_NOBODY] = "nobody",
                                        [API_HUB_ADMINISTRATORS] = "administrators",
                                        [API_HUB_USERS] = "users",
                                        NULL};
    struct json_reader sub;
    int fetch = (int)config->hub.fetch;
    int rc = jr_sub(reader, "hub", JR_OPTIONAL, &sub);
    if (rc != 1)
        return rc;
    jr_choice(&sub, "fetch", JR_REQUIRED, names, &fetch);
    take(&sub, "cache", JR_OPTIONAL, &config->hub.cache);
    config->hub.fetch = (enum api_hub)fetch;
    return jr_finish(&sub);
}

static int read_config(const json_t *document, struct api_config *config, struct err *err)
{
    struct json_reader reader, ca, limits, parser;
    jr_init(&reader, document, "", err);
    if (read_listen(&reader, config) < 0)
        return -1;
    take(&reader, "address_file", JR_OPTIONAL, &config->address_file);
    int tls = read_tls(&reader, "tls", true, &config->tls);
    if (tls < 0)
        return -1;
    config->has_tls = tls == 1;
    take(&reader, "postgres", JR_REQUIRED, &config->postgres);
    jr_u32(&reader, "connections", JR_OPTIONAL, 1, 64, &config->connections);
    jr_u32(&reader, "start_seconds", JR_OPTIONAL, 0, 3600, &config->start_seconds);
    jr_u32(&reader, "measure_seconds", JR_OPTIONAL, 0, 3600, &config->measure_seconds);
    jr_u32(&reader, "wait_seconds", JR_OPTIONAL, 1, 60, &config->wait_seconds);
    if (read_redis(&reader, config) < 0 || read_hub(&reader, config) < 0)
        return -1;
    take(&reader, "blobs", JR_REQUIRED, &config->blobs);
    take(&reader, "web_dir", JR_OPTIONAL, &config->web_dir);
    jr_u32(&reader, "unused_seconds", JR_OPTIONAL, 0, 1u << 30, &config->unused_seconds);
    if (jr_sub(&reader, "ca", JR_OPTIONAL, &ca) == 1) {
        take(&ca, "cert", JR_REQUIRED, &config->ca_cert);
        take(&ca, "signer", JR_REQUIRED, &config->ca_signer);
        if (jr_finish(&ca) < 0)
            return -1;
    }
    jr_u32(&reader, "threads", JR_OPTIONAL, 1, 64, &config->threads);
    if (jr_sub(&reader, "parser", JR_OPTIONAL, &parser) == 1) {
        take(&parser, "program", JR_OPTIONAL, &config->parser.program);
        jr_bytes(&parser, "memory", JR_OPTIONAL, 16 << 20, UINT64_C(1) << 44, &config->parser.memory_bytes);
        jr_u32(&parser, "seconds", JR_OPTIONAL, 1, 24 * 3600, &config->parser.seconds);
        if (jr_finish(&parser) < 0)
            return -1;
    }
    jr_bytes(&reader, "max_rows_bytes", JR_OPTIONAL, 1 << 20, UINT64_C(1) << 44, &config->rows_bytes_max);
    if (jr_sub(&reader, "limits", JR_OPTIONAL, &limits) == 1) {
        jr_bytes(&limits, "upload", JR_OPTIONAL, 1, UINT64_C(1) << 50, &config->upload_bytes_max);
        jr_bytes(&limits, "user", JR_OPTIONAL, 1, UINT64_C(1) << 50, &config->user_bytes_max);
        jr_bytes(&limits, "model", JR_OPTIONAL, 1, UINT64_C(1) << 50, &config->model_bytes_max);
        jr_u32(&limits, "connections", JR_OPTIONAL, 1, 60000, &config->connections_max);
        jr_u32(&limits, "connections_per_address", JR_OPTIONAL, 1, 60000,
               &config->connections_per_address_max);
        jr_u32(&limits, "streams_per_user", JR_OPTIONAL, 1, 512, &config->streams_per_user_max);
        jr_bytes(&limits, "bytes_per_second", JR_OPTIONAL, 1, UINT64_C(1) << 30,
                 &config->bytes_per_second_min);
        jr_u32(&limits, "idle_seconds", JR_OPTIONAL, 1, 3600, &config->idle_seconds_max);
        if (jr_finish(&limits) < 0)
            return -1;
    }
    if (jr_finish(&reader) < 0)
        return -1;
    const char *folder = getenv("MOTLEY_WEB_DIR");
    if (!config->web_dir && folder && *folder && !(config->web_dir = strdup(folder)))
        return err_set(err, ERR_NOMEM, "out of memory for the configuration");
    if (!config->has_tls && !api_config_is_loopback(config->host))
        return err_set(err, ERR_INVALID, "listen: %s is not a loopback address, and there is no tls",
                       config->host);
    return 0;
}

struct api_config *api_config_load(const char *path, struct err *err)
{
    struct buf text;
    buf_init(&text, CONFIG_BYTES_MAX);
    struct api_config *config = calloc(1, sizeof(*config));
    json_t *document = NULL;
    int rc = -1;
    if (!config) {
        err_set(err, ERR_NOMEM, "out of memory for the configuration");
        goto out;
    }
    config->connections = 4;
    config->start_seconds = 30;
    config->wait_seconds = 10;
    config->measure_seconds = 60;
    config->unused_seconds = 24 * 3600;
    config->threads = 2;
    config->parser.memory_bytes = UINT64_C(8) << 30;
    config->parser.seconds = 600;
    config->rows_bytes_max = UINT64_C(2) << 30;
    config->upload_bytes_max = config->model_bytes_max = config->user_bytes_max = UINT64_C(1) << 40;
    config->connections_max = 4096;
    config->connections_per_address_max = 512;
    config->bytes_per_second_min = 8192;
    config->streams_per_user_max = 64;
    config->idle_seconds_max = 75;
    if (file_read_all(path, CONFIG_BYTES_MAX, &text, err) < 0)
        goto out;
    document = document_parse(path, buf_str(&text), text.size, err);
    rc = document ? read_config(document, config, err) : -1;
    config->document = json_incref(document);
    if (rc < 0)
        err_wrap(err, "%s", path);
out:
    if (rc < 0) {
        api_config_destroy(config);
        config = NULL;
    }
    json_decref(document);
    buf_fini(&text);
    return config;
}

static void tls_paths_fini(struct tls_paths *paths)
{
    free(paths->ca);
    free(paths->cert);
    free(paths->key);
}

void api_config_destroy(struct api_config *config)
{
    if (!config)
        return;
    tls_paths_fini(&config->tls);
    free(config->host);
    free(config->address_file);
    free(config->postgres);
    free(config->redis.address);
    free(config->blobs);
    free(config->web_dir);
    free(config->hub.cache);
    free(config->parser.program);
    free(config->ca_cert);
    free(config->ca_signer);
    json_decref(config->document);
    free(config);
}

/* Returns a copy of the document without the keys that can change while the api runs, or NULL. */
static json_t *fixed_part(const json_t *document)
{
    static const char *const live[] = {"measure_seconds", "unused_seconds"};
    static const char *const live_limits[] = {"upload", "user", "streams_per_user"};
    json_t *fixed = json_copy((json_t *)(uintptr_t)document);
    json_t *limits = json_copy(json_object_get(fixed, "limits"));
    for (size_t i = 0; i < sizeof(live) / sizeof(live[0]); i++)
        json_object_del(fixed, live[i]);
    for (size_t i = 0; i < sizeof(live_limits) / sizeof(live_limits[0]); i++)
        json_object_del(limits, live_limits[i]);
    json_object_del(fixed, "limits");
    if (json_object_size(limits) > 0)
        json_object_set(fixed, "limits", limits);
    json_decref(limits);
    return fixed;
}

static const char *changed_key(const json_t *one, const json_t *other)
{
    const char *key;
    const json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)one, key, value)
        if (!json_equal(value, json_object_get(other, key)))
            return key;
    return NULL;
}

int api_config_reload(const char *path, struct api_config *config, struct err *err)
{
    struct api_config *fresh = api_config_load(path, err);
    if (!fresh)
        return -1;
    json_t *now = fixed_part(fresh->document), *was = fixed_part(config->document);
    const char *key = changed_key(now, was);
    key = key ? key : changed_key(was, now);
    if (key) {
        err_set(err, ERR_CONFLICT, "%s: %s: another value takes a restart", path, key);
    } else {
        config->measure_seconds = fresh->measure_seconds;
        config->unused_seconds = fresh->unused_seconds;
        config->upload_bytes_max = fresh->upload_bytes_max;
        config->user_bytes_max = fresh->user_bytes_max;
        config->streams_per_user_max = fresh->streams_per_user_max;
    }
    json_decref(now);
    json_decref(was);
    api_config_destroy(fresh);
    return key ? -1 : 0;
}
