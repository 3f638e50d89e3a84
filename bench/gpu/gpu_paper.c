/* Counts what one step of training asks of a card: every op with its FLOPs, bytes and launches, by the engine
 * itself. The device is the engine's own device for GPUs, over a driver that takes memory, copies and
 * launches without doing anything, with a library of products that counts. bench/gpu_paper.py makes a
 * roofline of it.
 *
 *   gpu_paper SHAPE METHOD GIB LAYERS SAVED [MATRIX]
 *                                        SHAPE: 8b, 1b or toy; METHOD: qlora, lora or full; GIB: the card's
 *                                        memory, which decides how many layers of the whole model keep their
 *                                        values ("saved"); LAYERS: of the model that is counted (all layers
 * are alike); SAVED: how many of these keep their values; MATRIX: the 16-bit types of the card's matrix
 * units, f16+bf16, f16 or none
 *
 * It prints one document of JSON: the step, and a list of its ops. A kernel has its launches and blocks;
 * "bytes" are those of an op's operands, each read or written once; "library_flops" are those of products
 * that go to the vendor's library.
 */
#include "bench/gpu/step.h"
#include "engine/gpu/gpu.h"
#include "engine/gpu/products.h"

enum { GROUPS_MAX = 512, GROUP_KERNELS = 16, WORDS = 96 };

/* Ops of one kind and size. */
struct op_group {
    enum op_kind kind;
    char detail[WORDS];
    uint64_t count, launches, fills, library_products;
    double flops, bytes, library_flops;
    double converted_a, converted_b; /* values of both operands that were converted for the library */
    struct {
        uint16_t kernel;
        uint64_t launches, blocks;
    } kernels[GROUP_KERNELS];
    uint32_t kernel_count;
};

static struct op_group groups[GROUPS_MAX];
static uint32_t group_count;
static struct op_group *now; /* the group of the op that is being queued; NULL: none */
static uint32_t
    launches_before; /* launches since the library's last product: conversions, if the op goes there */
static uint64_t memory_bytes, memory_next = 1ull << 40;
static const struct op_ops *real_ops;
static uint32_t step_length; /* tokens of a row */

/* --- a driver that does nothing */

static int paper_memory_create(struct gpu_context *context, uint64_t bytes, gpu_address *out, struct err *why)
{
    (void)context, (void)why;
    *out = memory_next;
    memory_next += (bytes + 255) / 256 * 256;
    return 0;
}

static int paper_memory_destroy(struct gpu_context *context, gpu_address address, struct err *why)
{
    (void)context, (void)address, (void)why;
    return 0;
}

static int paper_queue_native(struct gpu_queue *queue, void **out, struct err *why)
{
    (void)why;
    *out = queue;
    return 0;
}

static int paper_copy_in(struct gpu_queue *queue, gpu_address to, const void *from, uint64_t bytes,
                         struct err *why)
{
    (void)queue, (void)to, (void)from, (void)bytes, (void)why;
    return 0;
}

static int paper_copy_out(struct gpu_queue *queue, void *to, gpu_address from, uint64_t bytes,
                          struct err *why)
{
    (void)queue, (void)from, (void)why;
    memset(to, 0, bytes);
    return 0;
}

static int paper_copy(struct gpu_queue *queue, gpu_address to, gpu_address from, uint64_t bytes,
                      struct err *why)
{
    (void)queue, (void)to, (void)from, (void)bytes, (void)why;
    return 0;
}

static int paper_fill(struct gpu_queue *queue, gpu_address to, uint8_t byte, uint64_t bytes, struct err *why)
{
    (void)queue, (void)to, (void)byte, (void)why;
    if (now) {
        now->fills++;
        now->bytes += (double)bytes;
    }
    return 0;
}

static int kernel_of(const struct gpu_function *function)
{
    const struct gpu *gpu = (const struct gpu *)device;
    int kernel = 0;
    while (gpu->functions[kernel] != function)
        kernel++;
    return kernel;
}

static int paper_launch(struct gpu_queue *queue, struct gpu_function *function, struct gpu_dims blocks,
                        uint32_t threads, uint32_t shared, const void *args, uint32_t args_bytes,
                        struct err *why)
{
    (void)queue, (void)threads, (void)shared, (void)args, (void)args_bytes;
    uint32_t i = 0;
    if (!now)
        return 0;
    int kernel = kernel_of(function);
    while (i < now->kernel_count && now->kernels[i].kernel != kernel)
        i++;
    if (i == GROUP_KERNELS)
        return err_set(why, ERR_TOO_BIG, "an op of more than %d kernels", GROUP_KERNELS);
    now->kernel_count = i == now->kernel_count ? i + 1 : now->kernel_count;
    now->kernels[i].kernel = (uint16_t)kernel;
    now->kernels[i].launches++;
    now->kernels[i].blocks += (uint64_t)blocks.x * blocks.y * blocks.z;
    now->launches++;
    launches_before++;
    return 0;
}

