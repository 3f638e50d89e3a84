/* One JSON question a line in, one JSON answer a line out: what Motley makes of a folder, a text, a template
 * or rows. tests/wild/wild.py and tests/wild/test_recorded.py compare the answers with those of the
 * libraries.
 *
 *   {"do": "ids", "folder", "text", "add_special": false}          {"ids": [...]}
 *   {"do": "decode", "folder", "ids", "skip_special": false}       {"text"}
 *   {"do": "render", "template", "variables", "now": 0}            {"text"}
 *   {"do": "render", "folder", "messages", "tools", "documents", "kwargs", "add_generation_prompt"}  {"text"}
 *   {"do": "special", "folder"}                             {"special": {name: text}, "templates": true}
 *   {"do": "rows", "folder", "rows": text, "data": {of a specification}}  {"rows": [{"ids", "labels"}], ...}
 *   {"do": "config", "folder"}                                     {"config": {...}}
 *   {"do": "loss", "folder", "adapter", "ids", "labels", "logits": false}  {"loss", "labelled", "logits"}
 *
 * An error is {"error": {"code", "text"}}. Memory is limited to 4 GiB and a question to `argv[1]` seconds
 * (10): beyond either limit the program ends, and the caller starts it again. A question's missing keys count
 * as null. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/json.h"
#include "engine/stage/stage.h"
#include "model/templates/chat.h"
#include "model/templates/jinja.h"
#include "model/adapters/peft.h"
#include "model/rows/rows.h"
#include "model/shape/tensors.h"
#include "model/text/tokenizer_files.h"

enum { TEXT_BYTES_MAX = 1 << 26 };

static const char *text_of(const json_t *question, const char *key)
{
    return json_string_value(json_object_get(question, key));
}

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "no memory for an answer");
}

static json_t *numbers(const int32_t *values, uint64_t count)
{
    json_t *list = json_array();
    for (uint64_t i = 0; list && i < count; i++)
        json_array_append_new(list, json_integer(values[i]));
    return list;
}

/* Returns the list's numbers, which the caller frees, or NULL when it has no members. */
static int32_t *numbers_read(const json_t *list, size_t *count)
{
    *count = json_array_size(list);
    int32_t *values = *count ? calloc(*count, sizeof(*values)) : NULL;
    for (size_t i = 0; values && i < *count; i++)
        values[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return values;
}

static json_t *text_answer(const struct buf *text, struct err *err)
{
    json_t *answer = json_pack("{s:o}", "text", json_stringn(buf_str(text), text->size));
    if (!answer)
        err_set(err, ERR_INTERNAL, "the text is not UTF-8");
    return answer;
}

static int tokenizer_of(const json_t *question, struct tokenizer **tokenizer, struct err *err)
{
    struct model_source *source;
    *tokenizer = NULL;
    if (!text_of(question, "folder"))
        return err_set(err, ERR_INVALID, "the question has no folder");
    if (model_source_open_local(text_of(question, "folder"), &source, err) < 0)
        return -1;
    int result = tokenizer_open_source(source, tokenizer, err);
    model_source_close(source);
    return result;
}

static json_t *answer_ids(const json_t *question, struct err *err)
{
    struct tokenizer *tokenizer;
    struct ids ids = {0};
    json_t *answer = NULL;
    const json_t *text = json_object_get(question, "text");
    const unsigned flags =
        json_is_true(json_object_get(question, "add_special")) ? TOKENIZER_ADD_SPECIAL : TOKENIZER_PLAIN;
    if (tokenizer_of(question, &tokenizer, err) == 0 &&
        tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text), flags, &ids, err) == 0)
        answer = json_pack("{s:o}", "ids", numbers(ids.data, ids.count));
    ids_fini(&ids);
    tokenizer_destroy(tokenizer);
    return answer;
}

