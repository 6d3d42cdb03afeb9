"""Models by name: our GPT, the presets, and factories in files."""

import math
import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rtk.profilers.models import load, model
from rtk.profilers.models.gpt import gpt_layers, language_model_loss
from rtk.profilers.models.load import load_model
from rtk.profilers.models.presets import PRESETS, GptConfig, gpt_parameters
from rtk.profilers.models.skeleton import Checkpointed
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.profile import ModelForm, form_of

SMALL = GptConfig(blocks=2, width=8, heads=2, vocabulary=11, positions=7)

GOOD = """
from torch import nn

def sequence():
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))

def words():
    return [nn.Embedding(17, 6), nn.Linear(6, 17)]
"""

OWN_EXAMPLE = """
import torch
from torch import nn

def images():
    return [nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 4, 10)]

def example(microbatch_size, sequence_length):
    return torch.randn(microbatch_size, 1, 4, 4), torch.randint(10, (microbatch_size,))
"""

WHOLE = """
from torch import nn

class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(19, 4)
        self.steps = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.out = nn.Linear(4, 19)

    def forward(self, tokens):
        x = self.words(tokens)
        for step in self.steps:
            x = step(x)
        return self.out(x)

def factory():
    return Whole()

def two():
    return [nn.Linear(2, 2), nn.Linear(2, 2)]

tensor_parallel = {"out": "vocabulary"}
"""


def parameters(layers: list[nn.Module]) -> list[nn.Parameter]:
    return list(nn.ModuleList(layers).parameters())


def write(folder: Path, text: str) -> str:
    path = folder / "mine.py"
    path.write_text(text)
    return str(path)


def test_gpt_maps_tokens_to_logits() -> None:
    """The layers, one after another, map (batch, sequence) to (batch, sequence, vocabulary)."""
    logits = nn.Sequential(*gpt_layers(SMALL))(torch.randint(11, (2, 5)))
    assert logits.shape == (2, 5, 11)


def test_gpt_is_causal() -> None:
    """A token changes no logits ahead of its own position."""
    model = nn.Sequential(*gpt_layers(SMALL))
    tokens = torch.zeros(1, 6, dtype=torch.long)
    changed = tokens.clone()
    changed[0, 3] = 5
    with torch.no_grad():
        difference = (model(tokens) - model(changed)).abs().sum(-1)[0]
    assert (difference[:3] == 0).all()
    assert (difference[3:] > 0).all()


