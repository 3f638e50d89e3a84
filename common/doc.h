/* Described documents: a struct's fields stand once, as rows of a table, and everything else follows from the
 * table: reading with defaults and limits, writing, releasing, and the JSON schema.
 *
 *     static const struct doc_field part_fields[] = {
 *         DOC_NUM("batch_rows", train, batch_rows, JR_GIVEN, 16, 1, 65536, "rows of a step"),
 *         DOC_CHOICE("compute", train, compute, JR_GIVEN, 0, compute_names, "dtype of products"),
 *     };
 *     const struct doc train_doc = DOC(train, part_fields, .check = train_check);
 *
 * A row is: the key, the struct's tag, the member, whether the key is needed, the default, the limits, and a
 * help text; further designators may follow the help text (.flags, .rule). Values are read by common/json.h,
 * whose errors name the path. A rule over one field runs as soon as the field is read; a rule over several is
 * the struct's `check`. Values of another form (a number or "auto", a list of names) have a doc_form.
 *
 * Members and their kinds: integers of any width, enums, bool, double; `char *` is an owned text, `const char
 * *` one borrowed from the document; `json_t *` is an owned copy, `const json_t *` is borrowed. Thread: the
 * document's owner; the tables are constant.
 */
#ifndef MOTLEY_COMMON_DOC_H
#define MOTLEY_COMMON_DOC_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "common/json.h"

enum doc_kind {
    DOC_INT,   /* a signed integer of `width` bytes */
    DOC_UINT,  /* an unsigned integer of `width` bytes */
    DOC_REAL,  /* double */
    DOC_BOOL,  /* bool */
    DOC_WORD,  /* an index of `names`, of `width` bytes */
    DOC_OWNED, /* char *, owned */
    DOC_VIEW,  /* const char *, borrowed */
    DOC_CHARS, /* char[width] */
    DOC_COPY,  /* json_t *, an owned copy */
    DOC_LOOK,  /* const json_t *, borrowed */
    DOC_PART,  /* a struct within the struct, described by `of`; without a key its fields stand in the same
                  object */
    DOC_LIST,  /* T *, owned, of `of`'s structs; their number is the uint32_t at `count_at` */
    DOC_FORM   /* read and written by `form` */
};

enum doc_flag {
    DOC_SPARSE = 1,     /* the default, or an empty list, is left out when it is written */
    DOC_NULL = 2,       /* the default, or no value, is written as null */
    DOC_AUTO = 4,       /* a number, or "auto" for 0 */
    DOC_BYTES = 8,      /* a number of bytes, or a text such as "450MiB" */
    DOC_SECONDS = 16,   /* a number of seconds, or a text such as "2h" */
    DOC_RATE = 32,      /* bytes per second, or a text such as "1Gbit/s" */
    DOC_PLAIN = 64,     /* a text without control characters */
    DOC_OBJECT = 128,   /* of DOC_COPY and DOC_LOOK: an object */
    DOC_ARRAY = 256,    /* the same: a list of `min` to `max` values */
    DOC_NULLABLE = 512, /* the schema says that null may be given, for no value */
    DOC_DEPENDS = 1024, /* the default depends on other fields: the schema names none */
    DOC_LIVE = 2048     /* doc_adopt() takes another value over while the program runs */
};

struct doc;
struct doc_field;

/* A form that is no kind of its own. `at` is the member. `read` returns as jr_any does; it may read several
 * keys, and `write` may set several. `start` and `fini` may be NULL; without `write` the value is never
 * written. */
struct doc_form {
    int (*start)(void *at, struct err *err);
    int (*read)(struct json_reader *reader, const struct doc_field *field, void *at);
    int (*write)(const struct doc_field *field, const void *at, json_t *object);
    void (*fini)(void *at);
};

