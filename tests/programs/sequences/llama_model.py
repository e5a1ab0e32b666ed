"""Writes a Llama of two layers with random weights and 512 words as the GGUF file that the argument names."""

import sys

import gguf
import numpy as np

WIDTH, HEADS, LAYERS, INNER, WORDS = 64, 4, 2, 128, 512
UNKNOWN, CONTROL, BYTE, NORMAL = 2, 3, 6, 1

random = np.random.default_rng(1)
model = gguf.GGUFWriter(sys.argv[1], "llama")
model.add_context_length(256)
model.add_embedding_length(WIDTH)
model.add_block_count(LAYERS)
model.add_feed_forward_length(INNER)
model.add_head_count(HEADS)
model.add_head_count_kv(HEADS)
model.add_layer_norm_rms_eps(1e-5)
model.add_vocab_size(WORDS)
model.add_rope_dimension_count(WIDTH // HEADS)

words = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
kinds = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
rest = WORDS - len(words)
model.add_tokenizer_model("llama")
model.add_token_list(words + [f"w{i}" for i in range(rest)])
model.add_token_scores([0.0] * WORDS)
model.add_token_types(kinds + [NORMAL] * rest)
model.add_unk_token_id(0)
model.add_bos_token_id(1)
model.add_eos_token_id(2)


def weights(name, *shape):
    values = random.standard_normal(shape) * 0.1
    model.add_tensor(f"{name}.weight", values.astype(np.float16 if len(shape) > 1 else np.float32))


weights("token_embd", WORDS, WIDTH)
weights("output_norm", WIDTH)
weights("output", WORDS, WIDTH)
for layer in range(LAYERS):
    block = f"blk.{layer}."
    weights(block + "attn_norm", WIDTH)
    weights(block + "ffn_norm", WIDTH)
    for part in ("q", "k", "v", "output"):
        weights(block + f"attn_{part}", WIDTH, WIDTH)
    weights(block + "ffn_gate", INNER, WIDTH)
    weights(block + "ffn_up", INNER, WIDTH)
    weights(block + "ffn_down", WIDTH, INNER)
model.write_header_to_file()
model.write_kv_data_to_file()
model.write_tensors_to_file()
model.close()
