/* Runs the emulated driver's launches from PTX. It replaces engine/gpu/emulated/fibers.c and its kernels. */
#include "engine/ptx/ptx.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/gpu/emulated/emulated.h"
#include "engine/gpu/kernels/list.h"
#include "engine/ptx/module.h"

enum {
    WARPS_MAX = EMULATED_BLOCK_THREADS_MAX / PTX_LANES,
    PARTS_MIN = 256, /* fewer accesses of an instruction say nothing about conflicts that depend on values */
    PENDING_MAX = 64 * PTX_LANES, /* copies of a warp that nobody has waited for */
    TURNS_MAX = 1 << 24 /* backward jumps of a warp between two barriers that count as an endless loop */
};

#define ENTRY(kernel, block) {.name = #kernel, .threads = (block)},
const struct gpu_function emulated_functions_any[] = {GPU_KERNEL_LIST(ENTRY)};
enum { FUNCTIONS = sizeof(emulated_functions_any) / sizeof(*emulated_functions_any) };
extern const struct gpu_function emulated_functions_fma[FUNCTIONS]
    __attribute__((alias("emulated_functions_any")));
const uint32_t emulated_function_count = FUNCTIONS;

/* 16 bytes that cp.async has still to copy. */
struct ptx_pending {
    uint32_t lane;
    uint8_t *to;
    const uint8_t *from; /* NULL: zeros */
};

/* The state of the block that runs; each host thread that launches kernels has one. */
struct runner {
    struct ptx_kernel *kernel;
    struct ptx_warp warps[WARPS_MAX];
    struct ptx_pending pending[WARPS_MAX][PENDING_MAX];
    uint32_t pending_count[WARPS_MAX];
    uint8_t *registers, *shared;
    uint64_t register_room;
    struct emulated_memory *memory;
    struct emulated_shadow *shared_shadow;
    const uint8_t *args;
    struct emulated_span span; /* the allocation that was accessed last */
    struct gpu_dims block;
    uint32_t launch, number, epoch;
    struct ptx_traffic traffic; /* of the launch so far */
    bool failed;
    struct err error;
};
static _Thread_local struct runner *runner;

enum { SHARED_ROOM = EMULATED_SHARED_BYTES + PTX_ARRAYS * 2048 };

static void fault(const struct ptx_warp *warp, uint32_t lane, uint32_t line, const char *what)
{
    struct runner *r = runner;
    if (!r->failed)
        err_set(&r->error, ERR_DEVICE_FAULT,
                "kernel %s, block (%u, %u, %u), thread %u, line %u of the PTX: %s", r->kernel->name,
                r->block.x, r->block.y, r->block.z, warp->index * PTX_LANES + lane, line, what);
    r->failed = true;
}

/* --- memory */

/* Returns the host's address of an access to global memory, or NULL with the reason in *wrong. */
static uint8_t *global_at(uint64_t address, uint32_t bytes, uint64_t *at, const char **wrong)
{
    struct runner *r = runner;
    if (address - r->span.begin > r->span.bytes || bytes > r->span.bytes - (address - r->span.begin))
        if (!emulated_memory_find(r->memory, address, bytes, &r->span)) {
            *wrong = "outside of what is allocated";
            return NULL;
        }
    *at = address - (uintptr_t)r->memory->addresses;
    return r->memory->pages + *at;
}

static uint8_t *shared_at(uint64_t address, uint32_t bytes, uint64_t *at, const char **wrong)
{
    struct runner *r = runner;
    for (uint32_t i = 0; i < r->kernel->array_count; i++) {
        const struct ptx_array *array = &r->kernel->arrays[i];
        if (address >= array->at && address - array->at + bytes <= array->bytes) {
            *at = address;
            return r->shared + address;
        }
    }
    *wrong = "outside of every shared array";
    return NULL;
}

static uint8_t *param_at(uint64_t address, uint32_t bytes, const char **wrong)
{
    if (address <= runner->kernel->args_bytes && bytes <= runner->kernel->args_bytes - address)
        return (uint8_t *)(uintptr_t)(runner->args + address);
    *wrong = "outside of the arguments";
    return NULL;
}

