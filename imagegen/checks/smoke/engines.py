"""vLLM and SGLang behind one small interface (smoke.rollout.Engine), by the calls that they offer to RL trainers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smoke import grpo, weight_transfer
from smoke.rollout import SHARE, Completion
from smoke.tinylm import CONTEXT
from torch import Tensor

# No network and no telemetry; everything on one host talks through the loopback interface.
ALONE = {
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "NCCL_SOCKET_IFNAME": "lo",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # the trainer has used CUDA already: a fork could not
}


class Vllm:
    """vLLM's offline LLM class. Weights go from GPU memory to GPU memory, where the version knows how."""

    def __init__(self, folder: Path, context: int = CONTEXT) -> None:
        # The handles of GPU memory travel as a pickle between processes of this program.
        os.environ.update({**ALONE, "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"})
        from vllm import LLM

        self._by_memory = hasattr(LLM, "start_weight_update")
        options = {"weight_transfer_config": {"backend": "ipc"}} if self._by_memory else {}
        self._llm = LLM(
            str(folder),
            dtype="bfloat16",
            enforce_eager=True,
            gpu_memory_utilization=SHARE,
            max_model_len=context,
            max_num_seqs=grpo.DIGITS * 8,
            seed=0,
            **options,
        )
        self._folder = folder
        if self._by_memory:
            weight_transfer.Client(self._llm).init_weight_transfer_engine({})

    def generate(
        self, prompts: list[list[int]], count: int, temperature: float, tokens: int = grpo.COMPLETION
    ) -> list[list[Completion]]:
        from vllm import SamplingParams

        params = SamplingParams(
            n=count, temperature=temperature, max_tokens=tokens, stop_token_ids=[grpo.EOS], logprobs=0
        )
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        answers = self._llm.generate(given, params, use_tqdm=False)
        return [[_vllm_completion(output) for output in answer.outputs] for answer in answers]

    def score(self, sequences: list[list[int]]) -> list[list[float]]:
        from vllm import SamplingParams

        params = SamplingParams(temperature=1.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        given = [{"prompt_token_ids": sequence} for sequence in sequences]
        answers = self._llm.generate(given, params, use_tqdm=False)
        return [
            [place[token].logprob for place, token in zip(answer.prompt_logprobs[1:], sequence[1:], strict=True)]
            for answer, sequence in zip(answers, sequences, strict=True)
        ]

    def load(self, weights: Mapping[str, Tensor]) -> None:
        if self._by_memory:
            weight_transfer.send(self._llm, weights)
        else:
            self._reload(weights)
        self._llm.reset_prefix_cache()  # what it holds was computed with the old weights

    def _reload(self, weights: Mapping[str, Tensor]) -> None:
        """By a checkpoint in a folder, which the workers read again."""
        import tempfile

        from safetensors.torch import save_file

        with tempfile.TemporaryDirectory() as folder:
            save_file({name: value.detach().cpu() for name, value in weights.items()}, f"{folder}/model.safetensors")
            self._llm.collective_rpc("reload_weights", kwargs={"weights_path": folder})


def _vllm_completion(output: Any) -> Completion:
    tokens = list(output.token_ids)
    places = zip(output.logprobs, tokens)  # noqa: B905  # one for each token
    return Completion(tokens, [place[token].logprob for place, token in places])


class SGLang:
    """SGLang's offline Engine. Weights go as handles of the trainer's GPU memory."""

    def __init__(self, folder: Path, context: int = CONTEXT) -> None:
        os.environ.update(ALONE)
        from sglang.srt.entrypoints.engine import Engine
        from sglang.srt.utils.patch_torch import monkey_patch_torch_reductions

        monkey_patch_torch_reductions()  # as its trainers do: a handle then names its GPU, not a number of it
        self._engine = Engine(
            model_path=str(folder),
            dtype="bfloat16",
            context_length=context,
            mem_fraction_static=SHARE,
            max_running_requests=grpo.DIGITS * 8,
            disable_cuda_graph=True,
            random_seed=0,
        )

    def generate(
        self, prompts: list[list[int]], count: int, temperature: float, tokens: int = grpo.COMPLETION
    ) -> list[list[Completion]]:
        params = {"temperature": temperature, "max_new_tokens": tokens, "stop_token_ids": [grpo.EOS]}
        given = [prompt for prompt in prompts for _ in range(count)]
        answers = self._engine.generate(input_ids=given, sampling_params=params, return_logprob=True)
        rows = [_sglang_completion(answer) for answer in answers]
        return [rows[start : start + count] for start in range(0, len(rows), count)]

    def score(self, sequences: list[list[int]]) -> list[list[float]]:
        params = {"temperature": 1.0, "max_new_tokens": 1}
        answers = self._engine.generate(
            input_ids=sequences, sampling_params=params, return_logprob=True, logprob_start_len=0
        )
        return [[log_prob for log_prob, *_ in answer["meta_info"]["input_token_logprobs"][1:]] for answer in answers]

    def load(self, weights: Mapping[str, Tensor]) -> None:
        answer = self._engine.update_weights_from_tensor([(name, value.detach()) for name, value in weights.items()])
        if not answer[0]:
            raise RuntimeError(f"SGLang did not take the weights: {answer[1]}")


def _sglang_completion(answer: dict[str, Any]) -> Completion:
    pairs = [(token, log_prob) for log_prob, token, *_ in answer["meta_info"]["output_token_logprobs"]]
    return Completion([token for token, _ in pairs], [log_prob for _, log_prob in pairs])
