/* Leaves out of a specification what no plan depends on, and takes the digest of the rest. */
#include "model/job/plan_class.h"

#include "common/buf.h"
#include "common/json.h"

enum { CLASS_TEXT_MAX = 1 << 26 }; /* bytes of a specification and its inputs as JSON */

json_t *plan_class_spec(const json_t *spec)
{
    static const char *const people[] = {"name",      "priority", "labels",  "account", "service",    "begin",
                                         "hold",      "limits",   "eval",    "result",  "checkpoint", "after",
                                         "after_any", "array",    "at_most", "notify"};
    static const char *const course[] = {"learning_rate",   "schedule",      "warmup_steps", "final_fraction",
                                         "cycles",          "power",         "decay_steps",  "weight_decay",
                                         "decay",           "betas",         "eps",          "clip_norm",
                                         "label_smoothing", "neftune_alpha", "seed"};
    json_t *class = json_copy((json_t *)(uintptr_t)spec);
    json_t *train = json_copy(json_object_get(spec, "train"));
    for (size_t i = 0; i < sizeof(people) / sizeof(people[0]); i++)
        json_object_del(class, people[i]);
    for (size_t i = 0; i < sizeof(course) / sizeof(course[0]); i++)
        json_object_del(train, course[i]);
    if (train && (!class || json_object_set_new(class, "train", train) < 0)) {
        json_decref(class);
        return NULL;
    }
    return class;
}

int plan_class_digest(const json_t *class_spec, const json_t *inputs, uint8_t digest[DIGEST_SIZE],
                      struct err *err)
{
    struct buf text = {.limit = CLASS_TEXT_MAX};
    json_t *rest = json_copy((json_t *)(uintptr_t)inputs);
    json_object_del(rest, "base"); /* a name that the results bear */
    int result = json_print(class_spec, true, &text, err) < 0 || json_print(rest, true, &text, err) < 0
                     ? -1
                     : digest_sha256(text.data, text.size, digest, err);
    json_decref(rest);
    buf_fini(&text);
    return result;
}
