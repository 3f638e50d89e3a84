/* Feeds lines of a data set in every format (the first byte says which), and files of encoded rows. Encoded
 * rows must survive being saved and loaded again. */
#include "fuzz/fuzz.h"

#include "common/file.h"
#include "model/rows/rows.h"

static const struct tokenizer *tokenizer_any(void)
{
    static struct tokenizer *tokenizer; /* used for the whole run */
    struct err err;
    struct buf text = {.limit = 1 << 20};
    if (!tokenizer && file_read_all(MOTLEY_TEST_DATA "/tokenizer/smollm.json", 1 << 20, &text, &err) == 0)
        tokenizer_from_json(buf_str(&text), text.size, NULL, 0, &tokenizer, &err);
    buf_fini(&text);
    return tokenizer;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err;
    struct rows *rows = NULL, *again = NULL;
    struct rows_report report;
    struct buf file = {.limit = 1 << 24};
    struct spec_data_part part = {.sequence_tokens = 32};
    struct rows_options options;
    struct chat_template *chat = NULL;
    if (rows_load(data, size, 0, &rows, &err) == 0)
        rows_destroy(rows);
    rows = NULL;
    if (size < 1)
        return 0;
    part.format = (enum spec_format)(data[0] % SPEC_FORMAT_COUNT);
    part.learn = data[0] & 64 ? SPEC_LEARN_ALL : SPEC_LEARN_ANSWER;
    part.chat_template = data[0] & 32 ? json_string("chatml") : NULL;
    if (rows_options_from_spec(&part, tokenizer_any(), 300, &options, &chat, &err) == 0 &&
        rows_encode((const char *)data + 1, size - 1, &options, &rows, &report, &err) == 0 &&
        (rows_save(rows, &file, &err) < 0 || rows_load(file.data, file.size, 300, &again, &err) < 0 ||
         again->count != rows->count || file.size != rows_saved_bytes(rows)))
        __builtin_trap();
    chat_template_destroy(chat);
    json_decref(part.chat_template);
    rows_destroy(again);
    rows_destroy(rows);
    buf_fini(&file);
    return 0;
}
