/* A fake libcuda.so.1 with the names and types of NVIDIA's cuda.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/fakes/fake.h"
#ifdef FAKE_PTX /* the kernels are run from the text (ptx/) */
#include "engine/ptx/module.h"
#endif

FAKE_EXPORT struct fake_control fake_control = {.version = 12020, .devices = 2, .capability = 86};
const char *const fake_warps = "warp32";
const uintptr_t fake_extra_end = 0;

static _Thread_local struct fake_object *current;
static bool initialised;

struct fake_object *fake_current(void)
{
    return fake_context_alive(current) ? current : NULL;
}

/* The latest PTX that the driver of a CUDA version takes, from the release table of NVIDIA's PTX ISA. */
static const struct {
    int cuda;
    unsigned major, minor;
} releases[] = {{11040, 7, 4}, {11050, 7, 5}, {11060, 7, 6}, {11070, 7, 7}, {11080, 7, 8},
                {12000, 8, 0}, {12010, 8, 1}, {12020, 8, 2}, {12030, 8, 3}, {12040, 8, 4},
                {12050, 8, 5}, {12070, 8, 6}, {12080, 8, 7}, {12090, 8, 8}, {13000, 9, 0}};

/* What ptxas says of a text whose version the driver does not know; NULL: it knows the version. */
static const char *version_refuse(const char *image, int *result)
{
    static char text[96];
    unsigned major = 0, minor = 0, last = 0;
    const char *version = strstr(image, "\n.version ");
    version = version ? version + 1 : image;
    *result = FAKE_INVALID_IMAGE;
    if (sscanf(version, ".version %u.%u", &major, &minor) != 2 || !strstr(image, ".target sm_"))
        return "ptxas fatal   : Unsupported image: no .version directive";
    for (unsigned i = 1; i < sizeof(releases) / sizeof(*releases); i++)
        if (releases[i].cuda <= fake_control.version)
            last = i;
    if (major < releases[last].major || (major == releases[last].major && minor <= releases[last].minor))
        return NULL;
    *result = FAKE_PTX_TOO_NEW;
    snprintf(text, sizeof(text), "ptxas fatal   : Unsupported .version %u.%u; current version is '%u.%u'",
             major, minor, releases[last].major, releases[last].minor);
    return text;
}

const char *fake_image_refuse(const char *image, int *result)
{
    const char *wrong = version_refuse(image, result);
#ifdef FAKE_PTX
    if (!wrong)
        wrong = ptx_module_load(image);
#endif
    return wrong;
}

bool fake_args_refuse(const char *kernel, size_t bytes)
{
#ifdef FAKE_PTX
    struct err err;
    const struct ptx_kernel *found = ptx_module_kernel(kernel, &err);
    return found && found->args_bytes != bytes;
#else
    (void)kernel;
    (void)bytes;
    return false;
#endif
}

/* MOTLEY_FAKE_CUDA=11040: the library plays the driver of CUDA 11.4 from the start. */
__attribute__((constructor)) static void version_choose(void)
{
    const char *version = getenv("MOTLEY_FAKE_CUDA");
    if (version)
        fake_control.version = (int)strtol(version, NULL, 10);
}

/* Declares and defines a function, since no header declares it. */
#define CU(name, ...)                                                                                        \
    FAKE_EXPORT int name(__VA_ARGS__);                                                                       \
    FAKE_EXPORT int name(__VA_ARGS__)

CU(cuDriverGetVersion, int *version)
{
    int result = fake_enter(__func__);
    *version = fake_control.version;
    return result;
}

CU(cuInit, unsigned flags)
{
    int result = fake_enter(__func__);
    initialised = result == 0 && flags == 0;
    const char *shown =
        getenv("CUDA_VISIBLE_DEVICES"); /* the UUID of the only visible card when a card is divided by MIG */
    if (shown || getenv("MOTLEY_FAKE_MIG")) /* of a card that is cut, a process sees the first slice */
        fake_control.devices = shown && *shown == '\0' ? 0 : 1;
    return result != 0 ? result : flags != 0 ? FAKE_INVALID_VALUE : 0;
}

