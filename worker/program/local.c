/* Links within a node: a SEND copies straight from one device's memory into another's.
 *
 * A plan asks for them with slots of the place SLOT_SHARED, whose buffers other processes of the node may
 * write. Before the first step each pair of ranks that are on one node and exchange boundary tensors tells
 * each other over the mesh which buffers they offer for which streams (program, tag, boundary), fills the
 * buffers with noise by the copies that transfers use, compares all of it, and agrees. If one of the two
 * cannot use them (another kind of device, no access between two cards, containers that do not see each
 * other's memory, an IOMMU or PCIe switch that lets copies succeed and delivers something else:
 * pytorch#84803, NVIDIA/open-gpu-kernel-modules#1257), both say so in the job's log and the mesh carries
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

enum { STREAMS_MAX = 4096, BUFFERS_MAX = 4096, HELLO_VERSION = 2, NOISE_BYTES_MAX = 4 << 20 };

/* Messages between the two ranks of a pair, little-endian and without padding. The first says how many
 * streams and buffers follow. */
struct offer_hello {
    uint32_t version, streams, buffers, zero;
};
/* One boundary tensor of one program: all of the peer's SENDs with this program, tag and boundary block write
 * into offered buffers. */
struct local_stream {
    uint16_t program, tag;
    int32_t boundary;
};
/* A buffer that the receiver offers. To try it, the receiver writes `secret` at its beginning and the sender
 * fills the buffer with the secret's noise. */
struct buffer_offer {
    struct buffer_handle handle;
    uint64_t secret;
};
struct offer_answer {
    uint32_t yes, zero;
    char reason[120]; /* NUL-terminated */
};
_Static_assert(sizeof(struct offer_hello) == 16 && sizeof(struct local_stream) == 8 &&
                   sizeof(struct buffer_offer) == 96 && sizeof(struct offer_answer) == 128 &&
                   sizeof(struct local_ready) == 24,
               "these have no holes");

/* A peer on this node. */
struct local_pair {
    uint32_t peer;
    /* our buffers, which the peer writes */
    struct slot_cell **own; /* [own_count] */
    struct buffer_offer *offers;
    struct local_stream *receives;
    uint32_t own_count, receive_count;
    bool peer_writes; /* the peer can write into this rank's buffers */
    /* the peer's buffers, which we write */
    struct buffer **imported; /* [imported_count], imported; each NULL after it was unmapped */
    uint64_t *sizes;          /* [imported_count] bytes of each buffer */
    struct local_stream *sends;
    uint32_t imported_count, send_count;
    bool we_write;              /* this rank can write into the peer's buffers */
    struct offer_answer answer; /* our answer about the peer's buffers */
};

struct local_links {
    struct local_pair *pairs;
    uint32_t count;
    struct event *copied; /* recorded behind a copy; the courier does one copy at a time */
};

