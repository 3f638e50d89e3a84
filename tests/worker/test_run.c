/* Tests what a run does apart from its steps: evaluations, samples, checkpoints, stops, failures, a lost
 * agent. */
#include "worker/worker_fixture.h"

#include "model/adapters/peft.h"
#include "model/files/safetensors.h"

static const char *text_of(const json_t *event, const char *key)
{
    const char *text = json_string_value(json_object_get(event, key));
    return text ? text : "";
}

static uint64_t number_of(const json_t *event, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(event, key));
}

static void set(json_t *object, const char *part, const char *key, json_t *value)
{
    json_t *inner = json_object_get(object, part);
    if (!inner) {
        inner = json_object();
        json_object_set_new(object, part, inner);
    }
    json_object_set_new(inner, key, value);
}

static void expect_success(const struct outcome *out)
{
    if (json_array_size(out->failures))
        fail_msg("failed: %s", text_of(json_array_get(out->failures, 0), "text"));
}

/* A tiny golden model, its specification (which a test may change before it runs), a plan and the outcome. */
struct scene {
    struct fixture fix;
    json_t *spec;
    struct plan *plan;
    struct outcome out;
};

static void scene_open(struct scene *scene, const char *model, uint32_t stages, uint32_t micro_rows)
{
    memset(scene, 0, sizeof(*scene));
    fix_open(&scene->fix, model);
    scene->spec = fix_spec(&scene->fix);
    scene->plan = fix_plan(&scene->fix, stages, micro_rows);
}

/* Sets many more steps than the test waits for. */
static void scene_prolong(struct scene *scene)
{
    set(scene->spec, "train", "steps", json_integer(FIX_STEPS));
}

static void scene_run(struct scene *scene, fix_hook *hook, void *arg)
{
    fix_run(&scene->fix, scene->plan, scene->spec, NULL, hook, arg, &scene->out);
}

static void scene_close(struct scene *scene)
{
    outcome_fini(&scene->out);
    plan_destroy(scene->plan);
    json_decref(scene->spec);
    fix_close(&scene->fix);
}

static void give_prompt(void *arg, json_t *assign)
{
    (void)arg;
    json_object_set_new(assign, "sample", json_pack("{s:[i,i,i,i,i]}", "ids", 65, 224, 88, 250, 84));
}

static void evaluations_and_samples_surround_the_steps(void **state)
{
    (void)state;
    struct scene scene;
    struct outcome single, split;
    scene_open(&scene, "llama", 1, 2);
    set(scene.spec, "eval", "every_steps", json_integer(8));
    set(scene.spec, "sample", "prompt", json_string("x"));
    set(scene.spec, "sample", "tokens", json_integer(12));
    struct plan *two = fix_plan(&scene.fix, 2, 2);
    fix_run(&scene.fix, scene.plan, scene.spec, give_prompt, NULL, NULL, &single);
    fix_run(&scene.fix, two, scene.spec, give_prompt, NULL, NULL, &split);
    expect_success(&single);
    expect_success(&split);
    static const uint64_t steps[] = {0, 8, 16, 20};
    assert_string_equal(single.warnings, "");
    assert_true(json_is_true(json_object_get(checkpoint_at(&split, 20), "best")));
    assert_int_equal(single.evals, 4);
    assert_int_equal(split.evals, 4);
    for (int e = 0; e < 4; e++) {
        assert_int_equal(single.eval_step[e], steps[e]);
        assert_int_equal(split.eval_step[e], steps[e]);
        assert_true(fabs(single.eval[e] - split.eval[e]) <= 1e-6 * single.eval[e]);
    }
    assert_true(single.eval[3] < single.eval[0]);
    assert_int_equal(json_array_size(single.samples), 2);
    for (size_t s = 0; s < 2; s++) {
        const json_t *a = json_array_get(single.samples, s), *b = json_array_get(split.samples, s);
        assert_int_equal(number_of(a, "step"), s == 0 ? 0 : 20);
        assert_true(json_equal(json_object_get(a, "ids"), json_object_get(b, "ids")));
        assert_true(json_array_size(json_object_get(a, "ids")) <= 12);
    }
    outcome_fini(&single);
    outcome_fini(&split);
    plan_destroy(two);
    scene_close(&scene);
}

/* --- checkpoints --- */

