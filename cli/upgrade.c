/* `motley upgrade --check`: what would become of a running server, its machines and its jobs if the programs
 * of this release replaced those that run, each a sentence. It changes nothing. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/document.h"
#include "common/faults.h"
#include "common/file.h"
#include "common/process.h"
#include "common/program_json.h"
#include "common/release.h"
#include "common/units.h"
#include "local/backup.h"

enum { API_SECONDS = 120, CALL_MS = 20000, CONFIG_BYTES = 1 << 20, BACKUP_HOURS_MAX = 24 };

struct upgrade_check {
    struct cli *cli;
    json_t *notes;   /* sentences on what happens */
    json_t *against; /* sentences on what speaks against the upgrade */
    bool steps;      /* the schema changes, so there is no way back but a backup */
    double database; /* bytes of the database; below 0: unknown */
};

/* Asks the running server which release it is. It is not there, or too far from this release, when the answer
 * is false: then nothing else can be asked of it. */
static bool server_look(struct upgrade_check *check)
{
    char release[33];
    unsigned protocol = 0;
    struct err why = {0};
    struct http_answer answer = {0};
    const struct http_request request = {.method = "GET", .path = "/v1/whoami", .timeout_ms = CALL_MS};
    if (client_open(check->cli, &why) < 0 || http_perform(check->cli->http, &request, &answer, &why) < 0) {
        fault_add(check->against, "machines and jobs are unknown, since the server cannot be asked: %s",
                  why.text);
        return false;
    }
    if (sscanf(answer.release, "%32[^/]/%u", release, &protocol) != 2)
        fault_add(check->notes, "the server runs a release that does not say its number; this one is %s",
                  motley_version);
    else
        fault_add(check->notes, "the server runs release %s (protocol %u); this one is %s (protocol %u)",
                  release, protocol, motley_version, release_protocol());
    return true;
}

/* The configuration that motley-api runs with. */
static int config_path(const struct cli *cli, char path[LOCAL_HOME_BYTES], struct err *err)
{
    const char *given = cli_option(cli, "--config");
    if (file_path(path, LOCAL_HOME_BYTES, err, given ? "%s" : "%s/run/api.yaml", given ? given : cli->home) <
        0)
        return -1;
    return file_exists(path)
               ? 0
               : err_set(err, ERR_NOT_FOUND,
                         "%s is not there: --home names the home of a server, --config the api.yaml "
                         "of one with a PostgreSQL of its own",
                         path);
}

/* What this release's motley-api would do to the schema. */
static int upgrade_schema_look(struct upgrade_check *check, struct err *err)
{
    char program[4096], config[LOCAL_HOME_BYTES];
    size_t i;
    json_t *step;
    if (config_path(check->cli, config, err) < 0 ||
        process_sibling("motley-api", program, sizeof(program), err) < 0)
        return -1;
    const char *const argv[] = {program, "--config", config, "--pending", NULL};
    json_t *answer = program_json(argv, API_SECONDS, err);
    if (!answer)
        return err_wrap(err, "asking motley-api, as whose user or root this has to run");
    const json_t *pending = json_object_get(answer, "pending");
    check->steps = json_array_size(pending) > 0;
    check->database = show_num(answer, "database_bytes", -1);
    if (*show_str(answer, "why") != '\0')
        fault_add(check->against, "the database cannot be used: %s", show_str(answer, "why"));
    else if (!check->steps)
        fault_add(check->notes, "the database stays as it is, of schema version %.0f",
                  show_num(answer, "needs", 0));
    else
        fault_add(check->notes,
                  "the database goes from schema version %.0f to %.0f, each step a transaction:",
                  show_num(answer, "schema", 0), show_num(answer, "needs", 0));
    json_array_foreach (pending, i, step)
        fault_add(check->notes, "  %s", json_string_value(step));
    json_decref(answer);
    return 0;
}

