/* Tests GPU devices on the emulated driver: a fault at any call ends in its typed error and leaks nothing,
 * queues overlap and events order them, memory is shared with other processes, and passes are recorded and
 * replayed. */
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>

#include "engine/ops.h"

enum { COUNT = 64 };
static const uint64_t DEADLINE_NS = 20ull * 1000 * 1000 * 1000;
static const uint64_t MEMORY_BYTES = 32 << 20; /* small, because valgrind has little address space */

static struct device_options options_of(const char *kind, const char *text)
{
    return (struct device_options){
        .kind = kind, .name = "gpu", .isa = text, .memory_limit_bytes = MEMORY_BYTES};
}

static struct device *opened(const char *kind, const char *text)
{
    struct device_options options = options_of(kind, text);
    struct device *device;
    struct err err;
    check(device_open(&options, &device, &err));
    return device;
}

static struct operand floats_in(struct buffer *buffer)
{
    return (struct operand){.buffer = buffer, .dtype = DTYPE_F32};
}

/* Makes the op y += alpha * x on `count` values. */
static struct op adding(struct buffer *x, struct buffer *y, uint32_t count, float alpha)
{
    return (struct op){.kind = OP_ADD,
                       .add = {.rows = 1,
                               .width = count,
                               .ldx = count,
                               .ldy = count,
                               .alpha = alpha,
                               .x = floats_in(x),
                               .y = floats_in(y)}};
}

static struct buffer *filled(struct device *device, const float *values, uint32_t count)
{
    struct buffer *buffer;
    struct err err;
    check(buffer_create(device, 4ull * count, MEM_BUFFERS, "values", &buffer, &err));
    check(buffer_write(buffer, 0, values, 4ull * count, &err));
    check(device_sync(device, &err));
    return buffer;
}

/* --- faults */