struct doc_field {
    const char *key;
    uint8_t kind, need; /* enum doc_kind, enum jr_need */
    uint16_t flags;     /* enum doc_flag */
    uint16_t at, width; /* the member's place and size */
    uint16_t
        count_at;    /* DOC_LIST: its count; DOC_PART: a bool that says whether the part was given; 0: none */
    double start;    /* the default of numbers, words and bools */
    double min, max; /* of numbers; bytes of texts; elements of lists */
    const char *text;         /* the default of an owned text */
    const char *const *names; /* of words, NULL-terminated; a NULL in front stands for null */
    const struct doc *of;
    const struct doc_form *form;
    /* Runs when the key has a value; `all` is the struct. Reports with jr_fail. */
    void (*rule)(struct json_reader *reader, const struct doc_field *field, void *all);
    const char *help;
    const char *schema; /* JSON that goes before what the row gives; without a key: several properties */
};

struct doc {
    const struct doc_field *fields;
    uint16_t count;
    bool loose; /* unknown keys are passed over: a peer may be newer */
    size_t size;
    /* Rules over several fields, when all are read, also where the object is absent and has its defaults,
     * unless a bool remembers that; reports with jr_fail. */
    void (*check)(struct json_reader *reader, void *all);
    const char *help;
};

#define DOC_COUNT(table) (sizeof(table) / sizeof((table)[0]))
#define DOC(tag, table, ...)                                                                                 \
    {.fields = (table), .count = DOC_COUNT(table), .size = sizeof(struct tag), __VA_ARGS__}

#define DOC_MEMBER(tag, member) ((struct tag *)0)->member
#define DOC_PLACE(tag, member) .at = offsetof(struct tag, member), .width = sizeof(DOC_MEMBER(tag, member))
#define DOC_NUMBER(value)                                                                                    \
    _Generic((value),                                                                                        \
        double: DOC_REAL,                                                                                    \
        int8_t: DOC_INT,                                                                                     \
        int16_t: DOC_INT,                                                                                    \
        int32_t: DOC_INT,                                                                                    \
        int64_t: DOC_INT,                                                                                    \
        default: DOC_UINT)

#define DOC_NUM(name, tag, member, needed, initial, least, most, ...)                                        \
    {.key = (name),                                                                                          \
     .kind = DOC_NUMBER(DOC_MEMBER(tag, member)),                                                            \
     DOC_PLACE(tag, member),                                                                                 \
     .need = (needed),                                                                                       \
     .start = (double)(initial),                                                                             \
     .min = (double)(least),                                                                                 \
     .max = (double)(most),                                                                                  \
     .help = __VA_ARGS__}
#define DOC_FLAG(name, tag, member, needed, initial, ...)                                                    \
    {.key = (name),                                                                                          \
     .kind = DOC_BOOL,                                                                                       \
     DOC_PLACE(tag, member),                                                                                 \
     .need = (needed),                                                                                       \
     .start = (initial),                                                                                     \
     .help = __VA_ARGS__}
#define DOC_CHOICE(name, tag, member, needed, initial, words, ...)                                           \
    {.key = (name),                                                                                          \
     .kind = DOC_WORD,                                                                                       \
     DOC_PLACE(tag, member),                                                                                 \
     .need = (needed),                                                                                       \
     .start = (initial),                                                                                     \
     .names = (words),                                                                                       \
     .help = __VA_ARGS__}
/* A text of `least` to `most` bytes. */
#define DOC_TEXT(name, tag, member, needed, least, most, ...)                                                \
    {.key = (name),                                                                                          \
     .kind = _Generic(DOC_MEMBER(tag, member), char *: DOC_OWNED, default: DOC_VIEW),                        \
     DOC_PLACE(tag, member),                                                                                 \
     .need = (needed),                                                                                       \
     .min = (double)(least),                                                                                 \
     .max = (double)(most),                                                                                  \
     .help = __VA_ARGS__}
/* The same in an array of characters, which it fills up to the last but one. */
#define DOC_CHARS(name, tag, member, needed, least, ...)                                                     \
    {.key = (name),                                                                                          \
     .kind = DOC_CHARS,                                                                                      \
     DOC_PLACE(tag, member),                                                                                 \
     .need = (needed),                                                                                       \
     .min = (double)(least),                                                                                 \
     .max = sizeof(DOC_MEMBER(tag, member)) - 1,                                                             \
     .help = __VA_ARGS__}
