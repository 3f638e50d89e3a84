/* The module of PTX that was loaded last: its kernels, parsed when they are first launched. A test can edit
 * the text of the next module. */
#pragma once

#include "engine/ptx/ptx.h"

/* What a kernel's warps did. Shared memory has 32 banks of 4 bytes. A warp's access of up to 4 bytes a lane
 * is one part, of 8 two (16 lanes each), of 16 four; a part takes as many wavefronts as its lanes want
 * different words of one bank. Global memory is read and written in sectors of 32 bytes. */
struct ptx_traffic {
    uint64_t instructions, mma; /* of warps; moves, which the assembler drops, are not counted */
    uint64_t parts, wavefronts; /* shared; without conflicts they are equal */
    uint64_t sectors, bytes;    /* global: sectors that were touched, and bytes that lanes asked for */
    double conflict;            /* the most wavefronts a part of one instruction, on average */
    uint32_t line;              /* that instruction's line in the PTX */
};

/* Exported as `ptx_control`. */
struct ptx_control {
    /* In the body of `kernel`, the occurrence number `which` (from 0) of `find` becomes `with`. */
    struct {
        const char *kernel, *find, *with;
        uint32_t which;
        bool done;
    } edit;
    struct ptx_traffic traffic[128]; /* of each kernel so far, in the order of GPU_KERNEL_LIST */
    uint64_t launches[128];          /* the same */
    char fault[512];                 /* why the last failed launch failed */
};
extern struct ptx_control ptx_control;

/* Loads a copy of the text. Returns NULL, or why it could not. */
const char *ptx_module_load(const char *text);
/* Returns the parsed kernel `name`, borrowed until the next module is loaded. */
struct ptx_kernel *ptx_module_kernel(const char *name, struct err *err);
