/* Single steps of the first hour on a card, each a process of its own, because a step may end the driver.
 * bench/gpu_hour.py runs them in order.
 *
 *   gpu_hour KIND STEP [ARGUMENT]    KIND: cuda, hip or emulated
 *
 * It prints what it found, a line a fact, and ends with 0 (right), 1 (wrong) or 77 (not here, and why).
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "engine/gpu/code.h"
#include "engine/gpu/gpu.h"
#include "engine/gpu/products.h"

enum {
    SKIP = 77,
    WORDS = 1 << 18,
    SIDE = 512, /* rows and columns of the matrices, large enough that the vendor's library multiplies them */
    PEER_BYTES = 256 << 20,
    PEER_ROUNDS = 8
};

static const struct gpu_driver *driver;
static struct device *device;
static struct gpu *gpu;
static struct err err;

static void must(int status)
{
    if (status == 0)
        return;
    printf("wrong: %s\n", err.text);
    exit(1);
}

static void claim(bool right, const char *what)
{
    if (right)
        return;
    printf("wrong: %s\n", what);
    exit(1);
}

static int skipped(const char *why)
{
    printf("not here: %s\n", why);
    return SKIP;
}

static void card_open(uint32_t index)
{
    const struct device_options options = {.kind = driver->kind, .name = "card", .index = index};
    must(device_open(&options, &device, &err));
    gpu = (struct gpu *)device;
}

/* --- the driver, and how long a device takes to open */

static int step_driver(const char *argument)
{
    struct gpu_library *library;
    uint32_t version, count, coded = 0;
    (void)argument;
    if (driver->open(&library, &version, &err) != 0)
        return skipped(err.text);
    must(driver->count(library, &count, &err));
    printf("driver %s, version %u, cards %u\n", driver->kind, version, count);
    for (uint32_t i = 0; i < count; i++) {
        struct gpu_info info;
        char products[256] = "none of this vendor's";
        must(driver->info(library, i, NULL, &info, &err));
        if (driver->products &&
            driver->products->find(version, info.arch, products, sizeof(products), &err) != 0)
            snprintf(products, sizeof(products), "none: %.200s", err.text);
        printf("card %u: %s, %s, %s, %s, %.1f GiB, %u units, warps of %u, %u MHz%s, products by a library: "
               "%s\n",
               i, info.name, info.arch, info.pci, info.uuid, (double)info.memory / (1 << 30), info.units,
               info.warp, info.clock_khz / 1000, info.exclusive || info.prohibited ? ", not shared" : "",
               products);
        if (!driver->takes_code || gpu_code_choose(driver->kind, info.arch, &err))
            coded++;
        else
            printf("card %u cannot be used: %s\n", i, err.text);
    }
    driver->close(library);
    claim(count == 0 || coded > 0, "these programs have no code for any card here");
    return count > 0 ? 0 : skipped("the driver shows no card");
}

static int step_open(const char *argument)
{
    uint64_t began_ns = clock_mono_ns();
    (void)argument;
    card_open(0);
    printf("opened in %.2f s, %llu bytes of its own\n", (double)(clock_mono_ns() - began_ns) * 1e-9,
           (unsigned long long)device_base_bytes(device));
    device_close(device);
    return 0;
}

/* --- memory between processes and between cards */

/* Runs this program's `step` in another process. Returns its status as waitpid tells it. */
static int child_run(const char *step, const char *argument)
{
    int status = -1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "gpu_hour", driver->kind, step, argument, (char *)NULL);
        _exit(127);
    }
    claim(child > 0 && waitpid(child, &status, 0) == child, "no process could be started");
    return status;
}

/* Fills `words` with the noise that begins with word `from` of a buffer. */
static void words_fill(uint32_t *words, uint64_t from, uint32_t seed)
{
    for (uint32_t i = 0; i < WORDS; i++)
        words[i] = ((uint32_t)from + i + seed) * 2654435761u;
}

/* Writes a seed's noise into the whole buffer, or checks that all of it is there. */
static void words_go(struct buffer *buffer, uint32_t seed, const char *wrong)
{
    uint32_t *words = malloc(4ul * WORDS), *got = malloc(4ul * WORDS);
    claim(words && got, "out of memory");
    for (uint64_t at = 0; at < buffer_bytes(buffer); at += 4ul * WORDS) {
        words_fill(words, at / 4, seed);
        if (wrong)
            must(buffer_read(buffer, at, got, 4ul * WORDS, &err));
        else
            must(buffer_write(buffer, at, words, 4ul * WORDS, &err));
        must(device_sync(device, &err));
        claim(!wrong || memcmp(words, got, 4ul * WORDS) == 0, wrong);
    }
    free(words), free(got);
}

/* Pushes all of a buffer of this card, filled with noise, into another process's several times, as workers
 * push what travels. Returns GB per second. */
