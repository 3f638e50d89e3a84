#include "engine/gpu/cards.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/program_json.h"
#include "engine/gpu/code.h"
#include "engine/gpu/gpu.h"
#include "engine/gpu/health.h"
#include "engine/gpu/products.h"
#include "engine/gpu/vendor_private.h"

enum { LOOK_COUNT = 1024 };

/* The buffers and queue of a card's first kernel. */
struct look {
    struct gpu_module *module;
    struct gpu_queue *queue;
    gpu_address values;
    void *image;
};

/* Runs values += 2 values on the card and compares. */
static int look_run(const struct gpu_driver *driver, struct look *look, struct err *err)
{
    float values[LOOK_COUNT];
    struct gpu_function *add;
    const struct add_rows_args args = {.x = look->values,
                                       .y = look->values,
                                       .rows = 1,
                                       .width = LOOK_COUNT,
                                       .ldx = LOOK_COUNT,
                                       .ldy = LOOK_COUNT,
                                       .wide = 1,
                                       .alpha = 2};
    for (int i = 0; i < LOOK_COUNT; i++)
        values[i] = (float)i;
    if (driver->function(look->module, "add_rows", &add, err) != 0 ||
        driver->copy_in(look->queue, look->values, values, sizeof(values), err) != 0 ||
        driver->launch(look->queue, add, (struct gpu_dims){1, 1, 1}, 256, 0, &args, sizeof(args), err) != 0 ||
        driver->copy_out(look->queue, values, look->values, sizeof(values), err) != 0 ||
        driver->queue_sync(look->queue, err) != 0)
        return -1;
    for (int i = 0; i < LOOK_COUNT; i++)
        if (values[i] != 3 * (float)i)
            return err_set(err, ERR_DEVICE_FAULT, "its first kernel computed %g where %g is right", values[i],
                           3 * (float)i);
    return 0;
}

/* Does the card run our code? Loads the smallest module and runs one kernel of it. */
static int card_look(const struct gpu_driver *driver, struct gpu_context *context, const char *arch,
                     struct err *err)
{
    struct look look = {0};
    struct err ignored;
    uint64_t bytes = 0;
    uint32_t matrix;
    int status =
        driver->takes_code ? gpu_code_load(driver->kind, arch, true, &look.image, &bytes, &matrix, err) : 0;
    if (status == 0 && (driver->module_load(context, look.image, bytes, &look.module, err) != 0 ||
                        driver->queue_create(context, &look.queue, err) != 0 ||
                        driver->memory_create(context, LOOK_COUNT * sizeof(float), &look.values, err) != 0))
        status = -1;
    if (status == 0)
        status = look_run(driver, &look, err);
    if (look.values != 0)
        driver->memory_destroy(context, look.values, &ignored);
    driver->queue_destroy(look.queue);
    driver->module_unload(look.module);
    free(look.image);
    return status;
}

/* The bytes that an integrated card may still take of the host's memory: its driver counts the page cache as
 * used, which the kernel gives up for others. */
static uint64_t memory_available(const char *root, uint64_t left, uint64_t total)
{
    char path[512], line[128];
    unsigned long long kib = 0;
    snprintf(path, sizeof(path), "%s/proc/meminfo", root);
    FILE *file = fopen(path, "re");
    while (file && kib == 0 && fgets(line, sizeof(line), file))
        sscanf(line, "MemAvailable: %llu", &kib);
    if (file)
        fclose(file);
    const uint64_t available = 1024ull * kib < total ? 1024ull * kib : total;
    return available > left ? available : left;
}

/* Asks for free memory through a context on the card, and runs a kernel. ERR_UNSUPPORTED if this build has no
 * code for the card, or the driver does not take it. */
