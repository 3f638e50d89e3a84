/* `motley top`: on a terminal it follows the cluster's event stream and redraws the view; elsewhere it prints
 * the present state once.
 *
 * The request for the event stream never ends. While it waits it also watches keys and signals (struct
 * http_watch) and, over a second connection, reads the documents again that events have made stale.
 */
#include "cli/top.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/events.h"
#include "cli/screen.h"
#include "common/clock.h"

#define MS UINT64_C(1000000) /* nanoseconds */

enum {
    TICK_MS = 100,
    DRAW_MS = 100,           /* least time between two drawings */
    QUEUE_MS = 1000,         /* least time between two readings of the queue, each after an event */
    QUEUE_MOST_MS = 15000,   /* time after which the queue is read without an event */
    DEVICES_MS = 1500,       /* least time between two readings of the devices, each after an event */
    DEVICES_MOST_MS = 10000, /* time after which the devices are read without an event */
    LOAD_MS = 60000,         /* least time between two readings of the devices' load in the last hour */
    AGAIN_MS = 2000,         /* wait after a failed request or a broken stream */
    SILENCE_MS = 40000,      /* a stream this long silent is broken: the server sends more often */
    STREAM_PATH_BYTES = 1024,
    FRAME_LINES = 2, /* lines of the screen beside the tables: the headline and the last line */
    TABLE_LINES = 4, /* lines of a table beside its rows: title, headers, "… more", an empty line */
    HEADLINE_BYTES = 800,
};

struct live {
    struct top top;
    struct screen screen;
    struct event_reader events;
    struct http *stream;
    enum top_view view;
    unsigned scroll, columns, rows;
    bool is_live, is_over, is_stale;
    bool other_jobs; /* the followed jobs are no longer those that the stream was requested for */
    bool queue_due, devices_due;
    uint64_t queue_ns, devices_ns, load_ns, drawn_ns;
    char trouble[sizeof(((struct err *)NULL)->text)];
};

static bool is_past(uint64_t since_ns, unsigned ms)
{
    return clock_mono_ns() - since_ns >= ms * MS;
}

/* ---- drawing ---- */

/* Returns how many rows each of the three tables may have, so that together they fit into `lines`. */
static unsigned rows_that_fit(const struct live *live, unsigned lines)
{
    unsigned most = lines;
    for (; most > 1; most--) {
        size_t sum = 0;
        for (enum top_view view = TOP_JOBS; view < TOP_VIEWS; view++) {
            size_t count = top_count(&live->top, view);
            sum += TABLE_LINES + (count < most ? count : most);
        }
        if (sum <= lines)
            break;
    }
    return most;
}

static void draw_last_line(const struct live *live)
{
    static const char *const names[TOP_VIEWS] = {"all", "running", "devices", "queue"};
    char line[1024];
    int used = 0;
    for (int i = 0; i < TOP_VIEWS; i++)
        used += snprintf(line + used, sizeof(line) - (size_t)used,
                         i == (int)live->view ? "[%d %s] " : " %d %s  ", i + 1, names[i]);
    snprintf(line + used, sizeof(line) - (size_t)used, " ↑ ↓ move, q quits   %s%s",
             *live->trouble  ? "connecting again: "
             : live->is_live ? "live"
                             : "connecting",
             live->trouble);
    printf("\033[%u;1H\033[7m", live->rows);
    screen_lines(line, live->columns, 1, "\033[K");
    fputs("\033[0m", stdout);
}

/* Returns the text without its first *lines lines. *lines is reduced where less than `room` lines would be
 * left. */
static const char *scrolled(const char *text, unsigned *lines, unsigned room)
{
    unsigned count = 0;
    for (const char *at = text; *at; at++)
        count += *at == '\n';
    unsigned most = count > room ? count - room : 0;
    *lines = *lines < most ? *lines : most;
    for (unsigned i = 0; i < *lines; i++)
        text = strchr(text, '\n') + 1;
    return text;
}

static int top_draw(struct live *live, struct err *err)
{
    char headline[HEADLINE_BYTES] = {SCREEN_BOLD}, *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return err_set(err, ERR_NOMEM, "no memory for a view");
    unsigned room = live->rows > FRAME_LINES ? live->rows - FRAME_LINES : 1;
    int result = top_text(&live->top, live->view, live->view == TOP_ALL ? rows_that_fit(live, room) : 10000,
                          true, out, err);
    fclose(out);
    if (result == 0) {
        top_headline(&live->top, headline + 1, sizeof(headline) - 1);
        fputs("\033[H", stdout);
        screen_lines(headline, live->columns, 1, "\033[K\n");
        screen_lines(scrolled(text, &live->scroll, room), live->columns, room, "\033[K\n");
        fputs("\033[J", stdout);
        draw_last_line(live);
        fflush(stdout);
    }
    free(text);
    live->is_stale = false;
    live->drawn_ns = clock_mono_ns();
    return result;
}

