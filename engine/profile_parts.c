/* Measures parts of layers: attention, FFN, router and experts, which plans may put on unlike devices.
 *
 * Halves are timed one after the other as all measured layers run through them, forward and backward, so that
 * each half's weights come from memory as in a real stage. Experts are timed on a stage of several of them,
 * to which tokens are dealt evenly; the time is divided by their number. */
#include "engine/profile_private.h"

#include <stdlib.h>

/* Most experts of the stage that is measured: enough that one expert's weights do not stay in a core's cache
 * until its next turn. */
enum { EXPERTS_MEASURED = 8 };
/* Tokens of successive points of experts rise by this factor. */
enum { EXPERT_POINTS_FACTOR = 4 };
/* Cut halves are measured at every second of the layers' points, the largest among them, since only their
 * ratio to whole halves counts. */
enum { CUT_POINTS_STRIDE = 2 };

void profile_parts_points(struct profile *profile)
{
    const struct model_config *config = profile->request->config;
    const struct profile_kind *layer = &profile->kinds[KIND_LAYER];
    bool sparse = false, dense = false;
    for (uint32_t i = 0; i < layer->layers; i++)
        *(model_layer_is_sparse(config, layer->block_begin - 1 + i) ? &sparse : &dense) = true;
    const bool has[KINDS] = {[KIND_ATTENTION] = true, [KIND_FFN] = dense, [KIND_ROUTER] = sparse};
    for (int k = KIND_ATTENTION; k <= KIND_ROUTER; k++) {
        struct profile_kind *kind = &profile->kinds[k];
        kind->count = has[k] ? layer->count : 0;
        for (uint32_t i = 0; i < kind->count; i++)
            kind->points[i] = layer->points[i];
    }
    for (int k = KIND_ATTENTION_CUT; k <= KIND_FFN_CUT; k++)
        for (uint32_t i = (layer->count + 1) % CUT_POINTS_STRIDE; i < layer->count; i += CUT_POINTS_STRIDE)
            profile->kinds[k].points[profile->kinds[k].count++] = layer->points[i];
}

/* --- halves --- */

/* Returns the routed tokens of a micro-batch: the tokens' values are in `x`; the numbers of the chosen
 * experts and the routing weights (with `gradient`, the weights' gradients) are in profile->routing. */
static struct routed_tokens routed_view(const struct profile *profile, struct buffer *x, bool gradient)
{
    uint64_t part = buffer_bytes(profile->routing) / 3;
    return (struct routed_tokens){.x = {x, 0},
                                  .chosen = {profile->routing, 0},
                                  .weight = {profile->routing, gradient ? 2 * part : part}};
}

static int second_forward(struct profile *profile, struct stage *stage, const struct micro_batch *batch,
                          uint32_t block, struct saved **saved)
{
    if (!model_layer_is_sparse(profile->request->config, block - 1))
        return stage_half_forward(stage, batch, block, STAGE_HALF_FFN, profile->in, profile->out, saved,
                                  profile->err);
    struct routed_tokens routed = routed_view(profile, profile->gradient_out, false);
    return stage_route_forward(stage, batch, block, profile->in, &routed, saved, profile->err);
}

static int second_backward(struct profile *profile, struct stage *stage, const struct micro_batch *batch,
                           uint32_t block, struct saved *saved)
{
    if (!model_layer_is_sparse(profile->request->config, block - 1))
        return stage_half_backward(stage, batch, saved, block, STAGE_HALF_FFN, profile->gradient,
                                   profile->gradient_out, profile->err);
    struct routed_tokens gradient = routed_view(profile, profile->gradient_out, true);
    return stage_route_backward(stage, batch, saved, block, &gradient, profile->out, profile->err);
}

