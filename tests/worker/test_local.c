/* Tests links within a node: a run over them gives the numbers of a run over the mesh, without its bytes. */
#include "worker/worker_fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

enum { RANKS_MAX = 3 };

/* What the ranks reported about their links, and the devices' kinds to use. */
struct seen {
    unsigned long long mesh_bytes, local_bytes;
    uint32_t within, refused; /* log lines that name a peer reached within the node, or by the mesh instead */
    uint32_t changed;         /* of the latter, those that name copies which arrive changed */
    const char *kinds[RANKS_MAX]; /* kind of each rank's device, or NULL */
};

static void see(void *arg, struct fix_worker *workers, uint32_t rank, const json_t *event)
{
    struct seen *seen = arg;
    double mesh, local = 0; /* KiB, rounded to three digits by people's units */
    (void)workers;
    (void)rank;
    if (strcmp(json_string_value(json_object_get(event, "type")), "log") != 0)
        return;
    const char *text = json_string_value(json_object_get(event, "text"));
    seen->within += strstr(text, "is reached within the node") != NULL;
    seen->refused += strstr(text, "is on this node, but the mesh carries its tensors") != NULL;
    seen->changed += strstr(text, "'s memory arrive changed (IOMMU or PCIe ACS?)") != NULL;
    if (sscanf(text, "sent %lf KiB over the mesh and %lf KiB within", &mesh, &local) > 0) {
        seen->mesh_bytes += (unsigned long long)(1024 * mesh);
        seen->local_bytes += (unsigned long long)(1024 * local);
    }
}

static void change_kind(void *arg, json_t *assign)
{
    const struct seen *seen = arg;
    json_int_t rank = json_integer_value(json_object_get(assign, "rank"));
    json_t *device = json_object_get(json_object_get(assign, "local"), "device");
    if (seen->kinds[rank])
        json_object_set_new(device, "kind", json_string(seen->kinds[rank]));
}

/* Puts all ranks on one node. `shared` lets them write into each other's memory. */
static void put_on_one_node(struct plan *plan, bool shared)
{
    struct err err;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        free(plan->ranks[r].node);
        plan->ranks[r].node = strdup("node0");
        if (shared)
            plan->ranks[r].slots[HAND_ACT_IN].place = plan->ranks[r].slots[HAND_GRAD_IN].place = SLOT_SHARED;
    }
    must(plan_seal(plan, &err));
    must(plan_check(plan, &err));
}

static void run(const struct fixture *fix, const json_t *spec, uint32_t stages, uint32_t micro_rows,
                bool shared, struct seen *seen, struct outcome *out)
{
    struct plan *plan = fix_plan(fix, stages, micro_rows);
    put_on_one_node(plan, shared);
    fix_run(fix, plan, spec, change_kind, see, seen, out);
    if (json_array_size(out->failures))
        fail_msg("%s", json_string_value(json_object_get(json_array_get(out->failures, 0), "text")));
    plan_destroy(plan);
}

static void check_alike(const struct outcome *a, const struct outcome *b)
{
    assert_int_equal(a->steps, b->steps);
    assert_int_equal(a->evals, b->evals);
    assert_memory_equal(a->loss, b->loss, a->steps * sizeof(*a->loss));
    assert_memory_equal(a->norm, b->norm, a->steps * sizeof(*a->norm));
    assert_memory_equal(a->eval, b->eval, a->evals * sizeof(*a->eval));
    assert_true(json_equal(a->samples, b->samples));
}

/* Checks that every boundary tensor goes within the node, and only scalars and checkpoints over the mesh. */
static void check_local(const struct fixture *fix, const json_t *spec, uint32_t stages, uint32_t micro_rows,
                        const char *kind)
{
    struct outcome mesh, local;
    struct seen by_mesh = {.kinds = {kind, kind, kind}}, by_local = by_mesh;
    run(fix, spec, stages, micro_rows, false, &by_mesh, &mesh);
    run(fix, spec, stages, micro_rows, true, &by_local, &local);
    print_message("%u stages of %s: %llu bytes over the mesh, then %llu and %llu within the node\n", stages,
                  kind, by_mesh.mesh_bytes, by_local.mesh_bytes, by_local.local_bytes);
    check_alike(&local, &mesh);
    assert_int_equal(by_mesh.within + by_mesh.refused, 0);
    assert_int_equal(by_mesh.local_bytes, 0);
    assert_int_equal(by_local.within, 2 * (stages - 1));
    assert_int_equal(by_local.refused, 0);
    assert_true(by_local.local_bytes > 0);
    /* each tensor has a message of 24 bytes one way and one of 8 the other, and each pair at most 1,024 bytes
     * at its beginning */
    assert_true(by_local.mesh_bytes + by_local.local_bytes > by_mesh.mesh_bytes);
    assert_true(by_local.mesh_bytes < by_mesh.mesh_bytes - by_local.local_bytes * 9 / 10 + 8192);
    outcome_fini(&mesh);
    outcome_fini(&local);
}

