/* The emulated driver. Queues are host threads, so they really overlap, and faults can be injected.
 *
 * Options are separated by commas: warp32 or warp64 (default warp32); rdna3 or rdna4 (warps of 32, and the
 * matrix units of that generation); plain (a card without matrix units); zeros (copies into another process's
 * memory succeed and deliver zeros); watchdog (it ends long kernels, and is so slow that nearly all are);
 * checks (checks who accesses what); and faults, each at the N-th call of its kind on a context. nomem=N
 * fails an allocation, launch=N a launch; lost=N loses the context at a launch, ecc=N reports an
 * uncorrectable memory error at a launch; record=N fails a recording. hold=N pauses the copy into another
 * process's memory half way: it waits until somebody opens the FIFO named by MOTLEY_EMULATED_HOLD for
 * reading, and then until somebody opens it for writing.
 *
 * Options come from device_options.isa and then from MOTLEY_EMULATED in the environment, or from the file
 * that it names as @PATH, which is read for each context. The environment serves tests of whole services.
 */
#include "engine/gpu/emulated/emulated.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    QUEUE_ROOM = 1024, /* most waiting commands; a full queue blocks the caller */
    ARGS_MAX = 512,
    DEVICES = 8
};
static const uint64_t MEMORY_DEFAULT = 1ull << 30;

enum fault_kind { FAULT_NOMEM, FAULT_LAUNCH, FAULT_LOST, FAULT_ECC, FAULT_RECORD, FAULT_HOLD, FAULTS };

struct gpu_library {
    int unused;
};

/* The emulated device's options, parsed from their text. */
struct driver_options {
    uint32_t warp_size, rdna; /* rdna: as in the kernels' dialect */
    bool checks, plain, zeros, watchdog;
    uint64_t faults[FAULTS]; /* number of the call that fails; 0: none */
};

struct gpu_context {
    struct emulated_memory memory;
    struct driver_options settings;
    _Atomic uint64_t calls[FAULTS];
    pthread_mutex_t lock;
    atomic_bool failed;
    struct err error; /* the first error; guarded by the lock */
};

enum command_kind {
    COMMAND_LAUNCH,
    COMMAND_IN,
    COMMAND_OUT,
    COMMAND_COPY,
    COMMAND_FILL,
    COMMAND_RECORD,
    COMMAND_WAIT
};

struct queue_command {
    enum command_kind kind;
    const struct gpu_function *function;
    struct gpu_dims blocks;
    uint32_t threads;
    uint8_t args[ARGS_MAX];
    gpu_address to, from;
    const void *host_from;
    void *host_to;
    uint64_t bytes, serial;
    uint8_t value;
    struct gpu_event *event;
};

struct gpu_event {
    struct gpu_context *context;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t recorded, done; /* how often it was recorded, and up to which recording it is done */
    uint64_t uses;           /* queued commands that name the event and have not run */
    struct timespec time;
};

struct gpu_graph {
    struct queue_command *commands;
    uint32_t count, room;
};

struct gpu_queue {
    struct gpu_context *context;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct queue_command *commands; /* a ring buffer of QUEUE_ROOM commands */
    uint64_t head, tail; /* head: number of the command that runs or comes next; tail: number of the next
                            command to be queued */
    uint64_t finished;
    bool ending;
    struct gpu_graph *capture; /* the graph that is being recorded */
};

struct gpu_module {
    struct gpu_context *context;
};

static void context_fail(struct gpu_context *context, const struct err *err)
{
    pthread_mutex_lock(&context->lock);
    if (!context->failed)
        context->error = *err;
    context->failed = true;
    pthread_mutex_unlock(&context->lock);
}

static int context_check(struct gpu_context *context, struct err *err)
{
    if (!context->failed)
        return 0;
    pthread_mutex_lock(&context->lock);
    *err = context->error;
    pthread_mutex_unlock(&context->lock);
    return -1;
}

