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

struct api_config {
    char *host; /* host of `listen` */
    uint16_t port;
    char *address_file; /* or NULL */
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
    } redis; /* what agents are told of Redis */
    char *blobs;
    char *web_dir; /* the page's files are read from here at each request; NULL: those inside the program */
    /* files that nothing refers to and nobody reads are removed after that; 0: never */
    uint32_t unused_seconds;
    /* the CA's certificate, and the socket of the signing process; NULL: no node can be enrolled */
    char *ca_cert, *ca_signer;
    uint32_t threads;
    struct {
        char *program; /* NULL: the motley-parse beside motley-api */
        uint64_t memory_bytes;
        uint32_t seconds;
    } parser;
    uint64_t rows_bytes_max, upload_bytes_max, model_bytes_max;
    uint64_t user_bytes_max; /* limit of the files that one user has uploaded or is uploading */
    uint32_t connections_max, connections_per_address_max;
    /* the rate that a request's body and a reader of an answer must keep up (api/http/httpd_server.h) */
    uint64_t bytes_per_second_min;
    uint32_t streams_per_user_max; /* event streams that one user may have open at this server */
    uint32_t idle_seconds_max;     /* a connection on which nothing moves is closed after that */
    json_t *document;              /* as it was read */
};

/* Returns new (release with api_config_destroy), or NULL with the path of the wrong key. */
struct api_config *api_config_load(const char *path, struct err *err);
/* Reads the file again and takes over what can change while the api runs: measure_seconds, unused_seconds,
 * and upload, user and streams_per_user of `limits`. ERR_CONFLICT names the first key with another value that
 * takes a restart. On failure nothing is changed. */
int api_config_reload(const char *path, struct api_config *config, struct err *err);
void api_config_destroy(struct api_config *config);

/* Whether this host name or address means this machine alone. */
bool api_config_is_loopback(const char *host);

#endif
