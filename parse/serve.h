/* The parser's side of parse.h: reads one question from descriptor 0 and answers on descriptor 1. */
#ifndef MOTLEY_PARSE_SERVE_H
#define MOTLEY_PARSE_SERVE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "model/rows/rows.h"
#include "model/files/source.h"

/* Reads the question from 'in', maps its files, enters the sandbox with 'memory_bytes' in addition to what is
 * mapped then and 'seconds' of processor time, and answers on 'out'. An error in the files is an answer too
 * and returns 0; -1 when there was no question, no sandbox, or no reader for the answer. The process can do
 * nothing else afterwards. */
int parse_serve(int in, int out, uint64_t memory_bytes, uint32_t seconds, struct err *err);

/* The files of a question, in memory. */
struct parse_files {
    struct model_source *model; /* NULL when the question names no file of a model; the answer takes it */
    const void *upload;         /* NULL: there is none */
    size_t upload_bytes;
    const void *weights; /* NULL: there is none */
    size_t weights_bytes;
};

/* Returns the answer's document (new), or NULL with the error in the files. *rows becomes new when the answer
 * has rows, else NULL. Pure; needs no sandbox. */
json_t *parse_answer(const json_t *question, struct parse_files *files, struct rows **rows, struct err *err);

#endif
