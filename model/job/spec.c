/* The specification's description: every key stands once, with its default, its limits and its meaning. The
 * order of the rows is that in which errors are found and in which messages list the known keys. */
#include "model/job/spec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/outside.h"
#include "common/clock.h"
#include "common/doc.h"
#include "common/json.h"
#include "common/units.h"
#include "model/shape/names.h"

/* Defines the names of an enum of the specification in the order of its values; NAMES also defines the
 * function that returns one of them: NULL for a value outside the enum. */
#define WORDS(kind, ...) static const char *const kind##_names[] = {__VA_ARGS__, NULL};
#define NAMES(kind, ...)                                                                                     \
    WORDS(kind, __VA_ARGS__)                                                                                 \
    const char *spec_##kind##_name(enum spec_##kind value)                                                   \
    {                                                                                                        \
        return (unsigned)value < sizeof(kind##_names) / sizeof(*kind##_names) ? kind##_names[value] : NULL;  \
    }
WORDS(method, "lora", "full")
WORDS(base, "fp32", "bf16", "fp16", "nf4", "packed")
WORDS(optimizer, "adamw", "adamw8bit")
WORDS(compute, "auto", "fp32", "bf16", "fp16")
WORDS(decay, "all", "matrices")
WORDS(moments, "device", "host")
WORDS(objective, "time", "cost", "energy")
WORDS(fallback, "wait", "any")
WORDS(move, "auto", "never")
WORDS(placement, "auto", "single", "pipeline", "data", "hybrid", "expert", "tensor", "server")
WORDS(order, "auto", "1f1b", "gpipe", "interleaved", "split")
WORDS(service, "urgent", "normal", "scavenger")
NAMES(format, "auto", "alpaca", "chat", "text", "tokens", "sharegpt", "prompt-completion",
      "prompt-completion-chat")
NAMES(learn, "answer", "all")
NAMES(schedule, "cosine", "linear", "constant", "constant_with_warmup", "cosine_with_min_lr",
      "cosine_warmup_with_min_lr", "cosine_with_restarts", "polynomial", "inverse_sqrt",
      "warmup_stable_decay")
NAMES(boundary, "auto", "fp32", "bf16", "fp16")
NAMES(result, "adapter", "merged", "gguf")
NAMES(result_dtype, NULL, "fp32", "bf16", "fp16")
static const char *const save_names[] = {"embed_tokens", "lm_head", NULL};
static const char *const target_defaults[] = {"q_proj", "k_proj", "v_proj", "o_proj"};

enum { LORA_RANK_MAX = 1024 };
#define LORA_ALPHA_MIN 1e-6
#define LORA_ALPHA_MAX 1e6

#define EVAL_STEPS 50 /* between two evaluations */
#define STEPS_MAX 1e9 /* most steps of anything */
#define SEED_MAX ((uint64_t)1 << 53)

/* --- method --- */

static int lora_start(void *at, struct err *err)
{
    struct lora_rules *rules = at;
    for (size_t i = 0; i < DOC_COUNT(target_defaults); i++)
        if (names_add(&rules->targets.names, target_defaults[i], err) < 0)
            return -1;
    return 0;
}

static int lora_read(struct json_reader *r, const struct doc_field *field, void *at)
{
    (void)field;
    if (json_is_null(json_object_get(r->object, "targets")))
        jr_fail(r, "targets", "is null, which peft reads by the model's type: name them");
    lora_rules_read(r, "targets", LORA_RANK_MAX, LORA_ALPHA_MIN, LORA_ALPHA_MAX, at);
    return 1;
}

static int lora_write(const struct doc_field *field, const void *at, json_t *object)
{
    const struct lora_rules *rules = at;
    struct err ignored; /* only memory can be short */
    (void)field;
    int status = lora_rules_write(rules, "targets", NULL, object, &ignored);
    if (rules->targets.names.count > 0 && !rules->targets.names.given)
        json_object_del(object, "targets"); /* the model decides what they are */
    return status;
}

static void lora_fini(void *at)
{
    lora_rules_fini(at);
}

static const struct doc_form lora_form = {lora_start, lora_read, lora_write, lora_fini};

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

static int not_done_read(struct json_reader *r, const struct doc_field *field, void *at)
{
    (void)field, (void)at;
    for (size_t i = 0; i < DOC_COUNT(not_done); i++) {
        const json_t *value = NULL;
        if (jr_any(r, not_done[i].key, JR_OPTIONAL, &value) > 0 && !value_is_off(not_done[i].key, value))
            jr_fail(r, not_done[i].key, "%s is not done here", not_done[i].what);
    }
    return 0;
}

static const struct doc_form not_done_form = {.read = not_done_read};

/* Refuses settings that full fine-tuning cannot use, where ignoring them would surprise. */
static void spec_method_check(struct json_reader *r, void *all)
{
    const struct spec_method_part *m = all;
    if (m->kind != SPEC_METHOD_FULL || r->failed)
        return;
    if (m->base == SPEC_BASE_NF4 || m->base == SPEC_BASE_PACKED)
        jr_fail(r, "base", "%s weights cannot be trained themselves; use kind: lora, or base: fp32",
                base_names[m->base]);
    else if (m->start_from)
        jr_fail(r, "start_from", "an adapter to go on from needs kind: lora");
    else if (m->modules_to_save.count > 0)
        jr_fail(r, "modules_to_save", "kind: full trains and saves everything");
}

#define NAME_LIST                                                                                            \
    "{\"type\":\"array\",\"maxItems\":2048,\"uniqueItems\":true,\"items\":"                                  \
    "{\"type\":\"string\",\"minLength\":1,\"maxLength\":127}}"
#define EXPRESSION "{\"type\":\"string\",\"minLength\":1,\"maxLength\":1023}"
static const char lora_schema[] =
    "{\"targets\":{\"description\":\"names of matrices or tables (lm_head, embed_tokens) or ends of their "
    "modules' names, all-linear, or one regular expression; absent: attention's (q_proj, k_proj, v_proj, "
    "o_proj, or their like)\",\"anyOf\":[{\"type\":\"array\",\"maxItems\":2048,\"uniqueItems\":true,"
    "\"items\":"
    "{\"type\":\"string\",\"minLength\":1,\"maxLength\":127}}," EXPRESSION "]},"
    "\"target_parameters\":{\"description\":\"names, or ends of names, of tensors of all experts of a layer, "
    "which get adapters as peft's target_parameters have them: mlp.experts.gate_up_proj, "
    "mlp.experts.down_proj; targets may be [] beside them\",\"anyOf\":[" NAME_LIST ",{\"type\":\"null\"}]},"
    "\"exclude_modules\":{\"description\":\"what of the targets is left out, named "
    "likewise\",\"anyOf\":[" NAME_LIST "," EXPRESSION ",{\"type\":\"null\"}]},"
    "\"layers_to_transform\":{\"description\":\"numbers of the layers that get adapters, from 0; null: "
    "all\",\"anyOf\":[{\"type\":\"array\",\"maxItems\":2048,\"items\":{\"type\":"
    "\"integer\","
    "\"minimum\":0}},{\"type\":[\"integer\",\"null\"],\"minimum\":0}]},"
    "\"layers_pattern\":{\"description\":\"the name before the layer's number, for layers_to_transform; "
    "null: any\",\"anyOf\":[" NAME_LIST ",{\"type\":[\"string\",\"null\"]}]},"
    "\"rank_pattern\":{\"type\":\"object\",\"description\":\"ranks by names or regular expressions, as peft "
    "has them; "
    "the first that matches counts\",\"maxProperties\":2048,\"additionalProperties\":{\"type\":\"integer\","
    "\"minimum\":1,\"maximum\":1024}},"
    "\"alpha_pattern\":{\"type\":\"object\",\"description\":\"alphas, likewise\",\"maxProperties\":2048,"
    "\"additionalProperties\":{\"type\":\"number\",\"minimum\":1e-6,\"maximum\":1000000}}}";
#define BLOB "{\"pattern\":\"^sha256:[0-9a-f]{64}$\"}" /* what the api accepts, which has no files */

static const struct doc_field method_fields[] = {
    DOC_CHOICE("kind", spec_method_part, kind, JR_GIVEN, SPEC_METHOD_LORA, method_names,
               "adapters, or all weights"),
    DOC_CHOICE("base", spec_method_part, base, JR_GIVEN, SPEC_BASE_FP32, base_names,
               "how frozen weights are stored; packed: in the quantised blocks of the file"),
    DOC_FLAG("double_quant", spec_method_part, double_quant, JR_GIVEN, true,
             "the scales of nf4 are quantised, too"),
    DOC_CHOICE("optimizer", spec_method_part, optimizer, JR_GIVEN, SPEC_OPTIMIZER_ADAMW, optimizer_names,
               "adamw8bit keeps its moments in 8 bits"),
    DOC_NUM("rank", spec_method_part, rank, JR_GIVEN, 16, 1, LORA_RANK_MAX, "of the adapters"),
    DOC_NUM("alpha", spec_method_part, alpha, JR_GIVEN, 32, LORA_ALPHA_MIN, LORA_ALPHA_MAX,
            "the adapter's product is scaled by alpha / rank"),
    DOC_NUM("dropout", spec_method_part, dropout, JR_GIVEN, 0.05, 0, 0.999,
            "share of an adapter's inputs that a step leaves out"),
    DOC_OTHER(NULL, spec_method_part, lora, &lora_form, "", .schema = lora_schema),
    DOC_FLAG("rslora", spec_method_part, rslora, JR_OPTIONAL, false,
             "the product is scaled by alpha / sqrt(rank) (Kalajdzievski 2023)"),
    DOC_OTHER("modules_to_save", spec_method_part, modules_to_save, &names_form,
              "trained whole beside the adapter", .max = 2, .names = save_names,
              .schema =
                  "{\"type\":\"array\",\"maxItems\":2,\"uniqueItems\":true,\"items\":{\"type\":\"string\","
                  "\"enum\":[\"embed_tokens\",\"lm_head\"]}}"),
    DOC_TEXT("start_from", spec_method_part, start_from, JR_OPTIONAL, 1, SPEC_PATH_BYTES - 1,
             "a peft adapter to go on from", .flags = DOC_PLAIN | DOC_NULL, .schema = BLOB),
    DOC_OTHER(NULL, spec_method_part, kind, &not_done_form, ""),
};
static const struct doc method_doc = DOC(spec_method_part, method_fields, .check = spec_method_check);

/* --- data --- */

/* Checks only the type of a chat template; chat.h checks its content when it is used. */
static void chat_template_rule(struct json_reader *r, const struct doc_field *field, void *all)
{
    struct spec_data_part *d = all;
    const char *text = json_string_value(d->chat_template);
    if (!text && !json_is_object(d->chat_template))
        jr_fail(r, field->key, "must be \"auto\", the name of a template, or an object");
    if (text && strcmp(text, "auto") == 0) {
        json_decref(d->chat_template);
        d->chat_template = NULL;
    }
}

static void day_rule(struct json_reader *r, const struct doc_field *field, void *all)
{
    const struct spec_data_part *d = all;
    int64_t day_us;
    if (strlen(d->day) != 10 || clock_rfc3339_parse(d->day, &day_us) < 0)
        jr_fail(r, field->key, "must be a date such as 2026-01-31");
}

static const struct doc_field data_fields[] = {
    DOC_TEXT("train", spec_data_part, train, JR_REQUIRED, 1, SPEC_PATH_BYTES - 1,
             "the rows to learn: a file, or hf:OWNER/NAME of the Hub", .flags = DOC_PLAIN, .schema = BLOB),
    DOC_TEXT("eval", spec_data_part, eval, JR_OPTIONAL, 1, SPEC_PATH_BYTES - 1, "the file of evaluation rows",
             .flags = DOC_PLAIN | DOC_NULL, .schema = BLOB),
    DOC_CHOICE("format", spec_data_part, format, JR_OPTIONAL, SPEC_FORMAT_AUTO, format_names,
               "of the rows; auto: found from their keys"),
    DOC_NUM("sequence_tokens", spec_data_part, sequence_tokens, JR_GIVEN, 512, 2, 1048576,
            "longer rows are cut"),
    DOC_FLAG("shuffle", spec_data_part, shuffle, JR_GIVEN, true, "each epoch in another order"),
    DOC_CHOICE("learn", spec_data_part, learn, JR_GIVEN, SPEC_LEARN_ANSWER, learn_names,
               "which tokens count in the loss"),
    DOC_JSON("chat_template", spec_data_part, chat_template, JR_OPTIONAL,
             "auto (the model's own), a name such as chatml, or an object of turns",
             .rule = chat_template_rule,
             .schema = "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"object\"},{\"type\":\"null\"}]}"),
    DOC_TEXT("day", spec_data_part, day, JR_OPTIONAL, 1, SPEC_NAME_BYTES - 1,
             "what strftime_now of the chat template tells", .flags = DOC_PLAIN, .rule = day_rule,
             .schema = "{\"pattern\":\"^[0-9]{4}-[0-9]{2}-[0-9]{2}$\"}"),
};
static const struct doc data_doc = DOC(spec_data_part, data_fields);

/* --- train --- */

static int betas_start(void *at, struct err *err)
{
    (void)err;
    memcpy(at, (const double[2]){0.9, 0.95}, 2 * sizeof(double));
    return 0;
}

static int betas_read(struct json_reader *r, const struct doc_field *field, void *at)
{
    const json_t *betas = NULL;
    double *out = at;
    int got = jr_array(r, field->key, JR_GIVEN, 2, 2, &betas);
    for (size_t i = 0; i < 2 && betas; i++) {
        const json_t *item = json_array_get(betas, i);
        double value = json_number_value(item);
        if (!json_is_number(item) || !(value >= 0 && value < 1))
            return jr_fail(r, field->key, "item %zu must be a number from 0 to below 1", i);
        out[i] = value;
    }
    return got;
}

static int betas_write(const struct doc_field *field, const void *at, json_t *object)
{
    const double *betas = at;
    return json_object_set_new(object, field->key, json_pack("[f,f]", betas[0], betas[1]));
}

static const struct doc_form betas_form = {betas_start, betas_read, betas_write, NULL};

static int recompute_read(struct json_reader *r, const struct doc_field *field, void *at)
{
    enum spec_recompute *out = at;
    const json_t *value = NULL;
    int got = jr_any(r, field->key, JR_OPTIONAL, &value);
    if (json_is_boolean(value))
        *out = json_is_true(value) ? SPEC_RECOMPUTE_YES : SPEC_RECOMPUTE_NO;
    else if (value && (!json_is_string(value) || strcmp(json_string_value(value), "auto") != 0))
        return jr_fail(r, field->key, "must be auto, true or false");
    return got;
}

static int recompute_write(const struct doc_field *field, const void *at, json_t *object)
{
    const enum spec_recompute *value = at;
    return json_object_set_new(object, field->key,
                               *value == SPEC_RECOMPUTE_AUTO ? json_string("auto")
                                                             : json_boolean(*value == SPEC_RECOMPUTE_YES));
}

static const struct doc_form recompute_form = {NULL, recompute_read, recompute_write, NULL};

/* Reads true, false or a coefficient. */
static int router_aux_read(struct json_reader *r, const struct doc_field *field, void *at)
{
    double *out = at;
    const json_t *value = NULL;
    int got = jr_any(r, field->key, JR_OPTIONAL, &value);
    double number = json_number_value(value);
    if (json_is_boolean(value))
        *out = json_is_true(value) ? SPEC_ROUTER_AUX_MODEL : 0;
    else if (value && (!json_is_number(value) || !(number >= 0 && number <= 1e6)))
        return jr_fail(r, field->key, "must be true, false or a number from 0 to 1e6");
    else if (value)
        *out = number;
    return got;
}

static int router_aux_write(const struct doc_field *field, const void *at, json_t *object)
{
    const double *value = at;
    const bool plain = *value == SPEC_ROUTER_AUX_MODEL || *value == 0;
    return json_object_set_new(object, field->key, plain ? json_boolean(*value != 0) : json_real(*value));
}

static const struct doc_form router_aux_form = {NULL, router_aux_read, router_aux_write, NULL};

static void spec_train_check(struct json_reader *r, void *all)
{
    struct spec_train_part *t = all;
    if (t->steps == 0 && json_is_null(json_object_get(r->object, "epochs")))
        jr_fail(r, "epochs", "is null, which is no value here: leave the key out for its default");
    if (t->epochs == 0 && json_is_null(json_object_get(r->object, "steps")))
        jr_fail(r, "steps", "is null, which is no value without epochs: leave the key out for its default");
    t->steps = t->steps > 0 || t->epochs > 0 ? t->steps : 100;
    if (!r->failed && t->schedule == SPEC_SCHEDULE_WARMUP_STABLE_DECAY && t->decay_steps == 0)
        jr_fail(r, "decay_steps", "schedule: warmup_stable_decay needs it");
    if (json_is_null(json_object_get(r->object, "clip_norm")))
        t->clip_norm = 0; /* as transformers' max_grad_norm */
}

static const struct doc_field train_fields[] = {
    DOC_NUM("batch_rows", spec_train_part, batch_rows, JR_GIVEN, 16, 1, 65536,
            "rows of a step, over all devices"),
    DOC_NUM("steps", spec_train_part, steps, JR_OPTIONAL, 0, 1, STEPS_MAX, "100 without this and epochs",
            .flags = DOC_SPARSE),
    DOC_NUM("epochs", spec_train_part, epochs, JR_OPTIONAL, 0, 1, 100000,
            "passes over the data; beside steps: so many steps in passes that end as epochs do",
            .flags = DOC_SPARSE),
    DOC_NUM("learning_rate", spec_train_part, learning_rate, JR_GIVEN, 2e-4, 0, 1000, "the schedule's peak"),
    DOC_CHOICE("schedule", spec_train_part, schedule, JR_GIVEN, SPEC_SCHEDULE_COSINE, schedule_names,
               "of the learning rate, by transformers' names"),
    DOC_NUM("warmup_steps", spec_train_part, warmup_steps, JR_GIVEN, 10, 0, STEPS_MAX,
            "steps in which the rate rises to its peak"),
    DOC_NUM("final_fraction", spec_train_part, final_fraction, JR_GIVEN, 0.1, 0, 1,
            "share of the peak at the end of a schedule that ends"),
    DOC_NUM("cycles", spec_train_part, cycles, JR_GIVEN, 1, 1, 1000000, "of cosine_with_restarts"),
    DOC_NUM("power", spec_train_part, power, JR_GIVEN, 1, 0, 1000, "of polynomial"),
    DOC_NUM("decay_steps", spec_train_part, decay_steps, JR_GIVEN, 0, 0, STEPS_MAX, "of warmup_stable_decay"),
    DOC_NUM("weight_decay", spec_train_part, weight_decay, JR_OPTIONAL, 0, 0, 1000,
            "decoupled from the gradient"),
    DOC_CHOICE("decay", spec_train_part, decay, JR_GIVEN, SPEC_DECAY_ALL, decay_names,
               "what weight decay applies to; matrices: no norms, no biases, as in transformers' Trainer"),
    DOC_OTHER(
        "betas", spec_train_part, betas, &betas_form, "of AdamW",
        .schema =
            "{\"type\":\"array\",\"minItems\":2,\"maxItems\":2,\"items\":{\"type\":\"number\",\"minimum\":0,"
            "\"exclusiveMaximum\":1}}"),
    DOC_NUM("eps", spec_train_part, eps, JR_GIVEN, 1e-8, 0, 1, "of AdamW"),
    DOC_NUM("clip_norm", spec_train_part, clip_norm, JR_OPTIONAL, 1, 0, 1e12, "0: no clipping"),
    DOC_NUM("seed", spec_train_part, seed, JR_GIVEN, 1, 0, SEED_MAX, "of order, dropout and new adapters"),
    DOC_CHOICE("compute", spec_train_part, compute, JR_GIVEN, SPEC_COMPUTE_AUTO, compute_names,
               "what the operands of products are rounded to; auto: what is fastest on the devices of the "
               "job's first plan, and fp32 unless a card multiplies 16 bits faster"),
    DOC_OTHER("recompute", spec_train_part, recompute, &recompute_form,
              "auto, or whether the backward pass computes activations again",
              .schema = "{\"anyOf\":[{\"type\":\"boolean\"},{\"type\":\"string\",\"enum\":[\"auto\"]}]}"),
    DOC_NUM("label_smoothing", spec_train_part, label_smoothing, JR_OPTIONAL, 0, 0, 0.999,
            "share of the target given to all tokens"),
    DOC_NUM("neftune_alpha", spec_train_part, neftune_alpha, JR_OPTIONAL, 0, 0, 1e6,
            "0: no noise on the embeddings"),
    DOC_OTHER(
        "router_aux", spec_train_part, router_aux, &router_aux_form, "true: the model's own coefficient",
        .schema =
            "{\"anyOf\":[{\"type\":\"boolean\"},{\"type\":\"number\",\"minimum\":0,\"maximum\":1000000}]}"),
};
static const struct doc train_doc = DOC(spec_train_part, train_fields, .check = spec_train_check);

/* --- placement --- */

static void count_check(struct json_reader *r, void *all)
{
    const struct spec_placement_part *p = all;
    if (p->count_most > 0 && p->count_least > p->count_most)
        jr_fail(r, "least", "%u is more than most, %u", p->count_least, p->count_most);
}

static const struct doc_field count_fields[] = {
    DOC_NUM("least", spec_placement_part, count_least, JR_OPTIONAL, 0, 1, 1024,
            "the job waits while its plan has fewer devices", .flags = DOC_SPARSE),
    DOC_NUM("most", spec_placement_part, count_most, JR_OPTIONAL, 0, 1, 1024, "at most so many devices",
            .flags = DOC_SPARSE),
};
static const struct doc count_doc = DOC(spec_placement_part, count_fields, .check = count_check);

static void plan_rule(struct json_reader *r, const struct doc_field *field, void *all)
{
    const struct spec_placement_part *p = all;
    if (!json_is_object(p->plan) && !json_is_string(p->plan))
        jr_fail(r, field->key, "must be a plan or the name of its file");
}

static const struct doc_field placement_fields[] = {
    DOC_CHOICE("kind", spec_placement_part, kind, JR_OPTIONAL, SPEC_PLACEMENT_AUTO, placement_names,
               "how the model is split; auto: what is fastest"),
    DOC_OTHER("devices", spec_placement_part, devices, &names_form, "the devices that may be used; null: any",
              .min = 1, .max = SPEC_DEVICES_MAX, .flags = DOC_NULL,
              .schema = "{\"type\":[\"array\",\"null\"],\"minItems\":1,\"uniqueItems\":true,\"items\":{"
                        "\"type\":\"string\"}}"),
    DOC_OTHER("exclude", spec_placement_part, exclude, &names_form, "devices that may not be used",
              .max = SPEC_DEVICES_MAX,
              .schema = "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"string\"}}"),
    DOC_WITHIN("count", JR_OPTIONAL, &count_doc, "how many devices the job is to have", .flags = DOC_SPARSE),
    DOC_NUM("micro_batch_rows", spec_placement_part, micro_batch_rows, JR_OPTIONAL, 0, 1, 65536,
            "rows that a rank computes at a time", .flags = DOC_AUTO),
    DOC_NUM("stages", spec_placement_part, stages, JR_OPTIONAL, 0, 1, 4096, "of a pipeline",
            .flags = DOC_AUTO),
    DOC_CHOICE("schedule", spec_placement_part, order, JR_OPTIONAL, SPEC_ORDER_AUTO, order_names,
               "the order of a pipeline's instructions"),
    DOC_CHOICE("boundary", spec_placement_part, boundary, JR_OPTIONAL, SPEC_BOUNDARY_AUTO, boundary_names,
               "What activations and gradients between ranks are rounded to; auto: as train.compute"),
    DOC_CHOICE("moments", spec_placement_part, moments, JR_OPTIONAL, SPEC_MOMENTS_DEVICE, moments_names,
               "Where the optimiser's moments lie between updates"),
    DOC_CHOICE("objective", spec_placement_part, objective, JR_OPTIONAL, SPEC_OBJECTIVE_TIME, objective_names,
               "the least seconds a step, price a token, or energy a token"),
    DOC_CHOICE(
        "fallback", spec_placement_part, fallback, JR_OPTIONAL, SPEC_FALLBACK_WAIT, fallback_names,
        "When `kind` does not fit the devices that are there: wait for others, or be placed as any kind"),
    DOC_CHOICE("move", spec_placement_part, move, JR_OPTIONAL, SPEC_MOVE_AUTO, move_names,
               "Whether the running job moves to another plan when that pays"),
    DOC_NUM(
        "trials", spec_placement_part, trials, JR_OPTIONAL, SPEC_TRIALS, 0, SPEC_TRIALS_MAX,
        "how many other plans, no slower by their forecasts as far as these can tell, the first steps are "
        "run on in turn; the one that was fastest is kept"),
    DOC_TEXT(
        "planner", spec_placement_part, planner, JR_OPTIONAL, 1, SPEC_NAME_BYTES - 1,
        "a planner that the scheduler's configuration names, or `built-in`; for administrators (scope admin)",
        .flags = DOC_PLAIN, .schema = "{\"type\":[\"string\",\"null\"]}"),
    DOC_JSON("plan", spec_placement_part, plan, JR_OPTIONAL,
             "the plan to run, as `motley get` writes it (or its member `plan`), in the place of a search; "
             "the job "
             "never moves from it",
             .rule = plan_rule, .schema = "{\"type\":[\"object\",\"null\"]}"),
};
static const struct doc placement_doc = DOC(spec_placement_part, placement_fields);

/* --- the parts of job_spec itself --- */

static void result_check(struct json_reader *r, void *all)
{
    struct job_spec *spec = all;
    const enum spec_result kind = spec->result.kind;
    const bool given = json_is_string(json_object_get(r->object, "kind"));
    spec->result.kind = spec->method.kind == SPEC_METHOD_FULL ? SPEC_RESULT_MERGED : kind;
    if (!r->failed && given && spec->result.kind != kind)
        jr_fail(r, "kind", "%s needs method.kind: lora; full fine-tuning leaves a model", result_names[kind]);
    if (!r->failed && spec->result.kind == SPEC_RESULT_ADAPTER && spec->result.dtype > SPEC_DTYPE_FP32)
        jr_fail(r, "dtype", "an adapter is written in fp32; merged and gguf may be %s",
                result_dtype_names[spec->result.dtype]);
    if (!r->failed && spec->result.kind == SPEC_RESULT_GGUF && spec->method.modules_to_save.count > 0)
        jr_fail(r, "kind", "an adapter for llama.cpp cannot hold method.modules_to_save");
}

static const struct doc_field result_fields[] = {
    DOC_CHOICE("kind", job_spec, result.kind, JR_GIVEN, SPEC_RESULT_ADAPTER, result_names,
               "of method.kind full it is always merged", .flags = DOC_DEPENDS),
    DOC_CHOICE("dtype", job_spec, result.dtype, JR_OPTIONAL, SPEC_DTYPE_BASE, result_dtype_names,
               "null: as the base's file has it"),
};
static const struct doc result_doc = DOC(job_spec, result_fields, .check = result_check);

static const struct doc_field checkpoint_fields[] = {
    DOC_NUM("every_steps", job_spec, checkpoint.every_steps, JR_GIVEN, 50, 0, STEPS_MAX,
            "0: only at the end"),
    DOC_NUM("keep", job_spec, checkpoint.keep, JR_GIVEN, 2, 1, 100, "so many of the last ones"),
};
static const struct doc checkpoint_doc = DOC(job_spec, checkpoint_fields);

static void eval_check(struct json_reader *r, void *all)
{
    const struct job_spec *spec = all;
    const bool failed = r->failed || (r->parent && r->parent->failed); /* data.eval may be what was refused */
    if (!failed && !spec->data.eval)
        jr_fail(r, NULL, "there is nothing to evaluate on: data.eval names no file");
}

static const struct doc_field eval_fields[] = {
    DOC_NUM("every_steps", job_spec, eval.every_steps, JR_GIVEN, EVAL_STEPS, 0, STEPS_MAX,
            "0: only before the first and after the last step"),
};
static const struct doc eval_doc = DOC(job_spec, eval_fields, .check = eval_check);

static const struct doc_field sample_fields[] = {
    DOC_TEXT("prompt", job_spec, sample.prompt, JR_REQUIRED, 1, SPEC_PROMPT_BYTES,
             "what the model is asked before and after",
             .schema = "{\"maxLength\":16000}"), /* characters, of up to four bytes */
    DOC_NUM("tokens", job_spec, sample.tokens, JR_GIVEN, 64, 1, 65536, "of its answer"),
    DOC_NUM("temperature", job_spec, sample.temperature, JR_OPTIONAL, 0, 0, 100, "0: greedy"),
    DOC_NUM("seed", job_spec, sample.seed, JR_GIVEN, 1, 0, SEED_MAX, "of the answer's draws"),
};
static const struct doc sample_doc = DOC(job_spec, sample_fields);

/* Reads "2h", or a number of seconds; part of a second counts as a whole one. */
static int time_read(struct json_reader *r, const struct doc_field *field, void *at)
{
    uint64_t *out = at;
    const json_t *time = NULL;
    int got = jr_any(r, field->key, JR_OPTIONAL, &time);
    if (got <= 0)
        return got;
    double seconds = json_number_value(time);
    struct err why;
    if (json_is_string(time) && units_parse_seconds(json_string_value(time), &seconds, &why) < 0)
        return jr_fail(r, field->key, "%s", why.text);
    if (!json_is_string(time) && !json_is_number(time))
        return jr_fail(r, field->key, "must be a time such as \"2h\", or a number of seconds");
    if (!(seconds >= 1 && seconds <= 366.0 * 86400))
        return jr_fail(r, field->key, "must be from 1 second to 366 days");
    *out = (uint64_t)ceil(seconds);
    return got;
}

static int time_write(const struct doc_field *field, const void *at, json_t *object)
{
    const uint64_t *seconds = at;
    return json_object_set_new(object, field->key,
                               *seconds > 0 ? json_integer((json_int_t)*seconds) : json_null());
}

static const struct doc_form time_form = {NULL, time_read, time_write, NULL};

static const struct doc_field limits_fields[] = {
    DOC_NUM("retries", job_spec, limits.retries, JR_GIVEN, SPEC_RETRIES_DEFAULT, 0, 1000,
            "attempts after losses of workers since the newest checkpoint"),
    DOC_OTHER("time", job_spec, limits.time_s, &time_form, "after which the job stores a checkpoint and ends",
              .schema =
                  "{\"anyOf\":[{\"type\":\"number\",\"minimum\":1,\"maximum\":31622400},{\"type\":\"string\","
                  "\"pattern\":\"^[1-9][0-9]{0,2}[smhd]$\"},{\"type\":\"null\"}]}"),
};
static const struct doc limits_doc = DOC(job_spec, limits_fields);

/* --- the whole --- */

static void labels_rule(struct json_reader *r, const struct doc_field *field, void *all)
{
    static const char in_keys[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._/-";
    struct job_spec *spec = all;
    const size_t count = json_object_size(spec->labels);
    json_t *value;
    const char *key;
    if (count > SPEC_LABELS_MAX)
        jr_fail(r, field->key, "%zu labels are more than %d", count, SPEC_LABELS_MAX);
    json_object_foreach (spec->labels, key, value) {
        const char *text = json_string_value(value);
        if (!*key || strlen(key) >= SPEC_LABEL_KEY_BYTES || strspn(key, in_keys) != strlen(key))
            jr_fail(r, field->key, "\"%.80s\" is not 1 to %d of the characters A-Z a-z 0-9 . _ / -", key,
                    SPEC_LABEL_KEY_BYTES - 1);
        bool good = text && strlen(text) < SPEC_LABEL_VALUE_BYTES;
        for (const unsigned char *c = (const unsigned char *)text; good && *c; c++)
            good = *c >= 0x20 && *c != 0x7f && *c != ',';
        if (!good)
            jr_fail(r, field->key, "the value of \"%.63s\" is not a text of at most %d bytes without commas",
                    key, SPEC_LABEL_VALUE_BYTES - 1);
    }
    if (count == 0) {
        json_decref(spec->labels);
        spec->labels = NULL;
    }
}

static int spec_jobs_read(struct json_reader *r, const struct doc_field *field, void *at)
{
    struct spec_jobs *jobs = at;
    const json_t *array = NULL, *item;
    size_t index;
    int got = jr_array(r, field->key, JR_OPTIONAL, 0, SPEC_AFTER_MAX, &array);
    json_array_foreach ((json_t *)(uintptr_t)array, index, item) {
        const json_int_t id = json_integer_value(item);
        char path[32];
        snprintf(path, sizeof(path), "%s[%zu]", field->key, index);
        if (id < 1)
            jr_fail(r, path, "must be the id of a job, a whole number from 1");
        for (uint32_t i = 0; i < jobs->count; i++)
            if (jobs->ids[i] == id)
                jr_fail(r, path, "job %lld is there twice", (long long)id);
        jobs->ids[jobs->count++] = id;
    }
    return got;
}

/* Writes a list of jobs unless it is empty. */
static int jobs_write(const struct doc_field *field, const void *at, json_t *object)
{
    const struct spec_jobs *jobs = at;
    json_t *array = jobs->count > 0 ? json_array() : NULL;
    for (uint32_t i = 0; array && i < jobs->count; i++)
        json_array_append_new(array, json_integer(jobs->ids[i]));
    return jobs->count > 0 ? json_object_set_new(object, field->key, array) : 0;
}

static const struct doc_form jobs_form = {NULL, spec_jobs_read, jobs_write, NULL};

static void begin_rule(struct json_reader *r, const struct doc_field *field, void *all)
{
    struct job_spec *spec = all;
    if (clock_rfc3339_parse(spec->begin, &spec->begin_us) < 0)
        jr_fail(r, field->key,
                "must be a time such as 2026-01-31T08:00:00Z (or in a file 2h, from the submit on)");
}

static void notify_rule(struct json_reader *r, const struct doc_field *field, void *all)
{
    const struct job_spec *spec = all;
    struct outside_url url;
    struct err why;
    if (strcmp(spec->notify, SPEC_NOTIFY_NONE) != 0 && outside_url_read(spec->notify, &url, &why) < 0)
        jr_fail(r, field->key, "%s; \"none\" tells nobody", why.text);
}

static void spec_job_check(struct json_reader *r, void *all)
{
    struct job_spec *spec = all;
    if (spec->placement.micro_batch_rows > spec->train.batch_rows)
        jr_fail(r, "placement.micro_batch_rows", "%u is more than train.batch_rows, %u",
                spec->placement.micro_batch_rows, spec->train.batch_rows);
    if (spec->at_most > 0 && !spec->array)
        jr_fail(r, "at_most", "it goes with `array`");
    if (!spec->limits.on)
        spec->limits.retries = SPEC_RETRIES_UNLIMITED;
    if (spec->data.eval && !spec->eval.on) {
        spec->eval.on = true;
        spec->eval.every_steps = EVAL_STEPS;
    }
}

#define JOB_LIST                                                                                             \
    "{\"type\":[\"array\",\"null\"],\"maxItems\":64,\"uniqueItems\":true,\"items\":{\"type\":\"integer\","   \
    "\"minimum\":1}}"

static const struct doc_field job_fields[] = {
    DOC_TEXT("name", job_spec, name, JR_OPTIONAL, 1, SPEC_NAME_BYTES - 1, "what lists call the job",
             .flags = DOC_PLAIN, .text = "job"),
    DOC_TEXT("model", job_spec, model, JR_REQUIRED, 1, SPEC_PATH_BYTES - 1,
             "a folder, a .gguf, a registered name, or OWNER/NAME of the Hub", .flags = DOC_PLAIN,
             .schema = "{\"maxLength\":401}"), /* a registered name */
    DOC_NUM("priority", job_spec, priority, JR_OPTIONAL, 0, -100, 100, "higher goes first"),
    DOC_JSON("labels", job_spec, labels, JR_OPTIONAL, "", .flags = DOC_OBJECT, .rule = labels_rule,
             .schema = "{\"$ref\":\"#/components/schemas/Labels\"}"),
    DOC_STRUCT("method", job_spec, method, JR_OPTIONAL, &method_doc, "what is trained"),
    DOC_STRUCT("data", job_spec, data, JR_REQUIRED, &data_doc, "the rows"),
    DOC_STRUCT("train", job_spec, train, JR_OPTIONAL, &train_doc, "the optimiser and its steps"),
    DOC_STRUCT("placement", job_spec, placement, JR_OPTIONAL, &placement_doc, "where it may run"),
    DOC_WITHIN("result", JR_OPTIONAL, &result_doc, "what is written at the end"),
    DOC_WITHIN("checkpoint", JR_OPTIONAL, &checkpoint_doc, "what is kept on the way"),
    DOC_WITHIN("eval", JR_OPTIONAL, &eval_doc, "loss of held-out rows, on wherever data.eval names some",
               DOC_GIVEN_IN(job_spec, eval.on), .flags = DOC_NULLABLE),
    DOC_WITHIN("sample", JR_OPTIONAL, &sample_doc, "an answer of the model, before and after",
               DOC_GIVEN_IN(job_spec, sample.on), .flags = DOC_NULLABLE),
    DOC_WITHIN("limits", JR_OPTIONAL, &limits_doc, "of time and attempts", DOC_GIVEN_IN(job_spec, limits.on),
               .flags = DOC_NULLABLE),
    DOC_FLAG("hold", job_spec, hold, JR_OPTIONAL, false, "queued, but not started before its release"),
    DOC_TEXT("notify", job_spec, notify, JR_OPTIONAL, 1, OUTSIDE_URL_BYTES - 1,
             "the https:// or mailto: address that is told when the job ends or is held; none: no address; "
             "null is the submitter's own (motley notify)",
             .flags = DOC_PLAIN | DOC_NULLABLE, .rule = notify_rule),
    DOC_TEXT("account", job_spec, account, JR_OPTIONAL, 1, SPEC_NAME_BYTES - 1,
             "the group that is charged; null is the submitter's default account",
             .flags = DOC_PLAIN | DOC_NULLABLE),
    DOC_CHOICE("service", job_spec, service, JR_OPTIONAL, SPEC_SERVICE_NORMAL, service_names,
               "urgent is for administrators (scope admin)", .flags = DOC_SPARSE),
    DOC_TEXT("begin", job_spec, begin, JR_OPTIONAL, 1, 63,
             "the job does not start before this time, such as 2026-01-31T08:00:00Z; in a file also 2h, from "
             "the submit on",
             .flags = DOC_PLAIN | DOC_NULLABLE, .rule = begin_rule, .schema = "{\"format\":\"date-time\"}"),
    DOC_OTHER("after", job_spec, after, &jobs_form, "jobs that must have succeeded before it starts",
              .schema = JOB_LIST),
    DOC_OTHER("after_any", job_spec, after_any, &jobs_form, "jobs that must have ended before it starts",
              .schema = JOB_LIST),
    DOC_JSON("array", job_spec, array, JR_OPTIONAL,
             "One job for each combination of these values: `seed: [1, 2]`. Keys are those of `train` and "
             "`method` that "
             "change neither files nor devices; at most 1000 elements.",
             .flags = DOC_OBJECT | DOC_NULLABLE,
             .schema = "{\"minProperties\":1,\"additionalProperties\":{\"type\":\"array\",\"minItems\":1,"
                       "\"maxItems\":1000,"
                       "\"items\":{}}}"),
    DOC_NUM("at_most", job_spec, at_most, JR_OPTIONAL, 0, 1, SPEC_ARRAY_MAX, "elements of the array at once",
            .flags = DOC_SPARSE | DOC_NULLABLE),
};
const struct doc spec_doc = DOC(
    job_spec, job_fields, .check = spec_job_check,
    .help = "Everything but `model` and `data.train` has a default. Unknown keys are refused by their path.");

/* Reads a specification; every error is added to `all` (jr_collect) unless that is NULL. */
static int job_read(const json_t *document, json_t *all, struct job_spec *spec, struct err *err)
{
    struct json_reader r;
    int rc = doc_start(&spec_doc, spec, err);
    if (rc == 0 && !json_is_object(document))
        rc = err_set(err, ERR_INVALID, "the specification must be a mapping of keys to values");
    if (rc == 0) {
        jr_init(&r, document, "", err);
        jr_collect(&r, all);
        rc = doc_take(&spec_doc, &r, spec);
    }
    if (rc < 0)
        spec_fini(spec);
    return rc;
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

json_t *spec_to_json(const struct job_spec *spec, struct err *err)
{
    json_t *object = doc_write(&spec_doc, spec, err);
    if (object && spec->method.kind == SPEC_METHOD_FULL) /* its adapter's settings mean nothing */
        json_object_set_new(object, "method",
                            json_pack("{s:s, s:s, s:s}", "kind", "full", "base",
                                      base_names[spec->method.base], "optimizer",
                                      optimizer_names[spec->method.optimizer]));
    return object;
}

void spec_fini(struct job_spec *spec)
{
    doc_fini(&spec_doc, spec);
}

bool spec_compute_is_open(const json_t *spec)
{
    const char *compute = json_string_value(json_object_get(json_object_get(spec, "train"), "compute"));
    return compute && strcmp(compute, compute_names[SPEC_COMPUTE_AUTO]) == 0;
}

json_t *spec_computed(const json_t *spec, const char *compute)
{
    json_t *copy = json_copy((json_t *)(uintptr_t)spec), *train;
    if (!copy || !compute || !spec_compute_is_open(spec))
        return copy;
    train = json_copy(json_object_get(spec, "train"));
    if (json_object_set_new(train, "compute", json_string(compute)) == 0 &&
        json_object_set(copy, "train", train) == 0) {
        json_decref(train);
        return copy;
    }
    json_decref(train);
    json_decref(copy);
    return NULL;
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
