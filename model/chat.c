/* Choosing a template, rendering by it, and telling what an assistant wrote. */
#include "model/chat.h"

#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "model/jinja.h"
#include "model/utf8.h"

enum {
    ROLE_SYSTEM,
    ROLE_USER,
    ROLE_ASSISTANT,
    ROLE_COUNT,
    CHAT_TEXT_BYTES = 65536,
    PART_BYTES_MAX = 1 << 20
};

/* The day that strftime_now tells, 26 July 2024 (Llama 3.1's own for where there is no clock). Rows are
 * encoded once, kept by what they are made of, and compared: they may not depend on the day. */
static const int64_t day_s = 1721952000;

static const char *const role_names[ROLE_COUNT] = {"system", "user", "assistant"};
static const char content_mark[] = "{content}";

/* A template by its parts: turns[role] holds {content} once, or is NULL. */
struct parts {
    const char *name;
    const char *begin;
    const char *turns[ROLE_COUNT];
    const char *generation;
    const char *default_system;
    bool trim;
};

struct chat_template {
    struct jinja *jinja;
    char *bos, *eos; /* or NULL */
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
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        if (strcmp(families[i].name, name) == 0) {
            return &families[i];
        }
    }
    return NULL;
}

struct chat_given chat_given_by(const struct tokenizer *tokenizer)
{
    struct chat_given given = {.template = NULL};
    if (tokenizer != NULL) {
        given.template = tokenizer_chat_template(tokenizer);
        given.bos = tokenizer_token_text(tokenizer, tokenizer_bos(tokenizer), &given.bos_size);
        given.eos = tokenizer_token_text(tokenizer, tokenizer_eos(tokenizer), &given.eos_size);
    }
    return given;
}

void chat_template_destroy(struct chat_template *chat)
{
    if (chat == NULL) {
        return;
    }
    jinja_destroy(chat->jinja);
    free(chat->bos);
    free(chat->eos);
    free(chat);
}

static struct chat_template *template_create(const char *jinja, size_t size, const struct chat_given *given,
                                             struct err *err)
{
    struct chat_template *chat = calloc(1, sizeof(*chat));
    if (chat != NULL) {
        chat->bos = given->bos != NULL ? strndup(given->bos, given->bos_size) : NULL;
        chat->eos = given->eos != NULL ? strndup(given->eos, given->eos_size) : NULL;
    }
    if (chat == NULL || (given->bos != NULL && chat->bos == NULL) ||
        (given->eos != NULL && chat->eos == NULL)) {
        chat_template_destroy(chat);
        err_set(err, ERR_NOMEM, "out of memory for a chat template");
        return NULL;
    }
    if (jinja_parse(jinja, size, &chat->jinja, err) < 0) {
        chat_template_destroy(chat);
        return NULL;
    }
    return chat;
}

/* ---- a template by its parts, as Jinja ---- */

/* text[0..size) as a Jinja literal. */
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

static size_t size_without_blanks(const char *text, size_t size);

/* A turn of a role around 'content' (an expression). What an assistant writes and its end marker, without the
 * white space behind, is what it generates. */
static int put_turn(struct buf *out, const char *form, const char *content, bool generated, struct err *err)
{
    const char *mark = strstr(form, content_mark);
    const char *tail = mark + sizeof(content_mark) - 1;
    const size_t marker = size_without_blanks(tail, strlen(tail));
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
    if (parts->default_system == NULL) {
        return 0;
    }
    struct buf content = {.limit = PART_BYTES_MAX};
    int status = put_literal(&content, parts->default_system, strlen(parts->default_system), err);
    if (status == 0 && parts->trim) {
        status = buf_text(&content, " | trim", err);
    }
    if (status == 0) {
        status = buf_text(out, "{% if messages[0]['role'] != 'system' %}", err);
    }
    if (status == 0) {
        status = put_turn(out, parts->turns[ROLE_SYSTEM], buf_str(&content), false, err);
    }
    buf_fini(&content);
    return status < 0 ? -1 : buf_text(out, "{% endif %}", err);
}

