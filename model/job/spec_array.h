/* Arrays of jobs: the key `array` of a specification, {key: [values]}, and the specifications of its
 * elements. All functions are pure. */
#ifndef MOTLEY_MODEL_JOB_SPEC_ARRAY_H
#define MOTLEY_MODEL_JOB_SPEC_ARRAY_H

#include "model/job/spec.h"

/* Calls spec_check_model() for each value of the array of a document that spec_to_json() wrote. */
int spec_array_check_model(const json_t *document, const struct model_config *config, struct err *err);

/* Returns the specification of element `index` (from 0) of an array, new: its name is the array's with
 * "[index]" behind it, and it neither waits for other jobs nor is held. NULL with the error. */
json_t *spec_array_element(const json_t *document, uint32_t index, struct err *err);

#endif
