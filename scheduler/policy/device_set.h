/* A set of devices, by their index in a snapshot of the cluster. */
#ifndef MOTLEY_SCHEDULER_POLICY_DEVICE_SET_H
#define MOTLEY_SCHEDULER_POLICY_DEVICE_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { POLICY_DEVICES_MAX = 1024, DEVICE_SET_WORDS = POLICY_DEVICES_MAX / 64 };

struct device_set {
    uint64_t words[DEVICE_SET_WORDS];
};

static inline bool device_set_has(const struct device_set *set, size_t device)
{
    return (set->words[device / 64] >> (device % 64)) & 1;
}

static inline void device_set_add(struct device_set *set, size_t device)
{
    set->words[device / 64] |= (uint64_t)1 << (device % 64);
}

static inline void device_set_remove(struct device_set *set, size_t device)
{
    set->words[device / 64] &= ~((uint64_t)1 << (device % 64));
}

/* Removes the devices of `others` from `set`. */
static inline void device_set_subtract(struct device_set *set, const struct device_set *others)
{
    for (size_t i = 0; i < DEVICE_SET_WORDS; i++)
        set->words[i] &= ~others->words[i];
}

/* Keeps only the devices that `others` has, too. */
static inline void device_set_intersect(struct device_set *set, const struct device_set *others)
{
    for (size_t i = 0; i < DEVICE_SET_WORDS; i++)
        set->words[i] &= others->words[i];
}

static inline void device_set_unite(struct device_set *set, const struct device_set *others)
{
    for (size_t i = 0; i < DEVICE_SET_WORDS; i++)
        set->words[i] |= others->words[i];
}

static inline size_t device_set_count(const struct device_set *set)
{
    size_t count = 0;
    for (size_t i = 0; i < DEVICE_SET_WORDS; i++)
        count += (size_t)__builtin_popcountll(set->words[i]);
    return count;
}

static inline bool device_set_is_empty(const struct device_set *set)
{
    uint64_t any = 0;
    for (size_t i = 0; i < DEVICE_SET_WORDS; i++)
        any |= set->words[i];
    return any == 0;
}

static inline bool device_set_equal(const struct device_set *a, const struct device_set *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

static inline bool device_set_is_subset(const struct device_set *set, const struct device_set *of)
{
    uint64_t outside = 0;
    for (size_t i = 0; i < DEVICE_SET_WORDS; i++)
        outside |= set->words[i] & ~of->words[i];
    return outside == 0;
}

/* Returns the first device of the set at or after `from`, or POLICY_DEVICES_MAX. */
static inline size_t device_set_next(const struct device_set *set, size_t from)
{
    for (size_t word = from / 64; word < DEVICE_SET_WORDS; word++) {
        uint64_t bits = set->words[word];
        if (word == from / 64)
            bits &= ~(uint64_t)0 << (from % 64);
        if (bits)
            return word * 64 + (size_t)__builtin_ctzll(bits);
    }
    return POLICY_DEVICES_MAX;
}

#endif
