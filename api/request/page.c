/* Pages of lists: `limit` and `after` of a request, `next` of its answer.
 *
 * A cursor is an opaque text. Where the database pages by a number, the cursor is that number in decimal
 * digits. A list that the store gives whole is cut into pages here, and the cursor is the last item's keys in
 * hexadecimal digits. Cursors sort as texts in the order of the keys' bytes, so the next page is found even
 * if that item was removed in the meantime.
 */
#include "api/request/route.h"

#include "common/digest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_LIMIT_MAX = 1000, KEY_BYTES_MAX = 1024 };

int call_page(struct call *call, unsigned usual, unsigned most, int64_t start, struct call_page *page)
{
    struct err err = {0};
    int64_t limit;
    if (call_query_i64(call, "limit", 1, most, usual, &limit, &err) < 0 ||
        call_query_i64(call, "after", start, INT64_MAX, start, &page->after, &err) < 0) {
        call_fail(call, &err);
        return -1;
    }
    page->limit = (unsigned)limit;
    return 0;
}

int call_list(struct call *call, const char *list)
{
    struct err err = {0};
    const char *after = call_query(call, "after");
    call->list = list;
    if (after &&
        (!*after || strlen(after) > 2 * KEY_BYTES_MAX || strspn(after, "0123456789abcdef") != strlen(after)))
        err_set(&err, ERR_INVALID, "after: \"%.40s\" is no `next` of a page of this list", after);
    else
        call_query_i64(call, "limit", 1, LIST_LIMIT_MAX, LIST_LIMIT_MAX, &call->list_limit, &err);
    if (err.code)
        call_fail(call, &err);
    return err.code ? -1 : 0;
}

/* Writes the item's cursor: the values of `keys` (names separated by spaces). Each value is followed by a
 * character that sorts before every character of a name. Numbers have 20 digits, so that they sort as texts
 * in numeric order. */
static void item_cursor(const json_t *item, const char *keys, char cursor[2 * KEY_BYTES_MAX + 1])
{
    char bytes[KEY_BYTES_MAX], name[32];
    size_t used = 0;
    while (*keys && used < sizeof(bytes)) {
        size_t size = strcspn(keys, " ");
        snprintf(name, sizeof(name), "%.*s", (int)size, keys);
        const json_t *value = json_object_get(item, name);
        int n = json_is_integer(value) ? snprintf(bytes + used, sizeof(bytes) - used, "%020lld\x1f",
                                                  (long long)json_integer_value(value))
                                       : snprintf(bytes + used, sizeof(bytes) - used, "%s\x1f",
                                                  json_is_string(value) ? json_string_value(value) : "");
        used += n > 0 ? (size_t)n : 0;
        keys += size + (keys[size] == ' ');
    }
    digest_hex((const uint8_t *)bytes, used < sizeof(bytes) ? used : sizeof(bytes) - 1, cursor);
}

void call_answer_list(void *arg, const struct err *err, json_t *doc)
{
    struct call *call = arg;
    char member[32], cursor[2 * KEY_BYTES_MAX + 1] = "";
    if (err) {
        call_fail(call, err);
        return;
    }
    const char *keys = strchr(call->list, ' ') + 1, *after = call_query(call, "after");
    snprintf(member, sizeof(member), "%.*s", (int)(keys - 1 - call->list), call->list);
    const json_t *items = json_object_get(doc, member);
    json_t *answer = json_copy(doc), *page = json_array(), *next = json_null();
    for (size_t i = 0; i < json_array_size(items); i++) {
        json_t *item = json_array_get(items, i);
        if ((int64_t)json_array_size(page) == call->list_limit) {
            next = json_string(cursor);
            break;
        }
        item_cursor(item, keys, cursor);
        if (!after || strcmp(cursor, after) > 0)
            json_array_append(page, item);
    }
    json_object_set_new(answer, member, page);
    json_object_set_new(answer, "next", next);
    call_json(call, 200, answer, NULL);
}

void call_answer_page(void *arg, const struct err *err, json_t *doc)
{
    struct call *call = arg;
    if (err) {
        call_fail(call, err);
        return;
    }
    json_t *answer = json_copy(doc), *next = json_object_get(doc, "next");
    json_object_set_new(answer, "next",
                        json_is_integer(next) ? json_sprintf("%lld", (long long)json_integer_value(next))
                                              : json_null());
    call_json(call, 200, answer, NULL);
}
