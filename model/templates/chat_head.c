/* The beginning of an answer is found from three renderings: what the template appends when an answer is
 * requested behind the first turns (the head), what it appends when an answer is requested behind all turns
 * before this one (the prompt), and the conversation with other answers, which is equal up to where the
 * answer begins. */
#include "model/templates/chat_head.h"

#include <stdlib.h>
#include <string.h>

struct chat_heads {
    const struct chat_rendering *rendering;
    bool asked;
    struct buf asking; /* text up to the first answer, rendered with add_generation_prompt */
    size_t same; /* length of the prefix of `asking` that is also written without add_generation_prompt */
    bool answered;
    struct buf other; /* the conversation rendered with other answers, or empty */
    struct jinja_marks marks;
};

static bool chat_head_is_assistant(const json_t *messages, size_t index)
{
    return strcmp(json_string_value(json_object_get(json_array_get(messages, index), "role")), "assistant") ==
           0;
}

/* Returns a new copy of the messages in which every assistant's content is replaced, or NULL. */
static json_t *answered_otherwise(const json_t *messages)
{
    json_t *others = json_array();
    for (size_t i = 0; others && i < json_array_size(messages); i++) {
        json_t *message = chat_head_is_assistant(messages, i)
                              ? json_pack("{s:s, s:s}", "role", "assistant", "content", "\x02")
                              : json_incref(json_array_get(messages, i));
        if (json_array_append_new(others, message) < 0) {
            json_decref(others);
            others = NULL;
        }
    }
    return others;
}

int chat_heads_create(const struct chat_rendering *rendering, struct chat_heads **heads, struct err *err)
{
    *heads = calloc(1, sizeof(**heads));
    if (!*heads)
        return err_set(err, ERR_NOMEM, "out of memory for a conversation");
    (*heads)->rendering = rendering;
    (*heads)->asking.limit = CHAT_RENDERED_MAX;
    (*heads)->other.limit = CHAT_RENDERED_MAX;
    return 0;
}

void chat_heads_destroy(struct chat_heads *heads)
{
    if (!heads)
        return;
    buf_fini(&heads->asking);
    buf_fini(&heads->other);
    jinja_marks_fini(&heads->marks);
    free(heads);
}

static size_t common_size(const char *a, size_t a_size, const char *b, size_t b_size)
{
    size_t same = 0;
    while (same < a_size && same < b_size && a[same] == b[same])
        same++;
    return same;
}

/* Renders the first 'count' messages; returns false if that fails. */
static bool render_first(const struct chat_heads *heads, size_t count, bool ask, struct buf *out)
{
    struct err none = {0};
    json_t *first = json_array();
    int failed = !first || count == 0;
    for (size_t i = 0; i < count; i++)
        failed |= json_array_append(first, json_array_get(heads->rendering->messages, i));
    failed |= !failed && chat_render_names(heads->rendering->chat, first, heads->rendering->rest, ask, out,
                                           NULL, &none) < 0;
    json_decref(first);
    return !failed;
}

/* Renders the messages before the first assistant's message (message 0 is not counted as one) with and
 * without add_generation_prompt. heads->asking stays empty if that fails. */
static void chat_head_ask(struct chat_heads *heads)
{
    struct buf without = {.limit = CHAT_RENDERED_MAX};
    const size_t count = json_array_size(heads->rendering->messages);
    size_t turns = 1;
    while (turns < count && !chat_head_is_assistant(heads->rendering->messages, turns))
        turns++;
    heads->asked = true;
    if (render_first(heads, turns, false, &without) && render_first(heads, turns, true, &heads->asking)) {
        heads->same =
            common_size(buf_str(&heads->asking), heads->asking.size, buf_str(&without), without.size);
    } else {
        buf_clear(&heads->asking);
    }
    buf_fini(&without);
}

/* Returns the length of the prefix of part[0..size), the text written for messages[index], that does not
 * change when the answers change. */
