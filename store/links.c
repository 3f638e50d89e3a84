/* The links in memory: an array that is sorted by the bytes of both nodes' names. */
#include "store/links.sql.h"
#include "store/links.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/array.h"
#include "store/queue_private.h"

struct store_links {
    struct store_sched_link *at;
    size_t count, capacity;
    char *snapshot;
    uint64_t version;
    unsigned forgotten; /* number of calls of store_links_forget so far */
};

struct store_links *store_links_create(struct err *err)
{
    struct store_links *links = calloc(1, sizeof(*links));
    if (!links)
        err_set(err, ERR_NOMEM, "no memory for the links");
    return links;
}

static void link_fini(struct store_sched_link *link)
{
    free(link->from);
    free(link->to);
    json_decref(link->document);
}

void store_links_forget(struct store_links *links)
{
    for (size_t i = 0; i < links->count; i++)
        link_fini(&links->at[i]);
    free(links->at);
    free(links->snapshot);
    *links = (struct store_links){.version = links->version + 1, .forgotten = links->forgotten + 1};
}

void store_links_destroy(struct store_links *links)
{
    if (links) {
        store_links_forget(links);
        free(links);
    }
}

const char *store_links_snapshot(const struct store_links *links)
{
    return links->snapshot;
}

unsigned store_links_forgotten(const struct store_links *links)
{
    return links->forgotten;
}

static int by_nodes(const void *a, const void *b)
{
    const struct store_sched_link *x = a, *y = b;
    const int from = strcmp(x->from, y->from);
    return from != 0 ? from : strcmp(x->to, y->to);
}

static int links_take_row(struct store_links *links, const struct pg_result *result, int row, size_t sorted,
                          struct err *err)
{
    struct store_sched_link link = {strdup(pg_text(result, row, LINK_ROW_FROM_NODE)),
                                    strdup(pg_text(result, row, LINK_ROW_TO_NODE)),
                                    pg_json(result, row, LINK_ROW_DOCUMENT)};
    const bool whole = link.from && link.to && link.document;
    struct store_sched_link *old =
        whole && sorted > 0 ? bsearch(&link, links->at, sorted, sizeof(link), by_nodes) : NULL;
    if (!whole || (!old && ARRAY_RESERVE(links->at, links->capacity, links->count + 1, err) < 0)) {
        link_fini(&link);
        return err_set(err, ERR_NOMEM, "no memory for the links");
    }
    if (old)
        link_fini(old);
    *(old ? old : &links->at[links->count++]) = link;
    return 0;
}

static int links_take(struct store_links *links, const struct pg_result *result, struct err *err)
{
    const size_t sorted = links->count;
    int rc = 0;
    for (int row = 0; row < pg_rows(result) && rc == 0; row++) {
        if (pg_is_null(result, row, LINK_ROW_FROM_NODE))
            continue;
        links->version++;
        rc = links_take_row(links, result, row, sorted, err);
    }
    if (links->count > sorted)
        qsort(links->at, links->count, sizeof(*links->at), by_nodes);
    if (rc == 0 && pg_rows(result) > 0) {
        free(links->snapshot);
        links->snapshot = strdup(pg_text(result, 0, LINK_ROW_SEEN));
        rc = links->snapshot ? 0 : err_set(err, ERR_NOMEM, "no memory for the links");
    }
    if (rc < 0)
        store_links_forget(links);
    return rc;
}

/* Whether the two differ; `text` then says the first difference. */
static bool differ(const struct store_links *a, const struct store_links *b, char text[200])
{
    for (size_t i = 0; i < a->count && i < b->count; i++) {
        if (by_nodes(&a->at[i], &b->at[i]) != 0 || !json_equal(a->at[i].document, b->at[i].document)) {
            snprintf(text, 200, "link from %.64s to %.64s", a->at[i].from, a->at[i].to);
            return true;
        }
    }
    if (a->count != b->count)
        snprintf(text, 200, "%zu links, and %zu in the database", a->count, b->count);
    return a->count != b->count;
}

int store_links_load(struct store_links *links, const struct pg_result *whole,
                     const struct pg_result *changes, struct store_view *view, struct err *err)
{
    if (links_take(links, changes, err) < 0)
        return -1;
    if (pg_rows(whole) > 0) {
        struct store_links *fresh = store_links_create(err);
        int rc = fresh ? links_take(fresh, whole, err) : -1;
        rc = rc < 0 ? -1 : links_take(fresh, changes, err);
        if (rc == 0 && differ(links, fresh, view->differs)) {
            const struct store_links held = *links;
            *links = *fresh;
            *fresh = held;
            links->version = held.version + 1;
            links->forgotten = held.forgotten;
        }
        store_links_destroy(fresh);
        if (rc < 0)
            return -1;
    }
    view->links = links->at;
    view->link_count = links->count;
    view->links_version = links->version;
    return 0;
}

const struct store_sched_link *store_links_of(const struct store_view *view, const char *node, size_t *count)
{
    size_t low = 0, high = view->link_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (strcmp(view->links[middle].from, node) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    size_t end = low;
    while (end < view->link_count && strcmp(view->links[end].from, node) == 0)
        end++;
    *count = end - low;
    return view->links + low;
}
