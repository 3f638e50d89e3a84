/* Follows a job: reads its Server-Sent Events and prints a live view.
 *
 * After every break the stream is resumed from the last event id, so nothing is printed twice or missed; a
 * server that restarts is waited for. On a terminal the view is redrawn in place; elsewhere it is lines.
 */
#include "cli/cli.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/curve.h"
#include "cli/events.h"
#include "cli/screen.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/units.h"

enum {
    VIEW_RANKS_MAX = 64,
    VIEW_BAR = 24,
    VIEW_DRAW_NS = 100000000, /* a terminal is drawn at most ten times a second */
    VIEW_CURVE_COLUMNS = 100,
    VIEW_CURVE_ROWS = 10,      /* greatest height of the loss curve, at most a third of the terminal's */
    VIEW_LINE_NS = 1000000000, /* without a terminal, steps are printed at most once a second */
    VIEW_RANKS_STEPS = 10,     /* printed steps after which the devices' shares are printed */
    SILENCE_MS = 40000,        /* a connection this long silent is broken: the server sends more often */
    GONE_NS_SECONDS = 120,     /* seconds for which an unreachable server is tried again */
};

struct view_rank {
    char device[64];
    double compute_s, wait_s, send_s;
};

struct view {
    struct cli *cli;
    int64_t id;
    struct event_reader events;
    bool terminal, logs_only, ended, told_wait;
    double steps;
    double step, loss, grad_norm;
    double step_tokens, step_s; /* of a step, as means in which the last step counts for a fifth */
    bool skipped;               /* the gradients or the loss of the last step were not finite */
    unsigned rank_count, lines_drawn;
    struct view_rank ranks[VIEW_RANKS_MAX];
    uint64_t told_ns;
    unsigned told_lines;
    struct step_curve losses;
    bool has_step, is_stale; /* there is a view to draw; it changed since it was drawn */
    uint64_t drawn_ns;
};

static bool state_is_last(const char *state)
{
    return strcmp(state, "succeeded") == 0 || strcmp(state, "failed") == 0 || strcmp(state, "cancelled") == 0;
}

static void erase(struct view *view)
{
    for (; view->lines_drawn > 0; view->lines_drawn--)
        fputs("\033[1A\033[2K", stdout);
}

static void print_bar(const struct view_rank *rank, FILE *out)
{
    double all = rank->compute_s + rank->wait_s;
    int full = all > 0 ? (int)(VIEW_BAR * rank->compute_s / all + 0.5) : 0;
    fprintf(out, "  %-16s ", rank->device);
    for (int i = 0; i < VIEW_BAR; i++)
        fputs(i < full ? "█" : "░", out);
    fprintf(out, " compute %3.0f %%, idle %3.0f %%; sending meanwhile %3.0f %%\n",
            all > 0 ? 100 * rank->compute_s / all : 0, all > 0 ? 100 * rank->wait_s / all : 0,
            all > 0 ? 100 * rank->send_s / all : 0);
}

static void print_step(const struct view *view, FILE *out)
{
    char step[32], left[32] = "", norm[48] = "skipped, not finite";
    double steps_left = view->steps - view->step - 1;
    if (steps_left > 0)
        units_seconds(left, view->step_s * steps_left);
    if (!view->skipped)
        snprintf(norm, sizeof(norm), view->grad_norm < 1e6 ? "norm %.3f" : "norm %.3g", view->grad_norm);
    fprintf(out, "step %4.0f/%.0f  loss %.4f  %s  %5.0f tokens/s  %s/step  %s%s\n", view->step + 1,
            view->steps, view->loss, norm, view->step_s > 0 ? view->step_tokens / view->step_s : 0,
            units_seconds(step, view->step_s), steps_left > 0 ? "left " : "the last", left);
}

static void print_bars(const struct view *view, FILE *out)
{
    for (unsigned i = 0; i < view->rank_count; i++)
        print_bar(&view->ranks[i], out);
}

