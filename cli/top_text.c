/* `motley top` as text: a sentence, and tables of what runs, the devices and the queue. */
#include "cli/top.h"

#include <ctype.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "cli/screen.h"
#include "common/clock.h"
#include "common/units.h"

enum { TIME_BYTES = 32, HEADLINE_BYTES = 800 };

#define JOB_COLUMNS                                                                                          \
    "ID:id:n NAME:name:s OWNER:owner:s STATE:state:s STEP:progress:s LOSS:loss:n MEASURED:measured_s:t "     \
    "PREDICTED:predicted_s:t RATIO:ratio:n LEFT:left_s:t SLOW:slow:s"
#define DEVICE_COLUMNS                                                                                       \
    "DEVICE:name:s KIND:kind:s STATE:state:s JOB:job:n USER:job_owner:s USE:use:s HOUR:hour:s "              \
    "MEMORY:memory:s HEAT:heat:s"
#define QUEUE_COLUMNS                                                                                        \
    "PLACE:place:n ID:id:n STATE:state:s OWNER:owner:s NAME:name:s DEVICES:devices:s STARTS:starts:s "       \
    "ENDS:ends:s WAITS:wait:s"

/* Writes a time of the api in UTC: "14:05Z" for today, else "Sat 28 Nov 09:00Z"; "" for no time. */
static const char *say_time(const char *text, char out[TIME_BYTES])
{
    int64_t us;
    struct tm then, today;
    time_t now = time(NULL), at;
    *out = '\0';
    if (clock_rfc3339_parse(text, &us) < 0)
        return out;
    at = (time_t)(us / 1000000);
    gmtime_r(&at, &then);
    gmtime_r(&now, &today);
    bool is_today = then.tm_yday == today.tm_yday && then.tm_year == today.tm_year;
    strftime(out, TIME_BYTES, is_today ? "%H:%MZ" : "%a %d %b %H:%MZ", &then);
    return out;
}

static long count_of(const struct top *top, const char *state)
{
    return (long)show_num(json_object_get(top->queue, "jobs"), state, 0);
}

/* Returns the user's job that stands first in the queue, else one that runs; NULL: there is none. */
static const json_t *own_job(const struct top *top)
{
    const json_t *waits = NULL, *runs = NULL;
    size_t index;
    json_t *row;
    json_array_foreach (json_object_get(top->queue, "queue"), index, row) {
        if (strcmp(show_str(row, "owner"), show_str(top->me, "name")) != 0)
            continue;
        double place = show_num(row, "place", INFINITY);
        if (strcmp(show_str(row, "state"), "queued") != 0)
            runs = runs ? runs : row;
        else if (isfinite(place) && (!waits || place < show_num(waits, "place", INFINITY)))
            waits = row;
    }
    return waits ? waits : runs;
}

void top_headline(const struct top *top, char *out, size_t size)
{
    char from[TIME_BYTES], to[TIME_BYTES], own[96] = "", held[32] = "";
    const char *unwell = show_str(json_object_get(top->queue, "scheduler"), "why");
    if (*unwell) { /* then nothing that is said below changes */
        const int used = snprintf(out, size, "%c%s. ", toupper((unsigned char)*unwell), unwell + 1);
        out += used < (int)size ? used : (int)size - 1;
        size -= used < (int)size ? (size_t)used : size - 1;
    }
    long run = count_of(top, "starting") + count_of(top, "running") + count_of(top, "stopping");
    long wait = count_of(top, "queued"), hold = count_of(top, "held");
    const json_t *job = own_job(top);
    double place = show_num(job, "place", 0);
    if (job && strcmp(show_str(job, "state"), "queued") == 0) {
        char which[40] = "is next";
        if (place > 1)
            snprintf(which, sizeof(which), "is number %.0f", place);
        if (*say_time(show_str(job, "starts_latest"), to))
            snprintf(own, sizeof(own), "; yours %s, between %s and %s", which,
                     say_time(show_str(job, "starts_earliest"), from), to);
        else if (*say_time(show_str(job, "starts"), from))
            snprintf(own, sizeof(own), "; yours %s, about %s", which, from);
        else
            snprintf(own, sizeof(own), "; yours %s", which);
    } else if (job && *say_time(show_str(job, "ends"), to)) {
        snprintf(own, sizeof(own), "; yours ends about %s", to);
    }
    if (hold > 0)
        snprintf(held, sizeof(held), ", %ld held", hold);
    if (run + wait + hold == 0)
        snprintf(out, size, "Nothing runs and nothing waits.");
    else
        snprintf(out, size, "%ld %s, %ld %s%s%s.", run, run == 1 ? "runs" : "run", wait,
                 wait == 1 ? "waits" : "wait", held, own);
}

