/* This file reads a SentencePiece model, `tokenizer.model`: a protocol buffer of pieces with scores, and of
 * the settings of trainer and normaliser (sentencepiece_model.proto of the library, whose field numbers these
 * are). Every length is compared with what is left of its message before a byte of it is read. Unknown fields
 * are passed over, as the format asks, but a setting that changes the ids and is not implemented here is
 * refused by its name. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "model/files/hub_json.h"
#include "model/text/tokenizer_build.h"
#include "model/text/tokenizer_files.h"

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5, VARINT_BYTES_MAX = 10 };
enum { MODEL_PIECE = 1, MODEL_TRAINER = 2, MODEL_NORMALIZER = 3, MODEL_DENORMALIZER = 5 };
enum { PIECE_TEXT = 1, PIECE_SCORE = 2, PIECE_TYPE = 3 };
enum {
    TRAINER_TYPE = 3,
    TRAINER_SUFFIX = 24,
    TRAINER_FALLBACK = 35,
    TRAINER_UNK = 40,
    TRAINER_BOS,
    TRAINER_EOS
};
enum {
    NORMALIZER_NAME = 1,
    NORMALIZER_MAP = 2,
    NORMALIZER_PREFIX = 3,
    NORMALIZER_TRIM = 4,
    NORMALIZER_ESCAPE = 5
};
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4, TYPE_UNUSED = 5, TYPE_BYTE = 6 };
enum { KIND_UNIGRAM = 1, KIND_BPE = 2 };

/* A message of a protocol buffer, or the part of it that is not read yet. */
struct message {
    const uint8_t *at, *end;
};

struct field {
    uint32_t number;
    uint64_t value;       /* value of a varint or a number of fixed size */
    struct message bytes; /* contents of a field of bytes, a text or a message */
    unsigned wire;
};

struct settings {
    uint64_t kind; /* the model's type */
    bool fallback, suffix, prefix, trim, escape, mapped;
    int32_t unknown, bos, eos;
    char name[64]; /* the normaliser's name */
};

static int broken(const char *what, struct err *err)
{
    return err_set(err, ERR_CORRUPT, "tokenizer.model: %s", what);
}

static int varint_read(struct message *m, uint64_t *value, struct err *err)
{
    *value = 0;
    for (unsigned i = 0; i < VARINT_BYTES_MAX; i++) {
        if (m->at == m->end)
            return broken("it ends within a number", err);
        const uint8_t byte = *m->at++;
        *value |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80)
            return 0;
    }
    return broken("a number of more than 10 bytes", err);
}

static int fixed_read(struct message *m, size_t size, uint64_t *value, struct err *err)
{
    if ((size_t)(m->end - m->at) < size)
        return broken("it ends within a number", err);
    *value = 0;
    for (size_t i = 0; i < size; i++)
        *value |= (uint64_t)m->at[i] << (8 * i);
    m->at += size;
    return 0;
}

/* Read the next field. Returns 1, 0 at the end of the message, or -1. */
static int field_next(struct message *m, struct field *field, struct err *err)
{
    uint64_t key = 0, size = 0;
    *field = (struct field){0};
    if (m->at == m->end)
        return 0;
    if (varint_read(m, &key, err) < 0)
        return -1;
    field->wire = (unsigned)(key & 7);
    field->number = key >> 3 > UINT32_MAX ? 0 : (uint32_t)(key >> 3);
    int status = -1;
    if (field->number == 0)
        return broken("a field without a number", err);
    switch (field->wire) {
    case WIRE_VARINT:
        status = varint_read(m, &field->value, err);
        break;
    case WIRE_64:
        status = fixed_read(m, 8, &field->value, err);
        break;
    case WIRE_32:
        status = fixed_read(m, 4, &field->value, err);
        break;
    case WIRE_BYTES:
        if (varint_read(m, &size, err) < 0)
            return -1;
        if (size > (uint64_t)(m->end - m->at))
            return broken("a field that is longer than what is left", err);
        field->bytes = (struct message){.at = m->at, .end = m->at + size};
        m->at += size;
        status = 0;
        break;
    default:
        return broken("it is no SentencePiece model (a field of an unknown kind)", err);
    }
    return status < 0 ? -1 : 1;
}

