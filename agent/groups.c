#include "agent/groups.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/file.h"

enum { TEXT_BYTES_MAX = 1 << 20 };

struct groups {
    char folder[3900];
};

static int groups_text_read(const char *folder, const char *name, struct buf *text, struct err *err)
{
    char path[4096];
    return file_path(path, sizeof(path), err, "%s/%s", folder, name) < 0
               ? -1
               : file_read_all(path, TEXT_BYTES_MAX, text, err);
}

/* Writes a control file with one write, as the kernel requires. */
static int text_write(const char *folder, const char *name, const char *text, struct err *err)
{
    char path[4096];
    if (file_path(path, sizeof(path), err, "%s/%s", folder, name) < 0)
        return -1;
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    const ssize_t wrote = fd >= 0 ? write(fd, text, strlen(text)) : -1;
    const int number = errno;
    if (fd >= 0)
        close(fd);
    return wrote < 0 ? err_errno(err, ERR_IO, number, "could not write \"%s\" to \"%s\"", text, path) : 0;
}

/* Finds where cgroup v2 is mounted. ERR_UNSUPPORTED. */
static int mount_find(char out[2048], struct err *err)
{
    struct buf text = {.limit = TEXT_BYTES_MAX};
    char *rest = NULL;
    out[0] = '\0';
    if (file_read_all("/proc/self/mountinfo", TEXT_BYTES_MAX, &text, err) == 0) {
        for (char *line = strtok_r((char *)text.data, "\n", &rest); line && out[0] == '\0';
             line = strtok_r(NULL, "\n", &rest)) {
            char root[512], point[2048];
            const char *kind = strstr(line, " - ");
            if (kind && strncmp(kind, " - cgroup2 ", 11) == 0 &&
                sscanf(line, "%*d %*d %*s %511s %2047s", root, point) == 2 && strcmp(root, "/") == 0) {
                snprintf(out, 2048, "%s", point);
            }
        }
    }
    buf_fini(&text);
    return out[0] != '\0' ? 0 : err_set(err, ERR_UNSUPPORTED, "no cgroup v2 is mounted here");
}

/* Checks that this process is alone in the group, or that the group is empty and all processes are in groups
 * below it. */
static int alone_check(const char *folder, struct err *err)
{
    struct buf text = {.limit = TEXT_BYTES_MAX};
    if (groups_text_read(folder, "cgroup.procs", &text, err) < 0) {
        buf_fini(&text);
        return -1;
    }
    char *end = NULL;
    const char *said = buf_str(&text);
    const long pid = strtol(said, &end, 10);
    const bool alone = text.size == 0 || (end != said && pid == (long)getpid() && strcmp(end, "\n") == 0);
    buf_fini(&text);
    return alone ? 0 : err_set(err, ERR_UNSUPPORTED, "others share the control group \"%.300s\"", folder);
}

static bool lists(const char *text, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word)) {
        const char behind = at[length];
        if ((at == text || at[-1] == ' ') && (behind == '\0' || behind == ' ' || behind == '\n'))
            return true;
    }
    return false;
}

static int leaf_enter(const char *folder, struct err *err)
{
    char leaf[4000], pid[32];
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    if (file_path(leaf, sizeof(leaf), err, "%s/agent", folder) < 0)
        return -1;
    if (mkdir(leaf, 0755) < 0 && errno != EEXIST)
        return err_errno(err, ERR_UNSUPPORTED, errno, "no group can be made in \"%.300s\"", folder);
    return text_write(leaf, "cgroup.procs", pid, err) < 0 ||
                   text_write(folder, "cgroup.subtree_control", "+memory", err) < 0
               ? -1
               : 0;
}

struct groups *groups_open_at(const char *folder, struct err *err)
{
    struct buf text = {.limit = TEXT_BYTES_MAX};
    struct groups *groups = calloc(1, sizeof(*groups));
    int result = !groups ? err_set(err, ERR_NOMEM, "no memory for control groups")
                         : file_path(groups->folder, sizeof(groups->folder), err, "%s", folder);
    if (result == 0)
        result = groups_text_read(folder, "cgroup.controllers", &text, err);
    if (result == 0 && !lists(buf_str(&text), "memory")) {
        result =
            err_set(err, ERR_UNSUPPORTED, "the control group \"%.300s\" has no memory controller", folder);
    }
    if (result < 0 || alone_check(folder, err) < 0 || leaf_enter(folder, err) < 0) {
        err->code = ERR_UNSUPPORTED;
        free(groups);
        groups = NULL;
    }
    buf_fini(&text);
    return groups;
}

struct groups *groups_open(struct err *err)
{
    static const char begin[] = "0::", leaf[] = "/agent";
    char point[2048], folder[3900];
    struct buf text = {.limit = TEXT_BYTES_MAX};
    int result =
        mount_find(point, err) < 0 || file_read_all("/proc/self/cgroup", TEXT_BYTES_MAX, &text, err) < 0 ? -1
                                                                                                         : 0;
    const char *line = result < 0 ? NULL : strstr(buf_str(&text), begin);
    if (result == 0 && !line)
        result = err_set(err, ERR_UNSUPPORTED, "this process is in no cgroup v2");
    if (result == 0) {
        const char *path = line + sizeof(begin) - 1;
        int length = (int)strcspn(path, "\n");
        /* systemd (DelegateSubgroup=agent) may have put the agent there */
        if (length > (int)sizeof(leaf) - 1 &&
            strncmp(path + length - (sizeof(leaf) - 1), leaf, sizeof(leaf) - 1) == 0) {
            length -= (int)sizeof(leaf) - 1;
        }
        result = file_path(folder, sizeof(folder), err, "%s%.*s", point, length, path);
    }
    buf_fini(&text);
    if (result < 0) {
        err->code = ERR_UNSUPPORTED;
        return NULL;
    }
    return groups_open_at(folder, err);
}

void groups_close(struct groups *groups)
{
    free(groups);
}

/* Returns the limit of a device's group: the device's limit, a quarter more, and 1 GiB for the process
 * itself, libraries and the page cache. */
static uint64_t worker_bytes(uint64_t device_bytes)
{
    return device_bytes + device_bytes / 4 + ((uint64_t)1 << 30);
}

int groups_worker(struct groups *groups, uint32_t index, uint64_t device_bytes, char procs[4096],
                  struct err *err)
{
    char folder[4000], bytes[32];
    procs[0] = '\0';
    if (!groups)
        return 0;
    snprintf(bytes, sizeof(bytes), "%" PRIu64, worker_bytes(device_bytes));
    if (file_path(folder, sizeof(folder), err, "%s/device-%u", groups->folder, index) < 0)
        return -1;
    if (mkdir(folder, 0755) < 0 && errno != EEXIST)
        return err_errno(err, ERR_IO, errno, "could not make the control group \"%.300s\"", folder);
    return text_write(folder, "memory.max", bytes, err) < 0
               ? -1
               : file_path(procs, 4096, err, "%s/cgroup.procs", folder);
}
