/* `motley`: the table of commands with their words and options, and the exit status of each error. */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/release.h"
#include "common/usage.h"
#include "local/local.h"
#include "model/job/spec.h"

static const struct cli_command commands[] = {
    {"up",
     "",
     0,
     0,
     "start the whole system on this machine",
     {{"--config", "FILE", "agents, devices, emulated links (docs/INTERFACES.md)"}},
     command_up,
     CLI_RUN},
    {"down", "", 0, 0, "stop all of it", {{NULL, NULL, NULL}}, command_down, CLI_RUN},
    {"status", "", 0, 0, "list the processes of this home", {{NULL, NULL, NULL}}, command_status, CLI_LOOK},
    {"web",
     "",
     0,
     0,
     "print an address that opens the page, signed in",
     {{NULL, NULL, NULL}},
     command_web,
     CLI_LOOK},
    {"run",
     "SPEC",
     1,
     1,
     "start the system if need be, submit, watch, fetch",
     {{"--out", "DIR", "where the results go; default: ./NAME-ID"},
      {"--replace", NULL, "those of another job that lie in DIR go first; else they are refused"},
      {"--plan", "FILE", "on this plan of an earlier run (plan.json of `get`): placement.plan"},
      {"--config", "FILE", "for `up`, if it is not running"}},
     command_run,
     CLI_RUN},
    {"submit",
     "SPEC",
     1,
     1,
     "submit a job and print its id",
     {{"--wait", NULL, "until it has ended"},
      {"--plan", "FILE", "on this plan of an earlier run (plan.json of `get`): placement.plan"},
      {"--key", "TEXT", "idempotency key"}},
     command_submit,
     CLI_RUN},
    {"rows",
     "SPEC",
     1,
     1,
     "show what a job would train on: the data's format, counts, and rows with the trained part marked; "
     "needs no server",
     {{"--show", "N", "so many rows; default 1"}},
     command_rows,
     CLI_PLAN},
    {"plan",
     "SPEC",
     1,
     1,
     "show how a job would be placed, how long a step takes and what memory it needs",
     {{"--cluster", "FILE", "devices one does not own; needs no server"},
      {"--draw", "FILE.svg", "a picture: nodes and links, and what each rank does when"},
      {"--program", NULL, "the step programs, instruction by instruction"},
      {"--from", "PLAN", "start from this plan: the answer is never slower where it can be kept"},
      {"--routing", "FILE", "how many tokens each layer's experts got, measured by a run"},
      {"--steps-left", "N", "with --from, of a job that runs: is moving it worth it, with N steps to go"},
      {"--restart", "SECONDS",
       "with --steps-left: the time that a stop and a restart take, without the move; default 30"},
      {"--save", "PLAN", "write the plan, for --from"},
      {"--objective", "NAME", "time (default), cost or energy"},
      {"--insight", NULL, "the critical path, and what each single improvement would save"},
      {"--jitter", "PERCENT", "how far a step spreads when every instruction's time deviates by so much"},
      {"--runnable", NULL,
       "only what workers of this release can run, no cards without kernels (a server's plan always is)"},
      {"--evaluations", "N", "how long to search; default 20000"},
      {"--seed", "N", "of the search"},
      {"--planner", "FILE", "ask this program too (docs/PLUG.md), and show its plan beside ours"},
      {"--problem", "FILE", "write what a planner is asked"}},
     command_plan,
     CLI_PLAN},
    {"jobs",
     "",
     0,
     0,
     "list the jobs, newest first",
     {{"--state", "S,S", "only these"},
      {"--owner", "NAME", "of this user"},
      {"--group", "NAME", "shared with this group, or charged to it"},
      {"--label", "KEY[=VALUE]", "with this label; may be given several times"},
      {"--array", "ID", "the elements of this array"},
      {"--from", "TIME", "submitted at or after: 2h (ago), 2026-01-31, 2026-01-31T08:00:00Z"},
      {"--to", "TIME", "submitted before"},
      {"--limit", "N", "a page; default 50"},
      {"--after", "CURSOR", "the next page"}},
     command_jobs,
     CLI_LOOK},
    {"job", "ID", 1, 1, "show one job", {{NULL, NULL, NULL}}, command_job, CLI_LOOK},
    {"queue",
     "",
     0,
     0,
     "list the running and waiting jobs of everybody",
     {{NULL, NULL, NULL}},
     command_queue,
     CLI_LOOK},
    {"top",
     "",
     0,
     0,
     "the queue, the devices and running jobs: a live view on a terminal, else printed once",
     {{NULL, NULL, NULL}},
     command_top,
     CLI_LOOK},
    {"usage",
     "",
     0,
     0,
     "device time that users, groups and devices have used",
     {{"--from", "TIME", "48h (ago), 2026-01-31, …; default: 30 days before --to"},
      {"--to", "TIME", "default: now"},
      {"--by", "WHAT", "user, group or device"},
      {"--csv", NULL, "as comma-separated values"}},
     command_usage,
     CLI_LOOK},
    {"shares",
     "",
     0,
     0,
     "each account's fair share, what it used of it, and whose turn is next",
     {{NULL, NULL, NULL}},
     command_shares,
     CLI_LOOK},
    {"simulate",
     "FROM..TO",
     1,
     1,
     "estimate waits, shares and use under other policies, or with more devices",
     {{"--policy", "FILE",
       "settings of the policies, as the section `sharing` of the scheduler's configuration"},
      {"--add", "DEVICE", "one more device like this one (may be repeated)"}},
     command_simulate,
     CLI_PLAN},
    {"why",
     "ID",
     1,
     1,
     "explain what a job waits for, or why it runs where it runs",
     {{NULL, NULL, NULL}},
     command_why,
     CLI_LOOK},
    {"watch", "ID", 1, 1, "follow a job to its end", {{NULL, NULL, NULL}}, command_watch, CLI_RUN},
    {"logs", "ID", 1, 1, "print a job's log lines", {{"-f", NULL, "follow"}}, command_logs, CLI_LOOK},
    {"cancel",
     "ID…",
     1,
     CLI_WORDS_MAX,
     "stop a job, after a checkpoint if it can write one",
     {{NULL, NULL, NULL}},
     command_act,
     CLI_RUN},
    {"rm",
     "ID…",
     1,
     CLI_WORDS_MAX,
     "remove jobs that have ended, with their checkpoints, results and logs",
     {{NULL, NULL, NULL}},
     command_remove,
     CLI_RUN},
    {"df",
     "",
     0,
     0,
     "what jobs and people have on the server's disk, and how much is free",
     {{NULL, NULL, NULL}},
     command_storage,
     CLI_LOOK},
    {"notify",
     "[URL | mailto:NAME@DOMAIN | none]",
     0,
     1,
     "where the server tells you of jobs that end or are held, and what became of that",
     {{"--key", NULL, "print the key that its messages are signed with"},
      {"--new-key", NULL, "sign with a new key from now on, and print it"}},
     command_notify,
     CLI_SHARE},
    {"hold",
     "ID…",
     1,
     CLI_WORDS_MAX,
     "do not start queued jobs; stop running ones after a checkpoint",
     {{NULL, NULL, NULL}},
     command_act,
     CLI_RUN},
    {"release", "ID…", 1, CLI_WORDS_MAX, "let held jobs start", {{NULL, NULL, NULL}}, command_act, CLI_RUN},
    {"change",
     "ID",
     1,
     1,
     "change the priority, start time or width of a job that has not ended",
     {{"--priority", "N", "from -100 to 100, and one's ceiling"},
      {"--begin", "TIME", "it does not start before: 2h, 2026-01-31T08:00:00Z, or now"},
      {"--at-most", "N", "elements of an array at once, or any"}},
     command_change,
     CLI_RUN},
    {"resume",
     "ID",
     1,
     1,
     "go on from the last checkpoint (from the first step where none was stored) to the job's last step",
     {{"--steps", "N", "end N steps after that checkpoint instead: before or beyond the job's last step"}},
     command_resume,
     CLI_RUN},
    {"extend",
     "ID",
     1,
     1,
     "extend a job's time limit; refused where that would delay a waiting job",
     {{"--for", "TIME", "so much longer: 30m, 2h"}},
     command_extend,
     CLI_RUN},
    {"metrics",
     "ID",
     1,
     1,
     "loss, gradient norm, learning rate, tokens of each step",
     {{NULL, NULL, NULL}},
     command_metrics,
     CLI_LOOK},
    {"compare",
     "ID ID…",
     2,
     7,
     "2 to 7 jobs beside each other: losses at the same steps, speed, devices, what their specifications "
     "differ in",
     {{NULL, NULL, NULL}},
     command_compare,
     CLI_LOOK},
    {"get",
     "ID DIR",
     2,
     2,
     "fetch adapter, plan, metrics, trace and samples",
     {{"--checkpoint", "WHICH", "also a checkpoint that is kept: best, last, or its number of steps"},
      {"--replace", NULL, "the results of another job that lie in DIR go first; else they are refused"}},
     command_get,
     CLI_RUN},
    {"join-token",
     "",
     0,
     0,
     "a token that lets one machine join, once, within an hour; or so many",
     {{"--node", "NAME",
       "good for that name alone, or with * behind it for names that begin so; its own machine may come back "
       "with it"},
      {"--replace", NULL, "with --node: another machine may take the name over (administrators)"},
      {"--uses", "N", "so many machines may join with it; with --node 'NAME-*' only those"},
      {"--expires", "TIME", "for how long it is good: 12h, 30d; at most 90d"},
      {"--revoke", NULL, "make none, but let nobody join any more with those of --node, or with any"}},
     command_join_token,
     CLI_ADMINISTER},
    {"drain",
     "DEVICE | NODE",
     1,
     1,
     "nothing new starts there; what runs moves with a checkpoint",
     {{"--after-jobs", NULL, "what runs there goes on to its end"},
      {"--by", "TIME", "what runs there stays until then: 2h, 2026-01-31T08:00:00Z"},
      {"--reason", "TEXT", "why, which waiting jobs are told"}},
     command_drain,
     CLI_ADMINISTER},
    {"undrain",
     "DEVICE | NODE",
     1,
     1,
     "the device may be used again",
     {{NULL, NULL, NULL}},
     command_drain,
     CLI_ADMINISTER},
    {"device",
     "set DEVICE",
     2,
     2,
     "whose the device is: jobs of its group go first there, and others' yield",
     {{"--group", "NAME", "the group that it belongs to; none: everybody's"}},
     command_device,
     CLI_ADMINISTER},
    {"node",
     "remove NAME",
     2,
     2,
     "take a machine out of the cluster for good",
     {{NULL, NULL, NULL}},
     command_node,
     CLI_ADMINISTER},
    {"nodes", "", 0, 0, "list the machines", {{NULL, NULL, NULL}}, command_nodes, CLI_LOOK},
    {"links",
     "",
     0,
     0,
     "list what was measured between machines, and which cannot connect to which",
     {{NULL, NULL, NULL}},
     command_links,
     CLI_LOOK},
    {"devices",
     "",
     0,
     0,
     "list the devices",
     {{"--catalogue", NULL,
       "the kinds that `like` in a cluster file may name, and whether jobs run there; needs no server"},
      {"--code", NULL, "which cards this build has kernels for; needs no server"}},
     command_devices,
     CLI_LOOK},
    {"model",
     "add NAME PATH|OWNER/NAME | get OWNER/NAME[@REVISION][:FILE] | list",
     1,
     3,
     "registered models, one's own and those that one may see; get: fetches the Hub's into HF_HOME's cache",
     {{"--visibility", "WHO", "of one that is added: mine, group or everyone"},
      {"--group", "NAME", "with visibility group: one that you are in"},
      {"--base", "OWNER/NAME[@REVISION]", "the hub's model that adapters name as their base"}},
     command_model,
     CLI_SHARE},
    {"share",
     "ID mine | everyone | group NAME",
     2,
     3,
     "who else may see a job",
     {{NULL, NULL, NULL}},
     command_share,
     CLI_SHARE},
    {"login",
     "[ADDRESS]",
     0,
     1,
     "sign in at a server by its OpenID provider: prints where to go, waits, and writes client.json",
     {{"--ca", "FILE", "the CA of the server's certificate; default: as before, or the system's"},
      {"--socket", "PATH", "as an account of this machine, by the server's unix socket"}},
     command_login,
     CLI_SHARE},
    {"token",
     "list | make | revoke ID",
     1,
     2,
     "your tokens; an administrator's: everybody's",
     {{"--user", "NAME", "make one of somebody else (administrators)"},
      {"--scopes", "A,B", "jobs:read, jobs:write, leases:write, …; default: the usual ones that you have"},
      {"--expires", "TIME", "720h, 2026-01-31T08:00:00Z; default: when the token you use ends"},
      {"--note", "TEXT", "what it is for"}},
     command_token,
     CLI_SHARE},
    {"lease",
     "DEVICE | --any TEXT | extend ID | end ID",
     0,
     2,
     "hold a device yourself: no job is on it meanwhile, and the time is charged",
     {{"--for", "TIME", "how long, or how much longer: 90m, 4h, 2h30m (at least a minute, at most 31 days)"},
      {"--hours", "N", "the same in hours"},
      {"--any", "TEXT",
       "instead of a device: book the first that can be had of those that are like this, such as a100"},
      {"--in", "TIME", "the same as --at"},
      {"--at", "TIME", "begin then: 2h, 2026-01-31T08:00:00Z"},
      {"--note", "TEXT", "what it is for"},
      {"--maintenance", NULL, "keep it from everybody (administrators)"}},
     command_lease,
     CLI_SHARE},
    {"leases",
     "",
     0,
     0,
     "list who holds or has booked which device",
     {{NULL, NULL, NULL}},
     command_leases,
     CLI_LOOK},
    {"group",
     "list | set NAME USER… | remove NAME",
     1,
     CLI_WORDS_MAX,
     "groups of people, which are accounts in a tree",
     {{"--parent", "NAME", "the group above it; none: the root"},
      {"--weight", "W", "its share among its siblings"},
      {"--devices", "N", "devices held at once; 0: any number"},
      {"--running", "N", "jobs at once"},
      {"--queued", "N", "jobs that wait or are held; an array counts once"},
      {"--month-seconds", "N", "charged device-seconds in 30 days"},
      {"--kept", "SIZE", "of checkpoints and results that ended jobs left: 20GiB; 0: any"},
      {"--time-limit", "TIME", "of jobs that name none: 12h; 0s: none"},
      {"--slice", "TIME", "after which its runs make room for others who wait: 4h; 0s: never"},
      {"--lease-limit", "TIME", "how long its leases may last: 8h; 0s: as the group above, or a day"},
      {"--retention", "TIME",
       "how long checkpoints and results of jobs that have ended are kept: 30d; 0s: as the group above, or "
       "for "
       "ever"}},
     command_group,
     CLI_SHARE},
    {"user",
     "list | set NAME",
     1,
     2,
     "users (administrators)",
     {{"--priority-max", "N", "a submit above it is refused"},
      {"--account", "GROUP", "charged when a job names no group; none: the root"},
      {"--disabled", "yes|no", "takes and starts no jobs; tokens are refused"},
      {"--jobs", "hold|cancel", "with --disabled yes: what becomes of the jobs"},
      {"--identity", "none", "forget who signs in as this user: a first sign-in again (account_linking)"},
      {"--devices", "N", "devices held at once; 0: any number"},
      {"--running", "N", "jobs at once"},
      {"--queued", "N", "jobs that wait or are held; an array counts once"},
      {"--month-seconds", "N", "charged device-seconds in 30 days"},
      {"--kept", "SIZE", "of checkpoints and results that ended jobs left: 20GiB; 0: any"}},
     command_user,
     CLI_ADMINISTER},
    {"slurm",
     "TEMPLATE",
     1,
     1,
     "while jobs wait, asks a Slurm for machines by this batch script, and gives them back when nothing runs "
     "there",
     {{"--at-most", "N", "so many allocations at a time; default 1"},
      {"--time", "TIME", "how long each may last: 30m, 8h; default: what the batch script says"},
      {"--idle", "TIME", "how long nothing runs on one before it is given back; default 5m"},
      {"--name", "NAME", "allocations and their nodes are NAME-1, NAME-2 …; default slurm"},
      {"--every", "TIME", "how often it looks; default 30s"},
      {"--once", NULL, "look once, and end: for cron"}},
     command_slurm,
     CLI_ADMINISTER},
    {"wireguard",
     "DIR NODE…",
     1,
     CLI_WORDS_MAX,
     "write WireGuard configurations with which machines reach each other through one that all reach; needs "
     "no server",
     {{"--hub", "NODE", "the machine that all reach; a later run may name another"},
      {"--endpoint", "HOST[:PORT]", "its address for the others, by UDP; default port 51820"},
      {"--mtu", "BYTES",
       "the largest packet that the way from each node to the hub carries; default 1360; motley doctor says "
       "where less comes through"},
      {"--network", "A.B.C.0/24", "addresses of the nodes; default 10.89.77.0/24"},
      {"--remove", "NODE", "the hub knows this node no more; may be given several times"}},
     command_wireguard,
     CLI_ADMINISTER},
    {"audit",
     "",
     0,
     0,
     "list what people and administrators changed, newest first",
     {{"--limit", "N", "a page; default 50"}, {"--after", "CURSOR", "the next page"}},
     command_audit,
     CLI_ADMINISTER},
    {"doctor",
     "[NODE]",
     0,
     1,
     "what is wrong with this machine, as server and as agent, or with a node",
     {{"--agent", "DIR", "the home of this machine's agent; default: /var/lib/motley-agent"},
      {"--config", "FILE", "its configuration; default: /etc/motley/agent.yaml, where --agent is not given"}},
     command_doctor,
     CLI_ADMINISTER},
    {"upgrade",
     "",
     0,
     0,
     "what would become of a server, its machines and jobs under this release's programs; on the server",
     {{"--check", NULL, "say it, and change nothing: packages do the upgrade itself"},
      {"--config", "FILE",
       "the api.yaml of a server with a PostgreSQL of its own; default: the home's server"}},
     command_upgrade,
     CLI_ADMINISTER},
    {"backup",
     "DIR",
     1,
     1,
     "copy a server's whole into a new folder, while jobs run; on the server",
     {{"--config", "FILE",
       "the api.yaml of a server with a PostgreSQL of its own; default: the home's server"},
      {"--with", "PATH", "keep this file or folder, too, such as /etc/motley; may be given several times"},
      {"--without-models", NULL,
       "no files of models that stay where they are (motley model add PATH, the Hub)"}},
     command_backup,
     CLI_ADMINISTER},
    {"restore",
     "DIR",
     1,
     1,
     "make a server of a backup, in a home that is missing or empty",
     {{"--config", "FILE", "fill the empty database and folder of files of this api.yaml instead"}},
     command_restore,
     CLI_ADMINISTER},
    {"ca",
     "STEP",
     1,
     1,
     "exchange the cluster's CA for a new one, by begin, switch and finish; on the server",
     {{"--ca", "FILE", "the CA's certificate; default: the home's, with its own server's certificate"},
      {"--key", "FILE", "its key"},
      {"--server", "FILE", "switch: sign this server's certificate anew, too; may be given several times"},
      {"--now", NULL,
       "do not wait for 20 days after the step before: all agents have renewed their certificates"}},
     command_ca,
     CLI_ADMINISTER},
    {"replay",
     "[JOB]",
     0,
     1,
     "simulate a recorded run, or the planning cases of others",
     {{"--from", "NAME", "cephalo, zorse or sailor"},
      {"--data", "DIR", "their profile files"},
      {"--cases", "FILE", "their cases"},
      {"--speed", "DEVICE=X", "as if the device were X times as fast"},
      {"--link", "A:B=RATE,LATENCY", "as if the link between nodes A and B were this"},
      {"--placement", "NAME", "planned again as single, pipeline, data …"},
      {"--cluster", "FILE", "planned again on these devices"},
      {"--without", "DEVICE", "planned again without it"},
      {"--add", "LIKE", "planned again with one more, like a device or a catalogue entry"},
      {"--trace", "FILE", "write the simulated timeline (Chrome trace format)"},
      {"--draw", "FILE.svg", "draw it"}},
     command_replay,
     CLI_PLAN},
    {"profile",
     "export [DEVICE…] | import FILE",
     1,
     CLI_WORDS_MAX,
     "measured tables, for another lab's what-if",
     {{"--out", "FILE", "where the export goes; default: stdout"}},
     command_profile,
     CLI_PLAN},
};
enum { COMMAND_COUNT = sizeof(commands) / sizeof(commands[0]) };

