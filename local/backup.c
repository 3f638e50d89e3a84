#include "local/backup.h"

#include <dirent.h>
#include <errno.h>
#include <fts.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/document.h"
#include "common/file.h"
#include "common/process.h"
#include "local/home.h"
#include "local/manifest.h"
#include "local/postgres.h"

enum { API_SECONDS = 3 * 86400, POSTGRES_END_MS = 60000, DOCUMENT_BYTES = 64 << 20, RECORD_BYTES = 8192 };

/* What of a home is kept, beside its database and its files. */
static const struct {
    const char *name;
    bool needed;
} kept[] = {{"ca/ca.crt", true},     {"ca/ca.key", true},      {"ca/server.crt", true},
            {"ca/server.key", true}, {"ca/server.host", true}, {"run/admin.token", true},
            {"run/up.json", true},   {"run/api.port", false},  {"run/redis.port", false}};

/* One backup or restore under way. */
struct work {
    const struct local_backup *given;
    char home[HOME_PLACE_BYTES]; /* path by which the home's processes name it */
    struct postgres_place postgres;
    pid_t server; /* the home's PostgreSQL, where this process started it; else 0 */
    int lock;     /* of HOME/run/up.lock, or -1 */
    struct err *err;
};

static void backup_say(const struct work *w, const char *what)
{
    if (w->given->progress)
        w->given->progress(w->given->progress_arg, what);
}

/* Whether a folder has no entries; also true when it does not exist. */
static bool backup_is_empty(const char *path)
{
    DIR *folder = opendir(path);
    bool empty = folder || errno == ENOENT;
    for (const struct dirent *entry; folder && (entry = readdir(folder));)
        empty = empty && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0);
    if (folder)
        closedir(folder);
    return empty;
}

/* Copies FROM/NAME to TO/NAME and makes the folders between; absent files are an error only if they are
 * needed. */
static int kept_copy(const char *from, const char *to, const char *name, bool needed, struct err *err)
{
    char source[LOCAL_HOME_BYTES], target[LOCAL_HOME_BYTES], sum[65];
    uint64_t bytes;
    if (file_path(source, sizeof(source), err, "%s/%s", from, name) < 0 ||
        file_path(target, sizeof(target), err, "%s/%s", to, name) < 0)
        return -1;
    if (!needed && !file_exists(source))
        return 0;
    char *slash = strrchr(target, '/');
    *slash = '\0';
    if (file_mkdirs(target, 0700, err) < 0)
        return -1;
    *slash = '/';
    return file_copy(source, target, 0600, sum, &bytes, err);
}

/* Copies a file, or all files of a folder, below FOLDER/with. */
static int with_copy(const char *folder, const char *path, struct err *err)
{
    char to[LOCAL_HOME_BYTES];
    char *const roots[] = {(char *)path, NULL};
    if (file_path(to, sizeof(to), err, "%s/with", folder) < 0)
        return -1;
    FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, NULL);
    if (!tree)
        return err_errno(err, ERR_IO, errno, "could not read \"%s\"", path);
    int status = 0;
    for (const FTSENT *entry; status == 0 && (entry = fts_read(tree));)
        if (entry->fts_info == FTS_NS || entry->fts_info == FTS_DNR || entry->fts_info == FTS_ERR)
            status = err_errno(err, ERR_IO, entry->fts_errno, "could not read \"%s\"", entry->fts_path);
        else if (entry->fts_info == FTS_F)
            status = kept_copy("", to, entry->fts_path + 1, true, err);
    fts_close(tree);
    return status;
}

