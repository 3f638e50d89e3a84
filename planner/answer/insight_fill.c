/* Finds what improvements save by planning for clusters with one change. Tried are a faster link, for every
 * link between nodes that the plan uses, and for every device more memory, more speed and one more device
 * like it. What a faster resource saves with the same plan is at most the time that the critical path spends
 * on it, so the resources with the most time are tried first and get searches; for the others the same plan
 * is priced at the new costs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/array.h"
#include "planner/answer/answer_private.h"
#include "planner/answer/insight.h"
#include "planner/cost/price.h"
#include "planner/given/cluster_change.h"
#include "planner/simulate/timeline.h"

#define EVALUATIONS_LEAST 500u /* least evaluations with which a search is started */
#define DEVICES_SEARCHED 8u    /* most devices of a cluster in which every improvement gets a search */
#define SEARCHES_LARGE 12u     /* most searches in clusters of more than LEFT_OUT_TRIED devices */
/* most nodes of a cluster for whose unused links improvements are tried, too */
#define NODES_ALL_LINKS 5u
#define INSTRUCTIONS_MAX (1u << 21) /* plans with more instructions in all get no insight */

struct ask { /* one improvement to try */
    enum insight_kind kind;
    uint32_t device, node_a, node_b;
    double weight; /* seconds of the critical path that the improvement might shorten, for sorting */
};

struct insight_run {
    const struct workload *workload;
    const struct cluster *cluster;
    const struct plan_options *options;
    struct plan_answer *answer;
    struct plan_insight *insight;
    const struct plan *plan; /* the analysed plan, with its programs */
    struct ask *asks;
    uint32_t ask_count;
    size_t ask_capacity, share_capacity;
    uint64_t evaluations;
    double base_s;  /* seconds of a step of the plan on the unchanged cluster, priced as plan_reprice does */
    double again_s; /* seconds of a step that a further search on the unchanged cluster finds; what this gains
                       is not credited to any improvement. 0: not searched */
    struct err *err;
};

static int insight_fill_no_memory(struct insight_run *run)
{
    return err_set(run->err, ERR_NOMEM, "insight: out of memory");
}

/* --- the critical path and each rank's time --- */

static int share_add(struct insight_run *run, const char *what, const char *where, double seconds)
{
    struct plan_insight *in = run->insight;
    for (uint32_t i = 0; i < in->share_count; i++) {
        if (strcmp(in->shares[i].what, what) == 0 && strcmp(in->shares[i].where, where) == 0) {
            in->shares[i].seconds += seconds;
            return 0;
        }
    }
    if (ARRAY_RESERVE(in->shares, run->share_capacity, in->share_count + 1, run->err) < 0)
        return -1;
    struct plan_path_share *share = &in->shares[in->share_count++];
    *share = (struct plan_path_share){.what = strdup(what), .where = strdup(where), .seconds = seconds};
    return share->what && share->where ? 0 : insight_fill_no_memory(run);
}

static int share_compare(const void *left, const void *right)
{
    const struct plan_path_share *a = left, *b = right;
    if (a->seconds != b->seconds)
        return a->seconds > b->seconds ? -1 : 1;
    int what = strcmp(a->what, b->what);
    return what ? what : strcmp(a->where, b->where);
}

static int path_fill(struct insight_run *run, const struct plan_graph *graph, const struct sim_path *path)
{
    static const char *const names[] = {[PATH_COMPUTE] = "compute",
                                        [PATH_TRANSFER] = "link",
                                        [PATH_COLLECTIVE] = "collective",
                                        [PATH_SHARED] = "shared"};
    const struct plan *plan = run->plan;
    struct plan_insight *in = run->insight;
    char where[640];
    for (uint32_t i = 0; i < path->count; i++) {
        const struct sim_path_part *part = &path->parts[i];
        const struct instr *x = graph_instr(graph, part->number);
        if (part->peer >= 0)
            snprintf(where, sizeof(where), "%s to %s", plan->ranks[part->rank].device,
                     plan->ranks[part->peer].device);
        else if (part->kind != PATH_COMPUTE)
            snprintf(where, sizeof(where), "%u ranks of group %d", plan->groups[x->group].rank_count,
                     x->group);
        else
            snprintf(where, sizeof(where), "%s", plan->ranks[part->rank].device);
        if (share_add(run, names[part->kind], where, part->end_s - part->begin_s) < 0)
            return -1;
    }
    in->path_length = path->count;
    if (in->share_count)
        qsort(in->shares, in->share_count, sizeof(*in->shares), share_compare);
    for (uint32_t i = 0; i < in->share_count && in->step_s > 0; i++)
        in->shares[i].share = in->shares[i].seconds / in->step_s;
    return 0;
}

