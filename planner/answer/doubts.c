/* Warnings about measured and imported tables, about amounts in wrong units, and about what cards are
 * asked to compute. */
#include "planner/answer/doubts.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/units.h"

/* Factor on a card's stated peak and memory that is still plausible, as clocks vary. */
#define CARD_MOST 1.1
/* Least plausible share of the peak at the largest measured size; below it some unit is off by a thousand.
 * For a card without an entry of its own, ten times this share of the slowest card of its kind is used. */
#define PEAK_LEAST 1e-3
/* Share of a smaller size's forward and backward by which a larger size may be faster; less is noise. */
#define FALL 0.05
/* Outside of these limits an amount is probably in another unit than its name says. Rules of thumb: a
 * modem's line, the fastest links there are (for networks a tenth of it), more than a satellite hop, the
 * smallest device that anybody would train on. */
#define LINK_LEAST_BYTES_PER_S 1e4
#define LINK_MOST_BYTES_PER_S 1e13
#define LATENCY_MOST_S 0.7
#define WATTS_MOST 3.0 /* factor on the maker's power that is still plausible: peaks of milliseconds */
/* Share of the measuring time: 0.00 on the same quiet machine, 0.42 to 0.59 on the loaded one. */
#define WAITED_MOST 0.05
/* Mean over least, minus 1: a quiet two-core machine showed 0.02 to 0.13, a load of 5 showed 0.33 to 0.42. */
#define SPREAD_MOST 0.2
#define MEMORY_LEAST_BYTES ((uint64_t)16 << 20)
#define FORMATS_MAX 8u /* most kinds of cards without bfloat16 that are named */

struct doubts {
    const struct problem *problem;
    struct plan_answer *answer;
    uint32_t most, more; /* sentences that are still allowed, and how many were dropped */
    struct err *err;
};

