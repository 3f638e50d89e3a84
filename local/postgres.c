#include "local/postgres.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/digest.h"
#include "common/file.h"
#include "common/process.h"
#include "local/home.h"

static const char debian_folder[] = "/usr/lib/postgresql";
static const char elsewhere[] = "/var/lib/motley";

enum { INITDB_SECONDS = 60 };

static bool has_programs(const char *bin)
{
    char path[320];
    snprintf(path, sizeof(path), "%s/initdb", bin);
    if (access(path, X_OK) != 0)
        return false;
    snprintf(path, sizeof(path), "%s/postgres", bin);
    return access(path, X_OK) == 0;
}

/* Finds the highest version below Debian's folder, or the wanted one (not 0). */
static bool debian_find(unsigned long wanted, char *out, size_t size)
{
    DIR *folder = opendir(debian_folder);
    unsigned long best = 0;
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        char *end;
        const unsigned long version = strtoul(entry->d_name, &end, 10);
        char bin[256];
        snprintf(bin, sizeof(bin), "%s/%.32s/bin", debian_folder, entry->d_name);
        if (end == entry->d_name || version <= best || (wanted != 0 && version != wanted) ||
            !has_programs(bin)) {
            continue;
        }
        best = version;
        snprintf(out, size, "%s", bin);
    }
    if (folder)
        closedir(folder);
    return best > 0;
}

static bool path_find(char *out, size_t size)
{
    const char *path = getenv("PATH");
    while (path && *path != '\0') {
        const size_t length = strcspn(path, ":");
        if (length > 0 && length < size) {
            memcpy(out, path, length);
            out[length] = '\0';
            if (has_programs(out))
                return true;
        }
        path += length + (path[length] == ':');
    }
    return false;
}

/* The major version that made an existing cluster; 0: there is none. */
static unsigned long cluster_version(const char *dir)
{
    char path[320];
    struct err err;
    struct buf text = {.limit = 32};
    unsigned long version = 0;
    snprintf(path, sizeof(path), "%s/data/PG_VERSION", dir);
    if (file_read_all(path, 32, &text, &err) == 0)
        version = strtoul(buf_str(&text), NULL, 10);
    buf_fini(&text);
    return version;
}

/* Whether 'uid' may pass through 'path' and every folder above it. */
static bool reachable(const char *path, uid_t uid, gid_t gid)
{
    char part[PATH_MAX];
    if (!realpath(path, part))
        return false;
    for (;;) {
        struct stat info;
        if (stat(part, &info) == 0) {
            const mode_t bit = info.st_uid == uid ? S_IXUSR : info.st_gid == gid ? S_IXGRP : S_IXOTH;
            if ((info.st_mode & bit) == 0)
                return false;
        }
        char *slash = strrchr(part, '/');
        if (!slash || slash == part)
            return true;
        *slash = '\0';
    }
}

/* For root, PostgreSQL runs as the owner of HOME/pg (of a home that another user's service made), else as the
 * user postgres. */
static int user_find(const char *home, struct postgres_place *place, struct err *err)
{
    char path[HOME_PATH_BYTES];
    struct stat info;
    if (geteuid() != 0)
        return 0;
    if (file_path(path, sizeof(path), err, "%s/pg", home) < 0)
        return -1;
    if (stat(path, &info) == 0 && info.st_uid != 0) {
        place->uid = info.st_uid;
        place->gid = info.st_gid;
        return 0;
    }
    const struct passwd *user = getpwnam("postgres");
    if (!user || user->pw_uid == 0) {
        return err_set(
            err, ERR_NOT_FOUND,
            "PostgreSQL refuses to run as root, and there is no user postgres for it: useradd --system "
            "postgres");
    }
    place->uid = user->pw_uid;
    place->gid = user->pw_gid;
    return 0;
}

/* HOME/pg, or below /var/lib/motley where the server's user cannot reach that: by the home's identity, as a
 * home may be moved. */
static int dir_choose(const char *home, struct postgres_place *place, struct err *err)
{
    char digest[65], identity[HOME_SECRET_BYTES];
    if (file_path(place->dir, sizeof(place->dir), err, "%s/pg", home) < 0)
        return -1;
    if (place->uid == 0 || reachable(home, place->uid, place->gid))
        return 0;
    if (home_secret(home, "home.id", identity, err) < 0 ||
        digest_sha256_hex(identity, strlen(identity), digest, err) < 0)
        return -1;
    return file_path(place->dir, sizeof(place->dir), err, "%s/%.16s", elsewhere, digest);
}

int postgres_find(const char *home, struct postgres_place *place, struct err *err)
{
    *place = (struct postgres_place){0};
    if (user_find(home, place, err) < 0 || dir_choose(home, place, err) < 0)
        return -1;
    const char *given = getenv("MOTLEY_POSTGRES_BIN");
    const unsigned long version = cluster_version(place->dir);
    if (given && has_programs(given)) {
        snprintf(place->bin, sizeof(place->bin), "%s", given);
    } else if (!debian_find(version, place->bin, sizeof(place->bin)) &&
               !path_find(place->bin, sizeof(place->bin))) {
        if (version != 0) {
            return err_set(err, ERR_NOT_FOUND, "\"%s\" was made by PostgreSQL %lu, which is not installed",
                           place->dir, version);
        }
        return err_set(
            err, ERR_NOT_FOUND,
            "PostgreSQL is not installed (no initdb below %s or on PATH): apt-get install postgresql",
            debian_folder);
    }
    /* Whoever listens at the socket must be the server's user, or it is somebody else's server. */
    const struct passwd *owner = getpwuid(place->uid != 0 ? place->uid : geteuid());
    const bool plain = owner && !strpbrk(owner->pw_name, " '\\");
    const int length =
        snprintf(place->conninfo, sizeof(place->conninfo), "host=%s dbname=postgres user=motley%s%s",
                 place->dir, plain ? " requirepeer=" : "", plain ? owner->pw_name : "");
    if (length < 0 || (size_t)length >= sizeof(place->conninfo) ||
        strlen(place->dir) + sizeof("/.s.PGSQL.5432") > HOME_SOCKET_BYTES) {
        return err_set(err, ERR_TOO_BIG, "\"%s\" is too long a path for a socket", place->dir);
    }
    if (strpbrk(place->dir, " '\\")) {
        return err_set(err, ERR_INVALID, "\"%s\": spaces, quotes and backslashes cannot be in a home's path",
                       place->dir);
    }
    return 0;
}

