/* Prints an answer: first the verdict, then the ranks, then alternatives. It prints from the document, so a
 * server's answer reads like one made here. */
#include "show/print.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/units.h"
#include "show/words.h"

#define SHARES_SHOWN 6u       /* parts of the critical path that are printed */
#define SHARE_LEAST 0.0005    /* smallest share of the step that is printed */
#define IMPROVEMENTS_SHOWN 8u /* most improvements that are printed; those that save nothing are omitted */
#define OTHERS_SHOWN 16u      /* most alternatives that are printed */
#define LEFT_OUT_SHOWN 16u
#define BETTER_LEAST 0.005 /* smallest difference, as a share of the step, that counts */
/* bytes, a page; a smaller shortage stands for "no cut was found" and is not printed */
#define LACKS_LEAST 4096.0
#define BOUND_APART 1.02 /* least ratio of the used devices' bound to all devices' one that is printed */
#define NAME_WIDTH_MAX 40
#define HOLDS_WIDTH_MAX 48

struct print {
    struct buf *out;
    struct err *err;
    int name_width;  /* width of the longest device name */
    int32_t blocks;  /* blocks of the model; 0 when no rank says */
    int holds_width; /* width of the column with a rank's blocks */
    bool windows;    /* whether a rank has several micro-batches under way */
};

static double print_number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static const char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value ? value : "";
}

/* Writes a count with its noun: "1 row", "3 rows", "2 micro-batches". */
static const char *count_text(char out[48], double count, const char *what)
{
    const char *plural = count == 1 ? "" : what[strlen(what) - 1] == 'h' ? "es" : "s";
    snprintf(out, 48, "%.0f %.30s%s", count, what, plural);
    return out;
}

/* Writes a device's name, with its kind if that is known: "left/0 (rtx-3090)", "left/0 (k80, planned only)".
 */
static const char *print_device_name(char out[360], const json_t *line)
{
    const char *like = text(line, "like");
    const char *mark = strcmp(text(line, "runs"), "planned only") == 0 ? ", planned only" : "";
    snprintf(out, 360, "%.255s%s%.64s%s%s", text(line, "device"), *like ? " (" : "", like, mark,
             *like ? ")" : "");
    return out;
}

static void widen(struct print *p, const json_t *list, size_t shown)
{
    char name[360];
    for (size_t i = 0; i < json_array_size(list) && i < shown; i++) {
        int width = (int)strlen(print_device_name(name, json_array_get(list, i)));
        if (width > p->name_width)
            p->name_width = width < NAME_WIDTH_MAX ? width : NAME_WIDTH_MAX;
    }
}

static int head_print(struct print *p, const json_t *a)
{
    char step[32], found[32], micro[48], rows[48];
    const json_t *from = json_object_get(a, "from"), *warnings = json_object_get(a, "warnings");
    const char *words = text(a, "words");
    double bound = print_number(a, "lower_bound_s"), used = print_number(a, "used_bound_s"),
           step_s = print_number(a, "step_s"), most = print_number(a, "micro_batch_rows");
    if (buf_printf(p->out, p->err, "%s\n", *words ? words : text(a, "verdict")) < 0 ||
        (from && buf_printf(p->out, p->err, "%s\n", text(from, "words")) < 0))
        return -1;
    for (size_t i = 0; i < json_array_size(warnings); i++)
        if (buf_printf(p->out, p->err, "warning: %s\n", json_string_value(json_array_get(warnings, i))) < 0)
            return -1;
    if (strcmp(text(a, "verdict"), "fits") != 0)
        return 0;
    const char *schedule = text(a, "schedule");
    bool plain = !*schedule || strcmp(schedule, "1f1b") == 0;
    if (buf_printf(p->out, p->err, "%s%s%s: %s of %s%s", text(a, "placement"), plain ? "" : ", ",
                   plain ? "" : schedule, count_text(micro, print_number(a, "micro_batches"), "micro-batch"),
                   most > 1 ? "up to " : "", count_text(rows, most, "row")) < 0)
        return -1;
    if (bound > 0 && step_s > 0 &&
        buf_printf(p->out, p->err, "; lower bound %s per step (this plan: %.2f times that",
                   units_seconds(step, bound), step_s / bound) < 0)
        return -1;
    if (used > BOUND_APART * bound &&
        buf_printf(p->out, p->err, ", %.2f times that of the devices it uses", step_s / used) < 0)
        return -1;
    if (bound > 0 && step_s > 0 && buf_printf(p->out, p->err, ")") < 0)
        return -1;
    if (print_number(a, "plan_s") > 0 &&
        buf_printf(p->out, p->err, "; search took %s", units_seconds(found, print_number(a, "plan_s"))) < 0)
        return -1;
    const double all_s = print_number(a, "steps") * step_s;
    if (all_s > 0 && buf_printf(p->out, p->err, "\n%s: about %s, without the start",
                                count_text(rows, print_number(a, "steps"), "step"),
                                all_s < 120 ? units_seconds(found, all_s)
                                            : units_duration(found, 60 * round(all_s / 60))) < 0)
        return -1;
    return buf_printf(p->out, p->err, "\n");
}