static void resume_from(const struct scene *scene, json_t *blobs, uint32_t stages)
{
    const struct outcome *whole = &scene->out;
    struct outcome rest;
    struct resume resume = {.step = 8, .blobs = blobs};
    struct plan *plan = fix_plan(&scene->fix, stages, 2);
    fix_run(&scene->fix, plan, scene->spec, start_there, NULL, &resume, &rest);
    expect_success(&rest);
    assert_int_equal(rest.first_step, 8);
    assert_int_equal(rest.steps, 12);
    for (uint64_t t = 8; t < 20; t++)
        if (!(fabs(rest.loss[t] - whole->loss[t]) <= 1e-6 * whole->loss[t]))
            fail_msg("%u stages, step %llu: %.9g instead of %.9g", stages, (unsigned long long)t,
                     rest.loss[t], whole->loss[t]);
    outcome_fini(&rest);
    plan_destroy(plan);
}

static void resume_on(const struct scene *scene, uint32_t stages)
{
    resume_from(scene, json_object_get(checkpoint_at(&scene->out, 8), "blobs"), stages);
}

/* A checkpoint with every parameter and both moments, in 32 bits and in 8, resumes from two ranks on one and
 * on three. */
static void a_whole_models_checkpoint_resumes_on_any_split(void **state)
{
    (void)state;
    static const char *const optimizers[] = {"adamw", "adamw8bit"};
    for (int o = 0; o < 2; o++) {
        struct scene scene;
        scene_open(&scene, o == 0 ? "llama" : "mixtral", 2, 2);
        json_object_set_new(scene.spec, "method",
                            json_pack("{s:s, s:s}", "kind", "full", "optimizer", optimizers[o]));
        set(scene.spec, "train", "learning_rate", json_real(1e-3));
        set(scene.spec, "checkpoint", "every_steps", json_integer(8));
        json_object_clear(scene.fix.adapter);
        scene_run(&scene, NULL, NULL);
        expect_success(&scene.out);
        resume_on(&scene, 1);
        resume_on(&scene, 3);
        scene_close(&scene);
    }
}

/* Expects a stored adapter_config.json to name this base. */
static void expect_base(const struct scene *scene, const char *sha256, const char *name, const char *revision)
{
    char path[400];
    struct err err;
    struct buf text = {.limit = 1 << 20};
    snprintf(path, sizeof(path), "%s/%s", scene->fix.store.dir, sha256);
    must(file_read_all(path, text.limit, &text, &err));
    json_t *config = json_parse_limited(buf_str(&text), text.size, 64, &err);
    assert_string_equal(text_of(config, "base_model_name_or_path"), name);
    assert_string_equal(text_of(config, "revision"), revision);
    json_decref(config);
    buf_fini(&text);
}

static void a_checkpoint_resumes_on_any_split(void **state)
{
    (void)state;
    struct scene scene;
    scene_open(&scene, "llama", 2, 2);
    set(scene.spec, "checkpoint", "every_steps", json_integer(8));
    set(scene.fix.model, "base", "name", json_string("acme/tiny"));
    set(scene.fix.model, "base", "revision", json_string("0f3a"));
    scene_run(&scene, NULL, NULL);
    expect_success(&scene.out);
    assert_int_equal(json_array_size(scene.out.checkpoints), 3); /* steps 8, 16 and the last */
    const json_t *blobs = json_object_get(checkpoint_at(&scene.out, 8), "blobs");
    static const char *const files[] = {"adapter_config.json",
                                        "adapter_model.safetensors",
                                        "optimizer-0-0.safetensors",
                                        "optimizer-1-0.safetensors",
                                        "pieces-0-0.jsonl",
                                        "pieces-1-0.jsonl",
                                        "state.json"};
    assert_int_equal(json_object_size(blobs), sizeof(files) / sizeof(*files));
    for (size_t f = 0; f < sizeof(files) / sizeof(*files); f++)
        assert_non_null(json_object_get(blobs, files[f]));
    expect_base(&scene, text_of(json_object_get(blobs, files[0]), "sha256"), "acme/tiny", "0f3a");
    for (uint32_t stages = 1; stages <= 3; stages++)
        resume_on(&scene, stages);
    scene_close(&scene);
}

/* With LoRA ranks, factors and adapted matrices that differ by layer, each tensor has its own shape in the
 * files. */
