/* Links within a node: a SEND copies straight from one device's memory into another's.
 *
 * A plan asks for them with slots of the place SLOT_SHARED, whose buffers other processes of the node may
 * write. Before the first step each pair of ranks that are on one node and exchange boundary tensors tells
 * each other over the mesh which buffers they offer for which streams (program, tag, boundary), tries the
 * buffers, and agrees. If one of the two cannot use them (another kind of device, no access between two
 * cards, containers that do not see each other's memory), both say so in the job's log and the mesh carries
 * those tensors.
 *
 * A transfer. When its RECV begins, the receiver sends the buffer and the offset over the mesh (local_ready).
 * When the SEND has begun and that message has come, the sender has its device copy the bytes, waits for the
 * copy on the courier's thread, and sends the number of bytes over the mesh (local_note). These messages have
 * the order, deadline and failures of any message of their queue.
 *
 * Threads: the executor's thread makes and frees pairs; in between they do not change.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "worker/program/ops_private.h"

enum { STREAMS_MAX = 4096, BUFFERS_MAX = 4096, HELLO_VERSION = 1 };

/* Messages between the two ranks of a pair, little-endian and without padding. The first says how many
 * streams and buffers follow. */
struct hello {
    uint32_t version, streams, buffers, zero;
};
/* A stream: all SENDs of the peer with this program, tag and boundary write into offered buffers. */
struct stream {
    uint16_t program, tag;
    int32_t boundary;
};
/* A buffer that the receiver offers. To try it, the receiver writes `secret` at its beginning and the sender
 * overwrites that with answer_of(secret). */
struct offer {
    struct buffer_handle handle;
    uint64_t secret;
};
struct answer {
    uint32_t yes, zero;
    char reason[120]; /* NUL-terminated */
};
_Static_assert(sizeof(struct hello) == 16 && sizeof(struct stream) == 8 && sizeof(struct offer) == 96 &&
                   sizeof(struct answer) == 128 && sizeof(struct local_ready) == 24,
               "these have no holes");

/* A peer on this node. */
struct pair {
    uint32_t peer;
    /* our buffers, which the peer writes */
    struct cell **mine; /* [mine_count] */
    struct offer *offers;
    struct stream *takes;
    uint32_t mine_count, takes_count;
    bool in; /* the peer writes into them */
    /* the peer's buffers, which we write */
    struct buffer **theirs; /* [theirs_count], imported; each NULL after it was unmapped */
    uint64_t *sizes;        /* [theirs_count] bytes of each buffer */
    struct stream *gives;
    uint32_t theirs_count, gives_count;
    bool out;           /* we write into them */
    struct answer said; /* our answer about the peer's buffers */
};

struct local {
    struct pair *pairs;
    uint32_t count;
    struct event *copied; /* recorded behind a copy; the courier does one copy at a time */
};

static uint64_t answer_of(uint64_t secret)
{
    return ~secret;
}

static bool is_shared(const struct plan_rank *rank)
{
    for (uint32_t s = 0; s < rank->slot_count; s++)
        if (rank->slots[s].place == SLOT_SHARED)
            return true;
    return false;
}

/* Returns the peer if the instruction exchanges a boundary tensor, else PLAN_NONE. */
static int32_t exchanges(const struct ops *ops, const struct instr *instr)
{
    bool send = instr->op == OP_SEND;
    if (!send && instr->op != OP_RECV)
        return PLAN_NONE;
    return ops_is_boundary(ops->slots[send ? instr->slot_in : instr->slot_out].slot) ? instr->peer
                                                                                     : PLAN_NONE;
}

/* Whether this rank and the peer form a pair. Both ranks come to the same answer, from the plan alone. */
static bool is_pair(const struct ops *ops, uint32_t peer)
{
    const struct plan_rank *other = &ops->options.plan->ranks[peer];
    if (!ops->me->node || !other->node || !*other->node || strcmp(ops->me->node, other->node) != 0 ||
        (!is_shared(ops->me) && !is_shared(other)))
        return false;
    for (int kind = 0; kind < PROGRAM_KINDS; kind++)
        for (uint32_t i = 0; i < ops->me->programs[kind].instr_count; i++)
            if (exchanges(ops, &ops->me->programs[kind].instrs[i]) == (int32_t)peer)
                return true;
    return false;
}

