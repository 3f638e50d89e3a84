/* What the client's commands share: words and options, the server, and output.
 *
 * A command is a function of one file, listed in the table of cli/main.c. It returns 0, or fills `err` and
 * returns -1; main turns the error into one sentence on stderr and the exit status of docs/INTERFACES.md. The
 * client has one thread.
 */
#ifndef MOTLEY_CLI_CLI_H
#define MOTLEY_CLI_CLI_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/err.h"
#include "common/http.h"
#include "hub/hub.h"

enum cli_status {
    CLI_DONE = 0,
    CLI_FAILED = 1,
    CLI_USAGE = 2, /* wrong usage, or an invalid specification */
    CLI_NO_ANSWER = 3,
    CLI_NOFIT = 4,
    CLI_JOB_FAILED = 5,
    CLI_DENIED = 6,
    CLI_LIMIT = 7,   /* the queue, or what one may have, is full: try again later */
    CLI_RELEASE = 8, /* the server, or its database, is of a release that does not work with this one */
};

enum { CLI_OPTIONS_MAX = 20, CLI_WORDS_MAX = 64, CLI_REPEATS_MAX = 16 };

struct cli;

struct cli_option {
    const char *name;  /* "--out" or "-f" */
    const char *value; /* name of its value in the help ("DIR"); NULL: a flag */
    const char *help;
};

/* What people do with a command: `motley --help` lists commands in these groups. */
enum cli_group { CLI_RUN, CLI_LOOK, CLI_PLAN, CLI_SHARE, CLI_ADMINISTER, CLI_GROUPS };

struct cli_command {
    const char *name;  /* for example "submit" */
    const char *words; /* positional arguments for the usage line, such as "SPEC" */
    unsigned words_min, words_max;
    const char *help;                           /* one line */
    struct cli_option options[CLI_OPTIONS_MAX]; /* ended by a NULL name if they are fewer */
    int (*run)(struct cli *cli, struct err *err);
    enum cli_group group;
};

struct cli {
    const struct cli_command *command;
    unsigned word_count;
    const char *words[CLI_WORDS_MAX]; /* borrowed from argv */
    unsigned option_count;
    struct {
        const char *name;  /* of struct cli_command */
        const char *value; /* "" for a flag */
    } options[CLI_REPEATS_MAX * 2];
    bool json;
    bool quiet;        /* watching prints nothing, because one document is printed at the end */
    char home[4096];   /* folder of Motley's files (--home); LOCAL_HOME_BYTES of local/local.h */
    struct http *http; /* opened on first use */
    char address[256]; /* the server's address, for messages */
    char train[256],
        eval[256];   /* files that a specification named, of which the server knows the content alone */
    int exit_status; /* exit status of a command that succeeds; usually CLI_DONE */
};

/* Returns the value of an option ("" for a flag), or NULL when it was not given. */
const char *cli_option(const struct cli *cli, const char *name);
/* Returns the nth value of an option that may be repeated; NULL beyond the last. */
const char *cli_option_nth(const struct cli *cli, const char *name, unsigned nth);
/* Reads the option as a whole number in [min, max]; `missing` when it was not given. ERR_INVALID names the
 * option. */
int cli_option_i64(const struct cli *cli, const char *name, int64_t min, int64_t max, int64_t missing,
                   int64_t *out, struct err *err);

/* Reads a time, either RFC 3339 (or a date) or so long from now ("2h"; sign -1: so long ago), and writes it
 * in RFC 3339. Returns -1 for any other text. */
int cli_time_read(const char *text, int sign, char out[32]);
/* Reads --expires as the server takes it: *out becomes a length of time ("30d"), or NULL when it was not
 * given; a date becomes `room`. ERR_INVALID for one that is past. */
int cli_option_expires(const struct cli *cli, const char **out, char room[32], struct err *err);
/* Reads the option so: *out becomes `room`, or NULL when it was not given. ERR_INVALID names the option. */
int cli_option_time(const struct cli *cli, const char *name, int sign, const char **out, char room[32],
                    struct err *err);

/* ---- the server (cli/client.c) ---- */

/* Opens the server that HOME/client.json names. ERR_NET "no server: …" when the file does not exist. */
int client_open(struct cli *cli, struct err *err);
/* Returns a second client of the same server, new, for a command that makes two requests at a time. */
struct http *client_connect(struct cli *cli, struct err *err);
void client_close(struct cli *cli);
/* Makes one JSON call; the path is formatted like printf. Opens the client if needed. `out` may be NULL; *out
 * becomes new. */
