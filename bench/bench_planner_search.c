/* Measures planning of Llama-3.1-405B's shape on unlike cards of the catalogue: CPU seconds of one core, how
 * near the plan is to the lower bound, and how far ahead it is of plans with one group per machine and
 * proportional layers.
 *
 *   bench_planner_search survey [clusters [first [devices [evaluations [rows]]]]] | plan SEED |
 *                        write SEED DIR | growth [devices [rows [first]]]
 *
 * survey: seeded clusters of 64 (or `devices`) devices of several kinds, with steps of 512 to 2,048 (or
 * `rows`) rows. write: writes a cluster's specification, cluster and config.json, for `motley plan
 * DIR/spec.json --cluster DIR/cluster.json`. growth: from 8 (or `first`) devices, doubling up to `devices`
 * (`growth 10000 20000 10000` runs 10,000 only). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "bench/planner_limit.h"
#include "common/rand.h"
#include "model/job/spec.h"
#include "planner/cost/micro.h"
#include "planner/cost/price.h"
#include "planner/answer/plan.h"
#include "planner/given/from_spec.h"
#include "planner/search/local.h"
#include "program/check/check.h"

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* --- clusters and jobs --- */

enum cluster_kind { CLUSTER_LIKE, CLUSTER_MIXED, CLUSTER_CENTRE, CLUSTER_ROOMY, CLUSTER_KINDS };
static const char *const kind_names[CLUSTER_KINDS] = {"like cards a machine", "mixed machines",
                                                      "data centre cards", "memory no concern"};

struct scene {
    enum cluster_kind kind;
    uint32_t devices, batch_rows, sequence_tokens;
    const char *base;
    uint64_t seed;
    uint64_t evaluations; /* 0: the planner's own default */
    bool roomy;           /* memory is unlimited, to compare how much slower memory limits make a plan */
};

static const char *card_pick(struct rand_stream *r, enum cluster_kind kind)
{
    static const char *const any[] = {"a100x40", "a100x80", "h100",     "v100x16", "v100x32", "t4",
                                      "mi250",   "mi210",   "rtx-3090", "a6000",   "l40s",    "a10g"};
    static const char *const centre[] = {"a100x80", "h100", "mi250", "gh200", "h200", "a100x40", "mi300x"};
    if (kind == CLUSTER_CENTRE || kind == CLUSTER_ROOMY)
        return centre[rand_stream_below(r, sizeof(centre) / sizeof(centre[0]))];
    return any[rand_stream_below(r, sizeof(any) / sizeof(any[0]))];
}

/* Makes machines of 1 to 8 cards, with links of 10 to 100 Gbit/s between them and PCIe or NVLink within. */
static json_t *cluster_json(const struct scene *scene)
{
    static const uint32_t sizes[] = {1, 2, 4, 4, 8, 8};
    static const double rates[] = {1.25e9, 3.125e9, 6.25e9, 1.25e10};
    struct rand_stream r;
    json_t *nodes = json_array();
    rand_stream_init(&r, scene->seed, 100 + scene->kind);
    double between = rates[rand_stream_below(&r, 4)], within = rand_stream_below(&r, 2) ? 1.2e10 : 2e11;
    for (uint32_t n = 0, made = 0; made < scene->devices; n++) {
        uint32_t size = sizes[rand_stream_below(&r, 6)];
        const char *card = card_pick(&r, scene->kind);
        json_t *list = json_array();
        char name[32], node[16];
        snprintf(node, sizeof(node), "n%u", n);
        for (uint32_t d = 0; d < size && made < scene->devices; d++, made++) {
            snprintf(name, sizeof(name), "n%u/%u", n, d);
            json_t *device = json_pack("{s:s,s:s,s:f}", "name", name, "like",
                                       scene->kind == CLUSTER_MIXED ? card_pick(&r, scene->kind) : card,
                                       "speed", 0.9 + 0.2 * rand_stream_unit(&r));
            if (scene->kind == CLUSTER_ROOMY || scene->roomy)
                json_object_set_new(device, "memory_bytes", json_integer(400000000000));
            json_array_append_new(list, device);
        }
        json_array_append_new(nodes, json_pack("{s:s,s:o}", "name", node, "devices", list));
    }
    return json_pack("{s:o,s:{s:{s:f,s:f},s:{s:f,s:f}}}", "nodes", nodes, "links", "within", "latency_s",
                     1e-5, "bytes_per_s", within, "between", "latency_s", 1e-4, "bytes_per_s", between);
}

