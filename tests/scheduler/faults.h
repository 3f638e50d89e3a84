/* Makes statements of the schedulers' processes fail. The program is linked with --wrap=pg_query_with, so
 * every statement of a scheduler passes by here on its way to PostgreSQL, which then refuses it: its first
 * parameter is no JSON, or the statement calls a function that the database lacks. The test and its
 * schedulers share a file's memory. */
#ifndef MOTLEY_TESTS_FAULTS_H
#define MOTLEY_TESTS_FAULTS_H

#include <ctype.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/pg.h"

enum { FAULTS_MAX = 48, SEEN_MAX = 160, FAULT_NAME = 64 };

struct faults {
    struct fault {
        char statement[FAULT_NAME]; /* a name, or a pattern of names */
        char match[FAULT_NAME];     /* fails when the parameter has these words; "": always */
        int hits;
    } at[FAULTS_MAX];
    int count;
    bool once; /* each statement fails when it is run first */
    int seen_count;
    char seen[SEEN_MAX][FAULT_NAME]; /* statements that have failed or would have, since `once` was set */
};

static struct faults *faults;
static bool faults_are_ours; /* in a scheduler's process */

static inline void faults_map(const char *path, bool ours)
{
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    faults_are_ours = ours;
    if (fd < 0 || ftruncate(fd, sizeof(struct faults)) < 0)
        abort();
    void *memory = mmap(NULL, sizeof(struct faults), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory == MAP_FAILED)
        abort();
    faults = memory;
}

static inline bool fault_was_seen(const char *statement)
{
    for (int i = 0; i < faults->seen_count; i++)
        if (strcmp(faults->seen[i], statement) == 0)
            return true;
    return false;
}

/* Whether the text has the words, and neither a letter nor a digit beside them. */
static inline bool fault_matches(const char *text, const char *words)
{
    const size_t size = strlen(words);
    for (const char *at = text; size > 0 && (at = strstr(at, words)); at++)
        if ((at == text || !isalnum((unsigned char)at[-1])) && !isalnum((unsigned char)at[size]))
            return true;
    return size == 0;
}

/* Whether the statement is to fail. *broken: because of itself, not because of its rows. */
static inline bool fault_is_due(const struct pg_step *step, bool *broken)
{
    const char *name = step->statement->name;
    const char *text = step->params && step->params->count > 0 ? step->params->values[0] : NULL;
    for (int i = 0; i < faults->count; i++)
        if (fnmatch(faults->at[i].statement, name, 0) == 0 &&
            fault_matches(text ? text : "", faults->at[i].match)) {
            faults->at[i].hits++;
            *broken = faults->at[i].match[0] == '\0';
            return true;
        }
    if (fault_was_seen(name) || faults->seen_count == SEEN_MAX)
        return false;
    snprintf(faults->seen[faults->seen_count], FAULT_NAME, "%s", name);
    faults->seen_count++;
    return faults->once;
}

/* Returns a statement that fails, with the name of the given one behind "fault_". */
static inline const struct pg_statement *fault_statement(const struct pg_statement *of)
{
    static struct pg_statement made[SEEN_MAX];
    static char names[SEEN_MAX][FAULT_NAME + 8];
    static int count;
    for (int i = 0; i < count; i++)
        if (strcmp(names[i] + 6, of->name) == 0)
            return &made[i];
    if (count == SEEN_MAX)
        abort();
    snprintf(names[count], sizeof(names[count]), "fault_%s", of->name);
    made[count] = (struct pg_statement){names[count], "SELECT fault_missing()", of->kind};
    return &made[count++];
}

int __real_pg_query_with(struct pg *pg, const struct pg_step *steps, int count, uint32_t timeout_ms,
                         bool alone, pg_done_fn *done, void *arg, struct err *err);
int __wrap_pg_query_with(struct pg *pg, const struct pg_step *steps, int count, uint32_t timeout_ms,
                         bool alone, pg_done_fn *done, void *arg, struct err *err);

int __wrap_pg_query_with(struct pg *pg, const struct pg_step *steps, int count, uint32_t timeout_ms,
                         bool alone, pg_done_fn *done, void *arg, struct err *err)
{
    struct pg_step with[PG_STEPS_MAX];
    struct pg_params params;
    for (int i = 0; i < count && i < PG_STEPS_MAX; i++)
        with[i] = steps[i];
    /* of events and of all others: no two works in a row fail, as one that fails is tried again */
    static bool failed[2];
    const int kind = count > 1 && strncmp(steps[1].statement->name, "ingest_", 7) == 0;
    const bool may_fail = faults_are_ours && faults && !(faults->once && failed[kind]);
    failed[kind] = false;
    for (int i = 0; may_fail && i < count; i++) {
        bool broken = false;
        if (!fault_is_due(&steps[i], &broken))
            continue;
        failed[kind] = true;
        if (steps[i].params && steps[i].params->count > 0 && steps[i].params->values[0] &&
            ((!broken && strchr("[{", steps[i].params->values[0][0])) ||
             strcmp(steps[i].statement->name, "store_fence") == 0)) {
            params = *steps[i].params;
            params.values[0] = "no JSON";
            params.lengths[0] = 7;
            with[i].params = &params;
        } else {
            with[i] = (struct pg_step){fault_statement(steps[i].statement), NULL};
        }
        break; /* the others do not run */
    }
    return __real_pg_query_with(pg, with, count, timeout_ms, alone, done, arg, err);
}

/* ---- the test's side ---- */

static inline void faults_clear(void)
{
    faults->count = 0;
    faults->once = false;
    faults->seen_count = 0;
}

/* From now on the statement fails whenever its parameter has the words. Returns the fault's index. */
static inline int fault_add(const char *statement, const char *match)
{
    struct fault *fault = &faults->at[faults->count];
    snprintf(fault->statement, FAULT_NAME, "%s", statement);
    snprintf(fault->match, FAULT_NAME, "%s", match);
    fault->hits = 0;
    return faults->count++;
}

#endif
