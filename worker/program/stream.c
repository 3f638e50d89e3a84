/* Sends parameters and gradients: ALL_GATHER, REDUCE_SCATTER and ALL_REDUCE round a ring of uneven parts,
 * PULL and PUSH between a parameter server and a worker. All of it happens on a thread of its own and on the
 * device queue DEVICE_GROUP, beside compute. The state is sharded over the ranks (gather.c), or every rank
 * has all of it (whole.c).
 *
 * A ring of n members moves in rounds. Round j moves the j-th of C slices of every member's part, in n - 1
 * steps as in the classic ring (Patarasuk and Yuan 2009): in step s of an ALL_GATHER the member at position p
 * sends the slice of part p - s and receives that of part p - 1 - s; a REDUCE_SCATTER sends part p - 1 - s
 * and receives part p - 2 - s, to which it adds its own before it sends it on. So the sum of part q begins at
 * position q + 1 and ends at q: its order is fixed by positions and cuts, and repeats are bit-identical. An
 * ALL_REDUCE goes round twice, 2(n - 1) steps: in step s position p sends part p - s, whose sum begins at
 * position q, is complete at q - 1, and is handed on from there. C is chosen so that the largest slice has at
 * most STREAM_SLICE_BYTES. Rounds follow one another without a pause, and the link to position p carries all
 * parts but one, whatever the parts' sizes.
 *
 * A turn is one step of one round; turns are sent and received in order. A received slice stays in its buffer
 * until it is handled and, unless the step is the round's last, sent on. Turn t depends only on earlier turns
 * of the neighbour, so the ring cannot lock up, however few buffers there are. PULL and PUSH are turns of one
 * step each, which are only received or only sent.
 *
 * Each queue of the plan runs one instruction at a time, so it has one lane: the buffers, and the state of
 * the instruction under way. The mesh's threads count arrivals and wake the thread of the lanes.
 */
#include <stdlib.h>

#include "common/clock.h"
#include "program/host.h"
#include "worker/program/gather_private.h"

/* A receive under way. Receives may complete out of order: a message that arrived before its receive was
 * posted completes on another thread than its neighbours. */
struct arrival {
    struct lane *lane;
    uint64_t bytes; /* expected bytes */
    atomic_bool here;
};

struct lane {
    struct ops *ops;
    /* number of received slices, and of this rank's own slices, that fit in `memory` */
    uint32_t receive_buffers, send_buffers;
    uint8_t *memory; /* all slices, and one slice of scratch at the end */
    uint64_t memory_bytes;
    struct courier_job job;
    atomic_bool scheduled;
    /* the instruction under way; written by op_begin's thread before it schedules the lane */
    uint32_t number;
    const struct instr *instr;
    const struct whole *whole; /* state that is not sharded; NULL: the instruction moves sharded state */
    struct exec *exec;
    atomic_bool starting;
    /* used by the lanes' thread alone */
    bool running;
    uint32_t count, position, steps; /* members and this rank's position; steps of a round */
    uint64_t rounds, turns;
    bool sends, receives;
    uint64_t posted, handled; /* numbers of receives posted and of received turns handled */
    uint64_t next_send;
    /* set by the mesh's threads */
    struct arrival *arrivals; /* [receive_buffers] */
    _Atomic(uint64_t) sent;
    atomic_bool failed;
};

struct streams {
    struct courier *thread;
    struct event *never;  /* never recorded, so a job waits for nothing */
    struct event *copied; /* recorded after the copy of a range of whole (not sharded) state */
    struct whole **wholes[PROGRAM_KINDS]; /* [instr_counts], NULL where no unsharded state is moved */
    uint32_t instr_counts[PROGRAM_KINDS];
    struct lane **lanes; /* [queue_count], NULL for a queue that moves no parameters or gradients */
    uint32_t queue_count;
};

/* --- turns: which slice of which part a lane moves in each --- */

static bool is_ring(const struct lane *lane)
{
    return lane->instr->op != INSTR_PULL && lane->instr->op != INSTR_PUSH;
}

