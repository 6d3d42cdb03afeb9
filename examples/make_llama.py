"""A small Llama and a text's tokens, made on this machine: python make_llama.py FOLDER

Writes FOLDER/tiny-llama (a Hugging Face folder: config, random weights, tokenizer), FOLDER/train.bin, FOLDER/valid.bin
(uint16 tokens of Python's language reference, which every Python brings along). Needs transformers.
"""

import sys
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

folder = Path(sys.argv[1])
model = folder / "tiny-llama"
model.mkdir(parents=True, exist_ok=True)

text = "\n\n".join(topics[name] for name in sorted(topics))
bpe = Tokenizer(models.BPE())
bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
bpe.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
bpe.train_from_iterator([text], trainers.BpeTrainer(vocab_size=1024, initial_alphabet=alphabet, show_progress=False))
PreTrainedTokenizerFast(tokenizer_object=bpe).save_pretrained(model)

tokens = np.array(bpe.encode(text).ids, dtype=np.uint16)
cut = int(0.95 * len(tokens))
tokens[:cut].tofile(folder / "train.bin")
tokens[cut:].tofile(folder / "valid.bin")

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=1024,
    hidden_size=128,
    intermediate_size=344,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    tie_word_embeddings=True,
)
made = LlamaForCausalLM(config)
made.save_pretrained(model)
print(f"{len(tokens)} tokens, a Llama of {sum(one.numel() for one in made.parameters())} parameters")
