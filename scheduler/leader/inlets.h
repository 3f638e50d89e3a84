/* One inlet per node of the view: the stream of the node's events, how far that stream was read, the key that
 * seals the node's messages, and how many of its events were refused. Nothing is sent or written here.
 *
 * Redis lets only a node's own user write its stream, so the stream says which node speaks; an event's own
 * "node" field does not. An inlet is borrowed until the next inlets_sync or inlets_clear. Thread: the
 * scheduler's.
 */
#ifndef MOTLEY_SCHEDULER_LEADER_INLETS_H
#define MOTLEY_SCHEDULER_LEADER_INLETS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "common/redis.h"
#include "common/seal.h"
#include "store/sched.h"

enum { INLET_ID_SIZE = 48, INLET_WHY_SIZE = 240 };

enum inlet_user { INLET_USER_UNKNOWN, INLET_USER_SET, INLET_USER_KNOWN };

struct inlet {
    char node[72], stream[96];
    int64_t generation;
    uint8_t redis_hash[32], seal_key[32];
    /* NULL: the node is not admitted; its stream is not read and nothing is sent to it */
    struct seal *seal;

    char after[INLET_ID_SIZE]; /* id of the last entry whose event was committed */
    char taken[INLET_ID_SIZE]; /* id of the last entry of the batch under way; "": none */
    size_t taken_bytes;        /* bytes and entries taken by the present read */
    uint32_t taken_count;
    double allowance; /* bytes that may still be read; grows by ALLOWANCE_BYTES each second */
    uint64_t allowance_ns;
    bool cut;      /* the rest of what was read is left for the next read */
    char boot[80]; /* the newest start of the node's agent */
    int64_t beat;  /* the last number of that start's signs of life */

    int64_t refused;                 /* refused events that are not yet written to the node's row */
    int64_t reasons[ERR_CODE_COUNT]; /* the same refused events, counted by error code */
    char why[INLET_WHY_SIZE];
    int64_t unlogged;
    uint64_t logged_ns;
    bool bar; /* the node loses its Redis user */

    double strikes; /* counted against the node by floods.c; they fade with time */
    uint64_t strike_ns;

    enum inlet_user user; /* what is known of the node's Redis user (keeper.c) */
    bool user_listed;     /* the present ACL LIST shows the user with the rules that it should have */
    char *user_rules;     /* the user's rules in Redis's own words; only with INLET_USER_KNOWN */
    unsigned connections; /* connections of the node's user in the present CLIENT LIST */
};

struct inlets;

/* Returns new inlets, without any node; or NULL with ERR_NOMEM. */
struct inlets *inlets_create(struct err *err);
/* NULL is a no-op. */
void inlets_destroy(struct inlets *inlets);

/* Makes one inlet for each node of 'view'. An inlet whose node has the same generation and keys stays as it
 * is. Returns 1 when an inlet was made or removed, else 0; -1 without memory (the next view tries again). */
int inlets_sync(struct inlets *inlets, const struct store_view *view, struct err *err);
/* Removes all inlets. */
void inlets_clear(struct inlets *inlets);
/* Reads all streams from their start again, because Redis is or may be empty. */
void inlets_rewind(struct inlets *inlets);

/* How many inlets there are, admitted or not. */
size_t inlets_count(const struct inlets *inlets);
struct inlet *inlets_at(struct inlets *inlets, size_t i);                  /* 'i' is below inlets_count */
struct inlet *inlets_find(struct inlets *inlets, const char *node);        /* NULL: no such node */
struct inlet *inlets_of_stream(struct inlets *inlets, const char *stream); /* NULL: no such stream */

/* Returns the event in an entry of the inlet's stream, with "node" set. NULL when the entry is refused:
 * ERR_CORRUPT, ERR_TOO_BIG, or ERR_DENIED when its seal does not hold or it names another node; ERR_STALE for
 * a sign of life that was seen before. */
json_t *inlet_open(struct inlet *inlet, const struct redis_entry *entry, struct err *err);

/* False for an entry id that Redis's own clock would not give for the next hundred million years. After such
 * an id, a stream takes no more entries.
 */
bool inlet_id_is_sane(const char *id);

/* Whether the stream may be read now. At most ALLOWANCE_BYTES are read each second; what the node writes
 * beyond that stays in Redis. */
bool inlet_may_read(struct inlet *inlet, uint64_t now_ns);

/* Counts one refused entry, and logs at most one line a second. */
void inlet_refuse(struct inlet *inlet, uint64_t now_ns, enum err_code code, const char *why);

/* Returns, new, the rows for store_node_mark: what was refused since the last call, and which nodes are
 * barred. */
json_t *inlets_marks(struct inlets *inlets);

#endif