static bool field_is(const struct field *field, uint32_t number, unsigned wire)
{
    return field->number == number && field->wire == wire;
}

/* --- settings --- */

static int trainer_read(struct message m, struct settings *s, struct err *err)
{
    struct field f;
    int got;
    while ((got = field_next(&m, &f, err)) > 0) {
        if (field_is(&f, TRAINER_TYPE, WIRE_VARINT)) {
            s->kind = f.value;
        } else if (field_is(&f, TRAINER_SUFFIX, WIRE_VARINT)) {
            s->suffix = f.value != 0;
        } else if (field_is(&f, TRAINER_FALLBACK, WIRE_VARINT)) {
            s->fallback = f.value != 0;
        } else if (f.wire == WIRE_VARINT && f.number >= TRAINER_UNK && f.number <= TRAINER_EOS) {
            const int32_t id = f.value < TOKENIZER_VOCAB_MAX ? (int32_t)f.value : -1;
            *(f.number == TRAINER_UNK ? &s->unknown : f.number == TRAINER_BOS ? &s->bos : &s->eos) = id;
        }
    }
    return got;
}

static int tokenizer_pieces_normalizer_read(struct message m, bool of_decoding, struct settings *s,
                                            struct err *err)
{
    struct field f;
    int got;
    while ((got = field_next(&m, &f, err)) > 0) {
        const size_t size = (size_t)(f.bytes.end - f.bytes.at);
        if (field_is(&f, NORMALIZER_MAP, WIRE_BYTES)) {
            s->mapped = s->mapped || size > 0;
        } else if (of_decoding) {
            continue;
        } else if (field_is(&f, NORMALIZER_NAME, WIRE_BYTES) && size < sizeof(s->name)) {
            memcpy(s->name, f.bytes.at, size);
            s->name[size] = '\0';
        } else if (field_is(&f, NORMALIZER_PREFIX, WIRE_VARINT)) {
            s->prefix = f.value != 0;
        } else if (field_is(&f, NORMALIZER_TRIM, WIRE_VARINT)) {
            s->trim = f.value != 0;
        } else if (field_is(&f, NORMALIZER_ESCAPE, WIRE_VARINT)) {
            s->escape = f.value != 0;
        }
    }
    return got;
}

static int tokenizer_pieces_settings_read(struct message m, struct settings *s, struct err *err)
{
    struct field f;
    int got;
    /* These are the defaults of the sentencepiece library. */
    *s = (struct settings){
        .kind = KIND_UNIGRAM, .prefix = true, .trim = true, .escape = true, .bos = 1, .eos = 2};
    while ((got = field_next(&m, &f, err)) > 0) {
        int status = 0;
        if (field_is(&f, MODEL_TRAINER, WIRE_BYTES))
            status = trainer_read(f.bytes, s, err);
        else if (field_is(&f, MODEL_NORMALIZER, WIRE_BYTES) || field_is(&f, MODEL_DENORMALIZER, WIRE_BYTES))
            status = tokenizer_pieces_normalizer_read(f.bytes, f.number == MODEL_DENORMALIZER, s, err);
        if (status < 0)
            return -1;
    }
    return got;
}

static int settings_check(const struct settings *s, struct err *err)
{
    static const char *const kinds[] = {"of no kind", "unigram", "BPE", "word", "char"};
    if (s->kind != KIND_BPE) {
        return err_set(err, ERR_UNSUPPORTED, "tokenizer.model: a model of kind %s; only BPE is read",
                       s->kind < sizeof(kinds) / sizeof(kinds[0]) ? kinds[s->kind] : "unknown");
    }
    const char *what = s->mapped    ? "a map of characters (normalizer_spec.precompiled_charsmap)"
                       : s->trim    ? "normalizer_spec.remove_extra_whitespaces"
                       : !s->escape ? "no normalizer_spec.escape_whitespaces"
                       : s->suffix  ? "trainer_spec.treat_whitespace_as_suffix"
                                    : NULL;
    return !what ? 0
                 : err_set(err, ERR_UNSUPPORTED,
                           "tokenizer.model: a normaliser \"%s\" with %s is not done here", s->name, what);
}

