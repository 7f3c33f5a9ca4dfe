"""Weights from a trainer's GPU memory to vLLM's, with the calls that vLLM has for trainers in the same container."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Mapping
from typing import Any

FIELDS = ("names", "dtype_names", "shapes")  # of an update, as vLLM's worker takes it


class Client:
    """An `LLM` as vLLM's trainer side calls it (vllm.distributed.weight_transfer.VLLMWeightSyncClient)."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._llm.init_weight_transfer_engine({"init_info": init_info})

    def start_weight_update(self) -> None:
        self._llm.start_weight_update()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """`ipc_handles` goes as a pickle, as vLLM's own client for servers sends it."""
        handles = base64.b64encode(pickle.dumps(update_info["ipc_handles"])).decode()
        fields = {name: update_info[name] for name in FIELDS}
        self._llm.update_weights({"update_info": {**fields, "ipc_handles_pickled": handles}})

    def finish_weight_update(self, _: str | None = None) -> None:
        """A name for the weights, which servers take, has no use here."""
        self._llm.finish_weight_update()


def send(llm: Any, weights: Mapping[str, Any]) -> None:
    """Send weights to an `LLM` that was made with the weight transfer backend "ipc"."""
    from vllm.distributed.weight_transfer import ipc_engine

    client = Client(llm)
    if hasattr(ipc_engine, "IPCTrainerWeightTransferEngine"):  # vLLM 0.31.0; it starts and ends the update itself
        info = ipc_engine.IPCTrainerInitInfo(rank=0)
        source = weights.items()  # over IPC it is iterated and nothing else
        ipc_engine.IPCTrainerWeightTransferEngine.trainer_init(info, client=client, source=source).send_weights()
        return

    def forward(update: Any) -> None:
        client.update_weights({name: getattr(update, name) for name in (*FIELDS, "ipc_handles")})

    client.start_weight_update()
    ipc_engine.IPCWeightTransferEngine.trainer_send_weights(iter(weights.items()), {"send_mode": forward})
    client.finish_weight_update()