/* Prints the part of each layer that a member of a tensor group keeps. */
static int tensor_note(struct print *p, const json_t *rank, const json_t *ranks)
{
    const json_t *part = json_object_get(json_object_get(rank, "tensor"), "kv_heads");
    int members = 0;
    int first = (int)json_integer_value(json_array_get(part, 0)) + 1;
    int last = (int)json_integer_value(json_array_get(part, 1));
    for (size_t i = 0; i < json_array_size(ranks); i++)
        members += print_number(json_array_get(ranks, i), "stage") == print_number(rank, "stage");
    if (members < 2) /* the rank keeps all of it */
        return 0;
    if (first == last)
        return buf_printf(p->out, p->err, "  kv head %d of each layer", first);
    return first < last ? buf_printf(p->out, p->err, "  kv heads %d-%d of each layer", first, last) : 0;
}

/* Prints further properties of a rank at the end of its line. */
static int rank_notes(struct print *p, const json_t *rank, const json_t *time, const json_t *ranks,
                      double step_s)
{
    const json_t *experts = json_object_get(rank, "experts"), *on = json_object_get(time, "waits_on");
    const json_t *heads = json_object_get(json_object_get(rank, "tensor"), "kv_heads");
    const json_t *blocks = json_object_get(rank, "blocks");
    double waits = print_number(time, "wait_s"), share = print_number(rank, "state_share");
    bool whole = json_integer_value(json_array_get(blocks, 0)) == 0 &&
                 json_integer_value(json_array_get(blocks, 1)) >= p->blocks;
    char what[48];
    const char *held = json_string_value(json_object_get(rank, "experts_held"));
    if (json_is_integer(experts) &&
        buf_printf(p->out, p->err, "  %s",
                   held ? held : count_text(what, json_number_value(experts), "expert")) < 0)
        return -1;
    if (heads && tensor_note(p, rank, ranks) < 0)
        return -1;
    if (whole && !heads && !json_is_integer(experts) && share < 0.9995 &&
        buf_printf(p->out, p->err, "  keeps %.0f %% of the state", 100 * share) < 0)
        return -1;
    double again_end = print_number(rank, "recompute_end");
    if (json_is_true(json_object_get(rank, "recompute")) && buf_printf(p->out, p->err, "  recomputes") < 0)
        return -1;
    if (again_end > 0 && buf_printf(p->out, p->err, " blocks before %.0f", again_end) < 0)
        return -1;
    double moments = print_number(rank, "moments_host_bytes");
    if (moments > 0 &&
        buf_printf(p->out, p->err, "  moments on the host: %s", units_bytes(what, (uint64_t)moments)) < 0)
        return -1;
    if (waits <= 0.005 * step_s)
        return 0;
    if (buf_printf(p->out, p->err, "  waits %.0f %%", 100 * waits / step_s) < 0)
        return -1;
    const json_t *other = json_array_get(ranks, (size_t)json_integer_value(on));
    return json_is_integer(on) && other ? buf_printf(p->out, p->err, ", most for %s", text(other, "device"))
                                        : 0;
}

/* Writes the blocks of a rank: "layers 1-18"; several ranges are listed, with dots when there are too many.
 */