static int card_try(const struct gpu_driver *driver, struct gpu_library *library, uint32_t index,
                    const struct gpu_info *info, uint64_t *available, struct err *err)
{
    struct gpu_context *context;
    uint64_t total;
    if (info->prohibited)
        return err_set(err, ERR_DENIED, "its compute mode lets no process use it (prohibited)");
    if (driver->takes_code && !gpu_code_choose(driver->kind, info->arch, err))
        return -1;
    if (driver->context_create(library, index, NULL, 0, &context, err) != 0)
        return info->exclusive ? err_wrap(err, "its compute mode lets one process use it (exclusive)") : -1;
    int status = driver->memory_info(context, available, &total, err);
    if (status == 0)
        status = card_look(driver, context, info->arch, err);
    driver->context_destroy(context);
    return status;
}

/* Describes the vendor's library of products: its name and version, or null and the reason why our kernels do
 * all products. */
static json_t *products_describe(const struct gpu_driver *driver, uint32_t version, const char *arch)
{
    char name[256];
    struct err err;
    if (!driver->products)
        err_set(&err, ERR_UNSUPPORTED, "no library of this vendor is used");
    else if (driver->products->find(version, arch, name, sizeof(name), &err) == 0)
        return json_pack("{s:s, s:n}", "library", name, "why");
    return json_pack("{s:n, s:s}", "library", "why", err.text);
}

/* Like card_try, in a process of its own with a deadline of its own. */
static int card_try_apart(const struct gpu_cards_options *options, const struct gpu_driver *driver,
                          uint32_t index, uint64_t *available, struct err *err)
{
    char card[32];
    const char *const argv[] = {options->program, "--look", card, NULL};
    snprintf(card, sizeof(card), "%s:%u", driver->kind, index);
    json_t *answer = program_json(argv, options->seconds, err);
    const char *why = json_string_value(json_object_get(answer, "why"));
    int status = answer && !why ? 0 : -1;
    if (!answer && err->code == ERR_TIMEOUT)
        err_set(
            err, ERR_TIMEOUT,
            "it did not answer within %u s: is it hung (dmesg), or is persistence mode off (nvidia-smi -pm "
            "1), so that it starts anew for each process?",
            options->seconds);
    else if (!answer)
        err_wrap(err, "the process that ran its first kernel");
    else if (why)
        err_set(err, ERR_DEVICE_FAULT, "%s", why);
    *available = (uint64_t)json_integer_value(json_object_get(answer, "free_bytes"));
    json_decref(answer);
    return status;
}

json_t *gpu_card_look(const char *card, struct err *err)
{
    const struct gpu_driver *const *driver = gpu_drivers;
    const char *colon = strchr(card, ':');
    struct gpu_library *library = NULL;
    struct gpu_info info;
    struct err why;
    uint32_t version, index = colon ? (uint32_t)strtoul(colon + 1, NULL, 10) : 0;
    uint64_t available = 0;
    while (*driver && (!colon || strlen((*driver)->kind) != (size_t)(colon - card) ||
                       strncmp((*driver)->kind, card, (size_t)(colon - card)) != 0))
        driver++;
    if (!*driver) {
        err_set(err, ERR_INVALID, "\"%s\" is no card, such as cuda:0", card);
        return NULL;
    }
    int status = (*driver)->open(&library, &version, &why);
    if (status == 0)
        status = (*driver)->info(library, index, NULL, &info, &why);
    if (status == 0)
        status = card_try(*driver, library, index, &info, &available, &why);
    if (library)
        (*driver)->close(library);
    json_t *answer =
        json_pack("{s:I, s:s?}", "free_bytes", (json_int_t)available, "why", status == 0 ? NULL : why.text);
    if (!answer)
        err_set(err, ERR_NOMEM, "out of memory for a card");
    return answer;
}