static json_t *answer_decode(const json_t *question, struct err *err)
{
    struct tokenizer *tokenizer;
    struct buf text = {.limit = TEXT_BYTES_MAX};
    size_t count;
    int32_t *ids = numbers_read(json_object_get(question, "ids"), &count);
    json_t *answer = NULL;
    if (tokenizer_of(question, &tokenizer, err) == 0 &&
        tokenizer_decode(tokenizer, ids, count, json_is_true(json_object_get(question, "skip_special")),
                         &text, err) == 0)
        answer = text_answer(&text, err);
    free(ids);
    buf_fini(&text);
    tokenizer_destroy(tokenizer);
    return answer;
}

static json_t *answer_special(const json_t *question, struct err *err)
{
    struct tokenizer *tokenizer;
    json_t *answer = NULL;
    if (tokenizer_of(question, &tokenizer, err) == 0)
        answer = json_pack("{s:O, s:b}", "special", tokenizer_special_tokens(tokenizer), "template",
                           tokenizer_template(tokenizer, "default") != NULL);
    if (answer)
        json_object_set_new(answer, "vocab", json_integer(tokenizer_vocab(tokenizer)));
    tokenizer_destroy(tokenizer);
    return answer;
}

static json_t *render_template(const json_t *question, struct err *err)
{
    struct jinja *jinja = NULL;
    struct buf text = {.limit = TEXT_BYTES_MAX};
    const json_t *template = json_object_get(question, "template");
    json_t *answer = NULL;
    if (jinja_parse(json_string_value(template), json_string_length(template), &jinja, err) == 0 &&
        jinja_render(jinja, json_object_get(question, "variables"),
                     json_integer_value(json_object_get(question, "now")), &text, NULL, err) == 0)
        answer = text_answer(&text, err);
    jinja_destroy(jinja);
    buf_fini(&text);
    return answer;
}

static json_t *answer_render(const json_t *question, struct err *err)
{
    struct tokenizer *tokenizer;
    struct chat_template *chat = NULL;
    struct buf text = {.limit = TEXT_BYTES_MAX};
    json_t *answer = NULL;
    const struct chat_rest rest = {.tools = json_object_get(question, "tools"),
                                   .documents = json_object_get(question, "documents"),
                                   .kwargs = json_object_get(question, "kwargs")};
    if (text_of(question, "template"))
        return render_template(question, err);
    int result = tokenizer_of(question, &tokenizer, err);
    if (result == 0) {
        const struct chat_given given = chat_given_by(tokenizer, NULL);
        result = chat_template_choose(NULL, &given, &chat, err);
    }
    if (result == 0 &&
        chat_render(chat, json_object_get(question, "messages"), &rest,
                    json_is_true(json_object_get(question, "add_generation_prompt")), &text, NULL, err) == 0)
        answer = text_answer(&text, err);
    chat_template_destroy(chat);
    buf_fini(&text);
    tokenizer_destroy(tokenizer);
    return answer;
}

static json_t *rows_answer(const struct rows *rows, const struct rows_report *report)
{
    json_t *list = json_array();
    for (uint32_t r = 0; list && r < rows->count; r++) {
        const uint64_t first = rows->offset[r], count = rows->offset[r + 1] - first;
        json_array_append_new(list, json_pack("{s:o, s:o}", "ids", numbers(rows->ids + first, count),
                                              "labels", numbers(rows->labels + first, count)));
    }
    return json_pack("{s:o, s:s, s:I, s:I}", "rows", list, "format", spec_format_name(report->format),
                     "dropped", (json_int_t)report->dropped, "truncated", (json_int_t)report->truncated);
}

/* Makes a specification with the question's data part. */
static int spec_of(const json_t *question, struct job_spec *spec, struct err *err)
{
    json_t *data =
        json_object_get(question, "data") ? json_copy(json_object_get(question, "data")) : json_object();
    json_object_set_new(data, "train", json_string("rows.jsonl"));
    json_t *document = json_pack("{s:s, s:s, s:o}", "name", "wild", "model", "folder", "data", data);
    int result = document ? spec_parse(document, spec, err) : no_memory(err);
    json_decref(document);
    return result;
}

