/* Tests which cards become devices, with which memory, and what is told of their health. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/cards.h"
#include "agent/config.h"
#include "agent/health.h"
#include "agent/inventory.h"
#include "agent/machine.h"
#include "common/json.h"
#include "support/services.h"

static json_t *parsed(const char *text)
{
    struct err err = {0};
    json_t *value = json_parse_limited(text, strlen(text), 8, &err);
    assert_non_null(value);
    return value;
}

static const char CARDS[] =
    "{\"drivers\":[{\"kind\":\"cuda\",\"version\":12040,\"why\":null}],\"cards\":["
    "{\"kind\":\"cuda\",\"index\":0,\"name\":\"NVIDIA GeForce RTX "
    "3090\",\"arch\":\"sm_86\",\"pci\":\"0000:01:00.0\","
    "\"uuid\":\"\",\"memory_bytes\":25000000000,\"free_bytes\":24000000000,\"usable\":true,\"why\":null,"
    "\"base_bytes\":110232832,\"products\":{\"library\":null,\"why\":\"no cublasLt here\"}},"
    "{\"kind\":\"cuda\",\"index\":1,\"name\":\"NVIDIA GeForce GTX TITAN "
    "X\",\"arch\":\"sm_52\",\"pci\":\"0000:02:00.0\","
    "\"uuid\":\"\",\"memory_bytes\":12000000000,\"free_bytes\":null,\"usable\":false,\"why\":\"it is "
    "broken\"}]}";

/* Makes the device list with `config_text` on a machine with CARDS. A card that the configuration does not
 * use has the reason. */
static json_t *with_cards(const char *config_text, struct agent_config *config)
{
    struct err err = {0};
    json_t *document = !config_text ? NULL : parsed(config_text);
    assert_int_equal(agent_config_read(document, "127.0.0.1", config, &err), 0);
    assert_int_equal(agent_config_cards(config, parsed(CARDS), &err), 0);
    json_t *inventory = inventory_make(config, &err);
    assert_non_null(inventory);
    json_decref(document);
    return inventory;
}

static const char *why_of(const json_t *inventory, size_t card)
{
    const json_t *object = json_array_get(json_object_get(inventory, "cards"), card);
    assert_true(json_is_false(json_object_get(object, "usable")));
    return json_string_value(json_object_get(object, "why"));
}

static void cards_become_devices_and_others_say_why_not(void **state)
{
    (void)state;
    struct agent_config *config = calloc(1, sizeof(*config));
    json_t *inventory = with_cards("{\"name\":\"n\"}", config);
    assert_int_equal(config->device_count, 2); /* the CPU and the card that works */
    assert_string_equal(config->devices[1].name, "n/cuda0");
    assert_string_equal(config->devices[1].like, "NVIDIA GeForce RTX 3090");
    /* 92 % of the free memory less 0.5 GB, rounded down to 64 MiB */
    assert_true(config->devices[1].memory_limit_bytes == (uint64_t)321 << 26);
    assert_string_equal(why_of(inventory, 1), "it is broken");
    const json_t *told = json_array_get(json_object_get(inventory, "devices"), 1);
    assert_int_equal(json_integer_value(json_object_get(told, "base_bytes")), 110232832);
    assert_string_equal(json_text_of(json_object_get(told, "products"), "why"), "no cublasLt here");
    json_decref(inventory);
    agent_config_fini(config);

    inventory =
        with_cards("{\"name\":\"n\",\"devices\":[{\"kind\":\"cuda\",\"index\":0,\"memory\":\"10GiB\"},"
                   "{\"kind\":\"cuda\",\"index\":1},{\"kind\":\"hip\",\"index\":7}]}",
                   config);
    assert_int_equal(config->device_count, 1); /* only the named card */
    assert_true(config->devices[0].memory_limit_bytes == (uint64_t)10 << 30);
    assert_string_equal(why_of(inventory, 1), "it is broken");
    assert_string_equal(why_of(inventory, 2), "the driver shows no such card");
    json_decref(inventory);
    agent_config_fini(config);

    inventory = with_cards("{\"name\":\"n\",\"cards\":\"all\",\"devices\":[{}]}", config);
    assert_int_equal(config->device_count, 2); /* the named CPU and the card that works */
    json_decref(inventory);
    agent_config_fini(config);

    inventory = with_cards("{\"name\":\"n\",\"devices\":[{}]}", config);
    assert_int_equal(config->device_count, 1); /* the named CPU alone, which is said of the card that works */
    assert_non_null(strstr(why_of(inventory, 0), "lists devices, and not this card"));
    assert_string_equal(why_of(inventory, 1), "it is broken");
    json_decref(inventory);
    agent_config_fini(config);

    inventory = with_cards("{\"name\":\"n\",\"exclude\":[\"0000:01:00.0\"]}", config);
    assert_int_equal(config->device_count, 1);
    assert_string_equal(why_of(inventory, 0), "the configuration excludes it");
    json_decref(inventory);
    agent_config_fini(config);

    inventory = with_cards(
        "{\"name\":\"n\",\"devices\":[{},{\"kind\":\"cuda\",\"index\":0,\"memory\":\"40GiB\"}]}", config);
    assert_int_equal(config->device_count, 1);
    assert_non_null(strstr(why_of(inventory, 0), "42949672960 were asked for"));
    json_decref(inventory);
    agent_config_fini(config);
    free(config);
}

