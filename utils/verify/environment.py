"""The first part: what scripts/check_env.py finds, and whether MindSpore can use the device."""

from utils.verify.machine import Plan
from utils.verify.processes import Ended
from utils.verify.report import FAILED, OK, SLOW, Finding

ADVICE = "python scripts/check_env.py says on each line that begins with ! what to do"


def verify_environment(plan: Plan) -> tuple[list[Finding], dict]:
    """Findings, and what check_env has found."""
    ended = plan.runner.run_script("environment", "scripts/check_env.py")
    return assess_environment(ended, plan.device, list_warnings(plan)), ended.last.get("found", {})


def list_warnings(plan: Plan) -> list[str]:
    """The lines of check_env that begin with `!`."""
    text = (plan.runner.logs / "environment.out").read_text(errors="replace")
    return [" ".join(line[1:].split()) for line in text.splitlines() if line.startswith("!")]


def assess_environment(ended: Ended, device: str, warnings: list[str]) -> list[Finding]:
    """FAILED for what makes every run fail, SLOW for other warnings."""
    result, missing = ended.last.get("found"), ended.last.get("missing", [])
    if result is None:
        return [Finding(FAILED, f"check_env {ended.reason}", "run python scripts/check_env.py")]
    findings = []
    if missing:
        findings.append(Finding(FAILED, f"missing: {', '.join(missing)}", ADVICE))
    if device not in result.get("devices", ""):
        text = f"MindSpore can use {result.get('devices') or 'no device'}, not {device}"
        findings.append(Finding(FAILED, text, ADVICE))
    findings += [Finding(SLOW, line, ADVICE) for line in warnings if not missing]
    return findings or [Finding(OK, f"all found; MindSpore can use {result['devices']}")]
