"""Step time, launches and waiting of each network's recipe; or, in a dry run, launches and memory.

Times are of synthetic clips, so data is not part of them. `waiting` is the fraction of the traced
time in which the device does nothing: on Ascend it waits for the host to launch the next kernel.
"""

from typing import Any

from utils.config import ROOT
from utils.verify.machine import Plan
from utils.verify.processes import Ended
from utils.verify.report import FAILED, OK, SLOW, Finding

WAITING = 0.3  # more is SLOW
FIRST_STEP = 300.0  # seconds; more is SLOW
REPEATS, TOY_REPEATS = 30, 3
RECIPES = {
    "resnet50": "resnet50_r50_imagenet_zoo",
    "tsm": "tsm_r50_sthv2_8f",
    "x3d": "x3d_s_k400_13x6_ascend_8p",
    "mvit_multi": "mvit_multi_plain_s_k400_16x4",
}
TOY = {
    "resnet50": ["data.batch=8", "model.first_width=8"],
    "tsm": ["data.batch=2", "model.first_width=8", "data.crop=32", "data.resize=40"],
    "x3d": ["data.batch=2", "data.scales=[32,36]", "data.crop=32", "data.frames=4"],
    "mvit_multi": [
        "data.batch=2",
        "data.crop=32",
        "data.frames=4",
        "model.dim=8",
        "model.depth=2",
        "model.stage_starts=[1]",
    ],
}


def verify_speed(plan: Plan) -> tuple[list[Finding], dict]:
    findings, values = [], {}
    for network in RECIPES:
        if plan.is_dry:
            ended = simulate_step(plan, network)
            findings.append(assess_dry_run(network, ended))
        else:
            request = {"network": network, **choose_recipe(plan, network)}
            request["repeats"] = TOY_REPEATS if plan.is_toy else REPEATS
            request["trace"] = str(plan.work / f"trace_{network}")
            ended = plan.runner.run_worker(f"speed_{network}", "step", request)
            findings.append(assess_speed(network, plan.device, ended))
        values[network] = ended.last
    return findings, values


def choose_recipe(plan: Plan, network: str) -> dict[str, Any]:
    """Device, config and overrides of a request: the recipe, or a toy of the smoke yaml."""
    name = f"{network}_smoke" if plan.is_toy else RECIPES[network]
    config = ROOT / network / "configs" / f"{name}.yaml"
    overrides = TOY[network] if plan.is_toy else []
    return {"device": plan.device, "config": str(config), "overrides": overrides}


def simulate_step(plan: Plan, network: str, *options: str) -> Ended:
    """scripts/analysis/dry_run.py with the network's smoke yaml at level O2."""
    config = ROOT / network / "configs" / f"{network}_smoke.yaml"
    fixed = ["--config_path", str(config), "--chip", plan.chip, "--run.amp=O2"]
    name = f"dry_run_{network}{'_ranks' if options else ''}"
    return plan.runner.run_script(name, "scripts/analysis/dry_run.py", *fixed, *options)


def assess_speed(network: str, device: str, ended: Ended) -> Finding:
    """SLOW if the device waits or the first step takes minutes; FAILED without a step time."""
    result, log = ended.last, f"the log is logs/speed_{network}.log"
    if "step" not in result:
        return Finding(FAILED, f"{network}: {ended.reason}", log)
    text = (
        f"{network}: {1e3 * result['step']:.1f} ms a step of {result['batch']} clips, "
        f"compiled in {result['compile']:.0f} s, first step {result['first_step']:.1f} s"
    )
    fractions = result.get("shares") or {}
    if ended.status or "shares" not in result:
        return Finding(SLOW, f"{text}; no trace: {ended.reason}", log)
    text += f", {result['launches'] or 'an unknown number of'} launches"
    if fractions:
        text += f", waiting {fractions['waiting']:.0%}"
    if result["first_step"] > FIRST_STEP:
        advice = "try --run.op_compile=prebuilt" if device == "Ascend" else "run it a second time"
        return Finding(SLOW, text, f"{network}: the first step compiles kernels: {advice}")
    if device != "CPU" and fractions.get("waiting", 0) > WAITING:
        advice = "the host launches too slowly: try --run.jit_level=O1 or a larger data.batch"
        return Finding(SLOW, text, f"{network}: {advice}; each rank needs 12 cores or more")
    return Finding(OK, text)


def assess_dry_run(network: str, ended: Ended) -> Finding:
    """FAILED if the graph cannot be built; SLOW if part of it runs in Python or on an AI CPU."""
    result, log = ended.last, f"the log is logs/dry_run_{network}.log"
    if not result.get("finished"):
        return Finding(FAILED, f"{network}: {result.get('reason') or ended.reason}", log)
    text = (
        f"{network}, smoke yaml at O2 for {result['chip']}: compiles, "
        f"{result['launches']} launches, "
        f"{result['peak_gb']} GB"
    )
    slow = [f"{result['python']} calls of Python"] if result["python"] else []
    slow += [f"AI CPU: {', '.join(result['ai_cpu'])}"] if result["ai_cpu"] else []
    if slow:
        return Finding(SLOW, f"{text}; {'; '.join(slow)}", f"{network}: report this as an issue")
    return Finding(OK, text)
