/* Redis over a libevent bufferevent.
 *
 * Commands are in one list, oldest first: [sent … sent, waiting … waiting]. A reply answers the head. When
 * the connection is lost the sent commands fail and the others stay. AUTH (or PING) is sent first on each
 * connection, outside the list; its reply makes the connection ready.
 *
 * Callbacks may destroy the client or queue more commands. So the client is freed only when the outermost of
 * our event handlers returns ('depth'), and the list is read again after each callback.
 */
#include "common/redis.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/dns.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "common/clock.h"
#include "common/redis_private.h"
#include "common/tls.h"

enum {
    QUEUE_MAX = 8192,
    QUEUE_BYTES_MAX = 256 << 20,
    CONNECT_MS = 3000,
    BACKOFF_MIN_MS = 50,
    BACKOFF_MAX_MS = 2000,
    SWEEP_MS = 50,       /* pause between looks for passed deadlines */
    ELEMENTS_MAX = 4096, /* most elements of one array in a reply */
    BEACON_MS = 1000,    /* pause between looks for the beacon */
    BEACON_MISSED = 2,   /* so many looks in a row that do not find it end the connection */
    REPLY_BYTES_MAX = 512 << 20
};

enum redis_state { STATE_DOWN, STATE_CONNECTING, STATE_GREETING, STATE_READY };

#if HIREDIS_MAJOR >= 1
typedef size_t array_size;
#else
typedef int array_size;
#endif
typedef void *array_create_fn(const redisReadTask *task, array_size count);

struct queued_command {
    struct queued_command *next;
    redis_reply_fn *reply;
    void *arg;
    uint64_t deadline_ns;
    size_t size;
    bool sent;
    bool abandoned; /* answered at its deadline; the reply has not arrived yet */
    char *bytes;
};

struct redis {
    struct event_base *base;
    struct evdns_base *dns;
    struct event *timer; /* starts the next attempt to connect */
    struct event *sweep; /* looks for passed deadlines */
    struct bufferevent *stream;
    redisReader *reader;
    redisReplyObjectFunctions making; /* hiredis' own functions, except for arrays */
    array_create_fn *array_create;    /* hiredis' own function, which array_create_bounded calls */
    enum redis_state state;
    struct redis_events events;
    void *arg;
    struct redis_places places;
    unsigned at;      /* the address that is used, or tried next */
    const char *host; /* its host, for messages */
    struct redis *with, *follower;
    char *beacon;        /* NULL with one address */
    struct event *watch; /* looks for the beacon */
    unsigned missed;     /* looks in a row that did not find it */
    unsigned greetings;  /* replies to the greeting that are still to come */
    char *user;
    char *password;
    SSL_CTX *tls;
    struct queued_command *head;
    struct queued_command *tail;
    struct queued_command *unsent; /* the first command that was not sent */
    uint32_t count;
    uint32_t queue_max;
    uint64_t bytes;
    uint64_t bytes_max;
    uint64_t reply_bytes; /* received of the reply that is being read */
    uint64_t reply_bytes_max;
    uint32_t connect_ms;
    uint32_t backoff_min_ms;
    uint32_t backoff_max_ms;
    uint32_t backoff_ms;
    unsigned depth; /* number of our handlers on the stack */
    bool destroyed;
};

static void connection_start(struct redis *redis);
static void connection_lost(struct redis *redis, const struct err *why);

/* ---- creating and destroying ---- */

static void redis_free(struct redis *redis)
{
    if (redis->stream)
        bufferevent_free(redis->stream);
    if (redis->reader)
        redisReaderFree(redis->reader);
    if (redis->timer)
        event_free(redis->timer);
    if (redis->sweep)
        event_free(redis->sweep);
    if (redis->dns)
        evdns_base_free(redis->dns, 0);
    if (redis->password)
        explicit_bzero(redis->password, strlen(redis->password));
    redis_places_fini(&redis->places);
    if (redis->watch)
        event_free(redis->watch);
    free(redis->beacon);
    free(redis->user);
    free(redis->password);
    free(redis);
}

