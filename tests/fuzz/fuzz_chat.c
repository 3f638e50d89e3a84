/* Feeds chat templates, as a specification's JSON and as Jinja, and renders messages with them. The spans of
 * a rendered text must cover it without gaps. */
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "model/templates/chat.h"

static void render(const struct chat_template *chat, json_t *messages)
{
    struct err err;
    struct buf text = {.limit = 1 << 20};
    struct chat_spans spans = {0};
    size_t at = 0;
    if (chat_render(chat, messages, NULL, true, &text, &spans, &err) == 0) {
        for (size_t i = 0; i < spans.count; at = spans.items[i++].end)
            if (spans.items[i].begin != at || spans.items[i].end < at || spans.items[i].end > text.size)
                __builtin_trap();
        if (at != text.size)
            __builtin_trap();
    }
    chat_spans_fini(&spans);
    buf_fini(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err;
    struct chat_template *chat = NULL;
    json_t *choice = fuzz_parse(data, size);
    json_t *messages = json_pack("[{s:s,s:s},{s:s,s:s},{s:s,s:s},{s:s,s:s}]", "role", "system", "content",
                                 "s", "role", "user", "content", "u \n", "role", "assistant", "content", "a",
                                 "role", "user", "content", "");
    char *jinja = strndup((const char *)data, size);
    struct chat_given given = {.bos = "<s>", .bos_size = 3, .eos = "</s>", .eos_size = 4};
    if (choice && chat_template_choose(choice, &given, &chat, &err) == 0)
        render(chat, messages);
    chat_template_destroy(chat);
    chat = NULL;
    given.template = jinja;
    if (jinja && chat_template_choose(NULL, &given, &chat, &err) == 0)
        render(chat, messages);
    if (chat && choice)
        render(chat, choice);
    chat_template_destroy(chat);
    json_decref(messages);
    free(jinja);
    json_decref(choice);
    return 0;
}