/* Counts a call of this kind on the context. True if the options ask for a fault at this call. */
static bool fault_now(struct gpu_context *context, enum fault_kind kind)
{
    return context->settings.faults[kind] != 0 && ++context->calls[kind] == context->settings.faults[kind];
}

static int driver_emulated_open(struct gpu_library **out, uint32_t *version, struct err *err)
{
    *out = malloc(sizeof(**out));
    *version = 0;
    return *out ? 0 : err_set(err, ERR_NOMEM, "out of memory for a driver");
}

static void driver_emulated_close(struct gpu_library *library)
{
    free(library);
}

static int emulated_count(struct gpu_library *library, uint32_t *out, struct err *err)
{
    const char *said = getenv("MOTLEY_EMULATED_CARDS");
    (void)library;
    (void)err;
    *out = !said ? DEVICES : (uint32_t)strtoul(said, NULL, 10) % (DEVICES + 1);
    return 0;
}

/* Parses one option, [text, text + length). */
static int option_read(struct driver_options *settings, const char *text, size_t length, struct err *err)
{
    static const char *const names[FAULTS] = {"nomem=", "launch=", "lost=", "ecc=", "record=", "hold="};
    for (int kind = 0; kind < FAULTS; kind++) {
        size_t name = strlen(names[kind]);
        char *end;
        if (length <= name || strncmp(text, names[kind], name) != 0)
            continue;
        settings->faults[kind] = strtoull(text + name, &end, 10);
        if (end == text + length && settings->faults[kind] > 0)
            return 0;
    }
    if (length == 6 && strncmp(text, "warp32", 6) == 0)
        settings->warp_size = 32;
    else if (length == 6 && strncmp(text, "warp64", 6) == 0)
        settings->warp_size = 64;
    else if (length == 5 && (strncmp(text, "rdna3", 5) == 0 || strncmp(text, "rdna4", 5) == 0))
        settings->rdna = (uint32_t)(text[4] - '0');
    else if (length == 6 && strncmp(text, "checks", 6) == 0)
        settings->checks = true;
    else if (length == 5 && strncmp(text, "plain", 5) == 0)
        settings->plain = true;
    else if (length == 5 && strncmp(text, "zeros", 5) == 0)
        settings->zeros = true;
    else if (length == 8 && strncmp(text, "watchdog", 8) == 0)
        settings->watchdog = true;
    else if (length != 0 && !(length == 6 && strncmp(text, "native", 6) == 0))
        return err_set(
            err, ERR_INVALID,
            "emulated device: option '%.*s' is none of warp32, warp64, rdna3, rdna4, plain, zeros, "
            "watchdog, checks, nomem=N, launch=N, lost=N, ecc=N, record=N, hold=N",
            (int)length, text);
    return 0;
}

static int option_words_read(struct driver_options *settings, const char *text, struct err *err)
{
    while (text && *text != '\0') {
        size_t length = strcspn(text, ",");
        if (option_read(settings, text, length, err) != 0)
            return -1;
        text += length + (text[length] == ',');
    }
    return 0;
}

/* Parses the environment's options: its own text, or the present contents of the file named by "@PATH". */
static int environment_read(struct driver_options *settings, struct err *err)
{
    const char *text = getenv("MOTLEY_EMULATED");
    char line[256] = "";
    if (text && text[0] == '@') {
        FILE *file = fopen(text + 1, "re");
        if (file && fgets(line, sizeof(line), file))
            line[strcspn(line, "\n")] = '\0';
        if (file)
            fclose(file);
        text = line;
    }
    return option_words_read(settings, text, err);
}

/* Parses the device's own options, then the environment's. */
static int driver_options_read(struct driver_options *settings, uint32_t index, const char *options,
                               struct err *err)
{
    *settings = (struct driver_options){.warp_size = 32};
    if (index >= DEVICES)
        return err_set(err, ERR_NOT_FOUND, "no emulated device %u of %u", index, DEVICES);
    return option_words_read(settings, options, err) != 0 ? -1 : environment_read(settings, err);
}

