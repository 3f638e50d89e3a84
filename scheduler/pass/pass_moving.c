/* Remembers to which devices jobs move, from the decision to move on until they are there. Each entry has an
 * end: a new leader knows nothing of them, and the move is then a start like any other. */
#include "scheduler/pass/pass.h"

#include <stdio.h>
#include <string.h>

/* Nobody takes the devices to which a job moves while its run ends (STOP_US at most), and then until the plan
 * with which it goes on is found (POLICY_MOVE_PLAN_US at most). */
#define STOP_US 600000000

void pass_note_move(struct scheduler_pass *pass, int64_t job, const json_t *decision)
{
    json_t *all = pass->scheduler->moving, *noted;
    json_t *devices = json_object_get(json_object_get(decision, "new"), "devices");
    char key[24];
    const char *name;
    void *next;
    json_object_foreach_safe (all, next, name, noted) {
        if (json_integer_value(json_object_get(noted, "until_us")) < pass->view->now_us)
            json_object_del(all, name);
    }
    snprintf(key, sizeof(key), "%lld", (long long)job);
    if (json_is_array(devices))
        json_object_set_new(all, key,
                            json_pack("{s:I, s:O}", "until_us", (json_int_t)(pass->view->now_us + STOP_US),
                                      "devices", devices));
}

void pass_moves_on(struct scheduler_pass *pass, int64_t job)
{
    char key[24];
    snprintf(key, sizeof(key), "%lld", (long long)job);
    json_t *move = json_object_get(pass->scheduler->moving, key);
    if (move)
        json_object_set_new(move, "until_us", json_integer(pass->view->now_us + POLICY_MOVE_PLAN_US));
}

bool pass_moves_to(const struct scheduler_pass *pass, int64_t job, struct device_set *to)
{
    char key[24];
    size_t k;
    json_t *name;
    snprintf(key, sizeof(key), "%lld", (long long)job);
    const json_t *move = json_object_get(pass->scheduler->moving, key);
    if (!move || json_integer_value(json_object_get(move, "until_us")) < pass->view->now_us)
        return false;
    json_array_foreach (json_object_get(move, "devices"), k, name)
        for (size_t d = 0; d < pass->view->device_count && d < POLICY_DEVICES_MAX; d++)
            if (strcmp(pass->view->devices[d].name, json_string_value(name)) == 0)
                device_set_add(to, d);
    return true;
}
