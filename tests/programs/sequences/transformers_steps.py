"""Models of Transformers with random weights generate tokens, in the usual ways."""

import torch
from steps import Steps
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

step = Steps()
LLAMA = LlamaConfig(vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
                    num_key_value_heads=2, max_position_embeddings=256, pad_token_id=0, eos_token_id=None, bos_token_id=1)
GPT2 = GPT2Config(vocab_size=512, n_embd=64, n_layer=2, n_head=4, n_positions=256, pad_token_id=0, eos_token_id=None,
                  bos_token_id=1)
TOKENS = 12


class Enough(Exception):
    """As many tokens were generated as asked for."""


class Count:
    """Ends a generation from the host: whether it is over is computed on the device, and where kernels are only recorded it never is."""

    def __init__(self):
        self.tokens = 0

    def put(self, _tokens):
        self.tokens += 1
        if self.tokens > TOKENS:
            raise Enough

    def end(self):
        pass


def generate(model, prompt, **options):
    count = Count()
    try:
        model.generate(prompt.cuda(), max_new_tokens=TOKENS, do_sample=False, streamer=count, **options)
    except Enough:
        pass
    return count.tokens


PROMPT = torch.tensor([[1, 5, 7, 9]])


def llama(**options):
    return LlamaForCausalLM(LLAMA).to("cuda", **options).eval()


@step("greedy")
def _():
    return generate(llama(), PROMPT)


@step("bfloat16")
def _():
    return generate(llama(dtype=torch.bfloat16), PROMPT)


@step("without a cache")
def _():
    return generate(llama(), PROMPT, use_cache=False)


@step("static cache")
def _():
    return generate(llama(), PROMPT, cache_implementation="static")


@step("another model")
def _():
    return generate(GPT2LMHeadModel(GPT2).cuda().eval(), PROMPT)


@step("loss and gradient")
def _():
    model = llama()
    model(PROMPT.cuda(), labels=PROMPT.cuda()).loss.backward()
    return sum(parameter.grad is not None for parameter in model.parameters())


step.run()
