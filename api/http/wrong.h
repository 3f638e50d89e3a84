/* How often an address showed a wrong token: who guesses, or is set up wrongly, is told to wait.
 *
 * A rate per address (the cell-rate form of a token bucket): WRONG_BURST at once, then one every
 * WRONG_SECONDS_EACH. Only wrong tokens count and only they are answered so: a right one is never refused or
 * delayed, also from an address over its limit (many may share one). A fixed table: addresses beyond it push
 * out those that have been quiet longest. Pure but for its memory: the clock is passed in. Loop thread.
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

/* One more wrong token from 'address' (IPv6, or IPv4 mapped into it; of IPv6 the first 64 bits count) at
 * 'now_ns' of a clock that does not go back. Returns 0: within the rate; or the whole seconds until the next
 * would be. *first is set when this is the one with which the address goes over. */
unsigned wrong_note(struct wrong *wrong, const uint8_t address[WRONG_ADDRESS_BYTES], uint64_t now_ns,
                    bool *first);

#endif