static void upgrade_disk_look(struct upgrade_check *check)
{
    char needed[32], left[32];
    struct err why = {0};
    json_t *answer = NULL;
    if (!check->steps || check->database < 0)
        return;
    if (client_call(check->cli, "GET", NULL, &answer, &why, "/v1/storage") < 0) {
        fault_add(check->against, "the free room is unknown: %s", why.text);
        return;
    }
    /* A step may write each table anew before it drops the old one. */
    const double free_bytes = show_num(answer, "free_bytes", 0);
    units_bytes(needed, (uint64_t)check->database);
    units_bytes(left, (uint64_t)free_bytes);
    if (free_bytes < check->database)
        fault_add(
            check->against,
            "the steps may need as much room again as the database has, %s, and %s are free: motley df says "
            "who has what, motley rm removes jobs that have ended",
            needed, left);
    else
        fault_add(check->notes, "the steps may need as much room again as the database has, %s; %s are free",
                  needed, left);
    json_decref(answer);
}

static void upgrade_nodes_look(struct upgrade_check *check)
{
    size_t i;
    json_t *node;
    struct err why = {0};
    unsigned fit = 0;
    json_t *nodes = client_pages(check->cli, "/v1/nodes", "nodes", &why);
    if (!nodes)
        fault_add(check->against, "the machines are unknown: %s", why.text);
    json_array_foreach (nodes, i, node) {
        char who[160];
        struct err far;
        const json_t *protocol = json_object_get(node, "protocol");
        snprintf(who, sizeof(who), "the agent of %s", show_str(node, "name"));
        if (json_is_integer(protocol) &&
            release_check(who, show_str(node, "release"), (unsigned)json_integer_value(protocol), &far) < 0)
            fault_add(check->against, "%s", far.text);
        else if (json_is_integer(protocol))
            fit++;
        else
            fault_add(check->notes, "%s has not said its release, and is refused if it is too old", who);
    }
    if (fit > 0)
        fault_add(check->notes, "%u agent%s on with a server of this release; upgrade them after it", fit,
                  fit == 1 ? " works" : "s work");
    json_decref(nodes);
}

/* Whether a rank of the job's run is on one of the home's own agents, which end with the server. */
static bool ends_with_server(const json_t *job, const json_t *agents)
{
    size_t i, k;
    json_t *rank, *agent;
    json_array_foreach (json_object_get(json_object_get(job, "run"), "ranks"), i, rank)
        json_array_foreach (agents, k, agent)
            if (strcmp(show_str(rank, "node"), show_str(agent, "name")) == 0)
                return true;
    return false;
}

/* What becomes of a job that runs. */
static void job_look(struct upgrade_check *check, const json_t *listed, const json_t *agents)
{
    json_t *job = NULL;
    struct err why = {0};
    const long long id = (long long)show_num(listed, "id", 0);
    if (client_call(check->cli, "GET", NULL, &job, &why, "/v1/jobs/%lld", id) < 0) {
        fault_add(check->against, "job %lld is unknown: %s", id, why.text);
        return;
    }
    const json_t *checkpoints = json_object_get(job, "checkpoints");
    const json_t *last = json_array_get(checkpoints, json_array_size(checkpoints) - 1);
    const double step = show_num(job, "step", 0);
    if (!ends_with_server(job, agents))
        fault_add(check->notes, "job %lld runs on: its workers keep the programs that they were started with",
                  id);
    else if (last)
        fault_add(check->notes,
                  "job %lld is at step %.0f, partly on devices of the server itself, which stop with it: it "
                  "goes on "
                  "from step %.0f, its last checkpoint, unless it stores one in time (grace)",
                  id, step, show_num(last, "step", 0));
    else
        fault_add(
            check->notes,
            "job %lld is at step %.0f, partly on devices of the server itself, which stop with it: it begins "
            "again, having no checkpoint, unless it stores one in time (grace)",
            id, step);
    json_decref(job);
}

