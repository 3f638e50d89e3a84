/* The job specification: a person's request with every default filled.
 *
 * Client, api, scheduler and worker use one parser. A specification arrives as a jansson object (made from
 * JSON or, by the client, from YAML with common/yaml.h). spec_parse() refuses unknown keys, wrong types and
 * values out of range with ERR_INVALID and a text that begins with the path, such as "train.batch_rows: 0 is
 * below 1".
 *
 * File-valued fields (`model`, `data.train`, `data.eval`, `method.start_from`) hold what the person wrote (a
 * path or a registered name). Before it posts, the client replaces files by blob references "sha256:<64 hex
 * digits>"; spec_blob_ref() distinguishes the two. The api accepts only registered model names and blob
 * references.
 *
 * Strings in a spec are never NULL unless the comment says so. A parsed spec is immutable and may be shared
 * between threads. Parsing is pure: it uses no files and no clock. */
#ifndef MOTLEY_MODEL_JOB_SPEC_H
#define MOTLEY_MODEL_JOB_SPEC_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/doc.h"
#include "common/err.h"
#include "model/shape/lora_rules.h"
#include "model/shape/lora_sites.h"
#include "model/shape/names.h"

enum {
    SPEC_DEVICES_MAX = 4096,   /* names in placement.devices or placement.exclude */
    SPEC_NAME_BYTES = 128,     /* bytes in a job or device name, the NUL included; equals NAMES_BYTES_MAX */
    SPEC_PATH_BYTES = 4096,    /* bytes in a path or reference, the NUL included */
    SPEC_PROMPT_BYTES = 65536, /* bytes in sample.prompt */
    SPEC_LABELS_MAX = 16,
    SPEC_LABEL_KEY_BYTES = 64, /* bytes of a label's key, and below of its value, the NUL included */
    SPEC_LABEL_VALUE_BYTES = 128,
    SPEC_AFTER_MAX = 64,        /* jobs in `after` or `after_any` */
    SPEC_ARRAY_MAX = 1000,      /* elements of an array */
    SPEC_RETRIES_DEFAULT = 3,   /* limits.retries when `limits` is present without it */
    SPEC_RETRIES_UNLIMITED = 20 /* limits.retries when `limits` is absent */
};

enum spec_method { SPEC_METHOD_LORA, SPEC_METHOD_FULL };
/* How frozen weights are stored. PACKED: in the quantised blocks of the file (GGUF). */
enum spec_base { SPEC_BASE_FP32, SPEC_BASE_BF16, SPEC_BASE_FP16, SPEC_BASE_NF4, SPEC_BASE_PACKED };
enum spec_optimizer { SPEC_OPTIMIZER_ADAMW, SPEC_OPTIMIZER_ADAMW8BIT };
enum spec_compute { SPEC_COMPUTE_AUTO, SPEC_COMPUTE_FP32, SPEC_COMPUTE_BF16, SPEC_COMPUTE_FP16 };
enum spec_format {
    SPEC_FORMAT_AUTO,
    SPEC_FORMAT_ALPACA,
    SPEC_FORMAT_CHAT,
    SPEC_FORMAT_TEXT,
    SPEC_FORMAT_TOKENS,
    SPEC_FORMAT_SHAREGPT,
    /* prompt and completion are texts; in a specification, texts or lists */
    SPEC_FORMAT_PROMPT_COMPLETION,
    SPEC_FORMAT_PROMPT_COMPLETION_CHAT /* prompt and completion are lists of messages */
};
enum { SPEC_FORMAT_COUNT = SPEC_FORMAT_PROMPT_COMPLETION_CHAT + 1 };
enum spec_learn { SPEC_LEARN_ANSWER, SPEC_LEARN_ALL };
/* Learning-rate schedules by transformers' names. CONSTANT and CONSTANT_WITH_WARMUP are the same here (the
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
/* The parameters that weight decay applies to: all trained ones, or the matrices alone (no norms, no biases)
 * as in transformers' Trainer. */
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