static const char *own_config; /* the agent's configuration; NULL: there is none */

/* Makes the device list of a machine with CARDS after `change` of the first card, and with `held` limits. */
static const struct agent_device *changed_cards(const char *change, const char *held,
                                                struct agent_config *config)
{
    struct err err = {0};
    json_t *cards = parsed(CARDS), *fields = parsed(change);
    json_object_update(json_array_get(json_object_get(cards, "cards"), 0), fields);
    json_decref(fields);
    json_t *document = !own_config ? NULL : parsed(own_config);
    assert_int_equal(agent_config_read(document, "127.0.0.1", config, &err), 0);
    json_decref(document);
    snprintf(config->name, sizeof(config->name), "n");
    config->held = parsed(held);
    assert_int_equal(agent_config_cards(config, cards, &err), 0);
    return &config->devices[config->device_count - 1];
}

/* An agent that starts again beside its worker keeps the card's limit, also where the card admits one
 * process. */
static void a_card_with_a_worker_of_ours_keeps_its_limit(void **state)
{
    static const char *const changes[] = {
        "{\"free_bytes\":900000000}",
        "{\"free_bytes\":null,\"exclusive\":true,\"usable\":false,\"why\":\"busy\"}"};
    struct agent_config *config = calloc(1, sizeof(*config));
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        const struct agent_device *card = changed_cards(changes[i], "{\"n/cuda0\":21541945344}", config);
        assert_string_equal(card->name, "n/cuda0");
        assert_true(card->memory_limit_bytes == (uint64_t)321 << 26);
        agent_config_fini(config);
    }
    /* A worker there is no reason to take a card that does not answer. */
    changed_cards("{\"free_bytes\":null,\"usable\":false,\"why\":\"no answer\"}", "{\"n/cuda0\":21541945344}",
                  config);
    assert_int_equal(config->device_count, 1);
    assert_string_equal(json_text_of(json_array_get(json_object_get(config->cards, "cards"), 0), "why"),
                        "no answer");
    agent_config_fini(config);
    free(config);
}

