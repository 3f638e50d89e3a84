/* Tests products by a fake cublasLt (fakes/cublaslt.c) on the fake driver: the questions to the library, the
 * effect of every failing call, recorded passes, and unsuitable libraries. */
#include "engine/library_scene.h"

#include "engine/fakes/fake.h"
#include "engine/gpu/cards.h"

static struct fake_products *lt_of(void)
{
    return fake_of(MOTLEY_FAKES "/libfake_cublaslt.so", "fake_lt", "MOTLEY_CUBLASLT_LIBRARY");
}

static struct fake_control *cuda_of(void)
{
    return symbol_of(MOTLEY_FAKES "/libfake_cuda.so", "fake_control");
}

static void large_products_go_to_the_library(void **state)
{
    (void)state;
    if (!code_inside("cuda", "sm_86"))
        skip();
    products_are_the_library_s(lt_of(), "cuda", " Matmul");
}

/* Operands that exceed the conversion areas (here 1 MiB, 128 lines of 3,072 terms) are converted in pieces:
 * 4, or 2 when one operand is in 16 bits already. */
static void operands_come_in_pieces(void **state)
{
    enum { SIDE = 136, DEPTH = 3072 };
    struct fake_products *lt = lt_of();
    struct bench b;
    struct err err;
    (void)state;
    if (!code_inside("cuda", "sm_86"))
        skip();
    double *a = doubles(SIDE * DEPTH), *w = doubles(SIDE * DEPTH);
    float *got = malloc(4 * SIDE * SIDE), *again = malloc(4 * SIDE * SIDE);
    memset(&b, 0, sizeof(b));
    check(device_open(&(struct device_options){.kind = "cuda", .name = "library"}, &b.device, &err));
    rand_stream_init(&b.stream, 10, 0);
    struct op_gemm o = {.m = SIDE,
                        .n = SIDE,
                        .k = DEPTH,
                        .transpose_a = true,
                        .transpose_b = true,
                        .alpha = 1,
                        .a = normal(&b, SIDE * DEPTH, a),
                        .b = normal(&b, SIDE * DEPTH, w),
                        .c = empty(&b, SIDE * SIDE),
                        .lda = SIDE,
                        .ldb = DEPTH,
                        .ldc = SIDE,
                        .compute = DTYPE_BF16};
    submit(&b, (struct op){.kind = OP_GEMM, .gemm = o});
    assert_int_equal(lt->products, 4);
    check(buffer_read(o.c.buffer, 0, got, 4 * SIDE * SIDE, &err));
    struct operand half = bytes_in(&b, NULL, 2 * SIDE * DEPTH, DTYPE_BF16);
    submit(&b, (struct op){.kind = OP_CAST, .cast = {.count = SIDE * DEPTH, .x = o.a, .y = half}});
    o.a = half;
    lt->products = 0;
    submit(&b, (struct op){.kind = OP_GEMM, .gemm = o});
    assert_int_equal(lt->products, 2);
    check(buffer_read(o.c.buffer, 0, again, 4 * SIDE * SIDE, &err));
    check(device_sync(b.device, &err));
    assert_memory_equal(got, again, 4 * SIDE * SIDE);
    for (size_t i = 0; i < SIDE; i += 15)
        for (size_t j = 3; j < SIDE; j += 12) {
            double want = 0;
            for (size_t p = 0; p < DEPTH; p++)
                want += rounded(DTYPE_BF16, a[p * SIDE + i]) * rounded(DTYPE_BF16, w[j * DEPTH + p]);
            if (!(fabs((double)got[i * SIDE + j] - want) <= 1e-3))
                fail_msg("c[%zu, %zu] is %.9g, not %.9g", i, j, (double)got[i * SIDE + j], want);
        }
    free(a), free(w), free(got), free(again);
    bench_close(&b);
    fake_clean(lt, "pieces");
}