static void handler_enter(struct redis *redis)
{
    redis->depth++;
}

static void handler_leave(struct redis *redis)
{
    if (--redis->depth == 0 && redis->destroyed)
        redis_free(redis);
}

static void command_free(struct queued_command *command)
{
    free(command->bytes);
    free(command);
}

static struct queued_command *head_take(struct redis *redis)
{
    struct queued_command *command = redis->head;
    redis->head = command->next;
    if (!redis->head)
        redis->tail = NULL;
    if (redis->unsent == command)
        redis->unsent = redis->head;
    redis->count--;
    redis->bytes -= command->size;
    return command;
}

static void command_answer(struct queued_command *command, const redisReply *reply, const struct err *err)
{
    if (command->reply && !command->abandoned)
        command->reply(command->arg, reply, err);
    command_free(command);
}

void redis_destroy(struct redis *redis)
{
    if (!redis || redis->destroyed)
        return;
    redis->destroyed = true;
    if (redis->with)
        redis->with->follower = NULL;
    if (redis->follower)
        redis->follower->with = NULL;
    event_del(redis->timer);
    event_del(redis->sweep);
    if (redis->watch)
        event_del(redis->watch);
    struct err why;
    err_set(&why, ERR_CANCELLED, "the Redis client is closing");
    handler_enter(redis);
    while (redis->head)
        command_answer(head_take(redis), NULL, &why);
    if (redis->stream) {
        bufferevent_free(redis->stream);
        redis->stream = NULL;
    }
    redis->state = STATE_DOWN;
    handler_leave(redis);
}

bool redis_is_connected(const struct redis *redis)
{
    return redis->state == STATE_READY;
}

const char *redis_address(const struct redis *redis)
{
    return redis->places.items[redis->at].text;
}

/* ---- sending ---- */

static void commands_send(struct redis *redis)
{
    if (redis->state != STATE_READY)
        return;
    for (; redis->unsent != NULL; redis->unsent = redis->unsent->next) {
        struct queued_command *command = redis->unsent;
        if (bufferevent_write(redis->stream, command->bytes, command->size) < 0)
            return; /* memory is short: the deadline ends the command */
        command->sent = true;
        free(command->bytes);
        command->bytes = NULL;
    }
}

static void redis_sweep_arm(struct redis *redis)
{
    if (!event_pending(redis->sweep, EV_TIMEOUT, NULL)) {
        struct timeval wait = {.tv_usec = SWEEP_MS * 1000};
        event_add(redis->sweep, &wait);
    }
}

int redis_command(struct redis *redis, uint32_t timeout_ms, redis_reply_fn *reply, void *arg, int argc,
                  const char *const *argv, const size_t *lengths, struct err *err)
{
    if (redis->destroyed)
        return err_set(err, ERR_CANCELLED, "the Redis client is closing");
    if (argc < 1 || argc > REDIS_ARGS_MAX)
        return err_set(err, ERR_TOO_BIG, "a Redis command of %d arguments, the limit is %d", argc,
                       REDIS_ARGS_MAX);
    if (redis->count >= redis->queue_max)
        return err_set(err, ERR_BUSY, "%u commands wait for Redis already", redis->count);
    char *bytes = NULL;
    /* hiredis takes a mutable array of pointers but does not change it. */
    long long size = redisFormatCommandArgv(&bytes, argc, (const char **)(uintptr_t)argv, lengths);
    struct queued_command *command = size < 0 ? NULL : calloc(1, sizeof(*command));
    if (!command) {
        if (size >= 0)
            free(bytes);
        return err_set(err, ERR_NOMEM, "no memory for a Redis command");
    }
    if (redis->bytes + (uint64_t)size > redis->bytes_max) {
        free(bytes);
        free(command);
        return err_set(err, ERR_BUSY, "%llu bytes wait for Redis already", (unsigned long long)redis->bytes);
    }
    *command = (struct queued_command){
        .reply = reply,
        .arg = arg,
        .deadline_ns =
            clock_mono_ns() + (uint64_t)(timeout_ms != 0 ? timeout_ms : REDIS_COMMAND_MS) * 1000000,
        .size = (size_t)size,
        .bytes = bytes,
    };
    if (redis->tail)
        redis->tail->next = command;
    else
        redis->head = command;
    redis->tail = command;
    redis->unsent = redis->unsent ? redis->unsent : command;
    redis->count++;
    redis->bytes += command->size;
    commands_send(redis);
    redis_sweep_arm(redis);
    return 0;
}

