/* The report of a run for people: loss, step time, how fast each device computed, and memory, beside the
 * predictions. */
#ifndef MOTLEY_CLI_REPORT_H
#define MOTLEY_CLI_REPORT_H

#include "cli/cli.h"

/* Prints the report. job: as GET /v1/jobs/{id} answers it; folder: where the results were written, "" for
 * nowhere. Figures that the server does not have are left out. */
void report_run(struct cli *cli, int64_t id, const json_t *job, const char *folder);

/* Returns the median of the value `key` over the lines of a device (NULL: all devices); 0: there are no
 * values. The first two steps are left out, because caches and connections are cold. */
double report_median(const json_t *lines, const char *key, const char *device);

#endif
