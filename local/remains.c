#include "local/remains.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/file.h"
#include "common/process.h"

enum { GRACE_MS = 3000, KILL_MS = 5000, REMAINS_MAX = 512 };

static bool is_ours(const char *program, const char *wanted)
{
    if (wanted[0] != '\0')
        return strcmp(program, wanted) == 0;
    return strncmp(program, "motley-", 7) == 0 || strcmp(program, "postgres") == 0 ||
           strcmp(program, "redis-server") == 0;
}

static bool is_below(const char *path, const char *home)
{
    const size_t size = strlen(home);
    return path && strncmp(path, home, size) == 0 && (path[size] == '\0' || path[size] == '/');
}

/* Looks for the home inside arguments, since Redis changes its title to "redis-server
 * unix:/HOME/run/redis.sock", and at the folder in which it runs, HOME/redis, since with a port its title is
 * "redis-server 0.0.0.0:6380". */
static bool names_home(const struct remains_process *process, const char *home)
{
    char link[64], folder[PATH_MAX];
    for (const char *word = process->command; *word != '\0'; word += strlen(word) + 1)
        if (is_below(strstr(word, home), home))
            return true;
    if (strcmp(process->program, "redis-server") != 0)
        return false;
    snprintf(link, sizeof(link), "/proc/%d/cwd", (int)process->pid);
    const ssize_t length = readlink(link, folder, sizeof(folder) - 1);
    folder[length > 0 ? length : 0] = '\0';
    return is_below(folder, home);
}

static bool process_read(pid_t pid, struct remains_process *process)
{
    char path[64];
    struct err err;
    struct buf text = {.limit = REMAINS_COMMAND_BYTES - 2};
    snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pid);
    bool good = file_read_all(path, REMAINS_COMMAND_BYTES - 2, &text, &err) == 0 && text.size > 0;
    if (good) {
        memset(process->command, 0, sizeof(process->command));
        memcpy(process->command, text.data, text.size);
        /* Titles look like "/usr/bin/redis-server unixsocket:/…" and "postgres: checkpointer". */
        const char *end = process->command + strcspn(process->command, " :");
        const char *name = end;
        while (name > process->command && name[-1] != '/')
            name--;
        snprintf(process->program, sizeof(process->program), "%.*s", (int)(end - name), name);
        process->pid = pid;
        process->start = process_start_time(pid);
        good = process->start != 0;
    }
    buf_fini(&text);
    return good;
}

void remains_each(const char *home, const char *program, remains_fn *found, void *arg)
{
    DIR *folder = opendir("/proc");
    struct remains_process *process = malloc(sizeof(*process));
    for (struct dirent *entry; folder && process && (entry = readdir(folder));) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        const pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (pid != getpid() && process_read(pid, process) && is_ours(process->program, program) &&
            names_home(process, home)) {
            found(arg, process);
        }
    }
    free(process);
    if (folder)
        closedir(folder);
}

struct remains_list {
    size_t count;
    struct {
        pid_t pid;
        uint64_t start;
    } items[REMAINS_MAX];
};

static void remains_remember(void *arg, const struct remains_process *process)
{
    struct remains_list *list = arg;
    if (list->count < REMAINS_MAX) {
        list->items[list->count].pid = process->pid;
        list->items[list->count].start = process->start;
        list->count++;
    }
}

static size_t living(const struct remains_list *list, int signal_number, pid_t *one)
{
    size_t count = 0;
    struct err err;
    for (size_t i = 0; i < list->count; i++) {
        if (process_is(list->items[i].pid, list->items[i].start)) {
            count++;
            *one = list->items[i].pid;
            if (signal_number != 0)
                process_signal(list->items[i].pid, list->items[i].start, signal_number, &err);
        }
    }
    return count;
}

static size_t remains_wait_gone(const struct remains_list *list, int ms, pid_t *one)
{
    const uint64_t deadline = clock_mono_ns() + (uint64_t)ms * 1000000u;
    size_t left;
    while ((left = living(list, 0, one)) > 0 && clock_left_ms(deadline, 1) > 0)
        poll(NULL, 0, 10);
    return left;
}

int remains_stop(const char *home, const char *program, struct err *err)
{
    struct remains_list *list = calloc(1, sizeof(*list));
    if (!list)
        return err_set(err, ERR_NOMEM, "out of memory for a list of processes");
    pid_t one = 0;
    remains_each(home, program, remains_remember, list);
    living(list, SIGTERM, &one);
    size_t left = remains_wait_gone(list, GRACE_MS, &one);
    if (left > 0) {
        living(list, SIGKILL, &one);
        left = remains_wait_gone(list, KILL_MS, &one);
    }
    free(list);
    return left == 0 ? 0
                     : err_set(err, ERR_TIMEOUT, "process %d of \"%s\" could not be stopped", (int)one, home);
}
