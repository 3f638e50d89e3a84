/* Reads the scheduler's configuration. */
#include "scheduler/leader/config.h"

#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/doc.h"
#include "common/document.h"
#include "common/file.h"
#include "common/json.h"
#include "common/yaml.h"

#define DAY_MS 86400000
/* FIXED ones are read at the start alone. */
#define LIMIT(name, initial, least, most, ...)                                                               \
    DOC_NUM(#name, scheduler_limits, name, JR_OPTIONAL, initial, least, most, __VA_ARGS__, .flags = DOC_LIVE)
#define FIXED(name, initial, least, most, ...)                                                               \
    DOC_NUM(#name, scheduler_limits, name, JR_OPTIONAL, initial, least, most, __VA_ARGS__)
#define TEXT(name, member, needed, ...) DOC_TEXT(name, scheduler_config, member, needed, 1, 4096, __VA_ARGS__)

static const struct doc_field limits_fields[] = {
    LIMIT(unreachable_ms, 5000, 10, DAY_MS, "a node becomes unreachable after this silence"),
    LIMIT(lost_ms, 30000, 10, DAY_MS, "the workers of a node are given up after this silence of the node"),
    LIMIT(missing_ms, 10000, 10, DAY_MS,
          "a worker that its restarted agent does not name is given up after this time"),
    LIMIT(start_least_ms, 300000, 10, DAY_MS,
          "a run whose workers are not all ready after this and the time in which their weights come is "
          "stopped; a driver's first translation of the kernels takes up to two minutes"),
    LIMIT(start_ms, 1800000, 10, DAY_MS, "the most that start_least_ms and that time come to"),
    LIMIT(stop_ms, 10000, 10, DAY_MS,
          "a worker that was told to stop without a checkpoint is killed after this time"),
    LIMIT(checkpoint_stop_ms, 120000, 10, DAY_MS,
          "a worker that was told to stop with a checkpoint is killed after this time plus twice the "
          "predicted time of storing the checkpoint"),
    DOC_NUM("store_rate", scheduler_limits, store_bytes_per_s, JR_OPTIONAL, 10e6, 1, 1e15,
            "rate at which checkpoints are assumed to be stored from nodes whose links were not measured",
            .flags = DOC_RATE | DOC_LIVE),
    LIMIT(kill_ms, 10000, 10, DAY_MS,
          "a killed worker whose end its agent does not report is given up after this time"),
    LIMIT(retry_ms_min, 1000, 1, DAY_MS,
          "pause before the next attempt after a job's first lost one; it doubles with each further loss"),
    LIMIT(retry_ms_max, 60000, 1, DAY_MS, "longest pause before the next attempt after a lost one"),
    FIXED(redeliver_ms, 2000, 10, DAY_MS,
          "first pause before an unconfirmed message is sent again; it doubles with each repetition"),
    LIMIT(profile_start_ms, 1000, 0, DAY_MS,
          "time from the request until all devices of a machine begin to measure at once"),
    LIMIT(profile_ms, 6000, 10, DAY_MS, "longest time that one device is measured"),
    LIMIT(profile_grace_ms, 240000, 10, DAY_MS,
          "time that a profile's answer may take beyond the measurement, since a driver's first translation "
          "of the kernels for its card takes up to two minutes"),
    LIMIT(links_ms, 10000, 10, DAY_MS, "time that a link measurement's answer may take"),
    LIMIT(measure_tries, 3, 1, 100, "attempts to measure one profile or one link for which jobs wait"),
    LIMIT(queue_max, 64, 1, 10000,
          "number of queued jobs whose wait codes are kept for slices and extensions, and which are refused "
          "when they fit nowhere; the users within accounts share it equally"),
    LIMIT(queue_check_ms, 600000, 0, DAY_MS, "how often the queue in memory is compared with the database"),
    LIMIT(batch_max, 512, 1, 4096, "most events that one transaction commits"),
    LIMIT(event_days, 30, 1, 36500, "days that events and traces are kept"),
    LIMIT(history_days, 180, 1, 36500,
          "days that a finished job keeps its metrics of single steps and its earlier attempts"),
    LIMIT(dataset_days, 90, 1, 36500, "days that an encoded data set which no job uses is kept"),
    LIMIT(ledger_days, 180, 31, 36500, "days that the ledger's rows are kept singly after their end"),
    LIMIT(lease_idle_ms, 1800000, 10, DAY_MS,
          "a lease ends when no process has held memory of its device for this time"),
    LIMIT(usage_days, 730, 31, 36500, "days that the daily sums of the ledger's rows are kept"),
    LIMIT(rank_steps, 10000, 1, 1u << 30,
          "number of a running job's last steps whose metrics are kept for each rank"),
    LIMIT(prune_rows, 2000, 10, 100000, "most rows that one transaction removes from a table"),
    LIMIT(prune_ms, 600000, 100, DAY_MS, "pause between two searches for rows that are too old"),
    FIXED(leader_silent_ms, 15000, 1000, DAY_MS,
          "a standby deposes a leader that has shown no sign of life for this time"),
    FIXED(leader_poll_ms, 250, 10, 60000, "how often a standby tries to become the leader"),
    LIMIT(look_ms, 5000, 10, DAY_MS,
          "least time between two decisions whether a run should move to other devices"),
    LIMIT(aside_ms, 30000, 10, DAY_MS, "how long passes leave out what the database refused"),
    LIMIT(
        remeasure_ms, 60000, 10, DAY_MS,
        "a device that a run measured slower than its profile is profiled again after this time, and "
        "repeatedly; the first pause after measure_tries failed attempts, which doubles up to 16 times this"),
    LIMIT(wait_steps, 20, 1, 1000000,
          "a transfer may stand still for this many of the plan's predicted step times"),
    LIMIT(wait_ms_min, 60000, 1000, DAY_MS, "least time that a transfer may stand still"),
    LIMIT(wait_ms_max, 86400000, 1000, DAY_MS, "longest time that a transfer may stand still"),
    LIMIT(save_wait_ms, 3600000, 1000, DAY_MS,
          "longest time that ranks wait for a rank that stores its part of a checkpoint"),
    FIXED(start_wait_ms, 30000, 0, DAY_MS,
          "time that the program waits for PostgreSQL and Redis at its start"),
};
static const struct doc limits_doc = DOC(scheduler_limits, limits_fields);

/* Adds one entry for one direction, the form in which workers and the planner read links. */
static int add_link(json_t *links, const char *from, const char *to, double rate, double latency)
{
    json_t *link = json_pack("{s:s, s:s, s:f, s:f, s:b}", "from", from, "to", to, "bytes_per_s", rate,
                             "latency_s", latency, "emulated", 1);
    return link ? json_array_append_new(links, link) : -1;
}

static int links_start(void *at, struct err *err)
{
    json_t **links = at;
    return (*links = json_array()) ? 0 : err_set(err, ERR_NOMEM, "no memory for the configuration");
}

static int config_links_read(struct json_reader *top, const struct doc_field *field, void *at)
{
    json_t **links = at;
    const json_t *list = NULL;
    jr_array(top, field->key, JR_OPTIONAL, 0, 10000, &list);
    for (size_t i = 0; i < json_array_size(list) && !top->failed; i++) {
        struct json_reader item;
        const json_t *between = NULL;
        double rate = 0, latency = 0;
        jr_item(top, field->key, list, i, &item);
        jr_array(&item, "between", JR_REQUIRED, 2, 2, &between);
        jr_rate(&item, "rate", JR_REQUIRED, 1, 1e15, &rate);
        jr_seconds(&item, "latency", JR_OPTIONAL, 0, 3600, &latency);
        if (jr_finish(&item) < 0)
            return -1;
        const char *a = json_string_value(json_array_get(between, 0));
        const char *b = json_string_value(json_array_get(between, 1));
        if (!a || !b || strcmp(a, b) == 0)
            return jr_fail(top, field->key, "entry %zu must be between two different nodes", i);
        if (add_link(*links, a, b, rate, latency) < 0 || add_link(*links, b, a, rate, latency) < 0)
            return jr_fail(top, field->key, "no memory");
    }
    return 1;
}

static void links_fini(void *at)
{
    json_decref(*(json_t **)at);
}

static const struct doc_form links_form = {
    .start = links_start, .read = config_links_read, .fini = links_fini};

static const struct doc_field tls_fields[] = {
    TEXT("ca", redis_ca, JR_REQUIRED, "the CA's certificate"),
    TEXT("cert", redis_cert, JR_REQUIRED, "this program's certificate"),
    TEXT("key", redis_key, JR_REQUIRED, "its key"),
};
static const struct doc tls_doc = DOC(scheduler_config, tls_fields);

static const struct doc_field redis_fields[] = {
    TEXT("address", redis_address, JR_REQUIRED, "unix:PATH or HOST:PORT; several with commas between them"),
    TEXT("user", redis_user, JR_OPTIONAL, "else the default user"),
    TEXT("password", redis_password, JR_OPTIONAL, ""),
    DOC_WITHIN("tls", JR_OPTIONAL, &tls_doc, "without it the connection is not encrypted"),
};
static const struct doc redis_doc = DOC(scheduler_config, redis_fields);

static const struct doc_field sharing_fields[] = {
    DOC_SAME(scheduler_config, sharing, &policy_settings_doc, "", .flags = DOC_LIVE),
    TEXT("reference", sharing_reference, JR_OPTIONAL,
         "the device whose speed is 1 in the ledger; else the fastest one that is measured",
         .flags = DOC_LIVE),
};
static const struct doc sharing_doc = DOC(scheduler_config, sharing_fields);

static const struct doc_field config_fields[] = {
    TEXT("name", name, JR_REQUIRED, "each scheduler has its own"),
    TEXT("postgres", postgres, JR_REQUIRED, "a connection string of libpq"),
    TEXT("leader_file", leader_file, JR_OPTIONAL, "holds \"EPOCH PID\" while this scheduler leads"),
    DOC_WITHIN("redis", JR_REQUIRED, &redis_doc, ""),
    DOC_OTHER("links", scheduler_config, links, &links_form, "emulated links"),
    DOC_STRUCT("limits", scheduler_config, limits, JR_OPTIONAL, &limits_doc, ""),
    DOC_WITHIN("sharing", JR_OPTIONAL, &sharing_doc, "who goes first (docs/SHARING.md)"),
    DOC_OTHER(NULL, scheduler_config, planners, &planners_form, ""),
};
const struct doc scheduler_config_doc = DOC(scheduler_config, config_fields);

int scheduler_config_parse(const json_t *document, struct scheduler_config *config, struct err *err)
{
    if (doc_read(&scheduler_config_doc, document, "", config, err) < 0)
        return -1;
    config->sharing.backfill = policy_defaults.backfill;
    config->document = json_incref((json_t *)(uintptr_t)document);
    return 0;
}

int scheduler_config_load(const char *path, struct scheduler_config *config, struct err *err)
{
    json_t *document = document_load(path, YAML_BYTES_MAX, err);
    int rc = document ? scheduler_config_parse(document, config, err) : -1;
    json_decref(document);
    return rc < 0 && document ? err_wrap(err, "%s", path) : rc;
}

int scheduler_config_reload(const char *path, struct scheduler_config *config, struct err *err)
{
    struct scheduler_config fresh;
    if (scheduler_config_load(path, &fresh, err) < 0)
        return -1;
    int rc = doc_adopt(&scheduler_config_doc, config, config->document, &fresh, fresh.document, err);
    if (rc < 0)
        err_wrap(err, "%s", path);
    scheduler_config_fini(&fresh);
    return rc;
}

void scheduler_config_fini(struct scheduler_config *config)
{
    json_decref(config->document);
    doc_fini(&scheduler_config_doc, config);
}
