/* Runs the text of the kernels' PTX (ptx/), as this build gives it to NVIDIA's drivers, behind the fake
 * libcuda. Ops and training give the bits of the emulated device, on which the same source was compiled for
 * the CPU; a wrong lane, offset or register and a missing barrier in the text are found. */
#define HARNESS_CANDIDATES                                                                                   \
    {.kind = "emulated", .group = 1, .partial = true},                                                       \
    {                                                                                                        \
        .kind = "cuda", .group = 1, .partial = true                                                          \
    }
#include "engine/cases_basic.h"
#include "engine/cases_delta.h"
#include "engine/cases_experts.h"
#include "engine/cases_packed.h"
#include "engine/cases_units.h"

#include <dlfcn.h>

#include "engine/fakes/fake.h"
#include "engine/gpu/code.h"
#include "engine/gpu/gpu.h"
#include "engine/ptx/module.h"

static const char *const library = MOTLEY_FAKES "/libfake_cuda_ptx.so";
static const char *const archs[] = {"sm_52", "sm_75", "sm_80"};
static struct fake_control *control;
static struct ptx_control *ptx;

static int setup(void **state)
{
    (void)state;
    setenv("MOTLEY_CUDA_LIBRARY", library, 1);
    void *handle = dlopen(library, RTLD_NOW);
    control = !handle ? NULL : dlsym(handle, "fake_control");
    ptx = !handle ? NULL : dlsym(handle, "ptx_control");
    return control && ptx ? 0 : -1;
}

/* Prints the fault that the interpreter found, because the driver's error has only a number for it. */
static int teardown(void **state)
{
    (void)state;
    if (ptx->fault[0] != '\0')
        print_message("%s\n", ptx->fault);
    ptx->fault[0] = '\0';
    return 0;
}

/* Makes the fake card one that takes the text of `arch`; skips visibly when the build has none. */
static void card_is(const char *arch)
{
    struct err err;
    const struct gpu_code *code = gpu_code_choose("cuda", arch, &err);
    if (!code || strcmp(code->arch, arch) != 0) {
        printf("skipped: %s\n", !code ? err.text : "this build lacks one of NVIDIA's codes");
        skip();
    }
    control->capability = (int)strtol(arch + 3, NULL, 10);
}

static void devices_open(const char *isa, struct device **devices)
{
    struct err err;
    for (uint32_t d = 0; d < CANDIDATES; d++)
        check(device_open(&(struct device_options){.kind = candidates[d].kind,
                                                   .name = candidates[d].kind,
                                                   .isa = d == 0 ? isa : NULL,
                                                   .memory_limit_bytes = 64 << 20},
                          &devices[d], &err));
}

static void cases_compare(const char *arch, const char *isa, const struct op_case *cases, size_t count,
                          uint32_t trials)
{
    struct device *devices[CANDIDATES];
    card_is(arch);
    devices_open(isa, devices);
    for (size_t i = 0; i < count; i++)
        case_run(devices, &cases[i], trials);
    for (uint32_t d = 0; d < CANDIDATES; d++)
        device_close(devices[d]);
}

#define NAME(kernel, threads) #kernel,
static const char *const names[] = {GPU_KERNEL_LIST(NAME)};

/* Prints which kernels nothing has launched so far. */
static void unlaunched_print(void)
{
    uint32_t count = 0;
    for (size_t k = 0; k < sizeof(names) / sizeof(*names); k++)
        if (ptx->launches[k] == 0)
            print_message("%s%s", count++ == 0 ? "    never launched: " : ", ", names[k]);
    print_message("%s%u of %zu kernels were launched\n", count == 0 ? "    " : "\n    ",
                  (uint32_t)(sizeof(names) / sizeof(*names)) - count, sizeof(names) / sizeof(*names));
}

