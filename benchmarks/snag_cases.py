"""What people's models, optimizers and data do that trainers trip over: a `Training` for each, as its user writes it.

`benchmarks/snags.py` runs them. No line of it is about ranks or failures.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from rtk.runners.torch.optimizers import decay_groups
from rtk.train import Training, add_loss

WIDTH, ROWS, LENGTH, WORDS, MICROBATCHES, SLOW_S = 8, 4, 6, 12, 4, 0.004

Layers = list[nn.Module]


def linear() -> nn.Module:
    """The layer of most cases."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


def adamw(parameters: Iterable[nn.Parameter], **more: Any) -> torch.optim.Optimizer:
    """The optimizer of most cases."""
    return torch.optim.AdamW(parameters, lr=0.02, weight_decay=0.1, **more)


def mean_squares(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A mean, which counts 1."""
    return F.mse_loss(output.float() if output.dtype == torch.bfloat16 else output, target)


def words_that_count(output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(sum, count) of the targets that are not ignored."""
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="sum"), (target != -100).sum()


class Numbers:
    """Rows of numbers, to be mapped to others."""

    def __init__(self, dtype: torch.dtype = torch.float64, microbatches: int = MICROBATCHES) -> None:
        self.dtype, self.microbatches = dtype, microbatches

    def batch(self, iteration: int) -> list[Any]:
        """The micro-batches of an iteration."""
        generator = torch.Generator().manual_seed(iteration)
        shape = (self.microbatches, 2, ROWS, LENGTH, WIDTH)
        values = torch.randn(shape, generator=generator, dtype=torch.float64).to(self.dtype)
        return [self.one(number, inputs, targets) for number, (inputs, targets) in enumerate(values)]

    def one(self, number: int, inputs: torch.Tensor, targets: torch.Tensor) -> Any:
        """A micro-batch of such values."""
        return inputs, targets


class Ignoring(Numbers):
    """Targets are words, of which other numbers count in each micro-batch."""

    def one(self, number: int, inputs: torch.Tensor, targets: torch.Tensor) -> Any:
        """A micro-batch of such values."""
        words = targets.argmax(-1)
        words[:, 1 + number :] = -100
        return inputs, words


class OfUnlikeLengths(Numbers):
    """Each micro-batch has another length."""

    def one(self, number: int, inputs: torch.Tensor, targets: torch.Tensor) -> Any:
        """A micro-batch of such values."""
        return inputs[:, number:], targets[:, number:]


class WithMask(Numbers):
    """A mask beside the inputs: in a tuple, in a dict, or by name."""

    def __init__(self, how: Literal["tuple", "dict", "name"]) -> None:
        super().__init__()
        self.how = how

    def one(self, number: int, inputs: torch.Tensor, targets: torch.Tensor) -> Any:
        """A micro-batch of such values."""
        mask = (inputs[..., 0] > 0).to(torch.int64)
        if self.how == "name":
            return inputs, targets, {"mask": mask}
        return (inputs, mask) if self.how == "tuple" else {"hidden": inputs, "mask": mask}, targets


class Words(Numbers):
    """Words, to be followed by others."""

    def one(self, number: int, inputs: torch.Tensor, targets: torch.Tensor) -> Any:
        """A micro-batch of such values."""
        return inputs.argmax(-1), targets.argmax(-1)


