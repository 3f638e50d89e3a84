/* What every client command shares: words and options, where the server is, how results are told.
 *
 * A command is a function of one file, listed in the table of cli/main.c. It fills `err` and returns -1, or
 * returns 0; main turns the error into one sentence on stderr and the exit status of docs/INTERFACES.md. The
 * client is one thread.
 */
#ifndef MOTLEY_CLI_CLI_H
#define MOTLEY_CLI_CLI_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "common/http.h"

enum cli_status {
    CLI_DONE = 0,
    CLI_FAILED = 1,
    CLI_USAGE = 2, /* usage, or an invalid specification */
    CLI_NO_ANSWER = 3,
    CLI_NOFIT = 4,
    CLI_JOB_FAILED = 5,
    CLI_DENIED = 6,
};

enum { CLI_OPTIONS_MAX = 16, CLI_WORDS_MAX = 64, CLI_REPEATS_MAX = 16 };

struct cli;

struct cli_option {
    const char *name;  /* "--out" or "-f" */
    const char *value; /* what it takes, for the help ("DIR"); NULL: a flag */
    const char *help;
};

/* What people do with a command: `motley --help` lists commands in these groups. */
enum cli_group { CLI_RUN, CLI_LOOK, CLI_PLAN, CLI_SHARE, CLI_ADMINISTER, CLI_GROUPS };

struct cli_command {
    const char *name;  /* "submit" */
    const char *words; /* positional arguments for the usage line, "SPEC" */
    unsigned words_min, words_max;
    const char *help;                           /* one line */
    struct cli_option options[CLI_OPTIONS_MAX]; /* ended by a NULL name */
    int (*run)(struct cli *cli, struct err *err);
    enum cli_group group;
};

struct cli {
    const struct cli_command *command;
    unsigned word_count;
    const char *words[CLI_WORDS_MAX]; /* borrowed from argv */
    unsigned option_count;
    struct {
        const char *name;  /* as in the command's table */
        const char *value; /* "" for a flag */
    } options[CLI_REPEATS_MAX * 2];
    bool json;
    bool quiet; /* watching tells nothing: one document is to come at the end */
    char home[4096]; /* LOCAL_HOME_BYTES */
    struct http *http; /* opened on first use */
    char address[256]; /* of the server, for messages */
    int exit_status;   /* what a command that ends well wants; CLI_DONE */
};

/* Value of an option ("" for a flag), or NULL when it was not given. */
const char *cli_option(const struct cli *cli, const char *name);
/* The nth value of an option that may be given several times; NULL beyond the last. */
const char *cli_option_nth(const struct cli *cli, const char *name, unsigned nth);
/* A whole number within [min, max]; `missing` when not given. ERR_INVALID names the option. */
int cli_option_i64(const struct cli *cli, const char *name, int64_t min, int64_t max, int64_t missing,
                   int64_t *out, struct err *err);

/* ---- the server (cli/client.c) ---- */

/* Opens the server that HOME/client.json names. ERR_NET "no server: …" when there is none. */
int client_open(struct cli *cli, struct err *err);
void client_close(struct cli *cli);
/* One JSON call, path made by printf; opens the client if need be. `out` may be NULL; becomes new. */
int client_call(struct cli *cli, const char *method, const json_t *body, json_t **out, struct err *err,
                const char *fmt, ...) __attribute__((format(printf, 6, 7)));
/* The job id of a word ("17"); ERR_INVALID otherwise. */
int client_job_id(const char *word, int64_t *id, struct err *err);
/* GET of all pages: the array `member` of each answer, joined; follows "next" as `after`. `most` items at
 * most, 0: all. Returns new, or NULL. */
json_t *client_pages(struct cli *cli, const char *path, const char *member, size_t most, struct err *err);

/* The lines of `motley metrics`: steps and evaluations. Returns new, or NULL. */
json_t *client_metrics(struct cli *cli, int64_t id, struct err *err);

/* ---- files by content (cli/upload.c) ---- */

/* Uploads the files the specification names and puts references in their place; registers a local model. */
int upload_spec_files(struct cli *cli, json_t *spec, struct err *err);
/* Uploads one file unless the server has it; hex: its SHA-256. */
int upload_file(struct cli *cli, const char *path, char hex[65], uint64_t *bytes, struct err *err);
/* Registers a folder or .gguf file under `name` (NULL: one made from its content). *answer becomes new:
 * {"name","content"}. */
