#include "hub/rows_file.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static bool rows_file_ends_with(const char *path, const char *end)
{
    const size_t size = strlen(path), tail = strlen(end);
    return size > tail && strcasecmp(path + size - tail, end) == 0;
}

/* Whether the file may hold rows: JSON beside them describes the data set. */
static bool is_rows(const char *path)
{
    static const char *const ends[] = {".jsonl", ".json", ".jsonl.gz", ".json.gz", ".ndjson"};
    static const char *const others[] = {"dataset_infos.json", "dataset_info.json", "dataset_dict.json",
                                         "state.json", "croissant.json"};
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    bool rows = false;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        rows |= rows_file_ends_with(path, ends[i]);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        rows &= strcmp(name, others[i]) != 0;
    return rows && name[0] != '.';
}

/* Counts the files of rows in whose path the word stands, "": all; *file becomes the last. */
static size_t count_named(const char *const *paths, size_t count, const char *word, size_t *file)
{
    size_t found = 0;
    for (size_t i = 0; i < count; i++)
        if (is_rows(paths[i]) && strcasestr(paths[i], word)) {
            *file = i;
            found++;
        }
    return found;
}

int rows_file_choose(const char *id, const char *const *paths, size_t count, enum hub_part part, size_t *file,
                     struct err *err)
{
    static const char *const to_train[] = {"train", "", NULL}; /* in order of preference */
    static const char *const to_evaluate[] = {"valid", "eval", "dev", "test", NULL};
    char some[200] = "";
    bool parquet = false;
    for (const char *const *word = part == HUB_EVAL_ROWS ? to_evaluate : to_train; *word; word++)
        if (count_named(paths, count, *word, file) == 1)
            return 0;
    for (size_t i = 0; i < count; i++) {
        parquet |= rows_file_ends_with(paths[i], ".parquet");
        if (is_rows(paths[i]) && strlen(some) + strlen(paths[i]) + 3 < sizeof(some))
            snprintf(some + strlen(some), sizeof(some) - strlen(some), "%s%s", *some ? ", " : "", paths[i]);
    }
    if (*some)
        return err_set(err, ERR_INVALID,
                       "%s holds more than one file of rows, or none for this (%s): name one, as hf:%s:FILE",
                       id, some, id);
    return parquet ? err_set(err, ERR_UNSUPPORTED,
                             "%s holds its rows as Parquet alone, which is not read: in Python, "
                             "datasets.load_dataset(\"%s\", split=\"train\").to_json(\"rows.jsonl\") writes "
                             "them as JSON "
                             "lines",
                             id, id)
                   : err_set(err, ERR_INVALID,
                             "%s holds no rows that are read: JSON lines or a JSON array, also in gzip", id);
}
