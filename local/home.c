#include "local/home.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <openssl/crypto.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/digest.h"
#include "common/file.h"
#include "common/tls.h"
#include "common/units.h"
#include "local/local.h"

/* longest home path whose sockets ("/pg/.s.PGSQL.5432.lock", "/run/signer.sock") fit into the kernel's 107
 * bytes */
enum { PLACE_PLAIN_BYTES = 80 };
enum { CA_DAYS = 3650, SERVER_SECONDS = 3650 * 86400, PEM_BYTES_MAX = 65536 };

/* The user's home folder, from HOME or else from the system's list of users; or NULL. */
static const char *user_home(void)
{
    const char *home = getenv("HOME");
    if (home && home[0] == '/')
        return home;
    const struct passwd *user = getpwuid(geteuid());
    return user && user->pw_dir[0] == '/' ? user->pw_dir : NULL;
}

int local_home(const char *given, char out[LOCAL_HOME_BYTES], struct err *err)
{
    const char *environment = getenv("MOTLEY_HOME");
    const char *text = given && given[0] != '\0' ? given : environment;
    char folder[LOCAL_HOME_BYTES] = "";
    const char *user = user_home();
    int length = 0;
    if (!text || text[0] == '\0') {
        if (!user)
            return err_set(err, ERR_INVALID, "no home folder: give --home DIR or set MOTLEY_HOME");
        length = snprintf(out, LOCAL_HOME_BYTES, "%s/.motley", user);
    } else if (text[0] == '/') {
        length = snprintf(out, LOCAL_HOME_BYTES, "%s", text);
    } else if (!getcwd(folder, sizeof(folder))) {
        return err_errno(err, ERR_IO, errno, "could not find the working folder");
    } else {
        length = snprintf(out, LOCAL_HOME_BYTES, "%s/%s", folder, text);
    }
    /* leaves room for "/client.json" and other files */
    const int length_max = LOCAL_HOME_BYTES - 128;
    if (length > length_max) {
        return err_set(err, ERR_TOO_BIG,
                       "the path of the home folder has %d bytes and the system's limit leaves %d for it: "
                       "give a shorter one with --home",
                       length, length_max);
    }
    while (length > 1 && out[length - 1] == '/')
        out[--length] = '\0';
    return 0;
}

/* Whether the path can be used in socket names and in the files and command lines of PostgreSQL and Redis. */
static bool home_is_plain(const char *path)
{
    static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+@,~";
    return strlen(path) <= PLACE_PLAIN_BYTES && strspn(path, good) == strlen(path);
}

/* Finds or makes the folder of the links, /tmp/motley-UID. It must belong to this user; others may only pass
 * through it. */
static int links_make(char out[HOME_PLACE_BYTES], bool make, struct err *err)
{
    struct stat info;
    const uid_t user = geteuid();
    const mode_t mode = user == 0 ? 0711 : 0700; /* PostgreSQL runs as another user for root */
    snprintf(out, HOME_PLACE_BYTES, "/tmp/motley-%u", (unsigned)user);
    if (make && mkdir(out, mode) < 0 && errno != EEXIST) {
        return err_errno(err, ERR_IO, errno, "could not make the folder \"%s\", for a home with a long path",
                         out);
    }
    if (lstat(out, &info) < 0)
        return err_errno(err, ERR_NOT_FOUND, errno, "could not look at \"%s\"", out);
    if (!S_ISDIR(info.st_mode) || info.st_uid != user || (info.st_mode & 0022) != 0) {
        return err_set(err, ERR_DENIED,
                       "\"%s\" is not a folder that only this user may write: remove it, or give a home with "
                       "a shorter path of letters and digits",
                       out);
    }
    if (make && (info.st_mode & 07777) != mode && chmod(out, mode) < 0)
        return err_errno(err, ERR_IO, errno, "could not change the mode of \"%s\"", out);
    return 0;
}