static json_t *card_describe(const struct gpu_cards_options *options, const struct gpu_driver *driver,
                             struct gpu_library *library, uint32_t version, uint32_t index)
{
    struct gpu_info info = {.name = ""};
    struct err err;
    uint64_t available = 0;
    int status = driver->info(library, index, NULL, &info, &err);
    bool known = status == 0;
    if (known)
        status = options->program && driver->takes_code
                     ? card_try_apart(options, driver, index, &available, &err)
                     : card_try(driver, library, index, &info, &available, &err);
    if (known && info.integrated)
        available = memory_available(options->root, available, info.memory);
    json_t *products = known ? products_describe(driver, version, info.arch) : json_null();
    bool served = json_is_string(json_object_get(products, "library"));
    return json_pack("{s:s, s:i, s:s, s:s, s:s, s:s, s:I, s:o, s:i, s:i, s:i, s:b, s:b, s:b, s:o, s:o, s:I}",
                     "kind", driver->kind, "index", (int)index, "name", info.name, "arch", info.arch, "pci",
                     info.pci, "uuid", info.uuid, "memory_bytes", (json_int_t)info.memory, "free_bytes",
                     status == 0 ? json_integer((json_int_t)available) : json_null(), "warp", (int)info.warp,
                     "units", (int)info.units, "clock_khz", (int)info.clock_khz, "integrated",
                     (int)info.integrated, "exclusive", (int)info.exclusive, "usable", status == 0, "why",
                     status == 0 ? json_null() : json_string(err.text), "products", products, "base_bytes",
                     (json_int_t)(known ? gpu_base_bytes(&info, served) : 0));
}

static bool is_listed(const json_t *cards, const char *pci)
{
    const json_t *card;
    size_t i;
    json_array_foreach ((json_t *)cards, i, card) {
        const char *own = json_string_value(json_object_get(card, "pci"));
        if (own && strcasecmp(own, pci) == 0)
            return true;
    }
    return false;
}

/* Appends the vendor's cards that are on the PCI bus and that neither the driver nor `records`, NVML's, show,
 * with the reason. */
static void bus_describe(const struct vendor *vendor, const char *root, const json_t *records, json_t *cards)
{
    char pci[24], why[VENDOR_WHY_BYTES];
    for (const char *const *name = vendor->hidden_by; *name; name++)
        if (getenv(*name))
            return;
    const json_t *card;
    size_t k;
    json_array_foreach (cards, k, card)
        if (json_string_value(json_object_get(card, "name")) &&
            strstr(json_string_value(json_object_get(card, "name")), " MIG "))
            return; /* without NVML, a process that sees a slice sees no other card */
    for (uint32_t i = 0; vendor_bus_card(vendor, root, i, pci, why); i++)
        if (why[0] != '\0' && !is_listed(cards, pci) && !is_listed(records, pci))
            json_array_append_new(cards, json_pack("{s:s, s:s, s:b, s:s}", "kind", vendor->kind, "pci", pci,
                                                   "usable", 0, "why", why));
}

static void driver_describe(const struct gpu_cards_options *options, const struct gpu_driver *driver,
                            json_t *drivers, json_t *cards)
{
    struct gpu_library *library = NULL;
    struct err err;
    uint32_t version = 0, count = 0;
    int status = driver->open(&library, &version, &err);
    if (status == 0)
        status = driver->count(library, &count, &err);
    for (uint32_t i = 0; status == 0 && i < count; i++)
        json_array_append_new(cards, card_describe(options, driver, library, version, i));
    json_array_append_new(drivers,
                          json_pack("{s:s, s:i, s:b, s:o}", "kind", driver->kind, "version", (int)version,
                                    "missing", !library && status != 0 && err.code == ERR_NOT_FOUND, "why",
                                    status == 0 ? json_null() : json_string(err.text)));
    if (library)
        driver->close(library);
}

/* Describes a card that is cut into slices (NVIDIA's MIG) and is not a device itself. */
static json_t *cut_describe(const json_t *record, size_t slices)
{
    const char *why = slices > 0 ? "it is cut into MIG slices, which are devices of their own"
                                 : "its MIG mode is on, and it has no slices: nvidia-smi mig -cgi";
    return json_pack("{s:s, s:O*, s:O*, s:O*, s:O*, s:b, s:s}", "kind", "cuda", "name",
                     json_object_get(record, "name"), "pci", json_object_get(record, "pci"), "uuid",
                     json_object_get(record, "uuid"), "memory_bytes", json_object_get(record, "memory_bytes"),
                     "usable", 0, "why", why);
}

/* If a card is cut, a process sees only one slice and no other card. Slices and cards that are not cut are
 * then listed in `apart`, so that the caller asks for each in a process that sees it alone. */
