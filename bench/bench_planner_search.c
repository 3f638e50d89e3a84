/* How long planning takes, and how far above the lower bound it ends, as clusters grow: Llama-3.1-405B's
 * shape, LoRA on a bf16 base, unlike cards of the catalogue four to a node. CPU seconds of one core. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/rand.h"
#include "planner/from_spec.h"

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static json_t *cluster_json(uint32_t devices)
{
    static const char *const kinds[] = {"a100x80", "h100", "mi210", "gh200", "h200", "mi300x"};
    struct rand_stream r;
    json_t *nodes = json_array();
    rand_stream_init(&r, 3, devices);
    for (uint32_t n = 0; n < (devices + 3) / 4; n++) {
        const char *kind = kinds[rand_stream_below(&r, sizeof(kinds) / sizeof(kinds[0]))];
        json_t *list = json_array();
        char name[32], node[16];
        snprintf(node, sizeof(node), "n%u", n);
        for (uint32_t d = 0; d < 4; d++) {
            snprintf(name, sizeof(name), "n%u/%u", n, d);
            json_array_append_new(list, json_pack("{s:s,s:s,s:f,s:I}", "name", name, "like", kind, "speed",
                                                  0.8 + 0.4 * rand_stream_unit(&r), "memory_bytes",
                                                  (json_int_t)400000000000));
        }
        json_array_append_new(nodes, json_pack("{s:s,s:o}", "name", node, "devices", list));
    }
    return json_pack("{s:o,s:{s:{s:f,s:f},s:{s:f,s:f}}}", "nodes", nodes, "links", "within", "latency_s",
                     1e-5, "bytes_per_s", 5e10, "between", "latency_s", 1e-4, "bytes_per_s", 2.5e10);
}

static int plan_one(uint32_t devices, const json_t *spec, const json_t *config)
{
    struct err err = {0};
    struct plan_answer *answer = NULL;
    json_t *cluster = cluster_json(devices);
    double began = cpu_s();
    int result = plan_from_cluster(spec, cluster, config, NULL, &answer, &err);
    double took = cpu_s() - began;
    if (result < 0)
        printf("%5u devices: %s\n", devices, err.text);
    else
        printf("%5u devices  %8.3f s  step %9.3f s  lower bound %9.3f s  ratio %.3f  %s, %u ranks\n", devices,
               took, answer->step_s, answer->lower_bound_s, answer->step_s / answer->lower_bound_s,
               answer->plan ? plan_placement_name(answer->plan->placement) : "does not fit",
               answer->plan ? answer->plan->rank_count : 0);
    plan_answer_destroy(answer);
    json_decref(cluster);
    return result;
}

int main(void)
{
    json_t *spec =
        json_pack("{s:s,s:{s:s},s:{s:s,s:i},s:{s:i,s:s}}", "model", "m", "method", "base", "bf16", "data",
                  "train", "d", "sequence_tokens", 2048, "train", "batch_rows", 1024, "compute", "bf16");
    json_t *config = json_pack(
        "{s:[s],s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:f,s:f,s:b}", "architectures", "LlamaForCausalLM",
        "model_type", "llama", "hidden_size", 16384, "num_hidden_layers", 126, "num_attention_heads", 128,
        "num_key_value_heads", 8, "intermediate_size", 53248, "vocab_size", 128256, "max_position_embeddings",
        131072, "rms_norm_eps", 1e-5, "rope_theta", 500000.0, "tie_word_embeddings", 0);
    int result = 0;
    for (uint32_t devices = 8; devices <= 512; devices *= 2)
        result |= plan_one(devices, spec, config);
    json_decref(spec);
    json_decref(config);
    return result ? 1 : 0;
}
