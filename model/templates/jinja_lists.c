#include "model/templates/jinja_lists.h"

#include <stdlib.h>
#include <string.h>

#include "model/templates/jinja_case.h"
#include "model/templates/jinja_method.h"
#include "model/templates/jinja_operator.h"
#include "model/templates/jinja_print.h"

int jinja_iterator(struct jinja_arena *arena, struct jv *items, size_t count, const char *name,
                   struct jv *out, struct err *err)
{
    if (jv_list_of(arena, JF_ITERATOR, items, count, out, err) < 0)
        return -1;
    out->list->made_by = name;
    return 0;
}

/* ---- order ---- */

struct sorting {
    const struct jv *attribute; /* the attribute to compare, or None or absent */
    const struct jv *otherwise; /* what an undefined member becomes, or NULL */
    bool reverse, case_sensitive;
    bool equal_first; /* equal keys need no order, since sort's keys are lists of one item in jinja2 */
    bool failed;      /* two keys had no order */
};

/* Computes an item's key: the item or its attribute, in lower case if it is a text and the case is ignored.
 */
static int sort_key(const struct jinja_call *c, const struct sorting *s, const struct jv *item,
                    struct jv *key)
{
    if (jinja_getpath(c->arena, item, s->attribute, s->otherwise, key, c->err) < 0)
        return -1;
    return s->case_sensitive || key->kind != JV_TEXT
               ? 0
               : jinja_letters(c->arena, key, LETTERS_LOWER, key, c->err);
}

struct keyed {
    struct jv key, item;
    size_t place;
};

static int compare_keyed(const void *a, const void *b, void *arg)
{
    const struct keyed *x = a;
    const struct keyed *y = b;
    struct sorting *s = arg;
    int order = 0;
    const bool same = s->equal_first && jv_equal(&x->key, &y->key);
    if (!same && (!jv_order(&x->key, &y->key, &order) || order == 2))
        s->failed = true;
    order = s->reverse ? -order : order;
    return order != 0 ? order : (x->place > y->place) - (x->place < y->place);
}

/* Computes the key of sort by several attributes ("a,b"), which is a list. */
static int several_keys(const struct jinja_call *c, const struct sorting *s, const struct jv *item,
                        struct jv *key)
{
    const struct jv *all = s->attribute;
    if (all->kind != JV_TEXT || !memchr(all->text, ',', all->size))
        return sort_key(c, s, item, key);
    if (jv_list_new(c->arena, 0, key, c->err) < 0)
        return -1;
    for (size_t from = 0; from <= all->size;) {
        const char *comma = memchr(all->text + from, ',', all->size - from);
        const struct jv one =
            jv_borrow(all->text + from, (comma ? (size_t)(comma - all->text) : all->size) - from);
        struct sorting by = *s;
        struct jv part;
        by.attribute = &one;
        if (sort_key(c, &by, item, &part) < 0 || jv_list_add(c->arena, key->list, part, c->err) < 0)
            return -1;
        from += one.size + 1;
    }
    return 0;
}

/* Returns the items of 'list' with their keys, sorted; new in the arena. */
static struct keyed *keyed_sort(const struct jinja_call *c, const struct jv_list *list, struct sorting *s)
{
    struct keyed *keyed = jinja_alloc(c->arena, (list->count + 1) * sizeof(*keyed), c->err);
    for (size_t i = 0; i < list->count && keyed; i++) {
        keyed[i] = (struct keyed){.item = list->items[i], .place = i};
        if ((s->equal_first ? several_keys(c, s, &list->items[i], &keyed[i].key)
                            : sort_key(c, s, &list->items[i], &keyed[i].key)) < 0) {
            return NULL;
        }
    }
    if (!keyed || jinja_work(c->arena, list->count * 16, c->err) < 0)
        return NULL;
    qsort_r(keyed, list->count, sizeof(*keyed), compare_keyed, s);
    if (s->failed) {
        err_set(c->err, ERR_INVALID, "%s: values of several kinds have no order", c->name);
        return NULL;
    }
    return keyed;
}

static int list_out(const struct jinja_call *c, const struct keyed *keyed, size_t count)
{
    struct jv made;
    if (!keyed || jv_list_new(c->arena, count, &made, c->err) < 0)
        return -1;
    for (size_t i = 0; i < count; i++)
        made.list->items[made.list->count++] = keyed[i].item;
    *c->out = made;
    return 0;
}