static void holds_say(const struct print *p, const json_t *rank, char *out, size_t size)
{
    const json_t *ranges = json_object_get(rank, "block_ranges"), *blocks = json_object_get(rank, "blocks");
    size_t count = json_array_size(ranges), used = 0;
    char one[64];
    bool said = false; /* "layers" was written; further ranges need only their numbers */
    for (size_t i = 0; i < (count ? count : 1); i++) {
        const json_t *range = count ? json_array_get(ranges, i) : blocks;
        words_range(one, sizeof(one), (int32_t)json_integer_value(json_array_get(range, 0)),
                    (int32_t)json_integer_value(json_array_get(range, 1)), p->blocks);
        const char *rest = said && strncmp(one, "layer", 5) == 0 ? strchr(one, ' ') + 1 : one;
        said = said || strstr(one, "layer");
        bool room = used + strlen(rest) + 8 < size;
        used += (size_t)snprintf(out + used, size - used, "%s%s", i ? ", " : "", room ? rest : "…");
        if (!room)
            return;
    }
}

static void ranks_look(struct print *p, const json_t *ranks)
{
    char holds[HOLDS_WIDTH_MAX + 1];
    for (size_t i = 0; i < json_array_size(ranks); i++) {
        const json_t *rank = json_array_get(ranks, i);
        int32_t end = (int32_t)json_integer_value(json_array_get(json_object_get(rank, "blocks"), 1));
        p->blocks = end > p->blocks ? end : p->blocks;
        p->windows = p->windows || print_number(rank, "window") > 1;
    }
    p->holds_width = 5;
    for (size_t i = 0; i < json_array_size(ranks); i++) {
        holds_say(p, json_array_get(ranks, i), holds, sizeof(holds));
        int width = (int)strlen(holds);
        p->holds_width = width > p->holds_width ? width : p->holds_width;
    }
}

static int ranks_print(struct print *p, const json_t *a)
{
    const json_t *ranks = json_object_get(a, "ranks");
    const json_t *times = json_object_get(json_object_get(a, "insight"), "ranks");
    double step_s = print_number(a, "step_s");
    ranks_look(p, ranks);
    if (buf_printf(p->out, p->err, "\n  %4s  %-*s  %-*s %6s%s %17s  %s\n", "rank", p->name_width, "device",
                   p->holds_width, "holds", "rows", p->windows ? "  under way" : "", "computes",
                   "memory") < 0)
        return -1;
    for (size_t i = 0; i < json_array_size(ranks); i++) {
        const json_t *rank = json_array_get(ranks, i);
        char holds[HOLDS_WIDTH_MAX + 1], have[32], limit[32], busy[32], share[16] = "", window[16] = "",
                                                                        name[360];
        char own[48] = "";
        double has = print_number(rank, "memory_limit_bytes"), needs = print_number(rank, "memory_bytes");
        double base = print_number(rank, "device_base_bytes");
        if (base > 0)
            snprintf(own, sizeof(own), " beside %s of its own", units_bytes(have, (uint64_t)base));
        holds_say(p, rank, holds, sizeof(holds));
        if (step_s > 0)
            snprintf(share, sizeof(share), "(%.0f %%)", 100 * print_number(rank, "busy_s") / step_s);
        if (p->windows)
            snprintf(window, sizeof(window), "%11.0f", print_number(rank, "window"));
        if (buf_printf(p->out, p->err, "  %4.0f  %-*s  %-*s %6.0f%s %9s %7s  %s of %s (%.0f %%)%s",
                       print_number(rank, "rank"), p->name_width, print_device_name(name, rank),
                       p->holds_width, holds, print_number(rank, "rows"), window,
                       units_seconds(busy, print_number(rank, "busy_s")), share,
                       units_bytes(have, (uint64_t)needs), units_bytes(limit, (uint64_t)has),
                       has > 0 ? 100 * needs / has : 0, own) < 0 ||
            rank_notes(p, rank, json_array_get(times, i), ranks, step_s) < 0 ||
            buf_printf(p->out, p->err, "\n") < 0)
            return -1;
    }
    return p->windows
               ? buf_printf(
                     p->out, p->err,
                     "  under way: micro-batches begun on a rank whose backward pass is still to come\n")
               : 0;
}

/* --- alternatives --- */

static bool print_fits(const json_t *line)
{
    return strcmp(text(line, "verdict"), "fits") == 0;
}

struct other {
    const json_t *line;
    size_t at; /* index in the document */
};

/* Orders alternatives: those that fit first, the fastest first; of the others, several devices together
 * before single ones; else in the document's order. */