/* Runs motley-api with the configuration and these two words, and PostgreSQL's own programs before others. */
static int api_run(const struct work *w, const char *config, const char *word, struct err *err)
{
    char program[HOME_PATH_BYTES];
    if (process_sibling("motley-api", program, sizeof(program), err) < 0)
        return -1;
    const char *path = getenv("PATH");
    const size_t size = strlen(path ? path : "") + sizeof(w->postgres.bin) + 8;
    char *variable = malloc(size);
    if (!variable)
        return err_set(err, ERR_NOMEM, "no memory to start motley-api");
    snprintf(variable, size, "PATH=%s%s%s", w->postgres.bin, w->postgres.bin[0] != '\0' ? ":" : "",
             path ? path : "/usr/bin:/bin");
    const char *const argv[] = {
        program, "--config",       config,
        word,    w->given->folder, w->given->without_models ? "--without-models" : NULL,
        NULL};
    const char *const env[] = {variable, NULL};
    const struct process_options options = {.argv = argv,
                                            .env = env,
                                            .stdout_path = "-",
                                            .stderr_path = "-",
                                            .own_group = true,
                                            .die_with_parent = true};
    const int status = process_run(&options, API_SECONDS, err);
    free(variable);
    return status;
}

/* Starts the home's PostgreSQL alone. Who connects waits until it answers. */
static int server_start(struct work *w, struct err *err)
{
    char program[320], data[320], log[HOME_PATH_BYTES];
    snprintf(program, sizeof(program), "%s/postgres", w->postgres.bin);
    snprintf(data, sizeof(data), "%s/data", w->postgres.dir);
    if (file_path(log, sizeof(log), err, "%s/logs/postgres.log", w->home) < 0)
        return -1;
    postgres_clear_stale(w->postgres.dir);
    const char *const argv[] = {program,
                                "-D",
                                data,
                                "-k",
                                w->postgres.dir,
                                "-c",
                                "listen_addresses=",
                                "-c",
                                "unix_socket_permissions=0700",
                                NULL};
    const struct process_options options = {.argv = argv,
                                            .dir = "/",
                                            .stdout_path = log,
                                            .stderr_path = log,
                                            .uid = w->postgres.uid,
                                            .gid = w->postgres.gid,
                                            .own_group = true,
                                            .die_with_parent = true};
    return process_spawn(&options, &w->server, err);
}

static int server_end(struct work *w, struct err *err)
{
    const int status = w->server != 0 ? process_stop(w->server, 0, SIGINT, POSTGRES_END_MS, err) : 0;
    w->server = 0;
    if (w->lock >= 0)
        close(w->lock);
    w->lock = -1;
    return status;
}

/* ---- the backup ---- */

/* Finds the home's server: the path of its api.yaml. One that is down is kept down, and its PostgreSQL
 * started. */
static int home_open(struct work *w, char config[HOME_PATH_BYTES], struct err *err)
{
    char path[HOME_PATH_BYTES];
    if (home_place(w->given->home, false, w->home, err) < 0 ||
        file_path(config, HOME_PATH_BYTES, err, "%s/run/api.yaml", w->home) < 0)
        return -1;
    if (!file_exists(config)) {
        return err_set(
            err, ERR_NOT_FOUND,
            "\"%s\" is not the home of a server; --home names another, --config the api.yaml of a server "
            "with a PostgreSQL of its own",
            w->given->home);
    }
    if (postgres_find(w->home, &w->postgres, err) < 0)
        return -1;
    if (local_is_up(w->given->home))
        return 0;
    if (file_path(path, sizeof(path), err, "%s/run/up.lock", w->home) < 0)
        return -1;
    w->lock = file_lock(path, err);
    return w->lock < 0 ? -1 : server_start(w, err);
}

static int backup_fill(struct work *w, struct err *err)
{
    const struct local_backup *given = w->given;
    char config[HOME_PATH_BYTES], path[LOCAL_HOME_BYTES];
    if (given->config)
        snprintf(config, sizeof(config), "%s", given->config);
    else if (home_open(w, config, err) < 0)
        return -1;
    backup_say(w, "copying the database and the files that it names");
    if (api_run(w, config, "--backup", err) < 0)
        return -1;
    if (file_path(path, sizeof(path), err, "%s/home", given->folder) < 0)
        return -1;
    for (size_t i = 0; !given->config && i < sizeof(kept) / sizeof(kept[0]); i++)
        if (kept_copy(w->home, path, kept[i].name, kept[i].needed, err) < 0)
            return -1;
    for (unsigned i = 0; i < given->with_count; i++)
        if (with_copy(given->folder, given->with[i], err) < 0)
            return -1;
    return given->config ? with_copy(given->folder, given->config, err) : 0;
}

