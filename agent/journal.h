/* Events on disk until the scheduler has committed them.
 *
 * A *stream* is one numbered sequence: a rank of a run ("run-RUN-EPOCH-RANK") or the node's own ("node").
 * Events are encoded documents with numbers from 1 without gaps. All that are not acknowledged are in memory
 * and in the stream's file, which survives the agent. An event is *durable* when its number would survive the
 * machine: the file was synced behind it, or behind a mark that it is committed. A file that cannot be
 * written (a full disk) is continued where it was left as soon as it can be, so that it never has a hole.
 * Bounded: journal_is_full says when to stop taking events from workers; events of the agent's own are always
 * taken. Thread: one, but for journal_sync_run.
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
    uint64_t durable;            /* of all up to it the disk knows */
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
    struct journal_event *unwritten; /* first that the file lacks; NULL: none */
    uint64_t id;                     /* unlike any other's of this journal, also after its end */
    uint64_t written;                /* number up to which the file goes */
    int fd;
    bool fresh;          /* its folder does not know the file for good yet */
    bool suspect;        /* a sync failed: what the file holds is not known */
    uint64_t file_bytes; /* of whole records */
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

/* Append 'event' as number last + 1 (its "seq" is set). ERR_CONFLICT on a final stream, ERR_TOO_BIG beyond
 * JOURNAL_EVENT_MAX bytes, ERR_IO (full disk: it is kept in memory all the same, and written later; said once
 * until the file is whole again).
 */
int journal_append(struct journal_stream *stream, json_t *event, bool final, struct err *err);

/* One stream on its way to the disk. */
struct journal_sync {
    uint64_t id, upto;
    int fd, folder; /* folder: borrowed from the journal; -1: need not be synced */
};

/* Writes what the file lacks. 1: *sync is to be run and ended; 0: all is durable; -1 ERR_IO: try again later.
 */
int journal_sync_begin(struct journal_stream *stream, struct journal_sync *sync, struct err *err);
/* Blocks until the disk has it. On any thread, while the journal is open. */
int journal_sync_run(const struct journal_sync *sync, struct err *err);
/* With the result of the run. The stream may be gone meanwhile. */
void journal_sync_end(struct journal *journal, struct journal_sync *sync, int result);

/* Everything up to 'seq' is committed. A closed stream that is empty then is removed: do not use it after. */
void journal_ack(struct journal_stream *stream, uint64_t seq);

/* No more events will come (its worker is gone): remove it when all is acknowledged, perhaps now. */
void journal_stream_close(struct journal_stream *stream);

/* Remove it with its events. */
void journal_stream_drop(struct journal_stream *stream);

#endif
