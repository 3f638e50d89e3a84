/* `motley slurm`: asks a Slurm for machines while jobs wait, and gives them back. */
#include "cli/slurm.h"
#include "cli/cli.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/document.h"
#include "common/file.h"
#include "common/json.h"
#include "common/program_json.h"
#include "common/units.h"

enum { SLURM_COMMAND_S = 60, SLURM_MEMORY_BYTES_MAX = 1 << 20, SLURM_NAME_BYTES = 41 };

struct bridge {
    struct cli *cli;
    const char *template, *name; /* borrowed */
    char time[24];               /* "--time=480"; "": the template's own */
    char path[4096];             /* of what is kept */
    uint32_t limit;
    double idle_s, every_s;
    struct slurm_memory memory;
    struct slurm_allocation allocations[SLURM_ALLOCATIONS_MAX];
    size_t allocation_count;
    enum slurm_use nodes[SLURM_SLOTS_MAX + 1];
    int64_t *waiting;
    size_t waiting_count, queued_count;
    struct slurm_action actions[SLURM_ACTIONS_MAX];
};

/* ---- what the command was given ---- */

static int slurm_template_check(const char *path, struct err *err)
{
    char begin[2] = "";
    struct stat is;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const bool good = fd >= 0 && fstat(fd, &is) == 0 && S_ISREG(is.st_mode) && read(fd, begin, 2) == 2 &&
                      memcmp(begin, "#!", 2) == 0;
    if (fd >= 0)
        close(fd);
    return good ? 0
                : err_set(err, ERR_INVALID,
                          "\"%s\" is no batch script that can be read, which begins with #!; "
                          "docs/run-a-lab/slurm.md has one",
                          path);
}

static int seconds_read(const struct cli *cli, const char *option, double min, double max, double missing,
                        double *out, struct err *err)
{
    const char *text = cli_option(cli, option);
    *out = missing;
    if (!text)
        return 0;
    if (units_parse_seconds(text, out, err) < 0)
        return err_wrap(err, "%s", option);
    return *out >= min && *out <= max
               ? 0
               : err_set(err, ERR_INVALID, "%s: %.40s is not from %.0f s to %.0f s", option, text, min, max);
}

static int slurm_given_read(struct cli *cli, struct bridge *bridge, struct err *err)
{
    double time_s;
    int64_t limit;
    bridge->cli = cli;
    bridge->template = cli->words[0];
    bridge->name = cli_option(cli, "--name") ? cli_option(cli, "--name") : "slurm";
    const size_t size = strlen(bridge->name);
    if (size == 0 || size >= SLURM_NAME_BYTES || bridge->name[0] == '-' ||
        strspn(bridge->name, "abcdefghijklmnopqrstuvwxyz0123456789-") != size)
        return err_set(err, ERR_INVALID, "--name: \"%.60s\" is not 1 to %d of a-z, 0-9 and -", bridge->name,
                       SLURM_NAME_BYTES - 1);
    if (slurm_template_check(bridge->template, err) < 0 ||
        cli_option_i64(cli, "--at-most", 1, SLURM_SLOTS_MAX, 1, &limit, err) < 0 ||
        seconds_read(cli, "--time", 60, 31 * 86400, 0, &time_s, err) < 0 ||
        seconds_read(cli, "--idle", 0, 86400, 300, &bridge->idle_s, err) < 0 ||
        seconds_read(cli, "--every", 1, 3600, 30, &bridge->every_s, err) < 0)
        return -1;
    bridge->limit = (uint32_t)limit;
    if (time_s > 0)
        snprintf(bridge->time, sizeof(bridge->time), "--time=%.0f", time_s / 60);
    return file_path(bridge->path, sizeof(bridge->path), err, "%s/slurm-%s.json", cli->home, bridge->name);
}

/* ---- what is kept ---- */

static int memory_load(struct bridge *bridge, struct err *err)
{
    if (!file_exists(bridge->path))
        return doc_start(&slurm_memory_doc, &bridge->memory, err);
    json_t *document = document_load(bridge->path, SLURM_MEMORY_BYTES_MAX, err);
    int result = document ? doc_read(&slurm_memory_doc, document, "", &bridge->memory, err) : -1;
    json_decref(document);
    return result < 0 ? err_wrap(err, "\"%s\"", bridge->path) : 0;
}

static int memory_save(const struct bridge *bridge, struct err *err)
{
    json_t *document = doc_write(&slurm_memory_doc, &bridge->memory, err);
    int result = document ? document_save(bridge->path, document, false, 0600, err) : -1;
    json_decref(document);
    return result;
}

/* ---- Slurm and the server as they are now ---- */

/* Runs one of Slurm's commands, whose own errors go to stderr. */
static int slurm_run(const char *const *argv, struct buf *out, struct err *err)
{
    if (program_text(argv, SLURM_COMMAND_S, out, err) == 0)
        return 0;
    if (err->code == ERR_NOT_FOUND)
        return err_set(err, ERR_UNSUPPORTED,
                       "there is no %s here: motley slurm runs where people submit to Slurm", argv[0]);
    return -1;
}

