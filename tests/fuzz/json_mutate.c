/* Mutates a document: one value is replaced, removed, duplicated, or exchanged with another. */
#include "fuzz/fuzz.h"

#include <math.h>
#include <string.h>

#define PLACES_MAX 4096u

struct place { /* the position of a value in an object or array */
    json_t *parent;
    const char *key; /* its key in an object */
    size_t index;    /* its index in an array */
};

struct places {
    uint32_t count;
    struct place items[PLACES_MAX];
};

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static void collect(json_t *value, struct places *places)
{
    const char *key;
    json_t *item;
    size_t index;
    if (json_is_object(value)) {
        json_object_foreach (value, key, item) {
            if (places->count < PLACES_MAX)
                places->items[places->count++] = (struct place){.parent = value, .key = key};
            collect(item, places);
        }
        return;
    }
    json_array_foreach (value, index, item) {
        if (places->count < PLACES_MAX)
            places->items[places->count++] = (struct place){.parent = value, .index = index};
        collect(item, places);
    }
}

static json_t *place_get(const struct place *place)
{
    return place->key ? json_object_get(place->parent, place->key)
                      : json_array_get(place->parent, place->index);
}

static void place_set(const struct place *place, json_t *value)
{
    if (place->key)
        json_object_set_new(place->parent, place->key, value);
    else
        json_array_set_new(place->parent, place->index, value);
}

static json_t *odd_value(const json_t *old, uint32_t *seed)
{
    static const double numbers[] = {0,     -1,     1,      2, 0.5, 1e-9, 1e9, 1e18,
                                     1e300, -1e300, 1e-300, 3, 7,   64,   1000};
    static const json_int_t integers[] = {0,    -1,    1,         2,          3,          255,
                                          256,  65535, 65536,     2147483647, 4294967295, 100,
                                          4096, 10001, 1LL << 53, INT64_MAX,  INT64_MIN};
    double number = json_number_value(old);
    switch (next(seed) % 9) {
    case 0:
        return json_real(numbers[next(seed) % (sizeof(numbers) / sizeof(numbers[0]))]);
    case 1:
    case 2:
        return json_integer(integers[next(seed) % (sizeof(integers) / sizeof(integers[0]))]);
    case 3:
        return fabs(number) < 1e200 ? json_real(number * (next(seed) % 2 ? 1000 : -0.5)) : json_null();
    case 4:
        return json_is_integer(old) ? json_integer(json_integer_value(old) / 2 + (json_int_t)(next(seed) % 3))
                                    : json_real(1);
    case 5:
        return json_string(next(seed) % 2 ? "" : "a/0");
    case 6:
        return json_array();
    case 7:
        return json_object();
    default:
        return json_boolean(next(seed) % 2);
    }
}

static void change(const struct places *places, uint32_t *seed)
{
    const struct place *a = &places->items[next(seed) % places->count],
                       *b = &places->items[next(seed) % places->count];
    json_t *value = place_get(a), *other = place_get(b);
    if (!value || !other)
        return;
    switch (next(seed) % 6) {
    case 0: /* drop */
        if (a->key)
            json_object_del(a->parent, a->key);
        else
            json_array_remove(a->parent, a->index);
        break;
    case 1: /* duplicate */
        if (!a->key)
            json_array_insert_new(a->parent, a->index, json_deep_copy(value));
        break;
    case 2: /* copy another value */
        place_set(a, json_deep_copy(other));
        break;
    default:
        place_set(a, odd_value(value, seed));
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t size_max, unsigned int seed)
{
    uint32_t state = seed * 2654435761u + 1;
    json_t *document = next(&state) % 4 == 0 ? NULL : fuzz_parse(data, size);
    if (!document)
        return LLVMFuzzerMutate(data, size, size_max);
    static struct places places;
    for (uint32_t turns = 1 + next(&state) % 3; turns > 0; turns--) {
        places.count = 0;
        collect(document, &places);
        if (places.count > 0)
            change(&places, &state);
    }
    char *text = json_dumps(document, JSON_COMPACT | JSON_ENCODE_ANY);
    size_t length = text ? strlen(text) : 0;
    json_decref(document);
    if (length == 0 || length > size_max) {
        free(text);
        return LLVMFuzzerMutate(data, size, size_max);
    }
    memcpy(data, text, length);
    free(text);
    return length;
}
