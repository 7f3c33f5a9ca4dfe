"""Fingerprints of numerical results: read from a container's words, kept by image, compared."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from imagegen.cli import numerics_tables
from imagegen.cli.output import print_lines
from imagegen.compare import numerics as comparison
from imagegen.core.store import Store
from imagegen.run import numerics
from imagegen.run.numerics import Fingerprint, NumericResult
from imagegen.run.smoke import report as smoke
from tests.support.golden import Golden

CUDNN = ("attention", "sdpa cudnn_attention", "bfloat16")
SAMPLE = st.none() | st.floats(-1e6, 1e6)
RESULTS = st.builds(
    NumericResult, st.sampled_from("abc"), st.lists(SAMPLE, min_size=4, max_size=4).map(tuple), st.booleans()
)  # fmt: skip
VERSIONS = st.dictionaries(st.sampled_from(["cuDNN", "torch", "vllm"]), st.sampled_from(["1", "2"]))
KEYS = st.sampled_from([CUDNN, ("matmul", "torch", "float32"), ("decoder", "vllm", "bfloat16"), ("softmax", "x", "y")])
FINGERPRINTS = st.builds(
    Fingerprint, st.just("GPU"), st.none() | st.sampled_from(["580", "590"]), VERSIONS,
    st.dictionaries(KEYS, RESULTS),
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


def details(device: str = "NVIDIA H200", sha256: str = "0" * 64, **changes: Any) -> dict[str, Any]:
    row = {
        "operation": "attention", "implementation": "sdpa cudnn_attention", "dtype": "bfloat16", "sha256": sha256,
        "samples": [0.5, None, -1.25], "repeatable": True, "largest_absolute": 1e-3, "mean_absolute": 1e-4,
        "largest_relative": 2e-3, "mean_relative": 1e-3, "bound": None, "batch_invariant": False,
    }  # fmt: skip
    return {
        "format": 1, "device": {"type": "cuda", "name": device, "driver": "580.159.04"},
        "versions": {"cuDNN": "9.19.0"}, "operations": [row], "pairs": [], "not_run": {}, **changes,
    }  # fmt: skip


def report(*given: dict[str, Any]) -> smoke.SmokeReport:
    names = ("numerics", "numerics-cuda")
    results = (smoke.CheckResult(name, "pass", 1.0, "", each) for name, each in zip(names, given, strict=False))
    return smoke.SmokeReport("image", "cell", tuple(results))


# ---- reading and keeping


def test_the_details_of_a_check_are_a_fingerprint() -> None:
    read = numerics.read(json.loads(json.dumps(details())))
    assert read == Fingerprint(
        "NVIDIA H200", "580.159.04", {"cuDNN": "9.19.0"}, {CUDNN: NumericResult("0" * 64, (0.5, None, -1.25), True)}
    )


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"device": "NVIDIA H200"},
        {"versions": ["cuDNN"]},
        {"operations": [{"operation": "matmul"}]},
        {"operations": [{**details()["operations"][0], "samples": [math.nan]}]},
        {"operations": [{**details()["operations"][0], "samples": ["one"]}]},
        {"operations": 7},
    ],
)
def test_details_of_another_form_are_no_fingerprint(change: dict[str, Any]) -> None:
    assert numerics.read({**details(), **change}) is None


@given(JSON, st.sampled_from(["format", "device", "versions", "operations"]))
def test_whatever_a_container_answers_is_read_or_refused(value: Any, key: str) -> None:
    read = numerics.read({**details(), key: value})
    assert read is None or isinstance(read, Fingerprint)


def test_fingerprints_are_kept_for_each_image_and_device(tmp_path: Path) -> None:
    store = Store(tmp_path)
    numerics.remember(store, "sha256:a", report(details("EPYC"), details("NVIDIA H200")))
    numerics.remember(store, "sha256:a", report(details("NVIDIA B200")))
    numerics.remember(store, "sha256:a", report(details("EPYC", "1" * 64), {"signal": "SIGKILL"}))
    kept = {each.device: each.results[CUDNN].sha256[0] for each in numerics.recall(store, "sha256:a")}
    assert kept == {"EPYC": "1", "NVIDIA H200": "0", "NVIDIA B200": "0"}
    assert numerics.recall(store, "sha256:b") == ()


def test_a_document_has_what_the_store_has_of_the_image(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert numerics.document(store, "sha256:a") is None
    numerics.remember(store, "sha256:a", report(details("EPYC"), details("NVIDIA H200")))
    content = json.loads(numerics.document(store, "sha256:a") or b"")
    assert numerics.read_attached(content, "sha256:a") == numerics.recall(store, "sha256:a")
    with pytest.raises(ValueError, match="sha256:b"):
        numerics.read_attached(content, "sha256:b")


@given(JSON)
def test_whatever_is_attached_is_read_or_refused(value: Any) -> None:
    for content in (value, {"image": "a", "results": value}, {"image": "a", "results": {"GPU": value}}):
        with pytest.raises(ValueError, match="form"):
            numerics.read_attached(content, "a")


# ---- comparing


@given(RESULTS, RESULTS)
def test_a_distance_is_symmetric_and_zero_for_equal_bytes(one: NumericResult, other: NumericResult) -> None:
    distance = comparison.distance(one, other)
    assert distance == comparison.distance(other, one)
    assert comparison.distance(one, one) == 0
    assert distance is None or distance >= 0
    if one.sha256 == other.sha256:
        assert distance == 0


@given(st.lists(st.lists(st.integers(-100, 100), min_size=4, max_size=4), min_size=3, max_size=3))
def test_distances_keep_the_triangle_inequality(samples: list[list[int]]) -> None:
    one, other, third = (NumericResult(str(n), tuple(map(float, each)), True) for n, each in enumerate(samples))
    whole, first, second = (
        comparison.distance(*pair) or 0.0 for pair in ((one, third), (one, other), (other, third))
    )  # fmt: skip
    assert whole <= first + second


def test_a_value_that_became_infinite_has_no_distance() -> None:
    one, other = NumericResult("a", (1.0, None), True), NumericResult("b", (None, None), True)
    assert comparison.distance(one, other) is None
    assert comparison.distance(replace(one, samples=(1.0,)), replace(other, samples=(1.5, None))) == 0.5


@given(FINGERPRINTS)
def test_an_image_does_not_differ_from_itself(fingerprint: Fingerprint) -> None:
    found = comparison.difference(fingerprint, fingerprint)
    assert found.equal == len(fingerprint.results)
    assert not (found.changes or found.before or found.after or found.versions)


@given(FINGERPRINTS, FINGERPRINTS)
def test_a_difference_is_the_same_from_both_ends(one: Fingerprint, other: Fingerprint) -> None:
    there, back = comparison.difference(one, other), comparison.difference(other, one)
    assert (there.equal, there.before, there.after) == (back.equal, back.after, back.before)
    keyed = {(each.operation, each.implementation, each.dtype): each for each in back.changes}
    assert len(keyed) == len(there.changes)
    for each in there.changes:
        mirrored = keyed[each.operation, each.implementation, each.dtype]
        assert (each.largest, each.repeatable) == (mirrored.largest, mirrored.repeatable)
        assert [(c.name, c.before, c.after) for c in each.causes] == [
            (c.name, c.after, c.before) for c in mirrored.causes
        ]
        assert {cause.name for cause in each.causes} <= {change.name for change in there.versions}
    assert there.equal + len(there.changes) + len(there.before) == len(one.results)
    assert there.equal + len(there.changes) + len(there.after) == len(other.results)


def test_only_libraries_that_compute_an_operation_are_its_causes() -> None:
    keys = [CUDNN, ("softmax", "torch", "float32"), ("decoder", "vllm", "bfloat16"), ("rms_norm", "vllm", "float32")]
    old, new = {"cuDNN": "9.19.0", "vllm": "0.24.0", "triton": "3.6"}, {"cuDNN": "9.22.0", "vllm": "0.25.0"}
    before = Fingerprint("GPU", "580", old, dict.fromkeys(keys, NumericResult("a", (1.0,), True)))
    after = Fingerprint("GPU", "580", new, dict.fromkeys(keys, NumericResult("b", (1.5,), True)))
    causes = [{cause.name for cause in each.causes} for each in comparison.difference(before, after).changes]
    assert causes == [{"cuDNN"}, set(), {"cuDNN", "vllm", "triton"}, {"vllm"}]
    moved = comparison.difference(before, replace(after, driver="590"))
    assert all("driver" in {cause.name for cause in each.causes} for each in moved.changes)


def test_other_devices_are_not_compared() -> None:
    h200, b200 = (Fingerprint(name, None, {}, {CUDNN: NumericResult("a", (), True)}) for name in ("H200", "B200"))
    assert comparison.compare((), ()) is None
    with pytest.raises(ValueError, match="H200 and B200"):
        comparison.difference(h200, b200)
    found = comparison.compare([h200], [b200])
    assert found is not None
    assert (found.compared, found.before, found.after) == ((), ("H200",), ("B200",))
    (sentence,) = comparison.sentences(found)
    assert "H200" in sentence
    assert "B200" in sentence
    both = comparison.compare([h200, b200], [b200])
    assert both is not None
    assert [each.device for each in both.compared] == ["B200"]
    alone = comparison.compare([h200], [])
    assert alone is not None
    assert not alone.compared


def test_the_summary_begins_with_the_largest_difference() -> None:
    sizes = {"a": 0.0, "b": 1e-3, "c": None, "d": 2e-3, "e": 5e-4}
    before = Fingerprint("GPU", None, {}, {(name, "torch", "y"): NumericResult("1", (0.0,), True) for name in sizes})
    after = replace(
        before, results={(name, "torch", "y"): NumericResult("2", (size,), True) for name, size in sizes.items()}
    )
    found = comparison.compare([before], [after])
    assert found is not None
    (sentence,) = comparison.sentences(found)
    assert [sentence.find(f"{name} (torch)") for name in "cdb"] == sorted(
        sentence.find(f"{name} (torch)") for name in "cdb"
    )
    assert "e (torch)" not in sentence


# ---- tables


def printed(lines: Any) -> str:
    out = Console(file=io.StringIO(), width=200)
    print_lines(out, lines)
    return out.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_tables_show_every_result_and_what_was_left_out(golden: Golden) -> None:
    pair = {"operation": "decoder", "dtype": "bfloat16", "one": "transformers", "other": "vllm prefill"}
    given = details(pairs=[{**pair, "largest_absolute": 0.0625, "bound": None}], not_run={"all_reduce": "one GPU"})
    text = printed(numerics_tables.measured_numerics(report(given)))
    for word in ("NVIDIA H200", "580.159.04", "cuDNN 9.19.0", "2.0e-03", "vllm prefill", "6.2e-02", "one GPU"):
        assert word in text
    golden.check(text)
    assert printed(numerics_tables.measured_numerics(report({"signal": "SIGSEGV"}))) == ""


@given(JSON, st.sampled_from(["device", "versions", "operations", "pairs", "not_run"]))
def test_a_table_can_be_made_of_whatever_a_container_answers(value: Any, key: str) -> None:
    printed(numerics_tables.measured_numerics(report({**details(), key: value, "pairs": [value, {"one": value}]})))


def test_the_table_of_a_difference_names_causes_and_what_is_not_repeatable() -> None:
    before = Fingerprint("GPU", "580", {"cuDNN": "9.19.0"}, {CUDNN: NumericResult("a", (1.0,), True)})
    after = Fingerprint("GPU", "580", {"cuDNN": "9.22.0"}, {CUDNN: NumericResult("b", (1.002,), False)})
    found = comparison.compare([before], [after])
    assert found is not None
    text = printed(numerics_tables.changed_numerics(found))
    for word in ("0 equal, 1 changed", "cuDNN 9.19.0 -> 9.22.0", "2.0e-03", "not repeatable"):
        assert word in text