/* Is the address in one of the areas for converted operands? */
static bool is_converted(gpu_address at)
{
    const struct gpu *gpu = (const struct gpu *)device;
    for (int i = 0; i < 2; i++)
        if (at >= gpu->stages[i] && at < gpu->stages[i] + gpu->stage_bytes)
            return true;
    return false;
}

static int paper_products_find(uint32_t driver_version, const char *arch, char *name, uint32_t room,
                               struct err *why)
{
    (void)driver_version, (void)arch, (void)why;
    snprintf(name, room, "on paper");
    return 0;
}

static int paper_products_open(const struct products_place *place, struct products **out, struct err *why)
{
    (void)place, (void)why;
    *out = (struct products *)&memory_bytes; /* any address: it is never followed */
    return 0;
}

static void paper_products_close(struct products *products)
{
    (void)products;
}

static int paper_multiply(struct products *products, const struct library_product *p, bool *done,
                          struct err *why)
{
    (void)products, (void)why;
    *done = true;
    if (!now)
        return 0;
    now->library_flops += 2.0 * p->m * p->n * p->k;
    /* a piece of a is converted before each product, one of b before the first of its products */
    bool a = is_converted(p->a);
    now->converted_a += a ? (double)p->m * p->k : 0;
    now->converted_b += is_converted(p->b) && launches_before > a ? (double)p->n * p->k : 0;
    launches_before = 0;
    now->library_products++;
    now->launches++;
    return 0;
}

/* --- ops */

static const char *pack_word(enum pack_kind pack)
{
    return pack == PACK_F32          ? "f32"
           : pack == PACK_BF16       ? "bf16"
           : pack == PACK_F16        ? "f16"
           : pack == PACK_NF4        ? "nf4"
           : pack == PACK_NF4_DOUBLE ? "nf4 double"
                                     : "blocks";
}

/* Pairs of query and key of causal attention over the step's rows. */
static double pairs(uint32_t tokens)
{
    return (double)tokens * (step_length + 1) / 2;
}

/* Writes what distinguishes the op from others of its kind (its sizes), and returns its FLOPs. */
static double describe(const struct op *op, char detail[WORDS])
{
    const char *const bits = op_in_16_bits(op) ? "16 bit" : "fp32";
    const struct op_gemm *g = &op->gemm;
    const struct op_attention *a =
        op->kind == OP_ATTENTION ? &op->attention : &op->attention_backward.forward;
    if (op->kind == OP_GEMM)
        snprintf(detail, WORDS, "%u x %u x %u, %s weights, %s%s%s", g->m, g->n, g->k, pack_word(g->pack),
                 bits, g->transpose_a ? ", a across" : "", g->transpose_b ? ", b across" : "");
    if (op->kind != OP_ATTENTION && op->kind != OP_ATTENTION_BACKWARD)
        return op_flops(op, 0);
    snprintf(detail, WORDS, "%u tokens, %u heads of %u, %s", a->tokens, a->heads, a->head_dim, bits);
    return op_flops(op, pairs(a->tokens));
}

static int paper_submit(enum device_queue queue, struct device *on, const struct op *op, struct err *why)
{
    char detail[WORDS] = "";
    const double flops = describe(op, detail);
    uint32_t i = 0;
    while (i < group_count && (groups[i].kind != op->kind || strcmp(groups[i].detail, detail) != 0))
        i++;
    if (i == GROUPS_MAX)
        return err_set(why, ERR_TOO_BIG, "more than %d kinds of ops", GROUPS_MAX);
    group_count = i == group_count ? i + 1 : group_count;
    now = &groups[i];
    now->kind = op->kind;
    memcpy(now->detail, detail, sizeof(detail));
    now->count++;
    now->flops += flops;
    now->bytes += op_bytes(op);
    launches_before = 0;
    int status = real_ops->submit(queue, on, op, why);
    now = NULL;
    return status;
}

/* --- the device and the step */

