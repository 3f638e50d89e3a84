#include "agent/inventory.h"

#include <string.h>

#include "agent/config.h"
#include "agent/machine.h"

json_t *inventory_make(const struct agent_config *config, struct err *err)
{
    char id[64];
    char cpu[256];
    const char *model = machine_cpu(cpu);
    json_t *devices = json_array();
    for (uint32_t i = 0; i < config->device_count; i++) {
        const struct agent_device *device = &config->devices[i];
        const char *effective = strcmp(device->isa, "native") == 0 ? isa_native() : device->isa;
        json_array_append_new(devices,
                              json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:I}", "name", device->name, "kind",
                                        device->kind, "threads", (json_int_t)device->threads, "isa",
                                        device->isa, "isa_effective", effective, "cpu", model,
                                        "memory_limit_bytes", (json_int_t)device->memory_limit_bytes));
    }
    json_t *all = json_pack("{s:s, s:I, s:I, s:s, s:s, s:o, s:o}", "machine_id", machine_id(id), "cores",
                            (json_int_t)cpu_count(), "memory_bytes", (json_int_t)memory_total_bytes(), "isa",
                            isa_native(), "cpu", model, "gpus", machine_gpus(), "devices", devices);
    if (all == NULL) {
        err_set(err, ERR_NOMEM, "no memory for the inventory");
    }
    return all;
}
