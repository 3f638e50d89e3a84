/* Registered models, uploaded files (blobs) and encoded data sets. Everything
 * is known by its content: SHA-256 as 64 lower-case hex digits.
 */
#ifndef MOTLEY_STORE_MODELS_H
#define MOTLEY_STORE_MODELS_H

#include "store/principal.h"
#include "store/store.h"

struct store_model_new {
    const char *name;     /* 1..200 bytes, without '/' */
    const char *content;  /* content id of its manifest */
    const json_t *config; /* config.json as parsed */
    const json_t *files;  /* [{"name","size","sha256","path"?}]; `path` only for by-reference models */
    const json_t *info;   /* anything to show: {"parameters": …, "architecture": …} or NULL */
    struct sharing sharing;
};
/* Registers or re-points the owner's name (older jobs keep their content id). Idempotent. The owner is who
 * asks. ERR_INVALID: a group that they are not in. */
int store_model_put(struct store *store, const struct principal *owner, const struct store_model_new *model,
                    store_done_fn *done, void *arg, struct err *err);
/* {"name","owner","visibility","group"|null,"content","config","files","info","created"}. `called`:
 * "owner/name"; a bare name, which is one's own first, then the oldest of those that one may see; or a
 * content id that one may use (name and owner then are of a name that one may see, or the id and null).
 * ERR_NOT_FOUND names it. */
int store_model_get(struct store *store, const struct principal *principal, const char *called,
                    store_doc_fn *done, void *arg, struct err *err);
/* {"models":[as above without config and files]} by name. */
int store_model_list(struct store *store, const struct principal *principal, store_doc_fn *done, void *arg,
                     struct err *err);
/* Forgets the name. Jobs that use the content keep it. ERR_DENIED for another's that one may see. */
int store_model_remove(struct store *store, const struct principal *principal, const char *called,
                       store_doc_fn *done, void *arg, struct err *err);

struct store_blob {
    const char *sha256;
    int64_t size;     /* bytes */
    const char *path; /* by-reference file of an administrator, else NULL (under the api's blob folder) */
    const json_t *manifest; /* chunk hashes: {"chunk": 4194304, "sha256": ["…"]} or NULL */
};
/* Records a verified, durable file, which `principal` holds from then on (a service: nobody). Idempotent. */
int store_blob_put(struct store *store, const struct principal *principal, const struct store_blob *blob,
                   store_done_fn *done, void *arg, struct err *err);
/* {"sha256","size","path"|null,"manifest"|null}. ERR_NOT_FOUND also for one that may not be read. */
int store_blob_get(struct store *store, const struct principal *principal, const char *sha256,
                   store_doc_fn *done, void *arg, struct err *err);
/* As store_blob_get, and `principal` holds it from then on: they sent it again. */
int store_blob_hold(struct store *store, const struct principal *principal, const char *sha256,
                    store_doc_fn *done, void *arg, struct err *err);
/* Bytes of the files that a person sent and that are kept: answered as the id. */
int store_sent_bytes(struct store *store, int64_t user, store_id_fn *done, void *arg, struct err *err);
/* A person is about to submit a job of these: whatever they name stays theirs to read. */
int store_hold_job(struct store *store, const struct principal *principal, const json_t *spec,
                   const json_t *inputs, store_done_fn *done, void *arg, struct err *err);

/* Forgets files under the api's folder that nothing refers to and nobody asked for or sent in the last
 * `unused_s` seconds, looking at the `most` oldest: {"sha256": [those forgotten, now the caller's to remove],
 * "looked_at": n}. What is referred to counts as used now, so that the next call looks further. */
int store_blobs_drop(struct store *store, double unused_s, int64_t most, store_doc_fn *done, void *arg,
                     struct err *err);

#define STORE_SIZES_MAX (64u << 20)
struct store_dataset_new {
    const char *key;  /* SHA-256 over source blob, tokenizer, template, sequence_tokens, learn: encode once */
    const char *blob; /* sha256 of the encoded rows */
    const void *
        sizes; /* per row two little-endian uint32 (struct row_size of model/rows/rows.h): tokens, labelled */
    size_t sizes_bytes;  /* 8 a row; at most STORE_SIZES_MAX */
    const json_t *stats; /* {"rows","tokens","labelled","truncated","dropped","lengths": histogram …} */
};
int store_dataset_put(struct store *store, const struct store_dataset_new *dataset, store_done_fn *done,
                      void *arg, struct err *err);
struct store_dataset {
    const char *key, *blob;
    const json_t *stats;
    const uint8_t *sizes; /* as in store_dataset_new */
    size_t sizes_bytes;
};
typedef void store_dataset_fn(void *arg, const struct err *err, const struct store_dataset *dataset);
/* The data set under `key`, borrowed for the callback. ERR_NOT_FOUND. For whom is asked with
 * store_dataset_may. */
int store_dataset_get(struct store *store, const char *key, store_dataset_fn *done, void *arg,
                      struct err *err);
/* May `principal` use the data set under `key`, which may not be there yet, made of the file `source`? They
 * may when they may read the file, used the data set before, or may see a job with it. Else ERR_NOT_FOUND. */
int store_dataset_may(struct store *store, const struct principal *principal, const char *key,
                      const char *source, store_done_fn *done, void *arg, struct err *err);

#endif
