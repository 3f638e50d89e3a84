/* Usage: motley-signer --ca CERT --key KEY --socket PATH [--peer USER] [--lifetime 30d] */
#include <getopt.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/log.h"
#include "common/units.h"
#include "common/usage.h"
#include "signer/signer.h"

static const char usage[] =
    "usage: motley-signer --ca CERT --key KEY --socket PATH [--peer USER] [--lifetime TIME]\n"
    "  --ca, --key      the cluster's CA in PEM; nobody else needs to read the key\n"
    "  --socket PATH    where motley-api asks; mode 0660\n"
    "  --peer USER      whose processes may ask, beside our own user's\n"
    "  --lifetime TIME  of an agent's certificate: 30d; 10s to 90d\n";

static int signer_take(int argc, char **argv, struct signer_options *options)
{
    static const struct option known[] = {
        {"ca", required_argument, NULL, 'c'},       {"key", required_argument, NULL, 'k'},
        {"socket", required_argument, NULL, 's'},   {"peer", required_argument, NULL, 'p'},
        {"lifetime", required_argument, NULL, 'l'}, {NULL, 0, NULL, 0}};
    struct err err = {0};
    double seconds = 30 * 86400;
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        const struct passwd *user = c == 'p' ? getpwnam(optarg) : NULL;
        if (c == 'c')
            options->ca_file = optarg;
        else if (c == 'k')
            options->key_file = optarg;
        else if (c == 's')
            options->socket = optarg;
        else if (user)
            options->peer = user->pw_uid;
        else if (c != 'l' || units_parse_seconds(optarg, &seconds, &err) < 0)
            return -1;
    }
    options->lifetime_s = seconds >= 10 && seconds <= 90 * 86400 ? (uint32_t)seconds : 0;
    return options->ca_file && options->key_file && options->socket && options->lifetime_s && optind == argc
               ? 0
               : -1;
}

int main(int argc, char **argv)
{
    struct signer_options options = {.peer = geteuid()};
    struct err err = {0};
    sigset_t ends;
    int ends_of[2];
    if (usage_answered(argc, argv, usage))
        return 0;
    if (signer_take(argc, argv, &options) < 0) {
        fputs(usage, stderr);
        return 2;
    }
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigprocmask(SIG_BLOCK, &ends, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_of) < 0) {
        perror("motley-signer: socketpair");
        return 1;
    }
    pid_t child = fork();
    if (child == 0) {
        close(ends_of[0]);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        return signer_keep(&options, ends_of[1], &err) < 0 ? 1 : 0;
    }
    close(ends_of[1]);
    int rc =
        child < 0 ? err_set(&err, ERR_NOMEM, "could not fork") : signer_serve(&options, ends_of[0], &err);
    if (rc < 0)
        log_event(LOG_LEVEL_ERROR, "signer_stopped", "why=\"%s\"", err.text);
    return rc < 0 ? 1 : 0;
}