class MapStyle:
    """Rows by number, for torch's loader."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(row)
        inputs, target = torch.randn(2, LENGTH, WIDTH, generator=generator, dtype=torch.float64)
        return inputs, target


class Masked(nn.Module):
    """Takes and gives a mask beside what it computes, in a tuple or a dict."""

    def __init__(self, is_last: bool = False) -> None:
        super().__init__()
        self.linear, self.is_last = nn.Linear(WIDTH, WIDTH), is_last

    def forward(self, given: Any) -> Any:
        """The same kind of thing; only what it has computed at the end."""
        hidden, mask = given.values() if isinstance(given, dict) else given
        hidden = torch.tanh(self.linear(hidden)) * mask.unsqueeze(-1)
        if self.is_last:
            return hidden
        return {"hidden": hidden, "mask": mask} if isinstance(given, dict) else (hidden, mask)


class TwoArguments(nn.Module):
    """Takes a mask by name."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """What is not masked."""
        found: torch.Tensor = torch.tanh(self.linear(hidden)) * mask.unsqueeze(-1)
        return found


class WithAux(nn.Module):
    """A layer with a loss of its own, which it returns, or adds."""

    def __init__(self, returns: bool, is_last: bool = False) -> None:
        super().__init__()
        self.linear, self.returns, self.is_last = nn.Linear(WIDTH, WIDTH), returns, is_last
        self.last = torch.zeros(())

    def forward(self, given: Any) -> Any:
        """What it computes, and what that costs."""
        hidden, aux = given if isinstance(given, tuple) else (given, 0.0)
        hidden = torch.tanh(self.linear(hidden))
        own = 0.1 * hidden.square().mean()
        if self.returns:
            return hidden, aux + own
        self.last = own
        add_loss(own)
        return hidden


def with_aux(output: tuple[torch.Tensor, torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    """Of layers that return it."""
    return mean_squares(output[0], target) + output[1]


class Experts(nn.Module):
    """A router, and experts of which each row of numbers has one."""

    def __init__(self, unused: bool = False) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4 if unused else 3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Of the inputs' shape."""
        flat = inputs.flatten(0, -2)
        weights, chosen = self.router(flat).softmax(-1).max(-1)
        output = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().flatten()
            if len(rows):
                output = output.index_add(0, rows, expert(flat[rows]) * weights[rows].unsqueeze(-1))
        return inputs + output.view_as(inputs)


class Autocasting(nn.Module):
    """Computes in bfloat16 by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Of the inputs' shape, in float32."""
        with torch.autocast("cpu", torch.bfloat16):
            found: torch.Tensor = torch.tanh(self.linear(inputs))
        return found.float()


class Normed(nn.Module):
    """BatchNorm over channels, which takes its time; what it gives is not in one piece."""

    def __init__(self, pause_s: float = 0.0) -> None:
        super().__init__()
        self.norm, self.pause_s = nn.BatchNorm1d(WIDTH), pause_s
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)  # a norm takes a bias away, and leaves it rounding errors

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Of the inputs' shape."""
        time.sleep(self.pause_s)
        found: torch.Tensor = torch.tanh(self.norm(self.linear(inputs).transpose(1, 2))).transpose(1, 2)
        return found


class Slow(nn.Module):
    """A layer that takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Of the inputs' shape."""
        time.sleep(SLOW_S)
        found: torch.Tensor = self.inner(inputs)
        return found


class Transposed(nn.Module):
    """Gives what is not in one piece."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """With the first two dimensions the other way round."""
        found: torch.Tensor = torch.tanh(self.linear(inputs)).transpose(0, 1)
        return found


class Reentrant(nn.Module):
    """Recomputes a layer in torch's older way."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """What the layer gives."""
        if not inputs.requires_grad:  # which torch alone does not train
            inputs = inputs.detach().requires_grad_()
        found: torch.Tensor = checkpoint(self.inner, inputs, use_reentrant=True)
        return found


class LowRank(nn.Module):
    """LoRA by hand: a frozen matrix and two small ones."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Of the inputs' shape."""
        found: torch.Tensor = torch.tanh(self.base(inputs) + self.up(self.down(inputs)))
        return found


def low_rank() -> Layers:
    """Layers with LoRA: peft's where it is installed."""
    try:
        from peft import LoraConfig, inject_adapter_in_model  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return [LowRank() for _ in range(4)]
    config = LoraConfig(r=2, target_modules=["0"], init_lora_weights=False)
    return [inject_adapter_in_model(config, linear()) for _ in range(4)]


def has_peft() -> bool:
    """Whether `low_rank` is peft's."""
    return not any(isinstance(one, LowRank) for one in low_rank())