static int put_parts(struct buf *out, const struct parts *parts, struct err *err)
{
    const char *content = parts->trim ? "message['content'] | trim" : "message['content']";
    if (buf_text(out, "{{ ", err) < 0 || put_literal(out, parts->begin, strlen(parts->begin), err) < 0 ||
        buf_text(out, " }}", err) < 0 || put_default_system(out, parts, err) < 0 ||
        buf_text(out, "{% for message in messages %}{% if false %}", err) < 0) {
        return -1;
    }
    for (int role = 0; role < ROLE_COUNT; role++) {
        if (parts->turns[role] != NULL &&
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
    if (put_parts(&jinja, parts, err) == 0) {
        chat = template_create(buf_str(&jinja), jinja.size, given, err);
    }
    buf_fini(&jinja);
    return chat;
}

/* One text of a template object into *out. */
static void part_read(struct json_reader *r, const char *key, enum jr_need need, bool content,
                      const char **out)
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
    *out = text;
}

static struct chat_template *custom_create(const json_t *object, const struct chat_given *given,
                                           struct err *err)
{
    struct parts parts = {.name = "custom", .begin = "", .generation = ""};
    struct json_reader r;
    jr_init(&r, object, "data.chat_template", err);
    part_read(&r, "begin", JR_OPTIONAL, false, &parts.begin);
    part_read(&r, "system", JR_OPTIONAL, true, &parts.turns[ROLE_SYSTEM]);
    part_read(&r, "user", JR_REQUIRED, true, &parts.turns[ROLE_USER]);
    part_read(&r, "assistant", JR_REQUIRED, true, &parts.turns[ROLE_ASSISTANT]);
    part_read(&r, "generation", JR_OPTIONAL, false, &parts.generation);
    part_read(&r, "default_system", JR_OPTIONAL, false, &parts.default_system);
    jr_bool(&r, "trim", JR_OPTIONAL, &parts.trim);
    if (!r.failed && parts.default_system != NULL && parts.turns[ROLE_SYSTEM] == NULL) {
        jr_fail(&r, "default_system", "needs system");
    }
    return jr_finish(&r) < 0 ? NULL : parts_create(&parts, given, err);
}

/* The model's own. */
static struct chat_template *own_create(const struct chat_given *given, struct err *err)
{
    if (given->template == NULL) {
        err_set(err, ERR_UNSUPPORTED, "the model has no chat template%s", how_to_give);
        return NULL;
    }
    struct err why = {0};
    struct chat_template *chat = template_create(given->template, strlen(given->template), given, &why);
    if (chat == NULL) {
        err_set(err, why.code, "the model's chat template: %s%s", why.text,
                why.code == ERR_NOMEM ? "" : how_to_give);
    }
    return chat;
}

int chat_template_choose(const json_t *choice, const struct chat_given *given, struct chat_template **chat,
                         struct err *err)
{
    const char *name = json_string_value(choice);
    const char *own = given->template != NULL ? given->template : "";
    const bool own_chatml = strstr(own, "<|im_start|>") != NULL && strstr(own, "<|im_end|>") != NULL;
    const bool chatml = name != NULL && strcmp(name, "chatml") == 0;
    if (choice == NULL || json_is_null(choice) || (name != NULL && strcmp(name, "auto") == 0) ||
        (chatml && own_chatml)) {
        *chat = own_create(given, err);
    } else if (json_is_object(choice)) {
        *chat = custom_create(choice, given, err);
    } else if (name != NULL && strcmp(name, "chatml-plain") == 0) {
        *chat = parts_create(family_find("chatml"), given, err);
    } else if (name != NULL && family_find(name) != NULL) {
        *chat = parts_create(family_find(name), given, err);
    } else {
        *chat = NULL;
        err_set(err, ERR_INVALID, "data.chat_template: \"%.60s\" is not one of auto, %s, or an object",
                name != NULL ? name : "", known_names);
    }
    return *chat != NULL ? 0 : -1;
}

/* ---- rendering ---- */

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
            !utf8_is_blank(code)) {
            break;
        }
        size = at;
    }
    return size;
}

/* The names that a template is rendered with, as transformers gives them. Returns new, or NULL. */
static json_t *names_of(const struct chat_template *chat, const struct chat_message *messages, size_t count,
                        bool add_generation, struct err *err)
{
    json_t *list = json_array();
    for (size_t i = 0; list != NULL && i < count; i++) {
        if (json_array_append_new(list, json_pack("{s:s, s:s}", "role", messages[i].role, "content",
                                                  messages[i].content)) < 0) {
            json_decref(list);
            err_set(err, ERR_INVALID, "messages[%zu]: is not valid UTF-8, or memory is short", i);
            return NULL;
        }
    }
    json_t *names = json_pack("{s:o, s:b, s:n, s:n}", "messages", list, "add_generation_prompt",
                              add_generation, "tools", "documents");
    if (names == NULL ||
        (chat->bos != NULL && json_object_set_new(names, "bos_token", json_string(chat->bos)) < 0) ||
        (chat->eos != NULL && json_object_set_new(names, "eos_token", json_string(chat->eos)) < 0)) {
        json_decref(names);
        err_set(err, ERR_NOMEM, "out of memory for a conversation");
        return NULL;
    }
    return names;
}

