/* Asks a program that we do not trust: one JSON document goes to its standard input and one is read from its
 * standard output, in the sandbox (sandbox.h). A configuration describes such a program as:
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
    CHILD_ANSWER_BYTES_MAX = 8 << 20, /* largest answer; parsed it takes at most fifty times as much memory */
    CHILD_WORDS_MAX = 32,
    CHILD_SECONDS_MAX = 600,
};

struct child_program {
    char **command;     /* the program's path or name, then its arguments; NULL-terminated; owned */
    char **read;        /* absolute paths that it may read in addition to its own and the system's files;
                           NULL-terminated; owned */
    double seconds;     /* time limit of one run; default 10 */
    uint32_t memory_mb; /* limit of the program's address space in MiB; default 1024 */
};

/* Reads `command` (required), `seconds`, `memory_mb` and `read`. The caller reads other keys and finishes the
 * reader. −1 with the reader failed. Call child_program_fini in either case. */
int child_program_read(struct json_reader *reader, struct child_program *program);
/* Describes a program by its path alone, with the default limits. ERR_NOMEM. */
int child_program_of(const char *path, struct child_program *program, struct err *err);
void child_program_fini(struct child_program *program);

/* Runs the program; blocks. *answer becomes new. Errors are those of sandbox_run, and ERR_INVALID with line
 * and column when the answer is not a JSON document. cancel_fd is as in struct sandbox_command. */
int child_json(const struct child_program *program, const json_t *question, int cancel_fd, json_t **answer,
               struct err *err);

#endif