/* Remembers in the home that this backup was finished. */
static int backup_remember(const struct work *w, struct err *err)
{
    char path[HOME_PATH_BYTES];
    if (file_path(path, sizeof(path), err, "%s/run/backup.json", w->home) < 0)
        return -1;
    json_t *record =
        json_pack("{s:I, s:s}", "made_us", (json_int_t)clock_wall_us(), "folder", w->given->folder);
    const int status = document_save(path, record, false, 0644, err);
    json_decref(record);
    return status;
}

int local_backup_last(const char *home, int64_t *made_us, char folder[LOCAL_HOME_BYTES], struct err *err)
{
    char path[LOCAL_HOME_BYTES];
    *made_us = 0;
    if (file_path(path, sizeof(path), err, "%s/run/backup.json", home) < 0)
        return -1;
    if (!file_exists(path))
        return 0;
    json_t *record = document_load(path, RECORD_BYTES, err);
    if (!record)
        return -1;
    const char *where = json_string_value(json_object_get(record, "folder"));
    *made_us = json_integer_value(json_object_get(record, "made_us"));
    snprintf(folder, LOCAL_HOME_BYTES, "%s", where ? where : "");
    json_decref(record);
    return 0;
}

json_t *local_backup(const struct local_backup *backup, struct err *err)
{
    struct work w = {.given = backup, .lock = -1};
    struct err why;
    char path[LOCAL_HOME_BYTES];
    if (!backup_is_empty(backup->folder)) {
        err_set(err, ERR_CONFLICT, "\"%s\" is not an empty folder: give a new one for each backup",
                backup->folder);
        return NULL;
    }
    const mode_t mask = umask(0077);
    int status = file_mkdirs(backup->folder, 0700, err);
    if (status == 0 && chmod(backup->folder, 0700) < 0)
        status = err_errno(err, ERR_IO, errno, "could not change the mode of \"%s\"", backup->folder);
    if (status == 0)
        status = backup_fill(&w, err);
    if (server_end(&w, status == 0 ? err : &why) < 0)
        status = -1;
    if (status == 0)
        status = file_path(path, sizeof(path), err, "%s/backup.json", backup->folder);
    json_t *answer = status == 0 ? document_load(path, DOCUMENT_BYTES, err) : NULL;
    if (answer) {
        backup_say(&w, "reading it back for the sums of all files");
        json_t *list = json_pack("{s:s, s:O}", "of", backup->config ? "server" : "home", "database", answer);
        status = list ? manifest_write(backup->folder, list, err)
                      : err_set(err, ERR_NOMEM, "no memory for a list");
    }
    if (answer && status == 0 && !backup->config)
        status = backup_remember(&w, err);
    umask(mask);
    if (answer && status == 0)
        return answer;
    json_decref(answer);
    return NULL;
}

/* ---- the way back ---- */

/* Gives all that was made to the owner of the home, for whom root made it. */
static int home_give(const char *home, uid_t uid, gid_t gid, struct err *err)
{
    char *const roots[] = {(char *)home, NULL};
    int status = 0;
    FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    if (!tree)
        return err_errno(err, ERR_IO, errno, "could not read the folder \"%s\"", home);
    for (const FTSENT *entry; status == 0 && (entry = fts_read(tree));)
        if (entry->fts_info != FTS_DP && lchown(entry->fts_path, uid, gid) < 0)
            status = err_errno(err, ERR_IO, errno, "could not give \"%s\" to user %u", entry->fts_path,
                               (unsigned)uid);
    fts_close(tree);
    return status;
}

/* Makes a database cluster in the home, and the configuration by which motley-api fills it. */
static int home_database(struct work *w, struct err *err)
{
    char path[HOME_PATH_BYTES], log[HOME_PATH_BYTES], identity[HOME_SECRET_BYTES];
    if (home_secret(w->home, "home.id", identity, err) < 0 || postgres_find(w->home, &w->postgres, err) < 0 ||
        file_path(log, sizeof(log), err, "%s/logs/initdb.log", w->home) < 0 ||
        postgres_init(&w->postgres, w->home, identity, log, err) < 0 || server_start(w, err) < 0 ||
        file_path(path, sizeof(path), err, "%s/blobs", w->home) < 0)
        return -1;
    json_t *config = json_pack("{s:s, s:s, s:s}", "listen", "127.0.0.1:0", "postgres", w->postgres.conninfo,
                               "blobs", path);
    int status = file_path(path, sizeof(path), err, "%s/run/restore.yaml", w->home);
    if (status == 0)
        status = document_save(path, config, false, 0600, err);
    json_decref(config);
    if (status == 0)
        status = api_run(w, path, "--restore", err);
    unlink(path);
    return status;
}

