/* Reads job specifications. Defaults stand here once, as the values before each read. */
#include "model/job/spec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/json.h"
#include "common/units.h"
#include "model/shape/names.h"

/* Defines the names of an enum of the specification in the order of its values, and the function that returns
 * one of them: NULL for a value outside the enum. */
#define NAMES(kind, ...)                                                                                     \
    static const char *const kind##_names[] = {__VA_ARGS__, NULL};                                           \
    const char *spec_##kind##_name(enum spec_##kind value)                                                   \
    {                                                                                                        \
        return (unsigned)value < sizeof(kind##_names) / sizeof(*kind##_names) ? kind##_names[value] : NULL;  \
    }
NAMES(method, "lora", "full")
NAMES(base, "fp32", "bf16", "fp16", "nf4", "packed")
NAMES(optimizer, "adamw", "adamw8bit")
NAMES(compute, "fp32", "bf16", "fp16")
NAMES(format, "auto", "alpaca", "chat", "text", "tokens", "sharegpt", "prompt-completion",
      "prompt-completion-chat")
NAMES(learn, "answer", "all")
NAMES(schedule, "cosine", "linear", "constant", "constant_with_warmup", "cosine_with_min_lr",
      "cosine_warmup_with_min_lr", "cosine_with_restarts", "polynomial", "inverse_sqrt",
      "warmup_stable_decay")
NAMES(decay, "all", "matrices")
NAMES(boundary, "auto", "fp32", "bf16", "fp16")
NAMES(moments, "device", "host")
NAMES(objective, "time", "cost", "energy")
NAMES(fallback, "wait", "any")
NAMES(move, "auto", "never")
NAMES(placement, "auto", "single", "pipeline", "data", "hybrid", "expert", "tensor", "server")
NAMES(order, "auto", "1f1b", "gpipe", "interleaved", "split")
NAMES(result, "adapter", "merged", "gguf")
NAMES(result_dtype, NULL, "fp32", "bf16", "fp16")
NAMES(service, "urgent", "normal", "scavenger")
static const char *const save_names[] = {"embed_tokens", "lm_head", NULL};
static const char *const target_defaults[] = {"q_proj", "k_proj", "v_proj", "o_proj"};

enum { LORA_RANK_MAX = 1024 };
#define LORA_ALPHA_MIN 1e-6
#define LORA_ALPHA_MAX 1e6

/* Copies a text without control characters to *out, which is freed first. */
static int text_read(struct json_reader *reader, const char *key, enum jr_need need, size_t bytes, char **out)
{
    const char *text = NULL;
    int got = jr_str(reader, key, need, 1, bytes - 1, &text);
    if (got <= 0)
        return got;
    for (const char *c = text; *c != '\0'; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) {
            return jr_fail(reader, key, "a control character (byte %d) is not allowed here",
                           (int)(c - text) + 1);
        }
    }
    char *copy = strdup(text);
    if (!copy)
        return err_set(reader->err, ERR_NOMEM, "out of memory for a specification");
    free(*out);
    *out = copy;
    return got;
}

/* Reads "auto" (0) or a whole number. */
static int auto_u32(struct json_reader *reader, const char *key, uint32_t max, uint32_t *out)
{
    const json_t *value = NULL;
    if (jr_any(reader, key, JR_OPTIONAL, &value) <= 0)
        return 0;
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
    if (jr_i64(reader, key, JR_GIVEN, (int64_t)min, (int64_t)max, &value) > 0)
        *out = (uint64_t)value;
}

/* peft's keys that Motley does not compute; each is refused by name unless its value switches it off. */
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
    if (json_is_true(value))
        return strcmp(key, "init_lora_weights") == 0;
    return json_is_false(value) || (json_is_string(value) && strcmp(json_string_value(value), "none") == 0) ||
           ((json_is_object(value) || json_is_array(value)) && json_object_size(value) == 0 &&
            json_array_size(value) == 0);
}

static void not_done_read(struct json_reader *r)
{
    for (size_t i = 0; i < sizeof(not_done) / sizeof(not_done[0]); i++) {
        const json_t *value = NULL;
        if (jr_any(r, not_done[i].key, JR_OPTIONAL, &value) > 0 && !value_is_off(not_done[i].key, value))
            jr_fail(r, not_done[i].key, "%s is not done here", not_done[i].what);
    }
}

