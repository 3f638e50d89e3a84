/* NVIDIA: the driver API in libcuda.so.1 of CUDA 11.4 (driver 470) or later. Names with _v2 are those to
 * which cuda.h maps the plain names. Contexts are the devices' primary contexts, shared with other users in
 * the process (such as cuBLAS). */
#include "engine/gpu/vendor_private.h"

#include <stdio.h>
#include <string.h>

enum {
    ATTRIBUTE_WARP_SIZE = 10,
    ATTRIBUTE_CLOCK_RATE = 13,
    ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    ATTRIBUTE_WATCHDOG = 17,
    ATTRIBUTE_INTEGRATED = 18,
    ATTRIBUTE_COMPUTE_MODE = 20,
    ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    ATTRIBUTE_SHARED_PER_BLOCK_OPTIN = 97,
    FUNCTION_DYNAMIC_SHARED = 8
};

static const char *const files[] = {"libcuda.so.1", NULL};
static const char *const hidden_by[] = {"CUDA_VISIBLE_DEVICES", NULL};
static const char *const nodes[] = {"nvidiactl", "nvidia-uvm", NULL};

static const struct vendor_symbol symbols[] = {
    VENDOR_SYMBOL("cuDriverGetVersion", version),
    VENDOR_SYMBOL("cuInit", init),
    VENDOR_SYMBOL("cuDeviceGetCount", count),
    VENDOR_SYMBOL("cuDeviceGet", device_get),
    VENDOR_SYMBOL("cuDeviceGetName", device_name),
    VENDOR_SYMBOL("cuDeviceGetAttribute", device_attribute),
    VENDOR_SYMBOL("cuDeviceTotalMem_v2", device_memory),
    VENDOR_SYMBOL("cuDeviceGetPCIBusId", device_pci),
    VENDOR_SYMBOL("cuDeviceGetUuid_v2", device_uuid),
    VENDOR_SYMBOL("cuMemGetInfo_v2", memory_info),
    VENDOR_SYMBOL("cuMemAlloc_v2", memory_alloc),
    VENDOR_SYMBOL("cuMemFree_v2", memory_free),
    VENDOR_SYMBOL("cuMemHostAlloc", host_alloc),
    VENDOR_SYMBOL("cuMemFreeHost", host_free),
    VENDOR_SYMBOL("cuIpcGetMemHandle", ipc_get),
    VENDOR_SYMBOL("cuIpcOpenMemHandle_v2", ipc_open),
    VENDOR_SYMBOL("cuIpcCloseMemHandle", ipc_close),
    VENDOR_SYMBOL("cuDeviceCanAccessPeer", peer_can),
    VENDOR_SYMBOL("cuStreamCreate", stream_create),
    VENDOR_SYMBOL("cuStreamDestroy_v2", stream_destroy),
    VENDOR_SYMBOL("cuStreamSynchronize", stream_sync),
    VENDOR_SYMBOL("cuStreamWaitEvent", stream_wait),
    VENDOR_SYMBOL("cuEventCreate", event_create),
    VENDOR_SYMBOL("cuEventDestroy_v2", event_destroy),
    VENDOR_SYMBOL("cuEventRecord", event_record),
    VENDOR_SYMBOL("cuEventQuery", event_query),
    VENDOR_SYMBOL("cuEventSynchronize", event_sync),
    VENDOR_SYMBOL("cuEventElapsedTime", event_elapsed),
    VENDOR_SYMBOL("cuMemcpyHtoDAsync_v2", copy_in),
    VENDOR_SYMBOL("cuMemcpyDtoHAsync_v2", copy_out),
    VENDOR_SYMBOL("cuMemcpyDtoDAsync_v2", copy),
    VENDOR_SYMBOL("cuMemsetD8Async", fill),
    VENDOR_SYMBOL("cuModuleLoadDataEx", module_load),
    VENDOR_SYMBOL("cuModuleUnload", module_unload),
    VENDOR_SYMBOL("cuModuleGetFunction", module_function),
    VENDOR_SYMBOL("cuLaunchKernel", launch),
    VENDOR_SYMBOL("cuStreamBeginCapture_v2", capture_begin),
    VENDOR_SYMBOL("cuStreamEndCapture", capture_end),
    VENDOR_SYMBOL("cuGraphLaunch", graph_launch),
    VENDOR_SYMBOL("cuGraphExecDestroy", graph_executable_destroy),
    VENDOR_SYMBOL("cuGraphDestroy", graph_destroy),
    VENDOR_SYMBOL("cuGetErrorName", cuda_error_name),
    VENDOR_SYMBOL("cuDevicePrimaryCtxRetain", cuda_context_retain),
    VENDOR_SYMBOL("cuDevicePrimaryCtxRelease_v2", cuda_context_release),
    VENDOR_SYMBOL("cuCtxSetCurrent", cuda_context_set),
    VENDOR_SYMBOL("cuCtxEnablePeerAccess", cuda_peer_enable),
    VENDOR_SYMBOL("cuFuncSetAttribute", cuda_function_set),
    VENDOR_SYMBOL("cuGraphInstantiateWithFlags", cuda_graph_instantiate), /* since CUDA 11.4 */
};