static void an_adapter_that_differs_by_layer_resumes_on_any_split(void **state)
{
    (void)state;
    struct scene scene;
    scene_open(&scene, "llama", 2, 2);
    set(scene.spec, "checkpoint", "every_steps", json_integer(8));
    set(scene.spec, "method", "exclude_modules", json_pack("[s]", "layers.2.self_attn.k_proj"));
    set(scene.spec, "method", "rank_pattern",
        json_pack("{s:i, s:i}", "model.layers.0.self_attn.q_proj", 4, "layers\\.[13]\\..*v_proj", 24));
    set(scene.spec, "method", "alpha_pattern", json_pack("{s:i}", ".*\\.[01]\\..*", 8));
    json_object_clear(scene.fix.adapter);
    scene_run(&scene, NULL, NULL);
    expect_success(&scene.out);
    resume_on(&scene, 1);
    resume_on(&scene, 3);
    scene_close(&scene);
}

/* Adapters on tensors of all experts: the run begins with peft's file and gives peft's losses, and a
 * checkpoint, whose index has each expert's tensors, resumes. Its adapter is peft's again. */
static void adapters_on_tensors_of_experts_resume_on_any_split(void **state)
{
    (void)state;
    static const char *const files[] = {"adapter_config.json", "adapter_model.safetensors"};
    struct scene scene;
    struct buf bytes[2];
    struct peft *peft;
    struct err err;
    char path[400];
    scene_open(&scene, "gpt_oss-experts", 2, 2);
    set(scene.spec, "checkpoint", "every_steps", json_integer(8));
    scene_run(&scene, NULL, NULL);
    expect_success(&scene.out);
    for (uint64_t t = 0; t < 20; t++)
        assert_true(fabs(scene.out.loss[t] - fix_golden(&scene.fix, "loss", t)) <=
                    2e-5 * fix_golden(&scene.fix, "loss", t));
    const json_t *blobs = json_object_get(checkpoint_at(&scene.out, 8), "blobs");
    assert_non_null(json_object_get(blobs, "adapter_experts.safetensors"));
    for (size_t f = 0; f < 2; f++) {
        snprintf(path, sizeof(path), "%s/%s", scene.fix.store.dir,
                 text_of(json_object_get(blobs, files[f]), "sha256"));
        buf_init(&bytes[f], 1 << 24);
        must(file_read_all(path, 1 << 24, &bytes[f], &err));
    }
    must(peft_open_memory(bytes[0].data, bytes[0].size, bytes[1].data, bytes[1].size, &scene.fix.config,
                          &peft, &err));
    assert_int_equal(lora_sites_targets(peft_get_sites(peft)), LORA_Q | LORA_O | LORA_EXPERTS);
    peft_close(peft);
    buf_fini(&bytes[0]);
    buf_fini(&bytes[1]);
    resume_on(&scene, 1);
    resume_on(&scene, 3);
    scene_close(&scene);
}

/* Reads a file of a checkpoint. */
static void blob_read(const struct scene *scene, const json_t *blobs, const char *name, struct buf *out)
{
    struct err err;
    char path[400];
    snprintf(path, sizeof(path), "%s/%s", scene->fix.store.dir,
             text_of(json_object_get(blobs, name), "sha256"));
    buf_init(out, 1 << 26);
    must(file_read_all(path, out->limit, out, &err));
}

/* Replaces a file of a checkpoint, or adds one. */
static void blob_write(struct scene *scene, json_t *blobs, const char *name, const void *data, size_t size)
{
    struct err err;
    char sha256[65];
    must(blob_server_add(&scene->fix.store, data, size, sha256));
    json_object_set_new(blobs, name, json_pack("{s:s, s:I}", "sha256", sha256, "size", (json_int_t)size));
}

/* The run that resumes this checkpoint ends with ERR_CORRUPT and these words. */
static void expect_corrupt(const struct scene *scene, json_t *blobs, const char *words)
{
    struct outcome out;
    struct resume resume = {.step = 8, .blobs = blobs};
    struct plan *single = fix_plan(&scene->fix, 1, 2);
    fix_run(&scene->fix, single, scene->spec, start_there, NULL, &resume, &out);
    assert_int_equal(out.done, 0);
    assert_int_equal(json_array_size(out.failures), 1);
    const json_t *failed = json_array_get(out.failures, 0);
    assert_string_equal(text_of(failed, "code"), "corrupt");
    if (!strstr(text_of(failed, "text"), words))
        fail_msg("'%s' does not say '%s'", text_of(failed, "text"), words);
    outcome_fini(&out);
    plan_destroy(single);
}

