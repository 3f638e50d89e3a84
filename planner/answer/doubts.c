/* Warnings about measured and imported times, amounts in wrong units, and number formats that cards lack. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/units.h"
#include "planner/answer/answer_private.h"
#include "planner/cost/noise.h"

/* A measured speed or stated memory up to this multiple of the maker's figure is plausible, as clocks vary.
 */
#define CARD_MOST 1.1
/* The least plausible share of a device's peak at the largest measured size; below it some unit is off by a
 * thousand. A card without a catalogue entry of its own is judged by ten times this share of the slowest card
 * of its kind. */
#define PEAK_LEAST 1e-3
/* An amount outside of these limits is probably in another unit than its name says. All are rules of thumb.
 * LINK_LEAST is a modem's rate; LINK_MOST is that of the fastest links there are (networks: a tenth of it);
 * LATENCY_MOST is longer than a satellite hop; MEMORY_LEAST is the smallest memory that anybody would train
 * on. */
#define LINK_LEAST_BYTES_PER_S 1e4
#define LINK_MOST_BYTES_PER_S 1e13
#define LATENCY_MOST_S 0.7
#define WATTS_MOST 3.0 /* multiple of the maker's power that is plausible: peaks of milliseconds */
#define MEMORY_LEAST_BYTES ((uint64_t)16 << 20)
#define FORMATS_MAX 8u /* most catalogue entries without bfloat16 that the warning names */

struct doubts {
    const struct problem *problem;
    struct plan_answer *answer;
    uint32_t most, more; /* most: limit on warnings; more: warnings dropped beyond it */
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

static const struct block *doubts_block_of(const struct problem *p, enum profile_block kind)
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

/* Returns the peak FLOP/s of the device's own catalogue entry, or of the fastest entry of the device's kind.
 * Writes the entry's name to *of. */
static double peak_of(const struct planner_device *device, const char **of)
{
    const struct catalogue_entry *entry = device->like ? device->like : catalogue_extreme(device->kind, true);
    *of = entry ? entry->name : NULL;
    return entry ? catalogue_peak(entry) * threads_of(device) : 0;
}

/* Returns the device's own catalogue entry, or a lower bound for its kind: the plain CPU, or the slowest
 * card. NULL: the kind is not in the catalogue. */
static const struct catalogue_entry *slowest_of(const struct planner_device *device)
{
    if (device->like)
        return device->like;
    return strcmp(device->kind, "cpu") == 0 ? catalogue_find("cpu") : catalogue_extreme(device->kind, false);
}

static int rate_doubt(struct doubts *d, const struct planner_device *device, enum profile_block kind)
{
    const struct device_profile *profile = &device->profile;
    const struct block *block = doubts_block_of(d->problem, kind);
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
    if (slow && rate < least * (known ? PEAK_LEAST : 10 * PEAK_LEAST))
        return doubt(d,
                     "profile of %s: a %s of %.0f tokens forward in %g s is %.3g FLOP/s, %.2g of the peak of "
                     "%s (%.3g): "
                     "are its times in seconds?",
                     device->name, names[kind], largest->tokens, largest->forward_s, rate, rate / least,
                     slow->name, least);
    return 0;
}

/* Returns the tokens of a measured point that count as work: all tokens, but for a head only the labelled
 * ones. */
static double doubts_tokens_worked(enum profile_block kind, const struct profile_point *point)
{
    return kind == PROFILE_HEAD ? point->labelled : point->tokens;
}

/* Warns about a measured point that has more work than another one, and yet takes clearly less time. */
static int fall_doubt(struct doubts *d, const struct planner_device *device, enum profile_block kind)
{
    struct noise_fall fall;
    double share = noise_fall(&device->profile, kind, &fall, d->err);
    const struct profile_point *less = &fall.less, *more = &fall.more;
    char t[4][32];
    if (share <= 0)
        return share < 0 ? -1 : 0;
    return doubt(d,
                 "profile of %s: a %s of %.0f tokens takes %s forward and %s backward, less than one of %.0f "
                 "(%s and %s); times that fall are levelled out",
                 device->name, names[kind], doubts_tokens_worked(kind, more),
                 units_seconds(t[0], more->forward_s), units_seconds(t[1], more->backward_s),
                 doubts_tokens_worked(kind, less), units_seconds(t[2], less->forward_s),
                 units_seconds(t[3], less->backward_s));
}

/* If bfloat16 is asked for, warns in one sentence about all cards that have no bfloat16 products by their
 * catalogue entries. */
static int format_doubt(struct doubts *d)
{
    const struct problem *p = d->problem;
    const struct catalogue_entry *said[FORMATS_MAX] = {NULL};
    char names_of[160] = "";
    uint32_t count = 0;
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
    }
    if (count == 0)
        return 0;
    return doubt(d, "computed in bf16, and %s %s no bfloat16 products: taken to compute at the float32 rate",
                 names_of, count == 1 ? "has" : "have");
}

static int link_doubt(struct doubts *d, const char *what, const char *of, bool network,
                      const struct cluster_link *link)
{
    double most = network ? LINK_MOST_BYTES_PER_S / 10 : LINK_MOST_BYTES_PER_S;
    char rate[32], latency[32];
    units_rate(rate, link->bytes_per_s);
    units_seconds(latency, link->latency_s);
    if (link->bytes_per_s < LINK_LEAST_BYTES_PER_S)
        return doubt(d, "%s%s: %.6g bytes/s is slower than a modem: is it bytes a second, not Gbit/s?", what,
                     of, link->bytes_per_s);
    if (link->bytes_per_s > most)
        return doubt(d, "%s%s: %s is faster than any %s: is it bytes a second?", what, of, rate,
                     network ? "network" : "link");
    return link->latency_s > LATENCY_MOST_S
               ? doubt(d, "%s%s: a latency of %s: is it seconds, not milliseconds?", what, of, latency)
               : 0;
}

