/* The job specification: what a person asks for, with every default filled.
 *
 * One parser for client, api, scheduler and worker. A specification arrives as a jansson object (made from
 * JSON or, by the client, from YAML with common/yaml.h); spec_parse() refuses unknown keys, wrong types and
 * values out of range with ERR_INVALID and a text that begins with the path, such as "train.batch_rows: 0 is
 * below 1".
 *
 * File-valued fields (`model`, `data.train`, `data.eval`, `method.start_from`) hold what the person wrote (a
 * path or a registered name). Before it posts, the client replaces files by blob references "sha256:<64 hex
 * digits>"; spec_blob_ref() tells the two apart. The api accepts only registered model names and blob
 * references.
 *
 * Strings in a spec are never NULL unless the comment says so. A parsed spec is immutable and may be shared
 * between threads. Pure: no files, no clock.
 */
#ifndef MOTLEY_MODEL_JOB_SPEC_H
#define MOTLEY_MODEL_JOB_SPEC_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "model/shape/lora_rules.h"
#include "model/shape/lora_sites.h"
#include "model/shape/names.h"

enum {
    SPEC_DEVICES_MAX = 4096,    /* names in placement.devices or placement.exclude */
    SPEC_NAME_BYTES = 128,      /* bytes in a job or device name, the NUL included: NAMES_BYTES_MAX */
    SPEC_PATH_BYTES = 4096,     /* bytes in a path or reference, the NUL included */
    SPEC_PROMPT_BYTES = 65536,  /* bytes in sample.prompt */
    SPEC_RETRIES_DEFAULT = 3,   /* limits.retries when `limits` is there and does not say */
    SPEC_RETRIES_UNLIMITED = 20 /* attempts after losses when there is no `limits` at all: still a bound */
};

enum spec_method { SPEC_METHOD_LORA, SPEC_METHOD_FULL };
/* How frozen weights are kept. PACKED: as the quantised blocks of the file (GGUF) hold them. */
enum spec_base { SPEC_BASE_FP32, SPEC_BASE_BF16, SPEC_BASE_FP16, SPEC_BASE_NF4, SPEC_BASE_PACKED };
enum spec_optimizer { SPEC_OPTIMIZER_ADAMW, SPEC_OPTIMIZER_ADAMW8BIT };
enum spec_compute { SPEC_COMPUTE_FP32, SPEC_COMPUTE_BF16, SPEC_COMPUTE_FP16 };
enum spec_format {
    SPEC_FORMAT_AUTO,
    SPEC_FORMAT_ALPACA,
    SPEC_FORMAT_CHAT,
    SPEC_FORMAT_TEXT,
    SPEC_FORMAT_TOKENS,
    SPEC_FORMAT_SHAREGPT,
    SPEC_FORMAT_PROMPT_COMPLETION,     /* both texts; of a specification, either kind */
    SPEC_FORMAT_PROMPT_COMPLETION_CHAT /* both lists of messages */
};
enum { SPEC_FORMAT_COUNT = SPEC_FORMAT_PROMPT_COMPLETION_CHAT + 1 };
enum spec_learn { SPEC_LEARN_ANSWER, SPEC_LEARN_ALL };
/* Of the learning rate, by transformers' names. CONSTANT and CONSTANT_WITH_WARMUP are the same here (the
 * warm-up is warmup_steps long), and so are COSINE and COSINE_WITH_MIN_LR (the minimum is final_fraction). */
enum spec_schedule {
    SPEC_SCHEDULE_COSINE,
    SPEC_SCHEDULE_LINEAR,
    SPEC_SCHEDULE_CONSTANT,
    SPEC_SCHEDULE_CONSTANT_WITH_WARMUP,
    SPEC_SCHEDULE_COSINE_WITH_MIN_LR,
    SPEC_SCHEDULE_COSINE_WARMUP_WITH_MIN_LR,
    SPEC_SCHEDULE_COSINE_WITH_RESTARTS,
    SPEC_SCHEDULE_POLYNOMIAL,
    SPEC_SCHEDULE_INVERSE_SQRT,
    SPEC_SCHEDULE_WARMUP_STABLE_DECAY
};
/* What weight decay is for: every trained parameter, or the matrices alone, as transformers' Trainer has it
 * (no norms, no biases). */
enum spec_decay { SPEC_DECAY_ALL, SPEC_DECAY_MATRICES };
enum spec_recompute { SPEC_RECOMPUTE_AUTO, SPEC_RECOMPUTE_YES, SPEC_RECOMPUTE_NO };
enum spec_placement {
    SPEC_PLACEMENT_AUTO,
    SPEC_PLACEMENT_SINGLE,
    SPEC_PLACEMENT_PIPELINE,
    SPEC_PLACEMENT_DATA,
    SPEC_PLACEMENT_HYBRID,
    SPEC_PLACEMENT_EXPERT,
    SPEC_PLACEMENT_TENSOR,
    SPEC_PLACEMENT_SERVER
};