/* Answers commands whose deadline passed. Waiting ones leave the list; sent ones stay as placeholders for
 * their reply. */
static void deadlines_sweep(struct redis *redis, uint64_t now_ns)
{
    struct err late;
    err_set(&late, ERR_TIMEOUT, "Redis did not answer in time%s",
            redis->state == STATE_READY ? "" : ": not connected");
    struct queued_command **link = &redis->head;
    struct queued_command *before = NULL;
    while (!redis->destroyed && *link) {
        struct queued_command *command = *link;
        if (command->deadline_ns > now_ns || command->abandoned) {
            before = command;
            link = &command->next;
        } else if (command->sent) {
            redis_reply_fn *reply = command->reply;
            command->abandoned = true;
            before = command;
            link = &command->next;
            if (reply)
                reply(command->arg, NULL, &late);
        } else {
            *link = command->next;
            redis->tail = redis->tail == command ? before : redis->tail;
            redis->unsent = redis->unsent == command ? command->next : redis->unsent;
            redis->count--;
            redis->bytes -= command->size;
            command_answer(command, NULL, &late);
        }
    }
}

static void sweep_due(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct redis *redis = arg;
    handler_enter(redis);
    deadlines_sweep(redis, clock_mono_ns());
    if (!redis->destroyed && redis->head) {
        /* The connection is replaced if the server has answered nothing for 10 s after a deadline, because
         * the placeholders would hold up everything behind them. */
        uint64_t grace_ns = 10000000000u;
        if (redis->head->abandoned && clock_mono_ns() > redis->head->deadline_ns + grace_ns) {
            struct err why;
            err_set(&why, ERR_TIMEOUT, "Redis stopped answering");
            connection_lost(redis, &why);
        }
        if (!redis->destroyed)
            redis_sweep_arm(redis);
    }
    handler_leave(redis);
}

/* ---- receiving ---- */

static void reply_error(const redisReply *reply, struct err *err)
{
    static const struct {
        const char *prefix;
        enum err_code code;
    } table[] = {
        {"NOAUTH", ERR_AUTH},  {"WRONGPASS", ERR_AUTH},     {"NOPERM", ERR_DENIED},
        {"LOADING", ERR_BUSY}, {"OOM", ERR_BUSY},           {"READONLY", ERR_BUSY},
        {"MISCONF", ERR_IO},   {"BUSYGROUP", ERR_CONFLICT}, {"NOGROUP", ERR_NOT_FOUND},
    };
    enum err_code code = ERR_INVALID;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (strncmp(reply->str, table[i].prefix, strlen(table[i].prefix)) == 0)
            code = table[i].code;
    err_set(err, code, "Redis: %.300s", reply->str);
}

static bool beacon_counts(const struct redis *redis)
{
    return redis->beacon && redis->places.count > 1 && !redis->with;
}

/* Ends a connection that is of no use, and goes on to the next address. */
static void place_leave(struct redis *redis, const struct err *why)
{
    redis->at = (redis->at + 1) % redis->places.count;
    connection_lost(redis, why);
}

static void beacon_missing(struct redis *redis)
{
    struct err why;
    err_set(&why, ERR_NET, "nobody works with Redis at %.200s", redis_address(redis));
    place_leave(redis, &why);
}

static void watch_arm(struct redis *redis)
{
    const struct timeval pause = {.tv_sec = BEACON_MS / 1000, .tv_usec = BEACON_MS % 1000 * 1000};
    if (beacon_counts(redis))
        event_add(redis->watch, &pause);
}

