/* Records for every word of memory who accessed it in the current launch and whether anybody ever wrote it;
 * once a word is accessed in parts, for each of its bytes. Two accesses of which one writes must be ordered:
 * they are by the same thread, or by one block with a barrier between them, or by one warp with a warp
 * barrier between them. Launches on one queue are ordered; those on several queues are ordered by events,
 * which is not checked here. */
#include "engine/gpu/emulated/emulated.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    WORD = 4,
    PAGE = 4096,
    FORGET_BYTES = 64 << 10 /* from this size on, pages are returned to the system */
};

enum readers { READERS_NONE, READERS_ONE, READERS_WARP, READERS_BLOCK, READERS_ALL };

struct mark {
    uint32_t block, epoch, warp_epoch;
    uint16_t thread, warp;
};

struct shadow_cell {
    uint32_t launch; /* the launch to which the marks belong */
    bool written;    /* was ever written */
    bool wrote;      /* `writer` wrote it in this launch */
    bool updated;    /* the write was atomic */
    bool split;      /* for a word: its bytes have cells of their own, and this cell is no longer used */
    uint8_t readers; /* enum readers: who read it in this launch; the last of them is in `reader` */
    struct mark writer, reader;
};

struct emulated_shadow {
    uint64_t bytes;
    struct shadow_cell *words, *parts; /* parts: cells of bytes, used only after their word was split */
};

