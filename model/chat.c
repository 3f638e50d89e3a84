/* Families of chat templates as data, and recognising them in a model's Jinja text. */
#include "model/chat.h"

#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "model/utf8.h"

enum { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_COUNT, CHAT_TEXT_BYTES = 65536 };

static const char *const role_names[ROLE_COUNT] = {"system", "user", "assistant"};
static const char content_mark[] = "{content}";

/* A family: turns[role] holds {content} once. */
struct family {
    const char *name;
    const char *begin;
    const char *turns[ROLE_COUNT];
    const char *generation;
    const char *default_system;
    bool trim;
};

struct chat_template {
    char *name, *begin, *generation, *default_system;
    char *turns[ROLE_COUNT]; /* NULL: the role is refused */
    bool trim;
};

static const struct family families[] = {
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

static const struct family *family_find(const char *name)
{
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        if (strcmp(families[i].name, name) == 0) {
            return &families[i];
        }
    }
    return NULL;
}

void chat_template_destroy(struct chat_template *chat)
{
    if (chat == NULL) {
        return;
    }
    for (int role = 0; role < ROLE_COUNT; role++) {
        free(chat->turns[role]);
    }
    free(chat->name);
    free(chat->begin);
    free(chat->generation);
    free(chat->default_system);
    free(chat);
}

const char *chat_template_name(const struct chat_template *chat)
{
    return chat->name;
}

/* Copy a text that may be NULL. Returns false without memory. */
static bool text_copy(char **out, const char *text)
{
    *out = text != NULL ? strdup(text) : NULL;
    return text == NULL || *out != NULL;
}

static struct chat_template *template_create(const struct family *family, const char *default_system,
                                             struct err *err)
{
    struct chat_template *chat = calloc(1, sizeof(*chat));
    bool good = chat != NULL;
    good = good && text_copy(&chat->name, family->name) && text_copy(&chat->begin, family->begin) &&
           text_copy(&chat->generation, family->generation) &&
           text_copy(&chat->default_system, default_system);
    for (int role = 0; good && role < ROLE_COUNT; role++) {
        good = text_copy(&chat->turns[role], family->turns[role]);
    }
    if (!good) {
        chat_template_destroy(chat);
        err_set(err, ERR_NOMEM, "out of memory for a chat template");
        return NULL;
    }
    chat->trim = family->trim;
    return chat;
}

/* Length of a newline at 'text' as Jinja source has it, written out or as an escape; 0 if there is none. */
static size_t newline_at(const char *text)
{
    return text[0] == '\n' ? 1 : text[0] == '\\' && text[1] == 'n' ? 2 : 0;
}

/* The system prompt a ChatML template puts in by itself: the text of a literal
 * '<|im_start|>system\n…<|im_end|>' with nothing but text inside. Returns new, "" included, or NULL. */
static char *chatml_default_system(const char *jinja)
{
    static const char head[] = "<|im_start|>system";
    static const char tail[] = "<|im_end|>";
    for (const char *at = strstr(jinja, head); at != NULL; at = strstr(at + 1, head)) {
        const char *text = at + sizeof(head) - 1;
        const size_t newline = newline_at(text);
        text += newline;
        const char *end = newline > 0 ? strstr(text, tail) : NULL;
        const char quote = at > jinja ? at[-1] : '\0';
        if (end == NULL || (quote != '\'' && quote != '"') ||
            memchr(text, quote, (size_t)(end - text)) != NULL) {
            continue;
        }
        char *copy = malloc((size_t)(end - text) + 1);
        if (copy == NULL) {
            return NULL;
        }
        size_t size = 0;
        for (const char *c = text; c < end; c++) {
            if (c + 1 < end && c[0] == '\\' && (c[1] == 'n' || c[1] == '\'' || c[1] == '"' || c[1] == '\\')) {
                copy[size++] = c[1] == 'n' ? '\n' : c[1];
                c++;
            } else {
                copy[size++] = *c;
            }
        }
        copy[size] = '\0';
        return copy;
    }
    return NULL;
}

static bool has(const char *text, const char *part)
{
    return strstr(text, part) != NULL;
}

static struct chat_template *chatml_create(const char *jinja, struct err *err)
{
    char *system = jinja != NULL ? chatml_default_system(jinja) : NULL;
    struct chat_template *chat = template_create(family_find("chatml"), system, err);
    free(system);
    if (chat != NULL && jinja != NULL) {
        chat->trim = has(jinja, "| trim") || has(jinja, "|trim") || has(jinja, ".strip()");
    }
    return chat;
}

/* The family a model's own template belongs to. Templates that rewrite what an assistant said (reasoning) are
 * refused: guessing would train on text the model was never meant to see. */