static size_t alike_size(struct chat_heads *heads, size_t index, const char *part, size_t size)
{
    struct err none = {0};
    if (!heads->answered) {
        json_t *others = answered_otherwise(heads->rendering->messages);
        heads->answered = true;
        if (!others || chat_render_names(heads->rendering->chat, others, heads->rendering->rest, false,
                                         &heads->other, &heads->marks, &none) < 0) {
            buf_clear(&heads->other);
            heads->marks.count = 0;
        }
        json_decref(others);
    }
    for (size_t i = 0; i < heads->marks.count; i++) {
        const struct jinja_mark *mark = &heads->marks.items[i];
        if (mark->message >= 0 && (size_t)mark->message == index)
            return common_size(buf_str(&heads->other) + mark->begin, mark->end - mark->begin, part, size);
    }
    return 0;
}

/* Returns the size of the head if the part begins with it, else 0. The renderings with and without
 * add_generation_prompt may agree in the head's first bytes (a marker's "<"), so up to ALIKE_MAX bytes before
 * their first difference may belong to the head. */
static size_t head_first(const struct chat_heads *heads, const char *part, size_t size)
{
    enum { ALIKE_MAX = 64 };
    const char *asking = buf_str(&heads->asking);
    for (size_t back = 0; back <= ALIKE_MAX && back <= heads->same; back++) {
        const size_t from = heads->same - back;
        const size_t head = heads->asking.size - from;
        if (common_size(asking + from, head, part, size) == head)
            return head;
    }
    return 0;
}

/* Returns the length of the common prefix of the part and the head. */
static size_t head_part(const struct chat_heads *heads, const char *part, size_t size)
{
    return common_size(buf_str(&heads->asking) + heads->same, heads->asking.size - heads->same, part, size);
}

/* Returns the offset at which the last occurrence of the head in part[0..size) ends, or 0 if there is none.
 */
static size_t head_last(const struct chat_heads *heads, const char *part, size_t size)
{
    const char *head = buf_str(&heads->asking) + heads->same;
    const size_t head_size = heads->asking.size - heads->same;
    for (size_t end = size; end >= head_size && head_size > 0; end--)
        if (memcmp(part + end - head_size, head, head_size) == 0)
            return end;
    return 0;
}

int chat_head_size(struct chat_heads *heads, size_t index, size_t begin, size_t size, size_t *head,
                   struct err *err)
{
    const char *part = heads->rendering->text + begin;
    struct buf prompt = {.limit = CHAT_RENDERED_MAX};
    if (!heads->asked)
        chat_head_ask(heads);
    const bool asks = heads->asking.size > heads->same;
    if (asks && (*head = head_first(heads, part, size)) > 0)
        return 0;
    const size_t alike = alike_size(heads, index, part, size);
    if (!asks) { /* add_generation_prompt adds nothing; spaces before an answer are then part of its first
                    token */
        *head = alike;
        while (*head > 0 && part[*head - 1] == ' ')
            --*head;
        return 0;
    }
    const bool rendered = render_first(heads, index, true, &prompt);
    const size_t same =
        rendered ? common_size(buf_str(&prompt), prompt.size, heads->rendering->text, heads->rendering->size)
                 : 0;
    const bool whole = rendered && same == prompt.size;
    buf_fini(&prompt);
    if (whole && same >= begin && same <= begin + size) {
        *head = same - begin;
    } else if ((*head = head_last(heads, part, alike)) == 0 && rendered && same >= begin) {
        /* The prompt ends with text that does not stand before the answer (an empty thought, say). The answer
         * begins at the first difference, as in TRL. */
        *head = same - begin < alike ? same - begin : alike;
    } else if (*head == 0 && head_part(heads, part, size) < alike) {
        return err_set(
            err, ERR_UNSUPPORTED,
            "the chat template does not begin messages[%zu], an assistant's turn, as it asks for an "
            "answer, so that what is to be learnt cannot be told; data.learn: all needs it not",
            index);
    } else if (*head == 0) {
        *head = alike;
    }
    return 0;
}
