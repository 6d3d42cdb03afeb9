"""What `--data` names: text, tokens and folders, each found by what stands on disk."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rtk.runners.torch.data.corpus import ByteCorpus
from rtk.runners.torch.data.feed import RowFeed
from rtk.runners.torch.data.opening import open_data, open_provider
from rtk.runners.torch.data.rows import MapStyle
from rtk.runners.torch.data.tokens import TokenRows
from rtk.schemas.errors import InvalidInputError

TEXT = "the cat sat on the mat\nand the dog sat on the cat\n" * 9


def rows_of(data: MapStyle) -> list[tuple[list[int], list[int]]]:
    """All rows, as numbers."""
    return [(inputs.tolist(), targets.tolist()) for inputs, targets in (data[row] for row in range(len(data)))]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tokenizer of some words, as `save_pretrained` writes it."""
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<u>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=["<u>", "<end>"], show_progress=False)
    made.train_from_iterator([TEXT], trainer)
    folder = tmp_path_factory.mktemp("tokenizer")
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", unk_token="<u>").save_pretrained(
        folder
    )
    return folder


def test_text_is_bytes_drawn_as_ever_and_rows_for_evaluation(tmp_path: Path) -> None:
    """Training draws samples of bytes anywhere; asked for rows, text is a stream of bytes."""
    path = tmp_path / "a.txt"
    path.write_text(TEXT)
    provider = open_provider([str(path)], 2, 3, 16, seed=5)
    assert isinstance(provider, ByteCorpus)
    start = int(np.random.default_rng((5, 7, 1)).integers(0, len(TEXT) - 16, 2)[0])  # as in every version
    assert bytes(provider.batch(7)[1][0][0].tolist()) == TEXT.encode()[start : start + 16]
    assert provider.fingerprint() == {"bytes": len(TEXT), "sample": provider.fingerprint()["sample"]}
    rows = rows_of(open_data([str(path)], 16))
    assert bytes(rows[2][0]) == TEXT.encode()[32:48]
    held_out = open_provider([str(path)], 2, 3, 16, seed=5, shuffle=False)
    assert bytes(held_out.batch(0)[1][0][0].tolist()) == TEXT.encode()[32:48]
    assert len(open_data([], 64)) > 1000  # Python's own library


def test_text_with_a_tokenizer_is_documents_with_ends(tmp_path: Path, tokenizer: Path) -> None:
    """Every file is a document; decoded, its tokens are the text again, and an end follows it."""
    transformers = pytest.importorskip("transformers")
    for name in "ab":
        (tmp_path / name).write_text(TEXT)
    data = open_data([str(tmp_path / "a"), str(tmp_path / "b")], 1, tokenizer=str(tokenizer))
    tokens = [inputs[0] for inputs, _ in rows_of(data)] + rows_of(data)[-1][1]
    same = open_data([str(tmp_path / "a")] * 2, 1, tokenizer=str(tokenizer / "tokenizer.json"))
    assert rows_of(same) == rows_of(data)
    known = transformers.AutoTokenizer.from_pretrained(str(tokenizer), local_files_only=True)
    assert known.decode(tokens) == (TEXT + "<end>") * 2
    assert open_data([str(tmp_path / "a")], 2, tokenizer=str(tokenizer)).fingerprint() != data.fingerprint()  # type: ignore[attr-defined]


