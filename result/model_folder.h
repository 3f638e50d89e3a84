/* A trained model as a Hugging Face folder that transformers loads as it is.
 *
 * Every tensor of the base model is written under its own name: as it was trained (full fine-tuning, saved
 * modules), with its adapter added (W + scale · B A, in fp32, as peft's merge_and_unload has it), or as it
 * is. Files: model.safetensors, or shards with model.safetensors.index.json; config.json (the base's, with
 * the dtype written and without a quantisation; from the metadata for a GGUF); tokenizer, template and
 * generation files copied. A tied head is not written a second time; one that was trained apart from its
 * embedding is written and unties it.
 *
 * Memory: what one piece of a tensor takes (1 MiB of values or one row, thrice), and one adapter's A. A
 * folder is complete under its name or not there at all. Equal inputs give equal bytes.
 */
#ifndef MOTLEY_RESULT_MODEL_FOLDER_H
#define MOTLEY_RESULT_MODEL_FOLDER_H

#include "model/job/spec.h"
#include "model/shape/tensors.h"
#include "result/state.h"

#define RESULT_SHARD_BYTES 5000000000u /* of tensors in a file, as save_pretrained's "5GB" */

struct result_folder_options {
    const char *dir;              /* replaced if it is there; its parent must be */
    enum spec_result_dtype dtype; /* SPEC_DTYPE_BASE: each tensor as stored, fp32 where that is quantised */
    uint64_t shard_bytes;         /* 0: RESULT_SHARD_BYTES. A larger tensor has a file of its own */
};

/* Write it. Borrows all. Errors: ERR_INVALID (what was trained has another shape than the base's tensor; a
 * value that fp16 cannot hold, named by its tensor), ERR_NOT_FINITE, ERR_IO, and what reading gives. */
int result_model_folder(struct model *base, const struct result_state *state,
                        const struct result_folder_options *options, struct err *err);

#endif
