/* The answer as a document and as text. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/units.h"
#include "planner/answer/insight.h"
#include "planner/answer/expert_words.h"
#include "planner/answer/answer.h"

/* Sets "like" where a device is estimated as a catalogue entry. Returns object. */
static json_t *liked(json_t *object, const char *like)
{
    if (object && like)
        json_object_set_new(object, "like", json_string(like));
    return object;
}

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
    json_t *all = json_pack(
        "{s:I,s:s,s:i,s:[i,i],s:I,s:f,s:o,s:I,s:I,s:I,s:o,s:f,s:b,s:I}", "rank", (json_int_t)number, "device",
        rank->device, "stage", rank->stage, "blocks", rank->block_begin, rank->block_end, "rows",
        (json_int_t)rank->rows, "state_share", rank->state_share, "experts", experts, "memory_bytes",
        (json_int_t)rank->memory_bytes, "memory_limit_bytes", (json_int_t)rank->memory_limit_bytes,
        "process_base_bytes", (json_int_t)rank->process_base_bytes, "memory", memory, "busy_s", rank->busy_s,
        "recompute", rank->recompute, "window", (json_int_t)rank->window);
    char held[96];
    expert_words(rank, held, sizeof(held));
    if (all && rank->expert_count) {
        json_object_set_new(all, "experts_held", json_string(held));
        json_object_set_new(all, "expert_ranges", expert_ranges_json(rank));
    }
    const struct plan_tensor *t = &rank->tensor;
    if (all && t->kv_head_end)
        json_object_set_new(all, "tensor",
                            json_pack("{s:[I,I],s:[I,I],s:[I,I]}", "kv_heads", (json_int_t)t->kv_head_begin,
                                      (json_int_t)t->kv_head_end, "columns", (json_int_t)t->column_begin,
                                      (json_int_t)t->column_end, "vocabulary",
                                      (json_int_t)t->vocabulary_begin, (json_int_t)t->vocabulary_end));
    json_t *ranges = all && rank->range_count ? json_array() : NULL;
    for (uint32_t i = 0; ranges && i < rank->range_count; i++)
        json_array_append_new(ranges, json_pack("[i,i]", rank->ranges[i].begin, rank->ranges[i].end));
    if (ranges)
        json_object_set_new(all, "block_ranges", ranges);
    return all;
}

/* NULL where there are no stages to have an order. */
static const char *schedule_words(const struct plan *plan)
{
    bool stages = false;
    for (uint32_t r = 1; r < plan->rank_count; r++)
        stages = stages || plan->ranks[r].stage != plan->ranks[0].stage;
    return stages ? plan_schedule_name(plan->schedule) : NULL;
}

/* "0..9", or "0..4, 9..13" of a rank with several ranges; with dots where there are too many. */
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

static json_t *alternative_json(const struct plan_alternative *a)
{
    bool fits = a->verdict == VERDICT_FITS;
    json_t *line = json_pack(
        "{s:s,s:s?,s:s,s:o,s:o,s:o,s:I,s:I,s:o}", "placement", plan_placement_name(a->placement), "device",
        a->device, "verdict", fits ? "fits" : "does not fit", "step_s",
        fits ? json_real(a->step_s) : json_null(), "needs_bytes", json_integer((json_int_t)a->needs_bytes),
        "has_bytes", json_integer((json_int_t)a->has_bytes), "stages", (json_int_t)a->stages,
        "micro_batch_rows", (json_int_t)a->micro_batch_rows, "runnable",
        fits ? json_boolean(a->runnable) : json_null());
    if (a->schedule)
        json_object_set_new(line, "schedule", json_string(a->schedule));
    return liked(line, a->like);
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
        const char *like = r < answer->rank_like_count ? answer->rank_like[r] : NULL;
        if (json_array_append_new(ranks, liked(rank_json(&plan->ranks[r], r), like)) < 0) {
            json_decref(ranks);
            return NULL;
        }
    }
    return json_pack("{s:s,s:s,s:s?,s:f,s:f,s:f,s:f,s:I,s:I,s:o,s:s,s:f,s:{s:f,s:f,s:f},s:b}", "verdict",
                     "fits", "placement", plan_placement_name(plan->placement), "schedule",
                     schedule_words(plan), "step_s", answer->step_s, "tokens_per_s", answer->tokens_per_s,
                     "lower_bound_s", answer->lower_bound_s, "plan_s", answer->plan_s, "micro_batch_rows",
                     (json_int_t)plan->rows_bound, "micro_batches", (json_int_t)plan->micro_batch_count,
                     "ranks", ranks, "digest", plan->digest, "uncertainty", answer->uncertainty, "rests_on",
                     "measured", plan->costs.share_measured, "imported", plan->costs.share_imported,
                     "estimated", plan->costs.share_estimated, "links_emulated", plan->costs.links_emulated);
}

json_t *answer_to_json(const struct plan_answer *answer, struct err *err)
{
    json_t *root = plan_part(answer), *alternatives = json_array(), *left_out = json_array();
    int bad = !root || !alternatives || !left_out;
    for (uint32_t i = 0; !bad && i < answer->alternative_count; i++)
        bad |= json_array_append_new(alternatives, alternative_json(&answer->alternatives[i]));
    for (uint32_t i = 0; !bad && i < answer->left_out_count; i++) {
        const struct plan_left_out *l = &answer->left_out[i];
        json_t *line = json_pack("{s:s,s:s,s:o}", "device", l->device, "why", l->why, "step_s_with",
                                 l->step_s_with > 0 ? json_real(l->step_s_with) : json_null());
        bad |= json_array_append_new(left_out, liked(line, l->like));
    }
    if (bad) {
        json_decref(root);
        json_decref(alternatives);
        json_decref(left_out);
        err_set(err, ERR_NOMEM, "planner: out of memory for the answer");
        return NULL;
    }
    json_object_set_new(root, "runnable", json_boolean(answer->runnable));
    if (answer->parameters)
        json_object_set_new(root, "model",
                            json_pack("{s:I,s:I}", "parameters", (json_int_t)answer->parameters, "trained",
                                      (json_int_t)answer->trained));
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
    if (answer->plan) {
        double cost = answer->cost_per_million_tokens, kwh = answer->kwh_per_million_tokens;
        json_object_set_new(root, "cost_per_million_tokens", cost > 0 ? json_real(cost) : json_null());
        json_object_set_new(root, "kwh_per_million_tokens", kwh > 0 ? json_real(kwh) : json_null());
        json_object_set_new(root, "basis",
                            json_string(answer->plan->costs.text ? answer->plan->costs.text : ""));
    }
    if (answer->insight && plan_insight_json(answer->insight, root, err) < 0) {
        json_decref(root);
        return NULL;
    }
    return root;
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