static double slot_size(void *context, uint32_t rank, uint32_t slot, int32_t micro_batch)
{
    const struct price *price = context;
    const struct plan_slot *s = &price->plan->ranks[rank].slots[slot];
    if (micro_batch < 0)
        return (double)s->bytes_bound;
    uint32_t begin, end;
    plan_micro_batch_rows(price->plan, (uint32_t)micro_batch, price->problem->steps[price->step].rows, &begin,
                          &end);
    struct cost_load load = problem_load(price->problem, price->step, begin, end);
    return (double)slot_bytes(s, (uint64_t)load.tokens, (uint64_t)load.rows);
}

static int ranks_fill(struct insight_run *run, struct price *price, const struct sim *sim)
{
    struct plan_insight *in = run->insight;
    uint32_t count = run->plan->rank_count;
    struct sim_rank_time *times = calloc((size_t)count + 1, sizeof(*times));
    in->ranks = calloc((size_t)count + 1, sizeof(*in->ranks));
    int result = times && in->ranks ? sim_rank_times(sim, times, run->err) : insight_fill_no_memory(run);
    for (uint32_t r = 0; r < count && result == 0; r++) {
        const struct sim_rank_time *t = &times[r];
        double peak_bytes = 0;
        result = sim_memory_peak(sim, r, slot_size, price, &peak_bytes, run->err);
        in->ranks[r] = (struct plan_rank_time){.rank = r,
                                               .compute_s = t->compute_s,
                                               .wait_s = t->wait_s,
                                               .idle_s = t->idle_s,
                                               .send_s = t->send_s,
                                               .waits_on = t->waits_on,
                                               .waits_on_s = t->waits_on_s,
                                               .memory_peak_bytes = (uint64_t)peak_bytes};
        in->rank_count = r + 1;
    }
    free(times);
    return result;
}

/* --- the list of improvements --- */

static int ask_add(struct insight_run *run, const struct ask *ask)
{
    if (ARRAY_RESERVE(run->asks, run->ask_capacity, run->ask_count + 1, run->err) < 0)
        return -1;
    run->asks[run->ask_count++] = *ask;
    return 0;
}

static int link_ask(struct insight_run *run, uint32_t a, uint32_t b, double weight)
{
    uint32_t low = a < b ? a : b, high = a < b ? b : a;
    for (uint32_t i = 0; i < run->ask_count; i++) {
        if (run->asks[i].kind == INSIGHT_LINK && run->asks[i].node_a == low && run->asks[i].node_b == high) {
            run->asks[i].weight += weight;
            return 0;
        }
    }
    return ask_add(run, &(struct ask){.kind = INSIGHT_LINK, .node_a = low, .node_b = high, .weight = weight});
}

/* Adds `weight` seconds of the critical path to the link that a transfer, or one hop of a collective, uses.
 */
static int path_ask(struct insight_run *run, const struct price *price, uint32_t from, uint32_t to,
                    double weight)
{
    const struct planner_device *devices = run->cluster->devices;
    return link_ask(run, devices[price->device[from]].node, devices[price->device[to]].node, weight);
}

static int group_ask(struct insight_run *run, const struct price *price, uint32_t g, double weight)
{
    const struct plan_group *group = &run->plan->groups[g];
    int result = 0;
    for (uint32_t i = 0; i + 1 < group->rank_count && result == 0; i++)
        result = path_ask(run, price, group->ranks[i], group->ranks[i + 1], weight);
    return result;
}

/* Lists the links that carry transfers (with few nodes: all links), with the seconds that the critical path
 * spends on each. */
