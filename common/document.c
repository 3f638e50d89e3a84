/* See document.h. */
#include "common/document.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

#include "common/file.h"
#include "common/json.h"
#include "common/yaml.h"

/* Returns the name of an encoding other than UTF-8, or NULL if none is detected. It is detected by the byte
 * order mark or, because every document begins with an ASCII character, by the NUL beside that. */
static const char *other_encoding(const unsigned char *text, size_t size)
{
    if (size < 2)
        return NULL;
    bool first = text[0] == 0, second = text[1] == 0;
    if (first && second)
        return "UTF-32";
    if (text[0] == 0xff && text[1] == 0xfe)
        return size >= 4 && text[2] == 0 && text[3] == 0 ? "UTF-32" : "UTF-16";
    if ((text[0] == 0xfe && text[1] == 0xff) || first)
        return "UTF-16";
    return !second ? NULL : size >= 4 && text[2] == 0 ? "UTF-32" : "UTF-16";
}

static bool ends_in_json(const char *path)
{
    size_t length = strlen(path);
    return length >= 5 && strcasecmp(path + length - 5, ".json") == 0;
}

json_t *document_parse(const char *path, const char *text, size_t size, struct err *err)
{
    static const char mark[] = "\xef\xbb\xbf";
    const char *encoding = other_encoding((const unsigned char *)text, size);
    if (encoding) {
        err_set(err, ERR_INVALID, "the text is in %s; save it as UTF-8", encoding);
        return NULL;
    }
    if (size >= 3 && memcmp(text, mark, 3) == 0) {
        text += 3;
        size -= 3;
    }
    if (ends_in_json(path))
        return json_parse_limited(text, size, JSON_DEPTH_MAX, err);
    struct err not_json = {0};
    json_t *value = json_parse_limited(text, size, JSON_DEPTH_MAX, &not_json);
    if (json_is_object(value) || json_is_array(value))
        return value;
    json_decref(value);
    value = yaml_parse(text, size, err);
    if (!json_is_null(value))
        return value;
    json_decref(value);
    return json_object();
}

json_t *document_load(const char *path, size_t bytes_max, struct err *err)
{
    struct buf text = {.limit = bytes_max + 1};
    json_t *document = NULL;
    if (file_read_all(path, bytes_max, &text, err) == 0 &&
        !(document = document_parse(path, buf_str(&text), text.size, err)))
        err_wrap(err, "%s", path);
    buf_fini(&text);
    return document;
}

int document_save(const char *path, const json_t *document, bool sorted, mode_t mode, struct err *err)
{
    struct buf text = {.limit = (size_t)1 << 30};
    int result = document ? json_print(document, sorted, &text, err)
                          : err_set(err, ERR_NOMEM, "out of memory for \"%s\"", path);
    if (result == 0)
        result = file_write_atomic(path, text.data, text.size, mode, err);
    buf_fini(&text);
    return result;
}
