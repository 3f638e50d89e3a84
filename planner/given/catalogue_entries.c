/* The cards and processors of the catalogue. Each entry has dense peak rates and memory bandwidth as the
 * maker publishes them, the share of the peak that training reaches, and an uncertainty. A measured or
 * imported profile always takes precedence.
 *
 * The share is measured where somebody has published times of layers on the device: Cephalo
 * (benson-guo/cephalo and /zorse, MIT), read by tools/catalogue_rates.py, the median over its models.
 * Those entries are "imported". Elsewhere the share is a rule of thumb, 0.45 of the peak, which lies
 * between those medians (0.22 to 0.93): "estimated", 35 % uncertain. 16-bit peaks are of products
 * accumulated in 32 bits, as training needs. GeForce cards run such products at half the advertised rate
 * and come closer to it: the two measured cards (RTX 3090, A10G) reach 0.79 and 0.81, and the others are
 * assumed to reach 0.65, a value between these and the rule of thumb. No training on Intel's cards is
 * published: 0.3, 60 % uncertain.
 *
 * tools/catalogue_check.py compares these numbers with an independent database.
 *
 * Rates, memory, bandwidth and board power are the makers' own (each entry's `source`), dense rates at
 * boost clock. Cards before NVIDIA's Ampere and AMD's CDNA multiply float16 but not bfloat16 (`bf16`).
 * Where bfloat16 has a rate of its own (MI100), flops_16 is that rate.
 */
#include <string.h>

#include "planner/given/catalogue_entries.h"

#define GIB ((uint64_t)1 << 30)
#define TERA 1e12
#define GIGA 1e9

/* Columns: name, kind, architecture, GiB, dense peak TFLOP/s in fp32 and in 16 bits, the 16-bit format, GB/s,
 * board power in W, shares of both peaks, uncertainty, origin of the shares, source. */
#define ENTRY(n, k, a, mem, f32, f16, form, bw, w, s32, s16, unsure, from, sheet)                            \
    {.name = n,                                                                                              \
     .kind = k,                                                                                              \
     .arch = a,                                                                                              \
     .memory_bytes = (uint64_t)((mem) * (double)GIB),                                                        \
     .flops_fp32 = (f32) * TERA,                                                                             \
     .flops_16 = (f16) * TERA,                                                                               \
     .bf16 = (form),                                                                                         \
     .memory_bytes_per_s = (bw) * GIGA,                                                                      \
     .efficiency = s32,                                                                                      \
     .efficiency_16 = s16,                                                                                   \
     .board_watts = (w),                                                                                     \
     .uncertainty = unsure,                                                                                  \
     .origin = from,                                                                                         \
     .source = sheet}
#define CARD(n, k, a, mem, f32, f16, form, bw, w, sheet)                                                     \
    ENTRY(n, k, a, mem, f32, f16, form, bw, w, 0.45, 0.45, 0.35, ORIGIN_ESTIMATED, sheet)
/* A card whose 16-bit products with 32-bit sums run at half the rate of those with 16-bit sums. */
#define HALF(n, k, a, mem, f32, f16, form, bw, w, sheet)                                                     \
    ENTRY(n, k, a, mem, f32, f16, form, bw, w, 0.45, 0.65, 0.35, ORIGIN_ESTIMATED, sheet)
/* A card on which no published training is known. */
#define RARE(n, k, a, mem, f32, f16, form, bw, w, sheet)                                                     \
    ENTRY(n, k, a, mem, f32, f16, form, bw, w, 0.3, 0.3, 0.6, ORIGIN_ESTIMATED, sheet)
/* A card for which the shares of both peaks were measured. */
#define SEEN(n, k, a, mem, f32, f16, form, bw, w, s32, s16, sheet)                                           \
    ENTRY(n, k, a, mem, f32, f16, form, bw, w, s32, s16, 0.25, ORIGIN_IMPORTED,                              \
          sheet "; shares of peak: layers that Cephalo measured")
/* Sources that many entries have in common. */
#define GEFORCE(model) "NVIDIA GeForce " model " specifications"
#define GEFORCE_AS(model, chip) GEFORCE(model) " (16 bit: twice fp32, as " chip ")"
#define FP16 false /* the 16-bit rate holds for float16 only */
#define BF16 true  /* the 16-bit rate holds for bfloat16 as well */
/* Columns: name, architecture, GFLOP/s of one thread in fp32 and in 16 bits, source. 8 GiB stand where the
 * host does not state its own memory. */
