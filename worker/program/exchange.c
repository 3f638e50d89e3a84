/* Moves routed tokens among the ranks of a group: DISPATCH and COMBINE, forward and backward.
 *
 * A rank with attention reads what its router chose, packs each token once for every rank that holds any of
 * the token's experts, and sends each of these ranks first the number of tokens and then the tokens, matrix
 * by matrix. A rank with experts knows from the counts where every rank's tokens lie: in the order of the
 * group. Results come back in the same order, so neither counts nor token numbers travel again. The results
 * for one token are added in rising order of ranks, so repeats are bit-identical.
 *
 * A count from a peer is checked against the micro-batch, and so against the slot, before it is used.
 *
 * Exchanges towards the experts and back from them each have a lane: host memory for one instruction at a
 * time. Both lanes work on a thread of their own and on the device queue DEVICE_GROUP, beside compute. The
 * mesh's threads count messages and wake that thread.
 */
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "program/host.h"
#include "worker/program/exchange_private.h"
#include "worker/program/experts.h"

/* The messages of an exchange: first MESSAGE_COUNT with the number of tokens, then one with each of the
 * routed tokens' matrices. */
enum { MESSAGE_COUNT = ROUTED_MATRICES, MESSAGES };

struct routed_message {
    struct exchange_lane *lane;
    uint64_t bytes; /* expected bytes */
};

struct exchange_lane {
    struct ops *ops;
    /* regions of `memory`. own: tokens that this rank routed; spread: the same, packed by receiving rank;
     * came: tokens received for this rank's experts */
    uint8_t *memory, *own, *spread, *came;
    uint64_t memory_bytes;
    struct routed_message *messages; /* [ranks · MESSAGES] receives under way */
    /* [ranks] byte offset in `spread` of the tokens for each rank, or of the results from it */
    uint64_t *spread_at;
    uint64_t *counts_out, *counts_in; /* [ranks] */
    struct courier_job job;
    atomic_bool scheduled;
    /* the instruction under way; written by op_begin's thread before it schedules the lane */
    uint32_t number;
    const struct instr *instr;
    struct exec *exec;
    atomic_bool starting;
    /* used by the lanes' thread alone */
    /* counting: token counts are being sent and received; moving: matrices are */
    bool running, counting, moving;
    uint32_t sends, receives; /* numbers of sends and receives posted */
    /* set by the mesh's threads */
    atomic_uint sent, arrived;
    atomic_bool failed;
};

struct exchange {
    struct ops *ops;
    struct exchange_room room;
    uint32_t hidden, experts, ranks;
    int32_t *layer_of;       /* [blocks] index of a block among the layers with experts, or -1 */
    uint16_t *owner;         /* [layers · experts] rank that has each expert */
    bool *holds;             /* [layers · ranks] whether a rank has experts of a layer */
    struct routing *routing; /* [layers · wave] for each layer and in-flight micro-batch */
    uint64_t *chosen;        /* [layers · experts] tokens that chose each expert in training steps */
    struct courier *thread;
    /* never: is never recorded, so a courier job with this event does not wait; copied: recorded after a
     * copy */
    struct event *never, *copied;
    struct exchange_lane lanes[2]; /* for exchanges to the experts, and for exchanges back */
};

bool exchange_goes_out(const struct instr *instr)
{
    return (instr->op == INSTR_DISPATCH) != ((instr->flags & FLAG_BACKWARD) != 0);
}

/* --- ranks and matrices of an exchange --- */

