/* Reads AMD's management library of ROCm 5 and 6, with our own declarations of the functions that are used,
 * after rocm_smi.h of ROCm 5.2 and 6.4.
 * Clocks and throttling come from the metrics table, whose beginning is the same in both versions; lists of
 * frequencies are not.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/gpu/health_private.h"

enum {
    RSMI_OK = 0,
    TEMPERATURE_EDGE = 0,
    TEMPERATURE_HOTSPOT = 1,
    TEMPERATURE_NOW = 0,
    LINK_XGMI = 2,
    BLOCKS = 14, /* units of a card that count their errors, one bit each */
    METRICS_BYTES = 4096,
    VERSION_LEAST = 5,
    VERSION_OF_DEBIAN = 1 /* major version that Debian's builds of ROCm 5 and 6 report (librocm_smi64.so.1) */
};

struct rsmi_version {
    uint32_t major, minor, patch;
    const char *build;
};
struct rsmi_errors {
    uint64_t corrected, uncorrected, deferred; /* deferred: only written by later versions */
};
/* The beginning of rsmi_gpu_metrics_t. */
struct rsmi_metrics {
    uint16_t size;
    uint8_t format, content;
    uint16_t temperatures[6], activities[3], power_w;
    uint64_t energy, time;
    uint16_t clocks_mean[7], clocks_mhz[7]; /* the first clock is that of the compute units */
    uint32_t throttle;                      /* bits whose meaning differs between cards */
    uint16_t fan, pcie[2], padding;
    uint32_t activities_sum[2];
    uint16_t temperatures_memory[4];
    /* The fields below are 0 unless ROCm is 6 or later and the table's `content` revision is 3. */
    uint64_t firmware_time;
    uint16_t millivolts[3];
    uint64_t reasons; /* throttle reasons, the same bits for all cards */
};
_Static_assert(offsetof(struct rsmi_metrics, throttle) == 68, "as ROCm SMI lays it out");

/* The bits of rsmi_metrics.reasons (SMU_THROTTLER_…_BIT of the Linux kernel's amdgpu driver). */
static const struct {
    uint64_t bits;
    const char *name;
} reasons[] = {{0xffffull << 32, "thermal"}, {0xffffffffull, "power"}, {0xffffull << 48, "hardware"}};

struct rsmi_api {
    int (*init)(uint64_t);
    int (*shutdown)(void);
    int (*version)(struct rsmi_version *);
    int (*count)(uint32_t *);
    int (*pci)(uint32_t, uint64_t *);
    int (*name)(uint32_t, char *, size_t);
    int (*temperature)(uint32_t, uint32_t, int, int64_t *);
    int (*power)(uint32_t, uint32_t, uint64_t *);
    int (*power_cap)(uint32_t, uint32_t, uint64_t *);
    int (*memory_total)(uint32_t, uint32_t, uint64_t *);
    int (*memory_used)(uint32_t, uint32_t, uint64_t *);
    int (*errors)(uint32_t, uint64_t, struct rsmi_errors *);
    int (*metrics)(uint32_t, void *);
    int (*link)(uint32_t, uint32_t, uint64_t *, int *);
};

#define NEEDED(symbol, field) {symbol, NULL, offsetof(struct rsmi_api, field), true}
#define OPTIONAL(symbol, field) {symbol, NULL, offsetof(struct rsmi_api, field), false}

static const struct health_symbol symbols[] = {
    NEEDED("rsmi_init", init),
    NEEDED("rsmi_shut_down", shutdown),
    NEEDED("rsmi_version_get", version),
    NEEDED("rsmi_num_monitor_devices", count),
    NEEDED("rsmi_dev_pci_id_get", pci),
    OPTIONAL("rsmi_dev_name_get", name),
    OPTIONAL("rsmi_dev_temp_metric_get", temperature),
    OPTIONAL("rsmi_dev_power_ave_get", power),
    OPTIONAL("rsmi_dev_power_cap_get", power_cap),
    OPTIONAL("rsmi_dev_memory_total_get", memory_total),
    OPTIONAL("rsmi_dev_memory_usage_get", memory_used),
    OPTIONAL("rsmi_dev_ecc_count_get", errors),
    OPTIONAL("rsmi_dev_gpu_metrics_info_get", metrics),
    OPTIONAL("rsmi_topo_get_link_type", link),
};

