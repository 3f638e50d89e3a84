/* Reads NVIDIA's management library, of driver 470 or later, with our own declarations of the functions that
 * are used. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/gpu/health_private.h"

enum {
    NVML_OK = 0,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_GPU_IS_LOST = 15,
    NVML_RESET_REQUIRED = 16,
    NVML_VERSION_MISMATCH = 18,
    SENSOR_GPU = 0,
    CLOCK_SM = 1,
    ECC_UNCORRECTED = 1,
    ECC_VOLATILE = 0,
    ECC_AGGREGATE = 1,
    EVENT_XID = 8,
    CAPABILITY_NVLINK = 2,
    PROCESSES_MAX = 128,
    PROCESS_BYTES_535 = 32, /* of struct nvml_process as early drivers of release 535 write it */
    UNTOUCHED = 0xa5,       /* fills the list of processes before it is read */
    SLICES_MAX = 16
};

/* Reasons for a reduced clock that nobody chose (nvmlClocksEventReasons…). */
static const struct {
    uint64_t bits;
    const char *name;
} reasons[] = {{0x20 | 0x40, "thermal"}, {0x04, "power"}, {0x80, "brake"}, {0x08, "hardware"}};

/* What an Xid means, after NVIDIA's catalogue of Xid errors. Numbers that are not here may be either a
 * program's fault or the card's. */
static const struct {
    uint64_t xid;
    const char *means;
} xids[] = {
#define OF_PROGRAM "a program's fault, which ends that program: the card goes on"
#define RESET "; the card needs a reset (nvidia-smi -r) or a reboot"
    {13, OF_PROGRAM},
    {31, OF_PROGRAM},
    {43, OF_PROGRAM},
    {45, "a program was ended, often after another fault: the card goes on"},
    {48, "a memory error that ECC could not correct" RESET},
    {61, "the card's controller failed" RESET},
    {62, "the card's controller failed" RESET},
    {63, "a row of the card's memory is taken out of use with the next reset"},
    {64,
     "a failing row of the card's memory could not be taken out of use" RESET "; if it returns, replace it"},
    {68, OF_PROGRAM},
    {69, OF_PROGRAM},
    {74, "an NVLink failed" RESET},
    {79, "the card fell off its bus: check its power and its slot, then reboot"},
    {92, "the card's memory has many corrected errors"},
    {94, "a memory error that ended one program: the card goes on, and a reset takes the row out of use"},
    {95, "a memory error that no program contains" RESET},
    {109, OF_PROGRAM},
    {119, "the card's system processor does not answer" RESET},
    {120, "the card's system processor failed" RESET},
    {140, "a memory error that ECC could not correct" RESET},
};

struct nvml_pci {
    char bus_id_legacy[16];
    uint32_t domain, bus, device, device_id, subsystem;
    char bus_id[32];
};
struct nvml_memory {
    unsigned long long total, available, used;
};
struct nvml_memory_v2 {
    uint32_t version;
    unsigned long long total, reserved, available, used;
};
/* What drivers write for each process. Early drivers of release 535 write 8 more bytes after these, 32 in
 * all. */
struct nvml_process {
    uint32_t pid;
    unsigned long long bytes;
    uint32_t gpu_instance, compute_instance;
};
struct nvml_event {
    void *device;
    unsigned long long type, data;
    uint32_t gpu_instance, compute_instance;
};

struct nvml_api {
    int (*init)(void);
    int (*shutdown)(void);
    const char *(*error)(int);
    int (*driver_version)(char *, unsigned);
    int (*count)(unsigned *);
    int (*handle)(unsigned, void **);
    int (*uuid)(void *, char *, unsigned);
    int (*pci)(void *, struct nvml_pci *);
    int (*name)(void *, char *, unsigned);
    int (*temperature)(void *, int, unsigned *);
    int (*clock)(void *, int, unsigned *);
    int (*clock_max)(void *, int, unsigned *);
    int (*power)(void *, unsigned *);
    int (*power_limit)(void *, unsigned *);
    int (*reasons)(void *, unsigned long long *);
    int (*ecc)(void *, int, int, unsigned long long *);
    int (*memory)(void *, struct nvml_memory *);
    int (*memory_v2)(void *, struct nvml_memory_v2 *);
    int (*processes)(void *, unsigned *, void *);
    int (*mig_mode)(void *, unsigned *, unsigned *);
    int (*mig_slice)(void *, unsigned, void **);
    int (*ancestor)(void *, void *, int *);
    int (*p2p)(void *, void *, int, int *);
    int (*set_create)(void **);
    int (*set_add)(void *, unsigned long long, void *);
    int (*set_wait)(void *, struct nvml_event *, unsigned);
    int (*set_free)(void *);
};