/* --- pieces --- */

struct pieces {
    uint32_t count, capacity;
    float *score;
    uint8_t *type;
};

static int pieces_reserve(struct pieces *p, struct err *err)
{
    if (p->count < p->capacity)
        return 0;
    if (p->count == TOKENIZER_VOCAB_MAX)
        return err_set(err, ERR_TOO_BIG, "tokenizer.model: more than %d pieces", TOKENIZER_VOCAB_MAX);
    const uint32_t capacity = p->capacity == 0 ? 4096 : 2 * p->capacity;
    float *score = realloc(p->score, capacity * sizeof(*score));
    p->score = score ? score : p->score;
    uint8_t *type = realloc(p->type, capacity);
    p->type = type ? type : p->type;
    if (!score || !type)
        return err_set(err, ERR_NOMEM, "out of memory for %u pieces", capacity);
    p->capacity = capacity;
    return 0;
}

static int tokenizer_pieces_piece_read(struct tokenizer *t, struct message m, struct pieces *p,
                                       struct err *err)
{
    struct field f;
    struct message text = {0};
    uint64_t type = TYPE_NORMAL;
    float score = 0;
    int got;
    if (pieces_reserve(p, err) < 0)
        return -1;
    while ((got = field_next(&m, &f, err)) > 0) {
        if (field_is(&f, PIECE_TEXT, WIRE_BYTES)) {
            text = f.bytes;
        } else if (field_is(&f, PIECE_SCORE, WIRE_32)) {
            const uint32_t bits = (uint32_t)f.value;
            memcpy(&score, &bits, sizeof(score));
        } else if (field_is(&f, PIECE_TYPE, WIRE_VARINT)) {
            type = f.value;
        }
    }
    const size_t size = (size_t)(text.end - text.at);
    if (got < 0)
        return -1;
    if (type < TYPE_NORMAL || type > TYPE_BYTE || type == TYPE_UNUSED || size == 0 || score != score) {
        return err_set(err, ERR_UNSUPPORTED,
                       "tokenizer.model: piece %u is of type %" PRIu64 ", has %zu bytes and the score %g",
                       p->count, type, size, (double)score);
    }
    const char *bytes = (const char *)text.at;
    const bool whole = type == TYPE_CONTROL || type == TYPE_USER;
    if ((whole ? builder_token(t, p->count, bytes, size, false, err)
               : builder_token_vocab(t, p->count, bytes, size, err)) < 0) {
        return err_wrap(err, "tokenizer.model");
    }
    p->score[p->count] = score;
    p->type[p->count++] = (uint8_t)type;
    return 0;
}

static int tokenizer_pieces_read(struct tokenizer *t, struct message m, struct pieces *p, struct err *err)
{
    struct field f;
    int got;
    while ((got = field_next(&m, &f, err)) > 0)
        if (field_is(&f, MODEL_PIECE, WIRE_BYTES) && tokenizer_pieces_piece_read(t, f.bytes, p, err) < 0)
            return -1;
    return got < 0 ? -1 : p->count == 0 ? broken("it has no pieces", err) : 0;
}

/* Mark the pieces that are cut out of texts. Control pieces in a text are tokens, as in transformers.
 * User-defined pieces are looked for in the normalised text, or in the raw text where normalisation puts a
 * space before it. */
static int added_mark(struct tokenizer *t, const struct pieces *p, bool prefix, struct err *err)
{
    for (uint32_t i = 0; i < p->count; i++) {
        const struct added_token added = {
            .id = i, .special = p->type[i] == TYPE_CONTROL, .normalized = p->type[i] == TYPE_USER && !prefix};
        const bool whole =
            p->type[i] == TYPE_CONTROL || p->type[i] == TYPE_USER || p->type[i] == TYPE_UNKNOWN;
        if (whole && builder_added(t, &added, err) < 0)
            return -1;
    }
    return 0;
}

