/* A fake libamdhip64.so with the names and types of AMD's hip_runtime_api.h. */
#include <stdio.h>
#include <string.h>

#include "engine/fakes/fake.h"

#ifdef FAKE_ROCM_5
enum { VERSION = 50221153, IPC_FLAGS = 0 }; /* HIP 5.2 */
#else
enum { VERSION = 60342134, IPC_FLAGS = 1 }; /* HIP 6.3 */
#endif
FAKE_EXPORT struct fake_control fake_control = {
    .version = VERSION, .devices = 2, .arch = "gfx90a:sramecc+:xnack-"};
const char *const fake_warps = "warp64";
const uintptr_t fake_extra_end = 3;

/* The context of the device that this thread last passed to hipSetDevice. */
static _Thread_local struct fake_object *current;

struct fake_object *fake_current(void)
{
    return fake_context_alive(current) ? current : NULL;
}

/* Code objects of version 5 (3 in the ELF header) are known from ROCm 5.2 on, those of version 6 from 6.3 on.
 */
const char *fake_image_refuse(const char *image, int *result)
{
    *result = memcmp(image, "\177ELF", 4) != 0 ? FAKE_INVALID_IMAGE : FAKE_NO_BINARY;
    if (*result == FAKE_INVALID_IMAGE)
        return "not a code object";
    uint8_t known = fake_control.version >= 60300000 ? 4 : fake_control.version >= 50200000 ? 3 : 2;
    return (uint8_t)image[8] <= known ? NULL : "a code object of a later version";
}

bool fake_args_refuse(const char *kernel, size_t bytes)
{
    (void)kernel;
    (void)bytes;
    return false;
}

/* hipDeviceProp_t of ROCm 5 and earlier, up to gcnArchName. */
struct properties_5 {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlock;
    int regsPerBlock, warpSize, maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3];
    int clockRate, memoryClockRate, memoryBusWidth;
    size_t totalConstMem;
    int major, minor, multiProcessorCount, l2CacheSize, maxThreadsPerMultiProcessor, computeMode;
    int clockInstructionRate;
    unsigned arch;
    int concurrentKernels, pciDomainID, pciBusID, pciDeviceID;
    size_t maxSharedMemoryPerMultiProcessor;
    int isMultiGpuBoard, canMapHostMemory, gcnArch;
    char gcnArchName[256];
};

/* hipDeviceProp_t in ROCm 6's new layout. */
struct properties_6 {
    char name[256], uuid[16], luid[8];
    unsigned luidDeviceNodeMask;
    size_t totalGlobalMem, sharedMemPerBlock;
    int regsPerBlock, warpSize;
    size_t memPitch;
    int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], clockRate;
    size_t totalConstMem;
    int major, minor;
    size_t textureAlignment, texturePitchAlignment;
    int deviceOverlap, multiProcessorCount, kernelExecTimeoutEnabled, integrated, canMapHostMemory;
    int computeMode, maxTexture1D, maxTexture1DMipmap, maxTexture1DLinear, maxTexture2D[2];
    int maxTexture2DMipmap[2], maxTexture2DLinear[3], maxTexture2DGather[2], maxTexture3D[3];
    int maxTexture3DAlt[3], maxTextureCubemap, maxTexture1DLayered[2], maxTexture2DLayered[3];
    int maxTextureCubemapLayered[2], maxSurface1D, maxSurface2D[2], maxSurface3D[3];
    int maxSurface1DLayered[2], maxSurface2DLayered[3], maxSurfaceCubemap, maxSurfaceCubemapLayered[2];
    size_t surfaceAlignment;
    int concurrentKernels, ECCEnabled, pciBusID, pciDeviceID, pciDomainID, tccDriver, asyncEngineCount;
    int unifiedAddressing, memoryClockRate, memoryBusWidth, l2CacheSize, persistingL2CacheMaxSize;
    int maxThreadsPerMultiProcessor, streamPrioritiesSupported, globalL1CacheSupported;
    int localL1CacheSupported;
    size_t sharedMemPerMultiprocessor;
    int regsPerMultiprocessor, managedMemory, isMultiGpuBoard, multiGpuBoardGroupID;
    int hostNativeAtomicSupported, singleToDoublePrecisionPerfRatio, pageableMemoryAccess;
    int concurrentManagedAccess, computePreemptionSupported, canUseHostPointerForRegisteredMem;
    int cooperativeLaunch, cooperativeMultiDeviceLaunch;
    size_t sharedMemPerBlockOptin;
    int pageableMemoryAccessUsesHostPageTables, directManagedMemAccessFromHost;
    int maxBlocksPerMultiProcessor, accessPolicyMaxWindowSize;
    size_t reservedSharedMemPerBlock;
    int hostRegisterSupported, sparseHipArraySupported, hostRegisterReadOnlySupported;
    int timelineSemaphoreInteropSupported, memoryPoolsSupported, gpuDirectRDMASupported;
    unsigned gpuDirectRDMAFlushWritesOptions;
    int gpuDirectRDMAWritesOrdering;
    unsigned memoryPoolSupportedHandleTypes;
    int deferredMappingHipArraySupported, ipcEventSupported, clusterLaunch, unifiedFunctionPointers;
    int reserved[63], hipReserved[32];
    char gcnArchName[256];
};