#define NEEDED(symbol, field) {symbol, NULL, offsetof(struct nvml_api, field), true}
#define OPTIONAL(symbol, field) {symbol, NULL, offsetof(struct nvml_api, field), false}
#define RENAMED(symbol, before, field) {symbol, before, offsetof(struct nvml_api, field), false}

static const struct health_symbol symbols[] = {
    NEEDED("nvmlInit_v2", init),
    NEEDED("nvmlShutdown", shutdown),
    NEEDED("nvmlErrorString", error),
    NEEDED("nvmlSystemGetDriverVersion", driver_version),
    NEEDED("nvmlDeviceGetCount_v2", count),
    NEEDED("nvmlDeviceGetHandleByIndex_v2", handle),
    NEEDED("nvmlDeviceGetPciInfo_v3", pci),
    OPTIONAL("nvmlDeviceGetUUID", uuid),
    OPTIONAL("nvmlDeviceGetName", name),
    OPTIONAL("nvmlDeviceGetTemperature", temperature),
    OPTIONAL("nvmlDeviceGetClockInfo", clock),
    OPTIONAL("nvmlDeviceGetMaxClockInfo", clock_max),
    OPTIONAL("nvmlDeviceGetPowerUsage", power),
    OPTIONAL("nvmlDeviceGetEnforcedPowerLimit", power_limit),
    RENAMED("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons", reasons),
    OPTIONAL("nvmlDeviceGetTotalEccErrors", ecc),
    OPTIONAL("nvmlDeviceGetMemoryInfo", memory),
    OPTIONAL("nvmlDeviceGetMemoryInfo_v2", memory_v2), /* since driver 510 */
    RENAMED("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2", processes),
    OPTIONAL("nvmlDeviceGetMigMode", mig_mode),
    OPTIONAL("nvmlDeviceGetMigDeviceHandleByIndex", mig_slice),
    OPTIONAL("nvmlDeviceGetTopologyCommonAncestor", ancestor),
    OPTIONAL("nvmlDeviceGetP2PStatus", p2p),
    OPTIONAL("nvmlEventSetCreate", set_create),
    OPTIONAL("nvmlDeviceRegisterEvents", set_add),
    OPTIONAL("nvmlEventSetWait_v2", set_wait),
    OPTIONAL("nvmlEventSetFree", set_free),
};

struct nvml {
    struct nvml_api api;
    void *events; /* delivers Xid events; NULL: not available */
    uint32_t count;
    void *cards[HEALTH_CARDS_MAX];
    char pci[HEALTH_CARDS_MAX][24];
    uint64_t xid[HEALTH_CARDS_MAX]; /* the last Xid; 0: none yet */
};

static void pci_print(const struct nvml_pci *pci, char out[24])
{
    snprintf(out, 24, "%04X:%02X:%02X.0", pci->domain, pci->bus & 0xff, pci->device & 0xff);
}

/* Looks up the cards, once: a card that falls off its bus keeps its index until the library is opened again.
 */
static void health_nvml_cards_find(struct nvml *nvml, uint32_t count)
{
    const struct nvml_api *api = &nvml->api;
    struct nvml_pci pci;
    for (uint32_t i = 0; i < count && nvml->count < HEALTH_CARDS_MAX; i++) {
        void *card;
        memset(&pci, 0, sizeof(pci));
        if (api->handle(i, &card) != NVML_OK || api->pci(card, &pci) != NVML_OK)
            continue; /* this process may not see the card, as in a container */
        pci_print(&pci, nvml->pci[nvml->count]);
        nvml->cards[nvml->count++] = card;
        if (nvml->events)
            api->set_add(card, EVENT_XID, nvml->events);
    }
}

static int nvml_open(void **state, char version[HEALTH_VERSION_SIZE], struct err *err)
{
    static const char *const files[] = {"libnvidia-ml.so.1", NULL};
    struct nvml *nvml = calloc(1, sizeof(*nvml));
    const struct nvml_api *api = nvml ? &nvml->api : NULL;
    unsigned count = 0;
    version[0] = '\0';
    if (!nvml)
        return err_set(err, ERR_NOMEM, "out of memory for NVML");
    if (health_library("NVML", "driver 470", "MOTLEY_NVML_LIBRARY", files, symbols,
                       sizeof(symbols) / sizeof(*symbols), &nvml->api, err) != 0) {
        free(nvml);
        return -1;
    }
    int result = api->init();
    if (result != NVML_OK) {
        err_set(err, ERR_UNSUPPORTED, "NVML does not begin: %s (%d)%s", api->error(result), result,
                result == NVML_VERSION_MISMATCH
                    ? "; the driver was upgraded under the loaded kernel module: reboot, or load it anew"
                    : "");
        free(nvml);
        return -1;
    }
    if (api->driver_version(version, HEALTH_VERSION_SIZE) != NVML_OK)
        version[0] = '\0';
    bool events = api->set_create && api->set_add && api->set_wait && api->set_free &&
                  api->set_create(&nvml->events) == NVML_OK;
    nvml->events = events ? nvml->events : NULL;
    if (api->count(&count) == NVML_OK)
        health_nvml_cards_find(nvml, count);
    *state = nvml;
    return 0;
}