/* Draws the view in its place: the step, the devices' shares and the curve of the loss. */
static void draw_view(struct view *view)
{
    unsigned columns, rows;
    char *text = NULL;
    size_t size = 0;
    FILE *out = view->has_step ? open_memstream(&text, &size) : NULL;
    view->is_stale = false;
    view->drawn_ns = clock_mono_ns();
    if (!out)
        return;
    screen_size(&columns, &rows);
    print_step(view, out);
    print_bars(view, out);
    curve_draw(&view->losses, columns < VIEW_CURVE_COLUMNS ? columns : VIEW_CURVE_COLUMNS,
               rows / 3 < VIEW_CURVE_ROWS ? rows / 3 : VIEW_CURVE_ROWS, out);
    fclose(out);
    erase(view);
    view->lines_drawn = screen_lines(text, columns, rows > 1 ? rows - 1 : 1, "\n");
    free(text);
    fflush(stdout);
}

static void show_step(struct view *view)
{
    view->has_step = true;
    if (view->terminal) {
        view->is_stale = true;
        if (clock_mono_ns() - view->drawn_ns >= VIEW_DRAW_NS)
            draw_view(view);
    } else if (clock_mono_ns() - view->told_ns >= VIEW_LINE_NS || view->step + 1 >= view->steps) {
        view->told_ns = clock_mono_ns();
        print_step(view, stdout);
        if (++view->told_lines % VIEW_RANKS_STEPS == 0 || view->step + 1 >= view->steps)
            print_bars(view, stdout);
        fflush(stdout);
    }
}

/* Prints a line that stays on screen above the view. Line ends inside the text are shown as " / ". */
static void watch_tell(struct view *view, const char *label, const char *text)
{
    erase(view);
    fputs(label, stdout);
    show_one_line(text);
    fflush(stdout);
    view->is_stale = view->terminal;
}

static void watch_on_step(struct view *view, const json_t *body)
{
    const double seconds = show_num(body, "seconds", 0), tokens = show_num(body, "tokens", 0);
    const double weight = view->has_step ? 0.2 : 1;
    view->step = show_num(body, "step", 0);
    view->loss = show_num(body, "loss", 0);
    view->grad_norm = show_num(body, "grad_norm", 0);
    view->skipped = json_is_true(json_object_get(body, "skipped"));
    view->step_s += weight * (seconds - view->step_s);
    view->step_tokens += weight * (tokens - view->step_tokens);
    curve_add(&view->losses, (int64_t)view->step, show_num(body, "loss", NAN));
    show_step(view);
}

static void watch_on_ranks(struct view *view, const json_t *body)
{
    unsigned rank = (unsigned)show_num(body, "rank", VIEW_RANKS_MAX);
    if (rank >= VIEW_RANKS_MAX)
        return;
    struct view_rank *shown = &view->ranks[rank];
    if (!*shown->device)
        snprintf(shown->device, sizeof(shown->device), "rank %u", rank);
    if (*show_str(body, "device"))
        snprintf(shown->device, sizeof(shown->device), "%s", show_str(body, "device"));
    shown->compute_s = 0.8 * shown->compute_s + 0.2 * show_num(body, "compute_s", 0);
    shown->wait_s = 0.8 * shown->wait_s + 0.2 * show_num(body, "wait_s", 0);
    shown->send_s = 0.8 * shown->send_s + 0.2 * show_num(body, "send_s", 0);
    if (rank >= view->rank_count)
        view->rank_count = rank + 1;
}

static void on_state(struct view *view, const json_t *body)
{
    const char *state = show_str(body, "state");
    char text[1100];
    snprintf(text, sizeof(text), "%s%s%s", state, *show_str(body, "why") ? ": " : "", show_str(body, "why"));
    watch_tell(view, "job ", text);
}

