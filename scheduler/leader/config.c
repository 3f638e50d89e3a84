/* Reads the scheduler's configuration. */
#include "scheduler/leader/config.h"

#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/document.h"
#include "common/file.h"
#include "common/json.h"
#include "common/yaml.h"
#include "scheduler/policy/settings.h"

static const struct scheduler_limits defaults = {
    .unreachable_ms = 5000,
    .lost_ms = 30000,
    .missing_ms = 10000,
    .start_least_ms = 300000,
    .start_ms = 1800000,
    .stop_ms = 10000,
    .checkpoint_stop_ms = 120000,
    .store_bytes_per_s = 10e6,
    .kill_ms = 10000,
    .retry_ms_min = 1000,
    .retry_ms_max = 60000,
    .redeliver_ms = 2000,
    .profile_start_ms = 1000,
    .profile_ms = 6000,
    .profile_grace_ms = 240000,
    .links_ms = 10000,
    .measure_tries = 3,
    .queue_max = 64,
    .queue_check_ms = 600000,
    .batch_max = 512,
    .event_days = 30,
    .history_days = 180,
    .dataset_days = 90,
    .ledger_days = 180,
    .lease_idle_ms = 1800000,
    .usage_days = 730,
    .rank_steps = 10000,
    .prune_rows = 2000,
    .prune_ms = 600000,
    .leader_silent_ms = 15000,
    .leader_poll_ms = 250,
    .look_ms = 5000,
    .aside_ms = 30000,
    .remeasure_ms = 60000,
    .wait_steps = 20,
    .wait_ms_min = 60000,
    .wait_ms_max = 86400000,
    .save_wait_ms = 3600000,
    .start_wait_ms = 30000,
};

static int copy(struct json_reader *reader, const char *key, enum jr_need need, char **out)
{
    const char *text = NULL;
    if (jr_str(reader, key, need, 1, 4096, &text) == 1) {
        *out = strdup(text);
        if (!*out)
            return jr_fail(reader, key, "no memory");
    }
    return 0;
}

static void read_limits(struct json_reader *top, struct scheduler_limits *limits)
{
    const uint32_t day = 86400000;
    struct json_reader reader;
    const json_t *object = NULL;
    *limits = defaults;
    if (jr_object(top, "limits", JR_OPTIONAL, &object) != 1)
        return;
    jr_init(&reader, object, "limits", top->err);
    jr_u32(&reader, "unreachable_ms", JR_OPTIONAL, 10, day, &limits->unreachable_ms);
    jr_u32(&reader, "lost_ms", JR_OPTIONAL, 10, day, &limits->lost_ms);
    jr_u32(&reader, "missing_ms", JR_OPTIONAL, 10, day, &limits->missing_ms);
    jr_u32(&reader, "start_least_ms", JR_OPTIONAL, 10, day, &limits->start_least_ms);
    jr_u32(&reader, "start_ms", JR_OPTIONAL, 10, day, &limits->start_ms);
    jr_u32(&reader, "stop_ms", JR_OPTIONAL, 10, day, &limits->stop_ms);
    jr_u32(&reader, "checkpoint_stop_ms", JR_OPTIONAL, 10, day, &limits->checkpoint_stop_ms);
    jr_rate(&reader, "store_rate", JR_OPTIONAL, 1, 1e15, &limits->store_bytes_per_s);
    jr_u32(&reader, "kill_ms", JR_OPTIONAL, 10, day, &limits->kill_ms);
    jr_u32(&reader, "retry_ms_min", JR_OPTIONAL, 1, day, &limits->retry_ms_min);
    jr_u32(&reader, "retry_ms_max", JR_OPTIONAL, 1, day, &limits->retry_ms_max);
    jr_u32(&reader, "redeliver_ms", JR_OPTIONAL, 10, day, &limits->redeliver_ms);
    jr_u32(&reader, "profile_start_ms", JR_OPTIONAL, 0, day, &limits->profile_start_ms);
    jr_u32(&reader, "profile_ms", JR_OPTIONAL, 10, day, &limits->profile_ms);
    jr_u32(&reader, "profile_grace_ms", JR_OPTIONAL, 10, day, &limits->profile_grace_ms);
    jr_u32(&reader, "links_ms", JR_OPTIONAL, 10, day, &limits->links_ms);
    jr_u32(&reader, "measure_tries", JR_OPTIONAL, 1, 100, &limits->measure_tries);
    jr_u32(&reader, "queue_max", JR_OPTIONAL, 1, 10000, &limits->queue_max);
    jr_u32(&reader, "queue_check_ms", JR_OPTIONAL, 0, 86400000, &limits->queue_check_ms);
    jr_u32(&reader, "batch_max", JR_OPTIONAL, 1, 4096, &limits->batch_max);
    jr_u32(&reader, "event_days", JR_OPTIONAL, 1, 36500, &limits->event_days);
    jr_u32(&reader, "history_days", JR_OPTIONAL, 1, 36500, &limits->history_days);
    jr_u32(&reader, "dataset_days", JR_OPTIONAL, 1, 36500, &limits->dataset_days);
    jr_u32(&reader, "ledger_days", JR_OPTIONAL, 31, 36500, &limits->ledger_days);
    jr_u32(&reader, "lease_idle_ms", JR_OPTIONAL, 10, day, &limits->lease_idle_ms);
    jr_u32(&reader, "usage_days", JR_OPTIONAL, 31, 36500, &limits->usage_days);
    jr_u32(&reader, "rank_steps", JR_OPTIONAL, 1, 1u << 30, &limits->rank_steps);
    jr_u32(&reader, "prune_rows", JR_OPTIONAL, 10, 100000, &limits->prune_rows);
    jr_u32(&reader, "prune_ms", JR_OPTIONAL, 100, day, &limits->prune_ms);
    jr_u32(&reader, "leader_silent_ms", JR_OPTIONAL, 1000, day, &limits->leader_silent_ms);
    jr_u32(&reader, "leader_poll_ms", JR_OPTIONAL, 10, 60000, &limits->leader_poll_ms);
    jr_u32(&reader, "look_ms", JR_OPTIONAL, 10, day, &limits->look_ms);
    jr_u32(&reader, "aside_ms", JR_OPTIONAL, 10, day, &limits->aside_ms);
    jr_u32(&reader, "remeasure_ms", JR_OPTIONAL, 10, day, &limits->remeasure_ms);
    jr_u32(&reader, "wait_steps", JR_OPTIONAL, 1, 1000000, &limits->wait_steps);
    jr_u32(&reader, "wait_ms_min", JR_OPTIONAL, 1000, day, &limits->wait_ms_min);
    jr_u32(&reader, "wait_ms_max", JR_OPTIONAL, 1000, day, &limits->wait_ms_max);
    jr_u32(&reader, "save_wait_ms", JR_OPTIONAL, 1000, day, &limits->save_wait_ms);
    jr_u32(&reader, "start_wait_ms", JR_OPTIONAL, 0, day, &limits->start_wait_ms);
    if (jr_finish(&reader) < 0)
        top->failed = true;
}

