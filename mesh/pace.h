/* An emulated link, placed between the choice of frames (tx.c) and the connection.
 *
 * A frame that is put in occupies the wire for bytes / rate, one frame after the other. It leaves when its
 * last byte has left and arrives `latency` later. The caller writes frames that have arrived to the real
 * connection. Late wake-ups do not add up: a frame that was ready while the wire was busy starts when the
 * wire became free, not when the caller looked. Pure apart from memory: the caller gives the times, in
 * nanoseconds. One thread at a time.
 */
#ifndef MOTLEY_MESH_PACE_H
#define MOTLEY_MESH_PACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mesh/mesh.h"

struct mesh_pace;

/* Returns NULL when memory is short. */
struct mesh_pace *mesh_pace_create(const struct mesh_link *link);
/* Frees the filter. Frames still inside are dropped; if 'drop' is not NULL it gets the 'done' of each. */
void mesh_pace_destroy(struct mesh_pace *pace, void (*drop)(void *done, void *arg), void *arg);

/* Returns the largest payload to put at once, in bytes, so that no frame occupies the wire for much longer
 * than half a millisecond. */
size_t mesh_pace_chunk(const struct mesh_pace *pace);
/* True when the wire accepts another frame. */
bool mesh_pace_free(const struct mesh_pace *pace, uint64_t now_ns);
/* Puts head and body (copied) on the wire. ready_ns is when the frame could first have been sent. 'done' is
 * what mesh_pace_left() returns when the last byte has left, or NULL. False when memory is short. */
bool mesh_pace_put(struct mesh_pace *pace, uint64_t now_ns, uint64_t ready_ns, const void *head,
                   size_t head_size, const void *body, size_t body_size, void *done);
/* Returns the 'done' of the next frame that has left, with the time it left; NULL when there is none. */
void *mesh_pace_left(struct mesh_pace *pace, uint64_t now_ns, uint64_t *left_ns);
/* A frame on the emulated link. mesh_pace_arrived() returns the next one that has arrived, which the caller
 * frees with free(); NULL when there is none. */
struct mesh_paced {
    struct mesh_paced *next;
    uint64_t leave_ns, arrive_ns;
    void *done;
    size_t size;
    uint8_t bytes[];
};
struct mesh_paced *mesh_pace_arrived(struct mesh_pace *pace, uint64_t now_ns);
/* When the state changes next: the wire becomes free, or a frame leaves or arrives; UINT64_MAX: never.
 * `waiting` says that the caller has a frame for the wire. */
uint64_t mesh_pace_next(const struct mesh_pace *pace, bool waiting);
/* True when no frame is inside. */
bool mesh_pace_empty(const struct mesh_pace *pace);

#endif