static uint32_t entries(const char *path)
{
    uint32_t count = 0;
    DIR *folder = opendir(path);
    assert_non_null(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

/* Does a worker's work in short: two buffers, three ops and a copy back. The device stays open unless opening
 * it failed. */
static int work(struct device *device, struct buffer *buffers[2], float *out, struct err *err)
{
    static const float ones[COUNT] = {1, 1, 1, 1, 1, 1, 1, 1};
    for (int i = 0; i < 2; i++)
        if (buffer_create(device, sizeof(ones), MEM_BUFFERS, "values", &buffers[i], err) != 0 ||
            buffer_write(buffers[i], 0, ones, sizeof(ones), err) != 0)
            return -1;
    struct op op = adding(buffers[0], buffers[1], COUNT, 1);
    for (int i = 0; i < 3; i++)
        if (op_submit(device, &op, err) != 0)
            return -1;
    if (buffer_read(buffers[1], 0, out, sizeof(ones), err) != 0)
        return -1;
    return device_sync(device, err);
}

/* Checks that after a device fault every later call fails with the same error. */
static void sticky_check(struct device *device, struct buffer *buffer, enum err_code code)
{
    struct err err = {0};
    struct buffer *more;
    struct event *event;
    float value = 0;
    struct op op = adding(buffer, buffer, COUNT, 1);
    assert_int_equal(op_submit(device, &op, &err), -1);
    assert_int_equal(err.code, code);
    assert_int_equal(buffer_create(device, 4, MEM_BUFFERS, "more", &more, &err), -1);
    assert_int_equal(err.code, code);
    assert_int_equal(buffer_write(buffer, 0, &value, 4, &err), -1);
    assert_int_equal(err.code, code);
    assert_int_equal(device_sync(device, &err), -1);
    assert_int_equal(err.code, code);
    check(event_create(device, &event, &err));
    assert_int_equal(event_record(event, &err), -1);
    assert_int_equal(err.code, code);
    event_destroy(event);
}

/* Provokes the fault at the n-th call of its kind. Returns whether it occurred. */
static bool fault_comes(const char *fault, uint32_t n, enum err_code code)
{
    char text[64];
    struct err err = {0};
    struct device *device = NULL;
    struct buffer *buffers[2] = {NULL, NULL};
    float out[COUNT] = {0};
    snprintf(text, sizeof(text), "warp32,checks,%s=%u", fault, n);
    struct device_options options = options_of("emulated", text);
    int status = device_open(&options, &device, &err);
    if (status == 0)
        status = work(device, buffers, out, &err);
    if (status != 0 && err.code != code)
        fail_msg("%s: code %d, not %d: %s", text, err.code, code, err.text);
    if (status != 0 && !strstr(err.text, "as it was told") &&
        !strstr(err.text, "the system refused 4096 bytes for values"))
        fail_msg("%s: another error: %s", text, err.text);
    if (status == 0 && out[0] != 4.0f)
        fail_msg("%s: no error, and %g instead of 4", text, (double)out[0]);
    if (status != 0 && code != ERR_NOMEM)
        sticky_check(device, buffers[0], code);
    for (int i = 0; i < 2; i++)
        buffer_destroy(buffers[i]);
    device_close(device);
    return status != 0;
}

static void every_fault_has_its_type_stays_and_leaks_nothing(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum err_code code;
        uint32_t times; /* how often device_open() and work() make such a call; for memory: 4 times for the
                           device's scratch memory and twice for the buffers */
    } faults[] = {{"nomem", ERR_NOMEM, 6},
                  {"launch", ERR_DEVICE_FAULT, 3},
                  {"lost", ERR_DEVICE_LOST, 3},
                  {"ecc", ERR_DEVICE_FAULT, 3}};
    uint32_t files = entries("/proc/self/fd"), threads = entries("/proc/self/task");
    for (int i = 0; i < 4; i++)
        for (uint32_t n = 1; n <= faults[i].times + 1; n++)
            if (fault_comes(faults[i].name, n, faults[i].code) != (n <= faults[i].times))
                fail_msg("%s=%u %s", faults[i].name, n, n <= faults[i].times ? "never came" : "came");
    assert_int_equal(entries("/proc/self/fd"), files);
    assert_int_equal(entries("/proc/self/task"), threads);
}

static void memory_that_is_refused_once_is_there_the_next_time(void **state)
{
    (void)state;
    struct device *device = opened("emulated", "warp32,nomem=5");
    struct buffer *buffer;
    struct err err = {0};
    assert_int_equal(buffer_create(device, 4096, MEM_BUFFERS, "values", &buffer, &err), -1);
    assert_int_equal(err.code, ERR_NOMEM);
    check(buffer_create(device, 4096, MEM_BUFFERS, "values", &buffer, &err));
    struct mem_account account;
    device_memory(device, &account);
    assert_int_equal(account.held_total, 4096);
    buffer_destroy(buffer);
    device_close(device);
}

static void unknown_options_are_refused_by_name(void **state)
{
    (void)state;
    struct device *device;
    struct err err = {0};
    static const char *const wrong[] = {"warp16", "nomem=", "nomem=0", "lost=x", "ecc=3x", "checks,fast"};
    for (int i = 0; i < 6; i++) {
        assert_int_equal(
            device_open(&(struct device_options){.kind = "emulated", .name = "gpu", .isa = wrong[i]}, &device,
                        &err),
            -1);
        assert_int_equal(err.code, ERR_INVALID);
        assert_non_null(strstr(err.text, "is none of warp32"));
    }
    assert_int_equal(
        device_open(&(struct device_options){.kind = "emulated", .name = "gpu", .index = 99}, &device, &err),
        -1);
    assert_int_equal(err.code, ERR_NOT_FOUND);
}

/* --- queues */

static void a_device_says_how_wide_its_warps_are(void **state)
{
    static const char *const said[][2] = {
        {"warp32", "warp32"}, {"checks,warp64", "warp64"}, {"native", "warp32"}};
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct device *device = opened("emulated", said[i][0]);
        assert_string_equal(device_isa(device), said[i][1]);
        device_close(device);
    }
}

/* A small op on one queue finishes before a large one that was queued earlier on another queue. When the
 * machine is too busy to show this at once, it is tried again with a larger op. */
static void queues_run_at_once(void **state)
{
    (void)state;
    struct device *device = opened("emulated", "warp32");
    struct event *large, *small;
    struct err err;
    bool seen = false;
    float one = 1;
    struct buffer *little = filled(device, &one, 1);
    check(event_create(device, &large, &err));
    check(event_create(device, &small, &err));
    for (uint32_t count = 1 << 16; !seen && count <= 1 << 22; count *= 4) {
        float *zeros = calloc(count, 4);
        struct buffer *much = filled(device, zeros, count);
        struct op long_op = adding(much, much, count, 0), short_op = adding(little, little, 1, 0);
        check(op_submit_on(DEVICE_IN, device, &long_op, &err));
        check(event_record_on(DEVICE_IN, large, &err));
        check(op_submit_on(DEVICE_OUT, device, &short_op, &err));
        check(event_record_on(DEVICE_OUT, small, &err));
        check(event_wait(small, DEADLINE_NS, &err));
        seen = !event_done(large);
        check(event_wait(large, DEADLINE_NS, &err));
        buffer_destroy(much);
        free(zeros);
    }
    assert_true(seen);
    event_destroy(large);
    event_destroy(small);
    buffer_destroy(little);
    device_close(device);
}