/* Adds one entry for one direction, the form in which workers and the planner read links. */
static int add_link(json_t *links, const char *from, const char *to, double rate, double latency)
{
    json_t *link = json_pack("{s:s, s:s, s:f, s:f, s:b}", "from", from, "to", to, "bytes_per_s", rate,
                             "latency_s", latency, "emulated", 1);
    return link ? json_array_append_new(links, link) : -1;
}

static void read_links(struct json_reader *top, json_t *links)
{
    const json_t *list = NULL;
    jr_array(top, "links", JR_OPTIONAL, 0, 10000, &list);
    for (size_t i = 0; i < json_array_size(list) && !top->failed; i++) {
        struct json_reader item;
        const json_t *between = NULL;
        double rate = 0, latency = 0;
        jr_item(top, "links", list, i, &item);
        jr_array(&item, "between", JR_REQUIRED, 2, 2, &between);
        jr_rate(&item, "rate", JR_REQUIRED, 1, 1e15, &rate);
        jr_seconds(&item, "latency", JR_OPTIONAL, 0, 3600, &latency);
        if (jr_finish(&item) < 0) {
            top->failed = true;
            return;
        }
        const char *a = json_string_value(json_array_get(between, 0));
        const char *b = json_string_value(json_array_get(between, 1));
        if (!a || !b || strcmp(a, b) == 0)
            jr_fail(top, "links", "entry %zu must be between two different nodes", i);
        else if (add_link(links, a, b, rate, latency) < 0 || add_link(links, b, a, rate, latency) < 0)
            jr_fail(top, "links", "no memory");
    }
}

static void read_redis(struct json_reader *top, struct scheduler_config *config)
{
    const json_t *object = NULL, *files = NULL;
    struct json_reader redis, tls;
    if (jr_object(top, "redis", JR_REQUIRED, &object) != 1)
        return;
    jr_init(&redis, object, "redis", top->err);
    copy(&redis, "address", JR_REQUIRED, &config->redis_address);
    copy(&redis, "user", JR_OPTIONAL, &config->redis_user);
    copy(&redis, "password", JR_OPTIONAL, &config->redis_password);
    if (jr_object(&redis, "tls", JR_OPTIONAL, &files) == 1) {
        jr_init(&tls, files, "redis.tls", top->err);
        copy(&tls, "ca", JR_REQUIRED, &config->redis_ca);
        copy(&tls, "cert", JR_REQUIRED, &config->redis_cert);
        copy(&tls, "key", JR_REQUIRED, &config->redis_key);
        if (jr_finish(&tls) < 0)
            redis.failed = true;
    }
    if (jr_finish(&redis) < 0)
        top->failed = true;
}

