/* Tests the mesh between two network namespaces with addresses of their own and a shaped gigabit link between
 * them. Needs root, ip and tc; prints a skip without them. A thread that unshares its network keeps the
 * sockets it makes there, so two ranks of this process stand for two machines. */
#include "mesh/mesh_pair.h"

#include <sched.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/must.h"

/* Makes a struct mesh_post and gives its address. */
#define POST(rank, number, deadline, fn, a)                                                                  \
    (&(struct mesh_post){                                                                                    \
        .peer = (rank), .queue = (number), .deadline_ns = (deadline), .done = (fn), .arg = (a)})

extern char **environ;

/* Runs a command in this thread's namespaces and returns its exit status. */
static int run(const char *command)
{
    char *argv[] = {(char *)(uintptr_t)"/bin/sh", (char *)(uintptr_t)"-c", (char *)(uintptr_t)command, NULL};
    pid_t pid;
    int status = 0;
    if (posix_spawn(&pid, argv[0], NULL, NULL, argv, environ) != 0 || waitpid(pid, &status, 0) != pid)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

enum stage { STAGE_NONE, STAGE_THERE, STAGE_WIRED, STAGE_LISTENING, STAGE_CONNECTED };

struct side {
    struct group *g;
    uint32_t rank;
    pthread_t thread;
    pthread_mutex_t *lock;
    pthread_cond_t *changed;
    enum stage *stage; /* [2] stage of both ranks */
    pid_t tid;
    int unshared;
};

static void reach(struct side *s, enum stage stage)
{
    pthread_mutex_lock(s->lock);
    s->stage[s->rank] = stage;
    pthread_cond_broadcast(s->changed);
    pthread_mutex_unlock(s->lock);
}

static void await(struct side *s, uint32_t rank, enum stage stage)
{
    pthread_mutex_lock(s->lock);
    while (s->stage[rank] < stage)
        pthread_cond_wait(s->changed, s->lock);
    pthread_mutex_unlock(s->lock);
}

static void *side_run(void *arg)
{
    struct side *s = arg;
    struct group *g = s->g;
    char command[400];
    s->tid = (pid_t)syscall(SYS_gettid);
    s->unshared = unshare(CLONE_NEWNET);
    reach(s, STAGE_THERE);
    await(s, 1 - s->rank, STAGE_THERE);
    if (s->unshared < 0) {
        reach(s, STAGE_CONNECTED); /* let the other rank stop waiting */
        return NULL;
    }
    if (s->rank == 0) {
        struct side *other = s + 1;
        snprintf(command, sizeof(command), "ip link add v0 type veth peer name v1 && ip link set v1 netns %d",
                 (int)other->tid);
        s->unshared = run(command);
        reach(s, STAGE_WIRED);
    }
    await(s, 0, STAGE_WIRED);
    snprintf(command, sizeof(command),
             "ip addr add 10.77.%u.1/16 dev v%u && ip link set v%u up && "
             "tc qdisc add dev v%u root tbf rate 1gbit burst 128k latency 20ms",
             s->rank, s->rank, s->rank, s->rank);
    if (s->unshared == 0)
        s->unshared = run(command);
    char listen[40];
    snprintf(listen, sizeof(listen), "10.77.%u.1:0", s->rank);
    if (s->unshared == 0)
        g->status[s->rank] = mesh_listen(g->mesh[s->rank], listen, g->address[s->rank], sizeof(g->address[0]),
                                         &g->err[s->rank]);
    reach(s, STAGE_LISTENING);
    await(s, 1 - s->rank, STAGE_LISTENING);
    if (s->unshared != 0 || g->status[0] < 0 || g->status[1] < 0)
        return NULL;
    struct mesh_peer peer = {
        .rank = 1 - s->rank, .address = g->address[1 - s->rank], .identity = g->identity[1 - s->rank]};
    g->status[s->rank] =
        mesh_connect(g->mesh[s->rank], &peer, 1, g->connect_deadline_ns[s->rank], NULL, &g->err[s->rank]);
    return NULL;
}

static void flood(struct group *g, uint8_t *out, uint8_t *in, size_t size, struct tally *t)
{
    struct err err;
    struct mesh_meta meta = {.tag = 1};
    must(mesh_recv(g->mesh[1], POST(0, 0, in_seconds(30), tally_done, t), 1, in, size, &err), &err);
    must(mesh_send(g->mesh[0], POST(1, 0, in_seconds(30), tally_done, t), &meta, out, size, &err), &err);
}

/* Small frames behind 48 MB on a gigabit link wait for only a fraction of that transfer. */
static void small_behind_large(struct group *g)
{
    enum { SIZE = 48 << 20, SMALLS = 50 };
    struct tally large, small;
    struct err err;
    uint8_t *out = calloc(1, SIZE), *in = malloc(SIZE), byte = 1, got;
    double worst = 0;
    memset(out, 3, SIZE);
    tally_init(&large);
    tally_init(&small);
    uint64_t begin = clock_mono_ns();
    flood(g, out, in, SIZE, &large);
    for (int i = 0; i < SMALLS; i++) {
        struct mesh_done done;
        uint64_t sent = clock_mono_ns();
        must(mesh_send(g->mesh[0], POST(1, 1, in_seconds(30), tally_done, &small),
                       &(struct mesh_meta){.tag = 2}, &byte, 1, &err),
             &err);
        must(mesh_recv_wait(g->mesh[1], POST(0, 1, in_seconds(30), NULL, NULL), 2, &got, 1, &done, &err),
             &err);
        double ms = (double)(done.end_ns - sent) / 1e6;
        worst = ms > worst ? ms : worst;
    }
    assert_true(tally_wait(&large, 2, 30));
    assert_int_equal(large.failed, 0);
    assert_memory_equal(in, out, SIZE);
    double seconds = (double)(large.last.end_ns - begin) / 1e9;
    printf("48 MB in %.3f s (%.0f MB/s), small frames at most %.2f ms\n", seconds, SIZE / 1e6 / seconds,
           worst);
    assert_true(seconds > SIZE / 125e6 * 0.98);
    assert_true(worst < seconds * 1e3 / 4);
    free(out);
    free(in);
}

static void two_namespaces_are_two_machines(void **state)
{
    (void)state;
    struct group g;
    struct err err;
    struct side sides[2];
    enum stage stage[2] = {STAGE_NONE, STAGE_NONE};
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
    if (geteuid() != 0 || run("command -v ip >/dev/null && command -v tc >/dev/null") != 0) {
        printf("SKIP: needs root, ip and tc\n");
        skip();
    }
    group_init(&g, 2);
    for (uint32_t i = 0; i < 2; i++) {
        must(mesh_create(&g.options[i], &g.mesh[i], &err), &err);
        sides[i] = (struct side){.g = &g, .rank = i, .lock = &lock, .changed = &changed, .stage = stage};
    }
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&sides[i].thread, NULL, side_run, &sides[i]), 0);
    for (uint32_t i = 0; i < 2; i++)
        pthread_join(sides[i].thread, NULL);
    if (sides[0].unshared != 0 || sides[1].unshared != 0) {
        group_end(&g);
        printf("SKIP: this machine makes no network namespaces, veth or tbf\n");
        skip();
    }
    must(g.status[0], &g.err[0]);
    must(g.status[1], &g.err[1]);
    assert_non_null(strstr(g.address[0], "10.77.0.1:"));
    double latency, rate;
    must(mesh_measure(g.mesh[0], 1, 16 << 20, in_seconds(30), &latency, &rate, &err), &err);
    printf("measured %.3f ms, %.0f MB/s\n", latency * 1e3, rate / 1e6);
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    double least = 5e6; /* instrumented code is the limit */
#else
    double least = 60e6;
#endif
    assert_true(rate > least && rate < 126e6 * 1.05);
    small_behind_large(&g);
    group_close(&g);
    must(g.status[0], &g.err[0]);
    must(g.status[1], &g.err[1]);
    group_end(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(two_namespaces_are_two_machines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