static void a_damaged_checkpoint_is_refused_by_tensor(void **state)
{
    (void)state;
    struct scene scene;
    struct buf bytes;
    scene_open(&scene, "llama", 2, 2);
    set(scene.spec, "checkpoint", "every_steps", json_integer(8));
    scene_run(&scene, NULL, NULL);
    expect_success(&scene.out);
    json_t *whole = json_object_get(checkpoint_at(&scene.out, 8), "blobs"), *blobs = json_copy(whole);
    json_object_del(blobs, "pieces-1-0.jsonl");
    expect_corrupt(&scene, blobs, "no file holds model.layers.2.");
    json_object_update(blobs, whole);
    blob_read(&scene, blobs, "optimizer-1-0.safetensors", &bytes);
    bytes.data[bytes.size - 3] ^= 1;
    blob_write(&scene, blobs, "optimizer-1-0.safetensors", bytes.data, bytes.size);
    buf_fini(&bytes);
    expect_corrupt(&scene, blobs,
                   "model.layers.3.self_attn.o_proj.lora_B.weight.exp_avg_sq in optimizer-1-0.safetensors "
                   "are not those");
    json_decref(blobs);
    scene_close(&scene);
}

/* A store that holds PUTs until a later step was reported. */
struct slow_store {
    struct blob_server *store;
    uint64_t until;
    bool released;
    uint64_t last_step; /* last step reported before the first `checkpoint` */
};

static void release_at(void *arg, struct fix_worker *workers, uint32_t rank, const json_t *event)
{
    struct slow_store *slow = arg;
    (void)workers, (void)rank;
    if (strcmp(text_of(event, "type"), "checkpoint") == 0 && !slow->released)
        fail_msg("a checkpoint is said before it is stored");
    if (strcmp(text_of(event, "type"), "step") != 0 || slow->released)
        return;
    slow->last_step = number_of(event, "step");
    if (slow->last_step < slow->until)
        return;
    slow->released = true;
    blob_server_hold(slow->store, false);
}

static void steps_go_on_while_a_checkpoint_is_stored(void **state)
{
    (void)state;
    struct scene scene;
    scene_open(&scene, "llama", 2, 2);
    set(scene.spec, "checkpoint", "every_steps", json_integer(8));
    struct slow_store slow = {.store = &scene.fix.store, .until = 12};
    blob_server_hold(&scene.fix.store, true);
    scene_run(&scene, release_at, &slow);
    expect_success(&scene.out);
    assert_true(slow.released);
    assert_int_equal(scene.out.steps, 20);
    assert_int_equal(json_array_size(scene.out.checkpoints), 3);
    for (size_t c = 0; c < 3; c++) { /* reported in order */
        static const uint64_t steps[] = {8, 16, 20};
        assert_int_equal(number_of(json_array_get(scene.out.checkpoints, c), "step"), steps[c]);
    }
    resume_on(&scene, 1); /* the stored state is that of step 8, not of a later step */
    scene_close(&scene);
}

static void *release_later(void *arg)
{
    struct slow_store *slow = arg;
    blob_server_await_put(slow->store);
    struct timespec long_enough = {.tv_nsec = 300 * 1000 *
                                              1000}; /* enough for many steps if they were not blocked */
    nanosleep(&long_enough, NULL);
    blob_server_hold(slow->store, false);
    return NULL;
}

static void note_steps(void *arg, struct fix_worker *workers, uint32_t rank, const json_t *event)
{
    struct slow_store *slow = arg;
    (void)workers, (void)rank;
    if (strcmp(text_of(event, "type"), "checkpoint") == 0)
        slow->released = true;
    else if (strcmp(text_of(event, "type"), "step") == 0 && !slow->released)
        slow->last_step = number_of(event, "step");
}

static void the_next_checkpoint_waits_for_the_one_before(void **state)
{
    (void)state;
    struct scene scene;
    pthread_t thread;
    scene_open(&scene, "llama", 1, 4);
    set(scene.spec, "checkpoint", "every_steps", json_integer(2));
    struct slow_store slow = {.store = &scene.fix.store};
    blob_server_hold(&scene.fix.store, true);
    assert_int_equal(pthread_create(&thread, NULL, release_later, &slow), 0);
    scene_run(&scene, note_steps, &slow);
    pthread_join(thread, NULL);
    expect_success(&scene.out);
    assert_true(slow.last_step <= 3); /* after 4 steps the second checkpoint is due */
    assert_int_equal(json_array_size(scene.out.checkpoints), 10);
    scene_close(&scene);
}