/* Word number `at` of a secret's noise: splitmix64 (Steele, Lea and Flood 2014). */
static uint64_t noise_word(uint64_t secret, uint64_t at)
{
    uint64_t z = secret + (at + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Writes to out[words] the noise that begins `at` bytes into a buffer; at is a multiple of 8. */
static void noise_fill(uint64_t secret, uint64_t at, uint64_t *out, uint64_t words)
{
    for (uint64_t i = 0; i < words; i++)
        out[i] = noise_word(secret, at / sizeof(*out) + i);
}

static bool is_shared(const struct plan_rank *rank)
{
    for (uint32_t s = 0; s < rank->slot_count; s++)
        if (rank->slots[s].place == SLOT_SHARED)
            return true;
    return false;
}

/* Returns the peer of a SEND or RECV of a boundary tensor; PLAN_NONE for other instructions. */
static int32_t local_exchanges(const struct ops *ops, const struct instr *instr)
{
    bool send = instr->op == INSTR_SEND;
    if (!send && instr->op != INSTR_RECV)
        return PLAN_NONE;
    return ops_is_boundary(ops->slots[send ? instr->slot_in : instr->slot_out].slot) ? instr->peer
                                                                                     : PLAN_NONE;
}

/* Whether this rank and the peer are on one node and exchange boundary tensors. The answer depends on the
 * plan alone, so both ranks compute the same. */
static bool is_pair(const struct ops *ops, uint32_t peer)
{
    const struct plan_rank *other = &ops->options.plan->ranks[peer];
    if (!ops->me->node || !other->node || !*other->node || strcmp(ops->me->node, other->node) != 0 ||
        (!is_shared(ops->me) && !is_shared(other)))
        return false;
    for (int kind = 0; kind < PROGRAM_KINDS; kind++)
        for (uint32_t i = 0; i < ops->me->programs[kind].instr_count; i++)
            if (local_exchanges(ops, &ops->me->programs[kind].instrs[i]) == (int32_t)peer)
                return true;
    return false;
}

/* --- our buffers --- */

static struct local_stream local_stream_of(int kind, const struct instr *instr)
{
    return (struct local_stream){.program = (uint16_t)kind, .tag = (uint16_t)instr->tag, instr->block_begin};
}

static bool same_stream(struct local_stream a, struct local_stream b)
{
    return a.program == b.program && a.tag == b.tag && a.boundary == b.boundary;
}

static bool has_stream(const struct local_stream *streams, uint32_t count, struct local_stream stream)
{
    for (uint32_t i = 0; i < count; i++)
        if (same_stream(streams[i], stream))
            return true;
    return false;
}

static bool receives_shared(const struct ops *ops, const struct local_pair *pair, const struct instr *instr)
{
    return instr->op == INSTR_RECV && local_exchanges(ops, instr) == (int32_t)pair->peer &&
           ops->slots[instr->slot_out].shared;
}

/* Finds the peer's streams for which every RECV of this rank writes into a SLOT_SHARED slot. */
static void find_receives(const struct ops *ops, struct local_pair *pair)
{
    for (int kind = 0; kind < PROGRAM_KINDS; kind++) {
        const struct program *program = &ops->me->programs[kind];
        for (uint32_t i = 0; i < program->instr_count; i++) {
            struct local_stream stream = local_stream_of(kind, &program->instrs[i]);
            if (receives_shared(ops, pair, &program->instrs[i]) && pair->receive_count < STREAMS_MAX &&
                !has_stream(pair->receives, pair->receive_count, stream))
                pair->receives[pair->receive_count++] = stream;
        }
        for (uint32_t i = 0; i < program->instr_count; i++) {
            const struct instr *instr = &program->instrs[i];
            for (uint32_t t = 0; t < pair->receive_count; t++)
                if (instr->op == INSTR_RECV && instr->peer == (int32_t)pair->peer &&
                    same_stream(pair->receives[t], local_stream_of(kind, instr)) &&
                    !receives_shared(ops, pair, instr))
                    pair->receives[t--] = pair->receives[--pair->receive_count];
        }
    }
}

static bool slot_receives(const struct ops *ops, const struct local_pair *pair, uint32_t slot)
{
    for (int kind = 0; kind < PROGRAM_KINDS; kind++)
        for (uint32_t i = 0; i < ops->me->programs[kind].instr_count; i++) {
            const struct instr *instr = &ops->me->programs[kind].instrs[i];
            if (receives_shared(ops, pair, instr) && instr->slot_out == (int32_t)slot)
                return true;
        }
    return false;
}

static void find_own_buffers(struct ops *ops, struct local_pair *pair)
{
    for (uint32_t s = 0; s < ops->me->slot_count; s++)
        for (uint32_t c = 0; ops->slots[s].shared && slot_receives(ops, pair, s) && c < ops->slots[s].count;
             c++)
            if (pair->own_count < BUFFERS_MAX)
                pair->own[pair->own_count++] = &ops->slots[s].cells[c];
}

/* Makes the offers of this rank's buffers: a handle to import each by, and a random secret to verify it. */
static int make_offers(struct ops *ops, struct local_pair *pair, struct err *err)
{
    uint64_t words[BUFFERS_MAX];
    find_receives(ops, pair);
    find_own_buffers(ops, pair);
    for (uint32_t i = 0; i < pair->own_count; i++) {
        struct buffer *buffer = pair->own[i]->buffer;
        if (buffer_bytes(buffer) < sizeof(*words) ||
            getrandom(&words[i], sizeof(words[i]), 0) != sizeof(words[i]) ||
            buffer_export(buffer, &pair->offers[i].handle, err) < 0 ||
            buffer_write(buffer, 0, &words[i], sizeof(words[i]), err) < 0) {
            pair->own_count = pair->receive_count = 0; /* nothing is offered: the mesh carries the tensors */
            break;
        }
        pair->offers[i].secret = words[i];
    }
    return device_sync(ops->options.device, err);
}

/* --- the peer's buffers --- */

static void local_refuse(struct local_pair *pair, const char *reason)
{
    pair->answer.yes = 0;
    snprintf(pair->answer.reason, sizeof(pair->answer.reason), "%.119s", reason);
}

/* Copies noise from this device's memory over the whole of an imported buffer, as a transfer copies. The
 * memory that this takes for a moment is that of a tensor which is sent, and no tensor is there yet. */
static int noise_copy(struct device *device, struct buffer *buffer, uint64_t secret, struct err *err)
{
    struct buffer *source = NULL;
    uint64_t bytes = buffer_bytes(buffer), piece = bytes < NOISE_BYTES_MAX ? bytes : NOISE_BYTES_MAX;
    uint64_t *noise = malloc(piece + sizeof(*noise));
    int result = noise ? buffer_create(device, piece, MEM_BUFFERS, "noise to try a link", &source, err)
                       : err_set(err, ERR_NOMEM, "no memory to try a link within the node");
    for (uint64_t at = 0; at < bytes && result == 0; at += piece) {
        uint64_t size = bytes - at < piece ? bytes - at : piece;
        noise_fill(secret, at, noise, (size + 7) / 8);
        if (buffer_write(source, 0, noise, size, err) < 0 || device_sync(device, err) < 0 ||
            buffer_copy_on(DEVICE_OUT, buffer, at, source, 0, size, err) < 0 || device_sync(device, err) < 0)
            result = -1;
    }
    buffer_destroy(source);
    free(noise);
    return result;
}

/* Checks that an imported buffer begins with the offered secret, and fills it with the secret's noise. */
static int answer_buffer(struct ops *ops, struct buffer *buffer, uint64_t secret, struct err *err)
{
    uint64_t found = 0;
    if (buffer_read(buffer, 0, &found, sizeof(found), err) < 0 || device_sync(ops->options.device, err) < 0)
        return -1;
    if (found != secret)
        return err_set(err, ERR_INVALID, "the memory found is not the memory meant");
    return noise_copy(ops->options.device, buffer, secret, err);
}

/* Imports the peer's offered buffers. If one cannot be used, the reason is recorded in the pair; that is not
 * an error. */
static void import_buffers(struct ops *ops, struct local_pair *pair, const struct buffer_offer *offers)
{
    struct err err = {.code = ERR_NONE};
    pair->answer = (struct offer_answer){.yes = 1};
    for (uint32_t i = 0; i < pair->imported_count && pair->answer.yes; i++) {
        pair->sizes[i] = offers[i].handle.bytes;
        if (offers[i].handle.bytes < sizeof(uint64_t) ||
            !memchr(offers[i].handle.kind, 0, sizeof(offers[i].handle.kind)))
            local_refuse(pair, "a handle that says nothing");
        else if (buffer_import(ops->options.device, &offers[i].handle, &pair->imported[i], &err) < 0 ||
                 answer_buffer(ops, pair->imported[i], offers[i].secret, &err) < 0)
            local_refuse(pair, err.text);
    }
}

/* Whether the whole of a buffer is the noise of its secret. */
static int noise_found(struct ops *ops, struct buffer *buffer, uint64_t secret, bool *found, struct err *err)
{
    uint64_t bytes = buffer_bytes(buffer), *memory = malloc(2 * NOISE_BYTES_MAX);
    int result = memory ? 0 : err_set(err, ERR_NOMEM, "no memory to try a link within the node");
    *found = true;
    for (uint64_t at = 0; at < bytes && *found && result == 0; at += NOISE_BYTES_MAX) {
        uint64_t size = bytes - at < NOISE_BYTES_MAX ? bytes - at : NOISE_BYTES_MAX;
        if (buffer_read(buffer, at, memory, size, err) < 0 || device_sync(ops->options.device, err) < 0)
            result = -1;
        noise_fill(secret, at, memory + NOISE_BYTES_MAX / 8, (size + 7) / 8);
        *found = memcmp(memory, memory + NOISE_BYTES_MAX / 8, size) == 0;
    }
    free(memory);
    return result;
}

/* Checks that this rank's buffers contain the noise that the peer has copied there. */
static int verify_answers(struct ops *ops, struct local_pair *pair, struct offer_answer *theirs,
                          struct err *err)
{
    for (uint32_t i = 0; i < pair->own_count && pair->peer_writes; i++)
        if (noise_found(ops, pair->own[i]->buffer, pair->offers[i].secret, &pair->peer_writes, err) < 0)
            return -1;
    if (theirs->yes == 1 && pair->own_count > 0 && !pair->peer_writes)
        snprintf(theirs->reason, sizeof(theirs->reason),
                 "copies into rank %u's memory arrive changed (IOMMU or PCIe ACS?)", ops->options.rank);
    return 0;
}

/* --- the exchange of handles between the ranks of the node ---
 *
 * Each kind of message goes to all peers before the next kind, because a send does not wait for its receive.
 */

struct offer_exchange {
    struct ops *ops;
    uint64_t deadline_ns;
    struct err *err;
};

static int send_message(const struct offer_exchange *x, const struct local_pair *pair, const void *data,
                        size_t size)
{
    struct mesh_meta meta = {.tag = mesh_tag(OPS_QUEUE_LOCAL, 0, 0, 0)};
    struct mesh_post post = {.peer = pair->peer, .queue = OPS_QUEUE_LOCAL, .deadline_ns = x->deadline_ns};
    return mesh_send_wait(x->ops->options.mesh, &post, &meta, data, size, NULL, x->err);
}

static int receive_message(const struct offer_exchange *x, const struct local_pair *pair, void *data,
                           size_t size)
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

static int send_offers(const struct offer_exchange *x, struct local_pair *pair)
{
    struct offer_hello hello = {.version = HELLO_VERSION, pair->receive_count, pair->own_count, 0};
    return send_message(x, pair, &hello, sizeof(hello)) < 0 ||
                   send_message(x, pair, pair->receives, hello.streams * sizeof(*pair->receives)) < 0 ||
                   send_message(x, pair, pair->offers, hello.buffers * sizeof(*pair->offers)) < 0
               ? -1
               : 0;
}

static int receive_offers(const struct offer_exchange *x, struct local_pair *pair)
{
    struct offer_hello hello;
    if (receive_message(x, pair, &hello, sizeof(hello)) < 0)
        return -1;
    if (hello.version != HELLO_VERSION || hello.streams > STREAMS_MAX || hello.buffers > BUFFERS_MAX)
        return err_set(x->err, ERR_PEER, "rank %u shares %u streams in %u buffers, and %u and %u are allowed",
                       pair->peer, hello.streams, hello.buffers, STREAMS_MAX, BUFFERS_MAX);
    struct buffer_offer *offers = calloc((size_t)hello.buffers + 1, sizeof(*offers));
    pair->sends = calloc((size_t)hello.streams + 1, sizeof(*pair->sends));
    pair->imported = calloc((size_t)hello.buffers + 1, sizeof(struct buffer *));
    pair->sizes = calloc((size_t)hello.buffers + 1, sizeof(*pair->sizes));
    int result = offers && pair->sends && pair->imported && pair->sizes
                     ? 0
                     : err_set(x->err, ERR_NOMEM, "no memory for what rank %u shares", pair->peer);
    if (result == 0 && (receive_message(x, pair, pair->sends, hello.streams * sizeof(*pair->sends)) < 0 ||
                        receive_message(x, pair, offers, hello.buffers * sizeof(*offers)) < 0))
        result = -1;
    pair->send_count = hello.streams;
    pair->imported_count = hello.buffers;
    if (result == 0)
        import_buffers(x->ops, pair, offers);
    free(offers);
    return result;
}

/* Receives whether the peer can write into our buffers, and checks that it did. */
static int receive_answer(const struct offer_exchange *x, struct local_pair *pair,
                          struct offer_answer *answer)
{
    if (receive_message(x, pair, answer, sizeof(*answer)) < 0)
        return -1;
    answer->reason[sizeof(answer->reason) - 1] = '\0';
    pair->peer_writes = answer->yes == 1 && pair->own_count > 0;
    return verify_answers(x->ops, pair, answer, x->err);
}

static int receive_verdict(const struct offer_exchange *x, struct local_pair *pair,
                           struct offer_answer *theirs)
{
    struct offer_answer verdict;
    if (receive_message(x, pair, &verdict, sizeof(verdict)) < 0)
        return -1;
    pair->we_write = pair->answer.yes && verdict.yes == 1 && pair->imported_count > 0;
    if (theirs->yes == 1 && verdict.yes == 0 && theirs->reason[0] == '\0')
        snprintf(theirs->reason, sizeof(theirs->reason), "%.*s", (int)sizeof(verdict.reason) - 1,
                 verdict.reason);
    return 0;
}

static void log_text(const struct ops *ops, const char *level, const char *text)
{
    if (ops->options.log)
        ops->options.log(ops->options.log_arg, level, text);
}

static void log_pair(const struct ops *ops, const struct local_pair *pair, const struct offer_answer *theirs)
{
    char text[320];
    const struct plan_rank *other = &ops->options.plan->ranks[pair->peer];
    const char *why = pair->answer.yes ? theirs->reason : pair->answer.reason;
    bool has_buffers = pair->own_count > 0 || pair->imported_count > 0;
    if (!has_buffers ||
        ((pair->peer_writes || pair->own_count == 0) && (pair->we_write || pair->imported_count == 0))) {
        snprintf(text, sizeof(text), "rank %u (%.80s) is reached within the node", pair->peer,
                 other->device ? other->device : "?");
        if (has_buffers)
            log_text(ops, "info", text);
        return;
    }
    snprintf(text, sizeof(text), "rank %u (%.80s) is on this node, but the mesh carries its tensors: %.120s",
             pair->peer, other->device ? other->device : "?", *why ? why : "their memory was not found");
    log_text(ops, "warning", text);
}

static int exchange_offers(const struct offer_exchange *x)
{
    struct local_links *local = x->ops->local;
    struct offer_answer *theirs = calloc((size_t)local->count + 1, sizeof(*theirs));
    int result = theirs ? 0 : err_set(x->err, ERR_NOMEM, "no memory for %u peers", local->count);
    for (uint32_t p = 0; p < local->count && result == 0; p++)
        result = send_offers(x, &local->pairs[p]);
    for (uint32_t p = 0; p < local->count && result == 0; p++)
        result = receive_offers(x, &local->pairs[p]);
    for (uint32_t p = 0; p < local->count && result == 0; p++)
        result = send_message(x, &local->pairs[p], &local->pairs[p].answer, sizeof(local->pairs[p].answer));
    for (uint32_t p = 0; p < local->count && result == 0; p++)
        result = receive_answer(x, &local->pairs[p], &theirs[p]);
    for (uint32_t p = 0; p < local->count && result == 0; p++) {
        struct offer_answer verdict = theirs[p];
        verdict.yes = local->pairs[p].peer_writes;
        result = send_message(x, &local->pairs[p], &verdict, sizeof(verdict));
    }
    for (uint32_t p = 0; p < local->count && result == 0; p++)
        result = receive_verdict(x, &local->pairs[p], &theirs[p]);
    for (uint32_t p = 0; p < local->count && result == 0; p++)
        log_pair(x->ops, &local->pairs[p], &theirs[p]);
    free(theirs);
    return result;
}

/* --- transfers that use the links --- */

static struct local_pair *local_pair_of(const struct ops *ops, int32_t peer)
{
    for (uint32_t p = 0; ops->local && p < ops->local->count; p++)
        if ((int32_t)ops->local->pairs[p].peer == peer)
            return &ops->local->pairs[p];
    return NULL;
}

static bool uses_local_link(const struct ops *ops, int kind, const struct instr *instr)
{
    const struct local_pair *pair = local_pair_of(ops, local_exchanges(ops, instr));
    if (!pair)
        return false;
    return instr->op == INSTR_SEND
               ? pair->we_write && has_stream(pair->sends, pair->send_count, local_stream_of(kind, instr))
               : pair->peer_writes &&
                     has_stream(pair->receives, pair->receive_count, local_stream_of(kind, instr));
}

static void mark_transfers(struct ops *ops)
{
    for (uint32_t s = 0; s < ops->me->slot_count; s++) {
        /* partial sums are sent by collectives, which use the mesh */
        ops->slots[s].sent_by_mesh = ops->slots[s].travels && ops->slots[s].slot->kind == SLOT_PARTIAL;
        ops->slots[s].sent_locally = false;
    }
    for (int kind = 0; kind < PROGRAM_KINDS; kind++)
        for (uint32_t i = 0; i < ops->me->programs[kind].instr_count; i++) {
            struct transfer *transfer = ops->programs[kind].transfer_at[i];
            if (!transfer)
                continue;
            transfer->local.used = uses_local_link(ops, kind, transfer->instr);
            if (transfer->instr->op != INSTR_SEND)
                continue;
            struct slot_cells *cells = &ops->slots[transfer->instr->slot_in];
            cells->sent_locally |= transfer->local.used;
            cells->sent_by_mesh |= !transfer->local.used;
        }
}

static int make_pairs(struct ops *ops, struct err *err)
{
    const struct plan *plan = ops->options.plan;
    struct local_links *local = ops->local;
    local->pairs = calloc((size_t)plan->rank_count + 1, sizeof(*local->pairs));
    if (!local->pairs)
        return err_set(err, ERR_NOMEM, "no memory for %u peers", plan->rank_count);
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        if (r == ops->options.rank || !is_pair(ops, r))
            continue;
        struct local_pair *pair = &local->pairs[local->count++];
        pair->peer = r;
        pair->own = calloc(BUFFERS_MAX, sizeof(struct slot_cell *));
        pair->offers = calloc(BUFFERS_MAX, sizeof(*pair->offers));
        pair->receives = calloc(STREAMS_MAX, sizeof(*pair->receives));
        if (!pair->own || !pair->offers || !pair->receives)
            return err_set(err, ERR_NOMEM, "no memory for a link within the node");
        if (make_offers(ops, pair, err) < 0)
            return -1;
    }
    return event_create(ops->options.device, &local->copied, err);
}

int local_connect(struct ops *ops, uint64_t deadline_ns, struct err *err)
{
    struct offer_exchange x = {.ops = ops, .deadline_ns = deadline_ns, .err = err};
    ops->local = calloc(1, sizeof(*ops->local));
    if (!ops->local)
        return err_set(err, ERR_NOMEM, "no memory for links within the node");
    if (make_pairs(ops, err) < 0 || exchange_offers(&x) < 0)
        return err_wrap(err, "links within the node");
    mark_transfers(ops);
    return 0;
}

void local_unmap(struct local_links *local)
{
    for (uint32_t p = 0; local && local->pairs && p < local->count; p++) {
        struct local_pair *pair = &local->pairs[p];
        for (uint32_t i = 0; pair->imported && i < pair->imported_count; i++) {
            buffer_destroy(pair->imported[i]);
            pair->imported[i] = NULL;
        }
    }
}

void local_destroy(struct local_links *local)
{
    if (!local)
        return;
    local_unmap(local);
    for (uint32_t p = 0; local->pairs && p < local->count; p++) {
        struct local_pair *pair = &local->pairs[p];
        free(pair->imported);
        free(pair->sizes);
        free(pair->sends);
        free(pair->own);
        free(pair->offers);
        free(pair->receives);
    }
    event_destroy(local->copied);
    free(local->pairs);
    free(local);
}

/* --- a transfer: the sender --- */

static void note_sent(const struct mesh_done *done)
{
    struct transfer *transfer = done->arg;
    if (done->ok)
        atomic_fetch_add(&transfer->ops->local_bytes, transfer->size);
    transfer_end(transfer, done->ok ? NULL : &done->err);
}

/* Called by the courier when the copy is complete. */
static void local_copy_done(void *arg, const struct err *failure)
{
    struct transfer *transfer = arg;
    struct mesh_meta meta = {.tag = transfer->tag};
    struct mesh_post post = transfer_post(transfer, transfer->instr->tag, note_sent);
    struct err err;
    transfer->local.note = (struct local_note){.bytes = transfer->size};
    if (failure)
        transfer_end(transfer, failure);
    else if (mesh_send(transfer->ops->options.mesh, &post, &meta, &transfer->local.note,
                       sizeof(transfer->local.note), &err) < 0)
        transfer_end(transfer, &err);
}

/* Submits the copy. Runs on the courier's thread. */
static int copy_submit(void *arg, struct err *err)
{
    struct transfer *transfer = arg;
    struct ops *ops = transfer->ops;
    const struct local_ready *ready = &transfer->local.ready;
    const struct local_pair *pair = local_pair_of(ops, transfer->instr->peer);
    pthread_mutex_lock(&ops->out_lock);
    int result = buffer_copy_on(DEVICE_OUT, pair->imported[ready->buffer], ready->at, transfer->cell->buffer,
                                transfer->at, transfer->size, err);
    if (result == 0)
        result = event_record_on(DEVICE_OUT, ops->local->copied, err);
    pthread_mutex_unlock(&ops->out_lock);
    return result;
}

static void receiver_ready(const struct mesh_done *done)
{
    struct transfer *transfer = done->arg;
    struct ops *ops = transfer->ops;
    const struct local_ready *ready = &transfer->local.ready;
    const struct local_pair *pair = local_pair_of(ops, transfer->instr->peer);
    struct err err = done->err;
    if (done->ok && done->size == sizeof(*ready) && ready->buffer < pair->imported_count &&
        ready->bytes == transfer->size && ready->at <= pair->sizes[ready->buffer] &&
        ready->bytes <= pair->sizes[ready->buffer] - ready->at) {
        transfer->job = (struct courier_job){
            .start = copy_submit, .copied = ops->local->copied, .finish = local_copy_done, .arg = transfer};
        courier_push(ops->courier, &transfer->job);
        return;
    }
    if (done->ok)
        err_set(&err, ERR_PEER,
                "rank %u has room for %llu bytes at %llu of its buffer %u, and %zu are due there", done->peer,
                (unsigned long long)ready->bytes, (unsigned long long)ready->at, ready->buffer,
                transfer->size);
    transfer_end(transfer, &err);
}

int local_send(struct transfer *transfer, struct err *err)
{
    struct mesh_post post = transfer_post(transfer, OPS_QUEUE_LOCAL, receiver_ready);
    return mesh_recv(transfer->ops->options.mesh, &post, transfer->tag, &transfer->local.ready,
                     sizeof(transfer->local.ready), err);
}

/* --- a transfer: the receiver --- */

/* Counts the two messages of a RECV and completes it after the second. */
static void receive_step(struct transfer *transfer, const struct mesh_done *done)
{
    struct err err = done->err;
    if (!done->ok) {
        transfer_end(transfer, &err);
        return;
    }
    if (atomic_fetch_sub(&transfer->local.open, 1) == 1)
        transfer_end(transfer, NULL);
}

static void ready_sent(const struct mesh_done *done)
{
    receive_step(done->arg, done);
}

static void note_received(const struct mesh_done *done)
{
    struct transfer *transfer = done->arg;
    struct mesh_done judged = *done;
    if (done->ok &&
        (done->size != sizeof(transfer->local.note) || transfer->local.note.bytes != transfer->size)) {
        judged.ok = false;
        err_set(&judged.err, ERR_PEER, "rank %u wrote %llu bytes where %zu are due", done->peer,
                (unsigned long long)transfer->local.note.bytes, transfer->size);
    }
    receive_step(transfer, &judged);
}

static uint32_t buffer_number(const struct local_pair *pair, const struct slot_cell *cell)
{
    uint32_t i = 0;
    while (i < pair->own_count && pair->own[i] != cell)
        i++;
    return i;
}

int local_receive(struct transfer *transfer, struct err *err)
{
    struct ops *ops = transfer->ops;
    struct mesh_meta meta = {.tag = transfer->tag};
    struct mesh_post note = transfer_post(transfer, transfer->instr->tag, note_received),
                     ready = transfer_post(transfer, OPS_QUEUE_LOCAL, ready_sent);
    transfer->local.ready = (struct local_ready){
        .buffer = buffer_number(local_pair_of(ops, transfer->instr->peer), transfer->cell),
        .at = transfer->at,
        .bytes = transfer->size};
    atomic_store(&transfer->local.open, 2);
    if (mesh_recv(ops->options.mesh, &note, transfer->tag, &transfer->local.note,
                  sizeof(transfer->local.note), err) < 0)
        return -1;
    /* mesh_send fails only when the peer has failed, which ends the receive too */
    (void)mesh_send(ops->options.mesh, &ready, &meta, &transfer->local.ready, sizeof(transfer->local.ready),
                    err);
    return 0;
}