/* --- our buffers --- */

static struct stream stream_of(int kind, const struct instr *instr)
{
    return (struct stream){.program = (uint16_t)kind, .tag = (uint16_t)instr->tag, instr->block_begin};
}

static bool same_stream(struct stream a, struct stream b)
{
    return a.program == b.program && a.tag == b.tag && a.boundary == b.boundary;
}

static bool has_stream(const struct stream *streams, uint32_t count, struct stream stream)
{
    for (uint32_t i = 0; i < count; i++)
        if (same_stream(streams[i], stream))
            return true;
    return false;
}

static bool takes_shared(const struct ops *ops, const struct pair *pair, const struct instr *instr)
{
    return instr->op == OP_RECV && exchanges(ops, instr) == (int32_t)pair->peer &&
           ops->slots[instr->slot_out].shared;
}

/* Finds the streams of the peer all of whose RECVs write into shared buffers. */
static void find_takes(const struct ops *ops, struct pair *pair)
{
    for (int kind = 0; kind < PROGRAM_KINDS; kind++) {
        const struct program *program = &ops->me->programs[kind];
        for (uint32_t i = 0; i < program->instr_count; i++) {
            struct stream stream = stream_of(kind, &program->instrs[i]);
            if (takes_shared(ops, pair, &program->instrs[i]) && pair->takes_count < STREAMS_MAX &&
                !has_stream(pair->takes, pair->takes_count, stream))
                pair->takes[pair->takes_count++] = stream;
        }
        for (uint32_t i = 0; i < program->instr_count; i++) {
            const struct instr *instr = &program->instrs[i];
            for (uint32_t t = 0; t < pair->takes_count; t++)
                if (instr->op == OP_RECV && instr->peer == (int32_t)pair->peer &&
                    same_stream(pair->takes[t], stream_of(kind, instr)) && !takes_shared(ops, pair, instr))
                    pair->takes[t--] = pair->takes[--pair->takes_count];
        }
    }
}

static bool slot_taken(const struct ops *ops, const struct pair *pair, uint32_t slot)
{
    for (int kind = 0; kind < PROGRAM_KINDS; kind++)
        for (uint32_t i = 0; i < ops->me->programs[kind].instr_count; i++) {
            const struct instr *instr = &ops->me->programs[kind].instrs[i];
            if (takes_shared(ops, pair, instr) && instr->slot_out == (int32_t)slot)
                return true;
        }
    return false;
}

static void find_mine(struct ops *ops, struct pair *pair)
{
    for (uint32_t s = 0; s < ops->me->slot_count; s++)
        for (uint32_t c = 0; ops->slots[s].shared && slot_taken(ops, pair, s) && c < ops->slots[s].count; c++)
            if (pair->mine_count < BUFFERS_MAX)
                pair->mine[pair->mine_count++] = &ops->slots[s].cells[c];
}

/* Makes the handles and secrets of our buffers. */
static int make_offers(struct ops *ops, struct pair *pair, struct err *err)
{
    uint64_t words[BUFFERS_MAX];
    find_takes(ops, pair);
    find_mine(ops, pair);
    for (uint32_t i = 0; i < pair->mine_count; i++) {
        struct buffer *buffer = pair->mine[i]->buffer;
        if (buffer_bytes(buffer) < sizeof *words ||
            getrandom(&words[i], sizeof words[i], 0) != sizeof words[i] ||
            buffer_export(buffer, &pair->offers[i].handle, err) < 0 ||
            buffer_write(buffer, 0, &words[i], sizeof words[i], err) < 0) {
            pair->mine_count = pair->takes_count = 0; /* nothing is offered: the mesh carries the tensors */
            break;
        }
        pair->offers[i].secret = words[i];
    }
    return device_sync(ops->options.device, err);
}

/* --- the peer's buffers --- */

static void refuse(struct pair *pair, const char *reason)
{
    pair->said.yes = 0;
    snprintf(pair->said.reason, sizeof pair->said.reason, "%.119s", reason);
}

