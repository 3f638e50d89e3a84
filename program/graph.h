/* The instructions of all ranks' programs of one kind as one dependency graph. A "meeting" is what joins
 * instructions of different ranks: a transfer (its send and its receive) or a collective (one instruction on
 * each rank of the group); the joined instructions end together. Building the graph proves that sends and
 * receives pair up and that all members of a group list its collectives in the same order. The checker's walk
 * and the simulator use it. Pure; owned by the caller. */
#ifndef MOTLEY_PROGRAM_GRAPH_H
#define MOTLEY_PROGRAM_GRAPH_H

#include "program/program.h"

struct graph_pair { /* sender and receiver of at least one transfer */
    uint32_t from, to;
    uint32_t meeting_first, meeting_count; /* range of meeting numbers: the transfers from `from` to `to`, in
                                              the order in which they are sent */
};

struct plan_graph {
    const struct plan *plan; /* borrowed */
    int kind;
    uint32_t *base;    /* [ranks + 1]: global number of a rank's first instruction */
    uint32_t total;    /* number of instructions */
    uint32_t *rank_of; /* [total]: rank of each instruction */
    uint32_t *queue;   /* [total]: queue of each instruction, by instr_queue_index */
    uint32_t *waits; /* [total]: how many instructions of the same rank must end before each: the previous one
                        in its queue, and `after` */
    /* The instructions of the same rank that wait for instruction n are dependents[dependent_first[n] …
     * dependent_first[n + 1]). */
    uint32_t *dependent_first, *dependents;
    uint32_t *meeting; /* [total]: number of the transfer or collective that the instruction belongs to, or
                          UINT32_MAX */
    uint32_t meeting_count; /* meetings are numbered: transfers first, pair by pair, then collectives */
    uint32_t pair_count;
    struct graph_pair *pairs; /* sorted by (from, to) */
    /* The instructions that meeting m joins are members[member_first[m] … member_first[m + 1]). */
    uint32_t *member_first, *members;
};

/* Builds the graph of the programs of one kind. The plan's fields must be in range (plan_check checks them
 * first). Returns 0, or -1: ERR_INVALID with a sentence, ERR_TOO_BIG, ERR_NOMEM; *graph is then empty. */
int plan_graph_init(struct plan_graph *graph, const struct plan *plan, int kind, struct err *err);
void plan_graph_fini(struct plan_graph *graph);

static inline const struct instr *graph_instr_of(const struct plan_graph *graph, uint32_t rank,
                                                 uint32_t number)
{
    return &graph->plan->ranks[rank].programs[graph->kind].instrs[number - graph->base[rank]];
}

static inline const struct instr *graph_instr(const struct plan_graph *graph, uint32_t number)
{
    return graph_instr_of(graph, graph->rank_of[number], number);
}

/* Describes an instruction, given by its global number: "rank 1 train instruction 5 (RECV mb0 from 0)". */
const char *graph_where(const struct plan_graph *graph, uint32_t number, char text[200]);

/* Return whether an instruction is the sending, or the receiving, side of a transfer. */
static inline bool instr_sends(const struct instr *x)
{
    return x->op == INSTR_SEND || x->op == INSTR_PUSH;
}

static inline bool instr_receives(const struct instr *x)
{
    return x->op == INSTR_RECV || x->op == INSTR_PULL;
}

#endif
