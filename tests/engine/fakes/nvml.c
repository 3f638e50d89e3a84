/* A fake libnvidia-ml.so.1 with two cards that NVLink connects. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/fakes/health.h"

FAKE_EXPORT struct fake_health fake_health = {.lost = -1, .used = 6000000000u, .pid = 77};

enum { NOT_SUPPORTED = 3, NOT_FOUND = 6, TIMEOUT = 10, GPU_IS_LOST = 15 };
static char cards[2], slices[2], set;

/* Whether the handle is a MIG slice of the first card, whose slices have the indices 1 and 3. The card counts
 * as divided by MIG when fake_health.mig or the environment variable MOTLEY_FAKE_MIG is set. */
static bool is_slice(const void *device)
{
    return device == &slices[0] || device == &slices[1];
}

#define NVML(name, ...)                                                                                      \
    FAKE_EXPORT int name(__VA_ARGS__);                                                                       \
    FAKE_EXPORT int name(__VA_ARGS__)

static int number(const void *device)
{
    return device == &cards[1];
}
static int alive(const void *device)
{
    return fake_health.lost == number(device) ? GPU_IS_LOST : 0;
}
static int give(const void *device, unsigned *out, unsigned first, unsigned second)
{
    *out = number(device) == 0 ? first : second;
    return alive(device);
}

NVML(nvmlInit_v2, void)
{
    fake_health.open++;
    return fake_health.init;
}
NVML(nvmlShutdown, void)
{
    fake_health.closed++;
    return 0;
}
FAKE_EXPORT const char *nvmlErrorString(int error);
FAKE_EXPORT const char *nvmlErrorString(int error)
{
    return error == GPU_IS_LOST ? "GPU is lost"
           : error == 9         ? "Driver Not Loaded"
           : error == 18        ? "Driver/library version mismatch"
                                : "error";
}
NVML(nvmlSystemGetDriverVersion, char *out, unsigned room)
{
    snprintf(out, room, "535.104.05");
    return 0;
}
NVML(nvmlDeviceGetCount_v2, unsigned *count)
{
    *count = 2;
    return 0;
}
NVML(nvmlDeviceGetHandleByIndex_v2, unsigned index, void **device)
{
    *device = index < 2 ? &cards[index] : NULL;
    return index < 2 ? 0 : NOT_FOUND;
}
NVML(nvmlDeviceGetUUID, void *device, char *out, unsigned room)
{
    snprintf(out, room, is_slice(device) ? "MIG-0001020%d" : "GPU-0001020%d",
             is_slice(device) ? 3 + (device == &slices[1]) : number(device));
    return 0;
}
NVML(nvmlDeviceGetName, void *device, char *out, unsigned room)
{
    snprintf(out, room, "Fake RTX %d", number(device));
    return 0;
}
struct pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};
NVML(nvmlDeviceGetPciInfo_v3, void *device, struct pci *pci)
{
    *pci = (struct pci){.bus = number(device) == 0 ? 0x0a : 0x0b};
    snprintf(pci->bus_id, sizeof(pci->bus_id), "00000000:%02X:00.0", pci->bus);
    return 0;
}
NVML(nvmlDeviceGetTemperature, void *device, int sensor, unsigned *out)
{
    return sensor == 0 ? give(device, out, 93, 41) : NOT_SUPPORTED;
}
NVML(nvmlDeviceGetClockInfo, void *device, int type, unsigned *out)
{
    return type == 1 ? give(device, out, 900, 1800) : NOT_SUPPORTED;
}
NVML(nvmlDeviceGetMaxClockInfo, void *device, int type, unsigned *out)
{
    return type == 1 ? give(device, out, 1800, 1800) : NOT_SUPPORTED;
}
NVML(nvmlDeviceGetPowerUsage, void *device, unsigned *out)
{
    return give(device, out, 349600, 30000);
}
NVML(nvmlDeviceGetEnforcedPowerLimit, void *device, unsigned *out)
{
    return give(device, out, 350000, 350000);
}
NVML(nvmlDeviceGetCurrentClocksThrottleReasons, void *device, unsigned long long *out)
{
    *out = number(device) == 0 ? fake_health.throttle : 1; /* The second card reports that it is idle. */
    return alive(device);
}
NVML(nvmlDeviceGetTotalEccErrors, void *device, int kind, int counter, unsigned long long *out)
{
    *out = kind == 1 ? (counter == 0 ? 2 : 5) : 1000;
    return number(device) == 0 ? alive(device) : NOT_SUPPORTED;
}
struct memory {
    unsigned long long total, available, used;
};
NVML(nvmlDeviceGetMemoryInfo, void *device, struct memory *out)
{
    *out = (struct memory){24000000000u, 24000000000u - fake_health.used - 400000000u,
                           fake_health.used + 400000000u};
    return alive(device);
}
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, available, used;
};
NVML(nvmlDeviceGetMemoryInfo_v2, void *device, struct memory_v2 *out)
{
    if (fake_health.older || out->version != (sizeof(*out) | 2u << 24))
        return NOT_SUPPORTED;
    out->total = is_slice(device) ? 12000000000u : 24000000000u;
    out->used = is_slice(device) ? 1000000000u : fake_health.used;
    return alive(device);
}
struct process {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu, compute;
};
struct process_535 {
    struct process is;
    unsigned long long bytes_protected;
};
NVML(nvmlDeviceGetComputeRunningProcesses_v3, void *device, unsigned *count, void *out)
{
    const struct process list[] = {{.pid = fake_health.pid, .bytes = fake_health.used / 2},
                                   {.pid = 1, .bytes = ~0ull}};
    const unsigned room = *count;
    *count = number(device) == 0 ? 2 : 0;
    for (unsigned i = 0; i < *count && *count <= room; i++)
        if (fake_health.early_535)
            ((struct process_535 *)out)[i] = (struct process_535){list[i], 0};
        else
            ((struct process *)out)[i] = list[i];
    return alive(device);
}
NVML(nvmlDeviceGetMigMode, void *device, unsigned *now, unsigned *next)
{
    *now = *next = (unsigned)((fake_health.mig || getenv("MOTLEY_FAKE_MIG") != NULL) && number(device) == 0);
    return 0;
}
NVML(nvmlDeviceGetMigDeviceHandleByIndex, void *device, unsigned index, void **out)
{
    *out = &slices[index == 3];
    return number(device) == 0 && (index == 1 || index == 3) ? 0 : NOT_FOUND;
}
NVML(nvmlDeviceGetTopologyCommonAncestor, void *one, void *other, int *level)
{
    *level = 40;
    return one != other ? 0 : NOT_SUPPORTED;
}
NVML(nvmlDeviceGetP2PStatus, void *one, void *other, int index, int *status)
{
    *status = index == 2 && one == &cards[1] && other == &cards[0] ? 0 : 1;
    return 0;
}
NVML(nvmlEventSetCreate, void **out)
{
    *out = &set;
    return 0;
}
NVML(nvmlDeviceRegisterEvents, void *device, unsigned long long types, void *events)
{
    return device && types == 8 && events == &set ? 0 : NOT_SUPPORTED;
}
struct event {
    void *device;
    unsigned long long type, data;
    unsigned gpu, compute;
};
NVML(nvmlEventSetWait_v2, void *events, struct event *out, unsigned milliseconds)
{
    if (events != &set || milliseconds != 0 || fake_health.xid == 0)
        return TIMEOUT;
    *out = (struct event){&cards[1], 8, fake_health.xid, 0, 0};
    fake_health.xid = 0;
    return 0;
}
NVML(nvmlEventSetFree, void *events)
{
    return events == &set ? 0 : NOT_FOUND;
}
