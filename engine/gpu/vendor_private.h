/* What NVIDIA's driver library and AMD's HIP library have in common. HIP took names, the order of arguments
 * and most numbers from CUDA, so one implementation of the driver table (vendor_driver.c) serves both. cuda.c
 * and hip.c describe the differences (file and symbol names, numbers, how a context is made current) in one
 * constant `struct vendor` each. vendor.c opens libraries and classifies errors.
 *
 * Sources of the declarations: NVIDIA's cuda.h of CUDA 11.4 to 13.0 ("CUDA Driver API") and AMD's
 * hip_runtime_api.h of ROCm 5.0 to 7.1. Addresses are 64-bit integers in one and pointers in the other, which
 * the calling conventions of 64-bit Linux pass alike; opaque handles are pointers in both. No vendor's header
 * is used and no vendor's library is linked: each is opened at run time.
 */
#ifndef MOTLEY_ENGINE_GPU_VENDOR_PRIVATE_H
#define MOTLEY_ENGINE_GPU_VENDOR_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/gpu/driver.h"

struct vendor_ipc {
    uint8_t bytes[GPU_IPC_BYTES]; /* passed by value */
};

/* The libraries' functions, by purpose. All except those for error names return 0 or the vendor's error
 * number. */
struct vendor_api {
    int (*version)(int *version);
    int (*init)(unsigned flags);
    int (*count)(int *count);
    int (*device_get)(int *device, int index);
    int (*device_name)(char *name, int room, int device);
    int (*device_attribute)(int *value, int attribute, int device);
    int (*device_memory)(size_t *bytes, int device);
    int (*device_pci)(char *text, int room, int device);
    int (*device_uuid)(uint8_t uuid[16], int device); /* may be NULL */

    int (*memory_info)(size_t *free, size_t *total);
    int (*memory_alloc)(gpu_address *out, size_t bytes);
    int (*memory_free)(gpu_address address);
    int (*host_alloc)(void **out, size_t bytes, unsigned flags);
    int (*host_free)(void *memory);
    int (*ipc_get)(struct vendor_ipc *handle, gpu_address address);
    int (*ipc_open)(gpu_address *out, struct vendor_ipc handle, unsigned flags);
    int (*ipc_close)(gpu_address address);
    int (*peer_can)(int *can, int device, int peer);

    int (*stream_create)(void **out, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*stream_sync)(void *stream);
    int (*stream_wait)(void *stream, void *event, unsigned flags);
    int (*event_create)(void **out, unsigned flags);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event);
    int (*event_sync)(void *event);
    int (*event_elapsed)(float *milliseconds, void *from, void *to);

    int (*copy_in)(gpu_address to, const void *from, size_t bytes, void *stream);
    int (*copy_out)(void *to, gpu_address from, size_t bytes, void *stream);
    int (*copy)(gpu_address to, gpu_address from, size_t bytes, void *stream);
    int (*fill)(gpu_address to, uint8_t value, size_t bytes, void *stream);

    int (*module_load)(void **out, const void *image, unsigned options, int *names, void **values);
    int (*module_unload)(void *module);
    int (*module_function)(void **out, void *module, const char *name);
    int (*launch)(void *function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z, unsigned threads_x,
                  unsigned threads_y, unsigned threads_z, unsigned shared, void *stream, void **parameters,
                  void **extra);

    int (*capture_begin)(void *stream, int mode);
    int (*capture_end)(void *stream, void **graph);
    int (*graph_launch)(void *executable, void *stream);
    int (*graph_executable_destroy)(void *executable);
    int (*graph_destroy)(void *graph);

    /* CUDA only */
    int (*cuda_error_name)(int error, const char **name);
    int (*cuda_context_retain)(void **context, int device);
    int (*cuda_context_release)(int device);
    int (*cuda_context_set)(void *context);
    int (*cuda_peer_enable)(void *context, unsigned flags);
    int (*cuda_function_set)(void *function, int attribute, int value);
    int (*cuda_graph_instantiate)(void **executable, void *graph, unsigned long long flags);

    /* HIP only */
    const char *(*hip_error_name)(int error);
    int (*hip_device_set)(int device);
    int (*hip_peer_enable)(int peer, unsigned flags);
    int (*hip_graph_instantiate)(void **executable, void *graph, void **node, char *log, size_t room);
    int (*hip_properties)(void *properties, int device);   /* with ROCm 5's structure; may be NULL */
    int (*hip_properties_6)(void *properties, int device); /* with ROCm 6's structure; may be NULL */
};

/* A symbol of the library and its offset in struct vendor_api. */
struct vendor_symbol {
    const char *name;
    size_t at;
    bool optional;
};
#define VENDOR_SYMBOL(symbol, member) {.name = (symbol), .at = offsetof(struct vendor_api, member)}
#define VENDOR_SYMBOL_OPTIONAL(symbol, member)                                                               \
    {.name = (symbol), .at = offsetof(struct vendor_api, member), .optional = true}

