/* Renders a conversation and determines which parts of it are learnt. */
#include "model/templates/chat_head.h"
#include "model/templates/chat_private.h"

#include <stdlib.h>
#include <string.h>

#include "model/text/utf8.h"

size_t chat_size_without_blanks(const char *text, size_t size)
{
    while (size > 0) {
        size_t at = size - 1;
        while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80)
            at--;
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

/* ---- keys of a message that exclude it from learning ---- */

static const char assistant[] = "assistant";

static const char *role_of(const json_t *messages, size_t index)
{
    return json_string_value(json_object_get(json_array_get(messages, index), "role"));
}

/* The keys by which people say whether an assistant's message is learnt: `weight` is OpenAI's (0 or 1),
 * `train` and `training` are axolotl's, `loss` is ms-swift's (true or false). */
static const char *const switches[] = {"weight", "train", "training", "loss"};

int chat_message_learn(const json_t *message, size_t index, bool *learn, struct err *err)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    *learn = role != NULL && strcmp(role, assistant) == 0;
    const bool may = *learn;
    const json_t *part = json_object_get(message, "train_detail");
    if (part && !json_is_null(part)) {
        return err_set(err, ERR_UNSUPPORTED,
                       "messages[%zu].train_detail: parts of a message cannot be left out of what is learnt; "
                       "give train: true or false for the whole",
                       index);
    }
    for (size_t i = 0; i < sizeof(switches) / sizeof(switches[0]); i++) {
        const json_t *value = json_object_get(message, switches[i]);
        const bool number = i == 0 && json_is_number(value);
        if (!value || json_is_null(value))
            continue;
        if (!json_is_boolean(value) &&
            !(number && (json_number_value(value) == 0 || json_number_value(value) == 1))) {
            return err_set(err, ERR_UNSUPPORTED, "messages[%zu].%s: must be %s", index, switches[i],
                           i == 0 ? "0 or 1: a message is learnt or not, there are no weights between"
                                  : "true or false");
        }
        const bool on = number ? json_number_value(value) == 1 : json_is_true(value);
        if (on && !may) {
            return err_set(
                err, ERR_UNSUPPORTED,
                "messages[%zu].%s: is set for the role \"%.40s\", but only what an assistant says is "
                "learnt; leave it out",
                index, switches[i], role ? role : "");
        }
        *learn = *learn && on;
    }
    return 0;
}

int chat_messages_mute(const json_t *messages, bool *mute, struct err *err)
{
    *mute = false;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        const char *role = json_string_value(json_object_get(message, "role"));
        bool learn;
        if (chat_message_learn(message, i, &learn, err) < 0)
            return -1;
        *mute = *mute || (!learn && role != NULL && strcmp(role, assistant) == 0);
    }
    return 0;
}

/* Only messages of the role `assistant` are learnt. Other names such as "gpt" are refused, since most
 * templates write any role and the message would silently not be learnt. */
static int roles_check(const json_t *messages, struct err *err)
{
    static const char *const others[] = {"gpt", "model",   "bot",  "chatbot",
                                         "ai",  "chatgpt", "bard", "function_call"};
    for (size_t i = 0; i < json_array_size(messages); i++) {
        for (size_t k = 0; k < sizeof(others) / sizeof(others[0]); k++) {
            if (strcmp(role_of(messages, i), others[k]) == 0) {
                return err_set(err, ERR_INVALID,
                               "messages[%zu].role: \"%s\" would not be learnt: the chat template has no {%% "
                               "generation %%}, so that only the role \"assistant\" is; write that, or give "
                               "data.format: sharegpt where messages have from and value",
                               i, others[k]);
            }
        }
    }
    return 0;
}

static bool chat_learn_is_assistant(const json_t *messages, const struct jinja_mark *mark)
{
    return mark->message >= 0 && strcmp(role_of(messages, (size_t)mark->message), assistant) == 0;
}

/* ---- spans ---- */

