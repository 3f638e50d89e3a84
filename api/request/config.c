/* Reads motley-api's configuration. */
#include "api/request/config.h"

#include "api/http/address.h"
#include "api/http/httpd_server.h"
#include "common/doc.h"
#include "common/document.h"
#include "common/file.h"
#include "common/json.h"

#include <ctype.h>
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_BYTES_MAX = 1 << 20 };

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

int api_config_may_fetch(const struct api_config *config, bool admin, struct err *err)
{
    if (config->hub.fetch == API_HUB_USERS || (config->hub.fetch == API_HUB_ADMINISTRATORS && admin))
        return 0;
    return err_set(err, ERR_DENIED, "%s; fetch it yourself (motley model get) and add its folder",
                   config->hub.fetch == API_HUB_ADMINISTRATORS
                       ? "here only an administrator may have models fetched (hub.fetch in the server's "
                         "configuration)"
                       : "this server fetches no models (hub.fetch in its configuration)");
}

static int may_mail(const struct api_config *config, const char *domain, struct err *err)
{
    size_t i;
    json_t *entry;
    if (!config->notify_mail)
        return err_set(err, ERR_DENIED, "this server sends no mail (notify.mail in its configuration)");
    json_array_foreach (config->mail.domains, i, entry)
        if (strcmp(json_string_value(entry), domain) == 0)
            return 0;
    return err_set(err, ERR_DENIED,
                   "%s is none of the domains that this server writes to (notify.mail.domains in its "
                   "configuration)",
                   domain);
}

int api_config_may_notify(const struct api_config *config, const struct outside_url *url, bool *inside,
                          struct err *err)
{
    char with_port[OUTSIDE_HOST_BYTES + 8];
    size_t i;
    json_t *entry;
    *inside = false;
    snprintf(with_port, sizeof(with_port), "%s:%u", url->host, url->port);
    json_array_foreach (config->notify_hosts, i, entry)
        if (strcmp(json_string_value(entry), url->host) == 0 ||
            strcmp(json_string_value(entry), with_port) == 0)
            *inside = true;
    if (!config->notify)
        return err_set(err, ERR_DENIED, "this server tells nobody (notify in its configuration)");
    if (url->mail)
        return may_mail(config, url->host, err);
    if (!*inside && !config->notify_public)
        return err_set(err, ERR_DENIED,
                       "%s is none of the hosts that this server tells (notify.hosts in its "
                       "configuration)",
                       url->host);
    if (!*inside && !url->tls)
        return err_set(err, ERR_DENIED,
                       "http:// is for hosts of notify.hosts in the server's configuration: give an "
                       "https:// address");
    return 0;
}

