/* Reads Server-Sent Events as they arrive, in pieces of any size. */
#ifndef MOTLEY_CLI_EVENTS_H
#define MOTLEY_CLI_EVENTS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

struct event_reader {
    /* Takes a whole event: its type (as the stream names it, may be "") and its data, borrowed. Returns 0, or
     * -1 with *err to stop. */
    int (*take)(void *arg, const char *type, const json_t *data, struct err *err);
    void *arg;
    int64_t last_id;       /* id of the last whole event that had an id; 0: none */
    struct buf line, data; /* the incomplete line; the event's data so far */
    char type[64];
    int64_t id;
};

void event_reader_init(struct event_reader *reader);
void event_reader_fini(struct event_reader *reader);
/* Drops the incomplete event, because another connection begins. */
void event_reader_begin(struct event_reader *reader);
/* Takes bytes of the stream; an http_sink_fn. */
int event_reader_bytes(void *reader, const void *data, size_t size, struct err *err);

#endif