static int other_compare(const void *left, const void *right)
{
    const struct other *a = left, *b = right;
    bool fit = print_fits(a->line);
    if (fit != print_fits(b->line))
        return fit ? -1 : 1;
    double x = fit ? print_number(a->line, "step_s") : *text(a->line, "device") != 0;
    double y = fit ? print_number(b->line, "step_s") : *text(b->line, "device") != 0;
    return x != y ? (x < y ? -1 : 1) : a->at < b->at ? -1 : a->at > b->at;
}

/* Whether two alternatives would print the same, apart from the names of devices of one kind. */
static bool alike(const json_t *a, const json_t *b)
{
    return *text(a, "like") && strcmp(text(a, "like"), text(b, "like")) == 0 &&
           strcmp(text(a, "placement"), text(b, "placement")) == 0 && print_fits(a) == print_fits(b) &&
           print_number(a, "step_s") == print_number(b, "step_s") &&
           print_number(a, "needs_bytes") == print_number(b, "needs_bytes") &&
           print_number(a, "has_bytes") == print_number(b, "has_bytes");
}

static int other_print(struct print *p, const json_t *other, size_t like_it, double step_s, bool chosen)
{
    char step[32], needs[32], has[32], ratio[48], name[360], stages[48] = "";
    double other_s = print_number(other, "step_s"),
           lacks = print_number(other, "needs_bytes") - print_number(other, "has_bytes");
    if (print_number(other, "stages") > 1)
        count_text(stages, print_number(other, "stages"), "stage");
    if (buf_printf(p->out, p->err, "  %-9s %-*s  ", text(other, "placement"), p->name_width,
                   *text(other, "device") ? print_device_name(name, other) : stages) < 0)
        return -1;
    units_bytes(needs, (uint64_t)print_number(other, "needs_bytes"));
    units_bytes(has, (uint64_t)print_number(other, "has_bytes"));
    int result;
    if (print_fits(other)) {
        result = buf_printf(p->out, p->err, "%s per step", units_seconds(step, chosen ? step_s : other_s));
        if (result == 0 && chosen)
            result = buf_printf(p->out, p->err, ", this plan");
        else if (result == 0 && step_s > 0)
            result = buf_printf(p->out, p->err, ", %s", words_ratio(ratio, other_s, step_s));
        const char *schedule = text(other, "schedule");
        if (result == 0 && *schedule && strcmp(schedule, "1f1b") != 0)
            result = buf_printf(p->out, p->err, ", %s", schedule);
    } else if (lacks <= 0)
        result = buf_printf(p->out, p->err, "not asked for");
    else if (lacks < LACKS_LEAST)
        result = buf_printf(p->out, p->err, "does not fit");
    else if (!*text(other, "device"))
        result =
            buf_printf(p->out, p->err, "does not fit: %s too little", units_bytes(needs, (uint64_t)lacks));
    else if (strcmp(needs, has) == 0)
        result = buf_printf(p->out, p->err, "does not fit: has %s, %s too little", has,
                            units_bytes(needs, (uint64_t)lacks));
    else
        result = buf_printf(p->out, p->err, "does not fit: needs %s, has %s", needs, has);
    if (result == 0 && like_it)
        result = buf_printf(p->out, p->err, "; %zu more like it", like_it);
    return result < 0 ? -1 : buf_printf(p->out, p->err, "\n");
}

static bool is_chosen(const json_t *a, const json_t *other)
{
    const json_t *ranks = json_object_get(a, "ranks");
    return json_array_size(ranks) == 1 && strcmp(text(other, "placement"), "single") == 0 &&
           strcmp(text(a, "placement"), "single") == 0 &&
           strcmp(text(json_array_get(ranks, 0), "device"), text(other, "device")) == 0;
}

static int alternatives_print(struct print *p, const json_t *a)
{
    const json_t *list = json_object_get(a, "alternatives");
    size_t count = json_array_size(list), shown = 0;
    struct other *sorted = calloc(count + 1, sizeof(*sorted));
    int result = sorted ? 0 : err_set(p->err, ERR_NOMEM, "the answer: out of memory");
    for (size_t i = 0; sorted && i < count; i++)
        sorted[i] = (struct other){json_array_get(list, i), i};
    if (sorted && count)
        qsort(sorted, count, sizeof(*sorted), other_compare);
    for (size_t i = 0; i < count && result == 0;) {
        size_t like_it = 0, next = i + 1;
        bool chosen = is_chosen(a, sorted[i].line);
        while (!chosen && next < count && alike(sorted[i].line, sorted[next].line) &&
               !is_chosen(a, sorted[next].line)) {
            next++;
            like_it++;
        }
        if (i == 0)
            result = buf_printf(p->out, p->err, "\notherwise\n");
        if (result == 0 && shown++ == OTHERS_SHOWN) {
            result = buf_printf(p->out, p->err, "  … %zu more; --json has all\n", count - i);
            break;
        }
        if (result == 0)
            result = other_print(p, sorted[i].line, like_it, print_number(a, "step_s"), chosen);
        i = next;
    }
    free(sorted);
    return result;
}