static void *release_much_later(void *arg)
{
    struct slow_store *slow = arg;
    blob_server_await_put(slow->store);
    struct timespec more_than_the_wait = {.tv_sec = 2, .tv_nsec = 500 * 1000 * 1000};
    nanosleep(&more_than_the_wait, NULL);
    blob_server_hold(slow->store, false);
    return NULL;
}

static void wait_a_second(void *arg, json_t *assign)
{
    (void)arg;
    set(assign, "limits", "wait", json_integer(1));
}

/* A rank that is still storing its part does not count as hanging. */
static void a_slow_store_is_no_transfer_that_stands_still(void **state)
{
    (void)state;
    struct scene scene;
    pthread_t thread;
    scene_open(&scene, "llama", 3, 4);
    set(scene.spec, "checkpoint", "every_steps", json_integer(2));
    struct slow_store slow = {.store = &scene.fix.store};
    blob_server_hold(&scene.fix.store, true);
    assert_int_equal(pthread_create(&thread, NULL, release_much_later, &slow), 0);
    fix_run(&scene.fix, scene.plan, scene.spec, wait_a_second, NULL, NULL, &scene.out);
    pthread_join(thread, NULL);
    expect_success(&scene.out);
    assert_int_equal(json_array_size(scene.out.checkpoints), 10);
    scene_close(&scene);
}

static void a_checkpoint_under_way_is_kept_when_the_run_fails(void **state)
{
    (void)state;
    struct scene scene;
    pthread_t thread;
    scene_open(&scene, "llama", 2, 2);
    set(scene.spec, "checkpoint", "every_steps", json_integer(1));
    plan_destroy(scene.plan);
    scene.fix.tokens_bound =
        110; /* the batches have 107, 126, … tokens, so step 1 exceeds the plan's bound */
    scene.plan = fix_plan(&scene.fix, 2, 4);
    struct slow_store slow = {.store = &scene.fix.store};
    blob_server_hold(&scene.fix.store, true);
    assert_int_equal(pthread_create(&thread, NULL, release_later, &slow), 0);
    scene_run(&scene, NULL, NULL);
    pthread_join(thread, NULL);
    assert_int_equal(scene.out.steps, 1);
    assert_int_equal(json_array_size(scene.out.failures), 2);
    assert_int_equal(json_array_size(scene.out.checkpoints), 1);
    checkpoint_at(&scene.out, 1);
    scene_close(&scene);
}

static void two_runs_of_one_plan_are_bit_identical(void **state)
{
    (void)state;
    struct scene scene;
    struct outcome first;
    scene_open(&scene, "llama3-rope", 3, 1);
    set(scene.spec, "method", "dropout", json_real(0.1));
    set(scene.spec, "data", "shuffle", json_true());
    json_object_clear(scene.fix.adapter); /* the adapter has another dropout: start from the seed */
    scene_run(&scene, NULL, NULL);
    first = scene.out;
    scene_run(&scene, NULL, NULL);
    expect_success(&first);
    expect_success(&scene.out);
    assert_memory_equal(first.loss, scene.out.loss, sizeof(first.loss));
    assert_memory_equal(first.norm, scene.out.norm, sizeof(first.norm));
    assert_true(json_equal(first.artifacts, scene.out.artifacts));
    outcome_fini(&first);
    scene_close(&scene);
}

/* --- stops --- */

struct stop_at {
    uint64_t step;
    json_int_t epoch;
    bool kill, sent;
    json_t *message;
};

static void stop_hook(void *arg, struct fix_worker *workers, uint32_t rank, const json_t *event)
{
    struct stop_at *stop = arg;
    if (stop->sent || strcmp(text_of(event, "type"), "step") != 0 || number_of(event, "step") != stop->step)
        return;
    stop->sent = true; /* only one rank is told, and the others must learn of it in the same step */
    fix_send(&workers[stop->kill ? rank : 0],
             json_pack("{s:s, s:i, s:I, s:s, s:b, s:b}", "type", "stop", "run", 70, "epoch", stop->epoch,
                       "why", "cancel", "checkpoint", 1, "kill", (int)stop->kill));
}

