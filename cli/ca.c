/* `motley ca`: exchanges the cluster's CA for another one, in three steps between which agents renew their
 * certificates: both are trusted, the new one signs, the old one is dropped. */
#include "cli/cli.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/digest.h"
#include "common/file.h"
#include "common/tls.h"

enum { PEM_MAX = 65536, CA_DAYS = 3650, SERVER_SECONDS = 800 * 86400, RENEWED_S = 20 * 86400 };

struct ca_files {
    char cert[PATH_MAX], key[PATH_MAX], next[PATH_MAX]; /* next: the key of the new CA, until it signs */
    struct buf bundle, first, second;                   /* what `cert` holds, and its first and second CA */
    struct buf key_pem, next_pem;
};

static void key_forget(struct buf *key)
{
    if (key->data)
        explicit_bzero(key->data, key->size);
    buf_fini(key);
}

static void ca_files_fini(struct ca_files *files)
{
    buf_fini(&files->bundle);
    buf_fini(&files->first);
    buf_fini(&files->second);
    key_forget(&files->key_pem);
    key_forget(&files->next_pem);
}

static int ca_files_read(struct cli *cli, struct ca_files *files, struct err *err)
{
    const char *cert = cli_option(cli, "--ca"), *key = cli_option(cli, "--key");
    struct buf *const bufs[] = {&files->bundle, &files->first, &files->second, &files->key_pem,
                                &files->next_pem};
    for (size_t i = 0; i < sizeof(bufs) / sizeof(bufs[0]); i++)
        buf_init(bufs[i], PEM_MAX);
    if (!cert != !key)
        return err_set(err, ERR_INVALID,
                       "--ca and --key are given together: the CA's certificate and its key");
    if (file_path(files->cert, sizeof(files->cert), err, "%s%s", cert ? cert : cli->home,
                  cert ? "" : "/ca/ca.crt") < 0 ||
        file_path(files->key, sizeof(files->key), err, "%s%s", key ? key : cli->home,
                  key ? "" : "/ca/ca.key") < 0 ||
        file_path(files->next, sizeof(files->next), err, "%s.next", files->key) < 0 ||
        file_read_all(files->cert, PEM_MAX, &files->bundle, err) < 0 ||
        file_read_all(files->key, PEM_MAX, &files->key_pem, err) < 0 ||
        (file_exists(files->next) && file_read_all(files->next, PEM_MAX, &files->next_pem, err) < 0))
        return -1;
    if (tls_bundle_at(buf_str(&files->bundle), 0, &files->first, err) < 1)
        return err_set(err, ERR_INVALID, "%s has no certificate", files->cert);
    return tls_bundle_at(buf_str(&files->bundle), 1, &files->second, err) < 0 ? -1 : 0;
}

/* Replaces a file by text, or makes it, with the owner and mode that `like` has. */
static int file_put(const char *path, const char *like, const struct buf *text, struct err *err)
{
    struct stat about;
    if (stat(like, &about) < 0)
        return err_errno(err, ERR_IO, errno, "could not look at %s", like);
    if (file_write_atomic(path, text->data, text->size, about.st_mode & 0777, err) < 0)
        return -1;
    return chown(path, about.st_uid, about.st_gid) < 0 && geteuid() == 0
               ? err_errno(err, ERR_IO, errno, "could not give %s its owner", path)
               : 0;
}

/* The file of CAs: `first`, which signs, the other one, and each one's voucher for the other. */
static int bundle_put(const struct ca_files *files, const struct tls_ca *first, const struct tls_ca *second,
                      struct err *err)
{
    struct buf text;
    buf_init(&text, PEM_MAX);
    int result = buf_append(&text, first->cert_pem, strlen(first->cert_pem), err) < 0 ||
                         buf_append(&text, second->cert_pem, strlen(second->cert_pem), err) < 0 ||
                         tls_vouch(first, second->cert_pem, &text, err) < 0 ||
                         tls_vouch(second, first->cert_pem, &text, err) < 0
                     ? -1
                     : file_put(files->cert, files->cert, &text, err);
    buf_fini(&text);
    return result;
}

/* Refuses a step before agents have renewed their certificates since the one before, which wrote `path`: they
 * could not reach the server any more. */
static int wait_check(struct cli *cli, const char *path, struct err *err)
{
    struct stat about;
    if (cli_option(cli, "--now"))
        return 0;
    if (stat(path, &about) < 0)
        return err_errno(err, ERR_IO, errno, "could not look at %s", path);
    const int64_t left_s = (int64_t)about.st_mtime + RENEWED_S - clock_wall_us() / 1000000;
    return left_s <= 0
               ? 0
               : err_set(err, ERR_CONFLICT,
                         "agents may not have renewed their certificates since the last step, and could "
                         "not reach the server any more: wait for %lld more days, or say --now once "
                         "motley_node_certificate_seconds has risen for every node",
                         (long long)(left_s / 86400 + 1));
}