/* Implements the filter sort(reverse, case_sensitive, attribute). */
int jinja_do_sort(const struct jinja_call *c)
{
    struct jv_list list;
    struct sorting s = {.reverse = jv_true(&c->args[0]),
                        .case_sensitive = jv_true(&c->args[1]),
                        .attribute = &c->args[2],
                        .equal_first = true};
    return jv_items(c->arena, c->self, &list, c->err) < 0 ? -1
                                                          : list_out(c, keyed_sort(c, &list, &s), list.count);
}

/* Implements the filter dictsort(case_sensitive, by, reverse), which returns pairs. */
int jinja_do_dictsort(const struct jinja_call *c)
{
    const struct jv first = jv_int(0), second = jv_int(1);
    const bool by_value = jv_is_text(&c->args[1], "value");
    struct sorting s = {.case_sensitive = jv_true(&c->args[0]),
                        .reverse = jv_true(&c->args[2]),
                        .attribute = by_value ? &second : &first};
    if (c->self->kind != JV_MAP ||
        (!by_value && c->args[1].kind != JV_ABSENT && !jv_is_text(&c->args[1], "key"))) {
        return err_set(c->err, ERR_INVALID, "dictsort of %s, or by what is neither key nor value",
                       jv_kind_name(c->self));
    }
    const struct jv_map *map = c->self->map;
    struct jv pairs;
    if (jv_list_new(c->arena, map->count, &pairs, c->err) < 0)
        return -1;
    for (size_t i = 0; i < map->count; i++, pairs.list->count++)
        if (jv_pair(c->arena, map->keys[i], map->values[i], &pairs.list->items[i], c->err) < 0)
            return -1;
    return list_out(c, keyed_sort(c, pairs.list, &s), pairs.list->count);
}

/* Implements the filter unique(case_sensitive, attribute): keeps the first of equal items, in their order. */
int jinja_do_unique(const struct jinja_call *c)
{
    struct jv_list list;
    const struct sorting s = {.case_sensitive = jv_true(&c->args[0]), .attribute = &c->args[1]};
    if (jv_items(c->arena, c->self, &list, c->err) < 0 ||
        jinja_work(c->arena, list.count * list.count, c->err) < 0) {
        return -1;
    }
    struct jv *keys = jinja_alloc(c->arena, (list.count + 1) * sizeof(*keys), c->err);
    struct jv *kept = jinja_alloc(c->arena, (list.count + 1) * sizeof(*kept), c->err);
    size_t count = 0;
    for (size_t i = 0; i < list.count && keys && kept; i++) {
        struct jv key;
        bool seen = false;
        if (sort_key(c, &s, &list.items[i], &key) < 0)
            return -1;
        if (!jv_hashable(&key))
            return err_set(c->err, ERR_INVALID, "unique of %s", jv_kind_name(&key));
        for (size_t k = 0; k < count && !seen; k++)
            seen = jv_equal(&keys[k], &key);
        if (!seen) {
            keys[count] = key;
            kept[count++] = list.items[i];
        }
    }
    return !keys || !kept ? -1 : jinja_iterator(c->arena, kept, count, c->name, c->out, c->err);
}

/* Implements the filters min and max(case_sensitive, attribute), which return the first of equal items. */
static int extreme(const struct jinja_call *c, bool most)
{
    struct jv_list list;
    const struct sorting s = {.case_sensitive = jv_true(&c->args[0]), .attribute = &c->args[1]};
    struct jv best = {0};
    if (jv_items(c->arena, c->self, &list, c->err) < 0)
        return -1;
    struct jv found = jv_undefined("No aggregated item, sequence was empty.", 39);
    for (size_t i = 0; i < list.count; i++) {
        struct jv key;
        int order = 0;
        if (sort_key(c, &s, &list.items[i], &key) < 0)
            return -1;
        if (i > 0 && !jv_order(&key, &best, &order)) {
            return err_set(c->err, ERR_INVALID, "%s: %s and %s have no order", c->name, jv_kind_name(&key),
                           jv_kind_name(&best));
        }
        if (i == 0 || (order != 2 && (most ? order > 0 : order < 0))) {
            best = key;
            found = list.items[i];
        }
    }
    *c->out = found;
    return 0;
}

int jinja_do_min(const struct jinja_call *c)
{
    return extreme(c, false);
}

int jinja_do_max(const struct jinja_call *c)
{
    return extreme(c, true);
}

/* Implements the filter sum(attribute, start). */
int jinja_do_sum(const struct jinja_call *c)
{
    struct jv_list list;
    struct jv sum = c->args[1].kind == JV_ABSENT ? jv_int(0) : c->args[1];
    if (sum.kind == JV_TEXT)
        return err_set(c->err, ERR_INVALID, "sum of strings");
    if (jv_items(c->arena, c->self, &list, c->err) < 0)
        return -1;
    for (size_t i = 0; i < list.count; i++) {
        struct jv item;
        const struct jv so_far = sum;
        if (jinja_getpath(c->arena, &list.items[i], &c->args[0], NULL, &item, c->err) < 0 ||
            jinja_arithmetic(c->arena, JO_ADD, &so_far, &item, &sum, c->err) < 0) {
            err_wrap(c->err, "sum");
            return -1;
        }
    }
    *c->out = sum;
    return 0;
}

