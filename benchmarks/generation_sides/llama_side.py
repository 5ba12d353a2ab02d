"""llama.cpp through its own interface (the package `llama-cpp-python`, built from its sources, and `gguf`).

Each prompt is prefilled once; its samples share the cache. llama.cpp's own sampler draws the tokens, without
log-probs. The model is a float32 Qwen3 in Hugging Face format, which is converted to a GGUF file.
"""

import ctypes
import json
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
from rounds import Generate, Prompts, run_rounds
from safetensors.numpy import load_file

KINDS = {"bfloat16": gguf.GGMLQuantizationType.BF16, "float32": gguf.GGMLQuantizationType.F32}
_SEED = 1


def start(folder: Path, settings: dict[str, Any]) -> Generate:
    """Converts and loads the model."""
    path = folder.parent / f"{settings['dtype']}.gguf"
    write_gguf(
        folder, path, gguf.GGMLQuantizationType[{"bfloat16": "BF16", "float32": "F32"}[settings["dtype"]]]
    )
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    assert model, f"llama.cpp cannot read {path}"
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = settings["length"] * settings["rows"]
    params.n_seq_max = settings["rows"]
    params.n_threads = params.n_threads_batch = settings["threads"]
    params.kv_unified = False  # each sequence attends to its own cache only
    context = llama_cpp.llama_init_from_model(model, params)
    assert context, "llama.cpp cannot make a context"
    return Decoder(context, settings["rows"]).generate


class Decoder:
    """Decodes a batch of sequences, each with a sampler of its own."""

    def __init__(self, context: Any, rows: int) -> None:
        self._context = context
        self._memory = llama_cpp.llama_get_memory(context)
        self._batch = llama_cpp.llama_batch_init(max(rows, 2048), 0, 1)
        self._sampler = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        llama_cpp.llama_sampler_chain_add(self._sampler, llama_cpp.llama_sampler_init_dist(_SEED))

    def generate(self, prompts: Prompts, budgets: list[int]) -> int:
        """Decodes a token of every unfinished sequence at a time."""
        llama_cpp.llama_memory_clear(self._memory, True)
        tokens = self._prefill(prompts)
        total, position = len(tokens), len(prompts[0])
        running = [row for row, budget in enumerate(budgets) if budget > 1]
        for step in range(1, max(budgets)):
            for place, row in enumerate(running):
                self._put(place, tokens[row], position, row, wanted=True)
            self._decode(len(running))
            for place, row in enumerate(running):
                tokens[row] = self._draw(place)
            total += len(running)
            position += 1
            running = [row for row in running if budgets[row] > step + 1]
        return total

    def _prefill(self, prompts: Prompts) -> list[int]:
        """Returns the first token of each row; neighbours with equal prompts share one prefill."""
        tokens: list[int] = []
        for row, prompt in enumerate(prompts):
            if row and prompt == prompts[row - 1]:
                llama_cpp.llama_memory_seq_cp(self._memory, row - 1, row, -1, -1)
            else:
                for place, token in enumerate(prompt):
                    self._put(place, token, place, row, wanted=place == len(prompt) - 1)
                self._decode(len(prompt))
            tokens.append(self._draw(-1))
        return tokens

    def _put(self, place: int, token: int, position: int, row: int, *, wanted: bool) -> None:
        batch = self._batch
        batch.token[place], batch.pos[place], batch.logits[place] = token, position, wanted
        batch.n_seq_id[place], batch.seq_id[place][0] = 1, row

    def _decode(self, count: int) -> None:
        self._batch.n_tokens = count
        assert llama_cpp.llama_decode(self._context, self._batch) == 0

    def _draw(self, place: int) -> int:
        return int(llama_cpp.llama_sampler_sample(self._sampler, self._context, place))


def write_gguf(folder: Path, path: Path, kind: gguf.GGMLQuantizationType) -> None:
    """Writes a Qwen3 model without a tokenizer as a GGUF file."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_parameters", config)["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    for name, values in load_file(folder / "model.safetensors").items():
        own = kind if values.ndim > 1 else gguf.GGMLQuantizationType.F32
        data = gguf.quants.quantize(values, own)
        writer.add_tensor(names.get_name(name, (".weight",)), data, raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    silence = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silence, ctypes.c_void_p(0))
    run_rounds(start)
