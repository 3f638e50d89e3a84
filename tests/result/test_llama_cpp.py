#!/usr/bin/env python3
"""llama.cpp computes with a GGUF base and the adapter that we write as GGUF what transformers computes with the merged model
that we write, within 1e-3 of the largest logit; an adapter whose rows of q and k stood in Hugging Face's order does not.

Needs a Python with torch, transformers, peft, gguf and llama_cpp (llama-cpp-python), named by MOTLEY_TORCH; a visible skip
otherwise. LLAMA_CPP_LIB_PATH may say where llama.cpp's libraries are, as that package reads it."""
import ctypes
import importlib.util
import os
import shutil
import sys
import tempfile

from test_loads import PYTHON, SOURCE, experts_adapter, load, logits, skip, write

FOLDERS = os.path.join(SOURCE, "tests", "data", "folders", "transformers5")
# OLMoE is not here: llama.cpp loads it without grouped queries alone, and the tiny one has them.
FAMILIES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "smollm3", "mixtral", "qwen3-moe-plain",
            "qwen2-moe-plain", "glm4-moe", "glm4-moe-normed", "dots1-plain", "ernie4-5-moe", "granitemoe", "olmo3",
            "olmo3-yarn", "glm-square", "lfm2")
EXPERTS = ("mixtral", "qwen3-moe-plain")
# Families whose q and k llama.cpp keeps in an order of its own.
PERMUTED = ("llama", "smollm3", "mixtral", "granitemoe")
# As long as the windows of the tiny models: llama.cpp computes Phi-3 without its window.
IDS = [1, 17, 4, 39, 22, 8]
TOLERANCE = 1e-3  # of the largest logit; Gemma: llama.cpp looks up gelu in a table of 16 bits


def rewrite(source, target, change=None, **extra):
    """A copy of a GGUF file with more metadata; change(name, values) may give other values."""
    import gguf
    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, arch)
    for name, field in reader.fields.items():
        if name != "general.architecture" and not name.startswith("GGUF."):
            writer.add_key_value(name, field.contents(), field.types[0],
                                 field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None)
    for key, value in extra.items():
        name = key.replace("__", ".").replace("ARCH", arch)
        writer.add_string(name, value) if isinstance(value, str) else writer.add_uint32(name, value)
    for tensor in reader.tensors:
        values = tensor.data.copy()
        writer.add_tensor(tensor.name, change(tensor.name, values) if change else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def run_llama_cpp(base, adapter, vocabulary):
    """The logits of every token of IDS."""
    import llama_cpp
    import torch
    quiet = llama_cpp.llama_log_callback(lambda level, text, user: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    model = llama_cpp.llama_model_load_from_file(base.encode(), llama_cpp.llama_model_default_params())
    assert model, f"llama.cpp does not load {base}"
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx, settings.n_batch, settings.n_ubatch, settings.n_threads = 64, 64, 64, 1
    settings.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    settings.type_k = settings.type_v = llama_cpp.GGML_TYPE_F32
    context = llama_cpp.llama_init_from_model(model, settings)
    assert context, f"llama.cpp makes no context for {base}"
    if adapter:
        loaded = llama_cpp.llama_adapter_lora_init(model, adapter.encode())
        assert loaded, f"llama.cpp does not load {adapter}"
        adapters, scales = (llama_cpp.llama_adapter_lora_p_ctypes * 1)(loaded), (ctypes.c_float * 1)(1.0)
        assert llama_cpp.llama_set_adapters_lora(context, adapters, 1, scales) == 0
    batch = llama_cpp.llama_batch_init(len(IDS), 0, 1)
    batch.n_tokens = len(IDS)
    for i, token in enumerate(IDS):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, 1
    assert llama_cpp.llama_decode(context, batch) == 0
    out = [llama_cpp.llama_get_logits_ith(context, i)[:vocabulary] for i in range(len(IDS))]
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return torch.tensor(out)


def make_adapter(base, folder):
    """An adapter of every linear that peft finds, of values large enough to matter beside tiny weights. Routers and shared
    experts, whose modules share names with dense layers', have none."""
    import torch
    from peft import LoraConfig, get_peft_model
    model = load(base)
    names = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    if "shared_expert" in str(names):
        names = [name for name in names if ".self_attn." in name]
    linear = {name.rsplit(".", 1)[-1] for name in names if ".router." not in name}
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8,
                                             target_modules=sorted(linear - {"lm_head"})))
    torch.manual_seed(7)
    for name, value in model.named_parameters():
        if value.requires_grad:
            value.data = torch.randn_like(value) * 0.3
    model.save_pretrained(folder)
    return folder