static json_t *spec_of(const struct fixture *fix)
{
    json_t *spec = fix_spec(fix);
    json_object_set_new(json_object_get(spec, "train"), "steps", json_integer(3));
    json_object_set_new(spec, "eval", json_pack("{s:i}", "every_steps", 2));
    return spec;
}

static void tensors_go_from_one_memory_into_the_other(void **state)
{
    (void)state;
    struct fixture fix;
    fix_open(&fix, "llama");
    json_t *spec = spec_of(&fix);
    check_local(&fix, spec, 3, 1, "cpu");
    json_decref(spec);
    fix_close(&fix);
}

static void processes_write_into_each_other(void **state)
{
    (void)state;
    struct fixture fix;
    char program[400];
    const char *programs = getenv("MOTLEY_BIN");
    fix_open(&fix, "mixtral");
    snprintf(program, sizeof(program), "%s/motley-worker", programs ? programs : "bin");
    fix.program = program;
    json_t *spec = spec_of(&fix);
    check_local(&fix, spec, 2, 2, "emulated");
    json_decref(spec);
    fix_close(&fix);
}

/* A CPU cannot write into an emulated card or the reverse: both ranks log that, and the mesh carries
 * everything. */
static void what_cannot_be_shared_goes_by_the_mesh(void **state)
{
    (void)state;
    struct fixture fix;
    struct outcome mesh, tried;
    struct seen by_mesh = {.kinds = {"cpu", "emulated"}}, by_trying = by_mesh;
    fix_open(&fix, "llama");
    json_t *spec = spec_of(&fix);
    run(&fix, spec, 2, 2, false, &by_mesh, &mesh);
    run(&fix, spec, 2, 2, true, &by_trying, &tried);
    check_alike(&tried, &mesh);
    assert_int_equal(by_trying.refused, 2);
    assert_int_equal(by_trying.within, 0);
    assert_int_equal(by_trying.local_bytes, 0);
    outcome_fini(&mesh);
    outcome_fini(&tried);
    json_decref(spec);
    fix_close(&fix);
}

/* --- a peer is killed in the middle of a copy into its memory or out of it --- */

struct death {
    const char *fifo;
    uint32_t victim, survivor;
    bool releases; /* the survivor's copy is held, and continues after the death */
    bool dead;
    uint64_t death_ns;
};

/* Counts this process's mappings that are memory of emulated devices. */
static uint32_t mapped_memories(void)
{
    char line[512];
    uint32_t count = 0;
    FILE *file = fopen("/proc/self/maps", "r");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file))
        count += strstr(line, "motley-emulated") != NULL;
    fclose(file);
    return count;
}

/* Kills the victim when the copy is half done, which is when the FIFO can be opened to read. */
/* Rank 0's copies into another memory succeed and deliver zeros: both ranks say so, the mesh carries the
 * tensors, and the numbers are those of any other run. */
static void copies_that_lie_are_found_before_the_first_step(void **state)
{
    (void)state;
    struct fixture fix;
    struct outcome mesh, local;
    struct seen by_mesh = {.kinds = {"emulated", "emulated"}}, by_local = by_mesh;
    fix_open(&fix, "llama");
    json_t *spec = spec_of(&fix);
    run(&fix, spec, 2, 2, false, &by_mesh, &mesh);
    fix.isa[0] = "warp32,zeros";
    run(&fix, spec, 2, 2, true, &by_local, &local);
    fix.isa[0] = NULL;
    check_alike(&local, &mesh);
    assert_int_equal(by_local.refused, 2);
    assert_int_equal(by_local.changed, 2);
    outcome_fini(&mesh);
    outcome_fini(&local);
    json_decref(spec);
    fix_close(&fix);
}