/* The order of a pipeline's instructions (docs/PLANNER.md). */
enum spec_order {
    SPEC_ORDER_AUTO,
    SPEC_ORDER_1F1B,
    SPEC_ORDER_GPIPE,
    SPEC_ORDER_INTERLEAVED,
    SPEC_ORDER_SPLIT
};

/* What a job leaves: peft's adapter, a Hugging Face model with everything in it, or the adapter for
 * llama.cpp.
 */
enum spec_result { SPEC_RESULT_ADAPTER, SPEC_RESULT_MERGED, SPEC_RESULT_GGUF };
/* In which dtype its tensors are written. BASE: each as the base model's file has it (fp32 for an adapter and
 * for what the file keeps quantised). */
enum spec_result_dtype { SPEC_DTYPE_BASE, SPEC_DTYPE_FP32, SPEC_DTYPE_BF16, SPEC_DTYPE_FP16 };

/* In what boundary tensors travel between ranks. */
enum spec_boundary { SPEC_BOUNDARY_AUTO, SPEC_BOUNDARY_FP32, SPEC_BOUNDARY_BF16, SPEC_BOUNDARY_FP16 };
/* Where AdamW's moments lie between updates. */
enum spec_moments { SPEC_MOMENTS_DEVICE, SPEC_MOMENTS_HOST };
/* What a placement is chosen by: seconds a step, price a token, energy a token. */
enum spec_objective { SPEC_OBJECTIVE_TIME, SPEC_OBJECTIVE_COST, SPEC_OBJECTIVE_ENERGY };

struct spec_method_part {
    enum spec_method kind;  /* lora */
    uint32_t rank;          /* 16, 1..1024; meaningless for full */
    double alpha;           /* 32, > 0; the adapter is scaled by alpha / rank */
    double dropout;         /* 0.05, 0 <= dropout < 1 */
    struct lora_rules lora; /* which matrices (q_proj k_proj v_proj o_proj), and patterns of rank, alpha */
    bool rslora;            /* false; true: scaled by alpha / sqrt(rank) (Kalajdzievski 2023) */
    struct spec_names modules_to_save; /* embed_tokens, lm_head: trained whole beside the adapter; none */
    enum spec_base base;               /* fp32 */
    bool double_quant;                 /* true: the scales of nf4 are quantised too */
    enum spec_optimizer optimizer;     /* adamw */
    char *start_from;                  /* a peft adapter folder or its reference, or NULL */
};

struct spec_data_part {
    char *train;              /* required */
    char *eval;               /* or NULL */
    enum spec_format format;  /* auto */
    uint32_t sequence_tokens; /* 512, 2..1048576: longer rows are cut */
    bool shuffle;             /* true */
    enum spec_learn learn;    /* answer */
    json_t *chat_template;    /* NULL (the model's own), a string (a name of chat.h) or an object (chat.h) */
};

struct spec_train_part {
    uint32_t batch_rows;           /* 16, 1..65536 */
    uint64_t steps;                /* 100; 0 when epochs are given */
    uint32_t epochs;               /* 0 when steps are given */
    double learning_rate;          /* 2e-4, the peak */
    enum spec_schedule schedule;   /* cosine */
    uint64_t warmup_steps;         /* 10 */
    double final_fraction;         /* 0.1 of the peak at the end of a schedule that comes to one */
    uint32_t cycles;               /* 1, of cosine_with_restarts */
    double power;                  /* 1, of polynomial */
    uint64_t decay_steps;          /* of warmup_stable_decay, which needs it; 0 */
    double weight_decay;           /* 0, decoupled */
    enum spec_decay decay;         /* all */
    double beta1, beta2;           /* 0.9, 0.95 */
    double eps;                    /* 1e-8 */
    double clip_norm;              /* 1.0; 0: no clipping */
    uint64_t seed;                 /* 1; at most 2^53 so that every JSON reader keeps it */
    enum spec_compute compute;     /* fp32 */
    enum spec_recompute recompute; /* auto */
    double label_smoothing;        /* 0, below 1 */
    double neftune_alpha;          /* 0: no noise on the embeddings */
    double router_aux;             /* 0: off; SPEC_ROUTER_AUX_MODEL: the model's own; else the coefficient */
};

/* train.router_aux: true */
#define SPEC_ROUTER_AUX_MODEL (-1.0)

struct spec_placement_part {
    enum spec_placement kind;      /* auto */
    struct spec_names devices;     /* null: any */
    struct spec_names exclude;     /* none */
    uint32_t micro_batch_rows;     /* 0: auto */
    uint32_t stages;               /* 0: auto */
    enum spec_order order;         /* `schedule`: auto */
    enum spec_boundary boundary;   /* auto: as train.compute */
    enum spec_moments moments;     /* device */
    enum spec_objective objective; /* time */
    char *planner; /* a name of the scheduler's configuration, or "built-in"; NULL: its default.
                      Administrators' */
};

