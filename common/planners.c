#include "common/planners.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool name_is_valid(const char *name)
{
    const size_t size = strlen(name);
    return size >= 1 && size < PLANNER_NAME_BYTES && name[0] != '-' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == size;
}

/* Reads one planner from `object`, which is at `path`. The entry is counted before it is read, so that
 * planners_fini frees a partly read one. */
static int entry_read(struct planners *planners, const char *name, const char *path, const json_t *object,
                      struct json_reader *top)
{
    struct planner_entry *entry = &planners->entries[planners->count++];
    struct json_reader reader;
    snprintf(entry->name, sizeof(entry->name), "%s", name);
    entry->slower_at_most = 1.5;
    jr_init(&reader, object, path, top->err);
    if (child_program_read(&reader, &entry->program) == 0)
        jr_f64(&reader, "slower_at_most", JR_OPTIONAL, 0.01, 1e6, &entry->slower_at_most);
    if (jr_finish(&reader) < 0) {
        top->failed = true;
        return -1;
    }
    return 0;
}

int planners_read(struct json_reader *top, struct planners *planners)
{
    const json_t *single = NULL, *named = NULL;
    const char *name;
    json_t *object;
    *planners = (struct planners){0};
    jr_object(top, "planner", JR_OPTIONAL, &single);
    jr_object(top, "planners", JR_OPTIONAL, &named);
    if (top->failed)
        return -1;
    if (json_object_size(named) > PLANNERS_MAX) {
        return jr_fail(top, "planners", "%zu; at most %d are possible", json_object_size(named),
                       PLANNERS_MAX);
    }
    planners->entries = calloc(json_object_size(named) + 1, sizeof(*planners->entries));
    if (!planners->entries)
        return jr_fail(top, "planners", "no memory");
    if (single && entry_read(planners, PLANNER_DEFAULT, "planner", single, top) < 0)
        return -1;
    json_object_foreach ((json_t *)(uintptr_t)named, name, object) {
        char path[PLANNER_NAME_BYTES + 16];
        if (!name_is_valid(name) || strcmp(name, PLANNER_DEFAULT) == 0 ||
            strcmp(name, PLANNER_BUILT_IN) == 0) {
            return jr_fail(top, "planners",
                           "\"%.80s\" is no name for one: lower-case letters, digits and '-', and neither "
                           "\"" PLANNER_DEFAULT "\" nor \"" PLANNER_BUILT_IN "\"",
                           name);
        }
        snprintf(path, sizeof(path), "planners.%s", name);
        if (entry_read(planners, name, path, object, top) < 0)
            return -1;
    }
    return 0;
}

const struct planner_entry *planners_find(const struct planners *planners, const char *name)
{
    for (size_t i = 0; planners && i < planners->count; i++)
        if (strcmp(planners->entries[i].name, name) == 0)
            return &planners->entries[i];
    return NULL;
}

void planners_fini(struct planners *planners)
{
    for (size_t i = 0; i < planners->count; i++)
        child_program_fini(&planners->entries[i].program);
    free(planners->entries);
    *planners = (struct planners){0};
}

static int planners_form_read(struct json_reader *top, const struct doc_field *field, void *at)
{
    (void)field;
    return planners_read(top, at);
}

static void planners_form_fini(void *at)
{
    planners_fini(at);
}

const struct doc_form planners_form = {.read = planners_form_read, .fini = planners_form_fini};