/* Appends a span. An empty span is omitted unless it is a {% generation %} block. */
static int span_add(struct chat_spans *spans, size_t begin, size_t end, enum chat_part part, struct err *err)
{
    if (end < begin || (end == begin && (!spans->touching || part == CHAT_GIVEN)))
        return 0;
    if (spans->count == spans->capacity) {
        const size_t capacity = spans->capacity == 0 ? 16 : 2 * spans->capacity;
        struct chat_span *items = realloc(spans->items, capacity * sizeof(*items));
        if (!items)
            return err_set(err, ERR_NOMEM, "out of memory for a conversation");
        spans->items = items;
        spans->capacity = capacity;
    }
    spans->items[spans->count++] = (struct chat_span){.begin = begin, .end = end, .part = part};
    return 0;
}

/* Appends [begin, end) as an answer, and the text between the last answer and this one as CHAT_GIVEN. */
static int span_answer(struct chat_spans *spans, size_t *covered, size_t begin, size_t end, bool learn,
                       struct err *err)
{
    if (end < begin || (end == begin && !spans->touching))
        return 0;
    if (span_add(spans, *covered, begin, CHAT_GIVEN, err) < 0 ||
        span_add(spans, begin, end, learn ? CHAT_LEARNT : CHAT_MUTED, err) < 0) {
        return -1;
    }
    *covered = end;
    return 0;
}

/* ---- assistants' messages that are written outside the loop over messages ---- */

static bool chat_learn_contains(const char *text, size_t size, const json_t *content)
{
    const char *wanted = json_string_value(content);
    size_t length = chat_size_without_blanks(wanted, json_string_length(content));
    for (; length > 0 && strchr(" \t\r\n", *wanted); length--)
        wanted++;
    return length == 0 || (size >= length && memmem(text, size, wanted, length));
}

/* Returns true if messages[index] has no content, or if the text written for it contains its content. */
static bool is_in_place(const json_t *messages, size_t index, const char *text,
                        const struct jinja_marks *marks)
{
    const json_t *message = json_array_get(messages, index);
    const json_t *content = json_object_get(message, "content");
    if (json_object_get(message, "tool_calls") || (content && !json_is_string(content)))
        return false;
    for (size_t i = 0; i < marks->count; i++) {
        const struct jinja_mark *mark = &marks->items[i];
        if (mark->message == (int32_t)index &&
            chat_learn_contains(text + mark->begin, mark->end - mark->begin, content))
            return true;
    }
    return json_string_length(content) == 0;
}

/* Returns a new copy of the message with another content and other arguments of its tool calls, or NULL. */
static json_t *message_otherwise(const json_t *message)
{
    json_t *other = json_deep_copy(message);
    json_t *content = json_object_get(other, "content");
    json_t *call;
    size_t i;
    if (!other || json_is_null(content))
        return other;
    if (content && (!json_is_string(content) || json_string_length(content) > 0))
        json_object_set_new(other, "content", json_string("\x02"));
    json_array_foreach (json_object_get(other, "tool_calls"), i, call) {
        json_t *function = json_object_get(call, "function");
        json_object_set_new(function ? function : call, "arguments",
                            json_is_string(json_object_get(function ? function : call, "arguments"))
                                ? json_string("\x02")
                                : json_pack("{s:s}", "\x02", "\x02"));
    }
    return other;
}