/* Checks one lane's access and returns the host's address, or NULL after a fault. */
static uint8_t *access_at(const struct ptx_warp *warp, const struct ptx_instr *instr, uint32_t lane,
                          uint64_t address)
{
    struct runner *r = runner;
    uint32_t bytes = (uint32_t)instr->access.bytes * instr->access.count;
    enum emulated_access access = instr->access.action == PTX_LOAD    ? EMULATED_READ
                                  : instr->access.action == PTX_STORE ? EMULATED_WRITE
                                                                      : EMULATED_ATOMIC;
    const char *wrong = NULL;
    uint64_t at = 0;
    uint8_t *found = instr->access.space == PTX_GLOBAL   ? global_at(address, bytes, &at, &wrong)
                     : instr->access.space == PTX_SHARED ? shared_at(address, bytes, &at, &wrong)
                                                         : param_at(address, bytes, &wrong);
    struct emulated_who other = {0};
    if (!wrong && address % bytes != 0)
        wrong = "not a multiple of its size";
    if (!wrong && r->memory->shadow && instr->access.space != PTX_PARAM) {
        struct emulated_who who = {.launch = r->launch,
                                   .block = r->number,
                                   .thread = warp->index * PTX_LANES + lane,
                                   .warp = warp->index,
                                   .epoch = r->epoch};
        wrong =
            emulated_shadow_access(instr->access.space == PTX_GLOBAL ? r->memory->shadow : r->shared_shadow,
                                   at, bytes, access, &who, &other);
    }
    if (!wrong)
        return found;
    char what[200];
    snprintf(what, sizeof(what), "%u bytes of %s memory at %llu: %s (thread %u of block %u)", bytes,
             instr->access.space == PTX_GLOBAL ? "global" : "shared", (unsigned long long)address, wrong,
             other.thread, other.block);
    fault(warp, lane, instr->line, what);
    return NULL;
}

/* The most words that the lanes [first, first + count) want of one bank. Lanes that want the same word share
 * it. */
static uint32_t part_wavefronts(const uint64_t *addresses, uint32_t lanes, uint32_t first, uint32_t count,
                                uint32_t bytes)
{
    uint64_t words[PTX_LANES]; /* different words so far, by bank: a part has at most 32 */
    uint32_t wanted[PTX_LANES] = {0}, word_count = 0, most = 0;
    for (uint32_t l = first; l < first + count; l++)
        for (uint64_t at = addresses[l] / 4; (lanes >> l & 1) != 0 && at <= (addresses[l] + bytes - 1) / 4;
             at++) {
            uint32_t i = 0;
            while (i < word_count && words[i] != at)
                i++;
            if (i < word_count)
                continue;
            words[word_count++] = at;
            uint32_t all = ++wanted[at % 32];
            most = all > most ? all : most;
        }
    return most;
}

static void shared_count(const struct ptx_instr *instr, const uint64_t *addresses, uint32_t lanes,
                         uint32_t bytes)
{
    struct ptx_instr *counted = &runner->kernel->code[instr - runner->kernel->code];
    uint32_t parts = bytes > 8 ? 4 : bytes > 4 ? 2 : 1;
    for (uint32_t i = 0; i < parts; i++) {
        uint32_t count = part_wavefronts(addresses, lanes, i * PTX_LANES / parts, PTX_LANES / parts, bytes);
        runner->traffic.parts += count > 0;
        runner->traffic.wavefronts += count;
        __atomic_fetch_add(&counted->parts, count > 0, __ATOMIC_RELAXED);
        __atomic_fetch_add(&counted->wavefronts, count, __ATOMIC_RELAXED);
    }
}

static void global_count(struct ptx_traffic *traffic, const uint64_t *addresses, uint32_t lanes,
                         uint32_t bytes)
{
    uint64_t sectors[PTX_LANES];
    uint32_t count = 0;
    for (; lanes != 0; lanes &= lanes - 1) {
        uint32_t i = count;
        uint64_t sector = addresses[__builtin_ctz(lanes)] / 32;
        while (i > 0 && sectors[i - 1] != sector)
            i--;
        if (i == 0)
            sectors[count++] = sector;
        traffic->bytes += bytes;
    }
    traffic->sectors += count;
}

/* Counts a warp's access, of which each lane has its address. */
static void access_count(const struct ptx_instr *instr, const uint64_t *addresses, uint32_t lanes)
{
    uint32_t bytes = (uint32_t)instr->access.bytes * instr->access.count;
    if (instr->access.space == PTX_SHARED)
        shared_count(instr, addresses, lanes, bytes);
    else if (instr->access.space == PTX_GLOBAL)
        global_count(&runner->traffic, addresses, lanes, bytes);
}