static void die_in_the_copy(void *arg, struct fix_worker *workers, uint32_t rank, const json_t *event)
{
    struct death *death = arg;
    const char *text = json_string_value(json_object_get(event, "text"));
    (void)rank;
    if (death->dead || !text || !strstr(text, "is reached within the node"))
        return;
    int file = open(death->fifo, O_RDONLY | O_CLOEXEC);
    assert_true(file >= 0);
    close(file);
    assert_true(mapped_memories() > 0); /* the survivor's own memory and the peer's */
    struct fix_worker *victim = &workers[death->victim];
    assert_int_equal(kill(victim->pid, SIGKILL), 0);
    snprintf(victim->end, sizeof(victim->end), "killed");
    death->dead = true;
    death->death_ns = clock_mono_ns();
    if (!death->releases)
        return;
    file = open(death->fifo, O_WRONLY | O_CLOEXEC);
    assert_true(file >= 0);
    close(file);
}

/* Rank 0 copies. The survivor is a thread of this process, so that its remaining mappings can be counted. */
static void peer_dies(struct fixture *fix, const json_t *spec, const char *program, uint32_t victim)
{
    struct outcome out;
    struct fix_worker workers[2];
    char fifo[300];
    snprintf(fifo, sizeof(fifo), "%s", scratch_path(&fix->scratch, "hold"));
    struct death death = {.fifo = fifo, .victim = victim, .survivor = 1 - victim, .releases = victim == 1};
    struct plan *plan = fix_plan(fix, 2, 2);
    put_on_one_node(plan, true);
    setenv("MOTLEY_EMULATED_HOLD", death.fifo, 1);
    assert_int_equal(mkfifo(death.fifo, 0600), 0);
    outcome_init(&out);
    fix->isa[0] = "warp32,hold=3";
    for (uint32_t r = 0; r < 2; r++) {
        fix->program = r == victim ? program : NULL;
        fix_start_worker(fix, &workers[r], r);
    }
    for (uint32_t r = 0; r < 2; r++) {
        json_t *assign = fix_assign(fix, plan, spec, r, 1);
        json_t *device = json_object_get(json_object_get(assign, "local"), "device");
        json_object_set_new(device, "kind", json_string("emulated"));
        fix_send(&workers[r], assign);
    }
    fix_watch(workers, 2, 1, &out, die_in_the_copy, &death);
    double seconds = (double)(clock_mono_ns() - death.death_ns) / 1e9;
    fix_join(workers, 2);
    print_message("rank %u died in a copy: rank %u said so after %.3f s\n", victim, death.survivor, seconds);
    assert_true(death.dead);
    assert_int_equal(json_array_size(out.failures), 1);
    const json_t *failed = json_array_get(out.failures, 0);
    char name[16];
    snprintf(name, sizeof(name), "rank %u", victim);
    assert_true(json_is_false(json_object_get(failed, "own_fault")));
    assert_non_null(strstr(json_string_value(json_object_get(failed, "text")), name));
    assert_string_equal(json_string_value(json_object_get(failed, "code")), err_code_name(ERR_NET));
    assert_true(seconds < FIX_SECONDS / 4.0);
    assert_int_equal(mapped_memories(), 0);
    unlink(death.fifo);
    unsetenv("MOTLEY_EMULATED_HOLD");
    fix->isa[0] = NULL;
    fix->program = program;
    outcome_fini(&out);
    plan_destroy(plan);
}

static void a_peer_that_dies_in_a_copy_ends_the_run_typed_and_unmapped(void **state)
{
    (void)state;
    struct fixture fix;
    char program[400];
    const char *programs = getenv("MOTLEY_BIN");
    fix_open(&fix, "llama");
    snprintf(program, sizeof(program), "%s/motley-worker", programs ? programs : "bin");
    json_t *spec = spec_of(&fix);
    peer_dies(&fix, spec, program, 0); /* the victim is the writer */
    peer_dies(&fix, spec, program, 1); /* the victim is the one written into */
    struct outcome out;
    struct seen seen = {.kinds = {"emulated", "emulated"}};
    run(&fix, spec, 2, 2, true, &seen, &out); /* the next attempt succeeds */
    assert_int_equal(out.done, 2);
    outcome_fini(&out);
    json_decref(spec);
    fix_close(&fix);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_go_from_one_memory_into_the_other),
        cmocka_unit_test(processes_write_into_each_other),
        cmocka_unit_test(a_peer_that_dies_in_a_copy_ends_the_run_typed_and_unmapped),
        cmocka_unit_test(what_cannot_be_shared_goes_by_the_mesh),
        cmocka_unit_test(copies_that_lie_are_found_before_the_first_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
