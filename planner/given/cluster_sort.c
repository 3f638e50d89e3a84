/* Canonical order by colour refinement (Weisfeiler and Leman 1968). Devices are distinguished by everything
 * known of them except names. Machines are distinguished by their devices, card and links, and in each round
 * also by the machines at the other ends of those links. Devices and machines that are still equal keep the
 * given order; except in clusters built to deceive, equal machines are interchangeable. */
#include "planner/given/cluster_sort.h"

#include <stdlib.h>
#include <string.h>

#include "common/arena.h"
#include "planner/given/cluster_change.h"

#define ROUNDS 3 /* how often each machine's key takes in those of its neighbours; a rule of thumb */

struct sorted_machine {
    uint32_t node, first, count; /* first: index in sorter.devices */
    uint64_t memory;             /* bytes of memory of all the machine's devices together */
    /* look: the machine's colour, a hash by which rounds tell machines apart; seen: the sum of the colours at
     * the far ends of its links in this round */
    uint64_t look, seen;
};

struct sorter {
    const struct cluster *cluster;
    struct arena arena; /* the arrays below */
    uint32_t *devices;  /* indices of the cluster's devices, grouped by machine */
    uint64_t *looks;    /* [devices] colour of each device of the cluster */
    struct sorted_machine *machines;
    uint32_t *place; /* [nodes] index of the node's machine */
};

static uint64_t cluster_sort_mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u; /* mixing steps of splitmix64 (Steele et al. 2014) */
    hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9u;
    hash = (hash ^ hash >> 27) * 0x94d049bb133111ebu;
    return hash ^ hash >> 31;
}

static uint64_t cluster_sort_mix_double(uint64_t hash, double value)
{
    uint64_t bits;
    value += 0.0; /* turns negative zero into zero */
    memcpy(&bits, &value, sizeof(bits));
    return cluster_sort_mix(hash, bits);
}

static uint64_t device_look(const struct planner_device *d)
{
    uint64_t hash = cluster_sort_mix(cluster_sort_mix(1, d->threads), cluster_hash_name(d->kind));
    hash = cluster_sort_mix(hash, d->like ? cluster_hash_name(d->like->name) : 0);
    hash = cluster_sort_mix_double(
        cluster_sort_mix_double(cluster_sort_mix_double(hash, d->heat), d->price_per_hour), d->watts);
    hash = cluster_sort_mix(cluster_sort_mix_double(hash, d->idle_watts), d->profile.present);
    for (int b = 0; b < PROFILE_BLOCKS && d->profile.present; b++) {
        hash =
            cluster_sort_mix_double(cluster_sort_mix(hash, d->profile.point_count[b]), d->profile.step_s[b]);
        hash = cluster_sort_mix(cluster_sort_mix(hash, d->profile.weights_bytes[b]),
                                d->profile.adapter_bytes[b]);
        hash = cluster_sort_mix(hash, d->profile.optimizer_bytes[b]);
        for (uint32_t i = 0; i < d->profile.point_count[b]; i++) {
            const struct profile_point *p = &d->profile.points[b][i];
            hash = cluster_sort_mix_double(
                cluster_sort_mix_double(cluster_sort_mix_double(hash, p->rows), p->tokens), p->labelled);
            hash = cluster_sort_mix_double(cluster_sort_mix_double(hash, p->sum_sq), p->forward_s);
            hash = cluster_sort_mix_double(cluster_sort_mix_double(hash, p->backward_s), p->recompute_s);
        }
    }
    hash = cluster_sort_mix(cluster_sort_mix_double(hash, d->profile.present ? d->profile.heat : 1),
                            d->lacks != NULL);
    return cluster_sort_mix(hash, d->profile.present ? d->profile.process_base_bytes : 0);
}

/* Orders devices by memory, largest first, then by colour, then by speed. */
static int device_compare(const struct sorter *s, uint32_t a, uint32_t b)
{
    const struct planner_device *x = &s->cluster->devices[a], *y = &s->cluster->devices[b];
    if (x->memory_limit_bytes != y->memory_limit_bytes)
        return x->memory_limit_bytes > y->memory_limit_bytes ? -1 : 1;
    if (s->looks[a] != s->looks[b])
        return s->looks[a] < s->looks[b] ? -1 : 1;
    return x->speed != y->speed ? (x->speed > y->speed ? -1 : 1) : 0;
}

/* Stable sort in place. Lists are short or nearly sorted. */
static void devices_sort(const struct sorter *s, uint32_t *list, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++) {
        uint32_t item = list[i], at = i;
        for (; at > 0 && device_compare(s, list[at - 1], item) > 0; at--)
            list[at] = list[at - 1];
        list[at] = item;
    }
}

