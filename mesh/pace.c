#include "mesh/pace.h"

#include <stdlib.h>
#include <string.h>

#include "mesh/wire.h"

/* A frame may start up to 5 ms in the past, to make up for a late wake-up. */
#define SLACK_NS 5000000u

struct mesh_pace {
    double ns_per_byte;
    uint64_t latency_ns, free_ns;              /* free_ns: when the wire becomes free */
    struct mesh_paced *first, *last, *leaving; /* frames in order; leaving is the first that has not left */
};

struct mesh_pace *mesh_pace_create(const struct mesh_link *link)
{
    struct mesh_pace *pace = calloc(1, sizeof(*pace));
    if (!pace)
        return NULL;
    pace->ns_per_byte = link->bytes_per_s > 0 ? 1e9 / link->bytes_per_s : 0;
    pace->latency_ns = (uint64_t)(link->latency_s * 1e9);
    return pace;
}

void mesh_pace_destroy(struct mesh_pace *pace, void (*drop)(void *done, void *arg), void *arg)
{
    if (!pace)
        return;
    for (struct mesh_paced *p = pace->leaving; p; p = p->next)
        if (p->done && drop)
            drop(p->done, arg);
    while (pace->first) {
        struct mesh_paced *next = pace->first->next;
        free(pace->first);
        pace->first = next;
    }
    free(pace);
}

size_t mesh_pace_chunk(const struct mesh_pace *pace)
{
    double bytes = pace->ns_per_byte > 0 ? 5e5 / pace->ns_per_byte : WIRE_PAYLOAD_MAX;
    if (bytes > WIRE_PAYLOAD_MAX)
        return WIRE_PAYLOAD_MAX;
    return bytes < 4096 ? 4096 : (size_t)bytes;
}

bool mesh_pace_free(const struct mesh_pace *pace, uint64_t now_ns)
{
    return pace->free_ns <= now_ns;
}

bool mesh_pace_put(struct mesh_pace *pace, uint64_t now_ns, uint64_t ready_ns, const void *head,
                   size_t head_size, const void *body, size_t body_size, void *done)
{
    struct mesh_paced *p = malloc(sizeof(*p) + head_size + body_size);
    if (!p)
        return false;
    uint64_t start = now_ns > SLACK_NS ? now_ns - SLACK_NS : 0;
    if (start < ready_ns)
        start = ready_ns;
    if (start < pace->free_ns)
        start = pace->free_ns;
    if (start > now_ns)
        start = now_ns;
    pace->free_ns = start + (uint64_t)((double)(head_size + body_size) * pace->ns_per_byte);
    p->next = NULL;
    p->leave_ns = pace->free_ns;
    p->arrive_ns = pace->free_ns + pace->latency_ns;
    p->done = done;
    p->size = head_size + body_size;
    memcpy(p->bytes, head, head_size);
    if (body_size)
        memcpy(p->bytes + head_size, body, body_size);
    if (pace->last)
        pace->last->next = p;
    else
        pace->first = p;
    pace->last = p;
    if (!pace->leaving)
        pace->leaving = p;
    return true;
}

void *mesh_pace_left(struct mesh_pace *pace, uint64_t now_ns, uint64_t *left_ns)
{
    while (pace->leaving && pace->leaving->leave_ns <= now_ns) {
        struct mesh_paced *p = pace->leaving;
        pace->leaving = p->next;
        if (p->done) {
            void *done = p->done;
            p->done = NULL;
            *left_ns = p->leave_ns;
            return done;
        }
    }
    return NULL;
}

struct mesh_paced *mesh_pace_arrived(struct mesh_pace *pace, uint64_t now_ns)
{
    struct mesh_paced *p = pace->first;
    if (!p || p == pace->leaving || p->arrive_ns > now_ns)
        return NULL;
    pace->first = p->next;
    if (!pace->first)
        pace->last = NULL;
    return p;
}

uint64_t mesh_pace_next(const struct mesh_pace *pace, bool waiting)
{
    uint64_t next = UINT64_MAX;
    if (pace->leaving)
        next = pace->leaving->leave_ns;
    if (pace->first && pace->first->arrive_ns < next)
        next = pace->first->arrive_ns;
    if (waiting && pace->free_ns < next)
        next = pace->free_ns;
    return next;
}

bool mesh_pace_empty(const struct mesh_pace *pace)
{
    return !pace->first;
}