static void beacon_answered(void *arg, const redisReply *reply, const struct err *err)
{
    struct redis *redis = arg;
    if (err->code == ERR_CANCELLED || err->code == ERR_NET || redis->state != STATE_READY)
        return;
    redis->missed = !reply || reply->type == REDIS_REPLY_NIL ? redis->missed + 1 : 0;
    if (redis->missed >= BEACON_MISSED)
        beacon_missing(redis);
    else
        watch_arm(redis);
}

static void watch_due(evutil_socket_t fd, short what, void *arg)
{
    struct redis *redis = arg;
    const char *argv[] = {"GET", redis->beacon};
    struct err ignored;
    (void)fd;
    (void)what;
    handler_enter(redis);
    if (redis->state == STATE_READY &&
        redis_command(redis, 0, beacon_answered, redis, 2, argv, NULL, &ignored) < 0)
        watch_arm(redis);
    handler_leave(redis);
}

/* Handles the replies to AUTH or PING, and to GET of the beacon, on a new connection. */
static void greeting_answered(struct redis *redis, const redisReply *reply)
{
    struct err why;
    if (reply->type == REDIS_REPLY_ERROR) {
        reply_error(reply, &why);
        connection_lost(redis, &why);
        return;
    }
    if (redis->greetings > 1) {
        redis->greetings--;
        return;
    }
    redis->state = STATE_READY;
    if (beacon_counts(redis) && reply->type == REDIS_REPLY_NIL) {
        beacon_missing(redis);
        return;
    }
    redis->backoff_ms = 0;
    redis->missed = 0;
    event_del(redis->timer);
    watch_arm(redis);
    if (redis->follower && redis->follower->stream && redis->follower->at != redis->at) {
        err_set(&why, ERR_NET, "Redis is now at %.200s", redis_address(redis));
        connection_lost(redis->follower, &why);
    }
    if (!redis->destroyed && redis->events.connected)
        redis->events.connected(redis->arg);
    if (!redis->destroyed)
        commands_send(redis);
}

static void reply_arrived(struct redis *redis, const redisReply *reply)
{
    if (redis->state == STATE_GREETING) {
        greeting_answered(redis, reply);
        return;
    }
    if (!redis->head || !redis->head->sent) {
        struct err why;
        err_set(&why, ERR_PEER, "Redis sent a reply that nobody asked for");
        connection_lost(redis, &why);
        return;
    }
    struct err err = {0};
    bool is_replica = false;
    if (reply->type == REDIS_REPLY_ERROR) {
        reply_error(reply, &err);
        is_replica = redis->places.count > 1 && strncmp(reply->str, "READONLY", 8) == 0;
        reply = NULL;
    }
    struct bufferevent *stream = redis->stream;
    command_answer(head_take(redis), reply, &err);
    if (is_replica && redis->stream == stream)
        place_leave(redis, &err);
}

static void redis_stream_readable(struct bufferevent *stream, void *arg)
{
    struct redis *redis = arg;
    handler_enter(redis);
    struct evbuffer *input = bufferevent_get_input(stream);
    struct err why;
    while (redis->stream == stream && evbuffer_get_length(input) > 0) {
        struct evbuffer_iovec piece;
        if (evbuffer_peek(input, -1, NULL, &piece, 1) < 1)
            break;
        size_t size = piece.iov_len;
        redis->reply_bytes += size; /* hiredis drops what it has parsed, so its buffer does not tell */
        bool fed = redisReaderFeed(redis->reader, piece.iov_base, size) == REDIS_OK;
        evbuffer_drain(input, size);
        void *reply = NULL;
        while (fed && redis->stream == stream &&
               (fed = redisReaderGetReply(redis->reader, &reply) == REDIS_OK) && reply) {
            reply_arrived(redis, reply);
            freeReplyObject(reply);
            reply = NULL;
            redis->reply_bytes = redis->stream == stream ? redis->reader->len - redis->reader->pos : 0;
        }
        if (redis->stream != stream || (fed && redis->reply_bytes <= redis->reply_bytes_max))
            continue;
        if (fed) {
            err_set(&why, ERR_PEER, "Redis sent a reply of more than %llu bytes",
                    (unsigned long long)redis->reply_bytes_max);
        } else {
            err_set(&why, ERR_PEER, "Redis sent what is no reply: %.128s", redis->reader->errstr);
        }
        connection_lost(redis, &why);
    }
    handler_leave(redis);
}

