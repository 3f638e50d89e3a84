/* Checks columns by format, and reads conversations in the forms that data sets have. */
#include "model/rows/rows_form.h"

#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "model/rows/rows.h"

/* ---- the format ---- */

/* Returns the first message of a list, or NULL. */
static const json_t *message_first(const json_t *list)
{
    const json_t *first = json_array_get(list, 0);
    return json_is_object(first) ? first : NULL;
}

static bool rows_form_is_list(const struct row_json *row, const char *key)
{
    return json_is_array(json_object_get(row->object, key));
}

static const json_t *column(const struct row_json *row, const char *key)
{
    const json_t *value = json_object_get(row->object, key);
    return json_is_null(value) ? NULL : value;
}

/* The keys that tell a row's format. `also` is a second key that the format requires. */
static const struct form {
    enum spec_format format;
    const char *key, *also;
} forms[] = {
    {SPEC_FORMAT_CHAT, "messages", NULL},      {SPEC_FORMAT_SHAREGPT, "conversations", NULL},
    {SPEC_FORMAT_ALPACA, "instruction", NULL}, {SPEC_FORMAT_PROMPT_COMPLETION, "prompt", "completion"},
    {SPEC_FORMAT_TOKENS, "ids", NULL},         {SPEC_FORMAT_TOKENS, "input_ids", NULL},
    {SPEC_FORMAT_TEXT, "text", NULL},
};

enum { FORM_COUNT = sizeof(forms) / sizeof(forms[0]) };

/* Distinguishes formats of the same key: messages with from and value are ShareGPT's, and a prompt that is a
 * list is a conversation. */
static enum spec_format form_refine(const struct row_json *row, const struct form *form)
{
    if (form->format == SPEC_FORMAT_CHAT) {
        const json_t *first = message_first(column(row, "messages"));
        return json_object_get(first, "from") && !json_object_get(first, "role") ? SPEC_FORMAT_SHAREGPT
                                                                                 : SPEC_FORMAT_CHAT;
    }
    if (form->format == SPEC_FORMAT_PROMPT_COMPLETION)
        return rows_form_is_list(row, "prompt") ? SPEC_FORMAT_PROMPT_COMPLETION_CHAT
                                                : SPEC_FORMAT_PROMPT_COMPLETION;
    return form->format;
}

static int format_guess(const struct row_json *row, enum spec_format *format, const char **key,
                        struct err *err)
{
    const struct form *found = NULL;
    for (int i = 0; i < FORM_COUNT; i++) {
        if (!column(row, forms[i].key) || (forms[i].also && !column(row, forms[i].also)))
            continue;
        if (found && found->format == forms[i].format) {
            return err_set(err, ERR_INVALID, "a row has \"%s\" or \"%s\", not both", found->key,
                           forms[i].key);
        }
        if (found) {
            return err_set(
                err, ERR_INVALID,
                "the row has both \"%s\" (format %s) and \"%s\" (format %s); say which by data.format",
                found->key, spec_format_name(found->format), forms[i].key, spec_format_name(forms[i].format));
        }
        found = &forms[i];
    }
    if (!found) {
        return err_set(
            err, ERR_INVALID,
            "a row needs \"messages\", or \"conversations\", or \"instruction\" and \"output\", or "
            "\"prompt\" and \"completion\", or \"text\", or \"ids\"");
    }
    *key = found->key;
    *format = form_refine(row, found);
    return 0;
}

int row_format(const struct row_json *row, enum spec_format asked, enum spec_format *format, const char **key,
               struct err *err)
{
    if (asked == SPEC_FORMAT_AUTO)
        return format_guess(row, format, key, err);
    *format = asked;
    *key = "data.format";
    if (asked == SPEC_FORMAT_PROMPT_COMPLETION && rows_form_is_list(row, "prompt"))
        *format = SPEC_FORMAT_PROMPT_COMPLETION_CHAT;
    return 0;
}

/* ---- columns that change a row's meaning ---- */

enum {
    OF_ALPACA = 1 << SPEC_FORMAT_ALPACA,
    OF_CHAT = 1 << SPEC_FORMAT_CHAT,
    OF_TEXT = 1 << SPEC_FORMAT_TEXT,
    OF_TOKENS = 1 << SPEC_FORMAT_TOKENS,
    OF_SHAREGPT = 1 << SPEC_FORMAT_SHAREGPT,
    OF_PROMPT = 1 << SPEC_FORMAT_PROMPT_COMPLETION,
    OF_PROMPT_CHAT = 1 << SPEC_FORMAT_PROMPT_COMPLETION_CHAT,
    OF_MESSAGES = OF_CHAT | OF_SHAREGPT | OF_PROMPT_CHAT,
    /* A row with a text or ids is complete, so the columns that it was made from may be present and are
     * ignored. */
    OF_WHOLE = OF_TEXT | OF_TOKENS
};

