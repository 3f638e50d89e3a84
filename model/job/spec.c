/* Reading and writing job specifications. Defaults stand here once, as the values before each read. */
#include "model/job/spec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "common/units.h"
#include "model/shape/names.h"

static const char *const method_names[] = {"lora", "full", NULL};
static const char *const base_names[] = {"fp32", "bf16", "fp16", "nf4", "packed", NULL};
static const char *const optimizer_names[] = {"adamw", "adamw8bit", NULL};
static const char *const compute_names[] = {"fp32", "bf16", "fp16", NULL};
static const char *const format_names[] = {
    "auto", "alpaca", "chat", "text", "tokens", "sharegpt", "prompt-completion", "prompt-completion-chat",
    NULL};
static const char *const learn_names[] = {"answer", "all", NULL};
static const char *const schedule_names[] = {"cosine",
                                             "linear",
                                             "constant",
                                             "constant_with_warmup",
                                             "cosine_with_min_lr",
                                             "cosine_warmup_with_min_lr",
                                             "cosine_with_restarts",
                                             "polynomial",
                                             "inverse_sqrt",
                                             "warmup_stable_decay",
                                             NULL};
static const char *const decay_names[] = {"all", "matrices", NULL};
static const char *const recompute_names[] = {"auto", "true", "false", NULL};
static const char *const boundary_names[] = {"auto", "fp32", "bf16", "fp16", NULL};
static const char *const moments_names[] = {"device", "host", NULL};
static const char *const objective_names[] = {"time", "cost", "energy", NULL};
static const char *const placement_names[] = {"auto",   "single", "pipeline", "data", "hybrid",
                                              "expert", "tensor", "server",   NULL};
static const char *const order_names[] = {"auto", "1f1b", "gpipe", "interleaved", "split", NULL};
static const char *const result_names[] = {"adapter", "merged", "gguf", NULL};
static const char *const dtype_names[] = {NULL, "fp32", "bf16", "fp16", NULL};
static const char *const save_names[] = {"embed_tokens", "lm_head", NULL};
static const char *const target_defaults[] = {"q_proj", "k_proj", "v_proj", "o_proj"};

#define NAME_OF(names, value) spec_name_at((names), sizeof(names) / sizeof((names)[0]) - 1, (int)(value))

static const char *spec_name_at(const char *const *names, size_t count, int value)
{
    return value >= 0 && (size_t)value < count ? names[value] : NULL;
}

const char *spec_method_name(enum spec_method value)
{
    return NAME_OF(method_names, value);
}
const char *spec_base_name(enum spec_base value)
{
    return NAME_OF(base_names, value);
}
const char *spec_optimizer_name(enum spec_optimizer value)
{
    return NAME_OF(optimizer_names, value);
}
const char *spec_compute_name(enum spec_compute value)
{
    return NAME_OF(compute_names, value);
}
const char *spec_format_name(enum spec_format value)
{
    return NAME_OF(format_names, value);
}
const char *spec_learn_name(enum spec_learn value)
{
    return NAME_OF(learn_names, value);
}
const char *spec_schedule_name(enum spec_schedule value)
{
    return NAME_OF(schedule_names, value);
}
const char *spec_decay_name(enum spec_decay value)
{
    return NAME_OF(decay_names, value);
}
const char *spec_order_name(enum spec_order value)
{
    return NAME_OF(order_names, value);
}
const char *spec_result_name(enum spec_result value)
{
    return NAME_OF(result_names, value);
}
const char *spec_result_dtype_name(enum spec_result_dtype value)
{
    return NAME_OF(dtype_names, value);
}
const char *spec_recompute_name(enum spec_recompute value)
{
    return NAME_OF(recompute_names, value);
}

const char *spec_boundary_name(enum spec_boundary value)
{
    return NAME_OF(boundary_names, value);
}

const char *spec_moments_name(enum spec_moments value)
{
    return NAME_OF(moments_names, value);
}

