/* Each stream has a file of records: 4-byte big-endian length, 8-byte number, 1-byte flags, document. A mark
 * record (without document) says that everything up to its number was acknowledged, whatever stands before
 * it.
 *
 * Invariant: behind file_bytes the file is empty, or the next write starts by truncating it there. So a
 * record is either whole and follows the one before it, or absent.
 */
#include "agent/journal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/file.h"
#include "common/frame.h"

enum { HEAD_SIZE = 13, FLAG_FINAL = 1, FLAG_MARK = 2, REWRITE_BYTES = 256 << 10, RECORD_MAX = 17 << 20 };

static const char suffix[] = ".events";

struct journal {
    char dir[512];
    uint64_t bytes_max;
    uint64_t bytes;
    uint64_t ids;
    int folder; /* descriptor of the folder, for syncs */
    unsigned stream_count;
    struct journal_stream *streams;
};

/* ---- records ---- */

static void journal_number_put(uint8_t *at, uint64_t value, int size)
{
    for (int i = 0; i < size; i++)
        at[i] = (uint8_t)(value >> (8 * (size - 1 - i)));
}

static uint64_t journal_number_get(const uint8_t *at, int size)
{
    uint64_t value = 0;
    for (int i = 0; i < size; i++)
        value = value << 8 | at[i];
    return value;
}

static int record_append(struct buf *out, uint64_t seq, unsigned flags, const void *data, size_t size,
                         struct err *err)
{
    uint8_t head[HEAD_SIZE];
    journal_number_put(head, size + HEAD_SIZE - 4, 4);
    journal_number_put(head + 4, seq, 8);
    head[12] = (uint8_t)flags;
    return buf_append(out, head, sizeof(head), err) < 0 || buf_append(out, data, size, err) < 0 ? -1 : 0;
}

/* Writes a record at file_bytes. Bytes behind that are truncated first: a record must not be followed by the
 * rest of a longer one whose write failed. */
static int record_write(struct journal_stream *stream, uint64_t seq, unsigned flags, const void *data,
                        size_t size, struct err *err)
{
    struct buf record;
    buf_init(&record, RECORD_MAX);
    int result = record_append(&record, seq, flags, data, size, err);
    if (result == 0 &&
        file_pwrite_all(stream->fd, record.data, record.size, stream->file_bytes, stream->key, err) < 0) {
        result = -1;
        stream->suspect = ftruncate(stream->fd, (off_t)stream->file_bytes) < 0;
    } else if (result == 0) {
        stream->file_bytes += record.size;
        stream->written = seq;
    }
    buf_fini(&record);
    return result;
}

/* Writes all events that are not in the file. A mark skips those that were acknowledged before they could be
 * written. */
static int stream_write(struct journal_stream *stream, struct err *err)
{
    if (stream->suspect)
        return err_set(err, ERR_IO, "the journal's file of %s could not be brought to the disk", stream->key);
    if (stream->acked > stream->written &&
        record_write(stream, stream->acked, FLAG_MARK | (stream->final && !stream->first ? FLAG_FINAL : 0u),
                     NULL, 0, err) < 0) {
        return -1;
    }
    while (stream->unwritten) {
        const struct journal_event *event = stream->unwritten;
        if (record_write(stream, event->seq, event->final ? FLAG_FINAL : 0, event->bytes, event->size, err) <
            0) {
            return -1;
        }
        stream->unwritten = event->next;
    }
    return 0;
}

static void path_of(const struct journal *journal, const char *key, char *out, size_t size)
{
    snprintf(out, size, "%s/%s%s", journal->dir, key, suffix);
}

static void events_free(struct journal_stream *stream)
{
    while (stream->first) {
        struct journal_event *event = stream->first;
        stream->first = event->next;
        stream->journal->bytes -= event->size;
        free(event);
    }
    stream->tail = NULL;
    stream->unwritten = NULL;
    stream->held_bytes = 0;
}

/* ---- streams ---- */