static struct chat_template *recognise(const char *jinja, struct err *err)
{
    static const char how[] =
        "; give one as data.chat_template: a name (chatml, chatml-plain, llama3, llama3.1) or an "
        "object with user, assistant, system and generation";
    if (jinja == NULL) {
        err_set(err, ERR_UNSUPPORTED, "the model has no chat template%s", how);
        return NULL;
    }
    if (has(jinja, "think>") || has(jinja, "reasoning_content")) {
        err_set(err, ERR_UNSUPPORTED, "the model's chat template handles reasoning and is not known here%s",
                how);
        return NULL;
    }
    if (has(jinja, "<|im_start|>") && has(jinja, "<|im_end|>")) {
        return chatml_create(jinja, err);
    }
    if (has(jinja, "<|start_header_id|>") && has(jinja, "<|end_header_id|>") && has(jinja, "<|eot_id|>")) {
        const struct family *family =
            family_find(has(jinja, "Cutting Knowledge Date") ? "llama3.1" : "llama3");
        return template_create(family, family->default_system, err);
    }
    err_set(err, ERR_UNSUPPORTED, "the model's chat template (\"%.60s…\") is of no known family%s", jinja,
            how);
    return NULL;
}

/* One text of a template object into *out. */
static void part_read(struct json_reader *r, const char *key, enum jr_need need, bool content, char **out)
{
    const char *text = NULL;
    if (jr_str(r, key, need, 0, CHAT_TEXT_BYTES, &text) <= 0) {
        return;
    }
    const char *mark = strstr(text, content_mark);
    if (content && (mark == NULL || strstr(mark + 1, content_mark) != NULL)) {
        jr_fail(r, key, "must have %s in it, once", content_mark);
        return;
    }
    free(*out);
    if (!text_copy(out, text)) {
        jr_fail(r, key, "out of memory");
    }
}

static struct chat_template *custom_create(const json_t *object, struct err *err)
{
    static const struct family empty = {.name = "custom", .begin = "", .generation = ""};
    struct chat_template *chat = template_create(&empty, NULL, err);
    if (chat == NULL) {
        return NULL;
    }
    struct json_reader r;
    jr_init(&r, object, "data.chat_template", err);
    part_read(&r, "begin", JR_OPTIONAL, false, &chat->begin);
    part_read(&r, "system", JR_OPTIONAL, true, &chat->turns[ROLE_SYSTEM]);
    part_read(&r, "user", JR_REQUIRED, true, &chat->turns[ROLE_USER]);
    part_read(&r, "assistant", JR_REQUIRED, true, &chat->turns[ROLE_ASSISTANT]);
    part_read(&r, "generation", JR_OPTIONAL, false, &chat->generation);
    part_read(&r, "default_system", JR_OPTIONAL, false, &chat->default_system);
    jr_bool(&r, "trim", JR_OPTIONAL, &chat->trim);
    if (!r.failed && chat->default_system != NULL && chat->turns[ROLE_SYSTEM] == NULL) {
        jr_fail(&r, "default_system", "needs system");
    }
    if (jr_finish(&r) < 0) {
        chat_template_destroy(chat);
        return NULL;
    }
    return chat;
}

int chat_template_choose(const json_t *choice, const char *model_template, struct chat_template **chat,
                         struct err *err)
{
    const char *name = json_string_value(choice);
    if (choice == NULL || json_is_null(choice) || (name != NULL && strcmp(name, "auto") == 0)) {
        *chat = recognise(model_template, err);
    } else if (json_is_object(choice)) {
        *chat = custom_create(choice, err);
    } else if (name != NULL && strcmp(name, "chatml") == 0) {
        *chat = chatml_create(model_template, err);
    } else if (name != NULL && strcmp(name, "chatml-plain") == 0) {
        *chat = chatml_create(NULL, err);
    } else if (name != NULL && family_find(name) != NULL) {
        *chat = template_create(family_find(name), family_find(name)->default_system, err);
    } else {
        *chat = NULL;
        err_set(err, ERR_INVALID, "data.chat_template: \"%.60s\" is not one of auto, %s, or an object",
                name != NULL ? name : "", known_names);
    }
    return *chat != NULL ? 0 : -1;
}

static int role_of(const char *role)
{
    for (int i = 0; i < ROLE_COUNT; i++) {
        if (strcmp(role_names[i], role) == 0) {
            return i;
        }
    }
    return -1;
}

/* What Python's str.strip(), and so Jinja's trim, takes away: White_Space and four control characters. */
static bool is_blank(uint32_t code)
{
    return utf8_is_space(code) || (code >= 0x1c && code <= 0x1f);
}

/* Bytes of blanks at the beginning of text[0..size). */
static size_t blanks_before(const char *text, size_t size)
{
    size_t at = 0;
    while (at < size) {
        uint32_t code = 0;
        unsigned bad;
        const unsigned length = utf8_decode((const uint8_t *)text + at, size - at, &code, &bad, NULL);
        if (length == 0 || !is_blank(code)) {
            break;
        }
        at += length;
    }
    return at;
}

