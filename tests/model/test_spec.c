/* Job specifications have defaults, survive a round trip, and give errors that name their path. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/file.h"
#include "common/json.h"
#include "common/rand.h"
#include "common/yaml.h"
#include "model/shape/config.h"
#include "model/job/spec.h"
#include "model/job/spec_array.h"

static const char smallest[] = "{model: m, data: {train: t.jsonl}}";

static json_t *document(const char *text)
{
    struct err err = {0};
    json_t *value = yaml_parse(text, strlen(text), &err);
    if (!value)
        fail_msg("%s: %s", text, err.text);
    return value;
}

static void parse_good(const char *text, struct job_spec *spec)
{
    struct err err = {0};
    json_t *value = document(text);
    if (spec_parse(value, spec, &err) < 0)
        fail_msg("%s: %s", text, err.text);
    json_decref(value);
}

static void every_default_is_the_one_of_interfaces_md(void **state)
{
    (void)state;
    struct job_spec spec;
    parse_good(smallest, &spec);
    assert_string_equal("job", spec.name);
    assert_int_equal(SPEC_METHOD_LORA, spec.method.kind);
    assert_int_equal(16, spec.method.rank);
    assert_true(spec.method.alpha == 32 && spec.method.dropout == 0.05);
    assert_int_equal(4, spec.method.lora.targets.names.count);
    assert_string_equal("q_proj", spec.method.lora.targets.names.names[0]);
    assert_string_equal("o_proj", spec.method.lora.targets.names.names[3]);
    assert_int_equal(SPEC_BASE_FP32, spec.method.base);
    assert_null(spec.method.start_from);
    assert_null(spec.data.eval);
    assert_int_equal(SPEC_FORMAT_AUTO, spec.data.format);
    assert_int_equal(512, spec.data.sequence_tokens);
    assert_true(spec.data.shuffle);
    assert_int_equal(SPEC_LEARN_ANSWER, spec.data.learn);
    assert_int_equal(16, spec.train.batch_rows);
    assert_int_equal(100, spec.train.steps);
    assert_int_equal(0, spec.train.epochs);
    assert_true(spec.train.learning_rate == 2e-4 && spec.train.final_fraction == 0.1);
    assert_int_equal(SPEC_SCHEDULE_COSINE, spec.train.schedule);
    assert_int_equal(10, spec.train.warmup_steps);
    assert_true(spec.train.weight_decay == 0 && spec.train.betas[0] == 0.9 && spec.train.betas[1] == 0.95);
    assert_true(spec.train.eps == 1e-8 && spec.train.clip_norm == 1.0);
    assert_int_equal(1, spec.train.seed);
    assert_int_equal(SPEC_COMPUTE_AUTO, spec.train.compute);
    assert_int_equal(SPEC_RECOMPUTE_AUTO, spec.train.recompute);
    assert_true(spec.train.router_aux == 0 && spec.train.label_smoothing == 0 &&
                spec.train.neftune_alpha == 0);
    assert_int_equal(SPEC_DECAY_ALL, spec.train.decay);
    assert_true(spec.method.double_quant && !spec.method.rslora && spec.method.modules_to_save.count == 0);
    assert_int_equal(SPEC_OPTIMIZER_ADAMW, spec.method.optimizer);
    assert_int_equal(SPEC_ORDER_AUTO, spec.placement.order);
    assert_int_equal(SPEC_BOUNDARY_AUTO, spec.placement.boundary);
    assert_int_equal(SPEC_MOMENTS_DEVICE, spec.placement.moments);
    assert_int_equal(SPEC_FALLBACK_WAIT, spec.placement.fallback);
    assert_int_equal(SPEC_MOVE_AUTO, spec.placement.move);
    assert_int_equal(SPEC_RESULT_ADAPTER, spec.result.kind);
    assert_int_equal(SPEC_DTYPE_BASE, spec.result.dtype);
    assert_int_equal(SPEC_PLACEMENT_AUTO, spec.placement.kind);
    assert_false(spec.placement.devices.given);
    assert_int_equal(0, spec.placement.micro_batch_rows);
    assert_int_equal(0, spec.placement.stages);
    assert_int_equal(50, spec.checkpoint.every_steps);
    assert_int_equal(2, spec.checkpoint.keep);
    assert_false(spec.eval.on || spec.limits.on || spec.hold);
    assert_null(spec.sample.prompt);
    spec_fini(&spec);
}

static void a_specification_given_back_can_be_posted_again(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{model: m, data: {train: t.jsonl}}",
        "{model: m, data: {train: t}, method: {kind: full, base: bf16}, train: {epochs: 3}, hold: true}",
        "{model: m, data: {train: t}, train: {epochs: 1, steps: 6}}",
        "{name: x, model: m, data: {train: t, eval: e, format: chat, shuffle: false, learn: all, "
        "chat_template: {user: "
        "'{content}', assistant: '{content}'}}, eval: {every_steps: 7}, sample: {prompt: 'a\nb', tokens: 5}, "
        "limits: "
        "{time: 2h, retries: 3}}",
        "{model: m, priority: -4, data: {train: t}, train: {recompute: true, betas: [0.8, 0.99], steps: 7}, "
        "placement: "
        "{kind: pipeline, devices: [a/cpu0, b/cpu0], exclude: [c/cpu0], micro_batch_rows: 4, stages: 2, "
        "count: {least: 2, most: 3}, moments: host, fallback: any, move: never, plan: {ranks: []}}}",
        "{model: m, data: {train: t}, method: {targets: [gate_proj, q_proj], start_from: a/b}, train: "
        "{recompute: "
        "false}, eval: null, limits: {}}",
        "{model: m, data: {train: t}, method: {rank: 8, rank_pattern: {q_proj: 4, o_proj: 8}, alpha_pattern: "
        "{v_proj: 1.5}, rslora: true, modules_to_save: [lm_head], base: nf4, double_quant: false, optimizer: "
        "adamw8bit, use_dora: false, bias: none}, train: {compute: fp16, schedule: polynomial, power: 2, "
        "decay: "
        "matrices, label_smoothing: 0.1, neftune_alpha: 5, router_aux: 0.02}, placement: {schedule: split, "
        "boundary: bf16}, "
        "result: {kind: merged, dtype: bf16}}",
        "{model: m, data: {train: t}, account: vision, service: scavenger, begin: "
        "'2031-02-03T04:05:06.5+01:00', after: [3, 9007199254740993], after_any: [3]}",
        "{model: m, data: {train: t}, array: {method.rank: [8, 4], steps: [5, 6, 7]}, at_most: 2, hold: "
        "true}",
        "{model: m, data: {train: t}, after: [], method: {kind: full, base: fp16}, train: {schedule: "
        "warmup_stable_decay, "
        "decay_steps: 9, cycles: 3, router_aux: true}, result: {dtype: fp16}}",
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct err err = {0};
        struct job_spec spec;
        struct job_spec again;
        parse_good(texts[i], &spec);
        json_t *first = spec_to_json(&spec, &err);
        assert_non_null(first);
        assert_int_equal(0, spec_parse(first, &again, &err));
        json_t *second = spec_to_json(&again, &err);
        assert_true(json_equal(first, second));
        json_decref(first);
        json_decref(second);
        spec_fini(&spec);
        spec_fini(&again);
    }
}

static void a_time_to_begin_at_is_read_as_rfc_3339(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t us;
    } times[] = {
        {"1970-01-01T00:00:00Z", 0},
        {"2026-01-02T03:04:05.678901Z", 1767323045678901},
        {"2026-01-02T04:34:05.678901999+01:30", 1767323045678901},
        {"2026-01-01T22:04:05.6-05:00", 1767323045600000},
    };
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        int64_t us = -1;
        assert_int_equal(clock_rfc3339_parse(times[i].text, &us), 0);
        assert_int_equal(us, times[i].us);
    }
}

static const struct {
    const char *text, *path;
} wrong[] = {
    {"[]", "the specification"},
    {"{data: {train: t}}", "model"},
    {"{model: m}", "data"},
    {"{model: m, data: {}}", "data.train"},
    {"{model: 3, data: {train: t}}", "model"},
    {"{model: m, data: {train: t}, modle: 1}", "modle"},
    {"{model: m, data: {train: t}, train: {batch_row: 3}}", "train.batch_row"},
    {"{model: m, data: {train: t}, train: {batch_rows: 0}}", "train.batch_rows"},
    {"{model: m, data: {train: t}, train: {batch_rows: 1.5}}", "train.batch_rows"},
    {"{model: m, data: {train: t}, train: {batch_rows: '3'}}", "train.batch_rows"},
    {"{model: m, data: {train: t}, train: {batch_rows: 65537}}", "train.batch_rows"},
    {"{model: m, data: {train: t}, train: {betas: [0.9]}}", "train.betas"},
    {"{model: m, data: {train: t}, train: {betas: [0.9, 1]}}", "train.betas"},
    {"{model: m, data: {train: t}, train: {recompute: sometimes}}", "train.recompute"},
    {"{model: m, data: {train: t}, train: {seed: -1}}", "train.seed"},
    {"{model: m, data: {train: t}, train: {learning_rate: -1}}", "train.learning_rate"},
    {"{model: m, data: {train: t}, train: 3}", "train"},
    {"{model: m, data: {train: t}, method: {kind: dora}}", "method.kind"},
    {"{model: m, data: {train: t}, method: {kind: full, base: nf4}}", "method.base"},
    {"{model: m, data: {train: t}, method: {kind: full, start_from: x}}", "method.start_from"},
    {"{model: m, data: {train: t}, method: {targets: []}}", "method.targets"},
    {"{model: m, data: {train: t}, method: {targets: [q_proj, q_proj]}}", "method.targets"},
    {"{model: m, data: {train: t}, method: {dropout: 1}}", "method.dropout"},
    {"{model: m, data: {train: t}, method: {kind: full, base: packed}}", "method.base"},
    {"{model: m, data: {train: t}, method: {kind: full, modules_to_save: [lm_head]}}",
     "method.modules_to_save"},
    {"{model: m, data: {train: t}, method: {modules_to_save: [norm]}}", "method.modules_to_save"},
    {"{model: m, data: {train: t}, method: {rank_pattern: {'layers.(0.*q_proj': 4}}}",
     "method.rank_pattern: \"layers.(0.*q_proj\" is no regular expression"},
    {"{model: m, data: {train: t}, method: {rank_pattern: {q_proj: 1.5}}}", "method.rank_pattern: q_proj"},
    {"{model: m, data: {train: t}, method: {alpha_pattern: {q_proj: 0}}}", "method.alpha_pattern: q_proj"},
    {"{model: m, data: {train: t}, method: {use_dora: true}}", "method.use_dora: DoRA"},
    {"{model: m, data: {train: t}, method: {bias: all}}", "method.bias"},
    {"{model: m, data: {train: t}, method: {loftq_config: {bits: 4}}}", "method.loftq_config: LoftQ"},
    {"{model: m, data: {train: t}, method: {init_lora_weights: pissa}}", "method.init_lora_weights"},
    {"{model: m, data: {train: t}, method: {optimizer: lion}}", "method.optimizer"},
    {"{model: m, data: {train: t}, train: {schedule: greedy}}", "train.schedule"},
    {"{model: m, data: {train: t}, train: {schedule: warmup_stable_decay}}", "train.decay_steps"},
    {"{model: m, data: {train: t}, train: {label_smoothing: 1}}", "train.label_smoothing"},
    {"{model: m, data: {train: t}, train: {router_aux: -1}}", "train.router_aux"},
    {"{model: m, data: {train: t}, train: {router_aux: model}}", "train.router_aux"},
    {"{model: m, data: {train: t}, train: {decay: norms}}", "train.decay"},
    {"{model: m, data: {train: t}, placement: {schedule: zigzag}}", "placement.schedule"},
    {"{model: m, data: {train: t}, placement: {boundary: fp8}}", "placement.boundary"},
    {"{model: m, data: {train: t}, placement: {moments: disk}}", "placement.moments"},
    {"{model: m, data: {train: t}, placement: {fallback: single}}", "placement.fallback"},
    {"{model: m, data: {train: t}, placement: {move: always}}", "placement.move"},
    {"{model: m, data: {train: t}, placement: {plan: 3}}", "placement.plan"},
    {"{model: m, data: {train: t}, train: {compute: half}}", "train.compute"},
    {"{model: m, data: {train: t}, result: {kind: onnx}}", "result.kind"},
    {"{model: m, data: {train: t}, result: {dtype: bf16}}", "result.dtype"},
    {"{model: m, data: {train: t}, result: {kind: merged, dtype: int8}}", "result.dtype"},
    {"{model: m, data: {train: t}, method: {kind: full}, result: {kind: gguf}}", "result.kind"},
    {"{model: m, data: {train: t}, method: {modules_to_save: [lm_head]}, result: {kind: gguf}}",
     "result.kind"},
    {"{model: m, data: {train: t, format: csv}}", "data.format"},
    {"{model: m, data: {train: t, sequence_tokens: 1}}", "data.sequence_tokens"},
    {"{model: m, data: {train: t, chat_template: 5}}", "data.chat_template"},
    {"{model: m, data: {train: t}, eval: {every_steps: 5}}", "eval"},
    {"{model: m, data: {train: t}, sample: {tokens: 5}}", "sample.prompt"},
    {"{model: m, data: {train: t}, limits: {time: soon}}", "limits.time"},
    {"{model: m, data: {train: t}, limits: {retries: -1}}", "limits.retries"},
    {"{model: m, data: {train: t}, placement: {kind: fsdp}}", "placement.kind"},
    {"{model: m, data: {train: t}, placement: {devices: [a, a]}}", "placement.devices"},
    {"{model: m, data: {train: t}, placement: {count: {least: 0}}}", "placement.count.least"},
    {"{model: m, data: {train: t}, placement: {count: {least: 3, most: 2}}}", "placement.count.least"},
    {"{model: m, data: {train: t}, placement: {count: {about: 2}}}", "placement.count.about"},
    {"{model: m, data: {train: t}, placement: {micro_batch_rows: 0}}", "placement.micro_batch_rows"},
    {"{model: m, data: {train: t}, placement: {micro_batch_rows: 17}}", "placement.micro_batch_rows"},
    {"{model: m, data: {train: t}, checkpoint: {keep: 0}}", "checkpoint.keep"},
    {"{model: m, name: \"a\\tb\", data: {train: t}}", "name"},
    {"{model: m, data: {train: t}, hold: maybe}", "hold"},
    {"{model: m, data: {train: t}, array: {}}", "array: it must be"},
    {"{model: m, data: {train: t}, array: [1]}", "array: it must be"},
    {"{model: m, data: {train: t}, array: {seed: []}}", "array.seed: "},
    {"{model: m, data: {train: t}, array: {seed: 3}}", "array.seed: "},
    {"{model: m, data: {train: t}, array: {data.train: [a, b]}}", "array: \"data.train\" may not"},
    {"{model: m, data: {train: t}, array: {seed: [1], train.seed: [2]}}",
     "array.train.seed: it is there twice"},
    {"{model: m, data: {train: t}, array: {learning_rate: [1e-4, -1]}}",
     "array.learning_rate[1]: train.learning_rate: "},
    {"{model: m, data: {train: t}, array: {learning_rate: [-1, 1e-4]}}",
     "array.learning_rate[0]: train.learning_rate: "},
    {"{model: m, data: {train: t}, placement: {micro_batch_rows: 8}, array: {batch_rows: [8, 4]}}",
     "array.batch_rows[1]: placement.micro_batch_rows: "},
    {"{model: m, data: {train: t}, method: {start_from: a}, array: {rank: [8, 4]}}",
     "array.rank: method.start_from"},
    {"{model: m, data: {train: t}, train: {batch_rows: 0}, array: {seed: [1, 2]}}", "train.batch_rows: "},
    {"{data: {train: t}, array: {seed: [1, 2]}}", "model: "},
    {"{model: m, data: {train: t}, at_most: 2}", "at_most: it goes with"},
    {"{model: m, data: {train: t}, at_most: 0, array: {seed: [1, 2]}}", "at_most: "},
    {"{model: m, data: {train: t}, after: 3}", "after: "},
    {"{model: m, data: {train: t}, after: [3, 0]}", "after[1]: "},
    {"{model: m, data: {train: t}, after: [3, 4, 3]}", "after[2]: job 3"},
    {"{model: m, data: {train: t}, after_any: [three]}", "after_any[0]: "},
    {"{model: m, data: {train: t}, service: first}", "service"},
    {"{model: m, data: {train: t}, account: ''}", "account"},
    {"{model: m, data: {train: t}, begin: tomorrow}", "begin"},
    {"{model: m, data: {train: t}, begin: '2031-02-03T04:05:06'}", "begin"},
    {"{model: m, data: {train: t}, begin: '2031-02-03T04:05:06+1'}", "begin"},
    {"{model: m, data: {train: t}, begin: '2031-02-03T04:05:06.Z'}", "begin"},
};

/* A million elements are refused before any of them is made. */
static void an_array_has_an_element_for_each_combination_within_its_limit(void **state)
{
    (void)state;
    static const struct {
        double rate;
        uint64_t seed;
        uint32_t epochs;
    } wanted[] = {{1e-4, 1, 1}, {1e-4, 1, 2}, {1e-4, 2, 1}, {1e-4, 2, 2},
                  {3e-4, 1, 1}, {3e-4, 1, 2}, {3e-4, 2, 1}, {3e-4, 2, 2}};
    struct err err = {0};
    struct job_spec spec;
    json_t *given = document(
        "{name: sweep, model: m, data: {train: t}, train: {steps: 9}, after: [3], hold: true, at_most: 3, "
        "array: {learning_rate: [1e-4, 3e-4], train.seed: [1, 2], epochs: [1, 2]}}");
    assert_int_equal(0, spec_parse(given, &spec, &err));
    json_decref(given);
    assert_int_equal(8, spec.array_size);
    assert_int_equal(3, spec.at_most);
    assert_true(spec.hold && spec.after.count == 1 && spec.train.epochs == 1 &&
                spec.train.learning_rate == 1e-4);
    json_t *array = spec_to_json(&spec, &err);
    spec_fini(&spec);
    for (uint32_t i = 0; i < 8; i++) {
        char name[32];
        json_t *element = spec_array_element(array, i, &err);
        assert_non_null(element);
        assert_int_equal(0, spec_parse(element, &spec, &err));
        snprintf(name, sizeof(name), "sweep[%u]", i);
        assert_string_equal(name, spec.name);
        assert_true(spec.train.learning_rate == wanted[i].rate && spec.train.seed == wanted[i].seed &&
                    spec.train.epochs == wanted[i].epochs && spec.train.steps == 0);
        assert_true(!spec.array && !spec.hold && spec.after.count == 0 && spec.at_most == 0);
        spec_fini(&spec);
        json_decref(element);
    }
    assert_null(spec_array_element(array, 8, &err));
    json_decref(array);

    given = document("{model: m, data: {train: t}, array: {}}");
    json_t *seeds = json_array();
    for (int i = 0; i < 1000; i++)
        json_array_append_new(seeds, json_integer(i));
    json_object_set(json_object_get(given, "array"), "seed", seeds);
    assert_int_equal(0, spec_parse(given, &spec, &err));
    assert_int_equal(1000, spec.array_size);
    spec_fini(&spec);
    json_object_set(json_object_get(given, "array"), "warmup_steps", seeds);
    assert_int_equal(-1, spec_parse(given, &spec, &err));
    assert_string_equal("array: it has more than 1000 elements", err.text);
    json_decref(seeds);
    json_decref(given);
}

