/* What earlier runs tell of forecasts: by how much each run's measured step differed from its forecast.
 *
 * A document's device lists the runs whose first rank was on it:
 *
 *     "taught": [{"placement": "tensor", "devices": ["left/cpu0", "right/cpu0"], "times": 1.24,
 *                 "age_days": 3, "alike": true}]
 *
 * times: measured seconds of a step by those forecast without any correction. alike: the run had the job's
 * profile key, and the tables of its devices have not changed since it was planned. Pure.
 */
#ifndef MOTLEY_PLANNER_GIVEN_TAUGHT_H
#define MOTLEY_PLANNER_GIVEN_TAUGHT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "program/program.h"

/* Most runs that correct a forecast, and most that one device lists. */
#define TAUGHT_RUNS_MAX 64u

struct taught_run {
    enum plan_placement placement;
    bool alike;
    double log_times; /* ln times, of which no more than a factor of four is believed */
    double age_days;
    uint64_t devices; /* the sum of taught_device over the run's devices, so their order does not matter */
};

/* Returns a device's part of taught_run.devices. */
uint64_t taught_device(const char *name);

/* Reads a list of runs (NULL: none) into a new array, which the caller frees. ERR_INVALID with the path,
 * ERR_NOMEM. */
int taught_read(const json_t *list, struct taught_run **runs, uint32_t *count, struct err *err);

#endif
