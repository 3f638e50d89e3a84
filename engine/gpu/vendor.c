/* Opens and checks the vendors' libraries and classifies their errors. */
#include "engine/gpu/vendor_private.h"

#include <dlfcn.h>
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
    {304, 304, ERR_DEVICE_LOST},  /* a call of the operating system failed */
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

/* What helps, for the numbers that alone tell it, with the tools of NVIDIA and of AMD. */
static const struct {
    int first, last;
    const char *cuda, *hip;
} advices[] = {
    {34, 34, "take the toolkit's folder of stubs out of LD_LIBRARY_PATH", NULL},
    {35, 36, "update the driver", "update the amdgpu kernel driver, or take an older ROCm"},
    {46, 46, "another process uses the card exclusively, or it needs a reset (nvidia-smi)", NULL},
    {214, 214,
     "the card's memory failed: nvidia-smi -q -d ECC,ROW_REMAPPER shows it, a reset (nvidia-smi -r) takes "
     "the "
     "rows out of use",
     "the card's memory failed: rocm-smi --showrasinfo all shows it; reset it (rocm-smi --gpureset -d N)"},
    {220, 220, "nvidia-smi nvlink -e counts the errors; reset the cards (nvidia-smi -r)", NULL},
    {222, 222, "the driver is older than this build's code: update it", NULL},
    {702, 702,
     "a display's watchdog ended the kernel: drive the display by another card, or set Option "
     "\"Interactive\" \"off\"",
     "the kernel driver's watchdog ended the kernel: drive the display by another card, or raise "
     "amdgpu.lockup_timeout"},
    {802, 802, "start the fabric manager of the driver's own version: systemctl start nvidia-fabricmanager",
     NULL},
    {803, 803,
     "the driver was upgraded under the loaded kernel module: reboot, or end what uses the cards and load "
     "the "
     "module anew (modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia; modprobe nvidia)",
     NULL},
    {804, 804, "the library of cuda-compat does not serve this card: take it out of LD_LIBRARY_PATH", NULL},
    {805, 810, "start MPS anew (echo quit | nvidia-cuda-mps-control; nvidia-cuda-mps-control -d)", NULL},
};

static const char *advice_of(const struct vendor *vendor, int error)
{
    for (size_t i = 0; i < sizeof(advices) / sizeof(*advices); i++)
        if (error >= advices[i].first && error <= advices[i].last)
            return vendor == &vendor_cuda ? advices[i].cuda : advices[i].hip;
    return NULL;
}

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
    const char *advice = advice_of(library->vendor, result);
    return err_set(err, vendor_error_code(result), "%s: %s%s (%d) of %s%s%s", what, !name ? "error" : name,
                   !name ? " without a name" : "", result, symbol_name(library->vendor, at),
                   advice ? "; " : "", advice ? advice : "");
}

/* Do the cards' programs share one context by NVIDIA's MPS? */
static bool mps_shares(void)
{
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[512];
    snprintf(path, sizeof(path), "%s/control", folder && folder[0] != '\0' ? folder : "/tmp/nvidia-mps");
    return access(path, F_OK) == 0;
}

int vendor_context_result(struct gpu_context *context, size_t at, int result, const char *what,
                          struct err *err)
{
    if (vendor_result(context->library, at, result, what, err) == 0)
        return 0;
    if (err->code == ERR_DEVICE_FAULT && context->library->vendor == &vendor_cuda && mps_shares()) {
        const struct err said = *err;
        err_set(err, ERR_DEVICE_LOST,
                "%s; MPS shares this card, and a fault of one program ends all: it may be a neighbour's",
                said.text);
    }
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
    bool broken = false; /* is a file there that cannot be loaded? `why` is then of that one */
    for (; *files && !library->handle; files++) {
        /* Drivers start threads of their own, so their library must never be unmapped. */
        library->handle = dlopen(*files, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        snprintf(library->file, sizeof(library->file), "%s", *files);
        const char *said = !library->handle ? dlerror() : NULL;
        const bool absent =
            said && strncmp(said, *files, strlen(*files)) == 0 && strstr(said, "No such file");
        if (said && (why[0] == '\0' || (!absent && !broken)))
            snprintf(why, sizeof(why), "%s", said);
        broken = broken || (said && !absent);
    }
    if (library->handle)
        return 0;
    return broken ? err_set(err, ERR_UNSUPPORTED,
                            "the %s driver's library does not load, because it lacks something: %s",
                            vendor->kind, why)
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

static int vendor_symbols_find(struct gpu_library *library, struct err *err)
{
    const struct vendor *vendor = library->vendor;
    for (uint32_t i = 0; i < vendor->symbol_count; i++)
        if (!symbol_find(library, &vendor->symbols[i]) && !vendor->symbols[i].optional)
            return err_set(err, ERR_UNSUPPORTED, "%s lacks %s, which %s has", library->file,
                           vendor->symbols[i].name, vendor->least);
    return 0;
}

/* Starts the driver. Drivers make device nodes that are missing through a program that is root's, which a
 * service that takes no new privileges cannot run. */
static int driver_start(struct gpu_library *library, struct err *err)
{
    int result = library->api.init(0);
    if (vendor_result(library, offsetof(struct vendor_api, init), result, library->file, err) == 0)
        return 0;
    vendor_machine_tell(library->vendor, "", err);
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
    bool found = library_find(vendor, library, err) == 0;
    if (!found)
        vendor_machine_tell(vendor, "", err);
    if (!found || version_check(library, err) != 0 || vendor_symbols_find(library, err) != 0 ||
        driver_start(library, err) != 0) {
        if (library->handle)
            dlclose(library->handle);
        free(library);
        return -1;
    }
    *version = library->version;
    *out = library;
    return 0;
}
