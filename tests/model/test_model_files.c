/* A model opens to the same tensors from a folder, shards, a GGUF or the artifact store, and a rank reads
 * only its own bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/digest.h"
#include "common/rand.h"
#include "model/shape/blocks.h"
#include "model/files/chunk_cache.h"
#include "model/files/fetch.h"
#include "model/gguf_build.h"
#include "model/shape/gguf_config.h"
#include "model/files/manifest.h"
#include "model/shape/tensors.h"
#include "support/must.h"
#include "support/scratch.h"

#define GOLDEN MOTLEY_TEST_DATA "/golden/"

static void a_folder_and_a_sharded_folder_open_and_agree_with_their_config(void **state)
{
    (void)state;
    struct model *m;
    struct err err;
    must(model_open_path(GOLDEN "llama", &m, &err), &err);
    assert_int_equal(model_tensor_count(m), 4 * 9 + 3);
    const struct model_tensor *t = model_tensor_find(m, "model.layers.2.mlp.down_proj.weight");
    assert_non_null(t);
    assert_int_equal(t->rows, 64);
    assert_int_equal(t->cols, 176);
    assert_null(model_tensor_find(m, "model.layers.4.mlp.down_proj.weight"));
    float all[64 * 176], some[3 * 176];
    must(model_tensor_read_f32(m, t, 0, 64, all, &err), &err);
    must(model_tensor_read_f32(m, t, 7, 10, some, &err), &err);
    assert_memory_equal(some, all + 7 * 176, sizeof(some));
    assert_int_equal(model_tensor_read_f32(m, t, 60, 65, all, &err), -1);
    model_close(m);

    must(model_open_path(GOLDEN "llama3-rope", &m, &err), &err);
    assert_true(model_get_config(m)->tied);
    const struct model_tensor *head = model_tensor_find(m, "lm_head.weight");
    assert_ptr_equal(head, model_tensor_find(m, "model.embed_tokens.weight"));
    assert_true(model_tensor_is_16bit(head));
    float row[64];
    must(model_tensor_read_f32(m, head, 258, 259, row, &err), &err);
    uint32_t bits;
    memcpy(&bits, row, 4);
    assert_int_equal(bits & 0xffff, 0); /* bf16 is the upper half of fp32 */
    model_close(m);
}

static uint64_t range_bytes(struct model *m, uint32_t begin, uint32_t end)
{
    struct model_range *ranges;
    uint32_t count;
    struct err err;
    uint64_t sum = 0;
    must(model_block_ranges(m, begin, end, &ranges, &count, &err), &err);
    for (uint32_t i = 0; i < count; i++)
        sum += ranges[i].size;
    free(ranges);
    return sum;
}

static void ranges_of_blocks_add_up_to_their_parameters(void **state)
{
    (void)state;
    struct model *m;
    struct err err;
    must(model_open_path(GOLDEN "llama", &m, &err), &err);
    uint64_t params = model_config_params(model_get_config(m)), sum = 0;
    for (uint32_t b = 0; b < 6; b++)
        sum += range_bytes(m, b, b + 1);
    assert_int_equal(sum, params * 4);
    assert_int_equal(range_bytes(m, 0, 6), params * 4);
    assert_int_equal(range_bytes(m, 2, 2), 0);
    model_close(m);
    must(model_open_path(GOLDEN "llama3-rope", &m, &err), &err);
    /* The tied embedding belongs to the first and the last block and is counted once. */
    assert_int_equal(range_bytes(m, 0, 6), model_config_params(model_get_config(m)) * 2);
    assert_int_equal(range_bytes(m, 5, 6), (64 + 259 * 64) * 2);
    model_close(m);
}

/* ---- a GGUF made of the golden llama's numbers ---- */