static int initdb_run(const struct postgres_place *place, const char *data, const char *log, struct err *err)
{
    char program[320];
    snprintf(program, sizeof(program), "%s/initdb", place->bin);
    const char *const argv[] = {
        program, "-D", data, "-A", "trust", "-U", "motley", "-E", "UTF8", "--locale=C", "--no-instructions",
        NULL};
    const struct process_options options = {.argv = argv,
                                            .dir = "/",
                                            .stdout_path = log,
                                            .stderr_path = log,
                                            .uid = place->uid,
                                            .gid = place->gid,
                                            .own_group = true,
                                            .die_with_parent = true};
    return process_run(&options, INITDB_SECONDS, err) < 0 ? err_wrap(err, "see %s", log) : 0;
}

/* Whether the folder at `path` is the home that has this identity. */
static bool is_home(const char *path, const char *identity)
{
    char name[HOME_PATH_BYTES];
    struct err why;
    struct buf text = {.limit = 128};
    const bool same = file_path(name, sizeof(name), &why, "%s/run/home.id", path) == 0 &&
                      file_read_all(name, 128, &text, &why) == 0 && strcmp(buf_str(&text), identity) == 0;
    buf_fini(&text);
    return same;
}

/* A cluster outside the home has `home.path` beside it, where its home was last. A copy of that home has the
 * same identity, and would take the cluster from it: refused as long as both are there. */
static int owner_check(const struct postgres_place *place, const char *home, const char *identity,
                       struct err *err)
{
    char path[320];
    struct err why;
    struct buf text = {.limit = HOME_PATH_BYTES};
    if (strncmp(place->dir, elsewhere, sizeof(elsewhere) - 1) != 0)
        return 0;
    snprintf(path, sizeof(path), "%s/home.path", place->dir);
    const bool known = file_read_all(path, HOME_PATH_BYTES, &text, &why) == 0;
    int status = 0;
    if (known && strcmp(buf_str(&text), home) != 0 && is_home(buf_str(&text), identity))
        status = err_set(err, ERR_CONFLICT,
                         "\"%s\" is a copy of \"%s\", whose database is in \"%s\" and was not copied: motley "
                         "backup and motley restore copy a home",
                         home, buf_str(&text), place->dir);
    else if (!known || strcmp(buf_str(&text), home) != 0)
        status = file_write_atomic(path, home, strlen(home), 0600, err);
    buf_fini(&text);
    return status;
}

int postgres_init(const struct postgres_place *place, const char *home, const char *identity, const char *log,
                  struct err *err)
{
    char data[320];
    char fresh[320];
    if (file_mkdirs(place->dir, 0700, err) < 0)
        return -1;
    if (place->uid != 0 && chown(place->dir, place->uid, place->gid) < 0) {
        return err_errno(err, ERR_IO, errno, "could not give \"%s\" to user %u", place->dir,
                         (unsigned)place->uid);
    }
    /* other users must be able to pass through /var/lib/motley itself */
    if (strncmp(place->dir, elsewhere, sizeof(elsewhere) - 1) == 0 &&
        place->dir[sizeof(elsewhere) - 1] == '/' && chmod(elsewhere, 0711) < 0)
        return err_errno(err, ERR_IO, errno, "could not change the mode of \"%s\"", elsewhere);
    if (owner_check(place, home, identity, err) < 0)
        return -1;
    snprintf(data, sizeof(data), "%s/data", place->dir);
    snprintf(fresh, sizeof(fresh), "%s/data.new", place->dir);
    if (cluster_version(place->dir) != 0)
        return 0;
    if (file_exists(data))
        return err_set(err, ERR_CORRUPT, "\"%s\" is there but is no PostgreSQL cluster", data);
    if (file_remove_tree(fresh, err) < 0 || initdb_run(place, fresh, log, err) < 0)
        return -1;
    if (rename(fresh, data) < 0)
        return err_errno(err, ERR_IO, errno, "could not rename \"%s\"", fresh);
    return 0;
}

void postgres_clear_stale(const char *dir)
{
    char path[320];
    char link[64];
    struct err err;
    struct buf text = {.limit = 4096};
    snprintf(path, sizeof(path), "%s/data/postmaster.pid", dir);
    if (file_read_all(path, 4096, &text, &err) == 0) {
        const long pid = strtol(buf_str(&text), NULL, 10);
        snprintf(link, sizeof(link), "/proc/%ld/comm", pid);
        struct buf name = {.limit = 64};
        const bool ours = pid > 0 && file_read_all(link, 64, &name, &err) == 0 &&
                          strncmp(buf_str(&name), "postgres", 8) == 0;
        if (!ours)
            unlink(path);
        buf_fini(&name);
    }
    buf_fini(&text);
}
