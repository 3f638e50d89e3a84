/* What the measuring of blocks (profile.c) and of parts of layers (profile_parts.c) share. */
#ifndef MOTLEY_ENGINE_PROFILE_PRIVATE_H
#define MOTLEY_ENGINE_PROFILE_PRIVATE_H

#include "engine/profile.h"

/* LAYERS_MEASURED is high enough that the layers' weights do not stay in a core's cache from one micro-batch
 * to the next, as in a real stage: SmolLM2's predicted step was 19 % below the measured one with 3 layers,
 * and 0.1 % with 10. */
enum { POINTS_MAX = 16, ROWS_MAX = 64, SAMPLES_MAX = 64, LAYERS_MEASURED = 10 };

/* Marks of time: one before the first half of a layer and one after each half, in forward and in backward. */
enum { MARKS = 2 * (2 * LAYERS_MEASURED + 1) };

enum { PIECE_BYTES = 128 << 10 };

/* Samples that a point should have. With one or two samples a point, a predicted step was up to 13 % off. */
enum { PASSES_LEAST = 3 };

enum phase { PHASE_FORWARD, PHASE_BACKWARD, PHASES };

struct sample {
    double seconds[PHASES]; /* seconds of one block */
    bool disturbed;
};

struct point {
    uint32_t rows, row_tokens, labelled;
    uint32_t taken, undisturbed; /* samples since the warm-up; the last SAMPLES_MAX of them are in samples */
    struct sample samples[SAMPLES_MAX];
};

struct profile_kind {
    const char *name;
    uint32_t block_begin, layers; /* first block and number of layers of the measured stage; layers is 0 for
                                     embedding and head */
    uint32_t count;
    struct point points[POINTS_MAX];
    double step_s;
    double tokens_share; /* tokens that one block of this kind gets for each token of a point; below 1 for
                            experts */
    double cut_share;    /* share of the heads or columns that a cut half has; 0: not cut */
    bool fits;
};

/* What is measured: whole blocks, then parts of layers, then attention and FFN with about half of the heads
 * and columns, as a member of a tensor group has them. */
enum profile_block_kind {
    KIND_EMBEDDING,
    KIND_LAYER,
    KIND_HEAD,
    KIND_ATTENTION,
    KIND_FFN,
    KIND_ROUTER,
    KIND_EXPERT,
    KIND_ATTENTION_CUT,
    KIND_FFN_CUT,
    KINDS
};

struct profile {
    const struct profile_request *request;
    struct device *device;
    struct profile_kind kinds[KINDS];
    uint32_t tokens_max;
    struct err *err;
    int32_t *ids, *labels;
    struct buffer *in, *out, *gradient, *gradient_out;
    struct buffer *routing; /* chosen experts, their weights and the weights' gradients; NULL: the model has
                               no experts */
    struct buffer
        *layers; /* [layers_bytes] stands for the layers' weights while head or experts are measured */
    uint64_t layers_bytes;
    struct event *marks[MARKS]; /* the marks on a device with a clock of its own */
    uint64_t marks_ns[MARKS];   /* the marks on other devices, on the host's clock */
    double sampled_s, waited_s; /* time of all samples, and how long threads waited for a CPU in it */
    uint8_t piece[PIECE_BYTES];
};

/* Stage options of a kind's blocks under the requested method. */
struct stage_options profile_options(const struct profile *profile, const struct profile_kind *kind);
/* Fills *batch with the point's rows and labels. It is valid until the next call; row_start has room for
 * ROWS_MAX + 1 numbers. */
void profile_batch(struct profile *profile, const struct point *point, uint32_t *row_start,
                   struct micro_batch *batch);
/* Marks the time between two phases: on the device's queue, or by the host's clock when all earlier work is
 * done. */
int profile_mark(struct profile *profile, uint32_t which);
/* Seconds from mark `from` to the next mark. */
int profile_marks_apart(struct profile *profile, uint32_t from, double *seconds);
/* How long the process's threads have waited for a CPU; 0: unknown. */
uint64_t profile_waited_ns(const struct profile *profile);
/* Adds a sample of a pass that took took_s, during which the threads waited for waited_s. */
void profile_sample_add(struct profile *profile, struct point *point, struct sample sample, double took_s,
                        double waited_s);
/* Adds a sample from marks 0 to PHASES of a pass: the seconds between them, divided by `units` (layers or
 * experts). `waited_ns` is profile_waited_ns from before the pass. */
int profile_phases_add(struct profile *profile, struct point *point, double units, uint64_t waited_ns);
int profile_stop_check(const struct profile *profile);
bool profile_short_of_memory(const struct err *err);
/* False if some point has few samples during which the threads did not wait. */
bool profile_has_undisturbed(const struct profile_kind *kind);
/* The mean of the undisturbed samples, or of all if every one was disturbed, without the slowest fifth. A
 * step is a sum of many passes, so a frequent delay should count in proportion and a single one should not.
 * Writes the least of these samples to *least unless that is NULL. */
double profile_typical_seconds(const struct point *point, enum phase phase, double *least);
/* By how much repeats of the same work differ: the points' typical times over their least, minus 1, on
 * average over the kind's points. */
double profile_spread(const struct profile_kind *kind);
/* Creates a stage with random weights. */
int profile_stage(struct profile *profile, const struct stage_options *options, struct stage **stage);

/* In a real run, the layers' weights pass through the cache between two uses of the head or of an expert. To
 * imitate that, a buffer as large as the weights or the cache (less where memory is short) is read before
 * each sample of them. Without it, samples of the head with few labels were up to a fifth too fast. */
int profile_layers_make(struct profile *profile);
/* Reads the buffer that profile_layers_make made, if there is one. */
int profile_layers_pass(struct profile *profile);
void profile_layers_free(struct profile *profile);

/* Measures attention, FFN and router apart on a stage of whole layers, or of layers without their experts,
 * in passes until `until_ns`, and longer, up to `latest_ns`, while a point has few samples that other
 * programs did not disturb. Makes at least one pass. */
int profile_halves(struct profile *profile, struct stage *stage, uint64_t until_ns, uint64_t latest_ns);
/* Measures attention and FFN on layers with about half of the heads and columns, as profile_halves does.
 * Where the model, the method or the memory does not allow such layers, the cut kinds have no points. */
int profile_cut(struct profile *profile, uint64_t until_ns, uint64_t latest_ns);
/* Measures the parts of a mixture: attention, FFN and router on layers without experts until half of the
 * time, then experts. Parts that do not fit the device's memory have no points. */
int profile_mixture(struct profile *profile, uint64_t begin_ns, uint64_t until_ns, uint64_t latest_ns);
/* Sets the shapes (rows and tokens) at which parts of layers are measured. They follow from the shapes of
 * whole layers, which must be set before. */
void profile_parts_points(struct profile *profile);

#endif