/* Appends the parts of the text that were not written for an assistant's message. */
static int rest_put(struct buf *out, const json_t *messages, const char *text,
                    const struct jinja_marks *marks, struct err *err)
{
    for (size_t i = 0; i < marks->count; i++) {
        const struct jinja_mark *mark = &marks->items[i];
        if (!chat_learn_is_assistant(messages, mark) &&
            buf_append(out, text + mark->begin, mark->end - mark->begin, err) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Returns true if the text outside assistants' messages stays the same when their contents change, or if the
 * template cannot render other contents. */
static bool rest_stays(const struct chat_rendering *r)
{
    const json_t *messages = r->messages;
    struct buf other = {.limit = CHAT_RENDERED_MAX}, before = {.limit = CHAT_RENDERED_MAX};
    struct buf after = {.limit = CHAT_RENDERED_MAX};
    struct jinja_marks other_marks = {0};
    struct err none = {0};
    json_t *others = json_array();
    bool same = true;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i);
        json_array_append_new(others, strcmp(role_of(messages, i), assistant) == 0
                                          ? message_otherwise(message)
                                          : json_incref(message));
    }
    if (json_array_size(others) == json_array_size(messages) &&
        chat_render_names(r->chat, others, r->rest, r->add_generation, &other, &other_marks, &none) == 0 &&
        rest_put(&before, messages, r->text, &r->marks, &none) == 0 &&
        rest_put(&after, others, buf_str(&other), &other_marks, &none) == 0) {
        same = before.size == after.size &&
               (before.size == 0 || memcmp(before.data, after.data, before.size) == 0);
    }
    json_decref(others);
    jinja_marks_fini(&other_marks);
    buf_fini(&other);
    buf_fini(&before);
    buf_fini(&after);
    return same;
}

/* Refuses with ERR_UNSUPPORTED a template that writes an assistant's content outside the range of its
 * message. A message that the template omits, for example when it shortens the conversation, is accepted. */
static int place_check(const struct chat_rendering *r, struct err *err)
{
    const size_t count = json_array_size(r->messages);
    size_t first = 0;
    while (first < count && (strcmp(role_of(r->messages, first), assistant) != 0 ||
                             is_in_place(r->messages, first, r->text, &r->marks))) {
        first++;
    }
    return first == count || rest_stays(r)
               ? 0
               : err_set(err, ERR_UNSUPPORTED,
                         "the chat template does not write messages[%zu], an assistant's turn, in its place "
                         "in a loop "
                         "over messages, so that what is to be learnt cannot be told; data.learn: all needs "
                         "it not",
                         first);
}

/* ---- what is learnt ---- */

/* Fills the spans for a template without {% generation %}: an answer is the text written for an assistant's
 * message, behind the head that add_generation_prompt writes and without white space at the end. */
static int turns_fill(const struct chat_rendering *r, struct chat_spans *spans, size_t *covered, bool *seen,
                      struct err *err)
{
    struct chat_heads *heads = NULL;
    int status = chat_heads_create(r, &heads, err);
    for (size_t i = 0; i < r->marks.count && status == 0; i++) {
        const struct jinja_mark *mark = &r->marks.items[i];
        const size_t size = chat_size_without_blanks(r->text + mark->begin, mark->end - mark->begin);
        const size_t index = (size_t)mark->message;
        size_t head = 0;
        bool learn = false;
        if (!chat_learn_is_assistant(r->messages, mark))
            continue;
        if (!seen[index] && chat_head_size(heads, index, mark->begin, size, &head, err) < 0) {
            status = -1;
            break;
        }
        seen[index] = true;
        status = chat_message_learn(json_array_get(r->messages, index), index, &learn, err);
        if (status == 0) {
            status = span_answer(spans, covered, r->begin + mark->begin + head, r->begin + mark->begin + size,
                                 learn, err);
        }
    }
    chat_heads_destroy(heads);
    return status;
}

/* Fills the spans for a template with {% generation %}: answers are the texts inside it. */
static int generation_fill(const struct chat_rendering *r, bool mute, struct chat_spans *spans,
                           size_t *covered, struct err *err)
{
    spans->touching = true;
    for (size_t i = 0; i < r->marks.count; i++) {
        const struct jinja_mark *mark = &r->marks.items[i];
        const size_t index = (size_t)mark->message;
        bool learn = true;
        if (!mark->generation)
            continue;
        if (mute && mark->message < 0) {
            return err_set(err, ERR_UNSUPPORTED,
                           "the chat template has {%% generation %%} outside a loop over messages, so that a "
                           "message's weight or train cannot be honoured");
        }
        if ((mute && chat_learn_is_assistant(r->messages, mark) &&
             chat_message_learn(json_array_get(r->messages, index), index, &learn, err) < 0) ||
            span_answer(spans, covered, r->begin + mark->begin, r->begin + mark->end, learn, err) < 0) {
            return -1;
        }
    }
    return 0;
}

static int chat_learn(const struct chat_rendering *r, bool mute, struct chat_spans *spans, struct err *err)
{
    const bool of_tools = r->chat->tool_use && chat_rest_chosen(r->rest).tools;
    const bool generation = of_tools ? r->chat->tool_use_generation : r->chat->generation;
    size_t covered = r->begin;
    int status;
    spans->count = 0;
    spans->touching = false;
    if (generation) {
        status = generation_fill(r, mute, spans, &covered, err);
    } else {
        bool *seen = calloc(json_array_size(r->messages), sizeof(*seen));
        status = !seen ? err_set(err, ERR_NOMEM, "out of memory for a conversation")
                       : roles_check(r->messages, err);
        if (status == 0)
            status = turns_fill(r, spans, &covered, seen, err);
        if (status == 0)
            status = place_check(r, err);
        free(seen);
    }
    return status < 0 ? -1 : span_add(spans, covered, r->begin + r->size, CHAT_GIVEN, err);
}

static int objects_check(const json_t *list, const char *what, struct err *err)
{
    if (!list || json_is_null(list))
        return 0;
    if (!json_is_array(list))
        return err_set(err, ERR_INVALID, "%s: must be a list of objects", what);
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_is_object(json_array_get(list, i)))
            return err_set(err, ERR_INVALID, "%s[%zu]: must be an object", what, i);
    return 0;
}

