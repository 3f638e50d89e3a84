/* An answer for people: the verdict first, then who does what, then what else there is. From the document, so
 * that a server's answer reads like one made here. */
#include <stdio.h>
#include <string.h>

#include "common/units.h"
#include "planner/search.h"

#define SHARES_SHOWN 6u       /* of the critical path */
#define IMPROVEMENTS_SHOWN 8u /* those that save nothing are not */
#define NAME_WIDTH_MAX 40

struct print {
    struct buf *out;
    struct err *err;
    int name_width; /* of the longest device named */
};

static double number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static const char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value ? value : "";
}

/* "1 row", "3 rows", "2 micro-batches" */
static const char *many(char out[48], double count, const char *what)
{
    const char *plural = count == 1 ? "" : what[strlen(what) - 1] == 'h' ? "es" : "s";
    snprintf(out, 48, "%.0f %.30s%s", count, what, plural);
    return out;
}

static void widen(struct print *p, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        int width = (int)strlen(text(json_array_get(list, i), "device"));
        if (width > p->name_width)
            p->name_width = width < NAME_WIDTH_MAX ? width : NAME_WIDTH_MAX;
    }
}

static int head_print(struct print *p, const json_t *a)
{
    char step[32], found[32], micro[48], rows[48];
    const json_t *from = json_object_get(a, "from"), *warnings = json_object_get(a, "warnings");
    const char *words = text(a, "words");
    double bound = number(a, "lower_bound_s"), step_s = number(a, "step_s");
    if (buf_printf(p->out, p->err, "%s\n", *words ? words : text(a, "verdict")) < 0 ||
        (from && buf_printf(p->out, p->err, "%s\n", text(from, "words")) < 0))
        return -1;
    for (size_t i = 0; i < json_array_size(warnings); i++) {
        if (buf_printf(p->out, p->err, "warning: %s\n", json_string_value(json_array_get(warnings, i))) < 0)
            return -1;
    }
    if (strcmp(text(a, "verdict"), "fits") != 0)
        return 0;
    const char *schedule = text(a, "schedule");
    bool plain = !*schedule || strcmp(schedule, "1f1b") == 0;
    if (buf_printf(p->out, p->err, "%s%s%s: %s of %s", text(a, "placement"), plain ? "" : ", ",
                   plain ? "" : schedule, many(micro, number(a, "micro_batches"), "micro-batch"),
                   many(rows, number(a, "micro_batch_rows"), "row")) < 0)
        return -1;
    if (bound > 0 && step_s > 0 &&
        buf_printf(p->out, p->err,
                   "; no plan on these devices takes less than %s a step (this one %.2f times that)",
                   units_seconds(step, bound), step_s / bound) < 0)
        return -1;
    if (number(a, "plan_s") > 0 &&
        buf_printf(p->out, p->err, "; found in %s", units_seconds(found, number(a, "plan_s"))) < 0)
        return -1;
    return buf_printf(p->out, p->err, "\n");
}

/* What else there is to say of a rank, at the end of its line. */
static int rank_notes(struct print *p, const json_t *rank, const json_t *time, const json_t *ranks,
                      double step_s)
{
    const json_t *experts = json_object_get(rank, "experts"), *on = json_object_get(time, "waits_on");
    double waits = number(time, "wait_s");
    char what[48];
    const char *held = json_string_value(json_object_get(rank, "experts_held"));
    if (json_is_integer(experts) &&
        buf_printf(p->out, p->err, "  %s", held ? held : many(what, json_number_value(experts), "expert")) < 0)
        return -1;
    if (json_is_true(json_object_get(rank, "recompute")) && buf_printf(p->out, p->err, "  recomputes") < 0)
        return -1;
    if (waits <= 0.005 * step_s)
        return 0;
    if (buf_printf(p->out, p->err, "  waits %.0f %%", 100 * waits / step_s) < 0)
        return -1;
    const json_t *other = json_array_get(ranks, (size_t)json_integer_value(on));
    return json_is_integer(on) && other ? buf_printf(p->out, p->err, ", most for %s", text(other, "device"))
                                        : 0;
}