static uint64_t exchange_aligned(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static uint64_t width_of(const struct exchange *x, enum routed_matrix matrix)
{
    return sizeof(float) * (matrix == ROUTED_X ? x->hidden : x->room.active);
}

/* Returns the offset of a matrix of `tokens` tokens; for ROUTED_MATRICES, the end of the last matrix. */
static uint64_t matrix_at(const struct exchange *x, uint64_t tokens, uint32_t matrix)
{
    uint64_t at = 0;
    for (uint32_t m = 0; m < matrix; m++)
        at += exchange_aligned(tokens * width_of(x, (enum routed_matrix)m));
    return at;
}

uint64_t exchange_matrix_at(const struct ops *ops, uint64_t tokens, enum routed_matrix matrix)
{
    return matrix_at(ops->exchange, tokens, matrix);
}

struct routing *exchange_routing(struct ops *ops, const struct instr *instr)
{
    struct exchange *x = ops->exchange;
    uint32_t layer = (uint32_t)x->layer_of[instr->block_begin];
    return &x->routing[(size_t)layer * x->room.wave + (uint32_t)instr->micro_batch % x->room.wave];
}

/* Returns how many matrices an exchange moves. */
static uint32_t matrices_of(const struct instr *instr)
{
    if (instr->op == INSTR_COMBINE)
        return 1;
    return instr->flags & FLAG_BACKWARD ? ROUTED_CHOSEN : ROUTED_MATRICES;
}

static const struct plan_group *group_of(const struct exchange_lane *lane)
{
    return &lane->ops->options.plan->groups[lane->instr->group];
}

/* Whether a rank computes attention in this program. When sampling, only the group's first rank with
 * attention does. */
static bool attends(const struct exchange_lane *lane, uint32_t rank)
{
    const struct plan_rank *ranks = lane->ops->options.plan->ranks;
    const struct plan_group *group = group_of(lane);
    bool samples = lane->ops->kind == PROGRAM_PREFILL || lane->ops->kind == PROGRAM_GENERATE;
    for (uint32_t p = 0; samples && p < group->rank_count && group->ranks[p] != rank; p++)
        if (ranks[group->ranks[p]].rows > 0)
            return false;
    return ranks[rank].rows > 0;
}

static bool exchange_holds(const struct exchange_lane *lane, uint32_t rank)
{
    const struct exchange *x = lane->ops->exchange;
    return x->holds[(size_t)x->layer_of[lane->instr->block_begin] * x->ranks + rank];
}

static const struct micro_batch *own_micro(const struct exchange_lane *lane)
{
    return ops_micro(lane->ops, lane->instr->micro_batch);
}

static uint32_t exchange_own_tokens(const struct exchange_lane *lane)
{
    return own_micro(lane)->row_start[own_micro(lane)->rows];
}

/* --- messages --- */

static void exchange_schedule(struct exchange_lane *lane)
{
    if (!atomic_exchange(&lane->scheduled, true))
        courier_push(lane->ops->exchange->thread, &lane->job);
}

static void exchange_fail(struct exchange_lane *lane, const struct err *failure)
{
    atomic_store(&lane->failed, true);
    exec_done(lane->exec, lane->number, failure);
}

static void was_sent(const struct mesh_done *done)
{
    struct exchange_lane *lane = done->arg;
    if (!done->ok) {
        exchange_fail(lane, &done->err);
        return;
    }
    atomic_fetch_add(&lane->sent, 1);
    exchange_schedule(lane);
}

static void has_arrived(const struct mesh_done *done)
{
    const struct routed_message *message = done->arg;
    struct exchange_lane *lane =
        message->lane; /* read first: the lane may reuse the message as soon as `arrived` counts it */
    struct err err;
    if (!done->ok) {
        exchange_fail(lane, &done->err);
    } else if (done->size != message->bytes) {
        err_set(&err, ERR_PEER, "rank %u sent %zu bytes where %llu are due", done->peer, done->size,
                (unsigned long long)message->bytes);
        exchange_fail(lane, &err);
    } else {
        atomic_fetch_add(&lane->arrived, 1);
        exchange_schedule(lane);
    }
}

/* Returns a message's tag, which differs between exchanges on one queue and between their messages. */
static uint64_t exchange_tag_of(const struct exchange_lane *lane, uint32_t what)
{
    const struct instr *x = lane->instr;
    uint32_t back = x->flags & FLAG_BACKWARD ? 1 : 0;
    return mesh_tag((uint8_t)x->tag, (uint16_t)lane->ops->run_number, (uint16_t)x->block_begin,
                    (uint32_t)x->micro_batch * 8 + back * 4 + what);
}

static int exchange_post_of(struct exchange_lane *lane, uint32_t rank, struct mesh_post *post,
                            struct err *err)
{
    *post = (struct mesh_post){.peer = rank, .deadline_ns = clock_mono_ns() + lane->ops->wait_ns};
    if (!lane->ops->options.mesh)
        return err_set(err, ERR_INTERNAL, "there is no mesh for %s", instr_op_name(lane->instr->op));
    return ops_group_queue(lane->ops, lane->instr->group, rank, &post->queue, err);
}

static int exchange_send(struct exchange_lane *lane, uint32_t rank, uint32_t what, const void *data,
                         uint64_t bytes, struct err *err)
{
    struct mesh_meta meta = {.tag = exchange_tag_of(lane, what)};
    struct mesh_post post;
    if (exchange_post_of(lane, rank, &post, err) < 0)
        return -1;
    post.done = was_sent;
    post.arg = lane;
    lane->sends++;
    return mesh_send(lane->ops->options.mesh, &post, &meta, data, bytes, err);
}

static int exchange_receive(struct exchange_lane *lane, uint32_t rank, uint32_t what, void *data,
                            uint64_t bytes, struct err *err)
{
    struct routed_message *message = &lane->messages[(size_t)rank * MESSAGES + what];
    struct mesh_post post;
    if (exchange_post_of(lane, rank, &post, err) < 0)
        return -1;
    *message = (struct routed_message){lane, bytes};
    post.done = has_arrived;
    post.arg = message;
    lane->receives++;
    return mesh_recv(lane->ops->options.mesh, &post, exchange_tag_of(lane, what), data, bytes, err);
}

/* --- copies --- */

static struct buffer *exchange_buffer_of(const struct exchange_lane *lane, int32_t slot)
{
    return ops_cell(lane->ops, slot, lane->instr->micro_batch, lane->instr->block_begin)->buffer;
}

/* Copies `bytes` bytes from the beginning of a slot's device buffer to the host, or back with `write`, and
 * waits. */
static int exchange_copy(struct exchange_lane *lane, int32_t slot, uint8_t *host, uint64_t bytes, bool write,
                         struct err *err)
{
    struct exchange *x = lane->ops->exchange;
    struct buffer *buffer = exchange_buffer_of(lane, slot);
    if (bytes == 0)
        return 0;
    if ((write ? buffer_write_on(DEVICE_GROUP, buffer, 0, host, bytes, err)
               : buffer_read_on(DEVICE_GROUP, buffer, 0, host, bytes, err)) < 0 ||
        event_record_on(DEVICE_GROUP, x->copied, err) < 0)
        return -1;
    return event_wait(x->copied, COPY_TIMEOUT_NS, err);
}

/* Returns the bytes of all matrices that the exchange sends for `tokens` tokens. */
static uint64_t exchange_bytes_of(const struct exchange_lane *lane, uint64_t tokens)
{
    const struct exchange *x = lane->ops->exchange;
    uint32_t last = matrices_of(lane->instr) - 1;
    return matrix_at(x, tokens, last) + tokens * width_of(x, (enum routed_matrix)last);
}

/* Returns the address of one token's row of a matrix in host memory that holds the matrices of `tokens`
 * tokens. */
static uint8_t *exchange_row_at(const struct exchange_lane *lane, uint8_t *region, uint64_t tokens,
                                uint32_t matrix, uint64_t row)
{
    const struct exchange *x = lane->ops->exchange;
    return region + matrix_at(x, tokens, matrix) + row * width_of(x, (enum routed_matrix)matrix);
}

/* --- exchanges on a rank with attention --- */

/* Writes the ranks that each token is sent to: those that have any of its experts, rising, each once. */
static int spread_find(struct exchange_lane *lane, struct routing *routing, struct err *err)
{
    struct exchange *x = lane->ops->exchange;
    uint32_t active = x->room.active, tokens = exchange_own_tokens(lane),
             layer = (uint32_t)x->layer_of[lane->instr->block_begin];
    const uint32_t *chosen =
        (const uint32_t *)(const void *)exchange_row_at(lane, lane->own, tokens, ROUTED_CHOSEN, 0);
    bool counts = lane->ops->kind == PROGRAM_TRAIN;
    memset(routing->sent, 0, x->ranks * sizeof(*routing->sent));
    for (uint32_t t = 0; t < tokens; t++) {
        uint16_t *to = &routing->to[(size_t)t * active];
        uint32_t count = 0;
        for (uint32_t j = 0; j < active; j++) {
            uint32_t expert = chosen[(size_t)t * active + j], at = 0;
            if (expert >= x->experts)
                return err_set(err, ERR_INTERNAL, "a router chose expert %u of %u", expert, x->experts);
            uint16_t rank = x->owner[(size_t)layer * x->experts + expert];
            x->chosen[(size_t)layer * x->experts + expert] += counts;
            while (at < count && to[at] < rank)
                at++;
            if (at < count && to[at] == rank)
                continue;
            memmove(&to[at + 1], &to[at], (count - at) * sizeof(*to));
            to[at] = rank;
            count++;
            routing->sent[rank]++;
        }
        for (; count < active; count++)
            to[count] = EXCHANGE_NONE;
    }
    return 0;
}

/* Computes the offset in `spread` at which each receiving rank's tokens begin. */
static void spread_place(struct exchange_lane *lane, const struct routing *routing)
{
    const struct exchange *x = lane->ops->exchange;
    uint64_t at = 0;
    for (uint32_t r = 0; r < x->ranks; r++) {
        lane->spread_at[r] = at;
        at += matrix_at(x, routing->sent[r], matrices_of(lane->instr));
    }
}

/* Calls `move` for every pair of a token and a rank that it is sent to, with the token's row in that rank's
 * part of `spread`. */
static void spread_walk(struct exchange_lane *lane, const struct routing *routing,
                        void (*move)(struct exchange_lane *lane, const struct routing *routing,
                                     uint32_t token, uint32_t rank, uint64_t row))
{
    uint32_t active = lane->ops->exchange->room.active, tokens = exchange_own_tokens(lane);
    memset(lane->counts_out, 0, lane->ops->exchange->ranks * sizeof(*lane->counts_out));
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t j = 0; j < active; j++) {
            uint16_t rank = routing->to[(size_t)t * active + j];
            if (rank != EXCHANGE_NONE)
                move(lane, routing, t, rank, lane->counts_out[rank]++);
        }
}