/* Compares the speed, memory and power that are stated of a card with its maker's figures. */
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
    bool half = catalogue_rate(like, d->problem->workload->compute) == like->flops_16 * like->efficiency_16;
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

/* Says once of two nodes that neither can connect to the other. */
static int apart_doubt(struct doubts *d, const struct link_pair *pair)
{
    const struct cluster *c = d->problem->cluster;
    if (!cluster_apart(c, pair->from, pair->to) ||
        (pair->from > pair->to && cluster_link_known(c, pair->to, pair->from)))
        return 0;
    return doubt(d, "%s and %s cannot connect to each other: in no plan do their devices exchange anything",
                 c->nodes[pair->from].name, c->nodes[pair->to].name);
}

/* Warns about bandwidths, latencies and memory sizes of the cluster that seem to be in another unit. */
static int units_doubt(struct doubts *d)
{
    const struct cluster *c = d->problem->cluster;
    char of[560], has[32];
    if (link_doubt(d, "links.within", "", false, &c->within) < 0 ||
        link_doubt(d, "links.between", "", true, &c->between) < 0)
        return -1;
    for (uint32_t i = 0; i < c->link_count; i++) {
        const struct link_pair *pair = &c->links[i];
        snprintf(of, sizeof(of), "%s to %s", c->nodes[pair->from].name, c->nodes[pair->to].name);
        if ((pair->link.unreachable ? apart_doubt(d, pair)
                                    : link_doubt(d, "link ", of, pair->from != pair->to, &pair->link)) < 0)
            return -1;
    }
    for (uint32_t n = 0; n < c->node_count; n++) {
        const struct cluster_link card = {.bytes_per_s = c->nodes[n].nic_bytes_per_s};
        if (card.bytes_per_s > 0 && link_doubt(d, "nic_bytes_per_s of ", c->nodes[n].name, true, &card) < 0)
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

/* If some devices' times are estimated from the catalogue, says by what factor the catalogue is off for the
 * devices that were measured. */
static int catalogue_doubt(struct doubts *d)
{
    const struct problem *p = d->problem;
    const struct planner_device *least = NULL, *most = NULL;
    uint32_t estimated = 0, compared = 0;
    for (uint32_t i = 0; i < p->device_count; i++) {
        const struct planner_device *device = &p->cluster->devices[i];
        double ratio = device->profile.catalogue_ratio;
        estimated += p->usable[i] && !device->profile.present && device->like;
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

/* Warns if a device was measured beside other work, or its times varied between repeats. */
static int noise_doubt(struct doubts *d, const struct planner_device *device)
{
    const struct device_profile *profile = &device->profile;
    if (profile->waited_share > NOISE_WAITED_MOST &&
        doubt(d,
              "profile of %s: other programs took its cores for %.0f %% of the time of measuring; its "
              "times may be too long",
              device->name, 100 * profile->waited_share) < 0)
        return -1;
    return profile->spread > NOISE_SPREAD_MOST
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

/* Warns if the job may not run on as many devices as the plan has: it waits, or runs on fewer. */
static int count_doubt(struct doubts *d)
{
    const struct workload *w = d->problem->workload;
    const uint32_t has = d->answer->plan ? d->answer->plan->rank_count : 0;
    const char *many = has == 1 ? "" : "s";
    if (has > 0 && has < w->devices_least)
        return doubt(d,
                     "placement.count.least is %u, and the fastest plan here uses %u device%s: the job waits "
                     "for one that uses more; placement.kind (pipeline, data, …) asks for that",
                     w->devices_least, has, many);
    return w->devices_most > 0 && has > w->devices_most
               ? doubt(d, "placement.count.most is %u, and this plan uses %u device%s: the job runs on fewer",
                       w->devices_most, has, many)
               : 0;
}

int problem_doubts(const struct problem *problem, struct plan_answer *answer, struct err *err)
{
    static const enum profile_block blocks[] = {PROFILE_LAYER, PROFILE_HEAD};
    struct doubts d = {.problem = problem, .answer = answer, .most = DOUBTS_MAX, .err = err};
    answer->warnings = calloc(DOUBTS_MAX + 1, sizeof(*answer->warnings));
    if (!answer->warnings)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    if (count_doubt(&d) < 0 || units_doubt(&d) < 0 || length_doubt(&d) < 0 || format_doubt(&d) < 0 ||
        catalogue_doubt(&d) < 0)
        return -1;
    for (uint32_t i = 0; i < problem->device_count; i++) {
        const struct planner_device *device = &problem->cluster->devices[i];
        if (problem->usable[i] && device->profile.present && noise_doubt(&d, device) < 0)
            return -1;
        for (int k = 0; k < 2 && problem->usable[i] && device->profile.present; k++)
            if (rate_doubt(&d, device, blocks[k]) < 0 || fall_doubt(&d, device, blocks[k]) < 0)
                return -1;
    }
    d.most++;
    return d.more ? doubt(&d, "%u more doubts of this kind", d.more) : 0;
}
