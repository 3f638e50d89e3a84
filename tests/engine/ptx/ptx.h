/* An interpreter of PTX for tests: it runs the text that this build gives to NVIDIA's drivers, with what
 * NVIDIA's "Parallel Thread Execution ISA" says of each instruction and of the matrix units' fragments, and
 * with nothing of our kernels' source. It knows the instructions that our text has and refuses any other by
 * name.
 *
 *   parse.c   the text as decoded instructions; constants, special registers and addresses become operands
 *             like registers
 *   lanes.c   what each instruction does to the 32 lanes of a warp
 *   run.c     the emulated driver's launch (engine/gpu/emulated/emulated.h) by this interpreter: groups of
 *             lanes, barriers, and checked memory
 *
 * A register is an array of 32 values, one a lane. The lanes of a warp that are at the same instruction run
 * it together; those furthest behind go first. An instruction for all lanes (shfl.sync, mma.sync, bar.sync)
 * waits for all of them, and it is a fault if they wait at different ones. Every access must be aligned and
 * within an allocation or an array; with the emulated device's option `checks`, reads of what nobody wrote
 * and accesses without a barrier between them are faults, too.
 *
 * What cp.async copies arrives when its lane waits for it, as late as a card may deliver it.
 *
 * Not as on a card: mma.sync adds its terms one after the other, with one rounding each (the ISA leaves the
 * order open); arithmetic gives the CPU's NaN. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

enum { PTX_LANES = 32, PTX_OPERANDS = 14, PTX_ARRAYS = 16, PTX_SPECIALS = 5 };

enum ptx_kind {
    PTX_LANE,   /* works on each lane alone */
    PTX_ACCESS, /* accesses memory, which may be a fault */
    PTX_WARP,   /* works on all lanes of the warp together */
    PTX_BRANCH,
    PTX_BARRIER,
    PTX_END,
    PTX_TRAP
};
enum ptx_space { PTX_GLOBAL, PTX_SHARED, PTX_PARAM };
enum ptx_action { PTX_LOAD, PTX_STORE, PTX_ADD };
enum ptx_guard { PTX_ALWAYS, PTX_IF, PTX_UNLESS };

struct ptx_warp;
struct ptx_instr;
typedef void ptx_run(struct ptx_warp *warp, const struct ptx_instr *instr);

struct ptx_instr {
    ptx_run *run;
    enum ptx_kind kind;
    enum ptx_guard guard; /* condition of a branch, whose predicate is operand 0 */
    uint32_t target;      /* number of the instruction to which a branch jumps */
    uint32_t line;        /* line of the PTX text */
    bool is_move, is_mma;
    uint64_t parts, wavefronts; /* of its accesses to shared memory so far (module.h) */
    /* The operands, results first. Each is an offset into the warp's registers or, if its lowest bit is set,
     * into the kernel's constants. */
    uint32_t at[PTX_OPERANDS];
    struct { /* an access: operands 0 … count - 1 are its values, and operand `count` is its address */
        enum ptx_space space;
        enum ptx_action action;
        uint8_t bytes, count, register_bytes;
        bool is_signed;
        int64_t offset;
    } access;
};

/* An instruction that the interpreter knows. `name` has '_' where PTX has '.'. */
struct ptx_form {
    const char *name;
    ptx_run *run;
    enum ptx_kind kind;
    uint8_t count;
    uint8_t bytes[PTX_OPERANDS]; /* bytes of each operand */
};
extern const struct ptx_form ptx_forms[];
extern const uint32_t ptx_form_count;

struct ptx_array {
    char name[128];
    uint32_t at, bytes; /* at: its address in shared memory */
};

struct ptx_kernel {
    char name[64];
    uint32_t args_bytes, threads;
    struct ptx_instr *code;
    uint32_t count, room;
    uint32_t register_bytes; /* bytes of a warp's registers, of which the special ones come first */
    uint8_t *constants;
    uint32_t constant_bytes, constant_room;
    struct ptx_array arrays[PTX_ARRAYS];             /* shared memory that the kernel uses */
    uint32_t array_count, array_bytes, shared_bytes; /* shared_bytes includes the gaps between arrays */
};

/* Parses the kernel `name` of a text. NULL with ERR_NOT_FOUND, or with ERR_UNSUPPORTED and the line that is
 * not understood. */
__attribute__((visibility("default"))) struct ptx_kernel *ptx_parse(const char *text, const char *name,
                                                                    struct err *err);
__attribute__((visibility("default"))) void ptx_free(struct ptx_kernel *kernel);

enum ptx_special { PTX_TID_X, PTX_CTAID_X, PTX_CTAID_Y, PTX_CTAID_Z, PTX_NCTAID_X };

struct ptx_warp {
    uint8_t *base[2];         /* registers, constants */
    uint32_t active;          /* the lanes that run */
    uint32_t take[PTX_LANES]; /* 1 for each active lane, else 0 */
    uint32_t live, waiting;   /* lanes that have not ended, and those that wait for all others */
    uint32_t pc[PTX_LANES];   /* the next instruction of each lane */
    uint32_t index;
};

/* Points to the values, one for each lane, of operand k of an instruction. */
#define PTX_OPERAND(warp, instr, k)                                                                          \
    ((void *)((warp)->base[(instr)->at[k] & 1u] + ((instr)->at[k] & ~UINT32_C(1))))

/* Defined in run.c. */
void ptx_access(struct ptx_warp *warp, const struct ptx_instr *instr);
ptx_run ptx_blocks_2, ptx_blocks_2_turned, ptx_blocks_4, ptx_blocks_4_turned; /* ldmatrix */
ptx_run ptx_copy, ptx_copies_await;                                           /* cp.async */
