/* Writes an answer's verdict in words: first the result, then numbers with units, then how uncertain the
 * numbers are. */
#include "planner/answer/verdict.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/units.h"
#include "model/shape/lora_sites.h"
#include "planner/cost/memory.h"
#include "planner/candidate/objective.h"
#include "planner/given/catalogue.h"
#include "planner/given/kernels.h"
#include "planner/kind/kind.h"

#define NAMED_LEFT_OUT 2u /* most left-out devices that the first sentence names */
/* A gain over one device below this share of the step's relative error is called uncertain. Most of the error
 * is common to both times, as they rest on the same estimates. Rule of thumb. */
#define CLOSE_CALL 0.15

void answer_value(const struct cluster *cluster, struct plan_answer *answer)
{
    answer->cost_per_million_tokens = answer->kwh_per_million_tokens = 0;
    if (!answer->plan || answer->tokens_per_s <= 0 || answer->step_s <= 0)
        return;
    double millions = answer->tokens_per_s * answer->step_s / 1e6;
    answer->cost_per_million_tokens = plan_step_price(cluster, answer->plan, answer->step_s) / millions;
    answer->kwh_per_million_tokens =
        plan_step_joules(cluster, answer->plan, answer->step_s) / OBJECTIVE_KWH / millions;
}

/* Appends to text[size]; words that do not fit into it are cut off. */
static void verdict_say(char *text, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void verdict_say(char *text, size_t size, const char *format, ...)
{
    size_t used = strlen(text);
    va_list list;
    va_start(list, format);
    vsnprintf(text + used, size - used, format, list);
    va_end(list);
}

/* If a demand of the specification cannot be met on any cluster, or on this one, writes why it cannot and
 * returns true. */
static bool asked_for_too_much(const struct problem *problem, char *text, size_t size)
{
    const struct workload *w = problem->workload;
    uint32_t usable = problem_usable_count(problem);
    struct err why = {0};
    /* shared: the placement splits a step's rows over devices (a parameter server may have only one worker)
     */
    bool shared = w->place == PLACE_DATA || w->place == PLACE_HYBRID;
    if (shared && w->batch_rows < 2)
        verdict_say(text, size,
                    "Does not fit: train.batch_rows is 1, and one row a step cannot be split over devices "
                    "(placement.kind: %s).",
                    plan_placement_name((enum plan_placement)w->place));
    else if (w->place == PLACE_HYBRID && w->micro_batch_rows >= w->batch_rows)
        verdict_say(text, size,
                    "Does not fit: a step of %u rows is one micro-batch (placement.micro_batch_rows is %u), "
                    "and groups of replicas share out whole ones (placement.kind: hybrid).",
                    w->batch_rows, w->micro_batch_rows);
    else if (w->stages > usable)
        verdict_say(text, size, "Does not fit: placement.stages is %u; %u device%s can be used.", w->stages,
                    usable, usable == 1 ? "" : "s");
    else if (w->place >= 0 && !kind_supports(kinds[w->place], problem, &why))
        verdict_say(text, size, "Does not fit: placement.kind is %s, and %s.",
                    plan_placement_name((enum plan_placement)w->place), why.text);
    else
        return false;
    return true;
}

static bool node_is_usable(const struct problem *problem, uint32_t node)
{
    for (uint32_t i = 0; i < problem->device_count; i++)
        if (problem->usable[i] && problem->cluster->devices[i].node == node)
            return true;
    return false;
}

/* Returns a link between two nodes with usable devices that cannot connect to each other, or NULL. */
static const struct link_pair *some_apart(const struct problem *problem)
{
    const struct cluster *cluster = problem->cluster;
    for (uint32_t i = 0; i < cluster->link_count && cluster->some_unreachable; i++) {
        const struct link_pair *pair = &cluster->links[i];
        if (cluster_apart(cluster, pair->from, pair->to) && node_is_usable(problem, pair->from) &&
            node_is_usable(problem, pair->to))
            return pair;
    }
    return NULL;
}

static void shortfall_say(const struct problem *problem, const struct shortage *shortages,
                          struct plan_answer *answer, char *text, size_t size)
{
    char step[32], other[32], third[32];
    uint64_t needs = 0, has = 0;
    uint32_t device = 0;
    enum plan_placement nearest = PLACE_SINGLE;
    char stages[64] = "";
    if (problem->workload->stages)
        snprintf(stages, sizeof(stages), ", stages: %u", problem->workload->stages);
    if (problem->workload->order)
        snprintf(stages + strlen(stages), sizeof(stages) - strlen(stages), ", schedule: %s",
                 plan_schedule_name((enum plan_schedule)(problem->workload->order - 1)));
    const struct link_pair *apart = some_apart(problem);
    if (asked_for_too_much(problem, text, size))
        return;
    for (int kind = 0; kind < PLACE_COUNT; kind++) {
        const struct shortage *lacks = &shortages[kind];
        if (problem->workload->place >= 0 && problem->workload->place != kind)
            continue;
        if (lacks->missing_bytes == 0 ||
            (answer->shortfall_bytes && lacks->missing_bytes >= answer->shortfall_bytes))
            continue;
        answer->shortfall_bytes = lacks->missing_bytes;
        needs = lacks->needs_bytes;
        has = lacks->has_bytes;
        device = lacks->device;
        nearest = (enum plan_placement)kind;
    }
    if (answer->shortfall_bytes && device == UINT32_MAX)
        verdict_say(
            text, size,
            "Does not fit: %s too little. The nearest placement (%s) needs %s of memory, and its devices "
            "together have %s.",
            units_bytes(third, answer->shortfall_bytes), plan_placement_name(nearest),
            units_bytes(step, needs), units_bytes(other, has));
    else if (answer->shortfall_bytes)
        verdict_say(text, size,
                    "Does not fit: the nearest placement (%s) needs %s%s on %s, which has %s: %s too little.",
                    plan_placement_name(nearest), nearest == PLACE_HYBRID ? "at least " : "",
                    units_bytes(step, needs), problem->cluster->devices[device].name, units_bytes(other, has),
                    units_bytes(third, answer->shortfall_bytes));
    else if (apart && problem->workload->place > (int)PLACE_SINGLE)
        verdict_say(
            text, size,
            "Does not fit: placement.kind is %s, and %s and %s cannot connect to each other (motley links): "
            "open the ports of one of them (docs/run-a-lab/network.md).",
            plan_placement_name((enum plan_placement)problem->workload->place),
            problem->cluster->nodes[apart->from].name, problem->cluster->nodes[apart->to].name);
    else if (problem->runnable_only && problem->workload->place > (int)PLACE_SINGLE)
        verdict_say(
            text, size,
            "Does not fit: nothing that workers of this release can run (--runnable) is possible here as "
            "placement.kind %s.",
            plan_placement_name((enum plan_placement)problem->workload->place));
    else
        verdict_say(
            text, size,
            "Does not fit: nothing that placement asks for is possible here (kind: %s%s; %u rows a step; "
            "devices to use: %u).",
            problem->workload->place >= 0 ? plan_placement_name((enum plan_placement)problem->workload->place)
                                          : "auto",
            stages, problem->workload->batch_rows, problem_usable_count(problem));
}

/* Writes the device's name with its catalogue entry, if there is one: "left/0 (rtx-3090)", "left/0 (k80,
 * planned only)". */
static const char *device_label(char out[384], const char *device, const char *like)
{
    const struct catalogue_entry *entry = like ? catalogue_find(like) : NULL;
    bool planned_only = entry && catalogue_runs(entry) == RUNS_PLANNED;
    snprintf(out, 384, "%.255s%s%.64s%s%s", device, like ? " (" : "", like ? like : "",
             planned_only ? ", planned only" : "", like ? ")" : "");
    return out;
}

static void left_out_say(const struct problem *problem, const struct plan_answer *answer, char *text,
                         size_t size)
{
    char with[32], without[32], name[384];
    uint32_t told = 0, others = 0;
    units_seconds(without, answer->step_s);
    for (uint32_t i = 0; i < answer->left_out_count; i++) {
        const struct plan_left_out *line = &answer->left_out[i];
        if (line->step_s_with <= 0)
            continue;
        if (told++ >= NAMED_LEFT_OUT) {
            others++;
            continue;
        }
        units_seconds(with, line->step_s_with);
        verdict_say(text, size, "; %s is left out: ", device_label(name, line->device, line->like));
        if (problem->workload->objective != OBJECTIVE_TIME)
            verdict_say(text, size, "%s", line->why);
        else if (strcmp(with, without) == 0)
            verdict_say(text, size, "with it no faster, %s", with);
        else
            verdict_say(text, size, "with it, %s", with);
    }
    if (others)
        verdict_say(text, size, "; so %s %u more", others == 1 ? "is" : "are", others);
}

/* Says how much faster the plan is than the fastest single device. */
static void alone_say(const struct plan_answer *answer, char *text, size_t size)
{
    const struct plan_alternative *best = NULL;
    char step[32], name[384];
    uint32_t alone = 0, small = 0;
    for (uint32_t i = 0; i < answer->alternative_count; i++) {
        const struct plan_alternative *line = &answer->alternatives[i];
        if (line->placement != PLACE_SINGLE || !line->device)
            continue;
        alone++;
        small += line->verdict != VERDICT_FITS && line->needs_bytes > line->has_bytes;
        if (line->verdict == VERDICT_FITS && line->step_s > 0 && (!best || line->step_s < best->step_s))
            best = line;
    }
    if (answer->plan->rank_count < 2 || alone == 0)
        return;
    if (!best) {
        verdict_say(text, size, "%s", small == alone ? " No device could do it alone." : "");
        return;
    }
    double times = best->step_s / answer->step_s;
    if (times < 1)
        return;
    verdict_say(text, size, " %.2f times as fast as %s alone (%s)%s.", times,
                device_label(name, best->device, best->like), units_seconds(step, best->step_s),
                times - 1 < CLOSE_CALL * answer->uncertainty ? ", less than such estimates can promise" : "");
}

/* Returns the first device of the plan that no worker of this release runs on, or NULL. */
static const struct planner_device *planned_only(const struct problem *problem, const struct plan *plan)
{
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        uint32_t d = cluster_device_find(problem->cluster, plan->ranks[r].device);
        if (d != UINT32_MAX && problem->planned_only[d])
            return &problem->cluster->devices[d];
    }
    return NULL;
}