/* Is the kernel one of products, attention or packed weights? */
static bool multiplies(const char *name)
{
    static const char *const families[] = {"gemm_", "units_", "grouped_", "outer_", "attention_", "unpack_"};
    for (size_t i = 0; i < sizeof(families) / sizeof(*families); i++)
        if (strncmp(name, families[i], strlen(families[i])) == 0)
            return true;
    return false;
}

/* Prints what the accesses of the kernels of `arch` cost since the last call. Fails if an instruction's
 * accesses to shared memory take more wavefronts a part than CONFLICT_MAX, on average. Patterns that the code
 * fixes have whole numbers: up to two. The words of NF4's table of scales depend on the weights: 16 lanes
 * that want any of 32 banks take 2.2 wavefronts on average. */
#define CONFLICT_MAX 2.5
static void traffic_check(const char *arch)
{
    uint32_t bad = 0;
    for (size_t k = 0; k < sizeof(names) / sizeof(*names); k++) {
        const struct ptx_traffic t = ptx->traffic[k];
        ptx->traffic[k] = (struct ptx_traffic){0};
        if (!multiplies(names[k]) || t.sectors == 0)
            continue;
        print_message(
            "    %s %-28s %4.2f wavefronts a part, %4.2f at most (line %u); %3.0f %% of sectors' bytes\n",
            arch, names[k], t.parts == 0 ? 0 : (double)t.wavefronts / (double)t.parts, t.conflict, t.line,
            100.0 * (double)t.bytes / (32.0 * (double)t.sectors));
        bad += t.conflict > CONFLICT_MAX;
    }
    if (bad > 0)
        fail_msg("%u kernels of %s want more than two words of a bank of shared memory at once", bad, arch);
}

/* A kernel of products and the tile of its blocks; kind: struct product's, of b. */
static const struct product_kernel {
    enum gpu_kernel kernel;
    uint32_t rows, columns, kind;
} product_kernels[] = {
    {KERNEL_gemm_128x128, 128, 128, ELEMENT_F32},
    {KERNEL_gemm_64x64, 64, 64, ELEMENT_F32},
    {KERNEL_gemm_64x16, 64, 16, ELEMENT_F32},
    {KERNEL_gemm_16x64, 16, 64, ELEMENT_F32},
    {KERNEL_gemm_nf4_128x128, 128, 128, 1},
    {KERNEL_gemm_nf4_64x64, 64, 64, 1},
    {KERNEL_gemm_nf4_16x64, 16, 64, 1},
    {KERNEL_gemm_blocks_128x128, 128, 128, UNPACK_Q4_K},
    {KERNEL_gemm_blocks_64x64, 64, 64, UNPACK_Q4_K},
    {KERNEL_gemm_blocks_16x64, 16, 64, UNPACK_Q4_K},
    {KERNEL_units_128x128, 128, 128, ELEMENT_BF16},
    {KERNEL_units_eights_128x128, 128, 128, ELEMENT_BF16},
    {KERNEL_units_nf4_eights_128x128, 128, 128, 1},
    {KERNEL_units_64x64, 64, 64, ELEMENT_BF16},
    {KERNEL_units_32x128, 32, 128, ELEMENT_F32},
    {KERNEL_units_128x32, 128, 32, ELEMENT_F32},
    {KERNEL_units_nf4_128x128, 128, 128, 1},
    {KERNEL_units_nf4_64x64, 64, 64, 1},
    {KERNEL_units_nf4_32x128, 32, 128, 1},
    {KERNEL_units_blocks_128x128, 128, 128, UNPACK_Q4_K},
    {KERNEL_units_blocks_64x64, 64, 64, UNPACK_Q4_K},
    {KERNEL_units_blocks_32x128, 32, 128, UNPACK_Q4_K},
};

/* Launches one block of the kernel over a product of k terms, with both operands along or across, and returns
 * what it did. */
