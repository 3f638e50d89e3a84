/* Sends a document to a sandboxed program and reads its answer. */
#include "common/child_json.h"

#include <stdlib.h>
#include <string.h>

#include "common/buf.h"

static void words_free(char **words)
{
    for (size_t i = 0; words && words[i]; i++)
        free(words[i]);
    free(words);
}

/* Reads a list of texts into a new NULL-terminated array. */
static int words_read(struct json_reader *reader, const char *key, enum jr_need need, bool paths,
                      char ***words)
{
    const json_t *list = NULL;
    if (jr_array(reader, key, need, need == JR_REQUIRED ? 1 : 0, CHILD_WORDS_MAX, &list) < 0)
        return -1;
    *words = calloc(json_array_size(list) + 1, sizeof(**words));
    for (size_t i = 0; *words && i < json_array_size(list); i++) {
        const char *word = json_string_value(json_array_get(list, i));
        if (!word || word[0] == '\0' || strlen(word) > 4000)
            return jr_fail(reader, key, "entry %zu is not a text of 1 to 4000 bytes", i);
        if (paths && word[0] != '/')
            return jr_fail(reader, key, "\"%.100s\" is not an absolute path", word);
        (*words)[i] = strdup(word);
        if (!(*words)[i])
            return jr_fail(reader, key, "no memory");
    }
    return *words ? 0 : jr_fail(reader, key, "no memory");
}

int child_program_read(struct json_reader *reader, struct child_program *program)
{
    *program = (struct child_program){.seconds = 10, .memory_mb = 1024};
    if (words_read(reader, "command", JR_REQUIRED, false, &program->command) < 0 ||
        words_read(reader, "read", JR_OPTIONAL, true, &program->read) < 0) {
        return -1;
    }
    jr_seconds(reader, "seconds", JR_OPTIONAL, 0.01, CHILD_SECONDS_MAX, &program->seconds);
    jr_u32(reader, "memory_mb", JR_OPTIONAL, 16, 1u << 20, &program->memory_mb);
    const char *name = program->command[0];
    if (!reader->failed && strchr(name, '/') && name[0] != '/')
        jr_fail(reader, "command", "\"%.100s\" is neither an absolute path nor a name", name);
    return reader->failed ? -1 : 0;
}

int child_program_of(const char *path, struct child_program *program, struct err *err)
{
    *program = (struct child_program){.seconds = 10, .memory_mb = 1024};
    program->command = calloc(2, sizeof(*program->command));
    program->read = calloc(1, sizeof(*program->read));
    if (!program->command || !program->read || !(program->command[0] = strdup(path)))
        return err_set(err, ERR_NOMEM, "no memory for a command");
    return 0;
}

void child_program_fini(struct child_program *program)
{
    words_free(program->command);
    words_free(program->read);
    *program = (struct child_program){0};
}

int child_json(const struct child_program *program, const json_t *question, int cancel_fd, json_t **answer,
               struct err *err)
{
    struct buf asked = {.limit = CHILD_QUESTION_BYTES_MAX}, told = {.limit = CHILD_ANSWER_BYTES_MAX + 1};
    int result = json_print(question, false, &asked, err);
    *answer = NULL;
    if (result < 0 && err->code == ERR_TOO_BIG)
        err_set(err, ERR_TOO_BIG, "would have to read more than %d bytes", CHILD_QUESTION_BYTES_MAX);
    if (result == 0) {
        const struct sandbox_command command = {.argv = (const char *const *)program->command,
                                                .readable = (const char *const *)program->read,
                                                .input = asked.data,
                                                .input_bytes = asked.size,
                                                .output_bytes_max = CHILD_ANSWER_BYTES_MAX,
                                                .deadline_ms = (uint32_t)(program->seconds * 1000 + 0.5),
                                                .memory_bytes = (uint64_t)program->memory_mb << 20,
                                                .cancel_fd = cancel_fd};
        result = sandbox_run(&command, &told, err);
    }
    if (result == 0) {
        *answer = json_parse_limited(buf_str(&told), told.size, JSON_DEPTH_MAX, err);
        result = *answer ? 0 : err_wrap(err, "its answer");
    }
    buf_fini(&asked);
    buf_fini(&told);
    return result;
}