static bool sums(const struct lane *lane)
{
    return lane->instr->op == INSTR_REDUCE_SCATTER;
}

static uint32_t step_of(const struct lane *lane, uint64_t turn)
{
    return (uint32_t)(turn % lane->steps);
}

/* Returns the number of the ring part (member's share of the bytes) of which a turn sends, or receives, a
 * slice. */
static uint32_t stream_part_of(const struct lane *lane, uint64_t turn, bool sent)
{
    uint32_t n = lane->count, back = step_of(lane, turn) + (sums(lane) ? 1 : 0) + (sent ? 0 : 1);
    return is_ring(lane) ? (lane->position + 2 * n - back) % n : 0;
}

static uint64_t part_bytes(const struct lane *lane, uint32_t part)
{
    return lane->whole ? whole_part_bytes(lane->whole, part)
                       : gather_part_bytes(lane->ops, lane->instr, part);
}

static struct gather_span span_of(const struct lane *lane, uint64_t turn, uint32_t part,
                                  enum gather_place place)
{
    uint64_t bytes = part_bytes(lane, part), round = turn / lane->steps;
    uint64_t begin = bytes * round / lane->rounds / 64 * 64,
             end = round + 1 == lane->rounds ? bytes : bytes * (round + 1) / lane->rounds / 64 * 64;
    return (struct gather_span){lane->instr, place, part, begin, end - begin};
}

static uint8_t *received_at(const struct lane *lane, uint64_t turn)
{
    return lane->memory + turn % lane->receive_buffers * STREAM_SLICE_BYTES;
}

static struct arrival *arrival_of(const struct lane *lane, uint64_t turn)
{
    return &lane->arrivals[turn % lane->receive_buffers];
}

static uint8_t *stream_own_at(const struct lane *lane, uint64_t turn)
{
    return lane->memory +
           (lane->receive_buffers + turn / lane->steps % lane->send_buffers) * (uint64_t)STREAM_SLICE_BYTES;
}

static uint8_t *scratch_of(const struct lane *lane)
{
    return lane->memory + (uint64_t)(lane->receive_buffers + lane->send_buffers) * STREAM_SLICE_BYTES;
}

/* --- callbacks --- */

static void stream_schedule(struct lane *lane)
{
    if (!atomic_exchange(&lane->scheduled, true))
        courier_push(lane->ops->streams->thread, &lane->job);
}

static void stream_fail(struct lane *lane, const struct err *failure)
{
    atomic_store(&lane->failed, true);
    exec_done(lane->exec, lane->number, failure);
}

static void slice_sent(const struct mesh_done *done)
{
    struct lane *lane = done->arg;
    if (!done->ok) {
        stream_fail(lane, &done->err);
        return;
    }
    atomic_fetch_add(&lane->sent, 1);
    stream_schedule(lane);
}

static void slice_arrived(const struct mesh_done *done)
{
    struct arrival *arrival = done->arg;
    struct err err;
    if (!done->ok) {
        stream_fail(arrival->lane, &done->err);
    } else if (done->size != arrival->bytes) {
        err_set(&err, ERR_PEER, "rank %u sent %zu bytes where %llu are due", done->peer, done->size,
                (unsigned long long)arrival->bytes);
        stream_fail(arrival->lane, &err);
    } else {
        atomic_store(&arrival->here, true);
        stream_schedule(arrival->lane);
    }
}

/* --- the lanes' thread --- */

static uint64_t stream_tag_of(const struct lane *lane, uint64_t turn)
{
    const struct instr *x = lane->instr;
    return mesh_tag((uint8_t)x->tag, (uint16_t)lane->ops->run_number, (uint16_t)x->block_begin,
                    (uint32_t)turn);
}