/* The result of a job: peft's adapter, a whole Hugging Face model with the adapter merged, or the adapter for
 * llama.cpp. */
enum spec_result { SPEC_RESULT_ADAPTER, SPEC_RESULT_MERGED, SPEC_RESULT_GGUF };
/* The dtype of the result's tensors. BASE: the dtype of each tensor in the base model's file (fp32 for an
 * adapter and for quantised tensors). */
enum spec_result_dtype { SPEC_DTYPE_BASE, SPEC_DTYPE_FP32, SPEC_DTYPE_BF16, SPEC_DTYPE_FP16 };

/* The dtype in which boundary tensors travel between ranks. */
enum spec_boundary { SPEC_BOUNDARY_AUTO, SPEC_BOUNDARY_FP32, SPEC_BOUNDARY_BF16, SPEC_BOUNDARY_FP16 };
/* Where AdamW's moments are stored between updates. */
enum spec_moments { SPEC_MOMENTS_DEVICE, SPEC_MOMENTS_HOST };
/* How a job competes with others. Only administrators may give urgent. */
enum spec_service { SPEC_SERVICE_URGENT, SPEC_SERVICE_NORMAL, SPEC_SERVICE_SCAVENGER };

/* What happens to a job whose placement.kind does not fit the available devices: it waits for others, or any
 * kind of plan is used. */
enum spec_fallback { SPEC_FALLBACK_WAIT, SPEC_FALLBACK_ANY };
/* placement.trials: its default and its limit. */
enum { SPEC_TRIALS = 2, SPEC_TRIALS_MAX = 3 };

/* Whether a running job moves to another plan when that pays. */
enum spec_move { SPEC_MOVE_AUTO, SPEC_MOVE_NEVER };
/* The quantity that a placement minimises: seconds per step, price per token, or energy per token. */
enum spec_objective { SPEC_OBJECTIVE_TIME, SPEC_OBJECTIVE_COST, SPEC_OBJECTIVE_ENERGY };

/* Defaults, limits and meanings of the fields stand in spec.c. */
struct spec_method_part {
    enum spec_method kind;
    uint32_t rank;
    double alpha, dropout;
    struct lora_rules lora; /* as written; spec_lora_rules() has the model's own default targets */
    bool rslora;
    struct spec_names modules_to_save;
    enum spec_base base;
    bool double_quant;
    enum spec_optimizer optimizer;
    char *start_from; /* NULL, or a peft adapter folder or its reference */
};

struct spec_data_part {
    char *train, *eval; /* eval: NULL without evaluation rows */
    enum spec_format format;
    uint32_t sequence_tokens;
    bool shuffle;
    enum spec_learn learn;
    json_t *chat_template; /* NULL, the model's own; else a string (a name of chat.h) or an object (chat.h) */
    char *day;             /* NULL, or "2026-01-31" */
};

struct spec_train_part {
    uint32_t batch_rows;
    uint64_t steps;  /* 0: those of the epochs */
    uint32_t epochs; /* 0: a job of steps; beside steps: so many steps in passes of epochs */
    double learning_rate;
    enum spec_schedule schedule;
    uint64_t warmup_steps;
    double final_fraction;
    uint32_t cycles;
    double power;
    uint64_t decay_steps;
    double weight_decay;
    enum spec_decay decay;
    double betas[2];
    double eps, clip_norm;
    uint64_t seed; /* at most 2^53 so that every JSON reader keeps it */
    enum spec_compute compute;
    enum spec_recompute recompute;
    double label_smoothing, neftune_alpha;
    double router_aux; /* 0: off; SPEC_ROUTER_AUX_MODEL: the model's own coefficient; else the coefficient */
};

/* The value of notify that tells nobody. */
#define SPEC_NOTIFY_NONE "none"

