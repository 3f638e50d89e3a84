/* Measures the engine on a card, by the card's own clock: products, attention, and whole training steps, with
 * random weights made here. bench/gpu_bench.py runs the parts, compares them with PyTorch and records the
 * figures.
 *
 *   gpu_bench KIND PART [toy]    KIND: cuda, hip or emulated. PART: products, attention, lora, qlora or full
 *
 * It prints one line of JSON: {"device", "arch", "part", "values": {name: number}}. toy uses tiny shapes, for
 * the emulated device. Each figure comes from windows that follow a warm-up and continue until two agree
 * within 2 %, but at most ten; what takes 10 s is measured once. A model that does not fit the card makes
 * room for a smaller one.
 */
#include "bench/gpu/step.h"
#include "engine/gpu/gpu.h"
#include "engine/gpu/trace.h"

enum { WINDOWS_MAX = 10, LAUNCHES_MAX = 60000 };
static const double WINDOW_S = 0.25, AGREE = 0.02, SLOW_S = 10;

static bool toy;
static const char *comma = "";

static void value(const char *name, double number)
{
    printf(isfinite(number) ? "%s\"%s\": %.6g" : "%s\"%s\": null", comma, name, number);
    comma = ", ";
    fflush(stdout); /* a run that is cut off leaves the figures that it has */
}

/* Returns the seconds of one call of `work`, by the device's clock. */
static double timed(void (*work)(void *context), void *context)
{
    struct event *from, *to;
    double seconds = 0, last = 0;
    must(event_create_timed(device, &from, &err));
    must(event_create_timed(device, &to, &err));
    must(event_record(from, &err));
    work(context); /* the first calls compile kernels and record passes */
    must(event_record(to, &err));
    must(device_sync(device, &err));
    must(event_elapsed(from, to, &seconds, &err));
    const bool slow = seconds >= SLOW_S;
    for (int i = 0; i < 2 && !slow; i++)
        work(context);
    must(device_sync(device, &err));
    uint32_t calls = 1;
    for (int window = 0; window < (slow ? 0 : toy ? 2 : WINDOWS_MAX); window++) {
        must(event_record(from, &err));
        for (uint32_t i = 0; i < calls; i++)
            work(context);
        must(event_record(to, &err));
        must(device_sync(device, &err));
        double span;
        must(event_elapsed(from, to, &span, &err));
        last = seconds;
        seconds = span / calls;
        if (window > 1 && fabs(seconds - last) <= AGREE * last)
            break;
        calls = toy || span >= WINDOW_S ? calls
                                        : (uint32_t)fmin(10000, ceil(calls * WINDOW_S / fmax(span, 1e-6)));
    }
    event_destroy(from);
    event_destroy(to);
    return seconds;
}

/* --- products and attention */

/* Makes a buffer of small values of both signs. */
static struct buffer *filled(uint64_t bytes, enum dtype dtype)
{
    struct buffer *buffer;
    uint64_t piece = bytes < 1 << 22 ? bytes : 1 << 22;
    uint8_t *host = malloc(piece);
    uint32_t state = 12345;
    for (uint64_t i = 0; i + 4 <= piece && host; i += 4) {
        state = state * 1664525 + 1013904223;
        float x = (float)(state >> 8) / 16777216 - 0.5f;
        uint32_t bits;
        memcpy(&bits, &x, 4);
        bits = dtype == DTYPE_F32 ? bits : dtype == DTYPE_BF16 ? (bits >> 16) * 0x10001u : state;
        memcpy(host + i, &bits, 4);
    }
    must(!host ? err_set(&err, ERR_NOMEM, "out of memory") : 0);
    must(buffer_create(device, bytes, MEM_BUFFERS, "an operand", &buffer, &err));
    for (uint64_t at = 0; at < bytes; at += piece)
        must(buffer_write(buffer, at, host, bytes - at < piece ? bytes - at : piece, &err));
    must(device_sync(device, &err));
    free(host);
    return buffer;
}

static void op_run(void *context)
{
    must(op_submit(device, context, &err));
}

static void op_time(const char *name, struct op *op, double flops)
{
    char full[96];
    if (!op_supports(device, op)) {
        snprintf(full, sizeof(full), "%s_tflops", name);
        value(full, NAN); /* the device does not support this product */
        return;
    }
    double seconds = timed(op_run, op);
    snprintf(full, sizeof(full), "%s_tflops", name);
    value(full, flops / seconds * 1e-12);
    snprintf(full, sizeof(full), "%s_s", name);
    value(full, seconds);
}