static void what_is_wrong_is_named_by_its_path(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct err err = {0};
        struct job_spec spec;
        json_t *value = document(wrong[i].text);
        if (spec_parse(value, &spec, &err) == 0)
            fail_msg("accepted: %s", wrong[i].text);
        if (err.code != ERR_INVALID || strncmp(err.text, wrong[i].path, strlen(wrong[i].path)) != 0)
            fail_msg("%s: the error does not begin with %s: %s", wrong[i].text, wrong[i].path, err.text);
        spec_fini(&spec);
        json_decref(value);
    }
}

/* Replaces one random value anywhere by another; parsing never crashes, and an error always has a text. */
static void mutate(json_t *value, struct rand_stream *random)
{
    const char *key;
    json_t *member;
    void *next;
    json_object_foreach_safe (value, next, key, member) {
        if (json_is_object(member) && rand_stream_below(random, 2) == 0) {
            mutate(member, random);
        } else if (rand_stream_below(random, 6) == 0) {
            static const char *const others[] = {"null",     "true",
                                                 "-1",       "1e300",
                                                 "\"\"",     "\"x\"",
                                                 "[]",       "{}",
                                                 "[[1]]",    "9007199254740993",
                                                 "0",        "[\"a\",\"a\"]",
                                                 "{\"a\":1}"};
            const uint32_t choice = rand_stream_below(random, sizeof(others) / sizeof(others[0]));
            json_object_set_new(value, key, json_loads(others[choice], JSON_DECODE_ANY, NULL));
        }
    }
}