static const struct cli_option common_options[] = {
    {"--home", "DIR", "the folder of everything; MOTLEY_HOME, else ~/.motley"},
    {"--json", NULL, "one document, or one a line where it streams"},
    {"--help", NULL, "this"},
    {NULL, NULL, NULL},
};

static int text_width(const char *text)
{
    int width = 0;
    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

/* Prints two columns, the first of them, `name` and its `words` (NULL: none), 'width' characters wide
 * (UTF-8). Where it is wider, the second one begins in the next line. */
static void cli_print_row(FILE *out, const char *name, const char *words, int width, const char *right)
{
    const int room = width - text_width(name) - (words ? 1 + text_width(words) : 0);
    fprintf(out, "  %s%s%s", name, words ? " " : "", words ? words : "");
    if (room < 0)
        fprintf(out, "\n  %*s %s\n", width, "", right);
    else
        fprintf(out, "%*s %s\n", room, "", right);
}

static void print_options(FILE *out, const struct cli_option *options)
{
    for (int i = 0; i < CLI_OPTIONS_MAX && options[i].name; i++)
        cli_print_row(out, options[i].name, options[i].value, 24, options[i].help);
}

static const char *const group_titles[CLI_GROUPS] = {
    [CLI_RUN] = "Run: start the system, train, fetch what comes out",
    [CLI_LOOK] = "Look: what runs, what waits, what there is",
    [CLI_PLAN] = "Plan: before a job, and about one that is over",
    [CLI_SHARE] = "Share: models, jobs, people and their tokens",
    [CLI_ADMINISTER] = "Administer: machines, users, the record of changes",
};

static void print_usage(FILE *out)
{
    fprintf(out, "usage: motley COMMAND …\n\nFine-tune one model across the different GPUs and CPUs that you "
                 "already have.\n\n");
    for (int group = 0; group < CLI_GROUPS; group++) {
        fprintf(out, "%s\n", group_titles[group]);
        for (int i = 0; i < COMMAND_COUNT; i++)
            if ((int)commands[i].group == group)
                cli_print_row(out, commands[i].name, commands[i].words, 28, commands[i].help);
        fprintf(out, "\n");
    }
    fprintf(out, "With every command:\n");
    print_options(out, common_options);
    fprintf(
        out,
        "\nmotley help COMMAND says what one command takes, motley --version which release this is, "
        "motley --schema\nprints the JSON schema of a job's specification.\n\n"
        "GPUs: no real card is known to have run Motley yet; its kernels pass their tests on an emulator.\n"
        "motley devices --catalogue says which cards have kernels.\n");
}

static void print_command(FILE *out, const struct cli_command *command)
{
    fprintf(out, "usage: motley %s%s%s [options]\n\n%s\n\n", command->name, *command->words ? " " : "",
            command->words, command->help);
    print_options(out, command->options);
    print_options(out, common_options);
}

static const struct cli_option *find_option(const struct cli_option *options, const char *word, size_t size)
{
    for (int i = 0; i < CLI_OPTIONS_MAX && options[i].name; i++)
        if (strlen(options[i].name) == size && strncmp(options[i].name, word, size) == 0)
            return &options[i];
    return NULL;
}

/* Takes the option at argv[*at], "--name VALUE" or "--name=VALUE", and advances *at over its value. */
static int take_option(struct cli *cli, int argc, char **argv, int *at, struct err *err)
{
    const char *word = argv[*at];
    size_t size = strcspn(word, "=");
    const struct cli_option *option = find_option(cli->command->options, word, size);
    if (!option)
        option = find_option(common_options, word, size);
    if (!option)
        return err_set(err, ERR_INVALID, "motley %s has no option %.*s; see motley %s --help",
                       cli->command->name, (int)size, word, cli->command->name);
    const char *value = "";
    if (option->value && word[size] == '=')
        value = word + size + 1;
    else if (option->value && *at + 1 < argc)
        value = argv[++*at];
    else if (option->value || word[size] == '=')
        return err_set(err, ERR_INVALID, "%s %s", option->name,
                       option->value ? "wants a value" : "takes no value");
    if (cli->option_count == sizeof(cli->options) / sizeof(cli->options[0]))
        return err_set(err, ERR_TOO_BIG, "more than %u options", cli->option_count);
    cli->options[cli->option_count].name = option->name;
    cli->options[cli->option_count++].value = value;
    if (strcmp(option->name, "--json") == 0)
        cli->json = true;
    return 0;
}

static int cli_parse(struct cli *cli, int argc, char **argv, struct err *err)
{
    bool plain = false;
    for (int at = 2; at < argc; at++) {
        if (!plain && strcmp(argv[at], "--") == 0) {
            plain = true;
        } else if (!plain && argv[at][0] == '-' && argv[at][1]) {
            if (take_option(cli, argc, argv, &at, err) < 0)
                return -1;
        } else if (cli->word_count == CLI_WORDS_MAX) {
            return err_set(err, ERR_INVALID, "motley %s: too many words", cli->command->name);
        } else {
            cli->words[cli->word_count++] = argv[at];
        }
    }
    if (cli_option(cli, "--help"))
        return 0;
    const unsigned least = cli->command->words_min, most = cli->command->words_max;
    char range[32];
    if (least < most)
        snprintf(range, sizeof(range), "%u to %u", least, most);
    else
        snprintf(range, sizeof(range), "%u", most);
    if (cli->word_count < least || cli->word_count > most)
        return err_set(err, ERR_INVALID, "usage: motley %s %s (%s word%s, not %u)", cli->command->name,
                       cli->command->words, range, most == 1 ? "" : "s", cli->word_count);
    return 0;
}

/* Moves the command before common options that were given before it: `motley --home DIR nodes`. */
static void command_first(int argc, char **argv)
{
    int at = 1;
    while (at < argc && argv[at][0] == '-') {
        size_t size = strcspn(argv[at], "=");
        const struct cli_option *option = find_option(common_options, argv[at], size);
        if (!option || strcmp(option->name, "--help") == 0)
            return;
        at += option->value && argv[at][size] == '\0' ? 2 : 1;
    }
    if (at == 1 || at >= argc)
        return;
    char *command = argv[at];
    memmove(argv + 2, argv + 1, (size_t)(at - 1) * sizeof(*argv));
    argv[1] = command;
}

static int cli_status_of(const struct err *err)
{
    switch (err->code) {
    case ERR_INVALID:
    case ERR_UNSUPPORTED:
        return CLI_USAGE;
    case ERR_NET:
    case ERR_TIMEOUT:
        return CLI_NO_ANSWER;
    case ERR_NOFIT:
        return CLI_NOFIT;
    case ERR_AUTH:
    case ERR_DENIED:
        return CLI_DENIED;
    case ERR_LIMIT:
        return CLI_LIMIT;
    case ERR_RELEASE:
        return CLI_RELEASE;
    default:
        return CLI_FAILED;
    }
}

/* Opens what the caller closed of standard input, output and errors, so that no file gets their numbers. */
static void standard_files_open(void)
{
    int fd = 0;
    while (fd >= 0 && fd <= 2)
        fd = open("/dev/null", O_RDWR);
    if (fd > 2)
        close(fd);
}

/* Prints the error, with the names of files that the server does not know. */
static void print_error(const struct cli *cli, const struct err *err)
{
    static const char train[] = "data.train: line ", eval[] = "data.eval: line ";
    if (*cli->train && strncmp(err->text, train, strlen(train)) == 0)
        fprintf(stderr, "motley: data.train (%s)%s\n", cli->train, err->text + strlen("data.train"));
    else if (*cli->eval && strncmp(err->text, eval, strlen(eval)) == 0)
        fprintf(stderr, "motley: data.eval (%s)%s\n", cli->eval, err->text + strlen("data.eval"));
    else if (err->code == ERR_AUTH)
        fprintf(stderr, "motley: %s (the token of %s/client.json)\n", err->text, cli->home);
    else if (err->code == ERR_NET && cli->address[0] != '\0' && !local_is_elsewhere(cli->home))
        fprintf(stderr, "motley: %s; does Motley run here? `motley up` starts it\n", err->text);
    else
        fprintf(stderr, "motley: %s\n", err->text);
}

int main(int argc, char **argv)
{
    standard_files_open();
    setlocale(LC_ALL, "");
    if (MB_CUR_MAX == 1)
        setlocale(LC_CTYPE, "C.UTF-8"); /* gives wcwidth the widths of the characters that Motley prints */
    setlocale(LC_NUMERIC, "C");
    signal(SIGPIPE, SIG_DFL);
    command_first(argc, argv);
    const bool asks = argc >= 2 && (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0);
    if (argc < 2 || (asks && argc == 2)) {
        print_usage(argc < 2 ? stderr : stdout);
        return argc < 2 ? CLI_USAGE : CLI_DONE;
    }
    if (strcmp(argv[1], "version") == 0 || strcmp(argv[1], "--version") == 0) {
        printf("motley %s (protocol %u)\n", motley_version, release_protocol());
        return CLI_DONE;
    }
    if (usage_schema(argc, argv, &spec_doc))
        return CLI_DONE;
    struct cli cli = {0};
    struct err err = {0};
    const char *name = argv[asks ? 2 : 1]; /* `motley help COMMAND` is `motley COMMAND --help` */
    for (int i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(name, commands[i].name) == 0)
            cli.command = &commands[i];
    if (!cli.command) {
        fprintf(stderr, "motley: no command \"%.40s\"; motley --help lists them\n", name);
        return CLI_USAGE;
    }
    if (asks) {
        print_command(stdout, cli.command);
        return CLI_DONE;
    }
    int result = cli_parse(&cli, argc, argv, &err);
    if (result == 0 && cli_option(&cli, "--help")) {
        print_command(stdout, cli.command);
        return CLI_DONE;
    }
    if (result == 0)
        result = local_home(cli_option(&cli, "--home"), cli.home, &err);
    if (result == 0)
        result = cli.command->run(&cli, &err);
    client_close(&cli);
    if (fflush(stdout) != 0 && result == 0)
        result = err_errno(&err, ERR_IO, errno, "could not write the output");
    if (result < 0) {
        print_error(&cli, &err);
        return cli.exit_status ? cli.exit_status : cli_status_of(&err);
    }
    return cli.exit_status;
}