const char *spec_objective_name(enum spec_objective value)
{
    return NAME_OF(objective_names, value);
}

const char *spec_placement_name(enum spec_placement value)
{
    return NAME_OF(placement_names, value);
}

enum { LORA_RANK_MAX = 1024 };
#define LORA_ALPHA_MIN 1e-6
#define LORA_ALPHA_MAX 1e6

/* A copy of a text that has no control characters, into *out (freed first). */
static int text_read(struct json_reader *reader, const char *key, enum jr_need need, size_t bytes, char **out)
{
    const char *text = NULL;
    int got = jr_str(reader, key, need, 1, bytes - 1, &text);
    if (got <= 0) {
        return got;
    }
    for (const char *c = text; *c != '\0'; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) {
            return jr_fail(reader, key, "a control character (byte %d) is not allowed here",
                           (int)(c - text) + 1);
        }
    }
    char *copy = strdup(text);
    if (copy == NULL) {
        return err_set(reader->err, ERR_NOMEM, "out of memory for a specification");
    }
    free(*out);
    *out = copy;
    return got;
}

/* "auto" (0) or a whole number. */
static int auto_u32(struct json_reader *reader, const char *key, uint32_t max, uint32_t *out)
{
    const json_t *value = NULL;
    if (jr_any(reader, key, JR_OPTIONAL, &value) <= 0) {
        return 0;
    }
    if (json_is_string(value) && strcmp(json_string_value(value), "auto") == 0) {
        *out = 0;
        return 0;
    }
    if (!json_is_integer(value) || json_integer_value(value) < 1 ||
        json_integer_value(value) > (json_int_t)max) {
        return jr_fail(reader, key, "must be \"auto\" or a whole number from 1 to %u", max);
    }
    *out = (uint32_t)json_integer_value(value);
    return 0;
}

static void u64_read(struct json_reader *reader, const char *key, uint64_t min, uint64_t max, uint64_t *out)
{
    int64_t value = 0;
    if (jr_i64(reader, key, JR_OPTIONAL, (int64_t)min, (int64_t)max, &value) > 0) {
        *out = (uint64_t)value;
    }
}

/* What peft has and we do not, refused by its own name unless it is switched off. */
static const struct {
    const char *key, *what;
} not_done[] = {
    {"use_dora", "DoRA"},
    {"use_qalora", "QALoRA"},
    {"loftq", "LoftQ"},
    {"loftq_config", "LoftQ"},
    {"init_lora_weights", "another beginning than peft's default"},
    {"bias", "training biases beside adapters"},
    {"lora_bias", "biases of adapters"},
    {"fan_in_fan_out", "transposed weights"},
    {"layer_replication", "replicated layers"},
    {"target_parameters", "adapters by parameter"},
    {"trainable_token_indices", "training single tokens"},
    {"paged", "a paged optimiser"},
};

static bool value_is_off(const char *key, const json_t *value)
{
    if (json_is_true(value)) {
        return strcmp(key, "init_lora_weights") == 0;
    }
    return json_is_false(value) || (json_is_string(value) && strcmp(json_string_value(value), "none") == 0) ||
           ((json_is_object(value) || json_is_array(value)) && json_object_size(value) == 0 &&
            json_array_size(value) == 0);
}

static void not_done_read(struct json_reader *r)
{
    for (size_t i = 0; i < sizeof(not_done) / sizeof(not_done[0]); i++) {
        const json_t *value = NULL;
        if (jr_any(r, not_done[i].key, JR_OPTIONAL, &value) > 0 && !value_is_off(not_done[i].key, value)) {
            jr_fail(r, not_done[i].key, "%s is not done here", not_done[i].what);
        }
    }
}