int client_call(struct cli *cli, const char *method, const json_t *body, json_t **out, struct err *err,
                const char *fmt, ...) __attribute__((format(printf, 6, 7)));
/* Reads a word as a job id ("17"); otherwise ERR_INVALID. */
int client_job_id(const char *word, int64_t *id, struct err *err);
/* Reads all pages of a GET: *out becomes the first page's document, new, with the items of all pages in its
 * array `member`. It follows "next" by sending it as `after`. */
int client_list(struct cli *cli, const char *path, const char *member, json_t **out, struct err *err);
/* As client_list, but returns only the array, new; or NULL. */
json_t *client_pages(struct cli *cli, const char *path, const char *member, struct err *err);

/* Returns the lines that `motley metrics` prints, the job's steps and evaluations, new; or NULL. */
json_t *client_metrics(struct cli *cli, int64_t id, struct err *err);

/* ---- files by content (cli/upload.c) ---- */

/* Uploads the files that the specification names and replaces them by references; registers a local model. */
int upload_spec_files(struct cli *cli, json_t *spec, struct err *err);
/* Uploads a file unless the server has it. hex becomes its SHA-256. */
int upload_file(struct cli *cli, const char *path, char hex[65], uint64_t *bytes, struct err *err);
/* Registers a folder or a .gguf file under `name` (NULL: a name made from the path). *answer becomes
 * {"name","content"}, new. */
int upload_model(struct cli *cli, const char *name, const char *path, json_t **answer, struct err *err);
/* Registers what the Hub calls `word`; NULL as name: the Hub's. A server on another machine is asked to fetch
 * it, and what it may not or cannot fetch is fetched here and uploaded. */
int upload_hub_model(struct cli *cli, const char *name, const char *word, json_t **answer, struct err *err);

/* ---- names on the Hub (cli/hub.c) ---- */

/* Whether a word that is no path here may be OWNER/NAME on the Hub. */
bool hub_means(const char *word);
/* Writes the path (PATH_MAX bytes) of what is called so, from the cache or fetched into it; *name becomes
 * what was called. Says on stderr what it does. */
int hub_path(const char *word, enum hub_part part, struct hub_name *name, char *path, struct err *err);
/* `motley model get`: asks the Hub what is new, fetches that, and prints the path. */
int hub_get(struct cli *cli, const char *word, struct err *err);

/* ---- output (cli/show.c) ---- */

/* Prints a JSON document as one line of stdout. */
int show_json(const json_t *document, struct err *err);
/* Prints aligned columns. `columns` is "HEADER:key:kind …", where kind is s text, n number, b bytes, t
 * seconds, w time of day. Texts are cleaned. */
int show_table(const json_t *rows, const char *columns, struct err *err);
int show_table_to(FILE *out, const json_t *rows, const char *columns, struct err *err);
/* Prints a text of a model or a log as one line of stdout: line ends become " / ", and the rest is cleaned.
 */
void show_one_line(const char *text);
/* Makes a text of an untrusted source safe for a terminal: bytes that are not UTF-8, control characters, and
 * invisible characters or ones that change the direction of writing become "?". Writes at most `columns`
 * columns and size - 1 bytes. Returns how many columns it wrote. */
unsigned show_clean(const char *text, unsigned columns, char *out, size_t size);
/* Returns a member as text, borrowed; "" when it is absent. It is cleaned in place, as show_clean does, but
 * for line ends and tabs. */
const char *show_str(const json_t *object, const char *key);
double show_num(const json_t *object, const char *key, double missing);

/* `motley devices --code`: lists the GPU code objects of this build (cli/code.c). */
int show_code(struct cli *cli, struct err *err);

/* Submits a specification whose files have been replaced by references (upload_spec_files). *answer becomes
 * new, *id the job's id. */
int submit_spec(struct cli *cli, const json_t *spec, json_t **answer, int64_t *id, struct err *err);
/* Prints a plan's answer (INTERFACES.md, "What `motley plan --json` answers") for people: verdict, ranks,
 * alternatives. */
int show_plan(const json_t *answer, struct err *err);

struct draw_input;
/* Writes a plan's picture (show/draw.h) to a file. It sets `layout` itself, with Graphviz if that is
 * installed. */
int draw_write(const char *path, const struct draw_input *input, struct err *err);

/* ---- inputs of a plan (cli/given.c) ---- */

