/* Records what simulations read later (store/records.h). */
#include "common/digest.h"
#include "scheduler/pass/pass.h"

void pass_say_sharing(struct scheduler_pass *pass)
{
    const struct scheduler_config *config = pass->scheduler->config;
    struct err ignored; /* only memory can be short */
    if (!pass->scheduler->sharing_said)
        pass_add(pass, pass->sharing,
                 json_pack("{s:o}", "document", doc_write(&policy_settings_doc, &config->sharing, &ignored)));
}

static json_t *device_names(const struct scheduler_pass *pass, const struct device_set *devices)
{
    json_t *names = json_array();
    for (size_t d = device_set_next(devices, 0); d < pass->view->device_count;
         d = device_set_next(devices, d + 1))
        json_array_append_new(names, json_string(pass->view->devices[d].name));
    return names;
}

static json_t *pass_record_hex_of(const uint8_t class[DIGEST_SIZE])
{
    char hex[DIGEST_HEX_SIZE];
    digest_hex(class, DIGEST_SIZE, hex);
    return json_string(hex);
}

void pass_record_wait(struct scheduler_pass *pass, const struct store_sched_job *job,
                      const uint8_t class[DIGEST_SIZE], json_t *speeds,
                      const struct pass_prediction *predicted)
{
    json_t *row = json_pack("{s:I, s:o, s:o, s:I, s:I}", "job", (json_int_t)job->id, "class",
                            pass_record_hex_of(class), "speeds", speeds, "starts_us",
                            (json_int_t)predicted->starts_us, "place", (json_int_t)predicted->place);
    if (row && predicted->to_us > 0) {
        json_object_set_new(row, "from_us", json_integer(predicted->from_us));
        json_object_set_new(row, "to_us", json_integer(predicted->to_us));
    }
    pass_add(pass, pass->arrivals, row);
}

void pass_take_starts(struct scheduler_pass *pass)
{
    struct scheduler *scheduler = pass->scheduler;
    size_t i;
    json_t *row;
    json_array_foreach (json_object_get(pass->view->asked, "starts"), i, row) {
        const json_int_t place = json_integer_value(json_array_get(row, 2));
        start_history_add(&scheduler->starts,
                          &(struct start_sample){json_number_value(json_array_get(row, 0)),
                                                 json_number_value(json_array_get(row, 1)),
                                                 place > 0 ? (uint32_t)place : 1});
        scheduler->started_us = json_integer_value(json_array_get(row, 3));
    }
}

struct pass_prediction pass_predict(const struct scheduler_pass *pass, uint32_t place, int64_t starts_us)
{
    const int64_t now_us = pass->view->now_us;
    struct pass_prediction predicted = {.place = place, .starts_us = starts_us};
    double from_s, to_s;
    if (starts_us > 0 &&
        start_range(&pass->scheduler->starts, 1e-6 * (double)(starts_us - now_us), place, &from_s, &to_s)) {
        predicted.from_us = now_us + (int64_t)(1e6 * from_s);
        predicted.to_us = now_us + (int64_t)(1e6 * to_s);
    }
    return predicted;
}

void pass_record_start(struct scheduler_pass *pass, const struct store_sched_job *job,
                       const uint8_t class[DIGEST_SIZE], json_t *speeds, const struct policy_plan *plan)
{
    pass_add(pass, pass->arrivals,
             json_pack("{s:I, s:o, s:o, s:o, s:f}", "job", (json_int_t)job->id, "class",
                       pass_record_hex_of(class), "speeds", speeds, "devices",
                       device_names(pass, &plan->devices), "step_s", plan->step_s));
    pass_record_answer(pass, class, &plan->devices, plan);
}

void pass_record_answer(struct scheduler_pass *pass, const uint8_t class[DIGEST_SIZE],
                        const struct device_set *devices, const struct policy_plan *plan)
{
    if (!device_set_is_empty(devices))
        pass_add(pass, pass->forecasts,
                 json_pack("{s:o, s:o, s:o}", "class", pass_record_hex_of(class), "devices",
                           device_names(pass, devices), "step_s",
                           plan ? json_real(plan->step_s) : json_null()));
}