/* Checks that an imported buffer is the one that was offered and writes our answer into it. */
static int try_buffer(struct ops *ops, struct buffer *buffer, uint64_t secret, struct err *err)
{
    uint64_t found = 0, back = answer_of(secret);
    if (buffer_read(buffer, 0, &found, sizeof found, err) < 0 || device_sync(ops->options.device, err) < 0)
        return -1;
    if (found != secret)
        return err_set(err, ERR_INVALID, "the memory found is not the memory meant");
    return buffer_write(buffer, 0, &back, sizeof back, err) < 0 ? -1 : device_sync(ops->options.device, err);
}

/* Imports the offered buffers. A refusal is recorded in the pair; it is not an error. */
static void import_theirs(struct ops *ops, struct pair *pair, const struct offer *offers)
{
    struct err err = {.code = ERR_NONE};
    pair->said = (struct answer){.yes = 1};
    for (uint32_t i = 0; i < pair->theirs_count && pair->said.yes; i++) {
        pair->sizes[i] = offers[i].handle.bytes;
        if (offers[i].handle.bytes < sizeof(uint64_t) ||
            memchr(offers[i].handle.kind, 0, sizeof offers[i].handle.kind) == NULL)
            refuse(pair, "a handle that says nothing");
        else if (buffer_import(ops->options.device, &offers[i].handle, &pair->theirs[i], &err) < 0 ||
                 try_buffer(ops, pair->theirs[i], offers[i].secret, &err) < 0)
            refuse(pair, err.text);
    }
}

/* Checks that our buffers hold the peer's answers. */
static int verify_mine(struct ops *ops, struct pair *pair, struct err *err)
{
    for (uint32_t i = 0; i < pair->mine_count && pair->in; i++) {
        uint64_t found = 0;
        if (buffer_read(pair->mine[i]->buffer, 0, &found, sizeof found, err) < 0 ||
            device_sync(ops->options.device, err) < 0)
            return -1;
        pair->in = found == answer_of(pair->offers[i].secret);
    }
    return 0;
}

/* the exchange: each kind of message for all pairs before the next kind, because a send does not wait for its
 * receive --- */

struct exchange {
    struct ops *ops;
    uint64_t deadline_ns;
    struct err *err;
};

static int put(const struct exchange *x, const struct pair *pair, const void *data, size_t size)
{
    struct mesh_meta meta = {.tag = mesh_tag(OPS_QUEUE_LOCAL, 0, 0, 0)};
    struct mesh_post post = {.peer = pair->peer, .queue = OPS_QUEUE_LOCAL, .deadline_ns = x->deadline_ns};
    return mesh_send_wait(x->ops->options.mesh, &post, &meta, data, size, NULL, x->err);
}

static int get(const struct exchange *x, const struct pair *pair, void *data, size_t size)
{
    struct mesh_done done;
    struct mesh_post post = {.peer = pair->peer, .queue = OPS_QUEUE_LOCAL, .deadline_ns = x->deadline_ns};
    if (mesh_recv_wait(x->ops->options.mesh, &post, mesh_tag(OPS_QUEUE_LOCAL, 0, 0, 0), data, size, &done,
                       x->err) < 0)
        return -1;
    return done.size == size
               ? 0
               : err_set(x->err, ERR_PEER, "rank %u says in %zu bytes what it shares, and %zu are due",
                         pair->peer, done.size, size);
}

static int put_offers(const struct exchange *x, struct pair *pair)
{
    struct hello hello = {.version = HELLO_VERSION, pair->takes_count, pair->mine_count, 0};
    return put(x, pair, &hello, sizeof hello) < 0 ||
                   put(x, pair, pair->takes, hello.streams * sizeof *pair->takes) < 0 ||
                   put(x, pair, pair->offers, hello.buffers * sizeof *pair->offers) < 0
               ? -1
               : 0;
}

