/* Rendering a conversation and telling what of it is learnt. */
#include "model/chat_head.h"
#include "model/chat_private.h"

#include <stdlib.h>
#include <string.h>

#include "model/utf8.h"

size_t chat_size_without_blanks(const char *text, size_t size)
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

/* ---- what a message says of itself ---- */

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
    if (part != NULL && !json_is_null(part)) {
        return err_set(err, ERR_UNSUPPORTED,
                       "messages[%zu].train_detail: parts of a message cannot be left out of what is learnt; "
                       "give train: true or false for the whole",
                       index);
    }
    for (size_t i = 0; i < sizeof(switches) / sizeof(switches[0]); i++) {
        const json_t *value = json_object_get(message, switches[i]);
        const bool number = i == 0 && json_is_number(value);
        if (value == NULL || json_is_null(value)) {
            continue;
        }
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
                index, switches[i], role != NULL ? role : "");
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
        if (chat_message_learn(message, i, &learn, err) < 0) {
            return -1;
        }
        *mute = *mute || (!learn && role != NULL && strcmp(role, assistant) == 0);
    }
    return 0;
}

/* Labels are given by the role `assistant`. A data set's "gpt", which most templates write as they write any
 * role, would be nobody's turn without a word. */
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

static bool is_assistant(const json_t *messages, const struct jinja_mark *mark)
{
    return mark->message >= 0 && strcmp(role_of(messages, (size_t)mark->message), assistant) == 0;
}

/* ---- spans ---- */

static int span_add(struct chat_spans *spans, size_t begin, size_t end, enum chat_part part, struct err *err)
{
    if (end <= begin) {
        return 0;
    }
    if (spans->count == spans->capacity) {
        const size_t capacity = spans->capacity == 0 ? 16 : 2 * spans->capacity;
        struct chat_span *items = realloc(spans->items, capacity * sizeof(*items));
        if (items == NULL) {
            return err_set(err, ERR_NOMEM, "out of memory for a conversation");
        }
        spans->items = items;
        spans->capacity = capacity;
    }
    spans->items[spans->count++] = (struct chat_span){.begin = begin, .end = end, .part = part};
    return 0;
}

/* [begin, end) is an answer, and what lies before it and behind the last is not. */
static int span_answer(struct chat_spans *spans, size_t *covered, size_t begin, size_t end, bool learn,
                       struct err *err)
{
    if (end <= begin) {
        return 0;
    }
    if (span_add(spans, *covered, begin, CHAT_GIVEN, err) < 0 ||
        span_add(spans, begin, end, learn ? CHAT_LEARNT : CHAT_MUTED, err) < 0) {
        return -1;
    }
    *covered = end;
    return 0;
}

/* ERR_UNSUPPORTED when the text tells of an assistant's turn that no mark does. A turn that the template
 * leaves out of the text (of a conversation it cuts, say) is none of these. */
static int unmarked_check(const struct chat_template *chat, const json_t *messages,
                          const struct chat_rest *rest, const struct buf *text, size_t begin,
                          const bool *seen, struct err *err)
{
    size_t unseen = json_array_size(messages);
    for (size_t i = json_array_size(messages); i-- > 0;) {
        unseen = strcmp(role_of(messages, i), assistant) == 0 && !seen[i] ? i : unseen;
    }
    if (unseen == json_array_size(messages)) {
        return 0;
    }
    struct buf other = {.limit = CHAT_RENDERED_MAX};
    struct err none = {0};
    json_t *others = chat_answered_otherwise(messages, seen);
    const bool same =
        others != NULL && chat_render_names(chat, others, rest, false, &other, NULL, &none) == 0 &&
        other.size == text->size - begin && memcmp(buf_str(&other), buf_str(text) + begin, other.size) == 0;
    json_decref(others);
    buf_fini(&other);
    return same ? 0
                : err_set(
                      err, ERR_UNSUPPORTED,
                      "the chat template does not write messages[%zu], an assistant's turn, in a loop over "
                      "messages, so that what is to be learnt cannot be told; data.learn: all needs it not",
                      unseen);
}

/* Without {% generation %}: what the template writes at an assistant's message, behind the head that is given
 * to it when asked and without white space at the end. */