static void pack(struct exchange_lane *lane, const struct routing *routing, uint32_t token, uint32_t rank,
                 uint64_t row)
{
    const struct exchange *x = lane->ops->exchange;
    uint8_t *region = lane->spread + lane->spread_at[rank];
    for (uint32_t m = 0; m < matrices_of(lane->instr); m++)
        memcpy(exchange_row_at(lane, region, routing->sent[rank], m, row),
               exchange_row_at(lane, lane->own, exchange_own_tokens(lane), m, token),
               width_of(x, (enum routed_matrix)m));
}

static void worker_add(struct exchange_lane *lane, const struct routing *routing, uint32_t token,
                       uint32_t rank, uint64_t row)
{
    const struct exchange *x = lane->ops->exchange;
    uint8_t *region = lane->spread + lane->spread_at[rank];
    for (uint32_t m = 0; m < matrices_of(lane->instr); m++) {
        float *sum = (float *)(void *)exchange_row_at(lane, lane->own, exchange_own_tokens(lane), m, token);
        const float *more =
            (const float *)(const void *)exchange_row_at(lane, region, routing->sent[rank], m, row);
        for (uint64_t i = 0; i < width_of(x, (enum routed_matrix)m) / sizeof(float); i++)
            sum[i] += more[i];
    }
}

