#include "common/faults.h"

#include <stdarg.h>
#include <stdio.h>

void fault_add(json_t *faults, const char *fmt, ...)
{
    char text[FAULT_BYTES + 1];
    va_list args;
    va_start(args, fmt);
    const int length = vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    for (size_t end = FAULT_BYTES;
         length > FAULT_BYTES && end > 0 && ((unsigned char)text[end - 1] & 0x80) != 0;)
        text[--end] = '\0'; /* the cut may have gone through the last character */
    json_t *sentence = json_string(text);
    for (char *at = text; !sentence && *at; at++)
        if ((unsigned char)*at >= 0x80)
            *at = '?';
    json_array_append_new(faults, sentence ? sentence : json_string(text));
}
