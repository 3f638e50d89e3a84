/* An emulated link as a filter between the scheduler of frames and the connection.
 *
 * A frame put in occupies the wire for bytes / rate, one after the other; it leaves when its last byte has,
 * and arrives latency later. The caller writes what has arrived to the real connection. Late wake-ups do not
 * add up: a frame that was ready while the wire was busy starts when the wire became free, not when somebody
 * looked. Pure but for memory: times are given, in nanoseconds. One thread at a time.
 */
#ifndef MOTLEY_MESH_PACE_H
#define MOTLEY_MESH_PACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mesh/mesh.h"

struct mesh_pace;

/* NULL without memory. */
struct mesh_pace *mesh_pace_create(const struct mesh_link *link);
/* Frames still inside are dropped; their 'done' is handed to drop() if it is not NULL. */
void mesh_pace_destroy(struct mesh_pace *pace, void (*drop)(void *done, void *arg), void *arg);

/* The largest payload to put at once, so that no frame holds the wire for much longer than half a
 * millisecond. */
size_t mesh_pace_chunk(const struct mesh_pace *pace);
/* True when the wire takes another frame. */
bool mesh_pace_free(const struct mesh_pace *pace, uint64_t now_ns);
/* Put head and body (copied) on the wire; ready_ns: since when they could have gone. done: what
 * mesh_pace_left() returns when the last byte has left, or NULL. False without memory. */
bool mesh_pace_put(struct mesh_pace *pace, uint64_t now_ns, uint64_t ready_ns, const void *head,
                   size_t head_size, const void *body, size_t body_size, void *done);
/* The 'done' of the next frame that has left, with the time it left; NULL: none. */
void *mesh_pace_left(struct mesh_pace *pace, uint64_t now_ns, uint64_t *left_ns);
/* The next frame that has arrived, to be freed by free(); NULL: none. */
struct mesh_paced {
    struct mesh_paced *next;
    uint64_t leave_ns, arrive_ns;
    void *done;
    size_t size;
    uint8_t bytes[];
};
struct mesh_paced *mesh_pace_arrived(struct mesh_pace *pace, uint64_t now_ns);
/* When to look again: the wire is free, a frame leaves or arrives; UINT64_MAX: never. waiting: a frame is
 * ready. */
uint64_t mesh_pace_next(const struct mesh_pace *pace, bool waiting);
/* Nothing is inside. */
bool mesh_pace_empty(const struct mesh_pace *pace);

#endif
