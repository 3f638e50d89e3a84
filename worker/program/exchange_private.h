/* Declarations that ops.c, apart.c and exchange.c share, for expert plans, in which attention and experts may
 * be on different ranks (experts.h). */
#ifndef MOTLEY_WORKER_PROGRAM_EXCHANGE_PRIVATE_H
#define MOTLEY_WORKER_PROGRAM_EXCHANGE_PRIVATE_H

#include "worker/program/ops_private.h"

/* The matrices of routed tokens (hidden states, weights of the chosen experts, their numbers), one row a
 * token, in the order in which a slot holds them and messages carry them. */
enum routed_matrix { ROUTED_X, ROUTED_WEIGHT, ROUTED_CHOSEN, ROUTED_MATRICES };

/* The ranks that the tokens of one layer and micro-batch were sent to. Kept from the forward DISPATCH to the
 * last exchange of the backward pass. */
struct routing {
    uint16_t *to;    /* [tokens · active] ranks that each of this rank's tokens was sent to, rising;
                        EXCHANGE_NONE for unused entries */
    uint32_t *sent;  /* [ranks] tokens sent to each rank */
    uint32_t *came;  /* [ranks] tokens received from each rank */
    uint32_t tokens; /* the sum of `came` */
};
#define EXCHANGE_NONE UINT16_MAX

/* Makes ops->exchange, ops->own_micro and the buffers of the slots that exchanges use; leaves NULL if the
 * plan is no expert plan. ERR_NOFIT, ERR_NOMEM. */
int exchange_make(struct ops *ops, struct err *err);
/* Ends the exchange's thread. Call it before the mesh is closed. NULL is a no-op, as in exchange_destroy. */
void exchange_stop(struct exchange *exchange);
void exchange_destroy(struct exchange *exchange);
/* Begins DISPATCH or COMBINE; exec_done follows. */
int exchange_begin(struct ops *ops, uint32_t number, const struct instr *instr, struct err *err);
struct routing *exchange_routing(struct ops *ops, const struct instr *instr);
/* Returns the byte offset of a matrix in a slot that holds `tokens` routed tokens. */
uint64_t exchange_matrix_at(const struct ops *ops, uint64_t tokens, enum routed_matrix matrix);
/* Whether a DISPATCH or COMBINE sends from ranks with attention to ranks with experts; otherwise it sends
 * back. */
bool exchange_goes_out(const struct instr *instr);

/* --- apart.c --- */

/* Whether the instruction is ATTENTION, ROUTE, DISPATCH, EXPERTS or COMBINE. */
bool apart_has(const struct instr *instr);
/* Sets ops->own_micro to the rows of each micro-batch whose attention this rank computes. */
void apart_run_begin(struct ops *ops);
/* Returns what this worker does not support about the instruction, or about its range of rows; NULL when it
 * supports the instruction. */
const char *apart_lacks(const struct ops *ops, int kind, const struct instr *instr);
/* Runs ATTENTION, ROUTE or EXPERTS. */
int apart_compute(struct ops *ops, const struct instr *instr, struct err *err);

#endif
