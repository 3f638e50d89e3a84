/* Writes a trained model as a Hugging Face folder that transformers loads.
 *
 * Every tensor of the base model is written under its own name: as it was trained (full fine-tuning, saved
 * modules), with its adapter added (W + scale · B A, in fp32, as peft's merge_and_unload does), or unchanged.
 * Files: model.safetensors, or shards with model.safetensors.index.json; config.json (the base's, with the
 * written dtype and without a quantisation; for a GGUF from its metadata); copies of the tokenizer, template
 * and generation files. A tied head is not written twice; a head that was trained apart from its embedding is
 * written and unties it.
 *
 * Memory: three times one piece of a tensor (1 MiB of values or one row), and one adapter's A. A folder is
 * complete under its name or absent. Equal inputs give equal bytes.
 */
#ifndef MOTLEY_RESULT_MODEL_FOLDER_H
#define MOTLEY_RESULT_MODEL_FOLDER_H

#include "model/job/spec.h"
#include "model/shape/tensors.h"
#include "result/state.h"

#define RESULT_SHARD_BYTES 5000000000u /* most bytes of tensors in a file, as save_pretrained's "5GB" */

struct result_folder_options {
    const char *dir;              /* replaced if it exists; its parent must exist */
    enum spec_result_dtype dtype; /* SPEC_DTYPE_BASE: each tensor's stored dtype, fp32 if that is quantised */
    uint64_t shard_bytes;         /* 0 means RESULT_SHARD_BYTES; a larger tensor has a file of its own */
};

/* Writes the folder. Borrows everything. Errors: ERR_INVALID (a trained tensor has another shape than the
 * base's; a value that fp16 cannot hold, named by its tensor), ERR_NOT_FINITE, ERR_IO, and the errors of
 * reading. */
int result_model_folder(struct model *base, const struct result_state *state,
                        const struct result_folder_options *options, struct err *err);

#endif
