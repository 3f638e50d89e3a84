/* The answer for many devices depends neither on their names nor on the order in which devices, machines and
 * links are given. */
#include "planner/plan_fixture.h"

#include <jansson.h>

#define MIB ((uint64_t)1 << 20)
#define DEVICES_MAX 48u

struct card {
    uint32_t node;
    uint64_t memory;
    double speed;
};

struct wire {
    uint32_t from, to;
    double latency, rate;
};

struct world {
    uint32_t devices, nodes, wires;
    struct card cards[DEVICES_MAX];
    struct wire wire[2 * DEVICES_MAX];
    double nic[DEVICES_MAX];
};

/* Makes machines of one to four cards of a few kinds, some of them identical, with wires between some
 * machines and two network cards. */
static struct world world_make(uint64_t seed, uint32_t devices)
{
    static const double speeds[] = {0.5, 1, 1, 2.25};
    struct rand_stream r;
    struct world w = {.devices = devices};
    rand_stream_init(&r, seed, 77);
    for (uint32_t d = 0, left = 0; d < devices; d++) {
        w.nodes += left == 0;
        left = left ? left - 1 : rand_stream_below(&r, 4);
        w.cards[d] = (struct card){.node = w.nodes - 1,
                                   .memory = (250 + 60 * rand_stream_below(&r, 4)) * MIB,
                                   .speed = speeds[rand_stream_below(&r, 4)]};
    }
    for (uint32_t n = 0; n + 1 < w.nodes; n++) {
        if (rand_stream_below(&r, 2))
            w.wire[w.wires++] = (struct wire){n, n + 1 + rand_stream_below(&r, w.nodes - n - 1), 1e-4,
                                              1e8 * (1 + rand_stream_below(&r, 3))};
        if (rand_stream_below(&r, 4) == 0)
            w.nic[n] = 2.5e8;
    }
    return w;
}

static void shuffled(struct rand_stream *r, uint32_t *order, uint32_t count, bool shuffle)
{
    for (uint32_t i = 0; i < count; i++)
        order[i] = i;
    for (uint32_t i = count; shuffle && i > 1; i--) {
        uint32_t j = rand_stream_below(r, i), kept = order[i - 1];
        order[i - 1] = order[j];
        order[j] = kept;
    }
}

/* Returns the cluster under other names and in another order for each turn; turn 0 keeps both as they are. */
static struct cluster *cluster_of(const struct world *w, uint64_t turn)
{
    struct err err = {0};
    struct rand_stream r;
    struct cluster *cluster = cluster_create(&err);
    uint32_t order[DEVICES_MAX], names[DEVICES_MAX], wires[2 * DEVICES_MAX];
    char name[40], at[40], to[40];
    rand_stream_init(&r, turn, 78);
    shuffled(&r, order, w->devices, turn > 0);
    shuffled(&r, names, DEVICES_MAX, turn > 0);
    shuffled(&r, wires, w->wires, turn > 0);
    for (uint32_t i = 0; i < w->devices; i++) {
        const struct card *card = &w->cards[order[i]];
        snprintf(at, sizeof(at), "m%u", names[card->node]);
        snprintf(name, sizeof(name), "c%u", names[order[i]]);
        fixture_device(cluster, name, at, card->memory, card->speed);
    }
    for (uint32_t i = 0; i < w->wires; i++) {
        const struct wire *wire = &w->wire[wires[i]];
        snprintf(at, sizeof(at), "m%u", names[wire->from]);
        snprintf(to, sizeof(to), "m%u", names[wire->to]);
        json_t *link = json_pack("{s:s,s:s,s:f,s:f}", "from", at, "to", to, "latency_s", wire->latency,
                                 "bytes_per_s", wire->rate);
        assert_int_equal(cluster_add_link(cluster, link, &err), 0);
        json_decref(link);
    }
    for (uint32_t n = 0; n < w->nodes; n++) {
        snprintf(at, sizeof(at), "m%u", names[n]);
        if (w->nic[n] > 0)
            assert_int_equal(cluster_set_nic(cluster, at, w->nic[n], &err), 0);
    }
    assert_int_equal(cluster_set_defaults(cluster, 1e-5, 1e10, 2e-4, 1e8, &err), 0);
    return cluster;
}