static int stream_post_of(const struct lane *lane, bool sent, struct mesh_post *post, struct err *err)
{
    const struct instr *x = lane->instr;
    *post = (struct mesh_post){.peer = (uint32_t)x->peer,
                               .queue = x->tag,
                               .deadline_ns = clock_mono_ns() + lane->ops->wait_ns,
                               .done = sent ? slice_sent : slice_arrived};
    if (!is_ring(lane))
        return 0;
    const struct plan_group *group = &lane->ops->options.plan->groups[x->group];
    uint32_t n = lane->count;
    post->peer = group->ranks[(lane->position + (sent ? 1 : n - 1)) % n];
    return ops_group_queue(lane->ops, x->group, post->peer, &post->queue, err);
}

/* Copies a span to or from the host and waits. */
static int stream_copy(struct lane *lane, const struct gather_span *span, uint8_t *host, bool write,
                       struct err *err)
{
    struct event *copied = lane->ops->streams->copied;
    if (!lane->whole)
        return write ? gather_write(lane->ops, span, host, err) : gather_read(lane->ops, span, host, err);
    if (span->bytes == 0)
        return 0;
    if (whole_copy(lane->whole, span, host, write, err) < 0 || event_record_on(DEVICE_GROUP, copied, err) < 0)
        return -1;
    return event_wait(copied, COPY_TIMEOUT_NS, err);
}

/* Adds `more` to `sum`, both of `bytes` bytes of f32. */
static void stream_add(float *sum, const float *more, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes / sizeof(float); i++)
        sum[i] += more[i];
}

/* Handles the slice that the turn received. */
static int stream_handle(struct lane *lane, uint64_t turn, struct err *err)
{
    bool twice = lane->instr->op == INSTR_ALL_REDUCE,
         gradients = sums(lane) || (lane->instr->flags & FLAG_ACCUMULATE);
    uint32_t step = step_of(lane, turn), summed = twice ? lane->count - 1 : gradients ? lane->steps : 0;
    enum gather_place own = sums(lane) ? GATHER_GRADIENTS : GATHER_OWN_GRADIENTS;
    struct gather_span span = span_of(lane, turn, stream_part_of(lane, turn, false), own);
    float *slice = (float *)(void *)received_at(lane, turn), *mine = (float *)(void *)scratch_of(lane);
    if (step < summed) {
        if (stream_copy(lane, &span, scratch_of(lane), false, err) < 0)
            return -1;
        stream_add(slice, mine, span.bytes);
        if (step + 1 < summed)
            return 0;
    }
    span.place = gradients ? GATHER_OWN_GRADIENTS : GATHER_WEIGHTS;
    return stream_copy(lane, &span, received_at(lane, turn), true, err);
}

/* Sends the turn's slice if it has been received or read, and a send buffer is free. Returns 1 if it was
 * sent, 0 if not yet. */
static int send_turn(struct lane *lane, uint64_t turn, struct err *err)
{
    uint64_t round = turn / lane->steps;
    bool own = step_of(lane, turn) == 0;
    enum gather_place place =
        sums(lane) || (lane->instr->op == INSTR_PUSH &&
                       lane->ops->me->slots[lane->instr->slot_in].kind == SLOT_GRADIENTS)
            ? GATHER_GRADIENTS
            : GATHER_OWN_VALUES;
    struct gather_span span = span_of(lane, turn, stream_part_of(lane, turn, true), place);
    struct mesh_meta meta = {.tag = stream_tag_of(lane, turn)};
    struct mesh_post post;
    if (own ? round >= lane->send_buffers &&
                  atomic_load(&lane->sent) <= (round - lane->send_buffers) * lane->steps
            : lane->handled < turn)
        return 0;
    uint8_t *slice = own ? stream_own_at(lane, turn) : received_at(lane, turn - 1);
    if ((own && stream_copy(lane, &span, slice, false, err) < 0) ||
        stream_post_of(lane, true, &post, err) < 0)
        return -1;
    post.arg = lane;
    if (mesh_send(lane->ops->options.mesh, &post, &meta, slice, span.bytes, err) < 0)
        return -1;
    return 1;
}

