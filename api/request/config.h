/* The configuration of motley-api (api/README.md), read and checked. */
#ifndef MOTLEY_API_REQUEST_CONFIG_H
#define MOTLEY_API_REQUEST_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/doc.h"
#include "common/err.h"
#include "common/outside.h"

/* Who may have the api fetch models of the Hub. */
enum api_hub { API_HUB_NOBODY, API_HUB_ADMINISTRATORS, API_HUB_USERS };

/* Whom another's word signs in, and as whom (docs/run-a-lab/people.md). */
struct api_sign_in {
    bool allow_sign_up;                                           /* whether a first sign-in makes a user */
    enum api_linking { API_LINK_NOBODY, API_LINK_NAMES } linking; /* whether it becomes a user of its name */
    bool manage_groups;     /* whether each sign-in sets the user's groups */
    char *admin_group;      /* who is in it is an administrator; or NULL */
    json_t *allowed_groups; /* who is in none of them is refused; NULL: nobody is */
    double token_s;         /* lifetime of a token of `motley login` */
};

/* An OpenID provider that says who people are. */
struct api_oidc {
    char *issuer, *name, *client_id;
    char *client_secret_file; /* NULL: a public client */
    char *scopes, *user_claim, *groups_claim;
    char *ca; /* CAs of the issuer's certificate; NULL: the system's */
    struct api_sign_in rules;
};

/* Described in config.c, with its defaults and limits. */
struct api_config {
    char *listen, host[256]; /* host: that of `listen` */
    uint16_t port;
    char *address_file; /* or NULL */
    bool has_tls;
    struct {
        char *ca, *cert, *key;
    } tls;
    char *postgres;
    uint32_t connections, start_seconds, wait_seconds, measure_seconds;
    bool has_redis;
    struct {
        char *address;
        bool tls;
    } redis;
    char *blobs, *web_dir; /* web_dir: or NULL */
    struct {
        enum api_hub fetch;
        char *cache; /* or NULL */
    } hub;
    bool notify;          /* whether people may be told at their own addresses; of these: */
    bool notify_public;   /* all that everybody reaches */
    json_t *notify_hosts; /* ["HOST" or "HOST:PORT"], also within the cluster's own network; or NULL */
    char *notify_ca;      /* CAs' certificates, for these as for others; NULL: the system's */
    bool notify_mail;     /* whether people may be told by mail; of this: */
    struct {
        char *server, *from, *user, *password_file; /* user, password_file: or NULL */
        json_t *domains;                            /* [domain], of those that are written to */
        uint32_t per_day;                           /* messages to be sent of one person's jobs */
        bool local;                                 /* the server is this machine */
    } mail;
    uint32_t unused_seconds;
    char *ca_cert, *ca_signer; /* NULL: no node can be enrolled */
    uint32_t threads;
    struct {
        char *program; /* NULL: the motley-parse beside motley-api */
        uint64_t memory_bytes;
        uint32_t seconds;
    } parser;
    uint64_t rows_bytes_max, upload_bytes_max, model_bytes_max, user_bytes_max;
    uint32_t connections_max, connections_per_address_max;
    json_t *proxies;  /* [numeric address] of reverse proxies; or NULL */
    char *proxy_user; /* their header with the name of the user who signed in to them; or NULL */
    bool has_oidc, has_unix_socket;
    struct api_oidc oidc;
    struct {
        char *path;
        struct api_sign_in rules;
    } unix_socket;                 /* where accounts of this machine sign in */
    uint64_t bytes_per_second_min; /* api/http/httpd_server.h */
    uint32_t streams_per_user_max, idle_seconds_max;
    json_t *document; /* the whole file as it was read */
};

/* The file's description. */
extern const struct doc api_config_doc;

/* Returns the configuration, new (release with api_config_destroy), or NULL with an error that names the path
 * of the wrong key. */
struct api_config *api_config_load(const char *path, struct err *err);
/* Reads the file again and takes over what can change while the api runs: measure_seconds, unused_seconds,
 * and upload, user and streams_per_user of `limits`. ERR_CONFLICT names the first other key whose value has
 * changed, which needs a restart. On failure nothing is changed. */
int api_config_reload(const char *path, struct api_config *config, struct err *err);
void api_config_destroy(struct api_config *config);

/* Whether an administrator, or somebody else, may have this api fetch models of the Hub. ERR_DENIED says who
 * may, and what else to do. */
int api_config_may_fetch(const struct api_config *config, bool admin, struct err *err);

/* Whether this api may post or write to the address. *inside becomes whether it may do so within the
 * cluster's own network, too. ERR_DENIED says which key of the configuration would allow it. */
int api_config_may_notify(const struct api_config *config, const struct outside_url *url, bool *inside,
                          struct err *err);

/* Whether this host name or address means this machine alone. */
bool api_config_is_loopback(const char *host);

#endif