static void adapter_read(struct json_reader *r, struct spec_method_part *m)
{
    jr_u32(r, "rank", JR_OPTIONAL, 1, LORA_RANK_MAX, &m->rank);
    jr_f64(r, "alpha", JR_OPTIONAL, LORA_ALPHA_MIN, LORA_ALPHA_MAX, &m->alpha);
    jr_f64(r, "dropout", JR_OPTIONAL, 0, 0.999, &m->dropout);
    lora_rules_read(r, "targets", LORA_RANK_MAX, LORA_ALPHA_MIN, LORA_ALPHA_MAX, &m->lora);
    jr_bool(r, "rslora", JR_OPTIONAL, &m->rslora);
    names_read(r, "modules_to_save", 0, 2, save_names, &m->modules_to_save);
    text_read(r, "start_from", JR_OPTIONAL, SPEC_PATH_BYTES, &m->start_from);
    not_done_read(r);
}

/* What full fine-tuning has no use for, where it would change what somebody expects. */
static void method_check(struct json_reader *r, const struct spec_method_part *m)
{
    if (m->kind != SPEC_METHOD_FULL || r->failed) {
        return;
    }
    if (m->base == SPEC_BASE_NF4 || m->base == SPEC_BASE_PACKED) {
        jr_fail(r, "base", "%s weights cannot be trained themselves; use kind: lora, or base: fp32",
                spec_base_name(m->base));
    } else if (m->start_from != NULL) {
        jr_fail(r, "start_from", "an adapter to go on from needs kind: lora");
    } else if (m->modules_to_save.count > 0) {
        jr_fail(r, "modules_to_save", "kind: full trains and saves everything");
    }
}

static void method_read(struct json_reader *root, struct job_spec *spec)
{
    struct json_reader r;
    struct spec_method_part *m = &spec->method;
    int kind = SPEC_METHOD_LORA, base = SPEC_BASE_FP32, optimizer = SPEC_OPTIMIZER_ADAMW;
    jr_sub(root, "method", JR_OPTIONAL, &r);
    jr_choice(&r, "kind", JR_OPTIONAL, method_names, &kind);
    jr_choice(&r, "base", JR_OPTIONAL, base_names, &base);
    jr_bool(&r, "double_quant", JR_OPTIONAL, &m->double_quant);
    jr_choice(&r, "optimizer", JR_OPTIONAL, optimizer_names, &optimizer);
    adapter_read(&r, m);
    m->kind = (enum spec_method)kind;
    m->base = (enum spec_base)base;
    m->optimizer = (enum spec_optimizer)optimizer;
    method_check(&r, m);
    jr_finish(&r);
    root->failed = root->failed || r.failed;
}

static void result_read(struct json_reader *root, struct job_spec *spec)
{
    struct json_reader r;
    int kind = SPEC_RESULT_ADAPTER, dtype = 0;
    jr_sub(root, "result", JR_OPTIONAL, &r);
    bool given = jr_choice(&r, "kind", JR_OPTIONAL, result_names, &kind) > 0;
    if (jr_choice(&r, "dtype", JR_OPTIONAL, dtype_names + 1, &dtype) > 0) {
        spec->result.dtype = (enum spec_result_dtype)(dtype + 1);
    }
    spec->result.kind = spec->method.kind == SPEC_METHOD_FULL ? SPEC_RESULT_MERGED : (enum spec_result)kind;
    if (!r.failed && given && spec->result.kind != (enum spec_result)kind) {
        jr_fail(&r, "kind", "%s needs method.kind: lora; full fine-tuning leaves a model",
                result_names[kind]);
    }
    if (!r.failed && spec->result.kind == SPEC_RESULT_ADAPTER && spec->result.dtype > SPEC_DTYPE_FP32) {
        jr_fail(&r, "dtype", "an adapter is written in fp32; merged and gguf may be %s",
                dtype_names[spec->result.dtype]);
    }
    if (!r.failed && spec->result.kind == SPEC_RESULT_GGUF && spec->method.modules_to_save.count > 0) {
        jr_fail(&r, "kind", "an adapter for llama.cpp cannot hold method.modules_to_save");
    }
    jr_finish(&r);
    root->failed = root->failed || r.failed;
}

