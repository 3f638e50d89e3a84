/* The scheduler's configuration file, in YAML:
 *
 *   name: scheduler-1
 *   postgres: "host=/run/motley/pg dbname=motley"
 *   redis: {address: "unix:/run/motley/redis.sock", user: scheduler, password: …,
 *           tls: {ca: FILE, cert: FILE, key: FILE}}
 *   links: [{between: [left, right], rate: 1Gbit/s, latency: 1ms}]
 *   limits: {…}
 *   sharing: {…}
 *   planner: {…}
 *   planners: {NAME: {…}}
 *
 * `links` are emulated links. `limits` may hold any field of struct scheduler_limits by its name. `sharing`
 * sets the policies (scheduler/policy/policy.h): share, limits, width, wait, reserve: true or false, whether
 * each applies; half_life, move: times; width_least, scavenger_charge: numbers; reference: the device whose
 * speed is 1 in the ledger (else the fastest one that is measured). common/planners.h describes `planner` and
 * `planners`.
 */
#ifndef MOTLEY_SCHEDULER_LEADER_CONFIG_H
#define MOTLEY_SCHEDULER_LEADER_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "common/doc.h"
#include "common/err.h"
#include "common/planners.h"
#include "scheduler/policy/policy.h"

/* The longest pause between two tries of a measurement is limits.remeasure_ms times two to this power. */
enum { REMEASURE_DOUBLINGS = 4 };

/* Described in config.c, with their defaults and limits. */
struct scheduler_limits {
    uint32_t unreachable_ms, lost_ms, missing_ms, start_least_ms, start_ms, stop_ms, checkpoint_stop_ms,
        kill_ms, retry_ms_min, retry_ms_max, redeliver_ms, profile_start_ms, profile_ms, profile_grace_ms,
        links_ms, measure_tries, queue_max, queue_check_ms, batch_max, event_days, history_days, dataset_days,
        ledger_days, lease_idle_ms, usage_days, rank_steps, prune_rows, prune_ms, leader_silent_ms,
        leader_poll_ms, look_ms, aside_ms, remeasure_ms, wait_steps, wait_ms_min, wait_ms_max, save_wait_ms,
        start_wait_ms;
    double store_bytes_per_s;
};

struct scheduler_config {
    char *name, *postgres;
    char *redis_address, *redis_user, *redis_password; /* user and password may be NULL */
    char *redis_ca, *redis_cert, *redis_key;           /* NULL: the connection is not encrypted */
    /* holds "EPOCH PID" while this scheduler leads (leader_note.h); NULL: no file is written */
    char *leader_file;
    /* emulated links, one entry for each direction: [{"from","to","bytes_per_s","latency_s","emulated":
     * true}] */
    json_t *links;
    struct planners planners; /* external planners, asked beside the built-in one */
    struct scheduler_limits limits;
    struct policy_settings sharing;
    char *sharing_reference; /* name of the reference device (`sharing.reference`), or NULL */
    json_t *document;        /* the whole file as it was read */
};

/* The file's description. */
extern const struct doc scheduler_config_doc;

/* Reads and checks the file. An ERR_INVALID names the path of the wrong key. On failure nothing is left to
 * release. */
int scheduler_config_load(const char *path, struct scheduler_config *config, struct err *err);
/* Checks a document that was already read from the file, in the same way. */
int scheduler_config_parse(const json_t *document, struct scheduler_config *config, struct err *err);
/* Reads the file again and takes over what can change while the scheduler runs: `sharing`, and `limits`
 * except the fields that are used only at the start. ERR_CONFLICT names the first other key whose value has
 * changed, which needs a restart. On failure nothing is changed. */
int scheduler_config_reload(const char *path, struct scheduler_config *config, struct err *err);
void scheduler_config_fini(struct scheduler_config *config);

#endif
