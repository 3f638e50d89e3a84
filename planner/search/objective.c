/* Sets of devices, each searched for time. */
#include "planner/search/objective.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/units.h"
#include "planner/answer/insight.h"
#include "planner/answer/verdict.h"
#include "planner/cost/memory.h"
#include "planner/cost/price.h"
#include "planner/given/cluster_change.h"
#include "planner/search/left_out.h"
#include "planner/search/placement.h"
#include "program/codec.h"

#define ALL_SETS 5u         /* devices up to which every set is searched */
#define SEARCHES_MAX 64u    /* beyond, at most so many */
#define MANY_DEVICES 24u    /* and from so many on, whose searches take a tenth of a second each, */
#define SEARCHES_MANY 9u    /* so many */
#define MANY_PART 40u       /* with such a part of the evaluations each */
#define MANY_ENUMERATED 4u  /* up to so many chosen are enumerated in the end */
#define PROMISES 0.95       /* of the best: a set that could at best be better by less is not searched then */
#define LEFT_OUT_WEIGHED 6u /* devices left out that are searched with */
#define EVALUATIONS_LEAST 1000u
#define BETTER 1e-9 /* relative */
#define WARP_STRENGTH_COUNT 2

/* Devices are slowed down by (their joules a row / the least)^strength. */
static const double warp_strengths[WARP_STRENGTH_COUNT] = {1, 3};

struct sets {
    const struct workload *workload; /* as asked */
    const struct cluster *cluster;
    struct plan_options options; /* of a search of one set */
    struct problem problem;      /* of all usable devices */
    uint32_t count, *device;     /* the usable ones */
    double *speed;               /* [count]: rows a second, alone, memory and links ignored */
    bool *chosen;                /* [count]: the best set so far */
    struct plan_answer *best;
    double best_score;
    double lower_bound_s;           /* of all usable devices together */
    double fastest_s, fastest_paid; /* the fastest plan seen, and what it would cost: a million tokens */
    uint32_t searches;
    uint32_t tried[SEARCHES_MAX]; /* sets of fewer than MANY_DEVICES, as bits */
    uint32_t tried_count;
    bool warps; /* are hungry devices slowed down? */
    int place;  /* a placement that is asked for beyond what the workload says, or −1 */
    struct err *err;
};

/* What a plan is judged by: its step's price, or its energy; infinite when there is none. */
static double score_of(const struct sets *s, const struct plan_answer *answer)
{
    double score = 0;
    if (!answer || !answer->plan)
        return INFINITY;
    if (s->workload->objective == OBJECTIVE_COST)
        score = plan_step_price(s->cluster, answer->plan, answer->step_s);
    else
        score = plan_step_joules(s->cluster, answer->plan, answer->step_s);
    return score > 0 ? score : INFINITY;
}

/* Every usable device must say what is weighed. */
static int known_check(const struct sets *s)
{
    bool cost = s->workload->objective == OBJECTIVE_COST;
    for (uint32_t i = 0; i < s->count; i++) {
        const struct device *d = &s->cluster->devices[s->device[i]];
        if (cost && d->price_per_hour <= 0)
            return err_set(s->err, ERR_INVALID,
                           "objective cost: device %s has no price_per_hour, so what a plan with it costs is "
                           "not known (give one, or exclude it)",
                           d->name);
        if (!cost && d->watts <= 0 && d->like && d->like->board_watts > 0)
            return err_set(
                s->err, ERR_INVALID,
                "objective energy: device %s has no watts, so what a plan with it takes is not known (give "
                "them, or exclude it; %s draws at most %.0f)",
                d->name, d->like->name, d->like->board_watts);
        if (!cost && d->watts <= 0)
            return err_set(s->err, ERR_INVALID,
                           "objective energy: device %s has no watts, so what a plan with it takes is not "
                           "known (give them, or exclude it)",
                           d->name);
    }
    return 0;
}

/* One search for time over a set, on this cluster (the real one, or a warped copy of it). *answer is NULL
 * when the set cannot be planned for; the reason is told only of the first, the set of all. */