static struct ptx_traffic product_traffic(struct gpu_call *call, const struct product_kernel *of,
                                          gpu_address memory, uint32_t turned, uint32_t k)
{
    struct err err = {0};
    struct ptx_traffic before = ptx->traffic[of->kernel], after;
    uint32_t m = of->rows, n = of->columns, units = strncmp(names[of->kernel], "units_", 6) == 0;
    struct product p = {.a = memory,
                        .b = memory + (1 << 20),
                        .c = memory + (2 << 20),
                        .absmax = memory + (3 << 20),
                        .scales = memory + (3 << 20) + 65536,
                        .m = m,
                        .n = n,
                        .k = k,
                        .k_piece = k,
                        .lda = turned & 1 ? m : k,
                        .ldb = turned & 2 ? n : k,
                        .ldc = n,
                        .transpose_a = turned & 1,
                        .transpose_b = (turned & 2) == 0,
                        .wide_a = 1,
                        .wide_b = 1,
                        .alpha = 1,
                        .a_as = units ? ELEMENT_BF16 : ELEMENT_F32,
                        .kind = of->kind,
                        .compute = units ? ELEMENT_BF16 : ELEMENT_F32};
    call->gpu->queued[call->queue]++; /* as gpu_run does, so that the device is synchronised */
    int status = gpu_launch(call, of->kernel, 1, 1, 1, &p, sizeof(p));
    check(status != 0 ? status : device_sync(&call->gpu->base, &err));
    after = ptx->traffic[of->kernel];
    after.instructions -= before.instructions;
    after.mma -= before.mma;
    after.parts -= before.parts;
    after.wavefronts -= before.wavefronts;
    return after;
}

/* Every tile of products on aligned operands of any order. MOTLEY_GPU_TRAFFIC: a file for bench/gpu_paper.py,
 * with a line for each kernel and order: what each further 64 terms of a block cost. */
static void tiles_do_not_conflict(void **state)
{
    (void)state;
    struct err err;
    struct device *devices[CANDIDATES];
    struct buffer *buffer;
    enum { BYTES = 4 << 20 };
    const char *path = getenv("MOTLEY_GPU_TRAFFIC");
    FILE *file = !path ? NULL : fopen(path, "w");
    uint8_t *noise = malloc(BYTES);
    card_is("sm_80");
    devices_open("warp32", devices);
    check(buffer_create(devices[1], BYTES, MEM_BUFFERS, "operands", &buffer, &err));
    for (uint32_t i = 0, x = 1; i < BYTES; i++, x = x * 1664525 + 1013904223)
        noise[i] = (uint8_t)(x >> 24);
    check(buffer_write(buffer, 0, noise, BYTES, &err));
    struct gpu_call call = {
        .gpu = (struct gpu *)devices[1], .queue = DEVICE_COMPUTE, .kind = OP_GEMM, .err = &err};
    gpu_address memory = (gpu_address)(uintptr_t)buffer->memory;
    for (size_t i = 0; i < sizeof(product_kernels) / sizeof(*product_kernels); i++)
        for (uint32_t turned = 0; turned < 4; turned++) {
            struct ptx_traffic few = product_traffic(&call, &product_kernels[i], memory, turned, 256);
            struct ptx_traffic more = product_traffic(&call, &product_kernels[i], memory, turned, 512);
            if (file)
                fprintf(file, "%s %u %.2f %.2f %.2f\n", names[product_kernels[i].kernel], turned,
                        (double)(more.instructions - few.instructions) / 4,
                        (double)(more.wavefronts - few.wavefronts) / 4, (double)(more.mma - few.mma) / 4);
        }
    traffic_check("sm_80");
    free(noise);
    if (file)
        fclose(file);
    buffer_destroy(buffer);
    for (uint32_t d = 0; d < CANDIDATES; d++)
        device_close(devices[d]);
}

/* --- shapes that the other cases seldom have */

