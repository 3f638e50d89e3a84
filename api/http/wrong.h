/* Counts wrong tokens per address, so that a client that guesses or is misconfigured can be told to wait.
 *
 * The limit is a rate per address (the generic cell rate algorithm, a form of token bucket): WRONG_BURST at
 * once, then one every WRONG_SECONDS_EACH. Only wrong tokens count, and only requests with wrong tokens are
 * told to wait. A right token is never refused or delayed, even from an address over its limit, since many
 * clients may share one address. The table has a fixed size: a new address replaces the one that has been
 * quiet longest. The clock is passed in. Loop thread.
 */
#ifndef MOTLEY_API_HTTP_WRONG_H
#define MOTLEY_API_HTTP_WRONG_H

#include <stdbool.h>
#include <stdint.h>

#include "api/http/address.h"
#include "common/err.h"

enum { WRONG_BURST = 20, WRONG_SECONDS_EACH = 2, WRONG_ADDRESS_BYTES = ADDRESS_BYTES };

struct wrong;

/* Returns new, or NULL with ERR_NOMEM. */
struct wrong *wrong_create(struct err *err);
void wrong_destroy(struct wrong *wrong);

/* Counts a wrong token from 'address' (IPv6, or IPv4 mapped into it; of IPv6 the first 64 bits count) at
 * 'now_ns' of a monotonic clock. Returns 0 within the rate, else the whole seconds after which a further
 * token would be within the rate. *first is set when this token is the first one over the limit. */
unsigned wrong_note(struct wrong *wrong, const uint8_t address[WRONG_ADDRESS_BYTES], uint64_t now_ns,
                    bool *first);

#endif
