/* The work to be planned: model, method and rows; all that decides costs and memory, except devices.
 *
 * Plain data; pure. workload_from_spec (planner/given/from_spec.h) makes it from a job specification; tests
 * fill it by hand.
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
enum workload_compute { COMPUTE_FP32 = PLAN_F32, COMPUTE_BF16 = PLAN_BF16, COMPUTE_FP16 = PLAN_F16 };
enum workload_recompute { RECOMPUTE_AUTO, RECOMPUTE_YES, RECOMPUTE_NO };
enum workload_objective { OBJECTIVE_TIME, OBJECTIVE_COST, OBJECTIVE_ENERGY };

#define WORKLOAD_TARGETS_MAX 28
#define WORKLOAD_SAMPLE_STEPS 32 /* steps whose real batches are priced */

struct workload_row {
    uint32_t tokens;   /* tokens of the row, ≥ 2 */
    uint32_t labelled; /* positions whose prediction is trained; < tokens */
};

struct workload {
    const struct model_config *config; /* borrowed until the workload's end */
    enum workload_method method;
    uint32_t lora_rank;
    double lora_dropout; /* 0..1 */
    uint32_t target_count;
    char targets[WORKLOAD_TARGETS_MAX][64]; /* names of the matrices with adapters: "q_proj", … */
    struct lora_sites lora; /* set where adapters differ by target or layer, and then used instead of the
                               three members above; lora.ways is 0 where they do not differ */
    bool saves_embedding, saves_head; /* LoRA: these tables are trained in full beside the adapters */
    bool single_quant;                /* the scales of NF4 stay fp32 */
    bool router_loss;     /* the loss includes a load-balancing term over all layers with experts */
    bool moments8;        /* the optimiser's moments take 8 bits each */
    bool moments_on_host; /* the moments lie in host memory between updates */
    enum workload_base base;
    /* BASE_PACKED: mean bytes of a value in matrices, and in embedding and head */
    double packed_matrix_bytes, packed_table_bytes;
    enum workload_compute compute;
    bool compute_open; /* plan_search chooses `compute`, and clears this */
    /* Where plan_search chose 16 bits: how many times as much the best plan in fp32 takes of what the
     * objective asks to be least (time of a step, price, energy), by a short search in both; INFINITY if
     * nothing fits in fp32. Else 0. */
    double fp32_times;
    enum plan_dtype boundary; /* dtype of boundary tensors between ranks */
    bool boundary_open;       /* workload_compute_set sets `boundary`, too */
    enum workload_recompute recompute;
    enum workload_objective objective;
    uint32_t sequence_tokens; /* tokens of the longest row that the job allows */
    uint32_t batch_rows;
    uint64_t seed;
    bool shuffle;
    uint64_t steps; /* one of steps and epochs is 0 */
    uint32_t epochs;
    uint32_t row_count; /* 0: the data is unknown, and every row has sequence_tokens tokens, all labelled */
    struct workload_row *rows;      /* owned; [row_count] */
    uint32_t eval_row_count;        /* held-out rows; 0: none */
    struct workload_row *eval_rows; /* owned */
    /* Measured share of a layer's routed tokens that each expert gets: [layers][experts] of the model,
     * each layer's shares summing to 1 (dense layers are ignored). Borrowed; NULL: even routing. */
    const double *expert_share;
    double *routing; /* owned memory that expert_share may point to, or NULL */
    /* Tokens of prompt and answer together, for which a KV cache must have room; 0: no sampling. */
    uint32_t sample_tokens;
    uint32_t prompt_tokens;    /* the prompt's part of sample_tokens, which is prefilled at once */
    int place;                 /* enum plan_placement that the job asks for; −1: any */
    uint32_t micro_batch_rows; /* asked for by the job; 0: the planner chooses */
    uint32_t stages;           /* asked for by the job; 0: the planner chooses */
    /* placement.count, of which a plan only warns; 0: any number */
    uint32_t devices_least, devices_most;
    /* Schedule of a plan of several stages: enum plan_schedule plus 1; 0: the planner chooses. */
    uint32_t order;
    uint32_t device_count; /* devices that the plan may use; 0: all */
    char **devices;        /* owned */
    uint32_t exclude_count;
    char **exclude; /* owned */
};

/* Reads "fp32", "bf16" or "fp16"; −1 for any other word. */
int workload_compute_read(const char *word, enum workload_compute *compute);
/* Sets what is computed in, and with it the dtype of boundary tensors unless the job asks for one. */
void workload_compute_set(struct workload *workload, enum workload_compute compute);

/* Returns the bytes of one stored parameter of a layer's frozen matrices; for a packed base the mean. */
double workload_matrix_bytes(const struct workload *workload);
/* Returns the bytes of one stored parameter outside the layers' matrices: norms, embedding, head. */
double workload_other_bytes(const struct workload *workload);
/* Returns the bytes of both optimiser moments of one trained parameter. */
double workload_moment_bytes(const struct workload *workload);
/* Returns the steps of the job; 0: not known, as it is one of epochs and its rows are not known. */
uint64_t workload_step_count(const struct workload *workload);
/* Returns the most rows of a micro-batch: as many as the job asks for, else those of a step. */
uint32_t workload_rows_most(const struct workload *workload);
/* True if matrices are stored packed and unpacked before use. */
bool workload_packs(const struct workload *workload);
/* Returns the bytes of one value in the compute dtype. */
double workload_value_bytes(const struct workload *workload);

/* Releases what the workload owns; safe on a zeroed struct and when called twice. */
void workload_fini(struct workload *workload);
/* True if the name is in the list. */
bool workload_names(char *const *names, uint32_t count, const char *name);
/* Refuses a workload that cannot be planned: no rows, batch 0, a row longer than sequence_tokens …
 * ERR_INVALID names the field. */
int workload_check(const struct workload *workload, struct err *err);

#endif
