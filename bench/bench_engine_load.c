/* Measures loading. It writes a random, sharded bf16 folder in the shape of a 3B model (Llama 3.2 3B: 28
 * layers, 3.2e9 values, 6.4 GB) to a temporary folder, which is removed afterwards. It prints how long
 * stage_create takes while the files are in the page cache, and how much memory it uses beside what the
 * device counts. touch_seconds is the time that the system needed just before to hand out that memory alone.
 *
 *   bench_engine_load [threads [layers [base ... ]]]     base: bf16, nf4, fp32, fp16; default: bf16 nf4 fp32
 *
 * fp32 needs twice the file's bytes, so that base loads the first half of the layers. TMPDIR names the disk
 * to use; 6.4 GB are needed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/clock.h"
#include "engine/stage/stage.h"
#include "model/shape/blocks.h"
#include "model/files/safetensors.h"
#include "model/shape/tensors.h"

enum { LAYERS = 28, LAYERS_PER_SHARD = 7, TENSORS_MAX = 16 * LAYERS_PER_SHARD };

static const char index_name[] = "model.safetensors.index.json";

struct file_shard {
    struct safetensors_item items[TENSORS_MAX];
    char names[TENSORS_MAX][128];
    uint32_t count;
};

struct folder {
    char path[4000];
    uint32_t shards, layers;
};

/* Returns the path of a file in the folder; it is valid until the next call. */
static const char *path_of(const struct folder *folder, const char *name)
{
    static char path[4100];
    snprintf(path, sizeof(path), "%s/%s", folder->path, name);
    return path;
}

static void shard_name(uint32_t shard, char name[64])
{
    snprintf(name, 64, "model-%05u.safetensors", shard + 1);
}

/* Fills in bf16 values of magnitude 0.008 to 0.03. */
static int fill(void *argument, uint64_t offset, size_t size, void *dst, struct err *err)
{
    uint64_t state = (offset + 1) * 0x9E3779B97F4A7C15ull;
    uint16_t *out = dst;
    (void)argument;
    (void)err;
    for (size_t i = 0; i < size / 2; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out[i] = (uint16_t)((state & 0x80ff) | 0x3c00);
    }
    return 0;
}

static int add_item(const struct block_tensor *tensor, void *argument)
{
    struct file_shard *shard = argument;
    if (shard->count == TENSORS_MAX)
        return -1;
    struct safetensors_item *item = &shard->items[shard->count];
    snprintf(shard->names[shard->count], sizeof(shard->names[0]), "%s", tensor->name);
    *item = (struct safetensors_item){.name = shard->names[shard->count++],
                                      .type = TENSOR_BF16,
                                      .rank = tensor->rank,
                                      .shape = {tensor->shape[0], tensor->rank == 2 ? tensor->shape[1] : 0},
                                      .fill = fill};
    return 0;
}

static void model_shape(struct model_config *config, uint32_t layers)
{
    *config = (struct model_config){.arch = MODEL_LLAMA,
                                    .hidden = 3072,
                                    .layers = layers,
                                    .heads = 24,
                                    .kv_heads = 8,
                                    .head_dim = 128,
                                    .ffn = 8192,
                                    .vocab = 128256,
                                    .max_positions = 8192,
                                    .norm_eps = 1e-5,
                                    .rope = {.theta = 500000, .kind = ROPE_DEFAULT, .factor = 1},
                                    .tied = true};
}

static int config_write(const struct folder *folder, const struct model_config *c)
{
    FILE *file = fopen(path_of(folder, "config.json"), "w");
    if (!file)
        return -1;
    fprintf(
        file,
        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_act\": \"silu\", "
        "\"hidden_size\": %u, \"intermediate_size\": %u, \"num_hidden_layers\": %u, "
        "\"num_attention_heads\": %u, \"num_key_value_heads\": %u, \"head_dim\": %u, \"vocab_size\": %u, "
        "\"max_position_embeddings\": %u, \"rms_norm_eps\": 1e-05, \"rope_theta\": 500000.0, "
        "\"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\"}\n",
        c->hidden, c->ffn, c->layers, c->heads, c->kv_heads, c->head_dim, c->vocab, c->max_positions);
    return fclose(file);
}

/* Writes one shard with blocks [begin, end) and adds its tensors to the index. */
static int shard_write(struct folder *folder, const struct model_config *config, uint32_t begin, uint32_t end,
                       FILE *index, struct err *err)
{
    static struct file_shard shard;
    char name[64];
    shard.count = 0;
    if (model_block_tensors(config, begin, end, add_item, &shard) != 0)
        return err_set(err, ERR_INTERNAL, "blocks %u..%u do not fit a shard", begin, end);
    shard_name(folder->shards++, name);
    for (uint32_t i = 0; i < shard.count; i++)
        fprintf(index, "%s\"%s\": \"%s\"", begin + i == 0 ? "" : ", ", shard.names[i], name);
    return safetensors_write(path_of(folder, name), shard.items, shard.count, NULL, 0, err);
}