static int set_search(struct sets *s, const struct cluster *cluster, const bool *in,
                      const struct plan_options *options, struct plan_answer **answer)
{
    struct workload w = *s->workload;
    struct err why = {0};
    w.objective = OBJECTIVE_TIME;
    w.place = s->place >= 0 ? s->place : w.place;
    w.device_count = 0;
    w.devices = calloc((size_t)s->count + 1, sizeof(*w.devices));
    *answer = NULL;
    if (!w.devices)
        return err_set(s->err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t i = 0; i < s->count; i++) {
        if (in[i])
            w.devices[w.device_count++] = s->cluster->devices[s->device[i]].name;
    }
    int result = plan_search(&w, cluster, options, answer, &why);
    free(w.devices);
    if (result < 0 && (why.code == ERR_NOMEM || !s->best)) {
        *s->err = why;
        return -1;
    }
    s->searches++;
    return 0;
}

/* A plan found on a warped cluster, priced on the real one. */
static int reprice(struct sets *s, struct plan_answer *answer)
{
    double seconds;
    if (!answer || !answer->plan)
        return 0;
    for (uint32_t r = 0; r < answer->plan->rank_count; r++) {
        uint32_t d = cluster_device_find(s->cluster, answer->plan->ranks[r].device);
        answer->plan->ranks[r].memory_limit_bytes = s->cluster->devices[d].memory_limit_bytes;
    }
    if (price_plan(&s->problem, answer->plan, s->problem.step_count, &seconds, s->err) < 0)
        return -1;
    answer->step_s = seconds;
    answer->tokens_per_s = answer->plan->costs.tokens_per_s;
    return plan_seal(answer->plan, s->err);
}

/* Takes the answer if it is better than the best so far, else destroys it. */
static void consider(struct sets *s, const bool *in, struct plan_answer *answer, double *score)
{
    double each = score_of(s, answer);
    if (!s->best && answer)
        s->lower_bound_s = answer->lower_bound_s;
    *score = each < *score ? each : *score;
    if (answer && answer->plan && (s->fastest_s == 0 || answer->step_s < s->fastest_s)) {
        answer_value(s->cluster, answer);
        s->fastest_s = answer->step_s;
        s->fastest_paid = s->workload->objective == OBJECTIVE_COST ? answer->cost_per_million_tokens
                                                                   : answer->kwh_per_million_tokens;
    }
    bool better = s->best == NULL || each < s->best_score * (1 - BETTER) ||
                  (each <= s->best_score && answer && s->best->plan && answer->step_s < s->best->step_s);
    if (!answer || !better) {
        plan_answer_destroy(answer);
        return;
    }
    plan_answer_destroy(s->best);
    s->best = answer;
    s->best_score = each;
    memcpy(s->chosen, in, s->count * sizeof(*in));
}

/* No plan that uses all of a set can cost or take less: its devices' prices for the least time in which they
 * could do the rows together, or the energy of the most frugal one for all of them. */
static double bound_of(const struct sets *s, const bool *in)
{
    double rows = s->problem.mean_step.rows, price = 0, speed = 0, least = INFINITY;
    for (uint32_t i = 0; i < s->count; i++) {
        const struct device *d = &s->cluster->devices[s->device[i]];
        if (!in[i] || s->speed[i] <= 0)
            continue;
        price += d->price_per_hour / 3600;
        speed += s->speed[i];
        least = fmin(least, d->watts / s->speed[i]);
    }
    if (speed <= 0)
        return 0;
    return s->workload->objective == OBJECTIVE_COST ? price * rows / speed : least * rows;
}

/* The set searched as it is and, for energy, with the hungry devices slowed down. *score: the best of it. */
static int set_try(struct sets *s, const bool *in, double *score)
{
    struct plan_answer *answer = NULL;
    *score = INFINITY;
    if (s->best && bound_of(s, in) >= s->best_score) /* cannot be better, so not looked at */
        return 0;
    if (set_search(s, s->cluster, in, &s->options, &answer) < 0)
        return -1;
    consider(s, in, answer, score);
    uint32_t members = 0;
    for (uint32_t i = 0; i < s->count; i++)
        members += in[i];
    /* a device alone does all the work however slow; and what did not help is not done more strongly */
    bool helped = s->warps && members > 1;
    for (int k = 0; k < WARP_STRENGTH_COUNT && helped; k++) {
        double least = INFINITY, before = *score;
        struct cluster *warped = cluster_copy(s->cluster, s->err);
        if (!warped)
            return -1;
        for (uint32_t i = 0; i < s->count; i++) {
            if (in[i] && s->speed[i] > 0)
                least = fmin(least, s->cluster->devices[s->device[i]].watts / s->speed[i]);
        }
        for (uint32_t i = 0; i < s->count; i++) {
            struct device *d = &warped->devices[s->device[i]];
            double joules = s->speed[i] > 0 ? d->watts / s->speed[i] : least;
            d->speed /= pow(joules / least, warp_strengths[k]);
        }
        answer = NULL;
        int result = set_search(s, warped, in, &s->options, &answer);
        if (result == 0)
            result = reprice(s, answer);
        cluster_destroy(warped);
        if (result < 0) {
            plan_answer_destroy(answer);
            return -1;
        }
        consider(s, in, answer, score);
        helped = *score < before;
    }
    return 0;
}

