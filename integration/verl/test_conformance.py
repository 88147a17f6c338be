"""The conformance suite on real verl: stock fails and says how, the plugin makes everything hold."""

from pathlib import Path

import pytest

pytest.importorskip("verl", reason="verl is not installed in this environment")

from samplemask.testing import check_loss, grpo_batch
from samplemask.testing.__main__ import main
from samplemask.testing.verl_host import to_verl, verl_estimator, verl_estimators
from samplemask.testing.verl_table import verl_reports

ESTIMATORS = verl_estimators()
WITH_GROUPS = sorted(set(ESTIMATORS) - {"gae", "reinforce_plus_plus", "remax"})


pytestmark = pytest.mark.usefixtures("plugin")


def test_stock_grpo_fails_deletion_equivalence_and_the_report_names_it():
    (report,) = verl_reports("stock", ["grpo"])
    assert "deletion_equivalence" in report.failed
    assert "FAIL  deletion_equivalence: row " in str(report)
    assert len(report["deletion_equivalence"].batch) == 3


def test_zeroing_the_response_mask_is_not_enough_for_eight_estimators():
    wrong = {
        report.estimator
        for report in verl_reports("response_mask_zeroed")
        if "deletion_equivalence" in report.failed
    }
    assert wrong == {
        "gdpo",
        "gpg",
        "grpo",
        "grpo_passk",
        "grpo_vectorized",
        "reinforce_plus_plus_baseline",
        "rloo",
        "rloo_vectorized",
    }


@pytest.mark.parametrize("name", ESTIMATORS)
def test_with_the_plugin_every_property_holds(name):
    (report,) = verl_reports("installed", [name])
    report.raise_if_failed()
    assert report["deletion_equivalence"].holds
    assert report["healthy_batch_unchanged"].holds


@pytest.mark.parametrize("name", WITH_GROUPS)
def test_stock_lets_masked_rows_move_the_others(name):
    (report,) = verl_reports("stock", [name])
    assert {"deletion_equivalence", "masked_content_irrelevant", "masked_rows_are_zero"} <= set(report.failed)


def test_stock_means_stock_although_the_plugin_is_installed():
    batch = grpo_batch(seed=1)
    stock, installed = verl_estimator("grpo")(batch), verl_estimator("grpo", "installed")(batch)
    assert (stock[batch.masked_B] != 0).any()
    assert (installed[batch.masked_B] == 0).all()


def test_a_batch_becomes_a_dataproto():
    batch = grpo_batch(2, 2, response_length=(1, 3), failure_rate=0.25)
    data = to_verl(batch)
    assert data.batch["response_mask"].shape == (4, 8)
    assert data.batch["response_mask"].sum(1).tolist() == batch.length_B.tolist()
    assert data.batch["token_level_rewards"].sum(1).tolist() == pytest.approx(batch.reward_B.tolist())
    assert data.non_tensor_batch["uid"].tolist() == batch.group_B.tolist()
    assert data.non_tensor_batch["mask_sample"].tolist() == batch.masked_B.tolist()


def test_the_command_writes_the_table(tmp_path):
    assert main(["verl", "--write", str(tmp_path / "conformance.md")]) == 0
    text = (tmp_path / "conformance.md").read_text(encoding="utf-8")
    stock, _, rest = text.partition("## Stock verl with the response mask")
    installed = rest.partition("## verl with the samplemask plugin")[2]
    assert "✗" in stock
    assert "✗" not in installed
    assert installed.count("\n| ") == 16


def test_the_guides_custom_estimator_works_as_written():
    guide = (Path(__file__).parents[2] / "docs" / "test-kit.md").read_text(encoding="utf-8")
    section = guide.partition("## A custom verl estimator")[2].partition("\n## ")[0]
    exec(compile(section.partition("```py\n")[2].partition("```")[0], "test-kit.md", "exec"), {})
    assert "median_baseline" in verl_estimators()


def test_the_guides_loss_fails_as_written():
    guide = (Path(__file__).parents[2] / "docs" / "test-kit.md").read_text(encoding="utf-8")
    section = guide.partition("## A loss")[2].partition("\n## ")[0]
    names = {"check_loss": check_loss}
    exec(compile(section.partition("```py\n")[2].partition("```")[0], "test-kit.md", "exec"), names)
    assert names["report"].failed == ("loss_ignores_masked_content",)
