/* Reads and writes the policies' settings. */
#include "scheduler/policy/settings.h"

#include "common/json.h"

void policy_settings_read(struct json_reader *reader, struct policy_settings *settings)
{
    jr_bool(reader, "share", JR_OPTIONAL, &settings->share);
    jr_bool(reader, "limits", JR_OPTIONAL, &settings->limits);
    jr_bool(reader, "width", JR_OPTIONAL, &settings->width);
    jr_bool(reader, "wait", JR_OPTIONAL, &settings->wait);
    jr_bool(reader, "reserve", JR_OPTIONAL, &settings->reserve);
    jr_bool(reader, "preempt", JR_OPTIONAL, &settings->preempt);
    jr_seconds(reader, "half_life", JR_OPTIONAL, 60, 366.0 * 86400, &settings->half_life_s);
    jr_seconds(reader, "move", JR_OPTIONAL, 0, 86400, &settings->move_s);
    jr_f64(reader, "width_least", JR_OPTIONAL, 0.01, 1, &settings->width_least);
    jr_f64(reader, "scavenger_charge", JR_OPTIONAL, 0.001, 1, &settings->scavenger_charge);
}

json_t *policy_settings_document(const struct policy_settings *settings)
{
    return json_pack("{s:b, s:b, s:b, s:b, s:b, s:b, s:f, s:f, s:f, s:f}", "share", settings->share, "limits",
                     settings->limits, "width", settings->width, "wait", settings->wait, "reserve",
                     settings->reserve, "preempt", settings->preempt, "half_life", settings->half_life_s,
                     "move", settings->move_s, "width_least", settings->width_least, "scavenger_charge",
                     settings->scavenger_charge);
}
