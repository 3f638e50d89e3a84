/* See tokenizer_class.h. The sections were written down from what each class of transformers 5.24 serialises
 * (tokenizer._tokenizer.to_str()) over a tokenizer.json with other ones. */
#include "model/tokenizer_class.h"

#include <stdbool.h>
#include <string.h>

struct tokenizer_class {
    const char *name;     /* without "Fast" */
    const char *sections; /* JSON: what replaces members of tokenizer.json; "model": members of the model */
    const char *defaults; /* JSON: special tokens */
    bool spaced;          /* the ByteLevel of the pre-tokeniser has the configuration's add_prefix_space */
    bool metaspace;       /* of LlamaTokenizer: its prefix follows add_prefix_space and legacy */
};

#define MODEL_OF_BYTES                                                                                       \
    "\"model\":{\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":\"\","                     \
    "\"end_of_word_suffix\":\"\",\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false}"
#define MODEL_OF_CHARACTERS(unknown)                                                                         \
    "\"model\":{\"dropout\":null,\"unk_token\":" unknown ",\"continuing_subword_prefix\":null,"              \
    "\"end_of_word_suffix\":null,\"fuse_unk\":true,\"byte_fallback\":true,\"ignore_merges\":false}"
#define BYTE_LEVEL(regex)                                                                                    \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":" regex "}"
#define DECODE_BYTES "\"decoder\":" BYTE_LEVEL("true")
#define DECODE_SPACES                                                                                        \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xe2\x96\x81\"},\"content\":\" \"},"                    \
    "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}"

static const struct tokenizer_class classes[] = {
    {.name = "Qwen2Tokenizer",
     .sections =
         "{\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{"
         "\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{"
         "N}]?\\\\p{L}+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)"
         "|\\\\s+\"},\"behavior\":\"Isolated\",\"invert\":false}," BYTE_LEVEL("false") "]}," DECODE_BYTES
                                                                                       "," MODEL_OF_BYTES "}",
     .defaults = "{\"unk_token\":\"<|endoftext|>\",\"eos_token\":\"<|endoftext|>\",\"pad_token\":"
                 "\"<|endoftext|>\"}",
     .spaced = true},
    {.name = "GPT2Tokenizer",
     .sections =
         "{\"normalizer\":null,\"pre_tokenizer\":" BYTE_LEVEL("true") "," DECODE_BYTES "," MODEL_OF_BYTES "}",
     .defaults = "{\"bos_token\":\"<|endoftext|>\",\"eos_token\":\"<|endoftext|>\",\"unk_token\":"
                 "\"<|endoftext|>\"}",
     .spaced = true},
    {.name = "GPTNeoXTokenizer",
     .sections = "{\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":" BYTE_LEVEL(
         "true") "," DECODE_BYTES "," MODEL_OF_BYTES "}",
     .defaults = "{\"bos_token\":\"<|endoftext|>\",\"eos_token\":\"<|endoftext|>\",\"unk_token\":"
                 "\"<|endoftext|>\",\"pad_token\":\"<|padding|>\"}",
     .spaced = true},
    {.name = "LlamaTokenizer",
     .sections =
         "{\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":"
         "\"\xe2\x96\x81\",\"prepend_scheme\":\"first\",\"split\":false},\"decoder\":{\"type\":"
         "\"Sequence\",\"decoders\":[" DECODE_SPACES
         ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}," MODEL_OF_CHARACTERS("null") "}",
     .defaults = "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"unk_token\":\"<unk>\"}",
     .metaspace = true},
    {.name = "GemmaTokenizer",
     .sections = "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":"
                 "\"\xe2\x96\x81\"},\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},"
                 "\"behavior\":\"MergedWithPrevious\",\"invert\":false},\"decoder\":{\"type\":\"Sequence\","
                 "\"decoders\":[" DECODE_SPACES "]}," MODEL_OF_CHARACTERS("\"<unk>\"") "}",
     .defaults = "{\"bos_token\":\"<bos>\",\"eos_token\":\"<eos>\",\"unk_token\":\"<unk>\",\"pad_token\":"
                 "\"<pad>\",\"mask_token\":\"<mask>\"}"},
};

/* What AutoTokenizer registers for the families that Motley trains; those not here have no class of their
 * own. 'always': whatever tokenizer_class says. */
static const struct registered {
    const char *model_type, *class_name; /* NULL: tokenizer.json as it stands */
    bool always;
} registered[] = {
    {"qwen2", "Qwen2Tokenizer", true},
    {"qwen3", "Qwen2Tokenizer", false},
    {"qwen3_moe", "Qwen2Tokenizer", false},
    {"olmoe", "GPTNeoXTokenizer", false},
    {"gemma2", "GemmaTokenizer", false},
    {"gemma3", "GemmaTokenizer", false},
    {"gemma3_text", "GemmaTokenizer", false},
    {"mistral", NULL, true},
    {"mixtral", NULL, true},
    {"phi3", NULL, true},
};

