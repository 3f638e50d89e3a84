/* Answers to requests with an Idempotency-Key. store.h has the rules for callbacks, ownership and errors.
 *
 * A request claims its key before it changes anything. Its answer is kept with the key then, or the key is
 * given back when nothing was changed. So no request is carried out twice: if the process dies in between,
 * the key stays claimed for a day, and who asks again is told so.
 */
#ifndef MOTLEY_STORE_ANSWERS_H
#define MOTLEY_STORE_ANSWERS_H

#include "store/store.h"

struct store_answer_key {
    int64_t asker;      /* a user's id, or a node's token negated */
    const char *key;    /* 1..200 bytes; borrowed */
    uint8_t digest[32]; /* SHA-256 of the request */
};

/* Claims the key: {"claimed": true}; or, when an earlier request has it: {"claimed": false,"same": the
 * request was the same,"status": of its answer|null: it has none yet,"kept": its answer may be given again,
 * "body","age_s"}. */
int store_answer_claim(struct store *store, const struct store_answer_key *key, store_doc_fn *done, void *arg,
                       struct err *err);

/* Keeps the answer of a claimed key. `body` is JSON text or NULL; `kept` false: it may not be given again. */
int store_answer_keep(struct store *store, const struct store_answer_key *key, int status, const char *body,
                      bool kept, store_done_fn *done, void *arg, struct err *err);

/* Gives a claimed key back. */
int store_answer_drop(struct store *store, const struct store_answer_key *key, store_done_fn *done, void *arg,
                      struct err *err);

#endif
