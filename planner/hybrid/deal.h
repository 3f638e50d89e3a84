/* Dealing micro-batches to replicas, and in which order each of them works: by running the pipeline of groups
 * once, at mean times and with unbounded buffers, first come first served, backwards first. An order that was
 * run can be run again; the buffers it needs are read off it. For this room only; pure.
 */
#ifndef MOTLEY_PLANNER_HYBRID_DEAL_H
#define MOTLEY_PLANNER_HYBRID_DEAL_H

#include "planner/search/placement.h"

static inline double later(double a, double b)
{
    return a > b ? a : b;
}

struct deal_event { /* forward or backward of one micro-batch */
    uint32_t micro_batch;
    bool backward;
};

struct deal {
    uint32_t stages, micro_batches, ranks;
    uint32_t *owner;           /* [stages · micro_batches]: rank */
    uint32_t *stage_of;        /* [ranks] */
    uint32_t *first;           /* [ranks + 1] into events */
    struct deal_event *events; /* every rank's order */
    uint32_t *turns; /* [turn_count]: ranks in the order in which their events begin; 0: not known */
    uint32_t turn_count;
    double *forward_end, *forward_begin, *backward_end,
        *backward_begin; /* [stages · micro_batches], seconds */
    double
        *sent; /* [stages · micro_batches]: when an activation sets out for the stage that is to forward it */
    double *passed, *returned; /* when it has left its maker's buffer, and when the gradient that a stage's
                                  backward makes has; never after what is known of the links. By shares
                                  these three are the ends of forwards and backwards themselves */
    double end_s;              /* of the last event */
    /* for looking for rings: [2 · micro_batches], twice [micro_batches], [micro_batches + 1] */
    double *soonest;
    uint32_t *held, *held_turn;
    uint8_t *apart;
    uint32_t *mine; /* [stages · micro_batches]: every rank's micro-batches in a row, while it runs */
    void *memory;   /* of all arrays */
};

/* With one stage, member i takes micro_count micro-batches in order, each forward and backward in turn; with
 * more, they are dealt in proportion to micro_count, or, where the first member's is 0, to whoever would be
 * done first (deal_flow.c), each member's window then being its own limit. Where the choice says who takes
 * which (dealt), that is how it is, and where it says in which order (order), that is how they work:
 * ERR_NOFIT where that would stand still. ERR_NOMEM, ERR_INTERNAL. */
int deal_init(struct deal *deal, const struct problem *problem, const struct place_choice *choice,
              uint32_t micro_batches, struct err *err);
void deal_fini(struct deal *deal);

/* Micro-batches that a member may have under way, of `own` of all that it takes, where its stage's window is
 * of all of them. */
uint32_t deal_limit(uint32_t window, uint32_t own, uint32_t all, uint32_t members);

static inline uint32_t deal_owner(const struct deal *deal, uint32_t stage, uint32_t k)
{
    return deal->owner[(size_t)stage * deal->micro_batches + k];
}

/* Fills owners, events and times of a deal whose arrays are there, as it comes. For deal_init. */
int deal_flow(struct deal *deal, const struct problem *problem, const struct place_choice *choice,
              struct err *err);

/* The same in turn (deal_turns.c). ERR_NOFIT where it would stand still, ERR_NOMEM. */
int deal_turns(struct deal *deal, const struct problem *problem, const struct place_choice *choice,
               struct err *err);

/* Most micro-batches between forward and backward on a rank, and the least ring in which none of them
 * collide (NULL: not asked for; finding it is the longer part). */
uint32_t deal_window(const struct deal *deal, uint32_t rank, uint32_t *ring);
/* A ring of boundary tensors: its instances, and how many of them are held at once. */
struct deal_ring {
    uint32_t ring, held;
};
struct deal_rings {
    struct deal_ring activations, gradients; /* what arrives, until it is used by forwards and by backwards */
    struct deal_ring leaving, returning;     /* what forwards and backwards have made, until it has left */
};
/* Zeros where there is nothing. Returns the tensors held in all. */
uint32_t deal_boundaries(const struct deal *deal, uint32_t rank, struct deal_rings *rings);

#endif