static struct journal_stream *stream_make(struct journal *journal, const char *key, struct err *err)
{
    if (journal->stream_count == JOURNAL_STREAMS_MAX) {
        err_set(err, ERR_BUSY, "the journal holds %d streams already", JOURNAL_STREAMS_MAX);
        return NULL;
    }
    struct journal_stream *stream = calloc(1, sizeof(*stream));
    if (!stream) {
        err_set(err, ERR_NOMEM, "no memory for a journal");
        return NULL;
    }
    snprintf(stream->key, sizeof(stream->key), "%s", key);
    stream->journal = journal;
    char path[1024];
    path_of(journal, key, path, sizeof(path));
    stream->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (stream->fd < 0) {
        err_errno(err, ERR_IO, errno, "could not open file \"%s\"", path);
        free(stream);
        return NULL;
    }
    stream->fresh = true;
    stream->id = ++journal->ids;
    stream->next = journal->streams;
    journal->streams = stream;
    journal->stream_count++;
    return stream;
}

static void event_keep(struct journal_stream *stream, struct journal_event *event)
{
    if (stream->tail)
        stream->tail->next = event;
    else
        stream->first = event;
    stream->tail = event;
    stream->last = event->seq;
    stream->final = stream->final || event->final;
    stream->journal->bytes += event->size;
    stream->held_bytes += event->size;
}

static struct journal_event *event_make(uint64_t seq, bool final, const void *bytes, size_t size)
{
    struct journal_event *event = malloc(sizeof(*event) + size);
    if (event) {
        *event = (struct journal_event){.seq = seq, .final = final, .size = size};
        memcpy(event->bytes, bytes, size);
    }
    return event;
}

/* Reads one record of a loaded file. Returns its size, or 0 if it is torn or wrong. */
static size_t record_load(struct journal_stream *stream, const uint8_t *at, size_t left)
{
    size_t size = left < HEAD_SIZE ? 0 : (size_t)journal_number_get(at, 4) + 4;
    if (size < HEAD_SIZE || size > left)
        return 0;
    uint64_t seq = journal_number_get(at + 4, 8);
    bool final = (at[12] & FLAG_FINAL) != 0;
    if (at[12] & FLAG_MARK) {
        if (seq < stream->last)
            return 0;
        events_free(stream);
        stream->acked = seq;
        stream->last = seq;
        stream->final = final;
        return size;
    }
    struct journal_event *event =
        seq == stream->last + 1 ? event_make(seq, final, at + HEAD_SIZE, size - HEAD_SIZE) : NULL;
    if (!event)
        return 0;
    event_keep(stream, event);
    return size;
}

static int stream_load(struct journal *journal, const char *key, struct err *err)
{
    char path[1024];
    path_of(journal, key, path, sizeof(path));
    struct buf bytes;
    buf_init(&bytes, (size_t)journal->bytes_max * 2 + RECORD_MAX);
    struct journal_stream *stream = NULL;
    if (file_read_all(path, bytes.limit, &bytes, err) == 0)
        stream = stream_make(journal, key, err);
    for (size_t used; stream && stream->file_bytes < bytes.size; stream->file_bytes += used) {
        used = record_load(stream, bytes.data + stream->file_bytes, bytes.size - stream->file_bytes);
        if (used == 0)
            break;
    }
    if (stream && ftruncate(stream->fd, (off_t)stream->file_bytes) < 0) {
        err_errno(err, ERR_IO, errno, "could not cut file \"%s\"", path);
        stream = NULL;
    }
    if (stream) {
        stream->sent = stream->acked;
        stream->durable = stream->acked; /* later events may not have reached the disk */
        stream->written = stream->last;
    }
    buf_fini(&bytes);
    return stream ? 0 : -1;
}

