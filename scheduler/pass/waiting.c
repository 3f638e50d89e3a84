/* A hash table with open addressing, keyed by job, which is emptied when anything changes that its notes
 * depend on. */
#include "scheduler/pass/waiting.h"

#include <stdlib.h>
#include <string.h>

#include "common/json.h"

enum { SLOTS = 2 * WAITING_MAX };

struct note {
    int64_t id;           /* 0: the slot is empty */
    bool *unfit, *wanted; /* one allocation for both */
};

struct waiting {
    uint64_t world;
    size_t device_count, count;
    struct note notes[SLOTS];
};

static uint64_t mix(uint64_t hash, const void *bytes, size_t size)
{
    const uint8_t *at = bytes;
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ at[i]) * 1099511628211u; /* one step of FNV-1a */
    }
    return hash;
}

static uint64_t mix_text(uint64_t hash, const char *text)
{
    return mix(hash, text, strlen(text) + 1);
}

/* Hashes everything that a note depends on beside the job itself and which devices are free. */
static uint64_t world_of(const struct store_view *view, uint64_t profiles)
{
    static const char *const rates[] = {"latency_s", "bytes_per_s"};
    uint64_t hash = mix(14695981039346656037u, &profiles, sizeof(profiles));
    for (size_t i = 0; i < view->device_count; i++) {
        const struct store_sched_device *device = &view->devices[i];
        hash = mix_text(mix_text(hash, device->name), device->digest);
        hash = mix(hash, &device->memory_limit_bytes, sizeof(device->memory_limit_bytes));
        hash = mix(hash, &device->present, sizeof(device->present));
        hash = mix(hash, &device->usable_bytes, sizeof(device->usable_bytes));
    }
    for (size_t i = 0; i < view->link_count; i++) {
        hash = mix_text(mix_text(hash, view->links[i].from), view->links[i].to);
        for (size_t k = 0; k < 2; k++) {
            double rate = json_number_value(json_object_get(view->links[i].document, rates[k]));
            hash = mix(hash, &rate, sizeof(rate));
        }
    }
    return hash;
}

static void forget(struct waiting *waiting)
{
    for (size_t i = 0; i < SLOTS; i++) {
        free(waiting->notes[i].unfit);
        waiting->notes[i] = (struct note){0};
    }
    waiting->count = 0;
}

struct waiting *waiting_create(struct err *err)
{
    struct waiting *waiting = calloc(1, sizeof(*waiting));
    if (waiting == NULL) {
        err_set(err, ERR_NOMEM, "no memory for the jobs that wait");
    }
    return waiting;
}

void waiting_destroy(struct waiting *waiting)
{
    if (waiting != NULL) {
        forget(waiting);
        free(waiting);
    }
}

void waiting_begin(struct waiting *waiting, const struct store_view *view, uint64_t profiles)
{
    uint64_t world = world_of(view, profiles);
    if (world != waiting->world || waiting->device_count != view->device_count) {
        forget(waiting);
        waiting->world = world;
        waiting->device_count = view->device_count;
    }
}

/* Returns the job's slot, or the empty slot where it would be. */
static size_t slot_of(const struct waiting *waiting, int64_t id)
{
    size_t at = (size_t)(mix(14695981039346656037u, &id, sizeof(id)) % SLOTS);
    while (waiting->notes[at].id != 0 && waiting->notes[at].id != id) {
        at = (at + 1) % SLOTS;
    }
    return at;
}

void waiting_put(struct waiting *waiting, int64_t id, const bool *unfit, const bool *wanted)
{
    size_t count = waiting->device_count;
    if (id <= 0) {
        return;
    }
    if (waiting->count == WAITING_MAX) {
        forget(waiting);
    }
    struct note *note = &waiting->notes[slot_of(waiting, id)];
    if (note->id == 0) {
        bool *masks = calloc(count + 1, 2 * sizeof(bool));
        if (masks == NULL) {
            return;
        }
        *note = (struct note){.id = id, .unfit = masks, .wanted = masks + count};
        waiting->count++;
    }
    memcpy(note->unfit, unfit, count * sizeof(bool));
    memcpy(note->wanted, wanted, count * sizeof(bool));
}

bool waiting_get(const struct waiting *waiting, int64_t id, const bool *usable, bool *wanted)
{
    const struct note *note = id > 0 ? &waiting->notes[slot_of(waiting, id)] : NULL;
    if (note == NULL || note->id == 0) {
        return false;
    }
    for (size_t i = 0; i < waiting->device_count; i++) {
        if (usable[i] && !note->unfit[i]) {
            return false;
        }
    }
    memcpy(wanted, note->wanted, waiting->device_count * sizeof(bool));
    return true;
}