static int turns_fill(const struct chat_template *chat, const json_t *messages, const struct chat_rest *rest,
                      const struct buf *text, size_t begin, const struct jinja_marks *marks,
                      struct chat_spans *spans, size_t *covered, bool *seen, struct err *err)
{
    struct chat_heads *heads = NULL;
    int status =
        chat_heads_create(chat, messages, rest, buf_str(text) + begin, text->size - begin, &heads, err);
    for (size_t i = 0; i < marks->count && status == 0; i++) {
        const struct jinja_mark *mark = &marks->items[i];
        const char *part = buf_str(text) + begin + mark->begin;
        const size_t size = chat_size_without_blanks(part, mark->end - mark->begin);
        const size_t index = (size_t)mark->message;
        size_t head = 0;
        bool learn = false;
        if (!is_assistant(messages, mark)) {
            continue;
        }
        if (!seen[index] && chat_head_size(heads, index, mark->begin, size, &head, err) < 0) {
            status = -1;
            break;
        }
        seen[index] = true;
        status = chat_message_learn(json_array_get(messages, index), index, &learn, err);
        if (status == 0) {
            status = span_answer(spans, covered, begin + mark->begin + head, begin + mark->begin + size,
                                 learn, err);
        }
    }
    chat_heads_destroy(heads);
    return status;
}

/* With {% generation %}: what stands in it. */
static int generation_fill(const json_t *messages, size_t begin, const struct jinja_marks *marks, bool mute,
                           struct chat_spans *spans, size_t *covered, struct err *err)
{
    spans->touching = true;
    for (size_t i = 0; i < marks->count; i++) {
        const struct jinja_mark *mark = &marks->items[i];
        bool learn = true;
        if (!mark->generation) {
            continue;
        }
        if (mute && mark->message < 0) {
            return err_set(err, ERR_UNSUPPORTED,
                           "the chat template has {%% generation %%} outside a loop over messages, so that a "
                           "message's weight or train cannot be honoured");
        }
        if (mute && is_assistant(messages, mark) &&
            chat_message_learn(json_array_get(messages, (size_t)mark->message), (size_t)mark->message, &learn,
                               err) < 0) {
            return -1;
        }
        if (span_answer(spans, covered, begin + mark->begin, begin + mark->end, learn, err) < 0) {
            return -1;
        }
    }
    return 0;
}

static int chat_learn(const struct chat_template *chat, const json_t *messages, const struct chat_rest *rest,
                      const struct buf *text, size_t begin, const struct jinja_marks *marks,
                      struct chat_spans *spans, struct err *err)
{
    const bool of_tools = chat->tool_use != NULL && chat_rest_chosen(rest).tools != NULL;
    const bool generation = of_tools ? chat->tool_use_generation : chat->generation;
    size_t covered = begin;
    bool mute = false;
    int status = chat_messages_mute(messages, &mute, err);
    spans->count = 0;
    spans->touching = false;
    if (status == 0 && generation) {
        status = generation_fill(messages, begin, marks, mute, spans, &covered, err);
    } else if (status == 0) {
        bool *seen = calloc(json_array_size(messages), sizeof(*seen));
        status = seen == NULL ? err_set(err, ERR_NOMEM, "out of memory for a conversation")
                              : roles_check(messages, err);
        if (status == 0) {
            status = turns_fill(chat, messages, rest, text, begin, marks, spans, &covered, seen, err);
        }
        if (status == 0) {
            status = unmarked_check(chat, messages, rest, text, begin, seen, err);
        }
        free(seen);
    }
    return status < 0 ? -1 : span_add(spans, covered, text->size, CHAT_GIVEN, err);
}

/* ---- the whole ---- */

static int objects_check(const json_t *list, const char *what, struct err *err)
{
    if (list == NULL || json_is_null(list)) {
        return 0;
    }
    if (!json_is_array(list)) {
        return err_set(err, ERR_INVALID, "%s: must be a list of objects", what);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (!json_is_object(json_array_get(list, i))) {
            return err_set(err, ERR_INVALID, "%s[%zu]: must be an object", what, i);
        }
    }
    return 0;
}

static int kwargs_check(const json_t *kwargs, struct err *err)
{
    const char *key;
    json_t *value;
    if (kwargs != NULL && !json_is_null(kwargs) && !json_is_object(kwargs)) {
        return err_set(err, ERR_INVALID, "chat_template_kwargs: must be an object");
    }
    json_object_foreach((json_t *)(uintptr_t)kwargs, key, value)
    {
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
    const size_t begin = text->size;
    struct jinja_marks marks = {0};
    bool mute = false;
    rest = rest != NULL ? rest : &none;
    const struct chat_rest chosen = chat_rest_chosen(rest);
    if (kwargs_check(rest->kwargs, err) < 0 || objects_check(chosen.tools, "tools", err) < 0 ||
        objects_check(chosen.documents, "documents", err) < 0) {
        return -1;
    }
    json_t *normal = chat_messages_normal(messages, err);
    int status =
        normal != NULL && chat_messages_mute(normal, &mute, err) == 0
            ? chat_render_names(chat, normal, rest, add_generation, text, spans != NULL ? &marks : NULL, err)
            : -1;
    if (status == 0 && spans != NULL) {
        status = chat_learn(chat, normal, rest, text, begin, &marks, spans, err);
    }
    jinja_marks_fini(&marks);
    json_decref(normal);
    if (status < 0) {
        text->size = begin;
    }
    return status;
}