static const struct {
    const char *gguf, *hf;
} names[] = {{"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
             {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
             {"attn_output", "self_attn.o_proj"}, {"ffn_norm", "post_attention_layernorm"},
             {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
             {"ffn_down", "mlp.down_proj"}};

struct pending {
    char gguf[64], hf[96];
    uint32_t heads;
};

static uint32_t list_tensors(struct pending *out)
{
    static const char *const outer[3][2] = {{"token_embd.weight", "model.embed_tokens.weight"},
                                            {"output_norm.weight", "model.norm.weight"},
                                            {"output.weight", "lm_head.weight"}};
    uint32_t n = 0;
    for (int i = 0; i < 3; i++, n++) {
        snprintf(out[n].gguf, sizeof(out[n].gguf), "%s", outer[i][0]);
        snprintf(out[n].hf, sizeof(out[n].hf), "%s", outer[i][1]);
        out[n].heads = 0;
    }
    for (int layer = 0; layer < 4; layer++)
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++, n++) {
            snprintf(out[n].gguf, sizeof(out[n].gguf), "blk.%d.%s.weight", layer, names[i].gguf);
            snprintf(out[n].hf, sizeof(out[n].hf), "model.layers.%d.%s.weight", layer, names[i].hf);
            out[n].heads = i == 1 ? 4 : i == 2 ? 2 : 0;
        }
    return n;
}

/* Permutes rows as llama.cpp's converter does: [heads, 2, d/2] -> [heads, d/2, 2]. */
static void permute(float *rows, uint64_t count, uint64_t cols, uint32_t heads)
{
    uint64_t d = count / heads;
    float *copy = malloc(count * cols * sizeof(float));
    memcpy(copy, rows, count * cols * sizeof(float));
    for (uint64_t h = 0; h < heads; h++)
        for (uint64_t half = 0; half < 2; half++)
            for (uint64_t j = 0; j < d / 2; j++)
                memcpy(rows + (h * d + j * 2 + half) * cols, copy + (h * d + half * (d / 2) + j) * cols,
                       cols * sizeof(float));
    free(copy);
}

static void write_gguf(struct model *m, const char *path)
{
    struct pending list[64];
    uint32_t n = list_tensors(list);
    struct gguf_build b;
    struct err err;
    uint64_t offset = 0;
    gb_begin(&b, 3, n, 9);
    gb_key_text(&b, "general.architecture", "llama");
    gb_key_u32(&b, "llama.block_count", 4);
    gb_key_u32(&b, "llama.embedding_length", 64);
    gb_key_u32(&b, "llama.feed_forward_length", 176);
    gb_key_u32(&b, "llama.attention.head_count", 4);
    gb_key_u32(&b, "llama.attention.head_count_kv", 2);
    gb_key_u32(&b, "llama.context_length", 256);
    gb_key_f32(&b, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gb_key_u32(&b, "tokenizer.ggml.eos_token_id", 2);
    for (uint32_t i = 0; i < n; i++) {
        const struct model_tensor *t = model_tensor_find(m, list[i].hf);
        gb_tensor(&b, list[i].gguf, t->rows, t->rank == 2 ? t->cols : 0, 0, offset);
        offset += (t->size + 31) / 32 * 32;
    }
    gb_align(&b, 32);
    for (uint32_t i = 0; i < n; i++) {
        const struct model_tensor *t = model_tensor_find(m, list[i].hf);
        float *values = malloc(t->size);
        must(model_tensor_read_f32(m, t, 0, t->rows, values, &err), &err);
        if (list[i].heads)
            permute(values, t->rows, t->cols, list[i].heads);
        gb_bytes(&b, values, t->size);
        gb_align(&b, 32);
        free(values);
    }
    must(file_write_atomic(path, b.data, b.size, 0600, &err), &err);
    free(b.data);
}

static void a_gguf_gives_the_tensors_of_the_folder_it_was_made_from(void **state)
{
    (void)state;
    struct scratch scratch;
    struct model *folder, *gguf;
    struct err err;
    assert_int_equal(scratch_make(&scratch), 0);
    must(model_open_path(GOLDEN "llama", &folder, &err), &err);
    const char *path = scratch_path(&scratch, "tiny.gguf");
    write_gguf(folder, path);
    must(model_open_path(path, &gguf, &err), &err);
    assert_non_null(model_get_gguf(gguf));
    assert_int_equal(model_get_config(gguf)->vocab, 259);
    assert_false(model_get_config(gguf)->tied);
    for (uint32_t i = 0; i < model_tensor_count(folder); i++) {
        const struct model_tensor *a = model_tensor_at(folder, i), *b = model_tensor_find(gguf, a->name);
        assert_non_null(b);
        assert_int_equal(a->rows, b->rows);
        assert_int_equal(a->cols, b->cols);
        float *x = malloc(a->rows * a->cols * 4), *y = malloc(a->rows * a->cols * 4);
        must(model_tensor_read_f32(folder, a, 0, a->rows, x, &err), &err);
        must(model_tensor_read_f32(gguf, b, 0, b->rows, y, &err), &err);
        assert_memory_equal(x, y, a->rows * a->cols * 4);
        if (a->rows > 5) { /* this range of a permuted tensor crosses heads */
            must(model_tensor_read_f32(gguf, b, 3, a->rows - 1, y, &err), &err);
            assert_memory_equal(x + 3 * a->cols, y, (a->rows - 4) * a->cols * 4);
        }
        free(x);
        free(y);
    }
    assert_int_equal(range_bytes(gguf, 0, 6), range_bytes(folder, 0, 6));
    model_close(folder);
    model_close(gguf);
    scratch_remove(&scratch);
}

static void rotary_divisors_of_a_gguf_are_llama3_scaling_or_refused(void **state)
{
    (void)state;
    struct model_config plain, scaled;
    struct err err;
    double base[64], want[64], got[64];
    float divisors[64];
    static const double originals[] = {8192, 2048};
    for (int k = 0; k < 2; k++) {
        memset(&plain, 0, sizeof(plain));
        plain.head_dim = 128;
        plain.rope = (struct rope_config){.theta = 500000, .kind_name = "default", .factor = 1};
        scaled = plain;
        scaled.rope = (struct rope_config){.theta = 500000,
                                           .kind = ROPE_LLAMA3,
                                           .kind_name = "llama3",
                                           .factor = k ? 8 : 32,
                                           .low_freq_factor = 1,
                                           .high_freq_factor = 4,
                                           .original_max_positions = originals[k]};
        must(model_rope_frequencies(&plain, 0, base, &err), &err);
        must(model_rope_frequencies(&scaled, 0, want, &err), &err);
        for (int i = 0; i < 64; i++)
            divisors[i] = (float)(base[i] / want[i]);
        struct model_config found = plain;
        must(gguf_infer_rope(divisors, 64, &found, &err), &err);
        assert_int_equal(found.rope.kind, ROPE_LLAMA3);
        assert_true(found.rope.original_max_positions == originals[k]);
        must(model_rope_frequencies(&found, 0, got, &err), &err);
        for (int i = 0; i < 64; i++)
            assert_true(got[i] / want[i] > 0.99999 && got[i] / want[i] < 1.00001);
        divisors[20] *= 1.5f;
        found = plain;
        assert_int_equal(gguf_infer_rope(divisors, 64, &found, &err), -1);
        assert_int_equal(gguf_infer_rope(divisors, 63, &found, &err), -1);
        for (int i = 0; i < 64; i++)
            divisors[i] = 1;
        must(gguf_infer_rope(divisors, 64, &found, &err), &err);
        assert_int_equal(found.rope.kind, ROPE_DEFAULT);
    }
}

static void copy_golden(const struct scratch *scratch, const char *name, const char *as)
{
    struct buf bytes = {.limit = 8 << 20};
    struct err err;
    char from[512];
    snprintf(from, sizeof(from), "%s%s", GOLDEN, name);
    must(file_read_all(from, 8 << 20, &bytes, &err), &err);
    must(file_write_atomic(scratch_path(scratch, as), bytes.data, bytes.size, 0600, &err), &err);
    buf_fini(&bytes);
}

static void refused(const struct scratch *scratch, enum err_code code, const char *word)
{
    struct model *m;
    struct err err = {0};
    if (model_open_path(scratch->dir, &m, &err) == 0)
        fail_msg("accepted, wanted: %s", word);
    if (err.code != code || !strstr(err.text, word))
        fail_msg("wanted \"%s\": %s (%s)", word, err.text, err_code_name(err.code));
}

static void opens(const char *path)
{
    struct model *m;
    struct err err;
    must(model_open_path(path, &m, &err), &err);
    model_close(m);
}

static void folders_that_contradict_themselves_are_refused(void **state)
{
    (void)state;
    struct scratch scratch;
    struct err err;
    assert_int_equal(scratch_make(&scratch), 0);
    refused(&scratch, ERR_NOT_FOUND, "holds no model");
    copy_golden(&scratch, "llama/config.json", "config.json");
    refused(&scratch, ERR_NOT_FOUND, "no weights");
    must(file_write_atomic(scratch_path(&scratch, "pytorch_model.bin"), "PK", 2, 0600, &err), &err);
    refused(&scratch, ERR_UNSUPPORTED, "pytorch_model.bin alone, which is not read: make safetensors");
    copy_golden(&scratch, "llama/logits.safetensors", "model.safetensors");
    refused(&scratch, ERR_NOT_FOUND, "model.embed_tokens.weight");
    copy_golden(&scratch, "llama/model.safetensors", "model.safetensors");
    static const char other[] = "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":177,"
                                "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"num_hidden_layers\":4,"
                                "\"vocab_size\":259}";
    must(file_write_atomic(scratch_path(&scratch, "config.json"), other, sizeof(other) - 1, 0600, &err),
         &err);
    refused(&scratch, ERR_INVALID, "gate_proj");
    /* An index beside model.safetensors is ignored; without that file it is used. */
    copy_golden(&scratch, "llama/model.safetensors", "model-1.safetensors");
    unlink(scratch_path(&scratch, "model.safetensors"));
    static const char away[] = "{\"weight_map\":{\"a\":\"../../etc/passwd\"}}";
    must(file_write_atomic(scratch_path(&scratch, "model.safetensors.index.json"), away, sizeof(away) - 1,
                           0600, &err),
         &err);
    refused(&scratch, ERR_INVALID, "no plain file name");
    static const char gone[] = "{\"weight_map\":{\"a\":\"model-2.safetensors\"}}";
    must(file_write_atomic(scratch_path(&scratch, "model.safetensors.index.json"), gone, sizeof(gone) - 1,
                           0600, &err),
         &err);
    refused(&scratch, ERR_NOT_FOUND, "model-2.safetensors");
    static const char wrong[] = "{\"weight_map\":{\"nothing\":\"model-1.safetensors\"}}";
    copy_golden(&scratch, "llama/config.json", "config.json");
    must(file_write_atomic(scratch_path(&scratch, "model.safetensors.index.json"), wrong, sizeof(wrong) - 1,
                           0600, &err),
         &err);
    refused(&scratch, ERR_CORRUPT, "weight_map.nothing");
    copy_golden(&scratch, "llama/model.safetensors", "model.safetensors");
    opens(scratch.dir);
    scratch_remove(&scratch);
}

static void put(const struct scratch *scratch, const char *name, const char *text, size_t size)
{
    struct err err;
    must(file_write_atomic(scratch_path(scratch, name), text, size, 0600, &err), &err);
}

static void weights_are_found_under_any_name_or_the_choice_is_asked_for(void **state)
{
    (void)state;
    struct scratch scratch;
    assert_int_equal(scratch_make(&scratch), 0);
    copy_golden(&scratch, "llama/config.json", "config.json");
    put(&scratch, "adapter_model.safetensors", "x", 1);
    refused(&scratch, ERR_INVALID, "method.start_from");
    unlink(scratch_path(&scratch, "adapter_model.safetensors"));
    copy_golden(&scratch, "llama/model.safetensors", "mine.safetensors");
    opens(scratch.dir);
    copy_golden(&scratch, "llama/model.safetensors", "yours.safetensors");
    refused(&scratch, ERR_INVALID, "holds 2 .safetensors files");
    unlink(scratch_path(&scratch, "yours.safetensors"));
    assert_int_equal(rename(scratch_path(&scratch, "mine.safetensors"),
                            scratch_path(&scratch, "consolidated.safetensors")),
                     0);
    refused(&scratch, ERR_INVALID, "Mistral's own layout");
    put(&scratch, "a.gguf", "GGUF", 4);
    put(&scratch, "b.GGUF", "GGUF", 4);
    refused(&scratch, ERR_INVALID, "holds 2 .gguf files");
    scratch_remove(&scratch);
}

/* In a hub's cache, models--x--y, refs/main names a snapshot, whose files are links into blobs/. */
static void a_hubs_cache_is_the_folder_that_its_main_names(void **state)
{
    (void)state;
    struct scratch scratch;
    static const char *const folders[] = {"refs", "snapshots", "snapshots/aa", "snapshots/bb", "blobs"};
    assert_int_equal(scratch_make(&scratch), 0);
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++)
        assert_int_equal(mkdir(scratch_path(&scratch, folders[i]), 0700), 0);
    copy_golden(&scratch, "llama/config.json", "blobs/1");
    copy_golden(&scratch, "llama/model.safetensors", "blobs/2");
    assert_int_equal(symlink("../../blobs/1", scratch_path(&scratch, "snapshots/aa/config.json")), 0);
    assert_int_equal(symlink("../../blobs/2", scratch_path(&scratch, "snapshots/aa/model.safetensors")), 0);
    refused(&scratch, ERR_INVALID, "2 snapshots and no refs/main");
    put(&scratch, "refs/main", "aa\n", 3);
    opens(scratch.dir);
    unlink(scratch_path(&scratch, "refs/main"));
    assert_int_equal(rmdir(scratch_path(&scratch, "snapshots/bb")), 0);
    opens(scratch.dir);
    scratch_remove(&scratch);
}

static void a_file_that_is_something_else_is_named_by_what_it_is(void **state)
{
    (void)state;
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 134\n";
    static const char page[] = "<!DOCTYPE html>\n<html><head>";
    static const char torch[] = "PK\x03\x04                          archive/data.pkl";
    struct scratch scratch;
    assert_int_equal(scratch_make(&scratch), 0);
    copy_golden(&scratch, "llama/config.json", "config.json");
    put(&scratch, "model.safetensors", pointer, sizeof(pointer) - 1);
    refused(&scratch, ERR_CORRUPT, "model.safetensors: the file is a Git LFS pointer");
    refused(&scratch, ERR_CORRUPT, "git lfs pull");
    put(&scratch, "model.safetensors", page, sizeof(page) - 1);
    refused(&scratch, ERR_CORRUPT, "a web page (HTML)");
    put(&scratch, "model.safetensors", torch, sizeof(torch) - 1);
    refused(&scratch, ERR_CORRUPT, "a file of torch.save");
    put(&scratch, "model.safetensors", "GGUF\3\0\0\0\0", 9);
    refused(&scratch, ERR_CORRUPT, "a GGUF file");
    put(&scratch, "model.safetensors", "", 0);
    refused(&scratch, ERR_CORRUPT, "the file is empty");
    copy_golden(&scratch, "llama/model.safetensors", "model.safetensors");
    put(&scratch, "config.json", page, sizeof(page) - 1);
    refused(&scratch, ERR_INVALID, "config.json: the file is a web page (HTML)");
    put(&scratch, "config.json", pointer, sizeof(pointer) - 1);
    refused(&scratch, ERR_INVALID, "config.json: the file is a Git LFS pointer");
    put(&scratch, "config.json", "", 0);
    refused(&scratch, ERR_INVALID, "config.json: the file is empty");
    scratch_remove(&scratch);
}

/* ---- a simulated artifact store: manifests and ranges of the files in a folder ---- */

struct store {
    struct model_source *source;
    struct manifest manifests[8];
    char hex[8][65];
    uint64_t sent; /* bytes of ranges that were sent */
    int damage;    /* number of answers to come in which a bit is flipped */
    bool down;
};

static int store_get(void *self, const char *path, uint64_t offset, uint64_t size, uint64_t limit,
                     struct buf *out, struct err *err)
{
    struct store *s = self;
    for (uint32_t i = 0; i < model_source_file_count(s->source); i++) {
        if (strlen(path) < 75 || strncmp(path + 10, s->hex[i], 64) != 0)
            continue;
        if (s->down)
            return err_set(err, ERR_NET, "the store is down");
        out->limit = limit;
        if (strcmp(path + 74, "/manifest") == 0) {
            json_t *document = manifest_to_json(&s->manifests[i], err);
            char *text = json_dumps(document, 0);
            int status = buf_text(out, text, err);
            free(text);
            json_decref(document);
            return status;
        }
        break;
    }
    for (uint32_t i = 0; i < model_source_file_count(s->source); i++) {
        if (strncmp(path + 10, s->hex[i], 64) != 0)
            continue;
        if (s->down)
            return err_set(err, ERR_NET, "the store is down");
        out->limit = limit;
        must(buf_reserve(out, size, err), err);
        must(model_source_read(s->source, i, offset, size, out->data, err), err);
        out->size = size;
        s->sent += size;
        if (s->damage > 0) {
            s->damage--;
            out->data[size / 2] ^= 1;
        }
        return 0;
    }
    return err_set(err, ERR_NOT_FOUND, "no such blob");
}

static void store_open(struct store *s, const char *path)
{
    struct err err;
    memset(s, 0, sizeof(*s));
    must(model_source_open_local(path, &s->source, &err), &err);
    assert_true(model_source_file_count(s->source) <= 8);
    for (uint32_t i = 0; i < model_source_file_count(s->source); i++) {
        must(manifest_make(s->source, i, &s->manifests[i], &err), &err);
        digest_hex(s->manifests[i].sha256, 32, s->hex[i]);
    }
}

static void store_close(struct store *s)
{
    for (uint32_t i = 0; i < model_source_file_count(s->source); i++)
        manifest_fini(&s->manifests[i]);
    model_source_close(s->source);
}

static int open_through(struct store *s, const char *cache, uint64_t limit, const char *local,
                        const char *content, struct model_source **source, struct err *err)
{
    struct fetch_file files[8];
    uint32_t count = model_source_file_count(s->source);
    for (uint32_t i = 0; i < count; i++)
        files[i] = (struct fetch_file){.name = model_source_file(s->source, i)->name,
                                       .size = model_source_file(s->source, i)->size,
                                       .sha256 = s->hex[i],
                                       .path = local};
    struct fetch_transport transport = {.get = store_get, .self = s};
    struct fetch_options options = {.files = files,
                                    .file_count = count,
                                    .content = content,
                                    .cache_dir = cache,
                                    .cache_limit_bytes = limit,
                                    .resident_chunks = 2};
    return model_source_open_fetched(&options, &transport, source, err);
}

/* Writes a file of ten chunks and a part of one, of random bytes. */
static void write_big(const char *path, size_t size)
{
    uint8_t *bytes = malloc(size);
    struct rand_stream rand;
    struct err err;
    rand_stream_init(&rand, 5, 5);
    for (size_t i = 0; i + 8 <= size; i += 8) {
        uint64_t v = rand_stream_u64(&rand);
        memcpy(bytes + i, &v, 8);
    }
    must(file_write_atomic(path, bytes, size, 0600, &err), &err);
    free(bytes);
}

enum { CHUNK = MANIFEST_CHUNK_BYTES, BIG = 10 * CHUNK + 1000 };

/* A store that offers one big file, and a node's cache. */
struct big {
    struct scratch scratch;
    struct store store;
    char path[512], cache[512];
};

static void big_open(struct big *big)
{
    assert_int_equal(scratch_make(&big->scratch), 0);
    snprintf(big->path, sizeof(big->path), "%s", scratch_path(&big->scratch, "big"));
    snprintf(big->cache, sizeof(big->cache), "%s", scratch_path(&big->scratch, "cache"));
    write_big(big->path, BIG);
    store_open(&big->store, big->path);
}

static void big_close(struct big *big)
{
    store_close(&big->store);
    scratch_remove(&big->scratch);
}

static void only_the_chunks_that_are_read_are_fetched(void **state)
{
    (void)state;
    struct big big;
    struct model_source *source;
    struct model_source_stats stats;
    struct err err;
    uint8_t got[3000], want[3000];
    big_open(&big);
    must(open_through(&big.store, big.cache, 64 << 20, NULL, NULL, &source, &err), &err);
    uint64_t at = 3ull * CHUNK - 1000; /* this range crosses chunks 2 and 3 */
    must(model_source_read(source, 0, at, sizeof(got), got, &err), &err);
    must(model_source_read(big.store.source, 0, at, sizeof(want), want, &err), &err);
    assert_memory_equal(got, want, sizeof(got));
    assert_int_equal(big.store.sent, 2 * CHUNK);
    must(model_source_read(source, 0, BIG - 10, 10, got, &err), &err);
    assert_int_equal(big.store.sent, 2 * CHUNK + 1000);
    must(model_source_read(source, 0, at, sizeof(got), got, &err), &err);
    model_source_stats(source, &stats);
    assert_int_equal(stats.fetched_chunks, 3);
    assert_int_equal(stats.verified_chunks, stats.fetched_chunks + stats.cached_chunks);
    assert_int_equal(model_source_read(source, 0, BIG - 10, 11, got, &err), -1);
    model_source_close(source);

    /* Another process of the node finds the chunks in the cache, even when the store sends no more ranges. */
    must(open_through(&big.store, big.cache, 64 << 20, NULL, NULL, &source, &err), &err);
    big.store.down = true;
    must(model_source_read(source, 0, at, sizeof(got), got, &err), &err);
    assert_memory_equal(got, want, sizeof(got));
    assert_int_equal(model_source_read(source, 0, 0, 10, got, &err), -1);
    assert_int_equal(err.code, ERR_NET);
    model_source_stats(source, &stats);
    assert_int_equal(stats.fetched_chunks, 0);
    assert_int_equal(stats.cached_chunks, 2);
    model_source_close(source);
    big_close(&big);
}

/* Checks that 16 bytes read through a newly opened source are the store's, and closes the source. */
static void reads_right(struct big *big, struct model_source *source, uint64_t fetched_chunks)
{
    struct model_source_stats stats;
    struct err err;
    uint8_t got[16], want[16];
    must(model_source_read(source, 0, 5, 16, got, &err), &err);
    must(model_source_read(big->store.source, 0, 5, 16, want, &err), &err);
    assert_memory_equal(got, want, 16);
    model_source_stats(source, &stats);
    assert_int_equal(stats.fetched_chunks, fetched_chunks);
    model_source_close(source);
}

static void a_damaged_answer_or_cache_file_is_refused_and_fetched_anew(void **state)
{
    (void)state;
    struct big big;
    struct model_source *source;
    struct err err;
    uint8_t got[16];
    char hex[65], file[1200];
    big_open(&big);
    must(open_through(&big.store, big.cache, 64 << 20, NULL, NULL, &source, &err), &err);
    big.store.damage = 1;
    assert_int_equal(model_source_read(source, 0, 5, 16, got, &err), -1);
    assert_int_equal(err.code, ERR_PEER);
    reads_right(&big, source, 2); /* the damaged chunk was fetched once more */

    digest_hex(big.store.manifests[0].chunks[0], 32, hex);
    snprintf(file, sizeof(file), "%s/%.2s/%s", big.cache, hex, hex);
    FILE *f = fopen(file, "r+b");
    assert_non_null(f);
    int first = fgetc(f);
    rewind(f);
    fputc(first ^ 1, f);
    fclose(f);
    must(open_through(&big.store, big.cache, 64 << 20, NULL, NULL, &source, &err), &err);
    reads_right(&big, source, 1);
    big_close(&big);
}

static void a_local_path_is_believed_only_when_it_hashes_the_same(void **state)
{
    (void)state;
    struct big big;
    struct model_source *source;
    struct err err;
    big_open(&big);
    must(open_through(&big.store, NULL, 0, big.path, NULL, &source, &err), &err);
    reads_right(&big, source, 0);
    assert_int_equal(big.store.sent, 0);

    const char *other = scratch_path(&big.scratch, "other");
    struct buf zeros = {.limit = BIG};
    must(buf_reserve(&zeros, BIG, &err), &err);
    memset(zeros.data, 0, BIG);
    must(file_write_atomic(other, zeros.data, BIG, 0600, &err), &err);
    buf_fini(&zeros);
    must(open_through(&big.store, NULL, 0, other, NULL, &source, &err), &err);
    reads_right(&big, source, 1);
    assert_int_equal(big.store.sent, CHUNK);
    big_close(&big);
}

static void manifests_must_add_up_to_the_content_id(void **state)
{
    (void)state;
    struct big big;
    struct model_source *source;
    struct err err;
    char content[65];
    uint8_t id[32];
    const char *name = "big";
    big_open(&big);
    memset(content, 'a', 64);
    content[64] = 0;
    assert_int_equal(open_through(&big.store, NULL, 0, NULL, content, &source, &err), -1);
    assert_int_equal(err.code, ERR_CORRUPT);
    must(manifest_content_id(&name, big.store.manifests, 1, id, &err), &err);
    digest_hex(id, 32, content);
    must(open_through(&big.store, NULL, 0, NULL, content, &source, &err), &err);
    model_source_close(source);
    big_close(&big);
}

static void the_cache_keeps_its_bound_and_the_recently_used(void **state)
{
    (void)state;
    struct scratch scratch;
    struct chunk_cache *cache;
    struct err err;
    enum { PIECE = 4 << 20, LIMIT = 64 << 20, COUNT = 40 };
    uint8_t *data = calloc(1, PIECE), *back = malloc(PIECE), hashes[COUNT][32];
    assert_int_equal(scratch_make(&scratch), 0);
    assert_int_equal(chunk_cache_open(scratch.dir, 1000, &cache, &err), -1);
    must(chunk_cache_open(scratch.dir, LIMIT, &cache, &err), &err);
    for (int i = 0; i < COUNT; i++) {
        memcpy(data, &i, sizeof(i));
        must(digest_sha256(data, PIECE, hashes[i], &err), &err);
        assert_true(chunk_cache_put(cache, hashes[i], data, PIECE));
        /* this chunk is used all the time, so it stays */
        assert_true(chunk_cache_get(cache, hashes[0], back, PIECE));
        assert_true(chunk_cache_get(cache, hashes[i], back, PIECE));
        assert_memory_equal(back, data, PIECE);
    }
    int kept = 0;
    for (int i = 0; i < COUNT; i++)
        kept += chunk_cache_get(cache, hashes[i], back, PIECE);
    assert_true(kept >= 10 && kept <= LIMIT / PIECE);
    assert_false(chunk_cache_get(cache, hashes[1], back, PIECE));
    chunk_cache_close(cache);
    free(data);
    free(back);
    scratch_remove(&scratch);
}

static void a_content_id_is_of_contents_and_names_in_any_order(void **state)
{
    (void)state;
    struct store a, b;
    struct err err;
    uint8_t x[32], y[32];
    store_open(&a, GOLDEN "llama/config.json");
    store_open(&b, GOLDEN "llama/generation_config.json");
    const char *one[2] = {"a", "b"}, *two[2] = {"b", "a"};
    struct manifest m1[2] = {a.manifests[0], b.manifests[0]}, m2[2] = {b.manifests[0], a.manifests[0]};
    must(manifest_content_id(one, m1, 2, x, &err), &err);
    must(manifest_content_id(two, m2, 2, y, &err), &err);
    assert_memory_equal(x, y, 32);
    must(manifest_content_id(one, m2, 2, y, &err), &err);
    assert_memory_not_equal(x, y, 32);
    json_t *document = manifest_to_json(&a.manifests[0], &err);
    struct manifest back;
    must(manifest_parse(document, &back, &err), &err);
    assert_memory_equal(back.sha256, a.manifests[0].sha256, 32);
    manifest_fini(&back);
    json_object_set_new(document, "size", json_integer(1 << 30));
    assert_int_equal(manifest_parse(document, &back, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    json_decref(document);
    store_close(&a);
    store_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_and_a_sharded_folder_open_and_agree_with_their_config),
        cmocka_unit_test(ranges_of_blocks_add_up_to_their_parameters),
        cmocka_unit_test(a_gguf_gives_the_tensors_of_the_folder_it_was_made_from),
        cmocka_unit_test(rotary_divisors_of_a_gguf_are_llama3_scaling_or_refused),
        cmocka_unit_test(folders_that_contradict_themselves_are_refused),
        cmocka_unit_test(weights_are_found_under_any_name_or_the_choice_is_asked_for),
        cmocka_unit_test(a_hubs_cache_is_the_folder_that_its_main_names),
        cmocka_unit_test(a_file_that_is_something_else_is_named_by_what_it_is),
        cmocka_unit_test(only_the_chunks_that_are_read_are_fetched),
        cmocka_unit_test(a_damaged_answer_or_cache_file_is_refused_and_fetched_anew),
        cmocka_unit_test(a_local_path_is_believed_only_when_it_hashes_the_same),
        cmocka_unit_test(manifests_must_add_up_to_the_content_id),
        cmocka_unit_test(the_cache_keeps_its_bound_and_the_recently_used),
        cmocka_unit_test(a_content_id_is_of_contents_and_names_in_any_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