static json_t *spec_json(const struct scene *scene)
{
    return json_pack("{s:s,s:{s:s},s:{s:s,s:I},s:{s:I,s:s}}", "model", "m", "method", "base", scene->base,
                     "data", "train", "d", "sequence_tokens", (json_int_t)scene->sequence_tokens, "train",
                     "batch_rows", (json_int_t)scene->batch_rows, "compute", "bf16");
}

static json_t *config_json(void)
{
    return json_pack("{s:[s],s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:f,s:f,s:b}", "architectures",
                     "LlamaForCausalLM", "model_type", "llama", "hidden_size", 16384, "num_hidden_layers",
                     126, "num_attention_heads", 128, "num_key_value_heads", 8, "intermediate_size", 53248,
                     "vocab_size", 128256, "max_position_embeddings", 131072, "rms_norm_eps", 1e-5,
                     "rope_theta", 500000.0, "tie_word_embeddings", 0);
}

static struct scene scene_make(uint64_t seed)
{
    static const uint32_t batches[] = {512, 1024, 1024, 2048}, lengths[] = {256, 512, 1024, 2048};
    struct rand_stream r;
    rand_stream_init(&r, seed, 7);
    struct scene scene = {.kind = (enum cluster_kind)(seed % CLUSTER_KINDS), .devices = 64, .seed = seed};
    scene.batch_rows = batches[rand_stream_below(&r, 4)];
    scene.sequence_tokens = lengths[rand_stream_below(&r, 4)];
    scene.base = rand_stream_below(&r, 2) ? "bf16" : "nf4";
    return scene;
}

/* --- baseline: one group per machine, layers in proportion to its speed (Zorse's search space) --- */

struct bench_machine {
    uint32_t first, count; /* devices of the cluster; those of one machine are consecutive */
    double rate;           /* layers per second of all members together */
    double exact;          /* the proportional, fractional number of layers */
    int32_t layers, most;  /* layers assigned, and the most that fit its memory */
};

struct baseline {
    const struct problem *p;
    uint32_t rows, micro_batches, count;
    struct bench_machine *machines;
    struct candidate_stage *stages;
    struct member *members;
};

static double layer_seconds(const struct baseline *b, uint32_t device, bool recompute)
{
    struct micro_cost cost;
    micro_cost_init(&cost, b->p, device, b->rows);
    return micro_forward(b->p, &cost, 1, 2) + micro_backward(b->p, &cost, 1, 2, recompute);
}

static bool device_holds(const struct baseline *b, uint32_t device, int32_t begin, int32_t end,
                         uint32_t window, bool recompute)
{
    struct memory_need need;
    struct memory_stage m = {.block_begin = begin,
                             .block_end = end,
                             .window = window,
                             .micro_batch_rows = b->rows,
                             .recompute = recompute,
                             .boundary_buffers = 12};
    memory_stage_need(b->p, &m, &need);
    return need.total <= b->p->cluster->devices[device].memory_limit_bytes;
}

/* Assigns layers in proportion, largest remainders first; layers that a machine cannot hold go to machines
 * with room. */