static const char put_in_messages[] = "put it into the messages";
static const char not_read[] = "Motley trains on text alone";

static const struct meaning {
    const char *key;
    unsigned formats;   /* formats that read the column, or for which it has no meaning */
    bool unless_chosen; /* ignored if data.format is given */
    const char *advice;
} meanings[] = {
    {"tools", OF_MESSAGES | OF_WHOLE, false, "only rows of messages have tools"},
    {"documents", OF_MESSAGES | OF_WHOLE, false, "only rows of messages have documents"},
    {"chat_template_kwargs", OF_MESSAGES | OF_WHOLE, false, "only rows of messages have a chat template"},
    {"functions", OF_WHOLE, false, "give them as tools, as the chat template reads them"},
    {"system", OF_ALPACA | OF_SHAREGPT | OF_WHOLE, false, put_in_messages},
    {"system_prompt", OF_WHOLE, false, "give it as system, or as the first message"},
    {"history", OF_ALPACA | OF_WHOLE, false, put_in_messages},
    {"weight", 0, false, "rows count alike; leave the row out, or repeat it"},
    {"images", 0, false, not_read},
    {"image", 0, false, not_read},
    {"videos", 0, false, not_read},
    {"audios", 0, false, not_read},
    {"audio", 0, false, not_read},
    {"chosen", OF_WHOLE, true,
     "rows of preferences are not learnt from; say by data.format what else the row is"},
    {"rejected", OF_WHOLE, true,
     "rows of preferences are not learnt from; say by data.format what else the row is"},
    {"label", OF_ALPACA | OF_CHAT | OF_SHAREGPT | OF_WHOLE, true,
     "rows of preferences are not learnt from; say by data.format what else the row is"},
    {"add_generation_prompt", OF_WHOLE, false, "a row ends with an answer"},
    {"continue_final_message", OF_WHOLE, false, "a row ends with an answer"},
    {"loss_mask", 0, false, "give labels, -100 where nothing is learnt"},
    {"completion_mask", 0, false, "give labels, -100 where nothing is learnt"},
    {"assistant_masks", 0, false, "give labels, -100 where nothing is learnt"},
    {"position_ids", 0, false, "positions count from 0 in every row; give packed rows apart"},
    {"seq_lengths", 0, false, "give packed rows apart"},
};

int row_columns_check(const struct row_json *row, enum spec_format format, bool chosen,
                      const struct chat_template *chat, struct err *err)
{
    for (size_t i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++) {
        const struct meaning *m = &meanings[i];
        if ((m->formats & 1u << format) != 0 || (m->unless_chosen && chosen) || !row_json_says(row, m->key))
            continue;
        const json_t *value = json_object_get(row->object, m->key);
        const bool one = strcmp(m->key, "weight") == 0 &&
                         (json_is_true(value) || (json_is_number(value) && json_number_value(value) == 1));
        const bool templates = (OF_MESSAGES & 1u << format) != 0 && chat &&
                               chat_template_names(chat, m->key) && !chat_is_argument(m->key);
        if (!one && !templates) {
            return err_set(err, ERR_UNSUPPORTED, "%s: is not read in rows of format %s: %s", m->key,
                           spec_format_name(format), m->advice);
        }
    }
    return 0;
}

/* ---- conversations ---- */

/* Names of roles in ShareGPT data sets (LLaMA-Factory, axolotl), and the roles that they stand for. */
static const char *const speakers[][2] = {
    {"human", "user"},         {"user", "user"},
    {"gpt", "assistant"},      {"assistant", "assistant"},
    {"chatgpt", "assistant"},  {"model", "assistant"},
    {"bot", "assistant"},      {"function_call", "assistant"},
    {"system", "system"},      {"developer", "developer"},
    {"tool", "tool"},          {"observation", "tool"},
    {"function", "tool"},      {"function_response", "tool"},
    {"tool_response", "tool"},
};

static const char *speaker_role(const char *speaker)
{
    for (size_t i = 0; i < sizeof(speakers) / sizeof(speakers[0]); i++)
        if (strcmp(speakers[i][0], speaker) == 0)
            return speakers[i][1];
    return NULL;
}

