/* Leases: devices that people hold for a time; and nodes that are there for a time. */
#include "scheduler/pass/pass.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/policy/device_set.h"
#include "scheduler/policy/policy.h"

/* Processes outside Motley that use less than this many cores of a CPU's machine are those that every machine
 * runs. */
#define CORES_IDLE 0.25

/* Whether the device's agent reports that no process outside Motley holds memory of the card, or computes on
 * the CPU's machine. */
static bool is_idle(const struct scheduler_pass *pass, const char *name)
{
    const struct store_sched_device *device = pass_device(pass, name);
    const json_t *health = device ? device->health : NULL;
    const json_t *bytes = json_object_get(health, "others_bytes"),
                 *cores = json_object_get(health, "others_cores");
    return (json_is_integer(bytes) && json_integer_value(bytes) == 0) ||
           (json_is_number(cores) && json_number_value(cores) < CORES_IDLE);
}

/* Whether the lease's device has been idle for limits.lease_idle_ms, so that the lease ends. */
static bool idles(struct scheduler_pass *pass, const struct store_sched_lease *lease)
{
    const int64_t now_us = pass->view->now_us,
                  most_us = (int64_t)pass->scheduler->config->limits.lease_idle_ms * 1000;
    char id[24];
    snprintf(id, sizeof(id), "%lld", (long long)lease->id);
    if (lease->maintenance || lease->begins_us > now_us || !is_idle(pass, lease->device)) {
        json_object_del(pass->scheduler->idle, id);
        return false;
    }
    int64_t since_us = json_integer_value(json_object_get(pass->scheduler->idle, id));
    if (since_us == 0) {
        since_us = now_us;
        json_object_set_new(pass->scheduler->idle, id, json_integer(since_us));
    }
    pass_check_at(pass, since_us + most_us);
    return now_us >= since_us + most_us;
}

bool pass_runs_something(const struct scheduler_pass *pass, const char *device)
{
    for (size_t i = 0; i < pass->view->run_count; i++) {
        const struct store_sched_run *run = &pass->view->runs[i];
        for (uint32_t k = 0; k < run->rank_count; k++) {
            if (strcmp(run->ranks[k].device, device) == 0 &&
                !state_is_final(&assignment_machine, (int)run->ranks[k].state)) {
                return true;
            }
        }
    }
    return false;
}

void pass_leases(struct scheduler_pass *pass)
{
    const int64_t now_us = pass->view->now_us;
    for (size_t i = 0; i < pass->view->lease_count; i++) {
        const struct store_sched_lease *lease = &pass->view->leases[i];
        const bool over = lease->ends_us <= now_us;
        /* A lease is charged once the job that had the device has left it. */
        const bool begins =
            !lease->opened && lease->begins_us <= now_us && !pass_runs_something(pass, lease->device);
        const bool idle = !over && idles(pass, lease);
        if (over || begins || idle)
            pass_add(pass, pass->leases, json_pack("{s:I, s:b}", "id", (json_int_t)lease->id, "idle", idle));
        if (!over)
            pass_check_at(pass, lease->begins_us > now_us ? lease->begins_us : lease->ends_us);
    }
}

const struct store_sched_lease *pass_lease(const struct scheduler_pass *pass, const char *device)
{
    for (size_t i = 0; i < pass->view->lease_count; i++) {
        const struct store_sched_lease *lease = &pass->view->leases[i];
        if (lease->begins_us <= pass->view->now_us && lease->ends_us > pass->view->now_us &&
            strcmp(lease->device, device) == 0)
            return lease;
    }
    return NULL;
}

bool node_is_leaving(const struct scheduler_pass *pass, const struct store_sched_node *node)
{
    return node->leaves_us <= pass->view->now_us;
}

/* The devices of a node that will leave. Ids of leases begin with 1. */
static void add_leaving(const struct store_view *view, const struct store_sched_node *node,
                        struct policy_interval *interval)
{
    *interval =
        (struct policy_interval){.id = 0, .begins_us = node->leaves_us, .ends_us = INT64_MAX, .leaves = true};
    for (size_t d = 0; d < view->device_count && d < POLICY_DEVICES_MAX; d++)
        if (strcmp(view->devices[d].node, node->name) == 0)
            device_set_add(&interval->devices, d);
}

struct policy_interval *pass_intervals(const struct scheduler_pass *pass, size_t *count)
{
    const struct store_view *view = pass->view;
    struct policy_interval *intervals = calloc(view->lease_count + view->node_count + 1, sizeof(*intervals));
    *count = 0;
    for (size_t i = 0; intervals && i < view->node_count; i++)
        if (view->nodes[i].leaves_us != INT64_MAX && !node_is_leaving(pass, &view->nodes[i]))
            add_leaving(view, &view->nodes[i], &intervals[(*count)++]);
    for (size_t i = 0; intervals && i < view->lease_count; i++) {
        const struct store_sched_lease *lease = &view->leases[i];
        struct policy_interval *interval = &intervals[*count];
        if (lease->ends_us <= view->now_us)
            continue;
        *interval = (struct policy_interval){
            .id = lease->id, .begins_us = lease->begins_us, .ends_us = lease->ends_us};
        for (size_t d = 0; d < view->device_count && d < POLICY_DEVICES_MAX; d++)
            if (strcmp(view->devices[d].name, lease->device) == 0)
                device_set_add(&interval->devices, d);
        ++*count;
    }
    return intervals;
}