static bool layers_share(struct baseline *b)
{
    int32_t layers = b->p->block_count - 2, left = layers;
    double all = 0;
    for (uint32_t g = 0; g < b->count; g++)
        all += b->machines[g].rate;
    for (uint32_t g = 0; g < b->count; g++) {
        struct bench_machine *m = &b->machines[g];
        m->exact = layers * m->rate / all;
        m->layers = (int32_t)m->exact < m->most ? (int32_t)m->exact : m->most;
        left -= m->layers;
    }
    for (; left > 0; left--) {
        struct bench_machine *best = NULL;
        for (uint32_t g = 0; g < b->count; g++) {
            struct bench_machine *m = &b->machines[g];
            if (m->layers < m->most && (!best || m->exact - m->layers > best->exact - best->layers))
                best = m;
        }
        if (!best)
            return false;
        best->layers++;
    }
    return true;
}

/* Sets windows in proportion to the time until a micro-batch returns, times `factor`. Members save
 * activations where they fit and recompute otherwise. */
static bool members_fill(struct baseline *b, double factor, uint32_t *stage_count, uint32_t *member_count)
{
    double period = 0, away = 0;
    uint32_t stages = 0, members = 0, last = 0;
    for (uint32_t g = 0; g < b->count; g++) {
        const struct bench_machine *m = &b->machines[g];
        last = m->layers ? g : last;
        period = fmax(period, m->layers / m->rate);
        away += m->layers ? m->count * period : 0;
    }
    int32_t block = 0;
    for (uint32_t g = 0; g < b->count; g++) {
        const struct bench_machine *m = &b->machines[g];
        if (m->layers == 0)
            continue;
        int32_t end = g == last ? b->p->block_count : (block ? block : 1) + m->layers;
        b->stages[stages++] = (struct candidate_stage){block, end, STAGE_REPLICAS, members, m->count};
        for (uint32_t d = m->first; d < m->first + m->count; d++) {
            double share = 1 / layer_seconds(b, d, false) / m->rate;
            uint32_t window = (uint32_t)ceil(factor * away / period * share) + 1;
            window = window < b->micro_batches ? window : b->micro_batches;
            bool plain = device_holds(b, d, block, end, window, false);
            if (!plain && !device_holds(b, d, block, end, window, true))
                return false;
            b->members[members++] = (struct member){
                .device = d, .rows = b->rows, .state_share = 1, .window = window, .recompute = !plain};
        }
        away -= m->count * period;
        block = end;
    }
    *stage_count = stages;
    *member_count = members;
    return stages >= 2;
}

static int machine_compare(const void *left, const void *right)
{
    const struct bench_machine *a = left, *b = right;
    return a->most != b->most ? (a->most > b->most ? -1 : 1) : a->first < b->first ? -1 : 1;
}

static double factors_try(struct baseline *b)
{
    static const double factors[] = {2.5, 1.5, 1, 0.6, 0.3};
    double best = INFINITY;
    for (size_t f = 0; f < sizeof(factors) / sizeof(factors[0]); f++) {
        struct err err = {0};
        struct candidate candidate = {.placement = PLACE_HYBRID,
                                      .eager = true,
                                      .micro_batch_rows = b->rows,
                                      .stages = b->stages,
                                      .members = b->members};
        if (!members_fill(b, factors[f], &candidate.stage_count, &candidate.member_count))
            continue;
        double seconds = candidate_simulate(b->p, &candidate, 1, 0, NULL, &err);
        if (seconds > 0)
            best = fmin(best, seconds);
    }
    return best;
}

/* Returns the seconds of the best baseline over micro-batch sizes, two orders of the machines and several
 * windows; INFINITY if none fits. Micro-batches are dealt as in our plans, and the same programs are
 * simulated. */
