/* Opens and checks the vendors' libraries and classifies their errors. */
#include "engine/gpu/vendor_private.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(void *) == sizeof(gpu_address), "addresses of devices travel as pointers");

/* Numbers of CUresult; those of hipError_t are the same where both exist. The table is sorted; numbers
 * without an entry mean ERR_INTERNAL. */
static const struct {
    int first, last;
    enum err_code code;
} codes[] = {
    {1, 1, ERR_INVALID},
    {2, 2, ERR_NOMEM},
    {4, 4, ERR_DEVICE_LOST},      /* the driver is being shut down */
    {9, 21, ERR_INVALID},         /* HIP: invalid configurations, pointers or directions */
    {34, 34, ERR_NOT_FOUND},      /* the library is a stub from the toolkit, not a driver */
    {35, 36, ERR_UNSUPPORTED},    /* the driver is too old for this call */
    {46, 46, ERR_DEVICE_LOST},    /* busy: another process uses it exclusively, or it is gone */
    {53, 53, ERR_DEVICE_FAULT},   /* HIP: an earlier launch failed */
    {98, 98, ERR_UNSUPPORTED},    /* HIP: the function does not exist for this card */
    {100, 101, ERR_NOT_FOUND},    /* no device at all, or no device with this number */
    {102, 102, ERR_UNSUPPORTED},  /* not licensed */
    {200, 200, ERR_INVALID},      /* an invalid image */
    {205, 208, ERR_INVALID},      /* invalid mappings */
    {209, 209, ERR_UNSUPPORTED},  /* no code for this card */
    {214, 214, ERR_DEVICE_FAULT}, /* uncorrectable ECC error */
    {217, 217, ERR_UNSUPPORTED},  /* no peer access */
    {218, 218, ERR_INVALID},      /* the PTX does not assemble */
    {220, 220, ERR_DEVICE_FAULT}, /* uncorrectable NVLink error */
    {221, 225, ERR_UNSUPPORTED},  /* no JIT, PTX too new, JIT disabled, … */
    {226, 226, ERR_DEVICE_FAULT}, /* a contained memory error */
    {300, 303, ERR_INVALID},
    {400, 400, ERR_INVALID},      /* an invalid handle */
    {500, 500, ERR_NOT_FOUND},    /* the module has no such symbol */
    {700, 700, ERR_DEVICE_FAULT}, /* illegal address */
    {701, 701, ERR_INVALID},      /* a launch needs more resources than the card has */
    {702, 702, ERR_DEVICE_FAULT}, /* a kernel ran into the watchdog */
    {709, 709, ERR_DEVICE_LOST},  /* the context is destroyed */
    {710, 710, ERR_DEVICE_FAULT}, /* an assertion of a kernel */
    {711, 711, ERR_UNSUPPORTED},  /* too many peers */
    {712, 713, ERR_INVALID},
    {714, 719, ERR_DEVICE_FAULT}, /* errors of stack, instruction, alignment, address space, program counter
                                     or launch */
    {720, 720, ERR_INVALID},
    {721, 721, ERR_DEVICE_FAULT},
    {800, 801, ERR_UNSUPPORTED}, /* not permitted, not supported */
    {802, 802, ERR_DEVICE_LOST}, /* the system (its NVSwitches, say) is not ready */
    {803, 804, ERR_UNSUPPORTED}, /* the library and the kernel module do not match */
    {805, 810, ERR_DEVICE_LOST}, /* the service that shares the card (MPS) has failed */
    {900, 908, ERR_INVALID},     /* errors in recording a graph */
    {909, 909, ERR_TIMEOUT},
    {911, 911, ERR_DEVICE_FAULT},
    {999, 999, ERR_DEVICE_LOST},   /* unknown error: the driver has given up the card */
    {1052, 1052, ERR_NOMEM},       /* HIP: the runtime below it has no memory */
    {1053, 1053, ERR_DEVICE_LOST}, /* HIP: any other error of the runtime below it */
};

enum err_code vendor_error_code(int error)
{
    for (size_t i = 0; i < sizeof(codes) / sizeof(*codes); i++)
        if (error >= codes[i].first && error <= codes[i].last)
            return codes[i].code;
    return ERR_INTERNAL;
}

static const char *symbol_name(const struct vendor *vendor, size_t at)
{
    for (uint32_t i = 0; i < vendor->symbol_count; i++)
        if (vendor->symbols[i].at == at)
            return vendor->symbols[i].name;
    return "a call";
}

int vendor_result(const struct gpu_library *library, size_t at, int result, const char *what, struct err *err)
{
    if (result == 0)
        return 0;
    const char *name = library->vendor->error_name(library, result);
    return err_set(err, vendor_error_code(result), "%s: %s%s (%d)%s%s", what, !name ? "error" : name,
                   !name ? " without a name" : "", result, " of ", symbol_name(library->vendor, at));
}

int vendor_context_result(struct gpu_context *context, size_t at, int result, const char *what,
                          struct err *err)
{
    if (vendor_result(context->library, at, result, what, err) == 0)
        return 0;
    if (err->code == ERR_DEVICE_LOST || err->code == ERR_DEVICE_FAULT) {
        pthread_mutex_lock(&context->lock);
        if (!context->failed)
            context->error = *err;
        context->failed = true;
        pthread_mutex_unlock(&context->lock);
    }
    return -1;
}

/* --- opening the driver's library */