/* GB10, Jetson, APU: card and CPU have one memory, so the CPU gets what the card leaves, or is not used. */
static void a_card_with_the_hosts_memory_shares_it_with_the_cpu(void **state)
{
    struct agent_config *config = calloc(1, sizeof(*config));
    const uint64_t whole = memory_total_bytes() / 10 * 8;
    char change[96];
    (void)state;
    const struct agent_device *card =
        changed_cards("{\"integrated\":true,\"free_bytes\":400000000}", "{}", config);
    assert_true(config->devices[0].memory_limit_bytes == whole - card->memory_limit_bytes - card->base_bytes);
    agent_config_fini(config);
    snprintf(change, sizeof(change), "{\"integrated\":true,\"memory_bytes\":%llu,\"free_bytes\":%llu}",
             2ull * whole, 2ull * whole);
    card = changed_cards(change, "{}", config);
    assert_int_equal(config->device_count, 1);
    assert_string_equal(card->kind, "cuda");
    const json_t *list = json_object_get(config->cards, "cards"), *cpu = json_array_get(list, 2);
    assert_non_null(strstr(json_string_value(json_object_get(cpu, "why")), "the card has the same memory"));
    agent_config_fini(config);
    /* What `motley up` gives the CPU is divided, too; what a person gives it is not. */
    static const char *const given[] = {
        "{\"cards\":\"all\",\"devices\":[{\"kind\":\"cpu\",\"memory_at_most\":\"3GiB\"}]}",
        "{\"cards\":\"all\",\"devices\":[{\"kind\":\"cpu\",\"memory\":\"3GiB\"}]}"};
    for (size_t i = 0; i < 2; i++) {
        own_config = given[i];
        card = changed_cards("{\"integrated\":true,\"free_bytes\":1400000000}", "{}", config);
        own_config = NULL;
        assert_int_equal(config->device_count, 2);
        const uint64_t taken = i == 0 ? card->memory_limit_bytes + card->base_bytes : 0;
        assert_true(config->devices[0].memory_limit_bytes == ((uint64_t)3 << 30) - taken);
        agent_config_fini(config);
    }
    free(config);
}

/* A card that another agent holds is not used; it is free again when that agent has ended. */
static void a_card_belongs_to_one_agent(void **state)
{
    (void)state;
    struct agent_config *config = calloc(1, sizeof(*config)), *other = calloc(1, sizeof(*other));
    json_t *inventory = with_cards("{\"name\":\"n\"}", config);
    assert_int_equal(config->device_count, 2);
    json_t *second = with_cards("{\"name\":\"m\"}", other);
    assert_int_equal(other->device_count, 1);
    assert_string_equal(why_of(second, 0), "another agent of this machine uses it");
    json_decref(second);
    agent_config_fini(other);
    json_decref(inventory);
    agent_config_fini(config);
    second = with_cards("{\"name\":\"m\"}", other);
    assert_int_equal(other->device_count, 2);
    json_decref(second);
    agent_config_fini(other);
    free(config);
    free(other);
}

static void drivers_that_fail_leave_the_cpu(void **state)
{
    (void)state;
    struct err err = {0};
    static const char *const programs[] = {"/bin/false", "/bin/true", "/nonexistent/worker"};
    for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++) {
        json_t *cards = cards_ask(programs[i], &err);
        assert_int_equal(json_array_size(json_object_get(cards, "cards")), 0);
        const json_t *driver = json_array_get(json_object_get(cards, "drivers"), 0);
        assert_non_null(json_string_value(json_object_get(driver, "why")));
        assert_non_null(strstr(json_string_value(json_object_get(driver, "why")), programs[i]));
        json_decref(cards);
    }
    char worker[4096];
    snprintf(worker, sizeof(worker), "%s/motley-worker", getenv("MOTLEY_BIN"));
    setenv("MOTLEY_EMULATED_CARDS", "2", 1);
    json_t *cards = cards_ask(worker, &err);
    unsetenv("MOTLEY_EMULATED_CARDS");
    assert_non_null(cards_find(cards, "emulated", 1));
    assert_null(cards_find(cards, "emulated", 2));
    json_decref(cards);
}

/* Two slices of the first card and the whole second card are devices, each visible to its worker alone. The
 * divided card is not a device and says why. */