static double pushed_gigabytes(struct buffer *to)
{
    const uint64_t bytes = buffer_bytes(to);
    struct buffer *from;
    must(buffer_create(device, bytes, MEM_BUFFERS, "noise", &from, &err));
    words_go(from, 2, NULL);
    uint64_t began_ns = clock_mono_ns();
    for (int i = 0; i < PEER_ROUNDS; i++)
        must(buffer_copy(to, 0, from, 0, bytes, &err));
    must(device_sync(device, &err));
    double seconds = (double)(clock_mono_ns() - began_ns) * 1e-9;
    buffer_destroy(from);
    return PEER_ROUNDS * (double)bytes * 1e-9 / seconds;
}

/* The other process of step_share: `argument` is the digit of its card, and the handle in hexadecimal digits.
 */
static int step_import(const char *argument)
{
    struct buffer_handle handle;
    struct buffer *buffer;
    claim(strlen(argument) == 1 + 2 * sizeof(handle), "a handle of another length");
    for (size_t i = 0; i < sizeof(handle); i++) {
        unsigned byte = 0;
        claim(sscanf(argument + 1 + 2 * i, "%2x", &byte) == 1, "a handle that is not hexadecimal");
        ((uint8_t *)&handle)[i] = (uint8_t)byte;
    }
    card_open((uint32_t)(argument[0] - '0'));
    if (buffer_import(device, &handle, &buffer, &err) != 0) {
        printf("card %c cannot reach the other card's memory, so workers send by the mesh\n", argument[0]);
        return skipped(err.text);
    }
    words_go(buffer, 1, "the other process reads other bytes");
    printf("another process on card %c pushes into this one's memory with %.2f GB/s\n", argument[0],
           pushed_gigabytes(buffer));
    buffer_destroy(buffer);
    device_close(device);
    return 0;
}

/* Shares memory of card `own` with another process on card `other`, as workers of one node do, and compares
 * all that it pushed. */
static int step_share(uint32_t own, uint32_t other, bool toy)
{
    struct buffer_handle handle;
    struct buffer *buffer;
    char text[2 * sizeof(handle) + 2] = {(char)('0' + other)};
    card_open(own);
    if (own == other && gpu->info.exclusive)
        return skipped("the card's compute mode lets one process use it");
    must(buffer_create_shared(device, toy ? 4ul * WORDS : PEER_BYTES, MEM_BUFFERS, "shared memory", &buffer,
                              &err));
    words_go(buffer, 1, NULL);
    memset(&handle, 0, sizeof(handle));
    must(buffer_export(buffer, &handle, &err));
    for (size_t i = 0; i < sizeof(handle); i++)
        snprintf(text + 1 + 2 * i, 3, "%02x", ((const uint8_t *)&handle)[i]);
    int status = child_run("import", text);
    bool apart = WIFEXITED(status) && WEXITSTATUS(status) == SKIP;
    claim(apart || status == 0, "the other process failed (above)");
    if (!apart)
        words_go(buffer, 2,
                 "what the other process pushed is not there (an IOMMU between the cards?): workers see "
                 "that, too, and send by the mesh");
    buffer_destroy(buffer);
    device_close(device);
    if (apart)
        return SKIP;
    printf("all that it pushed is there\n");
    return 0;
}

static int step_ipc(const char *argument)
{
    return step_share(0, 0, strcmp(argument, "toy") == 0);
}

static int step_peer(const char *argument)
{
    struct gpu_library *library;
    uint32_t version, count;
    must(driver->open(&library, &version, &err));
    must(driver->count(library, &count, &err));
    driver->close(library);
    if (count < 2)
        return skipped("there is one card");
    const bool toy = strcmp(argument, "toy") == 0;
    int status = step_share(0, 1, toy); /* and the other way, which is another path for some boards */
    return status != 0 ? status : step_share(1, 0, toy);
}

/* --- recorded passes */

static struct operand values(uint64_t count, float scale)
{
    struct operand operand = {.dtype = DTYPE_F32};
    float *host = malloc(4 * count);
    claim(host, "out of memory");
    for (uint64_t i = 0; i < count; i++)
        host[i] = scale * (float)((int)(i * 7919 % 257) - 128) / 128;
    must(buffer_create(device, 4 * count, MEM_BUFFERS, "an operand", &operand.buffer, &err));
    must(buffer_write(operand.buffer, 0, host, 4 * count, &err));
    must(device_sync(device, &err));
    free(host);
    return operand;
}

/* Runs the op `rounds` times as a pass of one key, so that it is recorded the second time and replayed
 * afterwards; key 0 records nothing. */
static void passes_run(const struct op *op, uint64_t key, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        bool replayed = false, again = false;
        must(device_pass_begin(device, key, &replayed, &err));
        if (replayed)
            continue;
        must(op_submit(device, op, &err));
        must(device_pass_end(device, true, &again, &err));
        claim(!again, "the driver could not record the pass");
    }
    must(device_sync(device, &err));
}