static void damaged_specifications_give_errors_and_nothing_worse(void **state)
{
    (void)state;
    struct rand_stream random;
    struct err err = {0};
    struct job_spec spec;
    int refused = 0;
    rand_stream_init(&random, 3, 1);
    parse_good("{model: m, data: {train: t, eval: e}, eval: {}, sample: {prompt: p}, limits: {time: 5}}",
               &spec);
    json_t *good = spec_to_json(&spec, &err);
    spec_fini(&spec);
    for (int round = 0; round < 2000; round++) {
        json_t *copy = json_deep_copy(good);
        mutate(copy, &random);
        err_clear(&err);
        if (spec_parse(copy, &spec, &err) < 0) {
            assert_true(err.code == ERR_INVALID && err.text[0] != '\0');
            refused++;
        }
        spec_fini(&spec);
        json_decref(copy);
    }
    assert_true(refused > 500 && refused < 2000);
    json_decref(good);
}

static void the_learning_rate_is_warm_up_then_the_schedule(void **state)
{
    (void)state;
    struct spec_train_part train = {.learning_rate = 0.005, .warmup_steps = 4, .final_fraction = 0.1};
    const double pi = 3.14159265358979323846;
    for (uint64_t t = 0; t < 20; t++) {
        const double wanted = t < 4 ? 0.005 * (double)(t + 1) / 4
                                    : 0.005 * (0.1 + 0.9 * 0.5 * (1 + cos(pi * (double)(t - 4) / 16)));
        assert_true(fabs(spec_learning_rate(&train, 20, t) - wanted) <= 1e-15);
    }
    /* Step 25 of 20, which a job reaches that was resumed with more steps, has the final rate. */
    assert_true(fabs(spec_learning_rate(&train, 20, 25) - 0.0005) < 1e-15);
    train.schedule = SPEC_SCHEDULE_LINEAR;
    assert_true(fabs(spec_learning_rate(&train, 20, 12) - 0.005 * 0.55) < 1e-15);
    train.schedule = SPEC_SCHEDULE_CONSTANT;
    assert_true(spec_learning_rate(&train, 20, 19) == 0.005);
    train.warmup_steps = 100;
    assert_true(spec_learning_rate(&train, 20, 19) == 0.005 * 20 / 100);
}