struct job_spec {
    char *name;       /* "job" */
    char *model;      /* required */
    int32_t priority; /* 0, -100..100; higher goes first */
    struct spec_method_part method;
    struct spec_data_part data;
    struct spec_train_part train;
    struct spec_placement_part placement;
    struct {
        enum spec_result kind;        /* adapter; merged with method.kind full, always */
        enum spec_result_dtype dtype; /* base (null) */
    } result;
    struct {
        uint64_t every_steps; /* 50; 0: only at the end */
        uint32_t keep;        /* 2, 1..100 */
    } checkpoint;
    struct {
        bool on;              /* false when `eval` is absent */
        uint64_t every_steps; /* 50; 0: only before the first and after the last step */
    } eval;
    struct {
        char *prompt;       /* NULL when `sample` is absent */
        uint32_t tokens;    /* 64 */
        double temperature; /* 0: greedy */
        uint64_t seed;      /* 1 */
    } sample;
    struct {
        bool on;          /* false when `limits` is absent */
        uint64_t time_s;  /* 0: no limit */
        uint32_t retries; /* attempts after losses */
    } limits;
    bool hold;
};

/* Read a specification. Borrows 'document' for the call (a chat template object is kept by reference count).
 * On success fills *spec, which spec_fini() releases; on failure *spec is empty and spec_fini() is a no-op.
 * Errors: ERR_INVALID with the path first, ERR_NOMEM.
 */
int spec_parse(const json_t *document, struct job_spec *spec, struct err *err);

/* Refuse what a model of this config cannot do, before anything runs: targets that match no layer (the error
 * lists those that do), what spec_lora_sites() refuses, a tied head to be saved alone, a packed base of a
 * file without quantised blocks, a router's loss without routers. ERR_INVALID, ERR_UNSUPPORTED, with the path
 * first. */
int spec_check_model(const struct job_spec *spec, const struct model_config *config, struct err *err);

/* Release what spec_parse() filled. Safe on a zeroed struct and twice. */
void spec_fini(struct job_spec *spec);

/* The specification as a document with every value written out: spec_parse() of it gives the same spec again,
 * so it can be posted as it is. Returns new, or NULL with ERR_NOMEM.
 */
json_t *spec_to_json(const struct job_spec *spec, struct err *err);

/* True when 'text' is a blob reference "sha256:<64 lower-case hex digits>"; then, if 'hex' is not NULL, the
 * digits and a NUL are written there.
 */
bool spec_blob_ref(const char *text, char hex[65]);

/* Where a method's adapters are on a model, of which rank and scaled by what: none (ways 0) with kind full.
 * ERR_INVALID, ERR_UNSUPPORTED, with the path first: a name or pattern that matches nothing (the error lists
 * what there is), experts that would differ. */
int spec_lora_sites(const struct spec_method_part *method, const struct model_config *config,
                    struct lora_sites *sites, struct err *err);

/* Learning rate of step t (from 0) of 'total_steps', T, with W = warmup_steps and f = final_fraction:
 * peak*(t+1)/W while t < W, so that no step is lost at rate 0 (transformers begins with t/W); from there on
 * as transformers' get_scheduler, with p = (t-W)/(T-W): cosine (cosine_with_min_lr)   f + (1-f) (1 + cos(pi
 * p))/2 cosine_with_restarts          f + (1-f) (1 + cos(pi (cycles p mod 1)))/2 linear, polynomial f + (1-f)
 * (1 - p)^power; linear: power 1 inverse_sqrt                  sqrt(S/(t + S - W)), S = W, or 10000 without
 * warm-up warmup_stable_decay           1 until T - decay_steps, then a half cosine down to f constant
 * (…_with_warmup)      1 of the peak. Beyond T (a job that goes on) those that end stay at f. Pure.
 */
double spec_learning_rate(const struct spec_train_part *train, uint64_t total_steps, uint64_t step);

/* Names as they stand in a specification; NULL for a value outside the enum. */
const char *spec_method_name(enum spec_method);
const char *spec_base_name(enum spec_base);
const char *spec_optimizer_name(enum spec_optimizer);
const char *spec_compute_name(enum spec_compute);
const char *spec_format_name(enum spec_format);
const char *spec_learn_name(enum spec_learn);
const char *spec_schedule_name(enum spec_schedule);
const char *spec_decay_name(enum spec_decay);
const char *spec_recompute_name(enum spec_recompute);
const char *spec_placement_name(enum spec_placement);
const char *spec_order_name(enum spec_order);
const char *spec_result_name(enum spec_result);
/* NULL for SPEC_DTYPE_BASE. */
const char *spec_result_dtype_name(enum spec_result_dtype);
const char *spec_boundary_name(enum spec_boundary);
const char *spec_moments_name(enum spec_moments);
const char *spec_objective_name(enum spec_objective);

#endif