static void a_stop_of_one_rank_stops_all_in_one_step_with_a_checkpoint(void **state)
{
    (void)state;
    struct scene scene;
    scene_open(&scene, "llama", 2, 1);
    scene_prolong(&scene);
    struct stop_at stop = {.step = 5, .epoch = 1};
    scene_run(&scene, stop_hook, &stop);
    expect_success(&scene.out);
    assert_int_equal(scene.out.done, 0);
    assert_int_equal(json_array_size(scene.out.stopped), 2);
    uint64_t at = number_of(json_array_get(scene.out.stopped, 0), "step");
    assert_true(at > 5 && at < FIX_STEPS);
    assert_int_equal(number_of(json_array_get(scene.out.stopped, 1), "step"), at);
    assert_true(json_is_true(json_object_get(json_array_get(scene.out.stopped, 0), "checkpoint")));
    assert_int_equal(scene.out.steps, at);
    checkpoint_at(&scene.out, at);
    scene_close(&scene);
}

static void a_stop_of_a_stale_epoch_changes_nothing(void **state)
{
    (void)state;
    struct scene scene;
    scene_open(&scene, "llama", 1, 4);
    struct stop_at stop = {.step = 2, .epoch = 0, .kill = true};
    scene_run(&scene, stop_hook, &stop);
    assert_true(stop.sent);
    assert_int_equal(scene.out.done, 1);
    assert_int_equal(scene.out.steps, 20);
    scene_close(&scene);
}

static void a_killed_rank_ends_at_once_and_its_peer_names_it(void **state)
{
    (void)state;
    struct scene scene;
    scene_open(&scene, "llama", 2, 1);
    scene_prolong(&scene);
    struct stop_at stop = {.step = 3, .epoch = 1, .kill = true};
    scene_run(&scene, stop_hook, &stop);
    assert_int_equal(scene.out.done, 0);
    assert_int_equal(json_array_size(scene.out.stopped), 1);
    assert_int_equal(json_array_size(scene.out.failures), 1);
    const json_t *failed = json_array_get(scene.out.failures, 0);
    assert_true(json_is_false(json_object_get(failed, "own_fault")));
    assert_non_null(strstr(text_of(failed, "text"), "rank 1"));
    scene_close(&scene);
}

static void a_rank_alone_that_is_killed_ends_at_once(void **state)
{
    (void)state;
    struct scene scene;
    scene_open(&scene, "llama", 1, 1);
    scene_prolong(&scene);
    struct stop_at stop = {.step = 3, .epoch = 1, .kill = true};
    scene_run(&scene, stop_hook, &stop);
    assert_int_equal(scene.out.done, 0);
    assert_int_equal(json_array_size(scene.out.stopped), 1);
    assert_true(scene.out.steps < FIX_STEPS);
    assert_int_equal(json_array_size(scene.out.checkpoints), 0);
    scene_close(&scene);
}

/* --- an agent that goes away --- */

struct away {
    bool gone;
    json_int_t hello_seq;
};

static void go_away(void *arg, struct fix_worker *workers, uint32_t rank, const json_t *event)
{
    struct away *away = arg;
    if (away->gone || strcmp(text_of(event, "type"), "step") != 0 || number_of(event, "step") != 4)
        return;
    away->gone = true;
    close(workers[rank].fd); /* this event and later ones are not acknowledged */
    workers[rank].fd = fix_connect(workers[rank].socket);
    json_t *hello = fix_receive(&workers[rank]);
    assert_string_equal(text_of(hello, "type"), "worker_hello");
    assert_int_equal(number_of(hello, "run"), 70);
    assert_int_equal(number_of(hello, "rank"), 0);
    away->hello_seq = json_integer_value(json_object_get(hello, "seq"));
    assert_true(away->hello_seq >= workers[rank].last_seq + 1);
    json_decref(hello);
    json_t *again = fix_receive(&workers[rank]); /* the present event is sent again */
    assert_true(json_equal(again, event));
    json_decref(again);
}

static void events_not_acknowledged_come_again_after_the_agent_returned(void **state)
{
    (void)state;
    struct scene scene;
    scene_open(&scene, "llama", 1, 2);
    struct away away = {0};
    scene_run(&scene, go_away, &away);
    assert_true(away.gone);
    assert_int_equal(scene.out.steps, 20);
    assert_int_equal(scene.out.done, 1);
    scene_close(&scene);
}