/* Converts {"name", "arguments"}, or a list of these, given as JSON in a text, to a message's tool_calls.
 * Returns new, or NULL. */
static json_t *tool_calls_of(const json_t *value, size_t index, struct err *err)
{
    struct err why = {0};
    json_t *parsed =
        json_is_string(value)
            ? json_parse_limited(json_string_value(value), json_string_length(value), JSON_DEPTH_MAX, &why)
            : json_incref((json_t *)(uintptr_t)value);
    json_t *calls = json_array();
    const size_t count = json_is_array(parsed) ? json_array_size(parsed) : 1;
    bool good = calls && parsed && count > 0;
    for (size_t i = 0; i < count && good; i++) {
        json_t *call = json_is_array(parsed) ? json_array_get(parsed, i) : parsed;
        good =
            json_is_string(json_object_get(call, "name")) && json_object_get(call, "arguments") &&
            json_array_append_new(calls, json_pack("{s:s, s:O}", "type", "function", "function", call)) == 0;
    }
    json_decref(parsed);
    if (!good) {
        json_decref(calls);
        err_set(
            err, ERR_INVALID,
            "conversations[%zu].value: a function_call is JSON with name and arguments, or a list of these",
            index);
        return NULL;
    }
    return calls;
}

/* Converts a ShareGPT message to a chat message. Returns new, or NULL. */
static json_t *message_of(const json_t *item, size_t index, struct err *err)
{
    const bool by_from = json_object_get(item, "from") != NULL;
    const char *key = by_from ? "from" : "role";
    const json_t *value = json_object_get(item, by_from ? "value" : "content");
    const char *speaker = json_string_value(json_object_get(item, key));
    const char *role = speaker ? speaker_role(speaker) : NULL;
    if (!role) {
        err_set(err, ERR_INVALID,
                "conversations[%zu].%s: %s%.40s%s human, gpt, system, tool, observation or function_call",
                index, key, speaker ? "\"" : "", speaker ? speaker : "must be one of",
                speaker ? "\" is none of" : "");
        return NULL;
    }
    json_t *message = json_copy((json_t *)(uintptr_t)item);
    int failed = !message;
    json_object_del(message, "from");
    json_object_del(message, "value");
    failed |= json_object_set_new(message, "role", json_string(role));
    if (strcmp(speaker, "function_call") == 0) {
        json_t *calls = tool_calls_of(value, index, err);
        if (!calls) {
            json_decref(message);
            return NULL;
        }
        json_object_del(message, "content");
        failed |= json_object_set_new(message, "tool_calls", calls);
    } else if (value) {
        failed |= json_object_set(message, "content", (json_t *)(uintptr_t)value);
    }
    if (failed) {
        json_decref(message);
        err_set(err, ERR_NOMEM, "out of memory for a conversation");
        return NULL;
    }
    return message;
}

/* Inserts the column `system` as the first message. */
static int system_put(const struct row_json *row, json_t *messages, struct err *err)
{
    const json_t *system;
    if (row_json_get(row, "system", &system, err) < 0)
        return -1;
    if (!system || json_string_length(system) == 0)
        return json_is_string(system) || !system ? 0 : err_set(err, ERR_INVALID, "system: must be a text");
    const json_t *first = json_array_get(messages, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    if (role && strcmp(role, "system") == 0) {
        return json_equal(json_object_get(first, "content"), system)
                   ? 0
                   : err_set(err, ERR_INVALID,
                             "system: the conversation begins with a system message of its own that differs");
    }
    json_t *message = json_pack("{s:s, s:O}", "role", "system", "content", system);
    return json_array_insert_new(messages, 0, message) < 0
               ? err_set(err, ERR_NOMEM, "out of memory for a conversation")
               : 0;
}

static int sharegpt_read(const struct row_json *row, struct row_chat *out, struct err *err)
{
    const char *key = column(row, "conversations") || !column(row, "messages") ? "conversations" : "messages";
    const json_t *list;
    if (row_json_get(row, key, &list, err) < 0)
        return -1;
    if (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > CHAT_MESSAGES_MAX) {
        return err_set(err, ERR_INVALID, "%s: %s", key,
                       !list ? "is missing" : "must be a list of messages that is not empty");
    }
    out->messages = json_array();
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *message = message_of(json_array_get(list, i), i, err);
        if (!message)
            return -1;
        if (json_array_append_new(out->messages, message) < 0)
            return err_set(err, ERR_NOMEM, "out of memory for a conversation");
    }
    return system_put(row, out->messages, err);
}

