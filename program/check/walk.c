/* Walks the programs: runs all queues abstractly until everything is done or nothing can start.
 *
 * Transfers count as rendezvous: neither side is done before both have started. A program that ends under
 * this rule also ends with any buffering. Buffers themselves are slots, whose reuse is ordered by `after`.
 */
#include <stdlib.h>
#include <string.h>

#include "program/check/check_private.h"
#include "program/graph.h"

/* Reports a deadlock by naming one instruction that waits and the instructions that it waits for. */
static int walk_stuck(const struct plan_graph *w, const uint32_t *waits, const bool *done, struct err *err)
{
    char one[200], two[200];
    for (uint32_t n = 0; n < w->total; n++) {
        if (done[n] || waits[n] || w->meeting[n] == UINT32_MAX)
            continue;
        uint32_t m = w->meeting[n];
        for (uint32_t k = w->member_first[m]; k < w->member_first[m + 1]; k++) {
            uint32_t other = w->members[k];
            if (other == n || waits[other] == 0)
                continue;
            uint32_t rank = w->rank_of[other], queue = instr_queue_index(w->plan, graph_instr(w, other));
            uint32_t blocker = other;
            for (uint32_t p = w->base[rank]; p < other; p++) {
                if (!done[p] && instr_queue_index(w->plan, graph_instr(w, p)) == queue) {
                    blocker = p;
                    break;
                }
            }
            return err_set(err, ERR_INVALID,
                           "nothing can start any more: %s waits for rank %u, whose queue stands at %s",
                           graph_where(w, n, one), rank, graph_where(w, blocker, two));
        }
    }
    return err_set(err, ERR_INVALID, "nothing can start any more in %s", program_kind_name(w->kind));
}

static int check_walk_run(const struct plan_graph *w, uint32_t *waits, uint32_t *missing, uint32_t *stack,
                          bool *done, struct err *err)
{
    uint32_t top = 0, finished = 0;
    for (uint32_t n = 0; n < w->total; n++)
        if (waits[n] == 0)
            stack[top++] = n;
    while (top > 0) {
        uint32_t number = stack[--top], meeting = w->meeting[number];
        if (meeting != UINT32_MAX && --missing[meeting] > 0)
            continue;
        uint32_t first = meeting == UINT32_MAX ? 0 : w->member_first[meeting];
        uint32_t end = meeting == UINT32_MAX ? 1 : w->member_first[meeting + 1];
        for (uint32_t k = first; k < end; k++) {
            uint32_t n = meeting == UINT32_MAX ? number : w->members[k];
            done[n] = true;
            finished++;
            for (uint32_t d = w->dependent_first[n]; d < w->dependent_first[n + 1]; d++)
                if (--waits[w->dependents[d]] == 0)
                    stack[top++] = w->dependents[d];
        }
    }
    return finished == w->total ? 0 : walk_stuck(w, waits, done, err);
}

int check_walk(const struct plan *plan, int kind, struct err *err)
{
    struct plan_graph graph;
    if (plan_graph_init(&graph, plan, kind, err) < 0)
        return -1;
    size_t total = (size_t)graph.total + 1;
    uint32_t *waits = calloc(total, sizeof(*waits)), *missing = calloc(total, sizeof(*missing));
    uint32_t *stack = calloc(total, sizeof(*stack));
    bool *done = calloc(total, sizeof(*done));
    int result = -1;
    if (!waits || !missing || !stack || !done) {
        err_set(err, ERR_NOMEM, "plan: out of memory while checking %u instructions", graph.total);
    } else {
        memcpy(waits, graph.waits, graph.total * sizeof(*waits));
        for (uint32_t m = 0; m < graph.meeting_count; m++)
            missing[m] = graph.member_first[m + 1] - graph.member_first[m];
        result = check_walk_run(&graph, waits, missing, stack, done, err);
    }
    free(waits);
    free(missing);
    free(stack);
    free(done);
    plan_graph_fini(&graph);
    return result;
}