/* The value of router_aux for train.router_aux: true. */
#define SPEC_ROUTER_AUX_MODEL (-1.0)

struct spec_placement_part {
    enum spec_placement kind;
    struct spec_names devices, exclude;
    uint32_t micro_batch_rows, stages; /* 0: automatic */
    uint32_t count_least, count_most;  /* how many devices the job is to have; 0: any number */
    enum spec_order order;             /* the key is `schedule` */
    enum spec_boundary boundary;
    enum spec_moments moments;
    enum spec_objective objective;
    enum spec_fallback fallback;
    enum spec_move move;
    uint32_t trials; /* how many further plans the first steps may run on; 0: none */
    /* NULL, a plan is searched for; else the plan to run, an object as `motley get` writes it, whose content
     * is checked against model and devices when it is used. Clients may have the name of its file instead */
    json_t *plan;
    char *planner; /* NULL, the scheduler's default; else a name of its configuration, or "built-in" */
};

/* Ids of jobs, each at least 1 and there once. */
struct spec_jobs {
    uint32_t count;
    int64_t ids[SPEC_AFTER_MAX];
};

struct job_spec {
    char *name, *model;
    int32_t priority;
    json_t *labels; /* NULL: none; else {key: text} */
    struct spec_method_part method;
    struct spec_data_part data;
    struct spec_train_part train;
    struct spec_placement_part placement;
    struct {
        enum spec_result kind; /* with method.kind full it is always merged */
        enum spec_result_dtype dtype;
    } result;
    struct {
        uint64_t every_steps;
        uint32_t keep;
    } checkpoint;
    struct {
        bool on; /* true when there is data.eval */
        uint64_t every_steps;
    } eval;
    struct {
        bool on;      /* false when `sample` is absent */
        char *prompt; /* NULL when `sample` is absent */
        uint32_t tokens;
        double temperature;
        uint64_t seed;
    } sample;
    struct {
        bool on;         /* false when `limits` is absent */
        uint64_t time_s; /* 0, no limit */
        uint32_t retries;
    } limits;
    bool hold;
    char *notify;  /* NULL: the owner's own default; else "none", or the address that is told of its end */
    char *account; /* NULL: the submitter's default; else a group that is charged */
    enum spec_service service;
    char *begin;      /* NULL: at once; else a time in RFC 3339 before which the job does not start */
    int64_t begin_us; /* begin in microseconds since 1970, UTC; 0 without begin */
    struct spec_jobs after, after_any;
    json_t *array; /* NULL: one job; else {path: [values]}; other fields are those of its first element */
    uint32_t array_size; /* elements, 1..SPEC_ARRAY_MAX; 0 without an array */
    uint32_t at_most;    /* how many elements may run at once; 0: any number */
};

/* Reads a specification. Borrows 'document' for the call.
 * On success fills *spec, which spec_fini() releases; on failure *spec is empty and spec_fini() is a no-op.
 * Errors: ERR_INVALID with the path first, ERR_NOMEM. */
int spec_parse(const json_t *document, struct job_spec *spec, struct err *err);

/* Reads a document as spec_parse() does, but neither checks `array` nor sets array_size. */
int spec_parse_job(const json_t *document, struct job_spec *spec, struct err *err);

/* Adds every error of a specification to the list `all` as jr_collect (common/json.h) does, the first as
 * spec_parse_job() says it; `array` is not looked at. */
void spec_errors(const json_t *document, json_t *all);

/* Refuses what a model of this config cannot do, before anything runs: targets that match no layer (the error
 * lists those that do), what spec_lora_sites() refuses, what adapters on tables cannot, saving a tied head
 * alone, a packed base of a file without quantised blocks, a router's loss without routers. ERR_INVALID or
 * ERR_UNSUPPORTED, with the path first. */
int spec_check_model(const struct job_spec *spec, const struct model_config *config, struct err *err);