/* Measures c = a w^T, where w [n, k] is in stored form. */
static void product(const char *name, uint32_t m, uint32_t n, uint32_t k, enum pack_kind pack,
                    enum dtype compute)
{
    uint64_t total = (uint64_t)n * k, blocks = total / 64;
    enum dtype kept = pack == PACK_F32 ? DTYPE_F32 : pack == PACK_BF16 ? DTYPE_BF16 : DTYPE_U8;
    struct buffer *a = filled(4ull * m * k, DTYPE_F32), *c = filled(4ull * m * n, DTYPE_F32);
    struct buffer *w = filled(pack == PACK_NF4 ? total / 2 : total * dtype_bytes(kept), kept);
    struct buffer *absmax = pack == PACK_NF4 ? filled(4 * blocks, DTYPE_F32) : NULL;
    struct op op = {.kind = OP_GEMM,
                    .gemm = {.m = m,
                             .n = n,
                             .k = k,
                             .transpose_b = true,
                             .alpha = 1,
                             .pack = pack,
                             .compute = compute,
                             .a = {.buffer = a, .dtype = DTYPE_F32},
                             .b = {.buffer = w, .dtype = kept},
                             .c = {.buffer = c, .dtype = DTYPE_F32},
                             .absmax = {.buffer = absmax, .dtype = DTYPE_F32},
                             .lda = k,
                             .ldb = k,
                             .ldc = n}};
    op_time(name, &op, 2.0 * m * n * k);
    buffer_destroy(a);
    buffer_destroy(c);
    buffer_destroy(w);
    buffer_destroy(absmax);
}

static void products(void)
{
    const uint32_t cube = toy ? 64 : 4096, large = toy ? 128 : 8192, wide = toy ? 192 : 14336, rank = 16;
    product("cube_f32", cube, cube, cube, PACK_F32, DTYPE_F32);
    product("cube_bf16", cube, cube, cube, PACK_BF16, DTYPE_BF16);
    product("cube_f16", cube, cube, cube, PACK_BF16, DTYPE_F16);
    product("large_bf16", large, large, large, PACK_BF16, DTYPE_BF16);
    /* The product is the FFN's gate of an 8B model on 4 x 2048 tokens. */
    product("ffn_bf16", large, wide, cube, PACK_BF16, DTYPE_BF16);
    product("ffn_nf4", large, wide, cube, PACK_NF4, DTYPE_BF16);
    product("adapter_f32", large, rank, cube, PACK_F32, DTYPE_F32);
}

/* Measures attention; q, k, v and out are stored in `compute`. */
static void attention_in(enum dtype compute, const char *forward_name, const char *backward_name)
{
    const uint32_t bytes = dtype_bytes(compute);
    const uint32_t length = toy ? 16 : 2048, tokens = ROWS * length, heads = toy ? 4 : 32, kv = toy ? 2 : 8;
    const uint32_t dim = toy ? 16 : 128, ld = (heads + 2 * kv) * dim;
    uint32_t starts[ROWS + 1];
    for (uint32_t i = 0; i <= ROWS; i++)
        starts[i] = i * length;
    struct buffer *qkv = filled((uint64_t)bytes * tokens * ld, compute);
    struct buffer *d = filled(4ull * tokens * ld, DTYPE_F32);
    struct buffer *out = filled((uint64_t)bytes * tokens * heads * dim, compute);
    struct buffer *dout = filled(4ull * tokens * heads * dim, DTYPE_F32);
    struct buffer *lse = filled(4ull * tokens * heads, DTYPE_F32),
                  *delta = filled(4ull * tokens * heads, DTYPE_F32);
    struct buffer *rows;
    must(buffer_create(device, sizeof(starts), MEM_BUFFERS, "rows", &rows, &err));
    must(buffer_write(rows, 0, starts, sizeof(starts), &err));
#define AS(of, values, as) {.buffer = (of), .at = (uint64_t)dtype_bytes(as) * (values), .dtype = (as)}
#define AT(of, values) AS(of, values, DTYPE_F32)
    struct op forward = {.kind = OP_ATTENTION,
                         .attention = {.rows = ROWS,
                                       .tokens = tokens,
                                       .heads = heads,
                                       .kv_heads = kv,
                                       .head_dim = dim,
                                       .ld = ld,
                                       .scale = (float)(1 / sqrt(dim)),
                                       .compute = compute,
                                       .q = AS(qkv, 0, compute),
                                       .k = AS(qkv, heads * dim, compute),
                                       .v = AS(qkv, (heads + kv) * dim, compute),
                                       .row_start = {.buffer = rows, .dtype = DTYPE_U32},
                                       .out = AS(out, 0, compute),
                                       .lse = AT(lse, 0)}};
    struct op backward = {.kind = OP_ATTENTION_BACKWARD,
                          .attention_backward = {.forward = forward.attention,
                                                 .dout = AT(dout, 0),
                                                 .delta = AT(delta, 0),
                                                 .dq = AT(d, 0),
                                                 .dk = AT(d, heads * dim),
                                                 .dv = AT(d, (heads + kv) * dim)}};
#undef AT
#undef AS
    /* pairs of query and key, since attention is causal */
    double pairs = ROWS * (double)length * (length + 1) / 2;
    op_time(forward_name, &forward, 4 * pairs * heads * dim);
    op_time(backward_name, &backward, 10 * pairs * heads * dim);
    struct buffer *all[] = {qkv, d, out, dout, lse, delta, rows};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        buffer_destroy(all[i]);
}

static void attention(void)
{
    attention_in(DTYPE_F32, "forward_f32", "backward_f32");
    attention_in(DTYPE_BF16, "forward_bf16", "backward_bf16");
}