/* --- the files beside it --- */

/* Apply what tokenizer_config.json says besides bos, eos and chat template, and refuse tokens that it adds to
 * the pieces. */
static int around_read(struct tokenizer *t, const json_t *config, struct err *err)
{
    const char *id;
    json_t *value;
    json_object_foreach (json_object_get(config, "added_tokens_decoder"), id, value) {
        const char *text = json_string_value(json_object_get(value, "content"));
        const int32_t found = text ? tokenizer_find(t, text, strlen(text)) : -1;
        if (found < 0 || (unsigned long)found != strtoul(id, NULL, 10)) {
            return err_set(
                err, ERR_UNSUPPORTED,
                "tokenizer_config.json adds the token \"%.60s\" to tokenizer.model, which is read alone: "
                "make a tokenizer.json with transformers, "
                "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
                text ? text : "");
        }
    }
    if (!json_is_false(json_object_get(config, "add_bos_token")) && t->bos >= 0)
        t->before[t->before_count++] = t->bos;
    if (json_is_true(json_object_get(config, "add_eos_token")) && t->eos >= 0)
        t->after[t->after_count++] = t->eos;
    return 0;
}

static int config_apply(struct tokenizer *t, const struct tokenizer_files *files, const struct settings *s,
                        struct err *err)
{
    static const struct tokenizer_files none = {0};
    struct tokenizer_names names = {0};
    files = files ? files : &none;
    int status = tokenizer_files_read(files, NULL, &names, err);
    json_t *config = status < 0 ? NULL
                     : files->config.size > 0
                         ? hub_json_parse(files->config.text, files->config.size, 32, err)
                         : json_object();
    status = !config ? -1 : status;
    if (status == 0)
        status = builder_names(t, &names, err);
    tokenizer_names_fini(&names);
    t->bos = t->bos < 0 && s->bos >= 0 && (uint32_t)s->bos < t->vocab ? s->bos : t->bos;
    t->eos = t->eos < 0 && s->eos >= 0 && (uint32_t)s->eos < t->vocab ? s->eos : t->eos;
    t->unknown = (uint32_t)s->unknown < t->vocab ? s->unknown : -1;
    if (status == 0 && (builder_special(t, "bos_token", t->bos, err) < 0 ||
                        builder_special(t, "eos_token", t->eos, err) < 0 ||
                        builder_special(t, "unk_token", t->unknown, err) < 0)) {
        status = -1;
    }
    if (status == 0)
        status = around_read(t, config, err);
    json_decref(config);
    return status;
}

static int tokenizer_pieces_model_read(struct tokenizer *t, struct message m,
                                       const struct tokenizer_files *files, struct err *err)
{
    struct settings s;
    struct pieces p = {0};
    int status = tokenizer_pieces_settings_read(m, &s, err);
    if (status == 0)
        status = settings_check(&s, err);
    if (status == 0)
        status = tokenizer_pieces_read(t, m, &p, err);
    if (status == 0)
        status = builder_index(t, err);
    if (status == 0)
        status = builder_merges_by_score(t, p.score, err);
    if (status == 0)
        status = builder_spaces(t, s.prefix, s.fallback, err);
    if (status == 0)
        status = added_mark(t, &p, s.prefix, err);
    if (status == 0)
        status = config_apply(t, files, &s, err);
    free(p.score);
    free(p.type);
    return status;
}

int tokenizer_from_pieces(const uint8_t *tokenizer_model, size_t size, const struct tokenizer_files *files,
                          struct tokenizer **tokenizer, struct err *err)
{
    const struct message m = {.at = tokenizer_model, .end = tokenizer_model + size};
    struct tokenizer *t = builder_create(err);
    if (!t || tokenizer_pieces_model_read(t, m, files, err) < 0 || builder_finish(t, err) < 0) {
        tokenizer_destroy(t);
        return -1;
    }
    *tokenizer = t;
    return 0;
}