static int get_offers(const struct exchange *x, struct pair *pair)
{
    struct hello hello;
    if (get(x, pair, &hello, sizeof hello) < 0)
        return -1;
    if (hello.version != HELLO_VERSION || hello.streams > STREAMS_MAX || hello.buffers > BUFFERS_MAX)
        return err_set(x->err, ERR_PEER, "rank %u shares %u streams in %u buffers, and %u and %u are allowed",
                       pair->peer, hello.streams, hello.buffers, STREAMS_MAX, BUFFERS_MAX);
    struct offer *offers = calloc((size_t)hello.buffers + 1, sizeof *offers);
    pair->gives = calloc((size_t)hello.streams + 1, sizeof *pair->gives);
    pair->theirs = calloc((size_t)hello.buffers + 1, sizeof(struct buffer *));
    pair->sizes = calloc((size_t)hello.buffers + 1, sizeof *pair->sizes);
    int result = offers && pair->gives && pair->theirs && pair->sizes
                     ? 0
                     : err_set(x->err, ERR_NOMEM, "no memory for what rank %u shares", pair->peer);
    if (result == 0 && (get(x, pair, pair->gives, hello.streams * sizeof *pair->gives) < 0 ||
                        get(x, pair, offers, hello.buffers * sizeof *offers) < 0))
        result = -1;
    pair->gives_count = hello.streams;
    pair->theirs_count = hello.buffers;
    if (result == 0)
        import_theirs(x->ops, pair, offers);
    free(offers);
    return result;
}

/* Receives whether the peer can write into our buffers, and checks that it did. */
static int get_answer(const struct exchange *x, struct pair *pair, struct answer *answer)
{
    if (get(x, pair, answer, sizeof *answer) < 0)
        return -1;
    answer->reason[sizeof answer->reason - 1] = '\0';
    pair->in = answer->yes == 1 && pair->mine_count > 0;
    return verify_mine(x->ops, pair, x->err);
}

static int get_verdict(const struct exchange *x, struct pair *pair)
{
    struct answer verdict;
    if (get(x, pair, &verdict, sizeof verdict) < 0)
        return -1;
    pair->out = pair->said.yes && verdict.yes == 1 && pair->theirs_count > 0;
    return 0;
}

static void say(const struct ops *ops, const char *level, const char *text)
{
    if (ops->options.log)
        ops->options.log(ops->options.log_arg, level, text);
}

static void say_pair(const struct ops *ops, const struct pair *pair, const struct answer *theirs)
{
    char text[320];
    const struct plan_rank *other = &ops->options.plan->ranks[pair->peer];
    const char *why = pair->said.yes ? theirs->reason : pair->said.reason;
    bool meant = pair->mine_count > 0 || pair->theirs_count > 0;
    if (!meant || ((pair->in || pair->mine_count == 0) && (pair->out || pair->theirs_count == 0))) {
        snprintf(text, sizeof text, "rank %u (%.80s) is reached within the node", pair->peer,
                 other->device ? other->device : "?");
        if (meant)
            say(ops, "info", text);
        return;
    }
    snprintf(text, sizeof text, "rank %u (%.80s) is on this node, but the mesh carries its tensors: %.120s",
             pair->peer, other->device ? other->device : "?", *why ? why : "their memory was not found");
    say(ops, "warning", text);
}

static int agree(const struct exchange *x)
{
    struct local *local = x->ops->local;
    struct answer *theirs = calloc((size_t)local->count + 1, sizeof *theirs);
    int result = theirs ? 0 : err_set(x->err, ERR_NOMEM, "no memory for %u peers", local->count);
    for (uint32_t p = 0; p < local->count && result == 0; p++)
        result = put_offers(x, &local->pairs[p]);
    for (uint32_t p = 0; p < local->count && result == 0; p++)
        result = get_offers(x, &local->pairs[p]);
    for (uint32_t p = 0; p < local->count && result == 0; p++)
        result = put(x, &local->pairs[p], &local->pairs[p].said, sizeof local->pairs[p].said);
    for (uint32_t p = 0; p < local->count && result == 0; p++)
        result = get_answer(x, &local->pairs[p], &theirs[p]);
    for (uint32_t p = 0; p < local->count && result == 0; p++) {
        struct answer verdict = {.yes = local->pairs[p].in};
        result = put(x, &local->pairs[p], &verdict, sizeof verdict);
    }
    for (uint32_t p = 0; p < local->count && result == 0; p++)
        result = get_verdict(x, &local->pairs[p]);
    for (uint32_t p = 0; p < local->count && result == 0; p++)
        say_pair(x->ops, &local->pairs[p], &theirs[p]);
    free(theirs);
    return result;
}

/* --- transfers that use the links --- */

static struct pair *pair_of(const struct ops *ops, int32_t peer)
{
    for (uint32_t p = 0; ops->local && p < ops->local->count; p++)
        if ((int32_t)ops->local->pairs[p].peer == peer)
            return &ops->local->pairs[p];
    return NULL;
}

