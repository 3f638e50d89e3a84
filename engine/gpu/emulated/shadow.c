/* For every byte of memory, who accessed it in the launch under way, and whether anybody ever wrote it. Two
 * accesses of which one writes must be ordered: by being of one thread, or of one block with a barrier
 * between them, or of one warp with a warp's barrier between them. Launches of one queue are ordered; of
 * several, their events are what orders them, which is not looked at here. */
#include "engine/gpu/emulated/emulated.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum readers { READERS_NONE, READERS_ONE, READERS_WARP, READERS_BLOCK, READERS_ALL };

struct mark {
    uint32_t block, thread, warp, epoch, warp_epoch;
};

struct byte_shadow {
    uint32_t launch; /* of the marks */
    uint8_t written; /* ever */
    uint8_t wrote;   /* in this launch: `writer` did */
    uint8_t updated; /* it was an atomic */
    uint8_t readers; /* enum readers; the last of them in `reader` */
    struct mark writer, reader;
};

struct emulated_shadow {
    uint64_t bytes;
    struct byte_shadow *at;
};

int emulated_shadow_create(uint64_t bytes, struct emulated_shadow **out, struct err *err)
{
    *out = malloc(sizeof **out);
    void *at = mmap(NULL, bytes * sizeof(struct byte_shadow), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (*out == NULL || at == MAP_FAILED) {
        free(*out);
        *out = NULL;
        return err_set(err, ERR_NOMEM, "no address space to check the accesses of %llu bytes",
                       (unsigned long long)bytes);
    }
    **out = (struct emulated_shadow){.bytes = bytes, .at = at};
    return 0;
}

void emulated_shadow_destroy(struct emulated_shadow *shadow)
{
    if (shadow == NULL)
        return;
    munmap(shadow->at, shadow->bytes * sizeof(struct byte_shadow));
    free(shadow);
}

void emulated_shadow_forget(struct emulated_shadow *shadow, uint64_t at, uint64_t bytes)
{
    memset(shadow->at + at, 0, bytes * sizeof *shadow->at);
}

void emulated_shadow_write(struct emulated_shadow *shadow, uint64_t at, uint64_t bytes)
{
    for (uint64_t i = at; i < at + bytes; i++)
        shadow->at[i].written = 1;
}

bool emulated_shadow_written(const struct emulated_shadow *shadow, uint64_t at, uint64_t bytes,
                             uint64_t *first)
{
    for (*first = at; *first < at + bytes; (*first)++)
        if (!shadow->at[*first].written)
            return false;
    return true;
}

static bool ordered(const struct mark *before, const struct mark *now)
{
    if (before->block != now->block)
        return false;
    return before->thread == now->thread || before->epoch != now->epoch ||
           (before->warp == now->warp && before->warp_epoch != now->warp_epoch);
}

/* Are all reads so far ordered before this write? */
static bool reads_ordered(const struct byte_shadow *byte, const struct mark *now)
{
    const struct mark *reader = &byte->reader;
    switch ((enum readers)byte->readers) {
    case READERS_NONE:
        return true;
    case READERS_ONE:
        return ordered(reader, now);
    case READERS_WARP:
        return reader->block == now->block &&
               (reader->epoch != now->epoch ||
                (reader->warp == now->warp && reader->warp_epoch != now->warp_epoch));
    case READERS_BLOCK:
        return reader->block == now->block && reader->epoch != now->epoch;
    default:
        return false;
    }
}

static void read_mark(struct byte_shadow *byte, const struct mark *now)
{
    const struct mark *reader = &byte->reader;
    enum readers readers = byte->readers;
    if (reads_ordered(byte, now))
        readers = READERS_ONE;
    else if (reader->block != now->block || readers == READERS_ALL)
        readers = READERS_ALL;
    else if (reader->warp != now->warp || readers == READERS_BLOCK)
        readers = READERS_BLOCK;
    else if (reader->thread != now->thread || readers == READERS_WARP)
        readers = READERS_WARP;
    byte->readers = (uint8_t)readers;
    byte->reader = *now;
}

static struct emulated_who who_of(const struct mark *mark, uint32_t launch)
{
    return (struct emulated_who){.launch = launch, .block = mark->block, .thread = mark->thread};
}

static const char *byte_access(struct byte_shadow *byte, enum emulated_access access, uint32_t launch,
                               const struct mark *now, struct emulated_who *other)
{
    if (byte->launch != launch) {
        byte->launch = launch;
        byte->wrote = byte->updated = 0;
        byte->readers = READERS_NONE;
    }
    if (access != EMULATED_WRITE && !byte->written)
        return "nobody wrote it";
    bool both_atomic = access == EMULATED_ATOMIC && byte->updated;
    if (byte->wrote && !both_atomic && !ordered(&byte->writer, now)) {
        *other = who_of(&byte->writer, launch);
        return "another thread writes it with no barrier between them";
    }
    if (access == EMULATED_READ) {
        read_mark(byte, now);
        return NULL;
    }
    if (!reads_ordered(byte, now)) {
        *other = who_of(&byte->reader, launch);
        return "another thread reads it with no barrier between them";
    }
    byte->written = byte->wrote = 1;
    byte->updated = access == EMULATED_ATOMIC;
    byte->readers = READERS_NONE;
    byte->writer = *now;
    return NULL;
}

const char *emulated_shadow_access(struct emulated_shadow *shadow, uint64_t at, uint32_t bytes,
                                   enum emulated_access access, const struct emulated_who *who,
                                   struct emulated_who *other)
{
    struct mark now = {.block = who->block,
                       .thread = who->thread,
                       .warp = who->warp,
                       .epoch = who->epoch,
                       .warp_epoch = who->warp_epoch};
    const char *wrong = NULL;
    for (uint64_t i = at; i < at + bytes && wrong == NULL; i++)
        wrong = byte_access(&shadow->at[i], access, who->launch, &now, other);
    return wrong;
}