static json_t *answer_rows(const json_t *question, struct err *err)
{
    struct tokenizer *tokenizer = NULL;
    struct chat_template *chat = NULL;
    struct rows_options options;
    struct rows *rows = NULL;
    struct rows_report report;
    struct job_spec spec = {0};
    json_t *answer = NULL;
    const json_t *text = json_object_get(question, "rows");
    int result = spec_of(question, &spec, err);
    if (result == 0 && text_of(question, "folder"))
        result = tokenizer_of(question, &tokenizer, err);
    if (result == 0)
        result = rows_options_from_spec(&spec.data, tokenizer, 0, &options, &chat, err);
    if (result == 0)
        result =
            rows_encode(json_string_value(text), json_string_length(text), &options, &rows, &report, err);
    if (result == 0)
        answer = rows_answer(rows, &report);
    rows_destroy(rows);
    chat_template_destroy(chat);
    tokenizer_destroy(tokenizer);
    spec_fini(&spec);
    return answer;
}

static json_t *answer_config(const json_t *question, struct err *err)
{
    struct model_config config;
    const char *folder = text_of(question, "folder");
    if (model_config_load(folder ? folder : "", &config, err) < 0)
        return NULL;
    json_t *document = model_config_to_json(&config, err);
    return document ? json_pack("{s:o}", "config", document) : NULL;
}

/* Copies an adapter's values into the stage's adapter parameters. */
static int adapter_load(struct peft *peft, struct stage *stage, struct err *err)
{
    for (uint32_t i = 0; i < stage_parameter_count(stage); i++) {
        const struct parameter p = stage_parameter_at(stage, i);
        const uint64_t count = (uint64_t)p.rows * p.columns;
        char key[256];
        snprintf(key, sizeof(key), "base_model.model.%s", p.name);
        const struct safetensors_tensor *tensor = peft_find(peft_tensors(peft), key);
        float *values = malloc(count * sizeof(*values));
        int result = !tensor ? err_set(err, ERR_INTERNAL, "the adapter has no %s", key) : 0;
        if (result == 0)
            result = values ? safetensors_read_f32(peft_tensors(peft), tensor, values, count, err)
                            : no_memory(err);
        if (result == 0)
            result = stage_state_write(stage, i, STATE_VALUE, values, err);
        free(values);
        if (result < 0)
            return -1;
    }
    return 0;
}

static int logits_add(struct stage *stage, const struct micro_batch *batch, uint32_t vocab, json_t *answer,
                      struct err *err)
{
    const uint64_t count = (uint64_t)batch->row_start[1] * vocab;
    float *logits = malloc(count * sizeof(*logits));
    int result = logits ? stage_logits(stage, batch, NULL, logits, err) : no_memory(err);
    json_t *list = json_array();
    for (uint64_t i = 0; result == 0 && i < count; i++)
        json_array_append_new(list, json_real((double)logits[i]));
    free(logits);
    json_object_set_new(answer, "logits", list);
    return result;
}

static int loss_of(const json_t *question, struct stage *stage, uint32_t vocab, json_t *answer,
                   struct err *err)
{
    size_t count, labels_count;
    int32_t *ids = numbers_read(json_object_get(question, "ids"), &count);
    int32_t *labels = numbers_read(json_object_get(question, "labels"), &labels_count);
    const uint32_t row_start[2] = {0, (uint32_t)count}, row_ids[1] = {0};
    const struct micro_batch batch = {
        .rows = 1, .row_ids = row_ids, .row_start = row_start, .ids = ids, .labels = labels};
    double loss = 0;
    uint64_t labelled = 0;
    int result =
        count == 0 || count != labels_count
            ? err_set(err, ERR_INVALID, "the question has %zu ids and %zu labels", count, labels_count)
            : stage_step_begin(stage, err);
    if (result == 0)
        result = stage_forward(stage, &batch, NULL, NULL, NULL, err);
    if (result == 0)
        result = stage_loss(stage, &loss, &labelled, err);
    if (result == 0) {
        json_object_set_new(answer, "loss", json_real(labelled ? loss / (double)labelled : 0));
        json_object_set_new(answer, "labelled", json_integer((json_int_t)labelled));
    }
    if (result == 0 && json_is_true(json_object_get(question, "logits")))
        result = logits_add(stage, &batch, vocab, answer, err);
    free(ids);
    free(labels);
    return result;
}