static int sets_all(struct sets *s)
{
    bool in[ALL_SETS] = {false};
    double score;
    s->warps = s->workload->objective == OBJECTIVE_ENERGY;
    memset(in, true, s->count * sizeof(*in)); /* all of them first: its refusal is the answer's */
    if (set_try(s, in, &score) < 0)
        return -1;
    for (uint32_t i = 0; i < s->count && s->count > 1;
         i++) { /* then alone: what is cheap spares much searching */
        memset(in, 0, sizeof(in));
        in[i] = true;
        if (set_try(s, in, &score) < 0)
            return -1;
    }
    for (uint32_t mask = (1u << s->count) - 2; mask > 0; mask--) {
        if ((mask & (mask - 1)) == 0)
            continue;
        for (uint32_t i = 0; i < s->count; i++)
            in[i] = mask >> i & 1;
        if (set_try(s, in, &score) < 0)
            return -1;
    }
    return 0;
}

struct worth { /* of a device: work for its price, or for its power */
    uint32_t at;
    double value;
};

static int worth_compare(const void *left, const void *right)
{
    const struct worth *a = left, *b = right;
    if (a->value != b->value)
        return a->value > b->value ? -1 : 1;
    return a->at < b->at ? -1 : a->at > b->at;
}

/* The first n of an order. */
static void set_first(const struct sets *s, const struct worth *order, uint32_t n, bool *in)
{
    for (uint32_t i = 0; i < s->count; i++)
        in[order[i].at] = i < n;
}

/* The least number of them whose memory holds the weights together. */
static uint32_t least_holding(const struct sets *s, const struct worth *order)
{
    double needs = (double)memory_gathered_bytes(&s->problem, 0, s->problem.block_count), has = 0;
    for (uint32_t n = 0; n < s->count; n++) {
        has += (double)s->cluster->devices[s->device[order[n].at]].memory_limit_bytes;
        if (has >= needs)
            return n + 1;
    }
    return s->count;
}

/* Of many devices only the best for their price: as many as hold the weights, then by steps more while that
 * may pay, then between the best number and its neighbours. */
static int sets_many(struct sets *s, const struct worth *order, bool *in)
{
    uint32_t below = least_holding(s, order), best = below, above = s->count;
    double score, least = INFINITY;
    int result = 0;
    for (uint32_t n = below, last = n; n < s->count && result == 0 && s->searches + 2 < SEARCHES_MANY;
         last = n, n += n < 3 ? 1 : n / 3) {
        set_first(s, order, n, in);
        if (bound_of(s, in) >= s->best_score * PROMISES)
            break;
        result = set_try(s, in, &score);
        if (score < least) {
            least = score;
            below = last;
            best = n;
            above = n + n / 3;
        }
    }
    while (result == 0 && s->searches < SEARCHES_MANY && (best - below > 1 || above - best > 1)) {
        bool up = above - best > best - below;
        uint32_t n = up ? (best + above) / 2 : (below + best) / 2;
        n = n < s->count ? n : s->count;
        set_first(s, order, n, in);
        result = set_try(s, in, &score);
        bool better = score < least;
        least = better ? score : least;
        if (up) {
            below = better ? best : below;
            above = better ? above : n;
        } else {
            above = better ? best : above;
            below = better ? below : n;
        }
        best = better ? n : best;
    }
    s->warps = s->workload->objective == OBJECTIVE_ENERGY;
    if (result == 0 && s->warps && s->best->plan) {
        memcpy(in, s->chosen, s->count * sizeof(*in));
        result = set_try(s, in, &score);
    }
    return result;
}