/* Posts the receive of a turn if its buffer is free, that is, the slice received into it before was handled
 * and sent on. */
static int post_turn(struct lane *lane, uint64_t turn, struct err *err)
{
    struct gather_span span = span_of(lane, turn, stream_part_of(lane, turn, false), GATHER_WEIGHTS);
    struct mesh_post post;
    if (turn >= lane->receive_buffers) {
        uint64_t before = turn - lane->receive_buffers;
        bool passed_on = lane->sends && step_of(lane, before) + 1 < lane->steps;
        if (lane->handled <= before || (passed_on && atomic_load(&lane->sent) < before + 2))
            return 0;
    }
    if (stream_post_of(lane, false, &post, err) < 0)
        return -1;
    struct arrival *arrival = arrival_of(lane, turn);
    arrival->bytes = span.bytes;
    atomic_store(&arrival->here, false);
    post.arg = arrival;
    if (mesh_recv(lane->ops->options.mesh, &post, stream_tag_of(lane, turn), received_at(lane, turn),
                  span.bytes, err) < 0)
        return -1;
    return 1;
}

static int stream_start(struct lane *lane, struct err *err)
{
    const struct ops *ops = lane->ops;
    const struct plan_group *group = is_ring(lane) ? &ops->options.plan->groups[lane->instr->group] : NULL;
    bool ring = group != NULL;
    uint64_t most = 1;
    lane->count = ring ? group->rank_count : 1;
    lane->position = ring ? (uint32_t)plan_group_position(group, ops->options.rank) : 0;
    lane->steps = lane->count > 1 ? lane->count - 1 : 1;
    lane->steps *= lane->instr->op == INSTR_ALL_REDUCE ? 2 : 1;
    for (uint32_t part = 0; part < lane->count; part++) {
        uint64_t bytes = part_bytes(lane, part);
        most = bytes > most ? bytes : most;
    }
    /* Slices begin and end at multiples of 64 bytes, so one can be 64 bytes longer than an even division
     * gives. */
    uint64_t slice = STREAM_SLICE_BYTES - 64;
    lane->rounds = (most + slice - 1) / slice;
    lane->turns = ring && lane->count == 1 ? 0 : lane->rounds * lane->steps;
    lane->sends = lane->instr->op != INSTR_PULL;
    lane->receives = lane->instr->op != INSTR_PUSH;
    lane->posted = lane->handled = lane->next_send = 0;
    atomic_store(&lane->sent, 0);
    atomic_store(&lane->failed, false);
    lane->running = true;
    return lane->instr->op == INSTR_ALL_GATHER && !lane->whole ? gather_keep_own(lane->ops, lane->instr, err)
                                                               : 0;
}

/* Runs a collective of a group of one rank: copies its unreduced gradients to its own, without messages. */
static int keep_alone(struct lane *lane, struct err *err)
{
    uint64_t bytes = lane->whole ? 0 : part_bytes(lane, 0);
    for (uint64_t at = 0; at < bytes && sums(lane); at += STREAM_SLICE_BYTES) {
        uint64_t left = bytes - at;
        struct gather_span span = {lane->instr, GATHER_GRADIENTS, 0, at,
                                   left < STREAM_SLICE_BYTES ? left : STREAM_SLICE_BYTES};
        if (gather_read(lane->ops, &span, lane->memory, err) < 0)
            return -1;
        span.place = GATHER_OWN_GRADIENTS;
        if (gather_write(lane->ops, &span, lane->memory, err) < 0)
            return -1;
    }
    return 0;
}

/* Handles a received slice, posts a receive or sends a slice, whichever is possible now. Returns 1, or 0 if
 * none is. */