/* Draws a product of 72 tiles of 128 × 128, some of which are not whole. */
static void large_draw(struct trial *t)
{
    static const enum dtype computes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    struct op_gemm *o = &t->op.gemm;
    gemm_draw(t);
    o->m = 1020;
    o->n = 1030;
    o->k = 20 + draw_below(t, 20);
    o->lda = o->transpose_a ? o->m : o->k;
    o->ldb = o->transpose_b ? o->k : o->n;
    o->ldc = o->n;
    o->compute = computes[draw_below(t, 3)];
}

/* Draws a product of 72 tiles of 128 × 128 whose operands come in aligned eights, unless a is in fp32. */
static void eights_draw(struct trial *t)
{
    static const enum pack_kind packs[] = {PACK_BF16, PACK_F16, PACK_NF4, PACK_NF4_DOUBLE};
    struct op_gemm *o = &t->op.gemm;
    t->op.kind = OP_GEMM;
    o->pack = packs[draw_below(t, 4)];
    const bool bf16 = o->pack == PACK_BF16 || (o->pack != PACK_F16 && draw_below(t, 2)),
               plain = o->pack <= PACK_F16;
    o->compute = bf16 ? DTYPE_BF16 : DTYPE_F16;
    o->m = 1016;
    o->n = 1040;
    o->k = 16 * (1 + draw_below(t, 4));
    o->transpose_a = draw_below(t, 2);
    o->transpose_b = draw_below(t, 2);
    o->alpha = 1;
    o->lda = (o->transpose_a ? o->m : o->k) + 8 * draw_below(t, 2);
    o->ldb = (o->transpose_b ? o->k : o->n) + (plain ? 8 * draw_below(t, 2) : 0);
    o->ldc = o->n;
    bind(t, &o->a);
    if (plain)
        bind(t, &o->b);
    else
        bind_as(t, &o->b, FILL_BELOW, 256);
    if (o->pack == PACK_NF4_DOUBLE)
        bind_as(t, &o->absmax, FILL_BELOW, 256);
    else if (!plain)
        bind(t, &o->absmax);
    if (o->pack == PACK_NF4_DOUBLE)
        bind(t, &o->scales);
    bind(t, &o->c);
}

static void attention_fp32_draw(struct trial *t)
{
    forward_draw(t);
    t->op.attention.compute = DTYPE_F32;
}

static void attention_backward_fp32_draw(struct trial *t)
{
    backward_draw(t);
    t->op.attention_backward.forward.compute = DTYPE_F32;
}

static const struct op_case shape_cases[] = {
    {.name = "large", .draw = large_draw},
    {.name = "eights",
     .draw = eights_draw,
     .prepare = gemm_packed_prepare,
     .want = gemm_packed_want,
     .tolerance = 2e-6,
     .aligned = true},
    {.name = "attention_fp32", .draw = attention_fp32_draw, .aligned = true},
    {.name = "attention_backward_fp32",
     .draw = attention_backward_fp32_draw,
     .prepare = attention_rounded_prepare,
     .aligned = true},
};

static void ops_give_the_bits_of_the_emulated_device(void **state)
{
    (void)state;
    uint32_t trials = getenv("MOTLEY_EMULATED_CHECK") ? 20 : 2;
    for (size_t i = 0; i < sizeof(archs) / sizeof(*archs); i++) {
        const char *isa = strcmp(archs[i], "sm_80") == 0 ? "warp32" : "warp32,plain";
        cases_compare(archs[i], isa, basic_cases, sizeof(basic_cases) / sizeof(*basic_cases), trials);
        cases_compare(archs[i], isa, delta_cases, sizeof(delta_cases) / sizeof(*delta_cases), trials);
        cases_compare(archs[i], isa, expert_cases, sizeof(expert_cases) / sizeof(*expert_cases), trials);
        cases_compare(archs[i], isa, packed_cases, sizeof(packed_cases) / sizeof(*packed_cases), trials);
        cases_compare(archs[i], isa, rounded_cases, sizeof(rounded_cases) / sizeof(*rounded_cases), trials);
        cases_compare(archs[i], isa, packed_rounded_cases,
                      sizeof(packed_rounded_cases) / sizeof(*packed_rounded_cases), trials);
        if (strcmp(archs[i], "sm_75") != 0)
            cases_compare(archs[i], isa, shape_cases, sizeof(shape_cases) / sizeof(*shape_cases), 2 * trials);
        if (strcmp(archs[i], "sm_80") == 0)
            cases_compare(archs[i], isa, units_cases, sizeof(units_cases) / sizeof(*units_cases), 3 * trials);
        traffic_check(archs[i]);
    }
    unlaunched_print();
}

