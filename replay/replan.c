/* Decides between the present plan and a new one: one search that starts from the present plan, and the cost
 * of moving state to the new plan's devices. */
#include "replay/replan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/units.h"
#include "planner/cost/price.h"
#include "planner/cost/problem.h"
#include "planner/given/cluster.h"
#include "program/codec.h"

/* Per trained parameter: its value and two moments, fp32; gradients are not moved. */
#define MOVED_BYTES_A_TRAINED 12.0

/* --- migration --- */

struct device_blocks { /* the blocks that a device has */
    float *share;      /* [block_count] share of each block on the device, 0: nothing */
};

struct migration {
    const struct problem *problem;
    const struct plan *to;
    struct arena arena;         /* the arrays below */
    struct device_blocks *held; /* [device_count]: the blocks that each device has by the old plan */
    double *out_s, *in_s, *node_out_s, *node_in_s;
    double bytes;
};

static int held_fill(struct migration *m, const struct plan *from, struct err *err)
{
    const struct cluster *cluster = m->problem->cluster;
    for (uint32_t r = 0; r < from->rank_count; r++) {
        uint32_t d = cluster_device_find(cluster, from->ranks[r].device);
        if (d == UINT32_MAX) /* the device is gone with all its blocks */
            continue;
        if (!m->held[d].share && !ARENA_ARRAY(&m->arena, m->held[d].share, (size_t)m->problem->block_count))
            return err_set(err, ERR_NOMEM, "replan: out of memory");
        for (int32_t b = 0; b < m->problem->block_count; b++)
            if (plan_rank_holds(&from->ranks[r], b, b + 1))
                m->held[d].share[b] += (float)from->ranks[r].state_share;
    }
    return 0;
}

/* Adds the transfer of a block to device `to` from the device with the fastest link among those that have it.
 */
static void block_move(struct migration *m, uint32_t to, int32_t block, double bytes)
{
    const struct cluster *cluster = m->problem->cluster;
    double best = INFINITY;
    uint32_t source = UINT32_MAX;
    for (uint32_t d = 0; d < m->problem->device_count; d++) {
        if (d == to || !m->held[d].share || m->held[d].share[block] <= 0)
            continue;
        struct problem_link link = problem_link(m->problem, d, to);
        if (link.latency_s + bytes / link.bytes_per_s < best) {
            best = link.latency_s + bytes / link.bytes_per_s;
            source = d;
        }
    }
    if (source == UINT32_MAX || bytes <= 0)
        return;
    uint32_t a = cluster_node_find(cluster, cluster_device_node(cluster, source));
    uint32_t b = cluster_node_find(cluster, cluster_device_node(cluster, to));
    m->bytes += bytes;
    m->out_s[source] += best;
    m->in_s[to] += best;
    if (a != b) { /* all devices of a node send through one card */
        m->node_out_s[a] += best;
        m->node_in_s[b] += best;
    }
}

static void rank_move(struct migration *m, const struct plan_rank *rank)
{
    const struct problem *p = m->problem;
    bool full = p->workload->method == METHOD_FULL;
    uint32_t d = cluster_device_find(p->cluster, rank->device);
    if (d == UINT32_MAX)
        return;
    for (int32_t b = 0; b < p->block_count; b++) {
        const struct block *block = &p->blocks.blocks[b];
        double trained = MOVED_BYTES_A_TRAINED * (double)(full ? block->params : block->lora_params);
        double base = full ? 0 : workload_matrix_bytes(p->workload) * (double)block->params;
        double had = m->held[d].share ? m->held[d].share[b] : 0;
        if (!plan_rank_holds(rank, b, b + 1))
            continue;
        double more = rank->state_share > had ? rank->state_share - had : 0;
        block_move(m, d, b, more * trained + (had > 0 ? 0 : base));
    }
}

static double replan_largest(const double *list, uint32_t count)
{
    double most = 0;
    for (uint32_t i = 0; i < count; i++)
        most = list[i] > most ? list[i] : most;
    return most;
}

int replan_migration(const struct workload *workload, const struct cluster *cluster, const struct plan *from,
                     const struct plan *to, uint64_t *bytes, double *seconds, struct err *err)
{
    struct problem problem;
    struct workload w = *workload;
    w.objective = OBJECTIVE_TIME;
    if (problem_init(&problem, &w, cluster, err) < 0)
        return -1;
    uint32_t devices = cluster_device_count(cluster), nodes = cluster_node_count(cluster);
    struct migration m = {.problem = &problem, .to = to};
    ARENA_ARRAY(&m.arena, m.held, devices);
    ARENA_ARRAY(&m.arena, m.out_s, devices);
    ARENA_ARRAY(&m.arena, m.in_s, devices);
    ARENA_ARRAY(&m.arena, m.node_out_s, nodes);
    ARENA_ARRAY(&m.arena, m.node_in_s, nodes);
    int result = -1;
    if (m.arena.failed)
        err_set(err, ERR_NOMEM, "replan: out of memory");
    else if (from->block_count != problem.block_count || to->block_count != problem.block_count)
        err_set(err, ERR_INVALID, "replan: a plan of %d blocks and one of %d, for a model of %d",
                from->block_count, to->block_count, problem.block_count);
    else
        result = held_fill(&m, from, err);
    for (uint32_t r = 0; r < to->rank_count && result == 0; r++)
        rank_move(&m, &to->ranks[r]);
    if (result == 0) {
        *bytes = (uint64_t)m.bytes;
        *seconds = fmax(fmax(replan_largest(m.out_s, devices), replan_largest(m.in_s, devices)),
                        fmax(replan_largest(m.node_out_s, nodes), replan_largest(m.node_in_s, nodes)));
    }
    arena_fini(&m.arena);
    problem_fini(&problem);
    return result;
}