int home_place(const char *home, bool make, char place[HOME_PLACE_BYTES], struct err *err)
{
    if (home_is_plain(home)) {
        snprintf(place, HOME_PLACE_BYTES, "%s", home);
        return 0;
    }
    char real[PATH_MAX];
    char target[PATH_MAX];
    char digest[65];
    char folder[HOME_PLACE_BYTES];
    if (!realpath(home, real)) {
        return err_errno(err, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, errno,
                         "could not look at the home \"%.300s\"", home);
    }
    if (digest_sha256_hex(real, strlen(real), digest, err) < 0 || links_make(folder, make, err) < 0)
        return -1;
    snprintf(place, HOME_PLACE_BYTES, "%.24s/%.16s", folder, digest);
    const ssize_t size = readlink(place, target, sizeof(target) - 1);
    if (size > 0 && (size_t)size == strlen(real) && memcmp(target, real, (size_t)size) == 0)
        return 0;
    if (!make)
        return err_set(err, ERR_NOT_FOUND, "\"%s\" does not lead to the home", place);
    if ((size >= 0 && unlink(place) < 0) || symlink(real, place) < 0)
        return err_errno(err, ERR_IO, errno, "could not make the link \"%s\" to the home", place);
    return 0;
}

int home_make(const char *home, struct err *err)
{
    static const struct {
        const char *name;
        mode_t mode;
    } folders[] = {{"ca", 0700},    {"run", 0700},   {"run/join", 0700}, {"logs", 0700},
                   {"blobs", 0700}, {"redis", 0700}, {"agents", 0700}};
    char path[HOME_PATH_BYTES];
    const mode_t mode = geteuid() == 0 ? 0711 : 0700;
    if (file_mkdirs(home, mode, err) < 0)
        return -1;
    if (geteuid() == 0 && chmod(home, mode) < 0)
        return err_errno(err, ERR_IO, errno, "could not change the mode of \"%s\"", home);
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        if (file_path(path, sizeof(path), err, "%s/%s", home, folders[i].name) < 0 ||
            file_mkdirs(path, folders[i].mode, err) < 0) {
            return -1;
        }
    }
    return 0;
}

int home_secret(const char *home, const char *name, char secret[HOME_SECRET_BYTES], struct err *err)
{
    char path[HOME_PATH_BYTES];
    if (file_path(path, sizeof(path), err, "%s/run/%s", home, name) < 0)
        return -1;
    if (!file_exists(path) && (random_hex(secret, (HOME_SECRET_BYTES - 1) / 2, err) < 0 ||
                               file_write_atomic(path, secret, HOME_SECRET_BYTES - 1, 0600, err) < 0)) {
        return -1;
    }
    struct buf text = {.limit = HOME_SECRET_BYTES};
    int status = file_read_all(path, HOME_SECRET_BYTES, &text, err);
    if (status == 0 && text.size < HOME_SECRET_BYTES - 1)
        status = err_set(err, ERR_CORRUPT, "\"%s\" holds no secret; remove it to make a new one", path);
    if (status == 0) {
        memcpy(secret, text.data, HOME_SECRET_BYTES - 1);
        secret[HOME_SECRET_BYTES - 1] = '\0';
    }
    buf_fini(&text);
    return status;
}

/* Writes a pair of PEM files; the key first, so that a certificate never exists without its key. */
static int pair_write(const char *home, const char *name, const struct buf *cert, const struct buf *key,
                      struct err *err)
{
    char path[HOME_PATH_BYTES];
    if (file_path(path, sizeof(path), err, "%s/ca/%s.key", home, name) < 0 ||
        file_write_atomic(path, key->data, key->size, 0600, err) < 0 ||
        file_path(path, sizeof(path), err, "%s/ca/%s.crt", home, name) < 0) {
        return -1;
    }
    return file_write_atomic(path, cert->data, cert->size, 0644, err);
}

static int home_pair_read(const char *home, const char *name, struct buf *cert, struct buf *key,
                          struct err *err)
{
    char path[HOME_PATH_BYTES];
    if (file_path(path, sizeof(path), err, "%s/ca/%s.crt", home, name) < 0 ||
        file_read_all(path, PEM_BYTES_MAX, cert, err) < 0 ||
        file_path(path, sizeof(path), err, "%s/ca/%s.key", home, name) < 0) {
        return -1;
    }
    return file_read_all(path, PEM_BYTES_MAX, key, err);
}

static void pem_fini(struct buf *key)
{
    if (key->data)
        OPENSSL_cleanse(key->data, key->size);
    buf_fini(key);
}

