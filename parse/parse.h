/* Users' files are parsed by a separate process that can do nothing else. This is the caller's side.
 *
 * A model's config, headers and tokenizer, a data set's rows, a chat template, an adapter's config: a
 * malicious file may take over its parser. `motley-parse` is started for one question, maps the files that
 * the question names, enters the sandbox (common/sandbox.h: it opens nothing, writes nothing, reaches nobody,
 * and has limited memory and time), and only then reads their content. It answers with a document and, for
 * rows, bytes through a pipe. Whatever happens to it affects one upload only.
 *
 * Answers come from a process that may have been taken over: their size is limited here, and the caller must
 * check their content.
 *
 * Questions (`do`), what they need, and their answers:
 *   ready          {}  → {}
 *   model          the model's files  → {config, tokenizer: whether it has one}
 *   rows           the model's files, UPLOAD; {format, learn, sequence_tokens, chat?, day?, memory, rows_max}
 *                  → {stats, rows}, then rows × 8 bytes (struct row_size), then the rows' file
 *                  (model/rows/rows.h) to the end
 *   prompt         the model's files; {prompt, format, learn, sequence_tokens, chat?, day?}  → {ids}
 *   adapter_files  UPLOAD, a list of an adapter's two files  → {file name: sha256}
 *   adapter        the model's files, UPLOAD, an adapter_config.json, and WEIGHTS
 *                  → the config, if it fits that model
 *
 * On the wire the question is a frame's length and NUL-terminated texts (name and path of each file in turn),
 * then a frame (common/frame.h) with the document. The answer is a frame, {"answer", "bytes"} or {"error":
 * {"code", "text"}}, followed by `bytes` bytes.
 */
#ifndef MOTLEY_PARSE_PARSE_H
#define MOTLEY_PARSE_PARSE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "model/files/source.h"

/* Names that a question gives to files that are not a part of the model: the user's uploaded file, and an
 * adapter's adapter_model.safetensors (its adapter_config.json is PARSE_UPLOAD). */
#define PARSE_UPLOAD ""
#define PARSE_WEIGHTS "/"

enum { PARSE_QUESTION_BYTES_MAX = 32 << 20, PARSE_PROMPT_BYTES_MAX = 1 << 20 };

/* How motley-parse is started. Immutable and shared. */
struct parser {
    const char *program;   /* path of motley-parse */
    uint64_t memory_bytes; /* memory in addition to the files that it maps */
    uint32_t seconds;      /* time in which it must have ended */
};

struct parse_question {
    const json_t *document; /* {"do": …}; borrowed */
    const struct model_path *files;
    uint32_t file_count;
};

/* Takes the bytes behind an answer piece by piece; 'answer' is borrowed. -1 ends the question. */
typedef int parse_sink_fn(void *arg, const json_t *answer, const void *bytes, size_t size, struct err *err);

/* Asks a question; blocks; any thread. *answer becomes new. 'sink' may be NULL if the answer has no bytes.
 * Errors: what the parser reports about the file (ERR_INVALID, ERR_UNSUPPORTED, ERR_CORRUPT, ERR_NOT_FOUND,
 * ERR_TOO_BIG …); ERR_INVALID also when the parser crashed, took too long or gave an invalid answer, because
 * the file is the likely cause; the sink's error; ERR_INTERNAL when it could not be started, or not in a
 * sandbox. */
int parse_ask(const struct parser *parser, const struct parse_question *question, parse_sink_fn *sink,
              void *arg, json_t **answer, struct err *err);

#endif
