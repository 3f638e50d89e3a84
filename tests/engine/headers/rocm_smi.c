/* Compares our declarations of ROCm SMI with AMD's rocm_smi.h. */
#include <stdbool.h>

#include <rocm_smi/rocm_smi.h>

#include "engine/gpu/health_rocm_smi.c"
#include "tests/engine/headers/same.h"

SAME(RSMI_OK, RSMI_STATUS_SUCCESS);
SAME(TEMPERATURE_EDGE, RSMI_TEMP_TYPE_EDGE);
SAME(TEMPERATURE_HOTSPOT, RSMI_TEMP_TYPE_JUNCTION);
SAME(TEMPERATURE_NOW, RSMI_TEMP_CURRENT);
SAME(LINK_XGMI, RSMI_IOLINK_TYPE_XGMI);
SAME(1ull << (BLOCKS - 1), RSMI_GPU_BLOCK_FUSE);
SAME(0, RSMI_MEM_TYPE_VRAM);

SAME_SIZE(struct rsmi_version, rsmi_version_t);
SAME_FIELD(struct rsmi_version, major, rsmi_version_t, major);
SAME_FIELD(struct rsmi_version, patch, rsmi_version_t, patch);
SAME_FIELD(struct rsmi_errors, uncorrected, rsmi_error_count_t, uncorrectable_err);
_Static_assert(sizeof(struct rsmi_errors) >= sizeof(rsmi_error_count_t), "room for what the library writes");
_Static_assert(METRICS_BYTES >= sizeof(rsmi_gpu_metrics_t), "room for what the library writes");
SAME_FIELD(struct rsmi_metrics, format, rsmi_gpu_metrics_t, common_header.format_revision);
SAME_FIELD(struct rsmi_metrics, content, rsmi_gpu_metrics_t, common_header.content_revision);
SAME_FIELD(struct rsmi_metrics, clocks_mhz[0], rsmi_gpu_metrics_t, current_gfxclk);
SAME_FIELD(struct rsmi_metrics, throttle, rsmi_gpu_metrics_t, throttle_status);
#ifdef RSMI_MAX_NUM_GFX_CLKS /* since ROCm 6 */
SAME_FIELD(struct rsmi_metrics, reasons, rsmi_gpu_metrics_t, indep_throttle_status);
#else
_Static_assert(sizeof(rsmi_gpu_metrics_t) <= offsetof(struct rsmi_metrics, reasons), "reasons stay 0");
#endif
