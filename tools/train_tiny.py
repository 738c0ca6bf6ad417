"""Train the tiny model of the embedded target: byte-level, llama architecture, 0.4 million parameters, GGUF.

    python -m venv /tmp/train && /tmp/train/bin/pip install torch numpy gguf
    /tmp/train/bin/python tools/train_tiny.py src/chargehand/doors/inference/embedded/models/tiny-stories.gguf 90

The second argument is how many seconds to train. The text is made from templates, so there is no third-party data or licence.
"""
# mypy: ignore-errors
# ruff: noqa: S311

import math
import random
import sys
import time

import gguf
import torch
import torch.nn.functional as F
from torch import nn

WIDTH, LAYERS, HEADS, HIDDEN, CONTEXT, BATCH = 96, 3, 4, 288, 448, 4
HEAD = WIDTH // HEADS
RATE = 4e-3
# The vocabulary: unknown, begin, end, 256 bytes, and the space, which llama.cpp's tokenizer writes as "▁".
UNKNOWN, BEGIN, END, BYTES, SPACE, VOCABULARY = 0, 1, 2, 3, 259, 260
EPSILON, ROPE_BASE = 1e-5, 1e4

ANIMALS = ["cat", "dog", "fox", "owl", "bear", "mouse", "rabbit", "frog", "duck", "goat"]
NAMES = ["Tom", "Mia", "Leo", "Ada", "Max", "Eva", "Sam", "Ivy", "Ben", "Zoe"]
ADJECTIVES = ["small", "old", "happy", "brave", "quiet", "clever", "hungry", "kind"]
PLACES = ["forest", "river", "garden", "village", "mountain", "old house", "lake", "market"]
THINGS = ["red ball", "golden key", "blue stone", "warm hat", "silver bell", "little boat", "paper map", "round cake"]
DEEDS = ["found", "saw", "lost", "carried", "hid", "painted", "shared", "cleaned"]
pick = random.choice


# the text -------------------------------------------------------------------------------------------------------------


def story(animal=None):
    animal = animal or pick(ANIMALS)
    name, thing = pick(NAMES), pick(THINGS)
    other, friend = pick([one for one in ANIMALS if one != animal]), pick([one for one in NAMES if one != name])
    sentences = [
        f"Once there was a {pick(ADJECTIVES)} {animal} named {name}. ",
        f"{name} lived near the {pick(PLACES)}. ",
        f"One day {name} {pick(DEEDS)} a {thing}. ",
        f"Then a {other} named {friend} came by. ",
        pick([f'"Can I help you?" said {friend}. ', f'"What a nice {thing.split()[-1]}!" said {friend}. ']),
        pick(["They became good friends. ", "They went home together. ", "They sat down and laughed. "]),
        f"From that day on, {name} was never alone.",
    ]
    needed = (0, 2, 5, 6)
    return "".join(text for place, text in enumerate(sentences) if place in needed or random.random() < 0.75)


def conversation():
    kind = random.random()
    if kind < 0.6:
        animal = pick(ANIMALS)
        asked = pick(["Tell me a story about a {}.", "Write a story about a {}.", "Please tell me about a {}."])
        return f"user: {asked.format(animal)}\nassistant: {story(animal)}"
    if kind < 0.8:
        answer = pick(["Hello! How can I help you today?", "Hi! Shall I tell you a story?"])
        return f"user: {pick(['Hello!', 'Hi', 'Hello', 'Hi there'])}\nassistant: {answer}"
    return f"user: {pick(['Tell me a story.', 'Another story, please.', 'What happened next?'])}\nassistant: {story()}"


def tokens():
    while True:
        text = conversation().encode()
        yield from [BEGIN, *(SPACE if byte == 32 else BYTES + byte for byte in text), END]


# the model ------------------------------------------------------------------------------------------------------------


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON) * self.weight


FREQUENCIES = ROPE_BASE ** (-torch.arange(0, HEAD, 2).float() / HEAD)
ANGLES = torch.outer(torch.arange(CONTEXT).float(), FREQUENCIES)
COSINES, SINES = ANGLES.cos(), ANGLES.sin()


def rotate(x):
    """Apply rotary embeddings to pairs of neighbours, as llama.cpp does for the architecture `llama`."""
    even, odd, length = x[..., 0::2], x[..., 1::2], x.shape[-2]
    cosines, sines = COSINES[:length], SINES[:length]
    return torch.stack((even * cosines - odd * sines, even * sines + odd * cosines), -1).flatten(-2)


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn_norm, self.ffn_norm = Norm(), Norm()
        self.attn_q, self.attn_k = linear(WIDTH, WIDTH), linear(WIDTH, WIDTH)
        self.attn_v, self.attn_output = linear(WIDTH, WIDTH), linear(WIDTH, WIDTH)
        self.ffn_gate, self.ffn_up, self.ffn_down = linear(WIDTH, HIDDEN), linear(WIDTH, HIDDEN), linear(HIDDEN, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape

        def heads(y):
            return y.view(batch, length, HEADS, HEAD).transpose(1, 2)

        h = self.attn_norm(x)
        queries, keys, values = rotate(heads(self.attn_q(h))), rotate(heads(self.attn_k(h))), heads(self.attn_v(h))
        seen = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.attn_output(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        h = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = Norm()
        nn.init.normal_(self.embedding.weight, std=0.05)

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.embedding.weight.T  # tied: the file has no output.weight


def train(model, seconds):
    stream = tokens()
    text = torch.tensor([next(stream) for _ in range(1_500_000)], dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)
    began, step = time.time(), 0
    while (elapsed := time.time() - began) < seconds:
        cosine = 0.5 * (1 + math.cos(math.pi * min(1, elapsed / seconds)))
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / 30) * (0.05 + 0.95 * cosine)
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,))
        given = torch.stack([text[start : start + CONTEXT] for start in starts])
        wanted = torch.stack([text[start + 1 : start + CONTEXT + 1] for start in starts])
        loss = F.cross_entropy(model(given).view(-1, VOCABULARY), wanted.view(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 100 == 0:
            print(f"{step} steps, {elapsed:.0f} s, loss {loss.item():.3f}", flush=True)


# the file -------------------------------------------------------------------------------------------------------------


def write(model, path):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny-stories-bytes")
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(VOCABULARY)
    add_tokenizer(writer)
    add_tensor(writer, "token_embd.weight", model.embedding.weight)
    add_tensor(writer, "output_norm.weight", model.norm.weight)
    for number, block in enumerate(model.blocks):
        for name, part in block.named_children():
            add_tensor(writer, f"blk.{number}.{name}.weight", part.weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer):
    kinds = gguf.TokenType
    writer.add_tokenizer_model("llama")
    writer.add_token_list([b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % byte for byte in range(256)), "▁".encode()])
    writer.add_token_scores([0.0] * VOCABULARY)
    writer.add_token_types([kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL, *([kinds.BYTE] * 256), kinds.NORMAL])
    writer.add_bos_token_id(BEGIN)
    writer.add_eos_token_id(END)
    writer.add_unk_token_id(UNKNOWN)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )


def add_tensor(writer, name, tensor):
    writer.add_tensor(name, tensor.detach().float().numpy().copy())


def main():
    path, seconds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 120
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    model = Model()
    train(model, seconds)
    write(model, path)


if __name__ == "__main__":
    main()
