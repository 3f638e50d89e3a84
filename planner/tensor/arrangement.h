/* Devices in ordered groups that cut matrices: what a micro-batch takes on each, which blocks are whose, what
 * fits, and what a step would take. For place_tensor.c and tensor_few.c; pure. */
#ifndef MOTLEY_PLANNER_TENSOR_ARRANGEMENT_H
#define MOTLEY_PLANNER_TENSOR_ARRANGEMENT_H

#include "planner/tensor/tensor.h"

#define ARRANGED_STAGES 64u   /* groups in a pipeline */
#define ARRANGED_DEVICES 256u /* in all of them */

/* Devices in groups, and how they work. */
struct arrangement {
    const struct problem *p;
    struct choice_list *list;
    uint32_t stages, devices, rows, micro_batches, together;
    uint32_t first[ARRANGED_STAGES + 1], device[ARRANGED_DEVICES];
    struct plan_tensor part[ARRANGED_DEVICES];
    double latency_s[ARRANGED_STAGES], rate[ARRANGED_STAGES]; /* worst of each group's ring */
    /* seconds of a micro-batch in one block of each class, sums included, without and with recomputation */
    double block_s[ARRANGED_STAGES][COST_CLASSES][2];
    int32_t end[ARRANGED_STAGES];
    uint32_t slack;      /* windows are at most so much wider than 1F1B asks for */
    const int32_t *cuts; /* where stages end; NULL: so that the slowest is done soonest */
    bool recompute;
    bool many;         /* not everything is looked at */
    bool any;          /* groups that do not pay, too: nothing else fits */
    double estimate_s; /* of what was tried last; INFINITY: it did not fit */
};

/* Every size of micro-batches worth trying, some of them in turns, for the devices as they are grouped: what
 * fits joins the list. Returns −1 on ERR_NOMEM only. */
int arrangement_sizes(struct arrangement *a, struct err *err);
/* One size alone. */
int arrangement_size(struct arrangement *a, uint32_t rows, struct err *err);
/* Deals a single group of the devices named, columns level whatever memory there is, and prices it at the
 * size and turns that it has: block_s[0]. Puts the devices in the order of their ring. False: it cannot be
 * dealt. */
bool arrangement_price(struct arrangement *a, enum tensor_by by);
/* Could a group's sums pay, at any micro-batch size? `any` says that they need not. */
bool arrangement_pays(const struct arrangement *a, const uint32_t *devices, uint32_t count);

#endif
