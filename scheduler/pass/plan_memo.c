/* Remembers the planner's answers in a hash table with open addressing. The table is emptied when anything
 * changes that the answers depend on. */
#include "scheduler/pass/plan_memo.h"

#include <stdlib.h>
#include <string.h>

#include "common/hash.h"

enum { SLOTS = 2 * PLAN_MEMO_MAX };

struct memo_note {
    struct plan_memo_key key;
    struct plan_memo_answer answer;
    char words[]; /* those of the answer */
};

struct plan_memo {
    uint64_t world;
    size_t device_count, count;
    struct memo_note *notes[SLOTS]; /* NULL: the slot is empty */
};

/* Hashes everything that an answer depends on beside its class and its set of devices. */
static uint64_t world_of(const struct store_view *view, uint64_t profiles)
{
    uint64_t hash = hash_bytes(HASH_BEGIN, &profiles, sizeof(profiles));
    for (size_t i = 0; i < view->device_count; i++) {
        const struct store_sched_device *device = &view->devices[i];
        hash = hash_text(hash_text(hash, device->name), device->digest);
        hash = hash_bytes(hash, &device->memory_limit_bytes, sizeof(device->memory_limit_bytes));
        hash = hash_bytes(hash, &device->present, sizeof(device->present));
        hash = hash_bytes(hash, &device->drained, sizeof(device->drained));
        hash = hash_text(hash, device->lacks ? device->lacks : "");
        hash = hash_bytes(hash, &device->usable_bytes, sizeof(device->usable_bytes));
        hash = hash_bytes(hash, &device->heat, sizeof(device->heat));
    }
    for (size_t i = 0; i < view->node_count; i++) {
        const bool there = view->nodes[i].reachable && view->nodes[i].leaves_us > view->now_us;
        hash = hash_bytes(hash_text(hash, view->nodes[i].name), &there, sizeof(there));
    }
    return hash_bytes(hash, &view->links_version, sizeof(view->links_version));
}

void plan_memo_drop(struct plan_memo *memo)
{
    for (size_t i = 0; memo->count > 0 && i < SLOTS; i++) {
        free(memo->notes[i]);
        memo->notes[i] = NULL;
    }
    memo->count = 0;
}

struct plan_memo *plan_memo_create(struct err *err)
{
    struct plan_memo *memo = calloc(1, sizeof(*memo));
    if (!memo)
        err_set(err, ERR_NOMEM, "no memory for the planner's answers");
    return memo;
}

void plan_memo_destroy(struct plan_memo *memo)
{
    if (memo) {
        plan_memo_drop(memo);
        free(memo);
    }
}

void plan_memo_begin(struct plan_memo *memo, const struct store_view *view, uint64_t profiles)
{
    uint64_t world = world_of(view, profiles);
    if (world != memo->world || memo->device_count != view->device_count) {
        plan_memo_drop(memo);
        memo->world = world;
        memo->device_count = view->device_count;
    }
}

static bool same(const struct plan_memo_key *a, const struct plan_memo_key *b)
{
    return memcmp(a->class, b->class, sizeof(a->class)) == 0 && device_set_equal(&a->among, &b->among) &&
           a->most == b->most && a->any_kind == b->any_kind;
}

/* Returns the slot of the answer with this key, or the empty slot where the answer belongs. */
static size_t plan_memo_slot_of(const struct plan_memo *memo, const struct plan_memo_key *key)
{
    uint64_t hash = hash_bytes(HASH_BEGIN, key->class, 8);
    hash = hash_bytes(hash, &key->among, sizeof(key->among));
    hash = hash_bytes(hash, &key->most, sizeof(key->most));
    size_t at = (size_t)(hash % SLOTS);
    while (memo->notes[at] && !same(&memo->notes[at]->key, key))
        at = (at + 1) % SLOTS;
    return at;
}

void plan_memo_put(struct plan_memo *memo, const struct plan_memo_key *key,
                   const struct plan_memo_answer *answer)
{
    if (memo->count == PLAN_MEMO_MAX)
        plan_memo_drop(memo);
    const size_t slot = plan_memo_slot_of(memo, key), size = answer->words ? strlen(answer->words) + 1 : 0;
    struct memo_note *note = malloc(sizeof(*note) + size);
    if (!note)
        return;
    memo->count += memo->notes[slot] ? 0 : 1;
    free(memo->notes[slot]);
    memo->notes[slot] = note;
    note->key = *key;
    note->answer = *answer;
    if (size > 0)
        note->answer.words = memcpy(note->words, answer->words, size);
}

const struct plan_memo_answer *plan_memo_get(const struct plan_memo *memo, const struct plan_memo_key *key)
{
    const struct memo_note *note = memo->notes[plan_memo_slot_of(memo, key)];
    return note ? &note->answer : NULL;
}