/* Opens an emulated device and replaces its driver by the functions above, so that it looks like an sm_90. */
static void paper_open(const char *matrix)
{
    static const struct products_vendor products = {.name = "library",
                                                    .find = paper_products_find,
                                                    .open = paper_products_open,
                                                    .close = paper_products_close,
                                                    .multiply = paper_multiply};
    static struct gpu_driver driver;
    static struct backend backend;
    static struct op_ops ops;
    must(device_open(&(struct device_options){.kind = "emulated", .name = "paper"}, &device, &err));
    struct gpu *gpu = (struct gpu *)device;
    driver = *gpu->driver;
    driver.products = &products;
    driver.memory_create = paper_memory_create;
    driver.memory_destroy = paper_memory_destroy;
    driver.queue_native = paper_queue_native;
    driver.copy_in = paper_copy_in;
    driver.copy_out = paper_copy_out;
    driver.copy = paper_copy;
    driver.fill = paper_fill;
    driver.launch = paper_launch;
    driver.capture_begin = NULL;
    gpu->driver = &driver;
    gpu->info.memory = memory_bytes;
    snprintf(gpu->info.arch, sizeof(gpu->info.arch), "sm_90");
    gpu->matrix = (strstr(matrix, "bf16") ? GPU_MATRIX_BF16 : 0) |
                  (strncmp(matrix, "f16", 3) == 0 ? GPU_MATRIX_F16 : 0);
    gpu_library_open(gpu, 0);
    real_ops = device->backend->op;
    ops = *real_ops;
    ops.submit = paper_submit;
    backend = *device->backend;
    backend.op = &ops;
    device->backend = &backend;
}

/* Zeros, because nobody looks at the weights' values. */
static int zero_read(void *context, const char *name, uint64_t begin, uint64_t end, float *dst,
                     struct err *why)
{
    (void)why;
    memset(dst, 0, (end - begin) * weight_columns(context, name) * sizeof(*dst));
    return 0;
}

static void group_print(const struct op_group *g)
{
#define NAME(name, threads) #name,
    static const char *const names[GPU_KERNEL_COUNT] = {GPU_KERNEL_LIST(NAME)};
    printf("{\"op\": \"%s\", \"detail\": \"%s\", \"count\": %llu, \"flops\": %.17g, \"bytes\": %.17g, "
           "\"launches\": "
           "%llu, \"fills\": %llu, \"library_products\": %llu, \"library_flops\": %.17g, \"converted_a\": "
           "%.17g, \"converted_b\": %.17g, \"kernels\": {",
           op_name(g->kind), g->detail, (unsigned long long)g->count, g->flops, g->bytes,
           (unsigned long long)g->launches, (unsigned long long)g->fills,
           (unsigned long long)g->library_products, g->library_flops, g->converted_a, g->converted_b);
    for (uint32_t i = 0; i < g->kernel_count; i++)
        printf("%s\"%s\": [%llu, %llu]", i > 0 ? ", " : "", names[g->kernels[i].kernel],
               (unsigned long long)g->kernels[i].launches, (unsigned long long)g->kernels[i].blocks);
    printf("}}");
}

int main(int argc, char **argv)
{
    if (argc < 6)
        return fprintf(stderr, "gpu_paper 8b|1b|toy qlora|lora|full GIB LAYERS SAVED [f16+bf16|f16|none]\n"),
               2;
    const struct model_config *shape = strcmp(argv[1], "8b") == 0   ? &shape_8b
                                       : strcmp(argv[1], "1b") == 0 ? &shape_1b
                                                                    : &shape_toy;
    struct model_config counted = *shape;
    struct stage_options o = step_method(argv[2]);
    struct timed_step step = {0};
    struct stage_memory predicted;
    step_length = shape == &shape_toy ? 8 : 2048;
    memory_bytes = strtoull(argv[3], NULL, 10) << 30;
    counted.layers = (uint32_t)strtoul(argv[4], NULL, 10);
    const uint32_t saved = (uint32_t)strtoul(argv[5], NULL, 10);
    paper_open(argc > 6 ? argv[6] : "f16+bf16");
    step_prepare(&step, &o, shape, step_length);
    /* what the agent keeps back (agent/cards.c), and what the device takes for itself */
    const uint64_t room =
        memory_bytes / 100 * 92 - 500000000 - gpu_base_bytes(&((struct gpu *)device)->info, true);
    const uint32_t whole_saved = step_fit(&o, room, &predicted);
    o.config = &counted;
    o.block_end = counted.layers + 2;
    o.recompute = saved < counted.layers;
    o.recompute_end = saved > 0 && o.recompute ? counted.layers + 1 - saved : 0;
    const struct weight_source source = {.read = zero_read, .context = &counted};
    must(stage_create_from(device, &source, &o, &step.stage, &err));
    group_count = 0; /* making the stage is no part of the step */
    memset(groups, 0, sizeof(groups));
    step_run(&step);
    printf("{\"layers\": %u, \"counted\": %u, \"rows\": %u, \"tokens\": %u, \"saved\": %u, "
           "\"predicted_bytes\": "
           "%llu, \"model_flops\": %.17g, \"ops\": [",
           shape->layers, counted.layers, ROWS, ROWS * step_length, whole_saved,
           (unsigned long long)predicted.total, step_flops(shape, o.full, ROWS, step_length));
    for (uint32_t i = 0; i < group_count; i++) {
        printf("%s", i > 0 ? ", " : "");
        group_print(&groups[i]);
    }
    printf("]}\n");
    return 0; /* the device is not closed: its memory was never the emulated driver's */
}