/* "0..18"; of a rank with several ranges "0..4,9..13", with dots where there are too many. */
static void blocks_say(const json_t *rank, char *out, size_t size)
{
    const json_t *ranges = json_object_get(rank, "block_ranges"), *blocks = json_object_get(rank, "blocks");
    size_t count = json_array_size(ranges), used = 0;
    for (size_t i = 0; i < (count ? count : 1); i++) {
        const json_t *range = count ? json_array_get(ranges, i) : blocks;
        bool room = used + 16 < size;
        used += (size_t)snprintf(out + used, size - used, room ? "%s%d..%d" : "…", i ? "," : "",
                                 (int)json_integer_value(json_array_get(range, 0)),
                                 (int)json_integer_value(json_array_get(range, 1)));
        if (!room)
            return;
    }
}

static int ranks_print(struct print *p, const json_t *a)
{
    const json_t *ranks = json_object_get(a, "ranks");
    const json_t *times = json_object_get(json_object_get(a, "insight"), "ranks");
    double step_s = number(a, "step_s");
    if (buf_printf(p->out, p->err, "\n  %4s  %-*s  %-12s %6s %6s %17s  %s\n", "rank", p->name_width, "device",
                   "blocks", "rows", "window", "computes", "memory") < 0)
        return -1;
    for (size_t i = 0; i < json_array_size(ranks); i++) {
        const json_t *rank = json_array_get(ranks, i);
        char range[48], have[32], limit[32], busy[32], share[16] = "";
        double has = number(rank, "memory_limit_bytes"), needs = number(rank, "memory_bytes");
        blocks_say(rank, range, sizeof(range));
        if (step_s > 0)
            snprintf(share, sizeof(share), "(%.0f %%)", 100 * number(rank, "busy_s") / step_s);
        if (buf_printf(p->out, p->err, "  %4.0f  %-*s  %-12s %6.0f %6.0f %9s %7s  %s of %s (%.0f %%)",
                       number(rank, "rank"), p->name_width, text(rank, "device"), range, number(rank, "rows"),
                       number(rank, "window"), units_seconds(busy, number(rank, "busy_s")), share,
                       units_bytes(have, (uint64_t)needs), units_bytes(limit, (uint64_t)has),
                       has > 0 ? 100 * needs / has : 0) < 0 ||
            rank_notes(p, rank, json_array_get(times, i), ranks, step_s) < 0 ||
            buf_printf(p->out, p->err, "\n") < 0)
            return -1;
    }
    return 0;
}

static int alternatives_print(struct print *p, const json_t *a)
{
    const json_t *list = json_object_get(a, "alternatives");
    double step_s = number(a, "step_s");
    char step[32], needs[32], has[32];
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *other = json_array_get(list, i);
        double other_s = number(other, "step_s");
        bool fits = strcmp(text(other, "verdict"), "fits") == 0;
        if (i == 0 && buf_printf(p->out, p->err, "\notherwise\n") < 0)
            return -1;
        if (buf_printf(p->out, p->err, "  %-9s %-*s  ", text(other, "placement"), p->name_width,
                       text(other, "device")) < 0)
            return -1;
        double lacks = number(other, "needs_bytes") - number(other, "has_bytes");
        units_bytes(needs, (uint64_t)number(other, "needs_bytes"));
        units_bytes(has, (uint64_t)number(other, "has_bytes"));
        int result;
        if (fits)
            result = buf_printf(p->out, p->err, "%s a step", units_seconds(step, other_s));
        else if (lacks <= 0)
            result = buf_printf(p->out, p->err, "not asked for");
        else if (strcmp(needs, has) == 0 && lacks > 0)
            result = buf_printf(p->out, p->err, "does not fit: has %s, %s too little", has,
                                units_bytes(needs, (uint64_t)lacks));
        else
            result = buf_printf(p->out, p->err, "does not fit: needs %s, has %s", needs, has);
        if (result == 0 && fits && step_s > 0 && other_s > step_s)
            result = buf_printf(p->out, p->err, ", %.2f times as long", other_s / step_s);
        if (result < 0 || buf_printf(p->out, p->err, "\n") < 0)
            return -1;
    }
    return 0;
}