CU(cuGetErrorName, int error, const char **name)
{
    static char text[64];
    *name = error == 2     ? "CUDA_ERROR_OUT_OF_MEMORY"
            : error == 200 ? "CUDA_ERROR_INVALID_IMAGE"
            : error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                           : text;
    snprintf(text, sizeof(text), "CUDA_ERROR_%d", error);
    return 0;
}

CU(cuDeviceGetCount, int *count)
{
    return initialised ? fake_count(__func__, count) : FAKE_NOT_INITIALIZED;
}
CU(cuDeviceGet, int *device, int index)
{
    return fake_device_get(__func__, device, index);
}
CU(cuDeviceGetName, char *out, int room, int device)
{
    return fake_text(__func__, device, getenv("MOTLEY_FAKE_MIG") ? "Fake RTX MIG 1g.5gb" : "Fake RTX", out,
                     room);
}
CU(cuDeviceGetPCIBusId, char *out, int room, int device)
{
    return fake_text(__func__, device, device == 0 ? "0000:0A:00.0" : "0000:0B:00.0", out, room);
}
CU(cuDeviceGetUuid_v2, uint8_t *uuid, int device)
{
    return fake_uuid(__func__, uuid, device);
}
CU(cuDeviceTotalMem_v2, size_t *bytes, int device)
{
    return fake_memory_total(__func__, bytes, device);
}
/* MOTLEY_FAKE_OLDER=61: the second card is of capability 6.1. */
static int capability_of(int device)
{
    const char *older = getenv("MOTLEY_FAKE_OLDER");
    return older && device == 1 ? (int)strtol(older, NULL, 10) : fake_control.capability;
}

CU(cuDeviceGetAttribute, int *value, int attribute, int device)
{
    int result = fake_device(__func__, device);
    if (result != 0)
        return result;
    *value = attribute == 10   ? 32
             : attribute == 13 ? 1700000
             : attribute == 16 ? 46
             : attribute == 17 ? fake_control.watchdog
             : attribute == 18 ? fake_control.integrated
             : attribute == 20 ? fake_control.compute_mode
             : attribute == 75 ? capability_of(device) / 10
             : attribute == 76 ? capability_of(device) % 10
             : attribute == 97 ? 101376
                               : -1;
    return *value < 0 ? FAKE_INVALID_VALUE : 0;
}

CU(cuDevicePrimaryCtxRetain, void **context, int device)
{
    int result = fake_device(__func__, device);
    if (result != 0)
        return result;
    *context = fake_context_retain(device);
    return *context ? 0 : FAKE_OUT_OF_MEMORY;
}
CU(cuDevicePrimaryCtxRelease_v2, int device)
{
    int result = fake_device(__func__, device), released = fake_context_release(device);
    return result != 0 ? result : released;
}
CU(cuCtxSetCurrent, void *context)
{
    int result = fake_enter(__func__);
    if (result == 0 && context && !fake_context_alive(context))
        result = fake_misuse(__func__, "a context that is not alive");
    if (result == 0)
        current = context;
    return result;
}
CU(cuCtxEnablePeerAccess, void *context, unsigned flags)
{
    int result = fake_enter(__func__);
    if (result == 0 && (!fake_context_alive(context) || context == current || flags != 0))
        result = fake_misuse(__func__, "a context that is no peer");
    return result;
}

CU(cuMemGetInfo_v2, size_t *available, size_t *total)
{
    return fake_memory_info(__func__, available, total);
}
CU(cuMemAlloc_v2, uint64_t *out, size_t bytes)
{
    return fake_memory_alloc(__func__, out, bytes);
}
CU(cuMemFree_v2, uint64_t address)
{
    return fake_memory_free(__func__, address);
}
CU(cuMemHostAlloc, void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    return fake_host_alloc(__func__, out, bytes);
}
CU(cuMemFreeHost, void *memory)
{
    return fake_host_free(__func__, memory);
}
CU(cuIpcGetMemHandle, struct fake_ipc *handle, uint64_t address)
{
    return fake_ipc_get(__func__, handle, address);
}
CU(cuIpcOpenMemHandle_v2, uint64_t *out, struct fake_ipc handle, unsigned flags)
{
    return flags == 1 ? fake_ipc_open(__func__, out, handle) : fake_misuse(__func__, "flags");
}
CU(cuIpcCloseMemHandle, uint64_t address)
{
    return fake_ipc_close(__func__, address);
}
CU(cuDeviceCanAccessPeer, int *can, int device, int peer)
{
    return fake_peer_can(__func__, can, device, peer);
}

