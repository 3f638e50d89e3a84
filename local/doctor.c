/* What is wrong with a home's server on this machine, each fault a sentence that says what to do. */
#include "local/local.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/faults.h"
#include "common/file.h"
#include "common/process.h"
#include "common/tls.h"
#include "local/home.h"
#include "local/postgres.h"
#include "local/state.h"

enum { PEM_BYTES_MAX = 65536, RESTARTS_MANY = 3, DAYS_LEFT_MIN = 30, DAY_S = 86400 };

static void services_look(const char *home, json_t *faults)
{
    char tail[300], file[160];
    size_t i;
    json_t *service, *state = state_load(home);
    uint64_t start;
    if (!state || state_supervisor(state, &start) == 0)
        fault_add(faults, "nothing runs in %s: motley up --home %s, or systemctl start motley", home, home);
    else
        json_array_foreach (json_object_get(state, "services"), i, service) {
            const char *role = json_string_value(json_object_get(service, "role"));
            const char *name = json_string_value(json_object_get(service, "name"));
            const json_int_t restarts = json_integer_value(json_object_get(service, "restarts"));
            const pid_t pid = (pid_t)json_integer_value(json_object_get(service, "pid"));
            if (!role || !name || json_is_true(json_object_get(service, "once")))
                continue;
            snprintf(file, sizeof(file), "%s%s", strcmp(role, "agent") == 0 ? "agent-" : "", name);
            if (!process_is(pid, (uint64_t)json_integer_value(json_object_get(service, "start"))))
                fault_add(faults, "the %s \"%s\" does not run; its log %s/logs/%s.log ends: %s", role, name,
                          home, file, log_tail(home, file, tail, sizeof(tail)));
            else if (restarts >= RESTARTS_MANY)
                fault_add(faults, "the %s \"%s\" died %lld times since the start; its log is %s/logs/%s.log",
                          role, name, (long long)restarts, home, file);
        }
    json_decref(state);
}

static void local_certificate_look(const char *home, const char *name, const char *cure, json_t *faults)
{
    char path[HOME_PATH_BYTES], identity[TLS_IDENTITY_SIZE], ends[32];
    struct err err;
    int64_t issued_s, ends_s;
    struct buf text = {.limit = PEM_BYTES_MAX};
    if (file_path(path, sizeof(path), &err, "%s/ca/%s.crt", home, name) < 0 ||
        file_read_all(path, PEM_BYTES_MAX, &text, &err) < 0 ||
        tls_certificate_read(buf_str(&text), identity, &issued_s, &ends_s, &err) < 0)
        fault_add(faults, "the certificate %s/ca/%s.crt cannot be used: %s", home, name, err.text);
    else if (ends_s - clock_wall_us() / 1000000 < (int64_t)DAYS_LEFT_MIN * DAY_S)
        fault_add(faults, "the certificate %s ends at %s: %s", path, clock_words_us(ends_s * 1000000, ends),
                  cure);
    buf_fini(&text);
}

json_t *local_doctor(const char *home_given, struct err *err)
{
    char home[HOME_PLACE_BYTES];
    struct err why;
    struct postgres_place postgres;
    if (home_place(home_given, false, home, err) < 0)
        return NULL;
    json_t *faults = json_array();
    if (!faults) {
        err_set(err, ERR_NOMEM, "no memory for a list of faults");
        return NULL;
    }
    if (home_limits(&why) < 0)
        fault_add(faults, "%s", why.text);
    if (home_space(home, &why) < 0)
        fault_add(
            faults,
            "%s: motley df says who has what, and motley rm removes jobs that have ended, but not once the "
            "disk is full; then delete what is not Motley's first, or old logs",
            why.text);
    if (postgres_find(home, &postgres, &why) < 0)
        fault_add(faults, "%s", why.text);
    local_certificate_look(home, "server",
                           "remove it and server.host while the home is down, and motley up makes a new one",
                           faults);
    services_look(home, faults);
    return faults;
}
