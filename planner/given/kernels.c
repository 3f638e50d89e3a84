/* Which devices of the catalogue have kernels. PTX runs on its own architecture and all later ones,
 * translated by the driver; AMD's code runs on one architecture alone. */
#include "planner/given/kernels.h"

#include <stdlib.h>
#include <string.h>

const char *const catalogue_runs_names[] = {"real", "emulated", "planned only"};

/* Entries on which somebody ran `make gpu-hour`, or trained, with the result kept in bench/results. */
static const char *const real_cards[] = {NULL};

/* What the compiler that tools/packages.sh installs makes; gfx950 needs clang 20. */
static const char *const targets[] = {
    "sm_52",   "sm_75",   "sm_80",   "gfx900",  "gfx906",  "gfx908",  "gfx90a",  "gfx942",  "gfx1010",
    "gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036", "gfx1100", "gfx1101",
    "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1200", "gfx1201", NULL};

static bool has_kernels(const char *arch)
{
    for (size_t i = 0; targets[i]; i++) {
        bool same = strcmp(targets[i], arch) == 0;
        bool later = strncmp(targets[i], "sm_", 3) == 0 && strncmp(arch, "sm_", 3) == 0 &&
                     strtol(arch + 3, NULL, 10) > strtol(targets[i] + 3, NULL, 10);
        if (same || later)
            return true;
    }
    return false;
}

enum catalogue_runs catalogue_runs(const struct catalogue_entry *entry)
{
    if (strcmp(entry->arch, "x86-64") == 0)
        return RUNS_REAL;
    for (size_t i = 0; real_cards[i]; i++)
        if (strcmp(real_cards[i], entry->name) == 0)
            return RUNS_REAL;
    return has_kernels(entry->arch) ? RUNS_EMULATED : RUNS_PLANNED;
}
