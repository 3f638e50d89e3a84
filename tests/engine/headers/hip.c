/* Compares our declarations of HIP with AMD's hip_runtime_api.h. */
#include <hip/hip_runtime_api.h>

#include "engine/gpu/hip.c"
#include "tests/engine/headers/same.h"

SAME(ATTRIBUTE_CLOCK_RATE, hipDeviceAttributeClockRate);
SAME(ATTRIBUTE_WATCHDOG, hipDeviceAttributeKernelExecTimeout);
SAME(ATTRIBUTE_INTEGRATED, hipDeviceAttributeIntegrated);
SAME(ATTRIBUTE_COMPUTE_MODE, hipDeviceAttributeComputeMode);
SAME(ATTRIBUTE_MULTIPROCESSOR_COUNT, hipDeviceAttributeMultiprocessorCount);
SAME(ATTRIBUTE_SHARED_PER_BLOCK, hipDeviceAttributeMaxSharedMemoryPerBlock);
SAME(ATTRIBUTE_WARP_SIZE, hipDeviceAttributeWarpSize);
SAME(VENDOR_ERROR_NO_DEVICE, hipErrorNoDevice);
SAME(VENDOR_ERROR_NOT_READY, hipErrorNotReady);
SAME(VENDOR_ERROR_PEER_ALREADY, hipErrorPeerAccessAlreadyEnabled);
SAME(VENDOR_MODE_PROHIBITED, hipComputeModeProhibited);
SAME(VENDOR_MODE_EXCLUSIVE_PROCESS, hipComputeModeExclusiveProcess);
SAME(VENDOR_STREAM_NON_BLOCKING, hipStreamNonBlocking);
SAME(VENDOR_EVENT_BLOCKING_SYNC, hipEventBlockingSync);
SAME(VENDOR_EVENT_DISABLE_TIMING, hipEventDisableTiming);
SAME(VENDOR_HOST_PORTABLE, hipHostMallocPortable);
SAME(VENDOR_CAPTURE_RELAXED, hipStreamCaptureModeRelaxed);
SAME(VENDOR_PARAM_POINTER, (uintptr_t)HIP_LAUNCH_PARAM_BUFFER_POINTER);
SAME(VENDOR_PARAM_SIZE, (uintptr_t)HIP_LAUNCH_PARAM_BUFFER_SIZE);
SAME_SIZE(struct vendor_ipc, hipIpcMemHandle_t);
SAME_SIZE(uint8_t[16], hipUUID);
_Static_assert(PROPERTIES_ROOM >= sizeof(hipDeviceProp_t), "room for what the library writes");
#if HIP_VERSION_MAJOR >= 6
SAME(1, hipIpcMemLazyEnablePeerAccess);
SAME(ARCH_AT_ROCM_6, offsetof(hipDeviceProp_t, gcnArchName));
#else
SAME(0, hipIpcMemLazyEnablePeerAccess);
SAME(ARCH_AT_ROCM_5, offsetof(hipDeviceProp_t, gcnArchName));
#endif
SAME(ARCH_NAME_BYTES, sizeof(((hipDeviceProp_t *)0)->gcnArchName));
