/* One walk over the tensors of a config collects the storage kinds (enum pack_kind) of all matrices. */
#include "model/shape/nf4_skipped.h"

#include <string.h>

#include "model/shape/blocks.h"
#include "model/files/pack.h"
#include "model/shape/packing.h"

/* The storage kinds of a folder's matrices, collected during a walk over its tensors. */
struct nf4_walk {
    const struct model_config *config;
    uint8_t matrix[MODEL_LAYERS_MAX][MODEL_MATRICES];
    bool quantised, kept; /* whether any matrix of a layer is quantised, and whether any is not */
    uint8_t embedding, head, plain;
    uint8_t absent; /* the kind of matrices that the model lacks, so that these do not make layers differ */
    const json_t *skipped; /* names of skipped modules, or NULL when `kind` returns each tensor's kind */
    uint8_t (*kind)(const void *arg, const char *name);
    const void *arg;
};

static bool text_ends(const char *text, size_t length, const char *end)
{
    size_t size = strlen(end);
    return size <= length && memcmp(text + length - size, end, size) == 0;
}

static bool text_begins(const char *text, size_t length, const char *begin)
{
    size_t size = strlen(begin);
    return size <= length && memcmp(text, begin, size) == 0 &&
           (size == length || text[size] == '.' || text[size - 1] == '.');
}

/* Returns true if the module's name begins, up to a dot, or ends with one of the names. Names that are
 * regular expressions are ignored; in a folder with weights the tensors decide. */
static bool is_skipped(const json_t *names, const char *tensor)
{
    size_t length = strlen(tensor) - strlen(".weight");
    for (size_t i = 0; i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        if (name && name[0] != '\0' && (text_begins(tensor, length, name) || text_ends(tensor, length, name)))
            return true;
    }
    return false;
}

static int nf4_visit(const struct block_tensor *tensor, void *arg)
{
    struct nf4_walk *walk = arg;
    int site = packing_site(tensor->what);
    if (tensor->rank < 2 || tensor->bias)
        return 0;
    uint8_t kind = !walk->skipped                                        ? walk->kind(walk->arg, tensor->name)
                   : site < 0 || is_skipped(walk->skipped, tensor->name) ? walk->plain
                                                                         : (uint8_t)PACK_NF4;
    if (tensor->what == ARCH_EMBEDDING)
        walk->embedding = kind;
    else if (tensor->what == ARCH_HEAD)
        walk->head = kind;
    if (site < 0)
        return 0;
    uint32_t begin, end;
    block_tensor_layers(walk->config, tensor, &begin, &end);
    for (uint32_t layer = begin; layer < end; layer++) {
        uint8_t *at = &walk->matrix[layer][site];
        if (tensor->expert == 0)
            *at = kind;
        else if (*at != kind)
            *at = PACK_NF4; /* experts share one kind; if they differ, all count as quantised */
    }
    walk->quantised = walk->quantised || kind == PACK_NF4 || pack_from_file((enum pack_kind)kind);
    walk->kept = walk->kept || kind != PACK_NF4;
    return 0;
}

static void nf4_fill(struct nf4_walk *walk, struct model_config *config)
{
    struct model_packing *packing = &config->packing;
    memset(packing, 0, sizeof(*packing));
    walk->config = config;
    for (uint32_t i = 0; i < config->layers; i++)
        memset(walk->matrix[i], walk->absent, MODEL_MATRICES);
    model_block_tensors(config, 0, config->layers + 2, nf4_visit, walk);
    if (!walk->quantised || !walk->kept)
        return;
    packing->embedding = walk->embedding;
    packing->head = walk->head;
    for (uint32_t i = 0; i < config->layers; i++)
        packing->layer[i] = packing_way(packing, walk->matrix[i]);
    /* Where layers differ too much, all matrices count as quantised, as if none were skipped. */
    if (packing->ways > MODEL_PACKINGS_MAX)
        memset(packing, 0, sizeof(*packing));
}

static uint8_t plain_kind(const struct model_config *config)
{
    static const uint8_t plain[] = {[MODEL_F32] = PACK_F32, [MODEL_BF16] = PACK_BF16, [MODEL_F16] = PACK_F16};
    return plain[config->dtype];
}

static uint8_t mxfp4_kind(const void *arg, const char *name)
{
    return strstr(name, ".mlp.experts.") ? PACK_MXFP4 : plain_kind(arg);
}

void packing_of_mxfp4(struct model_config *config)
{
    struct nf4_walk walk = {.kind = mxfp4_kind, .arg = config, .absent = PACK_F32};
    nf4_fill(&walk, config);
}

void packing_of_skipped(const json_t *quantization, struct model_config *config)
{
    struct nf4_walk walk = {.plain = plain_kind(config),
                            .absent = PACK_NF4,
                            .skipped = json_object_get(quantization, "llm_int8_skip_modules")};
    if (json_array_size(walk.skipped) > 0)
        nf4_fill(&walk, config);
}

void packing_of_tensors(uint8_t (*kind)(const void *arg, const char *name), const void *arg,
                        struct model_config *config)
{
    struct nf4_walk walk = {.kind = kind, .arg = arg, .absent = config->expert_bias ? PACK_F32 : PACK_NF4};
    nf4_fill(&walk, config);
}