static bool goes_locally(const struct ops *ops, int kind, const struct instr *instr)
{
    const struct pair *pair = pair_of(ops, exchanges(ops, instr));
    if (!pair)
        return false;
    return instr->op == OP_SEND
               ? pair->out && has_stream(pair->gives, pair->gives_count, stream_of(kind, instr))
               : pair->in && has_stream(pair->takes, pair->takes_count, stream_of(kind, instr));
}

static void mark_transfers(struct ops *ops)
{
    for (uint32_t s = 0; s < ops->me->slot_count; s++)
        ops->slots[s].sent_by_mesh = ops->slots[s].sent_locally = false;
    for (int kind = 0; kind < PROGRAM_KINDS; kind++)
        for (uint32_t i = 0; i < ops->me->programs[kind].instr_count; i++) {
            struct call *call = ops->programs[kind].calls[i];
            if (!call)
                continue;
            call->local.used = goes_locally(ops, kind, call->instr);
            if (call->instr->op != OP_SEND)
                continue;
            struct cells *cells = &ops->slots[call->instr->slot_in];
            cells->sent_locally |= call->local.used;
            cells->sent_by_mesh |= !call->local.used;
        }
}

static int make_pairs(struct ops *ops, struct err *err)
{
    const struct plan *plan = ops->options.plan;
    struct local *local = ops->local;
    local->pairs = calloc((size_t)plan->rank_count + 1, sizeof *local->pairs);
    if (!local->pairs)
        return err_set(err, ERR_NOMEM, "no memory for %u peers", plan->rank_count);
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        if (r == ops->options.rank || !is_pair(ops, r))
            continue;
        struct pair *pair = &local->pairs[local->count++];
        pair->peer = r;
        pair->mine = calloc(BUFFERS_MAX, sizeof(struct cell *));
        pair->offers = calloc(BUFFERS_MAX, sizeof *pair->offers);
        pair->takes = calloc(STREAMS_MAX, sizeof *pair->takes);
        if (!pair->mine || !pair->offers || !pair->takes)
            return err_set(err, ERR_NOMEM, "no memory for a link within the node");
        if (make_offers(ops, pair, err) < 0)
            return -1;
    }
    return event_create(ops->options.device, &local->copied, err);
}

int local_connect(struct ops *ops, uint64_t deadline_ns, struct err *err)
{
    struct exchange x = {.ops = ops, .deadline_ns = deadline_ns, .err = err};
    ops->local = calloc(1, sizeof *ops->local);
    if (!ops->local)
        return err_set(err, ERR_NOMEM, "no memory for links within the node");
    if (make_pairs(ops, err) < 0 || agree(&x) < 0)
        return err_wrap(err, "links within the node");
    mark_transfers(ops);
    return 0;
}

void local_let_go(struct local *local)
{
    for (uint32_t p = 0; local && local->pairs && p < local->count; p++) {
        struct pair *pair = &local->pairs[p];
        for (uint32_t i = 0; pair->theirs && i < pair->theirs_count; i++) {
            buffer_destroy(pair->theirs[i]);
            pair->theirs[i] = NULL;
        }
    }
}

void local_destroy(struct local *local)
{
    if (!local)
        return;
    local_let_go(local);
    for (uint32_t p = 0; local->pairs && p < local->count; p++) {
        struct pair *pair = &local->pairs[p];
        free(pair->theirs);
        free(pair->sizes);
        free(pair->gives);
        free(pair->mine);
        free(pair->offers);
        free(pair->takes);
    }
    event_destroy(local->copied);
    free(local->pairs);
    free(local);
}

/* --- a transfer: the sender --- */

static void noted(const struct mesh_done *done)
{
    struct call *call = done->arg;
    if (done->ok)
        atomic_fetch_add(&call->ops->local_bytes, call->size);
    call_end(call, done->ok ? NULL : &done->err);
}

/* Called by the courier when the copy is complete. */
static void copied(void *arg, const struct err *failure)
{
    struct call *call = arg;
    struct mesh_meta meta = {.tag = call->tag};
    struct mesh_post post = call_post(call, call->instr->tag, noted);
    struct err err;
    call->local.note = (struct local_note){.bytes = call->size};
    if (failure)
        call_end(call, failure);
    else if (mesh_send(call->ops->options.mesh, &post, &meta, &call->local.note, sizeof call->local.note,
                       &err) < 0)
        call_end(call, &err);
}

