/* Models and data that a specification calls by their names on the Hub, and `motley model get`. */
#include "cli/cli.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/units.h"

enum { SHOWN_COLUMNS = 200, FILE_COLUMNS = 28, REDRAW_MS = 200 };

/* What a fetch shows on stderr: a line that is redrawn, on a terminal. */
struct shown {
    bool terminal;
    uint64_t began_ns, drawn_ns;
    uint64_t first; /* bytes that were there at the first call */
    bool moved;
};

static void line_clear(const struct shown *shown)
{
    if (shown->terminal && shown->moved)
        fprintf(stderr, "\r\x1b[K");
}

static void show_moved(void *arg, const char *file, uint64_t done, uint64_t total)
{
    struct shown *shown = arg;
    const uint64_t now = clock_mono_ns();
    char name[FILE_COLUMNS * 4 + 1], is[32], of[32], rate[32];
    if (!shown->moved) {
        shown->began_ns = now;
        shown->first = done;
    }
    shown->moved = true;
    if (!shown->terminal || now - shown->drawn_ns < (uint64_t)REDRAW_MS * 1000000u)
        return;
    shown->drawn_ns = now;
    const double seconds = (double)(now - shown->began_ns) * 1e-9;
    show_clean(file, FILE_COLUMNS, name, sizeof(name));
    fprintf(stderr, "\r\x1b[K  %s: %s of %s, %s/s", name, units_bytes(is, done), units_bytes(of, total),
            units_bytes(rate, seconds > 0 ? (uint64_t)((double)(done - shown->first) / seconds) : 0));
    fflush(stderr);
}

static void show_note(void *arg, const char *sentence)
{
    char clean[SHOWN_COLUMNS * 4 + 1];
    line_clear(arg);
    show_clean(sentence, SHOWN_COLUMNS, clean, sizeof(clean));
    fprintf(stderr, "  %s\n", clean);
}

static int fetch_shown(const struct hub_place *place, const struct hub_name *name, enum hub_part part,
                       struct hub_found *found, struct err *err)
{
    struct shown shown = {.terminal = isatty(STDERR_FILENO)};
    struct hub_watch watch = {.moved = show_moved, .note = show_note, .arg = &shown};
    fprintf(stderr, "fetching %s@%s from %s\n", name->id, name->revision, place->endpoint);
    int result = hub_fetch(place, name, part, &watch, found, err);
    line_clear(&shown);
    return result;
}

static void tell_found(const struct hub_name *name, const struct hub_found *found, bool fetched)
{
    char bytes[32], came[32];
    if (fetched)
        fprintf(stderr, "  commit %.12s: %u files, %s, of which %s came now\n", found->commit, found->files,
                units_bytes(bytes, found->bytes), units_bytes(came, found->fetched_bytes));
    else
        fprintf(stderr, "%s@%s is the Hub's, commit %.12s, from the cache\n", name->id, name->revision,
                found->commit);
}

bool hub_means(const char *word)
{
    const size_t size = strlen(word);
    const bool file = size > 5 && strcmp(word + size - 5, ".gguf") == 0 && !strchr(word, ':');
    return hub_name_like(word) && !file;
}

int hub_path(const char *word, enum hub_part part, struct hub_name *name, char *path, struct err *err)
{
    struct hub_place place;
    struct hub_found found;
    struct err absent = {0};
    if (hub_name_parse(word, name, err) < 0 || hub_place_read(&place, err) < 0)
        return -1;
    name->dataset = part == HUB_TRAIN_ROWS || part == HUB_EVAL_ROWS;
    const bool cached = hub_find(&place, name, part, &found, &absent) == 0;
    if (!cached && fetch_shown(&place, name, part, &found, err) < 0)
        return -1;
    tell_found(name, &found, !cached);
    snprintf(path, PATH_MAX, "%s", found.path);
    return 0;
}

int hub_get(struct cli *cli, const char *word, struct err *err)
{
    struct hub_name name;
    struct hub_place place;
    struct hub_found found;
    if (hub_name_parse(word, &name, err) < 0 || hub_place_read(&place, err) < 0)
        return -1;
    bool fetched = !place.offline && fetch_shown(&place, &name, HUB_WHOLE, &found, err) == 0;
    if (!fetched && (place.offline || err->code == ERR_NET)) {
        struct err absent = {0};
        if (hub_find(&place, &name, HUB_WHOLE, &found, place.offline ? err : &absent) < 0)
            return -1;
        if (!place.offline)
            fprintf(stderr, "  %s\n  the cache has it whole, perhaps not %s's newest commit\n", err->text,
                    name.revision);
    } else if (!fetched) {
        return -1;
    }
    tell_found(&name, &found, fetched);
    if (!cli->json) {
        printf("%s\n", found.path);
        return 0;
    }
    json_t *told =
        json_pack("{s:s, s:s, s:s, s:s, s:I}", "name", name.id, "revision", name.revision, "commit",
                  found.commit, "path", found.path, "fetched_bytes", (json_int_t)found.fetched_bytes);
    if (told && fetched) { /* the hub alone knows what makes a model */
        json_object_set_new(told, "files", json_integer((json_int_t)found.files));
        json_object_set_new(told, "bytes", json_integer((json_int_t)found.bytes));
    }
    int result = show_json(told, err);
    json_decref(told);
    return result;
}
