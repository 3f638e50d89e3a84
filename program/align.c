/* Bounds the differences of the ranks' clocks, and chooses an offset for each rank within the bounds. */
#include "program/align.h"

#include <stdlib.h>
#include <string.h>

enum { SLACK_FIRST_NS = 1000, SLACK_TURNS = 40 };

#define UNBOUNDED INT64_MAX

struct clock_bounds {
    uint32_t ranks;
    int64_t *most; /* [ranks][ranks]: upper bound of (offset of the first rank − offset of the second) */
};

static int64_t *bound_at(const struct clock_bounds *bounds, uint32_t a, uint32_t b)
{
    return &bounds->most[(size_t)a * bounds->ranks + b];
}

/* Adds the bound of one message: it must not end on rank `to` before it begins on rank `from`. */
static void bound_add(struct clock_bounds *bounds, uint32_t from, uint32_t to, int64_t begin_ns,
                      int64_t end_ns)
{
    int64_t *most = bound_at(bounds, from, to);
    if (end_ns - begin_ns < *most)
        *most = end_ns - begin_ns;
}

static void bounds_read(struct clock_bounds *bounds, const struct plan_graph *graph, const int64_t *begin_ns,
                        const int64_t *end_ns)
{
    for (uint32_t m = 0; m < graph->meeting_count; m++)
        for (uint32_t i = graph->member_first[m]; i < graph->member_first[m + 1]; i++)
            for (uint32_t k = graph->member_first[m]; k < graph->member_first[m + 1]; k++) {
                const uint32_t from = graph->members[i], to = graph->members[k];
                const uint32_t a = graph->rank_of[from], b = graph->rank_of[to];
                const bool transfer = instr_sends(graph_instr_of(graph, a, from)) ||
                                      instr_receives(graph_instr_of(graph, a, from));
                if (i == k || end_ns[from] < begin_ns[from] || end_ns[to] < begin_ns[to] ||
                    (transfer && !instr_sends(graph_instr_of(graph, a, from))))
                    continue; /* a sender does not wait for its receiver */
                bound_add(bounds, a, b, begin_ns[from], end_ns[to]);
            }
}

/* Tightens all bounds by each other. Returns false when they contradict each other. */
static bool bounds_close(struct clock_bounds *bounds)
{
    for (uint32_t via = 0; via < bounds->ranks; via++)
        for (uint32_t a = 0; a < bounds->ranks; a++) {
            const int64_t first = *bound_at(bounds, a, via);
            for (uint32_t b = 0; first != UNBOUNDED && b < bounds->ranks; b++) {
                const int64_t second = *bound_at(bounds, via, b);
                int64_t *most = bound_at(bounds, a, b);
                if (second != UNBOUNDED && first + second < *most)
                    *most = first + second;
            }
        }
    for (uint32_t a = 0; a < bounds->ranks; a++)
        if (*bound_at(bounds, a, a) < 0)
            return false;
    return true;
}

/* Chooses the ranks' offsets one after the other. As the bounds are closed (shortest paths), every rank has a
 * valid offset, whatever offsets were chosen before. */
static void offsets_choose(const struct clock_bounds *bounds, struct trace_clock *clocks)
{
    for (uint32_t a = 0; a < bounds->ranks; a++) {
        int64_t low = -UNBOUNDED, high = UNBOUNDED, offset = 0;
        for (uint32_t b = 0; b < a; b++) {
            const int64_t above = *bound_at(bounds, a, b), below = *bound_at(bounds, b, a);
            if (above != UNBOUNDED && clocks[b].offset_ns + above < high)
                high = clocks[b].offset_ns + above;
            if (below != UNBOUNDED && clocks[b].offset_ns - below > low)
                low = clocks[b].offset_ns - below;
        }
        const bool both = low != -UNBOUNDED && high != UNBOUNDED;
        if (low > 0 || high < 0)
            offset = both ? low + (high - low) / 2 : low > 0 ? low : high;
        clocks[a].offset_ns = offset;
        clocks[a].residual_ns = a == 0                         ? 0
                                : !both                        ? -1
                                : high - offset > offset - low ? high - offset
                                                               : offset - low;
    }
}

int trace_align(const struct plan_graph *graph, const int64_t *begin_ns, const int64_t *end_ns,
                struct trace_clock *clocks, int64_t *slack_ns, struct err *err)
{
    const uint32_t ranks = graph->plan->rank_count;
    const size_t cells = (size_t)ranks * ranks;
    if (ranks > ALIGN_RANKS_MAX)
        return err_set(err, ERR_TOO_BIG, "clocks of %u ranks; at most %u are aligned", ranks,
                       ALIGN_RANKS_MAX);
    struct clock_bounds bounds = {.ranks = ranks, .most = malloc(cells * sizeof(int64_t))};
    int64_t *read = malloc(cells * sizeof(*read));
    if (!bounds.most || !read) {
        free(bounds.most);
        free(read);
        return err_set(err, ERR_NOMEM, "out of memory for the clocks of %u ranks", ranks);
    }
    for (uint32_t a = 0; a < ranks; a++)
        for (uint32_t b = 0; b < ranks; b++)
            *bound_at(&bounds, a, b) = a == b ? 0 : UNBOUNDED;
    bounds_read(&bounds, graph, begin_ns, end_ns);
    memcpy(read, bounds.most, cells * sizeof(*read));
    *slack_ns = 0;
    for (int turn = 0; !bounds_close(&bounds) && turn < SLACK_TURNS; turn++) {
        *slack_ns = *slack_ns ? *slack_ns * 2 : SLACK_FIRST_NS;
        for (size_t i = 0; i < cells; i++)
            bounds.most[i] = read[i] == UNBOUNDED || i % (ranks + 1) == 0 ? read[i] : read[i] + *slack_ns;
    }
    offsets_choose(&bounds, clocks);
    free(bounds.most);
    free(read);
    return 0;
}
