/* Machines, devices, models, and letting machines in. */
#include "cli/cli.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cluster.h"

static int show_list(struct cli *cli, json_t *answer, const char *member, const char *columns,
                     struct err *err)
{
    int result =
        cli->json ? show_json(answer, err) : show_table(json_object_get(answer, member), columns, err);
    json_decref(answer);
    return result;
}

int command_nodes(struct cli *cli, struct err *err)
{
    json_t *answer = NULL;
    if (client_call(cli, "GET", NULL, &answer, err, "/v1/nodes") < 0)
        return -1;
    return show_list(cli, answer, "nodes",
                     "NODE:name:s STATE:state:s ADDRESS:address:s LAST-SEEN:last_seen:w", err);
}

int command_devices(struct cli *cli, struct err *err)
{
    json_t *answer = NULL;
    if (cli_option(cli, "--catalogue")) {
        answer = cluster_catalogue(err);
        if (!answer)
            return -1;
        return show_list(cli, answer, "devices",
                         "NAME:name:s MEMORY:memory_bytes:b FP32:flops_fp32:n 16-BIT:flops_16:n "
                         "BANDWIDTH:memory_bytes_per_s:b ORIGIN:origin:s UNCERTAINTY:uncertainty:n",
                         err);
    }
    if (client_call(cli, "GET", NULL, &answer, err, "/v1/devices") < 0)
        return -1;
    return show_list(
        cli, answer, "devices",
        "DEVICE:name:s KIND:kind:s STATE:state:s ISA:isa:s THREADS:threads:n MEMORY:memory_limit_bytes:b "
        "DRAINED:drained:s JOB:job:n",
        err);
}

int command_drain(struct cli *cli, struct err *err)
{
    char name[512];
    json_t *answer = NULL;
    if (http_escape(cli->words[0], name, sizeof name, err) < 0 ||
        client_call(cli, "POST", NULL, &answer, err, "/v1/devices/%s/%s", name, cli->command->name) < 0)
        return -1;
    int result = 0;
    if (cli->json)
        result = show_json(answer, err);
    else
        printf("%s is %s\n", cli->words[0],
               strcmp(cli->command->name, "drain") == 0 ? "being drained" : "in use again");
    json_decref(answer);
    return result;
}

int command_join_token(struct cli *cli, struct err *err)
{
    json_t *answer = NULL;
    if (client_call(cli, "POST", NULL, &answer, err, "/v1/join-tokens") < 0)
        return -1;
    int result = 0;
    if (cli->json) {
        result = show_json(answer, err);
    } else {
        printf("%s\n", show_str(answer, "token"));
        fprintf(stderr,
                "good once, until %s; on the machine that joins:\n  motley-agent --api %s --join TOKEN "
                "--home DIR\n",
                show_str(answer, "expires"), cli->address);
    }
    json_decref(answer);
    return result;
}

static int model_list(struct cli *cli, struct err *err)
{
    json_t *answer = NULL;
    if (cli->word_count != 1)
        return err_set(err, ERR_INVALID, "usage: motley model list");
    if (client_call(cli, "GET", NULL, &answer, err, "/v1/models") < 0)
        return -1;
    return show_list(cli, answer, "models", "NAME:name:s CONTENT:content:s REGISTERED:created:w", err);
}

int command_model(struct cli *cli, struct err *err)
{
    if (strcmp(cli->words[0], "list") == 0)
        return model_list(cli, err);
    if (strcmp(cli->words[0], "add") != 0 || cli->word_count != 3)
        return err_set(err, ERR_INVALID, "usage: motley model add NAME PATH, or motley model list");
    char path[PATH_MAX];
    if (!realpath(cli->words[2], path))
        return err_errno(err, ERR_INVALID, 0, "could not open the model %s", cli->words[2]);
    json_t *answer = NULL;
    if (upload_model(cli, cli->words[1], path, &answer, err) < 0)
        return -1;
    int result = 0;
    if (cli->json)
        result = show_json(answer, err);
    else
        printf("%s is registered, content %.16s…\n", show_str(answer, "name"), show_str(answer, "content"));
    json_decref(answer);
    return result;
}
