/* Measures how long a GPU's kernels run and how long it is idle between them, with timed events around every
 * launch on the compute queue. It is for measurements only: an event itself takes about a microsecond.
 */
#ifndef MOTLEY_ENGINE_GPU_TRACE_H
#define MOTLEY_ENGINE_GPU_TRACE_H

#include "engine/device/backend.h"
#include "engine/device/op.h"

struct gpu_trace_sums {
    uint32_t launches;     /* number of launched kernels and fills with zeros */
    double busy_s;         /* seconds between the events of each launch, summed */
    double span_s;         /* seconds from the first launch's event to the last one's */
    double op_s[OP_KINDS]; /* busy_s by the op that made the launches */
};

/* Trace up to launches_max > 0 launches from now on; later ones run untraced. Meanwhile passes are queued op
 * by op. ERR_INVALID: the device is no GPU, or is being traced already. */
int gpu_trace_begin(struct device *device, uint32_t launches_max, struct err *err);
/* Waits until the device has done all its work, writes the sums to *out and ends the trace. The trace ends
 * also when the call fails. */
int gpu_trace_end(struct device *device, struct gpu_trace_sums *out, struct err *err);

#endif
