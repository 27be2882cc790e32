"""Equal files: one video or image under two names, as a copy or a link, in one list or in two."""

import itertools
import os
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from utils.files import compute_sha256
from utils.log import log
from utils.messages import join_names
from utils.runtime import Runtime

MAX_COMPARED = 20_000  # files whose content a training compares; of more only the paths
MAX_RECORDS = 1_000_000  # whose paths it compares
MAX_SHOWN = 5  # names of one group in a line


def find_equal_files(paths: Iterable[str]) -> list[list[str]]:
    """Groups of paths with one content: several names of a file, or copies.

    Empty files are left out. Folders of frames are compared too. It reads only files whose size
    occurs more than once.
    """
    by_size: dict[Hashable, dict[Hashable, list[str]]] = defaultdict(lambda: defaultdict(list))
    order = {path: k for k, path in enumerate(dict.fromkeys(paths))}
    for path in order:
        try:
            stat = os.stat(path)
            size = measure_folder(path) if os.path.isdir(path) else stat.st_size
        except OSError:
            continue
        if size:
            by_size[size][stat.st_dev, stat.st_ino].append(path)
    by_content = defaultdict(list)
    for files in by_size.values():
        for identity, names in files.items():
            content = identity if len(files) == 1 else compute_content(names[0]) or identity
            by_content[content] += names
    groups = [sorted(names, key=order.__getitem__) for names in by_content.values()]
    return sorted((g for g in groups if len(g) > 1), key=lambda group: order[group[0]])


def measure_folder(path: str) -> tuple[int, ...]:
    """The number of files of a folder and the size of the first one; nothing of an empty one."""
    names = sorted(os.listdir(path))
    return (len(names), os.stat(os.path.join(path, names[0])).st_size) if names else ()


def compute_content(path: str) -> Hashable:
    """The checksum of a file, of all files of a folder; empty if it cannot be read."""
    try:
        if not os.path.isdir(path):
            return compute_sha256(path)
        return tuple(compute_sha256(os.path.join(path, name)) for name in sorted(os.listdir(path)))
    except OSError:
        return ""


def describe_repeats(lists: Mapping[str, Sequence[Any]], limit: float = MAX_COMPARED) -> list[str]:
    """A line each about samples that a list has twice, with two labels, or that two lists have.

    `lists` are records. The same segment of equal files is the same sample. If there are more than
    `limit` records, only their paths are compared.
    """
    paths = [record.path for records in lists.values() for record in records]
    equal = find_equal_files(paths) if len(paths) <= limit else []
    first = {path: group[0] for group in equal for path in group}
    lines = []
    groups: dict[str, dict[Hashable, list[Any]]] = {}
    for name, records in lists.items():
        groups[name] = defaultdict(list)
        for record in records:
            path = os.path.normpath(first.get(record.path, record.path))
            groups[name][record.dataset_index, path, record.segment].append(record)
        repeated = [group for group in groups[name].values() if len(group) > 1]
        contrary = [group for group in repeated if any(r.label != group[0].label for r in group)]
        lines += describe_groups(f"{name} has samples more than once", repeated)
        lines += describe_groups(f"{name} has equal samples with different labels", contrary)
        if len({(record.dataset_index, record.label) for record in records}) == 1 < len(records):
            lines.append(f"{name} has one class: all {len(records)} samples have the same label")
    for a, b in itertools.combinations(groups, 2):
        both = [[groups[a][key][0], *of_b] for key, of_b in groups[b].items() if key in groups[a]]
        lines += describe_groups(f"{a} and {b} have the same samples", both)
    return lines


def describe_groups(what: str, groups: Sequence[Sequence[Any]]) -> list[str]:
    """A line with the number of groups, and one of them; none without a group."""
    if not groups:
        return []
    names = join_names(list(dict.fromkeys(record.path for record in groups[0])), MAX_SHOWN)
    return [f"{what} ({len(groups)}), for example {names}"]


def log_repeats(rt: Runtime, **lists: Sequence[Any]) -> None:
    """Rank 0 logs `describe_repeats` of the lists of a training."""
    if rt.is_main_process and sum(map(len, lists.values())) <= MAX_RECORDS:
        for line in describe_repeats(lists):
            log.warning("%s", line)