enum { LEFT_OUT_WORDS = 320 }; /* in characters; a longer text is cut */

/* Writes why a device is left out, and how long a step would take with it. */
static const char *left_out_words(char out[LEFT_OUT_WORDS], const json_t *line, double step_s)
{
    char step[32], ratio[48];
    double with = print_number(line, "step_s_with");
    const char *why = text(line, "why");
    if (with <= 0) {
        snprintf(out, LEFT_OUT_WORDS, "%s", why);
        return out;
    }
    units_seconds(step, with);
    words_ratio(ratio, with, step_s);
    if (strcmp(why, "slower with it") == 0 && strcmp(ratio, "the same") == 0)
        snprintf(out, LEFT_OUT_WORDS, "no faster with it: %s per step", step);
    else
        snprintf(out, LEFT_OUT_WORDS, "%s: %s per step, %s", why, step, ratio);
    return out;
}

/* Whether the same text was already printed for an earlier device of the same kind. *more is the number of
 * later devices with that text. */
static bool left_out_told(const json_t *list, size_t at, double step_s, size_t *more)
{
    char own[LEFT_OUT_WORDS], its[LEFT_OUT_WORDS];
    const json_t *line = json_array_get(list, at);
    *more = 0;
    for (size_t i = 0; i < json_array_size(list) && *text(line, "like"); i++) {
        const json_t *other = json_array_get(list, i);
        if (i == at || strcmp(text(line, "like"), text(other, "like")) != 0 ||
            strcmp(left_out_words(own, line, step_s), left_out_words(its, other, step_s)) != 0)
            continue;
        if (i < at)
            return true;
        ++*more;
    }
    return false;
}

static int left_out_print(struct print *p, const json_t *a)
{
    const json_t *list = json_object_get(a, "left_out");
    char words[LEFT_OUT_WORDS], name[360];
    bool none = !print_fits(a); /* without a plan all devices are left out, so only those that were not
                             examined are worth a line */
    double step_s = print_number(a, "step_s");
    size_t shown = 0, more = 0, count = json_array_size(list), told = 0;
    for (size_t i = 0; i < count; i++) {
        const json_t *out = json_array_get(list, i);
        if (none && strcmp(text(out, "why"), "nothing fits") == 0) {
            told++;
            continue;
        }
        if (shown < LEFT_OUT_SHOWN && left_out_told(list, i, step_s, &more))
            continue;
        if (shown == 0 && buf_printf(p->out, p->err, "\nleft out\n") < 0)
            return -1;
        if (shown++ == LEFT_OUT_SHOWN)
            return buf_printf(p->out, p->err, "  … %zu more; --json has all\n", count - told);
        told += 1 + more;
        if (buf_printf(p->out, p->err, "  %-*s  %s", p->name_width, print_device_name(name, out),
                       left_out_words(words, out, step_s)) < 0 ||
            (more && buf_printf(p->out, p->err, "; %zu more like it", more) < 0) ||
            buf_printf(p->out, p->err, "\n") < 0)
            return -1;
    }
    return 0;
}

/* Other choices of the job's that would train faster. */
static int gains_print(struct print *p, const json_t *a)
{
    const json_t *list = json_object_get(a, "would_gain"), *line;
    char step[32];
    size_t i;
    json_array_foreach ((json_t *)(uintptr_t)list, i, line) {
        const double times = print_number(line, "tokens_per_s") / print_number(a, "tokens_per_s");
        if (buf_printf(p->out, p->err, "%s  %-24s  %.*f times the tokens per second, %s per step\n",
                       i == 0 ? "\nwould gain\n" : "", text(line, "what"), times < 10 ? 1 : 0, times,
                       units_seconds(step, print_number(line, "step_s"))) < 0)
            return -1;
    }
    return 0;
}

