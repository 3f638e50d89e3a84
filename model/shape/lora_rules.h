/* The keys of peft's LoraConfig that place adapters: target_modules, target_parameters, exclude_modules,
 * layers_to_transform, layers_pattern, rank_pattern and alpha_pattern, as written in a specification's method
 * (where target_modules is called `targets`) or in adapter_config.json. lora_sites.h resolves them for a
 * model. */
#ifndef MOTLEY_MODEL_SHAPE_LORA_RULES_H
#define MOTLEY_MODEL_SHAPE_LORA_RULES_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "common/json.h"
#include "model/shape/names.h"

enum {
    LORA_NAMES_MAX = 2048,       /* limit of the names in a list, the keys in a pattern and the layers in a
                                  * list */
    LORA_EXPRESSION_BYTES = 1024 /* bytes of a regular expression, the NUL included */
};

/* Selects modules by name or by the end of it ("self_attn.q_proj"), or by one regular expression that the
 * whole name matches. With neither it selects none. */
struct lora_modules {
    struct spec_names names;
    char *expression; /* owned, or NULL */
};

/* Values by module. A key is a module's name, the end of a name, or a regular expression for either; the
 * first key that matches a module gives its value. */
struct lora_pattern {
    char *key; /* owned */
    double value;
};
struct lora_patterns {
    uint32_t count;
    struct lora_pattern *list; /* owned, in the order given */
};

struct lora_rules {
    bool all_linear; /* targets were written as "all-linear" */
    struct lora_modules targets;
    struct spec_names parameters; /* names, or ends of them, of tensors of all experts of a layer */
    struct lora_modules exclude;
    uint32_t layer_count; /* 0 means all layers */
    uint32_t *layers;     /* owned; layers count from 0 */
    bool layers_one;      /* layers were written as a number, not as a list */
    struct spec_names layers_pattern;
    struct lora_patterns ranks, alphas;
};

/* Reads the seven keys from the object of 'reader'; 'targets', a string literal, is the key that holds
 * target_modules. Fields of absent keys stay as they are. rank_max, alpha_min and alpha_max bound the
 * patterns' numbers. Expressions are compiled, so that a bad one is refused here. Errors are the reader's;
 * the caller calls lora_rules_fini() also after an error. */
void lora_rules_read(struct json_reader *reader, const char *targets, uint32_t rank_max, double alpha_min,
                     double alpha_max, struct lora_rules *rules);
/* Sets the seven keys of an object, target_parameters only where there are some, so that lora_rules_read()
 * reads the same rules; rename (or NULL) replaces the name of a single module ("gate_proj"). ERR_NOMEM. */
int lora_rules_write(const struct lora_rules *rules, const char *targets, const char *(*rename)(const char *),
                     json_t *object, struct err *err);
/* Releases the rules. Safe on a zeroed struct and twice. */
void lora_rules_fini(struct lora_rules *rules);

#endif
