/* Declarations that ops.c, gather.c, whole.c and stream.c share, for ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE,
 * PULL and PUSH of parameters and gradients, which use the device queue DEVICE_GROUP. */
#ifndef MOTLEY_WORKER_PROGRAM_GATHER_PRIVATE_H
#define MOTLEY_WORKER_PROGRAM_GATHER_PRIVATE_H

#include "worker/program/ops_private.h"

struct gather;
struct streams;

/* --- gather.c --- */

/* Makes ops->gather and the buffers of slots for gathered weights and unreduced gradients; leaves NULL if the
 * rank's state is not sharded. ERR_INVALID for a slot that is too small for its blocks; ERR_NOFIT, ERR_NOMEM.
 */
int gather_make(struct ops *ops, struct err *err);
void gather_destroy(struct gather *gather); /* NULL is a no-op */
/* Whether an instruction moves sharded state: ALL_GATHER and REDUCE_SCATTER of the group that shards it,
 * PULL, PUSH. */
bool gather_moves(const struct ops *ops, const struct instr *instr);
/* Forgets which weights were bound and which gradients were summed in the previous run. */
void gather_run_begin(struct ops *ops);
/* Lets the stage use the gathered weights of a FORWARD's or BACKWARD's blocks, and the buffers of unreduced
 * gradients to which the instruction adds. */
int gather_bind(struct ops *ops, const struct instr *instr, struct stage *stage, struct err *err);
/* Ends the stage's use of the gathered weights that a RELEASE frees. */
void gather_release(struct ops *ops, const struct instr *instr);
/* Notes that a REDUCE_SCATTER or PUSH has read the unreduced gradients of its blocks, so that the next
 * backward begins at zero. */
void gather_taken(struct ops *ops, const struct instr *instr);

/* The memory that a span lies in: this rank's shard of the values, its shard of the gradients, the buffer of
 * gathered weights, or the buffer of unreduced gradients. */
enum gather_place { GATHER_OWN_VALUES, GATHER_OWN_GRADIENTS, GATHER_WEIGHTS, GATHER_GRADIENTS };
/* Bytes [at, at + bytes) of the shards that member `part` of the group has of the instruction's blocks, one
 * block behind another. */
struct gather_span {
    const struct instr *instr;
    enum gather_place place;
    uint32_t part;
    uint64_t at, bytes;
};
/* Returns the bytes of the shards that the member at position `part` of the group keeps of the instruction's
 * blocks. */
uint64_t gather_part_bytes(const struct ops *ops, const struct instr *instr, uint32_t part);
/* Copy a span to or from the host and wait. Unreduced gradients to which no backward has added are read as
 * zeros. gather_write ignores memory that this rank does not have. */
int gather_read(struct ops *ops, const struct gather_span *span, uint8_t *host, struct err *err);
int gather_write(struct ops *ops, const struct gather_span *span, const uint8_t *host, struct err *err);
/* Copies this rank's shard of the values into the buffer of gathered weights of the instruction's blocks, and
 * waits. */
int gather_keep_own(struct ops *ops, const struct instr *instr, struct err *err);

/* --- whole.c --- */

struct whole;

/* Whether an instruction moves parameters or gradients that are not sharded over its group: an ALL_REDUCE of
 * them, or the ALL_GATHER or REDUCE_SCATTER of a tied embedding for ranks that keep no shard of it. */
bool whole_moves(const struct ops *ops, const struct instr *instr);
/* Finds where the parameters or gradients of an instruction lie and how the ring cuts them into parts. The
 * caller destroys *out, also after an error. ERR_INVALID, ERR_NOMEM. */
int whole_make(const struct ops *ops, const struct instr *instr, struct whole **out, struct err *err);
void whole_destroy(struct whole *whole); /* NULL is a no-op */
uint64_t whole_part_bytes(const struct whole *whole, uint32_t part);
/* Queues the copy of a span (its `place` is ignored) between device and host on DEVICE_GROUP. Writes nothing
 * on a rank that only contributes. */
int whole_copy(const struct whole *whole, const struct gather_span *span, uint8_t *host, bool write,
               struct err *err);

/* --- stream.c --- */

/* Makes ops->streams, the thread and host memory that carry parameters and gradients; NULL if no instruction
 * moves any. */
int streams_make(struct ops *ops, struct err *err);
/* Ends the streams' thread. Call it before the mesh is closed. NULL is a no-op, as in streams_destroy. */
void streams_stop(struct streams *streams);
void streams_destroy(struct streams *streams);
/* Whether an instruction moves parameters or gradients, so that stream_begin runs it. */
bool stream_moves(const struct ops *ops, const struct instr *instr);
/* Begins an instruction for which stream_moves is true; exec_done follows. */
int stream_begin(struct ops *ops, uint32_t number, const struct instr *instr, struct err *err);

#endif
