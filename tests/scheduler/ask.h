/* Makes a question for the planner as the scheduler asks it: a small model on two devices without profiles.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "model/job/spec.h"
#include "scheduler/placer/placer.h"

struct ask {
    json_t *spec, *inputs, *model, *links;
    struct store_sched_device devices[2];
    struct placer_device placed[2];
    const json_t *link_list[2];
    struct placer_request request;
};

static inline json_t *full_spec(const char *placement)
{
    struct job_spec spec;
    struct err err;
    json_t *given = json_pack("{s:s, s:s, s:{s:s, s:s, s:i}, s:{s:i, s:i}, s:{s:s}}", "name", "tiny", "model",
                              "m", "data", "train", "rows", "format", "tokens", "sequence_tokens", 64,
                              "train", "batch_rows", 4, "steps", 3, "placement", "kind", placement);
    if (spec_parse(given, &spec, &err) < 0)
        fail_msg("%s", err.text);
    json_t *full = spec_to_json(&spec, &err);
    spec_fini(&spec);
    json_decref(given);
    return full;
}

static inline void ask_make(struct ask *ask, const char *placement, uint64_t memory)
{
    static const uint8_t sizes[32] = {20, 0, 0, 0, 9,  0, 0, 0, 33, 0, 0, 0, 12, 0, 0, 0,
                                      64, 0, 0, 0, 50, 0, 0, 0, 11, 0, 0, 0, 3,  0, 0, 0};
    static char left[] = "left", right[] = "right", left0[] = "left/cpu0", right0[] = "right/cpu0",
                kind[] = "cpu";
    static char digest[] = "d";
    *ask = (struct ask){.spec = full_spec(placement), .inputs = json_object()};
    ask->model =
        json_pack("{s:{s:[s], s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:b, s:s}}", "config",
                  "architectures", "LlamaForCausalLM", "model_type", "llama", "hidden_size", 64,
                  "intermediate_size", 176, "num_attention_heads", 4, "num_hidden_layers", 4,
                  "num_key_value_heads", 2, "head_dim", 16, "vocab_size", 259, "max_position_embeddings", 256,
                  "rms_norm_eps", 1e-5, "tie_word_embeddings", 0, "hidden_act", "silu");
    ask->links = json_pack("[{s:s, s:s, s:f, s:f}, {s:s, s:s, s:f, s:f}]", "from", "left", "to", "right",
                           "latency_s", 1e-4, "bytes_per_s", 1e9, "from", "right", "to", "left", "latency_s",
                           1e-4, "bytes_per_s", 1e9);
    assert_non_null(ask->model);
    for (int i = 0; i < 2; i++) {
        ask->devices[i] = (struct store_sched_device){.name = i == 0 ? left0 : right0,
                                                      .node = i == 0 ? left : right,
                                                      .kind = kind,
                                                      .digest = digest,
                                                      .inventory = json_pack("{s:i}", "threads", 1),
                                                      .memory_limit_bytes = memory,
                                                      .present = true};
        ask->placed[i] =
            (struct placer_device){.device = &ask->devices[i], .memory_bytes = memory, .heat = 1};
        ask->link_list[i] = json_array_get(ask->links, (size_t)i);
    }
    ask->request = (struct placer_request){.spec = ask->spec,
                                           .inputs = ask->inputs,
                                           .model = ask->model,
                                           .train_sizes = sizes,
                                           .train_bytes = sizeof(sizes),
                                           .devices = ask->placed,
                                           .device_count = 2,
                                           .links = ask->link_list,
                                           .link_count = 2};
}

static inline void ask_fini(struct ask *ask)
{
    json_decref(ask->spec);
    json_decref(ask->inputs);
    json_decref(ask->model);
    json_decref(ask->links);
    json_decref(ask->devices[0].inventory);
    json_decref(ask->devices[1].inventory);
}