static int home_fill(struct work *w, const struct stat *owner, struct err *err)
{
    char path[LOCAL_HOME_BYTES];
    const bool other = geteuid() == 0 && owner->st_uid != 0;
    if (home_make(w->home, err) < 0 || file_path(path, sizeof(path), err, "%s/home", w->given->folder) < 0)
        return -1;
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
        if (kept_copy(path, w->home, kept[i].name, kept[i].needed, err) < 0)
            return -1;
    if (file_path(path, sizeof(path), err, "%s/ca/ca.crt", w->home) < 0)
        return -1;
    if (chmod(path, 0644) < 0)
        return err_errno(err, ERR_IO, errno, "could not change the mode of \"%s\"", path);
    /* PostgreSQL runs as the owner of HOME/pg. */
    if (other &&
        (file_path(path, sizeof(path), err, "%s/pg", w->home) < 0 || file_mkdirs(path, 0700, err) < 0 ||
         home_give(w->home, owner->st_uid, owner->st_gid, err) < 0))
        return -1;
    backup_say(w, "filling a new database and the folder of files");
    if (home_database(w, err) < 0 || server_end(w, err) < 0)
        return -1;
    return other ? home_give(w->home, owner->st_uid, owner->st_gid, err) : 0;
}

/* Removes what was made in a home that was empty before. */
static void home_clear(const struct work *w)
{
    struct err ignored;
    char path[LOCAL_HOME_BYTES];
    DIR *folder = opendir(w->home);
    for (const struct dirent *entry; folder && (entry = readdir(folder));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            file_path(path, sizeof(path), &ignored, "%s/%s", w->home, entry->d_name) == 0)
            file_remove_tree(path, &ignored);
    if (folder)
        closedir(folder);
    if (w->postgres.dir[0] != '\0' &&
        file_path(path, sizeof(path), &ignored, "%s/data", w->postgres.dir) == 0)
        file_remove_tree(path, &ignored);
}

static int home_restore(struct work *w, struct err *err)
{
    const char *home = w->given->home;
    struct stat owner;
    struct err ignored;
    if (local_is_up(home))
        return err_set(err, ERR_CONFLICT, "\"%s\" is up: restore into a home that is missing or empty", home);
    if (!backup_is_empty(home))
        return err_set(err, ERR_CONFLICT, "\"%s\" is not empty: restore into a home that is missing or empty",
                       home);
    const mode_t mode = geteuid() == 0 ? 0711 : 0700;
    if (file_mkdirs(home, mode, err) < 0 || home_place(home, true, w->home, err) < 0)
        return -1;
    if (stat(home, &owner) < 0)
        return err_errno(err, ERR_IO, errno, "could not look at \"%s\"", home);
    if (home_fill(w, &owner, err) == 0)
        return 0;
    server_end(w, &ignored);
    home_clear(w);
    return -1;
}

json_t *local_restore(const struct local_backup *backup, struct err *err)
{
    struct work w = {.given = backup, .lock = -1};
    backup_say(&w, "checking the sums of all files");
    json_t *list = manifest_check(backup->folder, err);
    if (!list)
        return NULL;
    const char *of = json_string_value(json_object_get(list, "of"));
    int status;
    if (!backup->config && (!of || strcmp(of, "home") != 0))
        status = err_set(err, ERR_CONFLICT,
                         "\"%s\" is of a server with a PostgreSQL of its own, which --config has to name",
                         backup->folder);
    else
        status = backup->config ? api_run(&w, backup->config, "--restore", err) : home_restore(&w, err);
    if (status == 0)
        return list;
    json_decref(list);
    return NULL;
}
