/* Reads and writes LoRA adapters in peft's format: a folder with adapter_config.json and
 * adapter_model.safetensors.
 *
 * Keys are base_model.model.model.layers.N.self_attn.q_proj.lora_A.weight [rank, in] and …lora_B.weight [out,
 * rank] (mlp.gate_proj … for the FFN); of tables base_model.model.lm_head.lora_A.weight, and
 * base_model.model.model.embed_tokens.lora_embedding_A [rank, vocab] and …lora_embedding_B [hidden, rank],
 * beside which peft saves …base_layer.weight, the base's own table. Adapters of experts have the names of
 * each expert's matrices in the hub's files (mlp.experts.E.gate_proj, Mixtral's
 * block_sparse_moe.experts.E.w1), which peft converts to transformers 5's own layout; those of
 * target_parameters are in that layout, and are read as tensors of each expert (peft_experts.h).
 * modules_to_save are base_model.model.lm_head.weight and base_model.model.model.embed_tokens.weight, whole;
 * a tied model has both, with equal values. Keys of a language model inside a model that also reads images
 * begin with base_model.model.model.language_model. Also read are keys that end in lora_A.default.weight,
 * …original_module.weight (ignored), and an embedding or head that was saved beside the adapter and equals
 * the base's. Features that Motley does not compute are refused by name with ERR_UNSUPPORTED: use_dora, bias
 * other than "none", layer_replication, fan_in_fan_out, trainable_token_indices, and so on. */
#ifndef MOTLEY_MODEL_ADAPTERS_PEFT_H
#define MOTLEY_MODEL_ADAPTERS_PEFT_H

#include <jansson.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "model/adapters/peft_keys.h"
#include "model/shape/blocks.h"
#include "model/shape/lora_sites.h"
#include "model/files/safetensors.h"
#include "model/job/spec.h"
#include "model/shape/tensors.h"

struct peft_config {
    uint32_t rank;
    double alpha; /* the product is scaled by alpha / rank */
    double dropout;
    struct lora_rules lora;           /* the modules, and the patterns of rank and alpha */
    bool rslora;                      /* the product is scaled by alpha / sqrt(rank), not by alpha / rank */
    bool saves_embedding, saves_head; /* modules_to_save names embedding, head: they are trained whole */
    bool tied;                        /* ensure_weight_tying: the saved embedding also serves as the head */
    bool w_names;                     /* the FFN's targets are called w1, w3 and w2 (Mixtral) */
};

/* Resolves the positions of the config's adapters on a model. Errors are those of lora_sites_of(). */
int peft_sites(const struct peft_config *config, const struct model_config *model, struct lora_sites *sites,
               struct err *err);

/* Reads a parsed adapter_config.json. Keys of peft 0.3 to 0.21 that Motley does not support are accepted when
 * their value switches the feature off for peft, unknown keys when they are null, false or empty. All others
 * are refused by name, and so are values that peft does not load. peft_config_fini() releases the result;
 * after an error there is nothing to release. */
int peft_config_parse(const json_t *document, struct peft_config *config, struct err *err);
/* Releases a config. Safe on a zeroed struct and twice. */
void peft_config_fini(struct peft_config *config);
/* Returns a new document that peft 0.13 to 0.21 reads, with only the keys that all of them know, for adapters
 * of this model. With NULL for the model it is the config unchanged, for peft_config_parse(). base_model is
 * base_model_name_or_path, or NULL. Errors are those of peft_sites(). */
json_t *peft_config_to_json(const struct peft_config *config, const struct model_config *model,
                            const char *base_model, struct err *err);
/* Returns whether adapter_model.safetensors holds the trained embedding a second time, as PEFT_HEAD. A tied
 * model needs that: peft would train the tables apart, and only since 2025 has a key against it. */
bool peft_saves_twice(const struct peft_config *config);
#define PEFT_EMBEDDING "base_model.model.model.embed_tokens.weight"
#define PEFT_HEAD "base_model.model.lm_head.weight"

/* Returns the config of the adapter that a specification's method trains on a model. It borrows the
 * specification's rules, so peft_config_fini() must not be called on it. */
struct peft_config peft_config_of(const struct job_spec *spec, const struct model_config *model);
/* Refuses to continue from an adapter that differs from the one asked for (ERR_INVALID, naming the
 * difference). */
int peft_config_same(const struct peft_config *found, const struct peft_config *asked,
                     const struct model_config *model, struct err *err);

struct peft;

/* Opens an adapter folder and checks it against the model: every adapted matrix of every layer (and expert)
 * is present, shapes are right, there are no other keys, and a head is tied in both or in none. peft_close()
 * releases the result. */
int peft_open(const char *dir, const struct model_config *model, struct peft **peft, struct err *err);
/* Opens an adapter whose tensors are open already. Takes them, also on error. */
int peft_open_tensors(const void *config_json, size_t config_size, struct safetensors *weights,
                      const struct model_config *model, struct peft **peft, struct err *err);
/* Opens an adapter from the two files in memory, borrowed until close. */
int peft_open_memory(const void *config_json, size_t config_size, const void *safetensors, size_t size,
                     const struct model_config *model, struct peft **peft, struct err *err);
void peft_close(struct peft *peft);
const struct peft_config *peft_get_config(const struct peft *peft);
const struct lora_sites *peft_get_sites(const struct peft *peft);
/* Returns the tensors under their keys, with those of each expert in the place of target_parameters' own;
 * borrowed until close. One thread reads them. */
struct safetensors *peft_tensors(struct peft *peft);
/* Refuses (ERR_UNSUPPORTED) an embedding or a head that was saved beside the adapter (peft's
 * save_embedding_layers) and differs from the base's, which peft would replace with it. */
int peft_check_base(struct peft *peft, struct model *base, struct err *err);
/* Reads A [rank, in] (which 'A') or B [out, rank] (which 'B') of a layer (from 0) and one target as fp32;
 * 'count' must be the number of elements. */
int peft_read(struct peft *peft, uint32_t layer, uint32_t target, char which, float *dst, uint64_t count,
              struct err *err);

/* If peft_saves_twice(), adds the head to items[count], which has room, unless it is there. The head's values
 * are those of the embedding's item. Returns the number of items added. */
uint32_t peft_add_head(const struct peft_config *config, struct safetensors_item *items, uint32_t count);

/* Writes the folder, which is created: both files are complete, or neither is visible under its name. items
 * are the tensors under peft_name() names in any order; they are checked against config and model as
 * peft_open() does. */
int peft_write(const char *dir, const struct peft_config *config, const char *base_model,
               const struct model_config *model, const struct safetensors_item *items, uint32_t count,
               struct err *err);

#endif
