/* `motley up`, `down` and `status`: the whole system on this machine (local/). */
#include "cli/cli.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "local/local.h"

enum { PAGE_ADDRESS_BYTES = 512, STATUS_CALL_MS = 2000 };

static void tell_progress(void *arg, const char *what)
{
    const struct cli *cli = arg;
    if (!cli->json) {
        printf("  %s\n", what);
        fflush(stdout);
    }
}

/* Writes the page's address with a code that signs in, once and within ten minutes. The code stands in the
 * fragment, which browsers send to nobody. */
static int page_address(struct cli *cli, char text[PAGE_ADDRESS_BYTES], struct err *err)
{
    json_t *answer = NULL;
    if (client_call(cli, "POST", NULL, &answer, err, "/v1/session-codes") < 0)
        return -1;
    snprintf(text, PAGE_ADDRESS_BYTES, "%s/#code=%s", cli->address, show_str(answer, "code"));
    json_decref(answer);
    return 0;
}

int command_up(struct cli *cli, struct err *err)
{
    char config[PATH_MAX];
    const char *given = cli_option(cli, "--config");
    struct local_up_options options = {.home = cli->home, .progress = tell_progress, .progress_arg = cli};
    if (given && !realpath(given, config))
        return err_errno(err, ERR_INVALID, errno, "could not open the configuration %s", given);
    options.config_path = given ? config : NULL;
    if (!cli->json)
        printf("starting Motley in %s\n", cli->home);
    if (local_up(&options, err) < 0) {
        if (err->code == ERR_NET || err->code == ERR_TIMEOUT)
            /* not CLI_NO_ANSWER, since the command was to start the server */
            cli->exit_status = CLI_FAILED;
        return -1;
    }
    if (strcmp(cli->command->name, "up") != 0)
        return 0;
    char page[PAGE_ADDRESS_BYTES];
    if (page_address(cli, page, err) < 0)
        return -1;
    if (cli->json) {
        json_t *answer = local_status(cli->home, err);
        int result = answer && json_object_set_new(answer, "page", json_string(page)) == 0
                         ? show_json(answer, err)
                         : -1;
        json_decref(answer);
        return result;
    }
    printf("the page: %s\n  (good once, for ten minutes; `motley web` prints another)\n", page);
    return 0;
}

int command_web(struct cli *cli, struct err *err)
{
    char page[PAGE_ADDRESS_BYTES];
    if (page_address(cli, page, err) < 0)
        return -1;
    if (!cli->json) {
        printf("%s\n", page);
        return 0;
    }
    json_t *answer = json_pack("{s:s}", "page", page);
    int result = answer ? show_json(answer, err) : err_set(err, ERR_NOMEM, "out of memory for an address");
    json_decref(answer);
    return result;
}

void warn_of_full_disk(const struct cli *cli)
{
    struct err full;
    if (local_disk(cli->home, &full) < 0)
        fprintf(stderr, "motley: warning: %s; jobs keep their last good checkpoint and wait for room\n",
                full.text);
}

void warn_of_scheduler(const json_t *scheduler)
{
    const char *why = json_string_value(json_object_get(scheduler, "why"));
    const json_int_t aside = json_integer_value(json_object_get(scheduler, "set_aside_count"));
    if (why)
        fprintf(stderr, "motley: warning: %s\n", why);
    else if (aside > 0)
        fprintf(stderr,
                "motley: warning: the scheduler leaves out %lld thing%s that the database refused; "
                "`motley why` of a job that waits, or the scheduler's log, says which\n",
                (long long)aside, aside == 1 ? "" : "s");
}

int command_down(struct cli *cli, struct err *err)
{
    bool was_up = local_is_up(cli->home);
    if (local_down(cli->home, err) < 0)
        return -1;
    if (!cli->json)
        printf(was_up ? "stopped\n" : "nothing was running in %s\n", cli->home);
    return 0;
}

/* Says of a home where nothing runs which service its client.json names: that of a lab, say. */
static void say_elsewhere(struct cli *cli)
{
    struct err why;
    char own[PATH_MAX + 16];
    json_t *answer = NULL;
    snprintf(own, sizeof(own), "%s/run/up.json", cli->home);
    if (access(own, F_OK) == 0 || client_open(cli, &why) < 0) /* up.json: its service is this machine's own */
        return;
    const bool answers = http_json(cli->http, "GET", "/v1/whoami", NULL, STATUS_CALL_MS, &answer, &why) == 0;
    if (answers)
        printf("client.json there names the service at %s, which answers %s: motley queue, motley nodes\n",
               cli->address, show_str(answer, "name"));
    else
        printf("client.json there names the service at %s: %s\n", cli->address, why.text);
    json_decref(answer);
}

int command_status(struct cli *cli, struct err *err)
{
    json_t *answer = local_status(cli->home, err);
    json_t *queue = NULL;
    struct err unasked;
    if (!answer)
        return -1;
    warn_of_full_disk(cli);
    if (json_is_true(json_object_get(answer, "up"))) {
        if (client_open(cli, &unasked) < 0 ||
            http_json(cli->http, "GET", "/v1/queue?limit=1", NULL, STATUS_CALL_MS, &queue, &unasked) < 0) {
            fprintf(stderr, "motley: warning: the api does not say how the scheduler is: %s\n", unasked.text);
        } else {
            json_object_set(answer, "scheduler", json_object_get(queue, "scheduler"));
            warn_of_scheduler(json_object_get(answer, "scheduler"));
        }
    }
    json_decref(queue);
    int result;
    if (cli->json) {
        result = show_json(answer, err);
    } else if (!json_is_true(json_object_get(answer, "up"))) {
        printf("nothing runs in %s\n", cli->home);
        result = 0;
        say_elsewhere(cli);
    } else {
        result = show_table(
            json_object_get(answer, "processes"),
            "ROLE:role:s NAME:name:s PID:pid:n ADDRESS:address:s LEADER:leader:s RESTARTS:restarts:n", err);
    }
    json_decref(answer);
    return result;
}