static int links_ask(struct insight_run *run, const struct price *price, const struct plan_graph *graph,
                     const struct sim_path *path)
{
    uint32_t nodes = run->cluster->node_count;
    int result = 0;
    /* Links that the plan does not use are listed, too, since they may be unused because they are slow. */
    for (uint32_t a = 0; a < nodes && nodes <= NODES_ALL_LINKS; a++)
        for (uint32_t b = a + 1; b < nodes && result == 0; b++)
            result = link_ask(run, a, b, 0);
    for (uint32_t p = 0; p < graph->pair_count && result == 0; p++)
        result = path_ask(run, price, graph->pairs[p].from, graph->pairs[p].to, 0);
    for (uint32_t g = 0; g < run->plan->group_count && result == 0; g++)
        result = group_ask(run, price, g, 0);
    for (uint32_t i = 0; i < path->count && result == 0; i++) {
        const struct sim_path_part *part = &path->parts[i];
        double seconds = part->end_s - part->begin_s;
        if (part->peer >= 0)
            result = path_ask(run, price, part->rank, (uint32_t)part->peer, seconds);
        else if (part->kind == PATH_COLLECTIVE)
            result = group_ask(run, price, (uint32_t)graph_instr(graph, part->number)->group, seconds);
    }
    return result;
}

static int devices_ask(struct insight_run *run, const struct price *price, const struct problem *problem,
                       const struct sim_path *path)
{
    double *seconds = calloc((size_t)run->cluster->device_count + 1, sizeof(*seconds));
    int result = seconds ? 0 : insight_fill_no_memory(run);
    for (uint32_t i = 0; i < path->count && result == 0; i++)
        if (path->parts[i].kind == PATH_COMPUTE)
            seconds[price->device[path->parts[i].rank]] += path->parts[i].end_s - path->parts[i].begin_s;
    for (uint32_t d = 0; d < run->cluster->device_count && result == 0; d++) {
        if (!problem->usable[d])
            continue;
        for (int kind = INSIGHT_MEMORY; kind < INSIGHT_KINDS && result == 0; kind++)
            result = ask_add(run, &(struct ask){.kind = (enum insight_kind)kind,
                                                .device = d,
                                                .weight = seconds[d] / (kind == INSIGHT_SPEED ? 2 : 4)});
    }
    free(seconds);
    return result;
}

static int ask_compare(const void *left, const void *right)
{
    const struct ask *a = left, *b = right;
    if (a->weight != b->weight)
        return a->weight > b->weight ? -1 : 1;
    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    if (a->device != b->device)
        return a->device < b->device ? -1 : 1;
    if (a->node_a != b->node_a)
        return a->node_a < b->node_a ? -1 : 1;
    return a->node_b < b->node_b ? -1 : a->node_b > b->node_b;
}

/* Simulates one step and fills in its critical path, the ranks' times and the list of improvements to try. */
static int step_look(struct insight_run *run, const struct problem *problem)
{
    struct price price;
    struct sim *sim = NULL;
    struct sim_path path = {0};
    if (price_init(&price, problem, run->plan, run->err) < 0)
        return -1;
    price.step = problem->step_count / 2;
    int result = price_step(&price, &sim, &run->insight->step_s, NULL, NULL, run->err);
    if (result == 0)
        result = sim_path(sim, &path, run->err);
    if (result == 0 &&
        (path_fill(run, sim_graph(sim), &path) < 0 || ranks_fill(run, &price, sim) < 0 ||
         links_ask(run, &price, sim_graph(sim), &path) < 0 || devices_ask(run, &price, problem, &path) < 0))
        result = -1;
    if (result == 0 && run->ask_count)
        qsort(run->asks, run->ask_count, sizeof(*run->asks), ask_compare);
    sim_path_fini(&path);
    sim_destroy(sim);
    price_fini(&price);
    return result;
}

/* --- pricing and searching with one improvement --- */