static double baseline_seconds(const struct problem *p)
{
    static const uint32_t sizes[] = {1, 2};
    struct baseline b = {.p = p};
    double best = INFINITY;
    b.machines = calloc(p->cluster->node_count + 1, sizeof(*b.machines));
    b.stages = calloc(p->cluster->node_count + 1, sizeof(*b.stages));
    b.members = calloc(p->device_count + 1, sizeof(*b.members));
    for (size_t size = 0; size < sizeof(sizes) / sizeof(sizes[0]) && b.machines && b.stages && b.members;
         size++) {
        b.rows = sizes[size];
        b.micro_batches = micro_count(p, b.rows);
        b.count = 0;
        for (uint32_t d = 0; d < p->device_count; d++) {
            if (d == 0 || p->cluster->devices[d].node != p->cluster->devices[d - 1].node)
                b.machines[b.count++] = (struct bench_machine){.first = d, .most = p->block_count - 2};
            struct bench_machine *m = &b.machines[b.count - 1];
            m->count++;
            m->rate += 1 / layer_seconds(&b, d, false);
            while (m->most > 0 && !device_holds(&b, d, 1, 1 + m->most, 2, true))
                m->most--;
        }
        for (int order = 0; order < 2; order++) {
            if (order)
                qsort(b.machines, b.count, sizeof(*b.machines), machine_compare);
            if (layers_share(&b))
                best = fmin(best, factors_try(&b));
        }
    }
    free(b.machines);
    free(b.stages);
    free(b.members);
    return best;
}

/* Returns the lower bound for one micro-batch size on all devices, instead of each device's best one. */
static double size_bound(const struct problem *p, uint32_t rows)
{
    double rate = 0;
    for (uint32_t d = 0; d < p->device_count; d++) {
        struct micro_cost cost;
        micro_cost_init(&cost, p, d, rows);
        rate += 1 / (micro_forward(p, &cost, 0, p->block_count) +
                     micro_backward(p, &cost, 0, p->block_count, false));
    }
    return micro_count(p, rows) / rate;
}

struct result {
    double plan_s, ratio, step_s, bound_s, baseline_s, size_bound_s, limit_s;
    bool fits, checked;
    char digest[13]; /* shortened digest of the plan */
    char words[200];
};

static void compare(const json_t *spec_document, const json_t *cluster_document,
                    const json_t *config_document, uint32_t rows, struct result *result)
{
    struct err err = {0};
    struct job_spec spec = {0};
    struct model_config config;
    struct workload workload = {0};
    struct problem problem;
    struct cluster *cluster = cluster_from_json(cluster_document, &err);
    result->baseline_s = result->size_bound_s = result->limit_s = INFINITY;
    if (cluster && spec_parse(spec_document, &spec, &err) == 0 &&
        model_config_parse(config_document, &config, &err) == 0 &&
        workload_from_spec(&spec, &config, &(struct plan_rows){0}, &workload, &err) == 0 &&
        problem_init(&problem, &workload, cluster, &err) == 0) {
        result->baseline_s = baseline_seconds(&problem);
        result->size_bound_s = size_bound(&problem, rows);
        result->limit_s = limit_seconds(&problem, result->bound_s);
        problem_fini(&problem);
    }
    workload_fini(&workload);
    spec_fini(&spec);
    cluster_destroy(cluster);
}