/* A set of fewer than MANY_DEVICES, unless it was tried before, or there were enough. `promising`: unless no
 * plan of it could be much better, either. */
static int set_once(struct sets *s, const bool *in, bool promising, double *score)
{
    uint32_t set = 0;
    for (uint32_t i = 0; i < s->count; i++)
        set |= (uint32_t)in[i] << i;
    for (uint32_t k = 0; k < s->tried_count; k++) {
        if (s->tried[k] == set)
            return 0;
    }
    if (set == 0 || s->searches >= SEARCHES_MAX || s->tried_count == SEARCHES_MAX ||
        (promising && bound_of(s, in) >= s->best_score * PROMISES))
        return 0;
    s->tried[s->tried_count++] = set;
    return set_try(s, in, score);
}

/* The devices of each machine, whose links are fast. */
static int sets_machines(struct sets *s, bool *in)
{
    int result = 0;
    for (uint32_t node = 0; node < s->cluster->node_count && result == 0; node++) {
        uint32_t members = 0;
        for (uint32_t i = 0; i < s->count; i++) {
            in[i] = s->cluster->devices[s->device[i]].node == node;
            members += in[i];
        }
        double score;
        if (members > 1)
            result = set_once(s, in, true, &score);
    }
    return result;
}

/* The best set with one more or one less while it pays; then with one in another's place. */
static int sets_near(struct sets *s, const struct worth *order, bool *in)
{
    int result = 0;
    double score;
    for (bool moved = true; moved && result == 0 && s->searches < SEARCHES_MAX;) {
        double before = s->best_score;
        for (uint32_t i = s->count; i-- > 0 && result == 0;) {
            memcpy(in, s->chosen, s->count * sizeof(*in));
            in[order[i].at] = !in[order[i].at];
            result = set_once(s, in, false, &score);
        }
        moved = s->best_score < before * (1 - BETTER);
        for (uint32_t k = 0; k < s->count * s->count && !moved && result == 0; k++) {
            uint32_t out = order[s->count - 1 - k / s->count].at, instead = order[k % s->count].at;
            memcpy(in, s->chosen, s->count * sizeof(*in));
            if (!in[out] || in[instead])
                continue;
            in[out] = false;
            in[instead] = true;
            result = set_once(s, in, true, &score);
            moved = s->best_score < before * (1 - BETTER);
        }
    }
    return result;
}

/* The best devices for their price, 1, 2, 3, 4, 6, 8, 12 … of them, and those of each machine; then what is
 * near the best of these. */
static int sets_some(struct sets *s)
{
    struct worth *order = calloc((size_t)s->count + 1, sizeof(*order));
    bool *in = calloc((size_t)s->count + 1, sizeof(*in));
    bool many = s->count >= MANY_DEVICES;
    double score;
    int result = order && in ? 0 : err_set(s->err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t i = 0; i < s->count && result == 0; i++) {
        const struct device *d = &s->cluster->devices[s->device[i]];
        double paid = s->workload->objective == OBJECTIVE_COST ? d->price_per_hour : d->watts;
        order[i] = (struct worth){.at = i, .value = s->speed[i] / paid};
        in[i] = true;
    }
    s->warps = s->workload->objective == OBJECTIVE_ENERGY && !many;
    if (result == 0)
        result = set_try(s, in, &score);
    if (result == 0)
        qsort(order, s->count, sizeof(*order), worth_compare);
    if (result == 0 && many)
        result = sets_many(s, order, in);
    for (uint32_t n = 1; n < s->count && result == 0 && !many && s->searches < SEARCHES_MAX / 2;
         n += n < 4 ? 1 : (n + 2) / 3) {
        set_first(s, order, n, in);
        result = set_once(s, in, false, &score);
    }
    if (result == 0 && !many)
        result = sets_machines(s, in);
    if (result == 0 && !many)
        result = sets_near(s, order, in);
    free(order);
    free(in);
    return result;
}

/* A set's devices all cost the same however long each works, but who waits draws less: of the best set, the
 * placement that is a little slower may be the more frugal one. */
