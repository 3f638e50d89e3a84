/* `motley notify`: where one is told of one's jobs, and the messages of late. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

static int settings_change(struct cli *cli, struct err *err)
{
    const char *url = cli->word_count > 0 ? cli->words[0] : NULL;
    const bool key = cli_option(cli, "--key") || cli_option(cli, "--new-key");
    json_t *answer = NULL, *body = json_pack("{s:s}", "key", cli_option(cli, "--new-key") ? "new" : "keep");
    if (url)
        json_object_set_new(body, "url", strcmp(url, "none") == 0 ? json_null() : json_string(url));
    int result = client_call(cli, "PATCH", body, &answer, err, "/v1/notices");
    json_decref(body);
    if (result < 0)
        return -1;
    if (cli->json)
        result = show_json(answer, err);
    else if (key)
        printf("%s\n", show_str(answer, "key"));
    else if (strncmp(show_str(answer, "url"), "mailto:", 7) == 0)
        printf("you are told by %s\n", show_str(answer, "url"));
    else if (*show_str(answer, "url"))
        printf("you are told at %s; motley notify --key prints the key of the signatures\n",
               show_str(answer, "url"));
    else
        printf("you are told of jobs that name an address themselves (notify)\n");
    json_decref(answer);
    return result;
}

int command_notify(struct cli *cli, struct err *err)
{
    json_t *answer = NULL;
    if (cli->word_count > 0 || cli_option(cli, "--key") || cli_option(cli, "--new-key"))
        return settings_change(cli, err);
    if (client_list(cli, "/v1/notices", "notices", &answer, err) < 0)
        return -1;
    int result = 0;
    if (cli->json) {
        result = show_json(answer, err);
    } else {
        const char *url = show_str(answer, "url");
        printf("told at: %s\n",
               *url ? url : "nowhere, but for jobs that name an address themselves (notify)");
        result =
            show_table(json_object_get(answer, "notices"),
                       "ID:id:n USER:user:s JOB:job:n EVENT:event:s AT:at:w STATE:state:s TRIES:attempts:n "
                       "NEXT:next:w WHY:why:s",
                       err);
    }
    json_decref(answer);
    return result;
}
