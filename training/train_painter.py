"""Train tiny-omni's painter: a class-conditional diffusion model of handwritten digits, 8 by 8 pixels.

    python training/train_painter.py                 # into the package's weights folder: about two minutes
    python training/train_painter.py --check         # no training: print the quality of the weights that are there

Seeded, one thread, a fixed number of steps: the same versions of torch on the same kind of CPU give the same weights.
Quality is measured on the stored fp16 weights, computed in float32, which is how tiny-omni runs them.
"""

from __future__ import annotations

import argparse
import copy
import math
import shutil
from pathlib import Path

import tiny_model
import torch
from diffusers import DDIMScheduler, DDPMScheduler, UNet2DModel
from painter_data import DigitJudge, Digits, painter_digits
from rich import print
from torch.nn import functional

from omni_actors.pipelines.tiny_omni._vocabulary import WEIGHTS
from omni_actors.pipelines.tiny_omni.painter import ANY_DIGIT, TILE, DigitPainter

STEPS, BATCH, PEAK_LR, EMA = 1_000, 64, 2e-3, 0.995
DROP = 0.1
"""How often a label is hidden, so that the model also learns digits of no kind, which guidance leads away from."""


def make_unet() -> UNet2DModel:
    return UNet2DModel(
        sample_size=TILE,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
        attention_head_dim=8,
        num_class_embeds=ANY_DIGIT + 1,
    )


def train(folder: Path, seed: int, steps: int) -> None:
    tiny_model.deterministic(seed)
    unet, noising = make_unet(), DDPMScheduler()
    average = copy.deepcopy(unet).requires_grad_(False)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=PEAK_LR, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: tiny_model.lr_scale(step, steps))
    images, labels = tensors(painter_digits())
    with tiny_model.progress() as bar:
        task = bar.add_task("painter", total=steps, loss=math.nan)
        for step in range(1, steps + 1):
            loss = _step(unet, noising, optimizer, images, labels)
            schedule.step()
            _follow(average, unet, step)
            if step % 20 == 0:
                bar.update(task, completed=step, loss=loss)
            if step % 200 == 0:
                bar.console.print(f"painter step {step}: loss {loss:.4f}")
    save(average, noising, folder)


def tensors(digits: Digits) -> tuple[torch.Tensor, torch.Tensor]:
    """Images as the model sees them: (n, 1, 8, 8), paper -1, ink 1."""
    return torch.from_numpy(digits.images)[:, None] * 2 - 1, torch.from_numpy(digits.labels)


def _step(unet, noising, optimizer, images: torch.Tensor, labels: torch.Tensor) -> float:
    """One step of noise prediction on a random batch."""
    chosen = torch.randint(len(images), (BATCH,))
    clean, kinds = images[chosen], labels[chosen]
    kinds = torch.where(torch.rand(BATCH) < DROP, ANY_DIGIT, kinds)
    noise, times = torch.randn_like(clean), torch.randint(noising.config.num_train_timesteps, (BATCH,))
    guess = unet(noising.add_noise(clean, noise, times), times, class_labels=kinds, return_dict=False)[0]
    loss = functional.mse_loss(guess, noise)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
    optimizer.step()
    return loss.item()


@torch.no_grad()
def _follow(average: UNet2DModel, unet: UNet2DModel, step: int) -> None:
    """Move the averaged weights towards the trained ones; the first steps count less the longer it goes on."""
    keep = min(EMA, (1 + step) / (10 + step))
    for mine, theirs in zip(average.parameters(), unet.parameters(), strict=True):
        mine.lerp_(theirs, 1 - keep)


def save(unet: UNet2DModel, noising: DDPMScheduler, folder: Path) -> None:
    """A diffusers folder: fp16 weights, the sampler's configuration."""
    DigitPainter(unet=unet.half(), scheduler=DDIMScheduler.from_config(noising.config)).save_pretrained(folder)
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(0o644)  # safetensors writes 0600, which a wheel would keep


def scores(folder: Path) -> list[str]:
    painter, judge = DigitPainter.from_pretrained(folder), DigitJudge()
    singles = [digit for digit in range(10) for _ in range(20)]
    doubles = [10 + number % 9 for number in range(100)]
    return [_score(painter, judge, "single digits", singles), _score(painter, judge, "two-digit numbers", doubles)]


def _score(painter: DigitPainter, judge: DigitJudge, name: str, numbers: list[int]) -> str:
    right = 0
    for seed, number in enumerate(numbers):
        picture = painter(number, generator=torch.Generator().manual_seed(seed)).images[0]
        right += judge.read_picture(picture) == str(number)
    return f"{name}: {right}/{len(numbers)} read as asked"


def main() -> None:
    options = _options()
    folder = options.out / "painter"
    if not options.check:
        shutil.rmtree(folder, ignore_errors=True)
        train(folder, options.seed, options.steps)
    for score in scores(folder):
        print(f"painter: {score}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="the folder that gets painter/")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS, help="other than the usual number: for a quick try")
    parser.add_argument("--check", action="store_true", help="print the quality of the stored weights, train nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
