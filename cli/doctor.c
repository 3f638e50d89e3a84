/* `motley doctor`: what is wrong with this machine, or with a node, each fault a sentence that says what to
 * do. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/document.h"
#include "common/faults.h"
#include "common/file.h"
#include "common/process.h"
#include "common/program_json.h"
#include "local/local.h"

enum { AGENT_SECONDS = 300, CONFIG_BYTES = 1 << 20 };
static const char agent_home[] = "/var/lib/motley-agent", agent_config[] = "/etc/motley/agent.yaml";

/* ---- a node, as the server knows it ---- */

static const json_t *doctor_row_of(const json_t *rows, const char *key, const char *name)
{
    size_t i;
    json_t *row;
    json_array_foreach ((json_t *)rows, i, row)
        if (strcmp(show_str(row, key), name) == 0)
            return row;
    return NULL;
}

static bool is_alive(const json_t *node)
{
    return strcmp(show_str(node, "state"), "alive") == 0;
}

static const json_t *link_of(const json_t *links, const char *from, const char *to)
{
    size_t i;
    json_t *link;
    json_array_foreach ((json_t *)links, i, link)
        if (strcmp(show_str(link, "from"), from) == 0 && strcmp(show_str(link, "to"), to) == 0)
            return link;
    return NULL;
}

static bool is_usable(const json_t *link)
{
    return link && !json_is_true(json_object_get(link, "unreachable"));
}

/* Nodes of other machines that are alive, with which this one can exchange nothing: no link has been
 * measured, or neither can connect to the other. A node that joined within minutes may still be measured. */
static void links_look(const json_t *nodes, const json_t *links, const json_t *node, json_t *faults)
{
    size_t i;
    json_t *other;
    const char *name = show_str(node, "name");
    json_array_foreach ((json_t *)nodes, i, other) {
        const char *there = show_str(other, "name");
        const json_t *out = link_of(links, name, there), *back = link_of(links, there, name);
        if (strcmp(there, name) == 0 || !is_alive(other) || is_usable(out) || is_usable(back))
            continue;
        if (!out)
            fault_add(
                faults,
                "no link from %s to %s has been measured: if both joined more than some minutes ago, %s does "
                "not reach %s; "
                "open the high ports between them, and let both name an `address` by which others reach them",
                name, there, name, show_str(other, "address"));
        else if (back)
            fault_add(
                faults,
                "%s and %s cannot connect to each other: %s; and from there: %s. Open the ports of one of "
                "them, or join them by motley wireguard",
                name, there, show_str(out, "why"), show_str(back, "why"));
    }
}

static void node_look(const json_t *nodes, const json_t *devices, const json_t *links, const json_t *node,
                      json_t *faults)
{
    size_t i;
    json_t *entry;
    const char *name = show_str(node, "name"), *why = show_str(node, "why");
    if (!is_alive(node) || *why != '\0')
        fault_add(faults, "node %s is %s%s%s", name, show_str(node, "state"), *why != '\0' ? ": " : "", why);
    json_array_foreach (json_object_get(node, "faults"), i, entry)
        fault_add(faults, "node %s: %s", name, json_string_value(entry));
    json_array_foreach (json_object_get(devices, "devices"), i, entry)
        if (strcmp(show_str(entry, "node"), name) == 0 && *show_str(entry, "drain_why") != '\0')
            fault_add(faults, "device %s is drained: %s; motley undrain %s gives it back",
                      show_str(entry, "name"), show_str(entry, "drain_why"), show_str(entry, "name"));
    if (is_alive(node))
        links_look(nodes, links, node, faults);
}