static int server_issue(const char *home, const struct buf *ca_cert, const struct buf *ca_key,
                        const char *host, struct err *err)
{
    struct buf key = {.limit = PEM_BYTES_MAX};
    struct buf csr = {.limit = PEM_BYTES_MAX};
    struct buf cert = {.limit = PEM_BYTES_MAX};
    const char *const hosts[] = {host, "localhost", "127.0.0.1"};
    int status = tls_request_create("server:motley", &key, &csr, err);
    if (status == 0) {
        const struct tls_ca ca = {.cert_pem = buf_str(ca_cert), .key_pem = buf_str(ca_key)};
        const struct tls_grant grant = {
            .identity = "server:motley", .hosts = hosts, .host_count = 3, .seconds = SERVER_SECONDS};
        status = tls_issue(&ca, buf_str(&csr), &grant, &cert, err);
    }
    if (status == 0)
        status = pair_write(home, "server", &cert, &key, err);
    pem_fini(&key);
    buf_fini(&csr);
    buf_fini(&cert);
    return status;
}

/* True when the server certificate was made for this host. */
static bool server_is_for(const char *home, const char *host)
{
    char path[HOME_PATH_BYTES];
    struct err err;
    struct buf text = {.limit = 512};
    bool same = file_path(path, sizeof(path), &err, "%s/ca/server.host", home) == 0 &&
                file_read_all(path, 512, &text, &err) == 0 && strcmp(buf_str(&text), host) == 0;
    buf_fini(&text);
    return same;
}

int home_certificates(const char *home, const char *host, struct err *err)
{
    char path[HOME_PATH_BYTES];
    struct buf cert = {.limit = PEM_BYTES_MAX};
    struct buf key = {.limit = PEM_BYTES_MAX};
    int status = file_path(path, sizeof(path), err, "%s/ca/ca.crt", home);
    if (status == 0 && file_exists(path)) {
        status = home_pair_read(home, "ca", &cert, &key, err);
    } else if (status == 0) {
        char name[48];
        char random[17];
        status = random_hex(random, 8, err);
        snprintf(name, sizeof(name), "motley %s", random);
        if (status == 0)
            status = tls_ca_create(name, CA_DAYS, &cert, &key, err);
        if (status == 0)
            status = pair_write(home, "ca", &cert, &key, err);
    }
    if (status == 0 && !server_is_for(home, host)) {
        status = server_issue(home, &cert, &key, host, err);
        if (status == 0)
            status = file_path(path, sizeof(path), err, "%s/ca/server.host", home);
        if (status == 0)
            status = file_write_atomic(path, host, strlen(host), 0600, err);
    }
    buf_fini(&cert);
    pem_fini(&key);
    return status;
}

/* Listens on host:port for a moment; *port becomes the actual port. Returns 0, or errno. */
static int port_try(const char *host, uint16_t *port)
{
    char service[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    snprintf(service, sizeof(service), "%u", *port);
    if (getaddrinfo(host, service, &hints, &found) != 0)
        return EADDRNOTAVAIL;
    int failed = 0;
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
        bind(fd, found->ai_addr, found->ai_addrlen) < 0 || listen(fd, 1) < 0) {
        failed = errno;
    }
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof(address);
    if (failed == 0 && getsockname(fd, (struct sockaddr *)&address, &size) == 0) {
        *port = ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                                    : ((struct sockaddr_in *)&address)->sin_port);
    }
    if (fd >= 0)
        close(fd);
    freeaddrinfo(found);
    return failed;
}

static uint16_t port_noted(const char *path)
{
    struct err err;
    struct buf text = {.limit = 16};
    unsigned long port = 0;
    if (file_read_all(path, 16, &text, &err) == 0)
        port = strtoul(buf_str(&text), NULL, 10);
    buf_fini(&text);
    return port <= 65535 ? (uint16_t)port : 0;
}

/* Chooses a free port at random below the range that the kernel gives to outgoing connections: a port of that
 * range could be taken again before its service listens. Returns 0, or errno.
 */