static int emulated_info(struct gpu_library *library, uint32_t index, const char *options,
                         struct gpu_info *out, struct err *err)
{
    struct driver_options settings;
    (void)library;
    if (driver_options_read(&settings, index, options, err) != 0)
        return -1;
    *out = (struct gpu_info){.name = "emulated GPU",
                             .warp = settings.warp_size,
                             .units = 1,
                             .shared = EMULATED_SHARED_BYTES,
                             .matrix = settings.plain ? 0 : GPU_MATRIX_F16 | GPU_MATRIX_BF16,
                             .memory = MEMORY_DEFAULT,
                             .watchdog = settings.watchdog,
                             .clock_khz = settings.watchdog ? 1 : 0};
    snprintf(out->arch, sizeof(out->arch), "warp%u", settings.warp_size);
    return 0;
}

static int context_create(struct gpu_library *library, uint32_t index, const char *options, uint64_t limit,
                          struct gpu_context **out, struct err *err)
{
    (void)library;
    struct gpu_context *context = calloc(1, sizeof(*context));
    *out = NULL;
    if (!context)
        return err_set(err, ERR_NOMEM, "out of memory for a context");
    if (driver_options_read(&context->settings, index, options, err) != 0 ||
        emulated_memory_init(&context->memory, limit == 0 ? MEMORY_DEFAULT : limit, context->settings.checks,
                             err) != 0) {
        free(context);
        return -1;
    }
    pthread_mutex_init(&context->lock, NULL);
    *out = context;
    return 0;
}

static void context_destroy(struct gpu_context *context)
{
    if (!context)
        return;
    emulated_memory_fini(&context->memory);
    pthread_mutex_destroy(&context->lock);
    free(context);
}

static int memory_info(struct gpu_context *context, uint64_t *available, uint64_t *total, struct err *err)
{
    (void)err;
    pthread_mutex_lock(&context->memory.lock);
    *total = context->memory.limit;
    *available = context->memory.limit - context->memory.held;
    pthread_mutex_unlock(&context->memory.lock);
    return 0;
}

static int memory_create(struct gpu_context *context, uint64_t bytes, gpu_address *out, struct err *err)
{
    *out = 0;
    if (context_check(context, err) != 0)
        return -1;
    if (fault_now(context, FAULT_NOMEM))
        return err_set(err, ERR_NOMEM, "the emulated device has no %llu bytes (as it was told)",
                       (unsigned long long)bytes);
    return emulated_memory_take(&context->memory, bytes, out, err);
}

static int memory_destroy(struct gpu_context *context, gpu_address address, struct err *err)
{
    return emulated_memory_give(&context->memory, address, err);
}

static int host_create(struct gpu_context *context, uint64_t bytes, void **out, struct err *err)
{
    if (context_check(context, err) != 0)
        return -1;
    *out = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return *out ? 0 : err_set(err, ERR_NOMEM, "the host has no %llu bytes", (unsigned long long)bytes);
}

static int host_destroy(struct gpu_context *context, void *memory, struct err *err)
{
    (void)context;
    (void)err;
    free(memory);
    return 0;
}

static int memory_export(struct gpu_context *context, gpu_address address, uint8_t handle[GPU_IPC_BYTES],
                         struct err *err)
{
    return emulated_memory_export(&context->memory, address, handle, err);
}

static int memory_import(struct gpu_context *context, const uint8_t handle[GPU_IPC_BYTES], gpu_address *out,
                         struct err *err)
{
    return emulated_memory_import(&context->memory, handle, out, err);
}

static int driver_peer_enable(struct gpu_context *context, struct gpu_context *peer, bool *can,
                              struct err *err)
{
    (void)err;
    *can = context == peer;
    return 0;
}

/* --- the commands that a queue's thread runs */