static void nvml_close(void *state)
{
    struct nvml *nvml = state;
    if (nvml->events)
        nvml->api.set_free(nvml->events);
    nvml->api.shutdown();
    free(nvml);
}

/* --- reading the cards' health */

/* out[key] = the answer of `ask` times `factor`; nothing is set if `ask` fails. */
static void set_of_type(json_t *out, const char *key, int (*ask)(void *, int, unsigned *), void *card,
                        int type, uint64_t factor)
{
    unsigned value = 0;
    if (ask && ask(card, type, &value) == NVML_OK)
        health_set(out, key, value * factor);
}

static void set_watts(json_t *out, const char *key, int (*ask)(void *, unsigned *), void *card)
{
    unsigned milliwatts = 0;
    if (ask && ask(card, &milliwatts) == NVML_OK)
        health_set(out, key, milliwatts / 1000);
}

static void set_ecc(json_t *out, const char *key, const struct nvml_api *api, void *card, int counter)
{
    unsigned long long value = 0;
    if (api->ecc && api->ecc(card, ECC_UNCORRECTED, counter, &value) == NVML_OK)
        health_set(out, key, value);
}

static void clocks_read(const struct nvml_api *api, void *card, json_t *out)
{
    unsigned long long bits = 0;
    set_of_type(out, "temperature_c", api->temperature, card, SENSOR_GPU, 1);
    set_of_type(out, "clock_khz", api->clock, card, CLOCK_SM, 1000);
    set_of_type(out, "clock_max_khz", api->clock_max, card, CLOCK_SM, 1000);
    set_watts(out, "power_w", api->power, card);
    set_watts(out, "power_limit_w", api->power_limit, card);
    if (!api->reasons || api->reasons(card, &bits) != NVML_OK)
        return;
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof(reasons) / sizeof(*reasons); i++)
        if ((bits & reasons[i].bits) != 0)
            json_array_append_new(list, json_string(reasons[i].name));
    json_object_set_new(out, "throttle", list);
}

static void health_nvml_memory_read(const struct nvml_api *api, void *card, json_t *out)
{
    struct nvml_memory_v2 two = {.version = (uint32_t)sizeof(two) | 2u << 24};
    struct nvml_memory one = {0};
    bool newer = api->memory_v2 && api->memory_v2(card, &two) == NVML_OK;
    bool known = newer || (api->memory && api->memory(card, &one) == NVML_OK);
    if (known) {
        health_set(out, "memory_bytes", newer ? two.total : one.total);
        health_set(out, "used_bytes", newer ? two.used : one.used);
    }
}

/* Returns how many bytes the driver wrote for each of `count` processes. A driver's version does not tell,
 * but if the bytes behind `count` short records were written, the records are the long ones. */
static size_t process_bytes(const uint8_t *list, unsigned count)
{
    for (size_t i = count * sizeof(struct nvml_process); i < (size_t)count * PROCESS_BYTES_535; i++)
        if (list[i] != UNTOUCHED)
            return PROCESS_BYTES_535;
    return sizeof(struct nvml_process);
}

static void processes_read(const struct nvml_api *api, void *card, json_t *out)
{
    static _Alignas(8) uint8_t list[PROCESSES_MAX * PROCESS_BYTES_535];
    unsigned count = PROCESSES_MAX;
    memset(list, UNTOUCHED, sizeof(list));
    if (!api->processes || api->processes(card, &count, list) != NVML_OK || count > PROCESSES_MAX)
        return;
    size_t bytes = process_bytes(list, count);
    json_t *all = json_array();
    for (unsigned i = 0; i < count; i++) {
        struct nvml_process is;
        memcpy(&is, list + i * bytes, sizeof(is));
        json_t *process = json_pack("{s:I, s:n}", "pid", (json_int_t)is.pid, "bytes");
        if (is.bytes != ~0ull)
            health_set(process, "bytes", is.bytes);
        json_array_append_new(all, process);
    }
    json_object_set_new(out, "processes", all);
}