/* Sends this rank's tokens, or the tokens' gradients, to the ranks with the tokens' experts. */
static int spread_send(struct exchange_lane *lane, struct routing *routing, struct err *err)
{
    const struct exchange *x = lane->ops->exchange;
    const struct plan_group *group = group_of(lane);
    bool back = lane->instr->flags & FLAG_BACKWARD;
    if (exchange_copy(lane, lane->instr->slot_in, lane->own,
                      exchange_bytes_of(lane, exchange_own_tokens(lane)), false, err) < 0 ||
        (!back && spread_find(lane, routing, err) < 0))
        return -1;
    spread_place(lane, routing);
    spread_walk(lane, routing, pack);
    for (uint32_t p = 0; p < group->rank_count; p++) {
        uint32_t rank = group->ranks[p];
        uint64_t tokens = routing->sent[rank];
        if (!exchange_holds(lane, rank) || rank == lane->ops->options.rank)
            continue;
        lane->counts_out[rank] = tokens;
        if (!back &&
            exchange_send(lane, rank, MESSAGE_COUNT, &lane->counts_out[rank], sizeof(uint64_t), err) < 0)
            return -1;
        for (uint32_t m = 0; m < matrices_of(lane->instr) && tokens > 0; m++)
            if (exchange_send(lane, rank, m,
                              exchange_row_at(lane, lane->spread + lane->spread_at[rank], tokens, m, 0),
                              tokens * width_of(x, (enum routed_matrix)m), err) < 0)
                return -1;
    }
    return 0;
}

