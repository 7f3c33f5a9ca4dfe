"""Explain a log: messages whose text hides their cause, as data (a pattern, its meaning, a fix); undefined symbols."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from imagegen.audit import torch_exports
from imagegen.audit.demangle import demangle
from imagegen.audit.torch_exports import ExportIndex
from imagegen.checks.preflight.model import Finding
from imagegen.compat.model_types import model_type_summary
from imagegen.compat.models import Models


@dataclass(frozen=True)
class KnownMessage:
    """`sign` is searched in a log; `{0}` in the text is its first group. Read on `date`."""

    sign: str
    text: str
    fix: str
    source: str
    date: str = "2026-11-21"
    is_model: bool = False  # whether the first group is a model type


_SPAWN = (
    "VLLM_WORKER_MULTIPROC_METHOD=spawn (vLLM images have it), and no CUDA call in the parent before the engine starts"
)
_TWO = "run the image of one lock: its parts were resolved together, and `imagegen test` tests them"

# Messages about several hosts. The messages of torch and gloo were produced with torch 2.13.0 in two containers on one
# bridge (tests/integration/test_two_nodes.py), and Ray's first one likewise with ray 2.60.0. The messages of NCCL and
# Ray's second one are format strings of their sources.
_INTERFACE = "on each host, to the interface with the address that the others reach (`ip -br address`)"
_HOSTS = (
    KnownMessage(
        # Both in one second, when the time was over. A look-up that DNS refuses ends at once.
        r"(\d\d:\d\d:\d\d)\.\d+ .{0,80}hostname of the client socket cannot be retrieved\. err=-3\s+"
        r"\[E\d+ \1.{0,80}client socket has timed out",
        "a connection to the rendezvous was possibly made too late: torch looks up the names of its addresses, and DNS "
        "does not answer (a look-up then takes 10 s with glibc's defaults)",
        "a `nameserver` in /etc/resolv.conf that answers, or a line `::ffff:ADDRESS HOSTNAME` in /etc/hosts for each "
        "IPv4 address: torch looks them up in that form",
        "torch 2.13.0, torch/csrc/distributed/c10d/socket.cpp; measured with a DNS server that does not answer",
        "2026-11-26",
    ),
    KnownMessage(
        r"client socket has (?:timed out after \d+m?s while trying to connect to|failed to connect to any network "
        r"address of) \(([^\s,]{1,80}), \d+\)",
        "the rendezvous at {0} cannot be reached: the first host has another address, or its port is closed",
        "MASTER_ADDR (torchrun: --rdzv-endpoint) with an address of the first host, not localhost; open MASTER_PORT; "
        "containers on several hosts: `docker run --network host`",
        "torch 2.13.0, torch/csrc/distributed/c10d/socket.cpp",
        "2026-11-23",
    ),
    KnownMessage(
        r"Timed out after \d+ seconds waiting for clients\. (\d+/\d+) clients joined",
        "{0} processes reached the rendezvous: the others use another address or port, or have ended",
        "the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE (--nnodes, --nproc-per-node) on all hosts; see their logs",
        "torch 2.13.0, torch/csrc/distributed/c10d/TCPStore.cpp",
        "2026-11-23",
    ),
    KnownMessage(
        r"connectFullMesh failed with [^\0]{0,200}?remote=\[(127\.[\d.]+|::1)\]",
        "gloo gives {0} to the other hosts as its address, since the hostname resolves to it, or to nothing",
        f"set GLOO_SOCKET_IFNAME {_INTERFACE}; or give the hostname its address in /etc/hosts",
        "torch 2.13.0 with gloo, ProcessGroupGloo.cpp",
        "2026-11-23",
    ),
    KnownMessage(
        r"connectFullMesh failed with (?![^\0]{0,200}?remote=\[(?:127\.|::1\]))",
        "gloo's processes cannot connect to each other: a hostname resolves to a wrong address, or ports are closed",
        f"set GLOO_SOCKET_IFNAME {_INTERFACE}; open all ports between the hosts; see the logs of the others",
        "torch 2.13.0 with gloo, gloo/transport/tcp/pair.h",
        "2026-11-23",
    ),
    KnownMessage(
        r"Unable to find address for: (\S+)",
        "GLOO_SOCKET_IFNAME names {0}, and this host or container has no such interface",
        f"set GLOO_SOCKET_IFNAME {_INTERFACE}; a container has others than its host unless --network host",
        "torch 2.13.0 with gloo, gloo/transport/tcp/device.cc",
        "2026-11-23",
    ),
    KnownMessage(
        r"no socket interface found|NET/Socket : no interface found",
        "NCCL finds no network interface: NCCL_SOCKET_IFNAME names none of this host or container",
        f"unset NCCL_SOCKET_IFNAME, or set it {_INTERFACE}",
        "NCCL 2.28.9, src/bootstrap.cc",
        "2026-11-23",
    ),
    KnownMessage(
        r"Mismatched NCCL version detected : ([^\n]{1,60})",
        "ranks have different versions of NCCL ({0}), and so different images",
        "run the same image, by digest, on all hosts",
        "NCCL 2.28.9, src/init.cc",
        "2026-11-23",
    ),
    KnownMessage(
        r"(?:Failed|Unable) to connect to GCS(?: \(ray head\))? at (?:address )?([\w.:-]*\w)",
        "Ray's head at {0} cannot be reached: another address or port, a firewall, or a head that has ended",
        "`ray start --address` with the address that `ray start --head` prints, on the same network; open its ports",
        "ray 2.60.0, rpc_client.h and ray/_private/utils.py",
        "2026-11-23",
    ),
    KnownMessage(
        r"Version mismatch: The cluster was started with:",
        "Ray or Python has another version here than on Ray's head",
        "run the same image, by digest, on all hosts",
        "ray 2.60.0, ray/_private/utils.py",
        "2026-11-23",
    ),
)

KNOWN = (
    *_HOSTS,
    KnownMessage(
        r"[Ee]xec format error",
        "a program is for another processor than this machine's: an image for linux/arm64 runs on x86-64, or the other "
        "way round (or it is a script whose first line names no interpreter)",
        "compare `docker image inspect --format '{{.Architecture}}' IMAGE` with `uname -m`; pull with `--platform`, or "
        "take the cell for this platform (`imagegen list`); under emulation, slowly: qemu-user-static and "
        "binfmt-support on the engine's host",
        "Docker 26.1.5, an image for linux/arm64 on x86-64; execve(2), ENOEXEC",
        "2026-11-25",
    ),
    KnownMessage(
        r"no match(?:ing manifest)? for \S+ in (?:the )?manifest",
        "the image's tag names none for this platform",
        "an image of this platform: `docker manifest inspect IMAGE` lists those of a tag, and `imagegen publish "
        "--platform all` publishes them",
        "Docker 26.1.5 with containerd's image store; user reports of the longer wording",
        "2026-11-25",
    ),
    KnownMessage(
        r"Free memory on device .{0,80}is less than desired GPU memory utilization",
        "the engine requests a share of all of the GPU's memory; another process, often the trainer, uses some of it",
        "gpu_memory_utilization below the free share, less the trainer's memory; `nvidia-smi` shows the processes",
        "vLLM issue 20305; vllm/v1/worker/gpu_worker.py",
    ),
    KnownMessage(
        r"Error in memory profiling\. Initial free memory",
        "another process on the GPU freed memory while the engine measured how much it needs itself",
        "start engines on one GPU one after the other, or give the size of the KV cache: --kv-cache-memory-bytes",
        "measured with vLLM 0.24.0, three engines starting on one H200; vllm/v1/worker/gpu_worker.py",
        "2026-11-23",
    ),
    KnownMessage(
        r"error while loading shared libraries: libcudart\.so\.\d+: cannot open"
        r"|scheduler died during initialization \(exit code: 127\)",
        "a program starts with a library in LD_PRELOAD (torch-memory-saver's) that needs libcudart, and the loader "
        "does not find libcudart in site-packages",
        "an image that links it where the loader looks (imagegen's from 0.1.0 on); elsewhere LD_LIBRARY_PATH with the "
        "directory of libcudart: site-packages/nvidia/cu13/lib",
        "measured with verl 0.9.1 and sglang 0.5.14 on one H200",
        "2026-11-24",
    ),
    KnownMessage(
        r"_create_merged_loras_inplace[^\0]{0,600}?StopIteration",
        "the trainer sent vLLM a LoRA adapter without tensors, and waits for ever: verl 0.9.1 does so with FSDP 1 on "
        "one GPU, where FSDP does not shard",
        "actor_rollout_ref.actor.strategy=fsdp2 and actor_rollout_ref.actor.fsdp_config.strategy=fsdp2",
        "measured with verl 0.9.1 and vllm 0.24.0 on one H200",
        "2026-11-24",
    ),
    KnownMessage(
        r"model type `([\w.-]+)` but Transformers does not recognize"
        r"|configuration_auto\.py[^\0]{0,600}?KeyError: '([\w.-]+)'",
        "this transformers knows no model type {0}: the checkpoint is newer than it",
        "an image with a newer transformers that its engine allows too (`imagegen why CELL --set model=TYPE`)",
        "transformers, CONFIG_MAPPING of models/auto/configuration_auto.py",
        is_model=True,
    ),
    KnownMessage(
        r"Expected all tensors to be on the same device, but (?:found at least two devices|got \w+ is on)",
        "tensors of one step lie on CPU and GPU; with LoRA and CPU offload of FSDP's parameters, adapters stay behind",
        "switch CPU offload off for LoRA (prime-rl: fsdp_cpu_offload; verl: param_offload), whose weights are small",
        "prime-rl runs with fsdp_cpu_offload and LoRA",
    ),
    KnownMessage(
        r'Attempted to set the storage of a tensor on device "\w+(?::\d+)?" to a storage on different device',
        "FSDP moves parameters between CPU and GPU, and some, usually LoRA's adapters, are elsewhere",
        "switch CPU offload off for LoRA (prime-rl: fsdp_cpu_offload; verl: param_offload), whose weights are small",
        "torch 2.13.0, libtorch_cpu.so; prime-rl runs with fsdp_cpu_offload and LoRA",
        "2026-11-22",
    ),
    KnownMessage(
        r"FlashAttention2 has been toggled on[^\0]{0,80}?the package (?:flash_attn|for FlashAttention2)",
        "the model is loaded with attn_implementation=flash_attention_2, without the package flash-attn",
        "attn_implementation=sdpa (verl: +actor_rollout_ref.model.override_config.attn_implementation=sdpa), or a cell "
        "with flash-attn (`imagegen list`)",
        "transformers 4.56.1 and 5.10.0, modeling_utils.py",
        "2026-11-22",
    ),
    KnownMessage(
        r"max_tokens\b.{0,40} is too large: \d+\. This model's maximum context length is (\d+)",
        "a request asks for more tokens than the engine's context of {0} leaves after the prompt",
        "max_tokens below the context less the prompt, or start the engine with a larger max_model_len",
        "vllm 0.11.0, entrypoints/openai/serving_engine.py",
        "2026-11-22",
    ),
    KnownMessage(
        r"Unrecognized configuration class [^\0]{0,200}?for this kind of AutoModel: (\w+)",
        "{0} does not load the checkpoint's architecture, which may be multimodal or newer than this transformers",
        "the Auto class of its kind (AutoModelForImageTextToText), or a newer transformers "
        "(`imagegen why transformers==... model==TYPE`)",
        "transformers 4.56.1 and 5.10.0, models/auto/auto_factory.py",
        "2026-11-22",
    ),
    KnownMessage(
        r"(?<!\S)(\S+) is not a local folder and is not a valid model identifier",
        "{0} is not a folder in this container, and the hub has no repository of that name for this user",
        "mount the folder (`docker run -v`), or correct the name; a private or gated repository needs HF_TOKEN",
        "transformers 4.56.1 and 5.10.0, utils/hub.py",
        "2026-11-22",
    ),
    KnownMessage(
        r"gradient_accumulation_fusion set to True but the custom CUDA extension",
        "Megatron is to fuse the accumulation of gradients, which in its own layers takes APEX "
        "with its CUDA extensions; an APEX of only Python does not have them",
        "gradient_accumulation_fusion=False (verl: +actor_rollout_ref.actor.megatron.override_transformer_config."
        "gradient_accumulation_fusion=False)",
        "megatron-core 0.13.1 and 0.16.1, tensor_parallel/layers.py",
        "2026-11-22",
    ),
    KnownMessage(
        r"Expandable segments are not compatible with memory pool",
        "PYTORCH_CUDA_ALLOC_CONF has expandable_segments:True, and the engine's sleep mode needs a memory pool",
        "unset PYTORCH_CUDA_ALLOC_CONF in the process that holds the engine",
        "vllm/device_allocator/cumem.py; pytorch issue 147851",
    ),
    KnownMessage(
        r"Cannot re-initialize CUDA in forked subprocess|cuCtxGetDevice",
        "a forked worker has inherited a CUDA context that it cannot use",
        _SPAWN,
        "vLLM documentation, Troubleshooting, Python multiprocessing",
    ),
    KnownMessage(
        r"no kernel image is available for execution on the device",
        "something was compiled for other GPUs than this one",
        "take the image for this GPU (`imagegen list`); for code compiled at run time, see TORCH_CUDA_ARCH_LIST",
        "CUDA Driver API, CUDA_ERROR_NO_BINARY_FOR_GPU",
    ),
    KnownMessage(
        r"CUDA_ERROR_UNSUPPORTED_PTX_VERSION|cudaErrorUnsupportedPtxVersion"
        r"|provided PTX was compiled with an unsupported toolchain",
        "a kernel exists only as PTX, of a newer CUDA than the host's driver can compile",
        "update the host's driver to the one that the image's CUDA came with",
        "CUDA Compatibility, Minor Version Compatibility",
    ),
    KnownMessage(
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient for CUDA runtime version",
        "the host's driver is older than the CUDA that torch was built for needs",
        "update the host's driver (580 or newer for CUDA 13), or take a cell for an older CUDA: "
        "`imagegen why CELL driver==VERSION`",
        "torch 2.13.0, c10/cuda; CUDA Runtime API, cudaErrorInsufficientDriver",
        "2026-11-28",
    ),
    KnownMessage(
        r"(lib(?:cudart|cublas|cublasLt|cufft|curand|cusolver|cusparse|nvrtc|nvJitLink)\.so\.\d+): cannot open shared",
        "a compiled package needs {0}: it was built for another CUDA than the one that is installed",
        "take builds for one CUDA: `imagegen why` with the versions of torch and of the package names those that fit",
        "glibc, ld.so; read off the wheels (matrices/scans)",
        "2026-11-28",
    ),
    KnownMessage(
        r"system has unsupported display driver / cuda driver combination",
        "error 803: a libcuda of cuda-compat is loaded that does not go with the host's driver",
        "take cuda-compat out of LD_LIBRARY_PATH and /etc/ld.so.conf.d",
        "measured on an H200, driver 580.159.04 with cuda-compat 580.95.05",
    ),
    KnownMessage(
        r"killed by signal: Bus error|unable to (?:open|write to) shared memory|/dev/shm/nccl",
        "there is no more shared memory (/dev/shm)",
        "`docker run --ipc=host` or --shm-size=16g",
        "PyTorch README, Using pre-built images; NCCL documentation, Sharing Data",
    ),
    KnownMessage(
        r"double free or corruption|free\(\): invalid pointer|corrupted size vs\. prev_size",
        "a library has spoilt the heap and the process was aborted: no Python error, and no end of the log that helps",
        "`imagegen test CELL --require-gpu` runs each check in a process of its own and names the one that dies",
        "torch 2.7.1+cu126 in torch.cuda.is_available() under WSL2",
    ),
    KnownMessage(
        r"undefined symbol: (_ZN\S+)",
        "a compiled wheel ({0}) was made for another torch or another C++ ABI",
        _TWO,
        "flash-attn wheels for other torch minors",
    ),
    KnownMessage(
        r"cannot import name '(ReleaseMemoryOccupationReqInput)'",
        "this verl was written for another SGLang ({0} is no longer there)",
        _TWO,
        "verl with SGLang 0.5.x",
    ),
    KnownMessage(
        r"patch_torch\.py[^\0]{0,600}?IndexError",
        "this SGLang was made for another torch, and fails when weights are updated",
        _TWO,
        "sglang/srt/patch_torch.py",
    ),
    KnownMessage(
        r"default_weight_loader\(\) got an unexpected keyword argument '(\w+)'",
        "trainer and engine disagree about how weights are loaded ({0}): their versions were not made for each other",
        _TWO,
        "vLLM, weight reload with LoRA",
    ),
    KnownMessage(
        r"[Nn]o module or parameter named '(\w+)' in \w+",
        "the engine is older than the checkpoint's architecture (it has no {0}); Qwen3 needs vLLM 0.8.5 or later",
        "an image with a newer engine",
        "vLLM release notes, v0.8.5",
    ),
    KnownMessage(
        r"invalid literal for int\(\) with base 10: ''",
        "something that is read as a number is empty, often an environment variable",
        "the check `empty` of a running container names such variables; unset them",
        "Python, int()",
    ),
    KnownMessage(
        r"api_key not configured \(no-tty\)|[Nn]o API key configured",
        "the run logs to W&B, has no API key, and cannot prompt for one",
        "WANDB_MODE=offline, or WANDB_API_KEY",
        "wandb, wandb.login",
    ),
    KnownMessage(
        r"UnicodeEncodeError: '(?!utf)([\w-]+)' codec can't encode",
        "something was printed that the terminal's encoding ({0}) lacks",
        "PYTHONIOENCODING=utf-8, or LANG=C.UTF-8 as the image has it",
        "Python, sys.stdout.encoding",
    ),
    KnownMessage(
        r"Killed signal terminated program (\w+)|ninja: build stopped[^\0]{0,200}?Killed",
        "a compiler was killed for want of memory",
        "MAX_JOBS=4, or less",
        "flash-attn README, Installation",
    ),
)


def explain_messages(log: str, known_models: Models) -> list[Finding]:
    """Return a finding for each known message in the log, in the order in which they come in KNOWN.

    A message that begins within the text of an earlier one has no finding of its own.
    """
    findings = []
    explained: list[tuple[int, int]] = []
    for message in KNOWN:
        match = re.search(message.sign, log)
        if match and not any(start <= match.start() < end for start, end in explained):
            explained.append(match.span())
            first = next((group for group in match.groups() if group), "")[:80]
            text = message.text.replace("{0}", first)
            fix = f"{model_type_summary(known_models, first)}: {message.fix}" if message.is_model else message.fix
            findings.append(Finding("log", "error", f"{text} [{message.source}, {message.date}]", fix))
    return findings


# Symbols that a log calls undefined: which releases of torch export them.

SYMBOLS = "symbols"  # the name of the check
_UNDEFINED = re.compile(r"(?:undefined symbol:|undefined reference to `?)\s*([A-Za-z_][\w.$]{1,4000})")
_MACHINE = re.compile(r"(?<![A-Za-z0-9])(?:aarch64|x86_64)(?![A-Za-z0-9])")
_LONGEST = 300  # characters of a readable name
_MOST = 20  # symbols that are explained


def machine_of(log: str) -> str:
    """Return the processor that a log names, as extension modules and tags of wheels do, else x86_64."""
    names = set(_MACHINE.findall(log))
    return "aarch64" if names == {"aarch64"} else "x86_64"


def explain_symbols(log: str, index: ExportIndex | None = None, machine: str | None = None) -> Iterator[Finding]:
    """Yield a finding for each undefined symbol of torch's own in the log.

    The default `index` is the index of torch's wheels for the processor `machine`, by default the one that the log
    names.
    """
    symbols = [symbol for symbol in dict.fromkeys(_UNDEFINED.findall(log)) if torch_exports.owned(symbol)]
    machine = machine or machine_of(log)
    on = "" if machine == "x86_64" else f" for {machine}"
    index = index or (torch_exports.shipped(machine) if symbols else ExportIndex())
    for symbol in symbols[:_MOST]:
        having = [release for release in index.releases if not index.lacks(release, [symbol])]
        name = demangle(symbol)[:_LONGEST]
        if having:
            text = (
                f"{name}: torch exports it in {_spans(having, index.releases)}{on}, and the torch that runs is another"
            )
            fix = f"run a torch that has it, or take a build of the package for this torch; {symbol}"
        else:
            text = (
                f"{name}: no release of torch from {index.releases[0]} to {index.releases[-1]}{on} exports it: the "
                "package was built against an older release or a pre-release, or with another C++ ABI"
            )
            fix = f"take a build of the package for this torch (`imagegen wheels find PACKAGE`); {symbol}"
        yield Finding(SYMBOLS, "error", text, fix)


def _spans(having: list[str], releases: tuple[str, ...]) -> str:
    """Return the releases as ranges: "2.4.0 to 2.6.0, 2.8.0"."""
    positions = [releases.index(release) for release in having]
    spans: list[list[int]] = []
    for position in positions:
        if spans and position == spans[-1][1] + 1:
            spans[-1][1] = position
        else:
            spans.append([position, position])
    return ", ".join(
        releases[first] if first == last else f"{releases[first]} to {releases[last]}" for first, last in spans
    )
