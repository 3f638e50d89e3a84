/* Feeds bytes that a Redis might send: replies, the stream entries in them, and the documents in the entries.
 */
#include "fuzz/fuzz.h"

#include <hiredis/hiredis.h>

#include "common/frame.h"
#include "common/redis.h"

static int entry(void *arg, const char *stream, const char *id, const struct redis_entry *entry,
                 struct err *err)
{
    (void)arg, (void)stream;
    if (!id || (!entry->seal && entry->seal_size))
        __builtin_trap();
    json_decref(entry->payload ? frame_decode(entry->payload, entry->size, &frame_limits_default, err)
                               : NULL);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err;
    void *reply = NULL;
    redisReader *reader = redisReaderCreate();
    if (reader && redisReaderFeed(reader, (const char *)data, size) == REDIS_OK)
        while (redisReaderGetReply(reader, &reply) == REDIS_OK && reply) {
            redis_stream_entries(reply, entry, NULL, &err);
            freeReplyObject(reply);
        }
    redisReaderFree(reader);
    return 0;
}