/* Posts the receives of the results for this rank's tokens. */
static int spread_receive(struct exchange_lane *lane, struct routing *routing, struct err *err)
{
    const struct exchange *x = lane->ops->exchange;
    const struct plan_group *group = group_of(lane);
    spread_place(lane, routing);
    for (uint32_t p = 0; p < group->rank_count; p++) {
        uint32_t rank = group->ranks[p];
        uint64_t tokens = routing->sent[rank];
        for (uint32_t m = 0; m < matrices_of(lane->instr) && tokens > 0 && rank != lane->ops->options.rank;
             m++)
            if (exchange_receive(lane, rank, m,
                                 exchange_row_at(lane, lane->spread + lane->spread_at[rank], tokens, m, 0),
                                 tokens * width_of(x, (enum routed_matrix)m), err) < 0)
                return -1;
    }
    return 0;
}

/* Adds up the results for each token and stores them: added to the residual stream, or as the tokens'
 * gradients. */
static int spread_sum(struct exchange_lane *lane, struct routing *routing, struct err *err)
{
    uint64_t bytes = exchange_bytes_of(lane, exchange_own_tokens(lane));
    if (lane->instr->flags & FLAG_BACKWARD)
        memset(lane->own, 0, bytes);
    else if (exchange_copy(lane, lane->instr->slot_save, lane->own, bytes, false, err) < 0)
        return -1;
    spread_walk(lane, routing, worker_add);
    return exchange_copy(lane, lane->instr->slot_out, lane->own, bytes, true, err);
}

/* --- exchanges on a rank with experts --- */

/* Posts the receives of each rank's number of tokens. */
static int counts_receive(struct exchange_lane *lane, struct err *err)
{
    const struct plan_group *group = group_of(lane);
    memset(lane->counts_in, 0, lane->ops->exchange->ranks * sizeof(*lane->counts_in));
    for (uint32_t p = 0; p < group->rank_count; p++) {
        uint32_t rank = group->ranks[p];
        if (attends(lane, rank) && rank != lane->ops->options.rank &&
            exchange_receive(lane, rank, MESSAGE_COUNT, &lane->counts_in[rank], sizeof(uint64_t), err) < 0)
            return -1;
    }
    return 0;
}

/* Checks the numbers of tokens that other ranks announced (in all no more than the micro-batch has) and
 * stores them in `routing`. */
static int counts_take(struct exchange_lane *lane, struct routing *routing, struct err *err)
{
    const struct exchange *x = lane->ops->exchange;
    const struct micro_batch *all = &lane->ops->batch->micro[lane->instr->micro_batch];
    const struct plan_group *group = group_of(lane);
    uint32_t own = lane->ops->options.rank;
    uint64_t left = all->row_start[all->rows];
    if (attends(lane, own))
        lane->counts_in[own] = routing->sent[own];
    routing->tokens = 0;
    for (uint32_t p = 0; p < group->rank_count; p++) {
        uint64_t count = lane->counts_in[group->ranks[p]];
        if (count > left)
            return err_set(err, ERR_PEER, "rank %u sends %llu tokens where at most %llu are due",
                           group->ranks[p], (unsigned long long)count, (unsigned long long)left);
        left -= count;
        routing->came[group->ranks[p]] = (uint32_t)count;
        routing->tokens += (uint32_t)count;
    }
    if (matrix_at(x, routing->tokens, ROUTED_MATRICES) <= x->room.came)
        return 0;
    return err_set(err, ERR_TOO_BIG, "%u tokens come to experts that have room for %llu bytes",
                   routing->tokens, (unsigned long long)x->room.came);
}

/* Posts the receives of other ranks' tokens for this rank's experts, or sends the results back. Tokens that
 * this rank sends to itself are copied between `spread` and `came`. */
