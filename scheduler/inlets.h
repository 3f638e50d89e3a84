/* What comes in from each node: the stream of its events, how far that was read, the key its messages are
 * sealed with, and what was refused of it. One inlet a node of the view; nothing is sent or written here.
 *
 * A node is its stream's key in Redis, which its Redis user alone may write, never what an event says. An
 * inlet is borrowed until the next inlets_sync or inlets_clear. Thread: the scheduler's.
 */
#ifndef MOTLEY_SCHEDULER_INLETS_H
#define MOTLEY_SCHEDULER_INLETS_H

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
    struct seal *seal; /* NULL: not admitted, nothing is read of it or sent to it */

    char after[INLET_ID_SIZE]; /* read up to here */
    char taken[INLET_ID_SIZE]; /* the last entry of the batch under way; "": none */
    size_t taken_bytes;        /* of this read */
    uint32_t taken_count;
    double allowance; /* bytes that may still be read; grows with time */
    uint64_t allowance_ns;
    bool cut;      /* the rest of what was read is read again */
    char boot[80]; /* the newest start of its agent, */
    int64_t beat;  /* and the last of its numbered signs of life */

    int64_t refused;                 /* not yet written to the node's row, */
    int64_t reasons[ERR_CODE_COUNT]; /* and by code */
    char why[INLET_WHY_SIZE];
    int64_t unlogged;
    uint64_t logged_ns;
    bool bar; /* it shall have no Redis user any more */

    double strikes; /* floods.c */
    uint64_t strike_ns;

    enum inlet_user user; /* keeper.c */
    bool user_listed;     /* by the present ACL LIST, as it should be */
    char *user_rules;     /* as Redis lists what was set; known alone */
    unsigned connections; /* by the present CLIENT LIST */
};

struct inlets;

/* Returns new, empty; ERR_NOMEM. */
struct inlets *inlets_create(struct err *err);
/* NULL is fine. */
void inlets_destroy(struct inlets *inlets);

/* One inlet a node of 'view'; those of the same generation stay as they are. True: one was admitted, or is no
 * more. -1 without memory (the next view tries again). */
int inlets_sync(struct inlets *inlets, const struct store_view *view, struct err *err);
/* Forgets all. */
void inlets_clear(struct inlets *inlets);
/* Redis is empty, or may be: reads from the start. */
void inlets_rewind(struct inlets *inlets);

/* How many, admitted or not; the one of number 'i' below that; the one of that name or stream. */
size_t inlets_count(const struct inlets *inlets);
struct inlet *inlets_at(struct inlets *inlets, size_t i);                  /* as above */
struct inlet *inlets_find(struct inlets *inlets, const char *node);        /* or NULL */
struct inlet *inlets_of_stream(struct inlets *inlets, const char *stream); /* or NULL */

/* The event in an entry of the inlet's stream, with "node". NULL: refused (ERR_CORRUPT, ERR_TOO_BIG,
 * ERR_DENIED without a seal that holds or in another's name), or ERR_STALE for a sign of life that was seen
 * before. */
json_t *inlet_open(struct inlet *inlet, const struct redis_entry *entry, struct err *err);

/* Whether Redis could have given this id in the next million years: beyond, a stream takes no more entries.
 */
bool inlet_id_is_sane(const char *id);

/* Whether it may be read now: so many bytes a second and no more. What it adds beyond them stays in Redis. */
bool inlet_may_read(struct inlet *inlet, uint64_t now_ns);

/* Counts one more, with a line in the log once a second. */
void inlet_refuse(struct inlet *inlet, uint64_t now_ns, enum err_code code, const char *why);

/* What store_node_mark takes: all that was refused since the last time, and who is barred. Returns new. */
json_t *inlets_marks(struct inlets *inlets);

#endif