/* Products that the library is not meant for, or refuses, run on our own kernels. */
static void other_products_are_our_own(void **state)
{
    struct fake_products *lt = lt_of();
    struct scene s;
    (void)state;
    if (!code_inside("cuda", "sm_86"))
        skip();
    scene_open(&s, "cuda", DTYPE_F32, false, true, false);
    lt->none = 1;
    submit(&s.b, s.op);
    lt->none = 0;
    lt->trace[0] = '\0';
    submit(&s.b, s.op); /* The library is not asked a second time. */
    assert_string_equal(lt->trace, "");
    scene_right(&s, 2);
    s.op.gemm.m = 32; /* The product is too narrow. */
    submit(&s.b, s.op);
    s.op.gemm.m = M;
    s.op.gemm.k = 200; /* The product has too few terms. */
    submit(&s.b, s.op);
    s.op.gemm.k = K;
    s.op.gemm.c.at = 4; /* The operand is not aligned to 16 bytes. */
    s.op.gemm.m--;
    submit(&s.b, s.op);
    s.op.gemm = (struct op_gemm){.m = 512, /* The sums are short. */
                                 .n = 512,
                                 .k = 64,
                                 .alpha = 1,
                                 .a = s.op.gemm.a,
                                 .b = s.op.gemm.b,
                                 .c = empty(&s.b, 512 * 512),
                                 .lda = 64,
                                 .ldb = 512,
                                 .ldc = 512,
                                 .compute = DTYPE_BF16};
    submit(&s.b, s.op);
    assert_int_equal(lt->products, 0);
    scene_close(&s);
    fake_clean(lt, "our own");
}

static void recorded_passes_hold_the_library_s_products(void **state)
{
    (void)state;
    if (!code_inside("cuda", "sm_86"))
        skip();
    passes_hold_the_library_s(lt_of(), "cuda");
}

/* Every call of the library fails once, the product itself with each kind of error. The device opens and
 * multiplies nevertheless, except where a product may have started; that ends in a typed error. Nothing
 * leaks. */
static void every_call_may_fail_once(void **state)
{
    static const int errors[] = {13, 3, 15};
    struct fake_products *lt = lt_of();
    uint64_t product = 0;
    (void)state;
    if (!code_inside("cuda", "sm_86"))
        skip();
    for (size_t e = 0; e < sizeof(errors) / sizeof(*errors); e++) {
        bool failed = true;
        for (uint64_t call = 1; failed; call++) {
            struct scene s;
            struct err err;
            if (e > 0 && call < product)
                call = product;
            lt->calls = 0;
            lt->fail_at = call;
            lt->fail_with = errors[e];
            lt->trace[0] = '\0';
            scene_open(&s, "cuda", DTYPE_BF16, false, true, true);
            int status = op_submit(s.b.device, &s.op, &err);
            failed = lt->calls >= call;
            bool multiplied = failed && strcmp(strrchr(lt->trace, ' '), " Matmul") == 0 && lt->calls == call;
            product = multiplied ? call : product;
            lt->fail_at = lt->calls < call ? call : 0; /* Closing may fail as well. */
            if (status != 0) {
                assert_true(multiplied && errors[e] != 15);
                assert_int_equal(err.code, errors[e] == 3 ? ERR_NOMEM : ERR_DEVICE_FAULT);
                assert_non_null(strstr(err.text, "cublasLtMatmul"));
            } else {
                assert_true(!multiplied || errors[e] == 15);
                scene_right(&s, 1);
            }
            scene_close(&s);
            failed = failed || lt->calls >= call;
            lt->fail_at = 0;
            fake_clean(lt, lt->trace);
            failed = failed && (e == 0 || call < product);
        }
    }
    assert_int_equal(cuda_of()->live, 0);
    assert_int_equal(cuda_of()->misuses, 0);
}

static uint64_t free_bytes(struct gpu_library *library)
{
    struct gpu_context *context;
    struct err err;
    uint64_t available, total;
    check(gpu_driver_cuda.context_create(library, 0, NULL, 0, &context, &err));
    check(gpu_driver_cuda.memory_info(context, &available, &total, &err));
    gpu_driver_cuda.context_destroy(context);
    return available;
}

/* The memory that a device takes for itself is what device_base_bytes reports and what the list of cards
 * predicts, with cublasLt and without it. The library's workspace is a part of it: 32 MiB from Hopper on, 4
 * MiB on earlier cards. */
