/* Commands and replies of Redis streams, on the client of redis.c. */
#include <stdio.h>
#include <string.h>

#include "common/redis.h"
#include "common/redis_private.h"

int redis_stream_add(struct redis *redis, const char *stream, uint32_t length_max,
                     const struct redis_entry *entry, uint32_t timeout_ms, redis_reply_fn *reply, void *arg,
                     struct err *err)
{
    char limit[16];
    snprintf(limit, sizeof(limit), "%u", length_max);
    const char *argv[10] = {"XADD", stream};
    size_t lengths[10];
    int argc = 2;
    if (length_max > 0) {
        argv[argc++] = "MAXLEN";
        argv[argc++] = "~";
        argv[argc++] = limit;
    }
    argv[argc++] = "*";
    argv[argc++] = "m";
    for (int i = 0; i < argc; i++)
        lengths[i] = strlen(argv[i]);
    argv[argc] = entry->payload;
    lengths[argc++] = entry->size;
    if (entry->seal) {
        argv[argc] = "a";
        lengths[argc++] = 1;
        argv[argc] = entry->seal;
        lengths[argc++] = entry->seal_size;
    }
    return redis_command(redis, timeout_ms, reply, arg, argc, argv, lengths, err);
}

int redis_streams_read(struct redis *redis, const struct redis_position *positions, size_t stream_count,
                       uint32_t count, uint32_t block_ms, redis_reply_fn *reply, void *arg, struct err *err)
{
    char number[16];
    char block[16];
    snprintf(number, sizeof(number), "%u", count);
    snprintf(block, sizeof(block), "%u", block_ms);
    const char *argv[REDIS_ARGS_MAX] = {"XREAD", "COUNT", number, "BLOCK", block, "STREAMS"};
    if (stream_count < 1 || stream_count > REDIS_STREAMS_MAX) {
        return err_set(err, ERR_TOO_BIG, "%zu streams to read at once, the limit is %d", stream_count,
                       REDIS_STREAMS_MAX);
    }
    for (size_t i = 0; i < stream_count; i++) {
        argv[6 + i] = positions[i].stream;
        argv[6 + stream_count + i] = positions[i].after;
    }
    return redis_command(redis, block_ms + REDIS_COMMAND_MS, reply, arg, (int)(6 + 2 * stream_count), argv,
                         NULL, err);
}

int redis_stream_trim(struct redis *redis, const char *stream, const char *id, redis_reply_fn *reply,
                      void *arg, struct err *err)
{
    const char *argv[] = {"XTRIM", stream, "MINID", id};
    return redis_command(redis, 0, reply, arg, 4, argv, NULL, err);
}

static int entries_fail(struct err *err)
{
    return err_set(err, ERR_CORRUPT, "Redis sent a stream entry that is none");
}

static void fields_read(const redisReply *fields, struct redis_entry *entry)
{
    for (size_t j = 0; fields->type == REDIS_REPLY_ARRAY && j + 1 < fields->elements; j += 2) {
        const redisReply *name = fields->element[j];
        const redisReply *value = fields->element[j + 1];
        if (name->type != REDIS_REPLY_STRING || name->len != 1 || value->type != REDIS_REPLY_STRING)
            continue;
        if (name->str[0] == 'm') {
            entry->payload = value->str;
            entry->size = value->len;
        } else if (name->str[0] == 'a') {
            entry->seal = value->str;
            entry->seal_size = value->len;
        }
    }
}

/* Visits the entries of [[id, [field, value, …]], …]. */
static int entries_walk(const char *stream, const redisReply *list, redis_entry_fn *entry, void *arg,
                        struct err *err)
{
    if (list->type != REDIS_REPLY_ARRAY)
        return entries_fail(err);
    for (size_t i = 0; i < list->elements; i++) {
        const redisReply *pair = list->element[i];
        if (pair->type != REDIS_REPLY_ARRAY || pair->elements != 2 ||
            pair->element[0]->type != REDIS_REPLY_STRING) {
            return entries_fail(err);
        }
        struct redis_entry fields = {0};
        fields_read(pair->element[1], &fields);
        if (entry(arg, stream, pair->element[0]->str, &fields, err) < 0)
            return -1;
    }
    return 0;
}

int redis_stream_entries(const redisReply *reply, redis_entry_fn *entry, void *arg, struct err *err)
{
    if (reply->type == REDIS_REPLY_NIL)
        return 0;
    if (reply->type != REDIS_REPLY_ARRAY)
        return entries_fail(err);
    /* XREAD answers [[stream, entries], …]; XRANGE answers entries. */
    bool of_streams = reply->elements > 0 && reply->element[0]->type == REDIS_REPLY_ARRAY &&
                      reply->element[0]->elements == 2 &&
                      reply->element[0]->element[1]->type == REDIS_REPLY_ARRAY &&
                      (reply->element[0]->element[1]->elements == 0 ||
                       reply->element[0]->element[1]->element[0]->type == REDIS_REPLY_ARRAY);
    if (!of_streams)
        return entries_walk(NULL, reply, entry, arg, err);
    for (size_t i = 0; i < reply->elements; i++) {
        const redisReply *stream = reply->element[i];
        if (stream->type != REDIS_REPLY_ARRAY || stream->elements != 2 ||
            stream->element[0]->type != REDIS_REPLY_STRING) {
            return entries_fail(err);
        }
        if (entries_walk(stream->element[0]->str, stream->element[1], entry, arg, err) < 0)
            return -1;
    }
    return 0;
}