/* Submits the copy. Runs on the courier's thread. */
static int copy(void *arg, struct err *err)
{
    struct call *call = arg;
    struct ops *ops = call->ops;
    const struct local_ready *ready = &call->local.ready;
    const struct pair *pair = pair_of(ops, call->instr->peer);
    pthread_mutex_lock(&ops->out_lock);
    int result = buffer_copy_on(DEVICE_OUT, pair->theirs[ready->buffer], ready->at, call->cell->buffer,
                                call->at, call->size, err);
    if (result == 0)
        result = event_record_on(DEVICE_OUT, ops->local->copied, err);
    pthread_mutex_unlock(&ops->out_lock);
    return result;
}

static void receiver_ready(const struct mesh_done *done)
{
    struct call *call = done->arg;
    struct ops *ops = call->ops;
    const struct local_ready *ready = &call->local.ready;
    const struct pair *pair = pair_of(ops, call->instr->peer);
    struct err err = done->err;
    if (done->ok && done->size == sizeof *ready && ready->buffer < pair->theirs_count &&
        ready->bytes == call->size && ready->at <= pair->sizes[ready->buffer] &&
        ready->bytes <= pair->sizes[ready->buffer] - ready->at) {
        call->job =
            (struct courier_job){.start = copy, .copied = ops->local->copied, .finish = copied, .arg = call};
        courier_push(ops->courier, &call->job);
        return;
    }
    if (done->ok)
        err_set(&err, ERR_PEER,
                "rank %u has room for %llu bytes at %llu of its buffer %u, and %zu are due there", done->peer,
                (unsigned long long)ready->bytes, (unsigned long long)ready->at, ready->buffer, call->size);
    call_end(call, &err);
}

int local_send(struct call *call, struct err *err)
{
    struct mesh_post post = call_post(call, OPS_QUEUE_LOCAL, receiver_ready);
    return mesh_recv(call->ops->options.mesh, &post, call->tag, &call->local.ready, sizeof call->local.ready,
                     err);
}

/* --- a transfer: the receiver --- */

/* Counts the two messages of a RECV and completes it after the second. */
static void receive_part(struct call *call, const struct mesh_done *done)
{
    struct err err = done->err;
    if (!done->ok) {
        call_end(call, &err);
        return;
    }
    if (atomic_fetch_sub(&call->local.open, 1) == 1)
        call_end(call, NULL);
}

static void told(const struct mesh_done *done)
{
    receive_part(done->arg, done);
}

static void note_came(const struct mesh_done *done)
{
    struct call *call = done->arg;
    struct mesh_done judged = *done;
    if (done->ok && (done->size != sizeof call->local.note || call->local.note.bytes != call->size)) {
        judged.ok = false;
        err_set(&judged.err, ERR_PEER, "rank %u wrote %llu bytes where %zu are due", done->peer,
                (unsigned long long)call->local.note.bytes, call->size);
    }
    receive_part(call, &judged);
}

static uint32_t number_of(const struct pair *pair, const struct cell *cell)
{
    uint32_t i = 0;
    while (i < pair->mine_count && pair->mine[i] != cell)
        i++;
    return i;
}

int local_receive(struct call *call, struct err *err)
{
    struct ops *ops = call->ops;
    struct mesh_meta meta = {.tag = call->tag};
    struct mesh_post note = call_post(call, call->instr->tag, note_came),
                     ready = call_post(call, OPS_QUEUE_LOCAL, told);
    call->local.ready = (struct local_ready){.buffer = number_of(pair_of(ops, call->instr->peer), call->cell),
                                             .at = call->at,
                                             .bytes = call->size};
    atomic_store(&call->local.open, 2);
    if (mesh_recv(ops->options.mesh, &note, call->tag, &call->local.note, sizeof call->local.note, err) < 0)
        return -1;
    /* it fails only when the peer has failed, which ends the receive too */
    (void)mesh_send(ops->options.mesh, &ready, &meta, &call->local.ready, sizeof call->local.ready, err);
    return 0;
}