/* One thread adds on one queue and another copies the result on a second queue, in 40 rounds. Only events
 * order the rounds; neither thread waits for the device. */
enum { ROUNDS = 40, LARGE = 1 << 12 };

struct relay {
    struct device *device;
    struct buffer *sum, *one, *history;
    struct event *added[ROUNDS], *copied[ROUNDS];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t turns; /* number of turns begun: even turns add, odd turns copy */
    struct err err;
    int status;
};

static void relay_turn(struct relay *relay, uint32_t turn)
{
    pthread_mutex_lock(&relay->lock);
    while (relay->turns < turn)
        pthread_cond_wait(&relay->changed, &relay->lock);
    pthread_mutex_unlock(&relay->lock);
}

static void relay_done(struct relay *relay)
{
    pthread_mutex_lock(&relay->lock);
    relay->turns++;
    pthread_cond_broadcast(&relay->changed);
    pthread_mutex_unlock(&relay->lock);
}

static void *relay_copy(void *argument)
{
    struct relay *relay = argument;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        relay_turn(relay, 2 * i + 1);
        if (relay->status == 0 && (queue_wait(DEVICE_OUT, relay->added[i], &relay->err) != 0 ||
                                   buffer_copy_on(DEVICE_OUT, relay->history, 4ull * LARGE * i, relay->sum, 0,
                                                  4ull * LARGE, &relay->err) != 0 ||
                                   event_record_on(DEVICE_OUT, relay->copied[i], &relay->err) != 0))
            relay->status = -1;
        relay_done(relay);
    }
    return NULL;
}

static int relay_add(struct relay *relay, uint32_t i)
{
    struct op op = adding(relay->one, relay->sum, LARGE, 1);
    if (i > 0 && queue_wait(DEVICE_COMPUTE, relay->copied[i - 1], &relay->err) != 0)
        return -1;
    return op_submit(relay->device, &op, &relay->err) != 0 ? -1 : event_record(relay->added[i], &relay->err);
}

static void events_order_what_queues_of_two_threads_do(void **state)
{
    (void)state;
    struct relay relay = {.device = opened("emulated", "warp32,checks")};
    struct err err;
    pthread_t thread;
    float *values = calloc((size_t)ROUNDS * LARGE, 4), ones[LARGE];
    for (uint32_t i = 0; i < LARGE; i++)
        ones[i] = 1;
    relay.sum = filled(relay.device, values, LARGE);
    relay.one = filled(relay.device, ones, LARGE);
    relay.history = filled(relay.device, values, ROUNDS * LARGE);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        check(event_create(relay.device, &relay.added[i], &err));
        check(event_create(relay.device, &relay.copied[i], &err));
    }
    pthread_mutex_init(&relay.lock, NULL);
    pthread_cond_init(&relay.changed, NULL);
    assert_int_equal(pthread_create(&thread, NULL, relay_copy, &relay), 0);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        relay_turn(&relay, 2 * i);
        if (relay.status == 0)
            relay.status = relay_add(&relay, i);
        relay_done(&relay);
    }
    pthread_join(thread, NULL);
    must(relay.status, &relay.err);
    check(event_wait(relay.copied[ROUNDS - 1], DEADLINE_NS, &err));
    check(buffer_read(relay.history, 0, values, 4ull * ROUNDS * LARGE, &err));
    check(device_sync(relay.device, &err));
    for (uint32_t i = 0; i < ROUNDS * LARGE; i++)
        if (values[i] != (float)(i / LARGE + 1))
            fail_msg("round %u copied %g", i / LARGE, (double)values[i]);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        event_destroy(relay.added[i]);
        event_destroy(relay.copied[i]);
    }
    buffer_destroy(relay.sum);
    buffer_destroy(relay.one);
    buffer_destroy(relay.history);
    device_close(relay.device);
    pthread_mutex_destroy(&relay.lock);
    pthread_cond_destroy(&relay.changed);
    free(values);
}