static int render(const struct chat_template *chat, const struct chat_message *messages, size_t count,
                  bool add_generation, struct buf *text, struct jinja_marks *marks, struct err *err)
{
    json_t *names = names_of(chat, messages, count, add_generation, err);
    const int status = names != NULL ? jinja_render(chat->jinja, names, day_s, text, marks, err) : -1;
    json_decref(names);
    return status < 0 ? err_wrap(err, "the chat template") : 0;
}

static size_t common_size(const char *a, size_t a_size, const char *b, size_t b_size)
{
    size_t same = 0;
    while (same < a_size && same < b_size && a[same] == b[same]) {
        same++;
    }
    return same;
}

/* What a template writes when an answer is asked for behind some turns, to know the head of an assistant's
 * turn by. */
struct asking {
    struct buf text;
    size_t same;      /* bytes at its beginning that are there without being asked, too */
    bool grows;       /* all of what is there without is */
    struct buf other; /* where asking adds nothing: the conversation with other answers */
    struct jinja_marks marks;
    size_t mark; /* of its answers, the next */
};

static void asking_fini(struct asking *asking)
{
    buf_fini(&asking->text);
    buf_fini(&asking->other);
    jinja_marks_fini(&asking->marks);
}

static bool is_assistant(const struct chat_message *messages, const struct jinja_mark *mark)
{
    return mark->message >= 0 && strcmp(messages[mark->message].role, role_names[ROLE_ASSISTANT]) == 0;
}

/* The same conversation with answers that begin otherwise: what both begin with is no answer. */
static void other_render(const struct chat_template *chat, const struct chat_message *messages, size_t count,
                         struct asking *asking)
{
    struct err none = {0};
    struct chat_message *others = malloc(count * sizeof(*others));
    for (size_t i = 0; others != NULL && i < count; i++) {
        const bool answer = strcmp(messages[i].role, role_names[ROLE_ASSISTANT]) == 0;
        others[i] =
            (struct chat_message){.role = messages[i].role, .content = answer ? "\x02" : messages[i].content};
    }
    if (others == NULL || render(chat, others, count, false, &asking->other, &asking->marks, &none) < 0) {
        buf_clear(&asking->other);
        asking->marks.count = 0;
    }
    free(others);
}

/* Ask behind the conversation up to its first answer; an empty text when that cannot be rendered. */
static void asking_render(const struct chat_template *chat, const struct chat_message *messages, size_t count,
                          struct asking *asking)
{
    struct err none = {0};
    struct buf without = {.limit = CHAT_RENDERED_MAX};
    size_t turns = 0;
    while (turns < count && strcmp(messages[turns].role, role_names[ROLE_ASSISTANT]) != 0) {
        turns++;
    }
    turns = turns == 0 ? count : turns;
    if (render(chat, messages, turns, false, &without, NULL, &none) == 0 &&
        render(chat, messages, turns, true, &asking->text, NULL, &none) == 0) {
        asking->same =
            common_size(buf_str(&asking->text), asking->text.size, buf_str(&without), without.size);
        asking->grows = asking->same == without.size;
    }
    buf_fini(&without);
    if (asking->same == asking->text.size) {
        other_render(chat, messages, count, asking);
    }
}

/* Bytes at the beginning of what was written at an assistant's message that are the head of its turn: the end
 * of what is written when asked. That end may begin a little before the texts differ, since what is written
 * without being asked may begin alike (a marker's "<"). */
static size_t head_size(struct asking *asking, const struct chat_message *messages, const char *part,
                        size_t size)
{
    enum { ALIKE_MAX = 64 };
    const char *text = buf_str(&asking->text);
    const size_t all = asking->text.size;
    if (asking->same == all) { /* spaces before an answer are part of its first token */
        while (asking->mark < asking->marks.count &&
               !is_assistant(messages, &asking->marks.items[asking->mark])) {
            asking->mark++;
        }
        if (asking->mark == asking->marks.count) {
            return 0;
        }
        const struct jinja_mark *mark = &asking->marks.items[asking->mark++];
        size_t head = common_size(buf_str(&asking->other) + mark->begin, mark->end - mark->begin, part, size);
        while (head > 0 && part[head - 1] == ' ') {
            head--;
        }
        return head;
    }
    for (size_t back = 0; back <= ALIKE_MAX && back <= asking->same; back++) {
        const size_t from = asking->same - back;
        if (common_size(text + from, all - from, part, size) == all - from) {
            return all - from;
        }
    }
    return asking->grows ? common_size(text + asking->same, all - asking->same, part, size) : 0;
}