static int came_walk(struct exchange_lane *lane, const struct routing *routing, bool out, struct err *err)
{
    const struct exchange *x = lane->ops->exchange;
    const struct plan_group *group = group_of(lane);
    uint64_t before = 0;
    for (uint32_t p = 0; p < group->rank_count; p++) {
        uint32_t rank = group->ranks[p];
        uint64_t tokens = routing->came[rank];
        for (uint32_t m = 0; m < matrices_of(lane->instr) && tokens > 0; m++) {
            uint64_t bytes = tokens * width_of(x, (enum routed_matrix)m);
            uint8_t *here = exchange_row_at(lane, lane->came, routing->tokens, m, before);
            uint8_t *own = exchange_row_at(lane, lane->spread + lane->spread_at[rank], tokens, m, 0);
            bool mine = rank == lane->ops->options.rank;
            if (mine)
                memcpy(out ? here : own, out ? own : here, bytes);
            else if ((out ? exchange_receive(lane, rank, m, here, bytes, err)
                          : exchange_send(lane, rank, m, here, bytes, err)) < 0)
                return -1;
        }
        before += tokens;
    }
    return 0;
}

/* --- the lanes' thread --- */

static int exchange_start(struct exchange_lane *lane, struct err *err)
{
    const struct micro_batch *all = &lane->ops->batch->micro[lane->instr->micro_batch];
    struct routing *routing = exchange_routing(lane->ops, lane->instr);
    uint32_t rank = lane->ops->options.rank;
    bool out = exchange_goes_out(lane->instr), back = lane->instr->flags & FLAG_BACKWARD;
    bool asks = attends(lane, rank), serves = exchange_holds(lane, rank);
    lane->sends = lane->receives = 0;
    atomic_store(&lane->sent, 0);
    atomic_store(&lane->arrived, 0);
    atomic_store(&lane->failed, false);
    lane->running = true;
    lane->counting = lane->moving = false;
    if (all->rows == 0) { /* of a short batch; the last one's tokens must not be computed again */
        routing->tokens = 0;
        return 0;
    }
    lane->moving = true;
    if (out && serves && !back) {
        lane->counting = true;
        if (counts_receive(lane, err) < 0)
            return -1;
    }
    if (asks && (out ? spread_send : spread_receive)(lane, routing, err) < 0)
        return -1;
    if (!serves || lane->counting)
        return 0;
    if (!out && exchange_copy(lane, lane->instr->slot_in, lane->came,
                              exchange_bytes_of(lane, routing->tokens), false, err) < 0)
        return -1;
    return came_walk(lane, routing, out, err);
}

/* Ends the instruction after all matrices have arrived. */
static int exchange_finish(struct exchange_lane *lane, struct err *err)
{
    struct routing *routing = exchange_routing(lane->ops, lane->instr);
    uint32_t rank = lane->ops->options.rank;
    if (!exchange_goes_out(lane->instr))
        return attends(lane, rank) ? spread_sum(lane, routing, err) : 0;
    if (!exchange_holds(lane, rank))
        return 0;
    return exchange_copy(lane, lane->instr->slot_out, lane->came, exchange_bytes_of(lane, routing->tokens),
                         true, err);
}

static int exchange_progress(struct exchange_lane *lane, struct err *err)
{
    struct routing *routing = exchange_routing(lane->ops, lane->instr);
    if (lane->counting && atomic_load(&lane->arrived) == lane->receives) {
        lane->counting = false;
        if (counts_take(lane, routing, err) < 0 || came_walk(lane, routing, true, err) < 0)
            return -1;
    }
    if (!lane->counting && lane->moving && atomic_load(&lane->arrived) == lane->receives) {
        lane->moving = false;
        return exchange_finish(lane, err);
    }
    return 0;
}

static int exchange_advance(void *arg, struct err *err)
{
    struct exchange_lane *lane = arg;
    atomic_store(&lane->scheduled, false);
    if (atomic_exchange(&lane->starting, false) && exchange_start(lane, err) < 0)
        return -1;
    if (!lane->running || atomic_load(&lane->failed))
        return 0;
    if (exchange_progress(lane, err) < 0)
        return -1;
    if (lane->counting || lane->moving || atomic_load(&lane->sent) < lane->sends)
        return 0;
    lane->running = false;
    exec_done(lane->exec, lane->number, NULL);
    return 0;
}

static void exchange_advanced(void *arg, const struct err *failure)
{
    if (failure)
        exchange_fail(arg, failure);
}

int exchange_begin(struct ops *ops, uint32_t number, const struct instr *instr, struct err *err)
{
    struct exchange_lane *lane = &ops->exchange->lanes[exchange_goes_out(instr) ? 0 : 1];
    (void)err;
    lane->number = number;
    lane->instr = instr;
    lane->exec = ops->programs[ops->kind].exec;
    atomic_store(&lane->starting, true);
    exchange_schedule(lane);
    return 0;
}