static int scene_plan(const struct scene *scene, bool compared, struct result *result)
{
    struct err err = {0};
    struct plan_options options = {.programs = true, .evaluations = scene->evaluations};
    struct plan_answer *answer = NULL;
    json_t *cluster = cluster_json(scene), *spec = spec_json(scene), *config = config_json();
    *result = (struct result){0};
    double began = cpu_s();
    int failed = plan_from_cluster(spec, cluster, config, &options, &answer, &err);
    result->plan_s = cpu_s() - began;
    if (failed < 0) {
        printf("seed %llu: %s\n", (unsigned long long)scene->seed, err.text);
    } else if (answer->plan) {
        result->fits = true;
        result->step_s = answer->step_s;
        result->bound_s = answer->lower_bound_s;
        result->ratio = answer->step_s / answer->lower_bound_s;
        snprintf(result->digest, sizeof(result->digest), "%.12s", answer->plan->digest);
        result->checked = plan_check(answer->plan, &err) == 0;
        if (compared)
            compare(spec, cluster, config, answer->plan->rows_bound, result);
        if (!result->checked)
            printf("seed %llu: checker: %s\n", (unsigned long long)scene->seed, err.text);
        uint32_t recompute = 0, stages = 0;
        for (uint32_t k = 0; k < answer->plan->rank_count; k++) {
            recompute += answer->plan->ranks[k].recompute;
            stages = (uint32_t)answer->plan->ranks[k].stage + 1;
        }
        snprintf(result->words, sizeof(result->words), "%-8s %3u stages %2u ranks %4u mb %2u recompute",
                 plan_placement_name(answer->plan->placement), stages, answer->plan->rank_count,
                 answer->plan->micro_batch_count, recompute);
    } else {
        snprintf(result->words, sizeof(result->words), "%.180s", answer->words);
    }
    plan_answer_destroy(answer);
    json_decref(cluster);
    json_decref(spec);
    json_decref(config);
    return failed;
}

static int number_compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

static void summary(const char *what, double *values, uint32_t count, const char *unit)
{
    double sum = 0;
    qsort(values, count, sizeof(*values), number_compare);
    for (uint32_t i = 0; i < count; i++)
        sum += values[i];
    if (count)
        printf("%-44s mean %.3f, median %.3f, least %.3f, most %.3f %s\n", what, sum / count,
               values[count / 2], values[0], values[count - 1], unit);
}

#define SCENES_MAX 1000u

static int survey(uint32_t count, uint64_t first, uint32_t devices, uint64_t evaluations, uint32_t rows)
{
    static double ratios[SCENES_MAX], of_size[SCENES_MAX], of_roomy[SCENES_MAX], of_limit[SCENES_MAX],
        ahead[SCENES_MAX], took[SCENES_MAX];
    uint32_t fits = 0, near = 0, near_size = 0, near_limit = 0, compared = 0, won = 0;
    printf("%4s %-20s %-22s %7s %7s %7s %7s %7s %8s  %s\n", "seed", "cluster", "job", "plan s", "/bound",
           "/limit", "/size", "/roomy", "faster",
           "plan (/bound: step over the lower bound; /limit: over planner_limit.h's; /size: over the");
    printf("%110s  bound at the plan's micro-batch size; /roomy: over the bound with memory for\n", "");
    printf("%110s  anything; faster: one group a machine over ours)\n", "");
    count = count < SCENES_MAX ? count : SCENES_MAX;
    for (uint64_t seed = first; seed < first + count; seed++) {
        struct scene scene = scene_make(seed);
        struct result result, roomy;
        scene.devices = devices;
        scene.evaluations = evaluations;
        scene.batch_rows = rows ? rows : scene.batch_rows;
        if (scene_plan(&scene, true, &result) < 0)
            return -1;
        scene.roomy = true;
        if (scene_plan(&scene, false, &roomy) < 0)
            return -1;
        char job[32];
        snprintf(job, sizeof(job), "%u rows of %u, %s", scene.batch_rows, scene.sequence_tokens, scene.base);
        printf("%4llu %-20s %-22s %7.3f %7.3f %7.3f %7.3f %7.3f %8.3f  %s%s\n", (unsigned long long)seed,
               kind_names[scene.kind], job, result.plan_s, result.ratio, result.step_s / result.limit_s,
               result.step_s / result.size_bound_s, roomy.ratio, result.baseline_s / result.step_s,
               result.words, result.fits && !result.checked ? " NOT CHECKED" : "");
        fflush(stdout);
        if (!result.fits)
            continue;
        took[fits] = result.plan_s;
        of_roomy[fits] = roomy.ratio;
        of_size[fits] = result.step_s / result.size_bound_s;
        near_size += of_size[fits] <= 1.15;
        of_limit[fits] = result.step_s / result.limit_s;
        near_limit += of_limit[fits] <= 1.15;
        near += result.ratio <= 1.15;
        ratios[fits++] = result.ratio;
        if (!isfinite(result.baseline_s))
            continue;
        ahead[compared] = result.baseline_s / result.step_s;
        won += ahead[compared++] >= 1.15;
    }
    printf("%u of %u clusters of %u devices fit\n", fits, count, devices);
    summary("seconds to a plan", took, fits, "s");
    summary("step over the lower bound", ratios, fits, "");
    printf("%44s %u of %u within 1.15\n", "", near, fits);
    summary("step over what memory and filling allow", of_limit, fits, "");
    printf("%44s %u of %u within 1.15\n", "", near_limit, fits);
    summary("step over the bound at the plan's own size", of_size, fits, "");
    printf("%44s %u of %u within 1.15\n", "", near_size, fits);
    summary("over the lower bound with memory for anything", of_roomy, fits, "");
    summary("one group a machine over ours", ahead, compared, "");
    printf("%44s %u of %u at least 1.15; it does not fit %u times\n", "", won, compared, fits - compared);
    return 0;
}