/* ---- groups ---- */

static int group_add(const struct jinja_call *c, struct jv *groups, const struct jv *items, size_t count,
                     const struct jv *fill, size_t fills)
{
    struct jv group;
    if (jv_list_new(c->arena, count + fills, &group, c->err) < 0)
        return -1;
    for (size_t i = 0; i < count + fills; i++)
        group.list->items[group.list->count++] = i < count ? items[i] : *fill;
    return jv_list_add(c->arena, groups->list, group, c->err);
}

static int groups_out(const struct jinja_call *c, const struct jv *groups)
{
    return jinja_iterator(c->arena, groups->list->items, groups->list->count, c->name, c->out, c->err);
}

static int groups_begin(const struct jinja_call *c, int64_t *size, struct jv_list *list, struct jv *groups)
{
    if (!jv_number(&c->args[0], size) || *size < 1 || *size > 100000)
        return err_set(c->err, ERR_INVALID, "%s needs a number from 1 to 100000", c->name);
    return jv_items(c->arena, c->self, list, c->err) < 0 ? -1 : jv_list_new(c->arena, 0, groups, c->err);
}

/* Implements the filter batch(linecount, fill_with). */
int jinja_do_batch(const struct jinja_call *c)
{
    struct jv_list list;
    struct jv groups;
    int64_t size;
    if (groups_begin(c, &size, &list, &groups) < 0)
        return -1;
    for (size_t i = 0; i < list.count; i += (size_t)size) {
        const size_t count = list.count - i < (size_t)size ? list.count - i : (size_t)size;
        const bool filled = !jv_is_left_out(&c->args[1]);
        if (group_add(c, &groups, list.items + i, count, &c->args[1], filled ? (size_t)size - count : 0) < 0)
            return -1;
    }
    return groups_out(c, &groups);
}

/* Implements the filter slice(slices, fill_with): makes 'slices' lists, of which the first ones are longer by
 * one item. */
int jinja_do_slice(const struct jinja_call *c)
{
    struct jv_list list;
    struct jv groups;
    int64_t slices;
    if (groups_begin(c, &slices, &list, &groups) < 0)
        return -1;
    const size_t each = list.count / (size_t)slices, longer = list.count % (size_t)slices;
    const bool filled = !jv_is_left_out(&c->args[1]);
    size_t at = 0;
    for (size_t i = 0; i < (size_t)slices; i++) {
        const size_t count = each + (i < longer);
        if (group_add(c, &groups, list.items + at, count, &c->args[1], filled && i >= longer ? 1 : 0) < 0)
            return -1;
        at += count;
    }
    return groups_out(c, &groups);
}

/* Implements the filter groupby(attribute, default, case_sensitive): makes (value, list) pairs, sorted by
 * value. */
int jinja_do_groupby(const struct jinja_call *c)
{
    struct jv_list list;
    struct sorting s = {
        .attribute = &c->args[0], .otherwise = &c->args[1], .case_sensitive = jv_true(&c->args[2])};
    struct jv groups;
    if (jv_items(c->arena, c->self, &list, c->err) < 0 || jv_list_new(c->arena, 0, &groups, c->err) < 0)
        return -1;
    const struct keyed *keyed = keyed_sort(c, &list, &s);
    struct jv *items = jinja_alloc(c->arena, (list.count + 1) * sizeof(*items), c->err);
    if (!keyed || !items)
        return -1;
    for (size_t i = 0; i < list.count;) {
        size_t count = 0;
        struct jv grouper, members, pair;
        for (; i + count < list.count && jv_equal(&keyed[i].key, &keyed[i + count].key); count++)
            items[count] = keyed[i + count].item;
        if (count == 0)
            return err_set(c->err, ERR_UNSUPPORTED, "groupby by a value that does not equal itself");
        if (jinja_getpath(c->arena, &keyed[i].item, s.attribute, s.otherwise, &grouper, c->err) < 0 ||
            jv_list_copy(c->arena, JF_LIST, items, count, &members, c->err) < 0 ||
            jv_pair(c->arena, grouper, members, &pair, c->err) < 0 ||
            jv_list_add(c->arena, groups.list, pair, c->err) < 0) {
            return -1;
        }
        pair.list->made_by = c->name;
        i += count;
    }
    *c->out = groups;
    return 0;
}