/* ---- jobs that run ---- */

/* Sets a member to the value, unless the value is unknown (NaN or 0). */
static void set_number(json_t *row, const char *key, double value)
{
    if (isfinite(value) && value > 0)
        json_object_set_new(row, key, json_real(value));
}

/* Names the device whose computing exceeds its predicted time most, if the ratio is above TOP_SLOW. */
static void set_slow(json_t *row, const struct top_job *job)
{
    const struct top_rank *slowest = NULL;
    double worst = TOP_SLOW;
    for (unsigned i = 0; i < job->rank_count; i++) {
        const struct top_rank *rank = &job->ranks[i];
        double ratio = rank->predicted_s > 0 ? top_median(&rank->compute_s) / rank->predicted_s : NAN;
        if (ratio > worst) {
            worst = ratio;
            slowest = rank;
        }
    }
    if (slowest)
        json_object_set_new(row, "slow", json_sprintf("%s %.1f×", slowest->device, worst));
}

static json_t *job_row(const struct top *top, json_t *job)
{
    json_t *row = json_copy(job);
    const struct top_job *followed = top_followed(top, json_integer_value(json_object_get(job, "id")));
    double steps = show_num(job, "steps", 0), step = show_num(job, "step", 0);
    json_object_del(row, "spec");
    if (followed) {
        double measured = top_median(&followed->seconds), predicted = followed->predicted_s;
        step = followed->step > step ? followed->step : step;
        set_number(row, "loss", followed->loss);
        set_number(row, "measured_s", measured);
        set_number(row, "predicted_s", predicted);
        set_number(row, "ratio", predicted > 0 ? measured / predicted : NAN);
        set_number(row, "left_s", (steps - step) * (measured > 0 ? measured : predicted));
        set_slow(row, followed);
    }
    json_object_set_new(row, "step", json_integer((json_int_t)step));
    json_object_set_new(row, "progress", json_sprintf("%.0f/%.0f", step, steps));
    return row;
}

/* ---- devices ---- */

/* Returns the share of a step that the device computes (0..1), if it works for a followed job; else NaN. */
static double top_text_use_of(const struct top *top, const char *device)
{
    for (unsigned i = 0; i < top->followed_count; i++) {
        for (unsigned j = 0; j < top->followed[i].rank_count; j++) {
            const struct top_rank *rank = &top->followed[i].ranks[j];
            double compute = top_median(&rank->compute_s), wait = top_median(&rank->wait_s);
            if (strcmp(rank->device, device) == 0)
                return compute / (compute + wait);
        }
    }
    return NAN;
}

static const json_t *load_of(const struct top *top, const char *device)
{
    size_t index;
    json_t *load;
    json_array_foreach (json_object_get(top->load, "devices"), index, load)
        if (strcmp(show_str(load, "name"), device) == 0)
            return load;
    return NULL;
}

static void set_percent(json_t *row, const char *key, double part)
{
    if (isfinite(part))
        json_object_set_new(row, key, json_sprintf("%.0f %%", 100 * part));
}

static json_t *top_text_device_row(const struct top *top, json_t *device)
{
    char used[32], all[32];
    json_t *row = json_copy(device);
    const json_t *health = json_object_get(device, "health");
    const json_t *load = load_of(top, show_str(device, "name"));
    int64_t from, to;
    double limit = show_num(health, "memory_bytes", show_num(device, "memory_limit_bytes", 0));
    double taken = show_num(health, "used_bytes", -1), heat = show_num(health, "temperature_c", NAN);
    if (json_is_true(json_object_get(device, "drained")) &&
        strncmp(show_str(device, "state"), "drain", 5) != 0)
        json_object_set_new(row, "state", json_sprintf("%s, drained", show_str(device, "state")));
    if (json_integer_value(json_object_get(device, "job")) > 0)
        set_percent(row, "use", top_text_use_of(top, show_str(device, "name")));
    if (load && clock_rfc3339_parse(show_str(top->load, "from"), &from) == 0 &&
        clock_rfc3339_parse(show_str(top->load, "to"), &to) == 0 && to > from)
        set_percent(row, "hour", show_num(load, "compute_s", 0) * 1e6 / (double)(to - from));
    if (taken >= 0)
        json_object_set_new(
            row, "memory",
            json_sprintf("%s of %s", units_bytes(used, (uint64_t)taken), units_bytes(all, (uint64_t)limit)));
    else
        json_object_set_new(row, "memory", json_sprintf("limit %s", units_bytes(all, (uint64_t)limit)));
    if (isfinite(heat))
        json_object_set_new(
            row, "heat",
            json_sprintf("%.0f °C%s", heat,
                         json_array_size(json_object_get(health, "throttle")) > 0 ? ", throttled" : ""));
    return row;
}