/* --- failures --- */

static void fails_with(struct fixture *fix, const struct plan *plan, const json_t *spec,
                       void (*change)(void *arg, json_t *assign), const char *code, bool own,
                       const char *part)
{
    struct outcome out;
    fix_run(fix, plan, spec, change, NULL, (void *)part, &out);
    assert_int_equal(json_array_size(out.failures), 1);
    const json_t *failed = json_array_get(out.failures, 0);
    if (strcmp(text_of(failed, "code"), code) != 0 ||
        json_is_true(json_object_get(failed, "own_fault")) != own || !strstr(text_of(failed, "text"), part))
        fail_msg("not as expected (%s, \"%s\"): %s: %s", code, part, text_of(failed, "code"),
                 text_of(failed, "text"));
    outcome_fini(&out);
}

static void another_device(void *arg, json_t *assign)
{
    (void)arg;
    json_object_set_new(json_object_get(json_object_get(assign, "local"), "device"), "name",
                        json_string("node9/cpu0"));
}

static void another_digest(void *arg, json_t *assign)
{
    (void)arg;
    json_t *plan = json_object_get(assign, "plan");
    json_object_set_new(plan, "batch_rows", json_integer(5));
}

static void missing_rows(void *arg, json_t *assign)
{
    (void)arg;
    char name[65];
    memset(name, 'a', 64);
    name[64] = '\0';
    json_object_set_new(json_object_get(assign, "data"), "train", json_string(name));
}

static void no_epoch(void *arg, json_t *assign)
{
    (void)arg;
    json_object_del(assign, "epoch");
}

static void little_memory(void *arg, json_t *assign)
{
    (void)arg;
    json_object_set_new(json_object_get(json_object_get(assign, "local"), "device"), "memory_limit_bytes",
                        json_integer(300000));
}

static void wrong_assignments_are_refused_by_name(void **state)
{
    (void)state;
    struct fixture fix;
    fix_open(&fix, "llama");
    json_t *spec = fix_spec(&fix), *packed = fix_spec(&fix);
    set(packed, "method", "base", json_string("packed"));
    struct plan *plan = fix_plan(&fix, 1, 4);
    fails_with(&fix, plan, spec, another_device, "invalid", true, "node9/cpu0");
    fails_with(&fix, plan, spec, another_digest, "peer", false, "plan");
    fails_with(&fix, plan, spec, no_epoch, "invalid", true, "epoch");
    fails_with(&fix, plan, spec, missing_rows, "not-found", false, "data.train");
    fails_with(&fix, plan, spec, little_memory, "stale", false, "300000");
    fails_with(&fix, plan, packed, NULL, "unsupported", true, "method.base");
    fix.tokens_bound /= 2;
    fix.labelled_bound = fix.tokens_bound;
    struct plan *narrow = fix_plan(&fix, 1, 4);
    fails_with(&fix, narrow, spec, NULL, "too-big", true, "tokens and the plan allows");
    plan_destroy(narrow);
    plan_destroy(plan);
    json_decref(spec);
    json_decref(packed);
    fix_close(&fix);
}

/* The system gives the worker too little memory for its stage, although the device's limit is not reached.
 * That failure does not count against the job. */
static void memory_that_the_node_lacks_is_not_the_jobs_fault(void **state)
{
    (void)state;
    struct fixture fix;
    struct err err;
    char text[600], path[400];
    const char *programs = getenv("MOTLEY_BIN");
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    print_message("skipped: instrumented programs need more address space than this test leaves\n");
    skip();
#endif
    fix_open(&fix, "llama");
    snprintf(path, sizeof(path), "%s", scratch_path(&fix.scratch, "worker.sh"));
    snprintf(text, sizeof(text), "#!/bin/sh\nulimit -v 1500000\nexec %s/motley-worker \"$@\"\n",
             programs ? programs : "bin");
    must(file_write_atomic(path, text, strlen(text), 0700, &err));
    fix.program = path;
    json_t *spec = fix_spec(&fix);
    struct plan *plan = fix_plan(&fix, 1, 4);
    plan->tokens_bound = 500000; /* needs gigabytes of activations, of the 16 GiB that the plan allows */
    plan->ranks[0].memory_limit_bytes = (uint64_t)16 << 30;
    must(plan_seal(plan, &err));
    fails_with(&fix, plan, spec, NULL, "no-memory", false, "the system refused");
    plan_destroy(plan);
    json_decref(spec);
    fix_close(&fix);
}

