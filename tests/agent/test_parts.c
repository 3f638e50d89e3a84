/* Tests parts of the daemon: the journal, the list of message ids, configuration and inventory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/config.h"
#include "agent/inventory.h"
#include "agent/journal.h"
#include "agent/machine.h"
#include "agent/seen.h"
#include "agent/supervise.h"
#include "agent/worker_start.h"
#include "common/confine.h"
#include "common/frame.h"
#include "common/json.h"
#include "common/rand.h"
#include "support/services.h"

static int dir_up(void **state)
{
    struct test_dir *dir = calloc(1, sizeof(*dir));
    test_dir_make(dir);
    *state = dir;
    return 0;
}

static int dir_down(void **state)
{
    test_dir_remove(*state);
    free(*state);
    return 0;
}

static struct journal *reopen(struct journal *journal, const struct test_dir *dir, uint64_t bytes_max)
{
    struct err err = {0};
    journal_close(journal);
    journal = journal_open(dir->path, bytes_max, &err);
    if (!journal)
        fail_msg("%s", err.text);
    return journal;
}

static void append(struct journal_stream *stream, const char *text, bool final)
{
    struct err err = {0};
    json_t *event = json_pack("{s:s}", "text", text);
    if (journal_append(stream, event, final, &err) < 0)
        fail_msg("%s", err.text);
    json_decref(event);
}

static void events_outlive_the_agent_until_acknowledged(void **state)
{
    struct test_dir *dir = *state;
    struct err err = {0};
    struct journal *journal = reopen(NULL, dir, 1 << 20);
    struct journal_stream *stream = journal_stream(journal, "run-1-2-3", &err);
    for (int i = 0; i < 10; i++)
        append(stream, "event", false);
    journal_ack(stream, 4);
    append(stream, "last", true);
    json_t *late = json_object();
    assert_int_equal(journal_append(stream, late, false, &err), -1);
    assert_int_equal(err.code, ERR_CONFLICT);
    json_decref(late);
    journal = reopen(journal, dir, 1 << 20);
    stream = journal_find(journal, "run-1-2-3");
    assert_non_null(stream);
    assert_int_equal(stream->last, 11);
    assert_true(stream->final);
    journal_ack(stream, 4); /* acknowledges again what the first agent had received */
    uint64_t next = 5;
    for (struct journal_event *event = stream->first; event != NULL; event = event->next) {
        json_t *document = frame_decode(event->bytes, event->size, &frame_limits_default, &err);
        assert_int_equal(json_integer_value(json_object_get(document, "seq")), next++);
        json_decref(document);
    }
    assert_int_equal(next, 12);
    journal_stream_close(stream);
    assert_non_null(journal_find(journal, "run-1-2-3"));
    journal_ack(stream, 11);
    assert_null(journal_find(journal, "run-1-2-3"));
    journal = reopen(journal, dir, 1 << 20);
    assert_null(journal_first(journal));
    journal_close(journal);
}

/* Compares the journal with a model of its content under random appends, acknowledgements and restarts. */
static void a_journal_holds_exactly_what_was_not_acknowledged(void **state)
{
    struct test_dir *dir = *state;
    struct err err = {0};
    struct rand_stream random;
    rand_stream_init(&random, 20260102, 1);
    struct journal *journal = reopen(NULL, dir, 1 << 20);
    struct journal_stream *stream = journal_stream(journal, "run-9-9-9", &err);
    uint64_t last = 0, acked = 0;
    char text[4000];
    memset(text, 'x', sizeof(text));
    for (int i = 0; i < 3000; i++) {
        uint32_t what = rand_stream_below(&random, 10);
        if (what < 6) {
            text[rand_stream_below(&random, sizeof(text) - 1)] = '\0';
            append(stream, text, false);
            memset(text, 'x', sizeof(text));
            last++;
        } else if (what < 9) {
            uint64_t seq = acked + rand_stream_below(&random, (uint32_t)(last - acked) + 1);
            journal_ack(stream, seq);
            acked = seq;
        } else {
            journal = reopen(journal, dir, 1 << 20);
            stream = journal_stream(journal, "run-9-9-9", &err);
            assert_int_equal(stream->last, last);
            assert_true(stream->acked <= acked); /* some events may be repeated, none is missing */
            journal_ack(stream, acked);
        }
        uint64_t first = !stream->first ? last + 1 : stream->first->seq;
        assert_int_equal(first, acked + 1);
        assert_true(stream->file_bytes < (2u << 20)); /* the file is rewritten as it empties */
    }
    journal_stream_drop(stream);
    journal_close(journal);
}

