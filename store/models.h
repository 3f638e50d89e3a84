/* Registered models, uploaded files (blobs) and encoded data sets. Each is identified by its content: a
 * SHA-256 as 64 lower-case hex digits.
 */
#ifndef MOTLEY_STORE_MODELS_H
#define MOTLEY_STORE_MODELS_H

#include "store/principal.h"
#include "store/store.h"

struct store_model_new {
    const char *name;     /* 1..200 bytes, without '/' */
    const char *content;  /* content id of the model's manifest */
    const json_t *config; /* config.json as parsed */
    /* [{"name","size","sha256","path"?}]; `path` only for models that are registered by reference */
    const json_t *files;
    const json_t *info; /* facts for people, such as {"parameters": …, "architecture": …}; or NULL */
    const json_t *base; /* {"name","revision"?}: what adapters name as their base; or NULL */
    struct sharing sharing;
    bool fetched; /* the server fetched it of the Hub, and its bytes count as uploaded by the owner */
};
/* Registers a name for the owner, who is the asker, or points the name to other content; older jobs keep
 * their content id. Idempotent. ERR_INVALID for a group that the owner is not in. */
int store_model_put(struct store *store, const struct principal *owner, const struct store_model_new *model,
                    store_done_fn *done, void *arg, struct err *err);
/* Answers {"name","owner","visibility","group"|null,"content","config","files","info","base"|null,
 * "created"}. `called` is
 * "owner/name"; or a bare name, which means the asker's own model, else the oldest one that the asker may
 * see; or a content id that the asker may use (the answer then has a name and an owner that the asker may
 * see, or else the id as name and null as owner). ERR_NOT_FOUND names what was called. */
int store_model_get(struct store *store, const struct principal *principal, const char *called,
                    store_doc_fn *done, void *arg, struct err *err);
/* Answers {"models":[…]} in order of names, each as store_model_get answers but without config and files. */
int store_model_list(struct store *store, const struct principal *principal, store_doc_fn *done, void *arg,
                     struct err *err);
/* Removes the name. Jobs that use the content keep it. ERR_DENIED for another person's model that the asker
 * may see. */
int store_model_remove(struct store *store, const struct principal *principal, const char *called,
                       store_doc_fn *done, void *arg, struct err *err);

struct store_blob {
    const char *sha256;
    int64_t size; /* bytes */
    /* path of a file that an administrator registered by reference; NULL: the file is in the API's blob
     * folder */
    const char *path;
    const json_t *manifest; /* chunk hashes: {"chunk": 4194304, "sha256": ["…"]}, or NULL */
};
/* Records a verified file that is durably stored. `principal` may read it from then on (nothing changes for a
 * service). Idempotent. */
int store_blob_put(struct store *store, const struct principal *principal, const struct store_blob *blob,
                   store_done_fn *done, void *arg, struct err *err);
/* Answers {"sha256","size","path"|null,"manifest"|null}. ERR_NOT_FOUND also for a file that `principal` may
 * not read. */
int store_blob_get(struct store *store, const struct principal *principal, const char *sha256,
                   store_doc_fn *done, void *arg, struct err *err);
/* Does the same as store_blob_get; in addition, `principal` may read the file from then on, since they
 * uploaded it again. */
int store_blob_hold(struct store *store, const struct principal *principal, const char *sha256,
                    store_doc_fn *done, void *arg, struct err *err);
/* Answers, as the id, the total bytes of the stored files that the user uploaded and of the models that the
 * server fetched for them, but for those of the Hub's model `but` (OWNER/NAME, or NULL). */
int store_sent_bytes(struct store *store, int64_t user, const char *but, store_id_fn *done, void *arg,
                     struct err *err);
/* Lets `principal` keep reading all files of a job that they are about to submit. */
int store_hold_job(struct store *store, const struct principal *principal, const json_t *spec,
                   const json_t *inputs, store_done_fn *done, void *arg, struct err *err);

/* Forgets files of the API's folder that nothing refers to and that nobody read or uploaded in the last
 * `unused_s` seconds. One call looks at the `most` least recently used files. Answers {"sha256": [the
 * forgotten files, which the caller must delete], "looked_at": n}. A file that something refers to counts as
 * used now, so that the next call looks at other files. */
int store_blobs_drop(struct store *store, double unused_s, int64_t most, store_doc_fn *done, void *arg,
                     struct err *err);

#define STORE_SIZES_MAX (64u << 20)
struct store_dataset_new {
    /* SHA-256 over the source blob, the tokenizer, the template, sequence_tokens and learn, so that equal
     * inputs are encoded once */
    const char *key;
    const char *blob; /* sha256 of the encoded rows */
    /* two little-endian uint32 per row: tokens and labelled tokens (struct row_size of
     * model/rows/rows.h) */
    const void *sizes;
    size_t sizes_bytes;  /* 8 per row; at most STORE_SIZES_MAX */
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
/* Answers the data set under `key`, borrowed for the callback. ERR_NOT_FOUND when there is none. The function
 * does not check permission: see store_dataset_may. */
int store_dataset_get(struct store *store, const char *key, store_dataset_fn *done, void *arg,
                      struct err *err);
/* Checks whether `principal` may use the data set under `key`, which is made of the file `source` and may not
 * exist yet. The principal may if they may read the file, have used the data set before, or may see a job
 * that uses it. Otherwise ERR_NOT_FOUND. */
int store_dataset_may(struct store *store, const struct principal *principal, const char *key,
                      const char *source, store_done_fn *done, void *arg, struct err *err);

#endif