static void read_sharing(struct json_reader *top, struct scheduler_config *config)
{
    struct policy_settings *sharing = &config->sharing;
    struct json_reader reader;
    const json_t *object = NULL;
    *sharing = policy_defaults;
    if (jr_object(top, "sharing", JR_OPTIONAL, &object) != 1)
        return;
    jr_init(&reader, object, "sharing", top->err);
    policy_settings_read(&reader, sharing);
    copy(&reader, "reference", JR_OPTIONAL, &config->sharing_reference);
    if (jr_finish(&reader) < 0)
        top->failed = true;
}

int scheduler_config_parse(const json_t *document, struct scheduler_config *config, struct err *err)
{
    struct json_reader reader;
    *config = (struct scheduler_config){.links = json_array(),
                                        .document = json_incref((json_t *)(uintptr_t)document)};
    if (!config->links)
        return err_set(err, ERR_NOMEM, "no memory for the configuration");
    jr_init(&reader, document, "", err);
    copy(&reader, "name", JR_REQUIRED, &config->name);
    copy(&reader, "postgres", JR_REQUIRED, &config->postgres);
    copy(&reader, "leader_file", JR_OPTIONAL, &config->leader_file);
    read_redis(&reader, config);
    read_links(&reader, config->links);
    read_limits(&reader, &config->limits);
    read_sharing(&reader, config);
    planners_read(&reader, &config->planners);
    if (jr_finish(&reader) < 0) {
        scheduler_config_fini(config);
        return -1;
    }
    return 0;
}

int scheduler_config_load(const char *path, struct scheduler_config *config, struct err *err)
{
    struct buf text;
    json_t *document = NULL;
    int rc = -1;
    buf_init(&text, YAML_BYTES_MAX + 1);
    if (file_read_all(path, YAML_BYTES_MAX, &text, err) < 0)
        goto out;
    document = document_parse(path, buf_str(&text), text.size, err);
    if (!document || scheduler_config_parse(document, config, err) < 0) {
        err_wrap(err, "%s", path);
        goto out;
    }
    rc = 0;
out:
    json_decref(document);
    buf_fini(&text);
    return rc;
}

/* Returns a key, other than `sharing` and `limits`, whose values in the two documents differ, or NULL. Such a
 * key needs a restart. */
static const char *changed_key(const json_t *one, const json_t *other)
{
    const char *key;
    const json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)one, key, value)
        if (strcmp(key, "sharing") != 0 && strcmp(key, "limits") != 0 &&
            !json_equal(value, json_object_get(other, key)))
            return key;
    return NULL;
}

static const char *changed_limit(const struct scheduler_limits *one, const struct scheduler_limits *other)
{
    return one->redeliver_ms != other->redeliver_ms           ? "limits.redeliver_ms"
           : one->leader_silent_ms != other->leader_silent_ms ? "limits.leader_silent_ms"
           : one->leader_poll_ms != other->leader_poll_ms     ? "limits.leader_poll_ms"
           : one->start_wait_ms != other->start_wait_ms       ? "limits.start_wait_ms"
                                                              : NULL;
}

int scheduler_config_reload(const char *path, struct scheduler_config *config, struct err *err)
{
    struct scheduler_config fresh;
    if (scheduler_config_load(path, &fresh, err) < 0)
        return -1;
    const char *key = changed_key(fresh.document, config->document);
    key = key ? key : changed_key(config->document, fresh.document);
    key = key ? key : changed_limit(&fresh.limits, &config->limits);
    if (key) {
        err_set(err, ERR_CONFLICT, "%s: %s: another value takes a restart", path, key);
    } else {
        config->limits = fresh.limits;
        config->sharing = fresh.sharing;
        char *reference = config->sharing_reference;
        config->sharing_reference = fresh.sharing_reference;
        fresh.sharing_reference = reference;
    }
    scheduler_config_fini(&fresh);
    return key ? -1 : 0;
}

void scheduler_config_fini(struct scheduler_config *config)
{
    free(config->name);
    free(config->postgres);
    free(config->leader_file);
    free(config->sharing_reference);
    free(config->redis_address);
    free(config->redis_user);
    free(config->redis_password);
    free(config->redis_ca);
    free(config->redis_cert);
    free(config->redis_key);
    json_decref(config->links);
    json_decref(config->document);
    planners_fini(&config->planners);
    *config = (struct scheduler_config){0};
}
