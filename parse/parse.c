/* Runs one process for each question: starts it, reads its answer, and waits for its end. */
#include "parse/parse.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "common/frame.h"
#include "common/json.h"
#include "common/sandbox.h"

/* The part of an answer that was read. */
struct answer_reader {
    struct buf head; /* bytes read until the answer's frame is complete */
    json_t *document;
    uint64_t due; /* bytes that follow the frame */
    parse_sink_fn *sink;
    void *arg;
    bool sink_failed; /* the caller's sink failed, so its error is returned unchanged */
};

static int put_texts(const struct parse_question *question, struct buf *out, struct err *err)
{
    uint8_t length[4] = {0};
    if (buf_append(out, length, sizeof(length), err) < 0)
        return -1;
    for (uint32_t i = 0; i < question->file_count; i++) {
        const struct model_path *file = &question->files[i];
        if (buf_append(out, file->name, strlen(file->name) + 1, err) < 0 ||
            buf_append(out, file->path, strlen(file->path) + 1, err) < 0) {
            return -1;
        }
    }
    const uint32_t size = (uint32_t)out->size - 4;
    for (int i = 0; i < 4; i++)
        out->data[i] = (uint8_t)(size >> (24 - 8 * i));
    return 0;
}

static const json_t *parse_answer_of(const struct answer_reader *reading)
{
    return json_object_get(reading->document, "answer");
}

static int parse_take_bytes(struct answer_reader *reading, const void *bytes, size_t size, struct err *err)
{
    if (size > reading->due)
        return err_set(err, ERR_CORRUPT, "it sent more bytes than it announced");
    reading->due -= size;
    if (size > 0 && reading->sink(reading->arg, parse_answer_of(reading), bytes, size, err) < 0) {
        reading->sink_failed = true;
        return -1;
    }
    return 0;
}

/* Checks the answer's frame once it is complete. */
static int parse_head_check(struct answer_reader *reading, struct err *err)
{
    struct json_reader reader;
    const json_t *answer = NULL;
    int64_t due = 0;
    if (json_object_get(reading->document, "error"))
        return 0;
    jr_init(&reader, reading->document, "answer", err);
    jr_object(&reader, "answer", JR_REQUIRED, &answer);
    jr_i64(&reader, "bytes", JR_OPTIONAL, 0, reading->sink ? INT64_MAX : 0, &due);
    reading->due = (uint64_t)due;
    return jr_finish(&reader);
}

static int read_answer(void *arg, const void *bytes, size_t size, struct err *err)
{
    struct answer_reader *reading = arg;
    if (reading->document)
        return parse_take_bytes(reading, bytes, size, err);
    size_t used = 0;
    if (buf_append(&reading->head, bytes, size, err) < 0)
        return -1;
    const int taken = frame_take(reading->head.data, reading->head.size, &frame_limits_default,
                                 &reading->document, &used, err);
    if (taken <= 0)
        return taken;
    return parse_head_check(reading, err) < 0
               ? -1
               : parse_take_bytes(reading, reading->head.data + used, reading->head.size - used, err);
}

/* Sets *err to the error that the parser reports for the file. */
static int parse_refusal(const json_t *said, struct err *err)
{
    const char *code = json_string_value(json_object_get(said, "code"));
    const char *text = json_string_value(json_object_get(said, "text"));
    if (!code || !text)
        return err_set(err, ERR_INVALID, "the file's parser refused it without a reason");
    const enum err_code number = err_code_from_name(code);
    return err_set(err, number != ERR_NONE ? number : ERR_INVALID, "%s", text);
}

/* Sets *err to the reason why there is no answer. 'why' is sandbox_run's error, or what is wrong with the
 * answer. */
static int no_answer(const struct err *why, struct err *err)
{
    switch (why->code) {
    case ERR_TIMEOUT:
    case ERR_PEER:
        return err_set(err, ERR_INVALID, "the file's parser %s; the file is refused", why->text);
    case ERR_CORRUPT:
    case ERR_TOO_BIG:
    case ERR_INVALID:
        return err_set(err, ERR_INVALID, "the file's parser gave no proper answer (%s); the file is refused",
                       why->text);
    case ERR_NOMEM:
    case ERR_CANCELLED:
        *err = *why;
        return -1;
    default:
        return err_set(err, ERR_INTERNAL, "the parser of files could not be started: %s", why->text);
    }
}

static int parse_run(const struct parser *parser, const struct buf *question, struct answer_reader *reading,
                     struct err *err)
{
    char memory[32], seconds[16];
    snprintf(memory, sizeof(memory), "%" PRIu64, parser->memory_bytes);
    snprintf(seconds, sizeof(seconds), "%" PRIu32, parser->seconds);
    const char *const argv[] = {parser->program, memory, seconds, NULL};
    const struct sandbox_command command = {.argv = argv,
                                            .input = question->data,
                                            .input_bytes = question->size,
                                            .output_bytes_max = SIZE_MAX,
                                            .deadline_ms = parser->seconds * 1000,
                                            .enters_itself = true,
                                            .take = read_answer,
                                            .take_arg = reading};
    struct err why = {0};
    if (sandbox_run(&command, NULL, &why) < 0) {
        if (reading->sink_failed) {
            *err = why;
            return -1;
        }
        return no_answer(&why, err);
    }
    if (!reading->document || reading->due > 0) {
        err_set(&why, ERR_CORRUPT, "it ended before it had said all");
        return no_answer(&why, err);
    }
    const json_t *error = json_object_get(reading->document, "error");
    return error ? parse_refusal(error, err) : 0;
}

int parse_ask(const struct parser *parser, const struct parse_question *question, parse_sink_fn *sink,
              void *arg, json_t **answer, struct err *err)
{
    struct answer_reader reading = {.sink = sink, .arg = arg};
    struct buf bytes;
    *answer = NULL;
    buf_init(&bytes, PARSE_QUESTION_BYTES_MAX);
    buf_init(&reading.head, frame_limits_default.bytes_max + (1u << 20));
    int result = put_texts(question, &bytes, err) < 0 || frame_put(question->document, &bytes, err) < 0
                     ? -1
                     : parse_run(parser, &bytes, &reading, err);
    if (result == 0)
        *answer = json_incref(json_object_get(reading.document, "answer"));
    json_decref(reading.document);
    buf_fini(&reading.head);
    buf_fini(&bytes);
    return result;
}
