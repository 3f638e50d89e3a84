/* Asks the planner whether a run should stay on its devices or move. */
#include "scheduler/pass/job_class.h"

#include <string.h>

/* Stores the speeds that the run has measured on its devices; later plans of this shape use them. If the run
 * moves away from slow devices, they are measured again when they are free. Runs that divide layers store
 * none: what their parts take depends on the division, the exchange beside them and the routing, too
 * (measured: a tensor run's parts took 1.39 times the planned time on devices on which whole layers took 1.03
 * times). */
static void keep_speeds(struct scheduler_pass *pass, const struct store_sched_run *run,
                        const struct job_class *class, const char *kind, const json_t *decision)
{
    const bool whole_layers = !kind || (strcmp(kind, "tensor") != 0 && strcmp(kind, "expert") != 0);
    const char *verdict = json_string_value(json_object_get(decision, "verdict"));
    const json_t *speeds = json_object_get(decision, "speeds");
    const double old_step_s = json_number_value(json_object_get(decision, "old_step_s"));
    const double corrected = json_number_value(json_object_get(decision, "old_corrected"));
    const double step_s = corrected > 0 ? old_step_s / corrected : old_step_s;
    bool slow = false;
    const char *device;
    json_t *speed;
    json_object_foreach ((json_t *)speeds, device, speed) {
        slow = slow || json_number_value(speed) < 1;
        if (whole_layers)
            pass_add(pass, pass->speeds,
                     json_pack("{s:s, s:s, s:O, s:I, s:o}", "device", device, "key", class->key, "speed",
                               speed, "run", (json_int_t)run->id, "step_s",
                               step_s > 0 ? json_real(step_s) : json_null()));
    }
    if (slow && verdict && strcmp(verdict, "move") == 0)
        pass_want_measures(pass, class);
}

int pass_weigh_move(struct scheduler_pass *pass, const struct store_sched_run *run,
                    const struct store_sched_measure *asked, const struct placer_move *move,
                    struct placer_answer *answer, struct err *err)
{
    struct job_class class;
    if (!pass->free_found)
        pass_find_free(pass);
    if (job_class_init(pass, asked->spec, asked->inputs, NULL, &class) < 0)
        return err_set(err, ERR_NOMEM, "no memory for planning");
    const bool others = pass_somebody_waits(pass); /* free devices are kept for waiting jobs */
    for (size_t i = 0; i < pass->view->device_count; i++) {
        bool own = false;
        for (uint32_t k = 0; k < run->rank_count && !own; k++)
            own = strcmp(run->ranks[k].device, pass->view->devices[i].name) == 0;
        class.usable[i] = own || (class.usable[i] && !others);
    }
    const char *kind = json_string_value(json_object_get(move->plan, "placement"));
    /* The run fell back to another kind of placement, so it may move to any kind. */
    if (job_class_forces_kind(&class) && kind && strcmp(kind, job_class_word(&class, "kind")) != 0 &&
        job_class_any_kind(pass, &class) < 0) {
        job_class_fini(&class);
        return err_set(err, ERR_NOMEM, "no memory for planning");
    }
    int there = job_class_facts(pass, &class, err);
    there = there == 1 ? job_class_plan(pass, &class, class.usable, true, move, answer, err) : there;
    if (there == 1)
        keep_speeds(pass, run, &class, kind, answer->answer);
    job_class_fini(&class);
    return there;
}
