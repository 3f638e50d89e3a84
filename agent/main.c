/* Usage: motley-agent --api URL [--join TOKEN | --join-file PATH] --home DIR [--config FILE] [--worker PATH]
 */
#include <getopt.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent.h"
#include "agent/doctor.h"
#include "common/document.h"
#include "common/file.h"
#include "common/log.h"
#include "common/yaml.h"
#include "common/usage.h"

static const char usage[] =
    "usage: motley-agent [--api URL] [--join TOKEN | --join-file PATH] --home DIR [--config FILE] [--worker "
    "PATH]\n"
    "  --api URL      the cluster's api, https://host:port (http:// on this machine only)\n"
    "  --join TOKEN   as `motley join-token` prints it; needed once. Others on this machine can read it "
    "there, but not "
    "in\n                 the variable MOTLEY_JOIN, which does the same\n"
    "  --join-file PATH   the token is the first line of that file; it need not be there once joined\n"
    "  --home DIR     identity, journal, workers' folders and the chunk cache\n"
    "  --config FILE  YAML: name, address, devices [{kind, threads, memory, isa}], cache, journal, grace, "
    "until\n"
    "  --doctor[=json]  say what is wrong with this machine (status 1), or nothing (0), and end; changes "
    "nothing\n"
    "Status 4: this node is not welcome (a token that is not good, a name that is taken, removed, past its "
    "`until`):\n"
    "starting again changes nothing. Status 5: the server is of a release that does not work with this one.\n"
    "SIGTERM makes the node leave: its workers store a checkpoint after the "
    "step under\n"
    "way, for which they have `grace` (120 s), its jobs move, and the agent ends; a second one kills. The "
    "same begins by\n"
    "itself that long before `until` or, in a Slurm job, before SLURM_JOB_END_TIME. SIGUSR2 ends the agent "
    "alone, for the\nnext one to go on.\n";

enum { JOIN_BYTES_MAX = 1024 };

/* Reads the join token, the first line of the file. */
static int join_read(const char *path, char token[JOIN_BYTES_MAX], struct err *err)
{
    struct buf text;
    buf_init(&text, JOIN_BYTES_MAX);
    int result = file_read_all(path, JOIN_BYTES_MAX - 1, &text, err);
    if (result == 0) {
        snprintf(token, JOIN_BYTES_MAX, "%.*s", (int)strcspn(buf_str(&text), "\r\n"), buf_str(&text));
        result = token[0] != '\0' ? 0 : err_set(err, ERR_INVALID, "\"%s\" holds no join token", path);
    }
    buf_fini(&text);
    return result;
}

/* Reads when Slurm takes this machine away, if it does: seconds since 1970. */
static int slurm_end_read(int64_t *until_us, struct err *err)
{
    const char *text = getenv("SLURM_JOB_END_TIME");
    char *end;
    if (!text || *text == '\0')
        return 0;
    const long long seconds = strtoll(text, &end, 10);
    if (*end != '\0' || seconds <= 0 || seconds > INT64_MAX / 1000000)
        return err_set(err, ERR_INVALID, "SLURM_JOB_END_TIME is \"%.64s\", which is no number of seconds",
                       text);
    *until_us = seconds * 1000000;
    return 0;
}

/* Returns the exit status of an error, as the usage text says. */
static int exit_status(const struct err *err)
{
    bool unwelcome = err->code == ERR_AUTH || err->code == ERR_DENIED || err->code == ERR_CONFLICT;
    return err->code == ERR_INVALID || err->code == ERR_UNSUPPORTED ? 2
           : err->code == ERR_NET                                   ? 3
           : unwelcome                                              ? 4
           : err->code == ERR_RELEASE                               ? 5
                                                                    : 1;
}

/* Prints what is wrong with this machine, a sentence a line or one document, and returns how much it is. The
 * document's reader counts itself, so that it is no failure of ours then. */
static int doctor_print(const struct agent_options *options, bool json, struct err *err)
{
    size_t i;
    const struct doctor_place place = {options->home, options->api, options->worker, options->config};
    json_t *fault, *faults = doctor_machine(&place, err);
    if (!faults)
        return -1;
    const int count = json ? 0 : (int)json_array_size(faults);
    json_array_foreach (faults, i, fault)
        if (!json)
            puts(json_string_value(fault));
    if (json)
        json_dumpf(faults, stdout, JSON_COMPACT);
    json_decref(faults);
    return count;
}

/* Runs the agent, or with 'doctor' says what is wrong with its machine. Returns the exit status. */
static int agent_run_here(struct agent_options *options, const char *doctor, struct err *err)
{
    int result = doctor ? doctor_print(options, strcmp(doctor, "json") == 0, err)
                        : slurm_end_read(&options->until_us, err);
    if (result == 0 && !doctor)
        result = agent_run(options, err);
    if (result < 0)
        fprintf(stderr, "motley-agent: %s\n", err->text);
    return result < 0 ? exit_status(err) : result > 0;
}

int main(int argc, char **argv)
{
    static const struct option known[] = {
        {"api", required_argument, NULL, 'a'},       {"join", required_argument, NULL, 'j'},
        {"join-file", required_argument, NULL, 'f'}, {"home", required_argument, NULL, 'h'},
        {"config", required_argument, NULL, 'c'},    {"worker", required_argument, NULL, 'w'},
        {"doctor", optional_argument, NULL, 'd'},    {NULL, 0, NULL, 0},
    };
    if (usage_answered(argc, argv, usage))
        return 0;
    struct agent_options options = {.join = getenv("MOTLEY_JOIN")};
    unsetenv("MOTLEY_JOIN"); /* workers inherit the environment; the text itself stays where it is */
    const char *config = NULL, *join_file = NULL, *doctor = NULL;
    char token[JOIN_BYTES_MAX];
    int given;
    while ((given = getopt_long(argc, argv, "", known, NULL)) != -1) {
        switch (given) {
        case 'a':
            options.api = optarg;
            break;
        case 'j':
            options.join = optarg;
            break;
        case 'f':
            join_file = optarg;
            break;
        case 'h':
            options.home = optarg;
            break;
        case 'c':
            config = optarg;
            break;
        case 'd':
            doctor = optarg ? optarg : "";
            break;
        case 'w':
            options.worker = optarg;
            break;
        default:
            fputs(usage, stderr);
            return 2;
        }
    }
    if (!options.home || optind < argc) {
        fputs(usage, stderr);
        return 2;
    }
    struct err err = {0};
    if (join_file && file_exists(join_file)) {
        if (join_read(join_file, token, &err) < 0) {
            fprintf(stderr, "motley-agent: %s\n", err.text);
            return 2;
        }
        options.join = token;
    } else
        options.join_missing = join_file;
    json_t *document = !config ? NULL : document_load(config, YAML_BYTES_MAX, &err);
    if (config && !document) {
        fprintf(stderr, "motley-agent: %s\n", err.text);
        return 2;
    }
    options.config = document;
    const int status = agent_run_here(&options, doctor, &err);
    json_decref(document);
    return status;
}
