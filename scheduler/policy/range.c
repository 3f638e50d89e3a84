/* Finds the range of a predicted start from how earlier predictions turned out. */
#include "scheduler/policy/range.h"

#include <math.h>
#include <stdlib.h>

struct alike {
    double distance, ratio;
};

void start_history_add(struct start_history *history, const struct start_sample *sample)
{
    history->samples[history->count++ % START_SAMPLES] = *sample;
}

static int compare_distances(const void *a, const void *b)
{
    const double x = ((const struct alike *)a)->distance, y = ((const struct alike *)b)->distance;
    return x < y ? -1 : x > y;
}

static int compare_ratios(const void *a, const void *b)
{
    const double x = ((const struct alike *)a)->ratio, y = ((const struct alike *)b)->ratio;
    return x < y ? -1 : x > y;
}

bool start_range(const struct start_history *history, double predicted_s, uint32_t place, double *from_s,
                 double *to_s)
{
    struct alike alike[START_SAMPLES];
    const size_t count = history->count < START_SAMPLES ? history->count : START_SAMPLES;
    const double wait = fmax(1, predicted_s); /* predictions below a second are treated as one second */
    if (count < START_LEAST)
        return false;
    for (size_t i = 0; i < count; i++) {
        const struct start_sample *sample = &history->samples[i];
        const double predicted = fmax(1, sample->predicted_s);
        alike[i] =
            (struct alike){fabs(log(predicted / wait)) + fabs(log((double)sample->place / (double)place)),
                           fmax(0, sample->waited_s) / predicted};
    }
    qsort(alike, count, sizeof(*alike), compare_distances);
    const size_t taken = count / 4 > START_LEAST ? count / 4 : START_LEAST;
    qsort(alike, taken, sizeof(*alike), compare_ratios);
    /* The shortest of several intervals holds fewer of the next starts than of these: eight of nine of these
     * were 87 to 89 % of the next (tests/scheduler/test_why.c). */
    const size_t held = (taken * 8 + 8) / 9 - 1; /* samples i to i + held are held + 1 samples */
    size_t best = 0;
    for (size_t i = 1; i + held < taken; i++)
        if (alike[i + held].ratio - alike[i].ratio < alike[best + held].ratio - alike[best].ratio)
            best = i;
    *from_s = wait * alike[best].ratio;
    *to_s = wait * alike[best + held].ratio;
    return true;
}