static void what_a_device_takes_for_itself_is_told(void **state)
{
    struct gpu_library *driver;
    struct err err;
    uint32_t version;
    (void)state;
    if (!code_inside("cuda", "sm_86"))
        skip();
    check(gpu_driver_cuda.open(&driver, &version, &err));
    for (int i = 0; i < 4; i++) {
        const bool hopper = i > 1, without = i % 2 == 1;
        struct fake_products *lt = lt_of();
        struct device *device;
        cuda_of()->capability = hopper ? 90 : 86;
        if (without)
            setenv("MOTLEY_CUBLASLT_LIBRARY", "none", 1);
        uint64_t before = free_bytes(driver);
        check(device_open(&(struct device_options){.kind = "cuda", .name = "own"}, &device, &err));
        uint64_t taken = before - free_bytes(driver), told = device_base_bytes(device);
        device_close(device);
        json_t *cards = gpu_cards(&(struct gpu_cards_options){.root = ""}, &err),
               *card = json_array_get(json_object_get(cards, "cards"), 0);
        json_int_t foretold = json_integer_value(json_object_get(card, "base_bytes"));
        json_decref(cards);
        /* These are the figures of a card with 512 MiB. */
        assert_int_equal(told, ((hopper ? 44u : 16u) << 20) + (without ? 0 : 2u << 20));
        assert_int_equal(taken, told);
        assert_int_equal(foretold, told);
        if (without)
            continue;
        struct scene s;
        scene_open(&s, "cuda", DTYPE_BF16, false, true, false);
        submit(&s.b, s.op);
        assert_int_equal(lt->workspace, (hopper ? 32u : 4u) << 20);
        scene_right(&s, 1);
        scene_close(&s);
    }
    cuda_of()->capability = 86;
    gpu_driver_cuda.close(driver);
}

static struct operand packed_codes(struct bench *b, enum pack_kind pack, uint64_t values)
{
    uint64_t bytes = pack_bytes(pack, values);
    uint8_t *codes = malloc(bytes);
    for (uint64_t i = 0; i < bytes; i++)
        codes[i] = (uint8_t)rand_stream_below(&b->stream, 256);
    for (uint64_t i = 1; pack == PACK_Q8_0 && i < bytes; i += 34) /* fp16 scales below 2 */
        codes[i] &= 0xbf;
    for (uint64_t i = 1; pack == PACK_Q4_K && i < bytes; i += 144) {
        codes[i] &= 0xbf;
        codes[i + 2] &= 0xbf;
    }
    struct operand operand = bytes_in(b, codes, bytes, DTYPE_U8);
    free(codes);
    return operand;
}

/* A product with packed weights, computed in pieces, equals to the bit the product with the weights that
 * OP_UNPACK unpacks. It takes no memory beyond what the device took when it was opened. */
static void packed_product(struct fake_products *lt, struct gpu_library *driver, enum pack_kind pack,
                           bool transpose_b)
{
    enum { SIDE = 136, DEPTH = 3072, BLOCKS = SIDE * DEPTH / 64 };
    struct bench b;
    struct err err;
    uint32_t nonzero = 0;
    memset(&b, 0, sizeof(b));
    double *a = doubles(SIDE * DEPTH);
    float *got = malloc(4 * SIDE * SIDE), *want = malloc(4 * SIDE * SIDE);
    check(device_open(&(struct device_options){.kind = "cuda", .name = "library"}, &b.device, &err));
    rand_stream_init(&b.stream, 11, 0);
    struct op_unpack unpack = {.pack = pack,
                               .count = SIDE * DEPTH,
                               .total = SIDE * DEPTH,
                               .x = packed_codes(&b, pack, SIDE * DEPTH),
                               .y = empty(&b, SIDE * DEPTH)};
    if (pack == PACK_NF4)
        unpack.absmax = normal(&b, BLOCKS, a);
    if (pack == PACK_NF4_DOUBLE) {
        unpack.absmax = packed_codes(&b, PACK_NF4, 2 * BLOCKS);
        unpack.scales = normal(&b, 1 + (BLOCKS + 255) / 256, a);
    }
    struct op_gemm o = {.m = SIDE,
                        .n = SIDE,
                        .k = DEPTH,
                        .transpose_b = transpose_b,
                        .alpha = 1,
                        .a = normal(&b, SIDE * DEPTH, a),
                        .b = unpack.x,
                        .c = empty(&b, SIDE * SIDE),
                        .lda = DEPTH,
                        .ldb = transpose_b ? DEPTH : SIDE,
                        .ldc = SIDE,
                        .pack = pack,
                        .absmax = unpack.absmax,
                        .scales = unpack.scales,
                        .compute = pack == PACK_NF4 ? DTYPE_F16 : DTYPE_BF16};
    uint64_t before = free_bytes(driver);
    submit(&b, (struct op){.kind = OP_GEMM, .gemm = o});
    assert_int_equal(lt->products, 4); /* the library's two areas of 1 MiB each hold 128 rows of an
                                            operand, so a product of 136 by 136 takes 2 x 2 parts */
    check(buffer_read(o.c.buffer, 0, got, 4 * SIDE * SIDE, &err));
    check(device_sync(b.device, &err));
    assert_int_equal(free_bytes(driver), before);
    submit(&b, (struct op){.kind = OP_UNPACK, .unpack = unpack});
    o.b = unpack.y;
    o.pack = PACK_F32;
    submit(&b, (struct op){.kind = OP_GEMM, .gemm = o});
    check(buffer_read(o.c.buffer, 0, want, 4 * SIDE * SIDE, &err));
    check(device_sync(b.device, &err));
    assert_memory_equal(got, want, 4 * SIDE * SIDE);
    for (size_t i = 0; i < SIDE * SIDE; i++)
        nonzero += isfinite(got[i]) && fabsf(got[i]) > 1e-3f;
    assert_true(nonzero > SIDE * SIDE * 9 / 10);
    free(a), free(got), free(want);
    bench_close(&b);
    fake_clean(lt, "packed");
}