static void slices_of_a_card_are_devices(void **state)
{
    static const char *const seen[] = {"MIG-00010203", "MIG-00010204", "GPU-00010201"};
    (void)state;
    struct err err = {0};
    char worker[4096];
    struct agent_config *config = calloc(1, sizeof(*config));
    json_t *document = parsed("{\"name\":\"n\"}");
    snprintf(worker, sizeof(worker), "%s/motley-worker", getenv("MOTLEY_BIN"));
    setenv("MOTLEY_CUDA_LIBRARY", MOTLEY_FAKES "/libfake_cuda.so", 1);
    setenv("MOTLEY_NVML_LIBRARY", MOTLEY_FAKES "/libfake_nvml.so", 1);
    setenv("MOTLEY_FAKE_MIG", "1", 1);
    json_t *cards = cards_ask(worker, &err), *card;
    unsetenv("MOTLEY_FAKE_MIG");
    unsetenv("MOTLEY_NVML_LIBRARY");
    unsetenv("MOTLEY_CUDA_LIBRARY");
    assert_int_equal(json_array_size(json_object_get(cards, "cards")), 4);
    for (uint32_t i = 0; i < 3; i++) {
        card = (json_t *)(uintptr_t)cards_find(cards, "cuda", i);
        assert_string_equal(json_string_value(json_object_get(card, "visible")), seen[i]);
        assert_string_equal(json_string_value(json_object_get(card, "name")), "Fake RTX MIG 1g.5gb");
        json_object_set_new(card, "usable", json_true()); /* a build without kernels reports it as unusable */
        json_object_set_new(card, "free_bytes", json_integer(400 << 20));
    }
    assert_int_equal(agent_config_read(document, "127.0.0.1", config, &err), 0);
    assert_int_equal(agent_config_cards(config, cards, &err), 0);
    assert_int_equal(config->device_count, 4); /* the CPU, two slices and the second card */
    for (uint32_t i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof(name), "n/cuda%u", i);
        assert_string_equal(config->devices[1 + i].name, name);
        assert_string_equal(config->devices[1 + i].visible, seen[i]);
    }
    json_t *inventory = inventory_make(config, &err);
    assert_string_equal(why_of(inventory, 3), "it is cut into MIG slices, which are devices of their own");
    json_decref(inventory);
    json_decref(document);
    agent_config_fini(config);
    free(config);
}

/* ---- the health of cards ---- */

static pid_t health_worker_pid; /* process of the worker on every device; 0: none */

static pid_t health_pid(void *arg, const char *device)
{
    (void)arg;
    (void)device;
    return health_worker_pid;
}

/* The health of a machine with CARDS, and what it noted last. */
struct watched {
    struct event_base *base;
    struct health *health;
    json_t *noted;
    struct agent_config config;
};

static void health_note(void *arg, json_t *devices)
{
    struct watched *watched = arg;
    json_decref(watched->noted);
    watched->noted = devices;
    event_base_loopbreak(watched->base);
}

/* worker: the program that watches the cards. */
static struct watched *watched_make(const char *worker, uint32_t silent_s)
{
    struct err err = {0};
    struct watched *watched = calloc(1, sizeof(*watched));
    const struct health_options options = {.config = &watched->config,
                                           .worker = worker,
                                           .pid = health_pid,
                                           .note = health_note,
                                           .silent_s = silent_s,
                                           .arg = watched};
    watched->base = event_base_new();
    json_decref(with_cards("{\"name\":\"n\"}", &watched->config));
    watched->health = health_create(watched->base, &options, &err);
    assert_non_null(watched->health);
    return watched;
}

static void watched_free(struct watched *watched)
{
    json_decref(watched->noted);
    health_destroy(watched->health);
    agent_config_fini(&watched->config);
    event_base_free(watched->base);
    free(watched);
}

/* Returns what is sent about `device` after a reading at `second`; NULL when nothing is due. */
static json_t *health_at(struct health *health, double second, const char *device, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    json_error_t wrong;
    json_t *card = json_vpack_ex(&wrong, 0, format, args);
    va_end(args);
    if (!card)
        fail_msg("%s", wrong.text);
    json_t *reading = json_pack("{s:[], s:[o]}", "libraries", "cards", card);
    json_t *due = health_take(health, reading, (uint64_t)(second * 1e9));
    json_t *told = json_incref(json_object_get(due, device));
    json_decref(due);
    json_decref(reading);
    return told;
}

static double said(json_t *told, const char *key)
{
    assert_non_null(told);
    double value = json_number_value(json_object_get(told, key));
    json_decref(told);
    return value;
}

#define CARD_READING "{s:s, s:s, s:I, s:I, s:[s*], s:I, s:I, s:[{s:i, s:I}]}"
#define CARD_IS(clock, reason, used, ours)                                                                   \
    CARD_READING, "kind", "cuda", "pci", "0000:01:00.0", "clock_khz", (json_int_t)(clock), "clock_max_khz",  \
        (json_int_t)2000, "throttle", reason, "memory_bytes", (json_int_t)24000000000, "used_bytes",         \
        (json_int_t)(used), "processes", "pid", 4242, "bytes", (json_int_t)(ours)