int upload_model(struct cli *cli, const char *name, const char *path, json_t **answer, struct err *err);

/* ---- telling (cli/show.c) ---- */

/* One JSON document on a line of stdout. */
int show_json(const json_t *document, struct err *err);
/* Aligned columns: `columns` is "HEADER:key:kind …"; kind: s text, n number, b bytes, t seconds, w time of
 * day. */
int show_table(const json_t *rows, const char *columns, struct err *err);
/* A text of a model or a log on one line of stdout: line ends become " / ", other control characters "?". */
void show_one_line(const char *text);
/* A member as text; "" when absent. Borrowed. */
const char *show_str(const json_t *object, const char *key);
double show_num(const json_t *object, const char *key, double missing);

/* `motley devices --code`: the GPU code objects of this build (cli/code.c). */
int show_code(struct cli *cli, struct err *err);

/* Submits a specification whose files are references by now (upload_spec_files). *answer becomes new, *id the
 * job's. */
int submit_spec(struct cli *cli, const json_t *spec, json_t **answer, int64_t *id, struct err *err);
/* A plan's answer (INTERFACES.md, "What `motley plan --json` answers") for people: verdict, ranks,
 * alternatives. */
int show_plan(const json_t *answer, struct err *err);

struct draw_input;
/* Writes a plan's picture (show/draw.h) to a file; `layout` is found here, by Graphviz
 * if it is installed. */
int draw_write(const char *path, const struct draw_input *input, struct err *err);

/* ---- what a plan rests on (cli/given.c) ---- */

struct plan_inputs;
/* Reads a specification file (YAML or JSON), refuses what is invalid by path, resolves relative file names
 * against the specification's folder. Returns the document as given with files made absolute, new; or NULL.
 */
json_t *given_spec(const char *path, struct err *err);
/* A JSON file of at most 64 MiB; a file that is not there is ERR_INVALID. Returns new, or NULL. */
json_t *given_document(const char *path, struct err *err);
/* The text of a file that somebody named: where it cannot be read (absent, a folder, …) what was named is
 * wrong, ERR_INVALID. */
int given_text(const char *path, size_t most, struct buf *text, struct err *err);
/* Likewise a JSON document of up to `most` bytes. New. */
json_t *given_json(const char *path, size_t most, struct err *err);
/* What is wrong inside a given file (a name twice, a name not there, too much of it) is the file's fault:
 * ERR_INVALID. Always -1. */
int given_wrong(struct err *err);
/* Puts the file's name before what is said of a part of a specification ("placement.devices[0]: …"). Always
 * -1. */
int given_of_spec(struct err *err, const char *path);
/* A cluster file, with the profile files that it names taken in. Returns new, or NULL with the path. */
json_t *given_cluster(const char *path, const char *profile_key, struct err *err);
/* Warns, on stderr, when the disk of a home that is up here is nearly full (cli/up.c). */
void warn_of_full_disk(const struct cli *cli);

/* The server's inputs document for a specification whose files are references (planner/given/inputs.h), new;
 * the server's own plan to *answer (may be NULL), new. */
json_t *given_by_server(struct cli *cli, const json_t *spec, json_t **answer, struct err *err);
/* The config.json of the model that a specification names: of a folder, the file itself, or what a GGUF says. New.
 * 'folder': where it is; 'path': the config.json or the .gguf. Both have room for PATH_MAX bytes. */
json_t *given_config(const char *spec_path, const char *model, char *folder, char *path, struct err *err);
/* A data file that a specification names, as a path into 'out' (PATH_MAX bytes); NULL when it is not there. */
const char *given_data_file(const char *spec_path, const char *word, char *out);

/* What makes rows of a data file (cli/given_rows.c). */
struct rows;
struct rows_options;
struct rows_report;
struct spec_data_part;
struct given_text {
    struct tokenizer *tokenizer; /* owned; NULL: the model has none */
    struct chat_template *chat;  /* owned, or NULL */
};
/* Opens the tokenizer of the model at a config.json's or .gguf's path, and the template that the data part
 * asks for. *options borrows of *text. */
int given_text_open(const struct spec_data_part *data, const char *model_path, uint32_t vocab,
                    struct given_text *text, struct rows_options *options, struct err *err);
