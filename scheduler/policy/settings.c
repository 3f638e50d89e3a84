/* The policies' settings, as the section `sharing` of a configuration has them (docs/INTERFACES.md). */
#include "scheduler/policy/policy.h"

#define HALF_LIFE_S (7 * 86400.0)
#define MOVE_S 60
#define WIDTH_LEAST 0.7
#define SCAVENGER_CHARGE 0.25

const struct policy_settings policy_defaults = {.share = true,
                                                .limits = true,
                                                .width = true,
                                                .wait = true,
                                                .reserve = true,
                                                .backfill = true,
                                                .preempt = true,
                                                .half_life_s = HALF_LIFE_S,
                                                .width_least = WIDTH_LEAST,
                                                .scavenger_charge = SCAVENGER_CHARGE,
                                                .move_s = MOVE_S};

#define APPLIES(name) DOC_FLAG(#name, policy_settings, name, JR_OPTIONAL, true, "whether this policy applies")

static const struct doc_field settings_fields[] = {
    APPLIES(share),
    APPLIES(limits),
    APPLIES(width),
    APPLIES(wait),
    APPLIES(reserve),
    APPLIES(preempt),
    DOC_NUM("half_life", policy_settings, half_life_s, JR_OPTIONAL, HALF_LIFE_S, 60, 366.0 * 86400,
            "half-life of charged use", .flags = DOC_SECONDS),
    DOC_NUM("move", policy_settings, move_s, JR_OPTIONAL, MOVE_S, 0, 86400,
            "what a run loses when it moves or yields", .flags = DOC_SECONDS),
    DOC_NUM("width_least", policy_settings, width_least, JR_OPTIONAL, WIDTH_LEAST, 0.01, 1,
            "least throughput per charged device-second that more devices must reach, relative to the best "
            "number of "
            "devices"),
    DOC_NUM("scavenger_charge", policy_settings, scavenger_charge, JR_OPTIONAL, SCAVENGER_CHARGE, 0.001, 1,
            "factor on the charge of scavengers"),
};
const struct doc policy_settings_doc = DOC(policy_settings, settings_fields);
