/* Records for simulations: arrivals of jobs, and the planner's forecasts beside what the runs took in truth.
 * Everybody may read them. Times in documents are as in the API. */
#ifndef MOTLEY_STORE_RECORDS_H
#define MOTLEY_STORE_RECORDS_H

#include "store/store.h"

/* Answers what a simulation needs beside the arrivals. "leases" are those between two times (wall-clock µs),
 * and "limits…" stands for "devices_max","running_max","month_seconds_max".
 *   {"sharing": the leader's settings | null, "users":[{"name", limits…}], "groups":[{"name","parent"|null,
 *    "weight", limits…}], "devices":[{"name","bytes"}], "classes":[{"id","speeds":{device: speed}}],
 *    "forecasts":[{"class","devices":[name],"step_s"|null,"runs","steps","seconds"}],
 *    "leases":[{"device","begins","ends"}]}. */
int store_records_get(struct store *store, int64_t from_us, int64_t to_us, store_doc_fn *done, void *arg,
                      struct err *err);

/* Asks the scheduler what would let a queued job start sooner, and answers with what is known so far:
 *   {"starts_earliest" | null,"starts_latest" | null: the range of the job's predicted start,
 *    "ranges": number of ranges, of the last thousand, that were predicted for jobs that have started,
 *    "ranges_right": the share of these that held the true start | null,
 *    "sooner": null while there is no answer, else the changes, the soonest first:
 *     [{"starts": the start with the change,"kind": "run" with "job","owner","ends" (predicted | null);
 *      "lease" with "lease"; "device" with "device"; "limit" with "limit": its wait code, and
 *      "of": whose limit; "steps" with "steps": number of steps left; "memory" with "bytes": bytes less on
 *      each device; or "devices": the job's placement names no devices}]}. */
int store_sooner_ask(struct store *store, int64_t job, store_doc_fn *done, void *arg, struct err *err);

/* Answers a page of the jobs that arrived between two times, by id:
 *   {"arrivals":[{"id","at","user","group"|null,"class","service","priority","steps","started"|null,
 *    "ended"|null,"state","devices":[name]|null,"step_s"|null,"ran_s"}],
 *    "next": id to give as `after` | null}. */
int store_arrivals_page(struct store *store, int64_t from_us, int64_t to_us, int64_t after, unsigned limit,
                        store_doc_fn *done, void *arg, struct err *err);

#endif