/* Moves one value between memory and a lane's register. A load fills a wider register with zeros or signs. */
static void value_move(const struct ptx_instr *instr, uint8_t *memory, uint8_t *value)
{
    uint32_t bytes = instr->access.bytes;
    if (instr->access.action == PTX_STORE) {
        memcpy(memory, value, bytes);
        return;
    }
    bool negative = instr->access.is_signed && (memory[bytes - 1] & 0x80) != 0;
    memcpy(value, memory, bytes);
    memset(value + bytes, negative ? 0xff : 0, instr->access.register_bytes - bytes);
}

void ptx_access(struct ptx_warp *warp, const struct ptx_instr *instr)
{
    uint32_t count = instr->access.count, width = instr->access.register_bytes, bytes = instr->access.bytes;
    uint8_t *values[4];
    const uint64_t *operand = PTX_OPERAND(warp, instr, count);
    uint64_t addresses[PTX_LANES];
    for (uint32_t l = 0; l < PTX_LANES; l++)
        addresses[l] = operand[l] + (uint64_t)instr->access.offset;
    access_count(instr, addresses, warp->active);
    for (uint32_t i = 0; i < count; i++)
        values[i] = PTX_OPERAND(warp, instr, i);
    for (uint32_t lanes = warp->active; lanes != 0; lanes &= lanes - 1) {
        uint32_t l = (uint32_t)__builtin_ctz(lanes);
        uint8_t *memory = access_at(warp, instr, l, addresses[l]);
        if (!memory)
            return;
        if (instr->access.action == PTX_ADD) {
            uint32_t old = __atomic_fetch_add((uint32_t *)(void *)memory,
                                              ((uint32_t *)PTX_OPERAND(warp, instr, 2))[l], __ATOMIC_RELAXED);
            memcpy(values[0] + l * width, &old, sizeof(old));
            continue;
        }
        for (uint32_t i = 0; i < count; i++)
            value_move(instr, memory + i * bytes, values[i] + l * width);
    }
}

/* ldmatrix: lane l has the address of row l % 8 of block l / 8, of 8 values of 16 bits. Lane l's word of a
 * block is row l / 4, values 2 (l % 4) and the next; if turned, the values 2 (l % 4) and the next of column l
 * / 4. */
static void blocks_read(struct ptx_warp *warp, const struct ptx_instr *instr, uint32_t blocks, bool turned)
{
    const uint32_t *operand = PTX_OPERAND(warp, instr, blocks);
    uint64_t addresses[PTX_LANES];
    uint16_t value[4][8][8];
    for (uint32_t l = 0; l < PTX_LANES; l++)
        addresses[l] = operand[l];
    access_count(instr, addresses, blocks == 4 ? UINT32_MAX : UINT16_MAX);
    for (uint32_t l = 0; l < 8 * blocks; l++) {
        const uint8_t *row = access_at(warp, instr, l, addresses[l]);
        if (!row)
            return;
        memcpy(value[l / 8][l % 8], row, 16);
    }
    for (uint32_t b = 0; b < blocks; b++)
        for (uint32_t l = 0; l < PTX_LANES; l++) {
            uint32_t i = l / 4, j = l % 4 * 2;
            ((uint32_t *)PTX_OPERAND(warp, instr, b))[l] =
                turned ? (uint32_t)value[b][j + 1][i] << 16 | value[b][j][i]
                       : (uint32_t)value[b][i][j + 1] << 16 | value[b][i][j];
        }
}

void ptx_blocks_2(struct ptx_warp *warp, const struct ptx_instr *instr)
{
    blocks_read(warp, instr, 2, false);
}

void ptx_blocks_2_turned(struct ptx_warp *warp, const struct ptx_instr *instr)
{
    blocks_read(warp, instr, 2, true);
}

void ptx_blocks_4(struct ptx_warp *warp, const struct ptx_instr *instr)
{
    blocks_read(warp, instr, 4, false);
}

void ptx_blocks_4_turned(struct ptx_warp *warp, const struct ptx_instr *instr)
{
    blocks_read(warp, instr, 4, true);
}

/* cp.async.cg.shared.global [to], [from], 16, bytes: copies `bytes` bytes and fills up with zeros. Until its
 * lane waits for it, the place has what is no number. */
