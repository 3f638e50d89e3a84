/* The module of PTX that was loaded last: its kernels, parsed when they are first launched. A test can edit
 * the text of the next module. */
#pragma once

#include "engine/ptx/ptx.h"

/* Exported as `ptx_control`. */
struct ptx_control {
    /* In the body of `kernel`, the occurrence number `which` (from 0) of `find` becomes `with`. */
    struct {
        const char *kernel, *find, *with;
        uint32_t which;
        bool done;
    } edit;
    uint64_t launches[128]; /* of each kernel so far, in the order of GPU_KERNEL_LIST */
    char fault[512];        /* why the last failed launch failed */
};
extern struct ptx_control ptx_control;

/* Loads a copy of the text. Returns NULL, or why it could not. */
const char *ptx_module_load(const char *text);
/* Returns the parsed kernel `name`, borrowed until the next module is loaded. */
struct ptx_kernel *ptx_module_kernel(const char *name, struct err *err);