/* ---- keys ---- */

static void take_key(struct live *live, int key)
{
    unsigned page = live->rows > FRAME_LINES + 1 ? live->rows - FRAME_LINES - 1 : 1;
    live->is_stale = true;
    if (key == 'q' || key == 'Q')
        live->is_over = true;
    else if (key >= '1' && key < '1' + TOP_VIEWS)
        live->view = (enum top_view)(key - '1');
    else if (key == '\t')
        live->view = (live->view + 1) % TOP_VIEWS;
    if (key == '\t' || (key >= '1' && key < '1' + TOP_VIEWS))
        live->scroll = 0;
    else if (key == KEY_DOWN || key == 'j')
        live->scroll++;
    else if (key == KEY_PAGE_DOWN || key == ' ')
        live->scroll += page;
    else if (key == KEY_UP || key == 'k')
        live->scroll -= live->scroll > 0;
    else if (key == KEY_PAGE_UP)
        live->scroll -= live->scroll < page ? live->scroll : page;
    else if (key == 'r')
        live->queue_due = live->devices_due = true;
}

static void take_keys(struct live *live)
{
    unsigned columns, rows;
    for (int key; (key = screen_key(&live->screen, &live->is_over)) != KEY_NONE;)
        take_key(live, key);
    screen_size(&columns, &rows);
    live->is_stale |= columns != live->columns || rows != live->rows;
    live->columns = columns;
    live->rows = rows;
}

/* ---- reading ---- */

static bool top_will_pass(const struct err *err)
{
    return err->code == ERR_NET || err->code == ERR_TIMEOUT || err->code == ERR_BUSY || err->code == ERR_PEER;
}

/* Records a temporary error (top_will_pass) in live->trouble, clears `err` and returns 0. Otherwise returns
 * `result`. */
static int note_trouble(struct live *live, int result, struct err *err)
{
    live->is_stale = true;
    if (result == 0) {
        live->trouble[0] = '\0';
        return 0;
    }
    if (!top_will_pass(err))
        return -1;
    snprintf(live->trouble, sizeof(live->trouble), "%s", err->text);
    *err = (struct err){0};
    return 0;
}

/* Reads the documents that are due. After a failure all are read again once AGAIN_MS have passed. */
static int read_due(struct live *live, struct err *err)
{
    int result = 0;
    bool failed_before = *live->trouble != '\0';
    bool queue = is_past(live->queue_ns, live->queue_due ? QUEUE_MS : QUEUE_MOST_MS);
    bool devices = is_past(live->devices_ns, live->devices_due ? DEVICES_MS : DEVICES_MOST_MS);
    if (failed_before && !is_past(live->queue_ns, AGAIN_MS))
        return 0;
    if (!queue && !devices && !failed_before)
        return 0;
    if (queue || failed_before) {
        live->queue_due = false;
        result = top_read_queue(&live->top, &live->other_jobs, err);
        live->queue_ns = clock_mono_ns();
    }
    if (result == 0 && (devices || failed_before)) {
        live->devices_due = false;
        result = top_read_devices(&live->top, err);
        live->devices_ns = clock_mono_ns();
        if (result == 0 && is_past(live->load_ns, LOAD_MS)) {
            result = top_read_load(&live->top, err);
            live->load_ns = clock_mono_ns();
        }
    }
    return note_trouble(live, result, err);
}

/* Handles keys, reads due documents and draws, while the stream waits. Returns -1 when the stream must end.
 */
static int top_tick(void *arg, struct err *err)
{
    struct live *live = arg;
    take_keys(live);
    if (!live->is_over && read_due(live, err) < 0)
        return -1;
    if (!live->is_over && live->is_stale && is_past(live->drawn_ns, DRAW_MS) && top_draw(live, err) < 0)
        return -1;
    if (live->is_over || live->other_jobs)
        return err_set(err, ERR_CANCELLED, "%s", live->is_over ? "told to end" : "other jobs are followed");
    return 0;
}

static int top_take_event(void *arg, const char *type, const json_t *data, struct err *err)
{
    struct live *live = arg;
    (void)err;
    if (strcmp(type, "devices") == 0)
        live->devices_due = true;
    else if (strcmp(type, "queue") == 0 || strcmp(type, "state") == 0)
        live->queue_due = live->devices_due = true;
    else
        top_event(&live->top, type, data);
    live->is_stale = true;
    return 0;
}