static int slurm_look(struct bridge *bridge, struct err *err)
{
    char user[24];
    struct buf text;
    snprintf(user, sizeof(user), "--user=%u", (unsigned)getuid());
    const char *const argv[] = {"squeue", "--noheader", user, "--format=" SLURM_FORMAT, NULL};
    int result = slurm_run(argv, &text, err);
    if (result == 0)
        result = slurm_queue_read(buf_str(&text), bridge->name, bridge->allocations,
                                  &bridge->allocation_count, err);
    buf_fini(&text);
    return result;
}

/* Returns the slot of a node or a device of these names, or 0. */
static uint32_t slurm_slot_of(const struct bridge *bridge, const char *node)
{
    const size_t size = strlen(bridge->name);
    if (strncmp(node, bridge->name, size) != 0 || node[size] != '-' || node[size + 1] < '1' ||
        node[size + 1] > '9')
        return 0;
    char *end;
    const unsigned long slot = strtoul(node + size + 1, &end, 10);
    return *end == '\0' && slot <= SLURM_SLOTS_MAX ? (uint32_t)slot : 0;
}

static int slurm_nodes_look(struct bridge *bridge, struct err *err)
{
    size_t i;
    json_t *item;
    memset(bridge->nodes, 0, sizeof(bridge->nodes)); /* SLURM_AWAY */
    json_t *nodes = client_pages(bridge->cli, "/v1/nodes?limit=1000", "nodes", err);
    json_t *devices = nodes ? client_pages(bridge->cli, "/v1/devices?limit=1000", "devices", err) : NULL;
    json_array_foreach (nodes, i, item) {
        const char *state = show_str(item, "state");
        bridge->nodes[slurm_slot_of(bridge, show_str(item, "name"))] =
            strcmp(state, "alive") == 0     ? SLURM_IDLE
            : strcmp(state, "leaving") == 0 ? SLURM_LEAVING
                                            : SLURM_AWAY;
    }
    json_array_foreach (devices, i, item) {
        const uint32_t slot = slurm_slot_of(bridge, show_str(item, "node"));
        const char *state = show_str(item, "state");
        if (bridge->nodes[slot] == SLURM_IDLE &&
            (json_is_string(json_object_get(item, "job_owner")) || strcmp(state, "busy") == 0 ||
             strcmp(state, "leased") == 0 || strcmp(state, "draining") == 0))
            bridge->nodes[slot] = SLURM_BUSY;
    }
    json_decref(nodes);
    json_decref(devices);
    return devices ? 0 : -1;
}

static int queue_look(struct bridge *bridge, struct err *err)
{
    size_t i;
    json_t *job;
    json_t *queue = client_pages(bridge->cli, "/v1/queue?limit=1000", "queue", err);
    if (!queue)
        return -1;
    int64_t *waiting = realloc(bridge->waiting, (json_array_size(queue) + 1) * sizeof(*waiting));
    if (!waiting) {
        json_decref(queue);
        return err_set(err, ERR_NOMEM, "no memory for the queue");
    }
    bridge->waiting = waiting;
    bridge->waiting_count = bridge->queued_count = 0;
    json_array_foreach (queue, i, job) {
        if (strcmp(show_str(job, "state"), "queued") != 0)
            continue;
        bridge->queued_count++;
        if (slurm_wait_counts(show_str(job, "wait")))
            waiting[bridge->waiting_count++] = (int64_t)show_num(job, "id", 0);
    }
    json_decref(queue);
    return 0;
}

/* ---- what is done ---- */

static int slurm_told(const struct bridge *bridge, const struct slurm_action *action, int64_t id,
                      const char *did, struct err *err)
{
    char node[64], at[32], words[24];
    snprintf(node, sizeof(node), "%s-%u", bridge->name, action->slot);
    clock_rfc3339(clock_wall_us(), at);
    if (bridge->cli->json) {
        json_t *line = json_pack("{s:s, s:s, s:s, s:I, s:s}", "at", at, "did", did, "node", node,
                                 "allocation", (json_int_t)id, "why", action->why);
        const int result = show_json(line, err);
        json_decref(line);
        return result;
    }
    printf("%s %s: allocation %lld %s, as %s\n", clock_words(at, words), node, (long long)id, did,
           action->why);
    fflush(stdout);
    return 0;
}