static void waits_for_a_queue_that_does_not_end_have_a_deadline(void **state)
{
    (void)state;
    struct device *device = opened("emulated", "warp32");
    enum { MANY = 1 << 21 };
    float *zeros = calloc(MANY, 4);
    struct buffer *much = filled(device, zeros, MANY);
    struct op op = adding(much, much, MANY, 0);
    struct event *event;
    struct err err = {0};
    check(event_create(device, &event, &err));
    check(op_submit(device, &op, &err));
    check(event_record(event, &err));
    assert_int_equal(event_wait(event, 1000, &err), -1);
    assert_int_equal(err.code, ERR_TIMEOUT);
    check(event_wait(event, DEADLINE_NS, &err));
    event_destroy(event);
    buffer_destroy(much);
    device_close(device);
    free(zeros);
}

/* --- memory shared with another process */

static bool pipe_read(int file, void *to, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        struct pollfd ready = {.fd = file, .events = POLLIN};
        if (poll(&ready, 1, 20000) != 1)
            return false;
        ssize_t got = read(file, (uint8_t *)to + done, bytes - done);
        if (got <= 0)
            return false;
        done += (size_t)got;
    }
    return true;
}

/* The other process: it opens the shared buffer and doubles its values by an op on its own device. */
static int sharer(const char *kind, int in, int out)
{
    struct buffer_handle handle, wrong;
    struct device_options options = options_of(kind, NULL);
    struct device *device;
    struct buffer *shared, *none;
    struct err err;
    char done = 1;
    alarm(20);
    if (!pipe_read(in, &handle, sizeof(handle)) || device_open(&options, &device, &err) != 0)
        return 2;
    wrong = handle;
    snprintf(wrong.kind, sizeof(wrong.kind), "%s", strcmp(kind, "cpu") == 0 ? "emulated" : "cpu");
    if (buffer_import(device, &wrong, &none, &err) == 0 || err.code != ERR_INVALID)
        return 3;
    wrong = handle;
    wrong.bytes = UINT64_MAX / 2;
    memset(wrong.of_device, 0x7F, sizeof(wrong.of_device));
    if (buffer_import(device, &wrong, &none, &err) == 0)
        return 4;
    if (buffer_import(device, &handle, &shared, &err) != 0 || buffer_bytes(shared) != sizeof(float[COUNT]))
        return 5;
    struct op op = adding(shared, shared, COUNT, 1);
    struct mem_account account;
    device_memory(device, &account);
    if (op_submit(device, &op, &err) != 0 || device_sync(device, &err) != 0 || account.held_total != 0)
        return 6;
    buffer_destroy(shared);
    if (write(out, &done, 1) != 1 ||
        !pipe_read(in, &done, 1)) /* Waits until the exporter has destroyed its buffer. */
        return 7;
    if (buffer_import(device, &handle, &shared, &err) == 0 || err.code != ERR_NOT_FOUND)
        return 8;
    device_close(device);
    return 0;
}

