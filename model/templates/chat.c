/* Chooses a chat template and builds it from the parts that a specification gives. */
#include "model/templates/chat_private.h"

#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/json.h"

/* The day that strftime_now tells where none is given, in seconds since 1970: 26 July 2024, the one that
 * Llama 3.1's template uses when there is no clock. */
static const int64_t day_s = 1721952000;

enum {
    ROLE_SYSTEM,
    ROLE_USER,
    ROLE_ASSISTANT,
    ROLE_COUNT,
    CHAT_TEXT_BYTES = 65536,
    PART_BYTES_MAX = 1 << 20
};

static const char *const role_names[ROLE_COUNT] = {"system", "user", "assistant"};
static const char content_mark[] = "{content}";

/* A template given by its parts; turns[role] contains {content} once, or is NULL. */
struct parts {
    const char *name;
    const char *begin;
    const char *turns[ROLE_COUNT];
    const char *generation;
    const char *default_system;
    bool trim;
};

static const struct parts families[] = {
    {.name = "chatml",
     .begin = "",
     .turns = {"<|im_start|>system\n{content}<|im_end|>\n", "<|im_start|>user\n{content}<|im_end|>\n",
               "<|im_start|>assistant\n{content}<|im_end|>\n"},
     .generation = "<|im_start|>assistant\n"},
    {.name = "llama3",
     .begin = "<|begin_of_text|>",
     .turns = {"<|start_header_id|>system<|end_header_id|>\n\n{content}<|eot_id|>",
               "<|start_header_id|>user<|end_header_id|>\n\n{content}<|eot_id|>",
               "<|start_header_id|>assistant<|end_header_id|>\n\n{content}<|eot_id|>"},
     .generation = "<|start_header_id|>assistant<|end_header_id|>\n\n",
     .trim = true},
    {.name = "llama3.1",
     .begin = "<|begin_of_text|>",
     .turns = {"<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
               "Today Date: 26 Jul 2024\n\n{content}<|eot_id|>",
               "<|start_header_id|>user<|end_header_id|>\n\n{content}<|eot_id|>",
               "<|start_header_id|>assistant<|end_header_id|>\n\n{content}<|eot_id|>"},
     .generation = "<|start_header_id|>assistant<|end_header_id|>\n\n",
     .default_system = "",
     .trim = true},
};

static const char known_names[] = "chatml, chatml-plain, llama3, llama3.1";
static const char how_to_give[] =
    "; give one as data.chat_template: a name (chatml, chatml-plain, llama3, llama3.1) or an "
    "object with user, assistant, system and generation";

static const struct parts *family_find(const char *name)
{
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        if (strcmp(families[i].name, name) == 0)
            return &families[i];
    return NULL;
}

struct chat_given chat_given_by(const struct tokenizer *tokenizer, const char *day)
{
    struct chat_given given = {.template = NULL};
    int64_t day_us;
    if (day && clock_rfc3339_parse(day, &day_us) == 0)
        given.now_s = day_us / 1000000;
    if (tokenizer) {
        given.template = tokenizer_chat_template(tokenizer);
        given.tool_use = tokenizer_template(tokenizer, "tool_use");
        given.special = tokenizer_special_tokens(tokenizer);
        given.tokenizer = tokenizer;
    }
    return given;
}

void chat_template_destroy(struct chat_template *chat)
{
    if (!chat)
        return;
    jinja_destroy(chat->jinja);
    jinja_destroy(chat->tool_use);
    json_decref(chat->special);
    free(chat->text);
    free(chat);
}

/* Returns true if the text contains {% generation %}, found by the same expression as in transformers. */
static bool has_generation(const char *text, size_t size)
{
    static const char word[] = "generation";
    const char *end = text + size;
    for (const char *at = text; (at = memmem(at, (size_t)(end - at), "{%", 2)) != NULL;) {
        at += 2;
        const char *name = at < end && (*at == '-' || *at == '+') ? at + 1 : at;
        while (name < end && (*name == ' ' || *name == '\t' || *name == '\n' || *name == '\r'))
            name++;
        if ((size_t)(end - name) >= sizeof(word) && memcmp(name, word, sizeof(word) - 1) == 0 &&
            strchr(" \t\r\n-+%", name[sizeof(word) - 1])) {
            return true;
        }
    }
    return false;
}