/* --- what the run measured --- */

/* Returns a copy of the running plan whose busy_s are the compute seconds of the cluster's tables. The plan
 * itself is not changed, because its digest covers these times. */
static struct plan *priced_copy(const struct workload *workload, const struct cluster *cluster,
                                const struct plan *plan, double *step_s, struct err *err)
{
    struct problem problem;
    struct workload w = *workload;
    json_t *json = plan_to_json(plan, err);
    struct plan *copy = json ? plan_from_json(json, err) : NULL;
    json_decref(json);
    w.objective = OBJECTIVE_TIME;
    int result = copy ? problem_init(&problem, &w, cluster, err) : -1;
    if (result == 0) {
        result = price_plan(&problem, copy, UINT32_MAX, step_s, err);
        problem_fini(&problem);
    }
    if (result == 0)
        return copy;
    plan_destroy(copy);
    return NULL;
}

int replan_factors(const struct workload *workload, const struct cluster *cluster, const struct plan *plan,
                   const double *compute_s, double *factors, struct err *err)
{
    bool all = true;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        factors[r] = 1;
        all = all && cluster_device_find(cluster, plan->ranks[r].device) != UINT32_MAX;
    }
    if (!all)
        return 0;
    double step_s = 0;
    struct plan *priced = priced_copy(workload, cluster, plan, &step_s, err);
    if (!priced)
        return -1;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        double busy = 0, measured = 0;
        for (uint32_t k = 0; k < plan->rank_count; k++) {
            if (compute_s[k] > 0 && strcmp(plan->ranks[k].device, plan->ranks[r].device) == 0) {
                busy += priced->ranks[k].busy_s;
                measured += compute_s[k];
            }
        }
        if (busy > 0 && measured > 0 && fmax(busy, measured) >= REPLAN_PART * step_s)
            factors[r] = busy / measured;
    }
    plan_destroy(priced);
    return 0;
}

/* --- the decision --- */

static int words_set(const struct replan_input *input, struct replan_decision *d, const char *reason,
                     struct err *err)
{
    char text[900], old[32], now[32], saves[32], costs[32], moved[32];
    units_seconds(old, d->old_step_s);
    units_seconds(now, d->new_step_s);
    units_seconds(saves, d->saves_s > 0 ? d->saves_s : 0);
    units_seconds(costs, d->costs_s);
    units_bytes(moved, d->migration_bytes);
    unsigned long long steps = input->steps_left;
    if (d->verdict == REPLAN_STUCK)
        snprintf(text, sizeof(text), "Stop: the plan that runs cannot go on (%s), and nothing fits.", reason);
    else if (d->verdict == REPLAN_MUST)
        snprintf(text, sizeof(text),
                 "Move: the plan that runs cannot go on (%s); the new one takes %s per step, moving %s and "
                 "starting again %s.",
                 reason, now, moved, costs);
    else if (d->verdict == REPLAN_MOVE)
        snprintf(text, sizeof(text),
                 "Move: %s per step becomes %s (%.0f %% less), which over %llu steps saves %s; moving %s and "
                 "starting again takes %s.",
                 old, now, 100 * d->gain, steps, saves, moved, costs);
    else if (!d->plan)
        snprintf(text, sizeof(text), "Stay: nothing faster than %s per step was found.", old);
    else if (d->gain < REPLAN_GAIN)
        snprintf(text, sizeof(text),
                 "Stay: %s per step could be %s, %.1f %% less; under %.0f %% is not worth it.", old, now,
                 100 * d->gain, 100 * REPLAN_GAIN);
    else if (d->saves_s <= d->costs_s)
        snprintf(
            text, sizeof(text),
            "Stay: %s per step could be %s, but the %llu steps left would save only %s, and moving %s and "
            "starting again takes %s.",
            old, now, steps, saves, moved, costs);
    else
        snprintf(
            text, sizeof(text),
            "Stay for now: %s per step could be %s (%.0f %% less), seen %u time%s in a row; %u are needed.",
            old, now, 100 * d->gain, d->windows, d->windows == 1 ? "" : "s", REPLAN_WINDOWS);
    d->words = strdup(text);
    return d->words ? 0 : err_set(err, ERR_NOMEM, "replan: out of memory");
}

