/* Saying what was found: short first, numbers with units, doubt where there is some. */
#include "planner/verdict.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/units.h"

#define NAMED_LEFT_OUT 2u /* devices left out that the first sentence names */

double plan_step_price(const struct cluster *cluster, const struct plan *plan, double step_s)
{
    double per_hour = 0;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        uint32_t d = cluster_device_find(cluster, plan->ranks[r].device);
        if (d == UINT32_MAX || cluster->devices[d].price_per_hour <= 0)
            return 0;
        per_hour += cluster->devices[d].price_per_hour;
    }
    return per_hour / 3600 * step_s;
}

double plan_step_joules(const struct cluster *cluster, const struct plan *plan, double step_s)
{
    double joules = 0;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        uint32_t d = cluster_device_find(cluster, plan->ranks[r].device);
        double busy = plan->ranks[r].busy_s, idle = step_s > busy ? step_s - busy : 0;
        if (d == UINT32_MAX || cluster->devices[d].watts <= 0)
            return 0;
        joules += cluster->devices[d].watts * busy + cluster->devices[d].idle_watts * idle;
    }
    return joules;
}

void answer_value(const struct cluster *cluster, struct plan_answer *answer)
{
    answer->cost_per_million_tokens = answer->kwh_per_million_tokens = 0;
    if (!answer->plan || answer->tokens_per_s <= 0 || answer->step_s <= 0)
        return;
    double millions = answer->tokens_per_s * answer->step_s / 1e6;
    answer->cost_per_million_tokens = plan_step_price(cluster, answer->plan, answer->step_s) / millions;
    answer->kwh_per_million_tokens =
        plan_step_joules(cluster, answer->plan, answer->step_s) / 3.6e6 / millions;
}

/* Appends to text[size] as far as there is room. */
static void say(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void say(char *text, size_t size, const char *format, ...)
{
    size_t used = strlen(text);
    va_list list;
    va_start(list, format);
    vsnprintf(text + used, size - used, format, list);
    va_end(list);
}

static void shortfall_say(const struct problem *problem, const struct choice_list *lists,
                          struct plan_answer *answer, char *text, size_t size)
{
    char step[32], other[32], third[32];
    uint64_t needs = 0, has = 0;
    uint32_t device = 0;
    if (problem->workload->place == PLACE_DATA && problem->workload->batch_rows < 2) {
        say(text, size,
            "Does not fit: train.batch_rows is 1, and one row a step cannot be split over devices "
            "(placement.kind: data).");
        return;
    }
    for (int kind = 0; kind < PLACE_COUNT && lists; kind++) {
        const struct choice_list *list = &lists[kind];
        if (list->shortfall_bytes == 0 ||
            (answer->shortfall_bytes && list->shortfall_bytes >= answer->shortfall_bytes))
            continue;
        answer->shortfall_bytes = list->shortfall_bytes;
        needs = list->needs_bytes;
        has = list->has_bytes;
        device = list->shortfall_device;
    }
    if (answer->shortfall_bytes)
        say(text, size, "Does not fit: the nearest placement needs %s on %s, which has %s: %s too little.",
            units_bytes(step, needs), problem->cluster->devices[device].name, units_bytes(other, has),
            units_bytes(third, answer->shortfall_bytes));
    else
        say(text, size, "Does not fit: no placement of the kind asked for is possible here.");
}

static void left_out_say(const struct plan_answer *answer, char *text, size_t size)
{
    char with[32];
    uint32_t named = 0, others = 0;
    for (uint32_t i = 0; i < answer->left_out_count; i++) {
        const struct plan_left_out *line = &answer->left_out[i];
        if (line->step_s_with <= 0)
            continue;
        if (named++ < NAMED_LEFT_OUT)
            say(text, size, "; %s is left out: with it, %s", line->device,
                units_seconds(with, line->step_s_with));
        else
            others++;
    }
    if (others)
        say(text, size, "; so %s %u more", others == 1 ? "is" : "are", others);
}

static void plan_say(const struct problem *problem, const struct plan_answer *answer, char *text, size_t size)
{
    const struct plan_costs *costs = &answer->plan->costs;
    char step[32];
    say(text, size, "Fits on %u of %u device%s. %s per step, %.0f tokens/s", answer->plan->rank_count,
        problem->device_count, problem->device_count == 1 ? "" : "s", units_seconds(step, answer->step_s),
        answer->tokens_per_s);
    left_out_say(answer, text, size);
    say(text, size, ".");
    if (problem->workload->objective == OBJECTIVE_COST && answer->cost_per_million_tokens > 0)
        say(text, size, " %.4g per million tokens, the least found.", answer->cost_per_million_tokens);
    if (problem->workload->objective == OBJECTIVE_ENERGY && answer->kwh_per_million_tokens > 0)
        say(text, size, " %.4g kWh per million tokens, the least found.", answer->kwh_per_million_tokens);
    if (answer->uncertainty >= 0.005 && costs->share_estimated > 0)
        say(text, size, " ±%.0f %%: %.0f %% of the time is estimated, not measured.",
            100 * answer->uncertainty, 100 * costs->share_estimated);
    else if (answer->uncertainty >= 0.005)
        say(text, size, " ±%.0f %%: %.0f %% of the time rests on numbers of others.",
            100 * answer->uncertainty, 100 * costs->share_imported);
    if (!answer->runnable)
        say(text, size, " Workers of this release cannot run it yet (%s): it is a forecast.",
            answer->plan->schedule > SCHEDULE_GPIPE ? plan_schedule_name(answer->plan->schedule)
                                                    : plan_placement_name(answer->plan->placement));
}

int answer_words(const struct problem *problem, const struct choice_list *lists, struct plan_answer *answer,
                 struct err *err)
{
    char text[1024] = "";
    if (answer->plan)
        plan_say(problem, answer, text, sizeof(text));
    else
        shortfall_say(problem, lists, answer, text, sizeof(text));
    free(answer->words);
    answer->words = strdup(text);
    return answer->words ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
}