static int placements_weigh(struct sets *s)
{
    int result = 0;
    bool *in = calloc((size_t)s->count + 1, sizeof(*in));
    if (!in)
        return err_set(s->err, ERR_NOMEM, "planner: out of memory");
    memcpy(in, s->chosen, s->count * sizeof(*in));
    s->warps = s->count < MANY_DEVICES;
    for (int kind = 0; kind < PLACE_COUNT && result == 0; kind++) {
        double score;
        s->place = kind;
        result = set_try(s, in, &score);
    }
    s->place = -1;
    free(in);
    return result;
}

static bool plan_uses(const struct plan *plan, const char *device)
{
    for (uint32_t r = 0; plan && r < plan->rank_count; r++) {
        if (strcmp(plan->ranks[r].device, device) == 0)
            return true;
    }
    return false;
}

/* What the answer would cost with each usable device that it does without. */
static int left_out_weigh(struct sets *s, struct plan_answer *answer)
{
    bool *in = calloc((size_t)s->count + 1, sizeof(*in));
    uint32_t weighed = 0;
    char why[160];
    int result = in ? 0 : err_set(s->err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t k = 0; k < answer->left_out_count && result == 0; k++) {
        struct plan_left_out *line = &answer->left_out[k];
        struct plan_answer *with = NULL;
        uint32_t i = 0;
        while (i < s->count && strcmp(s->cluster->devices[s->device[i]].name, line->device) != 0)
            i++;
        if (i == s->count)
            continue;
        snprintf(why, sizeof(why), "not needed");
        if (s->count <= LEFT_OUT_PROPOSED && weighed++ < LEFT_OUT_WEIGHED) {
            for (uint32_t j = 0; j < s->count; j++)
                in[j] = j == i || plan_uses(answer->plan, s->cluster->devices[s->device[j]].name);
            result = set_search(s, s->cluster, in, &s->options, &with);
        }
        if (with && with->plan && plan_uses(with->plan, line->device)) {
            bool cost = s->workload->objective == OBJECTIVE_COST;
            answer_value(s->cluster, with);
            line->step_s_with = with->step_s;
            snprintf(why, sizeof(why), "%.4g%s per million tokens with it, %.4g without",
                     cost ? with->cost_per_million_tokens : with->kwh_per_million_tokens, cost ? "" : " kWh",
                     cost ? answer->cost_per_million_tokens : answer->kwh_per_million_tokens);
        }
        plan_answer_destroy(with);
        free(line->why);
        line->why = strdup(why);
        if (!line->why)
            result = err_set(s->err, ERR_NOMEM, "planner: out of memory");
    }
    free(in);
    return result;
}

/* "The fastest found takes 12 s a step, at 0.14." */
static int fastest_say(const struct sets *s, struct plan_answer *answer)
{
    char step[32], text[2400];
    if (s->fastest_s >= answer->step_s * (1 - BETTER))
        return 0;
    snprintf(text, sizeof(text), "%s The fastest found takes %s a step, at %.4g%s.", answer->words,
             units_seconds(step, s->fastest_s), s->fastest_paid,
             s->workload->objective == OBJECTIVE_COST ? "" : " kWh");
    free(answer->words);
    answer->words = strdup(text);
    return answer->words ? 0 : err_set(s->err, ERR_NOMEM, "planner: out of memory");
}