/* A chat template is checked where it is used (chat.h); here only its type. */
static void chat_template_read(struct json_reader *r, struct job_spec *spec)
{
    const json_t *value = NULL;
    if (jr_any(r, "chat_template", JR_OPTIONAL, &value) <= 0) {
        return;
    }
    if (json_is_string(value) && strcmp(json_string_value(value), "auto") == 0) {
        return;
    }
    if (!json_is_string(value) && !json_is_object(value)) {
        jr_fail(r, "chat_template", "must be \"auto\", the name of a template, or an object");
        return;
    }
    spec->data.chat_template = json_deep_copy(value);
    if (spec->data.chat_template == NULL) {
        jr_fail(r, "chat_template", "out of memory");
    }
}

static void data_read(struct json_reader *root, struct job_spec *spec)
{
    struct json_reader r;
    struct spec_data_part *d = &spec->data;
    jr_sub(root, "data", JR_REQUIRED, &r);
    int format = SPEC_FORMAT_AUTO;
    int learn = SPEC_LEARN_ANSWER;
    text_read(&r, "train", JR_REQUIRED, SPEC_PATH_BYTES, &d->train);
    text_read(&r, "eval", JR_OPTIONAL, SPEC_PATH_BYTES, &d->eval);
    jr_choice(&r, "format", JR_OPTIONAL, format_names, &format);
    jr_u32(&r, "sequence_tokens", JR_OPTIONAL, 2, 1048576, &d->sequence_tokens);
    jr_bool(&r, "shuffle", JR_OPTIONAL, &d->shuffle);
    jr_choice(&r, "learn", JR_OPTIONAL, learn_names, &learn);
    chat_template_read(&r, spec);
    d->format = (enum spec_format)format;
    d->learn = (enum spec_learn)learn;
    jr_finish(&r);
    root->failed = root->failed || r.failed;
}

static void betas_read(struct json_reader *r, struct spec_train_part *t)
{
    const json_t *betas = NULL;
    if (jr_array(r, "betas", JR_OPTIONAL, 2, 2, &betas) <= 0) {
        return;
    }
    double *const out[2] = {&t->beta1, &t->beta2};
    for (size_t i = 0; i < 2; i++) {
        const json_t *item = json_array_get(betas, i);
        double value = json_number_value(item);
        if (!json_is_number(item) || !(value >= 0 && value < 1)) {
            jr_fail(r, "betas", "item %zu must be a number from 0 to below 1", i);
            return;
        }
        *out[i] = value;
    }
}

static void recompute_read(struct json_reader *r, struct spec_train_part *t)
{
    const json_t *value = NULL;
    if (jr_any(r, "recompute", JR_OPTIONAL, &value) <= 0) {
        return;
    }
    if (json_is_boolean(value)) {
        t->recompute = json_is_true(value) ? SPEC_RECOMPUTE_YES : SPEC_RECOMPUTE_NO;
    } else if (!json_is_string(value) || strcmp(json_string_value(value), "auto") != 0) {
        jr_fail(r, "recompute", "must be auto, true or false");
    }
}

/* true, false or a coefficient. */
static void router_aux_read(struct json_reader *r, struct spec_train_part *t)
{
    const json_t *value = NULL;
    if (jr_any(r, "router_aux", JR_OPTIONAL, &value) <= 0) {
        return;
    }
    double number = json_number_value(value);
    if (json_is_boolean(value)) {
        t->router_aux = json_is_true(value) ? SPEC_ROUTER_AUX_MODEL : 0;
    } else if (!json_is_number(value) || !(number >= 0 && number <= 1e6)) {
        jr_fail(r, "router_aux", "must be true, false or a number from 0 to 1e6");
    } else {
        t->router_aux = number;
    }
}

