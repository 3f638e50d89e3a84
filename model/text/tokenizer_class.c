/* Lists the tokenizer classes of transformers 5.24 that build a pipeline of their own (tokenizer_class.h).
 * The sections are what each class serialises (tokenizer._tokenizer.to_str()) over a tokenizer.json whose own
 * sections are different. */
#include "model/text/tokenizer_class.h"

#include <string.h>

#include "model/text/tokenizer_added.h"

struct tokenizer_class {
    const char *name; /* the class's name without "Fast" at its end */
    /* JSON: what replaces members of tokenizer.json; its "model" replaces members of the model */
    const char *sections;
    const char *defaults; /* JSON: special tokens where no file names them */
    /* true: the pre-tokeniser's ByteLevel takes add_prefix_space from tokenizer_config.json */
    bool spaced;
    bool metaspace; /* true for LlamaTokenizer, whose prefix follows add_prefix_space and legacy */
    bool repeats;   /* true: special tokens are added once more at the end */
    bool unknown;   /* true: the model's unk_token is the special token of that name */
    bool bare;      /* true: nothing is put around a text, whatever tokenizer.json says */
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

/* Qwen's pipeline; `word` matches a word's letters, and `more` is what punctuation lacks beside letters,
 * digits and spaces. */
#define SPLIT_QWEN(word, more)                                                                               \
    "{\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{"       \
    "\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{"    \
    "N}]?" word "|\\\\p{N}| ?[^\\\\s\\\\p{L}" more                                                           \
    "\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)"                                            \
    "|\\\\s+\"},\"behavior\":\"Isolated\",\"invert\":false}," BYTE_LEVEL("false") "]}," DECODE_BYTES         \
                                                                                  "," MODEL_OF_BYTES "}"

static const struct tokenizer_class classes[] = {
    {.name = "Qwen2Tokenizer",
     .sections = SPLIT_QWEN("\\\\p{L}+", ""),
     .defaults = "{\"unk_token\":\"<|endoftext|>\",\"eos_token\":\"<|endoftext|>\",\"pad_token\":"
                 "\"<|endoftext|>\"}",
     .spaced = true,
     .repeats = true},
    {.name = "Qwen3_5Tokenizer", /* marks belong to the letters before them */
     .sections = SPLIT_QWEN("[\\\\p{L}\\\\p{M}]+", "\\\\p{M}"),
     .defaults = "{\"unk_token\":\"<|endoftext|>\",\"eos_token\":\"<|endoftext|>\",\"pad_token\":"
                 "\"<|endoftext|>\"}",
     .spaced = true},
    {.name = "GPT2Tokenizer",
     .sections =
         "{\"normalizer\":null,\"pre_tokenizer\":" BYTE_LEVEL("true") "," DECODE_BYTES "," MODEL_OF_BYTES "}",
     .defaults = "{\"bos_token\":\"<|endoftext|>\",\"eos_token\":\"<|endoftext|>\",\"unk_token\":"
                 "\"<|endoftext|>\",\"pad_token\":null}",
     .spaced = true},
    {.name = "GPTNeoXTokenizer",
     .sections = "{\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":" BYTE_LEVEL(
         "true") "," DECODE_BYTES "," MODEL_OF_BYTES "}",
     .defaults = "{\"bos_token\":\"<|endoftext|>\",\"eos_token\":\"<|endoftext|>\",\"unk_token\":"
                 "\"<|endoftext|>\",\"pad_token\":\"<|padding|>\"}",
     .spaced = true,
     .bare = true},
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
                 "\"<pad>\",\"mask_token\":\"<mask>\"}",
     .unknown = true},
};

/* The classes that AutoTokenizer registers for the families that Motley trains. A family that is not listed
 * has no class of its own. With 'always' the class holds whatever tokenizer_class says. */
static const struct registered {
    const char *model_type, *class_name; /* class_name NULL: the family uses tokenizer.json as it stands */
    bool always;
} registered[] = {
    {"qwen2", "Qwen2Tokenizer", true},
    {"qwen3", "Qwen2Tokenizer", false},
    {"qwen3_moe", "Qwen2Tokenizer", false},
    {"qwen3_5", "Qwen3_5Tokenizer", true}, /* published files name Qwen2Tokenizer */
    {"qwen3_5_text", "Qwen3_5Tokenizer", false},
    {"qwen3_5_moe", "Qwen3_5Tokenizer", true},
    {"qwen3_5_moe_text", "Qwen3_5Tokenizer", true},
    {"qwen3_next", "Qwen2Tokenizer", false},
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
    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++)
        if (strlen(classes[i].name) == size && memcmp(classes[i].name, name, size) == 0)
            return &classes[i];
    return NULL;
}

/* Returns true when the document has the text or the key "ByteLevel" somewhere; transformers looks for it
 * too. */
static bool has_byte_level(const json_t *value)
{
    static const char name[] = "ByteLevel";
    const char *key, *text = json_string_value(value);
    json_t *item;
    size_t i;
    bool found = (text && strcmp(text, name) == 0) || json_object_get(value, name);
    json_array_foreach (value, i, item) {
        found = found || (!json_is_integer(item) && has_byte_level(item));
    }
    json_object_foreach ((json_t *)value, key, item) {
        found = found || (!json_is_integer(item) && has_byte_level(item));
    }
    return found;
}

/* Returns the size of a class's name without "Fast" at its end. */
static size_t class_name_size(const char *name)
{
    const size_t size = strlen(name);
    return size - (size > 4 && strcmp(name + size - 4, "Fast") == 0 ? 4 : 0);
}