/* ---- connecting ---- */

static void greeting_send(struct redis *redis)
{
    const char *argv[3] = {"AUTH", redis->user, redis->password};
    int argc = 3;
    if (!redis->password) {
        argv[0] = "PING";
        argc = 1;
    } else if (!redis->user) {
        argv[1] = redis->password;
        argc = 2;
    }
    char *bytes = NULL;
    int size = (int)redisFormatCommandArgv(&bytes, argc, argv, NULL);
    if (size > 0) {
        bufferevent_write(redis->stream, bytes, (size_t)size);
        explicit_bzero(bytes, (size_t)size);
        free(bytes);
    }
    redis->greetings = 1;
    const char *beacon[2] = {"GET", redis->beacon};
    if (beacon_counts(redis) && (size = (int)redisFormatCommandArgv(&bytes, 2, beacon, NULL)) > 0) {
        bufferevent_write(redis->stream, bytes, (size_t)size);
        free(bytes);
        redis->greetings = 2;
    }
    redis->state = STATE_GREETING; /* the connection timer is still running */
}

static void stream_error(struct redis *redis, short what, struct err *why)
{
    int number = EVUTIL_SOCKET_ERROR();
    unsigned long code = bufferevent_get_openssl_error(redis->stream);
    SSL *ssl = bufferevent_openssl_get_ssl(redis->stream);
    int dns = bufferevent_socket_get_dns_error(redis->stream);
    if (dns != 0) {
        err_set(why, ERR_NET, "Redis host \"%s\" is not known: %s", redis->host, evutil_gai_strerror(dns));
    } else if (ssl && (ERR_GET_LIB(code) > ERR_LIB_SYS || SSL_get_verify_result(ssl) != X509_V_OK)) {
        tls_error(ssl, redis->host, code, why);
    } else if (ssl && redis->state == STATE_GREETING) {
        /* In TLS 1.3 a refusal of our certificate arrives after our side has finished, and a reset may
         * discard it. */
        err_set(why, ERR_PEER,
                "Redis at %s closed the connection after the handshake: our certificate may be of another "
                "cluster",
                redis->host);
    } else if (what & BEV_EVENT_EOF) {
        err_set(why, ERR_NET, "Redis at %s closed the connection", redis->host);
    } else {
        err_errno(why, ERR_NET, number, "Redis at %s cannot be reached", redis->host);
    }
}