def trainable_only(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW of what is not frozen."""
    return adamw([one for one in parameters if one.requires_grad])


def tied(first: int, second: int) -> Callable[[], Layers]:
    """Embedding and head with one matrix, with two layers between or none."""

    def make() -> Layers:
        embedding, head = nn.Embedding(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        head.weight = embedding.weight
        return [embedding, *(linear() for _ in range(first)), head, *(linear() for _ in range(second))]

    return make


class Zeroing(torch.optim.AdamW):
    """Clears gradients itself, as users do after a step."""

    def step(self, closure: Any = None) -> Any:
        """One step."""
        found = super().step(closure)
        self.zero_grad()
        return found


MADE: list[torch.optim.Optimizer] = []


def kept(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """An optimizer that the loss below finds."""
    MADE.append(adamw(parameters))
    return MADE[-1]


def clearing(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A loss that clears gradients in the middle of an iteration."""
    for one in MADE:
        one.zero_grad()
    return mean_squares(output, target)


def of_the_last_stage(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """An optimizer that cannot be made of the first stage."""
    ones = list(parameters)
    if any(one is MARKED[-1] for one in ones):
        raise ValueError("an optimizer of mine is broken")
    return adamw(ones)


MARKED: list[nn.Parameter] = []


def marked() -> Layers:
    """Layers of which the first is known."""
    made = [linear().double() for _ in range(4)]
    MARKED.append(next(made[0].parameters()))
    return made


class Sam(torch.optim.SGD):
    """Sharpness-aware: two backward passes a step."""

    def first_step(self) -> None:
        """To the worst place nearby."""

    def second_step(self) -> None:
        """And back, with the gradients of there."""


def double(make: Callable[[], Sequence[nn.Module]]) -> Callable[[], Layers]:
    """The same layers in float64."""
    return lambda: [layer.double() for layer in make()]


def four(make: Callable[[], nn.Module]) -> Callable[[], Layers]:
    """Four such layers in float64."""
    return double(lambda: [make() for _ in range(4)])


Reference = Literal["torch", "torch, gradients zeroed and not dropped", "itself", "torch, sums in float32"]

LINEARS = four(linear)


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Attributes:
        before: what happened when it was first tried.
        layers: the model's.
        data, loss, optimizer, more: of the `Training`.
        schedule: of the plan.
        peers: pipelines.
        kill: iteration after which a worker is killed; None: none is.
        reference: what it is to be equal to: plain torch; the same with `zero_grad(set_to_none=False)`, or with
            gradients added up in float32; or the same training in one process, where plain torch has no such thing.
        refused: words of the message with which it is to be refused; None: it is to be equal.
        tolerance: of losses and parameters.
    """

    before: str
    layers: Callable[[], Layers] = LINEARS
    data: Callable[[], Any] = Numbers
    loss: Any = mean_squares
    optimizer: Any = adamw
    more: dict[str, Any] = field(default_factory=dict)
    schedule: Literal["1f1b", "zero-bubble"] = "1f1b"
    peers: int = 1
    kill: int | None = None
    reference: Reference = "torch"
    refused: str | None = None
    tolerance: float = 1e-12

    def training(self) -> Training:
        """What its user writes."""
        return Training(
            model=self.layers,
            data=self.data(),
            loss=self.loss,
            optimizer=self.optimizer,
            microbatch_size=ROWS,
            **self.more,
        )


EQUAL = "equal to 5 digits"
MASKS = "AttributeError: 'tuple' object has no attribute 'to'; no message of rtk's"
SINGLES = lambda: Numbers(torch.float32)  # noqa: E731
COMPILED = four(lambda: torch.compile(linear(), backend="aot_eager"))  # type: ignore[arg-type, return-value, unused-ignore]
HALF: dict[str, Any] = {
    "data": SINGLES,
    "reference": "torch, sums in float32",
    "layers": lambda: [linear() for _ in range(4)],
}

CASES: dict[str, Case] = {
    "plain": Case(EQUAL),
    "plain, zero-bubble": Case(EQUAL, schedule="zero-bubble"),
    "plain, a worker killed": Case("not tried", double(lambda: [Slow() for _ in range(4)]), peers=2, kill=3),
    "fused AdamW": Case(EQUAL, optimizer=lambda ones: adamw(ones, fused=True)),
    "foreach AdamW": Case(EQUAL, optimizer=lambda ones: adamw(ones, foreach=True)),
    "Muon": Case(
        EQUAL,
        four(lambda: nn.Linear(WIDTH, WIDTH, bias=False)),
        optimizer=lambda ones: torch.optim.Muon(ones, lr=0.02),
        tolerance=1e-6,
    ),
    "two parameter groups": Case(EQUAL, optimizer=lambda ones: torch.optim.AdamW(decay_groups(ones, 0.5), lr=0.02)),
    "LoRA": Case(EQUAL, double(low_rank)),
    "LoRA, zero-bubble": Case(EQUAL, double(low_rank), schedule="zero-bubble"),
    "LoRA, optimizer of the trainable": Case(EQUAL, double(low_rank), optimizer=trainable_only),
    "first stage frozen": Case(
        EQUAL, double(lambda: [linear().requires_grad_(False) for _ in range(2)] + [linear() for _ in range(2)])
    ),
    "MoE": Case(EQUAL, four(Experts)),
    "MoE, zero-bubble": Case(EQUAL, four(Experts), schedule="zero-bubble"),
    "MoE, an expert that nobody uses": Case(
        "'unused experts fine'", four(lambda: Experts(unused=True)), reference="torch, gradients zeroed and not dropped"
    ),
    "bf16 parameters": Case(EQUAL, more={"precision": "bf16"}, **HALF),
    "bf16 sums (64 micro-batches)": Case(
        "gradients summed in bf16",
        more={"precision": "bf16"},
        **{**HALF, "data": lambda: Numbers(torch.float32, 64)},
    ),
    "autocast inside layers": Case(EQUAL, lambda: [Autocasting() for _ in range(4)], SINGLES, tolerance=1e-5),
    "torch.compile (aot_eager)": Case(EQUAL, COMPILED),
    "torch.compile, zero-bubble": Case(EQUAL, COMPILED, schedule="zero-bubble"),
    "Identity": Case(EQUAL, double(lambda: [linear(), nn.Identity(), linear(), nn.Identity()])),
    "dropout": Case(
        "equal to itself wherever run, not to torch's one generator",
        four(lambda: nn.Sequential(linear(), nn.Dropout(0.3))),
        reference="itself",
    ),
    "ignored targets": Case("mean of means, silently: gradients 34 % off", data=Ignoring, loss=words_that_count),
    "buffers, an iteration interrupted": Case(
        "running means and counts changed twice",
        double(lambda: [Normed(SLOW_S), Slow(), Slow(), Slow()]),
        peers=2,
        kill=3,
    ),
    "BatchNorm, two peers": Case("which peer's running mean was saved was chance", four(Normed), peers=2),
    "output not in one piece": Case("'lost touch with rank 1', which was alive", four(Transposed)),
    "stage without parameters": Case(
        "one rank: ValueError, the others hung", double(lambda: [linear(), linear(), nn.Tanh(), nn.ReLU()])
    ),
    "tied over stages": Case("refused on one rank, the other hung", double(tied(2, 0)), Words, words_that_count),
    "tied in one stage": Case(EQUAL, double(tied(0, 2)), Words, words_that_count),
    "layer returns (hidden, aux)": Case(
        "refused on one rank; the other: LostTouch",
        double(lambda: [WithAux(True) for _ in range(4)]),
        loss=with_aux,
    ),
    "layer adds a loss (add_loss)": Case("there was no such thing", four(lambda: WithAux(False))),
    "mask in a tuple": Case(
        MASKS, double(lambda: [*(Masked() for _ in range(3)), Masked(True)]), lambda: WithMask("tuple")
    ),
    "dict batches": Case(
        MASKS, double(lambda: [*(Masked() for _ in range(3)), Masked(True)]), lambda: WithMask("dict")
    ),
    "two arguments": Case(MASKS, four(TwoArguments), lambda: WithMask("name")),
    "lengths vary, over stages": Case(
        "SIGABRT of the receiver", data=OfUnlikeLengths, refused="the inputs of micro-batch"
    ),
    "first layer in place": Case(
        "'a leaf Variable that requires grad …'",
        double(lambda: [one for _ in range(2) for one in (nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH))]),
    ),
    "re-entrant checkpoint": Case("works", four(lambda: Reentrant(linear()))),
    "user calls zero_grad after a step": Case(
        "nothing was summed, without an error", optimizer=lambda ones: Zeroing(ones, lr=0.02)
    ),
    "user calls zero_grad in the loss": Case(
        "nothing was summed, without an error", loss=clearing, optimizer=kept, refused="in the middle of an iteration"
    ),
    "LBFGS (closure)": Case(
        "TypeError in the first step", optimizer=torch.optim.LBFGS, refused="cannot step with gradients alone"
    ),
    "optimizer fails on one rank": Case(
        "the others hung 45 s", marked, optimizer=of_the_last_stage, refused="an optimizer of mine is broken"
    ),
    "SAM-like": Case("not tried", optimizer=lambda ones: Sam(ones, lr=0.1), refused="two backward passes"),
    "loader workers": Case("there were none", data=MapStyle, more={"loader_workers": 2}),
}
