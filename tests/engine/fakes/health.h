/* What the fake management libraries say: exported as `fake_health`, set by a test. Two cards each. */
#pragma once

#include <stdint.h>

#define FAKE_EXPORT __attribute__((visibility("default")))

struct fake_health {
    int init;          /* what opening answers; 0: it works */
    int lost;          /* the card that is lost; -1: none */
    int older;         /* calls that came late are not supported */
    int mig;           /* card 0 is sliced */
    uint32_t version;  /* of ROCm SMI, its first number */
    uint64_t throttle; /* of card 0 */
    uint64_t xid;      /* told once, of card 1 */
    uint64_t used;     /* bytes, of card 0 */
    uint32_t pid;      /* that uses half of them */
    uint32_t open, closed;
};