/* Pauses in the middle of a copy: tells the test, and waits until the test lets it go on. */
static void copy_hold(void)
{
    const char *fifo = getenv("MOTLEY_EMULATED_HOLD");
    static const int turns[] = {O_WRONLY, O_RDONLY};
    for (int i = 0; i < 2 && fifo; i++) {
        int file = open(fifo, turns[i] | O_CLOEXEC); /* open() returns when the other end is opened */
        if (file >= 0)
            close(file);
    }
}

static bool is_imported(const struct emulated_memory *memory, gpu_address address)
{
    return address - (uintptr_t)memory->addresses >= memory->half;
}

static int copy_run(struct gpu_context *context, const struct queue_command *command, struct err *err)
{
    struct emulated_memory *memory = &context->memory;
    bool writes = command->kind != COMMAND_OUT,
         reads = command->kind == COMMAND_OUT || command->kind == COMMAND_COPY;
    void *to = writes ? emulated_memory_at(memory, command->to, command->bytes, true) : command->host_to;
    const void *from =
        reads ? emulated_memory_at(memory, command->from, command->bytes, false) : command->host_from;
    if (!to || (!from && command->kind != COMMAND_FILL))
        return err_set(err, ERR_DEVICE_FAULT, "a copy of %llu bytes leaves its allocation",
                       (unsigned long long)command->bytes);
    uint64_t half = command->bytes / 2;
    bool held =
        command->kind == COMMAND_COPY && is_imported(memory, command->to) && fault_now(context, FAULT_HOLD);
    if (command->kind == COMMAND_FILL) {
        memset(to, command->value, command->bytes);
    } else if (context->settings.zeros && command->kind == COMMAND_COPY && is_imported(memory, command->to)) {
        memset(to, 0, command->bytes);
    } else if (held) {
        memcpy(to, from, half);
        copy_hold();
        memcpy((uint8_t *)to + half, (const uint8_t *)from + half, command->bytes - half);
    } else {
        memmove(to, from, command->bytes);
    }
    return 0;
}

static int launch_run(struct gpu_context *context, const struct queue_command *command, struct err *err)
{
    if (fault_now(context, FAULT_LOST))
        return err_set(err, ERR_DEVICE_LOST, "the emulated device fell off its bus (as it was told)");
    if (fault_now(context, FAULT_ECC))
        return err_set(err, ERR_DEVICE_FAULT, "an uncorrectable memory error (as it was told)");
    return emulated_launch(&context->memory, command->function, context->settings.warp_size,
                           context->settings.rdna, command->blocks, command->threads, command->args, err);
}

static void event_finish(struct gpu_event *event, uint64_t serial)
{
    pthread_mutex_lock(&event->lock);
    clock_gettime(CLOCK_MONOTONIC, &event->time);
    if (event->done < serial)
        event->done = serial;
    pthread_cond_broadcast(&event->changed);
    pthread_mutex_unlock(&event->lock);
}

static void event_await(struct gpu_event *event, uint64_t serial)
{
    pthread_mutex_lock(&event->lock);
    while (event->done < serial)
        pthread_cond_wait(&event->changed, &event->lock);
    pthread_mutex_unlock(&event->lock);
}

/* Counts an event's uses. It may be destroyed as soon as no queued command names it. */
static void event_use(struct gpu_event *event, bool begins)
{
    pthread_mutex_lock(&event->lock);
    if (begins)
        event->uses++;
    else
        event->uses--;
    pthread_cond_broadcast(&event->changed);
    pthread_mutex_unlock(&event->lock);
}

static void driver_command_run(struct gpu_queue *queue, const struct queue_command *command)
{
    struct err err;
    int rc = 0;
    if (command->kind == COMMAND_RECORD)
        event_finish(command->event, command->serial);
    else if (command->kind == COMMAND_WAIT)
        event_await(command->event, command->serial);
    else if (!queue->context->failed)
        rc = command->kind == COMMAND_LAUNCH ? launch_run(queue->context, command, &err)
                                             : copy_run(queue->context, command, &err);
    if (rc != 0)
        context_fail(queue->context, &err);
    if (command->event)
        event_use(command->event, false);
}