static void a_warm_up_of_half_the_steps_or_more_is_doubted(void **state)
{
    (void)state;
    const struct spec_train_part train = {.learning_rate = 2e-4, .warmup_steps = 10};
    const struct spec_train_part none = {.learning_rate = 2e-4};
    char text[SPEC_DOUBT_BYTES];
    assert_true(spec_warmup_doubt(&train, 2, text));
    assert_string_equal(
        "train.warmup_steps is 10 and the job has 2 steps: the learning rate gets no higher than 4e-05, of "
        "train.learning_rate's 0.0002",
        text);
    assert_true(spec_warmup_doubt(&train, 20, text));
    assert_string_equal(
        "train.warmup_steps is 10 and the job has 20 steps: the learning rate reaches train.learning_rate, "
        "0.0002, only in step 10",
        text);
    assert_true(spec_warmup_doubt(&train, 1, text) && spec_warmup_doubt(&train, 19, text));
    assert_false(spec_warmup_doubt(&train, 21, text) || spec_warmup_doubt(&train, 0, text) ||
                 spec_warmup_doubt(&none, 1, text));
}

static void few_steps_of_epochs_are_doubted(void **state)
{
    (void)state;
    const struct spec_train_part one = {.epochs = 1}, three = {.epochs = 3},
                                 steps = {.steps = 3, .epochs = 1};
    char text[SPEC_DOUBT_BYTES];
    assert_true(spec_epochs_doubt(&one, 3, text));
    assert_string_equal(
        "train.epochs is 1, and the rows make 3 steps of it: a model hardly changes in so few. 7 "
        "epochs make 20 or more",
        text);
    assert_true(spec_epochs_doubt(&three, 3, text) && strstr(text, "20 epochs make 20 or more"));
    assert_false(spec_epochs_doubt(&one, 20, text) || spec_epochs_doubt(&one, 0, text) ||
                 spec_epochs_doubt(&steps, 3, text));
}