struct plan_inputs;
/* Reads a specification file (YAML or JSON), refuses an invalid one with the path of the wrong key, and
 * resolves relative file names against the specification's folder. Returns the document with absolute file
 * names, new; or NULL.
 */
json_t *given_spec(const char *path, struct err *err);
/* Reads a JSON file of at most 64 MiB; a missing file is ERR_INVALID. Returns new, or NULL. */
json_t *given_document(const char *path, struct err *err);
/* Reads the text of a file that the user named. A file that cannot be read (missing, a folder, …) is
 * ERR_INVALID. */
int given_text(const char *path, size_t most, struct buf *text, struct err *err);
/* Reads a JSON document of at most `most` bytes, with the errors of given_text. Returns new, or NULL. */
json_t *given_json(const char *path, size_t most, struct err *err);
/* Turns an error in the content of a given file (a repeated or missing name, a limit exceeded) into
 * ERR_INVALID. Returns -1. */
int given_wrong(struct err *err);
/* Puts the file's name before an error about a part of a specification ("placement.devices[0]: …"). Returns
 * -1. */
int given_of_spec(struct err *err, const char *path);
/* Reads a cluster file, with the profile files that it names included. Returns new, or NULL with the path of
 * the error. */
json_t *given_cluster(const char *path, const char *profile_key, struct err *err);
/* Warns on stderr when the disk of a home that is up on this machine is nearly full (cli/up.c). */
void warn_of_full_disk(const struct cli *cli);
/* Warns on stderr when the scheduler decides nothing, or leaves something out. `scheduler`: of GET /v1/queue,
 * or NULL. */
void warn_of_scheduler(const json_t *scheduler);

/* Asks the server for its inputs document (planner/given/inputs.h) for a specification whose files are
 * references. Returns it, new; *answer (may be NULL) becomes the server's own plan, new. */
json_t *given_by_server(struct cli *cli, const json_t *spec, json_t **answer, struct err *err);
/* Reads the config of the model that a specification names: a folder's, a config.json itself, or a GGUF's.
 * Returns new. 'folder' becomes the model's folder, 'path' its config.json or .gguf; both have room for
 * PATH_MAX bytes. */
json_t *given_config(const char *spec_path, const char *model, char *folder, char *path, struct err *err);
/* Writes the path of a data file that a specification names to 'out' (PATH_MAX bytes) and returns 1; 0 when
 * there is no such file. hf:OWNER/NAME is a data set of the Hub; -1 when that cannot be had. */
int given_data_file(const char *spec_path, const char *word, enum hub_part part, char *out, struct err *err);

/* ---- encoding data files into rows (cli/given_rows.c) ---- */

struct rows;
struct rows_options;
struct rows_report;
struct spec_data_part;
/* The tools that turn a job's text into tokens. */
struct given_text {
    struct tokenizer *tokenizer; /* owned; NULL: the model has no tokenizer */
    struct chat_template *chat;  /* owned, or NULL */
};
/* Opens the tokenizer of the model at the path of its config.json or .gguf, and the chat template that the
 * data part asks for. *options borrows from *text. */
int given_text_open(const struct spec_data_part *data, const char *model_path, uint32_t vocab,
                    struct given_text *text, struct rows_options *options, struct err *err);
void given_text_fini(struct given_text *text);
/* Encodes a data file; *rows becomes new. */
int given_encode(const char *path, const struct rows_options *options, struct rows **rows,
                 struct rows_report *report, struct err *err);

/* The row sizes of a specification's data (cli/given_rows.c). */
struct row_size;
struct job_spec;
struct given_rows {
    struct row_size *train, *eval; /* owned; NULL: not available */
    uint32_t train_count, eval_count, prompt_tokens;
    int format;     /* enum spec_format that was found for the rows */
    char why[320];  /* why the sizes are not available; else "" */
    json_t *doubts; /* owned list of what looks wrong in the rows; NULL: they were not read */
};
/* Reads the sizes from the data files (NULL: there is none). An error is only recorded in `why`. */
void given_rows_read(const struct job_spec *spec, const char *train, const char *eval, const char *model_path,
                     uint32_t vocab, struct given_rows *given);
void given_rows_fini(struct given_rows *given);

/* Fills *inputs (release it with plan_inputs_fini) for a specification file and a cluster file, without a
 * server. routing: measured routing (planner/given/inputs.h, "expert_share"), or NULL. *rows becomes
 * {"count", "from" | null, "why"?, "doubts"?: [sentences]}, new, which says whether the data's own lengths
 * were used. */