/* Splits the driver's version number: 12040 is CUDA 12.4. */
static void cuda_version_split(uint32_t version, uint32_t *major, uint32_t *minor)
{
    *major = version / 1000;
    *minor = version % 1000 / 10;
}

static const char *gpu_error_name(const struct gpu_library *library, int error)
{
    const char *name = NULL;
    return library->api.cuda_error_name(error, &name) == 0 ? name : NULL;
}

static int cuda_arch(struct gpu_library *library, int device, struct gpu_info *out, struct err *err)
{
    static const int attributes[2] = {ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, ATTRIBUTE_COMPUTE_CAPABILITY_MINOR};
    int capability[2] = {0, 0};
    for (int i = 0; i < 2; i++)
        if (vendor_result(library, offsetof(struct vendor_api, device_attribute),
                          library->api.device_attribute(&capability[i], attributes[i], device),
                          "the compute capability", err) != 0)
            return -1;
    snprintf(out->arch, sizeof(out->arch), "sm_%d%d", capability[0], capability[1]);
    return 0;
}

static int gpu_context_retain(struct gpu_context *context, struct err *err)
{
    return vendor_result(context->library, offsetof(struct vendor_api, cuda_context_retain),
                         context->library->api.cuda_context_retain(&context->handle, context->device),
                         "a context", err);
}

static void gpu_context_release(struct gpu_context *context)
{
    context->library->api.cuda_context_release(context->device);
}

static int cuda_context_enter(const struct gpu_context *context)
{
    return context->library->api.cuda_context_set(context->handle);
}

static int gpu_peer_enable(const struct gpu_context *context, const struct gpu_context *peer)
{
    return context->library->api.cuda_peer_enable(peer->handle, 0);
}

static int gpu_graph_instantiate(struct gpu_context *context, void *graph, void **executable, struct err *err)
{
    return vendor_context_result(context, offsetof(struct vendor_api, cuda_graph_instantiate),
                                 context->library->api.cuda_graph_instantiate(executable, graph, 0),
                                 "a recorded graph", err);
}

static int shared_allow(struct gpu_context *context, void *function, uint32_t bytes, struct err *err)
{
    int result = context->library->api.cuda_function_set(function, FUNCTION_DYNAMIC_SHARED, (int)bytes);
    return vendor_context_result(context, offsetof(struct vendor_api, cuda_function_set), result,
                                 "shared memory of a kernel", err);
}

const struct vendor vendor_cuda = {
    .kind = "cuda",
    .environment = "MOTLEY_CUDA_LIBRARY",
    .files = files,
    .symbols = symbols,
    .symbol_count = sizeof(symbols) / sizeof(*symbols),
    .version_least = 11040,
    .least = "CUDA 11.4 (driver 470)",
    .nodes = nodes,
    .nodes_made_by = "nvidia-modprobe -c 0 -u",
    .nodes_given_by =
        "docker run --gpus all, with NVIDIA's container toolkit; in Kubernetes a limit nvidia.com/gpu",
    .pci_vendor = 0x10de,
    .module = "nvidia",
    .lists_programs = "nvidia-smi",
    .start_failed =
        "after a suspend, end what uses the card, then as root: modprobe -r nvidia_uvm && modprobe "
        "nvidia_uvm; else dmesg | grep -i nvrm says what the driver met",
    .card_hidden = "the driver does not show it: it fell off its bus or needs a reset (dmesg | grep Xid)",
    .hidden_by = hidden_by,
    .attribute_warp = ATTRIBUTE_WARP_SIZE,
    .attribute_shared = ATTRIBUTE_SHARED_PER_BLOCK_OPTIN,
    .attribute_units = ATTRIBUTE_MULTIPROCESSOR_COUNT,
    .attribute_clock = ATTRIBUTE_CLOCK_RATE,
    .attribute_mode = ATTRIBUTE_COMPUTE_MODE,
    .attribute_watchdog = ATTRIBUTE_WATCHDOG,
    .attribute_integrated = ATTRIBUTE_INTEGRATED,
    .param_end = 0,
    .jit_log = true,
    .version_split = cuda_version_split,
    .error_name = gpu_error_name,
    .arch = cuda_arch,
    .context_retain = gpu_context_retain,
    .context_release = gpu_context_release,
    .context_enter = cuda_context_enter,
    .peer_enable = gpu_peer_enable,
    .enter_at = offsetof(struct vendor_api, cuda_context_set),
    .peer_at = offsetof(struct vendor_api, cuda_peer_enable),
    .graph_instantiate = gpu_graph_instantiate,
    .shared_allow = shared_allow,
};
