/* Converts between a specification's method and peft's adapter files. */
#ifndef MOTLEY_WORKER_CHECKPOINT_ADAPTER_H
#define MOTLEY_WORKER_CHECKPOINT_ADAPTER_H

#include <jansson.h>

#include "common/buf.h"
#include "common/err.h"
#include "model/adapters/peft.h"
#include "model/job/spec.h"

/* Makes adapter_config.json for the specification's method (new). */
json_t *adapter_config(const struct job_spec *spec, const struct model_config *model, const char *base_model,
                       struct err *err);
/* Opens an adapter; takes over `tensors`, also on error. Refuses an adapter that was made for another model
 * or method. */
int adapter_open(const struct buf *config_json, struct safetensors *tensors,
                 const struct model_config *config, const struct job_spec *spec, struct peft **peft,
                 struct err *err);

#endif
