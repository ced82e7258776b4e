"""The report says what each arm did and why, and whether that is what the mechanism says."""

import io
import json
from dataclasses import replace

from rich.console import Console

from lab.ablation import ARMS, ArmResult, PhaseCount
from lab.ablation_report import ablation_json, as_expected, print_ablation
from lab.model.latency import RequestTimes
from lab.model.speech import SpeechReport
from lab.report import Failure
from lab.stall import BlockedChunk
from protocol.watermark import Watermark

BLOCKED = BlockedChunk("warm-up-05", 0, "prefill-1", 0, 5, 1, 70, believed=Watermark(0, 60), true=Watermark(0, 60))
SURVIVORS = {(False, "both"), (True, "restart_only"), (True, "both")}


def results() -> list[ArmResult]:
    """What all eight runs should be."""
    found = []
    for repair in (False, True):
        for arm in ARMS:
            if (repair, arm.name) in SURVIVORS:
                found.append(ArmResult(arm, repair, PhaseCount(11, 11), PhaseCount(846, 846)))
            else:
                found.append(ArmResult(arm, repair, PhaseCount(11, 4, 3), blocked=(BLOCKED,)))
    return found


def test_the_object_has_both_tables_with_counts() -> None:
    """Stalled arms have 4 of 11, three in flight and no profile; the surviving one has both phases complete."""
    value = json.loads(json.dumps(ablation_json(results())))
    arms = {arm["name"]: arm for arm in value["arms"]}
    assert list(arms) == ["neither", "restart_only", "snapshot_only", "both"]
    assert arms["neither"]["warmup"] == {"completed": 4, "total": 11, "in_flight": 3}
    assert arms["neither"]["profile"] is None
    assert arms["both"]["profile"] == {"completed": 846, "total": 846}
    assert [arm["stalled"] for arm in value["arms_with_repair"]] == [True, False, True, False]
    assert value["as_expected"] is True


def test_every_outcome_is_explained() -> None:
    """Each stalled arm names its mechanism and the chunk that waits; no two arms of a table share a reason."""
    value = ablation_json(results())
    for table in ("arms", "arms_with_repair"):
        arms = value[table]
        assert isinstance(arms, list)
        assert len({arm["why"] for arm in arms}) == 4
        assert all(
            "warm-up-05 chunk 0 on decode rank 0 needs watermark (0, 70)" in arm["why"] for arm in arms if arm["stalled"]
        )


def test_an_unexpected_outcome_is_said() -> None:
    """An arm that survives against its mechanism, and one that fails instead of stalling, spoil the experiment."""
    good = results()
    assert as_expected(good)
    survived = replace(good[0], blocked=(), warmup=PhaseCount(11, 11), profile=PhaseCount(846, 846))
    failed = replace(good[0], blocked=(), failures=[Failure("warm-up-05", "decode 0", "deadline", "too late")])
    for wrong in (survived, failed):
        assert not as_expected([wrong, *good[1:]])
        text = io.StringIO()
        print_ablation([wrong, *good[1:]], Console(file=text, width=120))
        assert "AN ARM DID NOT DO WHAT ITS MECHANISM SAYS" in text.getvalue()


def spoken(times: int, equal: int) -> ArmResult:
    """A surviving arm in which the model spoke."""
    speech = SpeechReport(compared=857, equal=equal)
    speech.times += [RequestTimes(f"profile-{number:03d}", 0.0, (1.0, 2.0)) for number in range(1, times + 1)]
    speech.times += [RequestTimes(f"warm-up-{number:02d}", 0.0, (1.0, 2.0)) for number in range(1, 12)]
    return replace(results()[3], speech=speech)


def test_an_arm_that_spoke_is_judged_by_its_tokens_and_times() -> None:
    """One unequal answer, or one request of the profile whose times are missing, and the arm has not survived."""
    good = spoken(times=846, equal=857)
    assert good.survived
    value = ablation_json([good])
    assert value["arms"][0]["profile"] == {"completed": 846, "total": 846, "ttft_coverage": 1.0, "itl_coverage": 1.0}  # type: ignore[index]
    assert value["arms"][0]["tokens"]["requests_equal"] == 857  # type: ignore[index]
    for wrong in (spoken(times=845, equal=857), spoken(times=846, equal=856)):
        assert not wrong.survived
        assert "not every answer" in ablation_json([wrong])["arms"][0]["why"]  # type: ignore[index]


def test_people_get_both_tables() -> None:
    """The tables show counts and a verdict."""
    text = io.StringIO()
    print_ablation(results(), Console(file=text, width=120))
    shown = text.getvalue()
    assert "without repair" in shown
    assert "with repair" in shown
    assert "846/846" in shown
    assert shown.rstrip().endswith("Every arm did what its mechanism says.")