static const struct tokenizer_class *class_named(const char *name, size_t size)
{
    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++) {
        if (strlen(classes[i].name) == size && memcmp(classes[i].name, name, size) == 0) {
            return &classes[i];
        }
    }
    return NULL;
}

/* True when a section, or one of a sequence in it, is ByteLevel. */
static bool has_byte_level(const json_t *section, const char *list)
{
    const char *type = json_string_value(json_object_get(section, "type"));
    bool found = type != NULL && strcmp(type, "ByteLevel") == 0;
    const json_t *items = json_object_get(section, list);
    for (size_t i = 0; i < json_array_size(items) && !found; i++) {
        found = has_byte_level(json_array_get(items, i), list);
    }
    return found;
}

int tokenizer_class_find(const char *declared, const char *model_type, const json_t *root,
                         const struct tokenizer_class **class, struct err *err)
{
    static const char *const plain[] = {"PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend",
                                        "PythonBackend"};
    const struct registered *own = NULL;
    *class = NULL;
    for (size_t i = 0; i < sizeof(registered) / sizeof(registered[0]) && model_type != NULL; i++) {
        own = strcmp(registered[i].model_type, model_type) == 0 ? &registered[i] : own;
    }
    if (own != NULL && (own->always || declared == NULL)) {
        *class = own->class_name != NULL ? class_named(own->class_name, strlen(own->class_name)) : NULL;
        return 0;
    }
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]) && declared != NULL; i++) {
        declared = strcmp(plain[i], declared) == 0 ? NULL : declared;
    }
    if (declared == NULL) {
        return 0;
    }
    size_t size = strlen(declared);
    size -= size > 4 && strcmp(declared + size - 4, "Fast") == 0 ? 4 : 0;
    *class = class_named(declared, size);
    if (*class == NULL) {
        return err_set(
            err, ERR_UNSUPPORTED,
            "tokenizer_config.json: tokenizer_class \"%.60s\" is not known; known: "
            "PreTrainedTokenizerFast (tokenizer.json as it stands), LlamaTokenizer, GemmaTokenizer, "
            "Qwen2Tokenizer, GPT2Tokenizer, GPTNeoXTokenizer",
            declared);
    }
    if ((*class)->metaspace && (has_byte_level(json_object_get(root, "pre_tokenizer"), "pretokenizers") ||
                                has_byte_level(json_object_get(root, "decoder"), "decoders"))) {
        *class = NULL; /* as Llama 3 was published */
    }
    return 0;
}

/* add_prefix_space and legacy of the configuration, where the class reads them. */
static int settings_apply(const struct tokenizer_class *class, const json_t *config, json_t *root,
                          struct err *err)
{
    const json_t *space = json_object_get(config, "add_prefix_space");
    const json_t *legacy = json_object_get(config, "legacy");
    json_t *pre = json_object_get(root, "pre_tokenizer");
    if (space != NULL && !json_is_boolean(space) && (class->spaced || !json_is_null(space))) {
        return err_set(err, ERR_INVALID, "tokenizer_config.json: add_prefix_space must be true or false");
    }
    if (legacy != NULL && !json_is_boolean(legacy) && !json_is_null(legacy)) {
        return err_set(err, ERR_INVALID, "tokenizer_config.json: legacy must be true or false");
    }
    int status = 0;
    if (class->spaced && json_is_true(space)) {
        json_t *list = json_object_get(pre, "pretokenizers");
        json_t *last = list != NULL ? json_array_get(list, json_array_size(list) - 1) : pre;
        status = json_object_set_new(last, "add_prefix_space", json_true());
    } else if (class->metaspace && json_is_false(space)) {
        status = json_object_set_new(pre, "prepend_scheme", json_string("never"));
    } else if (class->metaspace && json_is_true(legacy)) {
        status = json_object_set_new(pre, "prepend_scheme", json_string("always"));
    }
    return status < 0 ? err_set(err, ERR_NOMEM, "out of memory for a tokenizer's pipeline") : 0;
}

int tokenizer_class_build(const struct tokenizer_class *class, const json_t *config, json_t *root,
                          struct err *err)
{
    json_t *sections = json_loads(class->sections, 0, NULL);
    json_t *model = json_incref(json_object_get(sections, "model"));
    json_t *own = json_object_get(root, "model");
    bool good = sections != NULL && json_object_del(sections, "model") == 0 &&
                json_object_update(root, sections) == 0 &&
                (!json_is_object(own) || json_object_update(own, model) == 0);
    json_decref(model);
    json_decref(sections);
    return good ? settings_apply(class, config, root, err)
                : err_set(err, ERR_NOMEM, "out of memory for a tokenizer's pipeline");
}

json_t *tokenizer_class_defaults(const struct tokenizer_class *class)
{
    return json_loads(class->defaults, 0, NULL);
}