static void adapter_read(struct json_reader *r, struct spec_method_part *m)
{
    jr_u32(r, "rank", JR_GIVEN, 1, LORA_RANK_MAX, &m->rank);
    jr_f64(r, "alpha", JR_GIVEN, LORA_ALPHA_MIN, LORA_ALPHA_MAX, &m->alpha);
    jr_f64(r, "dropout", JR_GIVEN, 0, 0.999, &m->dropout);
    if (json_is_null(json_object_get(r->object, "targets")))
        jr_fail(r, "targets", "is null, which peft reads by the model's type: name them");
    lora_rules_read(r, "targets", LORA_RANK_MAX, LORA_ALPHA_MIN, LORA_ALPHA_MAX, &m->lora);
    jr_bool(r, "rslora", JR_OPTIONAL, &m->rslora);
    names_read(r, "modules_to_save", 0, 2, save_names, &m->modules_to_save);
    text_read(r, "start_from", JR_OPTIONAL, SPEC_PATH_BYTES, &m->start_from);
    not_done_read(r);
}

/* Refuses settings that full fine-tuning cannot use, where ignoring them would surprise. */
static void method_check(struct json_reader *r, const struct spec_method_part *m)
{
    if (m->kind != SPEC_METHOD_FULL || r->failed)
        return;
    if (m->base == SPEC_BASE_NF4 || m->base == SPEC_BASE_PACKED) {
        jr_fail(r, "base", "%s weights cannot be trained themselves; use kind: lora, or base: fp32",
                spec_base_name(m->base));
    } else if (m->start_from) {
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
    jr_choice(&r, "kind", JR_GIVEN, method_names, &kind);
    jr_choice(&r, "base", JR_GIVEN, base_names, &base);
    jr_bool(&r, "double_quant", JR_GIVEN, &m->double_quant);
    jr_choice(&r, "optimizer", JR_GIVEN, optimizer_names, &optimizer);
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
    bool given = jr_choice(&r, "kind", JR_GIVEN, result_names, &kind) > 0;
    if (jr_choice(&r, "dtype", JR_OPTIONAL, result_dtype_names + 1, &dtype) > 0)
        spec->result.dtype = (enum spec_result_dtype)(dtype + 1);
    spec->result.kind = spec->method.kind == SPEC_METHOD_FULL ? SPEC_RESULT_MERGED : (enum spec_result)kind;
    if (!r.failed && given && spec->result.kind != (enum spec_result)kind) {
        jr_fail(&r, "kind", "%s needs method.kind: lora; full fine-tuning leaves a model",
                result_names[kind]);
    }
    if (!r.failed && spec->result.kind == SPEC_RESULT_ADAPTER && spec->result.dtype > SPEC_DTYPE_FP32) {
        jr_fail(&r, "dtype", "an adapter is written in fp32; merged and gguf may be %s",
                result_dtype_names[spec->result.dtype]);
    }
    if (!r.failed && spec->result.kind == SPEC_RESULT_GGUF && spec->method.modules_to_save.count > 0)
        jr_fail(&r, "kind", "an adapter for llama.cpp cannot hold method.modules_to_save");
    jr_finish(&r);
    root->failed = root->failed || r.failed;
}

/* Reads a chat template and checks only its type; chat.h checks its content when it is used. */
static void chat_template_read(struct json_reader *r, struct job_spec *spec)
{
    const json_t *value = NULL;
    if (jr_any(r, "chat_template", JR_OPTIONAL, &value) <= 0)
        return;
    if (json_is_string(value) && strcmp(json_string_value(value), "auto") == 0)
        return;
    if (!json_is_string(value) && !json_is_object(value)) {
        jr_fail(r, "chat_template", "must be \"auto\", the name of a template, or an object");
        return;
    }
    spec->data.chat_template = json_deep_copy(value);
    if (!spec->data.chat_template)
        jr_fail(r, "chat_template", "out of memory");
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
    jr_u32(&r, "sequence_tokens", JR_GIVEN, 2, 1048576, &d->sequence_tokens);
    jr_bool(&r, "shuffle", JR_GIVEN, &d->shuffle);
    jr_choice(&r, "learn", JR_GIVEN, learn_names, &learn);
    chat_template_read(&r, spec);
    int64_t day_us;
    if (text_read(&r, "day", JR_OPTIONAL, SPEC_NAME_BYTES, &d->day) > 0 &&
        (strlen(d->day) != 10 || clock_rfc3339_parse(d->day, &day_us) < 0))
        jr_fail(&r, "day", "must be a date such as 2026-01-31");
    d->format = (enum spec_format)format;
    d->learn = (enum spec_learn)learn;
    jr_finish(&r);
    root->failed = root->failed || r.failed;
}

static void betas_read(struct json_reader *r, struct spec_train_part *t)
{
    const json_t *betas = NULL;
    if (jr_array(r, "betas", JR_GIVEN, 2, 2, &betas) <= 0)
        return;
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
    if (jr_any(r, "recompute", JR_OPTIONAL, &value) <= 0)
        return;
    if (json_is_boolean(value))
        t->recompute = json_is_true(value) ? SPEC_RECOMPUTE_YES : SPEC_RECOMPUTE_NO;
    else if (!json_is_string(value) || strcmp(json_string_value(value), "auto") != 0)
        jr_fail(r, "recompute", "must be auto, true or false");
}

/* Reads true, false or a coefficient. */
static void router_aux_read(struct json_reader *r, struct spec_train_part *t)
{
    const json_t *value = NULL;
    if (jr_any(r, "router_aux", JR_OPTIONAL, &value) <= 0)
        return;
    double number = json_number_value(value);
    if (json_is_boolean(value))
        t->router_aux = json_is_true(value) ? SPEC_ROUTER_AUX_MODEL : 0;
    else if (!json_is_number(value) || !(number >= 0 && number <= 1e6))
        jr_fail(r, "router_aux", "must be true, false or a number from 0 to 1e6");
    else
        t->router_aux = number;
}

static void schedule_read(struct json_reader *r, struct spec_train_part *t)
{
    int schedule = SPEC_SCHEDULE_COSINE;
    jr_f64(r, "learning_rate", JR_GIVEN, 0, 1000, &t->learning_rate);
    jr_choice(r, "schedule", JR_GIVEN, schedule_names, &schedule);
    u64_read(r, "warmup_steps", 0, 1000000000, &t->warmup_steps);
    jr_f64(r, "final_fraction", JR_GIVEN, 0, 1, &t->final_fraction);
    jr_u32(r, "cycles", JR_GIVEN, 1, 1000000, &t->cycles);
    jr_f64(r, "power", JR_GIVEN, 0, 1000, &t->power);
    u64_read(r, "decay_steps", 0, 1000000000, &t->decay_steps);
    t->schedule = (enum spec_schedule)schedule;
    if (!r->failed && t->schedule == SPEC_SCHEDULE_WARMUP_STABLE_DECAY && t->decay_steps == 0)
        jr_fail(r, "decay_steps", "schedule: warmup_stable_decay needs it");
}

static void train_read(struct json_reader *root, struct job_spec *spec)
{
    struct json_reader r;
    struct spec_train_part *t = &spec->train;
    jr_sub(root, "train", JR_OPTIONAL, &r);
    int compute = SPEC_COMPUTE_FP32, decay = SPEC_DECAY_ALL;
    int64_t steps = 0;
    jr_u32(&r, "batch_rows", JR_GIVEN, 1, 65536, &t->batch_rows);
    jr_i64(&r, "steps", JR_OPTIONAL, 1, 1000000000, &steps);
    jr_u32(&r, "epochs", steps > 0 ? JR_OPTIONAL : JR_GIVEN, 1, 100000, &t->epochs);
    if (t->epochs == 0 && json_is_null(json_object_get(r.object, "steps")))
        jr_fail(&r, "steps", "is null, which is no value without epochs: leave the key out for its default");
    schedule_read(&r, t);
    jr_f64(&r, "weight_decay", JR_OPTIONAL, 0, 1000, &t->weight_decay);
    jr_choice(&r, "decay", JR_GIVEN, decay_names, &decay);
    betas_read(&r, t);
    jr_f64(&r, "eps", JR_GIVEN, 0, 1, &t->eps);
    if (jr_f64(&r, "clip_norm", JR_OPTIONAL, 0, 1e12, &t->clip_norm) == 0 &&
        json_is_null(json_object_get(r.object, "clip_norm")))
        t->clip_norm = 0; /* as transformers' max_grad_norm */
    u64_read(&r, "seed", 0, (uint64_t)1 << 53, &t->seed);
    jr_choice(&r, "compute", JR_GIVEN, compute_names, &compute);
    recompute_read(&r, t);
    jr_f64(&r, "label_smoothing", JR_OPTIONAL, 0, 0.999, &t->label_smoothing);
    jr_f64(&r, "neftune_alpha", JR_OPTIONAL, 0, 1e6, &t->neftune_alpha);
    router_aux_read(&r, t);
    t->decay = (enum spec_decay)decay;
    t->compute = (enum spec_compute)compute;
    t->steps = steps > 0 ? (uint64_t)steps : t->epochs > 0 ? 0 : 100;
    jr_finish(&r);
    root->failed = root->failed || r.failed;
}

static void plan_read(struct json_reader *r, struct spec_placement_part *p)
{
    const json_t *plan = NULL;
    if (jr_any(r, "plan", JR_OPTIONAL, &plan) <= 0 || json_is_null(plan))
        return;
    if (!json_is_object(plan) && !json_is_string(plan)) {
        jr_fail(r, "plan", "must be a plan or the name of its file");
        return;
    }
    p->plan = json_deep_copy(plan);
    if (!p->plan)
        jr_fail(r, "plan", "out of memory");
}

/* Reads placement.count, {least, most}: how many devices the job is to have. */
static void count_read(struct json_reader *placement, struct spec_placement_part *p)
{
    struct json_reader r;
    jr_sub(placement, "count", JR_OPTIONAL, &r);
    jr_u32(&r, "least", JR_OPTIONAL, 1, 1024, &p->count_least);
    jr_u32(&r, "most", JR_OPTIONAL, 1, 1024, &p->count_most);
    if (p->count_most > 0 && p->count_least > p->count_most)
        jr_fail(&r, "least", "%u is more than most, %u", p->count_least, p->count_most);
    jr_finish(&r);
    placement->failed = placement->failed || r.failed;
}

static void placement_read(struct json_reader *root, struct job_spec *spec)
{
    struct json_reader r;
    struct spec_placement_part *p = &spec->placement;
    jr_sub(root, "placement", JR_OPTIONAL, &r);
    int kind = SPEC_PLACEMENT_AUTO, objective = SPEC_OBJECTIVE_TIME, order = SPEC_ORDER_AUTO,
        boundary = SPEC_BOUNDARY_AUTO, moments = SPEC_MOMENTS_DEVICE, fallback = SPEC_FALLBACK_WAIT,
        move = SPEC_MOVE_AUTO;
    jr_choice(&r, "kind", JR_OPTIONAL, placement_names, &kind);
    names_read(&r, "devices", 1, SPEC_DEVICES_MAX, NULL, &p->devices);
    names_read(&r, "exclude", 0, SPEC_DEVICES_MAX, NULL, &p->exclude);
    count_read(&r, p);
    auto_u32(&r, "micro_batch_rows", 65536, &p->micro_batch_rows);
    auto_u32(&r, "stages", 4096, &p->stages);
    jr_choice(&r, "schedule", JR_OPTIONAL, order_names, &order);
    jr_choice(&r, "boundary", JR_OPTIONAL, boundary_names, &boundary);
    jr_choice(&r, "moments", JR_OPTIONAL, moments_names, &moments);
    jr_choice(&r, "objective", JR_OPTIONAL, objective_names, &objective);
    jr_choice(&r, "fallback", JR_OPTIONAL, fallback_names, &fallback);
    jr_choice(&r, "move", JR_OPTIONAL, move_names, &move);
    text_read(&r, "planner", JR_OPTIONAL, SPEC_NAME_BYTES, &p->planner);
    plan_read(&r, p);
    p->boundary = (enum spec_boundary)boundary;
    p->moments = (enum spec_moments)moments;
    p->objective = (enum spec_objective)objective;
    p->fallback = (enum spec_fallback)fallback;
    p->move = (enum spec_move)move;
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
    jr_u32(&r, "keep", JR_GIVEN, 1, 100, &spec->checkpoint.keep);
    jr_finish(&r);
    root->failed = root->failed || r.failed;

    spec->eval.on = jr_sub(root, "eval", JR_OPTIONAL, &r) > 0;
    u64_read(&r, "every_steps", 0, 1000000000, &spec->eval.every_steps);
    jr_finish(&r);
    root->failed = root->failed || r.failed;
    if (!root->failed && spec->eval.on && !spec->data.eval)
        jr_fail(root, "eval", "there is nothing to evaluate on: data.eval names no file");
}

static void sample_read(struct json_reader *root, struct job_spec *spec)
{
    struct json_reader r;
    int there = jr_sub(root, "sample", JR_OPTIONAL, &r);
    const char *prompt = NULL;
    jr_str(&r, "prompt", there > 0 ? JR_REQUIRED : JR_OPTIONAL, 1, SPEC_PROMPT_BYTES, &prompt);
    jr_u32(&r, "tokens", JR_GIVEN, 1, 65536, &spec->sample.tokens);
    jr_f64(&r, "temperature", JR_OPTIONAL, 0, 100, &spec->sample.temperature);
    u64_read(&r, "seed", 0, (uint64_t)1 << 53, &spec->sample.seed);
    if (!r.failed && prompt) {
        spec->sample.prompt = strdup(prompt);
        if (!spec->sample.prompt)
            jr_fail(&r, "prompt", "out of memory");
    }
    jr_finish(&r);
    root->failed = root->failed || r.failed;
}

/* Reads limits, of which time is "2h" or a number of seconds. */
static void limits_read(struct json_reader *root, struct job_spec *spec)
{
    struct json_reader r;
    spec->limits.on = jr_sub(root, "limits", JR_OPTIONAL, &r) > 0;
    spec->limits.retries = spec->limits.on ? SPEC_RETRIES_DEFAULT : SPEC_RETRIES_UNLIMITED;
    jr_u32(&r, "retries", JR_GIVEN, 0, 1000, &spec->limits.retries);
    const json_t *time = NULL;
    if (jr_any(&r, "time", JR_OPTIONAL, &time) > 0) {
        double seconds = json_number_value(time);
        struct err why;
        if (json_is_string(time) && units_parse_seconds(json_string_value(time), &seconds, &why) < 0)
            jr_fail(&r, "time", "%s", why.text);
        else if (!json_is_string(time) && !json_is_number(time))
            jr_fail(&r, "time", "must be a time such as \"2h\", or a number of seconds");
        else if (!(seconds >= 1 && seconds <= 366.0 * 86400))
            jr_fail(&r, "time", "must be from 1 second to 366 days");
        else
            spec->limits.time_s = (uint64_t)ceil(seconds);
    }
    jr_finish(&r);
    root->failed = root->failed || r.failed;
}

static void labels_read(struct json_reader *r, struct job_spec *spec)
{
    static const char in_keys[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._/-";
    const json_t *labels;
    json_t *value;
    const char *key;
    if (jr_object(r, "labels", JR_OPTIONAL, &labels) <= 0 || json_object_size(labels) == 0)
        return;
    if (json_object_size(labels) > SPEC_LABELS_MAX)
        jr_fail(r, "labels", "%zu labels are more than %d", json_object_size(labels), SPEC_LABELS_MAX);
    json_object_foreach ((json_t *)(uintptr_t)labels, key, value) {
        const char *text = json_string_value(value);
        if (!*key || strlen(key) >= SPEC_LABEL_KEY_BYTES || strspn(key, in_keys) != strlen(key))
            jr_fail(r, "labels", "\"%.80s\" is not 1 to %d of the characters A-Z a-z 0-9 . _ / -", key,
                    SPEC_LABEL_KEY_BYTES - 1);
        bool good = text && strlen(text) < SPEC_LABEL_VALUE_BYTES;
        for (const unsigned char *c = (const unsigned char *)text; good && *c; c++)
            good = *c >= 0x20 && *c != 0x7f && *c != ',';
        if (!good)
            jr_fail(r, "labels", "the value of \"%.63s\" is not a text of at most %d bytes without commas",
                    key, SPEC_LABEL_VALUE_BYTES - 1);
    }
    spec->labels = json_deep_copy(labels);
    if (!spec->labels)
        jr_fail(r, "labels", "out of memory");
}

static void jobs_read(struct json_reader *r, const char *key, struct spec_jobs *jobs)
{
    const json_t *array = NULL, *item;
    size_t index;
    if (jr_array(r, key, JR_OPTIONAL, 0, SPEC_AFTER_MAX, &array) <= 0)
        return;
    json_array_foreach ((json_t *)(uintptr_t)array, index, item) {
        const json_int_t id = json_integer_value(item);
        char path[32];
        snprintf(path, sizeof(path), "%s[%zu]", key, index);
        if (id < 1)
            jr_fail(r, path, "must be the id of a job, a whole number from 1");
        for (uint32_t i = 0; i < jobs->count; i++)
            if (jobs->ids[i] == id)
                jr_fail(r, path, "job %lld is there twice", (long long)id);
        jobs->ids[jobs->count++] = id;
    }
}

/* Reads who is charged for the job, its service, when it may begin, after which jobs, and its array. */
static void sharing_read(struct json_reader *root, struct job_spec *spec)
{
    int service = SPEC_SERVICE_NORMAL;
    text_read(root, "account", JR_OPTIONAL, SPEC_NAME_BYTES, &spec->account);
    jr_choice(root, "service", JR_OPTIONAL, service_names, &service);
    spec->service = (enum spec_service)service;
    if (text_read(root, "begin", JR_OPTIONAL, 64, &spec->begin) > 0 &&
        clock_rfc3339_parse(spec->begin, &spec->begin_us) < 0)
        jr_fail(root, "begin", "must be a time such as 2026-01-31T08:00:00Z");
    jobs_read(root, "after", &spec->after);
    jobs_read(root, "after_any", &spec->after_any);
    const json_t *array = NULL;
    if (jr_object(root, "array", JR_OPTIONAL, &array) > 0)
        spec->array = json_incref((json_t *)(uintptr_t)array);
    jr_u32(root, "at_most", JR_OPTIONAL, 1, SPEC_ARRAY_MAX, &spec->at_most);
    if (spec->at_most > 0 && !spec->array)
        jr_fail(root, "at_most", "it goes with `array`");
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
        .service = SPEC_SERVICE_NORMAL,
    };
    spec->name = strdup("job");
    if (!spec->name)
        return err_set(err, ERR_NOMEM, "out of memory for a specification");
    for (size_t i = 0; i < sizeof(target_defaults) / sizeof(target_defaults[0]); i++)
        if (names_add(&spec->method.lora.targets.names, target_defaults[i], err) < 0)
            return -1;
    spec->method.lora.targets.names.given = true;
    return 0;
}

/* Reads a specification; every error is added to `all` (jr_collect) unless that is NULL. */
static int job_read(const json_t *document, json_t *all, struct job_spec *spec, struct err *err)
{
    struct json_reader r;
    if (spec_defaults(spec, err) < 0)
        goto fail;
    if (!json_is_object(document)) {
        err_set(err, ERR_INVALID, "the specification must be a mapping of keys to values");
        goto fail;
    }
    jr_init(&r, document, "", err);
    jr_collect(&r, all);
    text_read(&r, "name", JR_OPTIONAL, SPEC_NAME_BYTES, &spec->name);
    text_read(&r, "model", JR_REQUIRED, SPEC_PATH_BYTES, &spec->model);
    int64_t priority = 0;
    jr_i64(&r, "priority", JR_OPTIONAL, -100, 100, &priority);
    spec->priority = (int32_t)priority;
    labels_read(&r, spec);
    method_read(&r, spec);
    data_read(&r, spec);
    train_read(&r, spec);
    placement_read(&r, spec);
    result_read(&r, spec);
    service_read(&r, spec);
    sample_read(&r, spec);
    limits_read(&r, spec);
    jr_bool(&r, "hold", JR_OPTIONAL, &spec->hold);
    sharing_read(&r, spec);
    if (jr_finish(&r) < 0)
        goto fail;
    return 0;
fail:
    spec_fini(spec);
    return -1;
}

int spec_parse_job(const json_t *document, struct job_spec *spec, struct err *err)
{
    return job_read(document, NULL, spec, err);
}

void spec_errors(const json_t *document, json_t *all)
{
    struct job_spec spec = {0};
    struct err ignored = {0};
    job_read(document, all, &spec, &ignored);
    spec_fini(&spec);
}

void spec_fini(struct job_spec *spec)
{
    free(spec->name);
    free(spec->model);
    json_decref(spec->labels);
    free(spec->account);
    free(spec->begin);
    json_decref(spec->array);
    lora_rules_fini(&spec->method.lora);
    names_fini(&spec->method.modules_to_save);
    free(spec->method.start_from);
    free(spec->data.train);
    free(spec->data.eval);
    json_decref(spec->data.chat_template);
    free(spec->data.day);
    json_decref(spec->placement.plan);
    names_fini(&spec->placement.devices);
    names_fini(&spec->placement.exclude);
    free(spec->placement.planner);
    free(spec->sample.prompt);
    *spec = (struct job_spec){0};
}

bool spec_blob_ref(const char *text, char hex[65])
{
    static const char prefix[] = "sha256:";
    if (!text || strncmp(text, prefix, sizeof(prefix) - 1) != 0)
        return false;
    const char *digits = text + sizeof(prefix) - 1;
    if (strlen(digits) != 64 || strspn(digits, "0123456789abcdef") != 64)
        return false;
    if (hex)
        memcpy(hex, digits, 65);
    return true;
}