static void a_torn_record_is_dropped_and_numbers_go_on(void **state)
{
    struct test_dir *dir = *state;
    struct err err = {0};
    struct journal *journal = reopen(NULL, dir, 1 << 20);
    struct journal_stream *stream = journal_stream(journal, "run-2-2-2", &err);
    append(stream, "one", false);
    append(stream, "two", false);
    off_t whole = (off_t)stream->file_bytes;
    append(stream, "three", false);
    journal_close(journal);
    char path[200];
    snprintf(path, sizeof(path), "%s/run-2-2-2.events", dir->path);
    for (off_t cut = whole + 20; cut > whole; cut -= 5) {
        assert_int_equal(truncate(path, cut), 0);
        journal = reopen(NULL, dir, 1 << 20);
        stream = journal_find(journal, "run-2-2-2");
        assert_int_equal(stream->last, 2);
        journal_close(journal);
    }
    journal = reopen(NULL, dir, 1 << 20);
    stream = journal_find(journal, "run-2-2-2");
    append(stream, "three again", false);
    journal = reopen(journal, dir, 1 << 20);
    stream = journal_find(journal, "run-2-2-2");
    assert_int_equal(stream->last, 3);
    int fd = open(path, O_WRONLY); /* writes a false length */
    assert_int_equal(pwrite(fd, "\xff\xff\xff\xff", 4, 0), 4);
    close(fd);
    journal = reopen(journal, dir, 1 << 20);
    assert_int_equal(journal_find(journal, "run-2-2-2")->last, 0);
    journal_stream_drop(journal_find(journal, "run-2-2-2"));
    journal_close(journal);
}

static void a_full_journal_says_so_and_is_full_no_more_when_acknowledged(void **state)
{
    struct test_dir *dir = *state;
    struct err err = {0};
    struct journal *journal = reopen(NULL, dir, 10000);
    struct journal_stream *stream = journal_stream(journal, "run-3-3-3", &err);
    while (!journal_is_full(journal)) {
        append(stream, "some event of a training run", false);
        assert_true(stream->last < 1000);
    }
    append(stream, "of the agent's own", false);
    journal_ack(stream, stream->last / 2);
    assert_false(journal_is_full(journal));
    journal_stream_drop(stream);
    assert_false(journal_is_full(journal));
    journal_close(journal);
}

/* Limits the size of files that this process writes: writes fail part of the way, as on a full disk. */
static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* Syncs a stream as the agent's flush does. */
static int sync_stream(struct journal *journal, struct journal_stream *stream)
{
    struct err err;
    struct journal_sync sync;
    int begun = journal_sync_begin(stream, &sync, &err);
    if (begun > 0)
        journal_sync_end(journal, &sync, journal_sync_run(&sync, &err));
    return begun < 0 ? -1 : 0;
}