/* Numbers that both libraries use: flags, and errors that the code handles instead of reporting. */
enum vendor_number {
    VENDOR_ERROR_NO_DEVICE = 100,
    VENDOR_ERROR_NOT_READY = 600,
    VENDOR_ERROR_PEER_ALREADY = 704,
    VENDOR_ERROR_TOO_MANY_PEERS = 711,
    VENDOR_MODE_EXCLUSIVE_THREAD = 1,
    VENDOR_MODE_PROHIBITED = 2,
    VENDOR_MODE_EXCLUSIVE_PROCESS = 3,
    VENDOR_STREAM_NON_BLOCKING = 1, /* does not wait for the default stream, which we do not use */
    VENDOR_EVENT_BLOCKING_SYNC = 1, /* a waiting thread sleeps */
    VENDOR_EVENT_DISABLE_TIMING = 2,
    VENDOR_HOST_PORTABLE = 1,   /* page-locked for every context of the process */
    VENDOR_CAPTURE_RELAXED = 2, /* other threads and calls are not restricted during a capture */
    VENDOR_JIT_ERROR_LOG = 5,
    VENDOR_JIT_ERROR_LOG_BYTES = 6,
    VENDOR_PARAM_POINTER = 1,
    VENDOR_PARAM_SIZE = 2
};

struct vendor {
    const char *kind;         /* "cuda" or "hip" */
    const char *environment;  /* environment variable that names a library to open instead */
    const char *const *files; /* tried in this order; NULL ends */
    const struct vendor_symbol *symbols;
    uint32_t symbol_count;
    uint32_t version_least;
    const char *least;            /* version_least in words */
    const char *const *nodes;     /* device nodes in /dev without which no card can be used; NULL ends */
    const char *nodes_made_by;    /* the command that makes the device nodes, run as root */
    const char *nodes_given_by;   /* how a container gets the device nodes */
    uint32_t pci_vendor;          /* the vendor's number on the PCI bus */
    const char *module;           /* the kernel driver that a card of the vendor needs */
    const char *lists_programs;   /* the vendor's tool that lists what runs on a card */
    const char *start_failed;     /* what to do if the driver does not start and nothing is missing */
    const char *card_hidden;      /* why the library may not show a card that the kernel driver has */
    const char *const *hidden_by; /* environment variables that hide cards on purpose; NULL ends */
    int attribute_warp, attribute_shared, attribute_units, attribute_clock, attribute_mode;
    int attribute_watchdog, attribute_integrated;
    uintptr_t param_end;     /* ends the `extra` array of a launch */
    uint32_t ipc_flag_since; /* ipc_open takes flag 1 (access to peers on demand) from this version on, and 0
                                before */
    bool uuid_is_text;       /* a UUID's 16 bytes are hexadecimal digits in ASCII */
    bool jit_log;            /* module_load takes options and can fill a log */

    /* Splits the library's version number into major and minor. */
    void (*version_split)(uint32_t version, uint32_t *major, uint32_t *minor);
    /* The name of an error number; NULL if it has none. */
    const char *(*error_name)(const struct gpu_library *library, int error);
    int (*arch)(struct gpu_library *library, int device, struct gpu_info *out, struct err *err);
    int (*context_retain)(struct gpu_context *context, struct err *err);
    void (*context_release)(struct gpu_context *context);
    /* Makes the context current for the calling thread. Returns the vendor's error number, 0 for success. */
    int (*context_enter)(const struct gpu_context *context);
    /* Lets `context` address memory of `peer`. Returns the vendor's error number, 0 for success. */
    int (*peer_enable)(const struct gpu_context *context, const struct gpu_context *peer);
    size_t enter_at,
        peer_at; /* in struct vendor_api: the functions that context_enter and peer_enable call */
    int (*graph_instantiate)(struct gpu_context *context, void *graph, void **executable, struct err *err);
    /* Allows a kernel more dynamic shared memory than the default limit; NULL: no permission is needed. */
    int (*shared_allow)(struct gpu_context *context, void *function, uint32_t bytes, struct err *err);
};

struct gpu_library {
    const struct vendor *vendor;
    struct vendor_api api;
    void *handle; /* from dlopen */
    uint32_t version;
    char file[256];
};

struct gpu_context {
    struct gpu_library *library;
    int device;   /* the vendor's number */
    void *handle; /* CUDA only */
    pthread_mutex_t lock;
    atomic_bool failed;
    struct err error; /* the first error that ends the use of the card; guarded by the lock */
};

extern const struct vendor vendor_cuda, vendor_hip; /* defined in cuda.c and hip.c */

/* Open the library and look up its symbols; the driver table's `open`. */
int vendor_open(const struct vendor *vendor, struct gpu_library **out, uint32_t *version, struct err *err);

/* Appends to an error of opening the library or starting the driver what the machine shows of the reason, and
 * what helps: device nodes that are missing or may not be opened, another kernel driver on a card, Secure
 * Boot, a container, WSL2, a suspend. `root` is "", or a folder with other dev, sys and run (tests). Leaves
 * the error as it is if there is nothing to say. */
void vendor_machine_tell(const struct vendor *vendor, const char *root, struct err *err);

enum { VENDOR_WHY_BYTES = 512 };

/* The PCI address of the vendor's card `index` on the bus, and why the library may not show it; why is "" if
 * nothing is known, as in a container. False: there is no such card. */
bool vendor_bus_card(const struct vendor *vendor, const char *root, uint32_t index, char address[24],
                     char why[VENDOR_WHY_BYTES]);

/* Turn the result of the call at offset `at` of struct vendor_api into an error that says `what`; 0 stays 0.
 */
int vendor_result(const struct gpu_library *library, size_t at, int result, const char *what,
                  struct err *err);
/* Like vendor_result, for a call on a context. An error that ends the use of the card is kept, and everything
 * queued later fails with it. */
int vendor_context_result(struct gpu_context *context, size_t at, int result, const char *what,
                          struct err *err);

/* The class of an error number; ERR_INTERNAL for an error that means a mistake of ours, and for unknown ones.
 */
enum err_code vendor_error_code(int error);

#endif