static int top_take_bytes(void *arg, const void *data, size_t size, struct err *err)
{
    struct live *live = arg;
    live->is_stale |= !live->is_live;
    live->is_live = true;
    return event_reader_bytes(&live->events, data, size, err);
}

/* Follows the stream over one connection, until it breaks or must be requested for other jobs. */
static int top_follow_once(struct live *live, struct err *err)
{
    char path[STREAM_PATH_BYTES], resume[64];
    const char *headers[2] = {NULL, NULL};
    int used = snprintf(path, sizeof(path), "/v1/events?topics=queue%s",
                        live->top.may_see_devices ? ",devices" : "");
    for (unsigned i = 0; i < live->top.followed_count; i++)
        used += snprintf(path + used, sizeof(path) - (size_t)used, ",job:%lld",
                         (long long)live->top.followed[i].id);
    if (live->events.last_id > 0) {
        snprintf(resume, sizeof(resume), "Last-Event-ID: %lld", (long long)live->events.last_id);
        headers[0] = resume;
    }
    const struct http_watch watch = {.fds = {STDIN_FILENO, live->screen.signals},
                                     .fd_count = 2,
                                     .every_ms = TICK_MS,
                                     .ready = top_tick,
                                     .arg = live};
    const struct http_request request = {.method = "GET",
                                         .path = path,
                                         .headers = headers,
                                         .sink = top_take_bytes,
                                         .sink_arg = live,
                                         .timeout_ms = UINT32_MAX,
                                         .idle_ms = SILENCE_MS,
                                         .watch = &watch};
    live->other_jobs = false;
    event_reader_begin(&live->events);
    int result = http_perform(live->stream, &request, NULL, err);
    live->is_live = false;
    return result;
}

/* Waits AGAIN_MS before the stream is requested again; keys still work meanwhile. */
static int wait_a_little(struct live *live, struct err *err)
{
    struct pollfd fds[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                           {.fd = live->screen.signals, .events = POLLIN}};
    uint64_t since_ns = clock_mono_ns();
    live->queue_due = live->devices_due = live->is_stale = true;
    while (!is_past(since_ns, AGAIN_MS)) {
        poll(fds, 2, TICK_MS);
        if (top_tick(live, err) < 0)
            return -1;
    }
    return 0;
}

static int top_follow(struct live *live, struct err *err)
{
    while (!live->is_over) {
        *err = (struct err){0};
        int result = top_follow_once(live, err);
        if (live->is_over)
            break;
        if (live->other_jobs && err->code == ERR_CANCELLED)
            continue;
        if (result < 0 && !top_will_pass(err))
            return -1;
        *err = (struct err){0};
        if (wait_a_little(live, err) < 0 && err->code != ERR_CANCELLED)
            return -1;
    }
    *err = (struct err){0};
    return 0;
}

static int show_live(struct live *live, struct err *err)
{
    live->events.take = top_take_event;
    live->events.arg = live;
    event_reader_init(&live->events);
    live->queue_ns = live->devices_ns = live->load_ns = clock_mono_ns();
    live->is_stale = true;
    live->stream = client_connect(live->top.cli, err);
    int result = live->stream ? screen_open(&live->screen, err) : -1;
    if (result == 0) {
        result = top_follow(live, err);
        screen_close(&live->screen);
    }
    http_destroy(live->stream);
    event_reader_fini(&live->events);
    return result;
}

static int show_once(const struct top *top, struct err *err)
{
    char headline[HEADLINE_BYTES];
    if (top->cli->json) {
        json_t *document = top_document(top);
        int result =
            document ? show_json(document, err) : err_set(err, ERR_NOMEM, "no memory for a document");
        json_decref(document);
        return result;
    }
    top_headline(top, headline, sizeof(headline));
    printf("%s\n\n", headline);
    return top_text(top, TOP_ALL, UINT32_MAX, false, stdout, err);
}

int command_top(struct cli *cli, struct err *err)
{
    bool other_jobs = false;
    struct live *live = calloc(1, sizeof(*live));
    if (!live)
        return err_set(err, ERR_NOMEM, "no memory for a view");
    int result = top_init(&live->top, cli, err);
    if (result == 0)
        result = top_read_queue(&live->top, &other_jobs, err);
    if (result == 0)
        result = top_read_devices(&live->top, err);
    if (result == 0)
        result = top_read_load(&live->top, err);
    if (result == 0)
        result = !cli->json && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) ? show_live(live, err)
                                                                             : show_once(&live->top, err);
    top_fini(&live->top);
    free(live);
    return result;
}
