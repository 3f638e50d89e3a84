/* Events of a run, recorded by workers or made by the simulator. Both have one form, so that they open side
 * by side in Perfetto (Chrome trace format: pid = rank, tid = queue). The number of events is bounded: a long
 * run traces a sample of its steps. */
#ifndef MOTLEY_PROGRAM_TRACE_H
#define MOTLEY_PROGRAM_TRACE_H

#include <jansson.h>

#include "program/program.h"

#define TRACE_EVENTS_MAX (1u << 20)

struct trace_event {
    uint32_t rank, step, instr; /* instr: index in the rank's program of kind `program` */
    uint8_t program;            /* enum program_kind */
    int64_t begin_ns, end_ns;   /* ns since the trace's origin; whoever merges traces aligns the workers'
                                   clocks */
    int64_t ready_ns; /* ns at which its queue and `after` allowed the instruction to start; from then to
                         begin_ns it waits for the wire or the device; begin_ns if unknown */
};

struct trace {
    uint32_t count, capacity, limit; /* limit: most events kept; the others are counted in dropped */
    uint64_t dropped;
    struct trace_event *events;
};

/* Initialises in place without allocating. limit 0: TRACE_EVENTS_MAX. */
void trace_init(struct trace *trace, uint32_t limit);
void trace_fini(struct trace *trace);
/* Adds an event. Beyond the limit, or out of memory, it is counted as dropped: a trace never stops a run. */
void trace_add(struct trace *trace, const struct trace_event *event);

/* Returns the compact form for the events stream, new: {"v":1, "dropped":n,
 * "events":[[rank,step,program,instr,begin,end,ready],…]}. NULL with ERR_NOMEM. */
json_t *trace_to_json(const struct trace *trace, struct err *err);
/* Adds the events of a compact document to an initialised trace; instruction numbers are not checked here.
 * Returns -1 with ERR_INVALID naming the path. */
int trace_from_json(const json_t *json, struct trace *trace, struct err *err);

/* Packs the trace as text for storing: for each event the differences to the event before, as bytes that are
 * written in hexadecimal. Only rank, instruction and times are kept; step 0 and PROGRAM_TRAIN are assumed.
 * Returns a new text, or NULL with ERR_NOMEM. */
char *trace_pack(const struct trace *trace, struct err *err);
/* Adds the events of a text from trace_pack. Returns -1 with ERR_CORRUPT. */
int trace_unpack(const char *text, struct trace *trace, struct err *err);

/* Reads what trace_to_chrome writes with pid_base 0 (as `motley get` stores it): adds its instructions to the
 * trace and ignores other events. Returns -1 with ERR_INVALID. */
int trace_from_chrome(const json_t *chrome, struct trace *trace, struct err *err);

/* Returns the trace in Chrome's format, new: {"traceEvents":[…]}. `plan` gives names; `label` prefixes
 * process names ("measured", "simulated"); pid_base is added to ranks so that two traces fit in one file.
 * Events of unknown instructions are left out. NULL with ERR_NOMEM. */
json_t *trace_to_chrome(const struct trace *trace, const struct plan *plan, const char *label,
                        uint32_t pid_base, struct err *err);

#endif