/* Opens the file that the environment names, or the first of the vendor's files that opens. */
static int library_find(const struct vendor *vendor, struct gpu_library *library, struct err *err)
{
    const char *asked = getenv(vendor->environment);
    const char *const only[] = {asked, NULL};
    const char *const *files = asked && asked[0] != '\0' ? only : vendor->files;
    char why[256] = "";
    for (; *files && !library->handle; files++) {
        /* Drivers start threads of their own, so their library must never be unmapped. */
        library->handle = dlopen(*files, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        snprintf(library->file, sizeof(library->file), "%s", *files);
        const char *said = !library->handle ? dlerror() : NULL;
        if (said && why[0] == '\0')
            snprintf(why, sizeof(why), "%s", said);
    }
    return library->handle
               ? 0
               : err_set(err, ERR_NOT_FOUND, "no %s driver on this machine: %s", vendor->kind, why);
}

/* Copies a data pointer into a function pointer, which POSIX allows. */
static bool symbol_find(struct gpu_library *library, const struct vendor_symbol *symbol)
{
    void *found = dlsym(library->handle, symbol->name);
    memcpy((char *)&library->api + symbol->at, &found, sizeof(found));
    return found != NULL;
}

static int version_check(struct gpu_library *library, struct err *err)
{
    const struct vendor *vendor = library->vendor;
    uint32_t major, minor;
    int version = 0;
    for (uint32_t i = 0; i < vendor->symbol_count; i++)
        if (vendor->symbols[i].at == offsetof(struct vendor_api, version) &&
            !symbol_find(library, &vendor->symbols[i]))
            return err_set(err, ERR_UNSUPPORTED, "%s lacks %s: it is no driver of kind %s", library->file,
                           vendor->symbols[i].name, vendor->kind);
    int result = library->api.version(&version);
    if (result != 0) /* the function that names errors is not known yet */
        return err_set(err, vendor_error_code(result), "%s does not say its version: error %d", library->file,
                       result);
    library->version = (uint32_t)version;
    vendor->version_split(library->version, &major, &minor);
    if (version <= 0 || library->version < vendor->version_least)
        return err_set(err, ERR_UNSUPPORTED, "%s is of version %u.%u: at least %s is needed", library->file,
                       major, minor, vendor->least);
    return 0;
}

static int symbols_find(struct gpu_library *library, struct err *err)
{
    const struct vendor *vendor = library->vendor;
    for (uint32_t i = 0; i < vendor->symbol_count; i++)
        if (!symbol_find(library, &vendor->symbols[i]) && !vendor->symbols[i].optional)
            return err_set(err, ERR_UNSUPPORTED, "%s lacks %s, which %s has", library->file,
                           vendor->symbols[i].name, vendor->least);
    return 0;
}

/* Appends "folder/node" of each node that cannot be opened for the reason `why` to list[room]. */
static void nodes_list(const struct vendor *vendor, const char *folder, int why, char *list, size_t room)
{
    char path[256];
    list[0] = '\0';
    for (const char *const *node = vendor->nodes; *node; node++) {
        size_t at = strlen(list);
        snprintf(path, sizeof(path), "%s/%s", folder, *node);
        if (access(path, R_OK | W_OK) != 0 && errno == why && at + strlen(path) + 3 < room)
            snprintf(list + at, room - at, "%s%s", at > 0 ? ", " : "", path);
    }
}

void vendor_nodes_tell(const struct vendor *vendor, const char *folder, struct err *err)
{
    char missing[512], denied[512], barred[512];
    nodes_list(vendor, folder, ENOENT, missing, sizeof(missing));
    nodes_list(vendor, folder, EACCES, denied, sizeof(denied));
    nodes_list(vendor, folder, EPERM, barred, sizeof(barred));
    struct err said = *err;
    if (missing[0] != '\0')
        err_set(err, said.code, "%s; missing: %s (as root, once after each boot: %s)", said.text, missing,
                vendor->nodes_made_by);
    said = *err;
    if (denied[0] != '\0')
        err_set(err, said.code, "%s; this user may not open %s (the group that owns it may)", said.text,
                denied);
    said = *err;
    if (barred[0] != '\0')
        err_set(
            err, said.code,
            "%s; the device cgroup of this container or service does not allow %s (DeviceAllow=, --device; "
            "it is read anew when the service starts)",
            said.text, barred);
}

/* Starts the driver. Drivers make device nodes that are missing through a program that is root's, which a
 * service that takes no new privileges cannot run. */
static int driver_start(struct gpu_library *library, struct err *err)
{
    int result = library->api.init(0);
    if (vendor_result(library, offsetof(struct vendor_api, init), result, library->file, err) == 0)
        return 0;
    vendor_nodes_tell(library->vendor, "/dev", err);
    return -1;
}

int vendor_open(const struct vendor *vendor, struct gpu_library **out, uint32_t *version, struct err *err)
{
    struct gpu_library *library = calloc(1, sizeof(*library));
    *out = NULL;
    *version = 0;
    if (!library)
        return err_set(err, ERR_NOMEM, "out of memory for a driver");
    library->vendor = vendor;
    if (library_find(vendor, library, err) != 0 || version_check(library, err) != 0 ||
        symbols_find(library, err) != 0 || driver_start(library, err) != 0) {
        if (library->handle)
            dlclose(library->handle);
        free(library);
        return -1;
    }
    *version = library->version;
    *out = library;
    return 0;
}
