/* Users' files, read by a process that can do nothing else: what the asker sees of it.
 *
 * A model's config, headers and tokenizer, a data set's rows, a chat template, an adapter's config: nobody
 * knows what they make a parser do. `motley-parse` is started for one question, maps the files that the
 * question names, enters the sandbox (common/sandbox.h: it opens nothing, writes nothing, reaches nobody, has
 * so much memory and time) and only then looks at a byte of them. It answers with a document and, for rows,
 * bytes through a pipe. Whatever becomes of it, it was one upload's.
 *
 * Answers come from a process that may have been taken over: they are bounded here and for the asker to
 * check.
 *
 * Questions (`do`) and answers:
 *   ready          {}                                              → {}
 *   model          the model's files                               → {config, tokenizer: has it one?}
 *   rows           those, UPLOAD; {format, learn, sequence_tokens, chat?, memory, rows_max}
 *                                             → {stats, rows}, then rows × 8 bytes (struct row_size), then
 * the rows' file (model/rows/rows.h) to the end prompt         the model's files; {prompt, format, learn,
 * sequence_tokens, chat?}   → {ids} adapter_files  UPLOAD, a list of an adapter's two files        → {file
 * name: sha256} adapter        the model's files, UPLOAD, an adapter_config.json, and WEIGHTS
 *                                             → the config, of what fits that model
 *
 * On the wire: the question is a frame's length and NUL-terminated texts, name and path of each file in turn;
 * then a frame (common/frame.h) of the document. The answer is a frame, {"answer", "bytes"} or {"error":
 * {"code", "text"}}, and `bytes` bytes.
 */
#ifndef MOTLEY_PARSE_PARSE_H
#define MOTLEY_PARSE_PARSE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "model/files/source.h"

/* Names of files that are no part of a model. */
#define PARSE_UPLOAD ""
#define PARSE_WEIGHTS "/" /* adapter_model.safetensors, beside its config as PARSE_UPLOAD */

enum { PARSE_QUESTION_BYTES_MAX = 32 << 20, PARSE_PROMPT_BYTES_MAX = 1 << 20 };

/* How it is started. Immutable, shared. */
struct parser {
    const char *program;   /* path of motley-parse */
    uint64_t memory_bytes; /* beside the files it maps */
    uint32_t seconds;      /* until it must have ended */
};

struct parse_question {
    const json_t *document; /* {"do": …}; borrowed */
    const struct model_path *files;
    uint32_t file_count;
};

/* Takes the bytes behind an answer, piece by piece; 'answer' is borrowed. -1 ends it. */
typedef int parse_sink_fn(void *arg, const json_t *answer, const void *bytes, size_t size, struct err *err);

/* Ask, blocking; any thread. *answer becomes new. 'sink' may be NULL where no bytes are due. Errors: what the
 * parser says of the file (ERR_INVALID, ERR_UNSUPPORTED, ERR_CORRUPT, ERR_NOT_FOUND, ERR_TOO_BIG …);
 * ERR_INVALID too when it died, took too long or answered nonsense, which is held against the file; the
 * sink's; ERR_INTERNAL when it could not be started, or not in a sandbox. */
int parse_ask(const struct parser *parser, const struct parse_question *question, parse_sink_fn *sink,
              void *arg, json_t **answer, struct err *err);

#endif