/* Adds what is wrong with the node, or with each whose name is in 'names'. */
static int server_ask(struct cli *cli, const char *name, const json_t *names, json_t *faults, struct err *err)
{
    size_t i;
    json_t *item, *devices = NULL;
    json_t *nodes = client_pages(cli, "/v1/nodes", "nodes", err);
    json_t *links = nodes ? client_pages(cli, "/v1/links", "links", err) : NULL;
    int result = links ? client_list(cli, "/v1/devices", "devices", &devices, err) : -1;
    if (result == 0 && name) {
        const json_t *node = doctor_row_of(nodes, "name", name);
        if (node)
            node_look(nodes, devices, links, node, faults);
        else
            result = err_set(err, ERR_NOT_FOUND, "there is no node %s; motley nodes lists them", name);
    }
    json_array_foreach ((json_t *)names, i, item) {
        const char *own = show_str(item, "name");
        const json_t *node = result == 0 ? doctor_row_of(nodes, "name", own) : NULL;
        if (node)
            node_look(nodes, devices, links, node, faults);
        else if (result == 0)
            fault_add(faults, "agent %s of this home has not joined: its log is %s/logs/agent-%s.log", own,
                      cli->home, own);
    }
    json_decref(nodes);
    json_decref(links);
    json_decref(devices);
    return result;
}

/* ---- this machine ---- */

/* What the home's server is; nothing when it is none. */
static int home_look(struct cli *cli, bool *looked, json_t *faults, struct err *err)
{
    char path[LOCAL_HOME_BYTES];
    struct err why = {0};
    json_t *queue = NULL;
    if (file_path(path, sizeof(path), err, "%s/run/up.json", cli->home) < 0)
        return -1;
    if (!file_exists(path))
        return 0;
    *looked = true;
    json_t *found = local_doctor(cli->home, err);
    json_t *config = found ? document_load(path, CONFIG_BYTES, err) : NULL;
    int result = config ? json_array_extend(faults, found) : -1;
    if (result == 0 && local_is_up(cli->home)) {
        const json_t *agents = json_object_get(config, "agents");
        if (client_call(cli, "GET", NULL, &queue, &why, "/v1/queue?limit=1") < 0 ||
            server_ask(cli, NULL, agents, faults, &why) < 0)
            fault_add(faults, "the api does not answer: %s", why.text);
        const json_t *scheduler = json_object_get(queue, "scheduler");
        if (json_is_string(json_object_get(scheduler, "why")))
            fault_add(faults, "%s", show_str(scheduler, "why"));
    }
    json_decref(found);
    json_decref(config);
    json_decref(queue);
    return result;
}

/* What the agent of this machine finds; nothing when there is none. */
static int agent_look(struct cli *cli, bool *looked, json_t *faults, struct err *err)
{
    char program[4096];
    const char *home = cli_option(cli, "--agent");
    const char *config = cli_option(cli, "--config");
    if (!home && access(agent_home, F_OK) != 0)
        return 0;
    *looked = true;
    config = config ? config : !home && access(agent_config, R_OK) == 0 ? agent_config : NULL;
    if (process_sibling("motley-agent", program, sizeof(program), err) < 0)
        return -1;
    const char *const argv[] = {
        program, "--doctor=json", "--home", home ? home : agent_home, config ? "--config" : NULL, config,
        NULL};
    json_t *found = program_json(argv, AGENT_SECONDS, err);
    int result = found ? json_array_extend(faults, found) : -1;
    json_decref(found);
    return result < 0 ? err_wrap(err, "asking motley-agent, as whose user this has to run") : 0;
}

int command_doctor(struct cli *cli, struct err *err)
{
    bool looked = cli->word_count > 0;
    size_t i;
    json_t *entry, *faults = json_array();
    int result =
        looked ? server_ask(cli, cli->words[0], NULL, faults, err) : home_look(cli, &looked, faults, err);
    if (result == 0 && cli->word_count == 0)
        result = agent_look(cli, &looked, faults, err);
    if (result == 0 && !looked)
        result = err_set(err, ERR_NOT_FOUND,
                         "%s is not the home of a server, and there is no agent in %s: --home and --agent "
                         "name others, and "
                         "motley doctor NODE asks the server about a machine",
                         cli->home, agent_home);
    if (result == 0 && cli->json) {
        json_t *answer = json_pack("{s:O}", "faults", faults);
        result = answer ? show_json(answer, err) : err_set(err, ERR_NOMEM, "no memory for an answer");
        json_decref(answer);
    } else if (result == 0) {
        json_array_foreach (faults, i, entry)
            show_one_line(json_string_value(entry));
        if (json_array_size(faults) == 0)
            printf("no fault found\n");
    }
    if (result == 0 && json_array_size(faults) > 0)
        cli->exit_status = CLI_FAILED;
    json_decref(faults);
    return result;
}
