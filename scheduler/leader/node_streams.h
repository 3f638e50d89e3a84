/* One struct node_stream per node of the view: the stream of the node's events, how far that stream was read,
 * the key that seals the node's messages, and how many of its events were refused. Nothing is sent or written
 * here.
 *
 * Redis lets only a node's own user write its stream, so the stream says which node speaks; an event's own
 * "node" field does not. A struct node_stream is borrowed until the next node_streams_sync or
 * node_streams_clear. Thread: the scheduler's.
 */
#ifndef MOTLEY_SCHEDULER_LEADER_NODE_STREAMS_H
#define MOTLEY_SCHEDULER_LEADER_NODE_STREAMS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "common/redis.h"
#include "common/seal.h"
#include "store/sched.h"

enum { NODE_STREAM_ID_SIZE = 48, NODE_STREAM_WHY_SIZE = 240 };

enum node_stream_user { NODE_STREAM_USER_UNKNOWN, NODE_STREAM_USER_SET, NODE_STREAM_USER_KNOWN };

struct node_stream {
    char node[72], stream[96];
    int64_t generation;
    uint8_t redis_hash[32], seal_key[32];
    /* NULL: the node is not admitted; its stream is not read and nothing is sent to it */
    struct seal *seal;

    char after[NODE_STREAM_ID_SIZE]; /* id of the last entry whose event was committed */
    char taken[NODE_STREAM_ID_SIZE]; /* id of the last entry of the batch under way; "": none */
    size_t taken_bytes;              /* bytes and entries taken by the present read */
    uint32_t taken_count;
    double allowance; /* bytes that may still be read; grows by ALLOWANCE_BYTES each second */
    uint64_t allowance_ns;
    bool cut;         /* the read took only a part of this stream's entries; the next read takes the rest */
    char boot[80];    /* name of the newest start of the node's agent */
    int64_t beat;     /* number of the last sign of life since that start */
    uint64_t told_ns; /* when an earlier start was last told that this one replaced it */

    int64_t refused;                 /* refused events that are not yet written to the node's row */
    int64_t reasons[ERR_CODE_COUNT]; /* the same refused events, counted by error code */
    char why[NODE_STREAM_WHY_SIZE];
    int64_t unlogged;
    uint64_t logged_ns;
    bool bar; /* the node is barred: it loses its Redis user */

    double strikes; /* counted against the node by floods.c; they fade with time */
    uint64_t strike_ns;

    enum node_stream_user user; /* what the scheduler knows of the node's Redis user (redis_users.c) */
    bool user_listed;           /* the ACL LIST that is being read shows the user with its expected rules */
    char *user_rules;           /* the user's rules as Redis words them; only with NODE_STREAM_USER_KNOWN */
    unsigned connections;       /* connections of the node's user in the CLIENT LIST that is being read */
};

struct node_streams;

/* Returns a new set of streams, without any node; or NULL with ERR_NOMEM. */
struct node_streams *node_streams_create(struct err *err);
/* NULL is a no-op. */
void node_streams_destroy(struct node_streams *node_streams);

/* Makes one struct node_stream for each node of 'view'. A struct node_stream whose node has the same
 * generation and keys stays as it is. Returns 1 when a struct node_stream was made or removed, else 0; -1
 * without memory (the next view tries again). */
int node_streams_sync(struct node_streams *node_streams, const struct store_view *view, struct err *err);
/* Removes all streams. */
void node_streams_clear(struct node_streams *node_streams);
/* Reads all streams from their start again, because Redis is or may be empty. */
void node_streams_rewind(struct node_streams *node_streams);

/* Returns the number of streams, including those of nodes that are not admitted. */
size_t node_streams_count(const struct node_streams *node_streams);
struct node_stream *node_streams_at(struct node_streams *node_streams,
                                    size_t i); /* 'i' is below node_streams_count */
struct node_stream *node_streams_find(struct node_streams *node_streams,
                                      const char *node); /* NULL: no such node */
struct node_stream *node_streams_find_key(struct node_streams *node_streams,
                                          const char *stream); /* NULL: no such stream */

/* Returns the event in an entry of the node's stream, with "node" set. NULL when the entry is refused:
 * ERR_CORRUPT, ERR_TOO_BIG, or ERR_DENIED when its seal does not hold or it names another node; ERR_STALE for
 * a sign of life that was seen before, ERR_CONFLICT for one of an earlier start of the agent. */
json_t *node_stream_open(struct node_stream *node_stream, const struct redis_entry *entry, struct err *err);

/* Returns false for an entry id that Redis's own clock would not give for the next hundred million years.
 * After such an id, a stream takes no more entries. */
bool node_stream_id_is_sane(const char *id);

/* Whether the stream may be read now. At most ALLOWANCE_BYTES are read each second; entries that the node
 * writes beyond that stay in Redis. */
bool node_stream_may_read(struct node_stream *node_stream, uint64_t now_ns);

/* Counts one refused entry, and logs at most one line a second. */
void node_stream_refuse(struct node_stream *node_stream, uint64_t now_ns, enum err_code code,
                        const char *why);

/* Returns the rows for store_node_mark, new: counts of the events refused since the last call, and which
 * nodes are barred. */
json_t *node_streams_marks(struct node_streams *node_streams);

#endif
