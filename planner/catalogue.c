/* Devices one does not own: peak rates and memory bandwidth as their makers publish them, a stated share of
 * peak that training reaches, and a stated uncertainty. A measured or imported profile always wins. */
#include <string.h>

#include "planner/cluster_private.h"

#define GIB ((uint64_t)1 << 30)
#define TERA 1e12
#define GIGA 1e9

/* name, kind, memory, dense peak fp32 and 16-bit (tensor cores where there are), memory bandwidth */
#define GPU(n, mem, f32, f16, bw)                                                                            \
    {                                                                                                        \
        .name = n, .kind = "cuda", .memory_bytes = (uint64_t)((mem) * (double)GIB),                          \
        .flops_fp32 = (f32)*TERA, .flops_16 = (f16)*TERA, .memory_bytes_per_s = (bw)*GIGA,                   \
        .efficiency = 0.45, .uncertainty = 0.35, .source = "data sheet"                                      \
    }

static const struct catalogue_entry entries[] = {
    GPU("a100x40", 40, 19.5, 312, 1555),
    GPU("a100x80", 80, 19.5, 312, 2039),
    GPU("a10g", 22.49, 31.2, 70, 600),
    GPU("a6000", 47.99, 38.7, 154.8, 768),
    GPU("h100", 80, 66.9, 989, 3350),
    GPU("h100-nvl", 94, 60, 835, 3938),
    GPU("h200", 139, 66.9, 989, 4800),
    GPU("gh200", 96, 66.9, 989, 4000),
    GPU("l4", 22.5, 30.3, 121, 300),
    GPU("l40s", 44.99, 91.6, 362, 864),
    GPU("p100", 12, 9.3, 18.7, 549),
    GPU("p40", 22.5, 11.8, 0.18, 346),
    GPU("m40", 24, 6.8, 0, 288),
    GPU("titan-x", 12, 6.7, 0, 336),
    GPU("titan-rtx", 24, 16.3, 130, 672),
    GPU("rtx-2080", 8, 10.1, 80.5, 448),
    GPU("rtx-3090", 24, 35.6, 142, 936),
    GPU("rtx_3090", 24, 35.6, 142, 936),
    GPU("rtx3090", 24, 35.6, 142, 936),
    GPU("rtx-4090", 24, 82.6, 330, 1008),
    GPU("t4", 15, 8.1, 65, 300),
    GPU("v100", 16, 15.7, 125, 900),
    GPU("v100x16", 16, 15.7, 125, 900),
    GPU("v100-pciex16", 16, 14, 112, 900),
    GPU("v100x32", 32, 15.7, 125, 900),
    GPU("mi100", 32, 23.1, 184.6, 1229),
    GPU("mi210", 64, 22.6, 181, 1638),
    GPU("mi250", 64, 22.6, 181, 1638),
    GPU("mi300x", 192, 163.4, 1307, 5300),
    GPU("w6800", 32, 17.8, 35.7, 512),
    {.name = "cpu",
     .kind = "cpu",
     .memory_bytes = 8 * GIB,
     .flops_fp32 = 1.2e11,
     .flops_16 = 1.2e11,
     .memory_bytes_per_s = 2e10,
     .efficiency = 0.5,
     .uncertainty = 0.6,
     .source = "one thread with AVX2, rule of thumb"},
    {.name = "cpu-avx512",
     .kind = "cpu",
     .memory_bytes = 8 * GIB,
     .flops_fp32 = 1.8e11,
     .flops_16 = 1.8e11,
     .memory_bytes_per_s = 2e10,
     .efficiency = 0.5,
     .uncertainty = 0.6,
     .source = "one thread with AVX-512, rule of thumb"},
};

#define ENTRY_COUNT (sizeof(entries) / sizeof(entries[0]))

const struct catalogue_entry *catalogue_find(const char *name)
{
    for (size_t i = 0; i < ENTRY_COUNT; i++) {
        if (strcmp(entries[i].name, name) == 0)
            return &entries[i];
    }
    return NULL;
}

json_t *cluster_catalogue(struct err *err)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < ENTRY_COUNT; i++) {
        const struct catalogue_entry *e = &entries[i];
        json_t *item = json_pack(
            "{s:s,s:s,s:I,s:f,s:f,s:f,s:f,s:f,s:s,s:s}", "name", e->name, "kind", e->kind, "memory_bytes",
            (json_int_t)e->memory_bytes, "flops_fp32", e->flops_fp32, "flops_16", e->flops_16,
            "memory_bytes_per_s", e->memory_bytes_per_s, "efficiency", e->efficiency, "uncertainty",
            e->uncertainty, "origin", cost_origin_name(ORIGIN_ESTIMATED), "source", e->source);
        if (json_array_append_new(list, item) < 0) {
            json_decref(list);
            list = NULL;
        }
    }
    if (!list) {
        err_set(err, ERR_NOMEM, "catalogue: out of memory");
        return NULL;
    }
    return json_pack("{s:o}", "devices", list);
}
