/* `motley login`: a token for this person, by the server's OpenID provider (the device flow of RFC 8628,
 * which the server passes on) or as an account of the server's own machine, and the client.json that has it.
 */
#include "cli/cli.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/document.h"
#include "common/file.h"
#include "common/json.h"
#include "common/outside.h"

enum {
    CLIENT_BYTES_MAX = 65536,
    CALL_MS = 30000,
    INTERVAL_S_MAX = 300,
    SLOWER_S = 5,       /* RFC 8628, section 3.5: what slow_down adds */
    TROUBLE_S_MAX = 60, /* the longest pause after requests that did not arrive */
    EXPIRES_S_MAX = 86400
};

/* Where to sign in. */
struct login {
    char client[sizeof(((struct cli *)0)->home) + 32]; /* path of client.json */
    char address[256], ca[PATH_MAX], socket[PATH_MAX]; /* ca, socket: or "" */
};

/* Finds the server's address and its CA: given, or those that client.json has. */
static int server_find(struct cli *cli, struct login *login, struct err *err)
{
    const char *ca = cli_option(cli, "--ca"), *path = cli_option(cli, "--socket");
    const char *given = cli->word_count > 0 ? cli->words[0] : path ? "http://localhost" : NULL;
    char admin[sizeof(login->client)];
    struct outside_url url;
    struct err none;
    snprintf(login->client, sizeof(login->client), "%s/client.json", cli->home);
    snprintf(admin, sizeof(admin), "%s/run/admin.token", cli->home);
    if (file_exists(admin))
        return err_set(
            err, ERR_CONFLICT,
            "%s is a server's home, whose client.json is its administrator's: give another one with "
            "--home",
            cli->home);
    json_t *known = document_load(login->client, CLIENT_BYTES_MAX, &none);
    const char *known_address = json_text_of(known, "address");
    snprintf(login->address, sizeof(login->address), "%s", given ? given : known_address);
    if (!ca && strcmp(login->address, known_address) == 0)
        snprintf(login->ca, sizeof(login->ca), "%s", json_text_of(known, "ca"));
    json_decref(known);
    if (!*login->address)
        return err_set(err, ERR_INVALID, "which server? motley login https://server.example.org:8443");
    if (outside_url_read(login->address, &url, err) < 0)
        return -1;
    if ((ca && !realpath(ca, login->ca)) || (path && !realpath(path, login->socket)))
        return err_set(err, ERR_NOT_FOUND, "%s %.300s is not there", ca && !*login->ca ? "--ca" : "--socket",
                       ca && !*login->ca ? ca : path);
    return 0;
}

static void pause_s(unsigned seconds)
{
    struct timespec left = {.tv_sec = (time_t)seconds};
    while (nanosleep(&left, &left) != 0)
        continue;
}

static unsigned bounded(const json_t *object, const char *key, unsigned most)
{
    const json_int_t value = json_integer_value(json_object_get(object, key));
    if (value < 1)
        return 1;
    return (uint64_t)value > most ? most : (unsigned)value;
}

/* Tells the person where to go. ERR_PEER for addresses that no browser should be sent to. */
static int person_tell(const json_t *begun, struct err *err)
{
    const char *complete = json_text_of(begun, "verification_uri_complete");
    const char *address = json_text_of(begun, "verification_uri");
    struct outside_url url;
    if (outside_url_read(address, &url, err) < 0 ||
        (*complete && outside_url_read(complete, &url, err) < 0)) {
        err->code = ERR_PEER;
        return err_wrap(err, "verification_uri");
    }
    fprintf(stderr, "Open %s in any browser and enter the code %s\n", address, show_str(begun, "user_code"));
    if (*complete)
        fprintf(stderr, "or open %s\n", complete);
    fprintf(stderr, "The code is good for %u minutes; waiting …\n",
            (bounded(begun, "expires_in", EXPIRES_S_MAX) + 59) / 60);
    return 0;
}

