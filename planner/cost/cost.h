/* Cost tables: the seconds that a device takes for a block, as a function of the contents of a micro-batch
 * (curve.h). A layer with experts costs the sum of its parts. */
#ifndef MOTLEY_PLANNER_COST_COST_H
#define MOTLEY_PLANNER_COST_COST_H

#include "model/shape/blocks.h"
#include "planner/cost/curve.h"
#include "planner/given/workload.h"

enum cost_class { COST_EMBEDDING, COST_LAYER, COST_LAYER_SPARSE, COST_HEAD, COST_CLASSES };
/* Parts of a layer. They are priced separately if the model has experts, so that attention and experts may be
 * on different devices. A layer with experts costs exactly the sum of attention, router, and all experts at
 * an even share of the tokens. If a profile has both whole layers and parts, the layers' times give the sum,
 * and the parts' times how it is divided, because whole layers are measured more often and a device's speed
 * may have changed when parts are measured. */
enum cost_part { COST_PART_ATTENTION, COST_PART_FFN, COST_PART_ROUTER, COST_PART_EXPERT, COST_PARTS };

/* All cost curves of one device for one workload. */
struct cost_device {
    struct cost_curve curves[COST_CLASSES];
    /* COST_PART_EXPERT is one expert, as a function of the tokens that it gets. Dense models have curves only
     * of attention and FFN, and only if the profile has both. */
    struct cost_curve parts[COST_PARTS];
    /* Curves of attention and FFN (by their number in COST_PARTS) with only the share cut_share of their
     * heads or columns; 0: not measured. */
    struct cost_curve cuts[COST_PART_FFN + 1];
    double cut_share[COST_PART_FFN + 1];
    double part_step_s[COST_PARTS];   /* seconds of the optimiser step of a part; COST_PART_EXPERT: of one
                                         expert */
    double experts_overhead_s;        /* seconds spent once per layer, however many experts run */
    uint32_t experts, experts_active; /* experts of a layer, and experts that a token uses; 0: the layers
                                         are dense */
    double step_s[COST_CLASSES];      /* seconds of the optimiser step of one block */
    enum cost_origin origin;
    double uncertainty; /* relative error of the seconds */
    double noise; /* the part of uncertainty that a doubtful profile causes (noise.h); 0: not doubtful */
};

/* Returns the cost class of a block of the list. */
enum cost_class cost_class_of(const struct block *block);

/* Builds the curves of one device from its profile, or else estimates them from the catalogue entry and
 * the blocks' FLOPs. ERR_INVALID if neither is known; ERR_NOMEM. */
int cost_device_init(struct cost_device *cost, const struct planner_device *device,
                     const struct workload *workload, const struct block_list *blocks, struct err *err);
void cost_device_fini(struct cost_device *cost);

/* Returns the seconds of one block of a class; a layer with experts is the sum of its parts. */
double cost_class_seconds(const struct cost_device *cost, enum cost_class cls, enum cost_way way,
                          const struct cost_load *load);
/* Returns the seconds of one part; for COST_PART_EXPERT, those of one expert. */
double cost_part_seconds(const struct cost_device *cost, enum cost_part part, enum cost_way way,
                         const struct cost_load *load);
/* Returns the seconds of what a layer with experts does beside them: attention and the router. */
double cost_attention_seconds(const struct cost_device *cost, enum cost_way way,
                              const struct cost_load *load);
/* Returns the measured share that attention has of a dense layer's seconds; negative: not measured. */
double cost_attention_share(const struct cost_device *cost, enum cost_way way, const struct cost_load *load);
/* Returns the share of the seconds of attention or FFN that does not shrink with a member's share of the
 * heads or columns, because every member of a tensor group does it (adapters' inputs, norms, dropout) or
 * because smaller products run less efficiently; negative: not measured. */
double cost_fixed_share(const struct cost_device *cost, enum cost_part part, enum cost_way way,
                        const struct cost_load *load);
/* Returns the seconds of `count` experts of one layer, each with `tokens` tokens on average (below 1: some
 * get none). */
double cost_experts_seconds(const struct cost_device *cost, enum cost_way way, double count, double tokens);

#endif
