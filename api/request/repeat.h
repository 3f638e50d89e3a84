/* Idempotency-Key on every POST: recognises requests that are sent again.
 *
 * The key is looked up before the handler runs, and claimed if it is new. The handler's answer is kept before
 * it is sent; if the answer is an error, the key is given back. Loop thread.
 */
#ifndef MOTLEY_API_REQUEST_REPEAT_H
#define MOTLEY_API_REQUEST_REPEAT_H

#include "api/request/app.h"

/* Calls the route's handler, or answers a request whose key was used before. */
void repeat_begin(struct call *call);

#endif
