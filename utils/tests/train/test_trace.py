"""Fractions of time from synthetic traces in the formats of the profiler."""

from utils.train.profiler import sum_kernels, sum_table


def make_kernel(name: str, begin: float, length: float) -> dict:
    return {"name": name, "ts": str(begin), "dur": str(length), "args": {"type": "HostCpuOps"}}


def test_time_is_divided_into_computing_communication_and_idle():
    """40 us of computing, two AllReduces of 20 us, half of one hidden, and 30 us idle."""
    events = [
        make_kernel("Default/Conv2D-op0", 100, 30),
        make_kernel("Default/Mul-op1", 110, 10),  # at the same time as the first
        make_kernel("Default/AllReduce-op0", 130, 20),
        {"name": "Default", "ts": "100", "dur": "90", "args": {}},  # not a kernel
        make_kernel("Default/Add-op0", 180, 10),
        make_kernel("Default/AllReduce-op1", 180, 20),
    ]
    assert sum_kernels(events) == {"computing": 0.4, "communication": 0.3, "waiting": 0.3}


def test_a_run_too_short_for_a_trace_has_no_fractions():
    assert sum_kernels([{"name": "process_name", "ph": "M", "args": {"name": "CPU"}}]) == {}


def test_the_columns_of_ascends_table_are_summed(tmp_path):
    path = tmp_path / "step_trace_time.csv"
    path.write_text(
        "Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free\n"
        "1,60,20,5,25,20\n2,80,0,5,5,20\n"
    )
    assert sum_table(path) == {"computing": 0.7, "communication": 0.1, "waiting": 0.2}