/* Runs all layers in halves, first forward, then backward, and marks the time between any two halves. */
static int halves_run(struct profile *profile, struct stage *stage, const struct micro_batch *batch,
                      uint32_t layers)
{
    const uint32_t begin = profile->kinds[KIND_LAYER].block_begin;
    struct saved *saved = NULL;
    uint32_t at = 0;
    if (stage_step_begin(stage, profile->err) != 0 || profile_mark(profile, at++) != 0)
        return -1;
    for (uint32_t block = begin; block < begin + layers; block++)
        if (stage_half_forward(stage, batch, block, STAGE_HALF_ATTENTION, profile->in, profile->out, &saved,
                               profile->err) != 0 ||
            profile_mark(profile, at++) != 0 || second_forward(profile, stage, batch, block, &saved) != 0 ||
            profile_mark(profile, at++) != 0)
            return -1;
    /* A router's backward changes the gradient in place: it starts from a copy, so that values stay small. */
    if (buffer_copy(profile->out, 0, profile->gradient, 0, buffer_bytes(profile->out), profile->err) != 0 ||
        profile_mark(profile, at++) != 0)
        return -1;
    for (uint32_t block = begin + layers; block-- > begin;)
        if (second_backward(profile, stage, batch, block, saved) != 0 || profile_mark(profile, at++) != 0 ||
            stage_half_backward(stage, batch, saved, block, STAGE_HALF_ATTENTION, profile->gradient,
                                profile->gradient_out, profile->err) != 0 ||
            profile_mark(profile, at++) != 0)
            return -1;
    return 0;
}

/* Returns the kind of half of a layer, cut or whole. */
static int half_kind(bool cut, bool attention, bool sparse)
{
    if (cut)
        return attention ? KIND_ATTENTION_CUT : KIND_FFN_CUT;
    return attention ? KIND_ATTENTION : sparse ? KIND_ROUTER : KIND_FFN;
}

/* Takes a sample of point `number` for each kind of half, cut or whole. All these kinds have the same points.
 */
static int halves_time(struct profile *profile, struct stage *stage, bool cut, uint32_t layers,
                       uint32_t number)
{
    const uint32_t begin = profile->kinds[KIND_LAYER].block_begin;
    uint32_t row_start[ROWS_MAX + 1], counts[KINDS] = {0};
    struct sample sums[KINDS] = {0};
    struct micro_batch batch;
    double took_s = 0, seconds;
    profile_batch(profile, &profile->kinds[half_kind(cut, true, false)].points[number], row_start, &batch);
    uint64_t waited_ns = profile_waited_ns(profile);
    if (halves_run(profile, stage, &batch, layers) != 0)
        return -1;
    for (uint32_t half = 0; half < 4 * layers; half++) {
        bool back = half >= 2 * layers, attention = half % 2 == (back ? 1 : 0);
        uint32_t layer = back ? layers - 1 - (half / 2 - layers) : half / 2;
        bool sparse = model_layer_is_sparse(profile->request->config, begin - 1 + layer);
        int k = half_kind(cut, attention, sparse);
        if (profile_marks_apart(profile, half + back, &seconds) != 0)
            return -1;
        sums[k].seconds[back ? PHASE_BACKWARD : PHASE_FORWARD] += seconds;
        took_s += seconds;
        counts[k] += !back;
    }
    double waited_s = (double)(profile_waited_ns(profile) - waited_ns) * 1e-9;
    for (int k = 0; k < KINDS; k++) {
        double own_s = sums[k].seconds[PHASE_FORWARD] + sums[k].seconds[PHASE_BACKWARD];
        for (int phase = 0; phase < PHASES && counts[k]; phase++)
            sums[k].seconds[phase] /= counts[k];
        if (counts[k])
            profile_sample_add(profile, &profile->kinds[k].points[number], sums[k], own_s,
                               took_s > 0 ? waited_s * own_s / took_s : 0);
    }
    return 0;
}

/* Measures the halves of a stage's layers, cut or whole, as profile_halves. */
static int halves_measure(struct profile *profile, struct stage *stage, bool cut, uint64_t until_ns,
                          uint64_t latest_ns)
{
    struct profile_kind *attention = &profile->kinds[half_kind(cut, true, false)];
    struct stage_options options;
    stage_options_get(stage, &options);
    uint32_t layers = options.block_end - options.block_begin;
    uint64_t now_ns;
    do {
        for (uint32_t i = 0; i < attention->count; i++)
            if (profile_stop_check(profile) != 0 || halves_time(profile, stage, cut, layers, i) != 0)
                return -1;
        now_ns = profile->request->now_ns();
    } while (now_ns < latest_ns && (now_ns < until_ns || !profile_has_undisturbed(attention)));
    return 0;
}

