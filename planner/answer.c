/* The answer as a document and as text. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/units.h"
#include "planner/expert.h"
#include "planner/placement.h"
#include "planner/search.h"

static json_t *rank_json(const struct plan_rank *rank, uint32_t number)
{
    json_t *experts = json_null();
    if (rank->expert_count) {
        uint32_t total = 0;
        for (uint32_t i = 0; i < rank->expert_count; i++)
            total += (uint32_t)(rank->experts[i].end - rank->experts[i].begin);
        experts = json_integer(total);
    }
    json_t *memory = json_object();
    for (int p = 0; memory && p < PURPOSE_COUNT; p++)
        json_object_set_new(memory, plan_purpose_name(p), json_integer((json_int_t)rank->memory_peak[p]));
    json_t *all = json_pack("{s:I,s:s,s:i,s:[i,i],s:I,s:f,s:o,s:I,s:I,s:I,s:o,s:f,s:b,s:I}", "rank",
                     (json_int_t)number, "device", rank->device, "stage", rank->stage, "blocks",
                     rank->block_begin, rank->block_end, "rows", (json_int_t)rank->rows, "state_share",
                     rank->state_share, "experts", experts, "memory_bytes", (json_int_t)rank->memory_bytes,
                     "memory_limit_bytes", (json_int_t)rank->memory_limit_bytes, "process_base_bytes",
                     (json_int_t)rank->process_base_bytes, "memory", memory, "busy_s", rank->busy_s,
                     "recompute", rank->recompute, "window", (json_int_t)rank->window);
    if (all && rank->expert_count)
        json_object_set_new(all, "expert_ranges", expert_ranges_json(rank));
    return all;
}

static json_t *alternative_json(const struct plan_alternative *a)
{
    bool fits = a->verdict == VERDICT_FITS;
    return json_pack("{s:s,s:s?,s:s,s:o,s:o,s:o,s:I,s:I}", "placement", plan_placement_name(a->placement),
                     "device", a->device, "verdict", fits ? "fits" : "does not fit", "step_s",
                     fits ? json_real(a->step_s) : json_null(), "needs_bytes",
                     json_integer((json_int_t)a->needs_bytes), "has_bytes",
                     json_integer((json_int_t)a->has_bytes), "stages", (json_int_t)a->stages,
                     "micro_batch_rows", (json_int_t)a->micro_batch_rows);
}

static json_t *plan_part(const struct plan_answer *answer)
{
    const struct plan *plan = answer->plan;
    if (!plan)
        return json_pack("{s:s,s:n,s:n,s:n,s:f,s:f,s:n,s:n,s:[],s:I}", "verdict", "does not fit", "placement",
                         "step_s", "tokens_per_s", "lower_bound_s", answer->lower_bound_s, "plan_s",
                         answer->plan_s, "micro_batch_rows", "micro_batches", "ranks", "shortfall_bytes",
                         (json_int_t)answer->shortfall_bytes);
    json_t *ranks = json_array();
    for (uint32_t r = 0; ranks && r < plan->rank_count; r++) {
        if (json_array_append_new(ranks, rank_json(&plan->ranks[r], r)) < 0) {
            json_decref(ranks);
            return NULL;
        }
    }
    return json_pack("{s:s,s:s,s:f,s:f,s:f,s:f,s:I,s:I,s:o,s:s,s:f,s:{s:f,s:f,s:f},s:b}", "verdict", "fits",
                     "placement", plan_placement_name(plan->placement), "step_s", answer->step_s,
                     "tokens_per_s", answer->tokens_per_s, "lower_bound_s", answer->lower_bound_s, "plan_s",
                     answer->plan_s, "micro_batch_rows", (json_int_t)plan->rows_bound, "micro_batches",
                     (json_int_t)plan->micro_batch_count, "ranks", ranks, "digest", plan->digest,
                     "uncertainty", answer->uncertainty, "rests_on", "measured", plan->costs.share_measured,
                     "imported", plan->costs.share_imported, "estimated", plan->costs.share_estimated,
                     "links_emulated", plan->costs.links_emulated);
}

json_t *answer_to_json(const struct plan_answer *answer, struct err *err)
{
    json_t *root = plan_part(answer), *alternatives = json_array(), *left_out = json_array();
    int bad = !root || !alternatives || !left_out;
    for (uint32_t i = 0; !bad && i < answer->alternative_count; i++)
        bad |= json_array_append_new(alternatives, alternative_json(&answer->alternatives[i]));
    for (uint32_t i = 0; !bad && i < answer->left_out_count; i++) {
        const struct plan_left_out *l = &answer->left_out[i];
        bad |= json_array_append_new(
            left_out, json_pack("{s:s,s:s,s:o}", "device", l->device, "why", l->why, "step_s_with",
                                l->step_s_with > 0 ? json_real(l->step_s_with) : json_null()));
    }
    if (bad) {
        json_decref(root);
        json_decref(alternatives);
        json_decref(left_out);
        err_set(err, ERR_NOMEM, "planner: out of memory for the answer");
        return NULL;
    }
    json_object_set_new(root, "runnable", json_boolean(answer->runnable));
    if (answer->from_words)
        json_object_set_new(root, "from",
                            json_pack("{s:o,s:s}", "step_s",
                                      answer->from_step_s > 0 ? json_real(answer->from_step_s) : json_null(),
                                      "words", answer->from_words));
    json_object_set_new(root, "words", json_string(answer->words ? answer->words : ""));
    json_object_set_new(root, "alternatives", alternatives);
    json_object_set_new(root, "left_out", left_out);
    json_t *warnings = json_array();
    for (uint32_t i = 0; i < answer->warning_count; i++)
        json_array_append_new(warnings, json_string(answer->warnings[i]));
    json_object_set_new(root, "warnings", warnings);
    return root;
}

static int ranks_print(const struct plan *plan, struct buf *out, struct err *err)
{
    char have[32], limit[32], busy[32];
    if (buf_printf(out, err, "\n%-5s %-20s %-12s %9s %6s %23s %10s\n", "rank", "device", "blocks", "rows",
                   "window", "memory of limit", "busy") < 0)
        return -1;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        const struct plan_rank *rank = &plan->ranks[r];
        char blocks[32], experts[96];
        expert_words(rank, experts, sizeof(experts));
        snprintf(blocks, sizeof(blocks), "%d..%d", rank->block_begin, rank->block_end);
        if (buf_printf(out, err, "%-5u %-20s %-12s %9u %6u %10s of %9s %10s%s%s%s\n", r, rank->device, blocks,
                       rank->rows, rank->window, units_bytes(have, rank->memory_bytes),
                       units_bytes(limit, rank->memory_limit_bytes), units_seconds(busy, rank->busy_s),
                       experts[0] ? "  " : "", experts, rank->recompute ? "  recomputes" : "") < 0)
            return -1;
    }
    return 0;
}

static int alternatives_print(const struct plan_answer *answer, struct buf *out, struct err *err)
{
    char needs[32], has[32], step[32];
    for (uint32_t i = 0; i < answer->alternative_count; i++) {
        const struct plan_alternative *a = &answer->alternatives[i];
        const char *where = a->device ? a->device : "";
        int result;
        if (i == 0 && buf_printf(out, err, "\notherwise\n") < 0)
            return -1;
        if (a->verdict == VERDICT_FITS)
            result = buf_printf(out, err, "  %-9s %-20s %s per step\n", plan_placement_name(a->placement),
                                where, units_seconds(step, a->step_s));
        else
            result = buf_printf(out, err, "  %-9s %-20s does not fit: needs %s, has %s\n",
                                plan_placement_name(a->placement), where, units_bytes(needs, a->needs_bytes),
                                units_bytes(has, a->has_bytes));
        if (result < 0)
            return -1;
    }
    return 0;
}

int answer_print(const struct plan_answer *answer, struct buf *out, struct err *err)
{
    char step[32];
    if (buf_printf(out, err, "%s\n", answer->words ? answer->words : "") < 0 ||
        (answer->from_words && buf_printf(out, err, "%s\n", answer->from_words) < 0))
        return -1;
    for (uint32_t i = 0; i < answer->warning_count; i++) {
        if (buf_printf(out, err, "warning: %s\n", answer->warnings[i]) < 0)
            return -1;
    }
    if (answer->plan) {
        const struct plan *plan = answer->plan;
        if (buf_printf(out, err,
                       "%s, %u micro-batches of %u rows; no placement can be faster than %s a step\n",
                       plan_placement_name(plan->placement), plan->micro_batch_count, plan->rows_bound,
                       units_seconds(step, answer->lower_bound_s)) < 0 ||
            ranks_print(plan, out, err) < 0)
            return -1;
    }
    if (alternatives_print(answer, out, err) < 0)
        return -1;
    for (uint32_t i = 0; i < answer->left_out_count; i++) {
        const struct plan_left_out *l = &answer->left_out[i];
        bool known = l->step_s_with > 0;
        if (buf_printf(out, err, "%s  %-20s %s%s%s\n", i == 0 ? "\nleft out\n" : "", l->device, l->why,
                       known ? ": " : "", known ? units_seconds(step, l->step_s_with) : "") < 0)
            return -1;
    }
    if (answer->plan && answer->plan->costs.text)
        return buf_printf(out, err, "\nrests on %s\n", answer->plan->costs.text);
    return 0;
}

static int program_lines(const struct plan *plan, const struct trace *trace, uint32_t rank, uint32_t lines,
                         struct buf *out, struct err *err)
{
    const struct plan_rank *r = &plan->ranks[rank];
    char have[32], limit[32], what[128], seconds[32];
    if (buf_printf(out, err, "%srank %u  %s   blocks %d..%d   %s of %s\n", rank ? "\n" : "", rank, r->device,
                   r->block_begin, r->block_end, units_bytes(have, r->memory_bytes),
                   units_bytes(limit, r->memory_limit_bytes)) < 0)
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
