/* What the fake management libraries (NVML, ROCm SMI) report. Each library exports it as `fake_health` and
 * has two cards; tests set it. */
#pragma once

#include <stdint.h>

#define FAKE_EXPORT __attribute__((visibility("default")))

struct fake_health {
    int init;          /* the status that initialisation returns; 0: success */
    int lost;          /* the number of the lost card; -1: none */
    int older;         /* whether calls of newer library versions are missing */
    int mig;           /* whether card 0 is divided by MIG */
    int early_535;     /* whether processes are written as early drivers of release 535 do */
    uint32_t version;  /* the major version of ROCm SMI */
    uint64_t reasons;  /* throttle reasons of AMD's card 0 by bits that all cards share; 0: not told */
    uint64_t throttle; /* card 0's throttle reasons */
    uint64_t xid;      /* an Xid of card 1, reported once */
    uint64_t used;     /* card 0's used bytes */
    uint32_t pid;      /* the process that uses half of these bytes */
    uint32_t open, closed;
};