static void *queue_main(void *argument)
{
    struct gpu_queue *queue = argument;
    pthread_mutex_lock(&queue->lock);
    for (;;) {
        while (queue->head == queue->tail && !queue->ending)
            pthread_cond_wait(&queue->changed, &queue->lock);
        if (queue->head == queue->tail)
            break;
        struct queue_command *command = &queue->commands[queue->head % QUEUE_ROOM];
        pthread_mutex_unlock(&queue->lock);
        driver_command_run(queue, command);
        pthread_mutex_lock(&queue->lock);
        queue->finished = ++queue->head;
        pthread_cond_broadcast(&queue->changed);
    }
    pthread_mutex_unlock(&queue->lock);
    return NULL;
}

static int capture_add(struct gpu_graph *graph, const struct queue_command *command, struct err *err)
{
    if (graph->count == graph->room) {
        uint32_t room = graph->room == 0 ? 64 : 2 * graph->room;
        struct queue_command *commands = realloc(graph->commands, room * sizeof(*commands));
        if (!commands)
            return err_set(err, ERR_NOMEM, "out of memory for a graph of %u commands", room);
        graph->commands = commands;
        graph->room = room;
    }
    graph->commands[graph->count++] = *command;
    return 0;
}

static void command_add(struct gpu_queue *queue, const struct queue_command *command)
{
    if (command->event)
        event_use(command->event, true);
    pthread_mutex_lock(&queue->lock);
    while (queue->tail - queue->head == QUEUE_ROOM)
        pthread_cond_wait(&queue->changed, &queue->lock);
    queue->commands[queue->tail++ % QUEUE_ROOM] = *command;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
}

static int driver_command_queue(struct gpu_queue *queue, const struct queue_command *command, struct err *err)
{
    if (context_check(queue->context, err) != 0)
        return -1;
    if (queue->capture)
        return capture_add(queue->capture, command, err);
    command_add(queue, command);
    return 0;
}

static int queue_create(struct gpu_context *context, struct gpu_queue **out, struct err *err)
{
    *out = NULL;
    struct gpu_queue *queue = calloc(1, sizeof(*queue));
    struct queue_command *commands = calloc(QUEUE_ROOM, sizeof(*commands));
    if (!queue || !commands) {
        free(queue);
        free(commands);
        return err_set(err, ERR_NOMEM, "out of memory for a queue");
    }
    queue->context = context;
    queue->commands = commands;
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->changed, NULL);
    if (pthread_create(&queue->thread, NULL, queue_main, queue) != 0) {
        free(commands);
        free(queue);
        return err_set(err, ERR_NOMEM, "no thread for a queue of an emulated device");
    }
    *out = queue;
    return 0;
}

static void graph_destroy(struct gpu_graph *graph)
{
    if (!graph)
        return;
    free(graph->commands);
    free(graph);
}

static void queue_destroy(struct gpu_queue *queue)
{
    if (!queue)
        return;
    pthread_mutex_lock(&queue->lock);
    queue->ending = true;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
    pthread_join(queue->thread, NULL);
    pthread_mutex_destroy(&queue->lock);
    pthread_cond_destroy(&queue->changed);
    graph_destroy(queue->capture);
    free(queue->commands);
    free(queue);
}

static int queue_sync(struct gpu_queue *queue, struct err *err)
{
    pthread_mutex_lock(&queue->lock);
    uint64_t until = queue->tail;
    while (queue->finished < until)
        pthread_cond_wait(&queue->changed, &queue->lock);
    pthread_mutex_unlock(&queue->lock);
    return context_check(queue->context, err);
}

static int driver_event_create(struct gpu_context *context, bool timed, struct gpu_event **out,
                               struct err *err)
{
    (void)timed;
    *out = calloc(1, sizeof(**out));
    if (!*out)
        return err_set(err, ERR_NOMEM, "out of memory for an event");
    (*out)->context = context;
    pthread_mutex_init(&(*out)->lock, NULL);
    pthread_cond_init(&(*out)->changed, NULL);
    return 0;
}

