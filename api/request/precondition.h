/* If-Match of requests that change something: the change is made if the path's GET, asked just before,
 * answers what the client has seen. Nothing is locked in between: two changes at the same moment may both
 * pass. Loop thread.
 */
#ifndef MOTLEY_API_REQUEST_PRECONDITION_H
#define MOTLEY_API_REQUEST_PRECONDITION_H

#include "api/request/app.h"

/* Carries out the call. With an If-Match, first `get`, the route of a GET of its path, or NULL: answers 412
 * when its answer has another tag, or there is none. Ends the call as its handler does. */
void precondition_begin(struct call *call, const struct route *get);

#endif
