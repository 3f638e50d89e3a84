/* Chat templates, a specification's (JSON) or a model's (Jinja), over messages: the spans cover the text. */
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "model/chat.h"

static void render(const struct chat_template *chat)
{
    const struct chat_message messages[] = {
        {"system", "s"}, {"user", "u \n"}, {"assistant", "a"}, {"user", ""}};
    struct err err;
    struct buf text = {.limit = 1 << 20};
    struct chat_span spans[2 * 4 + 3];
    size_t count = 0, at = 0;
    if (chat_render(chat, messages, 4, true, &text, spans, &count, &err) == 0) {
        for (size_t i = 0; i < count; at = spans[i++].end)
            if (spans[i].begin != at || spans[i].end < spans[i].begin || spans[i].end > text.size)
                __builtin_trap();
        if (at != text.size)
            __builtin_trap();
    }
    buf_fini(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err;
    struct chat_template *chat = NULL;
    json_t *choice = fuzz_parse(data, size);
    char *jinja = strndup((const char *)data, size);
    struct chat_given given = {.bos = "<s>", .bos_size = 3, .eos = "</s>", .eos_size = 4};
    if (choice && chat_template_choose(choice, &given, &chat, &err) == 0)
        render(chat);
    chat_template_destroy(chat);
    chat = NULL;
    given.template = jinja;
    if (jinja && chat_template_choose(NULL, &given, &chat, &err) == 0)
        render(chat);
    chat_template_destroy(chat);
    if (choice) {
        struct chat_message out[8];
        chat_messages_from_json(choice, out, 8, &err);
    }
    free(jinja);
    json_decref(choice);
    return 0;
}