/* Asks until the person has answered or the code has expired (RFC 8628, section 3.5). */
static int answer_wait(struct http *http, const json_t *begun, json_t **signed_in, struct err *err)
{
    const unsigned expires_s = bounded(begun, "expires_in", EXPIRES_S_MAX);
    const uint64_t end_ns = clock_mono_ns() + expires_s * UINT64_C(1000000000);
    unsigned interval_s = bounded(begun, "interval", INTERVAL_S_MAX), pause = interval_s;
    json_t *body = json_pack("{s:O}", "device_code", json_object_get(begun, "device_code"));
    int rc = body ? 0 : err_set(err, ERR_PEER, "the server's answer has no device_code");
    for (bool done = rc < 0; !done;) {
        json_t *answer = NULL;
        if (clock_mono_ns() + pause * UINT64_C(1000000000) >= end_ns) {
            rc = err_set(err, ERR_TIMEOUT, "the code has expired: nobody entered it within %u s", expires_s);
            break;
        }
        pause_s(pause);
        rc = http_json(http, "POST", "/v1/oidc/token", body, CALL_MS, &answer, err);
        const bool trouble =
            rc < 0 && (err->code == ERR_NET || err->code == ERR_TIMEOUT || err->code == ERR_BUSY);
        if (rc == 0 && strcmp(json_text_of(answer, "error"), "slow_down") == 0)
            interval_s += SLOWER_S;
        pause = !trouble ? interval_s : 2 * pause < TROUBLE_S_MAX ? 2 * pause : TROUBLE_S_MAX;
        done = !trouble && (rc < 0 || *json_text_of(answer, "token"));
        if (done && rc == 0)
            *signed_in = json_incref(answer);
        json_decref(answer);
    }
    json_decref(body);
    return rc;
}

static int login_sign_in(const struct login *login, json_t **signed_in, struct err *err)
{
    const struct http_options options = {.url = *login->socket ? "http://localhost" : login->address,
                                         .unix_socket = *login->socket ? login->socket : NULL,
                                         .ca_file = *login->ca && !*login->socket ? login->ca : NULL,
                                         .secret = true,
                                         .connect_ms = 5000};
    struct http *http = http_create(&options, err);
    json_t *begun = NULL;
    int rc = http ? 0 : -1;
    if (rc == 0 && *login->socket)
        rc = http_json(http, "POST", "/v1/socket-token", NULL, CALL_MS, signed_in, err);
    else if (rc == 0)
        rc = http_json(http, "POST", "/v1/oidc/device", NULL, CALL_MS, &begun, err) < 0 ||
                     person_tell(begun, err) < 0
                 ? -1
                 : answer_wait(http, begun, signed_in, err);
    json_decref(begun);
    http_destroy(http);
    return rc;
}

int command_login(struct cli *cli, struct err *err)
{
    struct login login = {0};
    json_t *answer = NULL;
    char until[24];
    if (server_find(cli, &login, err) < 0 || login_sign_in(&login, &answer, err) < 0)
        return -1;
    /* With an address of its own, the socket was for the sign-in alone. */
    const bool by_socket = *login.socket && cli->word_count == 0;
    json_t *client = json_pack("{s:s, s:O, s:s*, s:s*}", "address", login.address, "token",
                               json_object_get(answer, "token"), "ca", *login.ca ? login.ca : NULL, "socket",
                               by_socket ? login.socket : NULL);
    int rc = client ? file_mkdirs(cli->home, 0700, err) : err_set(err, ERR_PEER, "the answer has no token");
    if (rc == 0)
        rc = document_save(login.client, client, false, 0600, err);
    json_decref(client);
    json_object_del(answer, "token");
    if (rc == 0 && cli->json)
        rc = show_json(answer, err);
    else if (rc == 0)
        printf("you are %s at %s until %s; the token is in %s\n", show_str(answer, "user"),
               by_socket ? login.socket : login.address, clock_words(json_text_of(answer, "expires"), until),
               login.client);
    json_decref(answer);
    return rc;
}