static void packed_weights_are_unpacked_for_the_library(void **state)
{
    struct gpu_library *driver;
    struct err err;
    uint32_t version;
    (void)state;
    if (!code_inside("cuda", "sm_86"))
        skip();
    check(gpu_driver_cuda.open(&driver, &version, &err));
    packed_product(lt_of(), driver, PACK_NF4, true);
    packed_product(lt_of(), driver, PACK_NF4_DOUBLE, false);
    packed_product(lt_of(), driver, PACK_NF4_DOUBLE, true);
    packed_product(lt_of(), driver, PACK_Q4_K, true);
    packed_product(lt_of(), driver, PACK_Q8_0, false);
    gpu_driver_cuda.close(driver);
}

static void refused_for(const char *arch, uint32_t driver, enum err_code code, const char *why)
{
    char name[256];
    struct err err;
    assert_int_equal(products_cublaslt.find(driver, arch, name, sizeof(name), &err), -1);
    assert_int_equal(err.code, code);
    if (!strstr(err.text, why))
        fail_msg("'%s' does not say '%s'", err.text, why);
}

static void refused(uint32_t driver, enum err_code code, const char *why)
{
    refused_for(NULL, driver, code, why);
}

static void libraries_that_do_not_serve_are_named(void **state)
{
    struct fake_products *lt = lt_of();
    char name[256];
    struct err err;
    (void)state;
    check(products_cublaslt.find(12040, NULL, name, sizeof(name), &err));
    assert_non_null(strstr(name, "libfake_cublaslt.so, 12.1.3"));
    refused(11040, ERR_UNSUPPORTED, "is of CUDA 12.1, the driver of 11.4");
    lt->version = 10201;
    refused(12040, ERR_UNSUPPORTED, "is of version 10.2: at least 11.0 is needed");
    lt->version = 130001;
    refused_for("sm_61", 13000, ERR_UNSUPPORTED, "has no code for sm_61: that of CUDA 12 does");
    check(products_cublaslt.find(13000, "sm_75", name, sizeof(name), &err));
    lt->version = 120103;
    char folder[] = "/tmp/motley-wheel-XXXXXX", file[64]; /* as that of PyTorch's wheel */
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof(file), "%s/libcublasLt.so.12", folder);
    assert_int_equal(symlink(MOTLEY_FAKES "/libfake_cublaslt.so", file), 0);
    setenv("MOTLEY_CUBLASLT_LIBRARY", folder, 1);
    check(products_cublaslt.find(12040, "sm_86", name, sizeof(name), &err));
    assert_non_null(strstr(name, "/libcublasLt.so.12, 12.1.3"));
    unlink(file);
    rmdir(folder);
    setenv("MOTLEY_CUBLASLT_LIBRARY", MOTLEY_FAKES "/libfake_bare.so", 1);
    refused(12040, ERR_UNSUPPORTED, "lacks cublasLtGetVersion");
    setenv("MOTLEY_CUBLASLT_LIBRARY", MOTLEY_FAKES "/none.so", 1);
    refused(12040, ERR_NOT_FOUND, "none.so");
    setenv("MOTLEY_CUBLASLT_LIBRARY", "none", 1);
    refused(12040, ERR_NOT_FOUND, "turned off: MOTLEY_CUBLASLT_LIBRARY");
}