static void watch_on_event(struct view *view, const char *type, const json_t *body)
{
    char text[128];
    if (strcmp(type, "state") == 0) {
        on_state(view, body);
    } else if (strcmp(type, "log") == 0) {
        const char *device = show_str(body, "device");
        snprintf(text, sizeof(text), "log %s%s", device, *device ? ": " : "");
        watch_tell(view, text, *show_str(body, "text") ? show_str(body, "text") : show_str(body, "line"));
    } else if (view->logs_only) {
        return;
    } else if (strcmp(type, "step") == 0) {
        watch_on_step(view, body);
    } else if (strcmp(type, "ranks") == 0) {
        watch_on_ranks(view, body);
    } else if (strcmp(type, "eval") == 0) {
        snprintf(text, sizeof(text), "loss %.4f after %.0f steps", show_num(body, "loss", 0),
                 show_num(body, "step", 0));
        watch_tell(view, "held-out ", text);
    } else if (strcmp(type, "sample") == 0) {
        snprintf(text, sizeof(text), "sample after %.0f steps: ", show_num(body, "step", 0));
        watch_tell(view, text,
                   *show_str(body, "text") ? show_str(body, "text") : "nothing, it ended at once");
    } else if (strcmp(type, "checkpoint") == 0 && view->cli->json == false && view->terminal) {
        snprintf(text, sizeof(text), "after %.0f steps", show_num(body, "step", 0));
        watch_tell(view, "checkpoint ", text);
    }
}

/* Takes an event, {"id","job","type","at","body"}, or the body alone. */
static int watch_take_event(void *arg, const char *named, const json_t *event, struct err *err)
{
    struct view *view = arg;
    const json_t *body =
        json_is_object(json_object_get(event, "body")) ? json_object_get(event, "body") : event;
    const char *type = *show_str(event, "type") ? show_str(event, "type") : named;
    if (strcmp(type, "end") == 0) { /* after the last event: a job that was resumed has ended before, too */
        view->ended = true;
        return err_set(err, ERR_CANCELLED, "the job has ended");
    }
    if (!view->cli->json)
        watch_on_event(view, type, body);
    else if (!view->cli->quiet)
        return show_json(event, err);
    return 0;
}

/* Draws the view if it has changed and was not drawn within the last VIEW_DRAW_NS. */
static int watch_on_tick(void *arg, struct err *err)
{
    struct view *view = arg;
    (void)err;
    if (view->is_stale && clock_mono_ns() - view->drawn_ns >= VIEW_DRAW_NS)
        draw_view(view);
    return 0;
}

/* Reads the event stream over one connection, until it breaks or the job ends. */
static int watch_follow_once(struct view *view, struct err *err)
{
    char path[128], resume[64];
    const char *headers[2] = {NULL, NULL};
    snprintf(path, sizeof(path), "/v1/jobs/%lld/events%s", (long long)view->id,
             view->logs_only ? "?type=log" : "");
    if (view->events.last_id > 0) {
        snprintf(resume, sizeof(resume), "Last-Event-ID: %lld", (long long)view->events.last_id);
        headers[0] = resume;
    }
    const struct http_watch watch = {.every_ms = VIEW_DRAW_NS / 1000000, .ready = watch_on_tick, .arg = view};
    struct http_request request = {.method = "GET",
                                   .path = path,
                                   .headers = headers,
                                   .sink = event_reader_bytes,
                                   .sink_arg = &view->events,
                                   .watch = view->terminal ? &watch : NULL,
                                   .timeout_ms = UINT32_MAX,
                                   .idle_ms = SILENCE_MS};
    event_reader_begin(&view->events);
    int result = http_perform(view->cli->http, &request, NULL, err);
    if (view->is_stale)
        draw_view(view);
    return result;
}

/* Reads the job's document. An unreachable server is tried again until `deadline`. */
static int watch_read_job(struct view *view, uint64_t deadline, json_t **job, struct err *err)
{
    for (;;) {
        if (client_call(view->cli, "GET", NULL, job, err, "/v1/jobs/%lld", (long long)view->id) == 0)
            return 0;
        if ((err->code != ERR_NET && err->code != ERR_TIMEOUT && err->code != ERR_BUSY) ||
            clock_mono_ns() > deadline)
            return -1;
        usleep(200000);
        client_close(view->cli);
    }
}

static void name_ranks(struct view *view, const json_t *job)
{
    size_t index;
    json_t *rank;
    view->steps = show_num(job, "steps", 0);
    json_array_foreach (json_object_get(json_object_get(job, "run"), "ranks"), index, rank) {
        unsigned number = (unsigned)show_num(rank, "rank", VIEW_RANKS_MAX);
        if (number < VIEW_RANKS_MAX)
            snprintf(view->ranks[number].device, sizeof(view->ranks[number].device), "%s",
                     show_str(rank, "device"));
    }
}

