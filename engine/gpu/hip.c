/* AMD: the HIP library of ROCm 5.0 or later. hipSetDevice makes a context current. The architecture is only
 * in the structure of properties, whose layout changed in ROCm 6: the new layout has a symbol of its own, and
 * the old symbol keeps the old layout. Everything else is read as attributes. */
#include "engine/gpu/vendor_private.h"

#include <stdio.h>
#include <string.h>

enum {
    ATTRIBUTE_CLOCK_RATE = 5,
    ATTRIBUTE_COMPUTE_MODE = 6,
    ATTRIBUTE_INTEGRATED = 16,
    ATTRIBUTE_WATCHDOG = 18,
    ATTRIBUTE_MULTIPROCESSOR_COUNT = 63,
    ATTRIBUTE_SHARED_PER_BLOCK = 74,
    ATTRIBUTE_WARP_SIZE = 87,
    /* offset of gcnArchName[256] in the structure of properties, and more room than any release writes */
    ARCH_NAME_BYTES = 256,
    ARCH_AT_ROCM_5 = 396,
    ARCH_AT_ROCM_6 = 1160,
    PROPERTIES_ROOM = 8192
};

static const char *const files[] = {"libamdhip64.so.7",
                                    "libamdhip64.so.6",
                                    "libamdhip64.so.5",
                                    "libamdhip64.so",
                                    "/opt/rocm/lib/libamdhip64.so",
                                    NULL};
static const char *const hidden_by[] = {"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL",
                                        NULL};
static const char *const nodes[] = {"kfd", NULL};

static const struct vendor_symbol symbols[] = {
    VENDOR_SYMBOL("hipRuntimeGetVersion", version),
    VENDOR_SYMBOL("hipInit", init),
    VENDOR_SYMBOL("hipGetDeviceCount", count),
    VENDOR_SYMBOL("hipDeviceGet", device_get),
    VENDOR_SYMBOL("hipDeviceGetName", device_name),
    VENDOR_SYMBOL("hipDeviceGetAttribute", device_attribute),
    VENDOR_SYMBOL("hipDeviceTotalMem", device_memory),
    VENDOR_SYMBOL("hipDeviceGetPCIBusId", device_pci),
    VENDOR_SYMBOL_OPTIONAL("hipDeviceGetUuid", device_uuid), /* since ROCm 5.2 */
    VENDOR_SYMBOL("hipMemGetInfo", memory_info),
    VENDOR_SYMBOL("hipMalloc", memory_alloc),
    VENDOR_SYMBOL("hipFree", memory_free),
    VENDOR_SYMBOL("hipHostMalloc", host_alloc),
    VENDOR_SYMBOL("hipHostFree", host_free),
    VENDOR_SYMBOL("hipIpcGetMemHandle", ipc_get),
    VENDOR_SYMBOL("hipIpcOpenMemHandle", ipc_open),
    VENDOR_SYMBOL("hipIpcCloseMemHandle", ipc_close),
    VENDOR_SYMBOL("hipDeviceCanAccessPeer", peer_can),
    VENDOR_SYMBOL("hipStreamCreateWithFlags", stream_create),
    VENDOR_SYMBOL("hipStreamDestroy", stream_destroy),
    VENDOR_SYMBOL("hipStreamSynchronize", stream_sync),
    VENDOR_SYMBOL("hipStreamWaitEvent", stream_wait),
    VENDOR_SYMBOL("hipEventCreateWithFlags", event_create),
    VENDOR_SYMBOL("hipEventDestroy", event_destroy),
    VENDOR_SYMBOL("hipEventRecord", event_record),
    VENDOR_SYMBOL("hipEventQuery", event_query),
    VENDOR_SYMBOL("hipEventSynchronize", event_sync),
    VENDOR_SYMBOL("hipEventElapsedTime", event_elapsed),
    VENDOR_SYMBOL("hipMemcpyHtoDAsync", copy_in),
    VENDOR_SYMBOL("hipMemcpyDtoHAsync", copy_out),
    VENDOR_SYMBOL("hipMemcpyDtoDAsync", copy),
    VENDOR_SYMBOL("hipMemsetD8Async", fill),
    VENDOR_SYMBOL("hipModuleLoadDataEx", module_load),
    VENDOR_SYMBOL("hipModuleUnload", module_unload),
    VENDOR_SYMBOL("hipModuleGetFunction", module_function),
    VENDOR_SYMBOL("hipModuleLaunchKernel", launch),
    VENDOR_SYMBOL("hipStreamBeginCapture", capture_begin),
    VENDOR_SYMBOL("hipStreamEndCapture", capture_end),
    VENDOR_SYMBOL("hipGraphLaunch", graph_launch),
    VENDOR_SYMBOL("hipGraphExecDestroy", graph_executable_destroy),
    VENDOR_SYMBOL("hipGraphDestroy", graph_destroy),
    VENDOR_SYMBOL("hipGetErrorName", hip_error_name),
    VENDOR_SYMBOL("hipSetDevice", hip_device_set),
    VENDOR_SYMBOL("hipDeviceEnablePeerAccess", hip_peer_enable),
    VENDOR_SYMBOL("hipGraphInstantiate", hip_graph_instantiate),
    VENDOR_SYMBOL_OPTIONAL("hipGetDeviceProperties", hip_properties),
    VENDOR_SYMBOL_OPTIONAL("hipGetDevicePropertiesR0600", hip_properties_6),
};