static void driver_event_destroy(struct gpu_event *event)
{
    if (!event)
        return;
    pthread_mutex_lock(&event->lock);
    while (event->uses > 0)
        pthread_cond_wait(&event->changed, &event->lock);
    pthread_mutex_unlock(&event->lock);
    pthread_mutex_destroy(&event->lock);
    pthread_cond_destroy(&event->changed);
    free(event);
}

static int driver_event_record(struct gpu_event *event, struct gpu_queue *queue, struct err *err)
{
    if (context_check(queue->context, err) != 0)
        return -1;
    pthread_mutex_lock(&event->lock);
    uint64_t serial = ++event->recorded;
    pthread_mutex_unlock(&event->lock);
    return driver_command_queue(
        queue, &(struct queue_command){.kind = COMMAND_RECORD, .event = event, .serial = serial}, err);
}

static int driver_event_wait(struct gpu_event *event, struct gpu_queue *queue, struct err *err)
{
    pthread_mutex_lock(&event->lock);
    uint64_t serial = event->recorded;
    pthread_mutex_unlock(&event->lock);
    return driver_command_queue(
        queue, &(struct queue_command){.kind = COMMAND_WAIT, .event = event, .serial = serial}, err);
}

static int driver_event_done(struct gpu_event *event, bool *done, struct err *err)
{
    pthread_mutex_lock(&event->lock);
    *done = event->done == event->recorded;
    pthread_mutex_unlock(&event->lock);
    return *done ? context_check(event->context, err) : 0;
}

static int event_sync(struct gpu_event *event, struct err *err)
{
    pthread_mutex_lock(&event->lock);
    uint64_t serial = event->recorded;
    pthread_mutex_unlock(&event->lock);
    event_await(event, serial);
    return context_check(event->context, err);
}

static int driver_event_elapsed(struct gpu_event *from, struct gpu_event *to, float *milliseconds,
                                struct err *err)
{
    (void)err;
    *milliseconds = (float)((double)(to->time.tv_sec - from->time.tv_sec) * 1e3 +
                            (double)(to->time.tv_nsec - from->time.tv_nsec) * 1e-6);
    return 0;
}

static int copy_in(struct gpu_queue *queue, gpu_address to, const void *from, uint64_t bytes, struct err *err)
{
    return driver_command_queue(
        queue, &(struct queue_command){.kind = COMMAND_IN, .to = to, .host_from = from, .bytes = bytes}, err);
}

static int copy_out(struct gpu_queue *queue, void *to, gpu_address from, uint64_t bytes, struct err *err)
{
    return driver_command_queue(
        queue, &(struct queue_command){.kind = COMMAND_OUT, .host_to = to, .from = from, .bytes = bytes},
        err);
}

static int driver_copy(struct gpu_queue *queue, gpu_address to, gpu_address from, uint64_t bytes,
                       struct err *err)
{
    return driver_command_queue(
        queue, &(struct queue_command){.kind = COMMAND_COPY, .to = to, .from = from, .bytes = bytes}, err);
}

static int driver_fill(struct gpu_queue *queue, gpu_address to, uint8_t value, uint64_t bytes,
                       struct err *err)
{
    return driver_command_queue(
        queue, &(struct queue_command){.kind = COMMAND_FILL, .to = to, .value = value, .bytes = bytes}, err);
}

static int module_load(struct gpu_context *context, const void *image, uint64_t bytes,
                       struct gpu_module **out, struct err *err)
{
    (void)image;
    (void)bytes;
    *out = malloc(sizeof(**out));
    if (!*out)
        return err_set(err, ERR_NOMEM, "out of memory for a module");
    (*out)->context = context;
    return 0;
}

static void module_unload(struct gpu_module *module)
{
    free(module);
}

