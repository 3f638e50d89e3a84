/* External planners, as a configuration (`motley up`'s file and the scheduler's) describes them:
 *
 *     planner: {command: [python3, /opt/planners/mine.py], seconds: 10, memory_mb: 1024, slower_at_most: 1.5}
 *     planners:
 *       by-speed: {command: [/opt/planners/by_speed], seconds: 2}
 *
 * `planner` is asked about every job and is named "default". Those in `planners` are asked about jobs that
 * name them (placement.planner), which only administrators may submit. "built-in" is the planner of this
 * program.
 */
#ifndef MOTLEY_COMMON_PLANNERS_H
#define MOTLEY_COMMON_PLANNERS_H

#include "common/child_json.h"
#include "common/doc.h"

#define PLANNER_DEFAULT "default"
#define PLANNER_BUILT_IN "built-in"
enum { PLANNERS_MAX = 64, PLANNER_NAME_BYTES = 64 };

struct planner_entry {
    char name[PLANNER_NAME_BYTES];
    struct child_program program;
    double slower_at_most; /* its plan is used if it takes at most this many times the built-in planner's step
                              time; default 1.5 */
};

struct planners {
    size_t count;
    struct planner_entry *entries; /* owned */
};

/* Reads both keys of a configuration; each is optional. −1 with the reader failed. Call planners_fini in
 * either case. */
int planners_read(struct json_reader *top, struct planners *planners);
/* The same in a description, as a row without a key. */
extern const struct doc_form planners_form;
/* Finds a planner by name (borrowed); NULL when there is none. */
const struct planner_entry *planners_find(const struct planners *planners, const char *name);
void planners_fini(struct planners *planners);

#endif
