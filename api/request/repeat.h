/* Requests that are sent again: Idempotency-Key on every POST.
 *
 * The key is looked up before the handler runs, and claimed if it is new. The handler's answer is kept before
 * it is sent; an answer that is an error gives the key back. Loop thread.
 */
#ifndef MOTLEY_API_REQUEST_REPEAT_H
#define MOTLEY_API_REQUEST_REPEAT_H

#include "api/request/app.h"

/* Calls the route's handler, or answers a request whose key was used before. */
void repeat_begin(struct call *call);

#endif