/* Says once what a job that is queued or held waits for: events tell of states alone. */
static void tell_wait(struct view *view, const json_t *job)
{
    char text[1100];
    const char *state = show_str(job, "state");
    const bool waits = strcmp(state, "queued") == 0 || strcmp(state, "held") == 0;
    if (view->cli->json || view->told_wait || !waits || !*show_str(job, "why"))
        return;
    snprintf(text, sizeof(text), "%s: %s (motley why %lld says more)", state, show_str(job, "why"),
             (long long)view->id);
    watch_tell(view, "job ", text);
    view->told_wait = true;
}

static int watch_follow(struct view *view, json_t **job, struct err *err)
{
    for (;;) {
        uint64_t deadline = clock_mono_ns() + (uint64_t)GONE_NS_SECONDS * 1000000000u;
        json_decref(*job);
        *job = NULL;
        if (watch_read_job(view, deadline, job, err) < 0)
            return -1;
        name_ranks(view, *job);
        tell_wait(view, *job);
        bool over = state_is_last(
            show_str(*job, "state")); /* the stream is read once more, for events before the job's end */
        if (view->ended && over)
            return 0;
        view->ended = false; /* the end seen was an earlier one; the job was resumed */
        if (watch_follow_once(view, err) < 0 && !view->ended && err->code != ERR_NET &&
            err->code != ERR_TIMEOUT && err->code != ERR_PEER && err->code != ERR_BUSY)
            return -1;
        if (over)
            return 0;
    }
}

/* --- an interrupt: the job goes on, so it is said how to come back to it --- */

static char farewell[200]; /* what on_interrupt writes; prepared, since a handler may not format */

static void on_interrupt(int number)
{
    (void)!write(STDERR_FILENO, farewell, strlen(farewell));
    raise(number); /* SA_RESETHAND has set the default action, so this ends the process once the handler
                      returns */
}

static void interrupt_tells(int64_t id)
{
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    snprintf(farewell, sizeof(farewell),
             "\njob %lld goes on; motley watch %lld follows it, motley get %lld DIR fetches its result, "
             "motley cancel %lld stops it\n",
             (long long)id, (long long)id, (long long)id, (long long)id);
    sigaction(SIGINT, &action, NULL);
}

static int cli_watch(struct cli *cli, int64_t id, bool logs_only, json_t **job, struct err *err)
{
    struct view *view = calloc(1, sizeof(*view));
    if (!view)
        return err_set(err, ERR_NOMEM, "no memory for a view");
    view->cli = cli;
    view->id = id;
    view->logs_only = logs_only;
    view->terminal = !cli->json && isatty(STDOUT_FILENO);
    view->events.take = watch_take_event;
    view->events.arg = view;
    event_reader_init(&view->events);
    *job = NULL;
    interrupt_tells(id);
    int result = client_open(cli, err);
    if (result == 0)
        result = watch_follow(view, job, err);
    signal(SIGINT, SIG_DFL);
    if (result < 0) {
        json_decref(*job);
        *job = NULL;
    }
    event_reader_fini(&view->events);
    free(view);
    return result;
}

int watch_job(struct cli *cli, int64_t id, json_t **job, struct err *err)
{
    return cli_watch(cli, id, false, job, err);
}

int command_logs(struct cli *cli, struct err *err)
{
    int64_t id;
    json_t *job = NULL, *line;
    size_t index;
    char path[96], at[24];
    if (client_job_id(cli->words[0], &id, err) < 0)
        return -1;
    if (cli_option(cli, "-f")) {
        int result = cli_watch(cli, id, true, &job, err);
        json_decref(job);
        return result;
    }
    snprintf(path, sizeof(path), "/v1/jobs/%lld/logs?limit=500", (long long)id);
    json_t *lines = client_pages(cli, path, "lines", err);
    if (!lines)
        return -1;
    int result = 0;
    json_array_foreach (lines, index, line) {
        if (cli->json)
            result = result < 0 ? result : show_json(line, err);
        else
            printf("%s  %s%s%s\n", clock_words(show_str(line, "at"), at), show_str(line, "device"),
                   *show_str(line, "device") ? ": " : "",
                   *show_str(line, "text") ? show_str(line, "text") : show_str(line, "line"));
    }
    json_decref(lines);
    return result;
}