static int write_files(uint64_t seed, const char *folder)
{
    struct scene scene = scene_make(seed);
    json_t *documents[] = {cluster_json(&scene), spec_json(&scene), config_json()};
    static const char *const names[] = {"cluster.json", "spec.json", "config.json"};
    int result = 0;
    json_object_set_new(documents[1], "model", json_string("config.json"));
    for (int i = 0; i < 3; i++) {
        char path[1000];
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        result |= json_dump_file(documents[i], path, JSON_INDENT(1));
        json_decref(documents[i]);
    }
    return result;
}

/* Plans for 8 (or `first`) devices and ever twice as many, up to `most`. `rows` is the number of rows in a
 * step; 0 means 16 for each device. */
static int growth(uint32_t most, uint32_t rows, uint32_t first)
{
    for (uint32_t devices = first > 0 ? first : 8; devices <= most; devices *= 2) {
        struct scene scene = {.kind = CLUSTER_ROOMY,
                              .devices = devices,
                              .batch_rows = rows ? rows : 16 * devices,
                              .sequence_tokens = 2048,
                              .base = "bf16",
                              .seed = 3};
        struct result result;
        struct rusage use;
        if (scene_plan(&scene, false, &result) < 0)
            return -1;
        getrusage(RUSAGE_SELF, &use);
        printf("%5u devices  %8.3f s  ratio %6.3f  peak %ld MiB  %u rows  %s\n", devices, result.plan_s,
               result.ratio, use.ru_maxrss / 1024, scene.batch_rows, result.words);
        fflush(stdout);
    }
    return 0;
}

int main(int argc, char **argv)
{
    int result = 0;
    const char *what = argc > 1 ? argv[1] : "survey";
    if (strcmp(what, "plan") == 0) { /* plans one cluster of the survey alone, for a profiler */
        struct scene scene = scene_make(argc > 2 ? strtoull(argv[2], NULL, 10) : 0);
        struct result one;
        result = scene_plan(&scene, false, &one);
        printf("%.3f s, %.6f of the bound, %s, plan %s\n", one.plan_s, one.ratio, one.words, one.digest);
    } else if (strcmp(what, "write") == 0)
        result = write_files(argc > 2 ? strtoull(argv[2], NULL, 10) : 0, argc > 3 ? argv[3] : ".");
    else if (strcmp(what, "survey") == 0)
        result = survey(
            argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 24, argc > 3 ? strtoull(argv[3], NULL, 10) : 0,
            argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 64, argc > 5 ? strtoull(argv[5], NULL, 10) : 0,
            argc > 6 ? (uint32_t)strtoul(argv[6], NULL, 10) : 0);
    else
        result = growth(argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 512,
                        argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0,
                        argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 8);
    return result ? 1 : 0;
}