#define CORE(n, a, f32, f16, why)                                                                            \
    {.name = n,                                                                                              \
     .kind = "cpu",                                                                                          \
     .arch = a,                                                                                              \
     .memory_bytes = 8 * GIB,                                                                                \
     .flops_fp32 = (f32) * GIGA,                                                                             \
     .flops_16 = (f16) * GIGA,                                                                               \
     .bf16 = true,                                                                                           \
     .memory_bytes_per_s = 10 * GIGA,                                                                        \
     .efficiency = 0.5,                                                                                      \
     .efficiency_16 = 0.5,                                                                                   \
     .uncertainty = 0.6,                                                                                     \
     .origin = ORIGIN_ESTIMATED,                                                                             \
     .source = "one thread: " why}

static const struct catalogue_entry entries[] = {
    /* Kepler, Maxwell, Pascal: only the P100 has useful 16-bit units; on the others 16-bit work runs in
     * fp32 */
    CARD("k80", "cuda", "sm_37", 12, 4.37, 0, FP16, 240, 150, "NVIDIA Tesla K80 data sheet, one die of two"),
    CARD("gtx-970", "cuda", "sm_52", 4, 3.9, 0, FP16, 224, 145, GEFORCE("GTX 970")),
    CARD("gtx-980", "cuda", "sm_52", 4, 5, 0, FP16, 224, 165, GEFORCE("GTX 980")),
    CARD("gtx-980ti", "cuda", "sm_52", 6, 6.1, 0, FP16, 336, 250, GEFORCE("GTX 980 Ti")),
    CARD("titan-x", "cuda", "sm_52", 12, 6.7, 0, FP16, 336, 250, GEFORCE("GTX Titan X")),
    CARD("m60", "cuda", "sm_52", 8, 4.8, 0, FP16, 160, 150, "NVIDIA Tesla M60 data sheet, one die of two"),
    CARD("m40", "cuda", "sm_52", 24, 7, 0, FP16, 288, 250, "NVIDIA Tesla M40 data sheet"),
    CARD("titan-x-pascal", "cuda", "sm_61", 12, 11, 0, FP16, 480, 250,
         "NVIDIA Titan X (Pascal) specifications"),
    CARD("titan-xp", "cuda", "sm_61", 12, 12.1, 0, FP16, 547, 250, "NVIDIA Titan Xp specifications"),
    CARD("gtx-1060", "cuda", "sm_61", 6, 4.4, 0, FP16, 192, 120, GEFORCE("GTX 1060 6GB")),
    CARD("gtx-1070", "cuda", "sm_61", 8, 6.5, 0, FP16, 256, 150, GEFORCE("GTX 1070")),
    CARD("gtx-1070ti", "cuda", "sm_61", 8, 8.2, 0, FP16, 256, 180, GEFORCE("GTX 1070 Ti")),
    CARD("gtx-1080", "cuda", "sm_61", 8, 8.9, 0, FP16, 320, 180, "NVIDIA GeForce GTX 1080 whitepaper"),
    CARD("gtx-1080ti", "cuda", "sm_61", 11, 11.3, 0, FP16, 484, 250, GEFORCE("GTX 1080 Ti")),
    CARD("p4", "cuda", "sm_61", 8, 5.5, 0, FP16, 192, 75, "NVIDIA Tesla P4 data sheet"),
    SEEN("p40", "cuda", "sm_61", 22.5, 11.8, 0, FP16, 346, 250, 0.39, 0.39, "NVIDIA Tesla P40 data sheet"),
    CARD("p5000", "cuda", "sm_61", 16, 8.9, 0, FP16, 288, 180, "NVIDIA Quadro P5000 data sheet"),
    CARD("p6000", "cuda", "sm_61", 24, 12.6, 0, FP16, 432, 250, "NVIDIA Quadro P6000 data sheet"),
    SEEN("p100", "cuda", "sm_60", 12, 9.3, 18.7, FP16, 549, 250, 0.52, 0.33,
         "NVIDIA Tesla P100 PCIe data sheet"),
    CARD("p100x16", "cuda", "sm_60", 16, 9.3, 18.7, FP16, 732, 250, "NVIDIA Tesla P100 PCIe data sheet"),
    CARD("p100-sxm2", "cuda", "sm_60", 16, 10.6, 21.2, FP16, 732, 300, "NVIDIA Tesla P100 SXM2 data sheet"),
    CARD("gp100", "cuda", "sm_60", 16, 10.3, 20.7, FP16, 717, 235, "NVIDIA Quadro GP100 data sheet"),
    /* cards of the generations Volta and Turing */
    SEEN("v100", "cuda", "sm_70", 16, 15.7, 125, FP16, 900, 300, 0.77, 0.61, "NVIDIA V100 data sheet"),
    SEEN("v100x32", "cuda", "sm_70", 32, 15.7, 125, FP16, 900, 300, 0.78, 0.61, "NVIDIA V100 data sheet"),
    SEEN("v100-pciex16", "cuda", "sm_70", 16, 14, 112, FP16, 900, 250, 0.91, 0.58, "NVIDIA V100 data sheet"),
    CARD("titan-v", "cuda", "sm_70", 12, 14.9, 110, FP16, 653, 250, "NVIDIA Titan V specifications"),
    CARD("gv100", "cuda", "sm_70", 32, 14.8, 118.5, FP16, 870, 250, "NVIDIA Quadro GV100 data sheet"),
    SEEN("t4", "cuda", "sm_75", 15, 8.1, 65, FP16, 320, 70, 0.47, 0.33, "NVIDIA T4 data sheet"),
    CARD("gtx-1660", "cuda", "sm_75", 6, 5, 0, FP16, 192, 120, GEFORCE("GTX 1660")),
    CARD("gtx-1660-super", "cuda", "sm_75", 6, 5, 0, FP16, 336, 125, GEFORCE("GTX 1660 Super")),
    CARD("gtx-1660ti", "cuda", "sm_75", 6, 5.4, 0, FP16, 288, 120, GEFORCE("GTX 1660 Ti")),
    HALF("rtx-2060", "cuda", "sm_75", 6, 6.5, 25.8, FP16, 336, 160, GEFORCE("RTX 2060")),
    HALF("rtx-2060x12", "cuda", "sm_75", 12, 7.2, 28.7, FP16, 336, 185, GEFORCE("RTX 2060 12GB")),
    HALF("rtx-2060-super", "cuda", "sm_75", 8, 7.2, 28.7, FP16, 448, 175, GEFORCE("RTX 2060 Super")),
    HALF("rtx-2070", "cuda", "sm_75", 8, 7.5, 29.9, FP16, 448, 175, "NVIDIA Turing architecture whitepaper"),
    HALF("rtx-2070-super", "cuda", "sm_75", 8, 9.1, 36.3, FP16, 448, 215, GEFORCE("RTX 2070 Super")),
    HALF("rtx-2080", "cuda", "sm_75", 8, 10.1, 40.3, FP16, 448, 215, "NVIDIA Turing architecture whitepaper"),
    HALF("rtx-2080-super", "cuda", "sm_75", 8, 11.2, 44.6, FP16, 496, 250, GEFORCE("RTX 2080 Super")),
    HALF("rtx-2080ti", "cuda", "sm_75", 11, 13.4, 53.8, FP16, 616, 250,
         "NVIDIA Turing architecture whitepaper"),
    CARD("titan-rtx", "cuda", "sm_75", 24, 16.3, 130.5, FP16, 672, 280, "NVIDIA Titan RTX specifications"),
    CARD("rtx-4000", "cuda", "sm_75", 8, 7.1, 57, FP16, 416, 160, "NVIDIA Quadro RTX 4000 data sheet"),
    CARD("rtx-5000", "cuda", "sm_75", 16, 11.2, 89.2, FP16, 448, 230, "NVIDIA Quadro RTX 5000 data sheet"),
    CARD("rtx-6000", "cuda", "sm_75", 24, 16.3, 130.5, FP16, 672, 295, "NVIDIA Quadro RTX 6000 data sheet"),
    CARD("rtx-8000", "cuda", "sm_75", 48, 16.3, 130.5, FP16, 672, 295, "NVIDIA Quadro RTX 8000 data sheet"),
    /* cards of the generation Ampere */
    HALF("rtx-3050", "cuda", "sm_86", 8, 9.1, 18.2, BF16, 224, 130, GEFORCE_AS("RTX 3050", "GA102")),
    HALF("rtx-3060", "cuda", "sm_86", 12, 12.7, 25.5, BF16, 360, 170, GEFORCE_AS("RTX 3060", "GA102")),
    HALF("rtx-3060ti", "cuda", "sm_86", 8, 16.2, 32.4, BF16, 448, 200, GEFORCE_AS("RTX 3060 Ti", "GA102")),
    HALF("rtx-3070", "cuda", "sm_86", 8, 20.3, 40.6, BF16, 448, 220, "NVIDIA Ampere GA102 whitepaper"),
    HALF("rtx-3070ti", "cuda", "sm_86", 8, 21.7, 43.5, BF16, 608, 290, GEFORCE_AS("RTX 3070 Ti", "GA102")),
    HALF("rtx-3080", "cuda", "sm_86", 10, 29.8, 59.5, BF16, 760, 320, "NVIDIA Ampere GA102 whitepaper"),
    HALF("rtx-3080x12", "cuda", "sm_86", 12, 30.6, 61.3, BF16, 912, 350,
         GEFORCE_AS("RTX 3080 12GB", "GA102")),
    HALF("rtx-3080ti", "cuda", "sm_86", 12, 34.1, 68.2, BF16, 912, 350, GEFORCE_AS("RTX 3080 Ti", "GA102")),
    SEEN("rtx-3090", "cuda", "sm_86", 24, 35.6, 71, BF16, 936, 350, 0.45, 0.79,
         "NVIDIA Ampere GA102 whitepaper (fp32: rule of thumb; 16 bit: one table)"),
    HALF("rtx-3090ti", "cuda", "sm_86", 24, 40, 80, BF16, 1008, 450, GEFORCE_AS("RTX 3090 Ti", "GA102")),
    CARD("a2000", "cuda", "sm_86", 6, 8, 31.9, BF16, 288, 70, "NVIDIA RTX A2000 data sheet"),
    CARD("a2000x12", "cuda", "sm_86", 12, 8, 31.9, BF16, 288, 70, "NVIDIA RTX A2000 12GB data sheet"),
    CARD("a4000", "cuda", "sm_86", 16, 19.2, 76.7, BF16, 448, 140, "NVIDIA RTX A4000 data sheet"),
    CARD("a4500", "cuda", "sm_86", 20, 23.7, 94.6, BF16, 640, 200, "NVIDIA RTX A4500 data sheet"),
    CARD("a5000", "cuda", "sm_86", 24, 27.8, 111.1, BF16, 768, 230, "NVIDIA RTX A5000 data sheet"),
    CARD("a5500", "cuda", "sm_86", 24, 34.1, 136.4, BF16, 768, 230, "NVIDIA RTX A5500 data sheet"),
    SEEN("a6000", "cuda", "sm_86", 47.99, 38.7, 154.8, BF16, 768, 300, 0.38, 0.51,
         "NVIDIA RTX A6000 data sheet"),
    CARD("a2", "cuda", "sm_86", 16, 4.5, 18, BF16, 200, 60, "NVIDIA A2 data sheet"),
    CARD("a16", "cuda", "sm_86", 16, 4.5, 17.9, BF16, 200, 62, "NVIDIA A16 data sheet, one GPU of four"),
    CARD("a10", "cuda", "sm_86", 24, 31.2, 125, BF16, 600, 150, "NVIDIA A10 data sheet"),
    SEEN("a10g", "cuda", "sm_86", 22.49, 31.2, 70, BF16, 600, 300, 0.48, 0.81, "NVIDIA A10G product brief"),
    CARD("a40", "cuda", "sm_86", 48, 37.4, 149.7, BF16, 696, 300, "NVIDIA A40 data sheet"),
    CARD("a30", "cuda", "sm_80", 24, 10.3, 165, BF16, 933, 165, "NVIDIA A30 data sheet"),
    SEEN("a100x40", "cuda", "sm_80", 40, 19.5, 312, BF16, 1555, 400, 0.93, 0.62, "NVIDIA A100 data sheet"),
    SEEN("a100x80", "cuda", "sm_80", 80, 19.5, 312, BF16, 2039, 400, 0.93, 0.68, "NVIDIA A100 data sheet"),
    /* Ada */
    HALF("rtx-4060", "cuda", "sm_89", 8, 15.1, 30.2, BF16, 272, 115, GEFORCE_AS("RTX 4060", "AD102")),
    HALF("rtx-4060ti", "cuda", "sm_89", 8, 22.1, 44.1, BF16, 288, 160, GEFORCE_AS("RTX 4060 Ti", "AD102")),
    HALF("rtx-4060tix16", "cuda", "sm_89", 16, 22.1, 44.1, BF16, 288, 165,
         GEFORCE_AS("RTX 4060 Ti 16 GB", "AD102")),
    HALF("rtx-4070", "cuda", "sm_89", 12, 29.1, 58.3, BF16, 504, 200, GEFORCE_AS("RTX 4070", "AD102")),
    HALF("rtx-4070-super", "cuda", "sm_89", 12, 35.5, 71, BF16, 504, 220,
         GEFORCE_AS("RTX 4070 Super", "AD102")),
    HALF("rtx-4070ti", "cuda", "sm_89", 12, 40.1, 80.2, BF16, 504, 285, GEFORCE_AS("RTX 4070 Ti", "AD102")),
    HALF("rtx-4070ti-super", "cuda", "sm_89", 16, 44.1, 88.2, BF16, 672, 285,
         GEFORCE_AS("RTX 4070 Ti Super", "AD102")),
    HALF("rtx-4080", "cuda", "sm_89", 16, 48.7, 97.5, BF16, 717, 320,
         "NVIDIA Ada GPU architecture whitepaper"),
    HALF("rtx-4080-super", "cuda", "sm_89", 16, 52.2, 104.4, BF16, 736, 320,
         GEFORCE_AS("RTX 4080 Super", "AD102")),
    HALF("rtx-4090", "cuda", "sm_89", 24, 82.6, 165.2, BF16, 1008, 450,
         "NVIDIA Ada GPU architecture whitepaper"),
    CARD("rtx-2000-ada", "cuda", "sm_89", 16, 12, 48, BF16, 224, 70, "NVIDIA RTX 2000 Ada data sheet"),
    CARD("rtx-4000-sff-ada", "cuda", "sm_89", 20, 19.2, 76.7, BF16, 280, 70,
         "NVIDIA RTX 4000 SFF Ada data sheet"),
    CARD("rtx-4000-ada", "cuda", "sm_89", 20, 26.7, 106.9, BF16, 360, 130, "NVIDIA RTX 4000 Ada data sheet"),
    CARD("rtx-4500-ada", "cuda", "sm_89", 24, 39.6, 158.5, BF16, 432, 210, "NVIDIA RTX 4500 Ada data sheet"),
    CARD("rtx-5000-ada", "cuda", "sm_89", 32, 65.3, 261.1, BF16, 576, 250, "NVIDIA RTX 5000 Ada data sheet"),
    CARD("rtx-6000-ada", "cuda", "sm_89", 48, 91.1, 364, BF16, 960, 300, "NVIDIA RTX 6000 Ada data sheet"),
    SEEN("l4", "cuda", "sm_89", 22.5, 30.3, 121, BF16, 300, 72, 0.22, 0.36, "NVIDIA L4 data sheet"),
    CARD("l20", "cuda", "sm_89", 48, 59.4, 119.5, BF16, 864, 275, "NVIDIA L20 data sheet"),
    CARD("l40", "cuda", "sm_89", 48, 90.5, 181, BF16, 864, 300, "NVIDIA L40 data sheet"),
    SEEN("l40s", "cuda", "sm_89", 44.99, 91.6, 362, BF16, 864, 350, 0.28, 0.45,
         "NVIDIA L40S data sheet (16 bit: rule of thumb)"),
    /* cards of the generations Hopper and Blackwell */
    CARD("h100", "cuda", "sm_90", 80, 66.9, 989, BF16, 3350, 700, "NVIDIA H100 data sheet (SXM)"),
    CARD("h100-pcie", "cuda", "sm_90", 80, 51.2, 756, BF16, 2000, 350, "NVIDIA H100 data sheet (PCIe)"),
    SEEN("h100-nvl", "cuda", "sm_90", 94, 60, 835, BF16, 3938, 400, 0.65, 0.42, "NVIDIA H100 NVL data sheet"),
    CARD("h200", "cuda", "sm_90", 139, 66.9, 989, BF16, 4800, 700, "NVIDIA H200 data sheet"),
    CARD("h200-nvl", "cuda", "sm_90", 139, 60, 835, BF16, 4800, 600, "NVIDIA H200 NVL data sheet"),
    CARD("h20", "cuda", "sm_90", 96, 44, 148, BF16, 4000, 400, "NVIDIA H20 data sheet"),
    CARD("gh200", "cuda", "sm_90", 96, 66.9, 989, BF16, 4000, 1000, "NVIDIA GH200 data sheet (HBM3)"),
    HALF("rtx-5050", "cuda", "sm_120", 8, 13.2, 26.3, BF16, 320, 130, GEFORCE_AS("RTX 5050", "GB202")),
    HALF("rtx-5060", "cuda", "sm_120", 8, 19.2, 38.4, BF16, 448, 145, GEFORCE_AS("RTX 5060", "GB202")),
    HALF("rtx-5060ti", "cuda", "sm_120", 8, 23.7, 47.4, BF16, 448, 180, GEFORCE_AS("RTX 5060 Ti", "GB202")),
    HALF("rtx-5060tix16", "cuda", "sm_120", 16, 23.7, 47.4, BF16, 448, 180,
         GEFORCE_AS("RTX 5060 Ti 16GB", "GB202")),
    HALF("rtx-5070", "cuda", "sm_120", 12, 30.9, 61.7, BF16, 672, 250,
         "NVIDIA RTX Blackwell architecture whitepaper"),
    HALF("rtx-5070ti", "cuda", "sm_120", 16, 43.9, 87.9, BF16, 896, 300,
         "NVIDIA RTX Blackwell architecture whitepaper"),
    HALF("rtx-5080", "cuda", "sm_120", 16, 56.3, 112.6, BF16, 960, 360,
         "NVIDIA RTX Blackwell architecture whitepaper"),
    HALF("rtx-5090", "cuda", "sm_120", 32, 104.8, 209.5, BF16, 1792, 575,
         "NVIDIA RTX Blackwell architecture whitepaper"),
    /* workstation cards: their 16-bit products run at the full rate, an eighth of the sparse FP4 rate */
    CARD("rtx-pro-2000", "cuda", "sm_120", 16, 17, 68, BF16, 288, 70,
         "NVIDIA RTX PRO 2000 Blackwell data sheet"),
    CARD("rtx-pro-4000", "cuda", "sm_120", 24, 36.8, 147.3, BF16, 672, 140,
         "NVIDIA RTX PRO 4000 Blackwell data sheet"),
    CARD("rtx-pro-4500", "cuda", "sm_120", 32, 50.5, 202.1, BF16, 896, 200,
         "NVIDIA RTX PRO 4500 Blackwell data sheet"),
    CARD("rtx-pro-5000", "cuda", "sm_120", 48, 66.9, 267.7, BF16, 1344, 300,
         "NVIDIA RTX PRO 5000 Blackwell data sheet"),
    CARD("rtx-pro-5000x72", "cuda", "sm_120", 72, 66.9, 267.7, BF16, 1344, 300,
         "NVIDIA RTX PRO 5000 Blackwell 72GB data sheet"),
    CARD("rtx-pro-6000", "cuda", "sm_120", 96, 126, 503.8, BF16, 1792, 600,
         "NVIDIA RTX PRO 6000 Blackwell data sheet"),
    CARD("rtx-pro-6000-max-q", "cuda", "sm_120", 96, 109.7, 438.9, BF16, 1792, 300,
         "NVIDIA RTX PRO 6000 Blackwell Max-Q data sheet"),
    HALF("gb10", "cuda", "sm_121", 119, 29.7, 59.4, BF16, 273, 140,
         "NVIDIA DGX Spark specifications (memory is shared with the CPU; 16 bit: twice fp32, as GB202)"),
    CARD("b200", "cuda", "sm_100", 180, 75, 2250, BF16, 8000, 1000,
         "NVIDIA DGX B200 data sheet, an eighth of it"),
    CARD("gb200", "cuda", "sm_100", 185, 80, 2500, BF16, 8000, 1200,
         "NVIDIA GB200 NVL72 data sheet, one GPU of 72"),
    CARD("b300", "cuda", "sm_103", 268, 75, 2250, BF16, 8000, 1400,
         "NVIDIA DGX B300 data sheet, an eighth of it"),
    /* AMD; a card with two dies has an entry for one die, as the system shows each die as a device */
    CARD("vega-56", "hip", "gfx900", 8, 10.5, 21, FP16, 410, 210, "AMD Radeon RX Vega 56 specifications"),
    CARD("vega-64", "hip", "gfx900", 8, 12.7, 25.3, FP16, 484, 295, "AMD Radeon RX Vega 64 specifications"),
    CARD("mi25", "hip", "gfx900", 16, 12.3, 24.6, FP16, 484, 300, "AMD Radeon Instinct MI25 data sheet"),
    CARD("mi50", "hip", "gfx906", 16, 13.3, 26.5, FP16, 1024, 300, "AMD Instinct MI50 data sheet"),
    CARD("mi50x32", "hip", "gfx906", 32, 13.3, 26.5, FP16, 1024, 300, "AMD Instinct MI50 data sheet"),
    CARD("radeon-vii", "hip", "gfx906", 16, 13.4, 26.9, FP16, 1024, 300, "AMD Radeon VII specifications"),
    CARD("mi60", "hip", "gfx906", 32, 14.7, 29.5, FP16, 1024, 300, "AMD Instinct MI60 data sheet"),
    CARD("mi100", "hip", "gfx908", 32, 46.1, 92.3, BF16, 1229, 300,
         "AMD Instinct MI100 data sheet (matrix rates; bfloat16, half of float16)"),
    CARD("mi210", "hip", "gfx90a", 64, 45.3, 181, BF16, 1638, 300,
         "AMD Instinct MI210 data sheet (matrix rates)"),
    CARD("mi250", "hip", "gfx90a", 64, 45.3, 181, BF16, 1638, 280,
         "AMD Instinct MI250 data sheet (matrix rates), one die of two"),
    CARD("mi250x", "hip", "gfx90a", 64, 47.9, 191.5, BF16, 1638, 280,
         "AMD Instinct MI250X data sheet (matrix rates), one die of two"),
    CARD("mi300x", "hip", "gfx942", 192, 163.4, 1307, BF16, 5300, 750, "AMD Instinct MI300X data sheet"),
    CARD("mi300a", "hip", "gfx942", 128, 122.6, 980.6, BF16, 5300, 760,
         "AMD Instinct MI300A data sheet (memory is shared with the CPU)"),
    CARD("mi325x", "hip", "gfx942", 256, 163.4, 1307, BF16, 6000, 1000, "AMD Instinct MI325X data sheet"),
    CARD("mi350x", "hip", "gfx950", 288, 144.2, 2307, BF16, 8000, 1000, "AMD Instinct MI350X data sheet"),
    CARD("mi355x", "hip", "gfx950", 288, 157.3, 2517, BF16, 8000, 1400, "AMD Instinct MI355X data sheet"),
    SEEN("w6800", "hip", "gfx1030", 32, 17.8, 35.7, FP16, 512, 250, 0.45, 0.38,
         "AMD Radeon Pro W6800 data sheet (fp32: rule of thumb)"),
    CARD("w7700", "hip", "gfx1101", 16, 32, 63.9, BF16, 576, 190, "AMD Radeon Pro W7700 data sheet"),
    CARD("w7800", "hip", "gfx1100", 32, 45.2, 90.5, BF16, 576, 260, "AMD Radeon Pro W7800 data sheet"),
    CARD("w7800x48", "hip", "gfx1100", 48, 45.2, 90.5, BF16, 864, 281,
         "AMD Radeon Pro W7800 48GB data sheet"),
    CARD("w7900", "hip", "gfx1100", 48, 61.3, 122.6, BF16, 864, 295, "AMD Radeon Pro W7900 data sheet"),
    CARD("rx-5700xt", "hip", "gfx1010", 8, 9.8, 19.5, FP16, 448, 225, "AMD Radeon RX 5700 XT specifications"),
    CARD("rx-6700xt", "hip", "gfx1031", 12, 13.2, 26.4, FP16, 384, 230,
         "AMD Radeon RX 6700 XT specifications"),
    CARD("rx-6800", "hip", "gfx1030", 16, 16.2, 32.3, FP16, 512, 250, "AMD Radeon RX 6800 specifications"),
    CARD("rx-6800xt", "hip", "gfx1030", 16, 20.7, 41.5, FP16, 512, 300,
         "AMD Radeon RX 6800 XT specifications"),
    CARD("rx-6900xt", "hip", "gfx1030", 16, 23, 46.1, FP16, 512, 300, "AMD Radeon RX 6900 XT specifications"),
    CARD("rx-6950xt", "hip", "gfx1030", 16, 23.7, 47.3, FP16, 576, 335,
         "AMD Radeon RX 6950 XT specifications"),
    CARD("rx-7600", "hip", "gfx1102", 8, 21.8, 43.5, BF16, 288, 165, "AMD Radeon RX 7600 specifications"),
    CARD("rx-7600xt", "hip", "gfx1102", 16, 22.6, 45.1, BF16, 288, 190,
         "AMD Radeon RX 7600 XT specifications"),
    CARD("rx-7700xt", "hip", "gfx1101", 12, 35.2, 70.3, BF16, 432, 245,
         "AMD Radeon RX 7700 XT specifications"),
    CARD("rx-7800xt", "hip", "gfx1101", 16, 37.3, 74.7, BF16, 624, 263,
         "AMD Radeon RX 7800 XT specifications"),
    CARD("rx-7900gre", "hip", "gfx1100", 16, 46, 92, BF16, 576, 260, "AMD Radeon RX 7900 GRE specifications"),
    CARD("rx-7900xt", "hip", "gfx1100", 20, 51.5, 103, BF16, 800, 315,
         "AMD Radeon RX 7900 XT specifications"),
    CARD("rx-7900xtx", "hip", "gfx1100", 24, 61.4, 122.8, BF16, 960, 355,
         "AMD Radeon RX 7900 XTX specifications"),
    CARD("rx-9060xt", "hip", "gfx1200", 8, 25.6, 103, BF16, 322, 150, "AMD Radeon RX 9060 XT specifications"),
    CARD("rx-9060xtx16", "hip", "gfx1200", 16, 25.6, 103, BF16, 322, 160,
         "AMD Radeon RX 9060 XT 16GB specifications"),
    CARD("rx-9070", "hip", "gfx1201", 16, 36.1, 145, BF16, 645, 220, "AMD Radeon RX 9070 specifications"),
    CARD("rx-9070xt", "hip", "gfx1201", 16, 48.7, 195, BF16, 645, 304,
         "AMD Radeon RX 9070 XT specifications"),
    CARD("r9700", "hip", "gfx1201", 32, 47.8, 191, BF16, 645, 300, "AMD Radeon AI Pro R9700 specifications"),
    CARD("strix-halo", "hip", "gfx1151", 96, 29.7, 59.4, BF16, 256, 120,
         "AMD Ryzen AI Max+ 395 specifications (40 CUs; as much memory as its BIOS gives the GPU)"),
    /* Intel */
    RARE("arc-a750", "xpu", "xe-hpg", 8, 17.2, 115, BF16, 512, 225,
         "Intel Arc A750 specifications (16 bit: half its INT8 rate)"),
    RARE("arc-a770", "xpu", "xe-hpg", 16, 19.7, 131, BF16, 560, 225,
         "Intel Arc A770 specifications (16 bit: half its INT8 rate)"),
    RARE("arc-b570", "xpu", "xe2-hpg", 10, 11.5, 101, BF16, 380, 150,
         "Intel Arc B570 specifications (16 bit: half its INT8 rate)"),
    RARE("arc-b580", "xpu", "xe2-hpg", 12, 13.7, 117, BF16, 456, 190,
         "Intel Arc B580 specifications (16 bit: half its INT8 rate)"),
    RARE("arc-pro-b50", "xpu", "xe2-hpg", 16, 10.7, 85, BF16, 224, 70,
         "Intel Arc Pro B50 specifications (16 bit: half its INT8 rate)"),
    RARE("arc-pro-b60", "xpu", "xe2-hpg", 24, 12.3, 98, BF16, 456, 200,
         "Intel Arc Pro B60 specifications (16 bit: half its INT8 rate)"),
    /* Processors: the rate of one thread, which is the vector width times a clock that is held under load. A
     * device's `threads` multiplies it. */
    CORE("cpu", "x86-64", 120, 120, "AVX2, two units of 8 lanes at 3.7 GHz"),
    CORE("cpu-sse42", "x86-64", 31, 31, "SSE, 4 lanes, multiply and add apart, at 3.9 GHz"),
    CORE("cpu-avx2", "x86-64", 120, 120, "AVX2, two units of 8 lanes at 3.7 GHz"),
    CORE("cpu-avx512", "x86-64", 180, 180, "AVX-512, two units of 16 lanes at 2.8 GHz"),
    CORE("cpu-avx512-bf16", "x86-64", 180, 360, "AVX-512 with BF16 products"),
    CORE("cpu-amx", "x86-64", 180, 2800, "AMX, 2048 16-bit operations a cycle at 2.8 GHz, half of it fed"),
    CORE("cpu-neon", "arm64", 96, 192, "NEON, four units of 4 lanes at 3 GHz"),
};

