/* LoRA adapters as `peft` writes and reads them: a folder with adapter_config.json and
 * adapter_model.safetensors.
 *
 * Keys are base_model.model.model.layers.N.self_attn.q_proj.lora_A.weight [rank, in] and …lora_B.weight
 * [out, rank] (mlp.gate_proj … for the FFN); adapters of experts stand under the names that the hub's files
 * give each expert's matrices (mlp.experts.E.gate_proj, Mixtral's block_sparse_moe.experts.E.w1), which peft
 * turns into what transformers 5 has instead. modules_to_save: base_model.model.lm_head.weight and
 * base_model.model.model.embed_tokens.weight, whole; of a tied model both, equal. Of a language model inside
 * one that sees, too, they begin with base_model.model.model.language_model. What is read beside that:
 * keys that end in lora_A.default.weight, …original_module.weight (passed over), and an embedding or head
 * that was saved beside the adapter and equals the base's. What we do not compute is refused by its name,
 * ERR_UNSUPPORTED: use_dora, bias other than "none", layer_replication,
 * target_parameters, fan_in_fan_out, trainable_token_indices, and so on.
 */
#ifndef MOTLEY_MODEL_ADAPTERS_PEFT_H
#define MOTLEY_MODEL_ADAPTERS_PEFT_H

#include <jansson.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "model/shape/blocks.h"
#include "model/shape/lora_sites.h"
#include "model/files/safetensors.h"
#include "model/job/spec.h"
#include "model/shape/tensors.h"

struct peft_config {
    uint32_t rank;
    double alpha; /* the product is scaled by alpha / rank */
    double dropout;
    struct lora_rules lora;           /* which modules; patterns of rank and alpha */
    bool rslora;                      /* scaled by alpha / sqrt(rank) */
    bool saves_embedding, saves_head; /* modules_to_save */
    bool tied;                        /* ensure_weight_tying: the embedding that is saved is the head, too */
    bool w_names;                     /* the FFN's targets are called w1, w3 and w2 (Mixtral) */
};

/* Where such adapters are on a model. Errors as lora_sites_of() has them. */
int peft_sites(const struct peft_config *config, const struct model_config *model, struct lora_sites *sites,
               struct err *err);

/* Read adapter_config.json, parsed. Keys of peft 0.3 to 0.21 are let pass where their value switches them off
 * for peft, unknown ones where it is null, false or empty; any other is refused by name, as are values that
 * peft does not load. peft_config_fini() releases; nothing is held
 * after an error. */
int peft_config_parse(const json_t *document, struct peft_config *config, struct err *err);
/* Safe on a zeroed struct and twice. */
void peft_config_fini(struct peft_config *config);
/* As peft 0.13 to 0.21 read it, with the keys that all of them know, for adapters of this model; with NULL
 * for the model the config as it is, for peft_config_parse(). base_model: base_model_name_or_path, or NULL.
 * Returns new. Errors of peft_sites(). */
json_t *peft_config_to_json(const struct peft_config *config, const struct model_config *model,
                            const char *base_model, struct err *err);
/* Whether adapter_model.safetensors holds the trained embedding a second time, as PEFT_HEAD: of a tied model,
 * where peft would train them apart, and only since 2025 has a key that says otherwise. */
bool peft_saves_twice(const struct peft_config *config);
#define PEFT_EMBEDDING "base_model.model.model.embed_tokens.weight"
#define PEFT_HEAD "base_model.model.lm_head.weight"

/* What a specification's method makes on a model. Borrows the specification's rules: not for
 * peft_config_fini(). */
struct peft_config peft_config_of(const struct job_spec *spec, const struct model_config *model);
/* Refuse (ERR_INVALID, naming what differs) an adapter to go on from that is not what is asked for. */
int peft_config_same(const struct peft_config *found, const struct peft_config *asked,
                     const struct model_config *model, struct err *err);

struct peft;

/* Open an adapter folder and check it against the model: every adapted matrix of every layer (and expert)
 * there, shapes right, no other keys; a head that is tied there is tied here. peft_close() releases. */
int peft_open(const char *dir, const struct model_config *model, struct peft **peft, struct err *err);
/* The same from the two files in memory, borrowed until close. */
int peft_open_memory(const void *config_json, size_t config_size, const void *safetensors, size_t size,
                     const struct model_config *model, struct peft **peft, struct err *err);
void peft_close(struct peft *peft);
const struct peft_config *peft_get_config(const struct peft *peft);
const struct lora_sites *peft_get_sites(const struct peft *peft);
/* The tensors, under their keys. Borrowed until close. */
struct safetensors *peft_tensors(struct peft *peft);
/* A tensor by the key that peft writes; NULL. Finds "….lora_A.default.weight" for "….lora_A.weight", and
 * "base_model.model.model.language_model.…" for "base_model.model.model.…", too. */
const struct safetensors_tensor *peft_find(const struct safetensors *weights, const char *key);
/* Refuse (ERR_UNSUPPORTED) an embedding or a head that was saved beside the adapter (peft's
 * save_embedding_layers) and is not the base's own: peft would load it over that. */
int peft_check_base(struct peft *peft, struct model *base, struct err *err);
/* Read A [rank, in] (which 'A') or B [out, rank] (which 'B') of a layer (from 0) and one target as fp32;
 * 'count' must be the number of elements. */
int peft_read(struct peft *peft, uint32_t layer, uint32_t target, char which, float *dst, uint64_t count,
              struct err *err);

/* The key of a parameter of the adapter or of modules_to_save, NUL-terminated, by its name here
 * ("model.layers.3.self_attn.q_proj.lora_A.weight"). 0, or -1 if it does not fit. */
int peft_name(const struct model_config *model, const char *parameter, char *name, size_t size);
/* The key of an adapter tensor, NUL-terminated, into name[128]: "base_model.model.model.layers.3…". */
void peft_key(uint32_t layer, uint32_t target, char which, char name[128]);

/* Where peft_saves_twice(), add the head to items[count], which has room, unless it is there. Returns how
 * many were added; the values are those of the embedding's item. */
uint32_t peft_add_head(const struct peft_config *config, struct safetensors_item *items, uint32_t count);

/* Write the folder: both files complete or neither visible under its name. items hold the tensors under
 * peft_key() names in any order; they are checked against config and model as peft_open() would. Creates dir.
 */
int peft_write(const char *dir, const struct peft_config *config, const char *base_model,
               const struct model_config *model, const struct safetensors_item *items, uint32_t count,
               struct err *err);

#endif