/* --- the critical path and improvements --- */

static const char *path_word(const char *what)
{
    static const char *const words[][2] = {{"compute", "computing"},
                                           {"link", "sending"},
                                           {"collective", "exchange among"},
                                           {"shared", "waiting for a wire or card that others use"}};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcmp(what, words[i][0]) == 0)
            return words[i][1];
    return what;
}

static int path_print(struct print *p, const json_t *path)
{
    size_t shown = json_array_size(path);
    shown = shown < SHARES_SHOWN ? shown : SHARES_SHOWN;
    for (size_t i = 0; i < shown; i++) {
        const json_t *part = json_array_get(path, i);
        const char *what = text(part, "what");
        bool apart = strcmp(what, "collective") != 0;
        if (i > 0 && print_number(part, "share") < SHARE_LEAST)
            break;
        if (i == 0 &&
            buf_printf(p->out, p->err, "\nwhere the step's time goes (what its end had to wait for)\n") < 0)
            return -1;
        if (buf_printf(p->out, p->err, "  %5.1f %%  %s%s%s\n", 100 * print_number(part, "share"),
                       path_word(what), apart ? ", " : " ", text(part, "where")) < 0)
            return -1;
    }
    return 0;
}

/* Prints how long the step would take without each device of the plan. */
static int without_print(struct print *p, const json_t *a)
{
    const json_t *list = json_object_get(a, "without");
    char step[32], ratio[48], name[360];
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *line = json_array_get(list, i);
        double without = print_number(line, "step_s");
        if (i == 0 && buf_printf(p->out, p->err, "\nwhat each device brings\n") < 0)
            return -1;
        bool better = without > 0 && without < print_number(a, "step_s") * (1 - BETTER_LEAST);
        if (buf_printf(p->out, p->err, "  without %-*s  ", p->name_width, print_device_name(name, line)) <
                0 ||
            (without > 0 ? buf_printf(p->out, p->err, "%s per step, %s%s\n", units_seconds(step, without),
                                      words_ratio(ratio, without, print_number(a, "step_s")),
                                      better ? ": better without it (placement.exclude)" : "")
                         : buf_printf(p->out, p->err, "nothing fits\n")) < 0)
            return -1;
    }
    return 0;
}

static int insight_print(struct print *p, const json_t *a)
{
    const json_t *insight = json_object_get(a, "insight"), *list = json_object_get(a, "improvements");
    char step[32];
    if (path_print(p, json_object_get(insight, "critical_path")) < 0 || without_print(p, a) < 0)
        return -1;
    if (insight && buf_printf(p->out, p->err, "\nwhat would help: %s\n", text(insight, "words")) < 0)
        return -1;
    for (size_t i = 0; i < json_array_size(list) && i < IMPROVEMENTS_SHOWN; i++) {
        const json_t *line = json_array_get(list, i);
        if (print_number(line, "saves") < 0.001)
            break;
        if (buf_printf(p->out, p->err, "  %5.1f %%  %s: %s per step%s\n", 100 * print_number(line, "saves"),
                       text(line, "words"), units_seconds(step, print_number(line, "step_s")),
                       json_is_true(json_object_get(line, "searched")) ? "" : ", at least (same split)") < 0)
            return -1;
    }
    return 0;
}

