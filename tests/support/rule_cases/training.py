"""megatron-core and its bridges, verl, transformers and Ray."""

from __future__ import annotations

from tests.support.rule_cases import case, stack

CASES = {
    # measured: 0.3.0 does not import on Python 3.11
    "skyrl-python": case(
        stack(skyrl="0.3.0", python="3.11"),
        stack(skyrl="0.3.0", python="3.12"),
        stack(skyrl="0.2.0", python="3.11"),
    ),
    # listed: the wheels of megatron-core hold megatron/training from 0.17.0 on, and 0.16.1 does not
    "slime-megatron-training": case(
        stack(slime="0.3.1", megatron_core="0.16.1+slime"),
        stack(slime="0.3.1", megatron_core="0.17.0+slime"),
        stack(megatron_core="0.16.1"),
    ),
    # read: GPTModel.forward of 0.19.2 has no mtp_kwargs, slime's model.py passes it
    "slime-megatron-patches": case(
        stack(slime="0.3.1", megatron_core="0.19.2"),
        stack(slime="0.3.1", megatron_core="0.19.2+slime.1"),
        stack(megatron_core="0.19.2"),
    ),
    # read: http_server.py of 0.5.15.post1 has neither post_process_weights nor pull_weights
    "slime-sglang-patches": case(
        stack(slime="0.3.1", sglang="0.5.15.post1"),
        stack(slime="0.3.1", sglang="0.5.15.post1+slime"),
        stack(sglang="0.5.15.post1"),
    ),
    # built: the wheel of 7ea279abf holds two modules; a checkout on PYTHONPATH comes before it
    "nemo-rl-wheel": case(
        stack(nemo_rl="0.6.0+git.2026.08.22", megatron_bridge="0.5.0"),
        stack(nemo_rl="0.6.0+git.2026.08.22", megatron_bridge="0.5.0", env={"PYTHONPATH": "/opt/nemo-rl"}),
        stack(nemo_rl="0.6.0", megatron_bridge="0.5.0"),
    ),
    # read: the extras of uv.lock exclude each other
    "nemo-rl-trainers": case(
        stack(nemo_rl="0.6.0", sglang="0.5.12.post1"),
        stack(nemo_rl="0.6.0", megatron_bridge="0.5.0"),
        stack(sglang="0.5.12.post1"),
    ),
    # measured: verl 0.4.1 with setuptools 84.2.1: "No module named 'pkg_resources'"
    "verl-0.4-setuptools": case(
        stack("12.4", verl="0.4.1", setuptools="84.2.1"),
        stack("12.4", verl="0.4.1", setuptools="81.0.0"),
        stack("12.4", verl="0.6.1", setuptools="84.2.1"),
    ),
    # mbridge#155: mbridge 0.15.1 with megatron-core 0.18.0: "'ModelType' has no attribute 'encoder_and_decoder'"; verl
    # ships 641a5a0 with core_v0.18.0
    "mbridge-megatron-core": case(
        stack(mbridge="0.15.1", megatron_core="0.18.0"),
        stack(mbridge="0.15.1", megatron_core="0.16.1"),
        stack(mbridge="0.15.1+git641a5a0", megatron_core="0.18.0"),
        stack(mbridge="0.16.0", megatron_core="0.18.0"),
    ),
    # mbridge#50: 0.15.0 with qwen3_vl wants megatron-core 0.13
    "mbridge-qwen3-vl": case(
        stack(mbridge="0.15.0", megatron_core="0.12.2"),
        stack(mbridge="0.15.0", megatron_core="0.13.0"),
        stack(mbridge="0.13.1", megatron_core="0.12.2"),
    ),
    # Read in verl 0.9.1, mbridge 0.15.1 and megatron-core 0.16.1
    "verl-megatron-transformer-engine": case(
        stack(verl="0.9.1", megatron_core="0.16.1"),
        stack(verl="0.9.1", megatron_core="0.16.1", transformer_engine="2.11.0"),
        stack(verl="0.9.1"),
        stack(verl="0.3.0.post1", megatron_core="0.12.2"),
    ),
    # The trainer with an adapter ended so on an H100; the field's names read in sglang 0.5.14 to 0.5.20
    "verl-0.9.1-sglang-lora": case(
        stack(verl="0.9.1", sglang="0.5.14"),
        stack(verl="0.9.1", sglang="0.5.17"),
        stack(verl="0.9.0", sglang="0.5.14"),
    ),
    "verl-0.8-sglang-lora": case(
        (stack(verl="0.8.0", sglang="0.5.17"), stack(verl="0.9.0", sglang="0.5.20")),
        stack(verl="0.9.0", sglang="0.5.16"),
        stack(verl="0.9.1", sglang="0.5.17"),
    ),
    # verl#6927: any model on megatron-core 0.18 raises AttributeError in get_model; 0.9.1 has the fix, read
    "verl-megatron-core": case(
        stack(verl="0.8.0", megatron_core="0.18.0", transformer_engine="2.16.1"),
        stack(verl="0.8.0", megatron_core="0.16.1", transformer_engine="2.11.0"),
        stack(verl="0.9.1", megatron_core="0.18.0", transformer_engine="2.16.1"),
    ),
    # Megatron-Bridge's own images: 0.4.0 with 0.17, 0.5.x with 0.18 (verl 2026), 0.6.0 with 0.19
    "megatron-bridge-0.4": case(
        stack(megatron_bridge="0.4.0", megatron_core="0.18.0"),
        stack(megatron_bridge="0.4.0", megatron_core="0.17.0"),
        stack(megatron_bridge="0.5.0", megatron_core="0.18.0"),
    ),
    "megatron-bridge-0.5": case(
        stack(megatron_bridge="0.5.2", megatron_core="0.17.1"),
        stack(megatron_bridge="0.5.2", megatron_core="0.18.0"),
        stack(megatron_bridge="0.4.0", megatron_core="0.17.1"),
    ),
    "megatron-bridge-0.6": case(
        stack(megatron_bridge="0.6.0", megatron_core="0.18.0"),
        stack(megatron_bridge="0.6.0", megatron_core="0.19.2"),
        stack(megatron_bridge="0.5.2", megatron_core="0.18.0"),
    ),
    # extra `dev`: 0.14 >=2.6.0a0,<2.8; 0.15.3 >=2.9.0a0,<2.10; 0.16.1 >=2.9.0a0,<2.12
    "megatron-core-0.14-te": case(
        stack(megatron_core="0.14.0", transformer_engine="2.9.0"),
        stack(megatron_core="0.14.0", transformer_engine="2.7.0"),
        stack(megatron_core="0.15.3", transformer_engine="2.9.0"),
    ),
    "megatron-core-0.15-te": case(
        stack(megatron_core="0.15.3", transformer_engine="2.10.0"),
        stack(megatron_core="0.15.3", transformer_engine="2.9.0"),
        stack(megatron_core="0.16.1", transformer_engine="2.10.0"),
    ),
    "megatron-core-0.16-te": case(
        stack(megatron_core="0.16.1", transformer_engine="2.16.1"),
        stack(megatron_core="0.16.1", transformer_engine="2.12.0"),  # its own uv.lock, and verl 0.7.1's image
        stack(megatron_core="0.18.0", transformer_engine="2.16.1"),
    ),
    # the extras: 0.4.1 vllm <=0.8.5; 0.6.1 0.8.5 to 0.11.0; 0.8.0 0.8.5 to 0.12.0
    "verl-0.4-vllm": case(
        stack("12.8", verl="0.4.1", vllm="0.9.2"),
        stack("12.4", verl="0.4.1", vllm="0.8.5.post1"),
        stack("12.8", verl="0.5.0", vllm="0.9.2"),
    ),
    "verl-0.7-vllm": case(
        stack("12.9", verl="0.7.1", vllm="0.18.0"),
        stack("12.9", verl="0.7.1", vllm="0.17.0"),  # verl 0.7.1's image
        stack("13.0", verl="0.9.1", vllm="0.24.0"),
    ),
    "verl-0.8-vllm": case(
        stack("13.0", verl="0.8.0", vllm="0.21.0"),
        stack("13.0", verl="0.8.0", vllm="0.20.2"),  # verl 0.8.0's image
        stack("13.0", verl="0.9.1", vllm="0.24.0"),
    ),
    # verl 0.9's setup.py: vllm>=0.18; its extra pins 0.24.0, and 0.31.0 imports beside it
    "verl-0.9-vllm": case(
        stack("12.8", verl="0.9.1", vllm="0.12.0"),
        stack("13.0", verl="0.9.1", vllm="0.24.0"),
        stack("12.8", verl="0.8.0", vllm="0.12.0"),
    ),
    # run: vllm_mode is "customized" beside vllm 0.10.0 and "spmd" beside 0.8.5.post1; 0.4.1 compares Version objects
    "verl-0.3-vllm": case(
        stack("12.6", verl="0.3.0.post1", vllm="0.10.0"),
        stack("12.4", verl="0.3.0.post1", vllm="0.8.5.post1"),
        stack("12.6", verl="0.3.0.post1", vllm="0.9.2"),
        stack("12.8", verl="0.6.1", vllm="0.11.0"),
    ),
    # transformers#45278: "cannot import name 'AutoModelForVision2Seq'" with 5.5.0
    "verl-transformers5": case(
        stack(verl="0.5.0", transformers="5.5.0"),
        stack(verl="0.5.0", transformers="4.56.1"),
        stack(verl="0.7.1", transformers="5.5.0"),
    ),
    "verl-python": case(
        stack(python="3.13", verl="0.9.1"),
        stack(python="3.12", verl="0.9.1"),
        stack(python="3.13", verl="0.8.0"),
    ),
    # skypilot#7985: "today click 8.3.1 is installed, and it fails; yesterday 8.2.1"; ray#58677 bans 8.3 from 2.52 on
    "ray-click": case(
        stack(ray="2.48.0", click="8.3.1"),
        stack(ray="2.48.0", click="8.2.1"),
        stack(ray="2.55.1", click="8.3.1"),
    ),
    # measured: trl 0.27.0 with transformers 5.9.0, 0.28.0 with 5.3.0: "No module named 'weave'"; the others train
    # unsloth's pyproject.toml at 015bdef0d9 has 0.24.0 with 5.5.0; its wheel of 2026.4.6 has no fix_trl_vllm_ascend
    "trl-transformers-5.3": case(
        (stack(trl="0.27.0", transformers="5.9.0"), stack(trl="0.24.0", transformers="5.5.0", unsloth="2026.4.6")),
        stack(trl="0.29.1", transformers="5.9.0"),
        stack(trl="0.28.0", transformers="5.2.0"),
        stack(trl="0.24.0", transformers="5.5.0", unsloth="2026.4.7"),
    ),
    # trl 0.16.1's server passes worker_cls, trl 0.17.0's worker_extension_cls; verl does not use trl's server
    "trl-0.16-vllm-server": case(
        (stack(trl="0.16.1", vllm="0.6.3"), stack(trl="0.16.1", vllm="0.11.0")),
        stack(trl="0.16.1", vllm="0.8.5"),
        stack(trl="0.15.2", vllm="0.6.3"),
        stack(trl="0.18.0", vllm="0.11.0"),
    ),
    "trl-0.17-vllm-server": case(
        (stack(trl="0.17.0", vllm="0.7.3"), stack(trl="0.17.0", vllm="0.12.0")),
        stack(trl="0.17.0", vllm="0.8.5"),
        stack(trl="0.16.1", vllm="0.7.3"),
        stack(trl="0.18.0", vllm="0.12.0"),
    ),
    # transformers#44351: "cannot import name 'HybridCache'" with 5.2.0; azureml-assets#5002: 0.18.0 imports
    "transformers5-peft": case(
        stack(peft="0.17.1", transformers="5.2.0"),
        stack(peft="0.18.0", transformers="5.2.0"),
        stack(peft="0.17.1", transformers="4.57.1"),
    ),
    # sglang#26704: kernels 0.15.1 breaks transformers 5.8.1, "Pin kernels<0.15"; transformers#46681 is in 5.13.0, read
    "transformers-kernels": case(
        stack(transformers="5.8.1", kernels="0.15.1"),
        stack(transformers="5.8.1", kernels="0.14.1"),
        stack(transformers="5.13.0", kernels="0.15.1"),
    ),
    # measured: an image with trl 0.29.1 and transformers 5.8 ended with "No module named 'requests'"
    "trl-requests": case(
        stack(trl="0.29.1", transformers="5.8.0", datasets="5.1.0"),
        stack(trl="0.29.1", transformers="5.8.0", datasets="5.1.0", requests="2.34.0"),
        stack(trl="0.29.1", transformers="5.8.0", datasets="5.0.0"),
        stack(trl="0.29.1", transformers="4.57.1", datasets="5.1.0"),
        stack(trl="0.27.2", transformers="5.2.0", datasets="5.1.0"),
        stack(trl="1.10.0", transformers="5.8.0", datasets="5.1.0", vllm="0.25.1"),
        stack(trl="1.14.2", transformers="5.8.0", datasets="5.1.0"),
    ),
}
