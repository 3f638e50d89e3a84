#include "worker/start/reach.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/confine.h"
#include "common/file.h"
#include "common/landlock.h"
#include "common/sandbox.h"

/* What a worker reads in addition to the system's programs and libraries (sandbox_readable). */
static const char *const readable[] = {
    "/proc", /* of other processes only what everybody may see (landlock.h) */
    "/sys",
    /* names of hosts, and the configuration of TLS */
    "/etc/hosts",
    "/etc/resolv.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/run/systemd/resolve",
    "/run/NetworkManager",
    "/run/resolvconf",
    "/etc/ssl/openssl.cnf",
    "/etc/ssl/certs",
    "/etc/pki/tls/openssl.cnf",
    "/etc/crypto-policies",
    /* where some distributions have libraries and drivers */
    "/nix/store",
    "/run/opengl-driver",
};
/* Patterns of the cards' devices. */
static const char *const card_devices[] = {"/dev/nvidia*", "/dev/kfd", "/dev/dri", "/dev/dxg"};
static const char *const plain_devices[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random",
                                            "/dev/urandom"};
/* Variables that name files or folders, with ":" between them, that drivers and libraries are loaded from. */
static const char *const variables[] = {"LD_LIBRARY_PATH",           "MOTLEY_CUDA_LIBRARY",
                                        "MOTLEY_HIP_LIBRARY",        "MOTLEY_CUBLASLT_LIBRARY",
                                        "MOTLEY_ROCBLAS_LIBRARY",    "ROCBLAS_TENSILE_LIBPATH",
                                        "HIPBLASLT_TENSILE_LIBPATH", "MOTLEY_EMULATED"};

struct rules {
    int fd;              /* Landlock's */
    char home[PATH_MAX]; /* what is kept from the worker, without links; "none", no absolute path: nothing is
                          */
};