struct rsmi {
    struct rsmi_api api;
    uint32_t count;
};

static int rsmi_open(void **state, char version[HEALTH_VERSION_SIZE], struct err *err)
{
    static const char *const files[] = {"librocm_smi64.so.7",
                                        "librocm_smi64.so.6",
                                        "librocm_smi64.so.5",
                                        "librocm_smi64.so.1",
                                        "librocm_smi64.so",
                                        "/opt/rocm/lib/librocm_smi64.so",
                                        NULL};
    struct rsmi *rsmi = calloc(1, sizeof(*rsmi));
    struct rsmi_version is = {0};
    version[0] = '\0';
    if (!rsmi)
        return err_set(err, ERR_NOMEM, "out of memory for ROCm SMI");
    int status = health_library("ROCm SMI", "ROCm 5.0", "MOTLEY_ROCM_SMI_LIBRARY", files, symbols,
                                sizeof(symbols) / sizeof(*symbols), &rsmi->api, err);
    if (status == 0 &&
        (rsmi->api.version(&is) != RSMI_OK || (is.major < VERSION_LEAST && is.major != VERSION_OF_DEBIAN)))
        status = err_set(err, ERR_UNSUPPORTED,
                         "ROCm SMI is of version %u.%u: at least 5.0 (ROCm 5) is needed", is.major, is.minor);
    int result = status == 0 ? rsmi->api.init(0) : 0;
    if (result != RSMI_OK)
        status = err_set(err, ERR_UNSUPPORTED, "ROCm SMI does not begin: error %d", result);
    if (status != 0) {
        free(rsmi);
        return -1;
    }
    snprintf(version, HEALTH_VERSION_SIZE, "%u.%u.%u", is.major, is.minor, is.patch);
    if (rsmi->api.count(&rsmi->count) != RSMI_OK)
        rsmi->count = 0;
    rsmi->count = rsmi->count < HEALTH_CARDS_MAX ? rsmi->count : HEALTH_CARDS_MAX;
    *state = rsmi;
    return 0;
}

static void rsmi_close(void *state)
{
    struct rsmi *rsmi = state;
    rsmi->api.shutdown();
    free(rsmi);
}

static bool pci_read(const struct rsmi *rsmi, uint32_t index, char out[24])
{
    uint64_t id = 0;
    bool known = rsmi->api.pci(index, &id) == RSMI_OK;
    snprintf(out, 24, "%04x:%02x:%02x.%x", (unsigned)(id >> 32), (unsigned)(id >> 8 & 0xff),
             (unsigned)(id >> 3 & 0x1f), (unsigned)(id & 7));
    return known;
}

/* Sets out["throttle"]. Where the table has only the bits whose meaning differs between cards, a card that
 * draws its power limit is taken to be limited by it, as nearly all cards under load are. */
static void throttle_set(const struct rsmi_metrics *metrics, json_t *out)
{
    double watts = json_number_value(json_object_get(out, "power_w"));
    double limit = json_number_value(json_object_get(out, "power_limit_w"));
    json_t *list = json_array();
    bool known = metrics->reasons != 0 && metrics->reasons != UINT64_MAX;
    for (size_t i = 0; i < sizeof(reasons) / sizeof(*reasons) && known; i++)
        if ((metrics->reasons & reasons[i].bits) != 0)
            json_array_append_new(list, json_string(reasons[i].name));
    if (!known && metrics->throttle != 0)
        json_array_append_new(list, json_string(limit > 0 && watts >= 0.95 * limit ? "power" : "hardware"));
    json_object_set_new(out, "throttle", list);
}