void ptx_copy(struct ptx_warp *warp, const struct ptx_instr *instr)
{
    const uint32_t *to = PTX_OPERAND(warp, instr, 0), *bytes = PTX_OPERAND(warp, instr, 3);
    const uint64_t *from = PTX_OPERAND(warp, instr, 1);
    const struct ptx_instr read = {
        .line = instr->line, .access = {.space = PTX_GLOBAL, .action = PTX_LOAD, .bytes = 16, .count = 1}};
    struct ptx_instr write = *instr;
    uint64_t addresses[PTX_LANES];
    uint32_t reads = 0, *count = &runner->pending_count[warp->index];
    write.access = read.access;
    write.access.space = PTX_SHARED;
    write.access.action = PTX_STORE;
    for (uint32_t lanes = warp->active; lanes != 0; lanes &= lanes - 1) {
        uint32_t l = (uint32_t)__builtin_ctz(lanes);
        struct ptx_pending copy = {.lane = l, .to = access_at(warp, &write, l, to[l])};
        addresses[l] = to[l];
        if (bytes[l] != 0) {
            reads |= UINT32_C(1) << l;
            copy.from = access_at(warp, &read, l, from[l]);
        }
        if (!copy.to || (bytes[l] != 0 && !copy.from))
            return;
        if (*count == PENDING_MAX || (bytes[l] != 0 && bytes[l] != 16)) {
            fault(warp, l, instr->line, "too many copies that nobody waits for, or a part of 16 bytes");
            return;
        }
        memset(copy.to, 0xff, 16);
        runner->pending[warp->index][(*count)++] = copy;
    }
    shared_count(instr, addresses, warp->active, 16);
    global_count(&runner->traffic, from, reads, 16);
}

void ptx_copies_await(struct ptx_warp *warp, const struct ptx_instr *instr)
{
    struct ptx_pending *pending = runner->pending[warp->index];
    uint32_t kept = 0;
    (void)instr;
    for (uint32_t i = 0; i < runner->pending_count[warp->index]; i++)
        if ((warp->active >> pending[i].lane & 1) == 0)
            pending[kept++] = pending[i];
        else if (pending[i].from)
            memcpy(pending[i].to, pending[i].from, 16);
        else
            memset(pending[i].to, 0, 16);
    runner->pending_count[warp->index] = kept;
}

/* --- a warp */

static void lanes_activate(struct ptx_warp *warp, uint32_t active)
{
    if (warp->active == active)
        return;
    warp->active = active;
    for (uint32_t l = 0; l < PTX_LANES; l++)
        warp->take[l] = active >> l & 1;
}

static void pc_set(struct ptx_warp *warp, uint32_t lanes, uint32_t pc)
{
    for (; lanes != 0; lanes &= lanes - 1)
        warp->pc[__builtin_ctz(lanes)] = pc;
}

/* Activates the lanes that are furthest behind, at *pc; *next is the position of the lanes before them.
 * False: no lane can run. */
static bool lanes_choose(struct ptx_warp *warp, uint32_t *pc, uint32_t *next)
{
    uint32_t active = 0;
    *pc = *next = UINT32_MAX;
    for (uint32_t lanes = warp->live & ~warp->waiting; lanes != 0; lanes &= lanes - 1) {
        uint32_t l = (uint32_t)__builtin_ctz(lanes), at = warp->pc[l];
        if (at < *pc) {
            *next = *pc;
            *pc = at;
            active = 0;
        } else if (at > *pc && at < *next) {
            *next = at;
        }
        active |= at == *pc ? UINT32_C(1) << l : 0;
    }
    lanes_activate(warp, active);
    return active != 0;
}

static uint32_t lanes_jumping(struct ptx_warp *warp, const struct ptx_instr *instr)
{
    if (instr->guard == PTX_ALWAYS)
        return warp->active;
    const uint32_t *predicate = PTX_OPERAND(warp, instr, 0);
    uint32_t jumping = 0;
    for (uint32_t l = 0; l < PTX_LANES; l++)
        jumping |= (uint32_t)(predicate[l] != 0) << l;
    return (instr->guard == PTX_IF ? jumping : ~jumping) & warp->active;
}