/* Any value; .flags may demand an object, or a list of .min to .max values. */
#define DOC_JSON(name, tag, member, needed, ...)                                                             \
    {.key = (name),                                                                                          \
     .kind = _Generic(DOC_MEMBER(tag, member), json_t *: DOC_COPY, default: DOC_LOOK),                       \
     DOC_PLACE(tag, member),                                                                                 \
     .need = (needed),                                                                                       \
     .help = __VA_ARGS__}
#define DOC_STRUCT(name, tag, member, needed, part, ...)                                                     \
    {.key = (name),                                                                                          \
     .kind = DOC_PART,                                                                                       \
     DOC_PLACE(tag, member),                                                                                 \
     .need = (needed),                                                                                       \
     .of = (part),                                                                                           \
     .help = __VA_ARGS__}
/* An object whose fields are members of this struct itself. */
#define DOC_WITHIN(name, needed, part, ...)                                                                  \
    {.key = (name), .kind = DOC_PART, .need = (needed), .of = (part), .help = __VA_ARGS__}
/* A struct within this one whose fields stand in the same object. */
#define DOC_SAME(tag, member, part, ...)                                                                     \
    {.kind = DOC_PART, DOC_PLACE(tag, member), .of = (part), .help = __VA_ARGS__}
#define DOC_STRUCTS(name, tag, member, number, needed, least, most, item, ...)                               \
    {.key = (name),                                                                                          \
     .kind = DOC_LIST,                                                                                       \
     DOC_PLACE(tag, member),                                                                                 \
     .count_at = offsetof(struct tag, number),                                                               \
     .need = (needed),                                                                                       \
     .min = (double)(least),                                                                                 \
     .max = (double)(most),                                                                                  \
     .of = (item),                                                                                           \
     .help = __VA_ARGS__}
#define DOC_OTHER(name, tag, member, shape, ...)                                                             \
    {.key = (name), .kind = DOC_FORM, DOC_PLACE(tag, member), .form = (shape), .help = __VA_ARGS__}
/* A part that remembers in a bool of the struct whether it was given. */
#define DOC_GIVEN_IN(tag, member) .count_at = offsetof(struct tag, member)

/* Fills *out with the defaults, whatever it held. Fails with ERR_NOMEM. */
int doc_start(const struct doc *doc, void *out, struct err *err);

/* Reads the fields of reader's object into *out, which doc_start() has filled, checks them and finishes the
 * reader. After an error the caller still releases *out. */
int doc_take(const struct doc *doc, struct json_reader *reader, void *out);

/* Reads the fields alone: the caller reads other keys of the object, and finishes the reader. */
int doc_fields(const struct doc *doc, struct json_reader *reader, void *out);

/* Reads a document that users know as `path` ("" for the root) into *out; on failure there is nothing to
 * release. ERR_INVALID with the path, ERR_NOMEM. */
int doc_read(const struct doc *doc, const json_t *document, const char *path, void *out, struct err *err);

/* Returns a new object that doc_read() reads as the same values, or NULL with ERR_NOMEM; doc_add() adds its
 * keys to an object. */
json_t *doc_write(const struct doc *doc, const void *from, struct err *err);
int doc_add(const struct doc *doc, const void *from, json_t *object, struct err *err);

/* Two readings of a changed file: moves the fields and parts that are DOC_LIVE from *fresh to *now, by
 * exchanging them: numbers, words, texts and parts within the struct, not lists, and not a part that shares
 * it. ERR_CONFLICT names the first other key whose values differ; then nothing is exchanged. `was` and `is`
 * are the documents that the two were read from. */
int doc_adopt(const struct doc *doc, void *now, const json_t *was, void *fresh, const json_t *is,
              struct err *err);

/* Releases what the struct owns and zeroes it. Safe on a zeroed struct and twice. */
void doc_fini(const struct doc *doc, void *out);

/* Returns the JSON schema (draft 2020-12) of what doc_read() takes, new, or NULL with ERR_NOMEM. */
json_t *doc_schema(const struct doc *doc, struct err *err);

#endif