static void health_rocm_smi_metrics_read(const struct rsmi_api *api, uint32_t index, json_t *out)
{
    static _Alignas(8) uint8_t table[METRICS_BYTES]; /* later versions write more than we read */
    struct rsmi_metrics metrics;
    memset(table, 0, sizeof(table));
    if (!api->metrics || api->metrics(index, table) != RSMI_OK)
        return;
    memcpy(&metrics, table, sizeof(metrics));
    if (metrics.format != 1 || metrics.content > 3)
        return;
    if (metrics.clocks_mhz[0] != UINT16_MAX)
        health_set(out, "clock_khz", metrics.clocks_mhz[0] * 1000ull);
    if (metrics.throttle != UINT32_MAX)
        throttle_set(&metrics, out);
}

/* out[key] = the answer of `ask` for `index` and 0, divided by `divisor`; nothing is set if `ask` fails. */
static void health_rocm_smi_set_value(json_t *out, const char *key,
                                      int (*ask)(uint32_t, uint32_t, uint64_t *), uint32_t index,
                                      uint64_t divisor)
{
    uint64_t value = 0;
    if (ask && ask(index, 0, &value) == RSMI_OK)
        health_set(out, key, value / divisor);
}

static void errors_read(const struct rsmi_api *api, uint32_t index, json_t *out)
{
    uint64_t uncorrected = 0;
    bool counted = false;
    for (int block = 0; block < BLOCKS && api->errors; block++) {
        struct rsmi_errors errors = {0};
        if (api->errors(index, 1ull << block, &errors) == RSMI_OK) {
            counted = true;
            uncorrected += errors.uncorrected;
        }
    }
    if (counted)
        health_set(out, "ecc_uncorrected", uncorrected);
}

static void health_rocm_smi_numbers_read(const struct rsmi_api *api, uint32_t index, json_t *out)
{
    int64_t milli = 0;
    bool warm = api->temperature &&
                (api->temperature(index, TEMPERATURE_HOTSPOT, TEMPERATURE_NOW, &milli) == RSMI_OK ||
                 api->temperature(index, TEMPERATURE_EDGE, TEMPERATURE_NOW, &milli) == RSMI_OK);
    if (warm && milli >= 0)
        health_set(out, "temperature_c", (uint64_t)milli / 1000);
    health_rocm_smi_set_value(out, "power_w", api->power, index, 1000000);
    health_rocm_smi_set_value(out, "power_limit_w", api->power_cap, index, 1000000);
    /* health_rocm_smi_set_value asks for memory of kind 0, which is the card's own. */
    health_rocm_smi_set_value(out, "memory_bytes", api->memory_total, index, 1);
    health_rocm_smi_set_value(out, "used_bytes", api->memory_used, index, 1);
    errors_read(api, index, out);
}

static void health_rocm_smi_links_read(const struct rsmi *rsmi, uint32_t index, json_t *out)
{
    json_t *links = json_array();
    for (uint32_t i = 0; i < rsmi->count && rsmi->api.link; i++) {
        char to[24];
        uint64_t hops = 0;
        int type = 0;
        if (i != index && pci_read(rsmi, i, to) && rsmi->api.link(index, i, &hops, &type) == RSMI_OK)
            json_array_append_new(
                links, json_pack("{s:s, s:s}", "to", to, "level", type == LINK_XGMI ? "xgmi" : "system"));
    }
    json_object_set_new(out, "links", links);
}

static int rsmi_read(void *state, json_t *cards, struct err *err)
{
    struct rsmi *rsmi = state;
    (void)err;
    for (uint32_t i = 0; i < rsmi->count; i++) {
        char pci[24], name[128] = "";
        if (!pci_read(rsmi, i, pci))
            continue;
        json_t *out = json_pack("{s:s, s:s}", "kind", "hip", "pci", pci);
        if (rsmi->api.name && rsmi->api.name(i, name, sizeof(name)) == RSMI_OK)
            json_object_set_new(out, "name", json_string(name));
        health_rocm_smi_numbers_read(&rsmi->api, i, out);
        health_rocm_smi_metrics_read(&rsmi->api, i, out);
        health_rocm_smi_links_read(rsmi, i, out);
        json_array_append_new(cards, out);
    }
    return 0;
}

const struct health_source health_rocm_smi = {"hip", rsmi_open, rsmi_read, rsmi_close};