static int function(struct gpu_module *module, const char *name, struct gpu_function **out, struct err *err)
{
    (void)module;
    const struct gpu_function *all =
        __builtin_cpu_supports("fma") ? emulated_functions_fma : emulated_functions_any;
    for (uint32_t i = 0; i < emulated_function_count; i++)
        if (strcmp(all[i].name, name) == 0) {
            *out = (struct gpu_function *)&all[i]; /* the cast drops const, but nothing writes to it */
            return 0;
        }
    return err_set(err, ERR_NOT_FOUND, "no kernel is called %s", name);
}

static int launch(struct gpu_queue *queue, struct gpu_function *called, struct gpu_dims blocks,
                  uint32_t threads, uint32_t shared, const void *args, uint32_t args_bytes, struct err *err)
{
    struct queue_command command = {
        .kind = COMMAND_LAUNCH, .function = called, .blocks = blocks, .threads = threads};
    if (args_bytes > ARGS_MAX || shared != 0 || blocks.x == 0 || blocks.y == 0 || blocks.z == 0 ||
        blocks.y > 65535 || blocks.z > 65535)
        return err_set(err, ERR_INVALID, "kernel %s: blocks (%u, %u, %u), %u bytes of arguments",
                       called->name, blocks.x, blocks.y, blocks.z, args_bytes);
    if (fault_now(queue->context, FAULT_LAUNCH)) {
        err_set(err, ERR_DEVICE_FAULT, "the launch of %s failed (as it was told)", called->name);
        context_fail(queue->context, err);
        return -1;
    }
    memcpy(command.args, args, args_bytes);
    return driver_command_queue(queue, &command, err);
}

static int capture_begin(struct gpu_queue *queue, struct err *err)
{
    if (queue->capture)
        return err_set(err, ERR_INVALID, "a graph is being recorded already");
    queue->capture = calloc(1, sizeof(*queue->capture));
    return queue->capture ? 0 : err_set(err, ERR_NOMEM, "out of memory for a graph");
}

static int capture_end(struct gpu_queue *queue, struct gpu_graph **out, struct err *err)
{
    *out = queue->capture;
    queue->capture = NULL;
    if (fault_now(queue->context, FAULT_RECORD)) {
        graph_destroy(*out);
        *out = NULL;
        return err_set(err, ERR_INVALID, "the recording failed (as it was told)");
    }
    return *out ? 0 : err_set(err, ERR_INVALID, "no graph is being recorded");
}

static int graph_launch(struct gpu_graph *graph, struct gpu_queue *queue, struct err *err)
{
    for (uint32_t i = 0; i < graph->count; i++)
        if (driver_command_queue(queue, &graph->commands[i], err) != 0)
            return -1;
    return 0;
}

const struct gpu_driver gpu_driver_emulated = {
    .kind = "emulated",
    .open = driver_emulated_open,
    .close = driver_emulated_close,
    .count = emulated_count,
    .info = emulated_info,
    .context_create = context_create,
    .context_destroy = context_destroy,
    .memory_info = memory_info,
    .memory_create = memory_create,
    .memory_destroy = memory_destroy,
    .host_create = host_create,
    .host_destroy = host_destroy,
    .memory_export = memory_export,
    .memory_import = memory_import,
    .memory_unimport = memory_destroy,
    .peer_enable = driver_peer_enable,
    .queue_create = queue_create,
    .queue_destroy = queue_destroy,
    .queue_sync = queue_sync,
    .event_create = driver_event_create,
    .event_destroy = driver_event_destroy,
    .event_record = driver_event_record,
    .event_wait = driver_event_wait,
    .event_done = driver_event_done,
    .event_sync = event_sync,
    .event_elapsed = driver_event_elapsed,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .copy = driver_copy,
    .fill = driver_fill,
    .module_load = module_load,
    .module_unload = module_unload,
    .function = function,
    .launch = launch,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .graph_launch = graph_launch,
    .graph_destroy = graph_destroy,
};