static void same_expect(const struct plan_answer *a, const struct plan_answer *b, uint64_t seed)
{
    if (!a->plan || !b->plan) {
        assert_true(a->plan == b->plan);
        return;
    }
    if (a->step_s != b->step_s)
        fail_msg("seed %llu: %.9g s, by other names %.9g s", (unsigned long long)seed, a->step_s, b->step_s);
    assert_true(a->lower_bound_s == b->lower_bound_s);
    assert_int_equal(a->plan->placement, b->plan->placement);
    assert_int_equal(a->plan->rank_count, b->plan->rank_count);
    for (uint32_t r = 0; r < a->plan->rank_count; r++) {
        assert_int_equal(a->plan->ranks[r].block_begin, b->plan->ranks[r].block_begin);
        assert_int_equal(a->plan->ranks[r].block_end, b->plan->ranks[r].block_end);
        assert_true(a->plan->ranks[r].memory_limit_bytes == b->plan->ranks[r].memory_limit_bytes);
    }
}

static void names_and_order_of_devices_machines_and_links_change_no_answer(void **state)
{
    (void)state;
    uint32_t clusters = getenv("MOTLEY_LONG") ? 60 : 6, fits = 0;
    for (uint64_t seed = 0; seed < clusters; seed++) {
        struct model_config config = fixture_config(12);
        struct workload w = fixture_workload(&config, seed % 3 ? 16 : 400, seed % 3 ? 16 : 400);
        uint32_t many = clusters > 6 ? 40 : 24;
        struct world world = world_make(seed, seed % 5 == 4 ? many : 7 + (uint32_t)(seed * 7 % 10));
        struct cluster *plain = cluster_of(&world, 0);
        struct plan_answer *answer = fixture_search(&w, plain);
        fits += answer->plan != NULL;
        for (uint64_t turn = 1; turn <= (clusters > 6 ? 2 : 1); turn++) {
            struct cluster *other = cluster_of(&world, 100 * seed + turn);
            struct plan_answer *again = fixture_search(&w, other);
            same_expect(answer, again, seed);
            plan_answer_destroy(again);
            cluster_destroy(other);
        }
        plan_answer_destroy(answer);
        cluster_destroy(plain);
        workload_fini(&w);
    }
    print_message("%u of %u fit\n", fits, clusters);
    assert_true(fits > clusters / 2);
}

/* The lists that people read keep the order of the input. */
static void devices_left_out_and_alone_are_listed_as_they_were_given(void **state)
{
    (void)state;
    struct model_config config = fixture_config(12);
    struct workload w = fixture_workload(&config, 16, 16);
    struct world world = world_make(3, 12);
    struct cluster *cluster = cluster_of(&world, 9);
    struct plan_answer *answer = fixture_search(&w, cluster);
    uint32_t next = 0;
    for (uint32_t i = 0; i < answer->alternative_count; i++) {
        if (answer->alternatives[i].placement != PLACE_SINGLE)
            continue;
        assert_string_equal(answer->alternatives[i].device, cluster_device_name(cluster, next++));
    }
    assert_int_equal(next, 12);
    for (uint32_t i = 0, d = 0; i < answer->left_out_count; i++) {
        while (d < 12 && strcmp(answer->left_out[i].device, cluster_device_name(cluster, d)) != 0)
            d++;
        assert_true(d < 12);
    }
    assert_true(answer->left_out_count > 0);
    plan_answer_destroy(answer);
    cluster_destroy(cluster);
    workload_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_order_of_devices_machines_and_links_change_no_answer),
        cmocka_unit_test(devices_left_out_and_alone_are_listed_as_they_were_given),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
