/* Signing in as an account of this machine, by the server's unix socket: the kernel says whose process
 * connected (unix(7), SO_PEERCRED). */
#include "api/request/route.h"

#include "api/people/sign_in.h"
#include "api/request/wait.h"
#include "common/json.h"

#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* What the kernel says of an account that this process's user namespace does not have (overflowuid). */
#define NO_ACCOUNT 65534

enum { ENTRY_BYTES_MAX = 65536, ACCOUNT_GROUPS_MAX = 1024 };

struct account {
    uid_t uid;
    char issuer[300], subject[24], name[256];
    json_t *groups; /* names */
};

/* Asks the system (files, LDAP) for the account's name and groups. On a thread of the pool. */
static int account_find(void *arg, struct err *err)
{
    struct account *account = arg;
    struct passwd entry, *found = NULL;
    struct group group, *known = NULL;
    gid_t gids[ACCOUNT_GROUPS_MAX];
    int count = ACCOUNT_GROUPS_MAX;
    char host[256] = "", *text = malloc(ENTRY_BYTES_MAX);
    if (account->uid == NO_ACCOUNT) {
        free(text);
        return err_set(err, ERR_DENIED,
                       "the kernel does not say which account asks: the server runs with accounts of its own "
                       "(PrivateUsers=yes of a systemd unit, a container), or it is nobody");
    }
    account->groups = json_array();
    if (!text || !account->groups) {
        free(text);
        return err_set(err, ERR_NOMEM, "out of memory for an account");
    }
    gethostname(host, sizeof(host) - 1);
    snprintf(account->issuer, sizeof(account->issuer), "unix:%s", host);
    snprintf(account->subject, sizeof(account->subject), "%lu", (unsigned long)account->uid);
    if (getpwuid_r(account->uid, &entry, text, ENTRY_BYTES_MAX, &found) != 0 || !found) {
        free(text);
        return err_set(err, ERR_DENIED, "the account %s of this machine has no name", account->subject);
    }
    snprintf(account->name, sizeof(account->name), "%s", entry.pw_name);
    if (getgrouplist(account->name, entry.pw_gid, gids, &count) < 0)
        count = ACCOUNT_GROUPS_MAX; /* there are more: the first ones count */
    for (int i = 0; i < count; i++)
        if (getgrgid_r(gids[i], &group, text, ENTRY_BYTES_MAX, &known) == 0 && known)
            json_array_append_new(account->groups, json_string(group.gr_name));
    free(text);
    return 0;
}

void socket_token_post(struct call *call)
{
    struct app *app = call->app;
    struct err err = {0};
    struct account account = {0};
    if (!httpd_request_peer(call->request, &account.uid)) {
        call_problem(
            call, 403, "denied", NULL,
            "this signs in who connects to the server's unix socket (unix_socket in its configuration)");
        return;
    }
    if (wait_work(app, app->pool, account_find, &account, &err) < 0)
        call_fail(call, &err);
    else
        sign_in(call, &app->config->unix_socket.rules,
                &(struct sign_in_word){.issuer = account.issuer,
                                       .subject = account.subject,
                                       .name = account.name,
                                       .groups = account.groups});
    json_decref(account.groups);
}