static void schedule_read(struct json_reader *r, struct spec_train_part *t)
{
    int schedule = SPEC_SCHEDULE_COSINE;
    jr_f64(r, "learning_rate", JR_OPTIONAL, 0, 1000, &t->learning_rate);
    jr_choice(r, "schedule", JR_OPTIONAL, schedule_names, &schedule);
    u64_read(r, "warmup_steps", 0, 1000000000, &t->warmup_steps);
    jr_f64(r, "final_fraction", JR_OPTIONAL, 0, 1, &t->final_fraction);
    jr_u32(r, "cycles", JR_OPTIONAL, 1, 1000000, &t->cycles);
    jr_f64(r, "power", JR_OPTIONAL, 0, 1000, &t->power);
    u64_read(r, "decay_steps", 0, 1000000000, &t->decay_steps);
    t->schedule = (enum spec_schedule)schedule;
    if (!r->failed && t->schedule == SPEC_SCHEDULE_WARMUP_STABLE_DECAY && t->decay_steps == 0) {
        jr_fail(r, "decay_steps", "schedule: warmup_stable_decay needs it");
    }
}

static void train_read(struct json_reader *root, struct job_spec *spec)
{
    struct json_reader r;
    struct spec_train_part *t = &spec->train;
    jr_sub(root, "train", JR_OPTIONAL, &r);
    int compute = SPEC_COMPUTE_FP32, decay = SPEC_DECAY_ALL;
    uint64_t steps = 0;
    jr_u32(&r, "batch_rows", JR_OPTIONAL, 1, 65536, &t->batch_rows);
    u64_read(&r, "steps", 1, 1000000000, &steps);
    jr_u32(&r, "epochs", JR_OPTIONAL, 1, 100000, &t->epochs);
    schedule_read(&r, t);
    jr_f64(&r, "weight_decay", JR_OPTIONAL, 0, 1000, &t->weight_decay);
    jr_choice(&r, "decay", JR_OPTIONAL, decay_names, &decay);
    betas_read(&r, t);
    jr_f64(&r, "eps", JR_OPTIONAL, 0, 1, &t->eps);
    jr_f64(&r, "clip_norm", JR_OPTIONAL, 0, 1e12, &t->clip_norm);
    u64_read(&r, "seed", 0, (uint64_t)1 << 53, &t->seed);
    jr_choice(&r, "compute", JR_OPTIONAL, compute_names, &compute);
    recompute_read(&r, t);
    jr_f64(&r, "label_smoothing", JR_OPTIONAL, 0, 0.999, &t->label_smoothing);
    jr_f64(&r, "neftune_alpha", JR_OPTIONAL, 0, 1e6, &t->neftune_alpha);
    router_aux_read(&r, t);
    t->decay = (enum spec_decay)decay;
    t->compute = (enum spec_compute)compute;
    if (!r.failed && steps > 0 && t->epochs > 0) {
        jr_fail(&r, "steps", "give steps or epochs, not both");
    }
    t->steps = steps > 0 ? steps : t->epochs > 0 ? 0 : 100;
    jr_finish(&r);
    root->failed = root->failed || r.failed;
}