/* Hosts and domains are compared as outside_url_read() gives them. */
static void names_check(struct json_reader *reader, const struct doc_field *field, const json_t *names)
{
    size_t i;
    json_t *entry;
    json_array_foreach ((json_t *)(uintptr_t)names, i, entry) {
        const char *text = json_string_value(entry);
        if (!text || !*text || strlen(text) >= OUTSIDE_HOST_BYTES ||
            text[strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789.:-")] != '\0')
            jr_fail(reader, field->key, "[%zu] is no HOST or HOST:PORT in lower case", i);
    }
}

static void hosts_rule(struct json_reader *reader, const struct doc_field *field, void *all)
{
    names_check(reader, field, ((const struct api_config *)all)->notify_hosts);
}

static void domains_rule(struct json_reader *reader, const struct doc_field *field, void *all)
{
    names_check(reader, field, ((const struct api_config *)all)->mail.domains);
}

static void mail_from_rule(struct json_reader *reader, const struct doc_field *field, void *all)
{
    const struct api_config *config = all;
    char text[OUTSIDE_URL_BYTES];
    struct outside_url url;
    struct err why;
    snprintf(text, sizeof(text), "mailto:%.900s", config->mail.from);
    if (outside_url_read(text, &url, &why) < 0)
        jr_fail(reader, field->key, "\"%s\" is no mailbox such as motley@lab.example", config->mail.from);
}

static void mail_server_rule(struct json_reader *reader, const struct doc_field *field, void *all)
{
    struct api_config *config = all;
    const bool tls = strncmp(config->mail.server, "smtps://", 8) == 0;
    char text[OUTSIDE_URL_BYTES];
    struct outside_url url;
    struct err why;
    snprintf(text, sizeof(text), "https://%.900s", config->mail.server + (tls ? 8 : 7));
    if ((!tls && strncmp(config->mail.server, "smtp://", 7) != 0) || outside_url_read(text, &url, &why) < 0 ||
        strcmp(url.path, "/") != 0)
        jr_fail(reader, field->key, "\"%s\" is not smtp://HOST:PORT or smtps://HOST:PORT",
                config->mail.server);
    else
        config->mail.local = api_config_is_loopback(url.host);
}

static void proxies_rule(struct json_reader *reader, const struct doc_field *field, void *all)
{
    size_t i;
    json_t *entry;
    uint8_t address[ADDRESS_BYTES];
    json_array_foreach (((const struct api_config *)all)->proxies, i, entry)
        if (!json_is_string(entry) || !address_parse(json_string_value(entry), address))
            jr_fail(reader, field->key, "[%zu] is no numeric address such as 10.0.0.5", i);
}

/* A header's name is compared in lower case, as the heads of requests have it. */
static void proxy_user_rule(struct json_reader *reader, const struct doc_field *field, void *all)
{
    struct api_config *config = all;
    for (char *at = config->proxy_user; at && *at != '\0'; at++) {
        *at = (char)tolower((unsigned char)*at);
        if (!isalnum((unsigned char)*at) && *at != '-')
            jr_fail(reader, field->key, "it is no header's name: letters, digits and - are");
    }
    if (config->proxy_user && json_array_size(config->proxies) == 0)
        jr_fail(reader, field->key, "nobody is believed without proxies");
}

/* What goes there may be a secret: by TLS, or to this machine. */
static void issuer_rule(struct json_reader *reader, const struct doc_field *field, void *all)
{
    const char *issuer = ((const struct api_oidc *)all)->issuer;
    struct outside_url url;
    struct err why;
    if (outside_url_read(issuer, &url, &why) < 0 || url.mail || strchr(url.path, '?') ||
        (!url.tls && !api_config_is_loopback(url.host)))
        jr_fail(reader, field->key, "\"%.200s\" is no https:// address of an issuer", issuer);
}

static void listen_rule(struct json_reader *reader, const struct doc_field *field, void *all)
{
    struct api_config *config = all;
    const char *listen = config->listen, *colon = strrchr(listen, ':');
    char *end = NULL;
    unsigned long port = colon ? strtoul(colon + 1, &end, 10) : 0;
    if (!colon || end == colon + 1 || *end || port > 65535) {
        jr_fail(reader, field->key, "\"%s\" is not HOST:PORT", listen);
        return;
    }
    size_t size = (size_t)(colon - listen);
    const bool v6 = size >= 2 && listen[0] == '[' && listen[size - 1] == ']';
    snprintf(config->host, sizeof(config->host), "%.*s", (int)(v6 ? size - 2 : size),
             v6 ? listen + 1 : listen);
    config->port = (uint16_t)port;
    if (!*config->host)
        jr_fail(reader, field->key, "there is no host before the port");
}

#define TEXT(name, member, needed, ...) DOC_TEXT(name, api_config, member, needed, 1, 4096, __VA_ARGS__)
#define NUMBER(name, member, initial, least, most, ...)                                                      \
    DOC_NUM(name, api_config, member, JR_OPTIONAL, initial, least, most, __VA_ARGS__)
#define TIB ((uint64_t)1 << 40)

static const struct doc_field tls_fields[] = {
    TEXT("ca", tls.ca, JR_REQUIRED, "the CA's certificate"),
    TEXT("cert", tls.cert, JR_REQUIRED, "this server's certificate"),
    TEXT("key", tls.key, JR_REQUIRED, "its key"),
};
static const struct doc tls_doc = DOC(api_config, tls_fields);

static const struct doc_field redis_fields[] = {
    TEXT("address", redis.address, JR_REQUIRED, "unix:PATH or HOST:PORT; several with commas between them"),
    DOC_FLAG("tls", api_config, redis.tls, JR_OPTIONAL, false, "whether agents connect by TLS"),
};
static const struct doc redis_doc = DOC(api_config, redis_fields);

static const char *const hub_names[] = {[API_HUB_NOBODY] = "nobody",
                                        [API_HUB_ADMINISTRATORS] = "administrators",
                                        [API_HUB_USERS] = "users",
                                        NULL};
static const struct doc_field hub_fields[] = {
    DOC_CHOICE("fetch", api_config, hub.fetch, JR_REQUIRED, API_HUB_NOBODY, hub_names,
               "who may have models fetched"),
    TEXT("cache", hub.cache, JR_OPTIONAL, "where to; else where Hugging Face's tools would put them"),
};
static const struct doc hub_doc = DOC(api_config, hub_fields);

static const struct doc_field mail_fields[] = {
    TEXT("server", mail.server, JR_REQUIRED,
         "smtp://HOST:PORT, with STARTTLS unless it is this machine, or smtps://", .rule = mail_server_rule),
    TEXT("from", mail.from, JR_REQUIRED, "the mailbox that messages come from", .rule = mail_from_rule),
    DOC_JSON("domains", api_config, mail.domains, JR_REQUIRED, "[DOMAIN]: mailboxes there may be written to",
             .flags = DOC_ARRAY, .min = 1, .max = 1000, .rule = domains_rule),
    TEXT("user", mail.user, JR_OPTIONAL, "whom the server knows; else it asks for nobody"),
    TEXT("password_file", mail.password_file, JR_OPTIONAL, "the file with the password, in its first line"),
    NUMBER("per_day", mail.per_day, 100, 1, 1000000, "messages in 24 hours about one person's jobs"),
};
static const struct doc mail_doc = DOC(api_config, mail_fields);

static const struct doc_field notify_fields[] = {
    DOC_WITHIN("mail", JR_OPTIONAL, &mail_doc, "mail to people of some domains; else none is sent",
               DOC_GIVEN_IN(api_config, notify_mail)),
    DOC_FLAG("public", api_config, notify_public, JR_OPTIONAL, false, "whether any host outside may be told"),
    DOC_JSON("hosts", api_config, notify_hosts, JR_OPTIONAL,
             "[HOST or HOST:PORT]: these may be told also within the own network, and by http://",
             .flags = DOC_ARRAY, .max = 1000, .rule = hosts_rule),
    TEXT("ca", notify_ca, JR_OPTIONAL, "CAs that receivers' certificates are of; else the system's"),
};
static const struct doc notify_doc = DOC(api_config, notify_fields);

static const char *const linking_names[] = {[API_LINK_NOBODY] = "disabled", [API_LINK_NAMES] = "auto", NULL};
static const struct doc_field sign_in_fields[] = {
    DOC_FLAG("allow_sign_up", api_sign_in, allow_sign_up, JR_OPTIONAL, false,
             "whether a first sign-in makes a user"),
    DOC_CHOICE("account_linking", api_sign_in, linking, JR_OPTIONAL, API_LINK_NOBODY, linking_names,
               "auto: a first sign-in becomes the user of its name who is here already"),
    DOC_JSON("allowed_groups", api_sign_in, allowed_groups, JR_OPTIONAL,
             "[GROUP]: who is in none of them is refused", .flags = DOC_ARRAY, .min = 1, .max = 1000),
    DOC_TEXT("admin_group", api_sign_in, admin_group, JR_OPTIONAL, 1, 200,
             "who is in it is an administrator"),
    DOC_FLAG("manage_groups", api_sign_in, manage_groups, JR_OPTIONAL, false,
             "whether a sign-in makes the user's groups those of the same names here"),
    DOC_NUM("token_lifetime", api_sign_in, token_s, JR_OPTIONAL, 30.0 * 86400, 60, 3650.0 * 86400,
            "of tokens of `motley login`", .flags = DOC_SECONDS),
};
static const struct doc sign_in_doc = DOC(api_sign_in, sign_in_fields);

#define OIDC(name, member, needed, ...) DOC_TEXT(name, api_oidc, member, needed, 1, 900, __VA_ARGS__)
static const struct doc_field oidc_fields[] = {
    OIDC("issuer", issuer, JR_REQUIRED, "https:// address, as its own document says it", .rule = issuer_rule),
    OIDC("name", name, JR_OPTIONAL, "what the page calls it", .text = "OpenID"),
    OIDC("client_id", client_id, JR_REQUIRED, "by which the issuer knows this server"),
    OIDC("client_secret_file", client_secret_file, JR_OPTIONAL,
         "the file with the client's secret, in its first line; else it is a public client"),
    OIDC("scopes", scopes, JR_OPTIONAL, "what is asked for", .text = "openid profile email"),
    OIDC("user_claim", user_claim, JR_OPTIONAL, "the claim that is a user's name here",
         .text = "preferred_username"),
    OIDC("groups_claim", groups_claim, JR_OPTIONAL, "the claim with the list of a person's groups",
         .text = "groups"),
    OIDC("ca", ca, JR_OPTIONAL, "CAs that the issuer's certificate is of; else the system's"),
    DOC_SAME(api_oidc, rules, &sign_in_doc, ""),
};
static const struct doc oidc_doc = DOC(api_oidc, oidc_fields);

static const struct doc_field unix_fields[] = {
    TEXT("path", unix_socket.path, JR_REQUIRED, "where every account of this machine may connect"),
    DOC_SAME(api_config, unix_socket.rules, &sign_in_doc, ""),
};
static const struct doc unix_doc = DOC(api_config, unix_fields);

static const struct doc_field ca_fields[] = {
    TEXT("cert", ca_cert, JR_REQUIRED, "the CA's certificate"),
    TEXT("signer", ca_signer, JR_REQUIRED, "the socket of the signing process"),
};
static const struct doc ca_doc = DOC(api_config, ca_fields);

static const struct doc_field parser_fields[] = {
    TEXT("program", parser.program, JR_OPTIONAL,
         "path of the parser; else the motley-parse beside motley-api"),
    NUMBER("memory", parser.memory_bytes, UINT64_C(8) << 30, 16 << 20, TIB * 16,
           "memory that a parser may take", .flags = DOC_BYTES),
    NUMBER("seconds", parser.seconds, 600, 1, 24 * 3600, "after this time a parser is killed"),
};
static const struct doc parser_doc = DOC(api_config, parser_fields);

static const struct doc_field limits_fields[] = {
    NUMBER("upload", upload_bytes_max, TIB, 1, TIB * 1024, "bytes of a file", .flags = DOC_BYTES | DOC_LIVE),
    NUMBER("user", user_bytes_max, TIB, 1, TIB * 1024,
           "bytes of the files that one user has uploaded or is uploading", .flags = DOC_BYTES | DOC_LIVE),
    NUMBER("model", model_bytes_max, TIB, 1, TIB * 1024, "bytes of a model", .flags = DOC_BYTES),
    NUMBER("connections", connections_max, 4096, 1, 60000, "open at once"),
    NUMBER("connections_per_address", connections_per_address_max, 512, 1, 60000,
           "open at once from one address"),
    NUMBER("streams_per_user", streams_per_user_max, 64, 1, 512,
           "event streams that one user may have open at this server", .flags = DOC_LIVE),
    NUMBER("bytes_per_second", bytes_per_second_min, 8192, 1, UINT64_C(1) << 30,
           "least rate at which a request's body must arrive and an answer must be read", .flags = DOC_BYTES),
    NUMBER("idle_seconds", idle_seconds_max, 75, 1, 3600,
           "a connection on which nothing moves is closed after this time"),
};
static const struct doc limits_doc = DOC(api_config, limits_fields);

static const struct doc_field config_fields[] = {
    DOC_TEXT("listen", api_config, listen, JR_REQUIRED, 1, 300, "HOST:PORT", .rule = listen_rule),
    TEXT("address_file", address_file, JR_OPTIONAL, "file to which HOST:PORT is written"),
    DOC_WITHIN("tls", JR_OPTIONAL, &tls_doc, "without it the api answers HTTP, on loopback alone",
               DOC_GIVEN_IN(api_config, has_tls)),
    DOC_JSON("proxies", api_config, proxies, JR_OPTIONAL,
             "[ADDRESS] of reverse proxies, whose X-Forwarded-For and X-Forwarded-Proto are believed",
             .flags = DOC_ARRAY, .max = HTTPD_PROXIES_MAX, .rule = proxies_rule),
    TEXT("proxy_user", proxy_user, JR_OPTIONAL,
         "header in which those say who signed in to them: the name of a user", .rule = proxy_user_rule),
    DOC_STRUCT("oidc", api_config, oidc, JR_OPTIONAL, &oidc_doc, "an OpenID provider that people sign in by",
               DOC_GIVEN_IN(api_config, has_oidc)),
    DOC_WITHIN("unix_socket", JR_OPTIONAL, &unix_doc,
               "a socket by which accounts of this machine sign in (motley login --socket)",
               DOC_GIVEN_IN(api_config, has_unix_socket)),
    TEXT("postgres", postgres, JR_REQUIRED, "a connection string of libpq"),
    NUMBER("connections", connections, 4, 1, 64, "to PostgreSQL"),
    NUMBER("start_seconds", start_seconds, 30, 0, 3600, "how long the start waits for the database"),
    NUMBER("measure_seconds", measure_seconds, 60, 0, 3600,
           "how long a plan waits for devices to be measured", .flags = DOC_LIVE),
    NUMBER("wait_seconds", wait_seconds, 10, 1, 60, "how long a request waits for the database"),
    DOC_WITHIN("redis", JR_OPTIONAL, &redis_doc, "what agents are told; the api itself does not use Redis",
               DOC_GIVEN_IN(api_config, has_redis)),
    DOC_WITHIN("hub", JR_OPTIONAL, &hub_doc, "models of the Hugging Face Hub"),
    DOC_WITHIN("notify", JR_OPTIONAL, &notify_doc,
               "addresses at which people are told of their jobs; else nobody is",
               DOC_GIVEN_IN(api_config, notify)),
    TEXT("blobs", blobs, JR_REQUIRED, "folder of models, data and results"),
    TEXT("web_dir", web_dir, JR_OPTIONAL,
         "folder from which the page's files are read at each request; else those inside the program"),
    NUMBER("unused_seconds", unused_seconds, 24 * 3600, 0, 1u << 30,
           "files that nothing refers to and that nobody reads for this time are removed; 0: never",
           .flags = DOC_LIVE),
    DOC_WITHIN("ca", JR_OPTIONAL, &ca_doc, "without it no node can be enrolled"),
    NUMBER("threads", threads, 2, 1, 64, "that plan, hash and read files"),
    DOC_WITHIN("parser", JR_OPTIONAL, &parser_doc, "the process that reads users' files"),
    NUMBER("max_rows_bytes", rows_bytes_max, UINT64_C(2) << 30, 1 << 20, TIB * 16,
           "memory for one encoded data set", .flags = DOC_BYTES),
    DOC_WITHIN("limits", JR_OPTIONAL, &limits_doc, ""),
};
const struct doc api_config_doc = DOC(api_config, config_fields);

static int read_config(const json_t *document, struct api_config *config, struct err *err)
{
    if (doc_read(&api_config_doc, document, "", config, err) < 0)
        return -1;
    config->document = json_incref((json_t *)(uintptr_t)document);
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
    struct api_config *config = calloc(1, sizeof(*config));
    json_t *document = config ? document_load(path, CONFIG_BYTES_MAX, err) : NULL;
    if (!config)
        err_set(err, ERR_NOMEM, "out of memory for the configuration");
    if (!document || read_config(document, config, err) < 0) {
        if (document)
            err_wrap(err, "%s", path);
        api_config_destroy(config);
        config = NULL;
    }
    json_decref(document);
    return config;
}

void api_config_destroy(struct api_config *config)
{
    if (!config)
        return;
    json_decref(config->document);
    doc_fini(&api_config_doc, config);
    free(config);
}

int api_config_reload(const char *path, struct api_config *config, struct err *err)
{
    struct api_config *fresh = api_config_load(path, err);
    if (!fresh)
        return -1;
    int rc = doc_adopt(&api_config_doc, config, config->document, fresh, fresh->document, err);
    if (rc < 0)
        err_wrap(err, "%s", path);
    api_config_destroy(fresh);
    return rc;
}
