/* Implements `motley replay --from`: reads cases and writes a line for each. */
#include "published/cases.h"

#include <string.h>

#include "published/import.h"

#define CASES_MAX 100000u

static const struct importer *const importers[] = {&import_cephalo, &import_zorse, &import_sailor, NULL};

static const struct importer *importer_find(const char *name)
{
    for (uint32_t i = 0; importers[i]; i++)
        if (strcmp(importers[i]->name, name) == 0)
            return importers[i];
    return NULL;
}

const char *const *replay_import_files(const char *from)
{
    const struct importer *importer = importer_find(from);
    return importer ? importer->files : NULL;
}

/* Puts the case's position in the file into the path of its error: "case.inputs.gpus: …". */
static void case_named(struct err *why, const char *list, size_t number)
{
    char rest[sizeof(why->text)];
    if (strncmp(why->text, "case", 4) != 0 || !strchr(".:", why->text[4]))
        return;
    memcpy(rest, why->text + 4, sizeof(rest) - 4);
    rest[sizeof(rest) - 5] = '\0';
    err_set(why, why->code, "%s[%zu]%s", list, number, rest);
}

static int case_run(const struct importer *importer, void *state, const json_t *one, const char *list,
                    size_t number, const struct replay_sink *sink, struct err *err)
{
    struct err why = {0};
    double began = sink->now_s ? sink->now_s(sink->context) : 0;
    json_t *line = importer->line(state, one, &why);
    double took = sink->now_s ? sink->now_s(sink->context) - began : 0;
    const json_t *id = json_object_get(one, "id");
    if (!line && why.code == ERR_NOMEM) {
        *err = why;
        return -1;
    }
    if (!line) {
        case_named(&why, list, number);
        line = json_pack("{s:o,s:s,s:s}", "id",
                         json_is_string(id) ? json_string(json_string_value(id))
                                            : json_integer((json_int_t)number),
                         "status", "error", "error", why.text);
    }
    if (!line || json_object_set_new(line, "plan_s", json_real(took)) < 0) {
        json_decref(line);
        return err_set(err, ERR_NOMEM, "replay: out of memory");
    }
    int result = sink->line(sink->context, line, err);
    json_decref(line);
    return result;
}

int replay_import(const char *from, const json_t *documents, const json_t *cases,
                  const struct replay_sink *sink, struct err *err)
{
    const struct importer *importer = importer_find(from);
    if (!importer)
        return err_set(err, ERR_NOT_FOUND, "replay --from: \"%s\" is not cephalo, zorse or sailor", from);
    const json_t *list = json_is_array(cases) ? cases : json_object_get(cases, "cases");
    const char *name = json_is_array(cases) ? "" : list ? "cases" : "plans";
    list = list ? list : json_object_get(cases, "plans");
    if (json_is_array(list) && json_array_size(list) == 0)
        return err_set(err, ERR_INVALID, "cases: there is none");
    if (!json_is_array(list))
        return err_set(err, ERR_INVALID, "cases: neither a list nor an object with `cases` or `plans`");
    if (json_array_size(list) > CASES_MAX)
        return err_set(err, ERR_TOO_BIG, "cases: %zu; at most %u", json_array_size(list), CASES_MAX);
    void *state = importer->begin(documents, err);
    if (!state)
        return -1;
    int result = 0;
    for (size_t i = 0; i < json_array_size(list) && result == 0; i++)
        result = case_run(importer, state, json_array_get(list, i), name, i, sink, err);
    importer->end(state);
    return result;
}