static int folder_write(struct folder *folder, struct err *err)
{
    struct model_config config;
    const char *where = getenv("TMPDIR");
    model_shape(&config, folder->layers);
    snprintf(folder->path, sizeof(folder->path), "%s/motley-load.XXXXXX", !where ? "/tmp" : where);
    if (!mkdtemp(folder->path) || config_write(folder, &config) != 0)
        return err_set(err, ERR_IO, "could not write %s", folder->path);
    FILE *index = fopen(path_of(folder, index_name), "w");
    if (!index)
        return err_set(err, ERR_IO, "could not write %s", index_name);
    fprintf(index, "{\"weight_map\": {");
    int status = 0;
    for (uint32_t begin = 0; begin < config.layers + 2 && status == 0; begin += LAYERS_PER_SHARD) {
        uint32_t end = begin + LAYERS_PER_SHARD;
        end = end < config.layers + 2 ? end : config.layers + 2;
        status = shard_write(folder, &config, begin, end, index, err);
    }
    fprintf(index, "}}\n");
    return fclose(index) != 0 || status != 0 ? -1 : 0;
}

static void folder_remove(const struct folder *folder)
{
    char name[64];
    for (uint32_t i = 0; i < folder->shards; i++) {
        shard_name(i, name);
        unlink(path_of(folder, name));
    }
    unlink(path_of(folder, "config.json"));
    unlink(path_of(folder, index_name));
    rmdir(folder->path);
}

/* Returns a figure of /proc/self/status in bytes. Writing 5 to clear_refs resets "VmHWM:". */
static uint64_t status_bytes(const char *name)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof(line), file))
        if (strncmp(line, name, strlen(name)) == 0)
            sscanf(line + strlen(name), "%llu", &kib);
    if (file)
        fclose(file);
    return kib * 1024;
}

static void peak_reset(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (file) {
        fputs("5", file);
        fclose(file);
    }
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static enum layer_base base_of(const char *name)
{
    return strcmp(name, "bf16") == 0   ? LAYER_BASE_BF16
           : strcmp(name, "fp16") == 0 ? LAYER_BASE_F16
           : strcmp(name, "nf4") == 0  ? LAYER_BASE_NF4
                                       : LAYER_BASE_F32;
}

/* Returns the bytes of the file that the blocks need. */
static uint64_t bytes_of(const struct model *model, uint32_t begin, uint32_t end, struct err *err)
{
    struct model_range *ranges;
    uint32_t count;
    uint64_t bytes = 0;
    if (model_block_ranges(model, begin, end, &ranges, &count, err) != 0)
        return 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += ranges[i].size;
    free(ranges);
    return bytes;
}

/* Returns the seconds that the system needs to hand out as much memory as the stage will have. */
static double touch_seconds(struct device *device, const struct stage_options *options, struct err *err)
{
    struct stage_memory memory;
    struct buffer *buffer = NULL;
    uint64_t begin = clock_mono_ns();
    if (stage_memory_predict(options, &memory, err) != 0 ||
        buffer_create(device, memory.total, MEM_WEIGHTS, "what the stage will have", &buffer, err) != 0)
        return -1;
    double seconds = (double)(clock_mono_ns() - begin) * 1e-9;
    buffer_destroy(buffer);
    return seconds;
}

static int load(const struct folder *folder, struct device *device, const char *base, struct err *err)
{
    struct model *model;
    struct stage *stage;
    struct mem_account memory;
    if (model_open_path(folder->path, &model, err) != 0)
        return -1;
    const struct model_config *config = model_get_config(model);
    struct stage_options options = {.config = config,
                                    .block_end = strcmp(base, "fp32") == 0 ? config->layers / 2 + 1
                                                                           : config->layers + 2,
                                    .mode = STAGE_TRAIN,
                                    .lora = {.rank = 8, .alpha = 16, .targets = LORA_Q | LORA_V},
                                    .seed = 1,
                                    .micro_batches_in_flight = 1,
                                    .tokens_max = 64,
                                    .double_quant = true,
                                    .base = base_of(base)};
    uint64_t bytes = bytes_of(model, 0, options.block_end, err), before = status_bytes("VmRSS:");
    double touch = touch_seconds(device, &options, err);
    double cpu = cpu_seconds();
    peak_reset();
    device_memory_reset_peak(device);
    uint64_t begin = clock_mono_ns();
    int status = stage_create(device, model, &options, &stage, err);
    double seconds = (double)(clock_mono_ns() - begin) * 1e-9;
    if (status == 0) {
        device_memory(device, &memory);
        printf("{\"base\": \"%s\", \"threads\": %u, \"file_bytes\": %llu, \"seconds\": %.2f, "
               "\"cpu_seconds\": %.2f, \"gb_per_s\": %.2f, \"touch_seconds\": %.2f, \"device_bytes\": %llu, "
               "\"beside_bytes\": %lld}\n",
               base, device_threads(device), (unsigned long long)bytes, seconds, cpu_seconds() - cpu,
               (double)bytes * 1e-9 / seconds, touch, (unsigned long long)memory.peak_total,
               (long long)(status_bytes("VmHWM:") - before) - (long long)memory.peak_total);
        stage_destroy(stage);
    }
    model_close(model);
    return status;
}

int main(int argc, char **argv)
{
    static const char *const usual[] = {"bf16", "nf4", "fp32"};
    static struct folder folder;
    struct device_options options = {.kind = "cpu", .name = "bench", .threads = 2};
    struct device *device;
    struct err err;
    options.threads = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 2;
    folder.layers = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : LAYERS;
    int count = argc > 3 ? argc - 3 : 3, status = device_open(&options, &device, &err);
    if (status == 0 && folder.layers <= LAYERS)
        status = folder_write(&folder, &err);
    for (int i = 0; i < count && status == 0; i++)
        status = load(&folder, device, argc > 3 ? argv[3 + i] : usual[i], &err);
    if (status != 0)
        fprintf(stderr, "%s\n", err.text);
    folder_remove(&folder);
    device_close(device);
    return status != 0;
}