static struct cluster *cluster_changed(struct insight_run *run, const struct ask *ask)
{
    struct cluster *cluster = cluster_copy(run->cluster, NULL, run->err);
    int result = 0;
    if (!cluster)
        return NULL;
    if (ask->kind == INSIGHT_LINK)
        result = cluster_speed_link(cluster, ask->node_a, ask->node_b, INSIGHT_LINK_TIMES, run->err);
    else if (ask->kind == INSIGHT_MEMORY)
        cluster->devices[ask->device].memory_limit_bytes += INSIGHT_MEMORY_BYTES;
    else if (ask->kind == INSIGHT_SPEED)
        cluster->devices[ask->device].speed =
            fmin(cluster->devices[ask->device].speed * INSIGHT_SPEED_TIMES, CLUSTER_SPEED_MAX);
    else
        result = cluster_add_like(cluster, ask->device, run->err);
    if (result < 0) {
        cluster_destroy(cluster);
        return NULL;
    }
    return cluster;
}

/* Writes the mean seconds of a step of the same plan on a changed cluster. */
static int plan_reprice(struct insight_run *run, const struct workload *w, const struct cluster *cluster,
                        double *step_s)
{
    struct problem problem;
    struct price price;
    struct sim *sim = NULL;
    double seconds = 0;
    *step_s = 0;
    if (problem_init(&problem, w, cluster, run->err) < 0)
        return -1;
    int result = price_init(&price, &problem, run->plan, run->err);
    for (uint32_t s = 0; s < problem.step_count && result == 0; s++) {
        price.step = s;
        result = price_step(&price, &sim, &seconds, NULL, NULL, run->err);
        *step_s += seconds / problem.step_count;
    }
    price_fini(&price);
    sim_destroy(sim);
    problem_fini(&problem);
    return result;
}

/* Searches the best plan on a changed cluster, beginning with the present plan. If the plan found is faster
 * than *step_s seconds a step, *step_s becomes its seconds. *did: a plan was found. */
static int plan_search_on(struct insight_run *run, const struct workload *w, const struct cluster *cluster,
                          double *step_s, bool *did)
{
    struct plan_options options = *run->options;
    struct plan_answer *answer = NULL;
    options.evaluations = run->evaluations;
    options.programs = options.insight = false;
    options.brief = true;
    options.from = run->plan;
    int result = plan_best(w, cluster, &options, &answer, run->err);
    if (result == 0 && answer->plan) {
        double ratio = run->again_s > 0 ? run->answer->step_s / run->again_s : 1;
        *step_s = fmin(*step_s, answer->step_s * ratio);
        *did = true;
    }
    plan_answer_destroy(answer);
    return result;
}

static const char *const kind_words[INSIGHT_KINDS] = {
    [INSIGHT_LINK] = "a 10x faster link %s",
    [INSIGHT_MEMORY] = "1 GB more on %s",
    [INSIGHT_SPEED] = "%s twice as fast",
    [INSIGHT_DEVICE] = "one more like %s",
};

static int ask_try(struct insight_run *run, const struct ask *ask, bool search)
{
    struct plan_insight *in = run->insight;
    struct plan_improvement line = {.kind = ask->kind, .step_s = run->answer->step_s};
    struct workload w = *run->workload;
    double same_s = 0;
    char what[640];
    char **names = NULL;
    if (ask->kind == INSIGHT_LINK && ask->node_a == ask->node_b)
        snprintf(what, sizeof(what), "within %s", run->cluster->nodes[ask->node_a].name);
    else if (ask->kind == INSIGHT_LINK)
        snprintf(what, sizeof(what), "%s-%s", run->cluster->nodes[ask->node_a].name,
                 run->cluster->nodes[ask->node_b].name);
    else
        snprintf(what, sizeof(what), "%s", run->cluster->devices[ask->device].name);
    struct cluster *cluster = cluster_changed(run, ask);
    if (!cluster)
        return -1;
    w.objective = OBJECTIVE_TIME;
    int result = 0;
    /* the job names its devices, so the added device is added to the names */
    if (ask->kind == INSIGHT_DEVICE && w.device_count) {
        names = calloc((size_t)w.device_count + 1, sizeof(*names));
        result = names ? 0 : insight_fill_no_memory(run);
        for (uint32_t i = 0; names && i < w.device_count; i++)
            names[i] = w.devices[i];
        if (names)
            names[w.device_count++] = cluster->devices[cluster->device_count - 1].name;
        w.devices = names;
    }
    bool fixed = ask->kind == INSIGHT_LINK || ask->kind == INSIGHT_SPEED;
    if (result == 0 && fixed)
        result = plan_reprice(run, &w, cluster, &same_s);
    if (result == 0 && fixed) /* a plan that the improvement slows down counts as unchanged */
        line.step_s *= fmin(1, same_s / run->base_s);
    if (result == 0 && search)
        result = plan_search_on(run, &w, cluster, &line.step_s, &line.searched);
    free(names);
    cluster_destroy(cluster);
    if (result < 0)
        return -1;
    if (!fixed && !line.searched) {
        in->not_tried++;
        return 0;
    }
    line.saves = fmax(0, 1 - line.step_s / run->answer->step_s);
    char words[700];
    const char *format = kind_words[line.kind], *hole = strstr(format, "%s");
    snprintf(words, sizeof(words), "%.*s%s%s", (int)(hole - format), format, what, hole + 2);
    line.what = strdup(what);
    line.words = strdup(words);
    in->improvements[in->improvement_count++] = line;
    return line.what && line.words ? 0 : insight_fill_no_memory(run);
}