/* Returns the class's name that counts. It is that of tokenizer_config.json, or that of config.json where
 * tokenizer_config.json has none. Where tokenizer_config.json has "", config.json's counts if the family
 * registers another class, and otherwise "" does, which is no class. */
static const char *class_declared(const struct tokenizer_class_words *words, const struct registered *own)
{
    if (!words->declared || !words->config || *words->declared != '\0')
        return words->declared ? words->declared : words->config;
    const size_t size = class_name_size(words->config);
    const bool same = !own || (own->class_name && strlen(own->class_name) == size &&
                               memcmp(own->class_name, words->config, size) == 0);
    return same ? words->declared : words->config;
}

int tokenizer_class_find(const struct tokenizer_class_words *words, const json_t *root,
                         const struct tokenizer_class **class, struct err *err)
{
    static const char *const plain[] = {"PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend",
                                        "PythonBackend"};
    const struct registered *own = NULL;
    *class = NULL;
    for (size_t i = 0; i < sizeof(registered) / sizeof(registered[0]) && words->model_type; i++)
        own = strcmp(registered[i].model_type, words->model_type) == 0 ? &registered[i] : own;
    const char *declared = class_declared(words, own);
    if (own && ((own->always && (!declared || *declared != '\0')) || !declared)) {
        *class = own->class_name != NULL ? class_named(own->class_name, strlen(own->class_name)) : NULL;
        return 0;
    }
    if (declared && *declared == '\0')
        declared = NULL; /* no class has an empty name */
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]) && declared; i++)
        declared = strcmp(plain[i], declared) == 0 ? NULL : declared;
    if (!declared)
        return 0;
    *class = class_named(declared, class_name_size(declared));
    if (!*class) {
        return err_set(
            err, ERR_UNSUPPORTED,
            "tokenizer_config.json: tokenizer_class \"%.60s\" is not known; known: "
            "PreTrainedTokenizerFast (tokenizer.json as it stands), LlamaTokenizer, GemmaTokenizer, "
            "Qwen2Tokenizer, Qwen3_5Tokenizer, GPT2Tokenizer, GPTNeoXTokenizer",
            declared);
    }
    if ((*class)->metaspace && has_byte_level(root))
        /* Llama 3 was published with this class's name and a byte-level tokenizer.json, which then is used as
         * it is */
        *class = NULL;
    return 0;
}

/* Apply add_prefix_space and legacy of tokenizer_config.json, where the class reads them. */
static int settings_apply(const struct tokenizer_class *class, const json_t *config, json_t *root,
                          struct err *err)
{
    const json_t *space = json_object_get(config, "add_prefix_space");
    const json_t *legacy = json_object_get(config, "legacy");
    json_t *pre = json_object_get(root, "pre_tokenizer");
    if (space && !json_is_boolean(space) && (class->spaced || !json_is_null(space)))
        return err_set(err, ERR_INVALID, "tokenizer_config.json: add_prefix_space must be true or false");
    if (legacy && !json_is_boolean(legacy) && !json_is_null(legacy))
        return err_set(err, ERR_INVALID, "tokenizer_config.json: legacy must be true or false");
    int status = 0;
    if (class->spaced && json_is_true(space)) {
        json_t *list = json_object_get(pre, "pretokenizers");
        json_t *last = list ? json_array_get(list, json_array_size(list) - 1) : pre;
        status = json_object_set_new(last, "add_prefix_space", json_true());
    } else if (class->metaspace && json_is_false(space)) {
        json_t *decoders = json_object_get(json_object_get(root, "decoder"), "decoders");
        status = json_object_set_new(pre, "prepend_scheme", json_string("never"));
        /* removes the decoder Strip */
        status = json_array_remove(decoders, json_array_size(decoders) - 1) < 0 ? -1 : status;
    } else if (class->metaspace && json_is_true(legacy)) {
        status = json_object_set_new(pre, "prepend_scheme", json_string("always"));
    }
    return status < 0 ? err_set(err, ERR_NOMEM, "out of memory for a tokenizer's pipeline") : 0;
}

bool tokenizer_class_repeats(const struct tokenizer_class *class)
{
    return class && class->repeats;
}

/* Make the named unknown token the model's; where none is named, Python writes "None". */
static int unknown_apply(const json_t *named, json_t *root)
{
    const json_t *unknown = added_content(json_object_get(named, "unk_token"));
    json_t *model = json_object_get(root, "model");
    return json_is_object(model)
               ? json_object_set_new(model, "unk_token",
                                     unknown ? json_copy((json_t *)unknown) : json_string("None"))
               : 0;
}

int tokenizer_class_build(const struct tokenizer_class *class, const json_t *config, const json_t *named,
                          json_t *root, struct err *err)
{
    json_t *sections = json_loads(class->sections, 0, NULL);
    json_t *model = json_incref(json_object_get(sections, "model"));
    json_t *own = json_object_get(root, "model");
    bool good = sections && json_object_del(sections, "model") == 0 &&
                json_object_update(root, sections) == 0 &&
                (!json_is_object(own) || json_object_update(own, model) == 0);
    json_decref(model);
    json_decref(sections);
    good = good && (!class->unknown || unknown_apply(named, root) == 0) &&
           (!class->bare || json_object_set_new(root, "post_processor", json_null()) == 0);
    return good ? settings_apply(class, config, root, err)
                : err_set(err, ERR_NOMEM, "out of memory for a tokenizer's pipeline");
}

json_t *tokenizer_class_defaults(const struct tokenizer_class *class)
{
    return json_loads(class->defaults, 0, NULL);
}
