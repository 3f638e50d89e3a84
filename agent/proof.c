#include "agent/proof.h"

#include <stdio.h>
#include <string.h>

/* A trial that failed is repeated after a pause that doubles from AGAIN_MS_MIN to AGAIN_MS_MAX. */
enum { AGAIN_MS_MIN = 1000, AGAIN_MS_MAX = 60000 };
/* A driver's first translation of the kernels for its card takes up to two minutes. */
#define TRIAL_NS ((uint64_t)180 * 1000000000u)

void proof_init(struct proof *proof, bool proven, uint64_t now_ns)
{
    *proof = (struct proof){.due_ns = proven ? 0 : now_ns, .began_ns = now_ns};
    snprintf(proof->lacks, sizeof(proof->lacks), "%s", proven ? "" : "a worker is being tried on it");
}

void proof_doubt(struct proof *proof, uint64_t now_ns)
{
    if (proof->lacks[0] == '\0')
        proof->due_ns = now_ns;
}

bool proof_take(struct proof *proof, const char *why, uint64_t now_ns)
{
    char before[PROOF_TEXT];
    memcpy(before, proof->lacks, sizeof(before));
    snprintf(proof->lacks, sizeof(proof->lacks), "%s", why ? why : "");
    const uint32_t next_ms = proof->wait_ms > 0 ? 2 * proof->wait_ms : AGAIN_MS_MIN;
    proof->wait_ms = !why ? 0 : next_ms < AGAIN_MS_MAX ? next_ms : AGAIN_MS_MAX;
    proof->due_ns = why ? now_ns + (uint64_t)proof->wait_ms * 1000000 : 0;
    return strcmp(before, proof->lacks) != 0;
}

bool proof_is_due(const struct proof *proof, uint64_t now_ns)
{
    return proof->due_ns > 0 && now_ns >= proof->due_ns;
}

bool proof_hangs(const struct proof *proof, uint64_t now_ns)
{
    return now_ns - proof->began_ns > TRIAL_NS;
}
