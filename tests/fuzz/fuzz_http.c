/* Feeds the parsers of request heads, percent escapes and ranges. What they accept must lie within the input.
 */
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "api/http/httpd_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct httpd_head head;
    const char *why = NULL;
    char decoded[512];
    uint64_t begin = 0, count = 0;
    if (size > HTTP_HEAD_BYTES_MAX)
        return 0;
    char *text = malloc(size + 5);
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (httpd_range_parse(text, size * 3, &begin, &count) == 0 && (count == 0 || begin + count > size * 3))
        __builtin_trap();
    httpd_decode(text, size, true, decoded, sizeof(decoded));
    memcpy(text + size, "\r\n\r\n", 5); /* the server parses a head once it has read its empty line */
    if (httpd_head_parse(text, size + 4, &head, &why) == 0) {
        if (head.header_count > HTTP_HEADERS_MAX || !head.path || !head.query)
            __builtin_trap();
        httpd_decode(head.path, strlen(head.path), false, decoded, sizeof(decoded));
        httpd_decode(head.query, strlen(head.query), true, decoded, sizeof(decoded));
        httpd_head_get(&head, "host");
    } else if (!why) {
        __builtin_trap();
    }
    free(text);
    return 0;
}
