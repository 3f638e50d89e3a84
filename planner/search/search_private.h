/* What search.c shares with search_huge.c and search_kick.c. For these only. */
#ifndef MOTLEY_PLANNER_SEARCH_SEARCH_PRIVATE_H
#define MOTLEY_PLANNER_SEARCH_SEARCH_PRIVATE_H

#include "planner/cost/price.h"
#include "planner/search/placement.h"
#include "planner/search/polish.h"
#include "planner/search/search.h"

struct search {
    const struct problem *problem;
    const struct plan_options *options;
    struct plan_answer *answer;
    struct choice_list lists[PLACE_COUNT];
    bool tried[PLACE_COUNT];
    double fastest_s;         /* of the finalists so far; 0: none yet */
    struct place_choice best; /* borrowed from its list */
    struct plan *emitted;     /* the fastest simulated of a huge problem's, its seconds and whose it is */
    double emitted_s;
    struct price_run emitted_run;
    const struct place_member *emitted_of;
    double best_s;
    uint32_t steps; /* over which the best of each placement are compared, and the chosen one is priced */
    struct place_choice from; /* options->from as a choice, polished; no members: none */
    struct plan *kept;        /* options->from as it is, when nothing is faster; until it is answered */
    bool keeps;
    double
        *with_s; /* [device_count]: the best found with a device that is left out, 0: none; NULL: not tried */
    struct place_choice with; /* what left_out_try found to be faster than all else */
    struct err *err;
};

#define LONG_DEVICES 7u          /* devices from which nothing is enumerated */
#define TENSOR_FEW 6u            /* up to which tensor groups far behind are polished and kicked, too */
#define POLISH_WITHIN 1.25       /* of the best so far */
#define POLISHED 6u              /* finalists of a placement that are polished */
#define POLISHED_FEW 2u          /* hybrids of few devices: before the best of them is kicked about */
#define KICKS 96u                /* in vain, until the best one is let be */
#define CELLS_PER_EVALUATION 16u /* ranks * micro-batches * steps simulated for one of the budget */
#define LARGE_CELLS 4000u        /* from which simulating is dear: few finalists, one step each, no polish */
#define HUGE_CELLS 6000u         /* ranks * micro-batches from which only those are simulated that may win */

/* The best choices of one placement while it is searched. */
struct finalists {
    struct polish *polish; /* NULL: nothing more is tried */
    uint64_t cells, budget;
    uint64_t few_budget;  /* of few: for each of what is dealt, kicked about or walked from beside the best */
    uint32_t best, known; /* of its list; UINT32_MAX: none; known: the best one that can be kicked about */
    double seconds, known_s;
    double descended_s[CHOICES_MAX]; /* of its list: what was polished; 0: not, or kicked about since */
    double simulated_s[CHOICES_MAX]; /* hybrids of few: what was not polished yet; 0: it was */
    bool few;                        /* hybrid among few devices */
};

/* Steps over which choices of about this size are compared while choosing. */
uint32_t finalist_steps(const struct problem *problem, uint64_t cells);
/* Kicks the best of every placement about where that may make it the fastest of all. ERR_NOMEM. */
int search_kick(struct search *search, struct finalists all[PLACE_COUNT]);
/* Ranks times micro-batches, and how much longer than a pipeline's the program is. */
uint64_t choice_cells(const struct problem *problem, const struct place_choice *choice);
/* Many devices that must be quick, or many rows, too: estimates decide what is emitted. */
bool search_huge(const struct search *search);
/* So many device-rows that data's splits and finalists' programs take long. */
bool search_long(const struct search *search);
/* Sets how long a placement may look. */
void huge_limits(const struct search *search, enum plan_placement kind, struct choice_list *list);
/* Which of a list's choices goes on, and its seconds: of the first few by estimate the best by simulation or,
 * where that would take long, the first. */
uint32_t huge_finalist(const struct search *search, const struct choice_list *list, double *seconds);
/* Emitting is dear: in the order of estimates, until nobody's estimate is near or below what was simulated.
 * The plan of the fastest is kept (search->emitted); a short one is polished. What does not fit after all is
 * struck off. ERR_NOMEM. */
int huge_choose(struct search *search, const struct place_choice *best[PLACE_COUNT],
                double seconds[PLACE_COUNT]);

#endif
