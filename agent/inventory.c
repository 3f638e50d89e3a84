#include "agent/inventory.h"

#include <stdbool.h>
#include <string.h>

#include "agent/cards.h"
#include "agent/config.h"
#include "agent/machine.h"
#include "common/confine.h"

/* Describes a device by stable properties only, because a measurement is valid for one description. */
static json_t *device_describe(const struct agent_config *config, const struct agent_device *device,
                               const char *cpu)
{
    bool card = strcmp(device->kind, "cpu") != 0;
    const char *effective = device->arch[0] != '\0'              ? device->arch
                            : strcmp(device->isa, "native") == 0 ? isa_native()
                                                                 : device->isa;
    json_t *described =
        json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:I}", "name", device->name, "kind", device->kind,
                  "threads", (json_int_t)device->threads, "isa", device->isa, "isa_effective", effective,
                  "cpu", cpu, "memory_limit_bytes", (json_int_t)device->memory_limit_bytes);
    json_t *products = json_object_get(cards_find(config->cards, device->kind, device->index), "products");
    if (card && described) {
        if (json_is_object(products))
            json_object_set(described, "products", products);
        json_object_set_new(described, "index", json_integer(device->index));
        if (device->base_bytes != 0)
            json_object_set_new(described, "base_bytes", json_integer((json_int_t)device->base_bytes));
        if (device->like[0] != '\0')
            json_object_set_new(described, "like", json_string(device->like));
    }
    return described;
}

json_t *inventory_make(const struct agent_config *config, struct err *err)
{
    char id[64];
    char cpu[256];
    const char *model = machine_cpu(cpu);
    json_t *devices = json_array();
    for (uint32_t i = 0; i < config->device_count; i++)
        json_array_append_new(devices, device_describe(config, &config->devices[i], model));
    json_t *all = json_pack("{s:s, s:I, s:I, s:s, s:s, s:o, s:o}", "machine_id", machine_id(id), "cores",
                            (json_int_t)cpu_count(), "memory_bytes", (json_int_t)memory_total_bytes(), "isa",
                            isa_native(), "cpu", model, "gpus", machine_gpus(), "devices", devices);
    if (all && config->cards) {
        json_object_set(all, "cards", json_object_get(config->cards, "cards"));
        json_object_set(all, "drivers", json_object_get(config->cards, "drivers"));
    }
    const char *lacks = confine_lacks();
    if (all && config->sandbox == AGENT_SANDBOX_OFF)
        json_object_set_new(
            all, "unconfined",
            json_string("its workers are in no sandbox: its agent's configuration has sandbox: off"));
    else if (all && lacks && config->sandbox == AGENT_SANDBOX_AUTO)
        json_object_set_new(all, "unconfined",
                            json_sprintf("its workers' sandbox is open: this kernel has no %s", lacks));
    if (!all)
        err_set(err, ERR_NOMEM, "no memory for the inventory");
    return all;
}
