/* An asynchronous Redis client on one event base. hiredis formats and parses, libevent moves the bytes, so
 * plain TCP, unix sockets and TLS share one code path.
 *
 * Commands are sent and answered in the order given. Without a connection they wait in a bounded queue. A
 * connection that breaks fails the commands already sent with ERR_NET (whether they were done is unknown;
 * ERR_PEER when the bytes received are not a reply or an array has more than 4096 elements) and keeps the
 * rest. Reconnection backs off from backoff_ms_min to backoff_ms_max without end; a command's own deadline
 * ends its wait. A command that blocks in Redis (XREAD BLOCK) blocks those behind it: use a second client for
 * it. A reply is borrowed during the call. A Redis error reply ("-ERR …") arrives as err (ERR_INVALID;
 * ERR_AUTH for NOAUTH and WRONGPASS; ERR_DENIED for NOPERM; ERR_BUSY for LOADING and OOM) with reply NULL.
 * Callbacks never run inside redis_command. redis_destroy may be called inside a callback; it ends every
 * waiting command with ERR_CANCELLED before it returns (libevent frees the socket in the base's next turn).
 * Thread: the event base's.
 */
#ifndef MOTLEY_COMMON_REDIS_H
#define MOTLEY_COMMON_REDIS_H

#include <event2/event.h>
#include <hiredis/hiredis.h>
#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

struct redis;

/* The key that the leading scheduler keeps at the address that it uses, for a few seconds at a time. */
#define REDIS_BEACON "motley:leader"

struct redis_config {
    /* "unix:/path" or "host:port" or "[v6]:port"; names are resolved without blocking. Up to 8 with commas
     * between them: one that cannot be reached, refuses, or is a replica is left for the next one. */
    const char *address;
    /* With several addresses: a key without which one of them is not used, because the others work elsewhere.
     * It is looked for at each connection and every second; NULL: none. */
    const char *beacon;
    struct redis *with;       /* another client, whose address this one always uses; or NULL */
    const char *user;         /* user for AUTH; NULL: Redis's default user */
    const char *password;     /* NULL: no AUTH is sent */
    SSL_CTX *tls;             /* borrowed until redis_destroy; NULL: no TLS */
    uint32_t queue_max;       /* commands waiting or in flight; 0 means 8192 */
    uint64_t queue_bytes_max; /* 0 means 256 MiB */
    uint64_t reply_bytes_max; /* one reply; a longer one breaks the connection (ERR_PEER). 0 means 512 MiB */
    uint32_t connect_ms;      /* 0 means 3000 */
    uint32_t backoff_ms_min;  /* 0 means 50 */
    uint32_t backoff_ms_max;  /* 0 means 2000 */
};

struct redis_events { /* each may be NULL */
    void (*connected)(
        void *arg); /* the connection is authenticated and ready; called again after each reconnection */
    void (*disconnected)(
        void *arg,
        const struct err *why); /* the connection broke or an attempt failed; the next attempt is scheduled */
};

/* 'reply' is NULL exactly when err->code is set. */
typedef void redis_reply_fn(void *arg, const redisReply *reply, const struct err *err);

/* Starts connecting. 'config' is copied. Returns new, or NULL: ERR_INVALID for the address. */
struct redis *redis_create(struct event_base *base, const struct redis_config *config,
                           const struct redis_events *events, void *arg, struct err *err);
void redis_destroy(struct redis *redis);
bool redis_is_connected(const struct redis *redis);
/* The address that is used, or tried next. Borrowed until redis_move. */
const char *redis_address(const struct redis *redis);

/* Goes on with other addresses, which are copied, as when the connection broke; a client that is `with` this
 * one follows. Not to be called within a callback of the client. */
int redis_move(struct redis *redis, const char *address, struct err *err);

/* Queues a command; the arguments are copied. 'reply' (may be NULL) is called once unless -1 is returned:
 * ERR_BUSY when the queue is full, ERR_TOO_BIG. timeout_ms counts from now; 0 means 5000. */
int redis_command(struct redis *redis, uint32_t timeout_ms, redis_reply_fn *reply, void *arg, int argc,
                  const char *const *argv, const size_t *lengths, struct err *err);

/* The streams of this system have two fields: "m", the document, and "a", its seal (common/seal.h). */
struct redis_entry {
    const void *payload, *seal; /* NULL with size 0 when the field is missing */
    size_t size, seal_size;
};

/* Sends XADD stream [MAXLEN ~ length_max] * m payload [a seal]; the reply is the id. */
int redis_stream_add(struct redis *redis, const char *stream, uint32_t length_max,
                     const struct redis_entry *entry, uint32_t timeout_ms, redis_reply_fn *reply, void *arg,
                     struct err *err);

struct redis_position {
    const char *stream, *after; /* after: "0" reads from the start, "$" only new entries */
};
/* Sends XREAD COUNT count (for each stream) BLOCK block_ms STREAMS stream… after…; at most 1000 streams. */
int redis_streams_read(struct redis *redis, const struct redis_position *positions, size_t stream_count,
                       uint32_t count, uint32_t block_ms, redis_reply_fn *reply, void *arg, struct err *err);

/* Sends XTRIM stream MINID id, which removes entries before 'id'. */
int redis_stream_trim(struct redis *redis, const char *stream, const char *id, redis_reply_fn *reply,
                      void *arg, struct err *err);

/* Calls 'entry' for each entry of an XREAD or XRANGE reply (nil has none; 'stream' is NULL for XRANGE),
 * stream by stream, oldest first, until it returns -1, which is then returned. Malformed replies:
 * ERR_CORRUPT. */
typedef int redis_entry_fn(void *arg, const char *stream, const char *id, const struct redis_entry *entry,
                           struct err *err);
int redis_stream_entries(const redisReply *reply, redis_entry_fn *entry, void *arg, struct err *err);

#endif
