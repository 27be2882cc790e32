"""Step time, launches and idle time of each network's recipe; in a dry run, launches and memory.

Times are of synthetic clips, so data is not part of them. `waiting` is the fraction of the traced
time in which the device does nothing: on Ascend it waits for the host to launch the next kernel.
"""

from typing import Any

from utils.config import ROOT
from utils.verify.machine import Plan
from utils.verify.processes import ProcessResult
from utils.verify.report import OK, SLOW, Finding
from utils.verify.training import TOY

MAX_WAITING = 0.3  # more is SLOW
MAX_FIRST_STEP = 300.0  # seconds; more is SLOW
RECIPES = {
    "resnet50": "resnet50_r50_imagenet_zoo",
    "tsm": "tsm_r50_sthv2_8f",
    "x3d": "x3d_s_k400_13x6_ascend_8p",
    "mvit_multi": "mvit_multi_plain_s_k400_16x4",
}


def verify_speed(plan: Plan) -> tuple[list[Finding], dict]:
    findings, values = [], {}
    for network in RECIPES:
        if plan.is_dry:
            result = simulate_step(plan, network)
            findings.append(assess_dry_run(network, result))
        else:
            recipe, trace = choose_recipe(plan, network), str(plan.work / f"trace_{network}")
            result = plan.measure(f"speed_{network}", "step", trace=trace, **recipe)
            findings.append(assess_speed(network, plan.device, result))
        values[network] = result.last
    return findings, values


def choose_recipe(plan: Plan, network: str) -> dict[str, Any]:
    """Network, config and overrides of a request: the recipe, or a small form of the smoke yaml."""
    name = f"{network}_smoke" if plan.is_toy else RECIPES[network]
    config = ROOT / network / "configs" / f"{name}.yaml"
    overrides = [*TOY[network], "data.batch=2"] if plan.is_toy else []
    return {"network": network, "config": str(config), "overrides": overrides}


def simulate_step(plan: Plan, network: str, *options: str) -> ProcessResult:
    """scripts/analysis/dry_run.py with the network's smoke yaml at level O2."""
    config = ROOT / network / "configs" / f"{network}_smoke.yaml"
    fixed = ["--config_path", str(config), "--chip", plan.chip, "--run.amp=O2"]
    name = f"dry_run_{network}{'_ranks' if options else ''}"
    return plan.runner.run_script(name, "scripts/analysis/dry_run.py", *fixed, *options)


def assess_speed(network: str, device: str, result: ProcessResult) -> Finding:
    """SLOW if the device waits or the first step takes minutes; FAILED without a step time."""
    values = result.last
    if "step" not in values:
        return result.build_failure(network)
    text = (
        f"{network}: {1e3 * values['step']:.1f} ms a step of {values['batch']} clips, "
        f"compiled in {values['compile']:.0f} s, first step {values['first_step']:.1f} s"
    )
    if result.status or "shares" not in values:
        failure = result.build_failure()
        return Finding(SLOW, f"{text}; no trace: {failure.text}", failure.advice)
    text += f", {values['launches'] or 'an unknown number of'} launches"
    waiting = values["shares"].get("waiting", 0.0)
    if values["shares"]:
        text += f", waiting {waiting:.0%}"
    if values["first_step"] > MAX_FIRST_STEP:
        advice = "try --run.op_compile=prebuilt" if device == "Ascend" else "run it a second time"
        return Finding(SLOW, text, f"{network}: the first step compiles kernels: {advice}")
    if device != "CPU" and waiting > MAX_WAITING:
        advice = "the host launches too slowly: try --run.jit_level=O1 or a larger data.batch"
        return Finding(SLOW, text, f"{network}: {advice}; each rank needs 12 cores or more")
    return Finding(OK, text)


def assess_dry_run(network: str, result: ProcessResult) -> Finding:
    """FAILED if the graph cannot be built; SLOW if part of it runs in Python or on an AI CPU."""
    values = result.last
    if not values.get("finished"):
        return result.build_failure(network, values.get("reason"))
    text = (
        f"{network}, smoke yaml at O2 for {values['chip']}: compiles, "
        f"{values['launches']} launches, {values['peak_gb']} GB"
    )
    slow = [f"{values['python']} calls of Python"] if values["python"] else []
    slow += [f"AI CPU: {', '.join(values['ai_cpu'])}"] if values["ai_cpu"] else []
    if slow:
        return Finding(SLOW, f"{text}; {'; '.join(slow)}", f"{network}: report this as an issue")
    return Finding(OK, text)