int profile_halves(struct profile *profile, struct stage *stage, uint64_t until_ns, uint64_t latest_ns)
{
    if (halves_measure(profile, stage, false, until_ns, latest_ns) != 0)
        return -1;
    for (int k = KIND_ATTENTION; k <= KIND_ROUTER; k++)
        profile->kinds[k].fits = profile->kinds[k].count > 0;
    return 0;
}

/* Returns about half of the FFN's columns, in whole blocks of 256 values or, in narrow models, of fewer:
 * packed matrices and dropout are cut between such blocks. 0: the FFN is too narrow. */
static uint32_t half_of_columns(uint32_t columns)
{
    uint32_t unit = 256;
    while (unit > 1 && columns / 2 < unit)
        unit /= 2;
    return columns / 2 / unit * unit;
}

int profile_cut(struct profile *profile, uint64_t until_ns, uint64_t latest_ns)
{
    const struct model_config *config = profile->request->config;
    struct stage_options options = profile_options(profile, &profile->kinds[KIND_LAYER]);
    struct stage *stage;
    options.part.kv_head_end = config->kv_heads / 2;
    options.part.column_end = half_of_columns(config->ffn);
    if (options.part.kv_head_end == 0 || options.part.column_end == 0)
        return 0;
    if (profile_stage(profile, &options, &stage) != 0)
        return profile_short_of_memory(profile->err) || profile->err->code == ERR_UNSUPPORTED ? 0 : -1;
    profile->kinds[KIND_ATTENTION_CUT].cut_share = (double)options.part.kv_head_end / config->kv_heads;
    profile->kinds[KIND_FFN_CUT].cut_share = (double)options.part.column_end / config->ffn;
    int status = halves_measure(profile, stage, true, until_ns, latest_ns);
    for (int k = KIND_ATTENTION_CUT; k <= KIND_FFN_CUT; k++)
        profile->kinds[k].fits = status == 0;
    stage_destroy(stage);
    return status;
}

/* --- experts --- */

/* Allocates the buffer of routers' choices for the largest micro-batch. */
static int routing_make(struct profile *profile)
{
    uint64_t values = (uint64_t)profile->tokens_max * profile->request->config->experts_active;
    uint64_t bytes = 3 * ((4 * values + 63) / 64 * 64);
    if (buffer_create(profile->device, bytes, MEM_BUFFERS, "a profile's choices of experts",
                      &profile->routing, profile->err) != 0) {
        profile->routing = NULL;
        return -1;
    }
    return buffer_zero(profile->routing, 0, bytes, profile->err);
}

/* Creates a stage of up to EXPERTS_MEASURED experts of one layer, fewer where memory is short, and writes
 * their number to *held. *stage is NULL when not even one expert fits. */
static int experts_stage(struct profile *profile, uint32_t block, uint32_t *held, struct stage **stage)
{
    const struct model_config *config = profile->request->config;
    const struct profile_kind one = {.block_begin = block, .layers = 1};
    struct stage_options options = profile_options(profile, &one);
    options.row_tokens_max = 0; /* all tokens of a point lie in one row */
    options.part.holds = HOLDS_EXPERTS;
    *held = config->experts < EXPERTS_MEASURED ? config->experts : EXPERTS_MEASURED;
    for (; *held > 0; *held /= 2) {
        options.part.expert_end = *held;
        if (profile_stage(profile, &options, stage) == 0)
            return 0;
        *stage = NULL;
        if (!profile_short_of_memory(profile->err))
            return -1;
    }
    return 0;
}

/* Deals the tokens' choices in turn to `among` experts, the first of which are the stage's. */
static int choices_deal(struct profile *profile, uint32_t tokens, uint32_t among)
{
    uint64_t choices = (uint64_t)tokens * profile->request->config->experts_active;
    uint32_t *chosen = malloc(choices * sizeof(*chosen));
    if (!chosen)
        return err_set(profile->err, ERR_NOMEM, "out of memory for choices of experts");
    for (uint64_t i = 0; i < choices; i++)
        chosen[i] = (uint32_t)(i % among);
    int status = buffer_write(profile->routing, 0, chosen, choices * sizeof(*chosen), profile->err);
    if (status == 0)
        status = device_sync(profile->device, profile->err);
    free(chosen);
    return status;
}