static void what_others_compute_on_the_cpu_is_told(void **state)
{
    (void)state;
    struct watched *watched = watched_make("/bin/false", 0);
    struct health *health = watched->health;
    int over[2];
    char byte;
    assert_int_equal(pipe(over), 0);
    json_decref(health_cores(health, 1000000000));
    const pid_t other = fork();
    if (other == 0) { /* nobody waits for it below, so its time is not the agent's */
        while (process_cpu_seconds(getpid()) < 0.3)
            ;
        _exit(write(over[1], "", 1) == 1 ? pause() : 1);
    }
    assert_true(read(over[0], &byte, 1) == 1);
    assert_true(process_cpu_seconds(other) >= 0.3);
    json_t *told = health_cores(health, 2000000000); /* a second later, it says */
    assert_true(said(json_incref(json_object_get(told, "n/cpu0")), "others_cores") >= 0.25);
    assert_int_equal(json_object_size(told), 1);
    json_decref(told);
    assert_int_equal(kill(other, SIGKILL), 0);
    assert_int_equal(waitpid(other, NULL, 0), other);
    close(over[0]);
    close(over[1]);
    watched_free(watched);
}

static void a_throttled_card_is_told_when_it_lasts(void **state)
{
    (void)state;
    struct watched *watched = watched_make("/bin/false", 0);
    struct health *health = watched->health;
    const char *name = "n/cuda0", *none = NULL;
    assert_true(said(health_at(health, 100, name, CARD_IS(2000, none, 0, 0)), "heat") == 1);
    /* Two seconds at half the clock change the mean little. A card at its power limit is not throttled,
     * because it was at that limit when it was measured, too. */
    assert_true(said(health_at(health, 106, name, CARD_IS(1000, "thermal", 0, 0)), "heat") == 0.95);
    health_again(health);
    assert_true(said(health_at(health, 112, name, CARD_IS(1000, "power", 0, 0)), "heat") == 0.95);
    double heat = 1;
    for (double second = 114; second < 500; second += 2) {
        json_t *told = health_at(health, second, name, CARD_IS(1000, "thermal", 0, 0));
        heat = told ? said(told, "heat") : heat;
        assert_true(second > 120 || heat > 0.9);
    }
    assert_true(fabs(heat - 0.5) < 0.03);
    /* Without a change health is sent once a minute; with one, still not at every reading. */
    uint32_t times = 0;
    for (double second = 500; second < 740; second += 2) {
        json_t *told = health_at(health, second, name, CARD_IS(1000, "thermal", 0, 0));
        times += told ? 1 : 0;
        json_decref(told);
    }
    assert_true(times >= 3 && times <= 5);
    for (double second = 740; second < 800; second += 2) {
        json_t *told = health_at(health, second, name,
                                 CARD_IS(2000, (int)second / 2 % 2 != 0 ? "hardware" : none, 0, 0));
        times += told ? 1 : 0;
        json_decref(told);
    }
    assert_true(times <= 17);
    watched_free(watched);
}

static void memory_of_others_is_not_planned_with(void **state)
{
    (void)state;
    struct watched *watched = watched_make("/bin/false", 0);
    struct health *health = watched->health;
    const char *name = "n/cuda0", *none = NULL;
    const double limit = (double)watched->config.devices[1].memory_limit_bytes, gib = 1 << 30;
    assert_true(said(health_at(health, 10, name, CARD_IS(2000, none, 0, 0)), "usable_bytes") == limit);
    health_worker_pid = 4242; /* our worker holds 12 GiB: nothing belongs to others */
    assert_null(health_at(health, 20, name, CARD_IS(2000, none, 12 * gib, 12 * gib)));
    assert_null(health_at(health, 30, name,
                          CARD_IS(2000, none, 16 * gib, 12 * gib))); /* one reading does not count yet */
    json_t *told = health_at(health, 40, name, CARD_IS(2000, none, 16 * gib, 12 * gib));
    assert_true(json_integer_value(json_object_get(told, "others_bytes")) == (json_int_t)4 << 30);
    assert_true(said(told, "usable_bytes") == (double)card_memory_share(24000000000 - ((uint64_t)4 << 30)));
    health_worker_pid =
        7; /* our process is not listed, as in a container, so the last value for other processes stays */
    assert_null(health_at(health, 50, name, CARD_IS(2000, none, 20 * gib, 12 * gib)));
    assert_null(health_at(health, 60, name, CARD_IS(2000, none, 20 * gib, 12 * gib)));
    health_worker_pid = 0;
    assert_null(health_at(health, 70, name, CARD_IS(2000, none, 0, 0)));
    assert_true(said(health_at(health, 80, name, CARD_IS(2000, none, 0, 0)), "usable_bytes") == limit);
    /* Another card's reading does not count, and a card without a reading says so. */
    told = health_at(health, 90, name, "{s:s, s:s}", "kind", "cuda", "pci", "0000:02:00.0");
    assert_string_equal(json_string_value(json_object_get(told, "why")),
                        "its vendor's management library does not show it");
    json_decref(told);
    watched_free(watched);
}

