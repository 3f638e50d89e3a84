/* Each event is one line and one write, so lines of several processes on one terminal or file do not mix. */
#include "common/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"

enum { LINE_SIZE = 4096 };

void log_event(enum log_level level, const char *event, const char *fmt, ...)
{
    static const char *const names[] = {"debug", "info", "warn", "error"};
    if (level == LOG_LEVEL_DEBUG && !getenv("MOTLEY_DEBUG"))
        return;
    int saved = errno;
    char line[LINE_SIZE];
    char when[32];
    int head =
        snprintf(line, sizeof(line), "%s %s %s ", clock_rfc3339(clock_wall_us(), when), names[level], event);
    size_t length = head < 0 ? 0 : (size_t)head;
    if (length > sizeof(line) - 2)
        length = sizeof(line) - 2;
    va_list args;
    va_start(args, fmt);
    int body = vsnprintf(line + length, sizeof(line) - 1 - length, fmt, args);
    va_end(args);
    length = strnlen(line, body < 0 ? length : sizeof(line) - 2);
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)line[i];
        line[i] = byte < 0x20 || byte == 0x7f ? '?' : line[i];
    }
    line[length++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, length);
    (void)written; /* a failure to log cannot be reported */
    errno = saved;
}
