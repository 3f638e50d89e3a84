/* Finds in a file's header how its layers are packed, and writes this to JSON and reads it back. */
#include "model/shape/packing.h"

#include <string.h>

#include "model/shape/arch.h"
#include "model/shape/blocks.h"
#include "model/files/pack.h"

enum { PACKING_MATRICES_FIRST = 9 }; /* matrices of a layer in the first lists that were written */

int packing_site(enum arch_tensor tensor)
{
    if (tensor >= ARCH_Q && tensor <= ARCH_PER_LAYER_MODEL)
        return (int)(tensor - ARCH_Q);
    if (tensor >= ARCH_EXPERT_GATE && tensor <= ARCH_EXPERT_DOWN)
        return (int)(tensor - ARCH_EXPERT_GATE) + __builtin_ctz(LORA_GATE);
    return -1;
}

uint8_t packing_way(struct model_packing *packing, const uint8_t matrix[MODEL_MATRICES])
{
    uint32_t kept = packing->ways < MODEL_PACKINGS_MAX ? packing->ways : MODEL_PACKINGS_MAX;
    for (uint32_t way = 0; way < kept; way++)
        if (memcmp(packing->matrix[way], matrix, MODEL_MATRICES) == 0)
            return (uint8_t)way;
    if (packing->ways >= MODEL_PACKINGS_MAX) {
        packing->ways = MODEL_PACKINGS_MAX + 1;
        return 0;
    }
    memcpy(packing->matrix[packing->ways], matrix, MODEL_MATRICES);
    return (uint8_t)packing->ways++;
}

void packing_of_gguf(const struct gguf *gguf, struct model_config *config)
{
    static uint8_t const plain[MODEL_MATRICES];
    uint8_t matrix[MODEL_LAYERS_MAX][MODEL_MATRICES];
    struct model_packing *packing = &config->packing;
    bool quantised = false;
    memset(packing, 0, sizeof(*packing));
    for (uint32_t i = 0; i < config->layers; i++)
        memcpy(matrix[i], plain, sizeof(plain));
    for (uint32_t i = 0; i < gguf_tensor_count(gguf); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(gguf, i);
        struct arch_match match;
        if (tensor->rank < 2 || !arch_match_gguf(config->arch, tensor->name, &match) ||
            strcmp(match.suffix, ".bias") == 0) /* experts' biases have two dimensions */
            continue;
        enum pack_kind pack = pack_of_type(tensor->type);
        int site = packing_site(match.parts[0]);
        if (match.parts[0] == ARCH_EMBEDDING)
            packing->embedding = (uint8_t)pack;
        if (match.parts[0] == ARCH_HEAD)
            packing->head = (uint8_t)pack;
        if (site < 0 || match.layer >= config->layers)
            continue;
        quantised = quantised || pack_from_file(pack);
        matrix[match.layer][site] = (uint8_t)pack;
    }
    for (uint32_t i = 0; quantised && i < config->layers; i++)
        packing->layer[i] = packing_way(packing, matrix[i]);
    if (!quantised)
        memset(packing, 0, sizeof(*packing));
}

bool packing_is_nf4(const struct model_packing *packing)
{
    uint32_t kept = packing->ways < MODEL_PACKINGS_MAX ? packing->ways : MODEL_PACKINGS_MAX;
    for (uint32_t way = 0; way < kept; way++)
        for (uint32_t m = 0; m < MODEL_MATRICES; m++)
            if (packing->matrix[way][m] == PACK_NF4)
                return true;
    return false;
}

static json_t *kind_json(uint8_t kind)
{
    if (kind == PACK_NF4)
        return json_string("NF4");
    return json_string(tensor_type_name(pack_type((enum pack_kind)kind)));
}

