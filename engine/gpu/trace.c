/* Records two timed events around every launch. */
#include "engine/gpu/trace.h"

#include <stdlib.h>

#include "engine/gpu/gpu.h"

static void trace_destroy(struct gpu *gpu)
{
    struct gpu_trace *trace = gpu->trace;
    gpu->trace = NULL;
    gpu->records_nothing = trace->recorded_nothing;
    for (uint32_t i = 0; i < 2 * trace->room; i++)
        if (trace->events[i])
            gpu->driver->event_destroy(trace->events[i]);
    free(trace->events);
    free(trace->kinds);
    free(trace);
}

int gpu_trace_begin(struct device *device, uint32_t launches_max, struct err *err)
{
    struct gpu *gpu = (struct gpu *)device;
    if (!device_has_clock(device) || gpu->trace)
        return err_set(err, ERR_INVALID, "device %s is no GPU, or is traced already", device->name);
    struct gpu_trace *trace = calloc(1, sizeof(*trace));
    struct gpu_event **events = calloc(2ull * launches_max, sizeof(*events));
    uint8_t *kinds = calloc(launches_max, sizeof(*kinds));
    if (!trace || !events || !kinds) {
        free(trace);
        free(events);
        free(kinds);
        return err_set(err, ERR_NOMEM, "out of memory for a trace of %u launches", launches_max);
    }
    *trace = (struct gpu_trace){
        .events = events, .kinds = kinds, .room = launches_max, .recorded_nothing = gpu->records_nothing};
    gpu->trace = trace;
    gpu->records_nothing = true;
    for (uint32_t i = 0; i < 2 * launches_max; i++)
        if (gpu->driver->event_create(gpu->context, true, &events[i], err) != 0) {
            trace_destroy(gpu);
            return -1;
        }
    return 0;
}

int gpu_trace_mark(struct gpu_call *call, bool after)
{
    struct gpu_trace *trace = call->gpu->trace;
    if (!trace || call->queue != DEVICE_COMPUTE || trace->count == trace->room)
        return 0;
    uint32_t at = 2 * trace->count + after;
    trace->kinds[trace->count] = (uint8_t)call->kind;
    trace->count += after;
    return call->gpu->driver->event_record(trace->events[at], call->gpu->queues[DEVICE_COMPUTE], call->err);
}

int gpu_trace_end(struct device *device, struct gpu_trace_sums *out, struct err *err)
{
    struct gpu *gpu = (struct gpu *)device;
    struct gpu_trace *trace = gpu->trace;
    float milliseconds;
    *out = (struct gpu_trace_sums){.launches = trace->count};
    int status = device_sync(device, err);
    for (uint32_t i = 0; i < trace->count && status == 0; i++) {
        status =
            gpu->driver->event_elapsed(trace->events[2 * i], trace->events[2 * i + 1], &milliseconds, err);
        const double seconds = status == 0 ? 1e-3 * (double)milliseconds : 0;
        out->busy_s += seconds;
        out->op_s[trace->kinds[i]] += seconds;
    }
    if (status == 0 && trace->count > 0) {
        status = gpu->driver->event_elapsed(trace->events[0], trace->events[2 * trace->count - 1],
                                            &milliseconds, err);
        out->span_s = status == 0 ? 1e-3 * (double)milliseconds : 0;
    }
    trace_destroy(gpu);
    return status;
}