static void a_failed_write_leaves_no_hole_and_nothing_is_durable_before_it_is_written(void **state)
{
    struct test_dir *dir = *state;
    struct err err = {0};
    signal(SIGXFSZ, SIG_IGN);
    struct journal *journal = reopen(NULL, dir, 1 << 20);
    struct journal_stream *stream = journal_stream(journal, "run-4-4-4", &err);
    append(stream, "one", false);
    assert_int_equal(sync_stream(journal, stream), 0);
    assert_int_equal(stream->durable, 1);
    for (rlim_t room = 0; room < 40; room += 3) { /* the write is cut in the head or in the document */
        uint64_t last = stream->last;
        limit_files(stream->file_bytes + room);
        json_t *event = json_pack("{s:s}", "text", "an event of a good length, so that none of it fits");
        assert_int_equal(journal_append(stream, event, false, &err), -1);
        assert_int_equal(err.code, ERR_IO);
        assert_int_equal(journal_append(stream, event, false, &err), 0); /* the error is returned once */
        json_decref(event);
        assert_int_equal(stream->last, last + 2); /* the event is in memory */
        assert_int_equal(sync_stream(journal, stream), -1);
        assert_int_equal(stream->durable, last);
        if (room % 2 == 1) { /* the scheduler has it, so it is no longer needed here */
            journal_ack(stream, last + 1);
            assert_int_equal(stream->durable, last); /* the next agent would not know that */
        }
        limit_files(RLIM_INFINITY);
        append(stream, "good", false); /* shorter than the bytes behind the last good record */
        assert_int_equal(sync_stream(journal, stream), 0);
        assert_int_equal(stream->durable, last + 3);
        uint64_t first = stream->first->seq;
        journal = reopen(journal, dir, 1 << 20);
        stream = journal_find(journal, "run-4-4-4");
        assert_int_equal(stream->last, last + 3);
        assert_int_equal(sync_stream(journal, stream), 0);
        assert_int_equal(stream->durable, last + 3);
        uint64_t next = stream->first->seq;
        assert_true(next <= first);
        for (struct journal_event *each = stream->first; each != NULL; each = each->next)
            assert_int_equal(each->seq, next++);
        assert_int_equal(next, last + 4);
    }
    journal_stream_drop(stream);
    journal_close(journal);
}

static void messages_seen_are_remembered_over_restarts(void **state)
{
    struct test_dir *dir = *state;
    struct err err = {0};
    char path[200];
    snprintf(path, sizeof(path), "%s/seen", dir->path);
    struct seen *seen = seen_open(path, &err);
    assert_false(seen_has(seen, 1));
    for (int64_t id = 1; id <= SEEN_MAX + 100; id++) {
        assert_int_equal(seen_add(seen, id, &err), 0);
        if (id % 1000 == 0) {
            seen_close(seen);
            seen = seen_open(path, &err);
        }
        assert_true(seen_has(seen, id));
    }
    assert_false(seen_has(seen, 100));
    assert_true(seen_has(seen, 101));
    seen_close(seen);
}

static json_t *parsed(const char *text)
{
    struct err err = {0};
    json_t *value = json_parse_limited(text, strlen(text), 8, &err);
    assert_non_null(value);
    return value;
}