static int left_out_print(struct print *p, const json_t *a)
{
    const json_t *list = json_object_get(a, "left_out");
    char step[32];
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *out = json_array_get(list, i);
        double with = number(out, "step_s_with");
        if (i == 0 && buf_printf(p->out, p->err, "\nleft out\n") < 0)
            return -1;
        if (buf_printf(p->out, p->err, "  %-*s  %s%s%s%s\n", p->name_width, text(out, "device"),
                       text(out, "why"), with > 0 ? " (" : "", with > 0 ? units_seconds(step, with) : "",
                       with > 0 ? " a step with it)" : "") < 0)
            return -1;
    }
    return 0;
}

static int insight_print(struct print *p, const json_t *a)
{
    const json_t *insight = json_object_get(a, "insight"), *list = json_object_get(a, "improvements");
    const json_t *path = json_object_get(insight, "critical_path");
    char step[32];
    for (size_t i = 0; i < json_array_size(path) && i < SHARES_SHOWN; i++) {
        const json_t *part = json_array_get(path, i);
        const char *what = text(part, "what");
        if (strcmp(what, "shared") == 0)
            what = "wire or card in use";
        if (i == 0 && buf_printf(p->out, p->err, "\nwhere the step's time goes (critical path)\n") < 0)
            return -1;
        if (buf_printf(p->out, p->err, "  %5.1f %%  %s, %s\n", 100 * number(part, "share"), what,
                       text(part, "where")) < 0)
            return -1;
    }
    if (insight && buf_printf(p->out, p->err, "\nwhat would help: %s\n", text(insight, "words")) < 0)
        return -1;
    for (size_t i = 0; i < json_array_size(list) && i < IMPROVEMENTS_SHOWN; i++) {
        const json_t *line = json_array_get(list, i);
        if (number(line, "saves") < 0.001)
            break;
        if (buf_printf(p->out, p->err, "  %5.1f %%  %s: %s a step%s\n", 100 * number(line, "saves"),
                       text(line, "words"), units_seconds(step, number(line, "step_s")),
                       json_is_true(json_object_get(line, "searched")) ? "" : ", at least (same split)") < 0)
            return -1;
    }
    return 0;
}

static int foot_print(struct print *p, const json_t *a)
{
    double cost = number(a, "cost_per_million_tokens"), kwh = number(a, "kwh_per_million_tokens");
    const char *basis = text(a, "basis");
    if ((cost > 0 || kwh > 0) && buf_printf(p->out, p->err, "\na million tokens:") < 0)
        return -1;
    if (cost > 0 && buf_printf(p->out, p->err, " costs %.4g", cost) < 0)
        return -1;
    if (kwh > 0 && buf_printf(p->out, p->err, "%s takes %.4g kWh", cost > 0 ? "," : "", kwh) < 0)
        return -1;
    if ((cost > 0 || kwh > 0) && buf_printf(p->out, p->err, "\n") < 0)
        return -1;
    return *basis ? buf_printf(p->out, p->err, "\nrests on: %s\n", basis) : 0;
}

int answer_print_document(const json_t *document, struct buf *out, struct err *err)
{
    struct print p = {.out = out, .err = err, .name_width = 6};
    if (!json_is_object(document))
        return err_set(err, ERR_INVALID, "the answer is no plan");
    widen(&p, json_object_get(document, "ranks"));
    widen(&p, json_object_get(document, "alternatives"));
    widen(&p, json_object_get(document, "left_out"));
    if (head_print(&p, document) < 0 ||
        (json_array_size(json_object_get(document, "ranks")) > 0 && ranks_print(&p, document) < 0) ||
        alternatives_print(&p, document) < 0 || left_out_print(&p, document) < 0 ||
        insight_print(&p, document) < 0)
        return -1;
    return foot_print(&p, document);
}