static void held_out_rows_are_evaluated_without_eval(void **state)
{
    (void)state;
    struct job_spec spec;
    struct err err;
    for (int given = 0; given < 2; given++) {
        json_t *document = json_pack(given ? "{s:s, s:{s:s, s:s}}" : "{s:s, s:{s:s}}", "model", "m", "data",
                                     "train", "t.jsonl", "eval", "e.jsonl");
        assert_int_equal(spec_parse_job(document, &spec, &err), 0);
        assert_int_equal(spec.eval.on, given);
        assert_true(!given || spec.eval.every_steps == 50);
        json_t *written = spec_to_json(&spec, &err);
        assert_int_equal(json_is_object(json_object_get(written, "eval")), given);
        json_decref(written);
        json_decref(document);
        spec_fini(&spec);
    }
}

/* Layer 1 of three has no experts. */
#define MIXED "../folders/transformers4/qwen3-moe/config"

/* A null means what it means in the library whose key it is, or it is refused: never another default. */
static void keys_that_are_null_are_off_or_refused_by_name(void **state)
{
    (void)state;
    static const char *const refused[] = {"method.kind",
                                          "method.base",
                                          "method.optimizer",
                                          "method.double_quant",
                                          "method.rank",
                                          "method.alpha",
                                          "method.dropout",
                                          "method.targets",
                                          "data.sequence_tokens",
                                          "data.shuffle",
                                          "data.learn",
                                          "train.batch_rows",
                                          "train.learning_rate",
                                          "train.schedule",
                                          "train.steps",
                                          "train.warmup_steps",
                                          "train.final_fraction",
                                          "train.cycles",
                                          "train.power",
                                          "train.betas",
                                          "train.eps",
                                          "train.seed",
                                          "train.compute",
                                          "train.decay",
                                          "checkpoint.keep",
                                          "checkpoint.every_steps",
                                          "sample.tokens",
                                          "sample.seed",
                                          "limits.retries",
                                          "result.kind"};
    struct job_spec spec;
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        char text[256];
        const char *dot = strchr(refused[i], '.');
        const bool data = strncmp(refused[i], "data", 4) == 0, sample = strncmp(refused[i], "sample", 6) == 0;
        snprintf(text, sizeof(text), "{model: m, data: {train: t%s%s%s}%s%.*s%s%s%s}", data ? ", " : "",
                 data ? dot + 1 : "", data ? ": null" : "", data ? "" : ", ",
                 data ? 0 : (int)(dot - refused[i]), refused[i],
                 data     ? ""
                 : sample ? ": {prompt: p, "
                          : ": {",
                 data ? "" : dot + 1, data ? "" : ": null}");
        struct err err = {0};
        json_t *value = document(text);
        const int status = spec_parse(value, &spec, &err);
        json_decref(value);
        if (status == 0 || !strstr(err.text, refused[i]) || !strstr(err.text, "null"))
            fail_msg("%s: %s", text, err.text);
    }
    parse_good("{model: m, data: {train: t}, train: {clip_norm: null, steps: null, epochs: 2, weight_decay: "
               "null}}",
               &spec);
    assert_true(spec.train.clip_norm == 0 && spec.train.epochs == 2 && spec.train.steps == 0);
    spec_fini(&spec);
}