/* Says that workers of this release cannot run the plan, and which plan they can run. */
static void forecast_say(const struct problem *problem, const struct plan_answer *answer, char *text,
                         size_t size)
{
    const struct plan_alternative *best = NULL;
    const struct planner_device *device = planned_only(problem, answer->plan);
    char step[32];
    if (device)
        verdict_say(text, size, " No worker of this release runs on %s (%s): it is a forecast", device->name,
                    device->like->name);
    else
        verdict_say(text, size, " Workers of this release cannot run it yet (%s): it is a forecast",
                    answer->plan->schedule > SCHEDULE_GPIPE ? plan_schedule_name(answer->plan->schedule)
                                                            : plan_placement_name(answer->plan->placement));
    for (uint32_t i = 0; i < answer->alternative_count; i++) {
        const struct plan_alternative *line = &answer->alternatives[i];
        if (line->runnable && line->verdict == VERDICT_FITS && (!best || line->step_s < best->step_s))
            best = line;
    }
    if (best)
        verdict_say(text, size, "; what they can run (--runnable) takes at most %s, as %s",
                    units_seconds(step, best->step_s), plan_placement_name(best->placement));
    verdict_say(text, size, ".");
}

/* Writes a rate rounded to three digits, which is more than a prediction knows. */
static const char *tokens_text(char text[32], double tokens_per_s)
{
    const double unit = tokens_per_s >= 1000 ? pow(10, floor(log10(tokens_per_s)) - 2) : 1;
    snprintf(text, 32, "%.0f", unit * round(tokens_per_s / unit));
    return text;
}