static int experts_time(struct profile *profile, struct stage *stage, uint32_t block, uint32_t held,
                        struct point *point)
{
    uint32_t row_start[ROWS_MAX + 1], active = profile->request->config->experts_active;
    struct routed_tokens routed = routed_view(profile, profile->in, false),
                         gradient = routed_view(profile, profile->gradient_out, true);
    struct micro_batch batch;
    struct saved *saved = NULL;
    profile_batch(profile, point, row_start, &batch);
    if (choices_deal(profile, point->row_tokens, held > active ? held : active) != 0 ||
        stage_step_begin(stage, profile->err) != 0 || profile_layers_pass(profile) != 0)
        return -1;
    uint64_t waited_ns = profile_waited_ns(profile);
    if (profile_mark(profile, 0) != 0 ||
        stage_experts_forward(stage, &batch, block, &routed, profile->out, &saved, profile->err) != 0 ||
        profile_mark(profile, 1) != 0 ||
        stage_experts_backward(stage, &batch, saved, block, profile->gradient, &gradient, profile->err) !=
            0 ||
        profile_mark(profile, 2) != 0)
        return -1;
    return profile_phases_add(profile, point, held, waited_ns);
}

/* Makes the points, from one token an expert to the largest micro-batch. */
static void experts_points(struct profile *profile, uint32_t held)
{
    struct profile_kind *kind = &profile->kinds[KIND_EXPERT];
    uint32_t active = profile->request->config->experts_active, among = held > active ? held : active;
    kind->tokens_share = (double)active / among;
    for (uint64_t tokens = (among + active - 1) / active;
         kind->count < POINTS_MAX - 1 && tokens < profile->tokens_max; tokens *= EXPERT_POINTS_FACTOR)
        kind->points[kind->count++] = (struct point){.rows = 1, .row_tokens = (uint32_t)tokens};
    kind->points[kind->count++] = (struct point){.rows = 1, .row_tokens = profile->tokens_max};
}

static int experts_measure(struct profile *profile, uint64_t until_ns, uint64_t latest_ns)
{
    struct profile_kind *kind = &profile->kinds[KIND_EXPERT];
    uint32_t block = 1, held = 0;
    struct stage *stage = NULL;
    while (!model_layer_is_sparse(profile->request->config, block - 1))
        block++;
    int status = experts_stage(profile, block, &held, &stage);
    if (!stage)
        return status;
    experts_points(profile, held);
    status = profile_layers_make(profile);
    /* The largest point runs once before, to touch all of the memory. */
    if (status == 0)
        status = experts_time(profile, stage, block, held, &kind->points[kind->count - 1]);
    kind->points[kind->count - 1].taken = kind->points[kind->count - 1].undisturbed = 0;
    uint64_t now_ns;
    do {
        for (uint32_t i = 0; i < kind->count && status == 0; i++)
            status = profile_stop_check(profile) != 0
                         ? -1
                         : experts_time(profile, stage, block, held, &kind->points[i]);
        now_ns = profile->request->now_ns();
    } while (status == 0 && now_ns < latest_ns && (now_ns < until_ns || !profile_has_undisturbed(kind)));
    kind->fits = status == 0;
    profile_layers_free(profile);
    stage_destroy(stage);
    return status;
}

int profile_mixture(struct profile *profile, uint64_t begin_ns, uint64_t until_ns, uint64_t latest_ns)
{
    struct profile_kind kind = profile->kinds[KIND_LAYER];
    struct stage_options options = profile_options(profile, &kind);
    struct stage *stage;
    uint64_t half_ns = until_ns > begin_ns ? begin_ns + (until_ns - begin_ns) / 2 : until_ns;
    options.part.holds = HOLDS_NO_EXPERTS;
    int status = routing_make(profile);
    if (status == 0 && (status = profile_stage(profile, &options, &stage)) == 0) {
        status = profile_halves(profile, stage, half_ns, latest_ns);
        stage_destroy(stage);
    }
    if (status == 0)
        status = experts_measure(profile, until_ns, latest_ns);
    /* Where the parts do not fit the memory, the planner divides the times of whole layers. */
    return status != 0 && profile_short_of_memory(profile->err) ? 0 : status;
}
