/* A LoRA adapter as llama.cpp loads it beside a model that it converted from the same base (--lora).
 *
 * A GGUF file of general.type "adapter", adapter.type "lora", adapter.lora.alpha, and for each adapted matrix
 * "blk.N.attn_q.weight.lora_a" [rank, in] and "….lora_b" [out, rank]; those of a layer's experts are stacked,
 * [experts, rank, in]. llama.cpp scales every one by alpha / rank: where a target's factor is another (its
 * own alpha, rsLoRA) lora_b is multiplied by what is missing. Rows of lora_b on q and k stand in the order in
 * which llama.cpp keeps the rows of q and k of that architecture. Metadata as llama.cpp's
 * convert_lora_to_gguf.py writes and its llama-adapter.cpp reads them.
 *
 * Memory: one adapter's matrix. The file is complete under its name or not there at all.
 */
#ifndef MOTLEY_RESULT_GGUF_ADAPTER_H
#define MOTLEY_RESULT_GGUF_ADAPTER_H

#include "model/job/spec.h"
#include "model/shape/tensors.h"
#include "result/state.h"

/* Write it. dtype: SPEC_DTYPE_BASE is fp32. Errors: ERR_UNSUPPORTED (an architecture or a matrix that has no
 * name in GGUF), ERR_INVALID (no adapters, or modules trained whole, which such a file cannot hold),
 * ERR_NOT_FINITE, ERR_IO. */
int result_gguf_adapter(const char *path, const struct model *base, const struct result_state *state,
                        enum spec_result_dtype dtype, struct err *err);

#endif