#define FOLDERS "../folders/transformers5/"
#define GOLDEN "../golden/"
#define MINISTRAL3 FOLDERS "ministral3/config"
#define HELIUM FOLDERS "helium/config"
#define STARCODER2 FOLDERS "starcoder2/config"
#define NEOX FOLDERS "gpt-neox/config"
#define PHI FOLDERS "phi/config"
#define COHERE FOLDERS "cohere/config"
#define GLM4 FOLDERS "glm4/config"

/* What of a method each model has, and what the refusal of the rest says; NULL: nothing is refused. */
static const struct {
    const char *config, *method, *says;
} of_models[] = {
    {"tiny-qwen2", "{targets: [q_proj, qkv_proj]}",
     "method.targets: \"qkv_proj\" matches no layer of this model; those that do: q_proj, k_proj, "
     "v_proj, "
     "o_proj, gate_proj, up_proj, down_proj"},
    {"tiny-qwen2", "{modules_to_save: [lm_head]}", "method.modules_to_save"},
    {"tiny-qwen2", "{modules_to_save: [lm_head, embed_tokens], rank_pattern: {q_proj: 2}}", NULL},
    {"tiny-qwen2", "{targets: [q_proj, k_proj], exclude_modules: [q_proj]}", NULL},
    {"tiny-qwen2", "{targets: [q_proj], exclude_modules: [q_proj]}",
     "method.targets: exclude_modules leaves none"},
    {"tiny-olmoe", "{targets: [gate_proj, down_proj]}", "method.targets: gate_proj and up_proj"},
    {"tiny-olmoe", "{targets: [down_proj], rank_pattern: {down_proj: 2}}", "method.rank_pattern"},
    {"tiny-olmoe", "{targets: [q_proj, down_proj], alpha_pattern: {q_proj: 2}}", NULL},
    {"tiny-olmoe", "{targets: [q_proj], target_parameters: [mlp.experts.gate_up_proj], dropout: 0}", NULL},
    {"tiny-olmoe", "{targets: [], target_parameters: [experts.down_proj], dropout: 0}", NULL},
    {"tiny-olmoe", "{target_parameters: null}", NULL},
    {"tiny-olmoe", "{target_parameters: [experts.down_proj]}",
     "method.dropout: is 0.05; adapters on tensors of all experts (method.target_parameters) have none"},
    {"tiny-olmoe", "{target_parameters: [experts.down_proj], dropout: 0}, result: {kind: gguf}",
     "result.kind: gguf: adapters on tensors of all experts"},
    {"tiny-olmoe", "{target_parameters: [experts.down_proj], dropout: 0}, result: {kind: merged}", NULL},
    {"tiny-olmoe", "{targets: [down_proj], target_parameters: [experts.gate_up_proj], dropout: 0}",
     "method.target_parameters: down_proj of experts is named in targets, too"},
    {"tiny-olmoe", "{targets: [x_proj], target_parameters: [experts.gate_up_proj], dropout: 0}",
     "method.targets: \"x_proj\" matches no layer of this model"},
    {"tiny-olmoe", "{targets: '.*x_proj', target_parameters: [experts.gate_up_proj], dropout: 0}",
     "method.targets: \".*x_proj\" matches no layer of this model"},
    {"tiny-olmoe", "{target_parameters: [mlp.gate.weight], dropout: 0}",
     "method.target_parameters: \"mlp.gate.weight\" is no tensor of all experts of this model, which are "
     "model.layers.0.mlp.experts.gate_up_proj and likewise down_proj"},
    {"tiny-qwen2", "{target_parameters: [experts.down_proj], dropout: 0}",
     "method.target_parameters: this model has no experts"},
    {MIXED, "{targets: [gate_proj, up_proj]}", "method.targets: gate_proj of layer 1, which has no experts"},
    {MIXED, "{targets: [gate_proj, up_proj], exclude_modules: '.*layers\\.1\\.mlp\\..*'}", NULL},
    {MIXED, "{targets: [gate_proj, up_proj]}, result: {kind: merged}", NULL},
    {"tiny-olmoe", "{kind: full}", NULL},
    {"tiny-qwen2", "{base: packed}", "method.base: packed keeps the quantised blocks of a GGUF"},
    {"tiny-qwen2", "{kind: full}, train: {router_aux: true}", "train.router_aux: this model has no experts"},
    {"tiny-qwen2", "{}, train: {router_aux: 0.01}", "train.router_aux"},
    {"tiny-olmoe", "{}, train: {router_aux: true}", NULL},
    {MINISTRAL3, "{}, train: {steps: 1}, sample: {prompt: x}", NULL},
    {MINISTRAL3, "{}, result: {kind: gguf}", NULL},
    {HELIUM, "{}, result: {kind: gguf}", "result.kind: gguf: models of type \"helium\" are not"},
    {HELIUM, "{}, result: {kind: merged}", NULL},
    {STARCODER2, "{}, result: {kind: gguf}", "result.kind: gguf: models of type \"starcoder2\" are not"},
    {STARCODER2, "{targets: [q_proj, c_fc, c_proj]}", NULL},
    {STARCODER2, "{targets: [gate_proj]}",
     "method.targets: \"gate_proj\" matches no layer of this model; those that do: q_proj, k_proj, v_proj, "
     "o_proj, up_proj, down_proj"},
    {PHI, "{targets: [q_proj, dense, fc1, fc2, lm_head, embed_tokens]}", NULL},
    {PHI, "{modules_to_save: [embed_tokens]}",
     "method.modules_to_save: the tables of a model of type \"phi\" are not trained beside adapters"},
    {PHI, "{}, result: {kind: gguf}", "result.kind: gguf: models of type \"phi\" are not"},
    {COHERE, "{}, result: {kind: gguf}", "result.kind: gguf: models of type \"cohere\" are not"},
    {COHERE, "{targets: all-linear, modules_to_save: [embed_tokens]}", NULL},
    {NEOX, "{}", NULL},
    {NEOX, "{targets: all-linear}", NULL},
    {NEOX, "{targets: [query_key_value, dense, dense_h_to_4h, dense_4h_to_h]}", NULL},
    {NEOX, "{targets: [embed_in]}", "method.targets: \"embed_in\" matches no layer of this model"},
    {NEOX, "{targets: [lm_head]}", "method.targets: \"lm_head\" matches no layer of this model"},
    {NEOX, "{modules_to_save: [lm_head]}",
     "method.modules_to_save: the tables of a model of type \"gpt_neox\" are not trained beside adapters"},
    {NEOX, "{}, result: {kind: gguf}", "result.kind: gguf: models of type \"gpt_neox\" are not"},
    {FOLDERS "gpt-oss/config", "{}, result: {kind: gguf}",
     "result.kind: gguf: models of type \"gpt_oss\" are not"},
    {"tiny-qwen2", "{}, placement: {stages: 6}", NULL},
    {"tiny-qwen2", "{}, placement: {stages: 9}",
     "placement.stages: is 9, and this model has 4 layers, which with embedding and head make at most 6"},
    {GOLDEN "llama/config", "{targets: [q_proj, lm_head, embed_tokens]}, result: {kind: merged}", NULL},
    {GOLDEN "llama/config", "{targets: [lm_head]}, result: {kind: gguf}",
     "result.kind: gguf: adapters on embed_tokens and lm_head are not written for llama.cpp; ask for "
     "adapter "
     "or merged"},
    {GOLDEN "llama/config", "{targets: [lm_head], modules_to_save: [embed_tokens]}", NULL},
    {GOLDEN "llama/config", "{targets: [lm_head], modules_to_save: [lm_head]}",
     "method.modules_to_save: lm_head is trained whole, and method.targets puts an adapter on it"},
    {GOLDEN "qwen2/config", "{targets: [embed_tokens]}", NULL},
    {GOLDEN "qwen2/config", "{targets: [embed_tokens]}, result: {kind: merged}",
     "result.kind: merged: this model's head is its embedding"},
    {GOLDEN "qwen2/config", "{targets: [lm_head], modules_to_save: [embed_tokens]}",
     "method.modules_to_save: embed_tokens is trained whole, and method.targets puts an adapter on the "
     "same"},
    {FOLDERS "phi3/config", "{}", NULL},
    {FOLDERS "phi3/config", "{targets: [q_proj, k_proj, v_proj, o_proj]}",
     "method.targets: \"q_proj\" matches no layer of this model; those that do: o_proj, down_proj, "
     "qkv_proj, gate_up_proj"},
    {GLM4, "{targets: [q_proj, gate_up_proj]}", NULL},
    {GLM4, "{targets: [gate_proj]}",
     "method.targets: \"gate_proj\" matches no layer of this model; those that do: q_proj, k_proj, "
     "v_proj, "
     "o_proj, down_proj, gate_up_proj"},
};