static struct shadow_cell *cells_map(uint64_t count)
{
    void *cells = mmap(NULL, count * sizeof(struct shadow_cell), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return cells == MAP_FAILED ? NULL : cells;
}

int emulated_shadow_create(uint64_t bytes, struct emulated_shadow **out, struct err *err)
{
    struct emulated_shadow *shadow = calloc(1, sizeof(*shadow));
    *out = NULL;
    if (shadow) {
        shadow->bytes = (bytes + WORD - 1) / WORD * WORD;
        shadow->words = cells_map(shadow->bytes / WORD);
        shadow->parts = cells_map(shadow->bytes);
    }
    if (!shadow || !shadow->words || !shadow->parts) {
        emulated_shadow_destroy(shadow);
        return err_set(err, ERR_NOMEM, "no address space to check the accesses of %llu bytes",
                       (unsigned long long)bytes);
    }
    *out = shadow;
    return 0;
}

void emulated_shadow_destroy(struct emulated_shadow *shadow)
{
    if (!shadow)
        return;
    if (shadow->words)
        munmap(shadow->words, shadow->bytes / WORD * sizeof(struct shadow_cell));
    if (shadow->parts)
        munmap(shadow->parts, shadow->bytes * sizeof(struct shadow_cell));
    free(shadow);
}

/* Zeroes [begin, end), whole pages by returning them to the system, because most of a large allocation is
 * never accessed. */
static void cells_clear(uint8_t *begin, uint8_t *end)
{
    uint8_t *first = begin + (PAGE - (uintptr_t)begin % PAGE) % PAGE, *last = end - (uintptr_t)end % PAGE;
    if (end - begin < FORGET_BYTES || madvise(first, (size_t)(last - first), MADV_DONTNEED) != 0) {
        memset(begin, 0, (size_t)(end - begin));
        return;
    }
    memset(begin, 0, (size_t)(first - begin));
    memset(last, 0, (size_t)(end - last));
}

void emulated_shadow_forget(struct emulated_shadow *shadow, uint64_t at, uint64_t bytes)
{
    cells_clear((uint8_t *)(shadow->words + at / WORD),
                (uint8_t *)(shadow->words + (at + bytes + WORD - 1) / WORD));
}

/* Splits a word: its bytes get cells that start with what is known of the word. */
static struct shadow_cell *word_split(struct emulated_shadow *shadow, uint64_t word)
{
    struct shadow_cell *parts = shadow->parts + word * WORD;
    if (!shadow->words[word].split) {
        for (int i = 0; i < WORD; i++)
            parts[i] = shadow->words[word];
        shadow->words[word].split = true;
    }
    return parts;
}

/* The cells of the next part of an access: one cell of a whole word, or `*count` cells of bytes. */
static struct shadow_cell *cells_at(struct emulated_shadow *shadow, uint64_t at, uint64_t left,
                                    uint64_t *step, uint32_t *count)
{
    struct shadow_cell *word = shadow->words + at / WORD;
    bool whole = at % WORD == 0 && left >= WORD;
    uint64_t most = WORD - at % WORD;
    *step = left < most ? left : most;
    *count = whole && !word->split ? 1 : (uint32_t)*step;
    return whole && !word->split ? word : word_split(shadow, at / WORD) + at % WORD;
}

void emulated_shadow_write(struct emulated_shadow *shadow, uint64_t at, uint64_t bytes)
{
    uint32_t count;
    for (uint64_t done = 0, step; done < bytes; done += step) {
        struct shadow_cell *cells = cells_at(shadow, at + done, bytes - done, &step, &count);
        for (uint32_t i = 0; i < count; i++)
            cells[i].written = true;
    }
}

static bool ordered(const struct mark *before, const struct mark *now)
{
    if (before->block != now->block)
        return false;
    return before->thread == now->thread || before->epoch != now->epoch ||
           (before->warp == now->warp && before->warp_epoch != now->warp_epoch);
}

/* Are all reads so far ordered before this write? */
static bool reads_ordered(const struct shadow_cell *cell, const struct mark *now)
{
    const struct mark *reader = &cell->reader;
    switch ((enum readers)cell->readers) {
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

static void read_mark(struct shadow_cell *cell, const struct mark *now)
{
    const struct mark *reader = &cell->reader;
    enum readers readers = cell->readers;
    if (reads_ordered(cell, now))
        readers = READERS_ONE;
    else if (reader->block != now->block || readers == READERS_ALL)
        readers = READERS_ALL;
    else if (reader->warp != now->warp || readers == READERS_BLOCK)
        readers = READERS_BLOCK;
    else if (reader->thread != now->thread || readers == READERS_WARP)
        readers = READERS_WARP;
    cell->readers = (uint8_t)readers;
    cell->reader = *now;
}

static struct emulated_who who_of(const struct mark *mark, uint32_t launch)
{
    return (struct emulated_who){.launch = launch, .block = mark->block, .thread = mark->thread};
}

static const char *cell_access(struct shadow_cell *cell, enum emulated_access access, uint32_t launch,
                               const struct mark *now, struct emulated_who *other)
{
    if (cell->launch != launch) {
        cell->launch = launch;
        cell->wrote = cell->updated = 0;
        cell->readers = READERS_NONE;
    }
    if (access != EMULATED_WRITE && !cell->written)
        return "nobody wrote it";
    bool both_atomic = access == EMULATED_ATOMIC && cell->updated;
    if (cell->wrote && !both_atomic && !ordered(&cell->writer, now)) {
        *other = who_of(&cell->writer, launch);
        return "another thread writes it with no barrier between them";
    }
    if (access == EMULATED_READ) {
        read_mark(cell, now);
        return NULL;
    }
    if (!reads_ordered(cell, now)) {
        *other = who_of(&cell->reader, launch);
        return "another thread reads it with no barrier between them";
    }
    cell->written = cell->wrote = 1;
    cell->updated = access == EMULATED_ATOMIC;
    cell->readers = READERS_NONE;
    cell->writer = *now;
    return NULL;
}

const char *emulated_shadow_access(struct emulated_shadow *shadow, uint64_t at, uint32_t bytes,
                                   enum emulated_access access, const struct emulated_who *who,
                                   struct emulated_who *other)
{
    struct mark now = {.block = who->block,
                       .epoch = who->epoch,
                       .warp_epoch = who->warp_epoch,
                       .thread = (uint16_t)who->thread,
                       .warp = (uint16_t)who->warp};
    const char *wrong = NULL;
    uint32_t count, done = 0;
    for (struct shadow_cell *word = shadow->words + at / WORD; /* nearly all accesses are to whole words */
         at % WORD == 0 && bytes - done >= WORD && !word->split && !wrong; word++, done += WORD)
        wrong = cell_access(word, access, who->launch, &now, other);
    for (uint64_t step; done < bytes && !wrong; done += (uint32_t)step) {
        struct shadow_cell *cells = cells_at(shadow, at + done, bytes - done, &step, &count);
        for (uint32_t i = 0; i < count && !wrong; i++)
            wrong = cell_access(&cells[i], access, who->launch, &now, other);
    }
    return wrong;
}
