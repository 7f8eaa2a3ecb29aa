"""One small Qwen3 for both models: make, train, save, load, answer. Deterministic: one thread, fixed seeds."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Protocol

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch.nn import functional
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

if TYPE_CHECKING:
    from pathlib import Path

    from tiny_data import Example

PEAK_LR, WARMUP_STEPS, IGNORED = 2e-3, 100, -100


class Data(Protocol):
    def batch(self) -> list[Example]: ...


def deterministic(seed: int) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)


def make_model(vocab: int, context: int, *, bos: int, eos: int, pad: int) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=vocab,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=bos,
        eos_token_id=eos,
        pad_token_id=pad,
    )
    return Qwen3ForCausalLM(config)


def train(model: Qwen3ForCausalLM, data: Data, steps: int, title: str) -> None:
    """Next-token loss on the answers only; AdamW, warm-up, cosine decay."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: lr_scale(step, steps))
    model.train()
    with progress("accuracy {task.fields[accuracy]:.1%}") as bar:
        task = bar.add_task(title, total=steps, loss=math.nan, accuracy=0.0)
        for step in range(1, steps + 1):
            loss, accuracy = _step(model, optimizer, *_tensors(data.batch()))
            schedule.step()
            if step % 20 == 0:
                bar.update(task, completed=step, loss=loss, accuracy=accuracy)
            if step % 100 == 0:
                bar.console.print(f"{title} step {step}: loss {loss:.5f}, token accuracy {accuracy:.2%}")


def _step(model, optimizer, inputs: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    logits = model(input_ids=inputs).logits[:, :-1]
    wanted = labels[:, 1:]
    loss = functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    counted = wanted != IGNORED
    right = (logits.argmax(-1) == wanted)[counted].float().mean()
    return loss.item(), right.item()


def _tensors(batch: list[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    length = max(len(prompt) + len(answer) for prompt, answer in batch)
    inputs = torch.zeros(len(batch), length, dtype=torch.long)
    labels = torch.full((len(batch), length), IGNORED)
    for row, (prompt, answer) in enumerate(batch):
        inputs[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    return inputs, labels


def lr_scale(step: int, steps: int) -> float:
    """Warm-up, then a cosine down to a hundredth."""
    cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
    return min(1.0, (step + 1) / WARMUP_STEPS) * max(0.01, cosine)


def progress(*shown: str) -> Progress:
    """A bar with the loss and what else is ``shown`` of a task's fields."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
        *(TextColumn(field) for field in shown),
        TimeRemainingColumn(),
    )


def save(model: Qwen3ForCausalLM, folder: Path) -> None:
    """bf16 safetensors, config.json, generation_config.json (greedy)."""
    folder.mkdir(parents=True, exist_ok=True)
    config = model.config
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors writes 0600, which a wheel would keep


def load(folder: Path) -> Qwen3ForCausalLM:
    """As vLLM runs it: stored as bf16, computed in float32."""
    return Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.inference_mode()
def answer(model: Qwen3ForCausalLM, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Greedy outputs without their end mark. Prompts of one length share a batch, so nothing is padded."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for i, prompt in enumerate(prompts):
        by_length[len(prompt)].append(i)
    outputs: list[list[int]] = [[] for _ in prompts]
    end = model.config.eos_token_id
    for length, members in by_length.items():
        inputs = torch.tensor([prompts[i] for i in members])
        made = model.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=max_tokens, do_sample=False
        )
        for i, row in zip(members, made[:, length:].tolist(), strict=True):
            outputs[i] = row[: row.index(end)] if end in row else row
    return outputs
