/* What came out of a run, for people: loss, step time, how fast each device computed and memory, beside what
 * was predicted. */
#ifndef MOTLEY_CLI_REPORT_H
#define MOTLEY_CLI_REPORT_H

#include "cli/cli.h"

/* Prints. job: as GET /v1/jobs/{id} answers it; folder: where its results were put, "" for nowhere. Each
 * line is printed where the server has its figures. */
void report_run(struct cli *cli, int64_t id, const json_t *job, const char *folder);

#endif
