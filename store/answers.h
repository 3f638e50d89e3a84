/* Answers to requests with an Idempotency-Key. store.h has the rules for callbacks, ownership and errors.
 *
 * A request claims its key before it changes anything. Afterwards its answer is kept with the key, or the key
 * is given back because nothing was changed. So no request is carried out twice: if the process dies in
 * between, the key stays claimed for a day, and a repeated request is told so.
 */
#ifndef MOTLEY_STORE_ANSWERS_H
#define MOTLEY_STORE_ANSWERS_H

#include "store/store.h"

struct store_answer_key {
    int64_t asker;      /* a user's id, or the negative id of a node's token */
    const char *key;    /* 1..200 bytes; borrowed */
    uint8_t digest[32]; /* SHA-256 of the request */
};

/* Claims the key. Answers {"claimed": true}; or, when an earlier request has claimed it, {"claimed": false,
 * "same": whether that request was the same, "status": HTTP status of its answer | null: there is no answer
 * yet, "kept": whether the answer may be given again, "body": the answer, "age_s": seconds since the
 * claim}. */
int store_answer_claim(struct store *store, const struct store_answer_key *key, store_doc_fn *done, void *arg,
                       struct err *err);

/* Keeps the answer of a claimed key. `body` is JSON text or NULL. With `kept` false the answer may not be
 * given again, and only its status is kept. */
int store_answer_keep(struct store *store, const struct store_answer_key *key, int status, const char *body,
                      bool kept, store_done_fn *done, void *arg, struct err *err);

/* Gives a claimed key back, so that the request can be repeated. */
int store_answer_drop(struct store *store, const struct store_answer_key *key, store_done_fn *done, void *arg,
                      struct err *err);

#endif
