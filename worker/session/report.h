/* The events of a run. docs/CONTRACTS.md defines their fields. */
#ifndef MOTLEY_WORKER_SESSION_REPORT_H
#define MOTLEY_WORKER_SESSION_REPORT_H

#include "worker/session/session.h"

/* Returns true on the one rank that reports steps, evaluations and samples: the first rank that has the
 * model's head. */
bool session_reports(const struct session *session);
/* These functions send one event each, named like the function. `scale` is the loss scale of the step; 0 when
 * there is none. */
int report_step(struct session *session, const struct ops_step *step, double scale, double seconds,
                struct err *err);
int report_ranks(struct session *session, uint64_t step, const struct exec_totals *totals, struct err *err);
int report_trace(struct session *session, uint64_t step, struct err *err);
/* `loss` is the held-out loss of that step, not finite when there was no evaluation; `routing` (may be NULL)
 * is each expert's share of tokens. */
int report_checkpoint(struct session *session, uint64_t step, json_t *blobs, bool best, double loss,
                      json_t *routing, struct err *err);
int report_eval(struct session *session, uint64_t step, double loss, uint64_t labelled, double seconds,
                struct err *err);
int report_sample(struct session *session, uint64_t step, const int32_t *ids, uint32_t count,
                  struct err *err);
int report_memory(struct session *session, struct err *err);
/* Logs how many bytes went to other ranks and over which links. */
int report_links(struct session *session, struct err *err);
int report_log(struct worker_link *link, const char *level, const char *text, struct err *err);
/* Return VmHWM and VmRSS of this process in bytes; 0 when unknown. */
uint64_t process_peak_bytes(void);
uint64_t process_resident_bytes(void);

#endif
