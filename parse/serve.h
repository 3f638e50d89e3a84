/* The helper's side of parse.h: one question from descriptor 0, its answer to descriptor 1. */
#ifndef MOTLEY_PARSE_SERVE_H
#define MOTLEY_PARSE_SERVE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "model/rows/rows.h"
#include "model/files/source.h"

/* Read the question from 'in', map its files, enter the sandbox with 'memory_bytes' beside what is mapped
 * then and 'seconds' of processor time, answer on 'out'. What is wrong with the files is an answer too, and
 * 0; -1: there was no question, no sandbox, or nobody to hear the answer. The process can do nothing else
 * afterwards. */
int parse_serve(int in, int out, uint64_t memory_bytes, uint32_t seconds, struct err *err);

/* What a question is about, in memory. */
struct parse_files {
    struct model_source *model; /* NULL when it names no file of a model; taken by the answer */
    const void *upload;         /* NULL: there is none */
    size_t upload_bytes;
    const void *weights; /* NULL: there is none */
    size_t weights_bytes;
};

/* Returns the answer's document, new, or NULL with what is wrong in the files. *rows becomes new when rows
 * are the answer, else NULL. Pure; no sandbox needed. */
json_t *parse_answer(const json_t *question, struct parse_files *files, struct rows **rows, struct err *err);

#endif