static void what_a_model_does_not_have_is_refused_with_what_it_has(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(of_models) / sizeof(of_models[0]); i++) {
        char text[256], path[256];
        struct job_spec spec;
        struct model_config config;
        struct err err = {0};
        snprintf(text, sizeof(text), "{model: m, data: {train: t}, method: %s}", of_models[i].method);
        snprintf(path, sizeof(path), MOTLEY_TEST_DATA "/configs/%s.json", of_models[i].config);
        parse_good(text, &spec);
        assert_int_equal(0, model_config_load(path, &config, &err));
        int status = spec_check_model(&spec, &config, &err);
        if (status != (of_models[i].says ? -1 : 0) ||
            (of_models[i].says && strncmp(err.text, of_models[i].says, strlen(of_models[i].says)) != 0))
            fail_msg("%s: %d %s", text, status, err.text);
        spec_fini(&spec);
    }
}

/* Phi-3's q, k and v are one matrix, and GPT-NeoX's. A specification that names no targets names none when it
 * is written. */
static void every_model_of_the_catalogue_has_the_default_targets(void **state)
{
    (void)state;
    json_t *rows = json_load_file(MOTLEY_TEST_DATA "/configs/published.json", 0, NULL), *row;
    struct job_spec spec;
    struct err err;
    size_t i;
    uint32_t joined = 0;
    parse_good("{model: m, data: {train: t}}", &spec);
    json_t *written = spec_to_json(&spec, &err);
    assert_null(json_object_get(json_object_get(written, "method"), "targets"));
    json_array_foreach (rows, i, row) {
        struct model_config config;
        struct lora_sites sites;
        if (model_config_parse(json_object_get(row, "config"), &config, &err) < 0)
            continue;
        if (spec_lora_sites(&spec.method, &config, &sites, &err) < 0)
            fail_msg("%s: %s", json_string_value(json_object_get(row, "name")), err.text);
        uint32_t targets = lora_sites_targets(&sites);
        assert_true(targets & LORA_O);
        joined += targets == (LORA_QKV | LORA_O);
    }
    assert_int_equal(joined, 6);
    json_decref(written);
    json_decref(rows);
    spec_fini(&spec);
}

