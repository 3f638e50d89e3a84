/* Whether a device can run a worker: what it lacks, and when a worker is tried on it again. Pure; times are
 * clock_mono_ns(). */
#ifndef MOTLEY_AGENT_PROOF_H
#define MOTLEY_AGENT_PROOF_H

#include <stdbool.h>
#include <stdint.h>

enum { PROOF_TEXT = 400 };

struct proof {
    char lacks[PROOF_TEXT]; /* a sentence; "": nothing is lacking */
    uint64_t due_ns;        /* when the next trial begins; 0: none is needed */
    uint64_t began_ns;      /* when the present or last trial began */
    uint32_t wait_ms;       /* pause after the last trial that failed */
};

/* proven: a worker runs there already. Else the device lacks a trial, which is due at once. */
void proof_init(struct proof *proof, bool proven, uint64_t now_ns);
/* A worker or its start failed for no fault of its job: a trial is due at once. */
void proof_doubt(struct proof *proof, uint64_t now_ns);
/* Takes the result of a trial. `why`: what is lacking, NULL: nothing. Returns whether that has changed. */
bool proof_take(struct proof *proof, const char *why, uint64_t now_ns);
bool proof_is_due(const struct proof *proof, uint64_t now_ns);
/* Whether the trial that runs takes too long. */
bool proof_hangs(const struct proof *proof, uint64_t now_ns);

#endif
