#include "engine/gpu/health.h"

#include <errno.h>
#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/gpu/health_private.h"

enum { EMULATED_BYTES_MAX = 1 << 16 };

/* --- opening a vendor's library */

int health_library(const char *what, const char *least, const char *environment, const char *const *files,
                   const struct health_symbol *symbols, size_t count, void *api, struct err *err)
{
    const char *asked = getenv(environment);
    const char *const only[] = {asked, NULL};
    void *handle = NULL;
    char why[256] = "";
    for (files = asked && asked[0] != '\0' ? only : files; *files && !handle; files++) {
        handle = dlopen(*files, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        const char *said = !handle ? dlerror() : NULL;
        if (said && why[0] == '\0')
            snprintf(why, sizeof(why), "%s", said);
    }
    if (!handle)
        return err_set(err, ERR_NOT_FOUND, "no %s on this machine: %s", what, why);
    for (size_t i = 0; i < count; i++) {
        void *found = dlsym(handle, symbols[i].name);
        if (!found && symbols[i].older)
            found = dlsym(handle, symbols[i].older);
        if (!found && symbols[i].needed)
            return err_set(err, ERR_UNSUPPORTED, "%s lacks %s: it must be of %s or later", what,
                           symbols[i].name, least);
        memcpy((char *)api + symbols[i].at, &found, sizeof(found));
    }
    return 0;
}

void health_set(json_t *card, const char *key, uint64_t value)
{
    if (value <= INT64_MAX)
        json_object_set_new(card, key, json_integer((json_int_t)value));
}

/* --- emulated cards, described by a file --- */

static int health_emulated_open(void **state, char version[HEALTH_VERSION_SIZE], struct err *err)
{
    const char *path = getenv("MOTLEY_EMULATED_HEALTH");
    version[0] = '\0';
    *state = NULL;
    return path && path[0] != '\0' ? 0 : err_set(err, ERR_NOT_FOUND, "MOTLEY_EMULATED_HEALTH names no file");
}

static int emulated_read(void *state, json_t *cards, struct err *err)
{
    (void)state;
    const char *path = getenv("MOTLEY_EMULATED_HEALTH"), *name;
    static char text[EMULATED_BYTES_MAX];
    FILE *file = path ? fopen(path, "re") : NULL;
    if (!file) /* no file means that there is nothing to report */
        return 0;
    size_t size = fread(text, 1, sizeof(text), file);
    fclose(file);
    json_error_t wrong;
    json_t *said = json_loadb(text, size, 0, &wrong), *card;
    if (!json_is_object(said)) {
        json_decref(said);
        return err_set(err, ERR_INVALID, "%s: %s", path, said ? "no object" : wrong.text);
    }
    json_object_foreach (said, name, card) {
        json_t *copy = json_is_object(card) ? json_copy(card) : NULL;
        if (!copy)
            continue;
        json_object_set_new(copy, "kind", json_string("emulated"));
        json_object_set_new(copy, "device", json_string(name));
        json_array_append_new(cards, copy);
    }
    json_decref(said);
    return 0;
}

static void health_emulated_close(void *state)
{
    (void)state;
}

static const struct health_source health_emulated = {"emulated", health_emulated_open, emulated_read,
                                                     health_emulated_close};

/* --- all sources --- */

static const struct health_source *const sources[] = {&health_nvml, &health_rocm_smi, &health_emulated};
enum { SOURCES = sizeof(sources) / sizeof(*sources) };

struct gpu_health {
    struct {
        void *state;
        bool open;
        char version[HEALTH_VERSION_SIZE];
        struct err err;
    } sources[SOURCES];
};

struct gpu_health *gpu_health_open(struct err *err)
{
    struct gpu_health *health = calloc(1, sizeof(*health));
    if (!health) {
        err_set(err, ERR_NOMEM, "out of memory for the health of cards");
        return NULL;
    }
    for (size_t i = 0; i < SOURCES; i++)
        health->sources[i].open = sources[i]->open(&health->sources[i].state, health->sources[i].version,
                                                   &health->sources[i].err) == 0;
    return health;
}

void gpu_health_close(struct gpu_health *health)
{
    for (size_t i = 0; health && i < SOURCES; i++)
        if (health->sources[i].open)
            sources[i]->close(health->sources[i].state);
    free(health);
}

json_t *gpu_health_read(struct gpu_health *health, struct err *err)
{
    json_t *libraries = json_array(), *cards = json_array();
    for (size_t i = 0; i < SOURCES; i++) {
        struct err why = health->sources[i].err;
        int status = health->sources[i].open ? sources[i]->read(health->sources[i].state, cards, &why) : -1;
        json_array_append_new(libraries,
                              json_pack("{s:s, s:s, s:s?}", "kind", sources[i]->kind, "version",
                                        health->sources[i].version, "why", status == 0 ? NULL : why.text));
    }
    json_t *all = json_pack("{s:o, s:o}", "libraries", libraries, "cards", cards);
    if (!all)
        err_set(err, ERR_NOMEM, "out of memory for the health of cards");
    return all;
}

int gpu_health_watch(uint32_t interval_ms, struct err *err)
{
    struct gpu_health *health = gpu_health_open(err);
    const pid_t parent = getppid();
    int result = !health ? -1 : 0;
    while (result == 0 && getppid() == parent) {
        json_t *all = gpu_health_read(health, err);
        if (!all || json_dumpf(all, stdout, JSON_COMPACT) < 0 || fputc(10, stdout) == EOF ||
            fflush(stdout) != 0)
            result = !all ? -1 : err_errno(err, ERR_IO, errno, "could not print the health of cards");
        json_decref(all);
        struct pollfd closed = {.fd = STDOUT_FILENO}; /* POLLERR means that nobody reads any more */
        if (result == 0 && poll(&closed, 1, (int)interval_ms) > 0)
            break;
    }
    gpu_health_close(health);
    return result;
}