static int port_choose(const char *host, uint16_t *port)
{
    enum { LOWEST = 10240, OUTGOING_LOWEST = 32768, TRIES = 64 };
    struct err err;
    struct buf text = {.limit = 64};
    unsigned long outgoing = 0;
    if (file_read_all("/proc/sys/net/ipv4/ip_local_port_range", 64, &text, &err) == 0)
        outgoing = strtoul(buf_str(&text), NULL, 10);
    buf_fini(&text);
    const uint16_t end = outgoing > LOWEST && outgoing <= UINT16_MAX ? (uint16_t)outgoing : OUTGOING_LOWEST;
    for (int i = 0; i < TRIES; i++) {
        uint16_t random = 0;
        if (random_bytes(&random, sizeof(random), &err) < 0)
            break;
        *port = (uint16_t)(LOWEST + random % (end - LOWEST));
        if (port_try(host, port) == 0)
            return 0;
    }
    *port = 0; /* the kernel chooses */
    return port_try(host, port);
}

int home_port(const char *home, const char *name, const char *host, uint16_t wanted, uint16_t *port,
              struct err *err)
{
    char path[HOME_PATH_BYTES];
    char text[16];
    if (file_path(path, sizeof(path), err, "%s/run/%s.port", home, name) < 0)
        return -1;
    *port = wanted != 0 ? wanted : port_noted(path);
    int failed = *port != 0 ? port_try(host, port) : port_choose(host, port);
    if (failed != 0 && wanted == 0)
        failed = port_choose(host, port); /* the recorded port is taken, so any other is used */
    if (failed != 0) {
        return err_errno(err, failed == EADDRINUSE ? ERR_CONFLICT : ERR_IO, failed,
                         "port %u of %s, for the %s, cannot be listened on", *port, host, name);
    }
    snprintf(text, sizeof(text), "%u\n", *port);
    return file_write_atomic(path, text, strlen(text), 0600, err);
}

int home_space(const char *home, struct err *err)
{
    struct statvfs info;
    if (statvfs(home, &info) < 0)
        return err_errno(err, ERR_IO, errno, "could not look at the disk of \"%s\"", home);
    const uint64_t free_bytes = (uint64_t)info.f_bavail * info.f_frsize;
    if (free_bytes < FILE_SPACE_MIN) {
        char has[32];
        char needs[32];
        return err_set(err, ERR_IO, "the disk of \"%s\" has %s free; at least %s are needed", home,
                       units_bytes(has, free_bytes), units_bytes(needs, FILE_SPACE_MIN));
    }
    return 0;
}

int home_limits(struct err *err)
{
    enum { OPEN_FILES = 8192 }; /* Redis takes 4,096 clients, as its configuration says */
    /* PostgreSQL keeps 48 descriptors and 10 more of its own, Redis one for each client. PostgreSQL's log is
     * written in files of 16 MiB. PostgreSQL, Redis and our services start some 40 processes and threads. A
     * service maps some 200 MiB. */
    static const struct {
        int resource;
        const char *word, *what, *unit;
        rlim_t minimum, unit_bytes;
    } needs[] = {
        {RLIMIT_NOFILE, "-n", "open files", "", 256, 1},
        {RLIMIT_FSIZE, "-f", "the size of a file", " KiB", (rlim_t)64 << 20, 1024},
        {RLIMIT_NPROC, "-u", "processes", "", 64, 1},
        {RLIMIT_AS, "-v", "a process's memory", " KiB", (rlim_t)256 << 20, 1024},
    };
    for (size_t i = 0; i < sizeof(needs) / sizeof(needs[0]); i++) {
        struct rlimit limit;
        if (getrlimit((__rlimit_resource_t)needs[i].resource, &limit) < 0)
            continue;
        if (needs[i].resource == RLIMIT_NOFILE && limit.rlim_cur < OPEN_FILES &&
            limit.rlim_cur < limit.rlim_max) {
            limit.rlim_cur = limit.rlim_max < OPEN_FILES ? limit.rlim_max : OPEN_FILES;
            setrlimit(RLIMIT_NOFILE, &limit);
        }
        if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < needs[i].minimum) {
            return err_set(
                err, ERR_IO,
                "the limit of %s (ulimit %s) is %llu%s and at least %llu%s are needed: raise it and "
                "start again",
                needs[i].what, needs[i].word, (unsigned long long)(limit.rlim_cur / needs[i].unit_bytes),
                needs[i].unit, (unsigned long long)(needs[i].minimum / needs[i].unit_bytes), needs[i].unit);
        }
    }
    return 0;
}
