/* How long a GPU's kernels took and how long it stood idle between them, by timed events around every launch
 * on the compute queue. For measurements: the events take time of their own, about a microsecond each.
 */
#ifndef MOTLEY_ENGINE_GPU_TRACE_H
#define MOTLEY_ENGINE_GPU_TRACE_H

#include "engine/device/backend.h"

struct gpu_trace_sums {
    uint32_t launches; /* of kernels, and fills with zeros */
    double busy_s;     /* from before each to after it */
    double span_s;     /* from before the first to after the last */
};

/* Trace from now on, at most launches_max > 0; what comes later runs untraced. Passes are queued op by op
 * meanwhile. ERR_INVALID of a device that is no GPU, or is traced already. */
int gpu_trace_begin(struct device *device, uint32_t launches_max, struct err *err);
/* Waits. Ends the trace, also on error. */
int gpu_trace_end(struct device *device, struct gpu_trace_sums *out, struct err *err);

#endif
