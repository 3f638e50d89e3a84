/* Writes a specification as a document with every value. */
#include "model/job/spec.h"

#include <string.h>

static json_t *names_json(const struct spec_names *names)
{
    json_t *array = json_array();
    for (uint32_t i = 0; array && i < names->count; i++) {
        if (json_array_append_new(array, json_string(names->names[i])) < 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

static json_t *text_or_null(const char *text)
{
    return text ? json_string(text) : json_null();
}

static json_t *auto_or_number(uint32_t value)
{
    return value == 0 ? json_string("auto") : json_integer((json_int_t)value);
}

static json_t *method_json(const struct job_spec *spec)
{
    const struct spec_method_part *m = &spec->method;
    if (m->kind == SPEC_METHOD_FULL) {
        return json_pack("{s:s, s:s, s:s}", "kind", "full", "base", spec_base_name(m->base), "optimizer",
                         spec_optimizer_name(m->optimizer));
    }
    struct err ignored;
    json_t *object = json_pack("{s:s, s:I, s:f, s:f}", "kind", spec_method_name(m->kind), "rank",
                               (json_int_t)m->rank, "alpha", m->alpha, "dropout", m->dropout);
    json_t *rest = json_pack("{s:b, s:o, s:s, s:b, s:s, s:o}", "rslora", m->rslora ? 1 : 0, "modules_to_save",
                             names_json(&m->modules_to_save), "base", spec_base_name(m->base), "double_quant",
                             m->double_quant ? 1 : 0, "optimizer", spec_optimizer_name(m->optimizer),
                             "start_from", text_or_null(m->start_from));
    if (!object || !rest || lora_rules_write(&m->lora, "targets", NULL, object, &ignored) < 0 ||
        json_object_update(object, rest) < 0) {
        json_decref(object);
        object = NULL;
    }
    json_decref(rest);
    return object;
}

static json_t *data_json(const struct job_spec *spec)
{
    const struct spec_data_part *d = &spec->data;
    json_t *object =
        json_pack("{s:s, s:o, s:s, s:I, s:b, s:s}", "train", d->train, "eval", text_or_null(d->eval),
                  "format", spec_format_name(d->format), "sequence_tokens", (json_int_t)d->sequence_tokens,
                  "shuffle", d->shuffle ? 1 : 0, "learn", spec_learn_name(d->learn));
    if (object && d->day)
        json_object_set_new(object, "day", json_string(d->day));
    if (object && d->chat_template &&
        json_object_set_new(object, "chat_template", json_deep_copy(d->chat_template)) < 0) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static json_t *train_json(const struct job_spec *spec)
{
    const struct spec_train_part *t = &spec->train;
    json_t *recompute = t->recompute == SPEC_RECOMPUTE_AUTO
                            ? json_string("auto")
                            : json_boolean(t->recompute == SPEC_RECOMPUTE_YES);
    json_t *router = t->router_aux == SPEC_ROUTER_AUX_MODEL || t->router_aux == 0
                         ? json_boolean(t->router_aux != 0)
                         : json_real(t->router_aux);
    json_t *object = json_pack(
        "{s:I, s:I, s:f, s:s, s:I, s:f, s:I, s:f, s:I, s:f, s:s, s:[f,f], s:f, s:f, s:I, s:s, "
        "s:o, s:f, s:f, s:o}",
        "batch_rows", (json_int_t)t->batch_rows, t->epochs > 0 ? "epochs" : "steps",
        t->epochs > 0 ? (json_int_t)t->epochs : (json_int_t)t->steps, "learning_rate", t->learning_rate,
        "schedule", spec_schedule_name(t->schedule), "warmup_steps", (json_int_t)t->warmup_steps,
        "final_fraction", t->final_fraction, "cycles", (json_int_t)t->cycles, "power", t->power,
        "decay_steps", (json_int_t)t->decay_steps, "weight_decay", t->weight_decay, "decay",
        spec_decay_name(t->decay), "betas", t->beta1, t->beta2, "eps", t->eps, "clip_norm", t->clip_norm,
        "seed", (json_int_t)t->seed, "compute", spec_compute_name(t->compute), "recompute", recompute,
        "label_smoothing", t->label_smoothing, "neftune_alpha", t->neftune_alpha, "router_aux", router);
    if (object && t->epochs > 0 && t->steps > 0) /* a resumed job has so many steps in passes of epochs */
        json_object_set_new(object, "steps", json_integer((json_int_t)t->steps));
    return object;
}

static json_t *placement_json(const struct job_spec *spec)
{
    const struct spec_placement_part *p = &spec->placement;
    json_t *count = p->count_least > 0 || p->count_most > 0 ? json_object() : NULL;
    if (count && p->count_least > 0)
        json_object_set_new(count, "least", json_integer(p->count_least));
    if (count && p->count_most > 0)
        json_object_set_new(count, "most", json_integer(p->count_most));
    return json_pack("{s:s, s:o, s:o, s:o*, s:o, s:o, s:s, s:s, s:s, s:s, s:s, s:s, s:s*, s:O*}", "kind",
                     spec_placement_name(p->kind), "devices",
                     p->devices.given ? names_json(&p->devices) : json_null(), "exclude",
                     names_json(&p->exclude), "count", count, "micro_batch_rows",
                     auto_or_number(p->micro_batch_rows), "stages", auto_or_number(p->stages), "schedule",
                     spec_order_name(p->order), "boundary", spec_boundary_name(p->boundary), "moments",
                     spec_moments_name(p->moments), "objective", spec_objective_name(p->objective),
                     "fallback", spec_fallback_name(p->fallback), "move", spec_move_name(p->move), "planner",
                     p->planner, "plan", p->plan);
}

static json_t *limits_json(const struct job_spec *spec)
{
    return json_pack("{s:o, s:I}", "time",
                     spec->limits.time_s > 0 ? json_integer((json_int_t)spec->limits.time_s) : json_null(),
                     "retries", (json_int_t)spec->limits.retries);
}

/* Adds a list of jobs unless it is empty. */
static int jobs_json(json_t *object, const char *key, const struct spec_jobs *jobs)
{
    json_t *array = jobs->count > 0 ? json_array() : NULL;
    for (uint32_t i = 0; array && i < jobs->count; i++)
        json_array_append_new(array, json_integer(jobs->ids[i]));
    return jobs->count > 0 ? json_object_set_new(object, key, array) : 0;
}

json_t *spec_to_json(const struct job_spec *spec, struct err *err)
{
    json_t *object =
        json_pack("{s:s, s:s, s:I, s:o, s:o, s:o, s:o, s:{s:s, s:o}, s:{s:I, s:I}, s:b}", "name", spec->name,
                  "model", spec->model, "priority", (json_int_t)spec->priority, "method", method_json(spec),
                  "data", data_json(spec), "train", train_json(spec), "placement", placement_json(spec),
                  "result", "kind", spec_result_name(spec->result.kind), "dtype",
                  text_or_null(spec_result_dtype_name(spec->result.dtype)), "checkpoint", "every_steps",
                  (json_int_t)spec->checkpoint.every_steps, "keep", (json_int_t)spec->checkpoint.keep, "hold",
                  spec->hold ? 1 : 0);
    int status = object ? 0 : -1;
    if (status == 0 && spec->account)
        status = json_object_set_new(object, "account", json_string(spec->account));
    if (status == 0 && spec->service != SPEC_SERVICE_NORMAL)
        status = json_object_set_new(object, "service", json_string(spec_service_name(spec->service)));
    if (status == 0 && spec->begin)
        status = json_object_set_new(object, "begin", json_string(spec->begin));
    if (status == 0)
        status = jobs_json(object, "after", &spec->after);
    if (status == 0)
        status = jobs_json(object, "after_any", &spec->after_any);
    if (status == 0 && spec->array)
        status = json_object_set(object, "array", spec->array);
    if (status == 0 && spec->at_most > 0)
        status = json_object_set_new(object, "at_most", json_integer((json_int_t)spec->at_most));
    if (status == 0 && spec->eval.on) {
        status = json_object_set_new(object, "eval",
                                     json_pack("{s:I}", "every_steps", (json_int_t)spec->eval.every_steps));
    }
    if (status == 0 && spec->sample.prompt) {
        status =
            json_object_set_new(object, "sample",
                                json_pack("{s:s, s:I, s:f, s:I}", "prompt", spec->sample.prompt, "tokens",
                                          (json_int_t)spec->sample.tokens, "temperature",
                                          spec->sample.temperature, "seed", (json_int_t)spec->sample.seed));
    }
    if (status == 0 && spec->labels)
        status = json_object_set(object, "labels", spec->labels);
    if (status == 0 && spec->limits.on)
        status = json_object_set_new(object, "limits", limits_json(spec));
    if (status < 0) {
        json_decref(object);
        err_set(err, ERR_NOMEM, "out of memory for a specification");
        return NULL;
    }
    return object;
}
