/* Registered models, uploaded files (blobs) and encoded data sets. Everything
 * is known by its content: SHA-256 as 64 lower-case hex digits.
 */
#ifndef MOTLEY_STORE_MODELS_H
#define MOTLEY_STORE_MODELS_H

#include "store/store.h"

struct store_model_new {
    const char *name;     /* 1..200 bytes */
    const char *content;  /* content id of its manifest */
    const json_t *config; /* config.json as parsed */
    const json_t *files;  /* [{"name","size","sha256","path"?}]; `path` only for by-reference models */
    const json_t *info;   /* anything to show: {"parameters": …, "architecture": …} or NULL */
    int64_t owner;
};
/* Registers or re-points the name (older jobs keep their content id). Idempotent. */
int store_model_put(struct store *store, const struct store_model_new *model, store_done_fn *done, void *arg,
                    struct err *err);
/* {"name","content","config","files","info","created"}; by name or content id; ERR_NOT_FOUND names it. */
int store_model_get(struct store *store, const char *name_or_content, store_doc_fn *done, void *arg,
                    struct err *err);
/* {"models":[as above without config and files]} by name. */
int store_model_list(struct store *store, store_doc_fn *done, void *arg, struct err *err);
/* Forgets the name. Jobs that use the content keep it. */
int store_model_remove(struct store *store, const char *name, store_done_fn *done, void *arg,
                       struct err *err);

struct store_blob {
    const char *sha256;
    int64_t size;     /* bytes */
    const char *path; /* by-reference file of an administrator, else NULL (under the api's blob folder) */
    const json_t *manifest; /* chunk hashes: {"chunk": 4194304, "sha256": ["…"]} or NULL */
};
/* Records a verified, durable file. Idempotent. */
int store_blob_put(struct store *store, const struct store_blob *blob, store_done_fn *done, void *arg,
                   struct err *err);
/* {"sha256","size","path"|null,"manifest"|null}; ERR_NOT_FOUND. */
int store_blob_get(struct store *store, const char *sha256, store_doc_fn *done, void *arg, struct err *err);

/* Forgets files under the api's folder that nothing refers to and nobody asked for or sent in the last
 * `unused_s` seconds, looking at the `most` oldest: {"sha256": [those forgotten, now the caller's to remove],
 * "looked_at": n}. What is referred to counts as used now, so that the next call looks further. */
int store_blobs_drop(struct store *store, double unused_s, int64_t most, store_doc_fn *done, void *arg,
                     struct err *err);

#define STORE_SIZES_MAX (64u << 20)
struct store_dataset_new {
    const char *key;  /* SHA-256 over source blob, tokenizer, template, sequence_tokens, learn: encode once */
    const char *blob; /* sha256 of the encoded rows */
    const void
        *sizes; /* per row two little-endian uint32 (struct row_size of model/rows.h): tokens, labelled */
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
/* The data set under `key`, borrowed for the callback. ERR_NOT_FOUND. */
int store_dataset_get(struct store *store, const char *key, store_dataset_fn *done, void *arg,
                      struct err *err);

#endif