static void cards_apart(json_t *all, const json_t *records)
{
    json_t *apart = json_array(), *cards = json_array(), *record, *slice;
    size_t i, k, cut = 0;
    json_array_foreach ((json_t *)records, i, record) {
        const json_t *mig = json_object_get(record, "mig"), *slices = json_object_get(mig, "slices");
        if (strcmp(json_string_value(json_object_get(record, "kind")), "cuda") != 0)
            continue;
        if (!json_is_true(json_object_get(mig, "mode"))) {
            json_array_append(apart, json_object_get(record, "uuid"));
            continue;
        }
        json_array_append_new(cards, cut_describe(record, json_array_size(slices)));
        json_array_foreach ((json_t *)slices, k, slice)
            json_array_append(apart, json_object_get(slice, "uuid"));
        cut++;
    }
    json_array_foreach (json_object_get(all, "cards"), i, record) {
        if (strcmp(json_string_value(json_object_get(record, "kind")), "cuda") != 0)
            json_array_append(cards, record);
    }
    if (cut > 0) {
        json_object_set(all, "apart", apart);
        json_object_set(all, "cards", cards);
    }
    json_decref(apart);
    json_decref(cards);
}

/* Without NVML, `nvml` has the reason, and a card that is cut shows as one slice only. */
static void slices_hidden(json_t *cards, const json_t *nvml)
{
    const char *why = json_string_value(json_object_get(nvml, "why"));
    const json_t *first = json_array_get(cards, 0);
    const char *name = json_string_value(json_object_get(first, "name"));
    if (!why || !name || !strstr(name, " MIG "))
        return;
    json_array_append_new(cards, json_pack("{s:s, s:b, s:o}", "kind", "cuda", "usable", 0, "why",
                                           json_sprintf("other MIG slices and cards may be hidden, because a "
                                                        "process sees one slice and %s: install "
                                                        "libnvidia-ml.so.1, or name a slice in "
                                                        "CUDA_VISIBLE_DEVICES",
                                                        why)));
}

/* Appends the cards that the drivers which started do not show. If a card is cut, NVML's records are those
 * that are shown. */
static void others_describe(const char *root, const json_t *records, const json_t *all)
{
    static const struct vendor *const vendors[] = {&vendor_cuda, &vendor_hip};
    const json_t *driver;
    size_t i;
    json_array_foreach (json_object_get(all, "drivers"), i, driver)
        for (size_t v = 0; v < sizeof(vendors) / sizeof(vendors[0]); v++)
            if (json_is_null(json_object_get(driver, "why")) &&
                strcmp(json_string_value(json_object_get(driver, "kind")), vendors[v]->kind) == 0)
                bus_describe(vendors[v], root, json_object_get(all, "apart") ? records : NULL,
                             json_object_get(all, "cards"));
}

json_t *gpu_cards(const struct gpu_cards_options *options, struct err *err)
{
    const char *shown = getenv("CUDA_VISIBLE_DEVICES");
    json_t *drivers = json_array(), *cards = json_array();
    for (const struct gpu_driver *const *driver = gpu_drivers; *driver != NULL; driver++)
        if (*driver != &gpu_driver_emulated || getenv("MOTLEY_EMULATED_CARDS"))
            driver_describe(options, *driver, drivers, cards);
    json_t *all = json_pack("{s:o, s:o}", "drivers", drivers, "cards", cards);
    /* Set and empty, it hides all cards. */
    struct gpu_health *health = !shown ? gpu_health_open(err) : NULL;
    json_t *reading = !health ? NULL : gpu_health_read(health, err);
    if (all) {
        cards_apart(all, json_object_get(reading, "cards"));
        others_describe(options->root, json_object_get(reading, "cards"), all);
    }
    if (all && !shown)
        slices_hidden(json_object_get(all, "cards"),
                      json_array_get(json_object_get(reading, "libraries"), 0));
    json_decref(reading);
    gpu_health_close(health);
    if (!all)
        err_set(err, ERR_NOMEM, "out of memory for a list of cards");
    return all;
}