def unpermuted(heads, kv_heads):
    """lora_b of q and k back in Hugging Face's order."""
    def change(name, values):
        count = heads if "attn_q." in name else kv_heads if "attn_k." in name else 0
        if count == 0 or not name.endswith("lora_b"):
            return values
        dim = values.shape[0] // count
        return values.reshape(count, dim // 2, 2, -1).swapaxes(1, 2).reshape(values.shape).copy()
    return change


def compare(name, work):
    hub, out = os.path.join(FOLDERS, name), os.path.join(work, name)
    os.mkdir(out)
    base, adapter, merged = os.path.join(out, "base.gguf"), os.path.join(out, "adapter.gguf"), os.path.join(out, "merged")
    config = load(hub).config
    rewrite(os.path.join(FOLDERS, name + "-gguf", "model.gguf"), base, tokenizer__ggml__model="none",
            ARCH__vocab_size=config.vocab_size)
    kinds = {"linears": make_adapter(hub, os.path.join(out, "lora"))}
    if name in EXPERTS:
        kinds["experts"] = experts_adapter(name, os.path.join(out, "experts"), hub)
    plain = logits(load(hub), IDS)
    size = plain.abs().max().item()
    apart = (run_llama_cpp(base, None, config.vocab_size) - plain).abs().max().item()
    print(f"{name}: base {apart / size:.1e} of {size:.2g} apart")
    assert apart <= TOLERANCE * size, name
    for kind, folder in kinds.items():
        write("gguf", hub, folder, adapter, "fp32")
        write("merged", hub, folder, merged, "fp32")
        wanted = logits(load(merged), IDS)
        size, moved = wanted.abs().max().item(), (wanted - plain).abs().max().item()
        apart = (run_llama_cpp(base, adapter, config.vocab_size) - wanted).abs().max().item()
        print(f"{name}, {kind}: {apart / size:.1e} of {size:.2g} apart, {moved:.2g} by the adapter")
        assert apart <= TOLERANCE * size and moved > 10 * TOLERANCE * size, f"{name}, {kind}"
        if name in PERMUTED and kind == "linears":
            wrong = os.path.join(out, "wrong.gguf")
            rewrite(adapter, wrong, unpermuted(config.num_attention_heads, config.num_key_value_heads))
            apart = (run_llama_cpp(base, wrong, config.vocab_size) - wanted).abs().max().item()
            print(f"{name}: {apart / size:.1e} apart with q and k in Hugging Face's order")
            assert apart > TOLERANCE * size, f"{name}: the order of q and k makes no difference"
        shutil.rmtree(merged)
        os.unlink(adapter)


def run():
    import warnings
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as work:
        for name in sys.argv[1:] or FAMILIES:
            compare(name, work)


if __name__ == "__main__":
    if not PYTHON:
        skip("MOTLEY_TORCH names no Python with torch, transformers, peft, gguf and llama_cpp")
    if os.path.realpath(sys.prefix) != os.path.realpath(os.path.dirname(os.path.dirname(PYTHON))):
        os.execv(PYTHON, [PYTHON, *sys.argv])
    for package in ("torch", "transformers", "peft", "gguf", "llama_cpp"):
        if importlib.util.find_spec(package) is None:
            skip(f"{package} is not installed in {PYTHON}'s environment")
    run()