uint32_t ops_take_routing(struct ops *ops, uint32_t layer, uint64_t *counts)
{
    struct exchange *x = ops->exchange;
    if (!x || ops->me->rows == 0)
        return 0;
    int32_t sparse = x->layer_of[layer + 1];
    if (counts)
        memset(counts, 0, x->experts * sizeof(*counts));
    if (counts && sparse >= 0) {
        memcpy(counts, &x->chosen[(size_t)sparse * x->experts], x->experts * sizeof(*counts));
        memset(&x->chosen[(size_t)sparse * x->experts], 0, x->experts * sizeof(*counts));
    }
    return x->experts;
}

/* --- making and freeing --- */

static void find_layers(struct exchange *x, const struct plan *plan)
{
    uint32_t count = 0;
    for (int32_t b = 0; b < plan->block_count; b++)
        x->layer_of[b] = -1;
    for (uint32_t r = 0; r < plan->rank_count; r++)
        for (uint32_t i = 0; i < plan->ranks[r].expert_count; i++) {
            const struct plan_experts *held = &plan->ranks[r].experts[i];
            x->layer_of[held->block] = 0;
            x->experts = (uint32_t)held->end > x->experts ? (uint32_t)held->end : x->experts;
        }
    for (int32_t b = 0; b < plan->block_count; b++)
        if (x->layer_of[b] == 0)
            x->layer_of[b] = (int32_t)count++;
}

static void exchange_find_owners(struct exchange *x, const struct plan *plan)
{
    for (uint32_t r = 0; r < plan->rank_count; r++)
        for (uint32_t i = 0; i < plan->ranks[r].expert_count; i++) {
            const struct plan_experts *held = &plan->ranks[r].experts[i];
            size_t layer = (size_t)x->layer_of[held->block];
            x->holds[layer * x->ranks + r] = true;
            for (int32_t e = held->begin; e < held->end; e++)
                x->owner[layer * x->experts + (uint32_t)e] = (uint16_t)r;
        }
}

static int make_tables(struct exchange *x, const struct plan *plan)
{
    size_t layers = x->room.layers, places = layers * x->room.wave;
    x->layer_of = calloc((size_t)plan->block_count + 1, sizeof(*x->layer_of));
    if (!x->layer_of)
        return -1;
    find_layers(x, plan);
    x->owner = calloc(layers * x->experts + 1, sizeof(*x->owner));
    x->holds = calloc(layers * x->ranks + 1, sizeof(*x->holds));
    x->chosen = calloc(layers * x->experts + 1, sizeof(*x->chosen));
    x->routing = calloc(places + 1, sizeof(*x->routing));
    if (!x->owner || !x->holds || !x->chosen || !x->routing)
        return -1;
    exchange_find_owners(x, plan);
    for (size_t i = 0; i < places; i++) {
        struct routing *routing = &x->routing[i];
        routing->to = calloc((size_t)x->room.tokens * x->room.active + 1, sizeof(*routing->to));
        routing->sent = calloc(x->ranks, sizeof(*routing->sent));
        routing->came = calloc(x->ranks, sizeof(*routing->came));
        if (!routing->to || !routing->sent || !routing->came)
            return -1;
    }
    return 0;
}

static int make_lane(struct exchange *x, struct exchange_lane *lane, struct err *err)
{
    void *memory = NULL;
    lane->ops = x->ops;
    lane->job = (struct courier_job){
        .start = exchange_advance, .finish = exchange_advanced, .copied = x->never, .arg = lane};
    lane->messages = calloc((size_t)x->ranks * MESSAGES, sizeof(*lane->messages));
    lane->spread_at = calloc(x->ranks, sizeof(*lane->spread_at));
    lane->counts_out = calloc(x->ranks, sizeof(*lane->counts_out));
    lane->counts_in = calloc(x->ranks, sizeof(*lane->counts_in));
    if (!lane->messages || !lane->spread_at || !lane->counts_out || !lane->counts_in)
        return err_set(err, ERR_NOMEM, "no memory for routed tokens of %u ranks", x->ranks);
    lane->memory_bytes = x->room.own + x->room.spread + x->room.came;
    if (lane->memory_bytes > 0 &&
        host_memory_create(x->ops->options.device, lane->memory_bytes, "routed tokens", &memory, err) < 0)
        return -1;
    lane->memory = lane->own = memory;
    lane->spread = lane->own + x->room.own;
    lane->came = lane->spread + x->room.spread;
    return 0;
}

