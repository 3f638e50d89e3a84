/* What is recorded for simulations: arrivals of jobs, and forecasts with what came of them. Everybody may
 * read it. Times in documents are as in the API. */
#ifndef MOTLEY_STORE_RECORDS_H
#define MOTLEY_STORE_RECORDS_H

#include "store/store.h"

/* {"sharing": the leader's settings | null, "users":[{"name", limits…}], "groups":[{"name","parent"|null,
 * "weight", limits…}], limits… being "devices_max","running_max","month_seconds_max",
 * "devices":[{"name","bytes"}], "classes":[{"id","speeds":{device: speed}}],
 * "forecasts":[{"class","devices":[name],"step_s"|null,"runs","steps","seconds"}],
 * "leases":[{"device","begins","ends"}]: those between two times (wall-clock µs)}. */
int store_records_get(struct store *store, int64_t from_us, int64_t to_us, store_doc_fn *done, void *arg,
                      struct err *err);

/* Asks the scheduler what would let a queued job start sooner, and answers with what is known:
 * {"starts_earliest" | null,"starts_latest" | null: the range of its start,"ranges": starts that were told as
 * ranges, of the last thousand, "ranges_right": the share of them that was right | null,"sooner": null while
 * that is not answered, else the changes, the soonest first: [{"starts": with the change,"kind": "run" with
 * "job","owner","ends" (predicted | null); "lease" with "lease"; "device" with "device"; "limit" with
 * "limit": its wait code, and "of": whose; "steps" with "steps": left; "memory" with "bytes": less; or
 * "devices": without the names of placement}]}. */
int store_sooner_ask(struct store *store, int64_t job, store_doc_fn *done, void *arg, struct err *err);

/* A page of the jobs that arrived between two times, by id: {"arrivals":[{"id","at","user","group"|null,
 * "class","service","priority","steps","started"|null,"ended"|null,"state","devices":[name]|null,
 * "step_s"|null,"ran_s"}], "next": to give as `after` | null}. */
int store_arrivals_page(struct store *store, int64_t from_us, int64_t to_us, int64_t after, unsigned limit,
                        store_doc_fn *done, void *arg, struct err *err);

#endif