static int ca_begin(struct cli *cli, struct ca_files *files, struct err *err)
{
    char random[17], name[48];
    (void)cli;
    if (files->second.size > 0 || files->next_pem.size > 0)
        return err_set(err, ERR_CONFLICT, "an exchange has begun: motley ca switch, then motley ca finish");
    if (random_hex(random, 8, err) < 0)
        return -1;
    snprintf(name, sizeof(name), "motley %s", random);
    if (tls_ca_create(name, CA_DAYS, &files->second, &files->next_pem, err) < 0 ||
        file_put(files->next, files->key, &files->next_pem, err) < 0)
        return -1;
    const struct tls_ca present = {buf_str(&files->first), buf_str(&files->key_pem)};
    const struct tls_ca coming = {buf_str(&files->second), buf_str(&files->next_pem)};
    if (bundle_put(files, &present, &coming, err) < 0)
        return -1;
    printf(
        "%s now has two CAs, and the first one signs. Restart the apis, the schedulers and Redis, and copy\n"
        "the file to whoever has the old one. motley ca switch follows once every agent has renewed its\n"
        "certificate (20 days): it needs the new CA before anybody shows it a certificate of that one.\n",
        files->cert);
    return 0;
}

/* Signs a server's certificate anew. */
static int server_sign(const char *path, const struct tls_ca *signer, struct err *err)
{
    struct buf old, made;
    buf_init(&old, PEM_MAX);
    buf_init(&made, PEM_MAX);
    int result = file_read_all(path, PEM_MAX, &old, err) < 0 ||
                         tls_reissue(signer, buf_str(&old), SERVER_SECONDS, &made, err) < 0 ||
                         file_put(path, path, &made, err) < 0
                     ? err_wrap(err, "%s", path)
                     : 0;
    buf_fini(&old);
    buf_fini(&made);
    return result;
}

static int ca_switch(struct cli *cli, struct ca_files *files, struct err *err)
{
    char own[PATH_MAX];
    const char *server;
    if (files->second.size == 0 || files->next_pem.size == 0)
        return err_set(err, ERR_CONFLICT, "no new CA waits to sign: motley ca begin comes first");
    if (wait_check(cli, files->next, err) < 0)
        return -1;
    const struct tls_ca coming = {buf_str(&files->second), buf_str(&files->next_pem)};
    const struct tls_ca present = {buf_str(&files->first), buf_str(&files->key_pem)};
    if (!cli_option(cli, "--ca") && (file_path(own, sizeof(own), err, "%s/ca/server.crt", cli->home) < 0 ||
                                     server_sign(own, &coming, err) < 0))
        return -1;
    for (unsigned i = 0; (server = cli_option_nth(cli, "--server", i)); i++)
        if (server_sign(server, &coming, err) < 0)
            return -1;
    if (bundle_put(files, &coming, &present, err) < 0 ||
        file_put(files->key, files->key, &files->next_pem, err) < 0)
        return -1;
    if (unlink(files->next) < 0)
        return err_errno(err, ERR_IO, errno, "could not remove %s", files->next);
    printf("the new CA signs. Restart the signer, the apis, the schedulers and Redis. Join tokens that were "
           "made\n"
           "before are of no use. motley ca finish follows once every agent has renewed its certificate "
           "again.\n");
    return 0;
}

static int ca_finish(struct cli *cli, struct ca_files *files, struct err *err)
{
    if (files->second.size == 0 || files->next_pem.size > 0)
        return err_set(err, ERR_CONFLICT,
                       files->second.size == 0 ? "no exchange has begun: motley ca begin"
                                               : "the new CA does not sign yet: motley ca switch");
    if (wait_check(cli, files->key, err) < 0 || file_put(files->cert, files->cert, &files->first, err) < 0)
        return -1;
    printf(
        "%s has the new CA alone. Restart the apis, the schedulers and Redis; agents drop the old one with\n"
        "their next certificates.\n",
        files->cert);
    return 0;
}

int command_ca(struct cli *cli, struct err *err)
{
    static const struct {
        const char *word;
        int (*step)(struct cli *cli, struct ca_files *files, struct err *err);
    } steps[] = {{"begin", ca_begin}, {"switch", ca_switch}, {"finish", ca_finish}};
    struct ca_files files = {0};
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
        if (strcmp(cli->words[0], steps[i].word) == 0) {
            int result = ca_files_read(cli, &files, err) < 0 ? -1 : steps[i].step(cli, &files, err);
            ca_files_fini(&files);
            return result;
        }
    return err_set(err, ERR_INVALID, "motley ca takes begin, switch or finish, not \"%.40s\"", cli->words[0]);
}
