"""The zoo on a host with aarch64, which QEMU emulates: Debian's packages and the pinned wheels.

It needs Debian on x86-64, Linux 6.7 for a binfmt_misc of its own, two gigabytes of disk, and about
ten minutes. Nothing is installed on the host.
"""

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts.data.synthetic.motion_videos import draw_dataset
from tests.helpers import copy_checkout, read_result, run_json
from utils.files import ROOT

PACKAGES = ["python3", "libgomp1", "libstdc++6", "zlib1g", "bash", "coreutils", "iproute2"]
PACKAGES += ["g++", "binutils"]
TAGS = ["manylinux2014_aarch64", *(f"manylinux_2_{minor}_aarch64" for minor in range(17, 29))]
# The head of an ELF file for aarch64, and its bits that count; see the kernel's binfmt_misc.rst.
MAGIC = r"\x7fELF\x02\x01\x01" + r"\x00" * 9 + r"\x02\x00\xb7\x00"
MASK = r"\xff" * 7 + r"\x00" + r"\xff" * 8 + r"\xfe\xff\xff\xff"
ENTER = """
set -e
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
echo ':zoo:M::{magic}:{mask}:{qemu}:PF' > /proc/sys/fs/binfmt_misc/register
mount -t proc none {root}/proc
mount --bind {root}/cpuinfo {root}/proc/cpuinfo
mount --rbind /dev {root}/dev
exec chroot {root} "$@"
"""
INSIDE = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork"]
CPUINFO = "processor\t: 0\nBogoMIPS\t: 200.00\nFeatures\t: fp asimd crc32 atomics fphp asimdhp\n\n"
CONFIG = "tsm/configs/tsm_smoke.yaml"
NETWORK = ["--model.first_width=8", "--data.crop=32", "--data.segments=4"]
SETTINGS = [f"--config_path={CONFIG}", *NETWORK, "--run.device=CPU", "--data.batch=2"]
SETTINGS += ["--eval.batch=2", "--train.epochs=1", "--train.warmup_epochs=0"]
# Equal pixels on both processors, and the kernels that both have.
SETTINGS += ["--data.reader=portable"]
VARIABLES = {"ZOO_CPU_KERNELS": "0"}