/* Splits HIP's version number: 60342134 is HIP 6.3. */
static void hip_version_split(uint32_t version, uint32_t *major, uint32_t *minor)
{
    *major = version / 10000000;
    *minor = version / 100000 % 100;
}

static const char *engine_error_name(const struct gpu_library *library, int error)
{
    return library->api.hip_error_name(error);
}

/* Takes "gfx90a" from "gfx90a:sramecc+:xnack-": our code objects work with any setting of these features. */
static int hip_arch(struct gpu_library *library, int device, struct gpu_info *out, struct err *err)
{
    _Alignas(16) char properties[PROPERTIES_ROOM] = {0};
    bool new_layout = library->api.hip_properties_6 != NULL;
    if (!new_layout && !library->api.hip_properties)
        return err_set(err, ERR_UNSUPPORTED, "%s has neither hipGetDevicePropertiesR0600 nor its older form",
                       library->file);
    int result = new_layout ? library->api.hip_properties_6(properties, device)
                            : library->api.hip_properties(properties, device);
    if (vendor_result(library,
                      new_layout ? offsetof(struct vendor_api, hip_properties_6)
                                 : offsetof(struct vendor_api, hip_properties),
                      result, "the architecture", err) != 0)
        return -1;
    const char *name = properties + (new_layout ? ARCH_AT_ROCM_6 : ARCH_AT_ROCM_5);
    size_t length = strnlen(name, ARCH_NAME_BYTES);
    for (size_t i = 0; i < length; i++)
        if (name[i] == ':')
            length = i;
    if (length < 4 || length >= sizeof(out->arch) || strncmp(name, "gfx", 3) != 0)
        return err_set(err, ERR_UNSUPPORTED, "%s names the architecture of device %d '%.*s': not a gfx…",
                       library->file, device, (int)(length < 32 ? length : 32), name);
    memcpy(out->arch, name, length);
    out->arch[length] = '\0';
    return 0;
}

static int hip_context_retain(struct gpu_context *context, struct err *err)
{
    return vendor_result(context->library, offsetof(struct vendor_api, hip_device_set),
                         context->library->api.hip_device_set(context->device), "a context", err);
}

static void hip_context_release(struct gpu_context *context)
{
    (void)context; /* the context belongs to the process as long as it lives */
}

static int hip_context_enter(const struct gpu_context *context)
{
    return context->library->api.hip_device_set(context->device);
}

static int engine_peer_enable(const struct gpu_context *context, const struct gpu_context *peer)
{
    return context->library->api.hip_peer_enable(peer->device, 0);
}

static int engine_graph_instantiate(struct gpu_context *context, void *graph, void **executable,
                                    struct err *err)
{
    int result = context->library->api.hip_graph_instantiate(executable, graph, NULL, NULL, 0);
    return vendor_context_result(context, offsetof(struct vendor_api, hip_graph_instantiate), result,
                                 "a recorded graph", err);
}

const struct vendor vendor_hip = {
    .kind = "hip",
    .environment = "MOTLEY_HIP_LIBRARY",
    .files = files,
    .symbols = symbols,
    .symbol_count = sizeof(symbols) / sizeof(*symbols),
    .version_least = 50000000,
    .least = "ROCm 5.0",
    .nodes = nodes,
    .nodes_made_by = "modprobe amdgpu",
    .nodes_given_by = "docker run --device /dev/kfd --device /dev/dri --group-add render; in Kubernetes a "
                      "limit amd.com/gpu",
    .pci_vendor = 0x1002,
    .module = "amdgpu",
    .lists_programs = "rocm-smi --showpids",
    .start_failed = "dmesg | grep -i -e amdgpu -e kfd says what the driver met",
    .card_hidden = "HIP does not show it: this user may not open its /dev/dri/renderD* (group render), or "
                   "ROCm does not know the card (rocminfo)",
    .hidden_by = hidden_by,
    .attribute_warp = ATTRIBUTE_WARP_SIZE,
    .attribute_shared = ATTRIBUTE_SHARED_PER_BLOCK,
    .attribute_units = ATTRIBUTE_MULTIPROCESSOR_COUNT,
    .attribute_clock = ATTRIBUTE_CLOCK_RATE,
    .attribute_mode = ATTRIBUTE_COMPUTE_MODE,
    .attribute_watchdog = ATTRIBUTE_WATCHDOG,
    .attribute_integrated = ATTRIBUTE_INTEGRATED,
    .param_end = 3,
    .ipc_flag_since = 60000000, /* ROCm 6.0; in ROCm 5 the flag hipIpcMemLazyEnablePeerAccess is 0 */
    .uuid_is_text = true,
    .jit_log = false,
    .version_split = hip_version_split,
    .error_name = engine_error_name,
    .arch = hip_arch,
    .context_retain = hip_context_retain,
    .context_release = hip_context_release,
    .context_enter = hip_context_enter,
    .peer_enable = engine_peer_enable,
    .enter_at = offsetof(struct vendor_api, hip_device_set),
    .peer_at = offsetof(struct vendor_api, hip_peer_enable),
    .graph_instantiate = engine_graph_instantiate,
    .shared_allow = NULL,
};