/* Writes a number with thousands separators: "8,030,261,248". */
static const char *thousands(char out[32], double count)
{
    char digits[24];
    size_t length = (size_t)snprintf(digits, sizeof(digits), "%.0f", count), at = 0;
    for (size_t i = 0; i < length && at + 2 < 32; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
    return out;
}

static int foot_print(struct print *p, const json_t *a)
{
    char all[32], some[32];
    double cost = print_number(a, "cost_per_million_tokens"), kwh = print_number(a, "kwh_per_million_tokens");
    const char *basis = text(a, "basis");
    if ((cost > 0 || kwh > 0) && buf_printf(p->out, p->err, "\na million tokens:") < 0)
        return -1;
    if (cost > 0 && buf_printf(p->out, p->err, " costs %.4g", cost) < 0)
        return -1;
    if (kwh > 0 && buf_printf(p->out, p->err, "%s takes %.4g kWh", cost > 0 ? "," : "", kwh) < 0)
        return -1;
    if ((cost > 0 || kwh > 0) && buf_printf(p->out, p->err, "\n") < 0)
        return -1;
    const json_t *model = json_object_get(a, "model");
    const char *method = text(model, "method");
    if (model && buf_printf(p->out, p->err, "\nmodel: %s parameters, %s trained%s%s\n",
                            thousands(all, print_number(model, "parameters")),
                            thousands(some, print_number(model, "trained")), *method ? ": " : "", method) < 0)
        return -1;
    return *basis ? buf_printf(p->out, p->err, "%sbased on: %s\n", model ? "" : "\n", basis) : 0;
}

int answer_print_document(const json_t *document, struct buf *out, struct err *err)
{
    struct print p = {.out = out, .err = err, .name_width = 6};
    if (!json_is_object(document))
        return err_set(err, ERR_INVALID, "the answer is no plan");
    widen(&p, json_object_get(document, "ranks"), SIZE_MAX);
    widen(&p, json_object_get(document, "alternatives"), OTHERS_SHOWN);
    widen(&p, json_object_get(document, "left_out"), LEFT_OUT_SHOWN);
    if (head_print(&p, document) < 0 ||
        (json_array_size(json_object_get(document, "ranks")) > 0 && ranks_print(&p, document) < 0) ||
        alternatives_print(&p, document) < 0 || left_out_print(&p, document) < 0 ||
        gains_print(&p, document) < 0 || insight_print(&p, document) < 0)
        return -1;
    return foot_print(&p, document);
}

int answer_print(const struct plan_answer *answer, struct buf *out, struct err *err)
{
    json_t *document = answer_to_json(answer, err);
    if (!document)
        return -1;
    int result = answer_print_document(document, out, err);
    json_decref(document);
    return result;
}

/* --- programs --- */

/* Writes the blocks of a rank: "0..9", or "0..4, 9..13" for several ranges, with dots when there are too
 * many. */
static void blocks_words(const struct plan_rank *rank, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "%d..%d", rank->block_begin,
                                   rank->range_count ? rank->ranges[0].end : rank->block_end);
    for (uint32_t i = 1; i < rank->range_count && used + 32 < size; i++) {
        bool room = used + 64 < size || i + 1 == rank->range_count;
        used += (size_t)snprintf(text + used, size - used, room ? ", %d..%d" : ", …", rank->ranges[i].begin,
                                 rank->ranges[i].end);
        if (!room)
            break;
    }
}

static int program_lines(const struct plan *plan, const struct trace *trace, uint32_t rank, uint32_t lines,
                         struct buf *out, struct err *err)
{
    const struct plan_rank *r = &plan->ranks[rank];
    char have[32], limit[32], what[128], seconds[32], blocks[160];
    blocks_words(r, blocks, sizeof(blocks));
    if (buf_printf(out, err, "%srank %u  %s   blocks %s   %s of %s\n", rank ? "\n" : "", rank, r->device,
                   blocks, units_bytes(have, r->memory_bytes), units_bytes(limit, r->memory_limit_bytes)) < 0)
        return -1;
    uint32_t shown = 0;
    for (uint32_t i = 0; i < trace->count; i++) {
        const struct trace_event *e = &trace->events[i];
        if (e->rank != rank)
            continue;
        if (shown++ == lines)
            return buf_printf(out, err, "  … %u more\n", r->programs[PROGRAM_TRAIN].instr_count - lines);
        instr_describe(&r->programs[PROGRAM_TRAIN].instrs[e->instr], what, sizeof(what));
        if (buf_printf(out, err, "%5u %-48s %10s\n", e->instr, what,
                       units_seconds(seconds, (double)(e->end_ns - e->begin_ns) / 1e9)) < 0)
            return -1;
    }
    return 0;
}

int answer_print_program(const struct plan_answer *answer, const struct workload *workload,
                         const struct cluster *cluster, uint32_t lines, struct buf *out, struct err *err)
{
    struct trace trace;
    double seconds = 0;
    if (!answer->plan)
        return buf_printf(out, err, "%s\n", answer->words ? answer->words : "");
    trace_init(&trace, 0);
    int result = plan_simulate(answer->plan, workload, cluster, &trace, &seconds, err);
    for (uint32_t r = 0; r < answer->plan->rank_count && result == 0; r++)
        result = program_lines(answer->plan, &trace, r, lines ? lines : 200, out, err);
    trace_fini(&trace);
    return result;
}