CU(cuStreamCreate, void **out, unsigned flags)
{
    return fake_stream_create(__func__, out, flags);
}
CU(cuStreamDestroy_v2, void *stream)
{
    return fake_stream_destroy(__func__, stream);
}
CU(cuStreamSynchronize, void *stream)
{
    return fake_stream_sync(__func__, stream);
}
CU(cuStreamWaitEvent, void *stream, void *event, unsigned flags)
{
    return flags == 0 ? fake_stream_wait(__func__, stream, event) : fake_misuse(__func__, "flags");
}
CU(cuEventCreate, void **out, unsigned flags)
{
    return fake_event_create(__func__, out, flags);
}
CU(cuEventDestroy_v2, void *event)
{
    return fake_event_destroy(__func__, event);
}
CU(cuEventRecord, void *event, void *stream)
{
    return fake_event_record(__func__, event, stream);
}
CU(cuEventQuery, void *event)
{
    return fake_event_query(__func__, event);
}
CU(cuEventSynchronize, void *event)
{
    return fake_event_sync(__func__, event);
}
CU(cuEventElapsedTime, float *milliseconds, void *from, void *to)
{
    return fake_event_elapsed(__func__, milliseconds, from, to);
}

CU(cuMemcpyHtoDAsync_v2, uint64_t to, const void *from, size_t bytes, void *stream)
{
    return fake_copy_in(__func__, to, from, bytes, stream);
}
CU(cuMemcpyDtoHAsync_v2, void *to, uint64_t from, size_t bytes, void *stream)
{
    return fake_copy_out(__func__, to, from, bytes, stream);
}
CU(cuMemcpyDtoDAsync_v2, uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    return fake_copy(__func__, to, from, bytes, stream);
}
CU(cuMemsetD8Async, uint64_t to, unsigned char value, size_t bytes, void *stream)
{
    return fake_fill(__func__, to, value, bytes, stream);
}

CU(cuModuleLoadDataEx, void **out, const void *image, unsigned options, int *names, void **values)
{
    return fake_module_load(__func__, out, image, options, names, values);
}
CU(cuModuleUnload, void *module)
{
    return fake_module_unload(__func__, module);
}
CU(cuModuleGetFunction, void **out, void *module, const char *function)
{
    return fake_module_function(__func__, out, module, function);
}
CU(cuFuncSetAttribute, void *function, int attribute, int value)
{
    int result = fake_enter(__func__);
    return result != 0 ? result : function && attribute == 8 && value > 0 ? 0 : FAKE_INVALID_VALUE;
}
CU(cuLaunchKernel, void *function, unsigned bx, unsigned by, unsigned bz, unsigned tx, unsigned ty,
   unsigned tz, unsigned shared, void *stream, void **parameters, void **extra)
{
    return fake_launch(__func__, function, (unsigned[]){bx, by, bz}, (unsigned[]){tx, ty, tz}, shared, stream,
                       parameters, extra);
}

CU(cuStreamBeginCapture_v2, void *stream, int mode)
{
    return mode >= 0 && mode <= 2 ? fake_capture_begin(__func__, stream) : fake_misuse(__func__, "mode");
}
CU(cuStreamEndCapture, void *stream, void **graph)
{
    return fake_capture_end(__func__, stream, graph);
}
CU(cuGraphInstantiateWithFlags, void **executable, void *graph, unsigned long long flags)
{
    return flags == 0 ? fake_instantiate(__func__, executable, graph) : fake_misuse(__func__, "flags");
}
CU(cuGraphLaunch, void *executable, void *stream)
{
    return fake_graph_launch(__func__, executable, stream);
}
CU(cuGraphExecDestroy, void *executable)
{
    return fake_executable_destroy(__func__, executable);
}
CU(cuGraphDestroy, void *graph)
{
    return fake_graph_destroy(__func__, graph);
}