static void jobs_look(struct upgrade_check *check)
{
    size_t i;
    json_t *job;
    char path[LOCAL_HOME_BYTES];
    struct err why = {0};
    json_t *up = NULL, *waiting = NULL;
    if (!cli_option(check->cli, "--config") &&
        file_path(path, sizeof(path), &why, "%s/run/up.json", check->cli->home) == 0)
        up = document_load(path, CONFIG_BYTES, &why);
    json_t *running = client_pages(check->cli, "/v1/jobs?state=starting,running,stopping", "jobs", &why);
    if (running)
        waiting = client_pages(check->cli, "/v1/jobs?state=queued,held", "jobs", &why);
    if (!waiting)
        fault_add(check->against, "the jobs are unknown: %s", why.text);
    json_array_foreach (running, i, job)
        job_look(check, job, json_object_get(up, "agents"));
    if (waiting)
        fault_add(check->notes, "%zu job%s and %zu wait%s or %s held and stay%s so", json_array_size(running),
                  json_array_size(running) == 1 ? " runs" : "s run", json_array_size(waiting),
                  json_array_size(waiting) == 1 ? "s" : "", json_array_size(waiting) == 1 ? "is" : "are",
                  json_array_size(waiting) == 1 ? "s" : "");
    json_decref(up);
    json_decref(running);
    json_decref(waiting);
}

/* When the last backup was made. The only way back from another schema is a backup. */
static void backup_look(struct upgrade_check *check)
{
    char folder[LOCAL_HOME_BYTES];
    int64_t made_us = 0;
    struct err why = {0};
    if (cli_option(check->cli, "--config")) {
        fault_add(check->notes,
                  "when this server was backed up last is not recorded; there is no other way back");
        return;
    }
    if (local_backup_last(check->cli->home, &made_us, folder, &why) < 0) {
        fault_add(check->against, "the age of the last backup is unknown: %s", why.text);
        return;
    }
    char made[32];
    const bool old = clock_wall_us() - made_us > (int64_t)BACKUP_HOURS_MAX * 3600 * 1000000;
    if (made_us == 0)
        fault_add(check->steps ? check->against : check->notes,
                  "no backup of this server is known: motley backup DIR, with the programs that run now");
    else
        fault_add(check->steps && old ? check->against : check->notes, "the last backup is of %s, in %s%s",
                  clock_rfc3339(made_us, made), folder,
                  check->steps && old ? ": make a new one, the only way back to the schema of now" : "");
}

static int upgrade_tell(struct upgrade_check *check, struct err *err)
{
    size_t i;
    json_t *line;
    if (check->cli->json) {
        json_t *answer = json_pack("{s:O, s:O}", "notes", check->notes, "against", check->against);
        const int result =
            answer ? show_json(answer, err) : err_set(err, ERR_NOMEM, "no memory for an answer");
        json_decref(answer);
        return result;
    }
    json_array_foreach (check->notes, i, line)
        show_one_line(json_string_value(line));
    json_array_foreach (check->against, i, line) {
        printf("against it: ");
        show_one_line(json_string_value(line));
    }
    if (json_array_size(check->against) == 0)
        printf("nothing speaks against the upgrade\n");
    return 0;
}

int command_upgrade(struct cli *cli, struct err *err)
{
    struct upgrade_check check = {.cli = cli, .notes = json_array(), .against = json_array(), .database = -1};
    if (!cli_option(cli, "--check"))
        return err_set(
            err, ERR_INVALID,
            "usage: motley upgrade --check; the upgrade itself is `apt install` of the packages, and the "
            "server's start brings the database up to date");
    int result = upgrade_schema_look(&check, err);
    if (result == 0 && server_look(&check)) {
        upgrade_disk_look(&check);
        upgrade_nodes_look(&check);
        jobs_look(&check);
    }
    if (result == 0) {
        backup_look(&check);
        result = upgrade_tell(&check, err);
    }
    if (result == 0 && json_array_size(check.against) > 0)
        cli->exit_status = CLI_FAILED;
    json_decref(check.notes);
    json_decref(check.against);
    return result;
}