static int submit(struct bridge *bridge, const struct slurm_action *action, struct err *err)
{
    char name[80];
    const char *argv[8];
    int count = 0;
    int64_t id = 0;
    struct buf text;
    snprintf(name, sizeof(name), "--job-name=%s-%u", bridge->name, action->slot);
    argv[count++] = "sbatch";
    argv[count++] = "--parsable";
    argv[count++] = name;
    argv[count++] = "--comment=" SLURM_COMMENT;
    if (*bridge->time)
        argv[count++] = bridge->time;
    argv[count++] = bridge->template;
    argv[count] = NULL;
    int result = slurm_run(argv, &text, err);
    if (result == 0)
        result = slurm_submitted_read(buf_str(&text), &id, err);
    buf_fini(&text);
    const int64_t now_s = clock_wall_us() / 1000000;
    if (result < 0)
        slurm_pause(&bridge->memory, now_s);
    else
        result = slurm_keep(&bridge->memory, action->slot, id, now_s, err);
    return result < 0 ? -1 : slurm_told(bridge, action, id, "was asked for", err);
}

/* Cancels an allocation that waits, or tells the agent of one that runs to end in good order. */
static int give_back(const struct bridge *bridge, const struct slurm_action *action, struct err *err)
{
    char id[24];
    struct buf text;
    snprintf(id, sizeof(id), "%lld", (long long)action->id);
    const char *const cancel[] = {"scancel", "--state=PENDING", id, NULL};
    const char *const end[] = {"scancel", "--batch", "--signal=TERM", id, NULL};
    int result = slurm_run(action->deed == SLURM_CANCEL ? cancel : end, &text, err);
    buf_fini(&text);
    return result < 0 ? -1
                      : slurm_told(bridge, action, action->id,
                                   action->deed == SLURM_CANCEL ? "was cancelled" : "is given back", err);
}

static int slurm_act(struct bridge *bridge, const struct slurm_action *action, struct err *err)
{
    switch (action->deed) {
    case SLURM_ASK:
        return submit(bridge, action, err);
    case SLURM_GIVE_BACK:
    case SLURM_CANCEL:
        return give_back(bridge, action, err);
    case SLURM_FAILED:
        return slurm_told(bridge, action, action->id, "is gone", err);
    }
    return 0;
}

/* Looks once, and does what is to be done. What was done is kept, also if the rest fails. */
static int cli_look(struct bridge *bridge, struct err *err)
{
    size_t count = 0;
    struct err late = {0};
    if (slurm_look(bridge, err) < 0 || slurm_nodes_look(bridge, err) < 0 || queue_look(bridge, err) < 0)
        return -1;
    const struct slurm_situation now = {.allocations = bridge->allocations,
                                        .allocation_count = bridge->allocation_count,
                                        .nodes = bridge->nodes,
                                        .waiting = bridge->waiting,
                                        .waiting_count = bridge->waiting_count,
                                        .queued_count = bridge->queued_count,
                                        .now_s = clock_wall_us() / 1000000,
                                        .idle_s = (int64_t)bridge->idle_s,
                                        .limit = bridge->limit};
    int result = slurm_decide(&now, &bridge->memory, bridge->actions, &count, err);
    for (size_t i = 0; i < count; i++)
        if (slurm_act(bridge, &bridge->actions[i], result < 0 ? &late : err) < 0) {
            slurm_not_done(&bridge->memory, &bridge->actions[i]);
            result = -1;
        }
    if (memory_save(bridge, result < 0 ? &late : err) < 0)
        result = -1;
    return result;
}

/* Whether another try may go better: the server or Slurm is away, or Slurm refuses for now. */
static bool slurm_will_pass(const struct err *err)
{
    return err->code == ERR_NET || err->code == ERR_TIMEOUT || err->code == ERR_BUSY || err->code == ERR_PEER;
}

static int slurm_follow(struct bridge *bridge, struct err *err)
{
    const struct timespec pause = {.tv_sec = (time_t)bridge->every_s};
    for (;;) {
        if (cli_look(bridge, err) == 0) {
            if (cli_option(bridge->cli, "--once"))
                return 0;
        } else if (cli_option(bridge->cli, "--once") || !slurm_will_pass(err)) {
            return -1;
        } else {
            fprintf(stderr, "motley: %s\n", err->text);
            *err = (struct err){0};
        }
        nanosleep(&pause, NULL);
    }
}

int command_slurm(struct cli *cli, struct err *err)
{
    char lock[4200];
    struct bridge *bridge = calloc(1, sizeof(*bridge));
    if (!bridge)
        return err_set(err, ERR_NOMEM, "no memory for allocations");
    int held = -1, result = slurm_given_read(cli, bridge, err);
    if (result == 0)
        result = client_open(cli, err); /* the home is there */
    if (result == 0)
        result = file_path(lock, sizeof(lock), err, "%s/slurm-%s.lock", cli->home, bridge->name);
    if (result == 0 && (held = file_lock(lock, err)) < 0) {
        if (err->code == ERR_BUSY)
            err_set(err, ERR_CONFLICT, "another motley slurm --name %s runs with this home", bridge->name);
        result = -1;
    }
    if (result == 0)
        result = memory_load(bridge, err);
    if (result == 0)
        result = slurm_follow(bridge, err);
    if (held >= 0)
        close(held);
    doc_fini(&slurm_memory_doc, &bridge->memory);
    free(bridge->waiting);
    free(bridge);
    return result;
}