static json_t *special_tokens(const struct chat_given *given)
{
    json_t *special = given->special ? json_copy((json_t *)(uintptr_t)given->special) : json_object();
    if (special && ((given->bos && json_object_set_new(special, "bos_token",
                                                       json_stringn(given->bos, given->bos_size)) < 0) ||
                    (given->eos && json_object_set_new(special, "eos_token",
                                                       json_stringn(given->eos, given->eos_size)) < 0))) {
        json_decref(special);
        special = NULL;
    }
    return special;
}

static struct chat_template *template_create(const char *jinja, size_t size, const struct chat_given *given,
                                             struct err *err)
{
    struct chat_template *chat = calloc(1, sizeof(*chat));
    if (!chat || !(chat->special = special_tokens(given)) || !(chat->text = strndup(jinja, size))) {
        chat_template_destroy(chat);
        err_set(err, ERR_NOMEM, "out of memory for a chat template");
        return NULL;
    }
    chat->generation = has_generation(jinja, size);
    chat->now_s = given->now_s != 0 ? given->now_s : day_s;
    if (jinja_parse(jinja, size, &chat->jinja, err) < 0) {
        chat_template_destroy(chat);
        return NULL;
    }
    return chat;
}

/* ---- a template by its parts, as Jinja ---- */

/* Appends text[0..size) as a Jinja string literal. */
static int put_literal(struct buf *out, const char *text, size_t size, struct err *err)
{
    int status = buf_text(out, "'", err);
    for (size_t i = 0; i < size && status == 0; i++) {
        const char c = text[i];
        status = c == '\n'                ? buf_text(out, "\\n", err)
                 : c == '\r'              ? buf_text(out, "\\r", err)
                 : c == '\'' || c == '\\' ? buf_printf(out, err, "\\%c", c)
                                          : buf_append(out, &c, 1, err);
    }
    return status < 0 ? -1 : buf_text(out, "'", err);
}

/* Appends one role's turn around 'content', a Jinja expression. If 'generated', {% generation %} encloses the
 * content and the end marker, but not the white space behind the marker. */
static int put_turn(struct buf *out, const char *form, const char *content, bool generated, struct err *err)
{
    const char *mark = strstr(form, content_mark);
    const char *tail = mark + sizeof(content_mark) - 1;
    const size_t marker = chat_size_without_blanks(tail, strlen(tail));
    if (buf_text(out, "{{ ", err) < 0 || put_literal(out, form, (size_t)(mark - form), err) < 0 ||
        buf_text(out, generated ? " }}{% generation %}{{ " : " + ", err) < 0 ||
        buf_text(out, content, err) < 0 || buf_text(out, " + ", err) < 0 ||
        put_literal(out, tail, marker, err) < 0 ||
        buf_text(out, generated ? " }}{% endgeneration %}{{ " : " + ", err) < 0 ||
        put_literal(out, tail + marker, strlen(tail + marker), err) < 0) {
        return -1;
    }
    return buf_text(out, " }}", err);
}

static int put_default_system(struct buf *out, const struct parts *parts, struct err *err)
{
    if (!parts->default_system)
        return 0;
    struct buf content = {.limit = PART_BYTES_MAX};
    int status = put_literal(&content, parts->default_system, strlen(parts->default_system), err);
    if (status == 0 && parts->trim)
        status = buf_text(&content, " | trim", err);
    if (status == 0)
        status = buf_text(out, "{% if messages[0]['role'] != 'system' %}", err);
    if (status == 0)
        status = put_turn(out, parts->turns[ROLE_SYSTEM], buf_str(&content), false, err);
    buf_fini(&content);
    return status < 0 ? -1 : buf_text(out, "{% endif %}", err);
}

/* A template made from parts cannot write tools, documents and some keys of messages. It refuses them, since
 * they would otherwise be dropped silently. */