/* Runs the active lanes until they reach the position of other lanes or part at a branch. */
static void lanes_run(struct ptx_warp *warp, uint32_t pc, uint32_t next, uint32_t *turns)
{
    const struct ptx_instr *code = runner->kernel->code;
    while (pc < next && !runner->failed) {
        const struct ptx_instr *instr = &code[pc];
        uint32_t jumping;
        runner->traffic.instructions += !instr->is_move;
        runner->traffic.mma += instr->is_mma;
        switch (instr->kind) {
        case PTX_LANE:
        case PTX_ACCESS:
            instr->run(warp, instr);
            pc++;
            break;
        case PTX_BRANCH:
            jumping = lanes_jumping(warp, instr);
            if (jumping != 0 && instr->target <= pc && ++*turns == TURNS_MAX)
                fault(warp, (uint32_t)__builtin_ctz(jumping), instr->line, "a loop that does not end");
            pc_set(warp, jumping, instr->target);
            pc_set(warp, warp->active & ~jumping, pc + 1);
            if (jumping != 0 && jumping != warp->active)
                return;
            pc = jumping != 0 ? instr->target : pc + 1;
            break;
        case PTX_END:
            warp->live &= ~warp->active;
            return;
        case PTX_TRAP:
            fault(warp, (uint32_t)__builtin_ctz(warp->active), instr->line, "a trap");
            return;
        default:
            if (instr->kind == PTX_WARP && warp->active == UINT32_MAX) {
                instr->run(warp, instr);
                pc++;
                break;
            }
            runner->traffic.instructions--; /* counted when all lanes are there */
            runner->traffic.mma -= instr->is_mma;
            pc_set(warp, warp->active, pc);
            warp->waiting |= warp->active;
            return;
        }
    }
    pc_set(warp, warp->active, pc);
}

/* Runs a warp until all its lanes wait for the block (true) or have ended (false). */
static bool warp_run(struct ptx_warp *warp)
{
    const struct ptx_instr *code = runner->kernel->code;
    uint32_t pc, next, turns = 0;
    while (!runner->failed) {
        while (lanes_choose(warp, &pc, &next) && !runner->failed)
            lanes_run(warp, pc, next, &turns);
        if (warp->live == 0 || runner->failed)
            return false;
        pc = warp->pc[__builtin_ctz(warp->live)];
        for (uint32_t l = 0; l < PTX_LANES; l++)
            if (warp->live != UINT32_MAX || warp->pc[l] != pc) {
                char what[128];
                snprintf(what, sizeof(what),
                         "lanes %08x of the warp wait here, others at line %u or have ended", warp->live,
                         code[warp->pc[l]].line);
                fault(warp, l, code[pc].line, what);
                return false;
            }
        warp->waiting = 0;
        lanes_activate(warp, UINT32_MAX);
        pc_set(warp, UINT32_MAX, pc + 1);
        runner->traffic.instructions++;
        runner->traffic.mma += code[pc].is_mma;
        if (code[pc].kind == PTX_BARRIER)
            return true;
        code[pc].run(warp, &code[pc]);
    }
    return false;
}

/* --- blocks and launches */

static void special_set(struct ptx_warp *warp, enum ptx_special special, uint32_t value, uint32_t step)
{
    for (uint32_t l = 0; l < PTX_LANES; l++)
        ((uint32_t *)(void *)warp->base[0])[special * PTX_LANES + l] = value + l * step;
}

static void block_run(struct runner *r, uint32_t warps, struct gpu_dims blocks)
{
    const struct ptx_kernel *kernel = r->kernel;
    uint32_t blocked;
    memset(r->shared, 0xff, kernel->shared_bytes); /* reads before a write give NaN */
    if (r->shared_shadow)
        emulated_shadow_forget(r->shared_shadow, 0, kernel->shared_bytes);
    r->epoch = 1;
    for (uint32_t w = 0; w < warps; w++) {
        struct ptx_warp *warp = &r->warps[w];
        *warp = (struct ptx_warp){.live = UINT32_MAX, .index = w};
        r->pending_count[w] = 0;
        warp->base[0] = r->registers + (uint64_t)w * kernel->register_bytes;
        warp->base[1] = kernel->constants;
        special_set(warp, PTX_TID_X, w * PTX_LANES, 1);
        special_set(warp, PTX_CTAID_X, r->block.x, 0);
        special_set(warp, PTX_CTAID_Y, r->block.y, 0);
        special_set(warp, PTX_CTAID_Z, r->block.z, 0);
        special_set(warp, PTX_NCTAID_X, blocks.x, 0);
    }
    do {
        blocked = 0;
        for (uint32_t w = 0; w < warps && !r->failed; w++)
            blocked += warp_run(&r->warps[w]);
        if (blocked != 0 && blocked != warps)
            fault(&r->warps[0], 0, 0, "some warps wait for the block, and others have ended");
        r->epoch++;
    } while (blocked != 0 && !r->failed);
}

/* Frees a host thread's runner when the thread ends. */
static pthread_key_t runner_key;
static pthread_once_t runner_once = PTHREAD_ONCE_INIT;

static void runner_free(void *memory)
{
    struct runner *r = memory;
    emulated_shadow_destroy(r->shared_shadow);
    free(r->registers);
    free(r->shared);
    free(r);
}