static int stream_progress(struct lane *lane, struct err *err)
{
    if (lane->receives && lane->handled < lane->posted &&
        atomic_load(&arrival_of(lane, lane->handled)->here)) {
        if (stream_handle(lane, lane->handled, err) < 0)
            return -1;
        lane->handled++;
        return 1;
    }
    if (lane->receives && lane->posted < lane->turns) {
        int done = post_turn(lane, lane->posted, err);
        lane->posted += done > 0;
        if (done != 0)
            return done;
    }
    if (!lane->sends || lane->next_send == lane->turns)
        return 0;
    int done = send_turn(lane, lane->next_send, err);
    lane->next_send += done > 0;
    return done;
}

static int stream_advance(void *arg, struct err *err)
{
    struct lane *lane = arg;
    int result = 1;
    atomic_store(&lane->scheduled, false);
    if (atomic_exchange(&lane->starting, false) && stream_start(lane, err) < 0)
        return -1;
    if (!lane->running || atomic_load(&lane->failed))
        return 0;
    while (result > 0)
        result = stream_progress(lane, err);
    if (result < 0)
        return -1;
    if ((lane->receives && lane->handled < lane->turns) ||
        (lane->sends && atomic_load(&lane->sent) < lane->turns))
        return 0;
    lane->running = false;
    if (lane->turns == 0 && keep_alone(lane, err) < 0)
        return -1;
    if (!lane->whole &&
        (sums(lane) || (lane->instr->op == INSTR_PUSH && lane->instr->tag == TAG_PARAMETER_GRADIENTS)))
        gather_taken(lane->ops, lane->instr);
    if (lane->whole && lane->instr->op == INSTR_ALL_GATHER)
        lane->ops->table_current = true;
    exec_done(lane->exec, lane->number, NULL);
    return 0;
}

static void stream_advanced(void *arg, const struct err *failure)
{
    if (failure)
        stream_fail(arg, failure);
}

bool stream_moves(const struct ops *ops, const struct instr *instr)
{
    return (ops->gather && gather_moves(ops, instr)) || whole_moves(ops, instr);
}

static uint32_t members(const struct ops *ops, const struct instr *instr)
{
    return instr->group < 0 ? 1 : ops->options.plan->groups[instr->group].rank_count;
}

int stream_begin(struct ops *ops, uint32_t number, const struct instr *instr, struct err *err)
{
    struct lane *lane = ops->streams->lanes[instr_queue_index(ops->options.plan, instr)];
    const struct whole *whole = ops->streams->wholes[ops->kind][number];
    if (!ops->options.mesh && members(ops, instr) > 1)
        return err_set(err, ERR_INTERNAL, "there is no mesh for %s", instr_op_name(instr->op));
    if (whole && instr->op == INSTR_ALL_GATHER && ops->table_current &&
        ops_whole_owner(&ops->options.plan->groups[instr->group]) >= 0) {
        exec_done(ops->programs[ops->kind].exec, number, NULL); /* the copies of the table are current */
        return 0;
    }
    lane->number = number;
    lane->instr = instr;
    lane->whole = whole;
    lane->exec = ops->programs[ops->kind].exec;
    atomic_store(&lane->starting, true);
    stream_schedule(lane);
    return 0;
}

/* --- making and freeing --- */

static int lane_make(struct ops *ops, const struct instr *instr, struct lane **out, struct err *err)
{
    struct lane *lane = calloc(1, sizeof(*lane));
    if (!lane)
        return err_set(err, ERR_NOMEM, "no memory for a queue of travelling state");
    *out = lane;
    lane->ops = ops;
    lane->receive_buffers = instr->op == INSTR_PUSH ? 0 : stream_receive_buffers(members(ops, instr));
    lane->send_buffers = instr->op == INSTR_PULL ? 0 : STREAM_SEND_BUFFERS;
    lane->arrivals = calloc(lane->receive_buffers + 1, sizeof(*lane->arrivals));
    if (!lane->arrivals)
        return err_set(err, ERR_NOMEM, "no memory for a queue of travelling state");
    for (uint32_t i = 0; i < lane->receive_buffers; i++)
        lane->arrivals[i].lane = lane;
    lane->memory_bytes =
        (uint64_t)(lane->receive_buffers + lane->send_buffers + STREAM_SCRATCH_BUFFERS) * STREAM_SLICE_BYTES;
    lane->job = (struct courier_job){
        .start = stream_advance, .finish = stream_advanced, .copied = ops->streams->never, .arg = lane};
    void *memory = NULL;
    if (host_memory_create(ops->options.device, lane->memory_bytes, "slices of travelling state", &memory,
                           err) < 0)
        return -1;
    lane->memory = memory;
    return 0;
}