static void redis_stream_event(struct bufferevent *stream, short what, void *arg)
{
    struct redis *redis = arg;
    if (redis->stream != stream)
        return;
    handler_enter(redis);
    if (what & BEV_EVENT_CONNECTED) {
        int one = 1;
        setsockopt(bufferevent_getfd(stream), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        greeting_send(redis);
    } else if (what & (BEV_EVENT_ERROR | BEV_EVENT_EOF)) {
        struct err why;
        stream_error(redis, what, &why);
        connection_lost(redis, &why);
    }
    handler_leave(redis);
}

static void timer_arm(struct redis *redis, uint32_t ms)
{
    struct timeval wait = {.tv_sec = ms / 1000, .tv_usec = (suseconds_t)(ms % 1000) * 1000};
    event_add(redis->timer, &wait);
}

/* Drops the connection, fails the sent commands, and reconnects later. */
static void connection_lost(struct redis *redis, const struct err *why)
{
    handler_enter(redis);
    if (redis->stream) {
        bufferevent_free(redis->stream);
        redis->stream = NULL;
    }
    if (!redis->with && (redis->state == STATE_CONNECTING || redis->state == STATE_GREETING))
        redis->at = (redis->at + 1) % redis->places.count;
    redis->state = STATE_DOWN;
    redis->backoff_ms = redis->backoff_ms == 0 ? redis->backoff_min_ms : redis->backoff_ms * 2;
    if (redis->backoff_ms > redis->backoff_max_ms)
        redis->backoff_ms = redis->backoff_max_ms;
    timer_arm(redis, redis->backoff_ms);
    struct err err;
    err_set(&err, why->code == ERR_PEER ? ERR_PEER : ERR_NET, "%s", why->text);
    while (!redis->destroyed && redis->head && redis->head->sent)
        command_answer(head_take(redis), NULL, &err);
    if (!redis->destroyed && redis->events.disconnected)
        redis->events.disconnected(redis->arg, why);
    handler_leave(redis);
}

static int stream_connect(struct redis *redis)
{
    const struct redis_place *place = &redis->places.items[redis->at];
    if (place->is_unix) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        snprintf(address.sun_path, sizeof(address.sun_path), "%.*s", (int)sizeof(address.sun_path) - 1,
                 place->host);
        return bufferevent_socket_connect(redis->stream, (struct sockaddr *)&address, sizeof(address));
    }
    return bufferevent_socket_connect_hostname(redis->stream, redis->dns, AF_UNSPEC, place->host,
                                               place->port);
}

/* Refuses a large array before it is made, because an element costs us about a hundred times the bytes that
 * its sender pays. */
static void *array_create_bounded(const redisReadTask *task, array_size count)
{
    struct redis *redis = task->privdata;
    return count > ELEMENTS_MAX ? NULL : redis->array_create(task, count);
}

static void arrays_bound(struct redis *redis)
{
    if (redis->reader) {
        redis->making = *redis->reader->fn;
        redis->array_create = redis->making.createArray;
        redis->making.createArray = array_create_bounded;
        redis->reader->fn = &redis->making;
        redis->reader->privdata = redis;
    }
}

static void connection_start(struct redis *redis)
{
    struct err why;
    redis->at = redis->with ? redis->with->at : redis->at;
    redis->host = redis->places.items[redis->at].host;
    redisReaderFree(redis->reader);
    redis->reader = redisReaderCreate();
    redis->reply_bytes = 0;
    arrays_bound(redis);
    SSL *ssl = NULL;
    if (redis->tls && !(ssl = tls_client_create(
                            redis->tls, redis->places.items[redis->at].is_unix ? NULL : redis->host, &why))) {
        connection_lost(redis, &why);
        return;
    }
    int options = BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS;
    redis->stream =
        ssl ? bufferevent_openssl_socket_new(redis->base, -1, ssl, BUFFEREVENT_SSL_CONNECTING, options)
            : bufferevent_socket_new(redis->base, -1, options);
    if (!redis->stream || !redis->reader) {
        err_set(&why, ERR_NOMEM, "no memory for a connection to Redis");
        connection_lost(redis, &why);
        return;
    }
    redis->state = STATE_CONNECTING;
    bufferevent_setcb(redis->stream, redis_stream_readable, NULL, redis_stream_event, redis);
    bufferevent_enable(redis->stream, EV_READ | EV_WRITE);
    timer_arm(redis, redis->connect_ms);
    struct bufferevent *stream = redis->stream;
    if (stream_connect(redis) < 0 && redis->stream == stream) {
        err_errno(&why, ERR_NET, EVUTIL_SOCKET_ERROR(), "Redis at %s cannot be reached", redis->host);
        connection_lost(redis, &why);
    }
}

static void timer_due(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct redis *redis = arg;
    handler_enter(redis);
    if (redis->state == STATE_DOWN) {
        connection_start(redis);
    } else if (redis->state != STATE_READY) {
        struct err why;
        err_set(&why, ERR_TIMEOUT, "Redis at %s did not answer within %u ms", redis->host, redis->connect_ms);
        connection_lost(redis, &why);
    }
    handler_leave(redis);
}