def test_tokens_are_found_by_their_names(tmp_path: Path) -> None:
    """`.bin` with its dtype, `.npy`, and Megatron's name without ending."""
    np.arange(90, dtype="u2").tofile(tmp_path / "t.bin")
    np.save(tmp_path / "t.npy", np.arange(90))
    by_name = [open_data([str(tmp_path / "t.bin")], 8, dtype="uint16"), open_data([str(tmp_path / "t.npy")], 8)]
    assert rows_of(by_name[0]) == rows_of(by_name[1])
    provider = open_provider([str(tmp_path / "t.npy")] * 2, 2, 3, 8, vocabulary=100)
    assert isinstance(provider, RowFeed)
    assert provider.rows == 22


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """Kinds that are mixed, options that mean nothing, folders without a tokenizer, text that is none."""
    (tmp_path / "a.txt").write_text(TEXT)
    np.arange(90).tofile(tmp_path / "t.bin")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer.json").write_text("{")
    (tmp_path / "splits").mkdir()
    (tmp_path / "splits" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    text, tokens = (str(tmp_path / name) for name in ("a.txt", "t.bin"))
    cases: list[tuple[list[str], dict[str, Any], str]] = [
        ([text, tokens], {}, "several kinds"),
        ([str(tmp_path), str(tmp_path)], {}, "several folders"),
        ([tokens], {"tokenizer": "x"}, "tokens already"),
        ([text], {"dtype": "uint16"}, "only files of tokens have a dtype"),
        ([text], {"tokenizer": str(tmp_path / "none")}, "no folder of a tokenizer"),
        ([text], {"tokenizer": str(tmp_path / "broken")}, "the folder's tokenizer cannot be read"),
        ([str(tmp_path / "empty")], {}, "the folder holds no dataset"),
        ([str(tmp_path / "splits")], {}, "holds 2 datasets: train and test"),
        ([str(tmp_path / "none.txt")], {}, "No such file"),
    ]
    pytest.importorskip("transformers")
    for paths, options, said in cases:
        with pytest.raises(InvalidInputError, match=said) as raised:
            open_data(paths, 8, **options)
        assert raised.value.where and raised.value.fix, said


def test_text_that_is_none_is_told_by_its_byte(tmp_path: Path, tokenizer: Path) -> None:
    """A file of tokens under another name."""
    (tmp_path / "b.txt").write_bytes(b"ab\xff\xfe")
    with pytest.raises(InvalidInputError, match="no text in UTF-8: byte 2 is 0xff"):
        open_data([str(tmp_path / "b.txt")], 8, tokenizer=str(tokenizer))


def test_a_folder_of_datasets(tmp_path: Path) -> None:
    """Rows of input_ids, with labels as transformers shifts them, and without what is padding."""
    datasets = pytest.importorskip("datasets")
    ids = [[row, row + 1, row + 2, row + 3] for row in range(9)]
    ids[5][2] = 50
    masks = [[1, 1, 1, row % 2] for row in range(9)]
    columns = {"input_ids": ids, "labels": ids, "attention_mask": masks, "text": ["x"] * 9}
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "d")
    data = open_data([str(tmp_path / "d")], 99)
    assert rows_of(data)[3] == ([3, 4, 5, 6], [4, 5, 6, -100])
    assert rows_of(data)[4] == ([4, 5, 6, 7], [5, 6, -100, -100])
    logits = torch.randn(4, 99)
    theirs = pytest.importorskip("transformers.loss.loss_utils").ForCausalLMLoss(
        logits[None], torch.tensor([[4, 5, 6, -100]]), vocab_size=99
    )  # what transformers makes of the same row
    assert torch.equal(F.cross_entropy(logits, data[4][1]), theirs)
    feed = RowFeed(data, 2, 2, vocabulary=20)
    with pytest.raises(InvalidInputError, match="token 50 is not of") as raised:
        _ = [feed.batch(n)[m] for n in range(3) for m in range(2)]
    assert raised.value.where == f"{tmp_path / 'd'}, row 5, token 2"
    assert "datasets" in feed.fingerprint()


def test_folders_that_hold_no_tokens(tmp_path: Path, tokenizer: Path) -> None:
    """Text is made tokens of with a tokenizer, and told without; other columns are named; ragged rows are told."""
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"text": [TEXT, "cat"]}).save_to_disk(tmp_path / "text")
    data = open_data([str(tmp_path / "text")], 4, tokenizer=str(tokenizer))
    assert isinstance(data, TokenRows)
    with pytest.raises(InvalidInputError, match="no column input_ids; its columns are text") as raised:
        open_data([str(tmp_path / "text")], 4)
    assert "--tokenizer" in str(raised.value.fix)
    datasets.Dataset.from_dict({"input_ids": [[1, 2], [1], [3, 4]]}).save_to_disk(tmp_path / "ragged")
    with pytest.raises(InvalidInputError, match=r"rows \d and \d do not fit together"):
        feed = RowFeed(open_data([str(tmp_path / "ragged")], 4), 3, 1)
        _ = feed.batch(0)[0]
