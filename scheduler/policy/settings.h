/* Converts between the policies' settings and the section `sharing` of a configuration
 * (docs/INTERFACES.md). */
#ifndef MOTLEY_SCHEDULER_POLICY_SETTINGS_H
#define MOTLEY_SCHEDULER_POLICY_SETTINGS_H

#include <jansson.h>

#include "scheduler/policy/policy.h"

struct json_reader;

/* Reads the settings that the object has; the others stay unchanged. An error names the key by its path. */
void policy_settings_read(struct json_reader *reader, struct policy_settings *settings);
/* Returns the settings as a section `sharing`, new; NULL without memory. */
json_t *policy_settings_document(const struct policy_settings *settings);

#endif