static int doubt(struct doubts *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static int doubt(struct doubts *d, const char *fmt, ...)
{
    char text[384];
    va_list args;
    if (d->answer->warning_count >= d->most) {
        d->more++;
        return 0;
    }
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    d->answer->warnings[d->answer->warning_count] = strdup(text);
    if (!d->answer->warnings[d->answer->warning_count])
        return err_set(d->err, ERR_NOMEM, "planner: out of memory");
    d->answer->warning_count++;
    return 0;
}

static const char *const names[] = {[PROFILE_LAYER] = "layer", [PROFILE_HEAD] = "head"};

static const struct block *block_of(const struct problem *p, enum profile_block kind)
{
    for (uint32_t b = 0; b < p->blocks.count; b++) {
        const struct block *block = &p->blocks.blocks[b];
        if (block->kind == (kind == PROFILE_HEAD ? BLOCK_HEAD : BLOCK_LAYER))
            return block;
    }
    return NULL;
}

static double point_flops(const struct block *block, enum profile_block kind,
                          const struct profile_point *point)
{
    if (kind == PROFILE_HEAD)
        return block->flops_per_token * point->labelled;
    return block->flops_per_token * point->tokens + block->flops_per_square * point->sum_sq;
}

static double threads_of(const struct planner_device *device)
{
    return strcmp(device->kind, "cpu") == 0 ? device->threads : 1;
}

/* The peak of the device's own entry, or of the fastest entry of its kind; *of is that entry's name. */
static double peak_of(const struct planner_device *device, const char **of)
{
    const struct catalogue_entry *entry = device->like ? device->like : catalogue_extreme(device->kind, true);
    *of = entry ? entry->name : NULL;
    return entry ? catalogue_peak(entry) * threads_of(device) : 0;
}

/* The device's own entry, or a lower bound for its kind: for CPUs the plain one, for cards the slowest.
 * NULL: the kind is not in the catalogue. */
static const struct catalogue_entry *slowest_of(const struct planner_device *device)
{
    if (device->like)
        return device->like;
    return strcmp(device->kind, "cpu") == 0 ? catalogue_find("cpu") : catalogue_extreme(device->kind, false);
}

static int rate_doubt(struct doubts *d, const struct planner_device *device, enum profile_block kind)
{
    const struct device_profile *profile = &device->profile;
    const struct block *block = block_of(d->problem, kind);
    const struct profile_point *fastest = NULL, *largest = NULL;
    double best = 0, most = 0;
    const char *like = NULL;
    double peak = peak_of(device, &like);
    for (uint32_t i = 0; block && i < profile->point_count[kind]; i++) {
        const struct profile_point *point = &profile->points[kind][i];
        double flops = point_flops(block, kind, point), rate = flops / point->forward_s;
        if (rate > best) {
            best = rate;
            fastest = point;
        }
        if (flops > most) {
            most = flops;
            largest = point;
        }
    }
    if (!fastest || !largest || !(peak > 0))
        return 0;
    if (best > peak * CARD_MOST)
        return doubt(
            d,
            "profile of %s: a %s of %.0f tokens forward in %g s would be %.3g FLOP/s, %.1f times the peak of "
            "%s (%.3g): are its times in seconds, and of this model?",
            device->name, names[kind], fastest->tokens, fastest->forward_s, best, best / peak, like, peak);
    const struct catalogue_entry *slow = slowest_of(device);
    double least = slow ? catalogue_peak(slow) * threads_of(device) : 0, rate = most / largest->forward_s;
    bool known = device->like || strcmp(device->kind, "cpu") == 0;
    if (rate < least * (known ? PEAK_LEAST : 10 * PEAK_LEAST))
        return doubt(d,
                     "profile of %s: a %s of %.0f tokens forward in %g s is %.3g FLOP/s, %.2g of the peak of "
                     "%s (%.3g): "
                     "are its times in seconds?",
                     device->name, names[kind], largest->tokens, largest->forward_s, rate, rate / least,
                     slow->name, least);
    return 0;
}

/* Tokens that count as work; a head only works on labelled ones. */
static double tokens_worked(enum profile_block kind, const struct profile_point *point)
{
    return kind == PROFILE_HEAD ? point->labelled : point->tokens;
}

static int head_compare(const void *left, const void *right)
{
    const struct profile_point *a = left, *b = right;
    return a->labelled < b->labelled ? -1 : a->labelled > b->labelled;
}

static int work_compare(const void *left, const void *right)
{
    const struct profile_point *a = left, *b = right;
    if (a->tokens != b->tokens)
        return a->tokens < b->tokens ? -1 : 1;
    return a->sum_sq < b->sum_sq ? -1 : a->sum_sq > b->sum_sq;
}

/* Warns about points that have more work than an earlier point in every respect, and yet take clearly less
 * time. */
static int fall_doubt(struct doubts *d, const struct planner_device *device, enum profile_block kind)
{
    uint32_t count = device->profile.point_count[kind];
    if (count < 2)
        return 0;
    struct profile_point *points = malloc(count * sizeof(*points));
    if (!points)
        return err_set(d->err, ERR_NOMEM, "planner: out of memory");
    memcpy(points, device->profile.points[kind], count * sizeof(*points));
    qsort(points, count, sizeof(*points), kind == PROFILE_HEAD ? head_compare : work_compare);
    const struct profile_point *slowest = &points[0];
    int result = 0;
    for (uint32_t i = 1; i < count; i++) {
        const struct profile_point *p = &points[i];
        bool more = tokens_worked(kind, p) > tokens_worked(kind, slowest) && p->tokens >= slowest->tokens &&
                    p->sum_sq >= slowest->sum_sq && p->labelled >= slowest->labelled;
        double fall = fmax(slowest->forward_s - p->forward_s, slowest->backward_s - p->backward_s);
        if (more && fall > FALL * (slowest->forward_s + slowest->backward_s)) {
            char t[4][32];
            result =
                doubt(d,
                      "profile of %s: a %s of %.0f tokens takes %s forward and %s backward, less than "
                      "one of %.0f (%s and %s); times that fall are levelled out",
                      device->name, names[kind], tokens_worked(kind, p), units_seconds(t[0], p->forward_s),
                      units_seconds(t[1], p->backward_s), tokens_worked(kind, slowest),
                      units_seconds(t[2], slowest->forward_s), units_seconds(t[3], slowest->backward_s));
            break;
        }
        if (p->forward_s + p->backward_s > slowest->forward_s + slowest->backward_s)
            slowest = p;
    }
    free(points);
    return result;
}

/* Warns, in one sentence for all, about cards whose catalogue entries have no bfloat16 products, if
 * bfloat16 is asked for. */
static int format_doubt(struct doubts *d)
{
    const struct problem *p = d->problem;
    const struct catalogue_entry *said[FORMATS_MAX] = {NULL};
    char names_of[160] = "";
    uint32_t count = 0;
    bool slow = false, half = false;
    for (uint32_t i = 0; i < p->device_count && p->workload->compute == COMPUTE_BF16; i++) {
        const struct planner_device *device = &p->cluster->devices[i];
        const struct catalogue_entry *like = device->like;
        bool known = !p->usable[i] || device->profile.present || !like || like->bf16;
        for (uint32_t k = 0; k < count && !known; k++)
            known = said[k] == like;
        if (known || count == FORMATS_MAX)
            continue;
        said[count++] = like;
        size_t used = strlen(names_of);
        snprintf(names_of + used, sizeof(names_of) - used, "%s%s", used ? ", " : "", like->name);
        *(like->flops_16 > 0 ? &half : &slow) = true;
    }
    if (count == 0)
        return 0;
    return doubt(d, "train.compute is bf16, and %s %s no bfloat16 products: taken to compute %s", names_of,
                 count == 1 ? "has" : "have",
                 half && slow ? "at their float16 rate, or their float32 rate where that is higher"
                 : half       ? "at the float16 rate, as with loss scaling"
                              : "at the float32 rate");
}

static int link_doubt(struct doubts *d, const char *what, const char *of, bool network, double latency_s,
                      double bytes_per_s)
{
    double most = network ? LINK_MOST_BYTES_PER_S / 10 : LINK_MOST_BYTES_PER_S;
    char rate[32], latency[32];
    units_rate(rate, bytes_per_s);
    units_seconds(latency, latency_s);
    if (bytes_per_s < LINK_LEAST_BYTES_PER_S)
        return doubt(d, "%s%s: %.6g bytes/s is slower than a modem: is it bytes a second, not Gbit/s?", what,
                     of, bytes_per_s);
    if (bytes_per_s > most)
        return doubt(d, "%s%s: %s is faster than any %s: is it bytes a second?", what, of, rate,
                     network ? "network" : "link");
    return latency_s > LATENCY_MOST_S
               ? doubt(d, "%s%s: a latency of %s: is it seconds, not milliseconds?", what, of, latency)
               : 0;
}

/* Compares what is stated of a card with what its maker says. */
static int card_doubt(struct doubts *d, const struct planner_device *device)
{
    const struct catalogue_entry *like = device->like;
    char has[32], of[32];
    if (device->watts > 0 && device->idle_watts > device->watts &&
        doubt(d, "idle_watts of %s: %g W, more than the %g W it takes when it works", device->name,
              device->idle_watts, device->watts) < 0)
        return -1;
    if (!like || strcmp(device->kind, "cpu") == 0)
        return 0;
    bool half = d->problem->workload->compute != COMPUTE_FP32 && like->flops_16 > 0;
    double reached = (half ? like->efficiency_16 : like->efficiency) * device->speed;
    if (!device->profile.present && reached > CARD_MOST &&
        doubt(d, "speed of %s: %g would be %.1f times the peak of %s", device->name, device->speed, reached,
              like->name) < 0)
        return -1;
    if (!device->profile.present && reached < PEAK_LEAST &&
        doubt(d, "speed of %s: %g would be %.2g of the peak of %s", device->name, device->speed, reached,
              like->name) < 0)
        return -1;
    if ((double)device->memory_limit_bytes > CARD_MOST * (double)like->memory_bytes &&
        doubt(d, "memory_bytes of %s: %s, and %s has %s", device->name,
              units_bytes(has, device->memory_limit_bytes), like->name,
              units_bytes(of, like->memory_bytes)) < 0)
        return -1;
    return device->watts > WATTS_MOST * like->board_watts && like->board_watts > 0
               ? doubt(d, "watts of %s: %g W, and %s draws at most %g W", device->name, device->watts,
                       like->name, like->board_watts)
               : 0;
}

/* Warns about amounts of the cluster that seem to be in another unit. */
static int units_doubt(struct doubts *d)
{
    const struct cluster *c = d->problem->cluster;
    char of[560], has[32];
    if (link_doubt(d, "links.within", "", false, c->within_latency_s, c->within_bytes_per_s) < 0 ||
        link_doubt(d, "links.between", "", true, c->between_latency_s, c->between_bytes_per_s) < 0)
        return -1;
    for (uint32_t i = 0; i < c->link_count; i++) {
        const struct link_pair *link = &c->links[i];
        snprintf(of, sizeof(of), "%s to %s", c->nodes[link->from].name, c->nodes[link->to].name);
        if (link_doubt(d, "link ", of, link->from != link->to, link->latency_s, link->bytes_per_s) < 0)
            return -1;
    }
    for (uint32_t n = 0; n < c->node_count; n++) {
        double rate = c->nodes[n].nic_bytes_per_s;
        if (rate > 0 && link_doubt(d, "nic_bytes_per_s of ", c->nodes[n].name, true, 0, rate) < 0)
            return -1;
    }
    for (uint32_t i = 0; i < c->device_count; i++) {
        uint64_t bytes = c->devices[i].memory_limit_bytes;
        if (d->problem->usable[i] && card_doubt(d, &c->devices[i]) < 0)
            return -1;
        if (d->problem->usable[i] && bytes < MEMORY_LEAST_BYTES &&
            doubt(d, "memory_bytes of %s: %s is next to nothing: is it bytes, or with a unit, such as 24GiB?",
                  c->devices[i].name, units_bytes(has, bytes)) < 0)
            return -1;
    }
    return 0;
}

/* If some devices are estimated from the catalogue, reports how far the catalogue is off for the measured
 * ones. */
static int catalogue_doubt(struct doubts *d)
{
    const struct problem *p = d->problem;
    const struct planner_device *least = NULL, *most = NULL;
    uint32_t estimated = 0, compared = 0;
    for (uint32_t i = 0; i < p->device_count; i++) {
        const struct planner_device *device = &p->cluster->devices[i];
        double ratio = device->profile.catalogue_ratio;
        estimated += p->usable[i] && !device->profile.present && device->like != NULL;
        if (!device->profile.present || !(ratio > 0))
            continue;
        compared++;
        least = !least || ratio < least->profile.catalogue_ratio ? device : least;
        most = !most || ratio > most->profile.catalogue_ratio ? device : most;
    }
    if (estimated == 0 || compared == 0)
        return 0;
    return compared == 1
               ? doubt(d, "%u estimated from the catalogue: %s, which was measured, reaches %.3g of it",
                       estimated, least->name, least->profile.catalogue_ratio)
               : doubt(d,
                       "%u estimated from the catalogue: of %u that were measured, %s reaches %.3g of it and "
                       "%s %.3g",
                       estimated, compared, least->name, least->profile.catalogue_ratio, most->name,
                       most->profile.catalogue_ratio);
}

/* The device was measured beside other work, or its times changed while it was measured. */
static int noise_doubt(struct doubts *d, const struct planner_device *device)
{
    const struct device_profile *profile = &device->profile;
    if (profile->waited_share > WAITED_MOST &&
        doubt(d,
              "profile of %s: other programs took its cores for %.0f %% of the time of measuring; its "
              "times may be too long",
              device->name, 100 * profile->waited_share) < 0)
        return -1;
    return profile->spread > SPREAD_MOST
               ? doubt(
                     d,
                     "profile of %s: repeats of the same work took up to %.0f %% longer: the machine was not "
                     "steady, and its times are that uncertain",
                     device->name, 100 * profile->spread)
               : 0;
}

static int length_doubt(struct doubts *d)
{
    const struct workload *w = d->problem->workload;
    return w->sequence_tokens > w->config->max_positions
               ? doubt(
                     d,
                     "data.sequence_tokens is %u, and the model was made for %u (max_position_embeddings of "
                     "config.json)",
                     w->sequence_tokens, w->config->max_positions)
               : 0;
}

int problem_doubts(const struct problem *problem, struct plan_answer *answer, struct err *err)
{
    static const enum profile_block kinds[] = {PROFILE_LAYER, PROFILE_HEAD};
    struct doubts d = {.problem = problem, .answer = answer, .most = DOUBTS_MAX, .err = err};
    answer->warnings = calloc(DOUBTS_MAX + 1, sizeof(*answer->warnings));
    if (!answer->warnings)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    if (units_doubt(&d) < 0 || length_doubt(&d) < 0 || format_doubt(&d) < 0 || catalogue_doubt(&d) < 0)
        return -1;
    for (uint32_t i = 0; i < problem->device_count; i++) {
        const struct planner_device *device = &problem->cluster->devices[i];
        if (problem->usable[i] && device->profile.present && noise_doubt(&d, device) < 0)
            return -1;
        for (int k = 0; k < 2 && problem->usable[i] && device->profile.present; k++) {
            if (rate_doubt(&d, device, kinds[k]) < 0 || fall_doubt(&d, device, kinds[k]) < 0)
                return -1;
        }
    }
    d.most++;
    return d.more ? doubt(&d, "%u more doubts of this kind", d.more) : 0;
}
