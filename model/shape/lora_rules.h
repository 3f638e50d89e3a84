/* What peft's LoraConfig says about where adapters are: target_modules, exclude_modules, layers_to_transform,
 * layers_pattern, rank_pattern and alpha_pattern, as they stand in a specification's method (target_modules
 * is `targets` there) and in adapter_config.json. Kept as written; lora_sites.h says what they mean for a
 * model.
 */
#ifndef MOTLEY_MODEL_SHAPE_LORA_RULES_H
#define MOTLEY_MODEL_SHAPE_LORA_RULES_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "common/json.h"
#include "model/shape/names.h"

enum {
    LORA_NAMES_MAX = 2048,       /* names in a list, keys in a pattern, numbers of layers */
    LORA_EXPRESSION_BYTES = 1024 /* of a regular expression, the NUL included */
};

/* Modules by name or by the end of it ("self_attn.q_proj"), or by one regular expression that the whole name
 * matches; neither: none. */
struct lora_modules {
    struct spec_names names;
    char *expression; /* owned, or NULL */
};

/* A key is a name, the end of one, or a regular expression of either; the first that matches counts. */
struct lora_pattern {
    char *key; /* owned */
    double value;
};
struct lora_patterns {
    uint32_t count;
    struct lora_pattern *list; /* owned, in the order given */
};

struct lora_rules {
    bool all_linear; /* targets: "all-linear" */
    struct lora_modules targets;
    struct lora_modules exclude;
    uint32_t layer_count; /* 0: all layers */
    uint32_t *layers;     /* owned; from 0 */
    bool layers_one;      /* written as a number, not as a list */
    struct spec_names layers_pattern;
    struct lora_patterns ranks, alphas;
};

/* Read the six keys, `targets` under the name given (a literal), from the object of 'reader'; what is absent
 * stays as it is. rank_max and alpha_max bound the patterns' numbers. Expressions are compiled, so that a bad
 * one is refused here. Errors are the reader's; who gives up calls lora_rules_fini() all the same. */
void lora_rules_read(struct json_reader *reader, const char *targets, uint32_t rank_max, double alpha_min,
                     double alpha_max, struct lora_rules *rules);
/* Set the six keys of an object as lora_rules_read() takes them; rename (or NULL) gives another name for a
 * single module's ("gate_proj"). ERR_NOMEM. */
int lora_rules_write(const struct lora_rules *rules, const char *targets, const char *(*rename)(const char *),
                     json_t *object, struct err *err);
/* Release what was read. Safe on a zeroed struct and twice. */
void lora_rules_fini(struct lora_rules *rules);

#endif
