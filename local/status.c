/* Reports which processes of a home run, from the supervisor's record and /proc. */
#include "local/local.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/document.h"
#include "common/file.h"
#include "common/json.h"
#include "common/process.h"
#include "local/home.h"
#include "local/remains.h"
#include "local/state.h"

enum { STATE_BYTES = 1 << 20 };

json_t *state_load(const char *home)
{
    char path[HOME_PATH_BYTES];
    struct err err;
    snprintf(path, sizeof(path), "%s/run/state.json", home);
    json_t *state = document_load(path, STATE_BYTES, &err);
    /* A copy of a home that is up has that home's record, and none of its processes. */
    const char *of = json_string_value(json_object_get(state, "home"));
    if (of && strcmp(of, home) != 0 && file_exists(of)) {
        json_decref(state);
        return NULL;
    }
    return state;
}

pid_t state_supervisor(const json_t *state, uint64_t *start)
{
    const pid_t pid = (pid_t)json_integer_value(json_object_get(state, "pid"));
    *start = (uint64_t)json_integer_value(json_object_get(state, "start"));
    return pid > 0 && *start != 0 && process_is(pid, *start) ? pid : 0;
}

char *log_tail(const char *home, const char *name, char *out, size_t size)
{
    char path[HOME_PATH_BYTES];
    struct err err;
    struct buf text = {.limit = 80 << 20};
    snprintf(path, sizeof(path), "%s/logs/%s.log", home, name);
    out[0] = '\0';
    if (file_read_all(path, 80 << 20, &text, &err) == 0) {
        while (text.size > 0 && (text.data[text.size - 1] == '\n' || text.data[text.size - 1] == ' '))
            text.size--;
        size_t begin = text.size > size - 1 ? text.size - (size - 1) : 0;
        for (size_t i = begin; i < text.size && begin > 0; i++) {
            if (text.data[i] == '\n') { /* the excerpt begins with a whole line, if it has one */
                begin = i + 1;
                break;
            }
        }
        for (size_t i = begin; i < text.size; i++)
            out[i - begin] = text.data[i] == '\n' ? '|' : (char)text.data[i];
        out[text.size - begin] = '\0';
    }
    buf_fini(&text);
    return out;
}

bool local_is_up(const char *home)
{
    uint64_t start;
    struct err why;
    char place[HOME_PLACE_BYTES];
    json_t *state = home_place(home, false, place, &why) == 0 ? state_load(place) : NULL;
    const bool up = state && state_supervisor(state, &start) != 0;
    json_decref(state);
    return up;
}

int local_disk(const char *home, struct err *err)
{
    return local_is_up(home) ? home_space(home, err) : 0;
}

/* Whether the file "EPOCH PID" names this process. */
static bool is_leader(const char *path, pid_t pid)
{
    struct err err;
    struct buf text = {.limit = 128};
    bool leads = false;
    if (path && file_read_all(path, 128, &text, &err) == 0) {
        const char *space = strchr(buf_str(&text), ' ');
        leads = space && strtol(space + 1, NULL, 10) == pid;
    }
    buf_fini(&text);
    return leads;
}

static int process_add(json_t *list, const char *role, const char *name, pid_t pid, const char *address,
                       json_t *leader, int64_t restarts)
{
    return json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:s?, s:o, s:I}", "role", role, "name",
                                                 name, "pid", (json_int_t)pid, "address", address, "leader",
                                                 leader, "restarts", (json_int_t)restarts));
}

static void service_status(json_t *list, const json_t *service)
{
    const pid_t pid = (pid_t)json_integer_value(json_object_get(service, "pid"));
    const uint64_t start = (uint64_t)json_integer_value(json_object_get(service, "start"));
    const char *role = json_string_value(json_object_get(service, "role"));
    const char *name = json_string_value(json_object_get(service, "name"));
    if (!role || !name || pid <= 0 || !process_is(pid, start) ||
        json_is_true(json_object_get(service, "once"))) {
        return;
    }
    json_t *leader = json_null();
    if (strcmp(role, "scheduler") == 0)
        leader = json_boolean(is_leader(json_string_value(json_object_get(service, "leader_file")), pid));
    process_add(list, role, name, pid, json_string_value(json_object_get(service, "address")), leader,
                json_integer_value(json_object_get(service, "restarts")));
}

struct worker_search {
    json_t *list;
    const char *home;
};

/* Names a worker by its folder, which is below HOME/agents/NAME. */
static void worker_found(void *arg, const struct remains_process *process)
{
    struct worker_search *search = arg;
    char prefix[HOME_PATH_BYTES];
    char name[128] = "worker";
    const char *address = NULL;
    const int size = snprintf(prefix, sizeof(prefix), "%s/agents/", search->home);
    for (const char *word = process->command; *word != '\0'; word += strlen(word) + 1) {
        if (strncmp(word, prefix, (size_t)size) == 0) {
            snprintf(name, sizeof(name), "%.*s", (int)strcspn(word + size, "/"), word + size);
            address = strstr(word, ".sock") ? word : address;
        }
    }
    process_add(search->list, "worker", name, process->pid, address, json_null(), 0);
}

json_t *local_status(const char *home, struct err *err)
{
    struct err why;
    char place[HOME_PLACE_BYTES] = "";
    json_t *state = home_place(home, false, place, &why) == 0 ? state_load(place) : NULL;
    uint64_t start = 0;
    const pid_t supervisor = state ? state_supervisor(state, &start) : 0;
    json_t *list = json_array();
    json_t *document =
        json_pack("{s:s, s:b, s:o}", "home", home, "up", supervisor != 0 ? 1 : 0, "processes", list);
    if (!document) {
        json_decref(state);
        err_set(err, ERR_NOMEM, "out of memory for a status");
        return NULL;
    }
    if (supervisor != 0)
        process_add(list, "supervisor", "supervisor", supervisor, NULL, json_null(), 0);
    const json_t *services = json_object_get(state, "services");
    for (size_t i = 0; i < json_array_size(services); i++)
        service_status(list, json_array_get(services, i));
    struct worker_search search = {.list = list, .home = place};
    if (place[0] != '\0')
        remains_each(place, "motley-worker", worker_found, &search);
    json_decref(state);
    return document;
}