/* Makes the lanes of one program's queues, and finds the whole (not sharded) state that each instruction
 * moves. */
static int program_make(struct ops *ops, int kind, struct err *err)
{
    struct streams *streams = ops->streams;
    const struct program *program = &ops->me->programs[kind];
    streams->wholes[kind] = calloc((size_t)program->instr_count + 1, sizeof(struct whole *));
    if (!streams->wholes[kind])
        return err_set(err, ERR_NOMEM, "no memory for a program of %u instructions", program->instr_count);
    streams->instr_counts[kind] = program->instr_count;
    for (uint32_t i = 0; i < program->instr_count; i++) {
        const struct instr *x = &program->instrs[i];
        if (!stream_moves(ops, x))
            continue;
        if (ops_check_instr(ops, kind, i, x, err) < 0)
            return -1;
        if (whole_moves(ops, x) && whole_make(ops, x, &streams->wholes[kind][i], err) < 0)
            return err_wrap(err, "%s, instruction %u", program_kind_name(kind), i);
        struct lane **lane = &streams->lanes[instr_queue_index(ops->options.plan, x)];
        if (!*lane && lane_make(ops, x, lane, err) < 0)
            return -1;
    }
    return 0;
}

static bool moves_any(const struct ops *ops)
{
    for (int kind = 0; kind < PROGRAM_KINDS; kind++)
        for (uint32_t i = 0; i < ops->me->programs[kind].instr_count; i++)
            if (stream_moves(ops, &ops->me->programs[kind].instrs[i]))
                return true;
    return false;
}

int streams_make(struct ops *ops, struct err *err)
{
    if (!moves_any(ops))
        return 0;
    struct streams *streams = calloc(1, sizeof(*streams));
    ops->streams = streams;
    if (!streams)
        return err_set(err, ERR_NOMEM, "no memory for queues of travelling state");
    streams->queue_count = plan_queue_count(ops->options.plan);
    streams->lanes = calloc(streams->queue_count, sizeof(struct lane *));
    if (!streams->lanes)
        return err_set(err, ERR_NOMEM, "no memory for %u queues", streams->queue_count);
    if (event_create(ops->options.device, &streams->never, err) < 0 ||
        event_create(ops->options.device, &streams->copied, err) < 0 ||
        courier_create(COPY_TIMEOUT_NS, &streams->thread, err) < 0)
        return -1;
    for (int kind = 0; kind < PROGRAM_KINDS; kind++)
        if (program_make(ops, kind, err) < 0)
            return -1;
    return 0;
}

void streams_stop(struct streams *streams)
{
    if (streams && streams->thread)
        courier_stop(streams->thread);
}

void streams_destroy(struct streams *streams)
{
    if (!streams)
        return;
    courier_destroy(streams->thread);
    for (uint32_t q = 0; streams->lanes && q < streams->queue_count; q++) {
        struct lane *lane = streams->lanes[q];
        if (!lane)
            continue;
        host_memory_destroy(lane->ops->options.device, lane->memory, lane->memory_bytes);
        free(lane->arrivals);
        free(lane);
    }
    for (int kind = 0; kind < PROGRAM_KINDS; kind++) {
        for (uint32_t i = 0; streams->wholes[kind] && i < streams->instr_counts[kind]; i++)
            whole_destroy(streams->wholes[kind][i]);
        free(streams->wholes[kind]);
    }
    event_destroy(streams->never);
    event_destroy(streams->copied);
    free(streams->lanes);
    free(streams);
}
