/* Makes the variables that transformers' apply_chat_template passes to a template, and renders with them. */
#include "model/templates/chat_private.h"

#include <string.h>

/* The names of apply_chat_template()'s own arguments, which cannot be variables of a template. */
static const char *const reserved[] = {"messages",
                                       "conversation",
                                       "chat_template",
                                       "add_generation_prompt",
                                       "continue_final_message",
                                       "tokenize",
                                       "sanitize_control_tokens",
                                       "padding",
                                       "truncation",
                                       "max_length",
                                       "return_tensors",
                                       "return_dict",
                                       "return_assistant_tokens_mask",
                                       "tokenizer_kwargs"};

bool chat_is_argument(const char *name)
{
    for (size_t i = 0; i < sizeof(reserved) / sizeof(reserved[0]); i++)
        if (strcmp(reserved[i], name) == 0)
            return true;
    return false;
}

/* Returns a new message as transformers passes it to the template, or NULL: keys whose value is null are
 * removed, and reasoning under any of its three names becomes both `thinking` and `reasoning_content`. */
static json_t *message_normal(const json_t *message)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *out = json_object();
    json_t *reasoning = NULL;
    int failed = !out;
    const char *key;
    size_t size;
    json_t *value;
    for (size_t i = 0; i < 3 && !reasoning; i++) {
        reasoning = json_object_get(message, names[i]);
        reasoning = json_is_null(reasoning) ? NULL : reasoning;
    }
    if (reasoning)
        failed |= json_object_set(out, "thinking", reasoning);
    json_object_keylen_foreach((json_t *)(uintptr_t)message, key, size, value)
    {
        failed |= json_is_null(value) ? 0 : json_object_setn(out, key, size, value);
    }
    if (reasoning)
        failed |= json_object_set(out, "reasoning_content", reasoning);
    if (failed) {
        json_decref(out);
        out = NULL;
    }
    return out;
}

json_t *chat_messages_normal(const json_t *messages, struct err *err)
{
    const size_t count = json_array_size(messages);
    if (!json_is_array(messages) || count == 0 || count > CHAT_MESSAGES_MAX) {
        err_set(err, ERR_INVALID, "messages: a conversation is a list of 1 to %d messages",
                CHAT_MESSAGES_MAX);
        return NULL;
    }
    json_t *list = json_array();
    for (size_t i = 0; list && i < count; i++) {
        const json_t *message = json_array_get(messages, i);
        if (!json_is_object(message)) {
            err_set(err, ERR_INVALID, "messages[%zu]: must be an object with role and content", i);
        } else if (!json_is_string(json_object_get(message, "role"))) {
            err_set(err, ERR_INVALID, "messages[%zu].role: %s", i,
                    !json_object_get(message, "role") ? "is missing" : "must be a text");
        } else if (json_array_append_new(list, message_normal(message)) == 0) {
            continue;
        } else {
            err_set(err, ERR_NOMEM, "out of memory for a conversation");
        }
        json_decref(list);
        return NULL;
    }
    return list;
}

/* Returns the template's variables as a new object, or NULL. */
static json_t *names_of(const struct chat_template *chat, const json_t *messages,
                        const struct chat_rest *rest, bool add_generation, struct err *err)
{
    json_t *names = json_copy(chat->special);
    int failed = !names;
    if (rest->kwargs && json_is_object(rest->kwargs))
        failed |= json_object_update(names, (json_t *)(uintptr_t)rest->kwargs);
    const struct chat_rest chosen = chat_rest_chosen(rest);
    failed |= json_object_set(names, "messages", (json_t *)(uintptr_t)messages);
    failed |= json_object_set_new(names, "add_generation_prompt", json_boolean(add_generation));
    failed |= chosen.tools ? json_object_set(names, "tools", (json_t *)(uintptr_t)chosen.tools)
                           : json_object_set_new(names, "tools", json_null());
    failed |= chosen.documents ? json_object_set(names, "documents", (json_t *)(uintptr_t)chosen.documents)
                               : json_object_set_new(names, "documents", json_null());
    if (failed) {
        json_decref(names);
        err_set(err, ERR_NOMEM, "out of memory for a conversation");
        return NULL;
    }
    return names;
}

struct chat_rest chat_rest_chosen(const struct chat_rest *rest)
{
    struct chat_rest chosen = *rest;
    const json_t *tools = json_object_get(rest->kwargs, "tools");
    const json_t *documents = json_object_get(rest->kwargs, "documents");
    chosen.tools = tools ? tools : chosen.tools;
    chosen.documents = documents ? documents : chosen.documents;
    chosen.tools = json_is_null(chosen.tools) ? NULL : chosen.tools;
    chosen.documents = json_is_null(chosen.documents) ? NULL : chosen.documents;
    return chosen;
}

int chat_render_names(const struct chat_template *chat, const json_t *messages, const struct chat_rest *rest,
                      bool add_generation, struct buf *text, struct jinja_marks *marks, struct err *err)
{
    const bool of_tools = chat_rest_chosen(rest).tools != NULL;
    if (of_tools && !chat->tool_use && chat->tool_use_error.code != ERR_NONE) {
        *err = chat->tool_use_error;
        return err_wrap(err, "the chat template tool_use");
    }
    json_t *names = names_of(chat, messages, rest, add_generation, err);
    const struct jinja *jinja = of_tools && chat->tool_use ? chat->tool_use : chat->jinja;
    const int status = names ? jinja_render(jinja, names, chat->now_s, text, marks, err) : -1;
    json_decref(names);
    return status < 0 ? err_wrap(err, "the chat template") : 0;
}