/* --- a step of training */

/* Fills in random weights of about 0.02, like those of new models, so that losses stay finite. */
static int random_read(void *context, const char *name, uint64_t begin, uint64_t end, float *dst,
                       struct err *why)
{
    const struct model_config *config = context;
    uint64_t columns = weight_columns(config, name);
    uint64_t seed = strlen(name) * 0x9E3779B97F4A7C15ull;
    (void)why;
    for (uint64_t i = 0; i < (end - begin) * columns; i++) {
        uint64_t mixed = (seed + begin * columns + i) * 0xBF58476D1CE4E5B9ull;
        dst[i] =
            columns == 1 ? 1.0f : (float)((double)((mixed ^ mixed >> 29) >> 40) / (1 << 24) - 0.5) * 0.07f;
    }
    return 0;
}

static uint64_t driver_free(void)
{
    struct gpu *gpu = (struct gpu *)device;
    uint64_t available = 0, total = 0;
    must(gpu->driver->memory_info(gpu->context, &available, &total, &err));
    return available;
}

static void traced(struct timed_step *step)
{
    struct gpu_trace_sums sums;
    must(gpu_trace_begin(device, LAUNCHES_MAX, &err));
    step_run(step);
    must(gpu_trace_end(device, &sums, &err));
    value("launches", sums.launches);
    value("kernels_s", sums.busy_s);
    value("idle_between_kernels", 1 - sums.busy_s / sums.span_s);
    for (int kind = 0; kind < OP_KINDS; kind++) {
        char name[64];
        snprintf(name, sizeof(name), "op_%s_s", op_name((enum op_kind)kind));
        if (sums.op_s[kind] > 0)
            value(name, sums.op_s[kind]);
    }
}

/* Creates the stage, with recomputation if memory is short without it. */
static void step_stage(struct timed_step *step, struct stage_options *o, uint64_t before)
{
    const struct weight_source source = {.read = random_read, .context = (void *)(uintptr_t)o->config};
    struct stage_memory predicted;
    struct mem_account account;
    const uint32_t saved = step_fit(o, before - before / 16, &predicted);
    must(stage_create_from(device, &source, o, &step->stage, &err));
    step_run(step);
    device_memory(device, &account);
    value("recompute", o->recompute);
    value("layers_saved", saved);
    value("predicted_bytes", (double)predicted.total);
    value("allocator_bytes", (double)account.peak_total);
    value("driver_bytes", (double)(before - driver_free()));
}

static void train(const struct model_config *config, const struct model_config *smaller,
                  struct stage_options o)
{
    const uint32_t length = toy ? 8 : 2048, tokens = ROWS * length;
    const struct stage_options method = o;
    struct timed_step step = {0};
    struct stage_memory predicted;
    uint64_t before = driver_free();
    step_prepare(&step, &o, config, length);
    step_fit(&o, before - before / 16, &predicted);
    if (smaller && predicted.total > before - before / 16) {
        free(step.text);
        train(smaller, NULL, method);
        return;
    }
    value("layers", config->layers);
    step_stage(&step, &o, before);
    double first = step.loss, seconds = timed(step_run, &step);
    struct pass_counts counts;
    device_pass_counts(device, &counts);
    value("step_s", seconds);
    value("tokens_per_s", tokens / seconds);
    value("model_tflops", step_flops(config, o.full, ROWS, length) / seconds * 1e-12);
    value("first_loss", first);
    value("loss", step.loss);
    value("passes_replayed", (double)counts.replayed);
    traced(&step);
    stage_destroy(step.stage);
    free(step.text);
}

static void lora(void)
{
    train(toy ? &shape_toy : &shape_8b, toy ? NULL : &shape_1b, step_method("lora"));
}

static void qlora(void)
{
    train(toy ? &shape_toy : &shape_8b, toy ? NULL : &shape_1b, step_method("qlora"));
}

static void full(void)
{
    train(toy ? &shape_toy : &shape_1b, NULL, step_method("full"));
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {
        {"products", products}, {"attention", attention}, {"lora", lora}, {"qlora", qlora}, {"full", full}};
    if (argc < 3)
        return fprintf(stderr, "gpu_bench cuda|hip|emulated PART [toy]\n"), 2;
    toy = argc > 3 && strcmp(argv[3], "toy") == 0;
    struct device_options options = {.kind = argv[1], .name = "bench", .threads = 16};
    if (device_open(&options, &device, &err) != 0)
        return fprintf(stderr, "%s\n", err.text), 77;
    const struct gpu *gpu = (const struct gpu *)device;
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        if (strcmp(parts[i].name, argv[2]) != 0)
            continue;
        printf("{\"device\": \"%s\", \"arch\": \"%s\", \"part\": \"%s\", \"values\": {", gpu->info.name,
               gpu->info.arch, argv[2]);
        parts[i].run();
        printf("}}\n");
        device_close(device);
        return 0;
    }
    return fprintf(stderr, "there is no part %s\n", argv[2]), 2;
}
