"""Weights reach vLLM with the calls of each of its releases. vLLM itself needs a GPU: stand-ins have its interfaces."""

from __future__ import annotations

import base64
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import imagegen.checks

sys.path.insert(0, str(Path(imagegen.checks.__file__).parent))  # as in a container, where `suite` is copied to

from smoke import weight_transfer

WEIGHTS = {"embed": 1, "head": 2}


class Llm:
    """The methods of vllm.LLM for weights: an update counts from its start to its end."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.weights: dict[str, Any] = {}

    def init_weight_transfer_engine(self, request: dict[str, Any]) -> None:
        assert request == {"init_info": request["init_info"]}
        self.calls.append("init")

    def start_weight_update(self) -> None:
        self.calls.append("start")

    def update_weights(self, request: dict[str, Any]) -> None:
        update = request["update_info"]
        handles = pickle.loads(base64.b64decode(update["ipc_handles_pickled"]))
        assert set(update) == {"names", "dtype_names", "shapes", "ipc_handles_pickled"}
        assert len(update["names"]) == len(update["dtype_names"]) == len(update["shapes"]) == len(handles)
        self.weights = dict(zip(update["names"], (handle["GPU-0"][0] for handle in handles), strict=True))
        self.calls.append("update")

    def finish_weight_update(self) -> None:
        self.calls.append("finish")


def update(pairs: Any) -> dict[str, Any]:
    found = list(pairs)
    return {
        "names": [name for name, _ in found],
        "dtype_names": ["float32"] * len(found),
        "shapes": [[1]] * len(found),
        "ipc_handles": [{"GPU-0": (value, 0)} for _, value in found],
        "tensor_sizes": None,
    }


def release_0_24() -> dict[str, Any]:
    """Return the names of vLLM 0.24.0: a function of the worker's class; the caller starts and ends the update."""

    def trainer_send_weights(pairs: Any, args: dict[str, Callable[[Any], None]]) -> None:
        args["send_mode"](SimpleNamespace(**update(pairs)))

    return {"IPCWeightTransferEngine": SimpleNamespace(trainer_send_weights=trainer_send_weights)}


def release_0_31() -> dict[str, Any]:
    """Return those of vLLM 0.31.0: a class for the trainer, which calls a client; the worker's has no function."""

    class Trainer:
        @classmethod
        def trainer_init(cls, info: Any, *, client: Any, source: Any) -> Any:
            assert info.rank == 0
            client.init_weight_transfer_engine({"packed": False})

            def send_weights() -> None:
                client.start_weight_update()
                client.update_weights(update(source))
                client.finish_weight_update()

            return SimpleNamespace(send_weights=send_weights)

    return {
        "IPCWeightTransferEngine": SimpleNamespace(),
        "IPCTrainerInitInfo": SimpleNamespace,
        "IPCTrainerWeightTransferEngine": Trainer,
    }


@pytest.mark.parametrize("release", [release_0_24, release_0_31])
def test_weights_are_sent(release: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ModuleType("vllm.distributed.weight_transfer.ipc_engine")
    vars(engine).update(release())
    package = ModuleType("vllm.distributed.weight_transfer")
    vars(package)["ipc_engine"] = engine
    for name in ("vllm", "vllm.distributed"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, package.__name__, package)
    llm = Llm()
    weight_transfer.send(llm, WEIGHTS)
    assert llm.weights == WEIGHTS
    assert [call for call in llm.calls if call != "init"] == ["start", "update", "finish"]