static bool same_plan(const struct plan *a, const struct plan *b)
{
    return *a->digest && strcmp(a->digest, b->digest) == 0;
}

/* Fills all fields of the decision but verdict and words; the answer owns the new plan until this returns. */
static int replay_weigh(const struct replan_input *input, struct plan_answer *answer,
                        struct replan_decision *d, struct err *err)
{
    d->old_step_s = answer->from_step_s;
    d->old_corrected = answer->from_corrected;
    d->new_step_s = answer->plan ? answer->step_s : 0;
    if (!answer->plan)
        return 0;
    bool kept = d->old_step_s > 0 && (d->new_step_s >= d->old_step_s || same_plan(input->old, answer->plan));
    if (kept) {
        d->new_step_s = d->old_step_s;
        return 0;
    }
    d->plan = answer->plan;
    answer->plan = NULL;
    if (replan_migration(input->workload, input->cluster, input->old, d->plan, &d->migration_bytes,
                         &d->migration_s, err) < 0)
        return -1;
    d->costs_s = d->migration_s + input->restart_s;
    if (d->old_step_s > 0) {
        d->gain = 1 - d->new_step_s / d->old_step_s;
        d->saves_s = (d->old_step_s - d->new_step_s) * (double)input->steps_left;
    }
    return 0;
}

/* Extracts "left/cpu0 is no longer there" from "The plan given cannot be kept: left/cpu0 is no longer
 * there." */
static void reason_of(const struct plan_answer *answer, char *text, size_t size)
{
    const char *reason = answer->from_words ? strstr(answer->from_words, ": ") : NULL;
    snprintf(text, size, "%s", reason ? reason + 2 : "it does not fit its devices");
    size_t length = strlen(text);
    if (length && text[length - 1] == '.')
        text[length - 1] = '\0';
}

int replan_weigh(const struct replan_input *input, struct plan_answer *answer, struct replan_state *state,
                 struct replan_decision *decision, struct err *err)
{
    char why[400];
    *decision = (struct replan_decision){0};
    if (!isfinite(input->restart_s) || input->restart_s < 0)
        return err_set(err, ERR_INVALID, "replan: a restart of %g s", input->restart_s);
    int result = replay_weigh(input, answer, decision, err);
    if (decision->old_step_s <= 0)
        decision->verdict = decision->plan ? REPLAN_MUST : REPLAN_STUCK;
    decision->windows = decision->plan && decision->gain >= REPLAN_GAIN ? state->windows + 1 : 0;
    if (decision->old_step_s > 0 && decision->windows >= REPLAN_WINDOWS &&
        decision->saves_s > decision->costs_s)
        decision->verdict = REPLAN_MOVE;
    reason_of(answer, why, sizeof(why));
    if (result == 0)
        result = words_set(input, decision, why, err);
    if (result < 0) {
        replan_decision_fini(decision);
        return -1;
    }
    state->windows = decision->verdict == REPLAN_STAY ? decision->windows : 0;
    return 0;
}

int replan_decide(const struct replan_input *input, struct replan_state *state,
                  struct replan_decision *decision, struct err *err)
{
    struct plan_options options = input->options ? *input->options : (struct plan_options){0};
    struct workload w = *input->workload;
    struct plan_answer *answer = NULL;
    *decision = (struct replan_decision){0};
    options.from = input->old;
    options.programs = options.brief = true;
    options.insight = false;
    w.objective = OBJECTIVE_TIME;
    int result = plan_search(&w, input->cluster, &options, &answer, err);
    if (result == 0)
        result = replan_weigh(input, answer, state, decision, err);
    plan_answer_destroy(answer);
    return result;
}

void replan_decision_fini(struct replan_decision *decision)
{
    plan_destroy(decision->plan);
    free(decision->words);
    *decision = (struct replan_decision){0};
}

json_t *replan_to_json(const struct replan_decision *d, struct err *err)
{
    static const char *const verdicts[] = {
        [REPLAN_STAY] = "stay", [REPLAN_MOVE] = "move", [REPLAN_MUST] = "must", [REPLAN_STUCK] = "stuck"};
    json_t *json =
        json_pack("{s:s,s:f,s:f,s:f,s:f,s:f,s:f,s:I,s:I,s:s}", "verdict", verdicts[d->verdict], "old_step_s",
                  d->old_step_s, "new_step_s", d->new_step_s, "gain", d->gain, "saves_s", d->saves_s,
                  "costs_s", d->costs_s, "migration_s", d->migration_s, "migration_bytes",
                  (json_int_t)d->migration_bytes, "windows", (json_int_t)d->windows, "words", d->words);
    if (json && d->old_corrected > 0)
        json_object_set_new(json, "old_corrected", json_real(d->old_corrected));
    if (!json)
        err_set(err, ERR_NOMEM, "replan: out of memory");
    return json;
}