def unpack(folder: Path, root: Path) -> None:
    """Unpacks Debian's packages for arm64 into `root`, and QEMU for this host into `folder`."""
    state = folder / "apt"
    for name in ("lists/partial", "archives/partial"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    places = {"State": state, "State::status": state / "status", "Cache": state}
    apt = ["apt-get", "--quiet", "--yes", "-o", "APT::Architecture=arm64"]
    apt += ["-o", "APT::Architectures::=arm64", "-o", "APT::Architectures::=amd64"]
    apt += [word for name, path in places.items() for word in ("-o", f"Dir::{name}={path}")]
    run = {"check": True, "cwd": state, "stdout": subprocess.DEVNULL}
    if subprocess.run([*apt, "update"], cwd=state, stdout=subprocess.DEVNULL).returncode:
        pytest.skip("no packages of Debian can be had")
    without = ["--download-only", "--no-install-recommends"]
    subprocess.run([*apt, *without, "install", *PACKAGES], **run)
    subprocess.run([*apt, "download", "qemu-user-static:amd64"], **run)
    for package in (state / "archives").glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", package, root], check=True)
    (qemu,) = state.glob("qemu-user-static*.deb")
    subprocess.run(["dpkg-deb", "--extract", qemu, folder], check=True)


def install_wheels(folder: Path, root: Path) -> None:
    """Installs what constraints.txt pins for aarch64 and the Python of `root`."""
    (python,) = (root / "usr" / "bin").glob("python3.??")
    version = python.name.removeprefix("python")
    environment = {"python_full_version": f"{version}.0", "platform_machine": "aarch64"}
    for name in ("requirements.txt", "constraints.txt"):
        lines = (ROOT / name).read_text().splitlines()
        packages = [Requirement(line) for line in lines if not line.startswith("#")]
        needed = [p for p in packages if p.marker is None or p.marker.evaluate(environment)]
        (folder / name).write_text("".join(f"{p.name}{p.specifier}\n" for p in needed))
    target = root / "usr" / "local" / "lib" / python.name / "dist-packages"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", target]
    command += ["--requirement=requirements.txt", "--constraint=constraints.txt"]
    command += ["--only-binary=:all:", "--python-version", version]
    command += [word for tag in TAGS for word in ("--platform", tag)]
    subprocess.run(command, check=True, cwd=folder)
    (root / "usr" / "bin" / "python").symlink_to("python3")


class Host:
    """An emulated host, whose checkout is /zoo; its folder /data is that of the test."""

    def __init__(self, folder: Path):
        self.root = folder / "root"
        self.root.mkdir()
        unpack(folder, self.root)
        install_wheels(folder, self.root)
        copy_checkout(self.root / "zoo")
        (self.root / "cpuinfo").write_text(CPUINFO)
        qemu = folder / "usr" / "bin" / "qemu-aarch64-static"
        self.enter = ENTER.format(root=self.root, qemu=qemu, magic=MAGIC, mask=MASK)

    def run(self, *command) -> subprocess.CompletedProcess:
        """Runs a command with the root folder as its current one, and accepts any exit status."""
        environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/", "LANG": "C.UTF-8"}
        environment |= {"QEMU_CPU": "neoverse-n1", **VARIABLES}
        return subprocess.run(
            [*INSIDE, "bash", "-c", self.enter, "enter", *map(str, command)],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )

    def run_json(self, script: str, *arguments) -> dict:
        return read_result(self.run("python3", f"/zoo/{script}", *arguments))


@pytest.fixture(scope="module")
def host(tmp_path_factory) -> Host:
    if platform.machine() != "x86_64" or not shutil.which("dpkg-deb"):
        pytest.skip("needs Debian on x86-64")
    mount = [*INSIDE, "mount", "-t", "binfmt_misc", "none", "/proc/sys/fs/binfmt_misc"]
    if not shutil.which("unshare") or subprocess.run(mount).returncode:
        pytest.skip("needs user namespaces, and Linux 6.7")
    return Host(tmp_path_factory.mktemp("aarch64"))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_the_zoo_computes_the_same_on_aarch64(host, tmp_path, monkeypatch):
    """What a user of a CPU runs, with the numbers of this host."""
    data = host.root / "data"
    draw_dataset(data, train_per_motion=1, test_per_motion=1, seed=1)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    here = [*SETTINGS, f"--data.root={data}"]
    there = [*SETTINGS, "--data.root=/data"]

    assert host.run_json("scripts/check_env.py")["missing"] == []
    machine = host.run("python3", "-c", "import platform; print(platform.machine())")
    assert machine.stdout == "aarch64\n"

    result = run_json("tsm/train.py", *here, f"--run.out={tmp_path / 'run'}")
    emulated = host.run_json("tsm/train.py", *there, "--run.out=/run")
    assert emulated["steps"] == result["steps"] >= 3
    assert emulated["loss"] == pytest.approx(result["loss"], rel=1e-2)

    weights = tmp_path / "run" / "epoch_001.ckpt"
    shutil.copy(weights, host.root / "weights.ckpt")
    here[:0] = ["--checkpoint_path", weights]
    there[:0] = ["--checkpoint_path", "/weights.ckpt"]
    result = run_json("tsm/eval.py", *here)
    emulated = host.run_json("tsm/eval.py", *there)
    assert emulated["videos"] == result["videos"] == 8
    assert emulated["loss"] == pytest.approx(result["loss"], abs=1e-5)

    video = "videos/test/left_000.mp4"
    (result,) = run_json("scripts/predict.py", *here, data / video)["predictions"]
    (emulated,) = host.run_json("scripts/predict.py", *there, f"/data/{video}")["predictions"]
    assert len(emulated["top"]) == len(result["top"]) > 1
    for one, other in zip(emulated["top"], result["top"]):
        assert one["name"] == other["name"]
        assert one["probability"] == pytest.approx(other["probability"], abs=1e-5)

    exported = host.run_json("tsm/export.py", *there, "--format=mindir", "--target=/net.mindir")
    assert exported["max_abs_difference"] < 1e-5

    convert = [f"--config_path={CONFIG}", *NETWORK, "--data.root=/none"]
    there = [*convert, "--source=/weights.pth", "--target=/converted.ckpt"]
    torch_file = host.root / "weights.pth"
    back = ["--to=pytorch", "--source", weights, "--target", torch_file]
    run_json("scripts/convert_checkpoint.py", *back)
    target = tmp_path / "converted.ckpt"
    run_json("scripts/convert_checkpoint.py", *convert, "--source", torch_file, "--target", target)
    host.run_json("scripts/convert_checkpoint.py", *there)
    assert (host.root / "converted.ckpt").read_bytes() == target.read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_dry_run_on_aarch64_has_the_kernels_of_one_here(host):
    command = ["scripts/analysis/dry_run.py", f"--config_path={CONFIG}", "--chip=ascend910b"]
    results = run_json(*command), host.run_json(*command)
    for result in results:
        del result["seconds"]
    assert results[0] == results[1]