/* Says what an open workload is computed in, and what that saves of what the objective counts. */
static void precision_say(const struct workload *w, char *text, size_t size)
{
    const double times = w->fp32_times;
    if (!(times > 0))
        return;
    verdict_say(text, size, ", computed in %s; ", plan_dtype_name((enum plan_dtype)w->compute));
    if (isinf(times))
        verdict_say(text, size, "in fp32 nothing fits");
    else
        verdict_say(text, size,
                    w->objective == OBJECTIVE_COST     ? "fp32 would cost %.*f times as much"
                    : w->objective == OBJECTIVE_ENERGY ? "fp32 would take %.*f times the energy"
                                                       : "fp32 would take %.*f times as long",
                    times < 1.95 ? 2 : 1, times);
}

static void plan_say(const struct problem *problem, const struct plan_answer *answer, char *text, size_t size)
{
    const struct plan_costs *costs = &answer->plan->costs;
    char step[32], rate[32];
    verdict_say(text, size, "Uses %u of %u device%s: %s per step, %s tokens/s", answer->plan->rank_count,
                problem->device_count, problem->device_count == 1 ? "" : "s",
                units_seconds(step, answer->step_s), tokens_text(rate, answer->tokens_per_s));
    precision_say(problem->workload, text, size);
    left_out_say(problem, answer, text, size);
    verdict_say(text, size, ".");
    if (problem->workload->objective == OBJECTIVE_TIME)
        alone_say(answer, text, size);
    if (problem->workload->objective == OBJECTIVE_COST && answer->cost_per_million_tokens > 0)
        verdict_say(text, size, " %.4g per million tokens, the least found.",
                    answer->cost_per_million_tokens);
    if (problem->workload->objective == OBJECTIVE_ENERGY && answer->kwh_per_million_tokens > 0)
        verdict_say(text, size, " %.4g kWh per million tokens, the least found.",
                    answer->kwh_per_million_tokens);
    if (answer->uncertainty >= ANSWER_SHARE_TOLD && costs->share_estimated >= ANSWER_SHARE_TOLD)
        verdict_say(text, size, " ±%.0f %%: %.0f %% of the time is estimated, not measured.",
                    100 * answer->uncertainty, 100 * costs->share_estimated);
    else if (answer->uncertainty >= ANSWER_SHARE_TOLD && costs->share_imported >= ANSWER_SHARE_TOLD)
        verdict_say(text, size, " ±%.0f %%: %.0f %% of the time is from published figures.",
                    100 * answer->uncertainty, 100 * costs->share_imported);
    else if (answer->uncertainty >= ANSWER_SHARE_TOLD)
        verdict_say(text, size, " ±%.0f %%: the devices were measured while other work ran there.",
                    100 * answer->uncertainty);
    if (!answer->runnable)
        forecast_say(problem, answer, text, size);
}