static void a_value_that_is_not_finite_stops_all_ranks_with_step_and_tensor(void **state)
{
    (void)state;
    struct scene scene;
    scene_open(&scene, "llama", 2, 2);
    fix_spoil_model(&scene.fix, "model.norm.weight");
    scene_run(&scene, NULL, NULL);
    assert_int_equal(scene.out.done, 0);
    assert_int_equal(scene.out.steps, 0);
    assert_int_equal(json_array_size(scene.out.failures), 2);
    unsigned named = 0;
    for (size_t f = 0; f < 2; f++) {
        const json_t *failed = json_array_get(scene.out.failures, f);
        assert_string_equal(text_of(failed, "code"), "not-finite");
        assert_true(json_is_true(json_object_get(failed, "own_fault")));
        assert_memory_equal(text_of(failed, "text"), "step 0", 6);
        named += strstr(text_of(failed, "text"), ", rank ") != NULL;
        print_message("%s\n", text_of(failed, "text"));
    }
    assert_true(named >= 1);
    scene_close(&scene);
}

static void a_store_that_does_not_answer_for_a_moment_fails_nothing(void **state)
{
    (void)state;
    struct scene scene;
    scene_open(&scene, "llama", 1, 4);
    atomic_store(&scene.fix.store.away, 4); /* the first request is for a manifest of the model's files */
    scene_run(&scene, NULL, NULL);
    expect_success(&scene.out);
    assert_int_equal(scene.out.steps, 20);
    assert_int_equal(atomic_load(&scene.fix.store.away), 0);
    scene_close(&scene);
}

static void a_full_store_fails_the_last_checkpoint_and_not_the_steps(void **state)
{
    (void)state;
    struct scene scene;
    scene_open(&scene, "llama", 1, 4);
    atomic_store(&scene.fix.store.full, true);
    set(scene.spec, "checkpoint", "every_steps", json_integer(8));
    scene_run(&scene, NULL, NULL);
    assert_int_equal(scene.out.steps, 20);
    assert_int_equal(json_array_size(scene.out.checkpoints), 0);
    assert_int_equal(json_array_size(scene.out.failures), 1);
    assert_true(json_is_false(json_object_get(json_array_get(scene.out.failures, 0), "own_fault")));
    assert_non_null(strstr(text_of(json_array_get(scene.out.failures, 0), "text"), "checkpoint of step 20"));
    scene_close(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluations_and_samples_surround_the_steps),
        cmocka_unit_test(a_checkpoint_resumes_on_any_split),
        cmocka_unit_test(an_adapter_that_differs_by_layer_resumes_on_any_split),
        cmocka_unit_test(adapters_on_tensors_of_experts_resume_on_any_split),
        cmocka_unit_test(a_whole_models_checkpoint_resumes_on_any_split),
        cmocka_unit_test(a_damaged_checkpoint_is_refused_by_tensor),
        cmocka_unit_test(steps_go_on_while_a_checkpoint_is_stored),
        cmocka_unit_test(the_next_checkpoint_waits_for_the_one_before),
        cmocka_unit_test(a_slow_store_is_no_transfer_that_stands_still),
        cmocka_unit_test(a_checkpoint_under_way_is_kept_when_the_run_fails),
        cmocka_unit_test(two_runs_of_one_plan_are_bit_identical),
        cmocka_unit_test(a_stop_of_one_rank_stops_all_in_one_step_with_a_checkpoint),
        cmocka_unit_test(a_stop_of_a_stale_epoch_changes_nothing),
        cmocka_unit_test(a_killed_rank_ends_at_once_and_its_peer_names_it),
        cmocka_unit_test(a_rank_alone_that_is_killed_ends_at_once),
        cmocka_unit_test(events_not_acknowledged_come_again_after_the_agent_returned),
        cmocka_unit_test(wrong_assignments_are_refused_by_name),
        cmocka_unit_test(memory_that_the_node_lacks_is_not_the_jobs_fault),
        cmocka_unit_test(a_value_that_is_not_finite_stops_all_ranks_with_step_and_tensor),
        cmocka_unit_test(a_store_that_does_not_answer_for_a_moment_fails_nothing),
        cmocka_unit_test(a_full_store_fails_the_last_checkpoint_and_not_the_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
