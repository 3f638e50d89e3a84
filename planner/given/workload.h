/* What is to be trained: model, method, rows. Everything the planner prices, and nothing of where it runs.
 *
 * Plain data; pure. Made from a job specification by workload_from_spec (planner/given/from_spec.h), or by
 * hand in tests.
 */
#ifndef MOTLEY_PLANNER_GIVEN_WORKLOAD_H
#define MOTLEY_PLANNER_GIVEN_WORKLOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "model/shape/blocks.h"
#include "model/shape/config.h"
#include "program/program.h"

enum workload_method { METHOD_LORA, METHOD_FULL };
enum workload_base { BASE_FP32, BASE_BF16, BASE_FP16, BASE_NF4, BASE_PACKED };
enum workload_compute { COMPUTE_FP32, COMPUTE_BF16, COMPUTE_FP16 };
enum workload_recompute { RECOMPUTE_AUTO, RECOMPUTE_YES, RECOMPUTE_NO };
enum workload_objective { OBJECTIVE_TIME, OBJECTIVE_COST, OBJECTIVE_ENERGY };

#define WORKLOAD_TARGETS_MAX 16
#define WORKLOAD_SAMPLE_STEPS 32 /* steps whose real batches are priced */

struct workload_row {
    uint32_t tokens;   /* ≥ 2 */
    uint32_t labelled; /* positions whose prediction is learnt; < tokens */
};

struct workload {
    const struct model_config *config; /* borrowed until the workload's end */
    enum workload_method method;
    uint32_t lora_rank;
    double lora_dropout; /* 0..1 */
    uint32_t target_count;
    char targets[WORKLOAD_TARGETS_MAX][64]; /* "q_proj", … */
    struct lora_sites lora; /* where adapters differ by target or layer: what counts instead of the three;
                               ways 0: they do not */
    bool saves_embedding, saves_head; /* LoRA: trained whole beside the adapters */
    bool single_quant;                /* the scales of NF4 stay fp32 */
    bool router_loss;                 /* a load-balancing loss over all layers of a mixture */
    bool moments8;                    /* the optimiser's moments in 8 bits */
    bool moments_on_host;             /* they lie in host memory between updates */
    enum workload_base base;
    double packed_matrix_bytes, packed_table_bytes; /* PACKED: mean of a value, of embedding and head too */
    enum workload_compute compute;
    enum plan_dtype boundary; /* of boundary tensors between ranks */
    enum workload_recompute recompute;
    enum workload_objective objective;
    uint32_t sequence_tokens; /* longest row allowed */
    uint32_t batch_rows;
    uint64_t seed;
    bool shuffle;
    uint64_t steps; /* one of steps and epochs is 0 */
    uint32_t epochs;
    uint32_t row_count;        /* 0: unknown data, every row sequence_tokens long and learnt throughout */
    struct workload_row *rows; /* owned; row_count of them */
    uint32_t eval_row_count;   /* 0: none */
    struct workload_row *eval_rows; /* owned */
    /* Share of a layer's routed tokens that each of its experts gets, measured; [layers][experts] of the
     * model, each layer's summing to 1 (dense layers: ignored). Borrowed; NULL: even. */
    const double *expert_share;
    uint32_t sample_tokens;    /* prompt and answer together that a KV cache must hold; 0: no sampling */
    uint32_t prompt_tokens;    /* of them the prompt's, which prefill takes at once; ≤ sample_tokens */
    int place;                 /* enum plan_placement, or −1: any */
    uint32_t micro_batch_rows; /* 0: choose */
    uint32_t stages;           /* 0: choose */
    uint32_t order;            /* of a plan of several stages: enum plan_schedule plus 1; 0: choose */
    uint32_t device_count;     /* device names to choose from; 0: any */
    char **devices;            /* owned */
    uint32_t exclude_count;
    char **exclude; /* owned */
};

/* Bytes of a frozen parameter of a layer's matrices, as it is kept: of a packed base their mean. */
double workload_matrix_bytes(const struct workload *workload);
/* The same of all other parameters: norms, embedding, head. */
double workload_other_bytes(const struct workload *workload);
/* Bytes of both moments of a trained parameter. */
double workload_moment_bytes(const struct workload *workload);
/* Matrices are unpacked before they are used. */
bool workload_packs(const struct workload *workload);
/* Bytes of a value as it is computed with. */
double workload_value_bytes(const struct workload *workload);

/* Releases what is owned; safe on a zeroed struct and twice. */
void workload_fini(struct workload *workload);
/* Is the name among them? */
bool workload_names(char *const *names, uint32_t count, const char *name);
/* Refuses what cannot be planned (ERR_INVALID with the field): no rows, batch 0, a row longer than
 * sequence_tokens … */
int workload_check(const struct workload *workload, struct err *err);

#endif