static int kwargs_check(const json_t *kwargs, struct err *err)
{
    const char *key;
    json_t *value;
    if (kwargs && !json_is_null(kwargs) && !json_is_object(kwargs))
        return err_set(err, ERR_INVALID, "chat_template_kwargs: must be an object");
    json_object_foreach ((json_t *)(uintptr_t)kwargs, key, value) {
        if (chat_is_argument(key)) {
            return err_set(
                err, ERR_UNSUPPORTED,
                "chat_template_kwargs.%.60s: is an argument of apply_chat_template that rows cannot "
                "set; leave it out",
                key);
        }
    }
    return 0;
}

void chat_spans_fini(struct chat_spans *spans)
{
    free(spans->items);
    *spans = (struct chat_spans){0};
}

int chat_render(const struct chat_template *chat, const json_t *messages, const struct chat_rest *rest,
                bool add_generation, struct buf *text, struct chat_spans *spans, struct err *err)
{
    static const struct chat_rest none = {0};
    struct chat_rendering r = {
        .chat = chat, .rest = rest ? rest : &none, .add_generation = add_generation, .begin = text->size};
    const struct chat_rest chosen = chat_rest_chosen(r.rest);
    bool mute = false;
    if (kwargs_check(r.rest->kwargs, err) < 0 || objects_check(chosen.tools, "tools", err) < 0 ||
        objects_check(chosen.documents, "documents", err) < 0) {
        return -1;
    }
    json_t *normal = chat_messages_normal(messages, err);
    r.messages = normal;
    int status = normal ? chat_messages_mute(normal, &mute, err) : -1;
    if (status == 0)
        status = chat_render_names(chat, normal, r.rest, add_generation, text, spans ? &r.marks : NULL, err);
    if (status == 0 && spans) {
        r.text = buf_str(text) + r.begin;
        r.size = text->size - r.begin;
        status = chat_learn(&r, mute, spans, err);
    }
    jinja_marks_fini(&r.marks);
    json_decref(normal);
    if (status < 0)
        text->size = r.begin;
    return status;
}