struct journal *journal_open(const char *dir, uint64_t bytes_max, struct err *err)
{
    if (file_mkdirs(dir, 0700, err) < 0)
        return NULL;
    struct journal *journal = calloc(1, sizeof(*journal));
    DIR *folder = !journal ? NULL : opendir(dir);
    int kept = !folder ? -1 : fcntl(dirfd(folder), F_DUPFD_CLOEXEC, 0);
    if (kept < 0) {
        err_errno(err, ERR_IO, errno, "could not open folder \"%s\"", dir);
        if (folder)
            closedir(folder);
        free(journal);
        return NULL;
    }
    journal->folder = kept;
    snprintf(journal->dir, sizeof(journal->dir), "%s", dir);
    journal->bytes_max = bytes_max;
    struct dirent *entry;
    int result = 0;
    while (result == 0 && (entry = readdir(folder))) {
        char *end = strstr(entry->d_name, suffix);
        size_t length = !end ? 0 : (size_t)(end - entry->d_name);
        if (length > 0 && length < JOURNAL_KEY_SIZE && strcmp(end, suffix) == 0) {
            *end = '\0';
            result = stream_load(journal, entry->d_name, err);
        }
    }
    closedir(folder);
    if (result < 0) {
        journal_close(journal);
        return NULL;
    }
    return journal;
}

static void stream_free(struct journal_stream *stream)
{
    events_free(stream);
    if (stream->fd >= 0)
        close(stream->fd);
    free(stream);
}

void journal_close(struct journal *journal)
{
    if (!journal)
        return;
    while (journal->streams) {
        struct journal_stream *stream = journal->streams;
        journal->streams = stream->next;
        stream_free(stream);
    }
    close(journal->folder);
    free(journal);
}

bool journal_is_full(const struct journal *journal)
{
    return journal->bytes >= journal->bytes_max;
}

bool journal_holds_events(const struct journal *journal)
{
    for (const struct journal_stream *stream = journal->streams; stream != NULL; stream = stream->next)
        if (stream->first)
            return true;
    return false;
}

struct journal_stream *journal_first(struct journal *journal)
{
    return journal->streams;
}

struct journal_stream *journal_find(struct journal *journal, const char *key)
{
    struct journal_stream *stream = journal->streams;
    while (stream && strcmp(stream->key, key) != 0)
        stream = stream->next;
    return stream;
}

struct journal_stream *journal_stream(struct journal *journal, const char *key, struct err *err)
{
    struct journal_stream *stream = journal_find(journal, key);
    return stream ? stream : stream_make(journal, key, err);
}

int journal_append(struct journal_stream *stream, json_t *event, bool final, struct err *err)
{
    if (stream->final)
        return err_set(err, ERR_CONFLICT, "an event behind the last one of %s", stream->key);
    struct buf document;
    buf_init(&document, JOURNAL_EVENT_MAX);
    int result = -1;
    bool whole = !stream->unwritten && !stream->suspect;
    struct journal_event *kept = NULL;
    uint64_t seq = stream->last + 1;
    if (json_object_set_new(event, "seq", json_integer((json_int_t)seq)) < 0 ||
        frame_encode(event, &document, err) < 0) {
        goto out;
    }
    kept = event_make(seq, final, document.data, document.size);
    if (!kept) {
        err_set(err, ERR_NOMEM, "no memory for an event of %zu bytes", document.size);
        goto out;
    }
    event_keep(stream, kept);
    stream->unwritten = !stream->unwritten ? kept : stream->unwritten;
    result = stream_write(stream, err) < 0 && whole ? -1 : 0;
out:
    buf_fini(&document);
    return result;
}

/* Replaces the file by a new one with a mark and the stored events. The new file is synced before it replaces
 * the old one; on an error the old one stays. */