/* A product that goes to the vendor's library where there is one, once queued and once as replayed passes:
 * both must give the same bits. */
static int step_graph(const char *argument)
{
    enum { ROUNDS = 6 };
    const uint32_t side = strcmp(argument, "toy") == 0 ? 64 : SIDE;
    const uint64_t count = (uint64_t)side * side;
    float *results[2] = {malloc(4 * count), malloc(4 * count)};
    struct pass_counts counts;
    claim(results[0] && results[1], "out of memory");
    card_open(0);
    struct operand a = values(count, 1), b = values(count, 0.5f);
    for (int i = 0; i < 2; i++) {
        struct operand c = values(count, 0);
        struct op op = {.kind = OP_GEMM,
                        .gemm = {.m = side,
                                 .n = side,
                                 .k = side,
                                 .transpose_b = true,
                                 .alpha = 1,
                                 .beta = 1,
                                 .compute = DTYPE_BF16,
                                 .a = a,
                                 .b = b,
                                 .c = c,
                                 .lda = side,
                                 .ldb = side,
                                 .ldc = side}};
        passes_run(&op, i == 0 ? 0 : 77, ROUNDS);
        must(buffer_read(c.buffer, 0, results[i], 4 * count, &err));
        must(device_sync(device, &err));
        buffer_destroy(c.buffer);
    }
    device_pass_counts(device, &counts);
    claim(memcmp(results[0], results[1], 4 * count) == 0, "replayed passes give other bits");
    claim(counts.recorded == 1 && counts.replayed == ROUNDS - 2, "passes were not recorded and replayed");
    printf("%llu recorded, %llu replayed, the same bits as queued; the product inside is %s\n",
           (unsigned long long)counts.recorded, (unsigned long long)counts.replayed,
           gpu->products ? "the library's" : "our own: there is no library of products here");
    buffer_destroy(a.buffer), buffer_destroy(b.buffer);
    device_close(device);
    free(results[0]), free(results[1]);
    return 0;
}

/* --- a deliberate fault */

/* Launches a kernel on addresses that nobody allocated. Ends with 0 if that gives the error of a fault, which
 * all later calls repeat. */
static int step_trap_child(const char *argument)
{
    struct err later;
    (void)argument;
    card_open(0);
    struct gpu_queue *queue = gpu->queues[DEVICE_COMPUTE];
    const struct cast_args args = {
        .x = 1ull << 40, .y = 1ull << 41, .count = 1 << 20, .x_as = ELEMENT_F32, .y_as = ELEMENT_F32};
    int status = driver->launch(queue, gpu->functions[KERNEL_cast], (struct gpu_dims){16, 1, 1}, 256, 0,
                                &args, sizeof(args), &err);
    if (status == 0)
        status = driver->queue_sync(queue, &err);
    claim(status != 0, "a kernel wrote to memory that is not there, and no error came");
    printf("the error: %s\n", err.text);
    claim(err.code == ERR_DEVICE_FAULT, "the error is not that of a device that faulted");
    claim(driver->queue_sync(queue, &later) != 0 && later.code == ERR_DEVICE_FAULT, "a later call succeeds");
    device_close(device);
    return 0;
}

/* What a worker's process meets when its kernel faults, and whether the next process can use the card. AMD's
 * runtime ends the process itself, with SIGABRT, which the agent takes for a fault of the device. */
static int step_trap(const char *argument)
{
    (void)argument;
    int status = child_run("trap-child", "");
    if (WIFSIGNALED(status))
        printf("the process ended with signal %d\n", WTERMSIG(status));
    claim(status == 0 ||
              (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && strcmp(driver->kind, "hip") == 0),
          "the process did not end as it should (above)");
    claim(child_run("graph", "toy") == 0, "the next process cannot use the card");
    printf("the next process uses the card\n");
    return 0;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(const char *argument);
    } steps[] = {
        {"driver", step_driver}, {"open", step_open},   {"ipc", step_ipc},   {"import", step_import},
        {"peer", step_peer},     {"graph", step_graph}, {"trap", step_trap}, {"trap-child", step_trap_child}};
    if (argc < 3)
        return fprintf(stderr, "gpu_hour cuda|hip|emulated STEP [ARGUMENT]\n"), 2;
    for (const struct gpu_driver *const *each = gpu_drivers; *each; each++)
        if (strcmp((*each)->kind, argv[1]) == 0)
            driver = *each;
    for (size_t i = 0; driver && i < sizeof(steps) / sizeof(*steps); i++)
        if (strcmp(steps[i].name, argv[2]) == 0)
            return steps[i].run(argc > 3 ? argv[3] : "");
    return fprintf(stderr, "there is no kind %s or step %s\n", argv[1], argv[2]), 2;
}