json_t *packing_to_json(const struct model_config *config)
{
    const struct model_packing *packing = &config->packing;
    uint32_t kept = packing->ways < MODEL_PACKINGS_MAX ? packing->ways : MODEL_PACKINGS_MAX;
    if (packing->ways == 0)
        return NULL;
    json_t *ways = json_array(), *layers = json_array();
    for (uint32_t way = 0; way < kept; way++) {
        json_t *kinds = json_array();
        for (uint32_t m = 0; m < MODEL_MATRICES; m++)
            json_array_append_new(kinds, kind_json(packing->matrix[way][m]));
        json_array_append_new(ways, kinds);
    }
    for (uint32_t i = 0; i < config->layers; i++)
        json_array_append_new(layers, json_integer(packing->layer[i]));
    return json_pack("{s:o, s:o, s:i, s:o, s:o}", "embedding", kind_json(packing->embedding), "head",
                     kind_json(packing->head), "count", (int)packing->ways, "ways", ways, "layers", layers);
}

/* Converts the name of a tensor type to its storage kind (enum pack_kind); -1 if there is none. */
static int kind_parse(const json_t *name)
{
    const char *text = json_string_value(name);
    if (text && strcmp(text, "NF4") == 0)
        return PACK_NF4;
    for (int type = 0; text && type < TENSOR_TYPE_COUNT; type++)
        if (strcmp(tensor_type_name((enum tensor_type)type), text) == 0)
            return (int)pack_of_type((enum tensor_type)type);
    return -1;
}

static int invalid(const char *key, struct err *err)
{
    return err_set(err, ERR_INVALID, "motley_packing.%s: missing, or no type or way that is known", key);
}

static int ways_parse(const json_t *ways, struct model_packing *packing, struct err *err)
{
    uint32_t kept = packing->ways < MODEL_PACKINGS_MAX ? packing->ways : MODEL_PACKINGS_MAX;
    if (json_array_size(ways) != kept)
        return invalid("ways", err);
    for (uint32_t way = 0; way < kept; way++)
        for (uint32_t m = 0; m < MODEL_MATRICES; m++) {
            const json_t *kinds = json_array_get(ways, way);
            /* an earlier list ends where the matrices begin that were not known then */
            bool earlier = json_array_size(kinds) >= PACKING_MATRICES_FIRST && m >= json_array_size(kinds);
            int kind = earlier ? PACK_F32 : kind_parse(json_array_get(kinds, m));
            if (kind < 0)
                return invalid("ways", err);
            packing->matrix[way][m] = (uint8_t)kind;
        }
    return 0;
}

int packing_parse(const json_t *document, struct model_config *config, struct err *err)
{
    struct model_packing packing;
    memset(&packing, 0, sizeof(packing));
    memset(&config->packing, 0, sizeof(config->packing));
    if (!document)
        return 0;
    json_int_t count = json_integer_value(json_object_get(document, "count"));
    const json_t *layers = json_object_get(document, "layers");
    int embedding = kind_parse(json_object_get(document, "embedding")),
        head = kind_parse(json_object_get(document, "head"));
    if (count < 1 || count > MODEL_PACKINGS_MAX + 1)
        return invalid("count", err);
    if (embedding < 0 || head < 0)
        return invalid(head < 0 ? "head" : "embedding", err);
    packing.ways = (uint32_t)count;
    packing.embedding = (uint8_t)embedding;
    packing.head = (uint8_t)head;
    if (ways_parse(json_object_get(document, "ways"), &packing, err) < 0)
        return -1;
    if (json_array_size(layers) != config->layers)
        return invalid("layers", err);
    for (uint32_t i = 0; i < config->layers; i++) {
        const json_t *way = json_array_get(layers, i);
        if (!json_is_integer(way) || json_integer_value(way) < 0 || json_integer_value(way) >= count ||
            json_integer_value(way) >= MODEL_PACKINGS_MAX)
            return invalid("layers", err);
        packing.layer[i] = (uint8_t)json_integer_value(way);
    }
    config->packing = packing;
    return 0;
}
