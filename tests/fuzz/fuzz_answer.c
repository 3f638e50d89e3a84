/* Feeds the reader of the parser process's output. The file that was parsed may have taken the process over,
 * so the output can be anything. In pieces of any size it ends in an answer or an error, and no more bytes
 * reach the caller than were announced. */
#include "fuzz/fuzz.h"

#include "common/sandbox.h"

#include <stdbool.h>

static const uint8_t *input;
static size_t input_bytes;

/* The input is the output of the parser process; its first byte gives the size of pieces. */
static int input_run(const struct sandbox_command *command, struct buf *output, struct err *err)
{
    (void)output;
    size_t piece = 1 + (input_bytes ? input[0] : 0);
    for (size_t at = 1; at < input_bytes; at += piece) {
        size_t size = input_bytes - at < piece ? input_bytes - at : piece;
        if (command->take(command->take_arg, input + at, size, err) < 0)
            return -1;
    }
    return 0;
}

#define sandbox_run(command, output, err) input_run(command, output, err)
#include "parse/parse.c"

static int take(void *arg, const json_t *answer, const void *bytes, size_t size, struct err *err)
{
    uint64_t *taken = arg;
    (void)bytes, (void)err;
    if (!json_is_object(answer))
        __builtin_trap();
    *taken += size;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err = {0};
    uint64_t taken = 0;
    json_t *answer, *question = json_object();
    const struct parser parser = {.program = "none", .memory_bytes = 1, .seconds = 1};
    const struct parse_question asked = {.document = question};
    input = data;
    input_bytes = size;
    for (int with = 0; with < 2; with++) {
        int result = parse_ask(&parser, &asked, with ? take : NULL, &taken, &answer, &err);
        if ((result == 0) != (answer != NULL) || (result < 0 && err.code == ERR_NONE) || taken > size)
            __builtin_trap();
        json_decref(answer);
    }
    json_decref(question);
    return 0;
}
