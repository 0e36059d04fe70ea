"""Stands in for vLLM where it is not installed: its offline API as documented, over transformers.

Only what the adapter uses: `LLM(model, dtype, seed, trust_remote_code, gpu_memory_utilization)`,
`generate(prompts, sampling_params, use_tqdm)` and the fields of its outputs. Unknown arguments are
refused, as vLLM refuses them. It shows that the adapter keeps to that API and reads it rightly; it
does not show that vLLM's own kernels answer alike.
"""

from dataclasses import dataclass
from types import SimpleNamespace


@dataclass
class SamplingParams:
    """Greedy decoding settings."""

    temperature: float = 1.0
    max_tokens: int = 16


class LLM:
    """A loaded model."""

    def __init__(self, *, model, dtype, seed, trust_remote_code, gpu_memory_utilization):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        assert dtype == "auto"
        assert 0 < gpu_memory_utilization <= 1
        assert not trust_remote_code
        self._model = AutoModelForCausalLM.from_pretrained(model).float().eval()
        self._tokenizer = AutoTokenizer.from_pretrained(model)

    def generate(self, prompts, sampling_params, use_tqdm=True):
        """Answer one prompt after another."""
        import torch

        found = []
        for prompt, params in zip(prompts, sampling_params, strict=True):
            assert params.temperature == 0.0
            (key,) = prompt
            assert key == "prompt_token_ids"
            ids = torch.tensor([prompt[key]])
            how = {"do_sample": False, "max_new_tokens": params.max_tokens}
            output = self._model.generate(ids, attention_mask=torch.ones_like(ids), **how)
            new = output[0, ids.shape[1] :].tolist()
            reason = "stop" if new[-1] == self._tokenizer.eos_token_id else "length"
            text = self._tokenizer.decode(new, skip_special_tokens=True)
            answer = SimpleNamespace(text=text, token_ids=new, finish_reason=reason)
            found.append(SimpleNamespace(outputs=[answer]))
        return found
