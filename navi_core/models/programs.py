"""Policy export to ONNX models and compiled AOTInductor packages, with a numerical parity check.

Every export is verified against its policy over 200 decisions, with its own state fed back and episode ends in between.
An export that deviates by more than 1e-5 is deleted before it gets its final name.
"""

import json
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from navi_core.errors import CheckpointError, ConfigError, install_command
from navi_core.models.checkpoint import Checkpoint, load_checkpoint, load_policy
from navi_core.models.exported import (
    ANSWERS,
    METADATA_KEY,
    ActingModule,
    Parity,
    example_inputs,
    load_exported,
    recurrent_parity,
)
from navi_core.policy import NavigationPolicy
from navi_core.record import write_durably

GATE_STEPS = 200
GATE_TOLERANCE = 1e-5


def export_checkpoint(
    checkpoint: Path | str, path: Path | str, *, kind: str, rows: int = 1, threads: int = 1
) -> tuple[Path, Parity]:
    """Export a checkpoint's policy to ONNX or AOTInductor; the recurrent state is an explicit input and output.

    Args:
        checkpoint: The checkpoint file.
        path: File to write; `.onnx` for ONNX, `.pt2` for AOTInductor.
        kind: `onnx` or `aoti`.
        rows: Observations of a call, fixed in the program.
        threads: Threads the compiled package may use (aoti; ONNX Runtime asks when it loads).

    Returns:
        `path`, and how far 200 recurrent decisions strayed.

    Raises:
        CheckpointError: The checkpoint cannot be read, the file not be written, or the parity gate failed; the
            file is then deleted, and a former file of that name untouched.
        ConfigError: The suffix does not fit, or a package is missing.
    """
    policy, source = load_policy(checkpoint)
    metadata = _metadata(source)
    return export_policy(policy, path, kind=kind, rows=rows, threads=threads, metadata=metadata)


def _metadata(source: Checkpoint) -> dict[str, Any]:
    """Return what flies a checkpoint's network without Navi, besides the network; docs/how-to/export.md lists it."""
    shaper, config = source.row_shaper(), source.train_config()
    parts = [] if shaper is None else [*shaper.made_of]
    parts += ["a map"] * config.policy.place_memory + ["a goal"] * config.policy.goal
    return {
        "run_id": source.run_id,
        "step_id": source.step_id,
        "decision_hz": source.decision_hz,
        "weights_hash": source.weights_hash,
        "aux_made_of": parts,
        "max_distance": config.env.max_distance,
        "limits": [*config.env.dynamics.max_speed, config.env.dynamics.max_yaw_rate],
        "semantic_vocabulary": source.corpus_summary.get("semantic_vocabulary") or {},
    }


