/* A fake librocm_smi64.so with two cards that XGMI connects. */
#include <stdio.h>
#include <string.h>

#include "engine/fakes/health.h"

FAKE_EXPORT struct fake_health fake_health = {.lost = -1, .version = 6, .used = 3000000000u};

enum { NOT_SUPPORTED = 2 };

#define RSMI(name, ...)                                                                                      \
    FAKE_EXPORT int name(__VA_ARGS__);                                                                       \
    FAKE_EXPORT int name(__VA_ARGS__)

RSMI(rsmi_init, uint64_t flags)
{
    fake_health.open++;
    return flags == 0 ? fake_health.init : 1;
}
RSMI(rsmi_shut_down, void)
{
    fake_health.closed++;
    return 0;
}
struct version {
    uint32_t major, minor, patch;
    const char *build;
};
RSMI(rsmi_version_get, struct version *out)
{
    *out = (struct version){fake_health.version, 1, 2, "build"};
    return 0;
}
RSMI(rsmi_num_monitor_devices, uint32_t *count)
{
    *count = 2;
    return 0;
}
RSMI(rsmi_dev_pci_id_get, uint32_t device, uint64_t *out)
{
    *out = 0x100000300u + ((uint64_t)device << 8);
    return 0;
}
RSMI(rsmi_dev_name_get, uint32_t device, char *out, size_t room)
{
    snprintf(out, room, "Fake Instinct %u", device);
    return 0;
}
RSMI(rsmi_dev_temp_metric_get, uint32_t device, uint32_t sensor, int metric, int64_t *out)
{
    *out = sensor == 0 ? 70000 : 88500;
    return metric == 0 && (device == 0 || sensor == 0)
               ? 0
               : NOT_SUPPORTED; /* The second card has no hotspot sensor. */
}
RSMI(rsmi_dev_power_ave_get, uint32_t device, uint32_t sensor, uint64_t *out)
{
    *out = 250000000;
    return device == 0 && sensor == 0 ? 0 : NOT_SUPPORTED;
}
RSMI(rsmi_dev_memory_total_get, uint32_t device, int kind, uint64_t *out)
{
    *out = 64000000000u;
    return device < 2 && kind == 0 ? 0 : NOT_SUPPORTED;
}
RSMI(rsmi_dev_memory_usage_get, uint32_t device, int kind, uint64_t *out)
{
    *out = fake_health.used;
    return device < 2 && kind == 0 ? 0 : NOT_SUPPORTED;
}
struct errors {
    uint64_t corrected, uncorrected, deferred;
};
RSMI(rsmi_dev_ecc_count_get, uint32_t device, uint64_t block, struct errors *out)
{
    *out = (struct errors){9, block == 1 ? 3 : 1, 0};
    return device == 0 && (block == 1 || block == 4) ? 0 : NOT_SUPPORTED;
}
RSMI(rsmi_dev_gpu_metrics_info_get, uint32_t device, uint8_t *out)
{
    const uint16_t clock = 1234;
    const uint32_t throttle = (uint32_t)fake_health.throttle;
    out[2] = 1;
    out[3] = (uint8_t)(device == 0 ? 3 : 4); /* The second card's metrics table has an unknown format. */
    memcpy(out + 54, &clock, sizeof(clock));
    memcpy(out + 68, &throttle, sizeof(throttle));
    memcpy(out + 112, &fake_health.reasons, sizeof(fake_health.reasons));
    return 0;
}
RSMI(rsmi_topo_get_link_type, uint32_t one, uint32_t other, uint64_t *hops, int *type)
{
    *hops = 1;
    *type = 2;
    return one != other ? 0 : NOT_SUPPORTED;
}
