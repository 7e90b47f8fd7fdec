#!/usr/bin/env python3
"""Make a Llama with random weights, and its tokenizer, that vLLM serves like any other model.

    make_model.py OUT [--hidden 384 --layers 6 ...]

What it says is noise; what it costs is real. The default, about 10 million parameters, is small enough
for a core without AVX-512 and large enough that inter-token latency shows the batch and not the HTTP around
it. The same flags always give the same files.

The tokenizer is a byte-pair encoding over printable ASCII with every one of its tokens visible, so a random
continuation is readable text and a stream shows a piece of it with each token. Other characters become <unk>.
"""

import argparse
import string
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

SPECIAL_TOKENS = ("<s>", "</s>", "<unk>")
BOS, EOS, UNK = SPECIAL_TOKENS
HEAD_SIZE = 64
"""Size of an attention head, in elements; one of the sizes vLLM's CPU attention kernels are built for."""

CORPUS = """
hello world the quick brown fox jumps over the lazy dog and then the dog sleeps in the warm sun while the fox
looks for another hill to cross before the evening comes with its long blue shadows and small bright stars
a llama walks along the mountain path carrying wool and water for the people of the village who wait below
serving a language model means reading every weight once for each step so many requests share the same step
and the price of a larger batch is that every token takes a little longer to arrive at the one who reads it
continuous batching lets a new request join between two steps and lets a finished one leave without waiting
the scheduler decides how many sequences may run together and how many tokens one step may hold at most
when memory for keys and values is short the engine has to preempt a sequence and compute it again later
a reader notices when the words stop for a moment more than when they are slow from the first to the last
so an operator should watch the time between tokens and move the limit before people begin to complain
question what is the answer please explain why this is true and give an example that anybody can follow
user asks and assistant replies with a short clear sentence then thanks the user for the good question
once upon a time there was a careful engineer whose graphs were green because nobody had measured anything
"""
"""What the merges are learned from: enough different words to fill the vocabulary."""

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def make_tokenizer(vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """Train a tokenizer of exactly `vocab_size` tokens; raise ValueError when the corpus cannot fill it."""
    space, newline = "\u0120", "\u010a"  # how the byte-level scheme writes the two blanks
    tokenizer = Tokenizer(models.BPE(unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    visible = string.ascii_letters + string.digits + string.punctuation
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=[space, newline, *visible],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS.splitlines(), trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(
            f"--vocab {vocab_size} is out of reach: the corpus gives {tokenizer.get_vocab_size()} tokens"
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        model_max_length=max_length,
        chat_template=CHAT_TEMPLATE,
    )


def make_model(
    hidden: int, layers: int, vocab_size: int, max_length: int, dtype: str, seed: int
) -> LlamaForCausalLM:
    """A Llama of Llama 3's proportions (two query heads to a key head) with freshly drawn weights."""
    heads = hidden // HEAD_SIZE
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=max_length,
        bos_token_id=SPECIAL_TOKENS.index(BOS),
        eos_token_id=SPECIAL_TOKENS.index(EOS),
        dtype=dtype,
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config).to(getattr(torch, dtype))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder to write the model to; made if it is missing")
    parser.add_argument(
        "--hidden", type=int, default=384, help="hidden size, a multiple of 128 (default %(default)s)"
    )
    parser.add_argument("--layers", type=int, default=6, help="number of layers (default %(default)s)")
    parser.add_argument("--vocab", type=int, default=512, help="number of tokens (default %(default)s)")
    parser.add_argument(
        "--max-length", type=int, default=2048, help="longest sequence, tokens (default %(default)s)"
    )
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="(default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights (default %(default)s)")
    arguments = parser.parse_args()
    if arguments.hidden < 2 * HEAD_SIZE or arguments.hidden % (2 * HEAD_SIZE):
        parser.error(f"--hidden must be a multiple of {2 * HEAD_SIZE}, not {arguments.hidden}")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    disable_progress_bar()
    tokenizer = make_tokenizer(arguments.vocab, arguments.max_length)
    model = make_model(
        arguments.hidden,
        arguments.layers,
        arguments.vocab,
        arguments.max_length,
        arguments.dtype,
        arguments.seed,
    )
    tokenizer.save_pretrained(arguments.out)
    model.save_pretrained(arguments.out)
    for file in arguments.out.iterdir():
        file.chmod(0o644)  # weights are written for their owner alone, and the engine is another user
    print(f"{arguments.out}: {model.num_parameters() / 1e6:.1f} million parameters, {arguments.dtype}")


if __name__ == "__main__":
    main()