int given_by_files(const char *spec_path, const char *cluster_path, const json_t *routing,
                   struct plan_inputs *inputs, json_t **rows, struct err *err);

/* Returns the inputs of given_by_files as a problem document (planner/given/inputs.h), which external
 * planners read, new; or NULL. */
json_t *given_problem(const char *spec_path, const char *cluster_path, json_t **rows, struct err *err);

/* ---- external planners (cli/planner.c) ---- */

struct plan_answer;
/* Writes the problem document to a file. */
int planner_problem(const char *path, const json_t *problem, struct err *err);
/* Runs the external planner at `path` on the problem and compares its plan with `ours`, the built-in
 * planner's: under `planner` in `told` (docs/INTERFACES.md), and as a table on stdout unless cli->json. An
 * invalid plan of the external planner is reported, and is not an error. */
int planner_tell(struct cli *cli, const char *path, const json_t *problem, const struct plan_inputs *inputs,
                 const struct plan_answer *ours, json_t *told, struct err *err);

/* `motley replay JOB` (cli/replay_job.c): simulates a recorded run, with the changes that the options ask
 * for. */
int replay_job(struct cli *cli, const char *word, struct err *err);

/* ---- following a job (cli/watch.c) ---- */

/* Follows and prints the job's events until it ends; on a terminal the view is redrawn. *job becomes the
 * final document, new. */
int watch_job(struct cli *cli, int64_t id, json_t **job, struct err *err);
/* Writes the files that a job made into a folder (cli/get.c), with those of --checkpoint. With --replace the
 * files of another job that lie there are removed first. `job`: GET /v1/jobs/{id}. */
int get_job(struct cli *cli, const json_t *job, const char *folder, struct err *err);
/* ERR_CONFLICT names the job whose results a folder holds where that is not this job (NULL: a job to come).
 * With `replace` it may be another. *record (may be NULL): what the folder says of itself, new; NULL where it
 * holds no results. */
int get_check(const char *folder, const json_t *job, bool replace, json_t **record, struct err *err);
/* Sets cli->exit_status from the state in which a job ended; for a failure it also fills `err`. */
int job_verdict(struct cli *cli, const json_t *job, struct err *err);

/* ---- the commands ---- */
int command_up(struct cli *cli, struct err *err);
int command_down(struct cli *cli, struct err *err);
int command_status(struct cli *cli, struct err *err);
int command_web(struct cli *cli, struct err *err);
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
int command_change(struct cli *cli, struct err *err);
int command_compare(struct cli *cli, struct err *err);
int command_metrics(struct cli *cli, struct err *err);
int command_get(struct cli *cli, struct err *err);
int command_node(struct cli *cli, struct err *err);
int command_join_token(struct cli *cli, struct err *err);
int command_drain(struct cli *cli, struct err *err); /* drain, undrain */
int command_device(struct cli *cli, struct err *err);
int command_extend(struct cli *cli, struct err *err);
int command_lease(struct cli *cli, struct err *err);
int command_leases(struct cli *cli, struct err *err);
int command_nodes(struct cli *cli, struct err *err);
int command_links(struct cli *cli, struct err *err);
int command_devices(struct cli *cli, struct err *err);
int command_model(struct cli *cli, struct err *err);
int command_share(struct cli *cli, struct err *err);
int command_remove(struct cli *cli, struct err *err);
int command_doctor(struct cli *cli, struct err *err);
int command_backup(struct cli *cli, struct err *err);
int command_restore(struct cli *cli, struct err *err);
int command_upgrade(struct cli *cli, struct err *err);
int command_ca(struct cli *cli, struct err *err); /* begin, switch, finish */
int command_notify(struct cli *cli, struct err *err);
int command_storage(struct cli *cli, struct err *err);
int command_slurm(struct cli *cli, struct err *err);
int command_wireguard(struct cli *cli, struct err *err);
int command_login(struct cli *cli, struct err *err);
int command_token(struct cli *cli, struct err *err);
int command_group(struct cli *cli, struct err *err);
int command_user(struct cli *cli, struct err *err);
int command_audit(struct cli *cli, struct err *err);
int command_queue(struct cli *cli, struct err *err);
int command_top(struct cli *cli, struct err *err);
int command_usage(struct cli *cli, struct err *err);
int command_shares(struct cli *cli, struct err *err);
int command_simulate(struct cli *cli, struct err *err);
int command_replay(struct cli *cli, struct err *err);
int command_profile(struct cli *cli, struct err *err);

#endif
