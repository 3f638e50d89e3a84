/* The configuration of motley-api (api/README.md), read and checked. */
#ifndef MOTLEY_API_REQUEST_CONFIG_H
#define MOTLEY_API_REQUEST_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

struct tls_paths {
    char *ca, *cert, *key; /* NULL when absent */
};

/* Who may have the api fetch models of the Hub. */
enum api_hub { API_HUB_NOBODY, API_HUB_ADMINISTRATORS, API_HUB_USERS };

struct api_config {
    char *host; /* host of `listen` */
    uint16_t port;
    char *address_file; /* file to which "host:port" is written, or NULL */
    bool has_tls;
    struct tls_paths tls;
    char *postgres;
    uint32_t connections;
    uint32_t start_seconds;   /* how long the start waits for the database */
    uint32_t wait_seconds;    /* how long a request waits for the database */
    uint32_t measure_seconds; /* how long a plan waits for devices to be measured */
    bool has_redis;
    struct {
        char *address;
        bool tls;
    } redis; /* what agents are told of the Redis server */
    char *blobs;
    /* folder from which the page's files are read at each request; NULL: the files inside the program are
     * used */
    char *web_dir;
    struct {
        enum api_hub fetch;
        char *cache; /* where models are put; NULL: where Hugging Face's tools would put them */
    } hub;
    /* files that nothing refers to and that nobody reads for this time are removed; 0: never */
    uint32_t unused_seconds;
    /* the CA's certificate, and the socket of the signing process; NULL: no node can be enrolled */
    char *ca_cert, *ca_signer;
    uint32_t threads;
    struct {
        char *program; /* path of the parser; NULL: the motley-parse beside motley-api */
        uint64_t memory_bytes;
        uint32_t seconds;
    } parser;
    uint64_t rows_bytes_max, upload_bytes_max, model_bytes_max;
    uint64_t user_bytes_max; /* most bytes of the files that one user has uploaded or is uploading */
    uint32_t connections_max, connections_per_address_max;
    /* least rate at which a request's body must arrive and an answer must be read
     * (api/http/httpd_server.h) */
    uint64_t bytes_per_second_min;
    /* number of event streams that one user may have open at this server */
    uint32_t streams_per_user_max;
    /* a connection on which nothing moves is closed after this time */
    uint32_t idle_seconds_max;
    json_t *document; /* the whole file as it was read */
};

/* Returns the configuration, new (release with api_config_destroy), or NULL with an error that names the path
 * of the wrong key. */
struct api_config *api_config_load(const char *path, struct err *err);
/* Reads the file again and takes over what can change while the api runs: measure_seconds, unused_seconds,
 * and upload, user and streams_per_user of `limits`. ERR_CONFLICT names the first other key whose value has
 * changed, which needs a restart. On failure nothing is changed. */
int api_config_reload(const char *path, struct api_config *config, struct err *err);
void api_config_destroy(struct api_config *config);

/* Whether this host name or address means this machine alone. */
bool api_config_is_loopback(const char *host);

#endif
