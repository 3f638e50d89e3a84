/* Compares our declarations of NVML with NVIDIA's nvml.h. */
#include <nvml.h>

#include "engine/gpu/health_nvml.c"
#include "tests/engine/headers/same.h"

SAME(NVML_OK, NVML_SUCCESS);
SAME(NVML_INSUFFICIENT_SIZE, NVML_ERROR_INSUFFICIENT_SIZE);
SAME(NVML_GPU_IS_LOST, NVML_ERROR_GPU_IS_LOST);
SAME(NVML_RESET_REQUIRED, NVML_ERROR_RESET_REQUIRED);
SAME(NVML_VERSION_MISMATCH, NVML_ERROR_LIB_RM_VERSION_MISMATCH);
SAME(SENSOR_GPU, NVML_TEMPERATURE_GPU);
SAME(CLOCK_SM, NVML_CLOCK_SM);
SAME(ECC_UNCORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED);
SAME(ECC_VOLATILE, NVML_VOLATILE_ECC);
SAME(ECC_AGGREGATE, NVML_AGGREGATE_ECC);
SAME(EVENT_XID, nvmlEventTypeXidCriticalError);
SAME(CAPABILITY_NVLINK, NVML_P2P_CAPS_INDEX_NVLINK);
SAME(0x20, nvmlClocksThrottleReasonSwThermalSlowdown);
SAME(0x40, nvmlClocksThrottleReasonHwThermalSlowdown);
SAME(0x04, nvmlClocksThrottleReasonSwPowerCap);
SAME(0x80, nvmlClocksThrottleReasonHwPowerBrakeSlowdown);
SAME(0x08, nvmlClocksThrottleReasonHwSlowdown);
SAME(0, NVML_TOPOLOGY_INTERNAL);
SAME(50, NVML_TOPOLOGY_SYSTEM);

SAME_SIZE(struct nvml_pci, nvmlPciInfo_t);
SAME_FIELD(struct nvml_pci, domain, nvmlPciInfo_t, domain);
SAME_FIELD(struct nvml_pci, bus, nvmlPciInfo_t, bus);
SAME_FIELD(struct nvml_pci, device, nvmlPciInfo_t, device);
SAME_SIZE(struct nvml_memory, nvmlMemory_t);
SAME_FIELD(struct nvml_memory, total, nvmlMemory_t, total);
SAME_FIELD(struct nvml_memory, used, nvmlMemory_t, used);
SAME_SIZE(struct nvml_memory_v2, nvmlMemory_v2_t);
SAME_FIELD(struct nvml_memory_v2, total, nvmlMemory_v2_t, total);
SAME_FIELD(struct nvml_memory_v2, used, nvmlMemory_v2_t, used);
SAME(sizeof(struct nvml_memory_v2) | 2u << 24, nvmlMemory_v2);
SAME_SIZE(struct nvml_process, nvmlProcessInfo_t);
SAME_FIELD(struct nvml_process, pid, nvmlProcessInfo_t, pid);
SAME_FIELD(struct nvml_process, bytes, nvmlProcessInfo_t, usedGpuMemory);
SAME_SIZE(struct nvml_event, nvmlEventData_t);
SAME_FIELD(struct nvml_event, device, nvmlEventData_t, device);
SAME_FIELD(struct nvml_event, type, nvmlEventData_t, eventType);
SAME_FIELD(struct nvml_event, data, nvmlEventData_t, eventData);