/* Every kernel of every text is understood, whether the tests launch it or not. */
static void every_instruction_is_known(void **state)
{
    (void)state;
    struct err err;
    struct ptx_kernel *(*parse)(const char *, const char *, struct err *);
    void (*release)(struct ptx_kernel *);
    *(void **)&parse = dlsym(dlopen(library, RTLD_NOW), "ptx_parse");
    *(void **)&release = dlsym(dlopen(library, RTLD_NOW), "ptx_free");
    for (size_t i = 0; i < sizeof(archs) / sizeof(*archs); i++) {
        void *text;
        uint64_t bytes;
        uint32_t matrix;
        card_is(archs[i]);
        check(gpu_code_load("cuda", archs[i], false, &text, &bytes, &matrix, &err));
        for (size_t k = 0; k < sizeof(names) / sizeof(*names); k++) {
            struct ptx_kernel *kernel = parse(text, names[k], &err);
            if (!kernel)
                fail_msg("%s", err.text);
            release(kernel);
        }
        free(text);
    }
}

/* --- faults that are planted into the text */

/* Runs a trial on the fake card and tells whether it fails or gives other bits than `expected`. */
static bool trial_differs(struct trial *t, struct device *card, uint8_t **expected)
{
    struct buffer *buffers[OP_OPERANDS_MAX];
    uint64_t bytes[OP_OPERANDS_MAX];
    struct err err;
    for (uint32_t i = 0; i < t->count; i++) {
        struct array *a = &t->arrays[i];
        uint32_t size = dtype_bytes(a->use.operand.dtype);
        bytes[i] = (a->lead + a->count + PAD_MAX) * size;
        check(buffer_create(card, bytes[i], MEM_BUFFERS, "operand", &buffers[i], &err));
        check(buffer_write(buffers[i], 0, a->bytes, bytes[i], &err));
        *a->operand =
            (struct operand){.buffer = buffers[i], .at = a->lead * size, .dtype = a->use.operand.dtype};
    }
    bool differs = op_submit(card, &t->op, &err) != 0 || device_sync(card, &err) != 0;
    for (uint32_t i = 0; i < t->count; i++) {
        uint8_t *after = calloc(1, bytes[i]);
        differs = differs || buffer_read(buffers[i], 0, after, bytes[i], &err) != 0 ||
                  device_sync(card, &err) != 0 || memcmp(after, expected[i], bytes[i]) != 0;
        free(after);
        buffer_destroy(buffers[i]);
    }
    return differs;
}

struct planted {
    const char *kernel, *find, *with;
    const struct op_case *cases;
    uint32_t case_count;
    const char *case_name;
    const char *fault; /* words of the fault that the interpreter must report; NULL: other bits are enough */
    uint32_t first;    /* first occurrence of `find` that is replaced, from 0 */
};

static const struct op_case *case_of(const struct planted *planted)
{
    for (uint32_t i = 0; i < planted->case_count; i++)
        if (strcmp(planted->cases[i].name, planted->case_name) == 0)
            return &planted->cases[i];
    fail_msg("no case is named %s", planted->case_name);
    return NULL;
}

