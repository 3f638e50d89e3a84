/* Measures committed job inserts per second through store/ alone, with 16 outstanding as from the api's
 * connections, on a private PostgreSQL at its default durability; and the time of a page of 50 among them.
 *
 *     bench_store_submit [SECONDS]          default: 5
 */
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "../tests/support/services.h"
#include "common/clock.h"
#include "store/jobs.h"
#include "store/users.h"

enum { OUTSTANDING = 16, LATENCIES_MAX = 1 << 20 };

struct submit_bench {
    struct event_base *base;
    struct store *store;
    json_t *spec, *inputs;
    struct principal user;
    uint64_t end_ns, begin_ns[OUTSTANDING];
    unsigned running, made, failed;
    float *latency_ms;
    bool answered;
};

struct slot {
    struct submit_bench *bench;
    unsigned i;
};

static void submit(struct slot *slot);

static void made(void *arg, const struct err *err, const struct store_job_made *job)
{
    struct slot *slot = arg;
    struct submit_bench *bench = slot->bench;
    uint64_t now_ns = clock_mono_ns();
    (void)job;
    if (err)
        bench->failed++;
    else if (bench->made < LATENCIES_MAX)
        bench->latency_ms[bench->made++] = (float)(now_ns - bench->begin_ns[slot->i]) / 1e6f;
    if (now_ns < bench->end_ns)
        submit(slot);
    else if (--bench->running == 0)
        event_base_loopbreak(bench->base);
}

static void submit(struct slot *slot)
{
    struct submit_bench *bench = slot->bench;
    struct err err;
    static const uint8_t digest[32];
    const struct store_job_new job = {.owner = &bench->user,
                                      .service = 1,
                                      .name = "bench",
                                      .request_digest = digest,
                                      .spec = bench->spec,
                                      .inputs = bench->inputs,
                                      .retries_max = 3,
                                      .steps = 100};
    bench->begin_ns[slot->i] = clock_mono_ns();
    if (store_job_insert(bench->store, &job, made, slot, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
}

static void got_user(void *arg, const struct err *err, int64_t id)
{
    struct submit_bench *bench = arg;
    if (err) {
        fprintf(stderr, "%s\n", err->text);
        exit(1);
    }
    bench->user = (struct principal){.kind = PRINCIPAL_USER, .id = id, .priority_max = 100, .name = "bench"};
    event_base_loopbreak(bench->base);
}

static void got_page(void *arg, const struct err *err, json_t *doc)
{
    struct submit_bench *bench = arg;
    (void)doc;
    bench->failed += err ? 1 : 0;
    event_base_loopbreak(bench->base);
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double cpu_s(int who)
{
    struct rusage usage;
    getrusage(who, &usage);
    return (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static json_t *typical_spec(void)
{
    return json_pack(
        "{s:s,s:s,s:{s:s,s:i,s:f,s:f,s:[s,s,s,s],s:s},s:{s:s,s:s,s:i,s:b,s:s},s:{s:i,s:i,s:f,s:s,s:i,s:f,"
        "s:i,s:[f,f],s:f,s:f,s:i,s:s,s:s},s:{s:s,s:n,s:[],s:s},s:{s:i,s:i}}",
        "name", "bench", "model", "tiny", "method", "kind", "lora", "rank", 16, "alpha", 32.0, "dropout",
        0.05, "targets", "q_proj", "k_proj", "v_proj", "o_proj", "base", "fp32", "data", "train",
        "sha256:0000000000000000000000000000000000000000000000000000000000000000", "format", "auto",
        "sequence_tokens", 512, "shuffle", 1, "learn", "answer", "train", "batch_rows", 16, "steps", 100,
        "learning_rate", 2e-4, "schedule", "cosine", "warmup_steps", 10, "final_fraction", 0.1,
        "weight_decay", 0, "betas", 0.9, 0.95, "eps", 1e-8, "clip_norm", 1.0, "seed", 1, "compute", "fp32",
        "recompute", "auto", "placement", "kind", "auto", "devices", "exclude", "micro_batch_rows", "auto",
        "checkpoint", "every_steps", 50, "keep", 2);
}

int main(int argc, char **argv)
{
    struct test_dir dir;
    struct test_postgres postgres;
    struct submit_bench bench = {.base = event_base_new(), .running = OUTSTANDING};
    struct slot slots[OUTSTANDING];
    struct err err;
    unsigned applied = 0;
    double seconds = argc > 1 ? strtod(argv[1], NULL) : 5;

    test_dir_make(&dir);
    test_postgres_start(&postgres, dir.path);
    const struct store_config config = {.conninfo = postgres.conninfo};
    if (store_migrate(postgres.conninfo, 10000, &applied, &err) < 0 ||
        store_create(bench.base, &config, &bench.store, &err) < 0 ||
        store_user_put(bench.store, "bench", got_user, &bench, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    event_base_dispatch(bench.base);
    bench.spec = typical_spec();
    bench.inputs = json_pack("{s:s, s:s, s:n}", "model", "c", "train",
                             "0000000000000000000000000000000000000000000000000000000000000000", "eval");
    bench.latency_ms = calloc(LATENCIES_MAX, sizeof(float));
    double cpu_before = cpu_s(RUSAGE_SELF);
    uint64_t begin_ns = clock_mono_ns();
    bench.end_ns = begin_ns + (uint64_t)(seconds * 1e9);
    for (unsigned i = 0; i < OUTSTANDING; i++) {
        slots[i] = (struct slot){&bench, i};
        submit(&slots[i]);
    }
    event_base_dispatch(bench.base);
    double took = (double)(clock_mono_ns() - begin_ns) / 1e9;
    double own = cpu_s(RUSAGE_SELF) - cpu_before;
    qsort(bench.latency_ms, bench.made, sizeof(float), by_value);
    printf("inserts      %.0f /s over %.1f s, %u outstanding (%u made, %u failed)\n", bench.made / took, took,
           (unsigned)OUTSTANDING, bench.made, bench.failed);
    printf("latency      p50 %.2f ms, p99 %.2f ms, worst %.2f ms\n", bench.latency_ms[bench.made / 2],
           bench.latency_ms[bench.made * 99 / 100], bench.latency_ms[bench.made - 1]);
    double pages[20];
    for (int i = 0; i < 20; i++) {
        const struct store_job_filter filter = {.limit = 50};
        const struct principal *principal = i % 2 == 0 ? &principal_service : &bench.user;
        begin_ns = clock_mono_ns();
        if (store_job_page(bench.store, principal, &filter, got_page, &bench, &err) < 0)
            return 1;
        event_base_dispatch(bench.base);
        pages[i] = (double)(clock_mono_ns() - begin_ns) / 1e6;
    }
    printf("page of 50   first %.2f ms, tenth %.2f ms\n", pages[0], pages[10]);
    store_destroy(bench.store);
    test_postgres_stop(&postgres);
    printf("CPU          %.0f us an insert here, %.0f us in PostgreSQL (start and stop included)\n",
           own * 1e6 / bench.made, cpu_s(RUSAGE_CHILDREN) * 1e6 / bench.made);
    json_decref(bench.spec);
    json_decref(bench.inputs);
    free(bench.latency_ms);
    event_base_free(bench.base);
    test_dir_remove(&dir);
    return bench.failed == 0 ? 0 : 1;
}
