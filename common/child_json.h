/* A question to somebody else's program: a document on its standard input, a document on its standard output,
 * in the sandbox (sandbox.h). And how such a program is named in a configuration:
 *
 *     {command: [python3, /opt/planners/mine.py], seconds: 10, memory_mb: 1024, read: [/opt/planners]}
 */
#ifndef MOTLEY_COMMON_CHILD_JSON_H
#define MOTLEY_COMMON_CHILD_JSON_H

#include <jansson.h>

#include "common/json.h"
#include "common/sandbox.h"

enum {
    CHILD_QUESTION_BYTES_MAX = 256 << 20,
    CHILD_ANSWER_BYTES_MAX = 8 << 20, /* parsed, at worst fifty times as much */
    CHILD_WORDS_MAX = 32,
    CHILD_SECONDS_MAX = 600,
};

struct child_program {
    char **command; /* NULL-ended; owned */
    char *
        *read; /* absolute paths that it may read beside its own files and the system's; NULL-ended; owned */
    double seconds;     /* 10 */
    uint32_t memory_mb; /* 1024, of address space */
};

/* Reads `command` (required), `seconds`, `memory_mb` and `read`; keys beside them are the caller's, who also
 * finishes the reader. −1 with the reader failed; child_program_fini releases either way. */
int child_program_read(struct json_reader *reader, struct child_program *program);
/* The same for one command line of one word. ERR_NOMEM. */
int child_program_of(const char *path, struct child_program *program, struct err *err);
void child_program_fini(struct child_program *program);

/* Blocking. *answer becomes new. Errors as sandbox_run's, and ERR_INVALID with line and column when the
 * answer is no JSON document. cancel_fd as in struct sandbox_command. */
int child_json(const struct child_program *program, const json_t *question, int cancel_fd, json_t **answer,
               struct err *err);

#endif
