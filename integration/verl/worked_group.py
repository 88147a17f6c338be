"""The worked group of four in docs/concepts.md, computed by the real verl.

python integration/verl/worked_group.py docs/concepts.md
"""

from __future__ import annotations

import runpy
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from samplemask.testing import GrpoBatch
from samplemask.testing.verl_host import to_verl

NAME = "worked group in verl"
GROUP = GrpoBatch.of([1.0, 1.0, 0.0, 0.0], masked=[0, 1, 0, 0])
ESTIMATORS = (
    ("grpo", True),
    ("grpo", False),
    ("rloo", None),
    ("opo", None),
    ("gpg", None),
    ("grpo_passk", True),
    ("reinforce_plus_plus_baseline", None),
    ("reinforce_plus_plus", None),
)
TABLES = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "_tools" / "tables.py"))


def advantages(estimator: str, by_std: bool | None, action: str) -> str:
    """Return the advantages of the group's four rows, through verl's own `compute_advantage`.

    Args:
        estimator: Registered name.
        by_std: verl's `norm_adv_by_std_in_grpo`; None where it means nothing.
        action: `algorithm.mask_sample.action`.
    """
    algorithm = {
        "gamma": 1.0,
        "lam": 1.0,
        "norm_adv_by_std_in_grpo": by_std is not False,
        "use_pf_ppo": False,
    }
    config = import_module("omegaconf").OmegaConf.create({**algorithm, "mask_sample": {"action": action}})
    compute = import_module("verl.trainer.ppo.ray_trainer").compute_advantage
    result = compute(
        to_verl(GROUP),
        adv_estimator=estimator,
        gamma=1.0,
        lam=1.0,
        norm_adv_by_std_in_grpo=by_std is not False,
        config=config,
    )
    return ", ".join(f"{value + 0.0:.3g}" for value in result.batch["advantages"][:, 0].tolist())


def table() -> str:
    """Return the table; installs the plugin in this process."""
    import_module("samplemask_verl").install()
    rows = []
    for estimator, by_std in ESTIMATORS:
        title = f"`{estimator}`" + {True: ", divided by std", False: ", not divided", None: ""}[by_std]
        rows.append([title, *(advantages(estimator, by_std, action) for action in ("ignore", "exclude"))])
    head = [f"verl {version('verl')}", "without samplemask", "`exclude`"]
    return str(TABLES["as_table"](head, rows))


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(TABLES["with_table"](page.read_text("utf-8"), NAME, table()), "utf-8")