/* ---- the queue ---- */

static json_t *queue_row(const struct top *top, json_t *job)
{
    char text[TIME_BYTES], latest[TIME_BYTES];
    json_t *row = json_copy(job), *devices = json_object_get(job, "devices");
    size_t count = json_array_size(devices);
    const char *first = json_string_value(json_array_get(devices, 0));
    (void)top;
    json_object_set_new(row, "devices",
                        count > 1   ? json_sprintf("%s + %zu", first ? first : "", count - 1)
                        : count > 0 ? json_string(first ? first : "")
                                    : json_null());
    const char *ends = say_time(show_str(job, "ends"), text);
    const char *by = strcmp(show_str(job, "ends_by"), "time_limit") == 0 ? " (time limit)" : "";
    json_object_set_new(row, "ends", *ends ? json_sprintf("%s%s", ends, by) : json_null());
    const char *until = say_time(show_str(job, "starts_latest"), latest);
    const char *starts = say_time(show_str(job, *until ? "starts_earliest" : "starts"), text);
    json_object_set_new(row, "starts",
                        !*starts ? json_null()
                        : *until ? json_sprintf("%s to %s", starts, until)
                                 : json_string(starts));
    return row;
}

/* ---- views ---- */

static const struct {
    const char *title, *columns, *nothing;
    json_t *(*row)(const struct top *top, json_t *item);
} tables[TOP_VIEWS] = {
    [TOP_JOBS] = {"Running", JOB_COLUMNS, "Nothing runs that you may see.", job_row},
    [TOP_DEVICES] = {"Devices", DEVICE_COLUMNS,
                     "No device has joined, or your token lacks the scope nodes:read.", top_text_device_row},
    [TOP_QUEUE] = {"Queue", QUEUE_COLUMNS, "Nothing waits.", queue_row},
};

static json_t *items_of(const struct top *top, enum top_view view)
{
    return view == TOP_JOBS      ? top->jobs
           : view == TOP_DEVICES ? json_object_get(top->devices, "devices")
                                 : json_object_get(top->queue, "queue");
}

size_t top_count(const struct top *top, enum top_view view)
{
    return json_array_size(items_of(top, view));
}

static json_t *top_text_rows_of(const struct top *top, enum top_view view, size_t most)
{
    json_t *rows = json_array(), *item;
    size_t index;
    json_array_foreach (items_of(top, view), index, item)
        if (index < most)
            json_array_append_new(rows, tables[view].row(top, item));
    return rows;
}

static int table_text(const struct top *top, enum top_view view, unsigned most, bool bold, FILE *out,
                      struct err *err)
{
    size_t all = top_count(top, view);
    bool more = view == TOP_QUEUE && json_is_string(json_object_get(top->queue, "next"));
    fprintf(out, "%s%s\n", bold ? "\1" : "", tables[view].title);
    if (all == 0) {
        fprintf(out, "%s\n", tables[view].nothing);
        return 0;
    }
    json_t *rows = top_text_rows_of(top, view, most);
    int result = show_table_to(out, rows, tables[view].columns, err);
    json_decref(rows);
    if (more)
        fputs("… and more, which `motley queue` lists\n", out);
    else if (all > most)
        fprintf(out, "… and %zu more\n", all - most);
    return result;
}

int top_text(const struct top *top, enum top_view view, unsigned most, bool bold, FILE *out, struct err *err)
{
    if (view != TOP_ALL)
        return table_text(top, view, most, bold, out, err);
    for (enum top_view each = TOP_JOBS; each < TOP_VIEWS; each++) {
        if (each != TOP_JOBS)
            fputc('\n', out);
        if (table_text(top, each, most, bold, out, err) < 0)
            return -1;
    }
    return 0;
}

json_t *top_document(const struct top *top)
{
    char headline[HEADLINE_BYTES];
    top_headline(top, headline, sizeof(headline));
    return json_pack("{s:s, s:o, s:O*, s:O*}", "headline", headline, "jobs",
                     top_text_rows_of(top, TOP_JOBS, SIZE_MAX), "devices", items_of(top, TOP_DEVICES),
                     "queue", items_of(top, TOP_QUEUE));
}