static int stream_rewrite(struct journal_stream *stream, struct err *err)
{
    struct buf bytes;
    buf_init(&bytes, (size_t)stream->held_bytes * 2 + RECORD_MAX);
    int result = record_append(&bytes, stream->acked,
                               FLAG_MARK | (stream->final && !stream->first ? FLAG_FINAL : 0u), NULL, 0, err);
    for (struct journal_event *event = stream->first; result == 0 && event; event = event->next) {
        result =
            record_append(&bytes, event->seq, event->final ? FLAG_FINAL : 0, event->bytes, event->size, err);
    }
    char path[1024];
    char beside[1040];
    path_of(stream->journal, stream->key, path, sizeof(path));
    snprintf(beside, sizeof(beside), "%s.new", path);
    int fd = result == 0 ? open(beside, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
    if (result == 0 && fd < 0)
        result = err_errno(err, ERR_IO, errno, "could not create file \"%s\"", beside);
    if (fd >= 0) {
        result = file_pwrite_all(fd, bytes.data, bytes.size, 0, beside, err);
        if (result == 0 && (fdatasync(fd) < 0 || rename(beside, path) < 0))
            result = err_errno(err, ERR_IO, errno, "could not put file \"%s\" in place", path);
    }
    if (result == 0) {
        close(stream->fd);
        stream->fd = fd;
        stream->file_bytes = bytes.size;
        stream->written = stream->last;
        stream->unwritten = NULL;
        stream->suspect = false;
        stream->fresh = true;
    } else if (fd >= 0) {
        close(fd);
        unlink(beside);
    }
    buf_fini(&bytes);
    return result;
}

/* ---- syncing ---- */

int journal_sync_begin(struct journal_stream *stream, struct journal_sync *sync, struct err *err)
{
    if (stream->durable == stream->last)
        return 0;
    if ((stream->suspect ? stream_rewrite(stream, err) : stream_write(stream, err)) < 0)
        return -1;
    *sync = (struct journal_sync){.id = stream->id,
                                  .upto = stream->written,
                                  .fd = fcntl(stream->fd, F_DUPFD_CLOEXEC, 0),
                                  .folder = stream->fresh ? stream->journal->folder : -1};
    return sync->fd >= 0 ? 1
                         : err_errno(err, ERR_IO, errno, "could not keep the file of %s open", stream->key);
}

int journal_sync_run(const struct journal_sync *sync, struct err *err)
{
    if (fdatasync(sync->fd) < 0 || (sync->folder >= 0 && fsync(sync->folder) < 0))
        return err_errno(err, ERR_IO, errno, "could not bring the journal to the disk");
    return 0;
}

void journal_sync_end(struct journal *journal, struct journal_sync *sync, int result)
{
    close(sync->fd);
    sync->fd = -1;
    struct journal_stream *stream = journal->streams;
    while (stream && stream->id != sync->id)
        stream = stream->next;
    if (!stream)
        return;
    if (result < 0) {
        stream->suspect = true;
        return;
    }
    stream->fresh = stream->fresh && sync->folder < 0;
    stream->durable = sync->upto > stream->durable ? sync->upto : stream->durable;
}

void journal_ack(struct journal_stream *stream, uint64_t seq)
{
    seq = seq > stream->last ? stream->last : seq;
    while (stream->first && stream->first->seq <= seq) {
        struct journal_event *event = stream->first;
        stream->first = event->next;
        stream->unwritten = stream->unwritten == event ? event->next : stream->unwritten;
        stream->journal->bytes -= event->size;
        stream->held_bytes -= event->size;
        free(event);
    }
    stream->tail = !stream->first ? NULL : stream->tail;
    stream->acked = seq > stream->acked ? seq : stream->acked;
    stream->sent = stream->sent < stream->acked ? stream->acked : stream->sent;
    if (stream->closed && !stream->first) {
        journal_stream_drop(stream);
    } else if (stream->file_bytes > REWRITE_BYTES && stream->held_bytes < stream->file_bytes / 2) {
        struct err ignored; /* the old file stays in use */
        stream_rewrite(stream, &ignored);
    }
}

void journal_stream_close(struct journal_stream *stream)
{
    stream->closed = true;
    if (!stream->first)
        journal_stream_drop(stream);
}

void journal_stream_drop(struct journal_stream *stream)
{
    struct journal *journal = stream->journal;
    struct journal_stream **link = &journal->streams;
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    journal->stream_count--;
    char path[1024];
    path_of(journal, stream->key, path, sizeof(path));
    unlink(path);
    stream_free(stream);
}