def test_gpt_learns() -> None:
    """A few steps lower the loss on one micro-batch, which starts near that of guessing."""
    torch.manual_seed(0)
    model = nn.Sequential(*gpt_layers(SMALL))
    tokens = torch.randint(11, (4, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(20):
        loss = language_model_loss(model(tokens[:, :-1]), tokens[:, 1:])
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(11), rel=0.2)
    assert losses[-1] < losses[0] - 0.3


def test_parameter_count() -> None:
    """The number of parameters is told without making them."""
    assert gpt_parameters(SMALL) == sum(parameter.numel() for parameter in parameters(gpt_layers(SMALL)))


@pytest.mark.parametrize(
    ("name", "billions"),
    [("gpt-small", 0.163), ("gpt3-medium", 0.407), ("gpt3-2.7b", 2.78), ("gpt3-3.35b", 3.49), ("gpt3-6.7b", 6.86)],
)
def test_preset_sizes(name: str, billions: float) -> None:
    """The presets have the sizes they are named for, plus an output projection of their own."""
    assert gpt_parameters(PRESETS[name].config) / 1e9 == pytest.approx(billions, rel=0.01)


def test_load_tiny() -> None:
    """A preset comes with its default sizes, a byte vocabulary, and examples that fit it."""
    model = load_model("gpt-tiny", None, None, 0)
    inputs, targets = model.example(0)
    assert len(model.layers) == 10
    assert (model.microbatch_size, model.sequence_length, model.vocabulary) == (4, 128, 256)
    assert inputs.shape == targets.shape == (4, 128)
    assert torch.equal(inputs[:, 1:], targets[:, :-1]), "targets are the next tokens"


def test_sizes_are_followed() -> None:
    """Micro-batch size and sequence length shape the examples."""
    assert load_model("gpt-tiny", 2, 16, 0).example(0)[0].shape == (2, 16)


def test_seed() -> None:
    """The same seed gives the same parameters and examples, another seed others; torch's own generator is not moved."""
    before = torch.get_rng_state()
    one, same, other = (load_model("gpt-tiny", 1, 8, seed) for seed in (1, 1, 2))
    assert all(map(torch.equal, parameters(one.layers), parameters(same.layers)))
    assert not torch.equal(parameters(one.layers)[0], parameters(other.layers)[0])
    assert torch.equal(one.example(3)[0], same.example(3)[0])
    assert not torch.equal(one.example(3)[0], one.example(4)[0])
    assert torch.equal(torch.get_rng_state(), before)


def test_too_large_is_refused_before_allocating(monkeypatch: pytest.MonkeyPatch) -> None:
    """A preset beyond the free memory is infeasible, and the error names what is needed and what would fit."""
    for module in (load, model):
        monkeypatch.setattr(module, "free_bytes", lambda: 4 * 10**9)
    monkeypatch.setattr(load, "gpt_layers", lambda config: pytest.fail("it was built"))
    with pytest.raises(InfeasibleError, match=r"1\d\d\.\d GiB of memory.*\n.*gpt-tiny") as raised:
        load_model("gpt3-6.7b", None, None, 0)
    assert raised.value.exit_code == 3
    with pytest.raises(InfeasibleError, match=r" 1[12]\d\.\d* GiB of memory for bfloat16 parameters, float32 masters"):
        load_model("gpt3-6.7b", None, None, 0, ModelForm(dtype="bf16"))


def test_what_does_not_fit_says_what_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller micro-batches, where it is these; of a model known by its shape only, that it can be computed."""
    for module in (load, model):
        monkeypatch.setattr(module, "free_bytes", lambda: 4 * 10**9)
    with pytest.raises(InfeasibleError, match="smaller --microbatch-size"):
        load_model("gpt-tiny", 10**6, None, 0)
    with pytest.raises(InvalidInputError, match=r"llama3-70b is known by its shape only\n.*--analytic"):
        load_model("llama3-70b", None, None, 0)


def test_free_memory() -> None:
    """The free memory is some of the machine's memory."""
    assert 0 < model.free_bytes() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_vectors_from_a_file(tmp_path: Path) -> None:
    """A model that starts with a linear layer reads random vectors and is measured by mean squared error."""
    model = load_model(write(tmp_path, GOOD) + ":sequence", 3, None, 0)
    inputs, targets = model.example(0)
    output = nn.Sequential(*model.layers)(inputs)
    assert (inputs.shape, targets.shape, model.vocabulary) == ((3, 5), (3, 3), None)
    torch.testing.assert_close(model.loss(output, targets), F.mse_loss(output, targets))


def test_sequences_of_vectors_from_a_file(tmp_path: Path) -> None:
    """With a sequence length given, vectors come in sequences."""
    assert load_model(write(tmp_path, GOOD) + ":sequence", 3, 7, 0).example(0)[0].shape == (3, 7, 5)


def test_tokens_from_a_file(tmp_path: Path) -> None:
    """A model that starts with an embedding reads tokens of its vocabulary and is measured by cross entropy."""
    model = load_model(write(tmp_path, GOOD) + ":words", 2, 9, 0)
    inputs, targets = model.example(0)
    output = nn.Sequential(*model.layers)(inputs)
    assert (inputs.shape, model.vocabulary) == ((2, 9), 17)
    torch.testing.assert_close(model.loss(output, targets), language_model_loss(output, targets))


def test_own_example(tmp_path: Path) -> None:
    """A file's own example is used, the same for the same seed; whole-number targets mean cross entropy."""
    model = load_model(write(tmp_path, OWN_EXAMPLE) + ":images", 2, None, 0)
    inputs, targets = model.example(5)
    assert torch.equal(inputs, model.example(5)[0])
    output = nn.Sequential(*model.layers)(inputs)
    torch.testing.assert_close(model.loss(output, targets), F.cross_entropy(output, targets))


def test_own_loss(tmp_path: Path) -> None:
    """A file's own loss is used."""
    text = GOOD + "\ndef loss(output, target):\n    return (output - target).abs().sum()\n"
    model = load_model(write(tmp_path, text) + ":sequence", 1, None, 0)
    assert float(model.loss(torch.zeros(2), torch.ones(2))) == 2


def test_file_parameters_follow_the_seed(tmp_path: Path) -> None:
    """The parameters a factory draws follow from the seed."""
    name = write(tmp_path, GOOD) + ":sequence"
    one, same = (parameters(load_model(name, 1, None, 7).layers) for _ in range(2))
    assert all(map(torch.equal, one, same))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpt-tin", "did you mean gpt-tiny"),
        ("llama", "the models are gpt-tiny"),
        ("nowhere.py:factory", "no such file"),
        ("nowhere.py", "names no factory"),
        (":factory", "names no factory"),
        ("file.py:", "names no factory"),
    ],
)
def test_bad_names(name: str, message: str) -> None:
    """A name that means nothing is an error that says what would."""
    with pytest.raises(InvalidInputError, match=message):
        load_model(name, None, None, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def other(): pass", "defines no function factory"),
        ("factory = 3", "defines no function factory"),
        ("def factory(", "cannot be imported: SyntaxError"),
        ("import no_such_module_anywhere", "cannot be imported: ModuleNotFoundError"),
        ("def factory(): raise ValueError('not today')", "factory failed: ValueError: not today"),
        ("def factory(): raise ValueError", "factory failed: ValueError"),
        ("def factory(width): pass", "factory failed: TypeError"),
        ("def factory(): return 3", "returned an int"),
        ("def factory(): return []", "with at least one layer"),
        ("def factory(): return [3]", "returned a list"),
        ("from torch import nn\ndef factory(): return nn.Linear(2, 2)", "returned a Linear"),
        (GOOD + "factory, tensor_parallel = words, {'qkv': 'colwize'}", "no tensor-parallel plan"),
        (WHOLE, r"returned a Whole that is no sequence.*\n.*\n.*or cut the module: --cut steps\.\* \(3\)"),
        ("from torch import nn\ndef factory(): return [nn.Conv1d(2, 2, 1)]", "the first is a Conv1d.*\n.*\n.*example"),
        ("from torch import nn\ndef factory(): return [nn.ReLU()]", "no layer has parameters"),
        (
            "from torch import nn\ndef factory(): return [nn.Linear(2, 3), nn.Linear(4, 5)]",
            r"does not work on an example: RuntimeError: layer 1, Linear, does not take \(2, 3\): RuntimeError: mat1",
        ),
        (
            "from torch import nn\nclass Pair(nn.Linear):\n    def forward(self, x): return x, 3\n"
            "def factory(): return [Pair(2, 2)]",
            "does not work on an example: TypeError: Pair returns an int",
        ),
        (
            "from torch import nn\ndef factory(): return [nn.Linear(2, 2)]\ndef loss(output, target): return output",
            r"the loss has the shape \(2, 2\)",
        ),
        (
            "from torch import nn\ndef factory(): return [nn.Linear(2, 2)]\ndef example(a, b): return 3",
            "does not work on an example",
        ),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    """A file that does not work is an error that names it and says why."""
    name = write(tmp_path, text) + ":factory"
    with pytest.raises(InvalidInputError, match=message) as raised:
        load_model(name, 2, None, 0)
    assert "mine.py" in str(raised.value)


FAILING = """import json
from torch import nn

def deep(key):
    return {}[key]

def factory():
    return deep("width")

def chained():
    try:
        json.loads("{")
    except ValueError as error:
        raise RuntimeError("bad") from error

class Odd(nn.Linear):
    def forward(self, x):
        return deep(x)

def layers():
    return [nn.Linear(2, 2), Odd(2, 2)]
"""


@pytest.mark.parametrize(
    ("text", "factory", "line"),
    [
        (FAILING, "factory", "5, in deep"),
        (FAILING, "chained", "14, in chained"),
        (FAILING, "layers", "5, in deep"),
        ("import json\ndef factory(:\n", "factory", "2"),
        ("import json\n\nimport no_such_module_anywhere\n", "factory", "3"),
        ("import sys\nsys.exit('bye')\n", "factory", "2"),
        ("import json\njson.loads('{')\n", "factory", "2"),
    ],
)
def test_an_error_in_a_users_file_names_its_line(tmp_path: Path, text: str, factory: str, line: str) -> None:
    """What a user's file raises, in itself or in what it calls, is placed at the file's last line, with a remedy."""
    file = write(tmp_path, text)
    with pytest.raises(InvalidInputError) as raised:
        load_model(f"{file}:{factory}", 2, None, 0)
    assert raised.value.where == f"{file}:{line}"
    assert (raised.value.fix or "").startswith("correct the file")
    assert "--debug" in (raised.value.fix or "")


@pytest.mark.parametrize(("microbatch_size", "sequence_length"), [(0, None), (-1, None), (None, 0), (None, 513)])
def test_bad_sizes(microbatch_size: int | None, sequence_length: int | None) -> None:
    """Sizes below 1 and sequences beyond the model's positions are refused."""
    with pytest.raises(InvalidInputError):
        load_model("gpt-tiny", microbatch_size, sequence_length, 0)


def test_module_cut_by_name(tmp_path: Path) -> None:
    """A file's module is cut where it is asked to, reads tokens of its vocabulary, and keeps the file's plan."""
    model = load_model(write(tmp_path, WHOLE) + ":factory", 2, 5, 0, ModelForm(cut="steps.*", checkpointing=True))
    assert (len(model.layers), model.vocabulary, model.sequence_length) == (5, 19, 5)
    assert [isinstance(layer, Checkpointed) for layer in model.layers] == [False, True, True, True, False]
    assert model.tensor_parallel == {"out": "vocabulary"}
    assert model.form.options() == {"cut": "steps.*", "checkpointing": True}


@pytest.mark.parametrize(("name", "message"), [("gpt-tiny", "list of layers already"), ("two", "only modules can be")])
def test_only_modules_are_cut(tmp_path: Path, name: str, message: str) -> None:
    """What is a list of layers already is not cut by name."""
    given = name if name in PRESETS else f"{write(tmp_path, WHOLE)}:{name}"
    with pytest.raises(InvalidInputError, match=message):
        load_model(given, 2, 5, 0, ModelForm(cut="steps.*"))


@pytest.mark.parametrize("factory", ["words", "sequence"])
def test_short_numbers(tmp_path: Path, factory: str) -> None:
    """In bf16 parameters, gradients and what flows between layers are of that type; the loss is computed in fp32."""
    model = load_model(f"{write(tmp_path, GOOD)}:{factory}", 2, 3, 0, ModelForm(dtype="bf16"))
    inputs, targets = model.example(0)
    output = nn.Sequential(*model.layers)(inputs)
    loss = model.loss(output, targets)
    torch.autograd.backward(loss)
    assert (output.dtype, loss.dtype) == (torch.bfloat16, torch.float32)
    assert {one.dtype for one in parameters(model.layers)} == {torch.bfloat16}
    assert all(one.grad is not None and one.grad.dtype == torch.bfloat16 for one in parameters(model.layers))


def test_longer_numbers_stay(tmp_path: Path) -> None:
    """What a file makes in float64 is not shortened, neither is its loss."""
    text = GOOD + "\ndef long():\n    return [layer.double() for layer in words()]\n"
    model = load_model(write(tmp_path, text) + ":long", 2, 3, 0)
    inputs, targets = model.example(0)
    assert model.loss(nn.Sequential(*model.layers)(inputs), targets).dtype == torch.float64


def test_form_of_options() -> None:
    """A form says what is not usual, and is found again among other options; what is no form is refused."""
    form = ModelForm(cut="layers.*", dtype="bf16")
    assert form_of({"pp": 2, **form.options()}) == form
    assert ModelForm().options() == {}
    for options in ({"dtype": "fp8"}, {"cut": 3}, {"checkpointing": "yes"}):
        with pytest.raises(InvalidInputError):
            form_of(options)