/* Runs the health of CARDS with this program as watcher, and compares what is said of the card first. */
static void watched_by(const char *worker, uint32_t silent_s, const char *why)
{
    const struct timeval most = {.tv_sec = 20};
    struct watched *watched = watched_make(worker, silent_s);
    event_base_loopexit(watched->base, &most);
    event_base_dispatch(watched->base);
    assert_string_equal(json_string_value(json_object_get(json_object_get(watched->noted, "n/cuda0"), "why")),
                        why);
    watched_free(watched);
}

/* A management library may end its process, or hang: ROCm SMI does, behind the lock of a process that died.
 */
static void a_watcher_that_ends_or_hangs_is_said(void **state)
{
    char hanging[] = "/tmp/motley-watcher-XXXXXX";
    static const char script[] = "#!/bin/sh\nexec sleep 60\n";
    (void)state;
    watched_by("/bin/false", 0, "the watcher of cards ended: exited with status 1");
    int fd = mkstemp(hanging);
    assert_true(fd >= 0 && write(fd, script, sizeof(script) - 1) == (ssize_t)sizeof(script) - 1);
    assert_int_equal(fchmod(fd, 0700), 0);
    close(fd);
    watched_by(
        hanging, 1,
        "a vendor's management library did not answer for 1 s, and is asked anew by another process (if "
        "that goes on: rm /dev/shm/rocm_smi*, or nvidia-smi hangs, too)");
    unlink(hanging);
}

/* A machine with cards of two vendors, one of whose drivers is broken, and with named cards. */
static void a_driver_that_is_refused_has_a_line_of_its_own(void **state)
{
    (void)state;
    struct err err = {0};
    struct agent_config *config = calloc(1, sizeof(*config));
    json_t *document = parsed("{\"name\":\"n\"}");
    json_t *cards = parsed(CARDS);
    json_array_append_new(json_object_get(cards, "drivers"),
                          json_pack("{s:s, s:i, s:b, s:s}", "kind", "hip", "version", 0, "missing", 0, "why",
                                    "libamdhip64.so lacks hipInit"));
    assert_int_equal(agent_config_read(document, "127.0.0.1", config, &err), 0);
    assert_int_equal(agent_config_cards(config, cards, &err), 0);
    assert_int_equal(config->device_count, 2); /* the CPU and the other vendor's card */
    json_t *inventory = inventory_make(config, &err);
    assert_string_equal(why_of(inventory, 2), "libamdhip64.so lacks hipInit");
    json_decref(inventory);
    json_decref(document);
    agent_config_fini(config);
    free(config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cards_become_devices_and_others_say_why_not),
        cmocka_unit_test(a_card_with_a_worker_of_ours_keeps_its_limit),
        cmocka_unit_test(a_card_with_the_hosts_memory_shares_it_with_the_cpu),
        cmocka_unit_test(what_others_compute_on_the_cpu_is_told),
        cmocka_unit_test(a_throttled_card_is_told_when_it_lasts),
        cmocka_unit_test(memory_of_others_is_not_planned_with),
        cmocka_unit_test(a_watcher_that_ends_or_hangs_is_said),
        cmocka_unit_test(a_driver_that_is_refused_has_a_line_of_its_own),
        cmocka_unit_test(a_card_belongs_to_one_agent),
        cmocka_unit_test(drivers_that_fail_leave_the_cpu),
        cmocka_unit_test(slices_of_a_card_are_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