def export_policy(
    policy: NavigationPolicy,
    path: Path | str,
    *,
    kind: str,
    rows: int = 1,
    threads: int = 1,
    metadata: Mapping[str, Any] | None = None,
) -> tuple[Path, Parity]:
    """Export an in-memory policy to ONNX or AOTInductor; see `export_checkpoint`.

    Args:
        policy: The policy, on the CPU.
        path: File to write.
        kind: `onnx` or `aoti`.
        rows: Observations of a call.
        threads: Threads the compiled package may use.
        metadata: Plain data kept in the file beside the policy's configuration.
    """
    if kind not in _WRITERS:
        raise ConfigError(f"no program format {kind!r}; allowed: {', '.join(_WRITERS)}")
    suffix, write = _WRITERS[kind]
    path = Path(path)
    if path.suffix != suffix:
        raise ConfigError(f"{path}: a file of format {kind} ends in {suffix}")
    described = {"format": kind, "rows": rows, "answers": ANSWERS, "policy": policy.config.model_dump(mode="json")}
    described["state"] = [list(part.shape) for part in policy.initial_state(rows)]
    described["torch"] = torch.__version__
    description = described | dict(metadata or {})
    training = policy.training
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # An export takes a minute; a process killed meanwhile leaves nothing in the target folder.
        with tempfile.TemporaryDirectory(prefix="navi-export-") as workshop:
            made = Path(workshop) / path.name
            policy.eval()
            with torch.no_grad(), _quiet():
                inputs = example_inputs(policy, rows)
                program = torch.export.export(ActingModule(policy), inputs, strict=False)
                write(program, inputs, made, json.dumps(description, sort_keys=True), threads)
            parity = recurrent_parity(policy, load_exported(made, threads=threads).act, rows=rows, steps=GATE_STEPS)
            if not parity.worst <= GATE_TOLERANCE:
                raise CheckpointError(
                    f"{path}: the {kind} program strays from the policy by {parity.worst:.1e} within {parity.steps} "
                    f"decisions (allowed: {GATE_TOLERANCE:.0e}); it was deleted"
                )
            write_durably(path, made.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: the export cannot be written: {error.strerror or error}") from error
    finally:
        policy.train(training)
    return path, parity


def _write_onnx(
    program: torch.export.ExportedProgram, inputs: tuple[Tensor, ...], path: Path, metadata: str, _threads: int
) -> None:
    try:
        import onnxscript  # noqa: F401 - torch's exporter needs it, with a less clear error
    except ImportError:
        raise ConfigError(f"format onnx needs onnx and onnxscript: {install_command('export')}") from None
    parts = len(inputs) - 3
    names = ["obs", "aux", "reset", *(f"state_{i}" for i in range(parts))]
    answers = [*ANSWERS, *(f"new_state_{i}" for i in range(parts))]
    onnx = torch.onnx.export(program, inputs, dynamo=True, verbose=False, input_names=names, output_names=answers)
    assert onnx is not None
    onnx.model.metadata_props[METADATA_KEY] = metadata
    onnx.save(str(path), external_data=False)


def _write_aoti(
    program: torch.export.ExportedProgram, _inputs: tuple[Tensor, ...], path: Path, metadata: str, threads: int
) -> None:
    from torch._inductor.exc import InvalidCxxCompiler

    settings = {"cpp.threads": threads, "aot_inductor.metadata": {METADATA_KEY: metadata}}
    try:
        torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=settings)
    except InvalidCxxCompiler:
        raise ConfigError("format aoti needs a C++ compiler (g++ or clang++); or choose --format onnx") from None


_WRITERS = {"onnx": (".onnx", _write_onnx), "aoti": (".pt2", _write_aoti)}


@contextmanager
def _quiet() -> Iterator[None]:
    """Context manager that silences the exporters' messages about operators that no policy uses."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(before)


def export_safetensors(checkpoint: Path | str, path: Path | str) -> Path:
    """Export a checkpoint's policy weights as a safetensors file.

    Its metadata hold the description of an exported program as JSON under the key `navi`, and run, step, encoder,
    core, decision rate, weights hash and policy configuration as texts. Optimizer and random states stay behind.

    Args:
        checkpoint: The checkpoint file.
        path: File to write, in one piece.

    Returns:
        `path`.

    Raises:
        CheckpointError: The checkpoint cannot be read, or the file not be written.
    """
    from safetensors.torch import save

    source, path = load_checkpoint(checkpoint), Path(path)
    metadata = {
        "format": "pt",
        "run_id": source.run_id,
        "step_id": str(source.step_id),
        "encoder_backend": source.encoder_backend,
        "temporal_core": source.temporal_core,
        "decision_hz": str(source.decision_hz),
        "weights_hash": source.weights_hash,
        "policy_config": json.dumps(source.config["policy"], sort_keys=True),
        METADATA_KEY: json.dumps({"policy": source.config["policy"]} | _metadata(source), sort_keys=True),
    }
    tensors = {name: tensor.contiguous() for name, tensor in source.policy_state.items()}
    with CheckpointError.of_system(f"{path}: the export cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, save(tensors, metadata=metadata))
    return path