/* Makes the resolver, if an address needs one. */
static void resolver_make(struct redis *redis)
{
    for (unsigned i = 0; i < redis->places.count && !redis->dns; i++) {
        const struct redis_place *place = &redis->places.items[i];
        /* The resolver has no event while idle, so that an event base with nothing else to do can end. */
        if (!place->is_unix && strspn(place->host, "0123456789.") != strlen(place->host) &&
            !strchr(place->host, ':'))
            redis->dns = evdns_base_new(redis->base,
                                        EVDNS_BASE_INITIALIZE_NAMESERVERS | EVDNS_BASE_DISABLE_WHEN_INACTIVE);
    }
}

static void places_take(struct redis *redis, const struct redis_places *places, const struct err *why)
{
    redis_places_fini(&redis->places);
    redis->places = *places;
    redis->host = places->items[0].host;
    redis->at = 0;
    resolver_make(redis);
    connection_lost(redis, why);
    redis->at = 0;
}

int redis_move(struct redis *redis, const char *address, struct err *err)
{
    struct redis_places places[2] = {{.count = 0}};
    struct redis *const clients[] = {redis, redis->follower};
    struct err why;
    err_set(&why, ERR_NET, "Redis is now at %.200s", address);
    if (redis_places_parse(&places[0], address, err) < 0 ||
        redis_places_parse(&places[1], address, err) < 0) {
        redis_places_fini(&places[0]);
        redis_places_fini(&places[1]);
        return -1;
    }
    for (int i = 0; i < 2 && clients[i]; i++)
        places_take(clients[i], &places[i], &why);
    if (!clients[1])
        redis_places_fini(&places[1]);
    return 0;
}

struct redis *redis_create(struct event_base *base, const struct redis_config *config,
                           const struct redis_events *events, void *arg, struct err *err)
{
    struct redis *redis = calloc(1, sizeof(*redis));
    if (!redis) {
        err_set(err, ERR_NOMEM, "no memory for a Redis client");
        return NULL;
    }
    redis->base = base;
    redis->arg = arg;
    redis->events = events ? *events : (struct redis_events){0};
    redis->tls = config->tls;
    redis->queue_max = config->queue_max != 0 ? config->queue_max : QUEUE_MAX;
    redis->bytes_max = config->queue_bytes_max != 0 ? config->queue_bytes_max : QUEUE_BYTES_MAX;
    redis->reply_bytes_max = config->reply_bytes_max != 0 ? config->reply_bytes_max : REPLY_BYTES_MAX;
    redis->connect_ms = config->connect_ms != 0 ? config->connect_ms : CONNECT_MS;
    redis->backoff_min_ms = config->backoff_ms_min != 0 ? config->backoff_ms_min : BACKOFF_MIN_MS;
    redis->backoff_max_ms = config->backoff_ms_max != 0 ? config->backoff_ms_max : BACKOFF_MAX_MS;
    if (redis_places_parse(&redis->places, config->address, err) < 0) {
        redis_free(redis);
        return NULL;
    }
    redis->beacon = config->beacon ? strdup(config->beacon) : NULL;
    redis->with = config->with;
    redis->watch = evtimer_new(base, watch_due, redis);
    redis->user = config->user ? strdup(config->user) : NULL;
    redis->password = config->password ? strdup(config->password) : NULL;
    redis->timer = evtimer_new(base, timer_due, redis);
    redis->sweep = evtimer_new(base, sweep_due, redis);
    redis->reader = redisReaderCreate();
    resolver_make(redis);
    if (!redis->timer || !redis->sweep || !redis->watch || !redis->reader) {
        redis_free(redis);
        err_set(err, ERR_NOMEM, "no memory for a Redis client");
        return NULL;
    }
    if (redis->with)
        redis->with->follower = redis;
    timer_arm(redis, 0); /* delayed, because callbacks never run inside redis_create */
    return redis;
}
