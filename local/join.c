#include "local/join.h"

#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "common/document.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/json.h"
#include "local/state.h"

enum { READY_SECONDS = 60, POLL_MS = 20, ANSWER_BYTES = 1 << 20, CLIENT_BYTES = 65536 };

int home_access_read(const char *home, struct home_access *access, struct err *err)
{
    char path[HOME_PATH_BYTES];
    json_t *client = file_path(path, sizeof(path), err, "%s/client.json", home) == 0
                         ? document_load(path, CLIENT_BYTES, err)
                         : NULL;
    if (!client)
        return -1;
    const char *address = json_string_value(json_object_get(client, "address"));
    const char *ca = json_string_value(json_object_get(client, "ca"));
    snprintf(access->url, sizeof(access->url), "%s", address ? address : "");
    snprintf(access->ca, sizeof(access->ca), "%s", ca ? ca : "");
    json_decref(client);
    return home_secret(home, "admin.token", access->token, err);
}

struct http *home_http(const struct home_access *access, struct err *err)
{
    const struct http_options options = {.url = access->url,
                                         .bearer = access->token,
                                         .ca_file = access->ca[0] != '\0' ? access->ca : NULL,
                                         .connect_ms = 2000};
    return http_create(&options, err);
}

bool api_is_ready(struct http *http, struct err *err)
{
    struct buf text = {.limit = ANSWER_BYTES};
    const struct http_request request = {
        .method = "GET", .path = "/readyz", .response = &text, .timeout_ms = 2000};
    const bool ready = http_perform(http, &request, NULL, err) == 0;
    buf_fini(&text);
    return ready;
}

/* Whether HOME/agents/NAME/FILE exists. */
static bool agent_has(const char *home, const char *name, const char *file)
{
    char path[HOME_PATH_BYTES];
    snprintf(path, sizeof(path), "%s/agents/%s/%s", home, name, file);
    return file_exists(path);
}

bool agent_is_removed(const char *home, const char *name)
{
    return agent_has(home, name, "agent.json.removed") && !agent_has(home, name, "agent.json");
}

bool agent_needs_token(const char *home, const char *name)
{
    char join[HOME_PATH_BYTES];
    snprintf(join, sizeof(join), "%s/run/join/%s", home, name);
    return !file_exists(join) && !agent_has(home, name, "agent.json") && !agent_is_removed(home, name);
}

static int token_offer(struct http *http, const char *home, const char *name, struct err *err)
{
    char path[HOME_PATH_BYTES];
    json_t *answer = NULL;
    /* The configuration names the agent, so it may have the name even if another machine had it before. */
    json_t *wish = json_pack("{s:s, s:b}", "node", name, "replace", 1);
    int status = http_json(http, "POST", "/v1/join-tokens", wish, 5000, &answer, err);
    json_decref(wish);
    const char *token = json_string_value(json_object_get(answer, "token"));
    if (status == 0 && !token)
        status = err_set(err, ERR_PEER, "the api gave no join token");
    if (status == 0)
        status = file_path(path, sizeof(path), err, "%s/run/join/%s", home, name);
    if (status == 0)
        status = file_write_atomic(path, token, strlen(token), 0600, err);
    json_decref(answer);
    return status < 0 ? err_wrap(err, "a join token for agent %s", name) : 0;
}

int local_join(const char *home, struct err *err)
{
    struct home_access access = {0};
    const uint64_t deadline = clock_mono_ns() + (uint64_t)READY_SECONDS * 1000000000u;
    struct http *http = home_access_read(home, &access, err) == 0 ? home_http(&access, err) : NULL;
    int status = http ? 0 : -1;
    while (status == 0 && !api_is_ready(http, err)) {
        if (clock_left_ms(deadline, 1) == 0)
            status = err_wrap(err, "the api was not ready within %d s", READY_SECONDS);
        poll(NULL, 0, POLL_MS);
    }
    json_t *state = state_load(home);
    const json_t *services = json_object_get(state, "services");
    for (size_t i = 0; status == 0 && i < json_array_size(services); i++) {
        const json_t *service = json_array_get(services, i);
        const char *role = json_string_value(json_object_get(service, "role"));
        const char *name = json_string_value(json_object_get(service, "name"));
        if (role && name && strcmp(role, "agent") == 0 &&
            json_integer_value(json_object_get(service, "pid")) == 0 && agent_needs_token(home, name)) {
            status = token_offer(http, home, name, err);
        }
    }
    json_decref(state);
    http_destroy(http);
    memset(access.token, 0, sizeof(access.token));
    return status;
}