static void configurations_are_read_and_wrong_ones_named(void **state)
{
    (void)state;
    struct err err = {0};
    struct agent_config *config = calloc(1, sizeof(*config));
    json_t *document =
        parsed("{\"name\":\"left\",\"address\":\"10.0.0.2:7001\",\"devices\":[{\"kind\":\"cpu\","
               "\"threads\":2,\"memory\":\"450MiB\",\"isa\":\"sse42\"},{}]}");
    assert_int_equal(agent_config_read(document, "127.0.0.1", config, &err), 0);
    assert_string_equal(config->host, "10.0.0.2");
    assert_int_equal(config->port, 7001);
    assert_string_equal(config->listen, "10.0.0.2");
    assert_int_equal(config->port_last, 0);
    assert_int_equal(config->device_count, 2);
    assert_string_equal(config->devices[0].name, "left/cpu0");
    assert_string_equal(config->devices[1].name, "left/cpu1");
    assert_true(config->devices[0].memory_limit_bytes == 471859200);
    assert_string_equal(config->devices[1].isa, "native");
    json_decref(document);
    document = parsed("{\"address\":\"lab.example.org\",\"listen\":\"0.0.0.0\",\"ports\":\"7000-7015\"}");
    assert_int_equal(agent_config_read(document, "127.0.0.1", config, &err), 0);
    assert_string_equal(config->host, "lab.example.org");
    assert_string_equal(config->listen, "0.0.0.0");
    assert_int_equal(config->port_first, 7000);
    assert_int_equal(config->port_last, 7015);
    config->port_last = 7000;
    assert_int_equal(agent_config_cards(config, json_pack("{s:[]}", "cards"), &err), -1);
    assert_string_equal(err.text,
                        "ports: 7000-7000 has 1, and 2 are needed: one for each device, and one for "
                        "measuring links");
    agent_config_fini(config);
    json_decref(document);
    assert_int_equal(agent_config_read(NULL, "127.0.0.1", config, &err), 0);
    assert_int_equal(config->device_count, 1);
    assert_string_equal(config->host, "127.0.0.1");
    static const struct {
        const char *text, *want;
    } bad[] = {
        {"{\"name\":\"Left Hand\"}", "name: \"Left Hand\" is not 1 to 64 of a-z"},
        {"{\"nam\":\"x\"}", "nam: unknown key"},
        {"{\"devices\":[]}", "devices: must have 1 to 64 elements"},
        {"{\"devices\":[{\"kind\":\"tpu\"}]}", "devices[0].kind: must be one of cpu, cuda, hip, emulated"},
        {"{\"devices\":[{\"memory\":\"1KiB\"}]}", "devices[0].memory: must be 1.00 MiB to"},
        {"{\"devices\":[{},{\"threads\":0}]}", "devices[1].threads: must be 1 to"},
        {"{\"devices\":[{\"isa\":\"mmx\"}]}", "devices[0].isa: must be one of native"},
        {"{\"devices\":[{\"kind\":\"cuda\"}]}", "devices[0].index: is required"},
        {"{\"devices\":[{\"kind\":\"hip\",\"index\":1},{\"kind\":\"hip\",\"index\":1}]}",
         "devices[1].index: card "},
        {"{\"devices\":[{\"kind\":\"emulated\",\"isa\":\"avx2\"}]}", "devices[0].isa: must be one of warp32"},
        {"{\"address\":\"host:99999\"}", "address: \"host:99999\" is no host"},
        {"{\"ports\":\"7015-7000\"}", "ports: \"7015-7000\" is no range of ports"},
        {"{\"ports\":\"0-70\"}", "ports: \"0-70\" is no range of ports"},
        {"{\"ports\":\"70-80 \"}", "ports: \"70-80 \" is no range of ports"},
        {"{\"ports\":\"70- 80\"}", "ports: \"70- 80\" is no range of ports"},
        {"{\"ports\":\"70000\"}", "ports: \"70000\" is no range of ports"},
        {"[]", "the document: must be an object"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        document = parsed(bad[i].text);
        assert_int_equal(agent_config_read(document, "127.0.0.1", config, &err), -1);
        if (strncmp(err.text, bad[i].want, strlen(bad[i].want)) != 0)
            fail_msg("\"%s\", wanted \"%s\"", err.text, bad[i].want);
        json_decref(document);
    }
    char host[256];
    assert_int_equal(agent_own_host("http://127.0.0.1:8080", host, &err), 0);
    assert_string_equal(host, "127.0.0.1");
    assert_int_equal(agent_own_host("https://[::1]:8080/", host, &err), 0);
    assert_string_equal(host, "::1");
    free(config);
}

static void the_inventory_is_plausible_and_stable(void **state)
{
    (void)state;
    struct err err = {0};
    struct agent_config *config = calloc(1, sizeof(*config));
    assert_int_equal(agent_config_read(NULL, "127.0.0.1", config, &err), 0);
    json_t *one = inventory_make(config, &err);
    json_t *two = inventory_make(config, &err);
    assert_true(json_equal(one, two));
    assert_true(json_integer_value(json_object_get(one, "cores")) >= 1);
    assert_true(json_integer_value(json_object_get(one, "memory_bytes")) > 1 << 28);
    assert_true(isa_rank(json_string_value(json_object_get(one, "isa"))) >= 0);
    assert_true(isa_rank("amx") > isa_rank("avx512-bf16") && isa_rank("avx512-bf16") > isa_rank("avx512") &&
                isa_rank("avx512") > isa_rank("avx2") && isa_rank("avx2") > isa_rank("sse42"));
    assert_int_equal(isa_rank("mmx"), -1);
    assert_true(strlen(json_string_value(json_object_get(one, "machine_id"))) > 10);
    assert_true(!json_object_get(one, "unconfined") == !confine_lacks());
    config->sandbox = AGENT_SANDBOX_OFF;
    json_decref(two);
    two = inventory_make(config, &err);
    assert_non_null(strstr(json_string_value(json_object_get(two, "unconfined")), "has sandbox: off"));
    json_decref(one);
    json_decref(two);
    free(config);
}

/* Slurm tells what an allocation may use, and need not confine its processes to that. */
static void a_slurm_allocation_bounds_the_machine(void **state)
{
    const uint64_t bytes = memory_total_bytes();
    const uint32_t cpus = cpu_count();
    (void)state;
    setenv("SLURM_CPUS_ON_NODE", "1", 1);
    setenv("SLURM_MEM_PER_NODE", "300", 1);
    assert_int_equal(cpu_count(), 1);
    assert_int_equal(memory_total_bytes(), 300 << 20);
    unsetenv("SLURM_MEM_PER_NODE");
    setenv("SLURM_MEM_PER_CPU", "200", 1);
    assert_int_equal(memory_total_bytes(), 200 << 20);
    setenv("SLURM_MEM_PER_NODE", "0", 1); /* --mem=0: all */
    setenv("SLURM_MEM_PER_CPU", "0", 1);
    setenv("SLURM_CPUS_ON_NODE", "100000", 1);
    assert_int_equal(cpu_count(), cpus);
    assert_int_equal(memory_total_bytes(), bytes);
    unsetenv("SLURM_MEM_PER_NODE");
    unsetenv("SLURM_MEM_PER_CPU");
    unsetenv("SLURM_CPUS_ON_NODE");
}

static void a_worker_that_amd_s_runtime_ended_is_the_card_s_fault(void **state)
{
    (void)state;
    assert_int_equal(worker_loss_code("hip", "killed by signal 6 (Aborted); its last words: x"),
                     ERR_DEVICE_FAULT);
    assert_int_equal(worker_loss_code("hip", "killed by signal 9 (Killed)"), ERR_PEER);
    assert_int_equal(worker_loss_code("hip", "killed by signal 64 (x)"), ERR_PEER);
    assert_int_equal(worker_loss_code("cuda", "killed by signal 6 (Aborted)"), ERR_PEER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_that_amd_s_runtime_ended_is_the_card_s_fault),
        cmocka_unit_test(events_outlive_the_agent_until_acknowledged),
        cmocka_unit_test(a_journal_holds_exactly_what_was_not_acknowledged),
        cmocka_unit_test(a_torn_record_is_dropped_and_numbers_go_on),
        cmocka_unit_test(a_failed_write_leaves_no_hole_and_nothing_is_durable_before_it_is_written),
        cmocka_unit_test(a_full_journal_says_so_and_is_full_no_more_when_acknowledged),
        cmocka_unit_test(messages_seen_are_remembered_over_restarts),
        cmocka_unit_test(configurations_are_read_and_wrong_ones_named),
        cmocka_unit_test(the_inventory_is_plausible_and_stable),
        cmocka_unit_test(a_slurm_allocation_bounds_the_machine),
    };
    return cmocka_run_group_tests(tests, dir_up, dir_down);
}