/* Plants the fault at the `which`-th place. False: the text has no such place. */
static bool planted_is_found(const struct planted *planted, uint32_t which)
{
    enum { TRIALS = 12 };
    struct device *devices[CANDIDATES];
    const struct op_case *c = case_of(planted);
    bool found = false;
    ptx->edit.kernel = planted->kernel;
    ptx->edit.find = planted->find;
    ptx->edit.with = planted->with;
    ptx->edit.which = which;
    ptx->fault[0] = '\0';
    setenv("MOTLEY_EMULATED", "checks", 1);
    devices_open("warp32", devices);
    unsetenv("MOTLEY_EMULATED");
    ptx->edit.kernel = NULL;
    for (uint64_t seed = 0; seed < TRIALS && ptx->edit.done && !found; seed++) {
        uint8_t *expected[OP_OPERANDS_MAX];
        struct trial t;
        trial_create(&t, c, seed);
        if (trial_run(&t, devices[0], true, expected) && op_supports(devices[1], &t.op))
            found = trial_differs(&t, devices[1], expected);
        for (uint32_t i = 0; i < t.count; i++)
            free(expected[i]);
        trial_destroy(&t);
    }
    for (uint32_t d = 0; d < CANDIDATES; d++)
        device_close(devices[d]);
    if (!ptx->edit.done)
        return false;
    print_message("    %s, '%s' number %u: %s\n", planted->kernel, planted->find, which,
                  ptx->fault[0] != '\0' ? ptx->fault
                  : found               ? "other bits"
                                        : "not found");
    assert_true(found);
    if (planted->fault)
        assert_non_null(strstr(ptx->fault, planted->fault));
    ptx->fault[0] = '\0';
    return true;
}

#define BASIC(name) basic_cases, sizeof(basic_cases) / sizeof(*basic_cases), name
#define ROUNDED(name) rounded_cases, sizeof(rounded_cases) / sizeof(*rounded_cases), name
#define EXPERTS(name) expert_cases, sizeof(expert_cases) / sizeof(*expert_cases), name

static void planted_faults_are_found(void **state)
{
    (void)state;
    static const struct planted places[] = {
        {"gemm_64x64", "bar.sync", "// bar.sync", BASIC("gemm"), "no barrier between them", 0},
        {"units_64x64", "bar.sync", "// bar.sync", ROUNDED("gemm_rounded"), "no barrier between them", 0},
        /* Without square_sums' first barrier no fault occurs here: it only separates two sums of one block.
         */
        {"square_sums", "bar.sync", "// bar.sync", BASIC("square_sum"), "nobody wrote it", 1},
        {"square_sums", "31, -1;", "7, -1;", BASIC("square_sum"), NULL,
         0}, /* a lower limit of the shuffle's source lanes */
        {"square_sums", "shared+8]", "shared+16]", BASIC("square_sum"), NULL,
         0}, /* the address of another warp's sum */
        {"square_sums", "shared+56]", "shared+64]", BASIC("square_sum"), "outside of every shared array", 0},
        {"units_64x64", "x4.trans.", "x4.", ROUNDED("gemm_rounded"), NULL,
         0}, /* blocks that are not turned */
    };
    card_is("sm_80");
    for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
        uint32_t found = 0;
        while (found < 2 && planted_is_found(&places[i], places[i].first + found))
            found++;
        if (found == 0)
            fail_msg("%s has no '%s' to plant a fault at", places[i].kernel, places[i].find);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_instruction_is_known),
        cmocka_unit_test_teardown(tiles_do_not_conflict, teardown),
        cmocka_unit_test_teardown(ops_give_the_bits_of_the_emulated_device, teardown),
        cmocka_unit_test_teardown(planted_faults_are_found, teardown),
    };
    if (getenv("MOTLEY_GPU_TRAFFIC"))
        cmocka_set_test_filter("tiles_do_not_conflict");
    return cmocka_run_group_tests(tests, setup, NULL);
}