static void shared_with_another_process(const char *kind)
{
    int to[2], from[2], status = -1;
    assert_int_equal(pipe2(to, O_CLOEXEC) + pipe2(from, O_CLOEXEC), 0);
    pid_t child = fork(); /* The fork comes before any device, and so any thread, exists. */
    assert_true(child >= 0);
    if (child == 0)
        _exit(sharer(kind, to[0], from[1]));
    struct device *device = opened(kind, NULL);
    struct buffer *shared, *plain;
    struct buffer_handle handle;
    struct err err = {0};
    float values[COUNT];
    char done;
    for (uint32_t i = 0; i < COUNT; i++)
        values[i] = (float)i;
    check(buffer_create(device, 100, MEM_BUFFERS, "plain", &plain, &err));
    check(buffer_create_shared(device, sizeof(values), MEM_BUFFERS, "shared", &shared, &err));
    check(buffer_write(shared, 0, values, sizeof(values), &err));
    check(device_sync(device, &err));
    check(buffer_export(shared, &handle, &err));
    assert_int_equal(write(to[1], &handle, sizeof(handle)), sizeof(handle));
    if (!pipe_read(from[0], &done, 1)) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        fail_msg("%s: the other process ended with %d", kind, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    }
    check(buffer_read(shared, 0, values, sizeof(values), &err));
    check(device_sync(device, &err));
    for (uint32_t i = 0; i < COUNT; i++)
        assert_true(values[i] == 2 * (float)i);
    buffer_destroy(shared);
    buffer_destroy(plain);
    device_close(device);
    assert_int_equal(write(to[1], &done, 1), 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("%s: the other process ended with %d", kind, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    close(to[0]);
    close(to[1]);
    close(from[0]);
    close(from[1]);
}

static void processes_share_memory_of_cpus(void **state)
{
    (void)state;
    shared_with_another_process("cpu");
}

static void processes_share_memory_of_gpus(void **state)
{
    (void)state;
    shared_with_another_process("emulated");
}

/* --- passes */

/* Runs a pass that varies: y += alpha x, x += y, and a copy of y to the host. */
static bool pass(struct device *device, struct buffer *x, struct buffer *y, uint64_t key, float alpha,
                 float *out)
{
    struct err err;
    bool replayed = false, again;
    struct op first = adding(x, y, COUNT, alpha), second = adding(y, x, COUNT, 0.5f);
    check(device_pass_begin(device, key, &replayed, &err));
    if (!replayed) {
        check(op_submit(device, &first, &err));
        check(op_submit(device, &second, &err));
        check(buffer_read(y, 0, out, sizeof(float[COUNT]), &err));
        check(device_pass_end(device, true, &again, &err));
        assert_false(again);
    }
    check(device_sync(device, &err));
    return replayed;
}

static void passes_give_the_same_numbers_recorded_or_not(void **state)
{
    (void)state;
    enum { PASSES = 12, KEYS = 3 };
    struct device *devices[2] = {opened("emulated", "warp32,checks"), opened("emulated", "warp32,checks")};
    struct buffer *x[2], *y[2];
    float ones[COUNT], out[2][KEYS][COUNT];
    for (uint32_t i = 0; i < COUNT; i++)
        ones[i] = 1 + (float)i / 8;
    for (int d = 0; d < 2; d++) {
        x[d] = filled(devices[d], ones, COUNT);
        y[d] = filled(devices[d], ones, COUNT);
    }
    for (uint32_t i = 0; i < PASSES; i++) {
        uint32_t key = i % KEYS;
        float alpha = 0.25f * (float)(key + 1);
        bool replayed = pass(devices[0], x[0], y[0], key + 1, alpha, out[0][key]);
        assert_int_equal(
            replayed,
            i >=
                2 * KEYS); /* A key is first only seen, then recorded, and from the third time on replayed. */
        assert_false(pass(devices[1], x[1], y[1], 0, alpha, out[1][key]));
        assert_memory_equal(out[0][key], out[1][key], sizeof(out[0][key]));
    }
    for (int d = 0; d < 2; d++) {
        buffer_destroy(x[d]);
        buffer_destroy(y[d]);
        device_close(devices[d]);
    }
}

/* A device keeps the passes of a limited number of keys. Those that come again keep their places; passes that
 * no longer come are dropped for others. */
static void passes_kept_are_bounded(void **state)
{
    (void)state;
    enum { KEYS = 80, KEPT = 64, TURNS = 40 };
    struct device *device = opened("emulated", "warp32");
    float ones[COUNT] = {1}, zeros[COUNT] = {0}, out[COUNT];
    struct buffer *x = filled(device, zeros, COUNT), *y = filled(device, ones, COUNT);
    for (int turn = 0; turn < 3; turn++)
        for (uint64_t key = 1; key <= KEYS; key++) /* Turn 0 sees all keys, turn 1 records as many as there
                                                      are places, and turn 2 replays those. */
            assert_int_equal(pass(device, x, y, key, 0, out), turn == 2 && key <= KEPT);
    for (int turn = 0; turn < TURNS; turn++)
        for (uint64_t key = KEPT + 1; key <= KEYS; key++) {
            bool replayed = pass(device, x, y, key, 0, out);
            assert_true(turn > 0 || !replayed);
            assert_true(turn + 1 < TURNS || replayed);
        }
    buffer_destroy(x);
    buffer_destroy(y);
    device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_share_memory_of_cpus),
        cmocka_unit_test(processes_share_memory_of_gpus),
        cmocka_unit_test(every_fault_has_its_type_stays_and_leaks_nothing),
        cmocka_unit_test(memory_that_is_refused_once_is_there_the_next_time),
        cmocka_unit_test(unknown_options_are_refused_by_name),
        cmocka_unit_test(a_device_says_how_wide_its_warps_are),
        cmocka_unit_test(queues_run_at_once),
        cmocka_unit_test(events_order_what_queues_of_two_threads_do),
        cmocka_unit_test(waits_for_a_queue_that_does_not_end_have_a_deadline),
        cmocka_unit_test(passes_give_the_same_numbers_recorded_or_not),
        cmocka_unit_test(passes_kept_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