static int rows_form_list_read(const struct row_json *row, const char *key, json_t *into, struct err *err)
{
    const json_t *list;
    if (row_json_get(row, key, &list, err) < 0)
        return -1;
    if (!json_is_array(list) || json_array_size(list) == 0) {
        return err_set(err, ERR_INVALID, "%s: %s", key,
                       !list ? "is missing" : "must be a list of messages that is not empty");
    }
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_array_append(into, json_array_get(list, i)) < 0)
            return err_set(err, ERR_NOMEM, "out of memory for a conversation");
    return 0;
}

/* Reads tools, which may be JSON in a text, as TRL and LLaMA-Factory accept it. */
static int tools_read(const struct row_json *row, struct row_chat *out, struct err *err)
{
    const json_t *tools;
    if (row_json_get(row, "tools", &tools, err) < 0)
        return -1;
    if (json_is_string(tools) && json_string_length(tools) > 0) {
        out->tools =
            json_parse_limited(json_string_value(tools), json_string_length(tools), JSON_DEPTH_MAX, err);
        return out->tools ? 0 : err_wrap(err, "tools, which are JSON in a text");
    }
    out->tools = json_is_string(tools) ? NULL : json_incref((json_t *)(uintptr_t)tools);
    return 0;
}

static bool is_of_row(const char *key)
{
    static const char *const keys[] = {"messages",  "conversations",        "tools",
                                       "documents", "chat_template_kwargs", "completion"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return chat_is_argument(key);
}

/* Collects the template's further variables: chat_template_kwargs, and the columns that the template names.
 */
static int kwargs_read(const struct row_json *row, const struct chat_template *chat, bool sharegpt,
                       bool prompt, struct row_chat *out, struct err *err)
{
    const json_t *given;
    const char *key;
    json_t *value;
    int failed;
    if (row_json_get(row, "chat_template_kwargs", &given, err) < 0)
        return -1;
    if (given && !json_is_object(given))
        return err_set(err, ERR_INVALID, "chat_template_kwargs: must be an object");
    out->kwargs = json_object();
    failed = !out->kwargs;
    json_object_foreach (row->object, key, value) {
        const json_t *read = value;
        if (is_of_row(key) || json_is_null(value) || !chat_template_names(chat, key) ||
            (sharegpt && strcmp(key, "system") == 0) || (prompt && strcmp(key, "prompt") == 0)) {
            continue;
        }
        if (row_json_get(row, key, &read, err) < 0)
            return -1;
        failed |= json_object_set(out->kwargs, key, value);
    }
    if (given)
        failed |= json_object_update(out->kwargs, (json_t *)(uintptr_t)given);
    return failed ? err_set(err, ERR_NOMEM, "out of memory for a row") : 0;
}

/* Refuses pictures and sounds in a message's content: the template would write a marker for them, and the
 * model would not receive them. */
static int parts_check(const json_t *messages, struct err *err)
{
    size_t i;
    size_t k;
    json_t *message;
    json_t *part;
    json_array_foreach ((json_t *)(uintptr_t)messages, i, message) {
        json_array_foreach (json_object_get(message, "content"), k, part) {
            const char *type = json_string_value(json_object_get(part, "type"));
            if (type && (strncmp(type, "image", 5) == 0 || strncmp(type, "video", 5) == 0 ||
                         strncmp(type, "audio", 5) == 0 || strcmp(type, "input_audio") == 0)) {
                return err_set(err, ERR_UNSUPPORTED, "messages[%zu].content[%zu].type: is \"%.20s\", and %s",
                               i, k, type, not_read);
            }
        }
    }
    return 0;
}

int row_chat_read(const struct row_json *row, enum spec_format format, const struct chat_template *chat,
                  struct row_chat *out, struct err *err)
{
    const bool prompt = format == SPEC_FORMAT_PROMPT_COMPLETION_CHAT;
    const json_t *documents;
    *out = (struct row_chat){0};
    int status;
    if (format == SPEC_FORMAT_SHAREGPT) {
        status = sharegpt_read(row, out, err);
    } else {
        out->messages = json_array();
        status = rows_form_list_read(row, prompt ? "prompt" : "messages", out->messages, err);
        out->prompt = prompt ? json_array_size(out->messages) : 0;
        if (status == 0 && prompt)
            status = rows_form_list_read(row, "completion", out->messages, err);
    }
    if (status < 0 || parts_check(out->messages, err) < 0 || tools_read(row, out, err) < 0 ||
        row_json_get(row, "documents", &documents, err) < 0 ||
        kwargs_read(row, chat, format == SPEC_FORMAT_SHAREGPT, prompt, out, err) < 0) {
        return -1;
    }
    out->documents = json_incref((json_t *)(uintptr_t)documents);
    out->rest = (struct chat_rest){.tools = out->tools, .documents = out->documents, .kwargs = out->kwargs};
    return 0;
}

static bool is_given(const json_t *value)
{
    return value && !json_is_null(value) && !(json_is_array(value) && json_array_size(value) == 0) &&
           !(json_is_string(value) && json_string_length(value) == 0);
}

/* Adds a name to a list of names unless it is there. Returns false when the list is full. */
static bool name_add(char names[ROWS_NAMES_BYTES], const char *name)
{
    const size_t size = strlen(name), used = strlen(names);
    for (const char *at = names; (at = strstr(at, name)); at++)
        if ((at == names || at[-1] == ' ') && (at[size] == ',' || at[size] == '\0'))
            return true;
    if (size > 60 || used + size + 3 > ROWS_NAMES_BYTES)
        return false;
    snprintf(names + used, ROWS_NAMES_BYTES - used, "%s%s", used > 0 ? ", " : "", name);
    return true;
}

static bool rows_form_is_one_of(const char *key, const char *const *keys)
{
    while (*keys && strcmp(*keys, key) != 0)
        keys++;
    return *keys != NULL;
}

const char *row_chat_unknown_role(const struct row_chat *row, const struct chat_template *chat)
{
    static const char *const usual[] = {"system", "developer", "user",    "assistant",
                                        "tool",   "function",  "ipython", NULL};
    size_t i;
    json_t *message;
    json_array_foreach (row->messages, i, message) {
        const char *role = json_string_value(json_object_get(message, "role"));
        if (role && !rows_form_is_one_of(role, usual) && !chat_template_names(chat, role))
            return role;
    }
    return NULL;
}

void row_chat_unwritten(const struct row_chat *row, const struct chat_template *chat,
                        char names[ROWS_NAMES_BYTES])
{
    /* what every template writes, and what says whether a message is learnt */
    static const char *const known[] = {"role", "content", "weight", "train", "training", "loss", NULL};
    static const char *const thoughts[] = {"reasoning_content", "thinking", "reasoning", NULL};
    if (is_given(row->rest.tools) && !chat_template_names(chat, "tools"))
        name_add(names, "tools");
    if (is_given(row->documents) && !chat_template_names(chat, "documents"))
        name_add(names, "documents");
    size_t i;
    json_t *message, *value;
    const char *key;
    json_array_foreach (row->messages, i, message) {
        json_object_foreach (message, key, value) {
            if (rows_form_is_one_of(key, known) || !is_given(value))
                continue;
            const bool thought = rows_form_is_one_of(key, thoughts);
            if (thought ? !chat_template_names(chat, thoughts[0]) && !chat_template_names(chat, thoughts[1])
                        : !chat_template_names(chat, key))
                name_add(names, thought ? "reasoning" : key);
        }
    }
}

void row_columns_unread(const struct row_json *row, enum spec_format format, const struct chat_template *chat,
                        char names[ROWS_NAMES_BYTES])
{
    static const char *const read[SPEC_FORMAT_COUNT][7] = {
        [SPEC_FORMAT_ALPACA] = {"instruction", "input", "output", "system", "history"},
        [SPEC_FORMAT_CHAT] = {"messages", "tools", "documents", "chat_template_kwargs"},
        [SPEC_FORMAT_SHAREGPT] = {"conversations", "messages", "system", "tools", "documents",
                                  "chat_template_kwargs"},
        [SPEC_FORMAT_PROMPT_COMPLETION] = {"prompt", "completion"},
        [SPEC_FORMAT_PROMPT_COMPLETION_CHAT] = {"prompt", "completion", "tools", "documents",
                                                "chat_template_kwargs"},
        [SPEC_FORMAT_TEXT] = {"text"},
        [SPEC_FORMAT_TOKENS] = {"ids", "input_ids", "labels", "attention_mask", "token_type_ids"}};
    const char *key;
    json_t *value;
    json_object_foreach (row->object, key, value)
        if (!rows_form_is_one_of(key, read[format]) && row_json_says(row, key) &&
            !((OF_MESSAGES & 1u << format) != 0 && chat && chat_template_names(chat, key)))
            name_add(names, key);
}

void row_chat_fini(struct row_chat *chat)
{
    json_decref(chat->messages);
    json_decref(chat->tools);
    json_decref(chat->documents);
    json_decref(chat->kwargs);
    *chat = (struct row_chat){0};
}