/* The whole answer: alternatives of the chosen set, the plan with the best score, words. */
static int finish(struct sets *s, const struct plan_options *options, struct plan_answer **out)
{
    struct plan_answer *answer = NULL;
    struct plan_options last = *options;
    last.programs = true;
    last.insight = false;
    if (s->count >= MANY_DEVICES) {
        uint32_t chosen = 0;
        for (uint32_t i = 0; i < s->count; i++)
            chosen += s->chosen[i];
        last.evaluations = s->options.evaluations;
        last.exhaustive_off = chosen > MANY_ENUMERATED;
    }
    if (set_search(s, s->cluster, s->chosen, &last, &answer) < 0)
        return -1;
    if (!answer || !answer->plan || score_of(s, answer) > s->best_score) { /* what was found before stands */
        struct plan_answer *found = s->best;
        if (answer && found->plan) {
            struct plan *plan = answer->plan;
            answer->plan = found->plan;
            found->plan = plan;
            answer->step_s = found->step_s;
            answer->tokens_per_s = found->tokens_per_s;
            answer->uncertainty = found->uncertainty;
            answer->runnable = found->runnable;
        } else if (!answer) {
            answer = found;
            s->best = NULL;
        }
    }
    answer->lower_bound_s = s->lower_bound_s;
    if (answer->plan)
        answer->plan->costs.lower_bound_s = s->lower_bound_s;
    answer_value(s->cluster, answer);
    if (!options->brief) {
        for (uint32_t i = 0; i < answer->left_out_count; i++) {
            free(answer->left_out[i].device);
            free(answer->left_out[i].why);
        }
        free(answer->left_out);
        answer->left_out = NULL;
        answer->left_out_count = 0;
    }
    *out = answer;
    if ((!options->brief && left_out_fill(&s->problem, NULL, answer, s->err) < 0) ||
        (!options->brief && left_out_weigh(s, answer) < 0))
        return -1;
    if (!answer->plan)
        return 0;
    if (answer_words(&s->problem, NULL, answer, s->err) < 0 || fastest_say(s, answer) < 0 ||
        (options->insight && plan_insight_fill(s->workload, s->cluster, options, answer, s->err) < 0))
        return -1;
    for (uint32_t r = 0; r < answer->plan->rank_count && !options->programs && !options->insight; r++) {
        for (int kind = 0; kind < PROGRAM_KINDS; kind++)
            program_fini(&answer->plan->ranks[r].programs[kind]);
    }
    return plan_seal(answer->plan, s->err);
}

/* Rows a second at the best micro-batch, as the lower bound of a step takes them. */
static double best_speed(const struct problem *p, uint32_t device)
{
    double best = 0;
    for (uint32_t rows = 1; rows <= p->workload->batch_rows; rows *= 2) {
        struct cost_load load = {.rows = rows,
                                 .tokens = p->mean_row.tokens * rows,
                                 .sum_sq = p->mean_row.sum_sq * rows,
                                 .labelled = p->mean_row.labelled * rows};
        double seconds = problem_seconds(p, device, 0, p->block_count, COST_FORWARD, &load) +
                         problem_seconds(p, device, 0, p->block_count, COST_BACKWARD, &load);
        best = seconds > 0 ? fmax(best, rows / seconds) : best;
    }
    return best;
}

static int sets_init(struct sets *s)
{
    uint32_t devices = s->cluster->device_count;
    s->device = calloc((size_t)devices + 1, sizeof(*s->device));
    s->speed = calloc((size_t)devices + 1, sizeof(*s->speed));
    s->chosen = calloc((size_t)devices + 1, sizeof(*s->chosen));
    if (!s->device || !s->speed || !s->chosen)
        return err_set(s->err, ERR_NOMEM, "planner: out of memory");
    const struct problem *p = &s->problem;
    for (uint32_t d = 0; d < devices; d++) {
        if (!p->usable[d])
            continue;
        s->speed[s->count] = best_speed(p, d);
        s->device[s->count++] = d;
    }
    return known_check(s);
}

int objective_search(const struct workload *workload, const struct cluster *cluster,
                     const struct plan_options *options, struct plan_answer **answer, struct err *err)
{
    struct sets s = {.workload = workload, .cluster = cluster, .options = *options, .place = -1, .err = err};
    uint64_t all = options->evaluations ? options->evaluations : EVALUATIONS_DEFAULT;
    *answer = NULL;
    if (problem_init(&s.problem, workload, cluster, err) < 0)
        return -1;
    int result = sets_init(&s);
    s.options.programs = s.options.brief = true;
    s.options.insight = false;
    s.options.evaluations = all / 8 > EVALUATIONS_LEAST ? all / 8 : EVALUATIONS_LEAST;
    if (s.count >= MANY_DEVICES) {
        s.options.evaluations = all / MANY_PART;
        s.options.exhaustive_off = true; /* of few devices; of the chosen ones in the end */
    }
    if (result == 0)
        result = s.count <= ALL_SETS ? sets_all(&s) : sets_some(&s);
    bool energy = workload->objective == OBJECTIVE_ENERGY && workload->place < 0;
    if (result == 0 && energy && s.best && s.best->plan && s.count > 1)
        result = placements_weigh(&s);
    if (result == 0)
        result = finish(&s, options, answer);
    if (result < 0) {
        plan_answer_destroy(*answer);
        *answer = NULL;
    }
    plan_answer_destroy(s.best);
    free(s.device);
    free(s.speed);
    free(s.chosen);
    problem_fini(&s.problem);
    return result;
}