static const char *verdict_like_of(const struct cluster *cluster, const char *device)
{
    uint32_t d = device ? cluster_device_find(cluster, device) : UINT32_MAX;
    bool estimated = d != UINT32_MAX && cluster->devices[d].like && !cluster->devices[d].profile.present;
    return estimated ? cluster->devices[d].like->name : NULL;
}

/* Fills in the catalogue entries that the devices' times are estimated from: of the plan's ranks, the
 * alternatives and the devices left out. */
static int likes_fill(const struct cluster *cluster, struct plan_answer *answer, struct err *err)
{
    uint32_t ranks = answer->plan ? answer->plan->rank_count : 0;
    const char **likes = calloc((size_t)ranks + 1, sizeof(*likes));
    if (!likes)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t r = 0; r < ranks; r++)
        likes[r] = verdict_like_of(cluster, answer->plan->ranks[r].device);
    free(answer->rank_like);
    answer->rank_like = likes;
    answer->rank_like_count = ranks;
    for (uint32_t i = 0; i < answer->alternative_count; i++)
        answer->alternatives[i].like = verdict_like_of(cluster, answer->alternatives[i].device);
    for (uint32_t i = 0; i < answer->left_out_count; i++)
        answer->left_out[i].like = verdict_like_of(cluster, answer->left_out[i].device);
    return 0;
}

/* Describes the training method in the words of a job's specification. */
static void method_say(const struct workload *w, char *text, size_t size)
{
    static const char *const bases[] = {[BASE_FP32] = "fp32",
                                        [BASE_BF16] = "bf16",
                                        [BASE_FP16] = "fp16",
                                        [BASE_NF4] = "nf4",
                                        [BASE_PACKED] = "packed"};
    static const char *const computes[] = {
        [COMPUTE_FP32] = "fp32", [COMPUTE_BF16] = "bf16", [COMPUTE_FP16] = "fp16"};
    static const enum plan_dtype own[] = {
        [COMPUTE_FP32] = PLAN_F32, [COMPUTE_BF16] = PLAN_BF16, [COMPUTE_FP16] = PLAN_F16};
    const char *moments = w->moments8 ? ", adamw8bit" : "",
               *where = w->moments_on_host ? ", moments on the host" : "";
    const char *between = w->boundary == own[w->compute] ? NULL : plan_dtype_name(w->boundary);
    uint32_t least = w->lora_rank, most = w->lora_rank;
    char ranks[32];
    if (w->lora.ways > 0)
        lora_sites_ranks(&w->lora, &least, &most);
    snprintf(ranks, sizeof(ranks), least == most ? "rank %u" : "ranks %u to %u", least, most);
    if (w->method == METHOD_FULL)
        snprintf(text, size, "full%s%s, computed in %s%s%s", moments, where, computes[w->compute],
                 between ? ", between ranks in " : "", between ? between : "");
    else
        snprintf(text, size, "lora of %s, base %s%s%s, computed in %s%s%s", ranks, bases[w->base], moments,
                 where, computes[w->compute], between ? ", between ranks in " : "", between ? between : "");
}

int answer_words(const struct problem *problem, const struct shortage *shortages, struct plan_answer *answer,
                 struct err *err)
{
    char text[2048] = "";
    if (likes_fill(problem->cluster, answer, err) < 0)
        return -1;
    if (answer->plan)
        plan_say(problem, answer, text, sizeof(text));
    else
        shortfall_say(problem, shortages, answer, text, sizeof(text));
    method_say(problem->workload, answer->method, sizeof(answer->method));
    answer->parameters = problem->blocks.params;
    answer->trained = memory_trained(problem, 0, problem->block_count);
    free(answer->words);
    answer->words = strdup(text);
    return answer->words ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
}
