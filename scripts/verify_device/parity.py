"""Golden parity: the networks on the device against recorded values of the originals.

A golden case is a small network with weights and inputs from seeds. Three errors of one step have
limits: of the scores, the largest difference over their range; of the loss, the relative error; of
the gradients, the 90 % quantile of the relative errors of their norms. float32 is IEEE (run.tf32
false). O2 computes in float16, with errors on a CPU of up to 0.001, 0.004 and 0.13; its limits are
a few times that.
"""

from scripts.verify_device.machine import Plan
from scripts.verify_device.processes import ProcessResult
from scripts.verify_device.report import FAILED, OK, Finding
from utils.config import ROOT

LIMITS = {
    "O0": {"scores": 1e-3, "loss": 1e-3, "gradients": 0.02},
    "O2": {"scores": 0.02, "loss": 0.02, "gradients": 0.3},
}
# Network -> file in its tests/golden, name of the case in a file of several.
CASES = {
    "resnet50": ("resnet50_small.json", ""),
    "tsm": ("tsm_r50_8f_small.json", ""),
    "x3d": ("x3d_s_small.json", ""),
    "mvit_multi": ("mvit_multi_small.json", ""),
}
# Networks of fewer layers, for a rehearsal.
TOY_CASES = {
    **CASES,
    "resnet50": ("variants.json", "resnet18"),
    "tsm": ("variants.json", "resnet18_8f"),
}
SMALLEST = "resnet50"  # the others' steps at O2 take minutes on a CPU


def verify_parity(plan: Plan) -> tuple[list[Finding], dict]:
    """Measures each network in a separate process, which computes both levels."""
    findings = []
    values = {}
    for network, (file, name) in (TOY_CASES if plan.is_toy else CASES).items():
        case = ROOT / network / "tests" / "golden" / file
        if not case.is_file():
            text = f"{network}: the golden case {file} does not exist"
            findings.append(Finding(FAILED, text, "run this in a checkout, not in a package"))
            continue
        quick = plan.is_toy and network != SMALLEST
        result = plan.measure(
            f"parity_{network}",
            "parity",
            network=network,
            case=str(case),
            name=name,
            levels=list(LIMITS),
            gradients=["O0"] if quick else list(LIMITS),
        )
        values[network] = list(result.lines)
        findings += assess_parity(
            network, case=f"{network}/tests/golden/{file}", device=plan.device, result=result
        )
    return findings, values


def assess_parity(network: str, case: str, device: str, result: ProcessResult) -> list[Finding]:
    """One finding for each level; FAILED beyond a limit, or if the level gave no result."""
    findings = []
    measured = {line["level"]: line for line in result.lines}
    for level, limits in LIMITS.items():
        if level not in measured:
            findings.append(result.build_failure(f"{network} {level}"))
            continue
        errors = {name: measured[level][name] for name in limits if name in measured[level]}
        beyond = [name for name, error in errors.items() if not error <= limits[name]]
        parts = [f"{name} {error:.2g} (limit {limits[name]:g})" for name, error in errors.items()]
        text = f"{network} {level}: {', '.join(parts)}"
        advice = ""
        if beyond:
            advice = (
                f"{', '.join(beyond)} beyond the limit: find the first layer that differs with "
                f"scripts/analysis/compare_step.py --case {case} --run.device={device} "
                "--run.tf32=false"
            )
        findings.append(Finding(FAILED if beyond else OK, text, advice))
    return findings
