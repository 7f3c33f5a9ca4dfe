"""Examine this host, its connections or a container for the image of a cell."""

from __future__ import annotations

from imagegen.app.session import Session
from imagegen.checks.preflight.model import Image
from imagegen.compat.rule import Rule
from imagegen.core.errors import EngineError, OptionConflictError
from imagegen.engine import Engine
from imagegen.lock import local_tags
from imagegen.lock.model import Lock
from imagegen.oci.documents import MACHINES
from imagegen.run.doctor import container as doctor_container
from imagegen.run.doctor import fabric as doctor_fabric
from imagegen.run.doctor import host as doctor_host
from imagegen.run.doctor.diagnosis import Diagnosis
from imagegen.run.smoke import runner
from imagegen.spec.model import Cell


def _fabric(session: Session, cell: Cell | None) -> Diagnosis:
    """Examine this host's connections. For a cell with an image in the engine, run NCCL in a container of it."""
    host = doctor_fabric.gather()
    if cell is None:
        return doctor_fabric.examine_fabric(Image(), None, host, doctor_fabric.Measured())
    lock = session.lock_files.find(cell)
    facts = doctor_host.facts_of(cell, lock, session.matrix.rules)
    return doctor_fabric.examine_fabric(
        facts, lock, host, _measured(session, cell, lock) if host.machine.gpus else doctor_fabric.Measured()
    )


def _measured(session: Session, cell: Cell, lock: Lock | None) -> doctor_fabric.Measured:
    """Run the smoke check of NCCL in a container of the cell's image, if the engine has it and it is for CUDA."""
    if cell.cuda_version is None:
        return doctor_fabric.Measured(reason=f"{cell.id} is for CPUs")
    if lock is None:
        return doctor_fabric.Measured(
            reason=f"nothing was measured, because {cell.id} has no lock (`imagegen lock {cell.id}`)"
        )
    tag = local_tags(lock)[1]
    default, locked = lock.by_cell(cell)[0]
    try:
        with Engine.connect(session.project.settings, session.project.progress) as engine:
            if engine.image_digest(tag) is None:
                return doctor_fabric.Measured(
                    reason=f"nothing was measured, because {tag} is not in Docker (`imagegen build {cell.id}`)"
                )
            report = runner.run(
                engine,
                tag,
                locked,
                default.declarations,
                require_gpu=False,
                progress=session.project.progress,
                only=["fabric-cuda"],
            )
    except EngineError as error:
        return doctor_fabric.Measured(reason=f"nothing was measured: {error.what}")
    result = report.results[0]
    return doctor_fabric.Measured(result.status, result.reason, result.details)


def examine(session: Session, cell: str | None, container: str | None, *, fabric: bool) -> list[Diagnosis]:
    """Examine this host or a container. Raises OptionConflictError for options that exclude each other."""
    if cell and container is not None:
        raise OptionConflictError("a container names its cell", fix=f"leave out {cell}")
    if fabric and container is not None:
        raise OptionConflictError("--fabric examines this host", fix="leave out --container")
    if fabric:
        return [_fabric(session, chosen) for chosen in (session.matrix.select(cell) if cell else [None])]
    if container is not None:
        with Engine.connect(session.project.settings, session.project.progress) as engine:
            return [
                doctor_container.examine_container(
                    engine, container, session.matrices.knowledge_files.model_types, _rules_with_messages(session)
                )
            ]
    if cell:
        locks = [(chosen, session.lock_files.find(chosen)) for chosen in session.matrix.select(cell)]
        return [
            doctor_host.examine_host(
                session.project.settings, doctor_host.facts_of(chosen, lock, session.matrix.rules), lock
            )
            for chosen, lock in locks
        ]
    return [doctor_host.examine_host(session.project.settings, Image())]


def examine_log(session: Session, name: str, text: str, cell: str | None = None) -> Diagnosis:
    """Explain a log or a message, of the platform of the cell if one is named."""
    machine = MACHINES[session.matrix.select_one(cell).platform] if cell else None
    matrices = session.matrices
    return doctor_container.examine_log(
        name,
        text,
        matrices.knowledge_files.model_types,
        machine,
        rules=_rules_with_messages(session),
        packages=matrices.knowledge_files.harvested,
    )


def _rules_with_messages(session: Session) -> tuple[Rule, ...]:
    """Return the rules of the matrices, and those from the names that packages import of each other."""
    matrices = session.matrices
    return (*matrices.matrix.rules, *matrices.knowledge_files.api_rules(matrices.matrix.components))