static void placement_read(struct json_reader *root, struct job_spec *spec)
{
    struct json_reader r;
    struct spec_placement_part *p = &spec->placement;
    jr_sub(root, "placement", JR_OPTIONAL, &r);
    int kind = SPEC_PLACEMENT_AUTO, objective = SPEC_OBJECTIVE_TIME, order = SPEC_ORDER_AUTO,
        boundary = SPEC_BOUNDARY_AUTO, moments = SPEC_MOMENTS_DEVICE;
    jr_choice(&r, "kind", JR_OPTIONAL, placement_names, &kind);
    names_read(&r, "devices", 1, SPEC_DEVICES_MAX, NULL, &p->devices);
    names_read(&r, "exclude", 0, SPEC_DEVICES_MAX, NULL, &p->exclude);
    auto_u32(&r, "micro_batch_rows", 65536, &p->micro_batch_rows);
    auto_u32(&r, "stages", 4096, &p->stages);
    jr_choice(&r, "schedule", JR_OPTIONAL, order_names, &order);
    jr_choice(&r, "boundary", JR_OPTIONAL, boundary_names, &boundary);
    jr_choice(&r, "moments", JR_OPTIONAL, moments_names, &moments);
    jr_choice(&r, "objective", JR_OPTIONAL, objective_names, &objective);
    text_read(&r, "planner", JR_OPTIONAL, SPEC_NAME_BYTES, &p->planner);
    p->boundary = (enum spec_boundary)boundary;
    p->moments = (enum spec_moments)moments;
    p->objective = (enum spec_objective)objective;
    p->kind = (enum spec_placement)kind;
    p->order = (enum spec_order)order;
    if (!r.failed && p->micro_batch_rows > spec->train.batch_rows) {
        jr_fail(&r, "micro_batch_rows", "%u is more than train.batch_rows, %u", p->micro_batch_rows,
                spec->train.batch_rows);
    }
    jr_finish(&r);
    root->failed = root->failed || r.failed;
}

static void service_read(struct json_reader *root, struct job_spec *spec)
{
    struct json_reader r;
    jr_sub(root, "checkpoint", JR_OPTIONAL, &r);
    u64_read(&r, "every_steps", 0, 1000000000, &spec->checkpoint.every_steps);
    jr_u32(&r, "keep", JR_OPTIONAL, 1, 100, &spec->checkpoint.keep);
    jr_finish(&r);
    root->failed = root->failed || r.failed;

    spec->eval.on = jr_sub(root, "eval", JR_OPTIONAL, &r) > 0;
    u64_read(&r, "every_steps", 0, 1000000000, &spec->eval.every_steps);
    jr_finish(&r);
    root->failed = root->failed || r.failed;
    if (!root->failed && spec->eval.on && spec->data.eval == NULL) {
        jr_fail(root, "eval", "there is nothing to evaluate on: data.eval names no file");
    }
}

static void sample_read(struct json_reader *root, struct job_spec *spec)
{
    struct json_reader r;
    int there = jr_sub(root, "sample", JR_OPTIONAL, &r);
    const char *prompt = NULL;
    jr_str(&r, "prompt", there > 0 ? JR_REQUIRED : JR_OPTIONAL, 1, SPEC_PROMPT_BYTES, &prompt);
    jr_u32(&r, "tokens", JR_OPTIONAL, 1, 65536, &spec->sample.tokens);
    jr_f64(&r, "temperature", JR_OPTIONAL, 0, 100, &spec->sample.temperature);
    u64_read(&r, "seed", 0, (uint64_t)1 << 53, &spec->sample.seed);
    if (!r.failed && prompt != NULL) {
        spec->sample.prompt = strdup(prompt);
        if (spec->sample.prompt == NULL) {
            jr_fail(&r, "prompt", "out of memory");
        }
    }
    jr_finish(&r);
    root->failed = root->failed || r.failed;
}

/* limits.time: "2h" or seconds. */
static void limits_read(struct json_reader *root, struct job_spec *spec)
{
    struct json_reader r;
    spec->limits.on = jr_sub(root, "limits", JR_OPTIONAL, &r) > 0;
    spec->limits.retries = spec->limits.on ? SPEC_RETRIES_DEFAULT : SPEC_RETRIES_UNLIMITED;
    jr_u32(&r, "retries", JR_OPTIONAL, 0, 1000, &spec->limits.retries);
    const json_t *time = NULL;
    if (jr_any(&r, "time", JR_OPTIONAL, &time) > 0) {
        double seconds = json_number_value(time);
        struct err why;
        if (json_is_string(time) && units_parse_seconds(json_string_value(time), &seconds, &why) < 0) {
            jr_fail(&r, "time", "%s", why.text);
        } else if (!json_is_string(time) && !json_is_number(time)) {
            jr_fail(&r, "time", "must be a time such as \"2h\", or a number of seconds");
        } else if (!(seconds >= 1 && seconds <= 366.0 * 86400)) {
            jr_fail(&r, "time", "must be from 1 second to 366 days");
        } else {
            spec->limits.time_s = (uint64_t)ceil(seconds);
        }
    }
    jr_finish(&r);
    root->failed = root->failed || r.failed;
}