/* Ministral 3 multiplies q by 1 for the first original_max_position_embeddings tokens, and by more behind
 * them. */
static void rows_beyond_what_is_computed_of_a_model_are_refused(void **state)
{
    (void)state;
    struct model_config config;
    struct err err;
    assert_int_equal(model_config_load(MOTLEY_TEST_DATA "/configs/" MINISTRAL3 ".json", &config, &err), 0);
    for (uint32_t over = 0; over < 2; over++) {
        char text[128];
        struct job_spec spec;
        snprintf(text, sizeof(text), "{model: m, data: {train: t, sequence_tokens: %u}}", 16384 + over);
        parse_good(text, &spec);
        assert_int_equal(spec_check_model(&spec, &config, &err), over ? -1 : 0);
        if (over && !strstr(err.text, "data.sequence_tokens: rows of 16385 tokens: llama_4_scaling_beta"))
            fail_msg("%s", err.text);
        spec_fini(&spec);
    }
}

/* The expected rates were recorded by tools/golden_schedules.py. */
static void learning_rates_are_those_of_transformers(void **state)
{
    (void)state;
    struct err err = {0};
    struct buf text = {.limit = 1 << 20};
    assert_int_equal(0, file_read_all(MOTLEY_TEST_DATA "/golden/schedules.json", 1 << 20, &text, &err));
    json_t *cases = json_parse_limited(buf_str(&text), text.size, 8, &err), *one, *rate;
    size_t c, t;
    assert_true(json_array_size(cases) == 20);
    json_array_foreach (cases, c, one) {
        struct job_spec spec;
        json_t *whole = json_pack("{s:s, s:{s:s}, s:O}", "model", "m", "data", "train", "t", "train",
                                  json_object_get(one, "spec"));
        assert_int_equal(0, spec_parse(whole, &spec, &err));
        uint64_t steps = (uint64_t)json_integer_value(json_object_get(one, "steps"));
        json_array_foreach (json_object_get(one, "rate"), t, rate) {
            double ours = spec_learning_rate(&spec.train, steps, t), theirs = json_number_value(rate);
            if (fabs(ours - theirs) > 1e-11 * theirs + 1e-18)
                fail_msg("%s of %zu: step %zu: %.15g, not %.15g", spec_schedule_name(spec.train.schedule),
                         (size_t)steps, t, ours, theirs);
        }
        spec_fini(&spec);
        json_decref(whole);
    }
    json_decref(cases);
    buf_fini(&text);
}

static void blob_references_are_told_from_paths(void **state)
{
    (void)state;
    char hex[65];
    static const char good[] = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    assert_true(spec_blob_ref(good, hex));
    assert_string_equal(good + 7, hex);
    assert_false(spec_blob_ref("sha256:0123", NULL));
    assert_false(spec_blob_ref("rows.jsonl", NULL));
    assert_false(
        spec_blob_ref("sha256:0123456789ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef", NULL));
    assert_false(spec_blob_ref(NULL, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_default_is_the_one_of_interfaces_md),
        cmocka_unit_test(a_specification_given_back_can_be_posted_again),
        cmocka_unit_test(a_time_to_begin_at_is_read_as_rfc_3339),
        cmocka_unit_test(an_array_has_an_element_for_each_combination_within_its_limit),
        cmocka_unit_test(what_is_wrong_is_named_by_its_path),
        cmocka_unit_test(damaged_specifications_give_errors_and_nothing_worse),
        cmocka_unit_test(the_learning_rate_is_warm_up_then_the_schedule),
        cmocka_unit_test(a_warm_up_of_half_the_steps_or_more_is_doubted),
        cmocka_unit_test(few_steps_of_epochs_are_doubted),
        cmocka_unit_test(held_out_rows_are_evaluated_without_eval),
        cmocka_unit_test(keys_that_are_null_are_off_or_refused_by_name),
        cmocka_unit_test(what_a_model_does_not_have_is_refused_with_what_it_has),
        cmocka_unit_test(every_model_of_the_catalogue_has_the_default_targets),
        cmocka_unit_test(rows_beyond_what_is_computed_of_a_model_are_refused),
        cmocka_unit_test(learning_rates_are_those_of_transformers),
        cmocka_unit_test(blob_references_are_told_from_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