void given_text_fini(struct given_text *text);
/* Encodes a data file. New. */
int given_encode(const char *path, const struct rows_options *options, struct rows **rows,
                 struct rows_report *report, struct err *err);

/* Row sizes of a specification's data (cli/given_rows.c). */
struct row_size;
struct job_spec;
struct given_rows {
    struct row_size *train, *eval; /* owned; NULL: not at hand */
    uint32_t train_count, eval_count, prompt_tokens;
    int format;    /* enum spec_format that the rows turned out to have */
    char why[320]; /* not at hand: why; else "" */
};
/* Reads them from files, NULL when there are none; what cannot be read is only said in `why`. */
void given_rows_read(const struct job_spec *spec, const char *train, const char *eval,
                     const char *model_path, uint32_t vocab, struct given_rows *given);
void given_rows_fini(struct given_rows *given);

/* Fills *inputs (plan_inputs_fini) for a specification file and a cluster file, without a server. *rows
 * becomes {"count", "from" | null, "why"?}, new: whether the data's own lengths were used. */
int given_by_files(const char *spec_path, const char *cluster_path, struct plan_inputs *inputs, json_t **rows,
                   struct err *err);

/* The same as a problem document (planner/given/inputs.h), what any planner plans on. Returns new, or NULL.
 */
json_t *given_problem(const char *spec_path, const char *cluster_path, json_t **rows, struct err *err);

/* ---- another planner (cli/planner.c) ---- */

struct plan_answer;
/* Writes the problem document to a file. */
int planner_problem(const char *path, const json_t *problem, struct err *err);
/* Asks the program at `path` about the problem, and puts its answer beside ours: `planner` in `told`
 * (docs/INTERFACES.md), and a table on stdout unless cli->json. A refused answer is told, not an error. */
int planner_tell(struct cli *cli, const char *path, const json_t *problem, const struct plan_inputs *inputs,
                 const struct plan_answer *ours, json_t *told, struct err *err);

/* `motley replay JOB` (cli/replay_job.c): a recorded run, simulated and changed as the options say. */
int replay_job(struct cli *cli, const char *word, struct err *err);

/* ---- following a job (cli/watch.c) ---- */

/* Follows the job's events until it ends, telling each; `live` redraws a terminal. *job becomes the final
 * document, new. */
int watch_job(struct cli *cli, int64_t id, json_t **job, struct err *err);
/* Writes what a job made into a folder (cli/get.c). */
int get_job(struct cli *cli, int64_t id, const char *folder, struct err *err);
/* Turns the state a job ended in into cli->exit_status and, for failures, a sentence. */
int job_verdict(struct cli *cli, const json_t *job, struct err *err);

/* ---- the commands ---- */
int command_up(struct cli *cli, struct err *err);
int command_down(struct cli *cli, struct err *err);
int command_status(struct cli *cli, struct err *err);
int command_run(struct cli *cli, struct err *err);
int command_submit(struct cli *cli, struct err *err);
int command_rows(struct cli *cli, struct err *err);
int command_plan(struct cli *cli, struct err *err);
int command_jobs(struct cli *cli, struct err *err);
int command_job(struct cli *cli, struct err *err);
int command_why(struct cli *cli, struct err *err);
int command_watch(struct cli *cli, struct err *err);
int command_logs(struct cli *cli, struct err *err);
int command_act(struct cli *cli, struct err *err); /* cancel, hold, release */
int command_resume(struct cli *cli, struct err *err);
int command_metrics(struct cli *cli, struct err *err);
int command_get(struct cli *cli, struct err *err);
int command_node(struct cli *cli, struct err *err);
int command_join_token(struct cli *cli, struct err *err);
int command_drain(struct cli *cli, struct err *err); /* and undrain */
int command_nodes(struct cli *cli, struct err *err);
int command_devices(struct cli *cli, struct err *err);
int command_model(struct cli *cli, struct err *err);
int command_share(struct cli *cli, struct err *err);
int command_token(struct cli *cli, struct err *err);
int command_group(struct cli *cli, struct err *err);
int command_user(struct cli *cli, struct err *err);
int command_audit(struct cli *cli, struct err *err);
int command_replay(struct cli *cli, struct err *err);
int command_profile(struct cli *cli, struct err *err);

#endif