/* Orders machines by memory, largest first. */
static int machine_compare(const void *left, const void *right)
{
    const struct sorted_machine *a = left, *b = right;
    if (a->memory != b->memory)
        return a->memory > b->memory ? -1 : 1;
    if (a->look != b->look)
        return a->look < b->look ? -1 : 1;
    return a->node < b->node ? -1 : a->node > b->node;
}

/* Hashes one end of a link: its rates and the colour of the machine at the other end. Hashes are summed,
 * so the order of links does not matter. */
static void link_see(const struct sorter *s, uint32_t from, uint32_t to, const struct cluster_link *link,
                     bool out)
{
    struct sorted_machine *here = &s->machines[s->place[from]];
    const struct sorted_machine *there = &s->machines[s->place[to]];
    uint64_t hash = cluster_sort_mix(cluster_sort_mix(out ? 3 : 5, there->look), from == to);
    here->seen += cluster_sort_mix_double(
        cluster_sort_mix_double(cluster_sort_mix(hash, link->emulated), link->latency_s), link->bytes_per_s);
}

static void machines_refine(struct sorter *s)
{
    const struct cluster *c = s->cluster;
    for (int round = 0; round < ROUNDS && c->link_count; round++) {
        for (uint32_t i = 0; i < c->link_count; i++) {
            const struct link_pair *pair = &c->links[i];
            const struct cluster_link *link = &pair->link;
            link_see(s, pair->from, pair->to, link, true);
            link_see(s, pair->to, pair->from, link, false);
            if (pair->from != pair->to &&
                !cluster_link_known(c, pair->to, pair->from)) { /* a link that was stated in one direction has
                                                                   the same values in the other */
                link_see(s, pair->to, pair->from, link, true);
                link_see(s, pair->from, pair->to, link, false);
            }
        }
        for (uint32_t n = 0; n < c->node_count; n++) {
            s->machines[n].look = cluster_sort_mix(s->machines[n].look, s->machines[n].seen);
            s->machines[n].seen = 0;
        }
    }
}

static void machines_make(struct sorter *s)
{
    const struct cluster *c = s->cluster;
    uint32_t at = 0;
    for (uint32_t d = 0; d < c->device_count; d++) {
        s->looks[d] = device_look(&c->devices[d]);
        s->machines[c->devices[d].node].count++;
    }
    for (uint32_t n = 0; n < c->node_count; n++) {
        s->machines[n].node = s->place[n] = n;
        s->machines[n].first = at;
        at += s->machines[n].count;
        s->machines[n].count = 0;
    }
    for (uint32_t d = 0; d < c->device_count; d++) {
        struct sorted_machine *m = &s->machines[c->devices[d].node];
        s->devices[m->first + m->count++] = d;
    }
    for (uint32_t n = 0; n < c->node_count; n++) {
        struct sorted_machine *m = &s->machines[n];
        uint64_t look = cluster_sort_mix_double(7, c->nodes[n].nic_bytes_per_s);
        devices_sort(s, &s->devices[m->first], m->count);
        for (uint32_t i = m->first; i < m->first + m->count; i++) {
            const struct planner_device *d = &c->devices[s->devices[i]];
            m->memory += d->memory_limit_bytes;
            look = cluster_sort_mix_double(
                cluster_sort_mix(cluster_sort_mix(look, s->looks[s->devices[i]]), d->memory_limit_bytes),
                d->speed);
        }
        m->look = look;
    }
    machines_refine(s);
    qsort(s->machines, c->node_count, sizeof(*s->machines), machine_compare);
    for (uint32_t n = 0; n < c->node_count; n++)
        s->place[s->machines[n].node] = n;
}

struct cluster *cluster_sorted(const struct cluster *c, uint32_t *listed, struct err *err)
{
    struct sorter s = {.cluster = c};
    struct cluster *to = NULL;
    uint32_t *order = arena_get(&s.arena, c->device_count, sizeof(*order)), count = 0;
    ARENA_ARRAY(&s.arena, s.devices, c->device_count);
    ARENA_ARRAY(&s.arena, s.looks, c->device_count);
    ARENA_ARRAY(&s.arena, s.machines, c->node_count);
    ARENA_ARRAY(&s.arena, s.place, c->node_count);
    if (s.arena.failed) {
        err_set(err, ERR_NOMEM, "planner: out of memory");
    } else {
        machines_make(&s);
        for (uint32_t n = 0; n < c->node_count; n++) {
            const struct sorted_machine *m = &s.machines[n];
            for (uint32_t i = m->first; i < m->first + m->count; i++) {
                listed[s.devices[i]] = count;
                order[count++] = s.devices[i];
            }
        }
        to = cluster_copy(c, order, err);
    }
    arena_fini(&s.arena);
    return to;
}