const struct catalogue_entry *catalogue_entries(size_t *count)
{
    *count = sizeof(entries) / sizeof(entries[0]);
    return entries;
}

/* Nicknames that are not the entry's own name with other punctuation, without makers and brands
 * (catalogue.c). A nickname of a card that is sold with two memory sizes means the smaller one. */
static const struct {
    const char *plain, *name;
} aliases[] = {
    {"gtxtitanx", "titan-x"},
    {"m4024gb", "m40"},
    {"p100pcie12gb", "p100"},
    {"p100x12", "p100"},
    {"p100pcie16gb", "p100x16"},
    {"p100sxm216gb", "p100-sxm2"},
    {"v100x16", "v100"},
    {"v100sxm216gb", "v100"},
    {"v100sxm232gb", "v100x32"},
    {"v100pcie32gb", "v100x32"},
    {"v100pcie16gb", "v100-pciex16"},
    {"v100pcie", "v100-pciex16"},
    {"rtxa4000", "a4000"},
    {"rtxa5000", "a5000"},
    {"rtxa6000", "a6000"},
    {"rtxa2000", "a2000"},
    {"rtxa200012gb", "a2000x12"},
    {"rtxa4500", "a4500"},
    {"gtx10606gb", "gtx-1060"},
    {"rtx4060ti16gb", "rtx-4060tix16"},
    {"rtx4060ti8gb", "rtx-4060ti"},
    {"vii", "radeon-vii"},
    {"provii", "radeon-vii"},
    {"a100", "a100x40"},
    {"a100sxm440gb", "a100x40"},
    {"a100pcie40gb", "a100x40"},
    {"a100sxm480gb", "a100x80"},
    {"a100sxm80gb", "a100x80"},
    {"a10080gbpcie", "a100x80"},
    {"a100pcie80gb", "a100x80"},
    {"h10080gbhbm3", "h100"},
    {"h100sxm", "h100"},
    {"h100sxm5", "h100"},
    {"gh200480gb", "gh200"},
    {"mi250xmi250", "mi250x"},
    {"rtxa5500", "a5500"},
    {"h800", "h100"},
    {"a800", "a100x80"},
    {"a800sxm480gb", "a100x80"},
    {"a80080gbpcie", "a100x80"},
    {"b300sxm6ac", "b300"},
    {"gb300", "b300"},
    {"rtxpro500072gb", "rtx-pro-5000x72"},
    {"rtx5060ti16gb", "rtx-5060tix16"},
    {"rtx206012gb", "rtx-2060x12"},
    {"rtx308012gb", "rtx-3080x12"},
    {"rx9060xt16gb", "rx-9060xtx16"},
    {"rxvega56", "vega-56"},
    {"rxvega64", "vega-64"},
    {"prow6800", "w6800"},
    {"prow7700", "w7700"},
    {"prow7800", "w7800"},
    {"prow780048gb", "w7800x48"},
    {"prow7900", "w7900"},
    {"aipror9700", "r9700"},
    {"8060s", "strix-halo"},
    {"aimax395", "strix-halo"},
    {"dgxspark", "gb10"},
};

const char *catalogue_alias(const char *plain)
{
    for (size_t i = 0; i < sizeof(aliases) / sizeof(aliases[0]); i++)
        if (strcmp(aliases[i].plain, plain) == 0)
            return aliases[i].name;
    return NULL;
}