static int older_driver(const void *api, uint32_t driver_version, const char *arch, char *name, uint32_t room,
                        struct err *err)
{
    (void)api, (void)arch, (void)room;
    return strstr(name, "libfake_cublaslt") && driver_version < 12000
               ? err_set(err, ERR_UNSUPPORTED, "%s is too new", name)
               : 0;
}

/* A library that cannot be used does not hide another one that can, for example CUDA 13's beside CUDA 12's
 * with a driver of CUDA 12. */
static void the_first_library_that_serves_is_taken(void **state)
{
    static const char *const files[] = {MOTLEY_FAKES "/libfake_bare.so", MOTLEY_FAKES "/libfake_cublaslt.so",
                                        MOTLEY_FAKES "/libfake_cuda.so", NULL};
    static const struct products_symbol lt = {"cublasLtGetVersion", 0}, cuda = {"cuInit", 0};
    struct products_search search = {.what = "products",
                                     .environment = "MOTLEY_TEST_UNSET",
                                     .usual = files,
                                     .symbols = &lt,
                                     .symbol_count = 1,
                                     .check = older_driver};
    char name[256];
    void *found;
    struct err err;
    (void)state;
    check(products_find(&search, 12000, NULL, &found, name, sizeof(name), &err));
    assert_string_equal(name, files[1]);
    assert_int_equal(products_find(&search, 11000, NULL, &found, name, sizeof(name), &err), -1);
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    assert_non_null(
        strstr(err.text, "libfake_bare.so lacks cublasLtGetVersion")); /* the error is of the first file that
                                                                          could be opened */
    search.symbols = &cuda;
    check(products_find(&search, 11000, NULL, &found, name, sizeof(name), &err));
    assert_string_equal(name, files[2]);
}

/* The log says of each device that opens which library multiplies there, or why none does. */
static void the_log_says_what_multiplies(void **state)
{
    char text[2][1024] = {"", ""};
    struct err err;
    (void)state;
    if (!code_inside("cuda", "sm_86"))
        skip();
    (void)lt_of(); /* names the fake library */
    for (int i = 0; i < 2; i++) {
        struct device *device;
        FILE *log = tmpfile();
        int kept = dup(STDERR_FILENO);
        if (i == 1)
            setenv("MOTLEY_CUBLASLT_LIBRARY", "none", 1);
        dup2(fileno(log), STDERR_FILENO);
        check(device_open(&(struct device_options){.kind = "cuda", .name = "library"}, &device, &err));
        dup2(kept, STDERR_FILENO);
        close(kept);
        device_close(device);
        rewind(log);
        while (fgets(text[i], sizeof(text[i]), log) && !strstr(text[i], " products_by_"))
            text[i][0] = '\0';
        fclose(log);
    }
    assert_non_null(strstr(text[0], " products_by_library arch=sm_86 library=\"" MOTLEY_FAKES));
    assert_non_null(strstr(text[1], " products_by_own_kernels arch=sm_86 why=\"turned off: "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_products_go_to_the_library),
        cmocka_unit_test(operands_come_in_pieces),
        cmocka_unit_test(packed_weights_are_unpacked_for_the_library),
        cmocka_unit_test(other_products_are_our_own),
        cmocka_unit_test(recorded_passes_hold_the_library_s_products),
        cmocka_unit_test(every_call_may_fail_once),
        cmocka_unit_test(what_a_device_takes_for_itself_is_told),
        cmocka_unit_test(the_first_library_that_serves_is_taken),
        cmocka_unit_test(libraries_that_do_not_serve_are_named),
        cmocka_unit_test(the_log_says_what_multiplies),
    };
    setenv("MOTLEY_CUDA_LIBRARY", MOTLEY_FAKES "/libfake_cuda.so", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