static int stage_of(const json_t *question, struct device *device, struct model *model, struct peft *peft,
                    struct stage **stage, struct err *err)
{
    const struct model_config *config = model_get_config(model);
    struct stage_options options = {.config = config,
                                    .block_end = config->layers + 2,
                                    .mode = STAGE_TRAIN,
                                    .micro_batches_in_flight = 1,
                                    .tokens_max =
                                        (uint32_t)json_array_size(json_object_get(question, "ids"))};
    if (peft) {
        const struct peft_config *found = peft_get_config(peft);
        options.lora = (struct lora_options){.rank = found->rank,
                                             .alpha = found->alpha,
                                             .rslora = found->rslora,
                                             .sites = *peft_get_sites(peft)};
        options.lora.targets = lora_sites_targets(&options.lora.sites);
        options.train_embedding = found->saves_embedding;
        options.train_head = found->saves_head;
    }
    if (stage_create(device, model, &options, stage, err) < 0)
        return -1;
    return peft ? adapter_load(peft, *stage, err) : 0;
}

static json_t *answer_loss(const json_t *question, struct err *err)
{
    struct model *model = NULL;
    struct peft *peft = NULL;
    struct device *device = NULL;
    struct stage *stage = NULL;
    json_t *answer = json_object();
    const char *folder = text_of(question, "folder"), *adapter = text_of(question, "adapter");
    int result = model_open_path(folder ? folder : "", &model, err);
    if (result == 0 && adapter)
        result = peft_open(adapter, model_get_config(model), &peft, err) < 0
                     ? -1
                     : peft_check_base(peft, model, err);
    if (result == 0)
        result =
            device_open(&(struct device_options){.kind = "cpu", .name = "wild", .threads = 1}, &device, err);
    if (result == 0)
        result = stage_of(question, device, model, peft, &stage, err);
    if (result == 0)
        result = loss_of(question, stage, model_get_config(model)->vocab, answer, err);
    stage_destroy(stage);
    device_close(device);
    peft_close(peft);
    model_close(model);
    if (result < 0) {
        json_decref(answer);
        return NULL;
    }
    return answer;
}

static const struct {
    const char *name;
    json_t *(*answer)(const json_t *question, struct err *err);
} kinds[] = {
    {"ids", answer_ids},   {"decode", answer_decode}, {"special", answer_special}, {"render", answer_render},
    {"rows", answer_rows}, {"config", answer_config}, {"loss", answer_loss},
};

static json_t *answer_to(const json_t *question, struct err *err)
{
    const char *name = text_of(question, "do");
    for (size_t i = 0; name && i < sizeof(kinds) / sizeof(*kinds); i++)
        if (strcmp(kinds[i].name, name) == 0)
            return kinds[i].answer(question, err);
    err_set(err, ERR_INVALID, "the question's do is none of the kinds");
    return NULL;
}

int main(int count, char **arguments)
{
    const struct rlimit memory = {4ul << 30, 4ul << 30}, core = {0, 0};
    const unsigned seconds = count > 1 ? (unsigned)strtoul(arguments[1], NULL, 10) : 10;
    char *line = NULL;
    size_t capacity = 0;
    ssize_t size;
    setrlimit(RLIMIT_AS, &memory);
    setrlimit(RLIMIT_CORE, &core);
    while ((size = getline(&line, &capacity, stdin)) > 0) {
        struct err err = {0};
        json_error_t why;
        json_t *question = json_loadb(line, (size_t)size, JSON_ALLOW_NUL, &why);
        alarm(seconds);
        if (!question)
            err_set(&err, ERR_INVALID, "the question is not JSON: %s", why.text);
        json_t *answer = question ? answer_to(question, &err) : NULL;
        if (!answer)
            answer = json_pack("{s:{s:s, s:s%}}", "error", "code", err_code_name(err.code), "text", err.text,
                               strlen(err.text));
        if (!answer)
            answer = json_pack("{s:{s:s, s:s}}", "error", "code", "internal", "text",
                               "the error's text is not UTF-8");
        alarm(0);
        json_dumpf(answer, stdout, JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(answer);
        json_decref(question);
    }
    free(line);
    return 0;
}