static void mig_read(const struct nvml_api *api, void *card, json_t *out)
{
    unsigned now = 0, next = 0;
    if (!api->mig_mode || !api->mig_slice || api->mig_mode(card, &now, &next) != NVML_OK)
        return;
    json_t *slices = json_array();
    for (unsigned i = 0; now != 0 && i < SLICES_MAX; i++) {
        char uuid[96] = "";
        void *slice;
        if (api->mig_slice(card, i, &slice) != NVML_OK)
            continue;
        json_t *one = json_object();
        if (api->uuid && api->uuid(slice, uuid, sizeof(uuid)) == NVML_OK)
            json_object_set_new(one, "uuid", json_string(uuid));
        health_nvml_memory_read(api, slice, one);
        json_array_append_new(slices, one);
    }
    json_object_set_new(out, "mig", json_pack("{s:b, s:o}", "mode", now != 0, "slices", slices));
}

static const char *level_name(int level)
{
    static const char *const names[] = {"board", "switch", "switches", "bridge", "node", "system"};
    return level >= 0 && level % 10 == 0 && level <= 50 ? names[level / 10] : NULL;
}

static void health_nvml_links_read(const struct nvml *nvml, uint32_t index, json_t *out)
{
    const struct nvml_api *api = &nvml->api;
    json_t *links = json_array();
    for (uint32_t i = 0; i < nvml->count; i++) {
        int level = -1, status = -1;
        const char *name = NULL;
        if (i == index)
            continue;
        if (api->ancestor && api->ancestor(nvml->cards[index], nvml->cards[i], &level) == NVML_OK)
            name = level_name(level);
        if (api->p2p && api->p2p(nvml->cards[index], nvml->cards[i], CAPABILITY_NVLINK, &status) == NVML_OK &&
            status == 0)
            name = "nvlink";
        if (name)
            json_array_append_new(links, json_pack("{s:s, s:s}", "to", nvml->pci[i], "level", name));
    }
    json_object_set_new(out, "links", links);
}

/* Collects the Xid events since the last reading, without waiting. */
static void xids_take(struct nvml *nvml)
{
    struct nvml_event event;
    for (int i = 0; i < HEALTH_CARDS_MAX && nvml->events; i++) {
        memset(&event, 0, sizeof(event));
        if (nvml->api.set_wait(nvml->events, &event, 0) != NVML_OK)
            return;
        for (uint32_t k = 0; k < nvml->count; k++)
            if (nvml->cards[k] == event.device && event.type == EVENT_XID)
                nvml->xid[k] = event.data;
    }
}

static int nvml_read(void *state, json_t *cards, struct err *err)
{
    struct nvml *nvml = state;
    const struct nvml_api *api = &nvml->api;
    (void)err;
    xids_take(nvml);
    for (uint32_t i = 0; i < nvml->count; i++) {
        void *card = nvml->cards[i];
        char text[128] = "";
        unsigned probe = 0;
        json_t *out = json_pack("{s:s, s:s}", "kind", "cuda", "pci", nvml->pci[i]);
        if (api->uuid && api->uuid(card, text, sizeof(text)) == NVML_OK)
            json_object_set_new(out, "uuid", json_string(text));
        if (api->name && api->name(card, text, sizeof(text)) == NVML_OK)
            json_object_set_new(out, "name", json_string(text));
        int result = api->temperature ? api->temperature(card, SENSOR_GPU, &probe) : NVML_OK;
        if (result == NVML_GPU_IS_LOST || result == NVML_RESET_REQUIRED) {
            json_object_set_new(out, "why", json_sprintf("%s (NVML %d)", api->error(result), result));
        } else {
            clocks_read(api, card, out);
            health_nvml_memory_read(api, card, out);
            set_ecc(out, "ecc_uncorrected", api, card, ECC_VOLATILE);
            set_ecc(out, "ecc_uncorrected_total", api, card, ECC_AGGREGATE);
            processes_read(api, card, out);
            mig_read(api, card, out);
            health_nvml_links_read(nvml, i, out);
        }
        if (nvml->xid[i] != 0)
            health_set(out, "xid", nvml->xid[i]);
        for (size_t k = 0; k < sizeof(xids) / sizeof(*xids); k++)
            if (nvml->xid[i] == xids[k].xid)
                json_object_set_new(out, "xid_means", json_string(xids[k].means));
        json_array_append_new(cards, out);
    }
    return 0;
}

const struct health_source health_nvml = {"cuda", nvml_open, nvml_read, nvml_close};