/* Where spans go. */
struct span_list {
    struct chat_span *spans;
    size_t count, room, end; /* end: of what is covered */
};

/* Learn [begin, end), which lies behind what is covered. */
static int span_learn(struct span_list *list, size_t begin, size_t end, struct err *err)
{
    if (end <= begin) {
        return 0;
    }
    if (list->room - list->count < 3) {
        return err_set(err, ERR_UNSUPPORTED,
                       "the chat template writes an assistant's turns in too many parts");
    }
    if (begin > list->end) {
        list->spans[list->count++] = (struct chat_span){.begin = list->end, .end = begin};
    }
    list->spans[list->count++] = (struct chat_span){.begin = begin, .end = end, .learn = true};
    list->end = end;
    return 0;
}

/* Spans from marks: what the template itself calls generated; else what it writes at an assistant's message,
 * behind the head that is given to it when asked and without white space at the end. */
static int spans_fill(const struct chat_template *chat, const struct chat_message *messages, size_t count,
                      const char *text, size_t begin, const struct jinja_marks *marks, struct span_list *list,
                      struct err *err)
{
    struct asking asking = {.text = {.limit = CHAT_RENDERED_MAX}, .other = {.limit = CHAT_RENDERED_MAX}};
    bool generation = false;
    bool answered = false;
    bool found = false;
    for (size_t i = 0; i < marks->count; i++) {
        generation = generation || marks->items[i].generation;
    }
    for (size_t i = 0; i < count; i++) {
        const size_t size = strlen(messages[i].content);
        answered = answered || (strcmp(messages[i].role, role_names[ROLE_ASSISTANT]) == 0 &&
                                size_without_blanks(messages[i].content, size) > 0);
    }
    if (!generation && answered) {
        asking_render(chat, messages, count, &asking);
    }
    int status = 0;
    for (size_t i = 0; i < marks->count && status == 0; i++) {
        const struct jinja_mark *mark = &marks->items[i];
        if (generation ? !mark->generation : !is_assistant(messages, mark)) {
            continue;
        }
        const char *part = text + begin + mark->begin;
        const size_t size = size_without_blanks(part, mark->end - mark->begin);
        const size_t skip = generation ? 0 : head_size(&asking, messages, part, size);
        found = true;
        status = span_learn(list, begin + mark->begin + skip, begin + mark->begin + size, err);
    }
    asking_fini(&asking);
    if (status == 0 && answered && !found) {
        return err_set(
            err, ERR_UNSUPPORTED,
            "the chat template does not write an assistant's turn in a loop over messages, so that what is "
            "to be learnt cannot be told; data.learn: all needs it not");
    }
    return status;
}

/* Most templates write any role, so that a data set's "human" would be nobody's turn without a word. */
static bool is_role(const char *role)
{
    static const char *const others[] = {"developer", "tool", "function", "ipython", "tool_results"};
    bool known = false;
    for (int i = 0; i < ROLE_COUNT; i++) {
        known = known || strcmp(role_names[i], role) == 0;
    }
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        known = known || strcmp(others[i], role) == 0;
    }
    return known;
}

int chat_render(const struct chat_template *chat, const struct chat_message *messages, size_t count,
                bool add_generation, struct buf *text, struct chat_span *spans, size_t *span_count,
                struct err *err)
{
    if (count == 0 || count > CHAT_MESSAGES_MAX) {
        return err_set(err, ERR_INVALID, "messages: a conversation has 1 to %d messages, not %zu",
                       CHAT_MESSAGES_MAX, count);
    }
    for (size_t i = 0; i < count; i++) {
        if (!is_role(messages[i].role)) {
            return err_set(
                err, ERR_INVALID,
                "messages[%zu].role: \"%.40s\" is none of system, developer, user, assistant, tool, "
                "function, ipython, tool_results",
                i, messages[i].role);
        }
    }
    const size_t begin = text->size;
    struct jinja_marks marks = {0};
    struct span_list list = {.spans = spans, .room = 2 * count + 3, .end = begin};
    int status = render(chat, messages, count, add_generation, text, spans != NULL ? &marks : NULL, err);
    if (status == 0 && spans != NULL) {
        status = spans_fill(chat, messages, count, buf_str(text), begin, &marks, &list, err);
    }
    jinja_marks_fini(&marks);
    if (status < 0) {
        text->size = begin;
        return -1;
    }
    if (spans != NULL && text->size > list.end) {
        spans[list.count++] = (struct chat_span){.begin = list.end, .end = text->size};
    }
    if (span_count != NULL) {
        *span_count = list.count;
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