static const char refusals[] =
    "{%% if tools or documents %%}{{ raise_exception('tools, documents: are not written by the chat template "
    "\"%s\"') "
    "}}{%% endif %%}{%% for message in messages %%}{%% set place = 'messages[' ~ loop.index0 ~ '].' %%}{%% "
    "for key in "
    "['tool_calls', 'function_call', 'reasoning_content'] %%}{%% if message[key] %%}{{ raise_exception(place "
    "~ key ~ "
    "': is not written by the chat template \"%s\"') }}{%% endif %%}{%% endfor %%}{%% if message['content'] "
    "is not "
    "string %%}{{ raise_exception(place ~ 'content: must be a text for this chat template') }}{%% endif %%}";

static int put_parts(struct buf *out, const struct parts *parts, struct err *err)
{
    const char *content = parts->trim ? "message['content'] | trim" : "message['content']";
    if (buf_text(out, "{{ ", err) < 0 || put_literal(out, parts->begin, strlen(parts->begin), err) < 0 ||
        buf_text(out, " }}", err) < 0 || put_default_system(out, parts, err) < 0 ||
        buf_printf(out, err, refusals, parts->name, parts->name) < 0 ||
        buf_text(out, "{% if false %}", err) < 0) {
        return -1;
    }
    for (int role = 0; role < ROLE_COUNT; role++) {
        if (parts->turns[role] &&
            (buf_printf(out, err, "{%% elif message['role'] == '%s' %%}", role_names[role]) < 0 ||
             put_turn(out, parts->turns[role], content, role == ROLE_ASSISTANT, err) < 0)) {
            return -1;
        }
    }
    if (buf_text(out,
                 "{% else %}{{ raise_exception('messages[' ~ loop.index0 ~ '].role: \"' ~ message['role'] ~ ",
                 err) < 0 ||
        buf_printf(out, err, "'\" is not a role of the chat template \"%s\"') }}{%% endif %%}{%% endfor %%}",
                   parts->name) < 0 ||
        buf_text(out, "{% if add_generation_prompt %}{{ ", err) < 0 ||
        put_literal(out, parts->generation, strlen(parts->generation), err) < 0) {
        return -1;
    }
    return buf_text(out, " }}{% endif %}", err);
}

static struct chat_template *parts_create(const struct parts *parts, const struct chat_given *given,
                                          struct err *err)
{
    struct buf jinja = {.limit = PART_BYTES_MAX};
    struct chat_template *chat = NULL;
    if (put_parts(&jinja, parts, err) == 0)
        chat = template_create(buf_str(&jinja), jinja.size, given, err);
    buf_fini(&jinja);
    return chat;
}

/* Makes a template by its name. One is refused whose markers are no tokens of the tokenizer: they would be
 * read letter by letter, and no end token would end an answer. */
static struct chat_template *family_create(const char *name, const struct chat_given *given, struct err *err)
{
    const struct parts *parts = family_find(name);
    const char *const texts[] = {parts->begin, parts->turns[ROLE_SYSTEM], parts->turns[ROLE_USER],
                                 parts->turns[ROLE_ASSISTANT], parts->generation};
    for (size_t i = 0; given->tokenizer && i < sizeof(texts) / sizeof(texts[0]); i++) {
        const char *end = texts[i];
        for (const char *at; (at = strstr(end, "<|")) && (end = strstr(at, "|>"));) {
            const size_t size = (size_t)(end - at) + 2;
            if (tokenizer_find(given->tokenizer, at, size) >= 0)
                continue;
            err_set(
                err, ERR_UNSUPPORTED,
                "data.chat_template: \"%s\" writes %.*s, which is no token of the model's tokenizer; give "
                "the template as an object with tokens that it has",
                name, (int)size, at);
            return NULL;
        }
    }
    return parts_create(parts, given, err);
}

/* Reads one text of a template object into *out. */
static void chat_part_read(struct json_reader *r, const char *key, enum jr_need need, bool content,
                           const char **out)
{
    const char *text = NULL;
    if (jr_str(r, key, need, 0, CHAT_TEXT_BYTES, &text) <= 0)
        return;
    const char *mark = strstr(text, content_mark);
    if (content && (!mark || strstr(mark + 1, content_mark))) {
        jr_fail(r, key, "must have %s in it, once", content_mark);
        return;
    }
    *out = text;
}

