#include "worker/prove.h"

#include <string.h>
#include <unistd.h>

#include "common/file.h"
#include "engine/device/op.h"

/* SIDE: rows and columns of the matrices; FILE_BYTES: size of the file that is written */
enum { SIDE = 64, PRODUCT_SECONDS = 60, FILE_BYTES = 1 << 20 };
/* How long an artifact store that does not answer is asked again. */
#define STORE_PATIENCE_NS ((uint64_t)2 * 1000000000u)

/* Small whole numbers, so that every order of additions gives the same sums. */
static float prove_value_of(unsigned matrix, unsigned row, unsigned column)
{
    return (float)((int)((row * 3 + column * 5 + matrix) % 7) - 3);
}

static void prove_fill(float *values, unsigned matrix)
{
    for (unsigned i = 0; i < SIDE * SIDE; i++)
        values[i] = prove_value_of(matrix, i / SIDE, i % SIDE);
}

static int prove_compare(const float *product, struct err *err)
{
    for (unsigned row = 0; row < SIDE; row++)
        for (unsigned column = 0; column < SIDE; column++) {
            float sum = 0;
            for (unsigned k = 0; k < SIDE; k++)
                sum += prove_value_of(0, row, k) * prove_value_of(1, k, column);
            if (product[row * SIDE + column] != sum)
                return err_set(err, ERR_DEVICE_FAULT, "it multiplies wrongly: %g instead of %g",
                               (double)product[row * SIDE + column], (double)sum);
        }
    return 0;
}

/* Multiplies two matrices on the device and compares with the product computed here. */
static int multiply(struct device *device, struct err *err)
{
    static float host[3][SIDE * SIDE];
    static const char *const names[] = {"the left matrix", "the right matrix", "the product"};
    struct buffer *buffers[3] = {NULL};
    int result = 0;
    for (unsigned i = 0; i < 3 && result == 0; i++)
        result = buffer_create(device, sizeof(host[i]), MEM_BUFFERS, names[i], &buffers[i], err);
    for (unsigned i = 0; i < 2 && result == 0; i++) {
        prove_fill(host[i], i);
        result = buffer_write(buffers[i], 0, host[i], sizeof(host[i]), err);
    }
    const struct op op = {.kind = OP_GEMM,
                          .gemm = {.m = SIDE,
                                   .n = SIDE,
                                   .k = SIDE,
                                   .alpha = 1,
                                   .a = {buffers[0], 0, DTYPE_F32},
                                   .b = {buffers[1], 0, DTYPE_F32},
                                   .c = {buffers[2], 0, DTYPE_F32},
                                   .lda = SIDE,
                                   .ldb = SIDE,
                                   .ldc = SIDE,
                                   .compute = DTYPE_F32}};
    if (result == 0)
        result = op_submit(device, &op, err);
    if (result == 0)
        result = buffer_read(buffers[2], 0, host[2], sizeof(host[2]), err);
    if (result == 0)
        result = device_sync(device, err);
    if (result == 0)
        result = prove_compare(host[2], err);
    for (unsigned i = 0; i < 3; i++)
        buffer_destroy(buffers[i]);
    return result;
}

static int prove_device(const struct local_part *local, struct err *err)
{
    struct device *device = NULL;
    int result = local_device_open(local, &device, err);
    if (result == 0)
        result = multiply(device, err);
    device_close(device);
    return result < 0 ? err_wrap(err, "it cannot compute") : 0;
}

/* Asks for a file that is not there: a store that says so was reached and accepts the node's token. */
static int prove_store(const struct local_part *local, const struct stop_request *stop, struct err *err)
{
    static const char nothing[] = "0000000000000000000000000000000000000000000000000000000000000000";
    const struct blobs_options options = {.api = local->api,
                                          .ca = local->api_ca,
                                          .token = local->token,
                                          .patience_ns = STORE_PATIENCE_NS,
                                          .cancel = &stop->asked};
    struct blobs *blobs = NULL;
    uint8_t first;
    if (blobs_open(&options, &blobs, err) < 0)
        return -1;
    int result = blobs_get_range(blobs, nothing, 0, 1, &first, err);
    if (result < 0 && err->code == ERR_NOT_FOUND)
        result = 0;
    blobs_close(blobs);
    return result < 0 ? err_wrap(err, "it cannot fetch files from %s", local->api) : 0;
}

/* The trials of a node's devices write into one folder at the same time, so each process has its own file. */
static int prove_disk(const struct local_part *local, struct err *err)
{
    static uint8_t bytes[FILE_BYTES];
    char path[4200];
    if (!local->cache)
        return 0;
    int result = file_mkdirs(local->cache, 0700, err);
    if (result == 0)
        result = file_path(path, sizeof(path), err, "%s/proof-%d", local->cache, (int)getpid());
    if (result == 0)
        result = file_write_atomic(path, bytes, sizeof(bytes), 0600, err);
    if (result == 0 && unlink(path) < 0)
        result = err_set(err, ERR_IO, "could not remove \"%s\"", path);
    return result < 0 ? err_wrap(err, "it cannot store files") : 0;
}

int prove_run(struct worker_link *link, const json_t *message, const struct stop_request *stop,
              struct err *err)
{
    struct local_part local;
    if (local_read(message, &local, err) < 0 || prove_device(&local, err) < 0 ||
        prove_store(&local, stop, err) < 0 || prove_disk(&local, err) < 0)
        return -1;
    return worker_link_emit(link, "proved", json_object(), err);
}