/* Allocates at the start all device buffers of slots that ATTENTION, EXPERTS, DISPATCH and COMBINE use on
 * this rank. */
static int exchange_make_buffers(struct ops *ops, struct err *err)
{
    for (uint32_t s = 0; s < ops->me->slot_count; s++) {
        const struct plan_slot *slot = &ops->me->slots[s];
        bool routed = slot->kind == SLOT_ROUTED || slot->kind == SLOT_ROUTED_GRADIENT;
        for (uint32_t c = 0; c < ops->slots[s].count && (routed || ops_is_boundary(slot)); c++) {
            struct slot_cell *cell = &ops->slots[s].cells[c];
            if (buffer_create(ops->options.device, slot->bytes_bound, MEM_BUFFERS, slot_kind_name(slot->kind),
                              &cell->buffer, err) < 0)
                return -1;
            cell->buffer_size = slot->bytes_bound;
            ops->slots[s].device_size += slot->bytes_bound;
        }
    }
    return 0;
}

static int make_micro_batches(struct ops *ops, struct err *err)
{
    const struct plan *plan = ops->options.plan;
    ops->own_micro = calloc((size_t)plan->micro_batch_count + 1, sizeof(*ops->own_micro));
    ops->own_starts = calloc((size_t)plan->batch_rows + plan->micro_batch_count + 1, sizeof(uint32_t));
    ops->came_starts = calloc((size_t)plan->tokens_bound + 1, sizeof(uint32_t));
    return ops->own_micro && ops->own_starts && ops->came_starts
               ? 0
               : err_set(err, ERR_NOMEM, "no memory for %u micro-batches", plan->micro_batch_count);
}

int exchange_make(struct ops *ops, struct err *err)
{
    struct stage_options has;
    if (ops->options.plan->placement != PLACE_EXPERT)
        return 0;
    struct exchange *x = ops->exchange = calloc(1, sizeof(*x));
    if (!x)
        return err_set(err, ERR_NOMEM, "no memory for routed tokens");
    x->ops = ops;
    x->room = plan_exchange_room(ops->options.plan, ops->options.rank);
    x->ranks = ops->options.plan->rank_count;
    x->hidden = ops->options.hidden;
    if (ops->options.stages->count > 0) {
        stage_options_get(ops->options.stages->list[0], &has);
        x->room.active = has.config->experts_active;
    }
    if (make_tables(x, ops->options.plan) < 0)
        return err_set(err, ERR_NOMEM, "no memory for the routes of %u layers", x->room.layers);
    if (event_create(ops->options.device, &x->never, err) < 0 ||
        event_create(ops->options.device, &x->copied, err) < 0 ||
        courier_create(COPY_TIMEOUT_NS, &x->thread, err) < 0)
        return -1;
    for (int i = 0; i < 2; i++)
        if (make_lane(x, &x->lanes[i], err) < 0)
            return -1;
    return make_micro_batches(ops, err) < 0 ? -1 : exchange_make_buffers(ops, err);
}

void exchange_stop(struct exchange *exchange)
{
    if (exchange && exchange->thread)
        courier_stop(exchange->thread);
}

void exchange_destroy(struct exchange *exchange)
{
    if (!exchange)
        return;
    courier_destroy(exchange->thread);
    for (int i = 0; i < 2; i++) {
        struct exchange_lane *lane = &exchange->lanes[i];
        host_memory_destroy(exchange->ops->options.device, lane->memory, lane->memory_bytes);
        free(lane->messages);
        free(lane->spread_at);
        free(lane->counts_out);
        free(lane->counts_in);
    }
    for (size_t i = 0; exchange->routing && i < (size_t)exchange->room.layers * exchange->room.wave; i++) {
        free(exchange->routing[i].to);
        free(exchange->routing[i].sent);
        free(exchange->routing[i].came);
    }
    event_destroy(exchange->never);
    event_destroy(exchange->copied);
    free(exchange->layer_of);
    free(exchange->owner);
    free(exchange->holds);
    free(exchange->chosen);
    free(exchange->routing);
    free(exchange);
}