static int improvement_compare(const void *left, const void *right)
{
    const struct plan_improvement *a = left, *b = right;
    if (a->saves != b->saves)
        return a->saves > b->saves ? -1 : 1;
    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    return strcmp(a->what, b->what);
}

static int asks_run(struct insight_run *run)
{
    struct plan_insight *in = run->insight;
    uint64_t all =
        run->options->insight_evaluations ? run->options->insight_evaluations : EVALUATIONS_DEFAULT;
    uint32_t tried = run->ask_count < INSIGHT_LINES_MAX ? run->ask_count : INSIGHT_LINES_MAX;
    bool small = run->cluster->device_count <= DEVICES_SEARCHED;
    uint64_t searches = small                                          ? tried
                        : run->cluster->device_count <= LEFT_OUT_TRIED ? all / EVALUATIONS_LEAST
                                                                       : SEARCHES_LARGE;
    run->evaluations = all / (tried ? tried : 1);
    run->evaluations = run->evaluations < EVALUATIONS_LEAST ? EVALUATIONS_LEAST : run->evaluations;
    /* Steps of many ranks · micro-batches take too long for repeated searches. */
    if ((uint64_t)run->plan->rank_count * run->plan->micro_batch_count > 20000)
        searches = 0;
    in->improvements = calloc((size_t)tried + 1, sizeof(*in->improvements));
    if (!in->improvements)
        return insight_fill_no_memory(run);
    in->not_tried = run->ask_count - tried;
    struct workload w = *run->workload;
    w.objective = OBJECTIVE_TIME;
    if (plan_reprice(run, &w, run->cluster, &run->base_s) < 0)
        return -1;
    if (searches) {
        double again_s = run->answer->step_s;
        bool did;
        if (plan_search_on(run, &w, run->cluster, &again_s, &did) < 0)
            return -1;
        run->again_s = again_s;
    }
    for (uint32_t i = 0; i < tried; i++)
        if (ask_try(run, &run->asks[i], i < searches) < 0)
            return -1;
    qsort(in->improvements, in->improvement_count, sizeof(*in->improvements), improvement_compare);
    return 0;
}

/* --- the step without one of the devices --- */