static int spec_defaults(struct job_spec *spec, struct err *err)
{
    *spec = (struct job_spec){
        .method = {.rank = 16, .alpha = 32, .dropout = 0.05, .double_quant = true},
        .data = {.sequence_tokens = 512, .shuffle = true},
        .train = {.batch_rows = 16,
                  .learning_rate = 2e-4,
                  .warmup_steps = 10,
                  .final_fraction = 0.1,
                  .cycles = 1,
                  .power = 1,
                  .beta1 = 0.9,
                  .beta2 = 0.95,
                  .eps = 1e-8,
                  .clip_norm = 1.0,
                  .seed = 1},
        .checkpoint = {.every_steps = 50, .keep = 2},
        .eval = {.every_steps = 50},
        .sample = {.tokens = 64, .seed = 1},
    };
    spec->name = strdup("job");
    if (spec->name == NULL) {
        return err_set(err, ERR_NOMEM, "out of memory for a specification");
    }
    for (size_t i = 0; i < sizeof(target_defaults) / sizeof(target_defaults[0]); i++) {
        if (names_add(&spec->method.lora.targets.names, target_defaults[i], err) < 0) {
            return -1;
        }
    }
    spec->method.lora.targets.names.given = true;
    return 0;
}

int spec_parse(const json_t *document, struct job_spec *spec, struct err *err)
{
    struct json_reader r;
    if (spec_defaults(spec, err) < 0) {
        goto fail;
    }
    if (!json_is_object(document)) {
        err_set(err, ERR_INVALID, "the specification must be a mapping of keys to values");
        goto fail;
    }
    jr_init(&r, document, "", err);
    text_read(&r, "name", JR_OPTIONAL, SPEC_NAME_BYTES, &spec->name);
    text_read(&r, "model", JR_REQUIRED, SPEC_PATH_BYTES, &spec->model);
    int64_t priority = 0;
    jr_i64(&r, "priority", JR_OPTIONAL, -100, 100, &priority);
    spec->priority = (int32_t)priority;
    method_read(&r, spec);
    data_read(&r, spec);
    train_read(&r, spec);
    placement_read(&r, spec);
    result_read(&r, spec);
    service_read(&r, spec);
    sample_read(&r, spec);
    limits_read(&r, spec);
    jr_bool(&r, "hold", JR_OPTIONAL, &spec->hold);
    if (jr_finish(&r) < 0) {
        goto fail;
    }
    return 0;
fail:
    spec_fini(spec);
    return -1;
}

void spec_fini(struct job_spec *spec)
{
    free(spec->name);
    free(spec->model);
    lora_rules_fini(&spec->method.lora);
    names_fini(&spec->method.modules_to_save);
    free(spec->method.start_from);
    free(spec->data.train);
    free(spec->data.eval);
    json_decref(spec->data.chat_template);
    names_fini(&spec->placement.devices);
    names_fini(&spec->placement.exclude);
    free(spec->placement.planner);
    free(spec->sample.prompt);
    *spec = (struct job_spec){0};
}

bool spec_blob_ref(const char *text, char hex[65])
{
    static const char prefix[] = "sha256:";
    if (text == NULL || strncmp(text, prefix, sizeof(prefix) - 1) != 0) {
        return false;
    }
    const char *digits = text + sizeof(prefix) - 1;
    if (strlen(digits) != 64 || strspn(digits, "0123456789abcdef") != 64) {
        return false;
    }
    if (hex != NULL) {
        memcpy(hex, digits, 65);
    }
    return true;
}
