/* Reads Server-Sent Events: lines of "name: value", an empty line after each event. */
#include "cli/events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"

enum { EVENT_BYTES_MAX = 8 << 20 };

void event_reader_init(struct event_reader *reader)
{
    reader->line.limit = reader->data.limit = EVENT_BYTES_MAX;
}

void event_reader_fini(struct event_reader *reader)
{
    buf_fini(&reader->line);
    buf_fini(&reader->data);
}

void event_reader_begin(struct event_reader *reader)
{
    buf_clear(&reader->line);
    buf_clear(&reader->data);
    reader->type[0] = '\0';
}

static int events_end_event(struct event_reader *reader, struct err *err)
{
    int result = 0;
    if (reader->data.size > 0) {
        json_t *data = json_parse_limited(buf_str(&reader->data), reader->data.size, JSON_DEPTH_MAX, err);
        if (!data)
            return err_wrap(err, "an event of the server");
        reader->last_id = reader->id > reader->last_id ? reader->id : reader->last_id;
        result = reader->take(reader->arg, reader->type, data, err);
        json_decref(data);
    }
    buf_clear(&reader->data);
    reader->type[0] = '\0';
    return result;
}

static int take_line(struct event_reader *reader, const char *line, struct err *err)
{
    if (*line == '\0')
        return events_end_event(reader, err);
    const char *colon = strchr(line, ':');
    if (!colon || colon == line)
        return 0;
    const char *value = colon + 1 + (colon[1] == ' ');
    if (strncmp(line, "id:", 3) == 0)
        reader->id = strtoll(value, NULL, 10);
    else if (strncmp(line, "event:", 6) == 0)
        snprintf(reader->type, sizeof(reader->type), "%s", value);
    else if (strncmp(line, "data:", 5) == 0)
        return buf_text(&reader->data, value, err);
    return 0;
}

int event_reader_bytes(void *arg, const void *data, size_t size, struct err *err)
{
    struct event_reader *reader = arg;
    const char *at = data, *end = at + size;
    while (at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t piece = (size_t)((newline ? newline : end) - at);
        if (buf_append(&reader->line, at, piece, err) < 0)
            return -1;
        at += piece + (newline != NULL);
        if (!newline)
            break;
        if (reader->line.size > 0 && reader->line.data[reader->line.size - 1] == '\r')
            reader->line.data[--reader->line.size] = '\0';
        int result = take_line(reader, buf_str(&reader->line), err);
        buf_clear(&reader->line);
        if (result < 0)
            return -1;
    }
    return 0;
}