/* Bytes that are left of text[0..size) without the blanks at its end. */
static size_t size_without_blanks(const char *text, size_t size)
{
    while (size > 0) {
        size_t at = size - 1;
        while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80) {
            at--;
        }
        uint32_t code = 0;
        unsigned bad;
        if (utf8_decode((const uint8_t *)text + at, size - at, &code, &bad, NULL) != size - at ||
            !is_blank(code)) {
            break;
        }
        size = at;
    }
    return size;
}

/* Where a conversation is being written to. */
struct rendering {
    const struct chat_template *chat;
    struct buf *text;
    struct chat_span *spans; /* or NULL */
    size_t span_count, begin;
};

/* Close the span that ends where the text ends now. */
static void span_close(struct rendering *r, bool learn)
{
    const size_t end = r->text->size;
    const size_t begin = r->span_count > 0 && r->spans != NULL ? r->spans[r->span_count - 1].end : r->begin;
    if (r->spans == NULL || begin == end) {
        return;
    }
    if (r->span_count > 0 && r->spans[r->span_count - 1].learn == learn) {
        r->spans[r->span_count - 1].end = end;
        return;
    }
    r->spans[r->span_count++] = (struct chat_span){.begin = begin, .end = end, .learn = learn};
}

static int turn_render(struct rendering *r, int role, const char *content, struct err *err)
{
    const char *form = r->chat->turns[role];
    const char *mark = strstr(form, content_mark);
    const char *tail = mark + sizeof(content_mark) - 1;
    size_t size = strlen(content);
    if (r->chat->trim) {
        const size_t blanks = blanks_before(content, size);
        content += blanks;
        size = size_without_blanks(content, size - blanks);
    }
    if (buf_append(r->text, form, (size_t)(mark - form), err) < 0) {
        return -1;
    }
    span_close(r, false);
    /* The end marker is learnt, white space behind it is not. */
    const size_t marker = size_without_blanks(tail, strlen(tail));
    if (buf_append(r->text, content, size, err) < 0 || buf_append(r->text, tail, marker, err) < 0) {
        return -1;
    }
    span_close(r, role == ROLE_ASSISTANT);
    if (buf_text(r->text, tail + marker, err) < 0) {
        return -1;
    }
    span_close(r, false);
    return 0;
}

static int message_render(struct rendering *r, const struct chat_message *message, size_t index,
                          struct err *err)
{
    const int role = role_of(message->role);
    if (role < 0 || r->chat->turns[role] == NULL) {
        return err_set(err, ERR_INVALID,
                       "messages[%zu].role: \"%.40s\" is not a role of the chat template \"%s\"", index,
                       message->role, r->chat->name);
    }
    return turn_render(r, role, message->content, err);
}

int chat_render(const struct chat_template *chat, const struct chat_message *messages, size_t count,
                bool add_generation, struct buf *text, struct chat_span *spans, size_t *span_count,
                struct err *err)
{
    if (count == 0 || count > CHAT_MESSAGES_MAX) {
        return err_set(err, ERR_INVALID, "messages: a conversation has 1 to %d messages, not %zu",
                       CHAT_MESSAGES_MAX, count);
    }
    struct rendering r = {.chat = chat, .text = text, .spans = spans, .begin = text->size};
    int status = buf_text(text, chat->begin, err);
    if (status == 0 && chat->default_system != NULL && strcmp(messages[0].role, "system") != 0) {
        status = turn_render(&r, ROLE_SYSTEM, chat->default_system, err);
    }
    for (size_t i = 0; i < count && status == 0; i++) {
        status = message_render(&r, &messages[i], i, err);
    }
    if (status == 0 && add_generation) {
        status = buf_text(text, chat->generation, err);
    }
    if (status < 0) {
        text->size = r.begin;
        return -1;
    }
    span_close(&r, false);
    if (span_count != NULL) {
        *span_count = r.span_count;
    }
    return 0;
}

int chat_messages_from_json(const json_t *messages, struct chat_message *out, size_t capacity,
                            struct err *err)
{
    if (!json_is_array(messages) || json_array_size(messages) == 0 || json_array_size(messages) > capacity) {
        return err_set(err, ERR_INVALID, "messages: must be a list of 1 to %zu messages", capacity);
    }
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *item = json_array_get(messages, i);
        out[i].role = json_string_value(json_object_get(item, "role"));
        out[i].content = json_string_value(json_object_get(item, "content"));
        if (out[i].role == NULL || out[i].content == NULL) {
            return err_set(err, ERR_INVALID, "messages[%zu]: needs a role and a content, both texts", i);
        }
    }
    return (int)json_array_size(messages);
}