static struct chat_template *custom_create(const json_t *object, const struct chat_given *given,
                                           struct err *err)
{
    struct parts parts = {.name = "custom", .begin = "", .generation = ""};
    struct json_reader r;
    jr_init(&r, object, "data.chat_template", err);
    chat_part_read(&r, "begin", JR_OPTIONAL, false, &parts.begin);
    chat_part_read(&r, "system", JR_OPTIONAL, true, &parts.turns[ROLE_SYSTEM]);
    chat_part_read(&r, "user", JR_REQUIRED, true, &parts.turns[ROLE_USER]);
    chat_part_read(&r, "assistant", JR_REQUIRED, true, &parts.turns[ROLE_ASSISTANT]);
    chat_part_read(&r, "generation", JR_OPTIONAL, false, &parts.generation);
    chat_part_read(&r, "default_system", JR_OPTIONAL, false, &parts.default_system);
    jr_bool(&r, "trim", JR_OPTIONAL, &parts.trim);
    if (!r.failed && parts.default_system && !parts.turns[ROLE_SYSTEM])
        jr_fail(&r, "default_system", "needs system");
    return jr_finish(&r) < 0 ? NULL : parts_create(&parts, given, err);
}

/* Returns the model's own template, new, or NULL. */
static struct chat_template *own_create(const struct chat_given *given, struct err *err)
{
    /* A model may have a template for conversations with tools only. */
    static const char absent[] =
        "{{ raise_exception('the model has a chat template for tools (tool_use), and none named default') }}";
    if (!given->template && !given->tool_use) {
        err_set(err, ERR_UNSUPPORTED, "the model has no chat template%s", how_to_give);
        return NULL;
    }
    const char *template = given->template ? given->template : absent;
    struct err why = {0};
    struct chat_template *chat = template_create(template, strlen(template), given, &why);
    if (!chat) {
        err_set(err, why.code, "the model's chat template: %s%s", why.text,
                why.code == ERR_NOMEM ? "" : how_to_give);
    } else if (given->tool_use) {
        const size_t size = strlen(given->tool_use);
        struct buf both = {.limit = 2 * JINJA_SOURCE_BYTES_MAX + 2};
        if (buf_printf(&both, err, "%s\n%s", template, given->tool_use) < 0) {
            buf_fini(&both);
            chat_template_destroy(chat);
            return NULL;
        }
        free(chat->text);
        chat->text = (char *)both.data; /* the buffer is NUL-terminated */
        chat->tool_use_generation = has_generation(given->tool_use, size);
        if (jinja_parse(given->tool_use, size, &chat->tool_use, &chat->tool_use_error) < 0 &&
            chat->tool_use_error.code == ERR_NOMEM) {
            *err = chat->tool_use_error;
            chat_template_destroy(chat);
            return NULL;
        }
    }
    return chat;
}

int chat_template_choose(const json_t *choice, const struct chat_given *given, struct chat_template **chat,
                         struct err *err)
{
    const char *name = json_string_value(choice);
    const char *own = given->template ? given->template : "";
    const bool own_chatml = strstr(own, "<|im_start|>") && strstr(own, "<|im_end|>");
    const bool chatml = name && strcmp(name, "chatml") == 0;
    if (!choice || json_is_null(choice) || (name && strcmp(name, "auto") == 0) || (chatml && own_chatml)) {
        *chat = own_create(given, err);
    } else if (json_is_object(choice)) {
        *chat = custom_create(choice, given, err);
    } else if (name && strcmp(name, "chatml-plain") == 0) {
        *chat = family_create("chatml", given, err);
    } else if (name && family_find(name)) {
        *chat = family_create(name, given, err);
    } else {
        *chat = NULL;
        err_set(err, ERR_INVALID, "data.chat_template: \"%.60s\" is not one of auto, %s, or an object",
                name ? name : "", known_names);
    }
    return *chat ? 0 : -1;
}

static bool chat_is_of_word(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

bool chat_template_names(const struct chat_template *chat, const char *word)
{
    const size_t size = strlen(word);
    for (const char *at = chat->text; size > 0 && (at = strstr(at, word)); at++)
        if ((at == chat->text || !chat_is_of_word(at[-1])) && !chat_is_of_word(at[size]))
            return true;
    return false;
}