/* Searches the best plan without one device of the plan, and writes the seconds of a step. */
static int loss_try(struct insight_run *run, uint32_t rank, struct plan_loss *loss)
{
    struct workload w = *run->workload;
    struct plan_options options = *run->options;
    struct plan_answer *answer = NULL;
    char *device = run->plan->ranks[rank].device;
    uint32_t kept = 0;
    char **names = calloc((size_t)w.device_count + w.exclude_count + 2, sizeof(*names));
    if (!names || !(loss->device = strdup(device))) {
        free(names);
        return insight_fill_no_memory(run);
    }
    for (uint32_t i = 0; i < w.device_count; i++)
        if (strcmp(w.devices[i], device) != 0)
            names[kept++] = w.devices[i];
    if (w.device_count) { /* a job that names its devices is planned again on all of these but `device` */
        w.devices = names;
        w.device_count = kept;
    } else {
        for (; kept < w.exclude_count; kept++)
            names[kept] = w.exclude[kept];
        names[kept++] = device;
        w.exclude = names;
        w.exclude_count = kept;
    }
    w.objective = OBJECTIVE_TIME;
    options.programs = options.insight = false;
    options.brief = true;
    options.from = NULL;
    int result = plan_best(&w, run->cluster, &options, &answer, run->err);
    if (result == 0 && answer->plan)
        loss->step_s = answer->step_s;
    /* too few devices remain for the placement that the job asks for */
    if (result < 0 && run->err->code == ERR_UNSUPPORTED) {
        err_clear(run->err);
        result = 0;
    }
    loss->like = rank < run->answer->rank_like_count ? run->answer->rank_like[rank] : NULL;
    plan_answer_destroy(answer);
    free(names);
    return result;
}

static int loss_compare(const void *left, const void *right)
{
    const struct plan_loss *a = left, *b = right;
    double x = a->step_s > 0 ? a->step_s : INFINITY, y = b->step_s > 0 ? b->step_s : INFINITY;
    return x != y ? (x < y ? -1 : 1) : strcmp(a->device, b->device);
}

static int losses_run(struct insight_run *run)
{
    struct plan_insight *in = run->insight;
    uint32_t ranks = run->plan->rank_count;
    if (ranks < 2 || run->cluster->device_count > DEVICES_SEARCHED || run->again_s == 0)
        return 0;
    in->losses = calloc(ranks, sizeof(*in->losses));
    if (!in->losses)
        return insight_fill_no_memory(run);
    for (uint32_t r = 0; r < ranks; r++) {
        in->loss_count = r + 1;
        if (loss_try(run, r, &in->losses[r]) < 0)
            return -1;
    }
    qsort(in->losses, in->loss_count, sizeof(*in->losses), loss_compare);
    return 0;
}

static int words_fill(struct insight_run *run)
{
    struct plan_insight *in = run->insight;
    char text[3200] = "";
    bool said[INSIGHT_KINDS] = {false};
    for (uint32_t i = 0; i < in->improvement_count; i++) { /* only the best improvement of each kind is
                                                              named */
        const struct plan_improvement *line = &in->improvements[i];
        size_t used = strlen(text);
        if (line->saves < ANSWER_SHARE_TOLD || said[line->kind])
            continue;
        said[line->kind] = true;
        snprintf(text + used, sizeof(text) - used, "%s%s saves %.0f %%", used ? ", " : "", line->words,
                 100 * line->saves);
    }
    if (!*text)
        snprintf(text, sizeof(text), "nothing that was tried saves anything");
    in->words = strdup(text);
    return in->words ? 0 : insight_fill_no_memory(run);
}

int plan_insight_fill(const struct workload *workload, const struct cluster *cluster,
                      const struct plan_options *options, struct plan_answer *answer, struct err *err)
{
    struct problem problem;
    struct workload w = *workload;
    struct insight_run run = {.workload = workload,
                              .cluster = cluster,
                              .options = options,
                              .answer = answer,
                              .plan = answer->plan,
                              .err = err};
    uint64_t instructions = 0;
    for (uint32_t r = 0; r < answer->plan->rank_count; r++)
        instructions += answer->plan->ranks[r].programs[PROGRAM_TRAIN].instr_count;
    if (instructions == 0 || instructions > INSTRUCTIONS_MAX)
        return 0;
    w.objective = OBJECTIVE_TIME;
    run.insight = calloc(1, sizeof(*run.insight));
    if (!run.insight)
        return insight_fill_no_memory(&run);
    int result = problem_init(&problem, &w, cluster, err);
    if (result == 0) {
        result = step_look(&run, &problem);
        problem_fini(&problem);
    }
    if (result == 0 && (asks_run(&run) < 0 || losses_run(&run) < 0 || words_fill(&run) < 0))
        result = -1;
    free(run.asks);
    if (result < 0)
        plan_insight_destroy(run.insight);
    else
        answer->insight = run.insight;
    return result;
}