/* ---- length, first, last, join ---- */

int jinja_do_length(const struct jinja_call *c)
{
    struct jv_list list;
    if (c->self->kind == JV_TEXT) {
        *c->out = jv_int((int64_t)jv_characters(c->self));
        return 0;
    }
    if (jv_is_list(c->self, JF_ITERATOR))
        return err_set(c->err, ERR_INVALID, "%s of a generator", c->name);
    if (c->self->kind == JV_LOOP) {
        *c->out = jv_int((int64_t)c->self->loop->items.count);
        return 0;
    }
    if (jv_items(c->arena, c->self, &list, c->err) < 0)
        return -1;
    *c->out = jv_int((int64_t)list.count);
    return 0;
}

int jinja_do_list(const struct jinja_call *c)
{
    struct jv_list list;
    return jv_items(c->arena, c->self, &list, c->err) < 0
               ? -1
               : jv_list_copy(c->arena, JF_LIST, list.items, list.count, c->out, c->err);
}

int jinja_do_first(const struct jinja_call *c)
{
    struct jv_list list;
    struct jv_list *one = jv_is_list(c->self, JF_ITERATOR) ? c->self->list : NULL;
    const size_t taken = one ? one->taken : 0;
    if (jv_items(c->arena, c->self, &list, c->err) < 0)
        return -1;
    if (one && taken < one->count)
        one->taken = taken + 1;
    *c->out = list.count > 0 ? list.items[0] : jv_undefined("first of nothing", 16);
    return 0;
}

int jinja_do_last(const struct jinja_call *c)
{
    struct jv_list list;
    if (jv_is_list(c->self, JF_ITERATOR))
        return err_set(c->err, ERR_INVALID, "last of a generator");
    if (jv_items(c->arena, c->self, &list, c->err) < 0)
        return -1;
    *c->out = list.count > 0 ? list.items[list.count - 1] : jv_undefined("last of nothing", 15);
    return 0;
}

int jinja_do_reverse(const struct jinja_call *c)
{
    struct jv_list list;
    const bool generator = jv_is_list(c->self, JF_ITERATOR), text = c->self->kind == JV_TEXT;
    const struct jv backwards = jv_int(-1);
    const struct jv *const step[3] = {NULL, NULL, &backwards};
    if (text)
        return jinja_sliced(c->arena, c->self, step, c->out, c->err);
    if (jv_items(c->arena, c->self, &list, c->err) < 0)
        return -1;
    struct jv *items = jinja_alloc(c->arena, (list.count + 1) * sizeof(*items), c->err);
    for (size_t i = 0; i < list.count && items; i++)
        items[i] = list.items[list.count - 1 - i];
    return !items      ? -1
           : generator ? jv_list_of(c->arena, JF_LIST, items, list.count, c->out, c->err)
                       : jinja_iterator(c->arena, items, list.count, c->name, c->out, c->err);
}

int jinja_do_items(const struct jinja_call *c)
{
    const struct jv_map *map = c->self->map;
    if (c->self->kind != JV_UNDEFINED && c->self->kind != JV_MAP)
        return err_set(c->err, ERR_INVALID, "items of %s", jv_kind_name(c->self));
    const size_t count = c->self->kind == JV_MAP ? map->count : 0;
    struct jv *pairs = jinja_alloc(c->arena, (count + 1) * sizeof(*pairs), c->err);
    for (size_t i = 0; i < count && pairs; i++)
        if (jv_pair(c->arena, map->keys[i], map->values[i], &pairs[i], c->err) < 0)
            return -1;
    return !pairs ? -1 : jinja_iterator(c->arena, pairs, count, c->name, c->out, c->err);
}

/* Implements the filter join(d, attribute). */
int jinja_do_join(const struct jinja_call *c)
{
    struct jv_list list;
    struct jv by = jv_borrow("", 0);
    if ((c->args[0].kind != JV_ABSENT && jv_text_of(c->arena, &c->args[0], &by, c->err) < 0) ||
        jv_items(c->arena, c->self, &list, c->err) < 0) {
        return -1;
    }
    struct buf text = {.limit = JINJA_TEXT_MAX};
    int status = 0;
    for (size_t i = 0; i < list.count && status == 0; i++) {
        struct jv item;
        status = jinja_getpath(c->arena, &list.items[i], &c->args[1], NULL, &item, c->err);
        if (status == 0 && i > 0)
            status = buf_append(&text, by.text, by.size, c->err);
        status = status < 0 ? -1 : jv_print(&item, &text, c->err);
    }
    return jv_take(c->arena, &text, status, c->out, c->err);
}
