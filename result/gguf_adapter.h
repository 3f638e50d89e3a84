/* Writes a LoRA adapter that llama.cpp loads (--lora) with a model that it converted from the same base.
 *
 * The GGUF file has general.type "adapter", adapter.type "lora", adapter.lora.alpha and, for each adapted
 * matrix, "blk.N.attn_q.weight.lora_a" [rank, in] and "….lora_b" [out, rank]; those of a layer's experts are
 * stacked, [experts, rank, in]. llama.cpp scales each by alpha / rank. If a target's factor differs (its own
 * alpha, rsLoRA), lora_b is multiplied by the rest. Rows of lora_b on q and k are in the order in which
 * llama.cpp stores the rows of q and k of that architecture. Metadata as llama.cpp's convert_lora_to_gguf.py
 * writes and its llama-adapter.cpp reads them.
 *
 * Memory: one adapter's matrix. The file is complete under its name or absent.
 */
#ifndef MOTLEY_RESULT_GGUF_ADAPTER_H
#define MOTLEY_RESULT_GGUF_ADAPTER_H

#include "model/job/spec.h"
#include "model/shape/tensors.h"
#include "result/state.h"

/* Writes the file. SPEC_DTYPE_BASE means fp32. Errors: ERR_UNSUPPORTED (an architecture or a matrix without a
 * name in GGUF), ERR_INVALID (no adapters, or modules that were trained whole, which such a file cannot
 * hold), ERR_NOT_FINITE, ERR_IO. */
int result_gguf_adapter(const char *path, const struct model *base, const struct result_state *state,
                        enum spec_result_dtype dtype, struct err *err);

#endif
