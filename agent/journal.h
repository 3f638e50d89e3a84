/* Stores events on disk until the scheduler has committed them.
 *
 * A *stream* is one numbered sequence: a rank of a run ("run-RUN-EPOCH-RANK") or the node's own ("node").
 * Events are encoded documents with numbers from 1 without gaps. All that are not acknowledged are in memory
 * and in the stream's file, which outlives the agent. An event is *durable* when a crash of the machine would
 * not lose it: the file was synced after it, or after a mark that it is committed. A file that cannot be
 * written (a full disk) is continued from where it stopped as soon as possible, so it never has a hole. The
 * size is bounded: journal_is_full tells when to stop accepting events from workers; the agent's own events
 * are always accepted. Thread: one, except for journal_sync_run.
 */
#ifndef MOTLEY_AGENT_JOURNAL_H
#define MOTLEY_AGENT_JOURNAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

enum {
    JOURNAL_KEY_SIZE = 96,
    JOURNAL_STREAMS_MAX = 1024,
    JOURNAL_EVENT_MAX = 8 << 20 /* the scheduler's limit of an event, in bytes */
};

struct journal;

struct journal_event {
    struct journal_event *next;
    uint64_t seq;
    bool final;
    size_t size;
    uint8_t bytes[]; /* the event as msgpack */
};

struct journal_stream {
    struct journal_stream *next; /* next stream of the journal */
    char key[JOURNAL_KEY_SIZE];
    uint64_t last;               /* highest number appended */
    uint64_t acked;              /* events up to this number are committed and removed */
    uint64_t durable;            /* events up to this number are durable */
    bool final;                  /* its last event was appended; none may follow */
    bool closed;                 /* the stream is removed once every event is acknowledged */
    struct journal_event *first; /* events that are not acknowledged, in order */
    /* fields of the feed */
    uint64_t sent;     /* highest number handed to Redis on this connection */
    uint64_t again_ns; /* when unacknowledged events are sent again */
    uint32_t again_ms; /* back-off between repetitions */
    bool probing;      /* nobody has answered, so only the first event is sent again */
    bool gap;          /* the scheduler answers but misses events, so all are sent again */
    /* fields of the journal */
    struct journal *journal;
    struct journal_event *tail;
    struct journal_event *unwritten; /* first event that is not in the file; NULL: all are */
    uint64_t id;      /* differs from the id of every other stream of this journal, past ones included */
    uint64_t written; /* highest number in the file */
    int fd;
    bool fresh;          /* the folder was not synced since the file was made */
    bool suspect;        /* a sync failed, so the content on disk is unknown */
    uint64_t file_bytes; /* bytes of whole records in the file */
    uint64_t held_bytes;
};

/* Opens the journal in 'dir', which is made if missing. A torn record at the end of a file is dropped. A
 * corrupt record in the middle is dropped with all that follow: those events are lost, but the agent starts.
 * ERR_IO. */
struct journal *journal_open(const char *dir, uint64_t bytes_max, struct err *err);
/* Closes the journal; files stay. NULL is a no-op. */
void journal_close(struct journal *journal);
/* Whether the journal has reached its size limit. */
bool journal_is_full(const struct journal *journal);

/* Whether an event of any stream has not been acknowledged. */
bool journal_holds_events(const struct journal *journal);

/* Returns the first stream; the others follow by ->next. NULL: none. */
struct journal_stream *journal_first(struct journal *journal);
/* Returns the stream of a key; NULL when there is none. */
struct journal_stream *journal_find(struct journal *journal, const char *key);
/* Finds or makes a stream. NULL: ERR_BUSY with JOURNAL_STREAMS_MAX streams, ERR_IO. */
struct journal_stream *journal_stream(struct journal *journal, const char *key, struct err *err);

/* Appends 'event' as number last + 1 and sets its "seq". ERR_CONFLICT on a final stream; ERR_TOO_BIG above
 * JOURNAL_EVENT_MAX bytes; ERR_IO when the file cannot be written (a full disk): the event is in memory and
 * will be written later, and the error is returned once until the file is complete again. */
int journal_append(struct journal_stream *stream, json_t *event, bool final, struct err *err);

/* A sync of one stream's file. */
struct journal_sync {
    uint64_t id, upto;
    int fd, folder; /* folder is borrowed from the journal; -1: it need not be synced */
};

/* Writes the events that are not in the file. Returns 1 when *sync must be run and ended, 0 when everything
 * is durable, -1 with ERR_IO when it must be tried again later. */
int journal_sync_begin(struct journal_stream *stream, struct journal_sync *sync, struct err *err);
/* Syncs the file and blocks until it is done. Any thread may call it while the journal is open. */
int journal_sync_run(const struct journal_sync *sync, struct err *err);
/* Records the result of a sync. The stream may have been removed meanwhile. */
void journal_sync_end(struct journal *journal, struct journal_sync *sync, int result);

/* Records that events up to 'seq' are committed. A closed stream that becomes empty is removed: do not use it
 * afterwards. */
void journal_ack(struct journal_stream *stream, uint64_t seq);

/* Tells that no more events will come because the stream's worker has ended. The stream is removed when every
 * event is acknowledged, possibly at once. */
void journal_stream_close(struct journal_stream *stream);

/* Removes a stream with its events. */
void journal_stream_drop(struct journal_stream *stream);

#endif