static bool reach_contains(const char *folder, const char *path)
{
    const size_t length = strcmp(folder, "/") == 0 ? 0 : strlen(folder);
    return strncmp(folder, path, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

/* Allows to read the entries of `folder`, but the one that leads to the agent's home: `folder` becomes that
 * one, or "" if there is none. */
static int allow_entries(const struct rules *rules, char folder[PATH_MAX])
{
    char onward[PATH_MAX] = "", below[PATH_MAX];
    struct stat about;
    DIR *entries = opendir(folder);
    int result = 0;
    for (const struct dirent *entry; entries && result == 0 && (entry = readdir(entries));) {
        struct err ignored;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            file_path(below, sizeof(below), &ignored, "%s/%s", strcmp(folder, "/") == 0 ? "" : folder,
                      entry->d_name) < 0 ||
            lstat(below, &about) < 0 || S_ISLNK(about.st_mode))
            continue;
        if (reach_contains(below, rules->home))
            memcpy(onward, below, sizeof(onward));
        else
            result = landlock_allow(rules->fd, below, LANDLOCK_MAY_READ);
    }
    if (entries)
        closedir(entries);
    memcpy(folder, onward, sizeof(onward));
    return result;
}

/* Allows to read what lies at `path`, but nothing of the agent's home below it. */
static int allow_around_home(const struct rules *rules, const char *path)
{
    char real[PATH_MAX];
    int result = 0;
    if (!realpath(path, real))
        return 0;
    while (result == 0 && real[0] != '\0' && !reach_contains(rules->home, real)) {
        if (!reach_contains(real, rules->home))
            return landlock_allow(rules->fd, real, LANDLOCK_MAY_READ);
        result = allow_entries(rules, real);
    }
    return result;
}

/* Allows to read a folder or, of a file, the folder that it is in. */
static int allow_folder_of(const struct rules *rules, const char *path)
{
    char folder[PATH_MAX];
    struct stat about;
    const char *end = strrchr(path, '/');
    if (stat(path, &about) == 0 && S_ISDIR(about.st_mode))
        return allow_around_home(rules, path);
    if (!end || (size_t)(end - path) >= sizeof(folder))
        return 0;
    memcpy(folder, path, (size_t)(end - path));
    folder[end - path] = '\0';
    return allow_around_home(rules, folder);
}

static int allow_list(const struct rules *rules, const char *list)
{
    char paths[PATH_MAX], *rest = paths;
    int result = 0;
    if (!list || strlen(list) >= sizeof(paths))
        return 0;
    memcpy(paths, list, strlen(list) + 1);
    for (const char *path; result == 0 && (path = strsep(&rest, ":"));)
        if (path[0] == '/' || path[0] == '@') /* "@" stands before the path of a file of options */
            result = allow_folder_of(rules, path[0] == '@' ? path + 1 : path);
    return result;
}

static int allow_pattern(const struct rules *rules, const char *pattern, uint64_t rights)
{
    glob_t found;
    int result = 0;
    if (glob(pattern, GLOB_NOSORT, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc && result == 0; i++)
            result = landlock_allow(rules->fd, found.gl_pathv[i], rights);
    globfree(&found);
    return result;
}

/* Allows to read one file of a model, or its folder. A link may lead anywhere, so it is not followed: models
 * that are used in place have the paths of their files without links (api/blobs/models.c). */
static int allow_model_path(const struct rules *rules, const char *path)
{
    struct stat about;
    if (!path || lstat(path, &about) < 0)
        return 0;
    if (S_ISDIR(about.st_mode))
        return allow_around_home(rules, path);
    char real[PATH_MAX];
    return S_ISREG(about.st_mode) && realpath(path, real) && !reach_contains(rules->home, real)
               ? landlock_allow(rules->fd, real, LANDLOCK_MAY_READ)
               : 0;
}

static int allow_model(const struct rules *rules, const struct model_part *model)
{
    int result = allow_model_path(rules, model->path);
    for (uint32_t f = 0; f < model->file_count && result == 0; f++)
        result = allow_model_path(rules, model->files[f].path);
    return result;
}

static int allow_card(const struct rules *rules)
{
    const char *cache = getenv("CUDA_CACHE_PATH"), *mps = getenv("CUDA_MPS_PIPE_DIRECTORY");
    int result = landlock_allow(rules->fd, "/dev/shm", LANDLOCK_MAY_WRITE);
    if (result == 0)
        result = landlock_allow(rules->fd, mps ? mps : "/tmp/nvidia-mps", LANDLOCK_MAY_WRITE);
    struct err ignored; /* the driver works without its cache */
    if (result == 0 && cache && file_mkdirs(cache, 0700, &ignored) == 0)
        result = landlock_allow(rules->fd, cache, LANDLOCK_MAY_WRITE);
    for (size_t i = 0; i < sizeof(card_devices) / sizeof(card_devices[0]) && result == 0; i++)
        result = allow_pattern(rules, card_devices[i], LANDLOCK_MAY_USE);
    return result;
}

static bool reach_is_card(const struct local_part *local)
{
    return strcmp(local->kind, "cuda") == 0 || strcmp(local->kind, "hip") == 0;
}

/* Allows to read the CAs. The agent's are alone in a folder, "trust", as the file may be replaced. */
static int allow_authority(const struct rules *rules, const char *path)
{
    char folder[PATH_MAX];
    const char *end = strrchr(path, '/');
    static const char trust[] = "/trust";
    const size_t size = end ? (size_t)(end - path) : 0;
    if (size < sizeof(trust) || size >= sizeof(folder) ||
        memcmp(end - (sizeof(trust) - 1), trust, sizeof(trust) - 1) != 0)
        return landlock_allow(rules->fd, path, LANDLOCK_MAY_READ);
    memcpy(folder, path, size);
    folder[size] = '\0';
    return landlock_allow(rules->fd, folder, LANDLOCK_MAY_READ);
}

/* Allows what was given to this worker alone. */
static int allow_own(const struct rules *rules, const struct reach *reach)
{
    const struct local_part *local = reach->local;
    const char *const cas[] = {local->ca, local->api_ca}, *folders[] = {local->cache, reach->dir};
    const char *fifo = getenv("MOTLEY_EMULATED_HOLD");
    int result = fifo ? landlock_allow(rules->fd, fifo, LANDLOCK_MAY_USE) : 0;
    for (int i = 0; i < 2 && result == 0; i++)
        result = (cas[i] && allow_authority(rules, cas[i]) < 0) ||
                         (folders[i] && landlock_allow(rules->fd, folders[i], LANDLOCK_MAY_WRITE) < 0)
                     ? -1
                     : 0;
    return result == 0 && reach->model ? allow_model(rules, reach->model) : result;
}

static int allow_system(const struct rules *rules, const struct reach *reach)
{
    char program[PATH_MAX]; /* libraries may lie beside it */
    int result = realpath("/proc/self/exe", program) ? allow_folder_of(rules, program) : 0;
    for (size_t i = 0; sandbox_readable[i] && result == 0; i++)
        result = allow_around_home(rules, sandbox_readable[i]);
    for (size_t i = 0; i < sizeof(readable) / sizeof(readable[0]) && result == 0; i++)
        result = allow_around_home(rules, readable[i]);
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]) && result == 0; i++)
        result = allow_list(rules, getenv(variables[i]));
    for (size_t i = 0; i < sizeof(plain_devices) / sizeof(plain_devices[0]) && result == 0; i++)
        result = landlock_allow(rules->fd, plain_devices[i], LANDLOCK_MAY_USE);
    return result == 0 && reach_is_card(reach->local) ? allow_card(rules) : result;
}

static int thread_confine(void *arg, struct err *err)
{
    const struct rules *rules = arg;
    return confine_thread(rules->fd, err);
}

/* Makes Landlock's rules: -1 with errno. */
static int rules_make(struct rules *rules, const struct reach *reach)
{
    rules->fd = landlock_rules(false);
    return rules->fd < 0 || allow_system(rules, reach) < 0 || allow_own(rules, reach) < 0 ? -1 : 0;
}

int reach_limit(const struct reach *reach, struct worker_link *link, struct err *err)
{
    const struct local_part *local = reach->local;
    const char *lacks = confine_lacks(), *const folders[] = {reach->dir, local->cache};
    struct rules rules = {.fd = -1, .home = "none"};
    struct err ignored; /* who writes there fails, and says so */
    for (int i = 0; i < 2; i++)
        if (folders[i])
            (void)file_mkdirs(folders[i], 0700, &ignored);
    if (local->sandbox == LOCAL_SANDBOX_OFF)
        return 0;
    if (local->sandbox == LOCAL_SANDBOX_REQUIRED && lacks)
        return err_set(err, ERR_NODE,
                       "the agent's configuration has sandbox: required, and this kernel has no %s", lacks);
    int result = 0;
    if ((local->home && !realpath(local->home, rules.home)) ||
        (landlock_version() > 0 && rules_make(&rules, reach) < 0))
        result = err_errno(err, ERR_NODE, errno, "the files that a worker reaches could not be limited");
    if (result == 0 && (worker_link_call(link, thread_confine, &rules, err) < 0 ||
                        thread_confine(&rules, err) < 0 || confine_calls(reach_is_card(local), err) < 0)) {
        err->code = ERR_NODE;
        result = -1;
    }
    if (rules.fd >= 0)
        close(rules.fd);
    return result;
}
