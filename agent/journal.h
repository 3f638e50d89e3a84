/* Events on disk until the scheduler has committed them.
 *
 * A *stream* is one numbered sequence: a rank of a run ("run-RUN-EPOCH-RANK") or the node's own ("node").
 * Events are encoded documents with numbers from 1 without gaps. All that are not acknowledged are in memory
 * and in the stream's file, which survives the agent (not the machine: nothing is synced; a machine that dies
 * takes its workers along). Bounded: journal_is_full says when to stop taking events from workers; events of
 * the agent's own are always taken. Thread: one.
 */
#ifndef MOTLEY_AGENT_JOURNAL_H
#define MOTLEY_AGENT_JOURNAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

enum { JOURNAL_KEY_SIZE = 96, JOURNAL_STREAMS_MAX = 1024, JOURNAL_EVENT_MAX = 8 << 20 /* the scheduler's */ };

struct journal;

struct journal_event {
    struct journal_event *next;
    uint64_t seq;
    bool final;
    size_t size;
    uint8_t bytes[]; /* msgpack */
};

struct journal_stream {
    struct journal_stream *next; /* in the journal */
    char key[JOURNAL_KEY_SIZE];
    uint64_t last;               /* highest number appended */
    uint64_t acked;              /* all up to it are committed and gone */
    bool final;                  /* its last event has been appended: nothing follows */
    bool closed;                 /* remove it once all is acknowledged */
    struct journal_event *first; /* not acknowledged, in order */
    /* of the feed */
    uint64_t sent;     /* handed to Redis up to here on this connection */
    uint64_t again_ns; /* when to send again what nobody acknowledged */
    uint32_t again_ms; /* back-off */
    bool probing;      /* nobody has answered: the first one alone goes out again */
    bool gap;          /* somebody listens, and lacks some: all go out again */
    /* of the journal */
    struct journal *journal;
    struct journal_event *tail;
    int fd;
    uint64_t file_bytes;
    uint64_t held_bytes;
};

/* Opens what is in 'dir' (made if missing). A torn record at a file's end is dropped; ERR_CORRUPT in the
 * middle is too, with all behind it: they will be missed, but the agent starts. ERR_IO. */
struct journal *journal_open(const char *dir, uint64_t bytes_max, struct err *err);
/* Files stay. NULL is fine. */
void journal_close(struct journal *journal);
/* At its bound or over it. */
bool journal_is_full(const struct journal *journal);

/* All streams, by ->next. NULL: none. */
struct journal_stream *journal_first(struct journal *journal);
/* NULL: there is none of this key. */
struct journal_stream *journal_find(struct journal *journal, const char *key);
/* Found or made. NULL: ERR_BUSY with JOURNAL_STREAMS_MAX streams, ERR_IO. */
struct journal_stream *journal_stream(struct journal *journal, const char *key, struct err *err);

/* Append 'event' as number last + 1 (its "seq" is set). ERR_CONFLICT on a final stream, ERR_TOO_BIG
 * beyond JOURNAL_EVENT_MAX bytes, ERR_IO
 * (full disk: it is kept in memory all the same). */
int journal_append(struct journal_stream *stream, json_t *event, bool final, struct err *err);

/* Everything up to 'seq' is committed. A closed stream that is empty then is removed: do not use it after. */
void journal_ack(struct journal_stream *stream, uint64_t seq);

/* No more events will come (its worker is gone): remove it when all is acknowledged, perhaps now. */
void journal_stream_close(struct journal_stream *stream);

/* Remove it with its events. */
void journal_stream_drop(struct journal_stream *stream);

#endif