/* Releases what spec_parse() filled. Safe on a zeroed struct and twice. */
void spec_fini(struct job_spec *spec);

/* Returns a new document with every value written out, or NULL with ERR_NOMEM. spec_parse() of it gives the
 * same spec, so it can be posted. */
json_t *spec_to_json(const struct job_spec *spec, struct err *err);

/* Returns a new document (which shares the rest) like `spec`, with train.compute: auto replaced by what the
 * job is computed in; NULL: by nothing. NULL without memory. */
json_t *spec_computed(const json_t *spec, const char *compute);
/* Whether the document says train.compute: auto. */
bool spec_compute_is_open(const json_t *spec);

/* Returns true when 'text' is a blob reference "sha256:<64 lower-case hex digits>". The digits and a NUL are
 * then written to 'hex' unless that is NULL. */
bool spec_blob_ref(const char *text, char hex[65]);

/* Returns the rules of a method for a model: as written, or with the family's targets where none were. These
 * are q_proj, k_proj, v_proj and o_proj; qkv_proj and o_proj where q, k and v are one matrix; those of latent
 * attention. Borrows. */
struct lora_rules spec_lora_rules(const struct spec_method_part *method, const struct model_config *config);
/* Resolves which matrices of a model a method's adapters are on, with their ranks and factors; kind full has
 * none (ways 0). ERR_INVALID or ERR_UNSUPPORTED, with the path first: a name or pattern matches nothing (the
 * error lists the model's names), or experts would differ. */
int spec_lora_sites(const struct spec_method_part *method, const struct model_config *config,
                    struct lora_sites *sites, struct err *err);

/* Returns the learning rate of step t (from 0) of 'total_steps', T, with W = warmup_steps and f =
 * final_fraction. While t < W it is peak*(t+1)/W, so that no step has rate 0 (transformers begins with t/W).
 * From there on it is the peak times a share, as in transformers' get_scheduler, with p = (t-W)/(T-W):
 * - cosine, cosine_with_min_lr: f + (1-f) (1 + cos(pi p))/2
 * - cosine_warmup_with_min_lr: the same, one step ahead
 * - cosine_with_restarts: f + (1-f) (1 + cos(pi (cycles p mod 1)))/2
 * - linear, polynomial: f + (1-f) (1 - p)^power, with power 1 for linear
 * - inverse_sqrt: sqrt(S/(t + S - W)), S = W, or 10000 without warm-up
 * - warmup_stable_decay: 1 until T - decay_steps, then a half cosine down to f
 * - constant, constant_with_warmup: 1
 * Beyond T, in a job that goes on, schedules that end stay at f. The function is pure. */
double spec_learning_rate(const struct spec_train_part *train, uint64_t total_steps, uint64_t step);

enum { SPEC_DOUBT_BYTES = 240 };
/* Returns whether the warm-up takes half or more of a job's steps (0: not known), and if so writes a warning
 * with both numbers and the rate that the job reaches. Pure. */
bool spec_warmup_doubt(const struct spec_train_part *train, uint64_t steps, char text[SPEC_DOUBT_BYTES]);

/* Returns whether train.epochs, without train.steps, makes fewer than 20 steps of the rows (0: not known),
 * and if so writes a warning that says how many epochs make as many. Pure. */
bool spec_epochs_doubt(const struct spec_train_part *train, uint64_t steps, char text[SPEC_DOUBT_BYTES]);

/* Return the names used in a specification; NULL for a value outside the enum. */
const char *spec_format_name(enum spec_format);
const char *spec_learn_name(enum spec_learn);
const char *spec_schedule_name(enum spec_schedule);
const char *spec_result_name(enum spec_result);
/* Returns NULL for SPEC_DTYPE_BASE. */
const char *spec_result_dtype_name(enum spec_result_dtype);
const char *spec_boundary_name(enum spec_boundary);

/* The description of a specification (common/doc.h). */
extern const struct doc spec_doc;

#endif