/* Declares and defines a function, since no header declares it. */
#define HIP(name, ...)                                                                                       \
    FAKE_EXPORT int name(__VA_ARGS__);                                                                       \
    FAKE_EXPORT int name(__VA_ARGS__)

FAKE_EXPORT const char *hipGetErrorName(int error);
FAKE_EXPORT const char *hipGetErrorName(int error)
{
    return error == 2 ? "hipErrorOutOfMemory" : error == 700 ? "hipErrorIllegalAddress" : "hipErrorUnknown";
}

HIP(hipRuntimeGetVersion, int *version)
{
    int result = fake_enter(__func__);
    *version = fake_control.version;
    return result;
}
HIP(hipInit, unsigned flags)
{
    int result = fake_enter(__func__);
    return result != 0 ? result : flags != 0 ? FAKE_INVALID_VALUE : 0;
}
HIP(hipGetDeviceCount, int *count)
{
    return fake_count(__func__, count);
}
HIP(hipDeviceGet, int *device, int index)
{
    return fake_device_get(__func__, device, index);
}
HIP(hipDeviceGetName, char *out, int room, int device)
{
    return fake_text(__func__, device, "Fake Instinct", out, room);
}
HIP(hipDeviceGetPCIBusId, char *out, int room, int device)
{
    return fake_text(__func__, device, device == 0 ? "0000:C1:00.0" : "0000:C6:00.0", out, room);
}
/* The UUID is 16 digits of text; the second card has none. */
HIP(hipDeviceGetUuid, char *uuid, int device)
{
    int result = fake_device(__func__, device);
    if (result == 0)
        memcpy(uuid, device == 0 ? "0123456789abcdef" : "XX\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16);
    return result;
}
HIP(hipDeviceTotalMem, size_t *bytes, int device)
{
    return fake_memory_total(__func__, bytes, device);
}
HIP(hipDeviceGetAttribute, int *value, int attribute, int device)
{
    int result = fake_device(__func__, device);
    if (result != 0)
        return result;
    *value = attribute == 5    ? 1700000
             : attribute == 6  ? fake_control.compute_mode
             : attribute == 16 ? fake_control.integrated
             : attribute == 18 ? fake_control.watchdog
             : attribute == 63 ? 110
             : attribute == 74 ? 65536
             : attribute == 87 ? (strncmp(fake_control.arch, "gfx1", 4) == 0 ? 32 : 64)
                               : -1;
    return *value < 0 ? FAKE_INVALID_VALUE : 0;
}

/* This symbol has the old layout in all releases. */
HIP(hipGetDeviceProperties, struct properties_5 *out, int device)
{
    int result = fake_device(__func__, device);
    if (result != 0)
        return result;
    memset(out, 0, sizeof(*out));
    snprintf(out->gcnArchName, sizeof(out->gcnArchName), "%s", fake_control.arch);
    return 0;
}
#ifndef FAKE_ROCM_5
HIP(hipGetDevicePropertiesR0600, struct properties_6 *out, int device)
{
    int result = fake_device(__func__, device);
    if (result != 0)
        return result;
    memset(out, 0, sizeof(*out));
    snprintf(out->gcnArchName, sizeof(out->gcnArchName), "%s", fake_control.arch);
    return 0;
}
#endif

/* A device's context is made when a thread first selects the device, and is kept. */
HIP(hipSetDevice, int device)
{
    int result = fake_device(__func__, device);
    if (result == 0)
        current = fake_context_keep(device);
    return result;
}
HIP(hipDeviceEnablePeerAccess, int peer, unsigned flags)
{
    int result = fake_device(__func__, peer);
    if (result == 0 && (flags != 0 || fake_context_keep(peer) == current))
        result = fake_misuse(__func__, "a device that is no peer");
    return result;
}

HIP(hipMemGetInfo, size_t *available, size_t *total)
{
    return fake_memory_info(__func__, available, total);
}
HIP(hipMalloc, uint64_t *out, size_t bytes)
{
    return fake_memory_alloc(__func__, out, bytes);
}
HIP(hipFree, uint64_t address)
{
    return fake_memory_free(__func__, address);
}
HIP(hipHostMalloc, void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    return fake_host_alloc(__func__, out, bytes);
}
HIP(hipHostFree, void *memory)
{
    return fake_host_free(__func__, memory);
}
HIP(hipIpcGetMemHandle, struct fake_ipc *handle, uint64_t address)
{
    return fake_ipc_get(__func__, handle, address);
}
HIP(hipIpcOpenMemHandle, uint64_t *out, struct fake_ipc handle, unsigned flags)
{
    return flags == IPC_FLAGS ? fake_ipc_open(__func__, out, handle) : fake_misuse(__func__, "flags");
}
HIP(hipIpcCloseMemHandle, uint64_t address)
{
    return fake_ipc_close(__func__, address);
}
HIP(hipDeviceCanAccessPeer, int *can, int device, int peer)
{
    return fake_peer_can(__func__, can, device, peer);
}

HIP(hipStreamCreateWithFlags, void **out, unsigned flags)
{
    return fake_stream_create(__func__, out, flags);
}
HIP(hipStreamDestroy, void *stream)
{
    return fake_stream_destroy(__func__, stream);
}
HIP(hipStreamSynchronize, void *stream)
{
    return fake_stream_sync(__func__, stream);
}
HIP(hipStreamWaitEvent, void *stream, void *event, unsigned flags)
{
    return flags == 0 ? fake_stream_wait(__func__, stream, event) : fake_misuse(__func__, "flags");
}
HIP(hipEventCreateWithFlags, void **out, unsigned flags)
{
    return fake_event_create(__func__, out, flags);
}
HIP(hipEventDestroy, void *event)
{
    return fake_event_destroy(__func__, event);
}
HIP(hipEventRecord, void *event, void *stream)
{
    return fake_event_record(__func__, event, stream);
}
HIP(hipEventQuery, void *event)
{
    return fake_event_query(__func__, event);
}
HIP(hipEventSynchronize, void *event)
{
    return fake_event_sync(__func__, event);
}
HIP(hipEventElapsedTime, float *milliseconds, void *from, void *to)
{
    return fake_event_elapsed(__func__, milliseconds, from, to);
}

HIP(hipMemcpyHtoDAsync, uint64_t to, const void *from, size_t bytes, void *stream)
{
    return fake_copy_in(__func__, to, from, bytes, stream);
}
HIP(hipMemcpyDtoHAsync, void *to, uint64_t from, size_t bytes, void *stream)
{
    return fake_copy_out(__func__, to, from, bytes, stream);
}
HIP(hipMemcpyDtoDAsync, uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    return fake_copy(__func__, to, from, bytes, stream);
}
HIP(hipMemsetD8Async, uint64_t to, unsigned char value, size_t bytes, void *stream)
{
    return fake_fill(__func__, to, value, bytes, stream);
}

HIP(hipModuleLoadDataEx, void **out, const void *image, unsigned options, int *names, void **values)
{
    return fake_module_load(__func__, out, image, options, names, values);
}
HIP(hipModuleUnload, void *module)
{
    return fake_module_unload(__func__, module);
}
HIP(hipModuleGetFunction, void **out, void *module, const char *function)
{
    return fake_module_function(__func__, out, module, function);
}
HIP(hipModuleLaunchKernel, void *function, unsigned bx, unsigned by, unsigned bz, unsigned tx, unsigned ty,
    unsigned tz, unsigned shared, void *stream, void **parameters, void **extra)
{
    return fake_launch(__func__, function, (unsigned[]){bx, by, bz}, (unsigned[]){tx, ty, tz}, shared, stream,
                       parameters, extra);
}

HIP(hipStreamBeginCapture, void *stream, int mode)
{
    return mode >= 0 && mode <= 2 ? fake_capture_begin(__func__, stream) : fake_misuse(__func__, "mode");
}
HIP(hipStreamEndCapture, void *stream, void **graph)
{
    return fake_capture_end(__func__, stream, graph);
}
HIP(hipGraphInstantiate, void **executable, void *graph, void **node, char *log, size_t room)
{
    (void)node;
    (void)log;
    (void)room;
    return fake_instantiate(__func__, executable, graph);
}
HIP(hipGraphLaunch, void *executable, void *stream)
{
    return fake_graph_launch(__func__, executable, stream);
}
HIP(hipGraphExecDestroy, void *executable)
{
    return fake_executable_destroy(__func__, executable);
}
HIP(hipGraphDestroy, void *graph)
{
    return fake_graph_destroy(__func__, graph);
}
