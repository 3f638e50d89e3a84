/* Reading JSON: a parser with limits, and a reader that knows its path.
 *
 * All documents are jansson's json_t. Documents from outside are read through json_reader, which checks
 * types, ranges and unknown keys; each refusal names its path ("train.batch_rows: …").
 *
 *     struct json_reader r;
 *     int64_t rows = 16;                                   the default
 *     jr_init(&r, object, "train", err);
 *     jr_i64(&r, "batch_rows", JR_OPTIONAL, 1, 65536, &rows);
 *     …
 *     if (jr_finish(&r) < 0) return -1;                    the first error of all calls, or an unknown key
 *
 * After the first error the other calls do nothing, so one check at the end is enough. With jr_collect they
 * go on reading, and the list has every error; what they return is as after the first one. Strings and values
 * that are returned are borrowed from the document. Thread: the document's owner.
 */
#ifndef MOTLEY_COMMON_JSON_H
#define MOTLEY_COMMON_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

enum { JSON_DEPTH_MAX = 64, JR_KEYS_MAX = 96, JR_ERRORS_MAX = 32 };

/* Parses one document of 'size' bytes (any JSON value), nested at most 'depth_max' levels. Duplicate keys,
 * NaN, infinity, invalid UTF-8, U+0000 and anything behind the document are refused with line and column
 * (ERR_INVALID), and so are numbers that neither 64 bits nor a double can hold (ERR_TOO_BIG). Returns new, or
 * NULL. */
json_t *json_parse_limited(const char *text, size_t size, unsigned depth_max, struct err *err);

/* Parses as json_parse_limited does, but of duplicate keys the last one counts, as in Python's json. */
json_t *json_parse_last(const char *text, size_t size, unsigned depth_max, struct err *err);

/* Returns the text under `key` of an object, borrowed; "" when there is none. */
const char *json_text_of(const json_t *object, const char *key);

/* Appends 'value' as compact JSON. 'sorted' sorts keys, which digests need; otherwise keys keep their
 * insertion order. */
int json_print(const json_t *value, bool sorted, struct buf *out, struct err *err);

/* JR_GIVEN: an absent key has its default, and null is refused, because null does not mean that default. */
enum jr_need { JR_OPTIONAL, JR_REQUIRED, JR_GIVEN };

struct json_reader {
    const json_t *object; /* borrowed */
    struct err *err;      /* borrowed */
    struct json_reader
        *parent; /* of a sub-reader: the reader that fails when this one fails; must outlive it */
    json_t *all; /* borrowed list of every error, or NULL: reading ends with the first */
    bool failed;
    unsigned key_count;
    const char *keys[JR_KEYS_MAX]; /* keys that were read: string literals of the caller */
    char path[160];
};

/* Starts reading 'object' (it is an error if this is not an object). Users know it as 'path' ("" for the
 * root). */
void jr_init(struct json_reader *reader, const json_t *object, const char *path, struct err *err);

/* Adds every error of this reader and of its sub-readers to `all`, up to JR_ERRORS_MAX, as {"pointer": the
 * place as a JSON pointer, "detail"}. Called right behind jr_init; `all` is borrowed. */
void jr_collect(struct json_reader *reader, json_t *all);

/* Each returns 1 and sets *out when the key is there; 0 and leaves *out (the default) when the key is absent
 * (or null and JR_OPTIONAL); -1 after an error. 'key' must live as long as the reader (a literal). min and
 * max are inclusive. */
int jr_str(struct json_reader *reader, const char *key, enum jr_need need, size_t bytes_min, size_t bytes_max,
           const char **out);
int jr_i64(struct json_reader *reader, const char *key, enum jr_need need, int64_t min, int64_t max,
           int64_t *out);
int jr_u32(struct json_reader *reader, const char *key, enum jr_need need, uint32_t min, uint32_t max,
           uint32_t *out);
int jr_f64(struct json_reader *reader, const char *key, enum jr_need need, double min, double max,
           double *out);
int jr_bool(struct json_reader *reader, const char *key, enum jr_need need, bool *out);
/* 'names' is NULL-terminated; *out becomes the index of the given name. */
int jr_choice(struct json_reader *reader, const char *key, enum jr_need need, const char *const *names,
              int *out);
/* Reads a number of bytes, or a text such as "450MiB". */
int jr_bytes(struct json_reader *reader, const char *key, enum jr_need need, uint64_t min, uint64_t max,
             uint64_t *out);
/* Reads a number of seconds, or a text such as "1ms", "2h". */
int jr_seconds(struct json_reader *reader, const char *key, enum jr_need need, double min, double max,
               double *out);
/* Reads bytes per second as a number, or a text such as "1Gbit/s", "100MB/s". */
int jr_rate(struct json_reader *reader, const char *key, enum jr_need need, double min, double max,
            double *out);
int jr_array(struct json_reader *reader, const char *key, enum jr_need need, size_t count_min,
             size_t count_max, const json_t **out);
int jr_object(struct json_reader *reader, const char *key, enum jr_need need, const json_t **out);
int jr_any(struct json_reader *reader, const char *key, enum jr_need need, const json_t **out);

/* Makes a reader of the object under 'key' (path "train.lora") that shares err. Its owner calls jr_finish on
 * it; its failure is also one of 'reader'. When the key is absent and optional, the sub-reader reads an empty
 * object (returns 0), so that the same code sets the defaults. */
int jr_sub(struct json_reader *reader, const char *key, enum jr_need need, struct json_reader *sub);

/* Makes a reader of element 'index' of 'array', which was read from 'key' (path "agents[2]"). */
int jr_item(struct json_reader *reader, const char *key, const json_t *array, size_t index,
            struct json_reader *sub);

/* Reports that the value of 'key' (NULL: the object itself) is wrong: "path.key: …". Always returns -1. */
int jr_fail(struct json_reader *reader, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Returns 0 if all calls succeeded and every key of the object was read, else -1. The error for an unknown
 * key lists the known ones. */
int jr_finish(struct json_reader *reader);

/* Finishes as jr_finish does, but allows unknown keys: for documents of peers that may be newer. */
int jr_finish_loose(struct json_reader *reader);

#endif