static void runner_key_make(void)
{
    pthread_key_create(&runner_key, runner_free);
}

/* Makes the thread's runner ready for a kernel. */
static int runner_ready(const struct ptx_kernel *kernel, uint32_t warps, bool checks, struct err *err)
{
    if (!runner) {
        runner = calloc(1, sizeof(*runner));
        if (!runner || !(runner->shared = aligned_alloc(64, SHARED_ROOM)))
            return err_set(err, ERR_NOMEM, "out of memory for a block");
        pthread_once(&runner_once, runner_key_make);
        pthread_setspecific(runner_key, runner);
    }
    uint64_t bytes = (uint64_t)warps * kernel->register_bytes;
    if (bytes > runner->register_room) {
        free(runner->registers);
        runner->register_room = (bytes + 63) / 64 * 64;
        runner->registers = aligned_alloc(64, runner->register_room);
        if (!runner->registers)
            return err_set(err, ERR_NOMEM, "out of memory for registers");
    }
    memset(runner->registers, 0xff, bytes);
    return checks && !runner->shared_shadow ? emulated_shadow_create(SHARED_ROOM, &runner->shared_shadow, err)
                                            : 0;
}

static int kernel_launch(struct emulated_memory *memory, const struct gpu_function *function,
                         uint32_t warp_size, struct gpu_dims blocks, uint32_t threads, const void *args,
                         struct err *err)
{
    static _Atomic uint32_t launches;
    struct ptx_kernel *kernel = ptx_module_kernel(function->name, err);
    if (!kernel || runner_ready(kernel, threads / PTX_LANES, memory->shadow != NULL, err) != 0)
        return -1;
    if (threads != kernel->threads || threads % PTX_LANES != 0 || warp_size != PTX_LANES ||
        kernel->array_bytes > EMULATED_SHARED_BYTES || kernel->shared_bytes > SHARED_ROOM)
        return err_set(err, ERR_INVALID,
                       "kernel %s: %u threads a block, its .maxntid is %u; %u bytes are shared", kernel->name,
                       threads, kernel->threads, kernel->array_bytes);
    struct runner *r = runner;
    r->kernel = kernel;
    r->memory = memory;
    r->args = args;
    r->launch = ++launches;
    r->span = (struct emulated_span){0};
    r->traffic = (struct ptx_traffic){0};
    r->failed = false;
    for (r->number = 0; r->number < blocks.x * blocks.y * blocks.z && !r->failed; r->number++) {
        r->block = (struct gpu_dims){r->number % blocks.x, r->number / blocks.x % blocks.y,
                                     r->number / blocks.x / blocks.y};
        block_run(r, threads / PTX_LANES, blocks);
    }
    if (r->failed)
        *err = r->error;
    return r->failed ? -1 : 0;
}

/* Adds the traffic of the thread's last launch to that of the kernel; tests read it when nothing runs. */
static void traffic_add(struct ptx_traffic *all)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    const struct ptx_traffic *one = &runner->traffic;
    pthread_mutex_lock(&lock);
    all->parts += one->parts;
    all->wavefronts += one->wavefronts;
    all->sectors += one->sectors;
    all->bytes += one->bytes;
    all->instructions += one->instructions;
    all->mma += one->mma;
    for (uint32_t i = 0; i < runner->kernel->count; i++) {
        const struct ptx_instr *instr = &runner->kernel->code[i];
        double conflict = instr->parts < PARTS_MIN ? 0 : (double)instr->wavefronts / (double)instr->parts;
        if (conflict > all->conflict) {
            all->conflict = conflict;
            all->line = instr->line;
        }
    }
    pthread_mutex_unlock(&lock);
}

int emulated_launch(struct emulated_memory *memory, const struct gpu_function *function, uint32_t warp_size,
                    uint32_t rdna, struct gpu_dims blocks, uint32_t threads, const void *args,
                    struct err *err)
{
    (void)rdna; /* NVIDIA's cards have none */
    size_t number = (size_t)(function - emulated_functions_any);
    int rc = kernel_launch(memory, function, warp_size, blocks, threads, args, err);
    __atomic_fetch_add(&ptx_control.launches[number], rc == 0, __ATOMIC_RELAXED);
    if (rc == 0)
        traffic_add(&ptx_control.traffic[number]);
    if (rc != 0)
        snprintf(ptx_control.fault, sizeof(ptx_control.fault), "%s", err->text);
    return rc;
}
